/*
 * tiny-text with trellis, affine and dense modules side by side, read from files laid out as converters lay
 * them out, against the same weights decoded to f32. Codes are random bits: any are a weight. One module of
 * every axis and form, under both spellings of module paths.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/trellis.h"
#include "io/safetensors.h"
#include "io/safetensors_write.h"
#include "espalier/espalier.h"
#include "support/net.h"

enum { N = 70, V = 512, MAX_MODULES = 64 };

/* What becomes of a module: by the end of its path, the first that fits. */
static const struct recipe {
    const char *suffix, *key; /* key: prefix of its path in the config */
    uint32_t k;               /* trellis bits; 0: affine 4 bits, groups of 64 */
    uint8_t axis;
    bool interleaved;
} recipes[] = {
    {"mlp.gate_proj", "language_model.model.", 3, 1, false},
    {"mlp.up_proj", "model.language_model.", 2, 1, false},
    {"mlp.down_proj", "language_model.model.", 3, 0, false},
    {"self_attn.q_proj", "model.language_model.", 3, 0, true},
    {"self_attn.k_proj", "model.", 4, 0, false},
    {"self_attn.o_proj", "language_model.model.", 0, 0, false},
    {"linear_attn.in_proj_qkv", "language_model.model.", 4, 1, false},
    {"linear_attn.out_proj", "language_model.model.", 2, 0, false},
    {"lm_head", "language_model.", 5, 1, false},
};

struct module {
    const struct recipe *r;
    char path[128]; /* without ".weight" */
    struct esp_weight w;
    uint8_t *codes, *scales, *biases;
};

static struct module modules[MAX_MODULES];
static uint32_t n_module;
static uint64_t seed = 7;

static uint8_t random_byte(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(seed >> 56);
}

static const struct recipe *recipe_of(const char *name)
{
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        char end[64];
        const int n = snprintf(end, sizeof end, "%s.weight", recipes[i].suffix);
        const size_t len = strlen(name);

        if (len >= (size_t)n && strcmp(name + len - (size_t)n, end) == 0)
            return &recipes[i];
    }
    return NULL;
}

static void fill(struct module *m, const struct esp_st_tensor *t)
{
    struct esp_weight *w = &m->w;
    const bool trellis = m->r->k > 0;
    size_t codes, scales;
    esp_error err;

    *w = (struct esp_weight){.format = trellis ? esp_trellis_format(m->r->k) : ESP_FORMAT_AFFINE4,
                             .scale_type = ESP_SCALE_F16,
                             .n_out = (uint32_t)t->shape[0],
                             .n_in = (uint32_t)t->shape[1],
                             .group = trellis ? 0 : 64,
                             .axis = m->r->axis,
                             .interleaved = m->r->interleaved};
    test_ok(esp_weight_layout(w, m->path, &err), &err);
    codes = (size_t)w->n_out * w->n_in * esp_format_get(w->format)->bits / 8;
    scales = (trellis ? esp_trellis_rows(w) : (size_t)w->n_out * w->n_in / 64) * 2;
    m->codes = malloc(codes);
    m->scales = malloc(scales);
    m->biases = trellis ? NULL : malloc(scales);
    for (size_t i = 0; i < codes; i++)
        m->codes[i] = random_byte();
    for (size_t i = 0; i < scales / 2; i++) {
        const float s = 0.03f + 0.0001f * (float)random_byte();
        const uint16_t half = esp_f32_to_f16(trellis ? s : s / 8), bias = esp_f32_to_f16(-s);

        memcpy(m->scales + 2 * i, &half, 2);
        if (!trellis)
            memcpy(m->biases + 2 * i, &bias, 2);
    }
    w->codes = m->codes;
    w->scales = m->scales;
    w->biases = m->biases;
}

static struct module *module_of(const struct esp_st_tensor *t)
{
    const struct recipe *r = recipe_of(t->name);
    struct module *m;

    if (!r)
        return NULL;
    for (uint32_t i = 0; i < n_module; i++) {
        if (strncmp(modules[i].path, t->name, strlen(modules[i].path)) == 0)
            return &modules[i];
    }
    assert_true(n_module < MAX_MODULES);
    m = &modules[n_module++];
    m->r = r;
    snprintf(m->path, sizeof m->path, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
    fill(m, t);
    return m;
}

/* Declare the planes of a module, or write their bytes. */
static void put(struct esp_st_writer *out, const struct module *m, bool data)
{
    const struct esp_weight *w = &m->w;
    const uint64_t rows = m->r->k ? esp_trellis_rows(w) : w->n_out;
    const uint64_t cols = m->r->k ? esp_trellis_cols(w) : w->n_in;
    const uint64_t words = cols * esp_format_get(w->format)->bits / 32;
    const uint64_t flat[2] = {rows, words}, pairs[3] = {cols / 512, rows, 48}, one[1] = {rows},
                   group[2] = {rows, cols / 64};
    const uint64_t *scales = m->r->k ? one : group;
    const uint32_t scale_dims = m->r->k ? 1 : 2;
    const size_t scale_bytes = (size_t)rows * (m->r->k ? 1 : cols / 64) * 2;
    char name[192];
    esp_error err;

    if (data) {
        test_ok(esp_st_writer_data(out, m->codes, (size_t)rows * words * 4, &err), &err);
        test_ok(esp_st_writer_data(out, m->scales, scale_bytes, &err), &err);
        if (m->biases)
            test_ok(esp_st_writer_data(out, m->biases, scale_bytes, &err), &err);
        return;
    }
    snprintf(name, sizeof name, "%s.weight", m->path);
    test_ok(esp_st_writer_declare(out, name, ESP_DTYPE_U32, m->r->interleaved ? 3 : 2,
                                  m->r->interleaved ? pairs : flat, &err),
            &err);
    snprintf(name, sizeof name, "%s.scales", m->path);
    test_ok(esp_st_writer_declare(out, name, ESP_DTYPE_F16, scale_dims, scales, &err), &err);
    snprintf(name, sizeof name, "%s.biases", m->path);
    if (m->biases)
        test_ok(esp_st_writer_declare(out, name, ESP_DTYPE_F16, scale_dims, scales, &err), &err);
}

static void put_decoded(struct esp_st_writer *out, const struct module *m, bool data)
{
    const struct esp_weight *w = &m->w;
    const uint64_t shape[2] = {w->n_out, w->n_in};
    float row[2048];
    char name[192];
    esp_error err;

    snprintf(name, sizeof name, "%s.weight", m->path);
    if (!data) {
        test_ok(esp_st_writer_declare(out, name, ESP_DTYPE_F32, 2, shape, &err), &err);
        return;
    }
    for (uint32_t o = 0; o < w->n_out; o++) {
        esp_format_get(w->format)->decode(w, o, 0, w->n_in, row);
        test_ok(esp_st_writer_data(out, row, sizeof(float) * w->n_in, &err), &err);
    }
}

static void write_tensors(const char *dir, bool decoded)
{
    struct esp_st_file *in;
    struct esp_st_writer *out;
    char path[512];
    esp_error err;

    test_ok(esp_st_open(&in, test_path("models/tiny-text/model.safetensors"), &err), &err);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    test_ok(esp_st_writer_create(&out, path, &err), &err);
    for (int data = 0; data < 2; data++) {
        for (uint32_t i = 0; i < esp_st_count(in); i++) {
            const struct esp_st_tensor *t = esp_st_get(in, i);
            const struct module *m = module_of(t);

            if (m)
                (decoded ? put_decoded : put)(out, m, data);
            else if (data)
                test_ok(esp_st_writer_data(out, t->data, t->bytes, &err), &err);
            else
                test_ok(esp_st_writer_declare(out, t->name, t->dtype, t->n_dim, t->shape, &err), &err);
        }
    }
    test_ok(esp_st_writer_finish(out, &err), &err);
    esp_st_writer_destroy(out);
    esp_st_close(in);
}

static json_t *entry_of(const struct module *m)
{
    json_t *e = json_pack("{s:i, s:i}", "bits", m->r->k ? (int)m->r->k : 4, "group_size", m->r->k ? 256 : 64);

    if (m->r->k) {
        json_object_set_new(e, "mode", json_string("trellis"));
        json_object_set_new(e, "trellis",
                            json_pack("{s:i, s:s, s:i}", "L", 12, "code", "1mad", "axis", (int)m->r->axis));
    }
    return e;
}

/* Path inside the trunk ("layers.3.mlp.up_proj"), or "lm_head". */
static const char *core_of(const struct module *m)
{
    const char *at = strstr(m->path, "layers.");

    return at ? at : m->path;
}

static void write_config(const char *dir, bool quantized, void (*change)(json_t *quantization))
{
    json_t *j = test_json("models/tiny-text/config.json");
    char *text;

    if (quantized) {
        json_t *q = json_pack("{s:i, s:i, s:s}", "group_size", 64, "bits", 3, "mode", "affine");

        for (uint32_t i = 0; i < n_module; i++) {
            char key[192];

            snprintf(key, sizeof key, "%s%s", modules[i].r->key, core_of(&modules[i]));
            json_object_set_new(q, key, entry_of(&modules[i]));
        }
        if (change)
            change(q);
        json_object_set_new(j, "quantization", q);
    }
    text = json_dumps(j, 0);
    test_write(dir, "config.json", text, strlen(text));
    free(text);
    json_decref(j);
}

static double deviation(const float *x, size_t n)
{
    double sum = 0, sq = 0;

    for (size_t i = 0; i < n; i++) {
        sum += x[i];
        sq += (double)x[i] * x[i];
    }
    return sqrt(sq / (double)n - sum / (double)n * sum / (double)n);
}

static void run(const char *dir, enum esp_cpu_level level, enum esp_act act, bool expand, uint32_t threads,
                uint32_t cut, float *logits)
{
    struct test_net t;
    struct esp_state *s;
    int32_t ids[N];
    esp_error err;

    for (int i = 0; i < N; i++)
        ids[i] = (i * 37 + 11) % V;
    test_net_open(&t, (struct test_net_opts){
                          .folder = dir, .level = level, .threads = threads, .act = act, .expand = expand});
    test_ok(esp_state_open(&s, t.pools, 2048, 0, &err), &err);
    test_net_run(&t, s, ids, N, cut, logits, NULL, NULL);
    esp_state_close(s);
    test_net_close(&t);
}

static void near(const char *what, const float *got, const float *want, double tol)
{
    double worst = 0;

    for (size_t i = 0; i < (size_t)N * V; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);

        worst = d > worst || d != d ? d : worst;
    }
    worst /= deviation(want, (size_t)N * V);
    if (!(worst <= tol))
        fail_msg("%s: off by %g of the standard deviation, allowed %g", what, worst, tol);
}

static char packed_dir[512], dense_dir[512];

static int make_models(void **state)
{
    (void)state;
    snprintf(packed_dir, sizeof packed_dir, "%s", test_tmpdir());
    snprintf(dense_dir, sizeof dense_dir, "%s", test_tmpdir());
    write_tensors(packed_dir, false);
    write_tensors(dense_dir, true);
    write_config(packed_dir, true, NULL);
    write_config(dense_dir, false, NULL);
    return 0;
}

static int free_models(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_module; i++) {
        free(modules[i].codes);
        free(modules[i].scales);
        free(modules[i].biases);
    }
    return 0;
}

/* f32: rounding alone. int8x2: 15 bits of activations at every product. int8: 8 bits of them. */
static void test_equals_decoded(void **state)
{
    static const double tolerance[ESP_ACT_COUNT] = {
        [ESP_ACT_F32] = 1e-4, [ESP_ACT_BF16] = 0.2, [ESP_ACT_INT8X2] = 4e-3, [ESP_ACT_INT8] = 0.4};
    static float want[N * V], got[N * V], again[N * V];

    (void)state;
    for (int i = 0; i < ESP_CPU_LEVEL_COUNT; i++) {
        const char *name = esp_cpu_level_name((enum esp_cpu_level)i);
        enum esp_cpu_level level;

        if (esp_cpu_level_parse(&level, name, NULL) != ESP_OK)
            continue;
        run(dense_dir, level, ESP_ACT_F32, false, 1, 0, want);
        for (int act = 0; act < ESP_ACT_COUNT; act++) {
            char what[64];

            snprintf(what, sizeof what, "%s %s", name, esp_act_name((enum esp_act)act));
            run(packed_dir, level, (enum esp_act)act, false, 1, 0, got);
            near(what, got, want, tolerance[act]);
            run(packed_dir, level, (enum esp_act)act, false, 2, 7, again);
            assert_memory_equal(got, again, sizeof got); /* neither threads nor cuts */
        }
    }
}

/* The definition: every row decoded, and quantized by the format's own encoder. */
static void check_expanded(const struct esp_weight *from, const struct esp_weight *to)
{
    float *x = malloc(from->n_in * sizeof *x);
    uint8_t *codes = malloc(to->row_bytes), *scales = malloc(2 * to->scale_row_bytes);
    uint8_t *biases = scales + to->scale_row_bytes;

    assert_int_equal(to->format, ESP_FORMAT_AFFINE8);
    assert_int_equal(to->group, 64);
    assert_int_equal(to->n_out, from->n_out);
    assert_int_equal(to->n_in, from->n_in);
    for (uint32_t o = 0; o < from->n_out; o++) {
        esp_format_get(from->format)->decode(from, o, 0, from->n_in, x);
        esp_format_get(to->format)->encode(to, x, from->n_in, codes, scales, biases);
        assert_memory_equal(to->codes + o * to->row_bytes, codes, to->row_bytes);
        assert_memory_equal(to->scales + o * to->scale_row_bytes, scales, to->scale_row_bytes);
        assert_memory_equal(to->biases + o * to->scale_row_bytes, biases, to->scale_row_bytes);
    }
    free(x);
    free(codes);
    free(scales);
}

static void load_expanded(struct esp_net **net, struct esp_source **src, struct esp_checkpoint *ck,
                          enum esp_source_kind kind, uint32_t threads)
{
    struct esp_source *inner;
    uint32_t n_trellis = 0;
    esp_error err;

    test_ok(esp_source_checkpoint(&inner, ck, &err), &err);
    test_ok(esp_source_expand(src, inner, kind, threads, &err), &err);
    test_ok(esp_net_load(net, &ck->config, *src, &err), &err);
    for (uint32_t i = 0; i < n_module; i++)
        n_trellis += modules[i].r->k > 0;
    assert_int_equal(esp_source_expanded(*src), n_trellis);
}

/* Coded matrices become what the definition says with any number of threads; others are not touched; a shape
 * says the same and takes no memory. */
static void test_expand(void **state)
{
    struct esp_checkpoint *ck;
    struct esp_source *src, *expanded, *shape;
    struct esp_net *net, *large, *sizes;
    uint32_t n_affine = 0;
    esp_error err;

    (void)state;
    test_ok(esp_checkpoint_open(&ck, packed_dir, &err), &err);
    test_ok(esp_source_checkpoint(&src, ck, &err), &err);
    test_ok(esp_net_load(&net, &ck->config, src, &err), &err);
    load_expanded(&sizes, &shape, ck, ESP_SOURCE_SHAPES, 1);
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        load_expanded(&large, &expanded, ck, ESP_SOURCE_WEIGHTS, threads);
        for (uint32_t i = 0; i < net->n_weight; i++) {
            if (esp_is_trellis(net->weights[i]->format)) {
                check_expanded(net->weights[i], large->weights[i]);
                assert_null(sizes->weights[i]->codes);
            } else {
                assert_ptr_equal(net->weights[i]->codes, large->weights[i]->codes);
                n_affine++;
            }
        }
        assert_int_equal(esp_net_weight_bytes(large), esp_net_weight_bytes(sizes));
        assert_true(esp_net_weight_bytes(large) > esp_net_weight_bytes(net));
        esp_net_close(large);
        expanded->close(expanded);
    }
    assert_true(n_affine > 0);
    esp_net_close(sizes);
    shape->close(shape);
    esp_net_close(net);
    src->close(src);
    esp_checkpoint_close(ck);
}

/*
 * A whole model: its plan counts what it holds, and its text is that of the stored weights but for the
 * rounding.
 */
static void test_expanded_model(void **state)
{
    static float want[N * V], got[N * V];
    const esp_model_opts plain = {.threads = 1}, large = {.threads = 1, .expand = "affine8"};
    const esp_model_opts shape = {.threads = 1, .expand = "affine8", .shape_only = true};
    const esp_engine_opts opts = {.context = 256, .max_seqs = 1};
    esp_memory_plan planned, held;
    esp_model *m = NULL;
    esp_engine *g = NULL;
    esp_error err;

    (void)state;
    run(packed_dir, test_level(), ESP_ACT_F32, false, 1, 0, want);
    run(packed_dir, test_level(), ESP_ACT_F32, true, 2, 0, got);
    near("expanded", got, want, 0.3); /* 7 bits of a weight's deviation; activations of 8 bits have 0.4 */
    assert_memory_not_equal(got, want, sizeof got);
    test_ok(esp_model_open(&m, packed_dir, &shape, &err), &err);
    test_ok(esp_engine_plan(m, &opts, &planned, &err), &err);
    assert_int_equal(esp_engine_open(&g, m, &opts, &err), ESP_ESTATE);
    esp_model_close(m);
    test_ok(esp_model_open(&m, packed_dir, &large, &err), &err);
    test_ok(esp_engine_plan(m, &opts, &held, &err), &err);
    assert_int_equal(held.weights, planned.weights);
    test_ok(esp_engine_open(&g, m, &opts, &err), &err);
    esp_engine_close(g);
    esp_model_close(m);
    test_ok(esp_model_open(&m, packed_dir, &plain, &err), &err);
    test_ok(esp_engine_plan(m, &opts, &held, &err), &err);
    assert_true(held.weights < planned.weights);
    esp_model_close(m);
}

static void refused(void (*change)(json_t *q), const char *part)
{
    struct esp_checkpoint *ck = NULL;
    struct esp_source *src = NULL;
    struct esp_net *net = NULL;
    esp_status st;
    esp_error err;

    write_config(packed_dir, true, change);
    st = esp_checkpoint_open(&ck, packed_dir, &err);
    if (st == ESP_OK) {
        test_ok(esp_source_checkpoint(&src, ck, &err), &err);
        st = esp_net_load(&net, &ck->config, src, &err);
    }
    assert_int_not_equal(st, ESP_OK);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" does not say \"%s\"", err.message, part);
    if (src)
        src->close(src);
    esp_checkpoint_close(ck);
}

static json_t *gate(json_t *q)
{
    return json_object_get(q, "language_model.model.layers.1.mlp.gate_proj");
}

static void no_object(json_t *q)
{
    json_object_del(gate(q), "trellis");
}

static void other_code(json_t *q)
{
    json_object_set_new(json_object_get(gate(q), "trellis"), "code", json_string("3inst"));
}

static void other_length(json_t *q)
{
    json_object_set_new(json_object_get(gate(q), "trellis"), "L", json_integer(16));
}

static void other_block(json_t *q)
{
    json_object_set_new(gate(q), "group_size", json_integer(128));
}

static void other_axis(json_t *q)
{
    json_object_set_new(json_object_get(gate(q), "trellis"), "axis", json_integer(2));
}

static void other_bits(json_t *q)
{
    json_object_set_new(gate(q), "bits", json_integer(4));
}

static void nine_bits(json_t *q)
{
    json_object_set_new(gate(q), "bits", json_integer(9));
}

static void test_refusals(void **state)
{
    (void)state;
    refused(no_object, "no trellis object");
    refused(other_code, "3inst");
    refused(other_length, "L 16");
    refused(other_block, "group_size 128");
    refused(other_axis, "axis");
    refused(other_bits, "4 bits");
    refused(nine_bits, "1 to 8 bits");
    write_config(packed_dir, true, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equals_decoded), cmocka_unit_test(test_expand),
                                       cmocka_unit_test(test_expanded_model),
                                       cmocka_unit_test(test_refusals)};

    return cmocka_run_group_tests(tests, make_models, free_models);
}
