/*
 * Quantize one weight matrix to the trellis format: row scales, error feedback, codes. The unit of work is a
 * group of output features through all inputs: outputs do not know of each other, so any number of threads
 * gives the same bytes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_ENCODE_MATRIX_H
#define ESP_QUANTIZE_ENCODE_MATRIX_H

#include "quantize/encode.h"
#include "quantize/ldlq.h"

/* How a stored row's scale s is chosen; targets are w / s. alpha is the root mean square that targets then
 * have. */
enum esp_trellis_scale {
    ESP_TRELLIS_SCALE_FIXED, /* default: the best alpha for normal weights at this k (1.14 .96 .92 .88 ...) */
    ESP_TRELLIS_SCALE_RMS,   /* alpha = 1.0041072, the code's own: what other encoders of the format use */
    ESP_TRELLIS_SCALE_TENSOR, /* alpha searched once a matrix on at most 64 sample blocks */
    ESP_TRELLIS_SCALE_ROW,    /* alpha searched in every stored row, on at most 4 of its blocks */
    ESP_TRELLIS_SCALE_COUNT
};

/*
 * Groups to factor with (esp_ldlq_opts.group), by axis. Axis 0 feeds every input on by itself. Axis 1 may use
 * 16 to 256: below 256, targets inside a block follow the errors of the cheapest path so far, which is worth
 * 3-40 % of the loss for dense second moments (rotated inputs) and costs half as much time again; for purely
 * local ones 256 is a little better. Measured in doc/quality.md.
 */
enum { ESP_TRELLIS_GROUP_AXIS0 = 1, ESP_TRELLIS_GROUP_AXIS1 = 32, ESP_TRELLIS_GROUP_AXIS1_MIN = 16 };

enum esp_trellis_feedback {
    ESP_TRELLIS_FEEDBACK_ON,  /* default when a factor is given */
    ESP_TRELLIS_FEEDBACK_OFF, /* measure the loss only */
};

struct esp_trellis_opts {
    uint32_t k; /* 1..8 */
    uint32_t
        axis; /* 1: stored row = output, codes run along inputs. 0: stored row = input, codes along outputs */
    enum esp_search search;
    enum esp_trellis_scale scale;
    enum esp_trellis_feedback feedback;
    bool want_power; /* also compute tr(W H W^T): as much work as the feedback itself */
    /*
     * Called now and then on the caller's thread with how much is done, of total; a false return stops the
     * work (ESP_ECANCELLED). May be NULL. Counting starts again for want_power and when feedback is dropped.
     */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
};

struct esp_trellis_job {
    const float *w;              /* [n_out][n_in], finite, row-major */
    uint32_t n_out, n_in;        /* the coded one of the two is a multiple of 256 */
    const struct esp_ldlq *ldlq; /* factor of the inputs' second moments, n == n_in; NULL: no feedback */
    struct esp_trellis_opts opts;
    uint8_t *codes;   /* [rows][cols * k / 8] bytes: stored matrix, blocks in order, as doc/formats/trellis.md
                         has them */
    uint16_t *scales; /* [rows] f16 */
};

struct esp_trellis_report {
    double mse;     /* mean of (w - w^)^2 */
    double rel_mse; /* sum (w - w^)^2 / sum w^2; 0 for an all-zero matrix */
    double loss;    /* tr(E H E^T), H without damping; 0 without a factor */
    double power;   /* tr(W H W^T) when wanted, else 0 */
    double seconds;
    double alpha; /* mean over the rows that are not zero */
    bool
        unweighted; /* feedback was dropped: a target passed 4 times the largest |w / s|, or was not finite */
};

/*
 * Quantize job->w. Rows of zeros, and rows too small for an f16 scale, get scale 0 and zero codes. Scratch:
 * about n_thread * max(n_in * 1 KiB, 2 MiB), with a device up to 1 GiB instead where there are more units of
 * outputs than threads, all taken at the start. Errors: those of a device, ESP_EDEVICE also for what is no
 * path; ESP_EINVAL for shapes and options; ESP_ENUMERIC for a non-finite weight (with row and column) or a
 * row whose scale passes f16; ESP_ENOMEM; ESP_ECANCELLED. Outputs are written as the work proceeds: after an
 * error their contents are not defined.
 */
esp_status esp_trellis_quantize(struct esp_encoder *e, const struct esp_trellis_job *job,
                                struct esp_trellis_report *report, esp_error *err);

#endif
