/*
 * The prefix cache for its administrator: list, warm, save, load, forget; the same by slot. Everything that
 * touches the cache runs on the engine's thread between two steps, asked for by a thread of its own, so that
 * neither the loop nor the rows wait for a disk longer than one text takes.
 *
 * SPDX-License-Identifier: MIT
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/map.h"
#include "base/mem.h"
#include "engine/texts.h"

#include "serve/adapters.h"
#include "serve/background.h"
#include "serve/params.h"
#include "serve/route.h"
#include "serve/slots.h"

enum { MAX_FILENAME = 200 };

enum task_kind {
    TASK_LIST,
    TASK_SAVE,
    TASK_SAVE_ID,
    TASK_LOAD,
    TASK_DROP,
    TASK_DROP_ID,
    TASK_FLUSH,
    TASK_KEEP
};

struct task {
    struct esp_call *c;
    enum task_kind kind;
    int slot;        /* of the request, -1: none */
    uint64_t ns, id; /* of the text */
    struct esp_ids text;
    esp_seq_opts opts; /* TASK_LOAD: adapters */
    char adapter[64];
    double seconds; /* TASK_KEEP */
    char filename[MAX_FILENAME + 1];
    char *path;
    double started;
    /* Results. */
    json_t *entries;
    struct esp_text_file file;
    uint32_t n_dropped;
    bool quarantined, held; /* held: the adapters */
};

static void free_task(struct task *t)
{
    if (t->held)
        esp_mounts_hold(t->c->s, t->opts.adapters, t->opts.n_adapters, -1);
    esp_ids_free(&t->text);
    esp_free(t->path);
    esp_free(t->file.tokens);
    json_decref(t->entries);
    esp_free(t);
}

/* ---- on the engine's thread ---- */

static json_t *entry_json(const struct esp_server *s, const struct esp_text_info *x)
{
    json_t *positions = json_array();
    char id[40], ns[20];

    snprintf(id, sizeof id, "cache_%016" PRIx64, x->id);
    snprintf(ns, sizeof ns, "%016" PRIx64, x->ns);
    for (uint32_t i = 0; i < x->n_checkpoint; i++)
        json_array_append_new(positions, json_integer(x->checkpoints[i]));
    return json_pack("{s:s,s:I,s:I,s:s,s:s,s:o,s:I,s:I,s:b,s:f}", "id", id, "tokens", (json_int_t)x->n,
                     "bytes", (json_int_t)x->bytes, "tier", x->in_memory ? esp_cache_tier(s) : "disk",
                     "namespace", ns, "checkpoints", positions, "last_used",
                     (json_int_t)((double)time(NULL) - x->idle), "hits", (json_int_t)x->hits, "pinned",
                     x->pinned > 0, "pinned_seconds", x->pinned);
}

static void list_one(void *user, const struct esp_text_info *x)
{
    const struct task *t = user;

    json_array_append_new(t->entries, entry_json(t->c->s, x));
}

/* The entry that holds the text of t. */
static void list_match(void *user, const struct esp_text_info *x)
{
    const struct task *t = user;
    const uint32_t n = t->file.n;

    if (x->ns == t->ns && x->in_memory && x->n >= n && json_array_size(t->entries) == 0 &&
        memcmp(x->tokens, t->text.data, n * sizeof *x->tokens) == 0)
        json_array_append_new(t->entries, entry_json(t->c->s, x));
}

static void find_id(void *user, const struct esp_text_info *x)
{
    struct task *t = user;

    if (x->id != t->id || t->ns || !x->in_memory)
        return;
    t->ns = x->ns;
    for (uint32_t i = 0; i < x->n; i++)
        if (esp_ids_push(&t->text, (uint32_t)x->tokens[i], NULL) != ESP_OK)
            t->ns = 0;
}

static esp_status load(struct task *t, esp_engine *g, esp_error *err)
{
    ESP_TRY(esp_texts_namespace(g, &t->opts, &t->ns, err));
    return esp_texts_load(g, t->ns, t->path, &t->file, err);
}

static esp_status save(struct task *t, esp_engine *g, esp_error *err)
{
    if (t->kind == TASK_SAVE_ID) {
        esp_texts_each(g, find_id, t);
        if (!t->ns)
            return esp_fail(err, ESP_ENOTFOUND, "no text of this id is cached in memory");
    }
    return esp_texts_save(g, t->ns, (const esp_token *)t->text.data, (uint32_t)t->text.n, t->path, &t->file,
                          err);
}

static esp_status keep(struct task *t, esp_engine *g, esp_error *err)
{
    t->file.n = esp_texts_pin(g, t->ns, (const esp_token *)t->text.data, (uint32_t)t->text.n, t->seconds);
    if (t->file.n == 0)
        return esp_fail(err, ESP_ENOTFOUND, "the text was not kept: there is no room in the cache");
    esp_texts_each(g, list_match, t);
    return ESP_OK;
}

static esp_status on_engine(void *user, esp_engine *g, esp_error *err)
{
    struct task *t = user;

    switch (t->kind) {
    case TASK_LIST:
        esp_texts_each(g, list_one, t);
        return ESP_OK;
    case TASK_SAVE:
    case TASK_SAVE_ID:
        return save(t, g, err);
    case TASK_LOAD:
        return load(t, g, err);
    case TASK_DROP:
        esp_texts_drop_tokens(g, t->ns, (const esp_token *)t->text.data, (uint32_t)t->text.n, &t->n_dropped);
        return ESP_OK;
    case TASK_DROP_ID:
        return esp_texts_drop(g, t->id) ? ESP_OK
                                        : esp_fail(err, ESP_ENOTFOUND, "no text of this id is cached");
    case TASK_FLUSH:
        return esp_engine_flush(g, err);
    default:
        return keep(t, g, err);
    }
}

/* ---- on a thread of its own ---- */

/* A damaged file is never looked at again: into quarantine/ beside it. */
static bool quarantine(const struct task *t)
{
    char *folder = esp_path_join(t->c->s->o.slot_dir, "quarantine"),
         *to = folder ? esp_path_join(folder, t->filename) : NULL;
    const bool moved = to && (mkdir(folder, 0700) == 0 || errno == EEXIST) && rename(t->path, to) == 0;

    esp_free(folder);
    esp_free(to);
    return moved;
}

static esp_status run_task(void *arg, esp_error *err)
{
    struct task *t = arg;
    const esp_status s = esp_service_call(t->c->s->service, on_engine, t, err);

    if (t->kind == TASK_LOAD && s == ESP_EFORMAT)
        t->quarantined = quarantine(t);
    return s;
}

/* ---- replies ---- */

static json_t *timings(const struct task *t, const char *key)
{
    return json_pack("{s:f}", key, 1000 * (esp_serve_now() - t->started));
}

static void remember(const struct task *t)
{
    struct esp_slot *slot = &t->c->s->slots[t->slot];

    slot->text.n = 0;
    slot->ns = t->ns;
    snprintf(slot->adapter, sizeof slot->adapter, "%s", t->adapter);
    for (uint32_t i = 0; i < t->file.n; i++)
        if (esp_ids_push(&slot->text, (uint32_t)t->file.tokens[i], NULL) != ESP_OK)
            slot->ns = 0;
}

/* What only the loop knows: the adapters that a namespace stands for. */
static void name_adapters(const struct task *t)
{
    size_t i;
    json_t *e;

    json_array_foreach(t->entries, i, e)
    {
        const char *name = json_string_value(
            json_object_get(t->c->s->namespaces, json_string_value(json_object_get(e, "namespace"))));

        json_object_set_new(e, "adapter", name && *name ? json_string(name) : json_null());
    }
}

static json_t *result(const struct task *t)
{
    json_t *v;

    switch (t->kind) {
    case TASK_LIST:
        return json_pack("{s:s,s:O}", "object", "list", "entries", t->entries);
    case TASK_SAVE:
    case TASK_SAVE_ID:
        v = json_pack("{s:s,s:I,s:I,s:I,s:o}", "filename", t->filename, "n_saved", (json_int_t)t->file.n,
                      "n_written", (json_int_t)t->file.bytes, "checkpoints", (json_int_t)t->file.n_checkpoint,
                      "timings", timings(t, "save_ms"));
        break;
    case TASK_LOAD:
        v = json_pack("{s:s,s:I,s:I,s:I,s:o}", "filename", t->filename, "n_restored", (json_int_t)t->file.n,
                      "n_read", (json_int_t)t->file.bytes, "n_reusable", (json_int_t)t->file.n, "timings",
                      timings(t, "restore_ms"));
        break;
    case TASK_DROP:
        v = json_pack("{s:I,s:I}", "n_erased", (json_int_t)t->text.n, "checkpoints",
                      (json_int_t)t->n_dropped);
        break;
    case TASK_KEEP:
        return json_incref(json_array_get(t->entries, 0));
    default:
        return json_pack("{s:b}", "ok", 1);
    }
    if (t->slot >= 0)
        json_object_set_new(v, "id_slot", json_integer(t->slot));
    return v;
}

static void refuse(const struct task *t, esp_status s, const esp_error *err)
{
    static const struct {
        esp_status s;
        const char *code;
    } codes[] = {{ESP_EINVAL, "cache_incompatible"}, {ESP_ENOFIT, "cache_incompatible"},
                 {ESP_ENOTFOUND, "cache_not_found"}, {ESP_EFORMAT, "invalid_value"},
                 {ESP_ESTATE, "unsupported_value"},  {ESP_ECANCELLED, "draining"}};
    const char *code = "internal_error";

    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].s == s)
            code = codes[i].code;
    esp_api_fail(&t->c->e, code, t->filename[0] ? "filename" : NULL, "%s%s%s%s", t->filename,
                 t->filename[0] ? ": " : "", err->message, t->quarantined ? "; moved to quarantine" : "");
}

static void task_done(void *arg, esp_status s, const esp_error *err)
{
    struct task *t = arg;
    struct esp_call *c = t->c;
    esp_error shown = *err;

    if (s == ESP_OK && t->kind == TASK_LOAD && t->slot >= 0 && !c->s->slots[t->slot].choice)
        remember(t);
    if (s == ESP_OK && t->kind == TASK_DROP && t->slot >= 0)
        c->s->slots[t->slot].ns = 0;
    if (s == ESP_OK) {
        name_adapters(t);
        esp_reply_json(c, 200, result(t));
    } else {
        esp_hide_path(&shown, t->path);
        refuse(t, s, &shown);
        esp_reply_error(c);
    }
    free_task(t);
    esp_call_job_ended(c);
}

/* t, filled, is taken over. */
static void start(struct task *t)
{
    struct esp_call *c = t->c;
    esp_error err;

    c->n_job++;
    if (esp_background_run(c->s->background, run_task, task_done, t, &err) == ESP_OK)
        return;
    c->n_job--;
    esp_api_fail(&c->e, "queue_full", NULL, "%s", err.message);
    free_task(t);
}

static struct task *make_task(struct esp_call *c, enum task_kind kind)
{
    struct task *t = esp_alloc(sizeof *t);

    if (!t) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        return NULL;
    }
    t->c = c;
    t->kind = kind;
    t->slot = -1;
    t->started = esp_serve_now();
    t->entries = json_array();
    esp_ids_init(&t->text, 1u << 30);
    return t;
}

/* ---- requests ---- */

/* "filename" of the body: a plain name below --slot-save-path. */
static bool take_filename(struct task *t)
{
    struct esp_call *c = t->c;
    const char *name = NULL;
    struct esp_fields f;

    esp_fields_init(&f, c->body, "", &c->e);
    if (!c->s->o.slot_dir)
        return esp_api_fail(&c->e, "unsupported_value", "filename",
                            "filename: the server has no folder for saved texts (--slot-save-path)");
    if (!esp_field_string(&f, "filename", &name))
        return c->e.http ? false
                         : esp_api_fail(&c->e, "missing_field", "filename",
                                        "filename: missing; a plain file name is needed");
    if (!*name || *name == '.' || strchr(name, '/') || strlen(name) > MAX_FILENAME)
        return esp_api_fail(
            &c->e, "invalid_value", "filename",
            "filename: '%.100s'; 1 to %d bytes without / and without a dot in front are accepted", name,
            MAX_FILENAME);
    snprintf(t->filename, sizeof t->filename, "%s", name);
    t->path = esp_path_join(c->s->o.slot_dir, name);
    return t->path || esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
}

/* Adapters that the text of a file belongs to: those that the body names, as generations do. */
static bool take_adapters(struct task *t)
{
    struct esp_call *c = t->c;
    struct esp_fields f;
    struct esp_gen g;

    esp_fields_init(&f, c->body, "", &c->e);
    esp_gen_init(&g, c->s);
    esp_mounts_read(&f, &g, c->s);
    memcpy(t->opts.adapters, g.adapters, sizeof t->opts.adapters);
    t->opts.n_adapters = g.n_adapter;
    snprintf(t->adapter, sizeof t->adapter, "%s", g.adapter);
    esp_gen_free(&g);
    t->held = true;
    esp_mounts_hold(c->s, t->opts.adapters, t->opts.n_adapters, 1);
    return !c->e.http;
}

static bool parse_id(const char *s, uint64_t *out)
{
    static const char prefix[] = "cache_", digits[] = "0123456789abcdef";

    *out = 0;
    if (!s || strncmp(s, prefix, sizeof prefix - 1) != 0 || strlen(s) != sizeof prefix - 1 + 16)
        return false;
    for (s += sizeof prefix - 1; *s; s++) {
        if (!strchr(digits, *s))
            return false;
        *out = *out << 4 | (uint64_t)(strchr(digits, *s) - digits);
    }
    return true;
}

static void start_if(struct task *t, bool ok)
{
    if (ok)
        start(t);
    else
        free_task(t);
}

void esp_get_cache(struct esp_call *c)
{
    struct task *t = make_task(c, TASK_LIST);

    if (t)
        start(t);
}

void esp_post_cache_flush(struct esp_call *c)
{
    struct task *t = make_task(c, TASK_FLUSH);

    if (t)
        start(t);
}

void esp_delete_cache(struct esp_call *c)
{
    struct task *t = make_task(c, TASK_DROP_ID);

    if (t)
        start_if(t, parse_id(c->params[0], &t->id) ||
                        esp_api_fail(&c->e, "cache_not_found", NULL,
                                     "'%.100s' is not the id of a cached text", c->params[0]));
}

void esp_post_cache_save(struct esp_call *c)
{
    struct task *t = make_task(c, TASK_SAVE_ID);
    const char *id = NULL;
    struct esp_fields f;

    if (!t)
        return;
    esp_fields_init(&f, c->body, "", &c->e);
    if (!esp_field_string(&f, "id", &id) && !c->e.http)
        esp_api_fail(&c->e, "missing_field", "id", "id: missing; that of an entry of GET /cache is needed");
    if (id && !parse_id(id, &t->id))
        esp_api_fail(&c->e, "cache_not_found", "id", "id: '%.100s' is not the id of a cached text", id);
    start_if(t, !c->e.http && take_filename(t));
}

void esp_post_cache_load(struct esp_call *c)
{
    struct task *t = make_task(c, TASK_LOAD);

    if (t)
        start_if(t, take_filename(t) && take_adapters(t));
}

/* ---- slots ---- */

/* The slot of the path, or an error. */
static bool take_slot(struct task *t)
{
    struct esp_call *c = t->c;
    const char *s = c->params[0];
    uint32_t n = 0;

    for (const char *d = s; *d; d++)
        n = *d >= '0' && *d <= '9' && n < 100000 ? n * 10 + (uint32_t)(*d - '0') : UINT32_MAX / 16;
    if (n >= c->s->rows)
        return esp_api_fail(&c->e, "invalid_value", "id", "slot '%.20s'; 0 to %u exist", s, c->s->rows - 1);
    t->slot = (int)n;
    if (c->s->slots[n].choice)
        return esp_api_fail(&c->e, "invalid_value", "id",
                            "slot %u is in use; wait until its answer has ended", n);
    return true;
}

/* The text that ran in it last. */
static bool take_text(struct task *t)
{
    const struct esp_slot *slot = &t->c->s->slots[t->slot];

    if (!slot->ns)
        return esp_api_fail(&t->c->e, "cache_not_found", "id", "slot %d is empty", t->slot);
    t->ns = slot->ns;
    for (size_t i = 0; i < slot->text.n; i++)
        if (esp_ids_push(&t->text, slot->text.data[i], NULL) != ESP_OK)
            return esp_api_fail(&t->c->e, "device_lost", NULL, "no memory for the request");
    return true;
}

void esp_post_slot(struct esp_call *c)
{
    static const char *const words[] = {"save", "restore", "erase"};
    static const enum task_kind kinds[] = {TASK_SAVE, TASK_LOAD, TASK_DROP};
    char action[16] = "";
    struct task *t;
    size_t i = 0;
    bool ok;

    esp_http_query(c->r->head.query, "action", action, sizeof action);
    while (i < 3 && strcmp(words[i], action) != 0)
        i++;
    if (i == 3) {
        esp_api_fail(&c->e, "invalid_value", "action", "action: '%s'; save, restore and erase are accepted",
                     action);
        return;
    }
    if (kinds[i] != TASK_DROP && !esp_call_body(c))
        return;
    t = make_task(c, kinds[i]);
    if (!t)
        return;
    ok = take_slot(t);
    if (kinds[i] == TASK_LOAD)
        ok = ok && take_filename(t) && take_adapters(t);
    else
        ok = ok && take_text(t) && (kinds[i] == TASK_DROP || take_filename(t));
    start_if(t, ok);
}

/* ---- warming ---- */

struct prewarm {
    struct esp_gen gen;
    struct esp_chat_params p;
    double seconds;
};

static void free_prewarm(void *answer)
{
    struct prewarm *a = answer;

    esp_gen_free(&a->gen);
    esp_chat_free(&a->p);
    esp_free(a);
}

/* The prompt has run and is cached: keep it, and say as what. */
static void warmed(struct esp_job *j)
{
    struct esp_call *c = j->call;
    struct task *t;
    bool ok = true;

    if (j->e.http) {
        esp_reply_job_error(j);
        return;
    }
    t = make_task(c, TASK_KEEP);
    if (t) {
        t->ns = j->ns;
        t->seconds = ((const struct prewarm *)c->answer)->seconds;
        for (size_t i = 0; ok && i < j->prompt.n; i++)
            ok = esp_ids_push(&t->text, j->prompt.data[i], NULL) == ESP_OK ||
                 esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        start_if(t, ok);
    }
    if (c->e.http)
        esp_reply_error(c);
}

static const struct esp_sink warming = {.done = warmed};

void esp_post_cache_prewarm(struct esp_call *c)
{
    struct prewarm *a = esp_alloc(sizeof *a);
    struct esp_fields f;

    if (!a) {
        esp_api_fail(&c->e, "device_lost", NULL, "no memory for the request");
        return;
    }
    esp_gen_init(&a->gen, c->s);
    esp_chat_init(&a->p, c->s);
    c->answer = a;
    c->free_answer = free_prewarm;
    esp_fields_init(&f, c->body, "", &c->e);
    esp_chat_read_messages(&f, &a->p, &a->gen, c->s);
    esp_chat_read_thinking(&f, &a->p);
    esp_chat_read_tools(&f, &a->p, &a->gen);
    esp_mounts_read(&f, &a->gen, c->s);
    esp_field_real(&f, "pin_seconds", ESP_FROM, 0, 86400, &a->seconds);
    a->gen.max_tokens = 0;
    a->p.tool_choice = ESP_TOOLS_NONE; /* nothing is generated */
    if (!c->e.http)
        esp_start_chat(&(struct esp_start){.call = c, .gen = &a->gen, .p = &a->p, .sink = &warming});
}
