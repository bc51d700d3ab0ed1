/*
 * A random model's engine against the naive forward pass: at every CPU level of this machine, 1 and 2
 * threads, several cuts of the prompt.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_COMPARE_H
#define ESP_TESTS_COMPARE_H

#include "support/modelfile.h"
#include "support/net.h"

/*
 * Largest difference from the naive pass in units of the logits' standard deviation. A product of n terms in
 * f32 in any order is off by about sqrt(n) * 2^-24 of its terms' size, a layer chains about ten of them, and
 * six layers add up: 60 * sqrt(512) * 2^-24 = 8e-5.
 */
#define COMPARE_TOLERANCE 1e-4

struct compare_seq { /* one sequence's part of a batch */
    struct esp_state *state;
    const int32_t *ids;
    const int32_t (*pos)[3]; /* NULL: the cache index on all axes */
    uint32_t n;
    float *logits;       /* [n][vocab] */
    uint32_t first_page; /* out: page that holds position 0 */
};

/* All sequences in one pass of one batch. */
void compare_batch(struct test_net *t, struct compare_seq *seqs, uint32_t n_seq);
/* One sequence from an empty state, in passes of at most cut tokens (0: one pass). */
void compare_run(struct test_net *t, const int32_t *ids, const int32_t (*pos)[3], uint32_t n, uint32_t cut,
                 float *logits);

/* Largest |got - want| and root mean square of got - want, both by the standard deviation of want. */
double compare_max(const float *got, const double *want, size_t n);
double compare_rms(const float *got, const double *want, size_t n);
/* The same between two naive results: how much a twist shows. */
double compare_twist(const double *twisted, const double *right, size_t n);

/* The folder's logits of n tokens at the best level, in one pass. */
void compare_logits(const char *folder, const int32_t *ids, uint32_t n, float *logits);
/*
 * The folder's model equals m's naive logits within tolerance everywhere; and at each level the bits are the
 * same by one thread at once, by one thread token by token, and by two threads in passes of 7.
 */
void compare_all(const char *folder, const struct mf_model *m, uint32_t n, double tolerance);
/* Opening the folder's weights fails with that status, and the message contains part. */
void compare_refused(const char *folder, esp_status status, const char *part);
/* How many of the warnings that come with opening the folder contain part. */
uint32_t compare_warnings(const char *folder, const char *part);

/* Whether this machine has the level. */
bool compare_has_level(int level);

#endif
