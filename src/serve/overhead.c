/*
 * See the header. A first token counts when its text has been handed to the socket, at the end of the turn in
 * which all streams are written.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/overhead.h"

#include "serve/server.h"

void esp_overhead_token(struct esp_call *c, double submitted, double at)
{
    c->submitted = submitted;
    c->first_token = at;
}

void esp_overhead_written(struct esp_call *c)
{
    struct esp_overhead *o = &c->s->overhead;

    if (!c->uncounted && c->submitted > 0 && o->n < sizeof o->v / sizeof o->v[0]) {
        o->v[o->n].before = c->submitted - c->started - c->prompt_seconds - c->grammar_seconds;
        o->v[o->n++].since = c->first_token;
        esp_observe_seconds(&c->s->metrics.prompt_build, esp_buckets_own, c->prompt_seconds);
    }
    c->first_token = 0;
}

void esp_overhead_sent(void *server)
{
    struct esp_server *s = server;
    struct esp_overhead *o = &s->overhead;
    const double now = o->n ? esp_serve_now() : 0;

    for (size_t i = 0; i < o->n; i++)
        esp_observe_seconds(&s->metrics.overhead, esp_buckets_own, o->v[i].before + now - o->v[i].since);
    o->n = 0;
}
