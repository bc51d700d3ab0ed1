/*
 * The prefix tree against a naive list, over pools whose pages and slots carry stamps in place of keys and
 * states: position i of a page holds a hash of tokens 0..i, a slot the hash of its whole text. Whatever is
 * lent must therefore be exactly what the same tokens would have computed, whoever forked, evicted, cut or
 * wrote in between.
 *
 * SPDX-License-Identifier: MIT
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "state/prefix.h"

enum { CONTEXT = 1200, N_ROW = 5, MAX_ENTRY = 4096 };

struct row {
    struct esp_state *state;
    int32_t tokens[CONTEXT];
    uint64_t ns;
};

struct entry { /* a checkpoint as the naive list knows it */
    int32_t *tokens;
    uint32_t n;
    uint64_t ns;
};

static struct esp_dev *dev;
static struct esp_state_pools *pools;
static struct esp_prefix *tree;
static struct row rows[N_ROW];
static struct entry entries[MAX_ENTRY];
static uint32_t n_entry, n_spilled;
static uint64_t rng = 4711;

static uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

static uint64_t stamp(uint64_t before, int32_t token)
{
    return esp_hash(&token, sizeof token, before);
}

static uint64_t *page_at(uint32_t page, uint32_t pos)
{
    const struct esp_layout *l = &pools->mem.layout;
    const uint32_t at = esp_layout_page_of(l, pos);

    return (uint64_t *)(void *)((uint8_t *)pools->mem.pages->host + page * l->page_bytes +
                                (pos - esp_layout_page_first(l, at)) * esp_layout_kv_of(l, 0, at)->k_row);
}

static uint64_t *slot_at(uint32_t slot)
{
    return (uint64_t *)(void *)((uint8_t *)pools->mem.slots->host + slot * pools->mem.layout.slot_bytes);
}

static void check_view(const struct esp_state_view *v, const int32_t *tokens, uint64_t ns)
{
    uint64_t h = ns;

    for (uint32_t i = 0; i < v->n; i++) {
        h = stamp(h, tokens[i]);
        if (*page_at(v->pages[esp_layout_page_of(&pools->mem.layout, i)], i) != h)
            fail_msg("position %u of %u is another text's", i, v->n);
    }
    if (v->n && *slot_at(v->slot) != h)
        fail_msg("the state at %u is another text's", v->n);
}

static void check_row(const struct row *r)
{
    struct esp_state_view v;

    esp_state_peek(r->state, &v);
    check_view(&v, r->tokens, r->ns);
}

static void check_path(void *user, const struct esp_prefix_path *path)
{
    (void)user;
    assert_true(path->n_checkpoint > 0 && path->checkpoints[path->n_checkpoint - 1].n == path->n);
    for (uint32_t i = 0; i < path->n_checkpoint; i++) {
        const struct esp_prefix_checkpoint *c = &path->checkpoints[i];
        struct esp_state_view v = {.n = c->n, .slot = c->slot, .pages = path->pages, .n_page = path->n_page};

        assert_true(i == 0 || path->checkpoints[i - 1].n < c->n);
        check_view(&v, path->tokens, path->ns);
    }
}

static void count_spill(void *user, const struct esp_prefix_path *path)
{
    (void)user;
    check_path(NULL, path);
    n_spilled++;
}

static uint32_t exact_start; /* positions in exact pages, before coded ones */

static void open_all(uint32_t n_page, uint32_t n_slot, uint32_t max_checkpoints, uint32_t per_path)
{
    struct esp_layout l = {
        .n_attn = 1, .n_delta = 1, .n_kv_head = 1, .head_dim = 64, .kv = ESP_KV_BF16, .kh = 1, .vh = 1};
    struct esp_pool_sizes z = {.n_page = n_page, .n_slot = n_slot};
    struct esp_prefix_opts o = {.max_positions = CONTEXT,
                                .max_checkpoints = max_checkpoints,
                                .per_path = per_path,
                                .spacing = 64,
                                .spill = count_spill};
    esp_error err;

    if (exact_start) {
        l.kv = ESP_KV_CODED;
        l.kv_start = exact_start;
        test_ok(esp_kv_parse(&l.layers[0].scheme, "turbo:k8v3", &err),
                &err); /* stamps fit the rows of keys */
    }
    l.dk = l.dv = 16;
    l.conv_dim = 48;
    test_ok(esp_layout_finish(&l, &err), &err);
    test_ok(esp_cpu_open(&dev, ESP_CPU_REF, 1, &err), &err);
    test_ok(esp_state_pools_create(&pools, dev, &l, &z, &err), &err);
    test_ok(esp_prefix_create(&tree, pools, &o, &err), &err);
    for (int i = 0; i < N_ROW; i++) {
        test_ok(esp_state_open(&rows[i].state, pools, CONTEXT, 1, &err), &err);
        rows[i].ns = rnd(2);
    }
    n_entry = n_spilled = 0;
}

static void close_all(void)
{
    esp_prefix_destroy(tree);
    for (int i = 0; i < N_ROW; i++)
        esp_state_close(rows[i].state);
    for (uint32_t i = 0; i < n_entry; i++)
        free(entries[i].tokens);
    assert_int_equal(pools->n_free_page, pools->mem.n_page); /* nothing leaks */
    assert_int_equal(pools->n_free_slot, pools->mem.n_slot);
    esp_state_pools_destroy(pools);
    dev->ops->close(dev);
}

/* What a pass of the model would do, stamps for keys. Makes room by evicting, as the engine does. */
static void append(struct row *r, uint32_t n)
{
    struct esp_batch_seq b;
    struct esp_state_view v;
    uint32_t pages, slots, at;
    uint64_t h = r->ns;
    esp_error err;

    if (n > CONTEXT - esp_state_length(r->state))
        n = CONTEXT - esp_state_length(r->state);
    esp_state_need(r->state, n, &pages, &slots);
    while (pools->n_free_page < pages || pools->n_free_slot < slots) {
        if (!esp_prefix_evict(tree, pools->n_free_page < pages ? ESP_PREFIX_PAGE : ESP_PREFIX_SLOT))
            return; /* held by other rows */
        esp_state_need(r->state, n, &pages, &slots);
    }
    test_ok(esp_state_begin(r->state, n, ESP_PASS_WRITE, &b, &err), &err);
    at = b.n;
    for (uint32_t i = 0; i < at + n; i++) {
        if (i >= at)
            r->tokens[i] = (int32_t)rnd(rnd(4) ? 1 : 3); /* mostly alike, so that paths share and branch */
        h = stamp(h, r->tokens[i]);
        if (i >= at)
            *page_at(b.pages[esp_layout_page_of(&pools->mem.layout, i)], i) = h;
    }
    *slot_at(b.slot) = h;
    test_ok(esp_state_commit(r->state, n, &err), &err);
    esp_state_peek(r->state, &v);
    assert_int_equal(v.n, at + n);
}

static void insert(const struct row *r)
{
    struct esp_state_view v;
    esp_error err;

    esp_state_peek(r->state, &v);
    if (v.n == 0)
        return;
    test_ok(esp_prefix_insert(tree, r->ns, r->tokens, &v, &err), &err);
    if (n_entry == MAX_ENTRY)
        return;
    entries[n_entry] = (struct entry){.tokens = malloc(v.n * sizeof(int32_t)), .n = v.n, .ns = r->ns};
    memcpy(entries[n_entry++].tokens, r->tokens, v.n * sizeof(int32_t));
}

/* Forget what r has, take the longest cached part of a text (its own, changed somewhere, or another's). */
static void lookup(struct row *r, bool exact)
{
    static int32_t text[CONTEXT];
    const struct row *from = &rows[rnd(N_ROW)];
    uint32_t n = 1 + rnd(CONTEXT), limit = rnd(n), match = 0, best = 0, reached = 0;
    struct esp_prefix_hit hit;
    esp_error err;

    memcpy(text, from->tokens, sizeof text);
    if (rnd(2))
        text[rnd(n)] ^= 1;
    hit = esp_prefix_find(tree, from->ns, text, n, limit);
    for (uint32_t i = 0; i < n_entry; i++) {
        const struct entry *e = &entries[i];
        uint32_t m = 0;

        while (e->ns == from->ns && m < n && m < e->n && e->tokens[m] == text[m])
            m++;
        match = m > match ? m : match;
        best = e->ns == from->ns && m == e->n && m <= limit && m > best ? m : best;
    }
    if (n_entry < MAX_ENTRY) /* a long soak checks contents alone once the list is full */
        assert_true(hit.match <= match && hit.n <= best && hit.n <= limit);
    if (exact) {
        assert_int_equal(hit.match, match);
        assert_int_equal(hit.n, best);
    }
    if (hit.n == 0)
        return;
    test_ok(esp_prefix_lend(tree, from->ns, text, limit, r->state, &reached, &err), &err);
    assert_int_equal(reached, hit.n);
    r->ns = from->ns;
    memcpy(r->tokens, text, sizeof text);
    check_row(r);
}

static void random_ops(uint32_t n_op, bool exact)
{
    const char *why;
    uint32_t reached;
    esp_error err;

    for (uint32_t i = 0; i < n_op; i++) {
        struct row *r = &rows[rnd(N_ROW)], *other = &rows[rnd(N_ROW)];
        uint32_t n = esp_state_length(r->state), what = rnd(12);

        if (what < 4 && n < CONTEXT)
            append(r, 1 + rnd(rnd(3) ? 40 : CONTEXT - n));
        else if (what < 7)
            insert(r);
        else if (what < 9)
            lookup(r, exact);
        else if (what == 9)
            test_ok(esp_state_rewind(r->state, rnd(n + 1), &reached, &err), &err);
        else if (what == 10 && !exact)
            esp_prefix_evict(tree, rnd(2) ? ESP_PREFIX_PAGE : ESP_PREFIX_SLOT);
        else if (what == 11 && r != other) {
            esp_state_close(r->state);
            test_ok(esp_state_fork(&r->state, other->state, &err), &err);
            memcpy(r->tokens, other->tokens, sizeof r->tokens);
            r->ns = other->ns;
        }
        if (!esp_prefix_valid(tree, &why))
            fail_msg("operation %u: %s", i, why);
        check_row(r);
        if (i % 64 == 0)
            esp_prefix_each(tree, check_path, NULL);
    }
}

static uint32_t n_ops(void)
{
    const char *s = getenv("ESPALIER_SOAK");

    return s && *s ? 100000 : 3000;
}

static void test_exact(void **state)
{
    (void)state;
    open_all(4000, 4000, 2000, 2000);
    random_ops(n_ops() < 3000 ? n_ops() : 3000, true);
    assert_int_equal(n_spilled, 0);
    close_all();
}

static void test_tight(void **state)
{
    (void)state;
    open_all(40, 16, 10, 4);
    random_ops(n_ops(), false);
    assert_true(n_spilled > 10);
    close_all();
}

static void test_rules(void **state)
{
    struct row *r = &rows[0];
    struct esp_prefix_counts c;
    struct esp_prefix_path path;
    struct esp_prefix_hit hit;
    esp_error err;
    const struct esp_prefix_opts bad = {.max_checkpoints = 4, .per_path = 1, .max_positions = 10};
    struct esp_state_view v = {0};
    struct esp_prefix *none = NULL;

    (void)state;
    open_all(40, 40, 30, 4);
    test_refused(esp_prefix_create(&none, pools, &bad, &err), ESP_EINVAL, &err, "1 a path");
    test_refused(esp_prefix_insert(tree, 0, r->tokens, &v, &err), ESP_EINVAL, &err, "0 tokens");
    for (int i = 0; i < 9; i++) { /* 4 of 9 stay, the last among them */
        append(r, 100);
        insert(r);
    }
    esp_prefix_count(tree, &c);
    assert_int_equal(c.checkpoints, 4);
    assert_int_equal(c.evictions, 5);
    assert_int_equal(c.leaves, 1);
    assert_int_equal(c.tokens, 900);
    hit = esp_prefix_find(tree, r->ns, r->tokens, 900, 900);
    assert_int_equal(hit.n, 900);
    hit = esp_prefix_find(tree, r->ns + 1, r->tokens, 900, 900); /* another namespace */
    assert_int_equal(hit.match, 0);
    hit = esp_prefix_find(tree, r->ns, r->tokens, 900, 899); /* at least one token must run */
    assert_true(hit.n < 900 && hit.n > 0 && hit.match == 900);
    assert_true(esp_prefix_unsaved(tree, &path));
    assert_int_equal(path.n, 900);
    esp_prefix_set_saved(tree, path.ns, path.tokens, path.n);
    assert_false(esp_prefix_unsaved(tree, &path));
    n_spilled = 0;
    while (esp_prefix_evict(tree, ESP_PREFIX_SLOT))
        ;
    esp_prefix_count(tree, &c);
    assert_int_equal(c.nodes, 0);
    close_all();
}

/* Every allocation of an insertion fails once: the tree stays valid and what it has stays of use. */
static void test_out_of_memory(void **state)
{
    struct row *r = &rows[0];
    const char *why;
    esp_error err;
    int n_failed = 0;

    (void)state;
    open_all(80, 80, 30, 8);
    for (int round = 0; round < 30; round++) {
        struct esp_state_view v;
        uint32_t reached;
        esp_status s = ESP_ENOMEM;

        if (esp_state_length(r->state) > 500)
            test_ok(esp_state_rewind(r->state, 0, &reached, &err), &err);
        append(r, 1 + rnd(150));
        esp_state_peek(r->state, &v);
        for (int64_t at = 0; s != ESP_OK; at++) {
            esp_mem_fail_at(at);
            s = esp_prefix_insert(tree, r->ns, r->tokens, &v, &err);
            esp_mem_fail_at(-1);
            n_failed += s != ESP_OK;
            if (s != ESP_OK)
                assert_int_equal(s, ESP_ENOMEM);
            if (!esp_prefix_valid(tree, &why))
                fail_msg("%s", why);
        }
        esp_prefix_each(tree, check_path, NULL);
        assert_int_equal(esp_prefix_find(tree, r->ns, r->tokens, v.n, v.n).n, v.n);
    }
    assert_true(n_failed > 60);
    close_all();
}

int main(void)
{
    const struct CMUnitTest exact[] = {cmocka_unit_test(test_exact), cmocka_unit_test(test_tight)};
    int failed;

    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_exact),
                                       cmocka_unit_test(test_tight), cmocka_unit_test(test_out_of_memory)};

    failed = cmocka_run_group_tests(tests, NULL, NULL);
    exact_start = 130; /* one exact page and a part of another */
    return failed | cmocka_run_group_tests(exact, NULL, NULL);
}
