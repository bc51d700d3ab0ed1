/* Continue a text: complete MODEL TEXT. SPDX-License-Identifier: MIT */
#include <espalier/espalier.h>
#include <stdio.h>
#include <string.h>

static esp_status complete(esp_model *model, esp_engine *engine, const char *text, esp_error *err)
{
    esp_seq *seq = NULL;
    esp_token prompt[512];
    esp_event event = {0};
    char bytes[256];
    size_t n = 0;
    esp_status s = esp_seq_open(&seq, engine, NULL, err); /* zeroed sampling is greedy */
    s = s ? s : esp_tokenize(model, text, strlen(text), false, prompt, 512, &n, err);
    s = s ? s : esp_seq_append(seq, prompt, n < 512 ? n : 512, err);
    s = s ? s : esp_seq_generate(seq, 40, err);
    while (s == ESP_OK && event.finish == ESP_FINISH_NONE) {
        s = esp_engine_step(engine, &event, 1, &n, err);
        if (!s && n && event.token >= 0 && !esp_token_bytes(model, event.token, bytes, 256, &n, NULL))
            fwrite(bytes, 1, n < 256 ? n : 256, stdout);
    }
    esp_seq_close(seq);
    return s;
}

int main(int argc, char **argv)
{
    esp_model *model = NULL;
    esp_engine *engine = NULL;
    esp_error err = {0};
    esp_status s = argc == 3 ? esp_model_open(&model, argv[1], NULL, &err) : ESP_EINVAL;
    s = s ? s : esp_engine_open(&engine, model, NULL, &err);
    s = s ? s : complete(model, engine, argv[2], &err);
    fprintf(stderr, "%s\n", argc == 3 ? err.message : "usage: complete MODEL TEXT");
    if (engine)
        esp_engine_close(engine);
    if (model)
        esp_model_close(model);
    return s != ESP_OK;
}
