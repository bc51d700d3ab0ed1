/*
 * Jinja string methods and filters. All of them move bytes together with their trusted marks; a character
 * whose case changes keeps its mark. Case mapping is Unicode's simple one, plus the one full mapping that
 * everyday text needs (the upper case of sharp s).
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"

/* ---- stripping ---- */

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };

/* Length of the character at (or, for back, before the end of) s when it is one to strip, else 0. */
static size_t stripped(const char *s, size_t len, const struct esp_jstr *chars, bool back)
{
    uint32_t cp;
    size_t n = 1;

    if (!chars)
        return back ? esp_jspace_before(s, len) : esp_jspace_at(s, len);
    if (len == 0)
        return 0;
    if (back) {
        while (n < len && n < 4 && ((uint8_t)s[len - n] & 0xc0) == 0x80)
            n++;
        s += len - n;
        len = n;
    }
    n = esp_utf8_decode(s, len, &cp);
    return n > 0 && memmem(chars->p, chars->len, s, n) ? n : 0;
}

static esp_status strip(struct esp_jvm *vm, const struct esp_jcall *c, int sides, struct esp_jv *out)
{
    const struct esp_jstr *chars = NULL;
    struct esp_jv s;
    size_t from = 0, to, n;

    ESP_TRY(esp_jv_str(vm, &c->self, &s));
    if (c->given[0] && c->arg[0].kind != ESP_JNONE) {
        if (c->arg[0].kind != ESP_JSTR)
            return esp_jvm_fail(vm, ESP_EINVAL, "\"%s\" takes a string of characters, not %s", c->fn->name,
                                esp_jv_type(&c->arg[0]));
        chars = c->arg[0].u.s;
    }
    ESP_TRY(esp_jvm_charge(vm, s.u.s->len / 64));
    to = s.u.s->len;
    while ((sides & STRIP_LEFT) && (n = stripped(s.u.s->p + from, to - from, chars, false)) > 0)
        from += n;
    while ((sides & STRIP_RIGHT) && (n = stripped(s.u.s->p + from, to - from, chars, true)) > 0)
        to -= n;
    return esp_jstr_slice(vm, s.u.s, from, to, out);
}

static esp_status strip_both(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return strip(vm, c, STRIP_LEFT | STRIP_RIGHT, out);
}

static esp_status strip_left(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return strip(vm, c, STRIP_LEFT, out);
}

static esp_status strip_right(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return strip(vm, c, STRIP_RIGHT, out);
}

/* ---- case ---- */

/* Add one character of s, mapped: 'u' upper, 'l' lower, 't' title. */
static esp_status add_mapped(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jstr *s, size_t at,
                             size_t n, char how)
{
    bool trusted = s->mark ? s->mark[at] : s->trusted;
    char text[4];
    uint32_t cp;

    if (esp_utf8_decode(s->p + at, n, &cp) != n)
        return esp_jbuf_add_str(vm, b, s, at, at + n);
    if (cp == 0xdf && how != 'l')
        return esp_jbuf_add(vm, b, how == 'u' ? "SS" : "Ss", 2, NULL, trusted);
    cp = (uint32_t)(how == 'u'   ? utf8proc_toupper((utf8proc_int32_t)cp)
                    : how == 'l' ? utf8proc_tolower((utf8proc_int32_t)cp)
                                 : utf8proc_totitle((utf8proc_int32_t)cp));
    return esp_jbuf_add(vm, b, text, esp_utf8_encode(cp, text), NULL, trusted);
}

static size_t char_len(const struct esp_jstr *s, size_t at)
{
    size_t n = 1;

    while (at + n < s->len && n < 4 && ((uint8_t)s->p[at + n] & 0xc0) == 0x80)
        n++;
    return n;
}

static bool is_cased(const struct esp_jstr *s, size_t at, size_t n)
{
    uint32_t cp;
    utf8proc_category_t cat;

    if (esp_utf8_decode(s->p + at, n, &cp) != n)
        return false;
    cat = utf8proc_category((utf8proc_int32_t)cp);
    return cat == UTF8PROC_CATEGORY_LU || cat == UTF8PROC_CATEGORY_LL || cat == UTF8PROC_CATEGORY_LT;
}

/* What starts a word for the filter "title": white space and opening brackets. The method's rule is another
 * one. */
static bool starts_word(const struct esp_jstr *s, size_t at, size_t n)
{
    return memchr("-({[<", s->p[at], 5) || esp_jspace_at(s->p + at, n) == n;
}

enum case_mode { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE_FILTER, CASE_TITLE_METHOD };

static esp_status change_case(struct esp_jvm *vm, const struct esp_jcall *c, enum case_mode mode,
                              struct esp_jv *out)
{
    struct esp_jbuf *b = esp_jbuf_new(vm);
    bool initial = true;
    struct esp_jv s;
    size_t n;

    if (!b)
        return vm->status;
    ESP_TRY(esp_jv_str(vm, &c->self, &s));
    ESP_TRY(esp_jvm_charge(vm, s.u.s->len / 16));
    for (size_t i = 0; i < s.u.s->len; i += n) {
        char how = mode == CASE_UPPER               ? 'u'
                   : mode == CASE_LOWER || !initial ? 'l'
                   : mode == CASE_TITLE_FILTER      ? 'u'
                                                    : 't';

        n = char_len(s.u.s, i);
        ESP_TRY(add_mapped(vm, b, s.u.s, i, n, how));
        initial = (mode == CASE_TITLE_FILTER && starts_word(s.u.s, i, n)) ||
                  (mode == CASE_TITLE_METHOD && !is_cased(s.u.s, i, n));
    }
    return esp_jbuf_finish(vm, b, out);
}

static esp_status upper(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return change_case(vm, c, CASE_UPPER, out);
}

static esp_status lower(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return change_case(vm, c, CASE_LOWER, out);
}

static esp_status capitalize(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return change_case(vm, c, CASE_CAPITAL, out);
}

static esp_status title_filter(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return change_case(vm, c, CASE_TITLE_FILTER, out);
}

static esp_status title_method(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return change_case(vm, c, CASE_TITLE_METHOD, out);
}

/* ---- searching ---- */

static esp_status need_str(struct esp_jvm *vm, const struct esp_jcall *c, int i, const struct esp_jstr **out)
{
    *out = c->arg[i].kind == ESP_JSTR ? c->arg[i].u.s : NULL;
    if (*out)
        return ESP_OK;
    return esp_jvm_fail(vm, ESP_EINVAL, "\"%s\" needs a string, not %s", c->fn->name,
                        esp_jv_type(&c->arg[i]));
}

/* Place of needle at or after from, or len + 1. */
static size_t find_in(const struct esp_jstr *s, size_t from, const struct esp_jstr *needle)
{
    const char *p = from <= s->len ? memmem(s->p + from, s->len - from, needle->p, needle->len) : NULL;

    return p ? (size_t)(p - s->p) : s->len + 1;
}

static bool has_affix(const struct esp_jstr *s, const struct esp_jstr *x, bool end)
{
    return s->len >= x->len && memcmp(s->p + (end ? s->len - x->len : 0), x->p, x->len) == 0;
}

static esp_status affix(struct esp_jvm *vm, const struct esp_jcall *c, bool end, struct esp_jv *out)
{
    const struct esp_jlist *l =
        c->arg[0].kind == ESP_JLIST && c->arg[0].u.l->form == ESP_JFORM_TUPLE ? c->arg[0].u.l : NULL;
    const struct esp_jstr *x;
    bool yes = false;

    if (!l) {
        ESP_TRY(need_str(vm, c, 0, &x));
        yes = has_affix(c->self.u.s, x, end);
    }
    for (size_t i = 0; l && i < l->n && !yes; i++)
        yes = l->v[i].kind == ESP_JSTR && has_affix(c->self.u.s, l->v[i].u.s, end);
    *out = esp_jv_bool(yes);
    return ESP_OK;
}

static esp_status startswith(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return affix(vm, c, false, out);
}

static esp_status endswith(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return affix(vm, c, true, out);
}

static esp_status find_any(struct esp_jvm *vm, const struct esp_jcall *c, bool last, struct esp_jv *out)
{
    const struct esp_jstr *x, *s = c->self.u.s;
    size_t found = s->len + 1;

    ESP_TRY(need_str(vm, c, 0, &x));
    ESP_TRY(esp_jvm_charge(vm, s->len / 64));
    for (size_t at = find_in(s, 0, x); at <= s->len; at = last ? find_in(s, at + 1, x) : s->len + 1) {
        ESP_TRY(esp_jvm_charge(vm, 1));
        found = at;
    }
    *out = esp_jv_int(found > s->len ? -1
                                     : (int64_t)esp_jstr_chars(&(struct esp_jstr){.p = s->p, .len = found}));
    return ESP_OK;
}

static esp_status find(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return find_any(vm, c, false, out);
}

static esp_status rfind(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return find_any(vm, c, true, out);
}

static esp_status count(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jstr *x, *s = c->self.u.s;
    int64_t n = 0;

    ESP_TRY(need_str(vm, c, 0, &x));
    ESP_TRY(esp_jvm_charge(vm, s->len / 16));
    for (size_t at = find_in(s, 0, x); x->len && at <= s->len; at = find_in(s, at + x->len, x))
        n++;
    *out = esp_jv_int(x->len ? n : (int64_t)esp_jstr_chars(s) + 1);
    return ESP_OK;
}

static esp_status replace(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jbuf *b = esp_jbuf_new(vm);
    int64_t left = -1;
    struct esp_jv sv, ov, nv;
    const struct esp_jstr *s;
    size_t from = 0, at = 0;

    if (!b)
        return vm->status;
    ESP_TRY(esp_jv_str(vm, &c->self, &sv));
    ESP_TRY(esp_jv_str(vm, &c->arg[0], &ov));
    ESP_TRY(esp_jv_str(vm, &c->arg[1], &nv));
    if (c->given[2] && c->arg[2].kind != ESP_JNONE && !esp_jv_integer(&c->arg[2], &left))
        return esp_jvm_fail(vm, ESP_EINVAL, "\"replace\" counts with an integer, not %s",
                            esp_jv_type(&c->arg[2]));
    s = sv.u.s;
    while (left != 0 && (at = find_in(s, at, ov.u.s)) <= s->len) {
        ESP_TRY(esp_jvm_charge(vm, 1));
        ESP_TRY(esp_jbuf_add_str(vm, b, s, from, at));
        ESP_TRY(esp_jbuf_add_str(vm, b, nv.u.s, 0, nv.u.s->len));
        from = at;
        at = ov.u.s->len ? (from += ov.u.s->len) : at < s->len ? at + char_len(s, at) : s->len + 1;
        left -= left > 0;
    }
    ESP_TRY(esp_jbuf_add_str(vm, b, s, from, s->len));
    return esp_jbuf_finish(vm, b, out);
}

/* ---- splitting and joining ---- */

static esp_status add_piece(struct esp_jvm *vm, struct esp_jlist *l, const struct esp_jstr *s, size_t from,
                            size_t to)
{
    struct esp_jv v;

    ESP_TRY(esp_jstr_slice(vm, s, from, to, &v));
    return esp_jlist_add(vm, l, v);
}

static esp_status split_space(struct esp_jvm *vm, const struct esp_jstr *s, int64_t max, struct esp_jlist *l)
{
    size_t at = 0, n, from;

    for (;;) {
        while ((n = esp_jspace_at(s->p + at, s->len - at)) > 0)
            at += n;
        if (at == s->len)
            return ESP_OK;
        from = at;
        if (max-- == 0)
            at = s->len;
        while (at < s->len && esp_jspace_at(s->p + at, s->len - at) == 0)
            at += char_len(s, at);
        ESP_TRY(add_piece(vm, l, s, from, at));
    }
}

static void reverse_list(struct esp_jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct esp_jv v = l->v[i];

        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

static esp_status rsplit_space(struct esp_jvm *vm, const struct esp_jstr *s, int64_t max, struct esp_jlist *l)
{
    size_t at = s->len, n, to;

    for (;;) {
        while ((n = esp_jspace_before(s->p, at)) > 0)
            at -= n;
        if (at == 0)
            break;
        to = at;
        if (max-- == 0)
            at = 0;
        while (at > 0 && esp_jspace_before(s->p, at) == 0)
            at--;
        ESP_TRY(add_piece(vm, l, s, at, to));
    }
    reverse_list(l);
    return ESP_OK;
}

static esp_status rsplit_by(struct esp_jvm *vm, const struct esp_jstr *s, const struct esp_jstr *sep,
                            int64_t max, struct esp_jlist *l)
{
    size_t to = s->len;

    for (size_t at = s->len; max != 0 && at >= sep->len;) {
        if (memcmp(s->p + at - sep->len, sep->p, sep->len) != 0) {
            at--;
            continue;
        }
        ESP_TRY(add_piece(vm, l, s, at, to));
        to = at -= sep->len;
        max--;
    }
    ESP_TRY(add_piece(vm, l, s, 0, to));
    reverse_list(l);
    return ESP_OK;
}

static esp_status split_any(struct esp_jvm *vm, const struct esp_jcall *c, bool right, struct esp_jv *out)
{
    const struct esp_jstr *s = c->self.u.s, *sep;
    int64_t max = -1;
    size_t from = 0;

    if (c->given[1] && !esp_jv_integer(&c->arg[1], &max))
        return esp_jvm_fail(vm, ESP_EINVAL, "\"%s\" counts with an integer, not %s", c->fn->name,
                            esp_jv_type(&c->arg[1]));
    max = max < 0 ? -1 : max;
    ESP_TRY(esp_jvm_charge(vm, s->len / 16));
    ESP_TRY(esp_jlist_new(vm, 0, ESP_JFORM_LIST, out));
    if (!c->given[0] || c->arg[0].kind == ESP_JNONE)
        return right ? rsplit_space(vm, s, max, out->u.l) : split_space(vm, s, max, out->u.l);
    ESP_TRY(need_str(vm, c, 0, &sep));
    if (sep->len == 0)
        return esp_jvm_fail(vm, ESP_EINVAL, "\"%s\" by an empty string", c->fn->name);
    if (right)
        return rsplit_by(vm, s, sep, max, out->u.l);
    for (size_t at = find_in(s, 0, sep); max != 0 && at <= s->len; at = find_in(s, from, sep), max--) {
        ESP_TRY(add_piece(vm, out->u.l, s, from, at));
        from = at + sep->len;
    }
    return add_piece(vm, out->u.l, s, from, s->len);
}

static esp_status split(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return split_any(vm, c, false, out);
}

static esp_status rsplit(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return split_any(vm, c, true, out);
}

/* Bytes of the line end at `at`, or 0. */
static size_t line_end(const struct esp_jstr *s, size_t at)
{
    uint32_t cp;
    size_t n = esp_utf8_decode(s->p + at, s->len - at, &cp);

    if (n == 1 && cp == '\r')
        return at + 1 < s->len && s->p[at + 1] == '\n' ? 2 : 1;
    return n && ((cp >= 10 && cp <= 12) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
                 cp == 0x2029)
               ? n
               : 0;
}

static esp_status splitlines(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    bool keep = c->given[0] && esp_jv_truth(&c->arg[0]);
    const struct esp_jstr *s = c->self.u.s;
    size_t from = 0, n;

    ESP_TRY(esp_jvm_charge(vm, s->len / 16));
    ESP_TRY(esp_jlist_new(vm, 0, ESP_JFORM_LIST, out));
    for (size_t i = 0; i < s->len; i += n ? n : char_len(s, i)) {
        n = line_end(s, i);
        if (!n)
            continue;
        ESP_TRY(add_piece(vm, out->u.l, s, from, keep ? i + n : i));
        from = i + n;
    }
    return from < s->len ? add_piece(vm, out->u.l, s, from, s->len) : ESP_OK;
}

static esp_status join_method(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    struct esp_jbuf *b = esp_jbuf_new(vm);
    const struct esp_jv *items;
    size_t n;

    if (!b)
        return vm->status;
    ESP_TRY(esp_jv_iterate(vm, &c->arg[0], &items, &n));
    for (size_t i = 0; i < n; i++) {
        ESP_TRY(esp_jvm_charge(vm, 1));
        if (items[i].kind != ESP_JSTR)
            return esp_jvm_fail(vm, ESP_EINVAL, "join() takes strings, item %zu is %s", i,
                                esp_jv_type(&items[i]));
        if (i)
            ESP_TRY(esp_jbuf_add_str(vm, b, c->self.u.s, 0, c->self.u.s->len));
        ESP_TRY(esp_jbuf_add_str(vm, b, items[i].u.s, 0, items[i].u.s->len));
    }
    return esp_jbuf_finish(vm, b, out);
}

static esp_status remove_affix(struct esp_jvm *vm, const struct esp_jcall *c, bool end, struct esp_jv *out)
{
    const struct esp_jstr *x, *s = c->self.u.s;

    ESP_TRY(need_str(vm, c, 0, &x));
    *out = c->self;
    if (!has_affix(s, x, end))
        return ESP_OK;
    return end ? esp_jstr_slice(vm, s, 0, s->len - x->len, out) : esp_jstr_slice(vm, s, x->len, s->len, out);
}

static esp_status removeprefix(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return remove_affix(vm, c, false, out);
}

static esp_status removesuffix(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    return remove_affix(vm, c, true, out);
}

/* ---- filters of their own ---- */

static esp_status escape(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct esp_jbuf *b = esp_jbuf_new(vm);
    struct esp_jv s;
    size_t kept = 0;

    if (!b)
        return vm->status;
    ESP_TRY(esp_jv_str(vm, &c->self, &s));
    ESP_TRY(esp_jvm_charge(vm, s.u.s->len / 16));
    for (size_t i = 0; i < s.u.s->len; i++) {
        const char *p = memchr(from, s.u.s->p[i], sizeof from - 1);

        if (!p)
            continue;
        ESP_TRY(esp_jbuf_add_str(vm, b, s.u.s, kept, i));
        ESP_TRY(esp_jbuf_puts(vm, b, to[p - from]));
        kept = i + 1;
    }
    ESP_TRY(esp_jbuf_add_str(vm, b, s.u.s, kept, s.u.s->len));
    return esp_jbuf_finish(vm, b, out);
}

/* The text of one indentation level: width=4 or width='> '. */
static esp_status indent_text(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    const struct esp_jv space = {ESP_JSTR, {.s = &(struct esp_jstr){.p = " ", .len = 1, .trusted = true}}};
    struct esp_jv width = c->given[0] ? c->arg[0] : esp_jv_int(4);

    if (width.kind == ESP_JSTR) {
        *out = width;
        return ESP_OK;
    }
    return esp_jv_arith(vm, ESP_JOP_MUL, &space, &width, out);
}

static esp_status indent(struct esp_jvm *vm, const struct esp_jcall *c, struct esp_jv *out)
{
    bool first = c->given[1] && esp_jv_truth(&c->arg[1]), blank = c->given[2] && esp_jv_truth(&c->arg[2]);
    struct esp_jbuf *b = esp_jbuf_new(vm);
    struct esp_jv s, pad;
    size_t from = 0, end = 0, n;

    if (!b)
        return vm->status;
    if (c->self.kind != ESP_JSTR)
        return esp_jvm_fail(vm, ESP_EINVAL, "indent needs a string, not %s", esp_jv_type(&c->self));
    ESP_TRY(indent_text(vm, c, &pad));
    s = c->self;
    ESP_TRY(esp_jvm_charge(vm, s.u.s->len / 16));
    for (bool more = true; more; from = end + n) {
        for (end = from; end < s.u.s->len && line_end(s.u.s, end) == 0;)
            end++;
        n = end < s.u.s->len ? line_end(s.u.s, end) : 0;
        more = n > 0;
        if (from == 0 ? first : blank || end > from)
            ESP_TRY(esp_jbuf_add_str(vm, b, pad.u.s, 0, pad.u.s->len));
        ESP_TRY(esp_jbuf_add_str(vm, b, s.u.s, from, end));
        if (more) /* every kind of line end becomes a newline */
            ESP_TRY(esp_jbuf_add(vm, b, "\n", 1, NULL, s.u.s->mark ? s.u.s->mark[end] : s.u.s->trusted));
    }
    return esp_jbuf_finish(vm, b, out);
}

const struct esp_jbuiltin *esp_jfilter_find_string(const char *name)
{
    static const struct esp_jbuiltin table[] = {
        {"trim", "chars?", strip_both},
        {"upper", "", upper},
        {"lower", "", lower},
        {"title", "", title_filter},
        {"capitalize", "", capitalize},
        {"replace", "old new count?", replace},
        {"escape", "", escape},
        {"e", "", escape},
        {"indent", "width? first? blank?", indent},
    };

    return esp_jbuiltin_find(table, sizeof table / sizeof table[0], name, strlen(name));
}

const struct esp_jbuiltin *esp_jmethod_find_str(const char *name, size_t len)
{
    static const struct esp_jbuiltin table[] = {
        {"strip", "chars?", strip_both},
        {"lstrip", "chars?", strip_left},
        {"rstrip", "chars?", strip_right},
        {"upper", "", upper},
        {"lower", "", lower},
        {"title", "", title_method},
        {"capitalize", "", capitalize},
        {"startswith", "prefix", startswith},
        {"endswith", "suffix", endswith},
        {"find", "sub", find},
        {"rfind", "sub", rfind},
        {"count", "sub", count},
        {"replace", "old new count?", replace},
        {"split", "sep? maxsplit?", split},
        {"rsplit", "sep? maxsplit?", rsplit},
        {"splitlines", "keepends?", splitlines},
        {"join", "iterable", join_method},
        {"removeprefix", "prefix", removeprefix},
        {"removesuffix", "suffix", removesuffix},
    };

    return esp_jbuiltin_find(table, sizeof table / sizeof table[0], name, len);
}
