/*
 * The prefix cache: a radix tree over token ids that keeps KV pages and recurrent states of texts that ran
 * before. Keys and values can be cut at any token, a recurrent state cannot, so a cached text is of use only
 * where a node owns a checkpoint (a share of a slot); every leaf does.
 *
 * The tree takes shares of pages and slots and never copies or writes them: a row that appends to a shared
 * page or slot copies it first, as it does after a fork. A node covers the pages that its edge touches, so a
 * page at a branch is owned by both sides, each with its own version.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_STATE_PREFIX_H
#define ESP_STATE_PREFIX_H

#include "state/state.h"

struct esp_prefix;

/* One cached text, root to leaf, with its checkpoints in ascending order. Valid during the call that got it.
 */
struct esp_prefix_checkpoint {
    uint32_t n, base; /* positions, and of them folded into the slot's S */
    uint32_t slot;    /* ESP_NO_SLOT for models without recurrent layers */
};
struct esp_prefix_path {
    uint64_t ns;
    const int32_t *tokens; /* [n] */
    uint32_t n;
    const uint32_t *pages; /* covering n positions */
    uint32_t n_page;
    const struct esp_prefix_checkpoint *checkpoints; /* the last one stands at n */
    uint32_t n_checkpoint;
    double used, pinned; /* seconds of a steady clock: last use of its end; until when something on it stays,
                            0: nothing */
    uint64_t hits;       /* how often a checkpoint on it was lent */
    bool saved;
};

struct esp_prefix_opts {
    uint32_t max_positions;   /* longest text */
    uint32_t max_checkpoints; /* over all texts, at least 1 */
    uint32_t per_path;        /* most checkpoints from root to a leaf, at least 2 */
    uint32_t spacing;         /* a checkpoint with another one this close below it goes first */
    /* Called before a leaf that was not marked as saved goes; may be NULL. It must not change the tree. */
    void (*spill)(void *user, const struct esp_prefix_path *path);
    void *user;
};

/* Pools must outlive the tree. ESP_ENOMEM, ESP_EINVAL. */
esp_status esp_prefix_create(struct esp_prefix **out, struct esp_state_pools *pools,
                             const struct esp_prefix_opts *o, esp_error *err);
/* Gives every share back, without spilling. NULL is a no-op. */
void esp_prefix_destroy(struct esp_prefix *p);

/*
 * Remember that tokens[0 .. v->n) of namespace ns lead to state v. Shares v's pages and slot; a checkpoint
 * that stands there already is replaced. Makes room among checkpoints by the rules of eviction. ESP_EINVAL
 * for an empty or too long text, ESP_ENOMEM; the tree is as useful as before then.
 */
esp_status esp_prefix_insert(struct esp_prefix *p, uint64_t ns, const int32_t *tokens,
                             const struct esp_state_view *v, esp_error *err);

/* What the cache knows about a text. */
struct esp_prefix_hit {
    uint32_t match; /* tokens in common with some cached text */
    uint32_t n;     /* deepest checkpoint at or before min(match, limit); 0: none */
};
struct esp_prefix_hit esp_prefix_find(const struct esp_prefix *p, uint64_t ns, const int32_t *tokens,
                                      uint32_t n, uint32_t limit);
/*
 * Give s the state of the deepest checkpoint at or before limit, which esp_prefix_find() reported; *reached
 * is its position. The entry stays for others. Errors of esp_state_adopt().
 */
esp_status esp_prefix_lend(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t limit,
                           struct esp_state *s, uint32_t *reached, esp_error *err);

/*
 * Give back one checkpoint, or the least recently used leaf, with preference for what frees a slot or a page
 * that nobody else holds. False when the tree is empty.
 */
enum esp_prefix_want { ESP_PREFIX_SLOT, ESP_PREFIX_PAGE };
bool esp_prefix_evict(struct esp_prefix *p, enum esp_prefix_want what);

/* A leaf that is not marked as saved, least recently used first; false when there is none. */
bool esp_prefix_unsaved(struct esp_prefix *p, struct esp_prefix_path *out);
/* Mark the leaf of such a path. */
void esp_prefix_set_saved(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t n);
/*
 * Keep the checkpoint at n of this text until a time of the steady clock: it goes only when nothing else is
 * left to go. False: there is none.
 */
bool esp_prefix_pin(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t n, double until);
/* The text up to its deepest checkpoint at or before n; false when there is none. */
bool esp_prefix_path_to(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t n,
                        struct esp_prefix_path *out);
/* Forget the leaf at n of this text with all that no other text shares. Its checkpoints, 0: no such leaf. */
uint32_t esp_prefix_drop(struct esp_prefix *p, uint64_t ns, const int32_t *tokens, uint32_t n);
/* Visit every leaf. */
void esp_prefix_each(struct esp_prefix *p, void (*fn)(void *user, const struct esp_prefix_path *),
                     void *user);

struct esp_prefix_counts {
    uint32_t nodes, leaves, checkpoints;
    uint64_t tokens;    /* over all edges */
    uint64_t evictions; /* checkpoints that went for want of room */
};
void esp_prefix_count(const struct esp_prefix *p, struct esp_prefix_counts *out);
/* Check every invariant; false with a reason. For tests. */
bool esp_prefix_valid(const struct esp_prefix *p, const char **why);

#endif
