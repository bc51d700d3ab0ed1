/*
 * Work that must not hold up the event loop: each piece on a thread of its own, its end reported on the loop.
 * What waits for others has a thread at once; what computes takes turns.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_BACKGROUND_H
#define ESP_SERVE_BACKGROUND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct event_base;
struct esp_background;

typedef esp_status (*esp_background_fn)(void *arg, esp_error *err);
typedef void (*esp_background_done)(void *arg, esp_status s, const esp_error *err);

esp_status esp_background_open(struct esp_background **out, struct event_base *base, esp_error *err);
/* Report what has ended; whether something runs still. For whoever waits and has other things to do
 * meanwhile. */
bool esp_background_poll(struct esp_background *b);
/* Waits for what runs; done is called for all of it. NULL is a no-op. */
void esp_background_close(struct esp_background *b);
/* fn(arg) on a thread, then done(arg, ...) on the loop. ESP_ENOFIT: too many run already; ESP_EDEVICE,
 * ESP_ENOMEM: neither is called. */
esp_status esp_background_run(struct esp_background *b, esp_background_fn fn, esp_background_done done,
                              void *arg, esp_error *err);
/* The same for any number of pieces, of which so many as esp_background_set() said run at a time, in order.
 * ESP_ENOMEM: neither is called; done with ESP_EDEVICE: no thread could be had. */
esp_status esp_background_queue(struct esp_background *b, esp_background_fn fn, esp_background_done done,
                                void *arg, esp_error *err);
void esp_background_set(struct esp_background *b, uint32_t n); /* before the first; 1 or more */

#endif
