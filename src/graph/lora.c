/*
 * Looking a pair up by its base weight.
 *
 * SPDX-License-Identifier: MIT
 */
#include "graph/lora.h"

const struct esp_lora_pair *esp_lora_find(const struct esp_lora_set *set, const struct esp_weight *base)
{
    uint32_t lo = 0, hi = set->n;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if ((uintptr_t)set->pairs[mid].base < (uintptr_t)base)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < set->n && set->pairs[lo].base == base ? &set->pairs[lo] : NULL;
}
