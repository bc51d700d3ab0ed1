/*
 * The model and its engine in the server: loaded beside the loop, put to sleep when nobody needs them, woken
 * by the next request that does. Asleep, weights, keys and values, states and caches in memory are gone; what
 * the cache has a file for comes back from there, and the server answers what needs no model.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_LIFE_H
#define ESP_SERVE_LIFE_H

#include "serve/server.h"

/* Begin to load. Its failure ends the server. */
esp_status esp_life_open(struct esp_server *s, esp_error *err);
/* Hand out what the engine has said. */
void esp_life_poll(struct esp_server *s);
/* Whether model and engine are not there, or about to leave: the call must wait or be refused. */
bool esp_life_asleep(const struct esp_server *s);
/* The call's route once the model is back; the wait wakes it. False with c->e: too many wait. */
bool esp_life_wait(struct esp_call *c);
/* Sleep as soon as nothing runs; be woken. False: it cannot load again. */
bool esp_life_ask_sleep(struct esp_server *s);
void esp_life_wake(struct esp_server *s);
/* A request needs the model: the time without one begins anew. */
void esp_life_touch(struct esp_server *s);
void esp_life_tick(struct esp_server *s, double now);
/* Numbers of the engine; those it went to sleep with while it sleeps. */
void esp_life_stats(const struct esp_server *s, esp_stats *out);
/* The server ends: those that wait are refused. */
void esp_life_drain(struct esp_server *s);
void esp_life_stop(struct esp_server *s);
/* Nothing runs any more. Model and engine stay the program's. */
void esp_life_close(struct esp_server *s);

#endif
