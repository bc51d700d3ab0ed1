/* The schemes that tests of cached keys and values go through. SPDX-License-Identifier: MIT */
#ifndef ESP_TESTS_KV_SCHEMES_H
#define ESP_TESTS_KV_SCHEMES_H

#include "support/support.h"

#include "formats/kv.h"

static const char *const every_scheme[] = {
    "q8",
    "q8:g32",
    "q8:g128",
    "q6",
    "q6:g32",
    "q4",
    "q4:g32",
    "q4:g128",
    "turbo:k8v8",
    "turbo:k8v5",
    "turbo:k8v4",
    "turbo",
    "turbo:k8v2",
    "turbo:k5v5",
    "turbo:k4v4",
    "turbo:k4v3",
    "turbo:k2v2",
    "turbo:k8v3:least",
    "turbo:k8v3:own",
    "turbo:k8v8:own",
    "turbo:k5v5:own",
    "turbo:k4v4:own",
    "turbo:k2v2:own",
    "turbo:k2v2:least",
};
enum { N_SCHEME = sizeof every_scheme / sizeof every_scheme[0] };

static inline struct esp_kv_scheme scheme(const char *name)
{
    struct esp_kv_scheme s;
    esp_error err;

    test_ok(esp_kv_parse(&s, name, &err), &err);
    return s;
}

#endif
