/*
 * Buffered products with trellis weights: values of a tile, decoded once (trellis_body.h), times all rows of
 * the call. Sums that leave the registers go to the output itself, so the number of rows is not limited by a
 * buffer. T_ROWS rows by four outputs (axis 1) or four vectors of outputs (axis 0) are one register tile.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_TRELLIS_TILES_H
#define ESP_KERNELS_X86_TRELLIS_TILES_H

#include "kernels/x86/trellis_body.h"

/* ---- axis 1: four outputs, one block ---- */

V_INLINE void tile1_int(int n_row, const int16_t *values, const struct t_row *rows, size_t b, __m128 *acc)
{
    vi sum[T_ROWS][4];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int i = 0; i < 4; i++)
            sum[r][i] = vi_zero();
    }
    for (int p = 0; p < T_BLOCK; p += 2 * VW) {
        vi x[4];

        V_UNROLL
        for (int i = 0; i < 4; i++)
            x[i] = t_load(values + i * T_BLOCK + p);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const vi v = t_load(rows[r].v + b * T_BLOCK + p);

            V_UNROLL
            for (int i = 0; i < 4; i++)
                sum[r][i] = dot16(sum[r][i], x[i], v);
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++)
        acc[r] = t_add4(t_sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]), rows[r].s[b], acc[r]);
}

V_INLINE void tile1_float(int n_row, const float *values, const float *const *rows, __m128 *acc)
{
    vf sum[T_ROWS][4];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int i = 0; i < 4; i++)
            sum[r][i] = vf_zero();
    }
    for (int p = 0; p < T_BLOCK; p += VW) {
        vf x[4];

        V_UNROLL
        for (int i = 0; i < 4; i++)
            x[i] = vf_load(values + i * T_BLOCK + p);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const vf z = vf_load(rows[r] + p);

            V_UNROLL
            for (int i = 0; i < 4; i++)
                sum[r][i] = vf_fma(x[i], z, sum[r][i]);
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++)
        acc[r] = _mm_add_ps(acc[r], vf_sum4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]));
}

/* acc[i] += block b of row r + i, with the four outputs decoded in values. */
V_INLINE void tile1(int ints, int n_row, const struct t_call *c, uint32_t r, size_t b, const void *values,
                    __m128 *acc)
{
    struct t_row q[T_ROWS];
    const float *z[T_ROWS];

    for (int i = 0; i < n_row; i++) {
        const uint8_t *row = c->act + (r + (uint32_t)i) * c->act_bytes;

        if (ints)
            q[i] = t_row_at(row, c->w->n_in);
        else
            z[i] = (const float *)(const void *)row + b * T_BLOCK;
    }
    if (ints)
        tile1_int(n_row, values, q, b, acc);
    else
        tile1_float(n_row, values, z, acc);
}

static void tile1_rows(int ints, uint32_t n_row, const struct t_call *c, uint32_t r, size_t b,
                       const void *values, __m128 *acc)
{
    switch (n_row) {
    case 1:
        ints ? tile1(1, 1, c, r, b, values, acc) : tile1(0, 1, c, r, b, values, acc);
        break;
    case 2:
        ints ? tile1(1, 2, c, r, b, values, acc) : tile1(0, 2, c, r, b, values, acc);
        break;
#if T_ROWS > 2
    case 3:
        ints ? tile1(1, 3, c, r, b, values, acc) : tile1(0, 3, c, r, b, values, acc);
        break;
    case 4:
        ints ? tile1(1, 4, c, r, b, values, acc) : tile1(0, 4, c, r, b, values, acc);
        break;
#endif
    default:
        break;
    }
}

/* Outputs [o, o + n), n <= T_OUTS, of which the buffer holds block b. */
static void many1_block(int ints, const struct t_call *c, uint32_t o, uint32_t n, size_t b,
                        const uint8_t *values)
{
    const size_t size = T_BLOCK * (ints ? sizeof(int16_t) : sizeof(float));
    const int last = b + 1 == t_blocks(c->w->n_in);
    __m128 factors[T_OUTS / 4];

    for (uint32_t q = 0; last && q < n; q += 4)
        factors[q / 4] = t_factors(c->w, o + q, n - q < 4 ? n - q : 4);
    for (uint32_t r = 0; r < c->n_row; r += T_ROWS) {
        const uint32_t n_row = c->n_row - r < T_ROWS ? c->n_row - r : T_ROWS;

        for (uint32_t q = 0; q < n; q += 4) {
            const uint32_t outs = n - q < 4 ? n - q : 4;
            float *y = c->y + (size_t)r * c->ldy + o + q;
            __m128 acc[T_ROWS];

            for (uint32_t i = 0; i < n_row; i++)
                acc[i] = b ? t_load4(y + i * c->ldy, outs) : _mm_setzero_ps();
            tile1_rows(ints, n_row, c, r, b, values + q * size, acc);
            for (uint32_t i = 0; i < n_row; i++)
                v_store4(y + i * c->ldy, last ? _mm_mul_ps(acc[i], factors[q / 4]) : acc[i], outs);
        }
    }
}

/* ---- axis 0: four vectors of outputs, a strip of inputs ---- */

V_INLINE void tile0_int(int n_row, const int16_t *values, size_t n, const int16_t *const *v,
                        vi sum[T_ROWS][T_CHUNK])
{
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int q = 0; q < T_CHUNK; q++)
            sum[r][q] = vi_zero();
    }
    for (size_t i = 0; i < n; i += 2, values += T_CHUNK * 2 * VW) {
        vi x[T_CHUNK];

        V_UNROLL
        for (int q = 0; q < T_CHUNK; q++)
            x[q] = t_load(values + q * 2 * VW);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const vi a = all_pairs(v[r] + i);

            V_UNROLL
            for (int q = 0; q < T_CHUNK; q++)
                sum[r][q] = dot16(sum[r][q], x[q], a);
        }
    }
}

V_INLINE void tile0_float(int n_row, const float *values, size_t n, const float *const *z,
                          vf sum[T_ROWS][T_CHUNK])
{
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int q = 0; q < T_CHUNK; q++)
            sum[r][q] = vf_zero();
    }
    for (size_t i = 0; i < n; i++, values += T_CHUNK * VW) {
        vf x[T_CHUNK];

        V_UNROLL
        for (int q = 0; q < T_CHUNK; q++)
            x[q] = vf_load(values + q * VW);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const vf a = vf_set1(z[r][i]);

            V_UNROLL
            for (int q = 0; q < T_CHUNK; q++)
                sum[r][q] = vf_fma(x[q], a, sum[r][q]);
        }
    }
}

/* Where the vector of group q lies among a chunk's outputs; columns run backwards in a chunk. */
V_INLINE size_t t_out(int q)
{
    return (size_t)(T_CHUNK - 1 - q) * VW;
}

/* Values of inputs [i0, i0 + n) for a chunk of outputs. */
struct t_part {
    size_t i0, n;
    const void *values;
    const float *factors; /* of the outputs, which the finished sums are multiplied by, or NULL */
};

/* Add a part to n_row rows of a chunk of outputs at y. */
V_INLINE void tile0(int ints, int n_row, const struct t_call *c, uint32_t r, const struct t_part *p, float *y)
{
    const int16_t *v[T_ROWS];
    const float *z[T_ROWS];
    float s[T_ROWS];
    vi sum[T_ROWS][T_CHUNK];
    vf part[T_ROWS][T_CHUNK];

    for (int i = 0; i < n_row; i++) {
        const uint8_t *row = c->act + (r + (uint32_t)i) * c->act_bytes;

        if (ints) {
            const struct t_row q = t_row_at(row, c->w->n_in);

            v[i] = q.v + p->i0;
            s[i] = q.s[p->i0 / T_BLOCK];
        } else {
            z[i] = (const float *)(const void *)row + p->i0;
        }
    }
    if (ints)
        tile0_int(n_row, p->values, p->n, v, sum);
    else
        tile0_float(n_row, p->values, p->n, z, part);
    V_UNROLL
    for (int i = 0; i < n_row; i++) {
        V_UNROLL
        for (int q = 0; q < T_CHUNK; q++) {
            float *at = y + (size_t)i * c->ldy + t_out(q);
            const vf acc = p->i0 ? vf_load(at) : vf_zero();
            vf x = ints ? vf_fma(t_reverse(vf_from_i(sum[i][q])), vf_set1(s[i]), acc)
                        : vf_add(acc, t_reverse(part[i][q]));

            if (p->factors)
                x = vf_mul(x, vf_load(p->factors + t_out(q)));
            vf_store(at, x);
        }
    }
}

static void tile0_rows(int ints, uint32_t n_row, const struct t_call *c, uint32_t r, const struct t_part *p,
                       float *y)
{
    switch (n_row) {
    case 1:
        ints ? tile0(1, 1, c, r, p, y) : tile0(0, 1, c, r, p, y);
        break;
    case 2:
        ints ? tile0(1, 2, c, r, p, y) : tile0(0, 2, c, r, p, y);
        break;
#if T_ROWS > 2
    case 3:
        ints ? tile0(1, 3, c, r, p, y) : tile0(0, 3, c, r, p, y);
        break;
    case 4:
        ints ? tile0(1, 4, c, r, p, y) : tile0(0, 4, c, r, p, y);
        break;
#endif
    default:
        break;
    }
}

/* All rows of the call. */
static void tile0_all(int ints, const struct t_call *c, const struct t_part *p, float *y)
{
    for (uint32_t r = 0; r < c->n_row; r += T_ROWS, y += T_ROWS * c->ldy) {
        for (uint32_t i = r + T_ROWS; i < c->n_row && i < r + 2 * T_ROWS; i++) { /* lines of the next tile */
            for (uint32_t j = 0; j < T_CHUNK_COLS; j += 16)
                __builtin_prefetch(y + (size_t)(i - r) * c->ldy + j, 1);
        }
        tile0_rows(ints, c->n_row - r < T_ROWS ? c->n_row - r : T_ROWS, c, r, p, y);
    }
}

static void many0(int ints, const struct t_decoder *d, const struct t_call *c)
{
    const size_t most = ints ? T_BLOCK : T_RUN;
    int16_t values[T_BLOCK * T_CHUNK_COLS] __attribute__((aligned(64))); /* more than T_RUN rows of floats */

    for (uint32_t o = c->o0; o < c->o1;) {
        int c0, c1;
        const size_t b = t_chunks_of(c, &o, &c0, &c1);

        for (int chunk = c0; chunk < c1; chunk++) {
            float *y = c->y + b * T_BLOCK + T_BLOCK - (size_t)(chunk + 1) * T_CHUNK_COLS;

            for (size_t i0 = 0; i0 < c->w->n_in; i0 += most) {
                const struct t_strip strip = t_strip_at(c, b, i0, most);
                const struct t_part part = {i0, strip.n, values, NULL};

                d->chunk(c, ints, chunk, &strip, values);
                tile0_all(ints, c, &part, y);
            }
        }
    }
}

/* ---- axis 1 again ---- */

/* Values of block b of T_CHUNK_COLS outputs from o on, as d->chunk() has them; columns backwards too. */
static void turn_block(const struct t_decoder *d, const struct t_call *c, uint32_t o, size_t b, int16_t *out)
{
    int16_t values[VW * T_BLOCK] __attribute__((aligned(64)));

    for (uint32_t q = 0; q < T_CHUNK; q++) {
        for (uint32_t i = 0; i < VW; i++)
            d->block(c, 1, esp_trellis_block(c->w, o + T_CHUNK_COLS - 1 - (q * VW + i), b),
                     values + i * T_BLOCK);
        for (size_t j = 0; j < T_BLOCK / 2; j += VW) { /* pairs of inputs */
            vi v[VW];

            V_UNROLL
            for (int i = 0; i < VW; i++)
                v[i] = t_load(values + i * T_BLOCK + 2 * j);
            vi_transpose(v);
            V_UNROLL
            for (int i = 0; i < VW; i++)
                t_store(out + ((j + (size_t)i) * T_CHUNK + q) * 2 * VW, v[i]);
        }
    }
}

/* Outputs [o, o + T_CHUNK_COLS) of more rows than a tile takes: lanes become outputs, so that no sum crosses
 * lanes. */
static void turned(const struct t_decoder *d, const struct t_call *c, uint32_t o)
{
    int16_t values[T_BLOCK * T_CHUNK_COLS] __attribute__((aligned(64)));
    float factors[T_CHUNK_COLS];
    const size_t n_block = t_blocks(c->w->n_in);

    for (uint32_t i = 0; i < T_CHUNK_COLS; i++)
        factors[i] = t_factor(c->w, o + i);
    for (size_t b = 0; b < n_block; b++) {
        const struct t_part part = {b * T_BLOCK, T_BLOCK, values, b + 1 == n_block ? factors : NULL};

        turn_block(d, c, o, b, values);
        tile0_all(1, c, &part, c->y + o);
    }
}

static void many1(int ints, int turns, const struct t_decoder *d, const struct t_call *c)
{
    const size_t size = T_BLOCK * (ints ? sizeof(int16_t) : sizeof(float));
    uint8_t values[T_OUTS * T_BLOCK * sizeof(float)] __attribute__((aligned(64)));

    uint32_t o = c->o0;

    for (; turns && c->o1 - o >= T_CHUNK_COLS; o += T_CHUNK_COLS)
        turned(d, c, o);
    for (; o < c->o1; o += T_OUTS) {
        const uint32_t n = c->o1 - o < T_OUTS ? c->o1 - o : T_OUTS;

        for (size_t b = 0; b < t_blocks(c->w->n_in); b++) {
            for (uint32_t i = 0; i < (n + 3) / 4 * 4;
                 i++) /* whole tiles of four: past the end the last one again */
                d->block(c, ints, esp_trellis_block(c->w, o + (i < n ? i : n - 1), b), values + i * size);
            many1_block(ints, c, o, n, b, values);
        }
    }
}

/* ---- the table's entries ---- */

static void t_prepare_f32(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        t_prepare_float(w, x + r * ldx, 0, (float *)out + r * T_BLOCK * t_blocks(w->n_in));
}

static void t_prepare_bf16(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        t_prepare_float(w, x + r * ldx, 1, (float *)out + r * T_BLOCK * t_blocks(w->n_in));
}

static void t_prepare_int8(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        t_prepare_int(w, x + r * ldx, 127, t_row_at((uint8_t *)out + r * t_int_bytes(w->n_in, 0), w->n_in));
}

static void t_prepare_int8x2(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row,
                             void *out)
{
    for (size_t r = 0; r < n_row; r++)
        t_prepare_int(w, x + r * ldx, 16256, t_row_at((uint8_t *)out + r * t_int_bytes(w->n_in, 0), w->n_in));
}

static const struct esp_path t_int_paths[] = {T_INT_PATHS, [T_PATHS] = {NULL, ESP_SHAPE_ANY, 0}};

static const struct esp_path t_float_paths[] = {
    {"values by block in f32, tiles of four outputs", ESP_SHAPE_AXIS1, 1},
    {"values by strip in f32, an output a lane", ESP_SHAPE_AXIS0, 1},
    {NULL, ESP_SHAPE_ANY, 0},
};

static void t_product_int(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                          uint32_t o1, float *y, size_t ldy)
{
    const int k = (int)esp_trellis_bits(w->format);
    const struct t_decoder *d = t_decoder_of(k);
    const struct t_call c = {w, act, t_int_bytes(w->n_in, 0), n_row, o0, o1, y, ldy, window_of(k), k};

    if (n_row == 0)
        return;
    switch (esp_path_of(t_int_paths, w->axis ? ESP_SHAPE_AXIS1 : ESP_SHAPE_AXIS0, n_row) - t_int_paths) {
    case T_ONE1:
        d->one1(&c);
        break;
    case T_MANY1:
        many1(1, 0, d, &c);
        break;
    case T_TURNED:
        many1(1, 1, d, &c);
        break;
    case T_ONE0:
        d->one0(&c);
        break;
    default:
        many0(1, d, &c);
        break;
    }
}

static void t_product_float(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                            uint32_t o1, float *y, size_t ldy)
{
    const int k = (int)esp_trellis_bits(w->format);
    const struct t_decoder *d = t_decoder_of(k);
    const struct t_call c = {w, act, t_float_bytes(w->n_in, 0), n_row, o0, o1, y, ldy, window_of(k), k};

    if (w->axis)
        many1(0, 0, d, &c);
    else
        many0(0, d, &c);
}

static void trellis_init(struct esp_kernels *k)
{
    for (int f = ESP_FORMAT_TRELLIS1; f <= ESP_FORMAT_TRELLIS8; f++) {
        k->linear[f][ESP_ACT_F32] =
            (struct esp_linear){t_float_bytes, t_prepare_f32, t_product_float, NULL, NULL, t_float_paths};
        k->linear[f][ESP_ACT_BF16] =
            (struct esp_linear){t_float_bytes, t_prepare_bf16, t_product_float, NULL, NULL, t_float_paths};
        k->linear[f][ESP_ACT_INT8X2] =
            (struct esp_linear){t_int_bytes, t_prepare_int8x2, t_product_int, NULL, NULL, t_int_paths};
        k->linear[f][ESP_ACT_INT8] =
            (struct esp_linear){t_int_bytes, t_prepare_int8, t_product_int, NULL, NULL, t_int_paths};
    }
}

#endif
