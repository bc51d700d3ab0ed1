/*
 * The header of a NumPy file is a Python literal of three known keys; this reads exactly that literal, no
 * more of Python. Source: the format's own description, NEP 1.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/npy.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

static const char magic[] = "\x93NUMPY";
enum { MAGIC = 6, MAX_HEADER = 65536 };

struct scan {
    const char *s, *end;
    const char *name;
};

struct fields {
    char descr[8];
    bool fortran;
    size_t dim[2];
    uint32_t n_dim;
    unsigned seen; /* bit per key */
};

static void skip_space(struct scan *c)
{
    while (c->s < c->end && strchr(" \t\n", *c->s) && *c->s)
        c->s++;
}

/* Take a literal, with white space before it. */
static bool take(struct scan *c, const char *text)
{
    const size_t n = strlen(text);

    skip_space(c);
    if ((size_t)(c->end - c->s) < n || memcmp(c->s, text, n) != 0)
        return false;
    c->s += n;
    return true;
}

/* A string in either quotes into buf. */
static bool take_string(struct scan *c, char *buf, size_t cap)
{
    char quote;
    size_t n = 0;

    skip_space(c);
    if (c->s == c->end || (*c->s != '\'' && *c->s != '"'))
        return false;
    quote = *c->s++;
    while (c->s < c->end && *c->s != quote && n + 1 < cap)
        buf[n++] = *c->s++;
    buf[n] = 0;
    return c->s < c->end && *c->s++ == quote;
}

static bool take_shape(struct scan *c, struct fields *f)
{
    if (!take(c, "("))
        return false;
    while (!take(c, ")")) {
        size_t v = 0, digits = 0;

        skip_space(c);
        for (; c->s < c->end && *c->s >= '0' && *c->s <= '9'; c->s++, digits++) {
            if (!esp_mul_size(&v, v, 10) || !esp_add_size(&v, v, (size_t)(*c->s - '0')))
                return false;
        }
        if (digits == 0 || f->n_dim == 2)
            return false;
        f->dim[f->n_dim++] = v;
        if (!take(c, ",") && !(take(c, ")") && c->s--))
            return false;
    }
    return f->n_dim > 0;
}

/* The value of key k. */
static bool take_value(struct scan *c, struct fields *f, unsigned k)
{
    if (k == 0)
        return take_string(c, f->descr, sizeof f->descr);
    if (k == 2)
        return take_shape(c, f);
    f->fortran = take(c, "True");
    return f->fortran || take(c, "False");
}

static bool take_pair(struct scan *c, struct fields *f)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[16];
    unsigned k = 0;

    if (!take_string(c, key, sizeof key) || !take(c, ":"))
        return false;
    while (k < 3 && strcmp(key, keys[k]) != 0)
        k++;
    if (k == 3 || f->seen & (1u << k))
        return false;
    f->seen |= 1u << k;
    return take_value(c, f, k);
}

static esp_status read_fields(struct fields *f, struct scan *c, esp_error *err)
{
    bool ok = take(c, "{"), more = ok;

    while (more && !take(c, "}")) {
        ok = take_pair(c, f);
        more = ok && take(c, ",");
        if (ok && !more)
            ok = take(c, "}");
    }
    skip_space(c);
    if (!ok || f->seen != 7 || c->s != c->end)
        return esp_fail(err, ESP_EFORMAT,
                        "%s: the header is not {'descr', 'fortran_order', 'shape'} with one or two sizes",
                        c->name);
    return ESP_OK;
}

bool esp_npy_is(const char *path)
{
    char head[MAGIC] = {0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n;

    if (fd < 0)
        return false;
    n = read(fd, head, MAGIC);
    close(fd);
    return n == MAGIC && memcmp(head, magic, MAGIC) == 0;
}

/* Find the header's literal behind magic and version; *at is where the data begins. */
static esp_status find_header(struct scan *c, size_t *at, const struct esp_map *m, esp_error *err)
{
    size_t len, start;

    if (m->size < 10 || memcmp(m->data, magic, MAGIC) != 0)
        return esp_fail(err, ESP_EFORMAT, "%s: not a NumPy file", m->name);
    if (m->data[6] < 1 || m->data[6] > 3)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: NumPy format version %u; 1 to 3 are read", m->name,
                        m->data[6]);
    len = m->data[8] | (size_t)m->data[9] << 8;
    start = 10;
    if (m->data[6] > 1) {
        if (m->size < 12)
            return esp_fail(err, ESP_EFORMAT, "%s: %zu bytes, its header needs 12", m->name, m->size);
        len |= (size_t)m->data[10] << 16 | (size_t)m->data[11] << 24;
        start = 12;
    }
    if (len > MAX_HEADER || len > m->size - start)
        return esp_fail(err, ESP_EFORMAT, "%s: a header of %zu bytes does not fit into %zu", m->name, len,
                        m->size);
    c->s = (const char *)m->data + start;
    c->end = c->s + len;
    c->name = m->name;
    *at = start + len;
    return ESP_OK;
}

static esp_status check(struct esp_npy *a, const struct fields *f, size_t at, esp_error *err)
{
    const char *name = a->map.name;
    size_t bytes;

    if (strcmp(f->descr, "<i4") == 0)
        a->item = 4;
    else if (strcmp(f->descr, "<i8") == 0)
        a->item = 8;
    else
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: elements of type '%s'; '<i4' and '<i8' are token ids",
                        name, f->descr);
    if (f->fortran && f->n_dim == 2)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: column order; save it in row (C) order", name);
    a->n_dim = f->n_dim;
    a->rows = f->n_dim == 2 ? f->dim[0] : 1;
    a->cols = f->dim[f->n_dim - 1];
    if (!esp_mul_size(&bytes, a->rows, a->cols) || !esp_mul_size(&bytes, bytes, a->item) ||
        bytes != a->map.size - at)
        return esp_fail(err, ESP_EFORMAT, "%s: %zu bytes of data, its shape %zu x %zu of '%s' says otherwise",
                        name, a->map.size - at, a->rows, a->cols, f->descr);
    a->data = a->map.data + at;
    return ESP_OK;
}

esp_status esp_npy_open(struct esp_npy *out, const char *path, esp_error *err)
{
    struct esp_npy a = {.item = 0};
    struct fields f = {.n_dim = 0};
    struct scan c;
    size_t at = 0;
    esp_status s;

    ESP_TRY(esp_map_open(&a.map, path, err));
    s = find_header(&c, &at, &a.map, err);
    if (s == ESP_OK)
        s = read_fields(&f, &c, err);
    if (s == ESP_OK)
        s = check(&a, &f, at, err);
    if (s == ESP_OK)
        *out = a;
    else
        esp_map_close(&a.map);
    return s;
}

void esp_npy_close(struct esp_npy *a)
{
    esp_map_close(&a->map);
}

int64_t esp_npy_get(const struct esp_npy *a, size_t i)
{
    int32_t small;
    int64_t v;

    if (a->item == 4) {
        memcpy(&small, a->data + 4 * i, 4);
        return small;
    }
    memcpy(&v, a->data + 8 * i, 8);
    return v;
}
