/*
 * Integer products of affine weights with many rows, for AVX2: codes of 16 outputs are widened once into a
 * panel in the first-level cache, which all rows of a block then multiply. An output is a lane, so sums cross
 * none; tiles of up to 6 rows by two vectors of outputs are sums in registers.
 *
 * Panels of words serve every format and both precisions: 16 products an instruction. With one term and codes
 * of up to 6 bits, bytes are multiplied instead, 32 an instruction, and a few of them added in 16 bits.
 * Included after affine_rows_avx2.h and affine_strip_avx2.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_AFFINE_PANEL_AVX2_H
#define ESP_KERNELS_X86_AFFINE_PANEL_AVX2_H

enum {
    TILE_ROWS = 6,          /* 12 sums of 16 registers */
    PANEL_GROUPS = VW,      /* groups of a panel */
    PANEL_BLOCK_ROWS = 128, /* rows whose inputs of a panel stay in L2 */
    GROUP_MAX = 128,
};

/* What a panel holds; of bytes how many sums of two products fit in 16 bits. */
enum panel_kind {
    PANEL_WORDS = 0,
    PANEL_BYTES8 = 8, /* 8 * 2 * 15 * 128 = 30720 */
    PANEL_BYTES4 = 4, /* 5 bits */
    PANEL_BYTES2 = 2, /* 6 bits */
};

V_INLINE enum panel_kind panel_kind_of(int bits, int terms)
{
    if (terms != 1)
        return PANEL_WORDS;
    return bits == 6 ? PANEL_BYTES2 : bits == 5 ? PANEL_BYTES4 : PANEL_BYTES8;
}

/* Codes of PANEL_OUTS outputs in up to PANEL_GROUPS groups from g0 on. */
struct panel {
    float scale[PANEL_GROUPS][PANEL_OUTS], bias[PANEL_GROUPS][PANEL_OUTS];
    int16_t codes[PANEL_GROUPS * GROUP_MAX / UNIT][UNIT_PAIRS * PANEL_OUTS * 2]; /* units */
    size_t g0, n_group;
};

V_INLINE void panel_scales(enum esp_scale_type type, const uint8_t *const *row, size_t g, size_t n,
                           float (*out)[PANEL_OUTS])
{
    for (int h = 0; h < PANEL_VECTORS; h++) {
        vi v[VW];

        V_UNROLL
        for (int i = 0; i < VW; i++)
            v[i] = vi_from_bits(scales_load(type, row[h * VW + i], g, n));
        vi_transpose(v);
        V_UNROLL
        for (int i = 0; i < VW; i++)
            vf_store(out[i] + h * VW, _mm256_castsi256_ps(v[i]));
    }
}

/* A unit of all outputs, from byte `at` of their codes on. */
V_INLINE void panel_units(int bits, enum panel_kind kind, const uint8_t *const *codes, size_t at,
                          int16_t *out)
{
    for (int h = 0; h < PANEL_VECTORS; h++) {
        const uint8_t *from[VW];

        V_UNROLL
        for (int i = 0; i < VW; i++)
            from[i] = codes[h * VW + i] + at;
        if (kind == PANEL_WORDS)
            panel_unit(bits, from, out + h * VW * 2);
        else
            panel_unit8(bits, from, (uint8_t *)out + h * VW * 4);
    }
}

/* Fill p, whose groups are set, with outputs o .. o + n_out - 1, past the end the last again; asks for the
 * outputs behind. */
V_INLINE void panel_fill(int bits, enum panel_kind kind, const struct esp_weight *w, uint32_t o,
                         uint32_t n_out, struct panel *p)
{
    const size_t unit_bytes = UNIT * (size_t)bits / 8, n_in = p->n_group * w->group, i0 = p->g0 * w->group;
    const uint8_t *codes[PANEL_OUTS], *scales[PANEL_OUTS], *biases[PANEL_OUTS];
    uint8_t tail[PANEL_OUTS][UNIT];

    for (uint32_t i = 0; i < PANEL_OUTS; i++) {
        const size_t row = o + (i < n_out ? i : n_out - 1);

        codes[i] = w->codes + row * w->row_bytes + i0 * (size_t)bits / 8;
        scales[i] = w->scales + row * w->scale_row_bytes;
        biases[i] = w->biases + row * w->scale_row_bytes;
    }
    panel_scales(w->scale_type, scales, p->g0, p->n_group, p->scale);
    panel_scales(w->scale_type, biases, p->g0, p->n_group, p->bias);
    for (size_t u = 0; u * UNIT < n_in; u++) {
        const size_t at = u * unit_bytes;

        if ((u + 1) * UNIT > n_in) { /* the short last unit */
            for (uint32_t i = 0; i < PANEL_OUTS; i++) {
                memset(tail[i], 0, UNIT);
                memcpy(tail[i], codes[i] + at, n_in % UNIT * (size_t)bits / 8);
                codes[i] = tail[i];
            }
            panel_units(bits, kind, codes, 0, p->codes[u]);
            continue;
        }
        for (uint32_t i = 0; i < PANEL_OUTS && at % 64 < unit_bytes; i++) /* a line once */
            _mm_prefetch((const char *)((uintptr_t)codes[i] + at + PANEL_OUTS * w->row_bytes), _MM_HINT_T1);
        panel_units(bits, kind, codes, at, p->codes[u]);
    }
}

/* The same from a packed weight. */
V_INLINE void panel_fill_packed(enum panel_kind kind, const struct esp_weight *w, uint32_t o, struct panel *p)
{
    const uint8_t *from = strip_at(w, o, p->g0);
    const size_t head = strip_head_bytes(w), next = strip_bytes(w);

    for (size_t g = 0, lane = 0; g < p->n_group; g++) {
        for (size_t b = 0; b < strip_group_bytes(w); b += 64)
            _mm_prefetch((const char *)((uintptr_t)from + next + b), _MM_HINT_T1);
        V_UNROLL
        for (int h = 0; h < PANEL_VECTORS; h++) {
            vf_store(p->scale[g] + h * VW, strip_scale(w->scale_type, from, h));
            vf_store(p->bias[g] + h * VW, strip_scale(w->scale_type, from + head / 2, h));
        }
        from += head;
        for (uint32_t i = 0; i < w->group; i += CHUNK, lane++, from += CHUNK_BYTES) {
            if (kind == PANEL_WORDS)
                strip_panel_words(from, lane % 2, p->codes[lane / 2]);
            else
                strip_panel_bytes(from, lane % 2, p->codes[lane / 2]);
        }
    }
}

V_INLINE vi tile_broadcast(const void *p)
{
    int32_t four;

    memcpy(&four, p, sizeof four);
    return vi_set1(four);
}

/* sum[r][h] += one lane of a unit, its first pairs at w. */
V_INLINE void tile_words(int n_row, const int16_t *w, const int16_t *const *x, size_t at,
                         vi (*sum)[PANEL_VECTORS])
{
    for (int v = 0; v < WORD_VECTORS; v++, w += 8 * PANEL_OUTS * 2, at += 16) {
        V_UNROLL
        for (int d = 0; d < 4; d++) {
            const vi w0 = load16(w + d * PANEL_OUTS * 2), w1 = load16(w + d * PANEL_OUTS * 2 + 16);

            V_UNROLL
            for (int r = 0; r < n_row; r++) {
                const vi both = tile_broadcast(x[r] + at + 2 * d);

                sum[r][0] = mul16_now(sum[r][0], w0, both);
                sum[r][1] = mul16_now(sum[r][1], w1, both);
            }
        }
    }
}

V_INLINE vi mul8_now(vi acc, vi codes, vi x)
{
    acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, x));
    __asm__("" : "+x"(acc));
    return acc;
}

/* The same with bytes; sums of `depth` products by four fit in 16 bits. first: there is no sum yet. */
V_INLINE void tile_bytes(int depth, int first, int n_row, const uint8_t *w, const int8_t *const *x, size_t at,
                         vi (*sum)[PANEL_VECTORS])
{
    for (int v = 0; v < 8; v += depth) {
        vi part[TILE_ROWS][PANEL_VECTORS];

        V_UNROLL
        for (int d = v; d < v + depth; d++) {
            const size_t quad = (size_t)d / 4 * 8 + (size_t)d % 4;
            const vi w0 = load16((const int16_t *)(const void *)(w + quad * PANEL_OUTS * 4));
            const vi w1 = load16((const int16_t *)(const void *)(w + quad * PANEL_OUTS * 4 + 32));

            V_UNROLL
            for (int r = 0; r < n_row; r++) {
                const vi four = tile_broadcast(x[r] + at + 4 * quad);

                part[r][0] = d == v ? _mm256_maddubs_epi16(w0, four) : mul8_now(part[r][0], w0, four);
                part[r][1] = d == v ? _mm256_maddubs_epi16(w1, four) : mul8_now(part[r][1], w1, four);
            }
        }
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            V_UNROLL
            for (int h = 0; h < PANEL_VECTORS; h++) {
                const vi wide = _mm256_madd_epi16(part[r][h], _mm256_set1_epi16(1));

                sum[r][h] = first && v == 0 ? wide : vi_add(sum[r][h], wide);
            }
        }
    }
}

V_INLINE void tile_lane(enum panel_kind kind, int first, int n_row, const struct panel *p, size_t lane,
                        const int16_t *const *x, const int8_t *const *t, vi (*sum)[PANEL_VECTORS])
{
    const size_t odd = lane % 2, in = lane / 2 * UNIT;
    const int16_t *w = p->codes[lane / 2];

    if (kind == PANEL_WORDS)
        tile_words(n_row, w + odd * 4 * PANEL_OUTS * 2, x, in + odd * 8, sum);
    else
        tile_bytes((int)kind, first, n_row, (const uint8_t *)w + odd * 4 * PANEL_OUTS * 4, t, in + odd * 16,
                   sum);
}

/* y [n_row][PANEL_OUTS] += p times rows from r0 on. */
V_INLINE void tile_panel(enum panel_kind kind, int n_row, const struct int_call *c, const struct panel *p,
                         uint32_t r0, float *y, size_t ldy)
{
    const size_t lanes = c->w->group / 32, i0 = p->g0 * c->w->group;
    const int16_t *x[TILE_ROWS];
    const int8_t *t[TILE_ROWS];

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        const struct int_row row = int_row_at(c, r0 + (uint32_t)r);

        x[r] = row.q + i0;
        t[r] = row.t + i0;
    }
    for (size_t g = 0, lane = 0; g < p->n_group; g++) {
        vi sum[TILE_ROWS][PANEL_VECTORS];

        V_UNROLL
        for (int r = 0; r < n_row; r++)
            sum[r][0] = sum[r][1] = vi_zero();
        tile_lane(kind, 1, n_row, p, lane++, x, t, sum);
        for (size_t i = 1; i < lanes; i++)
            tile_lane(kind, 0, n_row, p, lane++, x, t, sum);
        V_UNROLL
        for (int r = 0; r < n_row; r++) {
            const float *s = int_row_at(c, r0 + (uint32_t)r).s + p->g0 + g;

            V_UNROLL
            for (int h = 0; h < PANEL_VECTORS; h++) {
                float *at = y + (size_t)r * ldy + h * VW;
                vf a = p->g0 + g ? vf_load(at) : vf_zero();

                a = vf_fma(vf_load(p->bias[g] + h * VW), vf_set1(s[c->pad]), a);
                a = vf_fma(vf_from_i(sum[r][h]), vf_mul(vf_load(p->scale[g] + h * VW), vf_set1(s[0])), a);
                vf_store(at, a);
            }
        }
    }
}

V_INLINE void tile_any(enum panel_kind kind, uint32_t n_row, const struct int_call *c, const struct panel *p,
                       uint32_t r, float *y, size_t ldy)
{
    switch (n_row) {
    case 1:
        tile_panel(kind, 1, c, p, r, y, ldy);
        break;
    case 2:
        tile_panel(kind, 2, c, p, r, y, ldy);
        break;
    case 3:
        tile_panel(kind, 3, c, p, r, y, ldy);
        break;
    case 4:
        tile_panel(kind, 4, c, p, r, y, ldy);
        break;
    case 5:
        tile_panel(kind, 5, c, p, r, y, ldy);
        break;
    default:
        tile_panel(kind, TILE_ROWS, c, p, r, y, ldy);
        break;
    }
}

typedef void (*tile_fn)(uint32_t n_row, const struct int_call *c, const struct panel *p, uint32_t r, float *y,
                        size_t ldy);

static void tile_of_words(uint32_t n_row, const struct int_call *c, const struct panel *p, uint32_t r,
                          float *y, size_t ldy)
{
    tile_any(PANEL_WORDS, n_row, c, p, r, y, ldy);
}

static void tile_of_bytes(uint32_t n_row, const struct int_call *c, const struct panel *p, uint32_t r,
                          float *y, size_t ldy)
{
    tile_any(PANEL_BYTES8, n_row, c, p, r, y, ldy);
}

static void tile_of_bytes5(uint32_t n_row, const struct int_call *c, const struct panel *p, uint32_t r,
                           float *y, size_t ldy)
{
    tile_any(PANEL_BYTES4, n_row, c, p, r, y, ldy);
}

static void tile_of_bytes6(uint32_t n_row, const struct int_call *c, const struct panel *p, uint32_t r,
                           float *y, size_t ldy)
{
    tile_any(PANEL_BYTES2, n_row, c, p, r, y, ldy);
}

V_INLINE tile_fn tile_for(enum panel_kind kind)
{
    return kind == PANEL_WORDS    ? tile_of_words
           : kind == PANEL_BYTES8 ? tile_of_bytes
           : kind == PANEL_BYTES4 ? tile_of_bytes5
                                  : tile_of_bytes6;
}

/* The panel of outputs o .. o + n_out - 1 times rows [r0, r1), in tiles of nearly equal height. */
static void panel_rows(tile_fn tile, const struct int_call *c, const struct panel *p, uint32_t o,
                       uint32_t n_out, uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0, n; r < r1; r += n) {
        const uint32_t left = r1 - r, tiles = (left + TILE_ROWS - 1) / TILE_ROWS;
        float *y = c->y + (size_t)r * c->ldy + o;

        n = (left + tiles - 1) / tiles;
        if (n_out == PANEL_OUTS) {
            tile(n, c, p, r, y, c->ldy);
        } else {
            float part[TILE_ROWS][PANEL_OUTS];

            memset(part, 0, sizeof part);
            for (uint32_t i = 0; p->g0 && i < n; i++)
                memcpy(part[i], y + i * c->ldy, n_out * sizeof *y);
            tile(n, c, p, r, part[0], PANEL_OUTS);
            for (uint32_t i = 0; i < n; i++)
                memcpy(y + i * c->ldy, part[i], n_out * sizeof *y);
        }
    }
}

/* Blocks of rows, in them panels: all outputs of some inputs, then the next inputs. Sums wait in y. */
V_INLINE void many_rows(int bits, enum panel_kind kind, const struct int_call *c)
{
    const size_t n_group = c->w->n_in / c->w->group;
    struct panel p __attribute__((aligned(64)));

    for (uint32_t r = 0; r < c->n_row; r += PANEL_BLOCK_ROWS) {
        const uint32_t r1 = c->n_row - r < PANEL_BLOCK_ROWS ? c->n_row : r + PANEL_BLOCK_ROWS;

        for (p.g0 = 0; p.g0 < n_group; p.g0 += PANEL_GROUPS) {
            p.n_group = n_group - p.g0 < PANEL_GROUPS ? n_group - p.g0 : PANEL_GROUPS;
            for (uint32_t o = c->o0; o < c->o1; o += PANEL_OUTS) {
                const uint32_t n_out = c->o1 - o < PANEL_OUTS ? c->o1 - o : PANEL_OUTS;

                if (bits == 4 && c->w->packed)
                    panel_fill_packed(kind, c->w, o, &p);
                else
                    panel_fill(bits, kind, c->w, o, n_out, &p);
                panel_rows(tile_for(kind), c, &p, o, n_out, r, r1);
            }
        }
    }
}

#endif
