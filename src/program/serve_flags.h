/*
 * Flags of the verb serve as options of the room serve.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_SERVE_FLAGS_H
#define ESP_PROGRAM_SERVE_FLAGS_H

#include "program/options.h"
#include "serve/serve.h"

/* Into o, which has its defaults; all but the model's name and the callbacks. Texts are borrowed from opt,
 * lists live as long as the process. ESP_EINVAL, ESP_ENOMEM. */
esp_status esp_serve_flags(struct esp_serve_opts *o, const struct esp_options *opt, esp_error *err);

#endif
