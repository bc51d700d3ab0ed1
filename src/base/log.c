/*
 * The log hook, one of the two mutable globals of the library (the other is the CPU table). Set once, before
 * use.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static esp_log_fn log_fn;
static void *log_user;

void esp_set_log(esp_log_fn fn, void *user)
{
    log_fn = fn;
    log_user = user;
}

const char *esp_version(void)
{
    return ESP_VERSION;
}

void esp_log(esp_log_level level, const char *fmt, ...)
{
    char message[ESP_ERROR_MESSAGE_BYTES];
    va_list ap;

    if (!log_fn)
        return;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    log_fn(log_user, level, message);
}
