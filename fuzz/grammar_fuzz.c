/*
 * Bytes as GBNF: what compiles is walked.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar_drive.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct esp_grammar *g = NULL;
    esp_error err;

    if (size < 1 << 14 && esp_grammar_gbnf(&g, drive_vocab(), (const char *)data, size, &err) == ESP_OK)
        drive(g, data, size);
    esp_grammar_release(g);
    return 0;
}
