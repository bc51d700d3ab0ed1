/* Continue a text: complete MODEL TEXT. SPDX-License-Identifier: MIT */
#include <espalier/espalier.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    esp_model *model = NULL;
    esp_engine *engine = NULL;
    esp_seq *seq = NULL;
    esp_engine_opts eo = {0};
    esp_error err = {0};
    esp_token prompt[512];
    esp_event event = {0};
    size_t n = 0;
    esp_status s;

    if (argc != 3)
        return fprintf(stderr, "usage: complete MODEL TEXT\n"), 2;
    eo.context = 1024;
    s = esp_model_open(&model, argv[1], NULL, &err);
    s = s ? s : esp_engine_open(&engine, model, &eo, &err);
    s = s ? s : esp_seq_open(&seq, engine, NULL, &err); /* zeroed sampling is greedy */
    s = s ? s : esp_tokenize(model, argv[2], strlen(argv[2]), false, prompt, 512, &n, &err);
    s = s ? s : esp_seq_append(seq, prompt, n < 512 ? n : 512, &err);
    s = s ? s : esp_seq_generate(seq, 40, &err);
    while (s == ESP_OK && event.finish == ESP_FINISH_NONE) {
        char bytes[256];

        s = esp_engine_step(engine, &event, 1, &n, &err);
        if (s == ESP_OK && n == 1 && event.token >= 0 &&
            !esp_token_bytes(model, event.token, bytes, 256, &n, NULL))
            fwrite(bytes, 1, n < 256 ? n : 256, stdout);
    }
    puts("");
    if (s != ESP_OK)
        fprintf(stderr, "%s\n", err.message);
    return s != ESP_OK; /* the process ends: nothing is closed by hand */
}
