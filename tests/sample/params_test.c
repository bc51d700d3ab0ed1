/*
 * Ranges of the sampling parameters (field case 26): what is refused is named with its field and the accepted
 * range. SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <string.h>

#include "sample/sampler.h"

static void test_param_ranges(void **state)
{
    const struct {
        const char *name;
        size_t at;
        double good[3], bad[4];
    } real[] = {
        {"temperature",
         offsetof(struct esp_sample_params, temperature),
         {0, 1e-6, 5},
         {-1e-9, 5.001, NAN, INFINITY}},
        {"top_p", offsetof(struct esp_sample_params, top_p), {1e-9, 0.5, 1}, {0, 1.0001, NAN, -INFINITY}},
        {"min_p", offsetof(struct esp_sample_params, min_p), {0, 0.5, 1}, {-0.1, 1.0001, NAN, INFINITY}},
        {"typical_p",
         offsetof(struct esp_sample_params, typical_p),
         {1e-9, 0.5, 1},
         {0, 1.0001, NAN, INFINITY}},
        {"repetition_penalty",
         offsetof(struct esp_sample_params, repetition_penalty),
         {0.1, 1, 2},
         {0, 2.1, NAN, -1}},
        {"presence_penalty",
         offsetof(struct esp_sample_params, presence_penalty),
         {-2, 0, 2},
         {-2.1, 2.1, NAN, INFINITY}},
        {"frequency_penalty",
         offsetof(struct esp_sample_params, frequency_penalty),
         {-2, 0, 2},
         {-2.1, 2.1, NAN, INFINITY}},
        {"xtc_probability",
         offsetof(struct esp_sample_params, xtc_probability),
         {0, 0.5, 1},
         {-0.1, 1.1, NAN, INFINITY}},
        {"xtc_threshold",
         offsetof(struct esp_sample_params, xtc_threshold),
         {0, 0.5, 1},
         {-0.1, 1.1, NAN, INFINITY}},
        {"dry_multiplier",
         offsetof(struct esp_sample_params, dry_multiplier),
         {0, 0.8, 100},
         {-0.1, 100.1, NAN, INFINITY}},
        {"dry_base", offsetof(struct esp_sample_params, dry_base), {1, 1.75, 100}, {0.9, 101, NAN, INFINITY}},
    };
    struct esp_sample_params p;
    esp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
        esp_sample_params_init(&p);
        for (int k = 0; k < 3; k++) {
            memcpy((char *)&p + real[i].at, &real[i].good[k], sizeof(double));
            test_ok(esp_sample_params_check(&p, 10, &err), &err);
        }
        for (int k = 0; k < 4; k++) {
            memcpy((char *)&p + real[i].at, &real[i].bad[k], sizeof(double));
            test_refused(esp_sample_params_check(&p, 10, &err), ESP_EINVAL, &err, real[i].name);
        }
    }
    esp_sample_params_init(&p);
    p.top_k = -1;
    test_ok(esp_sample_params_check(&p, 10, &err), &err);
    p.top_k = INT64_MAX;
    test_ok(esp_sample_params_check(&p, 10, &err), &err);
    p.top_k = -2;
    test_refused(esp_sample_params_check(&p, 10, &err), ESP_EINVAL, &err, "top_k: -2");
    p.top_k = 0;
    p.min_tokens = -1;
    test_refused(esp_sample_params_check(&p, 10, &err), ESP_EINVAL, &err, "min_tokens");
    p.min_tokens = 0;
    p.dry_allowed_length = 0;
    test_refused(esp_sample_params_check(&p, 10, &err), ESP_EINVAL, &err, "dry_allowed_length");
    p.dry_allowed_length = 1;
    p.dry_context_size = -1;
    test_refused(esp_sample_params_check(&p, 10, &err), ESP_EINVAL, &err, "dry_context_size");
    p.dry_context_size = 0;
    p.frequency_context_size = -5;
    test_refused(esp_sample_params_check(&p, 10, &err), ESP_EINVAL, &err, "frequency_context_size");
    test_refused(esp_sample_params_check(&p, 0, &err), ESP_EINVAL, &err, "vocabulary");
}

static void test_bias_refusals(void **state)
{
    static struct esp_sample_bias many[ESP_SAMPLE_MAX_BIAS + 1];
    static uint32_t ends[ESP_SAMPLE_MAX_END + 1];
    struct esp_sample_params p;
    esp_error err;

    (void)state;
    esp_sample_params_init(&p);
    for (uint32_t i = 0; i < ESP_SAMPLE_MAX_BIAS + 1; i++)
        many[i] =
            (struct esp_sample_bias){i * 8192u, 1}; /* equal low bits: the duplicate search must still end */
    p.bias = many;
    p.n_bias = ESP_SAMPLE_MAX_BIAS;
    test_refused(esp_sample_params_check(&p, 4000000, &err), ESP_EINVAL, &err, "no token has id 4005888");
    for (uint32_t i = 0; i < ESP_SAMPLE_MAX_BIAS + 1; i++)
        many[i].id = i;
    test_ok(esp_sample_params_check(&p, 4096, &err), &err);
    p.n_bias++;
    test_refused(esp_sample_params_check(&p, 5000, &err), ESP_EINVAL, &err, "4097 entries");
    p.n_bias--;
    many[4095].id = 17;
    test_refused(esp_sample_params_check(&p, 5000, &err), ESP_EINVAL, &err, "id 17 is given twice");
    many[4095].id = 4095;
    many[5].bias = NAN;
    test_refused(esp_sample_params_check(&p, 5000, &err), ESP_EINVAL, &err, "for id 5");
    many[5].bias = 100.5f;
    test_refused(esp_sample_params_check(&p, 5000, &err), ESP_EINVAL, &err, "[-100, 100]");
    esp_sample_params_init(&p);
    p.end_ids = ends;
    p.n_end = ESP_SAMPLE_MAX_END + 1;
    test_refused(esp_sample_params_check(&p, 5000, &err), ESP_EINVAL, &err, "65 end tokens");
    p.n_end = 2;
    ends[1] = 5000;
    test_refused(esp_sample_params_check(&p, 5000, &err), ESP_EINVAL, &err, "no token has id 5000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_param_ranges),
        cmocka_unit_test(test_bias_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
