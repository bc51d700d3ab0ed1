/*
 * See the header. A file is brought in checkpoint by checkpoint, each into pages and a slot of its own; the
 * tree then shares what is equal, so the pages that came twice go at once.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/texts.h"

#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"

#include "engine/cache.h"

static uint64_t id_of(uint64_t ns, const int32_t *tokens, uint32_t n)
{
    return esp_hash(tokens, n * sizeof *tokens, esp_hash(&n, sizeof n, ns));
}

/* ---- listing ---- */

struct listing {
    esp_engine *g;
    esp_text_fn fn;
    void *user;
    uint32_t *positions; /* scratch [n_position] */
    uint32_t n_position;
    double now;
};

static void tell_leaf(void *user, const struct esp_prefix_path *p)
{
    const struct listing *l = user;
    const struct esp_layout *layout = &l->g->pools->mem.layout;
    struct esp_text_info t = {.id = id_of(p->ns, p->tokens, p->n),
                              .ns = p->ns,
                              .tokens = p->tokens,
                              .n = p->n,
                              .checkpoints = l->positions,
                              .n_checkpoint =
                                  p->n_checkpoint < l->n_position ? p->n_checkpoint : l->n_position,
                              .hits = p->hits,
                              .idle = l->now - p->used,
                              .pinned = p->pinned > l->now ? p->pinned - l->now : 0,
                              .in_memory = true,
                              .in_file = p->saved && l->g->cache->disk};

    for (uint32_t i = 0; i < t.n_checkpoint; i++)
        l->positions[i] = p->checkpoints[i].n;
    t.bytes = esp_layout_kv_bytes(layout, p->n) + (uint64_t)p->n_checkpoint * layout->slot_bytes;
    l->fn(l->user, &t);
}

static void tell_file(void *user, const struct esp_disk_text *f)
{
    const struct listing *l = user;
    const struct esp_prefix_hit hit = esp_prefix_find(l->g->cache->tree, f->ns, f->tokens, f->n, f->n);
    const double idle = (double)time(NULL) - (double)f->used;
    const struct esp_text_info t = {.id = id_of(f->ns, f->tokens, f->n),
                                    .ns = f->ns,
                                    .tokens = f->tokens,
                                    .n = f->n,
                                    .bytes = f->bytes,
                                    .checkpoints = f->checkpoints,
                                    .n_checkpoint = f->n_checkpoint,
                                    .idle = idle > 0 ? idle : 0,
                                    .in_file = true};

    if (hit.n != f->n) /* else memory has it, and was told */
        l->fn(l->user, &t);
}

void esp_texts_each(esp_engine *g, esp_text_fn fn, void *user)
{
    struct listing l = {.g = g, .fn = fn, .user = user, .now = esp_engine_now()};

    if (!g->cache)
        return;
    l.n_position = g->opts.checkpoints;
    l.positions = esp_alloc_array(l.n_position, sizeof *l.positions);
    if (!l.positions)
        l.n_position = 0;
    esp_prefix_each(g->cache->tree, tell_leaf, &l);
    if (g->cache->disk)
        esp_disk_each(g->cache->disk, tell_file, &l);
    esp_free(l.positions);
}

esp_status esp_texts_namespace(esp_engine *g, const esp_seq_opts *o, uint64_t *ns, esp_error *err)
{
    struct esp_seq_lora lora;

    ESP_TRY(esp_seq_lora_resolve(g, o, &lora, err));
    *ns = esp_cache_namespace(&g->identity, o, lora.key);
    return ESP_OK;
}

uint32_t esp_texts_pin(esp_engine *g, uint64_t ns, const esp_token *t, uint32_t n, double seconds)
{
    struct esp_prefix_hit hit;

    if (!g->cache)
        return 0;
    hit = esp_prefix_find(g->cache->tree, ns, t, n, n);
    if (hit.n)
        esp_prefix_pin(g->cache->tree, ns, t, hit.n, esp_engine_now() + seconds);
    return hit.n;
}

/* ---- dropping ---- */

struct search {
    uint64_t id;
    struct esp_text_info found; /* n 0: nothing */
    esp_token *tokens;
};

static void match_id(void *user, const struct esp_text_info *t)
{
    struct search *s = user;

    if (t->id != s->id || s->tokens)
        return;
    s->tokens = esp_alloc_array(t->n, sizeof *s->tokens);
    if (!s->tokens)
        return;
    memcpy(s->tokens, t->tokens, t->n * sizeof *t->tokens);
    s->found = *t;
}

bool esp_texts_drop(esp_engine *g, uint64_t id)
{
    struct search s = {.id = id};
    bool any;

    esp_texts_each(g, match_id, &s);
    if (!s.tokens)
        return false;
    any = esp_prefix_drop(g->cache->tree, s.found.ns, s.tokens, s.found.n) > 0;
    if (g->cache->disk)
        any |= esp_disk_drop(g->cache->disk, s.found.ns, s.tokens, s.found.n);
    esp_free(s.tokens);
    return any;
}

void esp_texts_drop_tokens(esp_engine *g, uint64_t ns, const esp_token *t, uint32_t n, uint32_t *n_checkpoint)
{
    struct esp_prefix_hit hit;

    *n_checkpoint = 0;
    if (!g->cache)
        return;
    hit = esp_prefix_find(g->cache->tree, ns, t, n, n);
    if (hit.n == 0)
        return;
    *n_checkpoint = esp_prefix_drop(g->cache->tree, ns, t, hit.n);
    if (g->cache->disk)
        esp_disk_drop(g->cache->disk, ns, t, hit.n);
}

/* ---- files ---- */

esp_status esp_texts_save(esp_engine *g, uint64_t ns, const esp_token *t, uint32_t n, const char *path,
                          struct esp_text_file *out, esp_error *err)
{
    struct esp_snapshot_key key = {.ns = ns, .about = g->identity.about};
    struct esp_prefix_path p;

    memset(out, 0, sizeof *out);
    if (!g->cache || !esp_prefix_path_to(g->cache->tree, ns, t, n, &p))
        return esp_fail(err, ESP_ENOTFOUND, "no checkpoint of this text is cached in memory");
    out->n = p.n;
    out->n_checkpoint = p.n_checkpoint;
    return esp_snapshot_write(path, g->pools, &key,
                              &(struct esp_snapshot_text){.path = &p, .tokens = p.tokens, .n_token = p.n},
                              &out->bytes, err);
}

/* Checkpoint c of f into the tree. */
static esp_status load_one(esp_engine *g, uint64_t ns, const struct esp_snapshot *f,
                           const struct esp_snapshot_info *info, uint32_t c, esp_error *err)
{
    struct esp_state_view v = {
        .n = info->checkpoints[c].n, .base = info->checkpoints[c].base, .pages = g->cache->pages};
    esp_status s;

    v.n_page = esp_layout_pages(&g->pools->mem.layout, v.n);
    if (v.n > g->opts.context || !esp_cache_take(g, v.n_page, g->cache->pages, &v.slot))
        return esp_fail(err, ESP_ENOFIT, "a text of %u tokens: no room in a context of %u, or in memory", v.n,
                        g->opts.context);
    s = esp_snapshot_fill(f, g->pools, c, v.pages, v.slot, err);
    if (s == ESP_OK)
        s = esp_prefix_insert(g->cache->tree, ns, info->tokens, &v, err);
    for (uint32_t i = 0; i < v.n_page; i++)
        esp_page_release(g->pools, v.pages[i]);
    if (v.slot != ESP_NO_SLOT)
        esp_slot_release(g->pools, v.slot);
    return s;
}

static esp_status load_all(esp_engine *g, uint64_t ns, const struct esp_snapshot *f,
                           struct esp_text_file *out, esp_error *err)
{
    struct esp_snapshot_info info;

    ESP_TRY(esp_snapshot_verify(f, err));
    esp_snapshot_describe(f, &info);
    if (info.n_checkpoint == 0)
        return esp_fail(err, ESP_EFORMAT, "a state file without a state");
    for (uint32_t c = 0; c < info.n_checkpoint; c++)
        ESP_TRY(load_one(g, ns, f, &info, c, err));
    out->tokens = esp_alloc_array(info.n, sizeof *out->tokens);
    if (!out->tokens)
        return esp_fail(err, ESP_ENOMEM, "a text of %u tokens: out of memory", info.n);
    memcpy(out->tokens, info.tokens, info.n * sizeof *info.tokens);
    out->n = info.n;
    out->n_checkpoint = info.n_checkpoint;
    out->bytes = info.bytes;
    return ESP_OK;
}

esp_status esp_texts_load(esp_engine *g, uint64_t ns, const char *path, struct esp_text_file *out,
                          esp_error *err)
{
    struct esp_snapshot_key key = {.ns = ns, .about = g->identity.about};
    struct esp_snapshot *f;
    esp_status s;

    memset(out, 0, sizeof *out);
    if (!g->cache)
        return esp_fail(err, ESP_ESTATE, "the engine has no prefix cache");
    ESP_TRY(esp_snapshot_open(&f, path, &g->pools->mem.layout, &key, err));
    s = load_all(g, ns, f, out, err);
    esp_snapshot_close(f);
    return s;
}

void esp_texts_units(const esp_engine *g, struct esp_text_bytes *out)
{
    const struct esp_layout *l = &g->pools->mem.layout;

    *out = (struct esp_text_bytes){.page = l->page_bytes, .slot = l->slot_bytes};
}
