/*
 * espalier/quantize.h: make a smaller model from a checkpoint, convert between checkpoint layouts, compare
 * two models. Conventions are those of espalier.h. These calls may run for minutes to hours; they report
 * progress and can be stopped.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESPALIER_QUANTIZE_H
#define ESPALIER_QUANTIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "espalier/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* what: the phase; item: what is at work; done of total. Return false to stop: the call ends with
 * ESP_ECANCELLED. */
typedef bool (*esp_quantize_progress_fn)(void *user, const char *what, const char *item, double done,
                                         double total);

typedef enum esp_fold_mode { ESP_FOLD_AUTO, ESP_FOLD_OFF, ESP_FOLD_ON } esp_fold_mode;

typedef struct esp_quantize_opts {
    const char *method; /* "rtn", "gptq", "trellis"; NULL: "gptq" */
    uint32_t bits;      /* affine 2 3 4 5 6 8, trellis 1..8; 0: 4 (trellis: 3) */
    double target_bpw;  /* choose bits per matrix by measured sensitivity so that the matrices to be quantized
                           take this  many bits per weight, scales included; 0: off */
    uint32_t group;     /* affine group: 32, 64, 128; 0: 64 */
    const char *recipe; /* JSON file as the output has it; decides every matrix that it names */
    const char *calib;  /* text, or .jsonl of chats ({"messages": [...]}); NULL: the text that is built in */
    const char *stats;  /* folder for the input statistics, made or used again: they depend on source and text
                           alone,  so runs of any method can share them; NULL: in the work folder */
    uint32_t calib_tokens;   /* at most; 0: 65536 */
    const char *const *keep; /* "PATTERN=dtype": modules to leave as bf16, f16 or f32; * and ? match */
    size_t n_keep;
    esp_fold_mode fold;      /* rotate the residual stream and fold norm gains */
    bool act_order;          /* gptq: inputs by activity, static groups */
    const char *scale;       /* trellis row scales: "fixed", "rms", "tensor", "row"; NULL: "row" */
    bool no_feedback;        /* trellis: plain search, no error feedback */
    uint32_t feedback_group; /* trellis: inputs that share feedback, a power of two up to 256. 0: 1 for codes
                                along outputs, 32 along inputs, where the least is 16 and 256 a whole block */
    bool resume;        /* go on with the work folder OUTPUT.work of an interrupted run of the same options */
    bool no_eval;       /* skip perplexity and KL at the end */
    uint64_t seed;      /* of the basis; 0: 1 */
    const char *device; /* that searches for trellis codes: "cpu", "cuda", "cuda:N", or "auto": the first CUDA
                           device if one works; NULL: "cpu". The output's bytes are the same */
    uint32_t threads;   /* 0: one per core */
    uint64_t memory;    /* bytes for input statistics at once; 0: 2 GiB */
    esp_quantize_progress_fn progress;
    void *progress_user;
} esp_quantize_opts;

/* One tensor's outcome. Strings live until the next call of the visitor. */
typedef struct esp_quantize_tensor {
    const char *name;   /* of the module, as stored */
    const char *method; /* "keep", "rtn", "gptq", "trellis" */
    const char *why;    /* for kept ones: the rule */
    uint32_t layer;     /* UINT32_MAX outside layers */
    uint32_t bits, group, axis;
    uint64_t weights, bytes;
    double loss; /* tr(E H ET) / tr(W H WT); negative when it was not measured */
} esp_quantize_tensor;

/* How far `other` is from `base`, over predictions on the same tokens. */
typedef struct esp_comparison {
    uint64_t tokens;
    double kl_mean, kl_p50, kl_p95, kl_p99, kl_max; /* KL(base || other), nats */
    double agreement;                               /* share of equal most likely tokens */
    double base_nll, other_nll;                     /* mean negative log-likelihood of the next token */
} esp_comparison;

typedef struct esp_quantize_report {
    uint64_t source_bytes, bytes; /* of all tensors */
    uint64_t quantized_weights, quantized_bytes;
    double bpw;            /* of the quantized matrices, scales and biases included */
    double bpw_all;        /* of the whole model */
    uint64_t untied_bytes; /* added for a head of its own */
    bool folded;
    uint32_t n_quantized, n_kept_for_size; /* matrices that did not fit a group, block or basis */
    bool compared;
    esp_comparison comparison; /* on held-out parts of the calibration text */
    double seconds;
    char device[64]; /* that searched for trellis codes: "cuda:0 (...)", "cpu"; empty: there are none */
} esp_quantize_report;

typedef void (*esp_quantize_tensor_fn)(void *user, const esp_quantize_tensor *t);

/*
 * Quantize the model folder source into the new folder output. Work is done in "OUTPUT.work", which becomes
 * the output by one rename; it does not load before it is complete. Stopped or killed at any moment, the same
 * call with resume goes on and ends with the same bytes. Refused before any work: an output that exists
 * (ESP_ESTATE), a work folder without resume or of other options (ESP_ESTATE), too little disk space
 * (ESP_ENOFIT), keep patterns and recipe names that match nothing (ESP_EINVAL), a source that is quantized
 * already (ESP_EUNSUPPORTED), weights that are not finite (ESP_ENUMERIC, naming the tensor), a device that is
 * not there, has no such search or too little memory (ESP_EDEVICE, ESP_EUNSUPPORTED, ESP_ENOMEM).
 */
ESP_API esp_status esp_quantize(const char *source, const char *output, const esp_quantize_opts *opts,
                                esp_quantize_report *report, esp_quantize_tensor_fn visit, void *visit_user,
                                esp_error *err);

/* How a model keeps keys, values and states, as in esp_engine_opts; zeros: f32 all of them. */
typedef struct esp_compare_cache {
    const char *kv;
    uint32_t kv_start;
    const char *state;
} esp_compare_cache;

typedef struct esp_compare_opts {
    uint32_t window;                 /* tokens of one run from an empty state */
    uint32_t threads;                /* 0: one per core */
    esp_compare_cache cache;         /* of the others; the base has f32 */
    const esp_compare_cache *caches; /* [n_other], each its own; NULL: cache for all */
    esp_quantize_progress_fn progress;
    void *progress_user;
} esp_compare_opts;
/* Run n tokens, in windows, through the model folder base and n_other others, each of the same vocabulary.
 * out [n_other]. */
ESP_API esp_status esp_compare(const char *base, const char *const *other, size_t n_other,
                               const int32_t *tokens, size_t n, const esp_compare_opts *opts,
                               esp_comparison *out, esp_error *err);

typedef struct esp_convert_opts {
    const char *layout; /* "hf" or "mlx"; NULL: the one that the source has not */
    const char *dtype;  /* "bf16", "f16", "f32": cast matrices; NULL: keep, which is lossless and checked */
    esp_quantize_progress_fn progress;
    void *progress_user;
} esp_convert_opts;
/*
 * Rewrite a model folder in the other layout's names, convolution shape and norm convention. Norm weights
 * become f32 where adding or taking away 1 would lose bits. Without dtype the output is read back and every
 * value compared (ESP_EIO when one differs).
 */
ESP_API esp_status esp_convert(const char *source, const char *output, const esp_convert_opts *opts,
                               esp_error *err);

#ifdef __cplusplus
}
#endif
#endif
