/*
 * Row scales of a matrix to be quantized; private to the trellis encoder.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_ENCODE_SCALE_H
#define ESP_QUANTIZE_ENCODE_SCALE_H

#include "quantize/encode_matrix.h"
#include "quantize/encode_parts.h"

/*
 * Fill job->scales by job->opts.scale and give the mean alpha of the rows whose scale is not 0. Weights are
 * finite. Bytes do not depend on the number of threads. Errors: ESP_ENUMERIC for a scale beyond f16, naming
 * the row; ESP_ENOMEM.
 */
esp_status esp_trellis_scales(struct esp_encoder *e, const struct esp_trellis_job *job, double *mean_alpha,
                              esp_error *err);

#endif
