/*
 * Prefixes, norm layout, tied heads: on checkpoints written for each case. Numbers are those of the list of
 * known traps and of the requirements from the field.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/model_files.h"

#include <stdbool.h>

#include "io/checkpoint.h"
#include "io/names.h"

enum { ZERO = 0, ONE = 0x3f80, MAX_TENSORS = 16 };

/* A one-layer trunk in one spelling, plus what a test adds. */
struct model {
    const char *dir;
    char text[MAX_TENSORS][96];
    struct mf_tensor t[MAX_TENSORS];
    size_t n;
    json_t *config;
};

static void add(struct model *m, const char *prefix, const char *name, const uint64_t dims[4], uint16_t value)
{
    struct mf_tensor *t = &m->t[m->n];

    assert_true(m->n < MAX_TENSORS);
    snprintf(m->text[m->n], sizeof m->text[0], "%s%s", prefix, name);
    m->n++;
    memcpy(t->dims, dims, sizeof t->dims);
    t->value = value;
}

static const uint64_t vec[4] = {4}, mat[4] = {4096, 2}, conv_raw[4] = {8, 1, 4}, conv_mlx[4] = {8, 4, 1},
                      conv_one[4] = {8, 1, 1};

static struct model trunk(const char *prefix, const uint64_t *conv, uint16_t norm)
{
    struct model m = {.dir = test_tmpdir(), .config = mf_config()};

    add(&m, prefix, "embed_tokens.weight", mat, ONE);
    add(&m, prefix, "layers.0.input_layernorm.weight", vec, norm);
    add(&m, prefix, "norm.weight", vec, norm);
    if (conv)
        add(&m, prefix, "layers.0.linear_attn.conv1d.weight", conv, ZERO);
    return m;
}

static esp_status resolve_with(struct model *m, const char *key, const char *value, struct esp_names *n,
                               struct esp_checkpoint **c, esp_error *err)
{
    esp_status s;

    mf_write_json(m->dir, "config.json", m->config);
    json_decref(m->config);
    m->config = NULL;
    for (size_t i = 0; i < m->n; i++)
        m->t[i].name = m->text[i]; /* only now: models are copied while they are built */
    mf_write(m->dir, "model.safetensors", m->t, m->n, key, value);
    s = esp_checkpoint_open(c, m->dir, err);
    if (s == ESP_OK)
        s = esp_names_resolve(n, *c, err);
    return s;
}

/* Resolve and close; the number of warnings. */
static uint32_t resolve(struct model *m, struct esp_names *n)
{
    struct esp_checkpoint *c = NULL;
    esp_error err;
    uint32_t warnings;

    test_ok(resolve_with(m, NULL, NULL, n, &c, &err), &err);
    warnings = c->warnings.n;
    esp_checkpoint_close(c);
    return warnings;
}

static void refused(struct model *m, const char *part)
{
    struct esp_checkpoint *c = NULL;
    struct esp_names n;
    esp_error err;

    test_refused(resolve_with(m, NULL, NULL, &n, &c, &err), ESP_EFORMAT, &err, part);
    esp_checkpoint_close(c);
}

static void test_demo(void **state)
{
    struct esp_checkpoint *c = NULL;
    const struct esp_st_tensor *t = NULL;
    struct esp_names n;
    esp_error err;

    (void)state;
    test_ok(esp_checkpoint_open(&c, test_path("models/demo"), &err), &err);
    test_ok(esp_names_resolve(&n, c, &err), &err);
    assert_string_equal(n.prefix[ESP_PART_TEXT], "model.language_model.");
    assert_string_equal(n.prefix[ESP_PART_MTP], "mtp.");
    assert_null(n.set[ESP_PART_VISION]);
    assert_int_equal(n.conv, ESP_CONV_C1K);
    assert_false(n.norms_shifted);
    assert_false(n.mtp_norms_shifted);
    assert_true(n.tied);
    test_ok(esp_names_need(&t, &n, ESP_PART_TEXT, &err, "layers.%d.mlp.up_proj.weight", 3), &err);
    assert_int_equal(t->shape[0], 1024);
    assert_int_equal(t->shape[1], 256);
    assert_non_null(esp_names_find(&n, ESP_PART_MTP, "fc.weight"));
    test_refused(esp_names_need(&t, &n, ESP_PART_TEXT, &err, "layers.%d.mlp.up_proj.weight", 8),
                 ESP_ENOTFOUND, &err, "model.language_model.layers.8.mlp.up_proj.weight");
    test_refused(esp_names_need(&t, &n, ESP_PART_VISION, &err, "x"), ESP_ENOTFOUND, &err,
                 "no vision tensors");
    test_refused(esp_names_need(&t, &n, ESP_PART_TEXT, &err, "%0600d", 1), ESP_ENOTFOUND, &err, "missing");
    assert_null(esp_names_find(&n, ESP_PART_TEXT, "%0600d", 1));
    assert_int_equal(c->warnings.n, 0);
    esp_checkpoint_close(c);
}

static void test_trap_25_untied_model(void **state)
{
    struct esp_checkpoint *c = NULL;
    struct esp_names n;
    esp_error err;

    (void)state;
    test_ok(esp_checkpoint_open(&c, test_path("models/tiny-text"), &err), &err);
    test_ok(esp_names_resolve(&n, c, &err), &err);
    assert_false(n.tied);
    assert_non_null(esp_names_find(&n, ESP_PART_HEAD, "weight"));
    assert_null(n.set[ESP_PART_MTP]);
    assert_int_equal(c->warnings.n, 0);
    esp_checkpoint_close(c);
}

static void test_prefixes(void **state)
{
    static const struct {
        const char *text, *head, *vision, *mtp;
    } sets[] = {
        {"model.language_model.", "lm_head.", "model.visual.", "mtp."},
        {"language_model.model.", "language_model.lm_head.", "vision_tower.", "language_model.mtp."},
        {"model.", "model.language_model.lm_head.", "language_model.vision_tower.", "model.mtp."},
        {"", "lm_head.", "visual.", "mtp."},
    };

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct model m = trunk(sets[i].text, conv_raw, ZERO);
        struct esp_names n;

        add(&m, sets[i].head, "weight", mat, ZERO);
        add(&m, sets[i].vision, "patch_embed.proj.weight", mat, ZERO);
        add(&m, sets[i].mtp, "fc.weight", mat, ZERO);
        mf_set(m.config, "tie_word_embeddings", "false");
        mf_set(m.config, "text_config.tie_word_embeddings", "false");
        (void)resolve(&m, &n);
        assert_string_equal(n.prefix[ESP_PART_TEXT], sets[i].text);
        assert_string_equal(n.prefix[ESP_PART_HEAD], sets[i].head);
        assert_string_equal(n.prefix[ESP_PART_VISION], sets[i].vision);
        assert_string_equal(n.prefix[ESP_PART_MTP], sets[i].mtp);
    }
}

static void test_two_prefixes_and_none(void **state)
{
    struct model m = trunk("model.", conv_raw, ZERO), none = {.dir = test_tmpdir(), .config = mf_config()};
    struct esp_names n;

    (void)state;
    add(&m, "model.language_model.", "embed_tokens.weight", mat, ZERO);
    assert_int_equal(resolve(&m, &n), 2); /* the other prefix; and no convolution under this one */
    assert_string_equal(n.prefix[ESP_PART_TEXT], "model.language_model.");
    add(&none, "transformer.", "wte.weight", mat, ZERO);
    refused(&none, "no text model");
}

/* Trap 1: every mixture of raw and converted trunk with raw and converted MTP layer. */
static void test_trap_1_norm_shift(void **state)
{
    static const struct {
        const char *text;
        const uint64_t *conv;
        uint16_t norm;
        const char *mtp;
        uint16_t mtp_norm;
        bool shifted, mtp_shifted;
    } mix[] = {
        {"model.language_model.", conv_raw, ZERO, "mtp.", ZERO, false, false},
        {"language_model.model.", conv_mlx, ONE, "mtp.", ZERO, true,
         false}, /* the mixture that gets shifted twice */
        {"language_model.model.", conv_mlx, ONE, "language_model.mtp.", ONE, true, true},
        {"language_model.model.", conv_raw, ZERO, "mtp.", ZERO, false, false}, /* renamed, not converted */
        {"model.", conv_mlx, ONE, "model.mtp.", ZERO, true, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof mix / sizeof mix[0]; i++) {
        struct model m = trunk(mix[i].text, mix[i].conv, mix[i].norm);
        struct esp_names n;

        add(&m, mix[i].mtp, "fc.weight", mat, ZERO);
        add(&m, mix[i].mtp, "layers.0.input_layernorm.weight", vec, mix[i].mtp_norm);
        assert_int_equal(resolve(&m, &n), 0);
        assert_int_equal(n.norms_shifted, mix[i].shifted);
        assert_int_equal(n.mtp_norms_shifted, mix[i].mtp_shifted);
        assert_string_equal(n.norms_why, "conv1d shape");
    }
}

static void test_trap_1_guard_warns(void **state)
{
    struct model m = trunk("language_model.model.", conv_mlx, ONE);
    struct esp_names n;

    (void)state;
    add(&m, "mtp.", "fc.weight", mat, ZERO);
    add(&m, "mtp.", "layers.0.input_layernorm.weight", vec, ONE); /* already shifted, under the raw prefix */
    assert_int_equal(resolve(&m, &n), 1);
    assert_false(n.mtp_norms_shifted);
}

static void test_trap_1_side_file(void **state)
{
    struct model m = trunk("model.language_model.", conv_raw, ZERO);
    const struct mf_tensor bare[2] = {{"fc.weight", {4, 8}, 0},
                                      {"layers.0.input_layernorm.weight", {4}, ONE}};
    struct esp_checkpoint *c = NULL;
    struct esp_names n;
    esp_error err;

    (void)state;
    mf_write(m.dir, "mtp.safetensors", bare, 2, NULL, NULL);
    assert_int_equal(resolve(&m, &n), 0);
    assert_string_equal(n.prefix[ESP_PART_MTP], "");
    assert_true(n.mtp_norms_shifted);
    assert_false(n.norms_shifted);
    m = (struct model){.dir = test_tmpdir()};
    mf_write(m.dir, "model.safetensors", bare, 2, NULL, NULL);
    test_ok(esp_checkpoint_open_tensors(&c, m.dir, &err), &err);
    test_ok(esp_names_resolve_drafter(&n, c, &err), &err);
    assert_true(n.mtp_norms_shifted);
    assert_non_null(esp_names_find(&n, ESP_PART_MTP, "fc.weight"));
    assert_null(esp_names_find(&n, ESP_PART_TEXT, "fc.weight"));
    esp_checkpoint_close(c);
}

static void test_trap_1_flags_win(void **state)
{
    struct model m = trunk("model.language_model.", conv_raw, ONE),
                 k = trunk("model.language_model.", conv_mlx, ZERO), bad = trunk("model.", conv_raw, ZERO),
                 both = trunk("model.", conv_raw, ZERO);
    struct esp_checkpoint *c = NULL;
    struct esp_names n;
    esp_error err;

    (void)state;
    test_ok(resolve_with(&m, "espalier.norm_weights", "gamma", &n, &c, &err), &err);
    assert_true(n.norms_shifted);
    assert_int_equal(n.conv, ESP_CONV_C1K);
    assert_string_equal(n.norms_why, "flag");
    esp_checkpoint_close(c);
    mf_set(k.config, "norm_weights", "\"gamma-1\"");
    (void)resolve(&k, &n);
    assert_false(n.norms_shifted);
    test_refused(resolve_with(&bad, "espalier.norm_weights", "raw", &n, &c, &err), ESP_EFORMAT, &err,
                 "'raw'");
    esp_checkpoint_close(c);
    mf_set(both.config, "norm_weights", "\"gamma-1\"");
    test_refused(resolve_with(&both, "espalier.norm_weights", "gamma", &n, &c, &err), ESP_EFORMAT, &err,
                 "in one place");
    esp_checkpoint_close(c);
}

static void test_trap_14_conv_layout(void **state)
{
    static const uint64_t flat[4] = {8, 4}, cube[4] = {8, 4, 4};
    struct model raw = trunk("model.", conv_raw, ZERO), mlx = trunk("model.", conv_mlx, ONE),
                 one = trunk("model.", conv_one, ONE),
                 mlx_one = trunk("language_model.model.", conv_one, ONE),
                 mixed = trunk("model.", conv_raw, ZERO), two = trunk("model.", flat, ZERO),
                 odd = trunk("model.", cube, ZERO);
    struct esp_names n;

    (void)state;
    assert_int_equal(resolve(&raw, &n), 0);
    assert_int_equal(n.conv, ESP_CONV_C1K);
    assert_int_equal(resolve(&mlx, &n), 0);
    assert_int_equal(n.conv, ESP_CONV_CK1);
    assert_int_equal(resolve(&one, &n), 1); /* one tap tells nothing: by prefix, with a warning */
    assert_false(n.norms_shifted);
    assert_int_equal(resolve(&mlx_one, &n), 1);
    assert_true(n.norms_shifted);
    add(&mixed, "model.", "layers.1.linear_attn.conv1d.weight", conv_mlx, ZERO);
    refused(&mixed, "different layouts");
    refused(&two, "[8,4]; [channels,1,taps]");
    refused(&odd, "[8,4,4]; [channels,1,taps]");
}

/* Field case 48 and trap 25: flags at the top, in text_config, both, none; with and without a head. */
static void test_case_48_flags(void **state)
{
    static const struct {
        const char *top, *text;
        bool head; /* with a head that differs from the embedding */
        bool loads, tied;
        uint32_t warnings;
    } cases[] = {
        {"true", "true", false, true, true, 0},     {"false", "false", true, true, false, 0},
        {"false", "false", false, false, false, 0}, {NULL, "true", false, true, true, 0},
        {NULL, "false", false, false, false, 0},    {NULL, NULL, false, false, false, 0},
        {NULL, NULL, true, true, false, 0},         {"true", "false", false, true, true, 1},
        {"false", "true", false, false, false, 1},  {"true", "true", true, true, false, 1},
        {"false", "true", true, true, false, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model m = trunk("model.language_model.", conv_raw, ZERO);
        struct esp_names n;

        mf_set(m.config, "tie_word_embeddings", cases[i].top);
        mf_set(m.config, "text_config.tie_word_embeddings", cases[i].text);
        if (cases[i].head)
            add(&m, "lm_head.", "weight", mat, ZERO);
        if (!cases[i].loads) {
            refused(&m, "no lm_head tensor");
            continue;
        }
        assert_int_equal(resolve(&m, &n), cases[i].warnings);
        assert_int_equal(n.tied, cases[i].tied);
        assert_int_equal(n.set[ESP_PART_HEAD] != NULL, !cases[i].tied);
    }
}

static void test_case_48_left_over_heads(void **state)
{
    static const uint64_t small[4] = {17, 2};
    struct model copy = trunk("model.", conv_raw, ZERO), wrong = trunk("model.", conv_raw, ZERO);
    struct esp_names n;

    (void)state;
    add(&copy, "lm_head.", "weight", mat, ONE); /* the embedding's bytes */
    assert_int_equal(resolve(&copy, &n), 0);
    assert_true(n.tied);
    assert_null(n.set[ESP_PART_HEAD]);
    add(&wrong, "lm_head.", "weight", small, ZERO);
    assert_int_equal(resolve(&wrong, &n), 1);
    assert_true(n.tied);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo),
        cmocka_unit_test(test_trap_25_untied_model),
        cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_two_prefixes_and_none),
        cmocka_unit_test(test_trap_1_norm_shift),
        cmocka_unit_test(test_trap_1_guard_warns),
        cmocka_unit_test(test_trap_1_side_file),
        cmocka_unit_test(test_trap_1_flags_win),
        cmocka_unit_test(test_trap_14_conv_layout),
        cmocka_unit_test(test_case_48_flags),
        cmocka_unit_test(test_case_48_left_over_heads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
