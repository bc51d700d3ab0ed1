/*
 * A small model of the family with random weights in any format, on a device of choice, for comparisons of
 * backends.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_CUDA_SMALL_H
#define ESP_TESTS_CUDA_SMALL_H

#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "formats/trellis.h"

#include "support/net.h"

struct small_shape {
    uint32_t hidden, ffn, n_head, n_kv, head_dim, kh, vh, dk, dv, vocab;
    enum esp_format_id format;
    uint32_t group;
    enum esp_kv kv;
    const char *scheme; /* of keys and values by name, instead of kv; NULL: kv */
    enum esp_act act;
    bool two;           /* two terms of an activation on the device (int8x2), whatever act is on the CPU */
    bool along_outputs; /* trellis codes along axis 0 where outputs are whole blocks */
    enum esp_format_id other; /* every second matrix has this format; F32: none has */
};

enum { SMALL_CONTEXT = 768, SMALL_TOK = 512, SMALL_SEQ = 4, SMALL_LAYERS = 4 };

static inline void small_config(struct esp_config *c, const struct small_shape *s)
{
    memset(c, 0, sizeof *c);
    c->arch = ESP_ARCH_QWEN35;
    c->vocab_size = s->vocab;
    c->n_layer = SMALL_LAYERS;
    c->hidden = s->hidden;
    c->ffn = s->ffn;
    c->n_head = s->n_head;
    c->n_kv_head = s->n_kv;
    c->head_dim = s->head_dim;
    c->lin_k_head = s->kh;
    c->lin_v_head = s->vh;
    c->lin_k_dim = s->dk;
    c->lin_v_dim = s->dv;
    c->conv_kernel = 4;
    c->rms_eps = 1e-6;
    c->max_position = 4096;
    for (uint32_t i = 0; i < SMALL_LAYERS; i++)
        c->n_full += c->is_full[i] = i % 2;
    c->rope = (struct esp_config_rope){.type = ESP_ROPE_DEFAULT,
                                       .theta = 1e5,
                                       .partial = 0.25,
                                       .rotary_dims = s->head_dim / 4,
                                       .section = {s->head_dim / 8}};
    c->tied_top = ESP_TIED_YES;
}

/* ---- a source that mixes formats and axes ---- */

struct small_mix {
    struct esp_source *a, *b;
    bool along_outputs;
    uint32_t n;
};

static inline esp_status small_matrix(void *ctx, enum esp_part part, const char *module, uint32_t n_out,
                                      uint32_t n_in, struct esp_weight *out, esp_error *err)
{
    struct small_mix *m = ctx;
    struct esp_source *s = m->b && m->n++ % 2 ? m->b : m->a;

    if (m->along_outputs && n_out % ESP_TRELLIS_BLOCK == 0 && n_in >= 64) {
        ESP_TRY(s->matrix(s->ctx, part, module, n_in, n_out, out, err));
        if (esp_is_trellis(out->format)) { /* the transpose, as it is stored */
            out->axis = 0;
            out->n_out = n_out;
            out->n_in = n_in;
            return esp_weight_layout(out, module, err);
        }
    }
    return s->matrix(s->ctx, part, module, n_out, n_in, out, err);
}

static inline esp_status small_vector(void *ctx, enum esp_part part, const char *name, uint32_t n, float *out,
                                      esp_error *err)
{
    struct small_mix *m = ctx;

    return m->a->vector(m->a->ctx, part, name, n, out, err);
}

static inline void small_close(struct esp_source *s)
{
    struct small_mix *m = s->ctx;

    m->a->close(m->a);
    if (m->b)
        m->b->close(m->b);
    free(m);
    free(s);
}

static inline struct esp_source *small_source(const struct small_shape *s)
{
    struct esp_source *src = calloc(1, sizeof *src);
    struct small_mix *m = calloc(1, sizeof *m);
    esp_error err;

    assert_non_null(src);
    assert_non_null(m);
    m->along_outputs = s->along_outputs;
    /* beside trellis codes, which are for MLPs, stands affine4 */
    test_ok(esp_source_random(&m->a, s->format, esp_is_trellis(s->format) ? 64 : s->group, true,
                              ESP_SOURCE_WEIGHTS, 7, &err),
            &err);
    if (s->other != ESP_FORMAT_F32)
        test_ok(esp_source_random(&m->b, s->other, 64, true, ESP_SOURCE_WEIGHTS, 8, &err), &err);
    *src = *m->a;
    src->ctx = m;
    src->matrix = small_matrix;
    src->vector = small_vector;
    src->close = small_close;
    return src;
}

/* The model on the CPU (cuda false) or the device; fails the test, or ends with 77 without a device. */
static inline void small_open(struct test_net *t, const struct small_shape *s, bool cuda)
{
    struct esp_plan_opts p = {.act = s->two && cuda ? ESP_ACT_INT8X2 : s->act,
                              .max_tok = SMALL_TOK,
                              .max_out = SMALL_TOK,
                              .max_seq = SMALL_SEQ,
                              .context = SMALL_CONTEXT};
    struct esp_pool_sizes z = {
        .n_page = SMALL_SEQ * 5, .n_slot = 4 * SMALL_SEQ, .n_journal = SMALL_SEQ, .journal_rows = 32};
    struct test_net_opts o = {.level = esp_cpu_best(), .threads = 2, .cuda = cuda};
    static struct esp_config c;
    esp_error err;

    memset(t, 0, sizeof *t);
    small_config(&c, s);
    t->src = small_source(s);
    test_ok(esp_net_load(&t->net, &c, t->src, &err), &err);
    t->net->layout.kv = s->kv;
    for (uint32_t i = 0; s->scheme && i < t->net->layout.n_attn; i++) {
        t->net->layout.kv = ESP_KV_CODED;
        test_ok(esp_kv_parse(&t->net->layout.layers[i].scheme, s->scheme, &err), &err);
    }
    test_ok(esp_layout_finish(&t->net->layout, &err), &err);
    for (uint32_t i = 0; i < t->net->tape.n_value; i++) /* every value has a tap: "v3" */
        t_name(&t->net->tape, i, "v", i, "");
    test_ok(esp_tape_finish(&t->net->tape, &err), &err);
    test_device(&t->dev, &o);
    test_ok(esp_state_pools_create(&t->pools, t->dev, &t->net->layout, &z, &err), &err);
    test_ok(t->dev->ops->compile(t->dev, &t->net->tape, &t->pools->mem, &p, &t->plan, &err), &err);
    t->n_vocab = t->net->tape.n_vocab;
}

/* One pass: n[i] tokens behind sequence i (0: not part), kinds as given; then commit keep[i]. */
struct small_pass {
    uint32_t n[SMALL_SEQ];
    enum esp_pass kind;
    uint32_t keep; /* of journalled passes */
};

/* Token j of sequence i, position by position the same in every run. */
static inline int32_t small_token(uint32_t i, uint32_t pos, uint32_t vocab)
{
    return (int32_t)((pos * 2654435761u + i * 40503u + (pos >> 3)) % vocab);
}

/* Run the pass; logits [tokens in order][vocab] or NULL. */
static inline uint32_t small_run(struct test_net *t, struct esp_state **seqs, const struct small_pass *p,
                                 float *logits, esp_tap_fn tap, void *user)
{
    static int32_t ids[SMALL_TOK], pos[SMALL_TOK][3];
    static uint32_t out[SMALL_TOK];
    struct esp_batch_seq rows[SMALL_SEQ];
    struct esp_batch b = {.ids = ids,
                          .pos = (const int32_t(*)[3])pos,
                          .seqs = rows,
                          .out_rows = out,
                          .logits = logits,
                          .tap = tap,
                          .tap_user = user};
    esp_error err;

    for (uint32_t i = 0; i < SMALL_SEQ; i++) {
        uint32_t at = esp_state_length(seqs[i]);

        if (!p->n[i])
            continue;
        test_ok(esp_state_begin(seqs[i], p->n[i], p->kind, &rows[b.n_seq], &err), &err);
        rows[b.n_seq++].tok0 = b.n_tok;
        for (uint32_t j = 0; j < p->n[i]; j++, b.n_tok++) {
            ids[b.n_tok] = small_token(i, at + j, t->n_vocab);
            pos[b.n_tok][0] = pos[b.n_tok][1] = pos[b.n_tok][2] = (int32_t)(at + j);
            out[b.n_tok] = b.n_tok;
        }
    }
    b.n_out = logits ? b.n_tok : 0;
    test_ok(t->dev->ops->run(t->plan, &b, &err), &err);
    test_ok(t->dev->ops->wait(t->dev, &err), &err);
    for (uint32_t i = 0; i < SMALL_SEQ; i++)
        if (p->n[i])
            test_ok(esp_state_commit(seqs[i], p->kind == ESP_PASS_WRITE ? p->n[i] : p->keep, &err), &err);
    return b.n_tok;
}

#endif
