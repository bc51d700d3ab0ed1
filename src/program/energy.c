/*
 * A package is a folder called TYPE:N with the files energy_uj and max_energy_range_uj; TYPE:N:M are its
 * parts, which it contains.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/energy.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_number(const char *folder, const char *file, uint64_t *out)
{
    char path[320], line[64], *end = line;
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, file);
    f = fopen(path, "re");
    if (!f)
        return false;
    if (fgets(line, sizeof line, f))
        *out = strtoull(line, &end, 10);
    fclose(f);
    return end != line;
}

/* "intel-rapl:0", not "intel-rapl:0:1" and not the same counters by another way ("intel-rapl-mmio:0"). */
static bool is_package(const char *name)
{
    const char *colon = strchr(name, ':');

    return colon && !strchr(colon + 1, ':') && !strstr(name, "mmio");
}

bool esp_energy_open(struct esp_energy *e)
{
    const char *given = getenv("ESPALIER_POWERCAP"), *root = given ? given : "/sys/class/powercap";
    DIR *d = opendir(root);
    const struct dirent *entry;

    memset(e, 0, sizeof *e);
    if (!d)
        return false;
    while (e->n_package < ESP_MAX_PACKAGES && (entry = readdir(d)) != NULL) {
        char *path = e->package[e->n_package].path;
        const size_t cap = sizeof e->package[0].path;
        uint64_t value;

        if (!is_package(entry->d_name) || snprintf(path, cap, "%s/%s", root, entry->d_name) >= (int)cap ||
            !read_number(path, "energy_uj", &value))
            continue;
        if (!read_number(path, "max_energy_range_uj", &e->package[e->n_package].range))
            e->package[e->n_package].range = 0;
        e->n_package++;
    }
    closedir(d);
    esp_energy_start(e);
    return e->n_package > 0;
}

void esp_energy_start(struct esp_energy *e)
{
    for (size_t i = 0; i < e->n_package; i++)
        read_number(e->package[i].path, "energy_uj", &e->package[i].start);
}

double esp_energy_used(const struct esp_energy *e)
{
    double joules = 0;

    for (size_t i = 0; i < e->n_package; i++) {
        const uint64_t start = e->package[i].start;
        uint64_t now;

        if (read_number(e->package[i].path, "energy_uj", &now))
            joules += 1e-6 * (double)(now >= start ? now - start : now + e->package[i].range - start);
    }
    return joules;
}
