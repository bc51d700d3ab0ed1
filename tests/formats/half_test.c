/* f32 to and from bf16 and f16: nearest, ties to even, subnormals and NaN kept. SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/format.h"

static float float_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static void test_bf16_cases(void **state)
{
    json_t *file = test_json("tests/data/cases/bf16_rounding.json"), *c;
    size_t i;

    (void)state;
    assert_true(json_array_size(json_object_get(file, "cases")) >= 8);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const float x = float_of((uint32_t)strtoul(json_string_value(json_object_get(c, "f32")), NULL, 16));
        const uint16_t want = (uint16_t)strtoul(json_string_value(json_object_get(c, "bf16")), NULL, 16);
        const uint16_t got = esp_f32_to_bf16(x);

        if (json_is_true(json_object_get(c, "is_nan")))
            assert_true(isnan(esp_bf16_to_f32(got)) && (got & 0x40));
        else
            assert_int_equal(got, want);
    }
    json_decref(file);
}

/* Every 16-bit value survives the way up and down. */
static void test_round_trip(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 65536; v++) {
        const float b = esp_bf16_to_f32((uint16_t)v), h = esp_f16_to_f32((uint16_t)v);

        if (isnan(b))
            assert_true(isnan(esp_bf16_to_f32(esp_f32_to_bf16(b))));
        else
            assert_int_equal(esp_f32_to_bf16(b), v);
        if (isnan(h))
            assert_true(isnan(esp_f16_to_f32(esp_f32_to_f16(h))));
        else
            assert_int_equal(esp_f32_to_f16(h), v);
    }
}

/* Values of f16 from the format's definition, not from bit tricks. */
static void test_f16_values(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 0x7c00; v++) {
        const uint32_t exponent = v >> 10, mantissa = v & 0x3ff;
        const double want = exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);

        assert_true((double)esp_f16_to_f32((uint16_t)v) == want);
        assert_true((double)esp_f16_to_f32((uint16_t)(v | 0x8000)) == -want &&
                    signbit(esp_f16_to_f32((uint16_t)(v | 0x8000))));
    }
    assert_true(esp_f16_to_f32(0x7c00) == INFINITY && esp_f16_to_f32(0xfc00) == -INFINITY);
}

/* Midpoints of neighbours go to the even one; one step beside them to the nearer one. */
static void check_midpoints(uint32_t top, float (*up)(uint16_t), uint16_t (*down)(float))
{
    for (uint32_t v = 0; v < top; v++) {
        const float lo = up((uint16_t)v), hi = up((uint16_t)(v + 1));
        const float mid =
            (float)(((double)lo + (double)hi) / 2); /* exact: f32 has more bits, or v is subnormal bf16 */

        if ((double)mid != ((double)lo + (double)hi) / 2)
            continue;
        assert_int_equal(down(mid), v & 1 ? v + 1 : v);
        assert_int_equal(down(nextafterf(mid, -INFINITY)), v);
        assert_int_equal(down(nextafterf(mid, INFINITY)), v + 1);
        assert_int_equal(down(-mid), 0x8000 | (v & 1 ? v + 1 : v));
    }
}

static void test_midpoints(void **state)
{
    (void)state;
    check_midpoints(0x7bff, esp_f16_to_f32, esp_f32_to_f16);
    check_midpoints(0x7f7f, esp_bf16_to_f32, esp_f32_to_bf16);
}

static void test_overflow(void **state)
{
    (void)state;
    assert_int_equal(esp_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(esp_f32_to_f16(65520.0f), 0x7c00); /* half way to 65536: to even, which is infinity */
    assert_int_equal(esp_f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(esp_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(esp_f32_to_bf16(3.4028235e38f), 0x7f80);
    assert_int_equal(esp_f32_to_f16(0x1p-25f), 0);
    assert_int_equal(esp_f32_to_f16(0x1.000002p-25f), 1);
    assert_int_equal(esp_f32_to_f16(1e-44f), 0);
    assert_true(isnan(esp_f16_to_f32(esp_f32_to_f16(float_of(0x7f800001)))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_cases), cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_f16_values), cmocka_unit_test(test_midpoints),
        cmocka_unit_test(test_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
