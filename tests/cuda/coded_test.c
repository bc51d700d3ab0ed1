/*
 * Trellis codes in device memory, on the host: the arithmetic that kernels share with this test packs random
 * weights, and must give the code values of formats/trellis.c back, element by element, in the places where
 * the tensor cores' operands expect them. Products of operands put together as kernels do are compared with
 * plain sums, exactly: integers.
 */
/* SPDX-License-Identifier: MIT */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "formats/trellis.h"

#include "backend/cuda/plugin/coded.h"

struct coded {
    struct esp_weight w;
    uint8_t *bytes;
    uint32_t *packed;
    uint32_t n_quad, n_tile;
};

static uint64_t seed = 1;

static uint32_t draw(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

/* Pack as the device does, `at_once` stored rows at a time. */
static void pack(struct coded *c, uint32_t at_once)
{
    const uint32_t k = esp_trellis_bits(c->w.format), axis = c->w.axis, n = esp_trellis_rows(&c->w);
    const uint32_t words = axis ? 4 * k : 8 * k;
    const size_t pitch = c->w.interleaved ? 2 * esp_trellis_block_bytes(k) : c->w.row_bytes;

    for (uint32_t r0 = 0; r0 < n; r0 += at_once) {
        const uint32_t m = n - r0 < at_once ? n - r0 : at_once;
        const uint32_t t0 = axis ? r0 / 16 : 0, t1 = axis ? (r0 + m + 15) / 16 : c->n_tile / 16;
        const uint32_t a0 = axis ? 0 : r0 / 32, a1 = axis ? c->n_quad / 2 : (r0 + m + 31) / 32;
        const struct cu_coded_source src = {.row0 = r0,
                                            .n_row = m,
                                            .row = pitch / 4,
                                            .pair = c->w.pair_bytes / 4,
                                            .words = (const uint32_t *)(const void *)(c->bytes + r0 * pitch)};

        for (uint32_t tile = t0; tile < t1; tile++)
            for (uint32_t at = a0; at < a1; at++)
                for (uint32_t lane = 0; lane < 32; lane++)
                    for (uint32_t i = 0; i < words; i++)
                        c->packed[cu_coded_base(axis, k, c->n_quad, tile, at) + cu_coded_word(lane, i)] =
                            cu_coded_pack(&src, axis, k, tile, at, lane, i);
    }
}

static void make(struct coded *c, uint32_t k, uint8_t axis, bool interleaved, uint32_t n_out, uint32_t n_in)
{
    esp_error err;
    size_t bytes, packed;

    *c = (struct coded){.w = {.format = esp_trellis_format(k),
                              .scale_type = ESP_SCALE_F16,
                              .n_out = n_out,
                              .n_in = n_in,
                              .axis = axis,
                              .interleaved = interleaved}};
    test_ok(esp_weight_layout(&c->w, "w", &err), &err);
    c->n_tile = (n_out + 15) / 16;
    c->n_quad = (n_in + 127) / 128;
    bytes = esp_trellis_block_bytes(k) * (esp_trellis_cols(&c->w) / 256) * esp_trellis_rows(&c->w);
    packed = (size_t)c->n_tile * c->n_quad * 256 * k;
    c->bytes = malloc(bytes);
    c->packed = malloc(packed);
    assert_non_null(c->bytes);
    assert_non_null(c->packed);
    for (size_t i = 0; i < bytes; i++)
        c->bytes[i] = (uint8_t)draw();
    memset(c->packed, 0xa5, packed);
    c->w.codes = c->bytes;
    pack(c, axis ? 48 : 128);
}

static void drop(struct coded *c)
{
    free(c->bytes);
    free(c->packed);
}

/* f16 1024 + sum, less 1534. */
static int value(uint32_t half)
{
    assert_true(half >= CU_HALF_BASE && half < CU_HALF_BASE + 1024);
    return (int)(half - CU_HALF_BASE) + 1024 - 1534;
}

/* A lane's runs of a piece as the fast kernels hold them: words, then the first of the neighbour's. */
static void load_runs(uint32_t run[8][17], const uint32_t *piece, uint32_t axis, uint32_t k, uint32_t lane)
{
    const uint32_t words = axis ? 2 * k : k;

    for (uint32_t r = 0; r < (axis ? 2u : 8u); r++) {
        for (uint32_t i = 0; i < words; i++)
            run[r][i] = piece[cu_coded_word(lane, r * words + i)];
        run[r][words] = piece[cu_coded_word(cu_coded_neighbour(axis, lane), r * words)];
    }
}

/*
 * The A operand (16 outputs of a tile, 16 inputs) of step s of block kb, by the kernels' formulas: the four
 * words of a lane hold rows g and g + 8 and columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
 */
static void operand(const struct coded *c, uint32_t tile, uint32_t kb, uint32_t s, int a[16][16])
{
    const uint32_t k = esp_trellis_bits(c->w.format), axis = c->w.axis;
    const uint32_t *piece = c->packed + (axis ? cu_coded_base(1, k, c->n_quad, tile, kb / 8)
                                              : cu_coded_base(0, k, c->n_quad, tile / 16, kb));

    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t run[8][17], g = lane >> 2, t = lane & 3;

        load_runs(run, piece, axis, k, lane);
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t e = 4 * s + i / 2 * 2, half = i & 1;
            uint32_t s0, s1, f0, f1, pair;

            if (axis) {
                s0 = cu_coded_state(run[half], CU_RUN1, k, kb % 8 * 8 + e);
                s1 = cu_coded_state(run[half], CU_RUN1, k, kb % 8 * 8 + e + 1);
                f0 = cu_coded_fetch(piece, 1, k, lane, half, kb % 8 * 8 + e);
                f1 = cu_coded_fetch(piece, 1, k, lane, half, kb % 8 * 8 + e + 1);
            } else {
                s0 = cu_coded_state(run[e], CU_RUN0, k, tile % 16 * 2 + half);
                s1 = cu_coded_state(run[e + 1], CU_RUN0, k, tile % 16 * 2 + half);
                f0 = cu_coded_fetch(piece, 0, k, lane, e, tile % 16 * 2 + half);
                f1 = cu_coded_fetch(piece, 0, k, lane, e + 1, tile % 16 * 2 + half);
            }
            assert_int_equal(s0, f0);
            assert_int_equal(s1, f1);
            pair = cu_coded_pair(s0, s1);
            a[g + 8 * half][2 * t + i / 2 * 8] = value(pair & 0xffff);
            a[g + 8 * half][2 * t + 1 + i / 2 * 8] = value(pair >> 16);
        }
    }
}

/* x at `place` of the prepared row that column c of step s of block kb reads. */
static uint32_t place_of(uint32_t kb, uint32_t s, uint32_t c)
{
    const uint32_t t = c % 8 / 2, e = 4 * s + c / 8 * 2 + c % 2;

    return kb * 32 + 8 * t + e;
}

static void check(uint32_t k, uint8_t axis, bool interleaved, uint32_t n_out, uint32_t n_in)
{
    struct coded c;
    int32_t *x, *placed, *want, *got;
    int16_t *row;

    make(&c, k, axis, interleaved, n_out, n_in);
    x = calloc(n_in, sizeof *x);
    placed = calloc((size_t)c.n_quad * 128, sizeof *placed);
    want = calloc(n_out, sizeof *want);
    got = calloc(n_out, sizeof *got);
    row = calloc(n_out > n_in ? n_out : n_in, sizeof *row);
    for (uint32_t i = 0; i < n_in; i++) {
        x[i] = (int32_t)(draw() % 2001) - 1000;
        placed[axis ? cu_coded_place(i) : i] = x[i];
    }
    for (uint32_t r = 0; r < esp_trellis_rows(&c.w); r++) {
        esp_trellis_values(&c.w, r, 0, esp_trellis_cols(&c.w), row);
        for (uint32_t j = 0; j < esp_trellis_cols(&c.w); j++)
            want[axis ? r : j] += row[j] * (axis ? x[j] : x[r]);
    }
    for (uint32_t tile = 0; tile < c.n_tile; tile++)
        for (uint32_t kb = 0; kb < c.n_quad * 4; kb++)
            for (uint32_t s = 0; s < 2; s++) {
                int a[16][16];

                operand(&c, tile, kb, s, a);
                for (uint32_t m = 0; m < 16; m++)
                    for (uint32_t n = 0; n < 16 && cu_coded_output(axis, tile, m) < n_out; n++)
                        got[cu_coded_output(axis, tile, m)] += a[m][n] * placed[place_of(kb, s, n)];
            }
    for (uint32_t o = 0; o < n_out; o++)
        if (got[o] != want[o])
            fail_msg("%u bits along axis %u, %u x %u: output %u is %d instead of %d", k, axis, n_out, n_in, o,
                     got[o], want[o]);
    free(x);
    free(placed);
    free(want);
    free(got);
    free(row);
    drop(&c);
}

static void test_axis_1(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 8; k++)
        check(k, 1, false, 76, 512); /* the last tile is no whole one */
}

static void test_axis_0(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 8; k++)
        check(k, 0, false, 512, 200); /* the last block of inputs is no whole one */
}

static void test_interleaved(void **state)
{
    (void)state;
    check(3, 0, true, 1024, 256);
}

/* Places of a unit are a permutation that keeps runs of 8 and stays inside. */
static void test_places(void **state)
{
    bool seen[512] = {false};

    (void)state;
    for (uint32_t i = 0; i < 512; i++) {
        const uint32_t p = cu_coded_place(i);

        assert_true(p / 256 == i / 256 && p % 8 == i % 8 && !seen[p]);
        seen[p] = true;
    }
}

/* Every tile of a super tile gives other outputs, and all of them. */
static void test_outputs(void **state)
{
    bool seen[512] = {false};

    (void)state;
    for (uint32_t tile = 0; tile < 32; tile++)
        for (uint32_t row = 0; row < 16; row++) {
            const uint32_t o = cu_coded_output(0, tile, row);

            assert_true(o < 512 && !seen[o]);
            seen[o] = true;
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_axis_1), cmocka_unit_test(test_axis_0),  cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_places), cmocka_unit_test(test_outputs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
