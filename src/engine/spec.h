/*
 * Speculation of an engine: how many drafts each row gets, what they were worth, and the calls that keep a
 * drafter in step with its sequences. All of it is a no-op while speculation is off. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_SPEC_H
#define ESP_ENGINE_SPEC_H

#include "engine/draft.h"

/* Options of speculation checked and filled in: AUTO becomes a kind. The rest of o is resolved. */
esp_status esp_spec_resolve(const struct esp_model *m, esp_engine_opts *o, esp_error *err);
/* What journals, layout and plan need for it. */
void esp_spec_shape(const struct esp_model *m, const esp_engine_opts *o, struct esp_engine_shape *shape);
/* Most drafts of one step, over all rows; 0: off. */
uint32_t esp_spec_max_drafts(const esp_engine_opts *o);
/* Bytes that no other line of the memory plan has. */
esp_status esp_spec_bytes(const struct esp_model *m, const esp_engine_opts *o,
                          const struct esp_engine_shape *shape, struct esp_dev *dev, uint64_t *out,
                          esp_error *err);

esp_status esp_spec_open(struct esp_engine *g, esp_error *err);
void esp_spec_close(struct esp_engine *g);
esp_status esp_spec_seq_open(struct esp_seq *s, esp_error *err);
void esp_spec_seq_close(struct esp_seq *s);
/* A generation starts: what was learnt about the last one may not hold. */
void esp_spec_arm(struct esp_seq *s);

/* Set rows[i]->spec.want for a step of these n rows of one token each that has room for `room` tokens more.
 */
void esp_spec_choose(struct esp_engine *g, struct esp_seq *const *rows, uint32_t n, uint32_t room);
/* Fill spec.drafts and spec.n of the rows with want > 0, whose passes are open. */
void esp_spec_propose(struct esp_engine *g, struct esp_seq *const *rows, const struct esp_batch_seq *passes,
                      uint32_t n);
/* Of the drafts of s the first n_right were right; tried: so many were looked at. */
void esp_spec_learn(struct esp_seq *s, uint32_t n_right, uint32_t n_tried);
/* The clock of costs: on a CPU the time that this thread worked, which other programs' load does not change.
 */
double esp_spec_now(const struct esp_engine *g);
/* A step of n rows without prompt tokens took dt seconds by it. */
void esp_spec_measure(struct esp_engine *g, uint32_t n_rows, double dt);

/* Events in the life of a state, for the drafter. */
void esp_spec_begin(struct esp_seq *s, const struct esp_batch_seq *pass);
void esp_spec_advance(struct esp_seq *s, uint32_t from, uint32_t n, const float *hidden);
void esp_spec_settle(const struct esp_seq *s, uint32_t len);
void esp_spec_forget(struct esp_seq *s);
void esp_spec_stats(const struct esp_engine *g, esp_stats *out);

#endif
