/*
 * Coded keys and values on the way to attention: eight codes of a row become eight bf16 numbers, which then
 * go the way of a bf16 cache. Rows lie as formats/kv.h says; eight codes of b bits are b bytes, read as the
 * words that hold them. The decode is f32, rounded to bf16 once.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_KV_CUH
#define ESP_BACKEND_CUDA_PLUGIN_KV_CUH

#include "backend/cuda/plugin/attend.cuh"

enum { KV_LEVELS = 256 }; /* room for a codebook in shared memory */

/* Four codes of B bits from the low end of v, one a byte. */
template <int B> static __device__ __forceinline__ uint32_t spread4(uint32_t v)
{
    const uint32_t two = (1u << 2 * B) - 1, one = (1u << B) - 1;

    v = (v & two) | ((v >> 2 * B & two) << 16);
    return (v & one * 0x00010001u) | ((v >> B & one * 0x00010001u) << 8);
}

template <> __device__ __forceinline__ uint32_t spread4<8>(uint32_t v)
{
    return v;
}

/* Eight codes of B bits that begin at byte `at` of a plane, which lies at a multiple of 4. */
template <int B> static __device__ __forceinline__ uint2 codes8(const uint8_t *plane, uint32_t at)
{
    const uint32_t *word = reinterpret_cast<const uint32_t *>(plane) + at / 4, shift = at % 4 * 8;
    const uint32_t low = __funnelshift_r(word[0], word[1], shift);

    if (B <= 4)
        return make_uint2(spread4<B>(low), spread4<B>(low >> (4 * B & 31)));
    const uint32_t high = __funnelshift_r(word[1], word[2], shift);

    return make_uint2(spread4<B>(low), spread4<B>(B == 8 ? high : __funnelshift_r(low, high, 4 * B)));
}

static __device__ __forceinline__ uint2 kv_codes8(const uint8_t *plane, uint32_t at, uint32_t bits)
{
    switch (bits) {
    case 2:
        return codes8<2>(plane, at);
    case 3:
        return codes8<3>(plane, at);
    case 4:
        return codes8<4>(plane, at);
    case 5:
        return codes8<5>(plane, at);
    case 6:
        return codes8<6>(plane, at);
    default:
        if (at % 8 == 0)
            return *reinterpret_cast<const uint2 *>(plane + at);
        return codes8<8>(plane, at);
    }
}

#define KV_MAGIC 8388608.0f /* 2^23: a byte in its last place is a number in f32 */

/* 2^23 + byte i of v. */
static __device__ __forceinline__ float magic_byte(uint32_t v, uint32_t i)
{
    return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7440u | i));
}

static __device__ __forceinline__ float load_f16(const uint8_t *p)
{
    return __half2float(*reinterpret_cast<const __half *>(p));
}

static __device__ __forceinline__ float load_bf16(const uint8_t *p)
{
    return cu_bf16(*reinterpret_cast<const uint16_t *>(p));
}

static __device__ __forceinline__ uint4 pack8(const float v[8])
{
    return make_uint4(cu_bf16x2(v[0], v[1]), cu_bf16x2(v[2], v[3]), cu_bf16x2(v[4], v[5]),
                      cu_bf16x2(v[6], v[7]));
}

/* scale * code + bias */
static __device__ __forceinline__ uint4 affine8(uint2 codes, float scale, float bias)
{
    float v[8];

#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        v[i] = fmaf(magic_byte(i < 4 ? codes.x : codes.y, i & 3) - KV_MAGIC, scale, bias);
    return pack8(v);
}

/*
 * Elements [8 c, 8 c + 8) of row `row` of a plane of keys (WHICH 0) or values (1), as bf16. levels: the
 * codebook of turbo's values.
 */
template <int WHICH>
static __device__ __forceinline__ uint4 kv_octet(const cu_kv &kv, const uint8_t *plane, uint32_t row,
                                                 uint32_t c, const float *levels)
{
    const uint32_t bits = kv.code.bits[WHICH], at = row * kv.row[WHICH],
                   n_group = kv.dim >> kv.code.group_shift;
    const uint2 codes = kv_codes8(plane, at + c * bits, bits);
    const uint8_t *scale = plane + at + kv.dim * bits / 8 + (c * 8 >> kv.code.group_shift) * 2;
    float v[8];

    if (kv.code.kind == CU_KV_AFFINE)
        return affine8(codes, load_bf16(scale), load_bf16(scale + n_group * 2));
    if (WHICH) {
        const float s = load_f16(scale);

#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            v[i] = levels[(i < 4 ? codes.x : codes.y) >> (i & 3) * 8 & 0xff] * s;
        return pack8(v);
    }
    /* (code + zero) * scale; codes of 8 bits are signed, so they move up by 128 and the zero down */
    const uint32_t up = bits == 8 ? 0x80808080u : 0;
    const float s = load_f16(scale),
                zero = load_f16(scale + n_group * 2) - (bits == 8 ? KV_MAGIC + 128.0f : KV_MAGIC);

#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        v[i] = (magic_byte((i < 4 ? codes.x : codes.y) ^ up, i & 3) + zero) * s;
    return pack8(v);
}

/* The codebook to shared memory; the next barrier makes it visible. */
static __device__ __forceinline__ void take_levels(const cu_kv &kv, float *levels)
{
    if (kv.code.kind == CU_KV_TURBO)
        for (uint32_t i = threadIdx.x; i < 1u << kv.code.bits[1]; i += blockDim.x)
            levels[i] = kv.code.levels[i];
}

#endif
