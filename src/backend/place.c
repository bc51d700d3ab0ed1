/*
 * First-fit placement: values whose lives do not overlap share bytes. A function of the tape and the limits
 * alone, so memory is known before anything is allocated.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/place.h"

size_t esp_value_bytes(const struct esp_value *v, const struct esp_plan_opts *o)
{
    size_t n = v->rows == ESP_ROWS_TOKEN ? o->max_tok : o->max_out;

    return (n * v->width * sizeof(float) + 63) & ~(size_t)63;
}

/* The lowest offset where v's bytes meet no value alive at the same time. */
static size_t place(const struct esp_tape *t, const struct esp_plan_opts *o, const size_t *off, esp_val v)
{
    const struct esp_value *a = &t->values[v];
    size_t need = esp_value_bytes(a, o), at = 0;
    bool moved = true;

    while (moved) {
        moved = false;
        for (esp_val u = 0; u < v; u++) {
            const struct esp_value *b = &t->values[u];
            size_t end = off[u] + esp_value_bytes(b, o);

            if (b->last_use < a->born || b->born > a->last_use || off[u] >= at + need || end <= at)
                continue;
            at = end;
            moved = true;
        }
    }
    return at;
}

size_t esp_place_values(const struct esp_tape *t, const struct esp_plan_opts *o, size_t *off)
{
    size_t total = 0;

    for (esp_val v = 0; v < t->n_value; v++) {
        off[v] = place(t, o, off, v);
        if (off[v] + esp_value_bytes(&t->values[v], o) > total)
            total = off[v] + esp_value_bytes(&t->values[v], o);
    }
    return total;
}
