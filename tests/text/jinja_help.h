/* Short forms that the tests of the Jinja subset share. SPDX-License-Identifier: MIT */
#ifndef ESP_TESTS_JINJA_HELP_H
#define ESP_TESTS_JINJA_HELP_H

#include "support/support.h"

#include <string.h>

#include "text/template.h"

/* Open source as template "t", render it and close it. */
static inline esp_status render(const char *source, const json_t *vars, const struct esp_template_opts *opts,
                                struct esp_strbuf *out, struct esp_text_spans *spans, esp_error *err)
{
    struct esp_template *t = NULL;
    esp_status s = esp_template_open(&t, source, strlen(source), "t", err);

    if (s == ESP_OK)
        s = esp_template_render(t, vars, opts, out, spans, err);
    esp_template_close(t);
    return s;
}

#endif
