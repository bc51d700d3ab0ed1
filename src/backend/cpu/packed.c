/*
 * Copies of weights in the order that this CPU's kernels read fastest (kernels.h, pack), made once when a
 * plan is compiled, by all threads. A plan's new copies lie in one block of huge pages; plans of one device
 * share the copies they have in common, such as the output head, and the last to go frees the block.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cpu/cpu.h"

#include <unistd.h>

#include "base/mem.h"

enum { TASK_OUTS = 8 * ESP_PACK_OUTS };

struct cpu_packed {
    uint8_t *mem;
    size_t bytes;
    uint32_t n_user; /* products that read it */
};

static size_t pad64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static bool wants(const struct esp_plan *p, const struct linear *l)
{
    return p->packs && l->kernel->pack;
}

/* A product of p before l whose copy l can share. */
static const struct linear *twin_in(const struct esp_plan *p, const struct linear *end,
                                    const struct linear *l)
{
    for (const struct linear *m = p->linears; m < end; m++)
        if (m->w.codes && m->w.codes == l->w.codes && /* of a bare shape there are no codes */
            m->w.n_out == l->w.n_out && m->w.n_in == l->w.n_in && m->kernel->pack == l->kernel->pack)
            return m;
    return NULL;
}

/* The same among the plans compiled before p. */
static const struct linear *twin_of(const struct esp_plan *p, const struct linear *l)
{
    for (const struct esp_plan *q = p->dev->plans; q; q = q->next) {
        const struct linear *m = twin_in(q, q->linears + q->n_linear, l);

        if (m && m->packed)
            return m;
    }
    return NULL;
}

size_t esp_cpu_packed_bytes(const struct esp_plan *p)
{
    size_t bytes = 0;

    for (const struct linear *l = p->linears; l < p->linears + p->n_linear; l++)
        if (wants(p, l) && !twin_in(p, l, l) && !twin_of(p, l))
            bytes += pad64(l->kernel->pack_bytes(&l->w));
    return bytes;
}

bool esp_cpu_packs(struct esp_plan *p)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t bytes = 0, stored = 0;

    if (p->opts.pack != ESP_PACK_AUTO || pages <= 0 || page <= 0)
        return p->opts.pack != ESP_PACK_OFF;
    for (const struct linear *l = p->linears; l < p->linears + p->n_linear; l++) {
        if (!l->kernel->pack || twin_in(p, l, l))
            continue;
        bytes += pad64(l->kernel->pack_bytes(&l->w));
        stored += esp_weight_bytes(&l->w);
    }
    return bytes + stored <= (uint64_t)pages * (uint64_t)page / 4 * 3;
}

struct job {
    struct esp_plan *p;
    struct cpu_packed *block;
    _Atomic uint32_t counter;
};

/* Tasks are numbered through all new copies. */
static void pack_all(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct job *j = arg;
    uint32_t next = esp_task_next(&j->counter), first = 0;

    (void)tid;
    (void)n_thread;
    for (uint32_t i = 0; i < j->p->n_linear; i++) {
        const struct linear *l = &j->p->linears[i];
        const uint32_t n_task = (l->n_out + TASK_OUTS - 1) / TASK_OUTS;
        struct esp_weight stored = l->w;

        if (!l->packs)
            continue;
        stored.packed = NULL;
        for (; next - first < n_task; next = esp_task_next(&j->counter)) {
            const uint32_t o = (next - first) * TASK_OUTS;

            /* the block is ours to write; the weight's pointer is for readers */
            l->kernel->pack(&stored, o, l->n_out - o < TASK_OUTS ? l->n_out : o + TASK_OUTS,
                            j->block->mem + (l->w.packed - j->block->mem));
        }
        first += n_task;
    }
}

/* Give every product its copy: another's, or a place in block. */
static void assign(struct esp_plan *p, struct cpu_packed *block)
{
    size_t used = 0;

    for (struct linear *l = p->linears; l < p->linears + p->n_linear; l++) {
        const struct linear *twin;

        if (!wants(p, l))
            continue;
        twin = twin_in(p, l, l);
        if (!twin)
            twin = twin_of(p, l);
        if (twin) {
            l->packed = twin->packed;
            l->w.packed = twin->w.packed;
        } else {
            l->packs = true;
            l->packed = block;
            l->w.packed = block->mem + used;
            used += pad64(l->kernel->pack_bytes(&l->w));
        }
        l->packed->n_user++;
    }
}

uint32_t esp_cpu_cut(const struct esp_plan *p, const struct linear *l, uint32_t i)
{
    const uint32_t n_thread = esp_pool_size(p->dev->pool);
    const uint32_t out_align = esp_weight_out_align(&l->w);
    const uint32_t align = out_align > ESP_PACK_OUTS ? out_align : ESP_PACK_OUTS;
    const uint64_t before = esp_nodes_first(p->dev->nodes, i, n_thread);

    return i >= esp_nodes_count(p->dev->nodes) ? l->n_out
                                               : (uint32_t)(before * l->n_out / n_thread) / align * align;
}

/* Put each node's share of bytes that belong to l's outputs in order into its memory. Shares of many huge
 * pages meet between two of them. */
static void place_outputs(const struct esp_plan *p, const struct linear *l, const uint8_t *mem, size_t bytes)
{
    const struct esp_nodes *nodes = p->dev->nodes;
    const size_t part = bytes / esp_nodes_count(nodes);
    const size_t page = part >= 8 * (size_t)ESP_HUGE_PAGE || p->dev->huge == ESP_HUGE_HUGETLB
                            ? ESP_HUGE_PAGE
                            : (size_t)sysconf(_SC_PAGESIZE);
    const uint8_t *from = mem;

    for (uint32_t i = 0; i < esp_nodes_count(nodes); i++) {
        const uint8_t *to = mem + bytes;

        if (i + 1 < esp_nodes_count(nodes)) {
            to = mem + (size_t)((double)bytes * esp_cpu_cut(p, l, i + 1) / l->n_out);
            to -= (uintptr_t)to % page;
        }
        if (to > from) {
            esp_nodes_place(nodes, from, (size_t)(to - from), i);
            from = to;
        }
    }
}

/* Copies before they are written; weights that are read as they are stored, where their pages can move. */
static void place(const struct esp_plan *p)
{
    for (const struct linear *l = p->linears; l < p->linears + p->n_linear; l++) {
        if (l->packs)
            place_outputs(p, l, l->w.packed, l->kernel->pack_bytes(&l->w));
        else if (!l->packed && esp_weight_out_align(&l->w) == 1)
            place_outputs(p, l, l->w.codes, (size_t)l->n_out * l->w.row_bytes);
    }
}

esp_status esp_cpu_pack(struct esp_plan *p, esp_error *err)
{
    const size_t bytes = esp_cpu_packed_bytes(p);
    struct job j = {.p = p};
    esp_status s;
    void *mem;

    if (bytes) {
        j.block = esp_alloc(sizeof *j.block);
        if (!j.block)
            return esp_fail(err, ESP_ENOMEM, "packed weights: out of memory");
        s = esp_huge_take(&mem, bytes, p->dev->huge, err);
        if (s != ESP_OK) {
            esp_free(j.block);
            return s;
        }
        *j.block = (struct cpu_packed){.mem = mem, .bytes = bytes};
    }
    assign(p, j.block);
    if (p->dev->nodes)
        place(p);
    if (j.block)
        esp_pool_run(p->dev->pool, pack_all, &j);
    return ESP_OK;
}

void esp_cpu_unpack(struct esp_plan *p)
{
    for (uint32_t i = 0; i < p->n_linear; i++) {
        struct cpu_packed *b = p->linears[i].packed;

        if (!b || --b->n_user)
            continue;
        esp_huge_give(b->mem, b->bytes, p->dev->huge);
        esp_free(b);
    }
}
