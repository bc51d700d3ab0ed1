/*
 * The prefix cache and the scheduler change time and never tokens: every request gives the tokens and
 * log-probabilities of a run alone without cache, cold or hit, cut by marks, preempted, restored from files
 * of an earlier engine, in any batch, with one thread or two. The warm runs must really have been warm. Cases
 * 28, 29, 30 and 36 of the field.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "espalier/espalier.h"

enum { N_REQUEST = TEST_SANITIZED ? 5 : 18, MAX_PROMPT = TEST_SANITIZED ? 300 : 700 };
enum { N_NEW = 12, MAX_ROWS = 16, CONTEXT = 1024 };

struct request {
    esp_token prompt[MAX_PROMPT];
    size_t n, marks[2];
    esp_seq_opts opts;
    esp_token want[N_NEW];
    float logprob[N_NEW];
};

struct run {
    struct request *r;
    esp_seq *seq;
    size_t got;
    uint32_t start;
    bool done;
};

static struct request requests[N_REQUEST];
static esp_model *models[3]; /* by threads */
static const char *folder;
static uint64_t rng = 5;
static uint64_t cached, preempted; /* over the last drive() */

static uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

static esp_engine_opts usual; /* kv, kv_start and state of engines whose test does not say */

static esp_engine *open_engine(uint32_t threads, esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    if (!o.kv) {
        o.kv = usual.kv;
        o.kv_start = o.kv_start ? o.kv_start : usual.kv_start;
        o.state = usual.state;
    }
    o.context = o.context ? o.context : CONTEXT;
    test_ok(esp_engine_open(&g, models[threads], &o, &err), &err);
    return g;
}

/* Prompts of a few families that share beginnings of all lengths. */
static void make_requests(void)
{
    esp_model_info info;

    esp_model_describe(models[1], &info);
    for (int i = 0; i < N_REQUEST; i++) {
        struct request *r = &requests[i];
        const struct request *from = &requests[rnd((uint32_t)i + 1)];
        size_t shared = i > 3 ? rnd((uint32_t)from->n + 1) : 0;

        memset(r, 0, sizeof *r);
        r->n = shared + 1 + rnd(rnd(2) ? 30 : MAX_PROMPT - (uint32_t)shared);
        r->n = r->n > MAX_PROMPT ? MAX_PROMPT : r->n;
        memcpy(r->prompt, from->prompt, shared * sizeof *r->prompt);
        for (size_t j = shared; j < r->n; j++)
            r->prompt[j] = (esp_token)rnd(info.n_vocab);
        r->marks[0] = rnd((uint32_t)r->n + 1);
        r->marks[1] = r->marks[0] + rnd((uint32_t)(r->n - r->marks[0]) + 1);
        r->opts.logprobs = true;
        r->opts.sampling.ignore_end = true;
        r->opts.sampling.seed = (uint64_t)i;
        r->opts.priority = (int32_t)rnd(3);
        r->opts.sampling.temperature = i % 2 ? 0.9f : 0;
        r->opts.sampling.repetition_penalty = i % 4 == 1 ? 1.1f : 0;
    }
}

static void start(struct run *x, esp_engine *g)
{
    esp_error err;

    test_ok(esp_seq_open(&x->seq, g, &x->r->opts, &err), &err);
    test_ok(esp_seq_append(x->seq, x->r->prompt, x->r->n, &err), &err);
    if (x->start % 2)
        test_ok(esp_seq_set_marks(x->seq, x->r->marks, 2, &err), &err);
    test_ok(esp_seq_generate(x->seq, N_NEW, &err), &err);
}

static void take_event(struct run *x, const esp_event *e, bool record)
{
    if (e->finish == ESP_FINISH_FAILED)
        fail_msg("%s", e->message);
    if (e->token >= 0 && record) {
        x->r->want[x->got] = e->token;
        x->r->logprob[x->got] = e->logprob;
    }
    if (e->token >= 0) {
        assert_int_equal(e->token, x->r->want[x->got]);
        assert_true(e->logprob == x->r->logprob[x->got]); /* bit for bit */
        x->got++;
    }
    x->done |= e->finish != ESP_FINISH_NONE;
}

static void finish(struct run *x)
{
    esp_usage u;

    assert_int_equal(x->got, N_NEW);
    esp_seq_usage(x->seq, &u);
    assert_int_equal(u.generated_tokens, N_NEW);
    assert_int_equal(u.prompt_tokens, x->r->n);
    assert_true(u.cached_tokens < x->r->n && u.queue_ms >= 0 && u.prompt_ms >= 0);
    cached += u.cached_tokens;
    preempted += u.preemptions;
    esp_seq_close(x->seq);
    x->seq = NULL;
}

static void drive(esp_engine *g, struct run *runs, size_t n_run, bool record)
{
    size_t n_done = 0;
    esp_error err;

    cached = preempted = 0;
    for (uint32_t step = 0; n_done < n_run; step++) {
        esp_event e[2 * MAX_ROWS];
        size_t n;

        for (size_t i = 0; i < n_run; i++)
            if (runs[i].start == step)
                start(&runs[i], g);
        test_ok(esp_engine_step(g, e, 2 * MAX_ROWS, &n, &err), &err);
        for (size_t i = 0; i < n; i++) {
            struct run *x = runs;

            while (x->seq != e[i].seq)
                x++;
            take_event(x, &e[i], record);
        }
        for (size_t i = 0; i < n_run; i++)
            if (runs[i].done && runs[i].seq) {
                finish(&runs[i]);
                n_done++;
            }
        assert_true(step < 20000);
    }
}

static void drive_one(esp_engine *g, struct request *r, bool record)
{
    struct run x = {.r = r};

    drive(g, &x, 1, record);
}

static void drive_many(esp_engine *g, uint32_t n)
{
    struct run runs[MAX_ROWS];

    memset(runs, 0, sizeof runs);
    for (uint32_t i = 0; i < n; i++) {
        runs[i].r = &requests[rnd(N_REQUEST)];
        runs[i].start = rnd(10);
    }
    drive(g, runs, n, false);
}

static void check_drained(esp_engine *g)
{
    esp_stats st;

    esp_engine_stats(g, &st);
    assert_int_equal(st.rows_active, 0);
    assert_int_equal(st.rows_waiting, 0);
}

static void solo(const char *kv, const char *act)
{
    esp_engine *g = open_engine(1, (esp_engine_opts){.max_seqs = 1, .kv = kv, .act = act});

    for (int i = 0; i < N_REQUEST; i++)
        drive_one(g, &requests[i], true);
    esp_engine_close(g);
}

/* Batches of 1 to 16 with random arrivals, any chunk, with pools from ample to so small that rows are put
 * back; every step-th of the engines. */
static void check_batches(const char *kv, const char *act, uint32_t step)
{
    static const uint32_t chunks[] = {16, 53, 300};
    uint64_t all_cached = 0, all_preempted = 0;

    for (uint32_t i = 0; i < 6; i += step) {
        esp_engine_opts o = {.max_seqs = MAX_ROWS,
                             .rows = i % 2 ? 5 : 0,
                             .kv_tokens = i < 3 ? 16 * 768 : 4 * 768,
                             .admission = i == 0       ? ESP_ADMISSION_OPEN
                                          : i % 3 == 0 ? ESP_ADMISSION_WORST
                                                       : ESP_ADMISSION_EXPECTED,
                             .expected_new = 1,
                             .chunk = chunks[i % 3],
                             .max_stall_ms = i == 2,
                             .checkpoints = i % 2 ? 6 : 40,
                             .checkpoint_every = i % 2 ? 100 : 0,
                             .checkpoints_per_path = 3,
                             .snapshots = 2,
                             .kv = kv,
                             .act = act};
        esp_engine *g = open_engine(1 + i % 2, o);

        for (uint32_t n = 1; n <= MAX_ROWS; n += 7) {
            drive_many(g, n);
            all_cached += cached;
            all_preempted += preempted;
        }
        check_drained(g);
        esp_engine_close(g);
    }
    assert_true(all_cached > 1000);
    print_message("%s: cached tokens %llu, preemptions %llu\n", folder, (unsigned long long)all_cached,
                  (unsigned long long)all_preempted);
}

static void check_model(const char *kv, const char *act, uint32_t step)
{
    make_requests();
    solo(kv, act);
    check_batches(kv, act, step);
}

static void test_tiny(void **state)
{
    (void)state;
    check_model("f32", "f32", 1);
}

static void test_demo(void **state)
{
    (void)state;
    check_model(NULL, "auto", 5); /* the first and the last: unlike in everything */
}

/* So few pages that a growing row must push another one out, which later goes on with the same bits. */
static void test_preemption(void **state)
{
    esp_engine_opts o = {.context = 512,
                         .max_seqs = 4,
                         .kv_tokens = 512 + 256,
                         .kv_start = usual.kv_start ? 20 : 0, /* codes of 256 positions end while rows grow */
                         .admission = ESP_ADMISSION_EXPECTED,
                         .expected_new = 1};
    enum { LONG = 60 };
    esp_token want[4][LONG], prompt[250];
    int n_preempted = 0;
    esp_error err;

    (void)state;
    for (int i = 0; i < 250; i++)
        prompt[i] = (esp_token)(i * 13 % 500);
    for (int round = 0; round < 3; round++) { /* alone, together, together with a cache */
        esp_engine *g;
        esp_seq *s[4];
        size_t got[4] = {0};
        int n_done = 0;

        o.checkpoints = round == 2 ? 4 : 0;
        g = open_engine(1, o);
        for (int i = 0; i < 4; i++) {
            test_ok(esp_seq_open(&s[i], g, &(esp_seq_opts){.sampling = {.ignore_end = true}}, &err), &err);
            test_ok(esp_seq_append(s[i], prompt + i, 230 + (size_t)i, &err), &err);
            if (round)
                test_ok(esp_seq_generate(s[i], LONG, &err), &err);
        }
        for (int i = 0; n_done < 4; i++) {
            esp_event e[8];
            size_t n;

            if (round == 0 && n_done == i && i < 4)
                test_ok(esp_seq_generate(s[i], LONG, &err), &err);
            else if (round == 0)
                i--;
            test_ok(esp_engine_step(g, e, 8, &n, &err), &err);
            for (size_t j = 0; j < n; j++) {
                int k = 0;

                while (s[k] != e[j].seq)
                    k++;
                if (e[j].finish == ESP_FINISH_FAILED)
                    fail_msg("%s", e[j].message);
                if (round == 0)
                    want[k][got[k]] = e[j].token;
                assert_int_equal(e[j].token, want[k][got[k]++]);
                n_done += e[j].finish != ESP_FINISH_NONE;
            }
        }
        for (int i = 0; i < 4; i++) {
            esp_usage u;

            assert_int_equal(got[i], LONG);
            esp_seq_usage(s[i], &u);
            n_preempted += (int)u.preemptions;
            esp_seq_close(s[i]);
        }
        check_drained(g);
        esp_engine_close(g);
    }
    assert_true(n_preempted >= 2);
}

/* ---- chats ---- */

enum { TURNS = 20, USER = 23, CHAT = TURNS * (USER + N_NEW) };

static size_t chat_turn(esp_engine *g, esp_token *text, size_t n, size_t *reused)
{
    esp_seq_opts so = {.sampling = {.ignore_end = true}};
    esp_seq *s;
    esp_usage u;
    esp_error err;
    bool done = false;

    test_ok(esp_seq_open(&s, g, &so, &err), &err);
    test_ok(esp_seq_append(s, text, n, &err), &err);
    test_ok(esp_seq_generate(s, N_NEW, &err), &err);
    while (!done) {
        esp_event e[4];
        size_t got;

        test_ok(esp_engine_step(g, e, 4, &got, &err), &err);
        for (size_t i = 0; i < got; i++) {
            if (e[i].token >= 0)
                text[n++] = e[i].token;
            done |= e[i].finish != ESP_FINISH_NONE;
        }
    }
    esp_seq_usage(s, &u);
    *reused += u.cached_tokens;
    esp_seq_close(s);
    return n;
}

static void add_user(esp_token *text, size_t *n, int turn)
{
    for (int i = 0; i < USER; i++)
        text[(*n)++] = (esp_token)((turn * 31 + i * 7) % 500);
}

static void chat(esp_engine *g, int first, int last, esp_token *text, size_t *n, double *share)
{
    size_t reused = 0, possible = 0;

    for (int t = first; t < last; t++) {
        possible += *n ? *n - 1 : 0; /* what stood there, but for the last token, which never ran */
        add_user(text, n, t);
        *n = chat_turn(g, text, *n, &reused);
    }
    *share = possible ? (double)reused / (double)possible : 0;
}

/* Twenty turns reuse what they can; so does a new engine over the files of the old one; an edited message
 * reuses what stands before it. All with the tokens of an engine without cache. */
static void test_chat(void **state)
{
    static esp_token cold[CHAT], warm[CHAT];
    esp_engine_opts o = {
        .max_seqs = 2, .checkpoints = 24, .kv_tokens = 4 * CONTEXT, .cache_dir = test_tmpdir()};
    esp_engine *off = open_engine(2, (esp_engine_opts){.max_seqs = 1}), *g = open_engine(2, o);
    size_t n = 0, m = 0, reused = 0, edited;
    esp_stats st;
    double share;

    (void)state;
    chat(off, 0, TURNS, cold, &n, &share);
    assert_true(share == 0);
    chat(g, 0, TURNS / 2, warm, &m, &share);
    assert_true(share >= 0.95);
    esp_engine_close(g);
    g = open_engine(2, o); /* a restart */
    esp_engine_stats(g, &st);
    assert_true(st.disk_bytes > 0 && st.cache_texts == 0);
    chat(g, TURNS / 2, TURNS, warm, &m, &share);
    assert_true(share >= 0.95);
    esp_engine_stats(g, &st);
    assert_int_equal(st.disk_restored, 1);
    assert_int_equal(n, m);
    assert_memory_equal(cold, warm, sizeof cold);
    /* Change a token of the user's message of turn 10. */
    edited = 10 * (USER + N_NEW) + 5;
    cold[edited] = warm[edited] = 1;
    n = m = 11 * (USER + N_NEW);
    n = chat_turn(off, cold, n, &reused);
    assert_int_equal(reused, 0);
    m = chat_turn(g, warm, m, &reused);
    assert_true(reused <= edited && reused + USER + 1 >= edited - 2); /* the end of turn 9 */
    assert_int_equal(n, m);
    assert_memory_equal(cold, warm, n * sizeof *cold);
    esp_engine_close(off);
    esp_engine_close(g);
}

/* ---- files ---- */

static size_t count_files(const char *dir, const char *part, char *name)
{
    DIR *d = opendir(dir);
    size_t n = 0;

    if (!d)
        return 0;
    for (const struct dirent *f = readdir(d); f; f = readdir(d))
        if (strstr(f->d_name, part) && f->d_name[0] != '.') {
            n++;
            snprintf(name, 512, "%s/%s", dir, f->d_name);
        }
    closedir(d);
    return n;
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    int c;

    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    c = fgetc(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    fputc(c ^ 1, f);
    fclose(f);
}

/* Damaged files are put aside and the text is computed; files of another setting are not even looked at. */
static void test_files(void **state)
{
    static const long at[] = {0, 9, 20, 60, 4096 + 8, 8192 + 100, -1};
    esp_engine_opts o = {.max_seqs = 1, .checkpoints = 8, .kv_tokens = 2048, .cache_dir = test_tmpdir()};
    char ns[512], file[512], other[512];
    struct request *r = &requests[0];
    esp_engine *g;
    esp_stats st;

    (void)state;
    r->n = 300;
    g = open_engine(1, (esp_engine_opts){.max_seqs = 1});
    drive_one(g, r, true);
    esp_engine_close(g);
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        g = open_engine(1, o);
        drive_one(g, r, false);
        assert_int_equal(cached, 0);
        esp_engine_close(g);
        assert_int_equal(count_files(o.cache_dir, "", ns), 1);
        assert_int_equal(count_files(ns, ".esp", file), 1);
        g = open_engine(1, o); /* sound: the prompt is known */
        drive_one(g, r, false);
        assert_int_equal(cached, 299);
        esp_engine_close(g);
        assert_int_equal(count_files(ns, ".esp", file), 1);
        flip(file, at[i]);
        test_write(ns, "0123.tmp", "x", 1);
        g = open_engine(1, o);
        drive_one(g, r, false);
        assert_int_equal(cached, 0);
        esp_engine_stats(g, &st);
        assert_int_equal(st.disk_restored, 0);
        assert_int_equal(count_files(ns, ".tmp", other), 0);
        snprintf(other, sizeof other, "%.480s/quarantine", ns);
        assert_int_equal(count_files(other, ".esp", file), 1);
        unlink(file);
        esp_engine_close(g);
        count_files(ns, ".esp", file);
        unlink(file); /* written anew by the last engine */
    }
    o.kv = "f32"; /* another namespace */
    g = open_engine(1, o);
    esp_engine_stats(g, &st);
    assert_int_equal(st.disk_bytes, 0);
    esp_engine_close(g);
    assert_int_equal(count_files(o.cache_dir, "", ns), 2);
}

/* The oldest files go when the cap is reached, and a text too large for it is not written at all. */
static void test_disk_cap(void **state)
{
    esp_engine_opts o = {.max_seqs = 1,
                         .checkpoints = 30,
                         .kv_tokens = 8192,
                         .cache_dir = test_tmpdir(),
                         .kv = "f32",
                         .act = "f32"};
    esp_engine *g = open_engine(1, o);
    esp_stats st;
    uint64_t one;
    esp_error err;

    (void)state;
    for (int i = 0; i < 4; i++)
        drive_one(g, &requests[i], true);
    test_ok(esp_engine_flush(g, &err), &err);
    esp_engine_stats(g, &st);
    one = st.disk_bytes;
    assert_true(one > 0 && st.disk_failed == 0 && st.disk_saved >= 3);
    esp_engine_close(g);
    o.cache_disk = one * 2 / 3;
    g = open_engine(1, o);
    esp_engine_stats(g, &st);
    assert_true(st.disk_bytes > 0 && st.disk_bytes <= o.cache_disk);
    esp_engine_close(g);
    o.cache_disk = 1000;
    g = open_engine(1, o);
    drive_one(g, &requests[1], false);
    assert_int_equal(esp_engine_flush(g, &err), ESP_EIO);
    esp_engine_stats(g, &st);
    assert_int_equal(st.disk_bytes, 0);
    esp_engine_close(g);
    o.cache_dir = "/dev/null/x";
    test_refused(esp_engine_open(&g, models[1], &o, &err), ESP_EIO, &err, "/dev/null/x");
}

/* Other salts, and sequences that keep out, never share. */
static void test_apart(void **state)
{
    esp_engine *g = open_engine(1, (esp_engine_opts){.max_seqs = 1, .checkpoints = 8, .kv_tokens = 4096});
    struct request *r = &requests[0], again;
    esp_stats st;

    (void)state;
    again = *r;
    drive_one(g, r, true);
    drive_one(g, r, false);
    assert_true(cached == r->n - 1);
    again.opts.cache_salt = 1;
    drive_one(g, &again, true);
    assert_int_equal(cached, 0);
    drive_one(g, &again, false);
    assert_true(cached == r->n - 1);
    again.opts.no_cache = true;
    drive_one(g, &again, false);
    assert_int_equal(cached, 0);
    esp_engine_stats(g, &st);
    assert_int_equal(st.cache_hits, 2);
    assert_int_equal(st.cache_hit_tokens, 2 * (r->n - 1));
    assert_int_equal(st.cache_miss_new, 2);
    esp_engine_close(g);
}

static int group(const char *name, const struct CMUnitTest *tests, size_t n)
{
    esp_error err;
    int failed;

    folder = name;
    for (uint32_t t = 1; t <= 2; t++)
        if (esp_model_open(&models[t], test_path(name), &(esp_model_opts){.threads = t}, &err) != ESP_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
    failed = _cmocka_run_group_tests(name, tests, n, NULL, NULL);
    esp_model_close(models[1]);
    esp_model_close(models[2]);
    return failed;
}

int main(void)
{
    const struct CMUnitTest tiny[] = {cmocka_unit_test(test_tiny),     cmocka_unit_test(test_preemption),
                                      cmocka_unit_test(test_chat),     cmocka_unit_test(test_files),
                                      cmocka_unit_test(test_disk_cap), cmocka_unit_test(test_apart)};
    const struct CMUnitTest demo[] = {cmocka_unit_test(test_demo), cmocka_unit_test(test_chat)};
    int failed;

    failed = group("models/tiny-text", tiny, sizeof tiny / sizeof tiny[0]) |
             group("models/demo", demo, TEST_SANITIZED ? 1 : sizeof demo / sizeof demo[0]); /* tiny chats */
    if (TEST_SANITIZED)
        return failed;
    usual = (esp_engine_opts){.kv = "turbo:k8v4"}; /* the same promises over coded keys and values */
    failed |= group("models/demo", demo, sizeof demo / sizeof demo[0]);
    usual = (esp_engine_opts){.kv = "q4", .kv_start = 75, .state = "q8"};
    return failed | group("models/tiny-text", tiny, sizeof tiny / sizeof tiny[0]);
}
