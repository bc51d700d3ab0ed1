/*
 * A backend: memory of one processor and the means to run a tape on it. Few entries, none specific to an op.
 * The CPU backend is the definition; others are compared with it value by value.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_BACKEND_H
#define ESP_BACKEND_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "base/huge.h"
#include "base/nodes.h"
#include "base/status.h"
#include "graph/batch.h"
#include "graph/layout.h"
#include "graph/tape.h"
#include "kernels/kernels.h"

#include "backend/paths.h"

struct esp_dev;
struct esp_plan;

/* Memory of a device. host is NULL where the processor running this code cannot read it. */
struct esp_buf {
    struct esp_dev *dev;
    void *host;
    size_t bytes;
};

struct esp_span { /* bytes [off, off + bytes) of a buffer */
    struct esp_buf *buf;
    size_t off;
    size_t bytes;
};

/* The pools that a plan reads and writes; owned by whoever allocated the buffers, borrowed by plans. */
struct esp_pools {
    struct esp_layout layout;
    struct esp_buf *pages; /* [n_page][page_bytes] */
    struct esp_buf *slots; /* [n_slot][slot_bytes] */
    struct esp_buf
        *journals; /* [n_journal][delta layer][journal_rows][conv_dim] f32; NULL without journals */
    uint32_t n_page, n_slot, n_journal;
    uint32_t journal_rows; /* longest journalled pass, at most ESP_CHUNK */
};

/*
 * Copies of weights in the order that a CPU's kernels read fastest (kernels.h, pack): as many bytes again as
 * the weights that have one. With and without them a plan gives the same bits.
 */
enum esp_pack {
    ESP_PACK_AUTO, /* where they and what they copy fit into three quarters of the machine's memory */
    ESP_PACK_ON,
    ESP_PACK_OFF,
};

struct esp_plan_opts {
    enum esp_act act; /* activation precision; resolved per weight format */
    bool act_auto;    /* choose instead: CPU by format, int8x2 for integer codes, else f32; CUDA bf16 */
    uint32_t max_tok; /* limits of a batch */
    uint32_t max_out;
    uint32_t max_seq;
    uint32_t context;       /* largest position count */
    uint32_t max_rank;      /* largest rank of adapters; 0: batches have none */
    uint64_t adapter_bytes; /* that a device's copies of adapters may take; 0: what there is */
    enum esp_pack pack;     /* CPU; others have their own order */
};

struct esp_backend_ops {
    const char *name;
    void (*close)(struct esp_dev *d);
    /* Zeroed memory. ESP_ENOMEM. */
    esp_status (*alloc)(struct esp_dev *d, size_t bytes, struct esp_buf **out, esp_error *err);
    /* What a buffer of so many bytes takes. NULL: just these. */
    size_t (*alloc_bytes)(const struct esp_dev *d, size_t bytes);
    void (*free)(struct esp_buf *b);
    /* Equal sizes; ordered after earlier runs and before later ones. */
    esp_status (*copy)(struct esp_span dst, struct esp_span src, esp_error *err);
    /* n such copies, each dst_stride and src_stride bytes behind the one before, none overlapping another. */
    esp_status (*copy_many)(struct esp_span dst, size_t dst_stride, struct esp_span src, size_t src_stride,
                            uint32_t n, esp_error *err);
    /* Every byte of dst becomes value; ordered like copy. */
    esp_status (*fill)(struct esp_span dst, uint8_t value, esp_error *err);
    /* Whether the device can run an op with this weight. */
    bool (*can)(const struct esp_dev *d, const struct esp_op *op);
    /* Bytes that compile() will allocate, without allocating; copies of weights in device memory are not
     * counted. */
    esp_status (*plan_bytes)(struct esp_dev *d, const struct esp_tape *t, const struct esp_layout *l,
                             const struct esp_plan_opts *o, size_t *bytes, esp_error *err);
    /* Tape, weights and pools must outlive the plan. */
    esp_status (*compile)(struct esp_dev *d, const struct esp_tape *t, const struct esp_pools *p,
                          const struct esp_plan_opts *o, struct esp_plan **out, esp_error *err);
    void (*plan_free)(struct esp_plan *p);
    /* Start a step; the batch must stay as it is until wait() returns. Limits of the plan are checked:
     * ESP_EINVAL. */
    esp_status (*run)(struct esp_plan *p, const struct esp_batch *b, esp_error *err);
    esp_status (*wait)(struct esp_dev *d, esp_error *err);
    /*
     * Row `row` of the logits of p's last run, which asked for few and has been waited for. NULL: batches
     * ask for no few.
     */
    esp_status (*logits)(struct esp_plan *p, uint32_t row, float *out, esp_error *err);
    /* Bytes that alloc() can still take, and those of the whole device. NULL: it takes the host's memory. */
    esp_status (*memory)(struct esp_dev *d, uint64_t *left, uint64_t *total, esp_error *err);
    /* Bytes of a tape's weights in the device's memory, without taking any. NULL: they stay where they are.
     */
    uint64_t (*weight_bytes)(const struct esp_dev *d, const struct esp_tape *t);
    /* Host memory that the device's copies are fastest with, for work outside a tape; NULL when there is none
     * left. NULL entries: any memory is as good. */
    void *(*host_alloc)(struct esp_dev *d, size_t bytes);
    void (*host_free)(struct esp_dev *d, void *p); /* NULL is a no-op */
    /* Cheapest paths of trellis blocks, as paths.h defines them; done when it returns. NULL: the device has
     * no search. */
    esp_status (*paths)(struct esp_dev *d, const struct esp_paths *p, esp_error *err);
};

/* Base of every device; backends extend it. */
struct esp_dev {
    const struct esp_backend_ops *ops;
    char name[64];
};

/* The CPU at a level with n_thread threads. */
esp_status esp_cpu_open(struct esp_dev **out, enum esp_cpu_level level, uint32_t n_thread, esp_error *err);
/*
 * The same with n_batch threads for steps in which 16 or more tokens of one sequence run together (0: as
 * many), its memory in pages of that kind, and threads and memory on nodes, which must outlive it; NULL:
 * wherever.
 */
esp_status esp_cpu_open_on(struct esp_dev **out, enum esp_cpu_level level, uint32_t n_thread,
                           uint32_t n_batch, enum esp_huge huge, const struct esp_nodes *nodes,
                           esp_error *err);
/*
 * CUDA device number `index` through espalier_cuda.so, which is looked for in $ESPALIER_CUDA_LIBRARY, beside
 * this library or program, in ../lib/espalier, and on the loader's path. ESP_EDEVICE says what is missing:
 * the library, a driver, a device, or a device new enough.
 */
esp_status esp_cuda_open(struct esp_dev **out, uint32_t index, esp_error *err);
static inline size_t esp_dev_alloc_bytes(const struct esp_dev *d, size_t bytes)
{
    return d->ops->alloc_bytes ? d->ops->alloc_bytes(d, bytes) : bytes;
}
/* Precision of activations in products with weights of format f on the CPU. */
enum esp_act esp_cpu_act(const struct esp_plan_opts *o, enum esp_format_id f);
/* The CPU device's kernel table, for work outside a tape. */
const struct esp_kernels *esp_cpu_kernels(const struct esp_dev *d);

#endif
