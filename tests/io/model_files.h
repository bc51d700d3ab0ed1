/*
 * Small model directories for tests: a few tensors under chosen names, and the demo's config with edits.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_IO_MODEL_FILES_H
#define ESP_TESTS_IO_MODEL_FILES_H

#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors_write.h"

/* A BF16 tensor whose elements all have one value; dims end at the first 0. */
struct mf_tensor {
    const char *name;
    uint64_t dims[4];
    uint16_t value; /* 0x3f80 is 1.0 */
};

/* Write dir/file with n tensors; meta is a key and a value, or NULLs. */
static inline void mf_write(const char *dir, const char *file, const struct mf_tensor *t, size_t n,
                            const char *key, const char *value)
{
    struct esp_st_writer *w = NULL;
    char path[512];
    esp_error err;

    snprintf(path, sizeof path, "%s/%s", dir, file);
    test_ok(esp_st_writer_create(&w, path, &err), &err);
    if (key)
        test_ok(esp_st_writer_metadata(w, key, value, &err), &err);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++) {
            size_t count = 1;
            uint32_t k = 0;

            for (; k < 4 && t[i].dims[k]; k++)
                count *= t[i].dims[k];
            if (pass == 0)
                test_ok(esp_st_writer_declare(w, t[i].name, ESP_DTYPE_BF16, k, t[i].dims, &err), &err);
            for (size_t e = 0; pass == 1 && e < count; e++)
                test_ok(esp_st_writer_data(w, &t[i].value, 2, &err), &err);
        }
    }
    test_ok(esp_st_writer_finish(w, &err), &err);
    esp_st_writer_destroy(w);
}

/* The demo's config as JSON to edit. */
static inline json_t *mf_config(void)
{
    return test_json("models/demo/config.json");
}

/* Set a dotted path ("text_config.rope_parameters.factor") to JSON text; NULL deletes. */
static inline void mf_set(json_t *root, const char *path, const char *json)
{
    char part[128];
    const char *dot = strchr(path, '.');

    for (; dot; path = dot + 1, dot = strchr(path, '.')) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        root = json_object_get(root, part);
        assert_non_null(root);
    }
    if (!json) {
        json_object_del(root, path);
    } else {
        json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);

        assert_non_null(v);
        assert_int_equal(json_object_set_new(root, path, v), 0);
    }
}

static inline void mf_write_json(const char *dir, const char *file, const json_t *j)
{
    char *text = json_dumps(j, JSON_INDENT(1));

    assert_non_null(text);
    test_write(dir, file, text, strlen(text));
    free(text);
}

static inline void mf_write_text(const char *dir, const char *file, const char *text)
{
    test_write(dir, file, text, strlen(text));
}

#endif
