/*
 * Vocabulary and merges in five flat arrays and two open-addressing tables of 32-bit indices: 250,000 tokens
 * and as many merges take about 12 MiB. The encoder keeps a piece as a linked list of symbols and a heap of
 * mergeable pairs; a heap entry is only a rank and a position, and is stale unless the symbols there still
 * are that merge's two sides.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/bpe.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"

#define NONE UINT32_MAX /* no symbol, no token */

struct esp_bpe_symbol {
    uint32_t id; /* NONE once merged into its left neighbour */
    uint32_t prev, next;
};

enum { CACHE_SLOTS = 2048, CACHE_KEY = 18 };

struct esp_bpe_cached {
    uint32_t first; /* where in the output the ids of this piece stand */
    uint8_t n;      /* 0: empty */
    uint8_t len;
    char key[CACHE_KEY];
};

void esp_ids_init(struct esp_ids *v, size_t max)
{
    memset(v, 0, sizeof *v);
    v->max = max;
}

void esp_ids_free(struct esp_ids *v)
{
    esp_free(v->data);
    esp_ids_init(v, v->max);
}

esp_status esp_ids_push(struct esp_ids *v, uint32_t id, esp_error *err)
{
    if (v->n >= v->max)
        return esp_fail(err, ESP_ENOFIT, "text needs more than %zu tokens, which is the maximum here",
                        v->max);
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 64, bytes;
        uint32_t *p = esp_mul_size(&bytes, cap, sizeof *p) ? esp_realloc(v->data, bytes) : NULL;

        if (!p)
            return esp_fail(err, ESP_ENOMEM, "no memory for %zu token ids", cap);
        v->data = p;
        v->cap = cap;
    }
    v->data[v->n++] = id;
    return ESP_OK;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

static uint64_t hash_bytes(const char *s, size_t len)
{
    uint64_t h = len * UINT64_C(0x9e3779b97f4a7c15);

    while (len >= 8) {
        uint64_t v;

        memcpy(&v, s, 8);
        h = mix(h ^ v);
        s += 8;
        len -= 8;
    }
    if (len) {
        uint64_t v = 0;

        memcpy(&v, s, len);
        h = mix(h ^ v);
    }
    return h;
}

/*
 * The GPT-2 alphabet: printable Latin-1 characters stand for themselves, the other 68 bytes, in order, for
 * U+0100 up. Returns the byte that cp stands for, or -1.
 */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xff && cp != 0xad))
        return (int)cp;
    if (cp < 0x100 || cp > 0x143)
        return -1;
    cp -= 0x100;
    if (cp <= 0x20)
        return (int)cp; /* 00..20 */
    if (cp <= 0x42)
        return (int)(cp - 0x21 + 0x7f); /* 7f..a0 */
    return 0xad;
}

/* Plain bytes of the written form s into out (at least len bytes); *literal when a character is not of the
 * alphabet. */
static size_t plain_bytes(char *out, const char *s, size_t len, bool *literal)
{
    size_t n = 0;

    *literal = false;
    for (size_t i = 0; i < len;) {
        uint32_t cp = (uint8_t)s[i];
        size_t step = cp < 0x80 ? 1 : esp_utf8_decode(s + i, len - i, &cp);
        int byte = alphabet_byte(cp);

        if (step == 0 || byte < 0) {
            *literal = true;
            memcpy(out, s, len);
            return len;
        }
        out[n++] = (char)byte;
        i += step;
    }
    return n;
}

/* The slot that holds this token, or the empty one where it belongs. n_slots is never full. */
static uint32_t *token_slot(const struct esp_bpe *b, const char *s, size_t len, bool literal)
{
    uint32_t mask = b->n_slots - 1, i = (uint32_t)hash_bytes(s, len) & mask;

    for (;; i = (i + 1) & mask) {
        uint32_t id = b->slot[i] - 1;

        if (b->slot[i] == 0)
            return &b->slot[i];
        if (b->len[id] == len && !(b->flags[id] & ESP_BPE_LITERAL) == !literal &&
            memcmp(b->blob + b->off[id], s, len) == 0)
            return &b->slot[i];
    }
}

static bool find(const struct esp_bpe *b, const char *s, size_t len, bool literal, uint32_t *id)
{
    uint32_t v;

    if (b->n_slots == 0)
        return false;
    v = *token_slot(b, s, len, literal);
    if (v == 0)
        return false;
    *id = v - 1;
    return true;
}

bool esp_bpe_find_written(const struct esp_bpe *b, const char *s, size_t len, uint32_t *id)
{
    char plain[2 * ESP_LIMIT_TOKEN_BYTES];
    bool literal;
    size_t n;

    if (len > sizeof plain)
        return false;
    n = plain_bytes(plain, s, len, &literal);
    return find(b, plain, n, literal, id);
}

bool esp_bpe_find_bytes(const struct esp_bpe *b, const char *s, size_t len, uint32_t *id)
{
    return len <= ESP_LIMIT_TOKEN_BYTES && find(b, s, len, false, id);
}

static esp_status grow_array(void *array, size_t n, size_t size, esp_error *err)
{
    void *old, *p;
    size_t bytes;

    memcpy(&old, array, sizeof old);
    p = esp_mul_size(&bytes, n, size) ? esp_realloc(old, bytes) : NULL;
    if (!p)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu entries of %zu bytes", n, size);
    memcpy(array, &p, sizeof p);
    return ESP_OK;
}

static esp_status reserve_id(struct esp_bpe *b, uint32_t id, esp_error *err)
{
    uint32_t cap = b->cap_ids ? b->cap_ids : 1024;

    if (id < b->cap_ids)
        return ESP_OK;
    while (cap <= id)
        cap *= 2; /* id < ESP_LIMIT_VOCAB: no overflow */
    ESP_TRY(grow_array(&b->off, cap, sizeof *b->off, err));
    ESP_TRY(grow_array(&b->len, cap, sizeof *b->len, err));
    ESP_TRY(grow_array(&b->flags, cap, sizeof *b->flags, err));
    memset(b->flags + b->cap_ids, 0, cap - b->cap_ids);
    b->cap_ids = cap;
    return ESP_OK;
}

static esp_status reserve_blob(struct esp_bpe *b, size_t more, esp_error *err)
{
    size_t need = b->blob_len + more, cap = b->blob_cap ? b->blob_cap : 65536;

    if (need <= b->blob_cap)
        return ESP_OK;
    while (cap < need)
        cap *= 2;
    ESP_TRY(grow_array(&b->blob, cap, 1, err));
    b->blob_cap = cap;
    return ESP_OK;
}

esp_status esp_bpe_add_token(struct esp_bpe *b, const char *s, size_t len, uint64_t id, esp_error *err)
{
    bool literal;
    size_t n;

    if (id >= ESP_LIMIT_VOCAB)
        return esp_fail(err, ESP_EFORMAT, "token \"%.*s\" has id %llu, ids below %u are accepted",
                        (int)(len < 64 ? len : 64), s, (unsigned long long)id, ESP_LIMIT_VOCAB);
    if (len == 0 || len > ESP_LIMIT_TOKEN_BYTES)
        return esp_fail(err, ESP_EFORMAT, "token of id %u has %zu bytes, 1 to %u are accepted", (unsigned)id,
                        len, ESP_LIMIT_TOKEN_BYTES);
    ESP_TRY(reserve_id(b, (uint32_t)id, err));
    ESP_TRY(reserve_blob(b, len, err));
    if (b->flags[id] & ESP_BPE_USED)
        return esp_fail(err, ESP_EFORMAT, "duplicate id: %u stands for \"%.*s\" and for another token",
                        (unsigned)id, (int)(len < 64 ? len : 64), s);
    n = plain_bytes(b->blob + b->blob_len, s, len, &literal);
    b->off[id] = (uint32_t)b->blob_len; /* below ESP_LIMIT_JSON_BYTES */
    b->len[id] = (uint16_t)n;
    b->flags[id] = (uint8_t)(ESP_BPE_USED | (literal ? ESP_BPE_LITERAL : 0));
    b->blob_len += n;
    b->n_tokens++;
    if (id >= b->n_ids)
        b->n_ids = (uint32_t)id + 1;
    return ESP_OK;
}

/* Smallest power of two with at most half of its slots taken by n entries. */
static uint32_t table_size(uint32_t n)
{
    uint32_t size = 16;

    while (size / 2 < n)
        size *= 2;
    return size;
}

static esp_status find_byte_tokens(struct esp_bpe *b, esp_error *err)
{
    for (int i = 0; i < 256; i++) {
        const char c = (char)i;
        const bool in_utf8 = i != 0xc0 && i != 0xc1 && i < 0xf5;

        if (find(b, &c, 1, false, &b->byte_id[i]))
            continue;
        if (in_utf8)
            return esp_fail(
                err, ESP_EFORMAT,
                "vocabulary has no token for byte 0x%02x; byte-level BPE needs one for every byte", i);
        b->byte_id[i] = NONE;
    }
    return ESP_OK;
}

esp_status esp_bpe_end_tokens(struct esp_bpe *b, esp_error *err)
{
    b->slot = esp_alloc_array(table_size(b->n_tokens), sizeof *b->slot);
    if (!b->slot)
        return esp_fail(err, ESP_ENOMEM, "no memory for a table of %u tokens", b->n_tokens);
    b->n_slots = table_size(b->n_tokens);
    for (uint32_t id = 0; id < b->n_ids; id++) {
        uint32_t *slot;

        if (!(b->flags[id] & ESP_BPE_USED))
            continue;
        slot = token_slot(b, b->blob + b->off[id], b->len[id], b->flags[id] & ESP_BPE_LITERAL);
        if (*slot != 0)
            return esp_fail(err, ESP_EFORMAT, "duplicate token: \"%.*s\" has the ids %u and %u",
                            b->len[id] < 64 ? b->len[id] : 64, b->blob + b->off[id], *slot - 1, id);
        *slot = id + 1;
    }
    return find_byte_tokens(b, err);
}

esp_status esp_bpe_add_merge(struct esp_bpe *b, const char *l, size_t n_l, const char *r, size_t n_r,
                             esp_error *err)
{
    char joined[2 * ESP_LIMIT_TOKEN_BYTES];
    struct esp_bpe_merge m;
    const char *missing = "result";

    if (n_l > ESP_LIMIT_TOKEN_BYTES || n_r > ESP_LIMIT_TOKEN_BYTES)
        return esp_fail(err, ESP_EFORMAT, "merge %u: a side is longer than %u bytes", b->n_merges,
                        ESP_LIMIT_TOKEN_BYTES);
    memcpy(joined, l, n_l);
    memcpy(joined + n_l, r, n_r);
    if (!esp_bpe_find_written(b, l, n_l, &m.left))
        missing = "left side";
    else if (!esp_bpe_find_written(b, r, n_r, &m.right))
        missing = "right side";
    else if (esp_bpe_find_written(b, joined, n_l + n_r, &m.result))
        missing = NULL;
    if (missing)
        return esp_fail(err, ESP_EFORMAT, "merge %u (\"%.*s\" + \"%.*s\"): its %s is not in the vocabulary",
                        b->n_merges, (int)(n_l < 64 ? n_l : 64), l, (int)(n_r < 64 ? n_r : 64), r, missing);
    if (b->n_merges == b->cap_merges) {
        uint32_t cap =
            b->cap_merges ? b->cap_merges * 2 : 1024; /* a merge has >= 4 bytes of a bounded file */

        ESP_TRY(grow_array(&b->merge, cap, sizeof *b->merge, err));
        b->cap_merges = cap;
    }
    b->merge[b->n_merges++] = m;
    return ESP_OK;
}

static uint32_t *merge_slot(const struct esp_bpe *b, uint32_t left, uint32_t right)
{
    uint32_t mask = b->n_merge_slots - 1, i = (uint32_t)mix((uint64_t)left << 32 | right) & mask;

    while (b->merge_slot[i] != 0) {
        const struct esp_bpe_merge *m = &b->merge[b->merge_slot[i] - 1];

        if (m->left == left && m->right == right)
            break;
        i = (i + 1) & mask;
    }
    return &b->merge_slot[i];
}

/* Give back what doubling took too much; failing to shrink is no failure. */
static void shrink(struct esp_bpe *b)
{
    esp_error ignored;

    if (b->n_merges && grow_array(&b->merge, b->n_merges, sizeof *b->merge, &ignored) == ESP_OK)
        b->cap_merges = b->n_merges;
    if (grow_array(&b->blob, b->blob_len, 1, &ignored) == ESP_OK)
        b->blob_cap = b->blob_len;
    if (grow_array(&b->off, b->n_ids, sizeof *b->off, &ignored) == ESP_OK &&
        grow_array(&b->len, b->n_ids, sizeof *b->len, &ignored) == ESP_OK &&
        grow_array(&b->flags, b->n_ids, sizeof *b->flags, &ignored) == ESP_OK)
        b->cap_ids = b->n_ids;
}

esp_status esp_bpe_end_merges(struct esp_bpe *b, esp_error *err)
{
    b->merge_slot = esp_alloc_array(table_size(b->n_merges), sizeof *b->merge_slot);
    if (!b->merge_slot)
        return esp_fail(err, ESP_ENOMEM, "no memory for a table of %u merges", b->n_merges);
    b->n_merge_slots = table_size(b->n_merges);
    for (uint32_t rank = 0; rank < b->n_merges; rank++)
        *merge_slot(b, b->merge[rank].left, b->merge[rank].right) = rank + 1;
    shrink(b);
    return ESP_OK;
}

void esp_bpe_free(struct esp_bpe *b)
{
    esp_free(b->off);
    esp_free(b->len);
    esp_free(b->flags);
    esp_free(b->blob);
    esp_free(b->slot);
    esp_free(b->merge);
    esp_free(b->merge_slot);
    memset(b, 0, sizeof *b);
}

size_t esp_bpe_bytes(const struct esp_bpe *b)
{
    return b->cap_ids * (sizeof *b->off + sizeof *b->len + sizeof *b->flags) + b->blob_cap +
           b->n_slots * sizeof *b->slot + b->cap_merges * sizeof *b->merge +
           b->n_merge_slots * sizeof *b->merge_slot;
}

void esp_bpe_work_cache(struct esp_bpe_work *w)
{
    if (!w->cache)
        w->cache = esp_alloc_array(CACHE_SLOTS, sizeof *w->cache);
}

void esp_bpe_work_free(struct esp_bpe_work *w)
{
    esp_free(w->symbol);
    esp_free(w->heap);
    esp_free(w->cache);
    memset(w, 0, sizeof *w);
}

static esp_status heap_push(struct esp_bpe_work *w, uint64_t v, esp_error *err)
{
    size_t i;

    if (w->heap_len == w->heap_cap) {
        size_t cap = w->heap_cap ? w->heap_cap * 2 : 256;

        ESP_TRY(grow_array(&w->heap, cap, sizeof *w->heap, err));
        w->heap_cap = cap;
    }
    for (i = w->heap_len++; i > 0 && w->heap[(i - 1) / 2] > v; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = v;
    return ESP_OK;
}

static uint64_t heap_pop(struct esp_bpe_work *w)
{
    const uint64_t top = w->heap[0], last = w->heap[--w->heap_len];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= w->heap_len)
            break;
        if (child + 1 < w->heap_len && w->heap[child + 1] < w->heap[child])
            child++;
        if (w->heap[child] >= last)
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* Put the pair that starts at symbol i on the heap if it can merge. */
static esp_status offer(const struct esp_bpe *b, struct esp_bpe_work *w, uint32_t i, esp_error *err)
{
    const struct esp_bpe_symbol *s = &w->symbol[i];
    uint32_t slot;

    if (s->next == NONE)
        return ESP_OK;
    slot = *merge_slot(b, s->id, w->symbol[s->next].id);
    return slot == 0 ? ESP_OK : heap_push(w, (uint64_t)(slot - 1) << 32 | i, err);
}

static esp_status start_symbols(const struct esp_bpe *b, struct esp_bpe_work *w, const char *s, size_t len,
                                esp_error *err)
{
    if (len > w->symbol_cap) {
        size_t cap = len < 256 ? 256 : len + len / 2;

        ESP_TRY(grow_array(&w->symbol, cap, sizeof *w->symbol, err));
        w->symbol_cap = cap;
    }
    for (size_t i = 0; i < len; i++) {
        w->symbol[i].id = b->byte_id[(uint8_t)s[i]];
        w->symbol[i].prev = i ? (uint32_t)(i - 1) : NONE;
        w->symbol[i].next = i + 1 < len ? (uint32_t)(i + 1) : NONE;
    }
    w->heap_len = 0;
    for (size_t i = 0; i + 1 < len; i++)
        ESP_TRY(offer(b, w, (uint32_t)i, err));
    return ESP_OK;
}

static esp_status merge_all(const struct esp_bpe *b, struct esp_bpe_work *w, esp_error *err)
{
    while (w->heap_len) {
        const uint64_t top = heap_pop(w);
        const struct esp_bpe_merge *m = &b->merge[top >> 32];
        const uint32_t at = (uint32_t)top;
        struct esp_bpe_symbol *l = &w->symbol[at];
        struct esp_bpe_symbol *r;

        if (l->id != m->left || l->next == NONE || w->symbol[l->next].id != m->right)
            continue; /* one side has merged with something else since */
        r = &w->symbol[l->next];
        l->id = m->result;
        l->next = r->next;
        r->id = NONE;
        if (l->next != NONE)
            w->symbol[l->next].prev = at;
        if (l->prev != NONE)
            ESP_TRY(offer(b, w, l->prev, err));
        ESP_TRY(offer(b, w, at, err));
    }
    return ESP_OK;
}

static esp_status encode_plain(const struct esp_bpe *b, struct esp_bpe_work *w, const char *s, size_t len,
                               struct esp_ids *out, esp_error *err)
{
    uint32_t id;

    if (len == 1)
        return esp_ids_push(out, b->byte_id[(uint8_t)s[0]], err);
    if (b->ignore_merges && esp_bpe_find_bytes(b, s, len, &id))
        return esp_ids_push(out, id, err);
    ESP_TRY(start_symbols(b, w, s, len, err));
    ESP_TRY(merge_all(b, w, err));
    for (uint32_t i = 0; i != NONE; i = w->symbol[i].next)
        ESP_TRY(esp_ids_push(out, w->symbol[i].id, err));
    return ESP_OK;
}

esp_status esp_bpe_encode(const struct esp_bpe *b, struct esp_bpe_work *w, const char *s, size_t len,
                          struct esp_ids *out, esp_error *err)
{
    const size_t first = out->n;
    struct esp_bpe_cached *c;

    if (len == 0)
        return ESP_OK;
    if (!w->cache || len == 1 || len > CACHE_KEY || first > UINT32_MAX)
        return encode_plain(b, w, s, len, out, err);
    c = &w->cache[hash_bytes(s, len) % CACHE_SLOTS];
    if (c->n && c->len == len && memcmp(c->key, s, len) == 0) {
        for (size_t i = 0; i < c->n; i++)
            ESP_TRY(esp_ids_push(out, out->data[c->first + i], err));
        return ESP_OK;
    }
    ESP_TRY(encode_plain(b, w, s, len, out, err));
    c->first = (uint32_t)first;
    c->n = (uint8_t)(out->n - first);
    c->len = (uint8_t)len;
    memcpy(c->key, s, len);
    return ESP_OK;
}
