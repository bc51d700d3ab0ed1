/*
 * One server for all tests of a program: set-up with the defaults, and tear-down. A program that needs other
 * options has a set-up of its own.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_SERVE_SHARED_H
#define ESP_TESTS_SERVE_SHARED_H

#include "serve/client/client.h"

static struct server shared;

static inline int start_plain(void **state)
{
    (void)state;
    server_init(&shared);
    server_start(&shared);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_stop(&shared);
    return 0;
}

#endif
