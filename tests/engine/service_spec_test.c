/*
 * The service with speculation, under several threads: drafts of the draft layer and of n-grams, beside
 * cancelled requests and forks of one prompt, give every request the tokens that it gets alone without them.
 * Made to run under ThreadSanitizer.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/service.h"
#include "support/npy.h"

enum { N_KIND = 3, N_PROMPT = 30, N_NEW = 10, N_THREAD = 2, PER_THREAD = 2, MAX_ID = 32 };

struct kind {
    const esp_token *prompt;
    size_t n;
    esp_token want[N_NEW];
};

struct ticket { /* what the reader knows of one request */
    esp_token got[2][N_NEW];
    size_t n[2];
    uint32_t n_last;
};

struct client {
    struct esp_service *v;
    uint32_t number;
    uint64_t ids[PER_THREAD];
    pthread_t thread;
};

static esp_model *model;
static struct kind kinds[N_KIND];
static struct ticket tickets[MAX_ID];

static esp_engine *open_engine(esp_spec spec)
{
    esp_engine_opts o = {.context = 128,
                         .max_seqs = 4,
                         .rows = 3,
                         .queue = 16,
                         .kv_tokens = 4 * 256,
                         .chunk = 24,
                         .spec = spec,
                         .spec_tokens = 3,
                         .spec_always = true};
    esp_engine *g;
    esp_error err;

    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

static struct esp_service_request request(uint32_t kind, uint32_t n_choice)
{
    return (struct esp_service_request){.tokens = kinds[kind].prompt,
                                        .n = kinds[kind].n,
                                        .max_new = N_NEW,
                                        .n_choice = n_choice,
                                        .opts = {.sampling = {.ignore_end = true}}};
}

static void read_all(struct esp_service *v, uint32_t n_last)
{
    uint32_t last = 0;

    while (last < n_last) {
        struct esp_service_event e[5];
        size_t n;

        assert_true(esp_service_wait(v, 300000));
        n = esp_service_poll(v, e, 5);
        for (size_t i = 0; i < n; i++) {
            struct ticket *t = &tickets[e[i].id];

            assert_int_not_equal(e[i].finish, ESP_FINISH_FAILED);
            if (e[i].token >= 0) {
                assert_true(t->n[e[i].choice] < N_NEW);
                t->got[e[i].choice][t->n[e[i].choice]++] = e[i].token;
            }
            last += e[i].last;
        }
    }
}

/* Every request's kind is its thread's number and its own; the first is cancelled in the middle of it. */
static void *ask(void *arg)
{
    struct client *c = arg;

    for (uint32_t i = 0; i < PER_THREAD; i++) {
        struct esp_service_request r = request((c->number + i) % N_KIND, 1 + i % 2);
        esp_stats st;
        esp_error err;

        if (esp_service_submit(c->v, &r, &c->ids[i], &err) != ESP_OK)
            return NULL;
        esp_service_stats(c->v, &st);
    }
    esp_service_cancel(c->v, c->ids[0]);
    return c;
}

static void check_text(uint64_t id, const struct kind *k, bool whole)
{
    const struct ticket *t = &tickets[id];

    for (int c = 0; c < 2; c++)
        assert_memory_equal(t->got[c], k->want, t->n[c] * sizeof(esp_token));
    assert_true(!whole || t->n[0] == N_NEW);
}

static void speculate(esp_spec spec)
{
    esp_engine *g = open_engine(spec);
    struct client clients[N_THREAD];
    struct esp_service *v;
    esp_stats st;
    esp_error err;

    memset(tickets, 0, sizeof tickets);
    test_ok(esp_service_open(&v, g, NULL, &err), &err);
    for (uint32_t i = 0; i < N_THREAD; i++) {
        clients[i] = (struct client){.v = v, .number = i};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, ask, &clients[i]), 0);
    }
    read_all(v, N_THREAD * PER_THREAD * 3 / 2); /* every other one has two choices */
    for (uint32_t i = 0; i < N_THREAD; i++) {
        void *done;

        assert_int_equal(pthread_join(clients[i].thread, &done), 0);
        assert_ptr_equal(done, &clients[i]);
        for (uint32_t j = 0; j < PER_THREAD; j++)
            check_text(clients[i].ids[j], &kinds[(i + j) % N_KIND], j > 0);
    }
    esp_service_close(v);
    esp_engine_stats(g, &st);
    assert_true(st.spec_rounds > 5 && st.spec_accepted > 0);
    esp_engine_close(g);
}

static void test_mtp(void **state)
{
    (void)state;
    speculate(ESP_SPEC_MTP);
}

static void test_ngram(void **state)
{
    (void)state;
    speculate(ESP_SPEC_NGRAM);
}

static void make_kinds(const int32_t *ids, uint32_t cols)
{
    esp_engine *g = open_engine(ESP_SPEC_OFF);
    struct esp_service *v;
    esp_error err;

    test_ok(esp_service_open(&v, g, NULL, &err), &err);
    for (uint32_t i = 0; i < N_KIND; i++) {
        struct esp_service_request r;
        uint64_t id;

        kinds[i].prompt = ids + (size_t)i * cols;
        kinds[i].n = N_PROMPT - 7 * i;
        r = request(i, 1);
        test_ok(esp_service_submit(v, &r, &id, &err), &err);
        read_all(v, 1);
        assert_int_equal(tickets[id].n[0], N_NEW);
        memcpy(kinds[i].want, tickets[id].got[0], sizeof kinds[i].want);
    }
    esp_service_close(v);
    esp_engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mtp), cmocka_unit_test(test_ngram)};
    uint32_t rows, cols;
    int32_t *ids = test_npy(test_path("models/demo-golden/val.npy"), &rows, &cols);
    esp_error err;
    int failed;

    test_ok(esp_model_open(&model, test_path("models/demo"), &(esp_model_opts){.threads = 1}, &err), &err);
    make_kinds(ids, cols);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    esp_model_close(model);
    free(ids);
    return failed;
}
