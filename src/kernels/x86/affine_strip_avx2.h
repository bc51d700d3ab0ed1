/*
 * Affine weights of 4 bits packed for AVX2: strips of 16 outputs, an output a lane of 32 bits, so that sums
 * cross no lanes and a strip is a single stream of memory. Included after words_avx2.h.
 *
 * A strip is, group by group: 16 scales, 16 biases, then for each 8 inputs two vectors, of outputs 0 .. 7 and
 * 8 .. 15. A lane of a vector is the four bytes in which its output's 8 codes are stored, so low nibbles are
 * the quad of inputs 0, 2, 4, 6, high nibbles that of 1, 3, 5, 7, and nibbles of 16 bits are the pairs of
 * words_of_nibbles(). Lanes past the last output repeat it; nobody reads what comes of them.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_KERNELS_X86_AFFINE_STRIP_AVX2_H
#define ESP_KERNELS_X86_AFFINE_STRIP_AVX2_H

enum {
    STRIP = PANEL_OUTS,
    CHUNK = 32,                 /* inputs of a lane of a unit */
    CHUNK_STEPS = CHUNK / 8,    /* of 8 inputs */
    STEP_BYTES = STRIP * 8 / 2, /* of all outputs */
    CHUNK_BYTES = CHUNK_STEPS * STEP_BYTES,
};

V_INLINE size_t scale_bytes(enum esp_scale_type type)
{
    return type == ESP_SCALE_F32 ? 4 : 2;
}

/* Scales and biases of a group. */
V_INLINE size_t strip_head_bytes(const struct esp_weight *w)
{
    return 2 * STRIP * scale_bytes(w->scale_type);
}

V_INLINE size_t strip_group_bytes(const struct esp_weight *w)
{
    return strip_head_bytes(w) + w->group / CHUNK * (size_t)CHUNK_BYTES;
}

V_INLINE size_t strip_bytes(const struct esp_weight *w)
{
    return w->n_in / w->group * strip_group_bytes(w);
}

/* Group g of outputs o .. o + STRIP - 1 of a packed weight. */
V_INLINE const uint8_t *strip_at(const struct esp_weight *w, uint32_t o, size_t g)
{
    return w->packed + o / STRIP * strip_bytes(w) + g * strip_group_bytes(w);
}

/* Vector h of 8 scales, or biases, at p. */
V_INLINE vf strip_scale(enum esp_scale_type type, const uint8_t *p, int h)
{
    return scales_load(type, p, (size_t)h * VW, VW);
}

/* Vector h of step i of a chunk. */
V_INLINE vi strip_step(const uint8_t *chunk, int i, int h)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(chunk + i * STEP_BYTES + h * 32));
}

V_INLINE vi strip_low(vi v)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

V_INLINE vi strip_high(vi v)
{
    return strip_low(_mm256_srli_epi16(v, 4));
}

/* ---- packing ---- */

static size_t strip_pack_bytes(const struct esp_weight *w)
{
    return pad_to(w->n_out, STRIP) / STRIP * strip_bytes(w);
}

/* A chunk of STRIP outputs, from byte `at` of their codes on. */
V_INLINE void strip_pack_chunk(const uint8_t *const *codes, size_t at, uint8_t *out)
{
    V_UNROLL
    for (int h = 0; h < PANEL_VECTORS; h++) {
        vi v[CHUNK_STEPS];

        V_UNROLL
        for (int i = 0; i < CHUNK_STEPS; i++)
            v[i] = codes_lanes(codes[h * VW + i] + at, codes[h * VW + i + 4] + at);
        vi_transpose4(v);
        V_UNROLL
        for (int i = 0; i < CHUNK_STEPS; i++)
            _mm256_storeu_si256((__m256i *)(void *)(out + i * STEP_BYTES + h * 32), v[i]);
    }
}

static void strip_pack_one(const struct esp_weight *w, uint32_t o, uint32_t n_out, uint8_t *out)
{
    const size_t size = scale_bytes(w->scale_type);
    const uint8_t *codes[STRIP], *scales[STRIP], *biases[STRIP];

    for (uint32_t i = 0; i < STRIP; i++) {
        const size_t row = o + (i < n_out ? i : n_out - 1);

        codes[i] = w->codes + row * w->row_bytes;
        scales[i] = w->scales + row * w->scale_row_bytes;
        biases[i] = w->biases + row * w->scale_row_bytes;
    }
    for (size_t g = 0, at = 0; g < w->n_in / w->group; g++) {
        for (size_t i = 0; i < STRIP; i++) {
            memcpy(out + i * size, scales[i] + g * size, size);
            memcpy(out + (STRIP + i) * size, biases[i] + g * size, size);
        }
        out += strip_head_bytes(w);
        for (uint32_t i = 0; i < w->group; i += CHUNK, at += CHUNK / 2, out += CHUNK_BYTES)
            strip_pack_chunk(codes, at, out);
    }
}

static void strip_pack(const struct esp_weight *w, uint32_t o0, uint32_t o1, void *packed)
{
    for (uint32_t o = o0; o < o1; o += STRIP)
        strip_pack_one(w, o, o1 - o < STRIP ? o1 - o : STRIP, (uint8_t *)packed + o / STRIP * strip_bytes(w));
}

/* ---- to panels ---- */

/* Lane `lane` of a unit of a panel of words. */
V_INLINE void strip_panel_words(const uint8_t *chunk, size_t lane, int16_t *out)
{
    V_UNROLL
    for (int i = 0; i < CHUNK_STEPS; i++) {
        V_UNROLL
        for (int h = 0; h < PANEL_VECTORS; h++) {
            const struct words w = words_of_nibbles(strip_step(chunk, i, h));

            V_UNROLL
            for (int v = 0; v < WORD_VECTORS; v++)
                panel_store(out + h * VW * 2, 8 * v + 4 * (int)lane + i, w.v[v]);
        }
    }
}

/* The same of bytes. */
V_INLINE void strip_panel_bytes(const uint8_t *chunk, size_t lane, int16_t *out)
{
    V_UNROLL
    for (int i = 0; i < CHUNK_STEPS; i++) {
        V_UNROLL
        for (int h = 0; h < PANEL_VECTORS; h++) {
            const vi v = strip_step(chunk, i, h);

            /* quads lie as pairs do */
            panel_store(out + h * VW * 2, 4 * (int)lane + i, strip_low(v));
            panel_store(out + h * VW * 2, 8 + 4 * (int)lane + i, strip_high(v));
        }
    }
}

#endif
