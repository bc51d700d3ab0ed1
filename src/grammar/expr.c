/*
 * Expressions from left to right, and places in a text.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/expr.h"

#include <string.h>

#include "base/utf8.h"

static void start_group(struct esp_expr *e)
{
    struct esp_expr_group *g = &e->group[e->depth];

    memset(g, 0, sizeof *g);
    g->mark = e->b->n;
    g->seq = esp_nfa_empty(e->b);
}

void esp_expr_begin(struct esp_expr *e, struct esp_nfa *b)
{
    e->b = b;
    e->depth = 0;
    start_group(e);
}

uint32_t esp_expr_mark(const struct esp_expr *e)
{
    return e->b->n;
}

/* The last item is not to be repeated any more. */
static void settle(struct esp_expr_group *g, struct esp_nfa *b)
{
    if (g->has_last)
        g->seq = esp_nfa_seq(b, g->seq, g->last);
    g->has_last = false;
}

void esp_expr_item(struct esp_expr *e, struct esp_frag f, uint32_t mark)
{
    struct esp_expr_group *g = &e->group[e->depth];

    settle(g, e->b);
    g->last = f;
    g->last_mark = mark;
    g->has_last = true;
}

bool esp_expr_repeat(struct esp_expr *e, uint32_t min, uint32_t max)
{
    struct esp_expr_group *g = &e->group[e->depth];

    if (!g->has_last)
        return false;
    g->last = esp_nfa_repeat(e->b, g->last, g->last_mark, min, max);
    return true;
}

static struct esp_frag whole(struct esp_expr *e)
{
    struct esp_expr_group *g = &e->group[e->depth];

    settle(g, e->b);
    return g->has_sum ? esp_nfa_alt(e->b, g->sum, g->seq) : g->seq;
}

void esp_expr_bar(struct esp_expr *e)
{
    struct esp_expr_group *g = &e->group[e->depth];

    g->sum = whole(e);
    g->has_sum = true;
    g->seq = esp_nfa_empty(e->b);
}

bool esp_expr_open(struct esp_expr *e)
{
    if (e->depth == ESP_LIMIT_GRAMMAR_NESTING)
        return false;
    e->depth++;
    start_group(e);
    return true;
}

bool esp_expr_close(struct esp_expr *e)
{
    struct esp_frag f;
    uint32_t mark;

    if (e->depth == 0)
        return false;
    f = whole(e);
    mark = e->group[e->depth].mark;
    e->depth--;
    esp_expr_item(e, f, mark);
    return true;
}

struct esp_frag esp_expr_end(struct esp_expr *e)
{
    return whole(e);
}

bool esp_expr_at_start(const struct esp_expr *e)
{
    const struct esp_expr_group *g = &e->group[e->depth];

    return !g->has_last && g->seq.start == g->seq.end;
}

esp_status esp_reader_fail(const struct esp_reader *r, size_t at, esp_status s, const char *why,
                           esp_error *err)
{
    size_t line = 1, column = 1;

    for (size_t i = 0; i < at && i < r->len; i++) {
        if (r->s[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)r->s[i] & 0xc0) != 0x80) {
            column++;
        }
    }
    return esp_fail(err, s, "%s, line %zu, column %zu: %s", r->what, line, column, why);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool esp_reader_hex(struct esp_reader *r, unsigned n, uint32_t *out)
{
    uint32_t v = 0;

    if (r->len - r->pos < n)
        return false;
    for (unsigned i = 0; i < n; i++) {
        const int d = hex_value(r->s[r->pos + i]);

        if (d < 0)
            return false;
        v = v << 4 | (uint32_t)d;
    }
    r->pos += n;
    *out = v;
    return true;
}

bool esp_reader_number(struct esp_reader *r, uint32_t *out)
{
    const size_t from = r->pos;
    uint32_t v = 0;

    for (; r->pos < r->len && r->s[r->pos] >= '0' && r->s[r->pos] <= '9'; r->pos++) {
        v = v * 10 + (uint32_t)(r->s[r->pos] - '0');
        if (v > 1u << 28)
            v = 1u << 28; /* far above every limit, and times ten it still fits */
    }
    *out = v;
    return r->pos > from;
}

bool esp_reader_counts(struct esp_reader *r, uint32_t *min, uint32_t *max)
{
    const size_t from = r->pos;

    if (r->pos < r->len && r->s[r->pos] == '{') {
        r->pos++;
        if (esp_reader_number(r, min) && r->pos < r->len) {
            *max = *min;
            if (r->s[r->pos] == ',') {
                r->pos++;
                if (!esp_reader_number(r, max))
                    *max = ESP_IR_NONE;
            }
            if (r->pos < r->len && r->s[r->pos] == '}') {
                r->pos++;
                return true;
            }
        }
    }
    r->pos = from;
    return false;
}

uint32_t esp_reader_char(struct esp_reader *r)
{
    uint32_t cp = 0;
    const size_t n = esp_utf8_decode(r->s + r->pos, r->len - r->pos, &cp);

    r->pos += n ? n : 1;
    return cp;
}
