/*
 * What public engine and sequence handles hold. Private to the room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_ENGINE_H
#define ESP_ENGINE_ENGINE_H

#include "base/limits.h"
#include "sample/sampler.h"
#include "state/state.h"

#include "engine/constraint.h"
#include "engine/model.h"
#include "engine/pins.h"

enum { MAX_SEQS = 1024, MAX_TOP = ESP_SAMPLE_MAX_TOP };

/* What a row of a step is: known tokens, one pending token, a pending token with drafts in a journalled pass,
 * known tokens behind a generation that has begun. */
enum esp_row_kind { ESP_ROW_PREFILL, ESP_ROW_DECODE, ESP_ROW_VERIFY, ESP_ROW_APPEND, ESP_ROW_KINDS };

struct esp_cache; /* cache.h */

/* What cached and saved states depend on beside their tokens. */
struct esp_cache_identity {
    uint64_t ns;
    char about[320]; /* the same for people */
};

struct esp_drafter; /* draft.h */
struct esp_draft_ask;

/* Speculation of an engine; spec.c */
enum { ESP_SPEC_CURVE = 64 };
struct esp_speculation {
    const struct esp_drafter *drafter;    /* NULL: off */
    void *data;                           /* the drafter's */
    uint32_t max_drafts;                  /* of one step */
    struct esp_draft_ask *asks;           /* [rows] */
    struct esp_draft_ask **live;          /* [rows] scratch of drafters */
    float *hidden;                        /* [chunk][hidden] of the trunk's last run; NULL: not wanted */
    double step_time[ESP_SPEC_CURVE + 1]; /* seconds by rows of the step; 0: not known */
    double draft_time;                    /* by draft of the longest proposal */
    double draft_seconds;
};
/* ... and of a sequence. */
struct esp_spec_seq {
    void *data; /* the drafter's */
    int32_t drafts[ESP_LIMIT_DRAFTS];
    uint32_t want, n;    /* of the step being built: wished for, proposed */
    double right, wrong; /* decayed counts */
    uint32_t wait;       /* steps without drafts before the next try */
    uint32_t next_wait;
    bool off;
};

/* Sets of a sequence's adapters, ascending by revision: a stack is the same whatever order it was named in.
 */
struct esp_seq_lora {
    const struct esp_lora_set *set[ESP_LORA_STACK];
    float scale[ESP_LORA_STACK];
    uint32_t n;
    uint64_t key; /* of all revisions and scales; 0 without adapters */
};

/* Check and sort what opts names. ESP_EINVAL: too many, twice the same, of another model, a scale that is not
 * finite; ESP_ENOFIT: a rank beyond the engine's. */
esp_status esp_seq_lora_resolve(const struct esp_engine *g, const esp_seq_opts *o, struct esp_seq_lora *out,
                                esp_error *err);

/* The constraint of a sequence; constraint.c */
struct esp_seq_limit {
    struct esp_constraint c; /* mask NULL: none */
    uint32_t n;              /* tokens that it has accepted */
};

/* Replaces earlier ones; the positions must be marks as well. ESP_EINVAL, ESP_ENOMEM. */
esp_status esp_seq_set_pins(struct esp_seq *s, const struct esp_seq_pin *pins, size_t n, esp_error *err);

struct esp_seq {
    struct esp_engine *engine;
    struct esp_seq *next; /* of the engine's list, in order of opening */
    struct esp_state *state;
    struct esp_sampler *sampler;
    esp_seq_opts opts; /* bias copied into the sampler */
    struct esp_seq_lora lora;
    struct esp_seq_limit limit;
    int32_t *tokens; /* [context] appended and emitted */
    uint32_t n_token;
    bool armed;    /* generating or waiting for it */
    bool active;   /* armed and admitted: has a row */
    size_t n_left; /* tokens that may still be emitted */
    /* Scheduling. */
    uint64_t arrival;                              /* order of arming */
    uint64_t used;                                 /* order of last use, for those that do not generate */
    uint32_t n_passed;                             /* later ones that were let past it while it waits */
    double armed_at, active_at, first_at, done_at; /* seconds; 0: not yet */
    double waits_from;                             /* for aging: armed_at, or when the request came */
    esp_usage usage;
    /* Prefix cache. */
    uint64_t ns;
    uint32_t *marks; /* [n_mark] ascending */
    uint32_t n_mark;
    struct esp_seq_pin *pins; /* [n_pin] */
    uint32_t n_pin;
    uint32_t cache_match; /* tokens that the last lookup found, usable or not */
    bool cache_file;      /* part of what it took over came from a file */
    uint32_t junction;    /* where this text parts from a cached one without a checkpoint near; 0: nowhere */
    /* Of the step being built. */
    uint32_t step_n;   /* tokens in it, 0: not part */
    uint32_t step_row; /* first of its rows of logits, NO_ROW: none wanted */
    enum esp_row_kind step_kind;
    struct esp_spec_seq spec;
};
#define NO_ROW UINT32_MAX

struct pending_event { /* of a finished step, not yet handed out */
    esp_event event;
    esp_logprob top[MAX_TOP];
    char message[ESP_ERROR_MESSAGE_BYTES];
};

struct esp_engine {
    struct esp_model *model;
    struct esp_dev *dev;
    struct esp_state_pools *pools;
    struct esp_plan *plan;
    esp_engine_opts opts; /* every default resolved */
    struct esp_seq *seqs;
    uint32_t n_seq;
    struct esp_sample_work *sample_work;
    uint64_t *xtc_exempt; /* bit per id */
    /* A step's arrays, allocated once. */
    int32_t *ids; /* [chunk] */
    int32_t (*pos)[3];
    uint32_t *out_rows;
    struct esp_batch_seq *batch_seqs; /* [max_seqs] */
    struct esp_seq **batch_owner;
    struct esp_seq **step_rows;   /* [rows] those of one pending token */
    float *logits;                /* [rows + drafts][n_vocab] */
    struct esp_few *few;          /* [rows + drafts, at most ESP_FEW_ROWS]; NULL: the device gives none */
    bool few_now;                 /* this step's rows are few and not logits */
    uint64_t n_few, n_whole;      /* tokens drawn from few, rows fetched although few were there */
    uint64_t *allowed;            /* [(n_vocab + 63) / 64] of the row under a constraint that is looked at */
    struct pending_event *events; /* [2 * max_seqs + rows + drafts + ESP_LIMIT_FORCED] */
    uint32_t n_event, first_event;
    uint32_t turn; /* rotates which sequence's prompt goes first */
    /* Scheduling. */
    uint32_t n_active, n_waiting;
    uint64_t n_armed_ever, n_use;
    double step_cost,
        token_cost;          /* seconds: of a step of single tokens, of one prompt token more; 0: unknown */
    struct esp_cache *cache; /* NULL: none */
    struct esp_cache_identity identity;
    struct esp_speculation spec;
    esp_stats stats;
};

/* Options with every default filled in, checked. */
esp_status esp_engine_resolve(const struct esp_model *m, const esp_engine_opts *in, esp_engine_opts *out,
                              esp_error *err);
/* What follows from resolved options: layout, pool sizes, plan limits. */
struct esp_engine_shape {
    struct esp_layout layout;
    struct esp_pool_sizes pools;
    struct esp_plan_opts plan;
};
esp_status esp_engine_shape(const struct esp_model *m, const esp_engine_opts *o, struct esp_engine_shape *out,
                            esp_error *err);
/* Bytes of a net's weights in the memory of the device that runs its tape. */
uint64_t esp_engine_weights(const struct esp_dev *dev, const struct esp_net *net, const struct esp_tape *t);

/* ---- device.c ---- */

/* What the device of the options cannot do is refused, before it is opened. */
esp_status esp_engine_check_device(const struct esp_model *m, const esp_engine_opts *o, esp_error *err);
/* What a name means: "cuda" and "cuda:N", or "cpu" and NULL (*cuda false). ESP_EINVAL for other words;
 * nothing is opened. device_name.c */
esp_status esp_engine_device_name(const char *name, bool *cuda, uint32_t *index, esp_error *err);
/* The CUDA device of that name (cuda, cuda:N); *out NULL for cpu and NULL. device_name.c */
esp_status esp_engine_cuda(struct esp_dev **out, const char *name, esp_error *err);
/* The device that resolved options name. */
esp_status esp_engine_device(struct esp_dev **out, const struct esp_model *m, const esp_engine_opts *o,
                             esp_error *err);

/* ---- constraint.c: a sequence's sampler and constraint move together ---- */

/* Ids that may come next, valid until the next call; NULL: all. *state is MAY_END without a constraint. */
esp_status esp_seq_mask(const struct esp_seq *s, const uint64_t **allowed, enum esp_constraint_state *state,
                        esp_error *err);
/* id follows, to sampler and constraint both or to neither. *state as of the constraint, else MAY_END. */
esp_status esp_seq_push(struct esp_seq *s, uint32_t id, enum esp_constraint_state *state, esp_error *err);
/* Take the last n tokens back; the constraint gets no more back than it was given. */
esp_status esp_seq_pop(struct esp_seq *s, size_t n, esp_error *err);
/* Up to cap tokens that are decided already. */
uint32_t esp_seq_forced(const struct esp_seq *s, esp_token *out, uint32_t cap);
/* Close it. */
void esp_seq_drop_constraint(struct esp_seq *s);

/* ---- walk.c: what comes of a row ---- */

/* An event of s, behind those of the step. */
struct pending_event *esp_engine_push_event(struct esp_engine *g, struct esp_seq *s, esp_token token,
                                            esp_finish finish);
void esp_engine_push_failure(struct esp_engine *g, struct esp_seq *s, const esp_error *err);
/* What follows from a finish that was pushed; no pass of s may be open. */
void esp_engine_finish(struct esp_seq *s, esp_finish finish);
/* Append what the constraint of s has decided, without running it, up to `most` tokens; their number. s may
 * have left when it returns. */
uint32_t esp_engine_force(struct esp_engine *g, struct esp_seq *s, uint32_t most);
/* After the run: tokens, the end of the pass, checkpoints. A sequence's own failure is an event. */
void esp_engine_end_row(struct esp_engine *g, const struct esp_batch_seq *row, struct esp_seq *s);

/* ---- schedule.c ---- */

/*
 * Begin a pass of s over its next n tokens. When pages or slots run out, take them from the cache, from
 * snapshots and from sequences without a row, and with expected admission from rows of lower rank. On
 * ESP_ENOFIT s itself may have been put back to wait: it is not active any more then, which is no failure.
 */
esp_status esp_engine_begin(struct esp_seq *s, uint32_t n, struct esp_batch_seq *out, esp_error *err);
/* A journalled pass, when everything it needs is free; nothing is given up for drafts. */
bool esp_engine_begin_draft(struct esp_seq *s, uint32_t n, struct esp_batch_seq *out);
/* The same sources until so many pages and slots are free, or nothing more can be given up for s. */
void esp_engine_make_room(struct esp_seq *s, uint32_t pages, uint32_t slots);
/* Give waiting sequences rows, best rank first, while they fit. */
void esp_engine_admit(struct esp_engine *g);
enum { ESP_PRIORITY_FIRST = -100 }; /* the most urgent that a sequence may have */
/* Place of what has waited from then on; lower goes first, who came first among equals. */
int64_t esp_engine_rank(const struct esp_engine *g, int32_t priority, double waits_from, double now);
/* Arm s for up to max_new tokens, or refuse. */
esp_status esp_engine_enqueue(struct esp_seq *s, size_t max_new, esp_error *err);
/* s stops waiting or generating; keep: its state is sound and may enter the prefix cache. */
enum esp_leave { ESP_LEAVE_KEEP, ESP_LEAVE_DROP };
void esp_engine_leave(struct esp_seq *s, enum esp_leave how);
/* Most tokens of the next step, n_decode of them single ones. */
uint32_t esp_engine_budget(struct esp_engine *g, uint32_t n_decode);
/* Learn from a step of n_single single tokens and n_prompt others that took dt seconds. */
void esp_engine_measure(struct esp_engine *g, uint32_t n_single, uint32_t n_prompt, double dt);
double esp_engine_now(void); /* seconds of a steady clock */

#endif
