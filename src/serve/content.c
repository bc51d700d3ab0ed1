/*
 * Records are made on the loop, where the request lies, and go through a list to a thread that writes files.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/content.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

#include "serve/job.h"
#include "serve/keys.h"
#include "serve/route.h"

enum { MAX_WAITING = 64 << 20, MAX_RECORD = 1 << 30, MAX_DEPTH = 200 };

struct record {
    struct record *next;
    char name[200];
    char *text;
    size_t len;
};

struct esp_content {
    int dir;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct record *first, **last;
    size_t waiting; /* bytes */
    uint64_t number, written, lost;
    bool stop, has_thread;
};

/* ---- files ---- */

static bool write_all(int fd, const char *s, size_t len)
{
    while (len) {
        const ssize_t n = write(fd, s, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        s += n;
        len -= (size_t)n;
    }
    return true;
}

/* A file of this name, whole or not at all. */
static bool write_record(const struct esp_content *k, const struct record *r)
{
    const int fd = openat(k->dir, r->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok;

    if (fd < 0)
        return false;
    ok = write_all(fd, r->text, r->len);
    ok = close(fd) == 0 && ok;
    if (!ok)
        unlinkat(k->dir, r->name, 0);
    return ok;
}

static void *run(void *arg)
{
    struct esp_content *k = arg;

    pthread_mutex_lock(&k->lock);
    for (;;) {
        struct record *r;
        bool ok;

        while (!k->first && !k->stop)
            pthread_cond_wait(&k->work, &k->lock);
        r = k->first;
        if (!r)
            break;
        k->first = r->next;
        if (!k->first)
            k->last = &k->first;
        k->waiting -= r->len;
        pthread_mutex_unlock(&k->lock);
        ok = write_record(k, r);
        esp_free(r->text);
        esp_free(r);
        pthread_mutex_lock(&k->lock);
        k->written += ok;
        k->lost += !ok;
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

/* text is taken over. */
static void put(struct esp_content *k, const char *name, char *text)
{
    struct record *r = text ? esp_alloc(sizeof *r) : NULL;
    const size_t len = text ? strlen(text) : 0;

    pthread_mutex_lock(&k->lock);
    if (r && k->waiting + len <= MAX_WAITING) {
        snprintf(r->name, sizeof r->name, "%s", name);
        r->text = text;
        r->len = len;
        *k->last = r;
        k->last = &r->next;
        k->waiting += len;
        pthread_cond_signal(&k->work);
        text = NULL;
        r = NULL;
    } else {
        k->lost++;
    }
    pthread_mutex_unlock(&k->lock);
    esp_free(text);
    esp_free(r);
}

/* ---- records ---- */

static json_t *calls_json(const struct esp_choice *c)
{
    json_t *list = json_array();

    for (size_t i = 0; i < c->n_call; i++)
        json_array_append_new(
            list, json_pack("{s:s,s:s,s:o,s:b}", "id", c->calls[i].id, "name", c->calls[i].name, "arguments",
                            esp_text_json(esp_strbuf_str(&c->calls[i].args), c->calls[i].args.len), "whole",
                            (int)c->calls[i].whole));
    return list;
}

void esp_content_answers(const struct esp_job *j)
{
    if (!j->s->content)
        return;
    if (!j->call->answers)
        j->call->answers = json_array();
    for (uint32_t i = 0; i < j->n; i++) {
        const struct esp_choice *c = &j->choices[i];

        json_array_append_new(j->call->answers,
                              json_pack("{s:i,s:i,s:s,s:I,s:o,s:o,s:o}", "prompt", (int)j->index, "choice",
                                        (int)i, "finish", esp_end_name(c->end), "tokens",
                                        (json_int_t)c->tokens.n, "reasoning",
                                        esp_text_json(esp_strbuf_str(&c->reasoning), c->reasoning.len),
                                        "content", esp_text_json(esp_strbuf_str(&c->content), c->content.len),
                                        "tool_calls", calls_json(c)));
    }
}

static bool is_secret_name(const char *name)
{
    static const char *const names[] = {"api_key", "api-key", "apikey", "x-api-key", "authorization"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(name, names[i]) == 0)
            return true;
    return false;
}

/* s without the key; NULL when it does not contain it. */
static json_t *struck_out(const char *s, size_t len, const char *key)
{
    const size_t n = strlen(key);
    const char *at = memmem(s, len, key, n), *end = s + len;
    struct esp_strbuf b;
    json_t *v;

    if (!at)
        return NULL;
    esp_strbuf_init(&b, MAX_RECORD);
    for (; at; at = memmem(s, (size_t)(end - s), key, n)) {
        esp_strbuf_add(&b, s, (size_t)(at - s));
        esp_strbuf_puts(&b, "[key]");
        s = at + n;
    }
    esp_strbuf_add(&b, s, (size_t)(end - s));
    v = esp_text_json(esp_strbuf_str(&b), b.len);
    esp_strbuf_free(&b);
    return v;
}

/* A copy of v without keys; key may be NULL. */
static json_t *without_keys(const json_t *v, const char *key, int depth)
{
    const char *name;
    json_t *out, *one;
    size_t i;

    if (depth > MAX_DEPTH)
        return json_null();
    if (json_is_string(v) && key) {
        out = struck_out(json_string_value(v), json_string_length(v), key);
        return out ? out : json_incref((json_t *)v);
    }
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach(v, i, one)
        {
            json_array_append_new(out, without_keys(one, key, depth + 1));
        }
        return out;
    }
    if (!json_is_object(v))
        return json_incref((json_t *)v);
    out = json_object();
    json_object_foreach((json_t *)v, name, one)
    {
        if (!is_secret_name(name))
            json_object_set_new(out, name, without_keys(one, key, depth + 1));
    }
    return out;
}

static void stamp(char *out, size_t cap, const char *form)
{
    struct timespec now;
    struct tm tm;
    size_t n;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    n = strftime(out, cap, form, &tm);
    snprintf(out + n, cap - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

void esp_content_call(struct esp_call *c)
{
    struct esp_content *k = c->s->content;
    char key[ESP_KEY_MAX], name[200], day[40], when[40];
    struct esp_strbuf b;
    json_t *line;

    if (!k || !c->body)
        return;
    stamp(when, sizeof when, "%Y-%m-%dT%H:%M:%S");
    stamp(day, sizeof day, "%Y%m%dT%H%M%S");
    snprintf(name, sizeof name, "%s-%llu-%s.json", day, (unsigned long long)++k->number, c->id);
    line = json_pack("{s:s,s:s,s:s,s:i,s:s,s:s,s:o*,s:O*,s:s*}", "time", when, "id", c->id, "route",
                     c->route ? c->route->path : "-", "status", c->status, "client", c->client, "key",
                     c->key_name, "request",
                     without_keys(c->body, esp_keys_text(c->s->keys, c->key, key) ? key : NULL, 0), "answers",
                     c->answers, "finish", c->finish);
    memset(key, 0, sizeof key);
    if (line && c->e.http)
        json_object_set_new(line, "error", esp_api_error_object(&c->e));
    esp_strbuf_init(&b, MAX_RECORD);
    if (line && esp_json_add_exact(&b, line) && esp_strbuf_putc(&b, '\n'))
        put(k, name, esp_strbuf_take(&b));
    else
        put(k, name, NULL);
    esp_strbuf_free(&b);
    json_decref(line);
}

/* ---- life ---- */

void esp_content_count(struct esp_content *k, uint64_t *written, uint64_t *lost)
{
    *written = *lost = 0;
    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    *written = k->written;
    *lost = k->lost;
    pthread_mutex_unlock(&k->lock);
}

static esp_status open_folder(struct esp_content *k, const char *dir, esp_error *err)
{
    int fd;

    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return esp_fail(err, ESP_EIO, "--log-content %s: %s; the folder that it is in must be there", dir,
                        strerror(errno));
    k->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (k->dir < 0)
        return esp_fail(err, ESP_EIO, "--log-content %s: %s; a folder is needed", dir, strerror(errno));
    fd = openat(k->dir, ".espalier-check", O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return esp_fail(err, ESP_EIO, "--log-content %s: no file can be written there: %s", dir,
                        strerror(errno));
    close(fd);
    unlinkat(k->dir, ".espalier-check", 0);
    return ESP_OK;
}

esp_status esp_content_open(struct esp_content **out, const char *dir, esp_error *err)
{
    struct esp_content *k = esp_alloc(sizeof *k);
    esp_status s = ESP_OK;

    if (!k)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    k->dir = -1;
    k->last = &k->first;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->work, NULL);
    s = open_folder(k, dir, err);
    if (s == ESP_OK && pthread_create(&k->thread, NULL, run, k) != 0)
        s = esp_fail(err, ESP_EDEVICE, "a thread cannot be started");
    k->has_thread = s == ESP_OK;
    if (s != ESP_OK) {
        esp_content_close(k);
        return s;
    }
    *out = k;
    return ESP_OK;
}

void esp_content_close(struct esp_content *k)
{
    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    pthread_cond_signal(&k->work);
    pthread_mutex_unlock(&k->lock);
    if (k->has_thread)
        pthread_join(k->thread, NULL);
    if (k->dir >= 0)
        close(k->dir);
    pthread_cond_destroy(&k->work);
    pthread_mutex_destroy(&k->lock);
    esp_free(k);
}
