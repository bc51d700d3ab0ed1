/*
 * See the header. Structures are checked by the JSON parser and then copied without their white space, so
 * that no number is written differently from how the model wrote it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/toolvalue.h"

#include <string.h>

#include "base/json.h"

enum { MAX_UNION = 64 /* members of a union that are looked at */ };

const json_t *esp_tool_find(const json_t *tools, const char *name)
{
    size_t i;
    json_t *t;

    json_array_foreach(tools, i, t)
    {
        const json_t *f = json_object_get(t, "function"), *of = f ? f : t;
        const char *its = json_string_value(json_object_get(of, "name"));

        if (its && strcmp(its, name) == 0)
            return of;
    }
    return NULL;
}

static unsigned type_named(const char *name)
{
    static const char *const names[] = {"string", "integer", "number", "boolean", "null", "object", "array"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (name && strcmp(names[i], name) == 0)
            return 1u << i;
    return 0;
}

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING:
        return ESP_TOOL_STRING;
    case JSON_INTEGER:
        return ESP_TOOL_INTEGER;
    case JSON_REAL:
        return ESP_TOOL_NUMBER;
    case JSON_OBJECT:
        return ESP_TOOL_OBJECT;
    case JSON_ARRAY:
        return ESP_TOOL_ARRAY;
    case JSON_NULL:
        return ESP_TOOL_NULL;
    default:
        return ESP_TOOL_BOOLEAN;
    }
}

/* Types that one schema names itself, by type, enum or const. */
static unsigned own_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum"),
                 *only = json_object_get(schema, "const");
    unsigned set = type_named(json_string_value(type));
    size_t i;
    json_t *v;

    json_array_foreach(type, i, v) set |= type_named(json_string_value(v));
    if (!set)
        json_array_foreach(list, i, v) set |= type_of_value(v);
    if (!set && only)
        set = type_of_value(only);
    return set;
}

unsigned esp_tool_types(const json_t *tool, const char *parameter)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *schema = json_object_get(tool, "parameters");
    unsigned set;

    if (!schema)
        schema = json_object_get(tool, "input_schema");
    schema = json_object_get(json_object_get(schema, "properties"), parameter);
    set = own_types(schema);
    for (size_t u = 0; u < 2; u++) {
        const json_t *list = json_object_get(schema, unions[u]);

        for (size_t i = 0; i < json_array_size(list) && i < MAX_UNION; i++) {
            const unsigned member = own_types(json_array_get(list, i));

            if (!member)
                return 0; /* a member that does not say: the text decides */
            set |= member;
        }
    }
    return set;
}

/* ---- text to JSON ---- */

bool esp_json_escape(struct esp_strbuf *out, const char *text, size_t len)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    size_t start = 0;

    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        const char *known = c ? strchr(from, (int)c) : NULL;

        if (c >= 0x20 && !known)
            continue;
        esp_strbuf_add(out, text + start, i - start);
        if (known)
            esp_strbuf_printf(out, "\\%c", to[known - from]);
        else
            esp_strbuf_printf(out, "\\u%04x", (unsigned)c);
        start = i + 1;
    }
    return esp_strbuf_add(out, text + start, len - start);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Valid JSON without its white space. */
static bool add_compact(struct esp_strbuf *out, const char *s, size_t len)
{
    size_t start = 0;
    bool in_string = false;

    for (size_t i = 0; i < len; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (is_space(s[i])) {
            esp_strbuf_add(out, s + start, i - start);
            start = i + 1;
        }
    }
    return esp_strbuf_add(out, s + start, len - start);
}

static bool add_string(struct esp_strbuf *out, const char *s, size_t len)
{
    return esp_strbuf_putc(out, '"') && esp_json_escape(out, s, len) && esp_strbuf_putc(out, '"');
}

static bool same_word(const char *s, size_t len, const char *a, const char *b)
{
    return (len == strlen(a) && memcmp(s, a, len) == 0) || (len == strlen(b) && memcmp(s, b, len) == 0);
}

/* "5.0" is the integer 5. */
static size_t integral_length(const char *s, size_t len)
{
    const char *dot = memchr(s, '.', len);

    if (!dot)
        return len;
    for (const char *p = dot + 1; p < s + len; p++)
        if (*p != '0')
            return 0;
    return (size_t)(dot - s);
}

/* The literal that the model meant with Python's or JSON's word for it, or NULL. */
static const char *literal(unsigned types, const char *s, size_t len)
{
    if ((types & ESP_TOOL_BOOLEAN) && same_word(s, len, "true", "True"))
        return "true";
    if ((types & ESP_TOOL_BOOLEAN) && same_word(s, len, "false", "False"))
        return "false";
    if ((types & ESP_TOOL_NULL) && same_word(s, len, "null", "None"))
        return "null";
    return NULL;
}

/* Whether a value of one type is among those allowed. */
static bool fits(unsigned types, unsigned is)
{
    return types == 0 || (types & is) || (is == ESP_TOOL_INTEGER && (types & ESP_TOOL_NUMBER));
}

/* Cut white space off both ends. */
static const char *trim(const char *s, size_t *n)
{
    while (*n && is_space(*s)) {
        s++;
        --*n;
    }
    while (*n && is_space(s[*n - 1]))
        --*n;
    return s;
}

/* Type of the JSON s[0..*n), 0 when it is none; a whole number written as a real counts as an integer, and is
 * cut to one, where only integers are allowed. */
static unsigned type_of_text(unsigned types, const char *s, size_t *n)
{
    size_t whole;
    json_t *v = NULL;
    unsigned is;

    if (*n == 0 || esp_json_parse(&v, s, *n, "value", 0, NULL) != ESP_OK)
        return 0;
    is = type_of_value(v);
    json_decref(v);
    if (is != ESP_TOOL_NUMBER || (types & (ESP_TOOL_INTEGER | ESP_TOOL_NUMBER)) != ESP_TOOL_INTEGER)
        return is;
    whole = integral_length(s, *n);
    if (whole)
        *n = whole;
    return whole ? ESP_TOOL_INTEGER : is;
}

bool esp_tool_value(unsigned types, const char *text, size_t len, struct esp_strbuf *out, bool *odd)
{
    const char *s, *word;
    size_t n = len;
    unsigned is;

    *odd = false;
    if (types == ESP_TOOL_STRING)
        return add_string(out, text, len);
    s = trim(text, &n);
    word = literal(types, s, n);
    if (word)
        return esp_strbuf_puts(out, word);
    is = type_of_text(types, s, &n);
    if (is && fits(types, is))
        return add_compact(out, s, n);
    *odd = types && !(types & ESP_TOOL_STRING);
    return add_string(out, text, len);
}
