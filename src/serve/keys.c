/*
 * A list of at most ESP_SERVE_MAX_KEYS keys; every check walks all of it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/keys.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"

#include "serve/serve.h"

enum { MAX_NAME = 64, MAX_FILE = 1 << 20 };

struct key {
    char text[ESP_KEY_MAX]; /* zeros behind it */
    char name[MAX_NAME];
    bool admin;
};

struct esp_keys {
    struct key *v;
    size_t n;
};

static esp_status add(struct esp_keys *k, const char *key, const char *name, bool admin, esp_error *err)
{
    struct key *row = &k->v[k->n];

    if (k->n == ESP_SERVE_MAX_KEYS)
        return esp_fail(err, ESP_ENOFIT, "more than %d API keys", ESP_SERVE_MAX_KEYS);
    if (!*key || strlen(key) >= ESP_KEY_MAX)
        return esp_fail(err, ESP_EINVAL, "an API key has 1 to %d characters", ESP_KEY_MAX - 1);
    snprintf(row->text, sizeof row->text, "%s", key);
    snprintf(row->name, sizeof row->name, "%s", name);
    row->admin = admin;
    k->n++;
    return ESP_OK;
}

/* Cut the next word off *at; NULL at the line's end. */
static char *word(char **at)
{
    char *s = *at + strspn(*at, " \t\r"), *end = s + strcspn(s, " \t\r");

    if (!*s || *s == '#')
        return NULL;
    *at = *end ? end + 1 : end;
    *end = '\0';
    return s;
}

static esp_status add_line(struct esp_keys *k, char *line, const char *file, size_t number, esp_error *err)
{
    char *key = word(&line), *name = key ? word(&line) : NULL, *role = name ? word(&line) : NULL;
    const char *shown = name ? name : "key";
    bool admin = false;

    if (!key)
        return ESP_OK;
    if (name && !role && (strcmp(name, "admin") == 0 || strcmp(name, "api") == 0)) {
        role = name;
        shown = "key";
    }
    if (role && strcmp(role, "admin") != 0 && strcmp(role, "api") != 0)
        return esp_fail(err, ESP_EFORMAT, "%s:%zu: role '%s'; api and admin exist", file, number, role);
    if (role)
        admin = strcmp(role, "admin") == 0;
    if (role && word(&line))
        return esp_fail(err, ESP_EFORMAT, "%s:%zu: a line is: key [name] [role]", file, number);
    return add(k, key, shown, admin, err);
}

static esp_status read_file(struct esp_keys *k, const char *file, esp_error *err)
{
    char *text, *at;
    size_t len, number = 1;
    esp_status s = ESP_OK;

    ESP_TRY(esp_read_file(&text, &len, file, MAX_FILE, err));
    for (at = text; s == ESP_OK && *at; number++) {
        char *end = at + strcspn(at, "\n");
        const bool last = *end == '\0';

        *end = '\0';
        s = add_line(k, at, file, number, err);
        at = last ? end : end + 1;
    }
    memset(text, 0, len);
    esp_free(text);
    return s;
}

esp_status esp_keys_open(struct esp_keys **out, const char *single, const char *file, esp_error *err)
{
    struct esp_keys *k = esp_alloc(sizeof *k);
    esp_status s = ESP_OK;

    if (k)
        k->v = esp_alloc_array(ESP_SERVE_MAX_KEYS, sizeof *k->v);
    if (!k || !k->v) {
        esp_keys_close(k);
        return esp_fail(err, ESP_ENOMEM, "no memory for API keys");
    }
    if (single)
        s = add(k, single, "key", true, err);
    if (s == ESP_OK && file)
        s = read_file(k, file, err);
    if (s != ESP_OK && file)
        esp_fail_in(err, s, "--api-key-file");
    if (s == ESP_OK && file && k->n == 0)
        s = esp_fail(err, ESP_EFORMAT, "%s: no keys in it", file);
    if (s != ESP_OK) {
        esp_keys_close(k);
        return s;
    }
    *out = k;
    return ESP_OK;
}

void esp_keys_close(struct esp_keys *k)
{
    if (!k)
        return;
    if (k->v)
        memset(k->v, 0, ESP_SERVE_MAX_KEYS * sizeof *k->v);
    esp_free(k->v);
    esp_free(k);
}

bool esp_keys_any(const struct esp_keys *k)
{
    return k && k->n > 0;
}

static uint64_t id_of(const struct key *k)
{
    return esp_hash(k->text, strlen(k->text), 0) | 1;
}

bool esp_keys_text(const struct esp_keys *k, uint64_t id, char out[ESP_KEY_MAX])
{
    for (size_t i = 0; id && i < k->n; i++)
        if (id_of(&k->v[i]) == id) {
            memcpy(out, k->v[i].text, ESP_KEY_MAX);
            return true;
        }
    return false;
}

bool esp_keys_check(const struct esp_keys *k, const char *given, struct esp_key_holder *out)
{
    char padded[ESP_KEY_MAX] = {0};
    const struct key *found = NULL;
    const size_t len = strlen(given);

    if (len == 0 || len >= ESP_KEY_MAX)
        return false;
    memcpy(padded, given, len);
    for (size_t i = 0; i < k->n; i++) {
        unsigned char differs = 0;

        for (size_t j = 0; j < ESP_KEY_MAX; j++)
            differs |= (unsigned char)(padded[j] ^ k->v[i].text[j]);
        if (!differs)
            found = &k->v[i];
    }
    if (!found)
        return false;
    snprintf(out->name, sizeof out->name, "%s", found->name);
    out->admin = found->admin;
    out->id = id_of(found);
    return true;
}
