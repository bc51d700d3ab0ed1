/*
 * A ring of turns, oldest out first, and a map from keys to places in it. A turn is put back only where the
 * client's message has the same text, reasoning and calls. Answers without ids have two keys of their own:
 * the hash of the text with that of what stood in front of it, and of the text alone.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/replay.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/chat.h"

#include "serve/replay_store.h"

enum { MAX_KEYS = 34 };

static const char header[] = "<|im_start|>assistant\n", footer[] = "<|im_end|>";

struct kept {
    char *opening;
    json_t *content, *reasoning; /* strings, trimmed */
    json_t *calls;               /* array of {name, arguments} */
    json_t *keys;                /* array of strings */
    uint32_t *ids;               /* [n] */
    size_t n, bytes;
    double created; /* seconds since 1970 */
    int64_t number; /* in the file; 0: it is not there */
};

struct esp_replay {
    pthread_mutex_t lock;
    struct kept *ring;    /* [cap] */
    uint64_t first, next; /* numbers of the oldest and of the one to come */
    uint32_t cap;
    uint64_t max_bytes, bytes, hits;
    json_t *map; /* key to number */
    double ttl;
    struct esp_replay_store *store; /* NULL: memory alone */
};

esp_status esp_replay_open(struct esp_replay **out, uint32_t max_entries, uint64_t max_bytes, double ttl,
                           esp_error *err)
{
    struct esp_replay *r = esp_alloc(sizeof *r);

    if (r) {
        pthread_mutex_init(&r->lock, NULL);
        r->cap = max_entries ? max_entries : 1;
        r->max_bytes = max_bytes;
        r->ttl = ttl;
        r->ring = esp_alloc_array(r->cap, sizeof *r->ring);
        r->map = json_object();
    }
    if (!r || !r->ring || !r->map) {
        esp_replay_close(r);
        return esp_fail(err, ESP_ENOMEM, "no memory to keep %u turns", max_entries);
    }
    *out = r;
    return ESP_OK;
}

static void free_kept(struct kept *k)
{
    json_decref(k->content);
    json_decref(k->reasoning);
    json_decref(k->calls);
    json_decref(k->keys);
    esp_free(k->opening);
    esp_free(k->ids);
    memset(k, 0, sizeof *k);
}

static double clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void drop_oldest(struct esp_replay *r)
{
    struct kept *k = &r->ring[r->first % r->cap];
    size_t i;
    json_t *key;

    json_array_foreach(k->keys, i, key)
    {
        const char *s = json_string_value(key);

        if ((uint64_t)json_integer_value(json_object_get(r->map, s)) == r->first)
            json_object_del(r->map, s);
    }
    r->bytes -= k->bytes;
    if (r->store && k->number)
        esp_replay_store_delete(r->store, k->number);
    free_kept(k);
    r->first++;
}

void esp_replay_close(struct esp_replay *r)
{
    if (!r)
        return;
    esp_replay_store_close(r->store);
    r->store = NULL; /* the file keeps its turns */
    while (r->first < r->next)
        drop_oldest(r);
    json_decref(r->map);
    esp_free(r->ring);
    pthread_mutex_destroy(&r->lock);
    esp_free(r);
}

void esp_replay_count(struct esp_replay *r, struct esp_replay_counts *out)
{
    pthread_mutex_lock(&r->lock);
    *out = (struct esp_replay_counts){r->next - r->first, r->bytes, r->hits};
    pthread_mutex_unlock(&r->lock);
}

/* ---- keeping ---- */

static json_t *trimmed(const char *s, size_t len)
{
    while (len && strchr(" \t\r\n", *s)) {
        s++;
        len--;
    }
    while (len && strchr(" \t\r\n", s[len - 1]))
        len--;
    return esp_text_json(s, len);
}

struct text_keys {
    char at[40], text[40]; /* behind this history; anywhere */
};

static struct text_keys text_keys(const json_t *content, uint64_t history)
{
    const uint64_t h = esp_hash(json_string_value(content), json_string_length(content), 0);
    struct text_keys k;

    snprintf(k.at, sizeof k.at, "at:%016llx:%016llx", (unsigned long long)history, (unsigned long long)h);
    snprintf(k.text, sizeof k.text, "text:%016llx", (unsigned long long)h);
    return k;
}

static json_t *calls_of(const struct esp_choice *c)
{
    json_t *list = json_array();

    for (size_t i = 0; i < c->n_call; i++) {
        json_t *args = NULL;

        if (esp_json_parse(&args, esp_strbuf_str(&c->calls[i].args), c->calls[i].args.len, "arguments", 0,
                           NULL) != ESP_OK)
            args = json_null();
        json_array_append_new(list, json_pack("{s:s,s:o}", "name", c->calls[i].name, "arguments", args));
    }
    return list;
}

/* Whether what was sampled is what was handed out: no stop string cut it, no call is half done. */
static bool is_whole(const struct esp_choice *c)
{
    for (size_t i = 0; i < c->n_call; i++)
        if (!c->calls[i].whole)
            return false;
    return !c->cut && c->tokens.n > 0 && c->job->opening[0] &&
           (c->end == ESP_END_STOP || c->end == ESP_END_CALLS || c->end == ESP_END_LENGTH);
}

/* k, whole, is taken over. */
static void enter(struct esp_replay *r, struct kept *k)
{
    while (r->first < r->next && (r->next - r->first == r->cap || r->bytes + k->bytes > r->max_bytes ||
                                  r->ring[r->first % r->cap].created < clock_now() - r->ttl))
        drop_oldest(r);
    r->ring[r->next % r->cap] = *k;
    r->bytes += k->bytes;
    for (size_t i = 0; i < json_array_size(k->keys); i++)
        json_object_set_new(r->map, json_string_value(json_array_get(k->keys, i)),
                            json_integer((json_int_t)r->next));
    r->next++;
}

static size_t bytes_of(size_t n_ids, const json_t *content, const json_t *reasoning)
{
    enum {
        OVERHEAD = 768
    }; /* the rest of a turn: keys, calls, the map's entries; measured with short ones */

    return n_ids * sizeof(uint32_t) + json_string_length(content) + json_string_length(reasoning) + OVERHEAD;
}

static const struct kept *lookup(const struct esp_replay *r, const char *key)
{
    const json_t *n = key ? json_object_get(r->map, key) : NULL;
    const struct kept *k = n ? &r->ring[(uint64_t)json_integer_value(n) % r->cap] : NULL;

    return k && k->created >= clock_now() - r->ttl ? k : NULL;
}

/* Whether k, which has no keys but its text's, is there already and will be for half of its time yet: the
 * same answer given often to the same takes one place. */
static bool is_known(const struct esp_replay *r, const struct kept *k, const char *at)
{
    const struct kept *old = lookup(r, at);

    return old && old->created > k->created - r->ttl / 2 && old->n == k->n &&
           memcmp(old->ids, k->ids, k->n * sizeof *k->ids) == 0 && strcmp(old->opening, k->opening) == 0 &&
           json_equal(old->content, k->content) && json_equal(old->reasoning, k->reasoning);
}

static void keep(struct esp_replay *r, const struct esp_choice *c, const char *key)
{
    struct kept k = {.created = clock_now()};
    struct text_keys own;

    k.n = c->tokens.n;
    k.content = trimmed(esp_strbuf_str(&c->content), c->content.len);
    k.reasoning = trimmed(esp_strbuf_str(&c->reasoning), c->reasoning.len);
    k.bytes = bytes_of(k.n, k.content, k.reasoning);
    k.calls = calls_of(c);
    k.keys = json_array();
    k.ids = esp_alloc_array(k.n, sizeof *k.ids);
    k.opening = esp_strndup(c->job->opening, strlen(c->job->opening));
    if (!k.ids || !k.opening || k.bytes > r->max_bytes) {
        free_kept(&k);
        return;
    }
    memcpy(k.ids, c->tokens.data, k.n * sizeof *k.ids);
    if (key)
        json_array_append_new(k.keys, json_string(key));
    for (size_t i = 0; i < c->n_call && i < MAX_KEYS - 1; i++)
        json_array_append_new(k.keys, json_string(c->calls[i].id));
    if (c->n_call == 0) {
        own = text_keys(k.content, c->job->history);
        if (!key && is_known(r, &k, own.at)) {
            free_kept(&k);
            return;
        }
        json_array_append_new(k.keys, json_string(own.at));
        json_array_append_new(k.keys, json_string(own.text));
    }
    if (r->store)
        k.number = esp_replay_store_put(r->store, &(struct esp_replay_row){.opening = k.opening,
                                                                           .content = k.content,
                                                                           .reasoning = k.reasoning,
                                                                           .calls = k.calls,
                                                                           .keys = k.keys,
                                                                           .ids = k.ids,
                                                                           .n = k.n,
                                                                           .created = k.created});
    enter(r, &k);
}

void esp_replay_keep(struct esp_replay *r, const struct esp_choice *c, const char *key)
{
    if (!r || !is_whole(c))
        return;
    pthread_mutex_lock(&r->lock);
    keep(r, c, key);
    pthread_mutex_unlock(&r->lock);
}

/* A turn of the file. */
static bool take_row(void *user, int64_t number, const struct esp_replay_row *row)
{
    struct esp_replay *r = user;
    struct kept k = {.n = row->n, .created = row->created, .number = number};

    k.bytes = bytes_of(row->n, row->content, row->reasoning);
    if (k.bytes > r->max_bytes)
        return false;
    k.opening = esp_strndup(row->opening, strlen(row->opening));
    k.ids = esp_alloc_array(k.n, sizeof *k.ids);
    if (!k.opening || !k.ids) {
        free_kept(&k);
        return true; /* it stays in the file */
    }
    memcpy(k.ids, row->ids, k.n * sizeof *k.ids);
    k.content = json_incref((json_t *)row->content);
    k.reasoning = json_incref((json_t *)row->reasoning);
    k.calls = json_incref((json_t *)row->calls);
    k.keys = json_incref((json_t *)row->keys);
    enter(r, &k);
    return true;
}

esp_status esp_replay_persist(struct esp_replay *r, const char *dir, uint64_t tokenizer, esp_error *err)
{
    ESP_TRY(esp_replay_store_open(&r->store, dir, tokenizer, r->ttl, err));
    esp_replay_store_each(r->store, take_row, r);
    return ESP_OK;
}

/* ---- putting back ---- */

static json_t *arguments_of(const json_t *call)
{
    const json_t *f = json_object_get(call, "function"), *args = json_object_get(f ? f : call, "arguments");
    json_t *parsed = NULL;

    if (json_is_string(args) && esp_json_parse(&parsed, json_string_value(args), json_string_length(args),
                                               "arguments", 0, NULL) == ESP_OK)
        return parsed;
    return json_incref((json_t *)args);
}

static int hash_piece(const char *s, size_t n, void *h)
{
    *(uint64_t *)h = esp_hash(s, n, *(uint64_t *)h);
    return 0;
}

static uint64_t hash_json(const json_t *v, uint64_t h)
{
    json_dump_callback(v, hash_piece, &h, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    return h;
}

/* The hash of a talk, one message on: role, text and calls, not the reasoning, which clients may leave out.
 */
static uint64_t hash_message(const json_t *m, uint64_t h)
{
    const json_t *content = json_object_get(m, "content"), *calls = json_object_get(m, "tool_calls");
    json_t *text = json_is_string(content) ? trimmed(json_string_value(content), json_string_length(content))
                                           : json_incref((json_t *)content);
    size_t i;
    json_t *call;

    h = hash_json(json_object_get(m, "role"), h);
    if (text && !json_is_null(text) && (!json_is_string(text) || json_string_length(text)))
        h = hash_json(text, h);
    json_array_foreach(calls, i, call)
    {
        const json_t *f = json_object_get(call, "function");
        json_t *args = arguments_of(call);

        h = hash_json(json_object_get(f ? f : call, "name"), h);
        h = hash_json(args, h);
        json_decref(args);
    }
    json_decref(text);
    return h;
}

static bool same_calls(const json_t *kept, const json_t *calls)
{
    bool same = json_array_size(kept) == json_array_size(calls);

    for (size_t i = 0; same && i < json_array_size(kept); i++) {
        const json_t *call = json_array_get(calls, i), *f = json_object_get(call, "function"),
                     *k = json_array_get(kept, i);
        json_t *args = arguments_of(call);

        same = json_equal(json_object_get(f ? f : call, "name"), json_object_get(k, "name")) &&
               json_equal(args, json_object_get(k, "arguments"));
        json_decref(args);
    }
    return same;
}

static bool same_text(const json_t *kept, const json_t *text)
{
    json_t *t = trimmed(json_is_string(text) ? json_string_value(text) : "", json_string_length(text));
    const bool same = json_equal(kept, t) != 0;

    json_decref(t);
    return same;
}

/* The turn behind a message of the assistant's in this history, if it means the same. stable: whatever became
 * of the reasoning. */
static const struct kept *find(const struct esp_replay *r, const json_t *m, uint64_t history, bool stable)
{
    const json_t *content = json_object_get(m, "content"), *calls = json_object_get(m, "tool_calls");
    const struct kept *k = lookup(r, json_string_value(json_object_get(m, ESP_REPLAY_KEY)));

    if (!k)
        k = lookup(r, json_string_value(json_object_get(json_array_get(calls, 0), "id")));
    if (!k && json_array_size(calls) == 0 && json_is_string(content)) {
        json_t *t = trimmed(json_string_value(content), json_string_length(content));
        struct text_keys own;

        own = text_keys(t, history);
        json_decref(t);
        k = lookup(r, own.at);
        if (!k)
            k = lookup(r, own.text);
    }
    if (!k || !k->ids || !k->opening || !same_text(k->content, content) || !same_calls(k->calls, calls))
        return NULL;
    return stable || same_text(k->reasoning, json_object_get(m, "reasoning_content")) ? k : NULL;
}

/* Whether text[from..from+len) is the template's own. */
static bool trusted(const struct esp_text_spans *s, size_t from, size_t len)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].start <= from && from + len <= s->v[i].end)
            return true;
    return false;
}

/* The template's own mark at or behind from; text.len when there is none. */
static size_t next_mark(const struct esp_replay_input *in, size_t from, const char *mark)
{
    const char *text = esp_strbuf_str(in->text), *at = text + from;

    while ((at = memmem(at, in->text->len - (size_t)(at - text), mark, strlen(mark))) != NULL) {
        if (trusted(in->spans, (size_t)(at - text), strlen(mark)))
            return (size_t)(at - text);
        at++;
    }
    return in->text->len;
}

/* text[from..to) and then tail, which is trusted. */
static esp_status encode(const esp_model *m, const struct esp_replay_input *in, size_t from, size_t to,
                         const char *tail, struct esp_ids *out, esp_error *err)
{
    struct esp_strbuf b;
    struct esp_text_span *v = esp_alloc_array(in->spans->n + 1, sizeof *v);
    struct esp_tok_input t = {.trusted = v};
    esp_status s = ESP_ENOMEM;

    esp_strbuf_init(&b, ESP_LIMIT_TEMPLATE_OUTPUT + 4096);
    for (size_t i = 0; v && i < in->spans->n; i++) {
        const size_t start = in->spans->v[i].start > from ? in->spans->v[i].start : from,
                     end = in->spans->v[i].end < to ? in->spans->v[i].end : to;

        if (start < end)
            v[t.n_trusted++] = (struct esp_text_span){start - from, end - from};
    }
    esp_strbuf_add(&b, esp_strbuf_str(in->text) + from, to - from);
    if (v && *tail) {
        if (t.n_trusted && v[t.n_trusted - 1].end == b.len)
            v[t.n_trusted - 1].end += strlen(tail);
        else
            v[t.n_trusted++] = (struct esp_text_span){b.len, b.len + strlen(tail)};
        esp_strbuf_puts(&b, tail);
    }
    if (v && !b.failed) {
        t.text = esp_strbuf_str(&b);
        t.len = b.len;
        s = esp_model_encode(m, &t, out, err);
    } else {
        esp_fail(err, s, "no memory for the prompt");
    }
    esp_strbuf_free(&b);
    esp_free(v);
    return s;
}

/* A turn's tokens as they were when it was found: the store may change while a long prompt is encoded. */
struct found {
    char *opening;
    uint32_t *ids; /* [n] */
    size_t n;
};

/* False: not known, or no memory, which costs no more than a look-up that fails. */
static bool find_copy(struct esp_replay *r, const json_t *m, uint64_t history, bool stable, struct found *out)
{
    const struct kept *k;

    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&r->lock);
    k = find(r, m, history, stable);
    if (k) {
        out->opening = esp_strndup(k->opening, strlen(k->opening));
        out->ids = esp_alloc_array(k->n, sizeof *out->ids);
        out->n = k->n;
    }
    if (out->ids)
        memcpy(out->ids, k->ids, k->n * sizeof *k->ids);
    pthread_mutex_unlock(&r->lock);
    return out->opening && out->ids;
}

static void free_found(struct found *f)
{
    esp_free(f->opening);
    esp_free(f->ids);
}

struct region {  /* of one turn in the rendered text */
    size_t from; /* text from here on is not encoded yet */
    size_t start, end;
};

/* Put k back for the region; from is then behind it. What does not fit is left to be encoded as text. */
static esp_status put_back(struct esp_replay *r, const esp_model *m, const struct esp_replay_input *in,
                           const struct found *k, struct region *g, struct esp_ids *out, esp_error *err)
{
    const size_t len = strlen(k->opening);
    const bool exact =
        g->end - g->start >= len && memcmp(esp_strbuf_str(in->text) + g->start, k->opening, len) == 0;

    if (!exact && !in->stable)
        return ESP_OK;
    ESP_TRY(encode(m, in, g->from, g->start, k->opening, out, err));
    for (size_t i = 0; i < k->n; i++)
        ESP_TRY(esp_ids_push(out, k->ids[i], err));
    g->from = g->end;
    pthread_mutex_lock(&r->lock);
    r->hits++;
    pthread_mutex_unlock(&r->lock);
    return ESP_OK;
}

bool esp_replay_encode(struct esp_replay *r, const esp_model *m, const struct esp_replay_input *in,
                       struct esp_ids *out, uint64_t *history, esp_error *err)
{
    struct region g = {0};
    size_t at = 0, i;
    json_t *message;
    bool marked = true; /* the template marks turns as this family's do */

    *history = 0;
    json_array_foreach(in->messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        const uint64_t before = *history;
        struct found k = {0};
        esp_status s = ESP_OK;

        *history = hash_message(message, before);
        if (!marked || !role || strcmp(role, "assistant") != 0)
            continue;
        g.start = next_mark(in, at, header);
        marked = g.start < in->text->len;
        if (!marked)
            continue; /* nothing to go by */
        g.start += strlen(header);
        at = g.end = next_mark(in, g.start, footer);
        if (g.end < in->text->len && find_copy(r, message, before, in->stable, &k))
            s = put_back(r, m, in, &k, &g, out, err);
        free_found(&k);
        if (s != ESP_OK)
            return false;
    }
    return encode(m, in, g.from, in->text->len, "", out, err) == ESP_OK;
}
