/* Names, layouts, refusals and row views. SPDX-License-Identifier: MIT */
#include "support/support.h"

#include <string.h>

#include "formats/format.h"

static void test_names(void **state)
{
    enum esp_format_id id = ESP_FORMAT_COUNT;
    esp_error err;

    (void)state;
    for (int f = 0; f < ESP_FORMAT_COUNT; f++) {
        test_ok(esp_format_by_name(&id, esp_format_get((enum esp_format_id)f)->name, &err), &err);
        assert_int_equal(id, f);
    }
    id = ESP_FORMAT_F16;
    test_refused(esp_format_by_name(&id, "affine7", &err), ESP_EINVAL, &err, "affine6");
    assert_int_equal(id, ESP_FORMAT_F16); /* untouched */
    test_refused(esp_format_by_name(&id, "", &err), ESP_EINVAL, &err, "known");
}

static void layout(enum esp_format_id format, uint32_t n_in, uint32_t group, enum esp_scale_type type,
                   size_t row, size_t scale_row)
{
    struct esp_weight w = {.format = format, .scale_type = type, .n_out = 3, .n_in = n_in, .group = group};
    esp_error err;

    test_ok(esp_weight_layout(&w, "t", &err), &err);
    assert_int_equal(w.row_bytes, row);
    assert_int_equal(w.scale_row_bytes, scale_row);
    assert_int_equal(esp_weight_bytes(&w), 3 * (row + 2 * scale_row));
}

static void test_layout(void **state)
{
    (void)state;
    layout(ESP_FORMAT_F32, 7, 0, ESP_SCALE_F32, 28, 0);
    layout(ESP_FORMAT_BF16, 7, 0, ESP_SCALE_F32, 14, 0);
    layout(ESP_FORMAT_F16, 1, 0, ESP_SCALE_F32, 2, 0);
    layout(ESP_FORMAT_AFFINE2, 32, 32, ESP_SCALE_BF16, 8, 2);
    layout(ESP_FORMAT_AFFINE3, 96, 32, ESP_SCALE_F16, 36, 6);
    layout(ESP_FORMAT_AFFINE4, 4096, 64, ESP_SCALE_BF16, 2048, 128);
    layout(ESP_FORMAT_AFFINE5, 128, 128, ESP_SCALE_F32, 80, 4);
    layout(ESP_FORMAT_AFFINE6, 192, 64, ESP_SCALE_F32, 144, 12);
    layout(ESP_FORMAT_AFFINE8, 17408, 64, ESP_SCALE_BF16, 17408, 544);
}

static void refuse(struct esp_weight w, const char *part)
{
    const size_t before = w.row_bytes = 77;
    esp_error err;

    test_refused(esp_weight_layout(&w, "layers.3.q", &err), ESP_EFORMAT, &err, part);
    assert_non_null(strstr(err.message, "layers.3.q"));
    assert_int_equal(w.row_bytes, before);
}

static void test_refusals(void **state)
{
    const struct esp_weight good = {.format = ESP_FORMAT_AFFINE4, .n_out = 2, .n_in = 128, .group = 64};
    struct esp_weight w;

    (void)state;
    w = good, w.group = 16, refuse(w, "groups of 16");
    w = good, w.group = 0, refuse(w, "32, 64 and 128");
    w = good, w.n_in = 96, refuse(w, "multiple");
    w = good, w.n_in = 0, refuse(w, "at least 1");
    w = good, w.n_out = 0, refuse(w, "at least 1");
    w = good, w.scale_type = (enum esp_scale_type)3, refuse(w, "scale type");
    w = good, w.format = ESP_FORMAT_COUNT, refuse(w, "does not exist");
    w = good, w.format = ESP_FORMAT_BF16, refuse(w, "no groups");
    w = (struct esp_weight){.format = ESP_FORMAT_F32, .n_out = UINT32_MAX, .n_in = UINT32_MAX};
    refuse(w, "does not fit into memory"); /* 2^66 bytes */
}

static void test_rows(void **state)
{
    uint8_t codes[5 * 16], scales[5 * 2], biases[5 * 2];
    struct esp_weight w = {
        .format = ESP_FORMAT_AFFINE4, .scale_type = ESP_SCALE_BF16, .n_out = 5, .n_in = 32, .group = 32};
    float a[32], b[32];
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i * 37);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = biases[i] = (uint8_t)(i * 11 + 20);
    w.codes = codes;
    w.scales = scales;
    w.biases = biases;
    test_ok(esp_weight_layout(&w, "t", &err), &err);
    for (uint32_t r = 0; r < 5; r++) {
        const struct esp_weight v = esp_weight_rows(&w, r, 5 - r);

        assert_int_equal(v.n_out, 5 - r);
        for (uint32_t i = 0; i < v.n_out; i++) {
            esp_format_get(w.format)->decode(&w, r + i, 0, 32, a);
            esp_format_get(v.format)->decode(&v, i, 0, 32, b);
            assert_memory_equal(a, b, sizeof a);
        }
    }
    w.format = ESP_FORMAT_F32, w.group = 0, w.n_in = 4, w.scales = w.biases = NULL;
    test_ok(esp_weight_layout(&w, "t", &err), &err);
    assert_null(esp_weight_rows(&w, 2, 1).scales);
    assert_ptr_equal(esp_weight_rows(&w, 2, 1).codes, codes + 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
