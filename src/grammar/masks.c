/*
 * Making and keeping the masks of states. Large ones take a walk over most of the vocabulary, milliseconds;
 * before that a new state is compared with the last large ones: the states of a counted repetition (a string
 * of at most 1,000 characters) differ only near their end, and all others share one mask.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/masks.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum {
    MAX_BYTES = 16 << 20, /* of masks of one grammar: 500 large ones of 248,320 ids */
    LOCAL_SETS = 1 << 16, /* while one mask is made */
    KEEP_SPACE = 4 << 20, /* bytes of the space kept between makings */
    ALIKE_PAIRS = 8192    /* pairs of states looked at by one comparison */
};

esp_status esp_masks_init(struct esp_masks *m, const struct esp_auto *a, const struct esp_vocab *v,
                          esp_error *err)
{
    memset(m, 0, sizeof *m);
    m->a = a;
    m->v = v;
    m->newest = m->oldest = m->spare = ESP_IR_NONE;
    m->max_bytes = MAX_BYTES;
    m->of_state = esp_alloc_array(a->n_state, sizeof *m->of_state);
    m->path = esp_alloc_array((size_t)v->max_depth + 1, sizeof *m->path);
    m->bits = esp_alloc_array(v->n_word, sizeof *m->bits);
    if (!m->of_state || !m->path || !m->bits)
        return esp_fail(err, ESP_ENOMEM, "out of memory for a grammar's masks");
    return esp_space_init(&m->space, a, LOCAL_SETS, err);
}

static void unref(struct esp_masks *m, struct esp_state_mask *k)
{
    if (!k || --k->n_ref)
        return;
    m->bytes -= k->bytes;
    esp_free(k->id);
    esp_free(k->bits);
    esp_free(k->escape);
    esp_free(k);
}

void esp_masks_free(struct esp_masks *m)
{
    for (uint32_t i = 0; i < m->n_entry; i++)
        unref(m, m->entry[i].mask);
    esp_free(m->entry);
    esp_free(m->of_state);
    esp_free(m->path);
    esp_free(m->bits);
    esp_space_free(&m->space);
}

static void unlink_entry(struct esp_masks *m, uint32_t i)
{
    struct esp_mask_entry *e = &m->entry[i];

    if (e->newer == ESP_IR_NONE)
        m->newest = e->older;
    else
        m->entry[e->newer].older = e->older;
    if (e->older == ESP_IR_NONE)
        m->oldest = e->newer;
    else
        m->entry[e->older].newer = e->newer;
}

static void link_newest(struct esp_masks *m, uint32_t i)
{
    m->entry[i].newer = ESP_IR_NONE;
    m->entry[i].older = m->newest;
    if (m->newest != ESP_IR_NONE)
        m->entry[m->newest].newer = i;
    m->newest = i;
    if (m->oldest == ESP_IR_NONE)
        m->oldest = i;
}

static void evict_oldest(struct esp_masks *m)
{
    const uint32_t i = m->oldest;

    unlink_entry(m, i);
    unref(m, m->entry[i].mask);
    m->of_state[m->entry[i].state] = 0;
    m->entry[i].mask = NULL;
    m->entry[i].newer = m->spare;
    m->spare = i;
}

/* Keep k for state, which takes over the reference. */
static bool keep(struct esp_masks *m, uint32_t state, struct esp_state_mask *k)
{
    uint32_t i;

    while (m->bytes > m->max_bytes && m->oldest != ESP_IR_NONE)
        evict_oldest(m);
    i = m->spare;
    if (i != ESP_IR_NONE) {
        m->spare = m->entry[i].newer;
    } else {
        if (!esp_auto_grow(&m->entry, &m->cap_entry, m->n_entry, 1, sizeof *m->entry))
            return false;
        i = m->n_entry++;
    }
    m->entry[i].mask = k;
    m->entry[i].state = state;
    m->of_state[state] = i + 1;
    link_newest(m, i);
    return true;
}

/* ---- comparing states ---- */

struct pairs {
    struct pair {
        uint32_t x, y, depth;
    } * p;
    uint32_t *slot; /* [4 * ALIKE_PAIRS] */
    uint32_t n;
};

static bool add_pair(struct pairs *t, uint32_t x, uint32_t y, uint32_t depth)
{
    uint64_t h = esp_hash_u64((uint64_t)x << 32 | y);

    if (x == y)
        return true;
    for (;; h++) {
        const uint32_t i = t->slot[h % (4 * ALIKE_PAIRS)];

        if (i == 0)
            break;
        if (t->p[i - 1].x == x && t->p[i - 1].y == y)
            return true; /* met before, and breadth first means: at no greater depth */
    }
    if (t->n == ALIKE_PAIRS)
        return false;
    t->p[t->n] = (struct pair){x, y, depth};
    t->slot[h % (4 * ALIKE_PAIRS)] = ++t->n;
    return true;
}

static bool pair_alike(const struct esp_auto *a, struct pairs *t, struct pair p)
{
    const struct esp_auto_state *x = &a->state[p.x], *y = &a->state[p.y];

    if (x->flags != y->flags || x->n_edge != y->n_edge || x->n_call != y->n_call || x->need != y->need ||
        x->n_token || y->n_token)
        return false;
    for (uint32_t k = 0; k < x->n_call; k++) {
        const struct esp_auto_call *c = &a->call[x->call + k], *d = &a->call[y->call + k];

        if (c->start != d->start || !add_pair(t, c->back, d->back, p.depth))
            return false;
    }
    for (uint32_t k = 0; k < x->n_edge; k++) {
        const struct esp_auto_edge *c = &a->edge[x->edge + k], *d = &a->edge[y->edge + k];

        if (c->lo != d->lo || c->hi != d->hi || !add_pair(t, c->to, d->to, p.depth + 1))
            return false;
    }
    return true;
}

bool esp_masks_alike(const struct esp_auto *a, uint32_t x, uint32_t y, uint32_t depth)
{
    struct pairs t = {0};
    bool alike = true;

    t.p = esp_alloc_array(ALIKE_PAIRS, sizeof *t.p);
    t.slot = esp_alloc_array(4 * ALIKE_PAIRS, sizeof *t.slot);
    if (t.p && t.slot)
        alike = add_pair(&t, x, y, 0);
    else
        alike = false;
    for (uint32_t i = 0; alike && i < t.n && t.p[i].depth <= depth; i++)
        alike = pair_alike(a, &t, t.p[i]);
    esp_free(t.slot);
    esp_free(t.p);
    return alike;
}

static struct esp_state_mask *find_alike(struct esp_masks *m, uint32_t state)
{
    for (uint32_t i = 0; i < m->n_recent; i++) {
        const uint32_t other = m->recent[i];

        if (m->of_state[other] && esp_masks_alike(m->a, state, other, m->v->max_depth)) {
            m->n_shared++;
            return m->entry[m->of_state[other] - 1].mask;
        }
    }
    return NULL;
}

/* ---- making one ---- */

static uint32_t count_bits(const uint64_t *bits, uint32_t n_word)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_word; i++)
        n += (uint32_t)__builtin_popcountll(bits[i]);
    return n;
}

static void list_bits(const uint64_t *bits, uint32_t n_word, uint32_t *id)
{
    for (uint32_t i = 0; i < n_word; i++)
        for (uint64_t w = bits[i]; w; w &= w - 1)
            *id++ = i * 64 + (uint32_t)__builtin_ctzll(w);
}

static struct esp_state_mask *pack(struct esp_masks *m, struct esp_walk *w)
{
    const uint32_t n = count_bits(m->bits, m->v->n_word);
    struct esp_state_mask *k = esp_alloc(sizeof *k);
    const bool listed = n < m->v->n_word; /* half the bytes */
    bool ok = k != NULL;

    if (!ok)
        return NULL;
    k->n_ref = 1;
    k->peak = w->peak;
    k->n_escape = w->n_escape;
    if (listed) {
        k->n_id = n;
        k->id = esp_alloc_array(n, sizeof *k->id);
        ok = k->id != NULL;
        if (ok)
            list_bits(m->bits, m->v->n_word, k->id);
    } else {
        k->bits = esp_alloc_array(m->v->n_word, sizeof *k->bits);
        ok = k->bits != NULL;
        if (ok)
            memcpy(k->bits, m->bits, m->v->n_word * sizeof *k->bits);
    }
    k->escape = esp_alloc_array(w->n_escape, sizeof *k->escape);
    ok = ok && k->escape;
    if (ok && w->n_escape)
        memcpy(k->escape, w->escape, w->n_escape * sizeof *k->escape);
    k->bytes = sizeof *k + (listed ? n * sizeof *k->id : m->v->n_word * sizeof *k->bits) +
               w->n_escape * sizeof *k->escape;
    m->bytes += k->bytes;
    if (!ok) {
        unref(m, k);
        return NULL;
    }
    return k;
}

static struct esp_state_mask *make(struct esp_masks *m, uint32_t state)
{
    const struct esp_auto_state *q = &m->a->state[state];
    struct esp_walk w = {.sp = &m->space, .v = m->v, .path = m->path, .bits = m->bits, .want_escapes = true};
    struct esp_state_mask *k = NULL;
    uint32_t none = ESP_SPACE_DEAD, set;
    bool ok = true;

    if (esp_space_bytes(&m->space) > KEEP_SPACE)
        esp_space_compact(&m->space, &none, 1); /* without memory for it the old one serves on */
    memset(m->bits, 0, m->v->n_word * sizeof *m->bits);
    for (uint32_t e = 0; ok && e < q->n_edge; e++)
        for (uint32_t b = m->a->edge[q->edge + e].lo; ok && b <= m->a->edge[q->edge + e].hi; b++) {
            if (m->v->first[b] == ESP_VOCAB_NONE)
                continue;
            set = esp_space_single(&m->space, state, 0);
            if (set == ESP_SPACE_NONE && m->space.fault == ESP_SPACE_FULL &&
                esp_space_compact(&m->space, &none, 1))
                set = esp_space_single(&m->space, state, 0);
            ok = set != ESP_SPACE_NONE &&
                 esp_walk_tree(&w, set, m->v->first[b], m->v->node[m->v->first[b]].end, 0);
        }
    if (ok) {
        k = pack(m, &w);
        if (!k)
            m->space.fault = ESP_SPACE_NOMEM;
    }
    esp_free(w.escape);
    m->n_made++;
    return k;
}

static uint32_t wide(const struct esp_auto *a, uint32_t state)
{
    const struct esp_auto_state *q = &a->state[state];
    uint32_t n = 0;

    for (uint32_t e = 0; e < q->n_edge; e++)
        n += a->edge[q->edge + e].hi - a->edge[q->edge + e].lo + 1u;
    return n;
}

const struct esp_state_mask *esp_masks_get(struct esp_masks *m, uint32_t state)
{
    const uint32_t i = m->of_state[state];
    const bool large = wide(m->a, state) >= 48;
    struct esp_state_mask *k;

    if (i) {
        unlink_entry(m, i - 1);
        link_newest(m, i - 1);
        m->n_hit++;
        return m->entry[i - 1].mask;
    }
    k = large ? find_alike(m, state) : NULL;
    if (k)
        k->n_ref++;
    else
        k = make(m, state);
    if (!k)
        return NULL;
    if (!keep(m, state, k)) {
        unref(m, k);
        m->space.fault = ESP_SPACE_NOMEM;
        return NULL;
    }
    if (large) {
        memmove(m->recent + 1, m->recent, sizeof m->recent - sizeof m->recent[0]);
        m->recent[0] = state;
        m->n_recent += m->n_recent < 4;
    }
    return k;
}
