/*
 * The Hub cache is a folder per model, "models--org--name", with refs/REVISION naming a folder below
 * snapshots/. A name is taken literally first, then as a full Hub name, then as a part of one; a part must be
 * unique, so that a download never changes silently which model a command means: it turns into an error that
 * lists both.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/model_find.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/map.h"
#include "base/mem.h"

enum { MAX_NAMES = 4096, MAX_REF_BYTES = 256 };
static const char prefix[] = "models--";

/* Whether dir holds file; both joined. */
static bool holds(const char *dir, const char *file)
{
    char *path = esp_path_join(dir, file);
    struct stat st;
    const bool yes = path && stat(path, &st) == 0 && S_ISREG(st.st_mode);

    esp_free(path);
    return yes;
}

static char *print(const char *fmt, const char *a, const char *b)
{
    struct esp_strbuf s;

    esp_strbuf_init(&s, 1 << 16);
    if (!esp_strbuf_printf(&s, fmt, a, b)) {
        esp_strbuf_free(&s);
        return NULL;
    }
    return esp_strbuf_take(&s);
}

/* The cache folder by HF_HUB_CACHE, HF_HOME, HOME; NULL when none is set. */
static char *cache_dir(void)
{
    const char *cache = getenv("HF_HUB_CACHE"), *hub = getenv("HF_HOME"), *home = getenv("HOME");

    if (cache && cache[0])
        return print("%s%s", cache, "");
    if (hub && hub[0])
        return print("%s/%s", hub, "hub");
    if (home && home[0])
        return print("%s/%s", home, ".cache/huggingface/hub");
    return NULL;
}

/* "models--org--name" to "org/name", in place; false when it is none. */
static bool hub_name(char *out, size_t cap, const char *folder)
{
    char *gap;

    if (strncmp(folder, prefix, sizeof prefix - 1) != 0)
        return false;
    if ((size_t)snprintf(out, cap, "%s", folder + sizeof prefix - 1) >= cap)
        return false;
    gap = strstr(out, "--");
    if (gap) {
        *gap = '/';
        memmove(gap + 1, gap + 2, strlen(gap + 2) + 1);
    }
    return true;
}

static bool newest_snapshot(char *out, size_t cap, const char *snapshots)
{
    DIR *d = opendir(snapshots);
    const struct dirent *e;
    struct stat st;
    time_t best = 0;
    bool found = false;

    if (!d)
        return false;
    for (e = readdir(d); e; e = readdir(d)) {
        char *path = e->d_name[0] == '.' ? NULL : esp_path_join(snapshots, e->d_name);

        if (path && holds(path, "config.json") && stat(path, &st) == 0 && (!found || st.st_mtime > best)) {
            best = st.st_mtime;
            found = (size_t)snprintf(out, cap, "%s", e->d_name) < cap;
        }
        esp_free(path);
    }
    closedir(d);
    return found;
}

/* Name of the snapshot folder for a revision: what refs/REVISION says, else the revision itself. "" when
 * neither. */
static void commit_of(char *out, size_t cap, const char *model, const char *revision)
{
    char *ref = print("%s/refs/%s", model, revision ? revision : "main"), *text = NULL;
    size_t len = 0;

    out[0] = 0;
    if (ref && esp_read_file(&text, &len, ref, MAX_REF_BYTES, NULL) == ESP_OK) {
        while (len && isspace((unsigned char)text[len - 1]))
            text[--len] = 0;
        snprintf(out, cap, "%s", text);
    } else if (revision) {
        snprintf(out, cap, "%s", revision);
    }
    if (strchr(out, '/') || out[0] == '.')
        out[0] = 0; /* a name inside snapshots/, nothing else */
    esp_free(text);
    esp_free(ref);
}

/* Folder of the snapshot of one cached model: the revision asked for, main, or the newest that has a config.
 */
static char *snapshot_of(const char *cache, const char *folder, const char *revision)
{
    char *model = esp_path_join(cache, folder);
    char *snapshots = model ? esp_path_join(model, "snapshots") : NULL, *path = NULL;
    char commit[MAX_REF_BYTES + 1] = "";

    if (snapshots) {
        commit_of(commit, sizeof commit, model, revision);
        if (commit[0] || (!revision && newest_snapshot(commit, sizeof commit, snapshots)))
            path = esp_path_join(snapshots, commit);
    }
    if (path && !holds(path, "config.json")) {
        esp_free(path);
        path = NULL;
    }
    esp_free(snapshots);
    esp_free(model);
    return path;
}

static bool contains(const char *name, const char *part)
{
    return strcasestr(name, part) != NULL;
}

struct matches {
    char folder[512]; /* of the match, the exact one when there is one */
    bool exact;
    size_t n;
    struct esp_strbuf names;
};

static void scan(struct matches *m, const char *cache, const char *wanted)
{
    DIR *d = opendir(cache);
    const struct dirent *e;
    char name[512];

    if (!d)
        return;
    for (e = readdir(d); e && m->n < MAX_NAMES && !m->exact; e = readdir(d)) {
        if (!hub_name(name, sizeof name, e->d_name) || !contains(name, wanted))
            continue;
        m->exact = strcasecmp(name, wanted) == 0;
        m->n = m->exact ? 1 : m->n + 1;
        snprintf(m->folder, sizeof m->folder, "%s", e->d_name);
        esp_strbuf_printf(&m->names, "%s%s", m->names.len ? ", " : "", name);
    }
    closedir(d);
}

static esp_status find_cached(char **out, const char *cache, const char *name, esp_error *err)
{
    struct matches m = {.n = 0};
    char *wanted = esp_strndup(name, strlen(name)), *at;
    esp_status s = ESP_OK;

    if (!wanted)
        return esp_fail(err, ESP_ENOMEM, "no memory for a name of %zu bytes", strlen(name));
    at = strrchr(wanted, '@');
    if (at)
        *at++ = 0;
    esp_strbuf_init(&m.names, 1 << 16);
    if (wanted[0])
        scan(&m, cache, wanted);
    if (m.n == 0)
        s = esp_fail(
            err, ESP_ENOTFOUND,
            "no model '%s': there is no such folder with a config.json, and no name in %s contains it", name,
            cache);
    else if (m.n > 1)
        s = esp_fail(err, ESP_ENOTFOUND, "'%s' is ambiguous: %s", name, esp_strbuf_str(&m.names));
    if (s == ESP_OK) {
        *out = snapshot_of(cache, m.folder, at);
        if (!*out)
            s = esp_fail(err, ESP_ENOTFOUND, "%s: %s%s has no snapshot with a config.json in %s", name,
                         at ? "revision " : "the model", at ? at : "", cache);
    }
    esp_strbuf_free(&m.names);
    esp_free(wanted);
    return s;
}

esp_status esp_model_find(char **out, const char *name, esp_error *err)
{
    struct stat st;
    char *cache;
    esp_status s;

    if (!name[0])
        return esp_fail(err, ESP_ENOTFOUND,
                        "the name of the model is empty; a folder or a Hub name is needed");
    if (holds(name, "config.json")) {
        *out = esp_strndup(name, strlen(name));
        return *out ? ESP_OK : esp_fail(err, ESP_ENOMEM, "no memory for a path");
    }
    if (stat(name, &st) == 0)
        return esp_fail(err, ESP_ENOTFOUND, "%s: %s", name,
                        S_ISDIR(st.st_mode) ? "the folder has no config.json"
                                            : "a model is a folder, this is a file");
    cache = cache_dir();
    if (!cache || name[0] == '.' || name[0] == '/')
        s = esp_fail(err, ESP_ENOTFOUND, "no model '%s': there is no such folder", name);
    else
        s = find_cached(out, cache, name, err);
    esp_free(cache);
    return s;
}

bool esp_model_is(const char *name)
{
    struct matches m = {.n = 0};
    char *cache, *wanted, *at;

    if (holds(name, "config.json"))
        return true;
    cache = strchr(name, '/') ? cache_dir() : NULL;
    wanted = cache ? esp_strndup(name, strlen(name)) : NULL;
    esp_strbuf_init(&m.names, 1 << 16);
    if (wanted) {
        at = strrchr(wanted, '@');
        if (at)
            *at = 0;
        if (wanted[0])
            scan(&m, cache, wanted);
    }
    esp_strbuf_free(&m.names);
    esp_free(wanted);
    esp_free(cache);
    return m.exact;
}

void esp_model_list(struct esp_strbuf *out)
{
    char *cache = cache_dir();
    DIR *d = cache ? opendir(cache) : NULL;
    char name[512];

    if (d) {
        for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
            if (hub_name(name, sizeof name, e->d_name))
                esp_strbuf_printf(out, "%s\n", name);
        }
        closedir(d);
    }
    esp_free(cache);
}
