/*
 * What the tests of speculation share: the demo model, seven requests with their answers, the options of an
 * engine that must speculate, and drafters that are always right or always wrong.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_DRAFTS_H
#define ESP_TESTS_DRAFTS_H

#include "support/texts.h"

#include "engine/spec.h"

enum { TEST_REQUESTS = 7, TEST_ROWS = 3 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SLOW 1 /* fewer depths and texts */
#else
#define TEST_SLOW 0
#endif

struct test_drafts {
    esp_model *model;
    struct test_text r[TEST_REQUESTS];
    struct test_run runs[TEST_REQUESTS];
    int32_t *ids;
    esp_engine_opts keep; /* kv, kv_start and state of every engine */
};
extern struct test_drafts test_drafts;

/* Open the model and record answers of at most most_new tokens; close it. */
void test_drafts_open(size_t most_new);
void test_drafts_close(void);
/* Record the answers of all requests as they are now, alone and without drafts. */
void test_drafts_record(void);
/* $ESPALIER_TEST_LONG is set: every depth, every cut. */
bool test_long(void);

/* Options of an engine for all requests that drafts `depth` tokens in every step; the draft model is the
 * model itself. */
esp_engine_opts test_drafts_options(esp_spec spec, uint32_t depth);
/* An engine of 400 positions unless o says another number. */
esp_engine *test_drafts_engine(esp_engine_opts o);
/* All requests at once, arriving within a few steps; number 1 is closed at step `cancel`, 0: never. */
esp_stats test_drafts_run(esp_engine *g, uint32_t cancel);

/* An engine whose drafts are the answers of test_drafts.runs, each id moved up by `off`. *d must outlive it.
 */
esp_engine *test_double_open(esp_engine_opts o, struct esp_drafter *d, int32_t off);

#endif
