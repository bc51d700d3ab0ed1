/*
 * Vectors of 8 floats for the kernel bodies (*_body.h); see vec_avx512.h. AVX2 has no masked loads below 32
 * bits and no mask registers, so short loads go through a table of masks or a copy, and masks are vectors.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_VEC_AVX2_H
#define ESP_KERNELS_X86_VEC_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/x86/inline.h"

typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

enum { VW = 8 };
#define VW_8   1
#define V_ROWS 3 /* 12 accumulators of 16 registers */

V_INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

V_INLINE vf vf_set1(float v)
{
    return _mm256_set1_ps(v);
}

V_INLINE vi vi_ramp(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}

V_INLINE vi vi_first(size_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), vi_ramp());
}

V_INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

V_INLINE vf vf_load_n(const float *p, size_t n)
{
    return n >= VW ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, vi_first(n));
}

V_INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}

V_INLINE void vf_store_n(float *p, size_t n, vf v)
{
    if (n >= VW)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, vi_first(n), v);
}

V_INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

V_INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

V_INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

V_INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

V_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

V_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

V_INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

V_INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

V_INLINE vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

V_INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

V_INLINE vm vf_gt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GT_OQ);
}

V_INLINE vm vf_ge(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GE_OQ);
}

V_INLINE vm vf_nlt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_NLT_UQ);
}

V_INLINE uint32_t vm_bits(vm m)
{
    return (uint32_t)_mm256_movemask_ps(m);
}

V_INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m);
}

V_INLINE vi vi_select(vm m, vi a, vi b)
{
    return _mm256_blendv_epi8(b, a, _mm256_castps_si256(m));
}

/* In two steps, each a normal power of two for -252 <= n <= 254: the first is exact, the second rounds once.
 */
V_INLINE vf vf_scale2(vf p, vf n)
{
    const vi k = _mm256_cvtps_epi32(n);
    const vi k1 = _mm256_srai_epi32(k, 1);
    const vi k2 = _mm256_sub_epi32(k, k1);
    const vi bias = _mm256_set1_epi32(127);
    const vf s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k1, bias), 23));
    const vf s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k2, bias), 23));

    return _mm256_mul_ps(_mm256_mul_ps(p, s1), s2);
}

V_INLINE __m128 vf_sum4(vf a, vf b, vf c, vf d)
{
    const vf ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    const vf cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    const vf h = _mm256_hadd_ps(ab, cd); /* a a c c | b b d d */
    const vf s = _mm256_hadd_ps(h, h);   /* a c a c | b d b d */

    return _mm_unpacklo_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* Eight such sums, each by the same tree, in order. */
V_INLINE vf vf_sum8(vf a, vf b, vf c, vf d, vf e, vf f, vf g, vf h)
{
    const vf ae = _mm256_add_ps(_mm256_blend_ps(a, e, 0xf0), _mm256_permute2f128_ps(a, e, 0x21));
    const vf bf = _mm256_add_ps(_mm256_blend_ps(b, f, 0xf0), _mm256_permute2f128_ps(b, f, 0x21));
    const vf cg = _mm256_add_ps(_mm256_blend_ps(c, g, 0xf0), _mm256_permute2f128_ps(c, g, 0x21));
    const vf dh = _mm256_add_ps(_mm256_blend_ps(d, h, 0xf0), _mm256_permute2f128_ps(d, h, 0x21));

    return _mm256_hadd_ps(_mm256_hadd_ps(ae, bf), _mm256_hadd_ps(cg, dh));
}

V_INLINE float vf_sum(vf a)
{
    return _mm_cvtss_f32(vf_sum4(a, a, a, a));
}

V_INLINE float vf_hmax(vf a)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}

V_INLINE vf vf_from_bf16(const uint16_t *p)
{
    const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);

    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

V_INLINE vf vf_from_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

V_INLINE vf vf_from_bf16_n(const uint16_t *p, size_t n)
{
    uint16_t h[VW] = {0};

    memcpy(h, p, n * sizeof h[0]);
    return vf_from_bf16(h);
}

V_INLINE vf vf_from_f16_n(const uint16_t *p, size_t n)
{
    uint16_t h[VW] = {0};

    memcpy(h, p, n * sizeof h[0]);
    return vf_from_f16(h);
}

/* bf16 bits of v in the high halves of the lanes; the low halves are zero. */
V_INLINE vi vf_bf16_high(vf v)
{
    const vi u = _mm256_castps_si256(v);
    const vi odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const vi up = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const vm nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    const vi quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));

    return _mm256_and_si256(vi_select(nan, quiet, up), _mm256_set1_epi32((int)0xffff0000));
}

V_INLINE void vf_store_bf16(uint16_t *p, vf v)
{
    const vi h = _mm256_srli_epi32(vf_bf16_high(v), 16);

    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

V_INLINE void vf_store_bf16_n(uint16_t *p, size_t n, vf v)
{
    uint16_t h[VW];

    vf_store_bf16(h, v);
    memcpy(p, h, n * sizeof h[0]);
}

V_INLINE vf vf_round_bf16(vf v)
{
    return _mm256_castsi256_ps(vf_bf16_high(v));
}

V_INLINE vi vi_set1(int32_t v)
{
    return _mm256_set1_epi32(v);
}

V_INLINE vi vi_zero(void)
{
    return _mm256_setzero_si256();
}

V_INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

V_INLINE vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}

V_INLINE vi vi_max(vi a, vi b)
{
    return _mm256_max_epi32(a, b);
}

#define vi_shl(a, n) _mm256_slli_epi32(a, n) /* n is an immediate */
#define vi_sar(a, n) _mm256_srai_epi32(a, n)

V_INLINE vi vi_shr_all(vi a, uint32_t n)
{
    return _mm256_srl_epi32(a, _mm_cvtsi32_si128((int)n));
}

V_INLINE vi vi_from_bits(vf a)
{
    return _mm256_castps_si256(a);
}

V_INLINE vi vi_from_f(vf a)
{
    return _mm256_cvtps_epi32(a);
}

V_INLINE vf vf_from_i(vi a)
{
    return _mm256_cvtepi32_ps(a);
}

V_INLINE void vi_store(int32_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, a);
}

V_INLINE int32_t vi_sum(vi a)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));

    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

V_INLINE int32_t vi_hmax(vi a)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));

    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

V_INLINE void vi_store_int8(int8_t *p, vi a)
{
    const __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));

    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(h, h));
}

V_INLINE vf vf_lanes(vf a, vi index)
{
    return _mm256_permutevar8x32_ps(a, index);
}

V_INLINE vf vf_pick32(const float *x, const int32_t *index)
{
    return _mm256_i32gather_ps(x, _mm256_loadu_si256((const __m256i *)(const void *)index), 4);
}

V_INLINE vf vf_every4(const float *x, int j, size_t n)
{
    const vi at = _mm256_slli_epi32(vi_ramp(), 2);

    return _mm256_mask_i32gather_ps(vf_zero(), x + j, at, _mm256_castsi256_ps(vi_first(n)), 4);
}

V_INLINE vf vf_from_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* In each lane: v[i] becomes word i of all four. */
V_INLINE void vi_transpose4(vi *v)
{
    const vi a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const vi c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);

    v[0] = _mm256_unpacklo_epi64(a, c);
    v[1] = _mm256_unpackhi_epi64(a, c);
    v[2] = _mm256_unpacklo_epi64(b, d);
    v[3] = _mm256_unpackhi_epi64(b, d);
}

/* v[i] becomes word i of all eight. */
V_INLINE void vi_transpose(vi *v)
{
    vi lo[4], hi[4];

    V_UNROLL
    for (int i = 0; i < 4; i++) {
        lo[i] = _mm256_permute2x128_si256(v[i], v[i + 4], 0x20);
        hi[i] = _mm256_permute2x128_si256(v[i], v[i + 4], 0x31);
    }
    vi_transpose4(lo);
    vi_transpose4(hi);
    V_UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = lo[i];
        v[i + 4] = hi[i];
    }
}

#endif
