/*
 * The triangular factor that carries rounding errors from one input to the next (LDLQ). For inputs with
 * second moments H = E[x x^T], what an error matrix E costs is tr(E H E^T) = |E C|^2 with H = C C^T. We take
 * C upper triangular and go through the inputs first to last, so that the trellis, which also runs forward,
 * can use errors of its own block.
 *
 * Inputs are taken in groups of g: one group is rounded without feedback inside, and the next ones then aim
 * at u_Q = w_Q + sum over earlier inputs i of (w_i - w^_i) * L[i][Q],   L[:, Q] = C[:, Q] C[Q, Q]^-1. g = 1
 * is plain LDLQ (which is GPTQ), g = 256 is feedback from trellis block to trellis block.
 *
 * Source  Chee, Cai, Kuleshov, De Sa, arXiv:2307.13304 (LDLQ); arXiv:2406.11235 (blocks).
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_LDLQ_H
#define ESP_QUANTIZE_LDLQ_H

#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"

/* Read-only once made; may be shared by all weights that have the same inputs and by several threads. */
struct esp_ldlq {
    uint32_t n;     /* inputs */
    uint32_t group; /* g: a power of two, 1..256; the last group may be shorter */
    float *feed;    /* [n][n]: L[i][j] for i < the group of j, 0 elsewhere (also inside a group) */
    float
        *diag; /* [n][g]: row i holds C[i][its group's columns], upper triangular: the cost inside a group */
    double damping; /* what was added to the diagonal of H in the end, absolute */
    uint32_t n_try; /* factorizations it took, 1 unless H was badly conditioned */
};

struct esp_ldlq_opts {
    uint32_t group; /* 0: 1 */
    double damping; /* fraction of the mean diagonal; 0: 0.01. Ten times that after a failure, 5 tries */
    struct esp_pool *pool; /* NULL: the calling thread alone */
};

/*
 * Factor h [n][n] f32, symmetric, row-major (only its upper triangle is read). Result does not depend on the
 * number of threads. Takes 8 n^2 bytes while it runs. Errors: ESP_ENUMERIC for a non-finite entry, a negative
 * diagonal (with its place), an all-zero matrix, a matrix indefinite after 5 tries; ESP_EINVAL for a group
 * that does not fit; ESP_EUNSUPPORTED without OpenBLAS; ESP_ENOMEM.
 */
esp_status esp_ldlq_create(struct esp_ldlq **out, const float *h, uint32_t n, const struct esp_ldlq_opts *o,
                           esp_error *err);
void esp_ldlq_destroy(struct esp_ldlq *f); /* NULL is a no-op */

#endif
