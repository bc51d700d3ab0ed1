/*
 * The border between the host side (C) and the kernels (CUDA C++): plain structs of device pointers and
 * sizes, and one launch function a kernel. Launches never fail by themselves; the caller asks
 * cudaGetLastError() once a step.
 *
 * The rule of kernels/kernels.h holds here too: each output element is a fixed function of its own inputs.
 * Every reduction order below depends on widths and absolute positions alone, so prefill, decode and
 * verification agree bit for bit.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_KERNELS_H
#define ESP_BACKEND_CUDA_PLUGIN_KERNELS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CU_SPAN = 256,
    CU_CHUNK = 64,
    CU_TAPS = 4,
    CU_NO_JOURNAL = -1
}; /* as in kernels/kernels.h; plan.c compares */

/*
 * Weights in device memory. Dense f32 and f16 stay row-major. The others are stored in the order in which a
 * warp feeds them to the tensor cores: tiles of 16 rows, in each quads of 128 inputs, in each 4 blocks of 32
 * inputs. Of a block lane (g = lane / 4, t = lane % 4) holds inputs 8t .. 8t+7 of rows g and g + 8. Inputs
 * and rows are padded with zeros. bf16  block [half][lane][16 bytes] q8    block [lane][half][8 bytes] q4 two
 * blocks [lane][block][half][4 bytes], code 2i in nibble i, code 2i+1 in nibble i+4 q2    four blocks
 * [lane][block][4 bytes], code 2i of half h at bit 2i+8h, code 2i+1 at 2i+8h+16 Scales [tile][group][g][scale
 * of g, bias of g, scale of g+8, bias of g+8], bf16 or f32.
 */
enum cu_format {
    CU_F32,
    CU_F16,
    CU_BF16,
    CU_Q2,
    CU_Q4,
    CU_Q8,
    CU_CODED, /* trellis codes: coded.h */
    CU_VALUES /* trellis code values as f16, in the order of bf16: what cu_expand() makes of codes */
};

struct cu_weight {
    uint32_t format; /* enum cu_format */
    uint32_t n_out, n_in;
    uint32_t n_tile, n_quad;
    uint32_t part_quads;  /* quads of one of the n_part sums that a row's product is made of */
    uint32_t n_part;      /* CU_PARTS; of coded weights along axis 0 what cuda_weight_parts() says */
    uint32_t group_kb;    /* blocks of 32 inputs in a group: 1, 2, 4; 0 for dense weights */
    uint32_t group_shift; /* its logarithm */
    uint32_t scale_f32;   /* scales are f32, else bf16 */
    uint32_t bits, axis;  /* coded weights and their values */
    uint32_t tile0;       /* the first tile that codes holds: not 0 in values of a range of tiles */
    const uint8_t *codes;
    const uint8_t
        *scales; /* coded: f32 scale over divisor of outputs (axis 1) or of inputs (axis 0), padded */
};
enum { CU_PARTS = 8 };

/* One adapter of one sequence beside one product: t [n_row][rank] = A x, y += scale * B t, all f32. */
struct cu_lora_site {
    const float *a, *b; /* [rank][n_in], [n_out][rank] */
    const float *x;     /* [n_row][n_in] */
    float *t, *y;       /* y [n_row][n_out] */
    float scale;
    uint32_t rank, n_in, n_out, n_row;
};
enum { CU_LORA_SITES = 32 };
struct cu_lora_sites {
    struct cu_lora_site s[CU_LORA_SITES];
    uint32_t n;
};
void cu_lora(cudaStream_t s, const struct cu_lora_sites *sites);

/* How a source row of codes is packed, for cu_pack(). */
struct cu_source {
    uint32_t format;      /* enum esp_format_id's bits: 16 for bf16, else bits of an affine code */
    uint32_t group;       /* affine */
    uint32_t scale_type;  /* of the source: 0 f32, 1 bf16, 2 f16 */
    uint32_t row0, n_row; /* rows held by src; row0 is a multiple of 16 */
    const uint8_t *codes, *scales, *biases; /* device copies of rows [row0, row0 + n_row) */
};
void cu_pack(cudaStream_t s, const struct cu_weight *w, const struct cu_source *p);
size_t cu_packed_code_bytes(const struct cu_weight *w);
size_t cu_packed_scale_bytes(const struct cu_weight *w);
struct cu_coded_source;
/* Codes of the stored rows that src holds; scales are the host's business. */
void cu_pack_coded(cudaStream_t s, const struct cu_weight *w, const struct cu_coded_source *src);

/*
 * Activations as products read them: x ~ t[0] (+ t[1] (+ t[2])), bf16 each, rows of ld elements padded with
 * zeros up to a multiple of 128; and the sum of every 32 inputs over all terms, [ld / 32][max_row] f32.
 */
enum { CU_MAX_TERM = 3 };
/*
 * For coded weights the same memory holds f16 terms of x times a power of two of the row, which brings its
 * largest element to [2^13, 2^14); sums[row] is the inverse of that power. Along axis 1 the inputs are in the
 * order of cu_coded_place(), along axis 0 x has been multiplied by the scales of the inputs.
 */
struct cu_act {
    uint16_t *t[CU_MAX_TERM];
    float *sums;
    float *more; /* NULL, or what is to be added to sums: halves of a sum that two blocks made (stream.h) */
    uint32_t ld, max_row; /* max_row: rows of a column of sums, a multiple of 128 */
    uint32_t n_term;      /* 0: nothing is prepared */
    uint32_t wide;        /* not 0: in the order of wide.h */
};

enum { CU_MAX_LINEAR = 4 };
struct cu_linears { /* products of one input with weights of equal format, inputs and kind of scales */
    uint32_t n;
    uint32_t tiled; /* the device has the shared memory for the tiled kernel */
    uint32_t early; /* it knows programmatic launches */
    uint32_t n_multiprocessor;
    struct cu_weight w[CU_MAX_LINEAR];
    float *y[CU_MAX_LINEAR]; /* [n_row][n_out] */
    float *parts; /* room for the parts of a product that is spread over more blocks, parts_bytes */
    size_t parts_bytes;
};
enum { CU_FEW_ROWS = 32 }; /* up to so many rows the weight streams past the rows, above it is tiled */
void cu_linear_bf16(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row);
void cu_linear_q2(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row);
void cu_linear_q4(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row);
void cu_linear_q8(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row);
void cu_linear_dense(cudaStream_t s, const struct cu_linears *l, const float *x, uint32_t n_row);
void cu_prepare(cudaStream_t s, const float *x, uint32_t width, uint32_t n_row, const struct cu_act *out);

/*
 * Products with coded weights: of equal bits along axis 1, or a single one along axis 0, whose inputs were
 * prepared for it. values: room for the code values of at least 16 tiles where more than
 * CU_FEW_ROWS rows are multiplied on a device with tiled kernels.
 */
void cu_prepare_coded(cudaStream_t s, const float *x, uint32_t width, uint32_t n_row,
                      const struct cu_weight *w, const struct cu_act *out);
void cu_linear_coded(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                     uint8_t *values, size_t values_bytes);
void cu_coded_few1(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row);
void cu_coded_few0(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row);
/* Code values of tiles [tile0, tile0 + n_tile) of w to out; the weight that they make. */
struct cu_weight cu_expand(cudaStream_t s, const struct cu_weight *w, uint32_t tile0, uint32_t n_tile,
                           uint8_t *out);

/* cudaErrorNoKernelImageForDevice when this build has no code for the current device. */
cudaError_t cu_probe(void);

/* ---- the batch on the device ---- */

struct cu_seq {
    uint32_t tok0, n_tok, n, base;
    uint32_t slot, slot_next;
    int32_t journal; /* CU_NO_JOURNAL */
    uint32_t page0;  /* its page list starts here in pages */
};

struct cu_batch {
    const int32_t *ids;
    const int32_t *pos;      /* [n_tok][3] */
    const uint32_t *tok_seq; /* [n_tok] which sequence */
    const struct cu_seq *seqs;
    const uint32_t *pages;
    const uint32_t *out_rows;
    uint32_t n_seq;
};

struct cu_shape { /* of a step; what grids depend on */
    uint32_t n_tok, n_seq, n_out;
    uint32_t max_seq_tok; /* longest sequence part of the batch */
    uint32_t max_span;    /* spans that the longest context touches, rounded up */
    uint32_t crosses;     /* some sequence folds a chunk in this step */
    uint32_t journals;    /* all sequences write to journals */
};

/* ---- row by row ---- */

void cu_embed(cudaStream_t s, const struct cu_weight *w, const struct cu_batch *b, float *y, uint32_t n_tok);
void cu_rmsnorm(cudaStream_t s, const float *x, const float *gamma, float eps, float *y, uint32_t n_row,
                uint32_t width, const struct cu_act *act);
/* sum = a + b, y = rmsnorm(sum) */
void cu_add_rmsnorm(cudaStream_t s, const float *a, const float *b, float *sum, const float *gamma, float eps,
                    float *y, uint32_t n_row, uint32_t width, const struct cu_act *act);
void cu_add(cudaStream_t s, const float *a, const float *b, float *y, size_t n);
void cu_swiglu(cudaStream_t s, const float *gate, const float *up, float *y, uint32_t n_row, uint32_t width,
               const struct cu_act *act);
void cu_gather(cudaStream_t s, const struct cu_batch *b, const float *x, float *y, uint32_t n_out,
               uint32_t width);

struct cu_heads {
    uint32_t n_head, stride, dim;
};
struct cu_rope {
    uint32_t n_half;
    const float *freq;
    const uint8_t *axis;
    float mscale;
    float *table; /* [n_tok][2][n_half] */
};
void cu_rope_table(cudaStream_t s, const struct cu_rope *r, const struct cu_batch *b, uint32_t n_tok);
void cu_head_rope(cudaStream_t s, const float *x, const float *gamma, float eps, float scale,
                  struct cu_heads h, const struct cu_rope *r, float *y, uint32_t n_tok);
void cu_head_gate(cudaStream_t s, const float *x, const float *gate, struct cu_heads h, float *y,
                  uint32_t n_tok, const struct cu_act *act);
void cu_gates(cudaStream_t s, const float *b, const float *a, const float *a_neg, const float *dt_bias,
              float *y, uint32_t n_tok, uint32_t n);
void cu_gated_norm(cudaStream_t s, const float *o, const float *z, const float *gamma, float eps,
                   struct cu_heads h, float *y, uint32_t n_tok, const struct cu_act *act);

/* ---- attention ---- */

enum cu_kv_kind { CU_KV_PLAIN, CU_KV_AFFINE, CU_KV_TURBO };

/* How rows of keys and values are codes (formats/kv.h): tables lie in device memory. */
struct cu_kv_code {
    uint32_t kind;        /* enum cu_kv_kind */
    uint32_t bits[2];     /* of keys, of values */
    uint32_t group_shift; /* logarithm of the elements of a group */
    uint32_t tuned;
    float norm;                  /* turbo: 1 / sqrt(dim) */
    const float *levels, *edges; /* turbo: of values */
    const uint32_t *signs;       /* turbo: a bit an element */
    const int8_t *twelve;        /* turbo: [12][12] */
};

struct cu_kv {
    uint8_t *pages;
    size_t page_bytes, layer_off;
    uint32_t row[2]; /* bytes of a row of K, of V */
    uint32_t n_kv, dim, bf16;
    struct cu_kv_code code;
};
struct cu_attention {
    struct cu_kv kv;
    const float *q;
    float *y;
    float *parts;                /* [row][n_head][max_span][dim + 2] for split rows */
    uint32_t n_head, part_spans; /* spans that parts has room for */
    uint32_t n_term; /* of bf16 that queries and probabilities are made of unless the cache is f32: 1, 2 */
};
enum {
    CU_SPLIT_TOKENS = 16
}; /* steps of at most so many tokens compute their spans in parallel and merge them */
void cu_kv_append(cudaStream_t s, const struct cu_kv *kv, const float *k, const float *v,
                  const struct cu_batch *b, uint32_t n_tok);
void cu_attend(cudaStream_t s, const struct cu_attention *a, const struct cu_batch *b,
               const struct cu_shape *h);
/*
 * The same in three kernels for steps of at most CU_SPLIT_TOKENS tokens: queries, keys and values of the new
 * rows; spans; merging, with the gate that follows (a.y is what the gate lets through), heads of a multiple
 * of 32.
 */
struct cu_append {
    struct cu_kv kv;
    struct cu_rope rope;
    struct cu_heads q_heads;
    const float *q, *k, *v, *q_gamma, *k_gamma;
    float *q_out, *k_out;
    float q_eps, k_eps, q_scale, k_scale;
    uint32_t k_stride;
};
void cu_rope_append(cudaStream_t s, const struct cu_append *p, const struct cu_batch *b, uint32_t n_tok);
void cu_attend_spans(cudaStream_t s, const struct cu_attention *a, const struct cu_batch *b,
                     const struct cu_shape *h);
void cu_merge_gate(cudaStream_t s, const struct cu_attention *a, const struct cu_batch *b, uint32_t n_tok,
                   const float *gate, uint32_t stride, const struct cu_act *act);
/* Many rows over a bf16 cache at once: attend_many.cu; whether it takes such a step. */
int cu_attend_many_takes(const struct cu_attention *a, const struct cu_shape *h);
void cu_attend_many(cudaStream_t s, const struct cu_attention *a, const struct cu_batch *b,
                    const struct cu_shape *h);
cudaError_t cu_attend_many_setup(void);
/* Before the first launch with heads of this size: shared-memory limits. Fails where the device has too
 * little. */
cudaError_t cu_attend_setup(uint32_t dim);
/* The same for a layer of coded rows. */
cudaError_t cu_attend_coded_setup(const struct cu_attention *a);
/* Bring finished rows of attention over rotated values back, in place: y [n_tok][n_head][dim]. */
void cu_unrotate(cudaStream_t s, const struct cu_attention *a, uint32_t n_tok);
cudaError_t cu_delta_setup(uint32_t dk);
cudaError_t cu_linear_setup_bf16(void); /* these five only where tiled kernels run */
cudaError_t cu_linear_setup_q2(void);
cudaError_t cu_linear_setup_q4(void);
cudaError_t cu_linear_setup_q8(void);
cudaError_t cu_linear_setup_coded(void);
enum { CU_TILED_SHARED = 201000 }; /* bytes of shared memory that the tiled kernel takes at most */

/* ---- recurrent mixer ---- */

struct cu_delta {
    uint8_t *slots;
    float *journals;
    size_t slot_bytes, layer_off; /* layer_off: of the layer in a slot */
    size_t s_off, k_off, u_off, g_off, conv_off;
    uint32_t kh, vh, dk, dv, conv_dim;
    uint32_t n_delta, layer, journal_rows;
    float *work; /* cu_delta_work_floats() for steps of up to work_tok tokens, a multiple of 64 */
    uint32_t work_tok;
};
void cu_conv(cudaStream_t s, const struct cu_delta *d, const float *x, const float *w, float *y,
             const struct cu_batch *b, const struct cu_shape *h);
/* The norm of a head's outputs that follows the rule: y = rmsnorm(o) * silu(z), and y in product form. */
struct cu_delta_norm {
    const float *z, *gamma;
    float *y;
    float eps;
    struct cu_act act;
};
/* One new row a sequence where no chunk closes, for shapes that it takes. */
int cu_delta_one_takes(const struct cu_delta *d);
void cu_delta_one(cudaStream_t s, const struct cu_delta *d, const float *c, const float *gates,
                  const struct cu_delta_norm *n, const struct cu_batch *b);
cudaError_t cu_delta_one_setup(void);
/*
 * Shapes and devices that go through the tensor cores, prefill and decode alike; all others take kernels in
 * f32.
 */
int cu_delta_chunks_take(const struct cu_delta *d);
size_t cu_delta_work_floats(const struct cu_delta *d, uint32_t max_seq);
void cu_delta_chunks(cudaStream_t s, const struct cu_delta *d, const float *c, const float *gates, float *o,
                     const struct cu_batch *b, const struct cu_shape *h);
cudaError_t cu_delta_chunks_setup(void);
void cu_delta_rule(cudaStream_t s, const struct cu_delta *d, const float *c, const float *gates, float *o,
                   const struct cu_batch *b, const struct cu_shape *h);

#ifdef __cplusplus
}
#endif
#endif
