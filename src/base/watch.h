/*
 * What the sanitizers are told of memory that code compiled without them reads or writes: the kernels of
 * products, attention and delta rule (cmake/cpu_flags.cmake), which read so much that looking at each load
 * takes nine tenths of such a run. The thread sanitizer takes it as the access; the address sanitizer reports
 * bytes that may not be touched. In every other build these are nothing.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_WATCH_H
#define ESP_BASE_WATCH_H

#include <stddef.h>

#if defined(__SANITIZE_THREAD__)
void __tsan_read_range(const void *p, size_t n);
void __tsan_write_range(void *p, size_t n);
#elif defined(__SANITIZE_ADDRESS__)
void *__asan_region_is_poisoned(void *p, size_t n);
#endif

/* The n bytes at p have been read by this thread. */
static inline void esp_watch_read(const void *p, size_t n)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_read_range(p, n);
#elif defined(__SANITIZE_ADDRESS__)
    const volatile char *bad = __asan_region_is_poisoned((void *)(size_t)p, n);

    if (bad)
        (void)*bad; /* the report */
#else
    (void)p;
    (void)n;
#endif
}

/* The n bytes at p have been written by this thread. */
static inline void esp_watch_write(void *p, size_t n)
{
#if defined(__SANITIZE_THREAD__)
    __tsan_write_range(p, n);
#else
    esp_watch_read(p, n);
#endif
}

#endif
