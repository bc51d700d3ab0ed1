/*
 * Coding keys and values for AVX-512; see kv_encode_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/parts.h"

/* The low byte of each lane. */
V_INLINE void kv_store_bytes(uint8_t *p, vi v)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(v));
}

/* Minus where the lane's bit is set. */
V_INLINE vf kv_flip(vf v, uint32_t bits)
{
    const vi u = _mm512_castps_si512(v), top = _mm512_set1_epi32(INT32_MIN);

    return _mm512_castsi512_ps(_mm512_mask_xor_epi32(u, (__mmask16)bits, u, top));
}

V_INLINE vf kv_lanes_at(vf v, const int32_t *index)
{
    return vf_lanes(v, _mm512_loadu_si512(index));
}

V_INLINE vf kv_gather(const float *p, vi index)
{
    return _mm512_i32gather_ps(index, p, 4);
}

#include "kernels/x86/kv_encode_body.h"

void esp_kv_encode_init_avx512(struct esp_kernels *k)
{
    k->kv_encode[0] = kv_encode_key;
    k->kv_encode[1] = kv_encode_value;
}
