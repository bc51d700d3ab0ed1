/*
 * Safetensors reader. The header is read by a pull parser straight into a flat array, names beside it in one
 * block, so that a header of a million entries costs megabytes and hostile names cannot degrade anything:
 * duplicates and overlaps are neighbours after a merge sort. Source: doc/formats/safetensors.md.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/safetensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "io/json_scan.h"
#include "io/sort.h"

#define NAME_FMT "'%.160s'" /* a name may be as long as the header */

struct pair {
    const char *key, *value;
};

struct esp_st_file {
    struct esp_map map; /* zero when over memory */
    char *name;
    size_t size;
    const uint8_t *data; /* first byte after the header */
    size_t data_bytes;
    char *text; /* unescaped names, metadata keys and values, each zero-terminated */
    size_t text_len;
    struct esp_st_tensor *tensor;
    uint32_t n, cap;
    uint32_t *by_name;
    struct pair *meta;
    uint32_t n_meta, cap_meta;
    bool has_meta;
    uint64_t need;          /* largest end offset seen */
    const char *need_owner; /* the tensor that has it */
};

/* ---- header ---- */

/* Room for one more element of size bytes in *p; *cap doubles. */
static esp_status grow(void **p, uint32_t n, uint32_t *cap, size_t size, const struct esp_st_file *f,
                       esp_error *err)
{
    uint32_t want = *cap ? *cap * 2 : 64;
    size_t bytes;
    void *q;

    if (n < *cap)
        return ESP_OK;
    if (n >= ESP_LIMIT_TENSORS)
        return esp_fail(err, ESP_EFORMAT, "%s: more than %u entries in the header", f->name,
                        ESP_LIMIT_TENSORS);
    q = esp_mul_size(&bytes, want, size) ? esp_realloc(*p, bytes) : NULL;
    if (!q)
        return esp_fail(err, ESP_ENOMEM, "%s: no memory for an index of %u entries", f->name, want);
    *p = q;
    *cap = want;
    return ESP_OK;
}

/* A string into f->text; the block is as long as the header, so it always fits. */
static esp_status keep_string(struct esp_st_file *f, struct esp_jscan *j, const char **out, esp_error *err)
{
    char *at = f->text + f->text_len;
    size_t len;

    ESP_TRY(esp_jscan_string(j, at, &len, err));
    f->text_len += len + 1;
    *out = at;
    return ESP_OK;
}

static esp_status read_metadata(struct esp_st_file *f, struct esp_jscan *j, esp_error *err)
{
    if (f->has_meta)
        return esp_fail(err, ESP_EFORMAT, "%s: duplicate key '__metadata__' in the header", f->name);
    f->has_meta = true;
    ESP_TRY(esp_jscan_expect(j, '{', err));
    for (;;) {
        struct pair *p;
        bool more;

        ESP_TRY(esp_jscan_more(j, '}', f->n_meta, &more, err));
        if (!more)
            return ESP_OK;
        ESP_TRY(grow((void **)&f->meta, f->n_meta, &f->cap_meta, sizeof *f->meta, f, err));
        p = &f->meta[f->n_meta];
        ESP_TRY(keep_string(f, j, &p->key, err));
        ESP_TRY(esp_jscan_expect(j, ':', err));
        ESP_TRY(keep_string(f, j, &p->value, err));
        f->n_meta++;
    }
}

static esp_status read_dtype(const struct esp_st_file *f, struct esp_jscan *j, struct esp_st_tensor *t,
                             esp_error *err)
{
    const char *quote = "\"";
    size_t start;

    (void)esp_jscan_peek(j);
    start = j->pos + 1;
    ESP_TRY(esp_jscan_string(j, NULL, NULL, err)); /* no dtype has an escape in its name: compare raw */
    t->dtype = esp_dtype_parse(j->s + start, j->pos - start - strlen(quote));
    if (t->dtype == ESP_DTYPE_NONE)
        return esp_fail(err, ESP_EFORMAT, "%s: tensor " NAME_FMT " has unknown dtype '%.*s'", f->name,
                        t->name, (int)(j->pos - start - 1 > 40 ? 40 : j->pos - start - 1), j->s + start);
    return ESP_OK;
}

static esp_status read_shape(const struct esp_st_file *f, struct esp_jscan *j, struct esp_st_tensor *t,
                             esp_error *err)
{
    bool more;

    ESP_TRY(esp_jscan_expect(j, '[', err));
    for (t->n_dim = 0;; t->n_dim++) {
        ESP_TRY(esp_jscan_more(j, ']', t->n_dim, &more, err));
        if (!more)
            return ESP_OK;
        if (t->n_dim == ESP_LIMIT_DIMS)
            return esp_fail(err, ESP_EFORMAT, "%s: tensor " NAME_FMT " has more than %u dimensions", f->name,
                            t->name, ESP_LIMIT_DIMS);
        ESP_TRY(esp_jscan_u64(j, &t->shape[t->n_dim], err));
    }
}

static esp_status read_offsets(struct esp_jscan *j, uint64_t range[2], esp_error *err)
{
    ESP_TRY(esp_jscan_expect(j, '[', err));
    ESP_TRY(esp_jscan_u64(j, &range[0], err));
    ESP_TRY(esp_jscan_expect(j, ',', err));
    ESP_TRY(esp_jscan_u64(j, &range[1], err));
    return esp_jscan_expect(j, ']', err);
}

static esp_status read_fields(const struct esp_st_file *f, struct esp_jscan *j, struct esp_st_tensor *t,
                              uint64_t range[2], esp_error *err)
{
    static const char *const field[3] = {"dtype", "shape", "data_offsets"};
    unsigned seen = 0;
    bool more;

    ESP_TRY(esp_jscan_expect(j, '{', err));
    for (size_t n = 0;; n++) {
        size_t start, len, k = 0;

        ESP_TRY(esp_jscan_more(j, '}', n, &more, err));
        if (!more)
            break;
        (void)esp_jscan_peek(j);
        start = j->pos + 1;
        ESP_TRY(esp_jscan_string(j, NULL, NULL, err));
        len = j->pos - start - 1;
        while (k < 3 && (strlen(field[k]) != len || memcmp(field[k], j->s + start, len) != 0))
            k++;
        if (k == 3)
            return esp_fail(err, ESP_EFORMAT, "%s: tensor " NAME_FMT " has an unknown field '%.*s'", f->name,
                            t->name, (int)(len > 40 ? 40 : len), j->s + start);
        if (seen & 1u << k)
            return esp_fail(err, ESP_EFORMAT, "%s: tensor " NAME_FMT ": duplicate key '%s'", f->name, t->name,
                            field[k]);
        seen |= 1u << k;
        ESP_TRY(esp_jscan_expect(j, ':', err));
        ESP_TRY(k == 0   ? read_dtype(f, j, t, err)
                : k == 1 ? read_shape(f, j, t, err)
                         : read_offsets(j, range, err));
    }
    for (size_t k = 0; k < 3; k++)
        if (!(seen & 1u << k))
            return esp_fail(err, ESP_EFORMAT, "%s: tensor " NAME_FMT " has no '%s'", f->name, t->name,
                            field[k]);
    return ESP_OK;
}

/* shape x dtype == byte range. Dimensions beside a zero are multiplied too: no caller may meet an overflow
 * later. */
static esp_status check_size(const struct esp_st_tensor *t, const uint64_t range[2], esp_error *err)
{
    size_t n = 1, bytes = 0;
    bool zero = false, fits = true;
    char shape[128];

    for (uint32_t i = 0; i < t->n_dim; i++) {
        zero = zero || t->shape[i] == 0;
        if (t->shape[i] > 0)
            fits = fits && esp_mul_size(&n, n, t->shape[i]);
    }
    (void)esp_st_shape_text(t, shape, sizeof shape);
    if (!fits || !esp_dtype_bytes(&bytes, t->dtype, n))
        return esp_fail(err, ESP_EFORMAT,
                        "%s: tensor " NAME_FMT ": %s of %s is no size in whole bytes that fits 64 bits",
                        t->file->name, t->name, shape, esp_dtype_name(t->dtype));
    if (zero)
        bytes = 0;
    if (range[1] < range[0] || range[1] - range[0] != bytes)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: tensor " NAME_FMT ": %s of %s needs %zu bytes, data_offsets [%" PRIu64
                        ",%" PRIu64 "] give %s%" PRIu64,
                        t->file->name, t->name, shape, esp_dtype_name(t->dtype), bytes, range[0], range[1],
                        range[1] < range[0] ? "-" : "",
                        range[1] < range[0] ? range[0] - range[1] : range[1] - range[0]);
    return ESP_OK;
}

static esp_status read_tensor(struct esp_st_file *f, struct esp_jscan *j, const char *name, esp_error *err)
{
    uint64_t range[2] = {0, 0};
    struct esp_st_tensor *t;

    ESP_TRY(grow((void **)&f->tensor, f->n, &f->cap, sizeof *f->tensor, f, err));
    t = &f->tensor[f->n];
    memset(t, 0, sizeof *t);
    t->name = name;
    t->file = f;
    ESP_TRY(read_fields(f, j, t, range, err));
    ESP_TRY(check_size(t, range, err));
    t->bytes = (size_t)(range[1] - range[0]);
    if (range[1] <= f->data_bytes)
        t->data = f->data + range[0];
    if (!f->need_owner || range[1] > f->need) {
        f->need = range[1];
        f->need_owner = name;
    }
    f->n++;
    return ESP_OK;
}

static esp_status read_header(struct esp_st_file *f, const char *s, size_t len, esp_error *err)
{
    struct esp_jscan j = {.s = s, .len = len, .name = f->name};
    size_t at;
    bool more;

    if (len == 0 || s[0] != '{')
        return esp_fail(err, ESP_EFORMAT, "%s: the header must begin with '{': not a safetensors file",
                        f->name);
    if (!esp_utf8_valid(s, len, &at))
        return esp_fail(err, ESP_EFORMAT, "%s: the header is not UTF-8 at its byte %zu", f->name, at);
    f->text = esp_alloc(len);
    if (!f->text)
        return esp_fail(err, ESP_ENOMEM, "%s: no memory for the names of a header of %zu bytes", f->name,
                        len);
    ESP_TRY(esp_jscan_expect(&j, '{', err));
    for (size_t n = 0;; n++) {
        const char *name;

        ESP_TRY(esp_jscan_more(&j, '}', n, &more, err));
        if (!more)
            break;
        ESP_TRY(keep_string(f, &j, &name, err));
        ESP_TRY(esp_jscan_expect(&j, ':', err));
        if (strcmp(name, "__metadata__") == 0)
            ESP_TRY(read_metadata(f, &j, err));
        else
            ESP_TRY(read_tensor(f, &j, name, err));
    }
    return esp_jscan_end(&j, err);
}

/* ---- checks over all tensors ---- */

static int by_name(const void *ctx, uint32_t a, uint32_t b)
{
    const struct esp_st_tensor *t = ctx;

    return strcmp(t[a].name, t[b].name);
}

static int by_key(const void *ctx, uint32_t a, uint32_t b)
{
    const struct pair *p = ctx;

    return strcmp(p[a].key, p[b].key);
}

static int by_offset(const void *ctx, uint32_t a, uint32_t b)
{
    const struct esp_st_tensor *x = (const struct esp_st_tensor *)ctx + a,
                               *y = (const struct esp_st_tensor *)ctx + b;

    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

static esp_status no_memory(const struct esp_st_file *f, esp_error *err)
{
    return esp_fail(err, ESP_ENOMEM, "%s: no memory to index %u tensors", f->name, f->n);
}

static esp_status check_names(struct esp_st_file *f, esp_error *err)
{
    uint32_t *keys;
    esp_status s = ESP_OK;

    f->by_name = esp_sort_new(f->n, by_name, f->tensor);
    keys = esp_sort_new(f->n_meta, by_key, f->meta);
    if (!f->by_name || !keys) {
        esp_free(keys);
        return no_memory(f, err);
    }
    for (uint32_t i = 1; i < f->n && s == ESP_OK; i++)
        if (by_name(f->tensor, f->by_name[i - 1], f->by_name[i]) == 0)
            s = esp_fail(err, ESP_EFORMAT, "%s: duplicate tensor name " NAME_FMT, f->name,
                         f->tensor[f->by_name[i]].name);
    for (uint32_t i = 1; i < f->n_meta && s == ESP_OK; i++)
        if (by_key(f->meta, keys[i - 1], keys[i]) == 0)
            s = esp_fail(err, ESP_EFORMAT, "%s: duplicate metadata key " NAME_FMT, f->name,
                         f->meta[keys[i]].key);
    esp_free(keys);
    return s;
}

/* The file is at least as long as the tensors say. */
static esp_status check_length(const struct esp_st_file *f, esp_error *err)
{
    const size_t head = f->size - f->data_bytes;
    size_t want;

    if (f->need <= f->data_bytes)
        return ESP_OK;
    if (!esp_add_size(&want, head, (size_t)f->need))
        want = SIZE_MAX;
    return esp_fail(err, ESP_EFORMAT,
                    "%s: truncated: the header promises a file of %zu bytes (tensor " NAME_FMT
                    " ends there), found %zu",
                    f->name, want, f->need_owner, f->size);
}

static esp_status overlap(const struct esp_st_file *f, const struct esp_st_tensor *a,
                          const struct esp_st_tensor *b, esp_error *err)
{
    return esp_fail(err, ESP_EFORMAT,
                    "%s: tensors " NAME_FMT " and " NAME_FMT
                    " overlap from byte %zu of the data on: every byte must "
                    "belong to one tensor",
                    f->name, a->name, b->name, (size_t)(b->data - f->data));
}

static esp_status check_coverage(const struct esp_st_file *f, esp_error *err)
{
    uint32_t *order = esp_sort_new(f->n, by_offset, f->tensor);
    const struct esp_st_tensor *last = NULL; /* the last one that owns bytes */
    esp_status s = ESP_OK;
    size_t at = 0;

    if (!order)
        return no_memory(f, err);
    for (uint32_t i = 0; i < f->n && s == ESP_OK; i++) {
        const struct esp_st_tensor *t = &f->tensor[order[i]];
        const size_t begin = (size_t)(t->data - f->data);

        if (begin < at)
            s = overlap(f, last ? last : t, t, err);
        else if (begin > at)
            s = esp_fail(err, ESP_EFORMAT,
                         "%s: bytes %zu to %zu of the data, after %s%.160s and before tensor " NAME_FMT
                         ", belong to no tensor",
                         f->name, at, begin, last ? "tensor " : "the header", last ? last->name : "",
                         t->name);
        at = begin + t->bytes;
        last = t->bytes ? t : last;
    }
    esp_free(order);
    if (s == ESP_OK && at != f->data_bytes)
        s = esp_fail(err, ESP_EFORMAT,
                     "%s: %zu bytes after the last tensor%s%.160s belong to no tensor (file of %zu bytes)",
                     f->name, f->data_bytes - at, last ? " " : "", last ? last->name : "", f->size);
    return s;
}

static esp_status check_all(struct esp_st_file *f, esp_error *err)
{
    ESP_TRY(check_names(f, err));
    ESP_TRY(check_length(f, err));
    return check_coverage(f, err);
}

static uint64_t load_u64_le(const uint8_t *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static esp_status read_file(struct esp_st_file *f, const uint8_t *p, esp_error *err)
{
    uint64_t len;

    if (f->size < 8)
        return esp_fail(err, ESP_EFORMAT, "%s: %zu bytes, a safetensors file has at least 8", f->name,
                        f->size);
    len = load_u64_le(p);
    if (len > ESP_LIMIT_HEADER_BYTES)
        return esp_fail(err, ESP_EFORMAT, "%s: header length %" PRIu64 " is above the limit of %u bytes",
                        f->name, len, ESP_LIMIT_HEADER_BYTES);
    if (len > f->size - 8)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: truncated: header of %" PRIu64 " bytes promised, the file has %zu in all",
                        f->name, len, f->size);
    f->data = p + 8 + len;
    f->data_bytes = f->size - 8 - (size_t)len;
    ESP_TRY(read_header(f, (const char *)p + 8, (size_t)len, err));
    return check_all(f, err);
}

/* ---- public ---- */

esp_status esp_st_open_memory(struct esp_st_file **out, const void *data, size_t size, const char *name,
                              esp_error *err)
{
    struct esp_st_file *f = esp_alloc(sizeof *f);
    esp_status s;

    if (f)
        f->name = esp_strndup(name, strlen(name));
    if (!f || !f->name) {
        esp_free(f);
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", name);
    }
    f->size = size;
    s = read_file(f, data, err);
    if (s != ESP_OK) {
        esp_st_close(f);
        return s;
    }
    *out = f;
    return ESP_OK;
}

/* map is taken over, also on failure. */
static esp_status open_map(struct esp_st_file **out, struct esp_map *map, const char *path, esp_error *err)
{
    struct esp_st_file *f;
    const esp_status s = esp_st_open_memory(&f, map->data, map->size, path, err);

    if (s != ESP_OK) {
        esp_map_close(map);
        return s;
    }
    f->map = *map;
    *out = f;
    return ESP_OK;
}

esp_status esp_st_open(struct esp_st_file **out, const char *path, esp_error *err)
{
    struct esp_map map;

    ESP_TRY(esp_map_open(&map, path, err));
    return open_map(out, &map, path, err);
}

esp_status esp_st_read(struct esp_st_file **out, const char *path, esp_error *err)
{
    struct esp_map map;

    ESP_TRY(esp_map_read(&map, path, err));
    return open_map(out, &map, path, err);
}

void esp_st_close(struct esp_st_file *f)
{
    if (!f)
        return;
    esp_free(f->by_name);
    esp_free(f->tensor);
    esp_free(f->meta);
    esp_free(f->text);
    esp_free(f->name);
    esp_map_close(&f->map);
    esp_free(f);
}

const char *esp_st_name(const struct esp_st_file *f)
{
    return f->name;
}

size_t esp_st_size(const struct esp_st_file *f)
{
    return f->size;
}

uint32_t esp_st_count(const struct esp_st_file *f)
{
    return f->n;
}

const struct esp_st_tensor *esp_st_get(const struct esp_st_file *f, uint32_t i)
{
    return &f->tensor[i];
}

const struct esp_st_tensor *esp_st_sorted(const struct esp_st_file *f, uint32_t i)
{
    return &f->tensor[f->by_name[i]];
}

const struct esp_st_tensor *esp_st_find(const struct esp_st_file *f, const char *name)
{
    uint32_t lo = 0, hi = f->n;

    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        const int c = strcmp(name, f->tensor[f->by_name[mid]].name);

        if (c == 0)
            return &f->tensor[f->by_name[mid]];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const char *esp_st_metadata(const struct esp_st_file *f, const char *key)
{
    for (uint32_t i = 0; i < f->n_meta; i++)
        if (strcmp(f->meta[i].key, key) == 0)
            return f->meta[i].value;
    return NULL;
}

uint32_t esp_st_metadata_count(const struct esp_st_file *f)
{
    return f->n_meta;
}

void esp_st_metadata_get(const struct esp_st_file *f, uint32_t i, const char **key, const char **value)
{
    *key = f->meta[i].key;
    *value = f->meta[i].value;
}

esp_status esp_st_check(const struct esp_st_tensor *t, esp_error *err)
{
    if (esp_dtype_supported(t->dtype))
        return ESP_OK;
    return esp_fail(err, ESP_EUNSUPPORTED, "%s: tensor " NAME_FMT " has dtype %s, which cannot be read",
                    t->file->name, t->name, esp_dtype_name(t->dtype));
}

uint64_t esp_st_elements(const struct esp_st_tensor *t)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->n_dim; i++)
        n *= t->shape[i]; /* checked at open, zeros only make it smaller */
    return n;
}

const char *esp_st_shape_text(const struct esp_st_tensor *t, char *out, size_t cap)
{
    size_t n = 0;

    if (cap == 0)
        return out;
    snprintf(out, cap, "[");
    for (uint32_t i = 0; i < t->n_dim; i++) {
        n = strlen(out);
        snprintf(out + n, cap - n, "%s%" PRIu64, i ? "," : "", t->shape[i]);
    }
    n = strlen(out);
    snprintf(out + n, cap - n, "]");
    return out;
}
