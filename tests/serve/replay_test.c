/*
 * Coding clients as they talk, turn after turn: a large system text and many tools, the history sent back
 * with every request, calls and their results, short helper requests in between; the server ends and starts
 * again in the middle. Nearly all of every prompt must be found in the cache.
 *
 * Three clients at once, each in its own dialect and with its own habits: one sends a line that changes with
 * every request and cache marks that move (messages), one streams and sends sealed reasoning back
 * (responses), one forgets the reasoning (chat). ESPALIER_REPLAY=TURNS makes the conversations longer; 8 fit
 * in the context.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Long talks have the sizes that such clients have, as far as the model's context goes. */
static int long_turns(void)
{
    const char *wish = getenv("ESPALIER_REPLAY");

    return wish ? (int)strtol(wish, NULL, 10) : 0;
}

static int n_tools(void)
{
    return long_turns() ? 20 : 4;
}

static int n_rules(void)
{
    return long_turns() ? 60 : 10;
}

struct talk {
    const char *name, *path;
    json_t *history; /* messages or input items */
    int turn;
    double worst; /* share of a prompt that was cached, from the second turn on */
};

static const char *const questions[] = {"Look up the word pencil.", "Add: 12 + 7",
                                        "Look up the word river.",  "Spell: garden",
                                        "Look up the word candle.", "Repeat: red blue green"};

static const char *question(int turn)
{
    return questions[(size_t)turn % (sizeof questions / sizeof questions[0])];
}

/* Rules of 20 tokens each, behind a sentence that is the client's own. */
static char *system_text(const char *name)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, 1 << 16);
    esp_strbuf_printf(&b, "You are the helper of %s. ", name);
    for (int i = 0; i < n_rules(); i++)
        esp_strbuf_printf(
            &b, "Rule %d: say what is so, and when the work is done, write down what was done. ", i);
    return esp_strbuf_take(&b);
}

static json_t *schema(void)
{
    return json_pack("{s:s, s:{s:{s:s,s:i}}, s:[s], s:b}", "type", "object", "properties", "word", "type",
                     "string", "maxLength", 12, "required", "word", "additionalProperties", 0);
}

/* ---- the dialects ---- */

static json_t *tools_of(const struct talk *t)
{
    json_t *tools = json_array();

    for (int i = 0; i < n_tools(); i++) {
        char name[32];
        json_t *f;

        snprintf(name, sizeof name, i ? "tool_%d" : "look_up", i);
        f = json_pack("{s:s, s:s, s:b, s:o}", "name", name, "description", "Look up a word.", "strict", 1,
                      strstr(t->path, "messages") ? "input_schema" : "parameters", schema());
        if (strstr(t->path, "responses"))
            json_object_set_new(f, "type", json_string("function"));
        if (strstr(t->path, "chat"))
            f = json_pack("{s:s, s:o}", "type", "function", "function", f);
        json_array_append_new(tools, f);
    }
    return tools;
}

static json_t *messages_body(const struct talk *t)
{
    char line[100], *text = system_text(t->name);
    json_t *body, *last = json_deep_copy(json_array_get(t->history, json_array_size(t->history) - 1));
    json_t *history = json_copy(t->history);

    /* the mark stands on the newest block alone */
    json_object_set_new(json_array_get(json_object_get(last, "content"), 0), "cache_control",
                        json_pack("{s:s}", "type", "ephemeral"));
    json_array_set_new(history, json_array_size(history) - 1, last);
    snprintf(line, sizeof line, "x-anthropic-billing-header: cc_version=2.1.%d; cch=%05d;", t->turn,
             t->turn * 7919);
    body = json_pack("{s:s, s:[{s:s,s:s},{s:s,s:s,s:{s:s}}], s:o, s:{s:s,s:i}, s:i}", "model",
                     "some-large-model", "system", "type", "text", "text", line, "type", "text", "text", text,
                     "cache_control", "type", "ephemeral", "messages", history, "thinking", "type", "enabled",
                     "budget_tokens", 24, "max_tokens", 160);
    esp_free(text);
    return body;
}

static json_t *responses_body(const struct talk *t)
{
    char *text = system_text(t->name);
    json_t *body = json_pack("{s:s, s:O, s:b, s:b, s:[s], s:{s:s,s:i}, s:s}", "instructions", text, "input",
                             t->history, "store", 0, "stream", 1, "include", "reasoning.encrypted_content",
                             "reasoning", "effort", "medium", "max_tokens", 24, "prompt_cache_key", t->name);
    json_object_set_new(body, "max_output_tokens", json_integer(160));

    esp_free(text);
    return body;
}

static json_t *chat_body(const struct talk *t)
{
    char *text = system_text(t->name);
    json_t *body, *history = json_copy(t->history);

    json_array_insert_new(history, 0, json_pack("{s:s,s:s}", "role", "system", "content", text));
    body = json_pack("{s:o, s:i, s:b, s:i}", "messages", history, "max_tokens", 160, "enable_thinking", 1,
                     "thinking_budget", 24);
    esp_free(text);
    return body;
}

static json_t *user_item(const struct talk *t, const char *text)
{
    if (strstr(t->path, "messages"))
        return json_pack("{s:s, s:[{s:s,s:s}]}", "role", "user", "content", "type", "text", "text", text);
    return json_pack("{s:s, s:s}", "role", "user", "content", text);
}

/* Keep what the answer says, as the client does, and answer its calls. Returns whether there were any. */
static bool take_messages(struct talk *t, const json_t *r)
{
    json_t *results = json_array(), *block;
    bool calls;
    size_t i;

    json_array_append_new(t->history,
                          json_pack("{s:s, s:O}", "role", "assistant", "content", at(r, "content")));
    json_array_foreach(json_object_get(r, "content"), i,
                       block) if (strcmp(text_at(block, "type"), "tool_use") == 0)
        json_array_append_new(results, json_pack("{s:s, s:O, s:s}", "type", "tool_result", "tool_use_id",
                                                 at(block, "id"), "content", "a thing to write with"));
    calls = json_array_size(results) > 0;
    if (calls)
        json_array_append_new(t->history, json_pack("{s:s, s:O}", "role", "user", "content", results));
    json_decref(results);
    return calls;
}

static bool take_responses(struct talk *t, const json_t *r)
{
    json_t *item;
    bool calls = false;
    size_t i;

    json_array_extend(t->history, json_object_get(r, "output"));
    json_array_foreach(json_object_get(r, "output"), i,
                       item) if (strcmp(text_at(item, "type"), "function_call") == 0)
    {
        calls = true;
        json_array_append_new(t->history,
                              json_pack("{s:s, s:O, s:s}", "type", "function_call_output", "call_id",
                                        at(item, "call_id"), "output", "a thing to write with"));
    }
    return calls;
}

static bool take_chat(struct talk *t, const json_t *r)
{
    json_t *m = json_deep_copy(at(r, "choices.0.message")), *call;
    bool calls = false;
    size_t i;

    json_object_del(m, "reasoning_content");
    json_array_append_new(t->history, m);
    json_array_foreach(json_object_get(m, "tool_calls"), i, call)
    {
        calls = true;
        json_array_append_new(t->history, json_pack("{s:s, s:O, s:s}", "role", "tool", "tool_call_id",
                                                    at(call, "id"), "content", "a thing to write with"));
    }
    return calls;
}

/* ---- turns ---- */

/* The last event of a stream of responses has the whole. */
static json_t *whole_of(const struct reply *r)
{
    json_t *v, *whole = NULL;
    const char *event;

    if (r->json)
        return json_deep_copy(r->json);
    for (size_t i = 0; frame(r, i, &v, &event); i++) {
        if (strcmp(event, "response.completed") == 0 || strcmp(event, "response.incomplete") == 0)
            whole = json_deep_copy(at(v, "response"));
        json_decref(v);
    }
    if (!whole)
        fail_msg("no answer ends %s", r->len > 400 ? r->body + r->len - 400 : r->body);
    return whole;
}

static double cached_share(const struct talk *t, const json_t *r)
{
    double prompt, cached;

    if (strstr(t->path, "messages")) {
        cached = (double)int_at(r, "usage.cache_read_input_tokens");
        prompt = cached + (double)int_at(r, "usage.input_tokens") +
                 (double)int_at(r, "usage.cache_creation_input_tokens");
    } else if (strstr(t->path, "responses")) {
        cached = (double)int_at(r, "usage.input_tokens_details.cached_tokens");
        prompt = (double)int_at(r, "usage.input_tokens");
    } else {
        cached = (double)int_at(r, "usage.prompt_tokens_details.cached_tokens");
        prompt = (double)int_at(r, "usage.prompt_tokens");
    }
    assert_true(prompt > 400 && cached >= 0);
    return cached / prompt;
}

static bool request(const struct process *p, struct talk *t, const char *choice)
{
    const bool messages = strstr(t->path, "messages"), responses = strstr(t->path, "responses");
    json_t *body = messages ? messages_body(t) : responses ? responses_body(t) : chat_body(t), *whole;
    struct reply r;
    double share;
    char *text;
    bool calls;

    json_object_set_new(body, "tools", tools_of(t));
    json_object_set_new(body, "temperature", json_real(0.2));
    json_object_set_new(body, "seed", json_integer(t->turn));
    if (messages)
        json_object_set_new(body, "tool_choice", json_pack("{s:s}", "type", choice));
    else
        json_object_set_new(body, "tool_choice",
                            json_string(strcmp(choice, "any") == 0 ? "required" : choice));
    text = json_dumps(body, 0);
    r = client_do(&p->at, "POST", t->path, NULL, text);
    if (r.status != 200)
        fail_msg("%s, request %d: %d %s", t->name, t->turn, r.status, r.body);
    whole = whole_of(&r);
    share = cached_share(t, whole);
    if (t->turn > 0 && share < t->worst)
        t->worst = share;
    if (long_turns())
        print_message("%s, request %d: %.1f %% cached\n", t->name, t->turn, 100 * share);
    calls = messages ? take_messages(t, whole) : responses ? take_responses(t, whole) : take_chat(t, whole);
    t->turn++;
    json_decref(whole);
    json_decref(body);
    esp_free(text);
    reply_free(&r);
    return calls;
}

/* A question, a call for every second one, and the answer with its result. */
static void turn(const struct process *p, struct talk *t, int i)
{
    json_array_append_new(t->history, user_item(t, question(i)));
    if (request(p, t, i % 2 ? "none" : "any"))
        request(p, t, "none");
}

/* What clients ask beside: a title, a summary. */
static void helper(const struct process *p, int i)
{
    char body[300];
    struct reply r;

    snprintf(body, sizeof body,
             "{\"max_tokens\":8,\"system\":\"Write a title of at most five "
             "words.\",\"messages\":[{\"role\":\"user\","
             "\"content\":\"Title %d for: %s\"}]}",
             i, question(i));
    r = client_post(&p->at, "/v1/messages", body, 200);
    reply_free(&r);
}

static void start_with(struct process *p, const char *history, const char *folder)
{
    PROCESS(p, "--parallel", "2", "--ctx", long_turns() ? "4096" : "1536", "--history", history,
            "--cache-dir", folder, "--cache-ram", "64MiB");
}

static void converse(const char *history, double least)
{
    const int turns = long_turns() ? long_turns() : 2;
    struct talk talks[] = {{"messages", "/v1/messages", NULL, 0, 1},
                           {"responses", "/v1/responses", NULL, 0, 1},
                           {"chat", "/v1/chat/completions", NULL, 0, 1}};
    char folder[300];
    struct process p;

    snprintf(folder, sizeof folder, "%s/cache", test_tmpdir());
    start_with(&p, history, folder);
    for (int i = 0; i < turns; i++) {
        for (size_t k = 0; k < 3; k++) {
            if (i == 0)
                talks[k].history = json_array();
            turn(&p, &talks[k], i);
            helper(&p, i);
        }
        if (i == turns / 2 - 1) {
            process_stop(&p);
            start_with(&p, history, folder);
        }
    }
    process_stop(&p);
    for (size_t k = 0; k < 3; k++) {
        print_message("%s, history %s: at least %.1f %% of a prompt cached, of %d requests\n", talks[k].name,
                      history, 100 * talks[k].worst, talks[k].turn);
        json_decref(talks[k].history);
    }
    for (size_t k = 0; k < 3; k++)
        assert_true(talks[k].worst >= least);
}

static void test_stable(void **state)
{
    (void)state;
    converse("stable", 0.95);
}

static void test_model(void **state)
{
    (void)state;
    converse("model", 0.80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stable), cmocka_unit_test(test_model)};

    if (!long_turns()) /* serve.dialect has a short talk with the template's own history */
        cmocka_set_skip_filter("test_model");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
