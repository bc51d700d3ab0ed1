/*
 * The configuration file: the same names as the flags, below them and the environment in rank. A profile's
 * line wins over one above all profiles; the last of several flags of one rank wins, as on the command line.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/options.h"

#include <stdio.h>
#include <string.h>

static char *trim(char *s)
{
    char *end = s + strlen(s);

    while (*s == ' ' || *s == '\t' || *s == '\r')
        s++;
    while (end > s && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'))
        *--end = '\0';
    return s;
}

static const struct esp_opt *find(const struct esp_verb *verb, const char *name)
{
    for (size_t i = 0; i < N_OPTS; i++) {
        const struct esp_opt *o = esp_opt_get((enum esp_opt_id)i);

        if (esp_opt_for(o, verb) && (strcmp(o->name, name) == 0 || (o->alias && strcmp(o->alias, name) == 0)))
            return o;
    }
    return NULL;
}

static esp_status refuse_key(const struct esp_verb *verb, const char *key, const char *name, size_t line,
                             esp_error *err)
{
    const char *names[N_OPTS];
    size_t n = 0;
    int i;

    for (size_t k = 0; k < N_OPTS; k++)
        if (esp_opt_for(esp_opt_get((enum esp_opt_id)k), verb))
            names[n++] = esp_opt_get((enum esp_opt_id)k)->name;
    i = esp_nearest(key, names, n);
    return esp_fail(err, ESP_EINVAL, "%s:%zu: unknown setting '%.100s'%s%s%s", name, line, key,
                    i >= 0 ? "; did you mean '" : "", i >= 0 ? names[i] : "", i >= 0 ? "'?" : "");
}

static esp_status set(struct esp_options *o, char *line, const char *name, size_t number, esp_error *err)
{
    char *equals = strchr(line, '='), *key, *value;
    const struct esp_opt *opt;
    struct esp_opt_value *v;
    esp_status s;

    if (!equals)
        return esp_fail(err, ESP_EINVAL, "%s:%zu: '%.100s' is not of the form flag = value", name, number,
                        line);
    *equals = '\0';
    key = trim(line);
    value = trim(equals + 1);
    opt = find(o->verb, key);
    if (!opt)
        return refuse_key(o->verb, key, name, number, err);
    if (opt->id == OPT_CONFIG || opt->id == OPT_PROFILE || opt->id == OPT_HELP)
        return esp_fail(err, ESP_EINVAL, "%s:%zu: '%s' belongs on the command line", name, number, key);
    v = &o->v[opt->id];
    if (v->given && !v->from_file)
        return ESP_OK;
    s = esp_opt_set(v, opt, false, value, err);
    if (s != ESP_OK)
        return esp_fail_in(err, s, "%s:%zu", name, number);
    v->given = v->from_file = true;
    return ESP_OK;
}

/* "[profile NAME]": whether it is the one asked for. */
static esp_status section(char *line, const char *profile, bool *active, bool *found, const char *name,
                          size_t number, esp_error *err)
{
    char *end = strchr(line, ']'), *its = line + 8;

    if (!end || end[1] || strncmp(line, "[profile ", 9) != 0)
        return esp_fail(err, ESP_EINVAL, "%s:%zu: '%.100s'; [profile NAME] begins a part", name, number,
                        line);
    *end = '\0';
    *active = profile && strcmp(trim(its), profile) == 0;
    *found = *found || *active;
    return ESP_OK;
}

esp_status esp_options_file(struct esp_options *o, char *text, const char *name, const char *profile,
                            esp_error *err)
{
    bool active = true, found = false;
    size_t number = 1;

    for (char *at = text; *at; number++) {
        char *end = at + strcspn(at, "\n"), *next = *end ? end + 1 : end, *line;

        *end = '\0';
        line = trim(at);
        at = next;
        if (!*line || *line == '#')
            continue;
        if (*line == '[')
            ESP_TRY(section(line, profile, &active, &found, name, number, err));
        else if (active)
            ESP_TRY(set(o, line, name, number, err));
    }
    if (profile && !found)
        return esp_fail(err, ESP_EINVAL, "%s: no [profile %s] in it", name, profile);
    return ESP_OK;
}

esp_status esp_options_file_again(struct esp_options *o, char *text, const char *name, const char *profile,
                                  esp_error *err)
{
    for (size_t i = 0; i < N_OPTS; i++) {
        const struct esp_opt *opt = esp_opt_get((enum esp_opt_id)i);

        if (!o->v[i].from_file)
            continue;
        memset(&o->v[i], 0, sizeof o->v[i]);
        if (opt->def)
            ESP_TRY(esp_opt_set(&o->v[i], opt, false, opt->def, err));
    }
    return esp_options_file(o, text, name, profile, err);
}
