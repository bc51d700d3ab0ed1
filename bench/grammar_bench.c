/*
 * What structured output costs a step: masks for a vocabulary of 248,320 tokens. Without a tokenizer.json as
 * second argument the vocabulary is made up to look like one: letters in words of 1 to 16 with and without a
 * leading space, digits, punctuation runs, and multi-byte characters. Built with the tests; not run by them.
 *
 *     build/release/grammar_bench [steps [tokenizer.json]]
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

enum { N_VOCAB = 248320, LONGEST = 24 };

struct made {
    char (*bytes)[LONGEST];
    unsigned char *len;
};

static uint32_t draw(struct esp_rng_key *k, uint32_t below)
{
    uint32_t w[4];

    k->position++;
    esp_rng_words(k, w);
    return w[0] % below;
}

static void make_word(struct esp_rng_key *k, char *out, unsigned char *len)
{
    static const char letters[] = "etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLUCMFWYPVBGKJQXZ";
    static const char marks[] = "\"\",,::{}[]()<>=;.-_/\\*'#!?&|+ \n\t";
    const uint32_t kind = draw(k, 100);
    unsigned n = 0;

    if (kind < 60) { /* a word */
        if (draw(k, 2))
            out[n++] = ' ';
        for (uint32_t i = 2 + draw(k, 5) + draw(k, 6); i > 0; i--)
            out[n++] = letters[draw(k, draw(k, 4) ? 20 : 52)];
    } else if (kind < 72) { /* marks */
        for (uint32_t i = 1 + draw(k, 5); i > 0; i--)
            out[n++] = marks[draw(k, sizeof marks - 1)];
    } else { /* other scripts: characters of two or three bytes */
        for (uint32_t i = 1 + draw(k, 4); i > 0; i--) {
            const uint32_t cp = draw(k, 2) ? 0x400 + draw(k, 0x300) : 0x4e00 + draw(k, 0x3000);

            if (cp < 0x800) {
                out[n++] = (char)(0xc0 | cp >> 6);
            } else {
                out[n++] = (char)(0xe0 | cp >> 12);
                out[n++] = (char)(0x80 | (cp >> 6 & 0x3f));
            }
            out[n++] = (char)(0x80 | (cp & 0x3f));
        }
    }
    *len = (unsigned char)n;
}

static void get_made(const void *ctx, uint32_t id, struct esp_vocab_token *out)
{
    const struct made *m = ctx;

    *out = (struct esp_vocab_token){.bytes = m->bytes[id], .len = m->len[id], .plain = true};
}

static void get_real(const void *ctx, uint32_t id, struct esp_vocab_token *out)
{
    esp_tokenizer_token_bytes(ctx, id, &out->bytes, &out->len);
    out->plain = !esp_tokenizer_is_added(ctx, id);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

/* Random texts under g; times of masks with the store empty at first, and again on other texts with it
 * filled. */
static void walk(const char *name, struct esp_grammar *g, uint32_t n_step)
{
    static uint64_t bits[(N_VOCAB + 63) / 64 + 4096];
    double *t = malloc(n_step * sizeof *t), accept = 0, forced = 0;
    struct esp_rng_key k = {.seed = 7};
    struct esp_matcher *m = NULL;
    esp_error err;

    for (int round = 0; t && round < 2; round++) {
        uint32_t n_forced = 0;

        accept = forced = 0;
        for (uint32_t i = 0; i < n_step; i++) {
            uint32_t id, ids[16];
            double t0;

            if (!m && esp_matcher_open(&m, g, NULL, &err) != ESP_OK)
                return;
            t0 = now();
            n_forced += esp_matcher_forced(m, ids, 16);
            forced += now() - t0;
            memset(bits, 0xff, sizeof bits);
            t0 = now();
            if (esp_matcher_mask(m, bits, sizeof bits / 8, &err) != ESP_OK) {
                printf("%s: %s\n", name, err.message);
                return;
            }
            t[i] = now() - t0;
            for (id = draw(&k, N_VOCAB); !(bits[id / 64] >> id % 64 & 1); id = (id + 1) % N_VOCAB)
                continue;
            t0 = now();
            if (esp_matcher_accept(m, id, &err) != ESP_OK)
                printf("%s: %s\n", name, err.message);
            accept += now() - t0;
            if (esp_matcher_state(m) == ESP_MATCH_ENDED || i % 200 == 199) {
                esp_matcher_close(m);
                m = NULL;
            }
        }
        qsort(t, n_step, sizeof *t, by_value);
        printf("%-10s %s  mask us: median %6.1f  p90 %6.1f  p99 %7.1f  max %7.1f   accept %.2f  forced %.2f "
               "(%u)  %zu "
               "KiB\n",
               name, round ? "warm" : "cold", t[n_step / 2], t[n_step * 9 / 10], t[n_step * 99 / 100],
               t[n_step - 1], accept / n_step, forced / n_step, n_forced, esp_grammar_bytes(g) >> 10);
    }
    esp_matcher_close(m);
    free(t);
}

static const char person[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{"
                             "\"type\":\"integer\",\"minimum\":0,"
                             "\"maximum\":150},\"email\":{\"type\":\"string\",\"format\":\"email\"},\"tags\":"
                             "{\"type\":\"array\",\"items\":{"
                             "\"type\":\"string\",\"maxLength\":40},\"maxItems\":5},\"address\":{\"type\":"
                             "\"object\",\"properties\":{\"street\":"
                             "{\"type\":\"string\"},\"city\":{\"type\":\"string\"},\"zip\":{\"type\":"
                             "\"string\",\"pattern\":\"^[0-9]{5}$\"}},"
                             "\"required\":[\"street\",\"city\"]},\"note\":{\"type\":\"string\","
                             "\"maxLength\":2000}},\"required\":[\"name\","
                             "\"age\",\"note\"]}";

static const char gbnf[] =
    "root ::= object\n"
    "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
    "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) "
    ")* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static void run_all(const struct esp_vocab *v, uint32_t n_step)
{
    struct esp_grammar *g = NULL;
    json_t *j = json_loads(person, 0, NULL);
    esp_error err;
    double t0 = now();

    if (esp_grammar_schema(&g, v, j, 0, &err) == ESP_OK) {
        printf("schema compiled in %.0f us\n", now() - t0);
        walk("schema", g, n_step);
    }
    esp_grammar_release(g);
    g = NULL;
    if (esp_grammar_schema(&g, v, NULL, 0, &err) == ESP_OK)
        walk("any JSON", g, n_step);
    esp_grammar_release(g);
    g = NULL;
    if (esp_grammar_gbnf(&g, v, gbnf, strlen(gbnf), &err) == ESP_OK)
        walk("GBNF JSON", g, n_step);
    else
        printf("%s\n", err.message);
    esp_grammar_release(g);
    g = NULL;
    if (esp_grammar_regex(&g, v, "([A-Z][a-z]+ ){2,6}[0-9]{4}", 27, &err) == ESP_OK)
        walk("regex", g, n_step);
    esp_grammar_release(g);
    json_decref(j);
}

int main(int argc, char **argv)
{
    const uint32_t n_step = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2000;
    struct made m = {.bytes = calloc(N_VOCAB, LONGEST), .len = calloc(N_VOCAB, 1)};
    struct esp_vocab_source src = {.n_ids = N_VOCAB, .get = get_made, .ctx = &m};
    struct esp_tokenizer *tok = NULL;
    struct esp_rng_key k = {.seed = 1};
    struct esp_vocab *v = NULL;
    esp_error err;
    double t0;

    if (!m.bytes || !m.len || n_step == 0)
        return 1;
    for (uint32_t id = 0; id < N_VOCAB; id++) {
        m.bytes[id][0] = (char)id;
        m.len[id] = id > 0;
        if (id >= 256)
            make_word(&k, m.bytes[id], &m.len[id]);
    }
    if (argc > 2) {
        if (esp_tokenizer_open(&tok, argv[2], &err) != ESP_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        src.get = get_real;
        src.ctx = tok;
    }
    t0 = now();
    if (esp_vocab_create(&v, &src, &err) != ESP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("vocabulary of %u ids: %.0f ms, %zu KiB\n", src.n_ids, (now() - t0) / 1e3,
           esp_vocab_bytes(v) >> 10);
    run_all(v, n_step);
    esp_vocab_destroy(v);
    esp_tokenizer_close(tok);
    free(m.bytes);
    free(m.len);
    return 0;
}
