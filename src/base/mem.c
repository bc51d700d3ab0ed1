/*
 * Allocation with overflow checks and fault injection. The counters are plain atomics: cheap, and only read
 * by tests.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t n_made;
static _Atomic int64_t fail_at = -1;

static bool must_fail(void)
{
    uint64_t i = atomic_fetch_add_explicit(&n_made, 1, memory_order_relaxed);
    int64_t at = atomic_load_explicit(&fail_at, memory_order_relaxed);

    return at >= 0 && i == (uint64_t)at;
}

uint64_t esp_mem_fail_at(int64_t n)
{
    uint64_t made = atomic_exchange(&n_made, 0);

    atomic_store(&fail_at, n);
    return made;
}

bool esp_mul_size(size_t *out, size_t a, size_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool esp_add_size(size_t *out, size_t a, size_t b)
{
    return !__builtin_add_overflow(a, b, out);
}

void *esp_alloc(size_t size)
{
    return must_fail() ? NULL : calloc(1, size ? size : 1);
}

void *esp_alloc_array(size_t n, size_t size)
{
    size_t total;

    return esp_mul_size(&total, n, size) ? esp_alloc(total) : NULL;
}

void *esp_realloc(void *p, size_t size)
{
    return must_fail() ? NULL : realloc(p, size ? size : 1);
}

void esp_free(void *p)
{
    free(p);
}

char *esp_strndup(const char *s, size_t len)
{
    char *p = len < SIZE_MAX ? esp_alloc(len + 1) : NULL;

    if (p && len)
        memcpy(p, s, len);
    return p;
}

void *esp_alloc_aligned(size_t size, size_t align)
{
    size_t padded;
    void *p;

    if (must_fail() || !esp_add_size(&padded, size ? size : 1, align - 1))
        return NULL;
    padded &= ~(align - 1);
    p = aligned_alloc(align, padded);
    if (p)
        memset(p, 0, padded);
    return p;
}

void esp_free_aligned(void *p)
{
    free(p);
}
