/*
 * Products of affine weights with activations of one or two int8 terms by AMX, for many rows; fewer rows go
 * to affine_int_avx512vnni.c, whose packed weights and prepared rows serve here as well. Integer sums of a
 * group are exact, and the steps in f32 are the same in the same order, so both give the same bits.
 *
 * A strip of 32 outputs is unpacked to bytes once for all rows, a run of inputs at a time: a piece of a strip
 * (strip_avx512.h) is a row of a tile as it is. Four tiles of sums take 32 rows of one term, or 16 rows of
 * two terms, by 32 outputs. Their sums go through memory to the scales, which cost more instructions than
 * the tiles do. What is unpacked, the sums and the rows' part of a run have to stay in the first-level cache
 * together: runs and the groups whose sums wait are as short as that takes, and the processor's own
 * reordering is what overlaps tiles with scales.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/codes_avx512.h"
#include "kernels/x86/strip_avx512.h"

#include "kernels/x86/affine_int_avx512.h"
#include "kernels/x86/amx.h"
#include "kernels/x86/parts.h"

enum {
    RUN = 256,                     /* inputs unpacked at once: whole groups of each size */
    RUN_GROUPS = RUN / 32,         /* most of them */
    CHUNK = 2,                     /* groups whose sums wait */
    BATCH = 4,                     /* rows whose sums of floats are registers */
    MOST_ROWS = 512,               /* that share an unpacked run */
    LEAST_ROWS = 64,               /* that do, where more do not stay in L2 */
    ACT_CLOSE_BYTES = 1024 * 1024, /* of prepared rows that stay there while the strips of a call pass */
};

/* A run of inputs of a strip. */
struct run {
    uint8_t codes[RUN * STRIP]
        __attribute__((aligned(64))); /* tiles of both halves, for each step of inputs */
    float scales[RUN_GROUPS][2][STRIP] __attribute__((aligned(64))); /* scales, then biases, of each group */
};

struct call {
    const struct esp_weight *w;
    int bits, terms;
    uint32_t group, step; /* inputs of a group, and of a tile */
    const uint8_t *act;   /* first row */
    size_t act_bytes, pad;
    uint32_t n_row;
    float *y; /* of the first row */
    size_t ldy;
};

/* ---- weights ---- */

V_INLINE void unpack(int bits, const struct call *c, const uint8_t *strip, size_t n_group, struct run *out)
{
    const size_t size = scale_bytes(c->w->scale_type), tile = (size_t)c->step * AMX_LANES;

    for (size_t g = 0; g < n_group; g++) {
        V_UNROLL
        for (int i = 0; i < 2 * HALVES; i++)
            vf_store(out->scales[g][i / HALVES] + i % HALVES * VW,
                     strip_scale(c->w->scale_type, strip + (size_t)i * VW * size));
        strip_prefetch(strip, 2);
        strip += 2 * STRIP * size;
        for (uint32_t i = 0; i < c->group; i += STRIP_UNIT, strip += HALVES * 64 * bits) {
            uint8_t *at = out->codes + (g * c->group + i) / c->step * HALVES * tile + i % c->step / 4 * 64;

            strip_prefetch(strip, HALVES * bits);
            V_UNROLL
            for (int h = 0; h < HALVES; h++) {
                V_UNROLL
                for (int p = 0; p < STRIP_PIECES; p++)
                    _mm512_storeu_si512(at + (size_t)h * tile + 64 * p,
                                        strip_piece(bits, strip + h * 64 * bits, p));
            }
        }
    }
}

static void unpack_run(const struct call *c, const uint8_t *strip, size_t n_group, struct run *out)
{
    switch (c->bits) {
    case 2:
        unpack(2, c, strip, n_group, out);
        break;
    case 3:
        unpack(3, c, strip, n_group, out);
        break;
    case 4:
        unpack(4, c, strip, n_group, out);
        break;
    case 5:
        unpack(5, c, strip, n_group, out);
        break;
    case 6:
        unpack(6, c, strip, n_group, out);
        break;
    default:
        unpack(8, c, strip, n_group, out);
        break;
    }
}

/* ---- scales ---- */

/* Sums of a chunk of groups that wait for their scales. */
struct sums {
    const int32_t *tiles;            /* [n_group][AMX_SUMS][AMX_WORDS] */
    const float (*scales)[2][STRIP]; /* [n_group] */
    const uint8_t *steps;            /* of the first row, from the chunk's first group on */
    float *acc;                      /* [n_row][STRIP] */
    uint32_t n_group, n_row;
    int first; /* acc has nothing yet */
};

/* n rows from r on, which lie in one tile. */
V_INLINE void add_rows(int terms, int n, const struct call *c, const struct sums *s, uint32_t r)
{
    const int32_t *tiles =
        s->tiles + (terms == 1 ? r / AMX_ROWS * HALVES * AMX_WORDS : 0) + r % AMX_ROWS * VW;
    const uint8_t *steps = s->steps + r * c->act_bytes;
    float *acc = s->acc + (size_t)r * STRIP;
    vf a[BATCH][HALVES];

    V_UNROLL
    for (int i = 0; i < n * HALVES; i++)
        a[i / HALVES][i % HALVES] = s->first ? vf_zero() : vf_load(acc + i * VW);
    for (uint32_t g = 0; g < s->n_group; g++, tiles += AMX_SUMS * AMX_WORDS, steps += sizeof(float)) {
        vf scale[HALVES], bias[HALVES];

        V_UNROLL
        for (int h = 0; h < HALVES; h++) {
            scale[h] = vf_load(s->scales[g][0] + h * VW);
            bias[h] = vf_load(s->scales[g][1] + h * VW);
        }
        V_UNROLL
        for (int i = 0; i < n; i++) {
            const float *at = (const float *)(const void *)(steps + (size_t)i * c->act_bytes);
            const vf step = vf_set1(at[0]), sum = vf_set1(at[c->pad]);

            V_UNROLL
            for (int h = 0; h < HALVES; h++) {
                const int32_t *p = tiles + h * AMX_WORDS + i * VW;
                vi all = _mm512_load_si512(p);

                if (terms == 2)
                    all = vi_add(vi_shl(all, 7), _mm512_load_si512(p + HALVES * AMX_WORDS));
                a[i][h] = vf_fma(bias[h], sum, a[i][h]);
                a[i][h] = vf_fma(vf_from_i(all), vf_mul(scale[h], step), a[i][h]);
            }
        }
    }
    V_UNROLL
    for (int i = 0; i < n * HALVES; i++)
        vf_store(acc + i * VW, a[i / HALVES][i % HALVES]);
}

V_INLINE void add_sums(int terms, const struct call *c, const struct sums *s)
{
    uint32_t r = 0;

    for (; r + BATCH <= s->n_row; r += BATCH)
        add_rows(terms, BATCH, c, s, r);
    for (; r < s->n_row; r++)
        add_rows(terms, 1, c, s, r);
}

/* ---- tiles ---- */

/* Sums of one group: a0 and a1 are its codes for tiles 4 and 5, b its weights. */
V_INLINE void multiply(const struct call *c, const uint8_t *a0, const uint8_t *a1, const uint8_t *b)
{
    const size_t tile = (size_t)c->step * AMX_LANES;

    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (uint32_t i = 0; i < c->group; i += c->step, b += HALVES * tile) {
        amx_load(6, b, AMX_ROW_BYTES);
        amx_load(4, a0 + i, c->act_bytes);
        amx_dot_su(0, 4, 6);
        amx_load(7, b + tile, AMX_ROW_BYTES);
        amx_dot_su(1, 4, 7);
        if (a1) {
            amx_load(5, a1 + i, c->act_bytes);
            amx_dot_su(2, 5, 6);
            amx_dot_su(3, 5, 7);
        }
    }
}

/* Rows [r, r + n), n <= 32 of one term and 16 of two, times groups [g0, g0 + n_group) of the call, whose
 * weights are at b: to tiles. */
V_INLINE void multiply_chunk(int terms, const struct call *c, uint32_t r, uint32_t n, size_t g0,
                             const uint8_t *b, uint32_t n_group, int32_t *tiles)
{
    const uint8_t *a = c->act + r * c->act_bytes + 8 * c->pad + g0 * c->group * (size_t)terms;
    const size_t second = terms == 2 ? c->group : n > AMX_ROWS ? AMX_ROWS * c->act_bytes : 0;

    for (uint32_t g = 0; g < n_group; g++, tiles += AMX_SUMS * AMX_WORDS) {
        multiply(c, a, second ? a + second : NULL, b);
        amx_store_sums(second != 0, tiles);
        a += c->group * (size_t)terms;
        b += c->group * (size_t)STRIP;
    }
}

/* All n_row rows from row r0 on times a run of n_group groups from g0 on. acc [n_row][STRIP]. */
V_INLINE void multiply_run(int terms, const struct call *c, const struct run *run, uint32_t r0,
                           uint32_t n_row, size_t g0, uint32_t n_group, float *acc)
{
    int32_t tiles[CHUNK * AMX_SUMS * AMX_WORDS] __attribute__((aligned(64)));
    const uint32_t block = terms == 1 ? 2 * AMX_ROWS : AMX_ROWS;
    uint32_t configured = 0;

    for (uint32_t r = 0, n; r < n_row; r += n) {
        n = n_row - r < block ? n_row - r : block;
        if (n != configured)
            amx_configure(n < AMX_ROWS ? n : AMX_ROWS,
                          terms == 2     ? n
                          : n > AMX_ROWS ? n - AMX_ROWS
                                         : 0,
                          c->step);
        configured = n;
        for (uint32_t g = 0, n_chunk; g < n_group; g += n_chunk) {
            n_chunk = n_group - g < CHUNK ? n_group - g : CHUNK;
            multiply_chunk(terms, c, r0 + r, n, g0 + g, run->codes + (size_t)g * c->group * STRIP, n_chunk,
                           tiles);
            add_sums(terms, c,
                     &(struct sums){.tiles = tiles,
                                    .scales = run->scales + g,
                                    .steps = c->act + (r0 + r) * c->act_bytes + (g0 + g) * sizeof(float),
                                    .acc = acc + (size_t)r * STRIP,
                                    .n_group = n_chunk,
                                    .n_row = n,
                                    .first = g0 + g == 0});
        }
    }
}

/* ---- calls ---- */

/* acc [n_row][STRIP] to rows from r0 on, outputs from o on. */
static void store_rows(const struct call *c, uint32_t r0, uint32_t n_row, uint32_t o, uint32_t n_out,
                       const float *acc)
{
    enum { AHEAD = 8 }; /* rows of y lie far apart, and a store that misses holds up those behind it */

    for (uint32_t r = 0; r < n_row; r++, acc += STRIP) {
        float *y = c->y + (size_t)(r0 + r) * c->ldy + o;

        if (r + AHEAD < n_row) {
            __builtin_prefetch(y + AHEAD * c->ldy, 1);
            __builtin_prefetch(y + AHEAD * c->ldy + n_out - 1, 1);
        }
        if (n_out == STRIP) {
            vf_store(y, vf_load(acc));
            vf_store(y + VW, vf_load(acc + VW));
        } else {
            memcpy(y, acc, n_out * sizeof *acc);
        }
    }
}

/* Outputs [o, o + n_out), n_out <= STRIP, of n_row rows from r0 on. */
static void strip_rows(const struct call *c, uint32_t r0, uint32_t n_row, uint32_t o, uint32_t n_out)
{
    const struct esp_weight *w = c->w;
    float acc[MOST_ROWS * STRIP] __attribute__((aligned(64)));
    uint8_t packed[STRIP_RUN_BYTES / (STRIP_RUN / RUN)] __attribute__((aligned(64)));
    struct run run;

    for (uint32_t i = 0; i < w->n_in; i += RUN) {
        const uint32_t n = w->n_in - i < RUN ? w->n_in - i : RUN;
        const uint8_t *strip = packed;

        if (w->packed)
            strip = w->packed + o / STRIP * strip_bytes(w, c->bits) +
                    i / c->group * strip_group_bytes(w, c->bits);
        else
            esp_strip_pack_run_avx512vnni(w, o, n_out, i, n, packed);
        unpack_run(c, strip, n / c->group, &run);
        if (c->terms == 1)
            multiply_run(1, c, &run, r0, n_row, i / c->group, n / c->group, acc);
        else
            multiply_run(2, c, &run, r0, n_row, i / c->group, n / c->group, acc);
    }
    store_rows(c, r0, n_row, o, n_out, acc);
}

/* Rows that pass together: their prepared rows stay in the second-level cache. */
static uint32_t rows_together(const struct call *c)
{
    const size_t fit = ACT_CLOSE_BYTES / c->act_bytes / LEAST_ROWS * LEAST_ROWS;

    return fit < LEAST_ROWS ? LEAST_ROWS : fit < MOST_ROWS ? (uint32_t)fit : MOST_ROWS;
}

static void product(int terms, const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                    uint32_t o1, float *y, size_t ldy)
{
    const struct call c = {.w = w,
                           .bits = (int)esp_format_get(w->format)->bits,
                           .terms = terms,
                           .group = w->group,
                           .step = w->group < AMX_ROW_BYTES ? w->group : AMX_ROW_BYTES,
                           .act = act,
                           .act_bytes = int_bytes(w->n_in, w->group, terms),
                           .pad = pad_to(w->n_in / w->group, VW),
                           .n_row = n_row,
                           .y = y,
                           .ldy = ldy};
    const uint32_t together = rows_together(&c);

    for (uint32_t r = 0; r < n_row; r += together) {
        for (uint32_t o = o0; o < o1; o += STRIP)
            strip_rows(&c, r, n_row - r < together ? n_row - r : together, o,
                       o1 - o < STRIP ? o1 - o : STRIP);
    }
    amx_release();
}

/* Rows from which on tiles serve: a whole tile. */
#define TILE_PATHS(rows)                                                                                     \
    {"strips of 32 outputs, AMX tiles", ESP_SHAPE_PACKED, rows},                                             \
    {                                                                                                        \
        "strips of 32 outputs" ON_THE_WAY ", AMX tiles", ESP_SHAPE_STORED, rows                              \
    }

enum { TILE_ROWS_INT8 = 16, TILE_ROWS_INT8X2 = 16 };

static const struct esp_path int8_paths[] = {
    STRIP_INT8_PATHS, TILE_PATHS(TILE_ROWS_INT8), {NULL, ESP_SHAPE_ANY, 0}};
static const struct esp_path int8x2_paths[] = {
    STRIP_INT8X2_PATHS, TILE_PATHS(TILE_ROWS_INT8X2), {NULL, ESP_SHAPE_ANY, 0}};

static void int8_product(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                         uint32_t o1, float *y, size_t ldy)
{
    if (n_row < TILE_ROWS_INT8)
        esp_affine_int8_avx512vnni(w, act, n_row, o0, o1, y, ldy);
    else
        product(1, w, act, n_row, o0, o1, y, ldy);
}

static void int8x2_product(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                           uint32_t o1, float *y, size_t ldy)
{
    if (n_row < TILE_ROWS_INT8X2)
        esp_affine_int8x2_avx512vnni(w, act, n_row, o0, o1, y, ldy);
    else
        product(2, w, act, n_row, o0, o1, y, ldy);
}

void esp_affine_int_init_avx512amx(struct esp_kernels *k)
{
    for (int f = ESP_FORMAT_AFFINE2; f <= ESP_FORMAT_AFFINE8; f++) {
        k->linear[f][ESP_ACT_INT8].product = int8_product;
        k->linear[f][ESP_ACT_INT8].paths = int8_paths;
        k->linear[f][ESP_ACT_INT8X2].product = int8x2_product;
        k->linear[f][ESP_ACT_INT8X2].paths = int8x2_paths;
    }
}
