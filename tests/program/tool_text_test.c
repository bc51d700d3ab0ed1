/*
 * Tool calls as people see them, for every way of cutting the answer into two pieces and into single bytes.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/strbuf.h"
#include "program/tool_text.h"
#include "support/support.h"

static struct esp_strbuf shown;

static void show(void *user, const char *s, size_t len)
{
    assert_ptr_equal(user, &shown);
    assert_true(len > 0);
    assert_true(esp_strbuf_add(&shown, s, len));
}

/* answer in pieces: cut at one place, or with 0 every byte alone. */
static void run(const char *answer, size_t cut)
{
    const size_t n = strlen(answer);
    struct esp_tool_text *t;
    esp_error err;

    esp_strbuf_clear(&shown);
    test_ok(esp_tool_text_create(&t, show, &shown, &err), &err);
    if (cut) {
        esp_tool_text_feed(t, answer, cut);
        esp_tool_text_feed(t, answer + cut, n - cut);
    }
    for (size_t i = 0; !cut && i < n; i++)
        esp_tool_text_feed(t, answer + i, 1);
    esp_tool_text_end(t);
    esp_tool_text_destroy(t);
}

static void test_calls(void **state)
{
    static const char *const cases[][2] = {
        {"no call < here > at all <tool", "no call < here > at all <tool"},
        {"Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
         "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
         "Let me see.\ntool call: get_weather\n  city: Paris\n  days: 3\n"},
        {"<tool_call><function=a></function></tool_call>\n<tool_call><function= b ></function></tool_call>.",
         "tool call: a\n\ntool call: b\n."},
        {"<tool_call>\n<function=write>\n<parameter=text>\nif x:\n    y()\n\n</parameter>\n</function>\n"
         "</tool_call>",
         "tool call: write\n  text:\n    if x:\n        y()\n"},
        {"<tool_call><function=w><parameter=t>\na </parameter> b\n</parameter></function></tool_call>",
         "tool call: w\n  t: a </parameter> b\n"},
        {"<tool_call><function=w><parameter=t></parameter></function></tool_call>", "tool call: w\n  t:\n"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": \"x\", \"c\": [1, {\"d\": "
         "null}]}}\n"
         "</tool_call>",
         "tool call: f\n  a: 1\n  b: x\n  c: [1,{\"d\":null}]\n"},
        {"<tool_call> what is this </tool_call>", "tool call: what is this\n"},
        {"x<tool_call>\n<function=cut>\n<parameter=a>\nhal", "xtool call: cut\n  a: hal\n  (unfinished)\n"},
        {"<tool_call>", "tool call: \n  (unfinished)\n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t cut = 0; cut < strlen(cases[i][0]); cut++) {
            run(cases[i][0], cut);
            if (strcmp(esp_strbuf_str(&shown), cases[i][1]) != 0)
                fail_msg("case %zu cut at %zu: %s", i, cut, esp_strbuf_str(&shown));
        }
    }
}

/* A megabyte of arguments, byte by byte, is looked at once. */
static void test_long(void **state)
{
    static char answer[1 << 20];
    const int head = snprintf(answer, sizeof answer, "<tool_call><function=f><parameter=a>");

    (void)state;
    memset(answer + head, '<', sizeof answer - (size_t)head - 1);
    run(answer, 0);
    assert_true(shown.len > sizeof answer - 100);
}

static void test_out_of_memory(void **state)
{
    struct esp_tool_text *t = NULL;
    esp_error err;

    (void)state;
    esp_mem_fail_at(0);
    assert_int_equal(esp_tool_text_create(&t, show, &shown, &err), ESP_ENOMEM);
    esp_mem_fail_at(-1);
    esp_strbuf_clear(&shown); /* its memory stays */
    test_ok(esp_tool_text_create(&t, show, &shown, &err), &err);
    esp_mem_fail_at(0);
    esp_tool_text_feed(t, "a<tool", 6); /* nothing can be held: it passes as it is */
    esp_mem_fail_at(-1);
    assert_string_equal(esp_strbuf_str(&shown), "a<tool");
    esp_tool_text_end(t);
    esp_tool_text_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_out_of_memory),
    };
    int failed;

    esp_strbuf_init(&shown, 1 << 22);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    esp_strbuf_free(&shown);
    return failed;
}
