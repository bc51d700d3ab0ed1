/*
 * Energy that the processor packages have used, by the counters that Linux shows below /sys/class/powercap
 * (RAPL). Most systems let root alone read them.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_ENERGY_H
#define ESP_PROGRAM_ENERGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ESP_MAX_PACKAGES = 16 };

struct esp_energy {
    struct {
        char path[256];
        uint64_t start, range; /* microjoules; the counter goes back to 0 behind range */
    } package[ESP_MAX_PACKAGES];
    size_t n_package;
};

/* Find the packages whose counters can be read, in $ESPALIER_POWERCAP instead of the system's folder where
 * that is set. False: there are none. */
bool esp_energy_open(struct esp_energy *e);
/* Begin to count. */
void esp_energy_start(struct esp_energy *e);
/* Joules of all packages since then, for times below one turn of a counter (a minute at the least). */
double esp_energy_used(const struct esp_energy *e);

#endif
