/*
 * Who may run: the queue in front of the rows, the ledger of pages, and where memory comes from when it runs
 * out. The ledger is computed from the sequences themselves whenever it is asked, so it cannot drift. Memory
 * of whatever does not run is lent to what does: prefix cache first, then snapshots, then sequences without a
 * row; a state that was taken away is computed again from its tokens, with the same bits.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <time.h>

#include "engine/cache.h"
#include "engine/spec.h"

enum { STALL_LEAST = 8 }; /* prompt tokens of a step under a stall bound, or long prompts would never end */

/* Cost of a prompt token against a step of single tokens while none was measured: eight more rows cost a step
 * of the smallest shape at four bits 0.8 of itself, larger ones less. */
static const double FIRST_GUESS = 0.5;
/* Part of the bound that a step aims at: costs grow with the text, and a mean follows them late. */
static const double STALL_AIM = 0.95;

double esp_engine_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the ledger ---- */

static uint32_t pages_of(const struct esp_engine *g, uint64_t positions)
{
    return esp_layout_pages(&g->pools->mem.layout, positions);
}

/* Positions that s will hold when it has emitted all it may, or a usual number: the last one is never run. */
static uint64_t positions_of(const struct esp_seq *s)
{
    uint64_t left = s->n_left, usual = s->engine->opts.expected_new;

    if (s->engine->opts.admission == ESP_ADMISSION_EXPECTED && left > usual)
        left = usual;
    return s->n_token + left - (s->n_left > 0);
}

/* Pages reserved by sequences with a row. */
static uint64_t reserved(const struct esp_engine *g)
{
    uint64_t n = 0;

    for (const struct esp_seq *s = g->seqs; s; s = s->next)
        if (s->active)
            n += pages_of(g, positions_of(s));
    return n;
}

/* ---- the queue ---- */

int64_t esp_engine_rank(const struct esp_engine *g, int32_t priority, double waits_from, double now)
{
    const bool aged = g->opts.aging_ms && (now - waits_from) * 1000 >= g->opts.aging_ms;

    return aged ? 2 * ESP_PRIORITY_FIRST + 1 : 2 * (int64_t)priority;
}

/* Whether a goes before b. */
static bool outranks(const struct esp_seq *a, const struct esp_seq *b, double now)
{
    const struct esp_engine *g = a->engine;
    const int64_t passed_a = g->opts.aging_ms ? 0 : a->n_passed,
                  passed_b = g->opts.aging_ms ? 0 : b->n_passed,
                  ra = esp_engine_rank(g, a->opts.priority, a->waits_from, now) - 2 * passed_a,
                  rb = esp_engine_rank(g, b->opts.priority, b->waits_from, now) - 2 * passed_b;

    if (ra != rb)
        return ra < rb;
    if (g->opts.aging_ms && a->waits_from != b->waits_from)
        return a->waits_from < b->waits_from;
    return a->arrival < b->arrival;
}

static bool fits(const struct esp_engine *g, const struct esp_seq *s)
{
    if (g->opts.admission == ESP_ADMISSION_OPEN || g->n_active == 0)
        return true; /* alone it fits: esp_engine_enqueue() has checked */
    return reserved(g) + pages_of(g, positions_of(s)) <= g->pools->mem.n_page;
}

static void activate(struct esp_engine *g, struct esp_seq *s)
{
    for (struct esp_seq *w = g->seqs; w; w = w->next)
        if (w->armed && !w->active && w != s && w->arrival < s->arrival)
            w->n_passed++;
    s->active = true;
    s->n_passed = 0;
    g->n_active++;
    g->n_waiting--;
    if (s->active_at == 0)
        s->active_at = esp_engine_now();
    esp_cache_lookup(s);
}

void esp_engine_admit(struct esp_engine *g)
{
    while (g->n_waiting && g->n_active < g->opts.rows) {
        const double now = esp_engine_now();
        struct esp_seq *head = NULL;

        for (struct esp_seq *s = g->seqs; s; s = s->next)
            if (s->armed && !s->active && (!head || outranks(s, head, now)))
                head = s;
        if (!head || !fits(g, head) || esp_cache_worth_waiting(head))
            return;
        activate(g, head);
    }
}

esp_status esp_engine_enqueue(struct esp_seq *s, size_t max_new, esp_error *err)
{
    struct esp_engine *g = s->engine;
    const struct esp_layout *l = &g->pools->mem.layout;
    uint64_t room = g->opts.context, held = s->n_token - (max_new == 0);
    const uint64_t most = esp_layout_page_first(l, g->pools->mem.n_page); /* positions of all pages */

    if (l->n_attn && g->opts.admission != ESP_ADMISSION_OPEN && most < room)
        room = most;
    if (held > room)
        return esp_fail(err, ESP_ENOFIT,
                        "%u tokens need %u KV pages, there are %u; raise kv_tokens or the memory budget",
                        s->n_token, pages_of(g, held), g->pools->mem.n_page);
    if (g->n_active + g->n_waiting >= g->opts.rows + g->opts.queue) {
        g->stats.refused++;
        return esp_fail(err, ESP_ENOFIT,
                        "the queue is full: %u sequences run and %u wait, %u rows and %u places are there",
                        g->n_active, g->n_waiting, g->opts.rows, g->opts.queue);
    }
    if (max_new &&
        esp_state_length(s->state) == s->n_token) { /* its logits are gone: the last token runs again */
        uint32_t reached;

        esp_spec_settle(s, s->n_token - 1);
        ESP_TRY(esp_state_rewind(s->state, s->n_token - 1, &reached, err));
    }
    if (max_new > room + 1 - s->n_token) /* the last token emitted needs no place in the cache ... */
        max_new = room + 1 - s->n_token;
    if (max_new > g->opts.context - s->n_token && max_new) /* ... but one in the list of tokens */
        max_new = g->opts.context - s->n_token;
    s->armed = true;
    s->n_left = max_new;
    s->arrival = ++g->n_armed_ever;
    s->n_passed = 0;
    s->armed_at = s->waits_from = esp_engine_now();
    s->active_at = s->first_at = s->done_at = 0;
    esp_spec_arm(s);
    s->usage = (esp_usage){.prompt_tokens = s->n_token, .max_new = max_new};
    g->n_waiting++;
    return ESP_OK;
}

void esp_engine_leave(struct esp_seq *s, enum esp_leave how)
{
    struct esp_engine *g = s->engine;

    if (!s->armed)
        return;
    if (s->active) {
        g->n_active--;
        if (how == ESP_LEAVE_KEEP)
            esp_cache_store(s);
    } else {
        g->n_waiting--;
    }
    s->armed = s->active = false;
    s->used = ++g->n_use;
    s->done_at = esp_engine_now();
}

/* ---- memory ---- */

/* Back to the queue, memory given back; its arrival keeps its place. */
static void preempt(struct esp_seq *s)
{
    esp_cache_store(s);
    esp_state_invalidate(s->state);
    s->active = false;
    s->engine->n_active--;
    s->engine->n_waiting++;
    s->usage.preemptions++;
    s->engine->stats.preemptions++;
}

/* Drop the shortest snapshot of some sequence, of one without a row if possible. A row in the step being
 * built writes to a slot of its own, so its snapshots may go as well. */
static bool drop_snapshot(struct esp_engine *g)
{
    for (int with_row = 0; with_row <= 1; with_row++)
        for (struct esp_seq *s = g->seqs; s; s = s->next)
            if ((with_row || !s->active) && esp_state_drop_snapshot(s->state))
                return true;
    return false;
}

/* Take the state of the sequence that was used longest ago, among those without a row. */
static bool drop_idle(struct esp_engine *g, const struct esp_seq *except)
{
    struct esp_seq *oldest = NULL;

    if (g->opts.admission == ESP_ADMISSION_OPEN)
        return false;
    for (struct esp_seq *s = g->seqs; s; s = s->next)
        if (!s->active && s != except && s->step_n == 0 && esp_state_length(s->state) &&
            (!oldest || s->used < oldest->used))
            oldest = s;
    if (oldest)
        esp_state_invalidate(oldest->state);
    return oldest != NULL;
}

/* Put back the row of lowest rank that is not in the step yet, s itself if it is that. False when s is gone
 * or none can be found. */
static bool preempt_for(struct esp_seq *s)
{
    struct esp_engine *g = s->engine;
    const double now = esp_engine_now();
    struct esp_seq *worst = s;

    if (g->opts.admission != ESP_ADMISSION_EXPECTED || g->n_active < 2 || !s->active)
        return false;
    for (struct esp_seq *r = g->seqs; r; r = r->next)
        if (r->active && r->step_n == 0 && outranks(worst, r, now))
            worst = r;
    preempt(worst);
    return worst != s;
}

static bool give_up_one(struct esp_seq *s, bool slot)
{
    struct esp_engine *g = s->engine;

    if (esp_cache_evict(g, slot ? ESP_PREFIX_SLOT : ESP_PREFIX_PAGE))
        return true;
    if (slot && drop_snapshot(g))
        return true;
    return drop_idle(g, s) || preempt_for(s);
}

void esp_engine_make_room(struct esp_seq *s, uint32_t pages, uint32_t slots)
{
    const struct esp_state_pools *p = s->engine->pools;

    while (pages > p->n_free_page || slots > p->n_free_slot)
        if (!give_up_one(s, pages <= p->n_free_page))
            return;
}

esp_status esp_engine_begin(struct esp_seq *s, uint32_t n, struct esp_batch_seq *out, esp_error *err)
{
    const struct esp_state_pools *p = s->engine->pools;
    uint32_t pages, slots;

    /* What is needed shrinks when a share of the cache's goes: ask again after every sacrifice. */
    for (;;) {
        esp_state_need(s->state, n, &pages, &slots);
        if (pages <= p->n_free_page && slots <= p->n_free_slot)
            break;
        if (!give_up_one(s, pages <= p->n_free_page))
            break; /* begin() says what is lacking */
    }
    if (s->armed && !s->active)
        return esp_fail(err, ESP_ENOFIT, "put back to wait");
    return esp_state_begin(s->state, n, ESP_PASS_WRITE, out, err);
}

bool esp_engine_begin_draft(struct esp_seq *s, uint32_t n, struct esp_batch_seq *out)
{
    const struct esp_state_pools *p = s->engine->pools;
    uint32_t pages, slots;

    esp_state_need(s->state, n, &pages, &slots);
    return pages <= p->n_free_page && slots + 1 <= p->n_free_slot &&
           esp_state_begin(s->state, n, ESP_PASS_JOURNAL, out, NULL) == ESP_OK;
}

/* ---- time ---- */

uint32_t esp_engine_budget(struct esp_engine *g, uint32_t n_decode)
{
    double bound = STALL_AIM * g->opts.max_stall_ms * 1e-3, n;
    double cost = g->token_cost > 0 ? g->token_cost : FIRST_GUESS * g->step_cost;

    if (g->opts.max_stall_ms == 0 || n_decode == 0)
        return g->opts.chunk;
    n = cost > 0 ? (bound - g->step_cost) / cost : STALL_LEAST;
    n = n < STALL_LEAST ? STALL_LEAST : n;
    if (n >= g->opts.chunk - n_decode)
        return g->opts.chunk;
    g->stats.chunk_limit = (uint32_t)n;
    return n_decode + (uint32_t)n;
}

static void blend(double *mean, double x)
{
    *mean = *mean > 0 ? 0.7 * *mean + 0.3 * x : x;
}

void esp_engine_measure(struct esp_engine *g, uint32_t n_single, uint32_t n_prompt, double dt)
{
    if (n_single && !n_prompt)
        blend(&g->step_cost, dt);
    else if (n_prompt >= STALL_LEAST && dt > g->step_cost)
        blend(&g->token_cost, (dt - g->step_cost) / n_prompt);
}
