/*
 * Quantization settings. The config's table is checked once when read, so that asking for a module cannot
 * fail; the tensors' own evidence is judged when a module is loaded. Source: doc/formats/affine.md, section
 * on config.json.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/config_quant.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "io/config_value.h"

static const struct {
    const char *name;
    struct esp_quant dflt; /* what a bare mode means */
} modes[] = {
    [ESP_QUANT_AFFINE] = {"affine", {.mode = ESP_QUANT_AFFINE, .bits = 4, .group = 64}},
    [ESP_QUANT_MXFP4] = {"mxfp4", {.mode = ESP_QUANT_MXFP4, .bits = 4, .group = 32}},
    [ESP_QUANT_NVFP4] = {"nvfp4", {.mode = ESP_QUANT_NVFP4, .bits = 4, .group = 16}},
    [ESP_QUANT_MXFP8] = {"mxfp8", {.mode = ESP_QUANT_MXFP8, .bits = 8, .group = 32}},
    [ESP_QUANT_TRELLIS] = {"trellis", {.mode = ESP_QUANT_TRELLIS, .bits = 3, .group = 256}},
};

enum { N_MODES = sizeof modes / sizeof modes[0], MAX_PATH_BYTES = 512 };

const char *esp_quant_mode_name(enum esp_quant_mode m)
{
    return (unsigned)m < N_MODES ? modes[m].name : "?";
}

/* ---- the config's table ---- */

/* The trellis object of a module: L, code and axis. Codes are a formula each, so another one has other
 * weights. */
static esp_status read_trellis(struct esp_quant *q, const struct esp_cfg *c, esp_error *err)
{
    const int64_t state_range[2] = {1, 64}, axis_range[2] = {0, 1};
    int64_t state_bits = 0, axis = 1;
    struct esp_cfg sub;
    const char *code;
    bool found;

    ESP_TRY(esp_cfg_object(&sub, c, "trellis", c->where, err));
    if (!sub.object)
        return ESP_OK;
    ESP_TRY(esp_cfg_string(&code, &sub, "code", err));
    if (code && strcmp(code, "1mad") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: %strellis code '%.40s' is not supported (supported: 1mad)", c->file, c->where,
                        code);
    ESP_TRY(esp_cfg_int(&state_bits, &found, &sub, "L", state_range, err));
    if (!found)
        return esp_fail(err, ESP_EFORMAT, "%s: %strellis has no L (state bits, 12)", c->file, c->where);
    ESP_TRY(esp_cfg_int(&axis, &found, &sub, "axis", axis_range, err));
    q->state_bits = (uint32_t)state_bits;
    q->axis = (uint8_t)axis;
    return ESP_OK;
}

/* bits, group_size, mode and trellis of one object over base. Legality of the combination is the tensors'
 * business. */
static esp_status read_settings(struct esp_quant *out, const struct esp_quant *base, const struct esp_cfg *c,
                                esp_error *err)
{
    const int64_t bits_range[2] = {1, 64}, group_range[2] = {1, 65536};
    struct esp_quant q = *base;
    const char *mode;
    int64_t v = 0;
    bool found;

    ESP_TRY(esp_cfg_string(&mode, c, "mode", err));
    if (mode) {
        size_t m = 0;

        while (m < N_MODES && strcmp(mode, modes[m].name) != 0)
            m++;
        if (m == N_MODES)
            return esp_fail(
                err, ESP_EUNSUPPORTED,
                "%s: %smode '%.40s' is not supported (supported: affine, mxfp4, nvfp4, mxfp8, trellis)",
                c->file, c->where, mode);
        if ((enum esp_quant_mode)m != q.mode) /* another mode: the global bits and group mean nothing in it */
            q = modes[m].dflt;
    }
    ESP_TRY(esp_cfg_int(&v, &found, c, "bits", bits_range, err));
    q.bits = found ? (uint32_t)v : q.bits;
    ESP_TRY(esp_cfg_int(&v, &found, c, "group_size", group_range, err));
    q.group = found ? (uint32_t)v : q.group;
    if (q.mode == ESP_QUANT_TRELLIS)
        ESP_TRY(read_trellis(&q, c, err));
    *out = q;
    return ESP_OK;
}

static bool reserved(const char *key)
{
    return strcmp(key, "bits") == 0 || strcmp(key, "group_size") == 0 || strcmp(key, "mode") == 0 ||
           strcmp(key, "trellis") == 0;
}

static esp_status check_overrides(const struct esp_config_quant_table *t, const struct esp_cfg *c,
                                  esp_error *err)
{
    void *it = json_object_iter(t->object);

    for (; it; it = json_object_iter_next(t->object, it)) {
        const json_t *v = json_object_iter_value(it);
        char where[200];
        struct esp_cfg one = *c;
        struct esp_quant q;

        if (reserved(json_object_iter_key(it)) || !json_is_object(v))
            continue; /* booleans say yes or no; other values are notes of the writer */
        snprintf(where, sizeof where, "%s%.120s.", c->where, json_object_iter_key(it));
        one.object = v;
        one.where = where;
        ESP_TRY(read_settings(&q, &t->global, &one, err));
    }
    return ESP_OK;
}

/* A scheme of another tool, named by quant_method. */
static esp_status read_foreign(struct esp_config_quant_table *out, const struct esp_cfg *c,
                               const char *method, esp_error *err)
{
    if (strcmp(method, "mxfp4") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s: %squant_method '%.60s' is not supported (supported: MLX affine, mxfp4, nvfp4, "
                        "mxfp8, trellis)",
                        c->file, c->where, method);
    out->global = modes[ESP_QUANT_MXFP4].dflt;
    return ESP_OK;
}

static esp_status read_table(struct esp_config_quant_table *out, const struct esp_cfg *c, esp_error *err)
{
    struct esp_config_quant_table t = {.present = true, .global = modes[ESP_QUANT_AFFINE].dflt};
    const char *method;
    bool activations = false, found;

    t.object = (json_t *)(uintptr_t)c->object; /* only counted, never written */
    ESP_TRY(esp_cfg_string(&method, c, "quant_method", err));
    if (json_is_boolean(esp_cfg_get(c, "quantize_activations")))
        ESP_TRY(esp_cfg_bool(&activations, &found, c, "quantize_activations", err));
    if (activations)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: %squantize_activations is not supported", c->file,
                        c->where);
    if (method)
        ESP_TRY(read_foreign(&t, c, method, err));
    ESP_TRY(read_settings(&t.global, &t.global, c, err));
    ESP_TRY(check_overrides(&t, c, err));
    json_incref(t.object);
    *out = t;
    return ESP_OK;
}

esp_status esp_config_quant_read(struct esp_config_quant_table *out, const json_t *top, const json_t *text,
                                 const char *name, esp_error *err)
{
    static const char *const keys[2][2] = {
        {"quantization", "quantization."},
        {"quantization_config", "quantization_config."},
    };
    const json_t *const places[2] = {top, text};

    memset(out, 0, sizeof *out);
    for (size_t p = 0; p < 2; p++) {
        const struct esp_cfg c = {.object = places[p], .file = name, .where = p ? "text_config." : ""};

        for (size_t k = 0; k < 2; k++) {
            struct esp_cfg sub;

            ESP_TRY(esp_cfg_object(&sub, &c, keys[k][0], keys[k][1], err));
            if (sub.object && json_object_size(sub.object) > 0)
                return read_table(out, &sub, err);
        }
    }
    return ESP_OK;
}

void esp_config_quant_free(struct esp_config_quant_table *t)
{
    json_decref(t->object);
    memset(t, 0, sizeof *t);
}

/* ---- asking for a module ---- */

static const char *const prefixes[] = {"language_model.model.", "model.language_model.", "language_model.",
                                       "model.", ""};
enum { N_PREFIXES = sizeof prefixes / sizeof prefixes[0] };

/* The module's value under any of the spellings tools use, or NULL. */
static const json_t *find_override(const json_t *object, const char *module)
{
    const json_t *v = json_object_get(object, module);
    const char *core = module;

    for (size_t i = 0; i < N_PREFIXES && core == module; i++) {
        const size_t n = strlen(prefixes[i]);

        if (strncmp(module, prefixes[i], n) == 0)
            core = module + n;
    }
    for (size_t i = 0; i < N_PREFIXES && !v; i++) {
        char path[MAX_PATH_BYTES];
        const int n = snprintf(path, sizeof path, "%s%s", prefixes[i], core);

        if (n > 0 && n < MAX_PATH_BYTES && !reserved(path))
            v = json_object_get(object, path);
    }
    return v;
}

enum esp_quant_said esp_config_quant(const struct esp_config *c, const char *module, struct esp_quant *q)
{
    const struct esp_config_quant_table *t = &c->quant;
    const struct esp_quant base = t->present ? t->global : modes[ESP_QUANT_AFFINE].dflt;
    const json_t *v = t->present && !reserved(module) ? find_override(t->object, module) : NULL;
    const struct esp_cfg one = {.object = v, .file = "", .where = ""};

    *q = base;
    if (json_is_false(v))
        return ESP_QUANT_NO;
    if (json_is_true(v))
        return ESP_QUANT_YES;
    if (!json_is_object(v) ||
        read_settings(q, &base, &one, NULL) != ESP_OK) /* cannot fail: checked when read */
        return ESP_QUANT_UNSAID;
    return ESP_QUANT_YES;
}

/* ---- what tensors prove ---- */

struct evidence {
    const struct esp_st_tensor *weight, *scales, *biases;
    uint64_t n_in;
};

static esp_status illegal(const struct esp_st_tensor *t, const struct evidence *e, const char *why,
                          esp_error *err)
{
    char shape[128];

    return esp_fail(err, ESP_EFORMAT, "%s: quantized tensor '%.160s' %s of %s (input width %" PRIu64 "): %s",
                    esp_st_name(t->file), t->name, esp_st_shape_text(t, shape, sizeof shape),
                    esp_dtype_name(t->dtype), e->n_in, why);
}

static bool same_leading(const struct esp_st_tensor *a, const struct esp_st_tensor *b)
{
    if (a->n_dim != b->n_dim)
        return false;
    for (uint32_t i = 0; i + 1 < a->n_dim; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

static bool same_shape(const struct esp_st_tensor *a, const struct esp_st_tensor *b)
{
    return same_leading(a, b) && (a->n_dim == 0 || a->shape[a->n_dim - 1] == b->shape[b->n_dim - 1]);
}

static bool legal_affine(uint64_t bits, uint64_t group)
{
    return bits >= 2 && bits <= 8 && bits != 7 && (group == 32 || group == 64 || group == 128);
}

static esp_status check_affine(const struct evidence *e, uint64_t bits, uint64_t group, esp_error *err)
{
    if (!esp_dtype_is_weight_float(e->scales->dtype))
        return illegal(e->scales, e, "scales must be BF16, F16, F32 or U8", err);
    if (!e->biases)
        return illegal(e->scales, e, "float scales need a biases tensor beside them, it is missing", err);
    if (e->biases->dtype != e->scales->dtype || !same_shape(e->biases, e->scales))
        return illegal(e->biases, e, "biases must have the shape and dtype of scales", err);
    if (!legal_affine(bits, group))
        return illegal(e->weight, e, "the shapes give no legal bits (2 3 4 5 6 8) and group (32 64 128)",
                       err);
    return ESP_OK;
}

static esp_status derive_float_mode(struct esp_quant *q, const struct evidence *e, uint64_t bits,
                                    uint64_t group, esp_error *err)
{
    if (e->biases)
        return illegal(e->biases, e, "U8 scales take no biases", err);
    for (size_t m = ESP_QUANT_MXFP4; m <= ESP_QUANT_MXFP8; m++) {
        if (modes[m].dflt.bits == bits && modes[m].dflt.group == group) {
            *q = modes[m].dflt;
            return ESP_OK;
        }
    }
    return illegal(e->weight, e,
                   "U8 scales: bits and group fit none of mxfp4 (4, 32), nvfp4 (4, 16), mxfp8 (8, 32)", err);
}

static esp_status derive_trellis(struct esp_quant *q, const struct evidence *e, const struct esp_quant *said,
                                 esp_error *err)
{
    const struct esp_st_tensor *w = e->weight, *s = e->scales;

    if (said->mode != ESP_QUANT_TRELLIS)
        return illegal(s, e, "one scale a row needs mode trellis in the config", err);
    if (s->dtype != ESP_DTYPE_F16 || s->n_dim != 1 || e->biases)
        return illegal(s, e, "trellis scales are one F16 a row, without biases", err);
    if (w->n_dim < 2 || w->n_dim > 3 || s->shape[0] != w->shape[w->n_dim == 2 ? 0 : 1])
        return illegal(w, e, "trellis codes are [rows, words] or [cols/512, rows, 48] with one scale a row",
                       err);
    if (said->bits < 1 || said->bits > 8)
        return illegal(w, e, "trellis takes 1 to 8 bits", err);
    *q = *said;
    return ESP_OK;
}

static esp_status derive(struct esp_quant *q, const struct evidence *e, const struct esp_quant *said,
                         esp_error *err)
{
    const struct esp_st_tensor *w = e->weight, *s = e->scales;
    size_t coded;
    uint64_t bits, group;

    if (w->dtype != ESP_DTYPE_U32 || w->n_dim < 2)
        return illegal(w, e, "codes must be U32 with at least 2 dimensions", err);
    if (s->n_dim == 1 || said->mode == ESP_QUANT_TRELLIS)
        return derive_trellis(q, e, said, err);
    if (!same_leading(w, s))
        return illegal(s, e, "its leading dimensions differ from the weight's", err);
    if (e->n_in == 0 || !esp_mul_size(&coded, (size_t)w->shape[w->n_dim - 1], 32) || coded % e->n_in != 0)
        return illegal(w, e, "its words do not hold a whole number of bits for every input", err);
    if (s->shape[s->n_dim - 1] == 0 || e->n_in % s->shape[s->n_dim - 1] != 0)
        return illegal(s, e, "the input width is no multiple of the number of groups", err);
    bits = coded / e->n_in;
    group = e->n_in / s->shape[s->n_dim - 1];
    if (s->dtype == ESP_DTYPE_U8)
        return derive_float_mode(q, e, bits, group, err);
    ESP_TRY(check_affine(e, bits, group, err));
    q->mode = ESP_QUANT_AFFINE;
    q->bits = (uint32_t)bits;
    q->group = (uint32_t)group;
    return ESP_OK;
}

esp_status esp_quant_from_tensors(struct esp_quant *out, const struct esp_config *c, const char *module,
                                  const struct esp_st_tensor *const wsb[3], uint64_t n_in,
                                  struct esp_warnings *w, esp_error *err)
{
    const struct evidence e = {.weight = wsb[0], .scales = wsb[1], .biases = wsb[2], .n_in = n_in};
    struct esp_quant said, q;
    enum esp_quant_said verdict;

    for (size_t i = 0; i < 3; i++)
        if (wsb[i])
            ESP_TRY(esp_st_check(wsb[i], err));
    if (!e.weight || !e.scales)
        return esp_fail(err, ESP_EFORMAT, "quantized module '%.160s' has no %s tensor", module,
                        e.weight ? "scales" : "weight");
    verdict = esp_config_quant(c, module, &said);
    ESP_TRY(derive(&q, &e, &said, err));
    if (verdict == ESP_QUANT_NO)
        esp_warn(w, "module '%.160s': the config says not quantized, its tensors are (%s, %u bits, group %u)",
                 module, esp_quant_mode_name(q.mode), q.bits, q.group);
    else if (c->quant.present && (q.mode != said.mode || q.bits != said.bits || q.group != said.group))
        esp_warn(w,
                 "module '%.160s': the config says %s, %u bits, group %u; its tensors have %s, %u bits, "
                 "group %u, which "
                 "is used",
                 module, esp_quant_mode_name(said.mode), said.bits, said.group, esp_quant_mode_name(q.mode),
                 q.bits, q.group);
    *out = q;
    return ESP_OK;
}
