/*
 * Warnings: formatted through esp_fail(), so that they get the same cleaning of hostile names as errors do.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/warnings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

void esp_warn(struct esp_warnings *w, const char *fmt, ...)
{
    char line[ESP_ERROR_MESSAGE_BYTES];
    esp_error clean;
    va_list ap;
    char *copy;

    if (!w)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    (void)esp_fail(&clean, ESP_EFORMAT, "%s", line);
    copy = w->n < ESP_WARNINGS_MAX ? esp_strndup(clean.message, strlen(clean.message)) : NULL;
    if (copy)
        w->text[w->n++] = copy;
    else
        w->n_dropped++;
}

void esp_warnings_free(struct esp_warnings *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        esp_free(w->text[i]);
    memset(w, 0, sizeof *w);
}
