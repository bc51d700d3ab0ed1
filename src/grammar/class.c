/*
 * Sets of characters, and their bytes: a range of characters becomes the few sequences of byte ranges that
 * cover its UTF-8 forms. The split points are the places where the number of bytes changes or a continuation
 * byte wraps, so a sequence never stands for a character outside the range and never for half of one.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/ir.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum { MAX_CP = 0x10ffff };

void esp_class_add(struct esp_ir *ir, struct esp_class *c, uint32_t lo, uint32_t hi)
{
    if (ir->failed != ESP_OK)
        return;
    if (c->n == c->cap) {
        uint32_t cap = c->cap ? c->cap * 2 : 8;
        struct esp_class_range *p = esp_arena_alloc_array(ir->arena, cap, sizeof *p);

        if (!p) {
            ir->failed = ESP_ENOMEM;
            ir->why = "out of memory";
            return;
        }
        if (c->n)
            memcpy(p, c->r, c->n * sizeof *p);
        c->r = p;
        c->cap = cap;
    }
    c->r[c->n++] = (struct esp_class_range){lo, hi};
}

static int by_lo(const void *x, const void *y)
{
    const struct esp_class_range *a = x, *b = y;

    return (a->lo > b->lo) - (a->lo < b->lo);
}

void esp_class_norm(struct esp_class *c)
{
    uint32_t n = 0;

    if (c->n)
        qsort(c->r, c->n, sizeof *c->r, by_lo);
    for (uint32_t i = 0; i < c->n; i++) {
        if (n && c->r[i].lo <= c->r[n - 1].hi + 1) {
            if (c->r[i].hi > c->r[n - 1].hi)
                c->r[n - 1].hi = c->r[i].hi;
        } else {
            c->r[n++] = c->r[i];
        }
    }
    c->n = n;
}

void esp_class_invert(struct esp_ir *ir, struct esp_class *c)
{
    struct esp_class out = {0};
    uint32_t from = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        if (c->r[i].lo > from)
            esp_class_add(ir, &out, from, c->r[i].lo - 1);
        from = c->r[i].hi + 1;
    }
    if (from <= MAX_CP)
        esp_class_add(ir, &out, from, MAX_CP);
    *c = out;
}

static void add_spelled(struct esp_ir *ir, struct esp_class *c, const char *pairs)
{
    for (; *pairs; pairs += 2)
        esp_class_add(ir, c, (unsigned char)pairs[0], (unsigned char)pairs[1]);
}

void esp_class_add_ascii(struct esp_ir *ir, struct esp_class *c, char letter)
{
    struct esp_class k = {0};

    switch (letter | 0x20) {
    case 'd':
        add_spelled(ir, &k, "09");
        break;
    case 'w':
        add_spelled(ir, &k, "09AZ__az");
        break;
    default:
        add_spelled(ir, &k, "\t\r  "); /* tab, newline, vertical tab, form feed, return; space */
        break;
    }
    esp_class_norm(&k);
    if (!(letter & 0x20))
        esp_class_invert(ir, &k);
    for (uint32_t i = 0; i < k.n; i++)
        esp_class_add(ir, c, k.r[i].lo, k.r[i].hi);
}

static struct esp_frag add_alt(struct esp_nfa *b, struct esp_frag sum, struct esp_frag f)
{
    return sum.start == ESP_IR_NONE ? f : esp_nfa_alt(b, sum, f);
}

/* lo..hi of one byte length, where all bytes but the first differing one are alike or span everything. */
static struct esp_frag add_range(struct esp_nfa *b, struct esp_frag sum, uint32_t lo, uint32_t hi)
{
    char a[4], z[4];
    size_t n = esp_utf8_encode(lo, a);
    struct esp_frag f;

    esp_utf8_encode(hi, z);
    f = esp_nfa_range(b, (unsigned char)a[0], (unsigned char)z[0]);
    for (size_t i = 1; i < n; i++)
        f = esp_nfa_seq(b, f, esp_nfa_range(b, (unsigned char)a[i], (unsigned char)z[i]));
    return add_alt(b, sum, f);
}

/* Greatest end of a piece that starts at lo, within hi: no change of length, no wrap inside a byte. */
static uint32_t piece_end(uint32_t lo, uint32_t hi)
{
    static const uint32_t last[] = {0x7f, 0x7ff, 0xffff, MAX_CP};
    uint32_t end = hi;

    for (int i = 0; i < 4; i++)
        if (lo <= last[i]) {
            end = end < last[i] ? end : last[i];
            break;
        }
    if (lo < 0x80)
        return end;
    for (uint32_t mask = 0x3f; mask < MAX_CP; mask = mask << 6 | 0x3f) {
        if ((lo & ~mask) == (end & ~mask))
            break;
        if (lo & mask) /* finish the block that lo begins inside */
            return lo | mask;
        if ((end & mask) != mask) /* leave the block that the end is inside for later */
            end = (end & ~mask) - 1;
    }
    return end;
}

static struct esp_frag add_utf8(struct esp_nfa *b, struct esp_frag sum, uint32_t lo, uint32_t hi)
{
    while (lo <= hi) {
        uint32_t end = piece_end(lo, hi);

        sum = add_range(b, sum, lo, end);
        lo = end + 1;
    }
    return sum;
}

/* A character that a JSON string can hold only escaped. Control characters without a short escape are left
 * out. */
static struct esp_frag add_escaped(struct esp_nfa *b, struct esp_frag sum, uint32_t cp)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *p = cp ? strchr(from, (int)cp) : NULL;
    char s[2] = {'\\', 0};

    if (!p)
        return sum;
    s[1] = to[p - from];
    return add_alt(b, sum, esp_nfa_bytes(b, s, 2));
}

static bool needs_escape(uint32_t cp)
{
    return cp < 0x20 || cp == '"' || cp == '\\';
}

static struct esp_frag add_json(struct esp_nfa *b, struct esp_frag sum, uint32_t lo, uint32_t hi)
{
    for (uint32_t from = lo, cp = lo; cp <= hi && cp <= 0x80; cp++) {
        if (needs_escape(cp)) {
            if (cp > from)
                sum = add_utf8(b, sum, from, cp - 1);
            sum = add_escaped(b, sum, cp);
            from = lo = cp + 1;
        }
    }
    return lo <= hi ? add_utf8(b, sum, lo, hi) : sum;
}

struct esp_frag esp_nfa_class(struct esp_nfa *b, const struct esp_class *c, enum esp_ir_text text)
{
    struct esp_frag sum = {ESP_IR_NONE, ESP_IR_NONE};

    for (uint32_t i = 0; i < c->n && b->ir->failed == ESP_OK; i++) {
        uint32_t cut[4] = {c->r[i].lo ? c->r[i].lo : 1, c->r[i].hi, 1, 0}; /* no text contains NUL */

        if (cut[0] < 0xd800 && cut[1] >= 0xd800) { /* around the surrogates, which are no characters */
            cut[2] = 0xe000;
            cut[3] = cut[1];
            cut[1] = 0xd7ff;
        } else if (cut[0] >= 0xd800 && cut[0] < 0xe000) {
            cut[0] = 0xe000;
        }
        for (int k = 0; k < 4; k += 2)
            if (cut[k] <= cut[k + 1])
                sum = text == ESP_IR_JSON ? add_json(b, sum, cut[k], cut[k + 1])
                                          : add_utf8(b, sum, cut[k], cut[k + 1]);
    }
    if (sum.start == ESP_IR_NONE) { /* nothing passes: a range of no bytes */
        sum = esp_nfa_range(b, 1, 0);
    }
    return sum;
}

struct esp_frag esp_nfa_char(struct esp_nfa *b, uint32_t cp, enum esp_ir_text text)
{
    struct esp_class_range r = {cp, cp};
    struct esp_class c = {.r = &r, .n = 1, .cap = 1};

    return esp_nfa_class(b, &c, text);
}

struct esp_frag esp_nfa_any(struct esp_nfa *b, enum esp_ir_text text)
{
    struct esp_class_range r = {1, MAX_CP};
    struct esp_class c = {.r = &r, .n = 1, .cap = 1};

    return esp_nfa_class(b, &c, text);
}
