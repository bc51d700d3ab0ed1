/*
 * Saving and loading one sequence, in the same file form as the cache's disk tier: one checkpoint, where the
 * state stands, and behind it the tokens that have not run yet.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include "base/mem.h"

#include "engine/cache.h"
#include "engine/spec.h"

esp_status esp_seq_save(const esp_seq *s, const char *path, esp_error *err)
{
    struct esp_snapshot_key key = {.ns = s->ns, .about = s->engine->identity.about};
    struct esp_state_view v;
    struct esp_prefix_checkpoint c;
    struct esp_prefix_path p;
    uint64_t bytes;

    if (!path)
        return esp_fail(err, ESP_EINVAL, "esp_seq_save needs a path");
    esp_spec_settle(s, esp_state_length(s->state));
    esp_state_peek(s->state, &v);
    c = (struct esp_prefix_checkpoint){.n = v.n, .base = v.base, .slot = v.slot};
    p = (struct esp_prefix_path){.ns = s->ns,
                                 .tokens = s->tokens,
                                 .n = v.n,
                                 .pages = v.pages,
                                 .n_page = v.n_page,
                                 .checkpoints = &c,
                                 .n_checkpoint = v.n > 0};
    return esp_snapshot_write(
        path, s->engine->pools, &key,
        &(struct esp_snapshot_text){.path = &p, .tokens = s->tokens, .n_token = s->n_token}, &bytes, err);
}

/* Read the file's state into pages and a slot taken one by one in pages[*n_page]; what was taken is said even
 * after a failure. */
static esp_status take(struct esp_seq *s, uint32_t want, uint32_t *pages, uint32_t *n_page, uint32_t *slot,
                       esp_error *err)
{
    struct esp_state_pools *p = s->engine->pools;
    bool delta = p->mem.layout.n_delta > 0;

    esp_engine_make_room(s, want, delta);
    for (; *n_page < want; ++*n_page)
        ESP_TRY(esp_page_take(p, &pages[*n_page], err));
    return delta ? esp_slot_take(p, slot, false, err) : ESP_OK;
}

static esp_status adopt_file(struct esp_seq *s, const struct esp_snapshot *f,
                             const struct esp_snapshot_info *info, uint32_t *pages, esp_error *err)
{
    struct esp_state_pools *p = s->engine->pools;
    struct esp_state_view v = {.n = info->n, .slot = ESP_NO_SLOT, .pages = pages};
    uint32_t c = info->n_checkpoint - 1; /* the last one stands at n */
    esp_status st;

    v.base = info->checkpoints[c].base;
    st = take(s, esp_layout_pages(&p->mem.layout, info->n), pages, &v.n_page, &v.slot, err);
    if (st == ESP_OK)
        st = esp_snapshot_fill(f, p, c, pages, v.slot, err);
    if (st == ESP_OK)
        st = esp_state_adopt(s->state, &v, err);
    esp_spec_forget(s);
    for (uint32_t i = 0; i < v.n_page; i++)
        esp_page_release(p, pages[i]);
    if (v.slot != ESP_NO_SLOT)
        esp_slot_release(p, v.slot);
    return st;
}

static esp_status load_into(struct esp_seq *s, const struct esp_snapshot *f, esp_error *err)
{
    struct esp_snapshot_info info;
    uint32_t *pages;
    esp_status st;

    ESP_TRY(esp_snapshot_verify(f, err));
    esp_snapshot_describe(f, &info);
    st = esp_seq_append(s, info.tokens, info.n_token, err);
    if (st != ESP_OK)
        return esp_fail_in(err, st, "state file");
    if (info.n == 0)
        return ESP_OK;
    pages = esp_alloc_array(esp_layout_pages(&s->engine->pools->mem.layout, info.n), sizeof *pages);
    if (!pages)
        return esp_fail(err, ESP_ENOMEM, "sequence: out of memory");
    st = adopt_file(s, f, &info, pages, err);
    esp_free(pages);
    return st;
}

esp_status esp_seq_load(esp_seq **out, esp_engine *g, const char *path, const esp_seq_opts *opts,
                        esp_error *err)
{
    struct esp_snapshot_key key;
    struct esp_snapshot *f;
    struct esp_seq *s = NULL;
    esp_status st;

    if (!out || !g || !path)
        return esp_fail(err, ESP_EINVAL, "esp_seq_load needs a place for the sequence, an engine and a path");
    ESP_TRY(esp_seq_open(&s, g, opts, err));
    key = (struct esp_snapshot_key){.ns = s->ns, .about = g->identity.about};
    st = esp_snapshot_open(&f, path, &g->pools->mem.layout, &key, err);
    if (st == ESP_OK) {
        st = load_into(s, f, err);
        esp_snapshot_close(f);
    }
    if (st != ESP_OK) {
        esp_seq_close(s);
        return st;
    }
    *out = s;
    return ESP_OK;
}
