/*
 * JSON behind our limits: what is accepted must be written and read again as the same value, and a refusal
 * must leave one valid line. The first byte of the input chooses the flags.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds)
{
    if (!holds)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned flags = size && data[0] == '!' ? ESP_JSON_NO_DUPLICATES : 0;
    const char *text = (const char *)data + (size > 0);
    json_t *j = NULL, *again = NULL;
    esp_error err;
    char *out;

    if (esp_json_parse(&j, text, size - (size > 0), "input", flags, &err) != ESP_OK) {
        check(j == NULL && esp_utf8_valid(err.message, strlen(err.message), NULL));
        return 0;
    }
    out = json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT);
    check(out != NULL);
    check(esp_json_parse(&again, out, strlen(out), "again", ESP_JSON_NO_DUPLICATES, &err) == ESP_OK);
    check(json_equal(j, again) != 0);
    free(out);
    json_decref(j);
    json_decref(again);
    return 0;
}
