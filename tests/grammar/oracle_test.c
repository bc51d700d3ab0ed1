/*
 * Masks against a recogniser that shares nothing with them. Random grammars are made as trees, printed as
 * GBNF, and judged by walking the tree over the whole text; random vocabularies cut characters in pieces and
 * repeat each other's bytes. At every step the mask must equal the judgement of each token, and going back
 * and cloning must not show.
 *
 * SPDX-License-Identifier: MIT
 */
#include "help.h"

#include "base/strbuf.h"

enum { MAX_NODE = 96, MAX_RULE = 5, MAX_TEXT = 26, N_WORD = 60 };

enum kind { LITERAL, CLASS, CALL, SEQ, ALT, REPEAT };

struct tree {
    struct node {
        enum kind kind;
        int a, b; /* children; rule; minimum and maximum are in lo, hi */
        int lo, hi;
        const char *text; /* of a literal */
    } node[MAX_NODE];
    bool can[MAX_NODE]; /* has a text at all */
    int n, n_rule;
    int rule[MAX_RULE];
};

static const char *const literals[] = {"a", "b", "ab", "ba", "\xc3\xa9", "a\xc3\xa9", "\xf0\x9f\x98\x80", ""};
static const char *const classes[] = {"[ab]", "[^a]", "[a-c\xc3\xa9]", "."};

static int add(struct tree *t, struct node n)
{
    assert_true(t->n < MAX_NODE);
    t->node[t->n] = n;
    return t->n++;
}

static int grow(struct tree *t, struct esp_rng_key *k, int depth)
{
    const uint32_t kind = depth == 0 || t->n > MAX_NODE - 24 ? draw(k, 3) : draw(k, 8);
    int a, b;

    switch (kind) {
    case 0:
        return add(t, (struct node){.kind = LITERAL, .text = literals[draw(k, 8)]});
    case 1:
        return add(t, (struct node){.kind = CLASS, .a = (int)draw(k, 4)});
    case 2:
        return add(t, (struct node){.kind = CALL, .a = (int)draw(k, (uint32_t)t->n_rule)});
    case 3:
    case 4:
    case 5:
        a = grow(t, k, depth - 1);
        b = grow(t, k, depth - 1);
        return add(t, (struct node){.kind = SEQ, .a = a, .b = b});
    case 6:
        a = grow(t, k, depth - 1);
        b = grow(t, k, depth - 1);
        return add(t, (struct node){.kind = ALT, .a = a, .b = b});
    default:
        a = grow(t, k, depth - 1);
        b = (int)draw(k, 3);
        return add(
            t, (struct node){.kind = REPEAT, .a = a, .lo = b, .hi = draw(k, 2) ? -1 : b + (int)draw(k, 3)});
    }
}

static void print(const struct tree *t, int i, struct esp_strbuf *out)
{
    const struct node *n = &t->node[i];

    switch (n->kind) {
    case LITERAL:
        esp_strbuf_printf(out, "\"%s\"", n->text);
        break;
    case CLASS:
        esp_strbuf_puts(out, classes[n->a]);
        break;
    case CALL:
        if (n->a)
            esp_strbuf_printf(out, "r%d", n->a);
        else
            esp_strbuf_puts(out, "root");
        break;
    case SEQ:
    case ALT:
        esp_strbuf_puts(out, "(");
        print(t, n->a, out);
        esp_strbuf_puts(out, n->kind == ALT ? " | " : " ");
        print(t, n->b, out);
        esp_strbuf_puts(out, ")");
        break;
    case REPEAT:
        esp_strbuf_puts(out, "(");
        print(t, n->a, out);
        esp_strbuf_printf(out, n->hi < 0 ? "){%d,}" : "){%d,%d}", n->lo, n->hi);
        break;
    }
}

static void find_texts(struct tree *t)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < t->n; i++) {
            const struct node *n = &t->node[i];
            bool can = n->kind == LITERAL || n->kind == CLASS;

            if (n->kind == CALL)
                can = t->can[t->rule[n->a]];
            if (n->kind == SEQ)
                can = t->can[n->a] && t->can[n->b];
            if (n->kind == ALT)
                can = t->can[n->a] || t->can[n->b];
            if (n->kind == REPEAT)
                can = n->lo == 0 || t->can[n->a];
            changed |= can && !t->can[i];
            t->can[i] |= can;
        }
    }
}

/* ---- the judge ---- */

struct judge {
    const struct tree *t;
    const char *s;
    int len;
    bool more; /* something wanted to read on at the end: the text is a beginning */
    uint64_t memo[MAX_NODE][MAX_TEXT + 9];
    bool known[MAX_NODE][MAX_TEXT + 9];
    bool changed;
};

static uint64_t ends(struct judge *j, int i, int at);

static uint64_t literal_ends(struct judge *j, const char *text, int at)
{
    for (; *text; text++, at++) {
        if (at == j->len) {
            j->more = true;
            return 0;
        }
        if (j->s[at] != *text)
            return 0;
    }
    return UINT64_C(1) << at;
}

/* Bytes of well-formed UTF-8 for this alphabet: lead bytes c3 and f0 9f 98 80, or any other of a valid
 * character. */
static uint64_t class_ends(struct judge *j, int kind, int at)
{
    const unsigned char *s = (const unsigned char *)j->s + at;
    const int left = j->len - at;
    uint32_t lo = 0x80, hi = 0xbf, cp;
    int n;

    if (left == 0) {
        j->more = true;
        return 0;
    }
    n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] == 0 || (s[0] >= 0x80 && s[0] < 0xc2) || s[0] > 0xf4)
        return 0;
    if (kind == 0 || kind == 2) { /* few characters: compare with each */
        uint64_t e = literal_ends(j, "a", at) | literal_ends(j, "b", at);

        if (kind == 2)
            e |= literal_ends(j, "c", at) | literal_ends(j, "\xc3\xa9", at);
        return e;
    }
    if (s[0] == 0xe0)
        lo = 0xa0;
    if (s[0] == 0xed)
        hi = 0x9f;
    if (s[0] == 0xf0)
        lo = 0x90;
    if (s[0] == 0xf4)
        hi = 0x8f;
    for (int i = 1; i < n; i++) {
        if (i == left) {
            j->more = true;
            return 0;
        }
        if (s[i] < lo || s[i] > hi)
            return 0;
        lo = 0x80;
        hi = 0xbf;
    }
    cp = s[0];
    if (kind == 1 && cp == 'a')
        return 0;
    return UINT64_C(1) << (at + n);
}

/* Ends of i from every place in `from`. */
static uint64_t ends_from(struct judge *j, int i, uint64_t from)
{
    uint64_t out = 0;

    for (int at = 0; at <= j->len; at++)
        if (from >> at & 1)
            out |= ends(j, i, at);
    return out;
}

static uint64_t repeat_ends(struct judge *j, const struct node *n, int at)
{
    uint64_t now = UINT64_C(1) << at, out = 0;

    for (int i = 0; i < n->lo; i++)
        now = ends_from(j, n->a, now);
    out = now;
    for (int i = n->lo; n->hi < 0 ? i < n->lo + j->len + 2 : i < n->hi; i++) {
        now = ends_from(j, n->a, now);
        out |= now;
    }
    return out;
}

static uint64_t ends(struct judge *j, int i, int at)
{
    const struct node *n = &j->t->node[i];
    uint64_t e = 0;

    if (!j->t->can[i])
        return 0;
    if (j->known[i][at]) /* a rule that comes back to itself here has what earlier rounds found */
        return j->memo[i][at];
    j->known[i][at] = true;
    switch (n->kind) {
    case LITERAL:
        e = literal_ends(j, n->text, at);
        break;
    case CLASS:
        e = class_ends(j, n->a, at);
        break;
    case CALL:
        e = ends(j, j->t->rule[n->a], at);
        break;
    case SEQ:
        e = ends_from(j, n->b, ends(j, n->a, at));
        break;
    case ALT:
        e = ends(j, n->a, at) | ends(j, n->b, at);
        break;
    case REPEAT:
        e = repeat_ends(j, n, at);
        break;
    }
    j->changed |= (e & ~j->memo[i][at]) != 0;
    j->memo[i][at] |= e;
    return j->memo[i][at];
}

/* -1 no beginning of a text, 0 a beginning, 1 complete and nothing may follow, 2 complete */
static int verdict(const struct tree *t, const char *s, int len)
{
    static struct judge j;
    bool complete;

    memset(&j, 0, sizeof j);
    j.t = t;
    j.s = s;
    j.len = len;
    do {
        memset(j.known, 0, sizeof j.known);
        j.changed = false;
        complete = ends(&j, t->rule[0], 0) >> len & 1;
    } while (j.changed);
    if (complete)
        return j.more ? 2 : 1;
    return j.more ? 0 : -1;
}

/* ---- the walk ---- */

struct bag {
    char bytes[N_WORD][8];
    const char *text[N_WORD];
    size_t len[N_WORD];
    struct words w;
};

static void fill(struct bag *b, struct esp_rng_key *k)
{
    static const char alphabet[] = "aabbbc\xc3\xa9\xf0\x9f\x98\x80\xe2\x82";

    for (uint32_t i = 0; i < N_WORD; i++) {
        b->len[i] = i < 10 ? 1 : 1 + draw(k, 7);
        for (size_t c = 0; c < b->len[i]; c++)
            b->bytes[i][c] = alphabet[i < 10 ? i + 4 : draw(k, sizeof alphabet - 1)];
        b->text[i] = b->bytes[i];
    }
    b->w = (struct words){b->text, b->len, N_WORD, N_WORD - 2};
}

struct walk {
    const struct tree *t;
    const struct bag *bag;
    struct esp_matcher *m;
    char text[MAX_TEXT + 8];
    int len;
    uint32_t ids[MAX_TEXT];
    int n;
};

static void check_state(const struct walk *w)
{
    const int v = verdict(w->t, w->text, w->len);
    const enum esp_match_state s = esp_matcher_state(w->m);

    assert_true(v >= 0);
    assert_int_equal(s, v == 0 ? ESP_MATCH_MORE : v == 1 ? ESP_MATCH_ENDED : ESP_MATCH_MAY_END);
}

/* Compare the mask with the judge; the number of tokens allowed, listed in ids. */
static uint32_t check_mask(struct walk *w, uint32_t ids[N_WORD])
{
    uint64_t bits[2] = {UINT64_MAX, UINT64_MAX};
    uint32_t n = 0;
    esp_error err;

    if (esp_matcher_mask(w->m, bits, 2, &err) == ESP_ENOFIT)
        return 0; /* too ambiguous to be followed, which is an error and never a wrong mask */
    test_ok(esp_matcher_mask(w->m, bits, 2, &err), &err);
    for (uint32_t id = 0; id < N_WORD; id++) {
        char text[MAX_TEXT + 8];
        bool want;

        memcpy(text, w->text, (size_t)w->len);
        memcpy(text + w->len, w->bag->text[id], w->bag->len[id]);
        want = id < w->bag->w.n_plain && verdict(w->t, text, w->len + (int)w->bag->len[id]) >= 0;
        if (want != has(bits, id) && esp_matcher_accept(w->m, id, &err) == ESP_ENOFIT)
            return 0;
        if (has(bits, id) != want)
            fail_msg("token %u \"%.*s\" behind \"%.*s\": mask %d, judge %d", id, (int)w->bag->len[id],
                     w->bag->text[id], w->len, w->text, has(bits, id), want);
        if (!want && esp_matcher_accept(w->m, id, &err) != ESP_ENOFIT)
            test_refused(esp_matcher_accept(w->m, id, &err), ESP_EINVAL, &err, "may not come");
        else if (!want)
            return 0;
        else
            ids[n++] = id;
    }
    for (uint32_t id = N_WORD; id < 128; id++)
        assert_false(has(bits, id));
    return n;
}

static void take(struct walk *w, uint32_t id)
{
    esp_error err;

    test_ok(esp_matcher_accept(w->m, id, &err), &err);
    memcpy(w->text + w->len, w->bag->text[id], w->bag->len[id]);
    w->len += (int)w->bag->len[id];
    w->ids[w->n++] = id;
}

static void go_back(struct walk *w, uint32_t n)
{
    esp_matcher_rollback(w->m, n);
    while (n--)
        w->len -= (int)w->bag->len[w->ids[--w->n]];
}

/* Forced tokens must be the only text that can follow, and come out the same whatever the cap. */
static void check_forced(struct walk *w)
{
    uint32_t all[16], some[16];
    const uint32_t n = esp_matcher_forced(w->m, all, 16);

    if (n == 0)
        return;
    assert_int_equal(esp_matcher_forced(w->m, some, 1), 1);
    assert_int_equal(some[0], all[0]);
    if (w->len + (int)w->bag->len[all[0]] >= MAX_TEXT)
        return;
    for (size_t c = 0; c < w->bag->len[all[0]]; c++) {
        char text[MAX_TEXT + 8];

        memcpy(text, w->text, (size_t)w->len);
        memcpy(text + w->len, w->bag->text[all[0]], c);
        for (int other = 1; other < 256; other++) {
            text[w->len + (int)c] = (char)other;
            if (other != (unsigned char)w->bag->text[all[0]][c] &&
                verdict(w->t, text, w->len + (int)c + 1) != -1)
                fail_msg("forced \"%.*s\" behind \"%.*s\", but byte %d can follow %zu of it",
                         (int)w->bag->len[all[0]], w->bag->text[all[0]], w->len, w->text, other, c);
        }
    }
    take(w, all[0]);
    if (n > 1 && n < 16) {
        assert_int_equal(esp_matcher_forced(w->m, some, 16), n - 1);
        assert_memory_equal(some, all + 1, (n - 1) * sizeof *all);
    }
    go_back(w, 1);
}

static void walk_once(struct walk *w, struct esp_rng_key *k)
{
    for (int step = 0; step < 14; step++) {
        uint32_t ids[N_WORD], n;
        struct esp_matcher *c = NULL;
        esp_error err;

        check_state(w);
        check_forced(w);
        n = check_mask(w, ids);
        if (n == 0)
            break;
        n = ids[draw(k, n)];
        if (w->len + (int)w->bag->len[n] > MAX_TEXT - 8)
            break;
        take(w, n);
        if (draw(k, 4) == 0)
            go_back(w, draw(k, (uint32_t)w->n + 1));
        if (draw(k, 16) == 0) {
            test_ok(esp_matcher_clone(&c, w->m, &err), &err);
            esp_matcher_close(w->m);
            w->m = c;
        }
    }
}

static void random_grammars_keep_to_the_judge(void **state)
{
    struct esp_rng_key k = {.seed = 20260728};
    int n_ok = 0, n_left = 0, n_never = 0, n = 0;
    const char *runs = getenv("ESPALIER_TEST_GRAMMARS");
    esp_error err;

    (void)state;
#ifdef __SANITIZE_ADDRESS__
    n = 150;
#else
    n = 700;
#endif
    for (n = runs ? (int)strtol(runs, NULL, 10) : n; n > 0; n--) {
        struct tree t = {.n_rule = 1 + (int)draw(&k, MAX_RULE)};
        struct esp_grammar *g = NULL;
        struct esp_strbuf text;
        struct bag bag;
        struct esp_vocab *v;
        esp_status s;

        esp_strbuf_init(&text, 1 << 16);
        for (int i = 0; i < t.n_rule; i++) {
            t.rule[i] = grow(&t, &k, 3);
            esp_strbuf_printf(&text, i ? "r%d ::= " : "root ::= ", i);
            print(&t, t.rule[i], &text);
            esp_strbuf_puts(&text, "\n");
        }
        find_texts(&t);
        fill(&bag, &k);
        v = open_words(&bag.w);
        s = esp_grammar_gbnf(&g, v, text.data, text.len, &err);
        if (s == ESP_OK) {
            for (int i = 0; i < 3; i++) {
                struct walk w = {.t = &t, .bag = &bag};

                test_ok(esp_matcher_open(&w.m, g, NULL, &err), &err);
                walk_once(&w, &k);
                esp_matcher_close(w.m);
            }
            n_ok++;
        } else {
            assert_int_equal(s, ESP_EFORMAT);
            if (strstr(err.message, "left recursion"))
                n_left++;
            else if (strstr(err.message, "never be completed"))
                n_never++;
            else
                fail_msg("%s\n%s", err.message, text.data);
        }
        esp_grammar_release(g);
        esp_vocab_destroy(v);
        esp_strbuf_free(&text);
    }
    print_message("%d grammars walked, %d left-recursive, %d without a text\n", n_ok, n_left, n_never);
    assert_true(n_ok > n_left && n_ok > n_never);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_grammars_keep_to_the_judge)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
