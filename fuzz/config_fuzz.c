/*
 * config.json from memory, with the same object as generation_config. What is accepted must keep the promises
 * of io/config.h that loaders divide and allocate by.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "io/config.h"
#include "io/config_quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* long: one condition a promise */
static void check(const struct esp_config *c)
{
    struct esp_quant q;
    uint32_t n_full = 0;

    for (uint32_t i = 0; i < c->n_layer; i++)
        n_full += c->is_full[i];
    if (!c->hidden || !c->n_kv_head || c->n_head % c->n_kv_head || !c->lin_k_head ||
        c->lin_v_head % c->lin_k_head || n_full != c->n_full || c->n_layer > ESP_LIMIT_LAYERS ||
        !isfinite(c->rms_eps) || !isfinite(c->rope.theta) || c->rope.rotary_dims > c->head_dim ||
        c->rope.rotary_dims % 2 || c->n_eos > ESP_CONFIG_MAX_EOS || c->n_expert_used > c->n_expert)
        __builtin_trap();
    (void)esp_config_quant(c, "model.layers.0.mlp.up_proj", &q);
    if (!q.bits || !q.group)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct esp_warnings w = {.n = 0};
    struct esp_config c;
    esp_error err;
    json_t *j;

    if (esp_json_parse(&j, (const char *)data, size, "input", ESP_JSON_NO_DUPLICATES, &err) != ESP_OK)
        return 0;
    if (esp_config_read(&c, j, j, "input", &w, &err) == ESP_OK) {
        check(&c);
        esp_config_free(&c);
    } else if (!err.message[0]) {
        __builtin_trap();
    }
    esp_warnings_free(&w);
    json_decref(j);
    return 0;
}
