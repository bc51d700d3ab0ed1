/*
 * Drafters: who guesses the tokens that a verify pass then checks. A drafter is a row of a table; what it
 * proposes changes the time a text takes and never the text, so every failure inside one is just no draft.
 * Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_DRAFT_H
#define ESP_ENGINE_DRAFT_H

#include "engine/engine.h"

/* A row that wants drafts. Its pass over the pending token and `want` more is open: pages for them are there,
 * and the page of the last committed position is its own. */
struct esp_draft_ask {
    struct esp_seq *seq;
    const struct esp_batch_seq *pass;
    uint32_t want, n; /* n <= want: proposed */
    int32_t *out;     /* [want] */
};

struct esp_drafter {
    esp_spec kind;
    const char *name;
    uint32_t depth;    /* unless the options say another */
    bool wants_hidden; /* advance() gets the trunk's hidden rows */
    /* Refuse models and options that it cannot serve: ESP_EINVAL. NULL: none. */
    esp_status (*check)(const struct esp_model *m, const esp_engine_opts *o, esp_error *err);
    /* Bytes that open() and seq_open() of every sequence will take. Options are resolved. NULL: none. */
    esp_status (*bytes)(const struct esp_model *m, const esp_engine_opts *o, struct esp_dev *dev,
                        uint64_t *out, esp_error *err);
    esp_status (*open)(struct esp_engine *g, void **data, esp_error *err); /* NULL: keeps nothing */
    void (*close)(struct esp_engine *g, void *data);
    esp_status (*seq_open)(struct esp_engine *g, void **data, esp_error *err);
    void (*seq_close)(struct esp_engine *g, void *data);
    /* Whether there will be a proposal for s, as far as can be told without work. */
    bool (*ready)(struct esp_seq *s);
    /* A pass of s is open that will run. NULL: does not care. */
    void (*begin)(struct esp_seq *s, const struct esp_batch_seq *pass);
    void (*propose)(struct esp_engine *g, struct esp_draft_ask *asks, uint32_t n);
    /* The state of s went from `from` positions to n + from by a pass; hidden [n][hidden] as the pass gave
     * them. NULL: does not care. */
    void (*advance)(struct esp_seq *s, uint32_t from, uint32_t n, const float *hidden);
    /* The memory of s's state is about to be shared, saved or cut back to len positions. NULL: does not care.
     */
    void (*settle)(const struct esp_seq *s, uint32_t len);
    /* The state of s was replaced by one from elsewhere. NULL: does not care. */
    void (*forget)(struct esp_seq *s);
};

/* By kind, AUTO not among them; NULL for OFF. */
const struct esp_drafter *esp_drafter_get(esp_spec kind);
extern const struct esp_drafter esp_drafter_ngram, esp_drafter_mtp, esp_drafter_model;

/*
 * Take draft number ask->n of a proposal from its logits, with the random key of the position that it
 * predicts and under the sequence's constraint, as if the drafts before it had been sampled. False when the
 * proposal ends here: enough, the end of a turn, or logits of no use. esp_draft_done() undoes what sampler
 * and constraint were told.
 */
bool esp_draft_take(struct esp_draft_ask *ask, const float *logits);
void esp_draft_done(struct esp_draft_ask *ask);
/* Cut a proposal that was made otherwise where the sequence's constraint would not have it. */
void esp_draft_check(struct esp_draft_ask *ask);

/* Arrays of a drafter's own batches. */
struct esp_draft_batch {
    uint32_t cap_tok, cap_seq;
    struct esp_batch b;
    int32_t *ids;
    int32_t (*pos)[3];
    uint32_t *out_rows;
    struct esp_batch_seq *seqs;
    float *logits; /* [cap_seq][n_vocab] */
};
uint64_t esp_draft_batch_bytes(uint32_t cap_tok, uint32_t cap_seq, uint32_t n_vocab);
esp_status esp_draft_batch_open(struct esp_draft_batch *d, uint32_t cap_tok, uint32_t cap_seq,
                                uint32_t n_vocab, esp_error *err);
void esp_draft_batch_close(struct esp_draft_batch *d);
/* Empty it; the next rows go to its start. */
void esp_draft_batch_begin(struct esp_draft_batch *d);
/* Append a sequence's n tokens from cache position `at` on; pos counts the same. The caller fills ids. */
struct esp_batch_seq *esp_draft_batch_add(struct esp_draft_batch *d, uint32_t at, uint32_t n);
/* The last token's logits are wanted; their row. */
uint32_t esp_draft_batch_want(struct esp_draft_batch *d);
esp_status esp_draft_batch_run(struct esp_draft_batch *d, struct esp_engine *g, struct esp_plan *plan,
                               esp_error *err);

#endif
