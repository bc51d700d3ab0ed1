/*
 * Compiling a tape for the CPU: group linear ops that share an input, choose kernels, and lay scratch out so
 * that values whose lives do not overlap share bytes. The layout is a function of the tape and the limits
 * alone, so memory is known before anything is allocated.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

#include <string.h>

#include "base/mem.h"

#include "backend/place.h"

static size_t pad64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static bool is_product(const struct esp_op *op)
{
    return op->kind == ESP_OP_LINEAR || op->kind == ESP_OP_LOGITS;
}

enum esp_act esp_cpu_act(const struct esp_plan_opts *o, enum esp_format_id f)
{
    if (o->act_auto)
        return esp_format_get(f)->integer ? ESP_ACT_INT8X2 : ESP_ACT_F32;
    return esp_act_resolve(f, o->act);
}

bool esp_cpu_int8_query(const struct esp_plan_opts *o)
{
    return o->act_auto || o->act == ESP_ACT_INT8X2 || o->act == ESP_ACT_INT8;
}

bool esp_cpu_can(const struct esp_dev *d, const struct esp_op *op)
{
    (void)d;
    return op->kind < ESP_OP_COUNT && (!op->w || op->w->format < ESP_FORMAT_COUNT);
}

/* Set up l for op; l0[0..n) are the earlier products of the same step, whose prepared rows it may share. */
static void choose_kernel(struct esp_plan *p, struct linear *l, const struct esp_op *op,
                          const struct linear *l0, uint32_t n, size_t *act_used)
{
    const struct esp_kernels *k = &p->dev->k;

    l->op = op;
    l->w = *op->w;
    l->n_out = op->w->n_out;
    l->kernel = &k->linear[op->w->format][esp_cpu_act(&p->opts, op->w->format)];
    if (!l->kernel->prepare)
        return;
    for (uint32_t i = 0; i < n; i++)
        if (l0[i].kernel->prepare == l->kernel->prepare && esp_weight_same_input(l0[i].op->w, op->w)) {
            l->act_off = l0[i].act_off;
            l->act_row = l0[i].act_row;
            return;
        }
    l->prepares = true;
    l->act_off = *act_used;
    l->act_row = l->kernel->prepared_bytes(op->w->n_in, op->w->group);
    *act_used += pad64(l->act_row * (op->kind == ESP_OP_LOGITS ? p->opts.max_out : p->opts.max_tok));
}

static void make_steps(struct esp_plan *p)
{
    const struct esp_tape *t = p->tape;

    for (uint32_t i = 0; i < t->n_op;) {
        struct step *s = &p->steps[p->n_step++];
        size_t act_used = 0;

        s->op = &t->ops[i];
        s->first_linear = p->n_linear;
        if (!is_product(s->op)) {
            i++;
            continue;
        }
        do {
            choose_kernel(p, &p->linears[p->n_linear], &t->ops[i], &p->linears[s->first_linear], s->n_linear,
                          &act_used);
            p->n_linear++;
            s->n_linear++;
            i++;
        } while (i < t->n_op && t->ops[i].kind == s->op->kind && t->ops[i].a == s->op->a);
        if (s->n_linear > p->max_group)
            p->max_group = s->n_linear;
        if (act_used > p->act_bytes)
            p->act_bytes = act_used;
    }
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Everything but the scratch memory itself. */
static esp_status lay_out(struct esp_plan *p, esp_error *err)
{
    const struct esp_tape *t = p->tape;
    const struct esp_layout *l = &p->pools.layout;
    size_t thread_floats =
        max_size(max_size(esp_cpu_attend_thread_floats(t, l), esp_cpu_delta_thread_floats(l)),
                 esp_cpu_lora_thread_floats(&p->opts));

    p->steps = esp_alloc_array(t->n_op, sizeof *p->steps);
    p->linears = esp_alloc_array(t->n_op, sizeof *p->linears);
    p->value_off = esp_alloc_array(t->n_value, sizeof *p->value_off);
    p->step_counters = STEP_COUNTERS + esp_nodes_count(p->dev->nodes) - 1;
    p->counters = esp_alloc_array((size_t)t->n_op * p->step_counters + 1, sizeof *p->counters);
    if (!p->steps || !p->linears || !p->value_off || !p->counters)
        return esp_fail(err, ESP_ENOMEM, "plan of %u ops: out of memory", t->n_op);
    p->kv_repaired = p->counters + (size_t)t->n_op * p->step_counters;
    make_steps(p);
    p->packs = esp_cpu_packs(p);
    p->values_bytes = esp_place_values(t, &p->opts, p->value_off);
    p->rope_bytes = pad64((size_t)p->opts.max_tok * 2 * t->rope.n_half * sizeof(float));
    p->split_bytes = pad64(esp_cpu_attend_split_floats(t, l, &p->opts) * sizeof(float));
    p->lora_bytes = pad64((size_t)p->max_group * p->opts.max_tok * p->opts.max_rank * sizeof(float));
    p->thread_bytes = pad64(thread_floats * sizeof(float));
    p->scratch_bytes = p->values_bytes + p->act_bytes + p->rope_bytes + p->split_bytes + p->lora_bytes +
                       p->thread_bytes * esp_pool_size(p->dev->pool);
    return ESP_OK;
}

void esp_cpu_plan_free(struct esp_plan *p)
{
    if (!p)
        return;
    for (struct esp_plan **at = &p->dev->plans; *at; at = &(*at)->next) {
        if (*at == p) {
            *at = p->next;
            break;
        }
    }
    if (p->linears)
        esp_cpu_unpack(p);
    esp_free(p->steps);
    esp_free(p->linears);
    esp_free(p->value_off);
    esp_free(p->counters);
    p->dev->base.ops->free(p->scratch_buf);
    esp_free(p);
}

static esp_status plan_create(struct esp_plan **out, struct esp_dev *d, const struct esp_tape *t,
                              const struct esp_plan_opts *o, const struct esp_layout *l, esp_error *err)
{
    struct esp_plan *p;
    esp_status s;

    if (o->max_tok == 0 || o->max_seq == 0)
        return esp_fail(err, ESP_EINVAL, "a plan for %u tokens of %u sequences", o->max_tok, o->max_seq);
    p = esp_alloc(sizeof *p);
    if (!p)
        return esp_fail(err, ESP_ENOMEM, "plan: out of memory");
    p->dev = (struct cpu_dev *)d;
    p->tape = t;
    p->opts = *o;
    p->pools.layout = *l;
    s = lay_out(p, err);
    if (s != ESP_OK) {
        esp_cpu_plan_free(p);
        return s;
    }
    *out = p;
    return ESP_OK;
}

esp_status esp_cpu_plan_bytes(struct esp_dev *d, const struct esp_tape *t, const struct esp_layout *l,
                              const struct esp_plan_opts *o, size_t *bytes, esp_error *err)
{
    struct esp_plan *p;

    ESP_TRY(plan_create(&p, d, t, o, l, err));
    *bytes = esp_dev_alloc_bytes(d, p->scratch_bytes) + esp_dev_alloc_bytes(d, esp_cpu_packed_bytes(p));
    esp_cpu_plan_free(p);
    return ESP_OK;
}

esp_status esp_cpu_compile(struct esp_dev *d, const struct esp_tape *t, const struct esp_pools *pools,
                           const struct esp_plan_opts *o, struct esp_plan **out, esp_error *err)
{
    struct esp_plan *p;
    esp_status s;

    for (uint32_t i = 0; i < t->n_op; i++)
        if (!esp_cpu_can(d, &t->ops[i]))
            return esp_fail(err, ESP_EUNSUPPORTED, "%s cannot run op %u (%s)", d->name, i,
                            esp_op_name(t->ops[i].kind));
    ESP_TRY(plan_create(&p, d, t, o, &pools->layout, err));
    p->pools = *pools;
    s = d->ops->alloc(d, p->scratch_bytes, &p->scratch_buf, err); /* in huge pages where it is large */
    if (s == ESP_OK) {
        p->scratch = p->scratch_buf->host;
        s = esp_cpu_pack(p, err);
    }
    if (s != ESP_OK) {
        esp_cpu_plan_free(p);
        return s;
    }
    p->next = p->dev->plans;
    p->dev->plans = p;
    *out = p;
    return ESP_OK;
}
