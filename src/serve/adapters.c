/*
 * A list by name. Entries are never moved, so a generation may point at one.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/adapters.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

#include "serve/background.h"
#include "serve/route.h"

enum { MAX_MOUNTED = 256, MAX_ID = 63 };

struct mounted {
    char id[MAX_ID + 1];
    char path[PATH_MAX];
    bool used;
    esp_adapter *adapter; /* NULL: a free place, or the model is away */
    esp_adapter_info info;
    float scale;
    uint32_t refs;
    uint64_t requests;
    bool standard; /* used by requests that name none */
    bool leaving;  /* taken away as soon as nobody uses it; requests may not name it any more */
};

struct esp_mounts {
    struct mounted *v; /* [MAX_MOUNTED] */
};

static struct mounted *find(const struct esp_mounts *a, const char *id, size_t len)
{
    for (size_t i = 0; a && i < MAX_MOUNTED; i++)
        if (a->v[i].used && strlen(a->v[i].id) == len && memcmp(a->v[i].id, id, len) == 0)
            return &a->v[i];
    return NULL;
}

static void drop(struct mounted *m)
{
    esp_adapter_close(m->adapter);
    m->adapter = NULL;
    m->used = false;
}

static bool good_id(const char *id)
{
    if (!*id || strlen(id) > MAX_ID || strcmp(id, "none") == 0)
        return false;
    for (const char *c = id; *c; c++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-", *c))
            return false;
    return true;
}

static esp_status put(struct esp_mounts *a, const char *id, const char *path, float scale,
                      esp_adapter *adapter, struct mounted **out, esp_error *err)
{
    for (size_t i = 0; i < MAX_MOUNTED; i++) {
        struct mounted *m = &a->v[i];

        if (m->used)
            continue;
        memset(m, 0, sizeof *m);
        snprintf(m->id, sizeof m->id, "%s", id);
        snprintf(m->path, sizeof m->path, "%s", path);
        m->used = true;
        m->adapter = adapter;
        m->scale = scale;
        esp_adapter_describe(adapter, &m->info);
        *out = m;
        return ESP_OK;
    }
    return esp_fail(err, ESP_ENOFIT, "%d adapters are mounted already", MAX_MOUNTED);
}

/* "dir" or "dir:scale" to its parts; the id is the last part of the path. */
static esp_status mount_option(struct esp_mounts *a, const char *text, esp_model *m, esp_error *err)
{
    const char *colon = strrchr(text, ':'), *slash;
    char path[PATH_MAX], *end = NULL;
    float scale = 1;
    esp_adapter *adapter;
    struct mounted *e;

    if (colon && colon[1]) {
        scale = strtof(colon + 1, &end);
        if (*end)
            colon = NULL; /* a path with a colon in it */
    }
    if (!colon)
        scale = 1;
    snprintf(path, sizeof path, "%.*s", colon ? (int)(colon - text) : (int)strlen(text), text);
    while (strlen(path) > 1 && path[strlen(path) - 1] == '/')
        path[strlen(path) - 1] = '\0';
    slash = strrchr(path, '/');
    if (!good_id(slash ? slash + 1 : path) ||
        find(a, slash ? slash + 1 : path, strlen(slash ? slash + 1 : path)))
        return esp_fail(err, ESP_EINVAL, "adapter '%s': its last part must be a name of its own", path);
    ESP_TRY(esp_adapter_open(&adapter, m, path, err));
    ESP_TRY(put(a, slash ? slash + 1 : path, path, scale, adapter, &e, err));
    e->standard = true;
    return ESP_OK;
}

esp_status esp_mounts_open(struct esp_mounts **out, const struct esp_serve_opts *o, esp_model *m,
                           esp_error *err)
{
    struct esp_mounts *a = esp_alloc(sizeof *a);
    esp_status s = ESP_OK;

    if (a)
        a->v = esp_alloc_array(MAX_MOUNTED, sizeof *a->v);
    if (!a || !a->v) {
        esp_free(a);
        return esp_fail(err, ESP_ENOMEM, "no memory for adapters");
    }
    if (o->n_adapter > ESP_ADAPTERS_MAX)
        s = esp_fail(err, ESP_EINVAL, "%zu adapters at once; at most %d can be stacked", o->n_adapter,
                     ESP_ADAPTERS_MAX);
    for (size_t i = 0; s == ESP_OK && i < o->n_adapter; i++)
        s = mount_option(a, o->adapters[i], m, err);
    if (s == ESP_OK)
        *out = a;
    else
        esp_mounts_close(a);
    return s;
}

void esp_mounts_close(struct esp_mounts *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < MAX_MOUNTED; i++)
        esp_adapter_close(a->v[i].adapter);
    esp_free(a->v);
    esp_free(a);
}

void esp_mounts_sleep(struct esp_mounts *a)
{
    for (size_t i = 0; a && i < MAX_MOUNTED; i++) {
        esp_adapter_close(a->v[i].adapter);
        a->v[i].adapter = NULL;
    }
}

esp_status esp_mounts_wake(struct esp_mounts *a, esp_model *m, esp_error *err)
{
    for (size_t i = 0; i < MAX_MOUNTED; i++)
        if (a->v[i].used)
            ESP_TRY(esp_adapter_open(&a->v[i].adapter, m, a->v[i].path, err));
    return ESP_OK;
}

/* ---- requests ---- */

static void add(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s, const char *id,
                size_t len, double scale)
{
    const struct mounted *m = find(s->adapters, id, len);
    const size_t used = strlen(g->adapter);

    if (!m || m->leaving) {
        esp_api_fail(f->e, "adapter_not_found", "adapter", "adapter: '%.*s' is not mounted here", (int)len,
                     id);
        return;
    }
    if (g->n_adapter == ESP_ADAPTERS_MAX) {
        esp_api_fail(f->e, "invalid_value", "adapter", "adapter: at most %d can be stacked",
                     ESP_ADAPTERS_MAX);
        return;
    }
    g->adapters[g->n_adapter++] = (esp_adapter_use){m->adapter, (float)scale * m->scale};
    snprintf(g->adapter + used, sizeof g->adapter - used, "%s%s", used ? "+" : "", m->id);
}

/* "a+b" */
static void add_names(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s, const char *names)
{
    while (*names && !f->e->http) {
        const size_t n = strcspn(names, "+");

        add(f, g, s, names, n, 1);
        names += n + (names[n] == '+');
    }
}

/* [{"id", "scale"}] */
static void add_list(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s, const json_t *list)
{
    size_t i;
    json_t *v;

    json_array_foreach(list, i, v)
    {
        const char *id = json_string_value(json_object_get(v, "id"));
        const json_t *scale = json_object_get(v, "scale");
        const double x = scale ? json_number_value(scale) : 1;

        if (!id || (scale && (!json_is_number(scale) || !(x > -100 && x < 100)))) {
            esp_api_fail(f->e, "invalid_value", "adapter",
                         "adapter: %s; {\"id\": name, \"scale\": number} is accepted", esp_show_value(v));
            return;
        }
        if (x > 0 || x < 0) /* scale 0 is none */
            add(f, g, s, id, strlen(id), x);
    }
}

/* What a model's name says of adapters: "base:a+b", or the id alone; NULL: nothing. */
static const char *names_in(const struct esp_server *s, const char *model)
{
    const size_t base = strlen(s->o.model_id);

    if (!model || !s->adapters)
        return NULL;
    if (strncmp(model, s->o.model_id, base) == 0 && model[base] == ':')
        return model + base + 1;
    return find(s->adapters, model, strlen(model)) ? model : NULL;
}

bool esp_mounts_known(const struct esp_server *s, const char *model)
{
    return names_in(s, model) != NULL;
}

static void add_defaults(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s)
{
    for (size_t i = 0; s->adapters && i < MAX_MOUNTED; i++)
        if (s->adapters->v[i].used && s->adapters->v[i].standard && !s->adapters->v[i].leaving)
            add(f, g, s, s->adapters->v[i].id, strlen(s->adapters->v[i].id), 1);
}

void esp_mounts_read(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s)
{
    const json_t *v = esp_field_any(f, "adapter"), *lora = esp_field_any(f, "lora"),
                 *model = esp_field_any(f, "model");
    const char *in_model = names_in(s, json_string_value(model)), *names;

    if (!v)
        v = lora;
    names = json_string_value(v);
    if (f->e->http)
        return;
    if (json_is_array(v))
        add_list(f, g, s, v);
    else if (v && !names)
        esp_field_wrong(f, v == lora ? "lora" : "adapter", v, "a name or an array of {id, scale}");
    else if (names && strcmp(names, "none") != 0)
        add_names(f, g, s, names);
    else if (!v && in_model)
        add_names(f, g, s, in_model);
    else if (!v)
        add_defaults(f, g, s);
}

static struct mounted *mounted_as(const struct esp_server *s, const esp_adapter *adapter)
{
    for (size_t i = 0; s->adapters && i < MAX_MOUNTED; i++)
        if (s->adapters->v[i].adapter == adapter)
            return &s->adapters->v[i];
    return NULL;
}

void esp_mounts_hold(struct esp_server *s, const esp_adapter_use *v, uint32_t n, int by)
{
    for (uint32_t k = 0; k < n; k++) {
        struct mounted *m = v[k].adapter ? mounted_as(s, v[k].adapter) : NULL;

        if (!m)
            continue;
        m->refs = by > 0 ? m->refs + 1 : m->refs - 1;
        if (m->leaving && m->refs == 0) {
            drop(m);
        }
    }
}

void esp_mounts_use(struct esp_server *s, const struct esp_gen *g, int by)
{
    for (uint32_t k = 0; by > 0 && k < g->n_adapter; k++) {
        struct mounted *m = mounted_as(s, g->adapters[k].adapter);

        if (m)
            m->requests++;
    }
    esp_mounts_hold(s, g->adapters, g->n_adapter, by);
}

/* ---- routes ---- */

static json_t *entry_json(const struct mounted *m)
{
    char hash[32];

    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)m->info.revision);
    return json_pack("{s:s,s:s,s:I,s:f,s:I,s:I,s:s,s:I,s:I,s:b}", "id", m->id, "path",
                     strrchr(m->path, '/') ? strrchr(m->path, '/') + 1 : m->path, "rank",
                     (json_int_t)m->info.max_rank, "scale", (double)m->scale, "modules",
                     (json_int_t)m->info.n_modules, "size_bytes", (json_int_t)m->info.bytes, "content_hash",
                     hash, "refs", (json_int_t)m->refs, "requests_total", (json_int_t)m->requests, "default",
                     m->standard);
}

json_t *esp_mounts_list(const struct esp_server *s)
{
    json_t *list = json_array();

    for (size_t i = 0; s->adapters && i < MAX_MOUNTED; i++)
        if (s->adapters->v[i].used)
            json_array_append_new(list, entry_json(&s->adapters->v[i]));
    return list;
}

json_t *esp_mounts_ids(const struct esp_server *s)
{
    json_t *list = json_array();

    for (size_t i = 0; s->adapters && i < MAX_MOUNTED; i++)
        if (s->adapters->v[i].used)
            json_array_append_new(list, json_string(s->adapters->v[i].id));
    return list;
}

void esp_get_adapters(struct esp_call *c)
{
    esp_reply_json(c, 200, json_pack("{s:s,s:o}", "object", "list", "adapters", esp_mounts_list(c->s)));
}

struct mounting {
    struct esp_call *c;
    char id[MAX_ID + 1], path[PATH_MAX];
    float scale;
    bool standard, replace;
    esp_adapter *adapter;
};

static esp_status read_adapter(void *arg, esp_error *err)
{
    struct mounting *m = arg;

    return esp_adapter_open(&m->adapter, m->c->s->model, m->path, err);
}

static void finish_mount(struct mounting *m, esp_status status, const esp_error *err)
{
    struct esp_call *c = m->c;
    struct mounted *old = find(c->s->adapters, m->id, strlen(m->id)), *e = NULL;
    esp_error full, shown = *err;

    if (status != ESP_OK) {
        esp_hide_path(&shown, m->path);
        esp_api_fail(&c->e, status == ESP_ENOTFOUND ? "adapter_not_found" : "adapter_incompatible", "path",
                     "%s", shown.message);
        return;
    }
    if (old && old->refs) {
        esp_api_fail(&c->e, "adapter_in_use", "id", "adapter '%s' is in use by %u requests", m->id,
                     old->refs);
        return;
    }
    if (old) {
        drop(old);
    }
    if (put(c->s->adapters, m->id, m->path, m->scale, m->adapter, &e, &full) != ESP_OK) {
        esp_api_fail(&c->e, "device_lost", NULL, "%s", full.message);
        return;
    }
    m->adapter = NULL;
    e->standard = m->standard;
    esp_reply_json(c, 201, entry_json(e));
}

static void mounted_done(void *arg, esp_status status, const esp_error *err)
{
    struct mounting *m = arg;
    struct esp_call *c = m->c;

    finish_mount(m, status, err);
    if (c->e.http)
        esp_reply_error(c);
    esp_adapter_close(m->adapter);
    esp_free(m);
    esp_call_job_ended(c);
}

/* Only what lies below the folder of adapters, unless the caller sits on the socket file. */
static bool resolve(const struct esp_call *c, const char *path, char out[PATH_MAX], struct esp_api_error *e)
{
    const char *base = c->s->o.adapter_dir;
    char root[PATH_MAX], joined[2 * PATH_MAX];
    size_t len;

    if (strcmp(c->r->peer, "unix") == 0)
        return realpath(path, out) ||
               esp_api_fail(e, "adapter_not_found", "path", "path: there is no such folder");
    if (!base || !realpath(base, root))
        return esp_api_fail(e, "admin_required", "path",
                            "path: the server has no folder of adapters (--adapter-dir)");
    if (strlen(path) >= PATH_MAX)
        return esp_api_fail(e, "invalid_value", "path", "path: too long");
    snprintf(joined, sizeof joined, "%s%s%s", path[0] == '/' ? "" : root, path[0] == '/' ? "" : "/", path);
    len = strlen(root);
    if (!realpath(joined, out))
        return esp_api_fail(e, "adapter_not_found", "path", "path: there is no such folder");
    if (strncmp(out, root, len) != 0 || out[len] != '/')
        return esp_api_fail(e, "admin_required", "path",
                            "path: it does not lie below the folder of adapters");
    return true;
}

void esp_post_adapters(struct esp_call *c)
{
    struct mounting *m = esp_alloc(sizeof *m);
    const char *id = NULL, *path = NULL;
    struct esp_fields f;
    double scale = 1;
    esp_error err;

    esp_fields_init(&f, c->body, "", &c->e);
    if (!m)
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
    if (!esp_field_string(&f, "id", &id) || !esp_field_string(&f, "path", &path))
        esp_api_fail(&c->e, "missing_field", id ? "path" : "id", "%s: a string is needed",
                     id ? "path" : "id");
    esp_field_real(&f, "scale", ESP_FROM, -100, 100, &scale);
    if (m) {
        esp_field_bool(&f, "default", &m->standard);
        esp_field_bool(&f, "replace", &m->replace);
    }
    if (!c->e.http && !good_id(id))
        esp_api_fail(&c->e, "invalid_value", "id", "id: '%.100s'; 1 to %d of letters, digits, _ . -", id,
                     MAX_ID);
    if (!c->e.http && find(c->s->adapters, id, strlen(id)) && !m->replace)
        esp_api_fail(&c->e, "adapter_exists", "id",
                     "adapter '%s' is mounted already; \"replace\": true changes it", id);
    if (c->e.http || !resolve(c, path, m->path, &c->e)) {
        esp_free(m);
        return;
    }
    m->c = c;
    m->scale = (float)scale;
    snprintf(m->id, sizeof m->id, "%s", id);
    c->n_job++;
    if (esp_background_run(c->s->background, read_adapter, mounted_done, m, &err) != ESP_OK) {
        c->n_job--;
        esp_api_fail(&c->e, "device_lost", NULL, "%s", err.message);
        esp_free(m);
    }
}

/* Take away the adapter called id; what says in which field it was named. True: nothing is left to say. */
static bool take_away(struct esp_call *c, const char *id, const char *what, bool drain)
{
    struct mounted *m = find(c->s->adapters, id, strlen(id));

    if (!m)
        return esp_api_fail(&c->e, "adapter_not_found", what, "adapter '%.100s' is not mounted here", id);
    if (m->refs && !drain)
        return esp_api_fail(&c->e, "adapter_in_use", what, "adapter '%s' is in use by %u requests", m->id,
                            m->refs);
    if (m->refs) {
        m->leaving = true;
        return true;
    }
    drop(m);
    return true;
}

void esp_delete_adapter(struct esp_call *c)
{
    char drain[8] = "";

    esp_http_query(c->r->head.query, "drain", drain, sizeof drain);
    if (take_away(c, c->params[0], NULL, strcmp(drain, "true") == 0 || strcmp(drain, "1") == 0))
        esp_reply_empty(c, 204);
}

/* The names that another server's clients use: the same bodies under other keys. */
void esp_load_lora(struct esp_call *c)
{
    json_t *name = json_object_get(c->body, "lora_name"), *path = json_object_get(c->body, "lora_path");

    if (name)
        json_object_set(c->body, "id", name);
    if (path)
        json_object_set(c->body, "path", path);
    esp_post_adapters(c);
}

void esp_unload_lora(struct esp_call *c)
{
    const char *name = NULL;
    struct esp_fields f;

    esp_fields_init(&f, c->body, "", &c->e);
    if (!esp_field_string(&f, "lora_name", &name)) {
        if (!c->e.http)
            esp_api_fail(&c->e, "missing_field", "lora_name", "lora_name: a string is needed");
        return;
    }
    if (take_away(c, name, "lora_name", false))
        esp_reply_json(c, 200, json_pack("{s:s,s:b}", "lora_name", name, "unloaded", 1));
}

/* ---- folders that could be mounted ---- */

struct looking {
    struct esp_call *c;
    json_t *list;
};

static void look_at(struct looking *l, const char *name)
{
    const char *base = l->c->s->o.adapter_dir;
    char path[2 * PATH_MAX];
    esp_adapter *adapter = NULL;
    esp_adapter_info info = {0};
    esp_error err = {0};
    struct stat st;
    bool ok;

    snprintf(path, sizeof path, "%s/%s", base, name);
    if (name[0] == '.' || stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return;
    ok = esp_adapter_open(&adapter, l->c->s->model, path, &err) == ESP_OK;
    if (ok)
        esp_adapter_describe(adapter, &info);
    esp_adapter_close(adapter);
    if (!ok && err.status == ESP_ENOTFOUND)
        return; /* no adapter at all */
    esp_hide_path(&err, path);
    json_array_append_new(l->list,
                          json_pack("{s:s,s:s,s:b,s:s?,s:I,s:I}", "id", name, "path", name, "compatible", ok,
                                    "reason", ok ? NULL : err.message, "rank", (json_int_t)info.max_rank,
                                    "size_bytes", (json_int_t)info.bytes));
}

static esp_status look_around(void *arg, esp_error *err)
{
    struct looking *l = arg;
    DIR *dir = opendir(l->c->s->o.adapter_dir);

    if (!dir)
        return esp_fail(err, ESP_EIO, "the folder of adapters cannot be read");
    for (const struct dirent *f = readdir(dir); f && json_array_size(l->list) < MAX_MOUNTED; f = readdir(dir))
        look_at(l, f->d_name);
    closedir(dir);
    return ESP_OK;
}

static void looked(void *arg, esp_status status, const esp_error *err)
{
    struct looking *l = arg;
    struct esp_call *c = l->c;

    if (status == ESP_OK) {
        esp_reply_json(c, 200, json_pack("{s:s,s:O}", "object", "list", "adapters", l->list));
    } else {
        esp_api_fail(&c->e, "internal_error", NULL, "%s", err->message);
        esp_reply_error(c);
    }
    json_decref(l->list);
    esp_free(l);
    esp_call_job_ended(c);
}

void esp_get_available(struct esp_call *c)
{
    struct looking *l;
    esp_error err;

    if (!c->s->o.adapter_dir) {
        esp_reply_json(c, 200, json_pack("{s:s,s:[]}", "object", "list", "adapters"));
        return;
    }
    l = esp_alloc(sizeof *l);
    if (!l) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        return;
    }
    *l = (struct looking){c, json_array()};
    c->n_job++;
    if (esp_background_run(c->s->background, look_around, looked, l, &err) != ESP_OK) {
        c->n_job--;
        esp_api_fail(&c->e, "queue_full", NULL, "%s", err.message);
        json_decref(l->list);
        esp_free(l);
    }
}
