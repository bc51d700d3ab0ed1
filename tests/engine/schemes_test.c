/*
 * One answer to a prompt under every way of keeping keys, values and states: requests of the base model and
 * of an adapter give the same tokens, log-probabilities and ends alone, among 1 to 16 rows with random
 * arrivals, in any cut, from a cached prefix, from files of an engine before, with every drafter, put back
 * and resumed, on one thread and on two. All caches share one folder: what one scheme kept is never
 * another's. A few schemes and schedules by default; every scheme with ESPALIER_TEST_LONG, of which K/N runs
 * a share. With ESPALIER_TEST_DEVICE it runs there. What cannot be combined is refused by name, when an
 * engine opens.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/drafts.h"
#include "support/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_MOST = 16, /* requests: where everything is tried, usually, and by default */
    N_LONG = 6,
    N_SHORT = 3,
    CONTEXT = 320,
    N_NEW = 12,
    MAX_NAME = 32,
    SPREAD = 16,    /* steps in which requests arrive */
    MAX_WAYS = 256, /* of keeping */
    START = 131     /* exact positions: more than a page of them, and no multiple of anything */
};

struct way { /* of keeping: what an engine's options say */
    char kv[MAX_NAME];
    uint32_t start;
    const char *state;
    bool all; /* all numbers of rows, every cut */
};

static const char *const states[] = {"f32", "bf16", "q8"};
static esp_model *models[2]; /* one thread, two */
static esp_adapter *adapters[2];
static struct test_text texts[N_MOST];
static esp_token *ids;
static uint32_t n_text;
static struct way ways[MAX_WAYS];
static uint32_t n_way;
static const struct way *now;
static const char *dir, *files[2];
static uint64_t rng = 4711, accepted[ESP_SPEC_DRAFT + 1];

static uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

/* ---- what is run ---- */

/* A third of the requests is the adapter's, at two strengths. */
static void make_texts(void)
{
    static const size_t lengths[] = {249, 62, 33, 1, 250, 140}; /* two grow over the border of their page */

    test_texts(texts, N_MOST, &ids);
    for (uint32_t i = 0; i < N_MOST; i++) {
        texts[i].n = lengths[i % 6];
        texts[i].n_new = N_NEW;
        texts[i].opts.n_adapters = i % 3 == 0;
        texts[i].opts.adapters[0].scale = i % 2 ? 0.5f : 1.0f;
    }
}

static void add(const char *kv, uint32_t start, const char *state, bool all)
{
    const bool device = getenv("ESPALIER_TEST_DEVICE") != NULL; /* has neither starts nor coded states */
    struct way *w = &ways[n_way++];

    start = device ? 0 : start;
    state = device ? "f32" : state;
    assert_true(n_way <= MAX_WAYS && strlen(kv) < MAX_NAME);
    *w = (struct way){.start = start, .state = state, .all = all};
    snprintf(w->kv, MAX_NAME, "%s", kv);
}

/* Files by names of their own: "1" and "2". */
static const char *kv_of(const struct way *w)
{
    return w->kv[0] == '1' || w->kv[0] == '2' ? files[w->kv[0] - '1'] : w->kv;
}

/* Every scheme once, with starts and states in turn; the usual ones with all of both. */
static void every_way(void)
{
    static const char *const usual[] = {"bf16", "f32", "q8", "q6", "q4", "turbo", "turbo:k4v4", "1"};
    static const uint8_t k[] = {8, 5, 4, 2}, v[] = {8, 5, 4, 3, 2};
    static const char *const affine[] = {"q8:g32", "q8:g128", "q6:g32", "q6:g128", "q4:g32", "q4:g128", "2"};
    char name[MAX_NAME];
    uint32_t turn = 0;

    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        for (uint32_t at = 0; at < 6; at++)
            add(usual[i], at / 3 * START, states[at % 3], at == 5 && (i % 2 == 0 || i == 5));
    for (size_t i = 0; i < sizeof affine / sizeof *affine; i++, turn++)
        add(affine[i], turn % 2 ? START : 0, states[turn % 3], false);
    for (uint32_t i = 0; i < 60; i++, turn++) {
        snprintf(name, sizeof name, "turbo:k%dv%d%s", k[i / 5 % 4], v[i % 5],
                 i < 20   ? ""
                 : i < 40 ? ":least"
                          : ":own");
        add(name, turn % 2 ? START : 0, states[turn % 3], false);
    }
}

static void some_ways(void)
{
    add("q8:g32", START, "f32", false);
    add("turbo", 0, "q8", false);
    if (TEST_SANITIZED)
        return;
    add("bf16", 0, "bf16", false);
    add("f32", 0, "f32", false);
    add("q6", 0, "q8", false);
    add("q4", START, "f32", false);
    add("turbo:k4v4:least", START, "bf16", false);
    add("turbo:k2v2:own", 0, "f32", false);
    add("1", 0, "f32", false);
}

static void make_files(void)
{
    static const char a[] = "[{\"layer_idx\": 7, \"scheme\": \"turbo:k8v4:own\"}]"; /* layer 3: bf16 */
    static const char b[] = "[{\"layer_idx\": 3, \"bits\": 6, \"group_size\": 32},"
                            " {\"layer_idx\": 7, \"scheme\": \"f32\"}]";

    files[0] = test_write(test_tmpdir(), "kv_config.json", a, sizeof a - 1);
    files[1] = test_write(test_tmpdir(), "kv_config.json", b, sizeof b - 1);
}

/* ---- running it ---- */

static esp_engine_opts options(uint32_t rows)
{
    return (esp_engine_opts){.context = CONTEXT,
                             .max_seqs = N_MOST,
                             .rows = rows,
                             .queue = N_MOST,
                             .kv_tokens = (uint64_t)(rows + 1) * 512,
                             .chunk = 16 + rnd(150),
                             .snapshots = 1,
                             .max_rank = 8};
}

static esp_engine *open_engine(int threads, esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    o.device = getenv("ESPALIER_TEST_DEVICE");
    o.draft_model = models[threads];
    o.kv = kv_of(now);
    o.kv_start = now->start;
    o.state = now->state;
    test_ok(esp_engine_open(&g, models[threads], &o, &err), &err);
    for (uint32_t i = 0; i < n_text; i++)
        texts[i].opts.adapters[0].adapter = adapters[threads];
    return g;
}

static esp_stats drive(esp_engine *g, uint32_t arrivals)
{
    struct test_run runs[N_MOST];
    esp_stats st;

    for (uint32_t i = 0; i < n_text; i++)
        runs[i] = (struct test_run){.r = &texts[i], .start = rnd(arrivals)};
    test_drive(g, runs, n_text, false);
    esp_engine_stats(g, &st);
    return st;
}

static esp_stats run(int threads, esp_engine_opts o, uint32_t arrivals)
{
    esp_engine *g = open_engine(threads, o);
    esp_stats st = drive(g, arrivals);

    esp_engine_close(g);
    return st;
}

static void record(void)
{
    esp_engine *g = open_engine(0, options(1));

    for (uint32_t i = 0; i < n_text; i++) {
        struct test_run x = {.r = &texts[i]};

        test_drive(g, &x, 1, true);
    }
    esp_engine_close(g);
}

static void check_batches(void)
{
    if (!test_long()) {
        run(1, options(2 + rnd(2)), SPREAD);
        return;
    }
    for (uint32_t rows = now->all ? 1 : 1 + rnd(6); rows <= 16; rows += now->all ? 1 : 5)
        run((int)rows % 2, options(rows), SPREAD);
}

static void check_cuts(void)
{
    esp_engine *g = open_engine(0, options(1));
    struct test_text *r = &texts[0]; /* over the border of a page, with the adapter; greedy */
    esp_error err;

    for (size_t cut = 1 + rnd(49); cut < r->n; cut += now->all ? 11 : test_long() ? 61 : 200) {
        esp_seq *s;

        test_ok(esp_seq_open(&s, g, &r->opts, &err), &err);
        test_ok(esp_seq_append(s, r->prompt, cut, &err), &err);
        test_ok(esp_seq_generate(s, 0, &err), &err);
        assert_int_equal(test_next_event(g).finish, ESP_FINISH_LENGTH);
        test_ok(esp_seq_append(s, r->prompt + cut, r->n - cut, &err), &err);
        test_text_expect(g, s, r, 0, 5);
        esp_seq_close(s);
    }
    esp_engine_close(g);
}

/* The second time from the cache, the third time from files; what other schemes left is not there. */
static void check_prefixes(void)
{
    esp_engine_opts o = options(3);
    esp_stats cold, warm, disk;
    esp_engine *g;
    esp_error err;

    o.checkpoints = 8 * N_MOST;
    o.checkpoint_every = 64;
    o.kv_tokens = (uint64_t)(n_text + 4) * 512;
    /* bf16 and f32 are exact anywhere, so a start does not make their texts others */
    o.cache_dir = now->start && strstr("bf16 f32", now->kv) ? test_tmpdir() : dir;
    if (getenv("ESPALIER_TEST_DEVICE")) /* files need memory that the host can read */
        o.cache_dir = NULL;
    g = open_engine(test_long(), o);
    cold = drive(g, SPREAD);
    warm = drive(g, SPREAD);
    if (o.cache_dir)
        test_ok(esp_engine_flush(g, &err), &err);
    esp_engine_close(g);
    assert_int_equal(cold.cache_hit_tokens, 0);
    assert_int_equal(cold.disk_restored, 0);
    assert_true(warm.cache_hit_tokens > n_text * 50);
    if (!o.cache_dir)
        return;
    disk = run(0, o, SPREAD);
    assert_true(disk.disk_restored >= n_text / 2);
    assert_int_equal(disk.disk_failed, 0);
}

static void check_drafters(void)
{
    const esp_spec first = test_long() ? ESP_SPEC_MTP : ESP_SPEC_MTP + (esp_spec)rnd(3);

    for (esp_spec k = first; k <= (test_long() ? ESP_SPEC_DRAFT : first); k++) {
        esp_engine_opts o = options(1 + rnd(5));
        esp_stats st;

        o.spec = k;
        o.spec_tokens = 1 + rnd(6);
        o.spec_always = true;
        st = run((int)rnd(2), o, SPREAD);
        assert_true(st.spec_drafted > 0);
        accepted[k] += st.spec_accepted;
    }
}

/* Two pages, where one request grows to two and others run. */
static void check_preempted(void)
{
    esp_engine_opts o = options(5);

    o.chunk = CONTEXT;
    o.admission = ESP_ADMISSION_EXPECTED;
    o.expected_new = 1;
    o.kv_tokens = 512;
    o.spec = test_long() ? (esp_spec)rnd(ESP_SPEC_DRAFT + 1) : ESP_SPEC_OFF;
    if (now->start == 0) /* exact positions have pages of their own beside these */
        assert_true(run(0, o, 1).preemptions > 0);
    else
        run(0, o, SPREAD);
}

static void test_identity(void **state)
{
    const char *part = getenv("ESPALIER_TEST_LONG");
    uint32_t first = 0, step = 1;

    (void)state;
    if (part && sscanf(part, "%u/%u", &first, &step) == 2 && step)
        first %= step;
    for (uint32_t i = first; i < n_way; i += step) {
        now = &ways[i];
        n_text = !test_long() ? N_SHORT : now->all ? N_MOST : N_LONG;
        if (test_long())
            print_message("%s from %u, state %s\n", now->kv, now->start, now->state);
        record();
        check_batches();
        check_cuts();
        check_prefixes();
        check_drafters();
        check_preempted();
    }
    printf("%u ways; drafts right: mtp %llu, ngram %llu, draft %llu\n", n_way,
           (unsigned long long)accepted[ESP_SPEC_MTP], (unsigned long long)accepted[ESP_SPEC_NGRAM],
           (unsigned long long)accepted[ESP_SPEC_DRAFT]);
    assert_true(accepted[ESP_SPEC_MTP] + accepted[ESP_SPEC_NGRAM] + accepted[ESP_SPEC_DRAFT] > 0);
}

/* ---- what is refused ---- */

static void refuse(esp_engine_opts o, esp_status status, const char *part)
{
    esp_memory_plan p;
    esp_engine *g = NULL;
    esp_error err;

    test_refused(esp_engine_plan(models[0], &o, &p, &err), status, &err, part);
    test_refused(esp_engine_open(&g, models[0], &o, &err), status, &err, part);
    assert_null(g);
}

/* Each for its own reason, whatever else is asked for, and before a device is opened. */
static void test_refusals(void **state)
{
    const char *const coded[] = {"q8", "q6:g32", "q4", "turbo:k8v3", "turbo:k2v2:own", files[0], files[1]};
    char message[128];
    esp_engine_opts o = {.context = CONTEXT, .device = "cuda", .kv_start = START};

    (void)state;
    for (size_t i = 0; i < sizeof coded / sizeof *coded; i++) {
        o.kv = coded[i];
        refuse(o, ESP_EUNSUPPORTED,
               "device cuda codes keys and values from the first position on; kv_start 131");
    }
    o.kv = NULL;
    o.kv_start = 0;
    for (int i = 1; i < 3; i++) {
        snprintf(message, sizeof message, "device cuda keeps recurrent states as f32; state %s", states[i]);
        o.state = states[i];
        refuse(o, ESP_EUNSUPPORTED, message);
    }
    o = (esp_engine_opts){.context = CONTEXT, .kv = "turbo", .kv_start = CONTEXT + 1};
    refuse(o, ESP_EINVAL, "kv_start 321; at most the context, 320, is possible");
    o.kv_start = CONTEXT;                                             /* all of a text may be exact */
    for (o.spec = ESP_SPEC_OFF; o.spec <= ESP_SPEC_DRAFT; o.spec++) { /* and on the CPU nothing excludes it */
        esp_memory_plan p;
        esp_error err;

        o.draft_model = models[0];
        o.cache_dir = dir;
        o.checkpoints = 4;
        o.max_rank = 8;
        o.state = states[o.spec % 3];
        test_ok(esp_engine_plan(models[0], &o, &p, &err), &err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_identity), cmocka_unit_test(test_refusals)};
    esp_error err;
    int failed;

    test_need_device();
    if (getenv("ESPALIER_TEST_FILTER"))
        cmocka_set_test_filter(getenv("ESPALIER_TEST_FILTER"));
    for (uint32_t i = 0; i < 2; i++) {
        test_ok(
            esp_model_open(&models[i], test_path("models/demo"), &(esp_model_opts){.threads = i + 1}, &err),
            &err);
        test_ok(esp_adapter_open(&adapters[i], models[i], test_path("models/demo-lora-caps"), &err), &err);
    }
    dir = test_tmpdir();
    make_files();
    make_texts();
    if (test_long())
        every_way();
    else
        some_ways();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        esp_adapter_close(adapters[i]);
        esp_model_close(models[i]);
    }
    free(ids);
    return failed;
}
