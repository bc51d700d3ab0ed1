/*
 * A stand-in for espalier_cuda.so: two "CUDA devices" that are the CPU under another name, with a memory of
 * ESPALIER_DOUBLE_MEMORY bytes (default 8 GB). What the program does with devices is tested with it where
 * there are none. Rows of logits stay here when a batch asks for their greatest values: what the batch has
 * room for is filled with NaN, so whoever reads it instead of asking is found out.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/plugin.h"
#include "quantize/viterbi.h"

enum { DEVICES = 2, PLANS = 16, RANK = 40 /* greatest logits of a row, unless some are equal */ };

static struct esp_backend_ops ops;
static const struct esp_backend_ops *cpu;

/* Plans that were compiled, with the rows that their last run kept. */
static struct kept {
    const struct esp_plan *plan;
    uint32_t n_vocab, n_row;
    float *rows;
} kept[PLANS];

static esp_status memory(struct esp_dev *d, uint64_t *left, uint64_t *total, esp_error *err)
{
    const char *said = getenv("ESPALIER_DOUBLE_MEMORY");

    (void)d;
    (void)err;
    *left = said ? strtoull(said, NULL, 10) : 8000000000U;
    *total = *left + 500000000;
    return ESP_OK;
}

/* Not what the model's own bytes are, so that it shows which were counted. */
static uint64_t weight_bytes(const struct esp_dev *d, const struct esp_tape *t)
{
    (void)d;
    return t->n_op ? 12345678 : 0;
}

/* ---- few logits instead of all ---- */

static struct kept *kept_of(const struct esp_plan *p)
{
    struct kept *k = kept;

    while (k < kept + PLANS && k->plan != p)
        k++;
    return k < kept + PLANS ? k : NULL;
}

static esp_status compile(struct esp_dev *d, const struct esp_tape *t, const struct esp_pools *p,
                          const struct esp_plan_opts *o, struct esp_plan **out, esp_error *err)
{
    struct kept *k = kept_of(NULL);

    ESP_TRY(cpu->compile(d, t, p, o, out, err));
    if (k)
        *k = (struct kept){.plan = *out, .n_vocab = t->n_vocab};
    return ESP_OK;
}

static void plan_free(struct esp_plan *p)
{
    struct kept *k = p ? kept_of(p) : NULL;

    if (k) {
        free(k->rows);
        *k = (struct kept){.plan = NULL};
    }
    cpu->plan_free(p);
}

static int greatest_first(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

static void take_few(const float *row, uint32_t n, struct esp_few *few)
{
    float *sorted = malloc(n * sizeof *sorted), least;

    few->n = 0;
    if (!sorted)
        return;
    memcpy(sorted, row, n * sizeof *sorted);
    for (uint32_t i = 0; i < n; i++)
        if (!(row[i] < INFINITY)) {
            free(sorted);
            return;
        }
    qsort(sorted, n, sizeof *sorted, greatest_first);
    least = sorted[n < RANK ? n - 1 : RANK - 1];
    free(sorted);
    for (uint32_t i = n; i-- > 0;) { /* not in the order of ids */
        if (row[i] < least)
            continue;
        if (few->n == ESP_FEW) {
            few->n = 0;
            return;
        }
        few->id[few->n] = i;
        few->value[few->n++] = row[i];
    }
}

static esp_status run(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    struct kept *k = kept_of(p);
    struct esp_batch own = *b;

    if (!b->few)
        return cpu->run(p, b, err);
    if (!k)
        return esp_fail(err, ESP_EINVAL, "the stand-in knows at most %d plans", PLANS);
    free(k->rows);
    k->n_row = b->n_out;
    k->rows = malloc((size_t)b->n_out * k->n_vocab * sizeof *k->rows + 1);
    if (!k->rows)
        return esp_fail(err, ESP_ENOMEM, "the stand-in has no memory for %u rows", b->n_out);
    own.logits = k->rows;
    own.few = NULL;
    ESP_TRY(cpu->run(p, &own, err));
    for (uint32_t i = 0; i < b->n_out; i++)
        take_few(k->rows + (size_t)i * k->n_vocab, k->n_vocab, &b->few[i]);
    for (size_t i = 0; i < (size_t)b->n_out * k->n_vocab; i++)
        b->logits[i] = NAN;
    return ESP_OK;
}

static esp_status logits(struct esp_plan *p, uint32_t row, float *out, esp_error *err)
{
    const struct kept *k = kept_of(p);

    if (!k || row >= k->n_row)
        return esp_fail(err, ESP_EINVAL, "the stand-in has no row %u", row);
    memcpy(out, k->rows + (size_t)row * k->n_vocab, k->n_vocab * sizeof *out);
    return ESP_OK;
}

/* ---- trellis paths by the CPU's search; what the job says of code and costs must be what that has ---- */

static bool same_code(const struct esp_paths *p, const struct esp_viterbi_code *c)
{
    bool same =
        p->every == ESP_VITERBI_EVERY && p->cost_high == ESP_VITERBI_COST_HIGH && p->n_range == c->n_range;

    for (uint32_t i = 0; same && i < p->n_range; i++)
        same = p->range[i].unit == c[i].unit && p->range[i].reach == c[i].reach &&
               p->range[i].factor == c[i].factor && p->range[i].n_double == c[i].n_double;
    return same;
}

static esp_status check_paths(const struct esp_paths *p, esp_error *err)
{
    if (p->k < 1 || p->k > 8)
        return esp_fail(err, ESP_EINVAL, "the stand-in has no trellis of %u bits", p->k);
    if (p->window < 1 || p->window > ESP_VITERBI_STEPS / 2)
        return esp_fail(err, ESP_EINVAL, "the stand-in has no window %u", p->window);
    if (p->group && p->group != 16 && p->group != 32 && p->group != 64 && p->group != 128)
        return esp_fail(err, ESP_EINVAL, "the stand-in has no groups of %u", p->group);
    return ESP_OK;
}

static esp_status paths(struct esp_dev *d, const struct esp_paths *p, esp_error *err)
{
    static struct esp_viterbi_code code[ESP_VITERBI_RANGES];
    static struct esp_viterbi_scratch scratch;
    const esp_viterbi_fn steps = esp_viterbi_steps_of(esp_cpu_best());

    (void)d;
    ESP_TRY(check_paths(p, err));
    esp_viterbi_code_init(code, p->k);
    if (p->n > 0 && p->n_range > 1 && !same_code(p, code))
        return esp_fail(err, ESP_EINVAL, "the stand-in was given another code");
    for (size_t i = 0; i < p->n; i++) {
        const float *u = p->u + i * ESP_VITERBI_STEPS;
        uint16_t *states = p->states + i * ESP_VITERBI_STEPS;

        if (p->group)
            esp_viterbi_block_fed(code, steps, p->window,
                                  &(struct esp_viterbi_feed){.w = p->w + i * ESP_VITERBI_STEPS,
                                                             .u = u,
                                                             .taps = p->taps,
                                                             .ld = p->ld,
                                                             .group = p->group},
                                  &scratch, states);
        else
            esp_viterbi_block(code, steps, p->window, u, &scratch, states);
    }
    return ESP_OK;
}

ESP_API esp_status esp_cuda_plugin(struct esp_dev **out, const struct esp_cuda_key *key, uint32_t index,
                                   esp_error *err);

esp_status esp_cuda_plugin(struct esp_dev **out, const struct esp_cuda_key *key, uint32_t index,
                           esp_error *err)
{
    const struct esp_cuda_key own = esp_cuda_key();
    const char *few = getenv("ESPALIER_CUDA_FEW");

    if (memcmp(key, &own, sizeof own) != 0)
        return esp_fail(err, ESP_EDEVICE, "the stand-in was built from another version of espalier");
    if (index >= DEVICES)
        return esp_fail(err, ESP_EDEVICE, "CUDA: no device %u; %d present, numbered from 0", index, DEVICES);
    ESP_TRY(esp_cpu_open(out, esp_cpu_best(), 1, err));
    cpu = (*out)->ops;
    ops = *cpu;
    ops.name = "cuda";
    ops.memory = memory;
    ops.weight_bytes = weight_bytes;
    ops.compile = compile;
    ops.plan_free = plan_free;
    ops.run = run;
    ops.paths = paths;
    ops.logits = few && few[0] == '0' ? NULL : logits;
    (*out)->ops = &ops;
    snprintf((*out)->name, sizeof(*out)->name, "cuda:%u (stand-in)", index);
    return ESP_OK;
}
