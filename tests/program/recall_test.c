/*
 * The texts of verb eval, checked by a reader of its own that follows them to their answer; the scorer; and
 * that a way of keeping keys, values and states changes nothing of what is asked.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program/recall.h"
#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM
#define M "models/demo"

static const char fact[] = "The code of ";

/* The word at p without the dot behind it. */
static size_t word(const char *p)
{
    return strcspn(p, " .?\n");
}

/* Where the text says what the code of name[len] is; the number of such sentences in *n. */
static const char *said(const char *text, const char *name, size_t len, int *n)
{
    const char *at = NULL;

    *n = 0;
    for (const char *p = text; (p = strstr(p, fact)) != NULL; p++) {
        const char *w = p + strlen(fact);

        if (word(w) != len || strncmp(w, name, len) != 0 || strncmp(w + len, " is ", 4) != 0)
            continue;
        at = w + len + 4;
        ++*n;
    }
    return at;
}

/* Follow the question to its number, as a reader would; returns the references followed. */
static int follow(const char *text, const char *asked, char out[ESP_RECALL_DIGITS + 1])
{
    size_t len = word(asked);
    int hops = 0;

    for (;;) {
        int n;
        const char *p = said(text, asked, len, &n);

        assert_int_equal(n, 1);
        if (strncmp(p, "the code of ", 12) != 0) {
            assert_int_equal(word(p), ESP_RECALL_DIGITS);
            memcpy(out, p, ESP_RECALL_DIGITS);
            out[ESP_RECALL_DIGITS] = 0;
            return hops;
        }
        asked = p + 12;
        len = word(asked);
        hops++;
        assert_true(hops <= ESP_RECALL_MAX_HOPS);
    }
}

static void check(struct esp_recall r, bool closed, double *depth)
{
    struct esp_recall_answer a, b;
    struct esp_strbuf t, again;
    char got[ESP_RECALL_DIGITS + 1], *text;
    const char *asked;
    esp_error err;

    esp_strbuf_init(&t, 1 << 20);
    esp_strbuf_init(&again, 1 << 20);
    test_ok(esp_recall_text(&r, closed, &t, &a, &err), &err);
    test_ok(esp_recall_text(&r, closed, &again, &b, &err), &err);
    assert_string_equal(esp_strbuf_str(&t), esp_strbuf_str(&again)); /* nothing but the parameters */
    text = strdup(esp_strbuf_str(&t));
    if (closed) {
        asked = strstr(text, "What is the code of ");
        assert_non_null(asked);
        asked += 20;
    } else {
        char *end = text + strlen(text) - 3;

        assert_string_equal(end, " is");
        for (asked = end; asked[-1] != ' '; asked--)
            ;
        memcpy(end, "?  ", 3); /* the question is no fact */
    }
    assert_int_equal(follow(text, asked, got), r.task == ESP_RECALL_HOPS ? r.n_hop : 0);
    assert_string_equal(got, a.code[0]);
    for (int i = 0; i < ESP_RECALL_KEYS; i++) {
        const char *p = strstr(text, a.code[i]);

        assert_non_null(p);
        assert_null(strstr(p + 1, a.code[i])); /* once, and so are all different */
        assert_true(a.code[i][0] != '0');
    }
    assert_true(a.depth >= 0 && a.depth <= 1);
    *depth = a.depth;
    r.index++; /* another item is another text */
    again.len = 0;
    test_ok(esp_recall_text(&r, closed, &again, &b, &err), &err);
    assert_string_not_equal(esp_strbuf_str(&t), esp_strbuf_str(&again));
    free(text);
    esp_strbuf_free(&t);
    esp_strbuf_free(&again);
}

static void test_texts(void **state)
{
    int early = 0, late = 0;

    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        struct esp_recall r = {.task = i % 3 ? ESP_RECALL_HOPS : ESP_RECALL_NEEDLE,
                               .seed = i / 20,
                               .index = i,
                               .n_sentence = i % 7 * 40};
        double depth;

        r.n_hop = r.task == ESP_RECALL_HOPS ? 1 + i % ESP_RECALL_MAX_HOPS : 0;
        check(r, i % 2, &depth);
        early += depth < 0.33;
        late += r.task == ESP_RECALL_NEEDLE && depth > 0.67;
    }
    assert_true(early > 40 && late > 8); /* facts stand anywhere */
}

/* A longer text asks the same and has the same facts. */
static void test_lengths(void **state)
{
    struct esp_recall r = {.task = ESP_RECALL_HOPS, .seed = 9, .n_hop = 3, .n_sentence = 5};
    struct esp_recall_answer a, b;
    struct esp_strbuf t, u;
    esp_error err;

    (void)state;
    esp_strbuf_init(&t, 1 << 20);
    esp_strbuf_init(&u, 1 << 20);
    test_ok(esp_recall_text(&r, false, &t, &a, &err), &err);
    r.n_sentence = 300;
    test_ok(esp_recall_text(&r, false, &u, &b, &err), &err);
    assert_true(u.len > t.len + 290 * 20);
    assert_memory_equal(a.code, b.code, sizeof a.code);
    esp_strbuf_free(&t);
    esp_strbuf_init(&t, 16); /* no room */
    assert_int_equal(esp_recall_text(&r, false, &t, &a, &err), ESP_ENOMEM);
    esp_strbuf_free(&t);
    esp_strbuf_free(&u);
}

static void test_scorer(void **state)
{
    static const struct {
        const char *text;
        bool right;
    } cases[] = {{"48213", true},
                 {" 48213.", true},
                 {"It is 48213, as was said", true},
                 {"The 3rd of 12: 48213", true}, /* shorter numbers are no codes */
                 {"148213", false},
                 {"482135", false},
                 {"482 13", false},
                 {"48214, no, 48213", false}, /* the first one counts */
                 {"1482130 48213", true},
                 {"4821", false},
                 {"", false}};
    double low, high;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (esp_recall_right("48213", cases[i].text, strlen(cases[i].text)) != cases[i].right)
            fail_msg("case %zu: %s", i, cases[i].text);
    assert_false(esp_recall_right("48213", "48213", 4));
    esp_recall_interval(0, 10, &low, &high);
    assert_true(low == 0 && fabs(high - 0.2775) < 1e-3);
    esp_recall_interval(8, 10, &low, &high);
    assert_true(fabs(low - 0.4902) < 1e-3 && fabs(high - 0.9433) < 1e-3);
}

/* What is asked, of all items of a file of samples: everything but the answers. */
static char *asked(const char *path)
{
    struct esp_strbuf b;
    FILE *f = fopen(path, "r");
    char line[8192], *out;

    assert_non_null(f);
    esp_strbuf_init(&b, 1 << 20);
    while (fgets(line, sizeof line, f)) {
        json_t *j = json_loads(line, 0, NULL);
        char *dump;

        assert_non_null(j);
        json_object_del(j, "answer");
        json_object_del(j, "right");
        json_object_del(j, "chosen");
        json_object_del(j, "logprobs");
        dump = json_dumps(j, JSON_SORT_KEYS);
        esp_strbuf_printf(&b, "%s\n", dump);
        free(dump);
        json_decref(j);
    }
    fclose(f);
    out = strdup(esp_strbuf_str(&b));
    esp_strbuf_free(&b);
    return out;
}

static void test_program(void **state)
{
    const char *dir = test_tmpdir();
    char a[512], b[512], *x, *y;
    struct run r;
    json_t *j;

    (void)state;
    snprintf(a, sizeof a, "%s/a.jsonl", dir);
    snprintf(b, sizeof b, "%s/b.jsonl", dir);
    r = RUN(NULL, P, "eval", M, "--lengths", "500,560", "--limit", "1", "--samples", a, "--json");
    run_code(&r, 0);
    j = json_loads(r.out, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(j, "results")), 4);
    json_decref(j);
    run_free(&r);
    r = RUN(NULL, P, "eval", M, "--lengths", "500,560", "--limit", "1", "--samples", b, "--kv", "turbo:k2v2",
            "--kv-start", "16", "--state", "q8", "--min", "needle=1");
    run_code(&r, 7);
    run_says(&r, "below the limit");
    run_free(&r);
    x = asked(a);
    y = asked(b);
    assert_string_equal(x, y);
    free(x);
    free(y);
}

/* ---- interruptions ---- */

/* ASK(how, file, more arguments ...) */
#define ASK(how, ...)                                                                                        \
    RUN(how, P, "eval", M, "--tasks", "needle", "--lengths", "200", "--limit", "8", "-t", "1", "--kv", "q4", \
        "--progress", "json", "--json", "--samples", __VA_ARGS__)

enum { KILLED_AT = 2000 }; /* of about 3,660 bytes: amid the samples, on any machine */

static char *content(const char *path, size_t *len)
{
    FILE *f = fopen(path, "r");
    char *out = calloc(1, 1 << 20);

    assert_true(f && out);
    *len = fread(out, 1, (1 << 20) - 1, f);
    fclose(f);
    return out;
}

static void add(const char *path, const char *end)
{
    FILE *f = fopen(path, "a");

    assert_true(f && fputs(end, f) >= 0 && fclose(f) == 0);
}

static void same(const char *a, const char *b)
{
    size_t n, m;
    char *x = content(a, &n), *y = content(b, &m);

    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* Killed amid a line, interrupted, gone on with each time: the bytes and numbers of an undisturbed run. */
static void test_resume(void **state)
{
    const struct run_how killed = {.file_limit = KILLED_AT},
                         term = {.signal = 15, .signal_on = "\"progress\""};
    const char *dir = test_tmpdir();
    char whole[512], parts[512], kept[560];
    struct run r, first;
    size_t len;
    char *text;

    (void)state;
    snprintf(whole, sizeof whole, "%s/whole", dir);
    snprintf(parts, sizeof parts, "%s/parts", dir);
    snprintf(kept, sizeof kept, "%s.state", parts);
    first = ASK(NULL, whole);
    run_code(&first, 0);
    r = ASK(&killed, parts);
    run_code(&r, -SIGXFSZ);
    run_free(&r);
    text = content(parts, &len);
    assert_int_equal(len, KILLED_AT);
    assert_true(strchr(text, '\n') && text[len - 1] != '\n'); /* whole lines, and one that is torn */
    free(text);
    r = ASK(NULL, parts);
    run_code(&r, 1);
    run_says(&r, "an interrupted run; go on with --resume, or remove it");
    run_free(&r);
    r = ASK(NULL, parts, "--resume", "--seed", "2");
    run_code(&r, 1);
    run_says(&r, "is of a run with seed 1, not 2");
    run_free(&r);
    r = ASK(NULL, parts, "--resume", "--state", "q8");
    run_code(&r, 1);
    run_says(&r, "is of a run with model");
    run_free(&r);
    r = ASK(&term, parts, "--resume");
    assert_true(r.code == 8 || r.code == 0); /* it may have been quick */
    if (r.code == 8)
        run_says(&r, "the same command with --resume goes on");
    run_free(&r);
    r = ASK(NULL, parts, "--resume");
    run_code(&r, 0);
    assert_string_equal(r.out, first.out);
    run_free(&r);
    same(whole, parts);
    assert_int_not_equal(access(kept, F_OK), 0); /* the state went with the end */
    run_free(&first);
}

/* Samples that are no samples of this run. */
static void test_resume_refuses(void **state)
{
    const struct run_how killed = {.file_limit = KILLED_AT};
    char parts[512];
    struct run r;
    FILE *f;

    (void)state;
    snprintf(parts, sizeof parts, "%s/parts", test_tmpdir());
    r = ASK(&killed, parts);
    run_code(&r, -SIGXFSZ);
    run_free(&r);
    f = fopen(parts, "w");
    assert_true(f && fputs("{\"task\":\"hops\",\"item\":0,\"length\":200}\n", f) >= 0 && fclose(f) == 0);
    r = ASK(NULL, parts, "--resume");
    run_code(&r, 3);
    run_says(&r, "line 1 is not item 0 of task needle");
    run_free(&r);
    add(parts, "no JSON\n");
    r = ASK(NULL, parts, "--resume");
    run_code(&r, 3);
    run_says(&r, "line 2: no sample");
    run_free(&r);
    assert_int_equal(remove(parts), 0);
    r = ASK(NULL, parts, "--resume");
    run_code(&r, 3);
    run_says(&r, "is gone");
    run_free(&r);
    r = RUN(NULL, P, "eval", M, "--limit", "1", "--resume");
    run_code(&r, 2);
    run_says(&r, "--samples FILE; none is given");
    run_free(&r);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *flag, *value, *says;
    } cases[] = {{"--tasks", "needle,hop", "'hop' is not one of"},
                 {"--tasks", "", "names no task"},
                 {"--min", "needle", "not TASK=F"},
                 {"--min", "needle=2", "not TASK=F"},
                 {"--lengths", "100000", "the model was made for"},
                 {"--lengths", "64", "the facts of task needle alone"},
                 {"--kv-start", "99999", "kv_start 99999"},
                 {"--samples", "/nonexistent/file", "cannot be written"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct run r = RUN(NULL, P, "eval", M, "--limit", "1", cases[i].flag, cases[i].value);

        if (r.code == 0)
            fail_msg("%s %s was accepted", cases[i].flag, cases[i].value);
        run_says(&r, cases[i].says);
        run_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts),   cmocka_unit_test(test_lengths),
                                       cmocka_unit_test(test_scorer),  cmocka_unit_test(test_program),
                                       cmocka_unit_test(test_resume),  cmocka_unit_test(test_resume_refuses),
                                       cmocka_unit_test(test_refusals)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
