/* What tests of an engine over tiny-text share. SPDX-License-Identifier: MIT */
#ifndef ESP_TESTS_ENGINE_HELP_H
#define ESP_TESTS_ENGINE_HELP_H

#include "support/support.h"

#include "espalier/espalier.h"

static esp_model *model;
static uint64_t rng = 17;

static inline uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

/* Group set-up and tear-down: `model` is tiny-text on one thread. */
static int open_model(void **state)
{
    esp_error err;

    (void)state;
    test_ok(esp_model_open(&model, test_path("models/tiny-text"), &(esp_model_opts){.threads = 1}, &err),
            &err);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    esp_model_close(model);
    return 0;
}

/* Run until nothing is armed; calls fn for each event. */
static inline void run_all(esp_engine *g, void (*fn)(void *, const esp_event *), void *user)
{
    esp_stats st;

    for (int i = 0;; i++) {
        esp_event e[8];
        size_t n;
        esp_error err;

        test_ok(esp_engine_step(g, e, 8, &n, &err), &err);
        for (size_t j = 0; j < n; j++)
            fn(user, &e[j]);
        esp_engine_stats(g, &st);
        if (n == 0 && st.rows_active + st.rows_waiting == 0)
            return;
        assert_true(i < 100000);
    }
}

#endif
