/* Affine packing, decoding and quantizing against the stored vectors; any bytes decode.
 * SPDX-License-Identifier: MIT */
#include "formats/hex.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t read_codes(const json_t *list, uint8_t *out)
{
    json_t *v;
    size_t i;

    json_array_foreach(list, i, v) out[i] = (uint8_t)json_integer_value(v);
    return json_array_size(list);
}

static void test_pack(void **state)
{
    json_t *file = test_json("tests/data/vectors/affine/pack.json"), *c;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(file, "cases")), 72);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const uint32_t bits = json_u32(c, "bits");
        uint8_t codes[128], bytes[128], got[128];
        const size_t n = read_codes(json_object_get(c, "codes"), codes);
        const size_t n_bytes = hex_bytes(json_object_get(c, "bytes"), bytes, sizeof bytes);

        esp_affine_pack(bits, codes, n, got);
        assert_int_equal(n_bytes, n * bits / 8);
        assert_memory_equal(got, bytes, n_bytes);
        esp_affine_unpack(bits, bytes, 0, n, got);
        assert_memory_equal(got, codes, n);
        for (size_t j = 0; j + 8 <= n; j += 8) { /* from the middle, eight at a time */
            esp_affine_unpack(bits, bytes, j, 8, got);
            assert_memory_equal(got, codes + j, 8);
        }
    }
    json_decref(file);
}

struct planes {
    uint8_t codes[512], scales[64], biases[64];
    struct esp_weight w;
};

static void encode(struct planes *p, uint32_t bits, uint32_t group, enum esp_scale_type type, const float *x,
                   uint32_t n)
{
    esp_error err;

    memset(p, 0xee, sizeof *p);
    p->w = (struct esp_weight){.format = affine_of_bits(bits),
                               .scale_type = type,
                               .n_out = 1,
                               .n_in = n,
                               .group = group,
                               .codes = p->codes,
                               .scales = p->scales,
                               .biases = p->biases};
    test_ok(esp_weight_layout(&p->w, "test", &err), &err);
    esp_format_get(p->w.format)->encode(&p->w, x, n, p->codes, p->scales, p->biases);
    assert_int_equal(p->codes[p->w.row_bytes], 0xee); /* nothing behind the row */
    assert_int_equal(p->scales[p->w.scale_row_bytes], 0xee);
    assert_int_equal(p->biases[p->w.scale_row_bytes], 0xee);
}

static void decode(const struct planes *p, float *out)
{
    esp_format_get(p->w.format)->decode(&p->w, 0, 0, p->w.n_in, out);
}

static void test_quantize(void **state)
{
    json_t *file = test_json("tests/data/vectors/affine/quantize.json"), *c;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(file, "cases")), 42);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const enum esp_scale_type type = hex_type(json_string_value(json_object_get(c, "dtype")));
        float x[128], want[128], got[128];
        uint8_t bytes[512];
        struct planes p;

        assert_int_equal(hex_floats(json_object_get(c, "w"), type, x, 128), 128);
        encode(&p, json_u32(c, "bits"), json_u32(c, "group_size"), type, x, 128);
        assert_int_equal(hex_bytes(json_object_get(c, "weight_bytes"), bytes, sizeof bytes), p.w.row_bytes);
        assert_memory_equal(p.codes, bytes, p.w.row_bytes);
        assert_int_equal(hex_bytes(json_object_get(c, "scales"), bytes, sizeof bytes), p.w.scale_row_bytes);
        assert_memory_equal(p.scales, bytes, p.w.scale_row_bytes);
        assert_int_equal(hex_bytes(json_object_get(c, "biases"), bytes, sizeof bytes), p.w.scale_row_bytes);
        assert_memory_equal(p.biases, bytes, p.w.scale_row_bytes);
        hex_floats(json_object_get(c, "dequant_f32"), ESP_SCALE_F32, want, 128);
        decode(&p, got);
        assert_memory_equal(got, want, sizeof want);
        hex_bytes(json_object_get(c, "dequant_cast"), bytes, sizeof bytes);
        for (size_t j = 0; j < 128; j++) {
            uint8_t cast[4];

            esp_scale_store(type, cast, 0, got[j]);
            assert_memory_equal(cast, bytes + j * esp_scale_bytes(type), esp_scale_bytes(type));
        }
    }
    json_decref(file);
}

static void check_edge(const json_t *c, const char *key, enum esp_scale_type type)
{
    const json_t *want = json_object_get(c, key);
    float x[32], decoded[32], got[32];
    uint8_t codes[32], bytes[4];
    struct planes p;

    assert_int_equal(hex_floats(json_object_get(c, "w_f32"), ESP_SCALE_F32, x, 32), 32);
    encode(&p, json_u32(c, "bits"), 32, type, x, 32);
    read_codes(json_object_get(want, "codes"), codes);
    for (size_t j = 0; j < 32; j++) {
        uint8_t code[32];

        esp_affine_unpack(json_u32(c, "bits"), p.codes, 0, 32, code);
        if (code[j] != codes[j])
            fail_msg("%s %s: code %zu is %u, not %u", json_string_value(json_object_get(c, "name")), key, j,
                     code[j], codes[j]);
    }
    hex_bytes(json_object_get(want, "scale"), bytes, sizeof bytes);
    assert_memory_equal(p.scales, bytes, esp_scale_bytes(type));
    hex_bytes(json_object_get(want, "bias"), bytes, sizeof bytes);
    assert_memory_equal(p.biases, bytes, esp_scale_bytes(type));
    hex_floats(json_object_get(want, "dequant_f32"), ESP_SCALE_F32, decoded, 32);
    decode(&p, got);
    for (size_t j = 0; j < 32; j++)
        assert_true(got[j] == decoded[j]);
}

static void test_edge(void **state)
{
    json_t *file = test_json("tests/data/vectors/affine/edge.json"), *c;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(json_object_get(file, "cases")), 30);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        check_edge(c, "graph_f32", ESP_SCALE_F32);
        check_edge(c, "graph_bf16", ESP_SCALE_BF16);
    }
    json_decref(file);
}

/* |a - b| in units of the last place of the scale type at b. */
static double ulps(float a, float b, enum esp_scale_type type)
{
    static const int digits[] = {24, 8, 11};

    return fabs((double)a - (double)b) / ldexp(1, ilogbf(b) + 1 - digits[type]);
}

static void check_block(const char *id, const struct planes *p, const float *x, const float *y)
{
    const float scale = esp_scale_load(p->w.scale_type, p->scales, 0);
    const float bias = esp_scale_load(p->w.scale_type, p->biases, 0);

    assert_true(isfinite(scale) && isfinite(bias));
    for (size_t j = 0; j < 64; j++) {
        assert_true(isfinite(y[j]));
        if (strcmp(id, "qb-constant") == 0)
            assert_true(ulps(y[j], 0.75f, p->w.scale_type) <= 1);
        else if (strcmp(id, "qb-zeros") == 0)
            assert_true(y[j] == 0);
        else if (strcmp(id, "qb-tiny") == 0)
            assert_true(fabsf(y[j] - x[j]) <= 1e-29f);
        else if (x[j] > 100) /* qb-outlier */
            assert_true(fabsf(y[j] - x[j]) <= fabsf(scale));
    }
}

static void test_blocks(void **state)
{
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8};
    json_t *file = test_json("tests/data/cases/quant_blocks.json"), *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        float x[64], y[64];

        for (size_t j = 0; j < 64; j++)
            x[j] = (float)json_number_value(json_array_get(json_object_get(c, "values"), j));
        for (size_t b = 0; b < 6; b++) {
            for (int t = 0; t < 3; t++) {
                struct planes p;

                encode(&p, bits[b], 64, (enum esp_scale_type)t, x, 64);
                decode(&p, y);
                check_block(json_string_value(json_object_get(c, "id")), &p, x, y);
            }
        }
    }
    json_decref(file);
}

/* The group worked through by hand in doc/formats/affine.md, section 5. */
static void test_page_example(void **state)
{
    static const uint8_t codes[12] = {0xe9, 0x64, 0x90, 0x24, 0x49, 0x92, 0x24, 0x49, 0x92, 0x24, 0x49, 0x92};
    static const float values[7] = {1.5f, -0.5f, 0.5f, 1.0f, -1.0f, 2.0f, 0.0f};
    const float x[32] = {1.5f, -0.5f, 0.5f, 1.0f, -1.2f, 2.0f}; /* 26 zeros follow */
    float y[32];
    struct planes p;

    (void)state;
    encode(&p, 3, 32, ESP_SCALE_BF16, x, 32);
    assert_memory_equal(p.codes, codes, sizeof codes);
    assert_memory_equal(p.scales, "\x00\xbf", 2); /* -0.5 */
    assert_memory_equal(p.biases, "\x00\x40", 2); /* 2 */
    decode(&p, y);
    assert_memory_equal(y, values, sizeof values);
    for (size_t i = 7; i < 32; i++)
        assert_true(y[i] == 0);
}

/* Random words and scales in planes that end at an unreadable page: every row decodes, and nothing else is
 * read. */
static void test_any_bytes(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *plane[3];
    uint32_t seed = 1;

    (void)state;
    for (int i = 0; i < 3; i++) {
        plane[i] = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(plane[i] != MAP_FAILED);
        assert_int_equal(mprotect(plane[i] + page, page, PROT_NONE), 0);
        for (size_t j = 0; j < page; j++)
            plane[i][j] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
    }
    for (int f = ESP_FORMAT_AFFINE2; f <= ESP_FORMAT_AFFINE8; f++) {
        for (uint32_t n = 1; n <= 12; n++) {
            struct esp_weight w = {
                .format = (enum esp_format_id)f, .scale_type = (enum esp_scale_type)(n % 3), .n_out = 2};
            float out[128];
            esp_error err;

            w.group = 32u << n % 3;
            w.n_in = w.group * n;
            test_ok(esp_weight_layout(&w, "any", &err), &err);
            w.codes = plane[0] + page - 2 * w.row_bytes;
            w.scales = plane[1] + page - 2 * w.scale_row_bytes;
            w.biases = plane[2] + page - 2 * w.scale_row_bytes;
            for (size_t c = 0; c < w.n_in; c += w.group) {
                esp_format_get(w.format)->decode(&w, 0, c, w.group, out);
                esp_format_get(w.format)->decode(&w, 1, c, w.group, out);
            }
        }
    }
    for (int i = 0; i < 3; i++)
        munmap(plane[i], 2 * page);
}

/* Non-finite input is refused by the quantizer above; here it must only stay within codes and memory. */
static void test_nonfinite_input(void **state)
{
    float x[32] = {NAN, INFINITY, -INFINITY, 1, -1, 3.4e38f, -3.4e38f};
    struct planes p;

    (void)state;
    for (uint32_t bits = 2; bits <= 8; bits++) {
        if (bits != 7)
            encode(&p, bits, 32, ESP_SCALE_F16, x, 32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_edge),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_page_example),
        cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_nonfinite_input),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
