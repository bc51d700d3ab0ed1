/*
 * Structured output: which tokens may come next so that a text keeps to a grammar. A grammar is compiled
 * once, is constant but for its store of masks, and may serve any number of matchers on any threads; a
 * matcher follows one text. Everything is decided on bytes, so the answer does not depend on how the text is
 * cut into tokens, and a token is allowed if and only if some complete text begins with what was accepted and
 * it.
 *
 * Control tokens (added tokens of the tokenizer, special or not) are never part of a text, except those that
 * a grammar for tool calls asks for.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAMMAR_GRAMMAR_H
#define ESP_GRAMMAR_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct esp_vocab;
struct esp_grammar;
struct esp_matcher;

/* ---- vocabulary ---- */

struct esp_vocab_token {
    const char *bytes;
    size_t len; /* 0: the id is never part of a text */
    bool plain; /* not an added token */
};

struct esp_vocab_source {
    uint32_t n_ids; /* rows of the model's head; ids without a token are fine */
    void (*get)(const void *ctx, uint32_t id, struct esp_vocab_token *out);
    const void *ctx;
};

/* All bytes are copied. About 25 bytes an id and 12 a node: 13 MiB for 248,320 ids. Errors: ESP_ENOMEM,
 * ESP_EINVAL (n_ids 0 or above ESP_LIMIT_VOCAB, a token longer than ESP_LIMIT_TOKEN_BYTES). */
esp_status esp_vocab_create(struct esp_vocab **out, const struct esp_vocab_source *src, esp_error *err);
/* The lowest id of an added token with these bytes; false: there is none. */
bool esp_vocab_find_added(const struct esp_vocab *v, const char *bytes, uint32_t *id);
void esp_vocab_destroy(struct esp_vocab *v);
size_t esp_vocab_bytes(const struct esp_vocab *v);

/* ---- grammars ---- */

/*
 * Each gives a grammar with one reference. v is kept and must outlive it. Errors, for all: ESP_EFORMAT what
 * the text does not mean anything, with its place; ESP_EUNSUPPORTED what is not built in, by name and place;
 * ESP_ENOFIT what passes a limit of base/limits.h; ESP_ENOMEM. Compiling takes at most about two seconds.
 */

/* GBNF: `root ::= ...`. */
esp_status esp_grammar_gbnf(struct esp_grammar **out, const struct esp_vocab *v, const char *text, size_t len,
                            esp_error *err);
/* A regular expression that the whole text matches. */
esp_status esp_grammar_regex(struct esp_grammar **out, const struct esp_vocab *v, const char *text,
                             size_t len, esp_error *err);
/* One of the texts. */
esp_status esp_grammar_choice(struct esp_grammar **out, const struct esp_vocab *v, const char *const *text,
                              size_t n, esp_error *err);

enum esp_schema_flags {
    ESP_SCHEMA_OPEN = 1,    /* objects that say nothing of additionalProperties may have some */
    ESP_SCHEMA_COMPACT = 2, /* no white space between tokens */
    ESP_SCHEMA_LEAD = 4     /* up to two newlines in front, as models write them behind </think> */
};

/* JSON that a schema describes; NULL: any JSON object. schema is not kept. */
esp_status esp_grammar_schema(struct esp_grammar **out, const struct esp_vocab *v, const json_t *schema,
                              unsigned flags, esp_error *err);

struct esp_tool {
    const char *name;         /* [A-Za-z0-9_.:-]{1,128} */
    const json_t *parameters; /* a schema of an object, or NULL: no parameters */
    bool strict;
};

enum esp_tools_flags {
    ESP_TOOLS_BODY =
        1, /* the opener has been read already (it was the trigger); else the text begins with it, */
    ESP_TOOLS_LEAD = 2,   /* behind up to two newlines */
    ESP_TOOLS_SEVERAL = 4 /* further calls may follow the first */
};

/*
 * Calls of tools as the model family writes them: <tool_call>, <function=NAME>, <parameter=KEY> and their
 * ends, each on its line. Names are held to those of the tools. A strict tool's parameters come in the order
 * of its schema, the required ones all, each value as its schema says, and it is refused when the schema is
 * not supported. Another's come in any order; values that may be strings are free text (but for lists of
 * values and patterns), and others are held to their schema as far as that is supported.
 */
esp_status esp_grammar_tools(struct esp_grammar **out, const struct esp_vocab *v, const struct esp_tool *tool,
                             size_t n, unsigned flags, esp_error *err);

enum esp_grammar_kind { ESP_GRAMMAR_SCHEMA, ESP_GRAMMAR_GBNF, ESP_GRAMMAR_REGEX, ESP_GRAMMAR_CHOICE };
struct esp_grammar_form { /* arguments of one of the functions above */
    enum esp_grammar_kind kind;
    const char *text;
    size_t len;
    const char *const *choice;
    size_t n_choice;
    const json_t *schema;
    unsigned flags; /* esp_schema_flags */
};
struct esp_grammar_calls {
    const struct esp_tool *tool;
    size_t n;
    unsigned flags; /* esp_tools_flags */
};
/* A text of the form, or calls instead of it. */
esp_status esp_grammar_either(struct esp_grammar **out, const struct esp_vocab *v,
                              const struct esp_grammar_form *form, const struct esp_grammar_calls *calls,
                              esp_error *err);

struct esp_grammar *esp_grammar_ref(struct esp_grammar *g); /* g */
void esp_grammar_release(struct esp_grammar *g);            /* NULL is fine */
size_t esp_grammar_bytes(const struct esp_grammar *g);      /* memory held, stored masks included */
/* Make the masks that take longest, until they are all made or about so many microseconds have passed. */
void esp_grammar_warm(struct esp_grammar *g, uint64_t max_us);

/* ---- matchers ---- */

/*
 * When the grammar begins to hold. Without a trigger it is from the first token on. With triggers everything
 * is allowed until one of them was accepted, except what is banned.
 */
struct esp_matcher_opts {
    uint32_t trigger[4]; /* token ids */
    uint32_t n_trigger;
    const char *trigger_text; /* or a text, however it is cut; a token may not go past its end. NULL: none */
    uint32_t ban[4];          /* not allowed while it waits */
    uint32_t n_ban;
    bool again;      /* when the grammar is complete it waits for the next trigger */
    bool must_start; /* the text is not complete while it waits */
};

enum esp_match_state {
    ESP_MATCH_MORE,    /* incomplete */
    ESP_MATCH_MAY_END, /* complete, more may follow */
    ESP_MATCH_ENDED    /* complete, nothing may follow */
};

/* o may be NULL. Keeps a reference to g, copies o. Errors: ESP_ENOMEM, ESP_EINVAL (o's counts, a text above
 * 64 bytes). */
esp_status esp_matcher_open(struct esp_matcher **out, struct esp_grammar *g, const struct esp_matcher_opts *o,
                            esp_error *err);
esp_status esp_matcher_clone(struct esp_matcher **out, const struct esp_matcher *m, esp_error *err);
void esp_matcher_close(struct esp_matcher *m);

/*
 * Clear the bits of ids that may not come next, leave all others: bits [n_word], bit id % 64 of word id / 64.
 * Ids at or above the vocabulary's n_ids are cleared. While it waits nothing but the ban is cleared. Not
 * const, for the matcher keeps what it worked out. Errors: ESP_ENOMEM; ESP_ENOFIT when the grammar is so
 * ambiguous at this place that more than ESP_LIMIT_GRAMMAR_WAYS readings would have to be followed.
 */
esp_status esp_matcher_mask(struct esp_matcher *m, uint64_t *bits, size_t n_word, esp_error *err);
/* id follows. ESP_EINVAL: it may not; nothing has changed. ESP_ENOMEM, ESP_ENOFIT: as for mask. */
esp_status esp_matcher_accept(struct esp_matcher *m, uint32_t id, esp_error *err);
/* Take the last n tokens back, or all if there are fewer. Steps beyond the last few hundred are read again.
 */
void esp_matcher_rollback(struct esp_matcher *m, size_t n);
/*
 * Tokens that are decided: the text that must follow, cut into the longest tokens, up to where it could go on
 * in more than one way or where a longer token could begin. At most cap of them; accepting some and asking
 * again gives the rest, so cap does not show.
 */
uint32_t esp_matcher_forced(struct esp_matcher *m, uint32_t *out, uint32_t cap);
enum esp_match_state esp_matcher_state(const struct esp_matcher *m);
bool esp_matcher_waiting(const struct esp_matcher *m);
size_t esp_matcher_length(const struct esp_matcher *m); /* tokens accepted */
size_t esp_matcher_bytes(const struct esp_matcher *m);

#endif
