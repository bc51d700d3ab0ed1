/*
 * See recall.h. Every choice is a draw of its own, by what it is for (base/rng.h), so an item's facts do not
 * depend on how long its text is.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/recall.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"

enum { N_NAME = 32, MAX_FACT = ESP_RECALL_KEYS * (ESP_RECALL_MAX_HOPS + 1) };

/* What a draw is for. */
enum purpose { FOR_NAME, FOR_CODE, FOR_PLACE, FOR_WORD };

static const char *const names[N_NAME * 2] = {
    "Mira",   "Toben", "Alvar", "Sunniva", "Kasimir", "Odile",  "Ferran", "Ilse",  "Radek",  "Yara",
    "Bruno",  "Celia", "Dario", "Edda",    "Gustav",  "Hilde",  "Ivo",    "Jonas", "Katrin", "Lars",
    "Milena", "Nils",  "Orla",  "Petra",   "Quirin",  "Rosa",   "Stefan", "Tilda", "Ulf",    "Vera",
    "Wim",    "Xenia", "Agnes", "Boris",   "Clara",   "Detlef", "Emil",   "Flora", "Gregor", "Hanna",
    "Ingo",   "Jette", "Knut",  "Lotte",   "Magnus",  "Nora",   "Oskar",  "Paula", "Ruben",  "Sanne",
    "Theo",   "Ursel", "Viggo", "Wanda",   "Anton",   "Birte",  "Casper", "Dora",  "Erwin",  "Frida",
    "Gero",   "Helma", "Isak",  "Jule"};
static const char *const subjects[] = {"The miller",    "A grey heron",    "The old ferry",
                                       "Our neighbour", "The night train", "A small dog",
                                       "The gardener",  "The school choir"};
static const char *const verbs[] = {"waited near", "walked past", "looked at",      "came back to",
                                    "stayed by",   "went around", "stood opposite", "passed"};
static const char *const places[] = {"the harbour",   "a stone bridge", "the empty market", "the orchard",
                                     "the tall mill", "a quiet square", "the river bend",   "the library"};
static const char *const times[] = {"before noon",       "in the rain",     "until evening",
                                    "on a Sunday",       "without a sound", "for a long while",
                                    "as the bells rang", "late in autumn"};

struct fact {
    const char *name, *refers; /* refers NULL: code */
    const char *code;
    uint32_t place; /* of 2^32 of the text */
    bool needed;
};

struct item {
    const struct esp_recall *r;
    struct fact fact[MAX_FACT];
    uint32_t n;
};

const char *esp_recall_name(enum esp_recall_task t)
{
    return t == ESP_RECALL_NEEDLE ? "needle" : "hops";
}

static uint32_t draw(const struct esp_recall *r, enum purpose what, uint32_t i)
{
    const struct esp_rng_key key = {.seed = r->seed,
                                    .position = (uint64_t)r->index << 32 | i,
                                    .choice = (uint32_t)r->task * 16 + r->n_hop,
                                    .draw = what};
    uint32_t out[4];

    esp_rng_words(&key, out);
    return out[0];
}

/* ---- facts ---- */

/* Different codes without a leading zero, so that each is one number of as many digits. */
static void choose_codes(const struct esp_recall *r, struct esp_recall_answer *a)
{
    uint32_t used[ESP_RECALL_KEYS] = {0}, i = 0;

    for (uint32_t n = 0; n < ESP_RECALL_KEYS; i++) {
        const uint32_t code = 10000 + draw(r, FOR_CODE, i) % 90000;
        bool fresh = true;

        for (uint32_t j = 0; j < n; j++)
            fresh = fresh && used[j] != code;
        if (!fresh)
            continue;
        used[n] = code;
        snprintf(a->code[n++], sizeof a->code[0], "%u", code);
    }
}

/* A shuffle of all names. */
static void choose_names(const struct esp_recall *r, const char **out)
{
    memcpy(out, names, sizeof names);
    for (uint32_t i = 2 * N_NAME - 1; i > 0; i--) {
        const uint32_t j = draw(r, FOR_NAME, i) % (i + 1);
        const char *t = out[i];

        out[i] = out[j];
        out[j] = t;
    }
}

/* Chain k ends in code k; chain 0 is the one that is asked for. */
static void choose_facts(struct item *it, const struct esp_recall_answer *a)
{
    const uint32_t hops = it->r->task == ESP_RECALL_HOPS ? it->r->n_hop : 0;
    const char *name[2 * N_NAME];
    uint32_t next = 0;

    choose_names(it->r, name);
    for (uint32_t k = 0; k < ESP_RECALL_KEYS; k++) {
        for (uint32_t h = 0; h <= hops; h++) {
            struct fact *f = &it->fact[it->n];

            *f = (struct fact){.name = name[next],
                               .refers = h < hops ? name[next + 1] : NULL,
                               .code = a->code[k],
                               .place = draw(it->r, FOR_PLACE, it->n),
                               .needed = k == 0};
            next++;
            it->n++;
        }
    }
}

static void sort_facts(struct item *it)
{
    for (uint32_t i = 1; i < it->n; i++) {
        const struct fact f = it->fact[i];
        uint32_t j = i;

        for (; j > 0 && it->fact[j - 1].place > f.place; j--)
            it->fact[j] = it->fact[j - 1];
        it->fact[j] = f;
    }
}

/* ---- text ---- */

static void add_sentence(const struct esp_recall *r, uint32_t i, struct esp_strbuf *t)
{
    const uint32_t w = draw(r, FOR_WORD, i);

    esp_strbuf_printf(t, "%s %s %s %s. ", subjects[w & 7], verbs[w >> 3 & 7], places[w >> 6 & 7],
                      times[w >> 9 & 7]);
}

static void add_fact(const struct fact *f, struct esp_strbuf *t)
{
    if (f->refers)
        esp_strbuf_printf(t, "The code of %s is the code of %s. ", f->name, f->refers);
    else
        esp_strbuf_printf(t, "The code of %s is %s. ", f->name, f->code);
}

esp_status esp_recall_text(const struct esp_recall *r, bool closed, struct esp_strbuf *text,
                           struct esp_recall_answer *answer, esp_error *err)
{
    const size_t start = text->len;
    struct item it = {.r = r};
    size_t first = 0;
    const char *asked;
    uint32_t f = 0;

    memset(answer, 0, sizeof *answer);
    choose_codes(r, answer);
    choose_facts(&it, answer);
    asked = it.fact[0].name;
    sort_facts(&it);
    for (uint32_t i = 0; i <= r->n_sentence; i++) {
        for (; f < it.n && (uint64_t)it.fact[f].place * (r->n_sentence + 1) >> 32 == i; f++) {
            if (it.fact[f].needed && !first)
                first = text->len - start + 1;
            add_fact(&it.fact[f], text);
        }
        if (i < r->n_sentence)
            add_sentence(r, i, text);
    }
    if (text->len > start)
        answer->depth = (double)(first - 1) / (double)(text->len - start);
    if (closed)
        esp_strbuf_printf(text, "\n\nWhat is the code of %s? Answer with the number alone.", asked);
    else
        esp_strbuf_printf(text,
                          r->task == ESP_RECALL_HOPS ? "Followed to its number, the code of %s is"
                                                     : "The code of %s is",
                          asked);
    return text->failed ? esp_fail(err, ESP_ENOMEM, "recall: no memory for a text") : ESP_OK;
}

/* ---- answers ---- */

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

bool esp_recall_right(const char *code, const char *answer, size_t len)
{
    for (size_t i = 0, n; i < len; i += n ? n : 1) {
        for (n = 0; i + n < len && digit(answer[i + n]); n++)
            ;
        if (n == ESP_RECALL_DIGITS)
            return memcmp(answer + i, code, n) == 0;
    }
    return false;
}

void esp_recall_interval(uint32_t k, uint32_t n, double *low, double *high)
{
    const double z = 1.959964, m = n, p = k / m, by = 1 + z * z / m;
    const double mid = (p + z * z / (2 * m)) / by,
                 half = z / by * sqrt(p * (1 - p) / m + z * z / (4 * m * m));

    *low = mid - half > 0 ? mid - half : 0;
    *high = mid + half < 1 ? mid + half : 1;
}
