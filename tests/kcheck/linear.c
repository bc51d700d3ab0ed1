/*
 * Products with weights: every format, every precision of activations. The oracle decodes weights and
 * quantizes activations in its own few lines from the words of kernels.h, then sums in double. For an affine
 * weight the terms of the sum are x * scale * code and x * bias: their magnitudes, not that of the decoded
 * weight (where the two may cancel), bound the error of a kernel that factors the sum by group.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/affine.h"
#include "formats/format.h"
#include "formats/trellis.h"

struct shape {
    uint32_t n_in, group;
    enum esp_scale_type scale;
};

struct job {
    enum esp_format_id format;
    enum esp_act act;
    struct esp_weight w;
    double *value; /* [n_out][n_in] exact weights */
    double *term;  /* [n_out][n_in] |scale * code| + |bias|, or |weight| */
    double *xq;    /* [n_in] what the activations become */
    double *slack; /* [n_in] what the contract leaves open about xq */
};

static const struct esp_linear *linear(const struct kc *kc, const struct job *j)
{
    return &kc->k->linear[j->format][j->act];
}

static void *grab(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    if (!p) {
        perror("kcheck");
        exit(2);
    }
    return p;
}

static void drop(struct job *j)
{
    free(j->value);
    free(j->term);
    free(j->xq);
    free(j->slack);
}

static void fill_scales(struct kc *kc, const struct esp_weight *w, enum kc_pattern p, uint8_t *scales,
                        uint8_t *biases)
{
    const uint32_t bits = esp_format_get(w->format)->bits;
    const size_t n = (size_t)w->n_out * (w->n_in / w->group);

    for (size_t i = 0; i < n; i++) {
        float s = kc_uniform(kc, 0.001f, 0.02f) * (kc_below(kc, 2) ? 1.0f : -1.0f);
        float b = -s * (float)((1u << bits) - 1) * kc_uniform(kc, 0, 1);

        if (p == KC_CONSTANT) {
            s = 0.01f;
            b = 0.1f;
        }
        if (p == KC_EXTREME) {
            s *= 1000;
            b *= 1000;
        }
        if (p == KC_DENORMAL) {
            s *= w->scale_type == ESP_SCALE_F16 ? 1e-5f : 1e-37f;
            b *= w->scale_type == ESP_SCALE_F16 ? 1e-5f : 1e-37f;
        }
        esp_scale_store(w->scale_type, scales, i, s);
        esp_scale_store(w->scale_type, biases, i, b);
    }
}

static void fill_dense(struct kc *kc, const struct esp_weight *w, enum kc_pattern p, uint8_t *codes)
{
    float *row = grab(w->n_in, sizeof *row);

    for (size_t o = 0; o < w->n_out; o++) {
        kc_fill(kc, row, w->n_in, p == KC_ONEHOT ? KC_RANDOM : p, 3e4f);
        esp_format_get(w->format)->encode(w, row, w->n_in, codes + o * w->row_bytes, NULL, NULL);
    }
    free(row);
}

/* Any words and any scales are a weight. misalign bytes are left between each plane and the unreadable page.
 */
static void make_weight(struct kc *kc, struct job *j, const struct shape *s, uint32_t n_out,
                        enum kc_pattern p, size_t misalign)
{
    struct esp_weight *w = &j->w;
    esp_error err;
    uint8_t *codes, *scales = NULL, *biases = NULL;

    *w = (struct esp_weight){
        .format = j->format, .scale_type = s->scale, .n_out = n_out, .n_in = s->n_in, .group = s->group};
    if (esp_weight_layout(w, "kcheck", &err) != ESP_OK) {
        fprintf(stderr, "kcheck: %s\n", err.message);
        exit(2);
    }
    w->codes = codes = kc_alloc(kc, n_out * w->row_bytes, 1, misalign);
    if (w->group) {
        scales = kc_alloc(kc, n_out * w->scale_row_bytes, 1, misalign);
        biases = kc_alloc(kc, n_out * w->scale_row_bytes, 1, misalign);
        for (size_t i = 0; i < n_out * w->row_bytes; i++)
            codes[i] = (uint8_t)(p == KC_EXTREME ? 0xff : p == KC_ZERO || p == KC_CONSTANT ? 0 : kc_next(kc));
        fill_scales(kc, w, p, scales, biases);
        kc_protect(kc, scales);
        kc_protect(kc, biases);
    } else {
        fill_dense(kc, w, p, codes);
    }
    w->scales = scales;
    w->biases = biases;
    kc_protect(kc, codes);
}

/* Weights in double, from the bytes: bit by bit, so that no unpacking code is shared with what is checked. */
static void decode(struct job *j)
{
    const struct esp_weight *w = &j->w;
    const uint32_t bits = esp_format_get(w->format)->bits;
    float f;

    j->value = grab((size_t)w->n_out * w->n_in, sizeof(double));
    j->term = grab((size_t)w->n_out * w->n_in, sizeof(double));
    for (size_t o = 0; o < w->n_out; o++) {
        for (size_t i = 0; i < w->n_in; i++) {
            double *value = j->value + o * w->n_in + i, *term = j->term + o * w->n_in + i;
            const uint8_t *row = w->codes + o * w->row_bytes;
            double scale, bias;
            uint32_t code = 0;

            if (!w->group) {
                esp_format_get(w->format)->decode(w, o, i, 1, &f);
                *value = f;
                *term = fabs(f);
                continue;
            }
            for (size_t b = 0; b < bits; b++)
                code |= (uint32_t)(row[(i * bits + b) / 8] >> (i * bits + b) % 8 & 1) << b;
            scale = esp_scale_load(w->scale_type, w->scales + o * w->scale_row_bytes, i / w->group);
            bias = esp_scale_load(w->scale_type, w->biases + o * w->scale_row_bytes, i / w->group);
            *value = scale * code + bias;
            *term = fabs(scale * code) + fabs(bias);
        }
    }
}

/* What prepare makes of a row, in value; kernels.h. */
static void quantize_row(struct job *j, const float *x)
{
    const uint32_t n = j->w.n_in, group = j->w.group;
    const float top = j->act == ESP_ACT_INT8 ? 127 : 127 * 128;

    for (uint32_t i = 0; i < n; i++) {
        j->slack[i] = 0;
        j->xq[i] = j->act == ESP_ACT_BF16 ? (double)esp_bf16_to_f32(esp_f32_to_bf16(x[i])) : (double)x[i];
    }
    if (j->act == ESP_ACT_F32 || j->act == ESP_ACT_BF16)
        return;
    for (uint32_t i0 = 0; i0 < n; i0 += group) {
        float max = 0, s;

        for (uint32_t i = i0; i < i0 + group; i++)
            max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
        s = max / top;
        for (uint32_t i = i0; i < i0 + group; i++) {
            j->xq[i] = s >= 0x1p-126f ? (double)s * (double)rintf(x[i] / s) : 0;
            j->slack[i] =
                s >= 0x1p-126f ? 0 : max; /* below the normal range a group may be zero, or coarse */
        }
    }
}

/*
 * The promise of kernels.h, KC_SUM(n) roundings on the sum of the terms; and what lies below the normal
 * range: bf16 hardware takes subnormal inputs and results as zero, and scale * s of the integer kernels may
 * be subnormal with an integer of up to 2^30 multiplied onto it.
 */
static void check_row(struct kc *kc, struct job *j, const float *x, const float *y, size_t row)
{
    const size_t n = j->w.n_in;
    const double per_term = j->act == ESP_ACT_BF16 ? 0x1p-126 : KC_TINY;
    const double per_group = j->w.group ? 0x1p-119 * (double)(n / j->w.group) : 0;

    quantize_row(j, x);
    for (size_t o = 0; o < j->w.n_out; o++) {
        const double *value = j->value + o * n, *term = j->term + o * n;
        double sum = 0, terms = 0, floor = per_term * (double)n + per_group;

        for (size_t i = 0; i < n; i++) {
            sum += j->xq[i] * value[i];
            terms += fabs(j->xq[i]) * term[i];
            floor += j->slack[i] * term[i];
            if (j->act == ESP_ACT_BF16 && (fabs(j->xq[i]) < 0x1p-126 || term[i] < 0x1p-126))
                floor += fabs(j->xq[i]) * term[i];
        }
        kc_near(kc, row * j->w.n_out + o, y[o], sum, KC_SUM(n) * KC_U * terms + floor);
    }
}

/* Prepared rows of x, at a buffer that starts aligned as the contract says; or x itself. */
static const void *prepare(struct kc *kc, const struct job *j, const float *x, size_t ldx, uint32_t n_row)
{
    const struct esp_linear *l = linear(kc, j);
    const size_t row_bytes =
        l->prepare ? l->prepared_bytes(j->w.n_in, j->w.group) : j->w.n_in * sizeof(float);
    uint8_t *act = kc_alloc(kc, n_row * row_bytes, 64, 0);

    if (l->prepare) {
        memset(act, 0, n_row * row_bytes); /* bytes that a kernel leaves unused compare equal */
        l->prepare(&j->w, x, ldx, n_row, act);
    } else {
        for (size_t r = 0; r < n_row; r++)
            memcpy(act + r * row_bytes, x + r * ldx, row_bytes);
    }
    kc_protect(kc, act);
    return act;
}

static size_t act_row_bytes(const struct kc *kc, const struct job *j)
{
    const struct esp_linear *l = linear(kc, j);

    return l->prepare ? l->prepared_bytes(j->w.n_in, j->w.group) : j->w.n_in * sizeof(float);
}

/* w with its packed copy, and nothing else that could be read; w itself if the kernel packs nothing. */
static struct esp_weight packed_of(struct kc *kc, const struct job *j)
{
    const struct esp_linear *l = linear(kc, j);
    struct esp_weight w = j->w;
    uint8_t *block;

    if (!l->pack)
        return w;
    block = kc_alloc(kc, l->pack_bytes(&w), 64, 0);
    for (uint32_t o = 0; o < w.n_out; o += ESP_PACK_OUTS)
        l->pack(&j->w, o, w.n_out - o < ESP_PACK_OUTS ? w.n_out : o + ESP_PACK_OUTS, block);
    kc_protect(kc, block);
    w.codes = w.scales = w.biases = NULL;
    w.packed = block;
    return w;
}

/* Packed weights: the same bits as y [n_row][ldy], a block of rows at a time. */
static void check_packed(struct kc *kc, const struct job *j, const uint8_t *act, uint32_t n_row,
                         uint32_t block, const float *y, size_t ldy)
{
    const struct esp_weight w = packed_of(kc, j);
    const size_t stride = act_row_bytes(kc, j);
    float *got = kc_floats(kc, (size_t)n_row * w.n_out);

    for (uint32_t r = 0; r < n_row; r += block) {
        const uint32_t n = n_row - r < block ? n_row - r : block;

        for (uint32_t o = 0, o1; o < w.n_out; o = o1) {
            o1 = o + ESP_PACK_OUTS * (1 + kc_below(kc, 2));
            o1 = o1 < w.n_out ? o1 : w.n_out;
            linear(kc, j)->product(&w, act + r * stride, n, o, o1, got + (size_t)r * w.n_out, w.n_out);
        }
    }
    for (uint32_t r = 0; r < n_row; r++)
        kc_same(kc, got + (size_t)r * w.n_out, y + r * ldy, w.n_out);
}

static void check_values(struct kc *kc, struct job *j, const struct shape *s, uint32_t n_out,
                         enum kc_pattern p)
{
    static const uint32_t n_row = 3;
    const size_t misalign = kc_below(kc, 4), ldx = s->n_in + kc_below(kc, 3), ldy = n_out + kc_below(kc, 3);
    float *x = kc_floats(kc, (n_row - 1) * ldx + s->n_in);
    float *y = kc_floats(kc, (n_row - 1) * ldy + n_out);
    const void *act;

    make_weight(kc, j, s, n_out, p == KC_ONEHOT ? KC_RANDOM : p, misalign);
    for (size_t r = 0; r < n_row; r++) /* the last row random: zeros and extremes beside ordinary rows */
        kc_fill(kc, x + r * ldx, s->n_in, r == n_row - 1 ? KC_RANDOM : p, 1e15f);
    kc_protect(kc, x);
    act = prepare(kc, j, x, ldx, n_row);
    linear(kc, j)->product(&j->w, act, n_row, 0, n_out, y, ldy);

    j->xq = grab(s->n_in, sizeof(double));
    j->slack = grab(s->n_in, sizeof(double));
    decode(j);
    for (size_t r = 0; r < n_row; r++)
        check_row(kc, j, x + r * ldx, y + r * ldy, r);
    kc_gaps(kc, y, n_row, n_out, ldy);
    if (linear(kc, j)->pack)
        check_packed(kc, j, act, n_row, 2, y, ldy);
    drop(j);
}

/* A NaN or an infinity in a row shows in all its outputs, whatever the precision, and in no other row. */
static void check_nonfinite(struct kc *kc, struct job *j, const struct shape *s, float bad)
{
    static const uint32_t n_row = 3, n_out = 5;
    float *x = kc_floats(kc, n_row * s->n_in), *y = kc_floats(kc, n_row * n_out);

    make_weight(kc, j, s, n_out, KC_RANDOM, 0);
    kc_fill(kc, x, n_row * s->n_in, KC_RANDOM, 0);
    x[s->n_in + kc_below(kc, s->n_in)] = bad;
    linear(kc, j)->product(&j->w, prepare(kc, j, x, s->n_in, n_row), n_row, 0, n_out, y, n_out);
    for (size_t i = 0; i < n_row * n_out; i++)
        kc_equal(kc, i, isfinite(y[i]) ? 1 : 0, i / n_out != 1);
}

/* Rows in blocks of any size, outputs in ranges of any size, rows prepared one by one: the same bits. */
static void check_splits(struct kc *kc, struct job *j, const struct shape *s, uint32_t n_out, uint32_t n_row)
{
    static const uint32_t blocks[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17, 64};
    const struct esp_linear *l = linear(kc, j);
    size_t stride;
    float *x = kc_floats(kc, (size_t)n_row * s->n_in);
    float *whole = kc_floats(kc, (size_t)n_row * n_out), *part = kc_floats(kc, (size_t)n_row * n_out);
    const uint8_t *act;

    make_weight(kc, j, s, n_out, KC_RANDOM, kc_below(kc, 4));
    kc_fill(kc, x, (size_t)n_row * s->n_in, KC_RANDOM, 0);
    stride = act_row_bytes(kc, j);
    act = prepare(kc, j, x, s->n_in, n_row);
    l->product(&j->w, act, n_row, 0, n_out, whole, n_out);
    if (l->prepare) {
        uint8_t *one = kc_alloc(kc, stride, 64, 0);

        for (size_t r = 0; r < n_row; r++) {
            memset(one, 0, stride);
            l->prepare(&j->w, x + r * s->n_in, s->n_in, 1, one);
            kc_equal(kc, r, memcmp(one, act + r * stride, stride) == 0, 1);
        }
    }
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        for (uint32_t r = 0; r < n_row; r += blocks[b]) {
            const uint32_t n = n_row - r < blocks[b] ? n_row - r : blocks[b];
            uint32_t o = 0;

            while (o < n_out) { /* ranges of 1 to 9 outputs, then long ones */
                const uint32_t left = n_out - o, len = 1 + kc_below(kc, o < n_out / 2 ? 9 : left);
                const uint32_t o1 = len < left ? o + len : n_out;

                l->product(&j->w, act + r * stride, n, o, o1, part + (size_t)r * n_out, n_out);
                o = o1;
            }
        }
        kc_same(kc, part, whole, (size_t)n_row * n_out);
        if (l->pack)
            check_packed(kc, j, act, n_row, blocks[b], whole, n_out);
        memset(part, 0xff, (size_t)n_row * n_out * sizeof *part);
    }
}

/* Every pattern on small shapes; random and constant inputs on those of real models. */
static void check_shape(struct kc *kc, struct job *j, const struct shape *s, uint32_t n_out,
                        bool every_pattern)
{
    for (int p = 0; p < KC_PATTERN_COUNT; p++) {
        if (!every_pattern && p != KC_RANDOM && p != KC_CONSTANT)
            continue;
        if (!kc_begin(kc, "in%u g%u scale%d out%u %s", s->n_in, s->group, (int)s->scale, n_out,
                      kc_pattern_names[p]))
            continue;
        check_values(kc, j, s, n_out, (enum kc_pattern)p);
        kc_end(kc);
    }
}

static void check_dense(struct kc *kc, struct job *j)
{
    static const uint32_t small[] = {1,  2,  3,  7,  8,  9,   15,  16,  17,  31,  32,
                                     33, 47, 63, 64, 65, 100, 127, 128, 129, 255, 257};
    static const uint32_t real[] = {256, 1024, 2048, 2560, 4096, 5120, 6144, 9728, 17408};

    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++)
        check_shape(kc, j, &(struct shape){small[i], 0, ESP_SCALE_F32}, 1 + (uint32_t)i % 7, true);
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++)
        check_shape(kc, j, &(struct shape){real[i], 0, ESP_SCALE_F32}, 5, false);
}

static void check_affine(struct kc *kc, struct job *j)
{
    static const uint32_t groups[] = {32, 64, 128}, counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 15};
    static const struct shape real[] = {
        {1024, 64, ESP_SCALE_BF16}, {2048, 64, ESP_SCALE_F16},   {2560, 32, ESP_SCALE_BF16},
        {4096, 128, ESP_SCALE_F32}, {5120, 64, ESP_SCALE_BF16},  {6144, 64, ESP_SCALE_F16},
        {9728, 64, ESP_SCALE_BF16}, {17408, 64, ESP_SCALE_BF16}, {17408, 32, ESP_SCALE_F32}};

    for (size_t g = 0; g < 3; g++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            const struct shape s = {groups[g] * counts[i], groups[g], (enum esp_scale_type)((g + i) % 3)};

            check_shape(kc, j, &s, 1 + (uint32_t)(i + g) % 9, i < 4);
        }
    }
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++)
        check_shape(kc, j, &real[i], 5, false);
}

static void check_rules(struct kc *kc, struct job *j)
{
    const bool grouped = esp_format_get(j->format)->grouped;
    const struct shape shapes[] = {
        {grouped ? 320 : 331, grouped ? 32 : 0, ESP_SCALE_F16},
        {grouped ? 1024 : 1000, grouped ? 64 : 0, ESP_SCALE_BF16},
        {grouped ? 640 : 640, grouped ? 128 : 0, ESP_SCALE_F32},
    };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        kc_begin(kc, "splits in%u g%u", shapes[i].n_in, shapes[i].group);
        check_splits(kc, j, &shapes[i], 37, 64);
        kc_end(kc);
        kc_begin(kc, "nan in%u g%u", shapes[i].n_in, shapes[i].group);
        check_nonfinite(kc, j, &shapes[i], NAN);
        kc_end(kc);
        kc_begin(kc, "inf in%u g%u", shapes[i].n_in, shapes[i].group);
        check_nonfinite(kc, j, &shapes[i], INFINITY);
        kc_end(kc);
    }
}

struct product_run {
    const struct esp_linear *l;
    const struct esp_weight *w;
    const void *act;
    uint32_t n_row, o1;
    float *y;
};

static void run_product(void *ctx)
{
    struct product_run *c = ctx;

    c->l->product(c->w, c->act, c->n_row, 0, c->o1, c->y, c->w->n_out);
}

/* Weights beyond the caches for few rows; the reference runs on a part of the outputs, which scales. */
static void bench_product(struct kc *kc, struct job *j, uint32_t n_in, uint32_t n_row, size_t weight_bytes)
{
    enum { PART = 32 };
    const bool grouped = esp_format_get(j->format)->grouped;
    const struct shape s = {n_in, grouped ? 64 : 0, ESP_SCALE_BF16};
    const uint32_t bits = esp_format_get(j->format)->bits + (grouped ? 1 : 0);
    const uint32_t n_out = (uint32_t)(weight_bytes * 8 / bits / s.n_in) / PART * PART;
    struct esp_weight packed;
    struct product_run c = {.l = linear(kc, j), .w = &packed, .n_row = n_row, .o1 = n_out};
    double seconds, ref_seconds;
    char what[64];
    float *x;

    kc_begin(kc, "bench");
    make_weight(kc, j, &s, n_out, KC_RANDOM, 0);
    packed = packed_of(kc, j);
    x = kc_alloc(kc, (size_t)n_row * s.n_in * sizeof *x, 64, 0);
    kc_fill(kc, x, (size_t)n_row * s.n_in, KC_RANDOM, 0);
    c.y = kc_alloc(kc, (size_t)n_row * n_out * sizeof *c.y, 64, 0);
    c.act = prepare(kc, j, x, s.n_in, n_row);
    seconds = kc_time(run_product, &c);
    ref_seconds = seconds;
    if (kc->below) {
        struct kc ref = *kc;

        ref.k = kc->ref;
        c.l = linear(&ref, j);
        c.w = &j->w;
        c.act = prepare(&ref, j, x, s.n_in, n_row);
        c.o1 = n_out / PART;
        ref_seconds = kc_time(run_product, &c) * PART;
        kc->n_buf = ref.n_buf;
        memcpy(kc->buf, ref.buf, sizeof kc->buf);
    }
    snprintf(what, sizeof what, "%ux%u rows %u", n_out, s.n_in, n_row);
    kc_report(kc, what, seconds, ref_seconds, (double)esp_weight_bytes(&j->w), 2.0 * n_row * n_out * s.n_in);
    kc_end(kc);
}

void kc_linear(struct kc *kc)
{
    for (int f = 0; f < ESP_FORMAT_COUNT; f++) {
        for (int a = 0; a < ESP_ACT_COUNT; a++) {
            struct job j = {.format = (enum esp_format_id)f, .act = (enum esp_act)a};
            const struct esp_linear *l = &kc->k->linear[f][a];
            const struct esp_linear *below = kc->below ? &kc->below->linear[f][a] : NULL;
            const bool same = below && l->prepare == below->prepare;

            if (esp_is_trellis(j.format) || esp_act_resolve(j.format, j.act) != j.act)
                continue;
            if (!kc_entry(kc, (kc_fn)l->product, same ? (kc_fn)below->product : NULL, "linear.%s.%s",
                          esp_format_get(j.format)->name, esp_act_name(j.act)))
                continue;
            if (kc->bench) {
                kc->n_dot = j.act == ESP_ACT_INT8X2 ? 2 : j.act == ESP_ACT_INT8 ? 1 : 0;
                bench_product(kc, &j, 4096, 1, kc->below ? 64 << 20 : 2 << 20);
                bench_product(kc, &j, 4096, 8, kc->below ? 16 << 20 : 1 << 20);
                bench_product(kc, &j, 4096, 64, kc->below ? 4 << 20 : 1 << 20);
                if (kc->below)
                    bench_product(kc, &j, 1024, 512, 4 << 20);
                kc->n_dot = 0;
                continue;
            }
            if (esp_format_get(j.format)->grouped)
                check_affine(kc, &j);
            else
                check_dense(kc, &j);
            check_rules(kc, &j);
        }
    }
}
