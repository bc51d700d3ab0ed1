/*
 * One answer to a prompt, however it is run: chat tasks and prose, greedy and seeded, give the same tokens,
 * log-probabilities and ends alone, among 1 to 16 rows with random arrivals, in every cut, from a cached
 * prefix or none, from files of an engine before, with every drafter, put back and resumed, on one thread or
 * two, and with all of that at once. A few prompts by default; 200 and every combination named here with
 * ESPALIER_TEST_LONG. engine.identity says the same of random tokens and of each precision.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/drafts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/npy.h"

enum {
    N_LONG = 200,
    N_SHORT = 8,
    GROUP = 20, /* requests in flight */
    CONTEXT = 320,
    MAX_PROMPT = 256,
    N_NEW = 16,
    N_KIND = 8 /* of prompts, in turn */
};

static esp_model *models[2]; /* one thread, two */
static struct test_text texts[N_LONG];
static esp_token prompts[N_LONG][MAX_PROMPT];
static uint32_t n_text;
static uint64_t rng = 2024;

static uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

/* ---- prompts ---- */

static const char *word(void)
{
    static const char *const words[] = {"river", "stone",  "candle", "garden", "window", "horse",
                                        "bread", "silver", "winter", "letter", "boat",   "music"};

    return words[rnd(sizeof words / sizeof words[0])];
}

/* A task that the model was trained on, as a chat. */
static size_t chat_prompt(uint32_t kind, esp_token *out)
{
    char messages[400];
    size_t n = 0;
    esp_error err;

    switch (kind) {
    case 0:
        snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"Repeat: %s %s %s %s\"}]",
                 word(), word(), word(), word());
        break;
    case 1:
        snprintf(messages, sizeof messages, "[{\"role\":\"user\",\"content\":\"What is %u + %u?\"}]", rnd(90),
                 rnd(90));
        break;
    case 2:
        snprintf(
            messages, sizeof messages,
            "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Sort: %s %s "
            "%s\"},{\"role\":\"assistant\",\"content\":\"%s\"},{\"role\":\"user\",\"content\":\"Spell: "
            "%s\"}]",
            word(), word(), word(), word(), word());
        break;
    default:
        snprintf(messages, sizeof messages,
                 "[{\"role\":\"user\",\"content\":\"Continue this passage:\\n\\nThe %s and the %s lay beside "
                 "the %s when the %s came.\"}]",
                 word(), word(), word(), word());
        break;
    }
    test_ok(esp_tokenize_chat(models[0], messages, NULL, out, MAX_PROMPT, &n, &err), &err);
    assert_in_range(n, 1, MAX_PROMPT);
    return n;
}

static void make_texts(void)
{
    uint32_t rows, cols;
    int32_t *ids = test_npy(test_path("models/demo-golden/val.npy"), &rows, &cols);

    n_text = test_long() ? N_LONG : N_SHORT;
    for (uint32_t i = 0; i < n_text; i++) {
        struct test_text *r = &texts[i];
        uint32_t kind = i % N_KIND;

        r->prompt = prompts[i];
        if (kind < 4) {
            r->n = chat_prompt(kind, prompts[i]);
        } else { /* prose; some grow over the border of their page */
            r->n = kind >= 6 ? 242 + rnd(14) : 1 + rnd(130);
            memcpy(prompts[i], ids + (size_t)(i % rows) * cols + rnd(700), r->n * sizeof **prompts);
        }
        r->n_new = N_NEW;
        r->opts.logprobs = true;
        r->opts.sampling.ignore_end = kind >= 4;
        r->opts.sampling.seed = i;
        if ((i + i / N_KIND) % 2) {
            r->opts.sampling.temperature = 0.8f;
            r->opts.sampling.top_p = 0.95f;
            r->opts.sampling.repetition_penalty = kind % 2 ? 1.1f : 0;
        }
    }
    free(ids);
}

/* ---- running them ---- */

static esp_engine_opts options(uint32_t rows)
{
    return (esp_engine_opts){.context = CONTEXT,
                             .max_seqs = GROUP,
                             .rows = rows,
                             .queue = GROUP,
                             .kv_tokens = (uint64_t)GROUP * 2 * 256,
                             .chunk = 64,
                             .snapshots = 1};
}

static esp_engine *open_engine(int threads, esp_engine_opts o)
{
    esp_engine *g;
    esp_error err;

    o.draft_model = models[threads];
    test_ok(esp_engine_open(&g, models[threads], &o, &err), &err);
    return g;
}

/* All requests, a group at a time, in a random order of arrival. */
static esp_stats drive_all(esp_engine *g, bool record)
{
    esp_stats st;

    for (uint32_t first = 0; first < n_text; first += GROUP) {
        struct test_run runs[GROUP];
        uint32_t n = n_text - first < GROUP ? n_text - first : GROUP;

        for (uint32_t i = 0; i < n; i++)
            runs[i] = (struct test_run){.r = &texts[first + i], .start = record ? 0 : rnd(24)};
        for (uint32_t i = 0; i < n && record; i++)
            test_drive(g, &runs[i], 1, true);
        if (!record)
            test_drive(g, runs, n, false);
    }
    esp_engine_stats(g, &st);
    return st;
}

static esp_stats run(int threads, esp_engine_opts o)
{
    esp_engine *g = open_engine(threads, o);
    esp_stats st = drive_all(g, false);

    esp_engine_close(g);
    return st;
}

static void test_batches(void **state)
{
    static const uint32_t chunks[] = {20, 31, 64, 100, 512};

    (void)state;
    for (uint32_t rows = 1; rows <= 16; rows += test_long() ? 1 : 7) {
        esp_engine_opts o = options(rows);

        o.chunk = chunks[rnd(5)];
        run(rows % 3 == 2, o);
    }
}

/* A prompt in two pieces, at every place. */
static void test_cuts(void **state)
{
    esp_engine *g = open_engine(0, options(1));
    uint32_t n_cut = 0;
    esp_error err;

    (void)state;
    for (uint32_t i = 0; i < n_text; i += test_long() ? 7 : N_KIND + 3) {
        struct test_text *r = &texts[i];
        size_t step = test_long() && r->n < 100 ? 1 : 5 + rnd(20);

        for (size_t cut = 1; cut < r->n; cut += step, n_cut++) {
            esp_seq *s;

            test_ok(esp_seq_open(&s, g, &r->opts, &err), &err);
            test_ok(esp_seq_append(s, r->prompt, cut, &err), &err);
            test_ok(esp_seq_generate(s, 0, &err), &err);
            assert_int_equal(test_next_event(g).finish, ESP_FINISH_LENGTH);
            test_ok(esp_seq_append(s, r->prompt + cut, r->n - cut, &err), &err);
            if (r->finish == ESP_FINISH_LENGTH)
                test_text_expect(g, s, r, 0, 4);
            esp_seq_close(s);
        }
    }
    printf("%u cuts\n", n_cut);
    esp_engine_close(g);
}

/* The second time from the cache, the third time from files. */
static void test_prefixes(void **state)
{
    esp_engine_opts o = options(5);
    esp_stats cold, warm, disk;
    esp_engine *g;
    esp_error err;

    (void)state;
    o.checkpoints = 200;
    o.checkpoint_every = 64;
    o.kv_tokens = (uint64_t)(n_text + GROUP) * 2 * 256;
    o.cache_dir = test_tmpdir();
    g = open_engine(0, o);
    cold = drive_all(g, false);
    warm = drive_all(g, false);
    test_ok(esp_engine_flush(g, &err), &err);
    esp_engine_close(g);
    disk = run(0, o);
    printf("%llu and %llu tokens from the cache, %llu files read\n",
           (unsigned long long)cold.cache_hit_tokens, (unsigned long long)warm.cache_hit_tokens,
           (unsigned long long)disk.disk_restored);
    assert_true(warm.cache_hit_tokens > cold.cache_hit_tokens + n_text);
    assert_true(disk.disk_restored > n_text / 8);
}

static void test_drafters(void **state)
{
    (void)state;
    for (esp_spec k = ESP_SPEC_MTP; k <= ESP_SPEC_DRAFT; k++)
        for (uint32_t way = 0; way < (test_long() ? 3 : 1); way++) {
            esp_engine_opts o = options(1 + way * 3);
            esp_stats st;

            o.spec = k;
            o.spec_tokens = way == 0 ? 0 : 2 * way; /* the usual one first */
            o.spec_always = way != 2;
            st = run(way == 1, o);
            printf("%s %u: %llu of %llu right\n", st.spec_name, o.spec_tokens,
                   (unsigned long long)st.spec_accepted, (unsigned long long)st.spec_drafted);
            assert_true(st.spec_accepted > 0);
            if (k == ESP_SPEC_DRAFT) /* it is the model itself, to the bit */
                assert_int_equal(st.spec_accepted, st.spec_drafted);
        }
}

/* Too few pages for what is admitted. */
static esp_engine_opts tight(uint32_t rows)
{
    esp_engine_opts o = options(rows);

    o.admission = ESP_ADMISSION_EXPECTED;
    o.expected_new = 1;
    o.kv_tokens = (uint64_t)(rows > 2 ? rows : 2) * 256;
    return o;
}

static void test_preempted(void **state)
{
    uint64_t n = 0;

    (void)state;
    for (uint32_t rows = 2; rows <= (test_long() ? 8u : 2u); rows += 2)
        n += run(rows == 6, tight(rows)).preemptions;
    printf("%llu preemptions\n", (unsigned long long)n);
    assert_true(n > 0);
}

/* Everything at once, by chance. */
static void test_mixed(void **state)
{
    const char *dir = test_tmpdir();
    uint64_t hits = 0, accepted = 0;

    (void)state;
    for (uint32_t round = 0; round < (test_long() ? 12u : 2u); round++) {
        esp_engine_opts o = rnd(2) ? tight(1 + rnd(16)) : options(1 + rnd(16));
        esp_stats st;

        o.chunk = GROUP + rnd(200);
        o.spec = round ? (esp_spec)rnd(ESP_SPEC_DRAFT + 1) : ESP_SPEC_MTP;
        o.spec_tokens = 1 + rnd(6);
        o.spec_always = rnd(2);
        o.checkpoints = 8 + rnd(60);
        o.checkpoint_every = 16 + rnd(100);
        o.cache_dir = round < 2 || rnd(2) ? dir : NULL;
        o.max_stall_ms = rnd(2) * 5;
        st = run(rnd(4) == 0, o);
        hits += st.cache_hit_tokens;
        accepted += st.spec_accepted;
    }
    printf("%llu tokens from caches, %llu drafts right\n", (unsigned long long)hits,
           (unsigned long long)accepted);
    assert_true(hits > 0 && accepted > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_batches),   cmocka_unit_test(test_cuts),
                                       cmocka_unit_test(test_prefixes),  cmocka_unit_test(test_drafters),
                                       cmocka_unit_test(test_preempted), cmocka_unit_test(test_mixed)};
    esp_engine *g;
    esp_error err;
    int failed;

    for (uint32_t i = 0; i < 2; i++)
        test_ok(
            esp_model_open(&models[i], test_path("models/demo"), &(esp_model_opts){.threads = i + 1}, &err),
            &err);
    if (getenv("ESPALIER_TEST_FILTER"))
        cmocka_set_test_filter(getenv("ESPALIER_TEST_FILTER"));
    make_texts();
    g = open_engine(0, options(1));
    drive_all(g, true);
    esp_engine_close(g);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 2; i++)
        esp_model_close(models[i]);
    return failed;
}
