/*
 * Published sizes of the dense models, for benchmarks with random weights and for naming what was loaded.
 * Source: the config.json files of the Qwen3.5 releases of 2026-02 and 2026-03.
 *
 * SPDX-License-Identifier: MIT
 */
#include "model/net.h"

#include <stdio.h>
#include <string.h>

struct shape {
    const char *name;
    uint32_t hidden, n_layer, ffn, n_head, n_kv_head, lin_v_head;
    bool tied;
};

static const struct shape shapes[] = {
    {"qwen3.5-0.8b", 1024, 24, 3584, 8, 2, 16, true},   {"qwen3.5-2b", 2048, 24, 6144, 8, 2, 16, true},
    {"qwen3.5-4b", 2560, 32, 9216, 16, 4, 32, true},    {"qwen3.5-9b", 4096, 32, 12288, 16, 4, 32, false},
    {"qwen3.5-27b", 5120, 64, 17408, 24, 4, 48, false},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void fill(struct esp_config *c, const struct shape *s)
{
    memset(c, 0, sizeof *c);
    c->arch = ESP_ARCH_QWEN35;
    snprintf(c->architecture, sizeof c->architecture, "Qwen3_5ForCausalLM");
    snprintf(c->model_type, sizeof c->model_type, "qwen3_5");
    c->dtype = ESP_DTYPE_BF16;
    c->vocab_size = 248320;
    c->n_layer = s->n_layer;
    c->hidden = s->hidden;
    c->ffn = s->ffn;
    c->n_head = s->n_head;
    c->n_kv_head = s->n_kv_head;
    c->head_dim = 256;
    c->lin_k_head = 16;
    c->lin_v_head = s->lin_v_head;
    c->lin_k_dim = c->lin_v_dim = 128;
    c->conv_kernel = 4;
    c->rms_eps = 1e-6;
    c->max_position = 262144;
    for (uint32_t i = 0; i < s->n_layer; i++)
        c->n_full += c->is_full[i] = i % 4 == 3;
    c->rope = (struct esp_config_rope){
        .type = ESP_ROPE_DEFAULT, .theta = 1e7, .partial = 0.25, .rotary_dims = 64, .section = {11, 11, 10}};
    c->eos[0] = 248046;
    c->eos[1] = 248044;
    c->n_eos = 2;
    c->bos = c->pad = -1;
    c->tied_top = s->tied ? ESP_TIED_YES : ESP_TIED_NO;
}

esp_status esp_shape_config(struct esp_config *out, const char *name, esp_error *err)
{
    char known[256] = "";
    size_t len = 0;

    for (uint32_t i = 0; i < N_SHAPES; i++) {
        int n;

        if (strcmp(shapes[i].name, name) == 0) {
            fill(out, &shapes[i]);
            return ESP_OK;
        }
        n = snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "", shapes[i].name);
        len += n > 0 ? (size_t)n : 0;
    }
    return esp_fail(err, ESP_ENOTFOUND, "no shape \"%s\"; known: %s", name, known);
}

const char *esp_shape_of(const struct esp_config *c)
{
    for (uint32_t i = 0; i < N_SHAPES; i++)
        if (shapes[i].hidden == c->hidden && shapes[i].n_layer == c->n_layer && shapes[i].ffn == c->ffn &&
            shapes[i].n_head == c->n_head && shapes[i].lin_v_head == c->lin_v_head)
            return shapes[i].name;
    return NULL;
}
