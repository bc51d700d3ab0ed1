/*
 * The verbs: each takes the parsed command line and returns the exit code of the program, having reported
 * failures.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_VERBS_H
#define ESP_PROGRAM_VERBS_H

#include "program/options.h"

struct esp_talk;
struct esp_answer;

/* Of the source that the program was built from, or "unknown". */
const char *esp_program_commit(void);
/* Name and version of the compiler. */
const char *esp_program_compiler(void);
int esp_verb_run(const struct esp_options *o);
int esp_verb_generate(const struct esp_options *o);
int esp_verb_tokenize(const struct esp_options *o);
int esp_verb_detokenize(const struct esp_options *o);
int esp_verb_perplexity(const struct esp_options *o);
int esp_verb_eval(const struct esp_options *o);
int esp_verb_quantize(const struct esp_options *o);
int esp_verb_convert(const struct esp_options *o);
int esp_verb_inspect(const struct esp_options *o);
/* inspect --plan: bits and losses of a quantized model, as text or SVG. */
int esp_inspect_plan(const struct esp_options *o);
int esp_verb_bench(const struct esp_options *o);
int esp_bench_serve(const struct esp_options *o); /* bench --serve */
int esp_verb_fit(const struct esp_options *o);
int esp_verb_ps(const struct esp_options *o);
int esp_verb_stop(const struct esp_options *o);
int esp_verb_serve(const struct esp_options *o);
int esp_verb_devices(const struct esp_options *o);

/* perplexity --kl: compare on n tokens in windows. */
int esp_verb_perplexity_kl(const struct esp_options *o, const char *base, const int32_t *ids, size_t n,
                           size_t window);
/* Answer the conversation as verb run prints it; a must be freed whatever the status. */
esp_status esp_run_answer(struct esp_talk *t, struct esp_answer *a, esp_error *err);
/* The interactive conversation of verb run; see chat.c. */
int esp_chat_loop(struct esp_talk *t, const struct esp_options *o);

#endif
