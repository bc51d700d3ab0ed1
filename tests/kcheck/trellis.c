/*
 * Products with trellis weights: every k, both axes, the interleaved form, every precision. The oracle takes
 * the twelve bits of a state one by one and sums in double, sharing no code with what it checks. The integer
 * precisions promise more than a bound: the same bits as the reference, on every level.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/trellis.h"

#define KC_TRELLIS(n) ((double)(n) / 8 + 48) /* roundings of a sum of n terms; kernels.h */

struct shape {
    uint32_t n_in, n_out;
    uint8_t axis;
    bool interleaved;
};

struct job {
    enum esp_format_id format;
    enum esp_act act;
    struct esp_weight w;
    double *value; /* [n_out][n_in] integer values */
    double *z;     /* [n_in] what the activations become */
    double *slack; /* [n_in] what the contract leaves open about z */
};

static const struct esp_linear *linear(const struct esp_kernels *k, const struct job *j)
{
    return &k->linear[j->format][j->act];
}

static double *grab(size_t n)
{
    double *p = calloc(n, sizeof *p);

    if (!p) {
        perror("kcheck");
        exit(2);
    }
    return p;
}

/* Any words are codes. misalign bytes are left between each plane and the unreadable page. */
static void make_weight(struct kc *kc, struct job *j, const struct shape *s, enum kc_pattern p,
                        size_t misalign)
{
    struct esp_weight *w = &j->w;
    uint8_t *codes, *scales;
    size_t rows, bytes;
    esp_error err;

    *w = (struct esp_weight){.format = j->format,
                             .scale_type = ESP_SCALE_F16,
                             .n_out = s->n_out,
                             .n_in = s->n_in,
                             .axis = s->axis,
                             .interleaved = s->interleaved};
    if (esp_weight_layout(w, "kcheck", &err) != ESP_OK) {
        fprintf(stderr, "kcheck: %s\n", err.message);
        exit(2);
    }
    rows = s->axis ? s->n_out : s->n_in;
    bytes = esp_weight_bytes(w) - 2 * rows;
    codes = kc_alloc(kc, bytes, 1, misalign);
    scales = kc_alloc(kc, 2 * rows, 1, misalign);
    for (size_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)(p == KC_EXTREME ? 0xff : p == KC_ZERO ? 0 : kc_next(kc));
    for (size_t i = 0; i < rows; i++) {
        const float v = kc_uniform(kc, 0.001f, 0.05f) * (kc_below(kc, 8) ? 1.0f : -1.0f);
        const uint16_t half = esp_f32_to_f16(p == KC_EXTREME ? v * 1e6f : p == KC_DENORMAL ? v * 1e-5f : v);

        memcpy(scales + 2 * i, &half, 2);
    }
    w->codes = codes;
    w->scales = scales;
    kc_protect(kc, codes);
    kc_protect(kc, scales);
}

/* Integer value of stored row r, column c: each bit of the window looked up on its own. */
static int32_t value_at(const struct esp_weight *w, size_t r, size_t c)
{
    const size_t k = (size_t)w->format - ESP_FORMAT_TRELLIS1 + 1, block_bits = 256 * k;
    const size_t rows = w->axis ? w->n_out : w->n_in, cols = w->axis ? w->n_in : w->n_out;
    const size_t block =
        w->interleaved ? c / 512 * rows * 2 + r * 2 + c / 256 % 2 : r * (cols / 256) + c / 256;
    uint32_t s = 0, x;

    for (size_t i = 0; i < 12; i++) {
        const size_t bit = ((255 - c % 256) * k + i) % block_bits + block * block_bits;

        s |= (uint32_t)(w->codes[bit / 8] >> bit % 8 & 1) << i;
    }
    x = s * 34038481u + 76625530u;
    return (int32_t)((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)) - 510;
}

static float factor_at(const struct esp_weight *w, size_t r)
{
    uint16_t half;

    memcpy(&half, w->scales + 2 * r, 2);
    return esp_f16_to_f32(half) * 0x1.bb688ep-8f;
}

static void decode(struct job *j)
{
    const struct esp_weight *w = &j->w;

    j->value = grab((size_t)w->n_out * w->n_in);
    j->z = grab(w->n_in);
    j->slack = grab(w->n_in);
    for (size_t o = 0; o < w->n_out; o++) {
        for (size_t i = 0; i < w->n_in; i++)
            j->value[o * w->n_in + i] = w->axis ? value_at(w, o, i) : value_at(w, i, o);
    }
}

static void drop(struct job *j)
{
    free(j->value);
    free(j->z);
    free(j->slack);
}

/* What prepare makes of a row, in value; kernels.h. */
static void prepare_row(struct job *j, const float *x)
{
    const uint32_t n = j->w.n_in;
    const float top = j->act == ESP_ACT_INT8 ? 127 : 127 * 128;

    for (uint32_t i = 0; i < n; i++) {
        const float v = j->act == ESP_ACT_BF16 ? esp_bf16_to_f32(esp_f32_to_bf16(x[i])) : x[i];

        j->z[i] = (double)(j->w.axis ? v : v * factor_at(&j->w, i));
        j->slack[i] = 0;
    }
    if (j->act == ESP_ACT_F32 || j->act == ESP_ACT_BF16)
        return;
    for (uint32_t i0 = 0; i0 < n; i0 += 256) {
        const uint32_t i1 = n - i0 < 256 ? n : i0 + 256;
        float max = 0, s;

        for (uint32_t i = i0; i < i1; i++)
            max = fabsf((float)j->z[i]) > max ? fabsf((float)j->z[i]) : max;
        s = max / top;
        for (uint32_t i = i0; i < i1; i++) {
            j->slack[i] = s >= 0x1p-126f ? 0 : max; /* below the normal range a group may be zero */
            j->z[i] = s >= 0x1p-126f ? (double)s * (double)rintf((float)j->z[i] / s) : 0;
        }
    }
}

static void check_row(struct kc *kc, struct job *j, const float *x, const float *y, size_t row)
{
    const size_t n = j->w.n_in;

    prepare_row(j, x);
    for (size_t o = 0; o < j->w.n_out; o++) {
        const double f = j->w.axis ? (double)factor_at(&j->w, o) : 1;
        double sum = 0, terms = 0, floor = KC_TINY * 512 * (double)n;

        for (size_t i = 0; i < n; i++) {
            const double v = f * j->value[o * n + i];

            sum += j->z[i] * v;
            terms += fabs(j->z[i] * v);
            floor += j->slack[i] * fabs(v);
        }
        kc_near(kc, row * j->w.n_out + o, y[o], sum, KC_TRELLIS(n) * KC_U * terms + floor);
    }
}

static const void *prepare(struct kc *kc, const struct esp_kernels *k, const struct job *j, const float *x,
                           size_t ldx, uint32_t n_row)
{
    const struct esp_linear *l = linear(k, j);
    const size_t row_bytes = l->prepared_bytes(j->w.n_in, j->w.group);
    uint8_t *act = kc_alloc(kc, n_row * row_bytes, 64, 0);

    memset(act, 0, n_row * row_bytes); /* bytes that a kernel leaves unused compare equal */
    l->prepare(&j->w, x, ldx, n_row, act);
    kc_protect(kc, act);
    return act;
}

/* The integer precisions give the reference's bits. */
static void check_exact(struct kc *kc, struct job *j, const float *x, size_t ldx, const float *y, size_t ldy)
{
    const struct esp_weight *w = &j->w;
    float *want = kc_floats(kc, w->n_out);

    if (j->act != ESP_ACT_INT8 && j->act != ESP_ACT_INT8X2)
        return;
    for (size_t r = 0; r < 3; r++) {
        linear(kc->ref, j)
            ->product(w, prepare(kc, kc->ref, j, x + r * ldx, ldx, 1), 1, 0, w->n_out, want, w->n_out);
        kc_same(kc, y + r * ldy, want, w->n_out);
    }
}

static void check_values(struct kc *kc, struct job *j, const struct shape *s, enum kc_pattern p)
{
    static const uint32_t n_row = 3;
    const size_t misalign = kc_below(kc, 4), ldx = s->n_in + kc_below(kc, 3),
                 ldy = s->n_out + kc_below(kc, 3);
    float *x = kc_floats(kc, (n_row - 1) * ldx + s->n_in);
    float *y = kc_floats(kc, (n_row - 1) * ldy + s->n_out);

    make_weight(kc, j, s, p == KC_ONEHOT ? KC_RANDOM : p, misalign);
    for (size_t r = 0; r < n_row; r++) /* the last row random: zeros and extremes beside ordinary rows */
        kc_fill(kc, x + r * ldx, s->n_in, r == n_row - 1 ? KC_RANDOM : p, 1e15f);
    kc_protect(kc, x);
    linear(kc->k, j)->product(&j->w, prepare(kc, kc->k, j, x, ldx, n_row), n_row, 0, s->n_out, y, ldy);
    decode(j);
    for (size_t r = 0; r < n_row; r++)
        check_row(kc, j, x + r * ldx, y + r * ldy, r);
    kc_gaps(kc, y, n_row, s->n_out, ldy);
    check_exact(kc, j, x, ldx, y, ldy);
    drop(j);
}

/* A NaN or an infinity in a row shows in all its outputs, whatever the precision, and in no other row. */
static void check_nonfinite(struct kc *kc, struct job *j, const struct shape *s, float bad)
{
    static const uint32_t n_row = 3;
    float *x = kc_floats(kc, n_row * s->n_in), *y = kc_floats(kc, n_row * s->n_out);

    make_weight(kc, j, s, KC_RANDOM, 0);
    kc_fill(kc, x, n_row * s->n_in, KC_RANDOM, 0);
    x[s->n_in + kc_below(kc, s->n_in)] = bad;
    linear(kc->k, j)->product(&j->w, prepare(kc, kc->k, j, x, s->n_in, n_row), n_row, 0, s->n_out, y,
                              s->n_out);
    for (size_t i = 0; i < n_row * s->n_out; i++)
        kc_equal(kc, i, isfinite(y[i]) ? 1 : 0, i / s->n_out != 1);
}

/* Rows prepared one by one: the same bytes. */
static void check_prepare(struct kc *kc, const struct job *j, const float *x, const uint8_t *act,
                          uint32_t n_row)
{
    const size_t stride = linear(kc->k, j)->prepared_bytes(j->w.n_in, j->w.group);
    uint8_t *one = kc_alloc(kc, stride, 64, 0);

    for (size_t r = 0; r < n_row; r++) {
        memset(one, 0, stride);
        linear(kc->k, j)->prepare(&j->w, x + r * j->w.n_in, j->w.n_in, 1, one);
        kc_equal(kc, r, memcmp(one, act + r * stride, stride) == 0, 1);
    }
}

/* Rows in blocks of any size, outputs in ranges that the weight allows, views: the same bits. */
static void check_splits(struct kc *kc, struct job *j, const struct shape *s, uint32_t n_row)
{
    static const uint32_t blocks[] = {1, 2, 3, 4, 5, 8, 17, 40, 65};
    const struct esp_linear *l = linear(kc->k, j);
    const size_t stride = l->prepared_bytes(s->n_in, 0), n = (size_t)n_row * s->n_out;
    float *x = kc_floats(kc, (size_t)n_row * s->n_in), *whole = kc_floats(kc, n), *part = kc_floats(kc, n);
    const uint8_t *act;
    uint32_t align, unit;

    make_weight(kc, j, s, KC_RANDOM, kc_below(kc, 4));
    align = esp_weight_out_align(&j->w);
    unit = esp_weight_out_unit(&j->w);
    kc_fill(kc, x, (size_t)n_row * s->n_in, KC_RANDOM, 0);
    act = prepare(kc, kc->k, j, x, s->n_in, n_row);
    l->product(&j->w, act, n_row, 0, s->n_out, whole, s->n_out);
    check_prepare(kc, j, x, act, n_row);
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        for (uint32_t r = 0; r < n_row; r += blocks[b]) {
            const uint32_t rows = n_row - r < blocks[b] ? n_row - r : blocks[b];

            for (uint32_t o = 0, o1; o < s->n_out; o = o1) {
                o1 = o + align * (1 + kc_below(kc, b % 2 ? 9 : 150));
                o1 = o1 < s->n_out ? o1 : s->n_out;
                l->product(&j->w, act + r * stride, rows, o, o1, part + (size_t)r * s->n_out, s->n_out);
            }
        }
        kc_same(kc, part, whole, n);
        memset(part, 0xff, n * sizeof *part);
    }
    if (s->n_out > unit) {
        const struct esp_weight v = esp_weight_rows(&j->w, unit, s->n_out - unit);

        l->product(&j->w, act, n_row, 0, unit, part, s->n_out);
        l->product(&v, act, n_row, 0, v.n_out, part + unit, s->n_out);
        kc_same(kc, part, whole, n);
    }
}

static void check_format(struct kc *kc, struct job *j)
{
    static const struct shape shapes[] = {
        {256, 1, 1, false},   {512, 2, 1, false},   {768, 3, 1, false},   {256, 5, 1, false},
        {1280, 9, 1, false},  {1, 256, 0, false},   {2, 512, 0, false},   {7, 256, 0, false},
        {33, 768, 0, false},  {255, 256, 0, false}, {256, 512, 0, false}, {257, 256, 0, false},
        {600, 256, 0, false}, {1, 512, 0, true},    {24, 1024, 0, true},  {300, 512, 0, true},
    };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (shapes[i].interleaved && j->format != ESP_FORMAT_TRELLIS3)
            continue;
        for (int p = 0; p < KC_PATTERN_COUNT; p++) {
            if (p && i % 3)
                continue;
            if (!kc_begin(kc, "in%u out%u axis%u%s %s", shapes[i].n_in, shapes[i].n_out, shapes[i].axis,
                          shapes[i].interleaved ? " interleaved" : "", kc_pattern_names[p]))
                continue;
            check_values(kc, j, &shapes[i], (enum kc_pattern)p);
            kc_end(kc);
        }
    }
}

static void check_real(struct kc *kc, struct job *j)
{
    static const struct shape shapes[] = {
        {5120, 4, 1, false}, {17408, 2, 1, false}, {9728, 256, 0, false}, {4096, 512, 0, true}};

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (j->format < ESP_FORMAT_TRELLIS2 || j->format > ESP_FORMAT_TRELLIS4 ||
            (shapes[i].interleaved && j->format != ESP_FORMAT_TRELLIS3))
            continue;
        if (!kc_begin(kc, "real in%u out%u axis%u", shapes[i].n_in, shapes[i].n_out, shapes[i].axis))
            continue;
        check_values(kc, j, &shapes[i], KC_RANDOM);
        kc_end(kc);
    }
}

static void check_rules(struct kc *kc, struct job *j)
{
    static const struct shape shapes[] = {
        {768, 37, 1, false}, {512, 203, 1, false}, {301, 768, 0, false}, {77, 1024, 0, true}};

    /* paths for many rows are the same for all k: those of real models are enough */
    const uint32_t n_row = j->format >= ESP_FORMAT_TRELLIS2 && j->format <= ESP_FORMAT_TRELLIS4 ? 77 : 40;

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (shapes[i].interleaved && j->format != ESP_FORMAT_TRELLIS3)
            continue;
        kc_begin(kc, "splits out%u axis%u%s", shapes[i].n_out, shapes[i].axis,
                 shapes[i].interleaved ? " interleaved" : "");
        check_splits(kc, j, &shapes[i], n_row);
        kc_end(kc);
        kc_begin(kc, "nan axis%u", shapes[i].axis);
        check_nonfinite(kc, j, &shapes[i], NAN);
        kc_end(kc);
        kc_begin(kc, "inf axis%u", shapes[i].axis);
        check_nonfinite(kc, j, &shapes[i], -INFINITY);
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

/* The reference runs on a quarter of the outputs, which scales. */
static void bench_product(struct kc *kc, struct job *j, const struct shape *s, uint32_t n_row)
{
    struct product_run c = {.l = linear(kc->k, j), .w = &j->w, .n_row = n_row, .o1 = s->n_out};
    double seconds, ref_seconds;
    char what[96];
    float *x;

    kc_begin(kc, "bench");
    make_weight(kc, j, s, KC_RANDOM, 0);
    x = kc_alloc(kc, (size_t)n_row * s->n_in * sizeof *x, 64, 0);
    kc_fill(kc, x, (size_t)n_row * s->n_in, KC_RANDOM, 0);
    c.y = kc_alloc(kc, (size_t)n_row * s->n_out * sizeof *c.y, 64, 0);
    c.act = prepare(kc, kc->k, j, x, s->n_in, n_row);
    seconds = kc_time(run_product, &c);
    ref_seconds = seconds;
    if (kc->below) {
        c.l = linear(kc->ref, j);
        c.act = prepare(kc, kc->ref, j, x, s->n_in, n_row);
        c.o1 = s->n_out / 4;
        ref_seconds = kc_time(run_product, &c) * 4;
    }
    snprintf(what, sizeof what, "axis %u %ux%u rows %u %.2f Gweights/s", s->axis, s->n_out, s->n_in, n_row,
             (double)s->n_out * s->n_in / seconds * 1e-9);
    kc_report(kc, what, seconds, ref_seconds, (double)esp_weight_bytes(&j->w),
              2.0 * n_row * s->n_out * s->n_in);
    kc_end(kc);
}

/* Codes that stay in the second-level cache, as the speed of decoding is the question; and one pair beyond
 * it. */
static void bench(struct kc *kc, struct job *j)
{
    static const struct shape far1 = {5120, 8192, 1, false}, far0 = {17408, 2560, 0, false},
                              far0_pairs = {17408, 2560, 0, true};
    static const struct shape along1 = {4096, 512, 1, false}, along0 = {2048, 1024, 0, false};
    static const uint32_t rows[] = {1, 2, 8, 64};

    for (size_t i = 0; i < (kc->below ? 4 : 1); i++) {
        bench_product(kc, j, &along1, rows[i]);
        bench_product(kc, j, &along0, rows[i]);
    }
    if (j->format == ESP_FORMAT_TRELLIS3 && kc->below) {
        bench_product(kc, j, &far1, 1);
        bench_product(kc, j, &far0, 1);
        bench_product(kc, j, &far0_pairs, 1);
    }
}

void kc_trellis(struct kc *kc)
{
    for (int f = ESP_FORMAT_TRELLIS1; f <= ESP_FORMAT_TRELLIS8; f++) {
        for (int a = 0; a < ESP_ACT_COUNT; a++) {
            struct job j = {.format = (enum esp_format_id)f, .act = (enum esp_act)a};
            const struct esp_linear *l = &kc->k->linear[f][a];
            const struct esp_linear *below = kc->below ? &kc->below->linear[f][a] : NULL;
            const bool same = below && l->prepare == below->prepare;

            if (!kc_entry(kc, (kc_fn)l->product, same ? (kc_fn)below->product : NULL, "linear.%s.%s",
                          esp_format_get(j.format)->name, esp_act_name(j.act)))
                continue;
            if (kc->bench) {
                bench(kc, &j);
                continue;
            }
            check_format(kc, &j);
            check_real(kc, &j);
            check_rules(kc, &j);
        }
    }
}
