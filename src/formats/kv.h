/*
 * What the bytes of a cached key or value vector mean. A scheme says how keys and values of a layer are
 * stored; a row is one head's vector of one position, codes first, then its scales, then zeros or biases.
 * Rows are complete in themselves: nothing spans positions, so a cache may be cut, copied and extended at any
 * position. This is the scalar definition that kernels are checked against (doc/formats/turboquant.md,
 * doc/formats/kv_affine.md).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_FORMATS_KV_H
#define ESP_FORMATS_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum esp_kv_kind {
    ESP_KV_KIND_F32,
    ESP_KV_KIND_BF16,
    ESP_KV_KIND_AFFINE, /* unsigned codes, scale and bias a group, bf16 */
    ESP_KV_KIND_TURBO,  /* keys: codes, scale and zero a group of 32; values: rotated, codebook, scale; f16 */
};

enum esp_kv_tune {                    /* turbo: how values are coded */
                   ESP_KV_TUNE_NONE,  /* published codebooks, scale is the group's root mean square */
                   ESP_KV_TUNE_LEAST, /* the same codes, scale by least squares */
                   ESP_KV_TUNE_OWN,   /* converged symmetric codebooks, scale by least squares */
                   ESP_KV_TUNE_COUNT
};

enum { ESP_KV_GROUP = 32, ESP_KV_HEAD_MAX = 512 };
enum { ESP_KV_ROW_MAX = ESP_KV_HEAD_MAX * 4 }; /* bytes of the longest row: f32 */

struct esp_kv_scheme {
    uint8_t kind;   /* enum esp_kv_kind */
    uint8_t k_bits; /* of one code: affine 4, 6, 8; turbo 2, 4, 5, 8; else 0 */
    uint8_t v_bits; /* affine: as k_bits; turbo 2, 3, 4, 5, 8; else 0 */
    uint8_t group;  /* affine 32, 64, 128; turbo 32; else 0 */
    uint8_t tune;   /* enum esp_kv_tune */
};

/*
 * Parse "f32", "bf16", "q8", "q6", "q4" (groups of 64), "q8:g32", "turbo" (turbo:k8v3), "turbo:k4v4",
 * "turbo:k8v3:least", "turbo:k8v3:own". ESP_EINVAL lists what is accepted.
 */
esp_status esp_kv_parse(struct esp_kv_scheme *out, const char *name, esp_error *err);
/* The name that esp_kv_parse() takes, at most 31 bytes; "turbo" as turbo:k8v3. */
enum { ESP_KV_NAME = 32 };
void esp_kv_name(const struct esp_kv_scheme *s, char out[ESP_KV_NAME]);
/* ESP_EUNSUPPORTED, naming the size and what is possible, when heads of head_dim do not fit s. */
esp_status esp_kv_check(const struct esp_kv_scheme *s, uint32_t head_dim, esp_error *err);
bool esp_kv_same(const struct esp_kv_scheme *a, const struct esp_kv_scheme *b);
/* Whether rows are codes: neither f32 nor bf16. */
bool esp_kv_coded(const struct esp_kv_scheme *s);
/* Whether attention over stored values gives a rotated vector, for esp_kv_unrotate(). */
bool esp_kv_rotated(const struct esp_kv_scheme *s);

/* Bytes of one row of a head; head_dim passes esp_kv_check(). */
size_t esp_kv_key_bytes(const struct esp_kv_scheme *s, uint32_t head_dim);
size_t esp_kv_value_bytes(const struct esp_kv_scheme *s, uint32_t head_dim);

/*
 * Encode x[head_dim]. NaN becomes 0 and magnitudes above 65504 become 65504 first, in coded schemes; their
 * number is the result. What coded rows decode to is always finite.
 */
uint32_t esp_kv_encode_key(const struct esp_kv_scheme *s, uint32_t head_dim, const float *x, uint8_t *row);
uint32_t esp_kv_encode_value(const struct esp_kv_scheme *s, uint32_t head_dim, const float *x, uint8_t *row);
/* One affine group of n finite elements: codes one a byte, and what is stored beside them, as bf16. */
void esp_kv_affine_group(const float *x, uint32_t n, uint32_t bits, uint8_t *codes, uint16_t *scale,
                         uint16_t *bias);
/* Largest error that the published scale may leave, in steps of (largest - smallest) / top. */
static const float esp_kv_affine_slack = 0.502f;
/* Decode a row of any bytes; reads the row alone. Values come as they are stored: rotated where
 * esp_kv_rotated(). */
void esp_kv_decode_key(const struct esp_kv_scheme *s, uint32_t head_dim, const uint8_t *row, float *out);
void esp_kv_decode_value(const struct esp_kv_scheme *s, uint32_t head_dim, const uint8_t *row, float *out);
/* Into the basis of stored values, in place: the inverse of esp_kv_unrotate(). */
void esp_kv_rotate(const struct esp_kv_scheme *s, uint32_t head_dim, float *x);
/* Bring sums of stored values back into the head's own basis, in place; nothing to do unless rotated. */
void esp_kv_unrotate(const struct esp_kv_scheme *s, uint32_t head_dim, float *x);

#endif
