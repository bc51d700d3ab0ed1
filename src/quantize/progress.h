/*
 * Telling the caller how far a long piece of work is, and being told to stop.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_PROGRESS_H
#define ESP_QUANTIZE_PROGRESS_H

#include <stdbool.h>

#include "base/status.h"

struct esp_progress_to {
    /* what is the phase, item the tensor or pass at work; false stops the work. NULL: nobody listens. */
    bool (*fn)(void *user, const char *what, const char *item, double done, double total);
    void *user;
};

static inline esp_status esp_progress_tell(const struct esp_progress_to *p, const char *what,
                                           const char *item, double done, double total, esp_error *err)
{
    if (p && p->fn && !p->fn(p->user, what, item, done, total))
        return esp_fail(err, ESP_ECANCELLED, "%s: stopped at %s", what, item);
    return ESP_OK;
}

#endif
