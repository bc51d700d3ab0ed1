/*
 * Rows of random numbers and of random bits under every scheme: nothing decodes to anything that is not
 * finite, errors stay within the bounds of doc/formats, nothing is written behind a row. ESPALIER_SOAK=1
 * tries a million groups.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/hex.h"
#include "formats/kv_schemes.h"

#include <math.h>

static float sane(float x)
{
    return isnan(x) ? 0 : x > 65504 ? 65504 : x < -65504 ? -65504 : x;
}

static double worst(const float *x, const float *y, size_t n)
{
    double e = 0;

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(y[i]))
            return HUGE_VAL;
        e = fmax(e, fabs((double)x[i] - (double)y[i]));
    }
    return e;
}

/* ---- properties over random rows ---- */

/* splitmix64 (S. Vigna) */
static uint64_t draw(uint64_t *r)
{
    uint64_t z = *r += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

enum kind { NORMAL, OFFSET, SPIKE, BITS_BF16, BITS_F32, SAME, KINDS };

static void fill(uint64_t *r, enum kind kind, float *x, uint32_t d)
{
    const float scale = ldexpf(1, (int)(draw(r) % 40) - 28), centre = scale * (float)(draw(r) % 4096);

    for (uint32_t i = 0; i < d; i++) {
        const uint64_t u = draw(r);
        uint32_t bits = (uint32_t)u;
        float v = 0;

        for (int k = 0; k < 4; k++)
            v += (float)((u >> 16 * k & 0xffff) + 1) / 32768 - 1;
        x[i] = v * scale;
        if (kind == OFFSET)
            x[i] += centre;
        else if (kind == SPIKE)
            x[i] = u % 37 == 0 ? centre : x[i];
        else if (kind == SAME)
            x[i] = centre;
        if (kind == BITS_BF16)
            bits &= 0xffff0000;
        if (kind == BITS_BF16 || kind == BITS_F32)
            memcpy(&x[i], &bits, 4);
    }
}

/* Half a step of a range that begins at a bias one bf16 below the group. */
static void check_affine(const struct esp_kv_scheme *s, uint32_t d, const float *x, const float *y)
{
    for (uint32_t g = 0; g < d; g += s->group) {
        double low = HUGE_VAL, high = -HUGE_VAL, most, step;

        for (uint32_t i = g; i < g + s->group; i++) {
            low = fmin(low, (double)sane(x[i]));
            high = fmax(high, (double)sane(x[i]));
        }
        most = fmax(fabs(low), fabs(high));
        step = (high - low + most * 0x1p-7) / ((1 << s->k_bits) - 1);
        for (uint32_t i = g; i < g + s->group; i++)
            if (!(fabs((double)sane(x[i]) - (double)y[i]) <= 0.507 * step + most * 0x1p-22 + 0x1p-99))
                fail_msg("element %u of %u: %.9g became %.9g, half a step is %.9g", i, d, (double)x[i],
                         (double)y[i], step / 2);
    }
}

static void check_turbo_key(const struct esp_kv_scheme *s, uint32_t d, const float *x, const float *y,
                            const uint8_t *row)
{
    const double span = s->k_bits == 8 ? 254 : (1 << s->k_bits) - 1;

    for (uint32_t g = 0; g < d; g += 32) {
        double step, low = HUGE_VAL, high = -HUGE_VAL, most;
        float clean[32];
        uint16_t bits;

        memcpy(&bits, row + d * s->k_bits / 8 + g / 32 * 2, 2);
        step = (double)esp_f16_to_f32(bits);
        for (uint32_t i = 0; i < 32; i++) {
            clean[i] = sane(x[g + i]);
            low = fmin(low, (double)clean[i]);
            high = fmax(high, (double)clean[i]);
        }
        most = fmax(fabs(low), fabs(high));
        if (step < 0x1p-13 || most > 2000 * step) /* fitted again: one step is given up for the zero */
            step = fmax(step, fmax((high - low) / (span - 1), most / 2046));
        /* half a step and what the rounding of scale and zero costs */
        if (!(worst(clean, y + g, 32) <= 0.51 * step + most * 0x1.8p-11 + 0x1p-24))
            fail_msg("%u bits: error %.9g with steps of %.9g and keys up to %.9g", s->k_bits,
                     worst(clean, y + g, 32), step, most);
    }
}

static void try_row(uint64_t *r, const struct esp_kv_scheme *s, uint32_t d, enum kind kind)
{
    const size_t k_bytes = esp_kv_key_bytes(s, d), v_bytes = esp_kv_value_bytes(s, d);
    uint8_t row[ESP_KV_ROW_MAX], again[ESP_KV_ROW_MAX];
    float x[ESP_KV_HEAD_MAX], y[ESP_KV_HEAD_MAX];
    uint32_t repaired = 0;

    fill(r, kind, x, d);
    for (uint32_t i = 0; i < d; i++)
        repaired += !(fabsf(x[i]) <= 65504);
    memset(row, 0xee, sizeof row);
    assert_int_equal(esp_kv_encode_key(s, d, x, row), repaired);
    assert_int_equal(row[k_bytes], 0xee);
    esp_kv_decode_key(s, d, row, y);
    for (uint32_t i = 0; i < d; i++)
        assert_true(isfinite(y[i]));
    if (s->kind == ESP_KV_KIND_AFFINE)
        check_affine(s, d, x, y);
    else
        check_turbo_key(s, d, x, y, row);
    memset(row, 0xee, sizeof row);
    assert_int_equal(esp_kv_encode_value(s, d, x, row), repaired);
    assert_int_equal(row[v_bytes], 0xee);
    esp_kv_decode_value(s, d, row, y);
    for (uint32_t i = 0; i < d; i++)
        assert_true(isfinite(y[i]));
    if (s->kind == ESP_KV_KIND_AFFINE)
        check_affine(s, d, x, y);
    esp_kv_encode_value(s, d, x, again);
    assert_memory_equal(row, again, v_bytes);
}

static void test_random(void **state)
{
    static const uint32_t dims[] = {64, 96, 128, 256, 512};
    const size_t want = getenv("ESPALIER_SOAK") ? 1000000 : 20000;
    uint64_t r;
    size_t groups = 0;

    (void)state;
    r = 7;
    for (size_t i = 0; groups < want; i++) {
        const struct esp_kv_scheme s = scheme(every_scheme[i % N_SCHEME]);
        const uint32_t d = dims[draw(&r) % 5];
        esp_error err;

        if (esp_kv_check(&s, d, &err) != ESP_OK)
            continue;
        try_row(&r, &s, d, (enum kind)(draw(&r) % KINDS));
        groups += 2 * (d / s.group);
    }
}

/* Squared error relative to the data's, over normal rows: what doc/formats states. */
static double relative_error(const char *name, bool keys)
{
    const struct esp_kv_scheme s = scheme(name);
    double error = 0, power = 0;
    uint64_t r;

    r = 3;
    for (int n = 0; n < 200; n++) {
        float x[128], y[128];
        uint8_t row[ESP_KV_ROW_MAX];

        for (uint32_t i = 0; i < 128; i++) {
            const double u = ((double)(draw(&r) >> 11) + 0.5) * 0x1p-53,
                         v = (double)(draw(&r) >> 11) * 0x1p-53;

            x[i] = (float)(sqrt(-2 * log(u)) * cos(2 * 3.14159265358979 * v));
        }
        if (keys) {
            esp_kv_encode_key(&s, 128, x, row);
            esp_kv_decode_key(&s, 128, row, y);
        } else {
            esp_kv_encode_value(&s, 128, x, row);
            esp_kv_decode_value(&s, 128, row, y);
            esp_kv_unrotate(&s, 128, y);
        }
        for (uint32_t i = 0; i < 128; i++) {
            error += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            power += (double)x[i] * (double)x[i];
        }
    }
    return error / power;
}

static void test_error(void **state)
{
    static const struct {
        const char *name;
        bool keys;
        double want;
    } cases[] = {
        {"turbo:k8v2", false, .1118},
        {"turbo:k8v3", false, .0325},
        {"turbo:k8v4", false, .00898},
        {"turbo:k5v5", false, .00237},
        {"turbo:k8v8", false, .99e-4},
        {"turbo:k8v2:least", false, .1087},
        {"turbo:k8v3:least", false, .0307},
        {"turbo:k8v4:least", false, .0084},
        {"turbo:k8v8:own", false, 3.6e-5},
        {"turbo:k8v3", true, 2.3e-5},
        {"turbo:k5v5", true, 1.5e-3},
        {"turbo:k4v3", true, 6.5e-3},
        {"turbo:k2v2", true, .165},
        {"q8", true, 2.9e-5},
        {"q6", true, 4.7e-4},
        {"q4", true, 8.2e-3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double got = relative_error(cases[i].name, cases[i].keys);

        if (!(fabs(got / cases[i].want - 1) < 0.06))
            fail_msg("%s %s: %.4g, not %.4g", cases[i].name, cases[i].keys ? "keys" : "values", got,
                     cases[i].want);
    }
    assert_true(relative_error("turbo:k8v3:own", false) < relative_error("turbo:k8v3", false));
    assert_true(relative_error("turbo:k8v4:own", false) < relative_error("turbo:k8v4:least", false) * 1.001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
