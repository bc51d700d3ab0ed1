/*
 * Coded keys and values by themselves: a tape that appends rows of the batch to a coded cache and attends
 * over it. The bytes in the pages are those of formats/kv.c, whatever the rows hold; attention is compared
 * with sums in f64 over what these bytes decode to, and the result does not depend on how rows are cut into
 * passes. The same runs on the CPU first, which says that the test itself is right.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "formats/format.h"
#include "formats/kv.h"

#include "support/net.h"

enum { KV_HEADS = 2, CONTEXT = 1100, MAX_TOK = 1024, PAGES = (CONTEXT + ESP_SPAN - 1) / ESP_SPAN };

struct rig {
    struct esp_dev *dev;
    struct esp_arena *arena;
    struct esp_tape tape;
    struct esp_layout layout;
    struct esp_pools pools;
    struct esp_plan *plan;
    uint32_t n_head, dim, width; /* width: of keys, and of values */
    bool rounds;                 /* what is decoded is rounded to bf16 */
};

static const float freq[1] = {1};
static const uint8_t axis[1] = {0};

/* Queries are the keys of both heads, `rep` times over. */
static void record(struct rig *r, uint32_t rep)
{
    esp_error err;
    esp_val x, q;

    esp_tape_init(&r->tape, r->arena);
    r->tape.rope = (struct esp_rope){.n_half = 1, .freq = freq, .axis = axis, .mscale = 1};
    x = q = t_input(&r->tape, r->width);
    for (uint32_t i = 1; i < rep; i++)
        q = t_concat(&r->tape, q, x);
    t_kv_append(&r->tape, x, x, 0);
    t_hidden(&r->tape, t_attend(&r->tape, q, 0, r->n_head));
    test_ok(esp_tape_finish(&r->tape, &err), &err);
}

static void open_rig(struct rig *r, const char *scheme, uint32_t dim, uint32_t rep, enum esp_act act,
                     bool cuda)
{
    const struct esp_plan_opts o = {
        .act = act, .max_tok = MAX_TOK, .max_out = 1, .max_seq = 1, .context = CONTEXT};
    const struct test_net_opts d = {.level = esp_cpu_best(), .threads = 2, .cuda = cuda};
    esp_error err;

    memset(r, 0, sizeof *r);
    r->dim = dim, r->width = KV_HEADS * dim, r->n_head = KV_HEADS * rep, r->rounds = cuda;
    test_device(&r->dev, &d);
    r->arena = esp_arena_create(1 << 20);
    assert_non_null(r->arena);
    record(r, rep);
    r->layout.n_attn = 1, r->layout.n_kv_head = KV_HEADS, r->layout.head_dim = dim;
    r->layout.kv = ESP_KV_CODED;
    test_ok(esp_kv_parse(&r->layout.layers[0].scheme, scheme, &err), &err);
    test_ok(esp_layout_finish(&r->layout, &err), &err);
    r->pools = (struct esp_pools){.layout = r->layout, .n_page = PAGES};
    test_ok(r->dev->ops->alloc(r->dev, r->layout.page_bytes * PAGES, &r->pools.pages, &err), &err);
    test_ok(r->dev->ops->alloc(r->dev, 64, &r->pools.slots, &err), &err);
    test_ok(r->dev->ops->compile(r->dev, &r->tape, &r->pools, &o, &r->plan, &err), &err);
}

static void close_rig(struct rig *r)
{
    r->dev->ops->plan_free(r->plan);
    r->dev->ops->free(r->pools.pages);
    r->dev->ops->free(r->pools.slots);
    r->dev->ops->close(r->dev);
    esp_arena_destroy(r->arena);
}

/* Pages in another order than positions. */
static const uint32_t page_ids[PAGES] = {3, 1, 4, 0, 2};

/* Append n rows of x [n][width] in passes of `cut`, and attend: y [n][n_head * dim]. */
static void append(struct rig *r, const float *x, uint32_t n, uint32_t cut, float *y)
{
    static int32_t ids[MAX_TOK], pos[MAX_TOK][3];
    esp_error err;

    for (uint32_t at = 0; at < n;) {
        const uint32_t step = n - at < cut ? n - at : cut;
        struct esp_batch_seq s = {.n_tok = step, .n = at, .pages = page_ids, .journal = ESP_NO_JOURNAL};
        struct esp_batch b = {.n_tok = step,
                              .ids = ids,
                              .pos = (const int32_t(*)[3])pos,
                              .n_seq = 1,
                              .seqs = &s,
                              .input = x + (size_t)at * r->width,
                              .hidden = y + (size_t)at * r->n_head * r->dim};

        s.base = at / ESP_CHUNK * ESP_CHUNK;
        test_ok(r->dev->ops->run(r->plan, &b, &err), &err);
        test_ok(r->dev->ops->wait(r->dev, &err), &err);
        at += step;
    }
}

static void read_pages(struct rig *r, uint8_t *to)
{
    const size_t bytes = r->layout.page_bytes * PAGES;
    struct esp_buf host = {.host = to, .bytes = bytes};
    esp_error err;

    if (r->pools.pages->host) {
        memcpy(to, r->pools.pages->host, bytes);
        return;
    }
    host.dev = r->dev;
    test_ok(r->dev->ops->copy((struct esp_span){&host, 0, bytes}, (struct esp_span){r->pools.pages, 0, bytes},
                              &err),
            &err);
}

static const uint8_t *row_at(const struct rig *r, const uint8_t *pages, uint32_t pos, uint32_t head,
                             uint32_t which)
{
    const struct esp_layout_kv *a = &r->layout.layers[0];

    return pages + page_ids[pos / ESP_SPAN] * r->layout.page_bytes + esp_layout_plane(a, head, which) +
           (size_t)(pos % ESP_SPAN) * (which ? a->v_row : a->k_row);
}

static void check_bytes(const struct rig *r, const char *what, const uint8_t *pages, const float *x,
                        uint32_t n)
{
    const struct esp_layout_kv *a = &r->layout.layers[0];
    uint8_t want[ESP_KV_ROW_MAX];

    for (uint32_t i = 0; i < n * KV_HEADS * 2; i++) {
        const uint32_t pos = i / (KV_HEADS * 2), head = i / 2 % KV_HEADS, which = i & 1;
        const uint8_t *got = row_at(r, pages, pos, head, which);
        const float *v = x + (size_t)pos * r->width + head * r->dim;
        const size_t bytes = which ? a->v_row : a->k_row;

        (which ? esp_kv_encode_value : esp_kv_encode_key)(&a->scheme, r->dim, v, want);
        for (size_t j = 0; j < bytes; j++)
            if (got[j] != want[j])
                fail_msg("%s: %s of head %u at %u: byte %zu of %zu is %02x, the definition says %02x", what,
                         which ? "value" : "key", head, pos, j, bytes, got[j], want[j]);
    }
}

/* ---- attention ---- */

static void round_row(const struct rig *r, float *x)
{
    for (uint32_t i = 0; r->rounds && i < r->dim; i++)
        x[i] = esp_bf16_to_f32(esp_f32_to_bf16(x[i]));
}

/* All keys and values of a head as attention takes them: [n][dim] each. */
static void decode(const struct rig *r, const uint8_t *pages, uint32_t n, uint32_t head, float *k, float *v)
{
    const struct esp_kv_scheme *s = &r->layout.layers[0].scheme;

    for (uint32_t i = 0; i < n; i++) {
        esp_kv_decode_key(s, r->dim, row_at(r, pages, i, head, 0), k + (size_t)i * r->dim);
        esp_kv_decode_value(s, r->dim, row_at(r, pages, i, head, 1), v + (size_t)i * r->dim);
        round_row(r, k + (size_t)i * r->dim);
        round_row(r, v + (size_t)i * r->dim);
    }
}

/* The result for query q over n positions. */
static void attention(const struct rig *r, const float *q, const float *k, const float *v, uint32_t n,
                      float *out)
{
    double *score = malloc(n * sizeof *score), *acc = calloc(r->dim, sizeof *acc), most = -INFINITY, sum = 0;

    for (uint32_t t = 0; t < n; t++) {
        score[t] = 0;
        for (uint32_t i = 0; i < r->dim; i++)
            score[t] += (double)q[i] * k[(size_t)t * r->dim + i];
        most = score[t] > most ? score[t] : most;
    }
    for (uint32_t t = 0; t < n; t++) {
        const double p = exp(score[t] - most);

        sum += p;
        for (uint32_t i = 0; i < r->dim; i++)
            acc[i] += p * v[(size_t)t * r->dim + i];
    }
    for (uint32_t i = 0; i < r->dim; i++)
        out[i] = (float)(acc[i] / sum);
    esp_kv_unrotate(&r->layout.layers[0].scheme, r->dim, out);
    free(score);
    free(acc);
}

/* Largest difference of rows `step` apart, relative to a row's root mean square. */
static double check_rows(const struct rig *r, const uint8_t *pages, const float *x, uint32_t n, uint32_t step,
                         const float *y)
{
    float *k = malloc(sizeof *k * n * r->dim), *v = malloc(sizeof *v * n * r->dim),
          *want = malloc(sizeof *want * r->dim);
    double worst = 0;

    for (uint32_t h = 0; h < r->n_head; h++) {
        const uint32_t rep = r->n_head / KV_HEADS;

        decode(r, pages, n, h / rep, k, v);
        for (uint32_t i = h % step; i < n; i += step) {
            const float *got = y + ((size_t)i * r->n_head + h) * r->dim;
            double size = 0, most = 0;

            attention(r, x + (size_t)i * r->width + h % KV_HEADS * r->dim, k, v, i + 1, want);
            for (uint32_t j = 0; j < r->dim; j++) {
                const double d = fabs((double)got[j] - want[j]);

                size += (double)want[j] * want[j];
                most = isnan(d) ? INFINITY : d > most ? d : most;
            }
            most /= sqrt(size / r->dim) + 1e-20;
            worst = most > worst ? most : worst;
        }
    }
    free(k);
    free(v);
    free(want);
    return worst;
}

static uint32_t state;

static uint32_t draw(void)
{
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static float normal(void) /* roughly */
{
    float x = -6;

    for (int i = 0; i < 12; i++)
        x += (float)draw() * 0x1p-24f;
    return x;
}

/* Rows as models have them: scores spread over some units, channels of different size. */
static float *ordinary(uint32_t n, uint32_t width, uint32_t dim)
{
    float *x = malloc(sizeof *x * n * width);

    for (size_t i = 0; i < (size_t)n * width; i++)
        x[i] = (normal() * (i % 7 == 0 ? 3.0f : 1.0f) + (i % 11 == 0 ? 2.0f : 0.0f)) * 0.5f /
               sqrtf(sqrtf((float)dim));
    return x;
}

/*
 * Rows that no model should have: any bits, groups that are constant, narrow, far from zero, zeros of both
 * signs.
 */
static float *hostile(uint32_t n, uint32_t width)
{
    static const float odd[] = {0.0f,     -0.0f,     65504,  -70000, 1e30f,
                                INFINITY, -INFINITY, 1e-30f, 1e-8f,  -1e-41f};
    float *x = malloc(sizeof *x * n * width);

    for (size_t g = 0; g < (size_t)n * width; g += 16) {
        const uint32_t kind = draw() % 8;
        const float centre = normal() * ldexpf(1, (int)(draw() % 40) - 20),
                    size = ldexpf(1, (int)(draw() % 60) - 40);

        for (size_t i = g; i < g + 16; i++) {
            uint32_t bits = draw() << 8 ^ draw();

            x[i] = kind == 0   ? centre
                   : kind == 1 ? centre + normal() * size
                   : kind == 2 ? normal() * size
                   : kind == 3 ? odd[draw() % (sizeof odd / sizeof odd[0])]
                   : kind == 4 ? (draw() & 1 ? 0.0f : -0.0f)
                   : kind == 5 ? (float)(int)(draw() % 9) * size
                               : normal();
            if (kind == 6)
                memcpy(&x[i], &bits, sizeof bits);
        }
    }
    return x;
}

static void check(const char *scheme, uint32_t dim, uint32_t rep, enum esp_act act, bool cuda,
                  double tolerance)
{
    static const uint32_t cuts[] = {1, 5, 16, 40, 130, 1000};
    const uint32_t n = 700, hostile_n = 96;
    struct rig r;
    char what[64];
    double worst;

    snprintf(what, sizeof what, "%s, heads of %u, %s", scheme, dim, esp_act_name(act));
    state = dim * 131 + rep;
    open_rig(&r, scheme, dim, rep, act, cuda);
    const size_t y_bytes = sizeof(float) * n * r.n_head * dim, page_bytes = r.layout.page_bytes * PAGES;
    float *x = ordinary(n, r.width, dim), *odd = hostile(hostile_n, r.width), *y = malloc(y_bytes),
          *z = malloc(y_bytes);
    uint8_t *pages = malloc(page_bytes), *again = malloc(page_bytes);

    append(&r, odd, hostile_n, MAX_TOK, y);
    read_pages(&r, pages);
    check_bytes(&r, what, pages, odd, hostile_n);
    append(&r, x, n, MAX_TOK, y);
    read_pages(&r, pages);
    check_bytes(&r, what, pages, x, n);
    worst = check_rows(&r, pages, x, n, 13, y);
    printf("%-36s attention within %.1e (tolerance %.0e)\n", what, worst, tolerance);
    if (!(worst <= tolerance))
        fail_msg("%s: attention differs by %.3g of its size, tolerance %.3g", what, worst, tolerance);
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        append(&r, x, cuts[c] < 8 ? 300 : n, cuts[c], z);
        read_pages(&r, again);
        assert_memory_equal(pages, again, page_bytes);
        if (memcmp(y, z, cuts[c] < 8 ? y_bytes / n * 300 : y_bytes) != 0)
            fail_msg("%s: passes of %u rows give other bits than one pass", what, cuts[c]);
    }
    free(x);
    free(odd);
    free(y);
    free(z);
    free(pages);
    free(again);
    close_rig(&r);
}

static const struct {
    const char *scheme;
    uint32_t dim, rep;
} CASES[] = {{"turbo:k8v3", 256, 6},
             {"turbo:k8v3", 64, 4},
             {"turbo:k8v3", 96, 1},
             {"turbo:k8v4", 128, 8},
             {"turbo:k5v5", 96, 2},
             {"turbo:k5v8", 256, 2},
             {"turbo:k4v4:least", 128, 3},
             {"turbo:k2v2:own", 512, 1},
             {"turbo:k8v3:own", 256, 4},
             {"turbo:k4v2", 64, 2},
             {"turbo:k2v5:least", 96, 3},
             {"turbo:k8v8", 512, 2},
             {"q8", 256, 6},
             {"q8:g32", 96, 2},
             {"q6", 128, 4},
             {"q6:g128", 256, 3},
             {"q4", 64, 1},
             {"q4:g32", 512, 2},
             {"q4:g128", 128, 6},
             {"q8:g32", 32, 2},
             {"q6:g32", 224, 5}};
enum { N_CASE = sizeof CASES / sizeof CASES[0] };

/* Sums of up to 700 terms in f32, and the exponential that a level has. */
static void test_cpu(void **unused)
{
    (void)unused;
    if (getenv("ESPALIER_TEST_SKIP_CPU"))
        return;
    for (int i = 0; i < N_CASE; i += TEST_SANITIZED ? 5 : 1)
        check(CASES[i].scheme, CASES[i].dim, CASES[i].rep, ESP_ACT_F32, false, 2e-4);
}

/*
 * Two terms of queries and probabilities know 16 bits of them, one 8: a probability is off by 2^-17 or 2^-9
 * of itself, a score of some units by as much of its size, which the exponential hands on.
 */
static void test_device_two_terms(void **unused)
{
    (void)unused;
    for (int i = 0; i < N_CASE; i++)
        check(CASES[i].scheme, CASES[i].dim, CASES[i].rep, ESP_ACT_F32, true, 1e-3);
}

static void test_device_one_term(void **unused)
{
    (void)unused;
    for (int i = 0; i < N_CASE; i++)
        check(CASES[i].scheme, CASES[i].dim, CASES[i].rep, ESP_ACT_BF16, true, 6e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_device_two_terms),
        cmocka_unit_test(test_device_one_term),
    };

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (getenv("ESPALIER_TEST_FILTER"))
        cmocka_set_test_filter(getenv("ESPALIER_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
