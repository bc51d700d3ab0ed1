/*
 * Jinja strings: immutable views of bytes with a trusted mark for each byte. Most strings are wholly trusted
 * or wholly not, and carry one flag; a mark array appears with the first mixture. See jinja.h for the
 * in-place concatenation.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/jinja.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

size_t esp_jspace_at(const char *s, size_t len)
{
    uint32_t cp;
    size_t n = esp_utf8_decode(s, len, &cp);

    return n > 0 && is_space(cp) ? n : 0;
}

size_t esp_jspace_before(const char *s, size_t len)
{
    size_t at = len;

    if (len == 0)
        return 0;
    do
        at--;
    while (at > 0 && len - at < 4 && ((uint8_t)s[at] & 0xc0) == 0x80);
    return esp_jspace_at(s + at, len - at) == len - at ? len - at : 0;
}

esp_status esp_jstr_view(struct esp_jvm *vm, const char *p, size_t len, bool trusted, struct esp_jv *out)
{
    struct esp_jstr *s = esp_jvm_alloc(vm, 1, sizeof *s);

    if (!s)
        return vm->status;
    s->p = p;
    s->len = len;
    s->trusted = trusted;
    out->kind = ESP_JSTR;
    out->u.s = s;
    return ESP_OK;
}

esp_status esp_jstr_slice(struct esp_jvm *vm, const struct esp_jstr *s, size_t from, size_t to,
                          struct esp_jv *out)
{
    ESP_TRY(esp_jstr_view(vm, s->p + from, to - from, s->trusted, out));
    out->u.s->mark = s->mark ? s->mark + from : NULL;
    return ESP_OK;
}

bool esp_jstr_is(const struct esp_jstr *s, const char *z)
{
    return strlen(z) == s->len && memcmp(s->p, z, s->len) == 0;
}

size_t esp_jstr_chars(const struct esp_jstr *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->len; i++)
        n += ((uint8_t)s->p[i] & 0xc0) != 0x80;
    return n;
}

size_t esp_jstr_offset(const struct esp_jstr *s, size_t i)
{
    size_t at = 0;

    for (; at < s->len; at++)
        if (((uint8_t)s->p[at] & 0xc0) != 0x80 && i-- == 0)
            break;
    return at;
}

const char *esp_jstr_short(struct esp_jvm *vm, const struct esp_jstr *s)
{
    size_t n = s->len < 64 ? s->len : 64;
    char *z = esp_jvm_alloc(vm, n + 1, 1);

    if (z)
        memcpy(z, s->p, n);
    return z;
}

struct esp_jbuf *esp_jbuf_new(struct esp_jvm *vm)
{
    return esp_jvm_alloc(vm, 1, sizeof(struct esp_jbuf));
}

/* Room for len more bytes, and a mark array when `mixed`. */
static esp_status reserve(struct esp_jvm *vm, struct esp_jbuf *b, size_t len, bool mixed)
{
    size_t need, cap = b->cap;

    if (!esp_add_size(&need, b->len, len) || need > vm->max_output)
        return esp_jvm_fail(vm, ESP_ENOFIT, "a string would become longer than %zu bytes, the most accepted",
                            vm->max_output);
    if (need > cap) {
        char *p;

        cap = cap * 2 > need ? cap * 2 : need < 32 ? 32 : need;
        p = esp_jvm_alloc(vm, cap, 1);
        if (!p)
            return vm->status;
        if (b->len)
            memcpy(p, b->p, b->len);
        b->p = p;
    }
    if ((mixed && !b->mark) || (b->mark && cap > b->cap)) {
        uint8_t *m = esp_jvm_alloc(vm, cap, 1);

        if (!m)
            return vm->status;
        if (b->mark && b->len)
            memcpy(m, b->mark, b->len);
        else
            memset(m, b->trusted, b->len);
        b->mark = m;
    }
    b->cap = cap;
    return ESP_OK;
}

esp_status esp_jbuf_add(struct esp_jvm *vm, struct esp_jbuf *b, const char *p, size_t len,
                        const uint8_t *mark, bool trusted)
{
    if (len == 0)
        return ESP_OK;
    ESP_TRY(esp_jvm_charge(vm, len / 256));
    if (b->len == 0 && !b->mark)
        b->trusted = trusted;
    ESP_TRY(reserve(vm, b, len, mark || trusted != b->trusted));
    memcpy(b->p + b->len, p, len);
    if (b->mark && mark)
        memcpy(b->mark + b->len, mark, len);
    else if (b->mark)
        memset(b->mark + b->len, trusted, len);
    b->len += len;
    return ESP_OK;
}

esp_status esp_jbuf_add_str(struct esp_jvm *vm, struct esp_jbuf *b, const struct esp_jstr *s, size_t from,
                            size_t to)
{
    return esp_jbuf_add(vm, b, s->p + from, to - from, s->mark ? s->mark + from : NULL, s->trusted);
}

esp_status esp_jbuf_puts(struct esp_jvm *vm, struct esp_jbuf *b, const char *z)
{
    return esp_jbuf_add(vm, b, z, strlen(z), NULL, false);
}

esp_status esp_jbuf_finish(struct esp_jvm *vm, struct esp_jbuf *b, struct esp_jv *out)
{
    ESP_TRY(esp_jstr_view(vm, b->p ? b->p : "", b->len, b->trusted, out));
    out->u.s->mark = b->mark;
    out->u.s->buf = b;
    return ESP_OK;
}

esp_status esp_jstr_concat(struct esp_jvm *vm, const struct esp_jstr *a, const struct esp_jstr *b,
                           struct esp_jv *out)
{
    struct esp_jbuf *buf = a->buf;

    if (!buf || a->len != buf->len) { /* someone else already wrote behind a */
        buf = esp_jbuf_new(vm);
        if (!buf)
            return vm->status;
        ESP_TRY(esp_jbuf_add_str(vm, buf, a, 0, a->len));
    }
    ESP_TRY(esp_jbuf_add_str(vm, buf, b, 0, b->len));
    return esp_jbuf_finish(vm, buf, out);
}
