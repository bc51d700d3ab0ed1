/*
 * Small things that every handler needs: ids, clocks, JSON out.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/rng.h"

#include "serve/adapters.h"
#include "serve/server.h"

double esp_serve_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ids must not be guessable: a response is read back by its id alone. */
void esp_random_id(char *out, size_t cap, const char *prefix)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    char text[25];
    uint64_t bits[3] = {0};

    for (size_t i = 0; i < 3; i++)
        if (esp_rng_seed(&bits[i], NULL) != ESP_OK)
            bits[i] = esp_hash_u64((uint64_t)(esp_serve_now() * 1e9) + i);
    for (size_t i = 0; i < 24; i++) {
        text[i] = digits[bits[i / 8] % 62];
        bits[i / 8] /= 62;
    }
    text[24] = '\0';
    snprintf(out, cap, "%s%s", prefix, text);
}

static int add_piece(const char *s, size_t n, void *user)
{
    return esp_strbuf_add(user, s, n) ? 0 : -1;
}

bool esp_json_add(struct esp_strbuf *b, const json_t *v)
{
    return json_dump_callback(v, add_piece, b, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) == 0;
}

bool esp_json_add_exact(struct esp_strbuf *b, const json_t *v)
{
    return json_dump_callback(v, add_piece, b, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) == 0;
}

double esp_as_written(float x)
{
    char text[32];

    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x)
            return strtod(text, NULL);
    }
    return (double)x;
}

json_t *esp_text_json(const char *s, size_t len)
{
    return json_stringn_nocheck(s, len);
}

json_t *esp_real_json(double x, double otherwise)
{
    return json_real(isfinite(x) ? x : otherwise);
}

json_t *esp_model_name(const struct esp_server *s, const char *adapter)
{
    char name[512];

    if (!adapter || !*adapter)
        return json_string(s->o.model_id);
    snprintf(name, sizeof name, "%s:%s", s->o.model_id, adapter);
    return json_string(name);
}

static bool is_served(const struct esp_server *s, const char *name)
{
    if (strcmp(name, s->o.model_id) == 0 || esp_mounts_known(s, name))
        return true;
    for (size_t i = 0; i < s->o.n_alias; i++)
        if (strcmp(name, s->o.aliases[i]) == 0)
            return true;
    return false;
}

bool esp_model_check(struct esp_call *c, const json_t *name)
{
    const char *s = json_string_value(name);

    if (name && !json_is_null(name) && !s)
        return esp_api_fail(&c->e, "invalid_type", "model", "model: %s is not a string",
                            esp_show_value(name));
    if (s && c->s->o.strict_model && !is_served(c->s, s))
        return esp_api_fail(&c->e, "model_not_found", "model",
                            "model: '%.200s' is not served here; '%.200s' is", s, c->s->o.model_id);
    return true;
}

json_t *esp_fingerprint(const struct esp_server *s)
{
    return json_string(s->o.fingerprint ? s->o.fingerprint : "fp_unknown");
}

bool esp_is_loopback(const char *peer)
{
    return strcmp(peer, "unix") == 0 || strncmp(peer, "127.", 4) == 0 || strcmp(peer, "::1") == 0 ||
           strncmp(peer, "::ffff:127.", 11) == 0;
}

/* "key=value" pairs; strings with spaces or quotes as JSON. */
static void text_line(struct esp_strbuf *b, const json_t *line)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)line, key, v)
    {
        const char *s = json_string_value(v);

        if (json_is_null(v))
            continue;
        esp_strbuf_printf(b, "%s%s=", b->len ? " " : "", key);
        if (s && *s && !strpbrk(s, " \"=\\"))
            esp_strbuf_puts(b, s);
        else
            esp_json_add(b, v);
    }
}

void esp_hide_path(esp_error *err, const char *path)
{
    char *at = path ? strstr(err->message, path) : NULL;
    const char *rest;

    if (!at)
        return;
    rest = at + strlen(path);
    rest += strncmp(rest, ": ", 2) == 0 ? 2 : *rest == '/';
    memmove(at, rest, strlen(rest) + 1);
}

void esp_server_log(struct esp_server *s, json_t *line)
{
    struct esp_strbuf b;
    char stamp[40];
    struct timespec now;
    struct tm tm;

    if (s->o.log && line) {
        esp_strbuf_init(&b, 8192);
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &tm);
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
        snprintf(stamp + strlen(stamp), 8, ".%03dZ", (int)(now.tv_nsec / 1000000));
        if (s->o.log_json) {
            json_object_set_new(line, "time", json_string(stamp));
            esp_json_add(&b, line);
        } else {
            esp_strbuf_puts(&b, stamp);
            text_line(&b, line);
        }
        s->o.log(s->o.user, esp_strbuf_str(&b));
        esp_strbuf_free(&b);
    }
    json_decref(line);
}
