/*
 * Objects and arrays. An object's properties come in the order of its schema; those that may be missing are
 * skipped by edges without a symbol. Keys beyond those listed are held apart from them by a tree of the
 * listed names, so that no key comes twice or escapes its own schema.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/schema.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

#include "grammar/automaton.h"
#include "grammar/grammar.h"

/* ---- members ---- */

static esp_status no_memory(esp_error *err)
{
    return esp_fail(err, ESP_ENOMEM, "schema: out of memory");
}

static esp_status add_member(struct esp_schema *s, struct esp_schema_members *l, struct esp_schema_member m,
                             esp_error *err)
{
    if (l->n == l->cap) {
        const uint32_t cap = l->cap ? l->cap * 2 : 16;
        struct esp_schema_member *p = esp_arena_alloc_array(s->ir->arena, cap, sizeof *p);

        if (!p)
            return no_memory(err);
        if (l->n)
            memcpy(p, l->m, l->n * sizeof *p);
        l->m = p;
        l->cap = cap;
    }
    l->m[l->n++] = m;
    return ESP_OK;
}

/* {"allOf": list}, or its only element. list is taken over. */
static esp_status all_of(struct esp_schema *s, json_t *list, const json_t **out, esp_error *err)
{
    json_t *o = NULL;

    if (json_array_size(list) == 1) {
        *out = json_array_get(list, 0);
        return esp_schema_keep(s, list) ? ESP_OK : no_memory(err);
    }
    if (list)
        o = json_pack("{s:o}", "allOf", list);
    *out = o;
    return o && esp_schema_keep(s, o) ? ESP_OK : no_memory(err);
}

/* What all parts say of property `name`: *schema, NULL if one of them forbids it. */
static esp_status member_schema(struct esp_schema *s, const struct esp_schema_node *n, const char *name,
                                const json_t **schema, esp_error *err)
{
    json_t *list = json_array();
    bool forbidden = false;

    for (uint32_t i = 0; list && i < n->n_part; i++) {
        json_t *v = json_object_get(json_object_get(n->part[i], "properties"), name);

        if (!v)
            v = json_object_get(n->part[i], "additionalProperties");
        forbidden |= json_is_false(v);
        if (v && !json_is_boolean(v) && json_array_append(list, v) != 0) {
            json_decref(list);
            return no_memory(err);
        }
    }
    *schema = NULL;
    if (forbidden) {
        json_decref(list);
        return ESP_OK;
    }
    if (list && json_array_size(list) == 0)
        json_array_append_new(list, json_true());
    return all_of(s, list, schema, err);
}

/* Properties and required names of all parts, each once, in the order of their first mention. */
static esp_status collect_names(const struct esp_schema_node *n, json_t *names, esp_error *err)
{
    for (uint32_t i = 0; i < n->n_part; i++) {
        json_t *p = json_object_get(n->part[i], "properties"), *v;
        const char *key;

        if (p && !json_is_object(p))
            return esp_schema_bad(n->path, "properties", "expected an object of schemas", err);
        json_object_foreach(p, key,
                            v) if (!json_object_get(names, key) &&
                                   json_object_set_new(names, key, json_false()) != 0) return no_memory(err);
    }
    for (uint32_t i = 0; i < n->n_part; i++) {
        const json_t *r = json_object_get(n->part[i], "required");

        if (r && !json_is_array(r))
            return esp_schema_bad(n->path, "required", "expected a list of names", err);
        for (size_t k = 0; k < json_array_size(r); k++) {
            const char *key = json_string_value(json_array_get(r, k));

            if (!key)
                return esp_schema_bad(n->path, "required", "expected a list of names", err);
            if (json_object_set_new(names, key, json_true()) != 0)
                return no_memory(err);
        }
    }
    return ESP_OK;
}

/* Whether other members may follow those listed, and what they must be. */
static esp_status read_others(struct esp_schema *s, const struct esp_schema_node *n, bool any_listed,
                              struct esp_schema_members *out, esp_error *err)
{
    json_t *list = json_array();
    bool given = false, forbidden = false;

    for (uint32_t i = 0; list && i < n->n_part; i++) {
        json_t *v = json_object_get(n->part[i], "additionalProperties");

        if (v && !json_is_boolean(v) && !json_is_object(v)) {
            json_decref(list);
            return esp_schema_bad(n->path, "additionalProperties", "expected true, false or a schema", err);
        }
        given |= v != NULL;
        forbidden |= json_is_false(v);
        if (json_is_object(v))
            json_array_append(list, v);
    }
    out->more = given ? !forbidden : !any_listed || s->flags & ESP_SCHEMA_OPEN;
    if (!out->more || !list || json_array_size(list) == 0) {
        json_decref(list);
        return list ? ESP_OK : no_memory(err);
    }
    return all_of(s, list, &out->others, err);
}

esp_status esp_schema_list_members(struct esp_schema *s, const struct esp_schema_node *n,
                                   struct esp_schema_members *out, esp_error *err)
{
    json_t *names = json_object(), *v;
    const char *key;
    esp_status st = names ? collect_names(n, names, err) : no_memory(err);

    if (names && !esp_schema_keep(s, names)) /* so that the names live on */
        return no_memory(err);
    ESP_TRY(st);
    ESP_TRY(read_others(s, n, json_object_size(names) > 0, out, err));
    json_object_foreach(names, key, v)
    {
        struct esp_schema_member m = {.name = key, .required = json_is_true(v)};

        ESP_TRY(member_schema(s, n, key, &m.schema, err));
        if (m.schema)
            ESP_TRY(add_member(s, out, m, err));
        else if (m.required)
            return esp_schema_never(n->path, "a required property is forbidden", err);
    }
    return ESP_OK;
}

/* ---- keys ---- */

static bool plain_key_char(uint32_t cp)
{
    return cp >= 0x20 && cp != '"' && cp != '\\';
}

/* A tree of names by characters: node 0 is the root. */
struct names {
    struct name_node {
        uint32_t cp, first, next; /* first child, next sibling; 0: none */
        bool end;
    } * node;
    uint32_t n, cap;
};

static bool add_name(struct names *t, const char *name)
{
    size_t len = strlen(name);
    uint32_t at = 0, cp;

    for (size_t i = 0, step; i < len; i += step) {
        uint32_t to;

        step = esp_utf8_decode(name + i, len - i, &cp);
        if (step == 0 || !plain_key_char(cp))
            return true; /* other keys cannot spell it, for they hold no escapes */
        for (to = t->node[at].first; to && t->node[to].cp != cp; to = t->node[to].next)
            continue;
        if (!to) {
            if (!esp_auto_grow(&t->node, &t->cap, t->n, 1, sizeof *t->node))
                return false;
            to = t->n++;
            t->node[to] = (struct name_node){.cp = cp, .next = t->node[at].first};
            t->node[at].first = to;
        }
        at = to;
    }
    t->node[at].end = true;
    return true;
}

/* At a node: its characters lead on, all others to free text, and a quote ends the key unless it is a listed
 * one. */
static void write_name_node(struct esp_nfa *b, const struct names *t, uint32_t i, const uint32_t *state,
                            uint32_t other, uint32_t end)
{
    struct esp_class c = {0};
    struct esp_frag f;

    esp_class_add(b->ir, &c, 0, 0x1f);
    esp_class_add(b->ir, &c, '"', '"');
    esp_class_add(b->ir, &c, '\\', '\\');
    for (uint32_t k = t->node[i].first; k; k = t->node[k].next) {
        f = esp_nfa_char(b, t->node[k].cp, ESP_IR_PLAIN);
        esp_nfa_link(b, state[i], f.start);
        esp_nfa_link(b, f.end, state[k]);
        esp_class_add(b->ir, &c, t->node[k].cp, t->node[k].cp);
    }
    esp_class_norm(&c);
    esp_class_invert(b->ir, &c);
    f = esp_nfa_class(b, &c, ESP_IR_PLAIN);
    esp_nfa_link(b, state[i], f.start);
    esp_nfa_link(b, f.end, other);
    if (!t->node[i].end) {
        f = esp_nfa_puts(b, "\"");
        esp_nfa_link(b, state[i], f.start);
        esp_nfa_link(b, f.end, end);
    }
}

/* A rule for keys that are none of the listed members, quotes included. */
static esp_status other_key(struct esp_schema *s, const struct esp_schema_members *l, uint32_t *rule,
                            esp_error *err)
{
    struct names t = {0};
    struct esp_class c = {0};
    struct esp_nfa b;
    struct esp_frag f, g;
    uint32_t *state = NULL, other, end;
    bool ok = esp_auto_grow(&t.node, &t.cap, 0, 1, sizeof *t.node);

    if (ok)
        t.node[t.n++] = (struct name_node){0};
    for (uint32_t i = 0; ok && i < l->n; i++)
        ok = add_name(&t, l->m[i].name);
    state = ok ? esp_alloc_array(t.n, sizeof *state) : NULL;
    if (!state) {
        esp_free(t.node);
        return no_memory(err);
    }
    *rule = esp_ir_declare(s->ir, "other key", 9, 0);
    esp_nfa_begin(&b, s->ir);
    f = esp_nfa_puts(&b, "\"");
    for (uint32_t i = 0; i < t.n; i++)
        state[i] = esp_nfa_node(&b);
    end = esp_nfa_node(&b);
    esp_nfa_link(&b, f.end, state[0]);
    esp_class_add(s->ir, &c, 0, 0x1f);
    esp_class_add(s->ir, &c, '"', '"');
    esp_class_add(s->ir, &c, '\\', '\\');
    esp_class_norm(&c);
    esp_class_invert(s->ir, &c);
    g = esp_nfa_star(&b, esp_nfa_class(&b, &c, ESP_IR_PLAIN));
    other = g.start;
    g = esp_nfa_seq(&b, g, esp_nfa_puts(&b, "\""));
    esp_nfa_link(&b, g.end, end);
    for (uint32_t i = 0; i < t.n && s->ir->failed == ESP_OK; i++)
        write_name_node(&b, &t, i, state, other, end);
    f.end = end;
    esp_nfa_end(&b, *rule, f, ESP_IR_SHARED);
    esp_free(state);
    esp_free(t.node);
    return ESP_OK;
}

/* ---- objects ---- */

static struct esp_frag basic(struct esp_schema *s, struct esp_nfa *b, enum esp_schema_basic which)
{
    return esp_nfa_call(b, esp_schema_basic(s, which));
}

/* key, colon, value */
static struct esp_frag member(struct esp_schema *s, struct esp_nfa *b, struct esp_frag key, uint32_t rule)
{
    struct esp_frag f = esp_nfa_seq(b, key, esp_nfa_puts(b, ":"));

    f = esp_nfa_seq(b, f, basic(s, b, ESP_BASIC_SP));
    return esp_nfa_seq(b, f, esp_nfa_call(b, rule));
}

/* name as it is written in JSON, quotes included; NULL without memory */
static char *written_key(const char *name)
{
    json_t *j = json_string(name);
    char *text = j ? esp_schema_text(j, 17) : NULL;

    json_decref(j);
    return text;
}

struct object_build {
    struct esp_schema *s;
    struct esp_nfa *b;
    const struct esp_schema_node *n;
    struct esp_schema_members l;
    uint32_t close; /* white space and "}" */
};

/* Behind a member: a comma and another one, or the end. */
static void behind(struct object_build *o, uint32_t from, uint32_t next, bool may_close)
{
    const struct esp_frag comma = esp_nfa_seq(o->b, esp_nfa_puts(o->b, ","), basic(o->s, o->b, ESP_BASIC_WS));

    if (next != ESP_IR_NONE) {
        esp_nfa_link(o->b, from, comma.start);
        esp_nfa_link(o->b, comma.end, next);
    }
    if (may_close)
        esp_nfa_link(o->b, from, o->close);
}

/* Members beyond the listed ones, which come last: *start is where the first of them begins. */
static esp_status write_others(struct object_build *o, uint32_t *start, esp_error *err)
{
    uint32_t key = 0, value = 0;
    struct esp_frag f;

    *start = ESP_IR_NONE;
    if (!o->l.more)
        return ESP_OK;
    if (o->l.others)
        ESP_TRY(esp_schema_rule(o->s, o->l.others, esp_schema_path(o->s, o->n->path, "additionalProperties"),
                                &value, err));
    else
        value = esp_schema_basic(o->s, ESP_BASIC_VALUE);
    ESP_TRY(other_key(o->s, &o->l, &key, err));
    f = member(o->s, o->b, esp_nfa_call(o->b, key), value);
    *start = esp_nfa_node(o->b);
    esp_nfa_link(o->b, *start, f.start);
    behind(o, f.end, *start, true);
    return ESP_OK;
}

static esp_status write_member(struct object_build *o, const struct esp_schema_member *m,
                               struct esp_frag *out, esp_error *err)
{
    const char *path = esp_schema_path(o->s, esp_schema_path(o->s, o->n->path, "properties"), m->name);
    char *key = written_key(m->name);
    uint32_t rule = 0;
    esp_status st = key ? esp_schema_rule(o->s, m->schema, path, &rule, err) : no_memory(err);

    if (st == ESP_OK)
        *out = member(o->s, o->b, esp_nfa_puts(o->b, key), rule);
    esp_free(key);
    return st;
}

esp_status esp_schema_object(struct esp_schema *s, struct esp_nfa *b, const struct esp_schema_node *n,
                             struct esp_frag *out, esp_error *err)
{
    struct object_build o = {.s = s, .b = b, .n = n};
    struct esp_frag f, end;
    uint32_t next, first;
    bool rest_optional = true;

    ESP_TRY(esp_schema_list_members(s, n, &o.l, err));
    f = esp_nfa_seq(b, esp_nfa_puts(b, "{"), basic(s, b, ESP_BASIC_WS));
    end = esp_nfa_puts(b, "}");
    o.close = esp_nfa_node(b);
    {
        const struct esp_frag ws = basic(s, b, ESP_BASIC_WS);

        esp_nfa_link(b, o.close, ws.start);
        esp_nfa_link(b, ws.end, end.start);
    }
    /* backwards: next and first are where the members from here on may begin, behind a comma and behind the
     * brace */
    ESP_TRY(write_others(&o, &next, err));
    first = esp_nfa_node(b);
    esp_nfa_link(b, first, end.start);
    if (next != ESP_IR_NONE)
        esp_nfa_link(b, first, next);
    for (uint32_t i = o.l.n; i-- > 0 && s->ir->failed == ESP_OK;) {
        const struct esp_schema_member *m = &o.l.m[i];
        uint32_t here = esp_nfa_node(b), start = esp_nfa_node(b);
        struct esp_frag g;

        ESP_TRY(write_member(&o, m, &g, err));
        behind(&o, g.end, next, rest_optional);
        esp_nfa_link(b, here, g.start);
        esp_nfa_link(b, start, g.start);
        if (!m->required) {
            if (next != ESP_IR_NONE)
                esp_nfa_link(b, here, next);
            esp_nfa_link(b, start, first);
        }
        rest_optional &= !m->required;
        next = here;
        first = start;
    }
    esp_nfa_link(b, f.end, first);
    *out = (struct esp_frag){f.start, end.end};
    return ESP_OK;
}

/* ---- arrays ---- */

struct array_parts {
    const json_t *prefix; /* list, or NULL */
    const json_t *items;  /* NULL: anything */
    bool closed;          /* nothing behind the prefix */
};

static esp_status check_array(const struct esp_schema_node *n, const struct array_parts *a, const json_t *p,
                              const json_t *items, bool others, esp_error *err)
{
    if (p && (!json_is_array(p) || json_array_size(p) == 0))
        return esp_schema_bad(n->path, "prefixItems", "expected a list of schemas", err);
    if (p && (a->prefix || others))
        return esp_schema_unsupported(n->path, "prefixItems", "together with another schema's items", err);
    if (items && a->prefix && !p)
        return esp_schema_unsupported(n->path, "items", "together with another schema's prefixItems", err);
    if (json_is_array(items))
        return esp_schema_unsupported(n->path, "items", "a list is the form of draft 2019; use prefixItems",
                                      err);
    if (items && !json_is_boolean(items) && !json_is_object(items))
        return esp_schema_bad(n->path, "items", "expected a schema", err);
    return ESP_OK;
}

static esp_status read_array(struct esp_schema *s, const struct esp_schema_node *n, struct array_parts *a,
                             esp_error *err)
{
    json_t *list = json_array();
    esp_status st = list ? ESP_OK : no_memory(err);

    for (uint32_t i = 0; st == ESP_OK && i < n->n_part; i++) {
        const json_t *p = json_object_get(n->part[i], "prefixItems");
        json_t *v = json_object_get(n->part[i], "items");

        st = check_array(n, a, p, v, json_array_size(list) > 0, err);
        a->prefix = p ? p : a->prefix;
        a->closed |= json_is_false(v);
        if (st == ESP_OK && json_is_object(v) && json_array_append(list, v) != 0)
            st = no_memory(err);
    }
    if (st == ESP_OK && json_array_size(list) > 0)
        return all_of(s, list, &a->items, err);
    json_decref(list);
    return st;
}

static struct esp_frag comma(struct esp_schema *s, struct esp_nfa *b)
{
    return esp_nfa_seq(b, esp_nfa_puts(b, ","), basic(s, b, ESP_BASIC_WS));
}

esp_status esp_schema_array(struct esp_schema *s, struct esp_nfa *b, const struct esp_schema_node *n,
                            struct esp_frag *out, esp_error *err)
{
    struct array_parts a = {0};
    struct esp_frag f, end, more;
    uint32_t at, close, item, n_prefix, max = n->max_items, min, mark;

    ESP_TRY(read_array(s, n, &a, err));
    n_prefix = (uint32_t)json_array_size(a.prefix);
    if (a.closed && max > n_prefix)
        max = n_prefix;
    if (n->min_items > max)
        return esp_schema_never(n->path, "it has fewer items than its minItems asks for", err);
    f = esp_nfa_seq(b, esp_nfa_puts(b, "["), basic(s, b, ESP_BASIC_WS));
    end = esp_nfa_puts(b, "]");
    more = basic(s, b, ESP_BASIC_WS);
    more = esp_nfa_seq(b, more, end);
    close = more.start;
    at = f.end;
    if (n->min_items == 0)
        esp_nfa_link(b, at, end.start);
    for (uint32_t i = 0; i < n_prefix && i < max; i++) {
        char index[16];
        struct esp_frag g;

        esp_schema_index(index, i);
        ESP_TRY(esp_schema_rule(s, json_array_get(a.prefix, i),
                                esp_schema_path(s, esp_schema_path(s, n->path, "prefixItems"), index), &item,
                                err));
        g = esp_nfa_call(b, item);
        if (i > 0)
            g = esp_nfa_seq(b, comma(s, b), g);
        esp_nfa_link(b, at, g.start);
        at = esp_nfa_node(b);
        esp_nfa_link(b, g.end, at);
        if (i + 1 >= n->min_items)
            esp_nfa_link(b, at, close);
    }
    *out = (struct esp_frag){f.start, end.end};
    if (max <= n_prefix)
        return ESP_OK;
    item = esp_schema_basic(s, ESP_BASIC_VALUE);
    if (a.items)
        ESP_TRY(esp_schema_rule(s, a.items, esp_schema_path(s, n->path, "items"), &item, err));
    if (n_prefix == 0) {
        const struct esp_frag g = esp_nfa_call(b, item);

        esp_nfa_link(b, at, g.start);
        at = g.end;
        n_prefix = 1;
    }
    min = n->min_items > n_prefix ? n->min_items - n_prefix : 0;
    mark = b->n;
    more = esp_nfa_seq(b, comma(s, b), esp_nfa_call(b, item));
    more = esp_nfa_repeat(b, more, mark, min, max == ESP_IR_NONE ? max : max - n_prefix);
    esp_nfa_link(b, at, more.start);
    esp_nfa_link(b, more.end, close);
    return ESP_OK;
}
