/*
 * Private types of the CUDA backend's host side. A device has one stream; everything a plan does is ordered
 * on it. All memory is taken in open, alloc and compile; a step takes none.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_CUDA_H
#define ESP_BACKEND_CUDA_PLUGIN_CUDA_H

#include "backend/backend.h"
#include "backend/cuda/plugin/kernels.h"

struct cuda_weight { /* a matrix in device memory, shared by the plans that use it */
    const struct esp_weight *key;
    struct cu_weight w;
    void *codes, *scales;
    uint32_t refs; /* 0: a free place of the table */
};

struct cuda_dev {
    struct esp_dev base;
    int index;
    cudaStream_t stream;
    bool tiled; /* has the shared memory of the tiled products */
    bool early; /* knows programmatic launches */
    bool wide;  /* has the products of wide.h */
    uint32_t n_multiprocessor;
    struct cuda_weight **weights; /* places stay where they are; plans point at them */
    uint32_t n_weight, cap_weight;
    struct cuda_lora **loras; /* adapters in device memory, lora.c */
    uint32_t n_lora;
    uint64_t lora_bytes;      /* they may take together; 0: what there is */
    uint64_t step;            /* number of the running one */
    struct cuda_paths *paths; /* room for the search of trellis paths, paths.c; NULL before the first */
    struct esp_plan *running; /* whose logits wait() has to hand over */
};

struct cuda_buf {
    struct esp_buf base; /* host NULL */
    uint8_t *mem;
};

enum {
    CUDA_MAX_GROUP = 16,    /* products of one step */
    CUDA_LOGIT_ROWS = 128,  /* rows of logits in device memory at once */
    CUDA_HOST_ROWS = 16,    /* of them in page-locked memory at once */
    CUDA_GRAPH_TOKENS = 64, /* steps of up to so many tokens are captured as graphs */
    CUDA_MAX_GRAPH = 32,
    CUDA_EXPAND_BYTES = 256 << 20, /* room for expanded code values at most, if 16 tiles fit */
    CUDA_SPREAD_ROWS = 256, /* products of up to so many rows may be spread over more blocks by parts */
};

enum cuda_step_kind { CUDA_STEP_OP, CUDA_STEP_LINEAR, CUDA_STEP_ADD_NORM };

/* What a step may do together with those that follow, where a batch's shape allows it: fuse.c. */
enum cuda_fuse {
    CUDA_FUSE_NONE,
    CUDA_FUSE_MIXER_IN, /* products of a recurrent mixer's input, CONV, GATES */
    CUDA_FUSE_DELTA,    /* DELTA, GATED_NORM */
    CUDA_FUSE_APPEND,   /* HEAD_ROPE of queries and of keys, KV_APPEND */
    CUDA_FUSE_ATTEND,   /* ATTEND, HEAD_GATE */
    CUDA_FUSE_GATED     /* products of gate and up, SWIGLU */
};

struct cuda_step {
    enum cuda_step_kind kind;
    enum cuda_fuse fuse;
    bool streams;      /* LINEAR: all its weights are of kinds that stream.h takes */
    bool gated;        /* LINEAR: its input comes from CUDA_FUSE_GATED where that was done */
    uint32_t op, n_op; /* ops [op, op + n_op) of the tape */
    bool prepare;      /* LINEAR: the input must be put into product form first */
    bool emit;         /* OP, ADD_NORM: writes its result in product form too */
    bool only_terms;   /* and nothing reads it otherwise: left out where steps run together */
    bool products;     /* LINEAR: some weight goes to the tensor cores */
};

struct cuda_graph {
    struct cu_shape shape; /* zeros: a free place */
    bool hidden;           /* keeps hidden rows */
    bool plain;            /* a driver that cannot capture it: kernels are started one by one */
    cudaGraphExec_t exec;  /* NULL: seen once */
};

/* Byte offsets of a batch's arrays in its staging memory. */
struct cuda_batch_layout {
    size_t ids, pos, tok_seq, out_rows, seqs, pages, bytes;
};

struct esp_plan {
    struct cuda_dev *dev;
    const struct esp_tape *tape;
    struct esp_pools pools;
    struct esp_plan_opts opts;
    uint32_t n_term;  /* bf16 terms of an activation in products */
    uint32_t n_coded; /* f16 terms in products with coded weights; 0 where there are none */
    struct cuda_step *steps;
    uint32_t n_step;
    struct cuda_weight **weights; /* [n_op] NULL where the op has none */
    size_t *value_off;            /* [n_value] */
    const float **vec0, **vec1;   /* [n_op] device copies */
    /* Offsets into device scratch. */
    size_t values_bytes, act_term, act_bytes, rope_bytes, parts_bytes, spread_bytes, logits_bytes, vec_bytes;
    size_t few_off, few_bytes;        /* [logit_rows] struct esp_few */
    size_t kv_off, kv_bytes;          /* signs, matrix and codebooks of coded values */
    size_t input_bytes, hidden_bytes; /* rows of the tape's INPUT and HIDDEN, which no value overlaps */
    size_t input_off, hidden_off;
    size_t lora_bytes, lora_off;                /* [products of a step][max_tok][max_rank] of adapters */
    size_t expand_bytes;                        /* code values of a range of tiles of a coded weight */
    size_t delta_bytes;                         /* what the delta rule's kernels hand over */
    size_t gated_term, gated_sums, gated_bytes; /* product form of few rows beside the one being read */
    size_t act_off, gated_off, rope_off, parts_off, spread_off, expand_off, delta_off, logits_off, vec_off,
        batch_off, scratch_bytes;
    uint32_t act_rows, part_spans, logit_rows, host_rows;
    struct cuda_batch_layout bl;
    uint8_t *scratch;   /* device */
    uint8_t *staging;   /* page-locked: the batch's arrays */
    float *host_logits; /* page-locked [host_rows][n_vocab] */
    struct cu_rope rope;
    struct cu_batch on_device;
    const struct esp_batch *batch; /* of the running step */
    bool deliver;                  /* host_logits hold n_out rows once the stream is idle */
    bool deliver_few;              /* so does host_few */
    struct esp_few *host_few;      /* page-locked [logit_rows] */
    float *tap_rows;               /* largest value, allocated by the first tap */
    struct cuda_graph graphs[CUDA_MAX_GRAPH];
    uint32_t next_graph;
};

static inline uint8_t *cuda_mem(const struct esp_buf *b)
{
    return ((const struct cuda_buf *)(const void *)b)->mem;
}

static inline float *plan_value(const struct esp_plan *p, esp_val v)
{
    return (float *)(void *)(p->scratch + p->value_off[v]);
}

/* Rows that the delta rule has room for: whole chunks. */
static inline uint32_t cuda_work_tok(const struct esp_plan *p)
{
    return (p->opts.max_tok + CU_CHUNK - 1) / CU_CHUNK * CU_CHUNK;
}

static inline uint32_t plan_width(const struct esp_plan *p, esp_val v)
{
    return p->tape->values[v].width;
}

/* ESP_ENOMEM for out of device memory, else ESP_EDEVICE; what: what was being done. */
esp_status cuda_failed(esp_error *err, cudaError_t e, const char *what);
#define CUDA_TRY(call, what)                                                                                 \
    do {                                                                                                     \
        const cudaError_t try_error_ = (call);                                                               \
        if (try_error_ != cudaSuccess)                                                                       \
            return cuda_failed(err, try_error_, what);                                                       \
    } while (0)
esp_status cuda_use(const struct cuda_dev *d, esp_error *err);

/* weights.c: take a reference to w's copy on the device, making it when there is none. */
esp_status cuda_weight_take(struct cuda_dev *d, const struct esp_weight *w, struct cuda_weight **out,
                            esp_error *err);
void cuda_weight_release(struct cuda_weight *w);
/* Shape and cuts of a weight's copy on a device; codes and scales are NULL. */
struct cu_weight cuda_weight_describe(const struct esp_weight *w);
/* Of the tape's weights when packed, and of the memory that they go through. */
uint64_t cuda_weight_bytes(const struct esp_dev *d, const struct esp_tape *t);

/* plan.c */
bool cuda_can(const struct esp_dev *d, const struct esp_op *op);
esp_status cuda_plan_bytes(struct esp_dev *d, const struct esp_tape *t, const struct esp_layout *l,
                           const struct esp_plan_opts *o, size_t *bytes, esp_error *err);
esp_status cuda_compile(struct esp_dev *d, const struct esp_tape *t, const struct esp_pools *pools,
                        const struct esp_plan_opts *o, struct esp_plan **out, esp_error *err);
void cuda_plan_free(struct esp_plan *p);

/* launch.c: put the kernels of one step on the stream. */
void cuda_launch(const struct esp_plan *p, const struct cuda_step *s, const struct cu_shape *h,
                 bool together);
/* Logits of output rows [row0, row0 + n_row) of n_out, to the start of the plan's logits. */
void cuda_launch_logits(const struct esp_plan *p, const struct cuda_step *s, uint32_t row0, uint32_t n_row,
                        uint32_t n_out);

/* fuse.c */
void cuda_fuse(struct esp_plan *p);
/* Step i and those after it that it does together; 0: nothing was done. */
uint32_t cuda_launch_fused(const struct esp_plan *p, uint32_t i, const struct cu_shape *h);
/* Product form of n_in inputs that CUDA_FUSE_GATED writes. */
struct cu_act cuda_gated_act(const struct esp_plan *p, uint32_t n_in);
bool cuda_gates_together(const struct esp_plan *p, uint32_t n_row);

/* launch.c, for fuse.c */
/* Product form of n_row rows of n_in elements; wanted false: none is written. */
struct cu_act cuda_act_of(const struct esp_plan *p, uint32_t n_in, uint32_t n_row, bool wanted);
struct cu_linears cuda_linears_of(const struct esp_plan *p);
struct cu_kv cuda_kv_of(const struct esp_plan *p, uint32_t layer);
struct cu_delta cuda_delta_of(const struct esp_plan *p, uint32_t layer);
struct cu_heads cuda_heads_of(const struct esp_plan *p, const struct esp_op *op);
struct cu_attention cuda_attention_of(const struct esp_plan *p, const struct esp_op *op);
uint32_t cuda_rows_of(const struct esp_plan *p, esp_val v, const struct cu_shape *h);

/* kv.c: tables that coded keys and values need, in the plan's memory. */
size_t cuda_kv_bytes(const struct esp_layout *l);
esp_status cuda_kv_upload(struct esp_plan *p, esp_error *err);
void cuda_kv_code(const struct esp_plan *p, uint32_t layer, struct cu_kv_code *out);

/* lora.c */
/* Bring the batch's adapters into device memory; *any: it names some. */
esp_status cuda_lora_begin(struct esp_plan *p, const struct esp_batch *b, bool *any, esp_error *err);
/* Add what the batch's adapters say to the products of a LINEAR step that was just launched by itself. */
void cuda_lora_step(const struct esp_plan *p, const struct cuda_step *s, const struct esp_batch *b);
void cuda_lora_close(struct cuda_dev *d);

/* paths.c */
esp_status cuda_paths(struct esp_dev *d, const struct esp_paths *p, esp_error *err);
void cuda_paths_close(struct cuda_dev *d);

/* run.c */
esp_status cuda_run(struct esp_plan *p, const struct esp_batch *b, esp_error *err);
esp_status cuda_wait(struct esp_dev *d, esp_error *err);
esp_status cuda_logits(struct esp_plan *p, uint32_t row, float *out, esp_error *err);

#endif
