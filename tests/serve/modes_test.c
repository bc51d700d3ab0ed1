/*
 * Fields that change what an answer tells or what a prompt keeps: the queue's time in every reply, processed
 * log-probabilities, truncated conversations, where the cache is.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHAT       "/v1/chat/completions"
#define USER(text) "'messages':[{'role':'user','content':'" text "'}]"

/* ---- the queue's time ---- */

static void test_queue_header(void **state)
{
    static const char *const rows[][2] = {{CHAT, USER("Spell: dog")},
                                          {"/v1/completions", "'prompt':'Once'"},
                                          {"/v1/messages", USER("Spell: dog")},
                                          {"/v1/responses", "'input':'Spell: dog'"}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int stream = 0; stream < 2; stream++) {
            const char *limit = i == 3 ? "max_output_tokens" : "max_tokens";
            struct reply r = client_postf(&shared, rows[i][0], 200, "{%s,'%s':4%s}", rows[i][1], limit,
                                          stream ? ",'stream':true" : "");
            const char *ms = reply_header(&r, "x-espalier-queue-ms");

            if (!ms || !(strtod(ms, NULL) >= 0))
                fail_msg("%s, stream %d: no x-espalier-queue-ms: %s", rows[i][0], stream, r.head);
            reply_free(&r);
        }
}

/* A request that waits for a row says for how long. */
static void test_queue_time(void **state)
{
    static const char body[] = "{\"prompt\":\"Once\",\"min_tokens\":900,\"max_tokens\":900,\"stream\":true}";
    struct server s;
    struct esp_strbuf got;
    struct reply r;
    char request[256];
    double ms;
    int fd;

    (void)state;
    server_init(&s);
    s.engine.rows = 1;
    server_start(&s);
    fd = client_connect(&s);
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    client_send(fd, request);
    esp_strbuf_init(&got, 1 << 24);
    assert_true(client_until(fd, &got, "data: ", 60));
    r = client_postf(&s, CHAT, 200, "{" USER("Spell: dog") ",'max_tokens':2,'stream':true}");
    ms = strtod(reply_header(&r, "x-espalier-queue-ms"), NULL);
    assert_true(ms >= 1); /* all but the first of 900 tokens */
    assert_non_null(strstr(r.body, "[DONE]"));
    reply_free(&r);
    close(fd);
    esp_strbuf_free(&got);
    server_stop(&s);
}

/* ---- processed log-probabilities ---- */

static struct reply ask(const char *fields)
{
    return client_postf(
        &shared, CHAT, 200,
        "{" USER("Spell: garden") ",'seed':3,'logprobs':true,'top_logprobs':20,'max_tokens':3,%s}", fields);
}

/* Log-probability of token id among the likeliest of the first position; a positive number: not there. */
static double of(const struct reply *r, int64_t id)
{
    const json_t *list = at(r->json, "choices.0.logprobs.content.0.top_logprobs"), *v;
    size_t i;

    json_array_foreach(list, i, v)
    {
        if (int_at(v, "token_id") == id)
            return json_number_value(at(v, "logprob"));
    }
    return 1;
}

static int64_t rank(const struct reply *r, int i)
{
    char path[80];

    snprintf(path, sizeof path, "choices.0.logprobs.content.0.top_logprobs.%d.token_id", i);
    return int_at(r->json, path);
}

/* The same of both: differences between tokens grow by one over the temperature. */
static void check_temperature(const struct reply *raw, const struct reply *processed, double temperature)
{
    const int64_t first = rank(raw, 0);
    int n = 0;

    assert_int_equal(rank(processed, 0), first);
    for (int i = 1; i < 20; i++) {
        const int64_t id = rank(raw, i);
        const double a = of(raw, first) - of(raw, id), b = of(processed, first) - of(processed, id);

        if (of(processed, id) > 0)
            continue;
        if (fabs(a / temperature - b) > 1e-3 * (1 + fabs(b)))
            fail_msg("token %lld: %g apart, processed %g", (long long)id, a, b);
        n++;
    }
    assert_true(n > 10);
}

static void test_processed(void **state)
{
    struct reply raw = ask("'temperature':0.5"), r = ask("'temperature':0.5,'logprobs_mode':'processed'"),
                 greedy, other;
    int64_t best;
    char fields[200];
    double sum = 0;

    (void)state;
    assert_string_equal(text_at(raw.json, "choices.0.message.content"),
                        text_at(r.json, "choices.0.message.content"));
    check_temperature(&raw, &r, 0.5);
    for (int i = 0; i < 20; i++)
        sum += exp(of(&r, rank(&r, i)));
    assert_true(sum > 0.5 && sum < 1.0001);
    reply_free(&r);
    /* greedy, and nothing else: the model's own */
    greedy = ask("'temperature':0");
    r = ask("'temperature':0,'logprobs_mode':'processed'");
    check_temperature(&greedy, &r, 1);
    best = rank(&greedy, 0);
    reply_free(&r);
    /* without its best token the others share what it had */
    snprintf(fields, sizeof fields, "'temperature':0,'logprobs_mode':'processed','logit_bias':{'%lld':-100}",
             (long long)best);
    r = ask(fields);
    snprintf(fields, sizeof fields, "'temperature':0,'logprobs_mode':'raw','logit_bias':{'%lld':-100}",
             (long long)best);
    other = ask(fields);
    assert_true(of(&r, best) > 0);
    assert_true(of(&other, best) < 0 && fabs(of(&other, best) - of(&greedy, best)) < 1e-6);
    assert_true(fabs(of(&r, rank(&greedy, 1)) -
                     (of(&greedy, rank(&greedy, 1)) - log1p(-exp(of(&greedy, best))))) < 1e-3);
    reply_free(&r);
    reply_free(&other);
    reply_free(&greedy);
    reply_free(&raw);
    /* where a form leaves one token, that has all of it */
    r = client_postf(&shared, "/v1/completions", 200,
                     "{'prompt':'It is ','temperature':1,'seed':1,'logprobs':2,'logprobs_mode':'processed',"
                     "'structured_outputs':{'choice':['aaaa']}}");
    assert_true(json_number_value(at(r.json, "choices.0.logprobs.token_logprobs.0")) > -1e-6);
    reply_free(&r);
    r = client_postf(
        &shared, "/v1/completions", 400,
        "{'prompt':'It is','echo':true,'logprobs':1,'max_tokens':1,'logprobs_mode':'processed'}");
    assert_string_equal(text_at(r.json, "error.param"), "logprobs_mode");
    reply_free(&r);
}

/* ---- truncation ---- */

/* A conversation of so many turns, each of about 30 tokens, as items. */
static void talk(struct esp_strbuf *b, int turns)
{
    for (int i = 0; i < turns; i++)
        esp_strbuf_printf(
            b,
            "{'role':'user','content':'Question %d: what is in the garden?'},{'type':'function_call',"
            "'call_id':'c%d','name':'look','arguments':'{}'},{'type':'function_call_output','call_id':"
            "'c%d','output':'stones %d'},{'role':'assistant','content':'Answer %d.'},",
            i, i, i, i, i);
    esp_strbuf_puts(b, "{'role':'user','content':'The last question.'}");
}

static void test_truncation(void **state)
{
    struct esp_strbuf items;
    struct reply r;
    int64_t n;

    (void)state;
    esp_strbuf_init(&items, 1 << 20);
    talk(&items, 2);
    r = client_postf(&shared, "/v1/responses", 200,
                     "{'input':[%s],'truncation':'auto','max_output_tokens':4}", esp_strbuf_str(&items));
    assert_string_equal(text_at(r.json, "truncation"), "auto");
    assert_int_equal(json_array_size(at(r.json, "ext.warnings")), 0);
    reply_free(&r);
    esp_strbuf_clear(&items);
    talk(&items, 60);
    r = client_postf(&shared, "/v1/responses", 400, "{'input':[%s],'max_output_tokens':4}",
                     esp_strbuf_str(&items));
    assert_string_equal(text_at(r.json, "error.code"), "context_length_exceeded");
    reply_free(&r);
    r = client_postf(&shared, "/v1/responses", 200,
                     "{'instructions':'Be brief.','input':[%s],'truncation':'auto','max_output_tokens':4}",
                     esp_strbuf_str(&items));
    n = int_at(r.json, "usage.input_tokens");
    assert_true(n <= 1020 && n > 1020 - 120); /* no more went than had to */
    assert_non_null(strstr(text_at(r.json, "ext.warnings.0"), "oldest messages were left out"));
    reply_free(&r);
    r = client_postf(&shared, "/v1/responses/input_tokens", 200,
                     "{'instructions':'Be brief.','input':[%s],'truncation':'auto','max_output_tokens':4}",
                     esp_strbuf_str(&items));
    assert_int_equal(int_at(r.json, "input_tokens"), n);
    reply_free(&r);
    /* streamed, and followed by another one: the store has the whole conversation */
    r = client_postf(&shared, "/v1/responses", 200,
                     "{'input':[%s],'truncation':'auto','max_output_tokens':4,'stream':true}",
                     esp_strbuf_str(&items));
    assert_non_null(strstr(r.body, "\"truncation\":\"auto\""));
    assert_non_null(strstr(r.body, "response.completed") ? r.body : strstr(r.body, "response.incomplete"));
    reply_free(&r);
    /* a last turn that does not fit alone */
    esp_strbuf_clear(&items);
    for (int i = 0; i < 1200; i++)
        esp_strbuf_puts(&items, "stone ");
    r = client_postf(&shared, "/v1/responses", 400,
                     "{'input':[{'role':'user','content':'x'},{'role':'user','content':'%s'}],"
                     "'truncation':'auto'}",
                     esp_strbuf_str(&items));
    assert_string_equal(text_at(r.json, "error.code"), "context_length_exceeded");
    reply_free(&r);
    esp_strbuf_free(&items);
}

/* ---- where the cache is ---- */

static void test_tier(void **state)
{
    struct server s;
    struct reply r;

    (void)state;
    server_init(&s);
    s.device = "cuda:0";
    server_start(&s);
    for (int i = 0; i < 2; i++) {
        r = client_postf(&s, CHAT, 200, "{" USER("Spell: garden") ",'max_tokens':2,'temperature':0}");
        assert_string_equal(text_at(r.json, "ext.cache.tier"), i ? "device" : "none");
        reply_free(&r);
    }
    r = client_do(&s, "GET", "/cache", NULL, NULL);
    assert_string_equal(text_at(r.json, "entries.0.tier"), "device");
    reply_free(&r);
    r = client_do(&s, "GET", "/metrics", NULL, NULL);
    assert_non_null(strstr(r.body, "espalier:cache_tier_bytes{model_name=\"demo\",tier=\"device\"}"));
    reply_free(&r);
    r = client_do(&s, "GET", "/stats", NULL, NULL);
    assert_int_equal(int_at(r.json, "memory.cache_ram_bytes"), 0);
    assert_true(int_at(r.json, "memory.checkpoint_bytes") > 0);
    reply_free(&r);
    server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_queue_header), cmocka_unit_test(test_queue_time),
                                       cmocka_unit_test(test_processed), cmocka_unit_test(test_truncation),
                                       cmocka_unit_test(test_tier)};

    return cmocka_run_group_tests(tests, start_plain, stop);
}
