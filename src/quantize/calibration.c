/*
 * See calibration.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/calibration.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"

enum { HELD_OUT = 16, MIN_LIST = 8 };

static esp_status add(struct esp_token_lists *t, const int32_t *ids, uint32_t n, uint32_t cap)
{
    if (t->n >= cap)
        return ESP_ENOMEM;
    memcpy(t->ids + t->start[t->n], ids, n * sizeof *ids);
    t->start[t->n + 1] = t->start[t->n] + n;
    t->n++;
    return ESP_OK;
}

static esp_status room(struct esp_token_lists *t, size_t tokens, size_t lists, esp_error *err)
{
    t->ids = esp_alloc_array(tokens + 1, sizeof *t->ids);
    t->start = esp_alloc_array(lists + 1, sizeof *t->start);
    return t->ids && t->start ? ESP_OK
                              : esp_fail(err, ESP_ENOMEM, "calibration: no memory for %zu tokens", tokens);
}

/* Lists go evenly over the whole text when it is longer than max. */
static esp_status from_text(struct esp_token_lists *measure, struct esp_token_lists *held_out,
                            const esp_model *m, const char *text, size_t len, uint32_t max, esp_error *err)
{
    esp_token *ids = NULL;
    size_t n = 0, n_list, want;
    esp_status s;

    ESP_TRY(esp_tokenize(m, text, len, false, NULL, 0, &n, err));
    ids = esp_alloc_array(n + 1, sizeof *ids);
    if (!ids)
        return esp_fail(err, ESP_ENOMEM, "calibration: no memory for %zu tokens", n);
    s = esp_tokenize(m, text, len, false, ids, n, &n, err);
    n_list = n / ESP_CALIB_LIST;
    want = max / ESP_CALIB_LIST ? max / ESP_CALIB_LIST : 1;
    if (s == ESP_OK && n_list < 2)
        s = esp_fail(err, ESP_EINVAL, "calibration: %zu tokens of text; at least %d are needed", n,
                     2 * ESP_CALIB_LIST);
    want = want < n_list ? want : n_list;
    want = want < 2 ? 2 : want;
    if (s == ESP_OK)
        s = room(measure, want * ESP_CALIB_LIST, want, err);
    if (s == ESP_OK)
        s = room(held_out, want * ESP_CALIB_LIST, want, err);
    for (size_t i = 0; s == ESP_OK && i < want; i++) {
        const size_t from = i * n_list / want * ESP_CALIB_LIST;

        s = add(i % HELD_OUT == 1 ? held_out : measure, ids + from, ESP_CALIB_LIST, (uint32_t)want);
    }
    esp_free(ids);
    return s;
}

static esp_status chat_ids(const esp_model *m, const char *line, size_t len, const char *where, int32_t *ids,
                           size_t *n, esp_error *err)
{
    esp_chat_opts o = {.no_generation_prompt = true};
    json_t *top;
    char *messages = NULL, *tools = NULL;
    esp_status s;

    ESP_TRY(esp_json_parse(&top, line, len, where, 0, err));
    messages = json_dumps(json_object_get(top, "messages"), JSON_COMPACT | JSON_ENCODE_ANY);
    if (json_object_get(top, "tools"))
        tools = json_dumps(json_object_get(top, "tools"), JSON_COMPACT | JSON_ENCODE_ANY);
    o.tools_json = tools;
    if (!messages)
        s = esp_fail(err, ESP_EFORMAT, "%s: an object with \"messages\" is expected", where);
    else
        s = esp_tokenize_chat(m, messages, &o, ids, ESP_CALIB_LIST, n, err);
    json_decref(top);
    (free)(messages); /* jansson's own memory */
    (free)(tools);
    if (s != ESP_OK)
        return esp_fail_in(err, s, "%s", where);
    *n = *n < ESP_CALIB_LIST ? *n : ESP_CALIB_LIST;
    return ESP_OK;
}

static esp_status from_chats(struct esp_token_lists *measure, struct esp_token_lists *held_out,
                             const esp_model *m, const char *path, const char *text, size_t len, uint32_t max,
                             esp_error *err)
{
    int32_t ids[ESP_CALIB_LIST];
    uint32_t line = 0, total = 0, n_list = 0;
    const uint32_t cap = max / MIN_LIST + 2;
    char where[512];

    ESP_TRY(room(measure, max + ESP_CALIB_LIST, cap, err));
    ESP_TRY(room(held_out, max + ESP_CALIB_LIST, cap, err));
    for (const char *p = text, *end = text + len; p < end && total < max;) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        const size_t n_byte = (size_t)((eol ? eol : end) - p);
        size_t n = 0;

        line++;
        snprintf(where, sizeof where, "%.400s line %u", path, line);
        if (n_byte > 1)
            ESP_TRY(chat_ids(m, p, n_byte, where, ids, &n, err));
        if (n >= MIN_LIST &&
            add(n_list++ % HELD_OUT == 1 ? held_out : measure, ids, (uint32_t)n, cap) == ESP_OK)
            total += (uint32_t)n;
        p = eol ? eol + 1 : end;
    }
    return held_out->n
               ? ESP_OK
               : esp_fail(err, ESP_EINVAL, "%s: %u chats of at least %d tokens; at least 2 are needed", path,
                          n_list, MIN_LIST);
}

esp_status esp_calibration_read(struct esp_token_lists *measure, struct esp_token_lists *held_out,
                                const esp_model *m, const char *path, uint32_t max, esp_error *err)
{
    const size_t n = path ? strlen(path) : 0;
    char *text = NULL;
    size_t len = 0;
    esp_status s;

    memset(measure, 0, sizeof *measure);
    memset(held_out, 0, sizeof *held_out);
    if (!path)
        s = from_text(measure, held_out, m, (const char *)esp_calibration_text, esp_calibration_text_len, max,
                      err);
    else
        s = esp_read_file(&text, &len, path, ESP_LIMIT_TEXT_BYTES, err);
    if (path && s == ESP_OK)
        s = n > 6 && strcmp(path + n - 6, ".jsonl") == 0
                ? from_chats(measure, held_out, m, path, text, len, max, err)
                : from_text(measure, held_out, m, text, len, max, err);
    esp_free(text);
    if (s != ESP_OK) {
        esp_token_lists_free(measure);
        esp_token_lists_free(held_out);
    }
    return s;
}
