/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/fields.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN = 200, N_BUFFERS = 4 };

void esp_fields_init(struct esp_fields *f, const json_t *object, const char *at, struct esp_api_error *e)
{
    memset(f, 0, sizeof *f);
    f->object = object;
    f->at = at;
    f->e = e;
}

const char *esp_field_path(const struct esp_fields *f, const char *name)
{
    static _Thread_local char buffers[N_BUFFERS][256];
    static _Thread_local unsigned next;
    char *b = buffers[next++ % N_BUFFERS];

    snprintf(b, sizeof buffers[0], "%s%s", f->at, name);
    return b;
}

struct cut {
    char *out;
    size_t len;
};

static int add_cut(const char *s, size_t n, void *user)
{
    struct cut *c = user;
    const size_t room = SHOWN - c->len, some = n < room ? n : room;

    memcpy(c->out + c->len, s, some);
    c->len += some;
    return some == n ? 0 : -1; /* enough was seen */
}

const char *esp_show_value(const json_t *v)
{
    static _Thread_local char buffers[N_BUFFERS][SHOWN + 4];
    static _Thread_local unsigned next;
    struct cut c = {buffers[next++ % N_BUFFERS], 0};
    const int whole =
        json_dump_callback(v, add_cut, &c, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));

    snprintf(c.out + c.len, 4, "%s", whole == 0 ? "" : "...");
    return c.out;
}

const json_t *esp_field_any(struct esp_fields *f, const char *name)
{
    const json_t *v = json_object_get(f->object, name);

    if (f->n_seen < ESP_FIELDS_MAX_SEEN)
        f->seen[f->n_seen++] = name;
    return f->e->http || json_is_null(v) ? NULL : v;
}

bool esp_field_wrong(struct esp_fields *f, const char *name, const json_t *got, const char *wanted)
{
    return esp_api_fail(f->e, "invalid_type", esp_field_path(f, name), "%s: %s is not %s",
                        esp_field_path(f, name), esp_show_value(got), wanted);
}

bool esp_field_int(struct esp_fields *f, const char *name, int64_t least, int64_t most, int64_t *out)
{
    const json_t *v = esp_field_any(f, name);
    int64_t n;

    if (!v)
        return false;
    if (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v) &&
        fabs(json_real_value(v)) < 9.0e15)
        n = (int64_t)json_real_value(v);
    else if (json_is_integer(v))
        n = json_integer_value(v);
    else
        return esp_field_wrong(f, name, v, "an integer");
    if (n < least || n > most)
        return esp_api_fail(f->e, "invalid_value", esp_field_path(f, name),
                            "%s: %lld is out of range; %lld to %lld is accepted", esp_field_path(f, name),
                            (long long)n, (long long)least, (long long)most);
    *out = n;
    return true;
}

bool esp_field_real(struct esp_fields *f, const char *name, enum esp_bound bound, double least, double most,
                    double *out)
{
    const json_t *v = esp_field_any(f, name);
    double x;

    if (!v)
        return false;
    if (!json_is_number(v))
        return esp_field_wrong(f, name, v, "a number");
    x = json_number_value(v);
    if (!(x <= most) || !(bound == ESP_ABOVE ? x > least : x >= least))
        return esp_api_fail(f->e, "invalid_value", esp_field_path(f, name),
                            "%s: %s is out of range; %s%g to %g is accepted", esp_field_path(f, name),
                            esp_show_value(v), bound == ESP_ABOVE ? "above " : "", least, most);
    *out = x;
    return true;
}

bool esp_field_bool(struct esp_fields *f, const char *name, bool *out)
{
    const json_t *v = esp_field_any(f, name);

    if (!v)
        return false;
    if (!json_is_boolean(v))
        return esp_field_wrong(f, name, v, "true or false");
    *out = json_is_true(v);
    return true;
}

bool esp_field_string(struct esp_fields *f, const char *name, const char **out)
{
    const json_t *v = esp_field_any(f, name);

    if (!v)
        return false;
    if (!json_is_string(v))
        return esp_field_wrong(f, name, v, "a string");
    *out = json_string_value(v);
    return true;
}

bool esp_field_object(struct esp_fields *f, const char *name, const json_t **out)
{
    const json_t *v = esp_field_any(f, name);

    if (!v)
        return false;
    if (!json_is_object(v))
        return esp_field_wrong(f, name, v, "an object");
    *out = v;
    return true;
}

bool esp_field_array(struct esp_fields *f, const char *name, const json_t **out)
{
    const json_t *v = esp_field_any(f, name);

    if (!v)
        return false;
    if (!json_is_array(v))
        return esp_field_wrong(f, name, v, "an array");
    *out = v;
    return true;
}

bool esp_field_word(struct esp_fields *f, const char *name, const char *words, int *out)
{
    const char *s = NULL, *at = words;

    if (!esp_field_string(f, name, &s))
        return false;
    for (int i = 0; *at; i++) {
        const size_t n = strcspn(at, "|");

        if (strlen(s) == n && memcmp(s, at, n) == 0) {
            *out = i;
            return true;
        }
        at += n + (at[n] == '|');
    }
    return esp_api_fail(f->e, "invalid_value", esp_field_path(f, name), "%s: '%.200s' is not one of %s",
                        esp_field_path(f, name), s, words);
}

json_t *esp_fields_ignored(const struct esp_fields *f)
{
    json_t *out = json_array();
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)f->object, key, v)
    {
        bool seen = false;

        for (size_t i = 0; i < f->n_seen && !seen; i++)
            seen = strcmp(f->seen[i], key) == 0;
        if (!seen)
            json_array_append_new(out, json_string(key));
    }
    return out;
}
