/*
 * Philox words and uniforms against known answers, their spread, and the table hash. The words for all-zero,
 * all-one and pi inputs are the ones published with the paper; all rows were recomputed by a second
 * implementation in Python whose 64-bit variant agrees with numpy's. SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <string.h>

#include "base/hash.h"
#include "base/rng.h"

static void test_known_words(void **state)
{
    static const struct {
        struct esp_rng_key key;
        uint32_t words[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{UINT64_MAX, UINT64_MAX, UINT32_MAX, UINT32_MAX}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x299f31d0a4093822, 0x85a308d3243f6a88, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
        {{0x0000000600000005, 0x0000000200000001, 3, 4}, {0xc0c839bc, 0x889c87c5, 0x61986739, 0x2d4623d0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t w[4];

        esp_rng_words(&cases[i].key, w);
        assert_memory_equal(w, cases[i].words, sizeof w);
    }
}

static void test_known_uniforms(void **state)
{
    static const struct {
        struct esp_rng_key key;
        double u;
    } cases[] = {
        {{.seed = 0}, 0x1.c2d38b1acc4fdp-1},
        {{.seed = 42}, 0x1.dfd524ee73abcp-2},
        {{.seed = 42, .position = 1}, 0x1.4ee9b3f7f36c8p-2},
        {{.seed = 42, .choice = 1}, 0x1.028f489814998p-3},
        {{.seed = 42, .draw = 1}, 0x1.300fc04440873p-1},
        {{.seed = UINT64_MAX, .position = UINT64_C(1) << 40, .choice = 15, .draw = 3}, 0x1.4bf4e847d8389p-1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_true(esp_rng_uniform(&cases[i].key) == cases[i].u);
}

/* Each of the four inputs in turn counts up; every time the numbers must fill 64 equal cells evenly. */
static void test_spread(void **state)
{
    enum { N = 64000, CELLS = 64 };

    (void)state;
    for (int field = 0; field < 4; field++) {
        uint32_t cells[CELLS] = {0};
        double chi = 0;

        for (uint32_t i = 0; i < N; i++) {
            struct esp_rng_key k = {.seed = 1, .position = 2, .choice = 3, .draw = 4};
            double u;

            if (field == 0)
                k.seed = i;
            else if (field == 1)
                k.position = i;
            else if (field == 2)
                k.choice = i;
            else
                k.draw = i;
            u = esp_rng_uniform(&k);
            assert_true(u >= 0 && u < 1);
            cells[(int)(u * CELLS)]++;
        }
        for (int c = 0; c < CELLS; c++)
            chi += ((double)cells[c] - N / CELLS) * ((double)cells[c] - N / CELLS) / (N / CELLS);
        assert_true(chi > 30 && chi < 117); /* 63 degrees of freedom: 0.01 % on either side */
    }
}

static void test_seed_from_system(void **state)
{
    esp_error err;
    uint64_t a = 0, b = 0;

    (void)state;
    test_ok(esp_rng_seed(&a, &err), &err);
    test_ok(esp_rng_seed(&b, &err), &err);
    assert_true(a != b); /* fails by chance once in 2^64 runs */
}

static void test_hash(void **state)
{
    (void)state;
    /* published XXH3 value of the empty input */
    assert_true(esp_hash("", 0, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(esp_hash("abc", 3, 0) != esp_hash("abd", 3, 0));
    assert_true(esp_hash("abc", 3, 0) != esp_hash("abc", 3, 1));
    assert_true(esp_hash_u64(1) != esp_hash_u64(2));
    assert_true(esp_hash_u64(0) == 0);
    /* first output of SplitMix64 from state 0 is the mix of its increment */
    assert_true(esp_hash_u64(UINT64_C(0x9e3779b97f4a7c15)) == UINT64_C(0xe220a8397b1dcdaf));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_words),      cmocka_unit_test(test_known_uniforms),
        cmocka_unit_test(test_spread),           cmocka_unit_test(test_hash),
        cmocka_unit_test(test_seed_from_system),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
