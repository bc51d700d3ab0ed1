/*
 * One sequence's state: KV pages and a recurrent slot, advanced only by commit.
 *
 * A pass is begin .. run .. commit. A write-through pass commits all its tokens (plain prefill and decode). A
 * journalled pass may keep any number of them: rows of the delta rule stay open until their chunk closes, so
 * dropping the rest is truncation; only the convolution's rows need the journal. Accepted tokens leave
 * exactly the bits that a plain pass over them would have left.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_STATE_STATE_H
#define ESP_STATE_STATE_H

#include "graph/batch.h"
#include "state/pools.h"

struct esp_state;

enum esp_pass { ESP_PASS_WRITE, ESP_PASS_JOURNAL };

/* An empty sequence of at most max_positions that keeps at most max_snapshots snapshots. */
esp_status esp_state_open(struct esp_state **out, struct esp_state_pools *p, uint32_t max_positions,
                          uint32_t max_snapshots, esp_error *err);
void esp_state_close(struct esp_state *s); /* NULL is a no-op */

/* Committed positions. */
uint32_t esp_state_length(const struct esp_state *s);

/*
 * Reserve everything for n_tok more positions and describe the pass in *out (tok0 and n_tok are the caller's
 * to set). ESP_ENOFIT when the context, the pages, the slots or the journals do not suffice: nothing has
 * changed then. ESP_ESTATE when a pass is open. The description is valid until commit.
 */
esp_status esp_state_begin(struct esp_state *s, uint32_t n_tok, enum esp_pass pass, struct esp_batch_seq *out,
                           esp_error *err);
/* Before it runs, let an open journalled pass have its first n_tok tokens only; *pass is its description. */
void esp_state_shorten(struct esp_state *s, uint32_t n_tok, struct esp_batch_seq *pass);
/*
 * End the pass, keeping its first n_keep tokens. A write-through pass keeps all, or none when the run did not
 * take place. ESP_EINVAL for other counts. n_keep = 0 cancels a journalled pass after it ran, too.
 */
esp_status esp_state_commit(struct esp_state *s, uint32_t n_keep, esp_error *err);
/* End a pass whose run failed midway: the state is of no use any more and becomes empty. */
void esp_state_invalidate(struct esp_state *s);

/* Keep a snapshot at the present length. When max_snapshots are held the oldest goes. ESP_ENOFIT without free
 * slot. */
esp_status esp_state_snapshot(struct esp_state *s, esp_error *err);
/* Drop the shortest snapshot; false when there is none. For callers that need a slot back. */
bool esp_state_drop_snapshot(struct esp_state *s);
/* Back to the deepest snapshot (or the start, or the present length) at or before len; *reached says where.
 */
esp_status esp_state_rewind(struct esp_state *s, uint32_t len, uint32_t *reached, esp_error *err);
/* A look at the committed content: valid until the next call that changes s. slot is ESP_NO_SLOT without
 * recurrent layers or without tokens. */
#define ESP_NO_SLOT UINT32_MAX
struct esp_state_view {
    uint32_t n, base; /* positions committed, and of them folded into the slot's S */
    uint32_t slot;
    const uint32_t *pages; /* [n_page] covering n positions */
    uint32_t n_page;
};
/* No pass may be open. */
void esp_state_peek(const struct esp_state *s, struct esp_state_view *out);
/*
 * Replace what s holds, snapshots included, by shares of the pages and the slot of v, which may come from any
 * state or cache over the same pools. ESP_ESTATE when a pass is open, ESP_ENOFIT beyond the context.
 */
esp_status esp_state_adopt(struct esp_state *s, const struct esp_state_view *v, esp_error *err);
/* Free pages and slots that begin() of a write-through pass of n_tok tokens would take. */
void esp_state_need(const struct esp_state *s, uint32_t n_tok, uint32_t *pages, uint32_t *slots);
/* A second sequence with the same content, snapshots included; pages and slots are shared until one of them
 * writes. */
esp_status esp_state_fork(struct esp_state **out, const struct esp_state *s, esp_error *err);

#endif
