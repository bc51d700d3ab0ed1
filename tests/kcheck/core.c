/*
 * Cases, guarded memory, inputs and comparisons of kcheck. Every buffer lies between two unreadable pages, so
 * that a read or write outside faults, and the fault handler can name the case.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const kc_pattern_names[KC_PATTERN_COUNT] = {"random",  "zero",     "onehot",
                                                        "extreme", "denormal", "constant"};

enum { CANARY = 0xff }; /* 0xffffffff is a NaN: a canary that is read as input shows in the result */

bool kc_entry(struct kc *kc, kc_fn fn, kc_fn below, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(kc->entry, sizeof kc->entry, fmt, args);
    va_end(args);
    if (kc->filter && fnmatch(kc->filter, kc->entry, 0) != 0)
        return false;
    if (!fn) {
        printf("FAIL %s/%s: the entry is not set\n", kc->k->isa, kc->entry);
        kc->failed++;
        return false;
    }
    if (kc->below && fn == below)
        return false;
    if (kc->list) {
        printf("%s/%s\n", kc->k->isa, kc->entry);
        return false;
    }
    return true;
}

static uint64_t hash(uint64_t h, const char *s)
{
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3; /* FNV-1a */
    return h;
}

bool kc_begin(struct kc *kc, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(kc->name, sizeof kc->name, fmt, args);
    va_end(args);
    kc->case_failed = false;
    kc->rng = hash(hash(kc->seed ^ 0xcbf29ce484222325, kc->entry), kc->name);
    return kc->every < 2 || (kc->rng >> 32) % kc->every == 0;
}

static void fail(struct kc *kc)
{
    kc->case_failed = true;
    printf("FAIL %s/%s seed %" PRIu64 " case %s: ", kc->k->isa, kc->entry, kc->seed, kc->name);
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void check_canaries(struct kc *kc, size_t index)
{
    const struct kc_buf *b = &kc->buf[index];
    const uint8_t *first = b->map + page_bytes();
    const uint8_t *end = b->map + b->map_bytes - page_bytes();

    for (const uint8_t *p = first; p < end && !kc->case_failed; p++) {
        if (p == b->data)
            p += b->bytes;
        if (p < end && *p != CANARY) {
            fail(kc);
            printf("buffer %zu of %zu bytes: byte %td was written\n", index, b->bytes, p - b->data);
        }
    }
}

void kc_end(struct kc *kc)
{
    for (size_t i = 0; i < kc->n_buf; i++) {
        check_canaries(kc, i);
        munmap(kc->buf[i].map, kc->buf[i].map_bytes);
    }
    kc->n_buf = 0;
    if (kc->case_failed)
        kc->failed++;
    else
        kc->passed++;
}

void *kc_alloc(struct kc *kc, size_t bytes, size_t align, size_t gap)
{
    const size_t page = page_bytes();
    const size_t inner = (bytes + gap + align + page - 1) / page * page;
    struct kc_buf *b = &kc->buf[kc->n_buf];

    if (kc->n_buf == KC_BUF_MAX) {
        fprintf(stderr, "kcheck: too many buffers in case %s\n", kc->name);
        exit(2);
    }
    b->map_bytes = inner + 2 * page;
    b->map = mmap(NULL, b->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED) {
        perror("kcheck: mmap");
        exit(2);
    }
    mprotect(b->map, page, PROT_NONE);
    mprotect(b->map + page + inner, page, PROT_NONE);
    memset(b->map + page, CANARY, inner);
    b->data = b->map + page + inner - gap - bytes;
    b->data -= (uintptr_t)b->data % align;
    b->bytes = bytes;
    kc->n_buf++;
    return b->data;
}

float *kc_floats(struct kc *kc, size_t n)
{
    return kc_alloc(kc, n * sizeof(float), sizeof(float), 0);
}

void kc_protect(struct kc *kc, const void *p)
{
    for (size_t i = 0; i < kc->n_buf; i++) {
        const struct kc_buf *b = &kc->buf[i];

        if (b->data == p)
            mprotect(b->map + page_bytes(), b->map_bytes - 2 * page_bytes(), PROT_READ);
    }
}

uint64_t kc_next(struct kc *kc)
{
    uint64_t z = kc->rng += 0x9e3779b97f4a7c15; /* splitmix64 (Steele, Lea, Flood 2014) */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

uint32_t kc_below(struct kc *kc, uint32_t n)
{
    return (uint32_t)((kc_next(kc) >> 32) * n >> 32);
}

float kc_uniform(struct kc *kc, float a, float b)
{
    return a + (b - a) * (float)(kc_next(kc) >> 40) * 0x1p-24f;
}

float kc_normal(struct kc *kc)
{
    float sum = 0;

    for (int i = 0; i < 4; i++)
        sum += kc_uniform(kc, -1, 1);
    return sum * 0.8660254f; /* four uniforms of variance 1/3 */
}

void kc_fill(struct kc *kc, float *x, size_t n, enum kc_pattern p, float extreme)
{
    const size_t hot = n ? kc_below(kc, (uint32_t)n) : 0;
    const float constant =
        kc_uniform(kc, 0.05f, 0.2f); /* rounding errors of a running sum all point one way */

    for (size_t i = 0; i < n; i++) {
        switch (p) {
        case KC_RANDOM: /* with outliers, as activations have */
            x[i] = kc_normal(kc) * (kc_below(kc, 100) ? 1.0f : 30.0f);
            break;
        case KC_ONEHOT:
            x[i] = i == hot ? 1.5f : 0.0f;
            break;
        case KC_EXTREME:
            x[i] = (kc_below(kc, 2) ? extreme : -extreme) * (kc_below(kc, 4) ? 1.0f : kc_uniform(kc, 0, 1));
            break;
        case KC_DENORMAL:
            x[i] = kc_normal(kc) * 1e-40f;
            break;
        case KC_CONSTANT:
            x[i] = constant;
            break;
        default:
            x[i] = 0;
        }
    }
}

void kc_near(struct kc *kc, size_t index, double got, double want, double bound)
{
    if (kc->case_failed || (isnan(want) ? isnan(got) : fabs(got - want) <= bound))
        return;
    fail(kc);
    printf("index %zu is %.9g, wanted %.9g within %.3g\n", index, got, want, bound);
}

void kc_same(struct kc *kc, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n && !kc->case_failed; i++) {
        if (memcmp(got + i, want + i, sizeof *got) == 0 || (got[i] == 0 && want[i] == 0))
            continue;
        fail(kc);
        printf("index %zu is %.9g (%a), not the same bits as %.9g (%a)\n", i, (double)got[i], (double)got[i],
               (double)want[i], (double)want[i]);
    }
}

void kc_equal(struct kc *kc, size_t index, uint64_t got, uint64_t want)
{
    if (kc->case_failed || got == want)
        return;
    fail(kc);
    printf("index %zu is %" PRIu64 " (0x%" PRIx64 "), wanted %" PRIu64 " (0x%" PRIx64 ")\n", index, got, got,
           want, want);
}

void kc_gaps(struct kc *kc, const float *y, size_t n_row, size_t n, size_t ld)
{
    static const uint32_t canary = 0xffffffff;

    for (size_t r = 0; r + 1 < n_row; r++) {
        for (size_t i = n; i < ld; i++) {
            uint32_t bits;

            memcpy(&bits, y + r * ld + i, sizeof bits);
            kc_equal(kc, r * ld + i, bits, canary);
        }
    }
}
