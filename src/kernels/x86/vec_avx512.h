/*
 * Vectors of 16 floats for the kernel bodies (*_body.h), which are written once against these names and
 * compiled once per CPU level. A name means the same as in vec_avx2.h; only the width differs, and with it
 * the order of reductions. Loads with a count read no byte beyond it and give zeros there.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_VEC_AVX512_H
#define ESP_KERNELS_X86_VEC_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/x86/inline.h"

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

enum { VW = 16 }; /* floats in a vector */
#define V_ROWS 6  /* rows of a tile of 4 outputs: 24 accumulators of 32 registers; for #if too */

V_INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

V_INLINE vf vf_set1(float v)
{
    return _mm512_set1_ps(v);
}

V_INLINE vm vm_first(size_t n)
{
    return (vm)((1u << n) - 1); /* n <= 16 */
}

V_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

V_INLINE vf vf_load_n(const float *p, size_t n)
{
    return n >= VW ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(vm_first(n), p);
}

V_INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

V_INLINE void vf_store_n(float *p, size_t n, vf v)
{
    if (n >= VW)
        _mm512_storeu_ps(p, v);
    else
        _mm512_mask_storeu_ps(p, vm_first(n), v);
}

V_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

V_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

V_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

V_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c */
V_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a * b */
V_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* Larger of both; b when either is NaN. */
V_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

V_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

V_INLINE vf vf_abs(vf a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)));
}

V_INLINE vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Ordered a > b, and a >= b. */
V_INLINE vm vf_gt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

V_INLINE vm vf_ge(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

/* Not a < b: true for NaN. */
V_INLINE vm vf_nlt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ);
}

/* Bit i: lane i of the mask. */
V_INLINE uint32_t vm_bits(vm m)
{
    return m;
}

/* m ? a : b */
V_INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

V_INLINE vi vi_select(vm m, vi a, vi b)
{
    return _mm512_mask_blend_epi32(m, b, a);
}

/* p * 2^n for whole n, to 0 below the denormals and to infinity above. */
V_INLINE vf vf_scale2(vf p, vf n)
{
    return _mm512_scalef_ps(p, n);
}

/* Four sums over the lanes, each by the same tree: halves, quarters, pairs two apart, neighbours. */
V_INLINE __m128 vf_sum4(vf a, vf b, vf c, vf d)
{
    const vf ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const vf cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    const vf q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const vf t = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
    const vf s = _mm512_add_ps(t, _mm512_permute_ps(t, 0xb1));
    const vi firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);

    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, s));
}

V_INLINE float vf_sum(vf a)
{
    return _mm_cvtss_f32(vf_sum4(a, a, a, a));
}

V_INLINE float vf_hmax(vf a)
{
    return _mm512_reduce_max_ps(a);
}

V_INLINE vf vf_from_bf16(const uint16_t *p)
{
    const __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

V_INLINE vf vf_from_bf16_n(const uint16_t *p, size_t n)
{
    const __m256i h = _mm256_maskz_loadu_epi16(vm_first(n), p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

V_INLINE vf vf_from_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

V_INLINE vf vf_from_f16_n(const uint16_t *p, size_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vm_first(n), p));
}

/* bf16 of v, nearest even, NaN kept quiet. Integers, because vcvtneps2bf16 takes denormals for zero. */
V_INLINE __m256i vf_to_bf16(vf v)
{
    const vi u = _mm512_castps_si512(v);
    const vi odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const vi up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const vm nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const vi quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));

    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, up, quiet), 16));
}

V_INLINE void vf_store_bf16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, vf_to_bf16(v));
}

V_INLINE void vf_store_bf16_n(uint16_t *p, size_t n, vf v)
{
    _mm256_mask_storeu_epi16(p, vm_first(n), vf_to_bf16(v));
}

/* v rounded to bf16, as f32. */
V_INLINE vf vf_round_bf16(vf v)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(vf_to_bf16(v)), 16));
}

V_INLINE vi vi_set1(int32_t v)
{
    return _mm512_set1_epi32(v);
}

V_INLINE vi vi_ramp(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

V_INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}

V_INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

V_INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

V_INLINE vi vi_max(vi a, vi b)
{
    return _mm512_max_epi32(a, b);
}

#define vi_shl(a, n) _mm512_slli_epi32(a, n) /* n is an immediate */
#define vi_sar(a, n) _mm512_srai_epi32(a, n)

/* Logical right shift of each lane by the same n. */
V_INLINE vi vi_shr_all(vi a, uint32_t n)
{
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128((int)n));
}

V_INLINE vi vi_from_bits(vf a)
{
    return _mm512_castps_si512(a);
}

V_INLINE vi vi_from_f(vf a)
{
    return _mm512_cvtps_epi32(a); /* nearest even, the default mode */
}

V_INLINE vf vf_from_i(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

V_INLINE int32_t vi_sum(vi a)
{
    return _mm512_reduce_add_epi32(a);
}

V_INLINE int32_t vi_hmax(vi a)
{
    return _mm512_reduce_max_epi32(a);
}

V_INLINE void vi_store(int32_t *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

/* Low bytes of the lanes, which hold values of int8. */
V_INLINE void vi_store_int8(int8_t *p, vi a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}

/* VW vectors: v[p] lane o becomes v[o] lane p. */
V_INLINE void vi_transpose(vi *v)
{
    vi t[16];

    V_UNROLL
    for (int i = 0; i < 16; i += 4) { /* 4 x 4 in lanes of 128 bits: t[i + c] lane l holds column 4l + c */
        const vi ab = _mm512_unpacklo_epi32(v[i], v[i + 1]), cd = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
        const vi AB = _mm512_unpackhi_epi32(v[i], v[i + 1]), CD = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);

        t[i] = _mm512_unpacklo_epi64(ab, cd);
        t[i + 1] = _mm512_unpackhi_epi64(ab, cd);
        t[i + 2] = _mm512_unpacklo_epi64(AB, CD);
        t[i + 3] = _mm512_unpackhi_epi64(AB, CD);
    }
    V_UNROLL
    for (int c = 0; c < 4; c++) { /* the same among whole lanes */
        const vi lo = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x44),
                 hi = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xee);
        const vi LO = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x44);
        const vi HI = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xee);

        v[c] = _mm512_shuffle_i32x4(lo, LO, 0x88);
        v[4 + c] = _mm512_shuffle_i32x4(lo, LO, 0xdd);
        v[8 + c] = _mm512_shuffle_i32x4(hi, HI, 0x88);
        v[12 + c] = _mm512_shuffle_i32x4(hi, HI, 0xdd);
    }
}

/* Lane i of the result: lane index[i] of a. */
V_INLINE vf vf_lanes(vf a, vi index)
{
    return _mm512_permutexvar_ps(index, a);
}

/* Lane i: x[index[i]], indices below 32. */
V_INLINE vf vf_pick32(const float *x, const int32_t *index)
{
    return _mm512_permutex2var_ps(_mm512_loadu_ps(x), _mm512_loadu_si512(index), _mm512_loadu_ps(x + 16));
}

/* Lane i: x[i * 4 + j]; all lanes from 64 floats, fewer (n) by gathering them alone. */
V_INLINE vf vf_every4(const float *x, int j, size_t n)
{
    const vi at = _mm512_add_epi32(_mm512_slli_epi32(vi_ramp(), 2), _mm512_set1_epi32(j));
    vf lo, hi;

    if (n < VW)
        return _mm512_mask_i32gather_ps(vf_zero(), vm_first(n), at, x, 4);
    lo = _mm512_permutex2var_ps(_mm512_loadu_ps(x), at, _mm512_loadu_ps(x + 16)); /* indices modulo 32 */
    hi = _mm512_permutex2var_ps(_mm512_loadu_ps(x + 32), at, _mm512_loadu_ps(x + 48));
    return _mm512_mask_blend_ps(0xff00, lo, hi);
}

/* VW bytes as floats. */
V_INLINE vf vf_from_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

#endif
