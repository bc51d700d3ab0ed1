/*
 * Searching for trellis paths, host side. Blocks go to the device in parts, by turns through two slots with a
 * stream each: while one searches, the other's targets are on their way. Memory that is not page-locked goes
 * through some that is. What the slots need is taken at the first search and kept until the device is closed.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/paths.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#include "backend/cuda/plugin/cuda.h"

enum {
    SLOTS = 2,
    RESIDENT = 8, /* blocks of CU_PATHS_THREADS threads on a multiprocessor at most: the kernel's bound */
    ROUNDS = 4,   /* of them in a part */
    STEPS = CU_PATHS_STEPS
};

struct slot {
    cudaStream_t stream;
    float *u, *w;     /* on the device, [part][256] */
    uint16_t *states; /* likewise */
    uint32_t *choices;
    float *host_u, *host_w; /* page-locked */
    uint16_t *host_states;
    uint32_t first, n; /* blocks of the job in flight; n 0: none */
};

struct cuda_paths {
    uint32_t part;     /* blocks */
    uint32_t grid_max; /* of CU_PATHS_THREADS threads, for which `choices` has room */
    float *taps;
    struct slot slots[SLOTS];
};

void cuda_paths_close(struct cuda_dev *d)
{
    struct cuda_paths *c = d->paths;

    if (!c)
        return;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &c->slots[i];

        if (s->stream)
            cudaStreamDestroy(s->stream);
        cudaFree(s->u);
        cudaFree(s->w);
        cudaFree(s->states);
        cudaFree(s->choices);
        cudaFreeHost(s->host_u);
        cudaFreeHost(s->host_w);
        cudaFreeHost(s->host_states);
    }
    cudaFree(c->taps);
    esp_free(c);
    d->paths = NULL;
}

static cudaError_t slot_open(struct slot *s, uint32_t part, size_t choices)
{
    const size_t floats = (size_t)part * STEPS * sizeof(float), states = (size_t)part * STEPS * 2;
    cudaError_t e = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);

    if (e == cudaSuccess)
        e = cudaMalloc((void **)&s->u, floats);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&s->w, floats);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&s->states, states);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&s->choices, choices);
    if (e == cudaSuccess)
        e = cudaMallocHost((void **)&s->host_u, floats);
    if (e == cudaSuccess)
        e = cudaMallocHost((void **)&s->host_w, floats);
    if (e == cudaSuccess)
        e = cudaMallocHost((void **)&s->host_states, states);
    return e;
}

static esp_status open_paths(struct cuda_dev *d, esp_error *err)
{
    struct cuda_paths *c;
    cudaError_t e;
    size_t choices;

    if (d->paths)
        return ESP_OK;
    c = esp_alloc(sizeof *c);
    if (!c)
        return esp_fail(err, ESP_ENOMEM, "cuda: out of memory");
    d->paths = c;
    c->grid_max = d->n_multiprocessor * RESIDENT;
    c->part = c->grid_max * ROUNDS;
    choices = (size_t)c->grid_max * STEPS * CU_PATHS_THREADS * sizeof(uint32_t);
    e = cudaMalloc((void **)&c->taps, CU_PATHS_TAPS * sizeof *c->taps);
    for (int i = 0; i < SLOTS && e == cudaSuccess; i++)
        e = slot_open(&c->slots[i], c->part, choices);
    if (e == cudaSuccess)
        return ESP_OK;
    cuda_paths_close(d);
    return cuda_failed(err, e, "making room for the search of trellis paths");
}

/* Whether copies of the device can use memory as it is. */
static bool page_locked(const void *p)
{
    struct cudaPointerAttributes a;

    if (cudaPointerGetAttributes(&a, p) == cudaSuccess)
        return a.type == cudaMemoryTypeHost;
    cudaGetLastError();
    return false;
}

/* Wait for what a slot does, and take it. */
static esp_status finish(struct slot *s, const struct esp_paths *p, esp_error *err)
{
    const uint32_t n = s->n;

    s->n = 0;
    if (n == 0)
        return ESP_OK;
    CUDA_TRY(cudaStreamSynchronize(s->stream), "searching trellis paths");
    if (!page_locked(p->states))
        memcpy(p->states + (size_t)s->first * STEPS, s->host_states, (size_t)n * STEPS * sizeof *p->states);
    return ESP_OK;
}

/* Threads of one block of weights, and blocks of threads. */
static esp_status shape(const struct cuda_dev *d, uint32_t k, uint32_t n, uint32_t *threads, uint32_t *grid,
                        esp_error *err)
{
    const uint32_t few = 2 * d->n_multiprocessor;
    uint32_t most;

    *threads = n <= few ? CU_PATHS_FEW_THREADS : CU_PATHS_THREADS;
    most = d->paths->grid_max * CU_PATHS_THREADS / *threads;
    CUDA_TRY(cu_paths_grid(grid, k, *threads), "asking for room on the device");
    if (*grid == 0)
        return esp_fail(err, ESP_EDEVICE, "CUDA: %s has no room for the search of %u-bit trellis paths",
                        d->base.name, k);
    *grid = *grid < most ? *grid : most;
    *grid = *grid < n ? *grid : n;
    return ESP_OK;
}

static esp_status send(struct slot *s, float *to, const float *from, float *host, size_t count,
                       esp_error *err)
{
    if (!page_locked(from)) {
        memcpy(host, from, count * sizeof *host);
        from = host;
    }
    CUDA_TRY(cudaMemcpyAsync(to, from, count * sizeof *to, cudaMemcpyHostToDevice, s->stream),
             "sending trellis targets");
    return ESP_OK;
}

static esp_status start(struct cuda_dev *d, struct slot *s, const struct esp_paths *p, uint32_t first,
                        uint32_t n, esp_error *err)
{
    const size_t at = (size_t)first * STEPS, count = (size_t)n * STEPS;
    struct cu_paths job = {.k = p->k,
                           .window = p->window,
                           .every = p->every,
                           .cost_high = p->cost_high,
                           .n_range = p->n_range,
                           .n = n,
                           .group = p->group,
                           .u = s->u,
                           .w = s->w,
                           .taps = d->paths->taps,
                           .states = s->states,
                           .choices = s->choices};
    uint32_t threads, grid;

    memcpy(job.range, p->range, sizeof job.range);
    ESP_TRY(shape(d, p->k, n, &threads, &grid, err));
    s->first = first;
    s->n = n;
    ESP_TRY(send(s, s->u, p->u + at, s->host_u, count, err));
    if (p->group)
        ESP_TRY(send(s, s->w, p->w + at, s->host_w, count, err));
    cu_paths_start(s->stream, &job, grid, threads);
    CUDA_TRY(cudaGetLastError(), "starting the search of trellis paths");
    CUDA_TRY(cudaMemcpyAsync(page_locked(p->states) ? p->states + at : s->host_states, s->states,
                             count * sizeof(uint16_t), cudaMemcpyDeviceToHost, s->stream),
             "bringing trellis paths");
    return ESP_OK;
}

static esp_status check(const struct esp_paths *p, esp_error *err)
{
    if (p->k < 1 || p->k > 8 || p->window < 1 || p->window > STEPS / 2 || p->every < 1 || p->n_range < 1 ||
        p->n_range > ESP_PATHS_RANGES)
        return esp_fail(err, ESP_EINVAL, "trellis paths of %u bits, window %u, %u ranges: not possible", p->k,
                        p->window, p->n_range);
    if (p->group && p->group != 16 && p->group != 32 && p->group != 64 && p->group != 128)
        return esp_fail(err, ESP_EINVAL, "trellis feedback in groups of %u; 16, 32, 64, 128 are possible",
                        p->group);
    return ESP_OK;
}

/* Finished when it returns: both slots read them. */
static esp_status send_taps(struct cuda_paths *c, const struct esp_paths *p, esp_error *err)
{
    cudaStream_t stream = c->slots[0].stream;

    CUDA_TRY(cudaMemcpy2DAsync(c->taps, STEPS * sizeof(float), p->taps, p->ld * sizeof(float),
                               STEPS * sizeof(float), STEPS, cudaMemcpyHostToDevice, stream),
             "sending feedback");
    CUDA_TRY(cudaStreamSynchronize(stream), "sending feedback");
    return ESP_OK;
}

esp_status cuda_paths(struct esp_dev *dev, const struct esp_paths *p, esp_error *err)
{
    struct cuda_dev *d = (struct cuda_dev *)dev;
    esp_status s = ESP_OK;
    uint32_t turn = 0;

    ESP_TRY(check(p, err));
    ESP_TRY(cuda_use(d, err));
    ESP_TRY(open_paths(d, err));
    if (p->group)
        ESP_TRY(send_taps(d->paths, p, err));
    for (uint32_t first = 0; s == ESP_OK && first < p->n; turn++) {
        struct slot *slot = &d->paths->slots[turn % SLOTS];
        const uint32_t left = p->n - first, n = left < d->paths->part ? left : d->paths->part;

        s = finish(slot, p, err);
        if (s == ESP_OK)
            s = start(d, slot, p, first, n, err);
        first += n;
    }
    for (uint32_t i = 0; i < SLOTS; i++, turn++) { /* the older first */
        struct slot *slot = &d->paths->slots[turn % SLOTS];

        if (s == ESP_OK) {
            s = finish(slot, p, err);
        } else if (slot->n) { /* nothing may write host memory once this has failed */
            cudaStreamSynchronize(slot->stream);
            slot->n = 0;
        }
    }
    return s;
}
