/*
 * Files in: mmap for weights, a plain bounded read for text. Mapping is private and read-only, so another
 * process that rewrites the file in place is outside our contract; one that truncates it is caught by the
 * size checks at open only.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static esp_status open_regular(int *fd, size_t *size, const char *path, esp_error *err)
{
    struct stat st;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */

    if (f < 0)
        return esp_fail(err, errno == ENOENT || errno == ENOTDIR ? ESP_ENOTFOUND : ESP_EIO, "%s: %s", path,
                        strerror(errno));
    if (fstat(f, &st) != 0) {
        int e = errno;

        close(f);
        return esp_fail(err, ESP_EIO, "%s: %s", path, strerror(e));
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return esp_fail(err, ESP_EFORMAT, "%s: not a regular file", path);
    }
    if (st.st_size < 0 || (uintmax_t)st.st_size > SIZE_MAX / 2) {
        close(f);
        return esp_fail(err, ESP_EFORMAT, "%s: %jd bytes cannot be mapped", path, (intmax_t)st.st_size);
    }
    *fd = f;
    *size = (size_t)st.st_size;
    return ESP_OK;
}

esp_status esp_map_open(struct esp_map *out, const char *path, esp_error *err)
{
    struct esp_map m = {0};
    int fd;

    ESP_TRY(open_regular(&fd, &m.size, path, err));
    m.name = esp_strndup(path, strlen(path));
    if (!m.name) {
        close(fd);
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", path);
    }
    if (m.size) {
        void *p = mmap(NULL, m.size, PROT_READ, MAP_PRIVATE, fd, 0);

        if (p == MAP_FAILED) {
            esp_status s =
                esp_fail(err, ESP_EIO, "%s: cannot map %zu bytes: %s", path, m.size, strerror(errno));

            close(fd);
            esp_free(m.name);
            return s;
        }
        m.data = p;
    }
    close(fd);
    *out = m;
    return ESP_OK;
}

esp_status esp_map_memory(struct esp_map *out, size_t size, enum esp_huge huge, uint8_t **data,
                          esp_error *err)
{
    void *p;

    ESP_TRY(esp_huge_take(&p, size, huge == ESP_HUGE_OFF ? ESP_HUGE_OFF : ESP_HUGE_AUTO, err));
    *out = (struct esp_map){.data = p, .size = size ? size : 1};
    *data = p;
    return ESP_OK;
}

/* All of fd, size bytes; false when there are fewer. */
static bool read_whole(int fd, uint8_t *to, size_t size)
{
    size_t got = 0;

    while (got < size) {
        const ssize_t n = read(fd, to + got, size - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    return got == size;
}

esp_status esp_map_read(struct esp_map *out, const char *path, esp_error *err)
{
    struct esp_map m = {0};
    uint8_t *data = NULL;
    size_t size;
    int fd;
    esp_status s;

    ESP_TRY(open_regular(&fd, &size, path, err));
    if (size == 0) {
        close(fd);
        return esp_map_open(out, path, err);
    }
    s = esp_map_memory(&m, size, ESP_HUGE_AUTO, &data, err);
    if (s == ESP_OK) {
        m.name = esp_strndup(path, strlen(path));
        if (!m.name)
            s = esp_fail(err, ESP_ENOMEM, "%s: out of memory", path);
        else if (!read_whole(fd, data, size) || mprotect(data, m.size, PROT_READ) != 0)
            s = esp_fail(err, ESP_EIO, "%s: cannot read %zu bytes: %s", path, size, strerror(errno));
    }
    close(fd);
    if (s == ESP_OK)
        *out = m;
    else
        esp_map_close(&m);
    return s;
}

void esp_map_close(struct esp_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    esp_free(m->name);
    memset(m, 0, sizeof *m);
}

void esp_map_drop(const uint8_t *data, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)data + page - 1) / page * page,
                    end = ((uintptr_t)data + bytes) / page * page;

    if (end > first) /* whole pages; refusal, as of locked ones, costs memory only */
        madvise((void *)first, end - first, MADV_DONTNEED);
}

esp_status esp_read_file(char **out, size_t *len, const char *path, size_t max, esp_error *err)
{
    size_t size;
    bool whole;
    char *buf;
    int fd;

    ESP_TRY(open_regular(&fd, &size, path, err));
    if (size > max) {
        close(fd);
        return esp_fail(err, ESP_EFORMAT, "%s: %zu bytes, at most %zu are accepted", path, size, max);
    }
    buf = esp_alloc(size + 1);
    if (!buf) {
        close(fd);
        return esp_fail(err, ESP_ENOMEM, "%s: no memory for %zu bytes", path, size);
    }
    whole = read_whole(fd, (uint8_t *)buf, size);
    close(fd);
    if (!whole) {
        esp_free(buf);
        return esp_fail(err, ESP_EIO, "%s: fewer than %zu bytes could be read", path, size);
    }
    *out = buf;
    *len = size;
    return ESP_OK;
}

char *esp_path_join(const char *dir, const char *name)
{
    size_t nd = strlen(dir), nn = strlen(name);
    char *p = esp_alloc(nd + nn + 2);

    if (!p)
        return NULL;
    memcpy(p, dir, nd);
    if (nd && dir[nd - 1] != '/')
        p[nd++] = '/';
    memcpy(p + nd, name, nn);
    return p;
}
