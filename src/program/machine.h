/*
 * The machine: processor, caches, memory, and how fast it reads.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_MACHINE_H
#define ESP_PROGRAM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct esp_machine {
    char cpu[128];
    char arch[32];
    char features[128];   /* those that kernels use, such as "avx2 avx512" */
    const char *level;    /* highest kernel level: "ref", "avx2", "avx512", "amx", "neon" */
    uint32_t cores;       /* physical */
    uint32_t threads;     /* that this process may run on */
    uint64_t l1d, l2, l3; /* bytes; of one core, of one core, of the largest shared cache; 0 unknown */
    uint64_t ram, ram_available;
};

/* Fields that the system does not tell stay zero or "unknown". */
void esp_machine_read(struct esp_machine *m);

/*
 * Read bandwidth in bytes per second: n_thread threads, each with four streams, over a buffer larger than the
 * last cache. Takes about half a second. ESP_ENOMEM.
 */
esp_status esp_machine_bandwidth(const struct esp_machine *m, uint32_t n_thread, double *out, esp_error *err);

/*
 * Lock what is mapped now in memory, reading it first; *bytes as the system counts it. ESP_ENOFIT names the
 * limit that was met.
 */
esp_status esp_lock_memory(uint64_t *bytes, esp_error *err);

/* This process' resident memory and what of it is in huge pages of any kind; false when the system does not
 * tell.
 */
bool esp_huge_memory(uint64_t *in_huge, uint64_t *resident);

/* Largest resident memory of this process so far, in bytes. */
uint64_t esp_peak_rss(void);

#endif
