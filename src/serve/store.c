/*
 * One SQLite table. Statements are prepared for each use: a request makes two or three of them.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/store.h"

#include <errno.h>
#include <unistd.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"

enum { MAX_TEXT = 256 << 20, LOCK_MS = 2000 };

struct esp_store {
    sqlite3 *db;
    uint64_t max_bytes;
    double ttl;
};

static esp_status broken(const struct esp_store *s, const char *what, esp_error *err)
{
    return esp_fail(err, ESP_EIO, "stored responses: %s: %s", what,
                    s->db ? sqlite3_errmsg(s->db) : "no memory");
}

static esp_status make_folder(const char *dir, esp_error *err)
{
    struct stat st;

    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return esp_fail(err, ESP_EIO, "--response-dir %s: cannot be made: %s", dir, strerror(errno));
    if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
        return esp_fail(err, ESP_EIO, "--response-dir %s: is a file; a folder is needed", dir);
    if (access(dir, W_OK | X_OK) != 0)
        return esp_fail(err, ESP_EIO, "--response-dir %s: cannot be written: %s", dir, strerror(errno));
    return ESP_OK;
}

esp_status esp_store_open(struct esp_store **out, const char *dir, uint64_t max_bytes, double ttl,
                          esp_error *err)
{
    static const char schema[] =
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
        "CREATE TABLE IF NOT EXISTS responses(id TEXT PRIMARY KEY, created REAL, used REAL, bytes INTEGER,"
        " response TEXT, history TEXT, input TEXT) WITHOUT ROWID;"
        "CREATE INDEX IF NOT EXISTS by_use ON responses(used);";
    struct esp_store *s;
    char path[4096] = ":memory:";
    esp_status status;

    if (dir)
        ESP_TRY(make_folder(dir, err));
    s = esp_alloc(sizeof *s);
    if (!s)
        return esp_fail(err, ESP_ENOMEM, "stored responses: no memory");
    s->max_bytes = max_bytes;
    s->ttl = ttl;
    if (dir)
        snprintf(path, sizeof path, "%s/responses.sqlite", dir);
    if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) == SQLITE_OK &&
        sqlite3_busy_timeout(s->db, LOCK_MS) == SQLITE_OK &&
        sqlite3_exec(s->db, schema, NULL, NULL, NULL) == SQLITE_OK) {
        *out = s;
        return ESP_OK;
    }
    status = broken(s, path, err);
    esp_store_close(s);
    return status;
}

void esp_store_close(struct esp_store *s)
{
    if (!s)
        return;
    sqlite3_close(s->db);
    esp_free(s);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int add_piece(const char *text, size_t n, void *user)
{
    return esp_strbuf_add(user, text, n) ? 0 : -1;
}

static sqlite3_stmt *prepare(const struct esp_store *s, const char *sql)
{
    sqlite3_stmt *st = NULL;

    return sqlite3_prepare_v2(s->db, sql, -1, &st, NULL) == SQLITE_OK ? st : NULL;
}

void esp_store_count(struct esp_store *s, uint64_t *entries, uint64_t *bytes)
{
    sqlite3_stmt *st = prepare(s, "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM responses");

    *entries = *bytes = 0;
    if (st && sqlite3_step(st) == SQLITE_ROW) {
        *entries = (uint64_t)sqlite3_column_int64(st, 0);
        *bytes = (uint64_t)sqlite3_column_int64(st, 1);
    }
    sqlite3_finalize(st);
}

/* Drop what is too old, then the least recently used until room bytes are free. */
static void make_room(struct esp_store *s, uint64_t room)
{
    sqlite3_stmt *st = prepare(s, "DELETE FROM responses WHERE created < ?1");
    uint64_t entries = 0, bytes = 0;

    if (st) {
        sqlite3_bind_double(st, 1, now() - s->ttl);
        sqlite3_step(st);
    }
    sqlite3_finalize(st);
    esp_store_count(s, &entries, &bytes);
    while (entries && bytes + room > s->max_bytes) {
        if (sqlite3_exec(s->db,
                         "DELETE FROM responses WHERE id = (SELECT id FROM responses ORDER BY used LIMIT 1)",
                         NULL, NULL, NULL) != SQLITE_OK)
            return;
        esp_store_count(s, &entries, &bytes);
    }
}

esp_status esp_store_put(struct esp_store *s, const char *id, const json_t *response, const json_t *history,
                         const json_t *input, esp_error *err)
{
    const json_t *parts[3] = {response, history, input};
    struct esp_strbuf text[3];
    sqlite3_stmt *st = NULL;
    uint64_t bytes = 0;
    esp_status status = ESP_OK;

    for (int i = 0; i < 3; i++) {
        esp_strbuf_init(&text[i], MAX_TEXT);
        if (json_dump_callback(parts[i], add_piece, &text[i], JSON_COMPACT | JSON_REAL_PRECISION(15)) != 0)
            status = esp_fail(err, ESP_ENOMEM, "stored responses: no memory for %s", id);
        bytes += text[i].len;
    }
    if (status == ESP_OK && bytes > s->max_bytes)
        status = esp_fail(err, ESP_ENOFIT, "a response of %llu bytes; the store holds %llu",
                          (unsigned long long)bytes, (unsigned long long)s->max_bytes);
    if (status == ESP_OK) {
        make_room(s, bytes);
        st = prepare(s, "INSERT OR REPLACE INTO responses VALUES(?1, ?2, ?2, ?3, ?4, ?5, ?6)");
        if (st) {
            sqlite3_bind_text(st, 1, id, -1, SQLITE_TRANSIENT);
            sqlite3_bind_double(st, 2, now());
            sqlite3_bind_int64(st, 3, (sqlite3_int64)bytes);
            for (int i = 0; i < 3; i++)
                sqlite3_bind_text(st, 4 + i, esp_strbuf_str(&text[i]), (int)text[i].len, SQLITE_TRANSIENT);
        }
        if (!st || sqlite3_step(st) != SQLITE_DONE)
            status = broken(s, "writing", err);
        sqlite3_finalize(st);
    }
    for (int i = 0; i < 3; i++)
        esp_strbuf_free(&text[i]);
    return status;
}

json_t *esp_store_get(struct esp_store *s, const char *id, enum esp_store_part part)
{
    sqlite3_stmt *st = prepare(
                     s, "SELECT response, history, input FROM responses WHERE id = ?1 AND created >= ?2"),
                 *touch = NULL;
    json_t *v = NULL;

    if (!st)
        return NULL;
    sqlite3_bind_text(st, 1, id, -1, SQLITE_TRANSIENT);
    sqlite3_bind_double(st, 2, now() - s->ttl);
    if (sqlite3_step(st) == SQLITE_ROW)
        esp_json_parse(&v, (const char *)sqlite3_column_text(st, (int)part),
                       (size_t)sqlite3_column_bytes(st, (int)part), "stored response", 0, NULL);
    sqlite3_finalize(st);
    touch = v ? prepare(s, "UPDATE responses SET used = ?2 WHERE id = ?1") : NULL;
    if (touch) {
        sqlite3_bind_text(touch, 1, id, -1, SQLITE_TRANSIENT);
        sqlite3_bind_double(touch, 2, now());
        sqlite3_step(touch);
    }
    sqlite3_finalize(touch);
    return v;
}

bool esp_store_delete(struct esp_store *s, const char *id)
{
    sqlite3_stmt *st = prepare(s, "DELETE FROM responses WHERE id = ?1");

    if (!st)
        return false;
    sqlite3_bind_text(st, 1, id, -1, SQLITE_TRANSIENT);
    sqlite3_step(st);
    sqlite3_finalize(st);
    return sqlite3_changes(s->db) > 0;
}
