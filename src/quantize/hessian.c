/*
 * See hessian.h. The outer products go through the kernel table's f32 product (rows of XT times rows of XT),
 * because that is the fastest exact product here and its results do not depend on threads; sums over passes
 * are in double.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/hessian.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/pool.h"

#include "quantize/files.h"

enum { TILE = 32 }; /* rows of H that a thread computes at once */

static const char *const SITE_NAME[ESP_SITE_COUNT] = {"mixer", "out", "mlp", "down"};

struct site {
    uint32_t layer;
    enum esp_site site;
    uint32_t n;
    double *h; /* [n][n], upper triangle; NULL: not in this pass */
    char tap[40];
};

struct measure {
    const struct esp_hessian_job *job;
    struct site *sites;
    uint32_t n_site;
    struct esp_pool *pool;
    struct esp_kernels kernels;
    float *xt;   /* [width][rows] of the chunk at work */
    float *tile; /* [thread][TILE][width] */
    uint32_t widest;
    uint64_t rows_seen; /* tokens of this pass */
    /* of the region at work */
    const struct site *at;
    uint32_t n_row;
    _Atomic uint32_t next;
};

void esp_token_lists_free(struct esp_token_lists *t)
{
    esp_free(t->ids);
    esp_free(t->start);
    memset(t, 0, sizeof *t);
}

uint32_t esp_site_width(const struct esp_config *c, uint32_t layer, enum esp_site site)
{
    switch (site) {
    case ESP_SITE_OUT:
        return c->is_full[layer] ? c->n_head * c->head_dim : c->lin_v_head * c->lin_v_dim;
    case ESP_SITE_DOWN:
        return c->ffn;
    default:
        return c->hidden;
    }
}

static char *site_path(const char *folder, uint32_t layer, enum esp_site site)
{
    char name[64];

    snprintf(name, sizeof name, "hessian-%u-%s.f32", layer, SITE_NAME[site]);
    return esp_path_join(folder, name);
}

static void site_tap(struct site *s, const struct esp_config *c, uint32_t n_attn, uint32_t n_delta)
{
    switch (s->site) {
    case ESP_SITE_MIXER:
        snprintf(s->tap, sizeof s->tap, "hidden.%u", s->layer);
        break;
    case ESP_SITE_OUT:
        if (c->is_full[s->layer])
            snprintf(s->tap, sizeof s->tap, "o_proj_in.%u", n_attn);
        else
            snprintf(s->tap, sizeof s->tap, "out_proj_in.%u", n_delta);
        break;
    case ESP_SITE_MLP:
        snprintf(s->tap, sizeof s->tap, "mid.%u", s->layer);
        break;
    default:
        snprintf(s->tap, sizeof s->tap, "down_in.%u", s->layer);
        break;
    }
}

/* Rows into columns; rows in front of a norm are divided by their root mean square. */
static void transpose(struct measure *m, const float *rows, uint32_t n_row, uint32_t n, bool normalize)
{
    const float eps = (float)m->job->runner->net->config.rms_eps;

    for (uint32_t r = 0; r < n_row; r++) {
        const float *x = rows + (size_t)r * n;
        float scale = 1;

        if (normalize) {
            double sum = 0;

            for (uint32_t i = 0; i < n; i++)
                sum += (double)x[i] * x[i];
            scale = (float)(1 / sqrt(sum / n + eps));
        }
        for (uint32_t i = 0; i < n; i++)
            m->xt[(size_t)i * n_row + r] = x[i] * scale;
    }
}

static void add_tiles(void *arg, uint32_t tid, uint32_t n_thread)
{
    struct measure *m = arg;
    const struct site *s = m->at;
    const uint32_t n = s->n, n_tile = (n + TILE - 1) / TILE;
    const struct esp_weight w = {.format = ESP_FORMAT_F32,
                                 .n_out = n,
                                 .n_in = m->n_row,
                                 .codes = (const uint8_t *)m->xt,
                                 .row_bytes = m->n_row * sizeof(float)};
    float *tile = m->tile + (size_t)tid * TILE * m->widest;

    (void)n_thread;
    for (uint32_t t = esp_task_next(&m->next); t < n_tile; t = esp_task_next(&m->next)) {
        const uint32_t r0 = t * TILE, rows = n - r0 < TILE ? n - r0 : TILE;

        m->kernels.linear[ESP_FORMAT_F32][ESP_ACT_F32].product(&w, m->xt + (size_t)r0 * m->n_row, rows, r0, n,
                                                               tile, n);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t j = r0 + r; j < n; j++)
                s->h[(size_t)(r0 + r) * n + j] += tile[(size_t)r * n + j];
    }
}

static void tap(void *user, const char *name, const float *rows, uint32_t n_row, uint32_t width)
{
    struct measure *m = user;

    for (uint32_t i = 0; i < m->n_site; i++) {
        const struct site *s = &m->sites[i];

        if (!s->h || s->n != width || strcmp(s->tap, name) != 0)
            continue;
        transpose(m, rows, n_row, width, s->site == ESP_SITE_MIXER || s->site == ESP_SITE_MLP);
        m->at = s;
        m->n_row = n_row;
        atomic_store(&m->next, 0);
        esp_pool_run(m->pool, add_tiles, m);
        return;
    }
}

/* Mean, both triangles, f32. */
static esp_status save(const struct measure *m, struct site *s, uint64_t count, esp_error *err)
{
    const size_t n = s->n;
    float *f = (float *)s->h; /* the target of an element never lies behind its source */
    char *path = site_path(m->job->folder, s->layer, s->site);
    esp_status st;

    if (!path)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", m->job->folder);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            s->h[i * n + j] = s->h[j * n + i];
    for (size_t i = 0; i < n * n; i++) {
        const double v = s->h[i] / (double)count;
        const float rounded = (float)v;

        memcpy((char *)f + i * sizeof rounded, &rounded, sizeof rounded);
    }
    st = esp_file_write(path, &(struct esp_part_bytes){f, n * n * sizeof *f}, 1, err);
    esp_free(path);
    return st;
}

static esp_status list_sites(struct measure *m, esp_error *err)
{
    const struct esp_config *c = &m->job->runner->net->config;
    uint32_t n_attn = 0, n_delta = 0;

    m->sites = esp_alloc_array((size_t)c->n_layer * ESP_SITE_COUNT, sizeof *m->sites);
    if (!m->sites)
        return esp_fail(err, ESP_ENOMEM, "calibration: out of memory");
    for (uint32_t l = 0; l < c->n_layer; l++) {
        for (int k = 0; k < ESP_SITE_COUNT; k++) {
            struct site *s = &m->sites[m->n_site];
            char *path = site_path(m->job->folder, l, (enum esp_site)k);

            if (!path)
                return esp_fail(err, ESP_ENOMEM, "calibration: out of memory");
            *s = (struct site){
                .layer = l, .site = (enum esp_site)k, .n = esp_site_width(c, l, (enum esp_site)k)};
            site_tap(s, c, n_attn, n_delta);
            m->widest = s->n > m->widest ? s->n : m->widest;
            m->n_site += !esp_file_exists(path);
            esp_free(path);
        }
        n_attn += c->is_full[l];
        n_delta += !c->is_full[l];
    }
    return ESP_OK;
}

/* Give accumulators to sites from `first` on while the budget lasts; returns the end of the pass. */
static uint32_t begin_pass(struct measure *m, uint32_t first)
{
    size_t used = 0;
    uint32_t i;

    for (i = first; i < m->n_site; i++) {
        const size_t bytes = (size_t)m->sites[i].n * m->sites[i].n * sizeof(double);

        if (i > first && used + bytes > m->job->budget)
            break;
        m->sites[i].h = esp_alloc(bytes);
        if (!m->sites[i].h)
            break;
        used += bytes;
    }
    return i;
}

static esp_status run_pass(struct measure *m, uint32_t first, uint32_t end, esp_error *err)
{
    const struct esp_token_lists *t = m->job->text;
    const struct esp_run_out out = {.tap = tap, .user = m};
    const double total = t->start[t->n];
    struct esp_runner r = *m->job->runner;
    char item[96];
    esp_status s = ESP_OK;

    snprintf(item, sizeof item, "inputs %u to %u of %u, layer %u on", first + 1, end, m->n_site,
             m->sites[first].layer);
    for (uint32_t i = 0; s == ESP_OK && i < t->n; i++) {
        s = esp_progress_tell(m->job->progress, "calibrating", item, t->start[i], total, err);
        if (s == ESP_OK)
            s = esp_runner_run(&r, t->ids + t->start[i], t->start[i + 1] - t->start[i], &out, err);
    }
    for (uint32_t i = first; i < end; i++) {
        if (s == ESP_OK)
            s = save(m, &m->sites[i], t->start[t->n], err);
        esp_free(m->sites[i].h);
        m->sites[i].h = NULL;
    }
    return s;
}

esp_status esp_hessian_measure(const struct esp_hessian_job *job, esp_error *err)
{
    struct measure m = {.job = job};
    const size_t threads = job->threads ? job->threads : esp_core_count();
    esp_status s = list_sites(&m, err);

    if (s == ESP_OK && m.n_site && job->text->n == 0)
        s = esp_fail(err, ESP_EINVAL, "calibration: the text gives no tokens");
    if (s == ESP_OK)
        s = esp_pool_create(&m.pool, (uint32_t)threads, err);
    if (s == ESP_OK) {
        esp_kernels_init(&m.kernels, job->level);
        m.xt = esp_alloc_aligned((size_t)m.widest * job->runner->max_tok * sizeof *m.xt + 64, 64);
        m.tile = esp_alloc_aligned(threads * TILE * m.widest * sizeof *m.tile + 64, 64);
        if (!m.xt || !m.tile)
            s = esp_fail(err, ESP_ENOMEM, "calibration: out of memory");
    }
    for (uint32_t first = 0, end; s == ESP_OK && first < m.n_site; first = end) {
        end = begin_pass(&m, first);
        s = end > first ? run_pass(&m, first, end, err)
                        : esp_fail(err, ESP_ENOMEM, "calibration: no memory for a matrix of %u squared",
                                   m.sites[first].n);
    }
    esp_free_aligned(m.xt);
    esp_free_aligned(m.tile);
    esp_pool_destroy(m.pool);
    esp_free(m.sites);
    return s;
}

esp_status esp_hessian_load(float **out, const char *folder, uint32_t layer, enum esp_site site, uint32_t n,
                            esp_error *err)
{
    const size_t bytes = (size_t)n * n * sizeof(float);
    char *path = site_path(folder, layer, site);
    struct esp_map m = {0};
    float *h = NULL;
    esp_status s;

    if (!path)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", folder);
    s = esp_map_open(&m, path, err);
    if (s == ESP_OK && m.size != bytes)
        s = esp_fail(err, ESP_EFORMAT, "%s: %zu bytes, %u squared values take %zu", path, m.size, n, bytes);
    if (s == ESP_OK) {
        h = esp_alloc(bytes);
        if (!h)
            s = esp_fail(err, ESP_ENOMEM, "%s: out of memory", path);
        else
            memcpy(h, m.data, bytes);
    }
    esp_map_close(&m);
    esp_free(path);
    if (s == ESP_OK)
        *out = h;
    return s;
}

void esp_hessian_gain(float *h, uint32_t n, const float *gain)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            h[i * n + j] *= gain[i] * gain[j];
}

void esp_hessian_basis(float *h, uint32_t n, const struct esp_basis *b)
{
    esp_basis_rows(b, h, n, n); /* H Q */
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) {
            const float t = h[i * n + j];

            h[i * n + j] = h[j * n + i];
            h[j * n + i] = t;
        }
    esp_basis_rows(b, h, n, n); /* (H Q)T Q = QT H Q, H being symmetric */
}
