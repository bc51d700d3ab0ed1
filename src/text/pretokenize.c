/*
 * Patterns in, pieces out. The translation copies a small, checked part of the regular-expression language
 * and rewrites what the two engines read differently: \s is Unicode's White_Space (PCRE2 adds U+180E), and
 * \p{L} \p{M} \p{N} \d get the characters of Unicode 15 and 16. Matching is JIT-compiled where that works;
 * when its stack is too small the interpreter, which keeps its frames on the heap, does that one match again.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "text/pretokenize_tables.h"

enum { JIT_STACK_MIN = 64 << 10, JIT_STACK_MAX = 1 << 20, PARENS_MAX = 32 };

const char esp_pretok_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define WHITE_SPACE                                                                                          \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* A pattern being read. */
struct reader {
    const char *s;
    size_t len;
    size_t at;
    bool in_class;
    struct esp_strbuf *out;
};

static esp_status refuse(const struct reader *r, const char *what, esp_error *err)
{
    const size_t left = r->len - r->at;

    return esp_fail(err, ESP_EUNSUPPORTED, "split pattern: %s (\"%.*s\" at byte %zu) is not supported", what,
                    (int)(left < 12 ? left : 12), r->s + r->at, r->at);
}

static bool looking_at(const struct reader *r, const char *lit)
{
    const size_t n = strlen(lit);

    return r->len - r->at >= n && memcmp(r->s + r->at, lit, n) == 0;
}

static void take(struct reader *r, size_t n)
{
    esp_strbuf_add(r->out, r->s + r->at, n);
    r->at += n;
}

static void put_ranges(struct esp_strbuf *out, const struct esp_cp_range *ranges)
{
    for (; ranges && ranges->last; ranges++)
        esp_strbuf_printf(out, "\\x{%x}-\\x{%x}", (unsigned)ranges->first, (unsigned)ranges->last);
}

/* A class escape: body stands alone in a class, and with ranges added; outside it becomes a class of its own.
 */
static void put_class(const struct reader *r, const char *body, const struct esp_cp_range *ranges,
                      const char *open)
{
    if (!r->in_class)
        esp_strbuf_puts(r->out, open);
    esp_strbuf_puts(r->out, body);
    put_ranges(r->out, ranges);
    if (!r->in_class)
        esp_strbuf_putc(r->out, ']');
}

static const struct esp_cp_range *new_members(const char *category)
{
    if (strcmp(category, "L") == 0)
        return esp_new_letters;
    if (strcmp(category, "M") == 0)
        return esp_new_marks;
    if (strcmp(category, "N") == 0)
        return esp_new_numbers;
    return strcmp(category, "Nd") == 0 ? esp_new_digits : NULL;
}

/* \p{L} and the like: general categories of one or two letters. */
static esp_status property(struct reader *r, esp_error *err)
{
    static const char *const known[] = {"L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",  "Mc", "Me", "Mn",
                                        "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
                                        "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp",
                                        "Zs", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};
    const bool negated = r->s[r->at + 1] == 'P';
    const char *name = r->s + r->at + 3;

    if (negated && r->in_class)
        return refuse(r, "a negated property inside a class", err);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const size_t n = strlen(known[i]);
        char body[16] = "\\p{";

        if (r->len - r->at < n + 4 || name[-1] != '{' || memcmp(name, known[i], n) != 0 || name[n] != '}')
            continue;
        memcpy(body + 3, known[i], n);
        memcpy(body + 3 + n, "}", 2);
        put_class(r, body, new_members(known[i]), negated ? "[^" : "[");
        r->at += n + 4;
        return ESP_OK;
    }
    return refuse(r, "a property other than a general category", err);
}

static esp_status escape(struct reader *r, esp_error *err)
{
    const char c = r->len - r->at >= 2 ? r->s[r->at + 1] : '\0';

    switch (c) {
    case 'p':
    case 'P':
        return property(r, err);
    case 's':
        put_class(r, WHITE_SPACE, NULL, "[");
        break;
    case 'd':
        put_class(r, "\\p{Nd}", esp_new_digits, "[");
        break;
    case 'S':
    case 'D':
        if (r->in_class)
            return refuse(r, "a negated escape inside a class", err);
        put_class(r, c == 'S' ? WHITE_SPACE : "\\p{Nd}", c == 'S' ? NULL : esp_new_digits, "[^");
        break;
    case 'r':
    case 'n':
    case 't':
    case 'f':
        take(r, 2);
        return ESP_OK;
    default:
        if (c <= ' ' || c == 0x7f || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
            (c >= 'a' && c <= 'z'))
            return refuse(r, "an escape", err);
        take(r, 2); /* a quoted sign */
        return ESP_OK;
    }
    r->at += 2;
    return ESP_OK;
}

static esp_status group(struct reader *r, esp_error *err)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};

    if (!looking_at(r, "(?")) {
        esp_strbuf_puts(r->out, "(?:"); /* nothing refers to captures */
        r->at++;
        return ESP_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (looking_at(r, known[i])) {
            take(r, strlen(known[i]));
            return ESP_OK;
        }
    }
    return refuse(r, "a group", err);
}

/* {n} {n,} {n,m}. A following + would be possessive in one engine and a repetition in the other. */
static esp_status counted(struct reader *r, esp_error *err)
{
    size_t i = r->at + 1, digits = 0;

    while (i < r->len && ((r->s[i] >= '0' && r->s[i] <= '9') || (r->s[i] == ',' && digits))) {
        digits += r->s[i] != ',';
        i++;
    }
    if (i >= r->len || r->s[i] != '}' || digits == 0 || digits > 8)
        return refuse(r, "a brace", err);
    if (i + 1 < r->len && r->s[i + 1] == '+')
        return refuse(r, "+ after a counted repetition", err);
    take(r, i + 1 - r->at);
    return ESP_OK;
}

static esp_status in_class(struct reader *r, esp_error *err)
{
    switch (r->s[r->at]) {
    case '\\':
        return escape(r, err);
    case '[':
        return refuse(r, "a class inside a class", err);
    case '&':
        if (looking_at(r, "&&"))
            return refuse(r, "an intersection of classes", err);
        break;
    case ']':
        r->in_class = false;
        break;
    default:
        break;
    }
    take(r, 1);
    return ESP_OK;
}

static esp_status outside_class(struct reader *r, esp_error *err)
{
    switch (r->s[r->at]) {
    case '\\':
        return escape(r, err);
    case '(':
        return group(r, err);
    case '{':
        return counted(r, err);
    case '^':
    case '$':
        return refuse(r, "an anchor", err);
    case '[':
        r->in_class = true;
        take(r, looking_at(r, "[^") ? 2 : 1);
        if (looking_at(r, "]"))
            return refuse(r, "] at the start of a class", err);
        return ESP_OK;
    default:
        take(r, 1);
        return ESP_OK;
    }
}

esp_status esp_pretok_translate(struct esp_strbuf *out, const char *pattern, size_t len, esp_error *err)
{
    struct reader r = {pattern, len, 0, false, out};

    while (r.at < r.len)
        ESP_TRY(r.in_class ? in_class(&r, err) : outside_class(&r, err));
    return out->failed ? esp_fail(err, ESP_ENOMEM, "no memory for the split pattern") : ESP_OK;
}

static esp_status compile(pcre2_code **out, const char *pattern, size_t len, esp_error *err)
{
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    uint32_t empty = 0;
    int code = 0;
    size_t at = 0;

    if (!ctx)
        return esp_fail(err, ESP_ENOMEM, "no memory to compile the split pattern");
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(ctx, PARENS_MAX);
    *out = pcre2_compile((PCRE2_SPTR)pattern, len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code,
                         &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!*out) {
        PCRE2_UCHAR text[128];

        pcre2_get_error_message(code, text, sizeof text);
        return esp_fail(err, ESP_EFORMAT, "split pattern is not accepted at its byte %zu: %s", at,
                        (char *)text);
    }
    pcre2_pattern_info(*out, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(*out);
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "split pattern can match the empty string, which is not supported");
    }
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* where it fails, matching is interpreted */
    return ESP_OK;
}

esp_status esp_pretok_add(struct esp_pretok *p, const char *pattern, size_t len, esp_error *err)
{
    struct esp_strbuf b;
    pcre2_code *code = NULL;
    size_t size = 0, jit = 0;
    esp_status s;

    if (p->n_stages == ESP_LIMIT_SPLIT_STAGES)
        return esp_fail(err, ESP_EUNSUPPORTED, "pre-tokenizer has more than %u split patterns",
                        ESP_LIMIT_SPLIT_STAGES);
    if (len == 0 || len > ESP_LIMIT_SPLIT_PATTERN)
        return esp_fail(err, ESP_EFORMAT, "split pattern of %zu bytes, 1 to %u are accepted", len,
                        ESP_LIMIT_SPLIT_PATTERN);
    esp_strbuf_init(&b, (size_t)ESP_LIMIT_SPLIT_PATTERN * 256); /* \p{L} grows to about 700 bytes */
    s = esp_pretok_translate(&b, pattern, len, err);
    if (s == ESP_OK)
        s = compile(&code, esp_strbuf_str(&b), b.len, err);
    esp_strbuf_free(&b);
    if (s != ESP_OK)
        return s;
    pcre2_pattern_info(code, PCRE2_INFO_SIZE, &size);
    pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &jit);
    p->bytes += size + jit;
    p->stage[p->n_stages++] = code;
    return ESP_OK;
}

void esp_pretok_free(struct esp_pretok *p)
{
    for (size_t i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->stage[i]);
    memset(p, 0, sizeof *p);
}

esp_status esp_pretok_cut_init(struct esp_pretok_cut *c, const struct esp_pretok *p, esp_error *err)
{
    memset(c, 0, sizeof *c);
    c->p = p;
    c->match = pcre2_match_data_create(1, NULL);
    c->context = pcre2_match_context_create(NULL);
    if (!c->match || !c->context)
        return esp_fail(err, ESP_ENOMEM, "no memory for splitting text");
    pcre2_set_match_limit(c->context, ESP_LIMIT_SPLIT_STEPS);
    pcre2_set_depth_limit(c->context, ESP_LIMIT_SPLIT_STEPS);
    pcre2_set_heap_limit(c->context, 1u << 20); /* KiB */
    return ESP_OK;                              /* the JIT stack: once a text needs it */
}

void esp_pretok_cut_free(struct esp_pretok_cut *c)
{
    pcre2_match_data_free(c->match);
    pcre2_match_context_free(c->context);
    pcre2_jit_stack_free(c->stack);
    memset(c, 0, sizeof *c);
}

void esp_pretok_cut_start(struct esp_pretok_cut *c, const char *text, size_t len)
{
    memset(c->level, 0, sizeof c->level);
    c->text = text;
    c->level[0].end = len;
}

/*
 * pcre2_match() on the 32 KiB that the library takes of the thread's stack. A text that needs more gets a
 * JIT stack for the rest of the cut: making one for each text was most of the time of tokenizing a short
 * prompt.
 */
static int match(struct esp_pretok_cut *c, size_t k, PCRE2_SPTR subject, size_t len, size_t from)
{
    int rc = pcre2_match(c->p->stage[k], subject, len, from, PCRE2_NO_UTF_CHECK, c->match, c->context);

    if (rc != PCRE2_ERROR_JIT_STACKLIMIT)
        return rc;
    if (!c->stack) {
        c->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
        if (!c->stack)
            return PCRE2_ERROR_NOMEMORY;
        pcre2_jit_stack_assign(c->context, NULL, c->stack);
        rc = pcre2_match(c->p->stage[k], subject, len, from, PCRE2_NO_UTF_CHECK, c->match, c->context);
        if (rc != PCRE2_ERROR_JIT_STACKLIMIT)
            return rc;
    }
    return pcre2_match(c->p->stage[k], subject, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, c->match,
                       c->context);
}

/* The first match of stage k at or after l->pos as [*start, *end) of the text; both l->end when there is
 * none. */
static esp_status find_match(struct esp_pretok_cut *c, size_t k, const struct esp_pretok_level *l,
                             size_t *start, size_t *end, esp_error *err)
{
    const PCRE2_SPTR subject = (PCRE2_SPTR)(c->text + l->start);
    const size_t len = l->end - l->start, from = l->pos - l->start;
    const size_t *range = pcre2_get_ovector_pointer(c->match);
    const int rc = match(c, k, subject, len, from);

    *start = *end = l->end;
    if (rc == PCRE2_ERROR_NOMATCH)
        return ESP_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return esp_fail(err, ESP_ENOMEM, "no memory for splitting text");
    if (rc < 0 || range[1] <= range[0])
        return esp_fail(
            err, ESP_ENOFIT,
            "the tokenizer's split pattern gave up at byte %zu of %zu (limit %u steps, PCRE2 code %d)",
            l->pos, l->end, ESP_LIMIT_SPLIT_STEPS, rc);
    *start = l->start + range[0];
    *end = l->start + range[1];
    return ESP_OK;
}

/* Cut the next piece off level k and make it the text of level k + 1. */
static esp_status descend(struct esp_pretok_cut *c, size_t k, esp_error *err)
{
    struct esp_pretok_level *l = &c->level[k];
    size_t start = l->pos, end = l->match_end;

    if (end <= l->pos)
        ESP_TRY(find_match(c, k, l, &start, &end, err));
    l->match_end = end;
    c->level[k + 1] = (struct esp_pretok_level){l->pos, start > l->pos ? start : end, l->pos, 0};
    l->pos = c->level[k + 1].end;
    return ESP_OK;
}

esp_status esp_pretok_cut_next(struct esp_pretok_cut *c, const char **piece, size_t *len, esp_error *err)
{
    const size_t n = c->p->n_stages;
    size_t k = n;

    *len = 0;
    while (k > 0 && c->level[k - 1].pos == c->level[k - 1].end)
        k--;
    if (n > 0 && k == 0)
        return ESP_OK;
    for (; n > 0 && k <= n; k++)
        ESP_TRY(descend(c, k - 1, err));
    *piece = c->text + c->level[n].pos;
    *len = c->level[n].end - c->level[n].pos;
    c->level[n].pos = c->level[n].end;
    return ESP_OK;
}
