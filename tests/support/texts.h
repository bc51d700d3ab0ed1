/*
 * Requests whose answers are known, and engines that must give them whatever else they do: the same tokens,
 * log-probabilities bit for bit, and ends. A request's answer is recorded once, alone and without any help,
 * and compared in every other run.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_TEXTS_H
#define ESP_TESTS_TEXTS_H

#include "support/support.h"

#include "espalier/espalier.h"

enum { TEST_MAX_NEW = 48 };

struct test_text {
    const esp_token *prompt; /* [n] */
    size_t n, n_new;
    esp_seq_opts opts;
    /* The answer. */
    esp_token want[TEST_MAX_NEW];
    float logprob[TEST_MAX_NEW];
    size_t n_want;
    esp_finish finish;
    /* Called when a sequence was opened and its prompt appended; NULL: nothing to do. */
    void (*prepare)(struct test_text *r, esp_seq *s);
};

struct test_run { /* one request in flight */
    struct test_text *r;
    esp_seq *seq;
    size_t got;
    uint32_t start;  /* step at which it arrives */
    uint32_t cancel; /* step at which it is closed; 0: never */
    bool done;
};

/* Run all of x to their ends in g, each from its start step on; record: what comes is the answer. */
void test_drive(esp_engine *g, struct test_run *x, size_t n_run, bool record);

/* A sequence with r's prompt. */
esp_seq *test_text_open(esp_engine *g, struct test_text *r);
/* Generate n tokens that must be r's answer from number `from` on. */
void test_text_expect(esp_engine *g, esp_seq *s, const struct test_text *r, size_t from, size_t n);
/* The next event of an engine, in as many steps as it takes. */
esp_event test_next_event(esp_engine *g);

/*
 * n requests, at most 64, from the demo model's validation text, where drafts are often right: prompts of
 * 1, 62, 64, 230, 127, 255 and 33 tokens, greedy and seeded in turn, some with penalties and the most likely
 * tokens. *ids holds the prompts; free() it behind the last use.
 */
void test_texts(struct test_text *r, uint32_t n, int32_t **ids);

#endif
