/*
 * A request's body as a JSON object.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/background.h"
#include "serve/server.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/mem.h"

enum { BIG = 32 << 10 }; /* bytes that take milliseconds to parse, render and tokenize */

/* Value of the escape \\uXXXX at s, -1 when there is none. */
static int escape_at(const char *s, size_t len)
{
    int value = 0;

    if (len < 6 || s[0] != '\\' || s[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        const int c = tolower((unsigned char)s[i]);

        if (!isxdigit(c))
            return -1;
        value = value * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return value;
}

/* A lone surrogate escape becomes \\uFFFD, as browsers do it; the length stays. */
static void mend_surrogates(char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        const int value = escape_at(s + i, len - i);
        const int next = value < 0 ? -1 : escape_at(s + i + 6, len - i - 6);

        if (s[i] != '\\')
            continue;
        if (value < 0) {
            i++; /* another escape: its second byte is no backslash of its own */
        } else if (value < 0xd800 || value > 0xdfff) {
            i += 5;
        } else if (value < 0xdc00 && next >= 0xdc00 && next <= 0xdfff) {
            i += 11;
        } else {
            memcpy(s + i + 2, "fffd", 4);
            i += 5;
        }
    }
}

/* What is at hand, not parsed yet. */
struct body {
    struct esp_call *c;
    void (*then)(struct esp_call *c);
    char *text;
    size_t len;
    json_t *v;
};

static esp_status parse(void *arg, esp_error *err)
{
    struct body *b = arg;

    mend_surrogates(b->text, b->len);
    return esp_json_parse(&b->v, b->text, b->len, "body", 0, err);
}

/* The body becomes the call's; text is freed. */
static bool accept(struct body *b, esp_status s, const esp_error *err)
{
    struct esp_call *c = b->c;

    esp_free(b->text);
    b->text = NULL;
    c->body = b->v;
    if (s != ESP_OK)
        return esp_api_fail(&c->e, s == ESP_ENOMEM || s == ESP_EDEVICE ? "device_lost" : "invalid_json", NULL,
                            "%s", err->message);
    if (!json_is_object(c->body))
        return esp_api_fail(&c->e, "invalid_json", NULL, "body: %s is not a JSON object",
                            esp_show_value(c->body));
    return true;
}

static bool take(struct esp_call *c, struct body *b)
{
    const char *coding = esp_http_find(&c->r->head, "Content-Encoding");

    if (coding && strcasecmp(coding, "identity") != 0)
        return esp_api_fail(&c->e, "unsupported_encoding", NULL,
                            "Content-Encoding %.100s; only identity is read", coding);
    if (c->r->body_len == 0)
        return esp_api_fail(&c->e, "invalid_json", NULL, "the body is empty; a JSON object is needed");
    *b = (struct body){.c = c};
    c->n_body = c->r->body_len;
    b->text = esp_http_take_body(c->r, &b->len);
    return b->text || esp_api_fail(&c->e, "device_lost", NULL, "no memory for the body");
}

bool esp_call_body(struct esp_call *c)
{
    struct body b;
    esp_error err;
    esp_status s;

    if (!take(c, &b))
        return false;
    s = parse(&b, &err);
    return accept(&b, s, &err);
}

bool esp_call_is_big(const struct esp_call *c)
{
    return (c->r ? c->r->body_len : 0) + c->n_body >= BIG;
}

static void parsed(void *arg, esp_status s, const esp_error *err)
{
    struct body *b = arg;
    struct esp_call *c = b->c;

    accept(b, s, err);
    b->then(c);
    esp_free(b);
    esp_call_job_ended(c);
}

void esp_call_body_later(struct esp_call *c, void (*then)(struct esp_call *c))
{
    struct body *b = esp_alloc(sizeof *b);
    esp_error err;

    if (!b) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the body");
        return;
    }
    if (!take(c, b)) {
        esp_free(b);
        return;
    }
    b->then = then;
    c->n_job++;
    if (esp_background_queue(c->s->background, parse, parsed, b, &err) != ESP_OK) {
        c->n_job--;
        accept(b, ESP_ENOMEM, &err);
        esp_free(b);
    }
}
