/*
 * See modelfile.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/modelfile.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors_write.h"

enum { MAX_TENSOR = 256, MAX_ENTRY = 768 };

struct entry { /* a tensor as it will lie in the file */
    char name[160];
    enum esp_dtype dtype;
    uint32_t n_dim;
    uint64_t shape[3];
    uint8_t *data;
    size_t bytes;
};

struct entries {
    struct entry e[MAX_ENTRY];
    uint32_t n;
};

uint32_t mf_random(uint64_t *state, uint32_t n)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32) % n;
}

void mf_tokens(int32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)mf_random(&seed, vocab);
}

struct naive_shape mf_shape(void)
{
    return (struct naive_shape){.vocab = 97,
                                .hidden = 128,
                                .ffn = 128,
                                .n_layer = 4,
                                .n_head = 4,
                                .n_kv = 2,
                                .head_dim = 64,
                                .kh = 2,
                                .vh = 4,
                                .dk = 32,
                                .dv = 32,
                                .full = {0, 0, 0, 1},
                                .rotary = 16,
                                .section = {3, 3, 2},
                                .theta = 10000};
}

/* ---- weights in memory ---- */

struct maker {
    struct mf_model *m;
    uint64_t rng;
    char prefix[32];
    bool mtp;
};

static double *add(struct maker *k, enum mf_kind kind, uint32_t n_out, uint32_t n_in, const char *name)
{
    struct mf_tensor *t = &k->m->tensor[k->m->n_tensor++];
    int shift = kind == MF_MATRIX                   ? (int)lround(log2(0.57 * sqrt(n_in)))
                : kind == MF_CONV || kind == MF_F32 ? 0
                                                    : 1;

    assert_true(k->m->n_tensor <= MAX_TENSOR);
    snprintf(t->name, sizeof t->name, "%s%s", k->prefix, name);
    t->kind = kind;
    t->n_out = n_out;
    t->n_in = n_in;
    t->mtp = k->mtp;
    t->data = calloc((size_t)n_out * n_in, sizeof *t->data);
    for (size_t i = 0; i < (size_t)n_out * n_in; i++) {
        double x = (double)mf_random(&k->rng, 255) - 127;

        if (kind == MF_NORM || kind == MF_GAMMA) /* multiples of 1/128 in -0.4..0.4: exact as gamma, too */
            t->data[i] = (double)(int)(x * 0.4) / 128 + (kind == MF_GAMMA);
        else
            t->data[i] = ldexp(x, -7 - shift);
    }
    return t->data;
}

static void make_linear(struct maker *k, const struct naive_shape *s, struct naive_layer *l)
{
    uint32_t value = s->vh * s->dv, channels = 2 * s->kh * s->dk + value;

    l->qkv = add(k, MF_MATRIX, channels, s->hidden, "linear_attn.in_proj_qkv.weight");
    l->z = add(k, MF_MATRIX, value, s->hidden, "linear_attn.in_proj_z.weight");
    l->b = add(k, MF_MATRIX, s->vh, s->hidden, "linear_attn.in_proj_b.weight");
    l->a = add(k, MF_MATRIX, s->vh, s->hidden, "linear_attn.in_proj_a.weight");
    l->conv = add(k, MF_CONV, channels, 4, "linear_attn.conv1d.weight");
    l->a_log = add(k, MF_F32, s->vh, 1, "linear_attn.A_log");
    l->dt_bias = add(k, MF_F32, s->vh, 1, "linear_attn.dt_bias");
    l->norm = add(k, MF_GAMMA, s->dv, 1, "linear_attn.norm.weight");
    l->out = add(k, MF_MATRIX, s->hidden, value, "linear_attn.out_proj.weight");
}

static void make_attention(struct maker *k, const struct naive_shape *s, struct naive_layer *l)
{
    uint32_t query = s->n_head * s->head_dim, key = s->n_kv * s->head_dim;

    l->q = add(k, MF_MATRIX, 2 * query, s->hidden, "self_attn.q_proj.weight");
    l->k = add(k, MF_MATRIX, key, s->hidden, "self_attn.k_proj.weight");
    l->v = add(k, MF_MATRIX, key, s->hidden, "self_attn.v_proj.weight");
    l->o = add(k, MF_MATRIX, s->hidden, query, "self_attn.o_proj.weight");
    l->q_norm = add(k, MF_NORM, s->head_dim, 1, "self_attn.q_norm.weight");
    l->k_norm = add(k, MF_NORM, s->head_dim, 1, "self_attn.k_norm.weight");
}

static void make_layer(struct maker *k, const struct naive_shape *s, struct naive_layer *l, bool full)
{
    l->norm_in = add(k, MF_NORM, s->hidden, 1, "input_layernorm.weight");
    l->norm_post = add(k, MF_NORM, s->hidden, 1, "post_attention_layernorm.weight");
    if (full)
        make_attention(k, s, l);
    else
        make_linear(k, s, l);
    l->gate = add(k, MF_MATRIX, s->ffn, s->hidden, "mlp.gate_proj.weight");
    l->up = add(k, MF_MATRIX, s->ffn, s->hidden, "mlp.up_proj.weight");
    l->down = add(k, MF_MATRIX, s->hidden, s->ffn, "mlp.down_proj.weight");
}

void mf_make(struct mf_model *m, const struct naive_shape *s, bool tied, uint64_t seed)
{
    struct maker k = {.m = m, .rng = seed};
    struct naive_layer mtp;

    memset(m, 0, sizeof *m);
    m->net.shape = *s;
    m->tied = tied;
    m->tensor = calloc(MAX_TENSOR, sizeof *m->tensor);
    m->net.embed = add(&k, MF_MATRIX, s->vocab, s->hidden, "embed_tokens.weight");
    m->net.norm_out = add(&k, MF_NORM, s->hidden, 1, "norm.weight");
    for (uint32_t i = 0; i < s->n_layer; i++) {
        snprintf(k.prefix, sizeof k.prefix, "layers.%u.", i);
        make_layer(&k, s, &m->net.layer[i], s->full[i]);
    }
    k.prefix[0] = 0;
    m->net.head =
        add(&k, MF_MATRIX, s->vocab, s->hidden, "lm_head.weight"); /* last but MTP: never moves the others */
    m->tensor[m->n_tensor - 1].head = true;
    if (tied)
        m->net.head = m->net.embed;
    k.mtp = true;
    add(&k, MF_MATRIX, s->hidden, 2 * s->hidden, "fc.weight");
    add(&k, MF_NORM, s->hidden, 1, "pre_fc_norm_embedding.weight");
    add(&k, MF_NORM, s->hidden, 1, "pre_fc_norm_hidden.weight");
    add(&k, MF_NORM, s->hidden, 1, "norm.weight");
    strcpy(k.prefix, "layers.0.");
    make_layer(&k, s, &mtp, true);
}

struct mf_tensor *mf_find(struct mf_model *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_tensor; i++)
        if (!m->tensor[i].mtp && strcmp(m->tensor[i].name, name) == 0)
            return &m->tensor[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

void mf_free(struct mf_model *m)
{
    for (uint32_t i = 0; i < m->n_tensor; i++)
        free(m->tensor[i].data);
    free(m->tensor);
    memset(m, 0, sizeof *m);
}

/* ---- tensors as stored ---- */

static struct entry *add_entry(struct entries *es, const char *name, enum esp_dtype dtype, uint64_t rows,
                               uint64_t cols)
{
    struct entry *e = &es->e[es->n++];

    assert_true(es->n <= MAX_ENTRY);
    snprintf(e->name, sizeof e->name, "%s", name);
    e->dtype = dtype;
    e->n_dim = 2;
    e->shape[0] = rows;
    e->shape[1] = cols;
    e->bytes = (size_t)(rows * cols) * esp_dtype_size(dtype);
    e->data = calloc(1, e->bytes + 1);
    return e;
}

static void store(struct entry *e, size_t i, double x)
{
    float f = (float)x;
    uint16_t h = e->dtype == ESP_DTYPE_BF16 ? esp_f32_to_bf16(f) : esp_f32_to_f16(f);

    if (e->dtype == ESP_DTYPE_F32)
        memcpy(e->data + 4 * i, &f, 4);
    else
        memcpy(e->data + 2 * i, &h, 2);
}

static double load(const struct entry *e, size_t i)
{
    uint16_t h;
    float f;

    if (e->dtype == ESP_DTYPE_F32) {
        memcpy(&f, e->data + 4 * i, 4);
        return (double)f;
    }
    memcpy(&h, e->data + 2 * i, 2);
    return (double)(e->dtype == ESP_DTYPE_BF16 ? esp_bf16_to_f32(h) : esp_f16_to_f32(h));
}

/* Code i of a row that is one stream of little-endian bits. */
static unsigned code_at(const uint8_t *row, size_t i, uint32_t bits)
{
    unsigned code = 0;

    for (size_t n = 0; n < bits; n++)
        code |= (unsigned)(row[(i * bits + n) / 8] >> ((i * bits + n) % 8) & 1) << n;
    return code;
}

static void quantize(struct entries *es, struct mf_tensor *t, const char *module, const struct mf_quant *q,
                     enum esp_scale_type scale_type)
{
    static const enum esp_dtype types[] = {ESP_DTYPE_F32, ESP_DTYPE_BF16, ESP_DTYPE_F16};
    struct esp_weight w = {.scale_type = scale_type, .n_out = t->n_out, .n_in = t->n_in, .group = q->group};
    struct entry *c, *s, *b;
    char name[160];
    float *x = calloc(t->n_in, sizeof *x);
    esp_error err;

    snprintf(name, sizeof name, "affine%u", q->bits);
    test_ok(esp_format_by_name(&w.format, name, &err), &err);
    test_ok(esp_weight_layout(&w, module, &err), &err);
    snprintf(name, sizeof name, "%s.weight", module);
    c = add_entry(es, name, ESP_DTYPE_U32, t->n_out, (uint64_t)t->n_in * q->bits / 32);
    snprintf(name, sizeof name, "%s.scales", module);
    s = add_entry(es, name, types[scale_type], t->n_out, t->n_in / q->group);
    snprintf(name, sizeof name, "%s.biases", module);
    b = add_entry(es, name, types[scale_type], t->n_out, t->n_in / q->group);
    for (size_t o = 0; o < t->n_out; o++) {
        uint8_t *row = c->data + o * c->bytes / t->n_out;
        size_t g0 = o * (t->n_in / q->group);

        for (size_t i = 0; i < t->n_in; i++)
            x[i] = (float)t->data[o * t->n_in + i];
        esp_format_get(w.format)->encode(&w, x, t->n_in, row, s->data + o * s->bytes / t->n_out,
                                         b->data + o * b->bytes / t->n_out);
        for (size_t i = 0; i < t->n_in; i++)
            t->data[o * t->n_in + i] =
                load(s, g0 + i / q->group) * code_at(row, i, q->bits) + load(b, g0 + i / q->group);
    }
    free(x);
}

static const struct mf_quant *quant_of(const struct mf_form *form, const struct mf_tensor *t)
{
    const struct mf_quant *q = form->quant;

    if (t->kind != MF_MATRIX || !q || t->mtp)
        return NULL;
    while (q->part && !strstr(t->name, q->part))
        q++;
    return q->part && q->bits ? q : NULL;
}

static const char *prefix_of(const struct mf_form *form, const struct mf_tensor *t)
{
    static const char *const text[] = {"model.language_model.", "model.", "", "language_model.model."};

    if (t->mtp)
        return "mtp.";
    if (t->head)
        return form->layout == MF_MLX ? "language_model." : "";
    return text[form->layout];
}

static void add_tensor(struct entries *es, struct mf_tensor *t, const struct mf_form *form)
{
    bool mlx = form->layout == MF_MLX && !t->mtp;
    enum esp_dtype dtype = form->dtype ? form->dtype : ESP_DTYPE_BF16;
    const struct mf_quant *q = quant_of(form, t);
    struct entry *e;
    char name[128];

    snprintf(name, sizeof name, "%s%s", prefix_of(form, t), t->name);
    if (q) {
        name[strlen(name) - strlen(".weight")] = 0;
        quantize(es, t, name, q, form->scale_type);
        return;
    }
    if (form->layout == MF_HF && (strstr(name, "A_log") || strstr(name, "linear_attn.norm")))
        dtype = ESP_DTYPE_F32; /* as published checkpoints have them */
    e = add_entry(es, name, dtype, t->n_out, t->n_in);
    for (size_t i = 0; i < (size_t)t->n_out * t->n_in; i++)
        store(e, i, t->data[i] + (mlx && t->kind == MF_NORM ? 1 : 0));
    if (t->kind == MF_CONV) {
        e->n_dim = 3;
        e->shape[mlx ? 1 : 2] = t->n_in;
        e->shape[mlx ? 2 : 1] = 1;
    } else if (t->kind != MF_MATRIX) {
        e->n_dim = 1;
    }
}

/* ---- files ---- */

static void write_shard(const struct entries *es, const char *path, uint32_t shard, uint32_t n_shard)
{
    struct esp_st_writer *w;
    esp_error err;

    test_ok(esp_st_writer_create(&w, path, &err), &err);
    for (uint32_t i = shard; i < es->n; i += n_shard)
        test_ok(esp_st_writer_declare(w, es->e[i].name, es->e[i].dtype, es->e[i].n_dim, es->e[i].shape, &err),
                &err);
    for (uint32_t i = shard; i < es->n; i += n_shard)
        test_ok(esp_st_writer_data(w, es->e[i].data, es->e[i].bytes, &err), &err);
    test_ok(esp_st_writer_finish(w, &err), &err);
    esp_st_writer_destroy(w);
}

static void dump(const char *dir, const char *name, const json_t *j)
{
    char *text = json_dumps(j, JSON_INDENT(1));

    test_write(dir, name, text, strlen(text));
    free(text);
}

static void write_tensors(const struct entries *es, const char *dir, uint32_t n_shard)
{
    json_t *map = json_object(), *index = json_pack("{s:{},s:o}", "metadata", "weight_map", map);
    char path[4200], file[64];

    for (uint32_t s = 0; s < n_shard || s == 0; s++) {
        snprintf(file, sizeof file, n_shard ? "model-%05u-of-%05u.safetensors" : "model.safetensors", s + 1,
                 n_shard);
        snprintf(path, sizeof path, "%s/%s", dir, file);
        write_shard(es, path, s, n_shard ? n_shard : 1);
        for (uint32_t i = s; i < es->n; i += n_shard ? n_shard : 1)
            json_object_set_new(map, es->e[i].name, json_string(file));
    }
    if (n_shard)
        dump(dir, "model.safetensors.index.json", index);
    json_decref(index);
}

static json_t *text_config(const struct naive_shape *s, const struct mf_form *form)
{
    json_t *types = json_array(), *j, *rope;

    for (uint32_t i = 0; i < s->n_layer; i++)
        json_array_append_new(types, json_string(s->full[i] ? "full_attention" : "linear_attention"));
    rope = json_pack("{s:s,s:f,s:f,s:[iii],s:b}", "rope_type", s->yarn_factor > 0 ? "yarn" : "default",
                     "rope_theta", s->theta, "partial_rotary_factor", (double)s->rotary / s->head_dim,
                     "mrope_section", (int)s->section[0], (int)s->section[1], (int)s->section[2],
                     "mrope_interleaved", 1);
    if (s->yarn_factor > 0) {
        json_object_set_new(rope, "factor", json_real(s->yarn_factor));
        json_object_set_new(rope, "original_max_position_embeddings",
                            json_integer((json_int_t)s->yarn_original));
    }
    j = json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:s,s:b,s:s,s:i,s:i}",
                  "model_type", "qwen3_5_text", "vocab_size", s->vocab, "hidden_size", s->hidden,
                  "intermediate_size", s->ffn, "num_hidden_layers", s->n_layer, "num_attention_heads",
                  s->n_head, "num_key_value_heads", s->n_kv, "head_dim", s->head_dim, "linear_num_key_heads",
                  s->kh, "linear_num_value_heads", s->vh, "linear_key_head_dim", s->dk,
                  "linear_value_head_dim", s->dv, "linear_conv_kernel_dim", 4, "rms_norm_eps", 1e-6,
                  "hidden_act", "silu", "attn_output_gate", 1, "dtype", "bfloat16", "max_position_embeddings",
                  4096, "mtp_num_hidden_layers", form->mtp ? 1 : 0);
    assert_non_null(j);
    json_object_set_new(j, "layer_types", types);
    json_object_set_new(j, "rope_parameters", rope);
    json_object_set_new(j, "eos_token_id", json_integer(1));
    return j;
}

static json_t *quant_config(const struct mf_model *m, const struct mf_form *form)
{
    json_t *j;
    char name[128];

    if (form->wrong_bits)
        return json_pack("{s:i,s:i}", "bits", (int)form->wrong_bits, "group_size", (int)form->wrong_group);
    j = json_pack("{s:i,s:i,s:s}", "bits", 4, "group_size", 64, "mode", "affine");
    for (uint32_t i = 0; i < m->n_tensor; i++) {
        const struct mf_tensor *t = &m->tensor[i];
        const struct mf_quant *q = quant_of(form, t);

        snprintf(name, sizeof name, "%s%s", prefix_of(form, t), t->name);
        name[strlen(name) - strlen(".weight")] = 0;
        if (q)
            json_object_set_new(j, name,
                                json_pack("{s:i,s:i}", "bits", (int)q->bits, "group_size", (int)q->group));
        else if (t->kind == MF_MATRIX)
            json_object_set_new(j, name, json_false());
    }
    return j;
}

static void write_config(const struct mf_model *m, const struct mf_form *form, const char *dir)
{
    json_t *text = text_config(&m->net.shape, form), *top = text;

    if (form->layout == MF_HF || form->layout == MF_MLX)
        top = json_pack("{s:s,s:o}", "model_type", "qwen3_5", "text_config", text);
    json_object_set_new(
        top, "architectures",
        json_pack("[s]", top == text ? "Qwen3_5ForCausalLM" : "Qwen3_5ForConditionalGeneration"));
    json_object_set_new(top, "tie_word_embeddings", json_boolean(m->tied));
    if (form->quant)
        json_object_set_new(top, "quantization", quant_config(m, form));
    if (form->patch)
        form->patch(top, text);
    dump(dir, "config.json", top);
    json_decref(top);
}

const char *mf_write(struct mf_model *m, const struct mf_form *form)
{
    struct entries *es = calloc(1, sizeof *es);
    const char *dir = test_tmpdir();

    for (uint32_t i = 0; i < m->n_tensor; i++) {
        struct mf_tensor *t = &m->tensor[i];
        bool head = m->tied ? form->head == MF_HEAD_LEFT_OVER : form->head != MF_HEAD_MISSING;

        if (t->head ? head : !t->mtp || form->mtp)
            add_tensor(es, t, form);
    }
    write_tensors(es, dir, form->n_shard);
    write_config(m, form, dir);
    for (uint32_t i = 0; i < es->n; i++)
        free(es->e[i].data);
    free(es);
    return dir;
}
