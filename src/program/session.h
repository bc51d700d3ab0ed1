/*
 * From flags to open objects: the model, the engine and the sampling that the verbs share.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_SESSION_H
#define ESP_PROGRAM_SESSION_H

#include <jansson.h>

#include "espalier/espalier.h"

#include "program/adapters.h"
#include "program/placement.h"
#include "program/options.h"
#include "program/output.h"

struct esp_session {
    const struct esp_options *opt;
    char *path;        /* of the model; NULL for synthetic ones */
    const char *shown; /* how the model is called in output */
    esp_model *model;
    esp_model *draft; /* of --spec draft:MODEL, or NULL */
    esp_model_info info;
    struct esp_adapters adapters;
    struct esp_placement placement;
    const char *device; /* as engine_opts has it: chosen by --device */
    bool auto_device;   /* not by its name */
    esp_device about;   /* that device */
    esp_engine *engine; /* NULL until esp_session_engine() */
    esp_engine_opts engine_opts;
    struct esp_progress progress; /* while loading */
    uint64_t seed;
    uint64_t *breakers; /* of the sampling, or NULL */
};

/* Find and open the model that the flags name, and the adapters. */
esp_status esp_session_open(struct esp_session *s, const struct esp_options *opt, esp_error *err);
/* Fill engine_opts from the flags of the verb; context 0 stays 0. */
void esp_session_engine_opts(struct esp_session *s);
/* Open the engine by engine_opts. */
esp_status esp_session_engine(struct esp_session *s, esp_error *err);
void esp_session_close(struct esp_session *s);
/* Arguments behind MODEL, or all of them when MODEL came by flag or, the first argument being no model, by
 * ESPALIER_MODEL. */
const char *const *esp_session_args(const struct esp_options *opt, size_t *n);

/* Most tokens of an answer by flag; SIZE_MAX: none given. */
size_t esp_session_max_tokens(const struct esp_options *opt);
/* Sampling by flag, else the model's defaults, else the built-in ones; draws s->seed when no flag gives one.
 */
esp_status esp_session_sampling(struct esp_session *s, esp_sampling *out, esp_error *err);
/* The texts of --dry-sequence-breaker, or the usual ones, into out; the number of them. */
size_t esp_session_breakers(const struct esp_options *opt, const char *out[MAX_OPT_LIST]);
/* Template variables from --thinking and --template-arg: a new JSON object. */
esp_status esp_session_template_args(const struct esp_options *opt, json_t **out, esp_error *err);

/* Text to ids in new memory (free). */
esp_status esp_text_ids(const esp_model *m, const char *text, size_t len, bool control, esp_token **out,
                        size_t *n, esp_error *err);
/* Messages through the template to ids in new memory (free), and the same as text (free). */
esp_status esp_chat_ids(const esp_model *m, const char *messages, const esp_chat_opts *opts, esp_token **out,
                        size_t *n, esp_error *err);
esp_status esp_chat_text(const esp_model *m, const char *messages, const esp_chat_opts *opts, char **out,
                         size_t *n, esp_error *err);
/* Bytes of a token in buf, always enough for what a vocabulary holds; the count, 0 when there are none. */
enum { MAX_TOKEN_BYTES = 1024 };
size_t esp_token_text(const esp_model *m, esp_token t, char buf[MAX_TOKEN_BYTES]);

/* A file, a pipe, or standard input for "-", as text with a final zero (esp_free); at most max bytes. */
esp_status esp_read_input(const char *path, char **out, size_t *len, esp_error *err);
/* Numbers separated by spaces, commas, brackets; ids outside 0..n_vocab-1 are refused. New memory (free). */
esp_status esp_parse_ids(const char *text, uint32_t n_vocab, esp_token **out, size_t *n, esp_error *err);

#endif
