/*
 * What the tokenizer's files share and nobody else sees: the opened tokenizer, trust carried along with a
 * text, the normaliser and the search for added tokens.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_TOKENIZER_PARTS_H
#define ESP_TEXT_TOKENIZER_PARTS_H

#include "base/arena.h"
#include "base/strbuf.h"
#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/span.h"
#include "text/tokenizer.h"

/* ---- trust ---- */

/* Which bytes of a text are trusted: span positions count from base bytes before the text's first byte. */
struct esp_tok_trust {
    const struct esp_text_span *span;
    size_t n;
    size_t base;
    bool all; /* everything, span is not looked at */
};

/* A list of spans being built for a rewritten text; grows as needed, at most one span for each unit of the
 * text. */
struct esp_tok_spans {
    struct esp_text_span *data;
    size_t n, cap;
};

/* Whether [start, end) is trusted; *cursor speeds up ascending calls and starts at 0. */
bool esp_tok_trusted(const struct esp_tok_trust *t, size_t start, size_t end, size_t *cursor);
/* Add [start, end), joining it with the last span if they touch. Errors: ESP_ENOMEM. */
esp_status esp_tok_spans_add(struct esp_tok_spans *s, size_t start, size_t end, esp_error *err);
/* Bytes [from, to) of the text of t were copied to out_from: copy their trust. *cursor as above. Errors:
 * ESP_ENOMEM. */
esp_status esp_tok_spans_copy(struct esp_tok_spans *s, const struct esp_tok_trust *t, size_t from, size_t to,
                              size_t out_from, size_t *cursor, esp_error *err);

/* ---- normaliser ---- */

/* Longest rewritten text: normal forms make UTF-8 at most three times as long, NFKC and NFKD eleven times. */
#define ESP_TOK_REWRITTEN_MAX ((size_t)11 * ESP_LIMIT_TEXT_BYTES)

enum esp_tok_form { ESP_TOK_AS_IS, ESP_TOK_NFC, ESP_TOK_NFD, ESP_TOK_NFKC, ESP_TOK_NFKD };

/* Scratch of the normaliser; zeroed is empty, but out needs esp_strbuf_init. */
struct esp_tok_norm {
    struct esp_strbuf out;
    struct esp_tok_spans spans;
    int32_t *cp;   /* one segment, decomposed */
    int32_t *sort; /* and being put into canonical order */
    size_t cp_cap, sort_cap;
};

void esp_tok_norm_free(struct esp_tok_norm *w);
/*
 * Bring *text (valid UTF-8) into the form. *text and *len then name the result: the input itself when it was
 * in the form already, else memory of w, valid until the next call. With trust, *trust is made to fit the
 * result: characters are trusted where all that they were made of was. Near-linear time whatever the text.
 * Errors: ESP_ENOMEM.
 */
esp_status esp_tok_normalize(struct esp_tok_norm *w, enum esp_tok_form form, const char **text, size_t *len,
                             struct esp_tok_trust *trust, esp_error *err);

/* ---- added tokens ---- */

enum esp_added_flags {
    ESP_ADDED_SPECIAL = 1,
    ESP_ADDED_NORMALIZED = 2, /* looked for in the normalised text */
    ESP_ADDED_LSTRIP = 4,     /* swallows white space before it */
    ESP_ADDED_RSTRIP = 8,
    ESP_ADDED_SINGLE_WORD = 16 /* only where no word character touches it */
};

struct esp_added {
    uint32_t id;
    uint32_t len;
    uint32_t find_len;
    unsigned flags;
    const char *content; /* [len] as written in the file */
    const char *find;    /* [find_len] what is looked for: the content, normalised if so flagged */
};

/* Tokens to look for, sorted by what is looked for. */
struct esp_added_set {
    const struct esp_added **item; /* [n] */
    uint32_t n;
    bool first[256]; /* bytes that begin one */
};

struct esp_added_table {
    struct esp_arena *arena; /* contents and the sets' arrays */
    struct esp_added *item;  /* [n] sorted by id once finished */
    uint32_t n, cap;
    struct esp_added_set raw, normalized;
};

/*
 * Add a token. Errors: ESP_EFORMAT when the content is empty or too long, when the id or the content was
 * given before with another partner; ESP_ENOMEM. The same token again is ignored: the first one's flags
 * count.
 */
esp_status esp_added_add(struct esp_added_table *t, uint32_t id, const char *content, size_t len,
                         unsigned flags, esp_error *err);
/* Sort, normalise and index; no more tokens after this. Errors: ESP_ENOMEM. */
esp_status esp_added_finish(struct esp_added_table *t, enum esp_tok_form form, esp_error *err);
void esp_added_free(struct esp_added_table *t);
const struct esp_added *esp_added_by_id(const struct esp_added_table *t, uint32_t id);
const struct esp_added *esp_added_by_content(const struct esp_added_table *t, const char *s, size_t len);

/* Cutting a text at the tokens of one set. Fields are private. */
struct esp_added_cut {
    const struct esp_added_set *set;
    const char *text;
    size_t len;
    const struct esp_tok_trust *trust;
    size_t next_span;
    size_t run_start, run_end; /* the trusted run being searched */
    size_t search;             /* where the search goes on */
    size_t done;               /* the text up to here has been handed out */
    const struct esp_added *pending;
    size_t pending_end;
};

struct esp_added_part {
    const struct esp_added *token; /* NULL: plain text */
    size_t start, end;
};

void esp_added_cut_start(struct esp_added_cut *c, const struct esp_added_set *set, const char *text,
                         size_t len, const struct esp_tok_trust *trust);
/* The next token or stretch of text between tokens; false at the end. */
bool esp_added_cut_next(struct esp_added_cut *c, struct esp_added_part *part);

/* ---- the tokenizer ---- */

struct esp_tokenizer {
    struct esp_bpe bpe;
    struct esp_pretok pretok;
    struct esp_added_table added;
    enum esp_tok_form form;
    uint32_t n_ids; /* highest id of vocabulary and added tokens + 1 */
};

#endif
