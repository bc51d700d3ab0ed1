/*
 * Steps of the trellis search in 128-bit vectors of arm64: 8 states an instruction.
 *
 * SPDX-License-Identifier: MIT
 */
#if defined(__aarch64__)

#include <arm_neon.h>
#include <stdint.h>

enum { LANES = 8 };
typedef uint16x8_t vec;

#define S16(a)        vreinterpretq_s16_u16(a)
#define v_load(p)     vld1q_u16((const uint16_t *)(const void *)(p))
#define v_store(p, a) vst1q_u16(p, a)
#define v_splat(s)    vdupq_n_u16((uint16_t)(s))
#define v_subs(a, b)  vreinterpretq_u16_s16(vqsubq_s16(S16(a), S16(b)))
#define v_double(d)   vreinterpretq_u16_s16(vqaddq_s16(S16(d), S16(d)))
#define v_square(d)   square(S16(d))
#define v_adds(a, b)  vqaddq_u16(a, b)
#define v_min(a, b)   vminq_u16(a, b)
#define v_sub(a, b)   vsubq_u16(a, b)
#define v_zip0(a, b)  vzip1q_u16(a, b)
#define v_zip1(a, b)  vzip2q_u16(a, b)

/* Rounded d * d / 2^15. The instruction saturates one value, -32768, to 32767, where the sum says 32768. */
static inline __attribute__((always_inline)) uint16x8_t square(int16x8_t d)
{
    const uint16x8_t r = vreinterpretq_u16_s16(vqrdmulhq_s16(d, d));

    return vsubq_u16(r, vceqq_s16(d, vdupq_n_s16(INT16_MIN)));
}

#include "quantize/viterbi_body.h"

uint32_t esp_viterbi_steps_neon(const struct esp_viterbi_code *c, const int16_t *x, uint32_t n,
                                uint32_t first, uint32_t every, uint16_t *cost)
{
    const uint32_t limits[2] = {first, every};

    return steps_any(c, x, n, limits, cost);
}

#else
typedef int esp_viterbi_neon_is_empty;
#endif
