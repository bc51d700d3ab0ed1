/*
 * Random shapes against the naive forward pass: head counts, head sizes, r = value heads per key head 1..4,
 * odd layer patterns and odd vocabularies. Traps 12 (which key head a value head reads) and 35 (which gate,
 * and how q_proj is cut).
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdlib.h>

#include "support/compare.h"

enum { N = 70 };

static void check(const struct naive_shape *s, bool tied, uint64_t seed, enum esp_dtype dtype)
{
    struct mf_model m;

    mf_make(&m, s, tied, seed);
    compare_all(mf_write(&m, &(struct mf_form){.dtype = dtype}), &m, N, COMPARE_TOLERANCE);
    mf_free(&m);
}

/* The mistake must show far above the tolerance, or the comparison would prove nothing. */
static void shows(const struct naive_shape *s, uint64_t seed, enum naive_twist twist)
{
    size_t n = (size_t)N * s->vocab;
    double *right = calloc(n, sizeof *right), *wrong = calloc(n, sizeof *wrong);
    struct mf_model m;
    int32_t ids[N];

    mf_make(&m, s, false, seed);
    mf_tokens(ids, N, s->vocab, 5);
    naive_forward(&m.net, NAIVE_RIGHT, ids, NULL, N, right);
    naive_forward(&m.net, twist, ids, NULL, N, wrong);
    if (compare_twist(wrong, right, n) < 30 * COMPARE_TOLERANCE)
        fail_msg("twist %d moves the logits by %g deviations only", (int)twist,
                 compare_twist(wrong, right, n));
    free(right);
    free(wrong);
    mf_free(&m);
}

static void trap_12_value_heads(void **state)
{
    (void)state;
    for (uint32_t r = 1; r <= 4; r++)
        for (uint32_t kh = 1; kh <= 3; kh += 2) {
            struct naive_shape s = mf_shape();

            s.kh = kh;
            s.vh = r * kh;
            s.n_layer = 2;
            s.full[1] = 1;
            check(&s, false, 10 * r + kh, ESP_DTYPE_BF16);
            if (r > 1 && kh > 1)
                shows(&s, 10 * r + kh, NAIVE_HEADS_TILED);
        }
}

static void trap_35_gates(void **state)
{
    static const uint32_t heads[][3] = {{1, 1, 64},  {6, 2, 64}, {4, 4, 64}, {3, 1, 128},
                                        {2, 1, 256}, {8, 1, 64}, {4, 2, 32}};

    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct naive_shape s = mf_shape();

        s.n_head = heads[i][0];
        s.n_kv = heads[i][1];
        s.head_dim = heads[i][2];
        s.rotary = s.head_dim == 32 ? 16 : s.head_dim / 4;
        s.section[0] = (s.rotary / 2 + 2) / 3;
        s.section[1] = (s.rotary / 2 + 1) / 3;
        s.section[2] = s.rotary / 2 / 3;
        s.n_layer = 2;
        s.full[0] = 1;
        s.full[1] = i % 2;
        check(&s, i % 2, 100 + i, i % 3 ? ESP_DTYPE_F16 : ESP_DTYPE_F32);
        if (s.n_head > 1)
            shows(&s, 100 + i, NAIVE_GATE_HALVES);
        shows(&s, 100 + i, NAIVE_GATE_SILU);
    }
}

static void linear_head_sizes(void **state)
{
    static const uint32_t sizes[][2] = {{16, 16},  {16, 128}, {128, 16}, {48, 80},
                                        {112, 96}, {64, 32},  {128, 128}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct naive_shape s = mf_shape();

        s.dk = sizes[i][0];
        s.dv = sizes[i][1];
        s.n_layer = 2;
        check(&s, false, 200 + i, ESP_DTYPE_BF16);
        shows(&s, 200 + i, NAIVE_READ_EARLY);
    }
}

static void layer_patterns(void **state)
{
    static const char *const patterns[] = {"L", "F", "FL", "LLF", "FFLL", "LFLFL", "LLLFLF"};
    static const uint32_t vocabs[] = {2, 1, 33, 131, 96, 257, 1021};

    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        struct naive_shape s = mf_shape();

        s.vocab = vocabs[i] + (i == 1); /* one logit has no deviation to measure by */
        s.hidden = i % 2 ? 96 : 64;
        s.ffn = i % 3 ? 160 : 80;
        for (s.n_layer = 0; patterns[i][s.n_layer]; s.n_layer++)
            s.full[s.n_layer] = patterns[i][s.n_layer] == 'F';
        check(&s, i % 2, 300 + i, ESP_DTYPE_BF16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trap_12_value_heads),
        cmocka_unit_test(trap_35_gates),
        cmocka_unit_test(linear_head_sizes),
        cmocka_unit_test(layer_patterns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
