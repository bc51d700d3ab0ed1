/*
 * OpenBLAS for second moments, loaded when it is needed: only quantizing needs it, and a process that loads
 * it pays for its threads and tables. Its threads are switched off while it is open here, so that every
 * product is made by the thread that asks for it, in an order fixed by its shape. The switch is one of the
 * whole process; two of our calls at the same time are safe, but a program that uses OpenBLAS elsewhere at
 * that moment gets one thread too.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_BLAS_H
#define ESP_QUANTIZE_BLAS_H

#include <stddef.h>

#include "base/status.h"

/* Numbers of the C interface, which every BLAS has in common. */
enum esp_blas_order { ESP_BLAS_ROWS = 101 };
enum esp_blas_trans { ESP_BLAS_PLAIN = 111, ESP_BLAS_TRANS = 112 };
enum esp_blas_half { ESP_BLAS_UPPER = 121, ESP_BLAS_LOWER = 122 };
enum esp_blas_diag { ESP_BLAS_NON_UNIT = 131 };
enum esp_blas_side { ESP_BLAS_LEFT = 141, ESP_BLAS_RIGHT = 142 };

/* The functions used, as cblas.h and LAPACK declare them. Sizes are 32-bit integers. */
struct esp_blas {
    void *library;
    int threads; /* that it had before */
    int (*get_threads)(void);
    void (*set_threads)(int n);
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                  const float *b, int ldb, float beta, float *c, int ldc);
    void (*sgemv)(int order, int ta, int m, int n, float alpha, const float *a, int lda, const float *x,
                  int incx, float beta, float *y, int incy);
    void (*strmm)(int order, int side, int half, int ta, int diag, int m, int n, float alpha, const float *a,
                  int lda, float *b, int ldb);
    void (*dgemm)(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda,
                  const double *b, int ldb, double beta, double *c, int ldc);
    void (*dtrsm)(int order, int side, int half, int ta, int diag, int m, int n, double alpha,
                  const double *a, int lda, double *b, int ldb);
    void (*dscal)(int n, double alpha, double *x, int incx);
    void (*dpotrf)(const char *half, const int *n, double *a, const int *lda, int *info, size_t half_len);
};

/* Load it and switch its threads off. ESP_EUNSUPPORTED: it is not installed, or lacks a function. */
esp_status esp_blas_open(struct esp_blas *b, esp_error *err);
/* Switch its threads on again; it stays loaded. */
void esp_blas_close(const struct esp_blas *b);

#endif
