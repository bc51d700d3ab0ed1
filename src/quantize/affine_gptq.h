/*
 * MLX affine codes for a matrix: to nearest, or with the error of each input carried to the later ones (GPTQ,
 * which is LDLQ with groups of one). The format's range rule is MLX's in both cases, so any reader of the
 * format reads either.
 *
 * Column order: natural takes a group's range when its first input is reached, from the corrected weights. By
 * activity goes from the largest second moment down with the ranges of the original weights ("static
 * groups"), since the format stores groups of neighbours.
 *
 * Source  Frantar, Ashkboos, Hoefler, Alistarh, arXiv:2210.17323.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_AFFINE_GPTQ_H
#define ESP_QUANTIZE_AFFINE_GPTQ_H

#include "base/pool.h"
#include "formats/format.h"
#include "kernels/kernels.h"
#include "quantize/ldlq.h"

struct esp_affine_job {
    const float *w;                /* [n_out][n_in], finite */
    const struct esp_weight *like; /* format, scale_type, n_out, n_in, group, row sizes */
    const struct esp_ldlq
        *ldlq;             /* group 1, over the inputs in `order`; NULL: to nearest, bit for bit as MLX */
    const uint32_t *order; /* [n_in] inputs in order of processing; NULL: natural */
    struct esp_pool *pool;
    uint8_t *codes;           /* [n_out][like->row_bytes] */
    uint8_t *scales, *biases; /* [n_out][like->scale_row_bytes] */
};
/* ESP_ENOMEM, ESP_ENUMERIC when a scale or bias is outside the scale type's range. Threads do not change the
 * bytes. */
esp_status esp_affine_quantize(const struct esp_affine_job *job, esp_error *err);

/* Inputs by falling second moment, ties by index, into order [n]. */
esp_status esp_order_by_activity(uint32_t *order, const float *h, uint32_t n, esp_error *err);

/* loss = tr(E H ET) with E = w - q, power = tr(W H WT); h [n_in][n_in] symmetric. */
struct esp_loss {
    double loss, power;
};
esp_status esp_proxy_loss(struct esp_loss *out, const float *w, const struct esp_weight *q, const float *h,
                          struct esp_pool *pool, const struct esp_kernels *k, esp_error *err);

#endif
