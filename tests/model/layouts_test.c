/*
 * One model in every form in which checkpoints come gives the same logits: prefixes, types, shards, converted
 * norms and convolutions, tied and untied heads, an MTP block beside the trunk. Traps 1 (norm shift), 14
 * (convolution taps), 25 (head), and two without number: layer_types ignored, MTP block taken for a layer.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/espalier.h"
#include "support/compare.h"

enum { N = 40, MAX_LOGIT = N * 256 };

static int32_t ids[N];
static double want[MAX_LOGIT], twisted[MAX_LOGIT];
static float got[MAX_LOGIT], other[MAX_LOGIT];

/* Make the shape's model and its expected logits; how many there are. */
static size_t make(struct mf_model *m, const struct naive_shape *s, bool tied, uint64_t seed)
{
    assert_true(s->vocab <= 256);
    mf_make(m, s, tied, seed);
    mf_tokens(ids, N, s->vocab, seed);
    naive_forward(&m->net, NAIVE_RIGHT, ids, NULL, N, want);
    return (size_t)N * s->vocab;
}

static void shows(const struct mf_model *m, enum naive_twist twist, size_t n)
{
    naive_forward(&m->net, twist, ids, NULL, N, twisted);
    assert_true(compare_twist(twisted, want, n) > 30 * COMPARE_TOLERANCE);
}

static void close_to_naive(const char *folder, size_t n)
{
    compare_logits(folder, ids, N, got);
    if (!(compare_max(got, want, n) <= COMPARE_TOLERANCE))
        fail_msg("%g deviations from the naive pass", compare_max(got, want, n));
}

static void trap_1_norm_shift(void **state)
{
    static const enum esp_dtype types[] = {ESP_DTYPE_BF16, ESP_DTYPE_F16, ESP_DTYPE_F32};
    struct naive_shape s = mf_shape();
    struct mf_model m;
    size_t n = make(&m, &s, false, 1);
    bool first = true;

    (void)state;
    shows(&m, NAIVE_NORM_TWICE, n);
    shows(&m, NAIVE_NORM_NEVER, n);
    for (int layout = 0; layout < MF_LAYOUT_COUNT; layout++)
        for (int type = 0; type < 3; type++)
            for (int mtp = 0; mtp < 2; mtp++) { /* raw MTP tensors beside a converted trunk decide nothing */
                const char *dir = mf_write(&m, &(struct mf_form){.layout = (enum mf_layout)layout,
                                                                 .dtype = types[type],
                                                                 .n_shard = (uint32_t)type,
                                                                 .mtp = mtp});

                close_to_naive(dir, n);
                if (type == 0 && first)
                    memcpy(other, got, sizeof *got * n);
                if (type == 0) /* equal values in equal types: the same bits, whatever the names */
                    assert_memory_equal(got, other, sizeof *got * n);
                first = false;
            }
    mf_free(&m);
}

static void says_gamma(json_t *config, json_t *text)
{
    (void)text;
    json_object_set_new(config, "norm_weights", json_string("gamma"));
}

/* Without a convolution nothing in the tensors tells raw from converted: prefix, or a key in the config,
 * decides. */
static void trap_1_without_convolution(void **state)
{
    struct naive_shape s = mf_shape();
    struct mf_model m;
    const char *dir;
    size_t n;

    (void)state;
    s.n_layer = 2;
    s.full[0] = s.full[1] = 1;
    n = make(&m, &s, false, 2);
    shows(&m, NAIVE_NORM_TWICE, n);
    for (int layout = 0; layout < MF_LAYOUT_COUNT; layout++) {
        dir = mf_write(&m, &(struct mf_form){.layout = (enum mf_layout)layout});
        close_to_naive(dir, n);
    }
    for (uint32_t i = 0; i < m.n_tensor; i++) /* gamma under a raw prefix, as the config says */
        for (uint32_t j = 0; m.tensor[i].kind == MF_NORM && !m.tensor[i].mtp && j < m.tensor[i].n_out; j++)
            m.tensor[i].data[j] += 1;
    dir = mf_write(&m, &(struct mf_form){.layout = MF_HF, .patch = says_gamma});
    close_to_naive(dir, n);
    mf_free(&m);
}

static void sharded_is_single(void **state)
{
    struct naive_shape s = mf_shape();
    struct mf_model m;
    size_t n = make(&m, &s, true, 3);

    (void)state;
    compare_logits(mf_write(&m, &(struct mf_form){0}), ids, N, other);
    for (uint32_t shards = 1; shards <= 7; shards += 3) {
        compare_logits(mf_write(&m, &(struct mf_form){.n_shard = shards}), ids, N, got);
        assert_memory_equal(got, other, sizeof *got * n);
    }
    mf_free(&m);
}

/*
 * Impulse response: a model whose only memory is one convolution. With a single tap j set, what token t
 * writes shows at token t + 3 - j and nowhere else but through the state; the state is switched off by beta =
 * 0 for the past (q reads only what was written now, since g decays all else to nothing).
 */
static void trap_14_convolution_taps(void **state)
{
    (void)state;
    for (int layout = 0; layout < MF_LAYOUT_COUNT; layout++)
        for (uint32_t tap = 0; tap < 4; tap++) {
            struct naive_shape s = mf_shape();
            int32_t a[8] = {5, 5, 5, 5, 5, 5, 5, 5}, b[8] = {5, 5, 9, 5, 5, 5, 5, 5};
            const char *dir;
            struct mf_model m;

            s.n_layer = 1;
            mf_make(&m, &s, false, 4);
            for (uint32_t i = 0; i < mf_find(&m, "layers.0.linear_attn.conv1d.weight")->n_out * 4; i++)
                if (i % 4 != tap)
                    m.net.layer[0].conv[i] = 0;
            for (uint32_t h = 0; h < s.vh; h++) {
                m.net.layer[0].a_log[h] = 8; /* g below -300: the past underflows to nothing */
                m.net.layer[0].dt_bias[h] = 4;
            }
            dir = mf_write(&m, &(struct mf_form){.layout = (enum mf_layout)layout});
            compare_logits(dir, a, 8, got);
            compare_logits(dir, b, 8, other);
            for (uint32_t t = 0; t < 8; t++) { /* token 2 itself, and the one that sees it through the tap */
                bool differs = memcmp(got + t * s.vocab, other + t * s.vocab, sizeof *got * s.vocab) != 0;

                assert_int_equal(differs, t == 2 || t == 2 + 3 - tap);
            }
            mf_free(&m);
        }
}

static void trap_14_taps_in_order(void **state)
{
    struct naive_shape s = mf_shape();
    struct mf_model m;
    size_t n = make(&m, &s, false, 5);

    (void)state;
    shows(&m, NAIVE_TAPS_REVERSED, n);
    compare_all(mf_write(&m, &(struct mf_form){.layout = MF_MLX}), &m, N, COMPARE_TOLERANCE);
    compare_all(mf_write(&m, &(struct mf_form){.layout = MF_BARE}), &m, N, COMPARE_TOLERANCE);
    mf_free(&m);
}

static void says_tied(json_t *config, json_t *text)
{
    json_object_set_new(config, "tie_word_embeddings", json_true());
    json_object_set_new(text, "tie_word_embeddings", json_true());
}

static void says_tied_below_only(json_t *config, json_t *text)
{
    json_object_set_new(config, "tie_word_embeddings", json_false());
    json_object_set_new(text, "tie_word_embeddings", json_true());
}

static void says_tied_on_top_only(json_t *config, json_t *text)
{
    json_object_set_new(config, "tie_word_embeddings", json_true());
    json_object_set_new(text, "tie_word_embeddings", json_false());
}

static void says_nothing(json_t *config, json_t *text)
{
    json_object_del(config, "tie_word_embeddings");
    json_object_del(text, "tie_word_embeddings");
}

/* Authority: a head in the file, then the config's top level, then its text part. */
static void trap_25_head(void **state)
{
    struct naive_shape s = mf_shape();
    struct mf_model tied, untied;
    const char *dir;
    size_t n;

    (void)state;
    for (int layout = 0; layout < MF_LAYOUT_COUNT; layout++) {
        struct mf_form f = {.layout = (enum mf_layout)layout};

        n = make(&untied, &s, false, 6);
        close_to_naive(mf_write(&untied, &f), n);
        f.patch = says_nothing;
        close_to_naive(mf_write(&untied, &f), n);
        f.patch = says_tied; /* a head that differs from the embedding is used; somebody ought to know */
        dir = mf_write(&untied, &f);
        close_to_naive(dir, n);
        assert_int_equal(compare_warnings(dir, "lm_head"), 1);
        f.patch = NULL;
        f.head = MF_HEAD_MISSING;
        compare_refused(mf_write(&untied, &f), ESP_EFORMAT, "lm_head");
        mf_free(&untied);

        f.head = MF_HEAD_AS_MODEL;
        n = make(&tied, &s, true, 6);
        close_to_naive(mf_write(&tied, &f), n);
        f.patch = says_nothing;
        compare_refused(mf_write(&tied, &f), ESP_EFORMAT, "lm_head");
        mf_free(&tied);
    }
    n = make(&tied, &s, true, 6);
    close_to_naive(mf_write(&tied, &(struct mf_form){.patch = says_tied_on_top_only}), n);
    compare_refused(mf_write(&tied, &(struct mf_form){.patch = says_tied_below_only}), ESP_EFORMAT,
                    "lm_head");
    mf_free(&tied);
}

/* A tied model with a head left in the file: the same bytes as the embedding, or of a shape that is no head.
 */
static void trap_25_left_over_head(void **state)
{
    struct naive_shape s = mf_shape();
    struct mf_model m;
    struct mf_tensor *head;
    size_t n = make(&m, &s, true, 7);

    (void)state;
    head = mf_find(&m, "lm_head.weight");
    memcpy(head->data, m.net.embed, sizeof *head->data * head->n_out * head->n_in);
    close_to_naive(mf_write(&m, &(struct mf_form){.head = MF_HEAD_LEFT_OVER}), n);
    head->n_out = 1;
    close_to_naive(mf_write(&m, &(struct mf_form){.head = MF_HEAD_LEFT_OVER}), n);
    mf_free(&m);
}

static void wrong_interval(json_t *config, json_t *text)
{
    (void)config;
    json_object_set_new(text, "full_attention_interval", json_integer(2));
}

static void interval_alone(json_t *config, json_t *text)
{
    (void)config;
    json_object_del(text, "layer_types");
    json_object_set_new(text, "full_attention_interval", json_integer(3));
}

static void layer_types_win(void **state)
{
    struct naive_shape s = mf_shape();
    struct mf_model m;
    size_t n;

    (void)state;
    memcpy(s.full, (uint8_t[]){1, 0, 0, 1}, 4);
    n = make(&m, &s, false, 8);
    close_to_naive(mf_write(&m, &(struct mf_form){.patch = wrong_interval}), n);
    mf_free(&m);
    s.n_layer = 6;
    memcpy(s.full, (uint8_t[]){0, 0, 1, 0, 0, 1}, 6);
    n = make(&m, &s, false, 9);
    close_to_naive(mf_write(&m, &(struct mf_form){.patch = interval_alone}), n);
    mf_free(&m);
}

static void mtp_is_no_layer(void **state)
{
    struct naive_shape s = mf_shape();
    struct mf_model m;
    size_t n = make(&m, &s, true, 10);
    esp_model_info info, plain;
    esp_model *model;
    esp_error err;

    (void)state;
    test_ok(esp_model_open(&model, mf_write(&m, &(struct mf_form){0}), NULL, &err), &err);
    esp_model_describe(model, &plain);
    esp_model_close(model);
    test_ok(esp_model_open(&model, mf_write(&m, &(struct mf_form){.mtp = true}), NULL, &err), &err);
    esp_model_describe(model, &info);
    esp_model_close(model);
    assert_int_equal(info.n_layer, 4);
    assert_int_equal(info.n_full_layer, 1);
    assert_int_equal(info.n_params, plain.n_params);
    assert_true(info.has_mtp);
    assert_false(plain.has_mtp);
    close_to_naive(mf_write(&m, &(struct mf_form){.mtp = true, .n_shard = 2}), n);
    mf_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trap_1_norm_shift),      cmocka_unit_test(trap_1_without_convolution),
        cmocka_unit_test(sharded_is_single),      cmocka_unit_test(trap_14_convolution_taps),
        cmocka_unit_test(trap_14_taps_in_order),  cmocka_unit_test(trap_25_head),
        cmocka_unit_test(trap_25_left_over_head), cmocka_unit_test(layer_types_win),
        cmocka_unit_test(mtp_is_no_layer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
