/*
 * Devices by name: which word means which.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <string.h>

esp_status esp_engine_device_name(const char *name, bool *cuda, uint32_t *index, esp_error *err)
{
    uint32_t n = 0;

    *cuda = false;
    *index = 0;
    if (!name || strcmp(name, "cpu") == 0)
        return ESP_OK;
    *cuda = true;
    if (strcmp(name, "cuda") == 0)
        return ESP_OK;
    if (strncmp(name, "cuda:", 5) == 0 && name[5]) {
        size_t i = 5;

        for (; name[i] >= '0' && name[i] <= '9' && n < 1000; i++)
            n = n * 10 + (uint32_t)(name[i] - '0');
        *index = n;
        if (name[i] == 0)
            return ESP_OK;
    }
    return esp_fail(err, ESP_EINVAL, "device \"%s\"; accepted: cpu, cuda, cuda:N", name);
}

esp_status esp_engine_cuda(struct esp_dev **out, const char *name, esp_error *err)
{
    struct esp_dev *d = NULL;
    uint32_t index;
    bool cuda;

    ESP_TRY(esp_engine_device_name(name, &cuda, &index, err));
    if (cuda)
        ESP_TRY(esp_cuda_open(&d, index, err));
    *out = d;
    return ESP_OK;
}
