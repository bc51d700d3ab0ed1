/*
 * What a joined automaton still needs: the least stack growth of every state, no ways into dead ends, no left
 * recursion, classes of bytes, and the tokens that occur. Each is a fixed point or a walk with a stack of its
 * own over all states.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/automaton.h"

#include <stdlib.h>

#include "base/limits.h"
#include "base/mem.h"

struct finish {
    struct esp_dfa_work *w;
    esp_auto_name_fn rule_at;
    const void *user;
};

/* Least stack growth from every state, to a fixed point; what stays at NEVER cannot be completed. */
enum { NEVER = UINT16_MAX };

static uint16_t call_need(const struct esp_auto *a, const struct esp_auto_call *e)
{
    const struct esp_auto_state *start = &a->state[e->start], *back = &a->state[e->back];
    uint16_t n = start->need;

    if (n == NEVER || back->need == NEVER)
        return NEVER;
    if (!(back->flags & ESP_AUTO_SINK))
        n++;
    n = n > back->need ? n : back->need;
    return n <= ESP_LIMIT_GRAMMAR_DEPTH ? n : NEVER;
}

static uint16_t need_of(const struct esp_auto *a, const struct esp_auto_state *q)
{
    uint16_t least = q->flags & ESP_AUTO_FINAL ? 0 : NEVER, n;

    for (uint32_t k = 0; k < q->n_edge && least; k++) {
        n = a->state[a->edge[q->edge + k].to].need;
        least = n < least ? n : least;
    }
    for (uint32_t k = 0; k < q->n_token && least; k++) {
        n = a->state[a->token[q->token + k].to].need;
        least = n < least ? n : least;
    }
    for (uint32_t k = 0; k < q->n_call && least; k++) {
        n = call_need(a, &a->call[q->call + k]);
        least = n < least ? n : least;
    }
    return least;
}

static esp_status find_needs(struct finish *f, esp_error *err)
{
    struct esp_auto *a = f->w->a;
    bool changed = true;

    for (uint32_t s = 0; s < a->n_state; s++) {
        struct esp_auto_state *q = &a->state[s];

        q->need = NEVER;
        if (q->flags & ESP_AUTO_FINAL && q->n_edge == 0 && q->n_call == 0 && q->n_token == 0)
            q->flags |= ESP_AUTO_SINK;
    }
    for (bool up = false; changed;
         up = !up) { /* callers lie above callees, rests of a rule above its beginning */
        changed = false;
        ESP_TRY(esp_dfa_step(f->w, a->n_state / 2, err));
        for (uint32_t i = 0; i < a->n_state; i++) {
            const uint32_t s = up ? i : a->n_state - 1 - i;
            const uint16_t n = need_of(a, &a->state[s]);

            if (n < a->state[s].need) {
                a->state[s].need = n;
                changed = true;
            }
        }
    }
    if (a->state[a->start].need == NEVER)
        return esp_fail(err, ESP_EFORMAT, "%s: no text satisfies it: rule \"%s\" can never be completed",
                        f->w->what, f->rule_at(f->user, a->start));
    return ESP_OK;
}

/* Drop edges into states that cannot be completed, so that whatever is reached can be. */
static void drop_dead(struct esp_auto *a)
{
    for (uint32_t s = 0; s < a->n_state; s++) {
        struct esp_auto_state *q = &a->state[s];
        uint32_t n = 0;

        for (uint32_t k = 0; k < q->n_edge; k++)
            if (a->state[a->edge[q->edge + k].to].need != NEVER)
                a->edge[q->edge + n++] = a->edge[q->edge + k];
        q->n_edge = (uint16_t)n;
        n = 0;
        for (uint32_t k = 0; k < q->n_call; k++) {
            const struct esp_auto_call e = a->call[q->call + k];

            if (a->state[e.start].need != NEVER && a->state[e.back].need != NEVER)
                a->call[q->call + n++] = e;
        }
        q->n_call = n;
        n = 0;
        for (uint32_t k = 0; k < q->n_token; k++)
            if (a->state[a->token[q->token + k].to].need != NEVER)
                a->token[q->token + n++] = a->token[q->token + k];
        q->n_token = (uint16_t)n;
        if (q->flags & ESP_AUTO_FINAL && q->n_edge == 0 && q->n_call == 0 && q->n_token == 0)
            q->flags |= ESP_AUTO_SINK;
    }
}

/* Whether states can end without a byte, to a fixed point, in empty[n_state]. */
static esp_status find_empty(struct finish *f, bool *empty, esp_error *err)
{
    const struct esp_auto *a = f->w->a;
    bool changed = true;

    for (bool up = false; changed; up = !up) {
        changed = false;
        ESP_TRY(esp_dfa_step(f->w, a->n_state / 2, err));
        for (uint32_t i = 0; i < a->n_state; i++) {
            const uint32_t s = up ? i : a->n_state - 1 - i;
            const struct esp_auto_state *q = &a->state[s];
            bool e = q->flags & ESP_AUTO_FINAL;

            for (uint32_t k = 0; k < q->n_call && !e; k++)
                e = empty[a->call[q->call + k].start] && empty[a->call[q->call + k].back];
            if (e && !empty[s])
                empty[s] = changed = true;
        }
    }
    return ESP_OK;
}

/*
 * Left recursion: a state that can come back to itself without a byte by entering rules. Edges without a byte
 * lead from a state into the rules it calls, and past a call that can be empty. A cycle that enters no rule
 * would be one of empty calls in a loop, which only comes to a state already known, and is harmless.
 */
struct left_walk {
    uint8_t *color; /* 0 not seen, 1 on the path, 2 done */
    uint32_t *at;   /* next edge to look at: calls in order, entering before passing */
    uint32_t *path;
    bool *entered; /* came here by entering a rule */
    uint32_t n;
};

/* The state behind edge k of q, or ESP_IR_NONE when it takes a byte to pass. */
static uint32_t left_edge(const struct esp_auto *a, const bool *empty, const struct esp_auto_state *q,
                          uint32_t k)
{
    const struct esp_auto_call *c = &a->call[q->call + k / 2];

    if (k % 2 == 0)
        return c->start;
    return empty[c->start] ? c->back : ESP_IR_NONE;
}

/* Walk all that first leads to; the state at which a cycle closes, or ESP_IR_NONE. */
static uint32_t walk_left(const struct esp_auto *a, const bool *empty, struct left_walk *w, uint32_t first)
{
    w->n = 0;
    w->path[w->n++] = first;
    w->color[first] = 1;
    while (w->n) {
        const uint32_t v = w->path[w->n - 1], k = w->at[v]++;
        const struct esp_auto_state *q = &a->state[v];
        bool enter = k % 2 == 0;
        uint32_t to;

        if (k / 2 == q->n_call) {
            w->color[v] = 2;
            w->n--;
            continue;
        }
        to = left_edge(a, empty, q, k);
        if (to == ESP_IR_NONE || w->color[to] == 2)
            continue;
        if (w->color[to] == 0) {
            w->color[to] = 1;
            w->entered[to] = enter;
            w->path[w->n++] = to;
            continue;
        }
        for (uint32_t i = w->n; i-- > 0 && w->path[i] != to;)
            enter |= w->entered[w->path[i]];
        if (enter)
            return to;
    }
    return ESP_IR_NONE;
}

static esp_status refuse_left(struct finish *f, const bool *empty, esp_error *err)
{
    const struct esp_auto *a = f->w->a;
    struct left_walk w = {.color = esp_alloc_array(a->n_state, 1),
                          .at = esp_alloc_array(a->n_state, sizeof *w.at),
                          .path = esp_alloc_array(a->n_state, sizeof *w.path),
                          .entered = esp_alloc_array(a->n_state, sizeof *w.entered)};
    esp_status s = ESP_OK;

    if (!w.color || !w.at || !w.path || !w.entered)
        s = esp_fail(err, ESP_ENOMEM, "%s: out of memory while compiling", f->w->what);
    for (uint32_t first = 0; s == ESP_OK && first < a->n_state; first++) {
        const uint32_t at = w.color[first] ? ESP_IR_NONE : walk_left(a, empty, &w, first);

        if (at != ESP_IR_NONE)
            s = esp_fail(err, ESP_EFORMAT,
                         "%s: rule \"%s\" calls itself before anything is read (left recursion); write the "
                         "repetition with * or with the call at the end",
                         f->w->what, f->rule_at(f->user, at));
    }
    esp_free(w.entered);
    esp_free(w.path);
    esp_free(w.at);
    esp_free(w.color);
    return s;
}

static void find_classes(struct esp_auto *a)
{
    bool cut[257] = {true};
    uint32_t n = 0;

    for (uint32_t s = 0; s < a->n_state; s++)
        for (uint32_t k = 0; k < a->state[s].n_edge; k++) {
            cut[a->edge[a->state[s].edge + k].lo] = true;
            cut[a->edge[a->state[s].edge + k].hi + 1] = true;
        }
    for (uint32_t b = 0; b < 256; b++) {
        n += b > 0 && cut[b];
        a->class_of[b] = (uint8_t)n;
    }
    a->n_class = n + 1;
}

static int by_id(const void *x, const void *y)
{
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

    return (a > b) - (a < b);
}

static esp_status find_symbols(struct finish *f, esp_error *err)
{
    struct esp_auto *a = f->w->a;
    uint32_t n = 0;

    if (a->n_token == 0)
        return ESP_OK;
    a->symbol = esp_alloc_array(a->n_token, sizeof *a->symbol);
    if (!a->symbol)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory while compiling", f->w->what);
    for (uint32_t i = 0; i < a->n_token; i++)
        a->symbol[i] = a->token[i].id;
    qsort(a->symbol, a->n_token, sizeof *a->symbol, by_id);
    for (uint32_t i = 0; i < a->n_token; i++)
        if (n == 0 || a->symbol[n - 1] != a->symbol[i])
            a->symbol[n++] = a->symbol[i];
    a->n_symbol = n;
    for (uint32_t i = 0; i < a->n_token; i++)
        a->token[i].symbol =
            (uint32_t)((uint32_t *)bsearch(&a->token[i].id, a->symbol, n, sizeof *a->symbol, by_id) -
                       a->symbol);
    return ESP_OK;
}

esp_status esp_auto_finish(struct esp_dfa_work *w, esp_auto_name_fn rule_at, const void *user, esp_error *err)
{
    struct finish f = {w, rule_at, user};
    struct esp_auto *a = w->a;
    bool *empty;
    esp_status s;

    ESP_TRY(find_needs(&f, err));
    drop_dead(a);
    empty = esp_alloc_array(a->n_state, sizeof *empty);
    if (!empty)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory while compiling", w->what);
    s = find_empty(&f, empty, err);
    if (s == ESP_OK)
        s = refuse_left(&f, empty, err);
    esp_free(empty);
    ESP_TRY(s);
    find_classes(a);
    return find_symbols(&f, err);
}
