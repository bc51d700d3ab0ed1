/*
 * Loops on registers alone, for the arithmetic peaks of kernels.h. Twelve sums cover the latency of any of
 * the instructions; they are written as text, which no compiler folds.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_PEAK_H
#define ESP_KERNELS_X86_PEAK_H

#include "kernels/levels.h"
#include "kernels/x86/parts.h"

enum { PEAK_SUMS = 12 };

/* STEP(sum) for each of twelve sums s0 .. s11. */
#define PEAK_EACH(STEP)                                                                                      \
    STEP(s0);                                                                                                \
    STEP(s1);                                                                                                \
    STEP(s2);                                                                                                \
    STEP(s3);                                                                                                \
    STEP(s4);                                                                                                \
    STEP(s5);                                                                                                \
    STEP(s6);                                                                                                \
    STEP(s7);                                                                                                \
    STEP(s8);                                                                                                \
    STEP(s9);                                                                                                \
    STEP(s10);                                                                                               \
    STEP(s11)

#endif
