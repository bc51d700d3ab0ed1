/*
 * Random JSON Schemas of the subset, and a validator that shares nothing with the grammar room. A schema may
 * refer to #/$defs/d, which the caller puts in. SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_GRAMMAR_RANDOM_SCHEMA_H
#define ESP_TESTS_GRAMMAR_RANDOM_SCHEMA_H

#include "grammar/help.h"

#include <math.h>

static inline json_t *random_schema(struct esp_rng_key *k, int depth);

static inline json_t *random_object(struct esp_rng_key *k, int depth)
{
    json_t *o = json_pack("{s:s}", "type", "object"), *p = json_object(), *r = json_array();
    static const char *const names[] = {"a", "ab", "b", "\xc3\xa9", "\"q"};

    for (uint32_t i = draw(k, 4); i > 0; i--) {
        const char *name = names[draw(k, 5)];

        json_object_set_new(p, name, random_schema(k, depth - 1));
        if (draw(k, 2))
            json_array_append_new(r, json_string(name));
    }
    json_object_set_new(o, "properties", p);
    json_object_set_new(o, "required", r);
    if (draw(k, 3) == 0)
        json_object_set_new(o, "additionalProperties",
                            draw(k, 2) ? json_false() : random_schema(k, depth - 1));
    return o;
}

static inline json_t *random_array(struct esp_rng_key *k, int depth)
{
    json_t *o = json_pack("{s:s}", "type", "array"), *p;
    const int min = (int)draw(k, 3);

    if (draw(k, 4) == 0) {
        p = json_array();
        json_array_append_new(p, random_schema(k, depth - 1));
        json_array_append_new(p, random_schema(k, depth - 1));
        json_object_set_new(o, "prefixItems", p);
    }
    json_object_set_new(o, "items", random_schema(k, depth - 1));
    if (draw(k, 2))
        json_object_set_new(o, "minItems", json_integer(min));
    if (draw(k, 2))
        json_object_set_new(o, "maxItems", json_integer(min + (int)draw(k, 3)));
    return o;
}

static inline json_t *random_ways(struct esp_rng_key *k, int depth)
{
    static const char *const keys[] = {"anyOf", "oneOf", "allOf"};
    json_t *list = json_array(), *o;

    json_array_append_new(list, random_schema(k, depth - 1));
    json_array_append_new(list, random_schema(k, depth - 1));
    o = draw(k, 3) ? json_object() : random_schema(k, 0);
    json_object_set_new(o, keys[draw(k, 3)], list);
    return o;
}

static inline json_t *random_schema(struct esp_rng_key *k, int depth)
{
    const int64_t lo = (int64_t)draw(k, 2000) - 1000;

    switch (depth > 0 ? draw(k, 11) : draw(k, 7)) {
    case 0:
        return json_pack("{s:[s,s]}", "type", "null", "boolean");
    case 1:
        return json_pack("{s:s,s:I,s:I}", "type", "integer", "minimum", lo, "maximum", lo + draw(k, 500));
    case 2:
        return json_pack("{s:s}", "type", "number");
    case 3:
        return json_pack("{s:s,s:i,s:i}", "type", "string", "minLength", (int)draw(k, 3), "maxLength",
                         3 + (int)draw(k, 3));
    case 4:
        return json_pack("{s:[i,s,n,{s:i}]}", "enum", 3, "x", "k", 1);
    case 5:
        return json_pack("{s:s}", "$ref", "#/$defs/d");
    case 6:
        return json_pack("{s:s}", "type", "string");
    case 7:
    case 8:
        return random_object(k, depth);
    case 9:
        return random_array(k, depth);
    default:
        return random_ways(k, depth);
    }
}

static inline bool valid(const json_t *root, const json_t *schema, const json_t *v, bool open);

static inline bool type_is(const char *t, const json_t *v)
{
    if (strcmp(t, "integer") == 0)
        return json_is_integer(v) || (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
    return (strcmp(t, "null") == 0 && json_is_null(v)) || (strcmp(t, "boolean") == 0 && json_is_boolean(v)) ||
           (strcmp(t, "number") == 0 && json_is_number(v)) ||
           (strcmp(t, "string") == 0 && json_is_string(v)) || (strcmp(t, "array") == 0 && json_is_array(v)) ||
           (strcmp(t, "object") == 0 && json_is_object(v));
}

static inline bool valid_type(const json_t *t, const json_t *v)
{
    bool ok = !t || (json_is_string(t) && type_is(json_string_value(t), v));

    for (size_t i = 0; i < json_array_size(t); i++)
        ok |= type_is(json_string_value(json_array_get(t, i)), v);
    return ok;
}

static inline bool valid_object(const json_t *root, const json_t *s, json_t *v, bool open)
{
    json_t *p = json_object_get(s, "properties"), *a = json_object_get(s, "additionalProperties"), *e, *x;
    const char *key;
    size_t i;

    json_array_foreach(json_object_get(s, "required"), i,
                       x) if (!json_object_get(v, json_string_value(x))) return false;
    json_object_foreach(v, key, e)
    {
        x = json_object_get(p, key);
        if (!x && json_is_false(a))
            return false;
        x = x ? x : a;
        if (x && !valid(root, x, e, open))
            return false;
    }
    return true;
}

static inline bool valid_array(const json_t *root, const json_t *s, const json_t *v, bool open)
{
    json_t *p = json_object_get(s, "prefixItems"), *it = json_object_get(s, "items");
    const json_t *lo = json_object_get(s, "minItems"), *hi = json_object_get(s, "maxItems");
    const size_t n = json_array_size(v);

    if ((lo && n < (size_t)json_integer_value(lo)) || (hi && n > (size_t)json_integer_value(hi)))
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = i < json_array_size(p) ? json_array_get(p, i) : it;

        if (x && !valid(root, x, json_array_get(v, i), open))
            return false;
    }
    return true;
}

static inline bool valid_ways(const json_t *root, const json_t *s, const json_t *v, bool open)
{
    const json_t *any = json_object_get(s, "anyOf"), *one = json_object_get(s, "oneOf"),
                 *all = json_object_get(s, "allOf");
    bool ok = !any && !one;

    any = any ? any : one; /* oneOf counts as anyOf */
    for (size_t i = 0; i < json_array_size(any); i++)
        ok |= valid(root, json_array_get(any, i), v, open);
    for (size_t i = 0; i < json_array_size(all); i++)
        ok &= valid(root, json_array_get(all, i), v, open);
    return ok;
}

static inline bool valid_once(const json_t *root, const json_t *s, const json_t *v, bool open)
{
    const json_t *ref = json_object_get(s, "$ref"), *e = json_object_get(s, "enum"), *x;
    bool listed = !e;

    if (json_is_boolean(s))
        return json_is_true(s);
    if (ref && !valid(root, json_object_get(json_object_get(root, "$defs"), "d"), v, open))
        return false;
    for (size_t i = 0; i < json_array_size(e); i++)
        listed |= json_equal(json_array_get(e, i), v);
    if (!listed || !valid_type(json_object_get(s, "type"), v) || !valid_ways(root, s, v, open))
        return false;
    if (json_is_number(v)) {
        x = json_object_get(s, "minimum");
        if (x && json_number_value(v) < json_number_value(x))
            return false;
        x = json_object_get(s, "maximum");
        return !x || json_number_value(v) <= json_number_value(x);
    }
    if (json_is_string(v)) {
        const char *t = json_string_value(v);
        size_t n = 0;

        for (; *t; t++)
            n += ((unsigned char)*t & 0xc0) != 0x80;
        x = json_object_get(s, "minLength");
        if (x && n < (size_t)json_integer_value(x))
            return false;
        x = json_object_get(s, "maxLength");
        return !x || n <= (size_t)json_integer_value(x);
    }
    if (json_is_object(v))
        return valid_object(root, s, (json_t *)(uintptr_t)v, open);
    return !json_is_array(v) || valid_array(root, s, v, open);
}

/* A schema that comes back to itself for the same value says nothing new. */
static inline bool valid(const json_t *root, const json_t *s, const json_t *v, bool open)
{
    static const json_t *busy[4096][2];
    static int n;
    bool ok;

    for (int i = 0; i < n; i++)
        if (busy[i][0] == s && busy[i][1] == v)
            return false;
    assert_true(n < 4096);
    busy[n][0] = s;
    busy[n++][1] = v;
    ok = valid_once(root, s, v, open);
    n--;
    return ok;
}

#endif
