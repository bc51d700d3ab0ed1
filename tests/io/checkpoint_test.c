/*
 * Model directories: what is missing, what the index may name, and what happens when index and shards
 * disagree.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/model_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/checkpoint.h"

static const struct mf_tensor A = {"a", {2}, 0}, B = {"b", {3}, 0}, C = {"c", {1}, 0};

static const char *dir_with_config(void)
{
    const char *dir = test_tmpdir();
    json_t *j = mf_config();

    mf_write_json(dir, "config.json", j);
    json_decref(j);
    return dir;
}

static void index_of(const char *dir, const char *weight_map)
{
    char text[1024];

    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":[1,{\"x\":null}]},\"weight_map\":%s}",
             weight_map);
    mf_write_text(dir, "model.safetensors.index.json", text);
}

static void refused(const char *dir, esp_status wanted, const char *part)
{
    struct esp_checkpoint *c = NULL;
    esp_error err;

    test_refused(esp_checkpoint_open(&c, dir, &err), wanted, &err, part);
    assert_null(c);
}

static struct esp_checkpoint *opened(const char *dir)
{
    struct esp_checkpoint *c = NULL;
    esp_error err;

    test_ok(esp_checkpoint_open(&c, dir, &err), &err);
    return c;
}

static void test_missing_things(void **state)
{
    const char *dir = test_tmpdir();
    char path[512];

    (void)state;
    snprintf(path, sizeof path, "%s/nothing", dir);
    refused(path, ESP_ENOTFOUND, "no such directory; a model directory holds config.json");
    refused("", ESP_ENOTFOUND, "no such directory");
    refused(dir, ESP_ENOTFOUND, "no config.json");
    refused(test_path("models/demo/config.json"), ESP_EINVAL, "is a file, not a directory");
    refused(test_path("models/demo/config.json/x"), ESP_ENOTFOUND, "no such directory");
    dir = dir_with_config();
    refused(dir, ESP_ENOTFOUND, "no safetensors file");
    mf_write_text(dir, "config.json", "{\"a\":1");
    refused(dir, ESP_EFORMAT, "config.json");
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    refused(dir, ESP_EFORMAT, "not a regular file");
}

static void test_demo_shards(void **state)
{
    struct esp_checkpoint *c = opened(test_path("models/demo"));
    uint32_t at;

    (void)state;
    assert_int_equal(c->main.n_file, 2);
    assert_int_equal(c->main.n_tensor, esp_st_count(c->main.file[0]) + esp_st_count(c->main.file[1]));
    assert_int_equal(esp_checkpoint_find(c, "mtp.fc.weight")->shape[1], 512);
    assert_null(esp_checkpoint_find(c, "mtp.fc.weigh"));
    assert_non_null(esp_tensor_set_prefix(&c->main, "mtp.layers.", &at));
    assert_string_equal(c->main.tensor[at]->name, "mtp.layers.0.input_layernorm.weight");
    assert_null(esp_tensor_set_prefix(&c->main, "zzz", &at));
    assert_int_equal(c->warnings.n, 0);
    esp_checkpoint_close(c);
    esp_checkpoint_close(NULL);
}

/* Field case 6. */
static void test_case_6_shard_names(void **state)
{
    static const char *const bad[] = {
        "../outside/secret.safetensors",
        "/etc/secret.safetensors",
        "",
        ".",
        "..",
        "./m.safetensors",
        "sub/m.safetensors",
        "sub\\\\m.safetensors",
        "...safetensors",
        ".safetensors",
        "model.bin",
        "m.safetensors ",
        "m\\n.safetensors",
        "m\\u0000.safetensors",
    };
    const char *dir = dir_with_config();

    (void)state;
    mf_write(dir, "m.safetensors", &A, 1, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char map[256];

        snprintf(map, sizeof map, "{\"a\":\"m.safetensors\",\"b\":\"%s\"}", bad[i]);
        index_of(dir, map);
        refused(dir, ESP_EFORMAT, i == 13 ? "zero character" : "plain file name");
    }
}

static void test_case_6_manifest(void **state)
{
    const char *dir = dir_with_config();
    json_t *j = test_json("tests/data/cases/st/index_traversal/model.safetensors.index.json");

    (void)state;
    mf_write(dir, "model-00001-of-00001.safetensors", &A, 1, NULL, NULL);
    mf_write_json(dir, "model.safetensors.index.json", j);
    json_decref(j);
    refused(dir, ESP_EFORMAT, "'../outside/secret.safetensors' of tensor 'b' is refused");
    refused(test_path("tests/data/cases/st/index_traversal"), ESP_ENOTFOUND, "config.json");
}

static void test_index_against_shards(void **state)
{
    const struct mf_tensor ab[2] = {A, B}, bc[2] = {B, C};
    const char *dir = dir_with_config();
    struct esp_checkpoint *c;

    (void)state;
    mf_write(dir, "x.safetensors", ab, 2, NULL, NULL);
    mf_write(dir, "y.safetensors", bc, 2, NULL, NULL);
    index_of(dir, "{\"a\":\"x.safetensors\",\"c\":\"z.safetensors\"}");
    refused(dir, ESP_ENOTFOUND, "shard z.safetensors, listed in the index, is missing");
    index_of(dir, "{\"a\":\"x.safetensors\",\"c\":\"x.safetensors\"}");
    refused(dir, ESP_EFORMAT, "'c' is placed in x.safetensors, which does not contain it");
    index_of(dir, "{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"}");
    refused(dir, ESP_EFORMAT, "duplicate tensor 'b'");
    index_of(dir, "{\"c\":\"y.safetensors\",\"a\":\"x.safetensors\"}");
    c = opened(dir);
    assert_int_equal(c->main.n_tensor, 2);
    assert_null(esp_checkpoint_find(c, "b"));
    assert_non_null(esp_checkpoint_find(c, "c"));
    assert_int_equal(c->warnings.n, 1);
    assert_non_null(strstr(c->warnings.text[0], "2 tensors in the shards are not in the index"));
    esp_checkpoint_close(c);
}

static void test_bad_indexes(void **state)
{
    static const char *const bad[][2] = {
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"\\u0061\":\"x.safetensors\"}}",
         "duplicate tensor name 'a'"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\"},\"weight_map\":{}}", "duplicate key 'weight_map'"},
        {"{\"weight_map\":{}}", "no weight_map"},
        {"{}", "no weight_map"},
        {"[]", "'{' expected"},
        {"", "'{' expected"},
        {"{\"weight_map\":{\"a\":1}}", "'\"' expected"},
        {"{\"x\":[1,,2]}", "a value expected"},
        {"{\"x\":[1,2}", "expected"},
        {"{\"x\":01}", "a value expected"},
        {"{\"x\":-}", "a value expected"},
        {"{\"x\":tru}", "a value expected"},
        {"{\"x\":{\"a\" 1}}", "':' expected"},
        {"{\"x\":\"\xff\"}", "UTF-8"},
        {"{\"x\":1} x", "after the end"},
    };
    const char *dir = dir_with_config();
    char deep[512] = "{\"x\":";

    (void)state;
    mf_write(dir, "x.safetensors", &A, 1, NULL, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_write_text(dir, "model.safetensors.index.json", bad[i][0]);
        refused(dir, ESP_EFORMAT, bad[i][1]);
    }
    memset(deep + 5, '[', 200);
    mf_write_text(dir, "model.safetensors.index.json", deep);
    refused(dir, ESP_EFORMAT, "nesting too deep");
    mf_write_text(dir, "model.safetensors.index.json",
                  "{\"s\":[[],{},[{\"a\":[]},-1.5e+3,0,true,false,null,\"\\\"\"]],\"weight_map\":{\"a\":\"x."
                  "safetensors\"}}\n");
    esp_checkpoint_close(opened(dir));
}

static void test_single_beside_index(void **state)
{
    const char *dir = dir_with_config();
    struct esp_checkpoint *c;

    (void)state;
    mf_write(dir, "model.safetensors", &A, 1, NULL, NULL);
    c = opened(dir);
    assert_int_equal(c->main.n_tensor, 1);
    esp_checkpoint_close(c);
    mf_write(dir, "x.safetensors", &B, 1, NULL, NULL);
    index_of(dir, "{\"b\":\"x.safetensors\"}");
    c = opened(dir);
    assert_non_null(esp_checkpoint_find(c, "b"));
    assert_null(esp_checkpoint_find(c, "a"));
    assert_int_equal(c->warnings.n, 1);
    esp_checkpoint_close(c);
}

static void test_side_files(void **state)
{
    const char *dir = dir_with_config();
    struct esp_checkpoint *c;

    (void)state;
    mf_write(dir, "model.safetensors", &A, 1, NULL, NULL);
    mf_write(dir, "mtp.safetensors", &B, 1, NULL, NULL);
    c = opened(dir);
    assert_int_equal(c->side.n_tensor, 1);
    assert_null(esp_checkpoint_find(c, "b"));
    assert_non_null(esp_tensor_set_find(&c->side, "b"));
    esp_checkpoint_close(c);
    mf_write(dir, "mtp-2.safetensors", &B, 1, NULL, NULL);
    refused(dir, ESP_EFORMAT, "duplicate tensor name 'b'");
    mf_write_text(dir, "mtp-2.safetensors", "damaged file");
    refused(dir, ESP_EFORMAT, "mtp-2.safetensors");
    index_of(dir, "{\"a\":\"model.safetensors\",\"b\":\"mtp.safetensors\"}");
    mf_write(dir, "mtp-2.safetensors", &C, 1, NULL, NULL);
    c = opened(dir); /* mtp.safetensors is a shard now */
    assert_non_null(esp_checkpoint_find(c, "b"));
    assert_int_equal(c->side.n_tensor, 1);
    esp_checkpoint_close(c);
}

static void test_every_allocation_fails(void **state)
{
    const char *dir = test_path("models/demo");
    int64_t n = 0;

    (void)state;
    for (;; n++) {
        struct esp_checkpoint *c = NULL;
        esp_error err;
        esp_status s;

        esp_mem_fail_at(n);
        s = esp_checkpoint_open(&c, dir, &err);
        esp_mem_fail_at(-1);
        if (s == ESP_OK) {
            esp_checkpoint_close(c);
            break;
        }
        test_refused(s, ESP_ENOMEM, &err, "demo");
    }
    assert_true(n > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_things),         cmocka_unit_test(test_demo_shards),
        cmocka_unit_test(test_case_6_shard_names),     cmocka_unit_test(test_case_6_manifest),
        cmocka_unit_test(test_index_against_shards),   cmocka_unit_test(test_bad_indexes),
        cmocka_unit_test(test_single_beside_index),    cmocka_unit_test(test_side_files),
        cmocka_unit_test(test_every_allocation_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
