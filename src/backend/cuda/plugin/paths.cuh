/*
 * Trellis paths: one block of THREADS threads searches one block of 256 weights at a time, with 4096 /
 * THREADS states in each thread, whose code values stay in registers from step to step. Costs of edges live
 * in shared memory, one 32-bit word an edge, twice, so that a step needs one barrier.
 *
 * A cost E is kept as E * 2^15 + 2^14. Then d * d added to it is the sum E + e of backend/paths.h with 15
 * bits of fraction behind it, without overflow: E <= 65535 and |d| <= 2^15, so it stays below 2^32. The
 * fraction is cut off and m takes its place, and the smallest of such words is both the cost and, of equal
 * ones, the smallest m. Where all are saturated m is 0: of equal costs the smallest, as it must be.
 *
 * d comes from the f32 pipes, which have room where the integer ones have not. Its operands are integers as
 * denormal numbers, n * 2^-149, whose sums are exact, whose bits are n (sign apart, which a square modulo
 * 2^32 does not see), and which saturation to [0, 1] keeps from being negative: with c = 32767 (x >= 0) or
 * 32768, |d| or less is c - max(0, c - |x| +- y). The other end of d cannot be reached while differences are
 * not doubled.
 *
 * The winners' m of every step go to global memory, k bits a target, one word a thread and step; the way back
 * is walked by one thread, over stretches of 16 steps that all threads bring to shared memory.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_PATHS_CUH
#define ESP_BACKEND_CUDA_PLUGIN_PATHS_CUH

#include <stddef.h>

#include "backend/cuda/plugin/paths.h"

enum { STATE_BITS = 12, STATES = 4096, STEPS = CU_PATHS_STEPS, STRETCH = 16, FRACTION = 15 };

static constexpr uint32_t HALF = 1u << (FRACTION - 1), COST_BITS = ~((1u << FRACTION) - 1);
static constexpr uint32_t COST_MOST = 65535u << FRACTION;

/* Which states a thread of T has: N_COL columns of M candidates for each of B targets; or, where targets are
   fewer than threads, M candidates of one target that SHARE threads have together. */
template <int K, int T> struct paths_map {
    static constexpr int N_EDGE = STATES >> K, N_BRANCH = 1 << K, OWN = STATES / T;
    static constexpr int SHARE = T > N_EDGE ? T / N_EDGE : 1;
    static constexpr int COLUMNS = N_EDGE >> K; /* 0 from k = 7 on, where SHARE > 1 */
    static constexpr int N_COL = SHARE > 1 || T >= COLUMNS ? 1 : COLUMNS / T;
    static constexpr int PER_COL = SHARE > 1 || T <= COLUMNS ? 1 : T / COLUMNS;
    static constexpr int B = SHARE > 1 ? 1 : N_BRANCH / PER_COL;
    static constexpr int M = N_BRANCH / SHARE;
    static constexpr int TARGETS = N_COL * B; /* of this thread */
    static constexpr int TOGETHER = 15 / K;   /* targets whose m have different places below a cost */
    static_assert(N_COL * B * M == OWN && TARGETS * K <= 32, "states and choices of a thread");

    /* Column i and first branch of thread c. */
    static __device__ __forceinline__ uint32_t column(uint32_t c, int i)
    {
        if constexpr (PER_COL > 1)
            return c % COLUMNS;
        else
            return c + (uint32_t)i * T;
    }
    static __device__ __forceinline__ uint32_t branch0(uint32_t c)
    {
        if constexpr (PER_COL > 1)
            return c / COLUMNS * B;
        else
            return 0;
    }
    /* First target of column i. */
    static __device__ __forceinline__ uint32_t target(uint32_t c, int i)
    {
        return SHARE > 1 ? c / SHARE : column(c, i) * N_BRANCH + branch0(c);
    }
    static __device__ __forceinline__ uint32_t first_m(uint32_t c)
    {
        return SHARE > 1 ? c % SHARE * M : 0;
    }
    /* Thread and number of its target, of edge j. */
    static __device__ __forceinline__ uint32_t owner(uint32_t j, uint32_t *slot)
    {
        const uint32_t q = j >> K, b = j % N_BRANCH;

        if constexpr (SHARE > 1) {
            *slot = 0;
            return j * SHARE;
        } else if constexpr (PER_COL > 1) {
            *slot = b % B;
            return q + b / B * COLUMNS;
        } else {
            *slot = q / T * B + b;
            return q % T;
        }
    }
};

template <int K, int T> struct paths_shared {
    uint32_t cost[2][STATES >> K];
    uint32_t kept[STATES >> K]; /* costs that a group began with */
    float4 at[STEPS];           /* c - |x|, c, sign of x, nothing */
    uint32_t stretch[STRETCH * T];
    float rest[STEPS];
    uint32_t least[2][T / 32];
    float high[T / 32];
    uint32_t edge, stop;
    uint16_t states[STEPS];
};

/* An integer below 2^23 as the denormal number n * 2^-149. */
static __device__ __forceinline__ float as_denormal(int32_t n)
{
    return __uint_as_float(n < 0 ? 0x80000000u | (uint32_t)-n : (uint32_t)n);
}

static __device__ __forceinline__ float fma_sat(float a, float b, float c)
{
    float d;

    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}

static __device__ __forceinline__ float subtract(float a, float b)
{
    float d;

    asm("sub.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}

static __device__ __forceinline__ int32_t paths_y(uint32_t s)
{
    return (int32_t)__dp4a(s * 34038481u + 76625530u, 0x01010101u, 0u) - 510;
}

template <int K, int T> struct paths_search {
    using map = paths_map<K, T>;

    paths_shared<K, T> &sh;
    const cu_paths &p;
    uint32_t *choices; /* of this block of threads: [256][T] */
    uint32_t tid;
    uint32_t at = 0; /* which costs are the newest */
    float y[map::OWN];
    esp_paths_range range;

    __device__ __forceinline__ paths_search(paths_shared<K, T> &s, const cu_paths &job)
        : sh(s), p(job), choices(job.choices + (size_t)blockIdx.x * STEPS * T), tid(threadIdx.x)
    {
    }

    /* ---- targets ---- */

    __device__ __forceinline__ void set_x(uint32_t t, float u)
    {
        const float scaled = __fmul_rn(u, range.unit);
        const int32_t x = __float2int_rn(scaled < -32767 ? -32767 : scaled > 32767 ? 32767 : scaled);
        const int32_t c = x < 0 ? 32768 : 32767, size = (x < 0 ? -x : x) << range.n_double;

        sh.at[t] = make_float4(as_denormal(c - size), as_denormal(c), x < 0 ? -1.f : 1.f, 0);
    }

    __device__ void set_targets(const float *u)
    {
        float high = 0;
        uint32_t r = 0;

        for (uint32_t t = tid; t < STEPS; t += T)
            high = fmaxf(high, fabsf(u[t]));
        for (int i = 16; i; i /= 2)
            high = fmaxf(high, __shfl_xor_sync(~0u, high, i));
        if (tid % 32 == 0)
            sh.high[tid / 32] = high;
        __syncthreads();
        for (int i = 0; i < T / 32; i++)
            high = fmaxf(high, sh.high[i]);
        while (r + 1 < p.n_range && high > p.range[r].reach)
            r++;
        range = p.range[r];
        for (uint32_t t = tid; t < STEPS; t += T)
            set_x(t, u[t]);
#pragma unroll
        for (int i = 0; i < map::N_COL; i++)
#pragma unroll
            for (int b = 0; b < map::B; b++)
#pragma unroll
                for (int m = 0; m < map::M; m++) {
                    const uint32_t s = map::target(tid, i) + b + (map::first_m(tid) + m) * map::N_EDGE;

                    y[(i * map::B + b) * map::M + m] =
                        as_denormal((paths_y(s) * range.factor) << range.n_double);
                }
    }

    /* ---- steps ---- */

    /* The sum of a state of code value y behind an edge of cost e, with m in it when it is to be kept, at the
       place that target i has for it. */
    template <bool CHOOSE>
    __device__ __forceinline__ uint32_t add(float own, float4 x, uint32_t e, int m, int i) const
    {
        float cut = fma_sat(own, x.z, x.x);

        if (K >= 5) /* doubled differences may be too small as well */
            cut = __uint_as_float(min(__float_as_uint(cut), 65535u));
        const uint32_t d = __float_as_uint(subtract(x.y, cut)), sum = d * d + e;

        return CHOOSE ? (sum & COST_BITS) | (map::first_m(tid) + m) << (i % map::TOGETHER * K) : sum;
    }

    /* One step from cost[at]; new costs in acc, without the fraction, and the winners' m there
       when they are asked for. */
    template <bool CHOOSE> __device__ __forceinline__ void step(float4 x, uint32_t acc[map::TARGETS])
    {
        const uint32_t *cost = sh.cost[at];

#pragma unroll
        for (int i = 0; i < map::N_COL; i++)
#pragma unroll
            for (int m = 0; m < map::M; m += 2) {
                const uint32_t s0 = map::target(tid, i) + (map::first_m(tid) + m) * map::N_EDGE;
                const uint32_t e0 = cost[s0 >> K], e1 = cost[(s0 + map::N_EDGE) >> K];

#pragma unroll
                for (int b = 0; b < map::B; b++) {
                    const float *own = y + (i * map::B + b) * map::M + m;
                    const uint32_t sum0 = add<CHOOSE>(own[0], x, e0, m, i * map::B + b),
                                   sum1 = add<CHOOSE>(own[1], x, e1, m + 1, i * map::B + b);
                    uint32_t &best = acc[i * map::B + b];

                    best = m ? __vimin3_u32(best, sum0, sum1) : min(sum0, sum1);
                }
            }
#pragma unroll
        for (int i = 0; i < map::TARGETS; i++) {
#pragma unroll
            for (int x = 1; x < map::SHARE; x *= 2)
                acc[i] = min(acc[i], __shfl_xor_sync(~0u, acc[i], x));
            acc[i] = min(acc[i], COST_MOST);
        }
    }

    __device__ __forceinline__ void keep_choices(uint32_t t, const uint32_t acc[map::TARGETS])
    {
        uint32_t word = 0;

#pragma unroll
        for (int g = 0; g < map::TARGETS; g += map::TOGETHER) {
            uint32_t part = 0;

#pragma unroll
            for (int i = g; i < map::TARGETS && i < g + map::TOGETHER; i++)
                part |= acc[i] & (uint32_t)(map::N_BRANCH - 1) << (i - g) * K;
            word |= part << g * K;
        }
        if (map::SHARE == 1 || tid % map::SHARE == 0)
            choices[t * T + tid] = word;
    }

    __device__ __forceinline__ void keep_costs(const uint32_t acc[map::TARGETS])
    {
        uint32_t *cost = sh.cost[at ^ 1];

        if (map::SHARE > 1 && tid % map::SHARE)
            return;
#pragma unroll
        for (int i = 0; i < map::N_COL; i++)
#pragma unroll
            for (int b = 0; b < map::B; b++)
                cost[map::target(tid, i) + b] = (acc[i * map::B + b] & COST_BITS) | HALF;
    }

    __device__ __forceinline__ void keep_least(uint32_t t, const uint32_t acc[map::TARGETS])
    {
        uint32_t least = acc[0];

#pragma unroll
        for (int i = 1; i < map::TARGETS; i++)
            least = min(least, acc[i]);
        least = __reduce_min_sync(~0u, least);
        if (tid % 32 == 0)
            sh.least[t & 1][tid / 32] = least & COST_BITS;
    }

    /* Subtract the smallest cost from all; all threads pass a barrier. */
    __device__ __forceinline__ uint32_t subtract_least(uint32_t t)
    {
        uint32_t least = sh.least[t & 1][0];

        for (int i = 1; i < T / 32; i++)
            least = min(least, sh.least[t & 1][i]);
        for (uint32_t j = tid; j < map::N_EDGE; j += T)
            sh.cost[at][j] -= least;
        __syncthreads();
        return least;
    }

    /* n steps for the targets from x0 on (around the end); winners are kept from step `chosen` on, as those
       of step t0 and later. Returns the largest cost subtracted. All threads have passed a barrier since
       cost[at] was written, and pass one before this returns. */
    __device__ uint32_t run_every(uint32_t x0, uint32_t n, uint32_t first, uint32_t every, uint32_t chosen,
                                  uint32_t t0)
    {
        uint32_t high = 0, until = every;

        for (uint32_t t = 0; t < n; t++) {
            const float4 x = sh.at[(x0 + t) % STEPS];
            uint32_t acc[map::TARGETS];
            bool now = false;

            if (t >= chosen) {
                step<true>(x, acc);
                keep_choices(t0 + t, acc);
            } else {
                step<false>(x, acc);
            }
            keep_costs(acc);
            if (--until == 0) {
                until = every;
                now = t + 1 >= first;
            }
            if (now)
                keep_least(t, acc);
            __syncthreads();
            at ^= 1;
            if (now)
                high = max(high, subtract_least(t));
        }
        return high >> FRACTION;
    }

    /* Costs 0, or that of `edge` alone. */
    __device__ void begin(bool free, uint32_t edge)
    {
        for (uint32_t j = tid; j < map::N_EDGE; j += T)
            sh.cost[at][j] = (free || j == edge ? 0 : COST_MOST) | HALF;
        __syncthreads();
    }

    __device__ void begin_again(bool keep)
    {
        for (uint32_t j = tid; j < map::N_EDGE; j += T) {
            if (keep)
                sh.kept[j] = sh.cost[at][j];
            else
                sh.cost[at][j] = sh.kept[j];
        }
        __syncthreads();
    }

    /* Steps, and again with care when targets are too far out. */
    __device__ __forceinline__ void run(uint32_t x0, uint32_t n, uint32_t first, uint32_t chosen, uint32_t t0)
    {
        begin_again(true);
#pragma unroll 1
        for (uint32_t every = p.every; run_every(x0, n, first, every, chosen, t0) > p.cost_high && every > 1;
             every = 1)
            begin_again(false);
    }

    __device__ uint32_t cheapest()
    {
        uint32_t best = ~0u;

        for (uint32_t j = tid; j < map::N_EDGE; j += T)
            best = min(best, sh.cost[at][j] >> FRACTION << 16 | j);
        best = __reduce_min_sync(~0u, best);
        if (tid % 32 == 0)
            sh.least[0][tid / 32] = best;
        __syncthreads();
        best = sh.least[0][0];
        for (int i = 1; i < T / 32; i++)
            best = min(best, sh.least[0][i]);
        __syncthreads();
        return best & 0xffff;
    }

    /* ---- the way back ---- */

    static constexpr uint32_t FIXED = (STATE_BITS + K - 1) / K; /* steps until a state is the block's alone */

    /* The state that leads to edge j, by the choices of its step. */
    static __device__ __forceinline__ uint32_t back(const uint32_t *words, uint32_t j)
    {
        uint32_t slot;
        const uint32_t c = map::owner(j, &slot);

        return j + (words[c] >> (slot * K) & (map::N_BRANCH - 1)) * map::N_EDGE;
    }

    /* The same for step t of a block that began in edge `start`, -1: anywhere. Where every sum was saturated
       the choice may be a state that this edge cannot lead to; then the smallest that it can lead to is it. */
    static __device__ __forceinline__ uint32_t of_block(uint32_t s, uint32_t t, int start)
    {
        const uint32_t n_new = K * (t + 1); /* bits of the state that are the block's */

        if (start < 0 || n_new >= STATE_BITS)
            return s;
        const uint32_t old = (uint32_t)start & ((1u << (STATE_BITS - n_new)) - 1);

        if (s >> n_new == old)
            return s;
        return s % map::N_EDGE + ((old << n_new) >> (STATE_BITS - K)) * map::N_EDGE;
    }

    /* Back from edge j behind step n - 1 to step `to`, or to where the path of n_old steps that is known is
       met. The edge in front of the last step goes to sh.edge. */
    __device__ __forceinline__ void walk(uint32_t j, uint32_t n, uint32_t to, int start, uint32_t n_old)
    {
        uint32_t words[STRETCH], i = (n - 1) / STRETCH;

        for (int r = 0; r < STRETCH; r++)
            words[r] = choices[(i * STRETCH + r) * T + tid];
        for (;; i--) {
            const uint32_t low = max(to, i * STRETCH);

            for (int r = 0; r < STRETCH; r++)
                sh.stretch[r * T + tid] = words[r];
            __syncthreads();
            if (i * STRETCH > to)
                for (int r = 0; r < STRETCH; r++)
                    words[r] = choices[((i - 1) * STRETCH + r) * T + tid];
            if (tid == 0) {
                uint32_t t = min(n, (i + 1) * STRETCH);

                sh.stop = 0;
                for (; t > max(low, max(n_old, start < 0 ? 0 : FIXED)); t--) { /* nothing to watch there */
                    const uint32_t s = back(sh.stretch + (t - 1) % STRETCH * T, j);

                    sh.states[t - 1] = (uint16_t)s;
                    j = s >> K;
                }
                for (; t > low; t--) {
                    const uint32_t s = of_block(back(sh.stretch + (t - 1) % STRETCH * T, j), t - 1, start);

                    if (t <= n_old && sh.states[t - 1] == s) {
                        sh.stop = 1;
                        break;
                    }
                    sh.states[t - 1] = (uint16_t)s;
                    j = s >> K;
                }
                sh.edge = j;
            }
            __syncthreads();
            if (sh.stop || low == to)
                return;
        }
    }

    /* ---- a block ---- */

    /* Targets of the group that starts at q, from the errors before it. */
    __device__ void feed(const float *u, const float *w, uint32_t q)
    {
        for (uint32_t t = tid; t < q; t += T) {
            const float v = __fdiv_rn((float)paths_y(sh.states[t]), 147.800537109375f);

            sh.rest[t] = __fsub_rn(w[t], v);
        }
        __syncthreads();
        for (uint32_t t = tid; t < p.group; t += T) {
            float sum = u[q + t];

#pragma unroll 8
            for (uint32_t i = 0; i < q; i++)
                sum = __fadd_rn(sum, __fmul_rn(p.taps[i * STEPS + q + t], sh.rest[i]));
            set_x(q + t, sum);
        }
        __syncthreads();
    }

    /* The edge of the wrap first, then group by group: one loop, so that there is one copy of the steps. */
    __device__ __forceinline__ void search(uint32_t block)
    {
        const float *u = p.u + (size_t)block * STEPS;
        const uint32_t group = p.group ? p.group : STEPS;
        uint32_t edge = 0, q = 0, n_old = 0;
        bool wrap = true;

        set_targets(u);
        begin(true, 0);
#pragma unroll 1
        for (;;) {
            const uint32_t end = wrap ? 2 * p.window : q + group;

            run(wrap ? STEPS - p.window : q, end - (wrap ? 0 : q), wrap || q ? 1 : FIXED, wrap ? p.window : 0,
                wrap ? 0 : q);
            const uint32_t j = wrap || end < STEPS ? cheapest() : edge;

            walk(j, end, wrap ? p.window : 0, wrap ? -1 : (int)edge, n_old);
            if (wrap) {
                wrap = false;
                edge = sh.edge;
                begin(false, edge);
                continue;
            }
            if (end == STEPS)
                break;
            n_old = q = end;
            feed(u, p.w + (size_t)block * STEPS, q);
        }
        for (uint32_t t = tid; t < STEPS / 2; t += T)
            ((uint32_t *)(p.states + (size_t)block * STEPS))[t] = ((const uint32_t *)sh.states)[t];
        __syncthreads();
    }
};

template <int K, int T>
static __global__ void __launch_bounds__(T, T == CU_PATHS_THREADS ? 8 : 1)
    paths_kernel(const __grid_constant__ cu_paths p)
{
    extern __shared__ __align__(16) uint8_t memory[];
    paths_search<K, T> search(*(paths_shared<K, T> *)memory, p);

    for (uint32_t block = blockIdx.x; block < p.n; block += gridDim.x)
        search.search(block);
}

template <int K> static cudaError_t paths_resident(uint32_t *grid, uint32_t threads)
{
    int device = 0, n = 0, n_sm = 0;
    cudaError_t e = cudaGetDevice(&device);

    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = threads == CU_PATHS_THREADS
                ? cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, paths_kernel<K, CU_PATHS_THREADS>,
                                                                CU_PATHS_THREADS,
                                                                sizeof(paths_shared<K, CU_PATHS_THREADS>))
                : cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                      &n, paths_kernel<K, CU_PATHS_FEW_THREADS>, CU_PATHS_FEW_THREADS,
                      sizeof(paths_shared<K, CU_PATHS_FEW_THREADS>));
    *grid = (uint32_t)(n * n_sm);
    return e;
}

template <int K> static void paths_launch(cudaStream_t s, const cu_paths *p, uint32_t grid, uint32_t threads)
{
    if (threads == CU_PATHS_THREADS)
        paths_kernel<K, CU_PATHS_THREADS>
            <<<grid, threads, sizeof(paths_shared<K, CU_PATHS_THREADS>), s>>>(*p);
    else
        paths_kernel<K, CU_PATHS_FEW_THREADS>
            <<<grid, threads, sizeof(paths_shared<K, CU_PATHS_FEW_THREADS>), s>>>(*p);
}

#endif
