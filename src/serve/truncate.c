/*
 * Prompts that are too long lose their oldest turns, for clients that ask for that. A turn begins with a
 * user's message, so calls and their results stay or go together. How many turns have to go is searched by
 * halves, since each try renders and tokenizes.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#include "serve/params.h"

/* Where turns begin, ascending; new memory, *n of them. NULL: no memory. */
static size_t *turns(const json_t *messages, size_t *n)
{
    size_t *at = esp_alloc_array(json_array_size(messages) + 1, sizeof *at), i;
    json_t *m;

    *n = 0;
    if (!at)
        return NULL;
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));

        if (role && strcmp(role, "user") == 0)
            at[(*n)++] = i;
    }
    return at;
}

/* Messages without [from, to). */
static json_t *without(const json_t *messages, size_t from, size_t to)
{
    json_t *list = json_array(), *m;
    size_t i;

    json_array_foreach(messages, i, m)
    {
        if (i < from || i >= to)
            json_array_append(list, m);
    }
    return list;
}

/* Most tokens of a prompt that leaves room for an answer, or for its beginning. */
static size_t room(const struct esp_gen *g, const struct esp_server *s)
{
    const uint64_t most = s->kv_tokens < s->context ? s->kv_tokens : s->context, wanted = s->o.answer_reserve;
    uint64_t reserve =
        g->max_tokens >= 0 && (uint64_t)g->max_tokens < wanted ? (uint64_t)g->max_tokens : wanted;

    reserve = reserve < most / 2 ? reserve : most / 2;
    return (size_t)(most - (reserve ? reserve : 1));
}

struct trial {
    struct esp_chat_params p; /* of it the messages are its own */
    struct esp_prompt prompt;
    bool made;
};

static void drop(struct trial *t)
{
    if (t->made)
        esp_prompt_free(&t->prompt);
    json_decref(t->p.messages);
    memset(t, 0, sizeof *t);
}

static bool make(struct trial *t, const struct esp_chat_params *p, size_t from, size_t to,
                 const struct esp_server *s, struct esp_api_error *e)
{
    *t = (struct trial){.p = *p};
    t->p.messages = without(p->messages, from, to);
    t->made = esp_prompt_chat(&t->prompt, &t->p, s, e);
    return t->made;
}

/* The fewest turns that have to go so that the prompt has at most `most` tokens: into best, with at least
 * one turn gone. */
static bool search(struct trial *best, const struct esp_chat_params *p, const size_t *at, size_t n,
                   size_t most, const struct esp_server *s, struct esp_api_error *e)
{
    size_t low = 1, high = n - 1; /* that many go */

    if (!make(best, p, at[0], at[high], s, e))
        return false;
    while (low < high && best->prompt.ids.n <= most) {
        const size_t mid = low + (high - low) / 2;
        struct trial t;

        if (!make(&t, p, at[0], at[mid], s, e)) {
            drop(&t);
            return false;
        }
        if (t.prompt.ids.n > most) {
            low = mid + 1;
            drop(&t);
        } else {
            high = mid;
            drop(best);
            *best = t;
        }
    }
    return true;
}

bool esp_prompt_truncate(struct esp_prompt *out, struct esp_chat_params *p, struct esp_gen *g,
                         const struct esp_server *s, struct esp_api_error *e)
{
    const size_t most = room(g, s), before = json_array_size(p->messages);
    size_t n = 0, *at;
    struct trial best = {0};
    char message[96];
    bool ok;

    if (!p->truncate || out->ids.n <= most)
        return true;
    at = turns(p->messages, &n);
    if (!at || n < 2) {
        esp_free(at);
        return true; /* nothing can go; whether it fits after all is seen later */
    }
    ok = search(&best, p, at, n, most, s, e);
    esp_free(at);
    esp_prompt_free(out);
    if (!ok) {
        drop(&best);
        return false;
    }
    *out = best.prompt;
    json_decref(p->messages);
    p->messages = best.p.messages;
    snprintf(message, sizeof message, "truncated: the %zu oldest messages were left out",
             before - json_array_size(p->messages));
    esp_gen_warn(g, message);
    return true;
}
