/*
 * Which documents a schema lets through: cases written from the specification, and random schemas whose
 * documents, made by random choices among the allowed bytes, must satisfy a validator that shares nothing
 * with the room.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/random_schema.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "base/utf8.h"

static struct esp_vocab *bytes;

struct conforms {
    const char *schema;
    unsigned flags;
    const char *ok[8], *bad[8];
};

static const struct conforms cases[] = {
    {"{\"type\":\"null\"}", 0, {"null"}, {"nul", "0", "", "nullx", " null"}},
    {"{\"type\":\"boolean\"}", 0, {"true", "false"}, {"True", "1", "tru"}},
    {"{\"type\":\"integer\"}", 0, {"0", "-1", "123456789012345678"}, {"01", "-0", "1.0", "+1", "1e3", "-"}},
    {"{\"type\":\"number\"}",
     0,
     {"0", "-0.5", "1e9", "12.25E-3", "-0"},
     {".5", "1.", "1e", "--1", "01", "NaN"}},
    {"{\"type\":\"string\"}",
     0,
     {"\"\"", "\"a\\n\\u00e9\\ud83d\\ude00\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\/\""},
     {"\"\n\"", "\"\\u0000\"", "\"\\ud83d\"", "\"\\x\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "a"}},
    {"{\"type\":[\"integer\",\"null\"]}", 0, {"1", "null"}, {"\"\"", "1.5"}},
    {"{\"type\":\"string\",\"nullable\":true}", 0, {"\"x\"", "null"}, {"1"}},
    {"{\"enum\":[1,\"a\",null,[1,{\"k\":2.5}],0.1]}",
     0,
     {"1", "\"a\"", "null", "[1,{\"k\":2.5}]", "0.1"},
     {"2", "\"b\"", "[1]", "0.10000000000000001"}},
    {"{\"const\":\"\xc3\xa9\\\"\\n\"}", 0, {"\"\xc3\xa9\\\"\\n\""}, {"\"e\""}},
    {"{\"type\":\"integer\",\"enum\":[1,\"a\",2]}", 0, {"1", "2"}, {"\"a\""}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"}},"
     "\"required\":["
     "\"a\"]}",
     0,
     {"{\"a\":1}", "{\"a\": 1, \"b\": true}", "{\n  \"a\": 1,\n  \"b\": false\n}"},
     {"{}", "{\"b\":true}", "{\"b\":true,\"a\":1}", "{\"a\":1,}", "{\"a\":1,\"c\":2}", "{\"a\":\"1\"}",
      "{\"a\":1,\"a\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":true,\"b\":true,\"c\":true}}",
     0,
     {"{}", "{\"c\":1}", "{\"a\":1,\"c\":2}", "{\"b\":[]}", "{ }"},
     {"{\"c\":1,\"a\":2}", "{,}", "{\"b\":}", "{  }"}},
    {"{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":"
     "\"string\"}}",
     0,
     {"{\"ab\":1,\"x\":\"y\"}", "{\"a\":\"\"}", "{\"abc\":\"\",\"\":\"\"}", "{\"\xc3\xa9\":\"\"}"},
     {"{\"ab\":\"\"}", "{\"x\":1}", "{\"x\":\"\",\"ab\":1}", "{\"\\u0061b\":\"\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}}}",
     ESP_SCHEMA_OPEN,
     {"{\"a\":null,\"z\":[1]}", "{\"z\":{}}"},
     {"{\"a\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":false}",
     ESP_SCHEMA_OPEN,
     {"{}"},
     {"{\"b\":1}"}},
    {"{\"type\":\"object\"}", 0, {"{}", "{\"x\": [1, {\"y\": null}]}"}, {"[]", "{\"x\"}"}},
    {"{\"required\":[\"q\"]}", 0, {"{\"q\":1}"}, {"{}", "[]"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}",
     ESP_SCHEMA_COMPACT,
     {"{\"a\":1}"},
     {"{\"a\": 1}", "{ \"a\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
     0,
     {"[]", "[1]", "[1, 2,3]", "[\n 1\n]"},
     {"[1,]", "[\"\"]", "[,1]"}},
    {"{\"type\":\"array\",\"items\":{\"const\":0},\"minItems\":2,\"maxItems\":3}",
     0,
     {"[0,0]", "[0,0,0]"},
     {"[]", "[0]", "[0,0,0,0]"}},
    {"{\"type\":\"array\",\"maxItems\":0}", 0, {"[]", "[ ]"}, {"[1]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}",
     0,
     {"[]", "[1]", "[1,2]"},
     {"[2]", "[1,2,3]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":5},\"minItems\":2,"
     "\"maxItems\":3}",
     0,
     {"[1,5]", "[1,5,5]"},
     {"[1]", "[5,5]", "[1,5,5,5]"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"array\"}]}", 0, {"1", "[\"x\"]"}, {"\"\""}},
    {"{\"type\":\"object\",\"properties\":{\"k\":{\"const\":1}},\"oneOf\":[{\"properties\":{\"x\":{\"const\":"
     "1}},\"required\":["
     "\"x\"]},{\"properties\":{\"y\":{\"const\":2}},\"required\":[\"y\"]}]}",
     0,
     {"{\"k\":1,\"x\":1}", "{\"y\":2}"},
     {"{\"k\":1}", "{\"x\":2}", "{\"x\":1,\"y\":2}"}},
    {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{"
     "\"properties\":{"
     "\"b\":{\"const\":true},\"a\":{\"minimum\":5}}}]}",
     0,
     {"{\"a\":5}", "{\"a\":7,\"b\":true}"},
     {"{\"b\":true}", "{\"a\":4}", "{\"a\":7,\"b\":1}"}},
    {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"allOf\":[{\"type\":\"integer\"}]}",
     0,
     {"3"},
     {"\"\""}},
    {"{\"$ref\":\"#/$defs/"
     "t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"n\":{"
     "\"anyOf\":[{\"$ref\":\"#/$defs/t\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"n\"]}}}",
     0,
     {"{\"v\":1,\"n\":null}", "{\"v\":1,\"n\":{\"v\":2,\"n\":{\"v\":3,\"n\":null}}}"},
     {"{\"v\":1,\"n\":{}}", "{\"v\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", 0, {"[]", "[[],[[]]]"}, {"[1]"}},
    {"{\"$ref\":\"#/definitions/a~1b\",\"definitions\":{\"a/b\":{\"const\":1}}}", 0, {"1"}, {"2"}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     0,
     {"\"ab\"", "\"\xc3\xa9\xc3\xa9\xc3\xa9\"", "\"\\n\\n\""},
     {"\"a\"", "\"abcd\"", "\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c]+$\"}", 0, {"\"abc\""}, {"\"\"", "\"abd\"", "\"xabc\""}},
    {"{\"type\":\"string\",\"pattern\":\"b\"}", 0, {"\"b\"", "\"abc\""}, {"\"ac\""}},
    {"{\"type\":\"string\",\"pattern\":\"^\\\"\\\\\\\\x$\"}", 0, {"\"\\\"\\\\x\""}, {"\"\"\\\\x\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a*$\",\"minLength\":2,\"maxLength\":3}",
     0,
     {"\"aa\"", "\"aaa\""},
     {"\"a\"", "\"aaaa\"", "\"ab\""}},
    {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", 0, {"\"ab\"", "\"xbya\""}, {"\"a\"", "\"bb\""}},
    {"{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12}",
     0,
     {"-3", "0", "9", "10", "12"},
     {"-4", "13", "20", "-10", "-0"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":99,\"exclusiveMaximum\":1201}",
     0,
     {"100", "999", "1000", "1200"},
     {"99", "1201", "1300", "0", "0100"}},
    {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":7.9}", 0, {"1", "7"}, {"0", "8"}},
    {"{\"type\":\"integer\",\"minimum\":-20,\"maximum\":-5}",
     0,
     {"-5", "-9", "-10", "-20"},
     {"-4", "-21", "5", "0"}},
    {"{\"type\":\"integer\",\"minimum\":9223372036854775807}",
     0,
     {"9223372036854775807"},
     {"9223372036854775806", "1"}},
    {"{\"format\":\"date\"}",
     0,
     {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\""}},
    {"{\"format\":\"time\"}",
     0,
     {"\"23:59:59Z\"", "\"00:00:00.5+01:30\""},
     {"\"24:00:00Z\"", "\"12:00:00\""}},
    {"{\"format\":\"date-time\"}", 0, {"\"2024-01-01T00:00:00Z\""}, {"\"2024-01-01 00:00:00Z\""}},
    {"{\"format\":\"uuid\"}", 0, {"\"01234567-89ab-cdef-0123-456789abcdef\""}, {"\"0123\"\""}},
    {"{\"format\":\"email\"}", 0, {"\"a.b@c-d.org\""}, {"\"a@b\"", "\"@b.c\"", "\"a@b..c\""}},
    {"{\"format\":\"ipv4\"}",
     0,
     {"\"127.0.0.1\"", "\"255.255.255.255\""},
     {"\"256.1.1.1\"", "\"1.1.1\"", "\"01.1.1.1\""}},
    {"{\"format\":\"ipv6\"}",
     0,
     {"\"::1\"", "\"::\"", "\"1:2:3:4:5:6:7:8\"", "\"fe80::a:b\""},
     {"\"1::2::3\"", "\"1:2:3\"", "\":1\""}},
    {"{\"format\":\"uri\"}",
     0,
     {"\"https://example.org/a?b=c#d\"", "\"ftp://h:21/%20\""},
     {"\"example.org\"", "\"http://\"", "\"http://a/ b\""}},
    {"true", 0, {"1", "[{}]"}, {"x"}},
    {"{\"title\":\"t\",\"description\":\"d\",\"x-note\":1,\"default\":3}", 0, {"1"}, {"x"}},
    {"{\"type\":\"integer\"}", ESP_SCHEMA_LEAD, {"1", "\n\n1"}, {"\n\n\n1", " 1"}},
    {"{\"anyOf\":[{\"type\":\"string\",\"minLength\":5,\"maxLength\":1},{\"type\":\"null\"}]}",
     0,
     {"null"},
     {"\"\""}},
};

static void documents(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct conforms *c = &cases[i];
        struct esp_grammar *g = NULL;
        esp_error err;

        if (compile_schema(&g, bytes, c->schema, c->flags, &err) != ESP_OK)
            fail_msg("%s: %s", c->schema, err.message);
        for (int k = 0; k < 8 && c->ok[k]; k++)
            if (judge(g, c->ok[k], strlen(c->ok[k])) != 1)
                fail_msg("%s: %s is refused", c->schema, c->ok[k]);
        for (int k = 0; k < 8 && c->bad[k]; k++)
            if (judge(g, c->bad[k], strlen(c->bad[k])) == 1)
                fail_msg("%s: %s is accepted", c->schema, c->bad[k]);
        esp_grammar_release(g);
    }
}

static const struct {
    const char *schema;
    esp_status status;
    const char *part;
} refusals[] = {
    {"{\"not\":{}}", ESP_EUNSUPPORTED, "\"not\" at #"},
    {"{\"properties\":{\"a\":{\"if\":{}}}}", ESP_EUNSUPPORTED, "\"if\" at #/properties/a"},
    {"{\"patternProperties\":{}}", ESP_EUNSUPPORTED, "patternProperties"},
    {"{\"items\":{\"uniqueItems\":true}}", ESP_EUNSUPPORTED, "\"uniqueItems\" at #/items"},
    {"{\"dependentRequired\":{}}", ESP_EUNSUPPORTED, "dependentRequired"},
    {"{\"$ref\":\"http://x/y\"}", ESP_EUNSUPPORTED, "$ref"},
    {"{\"$ref\":\"#/$defs/none\"}", ESP_EFORMAT, "there is no #/$defs/none"},
    {"{\"type\":\"number\",\"minimum\":1}", ESP_EUNSUPPORTED, "\"minimum\" at #"},
    {"{\"multipleOf\":2}", ESP_EUNSUPPORTED, "multipleOf"},
    {"{\"format\":\"hostname\"}", ESP_EUNSUPPORTED, "\"hostname\""},
    {"{\"type\":\"strin\"}", ESP_EFORMAT, "\"type\" at #"},
    {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", ESP_EUNSUPPORTED, "pattern"},
    {"{\"type\":\"string\",\"pattern\":\"(\"}", ESP_EFORMAT, "without its )"},
    {"{\"minLength\":-1}", ESP_EFORMAT, "minLength"},
    {"{\"minimum\":\"1\"}", ESP_EFORMAT, "minimum"},
    {"{\"required\":\"a\"}", ESP_EFORMAT, "required"},
    {"{\"enum\":[]}", ESP_EFORMAT, "enum"},
    {"{\"anyOf\":[]}", ESP_EFORMAT, "anyOf"},
    {"{\"items\":[{}]}", ESP_EUNSUPPORTED, "items"},
    {"{\"maxLength\":100000000,\"type\":\"string\"}", ESP_ENOFIT, "repetition"},
    {"false", ESP_EFORMAT, "the schema is false"},
    {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", ESP_EFORMAT, "minimum is above"},
    {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", ESP_EFORMAT, "exclude each other"},
    {"{\"type\":\"object\",\"properties\":{\"a\":false},\"required\":[\"a\"]}", ESP_EFORMAT, "forbidden"},
    {"{\"type\":\"array\",\"items\":false,\"minItems\":1}", ESP_EFORMAT, "fewer items"},
    {"{\"$ref\":\"#\"}", ESP_ENOFIT, "round and round"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", ESP_EFORMAT,
     "never be completed"},
    {"[]", ESP_EFORMAT, "not an object"},
};

static void what_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct esp_grammar *g = NULL;
        esp_error err = {0};

        test_refused(compile_schema(&g, bytes, refusals[i].schema, 0, &err), refusals[i].status, &err,
                     refusals[i].part);
        assert_null(g);
    }
}

/* ---- random schemas ---- */

/* A document by random choices, which after a while prefer whatever closes; its length, 0 if it grew too
 * long. */
static size_t random_document(struct esp_grammar *g, struct esp_rng_key *k, char *out, size_t cap)
{
    struct esp_matcher *m = NULL;
    esp_error err;
    size_t n = 0;

    test_ok(esp_matcher_open(&m, g, NULL, &err), &err);
    while (n < cap && esp_matcher_state(m) != ESP_MATCH_ENDED) {
        uint64_t bits[4] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
        uint32_t ids[256], n_id = 0, id;
        const char *close;

        if (esp_matcher_state(m) == ESP_MATCH_MAY_END && draw(k, 2))
            break;
        test_ok(esp_matcher_mask(m, bits, 4, &err), &err);
        for (id = 0; id < 256; id++)
            if (has(bits, id))
                ids[n_id++] = id;
        assert_true(n_id > 0); /* never stuck */
        id = ids[draw(k, n_id)];
        for (close = "}]\"0n"; n > 60 && *close; close++)
            if (has(bits, (unsigned char)*close)) {
                id = (unsigned char)*close;
                break;
            }
        test_ok(esp_matcher_accept(m, id, &err), &err);
        out[n++] = (char)id;
    }
    if (esp_matcher_state(m) == ESP_MATCH_MORE)
        n = 0;
    esp_matcher_close(m);
    return n;
}

static void random_schemas(void **state)
{
    struct esp_rng_key k = {.seed = 4711};
    const char *runs = getenv("ESPALIER_TEST_SCHEMAS");
    int n = 400, n_ok = 0, n_doc = 0;

    (void)state;
#ifdef __SANITIZE_ADDRESS__
    n = 100;
#endif
    for (n = runs ? (int)strtol(runs, NULL, 10) : n; n > 0; n--) {
        json_t *schema = random_schema(&k, 3), *doc;
        struct esp_grammar *g = NULL;
        char text[2000];
        esp_error err;
        esp_status s;

        json_object_set_new(schema, "$defs", json_pack("{s:o}", "d", random_schema(&k, 1)));
        s = esp_grammar_schema(&g, bytes, schema, draw(&k, 2) ? ESP_SCHEMA_OPEN : 0, &err);
        if (s != ESP_OK) {
            assert_true(s == ESP_EFORMAT || s == ESP_EUNSUPPORTED || s == ESP_ENOFIT);
            assert_non_null(strstr(err.message, "schema"));
        }
        for (int i = 0; s == ESP_OK && i < 5; i++) {
            const size_t len = random_document(g, &k, text, sizeof text);

            if (len == 0)
                continue;
            n_doc++;
            if (esp_json_parse(&doc, text, len, "document", ESP_JSON_NO_DUPLICATES, &err) != ESP_OK)
                fail_msg("%s in %.*s", err.message, (int)len, text);
            if (!valid(schema, schema, doc, true))
                fail_msg("%.*s does not satisfy %s", (int)len, text, json_dumps(schema, 0));
            json_decref(doc);
        }
        n_ok += s == ESP_OK;
        esp_grammar_release(g);
        json_decref(schema);
    }
    print_message("%d schemas compiled, %d documents valid\n", n_ok, n_doc);
    assert_true(n_ok > 50 && n_doc > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(random_schemas),
    };
    int r;

    bytes = open_bytes();
    r = cmocka_run_group_tests(tests, NULL, NULL);
    esp_vocab_destroy(bytes);
    return r;
}
