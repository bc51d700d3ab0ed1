/*
 * Loading a model by its architecture, and the helpers that architecture files bind weights with.
 *
 * SPDX-License-Identifier: MIT
 */
#include "model/net.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { ARENA_BYTES = 1 << 30 }; /* 397B MoE: 30 MiB of vectors */

static const struct esp_arch_ops *const registry[] = {&esp_arch_qwen35};

esp_status esp_net_load(struct esp_net **out, const struct esp_config *config, const struct esp_source *src,
                        esp_error *err)
{
    const struct esp_arch_ops *ops = NULL;
    struct esp_net *net;
    esp_status s;

    for (size_t i = 0; i < sizeof registry / sizeof registry[0]; i++)
        if (registry[i]->arch == config->arch)
            ops = registry[i];
    if (!ops)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "architecture %s can be inspected but not run by this version; qwen3_5 can",
                        esp_arch_name(config->arch));
    net = esp_alloc(sizeof *net);
    if (!net)
        return esp_fail(err, ESP_ENOMEM, "model: out of memory");
    net->config = *config;
    net->config.quant = (struct esp_config_quant_table){0};
    net->arena = esp_arena_create(ARENA_BYTES);
    if (!net->arena) {
        esp_free(net);
        return esp_fail(err, ESP_ENOMEM, "model: out of memory");
    }
    esp_tape_init(&net->tape, net->arena);
    esp_tape_init(&net->mtp, net->arena);
    esp_tape_init(&net->mtp_keys, net->arena);
    s = ops->load(net, src, err);
    if (s == ESP_OK)
        s = esp_tape_finish(&net->tape, err);
    if (s == ESP_OK)
        s = esp_tape_finish(&net->mtp, err);
    if (s == ESP_OK)
        s = esp_tape_finish(&net->mtp_keys, err);
    if (s == ESP_OK)
        s = esp_layout_finish(&net->layout, err);
    if (s != ESP_OK) {
        esp_net_close(net);
        return s;
    }
    *out = net;
    return ESP_OK;
}

void esp_net_close(struct esp_net *net)
{
    if (!net)
        return;
    esp_arena_destroy(net->arena);
    esp_free(net);
}

static uint64_t bytes_of(const struct esp_net *net, uint32_t from, uint32_t to)
{
    uint64_t total = 0;

    for (uint32_t i = from; i < to; i++)
        total += esp_weight_bytes(net->weights[i]);
    return total;
}

uint64_t esp_net_weight_bytes(const struct esp_net *net)
{
    return bytes_of(net, 0, net->n_trunk_weight);
}

uint64_t esp_net_mtp_bytes(const struct esp_net *net)
{
    return bytes_of(net, net->n_trunk_weight, net->n_weight);
}

void esp_net_formats(const struct esp_net *net, char *out, size_t cap)
{
    uint64_t bytes[ESP_FORMAT_COUNT][3] = {{0}}; /* by group: none or 32, 64, 128 */
    size_t len = 0;

    for (uint32_t i = 0; i < net->n_trunk_weight; i++) {
        const struct esp_weight *w = net->weights[i];

        bytes[w->format][w->group / 64] += esp_weight_bytes(w);
    }
    out[0] = 0;
    for (;;) {
        static const uint32_t group[3] = {32, 64, 128};
        uint32_t f = 0, g = 0;
        int n;

        for (uint32_t i = 0; i < ESP_FORMAT_COUNT; i++)
            for (uint32_t j = 0; j < 3; j++)
                if (bytes[i][j] > bytes[f][g]) {
                    f = i;
                    g = j;
                }
        if (bytes[f][g] == 0 || len >= cap)
            return;
        bytes[f][g] = 0;
        if (esp_format_get((enum esp_format_id)f)->grouped)
            n = snprintf(out + len, cap - len, "%s%s g%u", len ? ", " : "",
                         esp_format_get((enum esp_format_id)f)->name, group[g]);
        else
            n = snprintf(out + len, cap - len, "%s%s", len ? ", " : "",
                         esp_format_get((enum esp_format_id)f)->name);
        len += n > 0 ? (size_t)n : 0;
    }
}

static void *remember_failure(struct esp_binder *b, esp_status s)
{
    b->status = s;
    return NULL;
}

static void *no_memory(struct esp_binder *b)
{
    return remember_failure(b, esp_fail(b->err, ESP_ENOMEM, "model: out of memory"));
}

static bool grow_list(struct esp_net *net)
{
    uint32_t cap = net->cap_weight ? net->cap_weight * 2 : 256;
    const struct esp_weight **list = esp_arena_alloc_array(net->arena, cap, sizeof *list);
    const char **names = esp_arena_alloc_array(net->arena, cap, sizeof *names);

    if (!list || !names)
        return false;
    if (net->n_weight) {
        memcpy(list, net->weights, net->n_weight * sizeof *list);
        memcpy(names, net->weight_names, net->n_weight * sizeof *names);
    }
    net->weights = list;
    net->weight_names = names;
    net->cap_weight = cap;
    return true;
}

static bool list_weight(struct esp_net *net, const struct esp_weight *w, const char *name)
{
    char *copy = esp_arena_strndup(net->arena, name, strlen(name));

    if (!copy || (net->n_weight == net->cap_weight && !grow_list(net)))
        return false;
    net->weight_names[net->n_weight] = copy;
    net->weights[net->n_weight++] = w;
    return true;
}

const struct esp_weight *esp_bind_matrix(struct esp_binder *b, const char *module, uint32_t n_out,
                                         uint32_t n_in)
{
    struct esp_weight *w;
    char name[160];
    esp_status s;

    if (b->status != ESP_OK)
        return NULL;
    snprintf(name, sizeof name, "%s%s", b->prefix, module);
    w = esp_arena_alloc(b->net->arena, sizeof *w);
    if (!w)
        return no_memory(b);
    s = b->src->matrix(b->src->ctx, b->part, name, n_out, n_in, w, b->err);
    if (s != ESP_OK)
        return remember_failure(b, s);
    if (!list_weight(b->net, w, name))
        return no_memory(b);
    if (b->part == ESP_PART_MTP)
        return w;
    b->net->n_trunk_weight = b->net->n_weight;
    b->net->n_params += (uint64_t)n_out * n_in;
    return w;
}

static float *fetch_vector(struct esp_binder *b, const char *name, uint32_t n)
{
    char full[160];
    float *v;
    esp_status s;

    if (b->status != ESP_OK)
        return NULL;
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    v = esp_arena_alloc_array(b->net->arena, n, sizeof *v);
    if (!v)
        return no_memory(b);
    s = b->src->vector(b->src->ctx, b->part, full, n, v, b->err);
    if (s != ESP_OK)
        return remember_failure(b, s);
    b->net->n_params += b->part == ESP_PART_MTP ? 0 : n;
    b->net->vector_bytes += n * sizeof *v;
    return v;
}

const float *esp_bind_vector(struct esp_binder *b, const char *name, uint32_t n)
{
    return fetch_vector(b, name, n);
}

const float *esp_bind_norm(struct esp_binder *b, const char *name, uint32_t n)
{
    float *v = fetch_vector(b, name, n);

    if (!v || (b->part == ESP_PART_MTP ? b->src->mtp_norms_shifted : b->src->norms_shifted))
        return v;
    for (uint32_t i = 0; i < n; i++)
        v[i] += 1.0f; /* stored as gamma - 1 */
    return v;
}

/* YaRN's blend of a frequency with its interpolated self (Peng et al. 2023; the family uses it beyond
 * 262,144). */
static double yarn(const struct esp_config_rope *r, double freq, uint32_t j)
{
    double d = r->rotary_dims, ln_b = log(r->theta), n = r->original_max;
    double low = floor(d * log(n / (2 * M_PI * r->beta_fast)) / (2 * ln_b));
    double high = ceil(d * log(n / (2 * M_PI * r->beta_slow)) / (2 * ln_b));
    double ramp;

    low = low < 0 ? 0 : low > d - 1 ? d - 1 : low;
    high = high < 0 ? 0 : high > d - 1 ? d - 1 : high;
    ramp = (j - low) / (high > low ? high - low : 0.001);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return freq / r->factor * ramp + freq * (1 - ramp);
}

struct esp_rope esp_net_rope(struct esp_arena *a, const struct esp_config *c)
{
    const struct esp_config_rope *r = &c->rope;
    uint32_t n = r->rotary_dims / 2;
    float *freq = esp_arena_alloc_array(a, n, sizeof *freq);
    uint8_t *axis = esp_arena_alloc(a, n);

    for (uint32_t j = 0; freq && axis && j < n; j++) {
        double f = pow(r->theta, -2.0 * j / r->rotary_dims);

        freq[j] = (float)(r->type == ESP_ROPE_YARN ? yarn(r, f, j) : f);
        if (j % 3 == 1 && j < 3 * r->section[1])
            axis[j] = 1;
        else if (j % 3 == 2 && j < 3 * r->section[2])
            axis[j] = 2;
    }
    return (struct esp_rope){.n_half = n,
                             .freq = freq,
                             .axis = axis,
                             .mscale = r->type == ESP_ROPE_YARN ? (float)r->attention_factor : 1.0f};
}
