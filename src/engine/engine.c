/*
 * Opening and closing engines: everything a step needs is allocated here, once; steps allocate nothing.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"

#include "engine/cache.h"
#include "engine/sampling.h"
#include "engine/spec.h"

static esp_status no_fit(const esp_memory_plan *p, uint64_t most, const char *what, esp_error *err)
{
    return esp_fail(err, ESP_ENOFIT,
                    "needs %" PRIu64 " bytes (weights %" PRIu64 ", KV %" PRIu64 ", state %" PRIu64
                    ", scratch %" PRIu64 ", speculation %" PRIu64 ", adapters %" PRIu64 "), %s is %" PRIu64
                    "; lower the context, the chunk or the number of sequences",
                    p->total, p->weights, p->kv_pool, p->state_pool, p->scratch, p->speculation, p->adapters,
                    what, most);
}

/* The plan against the budget and against what a device has. */
static esp_status check_budget(const struct esp_model *m, const esp_engine_opts *o, esp_error *err)
{
    const bool device = o->device && strcmp(o->device, "cpu") != 0;
    esp_memory_plan p;
    esp_device d = {0};

    if (o->memory_budget == 0 && !device)
        return ESP_OK;
    ESP_TRY(esp_engine_plan(m, o, &p, err));
    if (o->memory_budget && p.total > o->memory_budget)
        return no_fit(&p, o->memory_budget, "the budget", err);
    if (o->memory_budget && p.host > o->memory_budget)
        return esp_fail(err, ESP_ENOFIT,
                        "needs %" PRIu64 " bytes of the machine's memory beside device %s, the budget is "
                        "%" PRIu64,
                        p.host, o->device, o->memory_budget);
    if (!device)
        return ESP_OK;
    ESP_TRY(esp_device_look(&d, o->device, false, err));
    if (p.total <= d.memory_free)
        return ESP_OK;
    return no_fit(&p, d.memory_free, "the free memory of the device", err);
}

static esp_status allocate(struct esp_engine *g, esp_error *err)
{
    const esp_engine_opts *o = &g->opts;
    const struct esp_net *net = g->model->net;
    struct esp_engine_shape shape;
    size_t n_row;

    ESP_TRY(esp_engine_shape(g->model, o, &shape, err));
    ESP_TRY(esp_engine_device(&g->dev, g->model, o, err));
    ESP_TRY(esp_state_pools_create(&g->pools, g->dev, &shape.layout, &shape.pools, err));
    ESP_TRY(g->dev->ops->compile(g->dev, &net->tape, &g->pools->mem, &shape.plan, &g->plan, err));
    ESP_TRY(esp_sample_work_create(&g->sample_work, net->tape.n_vocab, err));
    ESP_TRY(esp_sampling_open(g, err));
    g->ids = esp_alloc_array(o->chunk, sizeof *g->ids);
    g->pos = esp_alloc_array(o->chunk, sizeof *g->pos);
    g->out_rows = esp_alloc_array(o->chunk, sizeof *g->out_rows);
    g->batch_seqs = esp_alloc_array(o->rows, sizeof *g->batch_seqs);
    g->batch_owner = esp_alloc_array(o->rows, sizeof *g->batch_owner);
    g->step_rows = esp_alloc_array(o->rows, sizeof *g->step_rows);
    n_row = (size_t)o->rows + esp_spec_max_drafts(o);
    g->logits = esp_alloc_array(n_row * net->tape.n_vocab, sizeof *g->logits);
    if (g->dev->ops->logits)
        g->few = esp_alloc_array(n_row < ESP_FEW_ROWS ? n_row : ESP_FEW_ROWS, sizeof *g->few);
    g->allowed = esp_alloc_array(((size_t)net->tape.n_vocab + 63) / 64, sizeof *g->allowed);
    g->events = esp_alloc_array((size_t)o->max_seqs * 2 + n_row + ESP_LIMIT_FORCED, sizeof *g->events);
    if (!g->ids || !g->pos || !g->out_rows || !g->batch_seqs || !g->batch_owner || !g->step_rows ||
        !g->logits || !g->allowed || !g->events || (g->dev->ops->logits && !g->few))
        return esp_fail(err, ESP_ENOMEM, "engine: out of memory");
    ESP_TRY(esp_spec_open(g, err));
    esp_cache_identify(g, &g->identity);
    return esp_cache_open(g, err);
}

esp_status esp_engine_open(esp_engine **out, esp_model *m, const esp_engine_opts *opts, esp_error *err)
{
    struct esp_engine *g;
    esp_engine_opts o;
    esp_status s;

    if (!out || !m)
        return esp_fail(err, ESP_EINVAL, "esp_engine_open needs a place for the engine and a model");
    if (m->shape_only)
        return esp_fail(err, ESP_ESTATE, "the model was made with shape_only; it has no weights to run");
    ESP_TRY(esp_engine_resolve(m, opts, &o, err));
    ESP_TRY(check_budget(m, &o, err));
    g = esp_alloc(sizeof *g);
    if (!g)
        return esp_fail(err, ESP_ENOMEM, "engine: out of memory");
    g->model = m;
    g->opts = o;
    s = allocate(g, err);
    if (s != ESP_OK) {
        esp_engine_close(g);
        return s;
    }
    g->opts.act = g->opts.kv = g->opts.state = g->opts.cache_dir = g->opts.device = g->opts.pack =
        NULL; /* the caller's strings; resolved by now */
    *out = g;
    return ESP_OK;
}

void esp_engine_close(esp_engine *g)
{
    if (!g)
        return;
    ESP_ASSERT(g->n_seq == 0);
    esp_cache_close(g);
    esp_spec_close(g);
    if (g->plan)
        g->dev->ops->plan_free(g->plan);
    esp_state_pools_destroy(g->pools);
    if (g->dev)
        g->dev->ops->close(g->dev);
    esp_sample_work_destroy(g->sample_work);
    esp_free(g->xtc_exempt);
    esp_free(g->ids);
    esp_free(g->pos);
    esp_free(g->out_rows);
    esp_free(g->batch_seqs);
    esp_free(g->batch_owner);
    esp_free(g->step_rows);
    esp_free(g->logits);
    esp_free(g->few);
    esp_free(g->allowed);
    esp_free(g->events);
    esp_free(g);
}

void esp_engine_stats(const esp_engine *g, esp_stats *out)
{
    *out = g->stats;
    out->pages_total = g->pools->mem.n_page;
    out->pages_used = g->pools->mem.n_page - g->pools->n_free_page;
    out->slots_total = g->pools->mem.n_slot;
    out->slots_used = g->pools->mem.n_slot - g->pools->n_free_slot;
    out->rows_active = g->n_active;
    out->rows_waiting = g->n_waiting;
    esp_cache_stats(g, out);
    esp_spec_stats(g, out);
}
