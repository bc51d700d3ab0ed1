/*
 * A grammar as its users hold it: the automaton, a reference count, and the store of masks behind a lock.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/masks.h"

#include <string.h>
#include <time.h>

#include "base/limits.h"
#include "base/mem.h"

esp_status esp_grammar_create(struct esp_grammar **out, const struct esp_vocab *v, const struct esp_ir *ir,
                              const char *what, esp_error *err)
{
    struct esp_grammar *g;
    esp_status s;

    ESP_TRY(esp_ir_check(ir, what, err));
    g = esp_alloc(sizeof *g);
    if (!g)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", what);
    if (pthread_mutex_init(&g->lock, NULL) != 0) {
        esp_free(g);
        return esp_fail(err, ESP_ENOMEM, "%s: no lock", what);
    }
    g->v = v;
    atomic_init(&g->n_ref, 1);
    s = esp_auto_build(&g->a, ir, what, err);
    if (s == ESP_OK)
        s = esp_masks_init(&g->masks, &g->a, v, err);
    if (s == ESP_OK)
        *out = g;
    else
        esp_grammar_release(g);
    return s;
}

struct esp_grammar *esp_grammar_ref(struct esp_grammar *g)
{
    atomic_fetch_add(&g->n_ref, 1);
    return g;
}

void esp_grammar_release(struct esp_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->n_ref, 1) != 1)
        return;
    esp_masks_free(&g->masks);
    esp_auto_free(&g->a);
    pthread_mutex_destroy(&g->lock);
    esp_free(g);
}

size_t esp_grammar_bytes(const struct esp_grammar *g)
{
    return sizeof *g + esp_auto_bytes(&g->a) + g->masks.bytes + esp_space_bytes(&g->masks.space) +
           g->a.n_state * sizeof *g->masks.of_state + g->masks.cap_entry * sizeof *g->masks.entry +
           g->v->n_word * sizeof *g->masks.bits;
}

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void esp_grammar_warm(struct esp_grammar *g, uint64_t max_us)
{
    const uint64_t end = now_us() + max_us;

    pthread_mutex_lock(&g->lock);
    for (uint32_t s = 0; s < g->a.n_state && now_us() < end; s++) {
        const struct esp_auto_state *q = &g->a.state[s];
        uint32_t n = 0;

        for (uint32_t e = 0; e < q->n_edge; e++)
            n += g->a.edge[q->edge + e].hi - g->a.edge[q->edge + e].lo + 1u;
        if (n >= 48 && g->masks.bytes < g->masks.max_bytes / 2)
            esp_masks_get(&g->masks, s);
    }
    pthread_mutex_unlock(&g->lock);
}
