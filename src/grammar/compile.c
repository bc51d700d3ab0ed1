/*
 * From rules to one automaton: order the rules so that those called come first, copy small ones into their
 * callers, make each deterministic, and join them. What cannot work is refused in finish.c.
 *
 * Copying decides how good masks are. A rule whose end can be told only by what follows (a run of letters)
 * would leave the meaning of almost every token to the stack, so it is always copied; a rule that ends with a
 * byte of its own (a quoted string) is better shared, for then one mask serves all places that call it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/automaton.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

enum {
    SMALL = 64,          /* states of a rule that is copied anywhere */
    ONCE = 2048,         /* of one that has a single caller */
    CHAR = 1024,         /* of one for a character or a few, which sits in the loops of others */
    OPEN = 16384,        /* of one whose end is open */
    CALLER_MAX = 131072, /* a caller that has grown to this gets no more copies */
    WIDE = 64            /* bytes out of one state that make it one of running text */
};

struct rule_info {
    uint32_t low, index; /* Tarjan */
    uint32_t next_call;  /* where the walk stopped in the rule's states */
    uint32_t uses;
    uint32_t start; /* in the automaton */
    bool on_stack, copied, flat;
    bool cycle, self; /* calls itself through others, directly */
};

struct compiler {
    const struct esp_ir *ir;
    const char *what;
    struct esp_dfa_work w;
    struct rule_info *info;   /* [n_rule] */
    struct esp_ir_rule *rule; /* [n_rule] with their callees copied in */
    uint32_t *order;          /* [n_order] callees first */
    uint32_t n_order;
    uint32_t *path, *stack; /* [n_rule] */
};

/* Number of the k-th thing that r depends on, from *at on; false at the end. */
static bool next_dependency(const struct esp_ir_rule *r, uint32_t *at, uint32_t *to)
{
    if (r->flags & ESP_IR_BOTH) {
        if (*at == 2)
            return false;
        *to = r->both[(*at)++];
        return true;
    }
    for (; *at < r->n_state; (*at)++)
        if (r->state[*at].kind == ESP_IR_CALL) {
            *to = r->state[(*at)++].arg;
            return true;
        }
    return false;
}

/* Tarjan's components, with a stack of our own: gives rules in the order callees first. */
static void order_rules(struct compiler *c)
{
    uint32_t n_path = 0, n_stack = 0, index = 0;

    c->path[n_path++] = c->ir->root;
    while (n_path) {
        const uint32_t v = c->path[n_path - 1];
        struct rule_info *i = &c->info[v];
        uint32_t to;

        if (i->index == 0) {
            i->index = i->low = ++index;
            c->stack[n_stack++] = v;
            i->on_stack = true;
        }
        if (next_dependency(&c->ir->rule[v], &i->next_call, &to)) {
            struct rule_info *t = &c->info[to];

            t->uses++;
            i->self |= to == v;
            if (t->index == 0)
                c->path[n_path++] = to;
            else if (t->on_stack && t->index < i->low)
                i->low = t->index;
            continue;
        }
        n_path--;
        if (n_path && c->info[c->path[n_path - 1]].low > i->low)
            c->info[c->path[n_path - 1]].low = i->low;
        if (i->low != i->index)
            continue;
        for (uint32_t u, size = 0;; size++) {
            u = c->stack[--n_stack];
            c->info[u].on_stack = false;
            c->info[u].cycle = u != v || size > 0;
            c->order[c->n_order++] = u;
            if (u == v)
                break;
        }
    }
}

/* A rule whose last act is to call itself goes back to its start instead, which needs no stack. Other calls
 * of itself: true. */
static bool calls_itself(struct esp_ir_rule *r, uint32_t self)
{
    bool left = false;

    for (uint32_t i = 0; i < r->n_state; i++) {
        struct esp_ir_state *s = &r->state[i];
        uint32_t at = s->out;

        if (s->kind != ESP_IR_CALL || s->arg != self)
            continue;
        for (uint32_t hops = 0; at != r->frag.end && hops < 64; hops++) {
            if (r->state[at].kind != ESP_IR_EPS || r->state[at].out2 != ESP_IR_NONE ||
                r->state[at].out == ESP_IR_NONE)
                break;
            at = r->state[at].out;
        }
        if (at == r->frag.end)
            *s = (struct esp_ir_state){.kind = ESP_IR_EPS, .out = r->frag.start, .out2 = ESP_IR_NONE};
        else
            left = true;
    }
    return left;
}

/* Where a way out of s leads, past states that only pass on. */
static uint32_t pass_on(const struct esp_ir_rule *r, uint32_t s)
{
    for (uint32_t hops = 0; s != ESP_IR_NONE && s != r->frag.end && hops < 256; hops++) {
        if (r->state[s].kind != ESP_IR_EPS || r->state[s].out2 != ESP_IR_NONE ||
            r->state[s].out == ESP_IR_NONE)
            break;
        s = r->state[s].out;
    }
    return s;
}

/* Drop states that only pass on and those that nothing leads to, so that copies of r are small. */
static esp_status shrink(struct compiler *c, struct esp_ir_rule *r, esp_error *err)
{
    uint32_t *to = esp_alloc_array((size_t)r->n_state + 1, sizeof *to); /* new number + 1 */
    uint32_t *old = esp_alloc_array((size_t)r->n_state + 1, sizeof *old), n = 0;
    struct esp_ir_state *kept = esp_alloc_array((size_t)r->n_state + 1, sizeof *kept);
    esp_status s =
        to && old && kept ? ESP_OK : esp_fail(err, ESP_ENOMEM, "%s: out of memory while compiling", c->what);

    if (s == ESP_OK) {
        const uint32_t first[2] = {pass_on(r, r->frag.start), r->frag.end};

        for (int k = 0; k < 2; k++)
            if (!to[first[k]]) {
                old[n++] = first[k];
                to[first[k]] = n;
            }
        for (uint32_t i = 0; i < n; i++) {
            struct esp_ir_state q = r->state[old[i]];
            uint32_t *way[2] = {&q.out, &q.out2};

            for (int k = 0; k < 2; k++) {
                const uint32_t t = pass_on(r, *way[k]);

                if (t == ESP_IR_NONE)
                    continue;
                if (!to[t]) {
                    old[n++] = t;
                    to[t] = n;
                }
                *way[k] = to[t] - 1;
            }
            kept[i] = q;
        }
        r->frag = (struct esp_frag){to[first[0]] - 1, to[r->frag.end] - 1};
        r->n_state = n;
        memcpy(r->state, kept, n * sizeof *kept);
    }
    esp_free(kept);
    esp_free(old);
    esp_free(to);
    return s;
}

/* r with the rules copied in that are to be copied. */
static esp_status copy_callees(struct compiler *c, uint32_t v, esp_error *err)
{
    const struct esp_ir_rule *from = &c->ir->rule[v];
    struct esp_ir_rule *r = &c->rule[v];
    uint32_t cap = 0, n = from->n_state;

    *r = *from;
    r->state = NULL;
    if (!esp_auto_grow(&r->state, &cap, 0, n + 1, sizeof *r->state))
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory while compiling", c->what);
    if (n)
        memcpy(r->state, from->state, n * sizeof *r->state);
    for (uint32_t i = 0; i < n; i++) {
        const struct esp_ir_rule *callee;
        uint32_t out = r->state[i].out, by = n;

        if (r->state[i].kind != ESP_IR_CALL || !c->info[r->state[i].arg].copied)
            continue;
        callee = &c->rule[r->state[i].arg];
        if (c->info[v].flat && n + callee->n_state > ESP_LIMIT_GRAMMAR_STATES)
            return esp_fail(err, ESP_ENOFIT, "%s: too large: rule \"%s\" takes more than %u states", c->what,
                            r->name, ESP_LIMIT_GRAMMAR_STATES);
        if (!c->info[v].flat && n + callee->n_state > CALLER_MAX)
            continue;
        ESP_TRY(esp_dfa_step(&c->w, callee->n_state, err));
        if (!esp_auto_grow(&r->state, &cap, n, callee->n_state, sizeof *r->state))
            return esp_fail(err, ESP_ENOMEM, "%s: out of memory while compiling", c->what);
        for (uint32_t k = 0; k < callee->n_state; k++) {
            struct esp_ir_state s = callee->state[k];

            s.out += s.out == ESP_IR_NONE ? 0 : by;
            s.out2 += s.out2 == ESP_IR_NONE ? 0 : by;
            r->state[n++] = s;
        }
        r->state[i] =
            (struct esp_ir_state){.kind = ESP_IR_EPS, .out = callee->frag.start + by, .out2 = ESP_IR_NONE};
        r->state[callee->frag.end + by].out = out;
    }
    r->n_state = n;
    if (c->info[v].self)
        c->info[v].self = calls_itself(r, v);
    return shrink(c, r, err);
}

/* Whether bytes can lead from a state of the last rule back to itself: states are removed while nothing leads
 * in. */
static bool has_loop(const struct esp_auto *a, uint32_t from)
{
    const uint32_t n = a->n_state - from;
    uint32_t *in = esp_alloc_array(n, sizeof *in), *free_state = esp_alloc_array(n, sizeof *free_state);
    uint32_t n_free = 0, removed = 0;

    for (uint32_t s = 0; in && s < n; s++)
        for (uint32_t k = 0; k < a->state[from + s].n_edge; k++)
            in[a->edge[a->state[from + s].edge + k].to - from]++;
    for (uint32_t s = 0; in && free_state && s < n; s++)
        if (in[s] == 0)
            free_state[n_free++] = s;
    while (removed < n_free) {
        const struct esp_auto_state *q = &a->state[from + free_state[removed++]];

        for (uint32_t k = 0; k < q->n_edge; k++)
            if (--in[a->edge[q->edge + k].to - from] == 0)
                free_state[n_free++] = a->edge[q->edge + k].to - from;
    }
    esp_free(free_state);
    esp_free(in);
    return removed < n; /* also without memory, when it only costs speed */
}

static bool decide_copy(const struct compiler *c, uint32_t v)
{
    const struct esp_auto *a = c->w.a;
    const struct esp_ir_rule *r = &c->rule[v];
    bool open = false, wide = false;

    if (c->info[v].cycle || c->info[v].self || r->flags & (ESP_IR_SHARED | ESP_IR_BOTH | ESP_IR_FIRST))
        return false;
    for (uint32_t s = c->info[v].start; s < a->n_state; s++) {
        const struct esp_auto_state *q = &a->state[s];
        uint32_t n = 0;

        open |= q->flags & ESP_AUTO_FINAL && q->n_edge + q->n_call;
        for (uint32_t k = 0; k < q->n_edge; k++) {
            const struct esp_auto_edge *e = &a->edge[q->edge + k];

            n += e->hi - e->lo + 1u;
        }
        wide |= n >= WIDE;
    }
    if (wide && open)
        return r->n_state <= OPEN;
    if (wide)
        return r->n_state <= CHAR && !has_loop(a, c->info[v].start);
    return r->n_state <= (c->info[v].uses == 1 ? ONCE : SMALL);
}

/* What a flat rule calls is flat itself, and copied. */
static void spread_flat(struct compiler *c)
{
    for (uint32_t i = c->n_order; i-- > 0;) { /* callers first */
        const uint32_t v = c->order[i];
        uint32_t at = 0, to;

        if (!c->info[v].flat && !(c->ir->rule[v].flags & ESP_IR_FLAT))
            continue;
        c->info[v].flat = true;
        while (!(c->ir->rule[v].flags & ESP_IR_BOTH) && next_dependency(&c->ir->rule[v], &at, &to))
            c->info[to].flat = true;
    }
}

static esp_status build_rules(struct compiler *c, esp_error *err)
{
    spread_flat(c);
    for (uint32_t i = 0; i < c->n_order; i++) {
        const uint32_t v = c->order[i];
        const struct esp_ir_rule *r = &c->ir->rule[v];

        if (r->flags & ESP_IR_BOTH) {
            uint32_t start[2] = {c->info[r->both[0]].start, c->info[r->both[1]].start};

            c->rule[v] = *r;
            c->rule[v].state = NULL;
            ESP_TRY(esp_dfa_both(&c->w, r, start, &c->info[v].start, err));
            continue;
        }
        ESP_TRY(copy_callees(c, v, err));
        ESP_TRY(esp_dfa_build(&c->w, &c->rule[v], &c->info[v].start, err));
        c->info[v].copied = c->info[v].flat || decide_copy(c, v);
        if (!c->info[v].copied) {
            esp_free(c->rule[v].state);
            c->rule[v].state = NULL;
        }
    }
    return ESP_OK;
}

/* Name of the rule that a state belongs to, for messages. */
static const char *rule_at(const void *user, uint32_t state)
{
    const struct compiler *c = user;
    const char *name = "?";
    uint32_t best = 0;

    for (uint32_t i = 0; i < c->n_order; i++) {
        const uint32_t v = c->order[i];

        if (c->info[v].start <= state && c->info[v].start >= best) {
            best = c->info[v].start;
            name = c->ir->rule[v].name;
        }
    }
    return name;
}

static esp_status finish(struct compiler *c, esp_error *err)
{
    struct esp_auto *a = c->w.a;

    for (uint32_t i = 0; i < a->n_call; i++)
        a->call[i].start = c->info[a->call[i].start].start;
    a->start = c->info[c->ir->root].start;
    return esp_auto_finish(&c->w, rule_at, c, err);
}

esp_status esp_auto_build(struct esp_auto *out, const struct esp_ir *ir, const char *what, esp_error *err)
{
    struct esp_auto a = {0};
    struct compiler c = {.ir = ir, .what = what, .w = {.a = &a, .what = what}};
    esp_status s = ESP_OK;

    c.info = esp_alloc_array(ir->n_rule, sizeof *c.info);
    c.rule = esp_alloc_array(ir->n_rule, sizeof *c.rule);
    c.order = esp_alloc_array(ir->n_rule, sizeof *c.order);
    c.path = esp_alloc_array(ir->n_rule, sizeof *c.path);
    c.stack = esp_alloc_array(ir->n_rule, sizeof *c.stack);
    if (!c.info || !c.rule || !c.order || !c.path || !c.stack) {
        s = esp_fail(err, ESP_ENOMEM, "%s: out of memory while compiling", what);
        goto done;
    }
    order_rules(&c);
    s = build_rules(&c, err);
    if (s == ESP_OK)
        s = finish(&c, err);
done:
    for (uint32_t i = 0; c.rule && i < ir->n_rule; i++)
        esp_free(c.rule[i].state);
    esp_free(c.stack);
    esp_free(c.path);
    esp_free(c.order);
    esp_free(c.rule);
    esp_free(c.info);
    if (s == ESP_OK)
        *out = a;
    else
        esp_auto_free(&a);
    return s;
}

void esp_auto_free(struct esp_auto *a)
{
    esp_free(a->state);
    esp_free(a->edge);
    esp_free(a->call);
    esp_free(a->token);
    esp_free(a->symbol);
    memset(a, 0, sizeof *a);
}

size_t esp_auto_bytes(const struct esp_auto *a)
{
    return a->cap_state * sizeof *a->state + a->cap_edge * sizeof *a->edge + a->cap_call * sizeof *a->call +
           a->cap_token * sizeof *a->token + a->n_token * sizeof *a->symbol;
}
