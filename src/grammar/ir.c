/*
 * Building rules out of fragments. Failures (memory, size) are remembered in the struct esp_ir and make every
 * later call return a fragment of nothing, so that front ends read like the grammar they write.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/ir.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

/* What is repeated becomes a rule when its copies would take more states than UNIT_STATES, and above BLOCK
 * times so many of it become a rule, too. */
enum { UNIT_STATES = 1024, BLOCK = 512 };

esp_status esp_ir_init(struct esp_ir *ir, esp_error *err)
{
    memset(ir, 0, sizeof *ir);
    ir->arena = esp_arena_create(ESP_LIMIT_GRAMMAR_MEMORY);
    if (!ir->arena)
        return esp_fail(err, ESP_ENOMEM, "out of memory for a grammar");
    return ESP_OK;
}

void esp_ir_free(struct esp_ir *ir)
{
    esp_arena_destroy(ir->arena);
    esp_free(ir->rule);
    memset(ir, 0, sizeof *ir);
}

static void fail(struct esp_ir *ir, esp_status s, const char *why)
{
    if (ir->failed == ESP_OK) {
        ir->failed = s;
        ir->why = why;
    }
}

esp_status esp_ir_check(const struct esp_ir *ir, const char *what, esp_error *err)
{
    if (ir->failed == ESP_OK)
        return ESP_OK;
    return esp_fail(err, ir->failed, "%s: %s", what, ir->why);
}

uint32_t esp_ir_declare(struct esp_ir *ir, const char *name, size_t len, uint32_t at)
{
    struct esp_ir_rule *r;

    if (ir->failed != ESP_OK)
        return 0;
    if (ir->n_rule == ESP_LIMIT_GRAMMAR_RULES) {
        fail(ir, ESP_ENOFIT, "needs more than 65536 rules");
        return 0;
    }
    if (ir->n_rule == ir->cap_rule) {
        uint32_t cap = ir->cap_rule ? ir->cap_rule * 2 : 64;
        struct esp_ir_rule *p = esp_realloc(ir->rule, cap * sizeof *p);

        if (!p) {
            fail(ir, ESP_ENOMEM, "out of memory");
            return 0;
        }
        ir->rule = p;
        ir->cap_rule = cap;
    }
    r = &ir->rule[ir->n_rule];
    memset(r, 0, sizeof *r);
    r->at = at;
    r->name = esp_arena_strndup(ir->arena, name, len);
    if (!r->name) {
        fail(ir, ESP_ENOMEM, "out of memory");
        return 0;
    }
    return ir->n_rule++;
}

void esp_nfa_begin(struct esp_nfa *b, struct esp_ir *ir)
{
    memset(b, 0, sizeof *b);
    b->ir = ir;
}

void esp_nfa_drop(struct esp_nfa *b)
{
    esp_free(b->state);
    esp_nfa_begin(b, b->ir);
}

void esp_nfa_end(struct esp_nfa *b, uint32_t rule, struct esp_frag f, unsigned flags)
{
    struct esp_ir *ir = b->ir;
    struct esp_ir_rule *r;
    struct esp_ir_state *copy;

    if (ir->failed != ESP_OK) {
        esp_nfa_drop(b);
        return;
    }
    r = &ir->rule[rule];
    copy = esp_arena_alloc_array(ir->arena, b->n, sizeof *copy);
    if (!copy || b->n > ESP_LIMIT_GRAMMAR_STATES - ir->n_total) {
        fail(ir, copy ? ESP_ENOFIT : ESP_ENOMEM, "too large: it takes more than 1048576 states");
        esp_nfa_drop(b);
        return;
    }
    memcpy(copy, b->state, b->n * sizeof *copy);
    r->state = copy;
    r->n_state = b->n;
    r->frag = f;
    r->flags |= flags | ESP_IR_DEFINED;
    ir->n_total += b->n;
    esp_nfa_drop(b);
}

void esp_ir_both(struct esp_ir *ir, uint32_t rule, uint32_t x, uint32_t y)
{
    struct esp_ir_rule *r;

    if (ir->failed != ESP_OK)
        return;
    r = &ir->rule[rule];
    r->flags |= ESP_IR_DEFINED | ESP_IR_BOTH | ESP_IR_SHARED;
    r->both[0] = x;
    r->both[1] = y;
    ir->rule[x].flags |= ESP_IR_FLAT;
    ir->rule[y].flags |= ESP_IR_FLAT;
}

/* A state more; number 0 after a failure, which callers may write to as to any other. */
static uint32_t push(struct esp_nfa *b, struct esp_ir_state s)
{
    if (b->ir->failed == ESP_OK && b->n == ESP_LIMIT_GRAMMAR_STATES)
        fail(b->ir, ESP_ENOFIT, "too large: it takes more than 1048576 states");
    if (b->ir->failed == ESP_OK && b->n == b->cap) {
        uint32_t cap = b->cap ? b->cap * 2 : 256;
        struct esp_ir_state *p = esp_realloc(b->state, cap * sizeof *p);

        if (p) {
            b->state = p;
            b->cap = cap;
        } else {
            fail(b->ir, ESP_ENOMEM, "out of memory");
        }
    }
    if (b->ir->failed != ESP_OK)
        return 0;
    b->state[b->n] = s;
    return b->n++;
}

void esp_nfa_copy(struct esp_nfa *b, const struct esp_ir_state *state, uint32_t n, uint32_t by)
{
    for (uint32_t i = 0; i < n; i++) {
        struct esp_ir_state s = state[i];

        if (s.kind == ESP_IR_CALL)
            s.arg += by;
        push(b, s);
    }
}

static uint32_t eps(struct esp_nfa *b, uint32_t out, uint32_t out2)
{
    return push(b, (struct esp_ir_state){.out = out, .out2 = out2, .kind = ESP_IR_EPS});
}

uint32_t esp_nfa_node(struct esp_nfa *b)
{
    return eps(b, ESP_IR_NONE, ESP_IR_NONE);
}

void esp_nfa_link(struct esp_nfa *b, uint32_t from, uint32_t to)
{
    if (b->ir->failed != ESP_OK)
        return;
    if (b->state[from].out == ESP_IR_NONE) {
        b->state[from].out = to;
    } else if (b->state[from].out2 == ESP_IR_NONE) {
        b->state[from].out2 = to;
    } else {
        const uint32_t more = eps(b, b->state[from].out2, to);

        if (b->ir->failed == ESP_OK)
            b->state[from].out2 = more;
    }
}

static void join(struct esp_nfa *b, uint32_t from, uint32_t to)
{
    if (b->ir->failed == ESP_OK)
        b->state[from].out = to;
}

static struct esp_frag single(struct esp_nfa *b, struct esp_ir_state s)
{
    struct esp_frag f;

    f.end = eps(b, ESP_IR_NONE, ESP_IR_NONE);
    s.out = f.end;
    s.out2 = ESP_IR_NONE;
    f.start = push(b, s);
    return f;
}

struct esp_frag esp_nfa_empty(struct esp_nfa *b)
{
    uint32_t s = eps(b, ESP_IR_NONE, ESP_IR_NONE);

    return (struct esp_frag){s, s};
}

struct esp_frag esp_nfa_range(struct esp_nfa *b, unsigned lo, unsigned hi)
{
    return single(b, (struct esp_ir_state){.kind = ESP_IR_RANGE, .lo = (uint8_t)lo, .hi = (uint8_t)hi});
}

struct esp_frag esp_nfa_bytes(struct esp_nfa *b, const char *s, size_t len)
{
    struct esp_frag f;
    uint32_t next;

    f.end = next = eps(b, ESP_IR_NONE, ESP_IR_NONE);
    for (size_t i = len; i-- > 0;) {
        uint8_t c = (uint8_t)s[i];

        next = push(b, (struct esp_ir_state){
                           .kind = ESP_IR_RANGE, .lo = c, .hi = c, .out = next, .out2 = ESP_IR_NONE});
    }
    f.start = next;
    return f;
}

struct esp_frag esp_nfa_puts(struct esp_nfa *b, const char *s)
{
    return esp_nfa_bytes(b, s, strlen(s));
}

struct esp_frag esp_nfa_call(struct esp_nfa *b, uint32_t rule)
{
    return single(b, (struct esp_ir_state){.kind = ESP_IR_CALL, .arg = rule});
}

struct esp_frag esp_nfa_token(struct esp_nfa *b, uint32_t id)
{
    return single(b, (struct esp_ir_state){.kind = ESP_IR_TOKEN, .arg = id});
}

struct esp_frag esp_nfa_seq(struct esp_nfa *b, struct esp_frag f, struct esp_frag g)
{
    join(b, f.end, g.start);
    return (struct esp_frag){f.start, g.end};
}

struct esp_frag esp_nfa_alt(struct esp_nfa *b, struct esp_frag f, struct esp_frag g)
{
    struct esp_frag r;

    r.start = eps(b, f.start, g.start);
    r.end = eps(b, ESP_IR_NONE, ESP_IR_NONE);
    join(b, f.end, r.end);
    join(b, g.end, r.end);
    return r;
}

struct esp_frag esp_nfa_opt(struct esp_nfa *b, struct esp_frag f)
{
    struct esp_frag r;

    r.end = eps(b, ESP_IR_NONE, ESP_IR_NONE);
    r.start = eps(b, f.start, r.end);
    join(b, f.end, r.end);
    return r;
}

struct esp_frag esp_nfa_star(struct esp_nfa *b, struct esp_frag f)
{
    struct esp_frag r;

    r.end = eps(b, ESP_IR_NONE, ESP_IR_NONE);
    r.start = eps(b, f.start, r.end);
    join(b, f.end, r.start);
    return r;
}

/* States from..from+n of b once more at its end; the copy of fragment f. */
static struct esp_frag copy(struct esp_nfa *b, struct esp_frag f, uint32_t from, uint32_t n)
{
    uint32_t by = b->n - from;

    for (uint32_t i = 0; i < n && b->ir->failed == ESP_OK; i++) {
        struct esp_ir_state s = b->state[from + i];

        s.out = s.out == ESP_IR_NONE ? ESP_IR_NONE : s.out + by;
        s.out2 = s.out2 == ESP_IR_NONE ? ESP_IR_NONE : s.out2 + by;
        push(b, s);
    }
    return (struct esp_frag){f.start + by, f.end + by};
}

/* f is at states from..from+n and not yet joined: f min to max times, written out. */
static struct esp_frag expand(struct esp_nfa *b, struct esp_frag f, uint32_t from, uint32_t min, uint32_t max)
{
    uint32_t n = b->n - from, last = max == ESP_IR_NONE ? (min ? min : 1) : max;
    struct esp_frag r;
    uint32_t end;

    if (max == 0)
        return esp_nfa_empty(b);
    /* every copy is made of the clean f before f itself is joined to anything */
    r.start = ESP_IR_NONE;
    r.end = 0;
    end = eps(b, ESP_IR_NONE, ESP_IR_NONE);
    for (uint32_t i = 0; i < last && b->ir->failed == ESP_OK; i++) {
        struct esp_frag g = i + 1 < last ? copy(b, f, from, n) : f;
        uint32_t enter = i >= min ? eps(b, g.start, end) : g.start;

        if (r.start == ESP_IR_NONE)
            r.start = enter;
        else
            join(b, r.end, enter);
        r.end = g.end;
    }
    if (max == ESP_IR_NONE) /* the last one may come again, by way of a state that may also leave */
        join(b, r.end, eps(b, f.start, end));
    else
        join(b, r.end, end);
    return (struct esp_frag){r.start, end};
}

/* f, at states from.. of b, as a rule of its own. */
static uint32_t unit_rule(struct esp_nfa *b, struct esp_frag f, uint32_t from)
{
    const uint32_t unit = esp_ir_declare(b->ir, "a repeated part", 15, 0), n = b->n - from;
    struct esp_nfa w;

    esp_nfa_begin(&w, b->ir);
    for (uint32_t i = 0; i < n && b->ir->failed == ESP_OK; i++) {
        struct esp_ir_state s = b->state[from + i];

        s.out = s.out == ESP_IR_NONE ? ESP_IR_NONE : s.out - from;
        s.out2 = s.out2 == ESP_IR_NONE ? ESP_IR_NONE : s.out2 - from;
        push(&w, s);
    }
    esp_nfa_end(&w, unit, (struct esp_frag){f.start - from, f.end - from}, 0);
    return unit;
}

/* rule min to max times, written out */
static struct esp_frag calls(struct esp_nfa *b, uint32_t rule, uint32_t min, uint32_t max)
{
    const uint32_t mark = b->n;

    return expand(b, esp_nfa_call(b, rule), mark, min, max);
}

/* unit min to max times in blocks. */
static struct esp_frag blocks(struct esp_nfa *b, uint32_t unit, uint32_t min, uint32_t max)
{
    const uint32_t block = esp_ir_declare(b->ir, "512 repeated parts", 18, 0);
    const uint32_t q = (max - min) / BLOCK, rest = (max - min) % BLOCK;
    struct esp_frag r, g;
    struct esp_nfa w;

    esp_nfa_begin(&w, b->ir);
    r = calls(&w, unit, BLOCK, BLOCK);
    esp_nfa_end(&w, block, r, ESP_IR_SHARED);

    r = calls(b, block, min / BLOCK, min / BLOCK);
    r = esp_nfa_seq(b, r, calls(b, unit, min % BLOCK, min % BLOCK));
    if (max == ESP_IR_NONE)
        return esp_nfa_seq(b, r, calls(b, unit, 0, ESP_IR_NONE));
    g = calls(b, block, q, q);
    g = esp_nfa_seq(b, g, calls(b, unit, 0, rest));
    if (q > 0) {
        const struct esp_frag h = calls(b, block, 0, q - 1);

        g = esp_nfa_alt(b, g, esp_nfa_seq(b, h, calls(b, unit, 0, BLOCK - 1)));
    }
    return esp_nfa_seq(b, r, g);
}

struct esp_frag esp_nfa_repeat(struct esp_nfa *b, struct esp_frag f, uint32_t mark, uint32_t min,
                               uint32_t max)
{
    uint64_t times = max == ESP_IR_NONE ? min : max;

    if (b->ir->failed != ESP_OK)
        return f;
    if (times > ESP_LIMIT_GRAMMAR_REPEAT) {
        fail(b->ir, ESP_ENOFIT, "a repetition count above 1048576");
        return f;
    }
    if (times > 1 && times * (b->n - mark) > UNIT_STATES) {
        const uint32_t unit = unit_rule(b, f, mark);

        return times > BLOCK ? blocks(b, unit, min, max) : calls(b, unit, min, max);
    }
    return expand(b, f, mark, min, max);
}
