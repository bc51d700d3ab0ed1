/*
 * Jinja tests ("is ...") and global functions.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <utf8proc.h>

#include "base/utf8.h"

static esp_status yes(struct esp_jv *out, bool b)
{
    *out = esp_jv_bool(b);
    return ESP_OK;
}

static esp_status is_defined(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind != ESP_JUNDEF);
}

static esp_status is_undefined(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind == ESP_JUNDEF);
}

static esp_status is_none(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind == ESP_JNONE);
}

static esp_status is_string(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind == ESP_JSTR);
}

static esp_status is_number(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    double f;

    (void)vm;
    return yes(out, esp_jv_number(&c->self, &f));
}

static esp_status is_integer(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind == ESP_JINT);
}

static esp_status is_float(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind == ESP_JFLOAT);
}

static esp_status is_boolean(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind == ESP_JBOOL);
}

static esp_status is_true(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind == ESP_JBOOL && c->self.u.b);
}

static esp_status is_false(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind == ESP_JBOOL && !c->self.u.b);
}

static esp_status is_mapping(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    (void)vm;
    return yes(out, c->self.kind == ESP_JDICT);
}

static esp_status is_sequence(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    enum esp_jkind k = c->self.kind;

    (void)vm;
    return yes(out, k == ESP_JUNDEF || k == ESP_JSTR || k == ESP_JLIST || k == ESP_JDICT);
}

static esp_status is_iterable(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    if (c->self.kind == ESP_JLOOP)
        return yes(out, true);
    return is_sequence(vm, c, out);
}

static esp_status is_callable(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    enum esp_jkind k = c->self.kind;

    (void)vm;
    return yes(out, k == ESP_JMACRO || k == ESP_JFUNCTION || k == ESP_JMETHOD || k == ESP_JUNDEF);
}

static esp_status compare(struct esp_jvm *vm, const struct esp_jcall *c, int op, struct esp_jv *out)
{
    bool b;

    ESP_TRY(esp_jv_compare(vm, op, &c->self, &c->arg[0], &b));
    return yes(out, b);
}

static esp_status is_eq(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return compare(vm, c, ESP_JOP_EQ, out);
}

static esp_status is_ne(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return compare(vm, c, ESP_JOP_NE, out);
}

static esp_status is_lt(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return compare(vm, c, ESP_JOP_LT, out);
}

static esp_status is_le(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return compare(vm, c, ESP_JOP_LE, out);
}

static esp_status is_gt(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return compare(vm, c, ESP_JOP_GT, out);
}

static esp_status is_ge(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return compare(vm, c, ESP_JOP_GE, out);
}

static esp_status is_in(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return compare(vm, c, ESP_JOP_IN, out);
}

static esp_status remainder_is(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv by,
                               int64_t wanted, struct esp_jv *out)
{
    struct esp_jv want = esp_jv_int(wanted);
    bool same;

    ESP_TRY(esp_jv_arith(vm, ESP_JOP_MOD, &c->self, &by, out));
    ESP_TRY(esp_jv_equal(vm, out, &want, &same));
    return yes(out, same);
}

static esp_status is_odd(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return remainder_is(vm, c, esp_jv_int(2), 1, out);
}

static esp_status is_even(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return remainder_is(vm, c, esp_jv_int(2), 0, out);
}

static esp_status is_divisibleby(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return remainder_is(vm, c, c->arg[0], 0, out);
}

/* All cased characters of one case, and at least one of them, as Python has it. */
static esp_status cased(struct esp_jvm *vm, const struct esp_jcall *c, utf8proc_category_t wrong,
                        utf8proc_category_t right, struct esp_jv *out)
{
    struct esp_jv s;
    bool any = false;
    size_t n;

    ESP_TRY(esp_jv_str(vm, &c->self, &s));
    for (size_t i = 0; i < s.u.s->len; i += n ? n : 1) {
        utf8proc_category_t cat;
        uint32_t cp = 0;

        n = esp_utf8_decode(s.u.s->p + i, s.u.s->len - i, &cp);
        cat = utf8proc_category((utf8proc_int32_t)cp);
        if (cat == wrong || cat == UTF8PROC_CATEGORY_LT)
            return yes(out, false);
        any |= cat == right;
    }
    return yes(out, any);
}

static esp_status is_lower(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return cased(vm, c, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL, out);
}

static esp_status is_upper(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return cased(vm, c, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LU, out);
}

static esp_status is_filter(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const char *z = c->self.kind == ESP_JSTR ? esp_jstr_short(vm, c->self.u.s) : "";

    return z ? yes(out, esp_jfilter_find(z)) : vm->status;
}

static esp_status is_test(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const char *z = c->self.kind == ESP_JSTR ? esp_jstr_short(vm, c->self.u.s) : "";

    return z ? yes(out, esp_jtest_find(z)) : vm->status;
}

const struct esp_jbuiltin *esp_jtest_find(const char *name)
{
    static const struct esp_jbuiltin table[] = {
        {"defined", "", is_defined},
        {"undefined", "", is_undefined},
        {"none", "", is_none},
        {"string", "", is_string},
        {"number", "", is_number},
        {"integer", "", is_integer},
        {"float", "", is_float},
        {"boolean", "", is_boolean},
        {"true", "", is_true},
        {"false", "", is_false},
        {"mapping", "", is_mapping},
        {"sequence", "", is_sequence},
        {"iterable", "", is_iterable},
        {"callable", "", is_callable},
        {"eq", "other", is_eq},
        {"equalto", "other", is_eq},
        {"ne", "other", is_ne},
        {"lt", "other", is_lt},
        {"lessthan", "other", is_lt},
        {"le", "other", is_le},
        {"gt", "other", is_gt},
        {"greaterthan", "other", is_gt},
        {"ge", "other", is_ge},
        {"in", "seq", is_in},
        {"odd", "", is_odd},
        {"even", "", is_even},
        {"lower", "", is_lower},
        {"upper", "", is_upper},
        {"filter", "", is_filter},
        {"test", "", is_test},
        {"divisibleby", "num", is_divisibleby},
    };

    return esp_jbuiltin_find(table, sizeof table / sizeof table[0], name, strlen(name));
}

/* ---- functions ---- */

static esp_status fn_range(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    int64_t r[3] = {0, 0, 1};
    uint64_t span, n = 0, step;

    for (int i = 0; i < 3; i++)
        if (c->given[i] && !esp_jv_integer(&c->arg[i], &r[i]))
            return esp_jvm_fail(vm, ESP_EINVAL, "range() takes integers, not %s", esp_jv_type(&c->arg[i]));
    if (!c->given[1]) {
        r[1] = r[0];
        r[0] = 0;
    }
    if (r[2] == 0)
        return esp_jvm_fail(vm, ESP_EINVAL, "the step of range() is not 0");
    step = r[2] > 0 ? (uint64_t)r[2] : -(uint64_t)r[2];
    span = r[2] > 0 ? (uint64_t)r[1] - (uint64_t)r[0] : (uint64_t)r[0] - (uint64_t)r[1];
    if (r[2] > 0 ? r[1] > r[0] : r[0] > r[1])
        n = (span - 1) / step + 1;
    if (n > ESP_LIMIT_TEMPLATE_RANGE)
        return esp_jvm_fail(vm, ESP_ENOFIT, "range() of %llu numbers, at most %u are accepted",
                            (unsigned long long)n, ESP_LIMIT_TEMPLATE_RANGE);
    ESP_TRY(esp_jlist_new(vm, (size_t)n, ESP_JFORM_RANGE, out));
    memcpy(out->u.l->range, r, sizeof r);
    for (uint64_t i = 0; i < n; i++)
        ESP_TRY(esp_jlist_add(vm, out->u.l, esp_jv_int((int64_t)((uint64_t)r[0] + i * (uint64_t)r[2]))));
    return ESP_OK;
}

/* dict(a=1) and namespace(a=1), either starting from a mapping or from pairs. */
static esp_status build_dict(struct esp_jvm *vm, const struct esp_jcall *c, enum esp_jkind kind,
                             struct esp_jv *out)
{
    const struct esp_jargs *a = c->all;
    const struct esp_jv *items;
    struct esp_jv key;
    size_t n;

    if (a->n_pos > 1)
        return esp_jvm_fail(vm, ESP_EINVAL, "%s() takes at most one positional argument, %zu given",
                            c->fn->name, a->n_pos);
    ESP_TRY(esp_jdict_new(vm, kind, out));
    if (a->n_pos && a->pos[0].kind == ESP_JDICT) {
        const struct esp_jdict *d = a->pos[0].u.d;

        for (size_t i = 0; i < d->n; i++)
            ESP_TRY(esp_jdict_set(vm, out->u.d, d->key[i], d->val[i]));
    } else if (a->n_pos) {
        ESP_TRY(esp_jv_iterate(vm, &a->pos[0], &items, &n));
        for (size_t i = 0; i < n; i++) {
            if (items[i].kind != ESP_JLIST || items[i].u.l->n != 2)
                return esp_jvm_fail(vm, ESP_EINVAL, "%s() of a list takes pairs", c->fn->name);
            ESP_TRY(esp_jdict_set(vm, out->u.d, items[i].u.l->v[0], items[i].u.l->v[1]));
        }
    }
    for (size_t i = 0; i < a->n_kw; i++) {
        ESP_TRY(esp_jstr_view(vm, a->kw[i].name, strlen(a->kw[i].name), true, &key));
        ESP_TRY(esp_jdict_set(vm, out->u.d, key, a->kw[i].v));
    }
    return ESP_OK;
}

static esp_status fn_dict(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return build_dict(vm, c, ESP_JDICT, out);
}

static esp_status fn_namespace(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return build_dict(vm, c, ESP_JNAMESPACE, out);
}

static esp_status fn_raise(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jv s;

    (void)out;
    ESP_TRY(esp_jv_str(vm, &c->arg[0], &s));
    vm->status = ESP_EINVAL;
    return esp_fail(vm->err, ESP_EINVAL, "%.*s", s.u.s->len < 4096 ? (int)s.u.s->len : 4096, s.u.s->p);
}

/* A number of strftime with its width; false when conv is none. */
static bool format_number(char conv, const struct tm *t, char out[32])
{
    int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    const struct {
        char conv;
        int width, value;
    } numbers[] = {{'d', 2, t->tm_mday},       {'e', 2, t->tm_mday},       {'m', 2, t->tm_mon + 1},
                   {'H', 2, t->tm_hour},       {'I', 2, hour12},           {'M', 2, t->tm_min},
                   {'S', 2, t->tm_sec},        {'j', 3, t->tm_yday + 1},   {'w', 1, t->tm_wday},
                   {'y', 2, t->tm_year % 100}, {'Y', 1, t->tm_year + 1900}};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].conv != conv)
            continue;
        snprintf(out, 32, conv == 'e' ? "%*d" : "%0*d", numbers[i].width, numbers[i].value);
        return true;
    }
    return false;
}

/* One conversion of strftime, in English whatever the locale; false when it is none of ours. */
static bool format_time(char conv, const struct tm *t, char out[32])
{
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};

    if (format_number(conv, t, out))
        return true;
    if (conv == 'A' || conv == 'a')
        snprintf(out, 32, "%.*s", conv == 'a' ? 3 : 31, days[t->tm_wday]);
    else if (conv == 'B' || conv == 'b' || conv == 'h')
        snprintf(out, 32, "%.*s", conv == 'B' ? 31 : 3, months[t->tm_mon]);
    else if (conv == 'p')
        snprintf(out, 32, "%s", t->tm_hour < 12 ? "AM" : "PM");
    else if (conv == 'F')
        snprintf(out, 32, "%d-%02d-%02d", t->tm_year + 1900, t->tm_mon + 1, t->tm_mday);
    else if (conv == 'T')
        snprintf(out, 32, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec);
    else if (conv == '%')
        snprintf(out, 32, "%%");
    else
        return false;
    return true;
}

static esp_status fn_strftime(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jbuf *b = esp_jbuf_new(vm);
    time_t now = (time_t)vm->now;
    const struct esp_jstr *f;
    char text[32];
    struct tm t;

    if (!b)
        return vm->status;
    if (c->arg[0].kind != ESP_JSTR)
        return esp_jvm_fail(vm, ESP_EINVAL, "strftime_now() takes a string, not %s", esp_jv_type(&c->arg[0]));
    if (!gmtime_r(&now, &t))
        return esp_jvm_fail(vm, ESP_EINVAL, "the clock is out of range");
    f = c->arg[0].u.s;
    for (size_t i = 0; i < f->len; i++) {
        bool bare = i + 2 < f->len && f->p[i + 1] == '-'; /* %-d: without padding */
        const char *p = text;

        if (f->p[i] != '%' || i + 1 == f->len) {
            ESP_TRY(esp_jbuf_add_str(vm, b, f, i, i + 1));
            continue;
        }
        i += bare ? 2 : 1;
        if (!format_time(f->p[i], &t, text))
            return esp_jvm_fail(vm, ESP_EUNSUPPORTED, "strftime_now() does not know %%%c", f->p[i]);
        while (bare && (*p == '0' || *p == ' ') && p[1])
            p++;
        ESP_TRY(esp_jbuf_puts(vm, b, p));
    }
    return esp_jbuf_finish(vm, b, out);
}

const struct esp_jbuiltin *esp_jfunction_find(const char *name, const struct esp_jvm *vm)
{
    static const struct esp_jbuiltin table[] = {
        {"strftime_now", "format", fn_strftime},
        {"range", "start stop? step?", fn_range},
        {"dict", NULL, fn_dict},
        {"namespace", NULL, fn_namespace},
        {"raise_exception", "message", fn_raise},
    };
    size_t first = vm->has_now ? 0 : 1;

    return esp_jbuiltin_find(table + first, sizeof table / sizeof table[0] - first, name, strlen(name));
}
