/*
 * Trellis blocks against the stored vectors, every bit; packing, addresses, views and refusals. The traps of
 * this format have a test each: the wrap inside a block, reversed time, whose scale it is, the rank-3
 * addresses, windows that start at bit 0 of a word, the multiplication modulo 2^32, subnormal scales.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/trellis_vector.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static void test_table(void **state)
{
    int16_t table[ESP_TRELLIS_STATES];
    FILE *f = fopen(test_path("tests/data/vectors/trellis/y_table.i16le"), "rb");
    int64_t sum = 0, squares = 0;

    (void)state;
    assert_non_null(f);
    assert_int_equal(fread(table, 2, ESP_TRELLIS_STATES, f), ESP_TRELLIS_STATES);
    fclose(f);
    for (uint32_t s = 0; s < ESP_TRELLIS_STATES; s++) {
        const int32_t y = esp_trellis_value(s);

        assert_int_equal(y, table[s]);
        assert_in_range(y + 448, 0, 448 + 454);
        sum += y;
        squares += y * y;
    }
    assert_int_equal(sum, -4300);
    assert_int_equal(squares, 90213626);
}

/* Quotients of every y that four bytes can give, and the reciprocal that the products multiply by. */
static void test_float_forms(void **state)
{
    json_t *f = test_json("tests/data/vectors/trellis/float_forms.json");
    const json_t *exact = json_object_get(f, "exact_f32_bits");
    const json_t *unrefined = json_object_get(f, "unrefined_f32_bits");
    uint32_t differ = 0;

    (void)state;
    assert_int_equal(json_array_size(exact), 1021);
    for (int32_t y = -510; y <= 510; y++) {
        const float q = (float)y / ESP_TRELLIS_DIVISOR, p = (float)y * ESP_TRELLIS_RECIPROCAL;

        assert_int_equal(tv_float_bits(q), tv_bits(exact, (size_t)(y + 510)));
        assert_int_equal(tv_float_bits(p), tv_bits(unrefined, (size_t)(y + 510)));
        differ += q != p;
    }
    assert_int_equal(differ, 398);
    assert_int_equal(tv_float_bits(ESP_TRELLIS_DIVISOR), 0x4313ccf0);
    assert_int_equal(tv_float_bits(ESP_TRELLIS_RECIPROCAL), 0x3bddb447);
    json_decref(f);
}

static void check_row(const struct trellis_vector *v, size_t r)
{
    const json_t *states = json_array_get(json_object_get(v->json, "states"), r);
    const json_t *ys = json_array_get(json_object_get(v->json, "y"), r);
    const json_t *expand = json_array_get(json_object_get(v->json, "w_expand_bf16_bits"), r);
    const json_t *packed = json_array_get(json_object_get(v->json, "w_packed_f32_bits"), r);
    const json_t *fill = json_array_get(json_object_get(v->json, "w_fill_f16_bits"), r);
    const uint32_t k = esp_trellis_bits(v->w.format), n = v->w.n_in;
    float value[1024];
    int16_t y[1024];

    assert_true(n <= 1024);
    esp_format_get(v->w.format)->decode(&v->w, r, 0, n, value);
    esp_trellis_values(&v->w, r, 0, n, y);
    for (size_t c = 0; c < n; c++) {
        uint16_t s[ESP_TRELLIS_BLOCK];

        esp_trellis_unpack(k, esp_trellis_block(&v->w, r, c / 256), s);
        assert_int_equal(s[c % 256], json_integer_value(json_array_get(states, c)));
        assert_int_equal(y[c], json_integer_value(json_array_get(ys, c)));
        if (expand)
            assert_int_equal(esp_f32_to_bf16(value[c]), tv_bits(expand, c));
        if (packed) {
            const float unrefined = (float)y[c] * ESP_TRELLIS_RECIPROCAL;

            assert_int_equal(tv_float_bits(unrefined * esp_trellis_scale(&v->w, r)), tv_bits(packed, c));
        }
        if (fill && c < json_array_size(fill))
            assert_int_equal(esp_f32_to_f16(value[c]), tv_bits(fill, c));
    }
}

static void test_decode(void **state)
{
    static const char *const names[] = {"dec_k1_axis1", "dec_k2_axis1", "dec_k3_axis1",
                                        "dec_k4_axis1", "dec_k5_axis1", "dec_k8_axis1"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        static struct trellis_vector v;

        tv_load(&v, names[i]);
        for (size_t r = 0; r < v.w.n_out; r++)
            check_row(&v, r);
        json_decref(v.json);
    }
}

/* Rank 3: the words of a block pair lie elsewhere, the values are the same; the scale is the input's. */
static void test_interleaved(void **state)
{
    static struct trellis_vector v;
    static uint8_t flat[TV_BYTES_MAX];
    struct esp_weight m;
    float row[1024], again[1024];
    int16_t y[1024];
    esp_error err;

    (void)state;
    tv_load(&v, "dec_k3_axis0_interleaved");
    assert_true(v.w.interleaved);
    m = v.w;
    m.interleaved = false;
    test_ok(esp_weight_layout(&m, "row major", &err), &err);
    m.codes = flat;
    tv_words(json_object_get(v.json, "row_major_codes_u32_hex"), flat, sizeof flat);
    for (size_t i = 0; i < v.w.n_in; i++) {
        const json_t *ys = json_array_get(json_object_get(v.json, "y_stored"), i);
        const json_t *expand = json_array_get(json_object_get(v.json, "w_expand_bf16_bits_stored"), i);

        esp_trellis_values(&v.w, i, 0, 1024, y);
        esp_trellis_decode_stored(&v.w, i, 0, 1024, row);
        esp_trellis_decode_stored(&m, i, 0, 1024, again);
        assert_memory_equal(row, again, sizeof row);
        for (size_t c = 0; c < 1024; c++) {
            float w;

            assert_int_equal(y[c], json_integer_value(json_array_get(ys, c)));
            assert_int_equal(esp_f32_to_bf16(row[c]), tv_bits(expand, c));
            esp_format_get(v.w.format)->decode(&v.w, c, i, 1, &w); /* W is [out][in] whatever the axis */
            assert_memory_equal(&w, &row[c], sizeof w);
        }
    }
    json_decref(v.json);
}

/* States of the optimal paths: closed, packed to the stored words, and back. */
static void test_pack(void **state)
{
    json_t *f = test_json("tests/data/vectors/trellis/enc_summary.json");

    (void)state;
    for (uint32_t k = 1; k <= 4; k++) {
        const char digit[2] = {(char)('0' + k), 0};
        const json_t *words =
            json_object_get(json_object_get(json_object_get(f, "k"), digit), "block0_packed_words_hex");
        uint8_t block[ESP_TRELLIS_BLOCK_BYTES_MAX];
        uint16_t s[ESP_TRELLIS_BLOCK], back[ESP_TRELLIS_BLOCK];
        char path[128];
        esp_error err;
        FILE *file;

        snprintf(path, sizeof path, "tests/data/vectors/trellis/enc_opt_states_k%u.u16le", k);
        file = fopen(test_path(path), "rb");
        assert_non_null(file);
        for (size_t b = 0; fread(s, 2, ESP_TRELLIS_BLOCK, file) == ESP_TRELLIS_BLOCK; b++) {
            test_ok(esp_trellis_pack(k, s, block, &err), &err);
            esp_trellis_unpack(k, block, back);
            assert_memory_equal(s, back, sizeof s);
            for (size_t i = 0; b == 0 && i < 8 * k; i++) {
                const uint32_t want = tv_bits(words, i);

                assert_memory_equal(block + 4 * i, &want, 4);
            }
        }
        fclose(file);
    }
    json_decref(f);
}

static void test_pack_refuses(void **state)
{
    uint8_t block[ESP_TRELLIS_BLOCK_BYTES_MAX], before[ESP_TRELLIS_BLOCK_BYTES_MAX];
    uint16_t s[ESP_TRELLIS_BLOCK] = {0};
    esp_error err;

    (void)state;
    memset(block, 0x5a, sizeof block);
    memcpy(before, block, sizeof block);
    s[7] = 4096;
    test_refused(esp_trellis_pack(3, s, block, &err), ESP_EINVAL, &err, "4096");
    s[7] = 8; /* has b_6 = 1, but state 6 is 0 */
    test_refused(esp_trellis_pack(3, s, block, &err), ESP_EINVAL, &err, "state 7");
    s[7] = 0;
    s[255] = 1; /* follows 254, but is not followed by state 0 */
    test_refused(esp_trellis_pack(3, s, block, &err), ESP_EINVAL, &err, "state 0");
    assert_memory_equal(block, before, sizeof block);
}

/* Any bytes are a block: unpacked and packed they are the same bytes, for every k, at the edge of a page. */
static void test_random_blocks(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t seed = 1;

    (void)state;
    assert_ptr_not_equal(map, MAP_FAILED);
    mprotect(map, page, PROT_NONE);
    mprotect(map + 2 * page, page, PROT_NONE);
    for (uint32_t n = 0; n < 800; n++) {
        const uint32_t k = 1 + n % 8;
        const size_t bytes = esp_trellis_block_bytes(k);
        uint8_t *block = n / 8 % 2 ? map + page : map + 2 * page - bytes, packed[ESP_TRELLIS_BLOCK_BYTES_MAX];
        uint16_t s[ESP_TRELLIS_BLOCK];
        esp_error err;

        for (size_t i = 0; i < bytes; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            block[i] = (uint8_t)(seed >> 56);
        }
        esp_trellis_unpack(k, block, s);
        test_ok(esp_trellis_pack(k, s, packed, &err), &err);
        assert_memory_equal(block, packed, bytes);
    }
    munmap(map, 3 * page);
}

/* The last weight starts at bit 0, and the first wraps to it: one symbol seen from both ends of the block. */
static void test_time_and_wrap(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 8; k++) {
        uint8_t block[ESP_TRELLIS_BLOCK_BYTES_MAX] = {0};
        const uint32_t low = (1u << k) - 1;
        const uint32_t older = ESP_TRELLIS_STATES - 1 - low; /* the 12 - k upper bits of a state */
        uint16_t s[ESP_TRELLIS_BLOCK];

        block[0] = (uint8_t)low; /* symbol of weight 255 alone */
        esp_trellis_unpack(k, block, s);
        assert_int_equal(s[255], low);
        assert_int_equal(s[0], low << k & older);
        assert_int_equal(s[1], low << 2 * k & older);
        assert_int_equal(s[254], 0);
        memset(block, 0xff, sizeof block);
        esp_trellis_unpack(k, block, s);
        for (size_t t = 0; t < ESP_TRELLIS_BLOCK; t++)
            assert_int_equal(s[t], ESP_TRELLIS_STATES - 1);
    }
    assert_int_equal(esp_trellis_value(0), -185);
    assert_int_equal(esp_trellis_value(ESP_TRELLIS_STATES - 1), 188);
}

static void test_subnormal_scale(void **state)
{
    static const uint16_t half = 0x0001;
    uint8_t block[96] = {0};
    struct esp_weight w = {.format = ESP_FORMAT_TRELLIS3,
                           .scale_type = ESP_SCALE_F16,
                           .n_out = 1,
                           .n_in = 256,
                           .axis = 1,
                           .codes = block,
                           .scales = (const uint8_t *)&half};
    float v;
    esp_error err;

    (void)state;
    test_ok(esp_weight_layout(&w, "w", &err), &err);
    esp_format_get(w.format)->decode(&w, 0, 100, 1, &v);
    assert_true(v == -185.0f / ESP_TRELLIS_DIVISOR * 0x1p-24f);
}

static void refuse(struct esp_weight w, const char *part)
{
    esp_error err;

    w.row_bytes = 77;
    test_refused(esp_weight_layout(&w, "layers.3.down", &err), ESP_EFORMAT, &err, part);
    assert_non_null(strstr(err.message, "layers.3.down"));
    assert_int_equal(w.row_bytes, 77);
}

static void test_layout(void **state)
{
    const struct esp_weight good = {
        .format = ESP_FORMAT_TRELLIS3, .scale_type = ESP_SCALE_F16, .n_out = 1024, .n_in = 768, .axis = 0};
    struct esp_weight w = good;
    esp_error err;

    (void)state;
    test_ok(esp_weight_layout(&w, "w", &err), &err);
    assert_int_equal(w.row_bytes, 384);
    assert_int_equal(w.scale_row_bytes, 2);
    assert_int_equal(esp_weight_bytes(&w), 768 * 386);
    assert_int_equal(esp_weight_out_align(&w), 64);
    w = good, w.interleaved = true;
    test_ok(esp_weight_layout(&w, "w", &err), &err);
    assert_int_equal(w.row_bytes, 192);
    assert_int_equal(w.pair_bytes, 192 * 768);
    w = good, w.axis = 1, w.format = ESP_FORMAT_TRELLIS8;
    test_ok(esp_weight_layout(&w, "w", &err), &err);
    assert_int_equal(w.row_bytes, 768);
    assert_int_equal(esp_weight_bytes(&w), 1024 * 770);
    assert_int_equal(esp_weight_out_align(&w), 1);

    w = good, w.n_out = 1000, refuse(w, "1000 coded columns");
    w = good, w.n_out = 768, w.interleaved = true, refuse(w, "multiple of 512");
    w = good, w.axis = 2, refuse(w, "axis 2");
    w = good, w.interleaved = true, w.axis = 1, refuse(w, "interleaved");
    w = good, w.interleaved = true, w.format = ESP_FORMAT_TRELLIS2, refuse(w, "trellis2");
    w = good, w.scale_type = ESP_SCALE_BF16, refuse(w, "f16");
    w = good, w.group = 256, refuse(w, "256");
    w = good, w.axis = 1, w.n_in = 320, refuse(w, "320 coded columns");
    w = good, w.n_in = 0, refuse(w, "at least 1");
}

/* Views of both axes, alone and of one another, have the values of the part they name. */
static void check_view(const struct esp_weight *w, const struct esp_weight *v, uint32_t o0, uint32_t i0)
{
    const struct esp_format *f = esp_format_get(w->format);

    for (uint32_t o = 0; o < v->n_out; o += 37) {
        static float part[1024], whole[1024];

        f->decode(v, o, 0, v->n_in, part);
        f->decode(w, o0 + o, i0, v->n_in, whole);
        assert_memory_equal(part, whole, v->n_in * sizeof *part);
    }
}

static void test_views(void **state)
{
    static uint8_t codes[1024 * 1024], scales[2 * 1024];
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)(i % 2 ? 0x20 : i * 7);
    for (int form = 0; form < 4; form++) {
        struct esp_weight w = {.format = form == 3 ? ESP_FORMAT_TRELLIS2 : ESP_FORMAT_TRELLIS3,
                               .scale_type = ESP_SCALE_F16,
                               .n_out = 1024,
                               .n_in = 1024,
                               .axis = form == 0,
                               .interleaved = form == 2,
                               .codes = codes,
                               .scales = scales};
        const uint32_t unit = form == 2 ? 512 : 256;
        struct esp_weight v, u;

        test_ok(esp_weight_layout(&w, "w", &err), &err);
        assert_int_equal(esp_weight_out_unit(&w), form == 0 ? 1 : unit);
        assert_int_equal(esp_weight_in_unit(&w), form == 0 ? unit : 1);
        v = esp_weight_rows(&w, form == 0 ? 333 : unit, form == 0 ? 300 : unit);
        check_view(&w, &v, form == 0 ? 333 : unit, 0);
        assert_int_equal(esp_weight_bytes(&v),
                         v.n_out * v.n_in / 8 * esp_trellis_bits(w.format) + 2 * esp_trellis_rows(&v));
        v = esp_weight_cols(&w, form == 0 ? unit : 77, form == 0 ? unit : 99);
        check_view(&w, &v, 0, form == 0 ? unit : 77);
        u = esp_weight_rows(&v, form == 0 ? 10 : unit, form == 0 ? 100 : unit);
        check_view(&w, &u, form == 0 ? 10 : unit, form == 0 ? unit : 77);
    }
}

/* One "t ..." line of the page against the block. */
static void check_line(const char *line, const struct esp_weight *w)
{
    static const char *const names[] = {"t", "bit", "state", "hash", "y", "weight"};
    static const int base[] = {10, 10, 10, 16, 10, 16};
    long long v[6];
    uint32_t state;
    float weight;

    for (size_t i = 0; i < 6; i++) {
        char *end;

        line = strstr(line, names[i]);
        assert_non_null(line);
        v[i] = strtoll(line + strlen(names[i]), &end, base[i]);
        line = end;
    }
    state = esp_trellis_state(3, w->codes, (uint32_t)v[0]);
    esp_format_get(w->format)->decode(w, 0, (size_t)v[0], 1, &weight);
    assert_true((255 - v[0]) * 3 == v[1]);
    assert_true(state == v[2]);
    assert_true(state * 34038481u + 76625530u == v[3]);
    assert_true(esp_trellis_value(state) == v[4]);
    assert_true(tv_float_bits(weight) == v[5]);
}

/* The worked example of the format's page. */
static void test_page(void **state)
{
    FILE *f = fopen(test_path("doc/formats/trellis.md"), "r");
    uint8_t block[96], scale[2];
    struct esp_weight w = {.format = ESP_FORMAT_TRELLIS3,
                           .scale_type = ESP_SCALE_F16,
                           .n_out = 1,
                           .n_in = 256,
                           .axis = 1,
                           .codes = block,
                           .scales = scale};
    size_t n = 0, lines = 0;
    char line[256];
    esp_error err;

    (void)state;
    assert_non_null(f);
    test_ok(esp_weight_layout(&w, "example", &err), &err);
    while (fgets(line, sizeof line, f)) {
        char *at = line + 6;

        for (size_t i = 0; strncmp(line, "bytes ", 6) == 0 && i < 32 && n < sizeof block; i++)
            block[n++] = (uint8_t)strtoul(at, &at, 16);
        if (strncmp(line, "scale ", 6) == 0) {
            const uint16_t half = (uint16_t)strtoul(at, NULL, 16);

            memcpy(scale, &half, 2);
        }
        if (strncmp(line, "t ", 2) == 0 && ++lines)
            check_line(line, &w);
    }
    fclose(f);
    assert_int_equal(n, 96);
    assert_int_equal(lines, 9);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(block[i], (37 * i + 11) % 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_float_forms),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_pack_refuses),
        cmocka_unit_test(test_random_blocks),
        cmocka_unit_test(test_time_and_wrap),
        cmocka_unit_test(test_subnormal_scale),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_page),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
