/*
 * quantize, convert, and perplexity --kl: flags in, progress with rate and time left while at work, a report
 * at the end.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/quantize.h"

#include "base/mem.h"

#include "program/model_find.h"
#include "program/output.h"
#include "program/session.h"

struct show {
    struct esp_progress p;
    char what[64];
};

/* One progress line a phase. */
static bool tell(void *user, const char *what, const char *item, double done, double total)
{
    struct show *s = user;

    if (done >= 0) {
        if (strcmp(s->what, what) != 0) {
            if (s->what[0])
                esp_progress_end(&s->p);
            snprintf(s->what, sizeof s->what, "%s", what);
            esp_progress_begin(&s->p, s->what, total, strcmp(what, "coding") == 0 ? "weights" : "steps");
        }
        esp_progress_update(&s->p, done);
        if (item)
            esp_say_detail("%s %s", what, item);
    }
    return !esp_interrupted();
}

static void show_end(struct show *s)
{
    if (s->what[0])
        esp_progress_end(&s->p);
    s->what[0] = 0;
}

/* ---- quantize ---- */

struct tensors {
    json_t *list; /* with --json */
    bool head;
};

static void visit(void *user, const esp_quantize_tensor *t)
{
    struct tensors *out = user;

    if (out->list) {
        json_t *e = json_pack("{s:s,s:s,s:I,s:I}", "name", t->name, "method", t->method, "weights",
                              (json_int_t)t->weights, "bytes", (json_int_t)t->bytes);

        if (t->why)
            json_object_set_new(e, "why", json_string(t->why));
        if (strcmp(t->method, "keep") != 0) {
            json_object_set_new(e, "bits", json_integer(t->bits));
            json_object_set_new(e, "group", json_integer(t->group));
        }
        if (t->loss >= 0)
            json_object_set_new(e, "loss", json_real(t->loss));
        json_array_append_new(out->list, e);
        return;
    }
    if (!out->head)
        esp_out_printf("%-60s %-8s %5s %10s %12s\n", "tensor", "method", "bits", "loss", "bytes");
    out->head = true;
    if (strcmp(t->method, "keep") == 0)
        esp_out_printf("%-60s %-8s %5s %10s %12llu  %s\n", t->name, t->method, "-", "-",
                       (unsigned long long)t->bytes, t->why ? t->why : "");
    else if (t->loss >= 0)
        esp_out_printf("%-60s %-8s %5u %10.3e %12llu\n", t->name, t->method, t->bits, t->loss,
                       (unsigned long long)t->bytes);
    else
        esp_out_printf("%-60s %-8s %5u %10s %12llu\n", t->name, t->method, t->bits, "-",
                       (unsigned long long)t->bytes);
}

static json_t *comparison_json(const esp_comparison *c)
{
    return json_pack("{s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "tokens", (json_int_t)c->tokens, "kl",
                     c->kl_mean, "kl_p50", c->kl_p50, "kl_p95", c->kl_p95, "kl_p99", c->kl_p99, "kl_max",
                     c->kl_max, "agreement", c->agreement, "base_ppl", exp(c->base_nll), "ppl",
                     exp(c->other_nll));
}

static void print_comparison(const esp_comparison *c)
{
    esp_out_printf("kl %.6f (p50 %.6f, p95 %.6f, p99 %.6f, max %.6f)\nagreement %.4f\nppl %.4f, of the base "
                   "%.4f, over %llu tokens\n",
                   c->kl_mean, c->kl_p50, c->kl_p95, c->kl_p99, c->kl_max, c->agreement, exp(c->other_nll),
                   exp(c->base_nll), (unsigned long long)c->tokens);
}

static void report_quantized(const esp_quantize_report *r, json_t *tensors)
{
    char a[32], b[32], c[32];

    if (esp_out_is_json()) {
        json_t *top = json_pack("{s:f,s:f,s:I,s:I,s:I,s:b,s:i,s:i,s:f,s:o}", "bpw", r->bpw, "bpw_all",
                                r->bpw_all, "bytes", (json_int_t)r->bytes, "source_bytes",
                                (json_int_t)r->source_bytes, "untied_bytes", (json_int_t)r->untied_bytes,
                                "folded", (int)r->folded, "quantized", (int)r->n_quantized, "kept_for_size",
                                (int)r->n_kept_for_size, "seconds", r->seconds, "tensors", tensors);

        if (r->device[0])
            json_object_set_new(top, "device", json_string(r->device));
        if (r->compared)
            json_object_set_new(top, "comparison", comparison_json(&r->comparison));
        esp_out_json(top);
        return;
    }
    esp_out_printf("%u matrices at %.3f bits a weight; whole model %.3f\nsize %s, source %s%s%s\n",
                   r->n_quantized, r->bpw, r->bpw_all, esp_format_bytes(a, sizeof a, (double)r->bytes),
                   esp_format_bytes(b, sizeof b, (double)r->source_bytes),
                   r->untied_bytes ? ", a head of its own takes " : "",
                   r->untied_bytes ? esp_format_bytes(c, sizeof c, (double)r->untied_bytes) : "");
    if (r->device[0])
        esp_out_printf("trellis codes searched on %s\n", r->device);
    if (r->n_kept_for_size)
        esp_out_printf("%u matrices kept for their size\n", r->n_kept_for_size);
    if (r->compared)
        print_comparison(&r->comparison);
    esp_out_printf("seconds %.1f\n", r->seconds);
}

static void read_flags(const struct esp_options *o, esp_quantize_opts *q)
{
    const struct esp_opt_value *v = o->v;
    static const esp_fold_mode fold[] = {ESP_FOLD_AUTO, ESP_FOLD_OFF, ESP_FOLD_ON};

    q->method = v[OPT_METHOD].s;
    q->bits = (uint32_t)v[OPT_BITS].i;
    q->target_bpw = v[OPT_TARGET_BPW].f;
    q->group = (uint32_t)v[OPT_GROUP].i;
    q->recipe = v[OPT_RECIPE].given ? v[OPT_RECIPE].s : NULL;
    q->calib = v[OPT_CALIB].given ? v[OPT_CALIB].s : NULL;
    q->stats = v[OPT_STATS].given ? v[OPT_STATS].s : NULL;
    q->calib_tokens = (uint32_t)v[OPT_CALIB_TOKENS].i;
    q->keep = v[OPT_KEEP].list;
    q->n_keep = v[OPT_KEEP].n;
    q->fold = fold[v[OPT_FOLD].i];
    q->act_order = v[OPT_ACT_ORDER].on;
    q->scale = v[OPT_TRELLIS_SCALE].s;
    q->no_feedback = !v[OPT_FEEDBACK].on;
    q->feedback_group = (uint32_t)v[OPT_FEEDBACK_GROUP].i;
    q->resume = v[OPT_RESUME].on;
    q->no_eval = !v[OPT_EVAL].on;
    q->seed = (uint64_t)v[OPT_QUANT_SEED].i;
    q->device = v[OPT_QUANT_DEVICE].s;
    q->threads = (uint32_t)v[OPT_THREADS].i;
    q->memory = v[OPT_QUANT_MEMORY].given ? v[OPT_QUANT_MEMORY].size : 0;
}

/* The model's folder, by flag or as the first argument. */
static esp_status find_source(const struct esp_options *o, char **out, esp_error *err)
{
    const char *name = o->v[OPT_MODEL].given ? o->v[OPT_MODEL].s : o->n_args ? o->args[0] : NULL;

    if (!name)
        return esp_fail(err, ESP_EINVAL, "MODEL is missing");
    if (!o->v[OPT_TO].given)
        return esp_fail(err, ESP_EINVAL, "--output DIR says where to write; it is required");
    return esp_model_find(out, name, err);
}

static int stopped(const struct esp_options *o, const char *output)
{
    (void)o;
    return esp_report_as(ESP_EXIT_RESUMABLE, "interrupted",
                         "interrupted; %s.work is kept: the same command with --resume goes on", output);
}

int esp_verb_quantize(const struct esp_options *o)
{
    struct show show = {.what = ""};
    struct tensors t = {.list = esp_out_is_json() ? json_array() : NULL};
    esp_quantize_opts q = {.progress = tell, .progress_user = &show};
    esp_quantize_report rep;
    esp_error err = {0};
    char *path = NULL;
    esp_status s = find_source(o, &path, &err);

    read_flags(o, &q);
    if (s == ESP_OK)
        s = esp_quantize(path, o->v[OPT_TO].s, &q, &rep, visit, &t, &err);
    show_end(&show);
    esp_free(path);
    if (s == ESP_OK) {
        report_quantized(&rep, t.list);
        return 0;
    }
    json_decref(t.list);
    if (s == ESP_ECANCELLED && esp_interrupted())
        return stopped(o, o->v[OPT_TO].s);
    return esp_report(s, &err);
}

int esp_verb_convert(const struct esp_options *o)
{
    struct show show = {.what = ""};
    const bool any = strcmp(o->v[OPT_LAYOUT].s, "auto") == 0, keep = strcmp(o->v[OPT_DTYPE].s, "keep") == 0;
    const esp_convert_opts c = {.layout = any ? NULL : o->v[OPT_LAYOUT].s,
                                .dtype = keep ? NULL : o->v[OPT_DTYPE].s,
                                .progress = tell,
                                .progress_user = &show};
    esp_error err = {0};
    char *path = NULL;
    esp_status s = find_source(o, &path, &err);

    if (s == ESP_OK)
        s = esp_convert(path, o->v[OPT_TO].s, &c, &err);
    show_end(&show);
    esp_free(path);
    if (s != ESP_OK)
        return esp_report(s, &err);
    if (esp_out_is_json())
        esp_out_json(json_pack("{s:s,s:b}", "output", o->v[OPT_TO].s, "checked", (int)keep));
    else
        esp_out_printf("%s%s\n", o->v[OPT_TO].s, keep ? ": every value was read back and is the same" : "");
    return 0;
}

/* ---- perplexity --kl ---- */

int esp_verb_perplexity_kl(const struct esp_options *o, const char *base, const int32_t *ids, size_t n,
                           size_t window)
{
    const struct esp_opt_value *v = &o->v[OPT_KL];
    struct show show = {.what = ""};
    const esp_compare_opts c = {.window = (uint32_t)window,
                                .threads = (uint32_t)o->v[OPT_THREADS].i,
                                .cache = {.kv = o->v[OPT_KV].given ? o->v[OPT_KV].s : NULL,
                                          .kv_start = (uint32_t)o->v[OPT_KV_START].i,
                                          .state = o->v[OPT_STATE].s},
                                .progress = tell,
                                .progress_user = &show};
    esp_comparison out[MAX_OPT_LIST];
    esp_error err = {0};
    json_t *list = esp_out_is_json() ? json_array() : NULL;
    char *path[MAX_OPT_LIST] = {NULL};
    esp_status s = base ? ESP_OK : esp_fail(&err, ESP_EINVAL, "--kl compares model folders");

    for (size_t i = 0; s == ESP_OK && i < v->n; i++)
        s = esp_model_find(&path[i], v->list[i], &err);
    if (s == ESP_OK)
        s = esp_compare(base, (const char *const *)path, v->n, ids, n, &c, out, &err);
    show_end(&show);
    for (size_t i = 0; s == ESP_OK && i < v->n; i++) {
        if (list) {
            json_t *e = comparison_json(&out[i]);

            json_object_set_new(e, "model", json_string(path[i]));
            json_array_append_new(list, e);
            continue;
        }
        esp_out_printf("%s\n", path[i]);
        print_comparison(&out[i]);
    }
    for (size_t i = 0; i < v->n; i++)
        esp_free(path[i]);
    if (s != ESP_OK) {
        json_decref(list);
        return esp_report(s, &err);
    }
    if (list)
        esp_out_json(json_pack("{s:s,s:o}", "base", base, "comparisons", list));
    return 0;
}
