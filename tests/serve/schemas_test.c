/*
 * Random schemas over the wire, with thinking and without, with speculation and without: an answer that ends
 * satisfies a validator that shares nothing with the server, a schema that cannot be is refused with 400, and
 * speculation changes no letter.
 *
 * ESPALIER_TEST_SCHEMAS=N makes it N schemas instead of 6.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include "grammar/random_schema.h"

#include "base/mem.h"

struct counts {
    int valid, cut, refused;
};

static struct reply ask(const struct process *p, const json_t *schema, int seed, bool thinking)
{
    json_t *body =
        json_pack("{s:[{s:s,s:s}], s:b, s:i, s:i, s:f, s:i, s:{s:s, s:{s:s, s:b, s:O}}}", "messages", "role",
                  "user", "content", "Add: 12 + 7", "enable_thinking", thinking, "thinking_budget", 8,
                  "max_tokens", 160, "temperature", 1.0, "seed", seed, "response_format", "type",
                  "json_schema", "json_schema", "name", "random", "strict", 0, "schema", schema);
    char *text = json_dumps(body, 0);
    struct reply r = client_do(&p->at, "POST", "/v1/chat/completions", NULL, text);

    esp_free(text);
    json_decref(body);
    return r;
}

static void check(const struct reply *r, const json_t *schema, bool thinking, struct counts *n)
{
    const char *text = text_at(r->json, "choices.0.message.content");
    json_t *v = NULL;
    esp_error err;

    if (r->status == 400) {
        const char *code = text_at(r->json, "error.code");

        if (strcmp(code, "invalid_grammar") != 0 && strcmp(code, "schema_unsupported") != 0 &&
            strcmp(code, "grammar_too_large") != 0)
            fail_msg("%s: %s", json_dumps(schema, 0), r->body);
        n->refused++;
        return;
    }
    assert_int_equal(r->status, 200);
    if (thinking)
        assert_true(text_at(r->json, "choices.0.message.reasoning_content")[0] != '\0');
    if (strcmp(text_at(r->json, "choices.0.finish_reason"), "length") == 0) {
        n->cut++;
        return;
    }
    if (esp_json_parse(&v, text, strlen(text), "answer", ESP_JSON_NO_DUPLICATES, &err) != ESP_OK)
        fail_msg("%s: %s", err.message, r->body);
    if (!valid(schema, schema, v, true))
        fail_msg("%s does not satisfy %s", text, json_dumps(schema, 0));
    json_decref(v);
    n->valid++;
}

static void test_schemas(void **state)
{
    const char *wish = getenv("ESPALIER_TEST_SCHEMAS");
    const int want = wish ? (int)strtol(wish, NULL, 10) : 6;
    struct esp_rng_key k = {.seed = 815};
    struct counts n = {0};
    struct process plain, mtp;
    json_t *schema = NULL;

    (void)state;
    PROCESS(&plain, "--parallel", "2", "--ctx", "512", "--cache-ram", "16MiB");
    PROCESS(&mtp, "--parallel", "2", "--ctx", "512", "--cache-ram", "16MiB", "--spec", "mtp");
    for (int i = 0; i < 2 * want; i++) {
        const bool thinking = i % 2;
        struct reply a, b;

        if (!thinking) {
            json_decref(schema);
            schema = random_schema(&k, 3);
            json_object_set_new(schema, "$defs", json_pack("{s:o}", "d", random_schema(&k, 1)));
        }
        a = ask(&plain, schema, i, thinking);
        b = ask(&mtp, schema, i, thinking);
        check(&a, schema, thinking, &n);
        check(&b, schema, thinking, &n);
        assert_int_equal(a.status, b.status);
        assert_true(json_equal(at(a.json, "choices"), at(b.json, "choices")) || a.status == 400);
        reply_free(&a);
        reply_free(&b);
    }
    print_message("%d answers valid, %d cut, %d schemas refused; %.0f drafts accepted\n", n.valid, n.cut,
                  n.refused, process_stat(&mtp, "spec.accepted"));
    assert_true(n.valid > 2 * want && process_stat(&mtp, "spec.accepted") > 0);
    json_decref(schema);
    process_stop(&plain);
    process_stop(&mtp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schemas)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
