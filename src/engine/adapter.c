/*
 * Adapters in the engine: the public handle, and how a sequence's stack becomes rows of a batch.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "model/lora.h"

struct esp_adapter {
    const struct esp_model *model;
    struct esp_lora *lora;
};

esp_status esp_adapter_open(esp_adapter **out, esp_model *m, const char *path, esp_error *err)
{
    struct esp_adapter *a;
    esp_status s;

    if (!out || !m || !path)
        return esp_fail(err, ESP_EINVAL,
                        "esp_adapter_open needs a place for the adapter, a model and a path");
    a = esp_alloc(sizeof *a);
    if (!a)
        return esp_fail(err, ESP_ENOMEM, "adapter: out of memory");
    s = esp_lora_load(&a->lora, m->net, path, 1.0f, err);
    if (s != ESP_OK) {
        esp_free(a);
        return s;
    }
    a->model = m;
    *out = a;
    return ESP_OK;
}

void esp_adapter_close(esp_adapter *a)
{
    if (!a)
        return;
    esp_lora_close(a->lora);
    esp_free(a);
}

void esp_adapter_describe(const esp_adapter *a, esp_adapter_info *out)
{
    *out = (esp_adapter_info){.n_modules = a->lora->n_module,
                              .max_rank = a->lora->set.max_rank,
                              .bytes = a->lora->bytes,
                              .revision = a->lora->revision};
}

static esp_status check_use(const struct esp_engine *g, const esp_adapter_use *u, uint32_t i, esp_error *err)
{
    if (!u->adapter)
        return esp_fail(err, ESP_EINVAL, "adapter %u: no handle", i);
    if (u->adapter->model != g->model)
        return esp_fail(err, ESP_EINVAL, "adapter %u was opened for another model", i);
    if (!isfinite(u->scale))
        return esp_fail(err, ESP_EINVAL, "adapter %u: scale %g; a finite number is needed", i, u->scale);
    if (u->adapter->lora->set.max_rank > g->opts.max_rank)
        return esp_fail(err, ESP_ENOFIT, "adapter %u has rank %u, the engine was opened for %u (max_rank)", i,
                        u->adapter->lora->set.max_rank, g->opts.max_rank);
    return ESP_OK;
}

esp_status esp_seq_lora_resolve(const struct esp_engine *g, const esp_seq_opts *o, struct esp_seq_lora *out,
                                esp_error *err)
{
    uint64_t revision[ESP_LORA_STACK];

    memset(out, 0, sizeof *out);
    if (o->n_adapters > ESP_LORA_STACK)
        return esp_fail(err, ESP_EINVAL, "%u adapters; at most %d stack", o->n_adapters, ESP_LORA_STACK);
    for (uint32_t i = 0; i < o->n_adapters; i++) {
        const esp_adapter_use *u = &o->adapters[i];
        uint32_t at = out->n;

        ESP_TRY(check_use(g, u, i, err));
        for (; at > 0 && revision[at - 1] > u->adapter->lora->revision; at--) {
            revision[at] = revision[at - 1];
            out->set[at] = out->set[at - 1];
            out->scale[at] = out->scale[at - 1];
        }
        if (at > 0 && revision[at - 1] == u->adapter->lora->revision)
            return esp_fail(err, ESP_EINVAL, "adapter %u is named twice", i);
        revision[at] = u->adapter->lora->revision;
        out->set[at] = &u->adapter->lora->set;
        out->scale[at] = u->scale == 0 ? 1.0f : u->scale;
        out->n++;
    }
    for (uint32_t i = 0; i < out->n; i++) {
        out->key = esp_hash(&revision[i], sizeof revision[i], out->key);
        out->key = esp_hash(&out->scale[i], sizeof out->scale[i], out->key);
    }
    return ESP_OK;
}
