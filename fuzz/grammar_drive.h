/*
 * What the fuzz targets of grammars do with one that compiled: a walk on which every mask must agree with
 * what accept() says, every rollback must be exact, and a text that is not complete can always go on.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_FUZZ_GRAMMAR_DRIVE_H
#define ESP_FUZZ_GRAMMAR_DRIVE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar/grammar.h"

static inline void check(bool holds)
{
    if (!holds)
        __builtin_trap();
}

/* Single bytes 1..255, and words that cross the borders of anything. */
static inline void drive_token(const void *ctx, uint32_t id, struct esp_vocab_token *out)
{
    static const char *const words[] = {"\", \"",         "{\"",      "\"}", "true", "aa",  "ab",
                                        "\xc3\xa9z",      "\xf0\x9f", "  ",  "]}",   "a\"", ":1",
                                        "</parameter>\n", "<",        "0.",  "\\u00"};
    static char all[256];

    (void)ctx;
    if (id < 256) {
        all[id] = (char)id;
        *out = (struct esp_vocab_token){.bytes = &all[id], .len = id > 0, .plain = true};
    } else {
        *out =
            (struct esp_vocab_token){.bytes = words[id - 256], .len = strlen(words[id - 256]), .plain = true};
    }
}

enum { DRIVE_IDS = 256 + 16 };

static inline struct esp_vocab *drive_vocab(void)
{
    static struct esp_vocab *v; /* once a process */
    const struct esp_vocab_source src = {.n_ids = DRIVE_IDS, .get = drive_token};

    if (!v)
        check(esp_vocab_create(&v, &src, NULL) == ESP_OK);
    return v;
}

/* One step: the mask against accept() for every id, then one of them; false at the end of the text. */
static inline bool drive_step(struct esp_matcher *m, uint8_t choice, uint32_t *took)
{
    uint64_t bits[(DRIVE_IDS + 63) / 64];
    uint32_t ids[DRIVE_IDS], n = 0;
    esp_error err;
    esp_status s;

    memset(bits, 0xff, sizeof bits);
    s = esp_matcher_mask(m, bits, sizeof bits / 8, &err);
    if (s != ESP_OK) {
        check(s == ESP_ENOFIT);
        return false;
    }
    for (uint32_t id = 0; id < DRIVE_IDS; id++) {
        const bool allowed = bits[id / 64] >> id % 64 & 1;

        s = esp_matcher_accept(m, id, NULL);
        if (s == ESP_ENOFIT)
            return false;
        check(allowed == (s == ESP_OK));
        if (s == ESP_OK) {
            esp_matcher_rollback(m, 1);
            ids[n++] = id;
        }
    }
    check(n > 0 || esp_matcher_state(m) != ESP_MATCH_MORE);
    if (n == 0)
        return false;
    *took = ids[choice % n];
    check(esp_matcher_accept(m, *took, NULL) == ESP_OK);
    return true;
}

static inline void drive(struct esp_grammar *g, const uint8_t *data, size_t size)
{
    struct esp_matcher *m = NULL;
    char text[64 * 16];
    size_t len = 0;
    esp_error err;

    if (esp_matcher_open(&m, g, NULL, &err) != ESP_OK) {
        check(err.status == ESP_ENOFIT);
        return;
    }
    for (int i = 0; i < 24; i++) {
        struct esp_vocab_token t;
        uint32_t id, forced[8];

        (void)esp_matcher_forced(m, forced, 8);
        if (!drive_step(m, size ? data[(size_t)i * 7 % size] : 0, &id))
            break;
        drive_token(NULL, id, &t);
        memcpy(text + len, t.bytes, t.len);
        len += t.len;
    }
    check(esp_utf8_valid(text, len - esp_utf8_incomplete_tail(text, len), NULL));
    if (esp_matcher_state(m) != ESP_MATCH_MORE)
        check(esp_utf8_valid(text, len, NULL));
    esp_matcher_close(m);
}

#endif
