/*
 * A request's body as a JSON object.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/server.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/mem.h"

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

bool esp_call_body(struct esp_call *c)
{
    const char *coding = esp_http_find(&c->r->head, "Content-Encoding");
    esp_error err;
    char *text;
    esp_status s;

    if (coding && strcasecmp(coding, "identity") != 0)
        return esp_api_fail(&c->e, "unsupported_encoding", NULL,
                            "Content-Encoding %.100s; only identity is read", coding);
    if (c->r->body_len == 0)
        return esp_api_fail(&c->e, "invalid_json", NULL, "the body is empty; a JSON object is needed");
    text = esp_strndup(c->r->body, c->r->body_len);
    if (!text)
        return esp_api_fail(&c->e, "device_lost", NULL, "no memory for the body");
    mend_surrogates(text, c->r->body_len);
    s = esp_json_parse(&c->body, text, c->r->body_len, "body", 0, &err);
    esp_free(text);
    if (s != ESP_OK)
        return esp_api_fail(&c->e, s == ESP_ENOMEM ? "device_lost" : "invalid_json", NULL, "%s", err.message);
    if (!json_is_object(c->body))
        return esp_api_fail(&c->e, "invalid_json", NULL, "body: %s is not a JSON object",
                            esp_show_value(c->body));
    return true;
}
