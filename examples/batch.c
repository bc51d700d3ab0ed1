/*
 * Several prompts at once through one engine: a queue in front of two rows, a prefix cache that spares what
 * the prompts share, answers printed as they end. batch MODEL PROMPT...
 *
 * SPDX-License-Identifier: MIT
 */
#include <espalier/espalier.h>

#include <stdio.h>
#include <string.h>

enum { MAX_PROMPTS = 16, NEW = 32, CONTEXT = 512 };

static void print_answer(const esp_model *model, esp_seq *seq, const char *prompt)
{
    esp_token tokens[CONTEXT];
    esp_usage usage;
    size_t n = 0;

    esp_seq_tokens(seq, tokens, CONTEXT, &n, NULL);
    esp_seq_usage(seq, &usage);
    printf("%s", prompt);
    for (size_t i = usage.prompt_tokens; i < n; i++) {
        char bytes[256];
        size_t len = 0;

        if (esp_token_bytes(model, tokens[i], bytes, sizeof bytes, &len, NULL) == ESP_OK &&
            len <= sizeof bytes)
            fwrite(bytes, 1, len, stdout);
    }
    printf("\n[%d of %d prompt tokens cached, waited %.1f ms, answered in %.1f ms]\n",
           (int)usage.cached_tokens, (int)usage.prompt_tokens, usage.queue_ms,
           usage.prompt_ms + usage.generate_ms);
}

static esp_status start(const esp_model *model, esp_engine *engine, esp_seq **seq, const char *prompt,
                        esp_error *err)
{
    esp_token tokens[CONTEXT];
    esp_seq_opts options;
    size_t n = 0;
    esp_status s = esp_tokenize(model, prompt, strlen(prompt), false, tokens, CONTEXT, &n, err);

    memset(&options, 0, sizeof options);
    if (s == ESP_OK)
        s = esp_seq_open(seq, engine, &options, err);
    if (s == ESP_OK)
        s = esp_seq_append(*seq, tokens, n, err);
    return s == ESP_OK ? esp_seq_generate(*seq, NEW, err) : s;
}

static esp_status run(const esp_model *model, esp_engine *engine, char **prompts, int n_prompt,
                      esp_error *err)
{
    esp_seq *seqs[MAX_PROMPTS] = {NULL};
    int n_open = 0;
    esp_status s = ESP_OK;

    for (; s == ESP_OK && n_open < n_prompt; n_open++)
        s = start(model, engine, &seqs[n_open], prompts[n_open], err);
    for (int n_done = 0; s == ESP_OK && n_done < n_prompt;) {
        esp_event events[2 * MAX_PROMPTS];
        size_t n = 0;

        s = esp_engine_step(engine, events, 2 * MAX_PROMPTS, &n, err);
        for (size_t i = 0; s == ESP_OK && i < n; i++) {
            if (events[i].finish == ESP_FINISH_NONE)
                continue;
            n_done++;
            for (int j = 0; j < n_prompt; j++)
                if (seqs[j] == events[i].seq && events[i].finish != ESP_FINISH_FAILED)
                    print_answer(model, seqs[j], prompts[j]);
            if (events[i].finish == ESP_FINISH_FAILED)
                fprintf(stderr, "failed: %s\n", events[i].message);
        }
    }
    for (int i = 0; i < n_prompt; i++)
        esp_seq_close(seqs[i]);
    return s;
}

int main(int argc, char **argv)
{
    esp_model *model = NULL;
    esp_engine *engine = NULL;
    esp_engine_opts eo;
    esp_error err = {0};
    esp_status s;

    if (argc < 3 || argc - 2 > MAX_PROMPTS)
        return fprintf(stderr, "usage: batch MODEL PROMPT... (at most %d)\n", MAX_PROMPTS), 2;
    memset(&eo, 0, sizeof eo);
    eo.context = CONTEXT;
    eo.max_seqs = MAX_PROMPTS;
    eo.rows = 2;
    eo.kv_tokens = 4 * CONTEXT;
    eo.admission = ESP_ADMISSION_WORST;
    eo.checkpoints = 16;
    s = esp_model_open(&model, argv[1], NULL, &err);
    if (s == ESP_OK)
        s = esp_engine_open(&engine, model, &eo, &err);
    if (s == ESP_OK)
        s = run(model, engine, argv + 2, argc - 2, &err);
    if (s != ESP_OK)
        fprintf(stderr, "%s: %s\n", esp_status_name(s), err.message);
    esp_engine_close(engine);
    esp_model_close(model);
    return s != ESP_OK;
}
