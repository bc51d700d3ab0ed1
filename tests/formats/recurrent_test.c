/*
 * Kept recurrent states: bounds on what a state loses, that small additions survive many roundings where the
 * errors are kept, that bytes follow from the state alone, and states that are not finite.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/recurrent.h"

enum { DV = 48, MOST = 256 };

static uint64_t rng = 3;

static float normal(void)
{
    double s = 0;

    for (int i = 0; i < 12; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        s += (double)(rng >> 40) / (1 << 24);
    }
    return (float)(s - 6);
}

static void test_bounds(void **state)
{
    static float s[DV * MOST], read[DV * MOST], full[DV * MOST];
    static const uint32_t widths[] = {16, 32, 48, 128, 256};

    (void)state;
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        const uint32_t dk = widths[w], group = dk % 32 ? 16 : 32;

        for (int kind = 0; kind < ESP_RECURRENT_COUNT; kind++) {
            const size_t bytes = esp_recurrent_bytes((enum esp_recurrent)kind, DV, dk);
            uint8_t *head = malloc(bytes);

            for (size_t i = 0; i < (size_t)DV * dk; i++)
                s[i] = normal() * (i / dk % 7 == 0 ? 0 : exp2f((float)(i / dk) - 20));
            esp_recurrent_write((enum esp_recurrent)kind, DV, dk, s, head);
            esp_recurrent_read((enum esp_recurrent)kind, DV, dk, head, read);
            esp_recurrent_resume((enum esp_recurrent)kind, DV, dk, head, full);
            for (size_t i = 0; i < (size_t)DV * dk; i++) {
                float most = 0, step;

                for (uint32_t j = 0; j < group; j++)
                    most = fmaxf(most, fabsf(s[i / group * group + j]));
                step = most / 127 * (1 + 0x1p-7f); /* the scale is a bf16 that is not too small */
                if (kind == ESP_RECURRENT_F32) {
                    assert_true(read[i] == s[i] && full[i] == s[i]);
                } else if (kind == ESP_RECURRENT_BF16) {
                    assert_true(fabsf(read[i] - s[i]) <= fabsf(s[i]) * 0x1p-8f && full[i] == read[i]);
                } else {
                    assert_true(fabsf(read[i] - s[i]) <= step * 0.501f);
                    assert_true(fabsf(full[i] - s[i]) <= step / 16 * 1.01f); /* +8/16 is kept as 7/16 */
                }
            }
            free(head);
        }
    }
}

/* A state that grows by a quarter of a step at a time: codes alone would stay where they are. */
static void test_feedback(void **state)
{
    static float s[DV * 32];
    uint8_t head[DV * 32 * 2];
    float step;

    (void)state;
    for (int i = 0; i < DV * 32; i++)
        s[i] = i % 32 == 0 ? 1 : 0;
    step = 1.0f / 127;
    for (int n = 1; n <= 64; n++) {
        for (int i = 0; i < DV * 32; i++)
            if (i % 32 == 5)
                s[i] += step / 4;
        esp_recurrent_write(ESP_RECURRENT_Q8, DV, 32, s, head);
        esp_recurrent_resume(ESP_RECURRENT_Q8, DV, 32, head, s);
    }
    for (int i = 5; i < DV * 32; i += 32)
        assert_true(fabsf(s[i] - 16 * step) < step * 2.1f); /* 1/32 of a step at a time at most */
}

static void test_odd(void **state)
{
    static float s[DV * 64], out[DV * 64];
    uint8_t head[DV * 64 * 2], again[DV * 64 * 2];
    const size_t bytes = esp_recurrent_bytes(ESP_RECURRENT_Q8, DV, 64);
    enum esp_recurrent kind;
    esp_error err;

    (void)state;
    memset(head, 0, sizeof head);
    esp_recurrent_resume(ESP_RECURRENT_Q8, DV, 64, head, out); /* slots begin as zeros */
    for (int i = 0; i < DV * 64; i++)
        assert_true(out[i] == 0);
    for (int i = 0; i < DV * 64; i++)
        s[i] = normal();
    s[70] = NAN;
    s[40] = INFINITY;
    s[200] = -3e38f;
    s[300] = 1e-42f;
    memset(head, 0xff, sizeof head); /* what lies there before does not matter */
    memset(again, 0, sizeof again);
    esp_recurrent_write(ESP_RECURRENT_Q8, DV, 64, s, head);
    esp_recurrent_write(ESP_RECURRENT_Q8, DV, 64, s, again);
    assert_memory_equal(head, again, bytes);
    esp_recurrent_read(ESP_RECURRENT_Q8, DV, 64, head, out);
    for (int i = 0; i < DV * 64; i++)
        assert_int_equal(isfinite(out[i]) != 0, i / 32 != 70 / 32 && i / 32 != 40 / 32);
    assert_true(out[200] < -2.9e38f);
    test_ok(esp_recurrent_parse(&kind, "q8", &err), &err);
    assert_int_equal(kind, ESP_RECURRENT_Q8);
    test_refused(esp_recurrent_parse(&kind, "f16", &err), ESP_EINVAL, &err, "f32, bf16, q8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bounds), cmocka_unit_test(test_feedback),
                                       cmocka_unit_test(test_odd)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
