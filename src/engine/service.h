/*
 * An engine behind two queues: requests and cancellations go in from any thread, events come out to one
 * reader, and a thread of the service's own is the only one that touches the engine. There is one lock; it is
 * never held while the engine steps. A file descriptor becomes readable when events wait, so an event loop
 * can sleep on it.
 *
 * Bounds: a request is refused at once (ESP_ENOFIT, with numbers) when as many run and wait as the engine has
 * rows and queue; when the reader falls max_events behind, the engine pauses until it reads. A server
 * therefore reads always and keeps what slow clients have not taken in buffers of its own.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_SERVICE_H
#define ESP_ENGINE_SERVICE_H

#include "engine/constraint.h"
#include "engine/pins.h"

struct esp_service;

struct esp_service_opts {
    uint32_t max_events;     /* 0: 4096 */
    uint32_t rows_per_owner; /* most choices of one owner that are in the engine at a time; 0: no bound */
};

/* Start the thread. The engine belongs to the service until it is closed, and must have no open sequences. */
esp_status esp_service_open(struct esp_service **out, esp_engine *g, const struct esp_service_opts *o,
                            esp_error *err);
/* Cancel everything and join the thread; the engine is the caller's again, events not read are lost. No other
 * call on v but an exclusive one may be in progress. NULL is a no-op. */
void esp_service_close(struct esp_service *v);

struct esp_service_request {
    const esp_token *tokens; /* [n], copied */
    size_t n;
    const size_t *marks; /* [n_mark], copied; see esp_seq_set_marks() */
    size_t n_mark;
    size_t max_new;
    uint32_t n_choice; /* 1 to 16; 0: 1. They share the prompt, and each counts as a row */
    esp_seq_opts opts; /* bias and dry_breakers copied; choice is set by the service */
    /* Of every choice's answer; copied, NULL: none. With ESP_OK what it points to belongs to the service,
     * which closes it on its own thread or at its end. Several choices need clone(). */
    const struct esp_constraint *constraint;
    /* The answer has begun in an earlier request, which has just ended: neither a full queue nor a drain
     * refuses it, and it goes in front of those that wait. One choice. */
    bool goes_on;
    const struct esp_seq_pin *pins; /* [n_pin], copied: marks whose checkpoints stay for a while */
    size_t n_pin;
    /* Log-probabilities of the prompt's tokens, from the second on, come first (ESP_SERVICE_PROMPT). The
     * prompt runs whole then, a few tokens between two steps of the others. */
    bool score;
    uint64_t owner;       /* whose request it is, for rows_per_owner; 0: nobody's, without that bound */
    uint32_t progress_ms; /* tell before the prompt begins to run, and then at most so often; 0: never */
    void *user;           /* comes back with every event */
};
enum { ESP_SERVICE_MAX_CHOICES = 16 };

/* Any thread. *id is never 0 and never used again. ESP_ENOFIT: queue full, or more choices than its owner may
 * have rows; ESP_EINVAL; ESP_ESTATE: draining. */
esp_status esp_service_submit(struct esp_service *v, const struct esp_service_request *r, uint64_t *id,
                              esp_error *err);
/* Any thread. Observed in the queue, between prompt chunks and between tokens; what already runs is finished
 * and dropped. Every choice still ends with one event, ESP_SERVICE_CANCELLED. Unknown ids are ignored. */
void esp_service_cancel(struct esp_service *v, uint64_t id);
/* One choice alone; the others go on. */
void esp_service_cancel_choice(struct esp_service *v, uint64_t id, uint32_t choice);

enum esp_service_what {
    ESP_SERVICE_TOKEN,    /* token; finish may be set as well */
    ESP_SERVICE_FINISH,   /* finish alone */
    ESP_SERVICE_PROMPT,   /* a token of the prompt with its log-probability */
    ESP_SERVICE_PROGRESS, /* prompt tokens run so far, and what the cache had; choice 0 */
    ESP_SERVICE_CANCELLED /* the choice has ended because it was cancelled, or the service closes */
};

struct esp_service_event {
    uint64_t id;
    void *user;
    uint32_t choice;
    enum esp_service_what what;
    bool last; /* of this choice: nothing follows, usage is final */
    esp_token token;
    esp_finish finish;
    float logprob;
    uint32_t n_top;
    esp_logprob top[20];
    esp_status status; /* of a failure before the first step: why the request was not taken */
    char message[256]; /* of a failure */
    /* ESP_SERVICE_PROGRESS: tokens behind us (with those that were cached), tokens that the cache knew,
     * usable or not; whether a file had them; the namespace of the text. */
    uint64_t processed, matched, ns;
    bool from_file;
    esp_usage
        usage; /* with last; cached_tokens of the prompt count in choice 0; with ESP_SERVICE_PROGRESS its
                        queue_ms and cached_tokens */
    /* Seconds of the steady clock: when it happened, and when its request was submitted. */
    double at, submitted;
};

/* One reader. Takes up to cap events, at once; 0 when there are none. */
size_t esp_service_poll(struct esp_service *v, struct esp_service_event *out, size_t cap);
/* Wait until events are there; false after timeout_ms (negative: no limit). */
bool esp_service_wait(struct esp_service *v, int timeout_ms);
/* Readable while events wait; do not read from it. */
int esp_service_fd(const struct esp_service *v);

/* Any thread: numbers as of the last step. */
void esp_service_stats(struct esp_service *v, esp_stats *out);
/*
 * Run fn on the engine's thread when no sequence is open, and wait for it: no request is admitted meanwhile,
 * those that run end first, submitted ones wait. For flushing the cache, loading or freeing adapters. Not
 * from the reader's thread, unless another one reads. One caller at a time gets through; others wait.
 * ESP_ECANCELLED when the service closes first; else what fn returns.
 */
typedef esp_status (*esp_service_fn)(void *user, esp_engine *g, esp_error *err);
esp_status esp_service_exclusive(struct esp_service *v, esp_service_fn fn, void *user, esp_error *err);
/* The same between two steps, beside the rows that run. fn must not change sequences; for the cache's texts.
 */
esp_status esp_service_call(struct esp_service *v, esp_service_fn fn, void *user, esp_error *err);
/* Refuse requests from now on (ESP_ESTATE); those taken in go on. */
void esp_service_drain(struct esp_service *v);
/* Seconds since the thread last went round its loop. */
double esp_service_idle_seconds(struct esp_service *v);
/* Requests that have not ended, in choices. */
uint32_t esp_service_pending(struct esp_service *v);

#endif
