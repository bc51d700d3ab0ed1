/*
 * Parsing from the table. Order of precedence: flag, then environment twin, then the default text of the row,
 * which goes through the same parser, so a default cannot be out of range. The last of several flags wins,
 * except for lists.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/options.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct esp_verb verbs[N_VERBS] = {
#define V(id, name, alias, summary, args, least, most, text, examples)                                       \
    {VERB_##id, name, alias, summary, args, least, most, text, examples},
#include "program/verbs.def"
#undef V
};

static const struct esp_opt opts[N_OPTS] = {
#define O(id, name, alias, letter, type, arg, def, least, most, group, verbs, help)                          \
    {OPT_##id, name, alias, letter, OPT_TYPE_##type, arg, def, least, most, group, verbs, help},
#include "program/options.def"
#undef O
};

static const char *const later_verbs[] = {
#define LV(name) name,
#define LF(name)
#include "program/later.def"
#undef LV
#undef LF
};

static const char *const later_flags[] = {
#define LV(name)
#define LF(name) name,
#include "program/later.def"
#undef LV
#undef LF
};

const struct esp_verb *esp_verb_get(enum esp_verb_id id)
{
    return &verbs[id];
}

const struct esp_opt *esp_opt_get(enum esp_opt_id id)
{
    return &opts[id];
}

const struct esp_verb *esp_verb_find(const char *name)
{
    for (size_t i = 0; i < N_VERBS; i++) {
        if (strcmp(verbs[i].name, name) == 0 || (verbs[i].alias && strcmp(verbs[i].alias, name) == 0))
            return &verbs[i];
    }
    return NULL;
}

bool esp_opt_for(const struct esp_opt *o, const struct esp_verb *v)
{
    return (o->verbs >> v->id) & 1;
}

bool esp_opt_env_name(const struct esp_opt *o, char *buf, size_t cap)
{
    size_t n;

    if (o->id == OPT_HELP)
        return false; /* a variable that turns every call into help serves nobody */
    n = (size_t)snprintf(buf, cap, "ESPALIER_%s", o->name);
    for (size_t i = 0; i < n && i < cap; i++)
        buf[i] = buf[i] == '-' ? '_' : (char)toupper((unsigned char)buf[i]);
    return n < cap;
}

/* ---- nearest match ---- */

/* Edits (insert, delete, replace, swap of neighbours) between a and b, both shorter than MAX_WORD. */
enum { MAX_WORD = 48 };

static int distance(const char *a, const char *b)
{
    int d[MAX_WORD + 1][MAX_WORD + 1];
    const int na = (int)strlen(a), nb = (int)strlen(b);

    if (na > MAX_WORD || nb > MAX_WORD)
        return MAX_WORD;
    for (int i = 0; i <= na; i++)
        d[i][0] = i;
    for (int j = 0; j <= nb; j++)
        d[0][j] = j;
    for (int i = 1; i <= na; i++) {
        for (int j = 1; j <= nb; j++) {
            const int replace = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            int best = d[i - 1][j] < d[i][j - 1] ? d[i - 1][j] + 1 : d[i][j - 1] + 1;

            best = replace < best ? replace : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[na][nb];
}

int esp_nearest(const char *word, const char *const *candidates, size_t n)
{
    const int len = (int)strlen(word);
    int best = len / 3 < 1 ? 1 : len / 3, found = -1;

    for (size_t i = 0; i < n; i++) {
        int d;

        if (!candidates[i])
            continue;
        d = distance(word, candidates[i]);
        if (len >= 3 && strncmp(word, candidates[i], (size_t)len) == 0)
            d = 1; /* the beginning of a name is a fair guess */
        if (d < best || (d == best && found < 0)) {
            best = d;
            found = (int)i;
        }
    }
    return found;
}

static bool listed(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], name) == 0)
            return true;
    }
    return false;
}

esp_status esp_verb_refuse(const char *name, esp_error *err)
{
    const char *names[2 * N_VERBS];
    int i;

    if (listed(name, later_verbs, sizeof later_verbs / sizeof *later_verbs))
        return esp_fail(err, ESP_EINVAL, "'%s' is not in this version; 'espalier --help' lists what is",
                        name);
    for (size_t k = 0; k < N_VERBS; k++) {
        names[2 * k] = verbs[k].name;
        names[2 * k + 1] = verbs[k].alias;
    }
    i = esp_nearest(name, names, 2 * N_VERBS);
    if (i >= 0)
        return esp_fail(err, ESP_EINVAL, "unknown verb '%s'; did you mean '%s'?", name, names[i]);
    return esp_fail(err, ESP_EINVAL, "unknown verb '%s'; 'espalier --help' lists the verbs", name);
}

static esp_status refuse_flag(const struct esp_verb *verb, const char *name, size_t len, esp_error *err)
{
    const char *names[2 * N_OPTS];
    char word[MAX_WORD + 1];
    size_t n = 0;
    int i;

    snprintf(word, sizeof word, "%.*s", (int)(len < MAX_WORD ? len : MAX_WORD), name);
    if (listed(word, later_flags, sizeof later_flags / sizeof *later_flags))
        return esp_fail(err, ESP_EINVAL, "--%s is not in this version", word);
    for (size_t k = 0; k < N_OPTS; k++) {
        if (!esp_opt_for(&opts[k], verb))
            continue;
        names[n++] = opts[k].name;
        names[n++] = opts[k].alias;
    }
    i = esp_nearest(word, names, n);
    if (i >= 0)
        return esp_fail(err, ESP_EINVAL, "unknown flag --%s; did you mean --%s?", word, names[i]);
    for (size_t k = 0; k < N_OPTS; k++) {
        if (strcmp(opts[k].name, word) == 0)
            return esp_fail(err, ESP_EINVAL,
                            "--%s does not belong to '%s'; 'espalier help %s' lists its flags", word,
                            verb->name, verb->name);
    }
    return esp_fail(err, ESP_EINVAL, "unknown flag --%s; 'espalier help %s' lists the flags", word,
                    verb->name);
}

/* ---- the command line ---- */

static bool takes_value(const struct esp_opt *o)
{
    return o->type != OPT_TYPE_BOOL && o->type != OPT_TYPE_COUNT && o->type != OPT_TYPE_MAYBE;
}

static const struct esp_opt *find_long(const struct esp_verb *verb, const char *name, size_t len)
{
    for (size_t i = 0; i < N_OPTS; i++) {
        const struct esp_opt *o = &opts[i];

        if (!esp_opt_for(o, verb))
            continue;
        if (strlen(o->name) == len && strncmp(o->name, name, len) == 0)
            return o;
        if (o->alias && strlen(o->alias) == len && strncmp(o->alias, name, len) == 0)
            return o;
    }
    return NULL;
}

static const struct esp_opt *find_letter(const struct esp_verb *verb, char letter)
{
    for (size_t i = 0; i < N_OPTS; i++) {
        if (opts[i].letter == letter && esp_opt_for(&opts[i], verb))
            return &opts[i];
    }
    return NULL;
}

struct cursor {
    int argc;
    char **argv;
    int i;
};

/* word: behind the dashes. */
static esp_status parse_long(struct esp_options *out, struct cursor *c, const char *word, esp_error *err)
{
    const char *value = strchr(word, '=');
    const size_t len = value ? (size_t)(value - word) : strlen(word);
    const struct esp_opt *o = find_long(out->verb, word, len);
    struct esp_opt_value *v;
    bool off = false;

    if (!o && strncmp(word, "no-", 3) == 0) {
        o = find_long(out->verb, word + 3, len - 3);
        off = true;
        if (o && (o->type != OPT_TYPE_BOOL || value))
            return esp_fail(err, ESP_EINVAL,
                            "--%s: only flags without a value can be switched off with --no-", word);
    }
    if (!o)
        return refuse_flag(out->verb, word, len, err);
    v = &out->v[o->id];
    v->given = true;
    if (value)
        return esp_opt_set(v, o, false, value + 1, err);
    if (o->type == OPT_TYPE_BOOL)
        v->on = !off;
    else if (o->type == OPT_TYPE_COUNT)
        v->i += v->i < (int64_t)o->most;
    else if (o->type == OPT_TYPE_MAYBE)
        v->s = NULL;
    if (!takes_value(o))
        return ESP_OK;
    if (c->i + 1 >= c->argc)
        return esp_fail(err, ESP_EINVAL, "--%s needs a value: %s", o->name, o->arg);
    return esp_opt_set(v, o, false, c->argv[++c->i], err);
}

/* A second name of three letters behind one dash, as others write it: "-ngl 5". */
static bool is_short_alias(const struct esp_verb *verb, const char *word)
{
    enum { LETTERS = 3 };
    const struct esp_opt *o = strcspn(word, "=") == LETTERS ? find_long(verb, word, LETTERS) : NULL;

    return o && o->alias && strncmp(o->alias, word, LETTERS) == 0;
}

/* "-qv", "-n 5", "-n5" and "-n=5". */
static esp_status parse_letters(struct esp_options *out, struct cursor *c, esp_error *err)
{
    const char *p = c->argv[c->i] + 1;

    for (; *p; p++) {
        const struct esp_opt *o = find_letter(out->verb, *p);
        struct esp_opt_value *v;

        if (!o)
            return esp_fail(err, ESP_EINVAL,
                            "unknown flag -%c; 'espalier help %s' lists the flags, and -- ends them", *p,
                            out->verb->name);
        v = &out->v[o->id];
        v->given = true;
        if (o->type == OPT_TYPE_BOOL) {
            v->on = true;
        } else if (o->type == OPT_TYPE_COUNT) {
            v->i += v->i < (int64_t)o->most;
        } else if (p[1]) {
            return esp_opt_set(v, o, false, p + 1 + (p[1] == '='), err);
        } else if (c->i + 1 >= c->argc) {
            return esp_fail(err, ESP_EINVAL, "-%c (--%s) needs a value: %s", *p, o->name, o->arg);
        } else {
            return esp_opt_set(v, o, false, c->argv[++c->i], err);
        }
    }
    return ESP_OK;
}

/* Rows without a flag take the environment, else the default text. */
static esp_status fill_rest(struct esp_options *out, esp_error *err)
{
    for (size_t i = 0; i < N_OPTS; i++) {
        struct esp_opt_value *v = &out->v[i];
        const char *text;
        char name[64];

        if (v->given || !esp_opt_for(&opts[i], out->verb) || !esp_opt_env_name(&opts[i], name, sizeof name))
            continue;
        text = getenv(name);
        if (text) {
            v->given = v->from_env = true;
            ESP_TRY(esp_opt_set(v, &opts[i], true, text, err));
        } else if (opts[i].def) {
            ESP_TRY(esp_opt_set(v, &opts[i], false, opts[i].def, err));
        }
    }
    return ESP_OK;
}

static esp_status check_count(const struct esp_options *o, esp_error *err)
{
    const struct esp_verb *v = o->verb;
    const bool model_flag = esp_opt_for(&opts[OPT_MODEL], v) && o->v[OPT_MODEL].given;
    const int n = (int)o->n_args;
    const int by_flag = model_flag && !(o->v[OPT_MODEL].from_env && n >= v->least);

    if (n + by_flag < v->least)
        return esp_fail(err, ESP_EINVAL, "usage: espalier %s %s [FLAGS]; %d argument%s missing", v->name,
                        v->args, v->least - n - by_flag, v->least - n - by_flag == 1 ? " is" : "s are");
    if (v->most >= 0 && n + by_flag > v->most)
        return esp_fail(err, ESP_EINVAL, "usage: espalier %s %s [FLAGS]; '%.200s' is one argument too many",
                        v->name, v->args, o->args[n - 1]);
    return ESP_OK;
}

esp_status esp_options_parse(struct esp_options *out, const struct esp_verb *verb, int argc, char **argv,
                             esp_error *err)
{
    struct cursor c = {argc, argv, 0};
    bool only_args = false;

    memset(out, 0, sizeof *out);
    out->verb = verb;
    out->args = calloc((size_t)argc + 1, sizeof *out->args);
    if (!out->args)
        return esp_fail(err, ESP_ENOMEM, "no memory for %d arguments", argc);
    for (; c.i < argc; c.i++) {
        const char *a = argv[c.i];

        if (only_args || a[0] != '-' || !a[1])
            out->args[out->n_args++] = a;
        else if (strcmp(a, "--") == 0)
            only_args = true;
        else if (a[1] == '-')
            ESP_TRY(parse_long(out, &c, a + 2, err));
        else if (is_short_alias(verb, a + 1))
            ESP_TRY(parse_long(out, &c, a + 1, err));
        else
            ESP_TRY(parse_letters(out, &c, err));
    }
    ESP_TRY(fill_rest(out, err));
    return out->v[OPT_HELP].on ? ESP_OK : check_count(out, err);
}

void esp_options_free(struct esp_options *o)
{
    free(o->args);
    o->args = NULL;
}
