/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/repeats.h"

#include <string.h>

#include "base/mem.h"
#include "serve/params.h"

enum { MAX_TEXTS = 32, MAX_TEXT_BYTES = 64, N_KEPT = 4 };

struct set {
    char *key; /* the texts as JSON; NULL: free */
    uint64_t *bits;
};

struct esp_breakers {
    const esp_model *model;
    size_t n_word;
    uint64_t *bits; /* of requests that name none */
    struct set kept[N_KEPT];
    size_t next; /* place of the next one */
};

static uint64_t *make_set(const struct esp_breakers *b, const char *const *texts, size_t n, esp_error *err)
{
    uint64_t *bits = esp_alloc_array(b->n_word, sizeof *bits);

    if (!bits)
        esp_fail(err, ESP_ENOMEM, "no memory for a set of tokens");
    else if (esp_model_breakers(b->model, texts, n, bits, err) == ESP_OK)
        return bits;
    esp_free(bits);
    return NULL;
}

esp_status esp_breakers_open(struct esp_breakers **out, const struct esp_serve_opts *o, const esp_model *m,
                             esp_error *err)
{
    struct esp_breakers *b = esp_alloc(sizeof *b);
    esp_model_info info;

    if (!b)
        return esp_fail(err, ESP_ENOMEM, "no memory for the server");
    esp_model_describe(m, &info);
    b->model = m;
    b->n_word = ((size_t)info.n_vocab + 63) / 64;
    b->bits = make_set(b, o->dry_breakers, o->n_dry_breaker, err);
    if (!b->bits) {
        esp_free(b);
        return err ? err->status : ESP_ENOMEM;
    }
    *out = b;
    return ESP_OK;
}

void esp_breakers_close(struct esp_breakers *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < N_KEPT; i++) {
        esp_free(b->kept[i].key);
        esp_free(b->kept[i].bits);
    }
    esp_free(b->bits);
    esp_free(b);
}

/* The set of these texts, owned by b until others take its place; NULL with e. */
static const uint64_t *find_set(struct esp_breakers *b, const json_t *list, struct esp_api_error *e)
{
    const char *texts[MAX_TEXTS];
    struct set *place = &b->kept[b->next];
    struct esp_strbuf key;
    uint64_t *bits;
    esp_error err;
    size_t i;
    json_t *v;

    esp_strbuf_init(&key, (size_t)MAX_TEXTS * MAX_TEXT_BYTES * 8);
    json_array_foreach(list, i, v) texts[i] = json_string_value(v);
    if (!esp_json_add(&key, list)) {
        esp_strbuf_free(&key);
        esp_api_fail(e, "device_lost", NULL, "no memory for dry_sequence_breakers");
        return NULL;
    }
    for (i = 0; i < N_KEPT; i++)
        if (b->kept[i].key && strcmp(b->kept[i].key, key.data) == 0) {
            esp_strbuf_free(&key);
            return b->kept[i].bits;
        }
    bits = make_set(b, texts, json_array_size(list), &err);
    if (!bits) {
        esp_api_fail(e, err.status == ESP_ENOMEM ? "device_lost" : "invalid_value", "dry_sequence_breakers",
                     "dry_sequence_breakers: %s", err.message);
    } else {
        esp_free(place->key);
        esp_free(place->bits);
        *place = (struct set){.key = esp_strndup(key.data, key.len), .bits = bits};
        b->next = (b->next + 1) % N_KEPT;
    }
    esp_strbuf_free(&key);
    return bits;
}

static bool check_texts(struct esp_fields *f, const json_t *list)
{
    static const char name[] = "dry_sequence_breakers";
    size_t i;
    json_t *v;

    if (json_array_size(list) > MAX_TEXTS)
        return esp_api_fail(f->e, "invalid_value", name, "%s: %zu strings; at most %d are accepted", name,
                            json_array_size(list), MAX_TEXTS);
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v))
            return esp_field_wrong(f, name, v, "an array of strings");
        if (json_string_length(v) < 1 || json_string_length(v) > MAX_TEXT_BYTES ||
            strlen(json_string_value(v)) != json_string_length(v))
            return esp_api_fail(f->e, "invalid_value", name,
                                "%s: a string of %zu bytes; 1 to %d, none of them zero, are accepted", name,
                                json_string_length(v), MAX_TEXT_BYTES);
    }
    return true;
}

/* Without a model there are no tokens, so no set of them: the fields are checked all the same. */
static void read_breakers(struct esp_fields *f, struct esp_gen *g, struct esp_breakers *own)
{
    const json_t *list = NULL;
    const uint64_t *bits;

    g->sampling.n_dry_word = own ? own->n_word : 0;
    g->sampling.dry_breakers = own ? own->bits : NULL;
    if (!esp_field_array(f, "dry_sequence_breakers", &list) || !check_texts(f, list))
        return;
    if (!own || !(g->sampling.dry_multiplier > 0))
        return; /* checked, and of no effect */
    bits = find_set(own, list, f->e);
    g->breakers = bits ? esp_alloc_array(own->n_word, sizeof *g->breakers) : NULL;
    if (bits && !g->breakers)
        esp_api_fail(f->e, "device_lost", NULL, "no memory for dry_sequence_breakers");
    if (!g->breakers)
        return;
    memcpy(g->breakers, bits, own->n_word * sizeof *bits);
    g->sampling.dry_breakers = g->breakers;
}

void esp_repeats_read(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s)
{
    esp_sampling *o = &g->sampling;
    int64_t n = 0;

    esp_params_real(f, "xtc_probability", ESP_FROM, 0, 1, &o->xtc_probability);
    esp_params_real(f, "xtc_threshold", ESP_FROM, 0, 1, &o->xtc_threshold);
    esp_params_real(f, "dry_multiplier", ESP_FROM, 0, 100, &o->dry_multiplier);
    esp_params_real(f, "dry_base", ESP_FROM, 1, 100, &o->dry_base);
    if (esp_field_int(f, "dry_allowed_length", 1, INT32_MAX, &n))
        o->dry_allowed_length = (uint32_t)n;
    if (esp_field_int(f, "dry_penalty_last_n", -1, INT32_MAX, &n)) {
        o->dry_context = n > 0 ? (uint32_t)n : 0;
        if (n == 0) /* no tokens are looked at: off, as where the field comes from */
            o->dry_multiplier = 0;
    }
    read_breakers(f, g, s->breakers);
}
