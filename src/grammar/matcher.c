/*
 * One text under a grammar. A mask is put together from the masks of the states where the text can be, which
 * are shared by all matchers, and from short walks for the tokens that go on behind the end of a rule. What
 * was accepted is a list of tokens and a ring of the last places, so going back a little is a subtraction,
 * and going back far is reading again.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/matcher.h"

#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

enum { SETS = 4096, MAX_TOKENS = 1 << 26 };

uint32_t esp_match_symbol(const struct esp_auto *a, uint32_t id)
{
    for (uint32_t lo = 0, hi = a->n_symbol; lo < hi;) {
        const uint32_t mid = (lo + hi) / 2;

        if (a->symbol[mid] == id)
            return mid;
        if (a->symbol[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return ESP_IR_NONE;
}

static esp_status no_memory(esp_error *err)
{
    return esp_fail(err, ESP_ENOMEM, "out of memory for following a grammar");
}

static esp_status fault(enum esp_space_fault f, esp_error *err)
{
    if (f == ESP_SPACE_NOMEM)
        return no_memory(err);
    return esp_fail(err, ESP_ENOFIT,
                    "the grammar is too ambiguous here: more than %d readings of the text so far",
                    ESP_LIMIT_GRAMMAR_WAYS);
}

static uint32_t current(const struct esp_matcher *m)
{
    return m->set[m->n % ESP_MATCH_RING];
}

static uint8_t mode(const struct esp_matcher *m)
{
    return m->mode[m->n % ESP_MATCH_RING];
}

bool esp_match_compact(struct esp_matcher *m)
{
    uint32_t live[ESP_MATCH_RING], n = 0;

    for (size_t i = m->oldest; i <= m->n; i++)
        live[n++] = m->set[i % ESP_MATCH_RING];
    if (!esp_space_compact(&m->space, live, n))
        return false;
    n = 0;
    for (size_t i = m->oldest; i <= m->n; i++)
        m->set[i % ESP_MATCH_RING] = live[n++];
    return true;
}

static void copy_opts(struct esp_matcher *m, const struct esp_matcher_opts *o)
{
    if (!o)
        return;
    m->o = *o;
    if (o->trigger_text) {
        m->n_trigger = (uint32_t)strlen(o->trigger_text);
        memcpy(m->trigger, o->trigger_text, m->n_trigger);
        m->o.trigger_text = NULL;
    }
    esp_match_prepare(m);
}

static esp_status open_arrays(struct esp_matcher *m, esp_error *err)
{
    m->allow = esp_alloc_array(m->v->n_word, sizeof *m->allow);
    m->path = esp_alloc_array((size_t)m->v->max_depth + 1, sizeof *m->path);
    if (!m->allow || !m->path || !esp_auto_grow(&m->token, &m->cap_token, 0, 1, sizeof *m->token))
        return no_memory(err);
    ESP_TRY(esp_space_init(&m->space, &m->g->a, SETS, err));
    m->set[0] = esp_space_start(&m->space);
    if (m->set[0] == ESP_SPACE_NONE || m->set[0] == ESP_SPACE_DEAD)
        return fault(m->space.fault, err);
    m->mode[0] = m->o.n_trigger || m->n_trigger ? 0 : ESP_MATCH_ACTIVE;
    return ESP_OK;
}

esp_status esp_matcher_open(struct esp_matcher **out, struct esp_grammar *g, const struct esp_matcher_opts *o,
                            esp_error *err)
{
    struct esp_matcher *m;
    esp_status s;

    if (o && (o->n_trigger > 4 || o->n_ban > 4))
        return esp_fail(err, ESP_EINVAL, "%u triggers and %u banned tokens; at most 4 of each are accepted",
                        o->n_trigger, o->n_ban);
    if (o && o->trigger_text && (o->trigger_text[0] == 0 || strlen(o->trigger_text) >= ESP_MATCH_TRIGGER))
        return esp_fail(err, ESP_EINVAL, "a trigger text of %zu bytes; 1 to %d are accepted",
                        strlen(o->trigger_text), ESP_MATCH_TRIGGER - 1);
    m = esp_alloc(sizeof *m);
    if (!m)
        return no_memory(err);
    m->g = esp_grammar_ref(g);
    m->v = g->v;
    copy_opts(m, o);
    s = open_arrays(m, err);
    if (s == ESP_OK)
        *out = m;
    else
        esp_matcher_close(m);
    return s;
}

void esp_matcher_close(struct esp_matcher *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < ESP_MATCH_TRIGGER; i++)
        esp_free(m->past[i].id);
    esp_space_free(&m->space);
    esp_free(m->token);
    esp_free(m->allow);
    esp_free(m->path);
    esp_grammar_release(m->g);
    esp_free(m);
}

/* ---- masks ---- */

/* Add what the current set's configuration c can take; false: see *f. */
static bool add_config(struct esp_matcher *m, struct esp_config c, enum esp_space_fault *f)
{
    struct esp_walk w = {.sp = &m->space, .v = m->v, .path = m->path, .bits = m->allow};
    const struct esp_state_mask *k = esp_masks_get(&m->g->masks, c.state);
    uint32_t follow;

    if (!k) {
        *f = m->g->masks.space.fault;
        return false;
    }
    *f = ESP_SPACE_FULL;
    if (m->space.stack[c.stack].depth + k->peak > ESP_LIMIT_GRAMMAR_DEPTH) {
        /* so deep that the bound on depth has a say in it: walk it all, under the real stack */
        follow = esp_space_single(&m->space, c.state, c.stack);
        if (follow != ESP_SPACE_NONE && esp_walk_tree(&w, follow, 0, m->v->n_node, 0))
            return true;
        *f = m->space.fault;
        return false;
    }
    for (uint32_t i = 0; i < k->n_id; i++)
        m->allow[k->id[i] / 64] |= UINT64_C(1) << k->id[i] % 64;
    for (uint32_t i = 0; k->bits && i < m->v->n_word; i++)
        m->allow[i] |= k->bits[i];
    if (k->n_escape == 0 || c.stack == 0)
        return true;
    follow = esp_space_follow(&m->space, c.stack);
    for (uint32_t i = 0; i < k->n_escape && follow != ESP_SPACE_NONE; i++) {
        const struct esp_vocab_node *n = &m->v->node[k->escape[i]];

        if (!esp_walk_tree(&w, follow, k->escape[i] + 1, n->end, n->depth))
            follow = ESP_SPACE_NONE;
    }
    *f = m->space.fault;
    return follow != ESP_SPACE_NONE;
}

/* m->allow is what may follow in the current set. */
static bool find_allowed(struct esp_matcher *m, enum esp_space_fault *f)
{
    const struct esp_auto *a = &m->g->a;
    const uint32_t set = current(m);

    memset(m->allow, 0, m->v->n_word * sizeof *m->allow);
    for (uint32_t k = 0; k < m->space.set[set].n; k++)
        if (!add_config(m, m->space.config[m->space.set[set].off + k], f))
            return false;
    for (uint32_t k = 0; k < a->n_symbol; k++) {
        const uint32_t to = esp_space_step(&m->space, set, a->n_class + k);

        *f = m->space.fault;
        if (to == ESP_SPACE_NONE)
            return false;
        if (to != ESP_SPACE_DEAD && a->symbol[k] < m->v->n_ids)
            m->allow[a->symbol[k] / 64] |= UINT64_C(1) << a->symbol[k] % 64;
    }
    return true;
}

esp_status esp_matcher_mask(struct esp_matcher *m, uint64_t *bits, size_t n_word, esp_error *err)
{
    enum esp_space_fault f = ESP_SPACE_FULL;
    bool ok;

    if (m->broken)
        return no_memory(err);
    if (mode(m) != ESP_MATCH_ACTIVE)
        return esp_match_wait_mask(m, mode(m), bits, n_word) ? ESP_OK : no_memory(err);
    pthread_mutex_lock(&m->g->lock);
    ok = find_allowed(m, &f);
    if (!ok && f == ESP_SPACE_FULL && esp_match_compact(m))
        ok = find_allowed(m, &f);
    pthread_mutex_unlock(&m->g->lock);
    if (!ok)
        return fault(f, err);
    for (size_t i = 0; i < n_word; i++)
        bits[i] &= i < m->v->n_word ? m->allow[i] : 0;
    return ESP_OK;
}

/* ---- moving ---- */

/* The set behind token id from the current one; ESP_SPACE_DEAD when it may not come. */
static uint32_t set_behind(struct esp_matcher *m, uint32_t id)
{
    const struct esp_auto *a = &m->g->a;
    const uint32_t symbol = esp_match_symbol(a, id);
    uint32_t set = current(m);

    m->space.fault = ESP_SPACE_FINE;
    if (symbol != ESP_IR_NONE) {
        const uint32_t to = esp_space_step(&m->space, set, a->n_class + symbol);

        if (to != ESP_SPACE_DEAD)
            return to;
    }
    if (!esp_vocab_is_plain(m->v, id))
        return ESP_SPACE_DEAD;
    for (uint32_t i = m->v->off[id]; i < m->v->off[id + 1] && set != ESP_SPACE_DEAD && set != ESP_SPACE_NONE;
         i++)
        set = esp_space_byte(&m->space, set, (unsigned char)m->v->bytes[i]);
    return set;
}

static esp_status refused(const struct esp_matcher *m, uint32_t id, esp_error *err)
{
    const bool known = id < m->v->n_ids;

    return esp_fail(err, ESP_EINVAL, "token %u \"%.*s\" may not come at place %zu of the constrained text",
                    id, known ? (int)(m->v->off[id + 1] - m->v->off[id]) : 0,
                    known ? m->v->bytes + m->v->off[id] : "", m->n);
}

static esp_status wait_place(const struct esp_matcher *m, uint32_t id, uint8_t *to, esp_error *err)
{
    bool past;

    *to = esp_match_wait(m, mode(m), id, &past);
    for (uint32_t i = 0; i < m->o.n_ban; i++)
        past |= m->o.ban[i] == id;
    return past ? refused(m, id, err) : ESP_OK;
}

static uint32_t set_at_start(struct esp_matcher *m)
{
    uint32_t set = esp_space_start(&m->space);

    if (set == ESP_SPACE_NONE && m->space.fault == ESP_SPACE_FULL && esp_match_compact(m))
        set = esp_space_start(&m->space);
    return set;
}

/* Where the current place leads with token id. */
static esp_status next_place(struct esp_matcher *m, uint32_t id, uint32_t *set, uint8_t *to, esp_error *err)
{
    *set = current(m);
    if (mode(m) != ESP_MATCH_ACTIVE)
        return wait_place(m, id, to, err);
    *to = ESP_MATCH_ACTIVE;
    *set = set_behind(m, id);
    if (*set == ESP_SPACE_NONE && m->space.fault == ESP_SPACE_FULL && esp_match_compact(m))
        *set = set_behind(m, id);
    if (*set == ESP_SPACE_DEAD && m->space.fault != ESP_SPACE_WAYS)
        return refused(m, id, err);
    if (*set != ESP_SPACE_NONE && *set != ESP_SPACE_DEAD && m->o.again && m->space.set[*set].ends &&
        m->space.set[*set].n == 0) {
        *to = 0;
        *set = set_at_start(m);
    }
    return *set == ESP_SPACE_NONE || *set == ESP_SPACE_DEAD ? fault(m->space.fault, err) : ESP_OK;
}

esp_status esp_matcher_accept(struct esp_matcher *m, uint32_t id, esp_error *err)
{
    uint32_t set;
    uint8_t to;

    if (m->broken || m->n >= MAX_TOKENS ||
        !esp_auto_grow(&m->token, &m->cap_token, (uint32_t)m->n, 1, sizeof id))
        return no_memory(err);
    ESP_TRY(next_place(m, id, &set, &to, err));
    m->token[m->n++] = id;
    m->set[m->n % ESP_MATCH_RING] = set;
    m->mode[m->n % ESP_MATCH_RING] = to;
    if (m->n - m->oldest >= ESP_MATCH_RING)
        m->oldest = m->n - ESP_MATCH_RING + 1;
    return ESP_OK;
}

void esp_matcher_rollback(struct esp_matcher *m, size_t n)
{
    const size_t keep = n < m->n ? m->n - n : 0;

    if (keep >= m->oldest) {
        m->n = keep;
        return;
    }
    m->n = m->oldest = 0;
    m->set[0] = esp_space_start(&m->space);
    if (m->set[0] == ESP_SPACE_NONE) { /* full: nothing of it is needed any more */
        m->set[0] = ESP_SPACE_DEAD;
        if (esp_match_compact(m))
            m->set[0] = esp_space_start(&m->space);
    }
    m->mode[0] = m->o.n_trigger || m->n_trigger ? 0 : ESP_MATCH_ACTIVE;
    m->broken |= m->set[0] == ESP_SPACE_NONE;
    for (size_t i = 0; i < keep && !m->broken; i++)
        m->broken = esp_matcher_accept(m, m->token[i], NULL) != ESP_OK;
}

esp_status esp_matcher_clone(struct esp_matcher **out, const struct esp_matcher *m, esp_error *err)
{
    struct esp_matcher_opts o = m->o;
    struct esp_matcher *c = NULL;
    char text[ESP_MATCH_TRIGGER] = {0};
    esp_status s;

    if (m->n_trigger) {
        memcpy(text, m->trigger, m->n_trigger);
        o.trigger_text = text;
    }
    s = esp_matcher_open(&c, m->g, &o, err);
    for (size_t i = 0; s == ESP_OK && i < m->n; i++)
        s = esp_matcher_accept(c, m->token[i], err);
    if (s == ESP_OK)
        *out = c;
    else
        esp_matcher_close(c);
    return s;
}

enum esp_match_state esp_matcher_state(const struct esp_matcher *m)
{
    const struct esp_space_set *s = &m->space.set[current(m)];

    if (mode(m) != ESP_MATCH_ACTIVE)
        return m->o.must_start ? ESP_MATCH_MORE : ESP_MATCH_MAY_END;
    if (!s->ends)
        return ESP_MATCH_MORE;
    return s->n ? ESP_MATCH_MAY_END : ESP_MATCH_ENDED;
}

bool esp_matcher_waiting(const struct esp_matcher *m)
{
    return mode(m) != ESP_MATCH_ACTIVE;
}

size_t esp_matcher_length(const struct esp_matcher *m)
{
    return m->n;
}

size_t esp_matcher_bytes(const struct esp_matcher *m)
{
    return sizeof *m + esp_space_bytes(&m->space) + m->cap_token * sizeof *m->token +
           m->v->n_word * sizeof *m->allow + (m->v->max_depth + 1) * sizeof *m->path;
}
