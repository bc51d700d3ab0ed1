/*
 * Memory nodes by hwloc. The library is loaded, not linked: on a machine with one node, which the system says
 * in one line, nothing of it is needed.
 *
 * SPDX-License-Identifier: MIT
 */
#include "base/nodes.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"

#ifdef ESP_HAVE_HWLOC

#include <dlfcn.h>
#include <errno.h>
#include <hwloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static const char library_name[] = "libhwloc.so.15"; /* of every hwloc 2 */

#define FUNCTIONS(F)                                                                                         \
    F(topology_init)                                                                                         \
    F(topology_load)                                                                                         \
    F(topology_destroy)                                                                                      \
    F(topology_set_cache_types_filter)                                                                       \
    F(get_type_depth)                                                                                        \
    F(get_nbobjs_by_depth)                                                                                   \
    F(get_obj_by_depth)                                                                                      \
    F(get_cpubind)                                                                                           \
    F(set_cpubind)                                                                                           \
    F(set_area_membind)                                                                                      \
    F(bitmap_alloc)                                                                                          \
    F(bitmap_dup)                                                                                            \
    F(bitmap_free)                                                                                           \
    F(bitmap_and)                                                                                            \
    F(bitmap_or)                                                                                             \
    F(bitmap_iszero)                                                                                         \
    F(bitmap_intersects)

struct hwloc_calls {
    void *library;
#define FIELD(name) __typeof__ (&hwloc_##name)(name);
    FUNCTIONS(FIELD)
#undef FIELD
};

struct node {
    uint32_t number;     /* the system's */
    hwloc_bitmap_t cpus; /* those that this process may use */
    hwloc_bitmap_t self; /* the node, as a set of nodes */
    uint32_t n_core, cores_before;
};

struct esp_nodes {
    struct hwloc_calls h;
    hwloc_topology_t topology;
    struct node node[ESP_MAX_NODES];
    uint32_t n_node, n_core;
    hwloc_bitmap_t all; /* the nodes in use */
    _Atomic bool
        *told; /* that something could not be bound; on the heap, as users of placement hold it const */
};

static esp_status load_library(struct hwloc_calls *h, esp_error *err)
{
#define ROW(name) {"hwloc_" #name, &h->name},
    const struct {
        const char *name;
        void *place; /* a pointer to a function, which ISO C does not convert */
    } all[] = {FUNCTIONS(ROW)};
#undef ROW

    h->library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!h->library)
        return esp_fail(err, ESP_EDEVICE,
                        "numa: this needs hwloc, which cannot be loaded: %s; Debian has it as libhwloc15",
                        dlerror());
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *symbol = dlsym(h->library, all[i].name);

        if (!symbol) {
            dlclose(h->library);
            return esp_fail(err, ESP_EDEVICE, "numa: %s has no %s; hwloc 2.0 or later is needed",
                            library_name, all[i].name);
        }
        memcpy(all[i].place, &symbol, sizeof symbol);
    }
    return ESP_OK;
}

/* Whether the system has one node with processors, or tells of none. A described machine is always looked
 * at. */
static bool one_node(void)
{
    char line[256] = "";
    FILE *f;

    if (getenv("HWLOC_SYNTHETIC") || getenv("HWLOC_XMLFILE"))
        return false;
    f = fopen("/sys/devices/system/node/has_cpu", "re");
    if (!f)
        return true;
    if (!fgets(line, sizeof line, f))
        line[0] = 0;
    fclose(f);
    return strpbrk(line, ",-") == NULL;
}

static uint32_t cores_in(const struct esp_nodes *n, hwloc_const_bitmap_t cpus)
{
    const int depth = n->h.get_type_depth(n->topology, HWLOC_OBJ_CORE);
    const unsigned all = depth < 0 ? 0 : n->h.get_nbobjs_by_depth(n->topology, depth);
    uint32_t found = 0;

    for (unsigned i = 0; i < all; i++)
        found += n->h.bitmap_intersects(n->h.get_obj_by_depth(n->topology, depth, i)->cpuset, cpus) != 0;
    return found ? found : 1;
}

/* Take node o into use, unless its processors are out of reach or another node's: memory without processors
 * of its own. */
static esp_status add_node(struct esp_nodes *n, hwloc_obj_t o, hwloc_const_bitmap_t allowed, esp_error *err)
{
    struct node *k = &n->node[n->n_node];

    if (n->n_node == ESP_MAX_NODES || !o->cpuset || !n->h.bitmap_intersects(o->cpuset, allowed))
        return ESP_OK;
    for (uint32_t i = 0; i < n->n_node; i++)
        if (n->h.bitmap_intersects(o->cpuset, n->node[i].cpus))
            return ESP_OK;
    k->cpus = n->h.bitmap_alloc();
    k->self = n->h.bitmap_dup(o->nodeset);
    n->n_node++; /* freed with the others from here on */
    if (!k->cpus || !k->self || n->h.bitmap_and(k->cpus, o->cpuset, allowed) != 0 ||
        n->h.bitmap_or(n->all, n->all, o->nodeset) != 0)
        return esp_fail(err, ESP_ENOMEM, "numa: out of memory");
    k->number = o->os_index;
    k->n_core = cores_in(n, k->cpus);
    k->cores_before = n->n_core;
    n->n_core += k->n_core;
    return ESP_OK;
}

static esp_status read_topology(struct esp_nodes *n, esp_error *err)
{
    hwloc_topology_t t;

    if (n->h.topology_init(&t) != 0)
        return esp_fail(err, ESP_ENOMEM, "numa: hwloc could not start");
    n->topology = t;
    n->h.topology_set_cache_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE); /* they take time to read */
    if (n->h.topology_load(t) != 0)
        return esp_fail(err, ESP_EIO, "numa: hwloc could not read the machine's topology: %s",
                        strerror(errno));
    return ESP_OK;
}

/* All nodes, or the one numbered `only` when that is not negative. */
static esp_status choose_nodes(struct esp_nodes *n, long only, esp_error *err)
{
    const int depth = n->h.get_type_depth(n->topology, HWLOC_OBJ_NUMANODE);
    const unsigned all = n->h.get_nbobjs_by_depth(n->topology, depth);
    hwloc_bitmap_t allowed = n->h.bitmap_alloc();
    esp_status s = ESP_OK;

    n->all = n->h.bitmap_alloc();
    if (!allowed || !n->all)
        s = esp_fail(err, ESP_ENOMEM, "numa: out of memory");
    else if (n->h.get_cpubind(n->topology, allowed, 0) != 0)
        s = esp_fail(err, ESP_EIO, "numa: the processors of this process are unknown: %s", strerror(errno));
    for (unsigned i = 0; s == ESP_OK && i < all; i++) {
        hwloc_obj_t o = n->h.get_obj_by_depth(n->topology, depth, i);

        if (only < 0 || o->os_index == (unsigned)only)
            s = add_node(n, o, allowed, err);
    }
    n->h.bitmap_free(allowed);
    if (s == ESP_OK && n->n_node == 0 && only >= 0)
        return esp_fail(err, ESP_EINVAL,
                        "numa node:%ld: there is no such node with processors that this process may use; the "
                        "machine has %u",
                        only, all);
    return s;
}

static esp_status parse(const char *how, bool *automatic, bool *off, long *only, esp_error *err)
{
    char *end;

    *automatic = !how || strcmp(how, "auto") == 0;
    *off = how && strcmp(how, "off") == 0;
    *only = -1;
    if (*automatic || *off || strcmp(how, "spread") == 0)
        return ESP_OK;
    if (strncmp(how, "node:", 5) == 0 && how[5] >= '0' && how[5] <= '9') {
        *only = strtol(how + 5, &end, 10);
        if (*end == 0 && *only < 100000)
            return ESP_OK;
    }
    return esp_fail(err, ESP_EINVAL, "numa \"%s\"; accepted: auto, off, spread, node:N", how);
}

static void tell(const struct esp_nodes *n)
{
    for (uint32_t i = 0; i < n->n_node; i++)
        esp_log(ESP_LOG_INFO, "numa: node %u, %u cores", n->node[i].number, n->node[i].n_core);
}

esp_status esp_nodes_open(struct esp_nodes **out, const char *how, esp_error *err)
{
    struct esp_nodes *n;
    bool automatic, off;
    long only;
    esp_status s;

    ESP_TRY(parse(how, &automatic, &off, &only, err));
    *out = NULL;
    if (off)
        return ESP_OK;
    if (one_node() && only <= 0) {
        esp_log(ESP_LOG_INFO, "numa: the machine has one node, nothing is placed");
        return ESP_OK;
    }
    n = esp_alloc(sizeof *n);
    if (!n)
        return esp_fail(err, ESP_ENOMEM, "numa: out of memory");
    s = load_library(&n->h, err);
    if (s != ESP_OK) {
        esp_free(n);
        if (automatic && err)
            esp_log(ESP_LOG_INFO, "%s", err->message);
        return automatic ? ESP_OK : s;
    }
    n->told = esp_alloc(sizeof *n->told);
    s = n->told ? read_topology(n, err) : esp_fail(err, ESP_ENOMEM, "numa: out of memory");
    if (s == ESP_OK)
        s = choose_nodes(n, only, err);
    if (s != ESP_OK || (only < 0 && n->n_node < 2)) {
        if (s == ESP_OK)
            esp_log(ESP_LOG_INFO, "numa: one node is within reach, nothing is placed");
        esp_nodes_close(n);
        return s;
    }
    tell(n);
    *out = n;
    return ESP_OK;
}

void esp_nodes_close(struct esp_nodes *n)
{
    if (!n)
        return;
    for (uint32_t i = 0; i < n->n_node; i++) {
        n->h.bitmap_free(n->node[i].cpus);
        n->h.bitmap_free(n->node[i].self);
    }
    n->h.bitmap_free(n->all);
    if (n->topology)
        n->h.topology_destroy(n->topology);
    dlclose(n->h.library);
    esp_free(n->told);
    esp_free(n);
}

uint32_t esp_nodes_count(const struct esp_nodes *n)
{
    return n ? n->n_node : 1;
}

uint32_t esp_nodes_cores(const struct esp_nodes *n)
{
    return n ? n->n_core : 0;
}

uint32_t esp_nodes_first(const struct esp_nodes *n, uint32_t i, uint32_t n_thread)
{
    if (i == 0)
        return 0;
    if (i >= esp_nodes_count(n))
        return n_thread;
    return (uint32_t)((uint64_t)n_thread * n->node[i].cores_before / n->n_core);
}

/* Bindings fail in containers that do not allow them; then things stay where they are. */
static void note(const struct esp_nodes *n, int failed, const char *what)
{
    const int e = errno;

    if (failed && !atomic_exchange(n->told, true))
        esp_log(ESP_LOG_WARNING, "numa: %s cannot be bound to nodes: %s", what, strerror(e));
}

void esp_nodes_enter(const struct esp_nodes *n, uint32_t i)
{
    if (n)
        note(n, n->h.set_cpubind(n->topology, n->node[i].cpus, HWLOC_CPUBIND_THREAD), "threads");
}

void esp_nodes_place(const struct esp_nodes *n, const void *p, size_t bytes, uint32_t i)
{
    if (n && bytes)
        note(n,
             n->h.set_area_membind(n->topology, p, bytes, n->node[i].self, HWLOC_MEMBIND_BIND,
                                   HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_MIGRATE),
             "memory");
}

void esp_nodes_spread(const struct esp_nodes *n, const void *p, size_t bytes)
{
    if (n && bytes)
        note(n,
             n->h.set_area_membind(n->topology, p, bytes, n->all,
                                   n->n_node > 1 ? HWLOC_MEMBIND_INTERLEAVE : HWLOC_MEMBIND_BIND,
                                   HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_MIGRATE),
             "memory");
}

#else /* built without hwloc */

esp_status esp_nodes_open(struct esp_nodes **out, const char *how, esp_error *err)
{
    *out = NULL;
    if (!how || strcmp(how, "auto") == 0 || strcmp(how, "off") == 0)
        return ESP_OK;
    return esp_fail(err, ESP_EDEVICE, "numa \"%s\": this version was built without hwloc", how);
}

void esp_nodes_close(struct esp_nodes *n)
{
    (void)n;
}

uint32_t esp_nodes_count(const struct esp_nodes *n)
{
    (void)n;
    return 1;
}

uint32_t esp_nodes_cores(const struct esp_nodes *n)
{
    (void)n;
    return 0;
}

uint32_t esp_nodes_first(const struct esp_nodes *n, uint32_t i, uint32_t n_thread)
{
    (void)n;
    return i ? n_thread : 0;
}

void esp_nodes_enter(const struct esp_nodes *n, uint32_t i)
{
    (void)n;
    (void)i;
}

void esp_nodes_place(const struct esp_nodes *n, const void *p, size_t bytes, uint32_t i)
{
    (void)n;
    (void)p;
    (void)bytes;
    (void)i;
}

void esp_nodes_spread(const struct esp_nodes *n, const void *p, size_t bytes)
{
    (void)n;
    (void)p;
    (void)bytes;
}

#endif

uint32_t esp_nodes_of(const struct esp_nodes *n, uint32_t tid, uint32_t n_thread)
{
    uint32_t i = 0;

    while (i + 1 < esp_nodes_count(n) && esp_nodes_first(n, i + 1, n_thread) <= tid)
        i++;
    return i;
}
