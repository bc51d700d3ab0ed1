/*
 * Prefixes, norm layout, tied heads: on checkpoints written for each case.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "io/checkpoint.h"
#include "io/names.h"

static void test_demo(void **state)
{
    struct esp_checkpoint *c = NULL;
    const struct esp_st_tensor *t = NULL;
    struct esp_names n;
    esp_error err;

    (void)state;
    test_ok(esp_checkpoint_open(&c, test_path("models/demo"), &err), &err);
    test_ok(esp_names_resolve(&n, c, &err), &err);
    assert_string_equal(n.prefix[ESP_PART_TEXT], "model.language_model.");
    assert_string_equal(n.prefix[ESP_PART_MTP], "mtp.");
    assert_null(n.set[ESP_PART_VISION]);
    assert_int_equal(n.conv, ESP_CONV_C1K);
    assert_false(n.norms_shifted);
    assert_false(n.mtp_norms_shifted);
    assert_true(n.tied);
    test_ok(esp_names_need(&t, &n, ESP_PART_TEXT, &err, "layers.%d.mlp.up_proj.weight", 3), &err);
    assert_int_equal(t->shape[0], 1024);
    assert_int_equal(t->shape[1], 256);
    assert_non_null(esp_names_find(&n, ESP_PART_MTP, "fc.weight"));
    test_refused(esp_names_need(&t, &n, ESP_PART_TEXT, &err, "layers.%d.mlp.up_proj.weight", 8),
                 ESP_ENOTFOUND, &err, "model.language_model.layers.8.mlp.up_proj.weight");
    assert_int_equal(c->warnings.n, 0);
    esp_checkpoint_close(c);
}

static void test_tiny(void **state)
{
    struct esp_checkpoint *c = NULL;
    struct esp_names n;
    esp_error err;

    (void)state;
    test_ok(esp_checkpoint_open(&c, test_path("models/tiny-text"), &err), &err);
    test_ok(esp_names_resolve(&n, c, &err), &err);
    assert_false(n.tied);
    assert_non_null(esp_names_find(&n, ESP_PART_HEAD, "weight"));
    assert_null(n.set[ESP_PART_MTP]);
    assert_int_equal(c->warnings.n, 0);
    esp_checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo),
        cmocka_unit_test(test_tiny),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
