/*
 * Recording: each t_* appends one op, checks its shapes and returns the value it writes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "graph/tape.h"

#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"

const char *esp_op_name(enum esp_op_kind kind)
{
    static const char *const names[] = {
#define X(NAME, name) name,
#include "graph/ops.def"
#undef X
    };

    return kind < ESP_OP_COUNT ? names[kind] : "?";
}

void esp_tape_init(struct esp_tape *t, struct esp_arena *arena)
{
    memset(t, 0, sizeof *t);
    t->arena = arena;
}

static void fault(struct esp_tape *t, const char *what, uint32_t a, uint32_t b)
{
    if (t->failed)
        return;
    t->failed = true;
    snprintf(t->fault, sizeof t->fault, "op %u: %s (%u, %u)", t->n_op, what, a, b);
}

esp_status esp_tape_finish(struct esp_tape *t, esp_error *err)
{
    if (t->failed)
        return esp_fail(err, ESP_EINVAL, "tape: %s", t->fault);
    return ESP_OK;
}

/* A copy of an arena array at twice its capacity; the old one stays in the arena until its end. */
static void *grown(struct esp_tape *t, const void *old, uint32_t n, uint32_t *cap, size_t size)
{
    uint32_t c = *cap ? *cap * 2 : 64;
    void *p = esp_arena_alloc_array(t->arena, c, size);

    if (!p) {
        fault(t, "out of memory", n, 0);
        return NULL;
    }
    if (n)
        memcpy(p, old, n * size);
    *cap = c;
    return p;
}

static uint32_t width(const struct esp_tape *t, esp_val v)
{
    return v < t->n_value ? t->values[v].width : 0;
}

static enum esp_rows rows(const struct esp_tape *t, esp_val v)
{
    return v < t->n_value ? t->values[v].rows : ESP_ROWS_TOKEN;
}

static void use(struct esp_tape *t, esp_val v)
{
    if (v < t->n_value)
        t->values[v].last_use = t->n_op;
}

/* Append op, whose result has `w` elements in each of `r` rows (w 0: no result). */
static esp_val append(struct esp_tape *t, struct esp_op op, enum esp_rows r, uint32_t w)
{
    op.out = ESP_NO_VAL;
    if (t->failed)
        return 0;
    if (t->n_op == t->cap_op) {
        void *p = grown(t, t->ops, t->n_op, &t->cap_op, sizeof *t->ops);

        if (!p)
            return 0;
        t->ops = p;
    }
    if (w) {
        if (t->n_value == t->cap_value) {
            void *p = grown(t, t->values, t->n_value, &t->cap_value, sizeof *t->values);

            if (!p)
                return 0;
            t->values = p;
        }
        op.out = t->n_value++;
        t->values[op.out] = (struct esp_value){.rows = r, .width = w, .born = t->n_op, .last_use = t->n_op};
    }
    use(t, op.a);
    use(t, op.b);
    t->ops[t->n_op++] = op;
    return op.out;
}

static struct esp_op unary(enum esp_op_kind kind, esp_val a)
{
    return (struct esp_op){.kind = kind, .a = a, .b = ESP_NO_VAL};
}

static struct esp_op binary(enum esp_op_kind kind, esp_val a, esp_val b)
{
    return (struct esp_op){.kind = kind, .a = a, .b = b};
}

static void same_width(struct esp_tape *t, esp_val a, uint32_t w, const char *what)
{
    if (width(t, a) != w)
        fault(t, what, width(t, a), w);
}

esp_val t_embed(struct esp_tape *t, const struct esp_weight *w)
{
    struct esp_op op = unary(ESP_OP_EMBED, ESP_NO_VAL);

    op.w = w;
    return append(t, op, ESP_ROWS_TOKEN, w->n_in);
}

esp_val t_input(struct esp_tape *t, uint32_t width_)
{
    return append(t, unary(ESP_OP_INPUT, ESP_NO_VAL), ESP_ROWS_TOKEN, width_);
}

esp_val t_concat(struct esp_tape *t, esp_val a, esp_val b)
{
    return append(t, binary(ESP_OP_CONCAT, a, b), rows(t, a), width(t, a) + width(t, b));
}

void t_hidden(struct esp_tape *t, esp_val x)
{
    append(t, unary(ESP_OP_HIDDEN, x), ESP_ROWS_TOKEN, 0);
}

esp_val t_rmsnorm(struct esp_tape *t, esp_val x, const float *gamma, float eps)
{
    struct esp_op op = unary(ESP_OP_RMSNORM, x);

    op.vec0 = gamma;
    op.eps = eps;
    return append(t, op, rows(t, x), width(t, x));
}

esp_val t_linear(struct esp_tape *t, esp_val x, const struct esp_weight *w)
{
    struct esp_op op = unary(ESP_OP_LINEAR, x);

    same_width(t, x, w->n_in, "input width and weight columns differ");
    op.w = w;
    return append(t, op, rows(t, x), w->n_out);
}

esp_val t_add(struct esp_tape *t, esp_val a, esp_val b)
{
    same_width(t, a, width(t, b), "widths of a sum differ");
    return append(t, binary(ESP_OP_ADD, a, b), rows(t, a), width(t, a));
}

esp_val t_head_rope(struct esp_tape *t, esp_val x, const float *gamma, float eps, uint32_t n_head,
                    uint32_t stride, uint32_t head_dim, float scale)
{
    struct esp_op op = unary(ESP_OP_HEAD_ROPE, x);

    same_width(t, x, n_head * stride, "heads do not fill the projection");
    op.vec0 = gamma;
    op.eps = eps;
    op.n_head = n_head;
    op.stride = stride;
    op.scale = scale;
    return append(t, op, ESP_ROWS_TOKEN, n_head * head_dim);
}

void t_kv_append(struct esp_tape *t, esp_val k, esp_val v, uint32_t layer)
{
    struct esp_op op = binary(ESP_OP_KV_APPEND, k, v);

    same_width(t, k, width(t, v), "widths of keys and values differ");
    op.layer = layer;
    append(t, op, ESP_ROWS_TOKEN, 0);
}

esp_val t_attend(struct esp_tape *t, esp_val q, uint32_t layer, uint32_t n_head)
{
    struct esp_op op = unary(ESP_OP_ATTEND, q);

    op.layer = layer;
    op.n_head = n_head;
    return append(t, op, ESP_ROWS_TOKEN, width(t, q));
}

esp_val t_head_gate(struct esp_tape *t, esp_val x, esp_val qg, uint32_t n_head, uint32_t stride)
{
    struct esp_op op = binary(ESP_OP_HEAD_GATE, x, qg);

    same_width(t, qg, n_head * stride, "heads do not fill the projection");
    op.n_head = n_head;
    op.stride = stride;
    return append(t, op, ESP_ROWS_TOKEN, width(t, x));
}

esp_val t_conv(struct esp_tape *t, esp_val p, const float *w, uint32_t layer)
{
    struct esp_op op = unary(ESP_OP_CONV, p);

    op.vec0 = w;
    op.layer = layer;
    return append(t, op, ESP_ROWS_TOKEN, width(t, p));
}

esp_val t_gates(struct esp_tape *t, esp_val b, esp_val a, const float *a_neg, const float *dt_bias)
{
    struct esp_op op = binary(ESP_OP_GATES, b, a);

    same_width(t, a, width(t, b), "widths of the gate projections differ");
    op.vec0 = a_neg;
    op.vec1 = dt_bias;
    return append(t, op, ESP_ROWS_TOKEN, 2 * width(t, b));
}

esp_val t_delta(struct esp_tape *t, esp_val c, esp_val gates, uint32_t layer, uint32_t vh, uint32_t dv)
{
    struct esp_op op = binary(ESP_OP_DELTA, c, gates);

    same_width(t, gates, 2 * vh, "gates do not fit the value heads");
    op.layer = layer;
    op.n_head = vh;
    return append(t, op, ESP_ROWS_TOKEN, vh * dv);
}

esp_val t_gated_norm(struct esp_tape *t, esp_val o, esp_val z, const float *gamma, float eps, uint32_t n_head)
{
    struct esp_op op = binary(ESP_OP_GATED_NORM, o, z);

    same_width(t, z, width(t, o), "gate and output widths differ");
    op.vec0 = gamma;
    op.eps = eps;
    op.n_head = n_head;
    return append(t, op, ESP_ROWS_TOKEN, width(t, o));
}

esp_val t_swiglu(struct esp_tape *t, esp_val gate, esp_val up)
{
    same_width(t, gate, width(t, up), "gate and up widths differ");
    return append(t, binary(ESP_OP_SWIGLU, gate, up), ESP_ROWS_TOKEN, width(t, gate));
}

esp_val t_gather(struct esp_tape *t, esp_val x)
{
    return append(t, unary(ESP_OP_GATHER, x), ESP_ROWS_OUTPUT, width(t, x));
}

void t_logits(struct esp_tape *t, esp_val x, const struct esp_weight *head)
{
    struct esp_op op = unary(ESP_OP_LOGITS, x);

    same_width(t, x, head->n_in, "hidden width and head columns differ");
    op.w = head;
    t->n_vocab = head->n_out;
    append(t, op, ESP_ROWS_OUTPUT, 0);
}

void t_name(struct esp_tape *t, esp_val v, const char *prefix, uint32_t i, const char *suffix)
{
    char name[64];
    int n = snprintf(name, sizeof name, "%s%u%s", prefix, i, suffix);

    if (t->failed || v >= t->n_value || n < 0)
        return;
    t->values[v].name = esp_arena_strndup(t->arena, name, strlen(name));
    if (!t->values[v].name)
        fault(t, "out of memory", v, 0);
}
