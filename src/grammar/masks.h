/*
 * The part of a mask that a state decides alone, kept: which tokens a state takes without looking below its
 * own rule, and at which nodes of the vocabulary's tree its rule is over, so that what was called from has to
 * decide the rest. Such masks are made when first asked for and kept within a bound, the least used going
 * first. All functions may be called from any thread.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_MASKS_H
#define ESP_GRAMMAR_MASKS_H

#include <pthread.h>
#include <stdatomic.h>

#include "grammar/grammar.h"
#include "grammar/space.h"

struct esp_state_mask {
    uint32_t n_ref;   /* states that share it */
    uint32_t n_id;    /* tokens, when listed */
    uint32_t *id;     /* [n_id], or NULL: bits */
    uint64_t *bits;   /* [n_word] */
    uint32_t *escape; /* [n_escape] nodes, ascending */
    uint32_t n_escape;
    uint16_t peak; /* stack on top of the one the state has, with what it takes to complete it */
    size_t bytes;
};

struct esp_mask_entry {
    struct esp_state_mask *mask;
    uint32_t state;
    uint32_t newer, older; /* by use; ESP_IR_NONE at the ends */
};

struct esp_masks {
    const struct esp_auto *a;
    const struct esp_vocab *v;
    struct esp_space space;
    uint32_t *of_state; /* [n_state] entry + 1, 0: none */
    struct esp_mask_entry *entry;
    uint32_t n_entry, cap_entry, newest, oldest, spare;
    size_t bytes, max_bytes;
    uint32_t *path;
    uint64_t *bits;     /* scratch */
    uint32_t recent[4]; /* states whose masks are large and may serve others */
    uint32_t n_recent;
    uint64_t n_made, n_shared, n_hit;
};

struct esp_grammar {
    struct esp_auto a;
    const struct esp_vocab *v;
    atomic_uint n_ref;
    pthread_mutex_t lock; /* of masks */
    struct esp_masks masks;
};

/* ir becomes a grammar; ir is not kept. */
esp_status esp_grammar_create(struct esp_grammar **out, const struct esp_vocab *v, const struct esp_ir *ir,
                              const char *what, esp_error *err);

esp_status esp_masks_init(struct esp_masks *m, const struct esp_auto *a, const struct esp_vocab *v,
                          esp_error *err);
void esp_masks_free(struct esp_masks *m);
/* The mask of state, valid until the next call. NULL: m->space.fault is why. With the lock held. */
const struct esp_state_mask *esp_masks_get(struct esp_masks *m, uint32_t state);
/* Whether both states take the same texts of up to `depth` bytes, found out within a bound of work; false:
 * unknown. */
bool esp_masks_alike(const struct esp_auto *a, uint32_t x, uint32_t y, uint32_t depth);

#endif
