/*
 * Generations: a prompt and settings handed to the engine's service, and the tokens that come back turned
 * into text, reasoning, tool calls and log-probabilities. Knows no dialect: a sink gets the pieces.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_JOB_H
#define ESP_SERVE_JOB_H

#include "engine/pins.h"
#include "grammar/grammar.h"
#include "text/bpe.h"
#include "text/detokenize.h"
#include "text/stop.h"
#include "text/toolcall.h"

#include "serve/logprobs.h"
#include "serve/server.h"

enum { ESP_MAX_STOPS = 16, ESP_MAX_STOP_TOKENS = 64, ESP_MAX_CHOICES = 16 };

enum esp_end {
    ESP_END_NONE,
    ESP_END_STOP,   /* by itself, by a stop string, or a stop token */
    ESP_END_LENGTH, /* max_tokens, or the context is full */
    ESP_END_CALLS,  /* by itself, with at least one whole call */
    ESP_END_FAILED, /* job->e says why */
    ESP_END_GONE    /* cancelled */
};
enum esp_job_why { ESP_JOB_GONE, ESP_JOB_SLOW, ESP_JOB_DRAINING, ESP_JOB_ASKED };

enum esp_form {
    ESP_FORM_FREE,
    ESP_FORM_SCHEMA, /* JSON; value NULL: any object */
    ESP_FORM_REGEX,
    ESP_FORM_CHOICE,
    ESP_FORM_GBNF,
    ESP_FORM_TOOLS
};

/* Of a chat, for diag.c. */
struct esp_diag_facts {
    uint64_t tools; /* hash; 0: none */
    uint32_t n_message;
    bool thinking;
};

/* What a request asks for, whatever its dialect. Texts lie in the call's body. */
struct esp_gen {
    esp_sampling sampling; /* bias points to bias */
    esp_logit_bias *bias;  /* owned */
    uint64_t *breakers;    /* owned, or NULL: sampling has the server's */
    bool seeded;
    int64_t max_tokens; /* -1: not given */
    int64_t min_tokens;
    uint32_t n;
    struct esp_stop_string stops[ESP_MAX_STOPS];
    size_t n_stop;
    esp_token stop_tokens[ESP_MAX_STOP_TOKENS];
    size_t n_stop_token;
    bool include_stop;
    bool logprobs, reasoning_logprobs, processed_logprobs;
    uint32_t top;
    bool no_cache;
    int32_t priority;
    bool strict_max;
    bool parallel_calls;
    bool stream;
    double ping;
    esp_adapter_use adapters[ESP_ADAPTERS_MAX];
    uint32_t n_adapter;
    char adapter[64];   /* as named, "" for none */
    enum esp_form form; /* of the answer; see constrain.h */
    const json_t *form_value;
    char form_param[64];
    bool form_strict, form_compact;
    struct esp_grammar *grammar; /* owned, or NULL */
    struct esp_matcher_opts match;
    struct esp_diag_facts facts;
    const char *compare;        /* id of an earlier answer to be compared with; NULL: none */
    bool debug_cache;           /* ext.cache tells where texts part */
    bool progress;              /* a stream tells how far its prompt is */
    bool score;                 /* log-probabilities of the prompt as well */
    json_t *ignored, *warnings; /* arrays, owned */
    bool truncated;             /* max_tokens were lowered: ext says so */
    int64_t clamped_to;
};

void esp_gen_init(struct esp_gen *g, const struct esp_server *s);
void esp_gen_free(struct esp_gen *g);
void esp_gen_warn(struct esp_gen *g, const char *message);

struct esp_call_made { /* one tool call */
    char id[40];
    char name[260];
    struct esp_strbuf args;
    bool whole;
};

struct esp_choice {
    struct esp_job *job;
    uint32_t index;
    int slot;      /* of GET /slots; -1: none yet */
    uint64_t id;   /* of the service; another one after each resumption */
    uint32_t sub;  /* its number there */
    uint64_t left; /* tokens that may still come */
    uint32_t phase;
    bool primed; /* forced text at the prompt's end was taken into the answer */
    bool banned; /* end tokens are banned for now: min_tokens */
    bool resume; /* stopped in order to go on with inject behind what was sampled */
    struct esp_strbuf inject;
    int64_t think_left; /* tokens until the thinking ends; -1: no bound */
    int64_t grace;      /* and until it ends even inside a sentence */
    bool stopping, ended;
    bool cut; /* ended by us, not by the model or a limit: more may have been sampled than handed out */
    enum esp_end end;
    int stop_string;      /* index, or -1 */
    esp_token stop_token; /* -1: none */
    struct esp_detok detok;
    struct esp_strbuf piece; /* text of the last token */
    struct esp_turn *turn;
    struct esp_stop *stop;
    struct esp_strbuf content, reasoning; /* all that was delivered */
    struct esp_call_made *calls;          /* [n_call] */
    size_t n_call, cap_call;
    struct esp_ids tokens; /* all that were sampled */
    uint64_t n_reasoning;
    /* Log-probabilities. */
    struct esp_logprob_row {
        json_t *entry;
        size_t start; /* byte of the visible text where it begins */
    } * rows;
    size_t n_row, cap_row, n_taken;
    size_t n_pending; /* of rows, at the end: not known yet what they are */
    json_t *reasoning_rows;
    size_t fed; /* bytes of visible text handed to the stop matcher */
    esp_usage usage;
    double first_at, last_at;
};

struct esp_job;
struct esp_sink {
    /* Visible text or reasoning; not zero-terminated. */
    void (*text)(struct esp_choice *c, enum esp_turn_what what, const char *s, size_t len);
    /* A tool call: begins (name known), a piece of its arguments, ends. NULL: not wanted. */
    void (*tool)(struct esp_choice *c, struct esp_call_made *made, enum esp_turn_what what, const char *s,
                 size_t len);
    /* The prompt runs: j->n_cached and j->processed are known. Before the first piece; NULL: not wanted. */
    void (*progress)(struct esp_job *j);
    /* A token of the prompt with its log-probability; NULL: not wanted. */
    void (*prompt)(struct esp_job *j, const struct esp_service_event *x);
    void (*ended)(struct esp_choice *c); /* c->end and what it made are final; NULL: not wanted */
    void (*done)(struct esp_job *j);     /* every choice has ended; not called when the client is gone */
};

struct esp_job {
    struct esp_job *next;
    struct esp_server *s;
    struct esp_call *call; /* NULL: the client is gone */
    const struct esp_sink *sink;
    struct esp_gen *gen;     /* borrowed from the answer */
    uint32_t index;          /* of the job in its call */
    const char *call_prefix; /* of tool call ids */
    struct esp_choice choices[ESP_MAX_CHOICES];
    uint32_t n, n_open;
    struct esp_ids prompt;
    struct esp_api_error e; /* the first failure */
    enum esp_job_why why;
    bool cancelled, timed_out;
    double started;
    char forced[300]; /* to come behind the thinking, or with in_prompt at the prompt's end; "": nothing */
    bool in_prompt;
    char opening[128];
    uint64_t history; /* of the messages, see replay.h */
    uint64_t n_cached;
    uint64_t processed, n_matched, ns; /* as esp_service_event has them; 0 until the prompt runs */
    bool from_file;
    int nearest;          /* slot whose last text agrees longest with the prompt, -1: none ... */
    size_t agreed;        /* ... in so many tokens */
    bool adapter_differs; /* one agrees that ran with other adapters */
    bool has_tools;
    json_t *divergence; /* of that slot's text, as it was when the prompt began; NULL: none */
    struct esp_seq_pin pins[ESP_MAX_PINS]; /* [n_pin] positions that the client wants kept, ascending */
    uint32_t n_pin;
};

struct esp_job_opts {
    struct esp_call *call;
    struct esp_gen *gen; /* must live as long as the call */
    const struct esp_sink *sink;
    struct esp_ids prompt; /* taken over, also on failure */
    uint32_t index;
    const char *opening; /* text of the assistant's turn that the prompt ends with; copied, may be NULL */
    uint64_t history;    /* of a chat, see replay.h */
    bool raw, thinking, continued, calls, text_in_thinking;
    const json_t *tools; /* borrowed, as gen */
    const char *call_prefix;
    int64_t think_budget; /* -1: none */
    /* What an answer must begin with, behind its thinking: the opening of a tool call. NULL: nothing. When
     * the prompt leaves no room for thinking it is part of the prompt already. */
    const char *forced;
    const struct esp_seq_pin *pins; /* [n_pin] ascending; copied */
    uint32_t n_pin;
};

/* max_tokens for a prompt of n tokens, clamped; false with e: it does not fit. */
bool esp_job_limit(const struct esp_server *s, struct esp_gen *g, size_t n, uint64_t *out,
                   struct esp_api_error *e);
/* The text that ends thinking whose budget is used up, but for </think>. */
extern const char esp_budget_message[];

/* Hand over. On success the call has a job more; false with e set. limit as esp_job_limit() gave it. */
bool esp_job_start(struct esp_job **out, const struct esp_job_opts *o, uint64_t limit,
                   struct esp_api_error *e);
/* Of the service. */
void esp_job_event(struct esp_server *s, const struct esp_service_event *x);
void esp_jobs_cancel_call(struct esp_call *c, enum esp_job_why why);
/* Those of the request with this x-request-id or answer id; false: there is none. */
bool esp_jobs_cancel_id(struct esp_server *s, const char *id);
void esp_job_cancel(struct esp_job *j, enum esp_job_why why);
void esp_choice_cancel(struct esp_choice *c);
/* Between job.c and choice.c. */
bool esp_choice_init(struct esp_choice *c, struct esp_job *j, uint32_t index, uint64_t limit,
                     const struct esp_job_opts *o, struct esp_api_error *e);
void esp_choice_free(struct esp_choice *c);
void esp_choice_token(struct esp_choice *c, const struct esp_service_event *x);
void esp_choice_feed(struct esp_choice *c, const char *s, size_t len); /* text behind what was sampled */
void esp_choice_markup(struct esp_choice *c);                          /* it was no visible text */
void esp_choice_finish(struct esp_choice *c, const struct esp_service_event *x);

/* Rows of log-probabilities that belong to text delivered since the last call: a new array, NULL when the
 * request asked for none. all: also those behind it that never became text. */
json_t *esp_choice_rows(struct esp_choice *c, bool all);
/* Why the prompt's text was cached or not, in a word. */
const char *esp_cache_reason(const struct esp_job *j);
/* Where the engine keeps cached texts that are not in files: "device" when it computes on one with memory
 * of its own, else "ram". */
const char *esp_cache_tier(const struct esp_server *s);
/* Seconds until a request that comes now would run, from what requests have taken so far. */
double esp_wait_estimate(const struct esp_server *s);
uint64_t esp_choice_tokens(const struct esp_choice *c);
const char *esp_end_name(enum esp_end e);

#endif
