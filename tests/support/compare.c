/*
 * See compare.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/compare.h"
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOK = 1024, MAX_SEQ = 16 };

void compare_batch(struct test_net *t, struct compare_seq *seqs, uint32_t n_seq)
{
    static int32_t ids[MAX_TOK], pos[MAX_TOK][3];
    static uint32_t rows[MAX_TOK];
    struct esp_batch_seq bs[MAX_SEQ];
    struct esp_batch b = {
        .ids = ids, .pos = (const int32_t(*)[3])pos, .n_seq = n_seq, .seqs = bs, .out_rows = rows};
    float *logits;
    esp_error err;

    assert_true(n_seq <= MAX_SEQ);
    for (uint32_t i = 0; i < n_seq; i++) {
        test_ok(esp_state_begin(seqs[i].state, seqs[i].n, ESP_PASS_WRITE, &bs[i], &err), &err);
        bs[i].tok0 = b.n_tok;
        bs[i].n_tok = seqs[i].n;
        seqs[i].first_page = t->pools->mem.layout.n_attn ? bs[i].pages[0] : 0; /* none without attention */
        for (uint32_t j = 0; j < seqs[i].n; j++, b.n_tok++) {
            assert_true(b.n_tok < MAX_TOK);
            ids[b.n_tok] = seqs[i].ids[j];
            rows[b.n_tok] = b.n_tok;
            for (int a = 0; a < 3; a++)
                pos[b.n_tok][a] =
                    seqs[i].pos ? seqs[i].pos[j][a] : (int32_t)(esp_state_length(seqs[i].state) + j);
        }
    }
    b.n_out = b.n_tok;
    b.logits = logits = calloc((size_t)b.n_tok * t->n_vocab, sizeof *logits);
    test_ok(t->dev->ops->run(t->plan, &b, &err), &err);
    test_ok(t->dev->ops->wait(t->dev, &err), &err);
    for (uint32_t i = 0; i < n_seq; i++) {
        test_ok(esp_state_commit(seqs[i].state, seqs[i].n, &err), &err);
        memcpy(seqs[i].logits, logits + (size_t)bs[i].tok0 * t->n_vocab,
               sizeof *logits * seqs[i].n * t->n_vocab);
    }
    free(logits);
}

void compare_run(struct test_net *t, const int32_t *ids, const int32_t (*pos)[3], uint32_t n, uint32_t cut,
                 float *logits)
{
    struct compare_seq s = {0};
    esp_error err;

    test_ok(esp_state_open(&s.state, t->pools, MAX_TOK, 0, &err), &err);
    for (uint32_t i = 0; i < n; i += s.n) {
        s.n = cut && n - i > cut ? cut : n - i;
        s.ids = ids + i;
        s.pos = pos ? pos + i : NULL;
        s.logits = logits + (size_t)i * t->n_vocab;
        compare_batch(t, &s, 1);
    }
    esp_state_close(s.state);
}

static double deviation(const double *x, size_t n)
{
    double sum = 0, sq = 0;

    for (size_t i = 0; i < n; i++) {
        sum += x[i];
        sq += x[i] * x[i];
    }
    return sqrt(sq / (double)n - sum / (double)n * sum / (double)n);
}

double compare_max(const float *got, const double *want, size_t n)
{
    double max = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);

        max = d > max || isnan(d) ? d : max;
        if (isnan(d))
            return INFINITY;
    }
    return max / deviation(want, n);
}

double compare_rms(const float *got, const double *want, size_t n)
{
    double sq = 0;

    for (size_t i = 0; i < n; i++)
        sq += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    return sqrt(sq / (double)n) / deviation(want, n);
}

double compare_twist(const double *twisted, const double *right, size_t n)
{
    double sq = 0;

    for (size_t i = 0; i < n; i++)
        sq += (twisted[i] - right[i]) * (twisted[i] - right[i]);
    return sqrt(sq / (double)n) / deviation(right, n);
}

void compare_logits(const char *folder, const int32_t *ids, uint32_t n, float *logits)
{
    struct test_net t;

    test_net_open(&t, (struct test_net_opts){
                          .folder = folder, .level = test_level(), .context = MAX_TOK, .max_tok = MAX_TOK});
    compare_run(&t, ids, NULL, n, 0, logits);
    test_net_close(&t);
}

bool compare_has_level(int level)
{
    enum esp_cpu_level l;

    return esp_cpu_level_parse(&l, esp_cpu_level_name((enum esp_cpu_level)level), NULL) == ESP_OK;
}

static void same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s: logit %zu is %.9g instead of %.9g", what, i, (double)b[i], (double)a[i]);
}

void compare_all(const char *folder, const struct mf_model *m, uint32_t n, double tolerance)
{
    static const uint32_t cuts[] = {0, 7, 1};
    size_t n_logit = (size_t)n * m->net.shape.vocab;
    double *want = calloc(n_logit, sizeof *want), worst;
    float *first = calloc(n_logit, sizeof *first), *got = calloc(n_logit, sizeof *got);
    int32_t ids[MAX_TOK];

    mf_tokens(ids, n, m->net.shape.vocab, 5);
    naive_forward(&m->net, NAIVE_RIGHT, ids, NULL, n, want);
    for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
        if (!compare_has_level(level))
            continue;
        for (uint32_t threads = 1; threads <= 2; threads++) {
            struct test_net t;

            test_net_open(&t, (struct test_net_opts){.folder = folder,
                                                     .level = (enum esp_cpu_level)level,
                                                     .threads = threads,
                                                     .context = MAX_TOK,
                                                     .max_tok = n});
            assert_int_equal(t.n_vocab, m->net.shape.vocab);
            for (size_t c = threads - 1; c < 3;
                 c += 2) { /* at once and by the token; by 7 with a second thread */
                compare_run(&t, ids, NULL, n, cuts[c], got);
                if (threads == 1 && c == 0)
                    memcpy(first, got, sizeof *got * n_logit);
                same_bits(first, got, n_logit, esp_cpu_level_name((enum esp_cpu_level)level));
            }
            test_net_close(&t);
        }
        worst = compare_max(first, want, n_logit);
        if (!(worst <= tolerance))
            fail_msg("%s: %g deviations from the naive pass, at most %g",
                     esp_cpu_level_name((enum esp_cpu_level)level), worst, tolerance);
    }
    free(want);
    free(first);
    free(got);
}

/* Everything up to the net; *ck stays open for its warnings. */
static esp_status open_net(const char *folder, struct esp_checkpoint **ck, esp_error *err)
{
    struct esp_source *src = NULL;
    struct esp_net *net = NULL;
    esp_status st;

    *ck = NULL;
    st = esp_checkpoint_open(ck, folder, err);
    if (st == ESP_OK)
        st = esp_source_checkpoint(&src, *ck, err);
    if (st == ESP_OK)
        st = esp_net_load(&net, &(*ck)->config, src, err);
    esp_net_close(net);
    if (src)
        src->close(src);
    return st;
}

void compare_refused(const char *folder, esp_status status, const char *part)
{
    struct esp_checkpoint *ck;
    esp_error err = {0};

    test_refused(open_net(folder, &ck, &err), status, &err, part);
    esp_checkpoint_close(ck);
}

uint32_t compare_warnings(const char *folder, const char *part)
{
    struct esp_checkpoint *ck;
    uint32_t n = 0;
    esp_error err;

    test_ok(open_net(folder, &ck, &err), &err);
    for (uint32_t i = 0; i < ck->warnings.n; i++)
        n += strstr(ck->warnings.text[i], part) != NULL;
    esp_checkpoint_close(ck);
    return n;
}
