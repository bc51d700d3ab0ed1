/*
 * Opening models: checkpoint, weights, tokenizer and template of a folder, or random weights of a published
 * shape.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"

static esp_status choose_cpu(struct esp_model *m, const esp_model_opts *o, esp_error *err)
{
    const char *name = o->cpu_level ? o->cpu_level : getenv("ESPALIER_CPU");

    m->level = esp_cpu_best();
    if (name && *name)
        ESP_TRY(esp_cpu_level_parse(&m->level, name, err));
    if (o->threads > ESP_LIMIT_THREADS || o->threads_batch > ESP_LIMIT_THREADS)
        return esp_fail(err, ESP_EINVAL, "%u threads, at most %u are possible",
                        o->threads > ESP_LIMIT_THREADS ? o->threads : o->threads_batch, ESP_LIMIT_THREADS);
    m->n_thread = o->threads ? o->threads : esp_core_count();
    m->n_batch = o->threads_batch;
    return ESP_OK;
}

/* Pages and nodes of what engines will hold. */
static esp_status choose_memory(struct esp_model *m, const esp_model_opts *o, esp_error *err)
{
    esp_error why;

    ESP_TRY(esp_huge_parse(&m->huge, o->huge_pages, err));
    if (m->huge == ESP_HUGE_ON)
        ESP_TRY(esp_huge_check(err));
    else if (m->huge == ESP_HUGE_AUTO && esp_huge_check(&why) != ESP_OK)
        esp_log(ESP_LOG_INFO, "%s", why.message);
    ESP_TRY(esp_nodes_open(&m->nodes, o->numa, err));
    if (m->nodes && !o->threads)
        m->n_thread = esp_nodes_cores(m->nodes);
    if (!o->threads_batch)
        m->n_batch = m->n_thread;
    return ESP_OK;
}

static enum esp_source_kind source_kind(const struct esp_model *m, const esp_model_opts *o)
{
    if (o->shape_only)
        return ESP_SOURCE_SHAPES;
    return m->huge == ESP_HUGE_OFF ? ESP_SOURCE_SMALL_PAGES : ESP_SOURCE_WEIGHTS;
}

static void add_end(struct esp_model *m, uint32_t id)
{
    for (uint32_t i = 0; i < m->n_end; i++)
        if (m->end[i] == id)
            return;
    if (m->n_end < ESP_MAX_END && id < m->net->config.vocab_size)
        m->end[m->n_end++] = id;
}

/* Ids that end a turn: those of the config, and the family's two end tokens where the tokenizer has them. */
static void find_ends(struct esp_model *m)
{
    static const char *const names[] = {"<|im_end|>", "<|endoftext|>"};
    const struct esp_config *c = &m->net->config;

    for (uint32_t i = 0; i < c->n_eos; i++)
        add_end(m, c->eos[i]);
    for (size_t i = 0; m->tok && i < sizeof names / sizeof names[0]; i++) {
        uint32_t id;

        if (esp_tokenizer_find(m->tok, names[i], strlen(names[i]), &id) && esp_tokenizer_is_added(m->tok, id))
            add_end(m, id);
    }
}

/* Rows of the head that no token names are never sampled. */
static esp_status find_allowed(struct esp_model *m, const esp_model_opts *o, esp_error *err)
{
    uint32_t n_vocab = m->net->tape.n_vocab, n_undefined = 0;

    if (!m->tok)
        return ESP_OK;
    if (o->tokenizer_dir && esp_tokenizer_n_ids(m->tok) > n_vocab)
        return esp_fail(err, ESP_EINVAL,
                        "%s: the tokenizer has ids up to %u, the model has %u rows: it is another model's",
                        o->tokenizer_dir, esp_tokenizer_n_ids(m->tok) - 1, n_vocab);
    m->allowed = esp_alloc_array((n_vocab + 63) / 64, sizeof *m->allowed);
    if (!m->allowed)
        return esp_fail(err, ESP_ENOMEM, "vocabulary of %u: out of memory", n_vocab);
    for (uint32_t id = 0; id < n_vocab; id++) {
        if (esp_tokenizer_is_defined(m->tok, id))
            m->allowed[id / 64] |= (uint64_t)1 << id % 64;
        else
            n_undefined++;
    }
    if (n_undefined == 0) {
        esp_free(m->allowed);
        m->allowed = NULL;
    }
    if (esp_tokenizer_n_ids(m->tok) > n_vocab)
        esp_log(ESP_LOG_WARNING, "the tokenizer has ids up to %u, the model only %u rows",
                esp_tokenizer_n_ids(m->tok) - 1, n_vocab);
    return ESP_OK;
}

static esp_status report(const esp_model_opts *o, const char *what, double fraction, esp_error *err)
{
    if (o->progress && !o->progress(o->progress_user, what, fraction))
        return esp_fail(err, ESP_ECANCELLED, "loading was stopped");
    return ESP_OK;
}

/* The template of another tokenizer's folder where that has one, else the model's. */
static esp_status load_template(struct esp_model *m, const char *path, const esp_model_opts *o)
{
    esp_status s = ESP_ENOTFOUND;

    if (o->tokenizer_dir && !o->chat_template_file)
        s = esp_template_load(&m->tpl, o->tokenizer_dir, NULL, &m->tpl_error);
    return s == ESP_ENOTFOUND ? esp_template_load(&m->tpl, path, o->chat_template_file, &m->tpl_error) : s;
}

/* The tokenizer and the template; both may be missing, neither may be broken. */
static esp_status load_text(struct esp_model *m, const char *path, const esp_model_opts *o, esp_error *err)
{
    esp_status s = esp_tokenizer_open(&m->tok, o->tokenizer_dir ? o->tokenizer_dir : path, err);

    if (s == ESP_ENOTFOUND && o->tokenizer_dir)
        return s;
    if (s == ESP_ENOTFOUND) {
        esp_log(ESP_LOG_WARNING, "%s: no tokenizer.json; only token ids can be used", path);
        m->tok = NULL;
    } else if (s != ESP_OK) {
        return s;
    }
    s = load_template(m, path, o);
    if (s == ESP_OK)
        return ESP_OK;
    memset(&m->tpl, 0, sizeof m->tpl);
    if (s == ESP_ENOTFOUND && !o->chat_template_file)
        return ESP_OK; /* only chats need one, and say so */
    return esp_fail(err, s, "%s", m->tpl_error.message);
}

/* With o->expand: m's source becomes one that expands. */
static esp_status begin_expand(struct esp_model *m, const esp_model_opts *o, esp_error *err)
{
    struct esp_source *s;

    m->expand = o->expand && strcmp(o->expand, "off") != 0;
    if (!m->expand)
        return ESP_OK;
    if (strcmp(o->expand, "affine8") != 0)
        return esp_fail(err, ESP_EINVAL, "expand \"%s\"; accepted: off, affine8", o->expand);
    ESP_TRY(esp_source_expand(&s, m->src, source_kind(m, o), m->n_thread, err));
    m->src = s;
    return ESP_OK;
}

/* Once the weights are bound. */
static esp_status end_expand(const struct esp_model *m, esp_error *err)
{
    char formats[64];

    if (!m->expand || esp_source_expanded(m->src))
        return ESP_OK;
    esp_net_formats(m->net, formats, sizeof formats);
    return esp_fail(
        err, ESP_EINVAL,
        "expand affine8 is for trellis-coded weights; this model's are %s and would stay as they are",
        formats);
}

static esp_status load_folder(struct esp_model *m, const char *path, const esp_model_opts *o, esp_error *err)
{
    ESP_TRY(report(o, "reading headers", 0.0, err));
    ESP_TRY(o->no_mmap ? esp_checkpoint_read(&m->ck, path, err) : esp_checkpoint_open(&m->ck, path, err));
    ESP_TRY(esp_config_scale_rope(&m->ck->config, o->rope_scaling, err));
    for (uint32_t i = 0; m->huge == ESP_HUGE_ON && i < m->ck->main.n_tensor; i++)
        esp_huge_advise(m->ck->main.tensor[i]->data, m->ck->main.tensor[i]->bytes);
    ESP_TRY(esp_source_checkpoint(&m->src, m->ck, err));
    ESP_TRY(begin_expand(m, o, err));
    ESP_TRY(report(o, m->expand ? "expanding weights" : "binding weights", 0.2, err));
    ESP_TRY(esp_net_load(&m->net, &m->ck->config, m->src, err));
    ESP_TRY(end_expand(m, err));
    for (uint32_t i = 0; i < m->ck->warnings.n; i++)
        esp_log(ESP_LOG_WARNING, "%s", m->ck->warnings.text[i]);
    ESP_TRY(report(o, "reading the tokenizer", 0.5, err));
    ESP_TRY(load_text(m, path, o, err));
    find_ends(m);
    ESP_TRY(find_allowed(m, o, err));
    return report(o, "ready", 1.0, err);
}

static esp_status create(struct esp_model **out, const esp_model_opts *o, esp_error *err)
{
    struct esp_model *m = esp_alloc(sizeof *m);
    esp_status s;

    if (!m)
        return esp_fail(err, ESP_ENOMEM, "model: out of memory");
    s = choose_cpu(m, o, err);
    if (s == ESP_OK)
        s = choose_memory(m, o, err);
    if (s != ESP_OK) {
        esp_free(m);
        return s;
    }
    *out = m;
    return ESP_OK;
}

esp_status esp_model_open(esp_model **out, const char *path, const esp_model_opts *opts, esp_error *err)
{
    const esp_model_opts defaults = {0}, *o = opts ? opts : &defaults;
    struct esp_model *m;
    esp_status s;

    if (!out || !path)
        return esp_fail(err, ESP_EINVAL, "esp_model_open needs a place for the model and a path");
    if (o->shape_only && !o->expand)
        return esp_fail(err, ESP_EINVAL,
                        "shape_only belongs to esp_model_synthetic, and beside expand to files");
    ESP_TRY(create(&m, o, err));
    m->shape_only = o->shape_only;
    s = load_folder(m, path, o, err);
    if (s != ESP_OK) {
        esp_model_close(m);
        return s;
    }
    *out = m;
    return ESP_OK;
}

static esp_status load_random(struct esp_model *m, const char *shape, const char *format, uint64_t seed,
                              const esp_model_opts *o, esp_error *err)
{
    struct esp_config *c = esp_alloc(sizeof *c);
    enum esp_format_id f;
    esp_status s;

    if (!c)
        return esp_fail(err, ESP_ENOMEM, "model: out of memory");
    s = esp_shape_config(c, shape, err);
    if (s == ESP_OK)
        s = esp_config_scale_rope(c, o->rope_scaling, err);
    if (s == ESP_OK)
        s = esp_format_by_name(&f, format ? format : "bf16", err);
    if (s == ESP_OK)
        s = esp_source_random(&m->src, f, 64, c->tied_top == ESP_TIED_YES, source_kind(m, o), seed, err);
    if (s == ESP_OK)
        s = begin_expand(m, o, err);
    if (s == ESP_OK)
        s = esp_net_load(&m->net, c, m->src, err);
    if (s == ESP_OK)
        s = end_expand(m, err);
    esp_free(c);
    return s;
}

esp_status esp_model_synthetic(esp_model **out, const char *shape, const char *format, uint64_t seed,
                               const esp_model_opts *opts, esp_error *err)
{
    const esp_model_opts defaults = {0}, *o = opts ? opts : &defaults;
    struct esp_model *m;
    esp_status s;

    if (!out || !shape)
        return esp_fail(err, ESP_EINVAL, "esp_model_synthetic needs a place for the model and a shape");
    ESP_TRY(create(&m, o, err));
    m->shape_only = o->shape_only;
    s = report(o, "making random weights", 0.0, err);
    if (s == ESP_OK)
        s = load_random(m, shape, format, seed, o, err);
    if (s != ESP_OK) {
        esp_model_close(m);
        return s;
    }
    *out = m;
    return ESP_OK;
}

void esp_model_close(esp_model *m)
{
    if (!m)
        return;
    esp_template_set_close(&m->tpl);
    esp_tokenizer_close(m->tok);
    esp_net_close(m->net);
    if (m->src)
        m->src->close(m->src);
    esp_checkpoint_close(m->ck);
    esp_nodes_close(m->nodes);
    esp_free(m->allowed);
    esp_free(m);
}

static uint32_t count_tokens(const struct esp_model *m)
{
    uint32_t n = 0, n_vocab = m->net->tape.n_vocab;

    if (!m->tok)
        return 0;
    for (uint32_t id = 0; id < n_vocab; id++)
        n += esp_tokenizer_is_defined(m->tok, id);
    return n;
}

void esp_model_describe(const esp_model *m, esp_model_info *out)
{
    const struct esp_config *c = &m->net->config;
    const struct esp_config_generation *g = &c->generation;
    const char *shape = esp_shape_of(c);

    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", esp_arch_name(c->arch));
    snprintf(out->shape, sizeof out->shape, "%s", shape ? shape : "custom");
    esp_net_formats(m->net, out->weights, sizeof out->weights);
    out->n_params = m->net->n_params;
    out->weight_bytes = esp_net_weight_bytes(m->net);
    out->n_layer = c->n_layer;
    out->n_full_layer = c->n_full;
    out->hidden = c->hidden;
    out->n_vocab = m->net->tape.n_vocab;
    out->n_token = count_tokens(m);
    out->context = c->max_position;
    out->has_template = m->tpl.main != NULL;
    out->has_mtp = c->n_mtp_layer > 0;
    out->has_vision = c->vision.present;
    out->temperature = g->has_temperature ? (float)g->temperature : -1;
    if (g->has_do_sample && !g->do_sample)
        out->temperature = 0;
    out->top_p = g->has_top_p ? (float)g->top_p : -1;
    out->min_p = g->has_min_p ? (float)g->min_p : -1;
    out->top_k = g->has_top_k ? (int32_t)g->top_k : -1;
}
