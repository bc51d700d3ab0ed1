/*
 * Products with f32, bf16 and f16 weights: tiles of two rows by four outputs, each sum in the order of
 * neon.h. Outputs go in blocks whose weights stay in the second-level cache while all rows pass by.
 * ESP_ACT_BF16 rounds once and multiplies in f32.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/arm/neon.h"
#include "kernels/arm/parts.h"

enum { ROWS = 2, OUTS = 4, BLOCK_BYTES = 128 * 1024 };

N_INLINE size_t value_bytes(enum esp_format_id type)
{
    return type == ESP_FORMAT_F32 ? 4 : 2;
}

N_INLINE struct f8 weight_load(const uint8_t *p, enum esp_format_id type)
{
    if (type == ESP_FORMAT_F32)
        return f8_load((const float *)(const void *)p);
    if (type == ESP_FORMAT_BF16)
        return f8_from_bf16((const uint16_t *)(const void *)p);
    return f8_from_f16((const uint16_t *)(const void *)p);
}

N_INLINE struct f8 weight_load_n(const uint8_t *p, enum esp_format_id type, size_t n)
{
    uint8_t t[32] = {0};

    memcpy(t, p, n * value_bytes(type));
    return weight_load(t, type);
}

N_INLINE void tile_step(int n_row, struct f8 acc[ROWS][OUTS], const struct f8 *x, const struct f8 *w)
{
    N_UNROLL
    for (int r = 0; r < n_row; r++) {
        N_UNROLL
        for (int o = 0; o < OUTS; o++)
            acc[r][o] = f8_fma(acc[r][o], x[r], w[o]);
    }
}

/* n_row rows by n outputs; past the end the last output again: computed, not stored. */
N_INLINE void tile(enum esp_format_id type, int n_row, const struct esp_weight *w, const float *const *x,
                   uint32_t o, uint32_t n, float *const *y)
{
    const size_t n_in = w->n_in, size = value_bytes(type);
    struct f8 acc[ROWS][OUTS], xv[ROWS], wv[OUTS];
    const uint8_t *at[OUTS];
    size_t k = 0;

    for (uint32_t j = 0; j < OUTS; j++)
        at[j] = w->codes + (o + (j < n ? j : n - 1)) * w->row_bytes;
    for (int r = 0; r < n_row; r++)
        for (int j = 0; j < OUTS; j++)
            acc[r][j] = f8_zero();
    for (; k + 8 <= n_in; k += 8) {
        N_UNROLL
        for (int r = 0; r < n_row; r++)
            xv[r] = f8_load(x[r] + k);
        N_UNROLL
        for (int j = 0; j < OUTS; j++)
            wv[j] = weight_load(at[j] + k * size, type);
        tile_step(n_row, acc, xv, wv);
    }
    if (k < n_in) {
        for (int r = 0; r < n_row; r++)
            xv[r] = f8_load_n(x[r] + k, n_in - k);
        for (int j = 0; j < OUTS; j++)
            wv[j] = weight_load_n(at[j] + k * size, type, n_in - k);
        tile_step(n_row, acc, xv, wv);
    }
    for (int r = 0; r < n_row; r++)
        for (uint32_t j = 0; j < n; j++)
            y[r][j] = f8_sum(acc[r][j]);
}

N_INLINE void product(enum esp_format_id type, const struct esp_weight *w, const float *x, uint32_t n_row,
                      uint32_t o0, uint32_t o1, float *y, size_t ldy)
{
    const size_t fit = BLOCK_BYTES / (w->row_bytes ? w->row_bytes : 1) & ~(size_t)(OUTS - 1);
    const uint32_t block = n_row <= ROWS ? o1 - o0 : (uint32_t)(fit > OUTS ? fit : OUTS);

    for (uint32_t ob = o0; ob < o1; ob += block) {
        const uint32_t oe = o1 - ob < block ? o1 : ob + block;

        for (size_t r = 0; r < n_row; r += ROWS) {
            const float *const rows[ROWS] = {x + r * w->n_in, x + (r + 1) * w->n_in};

            for (uint32_t o = ob; o < oe; o += OUTS) {
                float *const out[ROWS] = {y + r * ldy + o, y + (r + 1) * ldy + o};
                const uint32_t n = oe - o < OUTS ? oe - o : OUTS;

                if (n_row - r == 1)
                    tile(type, 1, w, rows, o, n, out);
                else
                    tile(type, ROWS, w, rows, o, n, out);
            }
        }
    }
}

static void product_f32(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                        float *y, size_t ldy)
{
    product(ESP_FORMAT_F32, w, act, n_row, o0, o1, y, ldy);
}

static void product_bf16(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0,
                         uint32_t o1, float *y, size_t ldy)
{
    product(ESP_FORMAT_BF16, w, act, n_row, o0, o1, y, ldy);
}

static void product_f16(const struct esp_weight *w, const void *act, uint32_t n_row, uint32_t o0, uint32_t o1,
                        float *y, size_t ldy)
{
    product(ESP_FORMAT_F16, w, act, n_row, o0, o1, y, ldy);
}

static size_t prepared_bytes(uint32_t n_in, uint32_t group)
{
    (void)group;
    return n_in * sizeof(float);
}

static void prepare_bf16(const struct esp_weight *w, const float *x, size_t ldx, uint32_t n_row, void *out)
{
    float *z = out;

    for (size_t r = 0; r < n_row; r++, x += ldx, z += w->n_in) {
        size_t i = 0;

        for (; i + 4 <= w->n_in; i += 4)
            vst1q_f32(z + i, round_bf16(vld1q_f32(x + i)));
        for (; i < w->n_in; i++)
            z[i] = esp_bf16_to_f32(esp_f32_to_bf16(x[i]));
    }
}

static const struct esp_path dense_paths[] = {{"tiles of f32 dot products", ESP_SHAPE_ANY, 1},
                                              {NULL, ESP_SHAPE_ANY, 0}};

void esp_dense_init_neon(struct esp_kernels *k)
{
    static const struct {
        enum esp_format_id format;
        void (*product)(const struct esp_weight *, const void *, uint32_t, uint32_t, uint32_t, float *,
                        size_t);
    } row[] = {{ESP_FORMAT_F32, product_f32}, {ESP_FORMAT_BF16, product_bf16}, {ESP_FORMAT_F16, product_f16}};

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        k->linear[row[i].format][ESP_ACT_F32] = (struct esp_linear){
            .prepared_bytes = prepared_bytes, .product = row[i].product, .paths = dense_paths};
        k->linear[row[i].format][ESP_ACT_BF16] = (struct esp_linear){.prepared_bytes = prepared_bytes,
                                                                     .prepare = prepare_bf16,
                                                                     .product = row[i].product,
                                                                     .paths = dense_paths};
    }
}
