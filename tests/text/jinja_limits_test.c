/*
 * The Jinja subset under attack: limits on steps, depth, output and memory, hostile templates and data, a
 * small stack, and failing allocations.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja_help.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

static const char vars_text[] =
    "{\"l\":[3,1,2],\"d\":{\"a\":1,\"items\":5,\"f\":1.0},\"s\":\" Hello "
    "\",\"ls\":[\"b\",\"A\",\"c\",\"a\"],\"no\":null,\"t\":true,"
    "\"ms\":[{\"role\":\"user\",\"k\":2},{\"role\":\"tool\",\"k\":1},{\"role\":\"user\",\"k\":3,\"x\":{\"y\":"
    "\"z\"}}],"
    "\"lines\":\"a\\nb\\r\\n\\n c\\n\",\"u\":\"\xc3\xb1\xe6\x97\xa5\",\"f\":2.5,\"g\":1e20,\"n\":-7}";

/* n copies of open, middle, n copies of close. */
static char *nest(const char *open, const char *middle, const char *close, int n)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, 1 << 20);
    for (int i = 0; i < n; i++)
        esp_strbuf_puts(&b, open);
    esp_strbuf_puts(&b, middle);
    for (int i = 0; i < n; i++)
        esp_strbuf_puts(&b, close);
    assert_false(b.failed);
    return esp_strbuf_take(&b);
}

static void refused_fit(const char *source, const struct esp_template_opts *opts, const char *part)
{
    json_t *vars = test_json_text(vars_text);
    struct esp_strbuf b;
    esp_error err;

    esp_strbuf_init(&b, (size_t)1 << 30);
    test_refused(render(source, vars, opts, &b, NULL, &err), ESP_ENOFIT, &err, part);
    assert_int_equal(b.len, 0);
    esp_strbuf_free(&b);
    json_decref(vars);
}

static void test_limits(void **state)
{
    static const struct esp_template_opts few = {.max_steps = 1000}, small = {.max_output = 1000};

    (void)state;
    refused_fit("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", NULL,
                "20000000 steps");
    refused_fit("{% for a in range(100) %}{% for b in range(100) %}{{ b }}{% endfor %}{% endfor %}", &few,
                "1000 steps");
    refused_fit("{{ range(100001) }}", NULL, "100001 numbers, at most 100000");
    refused_fit("{{ range(-9223372036854775807, 9223372036854775807) }}", NULL, "numbers");
    refused_fit("{% for a in range(101) %}0123456789{% endfor %}", &small, "longer than 1000 bytes");
    refused_fit("{{ '0123456789' * 101 }}", &small, "longer than 1000 bytes");
    refused_fit(
        "{% set ns = namespace(s='ab') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        NULL, "longer than 67108864 bytes");
    refused_fit(
        "{% set ns = namespace(l=[1, 2]) %}{% for a in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        NULL, "accepted");
    refused_fit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL, "nested more than");
    refused_fit("{% set l = [] %}{{ l.append(l) }}{{ l }}", NULL, "nested more than");
    refused_fit("{% set l = [] %}{{ l.append(l) }}{{ l | tojson }}", NULL, "nested more than");
    refused_fit("{% set l = [] %}{% set m = [] %}{{ l.append(l) }}{{ m.append(m) }}{{ l == m }}", NULL,
                "nested more than");
    refused_fit("{% set d = {} %}{{ d.update({'a': d}) }}{{ d | tojson }}", NULL, "nested more than");
}

/* Small enough output must not cost much: in-place growth keeps a long conversation linear. */
static void test_linear(void **state)
{
    static const char source[] =
        "{% set ns = namespace(s='') %}{% for a in range(50000) %}{% set ns.s = ns.s + '0123456789' "
        "%}{% endfor %}{{ ns.s | length }}";
    json_t *vars = test_json_text("{}");
    struct esp_strbuf b;
    esp_error err;

    (void)state;
    esp_strbuf_init(&b, 100);
    test_ok(render(source, vars, NULL, &b, NULL, &err), &err);
    assert_string_equal(esp_strbuf_str(&b), "500000");
    esp_strbuf_free(&b);
    json_decref(vars);
}

/* Every way to nest: refused beyond the limit, and what is accepted fits a small stack. */
static void *run_deep(void *arg)
{
    static const struct {
        const char *open, *middle, *close;
    } shapes[] = {
        {"{{ ", "1", " }}"},
        {"(", "1", ")"},
        {"[", "", "]"},
        {"{'a':", "1", "}"},
        {"-", "1", ""},
        {"not ", "1", ""},
        {"1 if 0 else ", "1", ""},
        {"l[", "0", "]"},
        {"x.f(", "0", ")"},
        {"0|default(", "0", ")"},
        {"0 is eq(", "0", ")"},
        {"0 ~ (0 + (0 * (", "0", ")))"},
        {"0 or (0 and (not (1 == (", "0", "))))"},
    };
    static const struct {
        const char *open, *close;
    } blocks[] = {
        {"{% if 1 %}", "{% endif %}"},
        {"{% for a in [1] %}", "{% endfor %}"},
        {"{% set x %}", "{% endset %}"},
        {"{% macro x() %}", "{% endmacro %}"},
        {"{% generation %}", "{% endgeneration %}"},
        {"{% if 0 %}{% else %}", "{% endif %}"},
        {"{% for a in [] %}{% else %}", "{% endfor %}"},
    };
    static const int depths[] = {10, 15, 20, 31, 60, 63, 64, 65, 5000};
    static const char recursive[] =
        "{% macro f(n) %}{% if n %}{% for i in [1] %}{{ (((f(n - 1)))) | trim }}{% endfor %}{% endif %}"
        "{% endmacro %}{{ f(60) }}";
    size_t *n_ok = arg;
    json_t *vars = test_json_text(vars_text);
    struct esp_strbuf b;

    esp_strbuf_init(&b, 1 << 20);
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
        for (size_t i = 1; i < sizeof shapes / sizeof shapes[0]; i++) {
            char *inner = nest(shapes[i].open, shapes[i].middle, shapes[i].close, depths[d]);
            char *source = nest("{{ ", inner, " }}", 1);

            *n_ok += render(source, vars, NULL, &b, NULL, NULL) == ESP_OK;
            esp_free(inner);
            esp_free(source);
        }
        for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
            char *source = nest(blocks[i].open, "x", blocks[i].close, depths[d]);

            *n_ok += render(source, vars, NULL, &b, NULL, NULL) == ESP_OK;
            esp_free(source);
        }
        esp_strbuf_clear(&b);
    }
    render(recursive, vars, NULL, &b, NULL, NULL);
    render("{% macro f() %}{{ [[[[f()]]]] }}{% endmacro %}{{ f() }}", vars, NULL, &b, NULL, NULL);
    render("{% set l = [] %}{{ l.append({'a': l}) }}{{ l }}", vars, NULL, &b, NULL, NULL);
    render("{% set l = [] %}{{ l.append({'a': l}) }}{{ l | tojson(indent=1) }}", vars, NULL, &b, NULL, NULL);
    esp_strbuf_free(&b);
    json_decref(vars);
    return NULL;
}

static void test_stack(void **state)
{
    size_t n_ok = 0;
    pthread_attr_t attr;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_attr_init(&attr), 0);
    /* sanitizers put guards around every variable */
    assert_int_equal(pthread_attr_setstacksize(&attr, TEST_SANITIZED ? 2 << 20 : 256 << 10), 0);
    assert_int_equal(pthread_create(&thread, &attr, run_deep, &n_ok), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
    assert_in_range(n_ok, 70, 150); /* of 171: shallow ones pass, deep ones are refused */
}

static void test_deep_data(void **state)
{
    char *text = nest("[", "1", "]", ESP_LIMIT_JSON_DEPTH), *deep;
    json_t *vars = json_object(), *inner = json_integer(1);
    struct esp_strbuf b;
    esp_error err;

    (void)state;
    esp_strbuf_init(&b, 1 << 20);
    json_object_set_new(vars, "v", test_json_text(text));
    test_ok(render("{{ v | tojson }}", vars, NULL, &b, NULL, &err), &err);
    assert_string_equal(esp_strbuf_str(&b), text);
    for (int i = 0; i < 5000; i++) {
        json_t *outer = json_array();

        json_array_append_new(outer, inner);
        inner = outer;
    }
    json_object_set_new(vars, "v", inner);
    test_refused(render("x", vars, NULL, &b, NULL, &err), ESP_ENOFIT, &err, "nested");
    deep = text;
    esp_free(deep);
    esp_strbuf_free(&b);
    json_decref(vars);
}

/* Colliding or many keys stay cheap enough, and order is kept. */
static void test_large_dict(void **state)
{
    json_t *vars = json_object(), *d = json_object();
    struct esp_strbuf b;
    esp_error err;
    char key[32];

    (void)state;
    for (int i = 0; i < 20000; i++) {
        snprintf(key, sizeof key, "k%d", i);
        json_object_set_new(d, key, json_integer(i));
    }
    json_object_set_new(vars, "d", d);
    esp_strbuf_init(&b, 1 << 20);
    test_ok(render("{{ d.k19999 }} {{ d.k0 }} {{ d.k20000 }} {{ (d | list)[777] }} {{ d.pop('k5') }} {{ d.k5 "
                   "is defined }} {{ d.k6 }}",
                   vars, NULL, &b, NULL, &err),
            &err);
    assert_string_equal(esp_strbuf_str(&b), "19999 0  k777 5 False 6");
    esp_strbuf_free(&b);
    json_decref(vars);
}

static void test_memory(void **state)
{
    static const char source[] = "{% macro m(a, b=1) %}{{ a ~ b ~ varargs }}{% endmacro %}{% set ns = "
                                 "namespace(x=[1, 'a']) %}{% set c | upper %}q{{ s }}"
                                 "{% endset %}{% for k, v in d.items() if v %}{{ m(k, v, 3) }}{{ loop.index "
                                 "}}{% set ns.x = ns.x + [k] %}{% endfor %}"
                                 "{{ c ~ (ns.x | tojson(indent=1)) }}{{ s.split(' ') | join('-') | "
                                 "replace('l', 'L') | trim }}{{ 'a' 'b\\n' }}{{ ms | sort(attribute='k') }}"
                                 "{{ ms | map(attribute='role') | unique | list }}{{ {'a': 1, 'b': (1, 2)} "
                                 "}}{{ lines.splitlines() | map('upper') | join }}";
    json_t *vars = test_json_text(vars_text);
    bool done = false;

    (void)state;
    for (int64_t n = 0; !done; n++) {
        struct esp_text_spans spans = {0};
        struct esp_strbuf b;
        esp_error err;
        esp_status s;

        esp_strbuf_init(&b, 1 << 20);
        esp_mem_fail_at(n);
        s = render(source, vars, NULL, &b, &spans, &err);
        esp_mem_fail_at(-1);
        done = s == ESP_OK;
        if (!done) {
            assert_int_equal(s, ESP_ENOMEM);
            assert_int_equal(b.len, 0);
            assert_int_equal(spans.n, 0);
        }
        esp_text_spans_free(&spans);
        esp_strbuf_free(&b);
        assert_true(n < 10000);
    }
    json_decref(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_linear),     cmocka_unit_test(test_stack),
        cmocka_unit_test(test_deep_data), cmocka_unit_test(test_large_dict), cmocka_unit_test(test_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
