/*
 * The order of things: check everything that can be refused, measure inputs, choose bits, code every tensor
 * into the work folder, write, compare. Each stage leaves files in the work folder that a resumed run finds.
 *
 * SPDX-License-Identifier: MIT
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "quantize/blas.h"
#include "quantize/compare.h"
#include "quantize/files.h"
#include "quantize/job.h"

enum { DEFAULT_CALIB_TOKENS = 65536 };
static const uint64_t DEFAULT_MEMORY = (uint64_t)2 << 30;

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- refusals ---- */

static esp_status check_bits(const struct esp_quant_job *j, esp_error *err)
{
    const uint32_t b = j->bits, g = j->group;

    if (j->method == ESP_METHOD_TRELLIS ? b < 1 || b > 8
                                        : b != 2 && b != 3 && b != 4 && b != 5 && b != 6 && b != 8)
        return esp_fail(err, ESP_EINVAL, "%u bits; affine codes have 2 3 4 5 6 8, trellis codes 1 to 8", b);
    if (g != 32 && g != 64 && g != 128)
        return esp_fail(err, ESP_EINVAL, "group %u; 32, 64 and 128 are possible", g);
    if (j->opts->target_bpw != 0 && !(j->opts->target_bpw >= 1 && j->opts->target_bpw <= 16))
        return esp_fail(err, ESP_EINVAL, "target of %g bits per weight; 1 to 16 are possible",
                        j->opts->target_bpw);
    return ESP_OK;
}

static esp_status parse_scale(enum esp_trellis_scale *out, const char *name, esp_error *err)
{
    static const char *const names[] = {"fixed", "rms", "tensor", "row"};

    *out = ESP_TRELLIS_SCALE_ROW;
    if (!name)
        return ESP_OK;
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum esp_trellis_scale)i;
            return ESP_OK;
        }
    return esp_fail(err, ESP_EINVAL, "row scales '%s'; fixed, rms, tensor and row are possible", name);
}

static esp_status read_opts(struct esp_quant_job *j, esp_error *err)
{
    const esp_quantize_opts *o = j->opts;
    uint32_t index;
    bool cuda;

    ESP_TRY(esp_method_parse(&j->method, o->method ? o->method : "gptq", err));
    if (j->method == ESP_METHOD_KEEP)
        return esp_fail(err, ESP_EINVAL,
                        "method 'keep' is for single tensors of a recipe; rtn, gptq, trellis are possible");
    j->bits = o->bits ? o->bits : j->method == ESP_METHOD_TRELLIS ? 3 : 4;
    j->group = o->group ? o->group : 64;
    j->seed = o->seed ? o->seed : 1;
    ESP_TRY(parse_scale(&j->scale, o->scale, err));
    if (!o->device || strcmp(o->device, "auto") != 0)
        ESP_TRY(esp_engine_device_name(o->device, &cuda, &index, err));
    if (o->feedback_group > 256 || (o->feedback_group & (o->feedback_group - 1)))
        return esp_fail(err, ESP_EINVAL,
                        "feedback in groups of %u inputs; powers of two up to 256 are possible",
                        o->feedback_group);
    return check_bits(j, err);
}

static esp_status check_source(const struct esp_quant_job *j, esp_error *err)
{
    const struct esp_net *net = j->model->net;

    for (uint32_t i = 0; i < net->n_weight; i++)
        if (net->weights[i]->format != ESP_FORMAT_F32 && net->weights[i]->format != ESP_FORMAT_BF16 &&
            net->weights[i]->format != ESP_FORMAT_F16)
            return esp_fail(err, ESP_EUNSUPPORTED,
                            "%s is quantized already (%s); start from its 16-bit source", j->source,
                            esp_format_get(net->weights[i]->format)->name);
    return ESP_OK;
}

/* Every weight is finite; refused now and not after an hour. */
static esp_status check_finite(struct esp_quant_job *j, esp_error *err)
{
    for (uint32_t i = 0; i < j->plan.n; i++) {
        const struct esp_plan_row *r = &j->plan.rows[i];
        const struct esp_fold fold = j->fold;
        float *x;
        esp_status s;

        if (r->made || !esp_dtype_is_weight_float(r->t->dtype))
            continue;
        ESP_TRY(esp_progress_tell(&j->progress, "checking", r->stored, i, j->plan.n, err));
        j->fold.on = false;
        s = esp_job_values(j, r, &x, err);
        j->fold = fold;
        if (s != ESP_OK)
            return s;
        esp_free(x);
    }
    return ESP_OK;
}

static esp_status check_disk(const struct esp_quant_job *j, esp_error *err)
{
    uint64_t need = 64 << 20, have = 0;

    for (uint32_t i = 0; i < j->plan.n; i++) {
        const struct esp_plan_row *r = &j->plan.rows[i];

        need += esp_plan_row_bytes(r) * (r->computed ? 2 : 1);
    }
    for (uint32_t l = 0; l < j->model->net->config.n_layer; l++)
        for (int k = 0; k < ESP_SITE_COUNT; k++) {
            const uint64_t n = esp_site_width(&j->model->net->config, l, (enum esp_site)k);

            need += n * n * 4;
        }
    ESP_TRY(esp_disk_free(&have, j->state, err));
    return have >= need ? ESP_OK
                        : esp_fail(err, ESP_ENOFIT,
                                   "%s: %" PRIu64 " bytes are free, the work folder may need %" PRIu64,
                                   j->work, have, need);
}

/* ---- the work folder ---- */

static bool needs_text(const struct esp_quant_job *j)
{
    for (uint32_t i = 0; i < j->plan.n; i++)
        if (j->plan.rows[i].choice.method == ESP_METHOD_GPTQ ||
            j->plan.rows[i].choice.method == ESP_METHOD_TRELLIS)
            return true;
    return j->opts->target_bpw > 0;
}

/* Everything that the output depends on, as text. */
static json_t *identity(const struct esp_quant_job *j)
{
    const struct esp_token_lists *t = &j->measure;
    const esp_quantize_opts *o = j->opts;
    uint64_t source = 0;
    char hash[40], text[40];
    json_t *keep = json_array(), *recipe = esp_plan_recipe(&j->plan, j->fold.on, j->seed);

    for (uint32_t i = 0; i < j->plan.n; i++) {
        const struct esp_plan_row *r = &j->plan.rows[i];

        if (r->made)
            continue;
        source = esp_hash(r->t->name, strlen(r->t->name), source);
        source = esp_hash(r->t->data, r->t->bytes, source);
    }
    snprintf(hash, sizeof hash, "%016" PRIx64, source);
    snprintf(text, sizeof text, "%016" PRIx64,
             t->n ? esp_hash(t->ids, t->start[t->n] * sizeof *t->ids, t->n) : 0);
    for (size_t i = 0; i < o->n_keep; i++)
        json_array_append_new(keep, json_string(o->keep[i]));
    return json_pack("{s:s,s:s,s:s,s:I,s:f,s:I,s:I,s:b,s:b,s:b,s:i,s:i,s:o,s:o}", "source", hash, "text",
                     text, "method", esp_method_name(j->method), "bits", (json_int_t)j->bits, "target_bpw",
                     o->target_bpw, "group", (json_int_t)j->group, "seed", (json_int_t)j->seed, "fold",
                     (int)j->fold.on, "act_order", (int)o->act_order, "no_feedback", (int)o->no_feedback,
                     "feedback_group", (int)o->feedback_group, "scale", (int)j->scale, "keep", keep, "plan",
                     recipe);
}

static esp_status compare_identity(const struct esp_quant_job *j, const char *path, const json_t *mine,
                                   esp_error *err)
{
    json_t *theirs;
    const char *key;
    json_t *v;
    esp_status s = ESP_OK;

    ESP_TRY(esp_json_load(&theirs, path, ESP_LIMIT_CONFIG_BYTES, 0, err));
    json_object_foreach((json_t *)(uintptr_t)mine, key, v)
    {
        if (!json_equal(v, json_object_get(theirs, key))) {
            s = esp_fail(err, ESP_ESTATE, "%s was begun with another %s; give the same options, or remove it",
                         j->work, key);
            break;
        }
    }
    json_decref(theirs);
    return s;
}

/* New folders, and what the run is in path. */
static esp_status make_work(struct esp_quant_job *j, const char *path, const json_t *mine, esp_error *err)
{
    char *text;
    esp_status s;

    ESP_TRY(esp_folder_make(j->work, err));
    ESP_TRY(esp_folder_make(j->state, err));
    ESP_TRY(check_disk(j, err));
    text = json_dumps(mine, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", path);
    s = esp_file_write(path, &(struct esp_part_bytes){text, strlen(text)}, 1, err);
    (free)(text); /* jansson's own memory */
    return s;
}

static esp_status begin_work(struct esp_quant_job *j, esp_error *err)
{
    char *path = esp_path_join(j->state, "job.json");
    json_t *mine = identity(j);
    esp_status s = path && mine ? ESP_OK : esp_fail(err, ESP_ENOMEM, "%s: out of memory", j->work);

    if (s == ESP_OK && esp_file_exists(j->work) && !j->opts->resume)
        s = esp_fail(err, ESP_ESTATE, "%s exists: an interrupted run; go on with resume, or remove it",
                     j->work);
    if (s == ESP_OK)
        s = esp_folder_sweep(j->work, err);
    if (s == ESP_OK)
        s = esp_folder_sweep(j->state, err);
    if (s == ESP_OK)
        s = esp_file_exists(path) ? compare_identity(j, path, mine, err) : make_work(j, path, mine, err);
    json_decref(mine);
    esp_free(path);
    return s;
}

/* A folder of statistics belongs to one source and one text; what is found of others is refused. */
static esp_status begin_stats(struct esp_quant_job *j, esp_error *err)
{
    json_t *all = identity(j), *mine = NULL, *theirs = NULL;
    char *path = esp_path_join(j->stats, "stats.json"), *text = NULL;
    esp_status s = esp_folder_make(j->stats, err);

    if (all)
        mine = json_pack("{s:O,s:O}", "source", json_object_get(all, "source"), "text",
                         json_object_get(all, "text"));
    text = mine ? json_dumps(mine, JSON_COMPACT) : NULL;
    if (s == ESP_OK && (!path || !text))
        s = esp_fail(err, ESP_ENOMEM, "%s: out of memory", j->stats);
    if (s == ESP_OK)
        s = esp_folder_sweep(j->stats, err);
    if (s == ESP_OK && !esp_file_exists(path)) {
        s = esp_file_write(path, &(struct esp_part_bytes){text, strlen(text)}, 1, err);
    } else if (s == ESP_OK) {
        s = esp_json_load(&theirs, path, 65536, 0, err);
        if (s == ESP_OK && !json_equal(mine, theirs))
            s = esp_fail(err, ESP_ESTATE, "%s holds statistics of another model or text", j->stats);
    }
    (free)(text); /* jansson's own memory */
    json_decref(theirs);
    json_decref(mine);
    json_decref(all);
    esp_free(path);
    return s;
}

/* ---- stages ---- */

static esp_status open_source(struct esp_quant_job *j, esp_error *err)
{
    const esp_model_opts mo = {.threads = j->opts->threads};
    const struct esp_config *c;
    bool fold = j->opts->fold == ESP_FOLD_ON;

    ESP_TRY(esp_model_open(&j->model, j->source, &mo, err));
    c = &j->model->net->config;
    ESP_TRY(check_source(j, err));
    ESP_TRY(esp_names_resolve(&j->names, j->model->ck, err));
    /* It pays for trellis codes, and where no head has to be added for it: doc/quality.md. */
    if (j->opts->fold == ESP_FOLD_AUTO)
        fold = j->method == ESP_METHOD_TRELLIS && !j->names.tied && esp_basis_fits(c->hidden);
    ESP_TRY(esp_fold_open(&j->fold, c, j->model->src, j->names.mtp_norms_shifted, fold, j->seed, err));
    ESP_TRY(esp_pool_create(&j->pool, j->model->n_thread, err));
    esp_kernels_init(&j->kernels, j->model->level);
    return ESP_OK;
}

static esp_status make_plan(struct esp_quant_job *j, esp_error *err)
{
    const struct esp_plan_input in = {j->model->ck, &j->names, &j->fold, j->opts,
                                      j->method,    j->bits,   j->group};

    return esp_plan_make(&j->plan, &in, err);
}

static esp_status measure_inputs(struct esp_quant_job *j, esp_error *err)
{
    struct esp_runner runner;
    const struct esp_runner_opts ro = {
        .level = j->model->level, .threads = j->model->n_thread, .context = ESP_CALIB_LIST};
    struct esp_hessian_job h = {.runner = &runner,
                                .text = &j->measure,
                                .folder = j->stats,
                                .budget = (size_t)(j->opts->memory ? j->opts->memory : DEFAULT_MEMORY),
                                .threads = j->model->n_thread,
                                .level = j->model->level,
                                .progress = &j->progress};
    esp_status s;

    ESP_TRY(esp_runner_open(&runner, j->model->net, &ro, err));
    s = esp_hessian_measure(&h, err);
    esp_runner_close(&runner);
    return s;
}

static esp_status evaluate(struct esp_quant_job *j, esp_comparison *out, esp_error *err)
{
    const struct esp_runner_opts ro = {.level = j->model->level,
                                       .threads = j->model->n_thread,
                                       .context = ESP_CALIB_LIST,
                                       .max_tok = 128,
                                       .act_auto = true};
    const esp_model_opts mo = {.threads = j->opts->threads};
    struct esp_model *made = NULL;
    struct esp_runner base = {0}, other = {0};
    esp_status s = esp_model_open(&made, j->output, &mo, err);

    if (s == ESP_OK)
        s = esp_runner_open(&base, j->model->net, &ro, err);
    if (s == ESP_OK)
        s = esp_runner_open(&other, made->net, &ro, err);
    if (s == ESP_OK)
        s = esp_compare_run(
            &(struct esp_compare_job){&base, &other, 1, &j->held_out, &j->progress, "held-out text"}, out,
            err);
    esp_runner_close(&base);
    esp_runner_close(&other);
    esp_model_close(made);
    return s;
}

static bool has_trellis(const struct esp_quant_job *j)
{
    bool has = j->opts->target_bpw > 0 && j->method == ESP_METHOD_TRELLIS;

    for (uint32_t i = 0; i < j->plan.n; i++)
        has = has || j->plan.rows[i].choice.method == ESP_METHOD_TRELLIS;
    return has;
}

/* A device that can search, with the memory that it needs for that. */
static esp_status open_device(struct esp_dev **out, const char *name, esp_error *err)
{
    struct esp_dev *d;
    esp_status s;

    ESP_TRY(esp_engine_cuda(&d, name, err));
    *out = d;
    if (!d)
        return ESP_OK;
    s = d->ops->paths ? esp_encoder_try(d, err)
                      : esp_fail(err, ESP_EUNSUPPORTED, "device %s has no search for trellis codes", d->name);
    if (s == ESP_OK)
        return ESP_OK;
    d->ops->close(d);
    *out = NULL;
    return s;
}

/* What was named must be there now, not after the calibration; what "auto" finds is taken when it works. */
static esp_status choose_device(struct esp_quant_job *j, esp_error *err)
{
    const char *name = j->opts->device;

    if (!has_trellis(j))
        return ESP_OK;
    if (!name || strcmp(name, "auto") != 0)
        return open_device(&j->dev, name, err);
    if (open_device(&j->dev, "cuda", NULL) != ESP_OK)
        j->dev = NULL;
    return ESP_OK;
}

static void report_rows(const struct esp_quant_job *j, esp_quantize_report *rep, esp_quantize_tensor_fn visit,
                        void *user)
{
    uint64_t weights = 0;

    for (uint32_t i = 0; i < j->plan.n; i++) {
        const struct esp_plan_row *r = &j->plan.rows[i];
        const uint64_t bytes = esp_plan_row_bytes(r), n = esp_st_elements(r->t);

        rep->bytes += bytes;
        if (r->made && r->part == ESP_PART_HEAD)
            rep->untied_bytes = bytes;
        if (r->made)
            continue;
        rep->source_bytes += r->t->bytes;
        weights += n;
        if (r->choice.method != ESP_METHOD_KEEP) {
            rep->n_quantized++;
            rep->quantized_weights += n;
            rep->quantized_bytes += bytes;
        }
        rep->n_kept_for_size += r->why && strncmp(r->why, "size", 4) == 0;
        if (visit && (r->layer_matrix || r->choice.method != ESP_METHOD_KEEP)) {
            const esp_quantize_tensor t = {
                r->stored,      esp_method_name(r->choice.method),
                r->why,         r->layer,
                r->choice.bits, r->choice.method == ESP_METHOD_TRELLIS ? 256 : r->choice.group,
                r->choice.axis, n,
                bytes,          r->loss};

            visit(user, &t);
        }
    }
    rep->bpw =
        rep->quantized_weights ? 8.0 * (double)rep->quantized_bytes / (double)rep->quantized_weights : 0;
    rep->bpw_all = weights ? 8.0 * (double)rep->bytes / (double)weights : 0;
    rep->folded = j->fold.on;
    if (has_trellis(j))
        snprintf(rep->device, sizeof rep->device, "%s", j->dev ? j->dev->name : "cpu");
}

/* Say now rather than after the calibration that a library is missing. */
static esp_status check_blas(const struct esp_quant_job *j, esp_error *err)
{
    struct esp_blas b;

    if (!needs_text(j))
        return ESP_OK;
    ESP_TRY(esp_blas_open(&b, err));
    esp_blas_close(&b);
    return ESP_OK;
}

static esp_status run(struct esp_quant_job *j, esp_error *err)
{
    const esp_quantize_opts *o = j->opts;
    const uint32_t tokens = o->calib_tokens ? o->calib_tokens : DEFAULT_CALIB_TOKENS;

    ESP_TRY(read_opts(j, err));
    if (esp_file_exists(j->output))
        return esp_fail(err, ESP_ESTATE, "%s exists; choose another name or remove it", j->output);
    ESP_TRY(open_source(j, err));
    ESP_TRY(make_plan(j, err));
    ESP_TRY(check_blas(j, err));
    ESP_TRY(choose_device(j, err));
    if (needs_text(j) || !o->no_eval)
        ESP_TRY(esp_calibration_read(&j->measure, &j->held_out, j->model, o->calib, tokens, err));
    ESP_TRY(check_finite(j, err));
    ESP_TRY(begin_work(j, err));
    j->stats = o->stats ? o->stats : j->state;
    if (needs_text(j) && o->stats)
        ESP_TRY(begin_stats(j, err));
    if (needs_text(j))
        ESP_TRY(measure_inputs(j, err));
    if (o->target_bpw > 0)
        ESP_TRY(esp_job_allocate(j, err));
    ESP_TRY(esp_job_compute(j, err));
    return esp_job_write(j, err);
}

static void close_job(struct esp_quant_job *j)
{
    esp_job_drop_statistics(j);
    esp_encoder_destroy(j->encoder);
    if (j->dev)
        j->dev->ops->close(j->dev);
    esp_pool_destroy(j->pool);
    esp_plan_free(&j->plan);
    esp_fold_close(&j->fold);
    esp_token_lists_free(&j->measure);
    esp_token_lists_free(&j->held_out);
    esp_model_close(j->model);
    esp_free(j->work);
    esp_free(j->state);
    esp_free(j);
}

esp_status esp_quantize(const char *source, const char *output, const esp_quantize_opts *opts,
                        esp_quantize_report *report, esp_quantize_tensor_fn visit, void *visit_user,
                        esp_error *err)
{
    const double start = seconds_now();
    const size_t len = output ? strlen(output) : 0;
    struct esp_quant_job *j;
    esp_quantize_report rep = {0};
    esp_status s = ESP_OK;

    if (!source || !output || !opts || len == 0 || output[len - 1] == '/')
        return esp_fail(err, ESP_EINVAL,
                        "esp_quantize needs a source, an output without a final slash, and options");
    j = esp_alloc(sizeof *j);
    if (!j)
        return esp_fail(err, ESP_ENOMEM, "quantize: out of memory");
    j->opts = opts;
    j->source = source;
    j->output = output;
    j->progress = (struct esp_progress_to){opts->progress, opts->progress_user};
    j->work = esp_alloc(len + 6);
    if (j->work)
        snprintf(j->work, len + 6, "%s.work", output);
    j->state = j->work ? esp_path_join(j->work, "state") : NULL;
    if (!j->state)
        s = esp_fail(err, ESP_ENOMEM, "quantize: out of memory");
    if (s == ESP_OK)
        s = run(j, err);
    if (s == ESP_OK) {
        report_rows(j, &rep, visit, visit_user);
        if (!opts->no_eval) {
            s = evaluate(j, &rep.comparison, err);
            rep.compared = s == ESP_OK;
        }
        rep.seconds = seconds_now() - start;
        if (report)
            *report = rep;
    }
    close_job(j);
    return s;
}
