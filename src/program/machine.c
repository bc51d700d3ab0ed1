/*
 * What Linux says about the machine. Everything here is for people and reports; nothing that is computed
 * depends on it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "base/mem.h"
#include "kernels/cpu.h"
#include "kernels/kernels.h"

#include "program/options.h"
#include "program/output.h"

/* First line of a small system file, without its end; false when it cannot be read. */
static bool read_line(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "r");
    bool ok;

    if (!f)
        return false;
    ok = fgets(buf, (int)cap, f) != NULL;
    fclose(f);
    if (ok)
        buf[strcspn(buf, "\n")] = 0;
    return ok;
}

/* Value behind "key:" in a file such as /proc/meminfo. */
static bool read_field(const char *path, const char *key, char *buf, size_t cap)
{
    const size_t n = strlen(key);
    char line[512];
    FILE *f = fopen(path, "r");
    bool found = false;

    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');

        if (!colon || strncmp(line, key, n) != 0 || (line[n] != ':' && line[n] != '\t' && line[n] != ' '))
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(buf, cap, "%.*s", (int)strcspn(colon, "\n"), colon);
        found = true;
    }
    fclose(f);
    return found;
}

static uint64_t memory_field(const char *key)
{
    char text[64];

    return read_field("/proc/meminfo", key, text, sizeof text) ? strtoull(text, NULL, 10) * 1024 : 0;
}

/* Physical cores among the processors that this process may use: those that are the first of their siblings.
 */
static void count_cores(struct esp_machine *m)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    m->threads = (uint32_t)CPU_COUNT(&set);
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        char path[96], text[64];

        if (!CPU_ISSET(i, &set))
            continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%zu/topology/thread_siblings_list", i);
        if (!read_line(path, text, sizeof text) || strtoul(text, NULL, 10) == i)
            m->cores++;
    }
    if (m->cores == 0)
        m->cores = m->threads;
}

static void read_caches(struct esp_machine *m)
{
    for (int i = 0; i < 8; i++) {
        char path[96], level[16], type[32], size[32];
        uint64_t bytes;

        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        if (!read_line(path, level, sizeof level))
            return;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i);
        if (!read_line(path, type, sizeof type) || strcmp(type, "Instruction") == 0)
            continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        if (!read_line(path, size, sizeof size))
            continue;
        bytes = strtoull(size, NULL, 10) * 1024; /* the kernel writes "32K" */
        if (level[0] == '1')
            m->l1d = bytes;
        else if (level[0] == '2')
            m->l2 = bytes;
        else
            m->l3 = bytes;
    }
}

static void read_features(struct esp_machine *m)
{
    const struct esp_cpu c = esp_cpu_detect();

    snprintf(m->features, sizeof m->features, "%s%s%s%s%s", c.avx2 ? "avx2 " : "", c.avx512 ? "avx512 " : "",
             c.avx512bf16 ? "avx512bf16 " : "", c.amx ? "amx " : "", c.neon ? "neon " : "");
    if (m->features[0])
        m->features[strlen(m->features) - 1] = 0;
    else
        snprintf(m->features, sizeof m->features, "none");
    m->level = esp_cpu_level_name(esp_cpu_best());
}

void esp_machine_read(struct esp_machine *m)
{
    struct utsname u;

    memset(m, 0, sizeof *m);
    if (!read_field("/proc/cpuinfo", "model name", m->cpu, sizeof m->cpu))
        snprintf(m->cpu, sizeof m->cpu, "unknown");
    snprintf(m->arch, sizeof m->arch, "%.31s", uname(&u) == 0 ? u.machine : "unknown");
    count_cores(m);
    read_caches(m);
    read_features(m);
    m->ram = memory_field("MemTotal");
    m->ram_available = memory_field("MemAvailable");
}

uint64_t esp_peak_rss(void)
{
    struct rusage u;

    return getrusage(RUSAGE_SELF, &u) == 0 ? (uint64_t)u.ru_maxrss * 1024 : 0;
}

/* The line of /proc/self/status that begins with name, in bytes; 0 when there is none. */
static uint64_t own_status(const char *name)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    uint64_t kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0) {
            kib = strtoull(line + strlen(name), NULL, 10);
            break;
        }
    if (f)
        fclose(f);
    return kib * 1024;
}

bool esp_huge_memory(uint64_t *in_huge, uint64_t *resident)
{
    static const char *const kinds[] = {"AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Private_Hugetlb",
                                        "Shared_Hugetlb"};
    static const char file[] = "/proc/self/smaps_rollup";
    char text[64];

    if (!read_field(file, "Rss", text, sizeof text))
        return false;
    *resident = strtoull(text, NULL, 10) * 1024;
    *in_huge = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const uint64_t bytes =
            read_field(file, kinds[i], text, sizeof text) ? strtoull(text, NULL, 10) * 1024 : 0;

        *in_huge += bytes;
        if (strstr(kinds[i], "Hugetlb")) /* which Rss does not count */
            *resident += bytes;
    }
    return true;
}

esp_status esp_lock_memory(uint64_t *bytes, esp_error *err)
{
    struct rlimit limit;

    if (mlockall(MCL_CURRENT) == 0) {
        *bytes = own_status("VmLck:");
        return ESP_OK;
    }
    if ((errno == ENOMEM || errno == EPERM) && getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
        return esp_fail(
            err, ESP_ENOFIT,
            "--mlock: %llu bytes are to be locked, the limit is %llu; raise it (ulimit -l unlimited, "
            "LimitMEMLOCK=infinity for a service) or leave --mlock out",
            (unsigned long long)own_status("VmSize:"), (unsigned long long)limit.rlim_cur);
    return esp_fail(err, ESP_EIO, "--mlock: memory cannot be locked: %s", strerror(errno));
}

/* ---- bandwidth ---- */

enum { N_STREAM = 4, PASSES = 6, STEP = 8 };

struct reader {
    pthread_t thread;
    const uint64_t *data;
    size_t n; /* words, a multiple of N_STREAM * STEP */
    pthread_barrier_t *barrier;
    _Atomic int *go; /* 0: wait, 1: measure, -1: give up */
    double best;     /* seconds of the fastest pass */
    uint64_t sum;    /* keeps the reads alive */
};

/* Four streams through four quarters, as kernels read several rows at once; one stream alone is slower on
 * most CPUs. */
static uint64_t read_all(const uint64_t *p, size_t n)
{
    const size_t quarter = n / N_STREAM;
    uint64_t sum[N_STREAM][STEP] = {{0}}, all = 0;

    for (size_t i = 0; i < quarter; i += STEP) {
        for (size_t s = 0; s < N_STREAM; s++) {
            for (size_t k = 0; k < STEP; k++)
                sum[s][k] += p[s * quarter + i + k];
        }
    }
    for (size_t s = 0; s < N_STREAM; s++) {
        for (size_t k = 0; k < STEP; k++)
            all += sum[s][k];
    }
    return all;
}

static void *reader_main(void *arg)
{
    struct reader *r = arg;

    r->best = 1e30;
    while (*r->go == 0)
        sched_yield();
    if (*r->go < 0)
        return NULL;
    for (int i = 0; i < PASSES; i++) {
        double start, end;

        pthread_barrier_wait(r->barrier);
        start = esp_now();
        r->sum += read_all(r->data, r->n);
        pthread_barrier_wait(r->barrier); /* until the slowest is done */
        end = esp_now();
        if (i && end - start < r->best) /* the first pass faults pages in */
            r->best = end - start;
    }
    return NULL;
}

/* Start n threads over data and wait for them: seconds of the fastest pass, or 0 when they did not all start.
 */
static double measure_bandwidth(struct reader *readers, uint32_t n, const uint64_t *data, size_t words,
                                pthread_barrier_t *barrier)
{
    _Atomic int go = 0;
    uint32_t started = 0;

    for (; started < n; started++) {
        struct reader *r = &readers[started];

        *r = (struct reader){.data = data + started * words, .n = words, .barrier = barrier, .go = &go};
        if (started && pthread_create(&r->thread, NULL, reader_main, r) != 0)
            break;
    }
    go = started == n ? 1 : -1;
    if (go > 0)
        reader_main(&readers[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(readers[i].thread, NULL);
    return go > 0 ? readers[0].best : 0;
}

static size_t buffer_bytes(const struct esp_machine *m, uint32_t n_thread)
{
    const size_t align = (size_t)n_thread * N_STREAM * STEP * sizeof(uint64_t), least = 256u << 20;
    size_t bytes = m->l3 * 4 > least ? m->l3 * 4 : least;

    if (m->ram_available && bytes > m->ram_available / 4)
        bytes = m->ram_available / 4;
    return bytes < align ? align : bytes - bytes % align;
}

esp_status esp_machine_bandwidth(const struct esp_machine *m, uint32_t n_thread, double *out, esp_error *err)
{
    const size_t bytes = buffer_bytes(m, n_thread);
    struct reader *readers = calloc(n_thread, sizeof *readers);
    uint64_t *data = esp_alloc_aligned(bytes, 4096);
    pthread_barrier_t barrier;
    double seconds;

    if (!readers || !data || pthread_barrier_init(&barrier, NULL, n_thread) != 0) {
        free(readers);
        esp_free_aligned(data);
        return esp_fail(err, ESP_ENOMEM, "no memory for the bandwidth measurement (%zu bytes)", bytes);
    }
    memset(data, 1, bytes); /* untouched pages would all be the same zero page */
    seconds = measure_bandwidth(readers, n_thread, data, bytes / sizeof *data / n_thread, &barrier);
    pthread_barrier_destroy(&barrier);
    esp_free_aligned(data);
    free(readers);
    if (seconds <= 0)
        return esp_fail(err, ESP_ENOMEM, "%u threads could not be started", n_thread);
    *out = (double)bytes / seconds;
    return ESP_OK;
}
