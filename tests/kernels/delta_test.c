/*
 * The gated delta rule through open chunks, at every level and every cut, against the recurrence: stored
 * cases, a hand computed one, decays that would overflow a careless form, large norms, and drift over a long
 * sequence.
 *
 * SPDX-License-Identifier: MIT
 */
#include "kernels/each_level.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 32, T_MAX = 4096 };

/* A sequence of one head; vectors are padded with zeros to D. */
struct sequence {
    size_t n;
    float q[T_MAX][D], k[T_MAX][D], v[T_MAX][D];
    float beta[T_MAX], g[T_MAX];
    float s0[D][D]; /* [dv][dk] */
};

struct result {
    float o[T_MAX][D], s[D][D];
};

struct exact {
    double o[T_MAX][D], s[D][D];
};

/* Run tokens in pieces of `step`, chunks ending at multiples of ESP_CHUNK; the last, open chunk is folded at
 * the end. */
static void run(const struct esp_kernels *kt, const struct sequence *q, size_t step, struct result *out)
{
    static float keys[ESP_CHUNK][D], u[ESP_CHUNK][D], g[ESP_CHUNK];
    float *scratch = calloc(esp_delta_scratch_floats(), sizeof *scratch);
    struct esp_delta d = {.dk = D, .dv = D, .s = &out->s[0][0], .k = &keys[0][0], .u = &u[0][0], .g = g};

    assert_non_null(scratch);
    d.ld_k = d.ld_u = d.ld_q = d.ld_v = d.ld_o = D;
    d.ld_g = d.ld_beta = 1;
    memcpy(out->s, q->s0, sizeof out->s);
    for (size_t t = 0; t < q->n; t += d.n_row) {
        d.row0 = (uint32_t)(t % ESP_CHUNK);
        d.n_row = (uint32_t)(step < q->n - t ? step : q->n - t);
        d.n_row = d.n_row < ESP_CHUNK - d.row0 ? d.n_row : ESP_CHUNK - d.row0;
        memcpy(keys[d.row0], q->k[t], d.n_row * sizeof keys[0]);
        memcpy(g + d.row0, q->g + t, d.n_row * sizeof g[0]);
        d.q = q->q[t];
        d.v = q->v[t];
        d.beta = q->beta + t;
        d.o = out->o[t];
        kt->delta_rows(&d, scratch);
        if (d.row0 + d.n_row == ESP_CHUNK || t + d.n_row == q->n)
            kt->delta_fold(&d, d.row0 + d.n_row, &out->s[0][0]);
    }
    free(scratch);
}

/* The recurrence in double, in its textbook order: decay, read, write, read. */
static void run_exact(const struct sequence *q, struct exact *out)
{
    for (size_t c = 0; c < D; c++) {
        for (size_t i = 0; i < D; i++)
            out->s[c][i] = q->s0[c][i];
    }
    for (size_t t = 0; t < q->n; t++) {
        const double decay = exp(q->g[t]);

        for (size_t c = 0; c < D; c++) {
            double read = 0, o = 0;

            for (size_t i = 0; i < D; i++) {
                out->s[c][i] *= decay;
                read += out->s[c][i] * q->k[t][i];
            }
            for (size_t i = 0; i < D; i++) {
                out->s[c][i] += q->beta[t] * (q->v[t][c] - read) * q->k[t][i];
                o += out->s[c][i] * q->q[t][i];
            }
            out->o[t][c] = o;
        }
    }
}

static double largest(const double *x, size_t n)
{
    double top = 0;

    for (size_t i = 0; i < n; i++)
        top = fmax(top, fabs(x[i]));
    return top;
}

/* Largest error of n values relative to scale. */
static double worst(const float *got, const double *want, size_t n, double scale)
{
    double error = 0;

    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(got[i]));
        error = fmax(error, fabs((double)got[i] - want[i]));
    }
    return scale > 0 ? error / scale : error;
}

static uint64_t seed;

static float uniform(void)
{
    seed = seed * 6364136223846793005 + 1442695040888963407;
    return (float)(int32_t)(seed >> 32) * 0x1p-31f;
}

static void random_sequence(struct sequence *q, size_t n, float v_size, float g_low, float g_high)
{
    memset(q, 0, sizeof *q);
    q->n = n;
    for (size_t t = 0; t < n; t++) {
        double k2 = 0, q2 = 0;

        for (size_t i = 0; i < D; i++) {
            q->q[t][i] = uniform();
            q->k[t][i] = uniform() + (t ? 0.5f * q->k[t - 1][i] * 3 : 0); /* correlated keys */
            q->v[t][i] = uniform() * v_size;
            k2 += (double)q->k[t][i] * q->k[t][i];
            q2 += (double)q->q[t][i] * q->q[t][i];
        }
        for (size_t i = 0; i < D; i++) {
            q->k[t][i] = (float)(q->k[t][i] / sqrt(k2));
            q->q[t][i] = (float)(q->q[t][i] / sqrt(q2 * D));
        }
        q->beta[t] = 0.5f + 0.5f * uniform();
        q->g[t] = g_low + (g_high - g_low) * (0.5f + 0.5f * uniform());
    }
}

static struct sequence seq;
static struct result got, other;
static struct exact want;

static const size_t steps[] = {1, 2, 3, 5, 7, 16, 33, 63, 64};

/*
 * Every cut gives the bits of token by token, within limit of the recurrence. Errors of outputs are relative
 * to the largest output of the sequence: a token whose query happens to be orthogonal to its key has none of
 * its own size.
 */
static void check_all_cuts(const struct esp_kernels *k, double limit)
{
    double scale;

    run_exact(&seq, &want);
    run(k, &seq, 1, &got);
    scale = largest(want.o[0], seq.n * D);
    for (size_t t = 0; t < seq.n; t++) {
        if (!(worst(got.o[t], want.o[t], D, scale) <= limit))
            fail_msg("%s: token %zu is off by %.3g", k->isa, t, worst(got.o[t], want.o[t], D, scale));
    }
    assert_true(worst(&got.s[0][0], &want.s[0][0], D * D, largest(&want.s[0][0], D * D)) <= limit);
    for (size_t i = 1; i < sizeof steps / sizeof steps[0]; i++) {
        run(k, &seq, steps[i], &other);
        assert_memory_equal(other.o, got.o, seq.n * sizeof got.o[0]);
        assert_memory_equal(other.s, got.s, sizeof got.s);
    }
}

static void floats_of(const json_t *list, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)json_number_value(json_array_get(list, i));
}

static void load_case(const json_t *c)
{
    const size_t dk = (size_t)json_integer_value(json_object_get(c, "dk"));
    const size_t dv = (size_t)json_integer_value(json_object_get(c, "dv"));

    memset(&seq, 0, sizeof seq);
    seq.n = (size_t)json_integer_value(json_object_get(c, "T"));
    assert_true(dk <= D && dv <= D && seq.n <= T_MAX);
    for (size_t t = 0; t < seq.n; t++) {
        floats_of(json_array_get(json_object_get(c, "q"), t), seq.q[t], dk);
        floats_of(json_array_get(json_object_get(c, "k_normalised"), t), seq.k[t], dk);
        floats_of(json_array_get(json_object_get(c, "v"), t), seq.v[t], dv);
        seq.g[t] = (float)log(json_number_value(json_array_get(json_object_get(c, "decay"), t)));
    }
    floats_of(json_object_get(c, "beta"), seq.beta, seq.n);
}

static void match_values(const json_t *list, const float *row, size_t n)
{
    double values[D];

    for (size_t i = 0; i < n; i++)
        values[i] = json_number_value(json_array_get(list, i));
    assert_true(worst(row, values, n, largest(values, n)) <= 1e-5);
}

static void check_gate(const struct esp_kernels *k, const json_t *c)
{
    const float a_neg = -expf((float)json_number_value(json_object_get(c, "A_log")));
    const float a = (float)json_number_value(json_object_get(c, "a")), b = 0;
    const float bias = (float)json_number_value(json_object_get(c, "dt_bias"));
    const double decay = json_number_value(json_object_get(c, "expect_decay"));
    float beta, g;

    k->delta_gates(&b, &a, &a_neg, &bias, &beta, &g, 1);
    assert_true(beta == 0.5f);
    /* a relative error of 24 roundings in g moves exp(g) by |g| times as much */
    assert_true(fabs(exp(g) - decay) <= decay * 24 * 0x1p-24 * (1 + fabs((double)g)));
}

static void check_cases(const struct esp_kernels *k)
{
    json_t *file = test_json("tests/data/cases/gated_delta.json"), *c;
    size_t i, n_gate = 0, n_rule = 0;

    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        const json_t *s = json_object_get(c, "expect_state");

        if (!s) {
            check_gate(k, c);
            n_gate++;
            continue;
        }
        load_case(c);
        check_all_cuts(k, 1e-5);
        n_rule++;
        match_values(json_object_get(c, "expect_out_first"), got.o[0], 4);
        match_values(json_object_get(c, "expect_out_last"), got.o[seq.n - 1], 4);
        for (size_t v = 0; v < 4; v++) { /* the file has [dk][dv] */
            double column[4];

            for (size_t j = 0; j < 4; j++)
                column[j] = json_number_value(json_array_get(json_array_get(s, j), v));
            assert_true(worst(got.s[v], column, 4, largest(column, 4)) <= 1e-5);
        }
    }
    assert_true(n_gate >= 2 && n_rule >= 1);
    json_decref(file);
}

/* Three tokens with dk = dv = 2 and a state, worked out in double by the recurrence. */
static void check_three_tokens(const struct esp_kernels *k)
{
    static const float q[3][2] = {{0.5f, -0.25f}, {0.1f, 0.7f}, {-0.6f, 0.2f}};
    static const float key[3][2] = {{0.6f, 0.8f}, {-0.8f, 0.6f}, {0.28f, 0.96f}};
    static const float v[3][2] = {{1, 2}, {-1, 0.5f}, {0.25f, -0.75f}};
    static const float beta[3] = {0.5f, 0.9f, 0.25f}, g[3] = {-0.1f, -0.5f, -2.0f};
    static const double o[3][2] = {
        {0.056333862, -0.047488499}, {-0.056354925, 0.579254297}, {-0.082422918, 0.014469609}};
    static const double s[2][2] = {{0.146902090, 0.028591679}, {-0.055647770, -0.094595264}}; /* [dv][dk] */

    memset(&seq, 0, sizeof seq);
    seq.n = 3;
    for (size_t t = 0; t < 3; t++) {
        memcpy(seq.q[t], q[t], sizeof q[t]);
        memcpy(seq.k[t], key[t], sizeof key[t]);
        memcpy(seq.v[t], v[t], sizeof v[t]);
        seq.beta[t] = beta[t];
        seq.g[t] = g[t];
    }
    seq.s0[0][0] = 0.2f, seq.s0[1][0] = -0.1f, seq.s0[0][1] = 0.3f, seq.s0[1][1] = 0.4f;
    check_all_cuts(k, 1e-6);
    for (size_t t = 0; t < 3; t++) {
        for (size_t c = 0; c < 2; c++)
            assert_true(fabs((double)got.o[t][c] - o[t][c]) < 1e-7);
    }
    for (size_t c = 0; c < 2; c++) {
        for (size_t i = 0; i < 2; i++)
            assert_true(fabs((double)got.s[c][i] - s[c][i]) < 1e-7);
    }
}

/* exp(-G) would be exp(50 * 64); only what is at most 0 may be exponentiated. */
static void check_strong_decay(const struct esp_kernels *k)
{
    seed = 3;
    random_sequence(&seq, 200, 1, -50, -50);
    check_all_cuts(k, 1e-5);
    random_sequence(&seq, 130, 1, -200, 0);
    check_all_cuts(k, 1e-5);
    random_sequence(&seq, 70, 1, 0, 0); /* no decay at all */
    check_all_cuts(k, 1e-5);
}

/* Outputs far above 65504, the largest f16. */
static void check_large_norms(const struct esp_kernels *k)
{
    double top = 0;

    seed = 4;
    random_sequence(&seq, 150, 1e7f, -0.1f, 0);
    for (size_t c = 0; c < D; c++) {
        for (size_t i = 0; i < D; i++)
            seq.s0[c][i] = 1e8f * uniform();
    }
    check_all_cuts(k, 1e-5);
    for (size_t t = 0; t < seq.n; t++)
        top = fmax(top, fabs((double)got.o[t][0]));
    assert_true(top > 65504);
}

/* 4096 tokens with little decay stay close to double; a beta rounded to bf16 would be seen at once. */
static void check_drift(const struct esp_kernels *k)
{
    double error = 0;

    seed = 5;
    random_sequence(&seq, T_MAX, 1, -0.002f, 0);
    check_all_cuts(k, 1e-4);
    for (size_t t = 0; t < seq.n; t++)
        seq.beta[t] = esp_bf16_to_f32(esp_f32_to_bf16(seq.beta[t]));
    run(k, &seq, 64, &other);
    for (size_t t = 0; t < seq.n; t++)
        error = fmax(error, worst(other.o[t], want.o[t], D, largest(want.o[0], seq.n * D)));
    assert_true(error > 1e-3);
}

/* Decay exp(g) in [0, 1] and beta in [0, 1], neither NaN, whatever the projections give. */
static void check_gate_range(const struct esp_kernels *k)
{
    static const float values[] = {0, 1e-30f, 1, 19.99f, 20, 20.01f, 88, 89, 104, 1e4f, 3e38f};
    enum { N = sizeof values / sizeof values[0] };
    float a[N], b[N], a_neg[N], bias[N], beta[N], g[N];

    for (int sign = -1; sign <= 1; sign += 2) {
        for (size_t s = 0; s < N; s++) {
            for (size_t i = 0; i < N; i++) {
                a[i] = b[i] = (float)sign * values[i];
                a_neg[i] = -expf(8 - (float)s);
                bias[i] = uniform();
            }
            k->delta_gates(b, a, a_neg, bias, beta, g, N);
            for (size_t i = 0; i < N; i++) {
                assert_true(g[i] <= 0 && exp(g[i]) >= 0 && exp(g[i]) <= 1);
                assert_true(beta[i] >= 0 && beta[i] <= 1);
            }
        }
    }
}

static void test_cases(void **state)
{
    (void)state;
    each_level(check_cases);
}

static void test_three_tokens(void **state)
{
    (void)state;
    each_level(check_three_tokens);
}

static void test_strong_decay(void **state)
{
    (void)state;
    each_level(check_strong_decay);
}

static void test_large_norms(void **state)
{
    (void)state;
    each_level(check_large_norms);
}

static void test_drift(void **state)
{
    (void)state;
    each_level(check_drift);
}

static void test_gate_range(void **state)
{
    (void)state;
    each_level(check_gate_range);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),        cmocka_unit_test(test_three_tokens),
        cmocka_unit_test(test_strong_decay), cmocka_unit_test(test_large_norms),
        cmocka_unit_test(test_drift),        cmocka_unit_test(test_gate_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
