/*
 * The tree's own types, for the files that make it up. What they promise is in prefix.c.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_STATE_PREFIX_PARTS_H
#define ESP_STATE_PREFIX_PARTS_H

#include "state/prefix.h"

struct esp_prefix_node {
    struct esp_prefix_node *parent, *child, *next; /* first child, next sibling; roots are siblings */
    struct esp_prefix_node *before, *after;        /* list of all nodes */
    uint64_t ns;
    uint64_t used;   /* tick of the last lookup or insertion that went through here */
    int32_t *tokens; /* [len]; a root has none */
    uint32_t start, len;
    uint32_t *pages; /* those that positions [start, start + len) touch */
    uint32_t n_page;
    bool has_checkpoint, saved;
    uint32_t base, slot;
    double used_at, pinned; /* seconds of a steady clock */
    uint64_t hits;
};

struct esp_prefix {
    struct esp_state_pools *pools;
    struct esp_prefix_opts o;
    struct esp_prefix_node *roots, *all;
    uint64_t tick, n_evicted;
    uint32_t n_checkpoint;
    int32_t *tokens; /* scratch of a path: [max_positions] */
    uint32_t *pages;
    struct esp_prefix_checkpoint *checkpoints;
    uint32_t cap_checkpoint;
};

/* Down a text. */
struct esp_prefix_walk {
    struct esp_prefix_node *node; /* deepest whose edge matched whole; NULL: the namespace is empty */
    struct esp_prefix_node *best; /* deepest of those with a checkpoint at or before the limit */
    uint32_t match;
};
struct esp_prefix_walk esp_prefix_descend(const struct esp_prefix *p, uint64_t ns, const int32_t *tokens,
                                          uint32_t n, uint32_t limit);
/* The text from the root to n, in p's scratch. */
void esp_prefix_build_path(const struct esp_prefix *p, const struct esp_prefix_node *n,
                           struct esp_prefix_path *out);
/* n, which has one, loses its checkpoint; n and others may be gone afterwards. */
void esp_prefix_drop_checkpoint(struct esp_prefix *p, struct esp_prefix_node *n);
double esp_prefix_now(void); /* of the steady clock */

static inline uint32_t esp_prefix_end(const struct esp_prefix_node *n)
{
    return n->start + n->len;
}

/* First page and number of pages of positions [start, end). */
static inline uint32_t esp_prefix_pages(const struct esp_prefix *p, uint32_t start, uint32_t end,
                                        uint32_t *first)
{
    const struct esp_layout *l = &p->pools->mem.layout;

    *first = esp_layout_page_of(l, start);
    if (!l->n_attn || end == start)
        return 0;
    return esp_layout_page_of(l, end - 1) + 1 - *first;
}

#endif
