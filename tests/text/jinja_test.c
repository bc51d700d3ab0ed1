/*
 * The Jinja subset: features against texts that Jinja2 gives, trusted spans through every string operation,
 * errors that name construct and line, limits, hostile templates, small stacks, and failing allocations.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja_help.h"

#include <string.h>

#include "base/limits.h"

struct example {
    const char *source;
    const char *text;
};

static const char vars_text[] =
    "{\"l\":[3,1,2],\"d\":{\"a\":1,\"items\":5,\"f\":1.0},\"s\":\" Hello "
    "\",\"ls\":[\"b\",\"A\",\"c\",\"a\"],\"no\":null,\"t\":true,"
    "\"ms\":[{\"role\":\"user\",\"k\":2},{\"role\":\"tool\",\"k\":1},{\"role\":\"user\",\"k\":3,\"x\":{\"y\":"
    "\"z\"}}],"
    "\"lines\":\"a\\nb\\r\\n\\n c\\n\",\"u\":\"\xc3\xb1\xe6\x97\xa5\",\"f\":2.5,\"g\":1e20,\"n\":-7}";

static void check(const struct example *e, size_t n)
{
    json_t *vars = test_json_text(vars_text);

    for (size_t i = 0; i < n; i++) {
        struct esp_strbuf b;
        esp_error err;
        esp_status s;

        esp_strbuf_init(&b, 1 << 20);
        s = render(e[i].source, vars, NULL, &b, NULL, &err);
        if (s != ESP_OK)
            fail_msg("%s: %s", e[i].source, err.message);
        if (strcmp(esp_strbuf_str(&b), e[i].text) != 0)
            fail_msg("%s gives \"%s\" instead of \"%s\"", e[i].source, esp_strbuf_str(&b), e[i].text);
        esp_strbuf_free(&b);
    }
    json_decref(vars);
}

/* Field case 14: the shared feature cases. */
static void test_feature_file(void **state)
{
    json_t *file = test_json("tests/data/cases/jinja_features.json"), *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const json_t *e = json_object_get(c, "expect");
        const char *text = json_string_value(json_object_get(e, "text"));
        struct esp_strbuf b;
        esp_error err;
        esp_status s;

        esp_strbuf_init(&b, 1 << 20);
        s = render(json_string_value(json_object_get(c, "template")), json_object_get(c, "vars"), NULL, &b,
                   NULL, &err);
        if (text) {
            test_ok(s, &err);
            assert_string_equal(esp_strbuf_str(&b), text);
        } else {
            test_refused(s, ESP_EINVAL, &err, json_string_value(json_object_get(e, "error_contains")));
        }
        esp_strbuf_free(&b);
    }
    assert_true(i >= 12);
    json_decref(file);
}

static void test_whitespace(void **state)
{
    static const struct example e[] = {
        {"a\n  {% if 1 %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
        {"a\n  {%+ if 1 +%}\n  b\n  {%- endif -%}\n c", "a\n  \n  bc"},
        {"  {{ 1 }}\n{{- 2 -}}  \n x", "  12x"},
        {"a {# c #}\nb\n  {# d #}\n e {#- f -#} \n g", "a b\n eg"},
        {"{#+ a +#}\nx", "\nx"},
        {"{% raw %}{{ x }}\n {% endraw %}\ny", "{{ x }}\ny"},
        {"{%- raw -%}  {% if %} {%- endraw -%}  y", "{% if %}y"},
        {"a\r\nb\rc\r\n", "a\nb\nc"},
        {"\n", ""},
        {"x\n\n", "x\n"},
        {"{{ '}}' }}{{ {'a': {'b': 1}}.a.b }}", "}}1"},
        {" x {% set a = 1 %} y", " x  y"},
        {"\t {% set a = 1 %}\n {% set b = 2 %}\nz", "z"},
        {"{", "{"},
        {"{ {}", "{ {}"},
        {"\xc2\xa0{%- if 1 %}a{% endif -%}\xe3\x80\x80"
         "b",
         "ab"},
    };

    (void)state;
    check(e, sizeof e / sizeof e[0]);
}

static void test_statements(void **state)
{
    static const struct example e[] = {
        {"{% for a, b in [[1,2],(3,4)] %}{{ a }}{{ b }}{% endfor %}", "1234"},
        {"{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}none{% endfor %}",
         "1/2:3 2/2:2 "},
        {"{% for x in [] %}{% else %}empty{% endfor %}", "empty"},
        {"{% for x in l %}{% break %}{% else %}odd{% endfor %}", "odd"}, /* Jinja2 has it so */
        {"{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{{ loop.revindex }}{% endfor %}",
         "3321"},
        {"{% for x in l %}{% for y in 'ab' %}{{ loop.depth }}{{ y }}{% endfor %}{{ loop.cycle('-', '+') }}{% "
         "endfor %}",
         "2a2b-2a2b+2a2b-"},
        {"{% for m in ms %}{{ loop.changed(m.role) }} {% endfor %}", "True True True "},
        {"{% for k in d %}{{ k }}{% endfor %}{% for k, v in d.items() %}{{ v }}{% endfor %}", "aitemsf151.0"},
        {"{% for x in nothing %}x{% endfor %}", ""},
        {"{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{% endfor %}{{ x }}", "1111"},
        {"{% if t %}{% set y = 5 %}{% endif %}{{ y }}", "5"},
        {"{% set a, b = 1, 'x' %}{{ a }}{{ b }}", "1x"},
        {"{% set a | trim | upper %} b{{ 1 }} {% endset %}[{{ a }}]", "[B1]"},
        {"{% set ns = namespace(a=1, b={}) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
         "7"},
        {"{% macro m(a, b='x', c=a) %}{{ a }}{{ b }}{{ c }}|{% endmacro %}{{ m(1) }}{{ m(1, c=2) }}{{ m(b=3, "
         "a=4) }}{{ m() }}",
         "1x1|1x2|434|x|"},
        {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 'a', k=2) }}", "(1, 'a'){'k': 2}"},
        {"{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
        {"{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}{% set x = 2 %}{{ f() }}", "12"},
        {"{% for x in l %}{% macro f() %}<{{ x }}>{% endmacro %}{{ f() }}{% endfor %}", "<3><1><2>"},
        {"{% generation %}a{% set q = 1 %}{% endgeneration %}{{ q is defined }}", "aFalse"},
        {"{% if no %}1{% elif nothing %}2{% elif 0 %}3{% else %}4{% endif %}", "4"},
        {"{% set a = [] %}{% for i in l %}{{ a.append(i) }}{% endfor %}{{ a }}{{ a.pop() }}{{ a.pop(0) }}{{ "
         "a }}",
         "NoneNoneNone[3, 1, 2]23[1]"},
    };

    (void)state;
    check(e, sizeof e / sizeof e[0]);
}

static void test_expressions(void **state)
{
    static const struct example e[] = {
        {"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 2 "
         "** 3 ** 2 }}",
         "-4 2 -2 3.5 1024 0.5 4 64"},
        {"{{ 1.5 // 1 }} {{ -1.5 % 1 }} {{ 1 + 1.0 }} {{ true + 1 }} {{ 1 == 1.0 == true }}",
         "1.0 0.5 2.0 2 True"},
        {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ not 1 in [1] }} {{ 2 not "
         "in l }}",
         "True False True True False False"},
        {"{{ 'el' in s }} {{ 'a' in d }} {{ 5 in d }} {{ no is none }} {{ 1 in nothing }}",
         "True True False True False"},
        {"{{ l[-1] }} {{ l[9] }} {{ l[::-1] }} {{ l[1:] }} {{ 'abcdef'[-2:0:-2] }} {{ u[1] }} {{ u[::-1] }} "
         "{{ (1,2,3)[:2] }}",
         "2  [2, 1, 3] [1, 2] ec \xe6\x97\xa5 \xe6\x97\xa5\xc3\xb1 (1, 2)"},
        {"{{ d.items is mapping }} {{ d['items'] }} {{ d.f }} {{ d.get('q', 'x') }} {{ d.get('q') }} {{ "
         "ms.0.role }}",
         "False 5 1.0 x None user"},
        {"{{ 'a' 'b' ~ 1 ~ none ~ 2.0 ~ [1, 'x'] }}", "ab1None2.0[1, 'x']"},
        {"{{ 'x' * 3 }} {{ [0] * 2 }} {{ [1] + [2] }} {{ (1,) + (2,) }}", "xxx [0, 0] [1, 2] (1, 2)"},
        {"{{ nothing }}|{{ nothing or 'x' }}|{{ 'y' if nothing }}|{{ nothing == other }}|{{ nothing ~ 'z' }}",
         "|x||True|z"},
        {"{{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ 1_000 }} {{ 1e3 }} {{ 1_0.2_5E-1 }}",
         "31 3 15 1000 1000.0 1.025"},
        {"{{ '\\u00e9\\x41\\101\\t\\q\\'' }}", "\xc3\xa9"
                                               "AA\t\\q'"},
        {"{{ [1.0, 1e16, 1e-5, 0.1, 123456789.125, -0.0, g] }}",
         "[1.0, 1e+16, 1e-05, 0.1, 123456789.125, -0.0, 1e+20]"},
        {"{{ {'a': [true, none], 1: 'it\\'s', 2: '\"\\n', (1, 2): nothing} }}",
         "{'a': [True, None], 1: \"it's\", 2: '\"\\n', (1, 2): Undefined}"},
        {"{{ {1: 'a', true: 'b', 1.0: 'c'} }}", "{1: 'c'}"},
        {"{{ range(3) }} {{ range(5, 0, -2) | list }} {{ range(2, 2) | length }}", "range(0, 3) [5, 3, 1] 0"},
        {"{{ 9223372036854775807 }} {{ -9223372036854775807 - 1 }} {{ 9007199254740993 == 9007199254740993.0 "
         "}}",
         "9223372036854775807 -9223372036854775808 True"},
        {"{{ dict(a=1, b=2) }} {{ namespace(a=1).a }} {{ (1, 2) is sequence }} {{ () }} {{ (1,) }}",
         "{'a': 1, 'b': 2} 1 True () (1,)"},
        {"{{ 1 if false else 2 if false else 3 }} {{ not true or true }} {{ 0 and 1 }} {{ '' or 'b' }}",
         "3 True 0 b"},
        {"{{ 4 is divisibleby 2 and 3 is odd }} {{ 'a' is in 'abc' }} {{ 1 is not string }} {{ l is iterable "
         "}} {{ 1 is eq 1 }}",
         "True True True True True"},
        {"{{ 's' is sequence }}{{ d is mapping }}{{ d is sequence }}{{ true is integer }}{{ true is number "
         "}}{{ f is float }}",
         "TrueTrueTrueFalseTrueTrue"},
        {"{{ -n|abs }} {{ (-1)|abs }} {{ -1|abs }}", "7 1 1"},
    };

    (void)state;
    check(e, sizeof e / sizeof e[0]);
}

static void test_builtins(void **state)
{
    static const struct example e[] = {
        {"{{ s | trim }}|{{ s.strip() }}|{{ 'xxay'.strip('xy') }}|{{ s.lstrip() }}|{{ s.rstrip() }}",
         "Hello|Hello|a|Hello | Hello"},
        {"{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ "
         "'a,b,c'.rsplit(',', 1) }}",
         "['a', 'b', '', 'c'] ['a', 'b'] ['a', 'b,c'] ['a,b', 'c']"},
        {"{{ ' a b  c '.split(none, 1) }} {{ ' a b  c '.rsplit(none, 1) }}", "['a', 'b  c '] [' a b', 'c']"},
        {"{{ lines.splitlines() }} {{ lines.splitlines(true) }}",
         "['a', 'b', '', ' c'] ['a\\n', 'b\\r\\n', '\\n', ' c\\n']"},
        {"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ u.find('\xe6\x97\xa5') }} {{ "
         "'aXa'.rfind('a') }} {{ 'aaa'.count('aa') }}",
         "True True 1 2 1"},
        {"{{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab' | replace('', '-') }} {{ 'ab'.replace('', '-', 1) }}",
         "bba -a-b- -ab"},
        {"{{ 'hello wOrld-x (y' | title }} {{ \"it's a1b\".title() }} {{ 'ABC d' | capitalize }} {{ "
         "'stra\xc3\x9f"
         "e' | upper }}",
         "Hello World-X (Y It'S A1B Abc d STRASSE"},
        {"{{ ms | map(attribute='role') | join('-') }} {{ ls | map('upper') | list }} {{ ms | "
         "map(attribute='x.y', default='?') | list }}",
         "user-tool-user ['B', 'A', 'C', 'A'] ['?', '?', 'z']"},
        {"{{ ms | selectattr('role', 'equalto', 'user') | list | length }} {{ ms | rejectattr('x') | "
         "map(attribute='k') | list }}",
         "2 [2, 1]"},
        {"{{ l | select('odd') | list }} {{ l | reject('odd') | list }} {{ [0, 1, ''] | select | list }} {{ "
         "none | map('upper') | list }}",
         "[3, 1] [2] [1] []"},
        {"{{ ls | sort }} {{ ls | sort(case_sensitive=true) }} {{ l | sort(reverse=true) }} {{ ms | "
         "sort(attribute='k') | map(attribute='k') | list }}",
         "['A', 'a', 'b', 'c'] ['A', 'a', 'b', 'c'] [3, 2, 1] [1, 2, 3]"},
        {"{{ ls | unique | list }} {{ l | min }}{{ l | max }}{{ l | sum }} {{ ms | sum(attribute='k', "
         "start=10) }} {{ l | first }}{{ l | last }}",
         "['b', 'A', 'c'] 136 16 32"},
        {"{{ l | reverse | list }} {{ 'abc' | reverse }} {{ d | dictsort }} {{ d | length }} {{ u | count }}",
         "[2, 1, 3] cba [('a', 1), ('f', 1.0), ('items', 5)] 3 2"},
        {"{{ '42' | int }} {{ '4.7' | int }} {{ 'x' | int(9) }} {{ '1e2' | float }} {{ 'x' | float }} {{ "
         "3.99 | int }} {{ ' 7 ' | int }}",
         "42 4 9 100.0 0.0 3 7"},
        {"{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42.55 | round(1, 'floor') }} {{ 42.1 "
         "| round(0, 'ceil') }} {{ 7 | round }}",
         "2.0 4.0 2.67 42.5 43.0 7"},
        {"{{ nothing | default('x') }} {{ '' | d('y', true) }} {{ '' | default('z') }}|{{ 0 | default(1, "
         "boolean=true) }}",
         "x y |1"},
        {"{{ lines | indent(2) }}|{{ 'a\\nb' | indent('> ', first=true) }}", "a\n  b\n\n   c\n|> a\n> b"},
        {"{{ '<&\"\\'>' | e }} {{ '<' | safe }} {{ 1 | string is string }} {{ d | items | list }}",
         "&lt;&amp;&#34;&#39;&gt; < True [('a', 1), ('items', 5), ('f', 1.0)]"},
        {"{{ {'b': [1, {}], 'a': []} | tojson(indent=2) }}",
         "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}"},
        {"{{ {'b': 1, 'a': 'é\xf0\x9f\x99\x82'} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', "
         "':')) }}",
         "{\"a\":\"\\u00e9\\ud83d\\ude42\",\"b\":1}"},
        {"{{ {1: 2, none: 3, true: 4} | tojson }} {{ (1, 'x') | tojson }} {{ '</script>\\u2028' | tojson }}",
         "{\"1\": 4, \"null\": 3} [1, \"x\"] \"</script>\xe2\x80\xa8\""},
        {"{{ 'ab'.join(['x', 'y']) }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ [[1, "
         "2], [3]] | map('first') | list }}",
         "xaby bc ab [1, 3]"},
    };

    (void)state;
    check(e, sizeof e / sizeof e[0]);
}

/* Each source renders "AxB" with x untrusted, whatever way the string went. */
static void test_spans(void **state)
{
    static const struct {
        const char *source;
        const char *marks; /* one T or . per byte of output */
    } cases[] = {
        {"A{{ u }}B", "T.T"},
        {"{{ 'A' + u + 'B' }}", "T.T"},
        {"{{ 'A' ~ u ~ 'B' }}{{ u ~ u }}", "T.T.."},
        {"{{ ('  A' + u + 'B ') | trim }}", "T.T"},
        {"{{ ('zA' + u + 'B')[1:] }}{{ ('A' + u)[::-1] }}", "T.T.T"},
        {"{{ ('A-' + u + '-B').replace('-', '') }}", "T.T"},
        {"{{ 'AxB'.replace('x', u) }}", "T.T"},
        {"{{ ('A' + u + 'B') | upper }}{{ ('a' ~ u) | title }}", "T.TT."},
        {"{{ ['A', u, 'B'] | join('+') }}{{ u.join(['A', 'B']) }}", "TT.TTT.T"},
        {"{{ ('A,' + u + ',B').split(',') | join }}", "T.T"},
        {"{% set c %}A{{ u }}B{% endset %}{{ c }}", "T.T"},
        {"{% macro m(x) %}A{{ x }}B{% endmacro %}{{ m(u) }}", "T.T"},
        {"{{ ['A' + u] | tojson }}{{ ['A' + u] }}", "..T.....T..."},
        {"{% set ns = namespace(t='') %}{% for i in [1, 2] %}{% set ns.t = ns.t + 'A' + u %}{% endfor %}{{ "
         "ns.t }}",
         "T.T."},
        {"A{{ 1 }}{{ n }}{{ true }}B", "T......T"},
        {"{{ {'A': u}.keys() | first }}{{ {u: 'B'}.keys() | first }}", "T."},
        {"{{ 'A' if u else 'B' }}{{ u or 'B' }}{{ '' or 'B' }}{{ u | default('x') }}", "T.T."},
        {"{{ ('A\\n' + u) | indent(1) }}", "TTT."},
        {"{{ 'A' * 2 }}{{ u * 2 }}{{ u | first }}", "TT..."},
        {"{{ ('A' + u) | e }}{{ ('A' ~ u ~ 'B').strip('A') }}", "T..T"},
        {"{{ ('A' ~ u ~ 'B').splitlines() | first }}", "T.T"},
        {"{% for c in 'A' ~ u %}{{ c }}{% endfor %}{{ {'a': u}.a }}", "T.."},
    };
    json_t *vars = test_json_text("{\"u\":\"x\",\"n\":5}");

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct esp_text_spans spans = {0};
        struct esp_strbuf b;
        char marks[64] = "";
        esp_error err;

        esp_strbuf_init(&b, 60);
        test_ok(render(cases[i].source, vars, NULL, &b, &spans, &err), &err);
        memset(marks, '.', b.len);
        for (size_t k = 0; k < spans.n; k++) {
            assert_true(k == 0 || spans.v[k - 1].end < spans.v[k].start);
            memset(marks + spans.v[k].start, 'T', spans.v[k].end - spans.v[k].start);
        }
        if (strcmp(marks, cases[i].marks) != 0)
            fail_msg("%s gives \"%s\" with %s instead of %s", cases[i].source, esp_strbuf_str(&b), marks,
                     cases[i].marks);
        esp_strbuf_free(&b);
        esp_text_spans_free(&spans);
    }
    json_decref(vars);
}

/* Rendering appends: offsets count from the buffer's start, and a failure takes back what it wrote. */
static void test_append(void **state)
{
    json_t *vars = test_json_text("{}");
    struct esp_text_spans spans = {0};
    struct esp_strbuf b;
    esp_error err;

    (void)state;
    esp_strbuf_init(&b, 100);
    test_ok(render("ab", vars, NULL, &b, &spans, &err), &err);
    test_refused(render("cd{{ 1 // 0 }}", vars, NULL, &b, &spans, &err), ESP_EINVAL, &err,
                 "t:1: division by zero");
    assert_string_equal(esp_strbuf_str(&b), "ab");
    assert_int_equal(spans.n, 1);
    assert_int_equal(spans.v[0].end, 2);
    test_ok(render("{{ 1 }}ef", vars, NULL, &b, &spans, &err), &err);
    assert_string_equal(esp_strbuf_str(&b), "ab1ef");
    assert_int_equal(spans.v[1].start, 3);
    assert_int_equal(spans.v[1].end, 5);
    esp_strbuf_free(&b);
    esp_text_spans_free(&spans);
    json_decref(vars);
}

static const struct {
    const char *source;
    esp_status status;
    const char *part;
} error_cases[] = {
    {"a\n{% if x %}", ESP_EFORMAT, "t:2: the block that begins here is not closed, \"endif\" is missing"},
    {"{% for x in l %}", ESP_EFORMAT, "\"endfor\""},
    {"{{ 1", ESP_EFORMAT, "\"}}\" is missing"},
    {"{% set x = 1", ESP_EFORMAT, "\"%}\" is missing"},
    {"{# x", ESP_EFORMAT, "comment is not closed"},
    {"{% raw %}x", ESP_EFORMAT, "raw block is not closed"},
    {"{{ 'x }}", ESP_EFORMAT, "string is not closed"},
    {"{{ 1 + }}", ESP_EFORMAT, "found \"}}\" where an expression was expected"},
    {"{{ a b }}", ESP_EFORMAT, "found \"b\""},
    {"{{ (1 }}", ESP_EFORMAT, "where"},
    {"{{ 1) }}", ESP_EFORMAT, "')' closes nothing"},
    {"{{ }}", ESP_EFORMAT, "an expression"},
    {"{{ a ? b }}", ESP_EFORMAT, "unexpected character '?'"},
    {"{{ '\\ud800' }}", ESP_EFORMAT, "escape \\u"},
    {"{{ '\\N{DIGIT ONE}' }}", ESP_EFORMAT, "escape \\N"},
    {"{{ 9223372036854775808 }}", ESP_EFORMAT, "does not fit 64 bits"},
    {"{{ 1e999 }}", ESP_EFORMAT, "out of range"},
    {"{{ 012 }}", ESP_EFORMAT, "malformed number"},
    {"{% endif %}", ESP_EFORMAT, "found \"endif\""},
    {"{% break %}", ESP_EFORMAT, "\"break\" outside a for-loop"},
    {"{% for x in l %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}", ESP_EFORMAT,
     "outside a for-loop"},
    {"{% set 1 = 2 %}", ESP_EFORMAT, "only names"},
    {"{% for x.y in l %}{% endfor %}", ESP_EFORMAT, "where"},
    {"{% macro m(a=1, b) %}{% endmacro %}", ESP_EFORMAT, "without a default"},
    {"{{ f(a=1, 2) }}", ESP_EFORMAT, "positional argument"},
    {"x\n\n{% include 'a' %}", ESP_EUNSUPPORTED, "t:3: the statement \"include\""},
    {"{% call f() %}{% endcall %}", ESP_EUNSUPPORTED, "\"call\""},
    {"{% extends 'a' %}", ESP_EUNSUPPORTED, "\"extends\""},
    {"{% for x in l recursive %}{% endfor %}", ESP_EUNSUPPORTED, "recursive"},
    {"{{ f(*l) }}", ESP_EUNSUPPORTED, "unpacking"},
    {"{{ l[1, 2] }}", ESP_EUNSUPPORTED, "comma"},
    {"{% frob %}", ESP_EFORMAT, "found \"frob\""},
    {"\n{{ l | frob }}", ESP_EUNSUPPORTED, "t:2: there is no filter \"frob\""},
    {"{{ l is frob }}", ESP_EUNSUPPORTED, "there is no test \"frob\""},
    {"{{ '%s' % 1 }}", ESP_EUNSUPPORTED, "formatting strings"},
    {"{{ nothing.x }}", ESP_EINVAL, "'nothing' is undefined"},
    {"{{ d.q.x }}", ESP_EINVAL, "'q' is undefined"},
    {"{{ nothing + 1 }}", ESP_EINVAL, "'nothing' is undefined"},
    {"{{ nothing() }}", ESP_EINVAL, "'nothing' is undefined"},
    {"{{ s.encode('utf-8') }}", ESP_EINVAL, "'encode' is undefined"},
    {"{{ s() }}", ESP_EINVAL, "type str cannot be called"},
    {"{{ 'a' + 1 }}", ESP_EINVAL, "operator + does not work on str and int"},
    {"{{ 1 < 'a' }}", ESP_EINVAL, "no order"},
    {"{{ 1 in 5 }}", ESP_EINVAL, "iterated"},
    {"{% for x in none %}{% endfor %}", ESP_EINVAL, "type none"},
    {"{% for a, b in l %}{% endfor %}", ESP_EINVAL, "iterated"},
    {"{% set a, b = (1, 2, 3) %}", ESP_EINVAL, "3 values cannot be unpacked into 2 names"},
    {"{{ {[]: 1} }}", ESP_EINVAL, "key of a dict"},
    {"{{ 9223372036854775807 + 1 }}", ESP_EINVAL, "64-bit"},
    {"{{ 10 ** 30 }}", ESP_EINVAL, "64-bit"},
    {"{{ -(-9223372036854775807 - 1) }}", ESP_EINVAL, "64-bit"},
    {"{{ (-9223372036854775807 - 1) // -1 }}", ESP_EINVAL, "64-bit"},
    {"{{ (-9223372036854775807 - 1) % -1 }}{{ 1 / 0 }}", ESP_EINVAL, "division by zero"},
    {"{{ 1e20 | int }}", ESP_EINVAL, "64-bit"},
    {"{% set d.x = 1 %}", ESP_EINVAL, "namespace"},
    {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", ESP_EINVAL, "at most 1"},
    {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", ESP_EINVAL, "no parameter \"b\""},
    {"{{ s | replace('a') }}", ESP_EINVAL, "needs its argument \"new\""},
    {"{{ s | trim(x=1) }}", ESP_EINVAL, "no parameter \"x\""},
    {"{{ s | upper(1) }}", ESP_EINVAL, "takes at most 0"},
    {"{{ nothing | tojson }}", ESP_EINVAL, "'nothing' is undefined"},
    {"{{ range | tojson }}", ESP_EINVAL, "cannot be written as JSON"},
    {"{{ namespace() }}", ESP_EINVAL, "cannot be printed"},
    {"{{ 5 | items }}", ESP_EINVAL, "needs a mapping"},
    {"{{ l[::0] }}", ESP_EINVAL, "not 0"},
    {"{{ range(1, 2, 0) }}", ESP_EINVAL, "not 0"},
    {"{{ ''.split('') }}", ESP_EINVAL, "empty string"},
    {"{{ [].pop() }}", ESP_EINVAL, "outside"},
    {"{{ {}.pop('x') }}", ESP_EINVAL, "does not have"},
    {"{{ raise_exception('Bad: ' ~ l) }}", ESP_EINVAL, "Bad: [3, 1, 2]"},
};

static void test_errors(void **state)
{
    json_t *vars = test_json_text(vars_text);

    (void)state;
    for (size_t i = 0; i < sizeof error_cases / sizeof error_cases[0]; i++) {
        struct esp_strbuf b;
        esp_error err;
        esp_status s;

        esp_strbuf_init(&b, 1 << 20);
        s = render(error_cases[i].source, vars, NULL, &b, NULL, &err);
        if (s != error_cases[i].status || !strstr(err.message, error_cases[i].part))
            fail_msg("%s: status %d, \"%s\"", error_cases[i].source, s, s ? err.message : esp_strbuf_str(&b));
        assert_int_equal(b.len, 0);
        assert_int_equal(render(error_cases[i].source, vars, NULL, &b, NULL, NULL),
                         s); /* without a place for the message */
        esp_strbuf_free(&b);
    }
    json_decref(vars);
}

static void test_encoding(void **state)
{
    static char big[ESP_LIMIT_TEMPLATE_BYTES + 1];
    struct esp_template *t = NULL;
    esp_error err;

    (void)state;
    test_refused(esp_template_open(&t, "a\xff", 2, "t", &err), ESP_EFORMAT, &err, "invalid UTF-8 at byte 1");
    memset(big, 'x', sizeof big);
    test_refused(esp_template_open(&t, big, sizeof big, "t", &err), ESP_ENOFIT, &err, "1048577");
    assert_null(t);
    test_ok(esp_template_open(&t, big, sizeof big - 1, "t", &err), &err);
    esp_template_close(t);
    test_refused(esp_template_open(&t, "{{ 1\0 }}", 8, "t", &err), ESP_EFORMAT, &err, "unexpected character");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_feature_file), cmocka_unit_test(test_whitespace),
        cmocka_unit_test(test_statements),   cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_builtins),     cmocka_unit_test(test_spans),
        cmocka_unit_test(test_append),       cmocka_unit_test(test_errors),
        cmocka_unit_test(test_encoding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
