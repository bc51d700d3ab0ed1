/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/load_texts.h"

#include <string.h>

#include "base/mem.h"

struct learning {
    struct esp_load_texts *t;
    const struct esp_load_opts *o;
};

static void body(void *user, uint64_t i, struct esp_strbuf *out)
{
    const struct learning *l = user;

    l->o->body(l->o->user, i, out);
}

static bool keep(void *user, uint64_t i, const char *text, size_t len)
{
    const struct learning *l = user;

    if (i < l->t->n && !l->t->text[i])
        l->t->text[i] = esp_strndup(text, len);
    return true;
}

esp_status esp_load_texts_learn(struct esp_load_texts *out, const struct esp_load_opts *o, size_t n,
                                esp_error *err)
{
    struct learning l = {out, o};
    struct esp_load_opts alone = *o;
    struct esp_load_report r;
    esp_status s;

    out->text = esp_alloc_array(n, sizeof *out->text);
    out->n = out->text ? n : 0;
    if (!out->text)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu answers", n);
    alone.concurrency = 1;
    alone.requests = n;
    alone.rate = alone.seconds = alone.leave = alone.stall = 0;
    alone.body = body;
    alone.whole = keep;
    alone.user = &l;
    s = esp_load_run(&r, &alone, err);
    if (s == ESP_OK && r.whole != n)
        s = esp_fail(err, ESP_EIO, "%s: alone, %zu of %zu requests were answered: %s", o->target->shown,
                     (size_t)r.whole, n, r.first_error);
    for (size_t i = 0; s == ESP_OK && i < n; i++)
        if (!out->text[i])
            s = esp_fail(err, ESP_ENOMEM, "no memory for %zu answers", n);
    esp_load_report_free(&r);
    if (s != ESP_OK)
        esp_load_texts_free(out);
    return s;
}

void esp_load_texts_free(struct esp_load_texts *t)
{
    for (size_t i = 0; i < t->n; i++)
        esp_free(t->text[i]);
    esp_free(t->text);
    memset(t, 0, sizeof *t);
}

bool esp_load_texts_same(const struct esp_load_texts *t, uint64_t i, const char *text, size_t len)
{
    const char *want = t->text[i % t->n];

    return strlen(want) == len && memcmp(want, text, len) == 0;
}
