/*
 * Stored cases of the field about quantizing: groups that are constant, zero, tiny or with an outlier through
 * the trellis codes (46; affine codes in affine_test.c, weights that are not finite in work_test.c), sizes
 * that fit no group, block or basis (47), and heads that are tied or not wherever the config says so (48).
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "espalier/espalier.h"
#include "espalier/quantize.h"
#include "formats/trellis.h"
#include "io/checkpoint.h"
#include "io/names.h"
#include "quantize/encode_matrix.h"
#include "quantize/files.h"
#include "support/modelfile.h"

/* ---- 46 ---- */

static double power(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

/* The 64 values four times over are a row of one block. */
static void trellis_block(struct esp_encoder *e, const char *id, const float w[256], uint32_t k,
                          uint32_t axis)
{
    static float m[256 * 256]; /* along the outputs: 256 of them with one input */
    uint8_t codes[32 * ESP_TRELLIS_BITS_MAX];
    uint16_t scale = 0x7e00;
    float back[256], error[256];
    struct esp_trellis_report rep;
    struct esp_weight q = {.format = esp_trellis_format(k),
                           .scale_type = ESP_SCALE_F16,
                           .axis = (uint8_t)axis,
                           .n_out = axis ? 1 : 256,
                           .n_in = axis ? 256 : 1,
                           .codes = codes,
                           .scales = (const uint8_t *)&scale};
    struct esp_trellis_job job = {.w = m,
                                  .n_out = q.n_out,
                                  .n_in = q.n_in,
                                  .opts = {.k = k, .axis = axis, .scale = ESP_TRELLIS_SCALE_ROW},
                                  .codes = codes,
                                  .scales = &scale};
    esp_error err;

    memcpy(m, w, 256 * sizeof *w);
    test_ok(esp_trellis_quantize(e, &job, &rep, &err), &err);
    assert_true(isfinite(esp_f16_to_f32(scale)));
    test_ok(esp_weight_layout(&q, id, &err), &err);
    esp_trellis_decode_stored(&q, 0, 0, 256, back);
    for (int i = 0; i < 256; i++) {
        assert_true(isfinite(back[i]));
        error[i] = back[i] - w[i];
    }
    if (strcmp(id, "qb-zeros") == 0)
        assert_true(power(back, 256) == 0);
    else if (strcmp(id, "qb-tiny") == 0)
        for (int i = 0; i < 256; i++)
            assert_true(fabsf(error[i]) <= 1e-29f);
    else if (!(power(error, 256) < (k < 3 ? 0.9 : 0.5) * power(w, 256))) /* never worse than leaving it out */
        fail_msg("%s, k %u: error %g of %g", id, k, power(error, 256), power(w, 256));
}

static void test_case_46_trellis_blocks(void **state)
{
    json_t *top = test_json("tests/data/cases/quant_blocks.json"), *cases = json_object_get(top, "cases"), *c;
    struct esp_encoder *e;
    struct esp_pool *pool;
    size_t i, tried = 0;
    esp_error err;

    (void)state;
    test_ok(esp_pool_create(&pool, 1, &err), &err);
    test_ok(esp_encoder_create(&e, pool, esp_cpu_best(), &err), &err);
    json_array_foreach(cases, i, c)
    {
        const json_t *values = json_object_get(c, "values");
        float w[256];

        assert_int_equal(json_array_size(values), 64);
        for (size_t k = 0; k < 256; k++)
            w[k] = (float)json_number_value(json_array_get(values, k % 64));
        for (uint32_t k = 1; k <= ESP_TRELLIS_BITS_MAX; k++)
            for (uint32_t axis = 0; axis < 2; axis++)
                trellis_block(e, json_string_value(json_object_get(c, "id")), w, k, axis);
        tried++;
    }
    assert_int_equal(tried, 4);
    json_decref(top);
    esp_encoder_destroy(e);
    esp_pool_destroy(pool);
}

/* ---- models ---- */

enum { N_TOK = 48 };

/* KL of the model in out against the one in `from`, and that both predict something. */
static double distance(const char *from, const char *out, uint32_t vocab)
{
    const esp_compare_opts o = {.window = N_TOK, .threads = 1};
    esp_comparison c;
    int32_t ids[N_TOK];
    esp_error err;

    mf_tokens(ids, N_TOK, vocab, 3);
    test_ok(esp_compare(from, &out, 1, ids, N_TOK, &o, &c, &err), &err);
    assert_true(fabs(exp(c.other_nll) / vocab - 1) > 1e-6); /* equal likelihoods would give the vocabulary */
    return c.kl_mean;
}

static const char *folder_for(const char *name)
{
    static char path[1024];

    snprintf(path, sizeof path, "%s/%s", test_tmpdir(), name);
    return path;
}

/* ---- 47 ---- */

struct listed {
    uint32_t kept, coded; /* MLP matrices in the report */
};

static void count(void *user, const esp_quantize_tensor *t)
{
    struct listed *l = user;

    if (!strstr(t->name, "mlp."))
        return;
    if (strcmp(t->method, "keep") == 0) {
        assert_non_null(t->why);
        assert_non_null(strstr(t->why, "size is no multiple of"));
        l->kept++;
    } else {
        l->coded++;
    }
}

/* Matrices that are kept have the source's bytes. */
static void same_bytes(const char *from, const char *out, const char *part, uint32_t wanted)
{
    struct esp_checkpoint *a, *b;
    uint32_t n = 0;
    esp_error err;

    test_ok(esp_checkpoint_open(&a, from, &err), &err);
    test_ok(esp_checkpoint_open(&b, out, &err), &err);
    for (uint32_t i = 0; i < a->main.n_tensor; i++) {
        const struct esp_st_tensor *x = a->main.tensor[i], *y;

        if (!strstr(x->name, part))
            continue;
        y = esp_checkpoint_find(b, x->name);
        assert_non_null(y);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
        n++;
    }
    assert_int_equal(n, wanted);
    esp_checkpoint_close(a);
    esp_checkpoint_close(b);
}

static void odd_width(uint32_t ffn, const char *method, uint32_t kept)
{
    struct naive_shape s = mf_shape();
    const esp_quantize_opts o = {.method = method,
                                 .bits = 4,
                                 .calib_tokens = 1024,
                                 .group = 128,
                                 .fold = ESP_FOLD_OFF,
                                 .no_eval = true,
                                 .threads = 1};
    struct listed l = {0, 0};
    esp_quantize_report rep;
    struct mf_model m;
    char from[1024], out[1024];
    esp_error err;

    s.vocab = 4096; /* of the tokenizer below */
    s.ffn = ffn;
    mf_make(&m, &s, false, 5);
    snprintf(from, sizeof from, "%s", mf_write(&m, &(struct mf_form){.layout = MF_HF}));
    snprintf(out, sizeof out, "%.1000s/tokenizer.json", from);
    test_ok(esp_file_copy(out, test_path("models/demo/tokenizer.json"), &err), &err);
    snprintf(out, sizeof out, "%s", folder_for("out"));
    test_ok(esp_quantize(from, out, &o, &rep, count, &l, &err), &err);
    assert_int_equal(l.kept, kept);
    assert_int_equal(l.coded, 3 * s.n_layer - kept);
    assert_true(rep.n_kept_for_size >= kept);
    if (kept == 3 * s.n_layer)
        same_bytes(from, out, "mlp.", kept);
    else
        same_bytes(from, out, "mlp.down_proj", kept);
    assert_true(distance(from, out, s.vocab) < 0.2);
    mf_free(&m);
}

/*
 * Inputs of 4304, 130, 33 and 1, outputs of 1. Groups: down_proj's inputs fit none, the others' 128 do.
 * Blocks of 256: neither 128 inputs nor such outputs fit.
 */
static void test_case_47_odd_sizes(void **state)
{
    static const uint32_t widths[] = {4304, 130, 33, 1};

    (void)state;
    for (size_t i = 0; i < 4; i++)
        odd_width(widths[i], "rtn", 4);
    odd_width(33, "gptq", 4);
    odd_width(33, "trellis", 12);
}

/* A hidden size without a Hadamard matrix: the fold is refused when asked for, left out when not. */
static void test_case_47_no_basis(void **state)
{
    struct naive_shape s = mf_shape();
    esp_quantize_opts o = {.method = "rtn", .bits = 8, .group = 32, .no_eval = true, .threads = 1};
    esp_quantize_report rep;
    struct mf_model m;
    char from[1024], out[1024];
    esp_error err;

    (void)state;
    s.hidden = 7 * 32;
    mf_make(&m, &s, false, 5);
    snprintf(from, sizeof from, "%s", mf_write(&m, &(struct mf_form){.layout = MF_HF}));
    snprintf(out, sizeof out, "%s", folder_for("out"));
    o.fold = ESP_FOLD_ON;
    test_refused(esp_quantize(from, out, &o, NULL, NULL, NULL, &err), ESP_EUNSUPPORTED, &err, "12 * 2^m");
    o.fold = ESP_FOLD_AUTO;
    test_ok(esp_quantize(from, out, &o, &rep, NULL, NULL, &err), &err);
    assert_false(rep.folded);
    assert_true(distance(from, out, s.vocab) < 0.01);
    mf_free(&m);
}

/* ---- 48 ---- */

static void flag_below_only(json_t *config, json_t *text)
{
    json_object_set(text, "tie_word_embeddings", json_object_get(config, "tie_word_embeddings"));
    json_object_del(config, "tie_word_embeddings");
}

/* Quantize, reload, compare; whether the result has a head of its own. */
static void head_case(struct mf_model *m, const struct mf_form *form, esp_fold_mode fold, bool wants_head)
{
    const esp_quantize_opts o = {
        .method = "rtn", .bits = 8, .group = 32, .fold = fold, .no_eval = true, .threads = 1};
    struct esp_checkpoint *ck;
    struct esp_names names;
    esp_quantize_report rep;
    char from[1024], out[1024];
    esp_error err;

    snprintf(from, sizeof from, "%s", mf_write(m, form));
    snprintf(out, sizeof out, "%s", folder_for("out"));
    test_ok(esp_quantize(from, out, &o, &rep, NULL, NULL, &err), &err);
    assert_int_equal(rep.untied_bytes > 0, m->tied && fold == ESP_FOLD_ON);
    test_ok(esp_checkpoint_open(&ck, out, &err), &err);
    test_ok(esp_names_resolve(&names, ck, &err), &err);
    assert_int_equal(names.tied, !wants_head);
    assert_int_equal(names.set[ESP_PART_HEAD] != NULL, wants_head);
    assert_true(distance(from, out, m->net.shape.vocab) < 0.01);
    esp_checkpoint_close(ck);
}

static void test_case_48_heads(void **state)
{
    const esp_quantize_opts o = {.method = "rtn", .bits = 8, .group = 32, .no_eval = true, .threads = 1};
    const struct naive_shape s = mf_shape();
    struct mf_model tied, own;
    struct mf_tensor *head;
    esp_error err;

    (void)state;
    mf_make(&tied, &s, true, 6);
    mf_make(&own, &s, false, 6);
    head = mf_find(&tied, "lm_head.weight");
    memcpy(head->data, tied.net.embed, sizeof *head->data * head->n_out * head->n_in);
    for (int below = 0; below < 2; below++) {
        struct mf_form f = {.layout = MF_HF, .patch = below ? flag_below_only : NULL};

        head_case(&tied, &f, ESP_FOLD_OFF, false);
        head_case(&tied, &f, ESP_FOLD_ON, true); /* the final gain lies between embedding and head */
        head_case(&own, &f, ESP_FOLD_OFF, true);
        head_case(&own, &f, ESP_FOLD_ON, true);
        f.head = MF_HEAD_LEFT_OVER; /* a copy of the embedding in a tied model: not kept twice */
        head_case(&tied, &f, ESP_FOLD_OFF, false);
        f.head = MF_HEAD_MISSING;
        test_refused(esp_quantize(mf_write(&own, &f), folder_for("none"), &o, NULL, NULL, NULL, &err),
                     ESP_EFORMAT, &err, "lm_head");
    }
    mf_free(&tied);
    mf_free(&own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_case_46_trellis_blocks),
        cmocka_unit_test(test_case_47_odd_sizes),
        cmocka_unit_test(test_case_47_no_basis),
        cmocka_unit_test(test_case_48_heads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
