/*
 * One scale a stored row. Targets are w / s, and what matters is how large they are against the code, which
 * ends at
 * +-3.05: alpha, their root mean square, trades the far targets that are cut off against the spacing of the
 * near ones. The best alpha for normal weights falls from 1.14 at k = 1 to 0.71 at k = 8; heavier tails want
 * smaller ones.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/encode_scale.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { ROWS_PER_TASK = 32, TENSOR_SAMPLES = 64, ROW_SAMPLES = 4, N_CANDIDATE = 9, BATCH_ROWS = 512 };
#define CODE_RMS 1.0041072 /* root mean square of v over the 4096 states */

/* Least error on 65,536 normal numbers, steps of 0.03 (doc/quality.md); [k - 1]. */
static const double FIXED_ALPHA[ESP_TRELLIS_BITS_MAX] = {1.14, 0.96, 0.92, 0.88, 0.84, 0.80, 0.76, 0.71};

struct scale_run {
    struct esp_encoder *e;
    const struct esp_trellis_job *job;
    uint32_t n_row, n_col; /* of the stored matrix */
    double *rms;           /* [n_row] */
    double *alpha;         /* [n_row] */
    double *error;         /* [N_CANDIDATE][TENSOR_SAMPLES] relative to a row's power */
    /* With a device: samples of rows [row0, row0 + n_batch), by row, candidate and place. */
    float *u;         /* [BATCH_ROWS * N_CANDIDATE * ROW_SAMPLES][256] */
    uint16_t *states; /* likewise */
    uint32_t row0, n_batch;
    _Atomic uint32_t next;
};

/* One block of a row at one alpha. */
struct sample {
    size_t row, col;
    double alpha;
};

static float weight_at(const struct scale_run *r, size_t row, size_t col)
{
    return r->job->opts.axis ? r->job->w[row * r->n_col + col] : r->job->w[col * r->n_row + row];
}

static double candidate(const struct scale_run *r, uint32_t i)
{
    return i == 0 ? FIXED_ALPHA[r->job->opts.k - 1] : 0.65 + 0.05 * i; /* 0.70 .. 1.05 */
}

static void run_rms(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct scale_run *r = arg;
    const uint32_t n_task = (r->n_row + ROWS_PER_TASK - 1) / ROWS_PER_TASK;

    (void)tid;
    (void)n_thread;
    for (uint32_t task = esp_task_next(&r->next); task < n_task; task = esp_task_next(&r->next)) {
        const uint32_t r0 = task * ROWS_PER_TASK, left = r->n_row - r0;
        const uint32_t n = left < ROWS_PER_TASK ? left : ROWS_PER_TASK;
        double sum[ROWS_PER_TASK] = {0};

        if (r->job->opts.axis)
            for (uint32_t i = 0; i < n; i++)
                for (size_t c = 0; c < r->n_col; c++)
                    sum[i] += (double)weight_at(r, r0 + i, c) * weight_at(r, r0 + i, c);
        else /* stored rows are columns of W: go along W */
            for (size_t c = 0; c < r->n_col; c++)
                for (uint32_t i = 0; i < n; i++)
                    sum[i] += (double)weight_at(r, r0 + i, c) * weight_at(r, r0 + i, c);
        for (uint32_t i = 0; i < n; i++)
            r->rms[r0 + i] = sqrt(sum[i] / r->n_col);
    }
}

static uint16_t scale_bits(double rms, double alpha)
{
    return esp_f32_to_f16((float)(rms / alpha)); /* infinity when rms passes f32; refused later */
}

/* The row's scale at that alpha; 0 when it is none that can be used. */
static float sample_scale(const struct scale_run *r, const struct sample *x)
{
    const float s = esp_f16_to_f32(scale_bits(r->rms[x->row], x->alpha));

    return isinf(s) ? 0 : s;
}

static void sample_targets(const struct scale_run *r, const struct sample *x, float *u)
{
    const float s = sample_scale(r, x);

    for (size_t t = 0; t < ESP_TRELLIS_BLOCK; t++)
        u[t] = s == 0 ? 0 : weight_at(r, x->row, x->col + t) / s;
}

/* Squared error of a sample with this path, relative to its row's mean square; 0 for rows without a usable
 * scale. */
static double sample_error(const struct scale_run *r, const struct sample *x, const uint16_t *states)
{
    const struct esp_viterbi_code *c = r->e->code[r->job->opts.k - 1];
    const float s = sample_scale(r, x);
    double sum = 0;

    if (s == 0)
        return 0;
    for (size_t t = 0; t < ESP_TRELLIS_BLOCK; t++) {
        const double e = (double)weight_at(r, x->row, x->col + t) - (double)(c->v[states[t]] * s);

        sum += e * e;
    }
    return sum / (r->rms[x->row] * r->rms[x->row]);
}

/* The same, searched by the calling thread. */
static double sample_search(struct scale_run *r, uint32_t tid, const struct sample *x)
{
    float u[ESP_TRELLIS_BLOCK];
    uint16_t states[ESP_TRELLIS_BLOCK];

    if (sample_scale(r, x) == 0)
        return 0;
    sample_targets(r, x, u);
    esp_encoder_block(r->e, tid, r->job->opts.k, r->job->opts.search, u, states);
    return sample_error(r, x, states);
}

static uint32_t least(const double error[N_CANDIDATE])
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < N_CANDIDATE; i++)
        best = error[i] < error[best] ? i : best;
    return best;
}

/* Samples lie evenly over all blocks of the matrix. */
static uint32_t tensor_samples(const struct scale_run *r)
{
    const uint64_t n_block = (uint64_t)(r->n_col / ESP_TRELLIS_BLOCK) * r->n_row;

    return n_block < TENSOR_SAMPLES ? (uint32_t)n_block : TENSOR_SAMPLES;
}

static struct sample tensor_sample(const struct scale_run *r, uint32_t i, uint32_t which)
{
    const uint64_t per_row = r->n_col / ESP_TRELLIS_BLOCK, n_block = per_row * r->n_row;
    const uint64_t block = (2 * i + 1) * n_block / (2 * tensor_samples(r));

    return (struct sample){block / per_row, block % per_row * ESP_TRELLIS_BLOCK, candidate(r, which)};
}

static void run_tensor_search(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct scale_run *r = arg;
    const uint32_t n = tensor_samples(r) * N_CANDIDATE;

    (void)n_thread;
    for (uint32_t i = esp_task_next(&r->next); i < n; i = esp_task_next(&r->next)) {
        const struct sample x = tensor_sample(r, i / N_CANDIDATE, i % N_CANDIDATE);

        r->error[i % N_CANDIDATE * TENSOR_SAMPLES + i / N_CANDIDATE] = sample_search(r, tid, &x);
    }
}

/* Samples of a row lie evenly over its blocks. */
static uint32_t row_samples(const struct scale_run *r)
{
    const uint32_t n_block = r->n_col / ESP_TRELLIS_BLOCK;

    return n_block < ROW_SAMPLES ? n_block : ROW_SAMPLES;
}

static struct sample row_sample(const struct scale_run *r, uint32_t row, uint32_t which, uint32_t i)
{
    const uint32_t n_block = r->n_col / ESP_TRELLIS_BLOCK;
    const uint32_t block = (2 * i + 1) * n_block / (2 * row_samples(r));

    return (struct sample){row, (size_t)block * ESP_TRELLIS_BLOCK, candidate(r, which)};
}

static void run_row_search(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct scale_run *r = arg;
    const uint32_t n_sample = row_samples(r);

    (void)n_thread;
    for (uint32_t row = esp_task_next(&r->next); row < r->n_row; row = esp_task_next(&r->next)) {
        double error[N_CANDIDATE] = {0};

        for (uint32_t i = 0; i < N_CANDIDATE; i++)
            for (uint32_t j = 0; j < n_sample; j++) {
                const struct sample x = row_sample(r, row, i, j);

                error[i] += sample_search(r, tid, &x);
            }
        r->alpha[row] = candidate(r, least(error));
    }
}

/* ---- the same with a device that searches: targets of many samples, one search, their errors ---- */

static void run_tensor_targets(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct scale_run *r = arg;
    const uint32_t n = tensor_samples(r) * N_CANDIDATE;

    (void)tid;
    (void)n_thread;
    for (uint32_t i = esp_task_next(&r->next); i < n; i = esp_task_next(&r->next)) {
        const struct sample x = tensor_sample(r, i / N_CANDIDATE, i % N_CANDIDATE);

        sample_targets(r, &x, r->u + (size_t)i * ESP_TRELLIS_BLOCK);
    }
}

static void run_tensor_errors(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct scale_run *r = arg;
    const uint32_t n = tensor_samples(r) * N_CANDIDATE;

    (void)tid;
    (void)n_thread;
    for (uint32_t i = esp_task_next(&r->next); i < n; i = esp_task_next(&r->next)) {
        const struct sample x = tensor_sample(r, i / N_CANDIDATE, i % N_CANDIDATE);

        r->error[i % N_CANDIDATE * TENSOR_SAMPLES + i / N_CANDIDATE] =
            sample_error(r, &x, r->states + (size_t)i * ESP_TRELLIS_BLOCK);
    }
}

static void run_row_targets(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct scale_run *r = arg;
    const uint32_t n_sample = row_samples(r);

    (void)tid;
    (void)n_thread;
    for (uint32_t row = esp_task_next(&r->next); row < r->n_batch; row = esp_task_next(&r->next))
        for (uint32_t i = 0; i < N_CANDIDATE; i++)
            for (uint32_t j = 0; j < n_sample; j++) {
                const struct sample x = row_sample(r, r->row0 + row, i, j);
                const size_t at = ((size_t)row * N_CANDIDATE + i) * n_sample + j;

                sample_targets(r, &x, r->u + at * ESP_TRELLIS_BLOCK);
            }
}

static void run_row_errors(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct scale_run *r = arg;
    const uint32_t n_sample = row_samples(r);

    (void)tid;
    (void)n_thread;
    for (uint32_t row = esp_task_next(&r->next); row < r->n_batch; row = esp_task_next(&r->next)) {
        double error[N_CANDIDATE] = {0};

        for (uint32_t i = 0; i < N_CANDIDATE; i++)
            for (uint32_t j = 0; j < n_sample; j++) {
                const struct sample x = row_sample(r, r->row0 + row, i, j);
                const size_t at = ((size_t)row * N_CANDIDATE + i) * n_sample + j;

                error[i] += sample_error(r, &x, r->states + at * ESP_TRELLIS_BLOCK);
            }
        r->alpha[r->row0 + row] = candidate(r, least(error));
    }
}

static void region(struct scale_run *r, esp_pool_fn fn)
{
    r->next = 0;
    esp_pool_run(r->e->pool, fn, r);
}

static esp_status search_on_device(struct scale_run *r, uint32_t n, esp_pool_fn targets, esp_pool_fn errors,
                                   esp_error *err)
{
    const struct esp_trellis_opts *o = &r->job->opts;

    region(r, targets);
    ESP_TRY(esp_encoder_blocks(r->e, o->k, o->search, n, r->u, NULL, r->states, err));
    region(r, errors);
    return ESP_OK;
}

static esp_status search_rows(struct scale_run *r, esp_error *err)
{
    if (!r->u) {
        region(r, run_row_search);
        return ESP_OK;
    }
    for (r->row0 = 0; r->row0 < r->n_row; r->row0 += BATCH_ROWS) {
        r->n_batch = r->n_row - r->row0 < BATCH_ROWS ? r->n_row - r->row0 : BATCH_ROWS;
        ESP_TRY(search_on_device(r, r->n_batch * N_CANDIDATE * row_samples(r), run_row_targets,
                                 run_row_errors, err));
    }
    return ESP_OK;
}

static esp_status search_tensor(struct scale_run *r, esp_error *err)
{
    if (r->u)
        return search_on_device(r, tensor_samples(r) * N_CANDIDATE, run_tensor_targets, run_tensor_errors,
                                err);
    region(r, run_tensor_search);
    return ESP_OK;
}

static esp_status choose_alpha(struct scale_run *r, esp_error *err)
{
    double alpha = FIXED_ALPHA[r->job->opts.k - 1];

    if (r->job->opts.scale == ESP_TRELLIS_SCALE_ROW)
        return search_rows(r, err);
    if (r->job->opts.scale == ESP_TRELLIS_SCALE_RMS)
        alpha = CODE_RMS;
    if (r->job->opts.scale == ESP_TRELLIS_SCALE_TENSOR) {
        double error[N_CANDIDATE] = {0};

        ESP_TRY(search_tensor(r, err));
        for (uint32_t i = 0; i < N_CANDIDATE; i++)
            for (uint32_t j = 0; j < TENSOR_SAMPLES; j++)
                error[i] += r->error[i * TENSOR_SAMPLES + j];
        alpha = candidate(r, least(error));
    }
    for (uint32_t row = 0; row < r->n_row; row++)
        r->alpha[row] = alpha;
    return ESP_OK;
}

static esp_status store_scales(const struct scale_run *r, double *mean_alpha, esp_error *err)
{
    double sum = 0;
    uint32_t n = 0;

    for (uint32_t row = 0; row < r->n_row; row++) {
        const uint16_t bits = scale_bits(r->rms[row], r->alpha[row]);

        if (isinf(esp_f16_to_f32(bits)))
            return esp_fail(err, ESP_ENUMERIC,
                            "%s %" PRIu32 ": weights of root mean square %g need a scale beyond f16 (65504)",
                            r->job->opts.axis ? "output" : "input", row, r->rms[row]);
        r->job->scales[row] = bits;
        if (bits != 0) {
            sum += r->alpha[row];
            n++;
        }
    }
    *mean_alpha = n ? sum / n : 0;
    return ESP_OK;
}

esp_status esp_trellis_scales(struct esp_encoder *e, const struct esp_trellis_job *job, double *mean_alpha,
                              esp_error *err)
{
    struct scale_run r = {.e = e, .job = job};
    const size_t n_sample = (size_t)BATCH_ROWS * N_CANDIDATE * ROW_SAMPLES;
    bool searched = true;
    esp_status s;

    r.n_row = job->opts.axis ? job->n_out : job->n_in;
    r.n_col = job->opts.axis ? job->n_in : job->n_out;
    r.rms = esp_alloc_array(r.n_row, 2 * sizeof *r.rms);
    r.error = esp_alloc_array(N_CANDIDATE * TENSOR_SAMPLES, sizeof *r.error);
    if (esp_encoder_is_on(e, job->opts.search) && job->opts.scale >= ESP_TRELLIS_SCALE_TENSOR) {
        r.u = esp_encoder_alloc(e, n_sample, ESP_TRELLIS_BLOCK * sizeof *r.u);
        r.states = esp_encoder_alloc(e, n_sample, ESP_TRELLIS_BLOCK * sizeof *r.states);
        searched = r.u && r.states;
    }
    if (!r.rms || !r.error || !searched) {
        s = esp_fail(err, ESP_ENOMEM, "scales of %" PRIu32 " rows: out of memory", r.n_row);
        goto done;
    }
    r.alpha = r.rms + r.n_row;
    region(&r, run_rms);
    s = choose_alpha(&r, err);
    if (s == ESP_OK)
        s = store_scales(&r, mean_alpha, err);
done:
    esp_encoder_free(e, r.states);
    esp_encoder_free(e, r.u);
    esp_free(r.error);
    esp_free(r.rms);
    return s;
}
