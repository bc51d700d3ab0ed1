/*
 * Products of bf16 weights with bf16 activations by the CPU's pair dot product (vdpbf16ps): two products a
 * lane and step, accumulated in f32. Denormal inputs count as zero there, which stays far inside the
 * contract's bound unless all terms are denormal. Same tiles and order rules as dense_body.h.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/x86/vec_avx512.h"

#include "kernels/levels.h"

enum { ROWS = 6, OUTS = 4, PAIRS = 32 }; /* PAIRS: bf16 values in a vector */
enum { BLOCK_BYTES = 256 * 1024 };       /* weights kept in L2 while rows pass */

/* Rows start at multiples of 64 bytes, padded with zeros. */
static size_t prepared_bytes(uint32_t n_in, uint32_t group)
{
    (void)group;
    return ((size_t)n_in + PAIRS - 1) / PAIRS * PAIRS * sizeof(uint16_t);
}

static void prepare(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    const size_t bytes = prepared_bytes(w->n_in, 0);

    for (size_t r = 0; r < n_row; r++) {
        uint16_t *y = (uint16_t *)(void *)((uint8_t *)out + r * bytes);

        for (size_t i = 0; i < bytes / sizeof *y; i += VW) {
            const size_t left = i < w->n_in ? w->n_in - i : 0;

            vf_store_bf16(y + i, vf_load_n(x + r * ldx + (left ? i : 0), left));
        }
    }
}

V_INLINE __m512bh load(const uint8_t *p)
{
    return (__m512bh)_mm512_loadu_si512(p);
}

V_INLINE void tile(int n_row, const uint8_t *const *x, const uint8_t *const *w, size_t ahead, size_t n_in,
                   __m128 *out)
{
    vf acc[ROWS][OUTS];
    size_t k = 0;

    V_UNROLL
    for (int r = 0; r < n_row; r++) {
        V_UNROLL
        for (int o = 0; o < OUTS; o++)
            acc[r][o] = vf_zero();
    }
    for (; k + PAIRS <= n_in; k += PAIRS) {
        V_UNROLL
        for (int o = 0; o < OUTS; o++) {
            const __m512bh wv = load(w[o] + k * 2);

            if (n_row <= 4)
                _mm_prefetch((const char *)((uintptr_t)w[o] + k * 2 + ahead), _MM_HINT_T0);
            V_UNROLL
            for (int r = 0; r < n_row; r++)
                acc[r][o] = _mm512_dpbf16_ps(acc[r][o], load(x[r] + k * 2), wv);
        }
    }
    if (k < n_in) {
        const __mmask32 m = (__mmask32)((1ull << (n_in - k)) - 1);

        V_UNROLL
        for (int o = 0; o < OUTS; o++) {
            const __m512bh wv = (__m512bh)_mm512_maskz_loadu_epi16(m, w[o] + k * 2);

            V_UNROLL
            for (int r = 0; r < n_row; r++)
                acc[r][o] = _mm512_dpbf16_ps(acc[r][o], load(x[r] + k * 2), wv);
        }
    }
    V_UNROLL
    for (int r = 0; r < n_row; r++)
        out[r] = vf_sum4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

struct call {
    const struct esp_weight *w;
    const uint8_t *act; /* first prepared row */
    uint32_t o0, o1;
    float *y; /* of that row */
    size_t ldy;
};

V_INLINE void run(int n_row, const struct call *c)
{
    const size_t bytes = prepared_bytes(c->w->n_in, 0);
    const uint8_t *x[ROWS];

    for (int r = 0; r < n_row; r++)
        x[r] = c->act + (size_t)r * bytes;
    for (uint32_t o = c->o0; o < c->o1; o += OUTS) {
        const uint32_t n = c->o1 - o < OUTS ? c->o1 - o : OUTS;
        const uint8_t *w[OUTS];
        __m128 out[ROWS];

        for (uint32_t j = 0; j < OUTS; j++) /* past the end the last row again: computed, not stored */
            w[j] = c->w->codes + (o + (j < n ? j : n - 1)) * c->w->row_bytes;
        tile(n_row, x, w, OUTS * c->w->row_bytes, c->w->n_in, out);
        for (int r = 0; r < n_row; r++)
            v_store4(c->y + (size_t)r * c->ldy + o, out[r], n);
    }
}

static void product(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                    float *y, size_t ldy)
{
    const size_t bytes = prepared_bytes(w->n_in, 0);
    const size_t fit = BLOCK_BYTES / (w->row_bytes ? w->row_bytes : 1) & ~(size_t)(OUTS - 1);
    const uint32_t block = n_row <= ROWS ? o1 - o0 : (uint32_t)(fit > OUTS ? fit : OUTS);

    for (uint32_t o = o0; o < o1; o += block) {
        for (uint32_t r0 = 0; r0 < n_row; r0 += ROWS) {
            const struct call c = {
                w, (const uint8_t *)act + r0 * bytes, o, o1 - o < block ? o1 : o + block, y + r0 * ldy, ldy,
            };

            switch (n_row - r0) {
            case 1:
                run(1, &c);
                break;
            case 2:
                run(2, &c);
                break;
            case 3:
                run(3, &c);
                break;
            case 4:
                run(4, &c);
                break;
            case 5:
                run(5, &c);
                break;
            default:
                run(ROWS, &c);
                break;
            }
        }
    }
}

static const struct esp_path bf16_paths[] = {{"bf16 dot products", ESP_SHAPE_ANY, 1},
                                             {NULL, ESP_SHAPE_ANY, 0}};

void esp_kernels_init_avx512bf16(struct esp_kernels *k)
{
    k->linear[ESP_FORMAT_BF16][ESP_ACT_BF16] =
        (struct esp_linear){prepared_bytes, prepare, product, NULL, NULL, bf16_paths};
}
