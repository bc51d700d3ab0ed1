/*
 * JSON Schema, from the outside: the queue of subschemas, alternatives, lists of values, and the grammar's
 * root.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"

#include "grammar/automaton.h"
#include "grammar/front.h"

enum { MAX_TEXT = 64 << 20 }; /* bytes of schemas written out to compare them */

static esp_status no_memory(esp_error *err)
{
    return esp_fail(err, ESP_ENOMEM, "schema: out of memory");
}

char *esp_schema_text(const json_t *j, size_t digits)
{
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits);
    const size_t n = json_dumpb(j, NULL, 0, flags);
    char *text = n ? esp_alloc(n + 1) : NULL;

    if (text)
        json_dumpb(j, text, n, flags);
    return text;
}

bool esp_schema_keep(struct esp_schema *s, json_t *j)
{
    return json_array_append_new(s->kept, j) == 0;
}

void esp_schema_index(char out[16], uint32_t i)
{
    snprintf(out, 16, "%u", i);
}

const char *esp_schema_path(struct esp_schema *s, const char *parent, const char *key)
{
    const size_t n = strlen(parent);
    size_t len = n + 1;
    char *p;

    if (n > 4096) /* deep enough to find the place */
        return parent;
    for (const char *k = key; *k; k++)
        len += *k == '~' || *k == '/' ? 2 : 1;
    p = esp_arena_alloc(s->ir->arena, len + 1);
    if (!p)
        return parent;
    memcpy(p, parent, n);
    len = n;
    p[len++] = '/';
    for (; *key; key++) {
        p[len++] = *key == '~' || *key == '/' ? '~' : *key;
        if (*key == '~' || *key == '/')
            p[len++] = *key == '~' ? '0' : '1';
    }
    return p;
}

uint32_t esp_schema_basic(struct esp_schema *s, enum esp_schema_basic which)
{
    static const char *const names[] = {"space", "space",  "value",  "object",
                                        "array", "string", "number", "integer"};

    if (!s->basic[which]) {
        const uint32_t rule = esp_ir_declare(s->ir, names[which], strlen(names[which]), 0);

        s->basic[which] = rule + 1; /* first, for it may call itself by way of others */
        esp_schema_write_basic(s, which, rule);
    }
    return s->basic[which] - 1;
}

esp_status esp_schema_check(const json_t *schema, esp_error *err)
{
    char *text = esp_schema_text(schema, 17);
    size_t depth = 0, max = 0, len;
    bool in_string = false;

    if (!text)
        return no_memory(err);
    for (len = 0; text[len]; len++) {
        const char c = text[len];

        if (in_string && c == '\\')
            len++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '{' || c == '[') && ++depth > max)
            max = depth;
        else if (!in_string && (c == '}' || c == ']'))
            depth--;
    }
    esp_free(text);
    if (len > ESP_LIMIT_SCHEMA_BYTES)
        return esp_fail(err, ESP_ENOFIT, "schema: %zu bytes, at most %u are accepted", len,
                        ESP_LIMIT_SCHEMA_BYTES);
    if (max > ESP_LIMIT_SCHEMA_DEPTH)
        return esp_fail(err, ESP_ENOFIT, "schema: nested %zu deep, at most %d are accepted", max,
                        ESP_LIMIT_SCHEMA_DEPTH);
    return ESP_OK;
}

esp_status esp_schema_begin(struct esp_schema *s, struct esp_ir *ir, const json_t *root, unsigned flags,
                            esp_error *err)
{
    memset(s, 0, sizeof *s);
    s->ir = ir;
    s->root = root;
    s->flags = flags;
    s->kept = json_array();
    return s->kept ? ESP_OK : no_memory(err);
}

void esp_schema_end(struct esp_schema *s)
{
    json_decref(s->kept);
    esp_free(s->job);
    esp_free(s->text);
    esp_free(s->slot);
    esp_free(s->hash);
    memset(s, 0, sizeof *s);
}

/* ---- the queue ---- */

static bool rehash(struct esp_schema *s)
{
    const uint32_t n = s->n_slot ? s->n_slot * 2 : 256;
    uint32_t *slot = esp_alloc_array(n, sizeof *slot);

    if (!slot)
        return false;
    for (uint32_t i = 0; i < s->n_job; i++) {
        uint64_t h = s->hash[i];

        while (slot[h & (n - 1)])
            h++;
        slot[h & (n - 1)] = i + 1;
    }
    esp_free(s->slot);
    s->slot = slot;
    s->n_slot = n;
    return true;
}

/* The job with this text, or where to note a new one. */
static esp_status find_job(const struct esp_schema *s, const char *text, uint64_t hash, uint64_t *slot,
                           uint32_t *found, esp_error *err)
{
    *found = ESP_IR_NONE;
    for (*slot = hash; s->slot[*slot & (s->n_slot - 1)]; ++*slot) {
        const uint32_t i = s->slot[*slot & (s->n_slot - 1)] - 1;
        char *other;
        bool same;

        if (s->hash[i] != hash)
            continue;
        other = esp_schema_text(s->job[i].schema, 17);
        if (!other)
            return no_memory(err);
        same = strcmp(other, text) == 0;
        esp_free(other);
        if (same) {
            *found = i;
            return ESP_OK;
        }
    }
    return ESP_OK;
}

static esp_status add_job(struct esp_schema *s, const json_t *schema, const char *path, const char *text,
                          uint32_t *rule, esp_error *err)
{
    const size_t len = strlen(text);
    const uint64_t hash = esp_hash(text, len, 0);
    uint64_t slot;
    uint32_t found;

    s->text_bytes += len;
    if (s->text_bytes > MAX_TEXT)
        return esp_fail(err, ESP_ENOFIT, "schema: too large when its references are followed, at %s", path);
    if (s->n_job * 2 >= s->n_slot && !rehash(s))
        return no_memory(err);
    ESP_TRY(find_job(s, text, hash, &slot, &found, err));
    if (found != ESP_IR_NONE) {
        *rule = s->job[found].rule;
        return ESP_OK;
    }
    if (!esp_auto_grow(&s->job, &s->cap_job, s->n_job, 1, sizeof *s->job) ||
        !esp_auto_grow(&s->hash, &s->cap_hash, s->n_job, 1, sizeof *s->hash))
        return no_memory(err);
    *rule = esp_ir_declare(s->ir, path, strlen(path), 0);
    s->hash[s->n_job] = hash;
    s->job[s->n_job] = (struct esp_schema_job){*rule, schema, path};
    s->slot[slot & (s->n_slot - 1)] = ++s->n_job;
    return esp_ir_check(s->ir, "schema", err);
}

esp_status esp_schema_rule(struct esp_schema *s, const json_t *schema, const char *path, uint32_t *rule,
                           esp_error *err)
{
    char *text = esp_schema_text(schema, 17);
    esp_status st = text ? add_job(s, schema, path, text, rule, err) : no_memory(err);

    esp_free(text);
    return st;
}

/* ---- alternatives ---- */

/* The parts of n without what was followed already and without list `key` of part `which`. */
static json_t *rest_of(const struct esp_schema_node *n, uint32_t which, const char *key)
{
    json_t *rest = json_array();

    for (uint32_t i = 0; rest && i < n->n_part; i++) {
        json_t *o = json_object(), *v;
        const char *k;

        json_object_foreach((json_t *)(uintptr_t)n->part[i], k,
                            v) if (strcmp(k, "$ref") != 0 && strcmp(k, "allOf") != 0 &&
                                   !esp_schema_is_annotation(k) && !(i == which && strcmp(k, key) == 0))
            json_object_set(o, k, v);
        if (!o || json_array_append_new(rest, o) != 0) {
            json_decref(rest);
            return NULL;
        }
        if (json_object_size(o) == 0)
            json_array_remove(rest, json_array_size(rest) - 1);
    }
    return rest;
}

static esp_status write_ways(struct esp_schema *s, struct esp_nfa *b, const struct esp_schema_node *n,
                             uint32_t which, const char *key, struct esp_frag *out, esp_error *err)
{
    const json_t *list = json_object_get(n->part[which], key);
    json_t *rest = rest_of(n, which, key);

    if (!rest || !esp_schema_keep(s, rest))
        return no_memory(err);
    if (!json_is_array(list) || json_array_size(list) == 0)
        return esp_schema_bad(n->path, key, "expected a list of schemas", err);
    out->start = esp_nfa_node(b);
    out->end = esp_nfa_node(b);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *way = json_array_get(list, i);
        char index[16];
        struct esp_frag f;
        uint32_t rule;

        if (json_array_size(rest) > 0) {
            json_t *all = json_copy(rest), *o = json_object();

            if (!all || !o || json_array_append(all, way) != 0 || json_object_set_new(o, "allOf", all) != 0 ||
                !esp_schema_keep(s, o))
                return no_memory(err);
            way = o;
        }
        esp_schema_index(index, (uint32_t)i);
        ESP_TRY(
            esp_schema_rule(s, way, esp_schema_path(s, esp_schema_path(s, n->path, key), index), &rule, err));
        f = esp_nfa_call(b, rule);
        esp_nfa_link(b, out->start, f.start);
        esp_nfa_link(b, f.end, out->end);
    }
    return ESP_OK;
}

/* ---- lists of values ---- */

static bool type_fits(const struct esp_schema_node *n, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return n->types & ESP_SCHEMA_NULL || n->nullable;
    case JSON_TRUE:
    case JSON_FALSE:
        return n->types & ESP_SCHEMA_BOOLEAN;
    case JSON_INTEGER:
        return n->types & (ESP_SCHEMA_INTEGER | ESP_SCHEMA_NUMBER);
    case JSON_REAL:
        return n->types & ESP_SCHEMA_NUMBER ||
               (n->types & ESP_SCHEMA_INTEGER && json_real_value(v) == floor(json_real_value(v)));
    case JSON_STRING:
        return n->types & ESP_SCHEMA_STRING;
    case JSON_ARRAY:
        return n->types & ESP_SCHEMA_ARRAY;
    default:
        return n->types & ESP_SCHEMA_OBJECT;
    }
}

static size_t count_chars(const char *s)
{
    size_t n = 0;

    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static bool value_fits(const struct esp_schema_node *n, const json_t *v)
{
    if (!type_fits(n, v))
        return false;
    if (json_is_number(v)) {
        const double d = json_number_value(v);

        return !(n->has_min && d < (double)n->min) && !(n->has_max && d > (double)n->max);
    }
    if (json_is_string(v)) {
        const size_t c = count_chars(json_string_value(v));

        return c >= n->min_length && c <= n->max_length;
    }
    return true;
}

/* The shortest spelling of numbers that reads back as the same value; NULL without memory. */
static char *spell(const json_t *v)
{
    for (size_t digits = 15; digits <= 17; digits++) {
        char *text = esp_schema_text(v, digits);
        json_t *back = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        const bool same = back && json_equal(back, v);

        json_decref(back);
        if (same || !text || digits == 17)
            return text;
        esp_free(text);
    }
    return NULL;
}

static esp_status write_values(struct esp_nfa *b, const struct esp_schema_node *n, struct esp_frag *out,
                               esp_error *err)
{
    bool any = false;

    out->start = esp_nfa_node(b);
    out->end = esp_nfa_node(b);
    if (n->n_pattern || n->n_format)
        return esp_schema_unsupported(n->path, n->n_pattern ? "pattern" : "format",
                                      "together with enum or const", err);
    for (size_t i = 0; i < json_array_size(n->values); i++) {
        const json_t *v = json_array_get(n->values, i);
        struct esp_frag f;
        char *text;

        if (!value_fits(n, v))
            continue;
        if ((json_is_object(v) || json_is_array(v)) && n->n_part > 1)
            return esp_schema_unsupported(n->path, "enum", "objects and arrays together with other schemas",
                                          err);
        text = spell(v);
        if (!text)
            return no_memory(err);
        f = esp_nfa_puts(b, text);
        esp_free(text);
        esp_nfa_link(b, out->start, f.start);
        esp_nfa_link(b, f.end, out->end);
        any = true;
    }
    return any ? ESP_OK : esp_schema_never(n->path, "none of its values fits the rest of it", err);
}

/* ---- types ---- */

static struct esp_frag add(struct esp_nfa *b, struct esp_frag sum, struct esp_frag f)
{
    esp_nfa_link(b, sum.start, f.start);
    esp_nfa_link(b, f.end, sum.end);
    return sum;
}

static esp_status write_types(struct esp_schema *s, struct esp_nfa *b, const struct esp_schema_node *n,
                              struct esp_frag *out, esp_error *err)
{
    struct esp_frag sum = {esp_nfa_node(b), 0}, f;

    sum.end = esp_nfa_node(b);
    if (n->types == ESP_SCHEMA_ANY && !n->typed) {
        *out = add(b, sum, esp_nfa_call(b, esp_schema_basic(s, ESP_BASIC_VALUE)));
        return ESP_OK;
    }
    if (n->types & ESP_SCHEMA_NULL || n->nullable)
        add(b, sum, esp_nfa_puts(b, "null"));
    if (n->types & ESP_SCHEMA_BOOLEAN)
        add(b, sum, esp_nfa_alt(b, esp_nfa_puts(b, "true"), esp_nfa_puts(b, "false")));
    if (n->types & ESP_SCHEMA_NUMBER)
        add(b, sum, esp_nfa_call(b, esp_schema_basic(s, ESP_BASIC_NUMBER)));
    else if (n->types & ESP_SCHEMA_INTEGER)
        add(b, sum,
            n->bound ? esp_schema_integer(b, n) : esp_nfa_call(b, esp_schema_basic(s, ESP_BASIC_INTEGER)));
    if (n->types & ESP_SCHEMA_STRING) {
        ESP_TRY(esp_schema_string(s, b, n, &f, err));
        add(b, sum, f);
    }
    if (n->types & ESP_SCHEMA_ARRAY) {
        ESP_TRY(esp_schema_array(s, b, n, &f, err));
        add(b, sum, f);
    }
    if (n->types & ESP_SCHEMA_OBJECT) {
        ESP_TRY(esp_schema_object(s, b, n, &f, err));
        add(b, sum, f);
    }
    *out = sum;
    return ESP_OK;
}

static esp_status write_node(struct esp_schema *s, struct esp_nfa *b, struct esp_schema_node *n,
                             const json_t *schema, struct esp_frag *out, esp_error *err)
{
    ESP_TRY(esp_schema_gather(s, schema, n, err));
    for (uint32_t i = 0; i < n->n_part; i++)
        for (int k = 0; k < 2; k++) {
            const char *key = k ? "oneOf" : "anyOf";

            if (json_object_get(n->part[i], key))
                return write_ways(s, b, n, i, key, out, err);
        }
    ESP_TRY(esp_schema_read(n, err));
    if (n->values)
        return write_values(b, n, out, err);
    return write_types(s, b, n, out, err);
}

/* A subschema that nothing satisfies is a rule without texts: what needs it has none either, alternatives go
 * on. */
static bool is_never(const esp_error *e)
{
    return e->status == ESP_EFORMAT && strncmp(e->message, "schema: nothing satisfies", 25) == 0;
}

static esp_status write_job(struct esp_schema *s, uint32_t i, esp_error *never, esp_error *err)
{
    const struct esp_schema_job job = s->job[i];
    struct esp_schema_node n = {.path = job.path};
    struct esp_frag f = {0, 0};
    struct esp_nfa b;
    esp_error why;
    esp_status st;

    esp_nfa_begin(&b, s->ir);
    st = write_node(s, &b, &n, job.schema, &f, &why);
    json_decref(n.own_values);
    if (st != ESP_OK && !is_never(&why)) {
        esp_nfa_drop(&b);
        return esp_fail(err, st, "%s", why.message);
    }
    if (st != ESP_OK) {
        if (!*never->message)
            *never = why;
        esp_nfa_drop(&b);
        f = esp_nfa_range(&b, 1, 0);
    }
    esp_nfa_end(&b, job.rule, f, 0);
    return esp_ir_check(s->ir, "schema", err);
}

esp_status esp_schema_run(struct esp_schema *s, esp_error *never, esp_error *err)
{
    for (; s->done < s->n_job; s->done++)
        ESP_TRY(write_job(s, s->done, never, err));
    return ESP_OK;
}

/* ---- the grammar ---- */

static esp_status write_root(struct esp_schema *s, const json_t *schema, esp_error *never, esp_error *err)
{
    uint32_t rule;
    struct esp_nfa b;
    struct esp_frag f;

    s->ir->root = esp_ir_declare(s->ir, "#", 1, 0);
    if (schema)
        ESP_TRY(esp_schema_rule(s, schema, "#", &rule, err));
    else
        rule = esp_schema_basic(s, ESP_BASIC_OBJECT);
    esp_nfa_begin(&b, s->ir);
    f = esp_nfa_call(&b, rule);
    if (s->flags & ESP_SCHEMA_LEAD) {
        struct esp_frag lead = esp_nfa_opt(&b, esp_nfa_puts(&b, "\n"));

        lead = esp_nfa_seq(&b, lead, esp_nfa_opt(&b, esp_nfa_puts(&b, "\n")));
        f = esp_nfa_seq(&b, lead, f);
    }
    esp_nfa_end(&b, s->ir->root, f, 0);
    return esp_schema_run(s, never, err);
}

esp_status esp_front_schema(struct esp_front *f, const json_t *schema, unsigned flags, esp_error *err)
{
    struct esp_schema s;
    esp_status st;

    memset(f, 0, sizeof *f);
    f->what = "schema";
    if (schema)
        ESP_TRY(esp_schema_check(schema, err));
    ESP_TRY(esp_ir_init(&f->ir, err));
    st = esp_schema_begin(&s, &f->ir, schema, flags, err);
    if (st == ESP_OK)
        st = write_root(&s, schema, &f->never, err);
    esp_schema_end(&s);
    if (st != ESP_OK)
        esp_ir_free(&f->ir);
    return st;
}

esp_status esp_grammar_schema(struct esp_grammar **out, const struct esp_vocab *v, const json_t *schema,
                              unsigned flags, esp_error *err)
{
    struct esp_front f;

    return esp_front_finish(out, v, &f, esp_front_schema(&f, schema, flags, err), err);
}
