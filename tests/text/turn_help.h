/*
 * A turn of a model taken apart into a message, whole or cut into pieces. SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_TURN_HELP_H
#define ESP_TESTS_TURN_HELP_H

#include "support/support.h"

#include <stdbool.h>
#include <string.h>

#include "base/json.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "text/toolcall.h"

enum { MAX_CALLS = 8 };

struct message {
    struct esp_strbuf reasoning, content, name[MAX_CALLS], args[MAX_CALLS];
    bool ended[MAX_CALLS];
    size_t n_call, n_warning;
};

static inline void turn_on_piece(void *user, enum esp_turn_what what, const char *s, size_t len)
{
    struct message *m = user;

    assert_true(esp_utf8_valid(s, len, NULL));
    assert_true(len > 0 || what == ESP_TURN_CALL_END);
    switch (what) {
    case ESP_TURN_REASONING:
        assert_true(esp_strbuf_add(&m->reasoning, s, len));
        break;
    case ESP_TURN_CONTENT:
        assert_true(esp_strbuf_add(&m->content, s, len));
        break;
    case ESP_TURN_CALL:
        assert_true(m->n_call < MAX_CALLS);
        assert_true(esp_strbuf_add(&m->name[m->n_call++], s, len));
        break;
    case ESP_TURN_ARGS:
        assert_true(m->n_call > 0 && !m->ended[m->n_call - 1]);
        assert_true(esp_strbuf_add(&m->args[m->n_call - 1], s, len));
        break;
    case ESP_TURN_CALL_END:
        assert_true(m->n_call > 0 && !m->ended[m->n_call - 1]);
        m->ended[m->n_call - 1] = true;
        break;
    }
}

static inline void turn_on_warning(void *user, const char *message)
{
    struct message *m = user;

    (void)message;
    m->n_warning++;
}

static inline void message_init(struct message *m)
{
    memset(m, 0, sizeof *m);
    esp_strbuf_init(&m->reasoning, 1 << 20);
    esp_strbuf_init(&m->content, 1 << 20);
    for (size_t i = 0; i < MAX_CALLS; i++) {
        esp_strbuf_init(&m->name[i], 1 << 10);
        esp_strbuf_init(&m->args[i], 1 << 20);
    }
}

static inline void message_free(struct message *m)
{
    esp_strbuf_free(&m->reasoning);
    esp_strbuf_free(&m->content);
    for (size_t i = 0; i < MAX_CALLS; i++) {
        esp_strbuf_free(&m->name[i]);
        esp_strbuf_free(&m->args[i]);
    }
}

static inline void message_equal(const struct message *a, const struct message *b)
{
    assert_string_equal(esp_strbuf_str(&a->reasoning), esp_strbuf_str(&b->reasoning));
    assert_string_equal(esp_strbuf_str(&a->content), esp_strbuf_str(&b->content));
    assert_int_equal(a->n_call, b->n_call);
    assert_int_equal(a->n_warning, b->n_warning);
    for (size_t i = 0; i < a->n_call; i++) {
        assert_string_equal(esp_strbuf_str(&a->name[i]), esp_strbuf_str(&b->name[i]));
        assert_string_equal(esp_strbuf_str(&a->args[i]), esp_strbuf_str(&b->args[i]));
        assert_int_equal(a->ended[i], b->ended[i]);
    }
}

struct how {
    const char *text;
    const json_t *tools;
    bool thinking, ended;
};

/* Feed in pieces of at most step bytes, the first of them first bytes long, never inside a character. */
static inline void parse(struct message *m, const struct how *h, size_t first, size_t step)
{
    struct esp_turn_opts o = {.thinking = h->thinking,
                              .calls = true,
                              .calls_in_thinking = true,
                              .tools = h->tools,
                              .fn = turn_on_piece,
                              .warn = turn_on_warning,
                              .user = m};
    const size_t len = strlen(h->text);
    struct esp_turn *t;
    esp_error err;

    message_init(m);
    test_ok(esp_turn_create(&t, &o, &err), &err);
    for (size_t at = 0, n = first; at < len; n = step) {
        size_t end = at + (n ? n : 1);

        if (end > len)
            end = len;
        while (end < len && ((unsigned char)h->text[end] & 0xc0) == 0x80)
            end++;
        test_ok(esp_turn_feed(t, h->text + at, end - at, &err), &err);
        at = end;
    }
    test_ok(esp_turn_finish(t, h->ended, &err), &err);
    esp_turn_destroy(t);
}

/* Every way to cut the text gives the same message. */
static inline void parse_all(struct message *m, const struct how *h)
{
    struct message other;
    const size_t len = strlen(h->text);

    parse(m, h, len, len);
    for (size_t step = 1; step <= 5; step++) {
        parse(&other, h, step, step);
        message_equal(m, &other);
        message_free(&other);
    }
    for (size_t cut = 1; cut < len; cut++) {
        parse(&other, h, cut, len);
        message_equal(m, &other);
        message_free(&other);
    }
    for (size_t i = 0; i < m->n_call; i++) {
        json_t *args = NULL;
        esp_error err;

        if (!m->ended[i])
            continue;
        test_ok(esp_json_parse(&args, esp_strbuf_str(&m->args[i]), m->args[i].len, "arguments",
                               ESP_JSON_NO_DUPLICATES, &err),
                &err);
        assert_true(json_is_object(args));
        json_decref(args);
    }
}

#endif
