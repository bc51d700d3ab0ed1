/*
 * Calls of tools in the family's XML form. The opener and the closer are tokens where the vocabulary has
 * them. A value of free text ends at the first </parameter> with markup behind it, exactly where a reader of
 * calls ends it, so text may hold anything else, </parameter> included.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"

#include "grammar/front.h"
#include "grammar/masks.h"
#include "grammar/schema.h"

static const char what[] = "tools";

struct tools {
    uint32_t control[2]; /* ids, or ESP_IR_NONE */
    struct esp_ir ir;
    struct esp_schema s; /* of the tool being written */
    uint32_t free_value; /* rule + 1: text up to and with the "<" behind </parameter> */
    uint32_t no_closer;  /* rule + 1 */
    uint32_t basic[ESP_BASIC_COUNT];
    const struct esp_tool *tool;
    esp_error never;
};

enum { OPENER, CLOSER };
static const char *const controls[] = {"<tool_call>", "</tool_call>"};

/* A control token, or its text when the vocabulary has no such token. */
static struct esp_frag control(const struct tools *t, struct esp_nfa *b, int which)
{
    return t->control[which] == ESP_IR_NONE ? esp_nfa_puts(b, controls[which])
                                            : esp_nfa_token(b, t->control[which]);
}

static uint32_t free_value(struct tools *t)
{
    static const char end[] = "</parameter>[ \\t\\r\\n]*<";
    struct esp_frag f = {0, 0};
    struct esp_nfa b;

    if (!t->free_value) {
        const uint32_t rule = esp_ir_declare(&t->ir, "text of a parameter", 19, 0);

        esp_nfa_begin(&b, &t->ir);
        (void)esp_regex_build(&b, end, sizeof end - 1, ESP_IR_PLAIN, ESP_REGEX_WHOLE, what, &f, NULL);
        f = esp_nfa_seq(&b, esp_nfa_star(&b, esp_nfa_any(&b, ESP_IR_PLAIN)), f);
        esp_nfa_end(&b, rule, f, ESP_IR_FIRST | ESP_IR_SHARED);
        t->free_value = rule + 1;
    }
    return t->free_value - 1;
}

/* What a parameter's text is. */
enum form { FREE, RAW, JSON };

static bool has_ways(const struct esp_schema_node *n)
{
    for (uint32_t i = 0; i < n->n_part; i++)
        if (json_object_get(n->part[i], "anyOf") || json_object_get(n->part[i], "oneOf"))
            return true;
    return false;
}

/* Whether one of the alternatives of n, looked at one level deep, lets strings through. */
static bool may_be_string(struct tools *t, const struct esp_schema_node *n)
{
    bool may = false;

    for (uint32_t i = 0; i < n->n_part && !may; i++)
        for (int k = 0; k < 2 && !may; k++) {
            const json_t *list = json_object_get(n->part[i], k ? "oneOf" : "anyOf");

            for (size_t w = 0; w < json_array_size(list) && !may; w++) {
                struct esp_schema_node way = {.path = n->path};

                may = esp_schema_gather(&t->s, json_array_get(list, w), &way, NULL) == ESP_OK &&
                      (has_ways(&way) ||
                       (esp_schema_read(&way, NULL) == ESP_OK && way.types & ESP_SCHEMA_STRING));
                json_decref(way.own_values);
            }
        }
    return may;
}

static esp_status find_form(struct tools *t, const json_t *schema, struct esp_schema_node *n, enum form *form,
                            esp_error *err)
{
    *form = JSON;
    ESP_TRY(esp_schema_gather(&t->s, schema, n, err));
    if (has_ways(n)) {
        *form = may_be_string(t, n) ? FREE : JSON;
        return ESP_OK;
    }
    ESP_TRY(esp_schema_read(n, err));
    if (n->values)
        *form = RAW;
    else if (n->types == ESP_SCHEMA_STRING && !n->nullable &&
             (n->n_pattern || n->n_format || n->min_length || n->max_length != ESP_IR_NONE))
        *form = RAW;
    else if (n->types & ESP_SCHEMA_STRING)
        *form = FREE;
    return ESP_OK;
}

/* One of the values of enum or const: strings as they are, others as JSON. */
static esp_status write_values(struct esp_nfa *b, const struct esp_schema_node *n, struct esp_frag *out,
                               esp_error *err)
{
    out->start = esp_nfa_node(b);
    out->end = esp_nfa_node(b);
    for (size_t i = 0; i < json_array_size(n->values); i++) {
        const json_t *v = json_array_get(n->values, i);
        char *text = json_is_string(v) ? NULL : esp_schema_text(v, 17);
        struct esp_frag f;

        if (json_is_string(v) && strstr(json_string_value(v), "</parameter>"))
            continue; /* a reader would end there */
        if (!json_is_string(v) && !text)
            return esp_fail(err, ESP_ENOMEM, "%s: out of memory", what);
        f = esp_nfa_puts(b, text ? text : json_string_value(v));
        esp_free(text);
        esp_nfa_link(b, out->start, f.start);
        esp_nfa_link(b, f.end, out->end);
    }
    return ESP_OK;
}

/* A rule for all texts without the closer: at every place, how much of it has just been read. */
static uint32_t without_closer(struct tools *t)
{
    static const char closer[] = "</parameter>";
    enum { N = sizeof closer - 1 };
    uint32_t place[N], end;
    struct esp_nfa b;

    if (t->no_closer)
        return t->no_closer - 1;
    t->no_closer = esp_ir_declare(&t->ir, "value of a parameter", 20, 0) + 1;
    esp_nfa_begin(&b, &t->ir);
    end = esp_nfa_node(&b);
    for (uint32_t i = 0; i < N; i++) {
        place[i] = esp_nfa_node(&b);
        esp_nfa_link(&b, place[i], end);
    }
    for (uint32_t i = 0; i < N; i++) {
        struct esp_class other = {0};
        struct esp_frag f;

        if (i + 1 < N) {
            f = esp_nfa_bytes(&b, closer + i, 1);
            esp_nfa_link(&b, place[i], f.start);
            esp_nfa_link(&b, f.end, place[i + 1]);
        }
        if (i > 0) { /* only its first letter can begin it anew, for that one does not come again */
            f = esp_nfa_bytes(&b, closer, 1);
            esp_nfa_link(&b, place[i], f.start);
            esp_nfa_link(&b, f.end, place[1]);
        }
        esp_class_add(&t->ir, &other, (unsigned char)closer[i], (unsigned char)closer[i]);
        esp_class_add(&t->ir, &other, '<', '<');
        esp_class_norm(&other);
        esp_class_invert(&t->ir, &other);
        f = esp_nfa_class(&b, &other, ESP_IR_PLAIN);
        esp_nfa_link(&b, place[i], f.start);
        esp_nfa_link(&b, f.end, place[0]);
    }
    esp_nfa_end(&b, t->no_closer - 1, (struct esp_frag){place[0], end}, ESP_IR_SHARED);
    return t->no_closer - 1;
}

/* A string with conditions, as it is, but never with the closer in it. */
static esp_status write_raw(struct tools *t, struct esp_nfa *b, const struct esp_schema_node *n,
                            struct esp_frag *out, esp_error *err)
{
    uint32_t rule, both;

    ESP_TRY(esp_schema_raw_string(&t->s, n, &rule, err));
    both = esp_ir_declare(&t->ir, n->path, strlen(n->path), 0);
    esp_ir_both(&t->ir, both, rule, without_closer(t));
    *out = esp_nfa_call(b, both);
    return esp_ir_check(&t->ir, what, err);
}

/* Whether schema can be written; its rules go nowhere. */
static esp_status try_schema(const struct tools *t, const json_t *schema, const char *path, esp_error *err)
{
    struct esp_schema s;
    struct esp_ir ir;
    esp_error never = {0};
    uint32_t rule;
    esp_status st;

    ESP_TRY(esp_ir_init(&ir, err));
    st = esp_schema_begin(&s, &ir, t->s.root, t->s.flags, err);
    if (st == ESP_OK)
        st = esp_schema_rule(&s, schema, path, &rule, err);
    if (st == ESP_OK)
        st = esp_schema_run(&s, &never, err);
    if (st == ESP_OK && *never.message)
        st = esp_fail(err, ESP_EFORMAT, "%s", never.message);
    esp_schema_end(&s);
    esp_ir_free(&ir);
    return st;
}

/* The value of a parameter, through the "<" behind its end. */
static esp_status write_value(struct tools *t, struct esp_nfa *b, const json_t *schema, const char *path,
                              struct esp_frag *out, esp_error *err)
{
    struct esp_schema_node n = {.path = path};
    enum form form;
    uint32_t rule = 0;
    esp_status st = find_form(t, schema, &n, &form, err);

    if (st == ESP_OK && form == JSON)
        st = try_schema(t, schema, path, err);
    if (st == ESP_OK && form == RAW && !n.values)
        st = write_raw(t, b, &n, out, err);
    if (st == ESP_OK && form == RAW && n.values)
        st = write_values(b, &n, out, err);
    json_decref(n.own_values);
    if (st != ESP_OK && (t->tool->strict || st == ESP_ENOMEM))
        return st;
    if (st != ESP_OK || form == FREE) {
        *out = esp_nfa_call(b, free_value(t));
        return ESP_OK;
    }
    if (form == JSON) {
        ESP_TRY(esp_schema_rule(&t->s, schema, path, &rule, err));
        *out = esp_nfa_call(b, rule);
    }
    *out = esp_nfa_seq(b, *out, esp_nfa_puts(b, "\n</parameter>\n<"));
    return ESP_OK;
}

static esp_status check_key(const char *key, const char *path, esp_error *err)
{
    if (*key == 0 || strpbrk(key, ">\n\r"))
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: the parameter name at %s cannot be written in a call",
                        what, path);
    return ESP_OK;
}

/* parameter=KEY, its value, and the "<" behind it */
static esp_status write_parameter(struct tools *t, struct esp_nfa *b, const struct esp_schema_member *m,
                                  struct esp_frag *out, esp_error *err)
{
    const char *path = esp_schema_path(&t->s, esp_schema_path(&t->s, t->tool->name, "parameters"), m->name);
    struct esp_frag value;

    ESP_TRY(check_key(m->name, path, err));
    *out = esp_nfa_seq(b, esp_nfa_puts(b, "parameter="), esp_nfa_puts(b, m->name));
    *out = esp_nfa_seq(b, *out, esp_nfa_puts(b, ">\n"));
    ESP_TRY(write_value(t, b, m->schema, path, &value, err));
    *out = esp_nfa_seq(b, *out, value);
    return ESP_OK;
}

/* Parameters in order between two states, each behind a "<" that was read, the required ones all. */
static esp_status write_in_order(struct tools *t, struct esp_nfa *b, const struct esp_schema_members *l,
                                 uint32_t from, uint32_t to, esp_error *err)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const uint32_t next = esp_nfa_node(b);
        struct esp_frag f;

        ESP_TRY(write_parameter(t, b, &l->m[i], &f, err));
        esp_nfa_link(b, from, f.start);
        esp_nfa_link(b, f.end, next);
        if (!l->m[i].required)
            esp_nfa_link(b, from, next);
        from = next;
    }
    esp_nfa_link(b, from, to);
    return ESP_OK;
}

static esp_status write_any_order(struct tools *t, struct esp_nfa *b, const struct esp_schema_members *l,
                                  uint32_t from, uint32_t to, esp_error *err)
{
    struct esp_frag f = {0, 0};

    for (uint32_t i = 0; i < l->n; i++) {
        ESP_TRY(write_parameter(t, b, &l->m[i], &f, err));
        esp_nfa_link(b, from, f.start);
        esp_nfa_link(b, f.end, from);
    }
    if (l->n == 0 && l->more) { /* a tool that takes anything */
        static const char name[] = "[^\\r\\n<>=]{1,64}>\\n";

        (void)esp_regex_build(b, name, sizeof name - 1, ESP_IR_PLAIN, ESP_REGEX_WHOLE, what, &f, NULL);
        f = esp_nfa_seq(b, esp_nfa_puts(b, "parameter="), f);
        f = esp_nfa_seq(b, f, esp_nfa_call(b, free_value(t)));
        esp_nfa_link(b, from, f.start);
        esp_nfa_link(b, f.end, from);
    }
    esp_nfa_link(b, from, to);
    return ESP_OK;
}

static esp_status list_parameters(struct tools *t, struct esp_schema_members *l, esp_error *err)
{
    struct esp_schema_node n = {.path = t->tool->name};
    esp_status st;

    if (!t->tool->parameters)
        return ESP_OK;
    st = esp_schema_gather(&t->s, t->tool->parameters, &n, err);
    if (st == ESP_OK && has_ways(&n))
        st = esp_schema_unsupported(t->tool->name, "anyOf", "on the parameters of a tool as a whole", err);
    if (st == ESP_OK)
        st = esp_schema_list_members(&t->s, &n, l, err);
    if (st == ESP_OK || t->tool->strict || st == ESP_ENOMEM)
        return st;
    *l = (struct esp_schema_members){.more = true}; /* its schema says nothing that we understand */
    return ESP_OK;
}

/* A rule for all behind "<function=" of one tool, the closer included. */
static esp_status write_tool(struct tools *t, uint32_t rule, esp_error *err)
{
    struct esp_schema_members l = {0};
    struct esp_frag f, end;
    struct esp_nfa b;
    uint32_t from, to;
    esp_status st;

    ESP_TRY(list_parameters(t, &l, err));
    esp_nfa_begin(&b, &t->ir);
    f = esp_nfa_seq(&b, esp_nfa_puts(&b, t->tool->name), esp_nfa_puts(&b, ">\n<"));
    end = esp_nfa_seq(&b, esp_nfa_puts(&b, "/function>\n"), control(t, &b, CLOSER));
    from = esp_nfa_node(&b);
    to = esp_nfa_node(&b);
    esp_nfa_link(&b, f.end, from);
    esp_nfa_link(&b, to, end.start);
    st = t->tool->strict ? write_in_order(t, &b, &l, from, to, err)
                         : write_any_order(t, &b, &l, from, to, err);
    if (st != ESP_OK) {
        esp_nfa_drop(&b);
        return st;
    }
    esp_nfa_end(&b, rule, (struct esp_frag){f.start, end.end}, 0);
    return esp_schema_run(&t->s, &t->never, err);
}

static esp_status check_tool(const struct esp_tool *tool, esp_error *err)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-";
    const size_t len = strlen(tool->name);

    if (len == 0 || len > 128 || strspn(tool->name, letters) != len)
        return esp_fail(err, ESP_EINVAL, "%s: the name \"%.130s\" is not of the form [A-Za-z0-9_.:-]{1,128}",
                        what, tool->name);
    return tool->parameters ? esp_schema_check(tool->parameters, err) : ESP_OK;
}

static esp_status write_root(struct tools *t, const uint32_t *rule, size_t n, unsigned flags, esp_error *err)
{
    struct esp_nfa b;
    struct esp_frag call, f, names;

    t->ir.root = esp_ir_declare(&t->ir, "calls", 5, 0);
    esp_nfa_begin(&b, &t->ir);
    names.start = esp_nfa_node(&b);
    names.end = esp_nfa_node(&b);
    for (size_t i = 0; i < n; i++) {
        f = esp_nfa_call(&b, rule[i]);
        esp_nfa_link(&b, names.start, f.start);
        esp_nfa_link(&b, f.end, names.end);
    }
    call = esp_nfa_seq(&b, esp_nfa_puts(&b, "\n<function="), names);
    if (flags & ESP_TOOLS_SEVERAL) { /* back to the body by way of another opener */
        f = esp_nfa_seq(&b, esp_nfa_puts(&b, "\n"), control(t, &b, OPENER));
        names.end = esp_nfa_node(&b);
        esp_nfa_link(&b, call.end, names.end);
        esp_nfa_link(&b, call.end, f.start);
        esp_nfa_link(&b, f.end, call.start);
        call.end = names.end;
    }
    if (!(flags & ESP_TOOLS_BODY)) {
        f = control(t, &b, OPENER);
        if (flags & ESP_TOOLS_LEAD) {
            struct esp_frag lead = esp_nfa_opt(&b, esp_nfa_puts(&b, "\n"));

            lead = esp_nfa_seq(&b, lead, esp_nfa_opt(&b, esp_nfa_puts(&b, "\n")));
            f = esp_nfa_seq(&b, lead, f);
        }
        call = (struct esp_frag){esp_nfa_seq(&b, f, call).start, call.end};
    }
    esp_nfa_end(&b, t->ir.root, call, 0);
    return esp_ir_check(&t->ir, what, err);
}

static esp_status write_tools(struct tools *t, const struct esp_tool *tool, size_t n, uint32_t *rule,
                              esp_error *err)
{
    for (size_t i = 0; i < n; i++) {
        esp_status st;

        ESP_TRY(check_tool(&tool[i], err));
        for (size_t k = 0; k < i; k++)
            if (strcmp(tool[i].name, tool[k].name) == 0)
                return esp_fail(err, ESP_EINVAL, "%s: two are called \"%s\"", what, tool[i].name);
        t->tool = &tool[i];
        rule[i] = esp_ir_declare(&t->ir, tool[i].name, strlen(tool[i].name), 0);
        ESP_TRY(esp_ir_check(&t->ir, what, err));
        ESP_TRY(
            esp_schema_begin(&t->s, &t->ir, tool[i].parameters, tool[i].strict ? 0 : ESP_SCHEMA_OPEN, err));
        memcpy(t->s.basic, t->basic, sizeof t->basic); /* equal for all, so that tools share their masks */
        st = write_tool(t, rule[i], err);
        memcpy(t->basic, t->s.basic, sizeof t->basic);
        esp_schema_end(&t->s);
        ESP_TRY(st);
    }
    return ESP_OK;
}

esp_status esp_front_tools(struct esp_front *f, const struct esp_vocab *v, const struct esp_tool *tool,
                           size_t n, unsigned flags, esp_error *err)
{
    struct tools t = {.control = {ESP_IR_NONE, ESP_IR_NONE}};
    uint32_t *rule;
    esp_status st;

    memset(f, 0, sizeof *f);
    f->what = what;
    if (n == 0 || n > ESP_LIMIT_TOOLS)
        return esp_fail(err, n ? ESP_ENOFIT : ESP_EINVAL, "%s: %zu of them; 1 to %u are accepted", what, n,
                        ESP_LIMIT_TOOLS);
    rule = esp_alloc_array(n, sizeof *rule);
    if (!rule)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", what);
    for (int i = 0; i < 2; i++)
        (void)esp_vocab_find_added(v, controls[i], &t.control[i]);
    st = esp_ir_init(&t.ir, err);
    if (st == ESP_OK)
        st = write_tools(&t, tool, n, rule, err);
    if (st == ESP_OK)
        st = write_root(&t, rule, n, flags, err);
    esp_free(rule);
    if (st != ESP_OK) {
        esp_ir_free(&t.ir);
        return st;
    }
    f->ir = t.ir;
    f->never = t.never;
    return ESP_OK;
}

esp_status esp_grammar_tools(struct esp_grammar **out, const struct esp_vocab *v, const struct esp_tool *tool,
                             size_t n, unsigned flags, esp_error *err)
{
    struct esp_front f;

    return esp_front_finish(out, v, &f, esp_front_tools(&f, v, tool, n, flags, err), err);
}
