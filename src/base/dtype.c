/*
 * Element types: one table, indexed by the enum.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/dtype.h"

#include <string.h>

#include "base/mem.h"

static const struct {
    const char *name;
    uint8_t bits;
} types[ESP_DTYPE_COUNT] = {
    [ESP_DTYPE_NONE] = {"NONE", 0},
    [ESP_DTYPE_BF16] = {"BF16", 16},
    [ESP_DTYPE_F16] = {"F16", 16},
    [ESP_DTYPE_F32] = {"F32", 32},
    [ESP_DTYPE_F64] = {"F64", 64},
    [ESP_DTYPE_I8] = {"I8", 8},
    [ESP_DTYPE_I16] = {"I16", 16},
    [ESP_DTYPE_I32] = {"I32", 32},
    [ESP_DTYPE_I64] = {"I64", 64},
    [ESP_DTYPE_U8] = {"U8", 8},
    [ESP_DTYPE_U16] = {"U16", 16},
    [ESP_DTYPE_U32] = {"U32", 32},
    [ESP_DTYPE_U64] = {"U64", 64},
    [ESP_DTYPE_BOOL] = {"BOOL", 8},
    [ESP_DTYPE_F8_E4M3] = {"F8_E4M3", 8},
    [ESP_DTYPE_F8_E5M2] = {"F8_E5M2", 8},
    [ESP_DTYPE_F8_E8M0] = {"F8_E8M0", 8},
    [ESP_DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [ESP_DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [ESP_DTYPE_F6_E2M3] = {"F6_E2M3", 6},
    [ESP_DTYPE_F6_E3M2] = {"F6_E3M2", 6},
    [ESP_DTYPE_F4] = {"F4", 4},
    [ESP_DTYPE_C64] = {"C64", 64},
};

static bool known(enum esp_dtype t)
{
    return (unsigned)t < ESP_DTYPE_COUNT;
}

const char *esp_dtype_name(enum esp_dtype t)
{
    return known(t) ? types[t].name : "?";
}

unsigned esp_dtype_bits(enum esp_dtype t)
{
    return known(t) ? types[t].bits : 0;
}

size_t esp_dtype_size(enum esp_dtype t)
{
    unsigned bits = esp_dtype_bits(t);

    return bits % 8 ? 0 : bits / 8;
}

bool esp_dtype_supported(enum esp_dtype t)
{
    return t >= ESP_DTYPE_BF16 && t <= ESP_DTYPE_BOOL;
}

bool esp_dtype_is_weight_float(enum esp_dtype t)
{
    return t == ESP_DTYPE_BF16 || t == ESP_DTYPE_F16 || t == ESP_DTYPE_F32;
}

enum esp_dtype esp_dtype_parse(const char *name, size_t len)
{
    for (unsigned i = ESP_DTYPE_NONE + 1; i < ESP_DTYPE_COUNT; i++)
        if (strlen(types[i].name) == len && memcmp(types[i].name, name, len) == 0)
            return (enum esp_dtype)i;
    return ESP_DTYPE_NONE;
}

bool esp_dtype_bytes(size_t *out, enum esp_dtype t, size_t n)
{
    size_t bits = esp_dtype_bits(t), total;

    if (bits == 0)
        return false;
    if (bits % 8 == 0)
        return esp_mul_size(out, n, bits / 8);
    if (!esp_mul_size(&total, n, bits) || total % 8 != 0)
        return false;
    *out = total / 8;
    return true;
}
