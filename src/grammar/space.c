/*
 * Sets of configurations and the moves between them.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/space.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"

enum {
    WAYS = ESP_LIMIT_GRAMMAR_WAYS,
    MET = 4 * WAYS, /* configurations looked at to make one set, those that wait for nothing included */
    MET_SLOTS = 4 * MET,
    DEPTH = ESP_LIMIT_GRAMMAR_DEPTH
};

/* The set being made. */
struct esp_space_work {
    struct esp_config met[MET]; /* all looked at or to be */
    uint32_t n_met;
    struct esp_config keep[WAYS];
    uint32_t n_keep;
    uint32_t slot[MET_SLOTS]; /* stamp << 12 | place in met */
    uint32_t stamp;
    uint16_t peak;
    bool ends, full, ways, nomem;
};

_Static_assert(MET <= 1 << 12, "a place in met takes 12 bits of a slot");

static uint64_t hash_pair(uint32_t a, uint32_t b)
{
    return esp_hash_u64((uint64_t)a << 32 | b);
}

static void begin(struct esp_space_work *w)
{
    w->n_met = w->n_keep = 0;
    w->peak = 0;
    w->ends = w->full = w->ways = w->nomem = false;
    if (++w->stamp == 1u << 20) {
        memset(w->slot, 0, sizeof w->slot);
        w->stamp = 1;
    }
}

static void meet(struct esp_space *sp, uint32_t state, uint32_t stack)
{
    struct esp_space_work *w = sp->work;
    const uint32_t high = sp->stack[stack].depth + sp->a->state[state].need;
    uint64_t h = hash_pair(state, stack);

    if (high > DEPTH)
        return;
    for (;; h++) {
        const uint32_t e = w->slot[h % MET_SLOTS];

        if (e >> 12 != w->stamp)
            break;
        if (w->met[e & 0xfff].state == state && w->met[e & 0xfff].stack == stack)
            return;
    }
    if (w->n_met == MET) {
        w->ways = true;
        return;
    }
    w->slot[h % MET_SLOTS] = w->stamp << 12 | w->n_met;
    w->met[w->n_met++] = (struct esp_config){state, stack};
    if (high > w->peak)
        w->peak = (uint16_t)high;
}

/* slots [n] of numbers + 1, hashed anew at twice the size */
static uint32_t *new_slots(uint32_t old, uint32_t *n)
{
    uint32_t size = old ? old * 2 : 256;
    uint32_t *s = esp_alloc_array(size, sizeof *s);

    if (s)
        *n = size;
    return s;
}

static bool rehash_stacks(struct esp_space *sp)
{
    uint32_t n;
    uint32_t *slot = new_slots(sp->n_stack_slot, &n);

    if (!slot)
        return false;
    for (uint32_t i = 1; i < sp->n_stack; i++) {
        uint64_t h = hash_pair(sp->stack[i].back, sp->stack[i].under);

        while (slot[h & (n - 1)])
            h++;
        slot[h & (n - 1)] = i + 1;
    }
    esp_free(sp->stack_slot);
    sp->stack_slot = slot;
    sp->n_stack_slot = n;
    return true;
}

/* The stack with back on top of under; 0 with w->full or w->nomem set. */
static uint32_t stack_find(struct esp_space *sp, uint32_t back, uint32_t under)
{
    uint64_t h = hash_pair(back, under);

    if (sp->n_stack * 2 >= sp->n_stack_slot && !rehash_stacks(sp)) {
        sp->work->nomem = true;
        return 0;
    }
    for (;; h++) {
        const uint32_t i = sp->stack_slot[h & (sp->n_stack_slot - 1)];

        if (i == 0)
            break;
        if (sp->stack[i - 1].back == back && sp->stack[i - 1].under == under)
            return i - 1;
    }
    if (sp->n_stack >= sp->max_stack) {
        sp->work->full = true;
        return 0;
    }
    if (!esp_auto_grow(&sp->stack, &sp->cap_stack, sp->n_stack, 1, sizeof *sp->stack)) {
        sp->work->nomem = true;
        return 0;
    }
    sp->stack_slot[h & (sp->n_stack_slot - 1)] = sp->n_stack + 1;
    sp->stack[sp->n_stack] = (struct esp_space_stack){
        .back = back, .under = under, .follow = ESP_SPACE_NONE, .depth = sp->stack[under].depth + 1};
    return sp->n_stack++;
}

static void enter_calls(struct esp_space *sp, const struct esp_auto_state *q, uint32_t stack)
{
    const struct esp_auto *a = sp->a;
    const uint32_t depth = sp->stack[stack].depth;

    for (uint32_t k = 0; k < q->n_call; k++) {
        const struct esp_auto_call *c = &a->call[q->call + k];
        uint32_t top = stack;

        if (depth + a->state[c->back].need > DEPTH)
            continue;
        if (!(a->state[c->back].flags & ESP_AUTO_SINK)) {
            if (depth + 1 + a->state[c->start].need > DEPTH)
                continue;
            top = stack_find(sp, c->back, stack);
            if (sp->work->full || sp->work->nomem)
                return;
        }
        meet(sp, c->start, top);
    }
}

/* Everything that what was met calls, and returns to. */
static void close_set(struct esp_space *sp)
{
    struct esp_space_work *w = sp->work;

    for (uint32_t i = 0; i < w->n_met && !w->full && !w->nomem && !w->ways; i++) {
        const struct esp_config c = w->met[i];
        const struct esp_auto_state *q = &sp->a->state[c.state];

        if (q->n_edge || q->n_token) {
            if (w->n_keep == WAYS) {
                w->ways = true;
                return;
            }
            w->keep[w->n_keep++] = c;
        }
        if (q->flags & ESP_AUTO_FINAL) {
            if (c.stack == 0)
                w->ends = true;
            else
                meet(sp, sp->stack[c.stack].back, sp->stack[c.stack].under);
        }
        enter_calls(sp, q, c.stack);
    }
}

static int by_config(const void *x, const void *y)
{
    const struct esp_config *a = x, *b = y;

    if (a->state != b->state)
        return a->state > b->state ? 1 : -1;
    return (a->stack > b->stack) - (a->stack < b->stack);
}

static uint64_t set_hash(const struct esp_config *c, uint32_t n, bool ends)
{
    return esp_hash(c, n * sizeof *c, ends);
}

static bool rehash_sets(struct esp_space *sp)
{
    uint32_t n;
    uint32_t *slot = new_slots(sp->n_set_slot, &n);

    if (!slot)
        return false;
    for (uint32_t i = 0; i < sp->n_set; i++) {
        uint64_t h = set_hash(sp->config + sp->set[i].off, sp->set[i].n, sp->set[i].ends);

        while (slot[h & (n - 1)])
            h++;
        slot[h & (n - 1)] = i + 1;
    }
    esp_free(sp->set_slot);
    sp->set_slot = slot;
    sp->n_set_slot = n;
    return true;
}

static uint32_t fault(struct esp_space *sp, enum esp_space_fault f)
{
    sp->fault = f;
    return ESP_SPACE_NONE;
}

/* The known set that is in work, or ESP_SPACE_NONE and where its number belongs. */
static uint32_t known_set(const struct esp_space *sp, uint32_t *slot)
{
    const struct esp_space_work *w = sp->work;

    for (uint64_t h = set_hash(w->keep, w->n_keep, w->ends);; h++) {
        const uint32_t i = sp->set_slot[h & (sp->n_set_slot - 1)];
        const struct esp_space_set *s;

        *slot = (uint32_t)(h & (sp->n_set_slot - 1));
        if (i == 0)
            return ESP_SPACE_NONE;
        s = &sp->set[i - 1];
        if (s->n == w->n_keep && s->ends == w->ends &&
            (s->n == 0 || memcmp(sp->config + s->off, w->keep, s->n * sizeof *w->keep) == 0))
            return i - 1;
    }
}

/* The number of the set in work. */
static uint32_t set_find(struct esp_space *sp)
{
    const struct esp_space_work *w = sp->work;
    uint32_t slot, i;

    if (w->nomem || (sp->n_set * 2 >= sp->n_set_slot && !rehash_sets(sp)))
        return fault(sp, ESP_SPACE_NOMEM);
    if (w->full)
        return fault(sp, ESP_SPACE_FULL);
    if (w->ways) {
        sp->fault = ESP_SPACE_WAYS;
        return ESP_SPACE_DEAD;
    }
    if (w->n_keep > 1)
        qsort(sp->work->keep, w->n_keep, sizeof *w->keep, by_config);
    i = known_set(sp, &slot);
    if (i != ESP_SPACE_NONE)
        return i;
    if (sp->n_set >= sp->max_set || w->n_keep > sp->max_config - sp->n_config)
        return fault(sp, ESP_SPACE_FULL);
    if (!esp_auto_grow(&sp->set, &sp->cap_set, sp->n_set, 1, sizeof *sp->set) ||
        !esp_auto_grow(&sp->config, &sp->cap_config, sp->n_config, w->n_keep, sizeof *sp->config))
        return fault(sp, ESP_SPACE_NOMEM);
    memcpy(sp->config + sp->n_config, w->keep, w->n_keep * sizeof *w->keep);
    sp->set_slot[slot] = sp->n_set + 1;
    sp->set[sp->n_set] = (struct esp_space_set){
        .off = sp->n_config, .n = w->n_keep, .row = ESP_SPACE_NONE, .peak = w->peak, .ends = w->ends};
    sp->n_config += w->n_keep;
    return sp->n_set++;
}

/* Memory for nothing but the bottom of stacks and the dead set. */
static bool init_arrays(struct esp_space *sp)
{
    if (!esp_auto_grow(&sp->stack, &sp->cap_stack, 0, 1, sizeof *sp->stack) ||
        !esp_auto_grow(&sp->config, &sp->cap_config, 0, 1, sizeof *sp->config))
        return false;
    sp->stack[0] = (struct esp_space_stack){.back = ESP_IR_NONE, .under = 0, .follow = ESP_SPACE_NONE};
    sp->n_stack = 1;
    begin(sp->work);
    return set_find(sp) == ESP_SPACE_DEAD;
}

static void free_arrays(struct esp_space *sp)
{
    esp_free(sp->set);
    esp_free(sp->config);
    esp_free(sp->stack);
    esp_free(sp->row);
    esp_free(sp->set_slot);
    esp_free(sp->stack_slot);
}

esp_status esp_space_init(struct esp_space *sp, const struct esp_auto *a, uint32_t max_set, esp_error *err)
{
    memset(sp, 0, sizeof *sp);
    sp->a = a;
    sp->max_set = max_set;
    sp->max_config = max_set * 16 + 4 * WAYS;
    sp->max_stack = max_set * 8 + 4 * WAYS;
    sp->width = a->n_class + a->n_symbol;
    sp->work = esp_alloc(sizeof *sp->work);
    if (!sp->work || !init_arrays(sp)) {
        esp_space_free(sp);
        return esp_fail(err, ESP_ENOMEM, "out of memory for a grammar's states");
    }
    return ESP_OK;
}

void esp_space_free(struct esp_space *sp)
{
    free_arrays(sp);
    esp_free(sp->work);
    memset(sp, 0, sizeof *sp);
}

size_t esp_space_bytes(const struct esp_space *sp)
{
    return sizeof *sp->work + sp->cap_set * sizeof *sp->set + sp->cap_config * sizeof *sp->config +
           sp->cap_stack * sizeof *sp->stack + sp->cap_row * (size_t)sp->width * sizeof *sp->row +
           (sp->n_set_slot + (size_t)sp->n_stack_slot) * sizeof *sp->set_slot;
}

/* stack of old, built in sp */
static uint32_t copy_stack(struct esp_space *sp, const struct esp_space *old, uint32_t stack)
{
    uint32_t chain[DEPTH + 1], n = 0, to = 0;

    for (; stack && n <= DEPTH; stack = old->stack[stack].under)
        chain[n++] = old->stack[stack].back;
    while (n)
        to = stack_find(sp, chain[--n], to);
    return to;
}

bool esp_space_compact(struct esp_space *sp, uint32_t *live, uint32_t n)
{
    struct esp_space fresh = *sp;
    uint32_t *to = esp_alloc_array((size_t)n + 1, sizeof *to);
    bool ok = to != NULL;

    fresh.set = NULL;
    fresh.config = NULL;
    fresh.stack = NULL;
    fresh.row = fresh.set_slot = fresh.stack_slot = NULL;
    fresh.n_set = fresh.n_config = fresh.n_stack = fresh.n_row = 0;
    fresh.cap_set = fresh.cap_config = fresh.cap_stack = fresh.cap_row = fresh.n_set_slot =
        fresh.n_stack_slot = 0;
    ok = ok && init_arrays(&fresh);
    for (uint32_t i = 0; ok && i < n; i++) {
        const struct esp_space_set s = sp->set[live[i]];
        struct esp_space_work *w = fresh.work;

        begin(w);
        for (uint32_t k = 0; k < s.n; k++)
            w->keep[w->n_keep++] = (struct esp_config){sp->config[s.off + k].state,
                                                       copy_stack(&fresh, sp, sp->config[s.off + k].stack)};
        w->ends = s.ends;
        w->peak = s.peak;
        to[i] = set_find(&fresh);
        ok = to[i] != ESP_SPACE_NONE;
    }
    if (ok) {
        memcpy(live, to, n * sizeof *live);
        free_arrays(sp);
        *sp = fresh;
    } else {
        free_arrays(&fresh);
    }
    esp_free(to);
    return ok;
}

uint32_t esp_space_start(struct esp_space *sp)
{
    begin(sp->work);
    meet(sp, sp->a->start, 0);
    close_set(sp);
    return set_find(sp);
}

uint32_t esp_space_single(struct esp_space *sp, uint32_t state, uint32_t stack)
{
    begin(sp->work);
    sp->work->keep[sp->work->n_keep++] = (struct esp_config){state, stack};
    sp->work->peak = (uint16_t)(sp->stack[stack].depth + sp->a->state[state].need);
    return set_find(sp);
}

uint32_t esp_space_follow(struct esp_space *sp, uint32_t stack)
{
    uint32_t to = sp->stack[stack].follow;

    if (to != ESP_SPACE_NONE)
        return to;
    begin(sp->work);
    meet(sp, sp->stack[stack].back, sp->stack[stack].under);
    close_set(sp);
    to = set_find(sp);
    if (to != ESP_SPACE_NONE)
        sp->stack[stack].follow = to;
    return to;
}

static bool has_row(struct esp_space *sp, uint32_t set)
{
    if (sp->set[set].row != ESP_SPACE_NONE)
        return true;
    if (!esp_auto_grow(&sp->row, &sp->cap_row, sp->n_row, 1, sp->width * sizeof *sp->row))
        return false;
    memset(sp->row + (size_t)sp->n_row * sp->width, 0xff, sp->width * sizeof *sp->row);
    sp->set[set].row = sp->n_row++;
    return true;
}

/* Where the configuration c goes with a byte of that class, or a token. */
static void move_config(struct esp_space *sp, struct esp_config c, uint32_t symbol)
{
    const struct esp_auto *a = sp->a;
    const struct esp_auto_state *q = &a->state[c.state];

    if (symbol >= a->n_class) {
        for (uint32_t k = 0; k < q->n_token; k++)
            if (a->token[q->token + k].symbol == symbol - a->n_class)
                meet(sp, a->token[q->token + k].to, c.stack);
        return;
    }
    for (uint32_t lo = 0, hi = q->n_edge; lo < hi;) {
        const uint32_t mid = (lo + hi) / 2;
        const struct esp_auto_edge *e = &a->edge[q->edge + mid];

        if (symbol < a->class_of[e->lo]) {
            hi = mid;
        } else if (symbol > a->class_of[e->hi]) {
            lo = mid + 1;
        } else {
            meet(sp, e->to, c.stack);
            return;
        }
    }
}

uint32_t esp_space_move(struct esp_space *sp, uint32_t set, uint32_t symbol)
{
    const struct esp_space_set s = sp->set[set];
    uint32_t to;

    if (!has_row(sp, set))
        return fault(sp, ESP_SPACE_NOMEM);
    begin(sp->work);
    for (uint32_t k = 0; k < s.n; k++)
        move_config(sp, sp->config[s.off + k], symbol);
    close_set(sp);
    to = set_find(sp);
    if (to != ESP_SPACE_NONE && !(to == ESP_SPACE_DEAD && sp->work->ways))
        sp->row[(size_t)sp->set[set].row * sp->width + symbol] = to;
    return to;
}
