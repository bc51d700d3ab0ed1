/*
 * Sequence state over the pools. Copy-on-write happens in begin: whatever a pass will write is owned alone
 * before it starts, so a run never fails half-way for want of memory.
 *
 * SPDX-License-Identifier: MIT
 */
#include "state/state.h"

#include <string.h>

#include "base/mem.h"

struct snapshot {
    uint32_t n;    /* positions */
    uint32_t base; /* of them folded */
    uint32_t slot;
};

struct esp_state {
    struct esp_state_pools *pools;
    uint32_t max_positions, max_snapshots;
    uint32_t n, base; /* committed, folded */
    uint32_t slot;    /* ESP_NO_SLOT until the first pass */
    uint32_t *pages;  /* [max_page] */
    uint32_t n_page, max_page;
    struct snapshot *snaps; /* ascending n */
    uint32_t n_snap;
    /* Open pass. */
    bool open;
    enum esp_pass pass;
    uint32_t pass_tok;
    uint32_t slot_next, journal;
};

static uint32_t pages_for(const struct esp_state *s, uint32_t n)
{
    return esp_layout_pages(&s->pools->mem.layout, n);
}

static bool has_delta(const struct esp_state *s)
{
    return s->pools->mem.layout.n_delta > 0;
}

esp_status esp_state_open(struct esp_state **out, struct esp_state_pools *p, uint32_t max_positions,
                          uint32_t max_snapshots, esp_error *err)
{
    struct esp_state *s = esp_alloc(sizeof *s);

    if (!s)
        return esp_fail(err, ESP_ENOMEM, "sequence: out of memory");
    s->pools = p;
    s->max_positions = max_positions;
    s->max_snapshots = max_snapshots;
    s->slot = s->slot_next = ESP_NO_SLOT;
    s->journal = ESP_NO_JOURNAL;
    s->max_page = pages_for(s, max_positions);
    s->pages = esp_alloc_array(s->max_page, sizeof *s->pages);
    s->snaps = esp_alloc_array(max_snapshots, sizeof *s->snaps);
    if (!s->pages || !s->snaps) {
        esp_state_close(s);
        return esp_fail(err, ESP_ENOMEM, "sequence of %u positions: out of memory", max_positions);
    }
    *out = s;
    return ESP_OK;
}

static void drop_pages(struct esp_state *s, uint32_t keep)
{
    while (s->n_page > keep)
        esp_page_release(s->pools, s->pages[--s->n_page]);
}

/* Free what only the open pass held. */
static void end_pass(struct esp_state *s)
{
    if (s->slot_next != ESP_NO_SLOT && s->slot_next != s->slot)
        esp_slot_release(s->pools, s->slot_next);
    if (s->journal != ESP_NO_JOURNAL)
        esp_journal_release(s->pools, s->journal);
    s->slot_next = ESP_NO_SLOT;
    s->journal = ESP_NO_JOURNAL;
    s->open = false;
}

static void reset(struct esp_state *s)
{
    end_pass(s);
    while (s->n_snap)
        esp_slot_release(s->pools, s->snaps[--s->n_snap].slot);
    if (s->slot != ESP_NO_SLOT)
        esp_slot_release(s->pools, s->slot);
    s->slot = ESP_NO_SLOT;
    drop_pages(s, 0);
    s->n = s->base = 0;
}

void esp_state_close(struct esp_state *s)
{
    if (!s)
        return;
    reset(s);
    esp_free(s->pages);
    esp_free(s->snaps);
    esp_free(s);
}

void esp_state_invalidate(struct esp_state *s)
{
    reset(s);
}

uint32_t esp_state_length(const struct esp_state *s)
{
    return s->n;
}

/* Own the live slot alone: a zeroed one at the start, a copy when a snapshot or fork holds it too. */
static esp_status own_slot(struct esp_state *s, esp_error *err)
{
    uint32_t fresh;
    esp_status st;

    if (!has_delta(s))
        return ESP_OK;
    if (s->slot == ESP_NO_SLOT)
        return esp_slot_take(s->pools, &s->slot, true, err);
    if (s->pools->slot_refs[s->slot] == 1)
        return ESP_OK;
    ESP_TRY(esp_slot_take(s->pools, &fresh, false, err));
    st = esp_slot_copy(s->pools, fresh, s->slot, err);
    if (st != ESP_OK) {
        esp_slot_release(s->pools, fresh);
        return st;
    }
    esp_slot_release(s->pools, s->slot);
    s->slot = fresh;
    return ESP_OK;
}

/* First page that a pass may write. */
static uint32_t first_page(const struct esp_state *s)
{
    return esp_layout_page_of(&s->pools->mem.layout,
                              s->n > s->pools->lookback ? s->n - s->pools->lookback : 0);
}

/* Own every page from first_page() on, and have pages up to n + n_tok. */
static esp_status own_pages(struct esp_state *s, uint32_t n_tok, esp_error *err)
{
    uint32_t first = first_page(s), want = pages_for(s, s->n + n_tok);

    for (uint32_t i = first; i < want && i < s->n_page; i++) {
        uint32_t fresh;
        esp_status st;

        if (s->pools->page_refs[s->pages[i]] == 1)
            continue;
        ESP_TRY(esp_page_take(s->pools, &fresh, err));
        st = esp_page_copy(s->pools, fresh, s->pages[i], err);
        if (st != ESP_OK) {
            esp_page_release(s->pools, fresh);
            return st;
        }
        esp_page_release(s->pools, s->pages[i]);
        s->pages[i] = fresh;
    }
    while (s->n_page < want) {
        ESP_TRY(esp_page_take(s->pools, &s->pages[s->n_page], err));
        s->n_page++;
    }
    return ESP_OK;
}

/* First chunk border behind the committed rows. */
static uint32_t next_border(const struct esp_state *s)
{
    return (s->n / ESP_CHUNK + 1) * ESP_CHUNK;
}

static esp_status own_journal(struct esp_state *s, uint32_t n_tok, esp_error *err)
{
    if (!has_delta(s))
        return ESP_OK;
    if (n_tok > s->pools->mem.journal_rows)
        return esp_fail(err, ESP_EINVAL, "a journalled pass of %u tokens, journals hold %u", n_tok,
                        s->pools->mem.journal_rows);
    ESP_TRY(esp_journal_take(s->pools, &s->journal, err));
    if (s->n + n_tok <= next_border(s))
        return ESP_OK;
    return esp_slot_take(s->pools, &s->slot_next, false, err);
}

esp_status esp_state_begin(struct esp_state *s, uint32_t n_tok, enum esp_pass pass, struct esp_batch_seq *out,
                           esp_error *err)
{
    esp_status st;

    if (s->open)
        return esp_fail(err, ESP_ESTATE, "a pass of %u tokens is already open", s->pass_tok);
    if (n_tok == 0)
        return esp_fail(err, ESP_EINVAL, "a pass needs at least one token");
    if (n_tok > s->max_positions - s->n)
        return esp_fail(err, ESP_ENOFIT, "%u tokens after %u: the context holds %u", n_tok, s->n,
                        s->max_positions);
    st = own_pages(s, n_tok, err);
    if (st == ESP_OK)
        st = own_slot(s, err);
    if (st == ESP_OK && pass == ESP_PASS_JOURNAL)
        st = own_journal(s, n_tok, err);
    if (st != ESP_OK) {
        drop_pages(s, pages_for(s, s->n)); /* owned copies stay: they hold the same content */
        end_pass(s);
        return st;
    }
    s->open = true;
    s->pass = pass;
    s->pass_tok = n_tok;
    *out = (struct esp_batch_seq){.n_tok = n_tok,
                                  .n = s->n,
                                  .base = s->base,
                                  .pages = s->pages,
                                  .slot = has_delta(s) ? s->slot : 0,
                                  .journal = s->journal};
    out->slot_next = s->slot_next == ESP_NO_SLOT ? out->slot : s->slot_next;
    return ESP_OK;
}

void esp_state_shorten(struct esp_state *s, uint32_t n_tok, struct esp_batch_seq *pass)
{
    ESP_ASSERT(s->open && s->pass == ESP_PASS_JOURNAL && n_tok > 0 && n_tok <= s->pass_tok);
    s->pass_tok = pass->n_tok = n_tok;
    if (s->slot_next == ESP_NO_SLOT || s->n + n_tok > next_border(s))
        return;
    esp_slot_release(s->pools, s->slot_next);
    s->slot_next = ESP_NO_SLOT;
    pass->slot_next = pass->slot;
}

/* Positions folded after a run of n_tok tokens that all stay. */
static uint32_t base_after(const struct esp_state *s, uint32_t n_tok)
{
    uint32_t end = s->n + n_tok; /* a chunk closes when the first row behind it is computed */

    return n_tok ? (end - 1) / ESP_CHUNK * ESP_CHUNK : s->base;
}

/* The last three pre-convolution rows of [old rows, journal rows 0..n_keep) into slot `to`, for every layer.
 */
static esp_status commit_conv(struct esp_state *s, uint32_t n_keep, uint32_t to, esp_error *err)
{
    const struct esp_pools *m = &s->pools->mem;
    const struct esp_layout *l = &m->layout;
    enum { TAIL = ESP_CONV_TAPS - 1 };

    for (uint32_t i = 0; i < TAIL; i++) {
        const uint32_t row = i + n_keep;
        const size_t own = s->slot * l->slot_bytes + l->conv_off + row * l->conv_row;
        const size_t journal = (size_t)s->journal * l->n_delta * m->journal_rows * l->conv_row;
        const struct esp_span dst = {m->slots, to * l->slot_bytes + l->conv_off + i * l->conv_row,
                                     l->conv_row};
        struct esp_span src = {m->slots, own, l->conv_row};
        size_t stride = l->slot_layer;

        if (row >= TAIL) {
            src = (struct esp_span){m->journals, journal + (row - TAIL) * l->conv_row, l->conv_row};
            stride = (size_t)m->journal_rows * l->conv_row;
        }
        ESP_TRY(s->pools->dev->ops->copy_many(dst, l->slot_layer, src, stride, l->n_delta, err));
    }
    return ESP_OK;
}

static esp_status commit_journal(struct esp_state *s, uint32_t n_keep, esp_error *err)
{
    bool crossed = s->slot_next != ESP_NO_SLOT && s->n + n_keep > next_border(s);
    esp_status st;

    if (!has_delta(s)) {
        s->n += n_keep;
        return ESP_OK;
    }
    st = commit_conv(s, n_keep, crossed ? s->slot_next : s->slot, err);
    if (st != ESP_OK) {
        reset(s);
        return st;
    }
    /* The run itself closed a full chunk of committed rows in place, whatever is kept. */
    if (s->n - s->base == ESP_CHUNK)
        s->base = s->n;
    s->n += n_keep;
    if (crossed) {
        uint32_t old = s->slot;

        s->slot = s->slot_next;
        s->slot_next = old;
        s->base += ESP_CHUNK;
    }
    return ESP_OK;
}

esp_status esp_state_commit(struct esp_state *s, uint32_t n_keep, esp_error *err)
{
    esp_status st = ESP_OK;

    if (!s->open)
        return esp_fail(err, ESP_ESTATE, "no pass is open");
    if (n_keep > s->pass_tok || (s->pass == ESP_PASS_WRITE && n_keep != 0 && n_keep != s->pass_tok))
        return esp_fail(err, ESP_EINVAL, "%u tokens kept of a %s pass of %u", n_keep,
                        s->pass == ESP_PASS_WRITE ? "write-through" : "journalled", s->pass_tok);
    if (s->pass == ESP_PASS_JOURNAL) {
        st = commit_journal(s, n_keep, err);
    } else {
        s->base = base_after(s, n_keep);
        s->n += n_keep;
    }
    end_pass(s);
    drop_pages(s, pages_for(s, s->n));
    return st;
}

bool esp_state_drop_snapshot(struct esp_state *s)
{
    if (s->n_snap == 0)
        return false;
    esp_slot_release(s->pools, s->snaps[0].slot);
    s->n_snap--;
    memmove(s->snaps, s->snaps + 1, s->n_snap * sizeof *s->snaps);
    return true;
}

esp_status esp_state_snapshot(struct esp_state *s, esp_error *err)
{
    if (s->open)
        return esp_fail(err, ESP_ESTATE, "no snapshot while a pass is open");
    if (!has_delta(s) || s->n == 0 || (s->n_snap && s->snaps[s->n_snap - 1].n == s->n))
        return ESP_OK; /* nothing to keep, or kept already */
    if (s->max_snapshots == 0)
        return esp_fail(err, ESP_ENOFIT, "this sequence keeps no snapshots");
    if (s->n_snap == s->max_snapshots)
        esp_state_drop_snapshot(s);
    esp_slot_share(s->pools, s->slot); /* the next pass copies */
    s->snaps[s->n_snap++] = (struct snapshot){.n = s->n, .base = s->base, .slot = s->slot};
    return ESP_OK;
}

esp_status esp_state_rewind(struct esp_state *s, uint32_t len, uint32_t *reached, esp_error *err)
{
    const struct snapshot *best = NULL;

    if (s->open)
        return esp_fail(err, ESP_ESTATE, "no rewind while a pass is open");
    if (len > s->n)
        return esp_fail(err, ESP_EINVAL, "rewind to %u, the sequence has %u positions", len, s->n);
    *reached = len;
    if (len == s->n)
        return ESP_OK;
    if (has_delta(s)) {
        while (s->n_snap && s->snaps[s->n_snap - 1].n > len)
            esp_slot_release(s->pools, s->snaps[--s->n_snap].slot);
        best = s->n_snap ? &s->snaps[s->n_snap - 1] : NULL;
        *reached = best ? best->n : 0;
        esp_slot_release(s->pools, s->slot);
        s->slot = best ? best->slot : ESP_NO_SLOT;
        s->base = best ? best->base : 0;
        if (best)
            esp_slot_share(s->pools, best->slot);
    }
    s->n = *reached;
    drop_pages(s, pages_for(s, s->n));
    return ESP_OK;
}

void esp_state_peek(const struct esp_state *s, struct esp_state_view *out)
{
    ESP_ASSERT(!s->open);
    *out = (struct esp_state_view){
        .n = s->n, .base = s->base, .slot = s->slot, .pages = s->pages, .n_page = s->n_page};
}

esp_status esp_state_adopt(struct esp_state *s, const struct esp_state_view *v, esp_error *err)
{
    if (s->open)
        return esp_fail(err, ESP_ESTATE, "no new content while a pass is open");
    if (v->n > s->max_positions)
        return esp_fail(err, ESP_ENOFIT, "a state of %u positions, the context holds %u", v->n,
                        s->max_positions);
    ESP_ASSERT(v->n_page == pages_for(s, v->n) && (v->slot != ESP_NO_SLOT) == (has_delta(s) && v->n > 0));
    for (uint32_t i = 0; i < v->n_page; i++) /* share first: v may look at s itself */
        esp_page_share(s->pools, v->pages[i]);
    if (v->slot != ESP_NO_SLOT)
        esp_slot_share(s->pools, v->slot);
    reset(s);
    memmove(s->pages, v->pages, v->n_page * sizeof *s->pages);
    s->n_page = v->n_page;
    s->slot = v->slot;
    s->n = v->n;
    s->base = v->base;
    return ESP_OK;
}

void esp_state_need(const struct esp_state *s, uint32_t n_tok, uint32_t *pages, uint32_t *slots)
{
    uint32_t want = pages_for(s, s->n + n_tok);

    *pages = want > s->n_page ? want - s->n_page : 0;
    for (uint32_t i = first_page(s); i < want && i < s->n_page; i++)
        *pages += s->pools->page_refs[s->pages[i]] > 1;
    *slots = has_delta(s) && (s->slot == ESP_NO_SLOT || s->pools->slot_refs[s->slot] > 1);
}

esp_status esp_state_fork(struct esp_state **out, const struct esp_state *s, esp_error *err)
{
    struct esp_state *f;

    if (s->open)
        return esp_fail(err, ESP_ESTATE, "no fork while a pass is open");
    ESP_TRY(esp_state_open(&f, s->pools, s->max_positions, s->max_snapshots, err));
    f->n = s->n;
    f->base = s->base;
    f->slot = s->slot;
    if (f->slot != ESP_NO_SLOT)
        esp_slot_share(f->pools, f->slot);
    for (uint32_t i = 0; i < s->n_page; i++) {
        f->pages[i] = s->pages[i];
        esp_page_share(f->pools, f->pages[i]);
    }
    f->n_page = s->n_page;
    for (uint32_t i = 0; i < s->n_snap; i++) {
        f->snaps[i] = s->snaps[i];
        esp_slot_share(f->pools, f->snaps[i].slot);
    }
    f->n_snap = s->n_snap;
    *out = f;
    return ESP_OK;
}
