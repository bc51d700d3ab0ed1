/*
 * Reference attention over one span of cached positions, with an online softmax between spans. The span's own
 * partial result is formed first and merged afterwards, by the same function that merges partials from
 * elsewhere: running over spans and merging separately computed spans are then the same arithmetic.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/ref/ref.h"

static void attend_merge(float *m, float *l, float *acc, float m2, float l2, const float *acc2, size_t n)
{
    float top, keep, take;

    if (l2 == 0)
        return; /* empty partial: its m2 is -inf and would give inf - inf */
    top = m2 > *m ? m2 : *m;
    keep = expf(*m - top); /* 0 before the first span */
    take = expf(m2 - top);
    *m = top;
    *l = *l * keep + l2 * take;
    for (size_t i = 0; i < n; i++)
        acc[i] = acc[i] * keep + acc2[i] * take;
}

/* Row t of keys (which = 0) or values as f32: in place, or converted into buf. */
static const float *kv_row(enum esp_kv type, uint32_t which, size_t t, const struct esp_attend *a, float *buf)
{
    const void *base = which ? a->v : a->k;
    const uint16_t *half;

    if (type == ESP_KV_F32)
        return (const float *)base + t * a->ld_kv;
    if (type == ESP_KV_CODED) {
        if (which)
            esp_kv_decode_value(a->scheme, a->head_dim,
                                (const uint8_t *)base + t * esp_kv_value_bytes(a->scheme, a->head_dim), buf);
        else
            esp_kv_decode_key(a->scheme, a->head_dim,
                              (const uint8_t *)base + t * esp_kv_key_bytes(a->scheme, a->head_dim), buf);
        return buf;
    }
    half = (const uint16_t *)base + t * a->ld_kv;
    for (size_t i = 0; i < a->head_dim; i++)
        buf[i] = esp_bf16_to_f32(half[i]);
    return buf;
}

static void attend_query(enum esp_kv type, const struct esp_attend *a, size_t r, float *scratch)
{
    float *score = scratch;          /* [ESP_SPAN] */
    float *acc = score + ESP_SPAN;   /* [head_dim] */
    float *buf = acc + ESP_HEAD_MAX; /* [head_dim] */
    const size_t n = a->n_visible[r];
    float m = -INFINITY, l = 0;

    for (size_t t = 0; t < n; t++) {
        score[t] = dot(a->q + r * a->ldq, kv_row(type, 0, t, a, buf), a->head_dim);
        m = score[t] > m ? score[t] : m;
    }
    for (size_t i = 0; i < a->head_dim; i++)
        acc[i] = 0;
    for (size_t t = 0; t < n; t++) {
        const float p = expf(score[t] - m);
        const float *v = kv_row(type, 1, t, a, buf);

        l += p;
        for (size_t i = 0; i < a->head_dim; i++)
            acc[i] += p * v[i];
    }
    attend_merge(a->m + r, a->l + r, a->acc + r * a->ld_acc, m, l, acc, a->head_dim);
}

static void attend_f32(const struct esp_attend *a, float *scratch)
{
    for (size_t r = 0; r < a->n_query; r++)
        attend_query(ESP_KV_F32, a, r, scratch);
}

static void attend_bf16(const struct esp_attend *a, float *scratch)
{
    for (size_t r = 0; r < a->n_query; r++)
        attend_query(ESP_KV_BF16, a, r, scratch);
}

static void attend_codes(const struct esp_attend *a, float *scratch)
{
    for (size_t r = 0; r < a->n_query; r++)
        attend_query(ESP_KV_CODED, a, r, scratch);
}

void esp_ref_init_attend(struct esp_kernels *k)
{
    k->attend[ESP_KV_F32] = attend_f32;
    k->attend[ESP_KV_BF16] = attend_bf16;
    k->attend_codes = attend_codes;
    k->attend_merge = attend_merge;
    k->kv_encode[0] = esp_kv_encode_key;
    k->kv_encode[1] = esp_kv_encode_value;
}
