/*
 * The server's stand-in beside the library's: the program under test takes the flags and then finds no
 * server.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/serve.h"

#include <string.h>

#include "base/status.h"

void esp_serve_defaults(struct esp_serve_opts *o)
{
    memset(o, 0, sizeof *o);
}

esp_status esp_serve(const struct esp_serve_opts *o, esp_error *err)
{
    (void)o;
    return esp_fail(err, ESP_EUNSUPPORTED, "the stand-in serves nothing");
}
