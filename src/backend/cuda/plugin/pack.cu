/*
 * Weights into the order of kernels.h, and single rows out of it (embeddings). Packing runs once a weight,
 * from a copy of its rows as the file has them.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/start.cuh"

size_t cu_packed_code_bytes(const struct cu_weight *w)
{
    const size_t quads = (size_t)w->n_tile * w->n_quad;

    switch (w->format) {
    case CU_F32:
        return (size_t)w->n_out * w->n_in * 4;
    case CU_F16:
        return (size_t)w->n_out * w->n_in * 2;
    case CU_BF16:
    case CU_VALUES:
        return quads * 4096;
    case CU_CODED:
        return quads * 256 * w->bits;
    case CU_Q8:
        return quads * 2048;
    case CU_Q4:
        return quads * 1024;
    default:
        return quads * 512;
    }
}

size_t cu_packed_scale_bytes(const struct cu_weight *w)
{
    if (w->format == CU_CODED)
        return (w->axis ? (size_t)w->n_tile * 16 : (size_t)w->n_quad * 128) * sizeof(float);
    return w->group_kb ? (size_t)w->n_tile * (w->n_quad * 4 / w->group_kb) * 32 * (w->scale_f32 ? 4 : 2) : 0;
}

/* Code j of a little-endian bit stream. */
static __device__ uint32_t code_at(const uint8_t *row, uint32_t bits, uint32_t j)
{
    const size_t bit = (size_t)j * bits;
    const uint32_t shift = bit & 7;
    uint32_t v = row[bit >> 3] >> shift;

    if (shift + bits > 8)
        v |= (uint32_t)row[(bit >> 3) + 1] << (8 - shift);
    return v & ((1u << bits) - 1);
}

/* The element of source row r, input k; zero outside. */
static __device__ uint32_t source(const cu_weight &w, const cu_source &p, uint32_t r, uint32_t k)
{
    if (r >= p.n_row || k >= w.n_in)
        return 0;
    if (p.format == 16) {
        const uint8_t *b = p.codes + ((size_t)r * w.n_in + k) * 2; /* files may be unaligned */

        return b[0] | (uint32_t)b[1] << 8;
    }
    return code_at(p.codes + (size_t)r * ((size_t)w.n_in * p.format / 8), p.format, k);
}

/* A bf16 weight over UP. */
static __device__ uint32_t lowered(uint32_t v)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(cu_bf16((uint16_t)v) * CU_DOWN));
}

/* A thread packs what one lane holds of one block: two times 8 elements. */
static __global__ void pack_codes(cu_weight w, cu_source p, uint8_t *out)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t lane = i & 31, g = lane >> 2, t = lane & 3, j = i >> 5 & 3;
    const size_t quad = i >> 7; /* of the tiles held */
    const uint32_t tile = (uint32_t)(quad / w.n_quad), q = (uint32_t)(quad % w.n_quad);
    const size_t at = (size_t)(p.row0 / 16 + tile) * w.n_quad + q; /* quad in the weight */
    uint32_t e[2][8];

    if (tile >= (p.n_row + 15) / 16)
        return;
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t k = 0; k < 8; k++)
            e[half][k] = source(w, p, tile * 16 + g + 8 * half, (q * 4 + j) * 32 + 8 * t + k);
    if (w.format == CU_BF16) {
        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t k = 0; k < 8; k++)
                e[half][k] = lowered(e[half][k]);
        for (uint32_t half = 0; half < 2; half++)
            *reinterpret_cast<uint4 *>(out + at * 4096 + j * 1024 + half * 512 + lane * 16) =
                make_uint4(e[half][0] | e[half][1] << 16, e[half][2] | e[half][3] << 16,
                           e[half][4] | e[half][5] << 16, e[half][6] | e[half][7] << 16);
    } else if (w.format == CU_Q8) {
        for (uint32_t half = 0; half < 2; half++)
            *reinterpret_cast<uint2 *>(out + at * 2048 + j * 512 + lane * 16 + half * 8) =
                make_uint2(e[half][0] | e[half][1] << 8 | e[half][2] << 16 | e[half][3] << 24,
                           e[half][4] | e[half][5] << 8 | e[half][6] << 16 | e[half][7] << 24);
    } else if (w.format == CU_Q4) {
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t v = 0;

            for (uint32_t k = 0; k < 4; k++)
                v |= e[half][2 * k] << (4 * k) | e[half][2 * k + 1] << (4 * k + 16);
            *reinterpret_cast<uint32_t *>(out + at * 1024 + (j / 2) * 512 + lane * 16 + (j & 1) * 8 +
                                          half * 4) = v;
        }
    } else {
        uint32_t v = 0;

        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t k = 0; k < 4; k++)
                v |= e[half][2 * k] << (2 * k + 8 * half) | e[half][2 * k + 1] << (2 * k + 8 * half + 16);
        *reinterpret_cast<uint32_t *>(out + at * 512 + lane * 16 + j * 4) = v;
    }
}

static __device__ float scale_at(const uint8_t *plane, uint32_t type, size_t i)
{
    if (type == 0) {
        const uint8_t *b = plane + 4 * i;

        return __uint_as_float(b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
    }
    const uint16_t v = (uint16_t)(plane[2 * i] | plane[2 * i + 1] << 8);

    return type == 1 ? cu_bf16(v) : __half2float(__ushort_as_half(v));
}

static __device__ float code_up(const cu_weight &w)
{
    return w.format == CU_Q4 ? CU_NIBBLE_UP : 1.0f;
}

static __global__ void pack_scales(cu_weight w, cu_source p, uint8_t *out)
{
    const uint32_t n_group = w.n_quad * 4 / w.group_kb, real = w.n_in / p.group;
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t g = i & 7, group = (uint32_t)((i >> 3) % n_group), tile = (uint32_t)((i >> 3) / n_group);
    float v[4] = {0, 0, 0, 0};

    if (tile >= (p.n_row + 15) / 16)
        return;
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t r = tile * 16 + g + 8 * half;

        if (r < p.n_row && group < real) {
            v[2 * half] = scale_at(p.scales, p.scale_type, (size_t)r * real + group) * code_up(w);
            v[2 * half + 1] = scale_at(p.biases, p.scale_type, (size_t)r * real + group);
        }
    }
    const size_t at = ((size_t)(p.row0 / 16 + tile) * n_group + group) * 8 + g;

    if (w.scale_f32)
        reinterpret_cast<float4 *>(out)[at] = make_float4(v[0], v[1], v[2], v[3]);
    else /* exact: the source is bf16 */
        reinterpret_cast<uint2 *>(out)[at] = make_uint2(cu_bf16x2(v[0], v[1]), cu_bf16x2(v[2], v[3]));
}

void cu_pack(cudaStream_t s, const struct cu_weight *w, const struct cu_source *p)
{
    const size_t tiles = (p->n_row + 15) / 16, n = tiles * w->n_quad * 128;

    pack_codes<<<(unsigned)((n + 255) / 256), 256, 0, s>>>(*w, *p, (uint8_t *)w->codes);
    if (w->group_kb) {
        const size_t m = tiles * (w->n_quad * 4 / w->group_kb) * 8;

        pack_scales<<<(unsigned)((m + 255) / 256), 256, 0, s>>>(*w, *p, (uint8_t *)w->scales);
    }
}

/* A thread packs one word. Pieces of the rows held: all units of their tiles, or their blocks of all super
 * tiles. */
static __global__ void pack_coded(cu_weight w, cu_coded_source src, uint32_t *out)
{
    const uint32_t words = w.axis ? 4 * w.bits : 8 * w.bits; /* a lane's in a piece */
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t lane = i & 31, word = (uint32_t)((i >> 5) % words);
    const size_t piece = (i >> 5) / words;
    const uint32_t n_block = w.axis ? w.n_quad / 2 : (src.n_row + 31) / 32;
    uint32_t tile = (uint32_t)(piece / n_block), at = (uint32_t)(piece % n_block);

    if (tile >= (w.axis ? (src.n_row + 15) / 16 : w.n_tile / 16))
        return;
    tile += w.axis ? src.row0 / 16 : 0;
    at += w.axis ? 0 : src.row0 / 32;
    out[cu_coded_base(w.axis, w.bits, w.n_quad, tile, at) + cu_coded_word(lane, word)] =
        cu_coded_pack(&src, w.axis, w.bits, tile, at, lane, word);
}

void cu_pack_coded(cudaStream_t s, const struct cu_weight *w, const struct cu_coded_source *src)
{
    const size_t pieces = w->axis ? (size_t)((src->n_row + 15) / 16) * (w->n_quad / 2)
                                  : (size_t)((src->n_row + 31) / 32) * (w->n_tile / 16);
    const size_t n = pieces * 32 * (w->axis ? 4 : 8) * w->bits;

    pack_coded<<<(unsigned)((n + 255) / 256), 256, 0, s>>>(*w, *src, (uint32_t *)w->codes);
}

/* Code value of output row, input k. */
static __device__ float coded_value(const cu_weight &w, uint32_t row, uint32_t k)
{
    const uint32_t *codes = reinterpret_cast<const uint32_t *>(w.codes);
    uint32_t state;

    if (w.axis)
        state = cu_coded_fetch(codes + cu_coded_base(1, w.bits, w.n_quad, row / 16, k / 256), 1, w.bits,
                               row % 8 * 4 + k % 256 / 64, row % 16 / 8, k % 64);
    else
        state = cu_coded_fetch(codes + cu_coded_base(0, w.bits, w.n_quad, row / 256, k / 32), 0, w.bits,
                               row % 256 / 32 * 4 + k % 32 / 8, k % 8, row % 32);
    return (float)(int)cu_coded_sum(cu_coded_hash(state), (uint32_t)-510);
}

/* A thread makes what one lane holds of one block of 32 inputs, as pack_codes() does. */
static __global__ void expand(cu_weight w, uint32_t tile0, uint32_t n_tile, uint8_t *out)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t lane = i & 31, j = i >> 5 & 3;
    const size_t quad = i >> 7;
    const uint32_t tile = tile0 + (uint32_t)(quad / w.n_quad), q = (uint32_t)(quad % w.n_quad),
                   kb = q * 4 + j;
    const uint32_t *codes = reinterpret_cast<const uint32_t *>(w.codes);

    if (quad >= (size_t)n_tile * w.n_quad)
        return;
    codes += w.axis ? cu_coded_base(1, w.bits, w.n_quad, tile, kb / 8)
                    : cu_coded_base(0, w.bits, w.n_quad, tile / 16, kb);
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t v[4];

#pragma unroll
        for (uint32_t p = 0; p < 4; p++) {
            uint32_t s[2];

#pragma unroll
            for (uint32_t e = 0; e < 2; e++)
                s[e] = w.axis ? cu_coded_fetch(codes, 1, w.bits, lane, half, kb % 8 * 8 + 2 * p + e)
                              : cu_coded_fetch(codes, 0, w.bits, lane, 2 * p + e, tile % 16 * 2 + half);
            v[p] = cu_coded_values(s[0], s[1]);
        }
        *reinterpret_cast<uint4 *>(out + quad * 4096 + j * 1024 + half * 512 + lane * 16) =
            make_uint4(v[0], v[1], v[2], v[3]);
    }
}

struct cu_weight cu_expand(cudaStream_t s, const struct cu_weight *w, uint32_t tile0, uint32_t n_tile,
                           uint8_t *out)
{
    struct cu_weight v = *w;
    const size_t n = (size_t)n_tile * w->n_quad * 128;

    expand<<<(unsigned)((n + 255) / 256), 256, 0, s>>>(*w, tile0, n_tile, out);
    v.format = CU_VALUES;
    v.codes = out;
    v.tile0 = tile0;
    v.n_tile = n_tile;
    return v;
}

/* ---- rows out of packed weights
 * ------------------------------------------------------------------------------------- */

static __device__ float element(const cu_weight &w, uint32_t row, uint32_t k)
{
    const uint32_t tile = row / 16, half = row % 16 / 8, q = k / 128, j = k / 32 % 4, e = k % 8;
    const uint32_t lane = row % 8 * 4 + k % 32 / 8, p = e / 2, odd = e & 1;
    const size_t at = (size_t)tile * w.n_quad + q;
    uint32_t code;

    if (w.format == CU_CODED)
        return coded_value(w, row, k) * reinterpret_cast<const float *>(w.scales)[w.axis ? row : k];
    if (w.format == CU_F32)
        return reinterpret_cast<const float *>(w.codes)[(size_t)row * w.n_in + k];
    if (w.format == CU_F16)
        return __half2float(reinterpret_cast<const __half *>(w.codes)[(size_t)row * w.n_in + k]);
    if (w.format == CU_BF16)
        return cu_bf16(*reinterpret_cast<const uint16_t *>(w.codes + at * 4096 + j * 1024 + half * 512 +
                                                           lane * 16 + e * 2)) *
               CU_UP;
    if (w.format == CU_Q8)
        code = w.codes[at * 2048 + j * 512 + lane * 16 + half * 8 + e];
    else if (w.format == CU_Q4)
        code = *reinterpret_cast<const uint32_t *>(w.codes + at * 1024 + (j / 2) * 512 + lane * 16 +
                                                   (j & 1) * 8 + half * 4) >>
                   (4 * p + 16 * odd) &
               15;
    else
        code = *reinterpret_cast<const uint32_t *>(w.codes + at * 512 + lane * 16 + j * 4) >>
                   (2 * p + 8 * half + 16 * odd) &
               3;

    const size_t s =
        (((size_t)tile * (w.n_quad * 4 / w.group_kb) + (q * 4 + j) / w.group_kb) * 8 + row % 8) * 4 +
        2 * half;
    const float kept = w.scale_f32 ? reinterpret_cast<const float *>(w.scales)[s]
                                   : cu_bf16(reinterpret_cast<const uint16_t *>(w.scales)[s]);
    const float scale = kept / code_up(w);
    const float bias = w.scale_f32 ? reinterpret_cast<const float *>(w.scales)[s + 1]
                                   : cu_bf16(reinterpret_cast<const uint16_t *>(w.scales)[s + 1]);

    return __fadd_rn(__fmul_rn(scale, (float)code), bias); /* rounded twice, as the format says */
}

static __global__ void embed(cu_weight w, const int32_t *ids, float *y)
{
    cu_let_next_start();
    cu_wait_for_inputs();
    const uint32_t k = blockIdx.y * blockDim.x + threadIdx.x;

    if (k < w.n_in)
        y[(size_t)blockIdx.x * w.n_in + k] = element(w, (uint32_t)ids[blockIdx.x], k);
}

void cu_embed(cudaStream_t s, const struct cu_weight *w, const struct cu_batch *b, float *y, uint32_t n_tok)
{
    cu_start(s, embed, dim3(n_tok, (w->n_in + 127) / 128), 128, 0, *w, b->ids, y);
}

cudaError_t cu_probe(void)
{
    cudaFuncAttributes a;

    return cudaFuncGetAttributes(&a, embed);
}
