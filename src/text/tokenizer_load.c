/*
 * tokenizer.json to an opened tokenizer. A setting is either understood exactly or refused by its name and
 * value; a tokenizer that is nearly right gives text that is nearly right, and nobody notices. Options that
 * cannot have an effect with a complete byte-level vocabulary (unk_token, fuse_unk, byte_fallback) are
 * accepted.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"

#include "text/tokenizer_parts.h"
#include "text/tokenizer_scan.h"

/* The "type" of a part such as the decoder; *type is NULL when the part is absent or null. */
static esp_status type_of(const json_t *part, const char *what, const char **type, esp_error *err)
{
    *type = NULL;
    if (!part || json_is_null(part))
        return ESP_OK;
    *type = json_string_value(json_object_get(part, "type"));
    if (!*type)
        return esp_fail(err, ESP_EFORMAT, "%s: an object with a \"type\" string expected", what);
    return ESP_OK;
}

/* The parts of a Sequence in order, or the part alone; *n parts, member i by part_at. */
static esp_status parts_of(const json_t *part, const char *what, const char *list, size_t *n, esp_error *err)
{
    const json_t *a;
    const char *type;

    *n = 0;
    ESP_TRY(type_of(part, what, &type, err));
    if (!type)
        return ESP_OK;
    *n = 1;
    if (strcmp(type, "Sequence") != 0)
        return ESP_OK;
    a = json_object_get(part, list);
    if (!json_is_array(a))
        return esp_fail(err, ESP_EFORMAT, "%s: Sequence without an array \"%s\"", what, list);
    *n = json_array_size(a);
    return ESP_OK;
}

static const json_t *part_at(const json_t *part, const char *list, size_t i)
{
    const json_t *a = json_object_get(part, list);

    return json_is_array(a) && strcmp(json_string_value(json_object_get(part, "type")), "Sequence") == 0
               ? json_array_get(a, i)
               : part;
}

/* A boolean member; absent or null means the default. */
static esp_status get_bool(const json_t *o, const char *key, bool fallback, bool *out, esp_error *err)
{
    const json_t *v = json_object_get(o, key);

    *out = fallback;
    if (!v || json_is_null(v))
        return ESP_OK;
    if (!json_is_boolean(v))
        return esp_fail(err, ESP_EFORMAT, "\"%s\": true or false expected", key);
    *out = json_is_true(v);
    return ESP_OK;
}

/* ---- normalizer ---- */

/* Normal forms one after the other are one: composed as the last one says, compatible if any is. */
static esp_status add_form(enum esp_tok_form *form, const char *type, esp_error *err)
{
    static const struct {
        const char *name;
        enum esp_tok_form form;
    } known[] = {{"NFC", ESP_TOK_NFC}, {"NFD", ESP_TOK_NFD}, {"NFKC", ESP_TOK_NFKC}, {"NFKD", ESP_TOK_NFKD}};
    const bool compat = *form == ESP_TOK_NFKC || *form == ESP_TOK_NFKD;

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(type, known[i].name) != 0)
            continue;
        *form = known[i].form;
        if (compat && *form == ESP_TOK_NFC)
            *form = ESP_TOK_NFKC;
        if (compat && *form == ESP_TOK_NFD)
            *form = ESP_TOK_NFKD;
        return ESP_OK;
    }
    return esp_fail(err, ESP_EUNSUPPORTED,
                    "normalizer \"%s\" is not supported (NFC, NFD, NFKC, NFKD, or none)", type);
}

static esp_status load_normalizer(struct esp_tokenizer *t, const json_t *part, esp_error *err)
{
    const char *type;
    size_t n;

    ESP_TRY(parts_of(part, "normalizer", "normalizers", &n, err));
    for (size_t i = 0; i < n; i++) {
        ESP_TRY(type_of(part_at(part, "normalizers", i), "normalizer", &type, err));
        if (!type)
            return esp_fail(err, ESP_EFORMAT, "normalizer: entry %zu of the Sequence is null", i);
        ESP_TRY(add_form(&t->form, type, err));
    }
    return ESP_OK;
}

/* ---- pre-tokenizer ---- */

static esp_status load_split(struct esp_tokenizer *t, const json_t *part, esp_error *err)
{
    const json_t *pattern = json_object_get(json_object_get(part, "pattern"), "Regex");
    const char *behavior = json_string_value(json_object_get(part, "behavior"));

    if (!json_is_string(pattern))
        return esp_fail(err, ESP_EUNSUPPORTED, "pre_tokenizer Split: pattern must be {\"Regex\": \"...\"}");
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "pre_tokenizer Split: behavior \"%s\" is not supported (Isolated)",
                        behavior ? behavior : "");
    return esp_pretok_add(&t->pretok, json_string_value(pattern), json_string_length(pattern),
                          err); /* invert: no effect */
}

static esp_status load_byte_level(struct esp_tokenizer *t, const json_t *part, esp_error *err)
{
    bool prefix, regex;

    ESP_TRY(get_bool(part, "add_prefix_space", true, &prefix, err));
    ESP_TRY(get_bool(part, "use_regex", true, &regex, err));
    if (prefix)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "pre_tokenizer ByteLevel: add_prefix_space true is not supported");
    if (regex)
        return esp_pretok_add(&t->pretok, esp_pretok_gpt2_pattern, strlen(esp_pretok_gpt2_pattern), err);
    return ESP_OK;
}

static esp_status load_pre_tokenizer(struct esp_tokenizer *t, const json_t *part, esp_error *err)
{
    bool bytes = false;
    const char *type;
    size_t n;

    ESP_TRY(parts_of(part, "pre_tokenizer", "pretokenizers", &n, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *p = part_at(part, "pretokenizers", i);

        ESP_TRY(type_of(p, "pre_tokenizer", &type, err));
        if (bytes)
            return esp_fail(err, ESP_EUNSUPPORTED,
                            "pre_tokenizer: ByteLevel must be the last of the Sequence");
        if (type && strcmp(type, "Split") == 0) {
            ESP_TRY(load_split(t, p, err));
        } else if (type && strcmp(type, "ByteLevel") == 0) {
            ESP_TRY(load_byte_level(t, p, err));
            bytes = true;
        } else {
            return esp_fail(err, ESP_EUNSUPPORTED,
                            "pre_tokenizer \"%s\" is not supported (Split, ByteLevel, Sequence)",
                            type ? type : "null");
        }
    }
    if (!bytes)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "pre_tokenizer: ByteLevel is missing; only byte-level BPE is supported");
    return ESP_OK;
}

/* Decoder and post-processor: ByteLevel alone, which for a post-processor changes no ids. */
static esp_status check_byte_level(const json_t *part, const char *what, const char *list, bool required,
                                   esp_error *err)
{
    const char *type;
    size_t n;

    ESP_TRY(parts_of(part, what, list, &n, err));
    for (size_t i = 0; i < n; i++) {
        ESP_TRY(type_of(part_at(part, list, i), what, &type, err));
        if (!type || strcmp(type, "ByteLevel") != 0)
            return esp_fail(err, ESP_EUNSUPPORTED, "%s \"%s\" is not supported (ByteLevel%s)", what,
                            type ? type : "null", required ? "" : ", or none");
    }
    if (required && n != 1)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: one ByteLevel expected, %zu parts found", what, n);
    return ESP_OK;
}

/* ---- model ---- */

static esp_status check_empty(const json_t *model, const char *key, esp_error *err)
{
    const json_t *v = json_object_get(model, key);

    if (!v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0))
        return ESP_OK;
    return esp_fail(err, ESP_EUNSUPPORTED, "model: \"%s\" is not supported (null or \"\")", key);
}

static esp_status load_model(struct esp_tokenizer *t, const json_t *model, const struct esp_tok_scan *scan,
                             esp_error *err)
{
    const json_t *type = json_object_get(model, "type"), *dropout = json_object_get(model, "dropout");

    if (!json_is_object(model))
        return esp_fail(err, ESP_EFORMAT, "\"model\" is missing or no object");
    if (type && !json_is_null(type) && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return esp_fail(err, ESP_EUNSUPPORTED, "model type \"%s\" is not supported (BPE)",
                        json_is_string(type) ? json_string_value(type) : "?");
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0.0))
        return esp_fail(err, ESP_EUNSUPPORTED, "model: dropout is not supported (null or 0)");
    ESP_TRY(check_empty(model, "continuing_subword_prefix", err));
    ESP_TRY(check_empty(model, "end_of_word_suffix", err));
    ESP_TRY(get_bool(model, "ignore_merges", false, &t->bpe.ignore_merges, err));
    ESP_TRY(esp_tok_scan_vocab(scan, &t->bpe, err));
    return esp_tok_scan_merges(scan, &t->bpe, err);
}

/* ---- added tokens ---- */

static esp_status added_flags(const json_t *o, unsigned *flags, esp_error *err)
{
    static const struct {
        const char *key;
        unsigned flag;
    } known[] = {{"special", ESP_ADDED_SPECIAL},
                 {"normalized", ESP_ADDED_NORMALIZED},
                 {"lstrip", ESP_ADDED_LSTRIP},
                 {"rstrip", ESP_ADDED_RSTRIP},
                 {"single_word", ESP_ADDED_SINGLE_WORD}};
    bool special, on;

    *flags = 0;
    ESP_TRY(get_bool(o, "special", false, &special, err));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const bool fallback =
            known[i].flag == ESP_ADDED_NORMALIZED && !special; /* as the format's own reader has it */

        ESP_TRY(get_bool(o, known[i].key, fallback, &on, err));
        if (on)
            *flags |= known[i].flag;
    }
    return ESP_OK;
}

/* The vocabulary may hold an added token too; then both must agree on its id. */
static esp_status check_vocabulary(const struct esp_tokenizer *t, uint32_t id, const char *content,
                                   size_t len, esp_error *err)
{
    const bool used = id < t->bpe.n_ids && (t->bpe.flags[id] & ESP_BPE_USED);
    uint32_t other;
    const bool known = esp_bpe_find_written(&t->bpe, content, len, &other);

    if (known && other != id)
        return esp_fail(err, ESP_EFORMAT,
                        "duplicate token: \"%.64s\" has id %u as an added token and %u in the vocabulary",
                        content, id, other);
    if (used && !known)
        return esp_fail(err, ESP_EFORMAT,
                        "duplicate id: %u stands for the added token \"%.64s\" and for another token", id,
                        content);
    return ESP_OK;
}

static esp_status add_token(struct esp_tokenizer *t, const json_t *o, uint64_t id, esp_error *err)
{
    const json_t *content = json_object_get(o, "content");
    unsigned flags;

    if (!json_is_string(content))
        return esp_fail(err, ESP_EFORMAT, "added token of id %llu: \"content\" is missing or no string",
                        (unsigned long long)id);
    if (id >= ESP_LIMIT_VOCAB)
        return esp_fail(err, ESP_EFORMAT, "added token \"%.64s\" has id %llu, ids below %u are accepted",
                        json_string_value(content), (unsigned long long)id, ESP_LIMIT_VOCAB);
    ESP_TRY(added_flags(o, &flags, err));
    ESP_TRY(check_vocabulary(t, (uint32_t)id, json_string_value(content), json_string_length(content), err));
    ESP_TRY(esp_added_add(&t->added, (uint32_t)id, json_string_value(content), json_string_length(content),
                          flags, err));
    if (id >= t->n_ids)
        t->n_ids = (uint32_t)id + 1;
    return ESP_OK;
}

static esp_status load_added(struct esp_tokenizer *t, const json_t *list, esp_error *err)
{
    if (!list || json_is_null(list))
        return ESP_OK;
    if (!json_is_array(list))
        return esp_fail(err, ESP_EFORMAT, "\"added_tokens\": an array expected");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i), *id = json_object_get(o, "id");

        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return esp_fail(err, ESP_EFORMAT, "\"added_tokens\", entry %zu: a whole number \"id\" expected",
                            i);
        ESP_TRY(add_token(t, o, (uint64_t)json_integer_value(id), err));
    }
    return ESP_OK;
}

/* added_tokens_decoder: {"ID": {"content": ..., flags}, ...}. */
static esp_status load_decoder_tokens(struct esp_tokenizer *t, const json_t *root, esp_error *err)
{
    json_t *list = json_object_get(root, "added_tokens_decoder");

    if (!json_is_object(root))
        return esp_fail(err, ESP_EFORMAT, "an object expected");
    if (!list || json_is_null(list))
        return ESP_OK;
    if (!json_is_object(list))
        return esp_fail(err, ESP_EFORMAT, "\"added_tokens_decoder\": an object expected");
    for (void *it = json_object_iter(list); it; it = json_object_iter_next(list, it)) {
        const char *key = json_object_iter_key(it);
        uint64_t id = 0;
        size_t n = 0;

        for (; key[n] >= '0' && key[n] <= '9' && n < 18; n++)
            id = id * 10 + (uint64_t)(key[n] - '0');
        if (n == 0 || key[n] != '\0')
            return esp_fail(err, ESP_EFORMAT, "\"added_tokens_decoder\": key \"%.64s\" is no token id", key);
        ESP_TRY(add_token(t, json_object_iter_value(it), id, err));
    }
    return ESP_OK;
}

/* ---- the file ---- */

static esp_status load_parts(struct esp_tokenizer *t, const json_t *root, const struct esp_tok_scan *scan,
                             esp_error *err)
{
    if (!json_is_object(root))
        return esp_fail(err, ESP_EFORMAT, "an object expected");
    ESP_TRY(load_normalizer(t, json_object_get(root, "normalizer"), err));
    ESP_TRY(load_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), err));
    ESP_TRY(check_byte_level(json_object_get(root, "post_processor"), "post_processor", "processors", false,
                             err));
    ESP_TRY(check_byte_level(json_object_get(root, "decoder"), "decoder", "decoders", true, err));
    ESP_TRY(load_model(t, json_object_get(root, "model"), scan, err));
    t->n_ids = t->bpe.n_ids;
    return load_added(t, json_object_get(root, "added_tokens"), err);
}

static esp_status load_json(struct esp_tokenizer *t, const char *json, size_t len, const char *name,
                            esp_error *err)
{
    struct esp_tok_scan scan;
    struct esp_strbuf rest;
    json_t *root = NULL;
    esp_status s;

    esp_strbuf_init(&rest, ESP_LIMIT_JSON_BYTES);
    s = esp_tok_scan_split(&scan, json, len, &rest, err);
    if (s == ESP_OK)
        s = esp_json_parse(&root, esp_strbuf_str(&rest), rest.len, name, ESP_JSON_NO_DUPLICATES, err);
    esp_strbuf_free(&rest);
    if (s != ESP_OK)
        return s;
    s = load_parts(t, root, &scan, err);
    json_decref(root);
    return s == ESP_OK ? s : esp_fail_in(err, s, "%s", name);
}

static esp_status load_config(struct esp_tokenizer *t, const char *json, size_t len, const char *beside,
                              esp_error *err)
{
    const char *slash = strrchr(beside, '/');
    char name[ESP_ERROR_MESSAGE_BYTES / 2];
    json_t *root;
    esp_status s;

    snprintf(name, sizeof name, "%.*stokenizer_config.json", slash ? (int)(slash - beside) + 1 : 0, beside);
    ESP_TRY(esp_json_parse(&root, json, len, name, ESP_JSON_NO_DUPLICATES, err));
    s = load_decoder_tokens(t, root, err);
    json_decref(root);
    return s == ESP_OK ? s : esp_fail_in(err, s, "%s", name);
}

esp_status esp_tokenizer_parse(struct esp_tokenizer **out, const char *json, size_t len, const char *config,
                               size_t config_len, const char *name, esp_error *err)
{
    struct esp_tokenizer *t;
    esp_status s;

    if (len > ESP_LIMIT_JSON_BYTES)
        return esp_fail(err, ESP_EFORMAT, "%s: %zu bytes, at most %u are accepted", name, len,
                        ESP_LIMIT_JSON_BYTES);
    t = esp_alloc(sizeof *t);
    if (!t)
        return esp_fail(err, ESP_ENOMEM, "%s: no memory for a tokenizer", name);
    s = load_json(t, json, len, name, err);
    if (s == ESP_OK && config)
        s = load_config(t, config, config_len, name, err);
    if (s == ESP_OK)
        s = esp_added_finish(&t->added, t->form, err);
    if (s != ESP_OK) {
        esp_tokenizer_close(t);
        return s;
    }
    *out = t;
    return ESP_OK;
}

/* Read the tokenizer_config.json beside file if there is one; *text stays NULL if not. */
static esp_status read_config(char **text, size_t *len, const char *file, esp_error *err)
{
    const char *slash = strrchr(file, '/');
    char *dir = slash ? esp_strndup(file, (size_t)(slash - file) + 1) : esp_strndup("", 0);
    char *path = dir ? esp_path_join(dir, "tokenizer_config.json") : NULL;
    esp_status s;

    esp_free(dir);
    if (!path)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", file);
    s = esp_read_file(text, len, path, ESP_LIMIT_CONFIG_BYTES, err);
    esp_free(path);
    return s == ESP_ENOTFOUND ? ESP_OK : s;
}

static esp_status open_file(struct esp_tokenizer **out, const char *file, esp_error *err)
{
    struct esp_map map;
    char *config = NULL;
    size_t config_len = 0;
    esp_status s;

    ESP_TRY(esp_map_open(&map, file, err));
    s = read_config(&config, &config_len, file, err);
    if (s == ESP_OK)
        s = esp_tokenizer_parse(out, map.data ? (const char *)map.data : "", map.size, config, config_len,
                                file, err);
    esp_free(config);
    esp_map_close(&map);
    return s;
}

esp_status esp_tokenizer_open(struct esp_tokenizer **out, const char *path, esp_error *err)
{
    struct stat st;
    char *file;
    esp_status s;

    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return open_file(out, path, err);
    file = esp_path_join(path, "tokenizer.json");
    if (!file)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", path);
    s = open_file(out, file, err);
    esp_free(file);
    return s;
}
