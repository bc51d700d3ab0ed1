/*
 * See affine_gptq.h. A thread takes a few rows at a time, so that each row of the factor is read once for all
 * of them.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/affine_gptq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "formats/affine.h"

enum { BATCH = 8 };

struct work {
    const struct esp_affine_job *job;
    float *acc;    /* [thread][BATCH][n_in] targets in order of processing */
    uint8_t *code; /* [thread][BATCH][n_in] in natural order */
    _Atomic uint32_t next;
};

/* Stored scale and bias of one group from x[0..group). */
static void group_range(const struct esp_affine_job *j, uint32_t row, uint32_t group, const float *x)
{
    const struct esp_weight *l = j->like;
    const size_t step = esp_scale_bytes(l->scale_type);
    uint8_t spare[ESP_AFFINE_GROUP_MAX];
    const size_t at = (size_t)row * l->scale_row_bytes + group * step;

    esp_format_get(l->format)->encode(l, x, l->group, spare, j->scales + at, j->biases + at);
}

/* Round the target of one input and return its error against the original weight. */
static float round_one(const struct esp_affine_job *j, uint32_t row, uint32_t in, float target, uint8_t *code)
{
    const struct esp_weight *l = j->like;
    const uint32_t top = (1u << esp_format_get(l->format)->bits) - 1;
    const float scale =
        esp_scale_load(l->scale_type, j->scales + (size_t)row * l->scale_row_bytes, in / l->group);
    const float bias =
        esp_scale_load(l->scale_type, j->biases + (size_t)row * l->scale_row_bytes, in / l->group);
    const float q = scale == 0 ? 0 : rintf((target - bias) / scale);
    const float c = q > 0 ? (q < (float)top ? q : (float)top) : 0;
    const float product = scale * c;

    code[in] = (uint8_t)c;
    return j->w[(size_t)row * l->n_in + in] - (product + bias);
}

static void feedback_rows(const struct esp_affine_job *j, uint32_t r0, uint32_t n_row, float *acc,
                          uint8_t *code)
{
    const struct esp_weight *l = j->like;
    const uint32_t n = l->n_in, bits = esp_format_get(l->format)->bits;

    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t p = 0; p < n; p++)
            acc[(size_t)r * n + p] = j->w[(size_t)(r0 + r) * n + (j->order ? j->order[p] : p)];
    for (uint32_t r = 0; j->order && r < n_row; r++)
        for (uint32_t g = 0; g < n / l->group; g++)
            group_range(j, r0 + r, g, j->w + (size_t)(r0 + r) * n + (size_t)g * l->group);
    for (uint32_t p = 0; p < n; p++) {
        const float *feed = j->ldlq->feed + (size_t)p * n;
        const uint32_t in = j->order ? j->order[p] : p;

        for (uint32_t r = 0; r < n_row; r++) {
            float *a = acc + (size_t)r * n, e;

            if (!j->order && p % l->group == 0)
                group_range(j, r0 + r, p / l->group, a + p);
            e = round_one(j, r0 + r, in, a[p], code + (size_t)r * n);
            for (uint32_t q = p + 1; q < n; q++)
                a[q] += e * feed[q];
        }
    }
    for (uint32_t r = 0; r < n_row; r++)
        esp_affine_pack(bits, code + (size_t)r * n, n, j->codes + (size_t)(r0 + r) * l->row_bytes);
}

static void quantize_rows(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct work *w = arg;
    const struct esp_affine_job *j = w->job;
    const struct esp_weight *l = j->like;
    const size_t n = l->n_in;
    const uint32_t n_batch = (l->n_out + BATCH - 1) / BATCH;

    (void)n_thread;
    for (uint32_t b = esp_task_next(&w->next); b < n_batch; b = esp_task_next(&w->next)) {
        const uint32_t r0 = b * BATCH, rows = l->n_out - r0 < BATCH ? l->n_out - r0 : BATCH;

        if (j->ldlq) {
            feedback_rows(j, r0, rows, w->acc + tid * BATCH * n, w->code + tid * BATCH * n);
            continue;
        }
        for (uint32_t r = r0; r < r0 + rows; r++)
            esp_format_get(l->format)->encode(l, j->w + r * n, n, j->codes + r * l->row_bytes,
                                              j->scales + r * l->scale_row_bytes,
                                              j->biases + r * l->scale_row_bytes);
    }
}

static esp_status check_scales(const struct esp_affine_job *j, esp_error *err)
{
    const struct esp_weight *l = j->like;
    const size_t count = (size_t)l->n_out * (l->n_in / l->group);

    for (size_t i = 0; i < count; i++)
        if (!isfinite(esp_scale_load(l->scale_type, j->scales, i)) ||
            !isfinite(esp_scale_load(l->scale_type, j->biases, i)))
            return esp_fail(err, ESP_ENUMERIC, "row %zu: the weights are outside the range of the scale type",
                            i / (l->n_in / l->group));
    return ESP_OK;
}

esp_status esp_affine_quantize(const struct esp_affine_job *job, esp_error *err)
{
    struct work w = {.job = job};
    const size_t count = (size_t)esp_pool_size(job->pool) * BATCH * job->like->n_in;
    esp_status s = ESP_OK;

    if (job->ldlq) {
        w.acc = esp_alloc_array(count, sizeof *w.acc);
        w.code = esp_alloc(count);
        if (!w.acc || !w.code)
            s = esp_fail(err, ESP_ENOMEM, "affine codes: out of memory");
    }
    if (s == ESP_OK) {
        esp_pool_run(job->pool, quantize_rows, &w);
        s = check_scales(job, err);
    }
    esp_free(w.acc);
    esp_free(w.code);
    return s;
}

struct activity {
    float h;
    uint32_t i;
};

static int by_activity(const void *a, const void *b)
{
    const struct activity *x = a, *y = b;

    if (x->h != y->h)
        return x->h > y->h ? -1 : 1;
    return x->i < y->i ? -1 : 1;
}

esp_status esp_order_by_activity(uint32_t *order, const float *h, uint32_t n, esp_error *err)
{
    struct activity *a = esp_alloc_array(n, sizeof *a);

    if (!a)
        return esp_fail(err, ESP_ENOMEM, "order of %u inputs: out of memory", n);
    for (uint32_t i = 0; i < n; i++)
        a[i] = (struct activity){h[(size_t)i * n + i], i};
    qsort(a, n, sizeof *a, by_activity);
    for (uint32_t i = 0; i < n; i++)
        order[i] = a[i].i;
    esp_free(a);
    return ESP_OK;
}

/* ---- proxy loss ---- */

struct loss_work {
    const float *w;
    const struct esp_weight *q;
    struct esp_weight h;
    const struct esp_kernels *k;
    float *row;           /* [thread][3][n_in]: a row of W or E, and its product */
    double *loss, *power; /* [n_out] */
    _Atomic uint32_t next;
};

static double quadratic(const struct loss_work *w, const float *x, float *y)
{
    const uint32_t n = w->q->n_in;
    double sum = 0;

    w->k->linear[ESP_FORMAT_F32][ESP_ACT_F32].product(&w->h, x, 1, 0, n, y, n);
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * y[i];
    return sum;
}

static void loss_rows(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct loss_work *w = arg;
    const size_t n = w->q->n_in, ld = (n + 15) / 16 * 16;
    float *e = w->row + tid * 3 * ld, *x = e + ld, *y = x + ld;

    (void)n_thread;
    for (uint32_t r = esp_task_next(&w->next); r < w->q->n_out; r = esp_task_next(&w->next)) {
        memcpy(x, w->w + r * n, n * sizeof *x);
        esp_format_get(w->q->format)->decode(w->q, r, 0, n, e);
        for (size_t i = 0; i < n; i++)
            e[i] = x[i] - e[i];
        w->loss[r] = quadratic(w, e, y);
        w->power[r] = quadratic(w, x, y);
    }
}

esp_status esp_proxy_loss(struct esp_loss *out, const float *w, const struct esp_weight *q, const float *h,
                          struct esp_pool *pool, const struct esp_kernels *k, esp_error *err)
{
    const size_t n = q->n_in, ld = (n + 15) / 16 * 16;
    struct loss_work job = {.w = w, .q = q, .k = k};
    struct esp_loss sum = {0};
    esp_status st = ESP_OK;

    job.h = (struct esp_weight){.format = ESP_FORMAT_F32,
                                .n_out = q->n_in,
                                .n_in = q->n_in,
                                .codes = (const uint8_t *)h,
                                .row_bytes = n * sizeof *h};
    job.row = esp_alloc_aligned(esp_pool_size(pool) * 3 * ld * sizeof(float), 64);
    job.loss = esp_alloc_array(q->n_out, sizeof(double));
    job.power = esp_alloc_array(q->n_out, sizeof(double));
    if (!job.row || !job.loss || !job.power) {
        st = esp_fail(err, ESP_ENOMEM, "proxy loss: out of memory");
    } else {
        esp_pool_run(pool, loss_rows, &job);
        for (uint32_t r = 0; r < q->n_out; r++) {
            sum.loss += job.loss[r];
            sum.power += job.power[r];
        }
        *out = sum;
    }
    esp_free_aligned(job.row);
    esp_free(job.power);
    esp_free(job.loss);
    return st;
}
