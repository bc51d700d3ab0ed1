/*
 * Attention over the paged cache. Each KV head's cache is read once for all query heads that share it and for
 * a block of tokens. Positions are reduced in a fixed tree that no schedule changes: spans (the pages) merge
 * in ascending order within a group of ATTEND_GROUP_SPANS, groups merge in ascending order. Exact pages and
 * coded ones have groups of their own. Long contexts with few query rows run their groups in parallel and
 * merge afterwards; the bits are the same.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum {
    SPLIT_ROWS = 16 /* sequences with at most this many new rows run groups in parallel */
};

struct shape {
    uint32_t n_head, n_kv, rep, head_dim;
    size_t part; /* floats of a partial: m, l, then acc padded to whole cache lines */
};

static struct shape shape_of(const struct esp_plan *p, const struct esp_op *op)
{
    const struct esp_layout *l = &p->pools.layout;

    return (struct shape){op->n_head, l->n_kv_head, op->n_head / l->n_kv_head, l->head_dim,
                          l->head_dim + 16u};
}

static uint32_t most_rep(const struct esp_tape *t, const struct esp_layout *l)
{
    uint32_t rep = 0;

    for (uint32_t i = 0; i < t->n_op; i++)
        if (t->ops[i].kind == ESP_OP_ATTEND && t->ops[i].n_head / l->n_kv_head > rep)
            rep = t->ops[i].n_head / l->n_kv_head;
    return rep;
}

/* Per thread: queries, a group's (m, l, acc), the total's, visible counts, and the kernel's own scratch. */
size_t esp_cpu_attend_thread_floats(const struct esp_tape *t, const struct esp_layout *l)
{
    uint32_t n_query = most_rep(t, l) * ATTEND_BLOCK_TOKENS;

    return (size_t)n_query * (3 * (size_t)l->head_dim + 8) + esp_attend_scratch_floats(n_query) + 64;
}

/* First page of group g, which is where the one before it ends. */
static uint32_t group_page(const struct esp_layout *l, uint32_t g)
{
    const uint32_t exact = (l->exact_pages + ATTEND_GROUP_SPANS - 1) / ATTEND_GROUP_SPANS;

    return g < exact ? g * ATTEND_GROUP_SPANS : l->exact_pages + (g - exact) * ATTEND_GROUP_SPANS;
}

/* Groups of the first `positions`. */
static uint32_t groups_of(const struct esp_layout *l, uint32_t positions)
{
    const uint32_t pages = esp_layout_pages(l, positions),
                   exact = pages < l->exact_pages ? pages : l->exact_pages;

    return (exact + ATTEND_GROUP_SPANS - 1) / ATTEND_GROUP_SPANS +
           (pages - exact + ATTEND_GROUP_SPANS - 1) / ATTEND_GROUP_SPANS;
}

/* Partials of all groups of split rows: at most SPLIT_ROWS rows of each sequence. */
size_t esp_cpu_attend_split_floats(const struct esp_tape *t, const struct esp_layout *l,
                                   const struct esp_plan_opts *o)
{
    uint32_t groups = groups_of(l, o->context), rows = o->max_seq * SPLIT_ROWS;
    uint32_t n_head = most_rep(t, l) * l->n_kv_head;

    if (groups <= 1 || n_head == 0)
        return 0;
    if (rows > o->max_tok)
        rows = o->max_tok;
    return (size_t)groups * rows * n_head * (l->head_dim + 16u);
}

struct work { /* one block of queries of one KV head, in thread scratch */
    uint32_t n_query, n_tok;
    float *q, *m, *l, *acc; /* group */
    float *total_m, *total_l, *total_acc;
    uint32_t *visible;
    float *kernel;
};

static struct work carve(float *s, uint32_t n_tok, const struct shape *h)
{
    struct work w = {.n_query = n_tok * h->rep, .n_tok = n_tok};
    size_t n = w.n_query, nd = n * h->head_dim;

    w.q = s;
    w.acc = w.q + nd;
    w.total_acc = w.acc + nd;
    w.kernel = w.total_acc + nd; /* stays aligned: head_dim is a multiple of 16 */
    w.m = w.kernel + ((esp_attend_scratch_floats(w.n_query) + 15) & ~(size_t)15);
    w.l = w.m + n;
    w.total_m = w.l + n;
    w.total_l = w.total_m + n;
    w.visible = (uint32_t *)(void *)(w.total_l + n);
    return w;
}

static void load_queries(const struct esp_plan *p, const struct esp_op *op, const struct shape *h,
                         uint32_t tok, uint32_t kv_head, struct work *w)
{
    const float *q = plan_value(p, op->a);

    for (uint32_t i = 0; i < w->n_tok; i++)
        for (uint32_t r = 0; r < h->rep; r++)
            memcpy(w->q + (size_t)(i * h->rep + r) * h->head_dim,
                   q + ((size_t)(tok + i) * h->n_head + kv_head * h->rep + r) * h->head_dim,
                   h->head_dim * sizeof *q);
}

/* Positions of a page that the queries of w see, the first token being at pos; returns their largest number.
 */
static void look(const struct esp_layout *l, uint32_t page, uint32_t pos, uint32_t rep, const struct work *w)
{
    const uint32_t first = (uint32_t)esp_layout_page_first(l, page);
    const uint32_t rows = (uint32_t)(esp_layout_page_first(l, page + 1) - first);

    for (uint32_t i = 0; i < w->n_query; i++) {
        uint32_t end = pos + i / rep + 1; /* positions seen */

        end = end > first ? end - first : 0;
        w->visible[i] = end < rows ? end : rows;
    }
}

/* The sanitizer learns which rows of one page the kernel read. */
static void watch_rows(const struct esp_attend *a, const struct esp_layout_kv *at)
{
    uint32_t rows = 0;

    for (uint32_t i = 0; i < a->n_query; i++)
        rows = a->n_visible[i] > rows ? a->n_visible[i] : rows;
    esp_watch_read(a->k, (size_t)rows * at->k_row);
    esp_watch_read(a->v, (size_t)rows * at->v_row);
}

/* Reduce group g for all queries of w, whose first token has cache index pos. */
static void run_group(const struct esp_plan *p, const struct esp_op *op, const struct esp_batch_seq *s,
                      uint32_t kv_head, uint32_t g, uint32_t pos, const struct shape *h, struct work *w)
{
    const struct esp_layout *l = &p->pools.layout;
    const uint32_t page0 = group_page(l, g), page1 = group_page(l, g + 1);
    const uint32_t last = esp_layout_page_of(l, pos + w->n_tok - 1); /* page of the last query */
    const struct esp_layout_kv *at = esp_layout_kv_of(l, op->layer, page0);
    const struct esp_kv_scheme *scheme = &at->scheme;
    struct esp_attend a = {.ld_kv = h->head_dim,
                           .scheme = scheme,
                           .head_dim = h->head_dim,
                           .n_query = w->n_query,
                           .q = w->q,
                           .ldq = h->head_dim,
                           .int8_query = esp_cpu_int8_query(&p->opts),
                           .n_visible = w->visible,
                           .m = w->m,
                           .l = w->l,
                           .acc = w->acc,
                           .ld_acc = h->head_dim};

    for (uint32_t i = 0; i < w->n_query; i++) {
        w->m[i] = -INFINITY;
        w->l[i] = 0;
    }
    memset(w->acc, 0, (size_t)w->n_query * h->head_dim * sizeof *w->acc);
    for (uint32_t page = page0; page < page1 && page <= last; page++) {
        look(l, page, pos, h->rep, w);
        a.k = plan_kv(p, s->pages[page], at, kv_head, 0);
        a.v = plan_kv(p, s->pages[page], at, kv_head, 1);
        a.k_next =
            page + 1 < page1 && page + 1 <= last ? plan_kv(p, s->pages[page + 1], at, kv_head, 0) : NULL;
        if (esp_kv_coded(scheme))
            p->dev->k.attend_codes(&a, w->kernel);
        else
            p->dev->k.attend[scheme->kind == ESP_KV_KIND_F32 ? ESP_KV_F32 : ESP_KV_BF16](&a, w->kernel);
        watch_rows(&a, at);
    }
    if (at != &l->layers[op->layer]) /* exact: into the basis of the coded values behind it */
        for (uint32_t i = 0; i < w->n_query; i++)
            esp_kv_rotate(&l->layers[op->layer].scheme, h->head_dim, w->acc + (size_t)i * h->head_dim);
}

static void store_query(const struct esp_plan *p, const struct esp_op *op, const struct shape *h,
                        uint32_t tok, uint32_t head, float sum, const float *acc)
{
    float *y = plan_value(p, op->out) + ((size_t)tok * h->n_head + head) * h->head_dim;

    for (uint32_t j = 0; j < h->head_dim; j++)
        y[j] = acc[j] / sum;
    esp_kv_unrotate(&p->pools.layout.layers[op->layer].scheme, h->head_dim, y);
}

/* All groups in order on this thread: many rows, or a context of one group. */
static void whole_block(const struct thread *t, const struct esp_op *op, const struct esp_batch_seq *s,
                        uint32_t kv_head, uint32_t i0, uint32_t n_tok, const struct shape *h)
{
    const struct esp_plan *p = t->p;
    struct work w = carve(t->scratch, n_tok, h);
    const struct esp_layout *l = &p->pools.layout;
    uint32_t n_group = groups_of(l, s->n + i0 + n_tok);

    load_queries(p, op, h, s->tok0 + i0, kv_head, &w);
    for (uint32_t i = 0; i < w.n_query; i++) {
        w.total_m[i] = -INFINITY;
        w.total_l[i] = 0;
    }
    memset(w.total_acc, 0, (size_t)w.n_query * h->head_dim * sizeof *w.total_acc);
    for (uint32_t g = 0; g < n_group; g++) {
        run_group(p, op, s, kv_head, g, s->n + i0, h, &w);
        for (uint32_t i = 0; i < w.n_query; i++)
            if (s->n + i0 + i / h->rep >=
                esp_layout_page_first(l, group_page(l, g))) /* else it sees nothing */
                p->dev->k.attend_merge(&w.total_m[i], &w.total_l[i], w.total_acc + (size_t)i * h->head_dim,
                                       w.m[i], w.l[i], w.acc + (size_t)i * h->head_dim, h->head_dim);
    }
    for (uint32_t i = 0; i < w.n_query; i++)
        store_query(p, op, h, s->tok0 + i0 + i / h->rep, kv_head * h->rep + i % h->rep, w.total_l[i],
                    w.total_acc + (size_t)i * h->head_dim);
}

static bool splits(const struct thread *t, const struct esp_batch_seq *s)
{
    return s->n_tok <= SPLIT_ROWS && groups_of(&t->p->pools.layout, s->n + s->n_tok) > 1;
}

/* Where the partial of (token, head, group) of a split sequence lies; split_row counts split rows before this
 * one. */
static float *partial(const struct esp_plan *p, const struct shape *h, uint32_t split_row, uint32_t head,
                      uint32_t g)
{
    size_t groups = groups_of(&p->pools.layout, p->opts.context);

    return plan_split(p) + (((size_t)split_row * h->n_head + head) * groups + g) * h->part;
}

static void split_block(const struct thread *t, const struct esp_op *op, const struct esp_batch_seq *s,
                        uint32_t split_row, uint32_t kv_head, uint32_t g, const struct shape *h)
{
    const struct esp_plan *p = t->p;
    struct work w = carve(t->scratch, s->n_tok, h);

    load_queries(p, op, h, s->tok0, kv_head, &w);
    run_group(p, op, s, kv_head, g, s->n, h, &w);
    for (uint32_t i = 0; i < w.n_query; i++) {
        float *part = partial(p, h, split_row + i / h->rep, kv_head * h->rep + i % h->rep, g);

        part[0] = w.m[i];
        part[1] = w.l[i];
        memcpy(part + 16, w.acc + (size_t)i * h->head_dim, h->head_dim * sizeof *part);
    }
}

static void merge_split(const struct thread *t, const struct esp_op *op, const struct esp_batch_seq *s,
                        uint32_t split_row, uint32_t i, uint32_t head, const struct shape *h)
{
    float *acc = t->scratch;
    float m = -INFINITY, l = 0;
    uint32_t n_group = groups_of(&t->p->pools.layout, s->n + i + 1);

    memset(acc, 0, h->head_dim * sizeof *acc);
    for (uint32_t g = 0; g < n_group; g++) {
        const float *part = partial(t->p, h, split_row + i, head, g);

        t->p->dev->k.attend_merge(&m, &l, acc, part[0], part[1], part + 16, h->head_dim);
        esp_watch_read(part, h->part * sizeof *part);
    }
    store_query(t->p, op, h, s->tok0 + i, head, l, acc);
}

/* Tokens of a task: more share what is read and decoded, fewer where threads would have nothing to do. */
static uint32_t block_of(const struct thread *t, const struct esp_batch_seq *s, const struct shape *h)
{
    const bool plenty = h->n_kv * (s->n_tok / ATTEND_BLOCK_TOKENS) >= 2 * t->n_thread;

    return plenty ? ATTEND_BLOCK_TOKENS : ATTEND_BLOCK_TOKENS / 2;
}

/* Number of first-phase tasks of a sequence. */
static uint32_t tasks_of(const struct thread *t, const struct esp_batch_seq *s, const struct shape *h)
{
    if (splits(t, s))
        return h->n_kv * groups_of(&t->p->pools.layout, s->n + s->n_tok);
    return h->n_kv * ((s->n_tok + block_of(t, s, h) - 1) / block_of(t, s, h));
}

static void first_phase(const struct thread *t, const struct esp_op *op, const struct shape *h)
{
    const struct esp_batch *b = t->p->batch;
    uint32_t next = esp_task_next(t->counter), first = 0, split_row = 0;

    for (uint32_t i = 0; i < b->n_seq; i++) {
        const struct esp_batch_seq *s = &b->seqs[i];
        const bool split = splits(t, s);
        const uint32_t block = block_of(t, s, h);
        uint32_t n = tasks_of(t, s, h);

        for (; next - first < n; next = esp_task_next(t->counter)) {
            uint32_t kv_head = (next - first) % h->n_kv, part = (next - first) / h->n_kv;

            if (split)
                split_block(t, op, s, split_row, kv_head, part, h);
            else
                whole_block(t, op, s, kv_head, part * block,
                            block < s->n_tok - part * block ? block : s->n_tok - part * block, h);
        }
        first += n;
        split_row += split ? s->n_tok : 0;
    }
}

static void second_phase(const struct thread *t, const struct esp_op *op, const struct shape *h)
{
    const struct esp_batch *b = t->p->batch;
    uint32_t next = esp_task_next(t->counter + 1), first = 0, split_row = 0;

    for (uint32_t i = 0; i < b->n_seq; i++) {
        const struct esp_batch_seq *s = &b->seqs[i];
        const bool split = splits(t, s);
        uint32_t n = split ? s->n_tok * h->n_head : 0;

        for (; next - first < n; next = esp_task_next(t->counter + 1))
            merge_split(t, op, s, split_row, (next - first) / h->n_head, (next - first) % h->n_head, h);
        first += n;
        split_row += split ? s->n_tok : 0;
    }
}

void esp_cpu_op_attend(const struct thread *t, const struct esp_op *op)
{
    const struct esp_batch *b = t->p->batch;
    struct shape h = shape_of(t->p, op);
    bool any = false;

    for (uint32_t i = 0; i < b->n_seq; i++)
        any |= splits(t, &b->seqs[i]);
    first_phase(t, op, &h);
    if (!any)
        return;
    esp_pool_barrier(t->p->dev->pool);
    second_phase(t, op, &h);
}

/* One row of keys (which = 0) or values of one head at dst; returns how many numbers had to be repaired. */
static uint32_t append_row(const struct esp_plan *p, const struct esp_layout_kv *a, const float *x,
                           uint32_t which, uint8_t *dst)
{
    const uint32_t d = p->pools.layout.head_dim;

    if (a->scheme.kind != ESP_KV_KIND_BF16)
        return p->dev->k.kv_encode[which](&a->scheme, d, x, dst);
    p->dev->k.f32_to_bf16(x, (uint16_t *)(void *)dst, d);
    return 0;
}

/* Rows of keys and values into their pages; a task is one token. They are there, encoded, before any query of
 * the step reads them, so what a query sees does not depend on where a prompt is cut. */
void esp_cpu_op_kv_append(const struct thread *t, const struct esp_op *op)
{
    const struct esp_plan *p = t->p;
    const struct esp_layout *l = &p->pools.layout;
    const struct esp_batch *b = p->batch;
    const float *src[2] = {plan_value(p, op->a), plan_value(p, op->b)};
    uint32_t repaired = 0;

    for (uint32_t i = 0; i < b->n_seq; i++) {
        const struct esp_batch_seq *s = &b->seqs[i];

        for (uint32_t j = t->tid; j < s->n_tok; j += t->n_thread) {
            const uint32_t pos = s->n + j, page = esp_layout_page_of(l, pos);
            const size_t in_page = pos - esp_layout_page_first(l, page);
            const struct esp_layout_kv *a = esp_layout_kv_of(l, op->layer, page);

            for (uint32_t h = 0; h < l->n_kv_head * 2; h++) {
                const float *x = src[h & 1] + ((size_t)(s->tok0 + j) * l->n_kv_head + h / 2) * l->head_dim;

                repaired += append_row(p, a, x, h & 1,
                                       plan_kv(p, s->pages[page], a, h / 2, h & 1) +
                                           in_page * (h & 1 ? a->v_row : a->k_row));
            }
        }
    }
    if (repaired)
        atomic_fetch_add_explicit(p->kv_repaired, repaired, memory_order_relaxed);
}
