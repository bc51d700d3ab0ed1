/*
 * See the header. Asks the engine for its plan, never for memory, and searches the longest context that the
 * budget holds; the plan grows with the context, so halving the interval finds it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/fit.h"

#include <stdio.h>

#include "program/device.h"

uint64_t esp_fit_tokens(uint32_t ctx, uint32_t rows)
{
    return ((uint64_t)ctx + 255) / 256 * 256 * rows;
}

static esp_status total(const struct esp_fit *f, uint32_t ctx, uint32_t rows, uint64_t *out, esp_error *err)
{
    esp_engine_opts o = f->session->engine_opts;
    esp_memory_plan p;

    o.context = ctx;
    o.max_seqs = o.rows = rows;
    o.queue = 0;
    o.kv_tokens = esp_fit_tokens(ctx, rows);
    o.kv_start = o.kv_start < ctx ? o.kv_start : ctx; /* shorter contexts are exact as a whole */
    o.memory_budget = 0;
    ESP_TRY(esp_engine_plan(f->session->model, &o, &p, err));
    *out = p.total;
    return ESP_OK;
}

/* Largest x in 1..most with a plan inside the budget, x being the context for `rows` rows, or with ctx the
 * rows; 0: none. */
static esp_status largest(const struct esp_fit *f, uint32_t most, uint32_t ctx, uint32_t rows, uint32_t *out,
                          esp_error *err)
{
    uint32_t low = 0, high = most;

    while (low < high) {
        const uint32_t mid = low + (high - low + 1) / 2;
        uint64_t bytes;

        ESP_TRY(ctx ? total(f, ctx, mid, &bytes, err) : total(f, mid, rows, &bytes, err));
        if (bytes <= f->budget)
            low = mid;
        else
            high = mid - 1;
    }
    *out = low;
    return ESP_OK;
}

esp_status esp_fit_search(struct esp_fit *f, esp_error *err)
{
    enum { MOST_ROWS = 1024 }; /* of an engine */
    const uint32_t limit = f->session->info.context;

    ESP_TRY(largest(f, limit, 0, 1, &f->max_ctx_1, err));
    ESP_TRY(largest(f, limit, 0, f->rows, &f->max_ctx_rows, err));
    ESP_TRY(largest(f, MOST_ROWS, limit < 4096 ? limit : 4096, 0, &f->max_rows_4096, err));
    return largest(f, MOST_ROWS, f->ctx, 0, &f->max_rows, err);
}

/* Smaller keys and values, each with what it gains; schemes that do not suit the model's heads are left out.
 */
static void suggest_kv(const struct esp_fit *f, json_t *list)
{
    static const char *const kv[][2] = {{"bf16", "rounded keys and values"},
                                        {"q8", "keys and values of 8 bits: differences hard to find"},
                                        {"q6", "keys and values of 6 bits: very small differences"},
                                        {"q4", "keys and values of 4 bits: see doc/quality.md"}};

    for (size_t i = 0; i < sizeof kv / sizeof kv[0]; i++) {
        esp_engine_opts o = f->session->engine_opts;
        esp_memory_plan p;
        char change[32];

        o.kv = kv[i][0];
        if (esp_engine_plan(f->session->model, &o, &p, NULL) != ESP_OK || p.kv_pool >= f->plan.kv_pool)
            continue;
        snprintf(change, sizeof change, "--kv %s", kv[i][0]);
        json_array_append_new(list, json_pack("{s:s,s:I,s:s}", "change", change, "gain_bytes",
                                              (json_int_t)(f->plan.total - p.total), "cost", kv[i][1]));
    }
}

json_t *esp_fit_suggestions(const struct esp_fit *f)
{
    json_t *list = json_array();
    uint64_t bytes;
    char change[64];

    if (f->rows > 1 && total(f, f->ctx, 1, &bytes, NULL) == ESP_OK)
        json_array_append_new(list, json_pack("{s:s,s:I,s:s}", "change", "--rows 1", "gain_bytes",
                                              (json_int_t)(f->plan.total - bytes), "cost",
                                              "one sequence at a time"));
    if (f->max_ctx_rows && f->max_ctx_rows < f->ctx &&
        total(f, f->max_ctx_rows, f->rows, &bytes, NULL) == ESP_OK) {
        snprintf(change, sizeof change, "--ctx %u", f->max_ctx_rows);
        json_array_append_new(list, json_pack("{s:s,s:I,s:s}", "change", change, "gain_bytes",
                                              (json_int_t)(f->plan.total - bytes), "cost",
                                              "shorter conversations"));
    }
    suggest_kv(f, list);
    if (f->session->about.memory)
        json_array_append_new(list, json_pack("{s:s,s:I,s:s}", "change", "--device cpu", "gain_bytes",
                                              (json_int_t)f->plan.total, "cost", "slower"));
    return list;
}

/* Bytes of a token under every scheme that suits the model's heads. */
static json_t *kv_schemes(const struct esp_fit *f)
{
    static const char *const kv[] = {"f32",        "bf16",       "q8:g32",     "q8",         "q6",
                                     "q4:g32",     "q4",         "turbo:k8v4", "turbo:k8v3", "turbo:k5v4",
                                     "turbo:k4v4", "turbo:k4v3", "turbo:k2v2"};
    json_t *o = json_object();

    for (size_t i = 0; i < sizeof kv / sizeof kv[0]; i++) {
        esp_engine_opts e = f->session->engine_opts;
        esp_memory_plan p;

        e.kv = kv[i];
        if (esp_engine_plan(f->session->model, &e, &p, NULL) == ESP_OK)
            json_object_set_new(o, kv[i], json_integer((json_int_t)p.kv_per_token));
    }
    return o;
}

bool esp_fit_fits(const struct esp_fit *f)
{
    const uint64_t given = f->session->about.memory ? esp_placement_host_budget(f->session) : 0,
                   host = given ? given : f->machine.ram_available;

    return f->plan.total <= f->budget && (host == 0 || f->plan.host <= host);
}

/* The device that was chosen, when it has memory of its own. */
static json_t *devices(const struct esp_fit *f)
{
    const esp_device *d = &f->session->about;

    return d->memory ? json_pack("[{s:s,s:s,s:I,s:I}]", "id", esp_device_id(f->session), "name", d->name,
                                 "memory", (json_int_t)d->memory, "memory_free", (json_int_t)d->memory_free)
                     : json_array();
}

json_t *esp_fit_document(const struct esp_fit *f)
{
    const esp_memory_plan *p = &f->plan;
    const esp_model_info *m = &f->session->info;
    const uint64_t state_row = p->state_per_seq + p->chunk_rows_per_seq;
    const bool fits = esp_fit_fits(f);
    const char *device = esp_device_id(f->session);
    json_t *doc = json_pack("{s:s,s:b,s:s?}", "schema", "espalier.fit.v1", "fits", fits, "limiting",
                            fits                   ? NULL
                            : p->total > f->budget ? device
                                                   : "host");

    json_object_set_new(doc, "model",
                        json_pack("{s:s,s:s,s:s,s:s,s:I,s:i,s:i,s:i}", "name", f->session->shown, "arch",
                                  m->name, "shape", m->shape, "weights", m->weights, "params",
                                  (json_int_t)m->n_params, "layers", m->n_layer, "full_layers",
                                  m->n_full_layer, "context", m->context));
    json_object_set_new(doc, "machine",
                        json_pack("{s:s,s:i,s:I,s:I,s:o}", "cpu", f->machine.cpu, "cores", f->machine.cores,
                                  "ram", (json_int_t)f->machine.ram, "ram_available",
                                  (json_int_t)f->machine.ram_available, "devices", devices(f)));
    json_object_set_new(doc, "placement",
                        json_pack("[{s:s,s:i,s:I}]", "device", device, "layers", m->n_layer, "bytes",
                                  (json_int_t)p->weights));
    json_object_set_new(
        doc, "terms",
        json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "weights", (json_int_t)p->weights,
                  "kv_per_token", (json_int_t)p->kv_per_token, "state_per_row", (json_int_t)p->state_per_seq,
                  "chunk_rows_per_row", (json_int_t)p->chunk_rows_per_seq, "kv", (json_int_t)p->kv_pool,
                  "states", (json_int_t)p->state_pool, "checkpoints",
                  (json_int_t)(p->state_pool > f->rows * state_row ? p->state_pool - f->rows * state_row : 0),
                  "transient", (json_int_t)p->scratch, "speculation", (json_int_t)p->speculation, "fixed",
                  (json_int_t)p->fixed, "adapters", (json_int_t)p->adapters, "host", (json_int_t)p->host));
    json_object_set_new(doc, "at",
                        json_pack("{s:i,s:i,s:I,s:I,s:I}", "ctx", f->ctx, "rows", f->rows, "total_bytes",
                                  (json_int_t)p->total, "budget_bytes", (json_int_t)f->budget,
                                  "headroom_bytes", (json_int_t)f->budget - (json_int_t)p->total));
    json_object_set_new(doc, "max_context",
                        json_pack("{s:i,s:i}", "rows_1", f->max_ctx_1, "rows_B", f->max_ctx_rows));
    json_object_set_new(doc, "max_rows",
                        json_pack("{s:i,s:i}", "ctx_4096", f->max_rows_4096, "ctx", f->max_rows));
    if (f->speed.source)
        json_object_set_new(doc, "predicted", esp_fit_predicted(f));
    json_object_set_new(doc, "kv_schemes", kv_schemes(f));
    json_object_set_new(doc, "suggestions", esp_fit_suggestions(f));
    return doc;
}
