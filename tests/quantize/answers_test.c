/*
 * What the demo model is for survives quantizing: at 4 bits, by feedback and by trellis codes, the greedy
 * answers to the copying task and to the tool call are the golden ones, and a mixed model stays close to its
 * source.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/espalier.h"
#include "espalier/quantize.h"

static void answer(esp_engine *g, const json_t *golden, const char *key)
{
    const json_t *e = json_object_get(golden, key), *ids = json_object_get(e, "ids"),
                 *want = json_object_get(e, "output_ids");
    const esp_seq_opts so = {.sampling = {.temperature = 0, .ignore_end = true}};
    const size_t n = json_array_size(ids), n_want = json_array_size(want);
    esp_token t[512];
    esp_seq *s;
    size_t got = 0;
    esp_error err;

    assert_true(n > 0 && n <= 512 && n_want > 0);
    for (size_t i = 0; i < n; i++)
        t[i] = (esp_token)json_integer_value(json_array_get(ids, i));
    test_ok(esp_seq_open(&s, g, &so, &err), &err);
    test_ok(esp_seq_append(s, t, n, &err), &err);
    test_ok(esp_seq_generate(s, n_want, &err), &err);
    while (got < n_want) {
        esp_event ev;
        size_t k = 0;

        test_ok(esp_engine_step(g, &ev, 1, &k, &err), &err);
        if (k && ev.token >= 0) {
            if (ev.token != json_integer_value(json_array_get(want, got)))
                fail_msg("%s: token %zu is %d, the golden answer has %lld", key, got, ev.token,
                         (long long)json_integer_value(json_array_get(want, got)));
            got++;
        }
    }
    esp_seq_close(s);
}

#define SCALE (TEST_SANITIZED ? "fixed" : NULL) /* the search takes most of the time where rows are short */

static void answers(const char *method)
{
    const char *dir = test_tmpdir();
    json_t *top = test_json("models/demo-golden/goldens.json");
    const json_t *golden = json_object_get(top, "greedy");
    const esp_quantize_opts o = {
        .method = method, .bits = 4, .calib_tokens = 8192, .threads = 2, .scale = SCALE};
    const esp_engine_opts eo = {.context = 512, .max_seqs = 1};
    esp_quantize_report rep;
    esp_model *m;
    esp_engine *g;
    char out[512];
    esp_error err;

    snprintf(out, sizeof out, "%s/q", dir);
    test_ok(esp_quantize(test_path("models/demo"), out, &o, &rep, NULL, NULL, &err), &err);
    assert_true(rep.compared && rep.comparison.tokens >= 512);
    assert_true(rep.comparison.kl_mean > 0 && rep.comparison.kl_mean < 0.05);
    assert_true(rep.bpw >= 4 && rep.bpw <= 4.5 && rep.n_kept_for_size == 0);
    test_ok(esp_model_open(&m, out, NULL, &err), &err);
    test_ok(esp_engine_open(&g, m, &eo, &err), &err);
    answer(g, golden, "base.chat_copy");
    answer(g, golden, "base.chat_tool");
    esp_engine_close(g);
    esp_model_close(m);
    json_decref(top);
}

static void test_gptq(void **state)
{
    (void)state;
    if (TEST_SANITIZED)
        skip(); /* quantize.work runs the same code */
    answers("gptq");
}

static void test_trellis(void **state)
{
    (void)state;
    answers("trellis");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gptq), cmocka_unit_test(test_trellis)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
