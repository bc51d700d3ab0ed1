/*
 * State files: whatever the bytes are, opening refuses or gives counts that the file's size bears out, and
 * verifying stays inside the map. The header's hash is made right first, so that inputs get past it.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "state/snapshot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Write data to a file in memory, its header's hash replaced; the descriptor, or -1. */
static int make_file(const uint8_t *data, size_t size)
{
    uint8_t *copy = esp_alloc(size);
    uint32_t len = 0;
    uint64_t hash;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    if (copy && size)
        memcpy(copy, data, size);
    if (copy && size >= 24) {
        memcpy(&len, data + 8, sizeof len);
        if (len <= size - 24) {
            hash = esp_hash(data + 24, len, 0);
            memcpy(copy + 16, &hash, sizeof hash);
        }
    }
    if (fd >= 0 && (!copy || write(fd, copy, size) != (ssize_t)size)) {
        close(fd);
        fd = -1;
    }
    esp_free(copy);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct esp_layout l = {.n_attn = 1, .n_delta = 1, .n_kv_head = 1, .head_dim = 16, .kv = ESP_KV_BF16};
    struct esp_snapshot_key key = {.ns = 1, .about = "fuzz"};
    struct esp_snapshot_info info;
    struct esp_snapshot *f;
    char path[64];
    int fd = make_file(data, size);

    l.kh = l.vh = 1;
    l.dk = l.dv = 16;
    l.conv_dim = 48;
    if (fd < 0 || esp_layout_finish(&l, NULL) != ESP_OK)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (esp_snapshot_open(&f, path, &l, &key, NULL) == ESP_OK) {
        esp_snapshot_describe(f, &info);
        if (info.bytes != size || info.n > info.n_token || info.n_token > size / sizeof *info.tokens ||
            (info.n_checkpoint && info.checkpoints[info.n_checkpoint - 1].n != info.n))
            __builtin_trap();
        (void)esp_snapshot_verify(f, NULL);
        esp_snapshot_close(f);
    }
    close(fd);
    return 0;
}
