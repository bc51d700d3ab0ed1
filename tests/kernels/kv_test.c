/*
 * Stored vectors of attention over coded keys and values, through the kernels of every level: TurboQuant rows
 * as published, with the result turned back once, and affine rows under a causal mask.
 *
 * SPDX-License-Identifier: MIT
 */
#include "formats/hex.h"
#include "kernels/each_level.h"

#include <math.h>

#include "base/mem.h"
#include "formats/kv.h"

enum { MAX_POS = 8, MAX_DIM = 128 };

struct rows {
    struct esp_kv_scheme scheme;
    uint32_t dim, n;
    size_t k_row, v_row;
    uint8_t k[MAX_POS * 512], v[MAX_POS * 512];
};

static struct rows make(const char *name, uint32_t dim, uint32_t n)
{
    struct rows r = {.dim = dim, .n = n};
    esp_error err;

    assert_true(n <= MAX_POS && dim <= MAX_DIM);
    test_ok(esp_kv_parse(&r.scheme, name, &err), &err);
    test_ok(esp_kv_check(&r.scheme, dim, &err), &err);
    r.k_row = esp_kv_key_bytes(&r.scheme, dim);
    r.v_row = esp_kv_value_bytes(&r.scheme, dim);
    return r;
}

/* Planes of one row, one behind the other. */
static void join(uint8_t *row, size_t want, const json_t *a, const json_t *b, const json_t *c)
{
    size_t n = hex_bytes(a, row, 512);

    n += hex_bytes(b, row + n, 512 - n);
    n += c ? hex_bytes(c, row + n, 512 - n) : 0;
    assert_int_equal(n, want);
}

/* One query over the first n_seen rows; out is in the head's own basis, rotated as the sums are. */
static void attend(const struct esp_kernels *k, const struct rows *r, float *q, double scale, uint32_t n_seen,
                   float *rotated, float *out)
{
    float *scratch = esp_alloc_aligned(esp_attend_scratch_floats(1) * sizeof(float), 64);
    float m = -INFINITY, l = 0;
    struct esp_attend a = {.k = r->k,
                           .v = r->v,
                           .scheme = &r->scheme,
                           .head_dim = r->dim,
                           .n_query = 1,
                           .q = q,
                           .ldq = r->dim,
                           .n_visible = &n_seen,
                           .m = &m,
                           .l = &l,
                           .acc = rotated,
                           .ld_acc = r->dim};

    assert_non_null(scratch);
    for (uint32_t i = 0; i < r->dim; i++) {
        q[i] = (float)((double)q[i] * scale);
        rotated[i] = 0;
    }
    k->attend_codes(&a, scratch);
    for (uint32_t i = 0; i < r->dim; i++)
        out[i] = rotated[i] = rotated[i] / l;
    esp_kv_unrotate(&r->scheme, r->dim, out);
    esp_free_aligned(scratch);
}

static void near(const struct esp_kernels *k, const char *what, const json_t *want, const float *got,
                 uint32_t n, double tolerance)
{
    assert_int_equal(json_array_size(want), n);
    for (uint32_t i = 0; i < n; i++) {
        const double w = json_number_value(json_array_get(want, i));

        if (!(fabs((double)got[i] - w) <= tolerance))
            fail_msg("%s %s: element %u is %.9g, not %.9g", k->isa, what, i, (double)got[i], w);
    }
}

static void turbo(const struct esp_kernels *k)
{
    json_t *file = test_json("tests/data/vectors/turboquant/attention.json"), *c, *e;
    size_t i, t;

    assert_int_equal(json_array_size(json_object_get(file, "cases")), 3);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const double tolerance = json_number_value(json_object_get(c, "tolerance_abs"));
        char name[ESP_KV_NAME];
        struct rows r;

        snprintf(name, sizeof name, "turbo:k%uv%u", json_u32(c, "k_bits"), json_u32(c, "v_bits"));
        r = make(name, json_u32(c, "head_dim"), json_u32(c, "tokens"));
        json_array_foreach(json_object_get(c, "encoded"), t, e)
        {
            join(r.k + t * r.k_row, r.k_row, json_object_get(e, "k_packed"),
                 json_object_get(e, "k_scale_f16"), json_object_get(e, "k_zero_f16"));
            join(r.v + t * r.v_row, r.v_row, json_object_get(e, "v_packed"),
                 json_object_get(e, "v_scale_f16"), NULL);
        }
        json_array_foreach(json_object_get(c, "rows"), t, e)
        {
            float q[MAX_DIM], rotated[MAX_DIM], out[MAX_DIM];

            hex_floats(json_array_get(json_object_get(c, "q_bf16"), t), ESP_SCALE_BF16, q, MAX_DIM);
            attend(k, &r, q, json_number_value(json_object_get(c, "scale")), r.n, rotated, out);
            near(k, name, json_object_get(e, "out_rotated"), rotated, r.dim, tolerance);
            near(k, name, json_object_get(e, "out"), out, r.dim, tolerance);
        }
    }
    json_decref(file);
}

static const json_t *at(const json_t *list, size_t i, size_t j)
{
    return json_array_get(json_array_get(list, i), j);
}

static void affine_head(const struct esp_kernels *k, const json_t *c, uint32_t head, const char *name)
{
    const uint32_t queries = json_u32(c, "queries"), keys = json_u32(c, "keys");
    const uint32_t kv = head / (json_u32(c, "q_heads") / json_u32(c, "kv_heads"));
    struct rows r = make(name, json_u32(c, "head_dim"), keys);

    for (uint32_t t = 0; t < keys; t++) {
        const json_t *x = json_object_get(c, "k"), *y = json_object_get(c, "v");

        join(r.k + t * r.k_row, r.k_row, at(json_object_get(x, "packed"), kv, t),
             at(json_object_get(x, "scales"), kv, t), at(json_object_get(x, "biases"), kv, t));
        join(r.v + t * r.v_row, r.v_row, at(json_object_get(y, "packed"), kv, t),
             at(json_object_get(y, "scales"), kv, t), at(json_object_get(y, "biases"), kv, t));
    }
    for (uint32_t i = 0; i < queries; i++) {
        float q[MAX_DIM], rotated[MAX_DIM], out[MAX_DIM];

        hex_floats(at(json_object_get(c, "q"), head, i), ESP_SCALE_BF16, q, MAX_DIM);
        attend(k, &r, q, json_number_value(json_object_get(c, "scale")), keys - queries + i + 1, rotated,
               out);
        near(k, name, at(json_object_get(c, "out"), head, i), out, r.dim,
             json_number_value(json_object_get(c, "tolerance_abs")));
    }
}

static void affine(const struct esp_kernels *k)
{
    json_t *file = test_json("tests/data/vectors/affine/attention.json"), *c;
    size_t i;

    assert_int_equal(json_array_size(json_object_get(file, "cases")), 3);
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        char name[ESP_KV_NAME];

        snprintf(name, sizeof name, "q%u:g%u", json_u32(c, "bits"), json_u32(c, "group_size"));
        for (uint32_t h = 0; h < json_u32(c, "q_heads"); h++)
            affine_head(k, c, h, name);
    }
    json_decref(file);
}

static void test_turbo(void **state)
{
    (void)state;
    each_level(turbo);
}

static void test_affine(void **state)
{
    (void)state;
    each_level(affine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turbo), cmocka_unit_test(test_affine)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
