/*
 * Rows of cached keys and values: stored vectors byte for byte, groups that break the published encoder, the
 * codebooks, and the worked examples of the pages.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/hex.h"
#include "formats/kv_schemes.h"

#include <math.h>

#include "formats/turboquant.h"

#define DIR "tests/data/vectors/turboquant/"

static void hex_equal(const json_t *object, const char *key, const void *got, size_t n)
{
    uint8_t want[4096];

    assert_int_equal(hex_bytes(json_object_get(object, key), want, sizeof want), n);
    for (size_t i = 0; i < n; i++)
        if (((const uint8_t *)got)[i] != want[i])
            fail_msg("%s: byte %zu is %02x, not %02x", key, i, ((const uint8_t *)got)[i], want[i]);
}

static void test_names(void **state)
{
    static const char *const bad[] = {
        "",           "q3",       "q8:",         "q8:g16",          "q8g32",       "turbo:", "turbo:k3v3",
        "turbo:k8v6", "turbo:k8", "turbo:k8v3:", "turbo:k8v3:best", "turbo:k8v33", "f16",    "q"};
    struct esp_kv_scheme s;
    char name[ESP_KV_NAME];
    esp_error err;

    (void)state;
    for (size_t i = 0; i < N_SCHEME; i++) {
        s = scheme(every_scheme[i]);
        esp_kv_name(&s, name);
        assert_string_equal(name, strcmp(every_scheme[i], "turbo") == 0 ? "turbo:k8v3" : every_scheme[i]);
        assert_true(esp_kv_coded(&s));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        test_refused(esp_kv_parse(&s, bad[i], &err), ESP_EINVAL, &err, "turbo:kKvV");
    s = scheme("q8:g64");
    esp_kv_name(&s, name);
    assert_string_equal(name, "q8");
    s = scheme("turbo");
    test_refused(esp_kv_check(&s, 80, &err), ESP_EUNSUPPORTED, &err, "heads of 80");
    test_refused(esp_kv_check(&s, 0, &err), ESP_EUNSUPPORTED, &err, "heads of 0");
    s = scheme("q8");
    test_refused(esp_kv_check(&s, 96, &err), ESP_EUNSUPPORTED, &err, "group (64)");
    s = scheme("q8:g32");
    test_ok(esp_kv_check(&s, 96, &err), &err);
}

/* The table of sizes in doc/formats/turboquant.md. */
static void test_sizes(void **state)
{
    static const struct {
        const char *name;
        size_t bytes[5];
    } want[] = {{"turbo:k8v8", {140, 210, 280, 560, 1120}}, {"turbo:k8v4", {108, 162, 216, 432, 864}},
                {"turbo:k8v3", {100, 150, 200, 400, 800}},  {"turbo:k5v3", {76, 114, 152, 304, 608}},
                {"turbo:k4v4", {76, 114, 152, 304, 608}},   {"turbo:k2v2", {44, 66, 88, 176, 352}},
                {"bf16", {256, 384, 512, 1024, 2048}},      {"q8:g32", {144, 216, 288, 576, 1152}}};
    static const uint32_t dims[] = {64, 96, 128, 256, 512};

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const struct esp_kv_scheme s = scheme(want[i].name);

        for (size_t d = 0; d < 5; d++)
            assert_int_equal(esp_kv_key_bytes(&s, dims[d]) + esp_kv_value_bytes(&s, dims[d]),
                             want[i].bytes[d]);
    }
}

static void test_rotation(void **state)
{
    json_t *file = test_json(DIR "fwht.json"), *c;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(file, "cases")), 5);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const uint32_t d = json_u32(c, "head_dim");
        float x[512], e[512] = {0};
        const json_t *v;
        size_t j;

        json_array_foreach(json_object_get(c, "x"), j, v) x[j] = (float)json_integer_value(v);
        esp_turbo_rotate(x, d);
        hex_equal(c, "forward_f32", x, d * sizeof *x);
        esp_turbo_unrotate(x, d);
        hex_equal(c, "inverse_of_forward_f32", x, d * sizeof *x);
        e[1] = 1;
        esp_turbo_rotate(e, d);
        json_array_foreach(json_object_get(c, "forward_of_e1_signs"), j, v)
            assert_int_equal((e[j] > 0) - (e[j] < 0), json_integer_value(v));
    }
    json_decref(file);
}

static void check_row(const json_t *c, uint32_t d)
{
    char name[ESP_KV_NAME];
    struct esp_kv_scheme s;
    float x[512], y[512];
    uint8_t row[ESP_KV_ROW_MAX];
    const uint8_t *scale;

    snprintf(name, sizeof name, "turbo:k%uv%u", json_u32(c, "k_bits"), json_u32(c, "v_bits"));
    s = scheme(name);
    assert_int_equal(hex_floats(json_object_get(c, "k_in_bf16"), ESP_SCALE_BF16, x, 512), d);
    assert_int_equal(esp_kv_encode_key(&s, d, x, row), 0);
    scale = row + d * s.k_bits / 8;
    hex_equal(c, "k_packed", row, d * s.k_bits / 8);
    hex_equal(c, "k_scale_f16", scale, d / 32 * 2);
    hex_equal(c, "k_zero_f16", scale + d / 32 * 2, d / 32 * 2);
    esp_kv_decode_key(&s, d, row, y);
    for (uint32_t i = 0; i < d; i++)
        y[i] += 0; /* -0 and +0 are one value */
    hex_floats(json_object_get(c, "k_out_f32"), ESP_SCALE_F32, x, 512);
    for (uint32_t i = 0; i < d; i++)
        assert_true(x[i] == y[i]);

    assert_int_equal(hex_floats(json_object_get(c, "v_in_bf16"), ESP_SCALE_BF16, x, 512), d);
    memcpy(y, x, sizeof y);
    esp_turbo_rotate(y, d);
    hex_equal(c, "v_rot_f32", y, d * sizeof *y);
    assert_int_equal(esp_kv_encode_value(&s, d, x, row), 0);
    hex_equal(c, "v_packed", row, d * s.v_bits / 8);
    hex_equal(c, "v_scale_f16", row + d * s.v_bits / 8, d / 32 * 2);
    esp_kv_decode_value(&s, d, row, y);
    hex_equal(c, "v_outrot_f32", y, d * sizeof *y);
    esp_kv_unrotate(&s, d, y);
    hex_equal(c, "v_out_f32", y, d * sizeof *y);
    s.tune = ESP_KV_TUNE_LEAST;
    esp_kv_encode_value(&s, d, x, row);
    hex_equal(c, "v_packed", row, d * s.v_bits / 8);
    hex_equal(c, "v_scale_least_squares_f16", row + d * s.v_bits / 8, d / 32 * 2);
    assert_int_equal(esp_kv_key_bytes(&s, d) + esp_kv_value_bytes(&s, d),
                     json_u32(c, "bytes_per_token_head"));
}

static void test_rows(void **state)
{
    static const uint32_t dims[] = {64, 96, 128, 256, 512};
    size_t n = 0;

    (void)state;
    for (size_t k = 0; k < 5; k++) {
        char path[96];
        json_t *file, *c;
        size_t i;

        snprintf(path, sizeof path, DIR "encode_d%u.json", dims[k]);
        file = test_json(path);
        json_array_foreach(json_object_get(file, "cases"), i, c)
        {
            check_row(c, dims[k]);
            n++;
        }
        json_decref(file);
    }
    assert_int_equal(n, 22);
}

static float sane(float x)
{
    return isnan(x) ? 0 : x > 65504 ? 65504 : x < -65504 ? -65504 : x;
}

static uint32_t json_hex16(const json_t *object, const char *key)
{
    return (uint32_t)strtoul(json_string_value(json_object_get(object, key)), NULL, 16);
}

static void read_group(const json_t *from, struct esp_turbo_group *g)
{
    json_t *v;
    size_t i;

    json_array_foreach(json_object_get(from, "codes"), i, v) g->codes[i] = (uint8_t)json_integer_value(v);
    g->scale = (uint16_t)json_hex16(from, "scale_f16");
    g->zero = (uint16_t)json_hex16(from, "zero_f16");
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

static void test_edge_keys(void **state)
{
    json_t *file = test_json(DIR "edge.json"), *c;
    size_t i, broken = 0;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(file, "key_groups")), 45);
    json_array_foreach(json_object_get(file, "key_groups"), i, c)
    {
        const json_t *reference = json_object_get(c, "reference");
        const uint32_t bits = json_u32(c, "bits");
        struct esp_turbo_group g, want;
        float x[32], y[32], z[32];

        hex_floats(json_object_get(c, "x_f32"), ESP_SCALE_F32, x, 32);
        for (size_t j = 0; j < 32; j++)
            x[j] = sane(x[j]);
        memset(&want, 0, sizeof want);
        read_group(json_object_get(c, "product"), &want);
        esp_turbo_key_group(x, bits, &g);
        if (memcmp(g.codes, want.codes, 32) || g.scale != want.scale || g.zero != want.zero)
            fail_msg("%s, %u bits: scale %04x zero %04x, not %04x %04x",
                     json_string_value(json_object_get(c, "name")), bits, g.scale, g.zero, want.scale,
                     want.zero);
        esp_turbo_key_values(&g, bits, y);
        assert_true(isfinite(worst(x, y, 32)));
        if (!reference)
            continue;
        read_group(reference, &want);
        esp_turbo_key_values(&want, bits, z);
        assert_true(worst(x, y, 32) <= worst(x, z, 32)); /* never worse */
        broken += isinf(worst(x, z, 32)) != 0;
    }
    assert_true(broken > 5); /* the vectors do contain what breaks the published encoder */
    json_decref(file);
}

static void test_edge_values(void **state)
{
    json_t *file = test_json(DIR "edge.json"), *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(file, "value_vectors_d64"), i, c)
    {
        struct esp_kv_scheme s = scheme("turbo");
        uint8_t row[256], codes[64];
        float x[64], y[64];
        json_t *v;
        size_t j;

        s.v_bits = (uint8_t)json_u32(c, "bits");
        hex_floats(json_object_get(c, "x_f32"), ESP_SCALE_F32, x, 64);
        memcpy(y, x, sizeof y);
        esp_turbo_rotate(y, 64);
        hex_equal(c, "rot_f32", y, sizeof y);
        esp_kv_encode_value(&s, 64, x, row);
        esp_affine_unpack(s.v_bits, row, 0, 64, codes);
        json_array_foreach(json_object_get(c, "codes"), j, v)
            assert_int_equal(codes[j], json_integer_value(v));
        hex_equal(c, "scale_f16", row + 8 * s.v_bits, 4);
        esp_kv_decode_value(&s, 64, row, y);
        hex_equal(c, "outrot_f32", y, sizeof y);
        esp_kv_unrotate(&s, 64, y);
        hex_equal(c, "out_f32", y, sizeof y);
    }
    json_array_foreach(json_object_get(file, "boundary_ties"), i, c)
    {
        const uint32_t bits = json_u32(c, "bits");
        float x[256];
        json_t *v;
        size_t j;

        hex_floats(json_object_get(c, "normalised_f32"), ESP_SCALE_F32, x, 256);
        json_array_foreach(json_object_get(c, "codes"), j, v)
            assert_int_equal(esp_turbo_code(&esp_turbo_published[bits], bits, x[j]), json_integer_value(v));
        assert_int_equal(esp_turbo_code(&esp_turbo_published[bits], bits, NAN), 0);
    }
    json_decref(file);
}

static void test_pack(void **state)
{
    json_t *file = test_json(DIR "pack.json"), *c;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(file, "cases")), 18);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const json_t *list = json_object_get(c, "codes");
        const uint32_t bits = json_u32(c, "bits");
        uint8_t codes[64], bytes[64];
        json_t *v;
        size_t j, n;

        list = list ? list : json_object_get(c, "signed_codes");
        n = json_array_size(list);
        json_array_foreach(list, j, v) codes[j] = (uint8_t)json_integer_value(v);
        esp_affine_pack(bits, codes, n, bytes);
        hex_equal(c, "packed", bytes, n * bits / 8);
    }
    json_decref(file);
}

/* The worked examples of doc/formats/turboquant.md and doc/formats/kv_affine.md. */
static void test_pages(void **state)
{
    const struct esp_kv_scheme turbo = scheme("turbo"), least = scheme("turbo:k8v3:least"),
                               q4 = scheme("q4:g32");
    const float key[64] = {1, -0.5f, 0.25f}, value[64] = {8}, affine[32] = {1.03f, -0.5f, 0.26f};
    uint8_t row[128];
    float y[64];

    (void)state;
    esp_kv_encode_key(&turbo, 64, key, row);
    assert_memory_equal(row, "\x7f\x81\x00\xd6", 4);
    assert_memory_equal(row + 64, "\x0c\x1e\x00\x00\x40\x51\x00\x00", 8);
    esp_kv_encode_value(&turbo, 64, value, row);
    for (size_t i = 0; i < 8; i++)
        assert_memory_equal(row + 3 * i, "\x6d\xdb\xb6", 3);
    assert_memory_equal(row + 24, "\x00\x3c\x00\x3c", 4);
    esp_kv_encode_value(&least, 64, value, row);
    assert_memory_equal(row + 24, "\x4a\x3d\x4a\x3d", 4);
    esp_kv_decode_value(&least, 64, row, y);
    esp_kv_unrotate(&least, 64, y);
    assert_true(fabsf(y[0] - 7.997f) < 0.001f && y[1] == 0 && y[63] == 0);
    esp_kv_encode_key(&q4, 32, affine, row);
    assert_memory_equal(row, "\xf0\xa7\xaa", 3);
    assert_memory_equal(row + 16, "\xd3\xbd\x84\x3f", 4);
}

/* Codebooks: ascending, borders between levels, own ones symmetric and at the optimum's error. */
static void test_codebooks(void **state)
{
    static const double published[9] = {
        [2] = .11749, [3] = .034548, [4] = .009507, [5] = .002512, [8] = 1.003e-4};
    static const double optimal[9] = {
        [2] = .11748, [3] = .034548, [4] = .009501, [5] = .002505, [8] = 4.12e-5};

    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits++) {
        if (!esp_turbo_value_bits(bits))
            continue;
        for (int own = 0; own < 2; own++) {
            const struct esp_turbo_codebook *b = own ? &esp_turbo_own[bits] : &esp_turbo_published[bits];
            const uint32_t n = 1u << bits;
            double mse = 0;

            for (uint32_t i = 0; i + 1 < n; i++) {
                assert_true(b->levels[i] < b->edges[i] && b->edges[i] < b->levels[i + 1]);
                assert_true(!own || b->levels[i] == -b->levels[n - 1 - i]);
            }
            for (double x = -8; x <= 8; x += 1.0 / 8192) {
                const double e = x - (double)b->levels[esp_turbo_code(b, bits, (float)x)];

                mse += e * e * exp(-x * x / 2) / sqrt(2 * 3.14159265358979) / 8192;
            }
            assert_true(fabs(mse / (own ? optimal : published)[bits] - 1) < 0.005);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names), cmocka_unit_test(test_sizes),     cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_rows),  cmocka_unit_test(test_edge_keys), cmocka_unit_test(test_edge_values),
        cmocka_unit_test(test_pack),  cmocka_unit_test(test_codebooks), cmocka_unit_test(test_pages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
