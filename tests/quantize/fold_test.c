/*
 * The basis is orthogonal for every kind of order, and a folded model computes the same logits: tiny-text and
 * demo, exact f32 on both sides, the tied head untied. So do its drafts, the first and those of a chain.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/quantize.h"
#include "quantize/overlay.h"
#include "quantize/runner.h"

enum { N_TOK = 96 };

static void test_orthogonal(void **state)
{
    static const uint32_t orders[] = {1, 2, 12, 20, 24, 40, 48, 64, 80, 96, 160, 256, 768, 2560, 3072, 5120};
    esp_error err;

    (void)state;
    for (size_t o = 0; o < sizeof orders / sizeof orders[0]; o++) {
        const uint32_t n = orders[o], rows = n < 12 ? n : 12;
        float *x = calloc((size_t)rows * n, sizeof *x);
        struct esp_basis b;

        assert_true(esp_basis_fits(n));
        test_ok(esp_basis_open(&b, n, 5, &err), &err);
        for (uint32_t r = 0; r < rows; r++)
            x[(size_t)r * n + r * (n / rows)] = 1;
        esp_basis_rows(&b, x, rows, n);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t s = 0; s < rows; s++) {
                double dot = 0;

                for (uint32_t i = 0; i < n; i++)
                    dot += (double)x[(size_t)r * n + i] * x[(size_t)s * n + i];
                assert_true(fabs(dot - (r == s)) < 1e-5);
            }
        for (uint32_t i = 0; i < n; i++) /* Hadamard: all entries of one size */
            assert_true(fabsf(fabsf(x[i]) - 1 / sqrtf((float)n)) < 1e-5f);
        esp_basis_close(&b);
        free(x);
    }
    assert_false(esp_basis_fits(0));
    assert_false(esp_basis_fits(28));
    test_refused(esp_basis_open(&(struct esp_basis){0}, 28, 1, &err), ESP_EUNSUPPORTED, &err, "28");
}

/* A matrix that writes in the basis and one that reads in it cancel. */
static void test_sides(void **state)
{
    enum { N = 24, C = 5 };
    float in[C * N], out[N * C], column[N], a[C * C] = {0}, b[C * C] = {0};
    struct esp_basis q;
    esp_error err;

    (void)state;
    test_ok(esp_basis_open(&q, N, 9, &err), &err);
    for (int i = 0; i < C * N; i++) {
        in[i] = sinf((float)i);
        out[i] = cosf((float)(3 * i));
    }
    for (int pass = 0; pass < 2; pass++) {
        float *to = pass ? b : a;

        for (int r = 0; r < C; r++)
            for (int c = 0; c < C; c++)
                for (int i = 0; i < N; i++)
                    to[r * C + c] += in[r * N + i] * out[i * C + c];
        esp_basis_rows(&q, in, C, N);
        esp_basis_cols(&q, out, C, column);
    }
    for (int i = 0; i < C * C; i++)
        assert_true(fabsf(a[i] - b[i]) < 1e-4f);
    esp_basis_close(&q);
}

struct logits {
    float *all;
    uint32_t n_vocab;
};

static esp_status keep(void *user, uint32_t first, uint32_t n_row, const float *logits, esp_error *err)
{
    struct logits *l = user;

    (void)err;
    memcpy(l->all + (size_t)first * l->n_vocab, logits, (size_t)n_row * l->n_vocab * sizeof *logits);
    return ESP_OK;
}

static float *run(const struct esp_config *c, const struct esp_source *src, uint32_t *n_vocab)
{
    const struct esp_runner_opts o = {.level = esp_cpu_best(), .threads = 1, .context = N_TOK, .max_tok = 64};
    struct esp_runner r;
    struct logits l;
    struct esp_run_out out = {.logits = keep, .user = &l};
    int32_t ids[N_TOK];
    esp_error err;

    test_ok(esp_runner_open_source(&r, c, src, &o, &err), &err);
    l.n_vocab = *n_vocab = r.n_vocab;
    l.all = malloc((size_t)N_TOK * r.n_vocab * sizeof(float));
    out.buffer = malloc((size_t)64 * r.n_vocab * sizeof(float));
    for (int i = 0; i < N_TOK; i++)
        ids[i] = (int32_t)((uint32_t)(i * 7919 + 13) % (r.n_vocab < 4000 ? r.n_vocab : 4000));
    test_ok(esp_runner_run(&r, ids, N_TOK, &out, &err), &err);
    free(out.buffer);
    esp_runner_close(&r);
    return l.all;
}

static void same_logits(const char *folder)
{
    struct esp_checkpoint *ck;
    struct esp_source *src;
    struct esp_fold fold;
    struct esp_overlay o;
    uint32_t n, m;
    float *a, *b, worst = 0, size = 0;
    esp_error err;

    test_ok(esp_checkpoint_open(&ck, test_path(folder), &err), &err);
    test_ok(esp_source_checkpoint(&src, ck, &err), &err);
    test_ok(esp_fold_open(&fold, &ck->config, src, false, true, 1, &err), &err);
    esp_overlay_init(&o, src, &fold);
    assert_false(o.source.tied);
    a = run(&ck->config, src, &n);
    b = run(&ck->config, &o.source, &m);
    assert_int_equal(n, m);
    for (size_t i = 0; i < (size_t)N_TOK * n; i++) {
        worst = fmaxf(worst, fabsf(a[i] - b[i]));
        size = fmaxf(size, fabsf(a[i]));
    }
    assert_true(size > 1); /* not two runs of zeros */
    if (worst > 1e-4f)
        fail_msg("%s: folded logits differ by %g", folder, (double)worst);
    /* and the fold did change the weights */
    assert_true(o.n_owned > 10);
    free(a);
    free(b);
    esp_overlay_close(&o);
    esp_fold_close(&fold);
    src->close(src);
    esp_checkpoint_close(ck);
}

static void test_tiny(void **state)
{
    (void)state;
    same_logits("models/tiny-text");
}

static void test_demo(void **state)
{
    (void)state;
    same_logits("models/demo");
}

/* ---- drafts ---- */

struct drafts {
    float *first, *second; /* [N_TOK - 1][n_vocab], [N_TOK - 2][n_vocab] */
    uint32_t n_vocab;
};

/* One pass of the draft layer: hidden rows in, logits and hidden rows out. */
static void draft(struct esp_runner *r, struct esp_plan *plan, const int32_t *ids, uint32_t n,
                  const float *in, float *out, float *logits)
{
    struct esp_batch_seq seq;
    struct esp_batch b = {.n_tok = n,
                          .ids = ids,
                          .pos = (const int32_t(*)[3])r->pos,
                          .n_seq = 1,
                          .seqs = &seq,
                          .n_out = n,
                          .out_rows = r->rows,
                          .logits = logits,
                          .input = in,
                          .hidden = out};
    struct esp_state *s;
    esp_error err;

    for (uint32_t i = 0; i < n; i++) {
        r->pos[i][0] = r->pos[i][1] = r->pos[i][2] = (int32_t)i;
        r->rows[i] = i;
    }
    test_ok(esp_state_open(&s, r->pools, N_TOK, 0, &err), &err);
    test_ok(esp_state_begin(s, n, ESP_PASS_WRITE, &seq, &err), &err);
    test_ok(r->dev->ops->run(plan, &b, &err), &err);
    test_ok(esp_state_commit(s, n, &err), &err);
    esp_state_close(s);
}

static struct drafts run_drafts(const struct esp_config *c, const struct esp_source *src)
{
    const struct esp_runner_opts o = {
        .level = esp_cpu_best(), .threads = 1, .context = N_TOK, .max_tok = N_TOK};
    const struct esp_plan_opts p = {.max_tok = N_TOK, .max_out = N_TOK, .max_seq = 1, .context = N_TOK};
    const size_t hidden = (size_t)N_TOK * c->hidden;
    float *a = malloc(hidden * sizeof *a), *b = malloc(hidden * sizeof *b);
    struct esp_plan *plan;
    struct esp_net *net;
    struct esp_runner r;
    struct drafts d;
    int32_t ids[N_TOK];
    esp_error err;

    test_ok(esp_net_load(&net, c, src, &err), &err);
    assert_true(net->mtp.n_op > 0);
    net->layout.n_attn++;
    test_ok(esp_runner_open(&r, net, &o, &err), &err);
    test_ok(r.dev->ops->compile(r.dev, &net->mtp, &r.pools->mem, &p, &plan, &err), &err);
    d.n_vocab = r.n_vocab;
    d.first = malloc((size_t)N_TOK * r.n_vocab * sizeof(float));
    d.second = malloc((size_t)N_TOK * r.n_vocab * sizeof(float));
    for (int i = 0; i < N_TOK; i++)
        ids[i] = (i * 7919 + 13) % 4000;
    draft(&r, r.plan, ids, N_TOK, NULL, a, d.first);
    draft(&r, plan, ids + 1, N_TOK - 1, a, b, d.first);
    draft(&r, plan, ids + 2, N_TOK - 2, b, NULL, d.second);
    r.dev->ops->plan_free(plan);
    esp_runner_close(&r);
    esp_net_close(net);
    free(a);
    free(b);
    return d;
}

static void same_rows(const float *a, const float *b, size_t n, const char *what)
{
    float worst = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        worst = fmaxf(worst, fabsf(a[i] - b[i]));
        size = fmaxf(size, fabsf(a[i]));
    }
    assert_true(size > 1);
    if (!(worst <= 1e-4f))
        fail_msg("%s drafts: folded logits differ by %g", what, (double)worst);
}

/* The MTP layer's norms keep their gains; what a chain of drafts starts from is in the folded basis. */
static void test_drafts(void **state)
{
    struct esp_checkpoint *ck;
    struct esp_source *src;
    struct esp_fold fold;
    struct esp_overlay o;
    struct drafts a, b;
    esp_error err;

    (void)state;
    test_ok(esp_checkpoint_open(&ck, test_path("models/demo"), &err), &err);
    test_ok(esp_source_checkpoint(&src, ck, &err), &err);
    test_ok(esp_fold_open(&fold, &ck->config, src, src->mtp_norms_shifted, true, 1, &err), &err);
    esp_overlay_init(&o, src, &fold);
    o.source.has_mtp = true;
    a = run_drafts(&ck->config, src);
    b = run_drafts(&ck->config, &o.source);
    same_rows(a.first, b.first, (size_t)(N_TOK - 1) * a.n_vocab, "first");
    same_rows(a.second, b.second, (size_t)(N_TOK - 2) * a.n_vocab, "second");
    free(a.first);
    free(a.second);
    free(b.first);
    free(b.second);
    esp_overlay_close(&o);
    esp_fold_close(&fold);
    src->close(src);
    esp_checkpoint_close(ck);
}

/* What is written has the three tensors, and drafts as its source but for the rounding of 8-bit codes. */
static void test_written(void **state)
{
    const esp_quantize_opts q = {
        .method = "rtn", .bits = 8, .fold = ESP_FOLD_ON, .no_eval = true, .threads = 1};
    struct esp_checkpoint *ck[2];
    struct esp_source *src[2];
    struct drafts d[2];
    double err2 = 0, power = 0;
    char out[512];
    esp_error err;

    (void)state;
    snprintf(out, sizeof out, "%s/folded", test_tmpdir());
    test_ok(esp_quantize(test_path("models/demo"), out, &q, NULL, NULL, NULL, &err), &err);
    for (int i = 0; i < 2; i++) {
        test_ok(esp_checkpoint_open(&ck[i], i ? out : test_path("models/demo"), &err), &err);
        test_ok(esp_source_checkpoint(&src[i], ck[i], &err), &err);
        assert_true(src[i]->has_mtp && src[i]->mtp_basis == (i == 1));
        d[i] = run_drafts(&ck[i]->config, src[i]);
    }
    for (size_t i = 0; i < (size_t)(N_TOK - 2) * d[0].n_vocab; i++) {
        const double e = (double)d[0].second[i] - (double)d[1].second[i];

        err2 += e * e;
        power += (double)d[0].second[i] * (double)d[0].second[i];
    }
    if (!(err2 < 1e-3 * power))
        fail_msg("drafts of the written model are off by %g of their power", err2 / power);
    for (int i = 0; i < 2; i++) {
        free(d[i].first);
        free(d[i].second);
        src[i]->close(src[i]);
        esp_checkpoint_close(ck[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orthogonal), cmocka_unit_test(test_sides),  cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_demo),       cmocka_unit_test(test_drafts), cmocka_unit_test(test_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
