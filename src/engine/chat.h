/*
 * The text half of a model for rooms above that have parsed JSON at hand and want the prompt's text, its
 * trusted spans and its ids apart. Any thread.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_CHAT_H
#define ESP_ENGINE_CHAT_H

#include "espalier/espalier.h"

#include "text/template.h"
#include "text/tokenizer.h"

/* As esp_template_chat() with the model's template for chat->tools; ESP_ENOTFOUND when the model has none. */
esp_status esp_model_render(const esp_model *m, const struct esp_chat *chat, struct esp_strbuf *out,
                            struct esp_text_spans *spans, esp_error *err);
/* As esp_tokenizer_encode(); ESP_ENOTFOUND when the model has no tokenizer. */
esp_status esp_model_encode(const esp_model *m, const struct esp_tok_input *in, struct esp_ids *out,
                            esp_error *err);
/* The template's text; NULL when the model has none. Lives as long as the model. */
const char *esp_model_template(const esp_model *m);
/* Borrowed; NULL when the model has none. */
const struct esp_tokenizer *esp_model_tokenizer(const esp_model *m);

#endif
