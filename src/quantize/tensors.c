/*
 * One tensor: from the source's bytes to the planes of its new format. A finished tensor is a file of its
 * planes and then a small JSON file; the JSON file's existence is the journal entry, so a kill between the
 * two repeats the tensor.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/job.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "quantize/files.h"
#include "quantize/overlay.h"

static const double DAMPING = 0.01; /* of the mean diagonal, as GPTQ has it */

char *esp_job_part(const struct esp_quant_job *j, uint32_t row, const char *suffix)
{
    char name[64];

    snprintf(name, sizeof name, "t-%05u.%s", row, suffix);
    return esp_path_join(j->state, name);
}

static enum esp_format_id dense(enum esp_dtype d)
{
    return d == ESP_DTYPE_F32 ? ESP_FORMAT_F32 : d == ESP_DTYPE_F16 ? ESP_FORMAT_F16 : ESP_FORMAT_BF16;
}

esp_status esp_job_values(struct esp_quant_job *j, const struct esp_plan_row *r, float **out, esp_error *err)
{
    struct esp_weight w = {.codes = r->t->data};
    const uint64_t n = esp_st_elements(r->t);
    float *x;
    esp_status s;

    ESP_TRY(esp_st_check(r->t, err));
    if (!esp_dtype_is_weight_float(r->t->dtype))
        return esp_fail(err, ESP_EUNSUPPORTED, "tensor %s is %s; BF16, F16 and F32 can be changed",
                        r->t->name, esp_dtype_name(r->t->dtype));
    w.format = dense(r->t->dtype);
    w.n_in = r->t->n_dim ? (uint32_t)r->t->shape[r->t->n_dim - 1] : 1;
    w.n_out = w.n_in ? (uint32_t)(n / w.n_in) : 0;
    ESP_TRY(esp_weight_layout(&w, r->t->name, err));
    ESP_TRY(esp_weight_decode(&x, &w, r->t->name, err));
    s = esp_fold_apply(&j->fold, r->part, r->name, x, w.n_out, w.n_in, err);
    if (s != ESP_OK) {
        esp_free(x);
        return s;
    }
    *out = x;
    return ESP_OK;
}

/* ---- statistics ---- */

void esp_job_drop_statistics(struct esp_quant_job *j)
{
    esp_free(j->h);
    esp_free(j->order);
    esp_ldlq_destroy(j->ldlq);
    esp_ldlq_destroy(j->ldlq_group);
    esp_ldlq_destroy(j->ldlq_order);
    j->h = NULL;
    j->order = NULL;
    j->ldlq = j->ldlq_group = j->ldlq_order = NULL;
}

static esp_status into_basis(struct esp_quant_job *j, const struct esp_plan_row *r, esp_error *err)
{
    char norm[96];
    float *gain;
    esp_status s;

    if (r->site == ESP_SITE_OUT || r->site == ESP_SITE_DOWN)
        return ESP_OK;
    if (j->fold.on) {
        esp_hessian_basis(j->h, j->h_n, &j->fold.basis);
        return ESP_OK;
    }
    snprintf(norm, sizeof norm, "layers.%u.%s", r->layer,
             r->site == ESP_SITE_MIXER ? "input_layernorm.weight" : "post_attention_layernorm.weight");
    gain = esp_alloc_array(j->h_n, sizeof *gain);
    if (!gain)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", norm);
    s = esp_fold_gain(&j->fold, norm, gain, err);
    if (s == ESP_OK)
        esp_hessian_gain(j->h, j->h_n, gain);
    esp_free(gain);
    return s;
}

esp_status esp_job_statistics(struct esp_quant_job *j, const struct esp_plan_row *r, esp_error *err)
{
    esp_status s;

    if (j->h && j->h_layer == r->layer && j->h_site == r->site)
        return ESP_OK;
    esp_job_drop_statistics(j);
    j->h_n = r->n_in;
    j->h_layer = r->layer;
    j->h_site = r->site;
    ESP_TRY(esp_hessian_load(&j->h, j->stats, r->layer, r->site, r->n_in, err));
    s = into_basis(j, r, err);
    if (s != ESP_OK)
        esp_job_drop_statistics(j);
    return s;
}

/* The factor over inputs in natural order. */
static esp_status factor(struct esp_quant_job *j, uint32_t group, const struct esp_ldlq **out, esp_error *err)
{
    const struct esp_ldlq_opts o = {.group = group, .damping = DAMPING, .pool = j->pool};
    struct esp_ldlq **have = group == 1 ? &j->ldlq : &j->ldlq_group;

    if (*have && (*have)->group != group) { /* one site may have matrices along both axes */
        esp_ldlq_destroy(*have);
        *have = NULL;
    }
    if (!*have)
        ESP_TRY(esp_ldlq_create(have, j->h, j->h_n, &o, err));
    *out = *have;
    return ESP_OK;
}

static uint32_t feedback_group(const struct esp_quant_job *j, uint32_t axis)
{
    const uint32_t asked = j->opts->feedback_group, least = axis ? ESP_TRELLIS_GROUP_AXIS1_MIN : 1;

    if (!asked)
        return axis ? ESP_TRELLIS_GROUP_AXIS1 : ESP_TRELLIS_GROUP_AXIS0;
    return asked < least ? least : asked;
}

/* The factor over inputs by activity. */
static esp_status factor_ordered(struct esp_quant_job *j, const struct esp_ldlq **out, esp_error *err)
{
    const struct esp_ldlq_opts o = {.group = 1, .damping = DAMPING, .pool = j->pool};
    const size_t n = j->h_n;
    float *p;
    esp_status s;

    if (!j->ldlq_order) {
        if (!j->order)
            j->order = esp_alloc_array(n, sizeof *j->order);
        p = esp_alloc_array(n * n, sizeof *p);
        if (!p || !j->order) {
            esp_free(p);
            return esp_fail(err, ESP_ENOMEM, "order of %zu inputs: out of memory", n);
        }
        s = esp_order_by_activity(j->order, j->h, j->h_n, err);
        for (size_t a = 0; s == ESP_OK && a < n; a++)
            for (size_t b = 0; b < n; b++)
                p[a * n + b] = j->h[j->order[a] * n + j->order[b]];
        if (s == ESP_OK)
            s = esp_ldlq_create(&j->ldlq_order, p, j->h_n, &o, err);
        esp_free(p);
        if (s != ESP_OK)
            return s;
    }
    *out = j->ldlq_order;
    return ESP_OK;
}

/* ---- coding ---- */

static esp_status code_affine(struct esp_quant_job *j, const struct esp_choice *c, const float *w,
                              uint32_t n_out, uint32_t n_in, struct esp_coded *out, esp_error *err)
{
    struct esp_weight like = esp_choice_weight(c, n_out, n_in);
    struct esp_affine_job a = {.w = w, .like = &like, .pool = j->pool};
    const size_t codes = n_out * like.row_bytes, scales = n_out * like.scale_row_bytes;

    if (c->method == ESP_METHOD_GPTQ && j->opts->act_order) {
        ESP_TRY(factor_ordered(j, &a.ldlq, err));
        a.order = j->order;
    } else if (c->method == ESP_METHOD_GPTQ) {
        ESP_TRY(factor(j, 1, &a.ldlq, err));
    }
    out->bytes = codes + 2 * scales;
    out->data = esp_alloc(out->bytes);
    if (!out->data)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu bytes of codes", out->bytes);
    a.codes = out->data;
    a.scales = out->data + codes;
    a.biases = a.scales + scales;
    ESP_TRY(esp_affine_quantize(&a, err));
    like.codes = a.codes;
    like.scales = a.scales;
    like.biases = a.biases;
    return j->h && j->h_n == n_in ? esp_proxy_loss(&out->loss, w, &like, j->h, j->pool, &j->kernels, err)
                                  : ESP_OK;
}

static bool trellis_progress(void *user, uint64_t done, uint64_t total)
{
    const struct esp_quant_job *j = user;

    (void)done;
    (void)total;
    return !j->progress.fn || j->progress.fn(j->progress.user, "coding", NULL, -1, 0);
}

static esp_status code_trellis(struct esp_quant_job *j, const struct esp_choice *c, const float *w,
                               uint32_t n_out, uint32_t n_in, struct esp_coded *out, esp_error *err)
{
    const uint32_t rows = c->axis ? n_out : n_in, cols = c->axis ? n_in : n_out;
    const size_t codes = (size_t)rows * cols * c->bits / 8;
    struct esp_trellis_job t = {.w = w, .n_out = n_out, .n_in = n_in};
    struct esp_trellis_report report;

    if (!j->encoder) {
        ESP_TRY(esp_encoder_create(&j->encoder, j->pool, j->model->level, err));
        ESP_TRY(esp_encoder_on(j->encoder, j->dev, err));
    }
    ESP_TRY(factor(j, feedback_group(j, c->axis), &t.ldlq, err));
    t.opts = (struct esp_trellis_opts){.k = c->bits,
                                       .axis = c->axis,
                                       .scale = j->scale,
                                       .feedback = j->opts->no_feedback ? ESP_TRELLIS_FEEDBACK_OFF
                                                                        : ESP_TRELLIS_FEEDBACK_ON,
                                       .want_power = true,
                                       .progress = trellis_progress,
                                       .user = j};
    out->bytes = codes + (size_t)rows * 2;
    out->data = esp_alloc(out->bytes);
    if (!out->data)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu bytes of codes", out->bytes);
    t.codes = out->data;
    t.scales = (uint16_t *)(void *)(out->data + codes);
    ESP_TRY(esp_trellis_quantize(j->encoder, &t, &report, err));
    out->loss = (struct esp_loss){report.loss, report.power};
    return ESP_OK;
}

esp_status esp_job_code(struct esp_quant_job *j, const struct esp_choice *choice, const float *w,
                        uint32_t n_out, uint32_t n_in, const char *name, struct esp_coded *out,
                        esp_error *err)
{
    esp_status s;

    memset(out, 0, sizeof *out);
    s = choice->method == ESP_METHOD_TRELLIS ? code_trellis(j, choice, w, n_out, n_in, out, err)
                                             : code_affine(j, choice, w, n_out, n_in, out, err);
    if (s == ESP_OK)
        return ESP_OK;
    esp_free(out->data);
    out->data = NULL;
    return esp_fail_in(err, s, "tensor %s", name);
}

static esp_status cast(const struct esp_plan_row *r, const float *x, struct esp_coded *out, esp_error *err)
{
    const enum esp_dtype d = r->choice.dtype == ESP_DTYPE_NONE ? r->t->dtype : r->choice.dtype;
    const size_t n = (size_t)esp_st_elements(r->t);
    struct esp_weight like = {.format = dense(d), .n_out = 1, .n_in = (uint32_t)n};

    memset(out, 0, sizeof *out);
    out->bytes = n * esp_dtype_size(d);
    out->data = esp_alloc(out->bytes);
    if (!out->data)
        return esp_fail(err, ESP_ENOMEM, "tensor %s: no memory for %zu bytes", r->t->name, out->bytes);
    esp_format_get(like.format)->encode(&like, x, n, out->data, NULL, NULL);
    return ESP_OK;
}

/* Signs as affine codes: 1 is code 1, -1 is code 0 of scale 2 and bias -1. */
static esp_status code_signs(const struct esp_plan_row *r, const float *x, struct esp_coded *out,
                             esp_error *err)
{
    static const uint16_t two = 0x4000, minus_one = 0xbf80; /* bf16 */
    const size_t n = (size_t)r->n_out * r->n_in, codes = n / 4, scales = n / r->choice.group;

    out->bytes = codes + 4 * scales;
    out->data = esp_alloc(out->bytes);
    if (!out->data)
        return esp_fail(err, ESP_ENOMEM, "tensor %s: no memory for %zu bytes", r->t->name, out->bytes);
    for (size_t i = 0; i < n; i++)
        out->data[i / 4] |= (uint8_t)((x[i] > 0) << (i % 4 * 2));
    for (size_t i = 0; i < scales; i++) {
        memcpy(out->data + codes + 2 * i, &two, 2);
        memcpy(out->data + codes + 2 * (scales + i), &minus_one, 2);
    }
    return ESP_OK;
}

/* A tensor that the fold makes for the MTP layer. */
static esp_status make_row(struct esp_quant_job *j, const struct esp_plan_row *r, struct esp_coded *out,
                           esp_error *err)
{
    float *x = esp_alloc_array((size_t)esp_st_elements(r->t), sizeof *x);
    esp_status s;

    memset(out, 0, sizeof *out);
    if (!x)
        return esp_fail(err, ESP_ENOMEM, "tensor %s: out of memory", r->t->name);
    esp_fold_make(&j->fold, r->made_as, x);
    s = r->choice.method == ESP_METHOD_KEEP ? cast(r, x, out, err) : code_signs(r, x, out, err);
    esp_free(x);
    return s;
}

/* ---- the journal ---- */

static esp_status keep_part(const struct esp_quant_job *j, uint32_t row, const struct esp_coded *c,
                            esp_error *err)
{
    char *bin = esp_job_part(j, row, "bin"), *json = esp_job_part(j, row, "json");
    char text[160];
    esp_status s = bin && json ? ESP_OK : esp_fail(err, ESP_ENOMEM, "%s: out of memory", j->state);
    const int n = snprintf(text, sizeof text, "{\"bytes\": %zu, \"loss\": %.17g}\n", c->bytes,
                           c->loss.power > 0 ? c->loss.loss / c->loss.power : -1.0);

    if (s == ESP_OK)
        s = esp_file_write(bin, &(struct esp_part_bytes){c->data, c->bytes}, 1, err);
    if (s == ESP_OK)
        s = esp_file_write(json, &(struct esp_part_bytes){text, (size_t)n}, 1, err);
    esp_free(bin);
    esp_free(json);
    return s;
}

/* Whether the row is done; takes its loss from the journal. */
static bool done_before(const struct esp_quant_job *j, uint32_t row)
{
    char *json = esp_job_part(j, row, "json");
    json_t *e = NULL;
    bool done = false;

    if (json && esp_file_exists(json) && esp_json_load(&e, json, 4096, 0, NULL) == ESP_OK) {
        j->plan.rows[row].loss = json_number_value(json_object_get(e, "loss"));
        done = (uint64_t)json_integer_value(json_object_get(e, "bytes")) ==
               esp_plan_row_bytes(&j->plan.rows[row]);
        json_decref(e);
    }
    esp_free(json);
    return done;
}

static esp_status compute_row(struct esp_quant_job *j, uint32_t row, esp_error *err)
{
    struct esp_plan_row *r = &j->plan.rows[row];
    struct esp_coded c = {0};
    float *x = NULL;
    esp_status s;

    if (r->made && r->part == ESP_PART_MTP) {
        s = make_row(j, r, &c, err);
        if (s == ESP_OK)
            s = keep_part(j, row, &c, err);
        esp_free(c.data);
        return s;
    }
    ESP_TRY(esp_job_values(j, r, &x, err));
    if (r->choice.method == ESP_METHOD_KEEP) {
        s = cast(r, x, &c, err);
    } else {
        s = ESP_OK;
        if (r->layer_matrix && r->choice.method != ESP_METHOD_RTN)
            s = esp_job_statistics(j, r, err);
        else
            esp_job_drop_statistics(j);
        if (s == ESP_OK)
            s = esp_job_code(j, &r->choice, x, r->n_out, r->n_in, r->t->name, &c, err);
    }
    if (s == ESP_OK)
        s = keep_part(j, row, &c, err);
    if (s == ESP_OK && c.loss.power > 0)
        r->loss = c.loss.loss / c.loss.power;
    esp_free(c.data);
    esp_free(x);
    return s;
}

struct turn {
    const struct esp_plan_row *r;
    uint32_t i;
};

/* By layer and site, so that each site's statistics are loaded and factored once. */
static int by_site(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;

    if (x->r->layer != y->r->layer)
        return x->r->layer < y->r->layer ? -1 : 1;
    if (x->r->layer_matrix != y->r->layer_matrix)
        return x->r->layer_matrix ? 1 : -1;
    if (x->r->site != y->r->site)
        return x->r->site < y->r->site ? -1 : 1;
    return x->i < y->i ? -1 : 1;
}

esp_status esp_job_compute(struct esp_quant_job *j, esp_error *err)
{
    struct turn *turns = esp_alloc_array(j->plan.n, sizeof *turns);
    uint64_t total = 0, done = 0;
    esp_status s = ESP_OK;

    if (!turns)
        return esp_fail(err, ESP_ENOMEM, "quantize: out of memory");
    for (uint32_t i = 0; i < j->plan.n; i++) {
        turns[i] = (struct turn){&j->plan.rows[i], i};
        total += j->plan.rows[i].computed ? esp_st_elements(j->plan.rows[i].t) : 0;
    }
    qsort(turns, j->plan.n, sizeof *turns, by_site);
    for (uint32_t k = 0; s == ESP_OK && k < j->plan.n; k++) {
        const struct esp_plan_row *r = turns[k].r;

        if (!r->computed)
            continue;
        s = esp_progress_tell(&j->progress, "coding", r->stored, (double)done, (double)total, err);
        if (s == ESP_OK && !done_before(j, turns[k].i))
            s = compute_row(j, turns[k].i, err);
        done += esp_st_elements(r->t);
    }
    esp_job_drop_statistics(j);
    esp_free(turns);
    return s;
}
