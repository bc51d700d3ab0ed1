/*
 * The text stream: published cases of split characters and stop strings, thinking tags, and that no way of
 * cutting the bytes changes what comes out.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "program/text_stream.h"
#include "support/support.h"

struct sink {
    char text[2][4096]; /* by channel */
    size_t n[2];
};

static void collect(void *user, enum esp_channel channel, const char *s, size_t len)
{
    struct sink *k = user;

    assert_true(esp_utf8_valid(s, len, NULL)); /* every delta */
    assert_true(k->n[channel] + len < sizeof k->text[0]);
    memcpy(k->text[channel] + k->n[channel], s, len);
    k->n[channel] += len;
    k->text[channel][k->n[channel]] = 0;
}

/* Feed pieces and end; whether a stop string ended it. */
static bool feed(struct sink *k, enum esp_text_mode mode, const char *const *stops, size_t n_stops,
                 const json_t *pieces)
{
    struct esp_text_stream *t;
    esp_error err;
    bool stopped = false;
    size_t i;
    const json_t *piece;

    memset(k, 0, sizeof *k);
    test_ok(esp_text_stream_create(&t, mode, stops, n_stops, collect, k, &err), &err);
    json_array_foreach(pieces, i, piece)
    {
        const char *hex = json_string_value(piece);
        char bytes[256];
        size_t n = 0;

        for (; hex[2 * n]; n++) {
            const char two[3] = {hex[2 * n], hex[2 * n + 1], 0};

            bytes[n] = (char)strtoul(two, NULL, 16);
        }
        if (!stopped)
            test_ok(esp_text_stream_feed(t, bytes, n, &stopped, &err), &err);
    }
    test_ok(esp_text_stream_end(t, &err), &err);
    stopped = esp_text_stream_stop(t) != NULL;
    esp_text_stream_destroy(t);
    return stopped;
}

static void test_utf8_cases(void **state)
{
    json_t *doc = test_json("tests/data/cases/utf8_streams.json"), *c;
    struct sink k;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(doc, "cases"), i, c)
    {
        feed(&k, ESP_TEXT_RAW, NULL, 0, json_object_get(c, "pieces_hex"));
        assert_string_equal(k.text[0], json_string_value(json_object_get(c, "expect_text")));
    }
    assert_true(i >= 4);
    json_decref(doc);
}

static void test_stop_cases(void **state)
{
    json_t *doc = test_json("tests/data/cases/stop_strings.json"), *c;
    struct sink k;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(doc, "cases"), i, c)
    {
        const json_t *list = json_object_get(c, "stop");
        const char *stops[16];
        bool stopped;

        for (size_t s = 0; s < json_array_size(list); s++)
            stops[s] = json_string_value(json_array_get(list, s));
        stopped = feed(&k, ESP_TEXT_RAW, stops, json_array_size(list), json_object_get(c, "pieces_hex"));
        assert_string_equal(k.text[0], json_string_value(json_object_get(c, "expect_text")));
        assert_int_equal(stopped, strcmp(json_string_value(json_object_get(c, "expect_end")), "stop") == 0);
    }
    assert_true(i >= 4);
    json_decref(doc);
}

struct expected {
    enum esp_text_mode mode;
    const char *text, *answer, *thinking;
};

static const struct expected tagged[] = {
    {ESP_TEXT_ANSWER, "plain", "plain", ""},
    {ESP_TEXT_ANSWER, "<think>a<b</think>\n\nyes", "yes", "a<b"},
    {ESP_TEXT_ANSWER, " \n<think>\nx\n</think> y", "y", "\nx\n"},
    {ESP_TEXT_ANSWER, "  spaced", "  spaced", ""},
    {ESP_TEXT_ANSWER, "<thin", "<thin", ""},
    {ESP_TEXT_ANSWER, "<thinker>", "<thinker>", ""},
    {ESP_TEXT_ANSWER, "so <think>no</think>", "so <think>no</think>", ""}, /* only at the beginning */
    {ESP_TEXT_THINKING, "hm\xc3\xa9</think>\nok", "ok", "hm\xc3\xa9"},
    {ESP_TEXT_THINKING, "never ends </thi", "", "never ends </thi"},
    {ESP_TEXT_THINKING, "END a</think>b END c", "b ", "END a"}, /* stop strings act on the answer alone */
    {ESP_TEXT_RAW, "<think>raw</think>", "<think>raw</think>", ""},
    {ESP_TEXT_ANSWER, "", "", ""},
};

static void test_tags_at_every_cut(void **state)
{
    static const char *const stops[] = {"END"};
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof tagged / sizeof *tagged; i++) {
        const struct expected *e = &tagged[i];
        const size_t len = strlen(e->text);

        for (size_t a = 0; a <= len; a++) {
            for (size_t b = a; b <= len; b++) {
                struct esp_text_stream *t;
                struct sink k = {0};
                bool stopped;

                test_ok(esp_text_stream_create(&t, e->mode, stops, 1, collect, &k, &err), &err);
                test_ok(esp_text_stream_feed(t, e->text, a, &stopped, &err), &err);
                test_ok(esp_text_stream_feed(t, e->text + a, b - a, &stopped, &err), &err);
                test_ok(esp_text_stream_feed(t, e->text + b, len - b, &stopped, &err), &err);
                test_ok(esp_text_stream_end(t, &err), &err);
                esp_text_stream_destroy(t);
                assert_string_equal(k.text[ESP_CHANNEL_ANSWER], e->answer);
                assert_string_equal(k.text[ESP_CHANNEL_THINKING], e->thinking);
            }
        }
    }
}

static void test_long_space(void **state)
{
    char text[600];
    struct esp_text_stream *t;
    struct sink k = {0};
    bool stopped;
    esp_error err;

    (void)state;
    memset(text, ' ', sizeof text - 1);
    text[sizeof text - 1] = 0;
    test_ok(esp_text_stream_create(&t, ESP_TEXT_ANSWER, NULL, 0, collect, &k, &err), &err);
    test_ok(esp_text_stream_feed(t, text, strlen(text), &stopped, &err), &err);
    test_ok(esp_text_stream_end(t, &err), &err);
    assert_string_equal(k.text[0], text);
    esp_text_stream_destroy(t);
}

static void test_refuses(void **state)
{
    static const char *const empty[] = {""}, *many[17];
    struct esp_text_stream *t;
    esp_error err;

    (void)state;
    for (int i = 0; i < 17; i++)
        many[i] = "x";
    assert_int_equal(esp_text_stream_create(&t, ESP_TEXT_RAW, empty, 1, collect, NULL, &err), ESP_EINVAL);
    test_refused(esp_text_stream_create(&t, ESP_TEXT_RAW, many, 17, collect, NULL, &err), ESP_EINVAL, &err,
                 "at most 16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_cases),        cmocka_unit_test(test_stop_cases),
        cmocka_unit_test(test_tags_at_every_cut), cmocka_unit_test(test_long_space),
        cmocka_unit_test(test_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
