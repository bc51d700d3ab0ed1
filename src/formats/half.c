/*
 * Scalar conversions between f32 and the two 16-bit types: the definition that vector code is compared with.
 * Both directions work on the bits, so that the result does not depend on the compiler, the CPU or
 * flush-to-zero modes. Source: IEEE 754-2019; bfloat16 is the upper half of binary32.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "formats/format.h"

static uint32_t bits_of(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float v;

    memcpy(&v, &u, sizeof v);
    return v;
}

float esp_bf16_to_f32(uint16_t v)
{
    return float_of((uint32_t)v << 16);
}

uint16_t esp_f32_to_bf16(float v)
{
    const uint32_t u = bits_of(v);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* quiet, and never rounded into infinity */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float esp_f16_to_f32(uint16_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x8000) << 16;
    const uint32_t exponent = v >> 10 & 31;
    uint32_t mantissa = v & 0x3ff;
    uint32_t shift = 0;

    if (exponent == 31)
        return float_of(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000u : 0));
    if (exponent)
        return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
    if (!mantissa)
        return float_of(sign);
    while (!(mantissa & 0x400)) { /* subnormal: every one is a normal f32 */
        mantissa <<= 1;
        shift++;
    }
    return float_of(sign | (113 - shift) << 23 | (mantissa & 0x3ff) << 13);
}

uint16_t esp_f32_to_f16(float v)
{
    const uint32_t u = bits_of(v);
    const uint32_t sign = u >> 16 & 0x8000;
    const uint32_t magnitude = u & 0x7fffffff;
    uint32_t mantissa, shift, half, rest;

    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x47800000)
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >=
        0x38800000) /* a carry out of the mantissa reaches the exponent, and infinity from 65520 on */
        return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
    if (magnitude < 0x33000000)
        return (uint16_t)
            sign; /* below half of the smallest subnormal; exactly half is a tie to 0, handled below */
    shift = 126 - (magnitude >> 23); /* 14 .. 24 bits below the subnormal's unit 2^-24 */
    mantissa = (magnitude & 0x7fffff) | 0x800000;
    half = 1u << (shift - 1);
    rest = mantissa & ((1u << shift) - 1);
    mantissa >>= shift;
    if (rest > half || (rest == half && (mantissa & 1)))
        mantissa++;
    return (uint16_t)(sign | mantissa);
}
