/*
 * Strings, numbers, and the rules that every JSON text needs. Numbers and white space are bounded so that a
 * model cannot go on for ever: 18 digits before the point, 17 behind it, three of exponent; between tokens
 * one space, or a newline and an indentation.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/schema.h"

#include <string.h>

#include "grammar/automaton.h"
#include "grammar/front.h"
#include "grammar/grammar.h"

#define HEX "[0-9A-Fa-f]"
/* One character of a JSON string, in any spelling but those of NUL and of half a surrogate pair. */
#define JSON_CHAR                                                                                            \
    "[^\"\\\\\\x00-\\x1f]|\\\\(?:[\"\\\\/bfnrt]|u(?:[1-9A-CEFa-cef]" HEX "{3}|[Dd][0-7]" HEX                 \
    "{2}|0[1-9A-Fa-f]" HEX "{2}|00[1-9A-Fa-f]" HEX "|000[1-9A-Fa-f]|[Dd][89ABab]" HEX                        \
    "{2}\\\\u[Dd][C-Fc-f]" HEX "{2}))"

/* The same without \\u, where characters are counted: it would make every count five times as large. */
#define SHORT_CHAR "[^\"\\\\\\x00-\\x1f]|\\\\[\"\\\\/bfnrt]"

#define DATE                                                                                                 \
    "(?:[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)" \
    "|"                                                                                                      \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[12][0-9](?:0[48]|[2468][048]|[13579][26])|(?:1[26]|2[048])00)-02-29)"
#define TIME                                                                                                 \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET    "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define GROUP    "[0-9a-fA-F]{1,4}"
#define LABEL    "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define URI_CHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%" HEX "{2})*"

/* Subsets of what the standards allow: whatever is written satisfies a strict checker. Years are 1000 to
 * 2999. */
static const struct {
    const char *name, *regex;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@" LABEL "(?:\\." LABEL "){1,4}"},
    {"ipv4", OCTET "(?:\\." OCTET "){3}"},
    {"ipv6", "(?:" GROUP ":){7}" GROUP "|(?:" GROUP ":){1,7}:|(?:" GROUP ":){1,6}:" GROUP "|(?:" GROUP
             ":){1,5}(?::" GROUP "){1,2}|(?:" GROUP ":){1,4}(?::" GROUP "){1,3}|(?:" GROUP ":){1,3}(?::" GROUP
             "){1,4}|(?:" GROUP ":){1,2}(?::" GROUP "){1,5}|" GROUP ":(?::" GROUP "){1,6}|:(?:(?::" GROUP
             "){1,7}|:)"},
    {"uri", "[a-z][a-z0-9+.-]{1,15}://[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?(?:/" URI_CHAR
            ")?(?:\\?" URI_CHAR ")?(?:#" URI_CHAR ")?"},
};

/* A regular expression of ours. */
static struct esp_frag own(struct esp_nfa *b, const char *regex)
{
    struct esp_frag f = {0, 0};

    (void)esp_regex_build(b, regex, strlen(regex), ESP_IR_PLAIN, ESP_REGEX_WHOLE, "schema", &f, NULL);
    return f;
}

static struct esp_frag quoted(struct esp_nfa *b, struct esp_frag f)
{
    return esp_nfa_seq(b, esp_nfa_seq(b, esp_nfa_puts(b, "\""), f), esp_nfa_puts(b, "\""));
}

static struct esp_frag run_of_chars(struct esp_nfa *b, uint32_t min, uint32_t max, bool raw)
{
    const bool counted = min > 0 || max != ESP_IR_NONE;
    const uint32_t mark = b->n;
    struct esp_frag f = raw ? esp_nfa_any(b, ESP_IR_PLAIN) : own(b, counted ? SHORT_CHAR : JSON_CHAR);

    return esp_nfa_repeat(b, f, mark, min, max);
}

static esp_status one_format(const struct esp_schema_node *n, const char *name, const char **regex,
                             esp_error *err)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0) {
            *regex = formats[i].regex;
            return ESP_OK;
        }
    return esp_fail(
        err, ESP_EUNSUPPORTED,
        "schema: \"format\" \"%.60s\" at %s is not supported; known are date, time, date-time, uuid, email, "
        "ipv4, ipv6 and uri",
        name, n->path);
}

/* The k-th condition on a string: patterns, formats, then the length. */
static esp_status one_condition(const struct esp_schema_node *n, struct esp_nfa *b, uint32_t k, bool raw,
                                struct esp_frag *out, esp_error *err)
{
    const char *regex = "";
    char what[120] = "schema: \"pattern\" at ";

    if (k < n->n_pattern) {
        const size_t used = strlen(what), len = strlen(n->path), room = sizeof what - 1 - used;

        memcpy(what + used, n->path, len < room ? len : room);
        return esp_regex_build(b, n->pattern[k], strlen(n->pattern[k]), raw ? ESP_IR_PLAIN : ESP_IR_JSON,
                               ESP_REGEX_SEARCH, what, out, err);
    }
    k -= n->n_pattern;
    if (k < n->n_format) {
        ESP_TRY(one_format(n, n->format[k], &regex, err));
        *out = own(b, regex);
        return ESP_OK;
    }
    *out = run_of_chars(b, n->min_length, n->max_length, raw);
    return ESP_OK;
}

static bool same_text(const char *x, const char *y)
{
    return x == y || (x && y && strcmp(x, y) == 0);
}

/* A rule written before for the same conditions, or ESP_IR_NONE. */
static uint32_t known_text(const struct esp_schema *s, const struct esp_schema_text_rule *t)
{
    for (uint32_t i = 0; i < s->n_text; i++) {
        const struct esp_schema_text_rule *o = &s->text[i];

        if (o->min == t->min && o->max == t->max && o->raw == t->raw && same_text(o->pattern, t->pattern) &&
            same_text(o->format, t->format))
            return o->rule;
    }
    return ESP_IR_NONE;
}

/* A rule for all conditions together: each is a rule, and they are intersected two by two. */
static esp_status all_conditions(struct esp_schema *s, const struct esp_schema_node *n, bool raw,
                                 uint32_t *rule, esp_error *err)
{
    const bool length = n->min_length > 0 || n->max_length != ESP_IR_NONE;
    const uint32_t count = n->n_pattern + n->n_format + (length || n->n_pattern + n->n_format == 0);

    for (uint32_t k = 0; k < count; k++) {
        uint32_t one = esp_ir_declare(s->ir, n->path, strlen(n->path), 0), both;
        struct esp_nfa b;
        struct esp_frag f = {0, 0};
        esp_status st;

        esp_nfa_begin(&b, s->ir);
        st = one_condition(n, &b, k, raw, &f, err);
        if (st != ESP_OK) {
            esp_nfa_drop(&b);
            return st;
        }
        esp_nfa_end(&b, one, raw ? f : quoted(&b, f), ESP_IR_SHARED);
        if (k > 0) {
            both = esp_ir_declare(s->ir, n->path, strlen(n->path), 0);
            esp_ir_both(s->ir, both, *rule, one);
            one = both;
        }
        *rule = one;
    }
    return ESP_OK;
}

static esp_status text_rule(struct esp_schema *s, const struct esp_schema_node *n, bool raw, uint32_t *rule,
                            esp_error *err)
{
    struct esp_schema_text_rule t = {.min = n->min_length, .max = n->max_length, .raw = raw};

    t.pattern = n->n_pattern ? n->pattern[0] : NULL;
    t.format = n->n_format ? n->format[0] : NULL;
    if (n->n_pattern > 1 || n->n_format > 1)
        return all_conditions(s, n, raw, rule, err);
    *rule = known_text(s, &t);
    if (*rule != ESP_IR_NONE)
        return ESP_OK;
    ESP_TRY(all_conditions(s, n, raw, rule, err));
    if (s->n_text < 256 && esp_auto_grow(&s->text, &s->cap_text, s->n_text, 1, sizeof t)) {
        t.rule = *rule; /* else it is written again next time */
        s->text[s->n_text++] = t;
    }
    return ESP_OK;
}

esp_status esp_schema_string(struct esp_schema *s, struct esp_nfa *b, const struct esp_schema_node *n,
                             struct esp_frag *out, esp_error *err)
{
    uint32_t rule;

    if (n->min_length == 0 && n->max_length == ESP_IR_NONE && n->n_pattern == 0 && n->n_format == 0)
        rule = esp_schema_basic(s, ESP_BASIC_STRING);
    else
        ESP_TRY(text_rule(s, n, false, &rule, err));
    *out = esp_nfa_call(b, rule);
    return ESP_OK;
}

esp_status esp_schema_raw_string(struct esp_schema *s, const struct esp_schema_node *n, uint32_t *rule,
                                 esp_error *err)
{
    return text_rule(s, n, true, rule, err);
}

/* ---- integers ---- */

/* from - a digit of lo..hi, then n of any - to */
static void digits(struct esp_nfa *b, uint32_t from, char lo, char hi, uint32_t n, uint32_t to)
{
    struct esp_frag f;

    if (lo > hi)
        return;
    f = esp_nfa_range(b, (unsigned char)lo, (unsigned char)hi);
    while (n--)
        f = esp_nfa_seq(b, f, esp_nfa_range(b, '0', '9'));
    esp_nfa_link(b, from, f.start);
    esp_nfa_link(b, f.end, to);
}

static uint32_t one_digit(struct esp_nfa *b, uint32_t from, char c)
{
    const struct esp_frag f = esp_nfa_range(b, (unsigned char)c, (unsigned char)c);

    esp_nfa_link(b, from, f.start);
    return f.end;
}

/* Numbers of `len` digits from lo to hi, as they are written. */
static void same_length(struct esp_nfa *b, uint32_t from, const char *lo, const char *hi, uint32_t len,
                        uint32_t to)
{
    uint32_t i = 0, low, high;

    while (i < len && lo[i] == hi[i])
        from = one_digit(b, from, lo[i++]);
    if (i == len) {
        esp_nfa_link(b, from, to);
        return;
    }
    digits(b, from, (char)(lo[i] + 1), (char)(hi[i] - 1), len - i - 1, to);
    low = one_digit(b, from, lo[i]);
    high = one_digit(b, from, hi[i]);
    for (i++; i < len; i++) {
        digits(b, low, (char)(lo[i] + 1), '9', len - i - 1, to);
        digits(b, high, '0', (char)(hi[i] - 1), len - i - 1, to);
        low = one_digit(b, low, lo[i]);
        high = one_digit(b, high, hi[i]);
    }
    esp_nfa_link(b, low, to);
    esp_nfa_link(b, high, to);
}

static uint32_t spell(uint64_t v, char out[20])
{
    char back[20];
    uint32_t n = 0;

    do {
        back[n++] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    for (uint32_t i = 0; i < n; i++)
        out[i] = back[n - 1 - i];
    return n;
}

static void magnitude(struct esp_nfa *b, uint32_t from, uint64_t lo, uint64_t hi, uint32_t to)
{
    uint64_t first = 0, next = 10;

    for (uint32_t len = 1; len <= 19 && first <= hi; len++) {
        const uint64_t a = lo > first ? lo : first, c = hi < next - 1 ? hi : next - 1;

        if (a <= c) {
            char s[20], t[20];

            spell(a, s);
            spell(c, t);
            same_length(b, from, s, t, len, to);
        }
        first = next;
        next = len < 18 ? next * 10 : UINT64_MAX;
    }
}

struct esp_frag esp_schema_integer(struct esp_nfa *b, const struct esp_schema_node *n)
{
    const int64_t wide = 999999999999999999;
    const int64_t lo = n->has_min ? n->min : n->has_max && n->max < -wide ? INT64_MIN : -wide;
    const int64_t hi = n->has_max ? n->max : n->has_min && n->min > wide ? INT64_MAX : wide;
    struct esp_frag f;

    f.start = esp_nfa_node(b);
    f.end = esp_nfa_node(b);
    if (hi >= 0)
        magnitude(b, f.start, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi, f.end);
    if (lo < 0)
        magnitude(b, one_digit(b, f.start, '-'), hi < 0 ? 0 - (uint64_t)hi : 1, 0 - (uint64_t)lo, f.end);
    return f;
}

/* ---- rules for any JSON ---- */

static struct esp_frag call(struct esp_schema *s, struct esp_nfa *b, enum esp_schema_basic which)
{
    return esp_nfa_call(b, esp_schema_basic(s, which));
}

/* open (ws item ("," ws item)* ws)? close, item being a value, or a string, colon and value */
static struct esp_frag any_list(struct esp_schema *s, struct esp_nfa *b, bool object)
{
    struct esp_frag f, more;
    uint32_t item = esp_ir_declare(s->ir, "item", 4, 0);
    struct esp_nfa w;

    esp_nfa_begin(&w, s->ir);
    if (object) {
        f = esp_nfa_seq(&w, call(s, &w, ESP_BASIC_STRING), esp_nfa_puts(&w, ":"));
        f = esp_nfa_seq(&w, f, call(s, &w, ESP_BASIC_SP));
        f = esp_nfa_seq(&w, f, call(s, &w, ESP_BASIC_VALUE));
    } else {
        f = call(s, &w, ESP_BASIC_VALUE);
    }
    esp_nfa_end(&w, item, f, 0);
    more = esp_nfa_seq(b, esp_nfa_puts(b, ","), call(s, b, ESP_BASIC_WS));
    more = esp_nfa_star(b, esp_nfa_seq(b, more, esp_nfa_call(b, item)));
    f = esp_nfa_seq(b, call(s, b, ESP_BASIC_WS), esp_nfa_call(b, item));
    f = esp_nfa_seq(b, esp_nfa_seq(b, f, more), call(s, b, ESP_BASIC_WS));
    f = esp_nfa_seq(b, esp_nfa_puts(b, object ? "{" : "["), esp_nfa_opt(b, f));
    return esp_nfa_seq(b, f, esp_nfa_puts(b, object ? "}" : "]"));
}

void esp_schema_write_basic(struct esp_schema *s, enum esp_schema_basic which, uint32_t rule)
{
    const bool compact = s->flags & ESP_SCHEMA_COMPACT;
    struct esp_frag f = {0, 0};
    struct esp_nfa b;

    esp_nfa_begin(&b, s->ir);
    switch (which) {
    case ESP_BASIC_WS:
        f = compact ? esp_nfa_empty(&b) : own(&b, "(?: |\\n(?: {0,16}|\\t{1,8}))?");
        break;
    case ESP_BASIC_SP:
        f = compact ? esp_nfa_empty(&b) : own(&b, " ?");
        break;
    case ESP_BASIC_VALUE:
        f = esp_nfa_alt(&b, own(&b, "true|false|null"), call(s, &b, ESP_BASIC_STRING));
        f = esp_nfa_alt(&b, f, call(s, &b, ESP_BASIC_NUMBER));
        f = esp_nfa_alt(&b, f, call(s, &b, ESP_BASIC_OBJECT));
        f = esp_nfa_alt(&b, f, call(s, &b, ESP_BASIC_ARRAY));
        break;
    case ESP_BASIC_OBJECT:
    case ESP_BASIC_ARRAY:
        f = any_list(s, &b, which == ESP_BASIC_OBJECT);
        break;
    case ESP_BASIC_STRING:
        f = quoted(&b, run_of_chars(&b, 0, ESP_IR_NONE, false));
        break;
    case ESP_BASIC_NUMBER:
        f = own(&b, "-?(?:0|[1-9][0-9]{0,17})(?:\\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?");
        break;
    case ESP_BASIC_INTEGER:
        f = own(&b, "0|-?[1-9][0-9]{0,17}");
        break;
    case ESP_BASIC_COUNT:
        break;
    }
    esp_nfa_end(&b, rule, f, which == ESP_BASIC_STRING ? ESP_IR_SHARED : 0);
}
