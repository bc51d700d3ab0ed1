/*
 * Running a plan: check the batch, put its arrays into device memory in one copy, walk the steps (or replay
 * the graph of a step of this shape), and bring wanted logits back.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/cuda.h"
#include "backend/cuda/plugin/few.h"

#include <string.h>

#include "base/mem.h"

#include "backend/check.h"

_Static_assert(ESP_FEW == 512 && sizeof(struct esp_few) == 4 + 512 * 8, "few.cu repeats this");

static struct cu_shape shape_of(const struct esp_plan *p, const struct esp_batch *b)
{
    struct cu_shape h;
    uint32_t span = 1, most = 1;

    memset(&h, 0, sizeof h); /* compared as bytes */
    h.n_tok = b->n_tok;
    h.n_seq = b->n_seq;
    h.n_out = b->n_out;
    h.journals = 1;
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const struct esp_batch_seq *s = &b->seqs[i];
        uint32_t last = s->n + s->n_tok - 1;

        if (s->journal == ESP_NO_JOURNAL)
            h.journals = 0;
        if (s->n_tok > h.max_seq_tok)
            h.max_seq_tok = s->n_tok;
        if (last / ESP_SPAN + 1 > most)
            most = last / ESP_SPAN + 1;
        if (s->n - s->base == ESP_CHUNK || last / ESP_CHUNK != s->n / ESP_CHUNK)
            h.crosses = 1;
    }
    while (span < most)
        span *= 2;
    h.max_span = span < p->part_spans ? span : p->part_spans;
    return h;
}

/* Fill the staging memory and start its copy to the device. */
static esp_status upload(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    const struct cuda_batch_layout *l = &p->bl;
    uint32_t *tok_seq = (void *)(p->staging + l->tok_seq), *pages = (void *)(p->staging + l->pages),
             n_page = 0;
    struct cu_seq *seqs = (void *)(p->staging + l->seqs);

    memcpy(p->staging + l->ids, b->ids, b->n_tok * sizeof *b->ids);
    memcpy(p->staging + l->pos, b->pos, b->n_tok * sizeof *b->pos);
    if (b->n_out)
        memcpy(p->staging + l->out_rows, b->out_rows, b->n_out * sizeof *b->out_rows);
    for (uint32_t i = 0; i < b->n_seq; i++) {
        const struct esp_batch_seq *s = &b->seqs[i];
        uint32_t n = p->pools.layout.n_attn ? (s->n + s->n_tok + ESP_SPAN - 1) / ESP_SPAN : 0;

        seqs[i] =
            (struct cu_seq){.tok0 = s->tok0,
                            .n_tok = s->n_tok,
                            .n = s->n,
                            .base = s->base,
                            .slot = s->slot,
                            .slot_next = s->slot_next,
                            .page0 = n_page,
                            .journal = s->journal == ESP_NO_JOURNAL ? CU_NO_JOURNAL : (int32_t)s->journal};
        for (uint32_t j = 0; j < s->n_tok; j++)
            tok_seq[s->tok0 + j] = i;
        if (n)
            memcpy(pages + n_page, s->pages, n * sizeof *pages);
        n_page += n;
    }
    CUDA_TRY(cudaMemcpyAsync(p->scratch + p->batch_off, p->staging, l->pages + n_page * sizeof *pages,
                             cudaMemcpyHostToDevice, p->dev->stream),
             "uploading a batch");
    return ESP_OK;
}

/* Rows that the tape's INPUT takes from the batch. */
static esp_status upload_rows(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    for (uint32_t i = 0; i < p->tape->n_op; i++) {
        const struct esp_op *op = &p->tape->ops[i];

        if (op->kind == ESP_OP_INPUT)
            CUDA_TRY(cudaMemcpyAsync(p->scratch + p->input_off, b->input,
                                     (size_t)b->n_tok * plan_width(p, op->out) * sizeof(float),
                                     cudaMemcpyHostToDevice, p->dev->stream),
                     "uploading input rows");
    }
    return ESP_OK;
}

/* Hidden rows that the batch wants; returns when they are there, as host memory of any kind may take them. */
static esp_status bring_hidden(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    for (uint32_t i = 0; b->hidden && i < p->tape->n_op; i++) {
        const struct esp_op *op = &p->tape->ops[i];

        if (op->kind == ESP_OP_HIDDEN)
            CUDA_TRY(cudaMemcpyAsync(b->hidden, p->scratch + p->hidden_off,
                                     (size_t)b->n_tok * plan_width(p, op->a) * sizeof(float),
                                     cudaMemcpyDeviceToHost, p->dev->stream),
                     "reading hidden rows");
    }
    return ESP_OK;
}

static const struct cuda_step *logits_step(const struct esp_plan *p)
{
    const struct cuda_step *s = &p->steps[p->n_step - 1];

    return p->tape->ops[s->op].kind == ESP_OP_LOGITS ? s : NULL;
}

/* All steps on the stream; the first piece of logits with them. */
static void walk(const struct esp_plan *p, const struct cu_shape *h)
{
    const struct cuda_step *logits = logits_step(p);

    cu_rope_table(p->dev->stream, &p->rope, &p->on_device, h->n_tok);
    for (uint32_t i = 0; i < p->n_step;) {
        const uint32_t n = cuda_launch_fused(p, i, h);

        if (n == 0 && &p->steps[i] != logits)
            cuda_launch(p, &p->steps[i], h, true);
        i += n ? n : 1;
    }
    if (logits && h->n_out)
        cuda_launch_logits(p, logits, 0, h->n_out < p->logit_rows ? h->n_out : p->logit_rows, h->n_out);
}

/* ---- graphs
 * ---------------------------------------------------------------------------------------------------------
 */

static esp_status capture(struct esp_plan *p, const struct cu_shape *h, cudaGraphExec_t *out, esp_error *err)
{
    cudaGraph_t graph;
    cudaError_t e;

    CUDA_TRY(cudaStreamBeginCapture(p->dev->stream, cudaStreamCaptureModeThreadLocal), "capturing a step");
    walk(p, h);
    CUDA_TRY(cudaStreamEndCapture(p->dev->stream, &graph), "capturing a step");
    e = cudaGraphInstantiate(out, graph, 0);
    cudaGraphDestroy(graph);
    return e == cudaSuccess ? ESP_OK : cuda_failed(err, e, "making a graph of a step");
}

/*
 * A shape that comes for the first time is remembered and walked, so that rare shapes cost no graph and every
 * kernel has been loaded before it is captured; the second time it is captured.
 */
static esp_status replay(struct esp_plan *p, const struct cu_shape *h, esp_error *err)
{
    const bool hidden = p->batch->hidden != NULL;
    struct cuda_graph *g = NULL;

    for (uint32_t i = 0; i < CUDA_MAX_GRAPH && !g; i++)
        if (memcmp(&p->graphs[i].shape, h, sizeof *h) == 0 && p->graphs[i].hidden == hidden)
            g = &p->graphs[i];
    if (!g) {
        g = &p->graphs[p->next_graph];
        p->next_graph = (p->next_graph + 1) % CUDA_MAX_GRAPH;
        if (g->exec)
            cudaGraphExecDestroy(g->exec);
        g->exec = NULL;
        g->plain = false;
        g->shape = *h;
        g->hidden = hidden;
        walk(p, h);
        return ESP_OK;
    }
    if (!g->exec && !g->plain)
        g->plain =
            capture(p, h, &g->exec, NULL) != ESP_OK; /* a graph saves time; steps do not depend on one */
    if (g->plain) {
        walk(p, h);
        return ESP_OK;
    }
    CUDA_TRY(cudaGraphLaunch(g->exec, p->dev->stream), "running a step");
    return ESP_OK;
}

/* ---- taps
 * -----------------------------------------------------------------------------------------------------------
 */

static esp_status tap_value(struct esp_plan *p, esp_val v, const struct cu_shape *h, esp_error *err)
{
    const struct esp_value *value = &p->tape->values[v];
    uint32_t n_row = value->rows == ESP_ROWS_TOKEN ? h->n_tok : h->n_out;
    size_t n = (size_t)n_row * value->width;

    if (n)
        CUDA_TRY(cudaMemcpyAsync(p->tap_rows, plan_value(p, v), n * sizeof(float), cudaMemcpyDeviceToHost,
                                 p->dev->stream),
                 "reading a value");
    CUDA_TRY(cudaStreamSynchronize(p->dev->stream), "reading a value");
    p->batch->tap(p->batch->tap_user, value->name, p->tap_rows, n_row, value->width);
    return ESP_OK;
}

static esp_status make_tap_rows(struct esp_plan *p, esp_error *err)
{
    size_t most = 0;

    if (p->tap_rows)
        return ESP_OK;
    for (uint32_t v = 0; v < p->tape->n_value; v++)
        if (p->tape->values[v].width > most)
            most = p->tape->values[v].width;
    p->tap_rows = esp_alloc_array(
        most * (p->opts.max_tok > p->opts.max_out ? p->opts.max_tok : p->opts.max_out), sizeof(float));
    return p->tap_rows ? ESP_OK : esp_fail(err, ESP_ENOMEM, "rows of a tap: out of memory");
}

/* Step by step: with what adapters add to products, and with the named values of each handed to a tap. */
static esp_status walk_apart(struct esp_plan *p, const struct cu_shape *h, bool lora, esp_error *err)
{
    const struct cuda_step *logits = logits_step(p);

    if (p->batch->tap)
        ESP_TRY(make_tap_rows(p, err));
    cu_rope_table(p->dev->stream, &p->rope, &p->on_device, h->n_tok);
    for (uint32_t i = 0; i < p->n_step; i++) {
        const struct cuda_step *s = &p->steps[i];

        if (s == logits)
            continue;
        cuda_launch(p, s, h, false);
        if (lora && s->kind == CUDA_STEP_LINEAR)
            cuda_lora_step(p, s, p->batch);
        for (uint32_t j = s->op; j < s->op + s->n_op && p->batch->tap; j++)
            if (p->tape->ops[j].out != ESP_NO_VAL && p->tape->values[p->tape->ops[j].out].name)
                ESP_TRY(tap_value(p, p->tape->ops[j].out, h, err));
    }
    if (logits && h->n_out)
        cuda_launch_logits(p, logits, 0, h->n_out < p->logit_rows ? h->n_out : p->logit_rows, h->n_out);
    return ESP_OK;
}

/* ---- logits
 * ---------------------------------------------------------------------------------------------------------
 */

/* Rows [0, n) of the device's logits to out, through page-locked memory; waits. */
static esp_status fetch(struct esp_plan *p, uint32_t n, float *out, esp_error *err)
{
    size_t row = p->tape->n_vocab;
    const float *src = (const float *)(const void *)(p->scratch + p->logits_off);

    for (uint32_t i = 0; i < n; i += p->host_rows) {
        uint32_t m = n - i < p->host_rows ? n - i : p->host_rows;

        CUDA_TRY(cudaMemcpyAsync(p->host_logits, src + i * row, m * row * sizeof(float),
                                 cudaMemcpyDeviceToHost, p->dev->stream),
                 "reading logits");
        CUDA_TRY(cudaStreamSynchronize(p->dev->stream), "running a step");
        memcpy(out + i * row, p->host_logits, m * row * sizeof(float));
    }
    return ESP_OK;
}

/* The greatest logits of all rows; the whole of them stays where cuda_logits() finds it. */
static esp_status bring_few(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    struct esp_few *few = (void *)(p->scratch + p->few_off);
    uint32_t *shares = (void *)(few + p->logit_rows);

    cu_few(p->dev->stream, (const float *)(const void *)(p->scratch + p->logits_off), p->tape->n_vocab,
           b->n_out, shares, few);
    CUDA_TRY(cudaGetLastError(), "finding the greatest logits");
    CUDA_TRY(
        cudaMemcpyAsync(p->host_few, few, b->n_out * sizeof *few, cudaMemcpyDeviceToHost, p->dev->stream),
        "reading the greatest logits");
    p->deliver_few = true;
    return ESP_OK;
}

static esp_status bring_logits(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    const struct cuda_step *logits = logits_step(p);
    size_t row = p->tape->n_vocab;

    if (!logits || b->n_out == 0)
        return ESP_OK;
    if (b->few)
        return bring_few(p, b, err);
    if (b->n_out <= p->host_rows) { /* the usual step: wait() hands them over */
        CUDA_TRY(cudaMemcpyAsync(p->host_logits, p->scratch + p->logits_off, b->n_out * row * sizeof(float),
                                 cudaMemcpyDeviceToHost, p->dev->stream),
                 "reading logits");
        p->deliver = true;
        return ESP_OK;
    }
    for (uint32_t i = 0; i < b->n_out; i += p->logit_rows) {
        uint32_t m = b->n_out - i < p->logit_rows ? b->n_out - i : p->logit_rows;

        if (i)
            cuda_launch_logits(p, logits, i, m, b->n_out);
        ESP_TRY(fetch(p, m, b->logits + i * row, err));
    }
    return ESP_OK;
}

esp_status cuda_run(struct esp_plan *p, const struct esp_batch *b, esp_error *err)
{
    struct cu_shape h;
    bool lora;

    ESP_TRY(esp_batch_check(b, p->tape, &p->pools, &p->opts, err));
    if (p->dev->running)
        ESP_TRY(cuda_wait(&p->dev->base, err)); /* its staging memory and logits are in use */
    ESP_TRY(cuda_use(p->dev, err));
    h = shape_of(p, b);
    p->batch = b;
    p->deliver = p->deliver_few = false;
    if (b->few && b->n_out > p->logit_rows)
        return esp_fail(err, ESP_EINVAL, "few of %u rows; of at most %u at once", b->n_out, p->logit_rows);
    ESP_TRY(cuda_lora_begin(p, b, &lora, err));
    ESP_TRY(upload(p, b, err));
    ESP_TRY(upload_rows(p, b, err));
    p->dev->running = p;
    if (b->tap || lora)
        ESP_TRY(walk_apart(p, &h, lora, err));
    else if (h.n_tok <= CUDA_GRAPH_TOKENS)
        ESP_TRY(replay(p, &h, err));
    else
        walk(p, &h);
    CUDA_TRY(cudaGetLastError(), "starting a step");
    ESP_TRY(bring_hidden(p, b, err));
    return bring_logits(p, b, err);
}

/* A row with more logits than there is room for is one with none. */
static void hand_over_few(struct esp_plan *p)
{
    memcpy(p->batch->few, p->host_few, p->batch->n_out * sizeof *p->host_few);
    for (uint32_t i = 0; i < p->batch->n_out; i++)
        if (p->batch->few[i].n > ESP_FEW)
            p->batch->few[i].n = 0;
}

esp_status cuda_wait(struct esp_dev *dev, esp_error *err)
{
    struct cuda_dev *d = (struct cuda_dev *)dev;
    struct esp_plan *p = d->running;

    ESP_TRY(cuda_use(d, err));
    d->running = NULL;
    CUDA_TRY(cudaStreamSynchronize(d->stream), "running a step");
    if (p && p->deliver)
        memcpy(p->batch->logits, p->host_logits, (size_t)p->batch->n_out * p->tape->n_vocab * sizeof(float));
    if (p && p->deliver_few)
        hand_over_few(p);
    return ESP_OK;
}

esp_status cuda_logits(struct esp_plan *p, uint32_t row, float *out, esp_error *err)
{
    const size_t n = p->tape->n_vocab;

    ESP_TRY(cuda_use(p->dev, err));
    if (row >= p->logit_rows)
        return esp_fail(err, ESP_EINVAL, "logits of row %u; %u are kept", row, p->logit_rows);
    CUDA_TRY(cudaMemcpyAsync(p->host_logits, p->scratch + p->logits_off + row * n * sizeof(float),
                             n * sizeof(float), cudaMemcpyDeviceToHost, p->dev->stream),
             "reading a row of logits");
    CUDA_TRY(cudaStreamSynchronize(p->dev->stream), "reading a row of logits");
    memcpy(out, p->host_logits, n * sizeof(float));
    return ESP_OK;
}
