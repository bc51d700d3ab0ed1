/*
 * From the keywords of a schema to one struct of constraints. Keywords are in one table: what is not there is
 * refused by name, so that nobody gets text that only seems to be constrained.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"

enum place { NOTE, REFER, VALUE, TYPE, OBJECT, ARRAY, STRING, NUMERIC, WAYS };

static const struct keyword {
    const char *name;
    enum place place;
} keywords[] = {
    {"title", NOTE},
    {"description", NOTE},
    {"default", NOTE},
    {"examples", NOTE},
    {"example", NOTE},
    {"$schema", NOTE},
    {"$id", NOTE},
    {"$comment", NOTE},
    {"deprecated", NOTE},
    {"readOnly", NOTE},
    {"writeOnly", NOTE},
    {"$defs", NOTE},
    {"definitions", NOTE},
    {"contentMediaType", NOTE},
    {"contentEncoding", NOTE},
    {"$ref", REFER},
    {"allOf", REFER},
    {"anyOf", WAYS},
    {"oneOf", WAYS},
    {"enum", VALUE},
    {"const", VALUE},
    {"type", TYPE},
    {"nullable", TYPE},
    {"properties", OBJECT},
    {"required", OBJECT},
    {"additionalProperties", OBJECT},
    {"items", ARRAY},
    {"prefixItems", ARRAY},
    {"minItems", ARRAY},
    {"maxItems", ARRAY},
    {"minLength", STRING},
    {"maxLength", STRING},
    {"pattern", STRING},
    {"format", STRING},
    {"minimum", NUMERIC},
    {"maximum", NUMERIC},
    {"exclusiveMinimum", NUMERIC},
    {"exclusiveMaximum", NUMERIC},
};

static const struct keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++)
        if (strcmp(keywords[i].name, name) == 0)
            return &keywords[i];
    return NULL;
}

bool esp_schema_is_annotation(const char *key)
{
    const struct keyword *k = find_keyword(key);

    return k ? k->place == NOTE : strncmp(key, "x-", 2) == 0;
}

esp_status esp_schema_unsupported(const char *path, const char *key, const char *why, esp_error *err)
{
    return esp_fail(err, ESP_EUNSUPPORTED, "schema: \"%.80s\" at %s is not supported%s%s", key, path,
                    *why ? ": " : "", why);
}

esp_status esp_schema_bad(const char *path, const char *key, const char *why, esp_error *err)
{
    return esp_fail(err, ESP_EFORMAT, "schema: \"%.80s\" at %s: %s", key, path, why);
}

esp_status esp_schema_never(const char *path, const char *why, esp_error *err)
{
    return esp_fail(err, ESP_EFORMAT, "schema: nothing satisfies %s: %s", path, why);
}

/* ---- references ---- */

/* One step of a JSON pointer, p[0..len), undone in out; false: too long. */
static bool unescape(const char *p, size_t len, char out[512])
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        char c = p[i];

        if (c == '~' && i + 1 < len && (p[i + 1] == '0' || p[i + 1] == '1'))
            c = p[++i] == '0' ? '~' : '/';
        else if (c == '%' && i + 2 < len) {
            const char hex[3] = {p[i + 1], p[i + 2], 0};

            c = (char)strtoul(hex, NULL, 16);
            i += 2;
        }
        if (n == 511)
            return false;
        out[n++] = c;
    }
    out[n] = 0;
    return true;
}

static const json_t *resolve(const json_t *root, const char *ref)
{
    const json_t *at = root;
    const char *p = ref + 1;

    while (at && *p == '/') {
        const size_t len = strcspn(p + 1, "/");
        char name[512];

        if (!unescape(p + 1, len, name))
            return NULL;
        if (json_is_array(at))
            at = json_array_get(at, strtoul(name, NULL, 10));
        else
            at = json_object_get(at, name);
        p += 1 + len;
    }
    return *p == 0 ? at : NULL;
}

static esp_status follow(const struct esp_schema *s, const json_t *ref, const char *path, const json_t **to,
                         esp_error *err)
{
    const char *text = json_string_value(ref);

    if (!text)
        return esp_schema_bad(path, "$ref", "expected a string", err);
    if (text[0] != '#' || (text[1] != 0 && text[1] != '/'))
        return esp_schema_unsupported(path, "$ref", "only references into the same schema are: #/$defs/NAME",
                                      err);
    *to = resolve(s->root, text);
    if (!*to)
        return esp_fail(err, ESP_EFORMAT, "schema: \"$ref\" at %s: there is no %.200s", path, text);
    return ESP_OK;
}

static esp_status check_keys(const json_t *o, const char *path, esp_error *err)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)o, key,
                        value) if (!find_keyword(key) &&
                                   !esp_schema_is_annotation(key)) return esp_schema_unsupported(path, key,
                                                                                                 "", err);
    return ESP_OK;
}

esp_status esp_schema_gather(struct esp_schema *s, const json_t *schema, struct esp_schema_node *n,
                             esp_error *err)
{
    const json_t *todo[ESP_SCHEMA_CONJUNCTS];
    uint32_t n_todo = 0, n_seen = 0;

    todo[n_todo++] = schema;
    n->n_part = 0;
    while (n_todo) {
        const json_t *o = todo[--n_todo], *ref, *all;
        size_t n_all;

        if (json_is_true(o))
            continue;
        if (json_is_false(o))
            return esp_schema_never(n->path, "the schema is false", err);
        if (!json_is_object(o))
            return esp_fail(err, ESP_EFORMAT, "schema: %s is not an object", n->path);
        if (++n_seen > ESP_SCHEMA_CONJUNCTS)
            return esp_fail(err, ESP_ENOFIT,
                            "schema: %s goes through more than %d references and allOf, or round and round",
                            n->path, ESP_SCHEMA_CONJUNCTS);
        ESP_TRY(check_keys(o, n->path, err));
        n->part[n->n_part++] = o;
        all = json_object_get(o, "allOf");
        n_all = json_array_size(all);
        ref = json_object_get(o, "$ref");
        if (all && (!json_is_array(all) || n_all == 0))
            return esp_schema_bad(n->path, "allOf", "expected a list of schemas", err);
        if (n_all + 1 > ESP_SCHEMA_CONJUNCTS - n_todo)
            return esp_fail(err, ESP_ENOFIT, "schema: allOf at %s has more than %d parts", n->path,
                            ESP_SCHEMA_CONJUNCTS);
        for (size_t i = n_all; i-- > 0;) /* the first is looked at first: properties keep their order */
            todo[n_todo++] = json_array_get(all, i);
        if (ref)
            ESP_TRY(follow(s, ref, n->path, &todo[n_todo++], err));
    }
    return ESP_OK;
}

/* ---- keywords ---- */

static unsigned type_by_name(const char *name)
{
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

    for (unsigned i = 0; name && i < 7; i++)
        if (strcmp(names[i], name) == 0)
            return 1u << i;
    return 0;
}

static esp_status read_type(struct esp_schema_node *n, const json_t *v, esp_error *err)
{
    unsigned types = type_by_name(json_string_value(v));

    for (size_t i = 0; i < json_array_size(v); i++) {
        const unsigned t = type_by_name(json_string_value(json_array_get(v, i)));

        if (!t)
            types = 0;
        types |= t;
        if (!t)
            break;
    }
    if (!types)
        return esp_schema_bad(
            n->path, "type",
            "expected null, boolean, integer, number, string, array, object or a list of those", err);
    if (types & ESP_SCHEMA_NUMBER) /* an integer is a number */
        types |= ESP_SCHEMA_INTEGER;
    n->types &= types;
    n->typed = true;
    return ESP_OK;
}

/* A count keyword into *out by `stricter`, which is > 0 for a minimum. */
static esp_status read_count(const struct esp_schema_node *n, const char *key, const json_t *v, uint32_t *out,
                             int stricter, esp_error *err)
{
    double d = json_number_value(v);
    uint32_t count;

    if (!json_is_number(v) || !(d >= 0) || d != floor(d))
        return esp_schema_bad(n->path, key, "expected a count", err);
    if (d > ESP_LIMIT_GRAMMAR_REPEAT && stricter < 0)
        d = (double)(ESP_IR_NONE - 1); /* refused where it is used, unless a lower one comes */
    if (d > ESP_LIMIT_GRAMMAR_REPEAT && stricter > 0)
        return esp_fail(err, ESP_ENOFIT, "schema: \"%s\" at %s is above %u", key, n->path,
                        ESP_LIMIT_GRAMMAR_REPEAT);
    count = (uint32_t)d;
    if (stricter > 0 ? count > *out : count < *out)
        *out = count;
    return ESP_OK;
}

/* The outermost integer that a bound lets through; false: no 64-bit integer is. */
static bool bound_of(const json_t *v, bool low, bool open, int64_t *out)
{
    double r;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        if (open && *out == (low ? INT64_MAX : INT64_MIN))
            return false;
        *out += open ? (low ? 1 : -1) : 0;
        return true;
    }
    r = low ? ceil(json_real_value(v)) : floor(json_real_value(v));
    if (open && r == json_real_value(v))
        r += low ? 1 : -1;
    if (low ? r >= 0x1p63 : r < -0x1p63)
        return false;
    *out = r >= 0x1p63 ? INT64_MAX : r < -0x1p63 ? INT64_MIN : (int64_t)r;
    return true;
}

/* minimum and its kin. Bounds that no 64-bit integer passes are as good as the last that one does. */
static esp_status read_bound(struct esp_schema_node *n, const char *key, const json_t *v, esp_error *err)
{
    const bool low = strcmp(key, "minimum") == 0 || strcmp(key, "exclusiveMinimum") == 0;
    int64_t b;

    if (json_is_boolean(v))
        return esp_schema_unsupported(n->path, key,
                                      "a boolean is the form of draft 4; give the number itself", err);
    if (!json_is_number(v))
        return esp_schema_bad(n->path, key, "expected a number", err);
    if (!bound_of(v, low, key[0] == 'e', &b))
        return esp_schema_never(n->path, "the bound leaves no 64-bit integer", err);
    if (low) {
        n->min = n->has_min && n->min > b ? n->min : b;
        n->has_min = true;
    } else {
        n->max = n->has_max && n->max < b ? n->max : b;
        n->has_max = true;
    }
    n->bound = key;
    return ESP_OK;
}

/* enum and const: the values that all of them list. */
static esp_status read_values(struct esp_schema_node *n, const char *key, json_t *v, esp_error *err)
{
    json_t *both;

    if (strcmp(key, "const") == 0) {
        both = json_array();
        if (!both || json_array_append(both, v) != 0) {
            json_decref(both);
            return esp_fail(err, ESP_ENOMEM, "schema: out of memory");
        }
    } else {
        if (!json_is_array(v) || json_array_size(v) == 0)
            return esp_schema_bad(n->path, key, "expected a list of values", err);
        if (json_array_size(v) > ESP_LIMIT_SCHEMA_ENUM)
            return esp_fail(err, ESP_ENOFIT, "schema: \"enum\" at %s has %zu values, at most %u are accepted",
                            n->path, json_array_size(v), ESP_LIMIT_SCHEMA_ENUM);
        both = json_incref(v);
    }
    if (n->values) {
        json_t *left = json_array();

        if (json_array_size(both) * json_array_size(n->values) > 10000000) {
            json_decref(left);
            json_decref(both);
            return esp_fail(err, ESP_ENOFIT, "schema: the lists of values at %s are too long to compare",
                            n->path);
        }
        for (size_t i = 0; left && i < json_array_size(both); i++)
            for (size_t k = 0; k < json_array_size(n->values); k++)
                if (json_equal(json_array_get(both, i), json_array_get(n->values, k))) {
                    json_array_append(left, json_array_get(both, i));
                    break;
                }
        json_decref(both);
        both = left;
        if (!both)
            return esp_fail(err, ESP_ENOMEM, "schema: out of memory");
    }
    json_decref(n->own_values);
    n->own_values = both;
    n->values = both;
    return ESP_OK;
}

static esp_status read_text(struct esp_schema_node *n, const char *key, const json_t *v, esp_error *err)
{
    const bool pattern = key[0] == 'p';
    const char **list = pattern ? n->pattern : n->format;
    uint32_t *count = pattern ? &n->n_pattern : &n->n_format;

    if (!json_is_string(v))
        return esp_schema_bad(n->path, key, "expected a string", err);
    for (uint32_t i = 0; i < *count; i++)
        if (strcmp(list[i], json_string_value(v)) == 0)
            return ESP_OK;
    if (*count == 8)
        return esp_fail(err, ESP_ENOFIT, "schema: more than 8 of \"%s\" together at %s", key, n->path);
    list[(*count)++] = json_string_value(v);
    return ESP_OK;
}

static esp_status read_keyword(struct esp_schema_node *n, const char *key, json_t *v, esp_error *err)
{
    static const struct {
        const char *key;
        size_t field;
        int stricter;
    } counts[] = {{"minLength", offsetof(struct esp_schema_node, min_length), 1},
                  {"maxLength", offsetof(struct esp_schema_node, max_length), -1},
                  {"minItems", offsetof(struct esp_schema_node, min_items), 1},
                  {"maxItems", offsetof(struct esp_schema_node, max_items), -1}};
    const struct keyword *k = find_keyword(key);

    for (size_t i = 0; i < 4; i++)
        if (strcmp(counts[i].key, key) == 0)
            return read_count(n, key, v, (uint32_t *)(void *)((char *)n + counts[i].field),
                              counts[i].stricter, err);
    if (strcmp(key, "type") == 0)
        return read_type(n, v, err);
    if (strcmp(key, "nullable") == 0) {
        if (!json_is_boolean(v))
            return esp_schema_bad(n->path, key, "expected true or false", err);
        n->nullable = json_is_true(v);
        return ESP_OK;
    }
    if (k && k->place == VALUE)
        return read_values(n, key, v, err);
    if (k && k->place == NUMERIC)
        return read_bound(n, key, v, err);
    if (k && k->place == STRING)
        return read_text(n, key, v, err);
    return ESP_OK;
}

/* A schema that gives no type but keywords of some types means values of those. */
static unsigned guess_types(const struct esp_schema_node *n)
{
    unsigned types = 0;
    const char *key;
    json_t *v;

    for (uint32_t i = 0; i < n->n_part; i++)
        json_object_foreach((json_t *)(uintptr_t)n->part[i], key, v)
        {
            const struct keyword *k = find_keyword(key);

            if (!k)
                continue;
            types |= k->place == OBJECT ? ESP_SCHEMA_OBJECT : 0u;
            types |= k->place == ARRAY ? ESP_SCHEMA_ARRAY : 0u;
            types |= k->place == STRING ? ESP_SCHEMA_STRING : 0u;
            types |= k->place == NUMERIC ? ESP_SCHEMA_INTEGER : 0u;
        }
    return types ? types : ESP_SCHEMA_ANY;
}

esp_status esp_schema_read(struct esp_schema_node *n, esp_error *err)
{
    n->types = ESP_SCHEMA_ANY;
    n->max_length = n->max_items = ESP_IR_NONE;
    for (uint32_t i = 0; i < n->n_part; i++) {
        const char *key;
        json_t *v;
        bool nullable = n->nullable;
        unsigned before = n->types;

        n->nullable = false;
        json_object_foreach((json_t *)(uintptr_t)n->part[i], key, v) ESP_TRY(read_keyword(n, key, v, err));
        if (n->nullable &&
            n->typed) /* null comes on top of this object's own types, as far as others let it */
            n->types |= before & ESP_SCHEMA_NULL;
        n->nullable |= nullable;
    }
    if (!n->typed)
        n->types &= guess_types(n) | (n->nullable ? ESP_SCHEMA_NULL : 0u);
    if (n->types == 0)
        return esp_schema_never(n->path, "its types exclude each other", err);
    if (n->has_min && n->has_max && n->min > n->max)
        return esp_schema_never(n->path, "its minimum is above its maximum", err);
    if (n->min_length > n->max_length)
        return esp_schema_never(n->path, "its minLength is above its maxLength", err);
    if (n->min_items > n->max_items)
        return esp_schema_never(n->path, "its minItems is above its maxItems", err);
    if (n->bound && n->types & ESP_SCHEMA_NUMBER)
        return esp_schema_unsupported(n->path, n->bound, "bounds are for type integer, not for number", err);
    return ESP_OK;
}
