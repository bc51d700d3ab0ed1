/*
 * What a new model folder takes over from its source beside the weights, and how it gets its name.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_FOLDER_H
#define ESP_QUANTIZE_FOLDER_H

#include <stdbool.h>

#include "base/status.h"

/* Copy every plain file that is neither weights nor hidden; config.json, last, only when asked for. */
esp_status esp_folder_copy_text(const char *work, const char *source, bool with_config, esp_error *err);
/* work becomes output, which must not exist. */
esp_status esp_folder_publish(const char *work, const char *output, esp_error *err);

#endif
