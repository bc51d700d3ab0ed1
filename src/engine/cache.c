/*
 * The prefix cache between sequences and the tree: checkpoints are taken at marks, at multiples of a
 * distance, where a text parts from a cached one, before the last prompt token, and when a row leaves. On a
 * CPU a state does not depend on where its text was cut, so any position will do.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

#include "engine/kv.h"
#include "engine/spec.h"

enum {
    JUNCTION_GAP = 64,  /* tokens between a parting and the checkpoint before it that make one worth taking */
    WAIT_GAP = 256,     /* tokens that waiting for another row's checkpoint must save */
    MARK_NEAR_END = 128 /* a mark this close to the prompt's end makes a checkpoint there unnecessary */
};

/* ---- identity ---- */

static uint64_t hash_plane(const uint8_t *plane, size_t bytes, uint64_t h)
{
    enum { PIECE = 4096 };

    h = esp_hash(&bytes, sizeof bytes, h);
    if (!plane || bytes <= 3 * PIECE)
        return plane ? esp_hash(plane, bytes, h) : h;
    h = esp_hash(plane, PIECE, h);
    h = esp_hash(plane + bytes / 2, PIECE, h);
    return esp_hash(plane + bytes - PIECE, PIECE, h);
}

/* Weights by samples: both ends and the middle of every matrix, so that opening a model does not read it all.
 */
static uint64_t fingerprint(const struct esp_net *net)
{
    uint64_t h = esp_hash(&net->n_params, sizeof net->n_params, 0);

    for (uint32_t i = 0; i < net->n_weight; i++) {
        const struct esp_weight *w = net->weights[i];
        uint32_t shape[4] = {(uint32_t)w->format, w->n_out, w->n_in, w->group};

        h = esp_hash(shape, sizeof shape, h);
        h = hash_plane(w->codes, w->n_out * w->row_bytes, h);
        h = hash_plane(w->scales, w->n_out * w->scale_row_bytes, h);
        h = hash_plane(w->biases, w->n_out * w->scale_row_bytes, h);
    }
    return h;
}

void esp_cache_identify(const struct esp_engine *g, struct esp_cache_identity *out)
{
    const struct esp_net *net = g->model->net;
    const esp_engine_opts *o = &g->opts;
    const struct esp_layout *l = &g->pools->mem.layout;
    const struct esp_config_rope *r = &net->config.rope;
    char kv[ESP_KV_NAME], start[32] = "", state[32] = "",
                          rope[48] = ""; /* said when they are not the usual ones */

    esp_kv_describe(l, kv);
    if (l->kv_start)
        snprintf(start, sizeof start, " from %u", l->kv_start);
    if (l->state != ESP_RECURRENT_F32)
        snprintf(state, sizeof state, ", state %s", esp_recurrent_name(l->state));
    if (r->type == ESP_ROPE_YARN)
        snprintf(rope, sizeof rope, ", yarn %.9g of %u", r->factor, r->original_max);
    snprintf(out->about, sizeof out->about,
             "%s, weights %016" PRIx64 ", kv %s%s%s%s, act %s, %s%s, espalier %s",
             esp_arch_name(net->config.arch), fingerprint(net), kv, start, state, rope,
             o->act ? o->act : "auto", g->dev->name, o->spec == ESP_SPEC_MTP ? ", mtp" : "", esp_version());
    out->ns = esp_hash(out->about, strlen(out->about), 0);
}

uint64_t esp_cache_namespace(const struct esp_cache_identity *id, const esp_seq_opts *o, uint64_t adapters)
{
    uint64_t ns = o->cache_salt ? esp_hash(&o->cache_salt, sizeof o->cache_salt, id->ns) : id->ns;

    return adapters ? esp_hash(&adapters, sizeof adapters, ns) : ns;
}

/* ---- opening ---- */

static void spill(void *user, const struct esp_prefix_path *path)
{
    struct esp_cache *c = user;
    esp_error err;

    if (!c->disk)
        return;
    if (esp_disk_save(c->disk, path, &err) == ESP_OK) {
        c->saved++;
        return;
    }
    c->failed++;
    esp_log(ESP_LOG_WARNING, "prefix cache: %s", err.message);
}

static esp_status fill(struct esp_cache *c, struct esp_engine *g, esp_error *err)
{
    const esp_engine_opts *o = &g->opts;
    struct esp_prefix_opts po = {.max_positions = o->context,
                                 .max_checkpoints = o->checkpoints,
                                 .per_path = o->checkpoints_per_path,
                                 .spacing = o->checkpoint_every,
                                 .spill = spill,
                                 .user = c};

    c->id = g->identity;
    c->pages = esp_alloc_array(esp_layout_pages(&g->pools->mem.layout, o->context), sizeof *c->pages);
    if (!c->pages)
        return esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory");
    ESP_TRY(esp_prefix_create(&c->tree, g->pools, &po, err));
    if (o->cache_dir)
        ESP_TRY(esp_disk_open(&c->disk, o->cache_dir, o->cache_disk, &c->id, g->pools, err));
    return ESP_OK;
}

static void destroy(struct esp_cache *c)
{
    esp_prefix_destroy(c->tree);
    esp_disk_close(c->disk);
    esp_free(c->pages);
    esp_free(c);
}

esp_status esp_cache_open(struct esp_engine *g, esp_error *err)
{
    struct esp_cache *c;
    esp_status s;

    if (g->opts.checkpoints == 0)
        return ESP_OK;
    c = esp_alloc(sizeof *c);
    if (!c)
        return esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory");
    s = fill(c, g, err);
    if (s != ESP_OK) {
        destroy(c);
        return s;
    }
    g->cache = c;
    return ESP_OK;
}

bool esp_cache_save_one(struct esp_engine *g)
{
    struct esp_cache *c = g->cache;
    struct esp_prefix_path path;

    if (!c || !c->disk || !esp_prefix_unsaved(c->tree, &path))
        return false;
    spill(c, &path);
    esp_prefix_set_saved(c->tree, path.ns, path.tokens,
                         path.n); /* tried: a broken disk is not tried for ever */
    return true;
}

void esp_cache_close(struct esp_engine *g)
{
    if (!g->cache)
        return;
    while (esp_cache_save_one(g))
        ;
    destroy(g->cache);
    g->cache = NULL;
}

/* ---- lookup ---- */

static bool uses_cache(const struct esp_seq *s)
{
    return s->engine->cache && !s->opts.no_cache;
}

bool esp_cache_take(struct esp_engine *g, uint32_t n_page, uint32_t *pages, uint32_t *slot)
{
    struct esp_state_pools *p = g->pools;

    *slot = ESP_NO_SLOT;
    while (p->n_free_page < n_page)
        if (!esp_cache_evict(g, ESP_PREFIX_PAGE))
            return false;
    while (p->mem.layout.n_delta && p->n_free_slot == 0)
        if (!esp_cache_evict(g, ESP_PREFIX_SLOT))
            return false;
    for (uint32_t i = 0; i < n_page; i++)
        if (esp_page_take(p, &pages[i], NULL) != ESP_OK)
            return false; /* cannot be: counted above */
    return !p->mem.layout.n_delta || esp_slot_take(p, slot, false, NULL) == ESP_OK;
}

/* Bring the checkpoint at n of s's text from its file into the tree. */
static void restore(struct esp_seq *s, uint32_t n)
{
    struct esp_engine *g = s->engine;
    struct esp_cache *c = g->cache;
    struct esp_state_view v = {.n = n, .pages = c->pages};
    esp_status st;
    esp_error err;

    v.n_page = esp_layout_pages(&g->pools->mem.layout, n);
    if (!esp_cache_take(g, v.n_page, c->pages, &v.slot))
        return;
    st = esp_disk_restore(c->disk, s->ns, s->tokens, n,
                          &(struct esp_disk_place){.pages = c->pages, .slot = v.slot, .base = &v.base}, &err);
    if (st == ESP_OK)
        st = esp_prefix_insert(c->tree, s->ns, s->tokens, &v, &err);
    for (uint32_t i = 0; i < v.n_page; i++)
        esp_page_release(g->pools, c->pages[i]);
    if (v.slot != ESP_NO_SLOT)
        esp_slot_release(g->pools, v.slot);
    if (st == ESP_OK) {
        c->restored++;
        esp_prefix_set_saved(c->tree, s->ns, s->tokens, n);
        return;
    }
    c->failed += st != ESP_ENOTFOUND;
    esp_log(ESP_LOG_WARNING, "prefix cache: %s; the text is computed instead", err.message);
}

/* Positions of s's text that may be taken over: one token at least must run. */
static uint32_t limit_of(const struct esp_seq *s)
{
    return s->n_token - 1;
}

esp_status esp_seq_set_pins(struct esp_seq *s, const struct esp_seq_pin *pins, size_t n, esp_error *err)
{
    struct esp_seq_pin *copy;

    if (n > ESP_MAX_PINS)
        return esp_fail(err, ESP_EINVAL, "%zu positions to keep; at most %d are accepted", n, ESP_MAX_PINS);
    copy = esp_alloc_array(n, sizeof *copy);
    if (!copy)
        return esp_fail(err, ESP_ENOMEM, "sequence: out of memory");
    if (n)
        memcpy(copy, pins, n * sizeof *copy);
    esp_free(s->pins);
    s->pins = copy;
    s->n_pin = (uint32_t)n;
    return ESP_OK;
}

/* Those of s's pins in (from, to] have been used or made. */
static void keep_pins(const struct esp_seq *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < s->n_pin; i++)
        if (s->pins[i].at > from && s->pins[i].at <= to)
            esp_prefix_pin(s->engine->cache->tree, s->ns, s->tokens, (uint32_t)s->pins[i].at,
                           esp_engine_now() + s->pins[i].seconds);
}

void esp_cache_lookup(struct esp_seq *s)
{
    struct esp_cache *c = s->engine->cache;
    uint32_t have = esp_state_length(s->state), deepest, reached;
    struct esp_prefix_hit hit;
    esp_error err;

    s->junction = s->cache_match = 0;
    s->cache_file = false;
    if (!uses_cache(s) || limit_of(s) <= have)
        return;
    hit = esp_prefix_find(c->tree, s->ns, s->tokens, s->n_token, limit_of(s));
    deepest = c->disk ? esp_disk_find(c->disk, s->ns, s->tokens, limit_of(s)) : 0;
    if (deepest > hit.n && deepest > have) {
        restore(s, deepest);
        hit = esp_prefix_find(c->tree, s->ns, s->tokens, s->n_token, limit_of(s));
        s->cache_file = hit.n >= deepest;
    }
    s->cache_match = hit.match;
    if (hit.match > hit.n + JUNCTION_GAP && hit.match < limit_of(s))
        s->junction = hit.match;
    if (hit.n > have &&
        esp_prefix_lend(c->tree, s->ns, s->tokens, limit_of(s), s->state, &reached, &err) == ESP_OK) {
        esp_spec_forget(s);
        keep_pins(s, 0, reached);
        c->hits++;
        c->hit_tokens += reached - have;
        if (s->usage.preemptions == 0) /* a row that was put back had its tokens already */
            s->usage.cached_tokens = reached - have;
        return;
    }
    if (have == 0 && hit.match == 0)
        c->miss_new++;
    else if (have == 0)
        c->miss_checkpoint++;
}

bool esp_cache_worth_waiting(const struct esp_seq *s)
{
    struct esp_engine *g = s->engine;
    struct esp_prefix_hit hit;

    if (!uses_cache(s))
        return false;
    hit = esp_prefix_find(g->cache->tree, s->ns, s->tokens, s->n_token, limit_of(s));
    if (hit.n < esp_state_length(s->state))
        hit.n = esp_state_length(s->state);
    for (const struct esp_seq *r = g->seqs; r; r = r->next) {
        uint32_t at, lcp = 0, most = r->n_token < s->n_token ? r->n_token : s->n_token;

        if (!r->active || r->ns != s->ns || !uses_cache(r))
            continue;
        at = esp_state_length(r->state);
        while (lcp < most && r->tokens[lcp] == s->tokens[lcp])
            lcp++;
        for (at = esp_cache_next(r, at); at <= lcp && at <= limit_of(s); at = esp_cache_next(r, at))
            if (at < r->n_token && at > hit.n + WAIT_GAP)
                return true;
    }
    return false;
}

/* ---- checkpoints ---- */

uint32_t esp_cache_next(const struct esp_seq *s, uint32_t at)
{
    uint32_t every = s->engine->opts.checkpoint_every, prompt = (uint32_t)s->usage.prompt_tokens;
    uint32_t next;
    bool near_end = false;

    if (!uses_cache(s))
        return UINT32_MAX;
    next = at / every * every + every;
    if (s->junction > at && s->junction < next)
        next = s->junction;
    for (uint32_t i = 0; i < s->n_mark; i++) {
        if (s->marks[i] > at && s->marks[i] < next)
            next = s->marks[i];
        near_end |= s->marks[i] < prompt && s->marks[i] + MARK_NEAR_END >= prompt;
    }
    if (!near_end && prompt > 1 && prompt - 1 > at && prompt - 1 < next)
        next = prompt - 1; /* the same prompt again, or one that goes on behind it */
    return next;
}

void esp_cache_store(struct esp_seq *s)
{
    struct esp_state_view v;
    esp_error err;

    if (!uses_cache(s) || esp_state_length(s->state) == 0)
        return;
    esp_spec_settle(s, esp_state_length(s->state));
    esp_state_peek(s->state, &v);
    if (esp_prefix_insert(s->engine->cache->tree, s->ns, s->tokens, &v, &err) != ESP_OK)
        esp_log(ESP_LOG_WARNING, "prefix cache: %s", err.message);
    else
        keep_pins(s, v.n - 1, v.n);
}

bool esp_cache_evict(struct esp_engine *g, enum esp_prefix_want what)
{
    return g->cache && esp_prefix_evict(g->cache->tree, what);
}

void esp_cache_stats(const struct esp_engine *g, esp_stats *out)
{
    const struct esp_cache *c = g->cache;
    struct esp_prefix_counts n;

    if (!c)
        return;
    esp_prefix_count(c->tree, &n);
    out->cache_hits = c->hits;
    out->cache_hit_tokens = c->hit_tokens;
    out->cache_miss_new = c->miss_new;
    out->cache_miss_checkpoint = c->miss_checkpoint;
    out->cache_checkpoints = n.checkpoints;
    out->cache_texts = n.leaves;
    out->cache_evictions = n.evictions;
    out->disk_saved = c->saved;
    out->disk_restored = c->restored;
    out->disk_failed = c->failed;
    out->disk_bytes = c->disk ? esp_disk_bytes(c->disk) : 0;
}

esp_status esp_engine_flush(esp_engine *g, esp_error *err)
{
    uint64_t failed = g->cache ? g->cache->failed : 0;

    while (esp_cache_save_one(g))
        ;
    if (g->cache && g->cache->failed > failed)
        return esp_fail(err, ESP_EIO, "%" PRIu64 " cached texts could not be written",
                        g->cache->failed - failed);
    return ESP_OK;
}
