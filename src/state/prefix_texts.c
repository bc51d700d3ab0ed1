/*
 * Single texts of the tree: found, kept, forgotten by name. What the tree promises is in prefix.c.
 *
 * SPDX-License-Identifier: MIT
 */
#include "state/prefix_parts.h"

#include <time.h>

double esp_prefix_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool esp_prefix_pin(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t n, double until)
{
    const struct esp_prefix_walk w = esp_prefix_descend(p, ns, tokens, n, n);

    if (!w.best || esp_prefix_end(w.best) != n)
        return false;
    if (until > w.best->pinned)
        w.best->pinned = until;
    return true;
}

bool esp_prefix_path_to(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t n,
                        struct esp_prefix_path *out)
{
    const struct esp_prefix_walk w = esp_prefix_descend(p, ns, tokens, n, n);

    if (w.best)
        esp_prefix_build_path(p, w.best, out);
    return w.best != NULL;
}

uint32_t esp_prefix_drop(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t n)
{
    uint32_t dropped = 0;

    for (;;) {
        const struct esp_prefix_walk w = esp_prefix_descend(p, ns, tokens, n, n);

        if (!w.node || !w.node->parent || w.node->child || !w.node->has_checkpoint ||
            (!dropped && esp_prefix_end(w.node) != n))
            return dropped;
        esp_prefix_drop_checkpoint(p, w.node); /* its parent may be a leaf now */
        dropped++;
    }
}
