/*
 * Load on a server that speaks the OpenAI forms: many clients on one event loop, some of which leave in the
 * middle or stop reading, and what all the others saw. Works against any server; knows nothing of ours.
 *
 * Two ways of sending: closed (rate 0), where every client sends its next request when it is done, and open,
 * where requests come at random times with a mean rate whatever the server does. Latencies of the open way
 * count from the time at which a request was due, so that a slow server cannot slow the clock that measures
 * it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_LOAD_H
#define ESP_PROGRAM_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/strbuf.h"

struct esp_load_target {
    char host[256]; /* name or address, or the path of a socket */
    char port[8];   /* "" for a socket */
    char prefix[256];
    char shown[600];
};

/* http://HOST[:PORT][/PREFIX] or unix:/PATH. ESP_EINVAL, ESP_EUNSUPPORTED for https. */
esp_status esp_load_target_parse(struct esp_load_target *out, const char *url, esp_error *err);

struct esp_load_opts {
    const struct esp_load_target *target;
    const char *path; /* "/v1/chat/completions" */
    const char *key;  /* or NULL */
    uint32_t concurrency;
    double rate;          /* requests per second; 0: closed */
    uint64_t requests;    /* 0: as many as fit into seconds */
    double seconds;       /* stop sending after this time; 0: no limit. One of both is given */
    double grace;         /* for running requests afterwards; 0: 60 s */
    double leave, stall;  /* shares of clients that leave, and that stop reading */
    double stall_seconds; /* how long those wait before they leave; 0: 2 s */
    uint64_t seed;        /* of who leaves and when */
    /* Body of request number i, a JSON object, appended to out. */
    void (*body)(void *user, uint64_t i, struct esp_strbuf *out);
    /* A whole answer of request i: all its text. Returns whether it is right; NULL: always. */
    bool (*whole)(void *user, uint64_t i, const char *text, size_t len);
    void *user;
    int (*interrupted)(void); /* asked between events: not 0 ends the run; NULL: never */
};

struct esp_load_times { /* seconds */
    double *v;
    size_t n, cap;
};

struct esp_load_report {
    uint64_t sent, whole, different; /* whole answers, and those of them that were not right */
    uint64_t left, stalled;          /* clients that did so before their answer was whole */
    uint64_t refused;                /* 429 and 503: the server is full, as it should say */
    uint64_t errors;                 /* other statuses, errors inside streams, connections that broke */
    uint64_t dropped;                /* stalled readers whom the server closed */
    uint64_t events, tokens;         /* with text; tokens as usage tells them, of whole answers */
    double seconds;                  /* from the first request to the end of the last */
    struct esp_load_times ttft, gap, total; /* first text, between texts, whole answer */
    /* The first text's time less what the server says about queue and prompt ("timings" of its last event,
     * where it has them): what HTTP, JSON and both networks add. */
    struct esp_load_times outside;
    char first_error[256]; /* of the first of errors */
};

/* ESP_EIO when nothing can be connected at all; refusals and errors are counted, not returned. */
esp_status esp_load_run(struct esp_load_report *out, const struct esp_load_opts *o, esp_error *err);
void esp_load_report_free(struct esp_load_report *r);
/* One plain request with the same headers: the status, and the body in out. 0 when there was no reply. */
int esp_load_get(const struct esp_load_target *t, const char *key, const char *path, struct esp_strbuf *out);

#endif
