/*
 * Coding keys and values for AVX2; see kv_encode_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx2.h"

#include "kernels/x86/parts.h"

/* The low byte of each lane. */
V_INLINE void kv_store_bytes(uint8_t *p, vi v)
{
    const vi low = _mm256_set1_epi32(0x0c080400);
    const vi b = _mm256_shuffle_epi8(v, low);

    _mm_storel_epi64((__m128i *)(void *)p,
                     _mm_unpacklo_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1)));
}

/* Minus where the lane's bit is set. */
V_INLINE vf kv_flip(vf v, uint32_t bits)
{
    const vi at = _mm256_sub_epi32(_mm256_set1_epi32(31), vi_ramp());
    const vi top =
        _mm256_and_si256(_mm256_sllv_epi32(vi_set1((int32_t)bits), at), _mm256_set1_epi32(INT32_MIN));

    return _mm256_xor_ps(v, _mm256_castsi256_ps(top));
}

V_INLINE vf kv_lanes_at(vf v, const int32_t *index)
{
    return vf_lanes(v, _mm256_loadu_si256((const __m256i *)(const void *)index));
}

V_INLINE vf kv_gather(const float *p, vi index)
{
    return _mm256_i32gather_ps(p, index, 4);
}

#include "kernels/x86/kv_encode_body.h"

void esp_kv_encode_init_avx2(struct esp_kernels *k)
{
    k->kv_encode[0] = kv_encode_key;
    k->kv_encode[1] = kv_encode_value;
}
