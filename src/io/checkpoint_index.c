/*
 * Shard index. Read with the pull parser for the same reason as safetensors headers: a million entries must
 * cost megabytes. The shard names are the only strings of a model that become paths, so they are checked
 * here, before anything is opened.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/checkpoint_index.h"

#include <stdbool.h>
#include <string.h>

#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "io/json_scan.h"
#include "io/sort.h"

struct build {
    struct esp_index x;
    size_t text_len;
    uint32_t cap;
    bool seen; /* weight_map */
};

static bool plain_shard_name(const char *s)
{
    static const char suffix[] = ".safetensors";
    const size_t n = strlen(s), k = sizeof suffix - 1;

    if (n <= k || strcmp(s + n - k, suffix) != 0 || strchr(s, '/') || strchr(s, '\\'))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            return false;
    return s[0] != '.'; /* "..", and hidden files, which no writer makes */
}

static esp_status keep(struct build *b, struct esp_jscan *j, const char **out, esp_error *err)
{
    size_t len;

    *out = b->x.text + b->text_len;
    ESP_TRY(esp_jscan_string(j, b->x.text + b->text_len, &len, err));
    b->text_len += len + 1;
    return ESP_OK;
}

static esp_status grow(struct build *b, esp_error *err)
{
    const uint32_t want = b->cap ? b->cap * 2 : 256;
    struct esp_index_entry *p;

    if (b->x.n_entry < b->cap)
        return ESP_OK;
    if (b->x.n_entry >= ESP_LIMIT_TENSORS)
        return esp_fail(err, ESP_EFORMAT, "%s: more than %u tensors", b->x.name, ESP_LIMIT_TENSORS);
    p = esp_realloc(b->x.entry, want * sizeof *p);
    if (!p)
        return esp_fail(err, ESP_ENOMEM, "%s: no memory for %u entries", b->x.name, want);
    b->x.entry = p;
    b->cap = want;
    return ESP_OK;
}

static esp_status read_weight_map(struct build *b, struct esp_jscan *j, esp_error *err)
{
    if (b->seen)
        return esp_fail(err, ESP_EFORMAT, "%s: duplicate key 'weight_map'", b->x.name);
    b->seen = true;
    ESP_TRY(esp_jscan_expect(j, '{', err));
    for (;;) {
        struct esp_index_entry *e;
        bool more;

        ESP_TRY(esp_jscan_more(j, '}', b->x.n_entry, &more, err));
        if (!more)
            return ESP_OK;
        ESP_TRY(grow(b, err));
        e = &b->x.entry[b->x.n_entry];
        memset(e, 0, sizeof *e);
        ESP_TRY(keep(b, j, &e->tensor, err));
        ESP_TRY(esp_jscan_expect(j, ':', err));
        ESP_TRY(keep(b, j, &e->shard, err));
        if (!plain_shard_name(e->shard))
            return esp_fail(
                err, ESP_EFORMAT,
                "%s: shard '%.160s' of tensor '%.160s' is refused: a plain file name inside the model "
                "directory that ends in .safetensors is expected",
                b->x.name, e->shard, e->tensor);
        b->x.n_entry++;
    }
}

static esp_status read_index(struct build *b, const char *s, size_t len, esp_error *err)
{
    struct esp_jscan j = {.s = s, .len = len, .name = b->x.name};
    size_t at;

    if (!esp_utf8_valid(s, len, &at))
        return esp_fail(err, ESP_EFORMAT, "%s: invalid UTF-8 at byte %zu", b->x.name, at);
    ESP_TRY(esp_jscan_expect(&j, '{', err));
    for (size_t n = 0;; n++) {
        const char *key;
        size_t mark = b->text_len;
        bool more;

        ESP_TRY(esp_jscan_more(&j, '}', n, &more, err));
        if (!more)
            break;
        ESP_TRY(keep(b, &j, &key, err));
        ESP_TRY(esp_jscan_expect(&j, ':', err));
        if (strcmp(key, "weight_map") == 0) {
            ESP_TRY(read_weight_map(b, &j, err));
        } else {
            b->text_len = mark;
            ESP_TRY(esp_jscan_skip(&j, err));
        }
    }
    ESP_TRY(esp_jscan_end(&j, err));
    if (!b->seen || b->x.n_entry == 0)
        return esp_fail(err, ESP_EFORMAT, "%s: no weight_map with tensors in it", b->x.name);
    return ESP_OK;
}

static int by_tensor(const void *ctx, uint32_t a, uint32_t b)
{
    const struct esp_index_entry *e = ctx;

    return strcmp(e[a].tensor, e[b].tensor);
}

static int by_shard(const void *ctx, uint32_t a, uint32_t b)
{
    const struct esp_index_entry *e = ctx;

    return strcmp(e[a].shard, e[b].shard);
}

static esp_status no_memory(const struct build *b, esp_error *err)
{
    return esp_fail(err, ESP_ENOMEM, "%s: no memory to sort %u entries", b->x.name, b->x.n_entry);
}

/* Number the shards in order of their names. */
static esp_status number_shards(struct build *b, esp_error *err)
{
    uint32_t *order = esp_sort_new(b->x.n_entry, by_shard, b->x.entry);
    uint32_t n = 0;
    esp_status s = ESP_OK;

    b->x.shard = esp_alloc_array(ESP_LIMIT_SHARDS, sizeof *b->x.shard);
    if (!order || !b->x.shard) {
        esp_free(order);
        return no_memory(b, err);
    }
    for (uint32_t i = 0; i < b->x.n_entry; i++) {
        struct esp_index_entry *e = &b->x.entry[order[i]];

        if (i == 0 || by_shard(b->x.entry, order[i - 1], order[i]) != 0) {
            if (n == ESP_LIMIT_SHARDS) {
                s = esp_fail(err, ESP_EFORMAT, "%s: more than %u shards", b->x.name, ESP_LIMIT_SHARDS);
                break;
            }
            b->x.shard[n++] = e->shard;
        }
        e->shard_id = n - 1;
    }
    b->x.n_shard = n;
    esp_free(order);
    return s;
}

static esp_status sort_tensors(struct build *b, esp_error *err)
{
    uint32_t *order = esp_sort_new(b->x.n_entry, by_tensor, b->x.entry);
    struct esp_index_entry *sorted = esp_alloc_array(b->x.n_entry, sizeof *sorted);

    if (!order || !sorted) {
        esp_free(order);
        esp_free(sorted);
        return no_memory(b, err);
    }
    for (uint32_t i = 0; i < b->x.n_entry; i++)
        sorted[i] = b->x.entry[order[i]];
    esp_free(order);
    esp_free(b->x.entry);
    b->x.entry = sorted;
    for (uint32_t i = 1; i < b->x.n_entry; i++)
        if (strcmp(sorted[i - 1].tensor, sorted[i].tensor) == 0)
            return esp_fail(err, ESP_EFORMAT, "%s: duplicate tensor name '%.160s'", b->x.name,
                            sorted[i].tensor);
    return ESP_OK;
}

esp_status esp_index_load(struct esp_index *out, const char *path, esp_error *err)
{
    struct build b = {0};
    char *json = NULL;
    size_t len = 0;
    esp_status s = esp_read_file(&json, &len, path, ESP_LIMIT_HEADER_BYTES, err);

    if (s != ESP_OK)
        return s;
    b.x.name = esp_strndup(path, strlen(path));
    b.x.text = esp_alloc(len + 1);
    if (!b.x.name || !b.x.text)
        s = esp_fail(err, ESP_ENOMEM, "%s: no memory for %zu bytes", path, len);
    if (s == ESP_OK)
        s = read_index(&b, json, len, err);
    if (s == ESP_OK)
        s = number_shards(&b, err);
    if (s == ESP_OK)
        s = sort_tensors(&b, err);
    esp_free(json);
    if (s != ESP_OK) {
        esp_index_free(&b.x);
        return s;
    }
    *out = b.x;
    return ESP_OK;
}

void esp_index_free(struct esp_index *x)
{
    esp_free(x->shard);
    esp_free(x->entry);
    esp_free(x->text);
    esp_free(x->name);
    memset(x, 0, sizeof *x);
}

const struct esp_index_entry *esp_index_find(const struct esp_index *x, const char *tensor)
{
    uint32_t lo = 0, hi = x->n_entry;

    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        const int c = strcmp(tensor, x->entry[mid].tensor);

        if (c == 0)
            return &x->entry[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}
