/*
 * Texts to values: numbers, sizes, times, lists and enumerations, each refused with the name of the flag or
 * variable it came from and with what would be accepted.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/options.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv.h"

bool esp_parse_int(const char *s, int64_t *out)
{
    char *end;
    long long v;

    if (!isdigit((unsigned char)s[0]) && !((s[0] == '-' || s[0] == '+') && isdigit((unsigned char)s[1])))
        return false;
    v = strtoll(s, &end, 10);
    if (*end || v == INT64_MAX || v == INT64_MIN) /* the extremes stand for overflow; no flag reaches them */
        return false;
    *out = v;
    return true;
}

bool esp_parse_float(const char *s, double *out)
{
    char *end;
    double v;

    if (!isdigit((unsigned char)s[0]) && !strchr("+-.", s[0]))
        return false; /* keeps out nan, inf, leading space and nothing at all */
    v = strtod(s, &end);
    if (end == s || *end || !(v > -1e300 && v < 1e300) || strpbrk(s, "xXnN"))
        return false;
    *out = v;
    return true;
}

/* Split "1.5GiB" into a number and a unit. */
static bool number_and_unit(const char *s, double *v, const char **unit)
{
    char number[32];
    const size_t n = strspn(s, "0123456789.");

    if (n == 0 || n >= sizeof number)
        return false;
    memcpy(number, s, n);
    number[n] = 0;
    *unit = s + n;
    return esp_parse_float(number, v);
}

bool esp_parse_size(const char *s, uint64_t *out)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"k", 1e3},
                 {"K", 1e3},
                 {"kB", 1e3},
                 {"KB", 1e3},
                 {"KiB", 1024.0},
                 {"M", 1e6},
                 {"MB", 1e6},
                 {"MiB", 1048576.0},
                 {"G", 1e9},
                 {"GB", 1e9},
                 {"GiB", 1073741824.0},
                 {"T", 1e12},
                 {"TB", 1e12},
                 {"TiB", 1099511627776.0}};
    const char *unit;
    double v;

    if (!number_and_unit(s, &v, &unit))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].unit) == 0 && v * units[i].bytes < 1.8e19) {
            *out = (uint64_t)(v * units[i].bytes);
            return true;
        }
    }
    return false;
}

bool esp_parse_duration(const char *s, double *seconds)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"", 1}, {"ms", 0.001}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    const char *unit;
    double v;

    if (!number_and_unit(s, &v, &unit))
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].unit) == 0) {
            *seconds = v * units[i].seconds;
            return true;
        }
    }
    return false;
}

/* How a row and the source of its value are called in messages: "--top-p" or "ESPALIER_TOP_P". */
static const char *called(const struct esp_opt *o, bool env, char *buf, size_t cap)
{
    if (!env || !esp_opt_env_name(o, buf, cap))
        snprintf(buf, cap, "--%s", o->name);
    return buf;
}

static esp_status refuse_value(const struct esp_opt *o, bool env, const char *text, const char *wanted,
                               esp_error *err)
{
    char name[64];

    called(o, env, name, sizeof name);
    return esp_fail(err, ESP_EINVAL, "%s: '%.200s' is not %s", name, text, wanted);
}

static esp_status check_range(const struct esp_opt *o, bool env, const char *text, double v, esp_error *err)
{
    char name[64];

    if (v >= o->least && v <= o->most)
        return ESP_OK;
    called(o, env, name, sizeof name);
    return esp_fail(err, ESP_EINVAL, "%s: %.200s is out of range; %.16g to %.16g is accepted", name, text,
                    o->least, o->most);
}

/* Schemes beyond those listed, and files. */
static bool more_kv(const char *text)
{
    struct esp_kv_scheme s;

    return esp_kv_is_file(text) || esp_kv_parse(&s, text, NULL) == ESP_OK;
}

static esp_status set_enum(struct esp_opt_value *out, const struct esp_opt *o, bool env, const char *text,
                           esp_error *err)
{
    const char *words[16];
    char copy[160], name[64];
    size_t n = 0;
    int i;

    snprintf(copy, sizeof copy, "%s", o->arg);
    for (char *p = copy; p && n < 16;) {
        char *bar = strchr(p, '|');

        if (bar)
            *bar++ = 0;
        words[n++] = p;
        p = bar;
    }
    for (size_t k = 0; k < n; k++) {
        if (strcmp(words[k], text) == 0) {
            out->i = (int64_t)k;
            out->s = text;
            return ESP_OK;
        }
    }
    if (o->id == OPT_KV && more_kv(text)) {
        out->i = -1;
        out->s = text;
        return ESP_OK;
    }
    called(o, env, name, sizeof name);
    i = esp_nearest(text, words, n);
    if (i >= 0)
        return esp_fail(err, ESP_EINVAL, "%s: unknown value '%.200s'; did you mean '%s'? Accepted: %s", name,
                        text, words[i], o->arg);
    return esp_fail(err, ESP_EINVAL, "%s: unknown value '%.200s'; accepted: %s", name, text, o->arg);
}

static esp_status set_bool(struct esp_opt_value *out, const struct esp_opt *o, bool env, const char *text,
                           esp_error *err)
{
    static const char *const words[] = {"off", "on", "0", "1", "false", "true", "no", "yes"};

    for (size_t i = 0; i < 8; i++) {
        if (strcmp(words[i], text) == 0) {
            out->on = i & 1;
            return ESP_OK;
        }
    }
    return refuse_value(o, env, text, "on or off", err);
}

static esp_status set_ints(struct esp_opt_value *out, const struct esp_opt *o, bool env, const char *text,
                           esp_error *err)
{
    const char *p = text;

    out->n = 0;
    for (;;) {
        const size_t len = strcspn(p, ",");
        char number[24];

        if (len >= sizeof number || out->n == MAX_OPT_LIST)
            return refuse_value(o, env, text, "a list of at most 64 numbers", err);
        memcpy(number, p, len);
        number[len] = 0;
        if (!esp_parse_int(number, &out->ints[out->n]))
            return refuse_value(o, env, text, "a list of whole numbers such as 1,8", err);
        ESP_TRY(check_range(o, env, number, (double)out->ints[out->n], err));
        out->n++;
        if (!p[len])
            return ESP_OK;
        p += len + 1;
    }
}

/* Whether s[0..len) names the memory of a device: the machine's own, or a card's. */
static bool names_memory(const char *s, size_t len)
{
    static const char *const words[] = {"host", "cpu", "cuda"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i]) == len && strncmp(words[i], s, len) == 0)
            return true;
    return len > 5 && strncmp(s, "cuda:", 5) == 0 && strspn(s + 5, "0123456789") == len - 5;
}

/* One entry of SIZES, s[0..len). */
static esp_status add_size(struct esp_opt_value *out, const struct esp_opt *o, bool env, const char *s,
                           size_t len, esp_error *err)
{
    const char *equals = memchr(s, '=', len), *number = equals ? equals + 1 : s;
    char text[32];
    uint64_t size;

    snprintf(text, sizeof text, "%.*s", (int)(s + len - number), number);
    if (equals && !names_memory(s, (size_t)(equals - s)))
        return refuse_value(o, env, s, "of the form DEVICE=SIZE with host, cpu, cuda or cuda:N", err);
    if (s + len - number >= (ptrdiff_t)sizeof text || !esp_parse_size(text, &size))
        return refuse_value(o, env, s, "a size such as 512M, 8G or 1.5GiB", err);
    ESP_TRY(check_range(o, env, text, (double)size, err));
    if (!equals) {
        out->size = size;
        return ESP_OK;
    }
    if (out->n == MAX_OPT_LIST)
        return refuse_value(o, env, s, "a list of at most 64 sizes", err);
    out->list[out->n] = s;
    out->ints[out->n++] = (int64_t)size;
    return ESP_OK;
}

static esp_status set_sizes(struct esp_opt_value *out, const struct esp_opt *o, bool env, const char *text,
                            esp_error *err)
{
    out->n = 0;
    out->size = 0;
    out->s = text;
    for (const char *at = text;;) {
        const size_t len = strcspn(at, ",");

        ESP_TRY(add_size(out, o, env, at, len, err));
        if (!at[len])
            return ESP_OK;
        at += len + 1;
    }
}

static esp_status set_float(struct esp_opt_value *out, const struct esp_opt *o, bool env, const char *text,
                            esp_error *err)
{
    char number[64];
    size_t len = strlen(text);

    if (strcmp(o->arg, "PERCENT") == 0 && len && text[len - 1] == '%')
        len--;
    snprintf(number, sizeof number, "%.*s", (int)(len < 63 ? len : 63), text);
    if (!esp_parse_float(number, &out->f))
        return refuse_value(o, env, text, "a number", err);
    return check_range(o, env, text, out->f, err);
}

static esp_status add_string(struct esp_opt_value *out, const struct esp_opt *o, bool env, const char *text,
                             esp_error *err)
{
    const size_t most = o->id == OPT_STOP ? 16 : MAX_OPT_LIST;
    const double len = (double)strlen(text);
    char name[64];

    if (len < o->least || len > o->most || out->n == most)
        return esp_fail(err, ESP_EINVAL,
                        "%s: %zu values of %.0f to %.0f bytes are accepted; number %zu has %.0f",
                        called(o, env, name, sizeof name), most, o->least, o->most, out->n + 1, len);
    out->list[out->n++] = text;
    return ESP_OK;
}

esp_status esp_opt_set(struct esp_opt_value *out, const struct esp_opt *o, bool env, const char *text,
                       esp_error *err)
{
    switch (o->type) {
    case OPT_TYPE_BOOL:
        return set_bool(out, o, env, text, err);
    case OPT_TYPE_COUNT:
        if (esp_parse_int(text, &out->i))
            return check_range(o, env, text, (double)out->i, err);
        ESP_TRY(set_bool(out, o, env, text, err));
        out->i = out->on;
        return ESP_OK;
    case OPT_TYPE_INT:
        if (!esp_parse_int(text, &out->i))
            return refuse_value(o, env, text, "a whole number", err);
        return check_range(o, env, text, (double)out->i, err);
    case OPT_TYPE_FLOAT:
        return set_float(out, o, env, text, err);
    case OPT_TYPE_SIZE:
        if (!esp_parse_size(text, &out->size))
            return refuse_value(o, env, text, "a size such as 512M, 8G or 1.5GiB", err);
        return check_range(o, env, text, (double)out->size, err);
    case OPT_TYPE_SIZES:
        return set_sizes(out, o, env, text, err);
    case OPT_TYPE_DURATION:
        if (!esp_parse_duration(text, &out->f))
            return refuse_value(o, env, text, "a time such as 30s, 5m or 1h", err);
        return check_range(o, env, text, out->f, err);
    case OPT_TYPE_ENUM:
        return set_enum(out, o, env, text, err);
    case OPT_TYPE_INTS:
        return set_ints(out, o, env, text, err);
    case OPT_TYPE_STRINGS:
        return add_string(out, o, env, text, err);
    case OPT_TYPE_FILE:
        if (!text[0])
            return refuse_value(o, env, text, "a file name", err);
        break;
    case OPT_TYPE_STRING:
    case OPT_TYPE_MAYBE:
        break;
    }
    out->s = text;
    return ESP_OK;
}
