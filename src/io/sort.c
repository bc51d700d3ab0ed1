/*
 * Index merge sort. Runs are merged back and forth between the array and a scratch one; an input already in
 * order, the usual case for files, costs n - 1 comparisons.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/sort.h"

#include <string.h>

#include "base/mem.h"

static bool in_order(const uint32_t *idx, size_t n, esp_sort_fn cmp, const void *ctx)
{
    for (size_t i = 1; i < n; i++)
        if (cmp(ctx, idx[i - 1], idx[i]) > 0)
            return false;
    return true;
}

/* dst[lo..hi) from the sorted runs src[lo..mid) and src[mid..hi). */
static void merge(uint32_t *dst, const uint32_t *src, const size_t cut[3], esp_sort_fn cmp, const void *ctx)
{
    size_t a = cut[0], b = cut[1], mid = cut[1], hi = cut[2];

    for (size_t i = cut[0]; i < hi; i++) {
        if (a < mid && (b >= hi || cmp(ctx, src[a], src[b]) <= 0))
            dst[i] = src[a++];
        else
            dst[i] = src[b++];
    }
}

bool esp_sort_index(uint32_t *idx, size_t n, esp_sort_fn cmp, const void *ctx)
{
    uint32_t *tmp, *from = idx, *to;

    if (in_order(idx, n, cmp, ctx))
        return true;
    tmp = esp_alloc_array(n, sizeof *tmp);
    if (!tmp)
        return false;
    to = tmp;
    for (size_t width = 1; width < n; width *= 2) {
        uint32_t *swap = from;

        for (size_t lo = 0; lo < n; lo += 2 * width) {
            const size_t mid = n - lo < width ? n : lo + width, hi = n - lo < 2 * width ? n : lo + 2 * width;
            const size_t cut[3] = {lo, mid, hi};

            merge(to, from, cut, cmp, ctx);
        }
        from = to;
        to = swap;
    }
    if (from != idx)
        memcpy(idx, from, n * sizeof *idx);
    esp_free(tmp);
    return true;
}

uint32_t *esp_sort_new(size_t n, esp_sort_fn cmp, const void *ctx)
{
    uint32_t *idx = esp_alloc_array(n, sizeof *idx);

    if (!idx)
        return NULL;
    for (size_t i = 0; i < n; i++)
        idx[i] = (uint32_t)i;
    if (!esp_sort_index(idx, n, cmp, ctx)) {
        esp_free(idx);
        return NULL;
    }
    return idx;
}
