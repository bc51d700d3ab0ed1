/*
 * Cholesky factor in tiles of 256, in double precision. Every tile is one library call of fixed shape on one
 * of our threads, so the factor does not depend on how many there are. We need C upper triangular with H = C
 * C^T and LAPACK has lower triangles only: so H is taken with its inputs in reverse order, and the factor is
 * read back the same way.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/ldlq.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>

#include "base/limits.h"
#include "base/mem.h"
#include "quantize/blas.h"

enum { TILE = 256, N_TRY = 5, GROUP_MAX = 256 };
#define DAMPING 0.01 /* of the mean diagonal, as GPTQ has it: arXiv:2210.17323 */

struct factor_run {
    struct esp_blas blas;
    double *a; /* [n][n], lower triangle, inputs reversed */
    size_t n;
    size_t n_tile;
    size_t k; /* tile column at work */
    const float *h;
    double damping;
    const struct esp_ldlq *out;
    _Atomic uint32_t next;
};

static void run_region(struct esp_pool *pool, esp_pool_fn fn, struct factor_run *f)
{
    f->next = 0;
    if (pool)
        esp_pool_run(pool, fn, f);
    else
        fn(f, 0, 1);
}

static int tile_rows(const struct factor_run *f, size_t i)
{
    return (int)(i + 1 < f->n_tile ? TILE : f->n - i * TILE);
}

static double *tile_at(const struct factor_run *f, size_t i, size_t j)
{
    return f->a + i * TILE * f->n + j * TILE;
}

/* a[i][j] = h[n-1-i][n-1-j]; j <= i makes that the upper triangle of h. */
static void run_load(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct factor_run *f = arg;
    const size_t n = f->n;

    for (size_t i = tid; i < n; i += n_thread) {
        const float *row = f->h + (n - 1 - i) * n;

        for (size_t j = 0; j <= i; j++)
            f->a[i * n + j] = row[n - 1 - j];
        f->a[i * n + i] += f->damping;
    }
}

static void run_panel(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct factor_run *f = arg;
    const size_t first = f->k + 1;

    (void)tid;
    (void)n_thread;
    for (size_t i = first + esp_task_next(&f->next); i < f->n_tile; i = first + esp_task_next(&f->next))
        f->blas.dtrsm(ESP_BLAS_ROWS, ESP_BLAS_RIGHT, ESP_BLAS_LOWER, ESP_BLAS_TRANS, ESP_BLAS_NON_UNIT,
                      tile_rows(f, i), TILE, 1, tile_at(f, f->k, f->k), (int)f->n, tile_at(f, i, f->k),
                      (int)f->n);
}

static void run_update(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct factor_run *f = arg;
    const size_t side = f->n_tile - f->k - 1;

    (void)tid;
    (void)n_thread;
    for (size_t task = esp_task_next(&f->next); task < side * side; task = esp_task_next(&f->next)) {
        const size_t i = f->k + 1 + task / side, j = f->k + 1 + task % side;

        if (j <= i)
            f->blas.dgemm(ESP_BLAS_ROWS, ESP_BLAS_PLAIN, ESP_BLAS_TRANS, tile_rows(f, i), tile_rows(f, j),
                          TILE, -1, tile_at(f, i, f->k), (int)f->n, tile_at(f, j, f->k), (int)f->n, 1,
                          tile_at(f, i, j), (int)f->n);
    }
}

/* Right-looking: factor the diagonal tile, solve the tiles below it, update all below and right. False:
 * indefinite. */
static bool cholesky(struct factor_run *f, struct esp_pool *pool)
{
    run_region(pool, run_load, f);
    for (f->k = 0; f->k < f->n_tile; f->k++) {
        const int rows = tile_rows(f, f->k), ld = (int)f->n;
        int info;

        /* LAPACK counts by columns: our lower triangle by rows is an upper one to it */
        f->blas.dpotrf("U", &rows, tile_at(f, f->k, f->k), &ld, &info, 1);
        if (info != 0)
            return false;
        run_region(pool, run_panel, f);
        run_region(pool, run_update, f);
    }
    return true;
}

/* Columns of a reversed group, from its first to the end of the matrix below: divide by the group's own
 * triangle. */
static void divide_group(const struct factor_run *f, size_t first, size_t size)
{
    const size_t n = f->n, below = first + size;
    double *own = f->a + first * n + first;

    if (below == n)
        return;
    if (size == 1)
        f->blas.dscal((int)(n - below), 1 / *own, own + n, (int)n);
    else
        f->blas.dtrsm(ESP_BLAS_ROWS, ESP_BLAS_RIGHT, ESP_BLAS_LOWER, ESP_BLAS_PLAIN, ESP_BLAS_NON_UNIT,
                      (int)(n - below), (int)size, 1, own, (int)n, own + size * n, (int)n);
}

static void run_divide(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct factor_run *f = arg;
    const uint32_t g = f->out->group, n = f->out->n, n_group = (n + g - 1) / g;

    (void)tid;
    (void)n_thread;
    for (uint32_t i = esp_task_next(&f->next); i < n_group; i = esp_task_next(&f->next)) {
        const uint32_t end = (i + 1) * g < n ? (i + 1) * g : n; /* of the group, in the order of the inputs */

        divide_group(f, n - end, end - i * g);
    }
}

static void run_store(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct factor_run *f = arg;
    const size_t n = f->n, g = f->out->group;

    for (size_t i = tid; i < n; i += n_thread) {
        const double *row = f->a + (n - 1 - i) * n + (n - 1); /* row[-j] belongs to C[i][j] */
        const size_t first = i / g * g, end = first + g < n ? first + g : n;

        for (size_t j = i; j < end; j++)
            f->out->diag[i * g + (j - first)] = (float)*(row - j);
        for (size_t j = end; j < n; j++)
            f->out->feed[i * n + j] = (float)*(row - j);
    }
}

/* Finite above the diagonal, not negative on it. */
static esp_status check_moments(const float *h, size_t n, double *mean, esp_error *err)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        for (size_t j = i; j < n; j++)
            if (!isfinite(h[i * n + j]))
                return esp_fail(err, ESP_ENUMERIC,
                                "second moments: entry %zu, %zu is %g; finite numbers are needed", i, j,
                                (double)h[i * n + j]);
        if (h[i * n + i] < 0)
            return esp_fail(err, ESP_ENUMERIC,
                            "second moments: entry %zu, %zu is %g; a mean square is not negative", i, i,
                            (double)h[i * n + i]);
        sum += h[i * n + i];
    }
    *mean = sum / (double)n;
    if (*mean <= 0)
        return esp_fail(err, ESP_ENUMERIC,
                        "second moments of %zu inputs: all zero; the calibration reached no such input", n);
    return ESP_OK;
}

static esp_status factor(struct esp_ldlq *out, const float *h, const struct esp_ldlq_opts *o, double mean,
                         esp_error *err)
{
    struct factor_run f = {.n = out->n, .n_tile = ((size_t)out->n + TILE - 1) / TILE, .h = h, .out = out};
    size_t count, bytes;
    bool done = false;

    ESP_TRY(esp_blas_open(&f.blas, err));
    f.damping = (o->damping > 0 ? o->damping : DAMPING) * mean;
    if (esp_mul_size(&count, f.n, f.n) && esp_mul_size(&bytes, count, sizeof *f.a))
        f.a = esp_alloc_aligned(bytes, 64);
    if (f.a) {
        for (out->n_try = 1; !done && out->n_try <= N_TRY; out->n_try++) {
            out->damping = f.damping;
            done = cholesky(&f, o->pool);
            f.damping *= 10;
        }
        out->n_try--;
    }
    if (done) {
        run_region(o->pool, run_divide, &f);
        run_region(o->pool, run_store, &f);
    }
    esp_blas_close(&f.blas);
    if (!f.a)
        return esp_fail(err, ESP_ENOMEM, "factor of %zu inputs: out of memory", f.n);
    esp_free_aligned(f.a);
    if (!done)
        return esp_fail(
            err, ESP_ENUMERIC,
            "second moments of %zu inputs: not positive definite, even with %g added to the diagonal (mean "
            "%g); they are not sums of squares",
            f.n, out->damping, mean);
    return ESP_OK;
}

void esp_ldlq_destroy(struct esp_ldlq *f)
{
    if (!f)
        return;
    esp_free_aligned(f->feed);
    esp_free_aligned(f->diag);
    esp_free(f);
}

static struct esp_ldlq *alloc_factor(uint32_t n, uint32_t group)
{
    struct esp_ldlq *f = esp_alloc(sizeof *f);
    size_t feed, diag;

    if (!f)
        return NULL;
    f->n = n;
    f->group = group;
    if (esp_mul_size(&feed, n, n) && esp_mul_size(&feed, feed, sizeof *f->feed))
        f->feed = esp_alloc_aligned(feed, 64);
    if (esp_mul_size(&diag, n, group) && esp_mul_size(&diag, diag, sizeof *f->diag))
        f->diag = esp_alloc_aligned(diag, 64);
    if (f->feed && f->diag)
        return f;
    esp_ldlq_destroy(f);
    return NULL;
}

esp_status esp_ldlq_create(struct esp_ldlq **out, const float *h, uint32_t n, const struct esp_ldlq_opts *o,
                           esp_error *err)
{
    const uint32_t group = o->group ? o->group : 1;
    struct esp_ldlq *f;
    esp_status s;
    double mean = 0;

    if (n == 0 || n > ESP_LIMIT_HIDDEN)
        return esp_fail(err, ESP_EINVAL, "second moments of %" PRIu32 " inputs: 1 to %u are possible", n,
                        ESP_LIMIT_HIDDEN);
    if (group > GROUP_MAX || (group & (group - 1)) != 0)
        return esp_fail(err, ESP_EINVAL,
                        "feedback in groups of %" PRIu32 ": a power of two up to 256 is needed", group);
    if (!(o->damping >= 0) || o->damping > 1)
        return esp_fail(err, ESP_EINVAL, "damping %g: a fraction from 0 (default) to 1 is needed",
                        o->damping);
    ESP_TRY(check_moments(h, n, &mean, err));
    f = alloc_factor(n, group);
    if (!f)
        return esp_fail(err, ESP_ENOMEM, "factor of %" PRIu32 " inputs: out of memory", n);
    s = factor(f, h, o, mean, err);
    if (s != ESP_OK) {
        esp_ldlq_destroy(f);
        return s;
    }
    *out = f;
    return ESP_OK;
}
