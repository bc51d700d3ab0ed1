/*
 * See eval_state.h. The samples are emptied before their state is written, and the state is renamed into
 * place, so a run that is killed anywhere leaves no state beside samples of another run. A line without its
 * end was being written: its item runs again.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/eval_state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/strbuf.h"

static const char suffix[] = ".state";

static char *path_with(const char *path, const char *end)
{
    struct esp_strbuf b;
    char *out;

    esp_strbuf_init(&b, 1 << 16);
    esp_strbuf_printf(&b, "%s%s", path, end);
    out = b.failed ? NULL : esp_strndup(b.data, b.len);
    esp_strbuf_free(&b);
    return out;
}

static esp_status write_state(const struct esp_eval_state *s, const json_t *settings, esp_error *err)
{
    char *temporary = path_with(s->state, ".new");
    bool ok = temporary && json_dump_file(settings, temporary, JSON_COMPACT | JSON_SORT_KEYS) == 0 &&
              rename(temporary, s->state) == 0;

    if (!ok && temporary)
        unlink(temporary);
    esp_free(temporary);
    return ok ? ESP_OK : esp_fail(err, ESP_EIO, "%s: cannot be written", s->state);
}

/* The state's settings, if they are these. */
static esp_status check_state(const struct esp_eval_state *s, const json_t *settings, bool resume,
                              esp_error *err)
{
    const char *key;
    json_t *have = NULL, *value;
    esp_status st = ESP_OK;

    if (!resume)
        return esp_fail(err, ESP_ESTATE, "%s exists: an interrupted run; go on with --resume, or remove it",
                        s->state);
    ESP_TRY(esp_json_load(&have, s->state, ESP_LIMIT_CONFIG_BYTES, 0, err));
    json_object_foreach((json_t *)(uintptr_t)settings, key, value)
    {
        char *was, *is;

        if (json_equal(value, json_object_get(have, key)))
            continue;
        was = json_dumps(json_object_get(have, key), JSON_COMPACT | JSON_ENCODE_ANY);
        is = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        st = esp_fail(err, ESP_ESTATE, "%s is of a run with %s %.200s, not %.200s", s->state, key,
                      was ? was : "none", is ? is : "none");
        free(was);
        free(is);
        break;
    }
    json_decref(have);
    return st;
}

/* Read the whole lines of the samples; *len is where they end. */
static esp_status read_kept(struct esp_eval_state *s, off_t *len, esp_error *err)
{
    FILE *f = fopen(s->path, "r");
    esp_status st = ESP_OK;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    *len = 0;
    if (!f)
        return esp_fail(err, ESP_ENOTFOUND, "%s is gone; remove %s to begin anew", s->path, s->state);
    while (st == ESP_OK && (n = getline(&line, &cap, f)) > 0 && line[n - 1] == '\n') {
        json_t *item = json_loadb(line, (size_t)n, 0, NULL);

        if (!json_is_object(item))
            st = esp_fail(err, ESP_EFORMAT, "%s line %zu: no sample; remove %s to begin anew", s->path,
                          json_array_size(s->kept) + 1, s->state);
        if (st == ESP_OK && json_array_append(s->kept, item) != 0)
            st = esp_fail(err, ESP_ENOMEM, "no memory for samples");
        json_decref(item);
        *len += n;
    }
    free(line);
    fclose(f);
    return st;
}

esp_status esp_eval_state_open(struct esp_eval_state *s, const char *path, const json_t *settings,
                               bool resume, esp_error *err)
{
    bool there;
    off_t len;

    s->path = path;
    s->state = path_with(path, suffix);
    s->kept = json_array();
    if (!s->state || !s->kept)
        return esp_fail(err, ESP_ENOMEM, "no memory for samples");
    there = access(s->state, F_OK) == 0;
    if (there) {
        ESP_TRY(check_state(s, settings, resume, err));
        ESP_TRY(read_kept(s, &len, err));
        if (truncate(path, len) != 0)
            return esp_fail(err, ESP_EIO, "%s: cannot be written", path);
    }
    s->samples = fopen(path, there ? "a" : "w");
    if (!s->samples)
        return esp_fail(err, ESP_EIO, "%s: cannot be written", path);
    return there ? ESP_OK : write_state(s, settings, err);
}

esp_status esp_eval_state_add(struct esp_eval_state *s, const json_t *item, esp_error *err)
{
    char *line = item ? json_dumps(item, JSON_COMPACT) : NULL;
    const bool ok = line && fprintf(s->samples, "%s\n", line) > 0 && fflush(s->samples) == 0;

    free(line);
    return ok ? ESP_OK : esp_fail(err, ESP_EIO, "%s: cannot be written", s->path);
}

esp_status esp_eval_state_finish(struct esp_eval_state *s, esp_error *err)
{
    const int closed = fclose(s->samples);

    s->samples = NULL;
    if (closed != 0)
        return esp_fail(err, ESP_EIO, "%s: cannot be written", s->path);
    return unlink(s->state) == 0 ? ESP_OK : esp_fail(err, ESP_EIO, "%s: cannot be removed", s->state);
}

void esp_eval_state_close(struct esp_eval_state *s)
{
    if (s->samples)
        fclose(s->samples);
    esp_free(s->state);
    json_decref(s->kept);
}
