/*
 * Running a plan: check the batch against the plan's limits, then walk the steps with all threads.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

#include <string.h>

/* Pages and slots that the pass will touch. */
static esp_status check_places(const struct esp_plan *p, const struct esp_batch_seq *s, uint32_t i,
                               esp_error *err)
{
    uint32_t n_page = p->pools.layout.n_attn ? (s->n + s->n_tok + ESP_SPAN - 1) / ESP_SPAN : 0;

    for (uint32_t j = 0; j < n_page; j++)
        if (s->pages[j] >= p->pools.n_page)
            return esp_fail(err, ESP_EINVAL, "sequence %u: page %u of %u", i, s->pages[j], p->pools.n_page);
    if (p->pools.layout.n_delta && (s->slot >= p->pools.n_slot || s->slot_next >= p->pools.n_slot))
        return esp_fail(err, ESP_EINVAL, "sequence %u: slots %u, %u of %u", i, s->slot, s->slot_next,
                        p->pools.n_slot);
    return ESP_OK;
}

static esp_status check_journal(const struct esp_plan *p, const struct esp_batch_seq *s, uint32_t i,
                                esp_error *err)
{
    uint32_t border = (s->n / ESP_CHUNK + 1) * ESP_CHUNK; /* first border after the committed rows */

    if (!p->pools.layout.n_delta || s->journal == ESP_NO_JOURNAL)
        return ESP_OK;
    if (s->journal >= p->pools.n_journal || s->n_tok > p->pools.journal_rows)
        return esp_fail(err, ESP_EINVAL, "sequence %u: %u rows in journal %u (%u journals of %u rows)", i,
                        s->n_tok, s->journal, p->pools.n_journal, p->pools.journal_rows);
    if (s->slot_next == s->slot && s->n + s->n_tok > border)
        return esp_fail(err, ESP_EINVAL,
                        "sequence %u: a journalled pass over position %u needs a second slot", i, border);
    return ESP_OK;
}

static esp_status check_seq(const struct esp_plan *p, const struct esp_batch *b, uint32_t i,
                            uint32_t next_tok, esp_error *err)
{
    const struct esp_batch_seq *s = &b->seqs[i];

    if (s->tok0 != next_tok || s->n_tok == 0 || s->n_tok > b->n_tok - s->tok0)
        return esp_fail(err, ESP_EINVAL, "sequence %u: tokens [%u, +%u) of %u", i, s->tok0, s->n_tok,
                        b->n_tok);
    if (s->n_tok > p->opts.context || s->n > p->opts.context - s->n_tok)
        return esp_fail(err, ESP_ENOFIT, "sequence %u: %u positions after %u, the context is %u", i, s->n_tok,
                        s->n, p->opts.context);
    if (s->base % ESP_CHUNK || s->base > s->n || s->n - s->base > ESP_CHUNK)
        return esp_fail(err, ESP_EINVAL, "sequence %u: %u positions with %u folded", i, s->n, s->base);
    if (s->n_lora > ESP_LORA_STACK)
        return esp_fail(err, ESP_EINVAL, "sequence %u: %u adapters, at most %d stack", i, s->n_lora,
                        ESP_LORA_STACK);
    for (uint32_t j = 0; j < s->n_lora; j++)
        if (s->lora[j]->max_rank > p->opts.max_rank)
            return esp_fail(err, ESP_ENOFIT, "sequence %u: an adapter of rank %u, the plan is for %u", i,
                            s->lora[j]->max_rank, p->opts.max_rank);
    ESP_TRY(check_places(p, s, i, err));
    return check_journal(p, s, i, err);
}

/* What the tape's first ops read: ids within the embedding, input rows where it takes some. */
static esp_status check_inputs(const struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    for (uint32_t i = 0; i < p->tape->n_op; i++) {
        const struct esp_op *op = &p->tape->ops[i];

        if (op->kind == ESP_OP_INPUT && !b->input)
            return esp_fail(err, ESP_EINVAL, "the tape needs input rows, the batch has none");
        if (op->kind != ESP_OP_EMBED)
            continue;
        for (uint32_t j = 0; j < b->n_tok; j++)
            if (b->ids[j] < 0 || (uint32_t)b->ids[j] >= op->w->n_out)
                return esp_fail(err, ESP_EINVAL, "token id %d, the embedding has %u rows", b->ids[j],
                                op->w->n_out);
    }
    return ESP_OK;
}

static esp_status check_batch(const struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    uint32_t next_tok = 0;

    if (b->n_tok == 0 || b->n_tok > p->opts.max_tok || b->n_out > p->opts.max_out ||
        b->n_seq > p->opts.max_seq)
        return esp_fail(err, ESP_EINVAL,
                        "batch of %u tokens, %u outputs, %u sequences; the plan is for %u, %u, %u", b->n_tok,
                        b->n_out, b->n_seq, p->opts.max_tok, p->opts.max_out, p->opts.max_seq);
    for (uint32_t i = 0; i < b->n_seq; i++) {
        ESP_TRY(check_seq(p, b, i, next_tok, err));
        next_tok += b->seqs[i].n_tok;
    }
    if (next_tok != b->n_tok)
        return esp_fail(err, ESP_EINVAL, "%u tokens belong to no sequence", b->n_tok - next_tok);
    for (uint32_t i = 0; i < b->n_out; i++)
        if (b->out_rows[i] >= b->n_tok)
            return esp_fail(err, ESP_EINVAL, "wanted row %u of %u", b->out_rows[i], b->n_tok);
    return check_inputs(p, b, err);
}

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
        t.counter = &p->counters[(size_t)i * STEP_COUNTERS];
        run_op(&t, &p->steps[i]);
        esp_pool_barrier(p->dev->pool);
        if (!p->batch->tap)
            continue;
        if (tid == 0)
            call_tap(p, p->steps[i].op);
        esp_pool_barrier(p->dev->pool);
    }
}

esp_status esp_cpu_run(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    ESP_TRY(check_batch(p, b, err));
    p->batch = b;
    for (uint32_t i = 0; i < p->n_step * STEP_COUNTERS; i++)
        atomic_store_explicit(&p->counters[i], 0, memory_order_relaxed);
    esp_pool_run(p->dev->pool, walk, p);
    return ESP_OK;
}
