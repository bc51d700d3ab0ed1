/*
 * Products with trellis codes: few rows decode on the way to the tensor cores (coded_few*.cu), many rows
 * multiply by code values that are expanded first, a range of tiles at a time, as expanding costs little
 * beside more than 32 rows. Both add up in the same order.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/coded.cuh"
#include "backend/cuda/plugin/linear.cuh"
#include "backend/cuda/plugin/start.cuh"

static __global__ void add_coded_parts(const float *parts, const __grid_constant__ cu_weight w,
                                       const __grid_constant__ cu_act x, float *y, size_t n)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum;

    if (i >= n)
        return;
    sum = parts[i];
#pragma unroll 8
    for (uint32_t p = 1; p < w.n_part; p++)
        sum += parts[p * n + i];
    y[i] = coded_result(w, x, (uint32_t)(i % w.n_out), (uint32_t)(i / w.n_out), sum);
}

static void add_up(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t n_row)
{
    const size_t n = (size_t)n_row * l->w[0].n_out;

    cu_start(s, add_coded_parts, (unsigned)((n + 127) / 128), 128, 0, l->parts, l->w[0], *x, l->y[0], n);
}

/* At most CU_FEW_ROWS rows from row0 on. */
static void few_coded(cudaStream_t s, const cu_linears *l, const cu_act *x, uint32_t row0, uint32_t n_row)
{
    cu_linears part = *l;
    cu_act rows = *x;

    for (uint32_t i = 0; i < l->n; i++)
        part.y[i] += (size_t)row0 * l->w[i].n_out;
    for (uint32_t i = 0; i < x->n_term; i++)
        rows.t[i] += (size_t)row0 * x->ld;
    rows.sums += row0;
    if (l->w[0].axis) {
        cu_coded_few1(s, &part, &rows, n_row);
        return;
    }
    cu_coded_few0(s, &part, &rows, n_row);
    add_up(s, &part, &rows, n_row);
}

/* More rows: through code values, a range of a weight's tiles at a time as they find room. */
struct coded_job {
    cudaStream_t s;
    const cu_linears *l;
    const cu_act *x;
    uint32_t n_row;
    uint8_t *values;
    size_t values_bytes;
};

/* multiply(one, n_split): products of a range of weight i; apart: its parts get blocks of their own. */
template <class F> static void by_values(const coded_job &j, uint32_t i, bool apart, F multiply)
{
    const cu_weight *w = &j.l->w[i];
    const size_t most = j.values_bytes / ((size_t)w->n_quad * 4096) / 16 * 16;
    const bool split =
        apart && (size_t)w->n_part * j.n_row * w->n_out * sizeof(float) <= j.l->parts_bytes;
    cu_linears one = *j.l;

    one.n = 1;
    one.y[0] = j.l->y[i];
    for (uint32_t tile = 0; tile < w->n_tile; tile += one.w[0].n_tile) {
        const uint32_t left = w->n_tile - tile;

        one.w[0] = cu_expand(j.s, w, tile, left < most ? left : (uint32_t)most, j.values);
        multiply(one, split ? w->n_part : 1);
    }
    one.w[0] = *w;
    if (split)
        add_up(j.s, &one, j.x, j.n_row);
}

template <int TERMS> static void tiled_coded(const coded_job &j, uint32_t i)
{
    const uint32_t rows = (j.n_row + TILED_ROWS - 1) / TILED_ROWS;
    const bool apart = rows * ((j.l->w[i].n_tile + TILED_TILES - 1) / TILED_TILES) < FILL_BLOCKS;

    by_values(j, i, apart, [&](const cu_linears &one, uint32_t n_split) {
        tiled<CU_VALUES, TERMS><<<dim3(rows, count_blocks(&one, TILED_TILES), n_split), TILED_THREADS,
                                  tiled_shared<TERMS>::bytes, j.s>>>(one, *j.x, j.n_row);
    });
}

static void wide_coded(const coded_job &j, uint32_t i)
{
    const uint32_t items = (j.l->w[i].n_tile + 15) / 16 * ((j.n_row + CU_WIDE_ROWS - 1) / CU_WIDE_ROWS);

    by_values(j, i, items * 2 < j.l->n_multiprocessor, [&](const cu_linears &one, uint32_t n_split) {
        cu_wide_values(j.s, &one, j.x, j.n_row, n_split, 0);
    });
}

void cu_linear_coded(cudaStream_t s, const struct cu_linears *l, const struct cu_act *x, uint32_t n_row,
                     uint8_t *values, size_t values_bytes)
{
    const coded_job j = {s, l, x, n_row, values, values_bytes};

    if (x->wide) {
        for (uint32_t i = 0; i < l->n; i++)
            wide_coded(j, i);
        return;
    }
    if (n_row <= CU_FEW_ROWS || !l->tiled) {
        for (uint32_t r = 0; r < n_row; r += CU_FEW_ROWS)
            few_coded(s, l, x, r, n_row - r < CU_FEW_ROWS ? n_row - r : (uint32_t)CU_FEW_ROWS);
        return;
    }
    for (uint32_t i = 0; i < l->n; i++)
        if (x->n_term == 3)
            tiled_coded<3>(j, i);
        else if (x->n_term == 1)
            tiled_coded<1>(j, i);
        else
            tiled_coded<2>(j, i);
}

cudaError_t cu_linear_setup_coded(void)
{
    cudaError_t e = allow_tiled<CU_VALUES, 1>();

    if (e == cudaSuccess)
        e = allow_tiled<CU_VALUES, 2>();
    return e == cudaSuccess ? allow_tiled<CU_VALUES, 3>() : e;
}
