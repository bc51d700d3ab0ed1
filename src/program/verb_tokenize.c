/*
 * tokenize and detokenize: text to ids and back, and the first difference of two rendered conversations.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"

#include "program/output.h"
#include "program/talk.h"

struct tokens {
    esp_token *ids;
    size_t n;
    char *text; /* what was tokenized or rendered */
    size_t len;
};

static void tokens_free(struct tokens *t)
{
    free(t->ids);
    free(t->text);
}

/* Bytes of one token for a table: controls escaped as in C, invalid bytes as \xHH. */
static void print_piece(const esp_model *m, esp_token id)
{
    char bytes[MAX_TOKEN_BYTES];
    const size_t n = esp_token_text(m, id, bytes);

    esp_out_write("\"", 1);
    for (size_t i = 0; i < n;) {
        const unsigned char c = (unsigned char)bytes[i];
        uint32_t cp;
        const size_t k = c < 0x80 ? 1 : esp_utf8_decode(bytes + i, n - i, &cp);

        if (c == '\n')
            esp_out_write("\\n", 2);
        else if (c == '"' || c == '\\')
            esp_out_printf("\\%c", c);
        else if (k == 0 || c < 0x20 || c == 0x7f)
            esp_out_printf("\\x%02x", c);
        else
            esp_out_write(bytes + i, k);
        i += k ? k : 1;
    }
    esp_out_write("\"\n", 2);
}

static json_t *piece_json(const esp_model *m, esp_token id)
{
    char bytes[MAX_TOKEN_BYTES];
    const size_t n = esp_token_text(m, id, bytes);

    return esp_json_text(bytes, n);
}

static json_t *ids_json(const esp_token *ids, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; list && i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static void print_ids(const struct esp_session *s, const struct tokens *t)
{
    const struct esp_opt_value *v = s->opt->v;

    if (esp_out_is_json()) {
        json_t *doc = json_pack("{s:I}", "count", (json_int_t)t->n);

        if (!v[OPT_COUNT].on)
            json_object_set_new(doc, "ids", ids_json(t->ids, t->n));
        if (v[OPT_PIECES].on) {
            json_t *list = json_array();

            for (size_t i = 0; i < t->n; i++)
                json_array_append_new(list, piece_json(s->model, t->ids[i]));
            json_object_set_new(doc, "pieces", list);
        }
        if (v[OPT_TEXT].on)
            json_object_set_new(doc, "text", esp_json_text(t->text, t->len));
        esp_out_json(doc);
    } else if (v[OPT_COUNT].on) {
        esp_out_printf("%zu\n", t->n);
    } else if (v[OPT_TEXT].on) {
        esp_out_write(t->text, t->len);
    } else if (v[OPT_PIECES].on) {
        for (size_t i = 0; i < t->n; i++) {
            esp_out_printf("%6zu %7d ", i, t->ids[i]);
            print_piece(s->model, t->ids[i]);
        }
    } else {
        for (size_t i = 0; i < t->n; i++)
            esp_out_printf("%s%d", i ? " " : "", t->ids[i]);
        esp_out_write("\n", 1);
    }
}

/* ---- chat files ---- */

/* Fill in the template variables of the flags where the file says nothing. */
static esp_status merge_args(const struct esp_options *o, const json_t *from_file, char **out, esp_error *err)
{
    json_t *args = NULL;
    int failed = 0;

    ESP_TRY(esp_session_template_args(o, &args, err));
    if (json_is_object(from_file))
        failed = json_object_update_missing(args, (json_t *)(uintptr_t)from_file);
    *out = failed ? NULL : json_dumps(args, JSON_COMPACT);
    json_decref(args);
    return *out ? ESP_OK : esp_fail(err, ESP_ENOMEM, "no memory for template arguments");
}

/* A file with an array of messages or a request object, through the template. */
static esp_status render_file(const struct esp_session *s, const char *path, struct tokens *out,
                              esp_error *err)
{
    json_t *doc = NULL, *messages, *tools;
    char *file = NULL, *text = NULL, *args = NULL, *tools_text = NULL;
    size_t len = 0;
    esp_status st = esp_read_input(path, &file, &len, err);

    if (st == ESP_OK)
        st = esp_json_parse(&doc, file, len, path, 0, err);
    messages = json_is_object(doc) ? json_object_get(doc, "messages") : doc;
    tools = json_is_object(doc) ? json_object_get(doc, "tools") : NULL;
    if (st == ESP_OK && !json_is_array(messages))
        st = esp_fail(err, ESP_EFORMAT,
                      "%s: an array of messages, or an object with \"messages\", is expected", path);
    if (st == ESP_OK)
        st = merge_args(s->opt, json_is_object(doc) ? json_object_get(doc, "chat_template_kwargs") : NULL,
                        &args, err);
    if (st == ESP_OK) {
        text = json_dumps(messages, JSON_COMPACT);
        tools_text = json_is_array(tools) ? json_dumps(tools, JSON_COMPACT) : NULL;
        if (!text || (json_is_array(tools) && !tools_text))
            st = esp_fail(err, ESP_ENOMEM, "no memory for the messages");
    }
    if (st == ESP_OK) {
        const esp_chat_opts opts = {.tools_json = tools_text, .template_args_json = args};

        st = esp_chat_ids(s->model, text, &opts, &out->ids, &out->n, err);
        if (st == ESP_OK)
            st = esp_chat_text(s->model, text, &opts, &out->text, &out->len, err);
    }
    json_decref(doc);
    esp_free(file);
    free(text);
    free(tools_text);
    free(args);
    return st;
}

/* Text of the n tokens around position at, as one JSON string. */
static json_t *around(const esp_model *m, const struct tokens *t, size_t at)
{
    enum { BEFORE = 8, AFTER = 8 };
    struct esp_strbuf b;
    json_t *j;

    esp_strbuf_init(&b, 1 << 20);
    for (size_t i = at > BEFORE ? at - BEFORE : 0; i < t->n && i < at + AFTER; i++) {
        char bytes[MAX_TOKEN_BYTES];

        esp_strbuf_add(&b, bytes, esp_token_text(m, t->ids[i], bytes));
    }
    j = esp_json_text(esp_strbuf_str(&b), b.len);
    esp_strbuf_free(&b);
    return j;
}

static void print_diff(const esp_model *m, const struct tokens *a, const struct tokens *b)
{
    size_t i = 0;
    const bool json = esp_out_is_json();
    json_t *doc;

    while (i < a->n && i < b->n && a->ids[i] == b->ids[i])
        i++;
    if (i == a->n && i == b->n) {
        if (json)
            esp_out_json(json_pack("{s:b,s:I}", "equal", 1, "count", (json_int_t)i));
        else
            esp_out_printf("equal: %zu tokens\n", i);
        return;
    }
    doc = json_pack("{s:b,s:I,s:I,s:I,s:o*,s:o*}", "equal", 0, "position", (json_int_t)i, "count_a",
                    (json_int_t)a->n, "count_b", (json_int_t)b->n, "around_a", around(m, a, i), "around_b",
                    around(m, b, i));
    if (json) {
        esp_out_json(doc);
        return;
    }
    esp_out_printf("first difference at token %zu of %zu and %zu\n", i, a->n, b->n);
    for (int k = 0; k < 2; k++) {
        const struct tokens *t = k ? b : a;

        esp_out_printf("%c %7d ", "AB"[k], i < t -> n ? t -> ids[i] : -1);
        if (i < t->n)
            print_piece(m, t->ids[i]);
        else
            esp_out_printf("(ends here)\n");
    }
    json_decref(doc);
}

static esp_status diff(const struct esp_session *s, esp_error *err)
{
    struct tokens a = {0}, b = {0};
    size_t n;
    const char *const *args = esp_session_args(s->opt, &n);
    esp_status st;

    if (n != 2)
        return esp_fail(err, ESP_EINVAL, "--diff compares two files; %zu %s given", n, n == 1 ? "is" : "are");
    st = render_file(s, args[0], &a, err);
    if (st == ESP_OK)
        st = render_file(s, args[1], &b, err);
    if (st == ESP_OK)
        print_diff(s->model, &a, &b);
    tokens_free(&a);
    tokens_free(&b);
    return st;
}

static esp_status tokenize(const struct esp_session *s, esp_error *err)
{
    const struct esp_opt_value *v = s->opt->v;
    const bool control = v[OPT_CONTROL].i == 0;
    struct tokens t = {0};
    size_t n, len = 0;
    const char *const *args = esp_session_args(s->opt, &n);
    char *file = NULL;
    esp_status st = ESP_OK;

    if (v[OPT_DIFF].on)
        return diff(s, err);
    if (v[OPT_CHAT_FILE].given) {
        st = render_file(s, v[OPT_CHAT_FILE].s, &t, err);
    } else if (v[OPT_TEXT].on) {
        st = esp_fail(err, ESP_EINVAL, "--text prints what --chat FILE renders; there is no --chat");
    } else if (n > 1) {
        st = esp_fail(err, ESP_EINVAL, "'%.200s' is one argument too many; quote TEXT, or use --diff",
                      args[1]);
    } else if (n == 1) {
        st = esp_text_ids(s->model, args[0], strlen(args[0]), control, &t.ids, &t.n, err);
    } else {
        st = esp_read_input(v[OPT_INPUT].given ? v[OPT_INPUT].s : "-", &file, &len, err);
        if (st == ESP_OK)
            st = esp_text_ids(s->model, file, len, control, &t.ids, &t.n, err);
    }
    if (st == ESP_OK)
        print_ids(s, &t);
    esp_free(file);
    tokens_free(&t);
    return st;
}

/* The ids of the arguments, of --file, or of standard input. */
static esp_status read_ids(const struct esp_session *s, struct tokens *t, esp_error *err)
{
    const struct esp_opt_value *input = &s->opt->v[OPT_INPUT];
    size_t n, len = 0;
    const char *const *args = esp_session_args(s->opt, &n);
    struct esp_strbuf b;
    char *text = NULL;
    esp_status st = ESP_OK;

    esp_strbuf_init(&b, 1u << 30);
    for (size_t i = 0; i < n; i++)
        esp_strbuf_printf(&b, "%s ", args[i]);
    if (n == 0 || input->given)
        st = esp_read_input(input->given ? input->s : "-", &text, &len, err);
    if (text)
        esp_strbuf_add(&b, text, len);
    if (st == ESP_OK && b.failed)
        st = esp_fail(err, ESP_ENOMEM, "no memory for the ids");
    if (st == ESP_OK)
        st = esp_parse_ids(esp_strbuf_str(&b), s->info.n_vocab, &t->ids, &t->n, err);
    esp_free(text);
    esp_strbuf_free(&b);
    return st;
}

static esp_status detokenize(const struct esp_session *s, esp_error *err)
{
    struct tokens t = {0};
    struct esp_strbuf b;
    char bytes[MAX_TOKEN_BYTES];
    esp_status st = read_ids(s, &t, err);

    esp_strbuf_init(&b, 1u << 30);
    for (size_t i = 0; i < t.n; i++)
        esp_strbuf_add(&b, bytes, esp_token_text(s->model, t.ids[i], bytes));
    if (st == ESP_OK && b.failed)
        st = esp_fail(err, ESP_ENOMEM, "no memory for the text of %zu tokens", t.n);
    if (st == ESP_OK && esp_out_is_json())
        esp_out_json(json_pack("{s:I,s:o*}", "count", (json_int_t)t.n, "text",
                               esp_json_text(esp_strbuf_str(&b), b.len)));
    else if (st == ESP_OK && s->opt->v[OPT_PIECES].on)
        print_ids(s, &t);
    else if (st == ESP_OK)
        esp_out_write(esp_strbuf_str(&b), b.len);
    esp_strbuf_free(&b);
    tokens_free(&t);
    return st;
}

static int with_model(const struct esp_options *o,
                      esp_status (*work)(const struct esp_session *, esp_error *))
{
    struct esp_session s = {0};
    esp_error err = {0};
    esp_status st = esp_session_open(&s, o, &err);

    if (st == ESP_OK)
        st = work(&s, &err);
    esp_session_close(&s);
    return st == ESP_OK ? 0 : esp_report(st, &err);
}

int esp_verb_tokenize(const struct esp_options *o)
{
    return with_model(o, tokenize);
}

int esp_verb_detokenize(const struct esp_options *o)
{
    return with_model(o, detokenize);
}
