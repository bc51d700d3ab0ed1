/*
 * The kernel table: every piece of arithmetic on the token path, as function pointers on plain memory. Filled
 * with the scalar reference, then overridden per CPU level by what that level does better. Immutable after
 * init.
 *
 * The rule that everything else rests on (doc/determinism.md): within one table, each output element is a
 * fixed function of its own inputs. It depends neither on how many rows, heads or outputs share the call nor
 * on how a range is split between calls. So kernels fix their reduction order by the length of the reduction
 * alone. Between tables (CPU levels) the order may differ; kcheck holds each within a bound derived from the
 * terms.
 *
 * Pointers to activations are 64-byte aligned at the start of a buffer; strides (ld*) are in elements and
 * arbitrary, so rows may start at any 4-byte boundary. Weights may be unaligned. Outputs never overlap inputs
 * unless stated.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_KERNELS_H
#define ESP_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "formats/format.h"
#include "formats/kv.h"

/* Precision of activations in products with weights. */
enum esp_act {
    ESP_ACT_F32,    /* as they are */
    ESP_ACT_BF16,   /* rounded to bf16 once, products accumulate in f32 */
    ESP_ACT_INT8X2, /* integer codes: two int8 terms a value with one scale a group, about 15 bits */
    ESP_ACT_INT8,   /* integer codes: one int8 term a value with one scale a group */
    ESP_ACT_COUNT
};

/* What act becomes for a weight format: int8x2 on a format without integer codes is f32, int8 is bf16. */
enum esp_act esp_act_resolve(enum esp_format_id format, enum esp_act act);
const char *esp_act_name(enum esp_act act);

/*
 * Products with a weight: y[r][o] = sum_i x[r][i] * W[o][i], in two steps so that several weights of equal
 * format and group share the first: those with the same prepare for which esp_weight_same_input() holds.
 *
 * prepare  x [n_row][ldx] f32 -> opaque rows at out, prepared_bytes(n_in, group) each; only reads w->n_in,
 *          w->group, and for trellis w->axis and along axis 0 the scales. Rows are independent. NULL: the
 *          product reads x itself (act = x, row stride = n_in floats).
 * product  for r < n_row and o in [o0, o1): y[r * ldy + o]. act: rows as prepared, contiguous. o0 is a
 *          multiple of esp_weight_out_align(w), and so is o1 unless it is n_out.
 * pack     NULL where the product reads weights best as they are stored. Else it writes outputs [o0, o1) of
 *          w, in the order that the product reads fastest, to their place in a block of pack_bytes(w); o0 is
 *          a multiple of ESP_PACK_OUTS, and so is o1 unless it is n_out. A weight whose `packed` points at
 *          such a block gives the same bits as without, and its codes, scales and biases are not read; o0 and
 *          o1 of product() then are multiples of ESP_PACK_OUTS too. The same pack, the same block.
 *
 * NaN or infinity in a row of x makes all outputs of that row non-finite, whatever act is.
 *
 * Values, affine: INT8 terms: s = max|x| / 127 in each group of w->group inputs (0 gives all-zero codes), q =
 * rint(x / s). INT8X2: s = max|x| / 16256 (127 * 128), v = rint(x / s), q1 = (v + 64) >> 7, q2 = v - 128 *
 * q1, both in [-128, 127]; x ~ s * (128 * q1 + q2). Codes of the weight multiply exactly in int32; per group
 * one f32 conversion and one fused multiply-add with scale * s; biases multiply the group sum of the
 * *quantized* x. A group whose s is below 2^-126 may count as zero. Error, affine and dense: against the
 * exact product of the prepared x, (n_in / 8 + 16) * 2^-24 * sum |x_i w_i|, where |w_i| of a grouped weight
 * stands for |scale * code| + |bias|: where these cancel, w_i bounds nothing.
 *
 * Values, trellis: W = f * y(state), f = f32(scale of the stored row * f32(1 / divisor)). Along axis 1 the
 * sum of y * x is multiplied by f once; along axis 0 z_i = f32(x_i * f_i) takes the place of x_i. INT8 and
 * INT8X2 quantize x (or z) as above, in groups of 256 inputs from input 0 on, the last may be short. The sum
 * S_g of y * v over a group is exact in int32, then acc = fma((float)S_g, s_g, acc), groups ascending from
 * acc = 0: the integer precisions give the same bits on every CPU level. F32 and BF16 (x rounded first) sum y
 * * x in f32. Error, trellis: (n_in / 8 + 48) * 2^-24 * sum |x_i w_i|. Sums of y * x are up to 454 times
 * those of W * x, so inputs above 2^100 may overflow along axis 1.
 */
enum esp_shape {
    ESP_SHAPE_ANY,
    ESP_SHAPE_PACKED, /* by pack() */
    ESP_SHAPE_STORED, /* as in the file */
    ESP_SHAPE_AXIS0,  /* trellis */
    ESP_SHAPE_AXIS1,
    ESP_SHAPE_COUNT
};

/*
 * A way through a product. Products that have several look theirs up in the list of their entry, so that the
 * list says what runs.
 */
struct esp_path {
    const char *name; /* NULL ends a list */
    enum esp_shape shape;
    uint32_t rows; /* least rows of a call, or of what is left of it where rows pass in tiles */
};

/* The path of the list with the most rows that are not above n_row, of those of the shape and of any shape.
 * Every list has one for each shape that its products meet and n_row >= 1. */
const struct esp_path *esp_path_of(const struct esp_path *list, enum esp_shape shape, uint32_t n_row);
const char *esp_shape_name(enum esp_shape shape);

struct esp_linear {
    size_t (*prepared_bytes)(uint32_t n_in, uint32_t group);
    void (*prepare)(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out);
    void (*product)(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                    float *y, size_t ldy);
    size_t (*pack_bytes)(const struct esp_weight *w);
    void (*pack)(const struct esp_weight *w, uint32_t o0, uint32_t o1, void *packed);
    const struct esp_path *paths; /* never NULL */
};

/*
 * What a core's arithmetic allows: rounds of a loop on registers alone with the instructions of a level's
 * products with affine weights (F32 and BF16: with any). ops of a round are the product's, a multiplication
 * and an addition for a weight and a row, whatever terms and instructions they take. run NULL: not known.
 */
struct esp_peak {
    void (*run)(uint32_t rounds);
    uint32_t ops;
};

enum { ESP_PACK_OUTS = 32 }; /* outputs that a pack() writes together */

enum { ESP_SPAN = 256 };     /* positions of one attention span and of one KV page */
enum { ESP_CHUNK = 64 };     /* rows of one delta-rule chunk; borders at absolute multiples */
enum { ESP_HEAD_MAX = 512 }; /* largest attention head */
enum { ESP_CONV_TAPS = 4 };  /* width of the causal convolution */

/* Attention with integers (kernels.int8_codes): the largest of a query, 127 * 256 + 127, and of a value;
 * positions of values that share steps; and what a query's weights in them add up to at most. */
#define ESP_QUERY_TOP 32639.0f
enum { ESP_VALUE_TOP = 16383, ESP_VALUE_BLOCK = 64 };
#define ESP_WEIGHT_SUM 130000.0f

/* Type of cached keys and values: plain numbers, or in layouts codes whose scheme each layer has for itself.
 */
enum esp_kv { ESP_KV_F32, ESP_KV_BF16, ESP_KV_COUNT, ESP_KV_CODED = ESP_KV_COUNT };

/* Queries of one KV head over one span of cached positions; see kernels.attend. */
struct esp_attend {
    const void *k; /* [n_pos][head_dim] of the KV type, rows ld_kv elements apart; coded: rows of the scheme,
                      one behind the other */
    const void *v;
    size_t ld_kv;                       /* not used by coded rows */
    const struct esp_kv_scheme *scheme; /* of coded rows, else not used */
    const void *k_next; /* keys that the next call will read, to be fetched meanwhile; or NULL */
    uint32_t head_dim;  /* multiple of 16, at most ESP_HEAD_MAX */
    uint32_t n_query;
    const float *q; /* [n_query][ldq], already scaled by 1 / sqrt(head_dim) */
    size_t ldq;
    bool int8_query;           /* ESP_ACT_INT8X2: integers may be multiplied, see kernels.int8_codes */
    const uint32_t *n_visible; /* [n_query]: positions [0, n_visible) are seen, 0..ESP_SPAN */
    float *m;                  /* [n_query] running maximum, -inf before the first span */
    float *l;                  /* [n_query] running sum of exp(score - m) */
    float *acc;                /* [n_query][head_dim] running sum of exp(score - m) * v, rows ld_acc apart */
    size_t ld_acc;
};

/* One value head of the gated delta rule over new rows of one open chunk; see kernels.delta_rows. */
struct esp_delta {
    uint32_t dk, dv; /* multiples of 16, at most 256 */
    const float *s;  /* [dv][dk] state at chunk start */
    float *k;        /* [ESP_CHUNK][ld_k] unit keys since chunk start; rows < row0 + n_row are filled */
    size_t ld_k;
    float *u; /* [ESP_CHUNK][ld_u] V' (the deltas written); rows < row0 are filled */
    size_t ld_u;
    float *g; /* [ESP_CHUNK] log decays, ld_g apart; filled up to row0 + n_row */
    size_t ld_g;
    uint32_t row0;  /* first new row, < ESP_CHUNK */
    uint32_t n_row; /* row0 + n_row <= ESP_CHUNK */
    const float *q; /* [n_row][ld_q] unit queries times dk^-1/2 */
    size_t ld_q;
    const float *v; /* [n_row][ld_v] */
    size_t ld_v;
    const float *beta; /* [n_row], ld_beta apart */
    size_t ld_beta;
    float *o; /* [n_row][ld_o] out */
    size_t ld_o;
};

struct esp_kernels {
    const char *isa; /* highest level in use, for logs and bench lines */
    uint32_t level;  /* enum esp_cpu_level */

    /* [f][act] is set when esp_act_resolve(f, act) == act */
    struct esp_linear linear[ESP_FORMAT_COUNT][ESP_ACT_COUNT];

    struct esp_peak peak[ESP_ACT_COUNT];

    /* y = x * rsqrt(mean(x^2) + eps) * gamma over n elements; y may be x. Reduction in fixed order of n. */
    void (*rmsnorm)(const float *x, const float *gamma, float eps, float *y, size_t n);
    /* y = x / sqrt(sum x^2 + eps) * scale; y may be x. */
    void (*l2norm)(const float *x, float eps, float scale, float *y, size_t n);
    /* y += x */
    void (*add)(float *y, const float *x, size_t n);
    /* y = silu(gate) * up; y may be gate or up. */
    void (*swiglu)(const float *gate, const float *up, float *y, size_t n);
    /* y *= sigmoid(gate) */
    void (*sigmoid_mul)(float *y, const float *gate, size_t n);
    /* y = rmsnorm(o; gamma, eps) * silu(z) over n elements; y may be o. */
    void (*gated_norm)(const float *o, const float *z, const float *gamma, float eps, float *y, size_t n);
    /* Rotate the pairs (x[j], x[j + n_half]) by angles with these cosines and sines, in place. */
    void (*rope)(float *x, const float *cos, const float *sin, size_t n_half);
    /*
     * Causal depthwise convolution with 4 taps, then SiLU, channels [c0, c1) of n_tok rows.
     * tail [3][ld_tail] pre-convolution rows before the first, oldest first; p [n_tok][ldp]; w [channel][4],
     * tap 3 is the current row; y [n_tok][ldy]. Sum in tap order 0..3.
     */
    void (*conv_silu)(const float *tail, size_t ld_tail, const float *p, size_t ldp, uint32_t n_tok,
                      const float *w, uint32_t c0, uint32_t c1, float *y, size_t ldy);
    /*
     * beta = sigmoid(b), g = a_neg * softplus(a + dt_bias), n heads; a_neg = -exp(A_log);
     * softplus(s) = s > 20 ? s : log1p(exp(s)).
     */
    void (*delta_gates)(const float *b, const float *a, const float *a_neg, const float *dt_bias, float *beta,
                        float *g, size_t n);
    /*
     * New rows of an open chunk. d->k and d->g must already hold the new rows' keys and decays. For i in
     * row0 .. row0+n_row-1:
     *   L_ij = sum g[j+1..i] (accumulated from j = i downwards), E_i = L_i0 + g[0], D_ij = exp(L_ij)
     *   u_i = beta_i * (v_i - exp(E_i) * S k_i - sum_{j<i} D_ij (k_i . k_j) u_j)      sums ascending in j
     *   o_i = exp(E_i) * S q_i + sum_{j<=i} D_ij (q_i . k_j) u_j
     * Writes u and o. scratch: esp_delta_scratch_floats() floats.
     */
    void (*delta_rows)(const struct esp_delta *d, float *scratch);
    /*
     * Close a chunk of n rows: s_out = exp(E_{n-1}) * s + sum_j exp(L_{n-1,j}) u_j k_j^T, [dv][dk];
     * s_out may be s.
     */
    void (*delta_fold)(const struct esp_delta *d, uint32_t n, float *s_out);
    /*
     * One span of attention: for each query, over its visible positions t: score_t = q . k_t,
     * M = max(m, max score), l = l * exp(m - M) + sum_t exp(score_t - M) computed on the span alone and
     * merged, acc likewise, m = M. The span's own partial (max, sum ascending in t, weighted values ascending
     * in t) is formed first and then merged, so a caller that starts every span from m = -inf, l = 0, acc = 0
     * and merges later with attend_merge gets the same bits. A query with n_visible = 0 is left untouched.
     * scratch: esp_attend_scratch_floats(n_query) floats.
     */
    void (*attend[ESP_KV_COUNT])(const struct esp_attend *a, float *scratch);
    /*
     * The same over coded rows (formats/kv.h), straight from the codes: each code becomes a number of at most
     * one rounding more than the scalar decode, in registers. acc is in the basis of the stored values:
     * esp_kv_unrotate() turns the finished result back. Reads no byte outside the visible rows' planes.
     */
    void (*attend_codes)(const struct esp_attend *a, float *scratch);
    /*
     * Whether attend_codes() with int8_query multiplies integers: TurboQuant keys of 8 bits as they are, by
     * a query that became integers up to ESP_QUERY_TOP of one step; and values of up to 4 bits as words, by
     * weights that became integers, a step each ESP_VALUE_BLOCK positions.
     */
    bool int8_codes;
    /* esp_kv_encode_key() and esp_kv_encode_value(), the same bytes on every level. */
    uint32_t (*kv_encode[2])(const struct esp_kv_scheme *s, uint32_t head_dim, const float *x, uint8_t *row);
    /* Merge partial (m2, l2, acc2) into (m, l, acc), a single query of n elements; l2 = 0 changes nothing. */
    void (*attend_merge)(float *m, float *l, float *acc, float m2, float l2, const float *acc2, size_t n);

    /* Conversions of n elements; f32_to_bf16 rounds to nearest even and keeps NaN on every level. */
    void (*f32_to_bf16)(const float *x, uint16_t *y, size_t n);
    void (*bf16_to_f32)(const uint16_t *x, float *y, size_t n);

    /* Sampling helpers over one logit row. */
    size_t (*argmax)(const float *x, size_t n); /* lowest index on ties; NaN never wins; n >= 1 */
    /* Index of the first NaN or +inf, n when there is none; -inf is allowed. */
    size_t (*first_nonfinite)(const float *x, size_t n);
};

size_t esp_delta_scratch_floats(void);
size_t esp_attend_scratch_floats(uint32_t n_query);

/* CPU levels: a table is the reference plus everything up to its level. */
enum esp_cpu_level {
    ESP_CPU_REF,    /* scalar C, any machine */
    ESP_CPU_AVX2,   /* AVX2, FMA, F16C */
    ESP_CPU_AVX512, /* F, BW, DQ, VL, plus VNNI, and BF16 where present */
    ESP_CPU_AMX,    /* AVX-512 with BF16 and VBMI, and AMX tiles of int8 and bf16 */
    ESP_CPU_NEON,
    ESP_CPU_LEVEL_COUNT
};

/* Highest level that this machine and this build have. */
enum esp_cpu_level esp_cpu_best(void);
const char *esp_cpu_level_name(enum esp_cpu_level level);
/* Why a level that the CPU has instructions for is not used, for people; NULL when there is no such level. */
const char *esp_cpu_note(void);
/* Parse "ref", "avx2", "avx512", "amx" or "neon". ESP_EINVAL for other words, ESP_EDEVICE for a level not
 * here. */
esp_status esp_cpu_level_parse(enum esp_cpu_level *out, const char *name, esp_error *err);
/* Fill k for a level that this machine has. Total: every entry is set. */
void esp_kernels_init(struct esp_kernels *k, enum esp_cpu_level level);

#endif
