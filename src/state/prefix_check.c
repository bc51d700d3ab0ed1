/*
 * Counting the tree, and the promises that tests hold it to after every operation.
 *
 * SPDX-License-Identifier: MIT
 */
#include "state/prefix_parts.h"

void esp_prefix_count(const struct esp_prefix *p, struct esp_prefix_counts *out)
{
    *out = (struct esp_prefix_counts){.checkpoints = p->n_checkpoint, .evictions = p->n_evicted};
    for (const struct esp_prefix_node *n = p->all; n; n = n->after) {
        out->nodes++;
        out->leaves += n->parent && !n->child;
        out->tokens += n->len;
    }
}

static const char *share_fault(const struct esp_prefix *p, const struct esp_prefix_node *n)
{
    uint32_t first;

    if (n->n_page != esp_prefix_pages(p, n->start, esp_prefix_end(n), &first))
        return "a node with the wrong number of pages";
    for (uint32_t i = 0; i < n->n_page; i++)
        if (p->pools->page_refs[n->pages[i]] == 0)
            return "a free page in a node";
    if (n->has_checkpoint && n->slot != ESP_NO_SLOT && p->pools->slot_refs[n->slot] == 0)
        return "a free slot in a node";
    return NULL;
}

static const char *node_fault(const struct esp_prefix *p, const struct esp_prefix_node *n)
{
    if (!n->parent)
        return n->child && esp_prefix_end(n) == 0 ? NULL : "a root without children or with tokens";
    if (n->len == 0 || n->start != esp_prefix_end(n->parent) || n->ns != n->parent->ns)
        return "a node that does not continue its parent";
    if (!n->child && !n->has_checkpoint)
        return "a leaf without checkpoint";
    if (n->used > n->parent->used)
        return "a node used later than its parent";
    for (const struct esp_prefix_node *c = n->next; c; c = c->next)
        if (c->tokens[0] == n->tokens[0])
            return "siblings that begin alike";
    return share_fault(p, n);
}

bool esp_prefix_valid(const struct esp_prefix *p, const char **why)
{
    uint32_t n_checkpoint = 0;

    *why = NULL;
    for (const struct esp_prefix_node *n = p->all; n && !*why; n = n->after) {
        *why = node_fault(p, n);
        n_checkpoint += n->has_checkpoint;
    }
    if (!*why && n_checkpoint != p->n_checkpoint)
        *why = "a wrong count of checkpoints";
    return *why == NULL;
}
