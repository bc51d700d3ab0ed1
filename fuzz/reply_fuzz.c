/*
 * Replies as bench --serve reads them from any server: in one piece and byte by byte the same, never beyond
 * what was sent, and every data line inside the body.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/hash.h"
#include "program/load_reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct heard {
    uint64_t hash;
    size_t n, bytes;
};

static void check(bool holds)
{
    if (!holds)
        __builtin_trap();
}

static void on_data(void *user, const char *s, size_t len)
{
    struct heard *h = user;

    check(s[len] == '\0' && !memchr(s, '\n', len));
    h->hash = esp_hash(s, len, h->hash + 1);
    h->n++;
    h->bytes += len;
}

static size_t hear(struct esp_reply *r, struct heard *h, const char *s, size_t len, size_t step)
{
    size_t at = 0;

    *h = (struct heard){0};
    esp_reply_init(r, on_data, h);
    while (at < len) {
        const size_t n = step < len - at ? step : len - at, used = esp_reply_feed(r, s + at, n);

        check(used <= n);
        at += used;
        if (r->state == ESP_REPLY_DONE || r->state == ESP_REPLY_BAD)
            break;
        check(used == n);
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *s = (const char *)data;
    struct esp_reply a, b;
    struct heard whole, bytes;
    const size_t used = hear(&a, &whole, s, size, size ? size : 1);

    check(hear(&b, &bytes, s, size, 1) == used || a.state == ESP_REPLY_BAD);
    check(a.state == b.state && a.status == b.status && whole.n == bytes.n && whole.hash == bytes.hash);
    check(whole.bytes + a.body.len <= size && a.body.len == b.body.len);
    check(esp_reply_end(&a) == esp_reply_end(&b));
    esp_reply_free(&a);
    esp_reply_free(&b);
    return 0;
}
