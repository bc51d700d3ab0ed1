/*
 * Model directories. The order of work is: look at the directory, read the config, open files, build one
 * sorted lookup.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "io/checkpoint_index.h"
#include "io/sort.h"

#define EXPECTED "a model directory holds config.json and model.safetensors (or model.safetensors.index.json)"

enum { MAX_SIDE_FILES = 16, MAX_NAME = 256 };

/* ---- tensor sets ---- */

static void set_close(struct esp_tensor_set *s)
{
    for (uint32_t i = 0; i < s->n_file; i++)
        esp_st_close(s->file[i]);
    esp_free(s->file);
    esp_free(s->tensor);
    memset(s, 0, sizeof *s);
}

/* First position whose name is not below name. */
static uint32_t lower_bound(const struct esp_tensor_set *s, const char *name)
{
    uint32_t lo = 0, hi = s->n_tensor;

    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;

        if (strcmp(s->tensor[mid]->name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const struct esp_st_tensor *esp_tensor_set_find(const struct esp_tensor_set *s, const char *name)
{
    const uint32_t i = lower_bound(s, name);

    return i < s->n_tensor && strcmp(s->tensor[i]->name, name) == 0 ? s->tensor[i] : NULL;
}

const struct esp_st_tensor *esp_tensor_set_prefix(const struct esp_tensor_set *s, const char *prefix,
                                                  uint32_t *at)
{
    const uint32_t i = lower_bound(s, prefix);

    if (at)
        *at = i;
    return i < s->n_tensor && strncmp(s->tensor[i]->name, prefix, strlen(prefix)) == 0 ? s->tensor[i] : NULL;
}

const struct esp_st_tensor *esp_checkpoint_find(const struct esp_checkpoint *c, const char *name)
{
    return esp_tensor_set_find(&c->main, name);
}

/* ---- opening files ---- */

static esp_status no_memory(const struct esp_checkpoint *c, esp_error *err)
{
    return esp_fail(err, ESP_ENOMEM, "%s: out of memory", c->dir);
}

static esp_status open_member(struct esp_st_file **out, const struct esp_checkpoint *c, const char *name,
                              esp_error *err)
{
    char *path = esp_path_join(c->dir, name);
    esp_status s;

    if (!path)
        return no_memory(c, err);
    s = c->in_memory ? esp_st_read(out, path, err) : esp_st_open(out, path, err);
    esp_free(path);
    return s;
}

static bool is_file(const struct esp_checkpoint *c, const char *name, esp_status *s, esp_error *err)
{
    char *path = esp_path_join(c->dir, name);
    struct stat st;
    bool found;

    if (!path) {
        *s = no_memory(c, err);
        return false;
    }
    found = stat(path, &st) == 0;
    esp_free(path);
    return found;
}

static int by_name(const void *ctx, uint32_t a, uint32_t b)
{
    const struct esp_st_tensor *const *t = ctx;

    return strcmp(t[a]->name, t[b]->name);
}

/* Put the tensors of all files in order; duplicates across files are refused. */
static esp_status sort_set(struct esp_tensor_set *set, const struct esp_checkpoint *c, esp_error *err)
{
    const struct esp_st_tensor **sorted = esp_alloc_array(set->n_tensor, sizeof *sorted);
    uint32_t *order = esp_sort_new(set->n_tensor, by_name, set->tensor);

    if (!sorted || !order) {
        esp_free(sorted);
        esp_free(order);
        return no_memory(c, err);
    }
    for (uint32_t i = 0; i < set->n_tensor; i++)
        sorted[i] = set->tensor[order[i]];
    esp_free(order);
    esp_free(set->tensor);
    set->tensor = sorted;
    for (uint32_t i = 1; i < set->n_tensor; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return esp_fail(err, ESP_EFORMAT, "%s: duplicate tensor name '%.160s', also in %s",
                            esp_st_name(sorted[i]->file), sorted[i]->name, esp_st_name(sorted[i - 1]->file));
    return ESP_OK;
}

static esp_status collect_all(struct esp_tensor_set *set, const struct esp_checkpoint *c, esp_error *err)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < set->n_file; i++)
        total += esp_st_count(set->file[i]);
    if (total > ESP_LIMIT_TENSORS)
        return esp_fail(err, ESP_EFORMAT, "%s: more than %u tensors", c->dir, ESP_LIMIT_TENSORS);
    set->tensor = esp_alloc_array((size_t)total, sizeof *set->tensor);
    if (!set->tensor)
        return no_memory(c, err);
    for (uint32_t i = 0; i < set->n_file; i++)
        for (uint32_t k = 0; k < esp_st_count(set->file[i]); k++)
            set->tensor[set->n_tensor++] = esp_st_sorted(set->file[i], k);
    return sort_set(set, c, err);
}

static esp_status open_single(struct esp_checkpoint *c, esp_error *err)
{
    c->main.file = esp_alloc_array(1, sizeof *c->main.file);
    if (!c->main.file)
        return no_memory(c, err);
    ESP_TRY(open_member(&c->main.file[0], c, "model.safetensors", err));
    c->main.n_file = 1;
    return collect_all(&c->main, c, err);
}

/* ---- sharded models ---- */

static esp_status take_indexed(struct esp_checkpoint *c, const struct esp_index *x, esp_error *err)
{
    c->main.tensor = esp_alloc_array(x->n_entry, sizeof *c->main.tensor);
    if (!c->main.tensor)
        return no_memory(c, err);
    for (uint32_t i = 0; i < x->n_entry; i++) {
        const struct esp_index_entry *e = &x->entry[i];
        const struct esp_st_tensor *t = esp_st_find(c->main.file[e->shard_id], e->tensor);

        if (!t)
            return esp_fail(err, ESP_EFORMAT,
                            "%s: tensor '%.160s' is placed in %s, which does not contain it", x->name,
                            e->tensor, e->shard);
        c->main.tensor[c->main.n_tensor++] = t;
    }
    return ESP_OK;
}

/* Tensors of a shard that the index does not place there. */
static esp_status check_extra(struct esp_checkpoint *c, const struct esp_index *x, esp_error *err)
{
    const struct esp_st_tensor *first = NULL;
    uint64_t n = 0;

    for (uint32_t i = 0; i < c->main.n_file; i++) {
        for (uint32_t k = 0; k < esp_st_count(c->main.file[i]); k++) {
            const struct esp_st_tensor *t = esp_st_sorted(c->main.file[i], k);
            const struct esp_index_entry *e = esp_index_find(x, t->name);

            if (e && e->shard_id != i)
                return esp_fail(err, ESP_EFORMAT, "%s: duplicate tensor '%.160s': the index places it in %s",
                                esp_st_name(t->file), t->name, e->shard);
            if (!e && n++ == 0)
                first = t;
        }
    }
    if (first)
        esp_warn(&c->warnings,
                 "%s: %llu tensors in the shards are not in the index and are ignored, the first is '%.160s'",
                 x->name, (unsigned long long)n, first->name);
    return ESP_OK;
}

static esp_status open_shards(struct esp_checkpoint *c, const struct esp_index *x, esp_error *err)
{
    c->main.file = esp_alloc_array(x->n_shard, sizeof *c->main.file);
    if (!c->main.file)
        return no_memory(c, err);
    for (uint32_t i = 0; i < x->n_shard; i++) {
        const esp_status s = open_member(&c->main.file[i], c, x->shard[i], err);

        if (s == ESP_ENOTFOUND)
            return esp_fail(err, s, "%s: shard %s, listed in the index, is missing", x->name, x->shard[i]);
        if (s != ESP_OK)
            return s;
        c->main.n_file++;
    }
    ESP_TRY(take_indexed(c, x, err));
    return check_extra(c, x, err);
}

static bool index_lists(const struct esp_index *x, const char *shard)
{
    for (uint32_t i = 0; i < x->n_shard; i++)
        if (strcmp(x->shard[i], shard) == 0)
            return true;
    return false;
}

static esp_status open_main(struct esp_checkpoint *c, struct esp_index *x, esp_error *err)
{
    esp_status s = ESP_OK;
    const bool single = is_file(c, "model.safetensors", &s, err);
    const bool sharded = s == ESP_OK && is_file(c, "model.safetensors.index.json", &s, err);
    char *path;

    if (s != ESP_OK)
        return s;
    if (!sharded)
        return single ? open_single(c, err) : ESP_OK;
    path = esp_path_join(c->dir, "model.safetensors.index.json");
    if (!path)
        return no_memory(c, err);
    s = esp_index_load(x, path, err);
    esp_free(path);
    ESP_TRY(s);
    if (single && !index_lists(x, "model.safetensors"))
        esp_warn(&c->warnings,
                 "%s: the index is used; model.safetensors beside it is not in it and is ignored", c->dir);
    return open_shards(c, x, err);
}

/* ---- side files ---- */

struct side_names {
    char name[MAX_SIDE_FILES][MAX_NAME];
    uint32_t n;
};

static int by_side_name(const void *ctx, uint32_t a, uint32_t b)
{
    const struct side_names *s = ctx;

    return strcmp(s->name[a], s->name[b]);
}

static bool is_side_name(const char *s)
{
    const size_t n = strlen(s), k = strlen(".safetensors");

    return n > k && n < MAX_NAME && strncmp(s, "mtp", 3) == 0 && strcmp(s + n - k, ".safetensors") == 0;
}

static esp_status list_side(struct side_names *out, const struct esp_checkpoint *c, const struct esp_index *x,
                            esp_error *err)
{
    DIR *d = opendir(c->dir);

    if (!d)
        return esp_fail(err, ESP_EIO, "%s: cannot list the directory: %s", c->dir, strerror(errno));
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (!is_side_name(e->d_name) || index_lists(x, e->d_name))
            continue;
        if (out->n == MAX_SIDE_FILES) {
            closedir(d);
            return esp_fail(err, ESP_EFORMAT, "%s: more than %d files mtp*.safetensors", c->dir,
                            MAX_SIDE_FILES);
        }
        memcpy(out->name[out->n++], e->d_name, strlen(e->d_name) + 1);
    }
    closedir(d);
    return ESP_OK;
}

static esp_status open_side(struct esp_checkpoint *c, const struct esp_index *x, esp_error *err)
{
    struct side_names names = {.n = 0};
    esp_status s = ESP_OK;
    uint32_t *order;

    ESP_TRY(list_side(&names, c, x, err));
    if (names.n == 0)
        return ESP_OK;
    order = esp_sort_new(names.n, by_side_name, &names); /* the file system's order means nothing */
    c->side.file = esp_alloc_array(names.n, sizeof *c->side.file);
    if (!order || !c->side.file)
        s = no_memory(c, err);
    for (uint32_t i = 0; i < names.n && s == ESP_OK; i++) {
        s = open_member(&c->side.file[i], c, names.name[order[i]], err);
        c->side.n_file += s == ESP_OK;
    }
    esp_free(order);
    return s == ESP_OK ? collect_all(&c->side, c, err) : s;
}

/* ---- the directory ---- */

static esp_status check_directory(const char *dir, esp_error *err)
{
    struct stat st;

    if (stat(dir, &st) != 0) {
        const int e = errno;

        if (e == ENOENT || e == ENOTDIR)
            return esp_fail(err, ESP_ENOTFOUND, "%s: no such directory; " EXPECTED, dir);
        return esp_fail(err, ESP_EIO, "%s: %s", dir, strerror(e));
    }
    if (!S_ISDIR(st.st_mode))
        return esp_fail(err, ESP_EINVAL, "%s: is a file, not a directory; " EXPECTED, dir);
    return ESP_OK;
}

static esp_status open_all(struct esp_checkpoint *c, bool with_config, esp_error *err)
{
    struct esp_index x = {0};
    esp_status s = ESP_OK;

    if (with_config) {
        if (!is_file(c, "config.json", &s, err))
            return s != ESP_OK ? s
                               : esp_fail(err, ESP_ENOTFOUND, "%s: no config.json in it; " EXPECTED, c->dir);
        ESP_TRY(esp_config_load(&c->config, c->dir, &c->warnings, err));
    }
    s = open_main(c, &x, err);
    if (s == ESP_OK)
        s = open_side(c, &x, err);
    esp_index_free(&x);
    ESP_TRY(s);
    if (c->main.n_file == 0 && (with_config || c->side.n_file == 0))
        return esp_fail(err, ESP_ENOTFOUND, "%s: no safetensors file of a model in it; " EXPECTED, c->dir);
    return ESP_OK;
}

enum { WITH_CONFIG = 1, IN_MEMORY = 2 };

static esp_status open_checkpoint(struct esp_checkpoint **out, const char *dir, unsigned how, esp_error *err)
{
    struct esp_checkpoint *c;
    esp_status s;

    ESP_TRY(check_directory(dir, err));
    c = esp_alloc(sizeof *c);
    if (c)
        c->dir = esp_strndup(dir, strlen(dir));
    if (!c || !c->dir) {
        esp_free(c);
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", dir);
    }
    c->in_memory = how & IN_MEMORY;
    s = open_all(c, how & WITH_CONFIG, err);
    if (s != ESP_OK) {
        esp_checkpoint_close(c);
        return s;
    }
    *out = c;
    return ESP_OK;
}

esp_status esp_checkpoint_open(struct esp_checkpoint **out, const char *dir, esp_error *err)
{
    return open_checkpoint(out, dir, WITH_CONFIG, err);
}

esp_status esp_checkpoint_read(struct esp_checkpoint **out, const char *dir, esp_error *err)
{
    return open_checkpoint(out, dir, WITH_CONFIG | IN_MEMORY, err);
}

esp_status esp_checkpoint_open_tensors(struct esp_checkpoint **out, const char *dir, esp_error *err)
{
    return open_checkpoint(out, dir, 0, err);
}

void esp_checkpoint_close(struct esp_checkpoint *c)
{
    if (!c)
        return;
    set_close(&c->main);
    set_close(&c->side);
    esp_config_free(&c->config);
    esp_warnings_free(&c->warnings);
    esp_free(c->dir);
    esp_free(c);
}
