/*
 * exp for arguments <= 0 in plain IEEE arithmetic, so that every machine and compiler gives the same bits; a
 * libm may use fused multiply-add on one CPU and not on the next, and a draw near a boundary would follow it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SAMPLE_EXP_H
#define ESP_SAMPLE_EXP_H

#include <stdint.h>
#include <string.h>

#define ESP_EXP_NEG_MIN (-700.0) /* below it the result, under 1e-304, is given as 0 */

/*
 * exp(x) for x <= 0, within 2 ulp; exactly 1 for 0. x = k ln 2 + r with |r| <= ln 2 / 2, then the Taylor sum
 * to r^13 (the next term is below 2^-57) times 2^k. ln 2 is split so that k * LN2_HI is exact for |k| < 2^11.
 */
static inline double esp_exp_neg(double x)
{
    static const double LOG2E = 0x1.71547652b82fep+0, LN2_HI = 0x1.62e42fefa0000p-1,
                        LN2_LO = 0x1.cf79abc9e3b3ap-40;
    static const double SHIFT =
        0x1.8p52; /* adding it rounds to an integer and leaves that in the low mantissa bits */
    double clamped = x < ESP_EXP_NEG_MIN ? ESP_EXP_NEG_MIN : x;
    double t = clamped * LOG2E + SHIFT, k = t - SHIFT;
    double r = (clamped - k * LN2_HI) - k * LN2_LO;
    double p = 1.0 / 6227020800.0;
    uint64_t k_bits, p_bits;

    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    memcpy(&k_bits, &t, sizeof t);
    memcpy(&p_bits, &p, sizeof p);
    p_bits += k_bits << 52; /* into the exponent; the bits above k's low twelve fall off */
    memcpy(&p, &p_bits, sizeof p);
    return x < ESP_EXP_NEG_MIN ? 0.0 : p;
}

#endif
