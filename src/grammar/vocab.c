/*
 * Building the tree of a vocabulary.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

#include "grammar/grammar.h"

struct entry {
    const char *bytes;
    uint32_t len, id;
};

/* By bytes, then id: equal tokens are neighbours, the lowest id first. */
static int by_bytes(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    int c = memcmp(a->bytes, b->bytes, a->len < b->len ? a->len : b->len);

    if (c == 0)
        c = (a->len > b->len) - (a->len < b->len);
    return c ? c : (a->id > b->id) - (a->id < b->id);
}

static uint32_t common(const struct entry *a, const struct entry *b)
{
    uint32_t n = 0;

    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

/* Copy all bytes; *n gets the number of tokens that belong in the tree. */
static esp_status read_tokens(struct esp_vocab *v, const struct esp_vocab_source *src, uint32_t *n,
                              esp_error *err)
{
    struct esp_vocab_token t;
    size_t total = 0;

    for (uint32_t id = 0; id < src->n_ids; id++) {
        src->get(src->ctx, id, &t);
        if (t.len > ESP_LIMIT_TOKEN_BYTES)
            return esp_fail(err, ESP_EINVAL, "token %u has %zu bytes, at most %u are accepted", id, t.len,
                            ESP_LIMIT_TOKEN_BYTES);
        total += t.len;
    }
    v->bytes = total <= UINT32_MAX ? esp_alloc(total + 1) : NULL;
    if (!v->bytes)
        return esp_fail(err, ESP_ENOMEM, "out of memory for the %zu bytes of a vocabulary", total);
    total = 0;
    *n = 0;
    for (uint32_t id = 0; id < src->n_ids; id++) {
        src->get(src->ctx, id, &t);
        v->off[id] = (uint32_t)total;
        v->same[id] = ESP_VOCAB_NONE;
        if (t.len == 0)
            continue;
        memcpy(v->bytes + total, t.bytes, t.len);
        total += t.len;
        if (t.plain) {
            v->plain[id / 64] |= UINT64_C(1) << id % 64;
            ++*n;
        }
    }
    v->off[src->n_ids] = (uint32_t)total;
    return ESP_OK;
}

static void add_nodes(struct esp_vocab *v, const struct entry *e, uint32_t n, uint32_t *path)
{
    uint32_t depth = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t keep = i ? common(&e[i - 1], &e[i]) : 0;

        if (i && keep == e[i].len && e[i - 1].len == keep) { /* the same bytes again */
            const uint32_t first = v->node[path[keep - 1]].token;

            v->same[e[i].id] = v->same[first];
            v->same[first] = e[i].id;
            continue;
        }
        while (depth > keep)
            v->node[path[--depth]].end = v->n_node;
        while (depth < e[i].len) {
            path[depth] = v->n_node;
            if (depth == 0)
                v->first[(unsigned char)e[i].bytes[0]] = v->n_node;
            v->node[v->n_node++] = (struct esp_vocab_node){
                .token = ESP_VOCAB_NONE, .depth = (uint16_t)(depth + 1), .byte = (uint8_t)e[i].bytes[depth]};
            depth++;
        }
        v->node[path[depth - 1]].token = e[i].id;
        v->max_depth = depth > v->max_depth ? depth : v->max_depth;
    }
    while (depth)
        v->node[path[--depth]].end = v->n_node;
}

static esp_status build_tree(struct esp_vocab *v, uint32_t n, esp_error *err)
{
    struct entry *e = esp_alloc_array((size_t)n + 1, sizeof *e);
    uint32_t *path = esp_alloc_array(ESP_LIMIT_TOKEN_BYTES + 1, sizeof *path);
    size_t n_node = 0;
    uint32_t k = 0;
    esp_status s = ESP_OK;

    for (uint32_t id = 0; e && id < v->n_ids; id++)
        if (esp_vocab_is_plain(v, id))
            e[k++] = (struct entry){v->bytes + v->off[id], v->off[id + 1] - v->off[id], id};
    if (e && n > 1)
        qsort(e, n, sizeof *e, by_bytes);
    for (uint32_t i = 0; e && i < n; i++)
        n_node += e[i].len - (i ? common(&e[i - 1], &e[i]) : 0);
    v->node = n_node < UINT32_MAX ? esp_alloc_array(n_node + 1, sizeof *v->node) : NULL;
    if (e && path && v->node)
        add_nodes(v, e, n, path);
    else
        s = esp_fail(err, ESP_ENOMEM, "out of memory for the tree of a vocabulary of %u ids", v->n_ids);
    esp_free(path);
    esp_free(e);
    return s;
}

esp_status esp_vocab_create(struct esp_vocab **out, const struct esp_vocab_source *src, esp_error *err)
{
    struct esp_vocab *v;
    uint32_t n = 0;
    esp_status s;

    if (src->n_ids == 0 || src->n_ids > ESP_LIMIT_VOCAB)
        return esp_fail(err, ESP_EINVAL, "a vocabulary of %u ids; 1 to %u are accepted", src->n_ids,
                        ESP_LIMIT_VOCAB);
    v = esp_alloc(sizeof *v);
    if (!v)
        return esp_fail(err, ESP_ENOMEM, "out of memory for a vocabulary");
    v->n_ids = src->n_ids;
    v->n_word = (src->n_ids + 63) / 64;
    memset(v->first, 0xff, sizeof v->first);
    v->same = esp_alloc_array(v->n_ids, sizeof *v->same);
    v->off = esp_alloc_array((size_t)v->n_ids + 1, sizeof *v->off);
    v->plain = esp_alloc_array(v->n_word, sizeof *v->plain);
    if (v->same && v->off && v->plain)
        s = read_tokens(v, src, &n, err);
    else
        s = esp_fail(err, ESP_ENOMEM, "out of memory for a vocabulary of %u ids", v->n_ids);
    if (s == ESP_OK)
        s = build_tree(v, n, err);
    if (s == ESP_OK)
        *out = v;
    else
        esp_vocab_destroy(v);
    return s;
}

bool esp_vocab_find_added(const struct esp_vocab *v, const char *bytes, uint32_t *id)
{
    const size_t len = strlen(bytes);

    for (uint32_t i = 0; i < v->n_ids; i++)
        if (!esp_vocab_is_plain(v, i) && v->off[i + 1] - v->off[i] == len && len > 0 &&
            memcmp(v->bytes + v->off[i], bytes, len) == 0) {
            *id = i;
            return true;
        }
    return false;
}

void esp_vocab_destroy(struct esp_vocab *v)
{
    if (!v)
        return;
    esp_free(v->node);
    esp_free(v->same);
    esp_free(v->plain);
    esp_free(v->off);
    esp_free(v->bytes);
    esp_free(v);
}

size_t esp_vocab_bytes(const struct esp_vocab *v)
{
    return sizeof *v + v->n_node * sizeof *v->node + v->n_ids * (sizeof *v->same + sizeof *v->off) +
           v->n_word * sizeof *v->plain + v->off[v->n_ids];
}
