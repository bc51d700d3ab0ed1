/*
 * Loading the CUDA backend at run time. It is a shared object of its own, so that the library neither links
 * nor needs CUDA; whoever asks for a CUDA device without one learns what is missing. The object stays loaded:
 * the CUDA runtime in it does not survive being unloaded.
 *
 * SPDX-License-Identifier: MIT
 */
#include "backend/cuda/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };
static const char FILE_NAME[] = "espalier_cuda.so";

/* The folder of whatever file this code was loaded from, with its slash; empty when the loader does not know.
 */
static size_t own_folder(char *out)
{
    const char *slash;
    size_t len;
    Dl_info info;

    if (!dladdr(FILE_NAME, &info) || !info.dli_fname)
        return 0;
    slash = strrchr(info.dli_fname, '/');
    len = slash ? (size_t)(slash - info.dli_fname) + 1 : 0;
    if (len >= PATH_BYTES)
        return 0;
    memcpy(out, info.dli_fname, len);
    return len;
}

/* The first file that exists: beside us, or where an installation puts it; else the bare name for the
 * loader's path. */
static void find(char *out)
{
    static const char *const places[] = {"", "espalier/", "../lib/espalier/", "../lib/"};
    size_t len = own_folder(out);

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        int n = snprintf(out + len, PATH_BYTES - len, "%s%s", places[i], FILE_NAME);

        if (len && n > 0 && (size_t)n < PATH_BYTES - len && access(out, R_OK) == 0)
            return;
    }
    memcpy(out, FILE_NAME, sizeof FILE_NAME);
}

esp_status esp_cuda_open(struct esp_dev **out, uint32_t index, esp_error *err)
{
    const struct esp_cuda_key key = esp_cuda_key();
    const char *path = getenv("ESPALIER_CUDA_LIBRARY");
    char found[PATH_BYTES];
    esp_cuda_plugin_fn entry;
    void *library;

    if (!path || !*path) {
        find(found);
        path = found;
    }
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return esp_fail(err, ESP_EDEVICE,
                        "the CUDA backend cannot be loaded: %s; build it with make build CUDA=1, or set "
                        "ESPALIER_CUDA_LIBRARY to its path",
                        dlerror());
    *(void **)(void *)&entry = dlsym(library, ESP_CUDA_ENTRY);
    if (!entry)
        return esp_fail(err, ESP_EDEVICE, "%s is not a CUDA backend of espalier: it has no %s", path,
                        ESP_CUDA_ENTRY);
    return entry(out, &key, index, err);
}
