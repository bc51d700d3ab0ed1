/*
 * Attention over one span, and merging of partials. The maximum is compared by the error of a score; sum and
 * values are compared relative to the maximum that the kernel chose, since (m, l, acc) means the same for any
 * m. One query or many, running over spans or merging afterwards: the same bits.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/turboquant.h"

struct job {
    struct esp_attend a;
    enum esp_kv type;
    struct esp_kv_scheme scheme;
    float *decoded[2]; /* of coded rows: [n_pos][head_dim] keys and values by the scalar decoder */
    float *size[2];    /* what their last rounding is relative to: |scale * code| where a bias is added */
    float *q, *scratch;
    uint32_t *n_visible;
    uint32_t n_pos;
};

/* Element i of key (which = 0) or value t. */
static double kv_at(const struct job *j, uint32_t which, size_t t, size_t i)
{
    const void *base = which ? j->a.v : j->a.k;

    if (j->type == ESP_KV_CODED)
        return j->decoded[which][t * j->a.head_dim + i];
    if (j->type == ESP_KV_F32)
        return ((const float *)base)[t * j->a.ld_kv + i];
    return esp_bf16_to_f32(((const uint16_t *)base)[t * j->a.ld_kv + i]);
}

/* Bound of the difference between a kernel's decoded number and the scalar one: a rounding each. */
static double kv_error(const struct job *j, uint32_t which, size_t t, size_t i)
{
    return j->type == ESP_KV_CODED ? 3 * KC_U * j->size[which][t * j->a.head_dim + i] + KC_TINY : 0;
}

/*
 * Bound of what a score loses where query r becomes integers and the codes of key t are multiplied as
 * bytes: half a step an element (and the rounding of its division), and sums of bytes of up to 255 beside
 * zero points that are 128 lower.
 */
static double query_error(const struct job *j, size_t r, size_t t)
{
    const struct esp_attend *a = &j->a;
    const uint32_t d = a->head_dim, group = j->scheme.group;
    const uint8_t *half = (const uint8_t *)a->k + t * esp_kv_key_bytes(&j->scheme, d) + d;
    double top = 0, keys = 0, sums = 0;

    for (uint32_t i = 0; i < d; i++) {
        const double q = fabs((double)a->q[r * a->ldq + i]);
        uint16_t scale, zero;

        memcpy(&scale, half + (size_t)(i / group) * 2, 2);
        memcpy(&zero, half + (size_t)(d / group + i / group) * 2, 2);
        top = q > top ? q : top;
        keys += fabs(kv_at(j, 0, t, i));
        sums += q * fabs((double)esp_f16_to_f32(scale)) * (255 + fabs((double)esp_f16_to_f32(zero) - 128));
    }
    return 0.51 * top / ESP_QUERY_TOP * keys + KC_SUM(d) * KC_U * sums;
}

/* The scalar decoder's numbers of coded rows, and the sizes that roundings are relative to. */
static void decode(struct kc *kc, struct job *j, uint32_t which, const uint8_t *rows, size_t row_bytes)
{
    const uint32_t d = j->a.head_dim, group = j->scheme.group;
    float *x = j->decoded[which] = kc_floats(kc, (size_t)j->n_pos * d);
    float *size = j->size[which] = kc_floats(kc, (size_t)j->n_pos * d);

    for (size_t t = 0; t < j->n_pos; t++, x += d, size += d) {
        if (which)
            esp_kv_decode_value(&j->scheme, d, rows + t * row_bytes, x);
        else
            esp_kv_decode_key(&j->scheme, d, rows + t * row_bytes, x);
        for (uint32_t i = 0; i < d; i++) {
            float most = 0;

            for (uint32_t g = i / group * group; g < i / group * group + group; g++)
                most = fabsf(x[g]) > most ? fabsf(x[g]) : most;
            size[i] = j->scheme.kind == ESP_KV_KIND_AFFINE ? 2.1f * most : fabsf(x[i]); /* bias is an end */
        }
    }
}

static void *make_codes(struct kc *kc, struct job *j, uint32_t which, const float *x)
{
    const uint32_t d = j->a.head_dim;
    const size_t bytes = which ? esp_kv_value_bytes(&j->scheme, d) : esp_kv_key_bytes(&j->scheme, d);
    uint8_t *rows = kc_alloc(kc, j->n_pos * bytes, 1, 0);

    for (size_t t = 0; t < j->n_pos; t++) {
        if (which)
            esp_kv_encode_value(&j->scheme, d, x + t * j->a.ld_kv, rows + t * bytes);
        else
            esp_kv_encode_key(&j->scheme, d, x + t * j->a.ld_kv, rows + t * bytes);
    }
    kc_protect(kc, rows);
    decode(kc, j, which, rows, bytes);
    return rows;
}

/* Keys or values of exactly n_pos rows: the next row is unreadable. */
static void *make_kv(struct kc *kc, struct job *j, uint32_t which, enum kc_pattern p, float extreme)
{
    const size_t n = j->n_pos ? (j->n_pos - 1) * j->a.ld_kv + j->a.head_dim : 0;
    float *x = kc_floats(kc, n);
    uint16_t *half;

    for (size_t t = 0; t < j->n_pos; t++)
        kc_fill(kc, x + t * j->a.ld_kv, j->a.head_dim, p, extreme);
    if (j->type == ESP_KV_CODED)
        return make_codes(kc, j, which, x);
    if (j->type == ESP_KV_F32) {
        kc_protect(kc, x);
        return x;
    }
    half = kc_alloc(kc, n * sizeof *half, sizeof *half, 0);
    for (size_t t = 0; t < j->n_pos; t++) {
        for (size_t i = 0; i < j->a.head_dim; i++)
            half[t * j->a.ld_kv + i] = esp_f32_to_bf16(x[t * j->a.ld_kv + i]);
    }
    kc_protect(kc, half);
    return half;
}

/* A running state as earlier spans would leave it, or the empty one. */
static void make_state(struct kc *kc, struct job *j)
{
    for (size_t r = 0; r < j->a.n_query; r++) {
        const bool empty = kc_below(kc, 3) == 0;

        j->a.m[r] = empty ? -INFINITY : kc_uniform(kc, -5, 5);
        j->a.l[r] = empty ? 0 : kc_uniform(kc, 1, 300);
        for (size_t i = 0; i < j->a.head_dim; i++)
            j->a.acc[r * j->a.ld_acc + i] = empty ? 0 : kc_normal(kc) * 10;
    }
}

static void make(struct kc *kc, struct job *j, uint32_t head_dim, uint32_t n_query, uint32_t n_pos,
                 enum kc_pattern p)
{
    struct esp_attend *a = &j->a;

    j->n_pos = n_pos;
    *a = (struct esp_attend){.head_dim = head_dim, .n_query = n_query, .int8_query = a->int8_query};
    a->ld_kv = head_dim + kc_below(kc, 3);
    a->ldq = head_dim + kc_below(kc, 3);
    a->ld_acc = head_dim + kc_below(kc, 3);
    a->scheme = &j->scheme;
    a->k = make_kv(kc, j, 0, p, 30);
    a->v = make_kv(kc, j, 1, p == KC_EXTREME ? KC_EXTREME : KC_RANDOM, 1e6f);
    a->q = j->q = kc_floats(kc, (n_query - 1) * a->ldq + head_dim);
    a->n_visible = j->n_visible = kc_alloc(kc, n_query * sizeof(uint32_t), 4, 0);
    a->m = kc_floats(kc, n_query);
    a->l = kc_floats(kc, n_query);
    a->acc = kc_floats(kc, (n_query - 1) * a->ld_acc + head_dim);
    j->scratch = kc_alloc(kc, esp_attend_scratch_floats(n_query) * sizeof(float), 64, 0);
    for (size_t r = 0; r < n_query; r++) {
        kc_fill(kc, j->q + r * a->ldq, head_dim, KC_RANDOM, 0);
        for (size_t i = 0; i < head_dim; i++)
            j->q[r * a->ldq + i] /= sqrtf((float)head_dim);
        j->n_visible[r] = r == n_query / 2 ? n_pos : kc_below(kc, n_pos + 1);
    }
    make_state(kc, j);
    kc_protect(kc, j->q);
    kc_protect(kc, j->n_visible);
}

static void run(const struct esp_kernels *k, const struct job *j, const struct esp_attend *a)
{
    if (j->type == ESP_KV_CODED)
        k->attend_codes(a, j->scratch);
    else
        k->attend[j->type](a, j->scratch);
}

/* Copies of the running state, to compare with or to start again from. */
struct state {
    float *m, *l, *acc;
};

static struct state copy_state(struct kc *kc, const struct job *j)
{
    const size_t n = j->a.n_query, len = (n - 1) * j->a.ld_acc + j->a.head_dim;
    struct state s = {kc_floats(kc, n), kc_floats(kc, n), kc_floats(kc, len)};

    memcpy(s.m, j->a.m, n * sizeof(float));
    memcpy(s.l, j->a.l, n * sizeof(float));
    memcpy(s.acc, j->a.acc, len * sizeof(float));
    return s;
}

/* Whether integers are multiplied here, with keys or values that can be. */
static bool rounds(const struct kc *kc, const struct job *j)
{
    return j->type == ESP_KV_CODED && j->scheme.kind == ESP_KV_KIND_TURBO && j->a.int8_query &&
           kc->k->int8_codes;
}

/*
 * Bound of what element i of the n values' sum loses where weights become integers of one step in a block
 * of positions, and values words, shares of the largest in their group there: half a step of each, a word's
 * by three roundings (its level, its scale, their product).
 */
static double value_error(const struct job *j, size_t n, const double *weight, uint32_t i)
{
    const struct esp_kv_scheme *scheme = &j->scheme;
    const uint32_t d = j->a.head_dim;
    const size_t row = esp_kv_value_bytes(scheme, d),
                 at = (size_t)d * scheme->v_bits / 8 + i / scheme->group * 2;
    const float *levels = esp_turbo_codebook_of(scheme)->levels;
    double level = 0, error = 0;

    for (int c = 0; c < 1 << scheme->v_bits; c++)
        level = fabs((double)levels[c]) > level ? fabs((double)levels[c]) : level;
    for (size_t t0 = 0; t0 < n; t0 += ESP_VALUE_BLOCK) {
        double scale = 0, top = 0, sum = 0, values = 0, step, word;
        size_t end = t0;

        for (; end < n && end < t0 + ESP_VALUE_BLOCK; end++) {
            top = weight[end] > top ? weight[end] : top;
            sum += weight[end];
            values += fabs(kv_at(j, 1, end, i));
        }
        for (size_t t = t0; t < end; t++) {
            uint16_t half;

            memcpy(&half, (const uint8_t *)j->a.v + t * row + at, 2);
            scale = esp_f16_to_f32(half) > scale ? (double)esp_f16_to_f32(half) : scale;
        }
        step = top / 32767 > sum / ESP_WEIGHT_SUM ? top / 32767 : sum / ESP_WEIGHT_SUM;
        word = 1.6 * scale * level / ESP_VALUE_TOP;
        error += 0.51 * step * (values + (double)(end - t0) * word) + word * sum;
    }
    return error;
}

static void check_query(struct kc *kc, const struct job *j, const struct state *before, size_t r)
{
    const bool rounded = rounds(kc, j);
    static double weight[ESP_SPAN], error[ESP_SPAN];
    const struct esp_attend *a = &j->a;
    const size_t n = a->n_visible[r];
    const double m = a->m[r], m0 = before->m[r];
    const double keep = isinf(m0) ? 0 : exp(m0 - m),
                 keep_error = keep * (KC_EXP + fabs(keep > 0 ? m0 - m : 0)) * KC_U;
    double top = m0, top_error = 0, sum = keep * before->l[r], sum_error = keep_error * before->l[r];

    for (size_t t = 0; t < n; t++) {
        double score = 0, terms = 0, decoding = 0, score_error;

        for (size_t i = 0; i < a->head_dim; i++) {
            const double p = a->q[r * a->ldq + i] * kv_at(j, 0, t, i);

            score += p;
            terms += fabs(p);
            decoding += fabs(a->q[r * a->ldq + i]) * kv_error(j, 0, t, i);
        }
        score_error = KC_SUM(a->head_dim) * KC_U * terms + decoding + a->head_dim * KC_TINY +
                      (rounded && j->scheme.k_bits == 8 ? query_error(j, r, t) : 0);
        top_error = score_error > top_error ? score_error : top_error;
        top = score > top ? score : top;
        weight[t] = exp(score - m);
        /* the score's own error, the rounding of score - m (twice: span, then merge), exp twice, ascending
         * sum */
        error[t] =
            weight[t] * (score_error + (2 * fabs(score - m) + 2 * KC_EXP + (double)n + 8) * KC_U) + 0x1p-125;
        sum += weight[t];
        sum_error += error[t];
    }
    kc_near(kc, r, m, top, top_error);
    kc_near(kc, r, a->l[r], sum, 1.1 * sum_error + 4 * KC_U * sum);
    for (size_t i = 0; i < a->head_dim; i++) {
        const double old = before->acc[r * a->ld_acc + i];
        double value = keep * old, bound = keep_error * fabs(old) + 4 * KC_U * fabs(value);

        if (rounded && j->scheme.v_bits <= 4)
            bound += value_error(j, n, weight, (uint32_t)i);
        for (size_t t = 0; t < n; t++) {
            const double v = kv_at(j, 1, t, i);

            value += weight[t] * v;
            bound += (error[t] + 4 * KC_U * weight[t]) * fabs(v) + weight[t] * kv_error(j, 1, t, i);
        }
        kc_near(kc, r * a->ld_acc + i, a->acc[r * a->ld_acc + i], value, 1.1 * bound + KC_TINY);
    }
}

static void check_values(struct kc *kc, const struct job *j, const struct state *before)
{
    const struct esp_attend *a = &j->a;

    for (size_t r = 0; r < a->n_query; r++) {
        if (a->n_visible[r]) {
            check_query(kc, j, before, r);
            continue;
        }
        kc_same(kc, a->m + r, before->m + r, 1); /* untouched */
        kc_same(kc, a->l + r, before->l + r, 1);
        kc_same(kc, a->acc + r * a->ld_acc, before->acc + r * a->ld_acc, a->head_dim);
    }
    kc_gaps(kc, a->acc, a->n_query, a->head_dim, a->ld_acc);
}

/* Each query alone, from the same state; and each query as an empty partial, merged into the state
 * afterwards. */
static void check_alone(struct kc *kc, const struct job *j, const struct state *before)
{
    const struct esp_attend *all = &j->a;
    float *acc = kc_floats(kc, all->head_dim), *part = kc_floats(kc, all->head_dim);

    for (size_t r = 0; r < all->n_query; r++) {
        struct esp_attend a = *all;
        float m = before->m[r], l = before->l[r], m2 = -INFINITY, l2 = 0;

        memcpy(acc, before->acc + r * all->ld_acc, all->head_dim * sizeof *acc);
        memset(part, 0, all->head_dim * sizeof *part);
        a.n_query = 1;
        a.q = all->q + r * all->ldq;
        a.n_visible = all->n_visible + r;
        a.m = &m;
        a.l = &l;
        a.acc = acc;
        run(kc->k, j, &a);
        kc_same(kc, &m, all->m + r, 1);
        kc_same(kc, &l, all->l + r, 1);
        kc_same(kc, acc, all->acc + r * all->ld_acc, all->head_dim);

        a.m = &m2;
        a.l = &l2;
        a.acc = part;
        m = before->m[r];
        l = before->l[r];
        memcpy(acc, before->acc + r * all->ld_acc, all->head_dim * sizeof *acc);
        run(kc->k, j, &a);
        kc->k->attend_merge(&m, &l, acc, m2, l2, part, all->head_dim);
        kc_same(kc, &m, all->m + r, 1);
        kc_same(kc, &l, all->l + r, 1);
        kc_same(kc, acc, all->acc + r * all->ld_acc, all->head_dim);
    }
}

static void check_one(struct kc *kc, struct job j, uint32_t head_dim, uint32_t n_query, uint32_t n_pos,
                      enum kc_pattern p)
{
    char name[ESP_KV_NAME] = "";
    struct state before;

    if (j.type == ESP_KV_CODED)
        esp_kv_name(&j.scheme, name);
    if (!kc_begin(kc, "%s%shd%u query%u pos%u %s", name, j.a.int8_query ? " int8 " : "", head_dim, n_query,
                  n_pos, kc_pattern_names[p]))
        return;
    make(kc, &j, head_dim, n_query, n_pos, p);
    before = copy_state(kc, &j);
    run(kc->k, &j, &j.a);
    check_values(kc, &j, &before);
    check_alone(kc, &j, &before);
    kc_end(kc);
}

static void check_attend(struct kc *kc, enum esp_kv type)
{
    static const uint32_t dims[] = {16, 32, 48, 64, 80, 128, 256, 512};
    static const uint32_t queries[] = {1, 2, 3, 4, 6, 7, 8, 13, 16, 17};
    static const uint32_t positions[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 100, 255, 256};
    const struct job j = {.type = type};

    for (size_t d = 0; d < 8; d++) {
        for (size_t i = 0; i < 14; i++)
            check_one(kc, j, dims[d], queries[(d + i) % 10], positions[i],
                      (enum kc_pattern)((d + i) % KC_PATTERN_COUNT));
    }
    for (int p = 0; p < KC_PATTERN_COUNT; p++)
        check_one(kc, j, 256, 4, 256, (enum kc_pattern)p);
    check_one(kc, j, 256, 64, 256, KC_RANDOM);
}

/* The schemes in turn through sizes, numbers of queries and of positions; every pair of code widths is there.
 */
static void check_scheme(struct kc *kc, struct job j, size_t turn)
{
    static const uint32_t dims[] = {64, 96, 128, 256, 512};
    static const uint32_t queries[] = {1, 2, 3, 4, 5, 6, 7, 16, 67};
    static const uint32_t positions[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 100, 255, 256};

    for (size_t d = 0; d < 5; d++) {
        if (esp_kv_check(&j.scheme, dims[d], NULL) != ESP_OK)
            continue;
        for (size_t i = 0; i < 14; i++)
            check_one(kc, j, dims[d], queries[(turn + d + i) % 9], positions[i],
                      (enum kc_pattern)((turn + d + i) % KC_PATTERN_COUNT));
    }
    for (int p = 0; p < KC_PATTERN_COUNT; p++)
        check_one(kc, j, 256, 4, 256, (enum kc_pattern)p);
}

static void check_codes(struct kc *kc)
{
    static const char *const schemes[] = {
        "q8:g32",     "q6:g32",         "q4:g32", "turbo:k8v3", "turbo:k8v2", "turbo:k5v4", "turbo:k4v5",
        "turbo:k2v8", "turbo:k8v3:own", "q8",     "q6:g128",    "q4:g128",    "turbo:k8v8", "turbo:k4v4"};
    struct job j = {.type = ESP_KV_CODED};

    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        if (esp_kv_parse(&j.scheme, schemes[s], NULL) != ESP_OK)
            kc_equal(kc, s, 0, 1);
        j.a.int8_query = false;
        check_scheme(kc, j, s);
        j.a.int8_query = true;
        if (rounds(kc, &j)) /* else the same function */
            check_scheme(kc, j, s + 1);
    }
}

static void merge_values(struct kc *kc, size_t n, float m0, float l0, float m2, float l2)
{
    float *acc = kc_floats(kc, n), *acc2 = kc_floats(kc, n), *old = kc_floats(kc, n), m = m0, l = l0;
    const double top = m0 > m2 ? m0 : m2;
    const double keep = isinf(m0) ? 0 : exp(m0 - top), take = isinf(m2) ? 0 : exp(m2 - top);
    const double error = (KC_EXP + 4 + fabs(isinf(m0) || isinf(m2) ? 0.0 : (double)m0 - m2)) * KC_U;

    kc_fill(kc, acc, n, l0 == 0 ? KC_ZERO : KC_RANDOM, 0);
    kc_fill(kc, acc2, n, l2 == 0 ? KC_ZERO : KC_RANDOM, 0);
    memcpy(old, acc, n * sizeof *old);
    kc_protect(kc, acc2);
    kc->k->attend_merge(&m, &l, acc, m2, l2, acc2, n);
    kc_near(kc, 0, m, l2 == 0 ? (double)m0 : top, isinf(top) ? NAN : 0);
    kc_near(kc, 0, l, l0 * keep + l2 * take, error * (l0 * keep + l2 * take) + 0x1p-118);
    for (size_t i = 0; i < n; i++) {
        const double a = old[i] * keep, b = acc2[i] * take;

        kc_near(kc, i, acc[i], a + b, error * (fabs(a) + fabs(b)) + 0x1p-118);
    }
    if (l0 == 0) /* the first partial is taken as it is */
        kc_same(kc, acc, acc2, n);
    if (l2 == 0) /* an empty one changes nothing */
        kc_same(kc, acc, old, n);
}

static void check_merge(struct kc *kc)
{
    static const float cases[][4] = {{0, 1, 0, 1},        {3, 20, -4, 7},        {-4, 7, 3, 20},
                                     {-100, 5, 100, 5},   {-INFINITY, 0, 2, 40}, {2, 40, -INFINITY, 0},
                                     {88, 1, -88.5f, 250}};

    for (size_t n = 16; n <= 512; n += n < 128 ? 16 : 128) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            kc_begin(kc, "n%zu case%zu", n, i);
            merge_values(kc, n, cases[i][0], cases[i][1], cases[i][2], cases[i][3]);
            kc_end(kc);
        }
    }
    kc_begin(kc, "both empty");
    {
        float m = -INFINITY, l = 0, acc[16] = {0}, zero[16] = {0};

        kc->k->attend_merge(&m, &l, acc, -INFINITY, 0, zero, 16);
        kc_equal(kc, 0, m == -INFINITY && l == 0, 1);
        kc_same(kc, acc, zero, 16);
    }
    kc_end(kc);
}

struct attend_run {
    const struct esp_kernels *k;
    struct job *j;
    float *acc;
};

static void run_attend(void *ctx)
{
    const struct attend_run *c = ctx;

    run(c->k, c->j, &c->j->a);
}

static void run_merge(void *ctx)
{
    const struct attend_run *c = ctx;
    float m = 1, l = 1;

    c->k->attend_merge(&m, &l, c->acc, 0.5f, 1, c->j->q, 256);
}

/* bytes: of keys and values of a position, 256 elements each. */
static void bench(struct kc *kc, void (*call)(void *), struct job j, uint32_t n_query, double bytes)
{
    struct attend_run c = {kc->k, &j, NULL};
    const bool merge = call == run_merge;
    char what[64], name[ESP_KV_NAME] = "";
    double seconds;

    if (j.type == ESP_KV_CODED)
        esp_kv_name(&j.scheme, name);
    kc_begin(kc, "bench");
    make(kc, &j, 256, n_query, ESP_SPAN, KC_RANDOM);
    c.acc = kc_floats(kc, 256);
    kc_fill(kc, c.acc, 256, KC_ZERO, 0);
    kc_alloc(kc, 0, 1, 0);
    for (uint32_t r = 0; r < n_query; r++)
        j.a.m[r] = 0;
    seconds = kc_time(call, &c);
    c.k = kc->ref;
    snprintf(what, sizeof what, "hd256 queries %u %s%s", n_query, name, j.a.int8_query ? " int8" : "");
    kc_report(kc, what, seconds, kc_time(call, &c), merge ? 12.0 * 256 : bytes * ESP_SPAN,
              merge ? 3.0 * 256 : 4.0 * 256 * ESP_SPAN * n_query);
    kc_end(kc);
}

static void bench_codes(struct kc *kc)
{
    static const char *const schemes[] = {"q8",         "q6",         "q4",        "turbo:k8v8",
                                          "turbo:k8v4", "turbo:k8v3", "turbo:k4v3"};
    struct job j = {.type = ESP_KV_CODED};

    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        esp_kv_parse(&j.scheme, schemes[s], NULL);
        for (int int8 = 0; int8 < 2; int8++) {
            j.a.int8_query = int8;
            for (uint32_t n = 4; n <= 64 && (!int8 || rounds(kc, &j)); n *= 16)
                bench(kc, run_attend, j, n,
                      (double)(esp_kv_key_bytes(&j.scheme, 256) + esp_kv_value_bytes(&j.scheme, 256)));
        }
    }
}

void kc_attend(struct kc *kc)
{
    static const char *const names[ESP_KV_COUNT] = {"attend.f32", "attend.bf16"};

    for (int t = 0; t < ESP_KV_COUNT; t++) {
        if (!kc_entry(kc, (kc_fn)kc->k->attend[t], kc->below ? (kc_fn)kc->below->attend[t] : NULL, "%s",
                      names[t]))
            continue;
        if (!kc->bench) {
            check_attend(kc, (enum esp_kv)t);
            continue;
        }
        bench(kc, run_attend, (struct job){.type = (enum esp_kv)t}, 4, t == ESP_KV_F32 ? 2048 : 1024);
        bench(kc, run_attend, (struct job){.type = (enum esp_kv)t}, 64, t == ESP_KV_F32 ? 2048 : 1024);
    }
    if (KC_ENTRY(kc, attend_codes)) {
        if (kc->bench)
            bench_codes(kc);
        else
            check_codes(kc);
    }
    if (KC_ENTRY(kc, attend_merge)) {
        if (kc->bench)
            bench(kc, run_merge, (struct job){.type = ESP_KV_F32}, 1, 0);
        else
            check_merge(kc);
    }
}
