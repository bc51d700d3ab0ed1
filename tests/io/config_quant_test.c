/*
 * Quantization settings: what a config says about a module, and what tensors prove against it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/model_files.h"

#include "io/config.h"
#include "io/config_quant.h"

static void read_quant(struct esp_config *c, const char *path, const char *json)
{
    json_t *j = mf_config();
    esp_error err;

    if (path)
        mf_set(j, path, json);
    test_ok(esp_config_read(c, j, NULL, "config.json", NULL, &err), &err);
    json_decref(j);
}

static void said(const struct esp_config *c, const char *module, enum esp_quant_said want,
                 const struct esp_quant *q)
{
    struct esp_quant got = {.bits = 99};

    assert_int_equal(esp_config_quant(c, module, &got), want);
    if (got.mode != q->mode || got.bits != q->bits || got.group != q->group)
        fail_msg("%s: %s %u %u", module, esp_quant_mode_name(got.mode), got.bits, got.group);
}

#define TABLE                                                                                                \
    "{\"group_size\":64,\"bits\":4,\"model.embed_tokens\":{\"bits\":6},"                                     \
    "\"language_model.model.layers.0.mlp.down_proj\":{\"group_size\":32,\"bits\":8,\"mode\":\"affine\","     \
    "\"x\":1},"                                                                                              \
    "\"model.layers.1.mlp.gate\":false,\"lm_head\":true,\"model.layers.2.mlp.up_proj\":{\"mode\":\"mxfp4\"}" \
    ","                                                                                                      \
    "\"model.layers.3.mlp.up_proj\":{\"mode\":\"trellis\",\"bits\":3,\"group_size\":256},\"note\":\"text\"}"

static void check_table(const struct esp_config *c)
{
    const struct esp_quant global = {.mode = ESP_QUANT_AFFINE, .bits = 4, .group = 64},
                           embed = {.mode = ESP_QUANT_AFFINE, .bits = 6, .group = 64},
                           down = {.mode = ESP_QUANT_AFFINE, .bits = 8, .group = 32},
                           mx = {.mode = ESP_QUANT_MXFP4, .bits = 4, .group = 32},
                           trellis = {.mode = ESP_QUANT_TRELLIS, .bits = 3, .group = 256};

    said(c, "model.embed_tokens", ESP_QUANT_YES, &embed);
    said(c, "language_model.model.embed_tokens", ESP_QUANT_YES, &embed);
    said(c, "model.language_model.embed_tokens", ESP_QUANT_YES, &embed);
    said(c, "embed_tokens", ESP_QUANT_YES, &embed);
    said(c, "model.layers.0.mlp.down_proj", ESP_QUANT_YES, &down);
    said(c, "model.language_model.layers.0.mlp.down_proj", ESP_QUANT_YES, &down);
    said(c, "language_model.model.layers.1.mlp.gate", ESP_QUANT_NO, &global);
    said(c, "language_model.lm_head", ESP_QUANT_YES, &global);
    said(c, "model.layers.2.mlp.up_proj", ESP_QUANT_YES, &mx);
    said(c, "model.layers.3.mlp.up_proj", ESP_QUANT_YES, &trellis);
    said(c, "model.layers.4.mlp.up_proj", ESP_QUANT_UNSAID, &global);
    said(c, "bits", ESP_QUANT_UNSAID, &global);
    said(c, "model.note", ESP_QUANT_UNSAID, &global);
    said(c, "", ESP_QUANT_UNSAID, &global);
}

static void test_table(void **state)
{
    static const char *const place[] = {"quantization", "quantization_config", "text_config.quantization",
                                        "text_config.quantization_config"};
    struct esp_config c;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        read_quant(&c, place[i], TABLE);
        assert_true(c.quant.present);
        check_table(&c);
        esp_config_free(&c);
    }
}

static void test_precedence(void **state)
{
    const struct esp_quant three = {.mode = ESP_QUANT_AFFINE, .bits = 3, .group = 64},
                           mx = {.mode = ESP_QUANT_MXFP4, .bits = 4, .group = 32},
                           none = {.mode = ESP_QUANT_AFFINE, .bits = 4, .group = 64};
    json_t *j = mf_config();
    struct esp_config c;
    esp_error err;

    (void)state;
    mf_set(j, "quantization", "{\"bits\":3}");
    mf_set(j, "quantization_config", "{\"quant_method\":\"awq\"}");
    test_ok(esp_config_read(&c, j, NULL, "config.json", NULL, &err), &err);
    said(&c, "x", ESP_QUANT_UNSAID, &three);
    esp_config_free(&c);
    json_decref(j);
    read_quant(&c, "quantization_config", "{\"quant_method\":\"mxfp4\"}");
    said(&c, "x", ESP_QUANT_UNSAID, &mx);
    esp_config_free(&c);
    read_quant(&c, "quantization_config", "{}");
    assert_false(c.quant.present);
    said(&c, "x", ESP_QUANT_UNSAID, &none);
    esp_config_free(&c);
}

/* ---- tensors ---- */

static struct esp_st_file *file;

static int open_file(void **state)
{
    static const uint8_t image[] = "\x02\0\0\0\0\0\0\0{}";
    esp_error err;

    (void)state;
    test_ok(esp_st_open_memory(&file, image, 10, "q.safetensors", &err), &err);
    return 0;
}

static int close_file(void **state)
{
    (void)state;
    esp_st_close(file);
    return 0;
}

static struct esp_st_tensor tensor(const char *name, enum esp_dtype dtype, uint64_t a, uint64_t b)
{
    return (struct esp_st_tensor){
        .name = name, .dtype = dtype, .n_dim = b ? 2 : 1, .shape = {a, b}, .file = file};
}

struct shapes {
    uint64_t cols, groups;
    enum esp_dtype scales;
    bool biases;
};

static esp_status prove(struct esp_quant *q, const struct esp_config *c, const struct shapes *s,
                        struct esp_warnings *w, esp_error *err)
{
    const struct esp_st_tensor weight = tensor("P.weight", ESP_DTYPE_U32, 8, s->cols),
                               scales = tensor("P.scales", s->scales, 8, s->groups),
                               biases = tensor("P.biases", s->scales, 8, s->groups);
    const struct esp_st_tensor *const wsb[3] = {&weight, &scales, s->biases ? &biases : NULL};

    return esp_quant_from_tensors(q, c, "P", wsb, 1024, w, err);
}

static void test_every_legal_pair_from_tensors(void **state)
{
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    struct esp_config c;

    (void)state;
    read_quant(&c, "quantization", "{\"bits\":4,\"group_size\":64}");
    for (size_t b = 0; b < 6; b++) {
        for (size_t g = 0; g < 3; g++) {
            const struct shapes s = {1024 * bits[b] / 32, 1024 / groups[g], ESP_DTYPE_BF16, true};
            struct esp_warnings w = {.n = 0};
            struct esp_quant q;
            esp_error err;

            test_ok(prove(&q, &c, &s, &w, &err), &err);
            assert_int_equal(q.bits, bits[b]);
            assert_int_equal(q.group, groups[g]);
            assert_int_equal(w.n, bits[b] == 4 && groups[g] == 64 ? 0 : 1);
            esp_warnings_free(&w);
        }
    }
    esp_config_free(&c);
}

static void test_float_modes_from_tensors(void **state)
{
    const struct shapes mxfp4 = {128, 32, ESP_DTYPE_U8, false}, nvfp4 = {128, 64, ESP_DTYPE_U8, false},
                        mxfp8 = {256, 32, ESP_DTYPE_U8, false}, none = {256, 64, ESP_DTYPE_U8, false},
                        biased = {128, 32, ESP_DTYPE_U8, true};
    struct esp_config c;
    struct esp_quant q;
    esp_error err;

    (void)state;
    read_quant(&c, NULL, NULL);
    test_ok(prove(&q, &c, &mxfp4, NULL, &err), &err);
    assert_int_equal(q.mode, ESP_QUANT_MXFP4);
    test_ok(prove(&q, &c, &nvfp4, NULL, &err), &err);
    assert_int_equal(q.mode, ESP_QUANT_NVFP4);
    test_ok(prove(&q, &c, &mxfp8, NULL, &err), &err);
    assert_int_equal(q.mode, ESP_QUANT_MXFP8);
    test_refused(prove(&q, &c, &none, NULL, &err), ESP_EFORMAT, &err, "'P.weight'");
    test_refused(prove(&q, &c, &biased, NULL, &err), ESP_EFORMAT, &err, "'P.biases'");
}

static void test_illegal_tensors(void **state)
{
    static const struct {
        struct shapes s;
        const char *part;
    } bad[] = {
        {{128, 16, ESP_DTYPE_BF16, false},
         "'P.scales' [8,16] of BF16 (input width 1024): float scales need a biases"},
        {{224, 16, ESP_DTYPE_BF16, true}, "no legal bits"}, /* 7 bits */
        {{128, 4, ESP_DTYPE_BF16, true}, "no legal bits"},  /* group 256 */
        {{127, 16, ESP_DTYPE_BF16, true}, "whole number of bits"},
        {{UINT64_MAX, 16, ESP_DTYPE_BF16, true}, "whole number of bits"},
        {{128, 15, ESP_DTYPE_BF16, true}, "no multiple of the number of groups"},
        {{128, 16, ESP_DTYPE_I16, true}, "scales must be"},
    };
    struct esp_config c;
    struct esp_quant q;
    esp_error err;

    (void)state;
    read_quant(&c, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        test_refused(prove(&q, &c, &bad[i].s, NULL, &err), ESP_EFORMAT, &err, bad[i].part);
        assert_non_null(strstr(err.message, "q.safetensors: quantized tensor"));
    }
}

static void test_mismatched_tensors(void **state)
{
    struct esp_st_tensor w = tensor("P.weight", ESP_DTYPE_U32, 8, 128),
                         s = tensor("P.scales", ESP_DTYPE_F16, 8, 16),
                         b = tensor("P.biases", ESP_DTYPE_F16, 8, 16);
    const struct esp_st_tensor *const wsb[3] = {&w, &s, &b}, *const no_scales[3] = {&w, NULL, NULL};
    struct esp_warnings warnings = {.n = 0};
    struct esp_config c;
    struct esp_quant q;
    esp_error err;

    (void)state;
    read_quant(&c, "quantization", "{\"bits\":4,\"P\":false}");
    test_ok(esp_quant_from_tensors(&q, &c, "P", wsb, 1024, &warnings, &err), &err);
    assert_int_equal(warnings.n, 1);
    assert_non_null(strstr(warnings.text[0], "not quantized"));
    esp_warnings_free(&warnings);
    test_refused(esp_quant_from_tensors(&q, &c, "P", no_scales, 1024, NULL, &err), ESP_EFORMAT, &err,
                 "no scales");
    b.dtype = ESP_DTYPE_BF16;
    test_refused(esp_quant_from_tensors(&q, &c, "P", wsb, 1024, NULL, &err), ESP_EFORMAT, &err, "'P.biases'");
    b.dtype = ESP_DTYPE_F16;
    b.shape[1] = 15;
    test_refused(esp_quant_from_tensors(&q, &c, "P", wsb, 1024, NULL, &err), ESP_EFORMAT, &err, "'P.biases'");
    s.shape[0] = 7;
    test_refused(esp_quant_from_tensors(&q, &c, "P", wsb, 1024, NULL, &err), ESP_EFORMAT, &err,
                 "leading dimensions");
    w.dtype = ESP_DTYPE_U8;
    test_refused(esp_quant_from_tensors(&q, &c, "P", wsb, 1024, NULL, &err), ESP_EFORMAT, &err,
                 "must be U32");
    w.dtype = ESP_DTYPE_F8_E4M3;
    test_refused(esp_quant_from_tensors(&q, &c, "P", wsb, 1024, NULL, &err), ESP_EUNSUPPORTED, &err,
                 "F8_E4M3");
    esp_config_free(&c);
}

static void test_trellis(void **state)
{
    struct esp_st_tensor w = tensor("P.weight", ESP_DTYPE_U32, 8, 96),
                         s = tensor("P.scales", ESP_DTYPE_F16, 8, 0);
    const struct esp_st_tensor *const wsb[3] = {&w, &s, NULL};
    struct esp_config c;
    struct esp_quant q;
    esp_error err;

    (void)state;
    read_quant(&c, "quantization", "{\"bits\":3,\"group_size\":256,\"mode\":\"trellis\"}");
    test_ok(esp_quant_from_tensors(&q, &c, "P", wsb, 1024, NULL, &err), &err);
    assert_int_equal(q.mode, ESP_QUANT_TRELLIS);
    assert_int_equal(q.bits, 3);
    s.shape[0] = 9;
    test_refused(esp_quant_from_tensors(&q, &c, "P", wsb, 1024, NULL, &err), ESP_EFORMAT, &err,
                 "one scale a row");
    esp_config_free(&c);
    read_quant(&c, NULL, NULL);
    test_refused(esp_quant_from_tensors(&q, &c, "P", wsb, 1024, NULL, &err), ESP_EFORMAT, &err,
                 "mode trellis");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_every_legal_pair_from_tensors),
        cmocka_unit_test(test_float_modes_from_tensors),
        cmocka_unit_test(test_illegal_tensors),
        cmocka_unit_test(test_mismatched_tensors),
        cmocka_unit_test(test_trellis),
    };

    return cmocka_run_group_tests(tests, open_file, close_file);
}
