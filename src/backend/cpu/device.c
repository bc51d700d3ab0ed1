/*
 * The CPU as a device: host memory in 2 MiB-friendly blocks, copies by memcpy, a kernel table and a thread
 * pool.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { PAGE = 4096 };

static esp_status cpu_alloc(struct esp_dev *d, size_t bytes, struct esp_buf **out, esp_error *err)
{
    const struct cpu_dev *c = (const struct cpu_dev *)d;
    struct esp_buf *b = esp_alloc(sizeof *b);
    esp_status s;

    if (!b)
        return esp_fail(err, ESP_ENOMEM, "no memory for a buffer of %zu bytes", bytes);
    b->dev = d;
    b->bytes = bytes ? bytes : 1;
    s = esp_huge_take(&b->host, b->bytes, c->huge, err);
    if (s != ESP_OK) {
        esp_free(b);
        return s;
    }
    esp_nodes_spread(c->nodes, b->host, b->bytes); /* any thread may read any of it */
    /* Touch every page now: what the plan promised is taken at the start, and no step can fail for want of
     * it. */
    for (size_t i = 0; i < b->bytes; i += PAGE)
        ((volatile uint8_t *)b->host)[i] = 0;
    *out = b;
    return ESP_OK;
}

static size_t cpu_alloc_bytes(const struct esp_dev *d, size_t bytes)
{
    return esp_huge_round(((const struct cpu_dev *)d)->huge, bytes);
}

static void cpu_free(struct esp_buf *b)
{
    if (!b)
        return;
    esp_huge_give(b->host, b->bytes, ((const struct cpu_dev *)b->dev)->huge);
    esp_free(b);
}

static esp_status cpu_copy(struct esp_span dst, struct esp_span src, esp_error *err)
{
    if (dst.bytes != src.bytes || dst.off > dst.buf->bytes || dst.bytes > dst.buf->bytes - dst.off ||
        src.off > src.buf->bytes || src.bytes > src.buf->bytes - src.off)
        return esp_fail(err, ESP_EINVAL, "copy of %zu bytes into %zu leaves its buffer", src.bytes,
                        dst.bytes);
    memmove((uint8_t *)dst.buf->host + dst.off, (const uint8_t *)src.buf->host + src.off, src.bytes);
    return ESP_OK;
}

static esp_status cpu_copy_many(struct esp_span dst, size_t dst_stride, struct esp_span src,
                                size_t src_stride, uint32_t n, esp_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        ESP_TRY(cpu_copy(dst, src, err));
        dst.off += dst_stride;
        src.off += src_stride;
    }
    return ESP_OK;
}

static esp_status cpu_fill(struct esp_span dst, uint8_t value, esp_error *err)
{
    if (dst.off > dst.buf->bytes || dst.bytes > dst.buf->bytes - dst.off)
        return esp_fail(err, ESP_EINVAL, "filling %zu bytes at %zu leaves a buffer of %zu", dst.bytes,
                        dst.off, dst.buf->bytes);
    memset((uint8_t *)dst.buf->host + dst.off, value, dst.bytes);
    return ESP_OK;
}

static esp_status cpu_wait(struct esp_dev *d, esp_error *err)
{
    (void)d;
    (void)err; /* esp_cpu_run() returns when the step is done */
    return ESP_OK;
}

static void cpu_close(struct esp_dev *d)
{
    struct cpu_dev *c = (struct cpu_dev *)d;

    if (!c)
        return;
    esp_pool_destroy(c->pool);
    esp_free_aligned(c);
}

static const struct esp_backend_ops cpu_ops = {
    .name = "cpu",
    .close = cpu_close,
    .alloc = cpu_alloc,
    .alloc_bytes = cpu_alloc_bytes,
    .free = cpu_free,
    .copy = cpu_copy,
    .copy_many = cpu_copy_many,
    .fill = cpu_fill,
    .can = esp_cpu_can,
    .plan_bytes = esp_cpu_plan_bytes,
    .compile = esp_cpu_compile,
    .plan_free = esp_cpu_plan_free,
    .run = esp_cpu_run,
    .wait = cpu_wait,
};

esp_status esp_cpu_open(struct esp_dev **out, enum esp_cpu_level level, uint32_t n_thread, esp_error *err)
{
    return esp_cpu_open_on(out, level, n_thread, 0, ESP_HUGE_AUTO, NULL, err);
}

esp_status esp_cpu_open_on(struct esp_dev **out, enum esp_cpu_level level, uint32_t n_thread,
                           uint32_t n_batch, enum esp_huge huge, const struct esp_nodes *nodes,
                           esp_error *err)
{
    struct cpu_dev *c = esp_alloc_aligned(sizeof *c, 64);
    esp_status s;

    if (!c)
        return esp_fail(err, ESP_ENOMEM, "cpu: out of memory");
    c->base.ops = &cpu_ops;
    snprintf(c->base.name, sizeof c->base.name, "cpu (%s)", esp_cpu_level_name(level));
    esp_kernels_init(&c->k, level);
    c->huge = huge;
    c->nodes = nodes;
    c->n_thread = n_thread ? n_thread : esp_core_count();
    c->n_batch = n_batch ? n_batch : c->n_thread;
    s = esp_pool_create_on(&c->pool, c->n_thread > c->n_batch ? c->n_thread : c->n_batch, nodes, err);
    if (s != ESP_OK) {
        esp_free_aligned(c);
        return s;
    }
    *out = &c->base;
    return ESP_OK;
}

const struct esp_kernels *esp_cpu_kernels(const struct esp_dev *d)
{
    return &((const struct cpu_dev *)d)->k;
}
