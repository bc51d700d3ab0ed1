/*
 * Attention of single tokens over a long cache, kept in each scheme: nothing but the attention kernels, over
 * keys and values that lie in memory as pages hold them and are far larger than the caches. Threads take
 * (layer, KV head) pairs, as the backend does. Contents are random bytes under sane scales: time does not
 * depend on them.
 *
 *   bench_kv [POSITIONS [THREADS [SCHEME...]]]      default: 32768 positions, 2 threads, bf16 and the usual
 * schemes
 *
 * The shape is qwen3.5-4b's: 8 attention layers, 4 KV heads of 256, 4 query heads to each.
 *
 * SPDX-License-Identifier: MIT
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "kernels/kernels.h"

enum { LAYERS = 8, HEADS = 4, DIM = 256, REP = 4, ROUNDS = 5, MAX_THREADS = 64 };

struct cache {
    struct esp_kernels k;
    struct esp_kv_scheme scheme;
    uint8_t *pages; /* [span][LAYERS][HEADS][K, V][ESP_SPAN] rows, as a page pool lies */
    size_t k_row, v_row;
    uint32_t n_span, n_thread;
};

struct worker {
    const struct cache *c;
    uint32_t tid;
    float sink; /* keeps results alive */
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One row of rounded noise, encoded: sane scales; then copied everywhere with codes of its own. */
static void fill(struct cache *c)
{
    const size_t page = LAYERS * HEADS * (c->k_row + c->v_row) * ESP_SPAN;
    uint8_t k[ESP_KV_ROW_MAX], v[ESP_KV_ROW_MAX];
    uint32_t rng = 1;
    float x[DIM];

    for (size_t i = 0; i < page * c->n_span; i += (c->k_row + c->v_row) * ESP_SPAN) {
        for (size_t j = 0; j < DIM; j++) {
            rng = rng * 1664525 + 1013904223;
            x[j] = (float)(rng >> 8) * 0x1p-23f - 1;
        }
        esp_kv_encode_key(&c->scheme, DIM, x, k);
        esp_kv_encode_value(&c->scheme, DIM, x, v);
        for (size_t t = 0; t < ESP_SPAN; t++) {
            memcpy(c->pages + i + t * c->k_row, k, c->k_row);
            memcpy(c->pages + i + ESP_SPAN * c->k_row + t * c->v_row, v, c->v_row);
        }
    }
}

static void attend_head(struct worker *w, uint32_t pair, const float *q, float *scratch)
{
    const struct cache *c = w->c;
    const size_t head = (c->k_row + c->v_row) * ESP_SPAN;
    static const uint32_t all[REP] = {ESP_SPAN, ESP_SPAN, ESP_SPAN, ESP_SPAN};
    float m[REP], l[REP] = {0}, acc[REP * DIM] = {0};
    struct esp_attend a = {.ld_kv = DIM,
                           .scheme = &c->scheme,
                           .head_dim = DIM,
                           .n_query = REP,
                           .q = q,
                           .ldq = DIM,
                           .n_visible = all,
                           .m = m,
                           .l = l,
                           .acc = acc,
                           .ld_acc = DIM};

    for (uint32_t r = 0; r < REP; r++)
        m[r] = -1e30f;
    for (uint32_t span = 0; span < c->n_span; span++) {
        a.k = c->pages + ((size_t)span * LAYERS * HEADS + pair) * head;
        a.v = (const uint8_t *)a.k + c->k_row * ESP_SPAN;
        a.k_next = span + 1 < c->n_span ? (const uint8_t *)a.k + (size_t)LAYERS * HEADS * head : NULL;
        if (esp_kv_coded(&c->scheme))
            c->k.attend_codes(&a, scratch);
        else
            c->k.attend[c->scheme.kind == ESP_KV_KIND_F32 ? ESP_KV_F32 : ESP_KV_BF16](&a, scratch);
    }
    for (uint32_t r = 0; r < REP; r++)
        esp_kv_unrotate(&c->scheme, DIM, acc + r * DIM);
    w->sink += acc[0] / l[0];
}

static void *work(void *arg)
{
    struct worker *w = arg;
    float *scratch = esp_alloc_aligned(esp_attend_scratch_floats(REP) * sizeof(float), 64);
    float *q = esp_alloc_aligned(REP * DIM * sizeof(float), 64);

    for (size_t i = 0; scratch && q && i < REP * DIM; i++)
        q[i] = (float)(i % 17) / 64 - 0.1f;
    for (uint32_t pair = w->tid; scratch && q && pair < LAYERS * HEADS; pair += w->c->n_thread)
        attend_head(w, pair, q, scratch);
    esp_free_aligned(scratch);
    esp_free_aligned(q);
    return NULL;
}

/* Best seconds of a token of ROUNDS. */
static double measure(struct cache *c)
{
    double best = 1e9;

    for (int round = 0; round < ROUNDS; round++) {
        struct worker w[MAX_THREADS];
        pthread_t t[MAX_THREADS];
        const double start = now();

        for (uint32_t i = 0; i < c->n_thread; i++) {
            w[i] = (struct worker){.c = c, .tid = i};
            if (i && pthread_create(&t[i], NULL, work, &w[i]) != 0)
                return best;
        }
        work(&w[0]);
        for (uint32_t i = 1; i < c->n_thread; i++)
            pthread_join(t[i], NULL);
        best = now() - start < best ? now() - start : best;
    }
    return best;
}

int main(int argc, char **argv)
{
    static char *usual[] = {"bf16", "q8", "q4", "turbo:k8v4", "turbo:k8v3", "turbo:k4v3"};
    char **names = argc > 3 ? argv + 3 : usual;
    const int n = argc > 3 ? argc - 3 : (int)(sizeof usual / sizeof usual[0]);
    struct cache c = {.n_span = (uint32_t)(argc > 1 ? strtoul(argv[1], NULL, 10) : 32768) / ESP_SPAN,
                      .n_thread = (uint32_t)(argc > 2 ? strtoul(argv[2], NULL, 10) : 2)};
    double bf16 = 0;

    if (c.n_span == 0 || c.n_thread == 0 || c.n_thread > MAX_THREADS)
        return 2;
    esp_kernels_init(&c.k, esp_cpu_best());
    for (int i = 0; i < n; i++) {
        esp_error err;
        double s, bytes;

        if (esp_kv_parse(&c.scheme, names[i], &err) != ESP_OK ||
            esp_kv_check(&c.scheme, DIM, &err) != ESP_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 2;
        }
        c.k_row = esp_kv_key_bytes(&c.scheme, DIM);
        c.v_row = esp_kv_value_bytes(&c.scheme, DIM);
        bytes = (double)(c.k_row + c.v_row) * ESP_SPAN * LAYERS * HEADS * c.n_span;
        c.pages = esp_alloc_aligned((size_t)bytes, 2 << 20);
        if (!c.pages)
            return 1;
        fill(&c);
        s = measure(&c);
        bf16 = i == 0 ? s : bf16;
        printf("%-16s %7.2f ms a token, %6.2f GB/s, %.2f x the first\n", names[i], 1e3 * s, 1e-9 * bytes / s,
               bf16 / s);
        esp_free_aligned(c.pages);
    }
    return 0;
}
