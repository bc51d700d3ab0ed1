/*
 * Safetensors from memory: whatever the bytes are, they load completely or are refused. What loads is walked,
 * so that a sanitizer sees every byte a caller may touch.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct esp_st_file *f;
    esp_error err;
    volatile uint8_t sum = 0;
    size_t total = 0;

    if (esp_st_open_memory(&f, data, size, "input", &err) != ESP_OK) {
        if (!err.message[0])
            __builtin_trap();
        return 0;
    }
    for (uint32_t i = 0; i < esp_st_count(f); i++) {
        const struct esp_st_tensor *t = esp_st_sorted(f, i);

        for (size_t k = 0; k < t->bytes; k++)
            sum = (uint8_t)(sum + t->data[k]);
        total += t->bytes;
        if (esp_st_find(f, t->name) != t)
            __builtin_trap();
    }
    if (total > size)
        __builtin_trap();
    for (uint32_t i = 0; i < esp_st_metadata_count(f); i++) {
        const char *key, *value;

        esp_st_metadata_get(f, i, &key, &value);
        if (esp_st_metadata(f, key) != value)
            __builtin_trap();
        sum = (uint8_t)(sum + strlen(value));
    }
    esp_st_close(f);
    return 0;
}
