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
#include "quantize/encode_run.h"

#include <math.h>
#include <string.h>

/* One line of 256 weights of a unit in a stage. */
struct line {
    size_t row, block; /* of the stored matrix */
    const float *w;    /* [256] */
    float *t, *rest;   /* [256] feedback, then residual; w - w^ */
};

static size_t row_bytes(const struct esp_trellis_job *job)
{
    return (size_t)(job->opts.axis ? job->n_in : job->n_out) / 8 * job->opts.k;
}

/* Feedback inside a block needs it to lie along the inputs. */
bool esp_run_feeds_inside(const struct esp_matrix_run *r)
{
    return r->feedback && r->job->opts.axis == 1 && r->f->group < BLOCK;
}

struct esp_viterbi_feed esp_run_feed(const struct esp_matrix_run *r, const struct esp_stage *st)
{
    return (struct esp_viterbi_feed){
        .taps = r->f->feed + st->i0 * (r->n_in + 1), .ld = r->n_in, .group = r->f->group};
}

uint32_t esp_run_stages(const struct esp_matrix_run *r)
{
    const size_t g = r->job->opts.axis || !r->f ? BLOCK : r->f->group;

    return (uint32_t)((r->n_in + g - 1) / g);
}

struct esp_stage esp_run_stage(const struct esp_matrix_run *r, uint32_t number)
{
    const size_t g = r->job->opts.axis || !r->f ? BLOCK : r->f->group, i = number * g;
    struct esp_stage st = {.i0 = i / BLOCK * BLOCK, .q = i % BLOCK};

    st.n = r->n_in - i < g ? r->n_in - i : g;
    return st;
}

uint32_t esp_run_lines(const struct esp_matrix_run *r, uint32_t unit, const struct esp_stage *st)
{
    const uint32_t row0 = unit * UNIT_ROWS, left = r->job->n_out - row0;

    if (!r->job->opts.axis)
        return (uint32_t)st->n;
    return left < UNIT_ROWS ? left : UNIT_ROWS;
}

static struct line line_of(const struct esp_matrix_run *r, const struct esp_lane *l, uint32_t unit,
                           const struct esp_stage *st, size_t i)
{
    const size_t row = (size_t)unit * UNIT_ROWS + i, at = st->q + i;

    if (r->job->opts.axis)
        return (struct line){.row = row,
                             .block = st->i0 / BLOCK,
                             .w = r->job->w + row * r->n_in + st->i0,
                             .t = l->t + i * BLOCK,
                             .rest = l->rest + i * r->n_in + st->i0};
    return (struct line){.row = st->i0 + at,
                         .block = unit,
                         .w = l->w + at * BLOCK,
                         .t = l->t + at * BLOCK,
                         .rest = l->rest + (r->f ? st->i0 + at : 0) * BLOCK};
}

/* Targets of a line, zeros where its scale is 0. Returns false when one is out of bounds. */
static bool set_targets(const struct esp_matrix_run *r, const struct line *x, float *u, float *own)
{
    const float s = esp_f16_to_f32(r->job->scales[x->row]);
    const bool inside = esp_run_feeds_inside(r);

    if (s == 0) {
        memset(u, 0, BLOCK * sizeof *u);
        if (inside)
            memset(own, 0, BLOCK * sizeof *own);
        return true;
    }
    for (size_t i = 0; i < BLOCK; i++) {
        u[i] = (r->feedback ? x->w[i] + x->t[i] : x->w[i]) / s;
        if (!(fabsf(u[i]) <= r->high)) /* also when it is not a number */
            return false;
    }
    for (size_t i = 0; inside && i < BLOCK; i++)
        own[i] = x->w[i] / s;
    return true;
}

/* Pack a line's path and leave its rest. Returns false for what is no path. */
static bool keep_line(const struct esp_matrix_run *r, const struct line *x, const uint16_t *states)
{
    const uint32_t k = r->job->opts.k;
    const float s = esp_f16_to_f32(r->job->scales[x->row]), *v = r->e->code[k - 1]->v;
    uint8_t *code = r->job->codes + x->row * row_bytes(r->job) + x->block * esp_trellis_block_bytes(k);

    if (r->zero || s == 0) {
        if (!r->zero)
            memset(code, 0, esp_trellis_block_bytes(k));
        memcpy(x->rest, x->w, BLOCK * sizeof *x->rest);
        return true;
    }
    if (esp_trellis_pack(k, states, code, NULL) != ESP_OK)
        return false;
    for (size_t i = 0; i < BLOCK; i++)
        x->rest[i] = x->w[i] - v[states[i]] * s;
    return true;
}

static void count_line(struct esp_unit_sums *s, const float *w, const float *rest)
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

/* Thread 0 is the caller's own: it alone reports. */
static void report(struct esp_matrix_run *r, uint32_t tid, uint64_t n_weight)
{
    const struct esp_trellis_opts *o = &r->job->opts;
    const uint64_t done = atomic_fetch_add(&r->done, n_weight) + n_weight;

    if (tid == 0 && o->progress && !o->progress(o->user, done, r->total))
        r->cancelled = 1;
}

/* ---- axis 1: lines are outputs ---- */

/* |r C|^2 of n_row lines of residuals over the inputs from i0 on; uses t up. */
static double loss_of_rows(const struct esp_matrix_run *r, float *t, uint32_t n_row, size_t i0)
{
    const size_t g = r->f->group;

    for (size_t q = 0; q < BLOCK; q += g)
        r->blas.strmm(ESP_BLAS_ROWS, ESP_BLAS_RIGHT, ESP_BLAS_UPPER, ESP_BLAS_PLAIN, ESP_BLAS_NON_UNIT,
                      (int)n_row, (int)g, 1, r->f->diag + (i0 + q) * g, (int)g, t + q, BLOCK);
    return sum_squares(t, (size_t)n_row * BLOCK);
}

/* t [n_row][256] for the inputs from i0 on, out of the rest of inputs [j0, j0 + n). */
static void feed_rows(const struct esp_matrix_run *r, const struct esp_lane *l, uint32_t n_row, size_t i0,
                      size_t j0, size_t n)
{
    r->blas.sgemm(ESP_BLAS_ROWS, ESP_BLAS_PLAIN, ESP_BLAS_PLAIN, (int)n_row, BLOCK, (int)n, 1, l->rest + j0,
                  (int)r->n_in, r->f->feed + j0 * r->n_in + i0, (int)r->n_in, 1, l->t, BLOCK);
}

/* ---- axis 0: lines are inputs, 256 outputs long ---- */

/* |C^T r|^2 of a group of n inputs; uses t up. */
static double loss_of_inputs(const struct esp_matrix_run *r, float *t, size_t n, size_t i0)
{
    const size_t g = r->f->group;

    r->blas.strmm(ESP_BLAS_ROWS, ESP_BLAS_LEFT, ESP_BLAS_UPPER, ESP_BLAS_TRANS, ESP_BLAS_NON_UNIT, (int)n,
                  BLOCK, 1, r->f->diag + i0 * g, (int)g, t, BLOCK);
    return sum_squares(t, n * BLOCK);
}

/* Add to t [n][256] for the inputs from i0 on, out of the rest of inputs [j0, i0). */
static void feed_inputs(const struct esp_matrix_run *r, const struct esp_lane *l, float *t, size_t n,
                        size_t i0, size_t j0)
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

static void load_columns(const struct esp_matrix_run *r, const struct esp_lane *l, size_t out0, size_t i0,
                         size_t n)
{
    for (size_t o = 0; o < BLOCK; o++)
        for (size_t i = 0; i < n; i++)
            l->w[i * BLOCK + o] = r->job->w[(out0 + o) * r->n_in + i0 + i];
}

/* ---- stages ---- */

void esp_unit_begin(struct esp_matrix_run *r, const struct esp_lane *l, uint32_t unit,
                    const struct esp_stage *st)
{
    const uint32_t n = esp_run_lines(r, unit, st);
    float *t = l->t + st->q * BLOCK;

    if (r->job->opts.axis) {
        memset(l->t, 0, (size_t)n * BLOCK * sizeof *l->t);
        if (r->f && st->i0 > 0)
            feed_rows(r, l, n, st->i0, 0, st->i0);
    } else if (st->q == 0) {
        const size_t m = r->n_in - st->i0 < BLOCK ? r->n_in - st->i0 : BLOCK;

        load_columns(r, l, (size_t)unit * BLOCK, st->i0, m);
        memset(l->t, 0, m * BLOCK * sizeof *l->t);
        if (r->f)
            feed_inputs(r, l, l->t, m, st->i0, 0);
    } else {
        feed_inputs(r, l, t, n, st->i0 + st->q, st->i0);
    }
    for (uint32_t i = 0; i < n && !r->zero && !esp_run_stopped(r); i++) {
        const struct line x = line_of(r, l, unit, st, i);

        if (!set_targets(r, &x, l->u + (size_t)i * BLOCK, l->own + (size_t)i * BLOCK))
            r->diverged = 1;
    }
}

void esp_unit_search(struct esp_matrix_run *r, const struct esp_lane *l, uint32_t tid, uint32_t unit,
                     const struct esp_stage *st)
{
    const struct esp_trellis_opts *o = &r->job->opts;
    const uint32_t n = esp_run_lines(r, unit, st);
    const bool inside = esp_run_feeds_inside(r);
    struct esp_viterbi_feed feed = inside ? esp_run_feed(r, st) : (struct esp_viterbi_feed){0};

    for (uint32_t i = 0; i < n && !esp_run_stopped(r); i++) {
        const float *u = l->u + (size_t)i * BLOCK;
        uint16_t *states = l->states + (size_t)i * BLOCK;

        if (r->job->scales[line_of(r, l, unit, st, i).row] == 0)
            continue;
        feed.u = u;
        feed.w = l->own + (size_t)i * BLOCK;
        if (inside)
            esp_encoder_block_fed(r->e, tid, o->k, o->search, &feed, states);
        else
            esp_encoder_block(r->e, tid, o->k, o->search, u, states);
    }
}

static void end_rows(struct esp_matrix_run *r, const struct esp_lane *l, uint32_t n,
                     const struct esp_stage *st, struct esp_unit_sums *s)
{
    if (!r->f)
        return;
    if (r->f->group < BLOCK)
        feed_rows(r, l, n, st->i0, st->i0, BLOCK);
    for (size_t i = 0; i < n; i++)
        to_residual(l->t + i * BLOCK, l->rest + i * r->n_in + st->i0);
    s->loss += loss_of_rows(r, l->t, n, st->i0);
}

void esp_unit_end(struct esp_matrix_run *r, const struct esp_lane *l, uint32_t tid, uint32_t unit,
                  const struct esp_stage *st)
{
    const uint32_t n = esp_run_lines(r, unit, st), axis = r->job->opts.axis;
    struct esp_unit_sums *s = &r->sums[unit];
    const size_t behind = st->i0 + st->q + n;

    for (uint32_t i = 0; i < n; i++) {
        const struct line x = line_of(r, l, unit, st, i);

        if (!keep_line(r, &x, r->zero ? NULL : l->states + (size_t)i * BLOCK))
            r->broken = 1;
        count_line(s, x.w, x.rest);
        if (!axis)
            to_residual(x.t, x.rest);
    }
    if (axis) {
        end_rows(r, l, n, st, s);
        report(r, tid, (uint64_t)n * BLOCK);
        return;
    }
    if (r->f)
        s->loss += loss_of_inputs(r, l->t + st->q * BLOCK, n, st->i0 + st->q);
    if (behind % BLOCK == 0 || behind == r->n_in)
        report(r, tid, (uint64_t)(behind - st->i0) * BLOCK);
}
