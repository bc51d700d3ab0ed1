/*
 * The radix tree. Nodes hang in one list as well, so that choosing a victim is a scan; there are at most a
 * few thousand of them, bounded by the number of checkpoints. Every leaf owns a checkpoint, and a node
 * without one that has a single child is merged with it, so nothing is kept that no lookup could use.
 *
 * SPDX-License-Identifier: MIT
 */
#include "state/prefix_parts.h"

#include <string.h>

#include "base/mem.h"

/* ---- nodes ---- */

/* Number of the page that a position lies in. */
static uint32_t page_of(const struct esp_prefix *p, uint32_t pos)
{
    return esp_layout_page_of(&p->pools->mem.layout, pos);
}

/* A node with room for its arrays, not linked yet; its tokens are copied. NULL without memory. */
static struct esp_prefix_node *make_node(const struct esp_prefix *p, uint32_t start, uint32_t len,
                                         const int32_t *tokens)
{
    struct esp_prefix_node *n = esp_alloc(sizeof *n);
    uint32_t first;

    if (!n)
        return NULL;
    n->start = start;
    n->len = len;
    n->n_page = esp_prefix_pages(p, start, start + len, &first);
    n->slot = ESP_NO_SLOT;
    n->tokens = esp_alloc_array(len, sizeof *n->tokens);
    n->pages = esp_alloc_array(n->n_page, sizeof *n->pages);
    if (!n->tokens || !n->pages) {
        esp_free(n->tokens);
        esp_free(n->pages);
        esp_free(n);
        return NULL;
    }
    if (len)
        memcpy(n->tokens, tokens, len * sizeof *tokens);
    return n;
}

static void free_node(struct esp_prefix *p, struct esp_prefix_node *n)
{
    for (uint32_t i = 0; i < n->n_page; i++)
        esp_page_release(p->pools, n->pages[i]);
    if (n->has_checkpoint) {
        p->n_checkpoint--;
        if (n->slot != ESP_NO_SLOT)
            esp_slot_release(p->pools, n->slot);
    }
    esp_free(n->tokens);
    esp_free(n->pages);
    esp_free(n);
}

static struct esp_prefix_node *find_root(const struct esp_prefix *p, uint64_t ns)
{
    struct esp_prefix_node *n = p->roots;

    while (n && n->ns != ns)
        n = n->next;
    return n;
}

static struct esp_prefix_node *find_child(const struct esp_prefix_node *n, int32_t token)
{
    struct esp_prefix_node *c = n->child;

    while (c && c->tokens[0] != token)
        c = c->next;
    return c;
}

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* ---- removal ---- */

static bool only_child(const struct esp_prefix_node *n)
{
    return n->child && !n->child->next;
}

/* Put n, whose arrays and start may have changed, where `old` was among its siblings. */
static void take_place(struct esp_prefix *p, struct esp_prefix_node *n, const struct esp_prefix_node *old)
{
    struct esp_prefix_node **at = old->parent ? &old->parent->child : &p->roots;

    while (*at != old)
        at = &(*at)->next;
    n->parent = old->parent;
    n->next = old->next;
    *at = n;
}

static void leave_list(struct esp_prefix *p, const struct esp_prefix_node *n)
{
    if (n->before)
        n->before->after = n->after;
    else
        p->all = n->after;
    if (n->after)
        n->after->before = n->before;
}

static void enter_list(struct esp_prefix *p, struct esp_prefix_node *n)
{
    n->before = NULL;
    n->after = p->all;
    if (p->all)
        p->all->before = n;
    p->all = n;
}

static void remove_node(struct esp_prefix *p, struct esp_prefix_node *n)
{
    struct esp_prefix_node **at = n->parent ? &n->parent->child : &p->roots;

    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
    leave_list(p, n);
    free_node(p, n);
}

/* Join n, which has no checkpoint and one child, into that child. Without memory the tree stays as it is. */
static void merge(struct esp_prefix *p, struct esp_prefix_node *n)
{
    struct esp_prefix_node *c = n->child;
    uint32_t own = n->n_page ? page_of(p, c->start) - page_of(p, n->start) : 0; /* pages c has no part of */
    int32_t *tokens = esp_alloc_array(n->len + c->len, sizeof *tokens);
    uint32_t *pages = esp_alloc_array(own + c->n_page, sizeof *pages);

    if (!tokens || !pages) {
        esp_free(tokens);
        esp_free(pages);
        return;
    }
    memcpy(tokens, n->tokens, n->len * sizeof *tokens);
    memcpy(tokens + n->len, c->tokens, c->len * sizeof *tokens);
    memcpy(pages, n->pages, own * sizeof *pages);
    memcpy(pages + own, c->pages, c->n_page * sizeof *pages);
    esp_free(c->tokens);
    esp_free(c->pages);
    c->tokens = tokens;
    c->pages = pages;
    c->n_page += own;
    c->len += n->len;
    c->start = n->start;
    memmove(n->pages, n->pages + own, (n->n_page - own) * sizeof *n->pages); /* shares that did not move */
    n->n_page -= own;
    take_place(p, c, n);
    leave_list(p, n);
    free_node(p, n);
}

/* Keep the promises of the file's head after n lost a checkpoint or a child. */
static void tidy(struct esp_prefix *p, struct esp_prefix_node *n)
{
    while (n && !n->child && !n->has_checkpoint) {
        struct esp_prefix_node *up = n->parent;

        remove_node(p, n);
        n = up;
    }
    if (n && n->parent && !n->has_checkpoint && only_child(n))
        merge(p, n);
}

void esp_prefix_drop_checkpoint(struct esp_prefix *p, struct esp_prefix_node *n)
{
    if (n->slot != ESP_NO_SLOT)
        esp_slot_release(p->pools, n->slot);
    n->slot = ESP_NO_SLOT;
    n->has_checkpoint = false;
    p->n_checkpoint--;
    tidy(p, n);
}

void esp_prefix_build_path(const struct esp_prefix *p, const struct esp_prefix_node *n,
                           struct esp_prefix_path *out)
{
    uint32_t top = p->cap_checkpoint, covered;

    memset(out, 0, sizeof *out);
    out->ns = n->ns;
    out->n = esp_prefix_end(n);
    out->n_page = covered = esp_prefix_pages(p, 0, out->n, &(uint32_t){0});
    out->used = n->used_at;
    out->saved = n->saved;
    for (; n->parent; n = n->parent) {
        uint32_t first = page_of(p, n->start);

        memcpy(p->tokens + n->start, n->tokens, n->len * sizeof *n->tokens);
        for (uint32_t i = first; i < covered; i++) /* the deepest version of a page holds most */
            p->pages[i] = n->pages[i - first];
        covered = n->n_page && first < covered ? first : covered;
        out->pinned = n->pinned > out->pinned ? n->pinned : out->pinned;
        out->hits += n->hits;
        if (n->has_checkpoint)
            p->checkpoints[--top] =
                (struct esp_prefix_checkpoint){.n = esp_prefix_end(n), .base = n->base, .slot = n->slot};
    }
    out->tokens = p->tokens;
    out->pages = p->pages;
    out->checkpoints = p->checkpoints + top;
    out->n_checkpoint = p->cap_checkpoint - top;
}

/* Whether a lookup that would have ended at n loses little: no branch, and a checkpoint close below. */
static bool redundant(const struct esp_prefix *p, const struct esp_prefix_node *n)
{
    const struct esp_prefix_node *c = n;

    if (!n->has_checkpoint || !only_child(n))
        return false;
    do
        c = c->child;
    while (!c->has_checkpoint && only_child(c));
    return c->has_checkpoint && esp_prefix_end(c) - esp_prefix_end(n) <= p->o.spacing;
}

static bool frees(const struct esp_prefix *p, const struct esp_prefix_node *n, enum esp_prefix_want what)
{
    if (what == ESP_PREFIX_SLOT)
        return n->slot != ESP_NO_SLOT && p->pools->slot_refs[n->slot] == 1;
    for (uint32_t i = 0; i < n->n_page; i++)
        if (p->pools->page_refs[n->pages[i]] == 1)
            return true;
    return false;
}

/* How gladly n goes, 0 first; NEVER: it cannot, since others stand on it. */
enum { NEVER = 8 };

static int rank_of(const struct esp_prefix *p, const struct esp_prefix_node *n, enum esp_prefix_want what,
                   double now)
{
    const bool pinned = n->pinned > now;
    const bool spare = what == ESP_PREFIX_SLOT && !pinned && redundant(p, n);

    if (!n->parent || (n->child && !spare))
        return NEVER;
    return (pinned ? 4 : 0) + (frees(p, n, what) ? 0 : 2) + (spare ? 0 : 1);
}

bool esp_prefix_evict(struct esp_prefix *p, enum esp_prefix_want what)
{
    struct esp_prefix_node *victim = NULL;
    const double now = esp_prefix_now();
    int best = NEVER;

    for (struct esp_prefix_node *n = p->all; n; n = n->after) {
        const int rank = rank_of(p, n, what, now);

        if (rank < best || (rank == best && victim && n->used < victim->used)) {
            best = rank;
            victim = n;
        }
    }
    if (!victim)
        return false;
    if (!victim->child && !victim->saved && p->o.spill) {
        struct esp_prefix_path path;

        esp_prefix_build_path(p, victim, &path);
        p->o.spill(p->o.user, &path);
    }
    p->n_evicted++;
    esp_prefix_drop_checkpoint(p, victim);
    return true;
}

/* ---- lookup ---- */

struct esp_prefix_walk esp_prefix_descend(const struct esp_prefix *p, uint64_t ns, const int32_t *tokens,
                                          uint32_t n, uint32_t limit)
{
    struct esp_prefix_walk w = {.node = find_root(p, ns)};

    while (w.node && w.match < n) {
        struct esp_prefix_node *c = find_child(w.node, tokens[w.match]);
        uint32_t left = n - w.match, m;

        if (!c)
            break;
        m = common(c->tokens, tokens + w.match, c->len < left ? c->len : left);
        w.match += m;
        if (m < c->len)
            break;
        w.node = c;
        if (c->has_checkpoint && w.match <= limit)
            w.best = c;
    }
    return w;
}

static void touch(struct esp_prefix *p, struct esp_prefix_node *n)
{
    const double now = esp_prefix_now();

    p->tick++;
    for (; n; n = n->parent) {
        n->used = p->tick;
        n->used_at = now;
    }
}

struct esp_prefix_hit esp_prefix_find(const struct esp_prefix *p, uint64_t ns, const int32_t *tokens,
                                      uint32_t n, uint32_t limit)
{
    struct esp_prefix_walk w = esp_prefix_descend(p, ns, tokens, n, limit);

    return (struct esp_prefix_hit){.match = w.match, .n = w.best ? esp_prefix_end(w.best) : 0};
}

esp_status esp_prefix_lend(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t limit,
                           struct esp_state *s, uint32_t *reached, esp_error *err)
{
    struct esp_prefix_walk w = esp_prefix_descend(p, ns, tokens, limit, limit);
    struct esp_prefix_path path;
    struct esp_state_view v;

    if (!w.best)
        return esp_fail(err, ESP_ENOTFOUND, "no checkpoint within the first %u tokens", limit);
    esp_prefix_build_path(p, w.best, &path);
    v = (struct esp_state_view){
        .n = path.n, .base = w.best->base, .slot = w.best->slot, .pages = path.pages, .n_page = path.n_page};
    ESP_TRY(esp_state_adopt(s, &v, err));
    touch(p, w.best);
    w.best->hits++;
    *reached = path.n;
    return ESP_OK;
}

/* ---- insertion ---- */

/* Cut n after m tokens: a new node above it takes the first part. NULL without memory. */
static struct esp_prefix_node *split(struct esp_prefix *p, struct esp_prefix_node *n, uint32_t m)
{
    struct esp_prefix_node *up = make_node(p, n->start, m, n->tokens);
    uint32_t gone = page_of(p, n->start + m) - page_of(p, n->start); /* pages that only the upper part has */

    if (!up)
        return NULL;
    if (n->n_page == 0)
        gone = 0;
    for (uint32_t i = 0; i < up->n_page; i++) {
        up->pages[i] = n->pages[i];
        if (i >= gone)
            esp_page_share(p->pools, n->pages[i]);
    }
    up->ns = n->ns;
    up->used = n->used;
    up->used_at = n->used_at;
    take_place(p, up, n);
    enter_list(p, up);
    up->child = n;
    n->parent = up;
    n->next = NULL;
    n->start += m;
    n->len -= m;
    n->n_page -= gone;
    memmove(n->tokens, n->tokens + m, n->len * sizeof *n->tokens);
    memmove(n->pages, n->pages + gone, n->n_page * sizeof *n->pages);
    return up;
}

/* A page that ends with n's edge half full: the new state's version holds more and the same, so one will do.
 */
static void refresh_last_page(struct esp_prefix *p, struct esp_prefix_node *n, const struct esp_state_view *v)
{
    uint32_t at = page_of(p, esp_prefix_end(n)), *mine;

    if (n->n_page == 0 || esp_layout_page_first(&p->pools->mem.layout, at) == esp_prefix_end(n))
        return;
    mine = &n->pages[n->n_page - 1];
    if (*mine == v->pages[at])
        return;
    esp_page_share(p->pools, v->pages[at]);
    esp_page_release(p->pools, *mine);
    *mine = v->pages[at];
}

static struct esp_prefix_node *add_root(struct esp_prefix *p, uint64_t ns)
{
    struct esp_prefix_node *n = make_node(p, 0, 0, NULL);

    if (!n)
        return NULL;
    n->ns = ns;
    n->next = p->roots;
    p->roots = n;
    enter_list(p, n);
    return n;
}

static struct esp_prefix_node *add_leaf(struct esp_prefix *p, struct esp_prefix_node *parent, uint32_t start,
                                        const int32_t *tokens, const struct esp_state_view *v)
{
    struct esp_prefix_node *n = make_node(p, start, v->n - start, tokens + start);

    if (!n)
        return NULL;
    for (uint32_t i = 0; i < n->n_page; i++) {
        n->pages[i] = v->pages[page_of(p, start) + i];
        esp_page_share(p->pools, n->pages[i]);
    }
    n->ns = parent->ns;
    n->parent = parent;
    n->next = parent->child;
    parent->child = n;
    enter_list(p, n);
    return n;
}

/* The node that ends at v->n, made when there is none. NULL without memory. */
static struct esp_prefix_node *place(struct esp_prefix *p, uint64_t ns, const int32_t *tokens,
                                     const struct esp_state_view *v)
{
    struct esp_prefix_node *n = find_root(p, ns);
    uint32_t at = 0;

    if (!n)
        n = add_root(p, ns);
    while (n && at < v->n) {
        struct esp_prefix_node *c = find_child(n, tokens[at]);
        uint32_t m;

        if (!c) {
            struct esp_prefix_node *leaf = add_leaf(p, n, at, tokens, v);

            if (!leaf)
                tidy(p, n); /* a fresh root, or the upper half of a split */
            return leaf;
        }
        m = common(c->tokens, tokens + at, c->len < v->n - at ? c->len : v->n - at);
        if (m < c->len)
            c = split(p, c, m);
        if (!c)
            return NULL;
        refresh_last_page(p, c, v);
        at += m;
        n = c;
    }
    return n;
}

/* Drop the checkpoint between the closest neighbours until the path to leaf n keeps to its maximum. */
static void thin(struct esp_prefix *p, struct esp_prefix_node *n)
{
    for (;;) {
        struct esp_prefix_node *victim = NULL;
        const double now = esp_prefix_now();
        uint32_t count = 0, best = UINT32_MAX, below = 0;

        for (struct esp_prefix_node *a = n, *prev = NULL; a->parent; a = a->parent) {
            if (!a->has_checkpoint)
                continue;
            count++;
            if (prev && below - esp_prefix_end(a) < best && only_child(prev) && prev != n &&
                prev->pinned <= now) {
                best = below - esp_prefix_end(a);
                victim = prev;
            }
            below = prev ? esp_prefix_end(prev) : esp_prefix_end(a);
            prev = a;
        }
        if (count <= p->o.per_path || !victim)
            return;
        p->n_evicted++;
        esp_prefix_drop_checkpoint(p, victim);
    }
}

esp_status esp_prefix_insert(struct esp_prefix *p, uint64_t ns, const int32_t *tokens,
                             const struct esp_state_view *v, esp_error *err)
{
    struct esp_prefix_walk w;
    struct esp_prefix_node *n;

    if (v->n == 0 || v->n > p->o.max_positions)
        return esp_fail(err, ESP_EINVAL, "a cached text of %u tokens; 1 to %u are possible", v->n,
                        p->o.max_positions);
    w = esp_prefix_descend(p, ns, tokens, v->n, v->n);
    touch(p, w.node);
    if (!(w.best && esp_prefix_end(w.best) == v->n))
        while (p->n_checkpoint >= p->o.max_checkpoints && esp_prefix_evict(p, ESP_PREFIX_SLOT))
            ;
    n = place(p, ns, tokens, v);
    if (!n)
        return esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory");
    if (v->slot != ESP_NO_SLOT)
        esp_slot_share(p->pools, v->slot);
    if (n->slot != ESP_NO_SLOT)
        esp_slot_release(p->pools, n->slot);
    p->n_checkpoint += !n->has_checkpoint;
    n->has_checkpoint = true;
    n->slot = v->slot;
    n->base = v->base;
    touch(p, n);
    thin(p, n);
    return ESP_OK;
}

/* ---- the whole tree ---- */

esp_status esp_prefix_create(struct esp_prefix **out, struct esp_state_pools *pools,
                             const struct esp_prefix_opts *o, esp_error *err)
{
    struct esp_prefix *p;

    if (o->max_checkpoints == 0 || o->per_path < 2 || o->max_positions == 0)
        return esp_fail(err, ESP_EINVAL, "prefix cache: %u checkpoints, %u a path, %u positions",
                        o->max_checkpoints, o->per_path, o->max_positions);
    p = esp_alloc(sizeof *p);
    if (!p)
        return esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory");
    p->pools = pools;
    p->o = *o;
    p->cap_checkpoint = o->max_checkpoints;
    p->tokens = esp_alloc_array(o->max_positions, sizeof *p->tokens);
    p->pages = esp_alloc_array(esp_layout_pages(&pools->mem.layout, o->max_positions), sizeof *p->pages);
    p->checkpoints = esp_alloc_array(p->cap_checkpoint, sizeof *p->checkpoints);
    if (!p->tokens || !p->pages || !p->checkpoints) {
        esp_prefix_destroy(p);
        return esp_fail(err, ESP_ENOMEM, "prefix cache: out of memory");
    }
    *out = p;
    return ESP_OK;
}

void esp_prefix_destroy(struct esp_prefix *p)
{
    struct esp_prefix_node *n, *after;

    if (!p)
        return;
    for (n = p->all; n; n = after) {
        after = n->after;
        free_node(p, n);
    }
    esp_free(p->tokens);
    esp_free(p->pages);
    esp_free(p->checkpoints);
    esp_free(p);
}

bool esp_prefix_unsaved(struct esp_prefix *p, struct esp_prefix_path *out)
{
    const struct esp_prefix_node *oldest = NULL;

    for (const struct esp_prefix_node *n = p->all; n; n = n->after)
        if (n->parent && !n->child && !n->saved && (!oldest || n->used < oldest->used))
            oldest = n;
    if (oldest)
        esp_prefix_build_path(p, oldest, out);
    return oldest != NULL;
}

void esp_prefix_set_saved(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t n)
{
    struct esp_prefix_walk w = esp_prefix_descend(p, ns, tokens, n, n);

    if (w.node && esp_prefix_end(w.node) == n)
        w.node->saved = true;
}

void esp_prefix_each(struct esp_prefix *p, void (*fn)(void *user, const struct esp_prefix_path *), void *user)
{
    for (const struct esp_prefix_node *n = p->all; n; n = n->after) {
        struct esp_prefix_path path;

        if (!n->parent || n->child)
            continue;
        esp_prefix_build_path(p, n, &path);
        fn(user, &path);
    }
}
