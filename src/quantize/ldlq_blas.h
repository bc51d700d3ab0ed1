/*
 * OpenBLAS from our own threads: its threads are switched off for the time of a call, so that every product
 * is made by the thread that asks for it, in an order fixed by its shape. The switch is one of the whole
 * process; two of our calls at the same time are safe, but a program that uses OpenBLAS elsewhere at that
 * moment gets one thread too.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_LDLQ_BLAS_H
#define ESP_QUANTIZE_LDLQ_BLAS_H

#include <cblas.h>

static inline int blas_own_threads(void)
{
    const int before = openblas_get_num_threads();

    openblas_set_num_threads(1);
    return before;
}

static inline void blas_restore(int before)
{
    openblas_set_num_threads(before);
}

#endif
