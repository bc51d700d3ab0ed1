/*
 * The prefix cache from outside: listed, warmed, saved over a restart and loaded, forgotten; slots by number;
 * what cache_control keeps and what usage says of it. Texts are the same with and without.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/client.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

#define CHAT     "/v1/chat/completions"
#define MESSAGES "/v1/messages"
#define GREEDY   ",'temperature':0"

static char folder[256];

enum { CHECKPOINTS = TEST_SANITIZED ? 16 : 64 };

static void open_server(struct server *s)
{
    server_init(s);
    s->o.slot_dir = folder;
    s->engine.checkpoints = CHECKPOINTS;
    server_start(s);
}

/* A text of about three tokens a word. */
static const char *words(int from, int n)
{
    static char text[4][4096];
    static unsigned next;
    char *b = text[next++ % 4];

    b[0] = '\0';
    for (int i = 0; i < n; i++)
        snprintf(b + strlen(b), 24, "word %d ", from + i);
    return b;
}

static struct reply chat(const struct server *s, const char *text)
{
    return client_postf(s, CHAT, 200,
                        "{'messages':[{'role':'user','content':'%s'}],'max_tokens':12" GREEDY "}", text);
}

static int64_t cached(const struct reply *r)
{
    return int_at(r->json, "usage.prompt_tokens_details.cached_tokens");
}

/* The first entry with at least so many tokens. */
static const json_t *entry_of(const json_t *list, int64_t tokens)
{
    size_t i;
    json_t *e;

    json_array_foreach(json_object_get(list, "entries"), i, e)
    {
        if (int_at(e, "tokens") >= tokens)
            return e;
    }
    return NULL;
}

static void test_list_and_drop(void **state)
{
    struct server s;
    struct reply r, list;
    const json_t *e;
    char path[80];

    (void)state;
    open_server(&s);
    list = client_do(&s, "GET", "/cache", NULL, NULL);
    assert_int_equal(json_array_size(at(list.json, "entries")), 0);
    reply_free(&list);
    r = chat(&s, words(0, 60));
    reply_free(&r);
    list = client_do(&s, "GET", "/cache", NULL, NULL);
    e = entry_of(list.json, 150);
    assert_non_null(e);
    assert_string_equal(text_at(e, "tier"), "ram");
    assert_true(json_is_null(at(e, "adapter")));
    assert_true(int_at(e, "bytes") > 1000);
    assert_true(json_array_size(at(e, "checkpoints")) >= 1);
    assert_true(json_is_false(at(e, "pinned")));
    r = chat(&s, words(0, 60));
    assert_true(cached(&r) > 150);
    reply_free(&r);
    snprintf(path, sizeof path, "/cache/%s", text_at(e, "id"));
    r = client_do(&s, "DELETE", path, NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = client_do(&s, "DELETE", path, NULL, NULL);
    assert_int_equal(r.status, 404);
    assert_string_equal(text_at(r.json, "error.code"), "cache_not_found");
    reply_free(&r);
    reply_free(&list);
    r = client_do(&s, "POST", "/cache/flush", NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    server_stop(&s);
}

static void test_prewarm(void **state)
{
    struct server s;
    struct reply r, again;

    (void)state;
    open_server(&s);
    r = client_postf(&s, "/cache/prewarm", 200,
                     "{'messages':[{'role':'system','content':'%s'},{'role':'user','content':'hello'}],"
                     "'pin_seconds':3600}",
                     words(0, 60));
    assert_true(int_at(r.json, "tokens") > 150);
    assert_true(json_is_true(at(r.json, "pinned")));
    assert_true(strncmp(text_at(r.json, "id"), "cache_", 6) == 0);
    again =
        client_postf(&s, CHAT, 200,
                     "{'messages':[{'role':'system','content':'%s'},{'role':'user','content':'Spell: dog'}],"
                     "'max_tokens':4" GREEDY "}",
                     words(0, 60));
    assert_true(cached(&again) > 150);
    reply_free(&again);
    for (int i = 0; i < CHECKPOINTS + 6;
         i++) { /* more texts than there are checkpoints: what is pinned stays */
        again = chat(&s, words(1000 + 7 * i, 3));
        reply_free(&again);
    }
    again = client_postf(&s, CHAT, 200,
                         "{'messages':[{'role':'system','content':'%s'},{'role':'user','content':'hello'}],"
                         "'max_tokens':4" GREEDY "}",
                         words(0, 60));
    assert_true(cached(&again) >= int_at(r.json, "tokens") - 1);
    reply_free(&again);
    reply_free(&r);
    r = client_postf(&s, "/cache/prewarm", 400,
                     "{'messages':[{'role':'user','content':'x'}],'pin_seconds':-1}");
    assert_string_equal(text_at(r.json, "error.param"), "pin_seconds");
    reply_free(&r);
    r = client_postf(&s, "/cache/prewarm", 400, "{}");
    reply_free(&r);
    server_stop(&s);
}

/* Save, end the server, start another one, load: the next request finds its text and gives the same answer.
 */
static void test_save_over_restart(void **state)
{
    struct server s;
    struct reply first, r, list;
    int64_t saved, warm;
    char path[400];
    FILE *f;

    (void)state;
    open_server(&s);
    first = chat(&s, words(500, 60));
    list = client_do(&s, "GET", "/cache", NULL, NULL);
    r = client_postf(&s, "/cache/save", 200, "{'id':'%s','filename':'kept.esp'}",
                     text_at(entry_of(list.json, 150), "id"));
    saved = int_at(r.json, "n_saved");
    assert_true(saved > 150 && int_at(r.json, "n_written") > 1000);
    reply_free(&r);
    r = chat(&s, words(500, 60));
    warm = cached(&r);
    assert_true(warm > 150);
    reply_free(&r);
    reply_free(&list);
    server_stop(&s);

    open_server(&s);
    r = client_postf(&s, "/cache/load", 200, "{'filename':'kept.esp'}");
    assert_int_equal(int_at(r.json, "n_restored"), saved);
    assert_int_equal(int_at(r.json, "n_reusable"), saved);
    reply_free(&r);
    r = chat(&s, words(500, 60));
    assert_int_equal(cached(&r), warm);
    assert_true(json_equal(at(r.json, "choices"), at(first.json, "choices")));
    reply_free(&r);
    reply_free(&first);

    /* a byte of it changed: refused, and put aside */
    snprintf(path, sizeof path, "%s/kept.esp", folder);
    f = fopen(path, "r+");
    assert_non_null(f);
    fseek(f, -9, SEEK_END);
    fputc(0x5a, f);
    fputc(0xa5, f);
    fclose(f);
    r = client_postf(&s, "/cache/load", 400, "{'filename':'kept.esp'}");
    assert_non_null(strstr(text_at(r.json, "error.message"), "quarantine"));
    assert_null(strstr(text_at(r.json, "error.message"), folder));
    reply_free(&r);
    r = client_postf(&s, "/cache/load", 404, "{'filename':'kept.esp'}");
    assert_string_equal(text_at(r.json, "error.code"), "cache_not_found");
    reply_free(&r);
    server_stop(&s);
}

static void test_foreign_file(void **state)
{
    struct server s;
    struct reply r, list;

    (void)state;
    open_server(&s);
    r = chat(&s, words(900, 30));
    reply_free(&r);
    list = client_do(&s, "GET", "/cache", NULL, NULL);
    r = client_postf(&s, "/cache/save", 200, "{'id':'%s','filename':'other.esp'}",
                     text_at(entry_of(list.json, 60), "id"));
    reply_free(&r);
    reply_free(&list);
    server_stop(&s);
    server_init(&s);
    s.o.slot_dir = folder;
    s.engine.kv = "f32";
    server_start(&s);
    r = client_postf(&s, "/cache/load", 409, "{'filename':'other.esp'}");
    assert_string_equal(text_at(r.json, "error.code"), "cache_incompatible");
    assert_non_null(strstr(text_at(r.json, "error.message"), "f32"));
    reply_free(&r);
    server_stop(&s);
}

static void check_slots(const char *kv, uint32_t kv_start)
{
    struct server s;
    struct reply r, before;
    char path[80];
    int slot = -1;

    server_init(&s);
    s.o.slot_dir = folder;
    s.engine.checkpoints = CHECKPOINTS;
    s.engine.kv = kv;
    s.engine.kv_start = kv_start;
    server_start(&s);
    r = client_postf(&s, "/slots/0?action=save", 404, "{'filename':'a'}");
    assert_string_equal(text_at(r.json, "error.code"), "cache_not_found");
    reply_free(&r);
    before = chat(&s, words(0, 50));
    r = client_do(&s, "GET", "/slots", NULL, NULL);
    assert_int_equal(json_array_size(r.json), 3);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%d.n_cached_text", i);
        assert_string_equal(text_at(json_array_get(r.json, (size_t)i), "state"), "idle");
        if (int_at(r.json, path) > 0)
            slot = i;
    }
    assert_true(slot >= 0);
    reply_free(&r);
    snprintf(path, sizeof path, "/slots/%d?action=save", slot);
    r = client_postf(&s, path, 200, "{'filename':'slot.esp'}");
    assert_int_equal(int_at(r.json, "id_slot"), slot);
    assert_true(int_at(r.json, "n_saved") > 120);
    assert_true(json_is_real(at(r.json, "timings.save_ms")));
    reply_free(&r);
    snprintf(path, sizeof path, "/slots/%d?action=erase", slot);
    r = client_do(&s, "POST", path, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_true(int_at(r.json, "checkpoints") >= 1);
    reply_free(&r);
    r = client_postf(&s, "/slots/2?action=restore", 200, "{'filename':'slot.esp'}");
    assert_int_equal(int_at(r.json, "id_slot"), 2);
    assert_true(int_at(r.json, "n_restored") > 120);
    reply_free(&r);
    r = chat(&s, words(0, 50));
    assert_true(cached(&r) > 120);
    assert_true(json_equal(at(r.json, "choices"), at(before.json, "choices")));
    reply_free(&r);
    reply_free(&before);
    server_stop(&s);
}

static void test_slots(void **state)
{
    (void)state;
    check_slots(NULL, 0);
    check_slots("q4", 75); /* three pages for what one page of 256 would hold */
}

static void test_refusals(void **state)
{
    static const struct {
        const char *path, *body, *param;
        int status;
    } rows[] = {{"/cache/save", "{'filename':'x'}", "id", 400},
                {"/cache/save", "{'id':'nonsense','filename':'x'}", "id", 404},
                {"/cache/save", "{'id':'cache_0123456789abcdef','filename':'x'}", "filename", 404},
                {"/cache/load", "{}", "filename", 400},
                {"/cache/load", "{'filename':'../x'}", "filename", 400},
                {"/cache/load", "{'filename':'.x'}", "filename", 400},
                {"/cache/load", "{'filename':5}", "filename", 400},
                {"/cache/load", "{'filename':'x','adapter':'y'}", "adapter", 404},
                {"/slots/9?action=save", "{'filename':'x'}", "id", 400},
                {"/slots/x?action=save", "{'filename':'x'}", "id", 400},
                {"/slots/0?action=fly", "{'filename':'x'}", "action", 400},
                {"/slots/0", "{'filename':'x'}", "action", 400}};
    struct server s;
    struct reply r;

    (void)state;
    open_server(&s);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        r = client_postf(&s, rows[i].path, rows[i].status, "%s", rows[i].body);
        if (strcmp(text_at(r.json, "error.param"), rows[i].param) != 0)
            fail_msg("%s %s: %s", rows[i].path, rows[i].body, r.body);
        reply_free(&r);
    }
    server_stop(&s);
    server_init(&s);
    s.o.api_key = "all";
    server_start(&s); /* no folder, and a key is needed */
    r = client_do(&s, "GET", "/cache", NULL, NULL);
    assert_int_equal(r.status, 401);
    reply_free(&r);
    r = client_do(&s, "POST", "/cache/load", "x-api-key: all\r\n", "{\"filename\":\"x\"}");
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body, "--slot-save-path"));
    reply_free(&r);
    server_stop(&s);
}

/* ---- cache_control ---- */

static int64_t usage(const struct reply *r, const char *name)
{
    char path[80];

    snprintf(path, sizeof path, "usage.%s", name);
    return int_at(r->json, path);
}

#define BLOCK(text, more) "{'type':'text','text':'" text "'" more "}"
#define KEEP              ",'cache_control':{'type':'ephemeral'}"

static void test_cache_control(void **state)
{
    struct server s;
    struct reply r, next, count;
    int64_t all;

    (void)state;
    open_server(&s);
    count =
        client_postf(&s, MESSAGES "/count_tokens", 200,
                     "{'system':[" BLOCK("%s", KEEP) "],'messages':[{'role':'user','content':'Spell: dog'}]}",
                     words(0, 60));
    r = client_postf(&s, MESSAGES, 200,
                     "{'max_tokens':4,'system':[" BLOCK(
                         "%s", KEEP) "],"
                                     "'messages':[{'role':'user','content':'Spell: dog'}]" GREEDY "}",
                     words(0, 60));
    all = int_at(count.json, "input_tokens");
    assert_int_equal(usage(&r, "input_tokens") + usage(&r, "cache_creation_input_tokens"), all);
    assert_int_equal(usage(&r, "cache_read_input_tokens"), 0);
    assert_true(usage(&r, "cache_creation_input_tokens") > 150 && usage(&r, "input_tokens") < 40);
    next = client_postf(&s, MESSAGES, 200,
                        "{'max_tokens':4,'system':[" BLOCK(
                            "%s", KEEP) "],"
                                        "'messages':[{'role':'user','content':'Spell: cat'}]" GREEDY "}",
                        words(0, 60));
    assert_true(usage(&next, "cache_read_input_tokens") >= usage(&r, "cache_creation_input_tokens"));
    assert_int_equal(usage(&next, "cache_creation_input_tokens"), 0);
    reply_free(&r);
    reply_free(&next);
    reply_free(&count);
    /* a mark inside a message: what comes behind it may change */
    r = client_postf(&s, MESSAGES, 200,
                     "{'max_tokens':4,'messages':[{'role':'user','content':[" BLOCK("%s", KEEP) "," BLOCK(
                         " first end", "") "]}]" GREEDY "}",
                     words(400, 60));
    assert_true(usage(&r, "cache_creation_input_tokens") > 150);
    next = client_postf(&s, MESSAGES, 200,
                        "{'max_tokens':4,'messages':[{'role':'user','content':[" BLOCK("%s", KEEP) "," BLOCK(
                            " and now another one", "") "]}]" GREEDY "}",
                        words(400, 60));
    assert_true(usage(&next, "cache_read_input_tokens") + 2 >= usage(&r, "cache_creation_input_tokens"));
    reply_free(&r);
    reply_free(&next);
    /* tools, and results of tools */
    r = client_postf(
        &s, MESSAGES, 200,
        "{'max_tokens':4,'tools':[{'name':'look_up','description':'%s','input_schema':{'type':'object'}" KEEP
        "}],'messages':[{'role':'user','content':'Look up: dog'},{'role':'assistant','content':"
        "[{'type':'tool_use','id':'t1','name':'look_up','input':{}}]},{'role':'user','content':"
        "[{'type':'tool_result','tool_use_id':'t1','content':'an animal that barks'" KEEP
        "},{'type':'text','text':'So?'}]}]" GREEDY "}",
        words(800, 40));
    assert_true(usage(&r, "cache_creation_input_tokens") > 150);
    assert_true(usage(&r, "input_tokens") < 40);
    reply_free(&r);
    server_stop(&s);
}

/* message_start of a stream has what the cache had. */
static void test_usage_in_streams(void **state)
{
    struct server s;
    struct reply r;
    json_t *v = NULL;
    const char *event = "";

    (void)state;
    open_server(&s);
    r = client_postf(&s, MESSAGES, 200,
                     "{'max_tokens':4,'messages':[{'role':'user','content':'%s'}]" GREEDY "}", words(0, 60));
    reply_free(&r);
    r = client_postf(&s, MESSAGES, 200,
                     "{'max_tokens':4,'stream':true,'messages':[{'role':'user','content':'%s'}]" GREEDY "}",
                     words(0, 60));
    assert_true(frame(&r, 0, &v, &event));
    assert_string_equal(event, "message_start");
    assert_true(int_at(v, "message.usage.cache_read_input_tokens") > 150);
    assert_true(int_at(v, "message.usage.input_tokens") < 60);
    json_decref(v);
    reply_free(&r);
    /* and a long prompt of a chat tells how far it is */
    r = client_postf(
        &s, CHAT, 200,
        "{'max_tokens':4,'stream':true,'return_progress':true,'messages':[{'role':'user','content':"
        "'%s'}]" GREEDY "}",
        words(0, 60));
    {
        bool told = false;

        for (size_t i = 0; frame(&r, i, &v, NULL); i++) {
            if (v && at(v, "prompt_progress")) {
                told = true;
                assert_int_equal(json_array_size(at(v, "choices")), 0);
                assert_true(int_at(v, "prompt_progress.total") >= int_at(v, "prompt_progress.processed"));
                assert_true(int_at(v, "prompt_progress.processed") >= int_at(v, "prompt_progress.cached"));
                assert_true(int_at(v, "prompt_progress.time_ms") >= 0);
            }
            json_decref(v);
        }
        assert_true(told);
    }
    reply_free(&r);
    server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_and_drop),
        cmocka_unit_test(test_prewarm),
        cmocka_unit_test(test_save_over_restart),
        cmocka_unit_test(test_foreign_file),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_cache_control),
        cmocka_unit_test(test_usage_in_streams),
    };

    snprintf(folder, sizeof folder, "%s", test_tmpdir());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
