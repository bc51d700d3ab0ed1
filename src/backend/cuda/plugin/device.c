/*
 * A CUDA device as a backend: opening, memory, copies. Copies and fills are put on the device's stream, so
 * they are ordered with steps; one that touches host memory is finished when it returns.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/cuda.h"
#include "backend/cuda/plugin/stream.h"
#include "backend/cuda/plugin/wide.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#include "backend/cuda/plugin.h"

esp_status cuda_failed(esp_error *err, cudaError_t e, const char *what)
{
    size_t left = 0, total = 0;

    cudaGetLastError(); /* errors that do not kill the context are forgotten by it too */
    if (e != cudaErrorMemoryAllocation)
        return esp_fail(err, ESP_EDEVICE, "CUDA: %s: %s", what, cudaGetErrorString(e));
    if (cudaMemGetInfo(&left, &total) != cudaSuccess)
        left = total = 0;
    return esp_fail(err, ESP_ENOMEM, "CUDA: %s: out of memory; %zu MiB of %zu MiB are free", what, left >> 20,
                    total >> 20);
}

esp_status cuda_use(const struct cuda_dev *d, esp_error *err)
{
    CUDA_TRY(cudaSetDevice(d->index), "choosing the device");
    return ESP_OK;
}

static esp_status dev_alloc(struct esp_dev *dev, size_t bytes, struct esp_buf **out, esp_error *err)
{
    struct cuda_dev *d = (struct cuda_dev *)dev;
    struct cuda_buf *b;
    cudaError_t e;

    ESP_TRY(cuda_use(d, err));
    b = esp_alloc(sizeof *b);
    if (!b)
        return esp_fail(err, ESP_ENOMEM, "no memory for a buffer of %zu bytes", bytes);
    b->base.dev = dev;
    b->base.bytes = bytes ? bytes : 1;
    e = cudaMalloc((void **)&b->mem, b->base.bytes);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(b->mem, 0, b->base.bytes, d->stream);
    if (e != cudaSuccess) {
        char what[64];

        snprintf(what, sizeof what, "a buffer of %zu bytes", bytes);
        cudaFree(b->mem);
        esp_free(b);
        return cuda_failed(err, e, what);
    }
    *out = &b->base;
    return ESP_OK;
}

static void dev_free(struct esp_buf *b)
{
    if (!b)
        return;
    cuda_use((const struct cuda_dev *)b->dev, NULL);
    cudaFree(cuda_mem(b)); /* waits for the device */
    esp_free(b);
}

static bool inside(const struct esp_span *s)
{
    return s->off <= s->buf->bytes && s->bytes <= s->buf->bytes - s->off;
}

static uint8_t *address(const struct esp_span *s)
{
    return (s->buf->host ? (uint8_t *)s->buf->host : cuda_mem(s->buf)) + s->off;
}

static esp_status dev_copy(struct esp_span dst, struct esp_span src, esp_error *err)
{
    struct cuda_dev *d = (struct cuda_dev *)(dst.buf->host ? src.buf->dev : dst.buf->dev);

    if (dst.bytes != src.bytes || !inside(&dst) || !inside(&src))
        return esp_fail(err, ESP_EINVAL, "copy of %zu bytes into %zu leaves its buffer", src.bytes,
                        dst.bytes);
    ESP_TRY(cuda_use(d, err));
    CUDA_TRY(cudaMemcpyAsync(address(&dst), address(&src), dst.bytes, cudaMemcpyDefault, d->stream),
             "copying");
    if (dst.buf->host || src.buf->host)
        CUDA_TRY(cudaStreamSynchronize(d->stream), "copying");
    return ESP_OK;
}

static bool inside_many(const struct esp_span *s, size_t stride, uint32_t n)
{
    const struct esp_span last = {s->buf, s->off + (n - 1) * stride, s->bytes};

    return inside(s) && (n == 1 || (stride >= s->bytes && inside(&last)));
}

static esp_status dev_copy_many(struct esp_span dst, size_t dst_stride, struct esp_span src,
                                size_t src_stride, uint32_t n, esp_error *err)
{
    struct cuda_dev *d = (struct cuda_dev *)(dst.buf->host ? src.buf->dev : dst.buf->dev);

    if (n == 0)
        return ESP_OK;
    if (dst.bytes != src.bytes || !inside_many(&dst, dst_stride, n) || !inside_many(&src, src_stride, n))
        return esp_fail(err, ESP_EINVAL, "%u copies of %zu bytes leave their buffers", n, dst.bytes);
    ESP_TRY(cuda_use(d, err));
    CUDA_TRY(cudaMemcpy2DAsync(address(&dst), dst_stride, address(&src), src_stride, dst.bytes, n,
                               cudaMemcpyDefault, d->stream),
             "copying");
    if (dst.buf->host || src.buf->host)
        CUDA_TRY(cudaStreamSynchronize(d->stream), "copying");
    return ESP_OK;
}

static esp_status dev_fill(struct esp_span dst, uint8_t value, esp_error *err)
{
    struct cuda_dev *d = (struct cuda_dev *)dst.buf->dev;

    if (!inside(&dst))
        return esp_fail(err, ESP_EINVAL, "filling %zu bytes at %zu leaves a buffer of %zu", dst.bytes,
                        dst.off, dst.buf->bytes);
    ESP_TRY(cuda_use(d, err));
    CUDA_TRY(cudaMemsetAsync(address(&dst), value, dst.bytes, d->stream), "filling");
    return ESP_OK;
}

static void *dev_host_alloc(struct esp_dev *dev, size_t bytes)
{
    void *p = NULL;

    if (cuda_use((struct cuda_dev *)dev, NULL) != ESP_OK)
        return NULL;
    if (cudaMallocHost(&p, bytes ? bytes : 1) == cudaSuccess)
        return p;
    cudaGetLastError();
    return NULL;
}

static void dev_host_free(struct esp_dev *dev, void *p)
{
    if (p && cuda_use((struct cuda_dev *)dev, NULL) == ESP_OK)
        cudaFreeHost(p);
}

static esp_status dev_memory(struct esp_dev *dev, uint64_t *left, uint64_t *total, esp_error *err)
{
    size_t l = 0, t = 0;

    ESP_TRY(cuda_use((struct cuda_dev *)dev, err));
    CUDA_TRY(cudaMemGetInfo(&l, &t), "asking for the memory");
    *left = l;
    *total = t;
    return ESP_OK;
}

static void dev_close(struct esp_dev *dev)
{
    struct cuda_dev *d = (struct cuda_dev *)dev;

    if (!d)
        return;
    cuda_use(d, NULL);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    cuda_lora_close(d);
    cuda_paths_close(d);
    for (uint32_t i = 0; i < d->n_weight; i++)
        esp_free(d->weights[i]);
    esp_free(d->weights);
    esp_free(d);
}

static const struct esp_backend_ops cuda_ops = {
    .name = "cuda",
    .close = dev_close,
    .alloc = dev_alloc,
    .free = dev_free,
    .copy = dev_copy,
    .copy_many = dev_copy_many,
    .fill = dev_fill,
    .can = cuda_can,
    .plan_bytes = cuda_plan_bytes,
    .compile = cuda_compile,
    .plan_free = cuda_plan_free,
    .run = cuda_run,
    .wait = cuda_wait,
    .logits = cuda_logits,
    .memory = dev_memory,
    .weight_bytes = cuda_weight_bytes,
    .host_alloc = dev_host_alloc,
    .host_free = dev_host_free,
    .paths = cuda_paths,
};

static esp_status check_count(uint32_t index, esp_error *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);

    if (e == cudaErrorInsufficientDriver) {
        int driver = 0;

        cudaDriverGetVersion(&driver);
        if (driver == 0)
            return esp_fail(err, ESP_EDEVICE, "CUDA: no NVIDIA driver is loaded");
        return esp_fail(err, ESP_EDEVICE,
                        "CUDA: the driver is for CUDA %d.%d, this build needs %d.%d or newer", driver / 1000,
                        driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0))
        return esp_fail(err, ESP_EDEVICE, "CUDA: no device");
    if (e != cudaSuccess)
        return cuda_failed(err, e, "counting devices");
    if (index >= (uint32_t)n)
        return esp_fail(err, ESP_EDEVICE, "CUDA: no device %u; %d present, numbered from 0", index, n);
    return ESP_OK;
}

/* Compute capability, code for it in this build, shared memory. */
static esp_status look_at(struct cuda_dev *d, esp_error *err)
{
    const char *early = getenv("ESPALIER_CUDA_EARLY"); /* 0: kernels one after another, as in start.cuh */
    int major = 0, minor = 0, shared = 0;
    struct cudaDeviceProp props;
    cudaError_t e;

    CUDA_TRY(cudaGetDeviceProperties(&props, d->index), "reading the device's properties");
    major = props.major;
    minor = props.minor;
    shared = (int)props.sharedMemPerBlockOptin;
    if (major < 8)
        return esp_fail(err, ESP_EDEVICE,
                        "CUDA: device %d (%s) has compute capability %d.%d; 8.0 or newer is needed", d->index,
                        props.name, major, minor);
    e = cu_probe();
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction)
        return esp_fail(err, ESP_EDEVICE,
                        "CUDA: this build has no code for device %d (%s, compute capability %d.%d)", d->index,
                        props.name, major, minor);
    if (e != cudaSuccess)
        return cuda_failed(err, e, "loading kernels");
    d->tiled = shared >= CU_TILED_SHARED;
    d->early = major >= 9 && !(early && early[0] == '0');
    d->wide = major == 9 && minor == 0 && shared >= CU_WIDE_SHARED && cu_wide_known();
    d->n_multiprocessor = (uint32_t)props.multiProcessorCount;
    if (d->tiled) {
        CUDA_TRY(cu_linear_setup_bf16(), "setting up products");
        CUDA_TRY(cu_linear_setup_q2(), "setting up products");
        CUDA_TRY(cu_linear_setup_q4(), "setting up products");
        CUDA_TRY(cu_linear_setup_q8(), "setting up products");
        CUDA_TRY(cu_linear_setup_coded(), "setting up products");
        CUDA_TRY(cu_stream_setup(), "setting up products");
    }
    if (d->wide)
        CUDA_TRY(cu_wide_setup(), "setting up products");
    snprintf(d->base.name, sizeof d->base.name, "cuda:%d (%.40s)", d->index, props.name);
    CUDA_TRY(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "making a stream");
    return ESP_OK;
}

/* The library's one entry, see plugin.h. */
ESP_API esp_status esp_cuda_plugin(struct esp_dev **out, const struct esp_cuda_key *key, uint32_t index,
                                   esp_error *err);

esp_status esp_cuda_plugin(struct esp_dev **out, const struct esp_cuda_key *key, uint32_t index,
                           esp_error *err)
{
    const struct esp_cuda_key own = esp_cuda_key();
    const char *few = getenv("ESPALIER_CUDA_FEW"); /* 0: whole rows of logits, to find faults */
    static struct esp_backend_ops whole;
    struct cuda_dev *d;
    esp_status s;

    if (memcmp(key, &own, sizeof own) != 0)
        return esp_fail(err, ESP_EDEVICE, "the CUDA backend was built from another version of espalier");
    ESP_TRY(check_count(index, err));
    d = esp_alloc(sizeof *d);
    if (!d)
        return esp_fail(err, ESP_ENOMEM, "cuda: out of memory");
    whole = cuda_ops;
    whole.logits = NULL;
    d->base.ops = few && few[0] == '0' ? &whole : &cuda_ops;
    d->index = (int)index;
    s = cuda_use(d, err);
    if (s == ESP_OK)
        s = look_at(d, err);
    if (s != ESP_OK) {
        dev_close(&d->base);
        return s;
    }
    *out = &d->base;
    return ESP_OK;
}
