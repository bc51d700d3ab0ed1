/*
 * Adapters in device memory, and which of them stand beside a step's products. A copy is made when a batch
 * first names an adapter and kept under the adapter's revision, so one that was closed and opened again is
 * found; those that were not used for longest go when the plan's bytes are spent.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/cuda.h"

#include <stdlib.h>

#include "base/mem.h"

struct cuda_lora {
    uint64_t revision, used; /* used: number of the last step that named it */
    uint32_t n;
    size_t bytes;
    uint8_t *mem;
    size_t *off; /* [n][2] of A and B */
};

static size_t pad(size_t n)
{
    return (n + 255) & ~(size_t)255;
}

static size_t floats(const struct esp_weight *w)
{
    return (size_t)w->n_out * w->n_in;
}

static void drop(struct cuda_dev *d, uint32_t i)
{
    cudaFree(d->loras[i]->mem); /* waits for steps that read it */
    esp_free(d->loras[i]->off);
    esp_free(d->loras[i]);
    d->loras[i] = d->loras[--d->n_lora];
}

void cuda_lora_close(struct cuda_dev *d)
{
    while (d->n_lora)
        drop(d, d->n_lora - 1);
    esp_free(d->loras);
}

/* The one that was not used for longest and not in this step; false when there is none. */
static bool drop_oldest(struct cuda_dev *d)
{
    uint32_t oldest = UINT32_MAX;

    for (uint32_t i = 0; i < d->n_lora; i++)
        if (d->loras[i]->used != d->step &&
            (oldest == UINT32_MAX || d->loras[i]->used < d->loras[oldest]->used))
            oldest = i;
    if (oldest == UINT32_MAX)
        return false;
    drop(d, oldest);
    return true;
}

static size_t bytes_held(const struct cuda_dev *d)
{
    size_t n = 0;

    for (uint32_t i = 0; i < d->n_lora; i++)
        n += d->loras[i]->bytes;
    return n;
}

static esp_status put(struct cuda_dev *d, uint8_t *to, const struct esp_weight *w, esp_error *err)
{
    const size_t row = w->n_in * sizeof(float);

    CUDA_TRY(
        cudaMemcpy2DAsync(to, row, w->codes, w->row_bytes, row, w->n_out, cudaMemcpyHostToDevice, d->stream),
        "uploading an adapter");
    return ESP_OK;
}

static esp_status fill(struct cuda_dev *d, struct cuda_lora *l, const struct esp_lora_set *set,
                       esp_error *err)
{
    cudaError_t e;

    l->off = esp_alloc_array(set->n ? set->n : 1, 2 * sizeof *l->off);
    if (!l->off)
        return esp_fail(err, ESP_ENOMEM, "adapter of %u pairs: out of memory", set->n);
    for (uint32_t i = 0; i < set->n; i++) {
        l->off[2 * i] = l->bytes;
        l->bytes += pad(floats(&set->pairs[i].a) * sizeof(float));
        l->off[2 * i + 1] = l->bytes;
        l->bytes += pad(floats(&set->pairs[i].b) * sizeof(float));
    }
    while (d->lora_bytes && bytes_held(d) + l->bytes > d->lora_bytes && drop_oldest(d))
        ;
    for (e = cudaMalloc((void **)&l->mem, l->bytes ? l->bytes : 1);
         e == cudaErrorMemoryAllocation && drop_oldest(d);) {
        cudaGetLastError();
        e = cudaMalloc((void **)&l->mem, l->bytes);
    }
    if (e != cudaSuccess)
        return cuda_failed(err, e, "an adapter");
    for (uint32_t i = 0; i < set->n; i++) {
        ESP_TRY(put(d, l->mem + l->off[2 * i], &set->pairs[i].a, err));
        ESP_TRY(put(d, l->mem + l->off[2 * i + 1], &set->pairs[i].b, err));
    }
    CUDA_TRY(cudaStreamSynchronize(d->stream), "uploading an adapter"); /* its host memory may go any time */
    return ESP_OK;
}

static struct cuda_lora *find(const struct cuda_dev *d, const struct esp_lora_set *set)
{
    for (uint32_t i = 0; i < d->n_lora; i++)
        if (d->loras[i]->revision == set->revision && d->loras[i]->n == set->n)
            return d->loras[i];
    return NULL;
}

static esp_status hold(struct cuda_dev *d, const struct esp_lora_set *set, esp_error *err)
{
    struct cuda_lora *l = find(d, set);
    void *table;
    esp_status s;

    if (l) {
        l->used = d->step;
        return ESP_OK;
    }
    table = esp_realloc(d->loras, (d->n_lora + 1) * sizeof(struct cuda_lora *));
    if (table)
        d->loras = table;
    l = esp_alloc(sizeof *l);
    if (!table || !l) {
        esp_free(l);
        return esp_fail(err, ESP_ENOMEM, "adapter: out of memory");
    }
    *l = (struct cuda_lora){.revision = set->revision, .used = d->step, .n = set->n};
    s = fill(d, l, set, err);
    d->loras[d->n_lora++] = l;
    if (s != ESP_OK)
        drop(d, d->n_lora - 1);
    return s;
}

esp_status cuda_lora_begin(struct esp_plan *p, const struct esp_batch *b, bool *any, esp_error *err)
{
    *any = false;
    p->dev->step++;
    p->dev->lora_bytes = p->opts.adapter_bytes;
    for (uint32_t i = 0; i < b->n_seq; i++)
        for (uint32_t j = 0; j < b->seqs[i].n_lora; j++) {
            *any = true;
            ESP_TRY(hold(p->dev, b->seqs[i].lora[j], err));
        }
    return ESP_OK;
}

/* The site of op number `at` of a step for a sequence's adapter; false: it leaves that product alone. */
static bool site_of(const struct esp_plan *p, const struct cuda_step *s, uint32_t at,
                    const struct esp_batch_seq *q, uint32_t level, struct cu_lora_site *out)
{
    const struct esp_op *op = &p->tape->ops[s->op + at];
    const struct esp_lora_pair *pair;
    const struct cuda_lora *l;
    float *t = (float *)(void *)(p->scratch + p->lora_off);

    if (level >= q->n_lora)
        return false;
    pair = esp_lora_find(q->lora[level], op->w);
    l = pair ? find(p->dev, q->lora[level]) : NULL;
    if (!l)
        return false;
    const size_t *off = &l->off[2 * (size_t)(pair - q->lora[level]->pairs)];

    *out = (struct cu_lora_site){
        .a = (const float *)(const void *)(l->mem + off[0]),
        .b = (const float *)(const void *)(l->mem + off[1]),
        .x = plan_value(p, op->a) + (size_t)q->tok0 * pair->a.n_in,
        .y = plan_value(p, op->out) + (size_t)q->tok0 * pair->b.n_out,
        .t = t + ((size_t)at * p->opts.max_tok + q->tok0) * p->opts.max_rank,
        .scale = pair->scale * q->lora_scale[level],
        .rank = pair->a.n_out,
        .n_in = pair->a.n_in,
        .n_out = pair->b.n_out,
        .n_row = q->n_tok,
    };
    return true;
}

void cuda_lora_step(const struct esp_plan *p, const struct cuda_step *s, const struct esp_batch *b)
{
    for (uint32_t level = 0; level < ESP_LORA_STACK; level++) { /* levels of a stack add in order */
        struct cu_lora_sites sites = {.n = 0};

        for (uint32_t i = 0; i < b->n_seq; i++)
            for (uint32_t at = 0; at < s->n_op; at++) {
                sites.n += site_of(p, s, at, &b->seqs[i], level, &sites.s[sites.n]);
                if (sites.n == CU_LORA_SITES) {
                    cu_lora(p->dev->stream, &sites);
                    sites.n = 0;
                }
            }
        cu_lora(p->dev->stream, &sites);
    }
}
