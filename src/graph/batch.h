/*
 * What changes from step to step: which tokens of which sequences run, where their state lies, which rows are
 * wanted. Plain arrays that live until the run is over.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAPH_BATCH_H
#define ESP_GRAPH_BATCH_H

#include <stdint.h>

#include "graph/lora.h"

#define ESP_NO_JOURNAL UINT32_MAX

struct esp_batch_seq {
    uint32_t tok0, n_tok; /* its tokens are [tok0, tok0 + n_tok) of the batch, in order */
    uint32_t n;           /* positions already in its state; token i has cache index n + i */
    uint32_t base; /* positions folded into the slot's S: a multiple of ESP_CHUNK, n - base <= ESP_CHUNK */
    const uint32_t *pages; /* page ids covering n + n_tok positions */
    uint32_t slot;         /* recurrent slot, written in place ... */
    uint32_t slot_next;    /* ... until a chunk border inside the new tokens: from there on this one. Equal to
                              slot    when the pass writes through */
    uint32_t journal; /* journal that keeps the new pre-convolution rows; ESP_NO_JOURNAL: the slot's conv rows
                         advance */
    uint32_t n_lora;  /* adapters of this sequence, applied in this order */
    const struct esp_lora_set *lora[ESP_LORA_STACK]; /* ranks within the plan's max_rank */
    float lora_scale[ESP_LORA_STACK];                /* factor on every scale of that set */
};

/*
 * The greatest logits of a row: all ids whose logit is at least the least one here, in any order. n = 0: the
 * row has a NaN or +inf, or too many equal values.
 */
enum { ESP_FEW = 512, ESP_FEW_ROWS = 128 };
struct esp_few {
    uint32_t n;
    uint32_t id[ESP_FEW];
    float value[ESP_FEW];
};

/* Called after an op that writes a named value, on one thread: rows [n_row][width] f32, valid during the
 * call. */
typedef void (*esp_tap_fn)(void *user, const char *name, const float *rows, uint32_t n_row, uint32_t width);

struct esp_batch {
    uint32_t n_tok;
    const int32_t *ids;      /* [n_tok] */
    const int32_t (*pos)[3]; /* [n_tok] rotary positions: time, height, width */
    uint32_t n_seq;
    const struct esp_batch_seq *seqs;
    uint32_t n_out;
    const uint32_t *out_rows; /* [n_out] ascending token indices whose logits are wanted */
    float *logits;            /* [n_out][n_vocab] */
    struct esp_few
        *few; /* [n_out], at most ESP_FEW_ROWS: wanted instead of logits, of which single rows may be asked
                                 for afterwards. NULL: not wanted; only for backends that can */
    const float *input; /* [n_tok][width of the tape's INPUT]; only for tapes that have one */
    float *hidden;      /* [n_tok][width of the tape's HIDDEN]; NULL: not wanted */
    esp_tap_fn tap;     /* NULL: no taps */
    void *tap_user;
};

#endif
