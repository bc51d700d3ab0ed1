/*
 * The machine's parts: its states, what it holds, and how it looks at the bytes in front of it. Private to
 * toolcall.c and toolcall_call.c.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_TOOLCALL_PARTS_H
#define ESP_TEXT_TOOLCALL_PARTS_H

#include <string.h>

#include "base/strbuf.h"

#include "text/toolcall.h"

enum {
    ESP_TURN_MAX_NAME = 256,  /* of a function or parameter; longer ones are text */
    ESP_TURN_MAX_SPACES = 64, /* between two tags of markup */
    ESP_TURN_MAX_KEYS = 4096  /* arguments of one call */
};

enum esp_turn_state {
    ESP_TURN_IN_START,      /* of an answer: white space, then perhaps <think> */
    ESP_TURN_IN_REASONING,  /* inside <think> */
    ESP_TURN_IN_CONTENT,    /* visible text */
    ESP_TURN_IN_CALL_OPEN,  /* behind <tool_call> */
    ESP_TURN_IN_FUNCTION,   /* behind <function=...>, outside values */
    ESP_TURN_IN_VALUE,      /* inside a value */
    ESP_TURN_IN_JSON_CALL,  /* behind <tool_call> {, until </tool_call> */
    ESP_TURN_IN_CALL_CLOSE, /* behind </function> */
    ESP_TURN_IN_BETWEEN     /* behind a call: white space and stray closers go */
};

enum esp_turn_match { ESP_TURN_NO, ESP_TURN_PART, ESP_TURN_YES };

struct esp_turn {
    struct esp_turn_opts o;
    enum esp_turn_state state;
    struct esp_strbuf buf; /* undecided bytes from at on */
    size_t at;
    struct esp_strbuf space; /* white space behind handed-out text: part of it if more text follows */
    bool any;                /* text of the present channel was handed out */
    bool fresh;              /* first byte of a value */
    bool final;              /* no more bytes come */
    size_t scan;             /* ESP_TURN_IN_JSON_CALL: bytes behind at that were searched */
    bool quoted, escaped;    /* there: within a string, behind a backslash */
    size_t n_content, n_reasoning;
    /* The present call. */
    const json_t *tool;
    json_t *keys;
    unsigned types; /* of the present parameter */
    bool skip;      /* a parameter that was given before */
    char name[ESP_TURN_MAX_NAME + 1];
    struct esp_strbuf value; /* text of one that is not handed out as it comes */
    struct esp_strbuf piece;
};

static inline bool esp_turn_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline const char *esp_turn_front(const struct esp_turn *t)
{
    return esp_strbuf_str(&t->buf) + t->at;
}

static inline size_t esp_turn_left(const struct esp_turn *t)
{
    return t->buf.len - t->at;
}

static inline enum esp_turn_match esp_turn_match(const char *s, size_t n, const char *tag)
{
    const size_t len = strlen(tag);

    if (memcmp(s, tag, n < len ? n : len) != 0)
        return ESP_TURN_NO;
    return n < len ? ESP_TURN_PART : ESP_TURN_YES;
}

static inline size_t esp_turn_spaces(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n && esp_turn_is_space(s[i]))
        i++;
    return i;
}

static inline void esp_turn_warn(const struct esp_turn *t, const char *message)
{
    if (t->o.warn)
        t->o.warn(t->o.user, message);
}

static inline void esp_turn_give(struct esp_turn *t, enum esp_turn_what what, const char *s, size_t len)
{
    if (len)
        t->o.fn(t->o.user, what, s, len);
}

static inline void esp_turn_take(struct esp_turn *t, size_t n)
{
    t->at += n;
}

static inline void esp_turn_channel(struct esp_turn *t, enum esp_turn_state state)
{
    t->state = state;
    t->any = false;
    esp_strbuf_clear(&t->space);
}

/* "<word = NAME >": length of it all in *len, the name in name. */
enum esp_turn_match esp_turn_match_open(const char *s, size_t n, const char *word,
                                        char name[ESP_TURN_MAX_NAME + 1], size_t *len);

/* ---- toolcall_call.c: each step is true when another one may follow at once ---- */

bool esp_turn_start_call(struct esp_turn *t, size_t len); /* len bytes of <function=NAME> are taken */
bool esp_turn_end_call(struct esp_turn *t, enum esp_turn_state next);
void esp_turn_end_value(struct esp_turn *t);
bool esp_turn_step_open(struct esp_turn *t);
bool esp_turn_step_function(struct esp_turn *t);
bool esp_turn_step_value(struct esp_turn *t);
bool esp_turn_step_json(struct esp_turn *t);
bool esp_turn_step_close(struct esp_turn *t);
bool esp_turn_step_between(struct esp_turn *t);

#endif
