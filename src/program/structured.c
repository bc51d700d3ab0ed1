/*
 * --json-schema, --grammar and --regex. The grammar is compiled once, before anything is generated, so that a
 * mistake in it is found at once.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/structured.h"

#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"

#include "program/session.h"

/* A schema in the argument itself, or the file that it names. */
static esp_status read_schema(const char *arg, json_t **out, esp_error *err)
{
    const char *text = arg + strspn(arg, " \t\r\n");

    if (*text == '{' || strcmp(text, "true") == 0)
        return esp_json_parse(out, arg, strlen(arg), "--json-schema", ESP_JSON_NO_DUPLICATES, err);
    return esp_json_load(out, arg, ESP_LIMIT_SCHEMA_BYTES * 4, ESP_JSON_NO_DUPLICATES, err);
}

static esp_status compile_schema(struct esp_structure *st, const char *arg, bool chat, esp_error *err)
{
    json_t *schema = NULL;
    esp_status s;

    ESP_TRY(read_schema(arg, &schema, err));
    s = esp_grammar_schema(&st->grammar, st->vocab, schema, 0, err);
    if (s == ESP_OK && chat)
        s = esp_grammar_schema(&st->behind_thinking, st->vocab, schema, ESP_SCHEMA_LEAD, err);
    json_decref(schema);
    return s;
}

static esp_status compile_file(struct esp_structure *st, const char *path, esp_error *err)
{
    char *text = NULL;
    size_t len = 0;
    esp_status s;

    ESP_TRY(esp_read_input(path, &text, &len, err));
    s = esp_grammar_gbnf(&st->grammar, st->vocab, text, len, err);
    if (s != ESP_OK)
        esp_fail_in(err, s, "%s", path);
    esp_free(text);
    return s;
}

esp_status esp_structure_open(struct esp_structure *st, const struct esp_options *opt, const esp_model *m,
                              bool chat, esp_error *err)
{
    const struct esp_opt_value *v = opt->v;
    const int n = v[OPT_JSON_SCHEMA].given + v[OPT_GRAMMAR].given + v[OPT_REGEX].given;

    memset(st, 0, sizeof *st);
    if (n == 0)
        return ESP_OK;
    if (n > 1)
        return esp_fail(err, ESP_EINVAL, "--json-schema, --grammar and --regex: one of them is enough");
    if (v[OPT_TOOLS].given)
        return esp_fail(err, ESP_EINVAL,
                        "--tools: an answer under --json-schema, --grammar or --regex calls none");
    ESP_TRY(esp_model_vocab(&st->vocab, m, err));
    if (v[OPT_JSON_SCHEMA].given)
        return compile_schema(st, v[OPT_JSON_SCHEMA].s, chat, err);
    if (v[OPT_GRAMMAR].given)
        return compile_file(st, v[OPT_GRAMMAR].s, err);
    return esp_grammar_regex(&st->grammar, st->vocab, v[OPT_REGEX].s, strlen(v[OPT_REGEX].s), err);
}

void esp_structure_close(struct esp_structure *st)
{
    esp_grammar_release(st->grammar);
    esp_grammar_release(st->behind_thinking);
    esp_vocab_destroy(st->vocab);
    memset(st, 0, sizeof *st);
}

esp_status esp_structure_apply(const struct esp_structure *st, esp_seq *seq, bool thinking, esp_error *err)
{
    const struct esp_matcher_opts after = {.trigger_text = "</think>", .must_start = true};
    struct esp_grammar *g = thinking && st->behind_thinking ? st->behind_thinking : st->grammar;
    struct esp_constraint c;
    esp_status s;

    if (!g)
        return ESP_OK;
    ESP_TRY(esp_constraint_open(&c, g, thinking ? &after : NULL, err));
    s = esp_seq_set_constraint(seq, &c, err);
    if (s != ESP_OK)
        c.close(c.user);
    return s;
}

bool esp_prompt_thinks(const esp_model *m, const esp_token *ids, size_t n)
{
    static const char tag[] = "<think>";
    const size_t tag_len = sizeof tag - 1;
    char text[8 * MAX_TOKEN_BYTES];
    size_t len = 0;

    for (size_t i = n > 8 ? n - 8 : 0; i < n; i++) { /* at worst a token a byte, and some white space */
        char bytes[MAX_TOKEN_BYTES];
        const size_t k = esp_token_text(m, ids[i], bytes);

        memcpy(text + len, bytes, k);
        len += k;
    }
    while (len && strchr(" \t\r\n", text[len - 1]))
        len--;
    return len >= tag_len && memcmp(text + len - tag_len, tag, tag_len) == 0;
}

void esp_structure_lift(const struct esp_structure *st, esp_seq *seq)
{
    if (st->grammar)
        (void)esp_seq_set_constraint(seq, NULL, NULL);
}
