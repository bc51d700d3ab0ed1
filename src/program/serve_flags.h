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
/* The part of it that a running server may read again: limits, times, log level. */
void esp_serve_flags_limits(struct esp_serve_opts *o, const struct esp_options *opt);
/* The configuration file (--config, else the user's own) into o, for what neither flag nor environment gave.
 * *text, or NULL, must be freed after o. ESP_EINVAL, ESP_EIO. */
esp_status esp_serve_config(struct esp_options *o, char **text, esp_error *err);
/* esp_serve_flags_limits() as the file is now; o was filled with what it was. */
esp_status esp_serve_config_limits(struct esp_serve_opts *out, const struct esp_options *o, esp_error *err);

#endif
