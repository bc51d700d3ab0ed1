/*
 * Generated turns whose message is known before they are written down: calls with arguments of every type,
 * whose strings hold tags, code and ends of tags; every spelling that is tolerated; calls inside thinking;
 * turns cut off anywhere. The parser must find the message again, whole and in whatever pieces.
 *
 * ESPALIER_TEST_TURNS=N makes N of them instead of 2,400, and cuts every one at every place.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/turn_help.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"

enum { MAX_SENT = 4, MAX_PARAM = 6, MAX_TEXT = 1 << 20 };

/* What was meant, and where in the text the parts of it end. */
struct sent {
    struct esp_strbuf text, reasoning, content;
    const char *name[MAX_SENT];
    json_t *args[MAX_SENT];
    size_t sure[MAX_SENT];  /* cut here or later, the call is complete */
    size_t least[MAX_SENT]; /* cut before, it is not */
    size_t n;
    bool thinking;
};

static uint32_t draw(struct esp_rng_key *k, uint32_t n)
{
    uint32_t out[4];

    esp_rng_words(k, out);
    k->position++;
    return out[0] % n;
}

/* ---- values ---- */

static const char *const pieces[] = {"def f(x):\n    return x < 3\n",
                                     "</parameter",
                                     "</parameter>",
                                     "</parameter> x",
                                     "<parameter=s>",
                                     "<parameter",
                                     "<function=g>\n",
                                     "</function>",
                                     "</tool_call>",
                                     "<tool_call>\n",
                                     "<tool_call>{\"name\": \"f\"}",
                                     "</think>",
                                     "<think>",
                                     "\n\n",
                                     "\n",
                                     "  ",
                                     "\t",
                                     "\"",
                                     "\\n \\",
                                     "\xc3\xa9\xe2\x82\xac",
                                     "\xf0\x9f\x98\x80",
                                     "a && b || c",
                                     "{\"k\": [1, {\"z\": null}]}",
                                     "<",
                                     ">",
                                     "</",
                                     "&lt;",
                                     "12",
                                     "true",
                                     "if (a<b>c) { d[1] = '</p>'; }\n\n\n    // end\n",
                                     "\r\n",
                                     "#!/bin/sh\ncat <<EOF\n<a href=\"x\">\nEOF\n",
                                     "plain words",
                                     "0"};

static bool at_text(const char *s, const char *word)
{
    return strncmp(s, word, strlen(word)) == 0;
}

static const char *behind(const char *s, const char *word)
{
    s += strlen(word);
    return s + strspn(s, " \t\r\n");
}

/* Whether a part of the value reads as its end: </parameter> with a tag behind it that can follow, or the
 * end of a call with the next call behind it, which is how a forgotten </parameter> is recognised. */
static bool ends_early(const char *value)
{
    for (const char *p = strchr(value, '<'); p; p = strchr(p + 1, '<')) {
        const char *next;

        if (at_text(p, "</parameter>")) {
            next = behind(p, "</parameter>");
            if (at_text(next, "<parameter") || at_text(next, "</function") || at_text(next, "</tool_call"))
                return true;
        }
        if (at_text(p, "</tool_call>") && at_text(behind(p, "</tool_call>"), "<tool_call"))
            return true;
    }
    return false;
}

/* A new string of up to five pieces. */
static char *random_text(struct esp_rng_key *k)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, MAX_TEXT);
    do {
        esp_strbuf_clear(&b);
        for (uint32_t i = draw(k, 6); i > 0; i--)
            esp_strbuf_puts(&b, pieces[draw(k, sizeof pieces / sizeof pieces[0])]);
    } while (ends_early(esp_strbuf_str(&b)));
    return esp_strbuf_take(&b);
}

static json_t *random_string(struct esp_rng_key *k)
{
    char *s = random_text(k);
    json_t *v = json_string(s);

    esp_free(s);
    return v;
}

/* Objects and arrays of them, with strings that hold tags as well. */
static json_t *random_json(struct esp_rng_key *k, int depth)
{
    static const char *const keys[] = {"a", "b c", "\xc3\xa9", "<k>", ""};
    json_t *v;

    switch (draw(k, depth > 0 ? 8 : 5)) {
    case 0:
        return json_integer((json_int_t)draw(k, 100000) - 50000);
    case 1:
        return json_real((double)draw(k, 1000) / 8 - 60);
    case 2:
        return json_boolean(draw(k, 2));
    case 3:
        return json_null();
    case 4:
        return random_string(k);
    case 5:
    case 6:
        v = json_array();
        for (uint32_t i = draw(k, 4); i > 0; i--)
            json_array_append_new(v, random_json(k, depth - 1));
        return v;
    default:
        v = json_object();
        for (uint32_t i = draw(k, 4); i > 0; i--)
            json_object_set_new(v, keys[draw(k, 5)], random_json(k, depth - 1));
        return v;
    }
}

static json_t *random_of(struct esp_rng_key *k, char type)
{
    json_t *v;

    switch (type) {
    case 's':
        return random_string(k);
    case 'i':
        return json_integer((json_int_t)draw(k, 2000000) - 1000000);
    case 'x':
        return json_real((double)draw(k, 1000) / 16 - 30 + 1.0 / 32);
    case 'b':
        return json_boolean(draw(k, 2));
    case 'o':
        v = json_object();
        json_object_set_new(v, "first", random_json(k, 2));
        json_object_set_new(v, "next", random_json(k, 3));
        return v;
    case 'a':
        v = json_array();
        for (uint32_t i = draw(k, 4); i > 0; i--)
            json_array_append_new(v, json_pack("{s:o, s:i}", "v", random_json(k, 1), "i", (int)i));
        return v;
    case 'u': /* an integer or else a string */
        return draw(k, 2) ? json_integer(draw(k, 50)) : json_string("five");
    default: /* no type in the schema: what is JSON is JSON */
        return draw(k, 2) ? random_json(k, 2) : json_string("not { JSON");
    }
}

/* As a parameter's text: strings as they are, all else as JSON, close together or spread out. */
static char *value_text(struct esp_rng_key *k, const json_t *v)
{
    static const size_t how[] = {JSON_COMPACT, 0, JSON_INDENT(2)};
    struct esp_strbuf b;
    char *s;

    if (!json_is_string(v))
        return json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17) | how[draw(k, 3)]);
    esp_strbuf_init(&b, MAX_TEXT);
    esp_strbuf_puts(&b, json_string_value(v));
    s = esp_strbuf_take(&b);
    return s;
}

/* ---- turns ---- */

static const char types[] = "sixboau?"; /* a parameter is called as its type */

static json_t *random_args(struct esp_rng_key *k)
{
    json_t *args = json_object();

    for (uint32_t i = draw(k, MAX_PARAM + 1); i > 0; i--) {
        const char key[2] = {types[draw(k, sizeof types - 1)], 0};
        json_t *v;
        char *text;

        if (json_object_get(args, key))
            continue;
        do { /* a string without a type must not read as JSON, and none may end the parameter */
            v = random_of(k, key[0]);
            text = value_text(k, v);
            if (!ends_early(text) && !(key[0] == '?' && json_is_string(v) && strcmp(text, "not { JSON") != 0))
                break;
            esp_free(text);
            json_decref(v);
        } while (true);
        esp_free(text);
        json_object_set_new(args, key, v);
    }
    return args;
}

static void write_params(struct esp_rng_key *k, struct esp_strbuf *b, json_t *args)
{
    const bool spaced = draw(k, 8) == 0;
    const char *key;
    json_t *v;

    json_object_foreach(args, key, v)
    {
        char *text = value_text(k, v);

        esp_strbuf_printf(b, spaced ? "<parameter = %s >\n" : "<parameter=%s>\n", key);
        esp_strbuf_puts(b, text);
        esp_strbuf_puts(b, draw(k, 6) ? "\n</parameter>\n" : "\n</parameter>");
        esp_free(text);
    }
}

/* One call in one of the spellings; the last of a turn that ends by itself may lack its closing tags. */
static void write_call(struct esp_rng_key *k, struct sent *s, bool may_lack)
{
    struct esp_strbuf *b = &s->text;
    json_t *args = random_args(k);
    char *json = json_dumps(args, draw(k, 2) ? 0 : JSON_INDENT(1));
    const uint32_t form = draw(k, 10);

    s->name[s->n] = draw(k, 3) ? "f" : "ns.look-up_2";
    s->args[s->n] = args;
    if (form == 0) {
        esp_strbuf_printf(b, "<tool_call>\n{\"name\": \"%s\", \"arguments\": ", s->name[s->n]);
        esp_strbuf_puts(b, json);
        s->least[s->n] = b->len;
        esp_strbuf_puts(b, "}\n</tool_call>");
    } else {
        if (form != 1)
            esp_strbuf_puts(b, "<tool_call>\n");
        esp_strbuf_printf(b, draw(k, 8) ? "<function=%s>\n" : "<function = %s >", s->name[s->n]);
        write_params(k, b, args);
        s->least[s->n] = b->len;
        if (!may_lack || draw(k, 3))
            esp_strbuf_puts(b, "</function>\n");
        if (form != 1 && (!may_lack || draw(k, 3)))
            esp_strbuf_puts(b, "</tool_call>");
    }
    s->sure[s->n++] = b->len;
    esp_free(json);
}

static void write_turn(struct esp_rng_key *k, struct sent *s, bool ended)
{
    static const char *const texts[] = {"", "Let me look.", "a < b, so <b>no</b>\n\n  yes",
                                        "\xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80"};
    const uint32_t n = draw(k, 8) ? 1 + draw(k, MAX_SENT) : 0;
    const bool inside = draw(k, 3) == 0;

    s->thinking = draw(k, 2);
    if (s->thinking) {
        const char *t = texts[1 + draw(k, 3)];

        esp_strbuf_puts(&s->reasoning, t);
        esp_strbuf_puts(&s->text, t);
        esp_strbuf_puts(&s->text, inside && n ? "\n" : "\n</think>\n\n");
    }
    if (!s->thinking || !inside || !n) {
        const char *t = texts[draw(k, 4)];

        esp_strbuf_puts(&s->content, t);
        esp_strbuf_puts(&s->text, t);
        if (n && t[0])
            esp_strbuf_puts(&s->text, "\n\n");
    }
    for (uint32_t i = 0; i < n; i++) {
        write_call(k, s, ended && i + 1 == n);
        esp_strbuf_puts(&s->text, i + 1 < n ? "\n" : "");
    }
}

/* ---- what comes out ---- */

static void check_call(const struct sent *s, const struct message *m, size_t i)
{
    json_t *args = json_loads(esp_strbuf_str(&m->args[i]), JSON_REJECT_DUPLICATES, NULL);
    void *a = json_object_iter(args), *b = json_object_iter(s->args[i]);

    if (!args || !json_equal(args, s->args[i]) || strcmp(esp_strbuf_str(&m->name[i]), s->name[i]) != 0)
        fail_msg("%s\ngives call %zu %s %s, not %s", esp_strbuf_str(&s->text), i, esp_strbuf_str(&m->name[i]),
                 esp_strbuf_str(&m->args[i]), json_dumps(s->args[i], JSON_COMPACT));
    for (; a; a = json_object_iter_next(args, a), b = json_object_iter_next(s->args[i], b))
        assert_string_equal(json_object_iter_key(a), json_object_iter_key(b)); /* in the order written */
    json_decref(args);
}

/* Of a turn cut at a byte: the calls before the cut, and of the text before them as much as there was. */
static void check(const struct sent *s, const struct message *m, size_t cut)
{
    size_t least = 0, most = 0, n = 0;
    const char *tag;

    for (size_t i = 0; i < s->n; i++) {
        least += s->sure[i] <= cut;
        most += s->least[i] <= cut;
    }
    for (size_t i = 0; i < m->n_call; i++)
        n += m->ended[i];
    if (n < least || n > most)
        fail_msg("%.*s\ngives %zu calls, not %zu", (int)cut, esp_strbuf_str(&s->text), n, least);
    for (size_t i = 0; i < n; i++) {
        assert_true(m->ended[i]);
        check_call(s, m, i);
    }
    tag = strstr(esp_strbuf_str(&m->content), "<function"); /* one that was cut off is none yet */
    if (strstr(esp_strbuf_str(&m->content), "<tool_call>") || (tag && strchr(tag, '>')))
        fail_msg("%.*s\nleaves tags in '%s'", (int)cut, esp_strbuf_str(&s->text),
                 esp_strbuf_str(&m->content));
    if (cut == s->text.len) {
        assert_string_equal(esp_strbuf_str(&m->content), esp_strbuf_str(&s->content));
        assert_string_equal(esp_strbuf_str(&m->reasoning), esp_strbuf_str(&s->reasoning));
    }
}

static void sent_free(struct sent *s)
{
    esp_strbuf_free(&s->text);
    esp_strbuf_free(&s->reasoning);
    esp_strbuf_free(&s->content);
    for (size_t i = 0; i < s->n; i++)
        json_decref(s->args[i]);
}

static json_t *random_tools(void)
{
    return test_json_text(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
        "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"x\":{\"type\":\"number\"},"
        "\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"a\":{\"type\":\"array\",\"items\":{}},"
        "\"u\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]},\"?\":{}}}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"ns.look-up_2\",\"parameters\":{\"properties\":{"
        "\"s\":{\"type\":\"string\"},\"i\":{\"type\":[\"integer\",\"null\"]},\"x\":{\"type\":\"number\"},"
        "\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"a\":{\"type\":\"array\"},"
        "\"u\":{\"type\":[\"string\",\"integer\"]}}}}}]");
}

/* Whole, byte by byte and in random pieces, or cut everywhere. */
static void in_pieces(struct esp_rng_key *k, struct message *m, const struct how *h, bool everywhere)
{
    struct message other;
    const size_t len = strlen(h->text);

    if (everywhere) {
        parse_all(m, h);
        return;
    }
    parse(m, h, len, len);
    for (int i = 0; i < 4; i++) {
        parse(&other, h, 1 + draw(k, (uint32_t)len + 1), i == 0 ? 1 : 1 + draw(k, 40));
        message_equal(m, &other);
        message_free(&other);
    }
}

static void random_turns(void **state)
{
    const char *wish = getenv("ESPALIER_TEST_TURNS");
    const int n = wish ? (int)strtol(wish, NULL, 10) : TEST_SANITIZED ? 300 : 2400;
    struct esp_rng_key k = {.seed = 6};
    json_t *tools = random_tools();
    int n_call = 0, n_cut = 0;

    (void)state;
    for (int i = 0; i < n; i++) {
        const bool ended = draw(&k, 3) > 0;
        struct sent s = {.n = 0};
        struct how h = {NULL, tools, false, ended};
        struct message m;
        size_t cut;

        esp_strbuf_init(&s.text, MAX_TEXT);
        esp_strbuf_init(&s.reasoning, MAX_TEXT);
        esp_strbuf_init(&s.content, MAX_TEXT);
        write_turn(&k, &s, ended);
        cut = ended ? s.text.len : draw(&k, (uint32_t)s.text.len + 1);
        while (cut < s.text.len && ((unsigned char)s.text.data[cut] & 0xc0) == 0x80)
            cut++;
        {
            char *text = esp_strbuf_take(&s.text), c = text[cut];

            h.thinking = s.thinking;
            h.text = text;
            text[cut] = '\0';
            in_pieces(&k, &m, &h, wish || i % 20 == 0);
            text[cut] = c;
            esp_strbuf_puts(&s.text, text);
            esp_free(text);
        }
        check(&s, &m, cut);
        n_call += (int)s.n;
        n_cut += !ended;
        message_free(&m);
        sent_free(&s);
    }
    print_message("%d turns, %d of them cut off, with %d calls\n", n, n_cut, n_call);
    assert_true(n_call > n && n_cut > n / 5);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_turns)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
