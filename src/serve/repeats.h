/*
 * The sampling fields that other servers have made common beside the usual ones: XTC and DRY. The texts that
 * end a repetition become sets of tokens, which take a pass over the vocabulary: the last few are kept.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_REPEATS_H
#define ESP_SERVE_REPEATS_H

#include "serve/job.h"

struct esp_breakers;

/* The server's own set ready; any thread. ESP_ENOMEM, ESP_EINVAL. */
esp_status esp_breakers_open(struct esp_breakers **out, const struct esp_serve_opts *o, const esp_model *m,
                             esp_error *err);
void esp_breakers_close(struct esp_breakers *b); /* NULL is a no-op */

/* xtc_* and dry_*; errors stay in f->e. */
void esp_repeats_read(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s);

#endif
