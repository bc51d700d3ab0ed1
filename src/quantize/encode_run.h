/*
 * One matrix being quantized, as the encoder's files share it. A unit of work is some outputs through all
 * inputs; it goes from stage to stage, and in each its lines of 256 weights get targets, are searched, and
 * leave a rest. Private to the encoder.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_ENCODE_RUN_H
#define ESP_QUANTIZE_ENCODE_RUN_H

#include <stdatomic.h>

#include "quantize/blas.h"
#include "quantize/encode_matrix.h"
#include "quantize/encode_parts.h"

enum { BLOCK = ESP_TRELLIS_BLOCK, UNIT_ROWS = 64 };

struct esp_unit_sums {
    double error; /* sum (w - w^)^2 */
    double power; /* sum w^2 */
    double loss;  /* |E C|^2 */
};

/* Memory of one unit at work. A tile has lines of 256 coded weights: rows of axis 1, inputs of axis 0. */
struct esp_lane {
    float *w;    /* [256][256] the tile's weights, axis 0 only (axis 1 reads them in place) */
    float *t;    /* [256][256] feedback, then the residual r of each line */
    float *rest; /* w - w^ of the unit: axis 1 [64][n_in], axis 0 [n_in][256] */
    float *u;    /* [lines of the stage][256] targets in units of their scale */
    float *own;  /* likewise the weights; with feedback inside blocks */
    uint16_t *states;
};

/* Inputs [i0 + q, i0 + q + n), i0 a multiple of 256: a block of axis 1, what shares feedback of axis 0. */
struct esp_stage {
    size_t i0, q, n;
};

struct esp_matrix_run {
    struct esp_blas blas;
    struct esp_encoder *e;
    const struct esp_trellis_job *job;
    const struct esp_ldlq *f;
    size_t n_in;
    bool feedback;
    bool zero;  /* measure w^ = 0 instead of encoding */
    float high; /* no |target| may pass it; infinity: no guard */
    uint32_t n_unit;
    uint32_t n_lane;
    struct esp_lane *lane;      /* [n_lane] */
    struct esp_unit_sums *sums; /* [n_unit] */
    /* With a device: units [unit0, unit_end) on their way to `stage`, and all their lines. */
    uint32_t n_wave; /* units at most; 0: no device */
    uint32_t unit0, unit_end, stage;
    float *u, *own; /* own NULL: not needed */
    uint16_t *states;
    uint64_t total;
    _Atomic uint64_t done;
    _Atomic uint32_t next;
    _Atomic int diverged, cancelled, broken;
};

static inline bool esp_run_stopped(const struct esp_matrix_run *r)
{
    return r->diverged || r->cancelled || r->broken;
}

uint32_t esp_run_stages(const struct esp_matrix_run *r);
struct esp_stage esp_run_stage(const struct esp_matrix_run *r, uint32_t number);
uint32_t esp_run_lines(const struct esp_matrix_run *r, uint32_t unit, const struct esp_stage *st);
/* Feedback inside blocks: whether there is, and what all lines of a stage have in common of it. */
bool esp_run_feeds_inside(const struct esp_matrix_run *r);
struct esp_viterbi_feed esp_run_feed(const struct esp_matrix_run *r, const struct esp_stage *st);

/* Targets of a stage; diverged when one is out of bounds. With r->zero none are made. */
void esp_unit_begin(struct esp_matrix_run *r, const struct esp_lane *l, uint32_t unit,
                    const struct esp_stage *st);
/* Paths of a stage on the calling thread. */
void esp_unit_search(struct esp_matrix_run *r, const struct esp_lane *l, uint32_t tid, uint32_t unit,
                     const struct esp_stage *st);
/* Codes, rest and sums of a stage; broken when a path is none. */
void esp_unit_end(struct esp_matrix_run *r, const struct esp_lane *l, uint32_t tid, uint32_t unit,
                  const struct esp_stage *st);

#endif
