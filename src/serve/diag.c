/*
 * See the header. A ring of entries, found by walking it: clients ask rarely, and a walk over ids of 48 bytes
 * is nothing beside a prompt. The part of a chat in which two texts part is told by their tokens: the first
 * turn is the system's, which has the tools in it; later ones are messages.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/diag.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "engine/chat.h"

#include "serve/diagnose.h"

enum { MAX_BYTES = 64 << 20 };

struct entry {
    char id[48];
    struct esp_ids text; /* prompt and answer */
    uint64_t ns;
    struct esp_diag_facts facts;
};

struct esp_diag {
    struct entry *ring; /* [cap], the oldest at first */
    uint32_t cap, first, n;
    uint64_t bytes;
};

esp_status esp_diag_open(struct esp_diag **out, uint32_t entries, esp_error *err)
{
    struct esp_diag *d = esp_alloc(sizeof *d);

    if (!d)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    d->cap = entries;
    d->ring = entries ? esp_alloc_array(entries, sizeof *d->ring) : NULL;
    if (entries && !d->ring) {
        esp_free(d);
        return esp_fail(err, ESP_ENOMEM, "--diag-entries %u: no memory for so many", entries);
    }
    *out = d;
    return ESP_OK;
}

static uint64_t bytes_of(const struct entry *e)
{
    return e->text.cap * sizeof *e->text.data;
}

static void drop_oldest(struct esp_diag *d)
{
    struct entry *e = &d->ring[d->first];

    d->bytes -= bytes_of(e);
    esp_ids_free(&e->text);
    d->first = (d->first + 1) % d->cap;
    d->n--;
}

void esp_diag_close(struct esp_diag *d)
{
    if (!d)
        return;
    while (d->n)
        drop_oldest(d);
    esp_free(d->ring);
    esp_free(d);
}

void esp_diag_count(const struct esp_diag *d, uint64_t *entries, uint64_t *bytes)
{
    *entries = d ? d->n : 0;
    *bytes = d ? d->bytes : 0;
}

void esp_diag_keep(struct esp_diag *d, struct esp_job *j)
{
    struct entry e = {.ns = j->ns, .facts = j->gen->facts};

    if (!d || d->cap == 0 || j->index || !j->ns || j->e.http || !j->call->answer_id[0])
        return;
    snprintf(e.id, sizeof e.id, "%s", j->call->answer_id);
    e.text = j->prompt;
    memset(&j->prompt, 0, sizeof j->prompt);
    for (size_t i = 0; i < j->choices[0].tokens.n; i++)
        if (esp_ids_push(&e.text, j->choices[0].tokens.data[i], NULL) != ESP_OK)
            break; /* a shorter text is still one */
    if (d->n == d->cap)
        drop_oldest(d);
    while (d->n && d->bytes + bytes_of(&e) > MAX_BYTES)
        drop_oldest(d);
    d->ring[(d->first + d->n++) % d->cap] = e;
    d->bytes += bytes_of(&e);
}

static int add_hash(const char *text, size_t n, void *user)
{
    uint64_t *h = user;

    *h = esp_hash(text, n, *h);
    return 0;
}

void esp_diag_facts(struct esp_diag_facts *out, const json_t *messages, const json_t *tools, bool thinking)
{
    *out = (struct esp_diag_facts){.n_message = (uint32_t)json_array_size(messages), .thinking = thinking};
    if (tools)
        json_dump_callback(tools, add_hash, &out->tools, JSON_COMPACT);
}

static const struct entry *find(const struct esp_diag *d, const char *id)
{
    for (uint32_t i = d->n; i-- > 0;) {
        const struct entry *e = &d->ring[(d->first + i) % d->cap];

        if (strcmp(e->id, id) == 0)
            return e;
    }
    return NULL;
}

/* The part in which the texts part, behind position in common. */
static enum esp_diag_what part_of(const struct entry *e, const struct esp_job *j, size_t position)
{
    const struct esp_diag_facts *now = &j->gen->facts;
    size_t header = j->prompt.n; /* of the turn to be answered: what thinking switches */

    if (e->ns != j->ns)
        return ESP_DIAG_MODEL;
    if (e->facts.tools != now->tools && esp_diagnose_turn(j, position) == 0)
        return ESP_DIAG_TOOLS;
    if (esp_diagnose_system(j) && esp_diagnose_turn(j, position) == 0)
        return ESP_DIAG_SYSTEM;
    while (header > 0 && !esp_token_is_end(j->s->model, (esp_token)j->prompt.data[header - 1]))
        header--;
    if (e->facts.thinking != now->thinking && position >= header)
        return ESP_DIAG_THINKING;
    return now->n_message < e->facts.n_message ? ESP_DIAG_COMPACTED : ESP_DIAG_MESSAGES;
}

struct esp_diag_result esp_diag_compare(const struct esp_diag *d, const struct esp_job *j, const char *id)
{
    struct esp_diag_result r = {.what = ESP_DIAG_NOT_FOUND};
    const struct entry *e;
    size_t least;

    if (!d || d->cap == 0 || !j->ns)
        r.what = ESP_DIAG_UNAVAILABLE;
    e = r.what == ESP_DIAG_UNAVAILABLE ? NULL : find(d, id);
    if (!e)
        return r;
    least = e->text.n < j->prompt.n ? e->text.n : j->prompt.n;
    while (e->ns == j->ns && r.same < least && e->text.data[r.same] == j->prompt.data[r.same])
        r.same++;
    r.missed = least - r.same;
    r.what = r.missed ? part_of(e, j, (size_t)r.same) : ESP_DIAG_SAME;
    return r;
}
