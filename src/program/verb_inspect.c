/*
 * inspect: what a model folder says about itself. The files are read through the same checks as a load, so a
 * folder that would be refused there is refused here with the same words.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "io/checkpoint.h"
#include "io/names.h"

#include "program/output.h"
#include "program/session.h"

struct inspect {
    struct esp_session session;
    const struct esp_options *opt;
    struct esp_checkpoint *ck;
    struct esp_names names;
    uint64_t fingerprint[2];
    char *template; /* esp_free; NULL: none */
    /* of --check */
    uint64_t checked, nans, infinities;
    json_t *bad; /* names */
};

/* ---- fingerprint ---- */

static void hash_bytes(uint64_t h[2], const void *data, size_t len)
{
    h[0] = esp_hash(data, len, h[0]);
    h[1] = esp_hash(data, len, h[1] ^ 0x9e3779b97f4a7c15U);
}

static void hash_file(uint64_t h[2], const char *dir, const char *name)
{
    char *path = esp_path_join(dir, name);
    struct esp_map m = {0};

    if (path && esp_map_open(&m, path, NULL) == ESP_OK) {
        hash_bytes(h, name, strlen(name));
        hash_bytes(h, m.data, m.size);
        esp_map_close(&m);
    }
    esp_free(path);
}

/* Names, types, shapes and sizes of all tensors, and the small files; weights themselves would take minutes
 * to read. */
static void fingerprint(struct inspect *x)
{
    static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "chat_template.jinja"};
    uint64_t *h = x->fingerprint;

    h[0] = h[1] = 1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        hash_file(h, x->ck->dir, files[i]);
    for (uint32_t i = 0; i < x->ck->main.n_tensor; i++) {
        const struct esp_st_tensor *t = x->ck->main.tensor[i];
        const uint64_t numbers[2] = {(uint64_t)t->dtype, t->bytes};

        hash_bytes(h, t->name, strlen(t->name));
        hash_bytes(h, numbers, sizeof numbers);
        hash_bytes(h, t->shape, t->n_dim * sizeof *t->shape);
    }
}

/* ---- template ---- */

/* The member chat_template of a tokenizer_config.json: a string, or a list of named ones of which "default"
 * counts. */
static char *template_of(const json_t *config)
{
    const json_t *t = json_object_get(config, "chat_template");
    const json_t *entry;
    size_t i;

    json_array_foreach(t, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));

        if (name && strcmp(name, "default") == 0) {
            t = json_object_get(entry, "template");
            break;
        }
    }
    return json_is_string(t) ? esp_strndup(json_string_value(t), json_string_length(t)) : NULL;
}

static void read_template(struct inspect *x)
{
    const char *own = x->opt->v[OPT_CHAT_TEMPLATE].s;
    char *path = own ? esp_strndup(own, strlen(own)) : esp_path_join(x->ck->dir, "chat_template.jinja");
    char *config = esp_path_join(x->ck->dir, "tokenizer_config.json");
    json_t *doc = NULL;
    size_t len;

    if (path && esp_read_file(&x->template, &len, path, ESP_LIMIT_TEMPLATE_BYTES, NULL) != ESP_OK && config &&
        esp_json_load(&doc, config, ESP_LIMIT_JSON_BYTES, 0, NULL) == ESP_OK)
        x->template = template_of(doc);
    json_decref(doc);
    esp_free(path);
    esp_free(config);
}

/* ---- checking values ---- */

static void count_bf16(const uint8_t *p, size_t n, uint64_t *nans, uint64_t *infinities)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned v = p[2 * i] | (unsigned)p[2 * i + 1] << 8;

        if ((v & 0x7f80) == 0x7f80)
            (v & 0x7f ? nans : infinities)[0]++;
    }
}

static void count_f16(const uint8_t *p, size_t n, uint64_t *nans, uint64_t *infinities)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned v = p[2 * i] | (unsigned)p[2 * i + 1] << 8;

        if ((v & 0x7c00) == 0x7c00)
            (v & 0x3ff ? nans : infinities)[0]++;
    }
}

static void count_f32(const uint8_t *p, size_t n, uint64_t *nans, uint64_t *infinities)
{
    for (size_t i = 0; i < n; i++) {
        float v;

        memcpy(&v, p + 4 * i, 4);
        *nans += isnan(v) != 0;
        *infinities += isinf(v) != 0;
    }
}

static void check_tensor(struct inspect *x, const struct esp_st_tensor *t)
{
    const size_t n = (size_t)esp_st_elements(t);
    uint64_t nans = 0, infinities = 0;

    if (t->dtype == ESP_DTYPE_BF16)
        count_bf16(t->data, n, &nans, &infinities);
    else if (t->dtype == ESP_DTYPE_F16)
        count_f16(t->data, n, &nans, &infinities);
    else if (t->dtype == ESP_DTYPE_F32)
        count_f32(t->data, n, &nans, &infinities);
    x->checked += n;
    x->nans += nans;
    x->infinities += infinities;
    if (nans || infinities)
        json_array_append_new(x->bad, json_pack("{s:s,s:I,s:I}", "name", t->name, "nan", (json_int_t)nans,
                                                "infinite", (json_int_t)infinities));
}

static esp_status check_values(struct inspect *x, esp_error *err)
{
    struct esp_progress p;
    double total = 0, done = 0;

    x->bad = json_array();
    for (uint32_t i = 0; i < x->ck->main.n_tensor; i++)
        total += (double)x->ck->main.tensor[i]->bytes;
    esp_progress_begin(&p, "checking", total / 1e6, "MB");
    for (uint32_t i = 0; i < x->ck->main.n_tensor && !esp_interrupted(); i++) {
        check_tensor(x, x->ck->main.tensor[i]);
        done += (double)x->ck->main.tensor[i]->bytes;
        esp_progress_update(&p, done / 1e6);
    }
    esp_progress_end(&p);
    return esp_interrupted() ? esp_fail(err, ESP_ECANCELLED, "interrupted") : ESP_OK;
}

/* ---- output ---- */

static const char *text_or_none(const char *s)
{
    return s[0] ? s : "none";
}

static void put_number(json_t *j, const char *key, bool has, double v)
{
    json_object_set_new(j, key, has ? json_real(v) : json_null());
}

static json_t *generation_json(const struct esp_config_generation *g)
{
    json_t *j = json_object();

    put_number(j, "temperature", g->has_temperature, g->temperature);
    put_number(j, "top_p", g->has_top_p, g->top_p);
    json_object_set_new(j, "top_k", g->has_top_k ? json_integer(g->top_k) : json_null());
    put_number(j, "min_p", g->has_min_p, g->min_p);
    put_number(j, "repetition_penalty", g->has_repetition, g->repetition_penalty);
    put_number(j, "presence_penalty", g->has_presence, g->presence_penalty);
    put_number(j, "frequency_penalty", g->has_frequency, g->frequency_penalty);
    return j;
}

static json_t *config_json(const struct inspect *x)
{
    const struct esp_config *c = &x->ck->config;
    json_t *layers = json_array(), *eos = json_array();
    json_t *j = json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:i}", "architecture",
                          c->architecture, "layers", c->n_layer, "hidden", c->hidden, "intermediate", c->ffn,
                          "heads", c->n_head, "kv_heads", c->n_kv_head, "head_dim", c->head_dim,
                          "linear_key_heads", c->lin_k_head, "linear_value_heads", c->lin_v_head,
                          "linear_key_dim", c->lin_k_dim, "linear_value_dim", c->lin_v_dim, "conv_kernel",
                          c->conv_kernel, "rope_theta", c->rope.theta, "context", c->max_position);

    for (uint32_t i = 0; i < c->n_layer; i++)
        json_array_append_new(layers, json_string(c->is_full[i] ? "full" : "linear"));
    for (uint32_t i = 0; i < c->n_eos; i++)
        json_array_append_new(eos, json_integer(c->eos[i]));
    json_object_update_new(j, json_pack("{s:i,s:i,s:i,s:b,s:i,s:b,s:o,s:o}", "vocabulary", c->vocab_size,
                                        "experts", c->n_expert, "experts_used", c->n_expert_used, "tied_head",
                                        x->names.tied, "mtp_layers", c->n_mtp_layer, "vision",
                                        c->vision.present, "layer_map", layers, "eos", eos));
    return j;
}

static json_t *tensors_json(const struct inspect *x)
{
    const char *glob = x->opt->v[OPT_TENSORS].s;
    json_t *list = json_array();

    for (uint32_t i = 0; i < x->ck->main.n_tensor; i++) {
        const struct esp_st_tensor *t = x->ck->main.tensor[i];
        json_t *shape = json_array();

        if (glob && fnmatch(glob, t->name, 0) != 0) {
            json_decref(shape);
            continue;
        }
        for (uint32_t d = 0; d < t->n_dim; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_array_append_new(list, json_pack("{s:s,s:s,s:o,s:I,s:s}", "name", t->name, "type",
                                              esp_dtype_name(t->dtype), "shape", shape, "bytes",
                                              (json_int_t)t->bytes, "file", esp_st_name(t->file)));
    }
    return list;
}

static void print_json(const struct inspect *x)
{
    const esp_model_info *m = &x->session.info;
    const struct esp_opt_value *v = x->opt->v;
    char hex[40];
    json_t *doc, *warnings = json_array();

    snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)x->fingerprint[0],
             (unsigned long long)x->fingerprint[1]);
    doc = json_pack("{s:s,s:s,s:s,s:s,s:I,s:I,s:i,s:i,s:s}", "model", x->session.shown, "arch", m->name,
                    "shape", m->shape, "weights", m->weights, "params", (json_int_t)m->n_params,
                    "weight_bytes", (json_int_t)m->weight_bytes, "tensors_total", x->ck->main.n_tensor,
                    "files", x->ck->main.n_file, "fingerprint", hex);
    json_object_set_new(doc, "config", config_json(x));
    json_object_set_new(doc, "generation", generation_json(&x->ck->config.generation));
    json_object_set_new(doc, "tokenizer",
                        json_pack("{s:i,s:i,s:b}", "tokens", m->n_token, "rows", m->n_vocab, "chat_template",
                                  m->has_template));
    for (uint32_t i = 0; i < x->ck->warnings.n; i++)
        json_array_append_new(warnings, json_string(x->ck->warnings.text[i]));
    json_object_set_new(doc, "warnings", warnings);
    if (v[OPT_TENSORS].given)
        json_object_set_new(doc, "tensors", tensors_json(x));
    if (v[OPT_TEMPLATE].on)
        json_object_set_new(doc, "template", x->template ? json_string(x->template) : json_null());
    if (v[OPT_CHECK].on)
        json_object_set_new(doc, "check",
                            json_pack("{s:I,s:I,s:I,s:O}", "values", (json_int_t)x->checked, "nan",
                                      (json_int_t)x->nans, "infinite", (json_int_t)x->infinities, "tensors",
                                      x->bad));
    esp_out_json(doc);
}

static void print_default(const char *name, bool has, double v)
{
    if (has)
        esp_out_printf(" %s %g", name, v);
}

static void print_summary(const struct inspect *x)
{
    const struct esp_config *c = &x->ck->config;
    const struct esp_config_generation *g = &c->generation;
    const esp_model_info *m = &x->session.info;
    char text[32];

    esp_out_printf("model       %s (%s)\n", m->name, m->shape);
    esp_out_printf("weights     %s, %.3f G parameters, %s in %u file%s, %u tensors\n", m->weights,
                   (double)m->n_params / 1e9, esp_format_bytes(text, sizeof text, (double)m->weight_bytes),
                   x->ck->main.n_file, x->ck->main.n_file == 1 ? "" : "s", x->ck->main.n_tensor);
    esp_out_printf("layers      %u: ", c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++)
        esp_out_printf("%c", c->is_full[i] ? 'F' : 'l');
    esp_out_printf(" (F full attention, l linear)\n");
    esp_out_printf("sizes       hidden %u, intermediate %u, %u heads, %u kv heads of %u\n", c->hidden, c->ffn,
                   c->n_head, c->n_kv_head, c->head_dim);
    esp_out_printf("linear      %u key heads of %u, %u value heads of %u, convolution over %u\n",
                   c->lin_k_head, c->lin_k_dim, c->lin_v_head, c->lin_v_dim, c->conv_kernel);
    if (c->n_expert)
        esp_out_printf("experts     %u of %u used, intermediate %u, shared %u\n", c->n_expert_used,
                       c->n_expert, c->expert_ffn, c->shared_ffn);
    esp_out_printf("positions   %u, rope theta %g over %u dimensions\n", c->max_position, c->rope.theta,
                   c->rope.rotary_dims);
    esp_out_printf("head        %s\n", x->names.tied ? "tied to the embedding" : "its own");
    esp_out_printf("parts       %s%s\n", m->has_mtp ? "MTP " : "",
                   m->has_vision ? "vision"
                   : m->has_mtp  ? ""
                                 : "text alone");
    esp_out_printf("tokenizer   %u tokens for %u rows; end", m->n_token, m->n_vocab);
    for (uint32_t i = 0; i < c->n_eos; i++)
        esp_out_printf(" %u", c->eos[i]);
    esp_out_printf("; chat template %s\ngeneration ", m->has_template ? "yes" : "no");
    print_default("temperature", g->has_temperature, g->temperature);
    print_default("top_k", g->has_top_k, g->top_k);
    print_default("top_p", g->has_top_p, g->top_p);
    print_default("min_p", g->has_min_p, g->min_p);
    print_default("repetition_penalty", g->has_repetition, g->repetition_penalty);
    esp_out_printf("\nnorms       %s, known by %s\n",
                   x->names.norms_shifted ? "stored as gamma" : "stored as gamma-1",
                   text_or_none(x->names.norms_why ? x->names.norms_why : ""));
    esp_out_printf("fingerprint %016llx%016llx\n", (unsigned long long)x->fingerprint[0],
                   (unsigned long long)x->fingerprint[1]);
}

static void print_text(const struct inspect *x)
{
    const struct esp_opt_value *v = x->opt->v;
    const char *glob = v[OPT_TENSORS].s;
    json_t *t;
    size_t i;

    if (v[OPT_TEMPLATE].on) {
        esp_out_printf("%s", x->template);
        return;
    }
    print_summary(x);
    for (uint32_t k = 0; k < x->ck->warnings.n; k++)
        esp_say_warn("%s", x->ck->warnings.text[k]);
    for (uint32_t k = 0; v[OPT_TENSORS].given && k < x->ck->main.n_tensor; k++) {
        const struct esp_st_tensor *s = x->ck->main.tensor[k];
        char shape[128];

        if (!glob || fnmatch(glob, s->name, 0) == 0)
            esp_out_printf("%-72s %-6s %-20s %zu\n", s->name, esp_dtype_name(s->dtype),
                           esp_st_shape_text(s, shape, sizeof shape), s->bytes);
    }
    if (!v[OPT_CHECK].on)
        return;
    json_array_foreach(x->bad, i, t)
    {
        esp_out_printf("bad: %s has %lld NaN and %lld infinite values\n",
                       json_string_value(json_object_get(t, "name")),
                       (long long)json_integer_value(json_object_get(t, "nan")),
                       (long long)json_integer_value(json_object_get(t, "infinite")));
    }
    esp_out_printf("checked     %llu values, %llu NaN, %llu infinite\n", (unsigned long long)x->checked,
                   (unsigned long long)x->nans, (unsigned long long)x->infinities);
}

static esp_status inspect(struct inspect *x, esp_error *err)
{
    const struct esp_opt_value *v = x->opt->v;

    ESP_TRY(esp_session_open(&x->session, x->opt, err));
    ESP_TRY(esp_checkpoint_open(&x->ck, x->session.path, err));
    ESP_TRY(esp_names_resolve(&x->names, x->ck, err));
    fingerprint(x);
    if (v[OPT_TEMPLATE].on) {
        read_template(x);
        if (!x->template && !esp_out_is_json())
            return esp_fail(err, ESP_ENOTFOUND, "%s has no chat template", x->session.shown);
    }
    if (v[OPT_CHECK].on)
        ESP_TRY(check_values(x, err));
    if (esp_out_is_json())
        print_json(x);
    else
        print_text(x);
    return ESP_OK;
}

int esp_verb_inspect(const struct esp_options *o)
{
    struct inspect x = {.opt = o};
    esp_error err = {0};
    esp_status s;
    bool bad;

    if (o->v[OPT_PLAN].given)
        return esp_inspect_plan(o);
    s = inspect(&x, &err);
    bad = x.nans || x.infinities;

    esp_free(x.template);
    json_decref(x.bad);
    esp_checkpoint_close(x.ck);
    esp_session_close(&x.session);
    if (s != ESP_OK)
        return esp_report(s, &err);
    return bad ? ESP_EXIT_CHECK : 0;
}
