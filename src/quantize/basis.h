/*
 * An orthogonal change of basis of the residual stream, Q = diag(signs) * H / sqrt(n), with H a Hadamard
 * matrix of order 2^m, 12 * 2^m or 20 * 2^m. It spreads outlying channels over all of them, which is what
 * low-bit codes want. RMS norms without gain commute with it, so a model whose norm gains are folded away
 * computes the same numbers in either basis.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_BASIS_H
#define ESP_QUANTIZE_BASIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct esp_basis {
    uint32_t n;        /* 0: the identity, of any size */
    uint32_t core;     /* 1, 12 or 20: H = H_core (x) H_2^m */
    float *sign;       /* [n] +1 or -1 */
    float *tmp;        /* [n] */
    int8_t *core_sign; /* [core][core] */
};

/* Whether a Hadamard matrix of this order is built in. */
bool esp_basis_fits(uint32_t n);
/* ESP_EUNSUPPORTED for other orders, ESP_ENOMEM. */
esp_status esp_basis_open(struct esp_basis *b, uint32_t n, uint64_t seed, esp_error *err);
void esp_basis_close(struct esp_basis *b); /* a zeroed one is fine */

/* Each of the rows [n_row][n], ld floats apart, becomes row * Q. Not for several threads on one basis. */
void esp_basis_rows(const struct esp_basis *b, float *x, size_t n_row, size_t ld);
/* W [n][n_col] becomes QT * W: a matrix that writes to the stream. tmp: [n] floats. */
void esp_basis_cols(const struct esp_basis *b, float *w, size_t n_col, float *column);

#endif
