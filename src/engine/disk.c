/*
 * The cache's tier of files. The files are the database: opening reads their headers and tokens, and nothing
 * else is kept between runs. A name is NAMESPACE-HASH.esp, so the same text always has the same file; what is
 * not named so, or was made with another model, belongs to somebody else and is left alone.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

enum { NAME_LEN = 16 + 1 + 16 + 4 }; /* two numbers, '-', ".esp" */

struct entry {
    uint64_t ns, hash; /* its name */
    int32_t *tokens;   /* [n] */
    uint32_t n;
    uint32_t *checkpoints; /* [n_checkpoint] positions, ascending */
    uint32_t n_checkpoint;
    uint64_t bytes;
    struct timespec used; /* modification time of the file */
};

struct esp_disk {
    char *dir; /* of the namespace */
    uint64_t max_bytes, bytes;
    struct esp_cache_identity id;
    struct esp_state_pools *pools;
    struct entry *entries;
    uint32_t n_entry, cap_entry;
};

static uint64_t hash_text(const int32_t *tokens, uint32_t n)
{
    return esp_hash(tokens, n * sizeof *tokens, n);
}

static char *entry_path(const struct esp_disk *d, const struct entry *e)
{
    char name[NAME_LEN + 1];

    snprintf(name, sizeof name, "%016" PRIx64 "-%016" PRIx64 ".esp", e->ns, e->hash);
    return esp_path_join(d->dir, name);
}

static void clear_entry(struct entry *e)
{
    esp_free(e->tokens);
    esp_free(e->checkpoints);
}

static void forget(struct esp_disk *d, uint32_t i)
{
    d->bytes -= d->entries[i].bytes;
    clear_entry(&d->entries[i]);
    d->entries[i] = d->entries[--d->n_entry];
}

static void remove_file(struct esp_disk *d, uint32_t i)
{
    char *path = entry_path(d, &d->entries[i]);

    if (path)
        unlink(path);
    esp_free(path);
    forget(d, i);
}

static bool older(const struct entry *a, const struct entry *b)
{
    return a->used.tv_sec != b->used.tv_sec ? a->used.tv_sec < b->used.tv_sec
                                            : a->used.tv_nsec < b->used.tv_nsec;
}

static void trim(struct esp_disk *d, uint64_t max_bytes, uint32_t max_files)
{
    while (d->n_entry && (d->bytes > max_bytes || d->n_entry > max_files)) {
        uint32_t oldest = 0;

        for (uint32_t i = 1; i < d->n_entry; i++)
            if (older(&d->entries[i], &d->entries[oldest]))
                oldest = i;
        remove_file(d, oldest);
    }
}

/* Into quarantine/: never used again, kept for whoever wants to know why. */
static void quarantine(const struct esp_disk *d, const char *path)
{
    char *folder = esp_path_join(d->dir, "quarantine");
    const char *slash = strrchr(path, '/');
    char *to = folder && slash ? esp_path_join(folder, slash + 1) : NULL;

    if (to && (mkdir(folder, 0700) == 0 || errno == EEXIST) && rename(path, to) == 0)
        esp_log(ESP_LOG_WARNING, "prefix cache: moved to %s", to);
    esp_free(folder);
    esp_free(to);
}

/* Room for one more entry. */
static bool grow(struct esp_disk *d)
{
    uint32_t cap = d->cap_entry ? d->cap_entry * 2 : 64;
    struct entry *more;

    if (d->n_entry < d->cap_entry)
        return true;
    more = esp_realloc(d->entries, cap * sizeof *more);
    if (!more)
        return false;
    d->entries = more;
    d->cap_entry = cap;
    return true;
}

/* Remember a text; tokens and positions are copied. */
static bool add_entry(struct esp_disk *d, struct entry e, const int32_t *tokens,
                      const struct esp_prefix_checkpoint *checkpoints)
{
    e.tokens = esp_alloc_array(e.n, sizeof *e.tokens);
    e.checkpoints = esp_alloc_array(e.n_checkpoint, sizeof *e.checkpoints);
    if (!e.tokens || !e.checkpoints || !grow(d)) {
        clear_entry(&e);
        return false;
    }
    memcpy(e.tokens, tokens, e.n * sizeof *tokens);
    for (uint32_t i = 0; i < e.n_checkpoint; i++)
        e.checkpoints[i] = checkpoints[i].n;
    d->entries[d->n_entry++] = e;
    d->bytes += e.bytes;
    return true;
}

static bool parse_hex16(const char *s, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef", *at = s[i] ? strchr(digits, s[i]) : NULL;

        if (!at)
            return false;
        *out = *out << 4 | (uint64_t)(at - digits);
    }
    return true;
}

static esp_status open_entry(const struct esp_disk *d, const struct entry *e, struct esp_snapshot **out,
                             esp_error *err)
{
    struct esp_snapshot_key key = {.ns = e->ns, .about = d->id.about};
    char *path = entry_path(d, e);
    esp_status s;

    if (!path)
        return esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory");
    s = esp_snapshot_open(out, path, &d->pools->mem.layout, &key, err);
    if (s == ESP_EFORMAT)
        quarantine(d, path);
    esp_free(path);
    return s;
}

static void scan_file(struct esp_disk *d, const char *name)
{
    struct entry e = {0};
    struct esp_snapshot *f;
    struct esp_snapshot_info info;
    struct stat st;
    char *path;
    esp_error err;

    if (strlen(name) != NAME_LEN || name[16] != '-' || strcmp(name + 33, ".esp") != 0 ||
        !parse_hex16(name, &e.ns) || !parse_hex16(name + 17, &e.hash))
        return;
    path = esp_path_join(d->dir, name);
    if (path && stat(path, &st) == 0) {
        e.used = st.st_mtim;
        if (open_entry(d, &e, &f, &err) != ESP_OK) {
            esp_log(ESP_LOG_WARNING, "prefix cache: %s", err.message);
        } else {
            esp_snapshot_describe(f, &info);
            e.n = info.n;
            e.n_checkpoint = info.n_checkpoint;
            e.bytes = info.bytes;
            if (info.n && hash_text(info.tokens, info.n) == e.hash)
                add_entry(d, e, info.tokens, info.checkpoints);
            esp_snapshot_close(f);
        }
    }
    esp_free(path);
}

static esp_status scan(struct esp_disk *d, esp_error *err)
{
    DIR *dir = opendir(d->dir);

    if (!dir)
        return esp_fail(err, ESP_EIO, "%s: cannot be read: %s", d->dir, strerror(errno));
    for (const struct dirent *f = readdir(dir); f; f = readdir(dir)) {
        size_t len = strlen(f->d_name);
        char *path;

        if (len > 4 && strcmp(f->d_name + len - 4, ".tmp") == 0) { /* of a run that ended while writing */
            path = esp_path_join(d->dir, f->d_name);
            if (path)
                unlink(path);
            esp_free(path);
        } else if (d->n_entry < ESP_LIMIT_CACHE_FILES) {
            scan_file(d, f->d_name);
        }
    }
    closedir(dir);
    return ESP_OK;
}

static esp_status make_folder(const char *path, esp_error *err)
{
    struct stat st;

    if (mkdir(path, 0700) == 0)
        return ESP_OK;
    if (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return ESP_OK;
    return esp_fail(err, ESP_EIO, "cache_dir %s: cannot be made: %s", path,
                    strerror(errno == EEXIST ? ENOTDIR : errno));
}

esp_status esp_disk_open(struct esp_disk **out, const char *dir, uint64_t max_bytes,
                         const struct esp_cache_identity *id, struct esp_state_pools *pools, esp_error *err)
{
    struct esp_disk *d = esp_alloc(sizeof *d);
    char name[17];
    esp_status s;

    if (!d)
        return esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory");
    d->id = *id;
    d->max_bytes = max_bytes;
    d->pools = pools;
    snprintf(name, sizeof name, "%016" PRIx64, id->ns);
    d->dir = esp_path_join(dir, name);
    s = d->dir ? make_folder(dir, err) : esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory");
    if (s == ESP_OK)
        s = make_folder(d->dir, err);
    if (s == ESP_OK)
        s = scan(d, err);
    if (s != ESP_OK) {
        esp_disk_close(d);
        return s;
    }
    trim(d, max_bytes, ESP_LIMIT_CACHE_FILES);
    *out = d;
    return ESP_OK;
}

void esp_disk_close(struct esp_disk *d)
{
    if (!d)
        return;
    for (uint32_t i = 0; i < d->n_entry; i++)
        clear_entry(&d->entries[i]);
    esp_free(d->entries);
    esp_free(d->dir);
    esp_free(d);
}

uint64_t esp_disk_bytes(const struct esp_disk *d)
{
    return d->bytes;
}

/* Whether the file of e has nothing that a file of path would not have. */
static bool contained(const struct entry *e, const struct esp_prefix_path *path)
{
    uint32_t j = 0;

    if (e->ns != path->ns || e->n > path->n || memcmp(e->tokens, path->tokens, e->n * sizeof *e->tokens) != 0)
        return false;
    for (uint32_t i = 0; i < e->n_checkpoint; i++) {
        while (j < path->n_checkpoint && path->checkpoints[j].n < e->checkpoints[i])
            j++;
        if (j == path->n_checkpoint || path->checkpoints[j].n != e->checkpoints[i])
            return false;
    }
    return true;
}

/* What a file of path will take, nearly: enough to make room before it is written. */
static uint64_t estimate(const struct esp_disk *d, const struct esp_prefix_path *path)
{
    const struct esp_layout *l = &d->pools->mem.layout;

    return esp_layout_kv_bytes(l, path->n) + (uint64_t)path->n * sizeof(int32_t) +
           (uint64_t)path->n_checkpoint * l->slot_bytes;
}

esp_status esp_disk_save(struct esp_disk *d, const struct esp_prefix_path *path, esp_error *err)
{
    struct esp_snapshot_key key = {.ns = path->ns, .about = d->id.about};
    struct esp_snapshot_text text = {.path = path, .tokens = path->tokens, .n_token = path->n};
    struct entry e = {.ns = path->ns,
                      .hash = hash_text(path->tokens, path->n),
                      .n = path->n,
                      .n_checkpoint = path->n_checkpoint};
    uint64_t need = estimate(d, path);
    char *name;
    esp_status s;

    if (need > d->max_bytes)
        return esp_fail(err, ESP_ENOFIT, "a text of %" PRIu64 " bytes; the files may take %" PRIu64, need,
                        d->max_bytes);
    trim(d, d->max_bytes - need, ESP_LIMIT_CACHE_FILES - 1);
    name = entry_path(d, &e);
    if (!name)
        return esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory");
    s = esp_snapshot_write(name, d->pools, &key, &text, &e.bytes, err);
    esp_free(name);
    ESP_TRY(s);
    clock_gettime(CLOCK_REALTIME, &e.used);
    for (uint32_t i = d->n_entry; i-- > 0;) {
        if (d->entries[i].ns == e.ns && d->entries[i].hash == e.hash)
            forget(d, i); /* written over */
        else if (contained(&d->entries[i], path))
            remove_file(d, i);
    }
    if (!add_entry(d, e, path->tokens, path->checkpoints))
        return esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory"); /* the next start finds the file */
    trim(d, d->max_bytes, ESP_LIMIT_CACHE_FILES);
    return ESP_OK;
}

/* The entry with the deepest checkpoint at or before limit on this text; *n is its position. */
static uint32_t search(const struct esp_disk *d, uint64_t ns, const int32_t *tokens, uint32_t limit,
                       uint32_t *n)
{
    uint32_t best = UINT32_MAX;

    *n = 0;
    for (uint32_t i = 0; i < d->n_entry; i++) {
        const struct entry *e = &d->entries[i];
        uint32_t most = e->n < limit ? e->n : limit, m = 0;

        if (e->ns != ns)
            continue;
        while (m < most && e->tokens[m] == tokens[m])
            m++;
        for (uint32_t j = e->n_checkpoint; j-- > 0;)
            if (e->checkpoints[j] <= m && e->checkpoints[j] > *n) {
                *n = e->checkpoints[j];
                best = i;
                break;
            }
    }
    return best;
}

uint32_t esp_disk_find(const struct esp_disk *d, uint64_t ns, const int32_t *tokens, uint32_t limit)
{
    uint32_t n;

    search(d, ns, tokens, limit, &n);
    return n;
}

static void touch(const struct esp_disk *d, struct entry *e)
{
    char *path = entry_path(d, e);

    clock_gettime(CLOCK_REALTIME, &e->used);
    if (path)
        utimensat(AT_FDCWD, path, NULL, 0);
    esp_free(path);
}

static esp_status read_checkpoint(struct esp_disk *d, const struct entry *e, const struct esp_snapshot *f,
                                  uint32_t n, const struct esp_disk_place *to, esp_error *err)
{
    struct esp_snapshot_info info;
    uint32_t c = 0;
    esp_status s = esp_snapshot_verify(f, err);

    if (s != ESP_OK) {
        char *path = entry_path(d, e);

        if (path)
            quarantine(d, path);
        esp_free(path);
        return s;
    }
    esp_snapshot_describe(f, &info);
    while (c < info.n_checkpoint && info.checkpoints[c].n != n)
        c++;
    if (c == info.n_checkpoint || info.n < n || memcmp(info.tokens, e->tokens, n * sizeof *e->tokens) != 0)
        return esp_fail(err, ESP_EFORMAT, "the file of a cached text changed while it was in use");
    *to->base = info.checkpoints[c].base;
    return esp_snapshot_fill(f, d->pools, c, to->pages, to->slot, err);
}

esp_status esp_disk_restore(struct esp_disk *d, uint64_t ns, const int32_t *tokens, uint32_t at,
                            const struct esp_disk_place *to, esp_error *err)
{
    struct esp_snapshot *f = NULL;
    uint32_t n, i = search(d, ns, tokens, at, &n);
    esp_status s;

    if (i == UINT32_MAX || n != at) /* making room may have written a file, and that removed this one */
        return esp_fail(err, ESP_ENOTFOUND, "no file has a checkpoint at %u of this text any more", at);
    s = open_entry(d, &d->entries[i], &f, err);
    if (s == ESP_OK)
        s = read_checkpoint(d, &d->entries[i], f, n, to, err);
    esp_snapshot_close(f);
    if (s == ESP_OK)
        touch(d, &d->entries[i]);
    else if (s != ESP_ENOMEM)
        forget(d, i);
    return s;
}

void esp_disk_each(const struct esp_disk *d, void (*fn)(void *user, const struct esp_disk_text *), void *user)
{
    for (uint32_t i = 0; i < d->n_entry; i++) {
        const struct entry *e = &d->entries[i];
        const struct esp_disk_text t = {.ns = e->ns,
                                        .tokens = e->tokens,
                                        .n = e->n,
                                        .checkpoints = e->checkpoints,
                                        .n_checkpoint = e->n_checkpoint,
                                        .bytes = e->bytes,
                                        .used = (int64_t)e->used.tv_sec};

        fn(user, &t);
    }
}

bool esp_disk_drop(struct esp_disk *d, uint64_t ns, const int32_t *tokens, uint32_t n)
{
    const uint64_t hash = hash_text(tokens, n);

    for (uint32_t i = 0; i < d->n_entry; i++)
        if (d->entries[i].ns == ns && d->entries[i].hash == hash && d->entries[i].n == n) {
            remove_file(d, i);
            return true;
        }
    return false;
}
