/*
 * Logits to ids. A sampler belongs to one row (one choice of one request) and holds its parameters and its
 * token history; the scratch memory for a vocabulary is a separate object that all rows of an engine thread
 * share, so that a row costs kilobytes. A draw changes neither: it is a function of (parameters, history,
 * logits, mask, position), which is what lets speculation try a position twice.
 *
 * Order of operations: allowed mask, logit_bias, repetition penalty, presence and frequency penalties, DRY,
 * end tokens before min_tokens, temperature, top_k, top_p, min_p, typical_p, XTC, draw.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SAMPLE_SAMPLER_H
#define ESP_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct esp_sample_bias {
    uint32_t id;
    float bias; /* -100..100; -100 bans the token */
};

/*
 * What a request asks for. Start from esp_sample_params_init(); a zeroed struct is not valid. The three
 * *_context_size windows are the last N tokens of the sequence (prompt and generated), 0 = all of them.
 */
struct esp_sample_params {
    double temperature;        /* [0, 5]; 0 is greedy */
    int64_t top_k;             /* >= 0, or -1; 0 and -1 are off */
    double top_p;              /* (0, 1]; 1 is off */
    double min_p;              /* [0, 1]; 0 is off */
    double typical_p;          /* (0, 1]; 1 is off */
    double repetition_penalty; /* (0, 2]; 1 is off; counts prompt and generated tokens */
    double presence_penalty;   /* [-2, 2]; counts generated tokens only */
    double frequency_penalty;  /* [-2, 2]; counts generated tokens only */
    int64_t repetition_context_size;
    int64_t presence_context_size;
    int64_t frequency_context_size;
    const struct esp_sample_bias *bias; /* n_bias <= ESP_SAMPLE_MAX_BIAS, ids differ; copied by create */
    size_t n_bias;
    double xtc_probability;     /* [0, 1]; at this share of the positions ... 0 is off */
    double xtc_threshold;       /* [0, 1]; ... of the tokens this likely only the least likely one stays */
    const uint64_t *xtc_exempt; /* bit per id: tokens that XTC leaves alone; borrowed, NULL: none */
    double dry_multiplier;      /* [0, 100]; 0 is off. Penalises what goes on with a repetition, see dry.h */
    double dry_base;            /* [1, 100] */
    int64_t dry_allowed_length; /* >= 1 */
    int64_t dry_context_size;   /* last N tokens, 0 = all of them */
    const uint64_t *dry_breakers; /* [n_dry_word] bit per id; copied by create */
    size_t n_dry_word;
    int64_t min_tokens;      /* the end tokens are banned until this many tokens are generated */
    const uint32_t *end_ids; /* n_end <= ESP_SAMPLE_MAX_END; copied by create */
    size_t n_end;
    uint64_t seed;
    uint32_t choice;
};

enum {
    ESP_SAMPLE_MAX_BIAS = 4096,
    ESP_SAMPLE_MAX_END = 64, /* a model has two or three; stop_token_ids of a request come on top */
    ESP_SAMPLE_MAX_TOP = 20  /* top_logprobs */
};

/* temperature 0.7, every filter, penalty, bias and minimum off, seed 0, choice 0; XTC's threshold 0.1, DRY's
 * base 1.75 and allowed length 2, which mean nothing while they are off. */
void esp_sample_params_init(struct esp_sample_params *p);

/*
 * Check p against its ranges and a vocabulary of n_vocab ids. ESP_EINVAL names the field as the API spells
 * it, the value, and what is accepted; NaN and infinity are never accepted.
 */
esp_status esp_sample_params_check(const struct esp_sample_params *p, uint32_t n_vocab, esp_error *err);

/*
 * Scratch memory for one vocabulary: about 33 bytes an id (8 MiB for 248,320). One thread uses it at a time;
 * any number of samplers may share it. Errors: ESP_ENOMEM, ESP_EINVAL (n_vocab 0 or above ESP_LIMIT_VOCAB).
 */
struct esp_sample_work;
esp_status esp_sample_work_create(struct esp_sample_work **out, uint32_t n_vocab, esp_error *err);
void esp_sample_work_destroy(struct esp_sample_work *w);
size_t esp_sample_work_bytes(uint32_t n_vocab);

/*
 * A sampler for at most max_tokens tokens of history. All memory is taken here: esp_sampler_bytes() of it, 4
 * bytes a token and, if a penalty is on, 4 more an id and 16 more a token; with DRY 4 more a token. work is
 * borrowed and must outlive the sampler. Errors: those of esp_sample_params_check, ESP_ENOMEM.
 */
struct esp_sampler;
esp_status esp_sampler_create(struct esp_sampler **out, const struct esp_sample_params *p,
                              struct esp_sample_work *work, size_t max_tokens, esp_error *err);
void esp_sampler_destroy(struct esp_sampler *s);
size_t esp_sampler_bytes(const struct esp_sample_params *p, uint32_t n_vocab, size_t max_tokens);

/*
 * History. Prompt tokens feed the repetition penalty only; generated ones feed all penalties and min_tokens.
 * On error (ESP_EINVAL: an id outside the vocabulary, ESP_ENOFIT: more than max_tokens) nothing was added.
 */
esp_status esp_sampler_push_prompt(struct esp_sampler *s, const uint32_t *ids, size_t n, esp_error *err);
esp_status esp_sampler_push(struct esp_sampler *s, uint32_t id, esp_error *err);
/* Take the last n tokens back, exactly: afterwards the sampler is as if they had never come. ESP_EINVAL if n
 * > length. */
esp_status esp_sampler_pop(struct esp_sampler *s, size_t n, esp_error *err);
size_t esp_sampler_length(const struct esp_sampler *s);      /* prompt and generated */
size_t esp_sampler_n_generated(const struct esp_sampler *s); /* generated only */

struct esp_sample_result {
    uint32_t id;
    uint32_t n_kept; /* tokens that could have been drawn; 1 for greedy */
};

/*
 * Draw one token.
 *
 * logits    [n_vocab] f32, read only. -inf bans an id; NaN or +inf anywhere, and all -inf, are ESP_ENUMERIC,
 *           and the message names the first such index
 * allowed   bit (id % 64) of word (id / 64) set: id may be drawn; NULL allows all. For grammars and for ids
 *           of the padded head that no token has. Bits above n_vocab are ignored
 * position  absolute output position, the third part of the random key
 *
 * Temperature 0: the highest value after mask, bias and penalties, lowest id on ties, no random number.
 * Otherwise: top_k keeps the first k in (value descending, id ascending) order; top_p the shortest prefix of
 * that order with mass >= top_p of what top_k left; min_p those with p >= min_p * p_max; typical_p the
 * shortest prefix with mass >= typical_p in order of |-log p - entropy|, ids ascending on ties; XTC, when the
 * second random number of the position is below xtc_probability, removes of the kept ids with p >=
 * xtc_threshold all but the last in (value descending, id ascending) order, those of xtc_exempt set aside.
 * One uniform number u picks, in ascending id order, the first kept id whose cumulative weight exceeds u
 * times the total. Sums are doubles in an order that only the kept set decides; exp is our own, so all
 * machines agree. Weights below e^-60 of the greatest count as zero: together they stay below one step of u.
 * A sequence whose end tokens are banned by min_tokens and that may do nothing else (grammar) ends early.
 *
 * Errors: ESP_ENUMERIC as above; ESP_ESTATE when mask and bias leave no token. Nothing is changed by a failed
 * draw.
 */
esp_status esp_sampler_draw(const struct esp_sampler *s, const float *logits, const uint64_t *allowed,
                            uint64_t position, struct esp_sample_result *out, esp_error *err);

/*
 * The same draw from the greatest values of a row: n ids, at least all whose logit is that of the least one
 * here. False: they do not suffice (or the parameters ask for more of a row than its greatest values, or the
 * draw fails), so esp_sampler_draw() needs the whole row. True: *out is what it would have given.
 *
 * Why they suffice: edits that only lower leave every other id below the least value here, and a draw that is
 * greedy or has a top_k looks at the k greatest alone; so it is enough that k of these ids still have that
 * least value.
 */
struct esp_sample_few {
    uint32_t n;
    const uint32_t *id;
    const float *value; /* [n] finite or -inf */
};
bool esp_sampler_draw_few(const struct esp_sampler *s, const struct esp_sample_few *few,
                          const uint64_t *allowed, uint64_t position, struct esp_sample_result *out);
/* Whether the parameters allow that at all. */
bool esp_sampler_needs_few(const struct esp_sampler *s);

/*
 * Log-probabilities of the row as it is drawn from: after mask, bias, penalties and the temperature (that
 * of 0 leaves the row as it is), before the filters. The history must not have the token yet. Results as
 * of esp_sample_logprobs(); errors as for draw too. Uses the scratch memory.
 */
struct esp_logprob_query;
struct esp_sample_logprob;
esp_status esp_sampler_logprobs(const struct esp_sampler *s, const float *logits, const uint64_t *allowed,
                                const struct esp_logprob_query *q, struct esp_sample_logprob *chosen,
                                struct esp_sample_logprob *top, uint32_t *n, esp_error *err);

/* The logits as the temperature step would see them, banned ids -inf, into out [n_vocab]. Errors as for draw.
 */
esp_status esp_sampler_process(const struct esp_sampler *s, const float *logits, const uint64_t *allowed,
                               float *out, esp_error *err);

struct esp_sample_logprob {
    uint32_t id;
    double logprob; /* natural; -INFINITY for a logit of -inf */
};

/*
 * Natural log-softmax of logits [n_vocab], before any mask, bias, penalty or temperature, summed in double.
 * *chosen gets id's value; top [n_top] the n_top most likely, descending, lowest id first on ties. If the
 * vocabulary is smaller than n_top, *n gets its size, else n_top. Errors: ESP_ENUMERIC as for draw,
 * ESP_EINVAL (n_top above ESP_SAMPLE_MAX_TOP, id outside the vocabulary).
 */
struct esp_logprob_query {
    uint32_t id;
    uint32_t n_top; /* 0..ESP_SAMPLE_MAX_TOP */
};
esp_status esp_sample_logprobs(const float *logits, uint32_t n_vocab, struct esp_logprob_query q,
                               struct esp_sample_logprob *chosen, struct esp_sample_logprob *top, uint32_t *n,
                               esp_error *err);

#endif
