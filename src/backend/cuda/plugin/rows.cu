/*
 * Ops that treat every row alone. A thread owns 8 consecutive elements, so that what a product reads next can
 * be written in the product's own form on the way out, and y in that form alone where it is NULL.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/rope.cuh"

/* Threads for a row of width elements, 8 a thread: whole warps, at most 512. */
static unsigned threads_for(uint32_t width)
{
    unsigned n = (width / 8 + 31) / 32 * 32;

    return n < 32 ? 32 : n > 512 ? 512 : n;
}

/* ---- norms
 * ----------------------------------------------------------------------------------------------------------
 */

/* Threads of a norm: a row of up to 8192 elements stays in registers. */
static unsigned norm_threads(uint32_t width)
{
    const unsigned n = (width / 8 + 31) / 32 * 32;

    return n < 32 ? 32 : n > 1024 ? 1024 : n;
}

/* Eight elements of a, or of a + b when b is given: then the sum goes to x_out. */
static __device__ __forceinline__ void norm_load(const float *a, const float *b, float *x_out, size_t at,
                                                 float v[8])
{
    float u[8];

    cu_load8(a + at, v);
    if (!b)
        return;
    cu_load8(b + at, u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] += u[i];
    cu_store8(x_out + at, v);
}

static __device__ __forceinline__ void norm_store(const float v[8], const float u[8], float inv, float *y,
                                                  size_t base, uint32_t k, const cu_act &act)
{
    float w[8];

#pragma unroll
    for (int i = 0; i < 8; i++)
        w[i] = v[i] * inv * u[i];
    if (y)
        cu_store8(y + base + k, w);
    if (act.n_term)
        cu_emit8(act, blockIdx.x, k, w);
}

/* x [row][width], or a + b. */
static __global__ void __launch_bounds__(1024)
    rmsnorm(const float *a, const float *b, float *x_out, const float *gamma, float eps, float *y,
            uint32_t width, cu_act act)
{
    __shared__ float red[32];
    const size_t base = (size_t)blockIdx.x * width;
    const uint32_t first = threadIdx.x * 8, step = blockDim.x * 8;
    float v[8], u[8], sum = 0, inv;

    if (first < width)
        cu_load8(gamma + first, u); /* no kernel writes it */
    cu_let_next_start();
    cu_wait_for_inputs();
    if (first < width) {
        norm_load(a, b, x_out, base + first, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(v[i], v[i], sum);
    }
    for (uint32_t k = first + step; k < width; k += step) {
        float w[8];

        norm_load(a, b, x_out, base + k, w);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(w[i], w[i], sum);
    }
    inv = 1.0f / sqrtf(cu_block_sum(sum, red) / (float)width + eps);
    if (first < width)
        norm_store(v, u, inv, y, base, first, act);
    for (uint32_t k = first + step; k < width; k += step) {
        cu_load8((b ? x_out : a) + base + k, v); /* its own thread wrote it */
        cu_load8(gamma + k, u);
        norm_store(v, u, inv, y, base, k, act);
    }
}

void cu_rmsnorm(cudaStream_t s, const float *x, const float *gamma, float eps, float *y, uint32_t n_row,
                uint32_t width, const struct cu_act *act)
{
    cu_start(s, rmsnorm, n_row, norm_threads(width), 0, x, nullptr, nullptr, gamma, eps, y, width, *act);
}

void cu_add_rmsnorm(cudaStream_t s, const float *a, const float *b, float *sum, const float *gamma, float eps,
                    float *y, uint32_t n_row, uint32_t width, const struct cu_act *act)
{
    cu_start(s, rmsnorm, n_row, norm_threads(width), 0, a, b, sum, gamma, eps, y, width, *act);
}

/* The sum over the 2^n lanes that have a head; a warp whose other lanes have zeros gets the same bits. */
static __device__ __forceinline__ float head_sum(float v, uint32_t lanes)
{
    for (uint32_t m = lanes / 2; m; m >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, (int)m);
    return v;
}

/* Elements [k, k + 8) of head `head` of token tok, sum of its squares given. */
static __device__ __forceinline__ void gated_norm_store(const float v[8], const float *z, const float *gamma,
                                                        float inv, const cu_heads &h, uint32_t tok,
                                                        uint32_t head, uint32_t k, float *y,
                                                        const cu_act &act)
{
    const size_t at = ((size_t)tok * h.n_head + head) * h.dim + k;
    float u[8], w[8], out[8];

    cu_load8(gamma + k, u);
    cu_load8(z + at, w);
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = v[i] * inv * u[i] * cu_silu(w[i]);
    if (y)
        cu_store8(y + at, out);
    if (act.n_term)
        cu_emit8(act, tok, head * h.dim + k, out);
}

/* A block is a (token, head); a warp suffices for heads of up to 256. */
static __global__ void __launch_bounds__(64) gated_norm(const float *o, const float *z, const float *gamma,
                                                        float eps, cu_heads h, float *y, cu_act act)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ float red[32];
    const uint32_t tok = blockIdx.y, k = threadIdx.x * 8;
    float v[8], sum = 0, inv;

    if (k < h.dim) {
        cu_load8(o + ((size_t)tok * h.n_head + blockIdx.x) * h.dim + k, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(v[i], v[i], sum);
    }
    inv = 1.0f / sqrtf(cu_block_sum(sum, red) / (float)h.dim + eps);
    if (k < h.dim)
        gated_norm_store(v, z, gamma, inv, h, tok, blockIdx.x, k, y, act);
}

/* The same for heads of a power of two of lanes, of eight elements each: several a warp. */
static __global__ void __launch_bounds__(256)
    gated_norms(const float *o, const float *z, const float *gamma, float eps, cu_heads h, float *y,
                cu_act act, uint32_t n)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const uint32_t lanes = h.dim / 8, e = blockIdx.x * 256 + threadIdx.x, head = min(e / lanes, n - 1),
                   k = e % lanes * 8;
    float v[8], sum = 0, inv;

    cu_load8(o + (size_t)head * h.dim + k, v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum = fmaf(v[i], v[i], sum);
    inv = 1.0f / sqrtf(head_sum(sum, lanes) / (float)h.dim + eps);
    if (e / lanes < n)
        gated_norm_store(v, z, gamma, inv, h, head / h.n_head, head % h.n_head, k, y, act);
}

void cu_gated_norm(cudaStream_t s, const float *o, const float *z, const float *gamma, float eps,
                   struct cu_heads h, float *y, uint32_t n_tok, const struct cu_act *act)
{
    const uint32_t lanes = h.dim / 8, n = n_tok * h.n_head;

    if (h.dim % 32 == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0)
        cu_start(s, gated_norms, (unsigned)(((size_t)n * lanes + 255) / 256), 256, 0, o, z, gamma, eps, h, y,
                 *act, n);
    else
        cu_start(s, gated_norm, dim3(h.n_head, n_tok), threads_for(h.dim), 0, o, z, gamma, eps, h, y, *act);
}

/* ---- heads
 * ----------------------------------------------------------------------------------------------------------
 */

static __global__ void rope_table(cu_rope r, const int32_t *pos)
{
    const uint32_t tok = blockIdx.x;

    for (uint32_t j = threadIdx.x; j < r.n_half; j += blockDim.x) {
        const float angle = r.freq[j] * (float)pos[tok * 3 + r.axis[j]];

        r.table[(size_t)tok * 2 * r.n_half + j] = cosf(angle) * r.mscale;
        r.table[((size_t)tok * 2 + 1) * r.n_half + j] = sinf(angle) * r.mscale;
    }
}

void cu_rope_table(cudaStream_t s, const struct cu_rope *r, const struct cu_batch *b, uint32_t n_tok)
{
    if (r->n_half)
        rope_table<<<n_tok, 64, 0, s>>>(*r, b->pos);
}

static __global__ void __launch_bounds__(64)
    head_rope(const float *x, const float *gamma, float eps, float scale, cu_heads h, cu_rope r, float *y)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    __shared__ rope_room room;
    const size_t head = (size_t)blockIdx.y * h.n_head + blockIdx.x;

    norm_for_rope(&room, x + head * h.stride, gamma, eps, h.dim);
    for (uint32_t j = threadIdx.x; j < h.dim; j += blockDim.x)
        y[head * h.dim + j] = rotated(room, r, blockIdx.y, j) * scale;
}

void cu_head_rope(cudaStream_t s, const float *x, const float *gamma, float eps, float scale,
                  struct cu_heads h, const struct cu_rope *r, float *y, uint32_t n_tok)
{
    cu_start(s, head_rope, dim3(h.n_head, n_tok), threads_for(h.dim), 0, x, gamma, eps, scale, h, *r, y);
}

static __global__ void head_gate(const float *x, const float *gate, cu_heads h, float *y, cu_act act)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const uint32_t width = h.n_head * h.dim, k = (blockIdx.x * blockDim.x + threadIdx.x) * 8,
                   tok = blockIdx.y;
    float v[8], u[8];

    if (k >= width)
        return;
    cu_load8(x + (size_t)tok * width + k, v);
    cu_load8(gate + ((size_t)tok * h.n_head + k / h.dim) * h.stride + h.dim + k % h.dim, u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] *= cu_sigmoid(u[i]);
    if (y)
        cu_store8(y + (size_t)tok * width + k, v);
    if (act.n_term)
        cu_emit8(act, tok, k, v);
}

void cu_head_gate(cudaStream_t s, const float *x, const float *gate, struct cu_heads h, float *y,
                  uint32_t n_tok, const struct cu_act *act)
{
    cu_start(s, head_gate, dim3((h.n_head * h.dim / 8 + 127) / 128, n_tok), 128, 0, x, gate, h, y, *act);
}

static __global__ void gates(const float *b, const float *a, const float *a_neg, const float *dt_bias,
                             float *y, uint32_t n)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const uint32_t tok = blockIdx.x;

    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float s = a[(size_t)tok * n + i] + dt_bias[i];

        y[(size_t)tok * 2 * n + i] = cu_sigmoid(b[(size_t)tok * n + i]);
        y[(size_t)tok * 2 * n + n + i] = a_neg[i] * (s > 20 ? s : log1pf(expf(s)));
    }
}

void cu_gates(cudaStream_t s, const float *b, const float *a, const float *a_neg, const float *dt_bias,
              float *y, uint32_t n_tok, uint32_t n)
{
    cu_start(s, gates, n_tok, 64, 0, b, a, a_neg, dt_bias, y, n);
}

/* ---- elementwise
 * ---------------------------------------------------------------------------------------------------- */

static __global__ void swiglu(const float *gate, const float *up, float *y, uint32_t width, cu_act act)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const uint32_t k = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    const size_t at = (size_t)blockIdx.y * width + k;
    float v[8], u[8];

    if (k >= width)
        return;
    cu_load8(gate + at, v);
    cu_load8(up + at, u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = cu_silu(v[i]) * u[i];
    if (y)
        cu_store8(y + at, v);
    if (act.n_term)
        cu_emit8(act, blockIdx.y, k, v);
}

void cu_swiglu(cudaStream_t s, const float *gate, const float *up, float *y, uint32_t n_row, uint32_t width,
               const struct cu_act *act)
{
    cu_start(s, swiglu, dim3((width / 8 + 127) / 128, n_row), 128, 0, gate, up, y, width, *act);
}

static __global__ void add(const float *a, const float *b, float *y, size_t n)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        y[i] = a[i] + b[i];
}

void cu_add(cudaStream_t s, const float *a, const float *b, float *y, size_t n)
{
    cu_start(s, add, (unsigned)((n + 255) / 256), 256, 0, a, b, y, n);
}

static __global__ void gather(const uint32_t *rows, const float *x, float *y, uint32_t width)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    for (uint32_t k = threadIdx.x; k < width; k += blockDim.x)
        y[(size_t)blockIdx.x * width + k] = x[(size_t)rows[blockIdx.x] * width + k];
}

void cu_gather(cudaStream_t s, const struct cu_batch *b, const float *x, float *y, uint32_t n_out,
               uint32_t width)
{
    if (n_out)
        cu_start(s, gather, n_out, 256, 0, b->out_rows, x, y, width);
}
