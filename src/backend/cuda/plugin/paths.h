/*
 * The border between the search for trellis paths on a device and its host side: see backend/paths.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BACKEND_CUDA_PLUGIN_PATHS_H
#define ESP_BACKEND_CUDA_PLUGIN_PATHS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "backend/paths.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CU_PATHS_STEPS = 256,
    CU_PATHS_THREADS = 64,      /* of a block where there are many */
    CU_PATHS_FEW_THREADS = 128, /* of a block where there are few */
    CU_PATHS_TAPS = 256 * 256
};

struct cu_paths { /* pointers into device memory */
    uint32_t k, window, every, cost_high, n_range, n, group;
    struct esp_paths_range range[ESP_PATHS_RANGES];
    const float *u, *w; /* [n][256] */
    const float *taps;  /* [256][256] */
    uint16_t *states;   /* [n][256] */
    uint32_t *choices;  /* [grid][256][threads] which m won, see paths.cuh */
};

/* Blocks of threads that are resident at once on the current device. */
cudaError_t cu_paths_grid(uint32_t *grid, uint32_t k, uint32_t threads);
/* Search with `grid` blocks of `threads` threads each: CU_PATHS_THREADS or CU_PATHS_FEW_THREADS. */
void cu_paths_start(cudaStream_t s, const struct cu_paths *p, uint32_t grid, uint32_t threads);

#ifdef __cplusplus
}
#endif
#endif
