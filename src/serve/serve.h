/*
 * The server: HTTP on one side, an engine behind its service on the other. The only header of the room that
 * the program needs.
 *
 * One thread runs the event loop and all of the room's code; the engine has its own. Loading the model, and
 * the few things that wait for a still engine (adapters, prompt scoring, saving), run on a third and report
 * back.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_SERVE_H
#define ESP_SERVE_SERVE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "espalier/espalier.h"

struct esp_guard;
struct esp_server;

enum { ESP_SERVE_MAX_HOSTS = 8, ESP_SERVE_MAX_NAMES = 32, ESP_SERVE_MAX_KEYS = 1024 };

enum esp_serve_thinking { ESP_THINKING_MODEL, ESP_THINKING_ON, ESP_THINKING_OFF };
/* Requests that the log has a line for. */
enum esp_log_amount { ESP_LOG_FAULTS, ESP_LOG_REFUSALS, ESP_LOG_ALL };
enum esp_serve_poll { ESP_SERVE_RUN = 0, ESP_SERVE_STOP = 1, ESP_SERVE_RELOAD = 2 };

enum esp_serve_reasoning { ESP_REASONING_CONTENT, ESP_REASONING_PLAIN, ESP_REASONING_BOTH };
enum esp_serve_metrics { ESP_METRICS_VLLM = 1, ESP_METRICS_LLAMACPP = 2, ESP_METRICS_OWN = 4 };
enum { ESP_SERVE_EFFORTS = 6 };

struct esp_serve_sampling { /* the server's defaults; NAN or -2 (top_k): not given */
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int32_t top_k;
    /* Known to no model: always given. As esp_sampling has them. */
    float typical_p, xtc_probability, xtc_threshold, dry_multiplier, dry_base;
    uint32_t dry_allowed_length, dry_context;
};

struct esp_serve_engine { /* what load made */
    esp_model *model;
    esp_engine *engine;
    uint32_t context, rows, queue; /* as the engine was opened with, defaults resolved */
    uint64_t kv_tokens;
    esp_memory_plan plan; /* as the engine was opened; zeros: not known */
    uint64_t budget;      /* bytes that the plan kept to; 0: no bound */
    const char *device;   /* whose memory that is: "host", "cuda:0"; NULL: host */
};

struct esp_serve_opts {
    /* Network. */
    const char *hosts[ESP_SERVE_MAX_HOSTS]; /* addresses or unix:/path; none: 127.0.0.1 */
    size_t n_host;
    int inherited[ESP_SERVE_MAX_HOSTS]; /* [n_inherited] sockets to accept on, in place of the first hosts */
    size_t n_inherited;
    struct esp_guard *guard; /* of the parent, see guard.h; NULL: none */
    uint16_t port;
    const char *api_prefix; /* "" or "/x": in front of every path */
    uint32_t backlog, max_connections;
    uint32_t http_threads; /* for large bodies and prompts, and as many for grammars; 1 or more */
    bool insecure;         /* listen beyond this machine without a key */
    const char *allowed_hosts[ESP_SERVE_MAX_NAMES];
    size_t n_allowed_host;
    const char *cors_origins[ESP_SERVE_MAX_NAMES]; /* origins, "localhost", or "*" */
    size_t n_cors;
    const char *trusted_proxies[ESP_SERVE_MAX_NAMES]; /* addresses or blocks whose X-Forwarded-For counts */
    size_t n_proxy;
    const char *api_key;      /* or NULL */
    const char *api_key_file; /* or NULL; lines of: key [name] [role] */
    uint32_t per_key_rows;    /* of one key's requests together, with that share of the queue; 0: no bound */
    /* Names. */
    const char *model_id;
    const char *aliases[ESP_SERVE_MAX_NAMES];
    size_t n_alias;
    bool strict_model;
    /* Limits. */
    uint64_t max_body, max_prompt_bytes, stream_buffer;
    uint32_t max_messages;
    double header_timeout, body_timeout, write_timeout, keepalive_timeout, request_timeout, shutdown_timeout,
        queue_timeout, idle_sleep,
        sse_ping; /* seconds; request_timeout and idle_sleep 0, sse_ping below 0: off */
    bool strict_max_tokens;
    /* Answers. */
    struct esp_serve_sampling sampling;
    const char *dry_breakers[ESP_SERVE_MAX_NAMES]; /* texts that end a repetition */
    size_t n_dry_breaker;
    uint64_t max_tokens; /* default of max_tokens; 0: the room left */
    enum esp_serve_thinking thinking;
    bool messages_thinking_model; /* /v1/messages without a thinking field: as the model does; else off */
    int64_t thinking_budget;      /* -1: none */
    int64_t effort_budgets[ESP_SERVE_EFFORTS]; /* by word: minimal, low, medium, high, xhigh, max; -1: none */
    const char *budget_message; /* what ends a thinking whose budget is used up; NULL: built in */
    uint32_t answer_reserve;    /* tokens of max_tokens that thinking leaves to the answer, at most half */
    enum esp_serve_reasoning reasoning_field; /* of chats */
    bool strict_tools;                        /* arguments of calls keep to the whole schema of every tool */
    bool stable_history;                      /* keep every turn's thinking */
    bool text_in_thinking;                    /* a call inside <think> is text */
    bool late_system_user, late_system_error; /* a system message behind others: as a user's, or refused; else
                                                 merged into the first */
    bool strict_history;     /* earlier calls whose arguments are no JSON object are refused */
    bool keep_attribution;   /* do not drop a client's attribution line */
    uint32_t replay_entries; /* turns kept for exact replay */
    uint64_t replay_bytes;
    double replay_ttl;       /* seconds */
    const char *replay_dir;  /* keep them in a file there; NULL: in memory */
    uint64_t response_bytes; /* of the store behind /v1/responses */
    double response_ttl;
    uint32_t diag_entries;                     /* requests that later ones may be compared with */
    const char *response_dir;                  /* keep it in a file there; NULL: in memory */
    const char *adapters[ESP_SERVE_MAX_NAMES]; /* folders, or folder:scale: mounted, and used by default */
    size_t n_adapter;
    const char *adapter_dir; /* adapters must lie below; NULL: none may be mounted by request */
    const char *slot_dir;    /* saved slots; NULL: none */
    bool no_metrics, metrics_public, log_json;
    enum esp_log_amount log_level;
    bool codex_catalog;      /* GET /v1/models has the list that Codex reads, too */
    const char *log_content; /* folder for a file a request, with its text and its answers'; NULL: none */
    bool slots_text;         /* GET /slots has the prompts that run */
    bool cache_debug;        /* ext.cache.divergence for every request */
    unsigned metrics_names;  /* families: esp_serve_metrics, or-ed; 0: all */
    bool no_page;            /* GET / is a line of text instead of the web page */
    const char *fingerprint; /* of weights and settings, for system_fingerprint */
    const char *commit;
    const char *kv, *state; /* for the model list */
    /* What the program does. */
    void *user;
    /* On a thread of its own: make the model and its engine. The server closes neither. */
    esp_status (*load)(void *user, struct esp_serve_engine *out, esp_error *err);
    /* On a thread of its own: close what load made, which may be half made; load is called again after it.
     * NULL: the server does not sleep. */
    void (*unload)(void *user);
    double (*load_progress)(void *user); /* any thread; 0 to 1 */
    unsigned (*poll)(void *user);        /* ten times a second, on the loop: esp_serve_poll, or-ed */
    /* For ESP_SERVE_RELOAD beside keys: new limits (limits and times) and log level in *o, which has
     * those that hold. ESP_EINVAL and others: they stay. NULL: there are none to read. */
    esp_status (*reload)(void *user, struct esp_serve_opts *o, esp_error *err);
    json_t *(*fit)(void *user); /* GET /fit: a new object; NULL: there is none */
    void (*listening)(void *user, const char *url);
    void (*ready)(void *user);
    void (*log)(void *user, const char *line); /* one line, without its end */
};

/* Defaults of everything but what load needs. */
void esp_serve_defaults(struct esp_serve_opts *o);
/*
 * Listen, load, serve until poll says stop, drain, return. Texts in o must outlive the call. ESP_EINVAL for
 * options, ESP_EIO when an address cannot be had, else what load returned.
 */
esp_status esp_serve(const struct esp_serve_opts *o, esp_error *err);

#endif
