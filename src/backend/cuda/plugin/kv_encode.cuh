/*
 * Keys and values to codes, one row a block. The bytes are those of formats/kv.c and formats/turboquant.c:
 * the same operations in the same order, none contracted. Groups go to warps, their elements to lanes; sums
 * of squares, whose order counts, are one lane's work.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_KV_ENCODE_CUH
#define ESP_BACKEND_CUDA_PLUGIN_KV_ENCODE_CUH

#include "backend/cuda/plugin/kv_rotate.cuh"

enum {
    KV_GROUP = 32, /* of turbo */
    KV_DIM_MAX = 512,
    KV_ROW_MAX = 1024, /* bytes of a coded row: 512 codes and 32 scales of 16 bits at most */
    KV_LANE_MAX = 4    /* elements of an affine group that a lane has */
};

struct encode_room {
    float x[KV_DIM_MAX];
    uint8_t codes[KV_DIM_MAX];
    uint32_t row[KV_ROW_MAX / 4];
    float by[KV_DIM_MAX / KV_GROUP]; /* what a group is divided by */
};

static __device__ __forceinline__ uint32_t f16_bits(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

static __device__ __forceinline__ float f16_value(uint32_t h)
{
    return __half2float(__ushort_as_half((unsigned short)h));
}

static __device__ __forceinline__ uint32_t bf16_bits(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/* NaN becomes 0, what f16 cannot hold its largest number. */
static __device__ __forceinline__ float repaired(float x)
{
    return fabsf(x) <= 65504.0f ? x : x != x ? 0.0f : copysignf(65504.0f, x);
}

/* ---- ranges ---- */

struct group_range {
    float lo, hi;
};

/* The first of the warp's elements v[0], then v[1], ... that equals x: a zero's sign is the first zero's. */
template <int N> static __device__ __forceinline__ float first_equal(const float v[N], uint32_t n, float x)
{
#pragma unroll
    for (int r = 0; r < N; r++) {
        const uint32_t who = __ballot_sync(0xffffffffu, r < (int)n && v[r] == x);

        if (who)
            return __shfl_sync(0xffffffffu, v[r], __ffs((int)who) - 1);
    }
    return x;
}

/* Of n * 32 finite elements: lane l has elements l, 32 + l, ... */
template <int N> static __device__ __forceinline__ group_range range_of(const float v[N], uint32_t n)
{
    group_range r = {v[0], v[0]};

#pragma unroll
    for (int i = 1; i < N; i++)
        if (i < (int)n) {
            r.lo = fminf(r.lo, v[i]);
            r.hi = fmaxf(r.hi, v[i]);
        }
#pragma unroll
    for (int m = 16; m; m >>= 1) {
        r.lo = fminf(r.lo, __shfl_xor_sync(0xffffffffu, r.lo, m));
        r.hi = fmaxf(r.hi, __shfl_xor_sync(0xffffffffu, r.hi, m));
    }
    r.lo = first_equal<N>(v, n, r.lo);
    r.hi = first_equal<N>(v, n, r.hi);
    return r;
}

static __device__ __forceinline__ float warp_most(float v)
{
#pragma unroll
    for (int m = 16; m; m >>= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
}

/* ---- affine ---- */

struct affine_fit {
    float scale, bias; /* as stored */
    float error;       /* largest */
    uint8_t codes[KV_LANE_MAX];
};

static __device__ __forceinline__ void affine_codes(const float v[KV_LANE_MAX], uint32_t n, float top,
                                                    affine_fit *f)
{
    float worst = 0;

#pragma unroll
    for (int i = 0; i < KV_LANE_MAX; i++)
        if (i < (int)n) {
            const float q = rintf(__fdiv_rn(__fsub_rn(v[i], f->bias), f->scale));
            const float c = q > 0 ? (q < top ? q : top) : 0.0f;
            const float e = fabsf(__fsub_rn(v[i], __fadd_rn(__fmul_rn(f->scale, c), f->bias)));

            f->codes[i] = (uint8_t)c;
            worst = e > worst ? e : worst;
        }
    f->error = warp_most(worst);
}

/* Scale and bias of MLX, as stored. */
static __device__ __forceinline__ affine_fit affine_first(const group_range &r, float top)
{
    affine_fit f;
    float s = __fdiv_rn(__fsub_rn(r.hi, r.lo), top), edge = r.lo, bias = 0, q0;

    s = s > 1e-7f ? s : 1e-7f;
    if (!(fabsf(r.lo) > fabsf(r.hi))) {
        edge = r.hi;
        s = -s;
    }
    q0 = rintf(__fdiv_rn(edge, s));
    if (q0 != 0) {
        s = __fdiv_rn(edge, q0);
        bias = edge;
    }
    f.scale = cu_bf16((uint16_t)bf16_bits(s));
    f.bias = cu_bf16((uint16_t)bf16_bits(bias));
    return f;
}

/* A bias at or below the smallest value and a scale that reaches the largest from there. */
static __device__ __forceinline__ affine_fit affine_again(const group_range &r, float top)
{
    uint32_t h = bf16_bits(r.lo);
    affine_fit f;
    float step;

    if (cu_bf16((uint16_t)h) > r.lo)
        h = h & 0x8000 ? h + 1 : h - 1;
    f.bias = cu_bf16((uint16_t)h);
    step = __fdiv_rn(__fsub_rn(r.hi, f.bias), top);
    step = step > 0x1p-100f ? step : 0x1p-100f;
    h = bf16_bits(step);
    if (cu_bf16((uint16_t)h) < step)
        h++;
    f.scale = cu_bf16((uint16_t)h);
    return f;
}

static __device__ __forceinline__ void encode_affine(const cu_kv &kv, uint32_t which, encode_room *room)
{
    const uint32_t lane = threadIdx.x & 31, bits = kv.code.bits[which], size = 1u << kv.code.group_shift;
    const uint32_t n = size / 32, n_group = kv.dim / size;
    uint16_t *scales = reinterpret_cast<uint16_t *>(room->row) + kv.dim * bits / 16;
    const float top = (float)((1u << bits) - 1);

    for (uint32_t g = threadIdx.x / 32; g < n_group; g += blockDim.x / 32) {
        float v[KV_LANE_MAX] = {0, 0, 0, 0};

#pragma unroll
        for (int i = 0; i < KV_LANE_MAX; i++)
            if (i < (int)n)
                v[i] = room->x[g * size + i * 32 + lane];
        const group_range r = range_of<KV_LANE_MAX>(v, n);
        affine_fit f = affine_first(r, top);

        affine_codes(v, n, top, &f);
        if (!(f.error <= __fmul_rn(0.502f, __fdiv_rn(__fsub_rn(r.hi, r.lo), top)))) {
            affine_fit again = affine_again(r, top);

            affine_codes(v, n, top, &again);
            if (again.error < f.error)
                f = again;
        }
#pragma unroll
        for (int i = 0; i < KV_LANE_MAX; i++)
            if (i < (int)n)
                room->codes[g * size + i * 32 + lane] = f.codes[i];
        if (lane == 0) {
            scales[g] = (uint16_t)bf16_bits(f.scale);
            scales[n_group + g] = (uint16_t)bf16_bits(f.bias);
        }
    }
}

/* ---- turbo, keys ---- */

struct key_range {
    float lo, hi, span, min, max, step, guarded, zero;
};

struct key_fit {
    uint32_t scale, zero; /* f16 */
    uint32_t code;        /* of the lane's element */
};

static __device__ __forceinline__ key_range key_range_of(float x, uint32_t bits)
{
    const group_range g = range_of<1>(&x, 1);
    key_range r = {-127, 127, 254, g.lo, g.hi, 0, 0, 0};

    if (bits != 8) {
        r.lo = 0;
        r.hi = r.span = (float)((1u << bits) - 1);
    }
    r.step = __fdiv_rn(__fsub_rn(r.max, r.min), r.span);
    r.guarded = __fadd_rn(r.step, 1e-8f);
    r.zero = bits == 8 ? rintf(__fdiv_rn(__fadd_rn(r.max, r.min), __fmul_rn(2, r.guarded)))
                       : rintf(__fdiv_rn(r.min, r.guarded));
    return r;
}

static __device__ __forceinline__ uint32_t key_code(float x, const key_range &r, float step, float zero)
{
    const float q = rintf(__fsub_rn(__fdiv_rn(x, step), zero));
    const float c = q > r.lo ? (q < r.hi ? q : r.hi) : r.lo;

    return (uint32_t)(int)c & 0xff;
}

/* Smallest f16 at or above x > 0, and largest at or below the integer x. */
static __device__ __forceinline__ uint32_t f16_up(float x)
{
    const uint32_t h = f16_bits(x);

    return f16_value(h) < x ? h + 1 : h;
}

static __device__ __forceinline__ uint32_t f16_down(float x)
{
    const uint32_t h = f16_bits(x);

    if (!(f16_value(h) > x))
        return h;
    return h & 0x8000 ? h + 1 : h - 1;
}

static __device__ __forceinline__ key_fit key_again(float x, uint32_t bits, const key_range &r)
{
    const float anchor = bits == 8 ? __fmul_rn(0.5f, __fadd_rn(r.min, r.max)) : r.min;
    const float range = __fsub_rn(r.max, r.min);
    float need = INFINITY, step;
    key_fit f;

    for (float u = 1; u <= 32 && u < r.span; u *= 2) {
        const float a = __fdiv_rn(range, __fsub_rn(r.span, u)),
                    b = __fdiv_rn(fabsf(anchor), __fmul_rn(2046, u)), most = a > b ? a : b;

        need = most < need ? most : need;
    }
    f.scale = f16_up(need > 0x1p-24f ? need : 0x1p-24f);
    step = f16_value(f.scale);
    f.zero = bits == 8 ? f16_bits(rintf(__fdiv_rn(anchor, step))) : f16_down(floorf(__fdiv_rn(anchor, step)));
    f.code = key_code(x, r, step, f16_value(f.zero));
    return f;
}

/* Largest error of a coded group; infinity when a value is not finite. */
static __device__ __forceinline__ float key_error(float x, uint32_t bits, const key_fit &f)
{
    const float code = bits == 8 ? (float)(int8_t)f.code : (float)f.code;
    const float y = __fmul_rn(__fadd_rn(code, f16_value(f.zero)), f16_value(f.scale));

    return warp_most(isfinite(y) ? fabsf(__fsub_rn(x, y)) : INFINITY);
}

static __device__ __forceinline__ key_fit key_group(float x, uint32_t bits)
{
    const key_range r = key_range_of(x, bits);
    key_fit f = {0, 0, 0};

    if (r.min == 0 && r.max == 0)
        return f;
    f.code = key_code(x, r, r.guarded, r.zero);
    f.scale = f16_bits(r.step);
    f.zero = f16_bits(r.zero);
    if (r.step >= 0x1p-14f && fabsf(r.zero) <= 2048)
        return f;
    const key_fit again = key_again(x, bits, r);

    return key_error(x, bits, f) <= key_error(x, bits, again) ? f : again;
}

static __device__ __forceinline__ void encode_keys(const cu_kv &kv, encode_room *room)
{
    const uint32_t lane = threadIdx.x & 31, bits = kv.code.bits[0], n_group = kv.dim / KV_GROUP;
    uint16_t *scales = reinterpret_cast<uint16_t *>(room->row) + kv.dim * bits / 16;

    for (uint32_t g = threadIdx.x / 32; g < n_group; g += blockDim.x / 32) {
        const key_fit f = key_group(room->x[g * KV_GROUP + lane], bits);

        room->codes[g * KV_GROUP + lane] = (uint8_t)f.code;
        if (lane == 0) {
            scales[g] = (uint16_t)f.scale;
            scales[n_group + g] = (uint16_t)f.zero;
        }
    }
}

/* ---- turbo, values ---- */

/* Number of edges below x: on an edge the lower code, NaN the first. */
static __device__ __forceinline__ uint32_t value_code(const float *edges, uint32_t bits, float x)
{
    uint32_t at = 0;

    for (uint32_t half = 1u << (bits - 1); half; half /= 2)
        at += x > edges[at + half - 1] ? half : 0;
    return at;
}

static __device__ __forceinline__ void encode_values(const cu_kv &kv, encode_room *room)
{
    const uint32_t bits = kv.code.bits[1], n_group = kv.dim / KV_GROUP;
    uint16_t *scales = reinterpret_cast<uint16_t *>(room->row) + kv.dim * bits / 16;
    float scale = 0;

    rotate_row(room->x, kv.dim, kv.code);
    if (threadIdx.x < n_group) {
        const float *x = room->x + threadIdx.x * KV_GROUP;
        float sum = 0;

        for (uint32_t i = 0; i < KV_GROUP; i++)
            sum = __fadd_rn(sum, __fmul_rn(x[i], x[i]));
        scale = __fsqrt_rn(__fmul_rn(sum, 1.0f / KV_GROUP));
        room->by[threadIdx.x] = __fadd_rn(scale, 1e-8f);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kv.dim; i += blockDim.x)
        room->codes[i] =
            (uint8_t)value_code(kv.code.edges, bits, __fdiv_rn(room->x[i], room->by[i / KV_GROUP]));
    __syncthreads();
    if (threadIdx.x >= n_group)
        return;
    if (kv.code.tuned) {
        const float *x = room->x + threadIdx.x * KV_GROUP;
        float cross = 0, power = 0;

        for (uint32_t i = 0; i < KV_GROUP; i++) {
            const float level = kv.code.levels[room->codes[threadIdx.x * KV_GROUP + i]];

            cross = __fadd_rn(cross, __fmul_rn(x[i], level));
            power = __fadd_rn(power, __fmul_rn(level, level));
        }
        scale = cross > 0 ? __fdiv_rn(cross, power) : 0.0f;
    }
    scales[threadIdx.x] = (uint16_t)f16_bits(scale < 65504.0f ? scale : 65504.0f);
}

/* ---- rows ---- */

/* Eight codes are as many bytes as one has bits. */
static __device__ __forceinline__ void pack_codes(const cu_kv &kv, uint32_t which, encode_room *room)
{
    const uint32_t bits = kv.code.bits[which];
    uint8_t *row = reinterpret_cast<uint8_t *>(room->row);

    for (uint32_t o = threadIdx.x; o < kv.dim / 8; o += blockDim.x) {
        uint64_t word = 0;

        for (uint32_t i = 0; i < 8; i++)
            word |= (uint64_t)(room->codes[o * 8 + i] & ((1u << bits) - 1)) << i * bits;
        for (uint32_t i = 0; i < bits; i++)
            row[o * bits + i] = (uint8_t)(word >> i * 8);
    }
}

/* room->x, written by this block's threads, to the row at `to`. All threads call; at most 512 elements. */
static __device__ __forceinline__ void encode_row(const cu_kv &kv, uint32_t which, encode_room *room,
                                                  uint8_t *to)
{
    const uint16_t *row = reinterpret_cast<const uint16_t *>(room->row);

    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kv.dim; i += blockDim.x)
        room->x[i] = repaired(room->x[i]);
    __syncthreads();
    if (kv.code.kind == CU_KV_AFFINE)
        encode_affine(kv, which, room);
    else if (which)
        encode_values(kv, room);
    else
        encode_keys(kv, room);
    __syncthreads();
    pack_codes(kv, which, room);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kv.row[which] / 2; i += blockDim.x)
        reinterpret_cast<uint16_t *>(to)[i] = row[i];
}

#endif
