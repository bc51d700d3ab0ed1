/*
 * Attention over a long cache, kept in each scheme: nothing but the attention kernels, over keys and values
 * that lie in memory as pages hold them and are far larger than the caches. Rows come in blocks of 16, as the
 * backend takes those of a prompt; threads take (layer, KV head) pairs and blocks. Contents are random bytes
 * under sane scales: time does not depend on them. Rounds go through the schemes in turn, so that what else
 * the machine does meets all of them; the medians are printed, and the median of the ratios of each round.
 *
 *   bench_kv [POSITIONS [THREADS [ROWS [SCHEME...]]]]
 *                                     default: 32768 positions, 2 threads, 1 row, bf16 and the usual schemes
 *   ESPALIER_CPU=avx2                 of that level, instead of the highest
 *
 * The shape is qwen3.5-4b's: 8 attention layers, 4 KV heads of 256, 4 query heads to each.
 *
 * SPDX-License-Identifier: MIT
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#include "base/mem.h"
#include "kernels/kernels.h"

enum { LAYERS = 8, HEADS = 4, DIM = 256, REP = 4, MAX_THREADS = 64, MAX_SCHEME = 16, ROUNDS = 9 };
enum { BLOCK = 32 }; /* rows of one call, at most: ATTEND_BLOCK_TOKENS of the backend */

struct cache {
    struct esp_kernels k;
    struct esp_kv_scheme scheme;
    uint8_t *pages; /* [span][LAYERS][HEADS][K, V][ESP_SPAN] rows, as a page pool lies */
    size_t k_row, v_row;
    uint32_t n_span, n_thread, n_row;
};

struct worker {
    const struct cache *c;
    uint32_t tid;
    float sink; /* keeps results alive */
};

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

/* n_tok rows of one KV head's query heads, over all of the cache. */
static void attend_head(struct worker *w, uint32_t pair, uint32_t n_tok, const float *q, float *acc,
                        float *scratch)
{
    const struct cache *c = w->c;
    const size_t head = (c->k_row + c->v_row) * ESP_SPAN;
    const uint32_t n = n_tok * REP;
    uint32_t all[REP * BLOCK];
    float m[REP * BLOCK], l[REP * BLOCK];
    struct esp_attend a = {.ld_kv = DIM,
                           .scheme = &c->scheme,
                           .head_dim = DIM,
                           .n_query = n,
                           .q = q,
                           .ldq = DIM,
                           .int8_query = true, /* as the engine by default */
                           .n_visible = all,
                           .m = m,
                           .l = l,
                           .acc = acc,
                           .ld_acc = DIM};

    for (uint32_t r = 0; r < n; r++) {
        all[r] = ESP_SPAN;
        m[r] = -1e30f;
        l[r] = 0;
    }
    memset(acc, 0, (size_t)n * DIM * sizeof *acc);
    for (uint32_t span = 0; span < c->n_span; span++) {
        a.k = c->pages + ((size_t)span * LAYERS * HEADS + pair) * head;
        a.v = (const uint8_t *)a.k + c->k_row * ESP_SPAN;
        a.k_next = span + 1 < c->n_span ? (const uint8_t *)a.k + (size_t)LAYERS * HEADS * head : NULL;
        if (esp_kv_coded(&c->scheme))
            c->k.attend_codes(&a, scratch);
        else
            c->k.attend[c->scheme.kind == ESP_KV_KIND_F32 ? ESP_KV_F32 : ESP_KV_BF16](&a, scratch);
    }
    for (uint32_t r = 0; r < n; r++)
        esp_kv_unrotate(&c->scheme, DIM, acc + r * DIM);
    w->sink += acc[0] / l[0];
}

static void *work(void *arg)
{
    struct worker *w = arg;
    const uint32_t block = w->c->n_row < BLOCK ? w->c->n_row : BLOCK;
    const uint32_t n_task = LAYERS * HEADS * ((w->c->n_row + BLOCK - 1) / BLOCK);
    float *scratch = esp_alloc_aligned(esp_attend_scratch_floats(REP * BLOCK) * sizeof(float), 64);
    float *q = esp_alloc_aligned(2 * REP * BLOCK * DIM * sizeof(float), 64);

    for (size_t i = 0; scratch && q && i < REP * BLOCK * DIM; i++)
        q[i] = (float)(i % 17) / 64 - 0.1f;
    for (uint32_t task = w->tid; scratch && q && task < n_task; task += w->c->n_thread)
        attend_head(w, task % (LAYERS * HEADS), block, q, q + REP * BLOCK * DIM, scratch);
    esp_free_aligned(scratch);
    esp_free_aligned(q);
    return NULL;
}

/* Seconds of one pass of n_row rows. */
static double measure(struct cache *c)
{
    struct worker w[MAX_THREADS];
    pthread_t t[MAX_THREADS];
    const double start = now();

    for (uint32_t i = 0; i < c->n_thread; i++) {
        w[i] = (struct worker){.c = c, .tid = i};
        if (i && pthread_create(&t[i], NULL, work, &w[i]) != 0)
            exit(1);
    }
    work(&w[0]);
    for (uint32_t i = 1; i < c->n_thread; i++)
        pthread_join(t[i], NULL);
    return now() - start;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

static bool make(struct cache *c, const char *name)
{
    esp_error err;

    if (esp_kv_parse(&c->scheme, name, &err) != ESP_OK || esp_kv_check(&c->scheme, DIM, &err) != ESP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return false;
    }
    c->k_row = esp_kv_key_bytes(&c->scheme, DIM);
    c->v_row = esp_kv_value_bytes(&c->scheme, DIM);
    c->pages = esp_alloc_aligned((c->k_row + c->v_row) * ESP_SPAN * LAYERS * HEADS * c->n_span, 2 << 20);
    if (!c->pages) {
        fprintf(stderr, "no memory for %s\n", name);
        return false;
    }
    fill(c);
    return true;
}

static void report(const struct cache *c, const char *const *names, int n, double (*s)[ROUNDS])
{
    for (int i = n - 1; i >= 0; i--) { /* the first one's rounds are sorted last: ratios need their order */
        const double bytes = (double)(c[i].k_row + c[i].v_row) * ESP_SPAN * LAYERS * HEADS * c[i].n_span;
        double ratio[ROUNDS], low, high;

        for (int r = 0; r < ROUNDS; r++)
            ratio[r] = s[0][r] / s[i][r];
        qsort(ratio, ROUNDS, sizeof *ratio, by_value);
        low = ratio[0];
        high = ratio[ROUNDS - 1];
        printf("%-16s %9.2f ms, %6.2f GB/s, %.2f x the first (%.2f to %.2f)\n", names[i],
               1e3 * median(s[i], ROUNDS), 1e-9 * bytes / median(s[i], ROUNDS), ratio[ROUNDS / 2], low, high);
    }
}

int main(int argc, char **argv)
{
    static const char *usual[] = {"bf16", "q8", "q4", "turbo:k8v4", "turbo:k8v3", "turbo:k4v3"};
    const char *const *names = argc > 4 ? (const char *const *)(argv + 4) : usual;
    const int n = argc > 4 ? argc - 4 : (int)(sizeof usual / sizeof usual[0]);
    const struct cache of = {.n_span = (uint32_t)(argc > 1 ? strtoul(argv[1], NULL, 10) : 32768) / ESP_SPAN,
                             .n_thread = (uint32_t)(argc > 2 ? strtoul(argv[2], NULL, 10) : 2),
                             .n_row = (uint32_t)(argc > 3 ? strtoul(argv[3], NULL, 10) : 1)};
    enum esp_cpu_level level = esp_cpu_best();
    const char *wanted = getenv("ESPALIER_CPU");
    static double s[MAX_SCHEME][ROUNDS];
    static struct cache c[MAX_SCHEME];
    esp_error err;

    if (wanted && esp_cpu_level_parse(&level, wanted, &err) != ESP_OK) {
        fprintf(stderr, "ESPALIER_CPU: %s\n", err.message);
        return 2;
    }
    if (of.n_span == 0 || of.n_thread == 0 || of.n_thread > MAX_THREADS || n > MAX_SCHEME || of.n_row == 0 ||
        (of.n_row > BLOCK && of.n_row % BLOCK))
        return 2;
    for (int i = 0; i < n; i++) {
        c[i] = of;
        esp_kernels_init(&c[i].k, level);
        if (!make(&c[i], names[i]))
            return 1;
    }
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < n; i++)
            s[i][r] = measure(&c[i]);
    report(c, names, n, s);
    for (int i = 0; i < n; i++)
        esp_free_aligned(c[i].pages);
    return 0;
}
