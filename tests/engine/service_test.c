/*
 * The service under many threads: every request gets the tokens that it gets alone, whoever else asks, is
 * cancelled or refused meanwhile; bounds hold; nothing is lost on the way. Made to run under ThreadSanitizer.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/service.h"

enum { N_KIND = 8, N_NEW = 10, N_THREAD = 3, PER_THREAD = 12, MAX_ID = 512 };

struct kind {
    esp_token prompt[120], want[N_NEW];
    size_t n;
};

struct ticket { /* what the reader knows of one request */
    esp_token got[ESP_SERVICE_MAX_CHOICES][N_NEW];
    size_t n[ESP_SERVICE_MAX_CHOICES];
    uint32_t n_last, n_cancelled, n_failed;
    esp_usage usage; /* of choice 0 */
    esp_status status;
    char message[256];
};

static esp_model *model;
static struct kind kinds[N_KIND];
static struct ticket tickets[MAX_ID];

static esp_engine *open_engine(esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    o.context = 256;
    test_ok(esp_engine_open(&g, model, &o, &err), &err);
    return g;
}

static struct esp_service *open_service(esp_engine *g, uint32_t max_events)
{
    struct esp_service *v;
    esp_error err;

    test_ok(esp_service_open(&v, g, &(struct esp_service_opts){.max_events = max_events}, &err), &err);
    memset(tickets, 0, sizeof tickets);
    return v;
}

static struct esp_service_request request(int kind, size_t max_new)
{
    return (struct esp_service_request){.tokens = kinds[kind].prompt,
                                        .n = kinds[kind].n,
                                        .max_new = max_new,
                                        .opts = {.sampling = {.ignore_end = true}},
                                        .user = &kinds[kind]};
}

static uint64_t submit(struct esp_service *v, const struct esp_service_request *r)
{
    uint64_t id;
    esp_error err;

    test_ok(esp_service_submit(v, r, &id, &err), &err);
    assert_true(id > 0 && id < MAX_ID);
    return id;
}

/* Take what is there; true when something was. */
static bool read_some(struct esp_service *v, int timeout_ms)
{
    struct esp_service_event e[7];
    size_t n;

    if (!esp_service_wait(v, timeout_ms))
        return false;
    n = esp_service_poll(v, e, 7);
    for (size_t i = 0; i < n; i++) {
        struct ticket *t = &tickets[e[i].id];

        if (e[i].token >= 0)
            t->got[e[i].choice][t->n[e[i].choice]++] = e[i].token;
        t->n_last += e[i].last;
        t->n_cancelled += e[i].what == ESP_SERVICE_CANCELLED;
        if (e[i].finish == ESP_FINISH_FAILED) {
            t->n_failed++;
            t->status = e[i].status;
            memcpy(t->message, e[i].message, sizeof t->message);
        }
        if (e[i].last && e[i].choice == 0)
            t->usage = e[i].usage;
    }
    return n > 0;
}

static void read_all(struct esp_service *v)
{
    for (int idle = 0; esp_service_pending(v) || esp_service_wait(v, 0);) {
        idle = read_some(v, 1000) ? 0 : idle + 1;
        assert_true(idle < 60);
    }
}

/* Which kind's text a ticket has, up to its length. */
static void check_text(const struct ticket *t, uint32_t choice, const struct kind *k)
{
    assert_memory_equal(t->got[choice], k->want, t->n[choice] * sizeof(esp_token));
}

static void make_kinds(void)
{
    esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 1});
    struct esp_service *v = open_service(g, 0);

    for (int i = 0; i < N_KIND; i++) {
        struct esp_service_request r;
        uint64_t id;

        kinds[i].n = 5 + (size_t)(i * 37 % 110);
        for (size_t j = 0; j < kinds[i].n; j++)
            kinds[i].prompt[j] = (esp_token)((j * 11 + (size_t)(i / 2) * 7 + (j > 30) * (size_t)i) % 500);
        r = request(i, N_NEW);
        id = submit(v, &r);
        read_all(v);
        assert_int_equal(tickets[id].n[0], N_NEW);
        assert_int_equal(tickets[id].n_last, 1);
        memcpy(kinds[i].want, tickets[id].got[0], sizeof kinds[i].want);
    }
    esp_service_close(v);
    esp_engine_close(g);
}

/* ---- many threads ---- */

struct client {
    struct esp_service *v;
    uint32_t number;
    uint64_t ids[PER_THREAD];
    int kinds[PER_THREAD];
    bool cancelled[PER_THREAD];
};

static void *client(void *arg)
{
    struct client *c = arg;

    for (int i = 0; i < PER_THREAD; i++) {
        struct esp_service_request r = request((int)(c->number * 5 + (uint32_t)i) % N_KIND, N_NEW);
        esp_stats st;
        esp_error err;

        r.opts.priority = i % 3;
        c->kinds[i] = (int)(c->number * 5 + (uint32_t)i) % N_KIND;
        while (esp_service_submit(c->v, &r, &c->ids[i], &err) != ESP_OK)
            usleep(2000); /* full: case for the client to try again */
        c->cancelled[i] = i % 4 == 3;
        if (i % 8 == 7)
            usleep(3000);
        if (c->cancelled[i])
            esp_service_cancel(c->v, c->ids[i]);
        esp_service_stats(c->v, &st);
    }
    return NULL;
}

static esp_status flush(void *user, esp_engine *g, esp_error *err)
{
    ++*(int *)user;
    return esp_engine_flush(g, err);
}

static void *exclusive_client(void *arg)
{
    struct client *c = arg;
    int n = 0;
    esp_error err;

    for (int i = 0; i < 3; i++)
        test_ok(esp_service_exclusive(c->v, flush, &n, &err), &err);
    assert_int_equal(n, 3);
    return NULL;
}

static void test_threads(void **state)
{
    esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 6,
                                                  .rows = 3,
                                                  .kv_tokens = 1024,
                                                  .admission = ESP_ADMISSION_EXPECTED,
                                                  .expected_new = 2,
                                                  .chunk = 24,
                                                  .checkpoints = 6,
                                                  .cache_dir = test_tmpdir()});
    struct esp_service *v = open_service(g, 16);
    struct client c[N_THREAD + 1];
    pthread_t threads[N_THREAD + 1];
    uint64_t cached = 0;

    (void)state;
    for (uint32_t i = 0; i <= N_THREAD; i++) {
        c[i] = (struct client){.v = v, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, i < N_THREAD ? client : exclusive_client, &c[i]),
                         0);
    }
    for (int idle = 0, ended = 0; ended < N_THREAD * PER_THREAD;) {
        idle = read_some(v, 1000) ? 0 : idle + 1;
        assert_true(idle < 60);
        ended = 0;
        for (int i = 0; i < MAX_ID; i++)
            ended += (int)tickets[i].n_last;
    }
    for (uint32_t i = 0; i <= N_THREAD; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < N_THREAD; i++)
        for (int j = 0; j < PER_THREAD; j++) {
            const struct ticket *t = &tickets[c[i].ids[j]];

            assert_int_equal(t->n_last, 1);
            if (t->n_failed)
                fail_msg("%s", t->message);
            check_text(t, 0, &kinds[c[i].kinds[j]]);
            if (!c[i].cancelled[j])
                assert_int_equal(t->n[0], N_NEW);
            assert_true(c[i].cancelled[j] || t->n_cancelled == 0);
            cached += t->usage.cached_tokens;
        }
    assert_true(cached > 100);
    assert_int_equal(esp_service_pending(v), 0);
    esp_service_close(v);
    esp_engine_close(g);
}

/* Choices share their prompt: pages are counted once, and each draws on its own, repeatably. */
static void test_choices(void **state)
{
    esp_token first[4][N_NEW];
    int n_distinct = 0;

    (void)state;
    for (int round = 0; round < 2; round++) {
        esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 5, .kv_tokens = 5 * 256});
        struct esp_service *v = open_service(g, 0);
        struct esp_service_request r = request(5, N_NEW), other = request(2, N_NEW);
        uint64_t id, beside = 0;
        esp_stats st;

        r.n_choice = 4;
        r.opts.sampling.temperature = 2;
        r.opts.sampling.seed = 77;
        if (round)
            beside = submit(v, &other);
        id = submit(v, &r);
        read_all(v);
        assert_int_equal(tickets[id].n_last, 4);
        for (int c = 0; c < 4; c++) {
            assert_int_equal(tickets[id].n[c], N_NEW);
            if (round == 0)
                memcpy(first[c], tickets[id].got[c], sizeof first[c]);
            assert_memory_equal(first[c], tickets[id].got[c], sizeof first[c]);
            for (int d = 0; d < c; d++)
                n_distinct += memcmp(first[c], first[d], sizeof first[c]) != 0;
        }
        assert_int_equal(tickets[id].usage.prompt_tokens, kinds[5].n);
        if (beside)
            check_text(&tickets[beside], 0, &kinds[2]);
        esp_service_stats(v, &st); /* the prompt ran once, and the last token of it for each choice */
        assert_true(st.prompt_tokens <= kinds[5].n + (round ? kinds[2].n : 0) + 4);
        esp_service_close(v);
        esp_engine_close(g);
    }
    assert_int_equal(n_distinct, 2 * 6);
}

/* One of several answers is cancelled, while the prompt is still shared or later: the others are as ever. */
static void test_cancel_choice(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 3, .kv_tokens = 3 * 256});
        struct esp_service *v = open_service(g, 4); /* the engine stays near what was read */
        struct esp_service_request r = request(5, N_NEW);
        uint64_t id;

        r.n_choice = 3;
        id = submit(v, &r);
        for (int i = 0; late && i < 1000 && tickets[id].n[1] < 1; i++)
            read_some(v, 1000);
        esp_service_cancel_choice(v, id, 1);
        esp_service_cancel_choice(v, id, 99);
        read_all(v);
        assert_int_equal(tickets[id].n_last, 3);
        assert_int_equal(tickets[id].n_cancelled, 1);
        assert_true(tickets[id].n[1] < N_NEW);
        assert_int_equal(tickets[id].n[0], N_NEW);
        assert_int_equal(tickets[id].n[2], N_NEW);
        assert_memory_equal(tickets[id].got[0], tickets[id].got[2], sizeof tickets[id].got[0]);
        esp_service_close(v);
        esp_engine_close(g);
    }
}

static void test_refusals(void **state)
{
    esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 3, .rows = 1, .chunk = 3});
    struct esp_service *v = open_service(g, 4);
    struct esp_service_request r = request(3, 200);
    uint64_t ids[3], id = 0;
    esp_error err;

    (void)state;
    r.n_choice = 17;
    test_refused(esp_service_submit(v, &r, &id, &err), ESP_EINVAL, &err, "16 choices");
    r.n_choice = 4;
    test_refused(esp_service_submit(v, &r, &id, &err), ESP_ENOFIT, &err, "opened for 3");
    r.n_choice = 1;
    for (int i = 0; i < 3; i++) /* the reader does not read: four events fill the ring and the engine waits */
        ids[i] = submit(v, &r);
    test_refused(esp_service_submit(v, &r, &id, &err), ESP_ENOFIT, &err, "1 rows and 2 places");
    assert_true(esp_service_wait(v, 20000));
    usleep(30000);
    for (int i = 0; i < 3; i++)
        esp_service_cancel(v, ids[i]);
    esp_service_cancel(v, 9999);
    for (int i = 0; i < 60 && esp_service_pending(v); i++) /* one runs, two were queued: all end */
        read_some(v, 1000);
    read_all(v);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tickets[ids[i]].n_cancelled, 1);
        assert_int_equal(tickets[ids[i]].n_last, 1);
    }
    r = request(0, 3);
    r.opts.top_logprobs = 99;
    id = submit(v, &r);
    r = request(0, 3);
    r.n = 0;
    test_refused(esp_service_submit(v, &r, &ids[0], &err), ESP_EINVAL, &err, "without tokens");
    read_all(v);
    assert_int_equal(tickets[id].n_failed, 1);
    assert_int_equal(tickets[id].status, ESP_EINVAL);
    assert_non_null(strstr(tickets[id].message, "top_logprobs 99"));
    r = request(1, 5);
    id = submit(v, &r);
    esp_service_drain(v);
    test_refused(esp_service_submit(v, &r, &ids[0], &err), ESP_ESTATE, &err, "ending");
    read_all(v);
    assert_int_equal(tickets[id].n[0], 5);
    esp_service_close(v);
    v = open_service(g, 4);
    r = request(4, 200);
    for (int i = 0; i < 3; i++)
        submit(v, &r);
    usleep(10000);
    esp_service_close(v); /* with everything running and nobody reading */
    esp_service_close(NULL);
    esp_engine_close(g);
}

/* An answer that goes on is refused by no queue and no drain, and does not wait behind those that came later.
 */
static void test_goes_on(void **state)
{
    esp_engine *g =
        open_engine((esp_engine_opts){.max_seqs = 4, .rows = 1, .queue = 2, .kv_tokens = 1024, .chunk = 64});
    struct esp_service *v = open_service(g, 0);
    struct esp_service_request r = request(0, N_NEW), more = request(1, N_NEW);
    uint64_t ids[4], id;
    esp_error err;

    (void)state;
    more.goes_on = true;
    for (int i = 0; i < 3; i++)
        ids[i] = submit(v, &r);
    test_refused(esp_service_submit(v, &r, &id, &err), ESP_ENOFIT, &err, "the queue is full");
    ids[3] = submit(v, &more);
    esp_service_drain(v);
    test_refused(esp_service_submit(v, &r, &id, &err), ESP_ESTATE, &err, "ending");
    id = submit(v, &more);
    more.n_choice = 2;
    test_refused(esp_service_submit(v, &more, &id, &err), ESP_EINVAL, &err, "go on");
    while (tickets[ids[2]].n_last == 0)
        assert_true(read_some(v, 60000));
    assert_int_equal(tickets[ids[3]].n_last, 1); /* in front of the one that came before it */
    assert_int_equal(tickets[ids[3]].n_failed, 0);
    assert_memory_equal(tickets[ids[3]].got[0], kinds[1].want, sizeof kinds[1].want);
    esp_service_close(v);
    esp_engine_close(g);
}

/* An owner's requests beyond its rows wait, and others go past them. */
static void test_owners(void **state)
{
    esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 8, .rows = 4, .queue = 8, .kv_tokens = 2048});
    struct esp_service_request a = request(0, N_NEW), b = request(1, N_NEW), two = request(2, N_NEW);
    struct esp_service *v;
    uint64_t id, last_a = 0, only_b;
    uint32_t most = 0;
    esp_stats st;
    esp_error err;

    (void)state;
    test_ok(esp_service_open(&v, g, &(struct esp_service_opts){.rows_per_owner = 1}, &err), &err);
    memset(tickets, 0, sizeof tickets);
    a.owner = 7;
    b.owner = two.owner = 8;
    two.n_choice = 2;
    test_refused(esp_service_submit(v, &two, &id, &err), ESP_ENOFIT, &err, "1 rows at most");
    for (int i = 0; i < 6; i++)
        last_a = submit(v, &a);
    only_b = submit(v, &b);
    while (tickets[only_b].n_last == 0) {
        assert_true(read_some(v, 60000));
        esp_service_stats(v, &st);
        most = st.rows_active > most ? st.rows_active : most;
    }
    assert_int_equal(tickets[last_a].n_last, 0); /* five came before it and run one by one */
    read_all(v);
    assert_int_equal(tickets[last_a].n_failed, 0);
    assert_memory_equal(tickets[last_a].got[0], kinds[0].want, sizeof kinds[0].want);
    assert_memory_equal(tickets[only_b].got[0], kinds[1].want, sizeof kinds[1].want);
    assert_in_range(most, 1, 2);
    esp_service_close(v);
    esp_engine_close(g);
}

/* With four places in the engine taken, those that wait for one come in by rank. */
static void test_order(void **state)
{
    static const int32_t priority[4] = {5, 0, -5, -5};
    static const int want[4] = {2, 3, 1, 0};
    esp_engine *g = open_engine((esp_engine_opts){.max_seqs = 1, .rows = 1, .queue = 8, .aging_ms = 600000});
    struct esp_service *v = open_service(g, 0);
    struct esp_service_request r = request(3, N_NEW);
    uint64_t first = submit(v, &r), ids[4];
    int n_ended = 0;
    bool ended[4] = {false};

    (void)state;
    while (tickets[first].n[0] == 0) /* it runs; the others are there before it ends */
        assert_true(read_some(v, 60000));
    for (int i = 0; i < 4; i++) {
        r.opts.priority = priority[i];
        ids[i] = submit(v, &r);
    }
    assert_int_equal(tickets[first].n_last, 0);
    while (n_ended < 4) {
        assert_true(read_some(v, 60000));
        for (int i = 0; i < 4; i++)
            if (tickets[ids[want[i]]].n_last && !ended[i]) {
                assert_int_equal(i, n_ended);
                ended[i] = true;
                n_ended++;
            }
    }
    assert_true(tickets[ids[0]].usage.queue_ms > 0); /* all of its waiting counts */
    assert_true(tickets[ids[0]].usage.queue_ms >= tickets[ids[2]].usage.queue_ms);
    esp_service_close(v);
    esp_engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_owners),        cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_threads),       cmocka_unit_test(test_choices),
                                       cmocka_unit_test(test_cancel_choice), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_goes_on)};
    esp_error err;
    int failed;

    if (esp_model_open(&model, test_path("models/tiny-text"), &(esp_model_opts){.threads = 2}, &err) !=
        ESP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    make_kinds();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    esp_model_close(model);
    return failed;
}
