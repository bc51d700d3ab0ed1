/*
 * Private types of the CPU backend: the device, a compiled plan, and what op files offer to the walker in
 * run.c.
 *
 * All threads walk the plan together: each op is cut into tasks, threads take tasks from the op's counter,
 * and a barrier ends the op. Which thread runs a task never matters (kernels.h: outputs are fixed functions
 * of their inputs).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CPU_CPU_H
#define ESP_BACKEND_CPU_CPU_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "base/pool.h"
#include "base/watch.h"

struct cpu_dev {
    struct esp_dev base;
    struct esp_kernels k;
    struct esp_pool *pool;
    uint32_t n_thread, n_batch;    /* of it in a step, and in one with many tokens of one sequence */
    enum esp_huge huge;            /* pages of everything that is allocated here */
    const struct esp_nodes *nodes; /* where threads and memory are held; NULL: nowhere */
    struct esp_plan *plans;        /* compiled and not freed, for the packed weights they share */
};

/* Positions whose spans one attention group covers; groups are merged in ascending order
 * (doc/determinism.md). */
enum { ATTEND_GROUP_SPANS = 16 };
/* Counters of a step: two of the op itself, two for each level of adapters, and behind them one for the
 * products of each memory node but the first. */
enum { STEP_COUNTERS = 2 + 2 * ESP_LORA_STACK };
enum { ATTEND_BLOCK_TOKENS = 32 }; /* most of one task, with one KV head's query heads */

/* A product of a step group: its op, kernel, and where its prepared input lies. */
struct linear {
    const struct esp_op *op;
    const struct esp_linear *kernel;
    struct esp_weight w;       /* the op's, with the packed copy if the kernel wants one */
    struct cpu_packed *packed; /* what holds that copy */
    bool packs;                /* this product made it */
    uint32_t n_out;
    bool prepares;  /* first user of its prepared rows */
    size_t act_off; /* in the plan's act region; unused when the kernel takes x itself */
    size_t act_row; /* bytes of one prepared row */
};

/* One barrier-to-barrier unit: a single op, or linear ops that share their input. */
struct step {
    const struct esp_op *op; /* the first */
    uint32_t first_linear, n_linear;
};

struct esp_plan {
    struct cpu_dev *dev;
    struct esp_plan *next; /* in dev->plans */
    const struct esp_tape *tape;
    struct esp_pools pools;
    struct esp_plan_opts opts;
    struct step *steps;
    struct linear *linears;
    uint32_t n_step, n_linear, max_group; /* most products of one step */
    size_t *value_off;                    /* [n_value] bytes into scratch */
    size_t values_bytes, act_bytes, rope_bytes, split_bytes, lora_bytes, thread_bytes;
    struct esp_buf *scratch_buf;
    uint8_t *scratch; /* its bytes: values, act, rope, split partials, adapter rows, then thread_bytes per
                         thread */
    size_t scratch_bytes;
    bool packs; /* weights that the kernels read faster so are packed */
    uint32_t step_counters;
    _Atomic uint32_t *counters;    /* [n_step][step_counters] */
    const struct esp_batch *batch; /* of the running step */
    _Atomic uint32_t
        *kv_repaired; /* numbers that coded keys and values could not hold, since the plan was made */
    bool told;        /* of them, once */
};

static inline float *plan_value(const struct esp_plan *p, esp_val v)
{
    return (float *)(void *)(p->scratch + p->value_off[v]);
}

static inline uint32_t plan_rows(const struct esp_plan *p, esp_val v)
{
    return p->tape->values[v].rows == ESP_ROWS_TOKEN ? p->batch->n_tok : p->batch->n_out;
}

static inline uint8_t *plan_act(const struct esp_plan *p)
{
    return p->scratch + p->values_bytes;
}

/* Cosines then sines of token i: [2][n_half]. */
static inline float *plan_rope(const struct esp_plan *p, uint32_t i)
{
    return (float *)(void *)(p->scratch + p->values_bytes + p->act_bytes) +
           (size_t)i * 2 * p->tape->rope.n_half;
}

static inline float *plan_split(const struct esp_plan *p)
{
    return (float *)(void *)(p->scratch + p->values_bytes + p->act_bytes + p->rope_bytes);
}

/* Rows x A of adapters: [product of the step][token][max_rank]. */
static inline float *plan_lora(const struct esp_plan *p)
{
    return (float *)(void *)(p->scratch + p->values_bytes + p->act_bytes + p->rope_bytes + p->split_bytes);
}

static inline float *plan_thread(const struct esp_plan *p, uint32_t tid)
{
    return (float *)(void *)(p->scratch + p->values_bytes + p->act_bytes + p->rope_bytes + p->split_bytes +
                             p->lora_bytes + (size_t)tid * p->thread_bytes);
}

static inline uint8_t *plan_slot(const struct esp_plan *p, uint32_t slot, uint32_t layer)
{
    return (uint8_t *)p->pools.slots->host + (size_t)slot * p->pools.layout.slot_bytes +
           (size_t)layer * p->pools.layout.slot_layer;
}

/* K (which 0) or V (which 1) of one head of the layer that lies as `a` says in one page. */
static inline uint8_t *plan_kv(const struct esp_plan *p, uint32_t page, const struct esp_layout_kv *a,
                               uint32_t head, uint32_t which)
{
    return (uint8_t *)p->pools.pages->host + (size_t)page * p->pools.layout.page_bytes +
           esp_layout_plane(a, head, which);
}

struct thread { /* what an op's code needs to know of its thread */
    const struct esp_plan *p;
    uint32_t tid, n_thread;
    float *scratch;            /* thread_bytes */
    _Atomic uint32_t *counter; /* step_counters of the step, all 0 at its start */
};

/* The first output of l that lies with memory node i; of the count of nodes, n_out. */
uint32_t esp_cpu_cut(const struct esp_plan *p, const struct linear *l, uint32_t i);

/* Op families; each runs one step on the calling thread together with its peers. */
void esp_cpu_step_linear(const struct thread *t, const struct step *s);
/* Add what the batch's adapters contribute to the products of s; every thread calls it after its share of s.
 */
void esp_cpu_step_lora(const struct thread *t, const struct step *s);
void esp_cpu_op_attend(const struct thread *t, const struct esp_op *op);
void esp_cpu_op_kv_append(const struct thread *t, const struct esp_op *op);
void esp_cpu_op_conv(const struct thread *t, const struct esp_op *op);
void esp_cpu_op_delta(const struct thread *t, const struct esp_op *op);
void esp_cpu_op_hidden(const struct thread *t, const struct esp_op *op);
void esp_cpu_op_rows(const struct thread *t, const struct esp_op *op); /* everything that is row by row */
void esp_cpu_rope_table(const struct thread *t);

/* Whether queries may meet keys of 8 bits as integers (esp_attend.int8_query): where products with integer
 * codes round their activations so. */
bool esp_cpu_int8_query(const struct esp_plan_opts *o);

/* A product read act_bytes of rows at act and wrote n_out numbers of each of n_row rows at y, ldy apart. */
static inline void esp_cpu_watch_product(const void *act, size_t act_bytes, uint32_t n_row, float *y,
                                         size_t ldy, uint32_t n_out)
{
    esp_watch_read(act, act_bytes);
    for (uint32_t r = 0; r < n_row; r++)
        esp_watch_write(y + r * ldy, n_out * sizeof *y);
}

/* Sizes that plan.c needs from op files. */
size_t esp_cpu_attend_thread_floats(const struct esp_tape *t, const struct esp_layout *l);
size_t esp_cpu_attend_split_floats(const struct esp_tape *t, const struct esp_layout *l,
                                   const struct esp_plan_opts *o);
size_t esp_cpu_lora_thread_floats(const struct esp_plan_opts *o);
size_t esp_cpu_delta_thread_floats(const struct esp_layout *l);

/* Whether the plan packs weights, by its options and the machine's memory. */
bool esp_cpu_packs(struct esp_plan *p);
/* Bytes of the copies that esp_cpu_pack() would make for a plan whose kernels are chosen. */
size_t esp_cpu_packed_bytes(const struct esp_plan *p);
/* Copy weights for the kernels that want it. ESP_ENOMEM. */
esp_status esp_cpu_pack(struct esp_plan *p, esp_error *err);
/* Let p's copies go. */
void esp_cpu_unpack(struct esp_plan *p);

/* compile, see backend.h */
esp_status esp_cpu_plan_bytes(struct esp_dev *d, const struct esp_tape *t, const struct esp_layout *l,
                              const struct esp_plan_opts *o, size_t *bytes, esp_error *err);
esp_status esp_cpu_compile(struct esp_dev *d, const struct esp_tape *t, const struct esp_pools *pools,
                           const struct esp_plan_opts *o, struct esp_plan **out, esp_error *err);
void esp_cpu_plan_free(struct esp_plan *p);
esp_status esp_cpu_run(struct esp_plan *p, const struct esp_batch *b, esp_error *err);
bool esp_cpu_can(const struct esp_dev *d, const struct esp_op *op);

#endif
