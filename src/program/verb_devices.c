/*
 * devices: what computes here.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <jansson.h>

#include "program/machine.h"
#include "program/output.h"

static void print_row(const char *name, uint64_t bytes)
{
    char text[32];

    if (bytes)
        esp_out_printf("%-10s %s\n", name, esp_format_bytes(text, sizeof text, (double)bytes));
}

int esp_verb_devices(const struct esp_options *o)
{
    const uint32_t wanted = (uint32_t)o->v[OPT_THREADS].i;
    struct esp_machine m;
    double bandwidth = 0;
    esp_error err = {0};
    uint32_t threads;

    esp_machine_read(&m);
    threads = wanted ? wanted : m.cores;
    if (o->v[OPT_VERBOSE].i) {
        const esp_status s = esp_machine_bandwidth(&m, threads, &bandwidth, &err);

        if (s != ESP_OK)
            return esp_report(s, &err);
    }
    if (esp_out_is_json()) {
        json_t *device = json_pack("{s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:{s:I,s:I,s:I},s:I,s:I}", "id", "cpu",
                                   "name", m.cpu, "arch", m.arch, "features", m.features, "level", m.level,
                                   "cores", m.cores, "threads", m.threads, "cache", "l1d", (json_int_t)m.l1d,
                                   "l2", (json_int_t)m.l2, "l3", (json_int_t)m.l3, "memory",
                                   (json_int_t)m.ram, "memory_available", (json_int_t)m.ram_available);

        if (bandwidth > 0)
            json_object_set_new(device, "read_bytes_per_s", json_real(bandwidth));
        esp_out_json(json_pack("{s:[o]}", "devices", device));
        return 0;
    }
    esp_out_printf("%-10s %s\n%-10s %s\n%-10s %s (kernels: %s)\n%-10s %u, %u threads\n", "cpu", m.cpu, "arch",
                   m.arch, "features", m.features, m.level, "cores", m.cores, m.threads);
    print_row("L1 data", m.l1d);
    print_row("L2", m.l2);
    print_row("L3", m.l3);
    print_row("memory", m.ram);
    print_row("available", m.ram_available);
    if (bandwidth > 0)
        esp_out_printf("%-10s %.2f GB/s reading with %u threads\n", "bandwidth", bandwidth / 1e9, threads);
    return 0;
}
