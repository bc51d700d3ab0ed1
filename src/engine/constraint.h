/*
 * What limits the tokens of a generation: a grammar, a schema, a list of choices. The engine knows of it only
 * what this table says, so that whoever writes grammars needs no engine and the engine no grammar. A
 * constraint is a function of the tokens that it accepted, and every one of them can be taken back: that is
 * what lets speculation run ahead under it, and what keeps the text the same with and without drafts.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_CONSTRAINT_H
#define ESP_ENGINE_CONSTRAINT_H

#include <stddef.h>
#include <stdint.h>

#include "espalier/espalier.h"

enum esp_constraint_state {
    ESP_CONSTRAINT_MORE,    /* the text is not complete: the turn may not end */
    ESP_CONSTRAINT_MAY_END, /* complete as it stands, more may follow */
    ESP_CONSTRAINT_ENDED    /* complete, and nothing may follow: the generation finishes */
};

/*
 * All calls come from the engine's thread, one at a time, while a sequence generates, stops or is cut back.
 * None may touch the engine.
 */
struct esp_constraint {
    void *user;
    /*
     * Which ids may come next. bits [n_word] has bit id % 64 of word id / 64 set for every id that the model
     * may emit at all; clear those that may not come next, all others stay as they are. Ids that end a turn
     * are the engine's business: they may come when *state is MAY_END. A constraint that has nothing to say
     * yet (free text before a tool call) leaves all bits and says MAY_END. With ENDED bits are not looked at.
     * Changes nothing that a later call could notice. A failure ends the sequence with err's message.
     */
    esp_status (*mask)(void *user, uint64_t *bits, size_t n_word, enum esp_constraint_state *state,
                       esp_error *err);
    /*
     * t follows: one of mask()'s ids, a forced one, a draft to be tried, or a token that the caller appends
     * (esp_seq_extend). *state is what holds behind it. ESP_EINVAL: t may not come here, nothing has changed.
     * Never called with an id that ends the turn, unless the sequence ignores those.
     */
    esp_status (*accept)(void *user, esp_token t, enum esp_constraint_state *state, esp_error *err);
    /* Take the last n accepted tokens back, exactly. The engine never takes back more than it gave; how many
     * that can be is not bounded by speculation alone, for a caller may cut its sequence anywhere. */
    void (*rollback)(void *user, uint32_t n);
    /*
     * Tokens that are decided already: up to cap of them to out, their number is returned, 0 when the next
     * token is a choice. They are appended without a look at the model's logits, reported as events, and
     * handed to accept() one by one. The engine asks in front of every token that it would sample, so the
     * cap must not show: after accept() of what was given, the next call gives what is left. NULL: never.
     */
    uint32_t (*forced)(void *user, esp_token *out, uint32_t cap);
    /* A second constraint in the same state, for another choice of a request. NULL: such requests are
     * refused.
     */
    esp_status (*clone)(void *user, void **out, esp_error *err);
    /* The sequence that owned it is closed or got another one. NULL: nothing to do. */
    void (*close)(void *user);
};

/*
 * Give s a constraint for the tokens it will generate; the struct is copied and what user points to belongs
 * to s from now on. NULL takes the present one away. Tokens of the sequence so far are not shown to it.
 * Rewinding behind the point where it was set takes all of its tokens back. Forks have none. ESP_ESTATE while
 * s generates; on an error c remains the caller's.
 */
esp_status esp_seq_set_constraint(esp_seq *s, const struct esp_constraint *c, esp_error *err);

#endif
