/*
 * Stored vectors of trellis products through the kernels of every level, and the tail that follows gate and
 * up.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/trellis_vector.h"
#include "kernels/each_level.h"

#include <math.h>

enum { N_MAX = 1024 };

/* What int8 or bf16 activations may change: half a step of the largest input of each group of 256, by weight.
 */
static double rounding(const struct trellis_vector *v, const float *x, uint32_t o, enum esp_act act)
{
    static const double steps[ESP_ACT_COUNT] = {[ESP_ACT_INT8X2] = 1.0 / 16256, [ESP_ACT_INT8] = 1.0 / 127};
    float w[N_MAX];
    double sum = 0;

    esp_format_get(v->w.format)->decode(&v->w, o, 0, v->w.n_in, w);
    for (uint32_t i0 = 0; i0 < v->w.n_in; i0 += 256) {
        const uint32_t i1 = v->w.n_in - i0 < 256 ? v->w.n_in : i0 + 256;
        double max = 0;

        /* along axis 0 it is the input times the scale of its row that is quantized */
        for (uint32_t i = i0; i < i1; i++)
            max = fmax(max, fabs((double)x[i] * (double)(v->w.axis ? 1 : esp_trellis_scale(&v->w, i))));
        for (uint32_t i = i0; i < i1; i++)
            sum += max * steps[act] / 2 *
                   fabs((double)w[i] / (double)(v->w.axis ? 1 : esp_trellis_scale(&v->w, i)));
    }
    return sum;
}

static void check(const struct esp_kernels *k, const struct trellis_vector *v, enum esp_act act)
{
    const struct esp_linear *l = &k->linear[v->w.format][act];
    const json_t *bits = json_object_get(v->json, "x_bf16_bits");
    const json_t *ideal = json_object_get(v->json, "y_ideal_f64");
    const json_t *packed = json_object_get(v->json, "y_packed_f64");
    const json_t *terms = json_object_get(v->json, "sum_abs_terms");
    static _Alignas(64) uint8_t prepared[16 * N_MAX];
    float x[N_MAX], y[N_MAX];

    assert_true(v->w.n_in <= N_MAX && v->w.n_out <= N_MAX);
    assert_int_equal(json_array_size(bits), v->w.n_in);
    assert_int_equal(json_array_size(ideal), v->w.n_out);
    for (uint32_t i = 0; i < v->w.n_in; i++)
        x[i] = esp_bf16_to_f32((uint16_t)tv_bits(bits, i));
    assert_true(l->prepared_bytes(v->w.n_in, 0) <= sizeof prepared);
    l->prepare(&v->w, x, v->w.n_in, 1, prepared);
    l->product(&v->w, prepared, 1, 0, v->w.n_out, y, v->w.n_out);
    for (uint32_t o = 0; o < v->w.n_out; o++) {
        const double bound = 1e-5 * json_number_value(json_array_get(terms, o)) + rounding(v, x, o, act);
        const double want = json_number_value(json_array_get(ideal, o));
        const double other = json_number_value(json_array_get(packed, o));

        if (!(fabs((double)y[o] - want) <= bound && fabs((double)y[o] - other) <= bound))
            fail_msg("%s %s: output %u is %.9g, not %.9g within %.3g", k->isa, esp_act_name(act), o,
                     (double)y[o], want, bound);
    }
}

static void check_products(const struct esp_kernels *k)
{
    static const char *const names[] = {"matvec_k2_axis1", "matvec_k3_axis1", "matvec_k4_axis1",
                                        "matvec_k2_axis0", "matvec_k3_axis0_interleaved"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        static struct trellis_vector v;

        tv_load(&v, names[i]);
        for (int act = 0; act < ESP_ACT_COUNT; act++)
            check(k, &v, (enum esp_act)act);
        json_decref(v.json);
    }
}

static void test_products(void **state)
{
    (void)state;
    each_level(check_products);
}

/*
 * gate and up as a reader in bf16 rounds them. Our tail stays in f32, so it may be off the stored one by the
 * three roundings to bf16 that are left out (sigmoid, gate * sigmoid, times up); with them put back it is the
 * same bits.
 */
static void check_tail(const struct esp_kernels *k)
{
    json_t *file = test_json("tests/data/vectors/trellis/swiglu_tails.json"), *c;
    const json_t *cases = json_object_get(file, "cases");
    size_t i;

    assert_int_equal(json_array_size(cases), 200);
    json_array_foreach(cases, i, c)
    {
        const uint32_t gate = (uint32_t)strtoul(json_string_value(json_object_get(c, "gate_f32")), NULL, 16);
        const uint32_t up = (uint32_t)strtoul(json_string_value(json_object_get(c, "up_f32")), NULL, 16);
        const uint16_t bits =
            (uint16_t)strtoul(json_string_value(json_object_get(c, "fused_bf16")), NULL, 16);
        const float g = esp_bf16_to_f32(esp_f32_to_bf16(tv_float(gate)));
        const float u = esp_bf16_to_f32(esp_f32_to_bf16(tv_float(up))), want = esp_bf16_to_f32(bits);
        float y, q = 1;

        k->swiglu(&g, &u, &y, 1);
        if (!(fabs((double)y - (double)want) <= 3.05 * 0x1p-8 * fabs((double)want) + 1e-36))
            fail_msg("%s: silu(%g) * %g is %.9g, not %.9g", k->isa, (double)g, (double)u, (double)y,
                     (double)want);
        k->sigmoid_mul(&q, &g, 1);
        q = esp_bf16_to_f32(esp_f32_to_bf16(q));
        q = esp_bf16_to_f32(esp_f32_to_bf16(g * q));
        assert_int_equal(esp_f32_to_bf16(q * u), bits);
    }
    json_decref(file);
}

static void test_tail(void **state)
{
    (void)state;
    each_level(check_tail);
}

/* Only weights of one set of scales share prepared rows along axis 0; along axis 1 all do, whatever their k.
 */
static void test_sharing(void **state)
{
    const uint8_t scales[2][512] = {{0}};
    const struct esp_weight gate = {
        .format = ESP_FORMAT_TRELLIS3, .n_in = 256, .n_out = 256, .axis = 1, .scales = scales[0]};
    struct esp_weight up = gate, down = gate, other = gate;

    (void)state;
    up.format = ESP_FORMAT_TRELLIS2;
    up.scales = scales[1];
    down.axis = other.axis = 0;
    other.scales = scales[1];
    assert_true(esp_weight_same_input(&gate, &up));
    assert_false(esp_weight_same_input(&gate, &down));
    assert_false(esp_weight_same_input(&down, &gate));
    assert_false(esp_weight_same_input(&down, &other));
    assert_true(esp_weight_same_input(&down, &down));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_tail),
                                       cmocka_unit_test(test_sharing)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
