/*
 * The server under load: 64 streams at once, of whom a tenth leaves in the middle and a twentieth stops
 * reading. Nobody else notices: every other answer is whole and, byte for byte, what the request answers
 * alone; afterwards nothing runs, and memory is what it was.
 *
 * ESPALIER_LOAD=SECONDS makes it long: 60 for a proper load, 300 for a soak; memory is then held to 2 %, a
 * thousand leave, and the overload lasts as long and is timed. ESPALIER_LOAD_ONLY names one of the tests.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program/load_texts.h"

enum { N_BODIES = 12, MOST_US = 25 /* of the loop for a token of a stream */ };

/* %s: stream and seed. Kinds that meet in one batch: greedy, seeded, structured, with tools, with thinking,
 * with log-probabilities (3 KiB an event), ends kept out by min_tokens; answers of 12 to 256 tokens. */
static const char *const bodies[N_BODIES] = {
    "{'messages':[{'role':'user','content':'Spell: garden'}],'temperature':0,'max_tokens':16%s}",
    "{'messages':[{'role':'user','content':'Spell: "
    "river'}],'temperature':1,'seed':11,'ignore_eos':true,'max_tokens':256%s}",
    "{'messages':[{'role':'user','content':'Repeat: red blue green'}],'temperature':0,'max_tokens':24%s}",
    "{'messages':[{'role':'system','content':'Be brief.'},{'role':'user','content':'Spell: dog'}],"
    "'temperature':0.8,'top_p':0.9,'seed':12,'min_tokens':20,'max_tokens':28%s}",
    "{'messages':[{'role':'user','content':'Spell: candle'}],'temperature':0,'max_tokens':16,"
    "'response_format':{'type':'json_schema','json_schema':{'name':'a','strict':true,'schema':{'type':'"
    "object',"
    "'properties':{'n':{'type':'integer'},'s':{'enum':['x','yy']}},'required':['n','s'],"
    "'additionalProperties':false}}}%s}",
    "{'messages':[{'role':'user','content':'Look up: dog'}],'temperature':0,'max_tokens':24,'tools':[{'type':"
    "'function','function':{'name':'look_up','parameters':{'type':'object','properties':{'word':{'type':"
    "'string'}},'required':['word']}}}],'tool_choice':'required'%s}",
    "{'messages':[{'role':'user','content':'Spell: stone'}],'enable_thinking':true,'temperature':1,'seed':13,"
    "'max_tokens':128%s}",
    "{'messages':[{'role':'user','content':'Spell: cat'}],'temperature':1,'seed':14,'logprobs':true,"
    "'top_logprobs':20,'max_tokens':16%s}",
    "{'messages':[{'role':'user','content':'Spell: house'}],'temperature':1,'seed':15,'presence_penalty':1,"
    "'ignore_eos':true,'max_tokens':64%s}",
    "{'messages':[{'role':'user','content':'Spell: tree'}],'temperature':1,'seed':16,'min_p':0.05,"
    "'stop':['zz','e e'],'min_tokens':8,'max_tokens':20%s}",
    "{'messages':[{'role':'user','content':'Spell: garden'},{'role':'assistant','content':'g a r d e n'},"
    "{'role':'user','content':'Spell: "
    "cold'}],'temperature':0.7,'seed':17,'ignore_eos':true,'max_tokens':128%s}",
    "{'messages':[{'role':'user','content':'Once upon a time there was a garden behind the house.'}],"
    "'temperature':0,'cache_prompt':false,'min_tokens':30,'max_tokens':30%s}"};

static void body(void *user, uint64_t i, struct esp_strbuf *out)
{
    char text[2048];

    (void)user;
    snprintf(text, sizeof text, bodies[i % N_BODIES],
             ",'stream':true,'stream_options':{'include_usage':true}");
    for (char *c = text; *c; c++)
        if (*c == '\'')
            *c = '"';
    assert_true(esp_strbuf_puts(out, text));
}

static bool whole(void *user, uint64_t i, const char *text, size_t len)
{
    return esp_load_texts_same(user, i, text, len);
}

static double long_seconds(void)
{
    const char *v = getenv("ESPALIER_LOAD");

    return v ? strtod(v, NULL) : 0;
}

static struct esp_load_opts opts(const struct process *p, struct esp_load_texts *texts)
{
    return (struct esp_load_opts){.target = &p->target,
                                  .path = "/v1/chat/completions",
                                  .concurrency = TEST_SANITIZED ? 24 : 64,
                                  .leave = TEST_SANITIZED ? 0.20 : 0.10,
                                  .stall = TEST_SANITIZED ? 0.15 : 0.05,
                                  .stall_seconds = 0.3,
                                  .grace = 240, /* answers of 256 tokens on a machine that others use */
                                  .seed = 7,
                                  .body = body,
                                  .whole = whole,
                                  .user = texts};
}

static void start(struct process *p, struct esp_load_texts *texts, const char *rows)
{
    struct esp_load_opts o;
    esp_error err;

    /* caches so small that they are full when memory is first looked at */
    PROCESS(p, "--parallel", rows, "--queue", "192", "--ctx", "512", "--cache-ram", "32MiB", "--replay-bytes",
            "256KiB", "--stream-buffer", "64KiB");
    o = opts(p, texts);
    test_ok(esp_load_texts_learn(texts, &o, N_BODIES, &err), &err);
}

static void run(struct esp_load_report *r, const struct esp_load_opts *o)
{
    esp_error err;

    test_ok(esp_load_run(r, o, &err), &err);
    if (r->errors || r->different || r->refused)
        fail_msg("%llu errors, %llu other texts, %llu refusals of %llu: %s", (unsigned long long)r->errors,
                 (unsigned long long)r->different, (unsigned long long)r->refused,
                 (unsigned long long)r->sent, r->first_error);
    assert_int_equal(r->sent, r->whole + r->left + r->stalled);
}

static double per_token(const struct process *p, double cpu, double tokens)
{
    return 1e6 * (process_loop_cpu(p) - cpu) / (process_stat(p, "scheduler.generated_tokens") - tokens);
}

/* ---- what a request costs, and what a token does ---- */

enum { SHORT_ANSWER = 8, LONG_ANSWER = 200 };

/* Plain chats of one length; user points to it. */
static void plain_body(void *user, uint64_t i, struct esp_strbuf *out)
{
    assert_true(
        esp_strbuf_printf(out,
                          "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\","
                          "\"content\":\"Tell me of the garden, number %d.\"}],\"temperature\":1,\"seed\":%d,"
                          "\"ignore_eos\":true,\"max_tokens\":%d,\"stream\":true}",
                          (int)(i % 8), (int)(i % 8), *(const int *)user));
}

/* Seconds of the loop for one request whose answer has so many tokens. */
static double per_request(const struct process *p, int tokens, const struct esp_load_opts *like,
                          uint64_t requests)
{
    struct esp_load_opts o = *like;
    struct esp_load_report r;
    double cpu;

    o.body = plain_body;
    o.whole = NULL;
    o.user = &tokens;
    o.leave = o.stall = 0;
    o.seconds = 0;
    o.requests = requests;
    process_idle(p);
    cpu = process_loop_cpu(p);
    run(&r, &o);
    process_idle(p);
    cpu = (process_loop_cpu(p) - cpu) / (double)r.whole;
    esp_load_report_free(&r);
    return cpu;
}

/* A line through two lengths of answers. */
static void tell_costs(const struct process *p, const struct esp_load_opts *like)
{
    const uint64_t n = TEST_SANITIZED ? 8 : long_seconds() > 0 ? 128 : 64;
    const double a = per_request(p, SHORT_ANSWER, like, 4 * n), b = per_request(p, LONG_ANSWER, like, n),
                 token = (b - a) / (LONG_ANSWER - SHORT_ANSWER), request = a - SHORT_ANSWER * token;

    print_message("loop: %.0f us a request and %.1f us a token of a plain chat\n", 1e6 * request,
                  1e6 * token);
    if (!TEST_SANITIZED && long_seconds() > 0)
        assert_true(1e6 * token <= MOST_US);
}

/* A short load, and with ESPALIER_LOAD one of that many seconds, whose first third counts as warming up. */
static void test_load(void **state)
{
    const double seconds = long_seconds();
    struct esp_load_texts texts = {0};
    struct esp_load_report r;
    struct esp_load_opts o;
    struct process p;
    double cpu, tokens, made, before, after, us;

    (void)state;
    start(&p, &texts, "16");
    o = opts(&p, &texts);
    if (seconds > 0)
        o.seconds = seconds / 3;
    else
        o.requests = TEST_SANITIZED ? 32 : 192;
    run(&r, &o);
    assert_true(r.whole > 0 && r.left > 0 && r.stalled > 0);
    esp_load_report_free(&r);
    process_idle(&p);
    before = process_rss(&p);
    cpu = process_loop_cpu(&p);
    tokens = process_stat(&p, "scheduler.generated_tokens");
    o.seed++;
    o.seconds *= 2;
    run(&r, &o);
    process_idle(&p);
    us = per_token(&p, cpu, tokens);
    made = process_stat(&p, "scheduler.generated_tokens") - tokens;
    after = process_rss(&p);
    print_message("%.1f s: %llu whole, %llu left, %llu stalled, %.0f tokens; loop %.1f us a token, %.0f a "
                  "request with it; "
                  "resident %.1f then %.1f MiB\n",
                  r.seconds, (unsigned long long)r.whole, (unsigned long long)r.left,
                  (unsigned long long)r.stalled, made, us, us * made / (double)r.sent, before / 1048576,
                  after / 1048576);
    if (!TEST_SANITIZED)
        assert_true(after < before * (seconds > 0 ? 1.02 : 1.25));
    esp_load_report_free(&r);
    assert_int_equal((int)process_stat(&p, "memory.slots_used"), (int)process_stat(&p, "cache.checkpoints"));
    tell_costs(&p, &o);
    process_stop(&p);
    esp_load_texts_free(&texts);
}

/* Nearly everybody leaves, at every phase: queued, in the prompt, in the answer; 1,000 of them when long. */
static void test_abort_storm(void **state)
{
    const double seconds = long_seconds();
    struct esp_load_texts texts = {0};
    struct esp_load_report r;
    struct esp_load_opts o;
    struct process p;

    (void)state;
    start(&p, &texts, "8");
    o = opts(&p, &texts);
    o.concurrency = TEST_SANITIZED ? 16 : 32;
    o.leave = 0.9;
    o.stall = 0;
    o.requests = seconds > 0 ? 3200 : TEST_SANITIZED ? 32 : 160;
    run(&r, &o);
    print_message("%llu left, %llu stayed\n", (unsigned long long)r.left, (unsigned long long)r.whole);
    assert_true(r.left >= (seconds > 0 ? 1000 : o.requests / 4) && r.whole > 0);
    esp_load_report_free(&r);
    process_idle(&p);
    assert_int_equal((int)process_stat(&p, "memory.slots_used"), (int)process_stat(&p, "cache.checkpoints"));
    process_stop(&p);
    esp_load_texts_free(&texts);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(const struct esp_load_times *t, double share)
{
    assert_true(t->n > 0);
    qsort(t->v, t->n, sizeof t->v[0], by_size);
    return t->v[(size_t)((double)(t->n - 1) * share)];
}

/* Whatever was refused was refused because the queue was full: 429, and nothing else. */
static void check_refusals(const struct process *p, uint64_t n)
{
    struct reply r = client_do(&p->at, "GET", "/stats", NULL, NULL);

    assert_int_equal(json_object_size(at(r.json, "errors.by_code")), 1);
    assert_int_equal(int_at(r.json, "errors.by_code.queue_full"), n);
    reply_free(&r);
}

/* Ten times more than there is room for: answers or 429, nothing else, and memory stays what it was. Long,
 * the answers that run keep their pace: with nobody else on the machine, a text waits for at most --max-stall
 * and a step. */
static void test_overload(void **state)
{
    const double seconds = long_seconds();
    struct esp_load_texts texts = {0};
    struct esp_load_report r;
    struct esp_load_opts o;
    struct process p;
    esp_error err;
    double before, after, step, wait;
    uint64_t refused;

    (void)state;
    PROCESS(&p, "--parallel", "4", "--queue", "2", "--ctx", "512", "--cache-ram", "32MiB", "--replay-bytes",
            "256KiB");
    o = opts(&p, &texts);
    test_ok(esp_load_texts_learn(&texts, &o, N_BODIES, &err), &err);
    o.concurrency = 40;
    o.leave = o.stall = 0;
    if (seconds > 0)
        o.seconds = seconds / 3; /* warming up */
    else
        o.requests = TEST_SANITIZED ? 120 : 600;
    test_ok(esp_load_run(&r, &o, &err), &err);
    refused = r.refused;
    if (seconds > 0) {
        esp_load_report_free(&r);
        process_idle(&p);
        before = process_rss(&p);
        o.seconds = seconds - o.seconds;
        test_ok(esp_load_run(&r, &o, &err), &err);
        refused += r.refused;
        process_idle(&p);
        after = process_rss(&p);
        step = percentile(&r.gap, 0.5);
        wait = percentile(&r.gap, 0.99);
        print_message(
            "%.0f s: %llu whole, %llu refused; between texts p50 %.1f ms, p99 %.1f ms; resident %.1f "
            "then %.1f MiB\n",
            r.seconds, (unsigned long long)r.whole, (unsigned long long)r.refused, 1e3 * step, 1e3 * wait,
            before / 1048576, after / 1048576);
        assert_true(after < before * 1.02);
        assert_true(wait <= 0.2 + step);
    }
    if (r.errors || r.different)
        fail_msg("%llu errors, %llu other texts: %s", (unsigned long long)r.errors,
                 (unsigned long long)r.different, r.first_error);
    assert_true(r.refused > 0 && r.whole > 0);
    assert_int_equal(r.sent, r.whole + r.refused);
    esp_load_report_free(&r);
    process_idle(&p);
    check_refusals(&p, refused);
    process_stop(&p);
    esp_load_texts_free(&texts);
}

/* Rows that fill their contexts take what GET /fit said, within a tenth and never more. */
static void test_fit(void **state)
{
    enum { ROWS = 4 };
    static const char body[] = "{\"prompt\":\"Once\",\"min_tokens\":400,\"max_tokens\":450,\"stream\":true}";
    int fds[ROWS];
    struct process p;
    struct reply r;
    double planned, taken;

    (void)state;
    PROCESS(&p, "--parallel", "4", "--ctx", "512", "--cache-ram", "32MiB", "-t", "1");
    for (int round = 0; round < 3; round++) { /* the cache fills as well */
        for (int i = 0; i < ROWS; i++) {
            char head[200];

            fds[i] = client_connect(&p.at);
            snprintf(head, sizeof head,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
                     sizeof body - 1);
            client_send(fds[i], head);
            client_send(fds[i], body);
        }
        for (int i = 0; i < ROWS; i++) {
            struct esp_strbuf got;

            esp_strbuf_init(&got, 1 << 24);
            assert_true(client_until(fds[i], &got, "[DONE]", 300));
            esp_strbuf_free(&got);
            close(fds[i]);
        }
    }
    r = client_do(&p.at, "GET", "/fit", NULL, NULL);
    planned = (double)int_at(r.json, "at.total_bytes");
    taken = process_rss(&p);
    print_message("%.1f MiB of %.1f planned\n", taken / 1048576, planned / 1048576);
    if (!TEST_SANITIZED)
        assert_true(taken <= planned && taken >= 0.9 * planned);
    reply_free(&r);
    process_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_load), cmocka_unit_test(test_abort_storm),
                                       cmocka_unit_test(test_overload), cmocka_unit_test(test_fit)};

    if (getenv("ESPALIER_LOAD_ONLY"))
        cmocka_set_test_filter(getenv("ESPALIER_LOAD_ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
