/*
 * One SQLite table in write-ahead mode: a row is whole or not there, whatever ends the process. Statements
 * are prepared once, since every answer makes two of them.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/replay_store.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"

enum { LOCK_MS = 1000, MAX_TEXT = 256 << 20 };

struct esp_replay_store {
    sqlite3 *db;
    sqlite3_stmt *put, *del;
    int64_t tokenizer;
    double ttl;
};

static const char schema[] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                             "CREATE TABLE IF NOT EXISTS turns(number INTEGER PRIMARY KEY AUTOINCREMENT, "
                             "tokenizer INTEGER, created REAL,"
                             " opening TEXT, content TEXT, reasoning TEXT, calls TEXT, keys TEXT, ids BLOB);"
                             "CREATE INDEX IF NOT EXISTS by_age ON turns(created);";

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool try_open(struct esp_replay_store *s, const char *path)
{
    static const char put[] =
        "INSERT INTO turns(tokenizer, created, opening, content, reasoning, calls, keys, ids)"
        " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                      del[] = "DELETE FROM turns WHERE number = ?1";

    return sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                           NULL) == SQLITE_OK &&
           sqlite3_busy_timeout(s->db, LOCK_MS) == SQLITE_OK &&
           sqlite3_exec(s->db, schema, NULL, NULL, NULL) == SQLITE_OK &&
           sqlite3_prepare_v3(s->db, put, -1, SQLITE_PREPARE_PERSISTENT, &s->put, NULL) == SQLITE_OK &&
           sqlite3_prepare_v3(s->db, del, -1, SQLITE_PREPARE_PERSISTENT, &s->del, NULL) == SQLITE_OK;
}

static void shut(struct esp_replay_store *s)
{
    sqlite3_finalize(s->put);
    sqlite3_finalize(s->del);
    sqlite3_close(s->db);
    s->put = s->del = NULL;
    s->db = NULL;
}

/* A file that is no database, or a broken one: out of the way, for whoever wants to know why. */
static bool put_aside(const char *path)
{
    static const char *const tails[] = {"", "-wal", "-shm"};
    char from[4200], to[4300];

    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof from, "%s%s", path, tails[i]);
        snprintf(to, sizeof to, "%s.damaged%s", path, tails[i]);
        if (rename(from, to) != 0 && i == 0)
            return false; /* the other two need not be there */
    }
    esp_log(ESP_LOG_WARNING, "kept turns: damaged, moved to %s.damaged", path);
    return true;
}

static void drop_old(struct esp_replay_store *s)
{
    sqlite3_stmt *st = NULL;

    if (sqlite3_prepare_v2(s->db, "DELETE FROM turns WHERE created < ?1", -1, &st, NULL) == SQLITE_OK) {
        sqlite3_bind_double(st, 1, now() - s->ttl);
        sqlite3_step(st);
    }
    sqlite3_finalize(st);
}

esp_status esp_replay_store_open(struct esp_replay_store **out, const char *dir, uint64_t tokenizer,
                                 double ttl, esp_error *err)
{
    struct esp_replay_store *s = esp_alloc(sizeof *s);
    char path[4096];
    bool opened;
    int code;

    if (!s)
        return esp_fail(err, ESP_ENOMEM, "kept turns: no memory");
    memcpy(&s->tokenizer, &tokenizer, sizeof s->tokenizer);
    s->ttl = ttl;
    mkdir(dir, 0700); /* when it cannot be made, opening the file says so */
    if (snprintf(path, sizeof path, "%s/replay.sqlite", dir) >= (int)sizeof path) {
        esp_free(s);
        return esp_fail(err, ESP_EIO, "kept turns: %s: the path is too long", dir);
    }
    opened = try_open(s, path);
    code = opened || !s->db ? SQLITE_OK : sqlite3_errcode(s->db);
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
        shut(s);
        opened = put_aside(path) && try_open(s, path);
    }
    if (!opened) {
        esp_fail(err, ESP_EIO, "kept turns: %s: %s", path,
                 s->db ? sqlite3_errmsg(s->db) : "cannot be opened");
        esp_replay_store_close(s);
        return ESP_EIO;
    }
    drop_old(s);
    *out = s;
    return ESP_OK;
}

void esp_replay_store_close(struct esp_replay_store *s)
{
    if (!s)
        return;
    shut(s);
    esp_free(s);
}

static json_t *column_json(sqlite3_stmt *st, int i)
{
    const char *text = (const char *)sqlite3_column_text(st, i);
    json_t *v = NULL;

    if (text && esp_json_parse(&v, text, (size_t)sqlite3_column_bytes(st, i), "kept turn", 0, NULL) != ESP_OK)
        v = NULL;
    return v;
}

/* One row to fn; false: it is of no use. */
static bool tell(sqlite3_stmt *st, esp_replay_row_fn fn, void *user)
{
    json_t *content = column_json(st, 3), *reasoning = column_json(st, 4), *calls = column_json(st, 5),
           *keys = column_json(st, 6);
    const struct esp_replay_row row = {.opening = (const char *)sqlite3_column_text(st, 2),
                                       .content = content,
                                       .reasoning = reasoning,
                                       .calls = calls,
                                       .keys = keys,
                                       .ids = sqlite3_column_blob(st, 7),
                                       .n = (size_t)sqlite3_column_bytes(st, 7) / sizeof(uint32_t),
                                       .created = sqlite3_column_double(st, 1)};
    const bool ok = row.opening && row.ids && row.n && json_is_string(content) && json_is_string(reasoning) &&
                    json_is_array(calls) && json_is_array(keys) &&
                    fn(user, sqlite3_column_int64(st, 0), &row);

    json_decref(content);
    json_decref(reasoning);
    json_decref(calls);
    json_decref(keys);
    return ok;
}

void esp_replay_store_each(struct esp_replay_store *s, esp_replay_row_fn fn, void *user)
{
    static const char sql[] =
        "SELECT number, created, opening, content, reasoning, calls, keys, ids FROM turns"
        " WHERE tokenizer = ?1 ORDER BY number";
    sqlite3_stmt *st = NULL;

    if (sqlite3_prepare_v2(s->db, sql, -1, &st, NULL) == SQLITE_OK) {
        sqlite3_bind_int64(st, 1, s->tokenizer);
        while (sqlite3_step(st) == SQLITE_ROW)
            if (!tell(st, fn, user))
                esp_replay_store_delete(s, sqlite3_column_int64(st, 0));
    }
    sqlite3_finalize(st);
}

static int add_piece(const char *text, size_t n, void *user)
{
    return esp_strbuf_add(user, text, n) ? 0 : -1;
}

int64_t esp_replay_store_put(struct esp_replay_store *s, const struct esp_replay_row *row)
{
    const json_t *parts[4] = {row->content, row->reasoning, row->calls, row->keys};
    struct esp_strbuf text[4];
    int64_t number = 0;
    bool ok = true;

    for (int i = 0; i < 4; i++) {
        esp_strbuf_init(&text[i], MAX_TEXT);
        ok = ok && json_dump_callback(parts[i], add_piece, &text[i],
                                      JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) == 0;
    }
    if (ok) {
        sqlite3_bind_int64(s->put, 1, s->tokenizer);
        sqlite3_bind_double(s->put, 2, row->created);
        sqlite3_bind_text(s->put, 3, row->opening, -1, SQLITE_STATIC);
        for (int i = 0; i < 4; i++)
            sqlite3_bind_text(s->put, 4 + i, esp_strbuf_str(&text[i]), (int)text[i].len, SQLITE_STATIC);
        sqlite3_bind_blob64(s->put, 8, row->ids, row->n * sizeof *row->ids, SQLITE_STATIC);
        if (sqlite3_step(s->put) == SQLITE_DONE)
            number = sqlite3_last_insert_rowid(s->db);
        sqlite3_reset(s->put);
        sqlite3_clear_bindings(s->put);
    }
    for (int i = 0; i < 4; i++)
        esp_strbuf_free(&text[i]);
    return number;
}

void esp_replay_store_delete(struct esp_replay_store *s, int64_t number)
{
    sqlite3_bind_int64(s->del, 1, number);
    sqlite3_step(s->del);
    sqlite3_reset(s->del);
}
