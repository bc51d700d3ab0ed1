/*
 * What streamed products do with their sums: add up what the warps of a block have, and store it, or finish it
 * on the spot (convolution, gates, SwiGLU in product form).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_STREAM_OUT_CUH
#define ESP_BACKEND_CUDA_PLUGIN_STREAM_OUT_CUH

#include "backend/cuda/plugin/operand.cuh"
#include "backend/cuda/plugin/stream.h"

/*
 * Output `at` of a row in product form; returns what its terms add up to. An output past n_out is zero, as
 * rows are padded.
 */
static __device__ __forceinline__ float stream_emit(const cu_act &a, uint32_t tok, uint32_t at, float v)
{
    float rest = v * CU_UP;

#pragma unroll
    for (uint32_t term = 0; term < CU_MAX_TERM; term++) {
        if (term >= a.n_term)
            break;
        const __nv_bfloat16 h = __float2bfloat16_rn(rest);

        rest -= __bfloat162float(h);
        reinterpret_cast<__nv_bfloat16 *>(a.t[term])[(size_t)tok * a.ld + at] = h;
    }
    return (v * CU_UP - rest) * CU_DOWN;
}

template <int NT, int RT, bool ONE> struct stream_red { /* what warps add up */
    enum { elements = ONE ? RT * 2 : RT * NT * 4, lanes = ONE ? 8 : 32 };
    float v[2][CU_PARTS][elements][lanes];
};

template <int NT, int RT, bool ONE>
static __device__ __forceinline__ float stream_add(const stream_red<NT, RT, ONE> &red, uint32_t flip,
                                                   uint32_t e, uint32_t lane)
{
    float sum = red.v[flip][0][e][lane];

#pragma unroll
    for (int p = 1; p < CU_PARTS; p++)
        sum += red.v[flip][p][e][lane];
    return sum;
}

/*
 * A new row of a sequence: its channel through the convolution of delta.cu. Rows before it in the step are at(1),
 * at(2), ... if there are any, which a journal is for; else old rows move up by one.
 */
template <class F>
static __device__ __forceinline__ float stream_conv(const cu_stream &k, const float *taps, uint32_t c,
                                                    uint32_t tok, float x, F at)
{
    const cu_seq s = k.b.seqs[k.b.tok_seq[tok]];
    const uint32_t i = tok - s.tok0;
    float *tail =
        reinterpret_cast<float *>(k.d.slots + s.slot * k.d.slot_bytes + k.d.layer_off + k.d.conv_off) + c;
    const float4 tap = reinterpret_cast<const float4 *>(taps)[c];
    float r[CU_TAPS - 1], sum = 0;

#pragma unroll
    for (uint32_t j = 0; j < CU_TAPS - 1; j++) /* r[j]: the row 3 - j before this one */
        r[j] = i + j < CU_TAPS - 1 ? tail[(i + j) * (size_t)k.d.conv_dim] : at(CU_TAPS - 1 - j);
    sum = fmaf(tap.x, r[0], sum);
    sum = fmaf(tap.y, r[1], sum);
    sum = fmaf(tap.z, r[2], sum);
    sum = fmaf(tap.w, x, sum);
    if (s.journal != CU_NO_JOURNAL) {
        k.d.journals[(((size_t)s.journal * k.d.n_delta + k.d.layer) * k.d.journal_rows + i) * k.d.conv_dim +
                     c] = x;
    } else {
        tail[0] = r[1];
        tail[k.d.conv_dim] = r[2];
        tail[2 * (size_t)k.d.conv_dim] = x;
    }
    return cu_silu(sum);
}

/* Output o of weight `which`; at(n): the same of row tok - n. */
template <class F>
static __device__ __forceinline__ void stream_finish(const cu_stream &k, uint32_t which, uint32_t o,
                                                     uint32_t tok, float v, F at)
{
    const cu_finish &f = k.finish[which];
    const uint32_t n = k.l.w[which].n_out;

    if (o >= n)
        return;
    if (f.kind == CU_STORE) {
        f.y[(size_t)tok * n + o] = v;
    } else if (f.kind == CU_CONV) {
        f.y[(size_t)tok * n + o] = stream_conv(k, f.v0, o, tok, v, at);
    } else if (f.kind == CU_STRENGTH) {
        f.y[(size_t)tok * 2 * n + o] = cu_sigmoid(v);
    } else {
        const float s = v + f.v1[o];

        f.y[(size_t)tok * 2 * n + n + o] = f.v0[o] * (s > 20 ? s : log1pf(expf(s)));
    }
}

template <int NT, int RT, bool ONE>
static __device__ __forceinline__ void stream_outputs(const cu_stream &k, const stream_red<NT, RT, ONE> &red,
                                                      uint32_t flip, uint32_t i, uint32_t row0,
                                                      uint32_t n_row, uint32_t thread)
{
    uint32_t here;
    const uint32_t tile = find_tile(k.l, i, RT, &here);

    if (ONE) {
        const uint32_t r = thread >> 4, row = thread & 15;

        if (r < RT)
            stream_finish(k, here, (tile + r) * 16 + row, 0,
                          stream_add(red, flip, r * 2 + (row >> 3), row & 7), [](uint32_t) { return 0.0f; });
        return;
    }
    for (uint32_t e = thread; e < RT * NT * 4 * 32; e += 32 * CU_PARTS) {
        const uint32_t le = e & 31, j = e >> 5 & 3, n = (e >> 7) % NT, r = (e >> 7) / NT;
        const uint32_t tok = row0 + n * 8 + 2 * (le & 3) + (j & 1);

        /* all rows of a sequence are the block's: cuda_launch_fused() */
        const auto at = [&](uint32_t before) {
            const uint32_t i = n * 8 + 2 * (le & 3) + (j & 1) - before;

            return stream_add(red, flip, (r * NT + i / 8) * 4 + (j & 2) + (i & 1), (le & 28) + i % 8 / 2);
        };

        if (tok < n_row)
            stream_finish(k, here, (tile + r) * 16 + (le >> 2) + (j >= 2 ? 8 : 0), tok,
                          stream_add(red, flip, e >> 5, le), at);
    }
}

static __device__ __forceinline__ float stream_ordered8(float v, uint32_t first, uint32_t step)
{
    float sum = 0;

#pragma unroll
    for (uint32_t g = 0; g < 8; g++)
        sum += __shfl_sync(0xffffffffu, v, first + g * step);
    return sum;
}

/* Gate and up of tile i, tiles r and r + 1 of the group: half of a block of 32 inputs of the product to come.
 */
template <int NT, int RT, bool ONE>
static __device__ __forceinline__ void stream_gated(const cu_stream &k, const stream_red<NT, RT, ONE> &red,
                                                    uint32_t flip, uint32_t r, uint32_t i, uint32_t row0,
                                                    uint32_t n_row)
{
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float *sums = (i & 1 ? k.gated.more : k.gated.sums) + (size_t)(i / 2) * k.gated.max_row;

    if (ONE) {
        if (warp == 0) { /* lanes above 15 repeat those below */
            const uint32_t half = lane >> 3 & 1, g = lane & 7;
            const float v =
                cu_silu(stream_add(red, flip, r * 2 + half, g)) * stream_add(red, flip, r * 2 + 2 + half, g);
            const float used = stream_emit(k.gated, 0, i * 16 + half * 8 + g, v);
            const float sum = stream_ordered8(used, lane & 8, 1);
            const float other = __shfl_xor_sync(0xffffffffu, sum, 8);

            if (lane == 0)
                sums[0] = sum + other;
        }
        return;
    }
    if (warp < NT * 2) {
        const uint32_t n = warp >> 1, odd = warp & 1, g = lane >> 2, t = lane & 3;
        const uint32_t tok = row0 + n * 8 + 2 * t + odd;
        float part[2];

#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float v = cu_silu(stream_add(red, flip, (r * NT + n) * 4 + half * 2 + odd, lane)) *
                            stream_add(red, flip, ((r + 1) * NT + n) * 4 + half * 2 + odd, lane);
            float used = 0;

            if (tok < n_row)
                used = stream_emit(k.gated, tok, i * 16 + half * 8 + g, v);
            part[half] = stream_ordered8(used, t, 4);
        }
        if (g == 0 && tok < n_row)
            sums[tok] = part[0] + part[1];
    }
}

#endif
