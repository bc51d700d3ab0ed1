/*
 * Error records: formatting a message into the caller's esp_error and making it safe to print.
 *
 * SPDX-License-Identifier: MIT
 */
#define ESP_STATUS_BODIES /* this file has the functions behind the analyzer's macros */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static const char *const status_names[] = {
    "ok",          "invalid", "no memory", "i/o",       "format", "not found",
    "unsupported", "no fit",  "device",    "cancelled", "state",  "numeric",
};

const char *esp_status_name(esp_status s)
{
    size_t n = sizeof status_names / sizeof status_names[0];

    return (size_t)s < n ? status_names[s] : "unknown";
}

/* Replace control bytes and broken UTF-8 by '?'; end a cut message in "...", never inside a character. */
static void make_printable(char *m, size_t wanted)
{
    size_t len = strlen(m);
    size_t i = 0;

    if (wanted >= ESP_ERROR_MESSAGE_BYTES) {
        len = ESP_ERROR_MESSAGE_BYTES - 4;
        len -= esp_utf8_incomplete_tail(m, len);
        memcpy(m + len, "...", 4);
    }
    while (i < len) {
        uint32_t cp;
        size_t n = esp_utf8_decode(m + i, len - i, &cp);

        if (n == 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0))
            m[i++] = '?';
        else
            i += n;
    }
}

esp_status esp_fail(esp_error *err, esp_status s, const char *fmt, ...)
{
    va_list ap;
    int n;

    if (!err)
        return s;
    err->status = s;
    va_start(ap, fmt);
    n = vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    if (n < 0)
        err->message[0] = 0; /* an encoding error of the C library: the status still stands */
    make_printable(err->message, n < 0 ? 0 : (size_t)n);
    return s;
}

esp_status esp_fail_in(esp_error *err, esp_status s, const char *fmt, ...)
{
    char prefix[256];
    char old[ESP_ERROR_MESSAGE_BYTES];
    va_list ap;

    if (!err)
        return s;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(old, err->message, sizeof old);
    return esp_fail(err, s, "%s: %s", prefix, old);
}

_Noreturn void esp_assert_failed(const char *cond, const char *file, int line)
{
    fprintf(stderr, "espalier: broken invariant: %s (%s:%d)\n", cond, file, line);
    __builtin_trap();
}
