/*
 * Field case 11: control tokens come from trusted bytes alone, and trust changes nothing else.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tok_help.h"

#include "base/limits.h"
#include "base/strbuf.h"

/* A prompt as a chat template renders it: its own text trusted, everything quoted not. */
struct prompt {
    struct esp_strbuf text;
    struct esp_text_span span[64];
    size_t n;
};

static void trusted(struct prompt *p, const char *s)
{
    p->span[p->n].start = p->text.len;
    assert_true(esp_strbuf_puts(&p->text, s));
    p->span[p->n++].end = p->text.len;
}

static void untrusted(struct prompt *p, const char *s)
{
    assert_true(esp_strbuf_puts(&p->text, s));
}

static struct esp_ids encode(const struct esp_tokenizer *t, const struct prompt *p)
{
    const struct esp_tok_input in = {
        .text = esp_strbuf_str(&p->text), .len = p->text.len, .trusted = p->span, .n_trusted = p->n};
    struct esp_ids ids;
    esp_error err;

    esp_ids_init(&ids, 100000);
    test_ok(esp_tokenizer_encode(t, &in, &ids, &err), &err);
    return ids;
}

static size_t count(const struct esp_tokenizer *t, const struct esp_ids *ids, const char *token)
{
    uint32_t id = 0;
    size_t n = 0;

    assert_true(esp_tokenizer_find(t, token, strlen(token), &id));
    assert_true(esp_tokenizer_is_added(t, id));
    for (size_t i = 0; i < ids->n; i++)
        n += ids->data[i] == id;
    return n;
}

/* The messages of a case through the turns of ChatML; tool results become user turns. */
static struct prompt render(const json_t *messages)
{
    struct prompt p = {.n = 0};

    esp_strbuf_init(&p.text, 1 << 20);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));

        trusted(&p, "<|im_start|>");
        trusted(&p, strcmp(role, "tool") == 0 ? "user" : role);
        trusted(&p, "\n");
        untrusted(&p, json_string_value(json_object_get(m, "content")));
        trusted(&p, "<|im_end|>\n");
    }
    trusted(&p, "<|im_start|>assistant\n<think>\n");
    return p;
}

static void test_field_case_11_injection(void **state)
{
    static const struct {
        const char *id;
        size_t turns;
    } expect[] = {{"inj-turn", 3}, {"inj-tool-result", 4}, {"inj-think-literal", 2}};
    struct esp_tokenizer *t = tok_open("models/demo");
    json_t *root = test_json("tests/data/cases/special_token_injection.json");
    const json_t *cases = json_object_get(root, "cases");

    (void)state;
    assert_int_equal(json_array_size(cases), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *c = json_array_get(cases, i);
        struct prompt p = render(json_object_get(c, "messages"));
        struct esp_ids ids = encode(t, &p);
        struct esp_strbuf back = tok_decode(t, &ids, 0);

        assert_string_equal(json_string_value(json_object_get(c, "id")), expect[i].id);
        assert_int_equal(count(t, &ids, "<|im_start|>"), expect[i].turns);
        assert_int_equal(count(t, &ids, "<|im_end|>"), expect[i].turns - 1);
        assert_int_equal(count(t, &ids, "<think>"), 1); /* the template's own */
        assert_int_equal(count(t, &ids, "</think>"), 0);
        assert_int_equal(count(t, &ids, "<tool_call>"), 0);
        assert_string_equal(esp_strbuf_str(&back), esp_strbuf_str(&p.text)); /* nothing is lost or escaped */
        esp_strbuf_free(&back);
        esp_strbuf_free(&p.text);
        esp_ids_free(&ids);
    }
    json_decref(root);
    esp_tokenizer_close(t);
}

static void test_field_case_11_the_switch(void **state)
{
    static const char text[] = "a<|im_end|>b</think>";
    struct esp_tokenizer *t = tok_mini();
    struct esp_ids none = tok_encode(t, text, sizeof text - 1, 0);
    struct esp_ids all = tok_encode(t, text, sizeof text - 1, ESP_TOK_TRUST_ALL);

    (void)state;
    assert_int_equal(all.n, 4);
    assert_int_equal(all.data[1], 308);
    assert_int_equal(all.data[3], 310);
    for (size_t i = 0; i < none.n; i++)
        assert_false(esp_tokenizer_is_added(t, none.data[i]));
    esp_ids_free(&none);
    esp_ids_free(&all);
    esp_tokenizer_close(t);
}

/* Text beside a trusted run neither completes a token of it nor spoils one. */
static void test_borders(void **state)
{
    struct esp_tokenizer *t = tok_mini();
    struct prompt p = {.n = 0};
    struct esp_ids ids;

    (void)state;
    esp_strbuf_init(&p.text, 1000);
    untrusted(&p, "<|im_");
    trusted(&p, "start|>");
    ids = encode(t, &p);
    assert_int_equal(count(t, &ids, "<|im_start|>"), 0);
    esp_ids_free(&ids);

    esp_strbuf_clear(&p.text);
    p.n = 0;
    untrusted(&p, "<|im_start|>");
    trusted(&p, "<|im_start|>");
    untrusted(&p, "x"); /* there is a token <|im_start|>x */
    trusted(&p, "<|im_");
    trusted(&p, "end|>"); /* spans that touch are one run */
    ids = encode(t, &p);
    assert_int_equal(count(t, &ids, "<|im_start|>"), 1);
    assert_int_equal(count(t, &ids, "<|im_start|>x"), 0);
    assert_int_equal(count(t, &ids, "<|im_end|>"), 1);
    esp_ids_free(&ids);
    esp_strbuf_free(&p.text);
    esp_tokenizer_close(t);
}

/* Tokens that are looked for after normalisation: trust follows the text through it. */
static void test_trust_through_normalisation(void **state)
{
    struct esp_tokenizer *t = tok_mini();
    struct prompt p = {.n = 0};
    struct esp_ids ids;

    (void)state;
    esp_strbuf_init(&p.text, 1000);
    untrusted(&p, "r\u00e9sum\u00e9 re\u0301sume\u0301 e\u0301\u0316 ");
    trusted(&p, "re\u0301sume\u0301 a r\u00e9sum\u00e9");
    untrusted(&p, " re\u0301sum\u00e9 ");
    trusted(&p, "r\u00e9sume");
    untrusted(
        &p,
        "\u0301 \xff r\u00e9sum\u00e9 "); /* the mark is not trusted; and an ill-formed byte moves the rest */
    trusted(&p, "r\u00e9sum\u00e9");
    ids = encode(t, &p);
    assert_int_equal(count(t, &ids, "r\u00e9sum\u00e9"), 3);
    esp_ids_free(&ids);
    esp_strbuf_free(&p.text);
    esp_tokenizer_close(t);
}

/* Spans are no borders for split and merges: without tokens in it, a text's ids do not depend on trust. */
static void test_trust_changes_nothing_else(void **state)
{
    static const char text[] = "Hello world, the caf\u00e9's  ing\n\n e\u0301 12 <|im|>";
    struct esp_tokenizer *t = tok_mini();
    struct esp_ids want = tok_encode(t, text, sizeof text - 1, 0);

    (void)state;
    for (size_t a = 0; a < sizeof text; a++) {
        for (size_t b = a; b < sizeof text; b++) {
            const struct esp_text_span s = {a, b};
            const struct esp_tok_input in = {
                .text = text, .len = sizeof text - 1, .trusted = &s, .n_trusted = 1};
            struct esp_ids got;
            esp_error err;

            esp_ids_init(&got, 1000);
            test_ok(esp_tokenizer_encode(t, &in, &got, &err), &err);
            assert_int_equal(got.n, want.n);
            assert_memory_equal(got.data, want.data, want.n * sizeof *want.data);
            esp_ids_free(&got);
        }
    }
    esp_ids_free(&want);
    esp_tokenizer_close(t);
}

static void test_bad_arguments(void **state)
{
    static const struct esp_text_span bad[][2] = {{{0, 5}, {4, 6}}, {{3, 2}, {4, 5}}, {{0, 1}, {8, 11}}};
    struct esp_tokenizer *t = tok_mini();
    struct esp_ids ids;
    esp_error err;

    (void)state;
    esp_ids_init(&ids, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct esp_tok_input in = {.text = "0123456789", .len = 10, .trusted = bad[i], .n_trusted = 2};

        test_refused(esp_tokenizer_encode(t, &in, &ids, &err), ESP_EINVAL, &err, "span");
    }
    {
        const struct esp_tok_input in = {.text = "ab\xff", .len = 3, .flags = ESP_TOK_REFUSE_INVALID};
        const struct esp_tok_input four = {.text = "1234", .len = 4};
        const struct esp_tok_input huge = {.text = "1234", .len = (size_t)ESP_LIMIT_TEXT_BYTES + 1};

        test_refused(esp_tokenizer_encode(t, &in, &ids, &err), ESP_EINVAL, &err, "byte 2 of 3");
        test_refused(esp_tokenizer_encode(t, &four, &ids, &err), ESP_ENOFIT, &err, "3 tokens");
        test_refused(esp_tokenizer_encode(t, &huge, &ids, &err), ESP_ENOFIT, &err, "at most");
    }
    assert_int_equal(ids.n, 0);
    esp_ids_free(&ids);
    esp_tokenizer_close(t);
}

/* Ill-formed text is read as Python's errors="replace" reads it. */
static void test_invalid_utf8(void **state)
{
    static const char *const cases[][2] = {
        {"a\xff\x62", "a\ufffd\x62"},
        {"\xe2\x82(", "\ufffd("},
        {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
        {"\xf0\x9f\x98", "\ufffd"},
    };
    struct esp_tokenizer *t = tok_mini();

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct esp_ids ids = tok_encode(t, cases[i][0], strlen(cases[i][0]), 0);
        struct esp_strbuf b = tok_decode(t, &ids, 0);

        assert_string_equal(esp_strbuf_str(&b), cases[i][1]);
        esp_strbuf_free(&b);
        esp_ids_free(&ids);
    }
    esp_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_field_case_11_injection),
        cmocka_unit_test(test_field_case_11_the_switch),
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_trust_through_normalisation),
        cmocka_unit_test(test_trust_changes_nothing_else),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_invalid_utf8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
