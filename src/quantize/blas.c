/*
 * The library stays in the process once it was loaded: its threads do not survive being unloaded, and the
 * next matrix needs it again.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/blas.h"

#include <dlfcn.h>
#include <string.h>

static const char library_name[] = "libopenblas.so.0";

esp_status esp_blas_open(struct esp_blas *b, esp_error *err)
{
    struct esp_blas x = {.library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
    const struct {
        const char *name;
        void *place; /* a pointer to a function, which ISO C does not convert */
    } all[] = {
        {"openblas_get_num_threads", &x.get_threads},
        {"openblas_set_num_threads", &x.set_threads},
        {"cblas_sgemm", &x.sgemm},
        {"cblas_sgemv", &x.sgemv},
        {"cblas_strmm", &x.strmm},
        {"cblas_dgemm", &x.dgemm},
        {"cblas_dtrsm", &x.dtrsm},
        {"cblas_dscal", &x.dscal},
        {"dpotrf_", &x.dpotrf},
    };

    if (!x.library)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "this needs OpenBLAS, which cannot be loaded: %s; Debian has it as libopenblas0",
                        dlerror());
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *symbol = dlsym(x.library, all[i].name);

        if (!symbol) {
            dlclose(x.library);
            return esp_fail(err, ESP_EUNSUPPORTED,
                            "%s has no %s; OpenBLAS 0.3.20 or later, built with LAPACK, is needed",
                            library_name, all[i].name);
        }
        memcpy(all[i].place, &symbol, sizeof symbol);
    }
    x.threads = x.get_threads();
    x.set_threads(1);
    *b = x;
    return ESP_OK;
}

void esp_blas_close(const struct esp_blas *b)
{
    b->set_threads(b->threads);
    dlclose(b->library);
}
