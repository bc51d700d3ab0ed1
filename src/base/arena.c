/*
 * Arena of chained blocks. A block is filled front to back; reset rewinds to the first block.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/arena.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"

enum { ALIGN = 16, FIRST_BLOCK = 4096 };

struct block {
    struct block *next;
    size_t size; /* of data */
    size_t used;
    _Alignas(ALIGN) char data[];
};

struct esp_arena {
    struct block *first;
    struct block *cur;
    size_t max_bytes;
    size_t used;
    size_t reserved;
};

struct esp_arena *esp_arena_create(size_t max_bytes)
{
    struct esp_arena *a = esp_alloc(sizeof *a);

    if (a)
        a->max_bytes = max_bytes;
    return a;
}

void esp_arena_destroy(struct esp_arena *a)
{
    if (!a)
        return;
    for (struct block *b = a->first, *next; b; b = next) {
        next = b->next;
        esp_free(b);
    }
    esp_free(a);
}

/* Make room for size bytes in a->cur: the next kept block, or a new one. */
static bool advance(struct esp_arena *a, size_t size)
{
    size_t want = a->cur ? a->cur->size * 2 : FIRST_BLOCK;
    struct block *b = a->cur;

    while (b && b->next) {
        b = b->next;
        b->used = 0;
        a->cur = b;
        if (b->size >= size)
            return true;
    }
    if (want > (size_t)1 << 24)
        want = (size_t)1 << 24; /* large arenas grow by 16 MiB: doubling would waste up to half */
    if (want < size)
        want = size;
    if (want > SIZE_MAX - sizeof *b)
        return false;
    b = esp_alloc(sizeof *b + want);
    if (!b)
        return false;
    b->size = want;
    if (a->cur)
        a->cur->next = b;
    else
        a->first = b;
    a->cur = b;
    a->reserved += sizeof *b + want;
    return true;
}

void *esp_arena_alloc(struct esp_arena *a, size_t size)
{
    size_t n = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    void *p;

    if (n < size || n > a->max_bytes - a->used)
        return NULL;
    if ((!a->cur || n > a->cur->size - a->cur->used) && !advance(a, n))
        return NULL;
    p = a->cur->data + a->cur->used;
    a->cur->used += n;
    a->used += n;
    return memset(p, 0, n);
}

void *esp_arena_alloc_array(struct esp_arena *a, size_t n, size_t size)
{
    size_t total;

    return esp_mul_size(&total, n, size) ? esp_arena_alloc(a, total) : NULL;
}

char *esp_arena_strndup(struct esp_arena *a, const char *s, size_t len)
{
    char *p = len < SIZE_MAX ? esp_arena_alloc(a, len + 1) : NULL;

    if (p && len)
        memcpy(p, s, len);
    return p;
}

void esp_arena_reset(struct esp_arena *a)
{
    a->cur = a->first;
    if (a->cur)
        a->cur->used = 0;
    a->used = 0;
}

size_t esp_arena_used(const struct esp_arena *a)
{
    return a->used;
}

size_t esp_arena_reserved(const struct esp_arena *a)
{
    return a->reserved;
}
