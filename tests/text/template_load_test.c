/*
 * Finding a model's chat template: its own file, tokenizer_config.json with one text or named ones, a file
 * given instead, and what is missing or malformed.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <string.h>

#include "text/template.h"

static void write_text(const char *dir, const char *name, const char *text)
{
    test_write(dir, name, text, strlen(text));
}

static void expect_loaded(const char *dir, const char *override, const char *main, const char *tool_use)
{
    struct esp_template_set set;
    json_t *context = json_object(), *tools = test_json_text("[{}]");
    const char *const want[2] = {main, tool_use ? tool_use : main};
    esp_error err;

    test_ok(esp_template_load(&set, dir, override, &err), &err);
    for (int i = 0; i < 2; i++) {
        struct esp_strbuf b;

        esp_strbuf_init(&b, 100);
        test_ok(esp_template_render(esp_template_pick(&set, i ? tools : NULL), context, NULL, &b, NULL, &err),
                &err);
        assert_string_equal(esp_strbuf_str(&b), want[i]);
        esp_strbuf_free(&b);
    }
    esp_template_set_close(&set);
    json_decref(context);
    json_decref(tools);
}

static void expect_not_loaded(const char *config, esp_status s, const char *part)
{
    const char *dir = test_tmpdir();
    struct esp_template_set set = {0};
    esp_error err;

    if (config)
        write_text(dir, "tokenizer_config.json", config);
    test_refused(esp_template_load(&set, dir, NULL, &err), s, &err, part);
    assert_null(set.main);
}

static void test_load(void **state)
{
    const char *dir = test_tmpdir();

    (void)state;
    write_text(dir, "tokenizer_config.json", "{\"chat_template\":\"in config\"}");
    expect_loaded(dir, NULL, "in config", NULL);
    write_text(dir, "chat_template.jinja", "in file\n");
    expect_loaded(dir, NULL, "in file", NULL);
    expect_loaded(dir, test_write(dir, "mine.jinja", "mine", 4), "mine", NULL);
    dir = test_tmpdir();
    write_text(dir, "tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},{\"name\":\"default\","
               "\"template\":\"D\"}]}");
    expect_loaded(dir, NULL, "D", "T");
    write_text(dir, "tokenizer_config.json", "{\"chat_template\":[{\"name\":\"only\",\"template\":\"O\"}]}");
    expect_loaded(dir, NULL, "O", NULL);
    expect_not_loaded(NULL, ESP_ENOTFOUND, "no chat template");
    expect_not_loaded("{}", ESP_ENOTFOUND, "no chat template");
    expect_not_loaded("{\"chat_template\":null}", ESP_ENOTFOUND, "no chat template");
    expect_not_loaded("{\"chat_template\":3}", ESP_EFORMAT, "neither a string nor a list");
    expect_not_loaded("{\"chat_template\":[{\"name\":\"a\"}]}", ESP_EFORMAT, "chat_template[0]");
    expect_not_loaded(
        "{\"chat_template\":[{\"name\":\"a\",\"template\":\"\"},{\"name\":\"b\",\"template\":\"\"}]}",
        ESP_ENOTFOUND, "\"default\"");
    expect_not_loaded("{\"chat_template\":\"{% if %}\"}", ESP_EFORMAT, "tokenizer_config.json:1:");
    expect_not_loaded("{", ESP_EFORMAT, "tokenizer_config.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
