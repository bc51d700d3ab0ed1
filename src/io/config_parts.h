/*
 * The pieces of a config, one reader each, called by esp_config_read() in this order. Private to io.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_CONFIG_PARTS_H
#define ESP_IO_CONFIG_PARTS_H

#include "io/config.h"
#include "io/config_value.h"

/* Needs head_dim. */
esp_status esp_config_read_rope(struct esp_config *out, const struct esp_cfg *text, esp_error *err);
/* Needs vocab_size and hidden. */
esp_status esp_config_read_vision(struct esp_config *out, const struct esp_cfg *top,
                                  const struct esp_cfg *text, esp_error *err);
/* Sampling defaults; g->object may be NULL. */
esp_status esp_config_read_generation(struct esp_config_generation *out, const struct esp_cfg *g,
                                      esp_error *err);
/* eos, bos and pad ids from all three places. Needs vocab_size. */
esp_status esp_config_read_special(struct esp_config *out, const struct esp_cfg *generation,
                                   const struct esp_cfg *top, const struct esp_cfg *text, esp_error *err);

#endif
