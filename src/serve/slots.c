/*
 * See the header. A choice takes the slot that has been idle longest; with more choices than slots, as when
 * several have just ended, it has none until one is free.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/slots.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

enum { MAX_NAMESPACES = 4096 };

esp_status esp_slots_open(struct esp_server *s, esp_error *err)
{
    s->slots = esp_alloc_array(s->rows, sizeof *s->slots);
    s->n_slot = s->slots ? s->rows : 0;
    s->namespaces = json_object();
    if (!s->slots || !s->namespaces)
        return esp_fail(err, ESP_ENOMEM, "no memory for %u slots", s->rows);
    for (uint32_t i = 0; i < s->rows; i++)
        esp_ids_init(&s->slots[i].text, ESP_LIMIT_TURN_BYTES);
    return ESP_OK;
}

void esp_slots_close(struct esp_server *s)
{
    for (uint32_t i = 0; i < s->n_slot; i++)
        esp_ids_free(&s->slots[i].text);
    esp_free(s->slots);
    s->slots = NULL;
    s->n_slot = 0;
    json_decref(s->namespaces);
    s->namespaces = NULL;
}

void esp_slots_take(struct esp_choice *c)
{
    const struct esp_server *s = c->job->s;
    struct esp_slot *best = NULL;

    for (uint32_t i = 0; i < s->rows; i++)
        if (!s->slots[i].choice && (!best || s->slots[i].used < best->used))
            best = &s->slots[i];
    if (!best)
        return;
    best->choice = c;
    c->slot = (int)(best - s->slots);
}

void esp_slots_prompt(struct esp_job *j, const struct esp_service_event *x)
{
    char key[20];

    if (j->choices[0].slot < 0)
        esp_slots_take(&j->choices[0]);
    snprintf(key, sizeof key, "%016" PRIx64, x->ns);
    if (json_object_size(j->s->namespaces) < MAX_NAMESPACES && !json_object_get(j->s->namespaces, key))
        json_object_set_new(j->s->namespaces, key, json_string(j->gen->adapter));
}

/* What c has run, for the slot to remember. */
static void remember(struct esp_slot *slot, const struct esp_choice *c)
{
    const struct esp_job *j = c->job;

    slot->text.n = 0;
    slot->ns = j->ns;
    snprintf(slot->adapter, sizeof slot->adapter, "%s", j->gen->adapter);
    for (size_t i = 0; i < j->prompt.n; i++)
        if (esp_ids_push(&slot->text, j->prompt.data[i], NULL) != ESP_OK)
            slot->ns = 0;
    for (size_t i = 0; i < c->tokens.n; i++)
        if (esp_ids_push(&slot->text, c->tokens.data[i], NULL) != ESP_OK)
            slot->ns = 0;
    if (j->gen->no_cache)
        slot->ns = 0;
}

void esp_slots_leave(struct esp_choice *c)
{
    struct esp_server *s = c->job->s;
    struct esp_slot *slot;

    if (c->slot < 0)
        return;
    slot = &s->slots[c->slot];
    slot->choice = NULL;
    slot->used = ++s->slot_clock;
    c->slot = -1;
    if (c->job->ns)
        remember(slot, c);
}
