/*
 * Qwen3.5 and 3.6, dense: three gated-DeltaNet layers to one full-attention layer, SwiGLU MLPs, optionally
 * tied head. First the weights by name, then the forward pass as the paper has it. Shapes: H hidden, F MLP
 * width, V vocabulary, hd attention head, dk and dv linear heads. Source: the reference implementation in
 * transformers, model type qwen3_5.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdio.h>

#include "model/net.h"

struct attention {
    const struct esp_weight *q;     /* [n_head * 2 * hd][H]: per head hd query rows, then hd gate rows */
    const struct esp_weight *k, *v; /* [n_kv * hd][H] */
    const struct esp_weight *o;     /* [H][n_head * hd] */
    const float *q_norm, *k_norm;   /* [hd] */
};

struct delta {
    const struct esp_weight *qkv;   /* [conv_dim][H]: kh * dk query, kh * dk key, vh * dv value rows */
    const struct esp_weight *z;     /* [vh * dv][H] output gate */
    const struct esp_weight *b, *a; /* [vh][H] write strength, decay */
    const struct esp_weight *out;   /* [H][vh * dv] */
    const float *conv;              /* [conv_dim][4], tap 3 is the current token */
    const float *a_neg, *dt_bias;   /* [vh] */
    const float *norm;              /* [dv], plain gamma */
};

struct layer {
    const float *norm_in, *norm_mlp; /* [H] */
    struct attention attn;
    struct delta delta;
    const struct esp_weight *gate, *up, *down; /* [F][H], [F][H], [H][F] */
};

struct mtp {                                      /* the draft layer: embedding and head are the trunk's */
    const struct esp_weight *fc;                  /* [H][2H]: embedding columns, then hidden columns */
    const float *norm_embed, *norm_hidden, *norm; /* [H] */
    struct layer layer;
    /* of a folded model, else NULL: hidden rows into the layer's own basis and back, final gain of the trunk
     */
    const struct esp_weight *to_plain, *to_basis; /* [H][H] */
    const float *plain_norm;                      /* [H] */
};

struct model {
    struct esp_net *net;
    const struct esp_config *c;
    const struct esp_weight *embed, *head; /* [V][H] */
    const float *norm;
    struct layer *layers;
    struct mtp mtp;
};

/* ---- weights ---- */

static void bind_attention(struct esp_binder *b, struct attention *a, const struct esp_config *c)
{
    uint32_t hd = c->head_dim;

    a->q = esp_bind_matrix(b, "self_attn.q_proj", c->n_head * 2 * hd, c->hidden);
    a->k = esp_bind_matrix(b, "self_attn.k_proj", c->n_kv_head * hd, c->hidden);
    a->v = esp_bind_matrix(b, "self_attn.v_proj", c->n_kv_head * hd, c->hidden);
    a->o = esp_bind_matrix(b, "self_attn.o_proj", c->hidden, c->n_head * hd);
    a->q_norm = esp_bind_norm(b, "self_attn.q_norm.weight", hd);
    a->k_norm = esp_bind_norm(b, "self_attn.k_norm.weight", hd);
}

static void bind_delta(struct esp_binder *b, struct delta *d, const struct esp_config *c, uint32_t conv_dim)
{
    uint32_t value_dim = c->lin_v_head * c->lin_v_dim;
    float *a_neg;

    d->qkv = esp_bind_matrix(b, "linear_attn.in_proj_qkv", conv_dim, c->hidden);
    d->z = esp_bind_matrix(b, "linear_attn.in_proj_z", value_dim, c->hidden);
    d->b = esp_bind_matrix(b, "linear_attn.in_proj_b", c->lin_v_head, c->hidden);
    d->a = esp_bind_matrix(b, "linear_attn.in_proj_a", c->lin_v_head, c->hidden);
    d->out = esp_bind_matrix(b, "linear_attn.out_proj", c->hidden, value_dim);
    d->conv = esp_bind_vector(b, "linear_attn.conv1d.weight", conv_dim * ESP_CONV_TAPS);
    d->dt_bias = esp_bind_vector(b, "linear_attn.dt_bias", c->lin_v_head);
    d->norm = esp_bind_vector(b, "linear_attn.norm.weight", c->lin_v_dim);
    a_neg = (float *)(uintptr_t)esp_bind_vector(b, "linear_attn.A_log", c->lin_v_head);
    for (uint32_t i = 0; a_neg && i < c->lin_v_head; i++) {
        a_neg[i] = -expf(a_neg[i]);
        if (!isfinite(a_neg[i])) /* -inf times a softplus of 0 would be NaN */
            b->status = esp_fail(b->err, ESP_ENUMERIC, "%slinear_attn.A_log: exp of element %u is not finite",
                                 b->prefix, i);
    }
    d->a_neg = a_neg;
}

/* The norms and the MLP of any layer, and its mixer. */
static void bind_layer(struct esp_binder *b, struct layer *l, const struct model *m, uint32_t i, bool full)
{
    const struct esp_config *c = m->c;

    snprintf(b->prefix, sizeof b->prefix, "layers.%u.", i);
    l->norm_in = esp_bind_norm(b, "input_layernorm.weight", c->hidden);
    if (full)
        bind_attention(b, &l->attn, c);
    else
        bind_delta(b, &l->delta, c, m->net->layout.conv_dim);
    l->norm_mlp = esp_bind_norm(b, "post_attention_layernorm.weight", c->hidden);
    l->gate = esp_bind_matrix(b, "mlp.gate_proj", c->ffn, c->hidden);
    l->up = esp_bind_matrix(b, "mlp.up_proj", c->ffn, c->hidden);
    l->down = esp_bind_matrix(b, "mlp.down_proj", c->hidden, c->ffn);
}

static void bind_mtp(struct esp_binder *b, struct mtp *t, const struct model *m)
{
    uint32_t hidden = m->c->hidden;

    b->part = ESP_PART_MTP;
    t->fc = esp_bind_matrix(b, "fc", hidden, 2 * hidden);
    t->norm_embed = esp_bind_norm(b, "pre_fc_norm_embedding.weight", hidden);
    t->norm_hidden = esp_bind_norm(b, "pre_fc_norm_hidden.weight", hidden);
    t->norm = esp_bind_norm(b, "norm.weight", hidden);
    if (b->src->mtp_basis) {
        t->to_plain = esp_bind_matrix(b, "to_plain", hidden, hidden);
        t->plain_norm = esp_bind_norm(b, "plain_norm.weight", hidden);
        t->to_basis = esp_bind_matrix(b, "to_basis", hidden, hidden);
    }
    bind_layer(b, &t->layer, m, 0, true);
    b->prefix[0] = 0;
}

static esp_status bind_model(struct model *m, const struct esp_source *src, esp_error *err)
{
    const struct esp_config *c = m->c;
    struct esp_binder b = {.net = m->net, .src = src, .part = ESP_PART_TEXT, .err = err};

    m->layers = esp_arena_alloc_array(m->net->arena, c->n_layer, sizeof *m->layers);
    if (!m->layers)
        return esp_fail(err, ESP_ENOMEM, "model of %u layers: out of memory", c->n_layer);
    m->embed = esp_bind_matrix(&b, "embed_tokens", c->vocab_size, c->hidden);
    for (uint32_t i = 0; i < c->n_layer && b.status == ESP_OK; i++)
        bind_layer(&b, &m->layers[i], m, i, c->is_full[i]);
    b.prefix[0] = 0;
    m->norm = esp_bind_norm(&b, "norm.weight", c->hidden);
    m->head = m->embed;
    if (!src->tied) {
        b.part = ESP_PART_HEAD;
        m->head = esp_bind_matrix(&b, "", c->vocab_size, c->hidden);
    }
    if (src->has_mtp && c->n_mtp_layer)
        bind_mtp(&b, &m->mtp, m);
    return b.status;
}

/* ---- forward pass ---- */

static esp_val record_attention(struct esp_tape *t, const struct model *m, const struct attention *a,
                                uint32_t layer, esp_val u)
{
    const struct esp_config *c = m->c;
    uint32_t hd = c->head_dim;
    float eps = (float)c->rms_eps;
    esp_val qg = t_linear(t, u, a->q); /* [n_head][query hd, gate hd] */
    esp_val k = t_linear(t, u, a->k);
    esp_val v = t_linear(t, u, a->v);
    esp_val q = t_head_rope(t, qg, a->q_norm, eps, c->n_head, 2 * hd, hd, 1.0f / sqrtf((float)hd));
    esp_val o;

    k = t_head_rope(t, k, a->k_norm, eps, c->n_kv_head, hd, hd, 1.0f);
    t_kv_append(t, k, v, layer);
    o = t_attend(t, q, layer, c->n_head);
    o = t_head_gate(t, o, qg, c->n_head, 2 * hd);
    t_name(t, o, "o_proj_in.", layer, "");
    return t_linear(t, o, a->o);
}

static esp_val record_delta(struct esp_tape *t, const struct model *m, const struct delta *d, uint32_t layer,
                            esp_val u)
{
    const struct esp_config *c = m->c;
    esp_val p = t_linear(t, u, d->qkv);
    esp_val z = t_linear(t, u, d->z);
    esp_val b = t_linear(t, u, d->b);
    esp_val a = t_linear(t, u, d->a);
    esp_val qkv = t_conv(t, p, d->conv, layer);
    esp_val gates = t_gates(t, b, a, d->a_neg, d->dt_bias);
    esp_val o = t_delta(t, qkv, gates, layer, c->lin_v_head, c->lin_v_dim);

    o = t_gated_norm(t, o, z, d->norm, (float)c->rms_eps, c->lin_v_head);
    t_name(t, o, "out_proj_in.", layer, "");
    return t_linear(t, o, d->out);
}

static esp_val record_mlp(struct esp_tape *t, const struct layer *w, uint32_t layer, esp_val u)
{
    esp_val gate = t_linear(t, u, w->gate);
    esp_val up = t_linear(t, u, w->up);
    esp_val h = t_swiglu(t, gate, up);

    t_name(t, h, "down_in.", layer, "");
    return t_linear(t, h, w->down);
}

struct place {    /* of a layer */
    uint32_t i;   /* in the model; names its values */
    uint32_t nth; /* among the layers of its kind: where its state lies */
    bool full;
};

/* One layer on the residual stream x. */
static esp_val record_layer(struct esp_tape *t, const struct model *m, const struct layer *w, struct place at,
                            esp_val x)
{
    float eps = (float)m->c->rms_eps;
    esp_val u = t_rmsnorm(t, x, w->norm_in, eps);

    x = t_add(t, x,
              at.full ? record_attention(t, m, &w->attn, at.nth, u)
                      : record_delta(t, m, &w->delta, at.nth, u));
    t_name(t, x, "mid.", at.i, "");
    u = t_rmsnorm(t, x, w->norm_mlp, eps);
    return t_add(t, x, record_mlp(t, w, at.i, u));
}

static void record(struct esp_tape *t, const struct model *m)
{
    const struct esp_config *c = m->c;
    float eps = (float)c->rms_eps;
    uint32_t n_attn = 0, n_delta = 0; /* layers of each kind so far: where their state lies */
    esp_val x = t_embed(t, m->embed);

    t_name(t, x, "hidden.", 0, "");
    for (uint32_t i = 0; i < c->n_layer; i++) {
        bool full = c->is_full[i];

        x = record_layer(t, m, &m->layers[i], (struct place){i, full ? n_attn++ : n_delta++, full}, x);
        t_name(t, x, "hidden.", i + 1, ""); /* before the final norm, for the last layer too */
    }
    x = t_rmsnorm(t, x, m->norm, eps);
    t_name(t, x, "final.", c->n_layer, "");
    t_hidden(t, x);
    t_logits(t, t_gather(t, x), m->head);
}

/* What enters the draft layer: the next token and the hidden state, normed and mixed. */
static esp_val record_mtp_input(struct esp_tape *t, const struct model *m)
{
    const struct mtp *w = &m->mtp;
    float eps = (float)m->c->rms_eps;
    esp_val e = t_rmsnorm(t, t_embed(t, m->embed), w->norm_embed, eps);
    esp_val h = t_input(t, m->c->hidden);

    if (w->to_plain) /* the scale of a row does not matter: a norm follows */
        h = t_rmsnorm(t, t_linear(t, h, w->to_plain), w->plain_norm, eps);
    h = t_rmsnorm(t, h, w->norm_hidden, eps);
    return t_linear(t, t_concat(t, e, h), w->fc);
}

/* The layer's keys and values alone: all that later rows need of one whose prediction nobody asks for. */
static void record_mtp_keys(struct esp_tape *t, const struct model *m, uint32_t layer)
{
    const struct layer *w = &m->mtp.layer;
    const struct esp_config *c = m->c;
    float eps = (float)c->rms_eps;
    esp_val u = t_rmsnorm(t, record_mtp_input(t, m), w->norm_in, eps);
    esp_val k = t_linear(t, u, w->attn.k);
    esp_val v = t_linear(t, u, w->attn.v);

    k = t_head_rope(t, k, w->attn.k_norm, eps, c->n_kv_head, c->head_dim, c->head_dim, 1.0f);
    t_kv_append(t, k, v, layer);
}

/*
 * The draft layer at position i: token i + 1 and the trunk's hidden state at i after its final norm predict
 * token i + 2. What it offers as hidden rows is its own output after mtp.norm: the input of the next draft in
 * a chain.
 */
static void record_mtp(struct esp_tape *t, const struct model *m, uint32_t layer)
{
    const struct mtp *w = &m->mtp;
    float eps = (float)m->c->rms_eps;
    esp_val x = record_mtp_input(t, m);

    x = record_layer(t, m, &w->layer, (struct place){m->c->n_layer, layer, true}, x);
    x = t_rmsnorm(t, x, w->norm, eps);
    if (w->to_basis)
        x = t_linear(t, x, w->to_basis);
    t_hidden(t, x);
    t_logits(t, t_gather(t, x), m->head);
}

static esp_status load(struct esp_net *net, const struct esp_source *src, esp_error *err)
{
    const struct esp_config *c = &net->config;
    struct model m = {.net = net, .c = c};

    if (c->conv_kernel != ESP_CONV_TAPS)
        return esp_fail(err, ESP_EUNSUPPORTED, "linear_conv_kernel_dim %u, %d is supported", c->conv_kernel,
                        ESP_CONV_TAPS);
    net->layout = (struct esp_layout){
        .n_attn = c->n_full,
        .n_delta = c->n_layer - c->n_full,
        .n_kv_head = c->n_kv_head,
        .head_dim = c->head_dim,
        .kh = c->lin_k_head,
        .vh = c->lin_v_head,
        .dk = c->lin_k_dim,
        .dv = c->lin_v_dim,
        .conv_dim = 2 * c->lin_k_head * c->lin_k_dim + c->lin_v_head * c->lin_v_dim,
    };
    net->tape.rope = esp_net_rope(net->arena, c);
    if (!net->tape.rope.freq || !net->tape.rope.axis)
        return esp_fail(err, ESP_ENOMEM, "model: out of memory");
    ESP_TRY(bind_model(&m, src, err));
    record(&net->tape, &m);
    if (m.mtp.fc) {
        net->mtp.rope = net->mtp_keys.rope = net->tape.rope;
        net->mtp_layer = c->n_full;
        record_mtp(&net->mtp, &m, net->mtp_layer);
        record_mtp_keys(&net->mtp_keys, &m, net->mtp_layer);
    }
    return ESP_OK;
}

const struct esp_arch_ops esp_arch_qwen35 = {.arch = ESP_ARCH_QWEN35, .load = load};
