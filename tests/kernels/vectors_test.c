/*
 * Stored vectors through the kernels of every level: products with affine weights, f32 to bf16; and single
 * ops with values worked out from their formulas (which gate gets which function, which tap is the current
 * row).
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/hex.h"
#include "kernels/each_level.h"

#include <math.h>

enum { M = 2, N = 3, K = 128 };

struct product_case {
    struct esp_weight w;
    uint8_t codes[N * K], scales[N * 4 * 4], biases[N * 4 * 4];
    float x[M * K];
    double want[M][N], abs_dot[M][N];
};

static void load(const json_t *c, struct product_case *p)
{
    const enum esp_scale_type type = hex_type(json_string_value(json_object_get(c, "dtype")));
    esp_error err;

    assert_int_equal(json_u32(c, "M"), M);
    assert_int_equal(json_u32(c, "N"), N);
    p->w = (struct esp_weight){.format = affine_of_bits(json_u32(c, "bits")),
                               .scale_type = type,
                               .n_out = N,
                               .n_in = json_u32(c, "K"),
                               .group = json_u32(c, "group_size"),
                               .codes = p->codes,
                               .scales = p->scales,
                               .biases = p->biases};
    assert_int_equal(p->w.n_in, K);
    test_ok(esp_weight_layout(&p->w, "vector", &err), &err);
    for (size_t o = 0; o < N; o++) {
        const size_t row = p->w.row_bytes, scale_row = p->w.scale_row_bytes;

        hex_bytes(json_array_get(json_object_get(c, "weight_bytes"), o), p->codes + o * row, row);
        hex_bytes(json_array_get(json_object_get(c, "scales"), o), p->scales + o * scale_row, scale_row);
        hex_bytes(json_array_get(json_object_get(c, "biases"), o), p->biases + o * scale_row, scale_row);
    }
    for (size_t r = 0; r < M; r++) {
        hex_floats(json_array_get(json_object_get(c, "x"), r), type, p->x + r * K, K);
        for (size_t o = 0; o < N; o++) {
            const json_t *y = json_array_get(json_object_get(c, "transpose_true_y"), r);
            const json_t *a = json_array_get(json_object_get(c, "abs_dot"), r);

            p->want[r][o] = json_number_value(json_array_get(y, o));
            p->abs_dot[r][o] = json_number_value(json_array_get(a, o));
        }
    }
}

/* What rounding the activations may change: half a step of the largest value of each group, for every weight.
 */
static double rounding(const struct product_case *p, size_t r, size_t o, double step)
{
    float w[K];
    double sum = 0;

    esp_format_get(p->w.format)->decode(&p->w, o, 0, K, w);
    for (size_t i0 = 0; i0 < K; i0 += p->w.group) {
        float max = 0;

        for (size_t i = i0; i < i0 + p->w.group; i++)
            max = fmaxf(max, fabsf(p->x[r * K + i]));
        for (size_t i = i0; i < i0 + p->w.group; i++)
            sum += max * step / 2 * fabs((double)w[i]);
    }
    return sum;
}

static void check_product(const struct esp_kernels *k, const struct product_case *p, enum esp_act act)
{
    static const double steps[ESP_ACT_COUNT] = {[ESP_ACT_INT8X2] = 1.0 / 16256, [ESP_ACT_INT8] = 1.0 / 127};
    const struct esp_linear *l = &k->linear[p->w.format][act];
    _Alignas(64) uint8_t prepared[M * K * 16];
    float y[M * N];

    if (l->prepare) {
        assert_true(M * l->prepared_bytes(K, p->w.group) <= sizeof prepared);
        l->prepare(&p->w, p->x, K, M, prepared);
    }
    l->product(&p->w, l->prepare ? (const void *)prepared : p->x, M, 0, N, y, N);
    for (size_t r = 0; r < M; r++) {
        for (size_t o = 0; o < N; o++) {
            double bound = (16 + K / 8) * 0x1p-24 * p->abs_dot[r][o] + rounding(p, r, o, steps[act]);

            if (act == ESP_ACT_BF16)
                bound += 0x1p-8 * p->abs_dot[r][o];
            if (!(fabs((double)y[r * N + o] - p->want[r][o]) <= bound))
                fail_msg("%s %s: row %zu output %zu is %.9g, not %.9g within %.3g", k->isa, esp_act_name(act),
                         r, o, (double)y[r * N + o], p->want[r][o], bound);
        }
    }
}

static void check_products(const struct esp_kernels *k)
{
    json_t *file = test_json("tests/data/vectors/affine/qmatmul.json"), *c;
    size_t i;

    assert_int_equal(json_array_size(json_object_get(file, "cases")), 6);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        _Alignas(64) struct product_case p;

        load(c, &p);
        for (int act = 0; act < ESP_ACT_COUNT; act++)
            check_product(k, &p, (enum esp_act)act);
    }
    json_decref(file);
}

static void check_bf16(const struct esp_kernels *k)
{
    json_t *file = test_json("tests/data/cases/bf16_rounding.json"), *list = json_object_get(file, "cases"),
           *c;
    float x[64];
    uint16_t y[64];
    size_t i;

    assert_in_range(json_array_size(list), 8, 64);
    for (size_t n = 8; n <= 64; n++) { /* every length, so that each case meets vector code and tails */
        for (i = 0; i < n; i++) {
            const json_t *one = json_array_get(list, i % json_array_size(list));
            const uint32_t bits = (uint32_t)strtoul(json_string_value(json_object_get(one, "f32")), NULL, 16);

            memcpy(x + i, &bits, sizeof bits);
        }
        k->f32_to_bf16(x, y, n);
        for (i = 0; i < n; i++) {
            c = json_array_get(list, i % json_array_size(list));
            if (json_is_true(json_object_get(c, "is_nan")))
                assert_true((y[i] & 0x7fc0) == 0x7fc0);
            else
                assert_int_equal(y[i], strtoul(json_string_value(json_object_get(c, "bf16")), NULL, 16));
        }
    }
    json_decref(file);
}

static void near(float got, double want)
{
    if (!(fabs((double)got - want) <= 1e-6 * fabs(want) + 1e-30))
        fail_msg("%.9g is not %.9g", (double)got, want);
}

/* silu(2) = 1.7615941559558, sigmoid(2) = 0.8807970779779: each gate applies its function once, to the right
 * operand. */
static void check_gates(const struct esp_kernels *k)
{
    const float gate[16] = {2, 2, -2, 0}, up[16] = {3, -1, 1, 5};
    float y[16], o[16], gamma[16];

    k->swiglu(gate, up, y, 16);
    near(y[0], 3 * 1.761594155955765);
    near(y[1], -1.761594155955765);
    near(y[2], -0.23840584404423515);
    near(y[3], 0);
    memcpy(y, up, sizeof y);
    k->sigmoid_mul(y, gate, 16);
    near(y[0], 3 * 0.8807970779778823);
    near(y[1], -0.8807970779778823);
    near(y[2], 0.11920292202211755);
    near(y[3], 2.5);
    for (size_t i = 0; i < 16; i++) {
        o[i] = i % 2 ? 3.0f : -4.0f; /* mean square 12.5 */
        gamma[i] = 1 + (float)i;
    }
    k->gated_norm(o, gate, gamma, 0, y, 16);
    near(y[0], -4 / sqrt(12.5) * 1 * 1.761594155955765);
    near(y[1], 3 / sqrt(12.5) * 2 * 1.761594155955765);
    near(y[2], -4 / sqrt(12.5) * 3 * -0.23840584404423515);
    near(y[3], 0);
}

/* One impulse comes back as the taps in order: tap 3 at its own row, tap 0 three rows later, also from the
 * tail. */
static void check_impulse(const struct esp_kernels *k)
{
    enum { C = 20, T = 6 };
    float tail[3 * C] = {0}, p[T * C] = {0}, w[C * ESP_CONV_TAPS], y[T * C];

    for (size_t c = 0; c < C; c++) {
        for (size_t j = 0; j < ESP_CONV_TAPS; j++)
            w[c * ESP_CONV_TAPS + j] = 0.5f + (float)j + 10 * (float)c;
        p[1 * C + c] = 1;
    }
    k->conv_silu(tail, C, p, C, T, w, 0, C, y, C);
    for (size_t t = 0; t < T; t++) {
        for (size_t c = 0; c < C; c++) {
            const double s = t >= 1 && t <= 4 ? (double)w[c * ESP_CONV_TAPS + (4 - t)] : 0;

            near(y[t * C + c], s / (1 + exp(-s)));
        }
    }
    memset(p, 0, sizeof p);
    for (size_t c = 0; c < C; c++)
        tail[2 * C + c] = 1; /* the row just before the first */
    k->conv_silu(tail, C, p, C, T, w, 0, C, y, C);
    for (size_t t = 0; t < T; t++) {
        const double s = t < 3 ? (double)w[2 - t] : 0;

        near(y[t * C], s / (1 + exp(-s)));
    }
}

static void test_products(void **state)
{
    (void)state;
    each_level(check_products);
}

static void test_bf16(void **state)
{
    (void)state;
    each_level(check_bf16);
}

static void test_gates(void **state)
{
    (void)state;
    each_level(check_gates);
}

static void test_impulse(void **state)
{
    (void)state;
    each_level(check_impulse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_gates),
        cmocka_unit_test(test_impulse),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
