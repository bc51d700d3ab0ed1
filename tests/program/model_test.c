/*
 * The program itself on the bundled model: reference values through the command line.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/spawn/spawn.h"
#include "support/support.h"

#define P ESP_PROGRAM
#define M "models/demo"

static void test_answers(void **state)
{
    struct run r = RUN(NULL, P, "run", M, "Repeat: river stone candle garden", "--temperature", "0"), again;

    (void)state;
    run_code(&r, 0);
    assert_string_equal(r.out, "river stone candle garden\n");
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "It was a dark night", "-n", "24", "-s", "3", "-N", "2");
    again = RUN(NULL, P, "generate", M, "-p", "It was a dark night", "-n", "24", "-s", "3", "-N", "2", "-t",
                "1", "--chunk", "3");
    run_code(&r, 0);
    assert_string_equal(r.out, again.out); /* whatever the threads and the cuts of the prompt */
    run_free(&again);
    /* the first of several is what one alone gives */
    again = RUN(NULL, P, "generate", M, "-p", "It was a dark night", "-n", "24", "-s", "3");
    run_code(&again, 0);
    assert_non_null(strstr(r.out, again.out));
    run_free(&again);
    run_free(&r);
}

static void test_form_of_answers(void **state)
{
    static const char schema[] =
        "{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"minItems\":2,\"maxItems\":2}";
    const char *dir = test_tmpdir(), *file = test_write(dir, "s.json", schema, sizeof schema - 1),
               *gbnf = test_write(dir, "g", "root ::= \"left\" | \"right\"\n", 26);
    struct run r = RUN(NULL, P, "run", M, "Spell: dog", "--json-schema", file, "--temperature", "0"), again;
    json_t *j;

    (void)state;
    run_code(&r, 0);
    j = json_loads(r.out, 0, NULL);
    assert_int_equal(json_array_size(j), 2);
    json_decref(j);
    again = RUN(NULL, P, "run", M, "Spell: dog", "--json-schema", schema, "--temperature", "0");
    assert_string_equal(r.out, again.out);
    run_free(&again);
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "Turn", "--grammar", gbnf);
    run_code(&r, 0);
    assert_true(strcmp(r.out, "left\n") == 0 || strcmp(r.out, "right\n") == 0);
    run_free(&r);
    r = RUN(NULL, P, "generate", M, "-p", "1 2 3", "--regex", "[0-9]{3}", "-N", "3");
    run_code(&r, 0);
    run_free(&r);
    r = RUN(NULL, P, "run", M, "x", "--regex", "(");
    run_code(&r, 3);
    run_says(&r, "line 1, column 2: a ( without its )");
    run_free(&r);
    r = RUN(NULL, P, "run", M, "x", "--regex", "a", "--grammar", gbnf);
    run_code(&r, 2);
    run_says(&r, "one of them is enough");
    run_free(&r);
}

/* Greedy ids of every prompt in the reference file, through --ids. */
static void test_greedy(void **state)
{
    json_t *doc = test_json("models/demo-golden/goldens.json"), *entry;
    const char *key;
    size_t tried = 0;

    (void)state;
    json_object_foreach(json_object_get(doc, "greedy"), key, entry)
    {
        json_t *ids = json_object_get(entry, "ids"), *want = json_object_get(entry, "output_ids"), *id;
        char *prompt = json_dumps(ids, JSON_COMPACT), count[16], *end;
        struct run r;
        size_t i;

        if (strncmp(key, "base.", 5) != 0 || json_array_size(want) == 0) {
            free(prompt);
            continue;
        }
        snprintf(count, sizeof count, "%zu", json_array_size(want));
        r = RUN(NULL, P, "generate", M, "--ids", "-p", prompt, "-n", count, "--temperature", "0", "--act",
                "f32", "--kv", "f32");
        run_code(&r, 0);
        end = r.out;
        json_array_foreach(want, i, id)
        {
            char *next = end;
            const long got = strtol(end, &next, 10);

            if (next == end) { /* the end token is in the reference, and not printed */
                assert_int_equal(i + 1, json_array_size(want));
                break;
            }
            if (got != json_integer_value(id))
                fail_msg("%s: output %zu is %ld, not %lld: %s", key, i, got, json_integer_value(id), r.out);
            end = next;
        }
        tried++;
        run_free(&r);
        free(prompt);
    }
    assert_true(tried > 3);
    json_decref(doc);
}

static void test_tokens(void **state)
{
    json_t *list =
               json_load_file(test_path("models/demo-golden/tokenizer_golden.json"), JSON_ALLOW_NUL, NULL),
           *entry;
    size_t i, tried = 0;

    (void)state;
    assert_non_null(list);
    json_array_foreach(list, i, entry)
    {
        const char *text = json_string_value(json_object_get(entry, "text"));
        json_t *ids = json_object_get(entry, "ids"), *j;
        struct run_how how = {.input = text};
        struct run r;

        if (!text || strlen(text) != json_string_length(json_object_get(entry, "text")) || tried == 12)
            continue;
        r = RUN(&how, P, "tokenize", M, "--json", "--control", "on");
        run_code(&r, 0);
        j = run_json(&r, 0);
        assert_true(json_equal(json_object_get(j, "ids"), ids));
        json_decref(j);
        run_free(&r);
        tried++;
    }
    assert_true(tried > 5);
    json_decref(list);
}

static void test_round_trip(void **state)
{
    static const char text[] = "Caf\xc3\xa9 <|im_end|>\n\tx  <think>";
    struct run_how how = {.input = text};
    struct run ids = RUN(&how, P, "tokenize", M), back;

    (void)state;
    run_code(&ids, 0);
    how.input = ids.out;
    back = RUN(&how, P, "detokenize", M);
    run_code(&back, 0);
    assert_string_equal(back.out, text);
    run_free(&ids);
    run_free(&back);
}

static void test_perplexity(void **state)
{
    json_t *doc = test_json("models/demo-golden/goldens.json"),
           *want = json_object_get(doc, "val_nll_per_sequence");
    struct run r = RUN(NULL, P, "perplexity", M, "--data", "models/demo-golden/val.npy", "--chunks", "2",
                       "--act", "f32", "--kv", "f32", "--json");
    json_t *j = run_json(&r, 0);
    const double mean =
        (json_number_value(json_array_get(want, 0)) + json_number_value(json_array_get(want, 1))) / 2;

    (void)state;
    run_code(&r, 0);
    assert_int_equal(json_integer_value(json_object_get(j, "tokens")), 2 * 1023);
    assert_true(fabs(json_number_value(json_object_get(j, "nll")) - mean) < 2e-4);
    json_decref(j);
    run_free(&r);
    json_decref(doc);
}

static void test_inspect(void **state)
{
    struct run r = RUN(NULL, P, "inspect", M, "--json", "--check", "--tensors=*.q_norm.weight");
    json_t *j = run_json(&r, 0), *config = json_object_get(j, "config"), *check = json_object_get(j, "check");

    (void)state;
    run_code(&r, 0);
    assert_string_equal(json_string_value(json_object_get(j, "arch")), "qwen3_5");
    assert_string_equal(json_string_value(json_array_get(json_object_get(config, "layer_map"), 3)), "full");
    assert_int_equal(json_array_size(json_object_get(config, "layer_map")), 8);
    assert_int_equal(json_array_size(json_object_get(j, "tensors")), 3);
    assert_int_equal(json_integer_value(json_object_get(check, "nan")), 0);
    assert_true(json_integer_value(json_object_get(check, "values")) > 11000000);
    json_decref(j);
    run_free(&r);
    r = RUN(NULL, P, "inspect", M, "--template");
    run_prints(&r, "{%- if tools %}");
    run_free(&r);
}

/* What layers keep: as much as fit counts, layer by layer as a file says, and refused as an engine would. */
static void test_inspect_memory(void **state)
{
    static const char config[] = "[{\"layer_idx\":7,\"scheme\":\"turbo:k8v4:own\"}]";
    const char *file = test_write(test_tmpdir(), "kv_config.json", config, sizeof config - 1);
    const char *const kinds[][2] = {{"q8", "f32"}, {"turbo", "q8"}, {file, "bf16"}};
    struct run r;

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        json_int_t kv = 0, kept = 0;
        json_t *j, *m, *fit, *terms, *layer;
        size_t k;

        r = RUN(NULL, P, "fit", M, "--json", "--kv", kinds[i][0], "--state", kinds[i][1]);
        fit = run_json(&r, 0);
        terms = json_object_get(fit, "terms");
        run_free(&r);
        r = RUN(NULL, P, "inspect", M, "--plan", "--json", "--kv", kinds[i][0], "--state", kinds[i][1]);
        j = run_json(&r, 0);
        run_free(&r);
        assert_true(json_is_null(json_object_get(j, "plan"))); /* nothing was quantized */
        m = json_object_get(j, "memory");
        json_array_foreach(json_object_get(m, "layers"), k, layer)
        {
            kv += json_integer_value(json_object_get(layer, "kv_per_token"));
            kept += json_integer_value(json_object_get(layer, "state_bytes"));
        }
        assert_int_equal(k, 8);
        assert_int_equal(kv, json_integer_value(json_object_get(m, "kv_per_token")));
        assert_int_equal(kept, json_integer_value(json_object_get(m, "state_bytes")));
        assert_int_equal(kv, json_integer_value(json_object_get(terms, "kv_per_token")));
        assert_int_equal(kept, json_integer_value(json_object_get(terms, "state_per_row")));
        if (i == 2) {
            layer = json_array_get(json_object_get(m, "layers"), 3);
            assert_string_equal(json_string_value(json_object_get(layer, "kv")), "bf16");
            layer = json_array_get(json_object_get(m, "layers"), 7);
            assert_string_equal(json_string_value(json_object_get(layer, "kv")), "turbo:k8v4:own");
        }
        json_decref(j);
        json_decref(fit);
    }
    r = RUN(NULL, P, "inspect", M, "--plan", "--kv", "turbo:k4v4", "--kv-start", "300");
    run_code(&r, 0);
    run_prints(&r, "turbo:k4v4");
    run_prints(&r, "the first 300 tokens: exact");
    run_free(&r);
    r = RUN(NULL, P, "inspect", M, "--plan", "--kv-start", "5000");
    run_code(&r, 2);
    run_says(&r, "kv_start 5000; at most the context, 4096");
    run_free(&r);
    r = RUN(NULL, P, "inspect", M, "--plan=/tmp/never.svg");
    run_code(&r, 3);
    run_says(&r, "espalier_recipe.json");
    run_free(&r);
}

/* A copy of the model with one file replaced is refused or found out. */
static const char *copy_with(const char *cmd)
{
    static char dir[256], line[1024];

    snprintf(dir, sizeof dir, "%s/m", test_tmpdir());
    snprintf(line, sizeof line, "rm -rf %s && cp -r %s %s && cd %s && %s", dir, M, dir, dir, cmd);
    assert_int_equal(system(line), 0);
    return dir;
}

static void test_damage(void **state)
{
    struct run r = RUN(NULL, P, "inspect", copy_with("truncate -s -100 model-00002-of-00002.safetensors"));

    (void)state;
    run_code(&r, 3);
    run_says(&r, "model-00002-of-00002.safetensors");
    run_silent(&r);
    run_free(&r);
    /* NaN in the last two bytes of a shard */
    r = RUN(NULL, P, "inspect",
            copy_with("printf '\\377\\177' | dd of=model-00001-of-00002.safetensors bs=1 conv=notrunc "
                      "seek=$(($(stat -c %s model-00001-of-00002.safetensors) - 2)) 2>/dev/null"),
            "--check");
    run_code(&r, 7);
    run_prints(&r, "has 1 NaN");
    run_free(&r);
    r = RUN(NULL, P, "run", copy_with("rm tokenizer.json"), "hi");
    run_code(&r, 3);
    run_silent(&r);
    run_free(&r);
    r = RUN(NULL, P, "run", copy_with("rm tokenizer.json && ln -s tokenizer.json tokenizer.json"), "hi");
    run_code(&r, 3);
    run_says(&r, "m/tokenizer.json");
    run_free(&r);
    r = RUN(NULL, P, "run", copy_with("echo '{' >tokenizer_config.json"), "hi");
    run_code(&r, 3);
    run_says(&r, "m/tokenizer_config.json: invalid JSON");
    run_free(&r);
    /* every weight of a shard NaN: found while binding the norms */
    r = RUN(
        NULL, P, "run",
        copy_with(
            "size=$(stat -c %s model-00002-of-00002.safetensors); "
            "yes | tr 'y\\n' '\\377\\177' | head -c 7000000 | dd of=model-00002-of-00002.safetensors bs=1M "
            "iflag=fullblock oflag=seek_bytes seek=$((size - 7000000)) conv=notrunc 2>/dev/null"),
        "hi");
    run_code(&r, 3);
    run_says(&r, "is not finite");
    run_free(&r);
    r = RUN(NULL, P, "run", copy_with("echo >chat_template.jinja"), "hi");
    run_code(&r, 3);
    run_says(&r, "no tokens");
    run_free(&r);
    r = RUN(NULL, P, "run", copy_with("echo '{' >config.json"), "hi", "--json");
    run_code(&r, 3);
    json_decref(run_json(&r, 0));
    run_free(&r);
}

/* "do_sample": false is the model's wish to be greedy; a flag still wins. */
static void test_models_defaults(void **state)
{
    const char *dir =
        copy_with("echo '{\"do_sample\": false, \"temperature\": 1.5}' >generation_config.json");
    struct run a = RUN(NULL, P, "generate", dir, "-p", "Once upon a time", "-n", "24", "-s", "1"),
               b = RUN(NULL, P, "generate", M, "-p", "Once upon a time", "-n", "24", "--temperature", "0"),
               c = RUN(NULL, P, "generate", dir, "-p", "Once upon a time", "-n", "24", "-s", "1", "--temp",
                       "5");

    (void)state;
    run_code(&a, 0);
    assert_string_equal(a.out, b.out);
    assert_string_not_equal(a.out, c.out);
    run_free(&a);
    run_free(&b);
    run_free(&c);
}

static void test_fit_and_budget(void **state)
{
    struct run r = RUN(NULL, P, "fit", M, "--json", "--ctx", "2048");
    json_t *j = run_json(&r, 0), *at = json_object_get(j, "at");
    const double total = json_number_value(json_object_get(at, "total_bytes"));
    char budget[32];

    (void)state;
    run_code(&r, 0);
    assert_true(total > 1e7);
    json_decref(j);
    run_free(&r);
    /* a budget far below what fit says is refused with both numbers */
    snprintf(budget, sizeof budget, "%.0f", total / 4);
    r = RUN(NULL, P, "generate", M, "-p", "x", "-n", "1", "--ctx", "2048", "--memory-budget", budget);
    run_code(&r, 4);
    run_says(&r, budget);
    run_free(&r);
}

static void test_bench_rows(void **state)
{
    struct run r = RUN(NULL, P, "bench", M, "-p", "8", "-n", "2", "-b", "1,2", "-d", "4", "-r", "1",
                       "--no-warmup", "--json");

    (void)state;
    run_code(&r, 0);
    assert_int_equal(run_lines(&r), 3);
    for (size_t i = 0; i < 3; i++) {
        json_t *j = run_json(&r, i);

        assert_true(json_number_value(json_object_get(j, "mean_tps")) > 0);
        json_decref(j);
    }
    run_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),        cmocka_unit_test(test_form_of_answers),
        cmocka_unit_test(test_greedy),         cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_perplexity),
        cmocka_unit_test(test_inspect),        cmocka_unit_test(test_inspect_memory),
        cmocka_unit_test(test_damage),         cmocka_unit_test(test_models_defaults),
        cmocka_unit_test(test_fit_and_budget), cmocka_unit_test(test_bench_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
