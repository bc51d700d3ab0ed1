/*
 * Sums of values with codes of up to 4 bits by VNNI's product of words, two positions at a time: half of
 * the multiply-adds that floats take. In a block of positions the weights of a query become integers of one
 * step, and a value the word of its level times its scale, as a share of the largest scale of its unit in
 * the block; their sum is exact, and is added in f32 once a block. Blocks begin at multiples of
 * KV_WORD_BLOCK in the span, and queries share one only if they see the same of it: so neither other
 * queries nor what is hidden change a bit. Included by attend_kv_body.h where vectors have 16 lanes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_ATTEND_KV_WORD_H
#define ESP_KERNELS_X86_ATTEND_KV_WORD_H

enum {
    KV_WORD_BLOCK = ESP_VALUE_BLOCK,
    KV_WORD_PAIRS = KV_WORD_BLOCK / 2,
    KV_WORD_ROWS = 4,   /* queries of a tile */
    KV_WORD_COLS = 4,   /* vectors of columns that are words at a time: two units */
    KV_WORD_MOST = 128, /* queries of a call, those of KV_MANY_MOST at most */
    KV_WORD_UNITS = ESP_KV_HEAD_MAX / ESP_KV_GROUP,
};

/* A block of positions. */
struct kv_words {
    vi value[KV_WORD_COLS][KV_WORD_PAIRS]; /* of some columns: each lane two positions of a column */
    uint16_t scale[KV_WORD_UNITS][KV_WORD_BLOCK]
        __attribute__((aligned(64))); /* shares, 32767: the largest */
    float top[KV_WORD_UNITS];         /* value of a word of 1 */
    int16_t weight[KV_WORD_MOST][KV_WORD_BLOCK] __attribute__((aligned(64)));
    float step[KV_WORD_MOST];     /* weight of a word of 1 */
    uint32_t query[KV_WORD_MOST]; /* whose weights these are */
    uint32_t n_query;
};

/* How codes of some bits become words; see kv_word_pair(). */
struct kv_word_lut {
    vi at, shift, parity, keep;
    vi level; /* word 2 code + parity, repeated when codes have fewer than 4 bits */
    float top;
};

static struct kv_word_lut kv_word_lut_make(int bits, const float *levels)
{
    struct kv_word_lut l = {.parity = vi_set1(1 << 16), .keep = vi_set1((int32_t)0xfffefffe)};
    int16_t level[2 * VW], shift[2 * VW];
    uint8_t at[4 * VW];

    for (int c = 0; c < 1 << bits; c++)
        l.top = fabsf(levels[c]) > l.top ? fabsf(levels[c]) : l.top;
    for (int i = 0; i < 2 * VW; i++)
        level[i] = (int16_t)lrintf(levels[i / 2 & ((1 << bits) - 1)] / l.top * ESP_VALUE_TOP);
    for (int i = 0; i < VW; i++) {
        const int bit = i * bits;

        for (int odd = 0; odd < 2; odd++) { /* the code from bit 1 on */
            at[4 * i + 2 * odd] = (uint8_t)(bit % 8 ? bit / 8 + 8 * odd : 0x80);
            at[4 * i + 2 * odd + 1] =
                (uint8_t)(bit % 8 && bit % 8 + bits <= 8 ? 0x80 : (bit + 7) / 8 + 8 * odd);
            shift[2 * i + odd] = (int16_t)(bit % 8 ? bit % 8 - 1 : 7);
        }
    }
    l.at = _mm512_loadu_si512(at);
    l.shift = _mm512_loadu_si512(shift);
    l.level = _mm512_loadu_si512(level);
    l.top /= ESP_VALUE_TOP;
    return l;
}

/* Words of 16 columns from the codes of two positions, whose levels are scaled. Reads 8 bytes of each. */
V_INLINE vi kv_word_pair(const struct kv_word_lut *l, const uint8_t *a, const uint8_t *b, vi level)
{
    const vi first = _mm512_set1_epi64((int64_t)kv_load64(a));
    const vi both = _mm512_mask_set1_epi64(first, 0xaa, (int64_t)kv_load64(b));
    const vi code = _mm512_srlv_epi16(_mm512_shuffle_epi8(both, l->at), l->shift);
    const vi index = _mm512_ternarylogic_epi32(code, l->keep, l->parity, 0xea); /* code & keep | parity */

    return _mm512_permutexvar_epi16(index, level);
}

/* What a call is about. */
struct kv_word_job {
    const struct kv_side *s;
    const struct kv_tile *tile; /* weights in, sums out */
    struct kv_word_lut lut;
    struct kv_far far;
    struct kv_words *w; /* the block at hand */
};

/* ---- scales ---- */

/* Scales of units [u, u + 8) of positions [t, t + 8) of a block's n, 0 behind them, turned round. */
V_INLINE void kv_word_turn(const struct kv_side *s, const uint8_t *scales, uint32_t u, uint32_t t, uint32_t n,
                           struct kv_words *w)
{
    const uint32_t left = s->n_unit - u;
    const __mmask8 units = left < 8 ? (__mmask8)((1u << left) - 1) : 0xff;
    __m128i x[8], y[8];

    V_UNROLL
    for (uint32_t i = 0; i < 8; i++)
        x[i] = t + i < n ? _mm_maskz_loadu_epi16(units, scales + (t + i) * s->row_bytes + 2 * (size_t)u)
                         : _mm_setzero_si128();
    V_UNROLL
    for (int i = 0; i < 4; i++) {
        y[2 * i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    V_UNROLL
    for (int i = 0; i < 2; i++) {
        V_UNROLL
        for (int k = 0; k < 2; k++) {
            x[4 * i + 2 * k] = _mm_unpacklo_epi32(y[4 * i + k], y[4 * i + 2 + k]);
            x[4 * i + 2 * k + 1] = _mm_unpackhi_epi32(y[4 * i + k], y[4 * i + 2 + k]);
        }
    }
    V_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        if (2 * k < left)
            _mm_store_si128((__m128i *)(void *)(w->scale[u + 2 * k] + t), _mm_unpacklo_epi64(x[k], x[4 + k]));
        if (2 * k + 1 < left)
            _mm_store_si128((__m128i *)(void *)(w->scale[u + 2 * k + 1] + t),
                            _mm_unpackhi_epi64(x[k], x[4 + k]));
    }
}

/* Scales (f16, none negative, so that their bits are in order) of a unit to shares; returns the largest. */
V_INLINE float kv_word_shares(uint16_t *scale)
{
    const vi m = _mm512_max_epu16(_mm512_load_si512(scale), _mm512_load_si512(scale + 2 * VW));
    const __m256i m2 = _mm256_max_epu16(_mm512_castsi512_si256(m), _mm512_extracti64x4_epi64(m, 1));
    const __m128i m4 = _mm_max_epu16(_mm256_castsi256_si128(m2), _mm256_extracti128_si256(m2, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(m4, _mm_set1_epi16(-1)));
    const float top = _mm_cvtss_f32(_mm_cvtph_ps(_mm_xor_si128(least, _mm_set1_epi16(-1))));
    const vf by = vf_set1(top > 0 ? 32767 / top : 0);

    V_UNROLL
    for (int i = 0; i < KV_WORD_BLOCK; i += VW) {
        const vf x = vf_mul(vf_from_f16(scale + i), by);

        _mm256_store_si256((__m256i *)(void *)(scale + i), _mm512_cvtepi32_epi16(vi_from_f(x)));
    }
    return top;
}

static void kv_word_scales(const struct kv_side *s, float level, uint32_t t0, uint32_t n, struct kv_words *w)
{
    const uint8_t *scales = s->rows + t0 * s->row_bytes + s->code_bytes;

    for (uint32_t u = 0; u < s->n_unit; u += 8)
        for (uint32_t t = 0; t < KV_WORD_BLOCK; t += 8)
            kv_word_turn(s, scales, u, t, n, w);
    for (uint32_t u = 0; u < s->n_unit; u++)
        w->top[u] = kv_word_shares(w->scale[u]) * level;
}

/* ---- weights ---- */

/* Weights of n positions, of query i of those that share a block: integers up to 32767 whose sum times the
 * largest value fits 32 bits. */
V_INLINE void kv_word_weights(const float *weight, uint32_t n, uint32_t i, struct kv_words *w)
{
    vf p[KV_WORD_BLOCK / VW], top = vf_zero(), sum = vf_zero(), by;
    float step, least;

    V_UNROLL
    for (uint32_t k = 0; k < KV_WORD_BLOCK / VW; k++) {
        p[k] = n > k * VW ? vf_load_n(weight + k * VW, n - k * VW) : vf_zero();
        top = vf_max(p[k], top);
        sum = vf_add(sum, p[k]);
    }
    step = vf_hmax(top) / 32767;
    least = vf_sum(sum) / ESP_WEIGHT_SUM;
    step = least > step ? least : step;
    by = vf_set1(step < 0x1p-126f ? 0 : 1 / step);
    w->step[i] = step;
    V_UNROLL
    for (uint32_t k = 0; k < KV_WORD_BLOCK / VW; k++)
        _mm256_store_si256((__m256i *)(void *)(w->weight[i] + k * VW),
                           _mm512_cvtsepi32_epi16(vi_from_f(vf_mul(p[k], by))));
}

/* ---- sums ---- */

/* Columns of a block: from c on, of n positions from t0 on. */
struct kv_word_part {
    size_t c;
    uint32_t t0, n;
};

/* Words of pair p of n_col vectors of columns; row: of the pair's first position. */
V_INLINE void kv_word_decode(int bits, int n_col, const struct kv_side *s, struct kv_word_lut l,
                             const uint16_t *scale, const uint8_t *row, uint32_t p, uint32_t n, vi *value)
{
    const uint8_t *second = 2 * p + 1 < n ? row + s->row_bytes : row; /* its share and weight are 0 */
    vi level[KV_WORD_COLS / KV_UNIT];

    V_UNROLL
    for (int u = 0; u < n_col / KV_UNIT; u++) {
        const vi pair = vi_set1((int32_t)kv_load32((const uint8_t *)(scale + u * KV_WORD_BLOCK + 2 * p)));

        level[u] = _mm512_mulhrs_epi16(l.level, pair);
    }
    V_UNROLL
    for (int j = 0; j < n_col; j++)
        value[j] = kv_word_pair(&l, row + j * 2 * bits, second + j * 2 * bits, level[j / KV_UNIT]);
}

/* acc += weights of n_row queries times the words of pair p. */
V_INLINE void kv_word_add(int n_row, int n_col, const int16_t *const *weight, uint32_t p, const vi *value,
                          vi (*acc)[KV_WORD_COLS])
{
    V_UNROLL
    for (int i = 0; i < n_row; i++) {
        const vi both = vi_set1((int32_t)kv_load32((const uint8_t *)(weight[i] + 2 * p)));

        V_UNROLL
        for (int j = 0; j < n_col; j++) {
            acc[i][j] = _mm512_dpwssd_epi32(acc[i][j], value[j], both);
            V_KEEP(acc[i][j]); /* a register of its own, not a copy of the last round's */
        }
    }
}

/*
 * The block's queries from r on, n_row of them or as many as are left, to their sums. decode: words come
 * from codes in passing, and far is asked for; else they are in the block.
 */
V_INLINE void kv_word_tile(int bits, int n_row, int n_col, bool decode, struct kv_word_job *k,
                           struct kv_word_part part, uint32_t r)
{
    const struct kv_words *w = k->w;
    const uint32_t unit = (uint32_t)(part.c / ESP_KV_GROUP), n_pair = (part.n + 1) / 2,
                   n_live = w->n_query - r;
    const uint8_t *row = k->s->rows + part.t0 * k->s->row_bytes + part.c / 8 * (size_t)bits;
    const struct kv_word_lut lut = k->lut;
    const int16_t *weight[KV_WORD_ROWS];
    vi acc[KV_WORD_ROWS][KV_WORD_COLS];

    V_UNROLL
    for (int i = 0; i < n_row; i++) {
        weight[i] = w->weight[r + ((uint32_t)i < n_live ? (uint32_t)i : 0)];
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            acc[i][j] = vi_zero();
    }
    for (uint32_t p = 0; p < n_pair; p++, row += 2 * k->s->row_bytes) {
        vi value[KV_WORD_COLS];

        if (decode) {
            kv_far_go(&k->far);
            kv_far_go(&k->far);
            kv_word_decode(bits, n_col, k->s, lut, w->scale[unit], row, p, part.n, value);
        } else {
            V_UNROLL
            for (int j = 0; j < n_col; j++)
                value[j] = w->value[j][p];
        }
        kv_word_add(n_row, n_col, weight, p, value, acc);
    }
    V_UNROLL
    for (int i = 0; i < n_row; i++) {
        if ((uint32_t)i >= n_live)
            break;
        V_UNROLL
        for (int j = 0; j < n_col; j++) {
            float *y =
                k->tile->acc + (size_t)w->query[r + (uint32_t)i] * ESP_HEAD_MAX + part.c + (size_t)j * VW;
            const vf one = vf_set1(w->step[r + (uint32_t)i] * w->top[unit + (uint32_t)(j / KV_UNIT)]);

            vf_store(y, vf_fma(vf_from_i(acc[i][j]), one, vf_load(y)));
        }
    }
}

/* Columns of a block, of all its queries; constant: bits, n_col. */
V_INLINE void kv_word_columns(int bits, int n_col, struct kv_word_job *k, struct kv_word_part part)
{
    const uint8_t *row = k->s->rows + part.t0 * k->s->row_bytes + part.c / 8 * (size_t)bits;
    struct kv_words *w = k->w;

    if (w->n_query == 1) {
        kv_word_tile(bits, 1, n_col, true, k, part, 0);
        return;
    }
    if (w->n_query <= KV_WORD_ROWS) {
        kv_word_tile(bits, KV_WORD_ROWS, n_col, true, k, part, 0);
        return;
    }
    for (uint32_t p = 0; 2 * p < part.n; p++, row += 2 * k->s->row_bytes) {
        vi value[KV_WORD_COLS];

        kv_word_decode(bits, n_col, k->s, k->lut, w->scale[part.c / ESP_KV_GROUP], row, p, part.n, value);
        V_UNROLL
        for (int j = 0; j < n_col; j++)
            w->value[j][p] = value[j];
    }
    for (uint32_t r = 0; r < w->n_query; r += KV_WORD_ROWS)
        kv_word_tile(bits, KV_WORD_ROWS, n_col, false, k, part, r);
}

/* Positions [t, t + n) for the queries that the block names. */
V_INLINE void kv_word_block(int bits, struct kv_word_job *k, uint32_t t, uint32_t n)
{
    const size_t wide = KV_WORD_COLS * VW;

    kv_word_scales(k->s, k->lut.top, t, n, k->w);
    for (uint32_t i = 0; i < k->w->n_query; i++)
        kv_word_weights(k->tile->weight + (size_t)k->w->query[i] * ESP_SPAN + t, n, i, k->w);
    for (size_t c = 0; c < k->s->dim; c += wide) {
        const struct kv_word_part part = {c, t, n};

        if (k->s->dim - c >= wide)
            kv_word_columns(bits, KV_WORD_COLS, k, part);
        else
            kv_word_columns(bits, KV_UNIT, k, part);
    }
}

/* Of the queries that see something from position t on and are not done, those that see as much of the
 * block as the first of them: to w. Returns how much, 0: there are none. */
static uint32_t kv_word_share(const uint32_t *n_visible, uint32_t n_query, uint32_t t, bool *done,
                              struct kv_words *w)
{
    uint32_t n = 0;

    w->n_query = 0;
    for (uint32_t r = 0; r < n_query; r++) {
        const uint32_t left = n_visible[r] > t ? n_visible[r] - t : 0,
                       sees = left < KV_WORD_BLOCK ? left : KV_WORD_BLOCK;

        if (sees == 0 || done[r] || (n && sees != n))
            continue;
        n = sees;
        done[r] = true;
        w->query[w->n_query++] = r;
    }
    return n;
}

/* The tile's sums, which are zero, of positions [0, n_visible) of each query of a, at most n_pos. */
V_INLINE void kv_word_bits(int bits, const struct esp_attend *a, const struct kv_side *s,
                           const struct kv_side *next, const struct kv_tile *tile, uint32_t n_pos)
{
    struct kv_words w;
    struct kv_word_job k = {.s = s, .tile = tile, .lut = kv_word_lut_make(bits, s->levels), .w = &w};

    for (uint32_t t = 0; t < n_pos; t += KV_WORD_BLOCK) {
        bool done[KV_WORD_MOST] = {false};

        k.far = kv_far_next(next, s, t, (s->dim + KV_WORD_COLS * VW - 1) / (KV_WORD_COLS * VW));
        for (uint32_t n; (n = kv_word_share(a->n_visible, a->n_query, t, done, &w)) != 0;)
            kv_word_block(bits, &k, t, n);
    }
}

static void kv_word_values(enum kv_raw raw, const struct esp_attend *a, const struct kv_side *s,
                           const struct kv_side *next, const struct kv_tile *tile, uint32_t n_pos)
{
    if (raw == KV_RAW_2)
        kv_word_bits(2, a, s, next, tile, n_pos);
    else if (raw == KV_RAW_3)
        kv_word_bits(3, a, s, next, tile, n_pos);
    else
        kv_word_bits(4, a, s, next, tile, n_pos);
}

#endif
