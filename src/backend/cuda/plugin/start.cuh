/*
 * Launches that may begin before the kernel ahead of them has ended: between small kernels the launch itself
 * is most of the time. A kernel started this way begins with cu_let_next_start() and cu_wait_for_inputs(),
 * before any return and before it reads or writes what others do: then a kernel that has ended means that all
 * before it have.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_START_CUH
#define ESP_BACKEND_CUDA_PLUGIN_START_CUH

#include <stdlib.h>

#include "backend/cuda/plugin/device.cuh"

/* An attribute of the current device; 0 where it cannot be asked. */
static inline int cu_attribute(cudaDeviceAttr what)
{
    int device = 0, value = 0;

    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&value, what, device) != cudaSuccess)
        return 0;
    return value;
}

/* Whether the current device knows programmatic launches; ESPALIER_CUDA_EARLY=0 does without, to find faults.
 */
static inline int cu_knows_early(void)
{
    const char *wanted = getenv("ESPALIER_CUDA_EARLY");

    return !(wanted && wanted[0] == '0') && cu_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

/* Bytes of shared memory that a block of the current device can have. */
static inline uint32_t cu_most_shared(void)
{
    return (uint32_t)cu_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

static inline uint32_t cu_multiprocessors(void)
{
    return (uint32_t)cu_attribute(cudaDevAttrMultiProcessorCount);
}

template <class... P, class... A>
static void cu_start(cudaStream_t s, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A &&...args)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = s;
    c.attrs = &early;
    c.numAttrs = cu_knows_early() ? 1 : 0;
    cudaLaunchKernelEx(&c, kernel, static_cast<A &&>(args)...);
}

#endif
