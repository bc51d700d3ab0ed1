/*
 * Fields that every text route shares, from JSON to struct esp_gen; prompts from messages to ids.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_PARAMS_H
#define ESP_SERVE_PARAMS_H

#include "serve/job.h"

/* Sampling, limits, stops, streaming; errors stay in f->e. */
void esp_params_read(struct esp_fields *f, struct esp_gen *g, const struct esp_server *s);
/* One or several stop strings under a name of the dialect's. */
void esp_params_stops(struct esp_fields *f, const char *name, struct esp_gen *g);
/* A number into a setting that keeps its value when the field is absent. */
void esp_params_real(struct esp_fields *f, const char *name, enum esp_bound b, double least, double most,
                     float *out);
/* Refuse what would change the answer and is not built: structured output, audio, ... */
void esp_params_refuse(struct esp_fields *f);
/* Add a bias. False: no room. */
bool esp_gen_ban(struct esp_gen *g, esp_token t);

enum esp_tool_choice { ESP_TOOLS_AUTO, ESP_TOOLS_NONE, ESP_TOOLS_REQUIRED, ESP_TOOLS_NAMED };

struct esp_chat_params {
    json_t *messages; /* OpenAI form, owned */
    json_t *tools;    /* OpenAI form, owned, or NULL */
    json_t *kwargs;   /* owned object */
    enum esp_tool_choice tool_choice;
    char tool_name[136];
    int thinking;                  /* -1: not said, 0: off, 1: on */
    int64_t budget;                /* -1: none */
    const int64_t *effort_budgets; /* the server's */
    bool no_generation_prompt, continue_final;
    bool include_reasoning, raw_reasoning;
    bool truncate;     /* leave the oldest turns out where the prompt does not fit */
    double keep_tools; /* seconds: cache_control of a tool; 0: none */
};

void esp_chat_init(struct esp_chat_params *p, const struct esp_server *s);
void esp_chat_free(struct esp_chat_params *p);
/* Thinking switches, budget, template arguments. */
void esp_chat_read_thinking(struct esp_fields *f, struct esp_chat_params *p);
/* tools (checked) and tool_choice in the OpenAI form. */
void esp_chat_read_tools(struct esp_fields *f, struct esp_chat_params *p, struct esp_gen *g);
/* messages of the OpenAI form: checked, and brought into the form that templates know. */
void esp_chat_read_messages(struct esp_fields *f, struct esp_chat_params *p, struct esp_gen *g,
                            const struct esp_server *s);
/* In place: roles, merged system messages, parts. For every dialect. False with e. */
bool esp_chat_normalize(struct esp_chat_params *p, struct esp_gen *g, const struct esp_server *s,
                        struct esp_api_error *e);

struct esp_prompt {
    struct esp_ids ids;
    struct esp_strbuf text;
    bool thinking;                         /* ends inside <think> */
    bool continued;                        /* ends inside the assistant's text */
    char opening[128];                     /* the template's text behind the header of the assistant's turn */
    char forced[300];                      /* of the tool choice: in the prompt already unless thinking */
    uint64_t history;                      /* of the messages, see replay.h */
    struct esp_seq_pin pins[ESP_MAX_PINS]; /* [n_pin] from the client's cache_control */
    uint32_t n_pin;
};

void esp_prompt_free(struct esp_prompt *p);
/* Render and tokenize. False with e. */
bool esp_prompt_chat(struct esp_prompt *out, const struct esp_chat_params *p, const struct esp_server *s,
                     struct esp_api_error *e);
/*
 * With p->truncate: as few of the oldest turns as make room are taken out of p->messages, which says how
 * many in a warning, and the prompt is made anew. What stands in front of the first user's message and the
 * last turn stay, so it may still not fit. False with e.
 */
bool esp_prompt_truncate(struct esp_prompt *out, struct esp_chat_params *p, struct esp_gen *g,
                         const struct esp_server *s, struct esp_api_error *e);
/* Make it ready for a generation with g, whose grammar is known: what is forced, what is banned. */
bool esp_prompt_finish(struct esp_prompt *out, const struct esp_chat_params *p, struct esp_gen *g,
                       const struct esp_server *s, struct esp_api_error *e);
/* What a job of the prompt is started with; prompt->ids are taken over. */
struct esp_job_opts esp_prompt_job(struct esp_call *c, struct esp_prompt *prompt, struct esp_chat_params *p,
                                   struct esp_gen *g);
/* ---- start.c: from what was read to a generation that runs ---- */

struct esp_start {
    struct esp_call *call;
    struct esp_gen *gen;
    struct esp_chat_params *p;
    const struct esp_sink *sink;
    const char *call_prefix;          /* of tool call ids */
    void (*begin)(struct esp_job *j); /* a stream's first events */
    void (*ping)(struct esp_call *c); /* its keep-alive */
};
/* Render, get the grammar (which may take a while; the call lives on), and hand over. Errors are the call's
 * and answered when they come later. What *o points to must live as long as the call. */
void esp_start_chat(const struct esp_start *o);
/* The number of tokens that the prompt has, to reply; errors as above. */
void esp_start_count(struct esp_call *c, struct esp_chat_params *p, struct esp_gen *gen,
                     void (*reply)(struct esp_call *c, uint64_t n));
/* A job has failed before its stream began: its error becomes the call's reply. */
void esp_reply_job_error(struct esp_job *j);
/* The whole answer of a generation with its headers; v is released. */
void esp_reply_answer(struct esp_call *c, json_t *v);

/* Text or ids, as completions have them. */
bool esp_prompt_text(struct esp_ids *out, const struct esp_server *s, const char *text, size_t len,
                     bool control, struct esp_api_error *e);
bool esp_prompt_ids(struct esp_ids *out, const struct esp_server *s, const json_t *ids, const char *param,
                    struct esp_api_error *e);

/* usage, timings, ext of a finished job (OpenAI form). */
json_t *esp_usage_json(const struct esp_job *j);
/* Tokens of the prompt that were put into the cache because the request asked for it. */
uint64_t esp_cache_written(const struct esp_job *j);
json_t *esp_timings_json(const struct esp_job *j);
json_t *esp_ext_json(const struct esp_job *j);
/* prompt_progress of a chunk. */
json_t *esp_progress_json(const struct esp_job *j);

#endif
