/*
 * Pre-tokenizer: cuts text into pieces by the patterns of a tokenizer file, one after the other; each stage
 * cuts the pieces of the stage before (behaviour "Isolated": matches and what lies between them are pieces).
 * The patterns are written for the Oniguruma engine; they are translated to PCRE2 so that they match the same
 * text, and anything that would mean something else there is refused at load, by name.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TEXT_PRETOKENIZE_H
#define ESP_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "base/status.h"
#include "base/strbuf.h"

struct esp_pretok {
    struct pcre2_real_code_8 *stage[ESP_LIMIT_SPLIT_STAGES];
    size_t n_stages; /* 0: the text is one piece */
    size_t bytes;    /* memory held by the compiled patterns */
};

/* The pattern of a ByteLevel pre-tokenizer with use_regex. */
extern const char esp_pretok_gpt2_pattern[];

/*
 * Append a stage. Errors: ESP_EUNSUPPORTED for constructs that are not translated (the message names one and
 * its place), more than ESP_LIMIT_SPLIT_STAGES, and patterns that match nothing-at-all; ESP_EFORMAT for
 * malformed or overlong ones.
 */
esp_status esp_pretok_add(struct esp_pretok *p, const char *pattern, size_t len, esp_error *err);
void esp_pretok_free(struct esp_pretok *p);

/* The PCRE2 form of a pattern; for tests and esp_pretok_add. Errors as there. */
esp_status esp_pretok_translate(struct esp_strbuf *out, const char *pattern, size_t len, esp_error *err);

/* One text being cut. Fields are private. */
struct esp_pretok_cut {
    const struct esp_pretok *p;
    const char *text;
    struct esp_pretok_level {
        size_t pos, end;  /* what is still to be cut */
        size_t start;     /* where the subject of the stage begins: a pattern never looks outside of it */
        size_t match_end; /* > pos: the piece [pos, match_end) is a match already found, 0: none */
    } level[ESP_LIMIT_SPLIT_STAGES + 1];
    struct pcre2_real_match_data_8 *match;
    struct pcre2_real_match_context_8 *context;
    struct pcre2_real_jit_stack_8 *stack;
};

/* Prepare for any number of texts. Errors: ESP_ENOMEM. Ended by esp_pretok_cut_free, also after failure. */
esp_status esp_pretok_cut_init(struct esp_pretok_cut *c, const struct esp_pretok *p, esp_error *err);
void esp_pretok_cut_free(struct esp_pretok_cut *c);
/* Begin with text[0..len), valid UTF-8 that stays alive. */
void esp_pretok_cut_start(struct esp_pretok_cut *c, const char *text, size_t len);
/*
 * The next piece, not empty, or *len = 0 at the end. Pieces joined are the text. Errors: ESP_ENOFIT when
 * matching one piece passed ESP_LIMIT_SPLIT_STEPS, ESP_ENOMEM.
 */
esp_status esp_pretok_cut_next(struct esp_pretok_cut *c, const char **piece, size_t *len, esp_error *err);

#endif
