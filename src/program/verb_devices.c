/*
 * devices: what computes here.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "espalier/espalier.h"

#include "kernels/kernels.h"

#include "program/machine.h"
#include "program/output.h"

static void print_row(const char *name, uint64_t bytes)
{
    char text[32];

    if (bytes)
        esp_out_printf("%-10s %s\n", name, esp_format_bytes(text, sizeof text, (double)bytes));
}

/*
 * Which kernel serves what: the lists from which the products themselves look up their way, so this cannot
 * say anything else. Formats that share a list are one entry.
 */
struct path_row {
    enum esp_format_id first, last; /* formats */
    enum esp_act act;
    const struct esp_path *path;
    uint32_t below; /* the path serves [path->rows, below), 0: all from there on */
};

enum { PATH_ROWS = 256 };

static bool served(enum esp_format_id f, enum esp_act a)
{
    return esp_act_resolve(f, a) == a;
}

/* Rows from which on another path of the list serves the shape, 0: none. */
static uint32_t end_of(const struct esp_path *list, const struct esp_path *p)
{
    uint32_t end = 0;

    for (; list->name; list++)
        if (list->shape == p->shape && list->rows > p->rows && (!end || list->rows < end))
            end = list->rows;
    return end;
}

static size_t path_rows(const struct esp_kernels *k, struct path_row *rows)
{
    size_t n = 0;

    for (int a = 0; a < ESP_ACT_COUNT; a++) {
        for (int f = 0, next; f < ESP_FORMAT_COUNT; f = next) {
            const struct esp_path *list = k->linear[f][a].paths;

            for (next = f + 1; next < ESP_FORMAT_COUNT && k->linear[next][a].paths == list; next++)
                if (!served((enum esp_format_id)next, (enum esp_act)a))
                    break;
            if (!served((enum esp_format_id)f, (enum esp_act)a))
                continue;
            for (const struct esp_path *p = list; p->name && n < PATH_ROWS; p++)
                rows[n++] = (struct path_row){(enum esp_format_id)f, (enum esp_format_id)(next - 1),
                                              (enum esp_act)a, p, end_of(list, p)};
        }
    }
    return n;
}

static void formats_of(const struct path_row *r, char *text, size_t size)
{
    const char *first = esp_format_get(r->first)->name, *last = esp_format_get(r->last)->name;

    if (r->first == r->last)
        snprintf(text, size, "%s", first);
    else
        snprintf(text, size, "%s to %s", first, last);
}

static void print_paths(const struct esp_kernels *k)
{
    struct path_row rows[PATH_ROWS];
    const size_t n = path_rows(k, rows);

    if (esp_cpu_note())
        esp_out_printf("%-10s %s\n", "note", esp_cpu_note());
    esp_out_printf("\nproducts with weights (%s)\n%-21s %-6s %-7s %-8s %s\n", k->isa, "weights", "act",
                   "shape", "rows", "kernel");
    for (size_t i = 0; i < n; i++) {
        char formats[48], range[24];

        formats_of(&rows[i], formats, sizeof formats);
        if (rows[i].below == rows[i].path->rows + 1)
            snprintf(range, sizeof range, "%u", rows[i].path->rows);
        else if (rows[i].below)
            snprintf(range, sizeof range, "%u to %u", rows[i].path->rows, rows[i].below - 1);
        else
            snprintf(range, sizeof range, "%u up", rows[i].path->rows);
        esp_out_printf("%-21s %-6s %-7s %-8s %s\n", formats, esp_act_name(rows[i].act),
                       esp_shape_name(rows[i].path->shape), range, rows[i].path->name);
    }
}

static json_t *json_paths(const struct esp_kernels *k)
{
    struct path_row rows[PATH_ROWS];
    const size_t n = path_rows(k, rows);
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++) {
        const struct path_row *r = &rows[i];
        json_t *formats = json_array();

        for (int f = (int)r->first; f <= (int)r->last; f++)
            json_array_append_new(formats, json_string(esp_format_get((enum esp_format_id)f)->name));
        json_array_append_new(list,
                              json_pack("{s:o,s:s,s:s,s:I,s:s}", "weights", formats, "act",
                                        esp_act_name(r->act), "shape", esp_shape_name(r->path->shape),
                                        "rows_from", (json_int_t)r->path->rows, "kernel", r->path->name));
    }
    return list;
}

/* What -v adds to the CPU. */
static void json_products(json_t *device, const struct esp_kernels *k)
{
    json_object_set_new(device, "products", json_paths(k));
    if (esp_cpu_note())
        json_object_set_new(device, "note", json_string(esp_cpu_note()));
}

/* ---- CUDA devices ---- */

/* Device n in out, or why there is none. Numbers have no gaps. */
static esp_status cuda_device(uint32_t n, esp_device *out, esp_error *err)
{
    char name[16];

    snprintf(name, sizeof name, "cuda:%u", n);
    return esp_device_look(out, name, false, err);
}

static void json_cuda(json_t *list)
{
    esp_device d;

    for (uint32_t i = 0; cuda_device(i, &d, NULL) == ESP_OK; i++)
        json_array_append_new(list, json_pack("{s:o,s:s,s:I,s:I}", "id", json_sprintf("cuda:%u", i), "name",
                                              d.name, "memory", (json_int_t)d.memory, "memory_available",
                                              (json_int_t)d.memory_free));
}

static void print_cuda(bool why)
{
    esp_error err = {0};
    uint32_t i = 0;
    esp_device d;

    for (; cuda_device(i, &d, &err) == ESP_OK; i++) {
        char all[32], left[32];

        esp_out_printf("\n%s\n%-10s %s\n%-10s %s\n", d.name, "memory",
                       esp_format_bytes(all, sizeof all, (double)d.memory), "available",
                       esp_format_bytes(left, sizeof left, (double)d.memory_free));
    }
    if (i == 0 && why)
        esp_out_printf("\nno CUDA device: %s\n", err.message);
}

int esp_verb_devices(const struct esp_options *o)
{
    const uint32_t wanted = (uint32_t)o->v[OPT_THREADS].i;
    struct esp_machine m;
    struct esp_kernels k;
    enum esp_cpu_level best = esp_cpu_best();
    const char *level = getenv("ESPALIER_CPU"); /* as the engine takes it */
    double bandwidth = 0;
    esp_error err = {0};
    uint32_t threads;

    if (level && *level) {
        const esp_status s = esp_cpu_level_parse(&best, level, &err);

        if (s != ESP_OK)
            return esp_report(s, &err);
    }
    esp_machine_read(&m);
    esp_kernels_init(&k, best);
    threads = wanted ? wanted : m.cores;
    if (o->v[OPT_VERBOSE].i) {
        const esp_status s = esp_machine_bandwidth(&m, threads, &bandwidth, &err);

        if (s != ESP_OK)
            return esp_report(s, &err);
    }
    if (esp_out_is_json()) {
        json_t *list,
            *device = json_pack("{s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:{s:I,s:I,s:I},s:I,s:I}", "id", "cpu", "name",
                                m.cpu, "arch", m.arch, "features", m.features, "level", m.level, "cores",
                                m.cores, "threads", m.threads, "cache", "l1d", (json_int_t)m.l1d, "l2",
                                (json_int_t)m.l2, "l3", (json_int_t)m.l3, "memory", (json_int_t)m.ram,
                                "memory_available", (json_int_t)m.ram_available);

        if (bandwidth > 0)
            json_object_set_new(device, "read_bytes_per_s", json_real(bandwidth));
        if (o->v[OPT_VERBOSE].i)
            json_products(device, &k);
        list = json_pack("[o]", device);
        json_cuda(list);
        esp_out_json(json_pack("{s:o}", "devices", list));
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
    if (o->v[OPT_VERBOSE].i)
        print_paths(&k);
    print_cuda(o->v[OPT_VERBOSE].i > 0);
    return 0;
}
