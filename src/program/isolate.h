/*
 * serve --isolate: this process keeps the sockets and starts another one that does everything else. When that
 * dies, its clients are told (serve/guard.h) and the next one is started on the same sockets, so that those
 * who connect meanwhile only wait.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_ISOLATE_H
#define ESP_PROGRAM_ISOLATE_H

#include "serve/serve.h"

enum esp_isolated { ESP_ISOLATE_CHILD, ESP_ISOLATE_PARENT };

/*
 * Before the process has threads. Returns in every child with ESP_ISOLATE_CHILD and o changed to accept on
 * the parent's sockets; *again: it is not the first. In the parent with ESP_ISOLATE_PARENT when it is all
 * over and *code, what the program should exit with. ESP_EIO: an address cannot be had; nothing was started.
 */
esp_status esp_isolate(struct esp_serve_opts *o, enum esp_isolated *who, bool *again, int *code,
                       esp_error *err);
/* In the parent, from its signal handler: read the keys again. */
void esp_isolate_hangup(void);

#endif
