/*
 * Sequence state against an oracle that recomputes from scratch: random appends in random cuts, journalled
 * passes that keep a random part, forks, snapshots and rewinds, several sequences at once. After every
 * operation the next logits must be those of a fresh sequence over the same tokens, bit for bit. Traps 4, 6,
 * 8, 17, 18 and 30 of the field live here: state restarted, rejected rows leaking, cuts off the grid, partial
 * reuse, padding, recycled slots.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "support/net.h"

enum {
    CONTEXT = 640,
    N_SEQ = 4,
    WINDOW = 24,
    N_OPS = TEST_SANITIZED ? 60 : 260,
    N_OPS_REF = 30 /* the scalar reference is 20 times slower */
};

struct row { /* a sequence under test, and what it should contain */
    struct esp_state *state;
    int32_t tokens[CONTEXT];
    uint32_t n;
};

static struct test_net net;
static struct row rows[N_SEQ];
static float *got, *want;
static uint64_t rng = 12345;

static uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

static int32_t rnd_token(void)
{
    return (int32_t)rnd(net.n_vocab);
}

/* One pass over n known tokens of each listed row; rows of a mixed batch do not know each other. */
struct pass {
    struct row *row;
    int32_t ids[WINDOW > 96 ? WINDOW : 96];
    uint32_t n, keep;
    enum esp_pass kind;
};

static void run_passes(struct pass *p, uint32_t n_pass)
{
    static int32_t ids[512], pos[512][3];
    static uint32_t out_rows[512];
    struct esp_batch_seq seqs[N_SEQ];
    struct esp_batch b = {
        .ids = ids, .pos = (const int32_t(*)[3])pos, .seqs = seqs, .out_rows = out_rows, .logits = got};
    esp_error err;

    for (uint32_t i = 0; i < n_pass; i++) {
        test_ok(esp_state_begin(p[i].row->state, p[i].n, p[i].kind, &seqs[i], &err), &err);
        seqs[i].tok0 = b.n_tok;
        for (uint32_t j = 0; j < p[i].n; j++) {
            ids[b.n_tok] = p[i].ids[j];
            for (int a = 0; a < 3; a++)
                pos[b.n_tok][a] = (int32_t)(p[i].row->n + j);
            out_rows[b.n_tok] = b.n_tok;
            b.n_tok++;
        }
    }
    b.n_seq = n_pass;
    b.n_out = b.n_tok;
    test_ok(net.dev->ops->run(net.plan, &b, &err), &err);
    test_ok(net.dev->ops->wait(net.dev, &err), &err);
    for (uint32_t i = 0; i < n_pass; i++) {
        test_ok(esp_state_commit(p[i].row->state, p[i].keep, &err), &err);
        memcpy(p[i].row->tokens + p[i].row->n, p[i].ids, p[i].keep * sizeof(int32_t));
        p[i].row->n += p[i].keep;
        assert_int_equal(esp_state_length(p[i].row->state), p[i].row->n);
    }
}

/* The logits of `next` behind the row's tokens, from a fresh sequence in one pass. */
static void oracle(const struct row *r, int32_t next, float *out)
{
    static float all[(CONTEXT + 1) * 512];
    static int32_t ids[CONTEXT + 1];
    struct esp_state *s;
    esp_error err;

    memcpy(ids, r->tokens, r->n * sizeof *ids);
    ids[r->n] = next;
    test_ok(esp_state_open(&s, net.pools, CONTEXT, 0, &err), &err);
    test_net_run(&net, s, ids, r->n + 1, 512, all, NULL, NULL);
    memcpy(out, all + (size_t)r->n * net.n_vocab, net.n_vocab * sizeof *out);
    esp_state_close(s);
}

/* A journalled pass of one token that keeps nothing shows the state without changing it. */
static void check(struct row *r)
{
    struct pass p = {.row = r, .n = 1, .keep = 0, .kind = ESP_PASS_JOURNAL};

    if (r->n + 1 > CONTEXT)
        return;
    p.ids[0] = rnd_token();
    run_passes(&p, 1);
    oracle(r, p.ids[0], want);
    if (memcmp(got, want, net.n_vocab * sizeof *got) != 0)
        fail_msg("sequence %d at %u positions differs from a fresh run", (int)(r - rows), r->n);
}

static void make_pass(struct pass *p, struct row *r, enum esp_pass kind)
{
    uint32_t most = kind == ESP_PASS_JOURNAL ? WINDOW : 96;

    memset(p, 0, sizeof *p);
    p->row = r;
    p->kind = kind;
    p->n = 1 + rnd(most);
    if (rnd(3) == 0)
        p->n = 1;
    if (p->n > CONTEXT - 1 - r->n)
        p->n = CONTEXT - 1 - r->n;
    p->keep = kind == ESP_PASS_JOURNAL ? rnd(p->n + 1) : p->n;
    for (uint32_t i = 0; i < p->n; i++)
        p->ids[i] = rnd_token();
}

static void op_run(void)
{
    struct pass p[N_SEQ];
    uint32_t n = 0;

    for (uint32_t i = 0; i < N_SEQ; i++)
        if (rnd(2) && rows[i].n < CONTEXT - 1)
            make_pass(&p[n++], &rows[i], rnd(2) ? ESP_PASS_JOURNAL : ESP_PASS_WRITE);
    if (n)
        run_passes(p, n);
}

static void op_rewind(struct row *r)
{
    uint32_t len = rnd(r->n + 1), reached;
    esp_error err;

    test_ok(esp_state_rewind(r->state, len, &reached, &err), &err);
    assert_true(reached <= len);
    r->n = reached;
}

static void op_fork(struct row *to, const struct row *from)
{
    esp_error err;

    if (to == from)
        return;
    esp_state_close(to->state);
    test_ok(esp_state_fork(&to->state, from->state, &err), &err);
    memcpy(to->tokens, from->tokens, sizeof to->tokens);
    to->n = from->n;
}

/* o: how keys, values and states are kept. */
static void random_schedule(struct test_net_opts o, uint32_t threads, uint64_t seed)
{
    const bool few = o.scheme || o.state;
    esp_error err;

    rng = seed;
    o.folder = "models/tiny-text";
    o.level = test_level();
    o.threads = threads;
    o.context = CONTEXT;
    o.n_seq = N_SEQ;
    o.journal_rows = WINDOW;
    test_net_open(&net, o);
    for (int i = 0; i < N_SEQ; i++) {
        test_ok(esp_state_open(&rows[i].state, net.pools, CONTEXT, 2, &err), &err);
        rows[i].n = 0;
    }
    for (int i = 0; i < (test_level() == ESP_CPU_REF ? N_OPS_REF : few ? N_OPS / 4 : N_OPS); i++) {
        struct row *r = &rows[rnd(N_SEQ)];
        uint32_t what = rnd(10);

        if (what < 6)
            op_run();
        else if (what == 6)
            test_ok(esp_state_snapshot(r->state, &err), &err);
        else if (what == 7)
            op_rewind(r);
        else if (what == 8)
            op_fork(r, &rows[rnd(N_SEQ)]);
        else {
            esp_state_invalidate(r->state);
            r->n = 0;
        }
        if (i % 3 == 0)
            check(r);
    }
    for (int i = 0; i < N_SEQ; i++) {
        check(&rows[i]);
        esp_state_close(rows[i].state);
    }
    assert_int_equal(net.pools->n_free_page, net.pools->mem.n_page); /* nothing leaks */
    assert_int_equal(net.pools->n_free_slot, net.pools->mem.n_slot);
    test_net_close(&net);
}

static void test_random(void **state)
{
    (void)state;
    random_schedule((struct test_net_opts){.kv = ESP_KV_F32}, 1, 1);
    random_schedule((struct test_net_opts){.kv = ESP_KV_BF16}, 2, 2);
    random_schedule((struct test_net_opts){.kv = ESP_KV_F32}, 3, 3);
    random_schedule((struct test_net_opts){.scheme = "turbo"}, 2,
                    4); /* where rows lie is all that codes change */
    random_schedule((struct test_net_opts){.scheme = "q6:g128"}, 1, 5);
    if (getenv("ESPALIER_TEST_DEVICE"))
        return; /* other devices refuse exact positions before coded ones, and coded states */
    random_schedule((struct test_net_opts){.scheme = "turbo:k8v4", .kv_start = 90}, 1, 6);
    random_schedule((struct test_net_opts){.scheme = "q4", .kv_start = 1, .state = ESP_RECURRENT_Q8}, 2, 7);
    random_schedule((struct test_net_opts){.kv = ESP_KV_BF16, .state = ESP_RECURRENT_BF16}, 1, 8);
}

/* Every window length and acceptance around a chunk border, where the journal needs its second slot. */
static void test_windows_at_border(void **state)
{
    struct row *r = &rows[0];
    esp_error err;

    (void)state;
    test_net_open(&net, (struct test_net_opts){.folder = "models/tiny-text",
                                               .level = test_level(),
                                               .context = CONTEXT,
                                               .journal_rows = WINDOW});
    for (uint32_t start = 60; start <= 65; start++)
        for (uint32_t n = 1; n <= 8; n++)
            for (uint32_t keep = 0; keep <= n; keep += TEST_SANITIZED ? n : 1) {
                struct pass p = {.row = r, .n = start, .keep = start, .kind = ESP_PASS_WRITE};
                struct pass w = {.row = r, .n = n, .keep = keep, .kind = ESP_PASS_JOURNAL};

                test_ok(esp_state_open(&r->state, net.pools, CONTEXT, 0, &err), &err);
                r->n = 0;
                for (uint32_t i = 0; i < start; i++)
                    p.ids[i] = (int32_t)(i * 7 % net.n_vocab);
                for (uint32_t i = 0; i < n; i++)
                    w.ids[i] = (int32_t)(i * 31 + 5);
                run_passes(&p, 1);
                run_passes(&w, 1);
                check(r);
                esp_state_close(r->state);
            }
    test_net_close(&net);
}

static void test_refusals(void **state)
{
    struct esp_batch_seq seq;
    struct esp_state *s;
    uint32_t reached;
    esp_error err;

    (void)state;
    test_net_open(
        &net, (struct test_net_opts){
                  .folder = "models/tiny-text", .level = test_level(), .context = 256, .journal_rows = 4});
    test_ok(esp_state_open(&s, net.pools, 256, 1, &err), &err);
    test_refused(esp_state_commit(s, 0, &err), ESP_ESTATE, &err, "no pass");
    test_refused(esp_state_begin(s, 0, ESP_PASS_WRITE, &seq, &err), ESP_EINVAL, &err, "at least one");
    test_refused(esp_state_begin(s, 257, ESP_PASS_WRITE, &seq, &err), ESP_ENOFIT, &err, "256");
    test_refused(esp_state_begin(s, 5, ESP_PASS_JOURNAL, &seq, &err), ESP_EINVAL, &err, "journals hold 4");
    test_refused(esp_state_rewind(s, 1, &reached, &err), ESP_EINVAL, &err, "0 positions");
    test_ok(esp_state_begin(s, 8, ESP_PASS_WRITE, &seq, &err), &err);
    test_refused(esp_state_begin(s, 1, ESP_PASS_WRITE, &seq, &err), ESP_ESTATE, &err, "already open");
    test_refused(esp_state_commit(s, 3, &err), ESP_EINVAL, &err, "write-through");
    test_refused(esp_state_snapshot(s, &err), ESP_ESTATE, &err, "open");
    test_ok(esp_state_commit(s, 0, &err), &err);
    assert_int_equal(esp_state_length(s), 0);
    assert_int_equal(net.pools->n_free_page, net.pools->mem.n_page);
    esp_state_close(s);
    esp_state_close(NULL);
    test_net_close(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_windows_at_border),
        cmocka_unit_test(test_refusals),
    };
    int failed;

    got = malloc(sizeof(float) * 512 * 512);
    want = malloc(sizeof(float) * 512);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(got);
    free(want);
    return failed;
}
