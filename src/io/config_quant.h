/*
 * Which modules are quantized, and how: what config.json says, and what the tensors prove. Configs drift
 * between tools, so tensors win: bits and group follow from the shapes and the input width that the
 * architecture knows. Source: doc/formats/affine.md.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_CONFIG_QUANT_H
#define ESP_IO_CONFIG_QUANT_H

#include <stdint.h>

#include "base/status.h"
#include "io/config.h"
#include "io/safetensors.h"
#include "io/warnings.h"

/* What the config says about one module. */
enum esp_quant_said {
    ESP_QUANT_UNSAID, /* no quantization in the config, or no override: quantized exactly if P.scales exists
                       */
    ESP_QUANT_NO,     /* override false */
    ESP_QUANT_YES     /* override object or true */
};

/* "affine" ... */
const char *esp_quant_mode_name(enum esp_quant_mode m);

/*
 * Settings for a module path (the weight's name without ".weight"). *q is filled with the override merged
 * over the global values, or the global values when there is none (MLX affine 4 bits, group 64 when the
 * config has none either). Paths are tried as given, then with "language_model." removed or added, then
 * without or with a leading "model.".
 */
enum esp_quant_said esp_config_quant(const struct esp_config *c, const char *module, struct esp_quant *q);

/*
 * Settings as the tensors have them. weight, scales and biases are those of module (biases may be NULL), n_in
 * the input width. Affine: bits = 32 * weight cols / n_in, group = n_in / scales cols; U8 scales mean mxfp4,
 * nvfp4 or mxfp8 by group and bits. Trellis (1-D scales): bits, group and code stay as
 * configured. When the config disagrees there is a warning and the tensors win. ESP_EFORMAT, naming the
 * tensor, when the shapes give no legal value, leading dimensions differ, float scales lack biases, or a
 * dtype is wrong; ESP_EUNSUPPORTED for dtypes without reader.
 */
esp_status esp_quant_from_tensors(struct esp_quant *out, const struct esp_config *c, const char *module,
                                  const struct esp_st_tensor *const wsb[3], uint64_t n_in,
                                  struct esp_warnings *w, esp_error *err);

/* Read `quantization`, else `quantization_config`, else those of text_config; used by esp_config_read(). */
esp_status esp_config_quant_read(struct esp_config_quant_table *out, const json_t *top, const json_t *text,
                                 const char *name, esp_error *err);
void esp_config_quant_free(struct esp_config_quant_table *t);

#endif
