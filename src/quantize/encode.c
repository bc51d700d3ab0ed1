/*
 * The encoder object: tables for each k, scratch for each thread, and blocks dealt out over the pool. A task
 * is a run of whole blocks of one row, so nothing that a thread does depends on who does the rest.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/encode_parts.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { TASK_BLOCKS = 4 }; /* about half a millisecond */

void esp_encoder_destroy(struct esp_encoder *e)
{
    if (!e)
        return;
    esp_free_aligned(e->code);
    esp_free_aligned(e->scratch);
    esp_free(e);
}

esp_status esp_encoder_create(struct esp_encoder **out, struct esp_pool *pool, enum esp_cpu_level level,
                              esp_error *err)
{
    enum esp_cpu_level present;
    struct esp_encoder *e;
    size_t bytes;

    ESP_TRY(esp_cpu_level_parse(&present, esp_cpu_level_name(level), err));
    e = esp_alloc(sizeof *e);
    if (!e)
        return esp_fail(err, ESP_ENOMEM, "trellis encoder: out of memory");
    e->pool = pool;
    e->steps = esp_viterbi_steps_of(present);
    e->code = esp_alloc_aligned(ESP_TRELLIS_BITS_MAX * sizeof *e->code, 64);
    if (esp_mul_size(&bytes, esp_pool_size(pool), sizeof *e->scratch))
        e->scratch = esp_alloc_aligned(bytes, 64);
    if (!e->code || !e->scratch) {
        esp_encoder_destroy(e);
        return esp_fail(err, ESP_ENOMEM, "trellis encoder for %" PRIu32 " threads: out of memory",
                        esp_pool_size(pool));
    }
    for (uint32_t k = 1; k <= ESP_TRELLIS_BITS_MAX; k++)
        esp_viterbi_code_init(e->code[k - 1], k);
    *out = e;
    return ESP_OK;
}

static uint32_t window_of(uint32_t k, enum esp_search search)
{
    if (search == ESP_SEARCH_TWO_PASS)
        return ESP_VITERBI_STEPS / 2;
    return k <= 2 ? ESP_VITERBI_WINDOW_LONG : ESP_VITERBI_WINDOW;
}

void esp_encoder_block(struct esp_encoder *e, uint32_t tid, uint32_t k, enum esp_search search,
                       const float *u, uint16_t *states)
{
    if (search == ESP_SEARCH_F32)
        esp_viterbi_block_f32(e->code[k - 1], u, &e->scratch[tid], states);
    else
        esp_viterbi_block(e->code[k - 1], e->steps, window_of(k, search), u, &e->scratch[tid], states);
}

void esp_encoder_block_fed(struct esp_encoder *e, uint32_t tid, uint32_t k, enum esp_search search,
                           const struct esp_viterbi_feed *feed, uint16_t *states)
{
    esp_viterbi_block_fed(e->code[k - 1], search == ESP_SEARCH_F32 ? esp_viterbi_steps_ref : e->steps,
                          window_of(k, search), feed, &e->scratch[tid], states);
}

esp_status esp_encoder_on(struct esp_encoder *e, struct esp_dev *dev, esp_error *err)
{
    if (dev && !dev->ops->paths)
        return esp_fail(err, ESP_EUNSUPPORTED, "device %s has no search for trellis codes", dev->name);
    e->dev = dev;
    return ESP_OK;
}

esp_status esp_encoder_try(struct esp_dev *dev, esp_error *err)
{
    const struct esp_paths none = {.k = 1, .window = 1, .every = 1, .n_range = 1};

    return dev->ops->paths(dev, &none, err);
}

bool esp_encoder_is_on(const struct esp_encoder *e, enum esp_search search)
{
    return e->dev && search != ESP_SEARCH_F32;
}

esp_status esp_encoder_blocks(struct esp_encoder *e, uint32_t k, enum esp_search search, uint32_t n,
                              const float *u, const struct esp_viterbi_feed *feed, uint16_t *states,
                              esp_error *err)
{
    struct esp_paths p = {.k = k,
                          .window = window_of(k, search),
                          .every = ESP_VITERBI_EVERY,
                          .cost_high = ESP_VITERBI_COST_HIGH,
                          .n_range = e->code[k - 1]->n_range,
                          .n = n,
                          .u = u,
                          .states = states};

    for (uint32_t i = 0; i < p.n_range; i++) {
        const struct esp_viterbi_code *c = &e->code[k - 1][i];

        p.range[i] = (struct esp_paths_range){c->unit, c->reach, c->factor, c->n_double};
    }
    if (feed) {
        p.group = feed->group;
        p.w = feed->w;
        p.taps = feed->taps;
        p.ld = feed->ld;
    }
    return e->dev->ops->paths(e->dev, &p, err);
}

static bool has_host_memory(const struct esp_encoder *e)
{
    return e->dev && e->dev->ops->host_alloc;
}

void *esp_encoder_alloc(struct esp_encoder *e, size_t count, size_t size)
{
    size_t bytes;

    if (!has_host_memory(e))
        return esp_alloc_array(count, size);
    return esp_mul_size(&bytes, count, size) ? e->dev->ops->host_alloc(e->dev, bytes) : NULL;
}

void esp_encoder_free(struct esp_encoder *e, void *p)
{
    if (has_host_memory(e))
        e->dev->ops->host_free(e->dev, p);
    else
        esp_free(p);
}

static esp_status rows_on_device(struct esp_encoder *e, const struct esp_encode_rows *job, esp_error *err)
{
    const uint32_t per_row = job->n_col / ESP_VITERBI_STEPS;
    const bool whole = job->ld == job->n_col && (uint64_t)per_row * job->n_row <= UINT32_MAX;
    const uint32_t n_call = whole ? 1 : job->n_row, n = whole ? per_row * job->n_row : per_row;
    const float *v = e->code[job->k - 1]->v;

    for (size_t i = 0; i < n_call; i++)
        ESP_TRY(esp_encoder_blocks(e, job->k, job->search, n, job->u + i * job->ld, NULL,
                                   job->states + i * job->n_col, err));
    for (size_t i = 0; job->values && i < (size_t)job->n_row * job->n_col; i++)
        job->values[i] = v[job->states[i]];
    return ESP_OK;
}

struct rows_run {
    struct esp_encoder *e;
    const struct esp_encode_rows *job;
    uint32_t tasks_per_row;
    uint32_t n_task;
    _Atomic uint32_t next;
};

static void run_rows(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct rows_run *r = arg;
    const struct esp_encode_rows *job = r->job;
    const float *v = r->e->code[job->k - 1]->v;

    (void)n_thread;
    for (uint32_t i = esp_task_next(&r->next); i < r->n_task; i = esp_task_next(&r->next)) {
        const size_t row = i / r->tasks_per_row;
        const uint32_t c0 = i % r->tasks_per_row * TASK_BLOCKS * ESP_VITERBI_STEPS;
        const uint32_t left = job->n_col - c0;
        const uint32_t n = left < TASK_BLOCKS * ESP_VITERBI_STEPS ? left : TASK_BLOCKS * ESP_VITERBI_STEPS;
        uint16_t *states = job->states + row * job->n_col + c0;

        for (uint32_t c = 0; c < n; c += ESP_VITERBI_STEPS)
            esp_encoder_block(r->e, tid, job->k, job->search, job->u + row * job->ld + c0 + c, states + c);
        if (!job->values)
            continue;
        for (uint32_t c = 0; c < n; c++)
            job->values[row * job->n_col + c0 + c] = v[states[c]];
    }
}

esp_status esp_encode_check_k(uint32_t k, esp_error *err)
{
    if (k < 1 || k > ESP_TRELLIS_BITS_MAX)
        return esp_fail(err, ESP_EINVAL, "trellis with %" PRIu32 " bits a weight: 1 to 8 are possible", k);
    return ESP_OK;
}

esp_status esp_encode_check_finite(const float *x, uint32_t n_row, uint32_t n_col, size_t ld,
                                   const char *what, esp_error *err)
{
    for (size_t r = 0; r < n_row; r++)
        for (size_t c = 0; c < n_col; c++)
            if (!isfinite(x[r * ld + c]))
                return esp_fail(err, ESP_ENUMERIC,
                                "%s at row %zu, column %zu is %g; finite numbers are needed", what, r, c,
                                (double)x[r * ld + c]);
    return ESP_OK;
}

esp_status esp_encode_rows(struct esp_encoder *e, const struct esp_encode_rows *job, esp_error *err)
{
    struct rows_run run = {.e = e, .job = job};
    uint64_t n_task;

    ESP_TRY(esp_encode_check_k(job->k, err));
    if ((uint32_t)job->search >= ESP_SEARCH_COUNT)
        return esp_fail(err, ESP_EINVAL, "trellis search %u is not known", (unsigned)job->search);
    if (job->n_col == 0 || job->n_col % ESP_VITERBI_STEPS != 0 || job->ld < job->n_col)
        return esp_fail(err, ESP_EINVAL,
                        "rows of %" PRIu32
                        " weights, %zu apart: a trellis takes a multiple of 256, stored apart by "
                        "at least as many",
                        job->n_col, job->ld);
    run.tasks_per_row = (job->n_col / ESP_VITERBI_STEPS + TASK_BLOCKS - 1) / TASK_BLOCKS;
    n_task = (uint64_t)run.tasks_per_row * job->n_row;
    if (n_task > UINT32_MAX - ESP_LIMIT_THREADS) /* every thread counts once beyond the end */
        return esp_fail(err, ESP_EINVAL, "%" PRIu32 " rows of %" PRIu32 " weights are too many for one call",
                        job->n_row, job->n_col);
    ESP_TRY(esp_encode_check_finite(job->u, job->n_row, job->n_col, job->ld, "trellis target", err));
    if (esp_encoder_is_on(e, job->search))
        return rows_on_device(e, job, err);
    run.n_task = (uint32_t)n_task;
    esp_pool_run(e->pool, run_rows, &run);
    return ESP_OK;
}
