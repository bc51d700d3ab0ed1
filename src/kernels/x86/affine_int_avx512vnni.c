/*
 * Products of affine weights with activations of one or two int8 terms (ESP_ACT_INT8, ESP_ACT_INT8X2) by
 * VNNI's byte dot product, on strips of 32 outputs (strip_avx512.h). A lane is an output: the integer sum of
 * a group is exact, and groups are added in f32, ascending, the bias of a group before its sum. Weights that
 * are not packed are packed on the way, a run of inputs at a time, so both give the same bits.
 *
 * Prepared rows are laid out in affine_int_avx512.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/x86/codes_avx512.h"
#include "kernels/x86/strip_avx512.h"

#include "kernels/x86/act_step.h"
#include "kernels/x86/affine_int_avx512.h"
#include "kernels/x86/parts.h"

enum {
    TILE_ROWS = 8, /* most rows of a tile; with two terms half of them: 16 integer sums either way */
    FEW_ROWS = 16, /* up to here rows pass strip by strip, in the order of memory */
    STRIP_BLOCK_BYTES = 256 * 1024, /* packed strips that stay in L2 while rows pass */
    RUN_ROWS = 48,                  /* rows whose sums wait while a run of unpacked weights passes */
};

static size_t int8_bytes(uint32_t n_in, uint32_t group)
{
    return int_bytes(n_in, group, 1);
}

static size_t int8x2_bytes(uint32_t n_in, uint32_t group)
{
    return int_bytes(n_in, group, 2);
}

/* ---- activations ---- */

V_INLINE void int_prepare(int terms, const struct esp_weight *w, const float *x, uint8_t *out)
{
    const size_t n_group = w->n_in / w->group, pad = pad_to(n_group, VW);
    float *s = (float *)(void *)out;
    float *ssum = s + pad;
    int8_t *q = (int8_t *)(ssum + pad);

    memset(out, 0, 8 * pad);
    for (size_t g = 0; g < n_group; g++, x += w->group, q += (size_t)terms * w->group) {
        const float step = act_step(x, w->group, terms == 1 ? 127.0f : 16256.0f);
        const vf by = vf_set1(step == 0 ? __builtin_inff() : step); /* zero step: all codes 0 */
        vi sum = vi_zero();

        for (uint32_t i = 0; i < w->group; i += VW) {
            const vi c = vi_from_f(vf_div(vf_load(x + i), by));
            const vi q1 = terms == 1 ? c : vi_sar(vi_add(c, vi_set1(64)), 7);

            sum = vi_add(sum, c);
            vi_store_int8(q + i, q1);
            if (terms == 2)
                vi_store_int8(q + w->group + i, vi_sub(c, vi_shl(q1, 7)));
        }
        s[g] = step;
        ssum[g] = step * (float)vi_sum(sum);
    }
}

static void int8_prepare(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        int_prepare(1, w, x + r * ldx, (uint8_t *)out + r * int8_bytes(w->n_in, w->group));
}

static void int8x2_prepare(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    for (size_t r = 0; r < n_row; r++)
        int_prepare(2, w, x + r * ldx, (uint8_t *)out + r * int8x2_bytes(w->n_in, w->group));
}

/* ---- tiles ---- */

/* A run of groups of one strip, and prepared rows. */
struct strip_run {
    const uint8_t *strip; /* at the run's first group */
    const uint8_t *act;   /* rows act_bytes apart */
    size_t act_bytes;
    size_t pad;    /* floats of the steps of a row */
    size_t g0, g1; /* groups of the run */
    uint32_t group;
    enum esp_scale_type scale;
};

V_INLINE vi int_broadcast(const uint8_t *p)
{
    int32_t four;

    memcpy(&four, p, sizeof four);
    return vi_set1(four);
}

/* Exact sums of one group by row and half, of q1 and of q2; those not used take no register. */
struct strip_sums {
    vi one[TILE_ROWS][HALVES], two[TILE_ROWS][HALVES];
};

/* The same for one row, which waits for memory: half by half, as they lie; the two side by side are no
 * stream. */
V_INLINE void strip_unit_in_order(int bits, int terms, const uint8_t *unit, const uint8_t *q, size_t q2_at,
                                  struct strip_sums *sum)
{
    V_UNROLL
    for (int h = 0; h < HALVES; h++) {
        V_UNROLL
        for (int p = 0; p < STRIP_PIECES; p++) {
            const vi c = strip_piece(bits, unit + h * 64 * bits, p);

            sum->one[0][h] = _mm512_dpbusd_epi32(sum->one[0][h], c, int_broadcast(q + 4 * p));
            if (terms == 2)
                sum->two[0][h] = _mm512_dpbusd_epi32(sum->two[0][h], c, int_broadcast(q + 4 * p + q2_at));
        }
    }
}

/* Add codes times q1, and times q2, which lies q2_at bytes behind, of one unit. */
V_INLINE void strip_unit(int bits, int terms, int n_row, const uint8_t *unit, const uint8_t *q, size_t ldq,
                         size_t q2_at, struct strip_sums *sum)
{
    V_UNROLL
    for (int p = 0; p < STRIP_PIECES; p++) {
        vi c[HALVES];

        V_UNROLL
        for (int h = 0; h < HALVES; h++)
            c[h] = strip_piece(bits, unit + h * 64 * bits, p);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const uint8_t *at = q + (size_t)r * ldq + 4 * p;
            const vi q1 = int_broadcast(at), q2 = terms == 2 ? int_broadcast(at + q2_at) : q1;

            V_UNROLL
            for (int h = 0; h < HALVES; h++) {
                sum->one[r][h] = _mm512_dpbusd_epi32(sum->one[r][h], c[h], q1);
                if (terms == 2)
                    sum->two[r][h] = _mm512_dpbusd_epi32(sum->two[r][h], c[h], q2);
            }
        }
    }
}

/*
 * Where a tile's sums of floats are: in registers from the first group to the last, or, where the integer
 * sums of a full tile leave no room, in memory. The barrier keeps the compiler from lifting them into
 * registers that it would have to spill in the inner loop.
 */
V_INLINE int strip_held(int terms, int n_row)
{
    return terms * n_row < TILE_ROWS;
}

/* a, or where the tile's sums are not held acc, += the sums of group g, with its scales and biases at p. */
V_INLINE void strip_group(int terms, int n_row, const struct strip_run *t, size_t g, const uint8_t *p,
                          const struct strip_sums *sum, vf (*a)[HALVES], float *acc)
{
    const size_t size = scale_bytes(t->scale);

    V_UNROLL
    for (int h = 0; h < HALVES; h++) {
        const vf scale = strip_scale(t->scale, p + (size_t)h * VW * size);
        const vf bias = strip_scale(t->scale, p + (STRIP + (size_t)h * VW) * size);

        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const float *s = (const float *)(const void *)(t->act + (size_t)r * t->act_bytes) + g;
            const vi all = terms == 2 ? vi_add(vi_shl(sum->one[r][h], 7), sum->two[r][h]) : sum->one[r][h];
            float *at = acc + r * STRIP + h * VW;
            vf x = strip_held(terms, n_row) ? a[r][h] : vf_load(at);

            x = vf_fma(bias, vf_set1(s[t->pad]), x);
            x = vf_fma(vf_from_i(all), vf_mul(scale, vf_set1(s[0])), x);
            if (strip_held(terms, n_row))
                a[r][h] = x;
            else
                vf_store(at, x);
        }
    }
}

/* Sums so far: none before the first run. */
V_INLINE void strip_begin(int held, int n_row, const struct strip_run *t, float *acc, vf (*a)[HALVES])
{
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int h = 0; h < HALVES; h++) {
            float *at = acc + r * STRIP + h * VW;

            if (held)
                a[r][h] = t->g0 ? vf_load(at) : vf_zero();
            else if (t->g0 == 0)
                vf_store(at, vf_zero());
        }
    }
}

/* acc [n_row][STRIP] += the run; the first run of a row sets it. */
V_INLINE void strip_tile(int bits, int terms, int n_row, const struct strip_run *t, float *acc)
{
    const size_t head = 2 * STRIP * scale_bytes(t->scale);
    const uint8_t *p = t->strip;
    const uint8_t *q = t->act + 8 * t->pad + t->g0 * t->group * (size_t)terms;
    vf a[TILE_ROWS][HALVES];

    strip_begin(strip_held(terms, n_row), n_row, t, acc, a);
    for (size_t g = t->g0; g < t->g1; g++) {
        const uint8_t *scales = p;
        struct strip_sums sum;

        strip_prefetch(p, 2);
        if (!strip_held(terms, n_row))
            __asm__ volatile("" ::: "memory");
        p += head;
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            V_UNROLL
            for (int h = 0; h < HALVES; h++)
                sum.one[r][h] = sum.two[r][h] = vi_zero();
        }
        for (uint32_t i = 0; i < t->group; i += STRIP_UNIT) {
            strip_prefetch(p, HALVES * bits);
            if (n_row == 1)
                strip_unit_in_order(bits, terms, p, q, t->group, &sum);
            else
                strip_unit(bits, terms, n_row, p, q, t->act_bytes, t->group, &sum);
            p += HALVES * 64 * bits;
            q += STRIP_UNIT;
        }
        q += (size_t)(terms - 1) * t->group;
        strip_group(terms, n_row, t, g, scales, &sum, a, acc);
    }
    if (!strip_held(terms, n_row))
        return;
    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int h = 0; h < HALVES; h++)
            vf_store(acc + r * STRIP + h * VW, a[r][h]);
    }
}

V_INLINE void strip_rows(int bits, int terms, const struct strip_run *t, uint32_t n_row, float *acc)
{
    switch (n_row) {
    case 1:
        strip_tile(bits, terms, 1, t, acc);
        break;
    case 2:
        strip_tile(bits, terms, 2, t, acc);
        break;
    case 3:
        strip_tile(bits, terms, 3, t, acc);
        break;
    case 4:
        strip_tile(bits, terms, 4, t, acc);
        break;
    default:
        strip_tile(bits, terms, TILE_ROWS / terms, t, acc);
        break;
    }
}

/* ---- calls ---- */

typedef void (*strip_rows_fn)(const struct strip_run *t, uint32_t n_row, float *acc);
typedef uint8_t *(*strip_pack_fn)(const struct esp_weight *w, uint32_t o, uint32_t n_out, size_t i0, size_t n,
                                  uint8_t *out);

/* What is compiled for each width of code. */
struct strip_format {
    int bits;
    strip_rows_fn rows[2]; /* by terms - 1 */
    strip_pack_fn pack;
};

static void rows2_1(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(2, 1, t, n_row, acc);
}

static void rows2_2(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(2, 2, t, n_row, acc);
}

static void rows3_1(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(3, 1, t, n_row, acc);
}

static void rows3_2(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(3, 2, t, n_row, acc);
}

static void rows4_1(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(4, 1, t, n_row, acc);
}

static void rows4_2(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(4, 2, t, n_row, acc);
}

static void rows5_1(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(5, 1, t, n_row, acc);
}

static void rows5_2(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(5, 2, t, n_row, acc);
}

static void rows6_1(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(6, 1, t, n_row, acc);
}

static void rows6_2(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(6, 2, t, n_row, acc);
}

static void rows8_1(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(8, 1, t, n_row, acc);
}

static void rows8_2(const struct strip_run *t, uint32_t n_row, float *acc)
{
    strip_rows(8, 2, t, n_row, acc);
}

static uint8_t *pack2(const struct esp_weight *w, uint32_t o, uint32_t n_out, size_t i0, size_t n,
                      uint8_t *out)
{
    return strip_pack_run(w, 2, o, n_out, i0, n, out);
}

static uint8_t *pack3(const struct esp_weight *w, uint32_t o, uint32_t n_out, size_t i0, size_t n,
                      uint8_t *out)
{
    return strip_pack_run(w, 3, o, n_out, i0, n, out);
}

static uint8_t *pack4(const struct esp_weight *w, uint32_t o, uint32_t n_out, size_t i0, size_t n,
                      uint8_t *out)
{
    return strip_pack_run(w, 4, o, n_out, i0, n, out);
}

static uint8_t *pack5(const struct esp_weight *w, uint32_t o, uint32_t n_out, size_t i0, size_t n,
                      uint8_t *out)
{
    return strip_pack_run(w, 5, o, n_out, i0, n, out);
}

static uint8_t *pack6(const struct esp_weight *w, uint32_t o, uint32_t n_out, size_t i0, size_t n,
                      uint8_t *out)
{
    return strip_pack_run(w, 6, o, n_out, i0, n, out);
}

static uint8_t *pack8(const struct esp_weight *w, uint32_t o, uint32_t n_out, size_t i0, size_t n,
                      uint8_t *out)
{
    return strip_pack_run(w, 8, o, n_out, i0, n, out);
}

static const struct strip_format *format_of(const struct esp_weight *w)
{
    static const struct strip_format formats[] = {
        {2, {rows2_1, rows2_2}, pack2}, {3, {rows3_1, rows3_2}, pack3}, {4, {rows4_1, rows4_2}, pack4},
        {5, {rows5_1, rows5_2}, pack5}, {6, {rows6_1, rows6_2}, pack6}, {8, {rows8_1, rows8_2}, pack8},
    };

    return &formats[w->format - ESP_FORMAT_AFFINE2];
}

uint8_t *esp_strip_pack_run_avx512vnni(const struct esp_weight *w, uint32_t o, uint32_t n_out, size_t i0,
                                       size_t n, uint8_t *out)
{
    return format_of(w)->pack(w, o, n_out, i0, n, out);
}

static size_t strip_pack_bytes(const struct esp_weight *w)
{
    return ((size_t)w->n_out + STRIP - 1) / STRIP * strip_bytes(w, format_of(w)->bits);
}

static void strip_pack(const struct esp_weight *w, uint32_t o0, uint32_t o1, void *packed)
{
    const struct strip_format *f = format_of(w);

    for (uint32_t o = o0; o < o1; o += STRIP) {
        uint8_t *out = (uint8_t *)packed + o / STRIP * strip_bytes(w, f->bits);

        for (size_t i = 0; i < w->n_in; i += STRIP_RUN)
            out = f->pack(w, o, o1 - o < STRIP ? o1 - o : STRIP, i,
                          w->n_in - i < STRIP_RUN ? w->n_in - i : STRIP_RUN, out);
    }
}

struct strip_call {
    const struct esp_weight *w;
    const struct strip_format *f;
    struct strip_run run; /* of whole rows */
    strip_rows_fn rows;
    const struct esp_path *paths; /* tiles */
    uint32_t n_row, o0, o1;
    float *y;
    size_t ldy;
};

static uint32_t at_most(uint32_t n, uint32_t most)
{
    return n < most ? n : most;
}

/* What strip_rows() has instances of: the rows of a path are its tile. */
static const struct esp_path int8_paths[] = {STRIP_INT8_PATHS, {NULL, ESP_SHAPE_ANY, 0}};
static const struct esp_path int8x2_paths[] = {STRIP_INT8X2_PATHS, {NULL, ESP_SHAPE_ANY, 0}};

/* Rows of the next tile where n are left. */
static uint32_t tile_rows(const struct strip_call *c, uint32_t n)
{
    return esp_path_of(c->paths, c->w->packed ? ESP_SHAPE_PACKED : ESP_SHAPE_STORED, n)->rows;
}

/* acc [n_row][STRIP], outputs from o on. */
static void strip_store(const struct strip_call *c, uint32_t o, uint32_t r, uint32_t n_row, const float *acc)
{
    float *y = c->y + (size_t)r * c->ldy + o;

    for (uint32_t i = 0; i < n_row; i++, y += c->ldy, acc += STRIP) {
        if (c->o1 - o >= STRIP) {
            vf_store(y, vf_load(acc));
            vf_store(y + VW, vf_load(acc + VW));
        } else {
            memcpy(y, acc, (c->o1 - o) * sizeof *acc);
        }
    }
}

/*
 * Ask for the lines that strip_store() will write, a tile's work ahead: with many rows they are far apart and
 * come from the last cache or from memory, and stores that miss hold up those behind them. Inlined, because
 * GCC drops calls of a function that only prefetches.
 */
V_INLINE void strip_expect(const struct strip_call *c, uint32_t o, uint32_t r, uint32_t n_row)
{
    const float *y = c->y + (size_t)r * c->ldy + o;

    for (uint32_t i = 0; i < n_row; i++, y += c->ldy) {
        __builtin_prefetch(y, 1);
        __builtin_prefetch(y + at_most(c->o1 - o, STRIP) - 1, 1);
    }
}

/* Rows [r, r + n_row), n_row <= TILE_ROWS, of the strips of outputs [o, oe). */
static void strip_pass(const struct strip_call *c, uint32_t r, uint32_t n_row, uint32_t o, uint32_t oe)
{
    const size_t bytes = strip_bytes(c->w, c->f->bits);
    struct strip_run t = c->run;

    t.act += r * t.act_bytes;
    for (; o < oe; o += STRIP) {
        float acc[TILE_ROWS * STRIP] __attribute__((aligned(64)));

        t.strip = c->w->packed + o / STRIP * bytes;
        strip_expect(c, o, r, n_row);
        c->rows(&t, n_row, acc);
        strip_store(c, o, r, n_row, acc);
    }
}

/* Blocks of strips that stay in cache while rows pass. */
static void strip_packed(const struct strip_call *c)
{
    const uint32_t fit = (uint32_t)(STRIP_BLOCK_BYTES / strip_bytes(c->w, c->f->bits));
    const uint32_t block = STRIP * (c->n_row <= FEW_ROWS || fit == 0 ? 1 : fit);

    for (uint32_t o = c->o0; o < c->o1; o += block) {
        for (uint32_t r = 0, n; r < c->n_row; r += n) {
            n = tile_rows(c, c->n_row - r);
            strip_pass(c, r, n, o, o + at_most(c->o1 - o, block));
        }
    }
}

/* Strips of weights as they are stored. */
static void strip_unpacked(const struct strip_call *c)
{
    uint8_t buffer[STRIP_RUN_BYTES] __attribute__((aligned(64)));
    float acc[RUN_ROWS * STRIP] __attribute__((aligned(64)));
    struct strip_run t = c->run;

    t.strip = buffer;
    for (uint32_t r0 = 0; r0 < c->n_row; r0 += RUN_ROWS) {
        const uint32_t n_row = at_most(c->n_row - r0, RUN_ROWS);

        for (uint32_t o = c->o0; o < c->o1; o += STRIP) {
            for (uint32_t i = 0; i < c->w->n_in; i += STRIP_RUN) {
                const uint32_t n = at_most(c->w->n_in - i, STRIP_RUN);

                c->f->pack(c->w, o, at_most(c->o1 - o, STRIP), i, n, buffer);
                t.g0 = i / t.group;
                t.g1 = (i + n) / t.group;
                for (uint32_t r = 0, n_tile; r < n_row; r += n_tile) {
                    n_tile = tile_rows(c, n_row - r);
                    t.act = c->run.act + (r0 + r) * t.act_bytes;
                    c->rows(&t, n_tile, acc + (size_t)r * STRIP);
                }
            }
            strip_store(c, o, r0, n_row, acc);
        }
    }
}

V_INLINE void strip_product(int terms, const struct esp_weight *w, const void *act, struct strip_call *c)
{
    const size_t n_group = w->n_in / w->group;

    c->w = w;
    c->f = format_of(w);
    c->rows = c->f->rows[terms - 1];
    c->paths = terms == 1 ? int8_paths : int8x2_paths;
    c->run = (struct strip_run){.act = act,
                                .act_bytes = int_bytes(w->n_in, w->group, terms),
                                .pad = pad_to(n_group, VW),
                                .g1 = n_group,
                                .group = w->group,
                                .scale = w->scale_type};
    if (w->packed)
        strip_packed(c);
    else
        strip_unpacked(c);
}

void esp_affine_int8_avx512vnni(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                                uint32_t o1, float *y, size_t ldy)
{
    strip_product(1, w, act, &(struct strip_call){.n_row = n_row, .o0 = o0, .o1 = o1, .y = y, .ldy = ldy});
}

void esp_affine_int8x2_avx512vnni(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                                  uint32_t o1, float *y, size_t ldy)
{
    strip_product(2, w, act, &(struct strip_call){.n_row = n_row, .o0 = o0, .o1 = o1, .y = y, .ldy = ldy});
}

void esp_affine_int_init_avx512vnni(struct esp_kernels *k)
{
    for (int f = ESP_FORMAT_AFFINE2; f <= ESP_FORMAT_AFFINE8; f++) {
        k->linear[f][ESP_ACT_INT8] = (struct esp_linear){
            int8_bytes, int8_prepare, esp_affine_int8_avx512vnni, strip_pack_bytes, strip_pack, int8_paths};
        k->linear[f][ESP_ACT_INT8X2] =
            (struct esp_linear){int8x2_bytes,     int8x2_prepare, esp_affine_int8x2_avx512vnni,
                                strip_pack_bytes, strip_pack,     int8x2_paths};
    }
}
