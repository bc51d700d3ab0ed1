/*
 * Decode and prefill on a CUDA device with random weights of the published shapes, beside the device's copy
 * bandwidth measured in the same run. Times are wall-clock around whole steps, uploads included and what the
 * engine reads back: the greatest logits of each row, or whole rows with BENCH_WHOLE=1.
 * Layers of equal shape share their bytes on the host but not on the device, so that a 27B model needs little
 * host memory.
 *
 *   bench_cuda [SHAPE FORMAT]...      qwen3.5-4b affine4; default: three shapes in bf16, affine4 and trellis3
 *
 * A trellis format is that of feed-forward matrices, as published models have it: gate and up along their
 * inputs, down along its outputs; all other matrices are affine4. BENCH_SECONDS=n begins no model after n
 * seconds. BENCH_ONLY="decode prefill drafts caches" times those named; caches are decode steps of one row
 * behind BENCH_BEHIND positions (32768) with the schemes of BENCH_KV ("bf16 turbo:k8v3 q8"), which only that
 * word asks for. BENCH_PROFILE=decode, prefill, verify or a number of rows only runs a few steps, for a
 * profiler. A short table comes last.
 *
 * SPDX-License-Identifier: MIT
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#include "formats/trellis.h"
#include "model/net.h"
#include "state/state.h"

enum { MAX_MATRIX = 64, MAX_TOK = 2048, MAX_SEQ = 64, CONTEXT = 8448, LONG = 8192, PROMPT = 256 };

/* ---- weights
 * -------------------------------------------------------------------------------------------------------- */

struct shared { /* random matrices by shape */
    struct esp_source *inner;
    struct esp_source *other; /* of matrices outside the feed-forward part of a trellis model, else NULL */
    struct esp_weight seen[MAX_MATRIX];
    uint32_t n;
};

static esp_status matrix(void *ctx, enum esp_part part, const char *module, uint32_t n_out, uint32_t n_in,
                         struct esp_weight *out, esp_error *err)
{
    struct shared *s = ctx;
    const bool coded = s->other && strstr(module, ".mlp.");

    for (uint32_t i = 0; i < s->n; i++)
        if (s->seen[i].n_out == n_out && s->seen[i].n_in == n_in &&
            coded == esp_is_trellis(s->seen[i].format)) {
            *out = s->seen[i];
            return ESP_OK;
        }
    if (s->n == MAX_MATRIX)
        return esp_fail(err, ESP_ENOFIT, "more than %d shapes", MAX_MATRIX);
    if (s->other && !coded) {
        ESP_TRY(s->other->matrix(s->other->ctx, part, module, n_out, n_in, out, err));
    } else {
        ESP_TRY(s->inner->matrix(s->inner->ctx, part, module, n_out, n_in, out, err));
    }
    s->seen[s->n++] = *out;
    return ESP_OK;
}

static esp_status vector(void *ctx, enum esp_part part, const char *name, uint32_t n, float *out,
                         esp_error *err)
{
    struct shared *s = ctx;

    return s->inner->vector(s->inner->ctx, part, name, n, out, err);
}

/* ---- one model
 * ------------------------------------------------------------------------------------------------------ */

struct bench {
    struct esp_dev *dev;
    struct esp_net *net;
    struct esp_state_pools *pools;
    struct esp_plan *plan;
    struct esp_state *seqs[MAX_SEQ];
    float *logits;
    struct esp_few *few; /* [MAX_SEQ]; NULL: steps bring whole rows of logits */
    double copy_gbs;     /* read plus written */
};

/* One step of n tokens for each of n_seq sequences with the last logits of each. */
static void step(struct bench *b, uint32_t n_seq, uint32_t n)
{
    static int32_t ids[MAX_TOK], pos[MAX_TOK][3];
    static uint32_t out[MAX_SEQ];
    struct esp_batch_seq rows[MAX_SEQ];
    struct esp_batch batch = {.ids = ids,
                              .pos = (const int32_t(*)[3])pos,
                              .seqs = rows,
                              .n_seq = n_seq,
                              .out_rows = out,
                              .n_out = n_seq,
                              .logits = b->logits,
                              .few = b->few};
    esp_error err;

    for (uint32_t i = 0; i < n_seq; i++) {
        uint32_t at = esp_state_length(b->seqs[i]);

        need(esp_state_begin(b->seqs[i], n, ESP_PASS_WRITE, &rows[i], &err), &err);
        rows[i].tok0 = batch.n_tok;
        for (uint32_t j = 0; j < n; j++, batch.n_tok++) {
            ids[batch.n_tok] = (int32_t)((at + j) * 7919u % b->net->tape.n_vocab);
            pos[batch.n_tok][0] = pos[batch.n_tok][1] = pos[batch.n_tok][2] = (int32_t)(at + j);
        }
        out[i] = batch.n_tok - 1;
    }
    need(b->dev->ops->run(b->plan, &batch, &err), &err);
    need(b->dev->ops->wait(b->dev, &err), &err);
    for (uint32_t i = 0; i < n_seq; i++)
        need(esp_state_commit(b->seqs[i], n, &err), &err);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median seconds of a step at the present length. */
static double median(struct bench *b, uint32_t n_seq, uint32_t n, uint32_t times)
{
    double t[128];

    for (uint32_t i = 0; i < times; i++) {
        double t0 = now();

        step(b, n_seq, n);
        t[i] = now() - t0;
    }
    qsort(t, times, sizeof *t, by_value);
    return t[times / 2];
}

static void reset(struct bench *b)
{
    for (uint32_t i = 0; i < MAX_SEQ; i++)
        esp_state_invalidate(b->seqs[i]);
}

/* Bytes that a decode step must read: every matrix but the embedding's rows, which are looked up. */
static double decode_bytes(const struct esp_net *net)
{
    double n = 0;

    for (uint32_t i = 0; i < net->tape.n_op; i++)
        if (net->tape.ops[i].kind == ESP_OP_LINEAR || net->tape.ops[i].kind == ESP_OP_LOGITS)
            n += (double)esp_weight_bytes(net->tape.ops[i].w);
    return n;
}

/* Multiply-adds times two of one prompt token's products. */
static double prompt_flops(const struct esp_net *net)
{
    double n = 0;

    for (uint32_t i = 0; i < net->tape.n_op; i++)
        if (net->tape.ops[i].kind == ESP_OP_LINEAR)
            n += 2.0 * net->tape.ops[i].w->n_out * net->tape.ops[i].w->n_in;
    return n;
}

static void draft_pass(struct bench *b, struct esp_plan *p, uint32_t n, bool trunk, float *hidden);

static void fill(struct bench *b, uint32_t n_seq)
{
    const uint32_t n = MAX_TOK / n_seq < PROMPT ? MAX_TOK / n_seq : PROMPT;

    for (uint32_t at = 0; at < PROMPT; at += n)
        step(b, n_seq, n);
}

/* For a profiler: decode steps of so many rows, or of 1 and 16, verify passes, or a prompt of LONG tokens. */
static void profile(struct bench *b, const char *what)
{
    const uint32_t some = (uint32_t)strtoul(what, NULL, 10), most = some ? some : 16;

    if (strcmp(what, "prefill") == 0) {
        reset(b);
        for (int i = 0; i < LONG / MAX_TOK; i++)
            step(b, 1, MAX_TOK);
        return;
    }
    if (strcmp(what, "verify") == 0) {
        static float hidden[8192 * 3];

        reset(b);
        fill(b, 1);
        for (int i = 0; i < 4; i++)
            draft_pass(b, b->plan, 3, true, hidden);
        return;
    }
    for (uint32_t n = some ? some : 1; n <= most; n += 15) {
        reset(b);
        fill(b, n);
        for (int i = 0; i < 4; i++)
            step(b, n, 1);
    }
}

/* ---- drafts by the model's own layer ---- */

enum { DEPTH = 2 };

/* One pass of n tokens of sequence 0 in plan p: of the trunk through a journal with its hidden rows, or of
 * the draft layer with one logit row. */
static void draft_pass(struct bench *b, struct esp_plan *p, uint32_t n, bool trunk, float *hidden)
{
    static int32_t ids[DEPTH + 1], pos[DEPTH + 1][3];
    static const uint32_t all[DEPTH + 1] = {0, 1, 2};
    const uint32_t at = esp_state_length(b->seqs[0]), last = n - 1;
    struct esp_batch_seq seq;
    struct esp_batch batch = {.n_tok = n,
                              .ids = ids,
                              .pos = (const int32_t(*)[3])pos,
                              .seqs = &seq,
                              .n_seq = 1,
                              .out_rows = trunk ? all : &last,
                              .n_out = trunk ? n : 1,
                              .logits = b->logits,
                              .few = trunk ? b->few : NULL, /* drafts take whole rows */
                              .input = trunk ? NULL : hidden,
                              .hidden = hidden};
    esp_error err;

    need(esp_state_begin(b->seqs[0], n, ESP_PASS_JOURNAL, &seq, &err), &err);
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)((at + i) * 7919u % b->net->tape.n_vocab);
        pos[i][0] = pos[i][1] = pos[i][2] = (int32_t)(at + i);
    }
    need(b->dev->ops->run(p, &batch, &err), &err);
    need(b->dev->ops->wait(b->dev, &err), &err);
    need(esp_state_commit(b->seqs[0], trunk ? n - 1 : 0, &err), &err);
}

/*
 * What drafting at depth 2 gives with a given chance that a draft is right: tokens of a round times a plain
 * step, over the round: a verify pass of three tokens of which two stay, and two draft passes. Every part is
 * measured as the engine does it, copies of hidden rows to and from the host included; only the chance is
 * assumed.
 */
static void time_drafts(struct bench *b, const struct esp_plan_opts *o)
{
    const double right = 0.8, tokens = 1 + right + right * right;
    double plain, parts[3][64];
    float *hidden = calloc((size_t)b->net->config.hidden * (DEPTH + 1), sizeof *hidden);
    struct esp_plan_opts d = *o;
    struct esp_plan *drafts;
    esp_error err;

    d.max_tok = DEPTH + 1;
    d.max_out = d.max_seq = 1;
    need(b->dev->ops->compile(b->dev, &b->net->mtp, &b->pools->mem, &d, &drafts, &err), &err);
    reset(b);
    for (uint32_t j = 0; j < PROMPT / 32; j++)
        step(b, 1, 32);
    plain = median(b, 1, 1, 60);
    for (int i = 0; i < 64; i++) {
        double t = now();

        draft_pass(b, b->plan, DEPTH + 1, true, hidden);
        parts[0][i] = now() - t;
        for (uint32_t k = 1; k <= 2;
             k++) { /* the rows that the verify pass kept go along with the first draft */
            t = now();
            draft_pass(b, drafts, 3 - k, false, hidden);
            parts[k][i] = now() - t;
        }
    }
    for (int k = 0; k < 3; k++)
        qsort(parts[k], 64, sizeof(double), by_value);
    printf("drafts of depth 2: plain step %.3f ms; verify %.3f, drafts %.3f and %.3f ms; at 0.8 right %.2f "
           "tokens a "
           "round, %.2fx\n",
           1e3 * plain, 1e3 * parts[0][32], 1e3 * parts[1][32], 1e3 * parts[2][32], tokens,
           tokens * plain / (parts[0][32] + parts[1][32] + parts[2][32]));
    b->dev->ops->plan_free(drafts);
    free(hidden);
}

/* ---- long contexts under schemes of keys and values ---- */

/* One row's step behind `behind` positions, and the last chunk of what filled them. */
static void time_cache(const struct bench *base, const struct esp_plan_opts *opts, const char *scheme,
                       uint32_t behind)
{
    struct bench b = *base;
    struct esp_layout l = b.net->layout;
    struct esp_plan_opts o = *opts;
    const struct esp_pool_sizes z = {
        .n_page = behind / ESP_SPAN + 2, .n_slot = 4, .n_journal = 1, .journal_rows = 1};
    struct esp_kv_scheme s;
    double chunk = 0, t;
    esp_error err;

    need(esp_kv_parse(&s, scheme, &err), &err);
    for (uint32_t i = 0; i < l.n_attn; i++)
        l.layers[i].scheme = s;
    l.kv = s.kind == ESP_KV_KIND_BF16 ? ESP_KV_BF16 : s.kind == ESP_KV_KIND_F32 ? ESP_KV_F32 : ESP_KV_CODED;
    need(esp_layout_finish(&l, &err), &err);
    o.context = behind + 256;
    o.max_seq = o.max_out = 1;
    need(esp_state_pools_create(&b.pools, b.dev, &l, &z, &err), &err);
    need(b.dev->ops->compile(b.dev, &b.net->tape, &b.pools->mem, &o, &b.plan, &err), &err);
    need(esp_state_open(&b.seqs[0], b.pools, o.context, 0, &err), &err);
    for (uint32_t at = 0; at + MAX_TOK <= behind; at += MAX_TOK) {
        chunk = now();
        step(&b, 1, MAX_TOK);
        chunk = now() - chunk;
    }
    for (int i = 0; i < 3; i++)
        step(&b, 1, 1);
    t = median(&b, 1, 1, 60);
    printf("%-16s behind %u: %6.3f ms a step of one row, %7.1f ms the last %u of the prompt; %zu KV bytes a "
           "token\n",
           scheme, behind, 1e3 * t, 1e3 * chunk, (unsigned)MAX_TOK, esp_layout_kv_per_token(&l));
    fflush(stdout);
    esp_state_close(b.seqs[0]);
    b.dev->ops->plan_free(b.plan);
    esp_state_pools_destroy(b.pools);
}

static void time_caches(const struct bench *b, const struct esp_plan_opts *o)
{
    const char *list = getenv("BENCH_KV"), *behind = getenv("BENCH_BEHIND");
    char names[256], *save = NULL;

    snprintf(names, sizeof names, "%s", list ? list : "bf16 turbo:k8v3 q8");
    for (char *s = strtok_r(names, " ", &save); s; s = strtok_r(NULL, " ", &save))
        time_cache(b, o, s, behind ? (uint32_t)strtoul(behind, NULL, 10) : 32768);
}

struct row { /* of the short table */
    char what[64];
    double decode[6], share, prefill[4];
};
static struct row rows[16];
static uint32_t n_rows;

/* BENCH_ONLY=decode, prefill, drafts or some of them: nothing else is timed. */
static bool wanted(const char *what)
{
    const char *only = getenv("BENCH_ONLY");

    return !only || strstr(only, what);
}

static void time_all(struct bench *b, const char *shape, const char *format)
{
    static const uint32_t seqs[] = {1, 4, 8, 16, 32, 64}, chunks[] = {64, 256, 512, 2048};
    struct row *row = &rows[n_rows++ % 16];

    memset(row, 0, sizeof *row);
    snprintf(row->what, sizeof row->what, "%s %s", shape, format);

    for (size_t i = 0; i < sizeof seqs / sizeof seqs[0] && wanted("decode"); i++) {
        double t, gbs;

        reset(b);
        for (uint32_t j = 0; j < PROMPT / 32; j++)
            step(b, seqs[i], 32);
        for (uint32_t j = 0; j < 3; j++)
            step(b, seqs[i], 1);
        t = median(b, seqs[i], 1, 30);
        gbs = decode_bytes(b->net) / t / 1e9;
        row->decode[i] = t * 1e3;
        row->share = i == 0 ? 100 * gbs / b->copy_gbs : row->share;
        printf("%-13s %-8s decode  %4u rows  %8.3f ms  %8.1f tok/s  %6.0f GB/s  %3.0f%% of copy\n", shape,
               format, seqs[i], t * 1e3, seqs[i] / t, gbs, 100 * gbs / b->copy_gbs);
    }
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0] && wanted("prefill"); i++) {
        double t = 1e9;

        for (int j = 0; j < 3; j++) {
            double t0;

            reset(b);
            t0 = now();
            step(b, 1, chunks[i]);
            t = now() - t0 < t ? now() - t0 : t;
        }
        row->prefill[i] = chunks[i] / t;
        printf("%-13s %-8s prefill %4u rows  %8.3f ms  %8.0f tok/s  %6.1f TFLOP/s\n", shape, format,
               chunks[i], t * 1e3, chunks[i] / t, prompt_flops(b->net) * chunks[i] / t * 1e-12);
    }
    for (uint32_t at = MAX_TOK; at < LONG && wanted("prefill"); at += MAX_TOK) {
        double t0 = now(), t;

        step(b, 1, MAX_TOK); /* the last chunk above was one of MAX_TOK */
        t = now() - t0;
        printf("%-13s %-8s prefill %4u rows  %8.3f ms  %8.0f tok/s  behind %u\n", shape, format,
               (unsigned)MAX_TOK, t * 1e3, MAX_TOK / t, at);
    }
    fflush(stdout);
}

static double copy_bandwidth(struct esp_dev *d)
{
    const size_t bytes = (size_t)2 << 30;
    struct esp_buf *a, *b;
    double best = 1e9;
    esp_error err;

    need(d->ops->alloc(d, bytes, &a, &err), &err);
    need(d->ops->alloc(d, bytes, &b, &err), &err);
    for (int i = 0; i < 10; i++) {
        double t0;

        need(d->ops->wait(d, &err), &err);
        t0 = now();
        need(d->ops->copy((struct esp_span){b, 0, bytes}, (struct esp_span){a, 0, bytes}, &err), &err);
        need(d->ops->wait(d, &err), &err);
        best = now() - t0 < best ? now() - t0 : best;
    }
    d->ops->free(a);
    d->ops->free(b);
    return 2.0 * (double)bytes / best / 1e9;
}

static void bench_one(struct esp_dev *dev, double copy_gbs, const char *shape, const char *format,
                      enum esp_act act)
{
    static struct esp_config config;
    struct shared s = {0};
    struct esp_source src = {.ctx = &s, .matrix = matrix, .vector = vector};
    struct esp_plan_opts o = {.act = act,
                              .act_auto = act == ESP_ACT_F32,
                              .max_tok = MAX_TOK,
                              .max_out = MAX_SEQ,
                              .max_seq = MAX_SEQ,
                              .context = CONTEXT};
    struct esp_pool_sizes z = {
        .n_page = MAX_SEQ * 4, .n_slot = MAX_SEQ + 3, .n_journal = 1, .journal_rows = DEPTH + 1};
    struct bench b = {.dev = dev, .copy_gbs = copy_gbs};
    enum esp_format_id f;
    double t0 = now();
    char what[32];
    esp_error err;

    need(esp_shape_config(&config, shape, &err), &err);
    need(esp_format_by_name(&f, format, &err), &err);
    need(esp_source_random(&s.inner, f, 64, config.tied_top == ESP_TIED_YES, ESP_SOURCE_WEIGHTS, 1, &err),
         &err);
    if (esp_is_trellis(f))
        need(esp_source_random(&s.other, ESP_FORMAT_AFFINE4, 64, s.inner->tied, ESP_SOURCE_WEIGHTS, 2, &err),
             &err);
    src.tied = s.inner->tied;
    src.has_mtp = true;
    config.n_mtp_layer = 1;
    need(esp_net_load(&b.net, &config, &src, &err), &err);
    b.net->layout.kv = ESP_KV_BF16;
    b.net->layout.n_attn = b.net->mtp_layer + 1;
    need(esp_layout_finish(&b.net->layout, &err), &err);
    need(esp_state_pools_create(&b.pools, dev, &b.net->layout, &z, &err), &err);
    need(dev->ops->compile(dev, &b.net->tape, &b.pools->mem, &o, &b.plan, &err), &err);
    b.logits = malloc(sizeof(float) * MAX_SEQ * b.net->tape.n_vocab);
    b.few = getenv("BENCH_WHOLE") ? NULL : malloc(sizeof *b.few * MAX_SEQ);
    for (int i = 0; i < MAX_SEQ; i++)
        need(esp_state_open(&b.seqs[i], b.pools, CONTEXT, 0, &err), &err);
    snprintf(what, sizeof what, "%s%s", format, act == ESP_ACT_F32 ? "" : "/b");
    fprintf(stderr, "%s %s: ready after %.1f s\n", shape, what, now() - t0);
    if (getenv("BENCH_PROFILE"))
        profile(&b, getenv("BENCH_PROFILE"));
    else
        time_all(&b, shape + (strncmp(shape, "qwen", 4) == 0 ? 4 : 0), what);
    if (getenv("BENCH_ONLY") && wanted("caches"))
        time_caches(&b, &o);
    if (!getenv("BENCH_PROFILE") && wanted("drafts"))
        time_drafts(&b, &o);
    for (int i = 0; i < MAX_SEQ; i++)
        esp_state_close(b.seqs[i]);
    dev->ops->plan_free(b.plan);
    esp_state_pools_destroy(b.pools);
    esp_net_close(b.net);
    s.inner->close(s.inner);
    if (s.other)
        s.other->close(s.other);
    free(b.logits);
    free(b.few);
}

static void print_table(double copy)
{
    printf("\ncopy %.0f GB/s; decode ms a step of 1, 4, 8, 16, 32, 64 rows, share of copy at 1 row; prefill "
           "tok/s\n",
           copy);
    for (uint32_t i = 0; i < n_rows && i < 16; i++)
        printf("%-16s %7.3f %7.3f %7.3f %7.3f %7.3f %7.3f  %3.0f%%  64: %6.0f  256: %6.0f  512: %6.0f  2048: "
               "%6.0f\n",
               rows[i].what, rows[i].decode[0], rows[i].decode[1], rows[i].decode[2], rows[i].decode[3],
               rows[i].decode[4], rows[i].decode[5], rows[i].share, rows[i].prefill[0], rows[i].prefill[1],
               rows[i].prefill[2], rows[i].prefill[3]);
}

int main(int argc, char **argv)
{
    static const char *const all[][2] = {{"qwen3.5-4b", "affine4"},   {"qwen3.5-4b", "bf16"},
                                         {"qwen3.5-4b", "trellis3"},  {"qwen3.5-27b", "affine4"},
                                         {"qwen3.5-27b", "trellis3"}, {"qwen3.5-27b", "bf16"},
                                         {"qwen3.5-0.8b", "bf16"},    {"qwen3.5-0.8b", "affine4"}};
    const bool bf16 = getenv("BENCH_ACT") && strcmp(getenv("BENCH_ACT"), "bf16") == 0;
    const double limit = getenv("BENCH_SECONDS") ? strtod(getenv("BENCH_SECONDS"), NULL) : 1e9, begin = now();
    struct esp_dev *dev;
    double copy;
    esp_error err;

    need(esp_cuda_open(&dev, 0, &err), &err);
    copy = copy_bandwidth(dev);
    printf("%s: copy %.0f GB/s read plus written\n", dev->name, copy);
    if (argc > 2)
        for (int i = 1; i + 1 < argc; i += 2)
            bench_one(dev, copy, argv[i], argv[i + 1], bf16 ? ESP_ACT_BF16 : ESP_ACT_F32);
    for (size_t i = 0; argc <= 2 && i < sizeof all / sizeof all[0]; i++) {
        if (now() - begin > limit) {
            printf("no time left for %s %s\n", all[i][0], all[i][1]);
            continue;
        }
        bench_one(dev, copy, all[i][0], all[i][1], bf16 ? ESP_ACT_BF16 : ESP_ACT_F32);
    }
    print_table(copy);
    dev->ops->close(dev);
    return 0;
}
