/*
 * The search for trellis paths for every number of bits. SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin/paths.cuh"

cudaError_t cu_paths_grid(uint32_t *grid, uint32_t k, uint32_t threads)
{
    switch (k) {
    case 1:
        return paths_resident<1>(grid, threads);
    case 2:
        return paths_resident<2>(grid, threads);
    case 3:
        return paths_resident<3>(grid, threads);
    case 4:
        return paths_resident<4>(grid, threads);
    case 5:
        return paths_resident<5>(grid, threads);
    case 6:
        return paths_resident<6>(grid, threads);
    case 7:
        return paths_resident<7>(grid, threads);
    default:
        return paths_resident<8>(grid, threads);
    }
}

void cu_paths_start(cudaStream_t s, const struct cu_paths *p, uint32_t grid, uint32_t threads)
{
    switch (p->k) {
    case 1:
        return paths_launch<1>(s, p, grid, threads);
    case 2:
        return paths_launch<2>(s, p, grid, threads);
    case 3:
        return paths_launch<3>(s, p, grid, threads);
    case 4:
        return paths_launch<4>(s, p, grid, threads);
    case 5:
        return paths_launch<5>(s, p, grid, threads);
    case 6:
        return paths_launch<6>(s, p, grid, threads);
    case 7:
        return paths_launch<7>(s, p, grid, threads);
    default:
        return paths_launch<8>(s, p, grid, threads);
    }
}
