/*
 * The table itself: total at every level, levels by name, precision of activations.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/each_level.h"

#include <string.h>

/* A list of paths serves every number of rows of every shape that its format meets. */
static void check_paths(const struct esp_linear *l, bool trellis)
{
    static const enum esp_shape coded[] = {ESP_SHAPE_AXIS0, ESP_SHAPE_AXIS1},
                                other[] = {ESP_SHAPE_PACKED, ESP_SHAPE_STORED};

    assert_non_null(l->paths);
    for (int i = 0; i < 2; i++) {
        for (uint32_t rows = 1; rows < 40; rows++) {
            const struct esp_path *p = esp_path_of(l->paths, trellis ? coded[i] : other[i], rows);

            assert_non_null(p);
            assert_true(p->rows >= 1 && p->rows <= rows);
        }
    }
    assert_null(esp_path_of(l->paths, ESP_SHAPE_ANY, 0));
}

static void check_total(const struct esp_kernels *k)
{
    for (int f = 0; f < ESP_FORMAT_COUNT; f++) {
        for (int a = 0; a < ESP_ACT_COUNT; a++) {
            const struct esp_linear *l = &k->linear[f][a];

            if (esp_act_resolve((enum esp_format_id)f, (enum esp_act)a) != (enum esp_act)a)
                continue;
            assert_non_null(l->product);
            assert_true(!l->prepare || l->prepared_bytes);
            check_paths(l, f >= ESP_FORMAT_TRELLIS1);
        }
    }
    assert_non_null(k->isa);
    assert_true(k->rmsnorm && k->l2norm && k->add && k->swiglu && k->sigmoid_mul && k->gated_norm && k->rope);
    assert_true(k->conv_silu && k->delta_gates && k->delta_rows && k->delta_fold);
    assert_true(k->attend[ESP_KV_F32] && k->attend[ESP_KV_BF16] && k->attend_merge);
    assert_true(k->f32_to_bf16 && k->bf16_to_f32 && k->argmax && k->first_nonfinite);
}

static void test_total(void **state)
{
    (void)state;
    each_level(check_total);
}

static void test_levels(void **state)
{
    enum esp_cpu_level level = ESP_CPU_LEVEL_COUNT;
    struct esp_kernels k;
    esp_error err;

    (void)state;
    test_ok(esp_cpu_level_parse(&level, "ref", &err), &err);
    assert_int_equal(level, ESP_CPU_REF);
    test_ok(esp_cpu_level_parse(&level, esp_cpu_level_name(esp_cpu_best()), &err), &err);
    assert_int_equal(level, esp_cpu_best());
    esp_kernels_init(&k, level);
    assert_int_equal(k.level, level);
    assert_int_equal(strncmp(k.isa, esp_cpu_level_name(level), strlen(esp_cpu_level_name(level))), 0);
    test_refused(esp_cpu_level_parse(&level, "sse9", &err), ESP_EINVAL, &err, "avx2");
    test_refused(esp_cpu_level_parse(&level, "", &err), ESP_EINVAL, &err, "known");
    assert_int_equal(level, esp_cpu_best());
#if defined(__x86_64__)
    test_refused(esp_cpu_level_parse(&level, "neon", &err), ESP_EDEVICE, &err, "not available");
#endif
}

static void test_acts(void **state)
{
    (void)state;
    assert_int_equal(esp_act_resolve(ESP_FORMAT_F32, ESP_ACT_INT8X2), ESP_ACT_F32);
    assert_int_equal(esp_act_resolve(ESP_FORMAT_BF16, ESP_ACT_INT8), ESP_ACT_BF16);
    assert_int_equal(esp_act_resolve(ESP_FORMAT_F16, ESP_ACT_BF16), ESP_ACT_BF16);
    assert_int_equal(esp_act_resolve(ESP_FORMAT_F16, ESP_ACT_F32), ESP_ACT_F32);
    for (int a = 0; a < ESP_ACT_COUNT; a++)
        assert_int_equal(esp_act_resolve(ESP_FORMAT_AFFINE3, (enum esp_act)a), a);
    assert_string_equal(esp_act_name(ESP_ACT_INT8X2), "int8x2");
    assert_string_equal(esp_act_name(ESP_ACT_BF16), "bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_total),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_acts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
