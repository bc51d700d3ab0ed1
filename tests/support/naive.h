/*
 * The forward pass of the dense text model written straight from its formulas, in double precision, one token
 * after the other: no chunks, no pages, no threads, and no line of the engine. What the engine computes is
 * judged against it. A "twist" makes one well-known mistake on purpose, so that a test can show that it would
 * have noticed.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_NAIVE_H
#define ESP_TESTS_NAIVE_H

#include <stdbool.h>
#include <stdint.h>

enum { NAIVE_MAX_LAYER = 8 };

struct naive_shape {
    uint32_t vocab, hidden, ffn, n_layer;
    uint32_t n_head, n_kv, head_dim;
    uint32_t kh, vh, dk, dv;       /* linear layers: key and value heads and their sizes */
    uint8_t full[NAIVE_MAX_LAYER]; /* 1: full attention */
    uint32_t rotary;               /* rotated elements of a head */
    uint32_t section[3];           /* frequencies by axis: time, height, width */
    double theta;
    double yarn_factor, yarn_original; /* 0: no YaRN */
};

/* Weights as a checkpoint has them: matrices [out][in]; norms as gamma - 1, but `norm` is gamma. */
struct naive_layer {
    double *norm_in, *norm_post; /* [hidden] */
    double *qkv, *z, *b, *a, *conv, *a_log, *dt_bias, *norm,
        *out;                                /* linear; conv [channel][4], tap 3 is now */
    double *q, *k, *v, *o, *q_norm, *k_norm; /* full attention; q per head: query, gate */
    double *gate, *up, *down;
};

struct naive_model {
    struct naive_shape shape;
    double *embed, *norm_out;
    double *head; /* [vocab][hidden]; may be embed */
    struct naive_layer layer[NAIVE_MAX_LAYER];
};

enum naive_twist {
    NAIVE_RIGHT,
    NAIVE_KV_BF16,     /* not a mistake: keys and values are kept in bf16 */
    NAIVE_BETA_BF16,   /* beta rounded to bf16 */
    NAIVE_GATE_HALVES, /* q_proj split as all queries, then all gates */
    NAIVE_HEADS_TILED, /* value head v reads key head v mod kh */
    NAIVE_TAPS_REVERSED,
    NAIVE_ROTATE_ALL,   /* the whole head turns */
    NAIVE_MROPE_BLOCKS, /* axes in blocks TTT HHH WWW */
    NAIVE_NORM_TWICE,   /* 2 + w */
    NAIVE_NORM_NEVER,   /* w */
    NAIVE_GATE_SILU,    /* silu where the attention gate wants sigmoid */
    NAIVE_READ_EARLY,   /* memory read before the decay */
    NAIVE_YARN_OFF,     /* frequencies scaled, cosines and sines not */
    NAIVE_TWIST_COUNT
};

/* logits [n][vocab] of n tokens from an empty state; pos NULL: token i is at (i, i, i). */
void naive_forward(const struct naive_model *m, enum naive_twist twist, const int32_t *ids,
                   const int32_t (*pos)[3], uint32_t n, double *logits);

#endif
