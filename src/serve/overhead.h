/*
 * The server's own share of the time to the first token of a stream: from the last byte of the request, as
 * the loop reads it, to the first byte of the first token's event, less what the engine takes (the wait
 * for a row, the prompt) and what the request itself asks for: rendering and tokenizing its prompt, which
 * is told apart, and a grammar that is compiled for it. Numbers for metrics.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_OVERHEAD_H
#define ESP_SERVE_OVERHEAD_H

#include <stddef.h>

struct esp_call;
struct esp_server;

/* Of first tokens that are written and on their way to the socket. */
struct esp_overhead {
    struct {
        double before; /* the engine had the request */
        double since;  /* the engine has had the token */
    } v[64];
    size_t n;
};

/* The first token of c has come, at a time; its request had been submitted. */
void esp_overhead_token(struct esp_call *c, double submitted, double at);
/* It is being written. */
void esp_overhead_written(struct esp_call *c);
/* All that was written is with the sockets. */
void esp_overhead_sent(void *server);

#endif
