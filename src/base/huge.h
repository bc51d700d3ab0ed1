/*
 * Large blocks of memory in large pages. A product walks through gigabytes a step; in pages of 4 KiB every
 * one of them is a translation that the processor must look up. Transparent huge pages come with a hint, on
 * memory that is aligned to them; pages of the system's reserved pool (hugetlb) are certain, and taken in
 * whole.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_HUGE_H
#define ESP_BASE_HUGE_H

#include <stddef.h>

#include "base/status.h"

enum esp_huge {
    ESP_HUGE_AUTO,    /* transparent huge pages where the system grants them */
    ESP_HUGE_ON,      /* the same; whoever asks refuses systems that grant none */
    ESP_HUGE_OFF,     /* none, also where the system would give them unasked */
    ESP_HUGE_HUGETLB, /* blocks of ESP_HUGE_PAGE bytes or more: of the reserved pool, or not at all */
};
enum { ESP_HUGE_PAGE = 2 << 20 };

/* "auto", "on", "off", "hugetlb"; NULL: auto. ESP_EINVAL. */
esp_status esp_huge_parse(enum esp_huge *out, const char *name, esp_error *err);
/* Whether the system grants transparent huge pages: ESP_EDEVICE says which setting denies them. */
esp_status esp_huge_check(esp_error *err);
/* Bytes that a block of so many takes. */
size_t esp_huge_round(enum esp_huge h, size_t bytes);
/*
 * A block of zeroed bytes, aligned to ESP_HUGE_PAGE where it may have huge pages. Given back with the same h
 * and size. ESP_ENOMEM; ESP_ENOFIT when the reserved pool is too small, with its numbers.
 */
esp_status esp_huge_take(void **out, size_t bytes, enum esp_huge h, esp_error *err);
void esp_huge_give(void *p, size_t bytes, enum esp_huge h); /* NULL is fine */
/* Ask for huge pages under bytes that are mapped from a file: file systems with large folios may read it in
 * them. */
void esp_huge_advise(const void *p, size_t bytes);

#endif
