/*
 * Coded keys and values on the device: the tables that turbo needs lie in the plan's memory, those of the
 * head size first, then a codebook for each attention layer.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/cuda.h"

#include <math.h>
#include <string.h>

#include "formats/turboquant.h"

struct head_tables {
    uint32_t signs[ESP_KV_HEAD_MAX / 32];
    int8_t twelve[144];
    uint8_t pad[48];
};

struct layer_tables {
    float levels[256], edges[256];
};

_Static_assert(sizeof(struct head_tables) == 256, "codebooks stay aligned");

static bool turbo(const struct esp_layout *l)
{
    bool any = false;

    for (uint32_t i = 0; i < l->n_attn; i++)
        any |= l->layers[i].scheme.kind == ESP_KV_KIND_TURBO;
    return any;
}

size_t cuda_kv_bytes(const struct esp_layout *l)
{
    return turbo(l) ? sizeof(struct head_tables) + l->n_attn * sizeof(struct layer_tables) : 0;
}

static void fill_layer(const struct esp_kv_scheme *s, struct layer_tables *t)
{
    const struct esp_turbo_codebook *b = esp_turbo_codebook_of(s);
    const uint32_t n = 1u << s->v_bits;

    memcpy(t->levels, b->levels, n * sizeof *t->levels);
    memcpy(t->edges, b->edges, (n - 1) * sizeof *t->edges);
}

esp_status cuda_kv_upload(struct esp_plan *p, esp_error *err)
{
    const struct esp_layout *l = &p->pools.layout;
    uint8_t *to = p->scratch + p->kv_off;
    struct head_tables head;

    if (!turbo(l))
        return ESP_OK;
    memset(&head, 0, sizeof head);
    memcpy(head.signs, esp_turbo_signs(l->head_dim), l->head_dim / 8);
    memcpy(head.twelve, esp_turbo_hadamard12, sizeof head.twelve);
    CUDA_TRY(cudaMemcpy(to, &head, sizeof head, cudaMemcpyHostToDevice), "uploading tables");
    for (uint32_t i = 0; i < l->n_attn; i++) {
        struct layer_tables t;

        if (l->layers[i].scheme.kind != ESP_KV_KIND_TURBO)
            continue;
        memset(&t, 0, sizeof t);
        fill_layer(&l->layers[i].scheme, &t);
        CUDA_TRY(cudaMemcpy(to + sizeof head + i * sizeof t, &t, sizeof t, cudaMemcpyHostToDevice),
                 "uploading tables");
    }
    return ESP_OK;
}

void cuda_kv_code(const struct esp_plan *p, uint32_t layer, struct cu_kv_code *out)
{
    const struct esp_layout *l = &p->pools.layout;
    const struct esp_kv_scheme *s = &l->layers[layer].scheme;
    const uint8_t *at = p->scratch + p->kv_off;
    const struct head_tables *head = (const void *)at;
    const struct layer_tables *t = (const void *)(at + sizeof *head + layer * sizeof *t);

    *out = (struct cu_kv_code){.kind = CU_KV_PLAIN};
    if (!esp_kv_coded(s))
        return;
    *out = (struct cu_kv_code){.kind = s->kind == ESP_KV_KIND_TURBO ? CU_KV_TURBO : CU_KV_AFFINE,
                               .bits = {s->k_bits, s->v_bits},
                               .group_shift = s->group == 32   ? 5
                                              : s->group == 64 ? 6
                                                               : 7};
    if (s->kind != ESP_KV_KIND_TURBO)
        return;
    out->tuned = s->tune != ESP_KV_TUNE_NONE;
    out->norm = (float)(1 / sqrt((double)l->head_dim));
    out->levels = t->levels;
    out->edges = t->edges;
    out->signs = head->signs;
    out->twelve = head->twelve;
}
