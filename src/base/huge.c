/*
 * Linux's two kinds of huge pages. A block for transparent ones is mapped with one page to spare, and what
 * lies before the first boundary and behind the end is given back, so that alignment takes no memory: the
 * last part of a block that fills no huge page is in small ones.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/huge.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/mem.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
enum { LOG2_HUGE = 21 };

static const char transparent[] = "/sys/kernel/mm/transparent_hugepage/enabled";
#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static const char *const names[] = {
    [ESP_HUGE_AUTO] = "auto", [ESP_HUGE_ON] = "on", [ESP_HUGE_OFF] = "off", [ESP_HUGE_HUGETLB] = "hugetlb"};

esp_status esp_huge_parse(enum esp_huge *out, const char *name, esp_error *err)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (name && strcmp(name, names[i]) != 0)
            continue;
        *out = (enum esp_huge)i;
        return ESP_OK;
    }
    return esp_fail(err, ESP_EINVAL, "huge pages \"%s\"; accepted: auto, on, off, hugetlb", name);
}

/* The line of a small system file; false when there is none. */
static bool read_line(const char *path, char *buf, int cap)
{
    FILE *f = fopen(path, "re");
    bool ok;

    if (!f)
        return false;
    ok = fgets(buf, cap, f) != NULL;
    fclose(f);
    return ok;
}

static unsigned long pool_pages(const char *path)
{
    char line[64];

    return read_line(path, line, sizeof line) ? strtoul(line, NULL, 10) : 0;
}

esp_status esp_huge_check(esp_error *err)
{
    char line[128];

    if (!read_line(transparent, line, sizeof line))
        return esp_fail(err, ESP_EDEVICE, "this kernel has no transparent huge pages (no %s)", transparent);
    if (strstr(line, "[never]"))
        return esp_fail(
            err, ESP_EDEVICE,
            "transparent huge pages are switched off: %s is \"never\"; as root, write madvise into "
            "it",
            transparent);
#ifdef PR_GET_THP_DISABLE
    if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1)
        return esp_fail(err, ESP_EDEVICE,
                        "transparent huge pages are switched off for this process by what started it "
                        "(PR_SET_THP_DISABLE)");
#endif
    return ESP_OK;
}

static bool reserved(enum esp_huge h, size_t bytes)
{
    return h == ESP_HUGE_HUGETLB && bytes >= ESP_HUGE_PAGE;
}

size_t esp_huge_round(enum esp_huge h, size_t bytes)
{
    const size_t rest = bytes % ESP_HUGE_PAGE;

    return reserved(h, bytes) && rest && bytes <= SIZE_MAX - ESP_HUGE_PAGE ? bytes + ESP_HUGE_PAGE - rest
                                                                           : bytes;
}

static void *map(size_t bytes, int flags)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* A mapping that starts at a multiple of ESP_HUGE_PAGE. */
static void *map_aligned(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (bytes + page - 1) / page * page;
    size_t before;
    uint8_t *p;

    if (bytes > SIZE_MAX - 2 * (size_t)ESP_HUGE_PAGE)
        return NULL;
    p = map(used + ESP_HUGE_PAGE, 0);
    if (!p)
        return NULL;
    before = (ESP_HUGE_PAGE - (uintptr_t)p % ESP_HUGE_PAGE) % ESP_HUGE_PAGE;
    if (before)
        munmap(p, before);
    if (before != ESP_HUGE_PAGE)
        munmap(p + before + used, ESP_HUGE_PAGE - before);
    return p + before;
}

static esp_status take_reserved(void **out, size_t bytes, esp_error *err)
{
    void *p = map(esp_huge_round(ESP_HUGE_HUGETLB, bytes), MAP_HUGETLB | LOG2_HUGE << MAP_HUGE_SHIFT);

    if (!p)
        return esp_fail(
            err, ESP_ENOFIT,
            "%zu huge pages of 2 MiB are needed, %lu of %lu are free; as root, write more into " POOL
            "nr_hugepages",
            esp_huge_round(ESP_HUGE_HUGETLB, bytes) / ESP_HUGE_PAGE, pool_pages(POOL "free_hugepages"),
            pool_pages(POOL "nr_hugepages"));
    *out = p;
    return ESP_OK;
}

esp_status esp_huge_take(void **out, size_t bytes, enum esp_huge h, esp_error *err)
{
    void *p;

    if (reserved(h, bytes))
        return take_reserved(out, bytes, err);
    p = h == ESP_HUGE_OFF || bytes < ESP_HUGE_PAGE ? map(bytes ? bytes : 1, 0) : map_aligned(bytes);
    if (!p)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu bytes", bytes);
    if (bytes >= ESP_HUGE_PAGE) /* hints; refusal costs speed only */
        madvise(p, bytes, h == ESP_HUGE_OFF ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    *out = p;
    return ESP_OK;
}

void esp_huge_give(void *p, size_t bytes, enum esp_huge h)
{
    if (p)
        munmap(p, esp_huge_round(h, bytes ? bytes : 1));
}

void esp_huge_advise(const void *p, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)p / page * page;

    if (bytes)
        madvise((void *)first, (uintptr_t)p + bytes - first, MADV_HUGEPAGE);
}
