/*
 * Windowed counts. A token enters a window when it arrives and leaves when N newer ones have; popping the
 * newest token lets the one N places before it back in.
 *
 * SPDX-License-Identifier: MIT
 */
#include "sample/history.h"

#include <inttypes.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

#define GENERATED (UINT32_C(1) << 31)
_Static_assert(ESP_LIMIT_VOCAB < GENERATED, "the top bit of a token is ours");

static size_t active_cap(uint32_t n_vocab, size_t cap)
{
    return cap < n_vocab ? cap : n_vocab;
}

size_t esp_sample_history_bytes(uint32_t n_vocab, size_t cap, bool counted)
{
    size_t n = cap * sizeof(uint32_t);

    if (counted)
        n += n_vocab * sizeof(uint32_t) + active_cap(n_vocab, cap) * sizeof(struct esp_sample_history_entry);
    return n;
}

esp_status esp_sample_history_init(struct esp_sample_history *h, uint32_t n_vocab, size_t cap, bool counted,
                                   esp_error *err)
{
    memset(h, 0, sizeof *h);
    h->n_vocab = n_vocab;
    h->cap = cap;
    for (int w = 0; w < ESP_WINDOW_COUNT; w++)
        h->window[w] = SIZE_MAX;
    h->tokens = esp_alloc_array(cap, sizeof *h->tokens);
    if (counted) {
        h->slot = esp_alloc_array(n_vocab, sizeof *h->slot);
        h->active = esp_alloc_array(active_cap(n_vocab, cap), sizeof *h->active);
    }
    if (!h->tokens || (counted && (!h->slot || !h->active))) {
        esp_sample_history_clear(h);
        return esp_fail(err, ESP_ENOMEM, "sampler: no memory for a history of %zu tokens", cap);
    }
    return ESP_OK;
}

void esp_sample_history_clear(struct esp_sample_history *h)
{
    esp_free(h->tokens);
    esp_free(h->slot);
    esp_free(h->active);
    memset(h, 0, sizeof *h);
}

/* Add delta (1 or -1) to a token's count in one window. */
static void count(struct esp_sample_history *h, uint32_t token, int window, int delta)
{
    uint32_t id = token & ~GENERATED;
    struct esp_sample_history_entry *e;

    if (window != ESP_WINDOW_REPETITION && !(token & GENERATED))
        return;
    if (!h->slot[id]) {
        h->active[h->n_active] = (struct esp_sample_history_entry){.id = id};
        h->slot[id] = (uint32_t)++h->n_active;
    }
    e = &h->active[h->slot[id] - 1];
    e->count[window] += (uint32_t)delta;
    if (!(e->count[0] | e->count[1] | e->count[2])) { /* the last entry takes the place */
        *e = h->active[--h->n_active];
        h->slot[e->id] = h->slot[id];
        h->slot[id] = 0;
    }
}

esp_status esp_sample_history_push(struct esp_sample_history *h, const uint32_t *ids, size_t n,
                                   bool generated, esp_error *err)
{
    if (n > h->cap - h->len)
        return esp_fail(err, ESP_ENOFIT, "sampler: %zu tokens after %zu, the history holds %zu", n, h->len,
                        h->cap);
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= h->n_vocab)
            return esp_fail(err, ESP_EINVAL, "sampler: token %zu has id %" PRIu32 ", ids are below %" PRIu32,
                            i, ids[i], h->n_vocab);
    for (size_t i = 0; i < n; i++) {
        uint32_t token = ids[i] | (generated ? GENERATED : 0);

        h->tokens[h->len] = token;
        for (int w = 0; h->slot && w < ESP_WINDOW_COUNT; w++) {
            if (h->len >= h->window[w]) /* leave first: then active never needs room for one more */
                count(h, h->tokens[h->len - h->window[w]], w, -1);
            count(h, token, w, 1);
        }
        h->len++;
    }
    h->n_generated += generated ? n : 0;
    return ESP_OK;
}

void esp_sample_history_pop(struct esp_sample_history *h, size_t n)
{
    ESP_ASSERT(n <= h->len);
    for (; n > 0; n--) {
        uint32_t token = h->tokens[--h->len];

        for (int w = 0; h->slot && w < ESP_WINDOW_COUNT; w++) {
            count(h, token, w, -1);
            if (h->len >= h->window[w])
                count(h, h->tokens[h->len - h->window[w]], w, 1);
        }
        h->n_generated -= token & GENERATED ? 1 : 0;
    }
}
