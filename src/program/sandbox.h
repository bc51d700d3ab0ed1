/*
 * A process that gives up what it does not need (serve --seccomp): a list of system calls that a server uses;
 * all others fail, and those that only an intruder would make end the process. Two steps, because listening
 * needs calls that answering does not. Nothing here helps against a process that runs as root.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_SANDBOX_H
#define ESP_PROGRAM_SANDBOX_H

#include "base/status.h"

enum esp_sandbox {
    ESP_SANDBOX_START, /* no new programs, no looking into others, no administration */
    ESP_SANDBOX_SERVE  /* and no new sockets: only connections that come in */
};

/*
 * For all threads of the process, and for good. Files stay as reachable as the user's rights allow: the
 * service manager limits those (doc/deploy.md). ESP_EUNSUPPORTED when the program was built without
 * libseccomp or the system forbids filters.
 */
esp_status esp_sandbox_enter(enum esp_sandbox step, esp_error *err);

#endif
