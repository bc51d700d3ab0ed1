/*
 * What a service manager gives and wants to know, in the protocol of systemd: listening sockets by number
 * from 3 on (LISTEN_FDS), and a word when the server is ready (NOTIFY_SOCKET). Without these variables
 * nothing is done.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_MANAGER_H
#define ESP_PROGRAM_MANAGER_H

#include "serve/serve.h"

/* Sockets that were given become o's in place of --host. ESP_EINVAL: --host as well, too many of them, or one
 * that is no listening stream socket. */
esp_status esp_manager_sockets(struct esp_serve_opts *o, esp_error *err);
/* A descriptor to tell the manager through, from before a sandbox forbids to make one; -1: nobody asks. */
int esp_manager_open(void);
/* Text such as "READY=1"; closes fd. */
void esp_manager_tell(int fd, const char *text);

#endif
