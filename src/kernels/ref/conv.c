/*
 * Reference causal depthwise convolution with SiLU. A row's window is the three rows before it, from the tail
 * where the call starts inside it; so a row does not know where the call began.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/ref/ref.h"

static void conv_silu(const float *tail, size_t ld_tail, const float *p, size_t ldp, uint32_t n_tok,
                      const float *w, uint32_t c0, uint32_t c1, float *y, size_t ldy)
{
    for (size_t t = 0; t < n_tok; t++) {
        const float *row[ESP_CONV_TAPS]; /* oldest first */

        for (size_t j = 0; j < ESP_CONV_TAPS; j++)
            row[j] = t + j < ESP_CONV_TAPS - 1 ? tail + (t + j) * ld_tail
                                               : p + (t + j - (ESP_CONV_TAPS - 1)) * ldp;
        for (size_t c = c0; c < c1; c++) {
            float sum = 0;

            for (size_t j = 0; j < ESP_CONV_TAPS; j++)
                sum += w[c * ESP_CONV_TAPS + j] * row[j][c];
            y[t * ldy + c] = silu(sum);
        }
    }
}

void esp_ref_init_conv(struct esp_kernels *k)
{
    k->conv_silu = conv_silu;
}
