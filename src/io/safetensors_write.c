/*
 * Safetensors writer. The header grows as text while tensors are declared, so memory is the header's own
 * size; the data goes through one fixed buffer to a temporary file beside the target.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "io/sort.h"

enum { BUFFER_BYTES = 1 << 18, MAX_TRIES = 1000 };

struct esp_st_writer {
    char *path;
    char *tmp; /* "path.tmpN"; exists on disk when fd is open or was */
    int fd;
    bool begun, on_disk, failed;
    struct esp_strbuf meta;    /* members of __metadata__ */
    struct esp_strbuf keys;    /* their keys, each zero-terminated; few, so searched one by one */
    struct esp_strbuf entries; /* members of the header */
    struct esp_strbuf names;   /* each zero-terminated, for the check for repeats */
    size_t *name_at;
    uint32_t n, cap;
    uint32_t n_meta;
    size_t declared, given; /* bytes of data */
    uint8_t *buffer;
    size_t used;
};

static esp_status fail_errno(struct esp_st_writer *w, const char *what, esp_error *err)
{
    const int e = errno;

    w->failed = true;
    return esp_fail(err, ESP_EIO, "%s: cannot %s %s: %s", w->path, what, w->tmp ? w->tmp : "", strerror(e));
}

static esp_status no_memory(struct esp_st_writer *w, esp_error *err)
{
    w->failed = true;
    return esp_fail(err, ESP_ENOMEM, "%s: no memory to write, or a header above %u bytes", w->path,
                    ESP_LIMIT_HEADER_BYTES);
}

static esp_status check_before(const struct esp_st_writer *w, const char *what, const char *text,
                               esp_error *err)
{
    if (w->failed)
        return esp_fail(err, ESP_ESTATE, "%s: writing failed before", w->path);
    if (w->begun)
        return esp_fail(err, ESP_ESTATE, "%s: %s after the first data", w->path, what);
    if (!esp_utf8_valid(text, strlen(text), NULL))
        return esp_fail(err, ESP_EINVAL, "%s: %s '%.160s' is not UTF-8", w->path, what, text);
    return ESP_OK;
}

static void put_string(struct esp_strbuf *b, const char *s)
{
    esp_strbuf_putc(b, '"');
    for (; *s; s++) {
        const unsigned char c = (unsigned char)*s;

        if (c == '"' || c == '\\')
            esp_strbuf_printf(b, "\\%c", c);
        else if (c < 0x20)
            esp_strbuf_printf(b, "\\u%04x", c);
        else
            esp_strbuf_putc(b, (char)c);
    }
    esp_strbuf_putc(b, '"');
}

esp_status esp_st_writer_create(struct esp_st_writer **out, const char *path, esp_error *err)
{
    struct esp_st_writer *w = esp_alloc(sizeof *w);

    if (w) {
        w->fd = -1;
        w->path = esp_strndup(path, strlen(path));
        w->buffer = esp_alloc(BUFFER_BYTES);
        esp_strbuf_init(&w->meta, ESP_LIMIT_HEADER_BYTES);
        esp_strbuf_init(&w->keys, ESP_LIMIT_HEADER_BYTES);
        esp_strbuf_init(&w->entries, ESP_LIMIT_HEADER_BYTES);
        esp_strbuf_init(&w->names, ESP_LIMIT_HEADER_BYTES);
    }
    if (!w || !w->path || !w->buffer) {
        esp_st_writer_destroy(w);
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", path);
    }
    *out = w;
    return ESP_OK;
}

esp_status esp_st_writer_metadata(struct esp_st_writer *w, const char *key, const char *value, esp_error *err)
{
    ESP_TRY(check_before(w, "metadata key", key, err));
    ESP_TRY(check_before(w, "metadata value", value, err));
    for (size_t at = 0; at < w->keys.len; at += strlen(w->keys.data + at) + 1)
        if (strcmp(w->keys.data + at, key) == 0)
            return esp_fail(err, ESP_EINVAL, "%s: duplicate metadata key '%.160s'", w->path, key);
    esp_strbuf_add(&w->keys, key, strlen(key) + 1);
    if (w->n_meta++)
        esp_strbuf_putc(&w->meta, ',');
    put_string(&w->meta, key);
    esp_strbuf_putc(&w->meta, ':');
    put_string(&w->meta, value);
    return w->meta.failed || w->keys.failed ? no_memory(w, err) : ESP_OK;
}

static esp_status declared_bytes(const struct esp_st_writer *w, const char *name, enum esp_dtype dtype,
                                 uint32_t n_dim, const uint64_t *shape, size_t *bytes, esp_error *err)
{
    size_t n = 1, end;
    bool zero = false, fits = true;

    for (uint32_t i = 0; i < n_dim; i++) {
        zero = zero || shape[i] == 0;
        fits = fits && (shape[i] == 0 || esp_mul_size(&n, n, shape[i]));
    }
    if (!fits || !esp_dtype_bytes(bytes, dtype, n))
        return esp_fail(err, ESP_EINVAL, "%s: tensor '%.160s' of %s: size is not whole bytes or too large",
                        w->path, name, esp_dtype_name(dtype));
    if (zero)
        *bytes = 0;
    if (!esp_add_size(&end, w->declared, *bytes))
        return esp_fail(err, ESP_EINVAL, "%s: tensor '%.160s' makes the file too large", w->path, name);
    return ESP_OK;
}

static esp_status keep_name(struct esp_st_writer *w, const char *name, esp_error *err)
{
    if (w->n == w->cap) {
        const uint32_t want = w->cap ? w->cap * 2 : 64;
        size_t *p = esp_realloc(w->name_at, want * sizeof *p);

        if (!p)
            return no_memory(w, err);
        w->name_at = p;
        w->cap = want;
    }
    w->name_at[w->n] = w->names.len;
    if (!esp_strbuf_add(&w->names, name, strlen(name) + 1))
        return no_memory(w, err);
    return ESP_OK;
}

esp_status esp_st_writer_declare(struct esp_st_writer *w, const char *name, enum esp_dtype dtype,
                                 uint32_t n_dim, const uint64_t *shape, esp_error *err)
{
    size_t bytes;

    ESP_TRY(check_before(w, "tensor name", name, err));
    if (!*name || strcmp(name, "__metadata__") == 0)
        return esp_fail(err, ESP_EINVAL, "%s: '%s' cannot name a tensor", w->path, name);
    if (n_dim > ESP_LIMIT_DIMS || w->n >= ESP_LIMIT_TENSORS)
        return esp_fail(err, ESP_EINVAL,
                        "%s: tensor '%.160s': %u dimensions (at most %u), number %u (at most %u)", w->path,
                        name, n_dim, ESP_LIMIT_DIMS, w->n + 1, ESP_LIMIT_TENSORS);
    ESP_TRY(declared_bytes(w, name, dtype, n_dim, shape, &bytes, err));
    ESP_TRY(keep_name(w, name, err));
    if (w->n)
        esp_strbuf_putc(&w->entries, ',');
    put_string(&w->entries, name);
    esp_strbuf_printf(&w->entries, ":{\"dtype\":\"%s\",\"shape\":[", esp_dtype_name(dtype));
    for (uint32_t i = 0; i < n_dim; i++)
        esp_strbuf_printf(&w->entries, "%s%" PRIu64, i ? "," : "", shape[i]);
    esp_strbuf_printf(&w->entries, "],\"data_offsets\":[%zu,%zu]}", w->declared, w->declared + bytes);
    if (w->entries.failed)
        return no_memory(w, err);
    w->declared += bytes;
    w->n++;
    return ESP_OK;
}

static int by_name(const void *ctx, uint32_t a, uint32_t b)
{
    const struct esp_st_writer *w = ctx;

    return strcmp(w->names.data + w->name_at[a], w->names.data + w->name_at[b]);
}

static esp_status check_repeats(struct esp_st_writer *w, esp_error *err)
{
    uint32_t *order = esp_sort_new(w->n, by_name, w);
    esp_status s = ESP_OK;

    if (!order)
        return no_memory(w, err);
    for (uint32_t i = 1; i < w->n && s == ESP_OK; i++)
        if (by_name(w, order[i - 1], order[i]) == 0)
            s = esp_fail(err, ESP_EINVAL, "%s: duplicate tensor name '%.160s'", w->path,
                         w->names.data + w->name_at[order[i]]);
    esp_free(order);
    return s;
}

static esp_status flush(struct esp_st_writer *w, esp_error *err)
{
    size_t at = 0;

    while (at < w->used) {
        const ssize_t k = write(w->fd, w->buffer + at, w->used - at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return fail_errno(w, "write", err);
        at += (size_t)k;
    }
    w->used = 0;
    return ESP_OK;
}

static esp_status put(struct esp_st_writer *w, const void *data, size_t bytes, esp_error *err)
{
    const uint8_t *p = data;

    while (bytes > 0) {
        const size_t room = BUFFER_BYTES - w->used, k = bytes < room ? bytes : room;

        memcpy(w->buffer + w->used, p, k);
        w->used += k;
        p += k;
        bytes -= k;
        if (w->used == BUFFER_BYTES)
            ESP_TRY(flush(w, err));
    }
    return ESP_OK;
}

/* A file of our own beside the target; rename() then stays inside one file system. */
static esp_status open_temporary(struct esp_st_writer *w, esp_error *err)
{
    const size_t cap = strlen(w->path) + 16;

    w->tmp = esp_alloc(cap);
    if (!w->tmp)
        return no_memory(w, err);
    for (int i = 0; i < MAX_TRIES; i++) {
        snprintf(w->tmp, cap, "%s.tmp%d", w->path, i);
        w->fd = open(w->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0 || errno != EEXIST)
            break;
    }
    if (w->fd < 0)
        return fail_errno(w, "create", err);
    w->on_disk = true;
    return ESP_OK;
}

static esp_status begin(struct esp_st_writer *w, esp_error *err)
{
    uint8_t length[8];
    size_t len, padded;

    ESP_TRY(check_repeats(w, err));
    len = 2 + w->entries.len +
          (w->n_meta ? sizeof "\"__metadata__\":{}" - 1 + w->meta.len + (w->n ? 1 : 0) : 0);
    padded = (len + 7) / 8 * 8;
    if (padded > ESP_LIMIT_HEADER_BYTES)
        return no_memory(w, err);
    ESP_TRY(open_temporary(w, err));
    w->begun = true;
    for (unsigned i = 0; i < 8; i++)
        length[i] = (uint8_t)(padded >> (8 * i));
    ESP_TRY(put(w, length, sizeof length, err));
    ESP_TRY(put(w, "{", 1, err));
    if (w->n_meta) {
        ESP_TRY(put(w, "\"__metadata__\":{", 16, err));
        ESP_TRY(put(w, w->meta.data, w->meta.len, err));
        ESP_TRY(put(w, "},", w->n ? 2 : 1, err));
    }
    ESP_TRY(put(w, esp_strbuf_str(&w->entries), w->entries.len, err));
    ESP_TRY(put(w, "}", 1, err));
    return put(w, "        ", padded - len, err);
}

esp_status esp_st_writer_data(struct esp_st_writer *w, const void *data, size_t bytes, esp_error *err)
{
    if (w->failed)
        return esp_fail(err, ESP_ESTATE, "%s: writing failed before", w->path);
    if (bytes > w->declared - w->given)
        return esp_fail(err, ESP_EINVAL, "%s: %zu bytes of data given after %zu, %zu were declared", w->path,
                        bytes, w->given, w->declared);
    if (!w->begun)
        ESP_TRY(begin(w, err));
    ESP_TRY(put(w, data, bytes, err));
    w->given += bytes;
    return ESP_OK;
}

/* So that the rename itself survives a power cut; a file system that cannot is no failure. */
static void sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? esp_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : esp_strndup(".", 1);
    const int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    esp_free(dir);
}

esp_status esp_st_writer_finish(struct esp_st_writer *w, esp_error *err)
{
    if (w->failed)
        return esp_fail(err, ESP_ESTATE, "%s: writing failed before", w->path);
    if (w->given != w->declared)
        return esp_fail(err, ESP_ESTATE, "%s: %zu bytes of data given, %zu were declared", w->path, w->given,
                        w->declared);
    if (!w->begun)
        ESP_TRY(begin(w, err));
    ESP_TRY(flush(w, err));
    if (fsync(w->fd) != 0)
        return fail_errno(w, "sync", err);
    if (close(w->fd) != 0) {
        w->fd = -1;
        return fail_errno(w, "close", err);
    }
    w->fd = -1;
    if (rename(w->tmp, w->path) != 0)
        return fail_errno(w, "rename", err);
    w->on_disk = false;
    w->failed = true; /* finished: nothing more may be written */
    sync_directory(w->path);
    return ESP_OK;
}

void esp_st_writer_destroy(struct esp_st_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->on_disk)
        (void)unlink(w->tmp);
    esp_strbuf_free(&w->meta);
    esp_strbuf_free(&w->keys);
    esp_strbuf_free(&w->entries);
    esp_strbuf_free(&w->names);
    esp_free(w->name_at);
    esp_free(w->buffer);
    esp_free(w->tmp);
    esp_free(w->path);
    esp_free(w);
}
