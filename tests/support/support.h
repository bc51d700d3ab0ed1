/*
 * What every test program shares: cmocka in the right order, paths into the tree, and files in temporary
 * folders.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_SUPPORT_H
#define ESP_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/status.h"

/* Instrumented code is 20 to 40 times slower: what shows a property over many cases takes fewer of them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_SANITIZED = 1 };
#else
enum { TEST_SANITIZED = 0 };
#endif

/* Absolute path of a file in the checkout; the returned string lives in one of eight rotating buffers. */
const char *test_path(const char *relative);
/* A fresh temporary folder below $TMPDIR, else /tmp (rotating buffers as above); removed at exit. */
const char *test_tmpdir(void);
/* Write data[0..len) to dir/name and return the path. */
const char *test_write(const char *dir, const char *name, const void *data, size_t len);
/* Parse a JSON file of the checkout, failing the test when that is impossible. */
json_t *test_json(const char *relative);
/* Parse JSON text, likewise. */
json_t *test_json_text(const char *text);
/* Fail with err's message unless s is ESP_OK. */
void test_ok(esp_status s, const esp_error *err);
/* Fail unless s is the wanted status and the message contains part (part may be NULL). */
void test_refused(esp_status s, esp_status wanted, const esp_error *err, const char *part);

#endif
