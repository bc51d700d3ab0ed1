/*
 * Adapter folders. Reading order: config first, so that an unsupported method is named before any tensor is
 * looked at; then tensors, all of whose faults are listed together.
 *
 * SPDX-License-Identifier: MIT
 */
#include "io/adapter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/strbuf.h"

enum { ARENA_BYTES = 256 << 20, MAX_MODULE = 256, FAULT_BYTES = 480 };

static const char *const targets[] = {
    "self_attn.q_proj",        "self_attn.k_proj",      "self_attn.v_proj",      "self_attn.o_proj",
    "linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a",
    "linear_attn.out_proj",    "mlp.gate_proj",         "mlp.up_proj",           "mlp.down_proj",
};

/* ---- config ---- */

static bool is_set(const json_t *v)
{
    return v && !json_is_null(v) && !json_is_false(v) && !(json_is_array(v) && json_array_size(v) == 0) &&
           !(json_is_object(v) && json_object_size(v) == 0);
}

static esp_status refuse_variants(const char *path, const json_t *c, esp_error *err)
{
    static const char *const flags[] = {
        "use_dora",          "lora_bias",
        "modules_to_save",   "fan_in_fan_out",
        "layer_replication", "trainable_token_indices",
        "target_parameters", "use_qalora",
        "use_bdlora",        "alora_invocation_tokens",
        "kasa_config",       "velora_config",
        "monteclora_config", "arrow_config",
    };
    const char *type = json_string_value(json_object_get(c, "peft_type"));
    const char *fine = json_string_value(json_object_get(c, "fine_tune_type"));
    const char *bias = json_string_value(json_object_get(c, "bias"));

    if (type && strcmp(type, "LORA") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: peft_type \"%s\"; LORA is supported", path, type);
    if (fine && strcmp(fine, "lora") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: fine_tune_type \"%s\"%s; lora is supported", path, fine,
                        strcmp(fine, "dora") == 0 ? " (DoRA) is not supported" : "");
    if (bias && strcmp(bias, "none") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED, "%s: bias \"%s\"; only \"none\" is supported", path, bias);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (is_set(json_object_get(c, flags[i])))
            return esp_fail(err, ESP_EUNSUPPORTED, "%s: %s is set%s; plain LoRA is supported", path, flags[i],
                            strcmp(flags[i], "use_dora") == 0 ? ": DoRA is not supported" : "");
    return ESP_OK;
}

static esp_status finite_number(const char *path, const char *key, const json_t *v, double *out,
                                esp_error *err)
{
    *out = json_number_value(v);
    if (!json_is_number(v) || !isfinite(*out))
        return esp_fail(err, ESP_EFORMAT, "%s: %s must be a finite number", path, key);
    return ESP_OK;
}

static esp_status read_scale(struct esp_adapter_file *a, const char *path, esp_error *err)
{
    const json_t *mlx = json_object_get(a->config, "lora_parameters");
    const json_t *alpha = json_object_get(a->config, "lora_alpha");

    if (json_is_object(mlx)) {
        const json_t *s = json_object_get(mlx, "scale");

        a->scale = (struct esp_adapter_scale){
            .mlx = true, .value = 20.0, .sqrt_rank = is_set(json_object_get(mlx, "rs_lora"))};
        return s ? finite_number(path, "lora_parameters.scale", s, &a->scale.value, err) : ESP_OK;
    }
    if (!alpha)
        return esp_fail(err, ESP_EFORMAT, "%s: lora_alpha is missing; without it the scale is unknown", path);
    a->scale.sqrt_rank = is_set(json_object_get(a->config, "use_rslora"));
    return finite_number(path, "lora_alpha", alpha, &a->scale.value, err);
}

static esp_status load_config(struct esp_adapter_file *a, esp_error *err)
{
    static const char *const names[] = {"optiq_lora_config.json", "adapter_config.json"};
    esp_status s = ESP_ENOTFOUND;
    char *path = NULL;

    for (size_t i = 0; i < 2 && s == ESP_ENOTFOUND; i++) {
        esp_free(path);
        path = esp_path_join(a->path, names[i]);
        if (!path)
            return esp_fail(err, ESP_ENOMEM, "%s: out of memory", a->path);
        s = esp_json_load(&a->config, path, ESP_LIMIT_CONFIG_BYTES, ESP_JSON_NO_DUPLICATES, err);
    }
    if (s == ESP_ENOTFOUND)
        s = esp_fail(err, ESP_ENOTFOUND, "%s: no adapter_config.json", a->path);
    if (s == ESP_OK && !json_is_object(a->config))
        s = esp_fail(err, ESP_EFORMAT, "%s: a JSON object is needed", path);
    if (s == ESP_OK)
        s = refuse_variants(path, a->config, err);
    if (s == ESP_OK)
        s = read_scale(a, path, err);
    esp_free(path);
    return s;
}

/* ---- names ---- */

static bool drop_prefix(const char **s, const char *prefix)
{
    size_t n = strlen(prefix);

    if (strncmp(*s, prefix, n) != 0)
        return false;
    *s += n;
    return true;
}

/* "a", "B.weight", "A.NAME.weight" (raw state dicts): what follows ".lora_". */
static bool parse_leaf(const char *leaf, bool *is_b, bool *peft)
{
    static const char end[] = ".weight";
    size_t n = strlen(leaf);

    if (!strchr("abAB", leaf[0]) || n == 0)
        return false;
    *is_b = leaf[0] == 'b' || leaf[0] == 'B';
    *peft = leaf[0] == 'A' || leaf[0] == 'B' || n > 1;
    return n == 1 || (leaf[1] == '.' && n >= sizeof end && strcmp(leaf + n - (sizeof end - 1), end) == 0);
}

/* Split a tensor name into the module path (written to out) and whether it is B; false when it is no LoRA
 * name. */
static bool parse_name(const char *name, char out[MAX_MODULE], bool *is_b, bool *peft)
{
    static const char *const trunks[] = {"language_model.model.", "model.language_model.", "model.",
                                         "language_model."};
    const char *leaf;
    size_t len;

    drop_prefix(&name, "base_model.model.");
    for (size_t i = 0; i < sizeof trunks / sizeof trunks[0]; i++)
        if (drop_prefix(&name, trunks[i]))
            break;
    leaf = strstr(name, ".lora_");
    if (!leaf || strncmp(name, "layers.", 7) != 0)
        return false;
    len = (size_t)(leaf - name);
    if (len >= MAX_MODULE || !parse_leaf(leaf + strlen(".lora_"), is_b, peft))
        return false;
    memcpy(out, name, len);
    out[len] = 0;
    return true;
}

static bool is_target(const char *module)
{
    const char *s = module + strlen("layers.");
    size_t digits = strspn(s, "0123456789");

    if (digits == 0 || s[digits] != '.')
        return false;
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++)
        if (strcmp(s + digits + 1, targets[i]) == 0)
            return true;
    return false;
}

/* ---- tensors ---- */

static struct esp_adapter_pair *pair_of(struct esp_adapter_file *a, const char *module, esp_error *err)
{
    struct esp_adapter_pair *p;

    for (uint32_t i = a->n; i > 0; i--) /* names come sorted: partners are neighbours */
        if (strcmp(a->pairs[i - 1].module, module) == 0)
            return &a->pairs[i - 1];
    p = &a->pairs[a->n];
    p->module = esp_arena_strndup(a->arena, module, strlen(module));
    if (!p->module) {
        esp_fail(err, ESP_ENOMEM, "%s: out of memory", a->path);
        return NULL;
    }
    a->n++;
    return p;
}

static void add_fault(struct esp_strbuf *b, const char *what, const char *name)
{
    if (b->len + strlen(what) + strlen(name) + 4 < b->max)
        esp_strbuf_printf(b, "%s%s %s", b->len ? "; " : "", what, name);
}

/* Whether two tensor names differ only behind ".lora_": the halves of one pair. */
static bool same_module(const char *x, const char *y)
{
    const char *leaf = x ? strstr(x, ".lora_") : NULL;

    return leaf && strncmp(x, y, (size_t)(leaf - x) + strlen(".lora_")) == 0;
}

static esp_status collect(struct esp_adapter_file *a, struct esp_strbuf *faults, uint32_t *n_fault,
                          esp_error *err)
{
    const char *unknown = NULL; /* the last one */

    for (uint32_t i = 0; i < esp_st_count(a->st); i++) {
        const struct esp_st_tensor *t = esp_st_sorted(a->st, i), **slot;
        char module[MAX_MODULE];
        struct esp_adapter_pair *p;
        bool is_b, peft;

        if (strstr(t->name, "lora_magnitude_vector") ||
            (strlen(t->name) > 2 && strcmp(t->name + strlen(t->name) - 2, ".m") == 0))
            return esp_fail(err, ESP_EUNSUPPORTED, "%s: tensor %s: DoRA is not supported", esp_st_name(a->st),
                            t->name);
        if (!parse_name(t->name, module, &is_b, &peft) || !is_target(module)) {
            if (!same_module(unknown, t->name)) { /* once for A and B */
                (*n_fault)++;
                add_fault(faults, "not a target of this family:", t->name);
            }
            unknown = t->name;
            continue;
        }
        if (t->n_dim != 2 || !esp_dtype_is_weight_float(t->dtype) || t->shape[0] == 0 || t->shape[1] == 0) {
            (*n_fault)++;
            add_fault(faults, "not a matrix of F32, F16 or BF16:", t->name);
            continue;
        }
        p = pair_of(a, module, err);
        if (!p)
            return ESP_ENOMEM;
        slot = is_b ? &p->b : &p->a;
        if (*slot) {
            (*n_fault)++;
            add_fault(faults, "twice:", t->name);
        }
        *slot = t;
        p->peft_names |= peft;
    }
    return ESP_OK;
}

static esp_status pair_up(struct esp_adapter_file *a, esp_error *err)
{
    struct esp_strbuf faults;
    uint32_t n_fault = 0;
    esp_status s;

    a->pairs = esp_arena_alloc_array(a->arena, esp_st_count(a->st), sizeof *a->pairs);
    if (!a->pairs)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", a->path);
    esp_strbuf_init(&faults, FAULT_BYTES);
    s = collect(a, &faults, &n_fault, err);
    for (uint32_t i = 0; s == ESP_OK && i < a->n; i++)
        if (!a->pairs[i].a || !a->pairs[i].b) {
            n_fault++;
            add_fault(&faults, a->pairs[i].a ? "lora_B is missing for" : "lora_A is missing for",
                      a->pairs[i].module);
        }
    if (s == ESP_OK && n_fault)
        s = esp_fail(err, ESP_EFORMAT, "%s: %u of %u modules matched, %u faults: %s", esp_st_name(a->st),
                     a->n, a->n + n_fault, n_fault, esp_strbuf_str(&faults));
    if (s == ESP_OK && a->n == 0)
        s = esp_fail(err, ESP_EFORMAT, "%s: no adapter tensors", esp_st_name(a->st));
    esp_strbuf_free(&faults);
    return s;
}

static esp_status load_weights(struct esp_adapter_file *a, esp_error *err)
{
    static const char *const names[] = {"adapters.safetensors", "adapter_model.safetensors"};
    esp_status s = ESP_ENOTFOUND;

    for (size_t i = 0; i < 2 && s == ESP_ENOTFOUND; i++) {
        char *path = esp_path_join(a->path, names[i]);

        if (!path)
            return esp_fail(err, ESP_ENOMEM, "%s: out of memory", a->path);
        s = esp_st_open(&a->st, path, err);
        esp_free(path);
    }
    if (s == ESP_ENOTFOUND)
        return esp_fail(err, ESP_ENOTFOUND,
                        "%s: no adapter weights (adapters.safetensors or adapter_model.safetensors)",
                        a->path);
    return s;
}

/* Anything that changes what the adapter computes changes this number. */
static uint64_t revision_of(const struct esp_adapter_file *a)
{
    uint64_t h = 0;

    for (uint32_t i = 0; i < a->n; i++) {
        const struct esp_adapter_pair *p = &a->pairs[i];
        double s = esp_adapter_scale_of(a, p->module, 1);

        h = esp_hash(p->module, strlen(p->module), h);
        h = esp_hash(&s, sizeof s, h);
        h = esp_hash(p->a->data, p->a->bytes, h);
        h = esp_hash(p->b->data, p->b->bytes, h);
    }
    return h;
}

esp_status esp_adapter_file_open(struct esp_adapter_file **out, const char *dir, esp_error *err)
{
    struct esp_adapter_file *a = esp_alloc(sizeof *a);
    esp_status s;

    if (!a)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", dir);
    a->path = esp_strndup(dir, strlen(dir));
    a->arena = esp_arena_create(ARENA_BYTES);
    s = a->path && a->arena ? load_weights(a, err) : esp_fail(err, ESP_ENOMEM, "%s: out of memory", dir);
    if (s == ESP_OK)
        s = load_config(a, err);
    if (s == ESP_OK)
        s = pair_up(a, err);
    if (s != ESP_OK) {
        esp_adapter_file_close(a);
        return s;
    }
    a->revision = revision_of(a);
    *out = a;
    return ESP_OK;
}

void esp_adapter_file_close(struct esp_adapter_file *a)
{
    if (!a)
        return;
    esp_st_close(a->st);
    esp_arena_destroy(a->arena);
    json_decref(a->config);
    esp_warnings_free(&a->warnings);
    esp_free(a->path);
    esp_free(a);
}

/* Whether the regular expression (.*\.)?(key)$ matches module from its start, as PEFT does it. */
static bool pattern_matches(const char *key, const char *module)
{
    char full[MAX_MODULE + 32];
    pcre2_code *re;
    pcre2_match_data *m;
    int code, n;
    PCRE2_SIZE at;
    bool hit = false;

    n = snprintf(full, sizeof full, "^(?:(.*\\.)?(%s)$)", key);
    if (n < 0 || (size_t)n >= sizeof full)
        return false;
    re = pcre2_compile((PCRE2_SPTR)full, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);
    m = re ? pcre2_match_data_create_from_pattern(re, NULL) : NULL;
    if (m)
        hit = pcre2_match(re, (PCRE2_SPTR)module, strlen(module), 0, 0, m, NULL) >= 0;
    pcre2_match_data_free(m);
    pcre2_code_free(re);
    return hit;
}

double esp_adapter_scale_of(const struct esp_adapter_file *a, const char *module, uint64_t r)
{
    json_t *patterns = json_object_get(a->config, "alpha_pattern"), *v;
    double alpha = a->scale.value;
    const char *key;

    if (a->scale.mlx)
        return a->scale.sqrt_rank ? alpha / sqrt((double)r) : alpha;
    json_object_foreach(patterns, key, v)
    {
        if (json_is_number(v) && pattern_matches(key, module)) {
            alpha = json_number_value(v);
            break;
        }
    }
    return alpha / (a->scale.sqrt_rank ? sqrt((double)r) : (double)r);
}
