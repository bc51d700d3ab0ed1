/*
 * Jinja filters on single values: counting, conversion, JSON, defaults, numbers.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <math.h>
#include <string.h>

static esp_status length(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv *items;
    size_t n;

    if (c->self.kind == ESP_JSTR) {
        ESP_TRY(esp_jvm_charge(vm, c->self.u.s->len / 64));
        n = esp_jstr_chars(c->self.u.s);
    } else {
        ESP_TRY(esp_jv_iterate(vm, &c->self, &items, &n));
    }
    *out = esp_jv_int((int64_t)n);
    return ESP_OK;
}

static esp_status items_of(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    if (c->self.kind == ESP_JDICT)
        return esp_jdict_items(vm, c->self.u.d, out);
    if (c->self.kind == ESP_JUNDEF)
        return esp_jlist_new(vm, 0, ESP_JFORM_LIST, out);
    return esp_jvm_fail(vm, ESP_EINVAL, "items needs a mapping, not %s", esp_jv_type(&c->self));
}

/* indent=2 or indent='  ' */
static esp_status json_indent(struct esp_jvm *vm, const struct esp_jv *v, const char **out)
{
    int64_t n;
    char *z;

    if (v->kind == ESP_JNONE || v->kind == ESP_JUNDEF)
        return ESP_OK;
    if (v->kind == ESP_JSTR) {
        *out = esp_jstr_short(vm, v->u.s);
        return *out ? ESP_OK : vm->status;
    }
    if (!esp_jv_integer(v, &n) || n > 64)
        return esp_jvm_fail(vm, ESP_EINVAL, "tojson: indent is a string or an integer up to 64");
    z = esp_jvm_alloc(vm, (size_t)(n > 0 ? n : 0) + 1, 1);
    if (!z)
        return vm->status;
    memset(z, ' ', (size_t)(n > 0 ? n : 0));
    *out = z;
    return ESP_OK;
}

/* json.dumps as the reference's chat templates have it: no HTML escapes, non-ASCII kept unless asked
 * otherwise. */
static esp_status tojson(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jjson_style st = {.key_sep = ": "};
    struct esp_jbuf *b = esp_jbuf_new(vm);

    if (!b)
        return vm->status;
    ESP_TRY(json_indent(vm, &c->arg[0], &st.indent));
    st.item_sep = st.indent ? "," : ", ";
    st.ascii = c->given[1] && esp_jv_truth(&c->arg[1]);
    st.sort_keys = c->given[2] && esp_jv_truth(&c->arg[2]);
    if (c->given[3] && c->arg[3].kind != ESP_JNONE) {
        const struct esp_jlist *l = c->arg[3].kind == ESP_JLIST ? c->arg[3].u.l : NULL;

        if (!l || l->n != 2 || l->v[0].kind != ESP_JSTR || l->v[1].kind != ESP_JSTR)
            return esp_jvm_fail(vm, ESP_EINVAL, "tojson: separators is a pair of strings");
        st.item_sep = esp_jstr_short(vm, l->v[0].u.s);
        st.key_sep = esp_jstr_short(vm, l->v[1].u.s);
        if (!st.item_sep || !st.key_sep)
            return vm->status;
    }
    ESP_TRY(esp_jv_json(vm, b, &c->self, &st));
    return esp_jbuf_finish(vm, b, out);
}

static esp_status string(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return esp_jv_str(vm, &c->self, out);
}

static esp_status safe(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return esp_jv_str(vm, &c->self, out);
}

static esp_status default_of(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    bool replace =
        c->self.kind == ESP_JUNDEF || (c->given[1] && esp_jv_truth(&c->arg[1]) && !esp_jv_truth(&c->self));

    if (replace && !c->given[0])
        return esp_jstr_view(vm, "", 0, true, out);
    *out = replace ? c->arg[0] : c->self;
    return ESP_OK;
}

static esp_status attr(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const char *z;

    if (c->arg[0].kind != ESP_JSTR)
        return esp_jvm_fail(vm, ESP_EINVAL, "attr needs a name, not %s", esp_jv_type(&c->arg[0]));
    z = esp_jstr_short(vm, c->arg[0].u.s);
    if (!z)
        return vm->status;
    *out = esp_jv_undef(z);
    if (c->self.kind == ESP_JDICT) /* attributes only, never items */
        return ESP_OK;
    return esp_jv_attr(vm, &c->self, z, strlen(z), out);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Write the number s[0..len) as JSON has it (0.5 for ".5", 5.0 for "5.", no leading zeros); its length, 0 if
 * it is none. */
static size_t json_number(const char *s, size_t len, bool real, char *out, size_t cap)
{
    bool digits = false;
    size_t n = 0;

    while (len > 1 && s[0] == '0' && is_digit(s[1])) {
        s++;
        len--;
    }
    for (size_t i = 0; i < len; i++) {
        if (n + 3 >= cap || !(is_digit(s[i]) || (real && memchr(".eE+-", s[i], 5))))
            return 0;
        if (s[i] == '.' && !digits)
            out[n++] = '0';
        digits |= is_digit(s[i]);
        out[n++] = s[i];
        if (s[i] == '.' && (i + 1 == len || !is_digit(s[i + 1])))
            out[n++] = '0';
    }
    return digits ? n : 0;
}

/* A number at the whole of s (spaces around allowed), read by the JSON reader so that no locale interferes.
 */
static bool parse_number(const struct esp_jstr *s, bool real, struct esp_jv *out)
{
    size_t from = 0, to = s->len, n, k;
    char text[128] = "-";
    bool minus;
    json_t *j;

    while ((k = esp_jspace_at(s->p + from, to - from)) > 0)
        from += k;
    while ((k = esp_jspace_before(s->p + from, to - from)) > 0)
        to -= k;
    minus = from < to && s->p[from] == '-';
    from += from < to && (s->p[from] == '-' || s->p[from] == '+');
    n = json_number(s->p + from, to - from, real, text + minus, sizeof text - 1);
    j = n ? json_loadb(text, n + minus, JSON_DECODE_ANY, NULL) : NULL;
    if (!j)
        return false;
    *out =
        json_is_integer(j) && !real ? esp_jv_int(json_integer_value(j)) : esp_jv_float(json_number_value(j));
    json_decref(j);
    return true;
}

static bool in_int64(double f)
{
    return f >= -9223372036854775808.0 && f < 9223372036854775808.0;
}

static esp_status to_int(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    int64_t i;
    double f;

    if (c->given[1])
        return esp_jvm_fail(vm, ESP_EUNSUPPORTED, "int with another base is not supported");
    if (c->self.kind == ESP_JUNDEF)
        return esp_jv_undefined_error(vm, &c->self);
    *out = c->given[0] ? c->arg[0] : esp_jv_int(0);
    if (esp_jv_integer(&c->self, &i)) {
        *out = esp_jv_int(i);
    } else if (c->self.kind == ESP_JFLOAT ||
               (c->self.kind == ESP_JSTR && !parse_number(c->self.u.s, false, out))) {
        struct esp_jv v = c->self;

        if (v.kind == ESP_JSTR && !parse_number(v.u.s, true, &v))
            return ESP_OK;
        f = trunc(v.u.f);
        if (!isfinite(f) && c->self.kind == ESP_JSTR)
            return ESP_OK;
        if (!in_int64(f))
            return esp_jvm_fail(vm, ESP_EINVAL, "the result of int does not fit a 64-bit integer");
        *out = esp_jv_int((int64_t)f);
    }
    return ESP_OK;
}

static esp_status to_float(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    double f;

    if (c->self.kind == ESP_JUNDEF)
        return esp_jv_undefined_error(vm, &c->self);
    *out = c->given[0] ? c->arg[0] : esp_jv_float(0);
    if (esp_jv_number(&c->self, &f))
        *out = esp_jv_float(f);
    else if (c->self.kind == ESP_JSTR)
        parse_number(c->self.u.s, true, out);
    return ESP_OK;
}

static esp_status absolute(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    int64_t i;

    if (c->self.kind == ESP_JFLOAT) {
        *out = esp_jv_float(fabs(c->self.u.f));
        return ESP_OK;
    }
    if (c->self.kind == ESP_JUNDEF)
        return esp_jv_undefined_error(vm, &c->self);
    if (!esp_jv_integer(&c->self, &i) || i == INT64_MIN)
        return esp_jvm_fail(vm, ESP_EINVAL, "abs needs a number whose result fits 64 bits, not %s",
                            esp_jv_type(&c->self));
    *out = esp_jv_int(i < 0 ? -i : i);
    return ESP_OK;
}

enum round_method { ROUND_COMMON, ROUND_CEIL, ROUND_FLOOR };

static esp_status round_args(struct esp_jvm *vm, const struct esp_jcall *c, int64_t *digits,
                             enum round_method *how)
{
    const struct esp_jstr *m = c->given[1] && c->arg[1].kind == ESP_JSTR ? c->arg[1].u.s : NULL;

    *digits = 0;
    *how = m && esp_jstr_is(m, "ceil")    ? ROUND_CEIL
           : m && esp_jstr_is(m, "floor") ? ROUND_FLOOR
                                          : ROUND_COMMON;
    if (c->given[0] && !esp_jv_integer(&c->arg[0], digits))
        return esp_jvm_fail(vm, ESP_EINVAL, "round: the precision is an integer, not %s",
                            esp_jv_type(&c->arg[0]));
    if (*digits > 300 || *digits < -300)
        return esp_jvm_fail(vm, ESP_EINVAL, "round: the precision lies in -300..300");
    if (c->given[1] && *how == ROUND_COMMON && !(m && esp_jstr_is(m, "common")))
        return esp_jvm_fail(vm, ESP_EINVAL, "round: the method is common, ceil or floor");
    return ESP_OK;
}

/* Half to even of the exact decimal value, as Python's round(). */
static double round_decimal(double f, int digits)
{
    double scale = pow(10, digits);
    struct esp_strbuf text;
    struct esp_jstr s;
    struct esp_jv v;

    if (digits <= 0)
        return rint(f * scale) / scale;
    if (!isfinite(f) || fabs(f) >= 1e15)
        return f;
    esp_strbuf_init(&text, 1024);
    esp_strbuf_printf(&text, "%.*f", digits, f);
    for (size_t k = 0; k < text.len; k++)
        if (text.data[k] == ',')
            text.data[k] = '.'; /* a locale's decimal point */
    s = (struct esp_jstr){.p = esp_strbuf_str(&text), .len = text.len};
    if (parse_number(&s, true, &v))
        f = v.u.f;
    esp_strbuf_free(&text);
    return f;
}

/* The result is a float, but an int stays one with the common method. */
static esp_status round_to(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    enum round_method how = ROUND_COMMON;
    int64_t digits = 0, i;
    double f, scale;

    ESP_TRY(round_args(vm, c, &digits, &how));
    if (!esp_jv_number(&c->self, &f))
        return esp_jvm_fail(vm, ESP_EINVAL, "round needs a number, not %s", esp_jv_type(&c->self));
    if (how != ROUND_COMMON) {
        scale = pow(10, (double)digits);
        *out = esp_jv_float((how == ROUND_CEIL ? ceil(f * scale) : floor(f * scale)) / scale);
        return ESP_OK;
    }
    if (!esp_jv_integer(&c->self, &i)) {
        *out = esp_jv_float(round_decimal(f, (int)digits));
        return ESP_OK;
    }
    f = digits < 0 ? round_decimal(f, (int)digits) : 0;
    *out = esp_jv_int(digits < 0 && in_int64(f) ? (int64_t)f : i);
    return ESP_OK;
}

const struct esp_jbuiltin *esp_jfilter_find_value(const char *name)
{
    static const struct esp_jbuiltin table[] = {
        {"length", "", length},
        {"count", "", length},
        {"items", "", items_of},
        {"tojson", "indent? ensure_ascii? sort_keys? separators?", tojson},
        {"string", "", string},
        {"safe", "", safe},
        {"default", "default_value? boolean?", default_of},
        {"d", "default_value? boolean?", default_of},
        {"attr", "name", attr},
        {"int", "default? base?", to_int},
        {"float", "default?", to_float},
        {"abs", "", absolute},
        {"round", "precision? method?", round_to},
    };

    return esp_jbuiltin_find(table, sizeof table / sizeof table[0], name, strlen(name));
}
