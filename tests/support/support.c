/*
 * Test helpers; see support.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_BUFFERS = 8, MAX_TMP = 256 };

static char *next_buffer(void)
{
    static char buffers[N_BUFFERS][4096];
    static unsigned i;

    return buffers[i++ % N_BUFFERS];
}

const char *test_path(const char *relative)
{
    char *b = next_buffer();

    const char *root =
        getenv("ESPALIER_TEST_ROOT"); /* a checkout elsewhere, for test programs carried to another machine */

    snprintf(b, 4096, "%s/%s", root ? root : ESP_SOURCE_DIR, relative);
    return b;
}

static char tmp_dirs[MAX_TMP][64];
static int n_tmp;

static void remove_tmp(void)
{
    for (int i = 0; i < n_tmp; i++) {
        char *cmd;

        if (asprintf(&cmd, "rm -rf '%s'", tmp_dirs[i]) < 0 || system(cmd) != 0)
            fprintf(stderr, "could not remove %s\n", tmp_dirs[i]);
        free(cmd);
    }
}

const char *test_tmpdir(void)
{
    const char *base = getenv("TMPDIR");
    char *d = tmp_dirs[n_tmp];

    assert_true(n_tmp < MAX_TMP);
    if (!base || base[0] != '/' || strlen(base) > 40)
        base = "/tmp";
    snprintf(d, sizeof tmp_dirs[0], "%s/espalier-test-XXXXXX", base);
    assert_non_null(mkdtemp(d));
    if (n_tmp++ == 0)
        atexit(remove_tmp);
    return d;
}

const char *test_write(const char *dir, const char *name, const void *data, size_t len)
{
    char *b = next_buffer();
    FILE *f;

    snprintf(b, 4096, "%s/%s", dir, name);
    f = fopen(b, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    return b;
}

json_t *test_json(const char *relative)
{
    json_error_t e;
    json_t *j = json_load_file(test_path(relative), JSON_DECODE_ANY, &e);

    if (!j)
        fail_msg("%s: %s (line %d)", relative, e.text, e.line);
    return j;
}

json_t *test_json_text(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, 0, &e);

    if (!j)
        fail_msg("%s in %s", e.text, text);
    return j;
}

void test_ok(esp_status s, const esp_error *err)
{
    if (s != ESP_OK)
        fail_msg("status %s: %s", esp_status_name(s), err ? err->message : "");
}

void test_refused(esp_status s, esp_status wanted, const esp_error *err, const char *part)
{
    if (s != wanted)
        fail_msg("status %s instead of %s: %s", esp_status_name(s), esp_status_name(wanted),
                 s ? err->message : "accepted");
    if (part && !strstr(err->message, part))
        fail_msg("message \"%s\" does not contain \"%s\"", err->message, part);
}
