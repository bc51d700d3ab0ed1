/*
 * Fork and rewind: three continuations of one text from one pass over it, then the first of them taken back
 * and done again, which gives the same tokens. fork_rewind MODEL
 *
 * SPDX-License-Identifier: MIT
 */
#include <espalier/espalier.h>

#include <stdio.h>
#include <string.h>

enum { N = 3, NEW = 24 };

/* Run the engine until n_armed sequences have finished. A step without events is one that ran prompt tokens.
 */
static esp_status run(esp_engine *engine, size_t n_armed, esp_error *err)
{
    esp_event events[2 * N];
    size_t n = 0;

    while (n_armed > 0) {
        const esp_status s = esp_engine_step(engine, events, 2 * N, &n, err);

        if (s != ESP_OK)
            return s;
        for (size_t i = 0; i < n; i++)
            n_armed -= events[i].finish != ESP_FINISH_NONE;
    }
    return ESP_OK;
}

static void print_tail(const esp_model *model, esp_seq *seq, size_t from)
{
    esp_token tokens[512];
    size_t n = 0;

    esp_seq_tokens(seq, tokens, 512, &n, NULL);
    for (size_t i = from; i < n && i < 512; i++) {
        char bytes[256];
        size_t len = 0;

        if (esp_token_bytes(model, tokens[i], bytes, sizeof bytes, &len, NULL) == ESP_OK &&
            len <= sizeof bytes)
            fwrite(bytes, 1, len, stdout);
    }
    printf("\n---\n");
}

/* Continue seq, take it back to length n, continue again; 1 when both gave the same tokens. */
static esp_status again(esp_engine *engine, esp_seq *seq, size_t n, int *same, esp_error *err)
{
    esp_token first[512], second[512];
    size_t a = 0, b = 0;
    esp_status s = esp_seq_tokens(seq, first, 512, &a, err);

    if (s == ESP_OK)
        s = esp_seq_rewind(seq, n, err);
    if (s == ESP_OK)
        s = esp_seq_generate(seq, NEW, err);
    if (s == ESP_OK)
        s = run(engine, 1, err);
    if (s == ESP_OK)
        s = esp_seq_tokens(seq, second, 512, &b, err);
    *same = s == ESP_OK && a == b && a <= 512 && memcmp(first, second, a * sizeof *first) == 0;
    return s;
}

static esp_status demonstrate(const esp_model *model, esp_engine *engine, esp_seq *seqs[N], esp_error *err)
{
    static const char text[] = "It was a dark night, and the old man";
    esp_token prompt[256];
    size_t n = 0;
    int same = 0;
    esp_status s = esp_tokenize(model, text, sizeof text - 1, false, prompt, 256, &n, err);

    for (size_t i = 0; s == ESP_OK && i < N; i++) {
        esp_seq_opts so;

        memset(&so, 0, sizeof so);
        so.sampling.temperature = 0.8F;
        so.sampling.seed = i + 1;
        if (i > 0) {
            s = esp_seq_fork(&seqs[i], seqs[0], &so, err);
            continue;
        }
        s = esp_seq_open(&seqs[0], engine, &so, err);
        if (s == ESP_OK)
            s = esp_seq_append(seqs[0], prompt, n, err);
        if (s == ESP_OK)
            s = esp_seq_generate(seqs[0], 0, err); /* the prompt alone */
        if (s == ESP_OK)
            s = run(engine, 1, err);
    }
    for (size_t i = 0; s == ESP_OK && i < N; i++)
        s = esp_seq_generate(seqs[i], NEW, err);
    if (s == ESP_OK)
        s = run(engine, N, err);
    for (size_t i = 0; s == ESP_OK && i < N; i++)
        print_tail(model, seqs[i], n);
    if (s == ESP_OK)
        s = again(engine, seqs[0], n, &same, err);
    if (s == ESP_OK)
        printf("taken back and done again: %s\n", same ? "the same" : "something else");
    return s == ESP_OK && !same ? ESP_ESTATE : s;
}

int main(int argc, char **argv)
{
    esp_model *model = NULL;
    esp_engine *engine = NULL;
    esp_seq *seqs[N] = {NULL};
    esp_engine_opts eo = {0};
    esp_error err = {0};
    esp_status s;

    if (argc != 2)
        return fprintf(stderr, "usage: fork_rewind MODEL\n"), 2;
    eo.context = 512;
    eo.max_seqs = N;
    eo.kv_tokens = N * 512;
    s = esp_model_open(&model, argv[1], NULL, &err);
    if (s == ESP_OK)
        s = esp_engine_open(&engine, model, &eo, &err);
    if (s == ESP_OK)
        s = demonstrate(model, engine, seqs, &err);
    if (s != ESP_OK)
        fprintf(stderr, "%s: %s\n", esp_status_name(s), err.message);
    for (size_t i = 0; i < N; i++)
        esp_seq_close(seqs[i]);
    if (engine)
        esp_engine_close(engine);
    if (model)
        esp_model_close(model);
    return s != ESP_OK;
}
