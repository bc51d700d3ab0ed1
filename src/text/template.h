/*
 * Chat templates: from messages, tools and options to the text of a prompt, byte for byte as the checkpoint's
 * own Jinja template has it. Beside the text comes the list of trusted spans: what the template's author
 * wrote. Everything that came with the data (messages, tools, arguments, keyword arguments, and numbers
 * printed from them) is outside these spans, and the tokenizer must not recognise control tokens there.
 *
 * A template is immutable once opened and may be rendered by many threads at once.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_TEMPLATE_H
#define ESP_TEXT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/strbuf.h"

#include "text/span.h"

struct esp_template;

/* Ascending, not touching each other. Zero it before the first use; esp_text_spans_free() gives the memory
 * back. */
struct esp_text_spans {
    struct esp_text_span *v;
    size_t n;
    size_t cap;
};

void esp_text_spans_free(struct esp_text_spans *s);

/*
 * Parse source[0..len), UTF-8, at most ESP_LIMIT_TEMPLATE_BYTES. name stands in messages ("name:line: ...").
 * Whitespace control is Jinja2's with trim_blocks, lstrip_blocks and loop controls. Errors: ESP_EFORMAT
 * (syntax, encoding), ESP_EUNSUPPORTED (a statement outside the subset, named), ESP_ENOFIT (nested deeper
 * than ESP_LIMIT_TEMPLATE_DEPTH, or too long), ESP_ENOMEM.
 */
esp_status esp_template_open(struct esp_template **out, const char *source, size_t len, const char *name,
                             esp_error *err);
void esp_template_close(struct esp_template *t);
/* As given to open. */
const char *esp_template_name(const struct esp_template *t);
const char *esp_template_source(const struct esp_template *t); /* as given to open */

struct esp_template_opts {
    const json_t *
        trusted; /* object of more variables whose strings count as template text (bos_token, ...); or NULL */
    bool has_now;       /* strftime_now() exists only when a clock is given */
    int64_t now;        /* seconds since 1970 in the time zone to be printed */
    uint64_t max_steps; /* 0: ESP_LIMIT_TEMPLATE_STEPS */
    size_t max_output;  /* bytes; 0: ESP_LIMIT_TEMPLATE_OUTPUT */
};

/*
 * Render with the members of context (an object) as variables; they win over those in opts->trusted. opts may
 * be NULL. Appends to out (whose own maximum also holds) and adds to spans, offsets counted from the start of
 * out; spans may be NULL. On failure both are as before the call. Errors: ESP_EINVAL (the template's
 * raise_exception, whose text is the whole message, or an operation its data does not allow, with "name:line:
 * "), ESP_EUNSUPPORTED (unknown filter, test or method), ESP_ENOFIT (steps, depth, output, memory beyond the
 * limits), ESP_ENOMEM.
 */
esp_status esp_template_render(const struct esp_template *t, const json_t *context,
                               const struct esp_template_opts *opts, struct esp_strbuf *out,
                               struct esp_text_spans *spans, esp_error *err);

/* ---- chats ---- */

struct esp_chat {
    const json_t *messages; /* array; see below */
    const json_t *tools;    /* array of objects, or NULL; an empty array and null count as none */
    const json_t
        *kwargs; /* object of further variables (enable_thinking, ...), or NULL; not messages or tools */
    bool add_generation_prompt; /* unless kwargs has a member of that name */
    const char *bos_token;      /* trusted; NULL: the variable is an empty string */
    const char *eos_token;
    const struct esp_template_opts *opts; /* or NULL; its trusted members are added */
};

/*
 * Check the shape of an OpenAI-style conversation, turn arguments given as JSON text into mappings, and
 * render. Every message is an object with a string role and content that is a string, null, absent, or an
 * array of objects (a bare string there would be searched for part names by the templates). tool_calls is an
 * array of objects, null or absent; function.arguments (or arguments beside name) is an object, a string
 * holding a JSON object (empty: {}), null or absent. Nothing given by the caller is changed. Errors:
 * ESP_EINVAL naming the field, such as messages[2].tool_calls[0].function.arguments; else as render.
 */
esp_status esp_template_chat(const struct esp_template *t, const struct esp_chat *chat,
                             struct esp_strbuf *out, struct esp_text_spans *spans, esp_error *err);

/* ---- where templates come from ---- */

/* The templates of one model. tool_use is NULL unless the model has one of that name; then it is meant for
 * chats with tools. */
struct esp_template_set {
    struct esp_template *main;
    struct esp_template *tool_use;
};

/*
 * The chat template of the model in folder dir: the file `override` when not NULL; else
 * dir/chat_template.jinja; else chat_template in dir/tokenizer_config.json, a string or a list of {name,
 * template} where "default" is the main one (the only one when the list has one entry). Errors: ESP_ENOTFOUND
 * when there is none, naming the places looked at; ESP_EFORMAT, ESP_EIO, and those of open.
 */
esp_status esp_template_load(struct esp_template_set *out, const char *dir, const char *override,
                             esp_error *err);
void esp_template_set_close(struct esp_template_set *s);
/* The template for a chat with or without tools. */
const struct esp_template *esp_template_pick(const struct esp_template_set *s, const json_t *tools);

#endif
