/*
 * Cached keys and values: any bits as input give finite numbers back, and rows of any bytes decode without
 * leaving the row. Byte 0 chooses the scheme, byte 1 the head size, the rest are floats or a row.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "formats/kv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {
    "q8",         "q6:g32",     "q4:g128",          "turbo",         "turbo:k5v4", "turbo:k4v5",
    "turbo:k2v2", "turbo:k8v8", "turbo:k8v3:least", "turbo:k4v4:own"};
static const uint32_t dims[] = {64, 96, 128, 256, 512};

static void check(const float *x, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++)
        if (!isfinite(x[i]))
            __builtin_trap();
}

/* An exact copy, so that reading past it is seen; zeros where the input ends. */
static uint8_t *exact(const uint8_t *data, size_t size, size_t want)
{
    uint8_t *p = esp_alloc(want);

    if (p)
        memcpy(p, data, size < want ? size : want);
    return p;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    float x[ESP_KV_HEAD_MAX] = {0}, y[ESP_KV_HEAD_MAX];
    uint8_t row[ESP_KV_ROW_MAX], *k, *v;
    struct esp_kv_scheme s;
    uint32_t d;

    if (size < 2 || esp_kv_parse(&s, names[data[0] % 10], NULL) != ESP_OK)
        return 0;
    d = dims[data[1] % 5];
    if (esp_kv_check(&s, d, NULL) != ESP_OK)
        return 0;
    data += 2;
    size -= 2;
    memcpy(x, data, size < sizeof x ? size : sizeof x);
    esp_kv_encode_key(&s, d, x, row);
    esp_kv_decode_key(&s, d, row, y);
    check(y, d);
    esp_kv_encode_value(&s, d, x, row);
    esp_kv_decode_value(&s, d, row, y);
    check(y, d);
    esp_kv_unrotate(&s, d, y);
    check(y, d);
    k = exact(data, size, esp_kv_key_bytes(&s, d));
    v = exact(data, size, esp_kv_value_bytes(&s, d));
    if (k && v) {
        esp_kv_decode_key(&s, d, k, y);
        esp_kv_decode_value(&s, d, v, y);
    }
    esp_free(k);
    esp_free(v);
    return 0;
}
