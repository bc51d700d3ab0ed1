/*
 * See naive.h. Letters are those of the gated delta rule: S state, k and q unit vectors, beta and g gates.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/naive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double eps = 1e-6;

struct work {
    const struct naive_model *m;
    enum naive_twist twist;
    uint32_t n;                    /* tokens of the sequence */
    double *keys[NAIVE_MAX_LAYER]; /* [n][n_kv * head_dim] */
    double *values[NAIVE_MAX_LAYER];
    double *state[NAIVE_MAX_LAYER];      /* [vh][dk][dv] */
    double *rows[NAIVE_MAX_LAYER];       /* [n][conv channels] before the convolution */
    double *t0, *t1, *t2, *t3, *t4, *t5; /* scratch, each wide enough for any vector */
};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x * sigmoid(x);
}

static double to_bf16(double x)
{
    float f = (float)x;
    uint32_t u;

    memcpy(&u, &f, 4);
    u = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u;
    memcpy(&f, &u, 4);
    return (double)f;
}

static void product(double *y, const double *w, const double *x, uint32_t n_out, uint32_t n_in)
{
    for (uint32_t o = 0; o < n_out; o++) {
        double sum = 0;

        for (uint32_t i = 0; i < n_in; i++)
            sum += w[(size_t)o * n_in + i] * x[i];
        y[o] = sum;
    }
}

/* Norm whose stored weight is gamma - 1. */
static void norm1p(const struct work *k, double *y, const double *x, const double *w, uint32_t n)
{
    double one = k->twist == NAIVE_NORM_TWICE ? 2 : k->twist == NAIVE_NORM_NEVER ? 0 : 1;
    double sq = 0;

    for (uint32_t i = 0; i < n; i++)
        sq += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sq / n + eps) * (one + w[i]);
}

static double yarn_dim(const struct naive_shape *s, double beta)
{
    return s->rotary * log(s->yarn_original / (2 * M_PI * beta)) / (2 * log(s->theta));
}

static double frequency(const struct naive_shape *s, uint32_t width, uint32_t j)
{
    double w = pow(s->theta, -2.0 * j / width), low, high, ramp;

    if (s->yarn_factor == 0)
        return w;
    low = fmax(floor(yarn_dim(s, 32)), 0);
    high = fmin(ceil(yarn_dim(s, 1)), s->rotary - 1.0);
    ramp = fmin(fmax((j - low) / (high - low), 0), 1);
    return w / s->yarn_factor * ramp + w * (1 - ramp);
}

static uint32_t axis(const struct work *k, uint32_t j)
{
    const uint32_t *sec = k->m->shape.section;

    if (k->twist == NAIVE_MROPE_BLOCKS)
        return j < sec[0] ? 0 : j < sec[0] + sec[1] ? 1 : 2;
    if (j % 3 == 1 && j < 3 * sec[1])
        return 1;
    return j % 3 == 2 && j < 3 * sec[2] ? 2 : 0;
}

static void rotate(const struct work *k, double *x, const int32_t pos[3])
{
    const struct naive_shape *s = &k->m->shape;
    uint32_t width = k->twist == NAIVE_ROTATE_ALL ? s->head_dim : s->rotary, half = width / 2;
    double scale = s->yarn_factor > 0 && k->twist != NAIVE_YARN_OFF ? 0.1 * log(s->yarn_factor) + 1 : 1;

    for (uint32_t j = 0; j < half; j++) {
        double phi = pos[axis(k, j)] * frequency(s, width, j), c = cos(phi) * scale, d = sin(phi) * scale;
        double a = x[j], b = x[j + half];

        x[j] = a * c - b * d;
        x[j + half] = b * c + a * d;
    }
}

/* Softmax attention of one query head over positions 0..t; o [head_dim]. */
static void attend(const struct work *k, uint32_t layer, uint32_t t, uint32_t kv_head, const double *q,
                   double *o)
{
    const struct naive_shape *s = &k->m->shape;
    uint32_t hd = s->head_dim, ld = s->n_kv * hd;
    double max = -INFINITY, sum = 0, *p = k->t5;

    for (uint32_t i = 0; i <= t; i++) {
        const double *key = k->keys[layer] + (size_t)i * ld + kv_head * hd;

        p[i] = 0;
        for (uint32_t d = 0; d < hd; d++)
            p[i] += q[d] * key[d] / sqrt(hd);
        max = fmax(max, p[i]);
    }
    memset(o, 0, sizeof *o * hd);
    for (uint32_t i = 0; i <= t; i++) {
        p[i] = exp(p[i] - max);
        sum += p[i];
    }
    for (uint32_t i = 0; i <= t; i++)
        for (uint32_t d = 0; d < hd; d++)
            o[d] += p[i] / sum * k->values[layer][(size_t)i * ld + kv_head * hd + d];
}

static void attention(const struct work *k, uint32_t layer, uint32_t t, const int32_t pos[3], const double *u,
                      double *out)
{
    const struct naive_shape *s = &k->m->shape;
    const struct naive_layer *w = &k->m->layer[layer];
    uint32_t hd = s->head_dim, ld = s->n_kv * hd;
    double *key = k->keys[layer] + (size_t)t * ld, *val = k->values[layer] + (size_t)t * ld;
    double *qg = k->t1, *o = k->t2;

    product(key, w->k, u, ld, s->hidden);
    product(val, w->v, u, ld, s->hidden);
    product(qg, w->q, u, 2 * s->n_head * hd, s->hidden);
    for (uint32_t h = 0; h < s->n_kv; h++) {
        norm1p(k, key + h * hd, key + h * hd, w->k_norm, hd);
        rotate(k, key + h * hd, pos);
    }
    for (uint32_t i = 0; i < ld && k->twist == NAIVE_KV_BF16; i++) {
        key[i] = to_bf16(key[i]);
        val[i] = to_bf16(val[i]);
    }
    for (uint32_t h = 0; h < s->n_head; h++) {
        bool halves = k->twist == NAIVE_GATE_HALVES;
        double *q = qg + (halves ? h : 2 * h) * hd, *gate = halves ? qg + (s->n_head + h) * hd : q + hd;

        norm1p(k, q, q, w->q_norm, hd);
        rotate(k, q, pos);
        attend(k, layer, t, h / (s->n_head / s->n_kv), q, o + h * hd);
        for (uint32_t d = 0; d < hd; d++)
            o[h * hd + d] *= k->twist == NAIVE_GATE_SILU ? silu(gate[d]) : sigmoid(gate[d]);
    }
    product(out, w->o, o, s->hidden, s->n_head * hd);
}

/* y = silu(causal convolution) at token t. */
static void convolve(const struct work *k, uint32_t layer, uint32_t t, double *y, uint32_t n)
{
    const double *w = k->m->layer[layer].conv;

    for (uint32_t c = 0; c < n; c++) {
        double sum = 0;

        for (uint32_t j = 0; j < 4; j++)
            if (t + j >= 3)
                sum += w[4 * c + (k->twist == NAIVE_TAPS_REVERSED ? 3 - j : j)] *
                       k->rows[layer][(size_t)(t + j - 3) * n + c];
        y[c] = silu(sum);
    }
}

static void unit(double *y, const double *x, uint32_t n, double scale)
{
    double sq = 0;

    for (uint32_t i = 0; i < n; i++)
        sq += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sq + eps) * scale;
}

/* One token of one value head: decay, read, correct, write, read. S [dk][dv], o [dv]. */
static void delta_rule(const struct work *w, double *S, const double *q, const double *k, const double *v,
                       double beta, double g, double *o)
{
    uint32_t dk = w->m->shape.dk, dv = w->m->shape.dv;
    double decay = exp(g);

    for (uint32_t d = 0; d < dv; d++) {
        double m = 0, early = 0, delta;

        o[d] = 0;
        for (uint32_t i = 0; i < dk; i++) {
            early += S[i * dv + d] * k[i];
            S[i * dv + d] *= decay;
            m += S[i * dv + d] * k[i];
        }
        delta = beta * (v[d] - (w->twist == NAIVE_READ_EARLY ? early : m));
        for (uint32_t i = 0; i < dk; i++) {
            S[i * dv + d] += k[i] * delta;
            o[d] += S[i * dv + d] * q[i];
        }
    }
}

static void linear_attention(const struct work *k, uint32_t layer, uint32_t t, const double *u, double *out)
{
    const struct naive_shape *s = &k->m->shape;
    const struct naive_layer *w = &k->m->layer[layer];
    uint32_t kd = s->kh * s->dk, channels = 2 * kd + s->vh * s->dv, dv = s->dv;
    double *c = k->t1, *y = k->t2, *z = k->t3, *gates = k->t4, *qk = k->t5;

    product(k->rows[layer] + (size_t)t * channels, w->qkv, u, channels, s->hidden);
    convolve(k, layer, t, c, channels);
    product(z, w->z, u, s->vh * dv, s->hidden);
    product(gates, w->b, u, s->vh, s->hidden);
    product(gates + s->vh, w->a, u, s->vh, s->hidden);
    for (uint32_t h = 0; h < s->vh; h++) {
        uint32_t kh = k->twist == NAIVE_HEADS_TILED ? h % s->kh : h / (s->vh / s->kh);
        double x = gates[s->vh + h] + w->dt_bias[h], beta = sigmoid(gates[h]), sq = 0, *o = y + h * dv;
        double g = -exp(w->a_log[h]) * (x > 20 ? x : log1p(exp(x)));

        if (k->twist == NAIVE_BETA_BF16)
            beta = to_bf16(beta);
        unit(qk, c + kh * s->dk, s->dk, 1 / sqrt(s->dk));
        unit(qk + s->dk, c + kd + kh * s->dk, s->dk, 1);
        delta_rule(k, k->state[layer] + (size_t)h * s->dk * dv, qk, qk + s->dk, c + 2 * kd + h * dv, beta, g,
                   o);
        for (uint32_t d = 0; d < dv; d++)
            sq += o[d] * o[d];
        for (uint32_t d = 0; d < dv; d++)
            o[d] = o[d] / sqrt(sq / dv + eps) * w->norm[d] * silu(z[h * dv + d]);
    }
    product(out, w->out, y, s->hidden, s->vh * dv);
}

static void mlp(const struct work *k, uint32_t layer, const double *u, double *out)
{
    const struct naive_shape *s = &k->m->shape;
    const struct naive_layer *w = &k->m->layer[layer];

    product(k->t1, w->gate, u, s->ffn, s->hidden);
    product(k->t2, w->up, u, s->ffn, s->hidden);
    for (uint32_t i = 0; i < s->ffn; i++)
        k->t1[i] = silu(k->t1[i]) * k->t2[i];
    product(out, w->down, k->t1, s->hidden, s->ffn);
}

static void open_work(struct work *k)
{
    const struct naive_shape *s = &k->m->shape;
    size_t channels = 2 * s->kh * s->dk + s->vh * s->dv;
    size_t widest = s->hidden + s->ffn + 2 * s->n_head * s->head_dim + channels + k->n;

    for (uint32_t l = 0; l < s->n_layer; l++) {
        k->keys[l] = calloc((size_t)k->n * s->n_kv * s->head_dim, sizeof(double));
        k->values[l] = calloc((size_t)k->n * s->n_kv * s->head_dim, sizeof(double));
        k->state[l] = calloc((size_t)s->vh * s->dk * s->dv, sizeof(double));
        k->rows[l] = calloc((size_t)k->n * channels, sizeof(double));
    }
    k->t0 = calloc(6 * widest, sizeof(double));
    k->t1 = k->t0 + widest;
    k->t2 = k->t1 + widest;
    k->t3 = k->t2 + widest;
    k->t4 = k->t3 + widest;
    k->t5 = k->t4 + widest;
}

static void close_work(struct work *k)
{
    for (uint32_t l = 0; l < k->m->shape.n_layer; l++) {
        free(k->keys[l]);
        free(k->values[l]);
        free(k->state[l]);
        free(k->rows[l]);
    }
    free(k->t0);
}

void naive_forward(const struct naive_model *m, enum naive_twist twist, const int32_t *ids,
                   const int32_t (*pos)[3], uint32_t n, double *logits)
{
    uint32_t hidden = m->shape.hidden;
    struct work k = {.m = m, .twist = twist, .n = n};
    double *x = calloc(2 * hidden, sizeof *x), *y = x + hidden;

    open_work(&k);
    for (uint32_t t = 0; t < n; t++) {
        const int32_t plain[3] = {(int32_t)t, (int32_t)t, (int32_t)t};

        memcpy(x, m->embed + (size_t)ids[t] * hidden, sizeof *x * hidden);
        for (uint32_t l = 0; l < m->shape.n_layer; l++) {
            norm1p(&k, k.t0, x, m->layer[l].norm_in, hidden);
            if (m->shape.full[l])
                attention(&k, l, t, pos ? pos[t] : plain, k.t0, y);
            else
                linear_attention(&k, l, t, k.t0, y);
            for (uint32_t i = 0; i < hidden; i++)
                x[i] += y[i];
            norm1p(&k, k.t0, x, m->layer[l].norm_post, hidden);
            mlp(&k, l, k.t0, y);
            for (uint32_t i = 0; i < hidden; i++)
                x[i] += y[i];
        }
        norm1p(&k, k.t0, x, m->norm_out, hidden);
        product(logits + (size_t)t * m->shape.vocab, m->head, k.t0, m->shape.vocab, hidden);
    }
    close_work(&k);
    free(x);
}
