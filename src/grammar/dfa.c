/*
 * One rule's automaton made deterministic: states become sets of states, in the order in which a
 * breadth-first walk meets them. Calls and tokens are symbols like bytes, so two ways that call the same rule
 * share the call and ambiguity inside a rule is gone. Hostile rules (the classic exponential expressions) end
 * at the limit on states or steps.
 *
 * Source: Rabin and Scott, "Finite automata and their decision problems", 1959.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"

bool esp_auto_grow(void *array, uint32_t *cap, uint32_t n, uint32_t more, size_t size)
{
    uint32_t want = *cap ? *cap : 64;
    size_t bytes;
    void *p;

    if (more > UINT32_MAX / 2 - n)
        return false;
    while (want < n + more)
        want *= 2;
    if (want == *cap)
        return true;
    if (!esp_mul_size(&bytes, want, size))
        return false;
    memcpy(&p, array, sizeof p); /* array is the address of a pointer of any type */
    p = esp_realloc(p, bytes);
    if (!p)
        return false;
    memcpy(array, &p, sizeof p);
    *cap = want;
    return true;
}

esp_status esp_dfa_step(struct esp_dfa_work *w, uint64_t n, esp_error *err)
{
    w->steps += n;
    if (w->steps > ESP_LIMIT_GRAMMAR_STEPS)
        return esp_fail(err, ESP_ENOFIT, "%s: too large: compiling takes more than %u steps", w->what,
                        ESP_LIMIT_GRAMMAR_STEPS);
    return ESP_OK;
}

static esp_status no_memory(const struct esp_dfa_work *w, esp_error *err)
{
    return esp_fail(err, ESP_ENOMEM, "%s: out of memory while compiling", w->what);
}

/* Sets of numbers, each kept once: the set with number i is pool[off[i]..off[i + 1]). */
struct sets {
    uint32_t *pool, *off, *slot;
    uint32_t n, n_pool, cap_pool, cap_off, n_slot;
};

struct build {
    struct esp_dfa_work *w;
    const struct esp_ir_rule *r;
    struct sets sets;
    uint32_t base;  /* number of set 0's state */
    uint32_t *mark; /* [n_state] of the closure that met it last */
    uint32_t stamp;
    uint32_t *todo;  /* [2 * n_state + 2] */
    uint32_t *found; /* [n_state + 1] closure being made */
    uint32_t n_found;
    struct esp_ir_state *live; /* [n_state] the set's states with a symbol, being looked at */
};

static void sets_free(struct sets *s)
{
    esp_free(s->pool);
    esp_free(s->off);
    esp_free(s->slot);
}

static bool rehash(struct sets *s)
{
    uint32_t n = s->n_slot ? s->n_slot * 2 : 256;
    uint32_t *slot = esp_alloc_array(n, sizeof *slot);

    if (!slot)
        return false;
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t h = esp_hash(s->pool + s->off[i], (s->off[i + 1] - s->off[i]) * sizeof *s->pool, 0);

        while (slot[h & (n - 1)])
            h++;
        slot[h & (n - 1)] = i + 1;
    }
    esp_free(s->slot);
    s->slot = slot;
    s->n_slot = n;
    return true;
}

/* The number of v[0..n), new if it was never seen; ESP_IR_NONE without memory. */
static uint32_t sets_find(struct sets *s, const uint32_t *v, uint32_t n)
{
    uint64_t h;

    if (s->n * 2 >= s->n_slot && !rehash(s))
        return ESP_IR_NONE;
    for (h = esp_hash(v, n * sizeof *v, 0);; h++) {
        uint32_t i = s->slot[h & (s->n_slot - 1)];

        if (i == 0)
            break;
        if (s->off[i] - s->off[i - 1] == n && memcmp(s->pool + s->off[i - 1], v, n * sizeof *v) == 0)
            return i - 1;
    }
    if (!esp_auto_grow(&s->pool, &s->cap_pool, s->n_pool, n + 1, sizeof *s->pool) ||
        !esp_auto_grow(&s->off, &s->cap_off, s->n, 2, sizeof *s->off))
        return ESP_IR_NONE;
    s->off[0] = 0;
    memcpy(s->pool + s->n_pool, v, n * sizeof *v);
    s->n_pool += n;
    s->off[s->n + 1] = s->n_pool;
    s->slot[h & (s->n_slot - 1)] = s->n + 1;
    return s->n++;
}

static int by_value(const void *x, const void *y)
{
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

    return (a > b) - (a < b);
}

static void closure_begin(struct build *b)
{
    b->stamp++;
    b->n_found = 0;
}

/* Add s and all that it reaches without a symbol. Only states with a symbol, and the rule's end, count. */
static void closure_add(struct build *b, uint32_t s)
{
    uint32_t n = 0;

    b->todo[n++] = s;
    while (n) {
        const struct esp_ir_state *q;

        s = b->todo[--n];
        if (b->mark[s] == b->stamp)
            continue;
        b->mark[s] = b->stamp;
        b->w->steps++;
        q = &b->r->state[s];
        if (q->kind != ESP_IR_EPS || s == b->r->frag.end)
            b->found[b->n_found++] = s;
        if (q->kind != ESP_IR_EPS)
            continue;
        if (q->out != ESP_IR_NONE)
            b->todo[n++] = q->out;
        if (q->out2 != ESP_IR_NONE)
            b->todo[n++] = q->out2;
    }
}

static esp_status closure_end(struct build *b, uint32_t *to, esp_error *err)
{
    uint32_t i;

    ESP_TRY(esp_dfa_step(b->w, b->n_found, err));
    if (b->n_found > 1)
        qsort(b->found, b->n_found, sizeof *b->found, by_value);
    i = sets_find(&b->sets, b->found, b->n_found);
    if (i == ESP_IR_NONE)
        return no_memory(b->w, err);
    if (b->base + i >= ESP_LIMIT_GRAMMAR_DFA)
        return esp_fail(err, ESP_ENOFIT, "%s: too large: rule \"%s\" brings it above %u states", b->w->what,
                        b->r->name, ESP_LIMIT_GRAMMAR_DFA);
    *to = b->base + i;
    return ESP_OK;
}

static esp_status add_edge(struct build *b, struct esp_auto_state *q, unsigned lo, unsigned hi, uint32_t to,
                           esp_error *err)
{
    struct esp_auto *a = b->w->a;

    if (q->n_edge && a->edge[a->n_edge - 1].to == to && a->edge[a->n_edge - 1].hi + 1u == lo) {
        a->edge[a->n_edge - 1].hi = (uint8_t)hi;
        return ESP_OK;
    }
    if (a->n_edge == ESP_LIMIT_GRAMMAR_EDGES)
        return esp_fail(err, ESP_ENOFIT, "%s: too large: more than %u edges", b->w->what,
                        ESP_LIMIT_GRAMMAR_EDGES);
    if (!esp_auto_grow(&a->edge, &a->cap_edge, a->n_edge, 1, sizeof *a->edge))
        return no_memory(b->w, err);
    a->edge[a->n_edge++] = (struct esp_auto_edge){.to = to, .lo = (uint8_t)lo, .hi = (uint8_t)hi};
    q->n_edge++;
    return ESP_OK;
}

/* Edges for bytes: between two neighbouring ends of ranges all bytes behave alike. */
static esp_status byte_edges(struct build *b, struct esp_auto_state *q, uint32_t n, esp_error *err)
{
    bool cut[257] = {false};
    uint32_t from = 0, first = 0;

    for (uint32_t i = 0; i < n; i++)
        if (b->live[i].kind == ESP_IR_RANGE && b->live[i].lo <= b->live[i].hi) {
            cut[b->live[i].lo] = true;
            cut[b->live[i].hi + 1u] = true;
        }
    /* a set's states come in groups by kind: skip to the ranges once */
    while (first < n && b->live[first].kind != ESP_IR_RANGE)
        first++;
    for (uint32_t c = 1; c <= 256; c++) {
        uint32_t to;

        if (c < 256 && !cut[c])
            continue;
        closure_begin(b);
        for (uint32_t i = first; i < n; i++)
            if (b->live[i].kind == ESP_IR_RANGE && b->live[i].lo <= from && b->live[i].hi >= c - 1)
                closure_add(b, b->live[i].out);
        ESP_TRY(esp_dfa_step(b->w, 1 + (n - first) / 8, err));
        if (b->n_found) {
            ESP_TRY(closure_end(b, &to, err));
            ESP_TRY(add_edge(b, q, from, c - 1, to, err));
        }
        from = c;
    }
    return ESP_OK;
}

static int by_kind_arg(const void *x, const void *y)
{
    const struct esp_ir_state *a = x, *b = y;

    if (a->kind != b->kind)
        return a->kind > b->kind ? 1 : -1;
    return (a->arg > b->arg) - (a->arg < b->arg);
}

/* Edges for calls and tokens; live is sorted by kind, then what is called. */
static esp_status other_edges(struct build *b, struct esp_auto_state *q, uint32_t n, esp_error *err)
{
    struct esp_auto *a = b->w->a;

    for (uint32_t i = 0, j; i < n; i = j) {
        const struct esp_ir_state *s = &b->live[i];
        uint32_t to;

        closure_begin(b);
        for (j = i; j < n && b->live[j].kind == s->kind && b->live[j].arg == s->arg; j++)
            if (s->kind != ESP_IR_RANGE)
                closure_add(b, b->live[j].out);
        if (s->kind == ESP_IR_RANGE)
            continue;
        ESP_TRY(closure_end(b, &to, err));
        if (s->kind == ESP_IR_CALL) {
            if (a->n_call >= ESP_LIMIT_GRAMMAR_EDGES ||
                !esp_auto_grow(&a->call, &a->cap_call, a->n_call, 1, sizeof *a->call))
                return no_memory(b->w, err);
            a->call[a->n_call++] = (struct esp_auto_call){.start = s->arg, .back = to};
            q->n_call++;
        } else {
            if (q->n_token == UINT16_MAX ||
                !esp_auto_grow(&a->token, &a->cap_token, a->n_token, 1, sizeof *a->token))
                return no_memory(b->w, err);
            a->token[a->n_token++] = (struct esp_auto_token){.id = s->arg, .to = to};
            q->n_token++;
        }
    }
    return ESP_OK;
}

static esp_status build_state(struct build *b, uint32_t i, esp_error *err)
{
    struct esp_auto *a = b->w->a;
    struct esp_auto_state q = {.edge = a->n_edge, .call = a->n_call, .token = a->n_token};
    uint32_t n = 0;

    for (uint32_t k = b->sets.off[i]; k < b->sets.off[i + 1]; k++) {
        uint32_t s = b->sets.pool[k];

        if (s == b->r->frag.end)
            q.flags = ESP_AUTO_FINAL;
        if (b->r->state[s].kind != ESP_IR_EPS)
            b->live[n++] = b->r->state[s];
    }
    if (!(q.flags && b->r->flags & ESP_IR_FIRST)) {
        if (n > 1)
            qsort(b->live, n, sizeof *b->live, by_kind_arg);
        ESP_TRY(byte_edges(b, &q, n, err));
        ESP_TRY(other_edges(b, &q, n, err));
    }
    if (!esp_auto_grow(&a->state, &a->cap_state, a->n_state, 1, sizeof *a->state))
        return no_memory(b->w, err);
    a->state[a->n_state++] = q;
    return ESP_OK;
}

esp_status esp_dfa_build(struct esp_dfa_work *w, const struct esp_ir_rule *r, uint32_t *start, esp_error *err)
{
    struct build b = {.w = w, .r = r, .base = w->a->n_state};
    esp_status s = ESP_OK;

    b.mark = esp_alloc_array(r->n_state, sizeof *b.mark);
    b.todo = esp_alloc_array(2 * (size_t)r->n_state + 2, sizeof *b.todo);
    b.found = esp_alloc_array((size_t)r->n_state + 1, sizeof *b.found);
    b.live = esp_alloc_array((size_t)r->n_state + 1, sizeof *b.live);
    if (!b.mark || !b.todo || !b.found || !b.live) {
        s = no_memory(w, err);
        goto done;
    }
    closure_begin(&b);
    closure_add(&b, r->frag.start);
    s = closure_end(&b, start, err);
    for (uint32_t i = 0; s == ESP_OK && i < b.sets.n; i++)
        s = build_state(&b, i, err);
done:
    esp_free(b.live);
    esp_free(b.found);
    esp_free(b.todo);
    esp_free(b.mark);
    sets_free(&b.sets);
    return s;
}

/* Edges of the pair (p[0], p[1]): bytes that both have. */
static esp_status pair_edges(struct build *b, struct esp_auto_state *q, const uint32_t p[2], esp_error *err)
{
    struct esp_auto *a = b->w->a;
    uint32_t i = a->state[p[0]].edge, j = a->state[p[1]].edge;
    const uint32_t i_end = i + a->state[p[0]].n_edge, j_end = j + a->state[p[1]].n_edge;

    while (i < i_end && j < j_end) {
        const struct esp_auto_edge x = a->edge[i], y = a->edge[j];
        const unsigned lo = x.lo > y.lo ? x.lo : y.lo, hi = x.hi < y.hi ? x.hi : y.hi;

        if (lo <= hi) {
            uint32_t pair[2] = {x.to, y.to}, to;

            to = sets_find(&b->sets, pair, 2);
            if (to == ESP_IR_NONE)
                return no_memory(b->w, err);
            ESP_TRY(esp_dfa_step(b->w, 1, err));
            ESP_TRY(add_edge(b, q, lo, hi, b->base + to, err));
        }
        if (x.hi <= y.hi)
            i++;
        if (y.hi <= x.hi)
            j++;
    }
    return ESP_OK;
}

esp_status esp_dfa_both(struct esp_dfa_work *w, const struct esp_ir_rule *r, const uint32_t start[2],
                        uint32_t *out, esp_error *err)
{
    struct esp_auto *a = w->a;
    struct build b = {.w = w, .r = r, .base = a->n_state};
    esp_status s = sets_find(&b.sets, start, 2) == ESP_IR_NONE ? no_memory(w, err) : ESP_OK;

    *out = b.base;
    for (uint32_t i = 0; s == ESP_OK && i < b.sets.n; i++) {
        struct esp_auto_state q = {.edge = a->n_edge, .call = a->n_call, .token = a->n_token};
        uint32_t p[2];

        memcpy(p, b.sets.pool + b.sets.off[i], sizeof p);
        q.flags = a->state[p[0]].flags & a->state[p[1]].flags & ESP_AUTO_FINAL;
        s = pair_edges(&b, &q, p, err);
        if (s == ESP_OK && b.base + b.sets.n > ESP_LIMIT_GRAMMAR_DFA)
            s = esp_fail(err, ESP_ENOFIT, "%s: too large: rule \"%s\" brings it above %u states", w->what,
                         r->name, ESP_LIMIT_GRAMMAR_DFA);
        if (s == ESP_OK && !esp_auto_grow(&a->state, &a->cap_state, a->n_state, 1, sizeof *a->state))
            s = no_memory(w, err);
        if (s == ESP_OK)
            a->state[a->n_state++] = q;
    }
    sets_free(&b.sets);
    return s;
}
