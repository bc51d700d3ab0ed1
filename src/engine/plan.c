/*
 * Options with their defaults, and the memory that follows from them. The plan computed here is the one the
 * engine allocates: fit, run and the engine itself cannot disagree.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <string.h>

#include "base/limits.h"

#include "engine/kv.h"
#include "engine/spec.h"

enum {
    DEFAULT_CONTEXT = 32768,
    DEFAULT_SEQS = 4,
    DEFAULT_CHUNK = 512,
    DEFAULT_EXPECTED = 256,
    DEFAULT_EVERY = 4096,
    DEFAULT_PER_PATH = 16,
    MAX_CHUNK = 8192,
    MAX_RANK = 1024,
    CACHE_NODE_BYTES = 256,
    /* Code, libraries and small heaps of a process: 7.5 MiB measured on x86-64 Debian 12, and 0.5 to spare.
     */
    PROGRAM_BYTES = 8 << 20
};

#define DEFAULT_CACHE_DISK (UINT64_C(32) << 30)

static esp_status parse_act(const char *name, struct esp_plan_opts *p, esp_error *err)
{
    if (!name || strcmp(name, "auto") == 0) {
        p->act_auto = true;
        return ESP_OK;
    }
    for (int a = 0; a < ESP_ACT_COUNT; a++)
        if (strcmp(name, esp_act_name((enum esp_act)a)) == 0) {
            p->act = (enum esp_act)a;
            return ESP_OK;
        }
    return esp_fail(err, ESP_EINVAL, "act \"%s\"; accepted: auto, f32, bf16, int8x2, int8", name);
}

static esp_status parse_pack(const char *name, enum esp_pack *out, esp_error *err)
{
    static const char *const names[] = {
        [ESP_PACK_AUTO] = "auto", [ESP_PACK_ON] = "on", [ESP_PACK_OFF] = "off"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (name && strcmp(name, names[i]) != 0)
            continue;
        *out = (enum esp_pack)i;
        return ESP_OK;
    }
    return esp_fail(err, ESP_EINVAL, "pack \"%s\"; accepted: auto, on, off", name);
}

static esp_status resolve_scheduling(esp_engine_opts *o, esp_error *err)
{
    if (o->rows == 0)
        o->rows = o->max_seqs;
    if (o->rows > o->max_seqs)
        return esp_fail(err, ESP_EINVAL, "rows %u; at most max_seqs, which is %u", o->rows, o->max_seqs);
    if (o->queue == 0)
        o->queue = o->max_seqs - o->rows;
    if (o->queue > ESP_LIMIT_QUEUE)
        return esp_fail(err, ESP_EINVAL, "queue %u; at most %u are possible", o->queue, ESP_LIMIT_QUEUE);
    if ((unsigned)o->admission > ESP_ADMISSION_EXPECTED)
        return esp_fail(err, ESP_EINVAL, "admission %d; 0 (open), 1 (worst) and 2 (expected) are known",
                        (int)o->admission);
    if (o->expected_new == 0)
        o->expected_new = DEFAULT_EXPECTED;
    return ESP_OK;
}

static esp_status resolve_cache(esp_engine_opts *o, esp_error *err)
{
    if (o->kv_start > o->context)
        return esp_fail(err, ESP_EINVAL, "kv_start %u; at most the context, %u, is possible", o->kv_start,
                        o->context);
    if (o->checkpoints > ESP_LIMIT_STATE_CHECKPOINTS)
        return esp_fail(err, ESP_EINVAL, "checkpoints %u; at most %u are possible", o->checkpoints,
                        ESP_LIMIT_STATE_CHECKPOINTS);
    if (o->checkpoint_every == 0)
        o->checkpoint_every = DEFAULT_EVERY;
    if (o->checkpoints_per_path == 0)
        o->checkpoints_per_path = DEFAULT_PER_PATH;
    if (o->checkpoints_per_path < 2)
        return esp_fail(err, ESP_EINVAL, "checkpoints_per_path %u; 2 or more are possible",
                        o->checkpoints_per_path);
    if (o->cache_dir && o->checkpoints == 0)
        return esp_fail(err, ESP_EINVAL, "cache_dir needs checkpoints: the files hold what they leave");
    if (o->cache_disk == 0)
        o->cache_disk = DEFAULT_CACHE_DISK;
    return ESP_OK;
}

esp_status esp_engine_resolve(const struct esp_model *m, const esp_engine_opts *in, esp_engine_opts *out,
                              esp_error *err)
{
    uint32_t model_context = m->net->config.max_position;
    esp_engine_opts o = {0};

    if (in)
        o = *in;
    if (o.context == 0)
        o.context = model_context < DEFAULT_CONTEXT ? model_context : DEFAULT_CONTEXT;
    if (o.context > model_context)
        return esp_fail(err, ESP_EINVAL, "context %u; the model was made for at most %u positions", o.context,
                        model_context);
    if (o.max_seqs == 0)
        o.max_seqs = DEFAULT_SEQS;
    if (o.max_seqs > MAX_SEQS)
        return esp_fail(err, ESP_EINVAL, "max_seqs %u; 1 to %d are possible", o.max_seqs, MAX_SEQS);
    if (o.chunk == 0)
        o.chunk = DEFAULT_CHUNK;
    if (o.max_rank > MAX_RANK)
        return esp_fail(err, ESP_EINVAL, "max_rank %u; 0 to %d are possible", o.max_rank, MAX_RANK);
    if (o.adapter_bytes > ESP_LIMIT_ADAPTER_BYTES)
        return esp_fail(err, ESP_EINVAL, "adapter_bytes %llu; at most %llu are possible",
                        (unsigned long long)o.adapter_bytes, (unsigned long long)ESP_LIMIT_ADAPTER_BYTES);
    if (o.chunk > MAX_CHUNK)
        return esp_fail(err, ESP_EINVAL, "chunk %u; 1 to %d are possible", o.chunk, MAX_CHUNK);
    if (o.chunk < o.max_seqs)
        o.chunk = o.max_seqs; /* every sequence gets its token in one step */
    if (o.kv_tokens == 0)
        o.kv_tokens = o.context;
    o.kv_tokens = (o.kv_tokens + ESP_SPAN - 1) / ESP_SPAN * ESP_SPAN;
    if (o.kv_tokens / ESP_SPAN > UINT32_MAX / 2)
        return esp_fail(err, ESP_EINVAL, "kv_tokens %llu; at most 2^39 are possible",
                        (unsigned long long)o.kv_tokens);
    if (o.snapshots == 0)
        o.snapshots = 2 * o.max_seqs;
    ESP_TRY(resolve_scheduling(&o, err));
    ESP_TRY(resolve_cache(&o, err));
    ESP_TRY(esp_spec_resolve(m, &o, err));
    ESP_TRY(esp_engine_check_device(m, &o, err));
    *out = o;
    return ESP_OK;
}

/*
 * Pages for kv_tokens positions, and for what exact pages take more than coded ones in as many sequences as
 * may hold memory at once or as fit kv_tokens.
 */
static uint32_t count_pages(const struct esp_layout *l, const esp_engine_opts *o)
{
    const uint64_t more = l->exact_pages - l->kv_start / ESP_SPAN, held = o->kv_tokens / ESP_SPAN;
    uint64_t n = o->admission == ESP_ADMISSION_OPEN ? o->max_seqs : o->rows;

    if (l->n_attn == 0)
        return 0;
    if (l->kv_start && n > o->kv_tokens / l->kv_start + 1)
        n = o->kv_tokens / l->kv_start + 1;
    return (uint32_t)(held +
                      n * more); /* kv_tokens is below 2^39, more below 2^25: exact rows are 2 at least */
}

esp_status esp_engine_shape(const struct esp_model *m, const esp_engine_opts *o, struct esp_engine_shape *out,
                            esp_error *err)
{
    memset(out, 0, sizeof *out);
    out->layout = m->net->layout;
    ESP_TRY(esp_kv_choose(&out->layout, &m->net->config, o->kv, err));
    out->layout.state = ESP_RECURRENT_F32;
    if (o->state)
        ESP_TRY(esp_recurrent_parse(&out->layout.state, o->state, err));
    out->layout.kv_start = o->kv_start;
    /* With a ledger, sequences without a row lend their slots. */
    if (out->layout.n_delta)
        out->pools.n_slot =
            (o->admission == ESP_ADMISSION_OPEN ? o->max_seqs : o->rows) + o->snapshots + o->checkpoints;
    esp_spec_shape(m, o, out);
    ESP_TRY(esp_layout_finish(&out->layout, err));
    out->pools.n_page = count_pages(&out->layout, o);
    ESP_TRY(parse_act(o->act, &out->plan, err));
    ESP_TRY(parse_pack(o->pack, &out->plan.pack, err));
    out->plan.max_tok = o->chunk;
    out->plan.max_rank = o->max_rank;
    out->plan.adapter_bytes = o->adapter_bytes;
    out->plan.max_out = o->chunk;
    out->plan.max_seq = o->rows;
    out->plan.context = o->context;
    return ESP_OK;
}

/* Tokenizer, sampler scratch, token lists, vectors, and the process itself. */
static uint64_t fixed_bytes(const struct esp_model *m, const esp_engine_opts *o)
{
    uint64_t n_vocab = m->net->tape.n_vocab;
    uint64_t b = (o->program_bytes ? o->program_bytes : PROGRAM_BYTES) + m->net->vector_bytes +
                 n_vocab / 8 * 3; /* masks of ids */

    b += m->tok ? esp_tokenizer_bytes(m->tok) : 0;
    b += esp_sample_work_bytes((uint32_t)n_vocab);
    b += (uint64_t)o->max_seqs * o->context * 2 * sizeof(int32_t); /* tokens, and the sampler's history */
    if (o->checkpoints)                                            /* edges of the prefix tree, its nodes */
        b += o->kv_tokens * sizeof(int32_t) + (uint64_t)o->checkpoints * 2 * CACHE_NODE_BYTES;
    return b;
}

uint64_t esp_engine_weights(const struct esp_dev *dev, const struct esp_net *net, const struct esp_tape *t)
{
    return dev->ops->weight_bytes ? dev->ops->weight_bytes(dev, t) : esp_net_weight_bytes(net);
}

static esp_status fill_plan(const struct esp_model *m, const esp_engine_opts *o, struct esp_dev *dev,
                            esp_memory_plan *p, esp_error *err)
{
    struct esp_engine_shape shape;
    const struct esp_layout *l = &shape.layout;
    const uint64_t logits = (uint64_t)o->rows * m->net->tape.n_vocab * sizeof(float) +
                            (dev->ops->logits ? o->rows * sizeof(struct esp_few) : 0);
    size_t scratch;

    ESP_TRY(esp_engine_shape(m, o, &shape, err));
    ESP_TRY(dev->ops->plan_bytes(dev, &m->net->tape, l, &shape.plan, &scratch, err));
    *p = (esp_memory_plan){
        .weights = esp_engine_weights(dev, m->net, &m->net->tape),
        .kv_per_token = esp_layout_kv_per_token(l),
        .kv_start = (uint64_t)l->exact_pages * l->page_bytes,
        .state_per_seq = esp_layout_state_bytes(l),
        .chunk_rows_per_seq = esp_layout_open_bytes(l),
        .kv_pool = esp_dev_alloc_bytes(dev, (uint64_t)shape.pools.n_page * l->page_bytes),
        .state_pool = esp_dev_alloc_bytes(dev, (uint64_t)shape.pools.n_slot * l->slot_bytes),
        .scratch = scratch,
        .adapters = o->adapter_bytes,
    };
    ESP_TRY(esp_spec_bytes(m, o, &shape, dev, &p->speculation, err));
    if (dev->ops->memory) {
        p->host = fixed_bytes(m, o) + logits + esp_net_weight_bytes(m->net);
    } else {
        p->fixed = fixed_bytes(m, o);
        p->scratch += logits;
    }
    p->total = p->weights + p->kv_pool + p->state_pool + p->scratch + p->speculation + p->fixed + p->adapters;
    return ESP_OK;
}

esp_status esp_engine_plan(const esp_model *m, const esp_engine_opts *opts, esp_memory_plan *out,
                           esp_error *err)
{
    esp_engine_opts o;
    struct esp_dev *dev;
    esp_status s;

    ESP_TRY(esp_engine_resolve(m, opts, &o, err));
    ESP_TRY(esp_engine_device(&dev, m, &o, err));
    s = fill_plan(m, &o, dev, out, err);
    dev->ops->close(dev);
    return s;
}
