/*
 * What every chat dialect does between reading a request and its first event. The grammar may come from a
 * thread; until then the call is held by one more job of its own, so that a client which leaves meanwhile is
 * noticed and nothing is started for it.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#include "serve/adapters.h"
#include "serve/background.h"
#include "serve/constrain.h"
#include "serve/diag.h"

struct starting {
    struct esp_start o;
    struct esp_prompt prompt;
    struct esp_api_error e; /* of the prompt */
    bool rendered;
    double seconds, asked;                           /* that it took; when the grammar was asked for */
    void (*counted)(struct esp_call *c, uint64_t n); /* NULL: it is to be run */
};

void esp_reply_answer(struct esp_call *c, json_t *v)
{
    if (c->r)
        esp_queue_header(c);
    esp_reply_json(c, 200, v);
}

void esp_reply_job_error(struct esp_job *j)
{
    j->call->e = j->e;
    memset(&j->e, 0, sizeof j->e);
    esp_reply_error(j->call);
}

static void submit(struct starting *x)
{
    struct esp_call *c = x->o.call;
    struct esp_job_opts opts;
    struct esp_job *j = NULL;
    uint64_t limit = 0;

    if (!esp_prompt_finish(&x->prompt, x->o.p, x->o.gen, c->s, &c->e) ||
        !esp_job_limit(c->s, x->o.gen, x->prompt.ids.n, &limit, &c->e))
        return;
    opts = esp_prompt_job(c, &x->prompt, x->o.p, x->o.gen);
    opts.sink = x->o.sink;
    opts.call_prefix = x->o.call_prefix;
    if (esp_job_start(&j, &opts, limit, &c->e) && x->o.gen->stream) {
        c->begin = x->o.begin;
        c->begins = j;
        esp_sse_expect(c, x->o.ping, x->o.gen->ping);
    }
}

static void grammar_known(void *user)
{
    struct starting *x = user;
    struct esp_call *c = x->o.call;

    c->grammar_seconds = esp_serve_now() - x->asked;
    if (c->r && !c->e.http && !x->counted)
        submit(x);
    esp_mounts_hold(c->s, x->o.gen->adapters, x->o.gen->n_adapter, -1);
    if (c->e.http)
        esp_reply_error(c);
    if (x->rendered)
        esp_prompt_free(&x->prompt);
    esp_api_error_clear(&x->e);
    esp_free(x);
    esp_call_job_ended(c);
}

/* The prompt is there, or why it is not. */
static void got_prompt(struct starting *x)
{
    struct esp_call *c = x->o.call;
    struct esp_constrain_ask ask;

    c->prompt_seconds = x->seconds;
    x->asked = esp_serve_now();
    if (x->e.http) {
        c->e = x->e;
        memset(&x->e, 0, sizeof x->e);
    }
    if (c->e.http || !c->r || x->counted) {
        if (c->r && !c->e.http)
            x->counted(c, x->prompt.ids.n);
        grammar_known(x);
        return;
    }
    ask = (struct esp_constrain_ask){.s = c->s,
                                     .gen = x->o.gen,
                                     .p = x->o.p,
                                     .thinking = x->prompt.thinking,
                                     .e = &c->e,
                                     .done = grammar_known,
                                     .user = x};
    esp_constrain_compile(&ask);
}

static esp_status render(void *arg, esp_error *err)
{
    struct starting *x = arg;
    double start;

    (void)err;
    if (atomic_load(&x->o.call->gone))
        return ESP_OK;
    start = esp_serve_now();
    x->rendered = esp_prompt_chat(&x->prompt, x->o.p, x->o.call->s, &x->e);
    if (x->rendered)
        x->rendered = esp_prompt_truncate(&x->prompt, x->o.p, x->o.gen, x->o.call->s, &x->e);
    x->seconds = esp_serve_now() - start;
    esp_diag_facts(&x->o.gen->facts, x->o.p->messages, x->o.p->tools, x->rendered && x->prompt.thinking);
    return ESP_OK;
}

static void rendered(void *arg, esp_status s, const esp_error *err)
{
    struct starting *x = arg;

    if (s != ESP_OK)
        esp_api_fail_status(&x->e, NULL, err);
    got_prompt(x);
}

/* Small prompts at once; larger ones beside the loop. x is taken over. */
static void begin(struct starting *x)
{
    struct esp_call *c = x->o.call;
    esp_error err;

    c->n_job++;
    esp_mounts_hold(c->s, x->o.gen->adapters, x->o.gen->n_adapter, 1);
    if (!esp_call_is_big(c) || esp_background_queue(c->s->background, render, rendered, x, &err) != ESP_OK) {
        render(x, &err);
        got_prompt(x);
    }
}

static void start(const struct esp_start *o, void (*counted)(struct esp_call *c, uint64_t n))
{
    struct starting *x = esp_alloc(sizeof *x);

    if (!x) {
        esp_api_fail(&o->call->e, "device_lost", NULL, "no memory for the request");
        return;
    }
    x->o = *o;
    x->counted = counted;
    begin(x);
}

void esp_start_chat(const struct esp_start *o)
{
    start(o, NULL);
}

void esp_start_count(struct esp_call *c, struct esp_chat_params *p, struct esp_gen *gen,
                     void (*reply)(struct esp_call *c, uint64_t n))
{
    start(&(struct esp_start){.call = c, .gen = gen, .p = p}, reply);
}
