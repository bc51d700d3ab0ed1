/*
 * One step of a whole model behind a long context, with keys and values kept in several ways: rows of a
 * prompt (or a single token) after POSITIONS cached ones, which are counted without running them. Rounds go
 * through the schemes in turn. Prints medians, their ratio to the first scheme's, and the peak of resident
 * memory beside what the plan said: with one scheme the two may be compared.
 *
 *   bench_kv_step [POSITIONS [ROWS [ROUNDS [THREADS [SCHEME...]]]]]     default: 32768, 512, 3, all of them,
 *                                                                       bf16 and turbo:k8v3
 *
 * The model is $BENCH_SHAPE, else qwen3.5-4b, with random affine4 weights.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"

#include "engine/engine.h"
#include "state/state.h"

enum { MAX_SCHEME = 8, MAX_ROUND = 64, MAX_ROWS = 4096 };

static int32_t ids[MAX_ROWS], pos[MAX_ROWS][3];

struct way {
    const char *kv;
    esp_engine *g;
    esp_memory_plan plan;
    double s[MAX_ROUND];
};

/* A sequence of n positions that nobody ran; its pages and slots are touched. */
static esp_status filled(struct esp_state **out, struct esp_state_pools *p, uint32_t n, uint32_t context,
                         esp_error *err)
{
    struct esp_batch_seq pass;

    memset(p->mem.pages->host, 0, p->mem.pages->bytes);
    memset(p->mem.slots->host, 0, p->mem.slots->bytes);
    ESP_TRY(esp_state_open(out, p, context, 0, err));
    for (uint32_t at = 0; at < n; at += ESP_CHUNK) {
        const uint32_t take = n - at < ESP_CHUNK ? n - at : ESP_CHUNK;

        ESP_TRY(esp_state_begin(*out, take, ESP_PASS_WRITE, &pass, err));
        ESP_TRY(esp_state_commit(*out, take, err));
    }
    return ESP_OK;
}

/* Seconds of a step of n_row rows behind n_past. */
static esp_status step(struct way *w, uint32_t n_past, uint32_t n_row, double *seconds, esp_error *err)
{
    const uint32_t last = n_row - 1;
    struct esp_batch_seq pass;
    struct esp_batch b = {.n_tok = n_row,
                          .ids = ids,
                          .pos = (const int32_t(*)[3])pos,
                          .n_seq = 1,
                          .seqs = &pass,
                          .n_out = 1,
                          .out_rows = &last,
                          .logits = w->g->logits};
    struct esp_state *s = NULL;
    esp_status st = filled(&s, w->g->pools, n_past, n_past + n_row, err);
    double start;

    for (uint32_t i = 0; i < n_row; i++) {
        ids[i] = (int32_t)(17 * i % 1000);
        pos[i][0] = pos[i][1] = pos[i][2] = (int32_t)(n_past + i);
    }
    if (st == ESP_OK)
        st = esp_state_begin(s, n_row, ESP_PASS_WRITE, &pass, err);
    if (st == ESP_OK) {
        pass.tok0 = 0;
        pass.n_tok = n_row;
        start = now();
        st = w->g->dev->ops->run(w->g->plan, &b, err);
        *seconds = now() - start;
    }
    if (st == ESP_OK)
        st = esp_state_commit(s, n_row, err);
    if (s)
        esp_state_close(s);
    return st;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void report(struct way *w, int n, int rounds)
{
    struct rusage use;

    for (int i = n - 1; i >= 0; i--) { /* the first one's rounds are sorted last: ratios need their order */
        double ratio[MAX_ROUND];

        for (int r = 0; r < rounds; r++)
            ratio[r] = w[0].s[r] / w[i].s[r];
        qsort(ratio, (size_t)rounds, sizeof *ratio, by_value);
        qsort(w[i].s, (size_t)rounds, sizeof *w[i].s, by_value);
        printf("%-16s %8.2f ms a step (least %.2f), %.2f x the first (%.2f to %.2f), planned %.1f MiB\n",
               w[i].kv, 1e3 * w[i].s[rounds / 2], 1e3 * w[i].s[0], ratio[rounds / 2], ratio[0],
               ratio[rounds - 1], (double)w[i].plan.total / 1048576);
    }
    getrusage(RUSAGE_SELF, &use);
    printf("peak resident memory %.1f MiB\n", (double)use.ru_maxrss / 1024);
}

int main(int argc, char **argv)
{
    static const char *usual[] = {"bf16", "turbo:k8v3"};
    static struct way w[MAX_SCHEME];
    const char *const *names = argc > 5 ? (const char *const *)(argv + 5) : usual;
    const uint32_t n_past = (uint32_t)(argc > 1 ? strtoul(argv[1], NULL, 10) : 32768),
                   n_row = (uint32_t)(argc > 2 ? strtoul(argv[2], NULL, 10) : 512);
    const int rounds = (int)(argc > 3 ? strtol(argv[3], NULL, 10) : 3), n = argc > 5 ? argc - 5 : 2;
    const esp_model_opts mo = {.threads = (uint32_t)(argc > 4 ? strtoul(argv[4], NULL, 10) : 0)};
    esp_model *m = NULL;
    esp_error err = {0};
    const char *shape = getenv("BENCH_SHAPE");
    esp_status s = esp_model_synthetic(&m, shape ? shape : "qwen3.5-4b", "affine4", 1, &mo, &err);

    if (n_row == 0 || n_row > MAX_ROWS || rounds < 1 || rounds > MAX_ROUND || n > MAX_SCHEME)
        return 2;
    for (int i = 0; i < n && s == ESP_OK; i++) {
        const esp_engine_opts o = {
            .context = n_past + n_row, .max_seqs = 1, .snapshots = 1, .chunk = n_row, .kv = names[i]};

        w[i].kv = names[i];
        s = esp_engine_plan(m, &o, &w[i].plan, &err);
        if (s == ESP_OK)
            s = esp_engine_open(&w[i].g, m, &o, &err);
    }
    for (int r = 0; r < rounds && s == ESP_OK; r++)
        for (int i = 0; i < n && s == ESP_OK; i++)
            s = step(&w[i], n_past, n_row, &w[i].s[r], &err);
    if (s == ESP_OK)
        report(w, n, rounds);
    else
        fprintf(stderr, "%s\n", err.message);
    for (int i = 0; i < n; i++)
        esp_engine_close(w[i].g);
    esp_model_close(m);
    return s != ESP_OK;
}
