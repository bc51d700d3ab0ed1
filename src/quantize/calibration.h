/*
 * Token lists for measuring: a plain text, a file of chats, or the text that is built in.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_CALIBRATION_H
#define ESP_QUANTIZE_CALIBRATION_H

#include "espalier/espalier.h"

#include "quantize/hessian.h"

/* The built-in text: models/calibration.txt. */
extern const unsigned char esp_calibration_text[];
extern const size_t esp_calibration_text_len;

enum { ESP_CALIB_LIST = 512 }; /* tokens of a list; chats are cut there */

/*
 * path NULL: the built-in text. A name ending in .jsonl is one chat a line, {"messages": [...], "tools":
 * [...]}, rendered by the model's template; anything else is text. At most max tokens become lists of
 * *measure; every sixteenth list (at least one of two) goes to *held_out instead. ESP_EFORMAT names the line
 * of a bad chat; ESP_EINVAL for too short texts.
 */
esp_status esp_calibration_read(struct esp_token_lists *measure, struct esp_token_lists *held_out,
                                const esp_model *m, const char *path, uint32_t max, esp_error *err);

#endif
