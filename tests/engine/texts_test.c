/*
 * Cached texts by name: listed, kept over others, saved with all checkpoints and loaded into another engine,
 * forgotten; and a service that does such work between two steps and scores prompts beside its rows.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/service.h"
#include "engine/texts.h"

enum { N = 40, N_NEW = 6 };

static esp_model *model;

static esp_engine *open_engine(const char *kv)
{
    const esp_engine_opts o = {
        .context = 256, .max_seqs = 4, .kv_tokens = 2048, .checkpoints = 4, .snapshots = 2, .kv = kv};
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

static void make_text(esp_token out[N], int kind)
{
    for (int i = 0; i < N; i++)
        out[i] = (esp_token)((i * 7 + kind * 31) % 500);
}

/* Run a text to its end and leave it in the cache; tokens that were not run again. */
static uint64_t run_text(esp_engine *g, int kind, esp_token answer[N_NEW])
{
    esp_token text[N];
    esp_event e[8];
    esp_usage u;
    esp_seq *s;
    esp_error err;
    size_t n, n_answer = 0;
    bool over = false;

    make_text(text, kind);
    test_ok(esp_seq_open(&s, g, NULL, &err), &err);
    test_ok(esp_seq_append(s, text, N, &err), &err);
    test_ok(esp_seq_generate(s, N_NEW, &err), &err);
    while (!over) {
        test_ok(esp_engine_step(g, e, 8, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            if (e[i].token >= 0 && answer)
                answer[n_answer++] = e[i].token;
            over = over || e[i].finish != ESP_FINISH_NONE;
        }
    }
    esp_seq_usage(s, &u);
    esp_seq_close(s);
    return u.cached_tokens;
}

struct seen {
    struct esp_text_info last;
    esp_token tokens[256];
    int n;
};

static void note(void *user, const struct esp_text_info *t)
{
    struct seen *s = user;

    s->n++;
    s->last = *t;
    memcpy(s->tokens, t->tokens, t->n * sizeof *t->tokens);
}

static struct seen look(esp_engine *g)
{
    struct seen s = {.n = 0};

    esp_texts_each(g, note, &s);
    return s;
}

static uint64_t namespace_of(esp_engine *g)
{
    uint64_t ns = 0;
    esp_error err;

    test_ok(esp_texts_namespace(g, &(esp_seq_opts){.logprobs = false}, &ns, &err), &err);
    return ns;
}

static void test_list_keep_drop(void **state)
{
    esp_engine *g = open_engine(NULL);
    const uint64_t ns = namespace_of(g);
    esp_token text[N];
    struct seen s;
    uint32_t gone;

    (void)state;
    assert_int_equal(look(g).n, 0);
    run_text(g, 0, NULL);
    s = look(g);
    assert_int_equal(s.n, 1);
    assert_true(s.last.ns == ns && s.last.n >= N && s.last.in_memory && !s.last.in_file);
    assert_true(s.last.n_checkpoint >= 1 && s.last.bytes > 0);
    make_text(text, 0);
    assert_memory_equal(s.tokens, text, sizeof text);
    assert_true(esp_texts_pin(g, ns, text, N, 100) > 0);
    assert_true(look(g).last.pinned > 90);
    for (int kind = 1; kind < 12; kind++) /* far more than there are checkpoints for */
        run_text(g, kind, NULL);
    assert_true(run_text(g, 0, NULL) > 0); /* it is still there */
    esp_texts_drop_tokens(g, ns, text, N, &gone);
    make_text(text, 50);
    esp_texts_drop_tokens(g, ns, text, N, &gone);
    assert_int_equal(gone, 0);
    assert_int_equal(esp_texts_pin(g, ns, text, N, 100), 0);
    assert_false(esp_texts_drop(g, 12345));
    while (look(g).n)
        assert_true(esp_texts_drop(g, look(g).last.id));
    assert_int_equal(run_text(g, 0, NULL), 0);
    esp_engine_close(g);
}

static void test_save_and_load(void **state)
{
    esp_engine *g = open_engine(NULL), *other;
    esp_token text[N], want[N_NEW], got[N_NEW];
    struct esp_text_file f;
    char path[400];
    uint32_t n;
    esp_error err;

    (void)state;
    snprintf(path, sizeof path, "%s/text.esp", test_tmpdir());
    make_text(text, 3);
    test_refused(esp_texts_save(g, namespace_of(g), text, N, path, &f, &err), ESP_ENOTFOUND, &err,
                 "no checkpoint");
    run_text(g, 3, want);
    test_ok(esp_texts_save(g, namespace_of(g), text, N, path, &f, &err), &err);
    n = f.n;
    assert_true(n > 0 && n <= N && f.bytes > 0);
    esp_engine_close(g);

    other = open_engine(NULL);
    test_ok(esp_texts_load(other, namespace_of(other), path, &f, &err), &err);
    assert_int_equal(f.n, n);
    assert_memory_equal(f.tokens, text, n * sizeof *text);
    esp_free(f.tokens);
    assert_int_equal(run_text(other, 3, got), n < N ? n : N - 1);
    assert_memory_equal(want, got, sizeof want);
    esp_engine_close(other);

    other = open_engine("f32");
    test_refused(esp_texts_load(other, namespace_of(other), path, &f, &err), ESP_EINVAL, &err, "f32");
    esp_engine_close(other);
}

/* ---- the service ---- */

struct calling {
    struct esp_service *v;
    int n_text;
    esp_status status;
};

static esp_status count(void *user, esp_engine *g, esp_error *err)
{
    struct calling *c = user;

    (void)err;
    c->n_text = look(g).n;
    return ESP_OK;
}

static void *call_often(void *arg)
{
    struct calling *c = arg;

    for (int i = 0; i < 20 && c->status == ESP_OK; i++)
        c->status = esp_service_call(c->v, count, c, NULL);
    return NULL;
}

/* While rows run, one thread looks at the cache and a prompt is scored; its log-probabilities are those of
 * esp_seq_logits(), and the answers are what they are alone. */
static void test_service(void **state)
{
    esp_engine *g = open_engine(NULL);
    static float rows[N * 8192];
    struct esp_service_event e[64];
    struct esp_service *v = NULL;
    struct calling c = {.status = ESP_OK};
    esp_token text[N], want[N_NEW], answer[N_NEW];
    double scores[N] = {0};
    size_t n_score = 0, n_answer = 0, n_progress = 0;
    esp_model_info info;
    pthread_t thread;
    uint64_t scored, plain;
    esp_seq *s;
    esp_error err;
    int open = 2;

    (void)state;
    esp_model_describe(model, &info);
    make_text(text, 5);
    run_text(g, 5, want);
    test_ok(esp_seq_open(&s, g, NULL, &err), &err);
    test_ok(esp_seq_logits(s, text, N, rows, &err), &err);
    esp_seq_close(s);
    test_ok(esp_service_open(&v, g, &(struct esp_service_opts){.max_events = 8}, &err), &err);
    c.v = v;
    test_ok(esp_service_submit(
                v, &(struct esp_service_request){.tokens = text, .n = N, .max_new = N_NEW, .progress_ms = 1},
                &plain, &err),
            &err);
    test_ok(esp_service_submit(v,
                               &(struct esp_service_request){
                                   .tokens = text, .n = N, .score = true, .opts = {.top_logprobs = 2}},
                               &scored, &err),
            &err);
    assert_int_equal(pthread_create(&thread, NULL, call_often, &c), 0);
    while (open) {
        size_t n;

        assert_true(esp_service_wait(v, 60000));
        n = esp_service_poll(v, e, 64);
        for (size_t i = 0; i < n; i++) {
            if (e[i].what == ESP_SERVICE_PROMPT) {
                assert_true(e[i].id == scored);
                assert_int_equal(e[i].token, text[n_score + 1]);
                assert_int_equal(e[i].n_top, 2);
                scores[n_score++] = e[i].logprob;
            }
            if (e[i].what == ESP_SERVICE_PROGRESS) {
                assert_true(e[i].id == plain && n_answer == 0 && e[i].ns == namespace_of(g));
                assert_true(e[i].usage.cached_tokens > 0 && e[i].processed <= N);
                n_progress++;
            }
            if (e[i].what == ESP_SERVICE_TOKEN && e[i].id == plain)
                answer[n_answer++] = e[i].token;
            open -= e[i].last;
        }
    }
    pthread_join(thread, NULL);
    assert_int_equal(c.status, ESP_OK);
    assert_true(c.n_text >= 1 && n_progress >= 1);
    assert_int_equal(n_score, N - 1);
    assert_int_equal(n_answer, N_NEW);
    assert_memory_equal(answer, want, sizeof want);
    for (size_t i = 0; i < n_score; i++) {
        struct esp_sample_logprob chosen, top[ESP_SAMPLE_MAX_TOP];
        uint32_t n;

        test_ok(esp_sample_logprobs(rows + i * info.n_vocab, info.n_vocab,
                                    (struct esp_logprob_query){.id = (uint32_t)text[i + 1]}, &chosen, top, &n,
                                    &err),
                &err);
        assert_true(fabs(scores[i] - (double)(float)chosen.logprob) <= 0);
    }
    esp_service_close(v);
    esp_engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_list_keep_drop),
                                       cmocka_unit_test(test_save_and_load), cmocka_unit_test(test_service)};
    const esp_model_opts mo = {.threads = 1};
    esp_error err;
    int failed;

    test_ok(esp_model_open(&model, test_path("models/tiny-text"), &mo, &err), &err);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    esp_model_close(model);
    return failed;
}
