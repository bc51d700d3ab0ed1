/*
 * Last words. A server that computes in a process of its own (--isolate) may die without warning; its parent
 * holds every connection open too, and what each client is to be told then lies ready in memory that both
 * share. A connection costs two messages, a reply a copy of its last words, a token nothing.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_GUARD_H
#define ESP_SERVE_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct esp_guard;

/* Before the fork; for so many connections at a time. ESP_ENOMEM, ESP_EIO. */
esp_status esp_guard_open(struct esp_guard **out, uint32_t n, esp_error *err);
void esp_guard_close(struct esp_guard *g);

/* ---- the process that computes ---- */

void esp_guard_child(struct esp_guard *g); /* behind the fork */
/* A new connection; its number, -1 when there is no place: nothing will be told then. */
int esp_guard_take(struct esp_guard *g, int fd);
/* It is about to be closed. */
void esp_guard_leave(struct esp_guard *g, int number, int fd);
/* What its client is told; too long or empty: nothing. Begins to count at once. */
void esp_guard_words(struct esp_guard *g, int number, const char *text, size_t len);
/* Whether they would make sense now: not behind half of an event. */
void esp_guard_speak(struct esp_guard *g, int number, bool yes);

/* ---- its parent ---- */

void esp_guard_parent(struct esp_guard *g);  /* behind the fork */
int esp_guard_fd(const struct esp_guard *g); /* readable: call receive */
void esp_guard_receive(struct esp_guard *g);
/* The child is gone: tell all clients and close their connections; how many were told. Then g is as at first,
 * for the next child. */
uint32_t esp_guard_tell(struct esp_guard *g);

#endif
