/*
 * Every op on the device against the CPU's tape, value by value, for every weight format, odd shapes, both KV
 * types, and a schedule that mixes prefill, decode and journalled windows over chunk and span borders. Then
 * the rule of determinism.md on the device alone: logits are bit-identical however a sequence is cut and
 * whoever shares the step.
 *
 * SPDX-License-Identifier: MIT
 */
#include "small.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const struct small_shape BASE = {.hidden = 256,
                                        .ffn = 384,
                                        .n_head = 4,
                                        .n_kv = 2,
                                        .head_dim = 128,
                                        .kh = 2,
                                        .vh = 4,
                                        .dk = 64,
                                        .dv = 64,
                                        .vocab = 400,
                                        .format = ESP_FORMAT_BF16,
                                        .kv = ESP_KV_F32};

static const struct small_pass SCHEDULE[] = {
    {.n = {150, 0, 0, 0}},                                      /* tiled products, two chunk borders */
    {.n = {1, 9, 40, 0}},                                       /* decode and prefill together */
    {.n = {1, 1, 1, 0}},                                        /* few rows */
    {.n = {1, 0, 0, 0}},                                        /* one row */
    {.n = {5, 3, 0, 0}, .kind = ESP_PASS_JOURNAL, .keep = 2},   /* windows */
    {.n = {120, 0, 24, 2}},                                     /* over the span border at 256 */
    {.n = {30, 20, 0, 1}, .kind = ESP_PASS_JOURNAL, .keep = 1}, /* windows over a chunk border */
    {.n = {1, 1, 1, 1}},                                        /* spans in parallel */
    {.n = {300, 64, 64, 70}},
    {.n = {9, 1, 1, 1}},
};
enum { N_PASS = sizeof SCHEDULE / sizeof SCHEDULE[0], MAX_TAP = 256 };

struct taps {
    float *rows[MAX_TAP];
    size_t n[MAX_TAP];
    uint32_t width[MAX_TAP];
};

static void keep(void *user, const char *name, const float *rows, uint32_t n_row, uint32_t width)
{
    struct taps *t = user;
    long i = strtol(name + 1, NULL, 10);

    assert_true(name[0] == 'v' && i >= 0 && i < MAX_TAP);
    t->n[i] = (size_t)n_row * width;
    t->width[i] = width;
    t->rows[i] = malloc(t->n[i] * sizeof(float) + 1);
    memcpy(t->rows[i], rows, t->n[i] * sizeof(float));
}

static void drop(struct taps *t)
{
    for (int i = 0; i < MAX_TAP; i++)
        free(t->rows[i]);
    memset(t, 0, sizeof *t);
}

/*
 * Difference relative to the value's root mean square, NaN counting as infinite: the largest, or the root
 * mean square of all. The second is for rounded activations: the backends round in places of their own, by
 * 2^-9 each time, and where a norm divides by little a single element then means nothing.
 */
static double difference(const float *got, const float *want, size_t n, bool mean)
{
    double size = 0, most = 0, sum = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);

        d = isnan(d) ? INFINITY : d;
        size += (double)want[i] * want[i];
        sum += d * d;
        most = d > most ? d : most;
    }
    n = n ? n : 1;
    size = sqrt(size / (double)n);
    return (mean ? sqrt(sum / (double)n) : most) / (size > 1e-20 ? size : 1e-20);
}

static const char *op_of(const struct esp_tape *t, uint32_t v)
{
    return esp_op_name(t->ops[t->values[v].born].kind);
}

/* One of the nets that run the same schedule. */
struct side {
    struct test_net net;
    struct esp_state *states[SMALL_SEQ];
    float *logits;
    struct taps taps;
};

static void open_side(struct side *x, const struct small_shape *s, bool device)
{
    esp_error err;

    small_open(&x->net, s, device);
    x->logits = malloc(sizeof(float) * SMALL_TOK * s->vocab);
    for (int i = 0; i < SMALL_SEQ; i++)
        test_ok(esp_state_open(&x->states[i], x->net.pools, SMALL_CONTEXT, 0, &err), &err);
}

static void close_side(struct side *x)
{
    for (int i = 0; i < SMALL_SEQ; i++)
        esp_state_close(x->states[i]);
    free(x->logits);
    test_net_close(&x->net);
}

/* Compare all passes and print the worst difference; fails above tol, plus rounding() where activations are.
 */
static void compare(const char *what, const struct small_shape *s, double tol)
{
    static struct side cpu, gpu;
    const bool mean = s->act == ESP_ACT_BF16;
    double worst = 0, by_op[ESP_OP_COUNT] = {0};
    const char *where = "none";
    bool bad = false;

    open_side(&gpu, s, true);
    open_side(&cpu, s, false);
    for (int p = 0; p < N_PASS && !bad; p++) {
        uint32_t n = small_run(&cpu.net, cpu.states, &SCHEDULE[p], cpu.logits, keep, &cpu.taps);
        double d;

        small_run(&gpu.net, gpu.states, &SCHEDULE[p], gpu.logits, keep, &gpu.taps);
        for (uint32_t v = 0; v < cpu.net.net->tape.n_value; v++) {
            const char *op = op_of(&cpu.net.net->tape, v);
            enum esp_op_kind kind = cpu.net.net->tape.ops[cpu.net.net->tape.values[v].born].kind;

            assert_non_null(cpu.taps.rows[v]);
            assert_non_null(gpu.taps.rows[v]);
            assert_int_equal(cpu.taps.n[v], gpu.taps.n[v]);
            d = difference(gpu.taps.rows[v], cpu.taps.rows[v], cpu.taps.n[v], mean);
            by_op[kind] = d > by_op[kind] ? d : by_op[kind];
            where = d > worst ? op : where;
            worst = d > worst ? d : worst;
            if (d > tol && !bad) {
                bad = true;
                print_error("%s, pass %d: value %u (%s) differs by %.3g of its size\n", what, p, v, op, d);
            }
        }
        d = difference(gpu.logits, cpu.logits, (size_t)n * s->vocab, mean);
        if (d > tol) {
            bad = true;
            print_error("%s, pass %d: logits differ by %.3g of their size\n", what, p, d);
        }
        drop(&cpu.taps);
        drop(&gpu.taps);
    }
    printf("%-28s worst %.2e at %s (tolerance %.0e)\n", what, worst, where, tol);
    for (int k = 0; bad && k < ESP_OP_COUNT; k++)
        printf("    %-12s %.2e\n", esp_op_name((enum esp_op_kind)k), by_op[k]);
    close_side(&cpu);
    close_side(&gpu);
    assert_false(bad);
}

static void test_formats(void **state)
{
    (void)state;
    for (int f = 0; f <= ESP_FORMAT_AFFINE8; f++)
        for (uint32_t group = 32; group <= 128; group *= 2) {
            struct small_shape s = BASE;
            char what[64];

            s.format = (enum esp_format_id)f;
            s.group = esp_format_get(s.format)->grouped ? group : 0;
            snprintf(what, sizeof what, "%s group %u", esp_format_get(s.format)->name, s.group);
            if (s.group || group == 32)
                compare(what, &s, 1e-3);
        }
}

/* Trellis codes of all widths along both axes: decoded on the way (2, 3, 4 bits) or not, two terms and three.
 */
static void test_trellis(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 8; k++)
        for (uint32_t axis = 0; axis < 2; axis++)
            for (uint32_t two = k == 3 || k == 5 ? 0 : 1; two < 2; two++) {
                struct small_shape s = BASE;
                char what[64];

                s.format = esp_trellis_format(k);
                s.ffn = k == 3 ? 1024 : 512, s.two = two, s.along_outputs = !axis;
                snprintf(what, sizeof what, "trellis%u axis %u, %u terms", k, axis, two ? 2 : 3);
                compare(what, &s, 1e-3);
            }
}

/* Formats side by side in products of one input; rows that are no power of two; a vocabulary along axis 0. */
static void test_trellis_mixed(void **state)
{
    struct small_shape s = BASE;

    (void)state;
    s.format = ESP_FORMAT_TRELLIS3, s.other = ESP_FORMAT_AFFINE4, s.two = true, s.ffn = 512;
    compare("trellis3 and affine4", &s, 1e-3);
    s.along_outputs = true;
    compare("trellis3 axis 0 and affine4", &s, 1e-3);
    s.other = ESP_FORMAT_TRELLIS4;
    compare("trellis3 and 4, axis 0", &s, 1e-3);
    s.along_outputs = false;
    compare("trellis3 and 4", &s, 1e-3);
    s.other = ESP_FORMAT_BF16, s.hidden = 768, s.ffn = 400, s.vocab = 512, s.along_outputs = true;
    compare("trellis3 and bf16, 400 inputs", &s, 1e-3);
    s.act = ESP_ACT_BF16, s.two = false;
    compare("trellis3, bf16 activations", &s, 5e-2);
}

static void test_shapes(void **state)
{
    struct small_shape s = BASE;

    (void)state;
    s.kv = ESP_KV_BF16;
    compare("bf16 cache", &s, 6e-2);
    s.head_dim = 256, s.n_head = 6, s.n_kv = 1, s.dk = s.dv = 128;
    compare("bf16 cache, heads of 256", &s, 6e-2);
    s.kv = ESP_KV_F32;
    compare("f32 cache, heads of 256", &s, 1e-3);
    s = BASE;
    s.hidden = 208, s.ffn = 232, s.vocab = 397, s.n_head = 3, s.n_kv = 3, s.head_dim = 48, s.dk = 48,
    s.dv = 80;
    compare("no power of two", &s, 1e-3);
    s.kv = ESP_KV_BF16;
    compare("no power of two, bf16 cache", &s, 6e-2);
    s = BASE;
    s.act = ESP_ACT_BF16;
    compare("bf16 activations", &s, 5e-2);
    s.format = ESP_FORMAT_AFFINE4, s.group = 64;
    compare("affine4, bf16 activations", &s, 5e-2);
    s.kv = ESP_KV_BF16, s.head_dim = 256, s.n_head = 6, s.n_kv = 1;
    compare("one term, bf16 cache", &s, 6e-2);
    s = BASE;
    s.dv = 80, s.vh = 10; /* a last block of value columns that is not full, five heads to a key */
    compare("value heads of 80", &s, 1e-3);
}

static void look_away(void *user, const char *name, const float *rows, uint32_t n_row, uint32_t width)
{
    (void)user, (void)name, (void)rows, (void)n_row, (void)width;
}

/*
 * Logits of sequence 0 over n tokens in passes of `cut`, with `others` further sequences running along. With
 * a tap ops run one by one.
 */
static void run_cut(struct test_net *t, uint32_t n, uint32_t cut, uint32_t others, esp_tap_fn tap, float *out)
{
    struct esp_state *seqs[SMALL_SEQ];
    float *logits = malloc(sizeof(float) * SMALL_TOK * t->n_vocab);
    esp_error err;

    for (int i = 0; i < SMALL_SEQ; i++)
        test_ok(esp_state_open(&seqs[i], t->pools, SMALL_CONTEXT, 0, &err), &err);
    for (uint32_t at = 0; at < n;) {
        struct small_pass p = {.n = {n - at < cut ? n - at : cut}};

        for (uint32_t i = 1; i <= others; i++)
            p.n[i] = esp_state_length(seqs[i]) < SMALL_CONTEXT - 8 ? 1 + (at + i) % 7 : 0;
        small_run(t, seqs, &p, logits, tap, NULL);
        memcpy(out + (size_t)at * t->n_vocab, logits, sizeof(float) * p.n[0] * t->n_vocab);
        at += p.n[0];
    }
    for (int i = 0; i < SMALL_SEQ; i++)
        esp_state_close(seqs[i]);
    free(logits);
}

static void check_cuts(const char *what, const struct small_shape *s)
{
    static const uint32_t cuts[][2] = {{1, 0}, {1, 2}, {7, 0}, {20, 3}, {33, 0}, {64, 1}, {130, 2}, {400, 3}};
    enum { N = 400 };
    struct test_net t;
    float *want = malloc(sizeof(float) * N * s->vocab), *got = malloc(sizeof(float) * N * s->vocab);

    small_open(&t, s, true);
    run_cut(&t, N, N, 0, look_away, want);
    run_cut(&t, N, N, 0, NULL, got);
    if (memcmp(got, want, sizeof(float) * N * s->vocab) != 0)
        fail_msg("%s: ops one by one give other bits than together", what);
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        run_cut(&t, N, cuts[c][0], cuts[c][1], c == 3 ? look_away : NULL, got);
        for (size_t i = 0; i < (size_t)N * s->vocab; i++)
            if (memcmp(&got[i], &want[i], sizeof(float)) != 0)
                fail_msg("%s: cut %u beside %u others: position %zu, logit %zu is %.9g, whole %.9g", what,
                         cuts[c][0], cuts[c][1], i / s->vocab, i % s->vocab, (double)got[i], (double)want[i]);
    }
    printf("%-28s bit-identical under 8 cuts\n", what);
    free(want);
    free(got);
    test_net_close(&t);
}

static void test_cuts(void **state)
{
    static const enum esp_format_id formats[] = {ESP_FORMAT_F32,     ESP_FORMAT_BF16,    ESP_FORMAT_AFFINE2,
                                                 ESP_FORMAT_AFFINE3, ESP_FORMAT_AFFINE4, ESP_FORMAT_AFFINE8};
    struct small_shape s = BASE;

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        s.format = formats[i];
        s.group = esp_format_get(s.format)->grouped ? 64 : 0;
        s.kv = i % 2 ? ESP_KV_BF16 : ESP_KV_F32;
        check_cuts(esp_format_get(s.format)->name, &s);
    }
    s.format = ESP_FORMAT_AFFINE4, s.group = 128;
    check_cuts("affine4 group 128", &s);
    s.group = 32, s.act = ESP_ACT_BF16;
    check_cuts("affine4 group 32, bf16", &s);
    s = BASE;
    s.head_dim = 256, s.n_head = 6, s.n_kv = 1, s.dk = s.dv = 128, s.kv = ESP_KV_BF16;
    check_cuts("heads of 256, bf16 cache", &s);
    s.act = ESP_ACT_BF16;
    check_cuts("heads of 256, one term", &s);
    s = BASE;
    s.dv = 80, s.vh = 10;
    check_cuts("value heads of 80", &s);
}

/* One term and two of an activation, which most kernels are made for. */
static void test_term_cuts(void **state)
{
    static const enum esp_format_id formats[] = {ESP_FORMAT_BF16, ESP_FORMAT_AFFINE2, ESP_FORMAT_AFFINE4,
                                                 ESP_FORMAT_AFFINE8};

    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        for (int two = 0; two < 2; two++) {
            struct small_shape s = BASE;
            char what[64];

            s.format = formats[i], s.kv = ESP_KV_BF16, s.two = two, s.act = two ? ESP_ACT_F32 : ESP_ACT_BF16;
            s.group = esp_format_get(s.format)->grouped ? 64 : 0;
            s.hidden = 1280, s.ffn = 2304; /* parts of several stages */
            snprintf(what, sizeof what, "%s, %d terms", esp_format_get(s.format)->name, two + 1);
            check_cuts(what, &s);
            s.group *= 2;
            if (s.group && !two)
                check_cuts("groups of 128", &s);
        }
    struct small_shape s = BASE;

    s.format = ESP_FORMAT_TRELLIS3, s.along_outputs = true, s.other = ESP_FORMAT_AFFINE4;
    s.ffn = 1024, s.hidden = 512, s.vocab = 512, s.kv = ESP_KV_BF16, s.act = ESP_ACT_BF16;
    check_cuts("trellis3 and affine4, 1 term", &s);
    s.along_outputs = false;
    check_cuts("trellis3, 1 term", &s);
}

/*
 * Gate and up of more outputs than a large device's multiprocessors take at once (142 blocks of 128), so that
 * of 33 to 128 rows some blocks compute whole sums and others parts.
 */
static void test_wave_cuts(void **state)
{
    static const struct {
        enum esp_format_id format;
        uint32_t group;
        bool two;
    } kinds[] = {{ESP_FORMAT_AFFINE4, 64, false},
                 {ESP_FORMAT_AFFINE4, 32, true},
                 {ESP_FORMAT_AFFINE8, 64, false},
                 {ESP_FORMAT_BF16, 0, false}};

    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct small_shape s = BASE;
        char what[64];

        s.format = kinds[i].format, s.group = kinds[i].group, s.two = kinds[i].two;
        s.act = s.two ? ESP_ACT_F32 : ESP_ACT_BF16, s.kv = ESP_KV_BF16, s.ffn = 9088;
        snprintf(what, sizeof what, "%s of 9088, %d terms", esp_format_get(s.format)->name, s.two + 1);
        check_cuts(what, &s);
    }
}

/* Coded caches: the ops of kv_test in a model, fused and not. */
static void test_coded_cuts(void **state)
{
    static const char *const schemes[] = {"turbo:k8v3", "turbo:k5v4:own", "turbo:k2v8",
                                          "q8",         "q6:g32",         "q4:g128"};
    struct small_shape s = BASE;

    (void)state;
    s.format = ESP_FORMAT_AFFINE4, s.group = 64;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        s.scheme = schemes[i];
        s.act = i % 2 ? ESP_ACT_F32 : ESP_ACT_BF16;
        s.head_dim = i % 3 == 0 ? 256 : 128, s.n_head = i % 3 == 0 ? 6 : 4, s.n_kv = i % 3 == 0 ? 1 : 2;
        check_cuts(schemes[i], &s);
    }
    s.scheme = "q8", s.act = ESP_ACT_BF16;
    compare("q8 cache, one term", &s, 6e-2);
    s.scheme = "turbo:k8v8", s.head_dim = 96, s.n_head = 6, s.n_kv = 3;
    compare("turbo:k8v8 cache, heads of 96", &s, 6e-2);
}

static void test_trellis_cuts(void **state)
{
    struct small_shape s = BASE;
    char what[64];

    (void)state;
    s.ffn = 512, s.kv = ESP_KV_BF16, s.two = true;
    for (uint32_t k = 2; k <= 5; k++)
        for (uint32_t axis = 0; axis < 2; axis++) {
            s.format = esp_trellis_format(k), s.along_outputs = !axis;
            snprintf(what, sizeof what, "trellis%u axis %u", k, axis);
            check_cuts(what, &s);
        }
    s.format = ESP_FORMAT_TRELLIS3, s.along_outputs = true, s.other = ESP_FORMAT_AFFINE4;
    check_cuts("trellis3 and affine4", &s);
    s.two = false;
    check_cuts("trellis3 and affine4, 3 terms", &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),       cmocka_unit_test(test_trellis),
        cmocka_unit_test(test_trellis_mixed), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_cuts),          cmocka_unit_test(test_trellis_cuts),
        cmocka_unit_test(test_term_cuts),     cmocka_unit_test(test_coded_cuts),
        cmocka_unit_test(test_wave_cuts),
    };

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (getenv("ESPALIER_TEST_FILTER"))
        cmocka_set_test_filter(getenv("ESPALIER_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
