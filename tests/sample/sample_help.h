/* Short forms that the sampler's tests share. SPDX-License-Identifier: MIT */
#ifndef ESP_TESTS_SAMPLE_HELP_H
#define ESP_TESTS_SAMPLE_HELP_H

#include "support/support.h"

#include "sample/sampler.h"

enum { MAX_HISTORY = 64 };

static inline struct esp_sample_work *make_work(uint32_t n_vocab)
{
    struct esp_sample_work *w = NULL;
    esp_error err;

    test_ok(esp_sample_work_create(&w, n_vocab, &err), &err);
    return w;
}

static inline struct esp_sampler *make_sampler(const struct esp_sample_params *p, struct esp_sample_work *w)
{
    struct esp_sampler *s = NULL;
    esp_error err;

    test_ok(esp_sampler_create(&s, p, w, MAX_HISTORY, &err), &err);
    return s;
}

static inline uint32_t draw(const struct esp_sampler *s, const float *logits, const uint64_t *allowed,
                            uint64_t position)
{
    struct esp_sample_result r = {UINT32_MAX, 0};
    esp_error err;

    test_ok(esp_sampler_draw(s, logits, allowed, position, &r, &err), &err);
    assert_true(r.n_kept >= 1);
    return r.id;
}

#endif
