/*
 * Affine weights in the order of AVX-512's byte dot product: strips of 32 outputs in two halves, an output a
 * lane. So two vectors of codes meet one broadcast word of activations, sums need no lanes crossed, and a
 * strip is a single stream of memory. Formats of 3, 5 and 6 bits become planes of 4, 2 and 1 bits, because
 * those unpack by one shift.
 *
 * A strip is, group by group: 32 scales, 32 biases, then units of 32 inputs, each for the first half and then
 * for the second. A unit has 8 pieces: piece p holds in lane o the codes of inputs 4p .. 4p + 3 of output o,
 * a byte each. It is stored as planes, `bits` vectors in all; a plane of b bits from bit s on packs 8 / b
 * pieces into a vector, the first at the low bits:
 *
 *   bits 2, 4, 8: one plane;  3: two bits, then bit 2;  5: four, then bit 4;  6: four, then bits 4 and 5
 *
 * Outputs past the last have zero scales, biases and codes.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_STRIP_AVX512_H
#define ESP_KERNELS_X86_STRIP_AVX512_H

#include "kernels/x86/affine_order.h"

enum {
    HALVES = 2,
    STRIP = HALVES * VW, /* outputs */
    STRIP_UNIT = 32,     /* inputs */
    STRIP_AHEAD = 8192,  /* bytes asked for ahead of use */
    STRIP_PIECES = 8,    /* of a unit */
    STRIP_RUN = 1024,    /* inputs packed at once: whole groups of each size */
    STRIP_RUN_BYTES = STRIP_RUN * STRIP + STRIP_RUN / 32 * 2 * STRIP * 4, /* 8 bits, f32 scales, group 32 */
};

V_INLINE size_t scale_bytes(enum esp_scale_type type)
{
    return type == ESP_SCALE_F32 ? 4 : 2;
}

/* Bytes of one group of a strip. */
V_INLINE size_t strip_group_bytes(const struct esp_weight *w, int bits)
{
    return 2 * STRIP * scale_bytes(w->scale_type) + (size_t)w->group * STRIP / 8 * (size_t)bits;
}

V_INLINE size_t strip_bytes(const struct esp_weight *w, int bits)
{
    return w->n_in / w->group * strip_group_bytes(w, bits);
}

/* ---- packing ---- */

/* 128 codes at p as bytes in natural order, but for the lanes: see codes_store_chunks(). */
V_INLINE struct codes strip_codes(int bits, const uint8_t *p)
{
    struct codes c;

    if (bits == 4) {
        c = codes_unpack4(p);
    } else if (bits == 2) {
        const vi x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
        const vi t =
            _mm512_or_si512(x, _mm512_slli_epi16(x, 4)); /* pairs of codes at the low ends of bytes */
        const vi mask = _mm512_set1_epi8(3);

        c = (struct codes){_mm512_and_si512(t, mask), _mm512_and_si512(_mm512_srli_epi16(t, 2), mask)};
    } else {
        return codes_get(bits, p);
    }
    return (struct codes){_mm512_unpacklo_epi8(c.a, c.b), _mm512_unpackhi_epi8(c.a, c.b)};
}

/* Codes [i0, i0 + n) of one row as bytes, padded with zeros to whole units of 128. */
V_INLINE void strip_row(const struct esp_weight *w, int bits, size_t row, size_t i0, size_t n, uint8_t *out)
{
    const size_t unit_bytes = UNIT * (size_t)bits / 8;
    const uint8_t *p = w->codes + row * w->row_bytes + i0 * (size_t)bits / 8;
    uint8_t tail[UNIT];
    size_t i = 0;

    for (; i + UNIT <= n; i += UNIT, p += unit_bytes)
        codes_store_chunks(out + i, strip_codes(bits, p));
    if (i == n)
        return;
    memset(tail, 0, sizeof tail);
    memcpy(tail, p, (n - i) * (size_t)bits / 8);
    codes_store_chunks(out + i, strip_codes(bits, tail));
}

/* Bits [from, from + n) of 8 pieces as one plane of n vectors. */
V_INLINE uint8_t *strip_plane(const vi *piece, int from, int n, uint8_t *out)
{
    const int each = 8 / n; /* pieces of a vector */
    const vi mask = _mm512_set1_epi8((char)((1 << n) - 1));

    V_UNROLL
    for (int i = 0; i < n; i++) {
        vi v = vi_zero();

        V_UNROLL
        for (int p = 0; p < each; p++) {
            const vi field = _mm512_and_si512(_mm512_srli_epi16(piece[i * each + p], (unsigned)from), mask);

            v = _mm512_or_si512(v, _mm512_slli_epi16(field, (unsigned)(p * n)));
        }
        _mm512_storeu_si512(out + 64 * i, v);
    }
    return out + 64 * n;
}

V_INLINE uint8_t *strip_store_unit(int bits, const vi *piece, uint8_t *out)
{
    switch (bits) {
    case 3:
        return strip_plane(piece, 2, 1, strip_plane(piece, 0, 2, out));
    case 5:
        return strip_plane(piece, 4, 1, strip_plane(piece, 0, 4, out));
    case 6:
        return strip_plane(piece, 4, 2, strip_plane(piece, 0, 4, out));
    default:
        return strip_plane(piece, 0, bits, out);
    }
}

V_INLINE void strip_scales(const struct esp_weight *w, const uint8_t *plane, uint32_t o, uint32_t n, size_t g,
                           uint8_t *out)
{
    const size_t size = scale_bytes(w->scale_type);

    memset(out, 0, STRIP * size);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * size, plane + (o + i) * w->scale_row_bytes + g * size, size);
}

/* Inputs [i0, i0 + n), whole groups and at most STRIP_RUN, of outputs [o, o + n_out), n_out <= STRIP. */
V_INLINE uint8_t *strip_pack_run(const struct esp_weight *w, int bits, uint32_t o, uint32_t n_out, size_t i0,
                                 size_t n, uint8_t *out)
{
    uint8_t code[STRIP][STRIP_RUN] __attribute__((aligned(64)));
    vi piece[HALVES][2 * STRIP_PIECES];

    for (uint32_t r = 0; r < STRIP; r++) {
        if (r < n_out)
            strip_row(w, bits, o + r, i0, n, code[r]);
        else
            memset(code[r], 0, pad_to(n, UNIT));
    }
    for (size_t i = 0; i < n; i += STRIP_UNIT) {
        const size_t size = STRIP * scale_bytes(w->scale_type);
        const int at = i % 64 / STRIP_UNIT * STRIP_PIECES;

        if (i % w->group == 0) {
            strip_scales(w, w->scales, o, n_out, (i0 + i) / w->group, out);
            strip_scales(w, w->biases, o, n_out, (i0 + i) / w->group, out + size);
            out += 2 * size;
        }
        for (int h = 0; h < HALVES; h++) {
            if (i % 64 == 0) {
                for (int r = 0; r < VW; r++)
                    piece[h][r] = _mm512_load_si512(code[h * VW + r] + i);
                vi_transpose(piece[h]);
            }
            out = strip_store_unit(bits, piece[h] + at, out);
        }
    }
    return out;
}

/* ---- unpacking ---- */

V_INLINE void strip_prefetch(const uint8_t *p, int lines)
{
    V_UNROLL
    for (int i = 0; i < lines; i++)
        _mm_prefetch((const char *)((uintptr_t)p + STRIP_AHEAD + 64 * (size_t)i), _MM_HINT_T0);
}

/* Bits of piece p in a plane of n bits at its place `from` in the code. */
V_INLINE vi strip_field(const uint8_t *plane, int p, int n, int from)
{
    const int each = 8 / n, right = p % each * n - from;
    const vi v = _mm512_loadu_si512(plane + 64 * (p / each));
    const vi mask = _mm512_set1_epi8((char)(((1 << n) - 1) << from));

    if (n == 8)
        return v;
    return _mm512_and_si512(right > 0   ? _mm512_srli_epi16(v, (unsigned)right)
                            : right < 0 ? _mm512_slli_epi16(v, (unsigned)-right)
                                        : v,
                            mask);
}

/* Codes of piece p of the unit at `unit`; constants in each instance. */
V_INLINE vi strip_piece(int bits, const uint8_t *unit, int p)
{
    switch (bits) {
    case 3:
        return _mm512_or_si512(strip_field(unit, p, 2, 0), strip_field(unit + 2 * 64, p, 1, 2));
    case 5:
        return _mm512_or_si512(strip_field(unit, p, 4, 0), strip_field(unit + 4 * 64, p, 1, 4));
    case 6:
        return _mm512_or_si512(strip_field(unit, p, 4, 0), strip_field(unit + 4 * 64, p, 2, 4));
    default:
        return strip_field(unit, p, bits, 0);
    }
}

/* 16 scales or biases. */
V_INLINE vf strip_scale(enum esp_scale_type type, const uint8_t *p)
{
    if (type == ESP_SCALE_F32)
        return vf_load((const float *)(const void *)p);
    return type == ESP_SCALE_BF16 ? vf_from_bf16((const uint16_t *)(const void *)p)
                                  : vf_from_f16((const uint16_t *)(const void *)p);
}

#endif
