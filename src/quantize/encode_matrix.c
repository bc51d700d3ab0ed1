/*
 * Quantizing a matrix: all units through all stages (encode_unit.c), each by one thread from its first input
 * to its last; or, where a device searches, the units of a wave through a stage together, with one call of
 * the device between one stage and the next. Products stay on the CPU, in the same calls: so bytes are the
 * same.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/encode_matrix.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

#include "base/mem.h"
#include "quantize/encode_run.h"
#include "quantize/encode_scale.h"

#define WAVE_BYTES ((size_t)1 << 30) /* of a wave's lanes: what a device's search takes of host memory */
#define GUARD      4 /* targets that feedback drives so far beyond the largest weight mean that it diverges */

/* ---- on the pool's threads ---- */

static void run_units(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct esp_matrix_run *r = arg;
    const struct esp_lane *l = &r->lane[tid];
    const uint32_t n_stage = esp_run_stages(r);

    (void)n_thread;
    for (uint32_t i = esp_task_next(&r->next); i < r->n_unit && !esp_run_stopped(r);
         i = esp_task_next(&r->next)) {
        r->sums[i] = (struct esp_unit_sums){0};
        for (uint32_t s = 0; s < n_stage && !esp_run_stopped(r); s++) {
            const struct esp_stage st = esp_run_stage(r, s);

            esp_unit_begin(r, l, i, &st);
            if (!r->zero)
                esp_unit_search(r, l, tid, i, &st);
            if (!esp_run_stopped(r))
                esp_unit_end(r, l, tid, i, &st);
        }
    }
}

/* ---- with a device that searches: units of a wave go through their stages together ---- */

/* The lane of a unit, with the places of its lines among those of the wave. */
static struct esp_lane lane_of(const struct esp_matrix_run *r, uint32_t unit, const struct esp_stage *st)
{
    const size_t lines = r->job->opts.axis ? UNIT_ROWS : st->n, at = (unit - r->unit0) * lines * BLOCK;
    struct esp_lane l = r->lane[unit - r->unit0];

    l.u = r->u + at;
    l.own = r->own ? r->own + at : r->u;
    l.states = r->states + at;
    return l;
}

/* Leave the stage before r->stage, and get ready for that one. */
static void advance(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct esp_matrix_run *r = arg;

    (void)n_thread;
    for (uint32_t i = r->unit0 + esp_task_next(&r->next); i < r->unit_end && !esp_run_stopped(r);
         i = r->unit0 + esp_task_next(&r->next)) {
        if (r->stage == 0)
            r->sums[i] = (struct esp_unit_sums){0};
        if (r->stage > 0) {
            const struct esp_stage st = esp_run_stage(r, r->stage - 1);
            const struct esp_lane l = lane_of(r, i, &st);

            esp_unit_end(r, &l, tid, i, &st);
        }
        if (r->stage < esp_run_stages(r) && !esp_run_stopped(r)) {
            const struct esp_stage st = esp_run_stage(r, r->stage);
            const struct esp_lane l = lane_of(r, i, &st);

            esp_unit_begin(r, &l, i, &st);
        }
    }
}

static esp_status search_wave(struct esp_matrix_run *r, esp_error *err)
{
    const struct esp_trellis_opts *o = &r->job->opts;
    const struct esp_stage st = esp_run_stage(r, r->stage);
    const bool inside = esp_run_feeds_inside(r);
    struct esp_viterbi_feed feed;
    uint32_t n = 0;

    for (uint32_t i = r->unit0; i < r->unit_end; i++)
        n += esp_run_lines(r, i, &st);
    if (inside) {
        feed = esp_run_feed(r, &st);
        feed.w = r->own;
    }
    return esp_encoder_blocks(r->e, o->k, o->search, n, r->u, inside ? &feed : NULL, r->states, err);
}

static esp_status run_waves(struct esp_matrix_run *r, esp_error *err)
{
    const uint32_t n_stage = esp_run_stages(r);

    for (r->unit0 = 0; r->unit0 < r->n_unit; r->unit0 += r->n_wave) {
        r->unit_end = r->n_unit - r->unit0 < r->n_wave ? r->n_unit : r->unit0 + r->n_wave;
        for (r->stage = 0; r->stage <= n_stage; r->stage++) {
            r->next = 0;
            esp_pool_run(r->e->pool, advance, r);
            if (esp_run_stopped(r))
                return ESP_OK;
            if (r->stage < n_stage)
                ESP_TRY(search_wave(r, err));
        }
    }
    return ESP_OK;
}

/* ---- the whole ---- */

static esp_status run_all(struct esp_matrix_run *r, struct esp_unit_sums *sum, esp_error *err)
{
    *sum = (struct esp_unit_sums){0};
    r->next = 0;
    r->done = 0;
    r->diverged = 0;
    if (r->n_wave && !r->zero)
        ESP_TRY(run_waves(r, err));
    else
        esp_pool_run(r->e->pool, run_units, r);
    if (r->broken)
        return esp_fail(err, ESP_EDEVICE,
                        "%s: the search gave what is no path of a trellis; nothing was kept",
                        r->e->dev ? r->e->dev->name : "cpu");
    for (uint32_t i = 0; i < r->n_unit; i++) { /* in their order, whoever made them */
        sum->error += r->sums[i].error;
        sum->power += r->sums[i].power;
        sum->loss += r->sums[i].loss;
    }
    return ESP_OK;
}

static void free_lanes(struct esp_matrix_run *r)
{
    if (r->lane)
        for (uint32_t i = 0; i < r->n_lane; i++)
            esp_free_aligned(r->lane[i].w);
    esp_free(r->lane);
    esp_free(r->sums);
    esp_encoder_free(r->e, r->u);
    esp_encoder_free(r->e, r->own);
    esp_encoder_free(r->e, r->states);
}

/* Targets, weights and states of a lane that searches by itself. */
static size_t own_floats(size_t lines)
{
    return lines * BLOCK * 5 / 2;
}

/* Floats of one lane. */
static bool lane_floats(const struct esp_matrix_run *r, size_t lines, size_t *count)
{
    const size_t tile = (size_t)BLOCK * BLOCK, own = r->n_wave ? 0 : own_floats(lines);

    return esp_mul_size(count, r->f || r->job->opts.axis ? r->n_in : 1, lines) &&
           esp_add_size(count, *count, 2 * tile + own);
}

/* Units that a device's wave has, within WAVE_BYTES of lanes. */
static uint32_t wave_units(const struct esp_matrix_run *r, size_t lines)
{
    size_t count;

    if (!lane_floats(r, lines, &count) || count > WAVE_BYTES / sizeof(float))
        return 1;
    count = WAVE_BYTES / sizeof(float) / count;
    return count < r->n_unit ? (uint32_t)count : r->n_unit;
}

/* Lines of a whole wave, one behind another as a device takes them. */
static bool alloc_wave(struct esp_matrix_run *r, size_t lines)
{
    size_t n;

    if (!esp_mul_size(&n, r->n_wave, lines * BLOCK))
        return false;
    r->u = esp_encoder_alloc(r->e, n, sizeof *r->u);
    r->states = esp_encoder_alloc(r->e, n, sizeof *r->states);
    if (r->job->opts.axis && r->f && r->f->group < BLOCK) {
        r->own = esp_encoder_alloc(r->e, n, sizeof *r->own);
        if (!r->own)
            return false;
    }
    return r->u && r->states;
}

/* Memory of lane number i, of `count` floats. */
static bool alloc_lane(const struct esp_matrix_run *r, uint32_t i, size_t lines, size_t count)
{
    const size_t tile = (size_t)BLOCK * BLOCK;
    struct esp_lane *l = &r->lane[i];
    size_t bytes;

    if (!esp_mul_size(&bytes, count, sizeof(float)))
        return false;
    l->w = esp_alloc_aligned(bytes, 64);
    if (!l->w)
        return false;
    l->t = l->w + tile;
    l->rest = l->t + tile;
    if (r->n_wave)
        return true;
    l->u = l->w + count - own_floats(lines);
    l->own = l->u + lines * BLOCK;
    l->states = (uint16_t *)(void *)(l->own + lines * BLOCK);
    return true;
}

static esp_status alloc_lanes(struct esp_matrix_run *r, esp_error *err)
{
    const uint32_t n_thread = esp_pool_size(r->e->pool);
    const size_t lines = r->job->opts.axis ? UNIT_ROWS : BLOCK;
    size_t count;
    bool fits;

    if (esp_encoder_is_on(r->e, r->job->opts.search)) {
        r->n_wave = 1;
        r->n_wave = wave_units(r, lines);
    }
    r->n_lane = r->n_wave > n_thread ? r->n_wave : n_thread;
    r->lane = esp_alloc_array(r->n_lane, sizeof *r->lane);
    r->sums = esp_alloc_array(r->n_unit, sizeof *r->sums);
    fits = r->lane && r->sums && lane_floats(r, lines, &count) && (!r->n_wave || alloc_wave(r, lines));
    for (uint32_t i = 0; fits && i < r->n_lane; i++)
        fits = alloc_lane(r, i, lines, count);
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
static esp_status encode_guarded(struct esp_matrix_run *r, struct esp_unit_sums *sum, bool *unweighted,
                                 esp_error *err)
{
    r->feedback = r->f && r->job->opts.feedback == ESP_TRELLIS_FEEDBACK_ON;
    r->high = r->feedback ? highest_target(r->job) : INFINITY;
    ESP_TRY(run_all(r, sum, err));
    *unweighted = r->diverged != 0;
    if (!*unweighted || r->cancelled)
        return ESP_OK;
    r->feedback = false;
    r->high = INFINITY;
    return run_all(r, sum, err);
}

static void fill_report(struct esp_trellis_report *out, const struct esp_matrix_run *r,
                        const struct esp_unit_sums *sum)
{
    const double damping = r->f ? r->f->damping : 0;

    out->mse = sum->error / ((double)r->job->n_out * r->job->n_in);
    out->rel_mse = sum->power > 0 ? sum->error / sum->power : 0;
    out->loss = fmax(0, sum->loss - damping * sum->error);
}

esp_status esp_trellis_quantize(struct esp_encoder *e, const struct esp_trellis_job *job,
                                struct esp_trellis_report *report, esp_error *err)
{
    struct esp_matrix_run r = {.e = e, .job = job, .f = job->ldlq, .n_in = job->n_in};
    struct esp_trellis_report out = {0};
    const double start = now();
    struct esp_unit_sums sum;
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
    s = encode_guarded(&r, &sum, &out.unweighted, err);
    if (s != ESP_OK)
        goto done;
    fill_report(&out, &r, &sum);
    if (job->opts.want_power && r.f && !r.cancelled) {
        r.zero = true;
        s = run_all(&r, &sum, err);
        if (s != ESP_OK)
            goto done;
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
