/*
 * Signs, Walsh butterflies, and for the odd part of the order a dense core: Paley's construction of order 12
 * and 20, whose entries are quadratic residues modulo 11 and 19. Source: R. Paley, "On orthogonal matrices",
 * 1933.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/basis.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

static uint32_t core_of(uint32_t n)
{
    static const uint32_t cores[] = {1, 12, 20};

    for (size_t i = 0; n && i < sizeof cores / sizeof cores[0]; i++) {
        uint32_t m = n / cores[i];

        if (n % cores[i] == 0 && (m & (m - 1)) == 0)
            return cores[i];
    }
    return 0;
}

bool esp_basis_fits(uint32_t n)
{
    return core_of(n) != 0;
}

/* Paley I for a prime q = 3 mod 4: H = I + S, S skew with border ones and residues inside. */
static void fill_core(int8_t *h, uint32_t core)
{
    const uint32_t q = core - 1;
    bool residue[32] = {false};

    if (core == 1) {
        h[0] = 1;
        return;
    }
    for (uint32_t x = 1; x < q; x++)
        residue[x * x % q] = true;
    for (uint32_t i = 0; i < core; i++)
        for (uint32_t j = 0; j < core; j++) {
            int8_t v;

            if (i == j)
                v = 1;
            else if (i == 0)
                v = 1;
            else if (j == 0)
                v = -1;
            else
                v = residue[(j + q - i) % q] ? 1 : -1;
            h[i * core + j] = v;
        }
}

esp_status esp_basis_open(struct esp_basis *b, uint32_t n, uint64_t seed, esp_error *err)
{
    memset(b, 0, sizeof *b);
    b->core = core_of(n);
    if (!b->core)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "no Hadamard matrix of order %u is built in; orders are 2^m, 12 * 2^m and 20 * 2^m",
                        n);
    b->n = n;
    b->sign = esp_alloc_array(n, sizeof *b->sign);
    b->tmp = esp_alloc_array(n, sizeof *b->tmp);
    b->core_sign = esp_alloc_array(b->core, b->core);
    if (!b->sign || !b->tmp || !b->core_sign) {
        esp_basis_close(b);
        return esp_fail(err, ESP_ENOMEM, "basis of %u: out of memory", n);
    }
    for (uint32_t i = 0; i < n; i += 128) {
        uint32_t word[4];

        esp_rng_words(&(struct esp_rng_key){.seed = seed, .position = i / 128, .draw = 0x51a7}, word);
        for (uint32_t j = 0; j < 128 && i + j < n; j++)
            b->sign[i + j] = word[j / 32] >> j % 32 & 1 ? -1.0f : 1.0f;
    }
    fill_core(b->core_sign, b->core);
    return ESP_OK;
}

void esp_basis_close(struct esp_basis *b)
{
    esp_free(b->sign);
    esp_free(b->tmp);
    esp_free(b->core_sign);
    memset(b, 0, sizeof *b);
}

static void walsh(float *x, size_t m)
{
    for (size_t h = 1; h < m; h *= 2)
        for (size_t i = 0; i < m; i += 2 * h)
            for (size_t j = i; j < i + h; j++) {
                const float a = x[j], c = x[j + h];

                x[j] = a + c;
                x[j + h] = a - c;
            }
}

static void transform(const struct esp_basis *b, float *x, float *tmp)
{
    const size_t n = b->n, core = b->core, m = n / core;
    const float scale = 1.0f / sqrtf((float)n);

    for (size_t i = 0; i < n; i++)
        x[i] *= b->sign[i] * scale;
    for (size_t i = 0; i < core; i++)
        walsh(x + i * m, m);
    if (core == 1)
        return;
    memset(tmp, 0, n * sizeof *tmp);
    for (size_t i = 0; i < core; i++)
        for (size_t k = 0; k < core; k++) {
            const float s = b->core_sign[k * core + i];

            for (size_t j = 0; j < m; j++)
                tmp[i * m + j] += s * x[k * m + j];
        }
    memcpy(x, tmp, n * sizeof *x);
}

void esp_basis_rows(const struct esp_basis *b, float *x, size_t n_row, size_t ld)
{
    for (size_t r = 0; b->n && r < n_row; r++)
        transform(b, x + r * ld, b->tmp);
}

void esp_basis_cols(const struct esp_basis *b, float *w, size_t n_col, float *column)
{
    for (size_t c = 0; b->n && c < n_col; c++) {
        for (size_t i = 0; i < b->n; i++)
            column[i] = w[i * n_col + c];
        transform(b, column, b->tmp);
        for (size_t i = 0; i < b->n; i++)
            w[i * n_col + c] = column[i];
    }
}
