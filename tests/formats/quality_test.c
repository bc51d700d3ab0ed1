/*
 * What doc/quality.md says of keys and values against its own table: bytes of a token are those of the
 * formats, every scheme that it recommends is in the table, from most to fewest bytes and with growing KL,
 * and none has both more bytes and more KL than another scheme there; all others do, or are excused by name.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/kv.h"

enum { MOST = 64, LAYERS = 2, HEAD = 256 }; /* the demo model: one head of keys and values a layer */

struct row {
    char name[ESP_KV_NAME];
    unsigned long bytes;
    double kl;
};

static struct row rows[MOST];
static size_t n_row;
static char page[1 << 17];

static void read_page(void)
{
    FILE *f = fopen(test_path("doc/quality.md"), "r");

    assert_non_null(f);
    page[fread(page, 1, sizeof page - 1, f)] = 0;
    fclose(f);
}

static const char *behind(const char *at, const char *what)
{
    const char *p = strstr(at, what);

    if (!p)
        fail_msg("doc/quality.md has no '%s' any more", what);
    return p + strlen(what);
}

/* "2,048" */
static unsigned long number(const char *p)
{
    unsigned long v = 0;

    for (; (*p >= '0' && *p <= '9') || *p == ','; p++)
        v = *p == ',' ? v : 10 * v + (unsigned long)(*p - '0');
    return v;
}

static void read_rows(void)
{
    const char *p = behind(behind(page, "## Keys and values"), "| scheme | bytes a token | KL |");

    p = strchr(strchr(p, '\n') + 1, '\n') + 1; /* the rule below the heading */
    for (n_row = 0; *p == '|' && n_row < MOST; p = strchr(p, '\n') + 1) {
        struct row *r = &rows[n_row++];
        const char *bytes = strchr(p + 1, '|'), *kl = strchr(bytes + 1, '|');
        const size_t len = strcspn(p + 2, " ");

        assert_true(len < sizeof r->name);
        memcpy(r->name, p + 2, len);
        r->name[len] = 0;
        r->bytes = number(bytes + 2);
        r->kl = strtod(kl + 1, NULL);
        assert_true(r->kl > 0);
    }
    assert_in_range(n_row, 20, MOST - 1);
}

static const struct row *row_of(const char *name, size_t len)
{
    for (size_t i = 0; i < n_row; i++)
        if (strlen(rows[i].name) == len && memcmp(rows[i].name, name, len) == 0)
            return &rows[i];
    fail_msg("%.*s is not in the table", (int)len, name);
    return NULL;
}

/* A scheme of the table with no more bytes and no more KL, and less of one. */
static const struct row *better(const struct row *r)
{
    for (size_t i = 0; i < n_row; i++)
        if (rows[i].bytes <= r->bytes && rows[i].kl <= r->kl &&
            (rows[i].bytes < r->bytes || rows[i].kl < r->kl))
            return &rows[i];
    return NULL;
}

/* The next name in backquotes before end, or NULL; *p goes behind it. */
static const char *name_in(const char **p, const char *end, size_t *len)
{
    const char *from = strchr(*p, '`');

    if (!from || from >= end)
        return NULL;
    *len = strcspn(from + 1, "`");
    *p = from + *len + 2;
    return from + 1;
}

static void test_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_row; i++) {
        struct esp_kv_scheme s;
        esp_error err;

        test_ok(esp_kv_parse(&s, rows[i].name, &err), &err);
        assert_int_equal(rows[i].bytes, LAYERS * (esp_kv_key_bytes(&s, HEAD) + esp_kv_value_bytes(&s, HEAD)));
    }
}

static void test_recommended(void **state)
{
    const char *p = behind(page, "Recommended, from most to fewest bytes:"),
               *end = strstr(p, ". None of them"), *name;
    const struct row *last = NULL;
    bool listed[MOST] = {false};
    size_t len, n = 0;

    (void)state;
    assert_non_null(end);
    for (; (name = name_in(&p, end, &len)) != NULL; n++) {
        const struct row *r = row_of(name, len), *other = better(r);

        if (other)
            fail_msg("%s is recommended, but %s has %lu bytes to its %lu, KL %.7f to %.7f", r->name,
                     other->name, other->bytes, r->bytes, other->kl, r->kl);
        if (last && (r->bytes >= last->bytes || r->kl <= last->kl))
            fail_msg("%s follows %s", r->name, last->name);
        last = r;
        listed[r - rows] = true;
    }
    assert_true(n >= 8);
    /* "All others but A and B do": bf16 is the yardstick. */
    p = behind(end, "All others but");
    end = strstr(p, " do,");
    assert_non_null(end);
    while ((name = name_in(&p, end, &len)) != NULL)
        listed[row_of(name, len) - rows] = true;
    for (size_t i = 0; i < n_row; i++)
        if (!listed[i] && !better(&rows[i]) && strcmp(rows[i].name, "bf16") != 0)
            fail_msg("%s is neither recommended nor excused, and nothing is better", rows[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes), cmocka_unit_test(test_recommended)};

    read_page();
    read_rows();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
