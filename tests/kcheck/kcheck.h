/*
 * kcheck tests and times every kernel of every CPU level. A theme's file names its entries, makes inputs, and
 * compares with an oracle in double precision; whether an entry is new at a level is decided here, so that a
 * new variant of a kernel needs no code in this folder.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KCHECK_H
#define ESP_KCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* Unit roundoff of f32. A sum of terms t_i through d additions is off by at most d * KC_U * sum |t_i|. */
#define KC_U 0x1p-24
/* Roundings that a kernel may spend on a sum of n terms: eight partial sums or more, and their combination.
 */
#define KC_SUM(n) ((double)(n) / 8 + 16)
/* Relative error granted to exp, and to functions made of it (sigmoid, silu), in units of KC_U: 4 ulp and two
 * more. */
#define KC_EXP     8
#define KC_SIGMOID 12
/* silu and sigmoid may flush to 0 where exp(-x) overflows f32: x = -88.7 gives 88.7 * exp(-88.7) = 3e-37. */
#define KC_SILU_FLOOR 1e-36
#define KC_TINY       0x1p-148 /* a rounding in the subnormal range */

enum kc_pattern { KC_RANDOM, KC_ZERO, KC_ONEHOT, KC_EXTREME, KC_DENORMAL, KC_CONSTANT, KC_PATTERN_COUNT };
extern const char *const kc_pattern_names[KC_PATTERN_COUNT];

typedef void (*kc_fn)(void);
enum { KC_BUF_MAX = 96 };

struct kc_buf {
    uint8_t *map; /* unreadable page, pages, unreadable page */
    size_t map_bytes;
    uint8_t *data;
    size_t bytes;
};

struct kc {
    const struct esp_kernels *k;     /* table under test */
    const struct esp_kernels *below; /* the level below it, NULL for the reference */
    const struct esp_kernels *ref;
    uint64_t seed, every; /* every: 0 or 1 is all cases, N about one in N of those that take long */
    const char *filter;   /* glob on entry names, or NULL */
    bool bench, json, list;
    double read_gbs;     /* measured read bandwidth of one core */
    double dot_gops;     /* measured peak of byte dot products of one core, 0 where it has none */
    double tile_gops[2]; /* peaks of byte products of AMX tiles of one core, see kc_tile_peak(); or 0 */
    unsigned n_dot;      /* byte dot products that the entry takes for each multiply-add, else 0 */
    unsigned passed, failed;
    char entry[64];
    char name[192]; /* of the case */
    bool case_failed;
    uint64_t rng;
    struct kc_buf buf[KC_BUF_MAX];
    size_t n_buf;
};

/* Whether to check an entry at this level: new against the level below, and matched by the filter. Sets
 * kc->entry. */
bool kc_entry(struct kc *kc, kc_fn fn, kc_fn below, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#define KC_ENTRY(kc, field)                                                                                  \
    kc_entry(kc, (kc_fn)(kc)->k->field, (kc)->below ? (kc_fn)(kc)->below->field : NULL, #field)

/* A case: seeds the generator from seed and names; kc_end checks canaries, frees buffers and counts. False:
 * one that --every leaves out; where cases are many and long, the caller does without it then. */
bool kc_begin(struct kc *kc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kc_end(struct kc *kc);

/*
 * Memory of a case, with an unreadable page before and after and canaries in between. The last byte of the
 * data is `gap` bytes before the unreadable page, or a little more when align asks for it. Filled with
 * canaries (NaN as f32).
 */
void *kc_alloc(struct kc *kc, size_t bytes, size_t align, size_t gap);
float *kc_floats(struct kc *kc, size_t n);     /* aligned to 4: ends exactly at the page */
void kc_protect(struct kc *kc, const void *p); /* from now on a write to it faults */

uint64_t kc_next(struct kc *kc);
uint32_t kc_below(struct kc *kc, uint32_t n);      /* uniform in [0, n) */
float kc_uniform(struct kc *kc, float a, float b); /* uniform in [a, b) */
float kc_normal(struct kc *kc);                    /* about normal, variance 1 */
/* extreme: the magnitude that KC_EXTREME may use with either sign. */
void kc_fill(struct kc *kc, float *x, size_t n, enum kc_pattern p, float extreme);

/* Comparisons; the first failure of a case is printed with its index. NaN is wanted where want is NaN. */
void kc_near(struct kc *kc, size_t index, double got, double want, double bound);
/* Equal bits; zeros of either sign are equal (a sum that starts from +0 and one that does not differ in that
 * alone). */
void kc_same(struct kc *kc, const float *got, const float *want, size_t n);
void kc_equal(struct kc *kc, size_t index, uint64_t got, uint64_t want);
/* Elements [n, ld) of each row still hold the canary. */
void kc_gaps(struct kc *kc, const float *y, size_t n_row, size_t n, size_t ld);

/* Timing: median seconds of run(ctx). */
double kc_time(void (*run)(void *ctx), void *ctx);
/* Report one timing; bytes and flops of one call (0: not meaningful), seconds of the reference for the same
 * work. */
void kc_report(struct kc *kc, const char *what, double seconds, double ref_seconds, double bytes,
               double flops);
double kc_read_bandwidth(void); /* GB/s of one core on memory beyond the caches */
double kc_dot_peak(void);       /* GFLOP/s of byte dot products on one core's registers, 0 without VNNI */
/* The same of AMX tiles: on registers, and loaded from the nearest cache. */
void kc_tile_peak(double peak[2]);

/* The themes. Each checks its entries, or times them when kc->bench. */
void kc_linear(struct kc *kc);
void kc_trellis(struct kc *kc);
void kc_norm(struct kc *kc);
void kc_vec(struct kc *kc);
void kc_convert(struct kc *kc);
void kc_conv(struct kc *kc);
void kc_delta(struct kc *kc);
void kc_attend(struct kc *kc);
void kc_viterbi(struct kc *kc);

#endif
