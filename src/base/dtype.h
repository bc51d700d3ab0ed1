/*
 * Element types of stored tensors: names as safetensors files spell them, and sizes. Sub-byte types are why
 * the size is in bits; the number of elements of a legal tensor always fills whole bytes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_DTYPE_H
#define ESP_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum esp_dtype {
    ESP_DTYPE_NONE, /* not given */
    ESP_DTYPE_BF16,
    ESP_DTYPE_F16,
    ESP_DTYPE_F32,
    ESP_DTYPE_F64,
    ESP_DTYPE_I8,
    ESP_DTYPE_I16,
    ESP_DTYPE_I32,
    ESP_DTYPE_I64,
    ESP_DTYPE_U8,
    ESP_DTYPE_U16,
    ESP_DTYPE_U32,
    ESP_DTYPE_U64,
    ESP_DTYPE_BOOL,
    /* Known size, so a file holding them can be checked and listed; reading their values is not supported. */
    ESP_DTYPE_F8_E4M3,
    ESP_DTYPE_F8_E5M2,
    ESP_DTYPE_F8_E8M0,
    ESP_DTYPE_F8_E4M3FNUZ,
    ESP_DTYPE_F8_E5M2FNUZ,
    ESP_DTYPE_F6_E2M3,
    ESP_DTYPE_F6_E3M2,
    ESP_DTYPE_F4,
    ESP_DTYPE_C64,
    ESP_DTYPE_COUNT
};

/* "BF16"; "NONE" for ESP_DTYPE_NONE; "?" outside the table. */
const char *esp_dtype_name(enum esp_dtype t);
/* Bits of one element, 4..64; 0 for ESP_DTYPE_NONE and outside the table. */
unsigned esp_dtype_bits(enum esp_dtype t);
/* Bytes of one element; 0 for sub-byte types. */
size_t esp_dtype_size(enum esp_dtype t);
/* Whether values of this type can be read: all from BF16 to BOOL. */
bool esp_dtype_supported(enum esp_dtype t);
/* BF16, F16, F32: what every unquantized weight may be stored as. */
bool esp_dtype_is_weight_float(enum esp_dtype t);
/* The type spelled name[0..len), exactly as in safetensors headers; ESP_DTYPE_NONE when there is none. */
enum esp_dtype esp_dtype_parse(const char *name, size_t len);
/* Bytes of n elements, checked: false on overflow, on an unknown type, or when the bits do not fill whole
 * bytes. */
bool esp_dtype_bytes(size_t *out, enum esp_dtype t, size_t n);

#endif
