/*
 * Jinja values as text: Python's str() and repr() for printing, json.dumps for tojson. What is added around
 * strings (quotes, brackets, numbers) is untrusted text; bytes copied from strings keep their marks.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"

/* The digits of f to n places as an integer, and the decimal exponent of the first; true if they read back as
 * f. */
static bool digits_of(double f, int n, char digits[24], int *exponent)
{
    char text[48];
    int k = 0;

    snprintf(text, sizeof text, "%.*e", n - 1, f);
    for (const char *p = text; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') /* skips the locale's decimal point */
            digits[k++] = *p;
    digits[k] = 0;
    *exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    return strtod(text, NULL) == f;
}

/* The n digits with the decimal point behind number e (0 = the first), -4 <= e < 16. */
static void place_point(const char *digits, int n, int e, char *out, size_t cap)
{
    size_t at = 0;

    if (e < 0) {
        snprintf(out, cap, "0.%.*s%s", -e - 1, "0000", digits);
        return;
    }
    for (int i = 0; i <= e || i < n; i++) {
        if (i == e + 1)
            out[at++] = '.';
        out[at++] = i < n ? digits[i] : '0';
    }
    snprintf(out + at, cap - at, "%s", n <= e + 1 ? ".0" : "");
}

void esp_jfloat_repr(double f, char out[ESP_JFLOAT_BYTES])
{
    char digits[24];
    int e = 0, n = 1;
    size_t at = signbit(f) ? 1 : 0;

    if (!isfinite(f)) {
        snprintf(out, ESP_JFLOAT_BYTES, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    out[0] = '-';
    while (!digits_of(fabs(f), n, digits, &e) && n < 17)
        n++;
    if (e >= -4 && e < 16)
        place_point(digits, n, e, out + at, ESP_JFLOAT_BYTES - at);
    else
        snprintf(out + at, ESP_JFLOAT_BYTES - at, "%c%s%se%c%02d", digits[0], n > 1 ? "." : "", digits + 1,
                 e < 0 ? '-' : '+', abs(e));
}

static bool printable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

static void repr_escape(uint32_t cp, int quote, char out[16])
{
    out[0] = 0;
    if (cp == (uint32_t)quote || cp == '\\')
        snprintf(out, 16, "\\%c", (char)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        snprintf(out, 16, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (!printable(cp))
        snprintf(out, 16, cp < 256 ? "\\x%02" PRIx32 : cp < 65536 ? "\\u%04" PRIx32 : "\\U%08" PRIx32, cp);
}

/* What stands for a code point in the text of a string; "" for itself. */
typedef void (*escape_fn)(uint32_t cp, int how, char out[16]);

/* s between quotes, with escapes. */
static esp_status add_quoted(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jstr *s, char quote,
                             escape_fn escape, int how)
{
    size_t kept = 0, n;
    char esc[16];

    ESP_TRY(esp_jbuf_add(vm, b, &quote, 1, NULL, false));
    for (size_t i = 0; i < s->len; i += n) {
        uint32_t cp = '?';

        n = esp_utf8_decode(s->p + i, s->len - i, &cp);
        if (n == 0)
            n = 1;
        escape(cp, how, esc);
        if (!esc[0])
            continue;
        ESP_TRY(esp_jbuf_add_str(vm, b, s, kept, i));
        ESP_TRY(esp_jbuf_puts(vm, b, esc));
        kept = i + n;
    }
    ESP_TRY(esp_jbuf_add_str(vm, b, s, kept, s->len));
    return esp_jbuf_add(vm, b, &quote, 1, NULL, false);
}

static esp_status repr_str(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jstr *s)
{
    bool single = memchr(s->p, '\'', s->len), both = memchr(s->p, '"', s->len);
    char quote = single && !both ? '"' : '\'';

    return add_quoted(vm, b, s, quote, repr_escape, quote);
}

static esp_status repr(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *v)
{
    if (v->kind == ESP_JUNDEF)
        return esp_jbuf_puts(vm, b, "Undefined");
    return v->kind == ESP_JSTR ? repr_str(vm, b, v->u.s) : esp_jv_print(vm, b, v);
}

static esp_status print_list(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jlist *l)
{
    char text[96];

    if (l->form == ESP_JFORM_RANGE) {
        snprintf(text, sizeof text,
                 l->range[2] == 1 ? "range(%" PRId64 ", %" PRId64 ")"
                                  : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                 l->range[0], l->range[1], l->range[2]);
        return esp_jbuf_puts(vm, b, text);
    }
    ESP_TRY(esp_jbuf_puts(vm, b, l->form == ESP_JFORM_TUPLE ? "(" : "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            ESP_TRY(esp_jbuf_puts(vm, b, ", "));
        ESP_TRY(repr(vm, b, &l->v[i]));
    }
    return esp_jbuf_puts(vm, b, l->form == ESP_JFORM_LIST ? "]" : l->n == 1 ? ",)" : ")");
}

static esp_status print_dict(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jdict *d)
{
    ESP_TRY(esp_jbuf_puts(vm, b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            ESP_TRY(esp_jbuf_puts(vm, b, ", "));
        ESP_TRY(repr(vm, b, &d->key[i]));
        ESP_TRY(esp_jbuf_puts(vm, b, ": "));
        ESP_TRY(repr(vm, b, &d->val[i]));
    }
    return esp_jbuf_puts(vm, b, "}");
}

static esp_status print_scalar(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *v)
{
    char text[ESP_JFLOAT_BYTES] = "";

    switch (v->kind) {
    case ESP_JUNDEF:
        return ESP_OK;
    case ESP_JNONE:
        return esp_jbuf_puts(vm, b, "None");
    case ESP_JBOOL:
        return esp_jbuf_puts(vm, b, v->u.b ? "True" : "False");
    case ESP_JINT:
        snprintf(text, sizeof text, "%" PRId64, v->u.i);
        return esp_jbuf_puts(vm, b, text);
    case ESP_JFLOAT:
        esp_jfloat_repr(v->u.f, text);
        return esp_jbuf_puts(vm, b, text);
    default:
        return esp_jvm_fail(vm, ESP_EINVAL, "a value of type %s cannot be printed", esp_jv_type(v));
    }
}

esp_status esp_jv_print(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *v)
{
    esp_status s;

    ESP_TRY(esp_jvm_charge(vm, 1));
    if (v->kind == ESP_JSTR)
        return esp_jbuf_add_str(vm, b, v->u.s, 0, v->u.s->len);
    if (v->kind != ESP_JLIST && v->kind != ESP_JDICT)
        return print_scalar(vm, b, v);
    ESP_TRY(esp_jvm_enter(vm));
    s = v->kind == ESP_JLIST ? print_list(vm, b, v->u.l) : print_dict(vm, b, v->u.d);
    vm->depth--;
    return s;
}

esp_status esp_jv_str(struct esp_jvm *vm, const struct esp_jv *v, struct esp_jv *out)
{
    struct esp_jbuf *b;

    if (v->kind == ESP_JSTR) {
        *out = *v;
        return ESP_OK;
    }
    b = esp_jbuf_new(vm);
    if (!b)
        return vm->status;
    ESP_TRY(esp_jv_print(vm, b, v));
    return esp_jbuf_finish(vm, b, out);
}

/* ---- JSON ---- */

static void json_escape(uint32_t cp, int ascii, char out[16])
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *p = cp && cp < 128 ? strchr(from, (int)cp) : NULL;

    out[0] = 0;
    if (p)
        snprintf(out, 16, "\\%c", to[p - from]);
    else if (cp < 0x20 || (ascii && cp > 0x7e && cp < 0x10000 && cp != 0x7f))
        snprintf(out, 16, "\\u%04" PRIx32, cp);
    else if (ascii && cp >= 0x10000)
        snprintf(out, 16, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd7c0 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
}

static esp_status json_scalar(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *v,
                              const struct esp_jjson_style *st)
{
    switch (v->kind) {
    case ESP_JSTR:
        return add_quoted(vm, b, v->u.s, '\"', json_escape, st->ascii);
    case ESP_JNONE:
        return esp_jbuf_puts(vm, b, "null");
    case ESP_JBOOL:
        return esp_jbuf_puts(vm, b, v->u.b ? "true" : "false");
    case ESP_JFLOAT:
        if (!isfinite(v->u.f))
            return esp_jbuf_puts(vm, b, isnan(v->u.f) ? "NaN" : v->u.f < 0 ? "-Infinity" : "Infinity");
        return print_scalar(vm, b, v);
    case ESP_JINT:
        return print_scalar(vm, b, v);
    case ESP_JUNDEF:
        return esp_jv_undefined_error(vm, v);
    default:
        return esp_jvm_fail(vm, ESP_EINVAL, "a value of type %s cannot be written as JSON", esp_jv_type(v));
    }
}

static esp_status json_key(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *k,
                           const struct esp_jjson_style *st)
{
    if (k->kind == ESP_JSTR)
        return add_quoted(vm, b, k->u.s, '\"', json_escape, st->ascii);
    if (k->kind == ESP_JLIST)
        return esp_jvm_fail(vm, ESP_EINVAL, "a key of type %s cannot be written as JSON", esp_jv_type(k));
    ESP_TRY(esp_jbuf_puts(vm, b, "\""));
    ESP_TRY(json_scalar(vm, b, k, st));
    return esp_jbuf_puts(vm, b, "\"");
}

static esp_status json_newline(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jjson_style *st,
                               unsigned level)
{
    if (!st->indent)
        return ESP_OK;
    ESP_TRY(esp_jbuf_puts(vm, b, "\n"));
    while (level-- > 0)
        ESP_TRY(esp_jbuf_puts(vm, b, st->indent));
    return ESP_OK;
}

/* Entry numbers of d by key. Insertion sort would be quadratic on hostile data: heap sort. */
static esp_status sorted_entries(struct esp_jvm *vm, const struct esp_jdict *d, uint32_t **out)
{
    uint32_t *at = esp_jvm_alloc(vm, d->n, sizeof *at);

    if (!at)
        return vm->status;
    for (size_t i = 0; i < d->n; i++)
        at[i] = (uint32_t)i;
    for (size_t heap = d->n / 2, end = d->n; end > 1;) {
        uint32_t v;
        size_t i, child;
        int c;

        if (heap > 0) {
            v = at[--heap];
        } else {
            v = at[--end];
            at[end] = at[0];
        }
        for (i = heap; (child = 2 * i + 1) < end; i = child) {
            if (child + 1 < end) {
                ESP_TRY(esp_jv_order(vm, &d->key[at[child]], &d->key[at[child + 1]], &c));
                child += c < 0;
            }
            ESP_TRY(esp_jv_order(vm, &d->key[v], &d->key[at[child]], &c));
            if (c >= 0)
                break;
            at[i] = at[child];
        }
        at[i] = v;
    }
    *out = at;
    return ESP_OK;
}

static esp_status json_value(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *v,
                             const struct esp_jjson_style *st, unsigned level);

static esp_status json_list(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jlist *l,
                            const struct esp_jjson_style *st, unsigned level)
{
    if (l->n == 0)
        return esp_jbuf_puts(vm, b, "[]");
    ESP_TRY(esp_jbuf_puts(vm, b, "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            ESP_TRY(esp_jbuf_puts(vm, b, st->item_sep));
        ESP_TRY(json_newline(vm, b, st, level + 1));
        ESP_TRY(json_value(vm, b, &l->v[i], st, level + 1));
    }
    ESP_TRY(json_newline(vm, b, st, level));
    return esp_jbuf_puts(vm, b, "]");
}

static esp_status json_dict(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jdict *d,
                            const struct esp_jjson_style *st, unsigned level)
{
    uint32_t *order = NULL;

    if (d->n == 0)
        return esp_jbuf_puts(vm, b, "{}");
    if (st->sort_keys)
        ESP_TRY(sorted_entries(vm, d, &order));
    ESP_TRY(esp_jbuf_puts(vm, b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        size_t e = order ? order[i] : i;

        if (i)
            ESP_TRY(esp_jbuf_puts(vm, b, st->item_sep));
        ESP_TRY(json_newline(vm, b, st, level + 1));
        ESP_TRY(json_key(vm, b, &d->key[e], st));
        ESP_TRY(esp_jbuf_puts(vm, b, st->key_sep));
        ESP_TRY(json_value(vm, b, &d->val[e], st, level + 1));
    }
    ESP_TRY(json_newline(vm, b, st, level));
    return esp_jbuf_puts(vm, b, "}");
}

static esp_status json_value(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *v,
                             const struct esp_jjson_style *st, unsigned level)
{
    esp_status s;

    ESP_TRY(esp_jvm_charge(vm, 1));
    if (v->kind != ESP_JDICT && (v->kind != ESP_JLIST || v->u.l->form == ESP_JFORM_RANGE))
        return json_scalar(vm, b, v, st);
    ESP_TRY(esp_jvm_enter(vm));
    s = v->kind == ESP_JDICT ? json_dict(vm, b, v->u.d, st, level) : json_list(vm, b, v->u.l, st, level);
    vm->depth--;
    return s;
}

esp_status esp_jv_json(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jv *v,
                       const struct esp_jjson_style *st)
{
    return json_value(vm, b, v, st, 0);
}
