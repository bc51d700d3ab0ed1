/*
 * Choosing how keys and values are kept: names and files, what is refused and why, what the memory plan says,
 * and that schemes do not share cached texts.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "engine/kv.h"
#include "espalier/espalier.h"

static esp_model *model;

static int open_model(void **state)
{
    esp_error err;

    (void)state;
    test_ok(esp_model_open(&model, test_path("models/demo"), &(esp_model_opts){.threads = 1}, &err), &err);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    esp_model_close(model);
    return 0;
}

static esp_memory_plan plan_of(const char *kv)
{
    esp_memory_plan p;
    esp_error err;

    test_ok(esp_engine_plan(model, &(esp_engine_opts){.context = 1024, .kv = kv}, &p, &err), &err);
    return p;
}

/* demo: 2 attention layers of one KV head of 256. */
static void test_plan(void **state)
{
    static const struct {
        const char *kv;
        uint64_t bytes;
    } want[] = {{NULL, 2048},    {"f32", 4096},  {"q8", 1088},        {"q6", 832},        {"q4", 576},
                {"q4:g32", 640}, {"turbo", 800}, {"turbo:k8v4", 864}, {"turbo:k2v2", 352}};

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const esp_memory_plan p = plan_of(want[i].kv);

        assert_int_equal(p.kv_per_token, want[i].bytes);
        assert_int_equal(p.kv_pool, want[i].bytes * 1024);
        assert_int_equal(p.total - p.kv_pool, plan_of(NULL).total - plan_of(NULL).kv_pool);
    }
}

/* Exact first positions cost what they take as bf16, in whole pages, for each sequence that may hold some. */
static void test_start(void **state)
{
    enum { PAGE = 800 * 256, ROWS = PAGE / 2048 };
    esp_engine_opts o = {.context = 1024, .kv = "turbo", .kv_start = 250, .max_seqs = 2, .kv_tokens = 4096};
    esp_memory_plan p;
    esp_error err;

    (void)state;
    test_ok(esp_engine_plan(model, &o, &p, &err), &err);
    assert_int_equal(p.kv_per_token, 800);
    assert_int_equal(p.kv_start, (250 + ROWS - 1) / ROWS * PAGE);
    assert_int_equal(p.kv_pool, 4096 * 800 + 2 * p.kv_start);
    o.kv_start = 600; /* in place of two coded pages */
    test_ok(esp_engine_plan(model, &o, &p, &err), &err);
    assert_int_equal(p.kv_pool, 4096 * 800 + 2 * (p.kv_start - 2 * PAGE));
    o.kv = "bf16";
    test_ok(esp_engine_plan(model, &o, &p, &err), &err);
    assert_int_equal(p.kv_start, 0);
    assert_int_equal(p.kv_pool, 4096 * 2048);
    o.kv_start = 1025;
    test_refused(esp_engine_plan(model, &o, &p, &err), ESP_EINVAL, &err,
                 "kv_start 1025; at most the context, 1024");
}

/* demo: 6 recurrent layers; see formats/recurrent.h. */
static void test_state(void **state)
{
    static const char *const names[] = {"f32", "bf16", "q8"};
    const esp_memory_plan plain = plan_of(NULL);
    esp_memory_plan p[3];
    uint64_t s;
    esp_error err;

    (void)state;
    for (int i = 0; i < 3; i++)
        test_ok(esp_engine_plan(model, &(esp_engine_opts){.context = 1024, .state = names[i]}, &p[i], &err),
                &err);
    assert_int_equal(p[0].total, plain.total);
    s = (p[0].state_per_seq - p[1].state_per_seq) *
        2; /* S of all layers as f32; the rest is the convolutions' */
    assert_true(s > p[0].state_per_seq / 2);
    assert_int_equal(p[0].state_per_seq - p[2].state_per_seq, s - s / 64 * 25); /* 12.5 bits of 32 */
    assert_true(p[2].state_pool < p[1].state_pool && p[1].state_pool < p[0].state_pool);
    test_refused(esp_engine_plan(model, &(esp_engine_opts){.state = "q4"}, &p[0], &err), ESP_EINVAL, &err,
                 "accepted: f32, bf16, q8");
    test_refused(esp_engine_plan(model, &(esp_engine_opts){.state = "q8", .device = "cuda"}, &p[0], &err),
                 ESP_EUNSUPPORTED, &err, "state q8 is for device cpu");
}

static const char *config(const char *text)
{
    return test_write(test_tmpdir(), "kv_config.json", text, strlen(text));
}

static void test_file(void **state)
{
    (void)state;
    assert_int_equal(plan_of(config("[]")).kv_per_token, 2048);
    assert_int_equal(plan_of(config("[{\"layer_idx\":3,\"bits\":8,\"group_size\":64}]")).kv_per_token,
                     1024 + 544);
    assert_int_equal(plan_of(config("[{\"layer_idx\":7,\"bits\":4,\"group_size\":32,\"note\":1},"
                                    "{\"layer_idx\":3,\"scheme\":\"turbo:k4v4\"}]"))
                         .kv_per_token,
                     320 + 304);
    assert_int_equal(plan_of(config("[{\"layer_idx\":3,\"scheme\":\"f32\"}]")).kv_per_token, 2048 + 1024);
}

static void refuse(const char *kv, esp_status status, const char *part)
{
    esp_memory_plan p;
    esp_engine *g = NULL;
    esp_error err;

    test_refused(esp_engine_plan(model, &(esp_engine_opts){.kv = kv}, &p, &err), status, &err, part);
    test_refused(esp_engine_open(&g, model, &(esp_engine_opts){.kv = kv}, &err), status, &err, part);
    assert_null(g);
}

static void test_refusals(void **state)
{
    esp_memory_plan p;
    esp_error err;

    (void)state;
    refuse("q3", ESP_EINVAL, "accepted: bf16, f32, q8");
    refuse("turbo:k3v3", ESP_EINVAL, "turbo:k3v3");
    refuse("no/such.json", ESP_ENOTFOUND, "no/such.json");
    refuse(config("{}"), ESP_EINVAL, "an array");
    refuse(config("[{\"bits\":8}]"), ESP_EINVAL, "one of 0 to 7");
    refuse(config("[{\"layer_idx\":8,\"bits\":8}]"), ESP_EINVAL, "one of 0 to 7");
    refuse(config("[{\"layer_idx\":2,\"bits\":8}]"), ESP_EINVAL, "layer 2 is recurrent");
    refuse(config("[{\"layer_idx\":3,\"bits\":8},{\"layer_idx\":3,\"bits\":4}]"), ESP_EINVAL,
           "entry 1: layer 3");
    refuse(config("[{\"layer_idx\":3,\"bits\":3,\"group_size\":64}]"), ESP_EINVAL, "q3:g64");
    refuse(config("[{\"layer_idx\":3,\"bits\":\"8\"}]"), ESP_EINVAL, "numbers");
    test_refused(
        esp_engine_plan(model, &(esp_engine_opts){.kv = "turbo", .kv_start = 9, .device = "cuda"}, &p, &err),
        ESP_EUNSUPPORTED, &err, "from the first position on; kv_start 9 is for device cpu");
}

/* Layouts whose bytes differ have different names. */
static void test_names(void **state)
{
    struct esp_layout a = {.n_attn = 2, .n_kv_head = 1, .head_dim = 256}, b = a;
    struct esp_config c = {.n_layer = 4, .n_full = 2, .is_full = {0, 1, 0, 1}};
    char x[ESP_KV_NAME], y[ESP_KV_NAME];
    esp_error err;

    (void)state;
    test_ok(esp_kv_choose(&a, &c, "turbo", &err), &err);
    esp_kv_describe(&a, x);
    assert_string_equal(x, "turbo:k8v3");
    test_ok(
        esp_kv_choose(&a, &c, config("[{\"layer_idx\":1,\"bits\":8},{\"layer_idx\":3,\"bits\":8}]"), &err),
        &err);
    esp_kv_describe(&a, x);
    assert_string_equal(x, "q8");
    test_ok(esp_kv_choose(&a, &c, config("[{\"layer_idx\":1,\"bits\":8}]"), &err), &err);
    test_ok(esp_kv_choose(&b, &c, config("[{\"layer_idx\":3,\"bits\":8}]"), &err), &err);
    esp_kv_describe(&a, x);
    esp_kv_describe(&b, y);
    assert_true(strncmp(x, "mixed-", 6) == 0 && strncmp(y, "mixed-", 6) == 0);
    assert_string_not_equal(x, y);
    test_ok(esp_kv_choose(&a, &c, NULL, &err), &err);
    esp_kv_describe(&a, x);
    assert_string_equal(x, "bf16");
    a.head_dim = 80;
    test_ok(esp_kv_choose(&a, &c, "turbo", &err), &err);
    test_refused(esp_layout_finish(&a, &err), ESP_EUNSUPPORTED, &err, "heads of 80");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plan),     cmocka_unit_test(test_file),
                                       cmocka_unit_test(test_start),    cmocka_unit_test(test_state),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_names)};

    return cmocka_run_group_tests(tests, open_model, close_model);
}
