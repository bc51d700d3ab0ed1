/*
 * Positions: which elements of a key turn, by which axis and how far; where configs keep the numbers; YaRN.
 * The keys are read from the KV pages themselves. Trap 20, and qwen3_5 checkpoints' old-style keys.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/compare.h"

enum { N = 60, V = 97 };

static int32_t ids[N];
static double want[N * V], twisted[N * V];
static float got[N * V];

static struct naive_shape shape(uint32_t head_dim, uint32_t rotary)
{
    struct naive_shape s = mf_shape();

    s.n_layer = 2;
    s.full[0] = 1;
    s.full[1] = 1;
    s.head_dim = head_dim;
    s.rotary = rotary;
    s.section[0] = (rotary / 2 + 2) / 3;
    s.section[1] = (rotary / 2 + 1) / 3;
    s.section[2] = rotary / 2 / 3;
    return s;
}

static void close_to_naive(struct mf_model *m, void (*patch)(json_t *, json_t *))
{
    compare_logits(mf_write(m, &(struct mf_form){.patch = patch}), ids, N, got);
    if (!(compare_max(got, want, N * V) <= COMPARE_TOLERANCE))
        fail_msg("%g deviations from the naive pass", compare_max(got, want, N * V));
}

static void make(struct mf_model *m, const struct naive_shape *s, uint64_t seed)
{
    mf_make(m, s, false, seed);
    mf_tokens(ids, N, V, seed);
    naive_forward(&m->net, NAIVE_RIGHT, ids, NULL, N, want);
}

/* Keys and values of one token at position pos: [layer][kv head][K, V][head_dim]. */
static void cached(struct test_net *t, const int32_t pos[1][3], float *out)
{
    const struct esp_layout *l = &t->pools->mem.layout;
    struct compare_seq s = {.ids = ids, .pos = pos, .n = 1, .logits = got};
    const uint8_t *page;
    esp_error err;

    test_ok(esp_state_open(&s.state, t->pools, 16, 0, &err), &err);
    compare_batch(t, &s, 1);
    page = (const uint8_t *)t->pools->mem.pages->host + s.first_page * l->page_bytes;
    for (uint32_t layer = 0; layer < l->n_attn; layer++)
        for (uint32_t plane = 0; plane < 2 * l->n_kv_head; plane++)
            memcpy(out + (layer * 2 * l->n_kv_head + plane) * l->head_dim,
                   page + layer * l->page_layer + plane * l->kv_plane, l->head_dim * sizeof *out);
    esp_state_close(s.state);
}

static uint32_t axis_of(const struct naive_shape *s, uint32_t j)
{
    if (j % 3 == 1 && j < 3 * s->section[1])
        return 1;
    return j % 3 == 2 && j < 3 * s->section[2] ? 2 : 0;
}

/* Moving one axis turns exactly the pairs of that axis, by that frequency; the rest of K and all of V keep
 * their bits. */
static void check_axis(struct test_net *t, const struct naive_shape *s, uint32_t axis)
{
    const int32_t zero[1][3] = {{0, 0, 0}};
    int32_t moved[1][3] = {{0, 0, 0}};
    size_t n = (size_t)s->n_layer * 2 * s->n_kv * s->head_dim;
    float *a = calloc(2 * n, sizeof *a), *b = a + n;
    uint32_t half = s->rotary / 2;

    moved[0][axis] = 3;
    cached(t, zero, a);
    cached(t, (const int32_t(*)[3])moved, b);
    for (size_t i = 0; i < 2 * s->n_kv * s->head_dim; i++) { /* layer 0: later ones see different inputs */
        uint32_t e = (uint32_t)(i % s->head_dim), j = e % half;
        bool key = i / s->head_dim % 2 == 0, turns = key && e < s->rotary && axis_of(s, j) == axis;
        double phi = 3 * pow(s->theta, -2.0 * j / s->rotary), x = (double)a[i], y;

        if (!turns) {
            assert_memory_equal(a + i, b + i, sizeof *a);
            continue;
        }
        y = e < half ? x * cos(phi) - (double)a[i + half] * sin(phi)
                     : x * cos(phi) + (double)a[i - half] * sin(phi);
        if (!(fabs((double)b[i] - y) < 1e-5))
            fail_msg("element %u is %g instead of %g", e, (double)b[i], y);
        assert_true(phi < 1e-4 || memcmp(a + i, b + i, sizeof *a) != 0);
    }
    free(a);
}

static void trap_20_only_rotated_elements_change(void **state)
{
    static const uint32_t sizes[][2] = {{64, 16}, {64, 32}, {64, 64}, {128, 32}, {256, 64}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct naive_shape s = shape(sizes[i][0], sizes[i][1]);
        struct mf_model m;

        make(&m, &s, i);
        for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
            struct test_net t;

            if (!compare_has_level(level))
                continue;
            test_net_open(&t, (struct test_net_opts){.folder = mf_write(&m, &(struct mf_form){0}),
                                                     .kv = ESP_KV_F32,
                                                     .level = (enum esp_cpu_level)level,
                                                     .context = 256,
                                                     .max_tok = 8});
            for (uint32_t axis = 0; axis < 3; axis++)
                check_axis(&t, &s, axis);
            test_net_close(&t);
        }
        if (s.rotary < s.head_dim) {
            naive_forward(&m.net, NAIVE_ROTATE_ALL, ids, NULL, N, twisted);
            assert_true(compare_twist(twisted, want, N * V) > 30 * COMPARE_TOLERANCE);
        }
        close_to_naive(&m, NULL);
        mf_free(&m);
    }
}

/* Text, a 3 x 4 picture, text, a picture of one column, text; then the axes part by thousands. */
static void picture_positions(int32_t pos[N][3])
{
    static const uint32_t grids[][2] = {{3, 4}, {6, 1}};
    int32_t p = 0;
    uint32_t t = 0;

    for (uint32_t part = 0; part < 2; part++) {
        for (uint32_t i = 0; i < 7; i++, p++, t++)
            pos[t][0] = pos[t][1] = pos[t][2] = p;
        for (uint32_t i = 0; i < grids[part][0] * grids[part][1]; i++, t++) {
            pos[t][0] = p;
            pos[t][1] = p + (int32_t)(i / grids[part][1]);
            pos[t][2] = p + (int32_t)(i % grids[part][1]);
        }
        p += (int32_t)(grids[part][0] > grids[part][1] ? grids[part][0] : grids[part][1]);
    }
    for (; t < N; t++, p++)
        for (int a = 0; a < 3; a++)
            pos[t][a] = p + (t >= 50 ? 1000 * a : 0);
}

static void axes_are_interleaved(void **state)
{
    int32_t pos[N][3];

    (void)state;
    picture_positions(pos);
    for (uint32_t rotary = 16; rotary <= 64; rotary += 48) {
        struct naive_shape s = shape(256, rotary);
        struct test_net t;
        struct mf_model m;

        make(&m, &s, rotary);
        naive_forward(&m.net, NAIVE_MROPE_BLOCKS, ids, (const int32_t(*)[3])pos, N, twisted);
        naive_forward(&m.net, NAIVE_RIGHT, ids, (const int32_t(*)[3])pos, N, want);
        assert_true(compare_twist(twisted, want, N * V) > 30 * COMPARE_TOLERANCE);
        for (int level = 0; level < ESP_CPU_LEVEL_COUNT; level++) {
            if (!compare_has_level(level))
                continue;
            test_net_open(&t, (struct test_net_opts){.folder = mf_write(&m, &(struct mf_form){0}),
                                                     .level = (enum esp_cpu_level)level,
                                                     .context = 256,
                                                     .max_tok = N});
            for (uint32_t cut = 0; cut < 14; cut += 13) {
                compare_run(&t, ids, (const int32_t(*)[3])pos, N, cut, got);
                assert_true(compare_max(got, want, N * V) <= COMPARE_TOLERANCE);
            }
            test_net_close(&t);
        }
        mf_free(&m);
    }
}

static void partial_beside_rope(json_t *config, json_t *text)
{
    (void)config;
    json_object_set(text, "partial_rotary_factor",
                    json_object_get(json_object_get(text, "rope_parameters"), "partial_rotary_factor"));
    json_object_del(json_object_get(text, "rope_parameters"), "partial_rotary_factor");
}

static void partial_twice(json_t *config, json_t *text)
{
    (void)config;
    json_object_set(text, "partial_rotary_factor",
                    json_object_get(json_object_get(text, "rope_parameters"), "partial_rotary_factor"));
}

/* rope_theta and partial_rotary_factor beside rope_scaling, as older exports have them. */
static void old_style(json_t *config, json_t *text)
{
    json_t *rope = json_incref(json_object_get(text, "rope_parameters"));
    const char *type = json_string_value(json_object_get(rope, "rope_type"));

    partial_beside_rope(config, text);
    json_object_set(text, "rope_theta", json_object_get(rope, "rope_theta"));
    json_object_set_new(rope, "type", json_string(type));
    json_object_del(rope, "rope_theta");
    json_object_del(rope, "rope_type");
    json_object_set_new(text, "rope_scaling", rope);
    json_object_del(text, "rope_parameters");
}

static void no_rope_at_all(json_t *config, json_t *text)
{
    (void)config;
    json_object_del(text, "rope_parameters");
}

static void rope_in_every_place(void **state)
{
    static void (*const patches[])(json_t *, json_t *) = {NULL, partial_beside_rope, partial_twice,
                                                          old_style};

    (void)state;
    for (uint32_t rotary = 16; rotary <= 32; rotary += 16) { /* 0.5 of 64: no default could guess it */
        struct naive_shape s = shape(64, rotary);
        struct mf_model m;

        s.theta = rotary == 16 ? 1e7 : 5000;
        make(&m, &s, rotary);
        for (size_t i = 0; i < sizeof patches / sizeof patches[0]; i++)
            close_to_naive(&m, patches[i]);
        compare_refused(mf_write(&m, &(struct mf_form){.patch = no_rope_at_all}), ESP_EFORMAT, "rope");
        mf_free(&m);
    }
}

/* Factors and lengths whose ramp ends inside, at the borders of, and outside the frequencies. */
static void yarn_follows_the_formula(void **state)
{
    static const double cases[][3] = {{4, 4096, 1e4}, {2, 262144, 1e7}, {8, 64, 1e4}, {1.5, 1024, 500}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct naive_shape s = shape(256, 64);
        struct mf_model m;

        s.yarn_factor = cases[i][0];
        s.yarn_original = cases[i][1];
        s.theta = cases[i][2];
        make(&m, &s, 50 + i);
        naive_forward(&m.net, NAIVE_YARN_OFF, ids, NULL, N, twisted);
        assert_true(compare_twist(twisted, want, N * V) > 30 * COMPARE_TOLERANCE);
        close_to_naive(&m, NULL);
        close_to_naive(&m, old_style);
        m.net.shape.yarn_factor = 0;
        naive_forward(&m.net, NAIVE_RIGHT, ids, NULL, N, twisted);
        assert_true(compare_twist(twisted, want, N * V) > 30 * COMPARE_TOLERANCE);
        mf_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trap_20_only_rotated_elements_change),
        cmocka_unit_test(axes_are_interleaved),
        cmocka_unit_test(rope_in_every_place),
        cmocka_unit_test(yarn_follows_the_formula),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
