/*
 * Ranges of the sampling parameters, as one table. A range test is written so that NaN fails it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "sample/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/limits.h"

struct range {
    const char *name;
    size_t offset;
    double low, high;
    bool open_low; /* low itself is refused */
};

#define FIELD(name) #name, offsetof(struct esp_sample_params, name)

static const struct range real_fields[] = {
    {FIELD(temperature), 0, 5, false},
    {FIELD(top_p), 0, 1, true},
    {FIELD(min_p), 0, 1, false},
    {FIELD(typical_p), 0, 1, true},
    {FIELD(repetition_penalty), 0, 2, true},
    {FIELD(presence_penalty), -2, 2, false},
    {FIELD(frequency_penalty), -2, 2, false},
    {FIELD(xtc_probability), 0, 1, false},
    {FIELD(xtc_threshold), 0, 1, false},
    {FIELD(dry_multiplier), 0, 100, false},
    {FIELD(dry_base), 1, 100, false},
};

static const struct {
    const char *name;
    size_t offset;
    int64_t low;
    const char *accepted;
} integer_fields[] = {
    {FIELD(top_k), -1, "an integer >= 0, or -1 for off"},
    {FIELD(repetition_context_size), 0, "an integer >= 0, 0 for the whole sequence"},
    {FIELD(presence_context_size), 0, "an integer >= 0, 0 for the whole sequence"},
    {FIELD(frequency_context_size), 0, "an integer >= 0, 0 for the whole sequence"},
    {FIELD(dry_allowed_length), 1, "an integer >= 1"},
    {FIELD(dry_context_size), 0, "an integer >= 0, 0 for the whole sequence"},
    {FIELD(min_tokens), 0, "an integer >= 0"},
};

void esp_sample_params_init(struct esp_sample_params *p)
{
    *p = (struct esp_sample_params){.temperature = 0.7,
                                    .top_p = 1,
                                    .typical_p = 1,
                                    .repetition_penalty = 1,
                                    .xtc_threshold = 0.1,
                                    .dry_base = 1.75,
                                    .dry_allowed_length = 2};
}

/* Whether an id occurs twice, by a small open-addressing set of list positions. */
static const struct esp_sample_bias *find_duplicate(const struct esp_sample_bias *bias, size_t n)
{
    enum { SET = 2 * ESP_SAMPLE_MAX_BIAS };
    uint16_t set[SET] = {0}; /* position + 1 */

    for (size_t i = 0; i < n; i++) {
        size_t h = (size_t)(esp_hash_u64(bias[i].id + UINT64_C(1)) % SET);

        while (set[h]) {
            if (bias[set[h] - 1].id == bias[i].id)
                return &bias[i];
            h = (h + 1) % SET;
        }
        set[h] = (uint16_t)(i + 1);
    }
    return NULL;
}

static esp_status check_bias(const struct esp_sample_params *p, uint32_t n_vocab, esp_error *err)
{
    const struct esp_sample_bias *twice;

    if (p->n_bias > ESP_SAMPLE_MAX_BIAS)
        return esp_fail(err, ESP_EINVAL, "logit_bias: %zu entries, at most %d are accepted", p->n_bias,
                        ESP_SAMPLE_MAX_BIAS);
    for (size_t i = 0; i < p->n_bias; i++) {
        const struct esp_sample_bias *b = &p->bias[i];

        if (b->id >= n_vocab)
            return esp_fail(err, ESP_EINVAL,
                            "logit_bias: no token has id %" PRIu32 "; keys are ids below %" PRIu32, b->id,
                            n_vocab);
        if (!(b->bias >= -100 && b->bias <= 100))
            return esp_fail(err, ESP_EINVAL,
                            "logit_bias: %g for id %" PRIu32 "; accepted is [-100, 100], -100 bans",
                            (double)b->bias, b->id);
    }
    twice = find_duplicate(p->bias, p->n_bias);
    if (twice)
        return esp_fail(err, ESP_EINVAL, "logit_bias: id %" PRIu32 " is given twice; keys must be unique",
                        twice->id);
    return ESP_OK;
}

esp_status esp_sample_params_check(const struct esp_sample_params *p, uint32_t n_vocab, esp_error *err)
{
    if (n_vocab == 0 || n_vocab > ESP_LIMIT_VOCAB)
        return esp_fail(err, ESP_EINVAL, "vocabulary: %" PRIu32 " ids; accepted is 1 to %u", n_vocab,
                        ESP_LIMIT_VOCAB);
    for (size_t i = 0; i < sizeof real_fields / sizeof real_fields[0]; i++) {
        const struct range *r = &real_fields[i];
        double v;

        memcpy(&v, (const char *)p + r->offset, sizeof v);
        if (!(v >= r->low && v <= r->high) || (r->open_low && v <= r->low))
            return esp_fail(err, ESP_EINVAL, "%s: %g is not accepted, only numbers in %c%g, %g]", r->name, v,
                            r->open_low ? '(' : '[', r->low, r->high);
    }
    for (size_t i = 0; i < sizeof integer_fields / sizeof integer_fields[0]; i++) {
        int64_t v;

        memcpy(&v, (const char *)p + integer_fields[i].offset, sizeof v);
        if (v < integer_fields[i].low)
            return esp_fail(err, ESP_EINVAL, "%s: %" PRId64 " is not accepted, only %s",
                            integer_fields[i].name, v, integer_fields[i].accepted);
    }
    if (p->n_end > ESP_SAMPLE_MAX_END)
        return esp_fail(err, ESP_EINVAL, "stop_token_ids: %zu end tokens, at most %d are accepted", p->n_end,
                        ESP_SAMPLE_MAX_END);
    for (size_t i = 0; i < p->n_end; i++)
        if (p->end_ids[i] >= n_vocab)
            return esp_fail(err, ESP_EINVAL,
                            "stop_token_ids: no token has id %" PRIu32 "; ids are below %" PRIu32,
                            p->end_ids[i], n_vocab);
    return check_bias(p, n_vocab, err);
}
