/*
 * Products with weights. The products of a step share one list of tasks: each task is a range of outputs of
 * one weight for all rows of the step, so a weight is read from memory once whatever the number of rows.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

enum {
    TASKS_PER_THREAD = 8,        /* enough to even out a busy core, few enough to keep long streams */
    GRAIN_ALIGN = ESP_PACK_OUTS, /* outputs; whole register tiles */
    PREPARE_ROWS = 8             /* rows of one prepare task */
};

static uint32_t rows_of(const struct esp_plan *p, const struct step *s)
{
    return s->op->kind == ESP_OP_LOGITS ? p->batch->n_out : p->batch->n_tok;
}

static void prepare(const struct thread *t, const struct step *s, uint32_t n_row)
{
    const struct esp_plan *p = t->p;
    const float *x = plan_value(p, s->op->a);
    size_t n_in = p->tape->values[s->op->a].width;
    uint32_t per = (n_row + PREPARE_ROWS - 1) / PREPARE_ROWS;
    uint32_t n_task = s->n_linear * per;

    for (uint32_t i = esp_task_next(t->counter); i < n_task; i = esp_task_next(t->counter)) {
        const struct linear *l = &p->linears[s->first_linear + i / per];
        uint32_t r0 = i % per * PREPARE_ROWS;
        uint32_t n = n_row - r0 < PREPARE_ROWS ? n_row - r0 : PREPARE_ROWS;

        if (l->prepares) {
            uint8_t *act = plan_act(p) + l->act_off + r0 * l->act_row;

            l->kernel->prepare(&l->w, x + r0 * n_in, n_in, n, act);
            esp_watch_read(x + r0 * n_in, n * n_in * sizeof *x);
            esp_watch_write(act, n * l->act_row);
        }
    }
}

static bool any_prepares(const struct esp_plan *p, const struct step *s)
{
    for (uint32_t i = 0; i < s->n_linear; i++)
        if (p->linears[s->first_linear + i].prepares)
            return true;
    return false;
}

static uint32_t grain_of(const struct esp_plan *p, const struct step *s, uint32_t n_thread)
{
    uint64_t total = 0;
    uint32_t grain;

    for (uint32_t i = 0; i < s->n_linear; i++)
        total += p->linears[s->first_linear + i].n_out;
    grain = (uint32_t)(total / (n_thread * TASKS_PER_THREAD));
    grain = (grain + GRAIN_ALIGN - 1) / GRAIN_ALIGN * GRAIN_ALIGN;
    return grain ? grain : GRAIN_ALIGN;
}

/* The step's grain for this weight: whole columns of blocks where outputs are coded together. */
static uint32_t grain_for(const struct linear *l, uint32_t grain)
{
    uint32_t align = esp_weight_out_align(&l->w);

    return (grain + align - 1) / align * align;
}

/* Outputs [o0, o1) of l. */
struct range {
    const struct linear *l;
    uint32_t o0, o1;
};

/* Where a walk through the tasks of a node is: the first task of weight i. Numbers go upwards. */
struct place {
    uint32_t i, first;
};

/* Task number `next` of memory node `node`, whose tasks are numbered through all weights of the step;
 * false: there are fewer. */
static bool find_task(const struct esp_plan *p, const struct step *s, uint32_t node, uint32_t grain,
                      uint32_t next, struct place *at, struct range *out)
{
    for (; at->i < s->n_linear; at->i++) {
        const struct linear *l = &p->linears[s->first_linear + at->i];
        const uint32_t begin = esp_cpu_cut(p, l, node), end = esp_cpu_cut(p, l, node + 1);
        const uint32_t g = grain_for(l, grain), tasks = (end - begin + g - 1) / g;

        if (next - at->first < tasks) {
            const uint32_t o0 = begin + (next - at->first) * g;

            *out = (struct range){l, o0, end - o0 < g ? end : o0 + g};
            return true;
        }
        at->first += tasks;
    }
    return false;
}

static void multiply(const struct esp_plan *p, const struct step *s, const struct range *r, uint32_t n_row)
{
    const struct linear *l = r->l;
    const void *act = l->kernel->prepare ? (const void *)(plan_act(p) + l->act_off) : plan_value(p, l->op->a);
    float *y = s->op->kind == ESP_OP_LOGITS ? p->batch->logits : plan_value(p, l->op->out);

    l->kernel->product(&l->w, act, n_row, r->o0, r->o1, y, l->n_out);
    esp_cpu_watch_product(act, n_row * (l->kernel->prepare ? l->act_row : l->w.n_in * sizeof *y), n_row,
                          y + r->o0, l->n_out, r->o1 - r->o0);
}

void esp_cpu_step_linear(const struct thread *t, const struct step *s)
{
    const struct esp_plan *p = t->p;
    const uint32_t n_row = rows_of(p, s), grain = grain_of(p, s, t->n_thread);
    const uint32_t n_node = esp_nodes_count(p->dev->nodes);
    const uint32_t home = esp_nodes_of(p->dev->nodes, t->tid, esp_pool_size(p->dev->pool));

    if (any_prepares(p, s)) {
        prepare(t, s, n_row);
        esp_pool_barrier(p->dev->pool);
    }
    if (n_row == 0)
        return;
    /* What lies in this thread's memory first; then it helps the others. */
    for (uint32_t k = 0; k < n_node; k++) {
        const uint32_t node = (home + k) % n_node;
        _Atomic uint32_t *counter = t->counter + (node ? STEP_COUNTERS + node - 1 : 1);
        struct place at = {0};
        struct range r;

        while (find_task(p, s, node, grain, esp_task_next(counter), &at, &r))
            multiply(p, s, &r, n_row);
    }
}
