/*
 * Grammars of the stand-in library: none, and it says so.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/structured.h"

#include "base/status.h"

esp_status esp_model_vocab(struct esp_vocab **out, const esp_model *m, esp_error *err)
{
    (void)out;
    (void)m;
    return esp_fail(err, ESP_EUNSUPPORTED, "the stand-in has no grammars");
}

esp_status esp_constraint_open(struct esp_constraint *out, struct esp_grammar *g,
                               const struct esp_matcher_opts *o, esp_error *err)
{
    (void)out;
    (void)g;
    (void)o;
    return esp_fail(err, ESP_EUNSUPPORTED, "the stand-in has no grammars");
}

esp_status esp_seq_set_constraint(esp_seq *s, const struct esp_constraint *c, esp_error *err)
{
    (void)s;
    (void)c;
    return esp_fail(err, ESP_EUNSUPPORTED, "the stand-in has no grammars");
}
