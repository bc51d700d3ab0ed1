/*
 * LoRA adapters that requests may name. Mounting reads files on a thread of its own; the loop goes on
 * meanwhile. An adapter in use cannot be taken away.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_ADAPTERS_H
#define ESP_SERVE_ADAPTERS_H

#include "serve/job.h"

struct esp_mounts;

/* Mount those of the options; on the loading thread. ESP_EINVAL, and those of esp_adapter_open(). */
esp_status esp_mounts_open(struct esp_mounts **out, const struct esp_serve_opts *o, esp_model *m,
                           esp_error *err);
/* No sequence may use one any more. */
void esp_mounts_close(struct esp_mounts *a);
/* The list stays, without the adapters themselves; NULL is a no-op. */
void esp_mounts_sleep(struct esp_mounts *a);
/* All of them for a model that was loaded again; after an error those that were read stay until the next
 * sleep or wake. */
esp_status esp_mounts_wake(struct esp_mounts *a, esp_model *m, esp_error *err);
/* Fields adapter and lora, and what the model's name says behind a colon; else the server's default. */
void esp_mounts_read(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s);
/* A job uses what its settings name; and has ended. */
void esp_mounts_use(struct esp_server *s, const struct esp_gen *g, int by);
/* The same adapters must not go while something waits that will use them: by 1, and then -1. */
void esp_mounts_hold(struct esp_server *s, const esp_adapter_use *v, uint32_t n, int by);
/* Whether a model's name means one of them, alone or behind "base:". */
bool esp_mounts_known(const struct esp_server *s, const char *model);
/* Entries for GET /v1/adapters; as models for GET /v1/models, with parent. New arrays. */
json_t *esp_mounts_list(const struct esp_server *s);
json_t *esp_mounts_ids(const struct esp_server *s);

#endif
