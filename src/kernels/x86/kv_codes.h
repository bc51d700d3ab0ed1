/*
 * How the codes of a row of cached keys or values become floats before scale and bias; what kv_codes_avx2.h
 * and kv_codes_avx512.h have in common.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_KV_CODES_H
#define ESP_KERNELS_X86_KV_CODES_H

#include <stdbool.h>
#include <string.h>

#include "formats/turboquant.h"

enum kv_raw {
    KV_RAW_S8, /* two's complement */
    KV_RAW_U8,
    KV_RAW_2, /* by table: the codebook's levels, or 0, 1, 2, .. */
    KV_RAW_3,
    KV_RAW_4,
    KV_RAW_5,
    KV_RAW_6,
    KV_RAW_LEVEL8, /* a codebook of 256 */
};

V_INLINE int kv_bits(int raw)
{
    switch (raw) {
    case KV_RAW_2:
        return 2;
    case KV_RAW_3:
        return 3;
    case KV_RAW_4:
        return 4;
    case KV_RAW_5:
        return 5;
    case KV_RAW_6:
        return 6;
    default:
        return 8;
    }
}

V_INLINE uint32_t kv_load32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

V_INLINE uint64_t kv_load64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static const float kv_counting[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

V_INLINE enum kv_raw kv_raw_key(const struct esp_kv_scheme *s)
{
    switch (s->k_bits) {
    case 2:
        return KV_RAW_2;
    case 4:
        return KV_RAW_4;
    case 5:
        return KV_RAW_5;
    case 6:
        return KV_RAW_6;
    default:
        return s->kind == ESP_KV_KIND_TURBO ? KV_RAW_S8 : KV_RAW_U8;
    }
}

V_INLINE enum kv_raw kv_raw_value(const struct esp_kv_scheme *s)
{
    switch (s->v_bits) {
    case 2:
        return KV_RAW_2;
    case 3:
        return KV_RAW_3;
    case 4:
        return KV_RAW_4;
    case 5:
        return KV_RAW_5;
    case 6:
        return KV_RAW_6;
    default:
        return s->kind == ESP_KV_KIND_TURBO ? KV_RAW_LEVEL8 : KV_RAW_U8;
    }
}

#endif
