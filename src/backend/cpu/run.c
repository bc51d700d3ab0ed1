/*
 * Running a plan: check the batch against the plan's limits, then walk the steps with all threads.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

#include "base/log.h"

#include "backend/check.h"

static void run_op(const struct thread *t, const struct step *s)
{
    switch (s->op->kind) {
    case ESP_OP_LINEAR:
        esp_cpu_step_linear(t, s);
        esp_cpu_step_lora(t, s);
        break;
    case ESP_OP_LOGITS:
        esp_cpu_step_linear(t, s);
        break;
    case ESP_OP_ATTEND:
        esp_cpu_op_attend(t, s->op);
        break;
    case ESP_OP_KV_APPEND:
        esp_cpu_op_kv_append(t, s->op);
        break;
    case ESP_OP_CONV:
        esp_cpu_op_conv(t, s->op);
        break;
    case ESP_OP_DELTA:
        esp_cpu_op_delta(t, s->op);
        break;
    case ESP_OP_HIDDEN:
        esp_cpu_op_hidden(t, s->op);
        break;
    default:
        esp_cpu_op_rows(t, s->op);
        break;
    }
}

static void call_tap(const struct esp_plan *p, const struct esp_op *op)
{
    const struct esp_value *v;

    if (!p->batch->tap || op->out == ESP_NO_VAL)
        return;
    v = &p->tape->values[op->out];
    if (v->name)
        p->batch->tap(p->batch->tap_user, v->name, plan_value(p, op->out), plan_rows(p, op->out), v->width);
}

static void walk(void *arg, uint32_t tid, uint32_t n_thread)
{
    const struct esp_plan *p = arg;
    struct thread t = {.p = p, .tid = tid, .n_thread = n_thread, .scratch = plan_thread(p, tid)};

    esp_cpu_rope_table(&t);
    esp_pool_barrier(p->dev->pool);
    for (uint32_t i = 0; i < p->n_step; i++) {
        t.counter = &p->counters[(size_t)i * p->step_counters];
        run_op(&t, &p->steps[i]);
        esp_pool_barrier(p->dev->pool);
        if (!p->batch->tap)
            continue;
        if (tid == 0) {
            call_tap(p, p->steps[i].op);
            for (uint32_t j = 1; j < p->steps[i].n_linear; j++) /* products of the same input */
                call_tap(p, p->linears[p->steps[i].first_linear + j].op);
        }
        esp_pool_barrier(p->dev->pool);
    }
}

/* Say once that keys or values were not finite or too large: the model or the input is at fault, not the
 * cache. */
static void tell_repaired(struct esp_plan *p)
{
    const uint32_t n = atomic_load_explicit(p->kv_repaired, memory_order_relaxed);

    if (n == 0 || p->told)
        return;
    p->told = true;
    esp_log(ESP_LOG_WARNING,
            "%u keys and values of a step were NaN or beyond 65504; coded caches keep 0 or 65504 instead", n);
}

/* Threads for a batch: those for prompts when many tokens of one sequence run together. */
static uint32_t threads_of(const struct cpu_dev *d, const struct esp_batch *b)
{
    enum { MANY = 16 };

    for (uint32_t i = 0; i < b->n_seq; i++)
        if (b->seqs[i].n_tok >= MANY)
            return d->n_batch;
    return d->n_thread;
}

esp_status esp_cpu_run(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    ESP_TRY(esp_batch_check(b, p->tape, &p->pools, &p->opts, err));
    p->batch = b;
    for (uint32_t i = 0; i < p->n_step * p->step_counters; i++)
        atomic_store_explicit(&p->counters[i], 0, memory_order_relaxed);
    esp_pool_run_on(p->dev->pool, threads_of(p->dev, b), walk, p);
    tell_repaired(p);
    return ESP_OK;
}
