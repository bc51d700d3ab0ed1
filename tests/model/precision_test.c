/*
 * What reduced precision costs: affine weights of every width, group and scale type, activations in bf16 and
 * int8, keys and values in bf16, all against the naive pass over the values that the files hold. Also
 * conformance item 7 of the affine format: a mixed model loads from its tensors although the config is wrong.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/compare.h"

enum { N = 66, V = 97 };

static int32_t ids[N];
static double want[N * V], rounded[N * V];
static float got[N * V], again[N * V];

static const struct mf_quant mixed[] = {
    {"layers.0.linear_attn.in_proj_qkv", 2, 32},
    {"layers.0.linear_attn.in_proj_z", 3, 64},
    {"layers.0.linear_attn.in_proj_b", 8, 32},
    {"layers.0.linear_attn.out_proj", 5, 128},
    {"layers.0.mlp.gate_proj", 6, 32},
    {"layers.0.mlp.up_proj", 4, 128},
    {"layers.0.mlp.down_proj", 0, 0},
    {"layers.1.self_attn.q_proj", 2, 128},
    {"layers.1.self_attn.k_proj", 3, 32},
    {"layers.1.self_attn.v_proj", 8, 64},
    {"layers.1.self_attn.o_proj", 5, 64},
    {"embed_tokens", 6, 128},
    {"lm_head", 6, 64},
    {"", 4, 64},
    {NULL, 0, 0},
};

static struct naive_shape shape(void)
{
    struct naive_shape s = mf_shape();

    s.hidden = 128;
    s.ffn = 256;
    s.n_layer = 2;
    s.full[1] = 1;
    return s;
}

static void expect(const struct mf_model *m)
{
    mf_tokens(ids, N, V, 3);
    naive_forward(&m->net, NAIVE_RIGHT, ids, NULL, N, want);
}

/* Logits into got, with the bits the same by two threads in passes of 7. */
static void run(const char *folder, int level, enum esp_act act, enum esp_kv kv)
{
    for (uint32_t threads = 1; threads <= 2; threads++) {
        struct test_net t;

        test_net_open(&t, (struct test_net_opts){.folder = folder,
                                                 .level = (enum esp_cpu_level)level,
                                                 .threads = threads,
                                                 .act = act,
                                                 .kv = kv,
                                                 .context = 256,
                                                 .max_tok = N});
        compare_run(&t, ids, NULL, N, threads == 1 ? 0 : 7, threads == 1 ? got : again);
        test_net_close(&t);
    }
    assert_memory_equal(got, again, sizeof got);
}

static void every_width_and_group(void **state)
{
    static const uint32_t widths[] = {2, 3, 4, 5, 6, 8};
    struct naive_shape s = shape();

    (void)state;
    for (size_t i = 0; i < 6; i++)
        for (uint32_t group = 32; group <= 128; group *= 2) {
            const struct mf_quant q[] = {{"", widths[i], group}, {NULL, 0, 0}};
            struct mf_form f = {
                .layout = MF_MLX, .quant = q, .scale_type = (enum esp_scale_type)((i + group / 32) % 3)};
            struct mf_model m;
            const char *dir;

            mf_make(&m, &s, i % 2, 10 * i + group);
            dir = mf_write(&m, &f);
            expect(&m);
            for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
                if (!compare_has_level(level))
                    continue;
                run(dir, level, ESP_ACT_F32, ESP_KV_F32);
                if (!(compare_max(got, want, N * V) <= COMPARE_TOLERANCE))
                    fail_msg("%u bits, group %u, %s: %g deviations", widths[i], group,
                             esp_cpu_level_name((enum esp_cpu_level)level), compare_max(got, want, N * V));
            }
            assert_int_equal(compare_warnings(dir, ""), 0);
            mf_free(&m);
        }
}

/* Conformance 7 in every layout: bits and groups follow from the tensors, and the disagreement is told. */
static void wrong_config_loads_from_tensors(void **state)
{
    struct naive_shape s = shape();

    (void)state;
    for (int layout = 0; layout < MF_LAYOUT_COUNT; layout++)
        for (uint32_t wrong = 0; wrong < 2; wrong++) {
            struct mf_form f = {.layout = (enum mf_layout)layout,
                                .quant = mixed,
                                .scale_type = ESP_SCALE_BF16,
                                .wrong_bits = wrong ? 8 : 0,
                                .wrong_group = wrong ? 32 : 0,
                                .n_shard = wrong ? 3 : 0};
            struct mf_model m;
            const char *dir;

            mf_make(&m, &s, false, 7);
            dir = mf_write(&m, &f);
            expect(&m);
            compare_all(dir, &m, N / 2, COMPARE_TOLERANCE);
            if (wrong) {
                assert_true(compare_warnings(dir, "layers.0.linear_attn.in_proj_qkv") > 0);
                assert_true(compare_warnings(dir, "embed_tokens") > 0);
                assert_int_equal(compare_warnings(dir, "down_proj") > 0, 1); /* of layer 1 */
                assert_int_equal(compare_warnings(dir, "layers.0.mlp.down_proj"), 0);
            } else {
                assert_int_equal(compare_warnings(dir, ""), 0);
            }
            mf_free(&m);
        }
}

/*
 * Root mean square errors of the logits, in deviations. A product of inputs that are off by a relative e each
 * is off by about e of its own size. Ten products follow each other, and their errors add linearly at worst,
 * since the norms between them scale a value and its error alike:
 *
 * - f32: as COMPARE_TOLERANCE.
 *
 * - int8x2: a group's step is max / 16256, its rounding 0.29 steps: 5e-5 of a deviation where max is 3.
 *
 * - bf16: 2^-9 / sqrt(3) = 1.1e-3 at most.
 *
 * - int8: a step of max / 127: 7e-3.
 */
static void activations(void **state)
{
    static const double bound[ESP_ACT_COUNT] = {COMPARE_TOLERANCE, 1.1e-2, 5e-4, 7e-2};
    struct naive_shape s = shape();
    struct mf_model m;
    const char *dir;

    (void)state;
    mf_make(&m, &s, false, 20);
    dir = mf_write(&m, &(struct mf_form){.quant = mixed, .scale_type = ESP_SCALE_F16});
    expect(&m);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        double rms[ESP_ACT_COUNT];

        for (int act = 0; compare_has_level(level) && act < ESP_ACT_COUNT; act++) {
            run(dir, level, (enum esp_act)act, ESP_KV_F32);
            rms[act] = compare_rms(got, want, N * V);
            print_message("%-7s %-7s rms %.2e, max %.2e deviations\n",
                          esp_cpu_level_name((enum esp_cpu_level)level), esp_act_name((enum esp_act)act),
                          rms[act], compare_max(got, want, N * V));
            assert_true(rms[act] <= bound[act]);
        }
        if (!compare_has_level(level))
            continue;
        assert_true(rms[ESP_ACT_INT8X2] > rms[ESP_ACT_F32]); /* they are different modes */
        assert_true(rms[ESP_ACT_BF16] > 5 * rms[ESP_ACT_INT8X2]);
        assert_true(rms[ESP_ACT_INT8] > rms[ESP_ACT_BF16]);
    }
    mf_free(&m);
}

/*
 * Keys and values in bf16: the engine must be off by what rounding them does to the naive pass and by nothing
 * else but a few values that fall to the other side of a tie. The cost itself is below that of rounding all
 * activations, above.
 */
static void cache_in_bf16(void **state)
{
    struct naive_shape s = shape();
    struct mf_model m;
    const char *dir;

    (void)state;
    s.n_layer = 3;
    s.full[0] = s.full[2] = 1;
    s.full[1] = 0;
    mf_make(&m, &s, true, 30);
    dir = mf_write(&m, &(struct mf_form){0});
    expect(&m);
    naive_forward(&m.net, NAIVE_KV_BF16, ids, NULL, N, rounded);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        double cost = compare_twist(rounded, want, N * V);

        if (!compare_has_level(level))
            continue;
        run(dir, level, ESP_ACT_F32, ESP_KV_BF16);
        print_message("%-7s kv bf16 rms %.2e, max %.2e deviations; from the rounded naive pass %.2e\n",
                      esp_cpu_level_name((enum esp_cpu_level)level), compare_rms(got, want, N * V),
                      compare_max(got, want, N * V), compare_rms(got, rounded, N * V));
        assert_true(compare_rms(got, want, N * V) <= 1.1e-2);
        assert_true(compare_rms(got, rounded, N * V) < cost / 50);
        assert_true(compare_rms(got, want, N * V) > cost / 2); /* it is kept in bf16 */
    }
    mf_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_and_group),
        cmocka_unit_test(wrong_config_loads_from_tensors),
        cmocka_unit_test(activations),
        cmocka_unit_test(cache_in_bf16),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
