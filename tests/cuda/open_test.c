/*
 * What someone without a usable CUDA device is told. Runs everywhere: a machine with a device skips only what
 * it cannot show.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>

#include "backend/backend.h"

static void test_no_library(void **state)
{
    struct esp_dev *d = NULL;
    esp_error err;

    (void)state;
    setenv("ESPALIER_CUDA_LIBRARY", "/nonexistent/espalier_cuda.so", 1);
    test_refused(esp_cuda_open(&d, 0, &err), ESP_EDEVICE, &err, "/nonexistent/espalier_cuda.so");
    assert_null(d);
    unsetenv("ESPALIER_CUDA_LIBRARY");
}

static void test_other_library(void **state)
{
    struct esp_dev *d = NULL;
    esp_error err;

    (void)state;
    setenv("ESPALIER_CUDA_LIBRARY", "libm.so.6", 1);
    test_refused(esp_cuda_open(&d, 0, &err), ESP_EDEVICE, &err, "not a CUDA backend");
    assert_null(d);
    unsetenv("ESPALIER_CUDA_LIBRARY");
}

/* A device that is not there, whatever the reason: a sentence, no crash. */
static void test_no_device(void **state)
{
    struct esp_dev *d = NULL;
    esp_error err;

    (void)state;
    test_refused(esp_cuda_open(&d, 999, &err), ESP_EDEVICE, &err, "CUDA");
    printf("%s\n", err.message);
    assert_null(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_library),
        cmocka_unit_test(test_other_library),
        cmocka_unit_test(test_no_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
