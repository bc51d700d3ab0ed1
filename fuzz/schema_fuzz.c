/*
 * Bytes as a JSON schema, which also serves as the parameters of a tool. What compiles is walked; a complete
 * text must be JSON.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar_drive.h"

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const json_t *schema, const uint8_t *data, size_t size)
{
    const struct esp_tool tool[] = {{"t", schema, true}, {"u", schema, false}};
    struct esp_grammar *g = NULL;
    esp_error err;

    if (esp_grammar_schema(&g, drive_vocab(), schema, size % 2 ? ESP_SCHEMA_OPEN : 0, &err) == ESP_OK)
        drive(g, data, size);
    esp_grammar_release(g);
    g = NULL;
    if (esp_grammar_tools(&g, drive_vocab(), tool, 2, 0, &err) == ESP_OK)
        drive(g, data, size);
    esp_grammar_release(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *schema = NULL;

    if (size > 1 << 14 || esp_json_parse(&schema, (const char *)data, size, "fuzz", 0, NULL) != ESP_OK)
        return 0;
    use(schema, data, size);
    json_decref(schema);
    return 0;
}
