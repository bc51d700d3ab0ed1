/*
 * What the measuring programs share.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BENCH_BENCH_H
#define ESP_BENCH_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/status.h"

/* Seconds of a clock that nobody sets. */
static inline double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ends the program where s is an error: with 77 where there is no device. */
static inline void need(esp_status s, const esp_error *err)
{
    if (s == ESP_OK)
        return;
    fprintf(stderr, "%s: %s\n", esp_status_name(s), err->message);
    exit(s == ESP_EDEVICE ? 77 : 1);
}

#endif
