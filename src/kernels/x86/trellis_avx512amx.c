/*
 * Integer products with trellis weights by AMX, for many rows; fewer go to trellis_avx512vbmi.c. A value,
 * from -510 to 510, is 32 * high + low with high from -16 and low from 0 to below 32, and an activation of
 * two terms 128 * q1 + q2: four products of bytes, or two with one term, whose sums over a block of 256
 * inputs are exact and are put together before they become a float. From there on the steps are those of
 * the other paths, so the bits are the same.
 *
 * A block of inputs after the other, for all outputs of the call: the rows' bytes of a block stay in the
 * second-level cache, and a strip of 64 outputs is decoded once for all rows. Floats wait in the output.
 * Four tiles of sums take 32 rows of one term, or 16 of two, by 16 outputs; the sums of one such block
 * become floats while the tiles of the next multiply.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/trellis_avx512.h"

#define T_ROWS 4 /* of trellis_avx512vbmi.c, for its paths */

#include "kernels/x86/amx.h"
#include "kernels/x86/parts.h"
#include "kernels/x86/trellis_body.h"
#include "kernels/x86/trellis_int_avx512.h"

enum {
    STEPS = T_BLOCK / AMX_ROW_BYTES, /* tiles of a block of inputs */
    STEP_PAIRS = AMX_ROW_BYTES / 2,  /* neighbouring inputs of a step */
    MOST_ROWS = 512,                 /* that share a decoded strip */
    LOW_BITS = 5,                    /* of a value */
};

/* A strip of outputs and a block of inputs. */
struct strip {
    uint8_t tiles[T_CHUNK][STEPS][2][AMX_TILE]
        __attribute__((aligned(64))); /* by 16 outputs; high, then low */
    uint32_t o, n;                    /* outputs */
    size_t b;                         /* block */
};

/* ---- activations ---- */

/* Where in a tile's row the four inputs at 4 * quad of a step lie: packs lanes of 128 bits of two vectors. */
V_INLINE int place_of(int quad)
{
    return quad / 2 % 4 * 4 + quad % 2 + (quad < 8 ? 0 : 2);
}

/* Bytes of int16 a, then b, lane by lane of 128 bits. */
V_INLINE vi pack8(vi a, vi b)
{
    return _mm512_packs_epi16(a, b);
}

/* Block b of n_row rows as tiles: [row / 16][STEPS][terms][AMX_TILE]. */
static void split_rows(int terms, const struct t_call *c, uint32_t r0, uint32_t n_row, size_t b, uint8_t *out)
{
    for (uint32_t r = 0; r < n_row; r++) {
        const int16_t *v = t_row_at(c->act + (r0 + r) * c->act_bytes, c->w->n_in).v + b * T_BLOCK;
        uint8_t *tile =
            out + (size_t)r / AMX_ROWS * STEPS * (size_t)terms * AMX_TILE + r % AMX_ROWS * AMX_ROW_BYTES;

        for (int step = 0; step < STEPS; step++, v += AMX_ROW_BYTES, tile += (size_t)terms * AMX_TILE) {
            vi lo = t_load(v), hi = t_load(v + AMX_ROW_BYTES / 2);

            if (terms == 2) {
                const vi half = _mm512_set1_epi16(64);
                const vi q_lo = _mm512_srai_epi16(_mm512_add_epi16(lo, half), 7);
                const vi q_hi = _mm512_srai_epi16(_mm512_add_epi16(hi, half), 7);

                t_store(tile, pack8(q_lo, q_hi));
                lo = _mm512_sub_epi16(lo, _mm512_slli_epi16(q_lo, 7));
                hi = _mm512_sub_epi16(hi, _mm512_slli_epi16(q_hi, 7));
            }
            t_store(tile + (terms - 1) * AMX_TILE, pack8(lo, hi));
        }
    }
}

/* ---- weights ---- */

V_INLINE vi high_of(vi a, vi b)
{
    return pack8(_mm512_srai_epi16(a, LOW_BITS), _mm512_srai_epi16(b, LOW_BITS));
}

V_INLINE vi low_of(vi a, vi b)
{
    const vi mask = _mm512_set1_epi16((1 << LOW_BITS) - 1);

    return pack8(_mm512_and_si512(a, mask), _mm512_and_si512(b, mask));
}

V_INLINE void store_turned(vi *v, uint8_t *tile)
{
    vi_transpose(v);
    V_UNROLL
    for (int i = 0; i < AMX_ROWS; i++)
        t_store(tile + i * AMX_ROW_BYTES, v[i]);
}

/* Axis 1: outputs [s->o + at, s->o + at + 16), past the end the last one again. */
static void decode_rows(const struct t_decoder *d, const struct t_call *c, struct strip *s, uint32_t at)
{
    int16_t values[AMX_LANES][T_BLOCK] __attribute__((aligned(64)));

    for (uint32_t i = 0; i < AMX_LANES; i++)
        d->block(c, 1, esp_trellis_block(c->w, s->o + (at + i < s->n ? at + i : s->n - 1), s->b), values[i]);
    for (int step = 0; step < STEPS; step++) {
        uint8_t(*tiles)[AMX_TILE] = s->tiles[at / VW][step];
        vi high[AMX_LANES], low[AMX_LANES];

        V_UNROLL
        for (int i = 0; i < AMX_LANES; i++) {
            const vi a = t_load(values[i] + step * AMX_ROW_BYTES);
            const vi b = t_load(values[i] + step * AMX_ROW_BYTES + AMX_ROW_BYTES / 2);

            high[i] = high_of(a, b);
            low[i] = low_of(a, b);
        }
        store_turned(high, tiles[0]);
        store_turned(low, tiles[1]);
    }
}

/* What brings bytes of pack8() of two vectors of pairs, a lane an output, into words of four inputs,
 * outputs the other way round. */
V_INLINE vi quads_index(void)
{
    uint8_t at[64];

    for (int j = 0; j < AMX_LANES; j++) {
        const int lane = AMX_LANES - 1 - j, first = lane / 4 * 16 + lane % 4 * 2;

        for (int i = 0; i < 4; i++)
            at[4 * j + i] = (uint8_t)(first + i % 2 + i / 2 * 8);
    }
    return _mm512_loadu_si512(at);
}

/* Axis 0, whose decoder has lanes that are outputs, backwards: all 64 of the strip. */
static void decode_columns(const struct t_decoder *d, const struct t_call *c, struct strip *s)
{
    int16_t values[STEP_PAIRS * T_CHUNK * 2 * VW] __attribute__((aligned(64)));
    const vi index = quads_index();
    const int chunk = T_CHUNKS - 1 - (int)(s->o % T_BLOCK / T_CHUNK_COLS);

    for (int step = 0; step < STEPS; step++) {
        const size_t i0 = s->b * T_BLOCK + (size_t)step * AMX_ROW_BYTES;
        size_t filled = 0;

        if (i0 < c->w->n_in) {
            const struct t_strip strip = t_strip_at(c, s->o / T_BLOCK, i0, AMX_ROW_BYTES);

            d->chunk(c, 1, chunk, &strip, values);
            filled = (strip.n + 1) / 2 * T_CHUNK * 2 * VW;
        }
        memset(values + filled, 0, sizeof values - filled * sizeof *values);
        for (int quad = 0; quad < AMX_ROWS; quad++) {
            const int16_t *at = values + 2 * quad * T_CHUNK * 2 * VW;

            V_UNROLL
            for (int q = 0; q < T_CHUNK; q++) {
                const vi a = t_load(at + q * 2 * VW), b = t_load(at + (T_CHUNK + q) * 2 * VW);
                uint8_t(*tiles)[AMX_TILE] = s->tiles[T_CHUNK - 1 - q][step];
                const size_t row = (size_t)place_of(quad) * AMX_ROW_BYTES;

                t_store(tiles[0] + row, _mm512_permutexvar_epi8(index, high_of(a, b)));
                t_store(tiles[1] + row, _mm512_permutexvar_epi8(index, low_of(a, b)));
            }
        }
    }
}

/* ---- products ---- */

/* 16 outputs of a strip, or what there is of them. */
struct column {
    const struct strip *s;
    uint32_t at, n;    /* outputs of the strip */
    int last;          /* block, after which the sums are multiplied by */
    float factors[VW]; /* these */
};

/* Sums of up to 32 rows of one term or 16 of two, on their way to the output. */
struct sums {
    const int32_t *tiles; /* [AMX_SUMS][AMX_WORDS] */
    uint32_t r, n_row;
};

/* S of one row from its sums by high and by low. */
V_INLINE vi whole(const int32_t *tiles)
{
    return vi_add(vi_shl(_mm512_load_si512(tiles), LOW_BITS), _mm512_load_si512(tiles + AMX_WORDS));
}

V_INLINE void add_sums(int terms, const struct t_call *c, const struct column *u, const struct sums *sums)
{
    const vf factors = vf_load(u->factors);
    const size_t b = u->s->b;

    for (uint32_t i = 0; i < sums->n_row; i++) {
        const int32_t *tiles =
            sums->tiles + (terms == 1 ? i / AMX_ROWS * 2 * AMX_WORDS : 0) + i % AMX_ROWS * VW;
        const struct t_row row = t_row_at(c->act + (sums->r + i) * c->act_bytes, c->w->n_in);
        float *y = c->y + (size_t)(sums->r + i) * c->ldy + u->s->o + u->at;
        vi sum = whole(tiles);
        vf x = b ? vf_load_n(y, u->n) : vf_zero();

        if (terms == 2)
            sum = vi_add(vi_shl(sum, 7), whole(tiles + 2 * AMX_WORDS));
        x = vf_fma(vf_from_i(sum), vf_set1(row.s[b]), x);
        vf_store_n(y, u->n, u->last ? vf_mul(x, factors) : x);
    }
}

/* a0 and a1: tiles of a step, `step` bytes to the next; a1 may be NULL. */
V_INLINE void multiply(const uint8_t *a0, const uint8_t *a1, size_t step, const uint8_t (*b)[2][AMX_TILE])
{
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (int i = 0; i < STEPS; i++, a0 += step, b++) {
        amx_load(6, b[0][0], AMX_ROW_BYTES);
        amx_load(4, a0, AMX_ROW_BYTES);
        amx_dot_ss(0, 4, 6);
        amx_load(7, b[0][1], AMX_ROW_BYTES);
        amx_dot_ss(1, 4, 7);
        if (a1) {
            amx_load(5, a1, AMX_ROW_BYTES);
            amx_dot_ss(2, 5, 6);
            amx_dot_ss(3, 5, 7);
            a1 += step;
        }
    }
}

/* Rows [r0, r0 + n_row), whose bytes are at a, times a column. */
V_INLINE void multiply_column(int terms, const struct t_call *c, const struct column *u, uint32_t r0,
                              uint32_t n_row, const uint8_t *a)
{
    int32_t tiles[2][AMX_SUMS * AMX_WORDS] __attribute__((aligned(64)));
    const uint32_t block = terms == 1 ? 2 * AMX_ROWS : AMX_ROWS;
    const size_t step = (size_t)terms * AMX_TILE, rows16 = STEPS * step;
    struct sums before = {0};
    int which = 0;

    for (uint32_t r = 0, n; r < n_row; r += n, a += block / AMX_ROWS * rows16, which ^= 1) {
        const uint8_t *a1;

        n = n_row - r < block ? n_row - r : block;
        a1 = terms == 2 ? a + AMX_TILE : n > AMX_ROWS ? a + rows16 : NULL;
        if (r == 0 || n < block)
            amx_configure(n < AMX_ROWS ? n : AMX_ROWS,
                          terms == 2     ? n
                          : n > AMX_ROWS ? n - AMX_ROWS
                                         : 0,
                          AMX_ROW_BYTES);
        multiply(a, a1, step, u->s->tiles[u->at / VW]);
        add_sums(terms, c, u, &before);
        amx_store_sums(a1 != NULL, tiles[which]);
        before = (struct sums){tiles[which], r0 + r, n};
    }
    add_sums(terms, c, u, &before);
}

/* Rows [r0, r0 + n_row), whose bytes are at rows, times a strip. */
V_INLINE void multiply_strip(int terms, const struct t_call *c, struct strip *s, uint32_t r0, uint32_t n_row,
                             const uint8_t *rows)
{
    const struct t_decoder *d = t_decoder_of(c->k);
    const int last = c->w->axis && s->b + 1 == t_blocks(c->w->n_in);

    if (!c->w->axis)
        decode_columns(d, c, s);
    for (uint32_t at = 0; at < s->n; at += VW) {
        struct column u = {.s = s, .at = at, .n = s->n - at < VW ? s->n - at : VW, .last = last};

        if (c->w->axis)
            decode_rows(d, c, s, at);
        for (uint32_t i = 0; last && i < u.n; i++)
            u.factors[i] = t_factor(c->w, s->o + at + i);
        multiply_column(terms, c, &u, r0, n_row, rows);
    }
}

V_INLINE void product(int terms, const struct t_call *c)
{
    uint8_t rows[MOST_ROWS * T_BLOCK * 2] __attribute__((aligned(64)));
    struct strip s;

    for (uint32_t r = 0; r < c->n_row; r += MOST_ROWS) {
        const uint32_t n_row = c->n_row - r < MOST_ROWS ? c->n_row - r : MOST_ROWS;

        for (s.b = 0; s.b < t_blocks(c->w->n_in); s.b++) {
            split_rows(terms, c, r, n_row, s.b, rows);
            for (s.o = c->o0; s.o < c->o1; s.o += s.n) {
                s.n = c->o1 - s.o < T_CHUNK_COLS ? c->o1 - s.o : T_CHUNK_COLS;
                multiply_strip(terms, c, &s, r, n_row, rows);
            }
        }
    }
    amx_release();
}

/* Rows from which on tiles serve: fewer do not repay splitting a strip; doc/performance.md. */
enum { TILE_ROWS = 64 };

static const struct esp_path paths[] = {
    T_INT_PATHS,
    [T_PATHS] = {"values by strip, AMX tiles", ESP_SHAPE_AXIS1, TILE_ROWS},
    {"values by strip, AMX tiles", ESP_SHAPE_AXIS0, TILE_ROWS},
    {NULL, ESP_SHAPE_ANY, 0}};

V_INLINE void any_product(int terms, const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                          uint32_t o1, float *y, size_t ldy)
{
    const int k = (int)esp_trellis_bits(w->format);
    const struct t_call c = {.w = w,
                             .act = act,
                             .act_bytes = t_int_bytes(w->n_in, 0),
                             .n_row = n_row,
                             .o0 = o0,
                             .o1 = o1,
                             .y = y,
                             .ldy = ldy,
                             .win = window_of(k),
                             .k = k};

    if (n_row < TILE_ROWS)
        esp_trellis_int_avx512vbmi(w, act, n_row, o0, o1, y, ldy);
    else
        product(terms, &c);
}

static void product_int8(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                         uint32_t o1, float *y, size_t ldy)
{
    any_product(1, w, act, n_row, o0, o1, y, ldy);
}

static void product_int8x2(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                           uint32_t o1, float *y, size_t ldy)
{
    any_product(2, w, act, n_row, o0, o1, y, ldy);
}

void esp_trellis_init_avx512amx(struct esp_kernels *k)
{
    for (int f = ESP_FORMAT_TRELLIS1; f <= ESP_FORMAT_TRELLIS8; f++) {
        k->linear[f][ESP_ACT_INT8].product = product_int8;
        k->linear[f][ESP_ACT_INT8].paths = paths;
        k->linear[f][ESP_ACT_INT8X2].product = product_int8x2;
        k->linear[f][ESP_ACT_INT8X2].paths = paths;
    }
}
