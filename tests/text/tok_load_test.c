/*
 * Opening tokenizer files: each kind of wrong file is refused by name, every allocation may fail, and the
 * variants that are right give the same ids.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tok_help.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/limits.h"
#include "base/mem.h"

static const char mini[] = "tests/data/cases/tok_mini.tokenizer.json";

static esp_status parse_json(struct esp_tokenizer **t, const json_t *root, const char *config, esp_error *err)
{
    char *text = json_dumps(root, JSON_INDENT(1));
    esp_status s;

    assert_non_null(text);
    s = esp_tokenizer_parse(t, text, strlen(text), config, config ? strlen(config) : 0, "t.json", err);
    free(text);
    return s;
}

/* Walk a path like "model.merges" or "added_tokens.0" and replace the value there; NULL removes it. */
static void put(json_t *root, const char *path, const char *value)
{
    json_t *at = root, *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    char part[64];

    assert_true(!value || v);
    for (;;) {
        const size_t n = strcspn(path, ".");

        assert_true(n < sizeof part);
        memcpy(part, path, n);
        part[n] = '\0';
        path += n;
        if (*path == '\0')
            break;
        path++;
        at = json_is_array(at) ? json_array_get(at, (size_t)strtol(part, NULL, 10))
                               : json_object_get(at, part);
        assert_non_null(at);
    }
    if (json_is_array(at))
        json_array_set_new(at, (size_t)strtol(part, NULL, 10), v);
    else if (v)
        json_object_set_new(at, part, v);
    else
        json_object_del(at, part);
}

/* long: one line a refusal */
static void test_refusals(void **state)
{
    static const struct {
        const char *path, *value; /* NULL: removed */
        esp_status status;
        const char *part;
    } cases[] = {
        {"normalizer", "{\"type\": \"Lowercase\"}", ESP_EUNSUPPORTED, "Lowercase"},
        {"normalizer",
         "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Strip\"}]}",
         ESP_EUNSUPPORTED, "Strip"},
        {"normalizer", "{\"type\": \"Sequence\"}", ESP_EFORMAT, "normalizers"},
        {"normalizer", "7", ESP_EFORMAT, "type"},
        {"pre_tokenizer", NULL, ESP_EUNSUPPORTED, "ByteLevel"},
        {"pre_tokenizer", "{\"type\": \"Whitespace\"}", ESP_EUNSUPPORTED, "Whitespace"},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}", ESP_EUNSUPPORTED,
         "add_prefix_space"},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": 1}", ESP_EFORMAT, "true or false"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", ESP_EUNSUPPORTED, "Removed"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\": \" \"}", ESP_EUNSUPPORTED, "Regex"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"(a\"}", ESP_EFORMAT, "split pattern"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"a*\"}", ESP_EUNSUPPORTED, "empty string"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"\"}", ESP_EFORMAT, "0 bytes"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"\\\\w+\"}", ESP_EUNSUPPORTED, "\\w"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"^a\"}", ESP_EUNSUPPORTED, "anchor"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"(?<n>a)\"}", ESP_EUNSUPPORTED, "group"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"\\\\p{Han}\"}", ESP_EUNSUPPORTED,
         "general category"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"[a&&b]\"}", ESP_EUNSUPPORTED,
         "intersection"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"[a[b]]\"}", ESP_EUNSUPPORTED,
         "class inside"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"[\\\\S]\"}", ESP_EUNSUPPORTED, "negated"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"a{2}+\"}", ESP_EUNSUPPORTED, "counted"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"a{,2}\"}", ESP_EUNSUPPORTED, "brace"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\": \"a\\\\\"}", ESP_EUNSUPPORTED, "escape"},
        {"post_processor", "{\"type\": \"TemplateProcessing\"}", ESP_EUNSUPPORTED, "TemplateProcessing"},
        {"decoder", NULL, ESP_EUNSUPPORTED, "decoder"},
        {"decoder", "{\"type\": \"WordPiece\"}", ESP_EUNSUPPORTED, "WordPiece"},
        {"model", NULL, ESP_EFORMAT, "model"},
        {"model", "[]", ESP_EFORMAT, "model"},
        {"model.type", "\"Unigram\"", ESP_EUNSUPPORTED, "Unigram"},
        {"model.dropout", "0.1", ESP_EUNSUPPORTED, "dropout"},
        {"model.end_of_word_suffix", "\"</w>\"", ESP_EUNSUPPORTED, "end_of_word_suffix"},
        {"model.continuing_subword_prefix", "\"##\"", ESP_EUNSUPPORTED, "continuing_subword_prefix"},
        {"model.ignore_merges", "\"no\"", ESP_EFORMAT, "ignore_merges"},
        {"model.vocab", NULL, ESP_EFORMAT, "vocab"},
        {"model.vocab", "{}", ESP_EFORMAT, "empty"},
        {"model.vocab", "[\"a\"]", ESP_EFORMAT, "vocab"},
        {"model.vocab", "{\"a\": 0}", ESP_EFORMAT, "byte 0x"},
        {"model.vocab.a", "98", ESP_EFORMAT, "duplicate id"},
        {"model.vocab.a", "-1", ESP_EFORMAT, "token id"},
        {"model.vocab.a", "1.5", ESP_EFORMAT, "token id"},
        {"model.vocab.a", "\"97\"", ESP_EFORMAT, "token id"},
        {"model.vocab.a", "4194304", ESP_EFORMAT, "ids below"},
        {"model.vocab.a", "9223372036854775807", ESP_EFORMAT, "token id"},
        {"model.vocab.a", NULL, ESP_EFORMAT, "byte 0x61"},
        {"model.merges", NULL, ESP_EFORMAT, "merges"},
        {"model.merges", "{}", ESP_EFORMAT, "merges"},
        {"model.merges.0", "[\"q\", \"q\"]", ESP_EFORMAT, "result"},
        {"model.merges.0", "[\"qq\", \"t\"]", ESP_EFORMAT, "left side"},
        {"model.merges.0", "\"t qq\"", ESP_EFORMAT, "right side"},
        {"model.merges.0", "\"\\u0120t\"", ESP_EFORMAT, "one space"},
        {"model.merges.0", "\"a b c\"", ESP_EFORMAT, "one space"},
        {"model.merges.0", "[\"a\"]", ESP_EFORMAT, "second side"},
        {"model.merges.0", "[\"a\", \"b\", \"c\"]", ESP_EFORMAT, "two sides"},
        {"model.merges.0", "5", ESP_EFORMAT, "a merge"},
        {"model.merges.0", "[1, 2]", ESP_EFORMAT, "a string"},
        {"added_tokens", "{}", ESP_EFORMAT, "array"},
        {"added_tokens.0.id", NULL, ESP_EFORMAT, "id"},
        {"added_tokens.0.id", "-1", ESP_EFORMAT, "id"},
        {"added_tokens.0.id", "99999999999", ESP_EFORMAT, "ids below"},
        {"added_tokens.0.id", "307", ESP_EFORMAT, "duplicate id"},
        {"added_tokens.0.id", "97", ESP_EFORMAT, "duplicate id"},
        {"added_tokens.0.content", "\"<|im_start|>\"", ESP_EFORMAT, "duplicate added token"},
        {"added_tokens.0.content", "\"a\"", ESP_EFORMAT, "duplicate token"},
        {"added_tokens.0.content", "\"\"", ESP_EFORMAT, "0 bytes"},
        {"added_tokens.0.content", "7", ESP_EFORMAT, "content"},
        {"added_tokens.0.special", "\"yes\"", ESP_EFORMAT, "special"},
        {"added_tokens.0", "[]", ESP_EFORMAT, "id"},
    };
    json_t *root = test_json(mini);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *copy = json_deep_copy(root);
        struct esp_tokenizer *t = NULL;
        esp_error err = {0};

        put(copy, cases[i].path, cases[i].value);
        test_refused(parse_json(&t, copy, NULL, &err), cases[i].status, &err, cases[i].part);
        test_refused(err.status, cases[i].status, &err, "t.json");
        assert_null(t);
        json_decref(copy);
    }
    json_decref(root);
}

/* Text that is no JSON, within and outside of the tables that are scanned without a tree. */
static void test_malformed(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "JSON"},
        {"[]", "object"},
        {"7", "object"},
        {"{\"model\": {\"vocab\": {\"a\": 1}, \"vocab\": {}}}", "duplicate"},
        {"{\"model\": {\"vocab\": {}}, \"model\": {}}", "duplicate"},
        {"{\"model\": {\"vocab\": {\"a\": 1", "JSON"},
        {"{\"model\": {\"vocab\": {\"a", "JSON"},
        {"{\"model\"", "JSON"},
        {"{\"model\": {\"vocab\": {}}} x", "JSON"},
        {"{\"a\": \"\xff\"}", "UTF-8"},
    };
    static const char *const vocab[][2] = {
        {"{\"a\" 1}", ":"},
        {"{\"a\": 1,}", "a string"},
        {"{\"a\": 01}", "token id"},
        {"{\"a\": 1 \"b\": 2}", ", or }"},
        {"{\"a\": 1e2}", "token id"},
        {"{a: 1}", "a string"},
        {"{\"\\x\": 1}", "escape"},
        {"{\"\\ud800\": 1}", "escape"},
        {"{\"\\u0000\": 1}", "escape"},
        {"{\"\xc3\": 1}", "UTF-8"},
        {"{\"\": 1}", "0 bytes"},
        {"{\"a\n\": 1}", "a string"},
        {"{\"a\": {}}", "token id"},
        {"{\"a\": null}", "token id"},
        {"{\"a\": 1, \"\\u0061\": 2}", "duplicate"},
        {"{\"a\": 1, \"a\": 1}", "duplicate"},
        {"{\"a\": 1, \"a\": 3}", "duplicate"},
        {"{\"a\": 99999999999999999999}", "token id"},
    };
    struct esp_tokenizer *t = NULL;
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_refused(esp_tokenizer_parse(&t, cases[i].text, strlen(cases[i].text), NULL, 0, "t.json", &err),
                     ESP_EFORMAT, &err, cases[i].part);
    for (size_t i = 0; i < sizeof vocab / sizeof vocab[0]; i++) {
        char text[512];

        snprintf(text, sizeof text,
                 "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": "
                 "{\"type\": "
                 "\"ByteLevel\"},\n\"model\": {\"merges\": [],\n\"vocab\": %s}}",
                 vocab[i][0]);
        test_refused(esp_tokenizer_parse(&t, text, strlen(text), NULL, 0, "t.json", &err), ESP_EFORMAT, &err,
                     vocab[i][1]);
    }
    test_refused(esp_tokenizer_open(&t, "/nonexistent/tokenizer.json", &err), ESP_ENOTFOUND, &err,
                 "nonexistent");
    test_refused(esp_tokenizer_open(&t, test_tmpdir(), &err), ESP_ENOTFOUND, &err, "tokenizer.json");
    assert_null(t);
}

static void test_long_tokens(void **state)
{
    json_t *root = test_json(mini);
    struct esp_tokenizer *t = NULL;
    char content[ESP_LIMIT_TOKEN_BYTES + 2], quoted[ESP_LIMIT_TOKEN_BYTES + 16];
    esp_error err;

    (void)state;
    memset(content, 'x', sizeof content);
    content[ESP_LIMIT_TOKEN_BYTES] = '\0';
    json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), content, json_integer(400));
    snprintf(quoted, sizeof quoted, "\"%s\"", content);
    put(root, "added_tokens.0.id", "400"); /* the same token in both places is fine */
    put(root, "added_tokens.0.content", quoted);
    test_ok(parse_json(&t, root, NULL, &err), &err);
    esp_tokenizer_close(t);
    t = NULL;
    content[ESP_LIMIT_TOKEN_BYTES] = 'x';
    content[ESP_LIMIT_TOKEN_BYTES + 1] = '\0';
    json_object_set_new(json_object_get(json_object_get(root, "model"), "vocab"), content, json_integer(401));
    test_refused(parse_json(&t, root, NULL, &err), ESP_EFORMAT, &err, "4097 bytes");
    json_decref(root);
}

/* The ids of some texts, as one list. */
static struct esp_ids sample(const struct esp_tokenizer *t)
{
    static const char text[] =
        "Hello  world the cafe\u0301 'LL x->y (x):\n\n <mask>a dance re\u0301sume\u0301 aaaaa \U0001f600";

    return tok_encode(t, text, sizeof text - 1, ESP_TOK_TRUST_ALL);
}

static void assert_same_ids(const json_t *root, const struct esp_ids *want)
{
    struct esp_tokenizer *t = NULL;
    struct esp_ids got;
    esp_error err;

    test_ok(parse_json(&t, root, NULL, &err), &err);
    got = sample(t);
    assert_int_equal(got.n, want->n);
    assert_memory_equal(got.data, want->data, got.n * sizeof *got.data);
    esp_ids_free(&got);
    esp_tokenizer_close(t);
}

/* Files that say the same in other words. */
static void test_equal_files(void **state)
{
    static const char *const changes[][2] = {
        {"model.type", NULL},
        {"model.dropout", "0.0"},
        {"model.unk_token", "\"<|endoftext|>\""},
        {"model.byte_fallback", "true"},
        {"model.continuing_subword_prefix", NULL},
        {"post_processor", "null"},
        {"post_processor", NULL},
        {"normalizer",
         "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFD\"}, {\"type\": \"NFC\"}]}"},
        {"truncation", "{\"max_length\": 3}"},
    };
    struct esp_tokenizer *t = tok_mini();
    struct esp_ids want = sample(t);
    json_t *root = test_json(mini), *merges = json_object_get(json_object_get(root, "model"), "merges"), *old;

    (void)state;
    esp_tokenizer_close(t);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        json_t *copy = json_deep_copy(root);

        put(copy, changes[i][0], changes[i][1]);
        assert_same_ids(copy, &want);
        json_decref(copy);
    }
    old = json_array(); /* merges as "a b" */
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *m = json_array_get(merges, i);

        json_array_append_new(old, json_sprintf("%s %s", json_string_value(json_array_get(m, 0)),
                                                json_string_value(json_array_get(m, 1))));
    }
    json_object_set_new(json_object_get(root, "model"), "merges", old);
    assert_same_ids(root, &want);
    json_decref(root);
    esp_ids_free(&want);
}

static uint32_t one_id(const struct esp_tokenizer *t, const char *text)
{
    struct esp_ids ids = tok_encode(t, text, strlen(text), ESP_TOK_TRUST_ALL);
    const uint32_t id = ids.n == 1 ? ids.data[0] : UINT32_MAX;

    esp_ids_free(&ids);
    return id;
}

/* Options that do change ids. */
static void test_options(void **state)
{
    json_t *root = test_json(mini), *copy;
    struct esp_tokenizer *t = NULL;
    esp_error err;

    (void)state;
    copy = json_deep_copy(root); /* "H" + "ello" style: the token is there but no merge leads to it */
    put(copy, "model.vocab.qzq", "500");
    test_ok(parse_json(&t, copy, NULL, &err), &err);
    assert_int_equal(one_id(t, "qzq"), UINT32_MAX);
    esp_tokenizer_close(t);
    put(copy, "model.ignore_merges", "true");
    test_ok(parse_json(&t, copy, NULL, &err), &err);
    assert_int_equal(one_id(t, "qzq"), 500);
    assert_int_equal(esp_tokenizer_n_ids(t), 501);
    esp_tokenizer_close(t);
    json_decref(copy);

    copy = json_deep_copy(root); /* without a normalizer the mark stays */
    put(copy, "normalizer", "null");
    test_ok(parse_json(&t, copy, NULL, &err), &err);
    assert_int_equal(one_id(t, "e\u0301"), UINT32_MAX);
    assert_int_equal(one_id(t, "\u00e9"), 276);
    esp_tokenizer_close(t);
    put(copy, "normalizer", "{\"type\": \"NFKC\"}");
    test_ok(parse_json(&t, copy, NULL, &err), &err);
    assert_int_equal(one_id(t, "e\u0301"), 276);
    assert_int_equal(one_id(t, "\uff48"), 'h'); /* full width */
    esp_tokenizer_close(t);
    json_decref(copy);

    copy = json_deep_copy(root); /* GPT-2's own split: no Split stage, and it keeps digits together */
    put(copy, "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}");
    test_ok(parse_json(&t, copy, NULL, &err), &err);
    assert_int_equal(one_id(t, "12"), 283);
    esp_tokenizer_close(t);
    json_decref(copy);
    json_decref(root);
}

static void test_config_file(void **state)
{
    json_t *root = test_json(mini);
    struct esp_tokenizer *t = NULL;
    esp_error err;

    (void)state;
    test_ok(
        parse_json(
            &t, root,
            "{\"added_tokens_decoder\": {\"320\": {\"content\": \"<|audio|>\", \"special\": true}, \"308\": "
            "{\"content\": \"<|im_end|>\", \"special\": false}}}",
            &err),
        &err);
    assert_int_equal(one_id(t, "<|audio|>"), 320);
    assert_int_equal(esp_tokenizer_n_ids(t), 321);
    assert_true(esp_tokenizer_is_special(t, 320));
    assert_true(esp_tokenizer_is_special(t, 308)); /* tokenizer.json's flags count */
    assert_false(esp_tokenizer_is_defined(t, 319));
    esp_tokenizer_close(t);
    t = NULL;
    test_refused(
        parse_json(&t, root, "{\"added_tokens_decoder\": {\"308\": {\"content\": \"<|end|>\"}}}", &err),
        ESP_EFORMAT, &err, "duplicate id");
    test_refused(
        parse_json(&t, root, "{\"added_tokens_decoder\": {\"999\": {\"content\": \"<|im_end|>\"}}}", &err),
        ESP_EFORMAT, &err, "duplicate added token");
    test_refused(parse_json(&t, root, "{\"added_tokens_decoder\": {\"x1\": {\"content\": \"q\"}}}", &err),
                 ESP_EFORMAT, &err, "x1");
    test_refused(parse_json(&t, root, "{\"added_tokens_decoder\": []}", &err), ESP_EFORMAT, &err,
                 "tokenizer_config.json");
    test_refused(
        parse_json(&t, root, "{\"added_tokens_decoder\": {\"999999999\": {\"content\": \"q\"}}}", &err),
        ESP_EFORMAT, &err, "ids below");
    test_refused(parse_json(&t, root, "{", &err), ESP_EFORMAT, &err, "tokenizer_config.json");
    test_ok(parse_json(&t, root, "{}", &err), &err);
    esp_tokenizer_close(t);
    json_decref(root);
}

/* Folder, file, and a config that lies beside it. */
static void test_open_from_files(void **state)
{
    static const char config[] =
        "{\"added_tokens_decoder\": {\"320\": {\"content\": \"<|audio|>\", \"special\": true}}}";
    const char *dir = test_tmpdir(), *file;
    json_t *root = test_json(mini);
    char *text = json_dumps(root, 0);
    struct esp_tokenizer *t = NULL;
    esp_error err;

    (void)state;
    file = test_write(dir, "tokenizer.json", text, strlen(text));
    test_ok(esp_tokenizer_open(&t, dir, &err), &err);
    assert_int_equal(esp_tokenizer_n_ids(t), 317);
    esp_tokenizer_close(t);
    test_write(dir, "tokenizer_config.json", config, sizeof config - 1);
    test_ok(esp_tokenizer_open(&t, file, &err), &err);
    assert_int_equal(esp_tokenizer_n_ids(t), 321);
    esp_tokenizer_close(t);
    test_write(dir, "tokenizer_config.json", "[", 1);
    test_refused(esp_tokenizer_open(&t, dir, &err), ESP_EFORMAT, &err, "tokenizer_config.json");
    free(text);
    json_decref(root);
}

/* Every allocation of ours fails once, in opening and in encoding a text that uses every step. */
static void test_out_of_memory(void **state)
{
    static const char text[] =
        "<mask>\xff re\u0301sume\u0301 \u0301\u0316\u0301\u0316 Hello world </think> aaaaaaaaaaaaaaaaa";
    static const struct esp_text_span span[] = {{0, 6}, {8, 17}, {35, 50}};
    struct esp_tokenizer *t = NULL;
    struct esp_ids ids;
    uint64_t n;
    esp_error err;

    (void)state;
    esp_mem_fail_at(-1);
    t = tok_mini();
    n = esp_mem_fail_at(-1);
    assert_true(n > 20);
    esp_tokenizer_close(t);
    for (uint64_t i = 0; i < n; i++) {
        esp_status s;

        t = NULL;
        esp_mem_fail_at((int64_t)i);
        s = esp_tokenizer_open(&t, test_path(mini), &err);
        esp_mem_fail_at(-1);
        if (s == ESP_OK) { /* giving memory back may fail without harm */
            assert_int_equal(one_id(t, " world"), 263);
            esp_tokenizer_close(t);
        } else {
            assert_int_equal(s, ESP_ENOMEM);
            assert_null(t);
        }
    }
    t = tok_mini();
    for (uint64_t i = 0;; i++) {
        const struct esp_tok_input in = {
            .text = text, .len = sizeof text - 1, .trusted = span, .n_trusted = 3};
        esp_status s;

        esp_ids_init(&ids, 1000);
        esp_mem_fail_at((int64_t)i);
        s = esp_tokenizer_encode(t, &in, &ids, &err);
        n = esp_mem_fail_at(-1);
        assert_true(s == ESP_OK || (s == ESP_ENOMEM && ids.n == 0));
        esp_ids_free(&ids);
        if (n <= i) {
            assert_int_equal(s, ESP_OK);
            assert_true(i > 5);
            break;
        }
    }
    esp_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_long_tokens),     cmocka_unit_test(test_equal_files),
        cmocka_unit_test(test_options),         cmocka_unit_test(test_config_file),
        cmocka_unit_test(test_open_from_files), cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
