/*
 * --log-content: what was asked and answered, one file a request, for whoever runs the server and wants to
 * see it. Off unless asked for; nothing else in the server writes the text of a prompt or an answer down.
 *
 * A file is readable by its owner alone. Headers are not in it, members named as keys are left out, and the
 * caller's own API key is struck out wherever it stands. Files are written on a thread; when it falls too far
 * behind, records are dropped and counted.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_CONTENT_H
#define ESP_SERVE_CONTENT_H

#include <stdint.h>

#include "base/status.h"

struct esp_call;
struct esp_content;
struct esp_job;

/* dir is made if it is not there (its parent must be). ESP_EIO when nothing can be written in it. */
esp_status esp_content_open(struct esp_content **out, const char *dir, esp_error *err);
/* Writes what waits. NULL is a no-op. */
void esp_content_close(struct esp_content *k);
/* A generation has ended: keep its answers with its call. Nothing when content is not logged. */
void esp_content_answers(const struct esp_job *j);
/* A call has ended: write it, if it had a body. */
void esp_content_call(struct esp_call *c);
/* Files written, and records lost: to a full queue or a full disk. */
void esp_content_count(struct esp_content *k, uint64_t *written, uint64_t *lost);

#endif
