/*
 * Selection without a full sort: a heap of 128 for a small top_k, a radix sort of what is left for the rest.
 * Values are compared as integers that order like floats, joined with the id, so equal values need no second
 * comparison. Mass is summed in chunks of 64 kept ids, first within, then over chunks; nothing but the kept
 * set decides that order.
 *
 * SPDX-License-Identifier: MIT
 */
#include "sample/select.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "sample/exp.h"

enum { B = ESP_SAMPLE_BLOCK, HEAP_MAX = 128, UNKNOWN = 2 /* of dirty */ };
#define MIN_EXPONENT                                                                                         \
    (-60.0) /* e^-60 * ESP_LIMIT_VOCAB < 2^-53: all such weights together are less than a step of u */

#define ID_BYTES    (2 * sizeof(uint64_t) + sizeof(double) + sizeof(uint32_t) + sizeof(float) + 1)
#define BLOCK_BYTES (B * ID_BYTES + sizeof(double) + sizeof(float) + 1)

static size_t count_blocks(uint32_t n_vocab)
{
    return ((size_t)n_vocab + B - 1) / B;
}

size_t esp_sample_work_bytes(uint32_t n_vocab)
{
    return sizeof(struct esp_sample_work) + count_blocks(n_vocab) * BLOCK_BYTES;
}

static void *carve(char **mem, size_t bytes)
{
    char *p = *mem;

    *mem += bytes;
    return p;
}

esp_status esp_sample_work_create(struct esp_sample_work **out, uint32_t n_vocab, esp_error *err)
{
    size_t blocks = count_blocks(n_vocab), n = blocks * B;
    struct esp_sample_work *w;
    char *mem;

    if (n_vocab == 0 || n_vocab > ESP_LIMIT_VOCAB)
        return esp_fail(err, ESP_EINVAL, "vocabulary: %" PRIu32 " ids; accepted is 1 to %u", n_vocab,
                        ESP_LIMIT_VOCAB);
    w = esp_alloc(sizeof *w);
    mem = esp_alloc_aligned(blocks * BLOCK_BYTES, 64);
    if (!w || !mem) {
        esp_free_aligned(mem);
        esp_free(w);
        return esp_fail(err, ESP_ENOMEM, "sampler: no memory for %zu bytes of scratch", blocks * BLOCK_BYTES);
    }
    w->n_vocab = n_vocab;
    w->n_blocks = (uint32_t)blocks;
    w->memory = mem;
    w->weight = carve(&mem, n * sizeof *w->weight); /* widest first, so that each array is aligned */
    w->order = carve(&mem, n * sizeof *w->order);
    w->spare = carve(&mem, n * sizeof *w->spare);
    w->chunk = carve(&mem, blocks * sizeof *w->chunk);
    w->logit = carve(&mem, n * sizeof *w->logit);
    w->id = carve(&mem, n * sizeof *w->id);
    w->block_max = carve(&mem, blocks * sizeof *w->block_max);
    w->flag = carve(&mem, n);
    w->dirty = carve(&mem, blocks);
    for (size_t i = n_vocab; i < n; i++)
        w->logit[i] = -INFINITY;
    *out = w;
    return ESP_OK;
}

void esp_sample_work_destroy(struct esp_sample_work *w)
{
    if (!w)
        return;
    esp_free_aligned(w->memory);
    esp_free(w);
}

/* ---- the row ---- */

static float block_max(const float *x)
{
    float m[8], max;

    memcpy(m, x, sizeof m);
    for (int i = 8; i < B; i += 8)
        for (int l = 0; l < 8; l++)
            m[l] = x[i + l] > m[l] ? x[i + l] : m[l];
    max = m[0];
    for (int l = 1; l < 8; l++)
        max = m[l] > max ? m[l] : max;
    return max;
}

/* Whether any of 64 values is NaN or +inf: those bit patterns, without the sign for NaN, exceed the finite
 * ones. */
static bool block_bad(const float *x)
{
    uint32_t bad[4] = {0};

    for (int i = 0; i < B; i += 4)
        for (int l = 0; l < 4; l++)
            bad[l] |= x[i + l] <= FLT_MAX ? 0u : 1u;
    return (bad[0] | bad[1] | bad[2] | bad[3]) != 0;
}

void esp_sample_work_load(struct esp_sample_work *w, const float *logits, const uint64_t *allowed,
                          float *raw_max, uint32_t *bad)
{
    *raw_max = -INFINITY;
    *bad = w->n_vocab;
    w->whole = true;
    for (uint32_t b = 0; b < w->n_blocks; b++) {
        float *x = w->logit + (size_t)b * B;
        uint32_t n = w->n_vocab - b * B < B ? w->n_vocab - b * B : B;
        uint64_t ban = allowed ? ~allowed[b] : 0;

        if (n == B) /* a constant length becomes moves instead of a call: 40 us a row instead of 80 */
            memcpy(x, logits + (size_t)b * B, B * sizeof *x);
        else
            memcpy(x, logits + (size_t)b * B, n * sizeof *x);
        if (block_bad(x)) {
            for (*bad = b * B; x[*bad - b * B] <= FLT_MAX;)
                ++*bad;
            return;
        }
        w->block_max[b] = block_max(x);
        *raw_max = w->block_max[b] > *raw_max ? w->block_max[b] : *raw_max;
        w->dirty[b] = 0;
        if (!ban)
            continue;
        for (uint32_t j = 0; j < B; j++)
            if (ban >> j & 1)
                x[j] = -INFINITY;
        w->block_max[b] = block_max(x);
    }
}

void esp_sample_work_load_few(struct esp_sample_work *w, const struct esp_sample_few *few,
                              const uint64_t *allowed)
{
    w->whole = false;
    memset(w->dirty, UNKNOWN, w->n_blocks);
    for (uint32_t b = 0; b < w->n_blocks; b++)
        w->block_max[b] = -INFINITY;
    for (uint32_t i = 0; i < few->n; i++) {
        const uint32_t id = few->id[i];

        ESP_ASSERT(id < w->n_vocab);
        if (w->dirty[id / B] & UNKNOWN)
            for (uint32_t j = 0; j < B; j++)
                w->logit[id / B * B + j] = -INFINITY;
        w->dirty[id / B] = 1;
        if (!allowed || allowed[id / 64] >> (id % 64) & 1)
            w->logit[id] = few->value[i];
    }
}

float esp_sample_saturate(double x)
{
    return x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX ? -FLT_MAX : (float)x;
}

void esp_sample_work_set(struct esp_sample_work *w, uint32_t id, float value)
{
    if (!(w->dirty[id / B] & UNKNOWN) && w->logit[id] > -INFINITY) {
        w->logit[id] = value;
        w->dirty[id / B] = 1;
    }
}

float esp_sample_work_max(struct esp_sample_work *w)
{
    float max = -INFINITY;

    for (uint32_t b = 0; b < w->n_blocks; b++) {
        if (w->dirty[b] == 1) {
            w->block_max[b] = block_max(w->logit + (size_t)b * B);
            w->dirty[b] = 0;
        }
        max = w->block_max[b] > max ? w->block_max[b] : max;
    }
    return max;
}

uint32_t esp_sample_work_first(const struct esp_sample_work *w, float max)
{
    uint32_t b = 0, id;

    while (b + 1 < w->n_blocks && w->block_max[b] != max)
        b++;
    id = b * B;
    while (id + 1 < w->n_vocab && w->logit[id] != max)
        id++;
    return id;
}

/* ---- sorting ---- */

/* Unsigned integer that orders like x; -0 and +0 are one value. x is not NaN. */
static uint32_t ordered(float x)
{
    float y = x + 0.0f;
    uint32_t u;

    memcpy(&u, &y, sizeof u);
    return u >> 31 ? ~u : u | UINT32_C(1) << 31;
}

/* Sort order[0..n) by its upper half, ascending and stable: four counting passes, those without effect left
 * out. */
static void sort_order(struct esp_sample_work *w, uint32_t n)
{
    uint32_t count[4][256];

    memset(count, 0, sizeof count);
    for (uint32_t i = 0; i < n; i++)
        for (int d = 0; d < 4; d++)
            count[d][w->order[i] >> (32 + 8 * d) & 255]++;
    for (int d = 0; d < 4; d++) {
        uint32_t at = 0;
        uint64_t *swap = w->order;

        if (n == 0 || count[d][w->order[0] >> (32 + 8 * d) & 255] == n)
            continue;
        for (int v = 0; v < 256; v++) {
            uint32_t c = count[d][v];

            count[d][v] = at;
            at += c;
        }
        for (uint32_t i = 0; i < n; i++)
            w->spare[count[d][w->order[i] >> (32 + 8 * d) & 255]++] = w->order[i];
        w->order = w->spare;
        w->spare = swap;
    }
}

/* Rank the kept ids whose weight is at least floor by value, greatest first; the number of them. */
static uint32_t rank_by_value(struct esp_sample_work *w, double floor)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->n_kept; i++) {
        w->order[n] = (uint64_t)~ordered(w->logit[w->id[i]]) << 32 | i;
        n += w->weight[i] >= floor;
    }
    sort_order(w, n);
    return n;
}

/* Keep what the first n entries of order name. */
static void keep_ranked(struct esp_sample_work *w, uint32_t n)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++)
        w->flag[(uint32_t)w->order[i]] = 1;
    for (uint32_t i = 0; i < w->n_kept; i++) {
        uint8_t keep = w->flag[i];

        w->flag[i] = 0;
        w->id[kept] = w->id[i];
        w->weight[kept] = w->weight[i];
        kept += keep;
    }
    w->n_kept = kept;
}

/* ---- filters ---- */

static void sift_down(uint64_t *heap, uint32_t n, uint32_t at)
{
    uint64_t x = heap[at];

    for (uint32_t c = 2 * at + 1; c < n; c = 2 * at + 1) {
        if (c + 1 < n && heap[c + 1] < heap[c])
            c++;
        if (heap[c] >= x)
            break;
        heap[at] = heap[c];
        at = c;
    }
    heap[at] = x;
}

/* Put an entry into a heap of at most k with the least on top; the new number of entries. */
static uint32_t heap_put(uint64_t *heap, uint32_t n, uint32_t k, uint64_t entry)
{
    if (n < k) {
        heap[n++] = entry;
        for (uint32_t i = n / 2; n == k && i-- > 0;) /* order is needed once it is full */
            sift_down(heap, n, i);
    } else {
        heap[0] = entry;
        sift_down(heap, n, 0);
    }
    return n;
}

/* The kept set is what the heap's entries name; by insertion, as n <= HEAP_MAX. */
static void keep_heap(struct esp_sample_work *w, const uint64_t *heap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = ~(uint32_t)heap[i], at = i;

        for (; at > 0 && w->id[at - 1] > id; at--)
            w->id[at] = w->id[at - 1];
        w->id[at] = id;
    }
    w->n_kept = n;
}

/*
 * The k best ids of those with a value >= cut. A heap entry is (value, complement of the id), so that of
 * equal values the lower id is greater; as ids come ascending, a later equal value never enters a full heap.
 */
static void gather_heap(struct esp_sample_work *w, uint32_t k, float cut)
{
    uint64_t *heap = w->spare;
    uint32_t n = 0;
    float floor = nextafterf(cut, -INFINITY); /* a value must exceed it */

    for (uint32_t b = 0; b < w->n_blocks; b++) {
        const float *x = w->logit + (size_t)b * B;

        if (!(w->block_max[b] > floor))
            continue;
        for (uint32_t j = 0; j < B; j++) {
            if (!(x[j] > floor))
                continue;
            n = heap_put(heap, n, k, (uint64_t)ordered(x[j]) << 32 | (uint32_t) ~(b * B + j));
            if (n == k)
                floor = fmaxf(floor, w->logit[~(uint32_t)heap[0]]);
        }
    }
    keep_heap(w, heap, n);
}

/*
 * A limit that at least k values reach: the k-th greatest block maximum, -FLT_MAX when there are fewer
 * blocks. What lies below cannot be among the k best, which spares a sort of the whole row.
 */
static float kth_block_max(struct esp_sample_work *w, uint32_t k)
{
    float limit;

    if (k > w->n_blocks)
        return -FLT_MAX;
    for (uint32_t b = 0; b < w->n_blocks; b++)
        w->order[b] = (uint64_t)~ordered(w->block_max[b]) << 32 | b;
    sort_order(w, w->n_blocks);
    limit = w->block_max[(uint32_t)w->order[k - 1]];
    return limit > -FLT_MAX ? limit : -FLT_MAX;
}

static void gather_all(struct esp_sample_work *w, float cut)
{
    uint32_t n = 0;

    for (uint32_t b = 0; b < w->n_blocks; b++) {
        const float *x = w->logit + (size_t)b * B;

        if (!(w->block_max[b] >= cut))
            continue;
        for (uint32_t j = 0; j < B; j++) {
            w->id[n] = b * B + j;
            n += x[j] >= cut;
        }
    }
    w->n_kept = n;
}

/*
 * Weights of the kept ids relative to max; those that count as zero leave. In steps of fixed length, which
 * compilers turn into vector code; the arithmetic of an element is the same either way.
 */
static void weigh(struct esp_sample_work *w, double temperature, float max)
{
    uint32_t kept = 0;

    for (uint32_t at = 0; at < w->n_kept; at += B) {
        uint32_t n = w->n_kept - at < B ? w->n_kept - at : B;
        double x[B], e[B];

        for (uint32_t i = 0; i < B; i++)
            x[i] = i < n ? (double)w->logit[w->id[at + i]] : (double)max;
        for (int i = 0; i < B; i++)
            x[i] = (x[i] - (double)max) / temperature;
        for (int i = 0; i < B; i++)
            e[i] = esp_exp_neg(x[i]);
        for (uint32_t i = 0; i < n; i++) {
            w->id[kept] = w->id[at + i];
            w->weight[kept] = e[i];
            kept += x[i] >= MIN_EXPONENT;
        }
    }
    w->n_kept = kept;
}

static double total_weight(struct esp_sample_work *w)
{
    double total = 0;

    for (uint32_t c = 0; c * B < w->n_kept; c++) {
        uint32_t end = w->n_kept - c * B < B ? w->n_kept : (c + 1) * B;
        double sum = 0;

        for (uint32_t i = c * B; i < end; i++)
            sum += w->weight[i];
        w->chunk[c] = sum;
        total += sum;
    }
    return total;
}

/* Shortest prefix of order[0..n) with mass >= target, at least one. */
static uint32_t prefix_of_mass(const struct esp_sample_work *w, uint32_t n, double target)
{
    double mass = 0;

    for (uint32_t i = 0; i < n; i++) {
        mass += w->weight[(uint32_t)w->order[i]];
        if (mass >= target)
            return i + 1;
    }
    return n;
}

static void keep_top_p(struct esp_sample_work *w, double p)
{
    double total = total_weight(w);
    /*
     * Ids lighter than (1 - p) / n of the total weigh less than 1 - p together, so what lies before them in
     * the order already has mass p. They need no sorting: for p = 0.95 that is all but a few thousand of
     * 248,320. The factor keeps rounding on the safe side.
     */
    double floor = (1 - p) * total / w->n_kept * (1 - 1e-6);
    uint32_t n = rank_by_value(w, floor);

    keep_ranked(w, prefix_of_mass(w, n, p * total));
}

static void keep_min_p(struct esp_sample_work *w, double min_p)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < w->n_kept; i++) { /* the greatest weight is exactly 1 */
        double weight = w->weight[i];

        w->id[kept] = w->id[i];
        w->weight[kept] = weight;
        kept += weight >= min_p;
    }
    w->n_kept = kept;
}

/* The most likely id may be gone: the draw knows the kept set alone. */
static void weigh_anew(struct esp_sample_work *w, double temperature)
{
    float max = -INFINITY;

    for (uint32_t i = 0; i < w->n_kept; i++)
        max = w->logit[w->id[i]] > max ? w->logit[w->id[i]] : max;
    weigh(w, temperature, max);
}

/*
 * Locally typical: with x = log weight, -log p - H = E[x] - x, as the log of the total cancels. Distances are
 * compared as f32.
 */
static void keep_typical(struct esp_sample_work *w, const struct esp_sample_params *p, float max)
{
    double total = total_weight(w), mean = 0;

    for (uint32_t i = 0; i < w->n_kept; i++)
        mean += w->weight[i] * (((double)w->logit[w->id[i]] - (double)max) / p->temperature);
    mean /= total;
    for (uint32_t i = 0; i < w->n_kept; i++) {
        double x = ((double)w->logit[w->id[i]] - (double)max) / p->temperature;

        w->order[i] = (uint64_t)ordered((float)fabs(mean - x)) << 32 | i;
    }
    sort_order(w, w->n_kept);
    keep_ranked(w, prefix_of_mass(w, w->n_kept, p->typical_p * total));
    weigh_anew(w, p->temperature);
}

static bool is_exempt(const struct esp_sample_params *p, uint32_t id)
{
    return p->xtc_exempt && p->xtc_exempt[id / 64] >> (id % 64) & 1;
}

void esp_sample_work_exclude(struct esp_sample_work *w, const struct esp_sample_params *p)
{
    const double floor = p->xtc_threshold * total_weight(w);
    uint32_t stays = UINT32_MAX, kept = 0;

    for (uint32_t i = 0; i < w->n_kept; i++) /* of equal ones the last, as in the order of ranks */
        if (w->weight[i] >= floor && !is_exempt(p, w->id[i]) &&
            (stays == UINT32_MAX || w->logit[w->id[i]] <= w->logit[w->id[stays]]))
            stays = i;
    for (uint32_t i = 0; i < w->n_kept; i++) {
        const uint32_t id = w->id[i];
        const double weight = w->weight[i];

        w->id[kept] = id;
        w->weight[kept] = weight;
        kept += i == stays || !(weight >= floor) || is_exempt(p, id);
    }
    if (kept == w->n_kept)
        return;
    w->n_kept = kept;
    weigh_anew(w, p->temperature);
}

void esp_sample_work_select(struct esp_sample_work *w, const struct esp_sample_params *p, float max)
{
    /* min_p is a limit on the value; it may come first unless top_p must see the mass below it. keep_min_p is
     * exact. */
    double exponent = p->min_p > 0 && !(p->top_p < 1) ? log(p->min_p) - 1e-6 : MIN_EXPONENT;
    double low = (double)max + fmax(exponent, MIN_EXPONENT) * p->temperature;
    float cut = low > -(double)FLT_MAX ? nextafterf((float)low, -FLT_MAX) : -FLT_MAX;
    uint32_t k = p->top_k > 0 && p->top_k < w->n_vocab ? (uint32_t)p->top_k : 0;

    if (k > 0 && k <= HEAP_MAX)
        gather_heap(w, k, cut);
    else
        gather_all(w, k > 0 ? fmaxf(cut, kth_block_max(w, k)) : cut);
    weigh(w, p->temperature, max);
    if (k > 0 && k < w->n_kept) {
        rank_by_value(w, 0);
        keep_ranked(w, k);
    }
    if (p->top_p < 1)
        keep_top_p(w, p->top_p);
    if (p->min_p > 0)
        keep_min_p(w, p->min_p);
    if (p->typical_p < 1)
        keep_typical(w, p, max);
    ESP_ASSERT(w->n_kept > 0);
}

uint32_t esp_sample_work_pick(struct esp_sample_work *w, double u)
{
    double target = u * total_weight(w), before = 0;
    uint32_t c = 0, i;

    for (; (c + 1) * B < w->n_kept && !(w->chunk[c] > target - before); c++)
        before += w->chunk[c];
    target -= before;
    before = 0;
    for (i = c * B; i + 1 < w->n_kept; i++) { /* the last kept id takes what rounding leaves over */
        before += w->weight[i];
        if (before > target)
            break;
    }
    return w->id[i];
}
