/*
 * Events that are written by hand have the bytes that their objects have, in every dialect.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/shared.h"

#include <stdio.h>
#include <string.h>

#include "serve/server.h"

#define MESSAGES   "/v1/messages"
#define RESPONSES  "/v1/responses"
#define USER(text) "'messages':[{'role':'user','content':'" text "'}]"

/* WEIRD is escaped in every way that there is. */
static void test_frames(void **state)
{
#define WEIRD                                                                                                \
    "'guided_choice':['a\\u001b\\\"q\\\"\\\\\\n\\t\\b\\f\\r/"                                                \
    "\\u00e9\\ud83d\\ude00'],'max_tokens':80,'stream':true"
    static const struct {
        const char *path, *body;
    } cases[] = {
        {"/v1/chat/completions", "{" USER("Spell: garden") ",'temperature':0," WEIRD "}"},
        {"/v1/chat/completions",
         "{" USER("Spell: garden") ",'temperature':0,'n':2,'enable_thinking':true,"
                                   "'max_tokens':20,'stream':true,'stream_options':{'include_usage':true}}"},
        {"/v1/chat/completions",
         "{" USER("Look up: dog") ",'temperature':0,'stream':true,'tool_choice':"
                                  "'required','max_tokens':60,'tools':[{'type':'function','function':{'name':"
                                  "'look_up','parameters':{'type':'object','properties':{'word':{'type':"
                                  "'string'}},'required':['word']}}}]}"},
        {"/v1/completions", "{'prompt':'Once','temperature':0," WEIRD "}"},
        {"/v1/completions", "{'prompt':['Once','a b'],'n':2,'seed':1,'max_tokens':8,'stream':true,"
                            "'stream_options':{'include_usage':true}}"},
        {MESSAGES, "{" USER("Spell: garden") ",'temperature':0," WEIRD "}"},
        {MESSAGES, "{" USER("Spell: garden") ",'temperature':0,'max_tokens':40,'stream':true,'thinking':"
                                             "{'type':'enabled','budget_tokens':16}}"},
        {RESPONSES, "{'input':'Spell: garden','temperature':0," WEIRD "}"},
        {RESPONSES,
         "{'input':'Spell: garden','temperature':0,'max_output_tokens':40,'stream':true,'reasoning':"
         "{'effort':'low'}}"}};
    size_t texts = 0;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct reply r = client_postf(&shared, cases[i].path, 200, cases[i].body, "");

        for (const char *at_ = r.body; (at_ = strstr(at_, "data: {")) != NULL; at_++) {
            const char *line = at_ + 6, *end = strchr(line, '\n');
            json_t *v = json_loadb(line, (size_t)(end - line), 0, NULL);
            struct esp_strbuf again;

            esp_strbuf_init(&again, 1 << 20);
            assert_non_null(v);
            assert_true(esp_json_add(&again, v));
            if (again.len != (size_t)(end - line) || memcmp(again.data, line, again.len) != 0)
                fail_msg("%.*s is not %s", (int)(end - line), line, again.data);
            texts += strstr(again.data, "\\u001B") || strstr(again.data, "garden");
            esp_strbuf_free(&again);
            json_decref(v);
        }
        reply_free(&r);
    }
    assert_true(texts >= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_frames)};

    return cmocka_run_group_tests(tests, start_plain, stop);
}
