/*
 * Products with trellis weights, written once for both vector widths. A window is hashed in vector registers;
 * what the hash is multiplied by decides the path:
 *
 *   one row, integers   the bytes of the hash meet the activation at once: their sum is the value plus 510,
 * so 510 times the sum of the activations is taken off at the end of a block. No value is ever formed. else
 * values of a tile are formed once into a buffer of a few KiB and multiplied by all rows.
 *
 * Both sum a block of 256 inputs exactly in int32 (wrapping in between, which cancels), so they give the same
 * bits. Floats sum a block (axis 1) or 32 inputs (axis 0) in vector lanes, then add that to the output;
 * always buffered. Codes of 2, 3 and 4 bits have their own instances of the decoding loops; other k share
 * one.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_TRELLIS_BODY_H
#define ESP_KERNELS_X86_TRELLIS_BODY_H

#include "kernels/x86/trellis_rows.h"

enum {
    T_GROUPS = T_BLOCK / VW,       /* groups of VW windows in a block */
    T_PAIRS = T_GROUPS / 2,        /* two groups: one vector of int16 */
    T_CHUNK = 4,                   /* groups along axis 0 whose sums are registers */
    T_CHUNKS = T_GROUPS / T_CHUNK, /* such chunks in a block */
    T_CHUNK_COLS = T_CHUNK * VW,   /* divides esp_weight_out_align() */
    T_OUTS = 16,                   /* outputs of a buffered tile along axis 1 */
    T_RUN = 32,                    /* inputs along axis 0 summed in f32 before they meet the output */
    T_EXTRA = 16,                  /* bytes of its start behind the copy of a block */
    T_AHEAD = 64,                  /* stored rows along axis 0 asked for ahead of use */
};

/* A call: its arguments, and the constants of its k. */
struct t_call {
    const struct esp_weight *w;
    const uint8_t *act;
    size_t act_bytes;
    uint32_t n_row, o0, o1;
    float *y;
    size_t ldy;
    struct window win;
    int k;
};

/* Reading windows of k > 4 needs the start of the block behind its end. */
V_INLINE const uint8_t *t_extend(int k, const uint8_t *block, uint8_t *copy)
{
    if (k <= 4)
        return block;
    memcpy(copy, block, 32 * (size_t)k);
    memcpy(copy + 32 * k, block, T_EXTRA);
    return copy;
}

V_INLINE vi t_hash(int k, const struct window *w, const uint8_t *block, int g)
{
    return window_hash(k, w, window_bytes(k, block, g));
}

V_INLINE float t_factor(const struct esp_weight *w, size_t stored_row)
{
    return esp_trellis_scale(w, stored_row) * ESP_TRELLIS_RECIPROCAL;
}

V_INLINE __m128 t_factors(const struct esp_weight *w, uint32_t o, uint32_t n)
{
    float f[4] = {0, 0, 0, 0};

    for (uint32_t i = 0; i < n; i++)
        f[i] = t_factor(w, o + i);
    return _mm_loadu_ps(f);
}

V_INLINE __m128 t_load4(const float *y, uint32_t n)
{
    float f[4] = {0, 0, 0, 0};

    if (n >= 4)
        return _mm_loadu_ps(y);
    memcpy(f, y, n * sizeof *f);
    return _mm_loadu_ps(f);
}

/* acc + S * s, S exact. */
V_INLINE __m128 t_add4(__m128i sum, float s, __m128 acc)
{
    return _mm_fmadd_ps(_mm_cvtepi32_ps(sum), _mm_set1_ps(s), acc);
}

/* ---- one row of integers ---- */

/* Groups g and g + 1 of four outputs; v as pack16() mixed them. */
V_INLINE void one1_pair(int k, const struct window *win, const uint8_t *const *at, int g, const int16_t *v,
                        vi *acc)
{
    const vi both = t_load(v);
    const vi a = twice_a(both), b = twice_b(both);

    V_UNROLL
    for (int i = 0; i < 4; i++) {
        acc[i] = hash_dot(acc[i], t_hash(k, win, at[i], g), a);
        acc[i] = hash_dot(acc[i], t_hash(k, win, at[i], g + 1), b);
    }
}

/* Sums of bytes times activations of one block of four outputs. Only the last two pairs may wrap. */
V_INLINE __m128i one1_block(int k, int fast, const struct window *win, const uint8_t *const *block,
                            const int16_t *v)
{
    vi acc[4] = {vi_zero(), vi_zero(), vi_zero(), vi_zero()};
    int pair = 0;

    for (; fast && pair < T_PAIRS - 2; pair++) {
        const int skip = pair * VW * k / 4;
        const uint8_t *const at[4] = {block[0] + skip, block[1] + skip, block[2] + skip, block[3] + skip};

        one1_pair(k, win, at, 0, v + pair * 2 * VW, acc);
    }
    if (fast) {
        one1_pair(k, win, block, T_GROUPS - 4, v + T_BLOCK - 4 * VW, acc);
        one1_pair(k, win, block, T_GROUPS - 2, v + T_BLOCK - 2 * VW, acc);
    } else {
        for (; pair < T_PAIRS; pair++)
            one1_pair(k, win, block, 2 * pair, v + pair * 2 * VW, acc);
    }
    return t_sum4(acc[0], acc[1], acc[2], acc[3]);
}

V_INLINE void one1(int k, int fast, const struct t_call *c)
{
    const struct esp_weight *w = c->w;
    const struct t_row row = t_row_at(c->act, w->n_in);
    const struct window win = c->win;
    uint8_t copy[4][ESP_TRELLIS_BLOCK_BYTES_MAX + T_EXTRA];

    for (uint32_t o = c->o0; o < c->o1; o += 4) {
        const uint32_t n = c->o1 - o < 4 ? c->o1 - o : 4;
        __m128 acc = _mm_setzero_ps();

        for (size_t b = 0; b < t_blocks(w->n_in); b++) {
            const uint8_t *block[4];
            __m128i sum;

            for (uint32_t i = 0; i < 4; i++) { /* past the end the last one again */
                const uint8_t *from =
                    w->codes + (o + (i < n ? i : n - 1)) * w->row_bytes + b * 32 * (size_t)k;

                /* the same block of the next four: rows are short, streams of one row would start cold */
                _mm_prefetch((const char *)((uintptr_t)from + 4 * w->row_bytes), _MM_HINT_T0);
                if (k > 2)
                    _mm_prefetch((const char *)((uintptr_t)from + 4 * w->row_bytes + 64), _MM_HINT_T0);
                block[i] = t_extend(k, from, copy[i]);
            }
            sum = one1_block(k, fast, &win, block, row.v + b * T_BLOCK);
            acc = t_add4(_mm_sub_epi32(sum, _mm_set1_epi32(row.sum[b])), row.s[b], acc);
        }
        v_store4(c->y + o, _mm_mul_ps(acc, t_factors(w, o, n)), n);
    }
}

/* Stored rows [i0, i0 + n) that a chunk of columns of block b is summed over. */
struct t_strip {
    const uint8_t *block; /* of row i0 */
    size_t stride;
    size_t n;
};

V_INLINE struct t_strip t_strip_at(const struct t_call *c, size_t b, size_t i0, size_t most)
{
    const size_t left = c->w->n_in - i0;

    return (struct t_strip){esp_trellis_block(c->w, i0, b), c->w->row_bytes, left < most ? left : most};
}

/* Groups g0 .. g0 + 3, counted from byte `skip` of the block: sums of bytes times activations. */
V_INLINE void one0_chunk(int k, int g0, int skip, const struct window *window, const struct t_strip *s,
                         const int16_t *v, vi *acc)
{
    const struct window win = *window;
    const uint8_t *block = s->block + skip;
    uint8_t copy[ESP_TRELLIS_BLOCK_BYTES_MAX + T_EXTRA];
    vi sum[T_CHUNK];

    V_UNROLL
    for (int q = 0; q < T_CHUNK; q++)
        sum[q] = vi_zero();
    for (size_t i = 0; i < s->n; i++, block += s->stride) {
        const uint8_t *at = t_extend(k, block, copy);
        const vi x = all16(v + i);

        _mm_prefetch((const char *)((uintptr_t)block + T_AHEAD * s->stride), _MM_HINT_T0);
        V_UNROLL
        for (int q = 0; q < T_CHUNK; q++)
            sum[q] = hash_dot(sum[q], t_hash(k, &win, at, g0 + q), x);
    }
    V_UNROLL
    for (int q = 0; q < T_CHUNK; q++)
        acc[q] = sum[q];
}

V_INLINE void one0_any(int k, int fast, const struct window *win, int chunk, const struct t_strip *s,
                       const int16_t *v, vi *acc)
{
    if (!fast)
        one0_chunk(k, chunk * T_CHUNK, 0, win, s, v, acc);
    else if (chunk == T_CHUNKS - 1)
        one0_chunk(k, T_GROUPS - T_CHUNK, 0, win, s, v, acc);
    else
        one0_chunk(k, 0, chunk * T_CHUNK_COLS * k / 8, win, s, v, acc);
}

/* Chunks [c0, c1) of block b. */
V_INLINE void one0_block(int k, int fast, const struct t_call *c, size_t b, int c0, int c1)
{
    const struct t_row row = t_row_at(c->act, c->w->n_in);
    vf f[T_GROUPS];

    for (int g = 0; g < T_GROUPS; g++)
        f[g] = vf_zero();
    for (size_t r = 0; r < t_blocks(c->w->n_in); r++) {
        const struct t_strip strip = t_strip_at(c, b, r * T_BLOCK, T_BLOCK);
        const vi correction = vi_set1(row.sum[r]);
        const vf s = vf_set1(row.s[r]);

        for (int chunk = c0; chunk < c1; chunk++) {
            vf *at = f + chunk * T_CHUNK;
            vi acc[T_CHUNK];

            one0_any(k, fast, &c->win, chunk, &strip, row.v + r * T_BLOCK, acc);
            for (int q = 0; q < T_CHUNK; q++)
                at[q] = vf_fma(vf_from_i(vi_sub(acc[q], correction)), s, at[q]);
        }
    }
    for (int g = c0 * T_CHUNK; g < c1 * T_CHUNK; g++)
        vf_store(c->y + b * T_BLOCK + T_BLOCK - VW - g * VW, t_reverse(f[g]));
}

/* Columns [*o, end of the block or of the call) of block *o / 256 as chunks, which count from its last
 * column. */
V_INLINE size_t t_chunks_of(const struct t_call *c, uint32_t *o, int *c0, int *c1)
{
    const uint32_t b = *o / T_BLOCK, first = *o % T_BLOCK;
    const uint32_t end = c->o1 - b * T_BLOCK < T_BLOCK ? c->o1 - b * T_BLOCK : T_BLOCK;

    *c0 = (int)((T_BLOCK - end) / T_CHUNK_COLS);
    *c1 = (int)((T_BLOCK - first) / T_CHUNK_COLS);
    *o = b * T_BLOCK + end;
    return b;
}

V_INLINE void one0(int k, int fast, const struct t_call *c)
{
    for (uint32_t o = c->o0; o < c->o1;) {
        int c0, c1;
        const size_t b = t_chunks_of(c, &o, &c0, &c1);

        one0_block(k, fast, c, b, c0, c1);
    }
}

/* ---- decoding into a buffer ---- */

/* One block as int16, two groups a vector. */
V_INLINE void block_int(int k, const struct window *window, const uint8_t *block, int16_t *out)
{
    const struct window win = *window;
    uint8_t copy[ESP_TRELLIS_BLOCK_BYTES_MAX + T_EXTRA];
    const uint8_t *at = t_extend(k, block, copy);

    V_UNROLL
    for (int g = 0; g < T_GROUPS; g += 2)
        t_store(out + g * VW,
                pack16(hash_value(t_hash(k, &win, at, g)), hash_value(t_hash(k, &win, at, g + 1))));
}

V_INLINE void block_float(int k, const struct window *window, const uint8_t *block, float *out)
{
    const struct window win = *window;
    uint8_t copy[ESP_TRELLIS_BLOCK_BYTES_MAX + T_EXTRA];
    const uint8_t *at = t_extend(k, block, copy);

    V_UNROLL
    for (int g = 0; g < T_GROUPS; g++)
        vf_store(out + g * VW, vf_from_i(hash_value(t_hash(k, &win, at, g))));
}

/* A chunk of columns of a strip; lanes of out [n / 2][T_CHUNK] hold the values of two stored rows. */
V_INLINE void chunk_int(int k, int g0, int skip, const struct window *window, const struct t_strip *s,
                        int16_t *out)
{
    const struct window win = *window;
    uint8_t copy[2][ESP_TRELLIS_BLOCK_BYTES_MAX + T_EXTRA];

    for (size_t i = 0; i < s->n; i += 2, out += T_CHUNK * 2 * VW) {
        const uint8_t *even = t_extend(k, s->block + i * s->stride + skip, copy[0]);
        const uint8_t *odd =
            i + 1 < s->n ? t_extend(k, s->block + (i + 1) * s->stride + skip, copy[1]) : NULL;

        V_UNROLL
        for (int q = 0; q < T_CHUNK; q++) {
            const vi a = hash_value(t_hash(k, &win, even, g0 + q));
            const vi b = odd ? hash_value(t_hash(k, &win, odd, g0 + q)) : vi_zero();

            t_store(out + q * 2 * VW, pair_lanes(a, b));
        }
    }
}

V_INLINE void chunk_float(int k, int g0, int skip, const struct window *window, const struct t_strip *s,
                          float *out)
{
    const struct window win = *window;
    uint8_t copy[ESP_TRELLIS_BLOCK_BYTES_MAX + T_EXTRA];

    for (size_t i = 0; i < s->n; i++, out += T_CHUNK * VW) {
        const uint8_t *at = t_extend(k, s->block + i * s->stride + skip, copy);

        V_UNROLL
        for (int q = 0; q < T_CHUNK; q++)
            vf_store(out + q * VW, vf_from_i(hash_value(t_hash(k, &win, at, g0 + q))));
    }
}

V_INLINE void chunk_any(int k, int fast, int ints, const struct window *win, int chunk,
                        const struct t_strip *s, void *out)
{
    const int last = chunk == T_CHUNKS - 1;
    const int skip = fast && !last ? chunk * T_CHUNK_COLS * k / 8 : 0;

    if (!fast && ints)
        chunk_int(k, chunk * T_CHUNK, 0, win, s, out);
    else if (!fast)
        chunk_float(k, chunk * T_CHUNK, 0, win, s, out);
    else if (ints && last)
        chunk_int(k, T_GROUPS - T_CHUNK, 0, win, s, out);
    else if (ints)
        chunk_int(k, 0, skip, win, s, out);
    else if (last)
        chunk_float(k, T_GROUPS - T_CHUNK, 0, win, s, out);
    else
        chunk_float(k, 0, skip, win, s, out);
}

/* What is compiled for each k. */
struct t_decoder {
    void (*one1)(const struct t_call *c);
    void (*one0)(const struct t_call *c);
    void (*block)(const struct t_call *c, int ints, const uint8_t *block, void *out);
    void (*chunk)(const struct t_call *c, int ints, int chunk, const struct t_strip *s, void *out);
};

V_INLINE void block_any(int k, int ints, const struct t_call *c, const uint8_t *block, void *out)
{
    if (ints)
        block_int(k, &c->win, block, out);
    else
        block_float(k, &c->win, block, out);
}

static void one1_2(const struct t_call *c)
{
    one1(2, 1, c);
}

static void one0_2(const struct t_call *c)
{
    one0(2, 1, c);
}

static void block_2(const struct t_call *c, int ints, const uint8_t *block, void *out)
{
    block_any(2, ints, c, block, out);
}

static void chunk_2(const struct t_call *c, int ints, int chunk, const struct t_strip *s, void *out)
{
    chunk_any(2, 1, ints, &c->win, chunk, s, out);
}

static void one1_3(const struct t_call *c)
{
    one1(3, 1, c);
}

static void one0_3(const struct t_call *c)
{
    one0(3, 1, c);
}

static void block_3(const struct t_call *c, int ints, const uint8_t *block, void *out)
{
    block_any(3, ints, c, block, out);
}

static void chunk_3(const struct t_call *c, int ints, int chunk, const struct t_strip *s, void *out)
{
    chunk_any(3, 1, ints, &c->win, chunk, s, out);
}

static void one1_4(const struct t_call *c)
{
    one1(4, 1, c);
}

static void one0_4(const struct t_call *c)
{
    one0(4, 1, c);
}

static void block_4(const struct t_call *c, int ints, const uint8_t *block, void *out)
{
    block_any(4, ints, c, block, out);
}

static void chunk_4(const struct t_call *c, int ints, int chunk, const struct t_strip *s, void *out)
{
    chunk_any(4, 1, ints, &c->win, chunk, s, out);
}

static void one1_k(const struct t_call *c)
{
    one1(c->k, 0, c);
}

static void one0_k(const struct t_call *c)
{
    one0(c->k, 0, c);
}

static void block_k(const struct t_call *c, int ints, const uint8_t *block, void *out)
{
    block_any(c->k, ints, c, block, out);
}

static void chunk_k(const struct t_call *c, int ints, int chunk, const struct t_strip *s, void *out)
{
    chunk_any(c->k, 0, ints, &c->win, chunk, s, out);
}

static const struct t_decoder T_DECODERS[4] = {
    {one1_2, one0_2, block_2, chunk_2},
    {one1_3, one0_3, block_3, chunk_3},
    {one1_4, one0_4, block_4, chunk_4},
    {one1_k, one0_k, block_k, chunk_k},
};

V_INLINE const struct t_decoder *t_decoder_of(int k)
{
    return &T_DECODERS[k >= 2 && k <= 4 ? k - 2 : 3];
}

/* ---- paths ---- */

enum t_path { T_ONE1, T_MANY1, T_ONE0, T_MANY0, T_TURNED, T_PATHS };

#define T_INT_PATHS                                                                                          \
    [T_ONE1] = {"bytes of hashes times activations, four outputs", ESP_SHAPE_AXIS1, 1},                      \
    [T_MANY1] = {"values by block, tiles of four outputs", ESP_SHAPE_AXIS1, 2},                              \
    [T_ONE0] = {"bytes of hashes times activations, an output a lane", ESP_SHAPE_AXIS0, 1},                  \
    [T_MANY0] = {"values by strip, an output a lane", ESP_SHAPE_AXIS0, 2},                                   \
    [T_TURNED] = {"values by block, turned, an output a lane", ESP_SHAPE_AXIS1, T_ROWS + 1}

#endif
