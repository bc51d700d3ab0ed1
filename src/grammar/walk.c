/*
 * Which tokens a set of configurations can take: one pass over the vocabulary's tree that skips the subtree
 * of every byte that cannot come.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/space.h"

static void allow(struct esp_walk *w, uint32_t token)
{
    for (; token != ESP_VOCAB_NONE; token = w->v->same[token])
        w->bits[token / 64] |= UINT64_C(1) << token % 64;
}

static bool add_escape(struct esp_walk *w, uint32_t node)
{
    if (!esp_auto_grow(&w->escape, &w->cap_escape, w->n_escape, 1, sizeof *w->escape)) {
        w->sp->fault = ESP_SPACE_NOMEM;
        return false;
    }
    w->escape[w->n_escape++] = node;
    return true;
}

/* The set behind one more byte. When the space is full and nobody else's, what is not on the path is dropped.
 */
static uint32_t next_set(struct esp_walk *w, uint32_t base, uint32_t depth, uint8_t byte)
{
    uint32_t to = esp_space_byte(w->sp, w->path[depth - 1], byte);

    if (to != ESP_SPACE_NONE || w->sp->fault != ESP_SPACE_FULL || !w->want_escapes)
        return to;
    if (!esp_space_compact(w->sp, w->path + base, depth - base))
        return ESP_SPACE_NONE;
    return esp_space_byte(w->sp, w->path[depth - 1], byte);
}

bool esp_walk_tree(struct esp_walk *w, uint32_t set, uint32_t from, uint32_t to, uint32_t depth)
{
    w->path[depth] = set;
    for (uint32_t i = from; i < to;) {
        const struct esp_vocab_node *n = &w->v->node[i];
        const uint32_t next = next_set(w, depth, n->depth, n->byte);
        const struct esp_space_set *s;

        if (next == ESP_SPACE_NONE)
            return false;
        if (next == ESP_SPACE_DEAD) {
            i = n->end;
            continue;
        }
        w->path[n->depth] = next;
        s = &w->sp->set[next];
        w->peak = s->peak > w->peak ? s->peak : w->peak;
        if (n->token != ESP_VOCAB_NONE)
            allow(w, n->token);
        if (s->ends && w->want_escapes && n->end > i + 1 && !add_escape(w, i))
            return false;
        i = s->n ? i + 1 : n->end;
    }
    return true;
}
