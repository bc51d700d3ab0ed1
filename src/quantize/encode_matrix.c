/*
 * Quantizing a matrix. A unit of work is some outputs (64 stored rows of axis 1, one block of 256 outputs of
 * axis 0) through all inputs, 256 at a time: what earlier inputs leave to be corrected comes from one matrix
 * product a block of inputs, what inputs of the same block leave is added as they are coded. The product sees
 * only the unit's own outputs, so units never wait for each other.
 *
 * The loss needs no second product. With r = w^ - (w + feedback) for a group Q of inputs, (E C)[:, Q] = r_Q
 * C[Q, Q], and tr(E H E^T) = |E C|^2, less what the damping added. The same run with w^ = 0 gives tr(W H
 * W^T).
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/encode_matrix.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "quantize/blas.h"
#include "quantize/encode_parts.h"
#include "quantize/encode_scale.h"

enum { BLOCK = ESP_TRELLIS_BLOCK, UNIT_ROWS = 64 };
#define GUARD 4 /* targets that feedback drives this far beyond the largest weight mean that it diverges */

struct unit_sums {
    double error; /* sum (w - w^)^2 */
    double power; /* sum w^2 */
    double loss;  /* |E C|^2 */
};

/* Work of one thread. A tile has lines of 256 coded weights: rows of axis 1, inputs of axis 0. */
struct lane {
    float *w;    /* [256][256] the tile's weights, axis 0 only (axis 1 reads them in place) */
    float *t;    /* [256][256] feedback, then the residual r of each line */
    float *rest; /* w - w^ of the unit: axis 1 [64][n_in], axis 0 [n_in][256] */
};

struct matrix_run {
    struct esp_blas blas;
    struct esp_encoder *e;
    const struct esp_trellis_job *job;
    const struct esp_ldlq *f;
    size_t n_in;
    bool feedback;
    bool zero;  /* measure w^ = 0 instead of encoding */
    float high; /* no |target| may pass it; infinity: no guard */
    uint32_t n_unit;
    struct lane *lane;      /* [n_thread] */
    struct unit_sums *sums; /* [n_unit] */
    uint64_t total;
    _Atomic uint64_t done;
    _Atomic uint32_t next;
    _Atomic int diverged, cancelled;
};

static size_t row_bytes(const struct esp_trellis_job *job)
{
    return (size_t)(job->opts.axis ? job->n_in : job->n_out) / 8 * job->opts.k;
}

/* Feedback inside a block needs it to lie along the inputs. */
static bool feeds_inside(const struct matrix_run *r)
{
    return r->feedback && r->job->opts.axis == 1 && r->f->group < BLOCK;
}

static void search_line(const struct matrix_run *r, uint32_t tid, size_t block, float scale, const float *w,
                        const float *u, uint16_t *states)
{
    const struct esp_trellis_opts *o = &r->job->opts;
    struct esp_viterbi_feed feed;
    float own[BLOCK];

    if (!feeds_inside(r)) {
        esp_encoder_block(r->e, tid, o->k, o->search, u, states);
        return;
    }
    for (size_t i = 0; i < BLOCK; i++)
        own[i] = w[i] / scale;
    feed = (struct esp_viterbi_feed){.w = own,
                                     .u = u,
                                     .taps = r->f->feed + block * BLOCK * (r->n_in + 1),
                                     .ld = r->n_in,
                                     .group = r->f->group};
    esp_encoder_block_fed(r->e, tid, o->k, o->search, &feed, states);
}

/* Code one line of 256 weights and leave its rest. Returns false when a target is out of bounds. */
static bool code_line(struct matrix_run *r, uint32_t tid, size_t row, size_t block, const float *w,
                      const float *t, float *rest)
{
    const struct esp_trellis_opts *o = &r->job->opts;
    const float s = esp_f16_to_f32(r->job->scales[row]);
    uint8_t *code = r->job->codes + row * row_bytes(r->job) + block * esp_trellis_block_bytes(o->k);
    const float *v = r->e->code[o->k - 1]->v;
    float u[BLOCK];
    uint16_t states[BLOCK];

    if (s == 0) {
        memset(code, 0, esp_trellis_block_bytes(o->k));
        memcpy(rest, w, BLOCK * sizeof *rest);
        return true;
    }
    for (size_t i = 0; i < BLOCK; i++) {
        u[i] = (r->feedback ? w[i] + t[i] : w[i]) / s;
        if (!(fabsf(u[i]) <= r->high)) /* also when it is not a number */
            return false;
    }
    search_line(r, tid, block, s, w, u, states);
    const bool closed = esp_trellis_pack(o->k, states, code, NULL) == ESP_OK;

    ESP_ASSERT(closed); /* the search returns no other path */
    if (!closed)
        return false;
    for (size_t i = 0; i < BLOCK; i++)
        rest[i] = w[i] - v[states[i]] * s;
    return true;
}

static bool line(struct matrix_run *r, uint32_t tid, size_t row, size_t block, const float *w, const float *t,
                 float *rest)
{
    if (r->zero) {
        memcpy(rest, w, BLOCK * sizeof *rest);
        return true;
    }
    return code_line(r, tid, row, block, w, t, rest);
}

static void count_line(struct unit_sums *s, const float *w, const float *rest)
{
    for (size_t i = 0; i < BLOCK; i++) {
        s->error += (double)rest[i] * rest[i];
        s->power += (double)w[i] * w[i];
    }
}

/* t becomes r = w^ - w - t. */
static void to_residual(float *t, const float *rest)
{
    for (size_t i = 0; i < BLOCK; i++)
        t[i] = -rest[i] - t[i];
}

static double sum_squares(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

static bool stopped(const struct matrix_run *r)
{
    return r->diverged || r->cancelled;
}

/* Thread 0 is the caller's own: it alone reports. */
static void report(struct matrix_run *r, uint32_t tid, uint64_t n_weight)
{
    const struct esp_trellis_opts *o = &r->job->opts;
    const uint64_t done = atomic_fetch_add(&r->done, n_weight) + n_weight;

    if (tid == 0 && o->progress && !o->progress(o->user, done, r->total))
        r->cancelled = 1;
}

/* ---- axis 1: lines are outputs ---- */

/* |r C|^2 of n_row lines of residuals over the inputs from i0 on; uses t up. */
static double loss_of_rows(const struct matrix_run *r, float *t, uint32_t n_row, size_t i0)
{
    const size_t g = r->f->group;

    for (size_t q = 0; q < BLOCK; q += g)
        r->blas.strmm(ESP_BLAS_ROWS, ESP_BLAS_RIGHT, ESP_BLAS_UPPER, ESP_BLAS_PLAIN, ESP_BLAS_NON_UNIT,
                      (int)n_row, (int)g, 1, r->f->diag + (i0 + q) * g, (int)g, t + q, BLOCK);
    return sum_squares(t, (size_t)n_row * BLOCK);
}

/* t [n_row][256] for the inputs from i0 on, out of the rest of inputs [j0, j0 + n). */
static void feed_rows(const struct matrix_run *r, const struct lane *l, uint32_t n_row, size_t i0, size_t j0,
                      size_t n)
{
    r->blas.sgemm(ESP_BLAS_ROWS, ESP_BLAS_PLAIN, ESP_BLAS_PLAIN, (int)n_row, BLOCK, (int)n, 1, l->rest + j0,
                  (int)r->n_in, r->f->feed + j0 * r->n_in + i0, (int)r->n_in, 1, l->t, BLOCK);
}

static void unit_of_rows(struct matrix_run *r, uint32_t tid, uint32_t unit)
{
    const struct lane *l = &r->lane[tid];
    const uint32_t row0 = unit * UNIT_ROWS, left = r->job->n_out - row0,
                   n_row = left < UNIT_ROWS ? left : UNIT_ROWS;
    struct unit_sums *s = &r->sums[unit];

    for (size_t i0 = 0; i0 < r->n_in && !stopped(r); i0 += BLOCK) {
        memset(l->t, 0, (size_t)n_row * BLOCK * sizeof *l->t);
        if (r->f && i0 > 0)
            feed_rows(r, l, n_row, i0, 0, i0);
        for (size_t i = 0; i < n_row && !stopped(r); i++) {
            const float *w = r->job->w + (row0 + i) * r->n_in + i0;
            float *rest = l->rest + i * r->n_in + i0;

            if (!line(r, tid, row0 + i, i0 / BLOCK, w, l->t + i * BLOCK, rest))
                r->diverged = 1;
            count_line(s, w, rest);
        }
        if (r->f) {
            if (r->f->group < BLOCK)
                feed_rows(r, l, n_row, i0, i0, BLOCK);
            for (size_t i = 0; i < n_row; i++)
                to_residual(l->t + i * BLOCK, l->rest + i * r->n_in + i0);
            s->loss += loss_of_rows(r, l->t, n_row, i0);
        }
        report(r, tid, (uint64_t)n_row * BLOCK);
    }
}

/* ---- axis 0: lines are inputs, 256 outputs long ---- */

/* |C^T r|^2 of a group of n inputs; uses t up. */
static double loss_of_inputs(const struct matrix_run *r, float *t, size_t n, size_t i0)
{
    const size_t g = r->f->group;

    r->blas.strmm(ESP_BLAS_ROWS, ESP_BLAS_LEFT, ESP_BLAS_UPPER, ESP_BLAS_TRANS, ESP_BLAS_NON_UNIT, (int)n,
                  BLOCK, 1, r->f->diag + i0 * g, (int)g, t, BLOCK);
    return sum_squares(t, n * BLOCK);
}

/* Add to t [n][256] for the inputs from i0 on, out of the rest of inputs [j0, i0). */
static void feed_inputs(const struct matrix_run *r, const struct lane *l, float *t, size_t n, size_t i0,
                        size_t j0)
{
    const float *feed = r->f->feed + j0 * r->n_in + i0, *rest = l->rest + j0 * BLOCK;

    if (i0 == j0)
        return;
    if (n == 1)
        r->blas.sgemv(ESP_BLAS_ROWS, ESP_BLAS_TRANS, (int)(i0 - j0), BLOCK, 1, rest, BLOCK, feed,
                      (int)r->n_in, 1, t, 1);
    else
        r->blas.sgemm(ESP_BLAS_ROWS, ESP_BLAS_TRANS, ESP_BLAS_PLAIN, (int)n, BLOCK, (int)(i0 - j0), 1, feed,
                      (int)r->n_in, rest, BLOCK, 1, t, BLOCK);
}

static void load_columns(const struct matrix_run *r, const struct lane *l, size_t out0, size_t i0, size_t n)
{
    for (size_t o = 0; o < BLOCK; o++)
        for (size_t i = 0; i < n; i++)
            l->w[i * BLOCK + o] = r->job->w[(out0 + o) * r->n_in + i0 + i];
}

/* One group of inputs inside the block of inputs that starts at i0. */
static void group_of_inputs(struct matrix_run *r, uint32_t tid, uint32_t unit, size_t i0, size_t q, size_t n)
{
    const struct lane *l = &r->lane[tid];
    float *t = l->t + q * BLOCK;

    if (r->f)
        feed_inputs(r, l, t, n, i0 + q, i0);
    for (size_t i = 0; i < n && !stopped(r); i++) {
        float *rest = l->rest + (r->f ? i0 + q + i : 0) * BLOCK;
        const float *w = l->w + (q + i) * BLOCK;

        if (!line(r, tid, i0 + q + i, unit, w, t + i * BLOCK, rest))
            r->diverged = 1;
        count_line(&r->sums[unit], w, rest);
        to_residual(t + i * BLOCK, rest);
    }
    if (r->f)
        r->sums[unit].loss += loss_of_inputs(r, t, n, i0 + q);
}

static void unit_of_columns(struct matrix_run *r, uint32_t tid, uint32_t unit)
{
    const struct lane *l = &r->lane[tid];
    const size_t g = r->f ? r->f->group : BLOCK;

    for (size_t i0 = 0; i0 < r->n_in && !stopped(r); i0 += BLOCK) {
        const size_t n = r->n_in - i0 < BLOCK ? r->n_in - i0 : BLOCK;

        load_columns(r, l, (size_t)unit * BLOCK, i0, n);
        memset(l->t, 0, n * BLOCK * sizeof *l->t);
        if (r->f)
            feed_inputs(r, l, l->t, n, i0, 0);
        for (size_t q = 0; q < n && !stopped(r); q += g)
            group_of_inputs(r, tid, unit, i0, q, n - q < g ? n - q : g);
        report(r, tid, (uint64_t)n * BLOCK);
    }
}

/* ---- the whole ---- */

static void run_units(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct matrix_run *r = arg;

    (void)n_thread;
    for (uint32_t i = esp_task_next(&r->next); i < r->n_unit && !stopped(r); i = esp_task_next(&r->next)) {
        r->sums[i] = (struct unit_sums){0};
        if (r->job->opts.axis)
            unit_of_rows(r, tid, i);
        else
            unit_of_columns(r, tid, i);
    }
}

static struct unit_sums run_all(struct matrix_run *r)
{
    struct unit_sums sum = {0};

    r->next = 0;
    r->done = 0;
    r->diverged = 0;
    esp_pool_run(r->e->pool, run_units, r);
    for (uint32_t i = 0; i < r->n_unit; i++) { /* in their order, whoever made them */
        sum.error += r->sums[i].error;
        sum.power += r->sums[i].power;
        sum.loss += r->sums[i].loss;
    }
    return sum;
}

static void free_lanes(struct matrix_run *r)
{
    if (r->lane)
        for (uint32_t i = 0; i < esp_pool_size(r->e->pool); i++)
            esp_free_aligned(r->lane[i].w);
    esp_free(r->lane);
    esp_free(r->sums);
}

static esp_status alloc_lanes(struct matrix_run *r, esp_error *err)
{
    const uint32_t n_thread = esp_pool_size(r->e->pool);
    const size_t lines = r->job->opts.axis ? UNIT_ROWS : BLOCK, tile = (size_t)BLOCK * BLOCK;
    size_t count;
    bool fits = esp_mul_size(&count, r->f || r->job->opts.axis ? r->n_in : 1, lines) &&
                esp_add_size(&count, count, 2 * tile) && esp_mul_size(&count, count, sizeof(float));

    r->lane = esp_alloc_array(n_thread, sizeof *r->lane);
    r->sums = esp_alloc_array(r->n_unit, sizeof *r->sums);
    fits = fits && r->lane && r->sums;
    for (uint32_t i = 0; fits && i < n_thread; i++) {
        r->lane[i].w = esp_alloc_aligned(count, 64);
        fits = r->lane[i].w != NULL;
        if (fits) {
            r->lane[i].t = r->lane[i].w + tile;
            r->lane[i].rest = r->lane[i].t + tile;
        }
    }
    if (fits)
        return ESP_OK;
    return esp_fail(err, ESP_ENOMEM,
                    "quantizing %" PRIu32 " x %" PRIu32 " weights on %" PRIu32 " threads: out of memory",
                    r->job->n_out, r->job->n_in, n_thread);
}

static esp_status check_opts(const struct esp_trellis_opts *o, esp_error *err)
{
    ESP_TRY(esp_encode_check_k(o->k, err));
    if (o->axis > 1)
        return esp_fail(err, ESP_EINVAL, "trellis axis %" PRIu32 ": 0 or 1 is possible", o->axis);
    if ((unsigned)o->search >= ESP_SEARCH_COUNT || (unsigned)o->scale >= ESP_TRELLIS_SCALE_COUNT ||
        (unsigned)o->feedback > ESP_TRELLIS_FEEDBACK_OFF)
        return esp_fail(err, ESP_EINVAL, "trellis search %u, scale %u, feedback %u: one of them is not known",
                        (unsigned)o->search, (unsigned)o->scale, (unsigned)o->feedback);
    return ESP_OK;
}

static esp_status check_factor(const struct esp_ldlq *f, uint32_t n_in, uint32_t axis, esp_error *err)
{
    if (f->n != n_in)
        return esp_fail(err, ESP_EINVAL, "factor of %" PRIu32 " inputs for weights with %" PRIu32, f->n,
                        n_in);
    if (axis == 1 && f->group < ESP_TRELLIS_GROUP_AXIS1_MIN)
        return esp_fail(err, ESP_EINVAL,
                        "axis 1 with feedback in groups of %" PRIu32 ": 16 to 256 are possible", f->group);
    return ESP_OK;
}

static esp_status check_job(const struct esp_trellis_job *job, esp_error *err)
{
    const uint32_t axis = job->opts.axis, n_col = axis ? job->n_in : job->n_out;

    ESP_TRY(check_opts(&job->opts, err));
    if (job->n_out == 0 || job->n_in == 0 || n_col % BLOCK != 0)
        return esp_fail(err, ESP_EINVAL,
                        "%" PRIu32 " x %" PRIu32 " weights, axis %" PRIu32 ": %s must be a multiple of 256",
                        job->n_out, job->n_in, axis, axis ? "inputs" : "outputs");
    if (job->n_out > ESP_LIMIT_VOCAB || job->n_in > ESP_LIMIT_HIDDEN)
        return esp_fail(err, ESP_EINVAL, "%" PRIu32 " x %" PRIu32 " weights: at most %u x %u are possible",
                        job->n_out, job->n_in, ESP_LIMIT_VOCAB, ESP_LIMIT_HIDDEN);
    if (job->ldlq)
        ESP_TRY(check_factor(job->ldlq, job->n_in, axis, err));
    return esp_encode_check_finite(job->w, job->n_out, job->n_in, job->n_in, "weight", err);
}

/* The largest |w / s|, times the guard. */
static float highest_target(const struct esp_trellis_job *job)
{
    float high = 0;

    for (size_t o = 0; o < job->n_out; o++)
        for (size_t i = 0; i < job->n_in; i++) {
            const float s = esp_f16_to_f32(job->scales[job->opts.axis ? o : i]);
            const float u = s == 0 ? 0 : fabsf(job->w[o * job->n_in + i]) / s;

            high = u > high ? u : high;
        }
    return GUARD * high;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Encode, and once more without feedback when that diverged. */
static struct unit_sums encode_guarded(struct matrix_run *r, bool *unweighted)
{
    struct unit_sums sum;

    r->feedback = r->f && r->job->opts.feedback == ESP_TRELLIS_FEEDBACK_ON;
    r->high = r->feedback ? highest_target(r->job) : INFINITY;
    sum = run_all(r);
    *unweighted = r->diverged != 0;
    if (*unweighted && !r->cancelled) {
        r->feedback = false;
        r->high = INFINITY;
        sum = run_all(r);
    }
    return sum;
}

static void fill_report(struct esp_trellis_report *out, const struct matrix_run *r,
                        const struct unit_sums *sum)
{
    const double damping = r->f ? r->f->damping : 0;

    out->mse = sum->error / ((double)r->job->n_out * r->job->n_in);
    out->rel_mse = sum->power > 0 ? sum->error / sum->power : 0;
    out->loss = fmax(0, sum->loss - damping * sum->error);
}

esp_status esp_trellis_quantize(struct esp_encoder *e, const struct esp_trellis_job *job,
                                struct esp_trellis_report *report, esp_error *err)
{
    struct matrix_run r = {.e = e, .job = job, .f = job->ldlq, .n_in = job->n_in};
    struct esp_trellis_report out = {0};
    const double start = now();
    struct unit_sums sum;
    esp_status s;

    ESP_TRY(check_job(job, err));
    ESP_TRY(esp_blas_open(&r.blas, err));
    r.n_unit = job->opts.axis ? (job->n_out + UNIT_ROWS - 1) / UNIT_ROWS : job->n_out / BLOCK;
    r.total = (uint64_t)job->n_out * job->n_in;
    s = alloc_lanes(&r, err);
    if (s != ESP_OK)
        goto done;
    s = esp_trellis_scales(e, job, &out.alpha, err);
    if (s != ESP_OK)
        goto done;
    sum = encode_guarded(&r, &out.unweighted);
    fill_report(&out, &r, &sum);
    if (job->opts.want_power && r.f && !r.cancelled) {
        r.zero = true;
        sum = run_all(&r);
        out.power = fmax(0, sum.loss - r.f->damping * sum.power);
    }
    out.seconds = now() - start;
    if (r.cancelled)
        s = esp_fail(err, ESP_ECANCELLED, "quantizing was stopped after %" PRIu64 " of %" PRIu64 " weights",
                     r.done, r.total);
    else
        *report = out;
done:
    esp_blas_close(&r.blas);
    free_lanes(&r);
    return s;
}
