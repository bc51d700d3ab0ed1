/*
 * Adapter folders: a configuration, a line "---", and the JSON header of the weights, whose length is put in
 * front and whose data are zeros. What is accepted must have both halves of every pair and a finite scale.
 *
 * SPDX-License-Identifier: MIT
 */
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DATA_BYTES = 4096 };
static char folder[64], config[96], weights[96];

static void clean(void)
{
    unlink(config);
    unlink(weights);
    rmdir(folder);
}

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/espalier_fuzz.XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder))
        __builtin_trap();
    snprintf(config, sizeof config, "%s/adapter_config.json", folder);
    snprintf(weights, sizeof weights, "%s/adapter_model.safetensors", folder);
    atexit(clean);
}

static void put(const char *path, const void *head, size_t head_len, const uint8_t *data, size_t len,
                size_t zeros)
{
    static const uint8_t zero[DATA_BYTES];
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, head, head_len) != (ssize_t)head_len || write(fd, data, len) != (ssize_t)len ||
        write(fd, zero, zeros) != (ssize_t)zeros || close(fd) != 0)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = memmem(data, size, "\n---\n", 5);
    const size_t n = cut ? (size_t)(cut - data) : size;
    struct esp_adapter_file *a = NULL;
    uint64_t header = cut ? size - n - 5 : 0;
    esp_error err;

    if (!folder[0])
        make_folder();
    put(config, "", 0, data, n, 0);
    put(weights, &header, sizeof header, cut ? cut + 5 : data, (size_t)header, DATA_BYTES);
    if (esp_adapter_file_open(&a, folder, &err) != ESP_OK) {
        if (!err.message[0])
            __builtin_trap();
        return 0;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        const struct esp_adapter_pair *p = &a->pairs[i];

        if (!p->a || !p->b || p->a->n_dim != 2 || p->b->n_dim != 2 || !p->module[0] ||
            (i && strcmp(a->pairs[i - 1].module, p->module) >= 0))
            __builtin_trap();
        (void)esp_adapter_scale_of(a, p->module, p->a->shape[0]);
    }
    esp_adapter_file_close(a);
    return 0;
}
