/*
 * See runner.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/runner.h"

#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "engine/kv.h"

enum { DEFAULT_PASS = 512 };

esp_status esp_runner_open(struct esp_runner *r, struct esp_net *net, const struct esp_runner_opts *o,
                           esp_error *err)
{
    struct esp_plan_opts p = {
        .act = ESP_ACT_F32, .act_auto = o->act_auto, .max_seq = 1, .context = o->context};
    struct esp_pool_sizes z = {.n_slot = 3};
    esp_status s;

    memset(r, 0, sizeof *r);
    r->net = net;
    r->max_tok = o->max_tok ? o->max_tok : DEFAULT_PASS;
    p.max_tok = p.max_out = r->max_tok;
    r->n_vocab = net->tape.n_vocab;
    r->pos = esp_alloc_array(r->max_tok, sizeof *r->pos);
    r->rows = esp_alloc_array(r->max_tok, sizeof *r->rows);
    if (!r->pos || !r->rows) {
        esp_runner_close(r);
        return esp_fail(err, ESP_ENOMEM, "runner: out of memory");
    }
    s = esp_kv_choose(&net->layout, &net->config, o->kv ? o->kv : "f32", err);
    net->layout.kv_start = o->kv_start;
    net->layout.state = o->state;
    if (s == ESP_OK)
        s = esp_layout_finish(&net->layout, err);
    z.n_page = esp_layout_pages(&net->layout, o->context) + 1;
    if (s == ESP_OK)
        s = esp_cpu_open(&r->dev, o->level, o->threads ? o->threads : esp_core_count(), err);
    if (s == ESP_OK)
        s = esp_state_pools_create(&r->pools, r->dev, &net->layout, &z, err);
    if (s == ESP_OK)
        s = r->dev->ops->compile(r->dev, &net->tape, &r->pools->mem, &p, &r->plan, err);
    if (s != ESP_OK)
        esp_runner_close(r);
    return s;
}

esp_status esp_runner_open_source(struct esp_runner *r, const struct esp_config *config,
                                  const struct esp_source *src, const struct esp_runner_opts *o,
                                  esp_error *err)
{
    struct esp_net *net;
    esp_status s;

    memset(r, 0, sizeof *r);
    ESP_TRY(esp_net_load(&net, config, src, err));
    s = esp_runner_open(r, net, o, err);
    if (s != ESP_OK)
        esp_net_close(net);
    else
        r->owns_net = true;
    return s;
}

void esp_runner_close(struct esp_runner *r)
{
    if (r->plan)
        r->dev->ops->plan_free(r->plan);
    esp_state_pools_destroy(r->pools);
    if (r->dev)
        r->dev->ops->close(r->dev);
    if (r->owns_net)
        esp_net_close(r->net);
    esp_free(r->pos);
    esp_free(r->rows);
    memset(r, 0, sizeof *r);
}

esp_status esp_runner_pass(struct esp_runner *r, struct esp_state *state, const int32_t *ids, uint32_t n,
                           const struct esp_run_out *out, esp_error *err)
{
    const uint32_t first = esp_state_length(state);
    struct esp_batch_seq seq;
    struct esp_batch b = {.n_tok = n,
                          .ids = ids,
                          .pos = (const int32_t(*)[3])r->pos,
                          .n_seq = 1,
                          .seqs = &seq,
                          .n_out = out->logits ? n : 0,
                          .out_rows = r->rows,
                          .logits = out->buffer,
                          .tap = out->tap,
                          .tap_user = out->user};

    for (uint32_t j = 0; j < n; j++) {
        r->pos[j][0] = r->pos[j][1] = r->pos[j][2] = (int32_t)(first + j);
        r->rows[j] = j;
    }
    ESP_TRY(esp_state_begin(state, n, ESP_PASS_WRITE, &seq, err));
    seq.tok0 = 0;
    seq.n_tok = n;
    ESP_TRY(r->dev->ops->run(r->plan, &b, err));
    ESP_TRY(r->dev->ops->wait(r->dev, err));
    ESP_TRY(esp_state_commit(state, n, err));
    return out->logits ? out->logits(out->user, first, n, out->buffer, err) : ESP_OK;
}

esp_status esp_runner_run(struct esp_runner *r, const int32_t *ids, uint32_t n, const struct esp_run_out *out,
                          esp_error *err)
{
    struct esp_state *state;
    esp_status s;

    ESP_TRY(esp_state_open(&state, r->pools, n, 0, err));
    s = ESP_OK;
    for (uint32_t i = 0; s == ESP_OK && i < n; i += r->max_tok)
        s = esp_runner_pass(r, state, ids + i, n - i < r->max_tok ? n - i : r->max_tok, out, err);
    if (s != ESP_OK)
        esp_state_invalidate(state);
    esp_state_close(state);
    return s;
}
