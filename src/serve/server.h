/*
 * What the files of the room share: the server, a call (one HTTP request), and helpers. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_SERVER_H
#define ESP_SERVE_SERVER_H

#include <jansson.h>
#include <stdatomic.h>

#include "base/strbuf.h"
#include "engine/service.h"
#include "engine/texts.h"

#include "serve/error.h"
#include "serve/fields.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/overhead.h"
#include "serve/proxies.h"
#include "serve/serve.h"

struct event;
struct esp_job;
struct esp_keys;
struct esp_mounts;
struct esp_replay;
struct esp_store;
struct esp_background;
struct esp_content;
struct esp_diag;
struct esp_grammars;
struct esp_breakers;
struct esp_slot;
struct esp_token_names;

/* Requests that the log tells of: those that failed by our fault, by anybody's, all. */
enum esp_phase { ESP_PHASE_LOADING, ESP_PHASE_READY, ESP_PHASE_DRAINING, ESP_PHASE_FAILED };

/* Tokens of fill-in-the-middle: before the text, behind it, and where the answer begins. See fim.h. */
struct esp_fim {
    bool known;
    esp_token part[3];
    esp_token end[8]; /* [n_end] the answer is over */
    size_t n_end;
};

enum esp_life_state { ESP_LIFE_LOADING, ESP_LIFE_AWAKE, ESP_LIFE_FALLING, ESP_LIFE_ASLEEP, ESP_LIFE_WAKING };

/* Of life.c: whether model and engine are there, and who waits for them. */
struct esp_life {
    enum esp_life_state state;
    bool asked; /* to sleep as soon as nothing runs */
    bool wake;  /* to be woken as soon as it has fallen asleep */
    bool turns_read;
    double busy_at, since;            /* last use of the model; begin of falling asleep or waking */
    esp_stats stats;                  /* of the engine, while it is away */
    struct esp_service_event *events; /* being handed out */
    struct esp_call *waiting, **last;
    uint32_t n_waiting;
};

struct esp_server {
    struct esp_serve_opts o;
    struct esp_cidr proxies[ESP_SERVE_MAX_NAMES]; /* [o.n_proxy] */
    struct event_base *base;
    struct esp_http *http;
    struct event *tick, *events; /* timer; the service's descriptor */
    struct esp_background *background;
    enum esp_phase phase;
    bool loopback_only;
    bool asked_to_end; /* by request */
    enum esp_log_amount log_level;
    double started, drain_until;
    int64_t started_unix;
    esp_status status; /* of loading */
    esp_error error;
    struct esp_life life;
    /* From loading on; asleep, model, engine and service are NULL. */
    esp_model *model;
    esp_engine *engine;
    struct esp_service *service;
    esp_model_info info;
    uint32_t context, rows, queue;
    uint64_t kv_tokens;
    esp_memory_plan plan; /* total 0: not known */
    uint64_t budget;
    const char *device; /* "host", "cuda:0" */
    struct esp_text_bytes units;
    json_t *errors;  /* by code: how many */
    esp_token *ends; /* [n_end] ids that end a turn */
    size_t n_end;
    esp_token think, tool_call; /* openers that may be banned; -1: none */
    struct esp_fim fim;
    struct esp_call *calls; /* those alive */
    struct esp_job *jobs;   /* generations that have not ended */
    struct esp_metrics metrics;
    struct esp_overhead overhead;
    struct esp_minute minute; /* tokens of prompts, of answers */
    struct esp_keys *keys;
    struct esp_content *content; /* NULL: not logged */
    struct esp_mounts *adapters;
    struct esp_replay *replay;
    struct esp_store *store;
    struct esp_diag *diag;
    struct esp_grammars *grammars;
    struct esp_breakers *breakers;
    struct esp_token_names *names; /* of logprobs.h; NULL until they are wanted */
    json_t *recent;                /* array of the last requests */
    struct esp_slot *slots;        /* [n_slot] */
    uint32_t n_slot;
    uint64_t slot_clock;
    json_t *namespaces; /* of the cache: hexadecimal to the adapters' names */
};

struct esp_route;
enum { ESP_CALL_PARAM = 512, ESP_CALL_PARAMS = 2 };

struct esp_call {
    struct esp_server *s;
    struct esp_call *next, **prev;
    struct esp_call *wait_next;    /* of those that wait for the model */
    struct esp_http_request *r;    /* NULL: the client is gone */
    const struct esp_route *route; /* NULL: none */
    enum esp_family family;
    char params[ESP_CALL_PARAMS][ESP_CALL_PARAM]; /* of the route */
    char id[132];                                 /* x-request-id */
    char client[64];                              /* address of who asks, maybe by a proxy */
    char answer_id[48];                           /* of the dialect: chatcmpl-..., resp_... */
    char key_name[64];
    uint64_t key; /* which one; 0: none was needed */
    bool admin;
    json_t *body;    /* parsed, or NULL */
    size_t n_body;   /* bytes of it */
    json_t *answers; /* for content.c; NULL: none */
    struct esp_api_error e;
    double started, last_write;
    bool streaming, replied;
    /* A stream that has not begun: it opens when its prompt begins to run, or with a keep-alive. */
    bool waits_to_open;
    void (*begin)(struct esp_job *j); /* its first frames; NULL: none */
    struct esp_job *begins;
    atomic_bool gone; /* r is NULL; for work beside the loop, which then need not be done */
    unsigned n_job;   /* generations of this call that have not ended */
    void *answer;     /* of the dialect, freed by free_answer */
    void (*free_answer)(void *answer);
    void (*ping)(struct esp_call *c); /* write a keep-alive; NULL: none */
    double ping_interval;
    /* For the log. */
    int status;
    const char *finish, *cache_reason;
    uint64_t n_prompt, n_cached, n_output;
    double queue_ms, ttft_ms;
    char adapter[64];
    /* Of overhead.h: seconds of rendering and tokenizing, and of waiting for a grammar; when the first
     * token came from the engine, until it is written; not to be counted. */
    double prompt_seconds, grammar_seconds, submitted, first_token;
    bool uncounted;
};

/* ---- replies ---- */

/* Each ends the call's reply; object and list are released. */
void esp_reply_json(struct esp_call *c, int status, json_t *v);
void esp_reply_text(struct esp_call *c, int status, const char *type, const char *text, size_t len);
void esp_reply_empty(struct esp_call *c, int status);
/* The header of every generation: how long it waited for its row. */
void esp_queue_header(struct esp_call *c);
/* The reply has been decided: it is logged, and the client is no longer ours. */
void esp_reply_close(struct esp_call *c, int status);
/* c->e as an error body with its headers. */
void esp_reply_error(struct esp_call *c);
/* Server-sent events: the reply begins, one frame (event NULL: data alone), a comment, the end. */
void esp_sse_begin(struct esp_call *c);
/* The same later: the status of a request that fails in the queue is its error's. ping as in esp_call. */
void esp_sse_expect(struct esp_call *c, void (*ping)(struct esp_call *c), double ping_interval);
/* Now, if the stream has not begun. */
void esp_sse_open(struct esp_call *c);
void esp_sse_data(struct esp_call *c, const char *event, json_t *v);
void esp_sse_write(struct esp_call *c, const struct esp_strbuf *b); /* frames as they are */
void esp_sse_line(struct esp_call *c, const char *line);
void esp_sse_end(struct esp_call *c);
/* The whole reply should this process die before there is one; before any of it. */
void esp_reply_last_words(struct esp_call *c);
/* The stream's last event should this process die; sequence: its number in the responses dialect, else -1. */
void esp_sse_last_words(struct esp_call *c, int64_t sequence);

/* ---- calls ---- */

void esp_call_handle(void *server, struct esp_http_request *r);
void esp_call_refuse(void *server, struct esp_http_request *r, int status, const char *why);
/* A generation of the call has ended or never began; frees the call when nothing is left of it. */
void esp_call_job_ended(struct esp_call *c);
/* Parse the body as a JSON object into c->body; false with c->e set. */
bool esp_call_body(struct esp_call *c);
/* The same beside the loop; then(c) once on the loop, maybe with c->e set, or with c->e set now never. */
void esp_call_body_later(struct esp_call *c, void (*then)(struct esp_call *c));
/* Whether what has to be done with the body would hold up the loop. */
bool esp_call_is_big(const struct esp_call *c);

/* ---- helpers ---- */

double esp_serve_now(void); /* seconds of a steady clock */
/* prefix and 24 random characters of [0-9A-Za-z] */
void esp_random_id(char *out, size_t cap, const char *prefix);
/* Append v as JSON: UTF-8, short numbers. False: no room. */
bool esp_json_add(struct esp_strbuf *b, const json_t *v);
/* The same with every digit of a number. */
bool esp_json_add_exact(struct esp_strbuf *b, const json_t *v);
json_t *esp_text_json(const char *s, size_t len);  /* a string of valid UTF-8 */
double esp_as_written(float x);                    /* with the fewest digits that give x again */
json_t *esp_real_json(double x, double otherwise); /* finite, else otherwise */
/* Model's name in answers: the served id, with :adapter when one is active. */
json_t *esp_model_name(const struct esp_server *s, const char *adapter);
json_t *esp_fingerprint(const struct esp_server *s);
/* The field "model" of a request names what is served, or --model-check is not strict. */
bool esp_model_check(struct esp_call *c, const json_t *name);
/* Keys of the file once more; on an error those at hand stay. */
esp_status esp_server_reload_keys(struct esp_server *s, esp_error *err);
void esp_server_log(struct esp_server *s, json_t *line);
/* Messages of the library name files by path; a client gets what stands behind it alone. path may be NULL. */
void esp_hide_path(esp_error *err, const char *path);
bool esp_is_loopback(const char *peer);

#endif
