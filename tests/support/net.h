/*
 * A loaded model with a device and state pools, for tests below the engine.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_NET_H
#define ESP_TESTS_NET_H

#include "model/net.h"
#include "state/state.h"

struct test_net {
    struct esp_checkpoint *ck;
    struct esp_source *src;
    struct esp_net *net;
    struct esp_dev *dev;
    struct esp_state_pools *pools;
    struct esp_plan *plan;
    uint32_t n_vocab;
    const struct esp_lora_set *lora[ESP_LORA_STACK]; /* applied by test_net_run() */
    uint32_t n_lora;
};

struct test_net_opts {
    const char *folder; /* in the checkout, such as "models/tiny-text"; an absolute path is taken as it is */
    enum esp_cpu_level level;
    uint32_t threads;
    enum esp_act act;
    enum esp_kv kv;
    const char *scheme; /* of keys and values by name, instead of kv; NULL: kv */
    uint32_t kv_start;  /* of a coded scheme */
    enum esp_recurrent state;
    bool expand; /* trellis weights to affine8 */
    bool mtp;    /* room for the draft layer in the cache */
    uint32_t max_rank;
    uint32_t context, max_tok, n_seq, journal_rows; /* zeros: 2048, 512, 4, 32 */
    bool cuda; /* also when $ESPALIER_TEST_DEVICE is "cuda": so tests of the CPU run on the other device */
};

/* Open o's device; where a CUDA device is asked for and there is none, the program ends with 77 (skipped) and
 * says why. */
void test_device(struct esp_dev **out, const struct test_net_opts *o);
/* The same for tests of the engine, which opens devices itself: first thing of main(). */
void test_need_device(void);
/* Fails the test when anything goes wrong. */
void test_net_open(struct test_net *t, struct test_net_opts o);
void test_net_close(struct test_net *t);

/*
 * Run n tokens behind s in passes of at most `cut` tokens (0: one pass). logits [n][n_vocab] or NULL; tap may
 * be NULL.
 */
void test_net_run(struct test_net *t, struct esp_state *s, const int32_t *ids, uint32_t n, uint32_t cut,
                  float *logits, esp_tap_fn tap, void *tap_user);

/* The level in $ESPALIER_CPU, else the machine's best. */
enum esp_cpu_level test_level(void);

#endif
