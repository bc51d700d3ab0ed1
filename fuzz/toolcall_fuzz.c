/*
 * Turns of a model: the first byte chooses the options, the rest is what the model wrote. Fed in one piece
 * and character by character the message must be the same, every piece valid UTF-8, calls begin and end in
 * order, and the arguments of a call that has ended are one JSON object.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/json.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "text/toolcall.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXT = 1 << 22 };

struct heard {
    struct esp_strbuf all;  /* every piece behind a mark of its kind, equal neighbours joined */
    struct esp_strbuf args; /* of the open call */
    enum esp_turn_what last;
    bool open; /* a call has begun and not ended */
};

static void check(bool holds)
{
    if (!holds)
        __builtin_trap();
}

static void on_piece(void *user, enum esp_turn_what what, const char *s, size_t len)
{
    struct heard *h = user;
    json_t *args = NULL;

    check(esp_utf8_valid(s, len, NULL) && (len > 0 || what == ESP_TURN_CALL_END));
    if (what != h->last || what == ESP_TURN_CALL)
        esp_strbuf_putc(&h->all, (char)('1' + (int)what));
    h->last = what;
    esp_strbuf_add(&h->all, s, len);
    if (what == ESP_TURN_CALL) {
        esp_strbuf_clear(&h->args);
        h->open = true;
    } else if (what == ESP_TURN_ARGS) {
        check(h->open);
        esp_strbuf_add(&h->args, s, len);
    } else if (what == ESP_TURN_CALL_END) {
        check(h->open);
        h->open = false;
        if (!h->args.failed) {
            args = json_loadb(esp_strbuf_str(&h->args), h->args.len, 0, NULL);
            check(json_is_object(args));
            json_decref(args);
        }
    }
}

static json_t *tools(void)
{
    static const char text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                               "\"type\":\"object\",\"properties\":"
                               "{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"number\"},\"i\":{\"type\":"
                               "\"integer\"},\"b\":{\"type\":"
                               "\"boolean\"},\"a\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},"
                               "\"o\":{\"type\":\"object\"},"
                               "\"u\":{\"type\":[\"string\",\"null\"]}}}}}]";
    json_t *v = NULL;

    check(esp_json_parse(&v, text, sizeof text - 1, "tools", 0, NULL) == ESP_OK);
    return v;
}

static size_t character(const char *s, size_t len)
{
    size_t n = 1;

    while (n < len && ((unsigned char)s[n] & 0xc0) == 0x80)
        n++;
    return n;
}

static void hear(struct heard *h, unsigned flags, const char *s, size_t len, bool pieces, const json_t *known)
{
    const struct esp_turn_opts o = {.raw = flags & 1,
                                    .thinking = flags & 2,
                                    .continued = flags & 4,
                                    .calls = !(flags & 8),
                                    .calls_in_thinking = flags & 16,
                                    .tools = flags & 32 ? NULL : known,
                                    .fn = on_piece,
                                    .user = h};
    struct esp_turn *t;

    *h = (struct heard){.last = (enum esp_turn_what) - 1};
    esp_strbuf_init(&h->all, MAX_TEXT);
    esp_strbuf_init(&h->args, MAX_TEXT);
    check(esp_turn_create(&t, &o, NULL) == ESP_OK);
    for (size_t at = 0; at < len;) {
        const size_t n = pieces ? character(s + at, len - at) : len;

        check(esp_turn_feed(t, s + at, n, NULL) == ESP_OK);
        check(esp_turn_content_bytes(t) + esp_turn_reasoning_bytes(t) + esp_turn_undecided(t) <=
              3 * (at + n));
        at += n;
    }
    check(esp_turn_finish(t, flags & 64, NULL) == ESP_OK);
    esp_turn_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 1;
    struct heard whole, pieces;
    json_t *known;

    if (size < 2 || !esp_utf8_valid(text, size - 1, NULL))
        return 0;
    known = tools();
    hear(&whole, data[0], text, size - 1, false, known);
    hear(&pieces, data[0], text, size - 1, true, known);
    check(whole.all.len == pieces.all.len &&
          memcmp(esp_strbuf_str(&whole.all), esp_strbuf_str(&pieces.all), whole.all.len) == 0);
    esp_strbuf_free(&whole.all);
    esp_strbuf_free(&whole.args);
    esp_strbuf_free(&pieces.all);
    esp_strbuf_free(&pieces.args);
    json_decref(known);
    return 0;
}
