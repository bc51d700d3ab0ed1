/*
 * espalier: run Qwen3.5-class hybrid language models. The header is the specification: what a comment here
 * does not promise, callers must not use.
 *
 * Conventions
 *   Fallible calls return esp_status and take a nullable esp_error last; on failure outputs are untouched.
 *   Options structs may be zeroed: zero means the default. Always zero them, so that later fields get
 * defaults too. Arrays out follow (out, cap, n): at most cap elements are written, *n is always the full
 * count, out may be NULL when cap is 0. Texts are UTF-8 with explicit lengths; messages are zero-terminated.
 *   A model may be used from any thread at once. An engine and its sequences: one thread at a time.
 *   The library never exits, prints, or installs signal handlers.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESPALIER_H
#define ESPALIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "espalier/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct esp_model esp_model;
typedef struct esp_engine esp_engine;
typedef struct esp_seq esp_seq;
typedef struct esp_adapter esp_adapter;
typedef int32_t esp_token; /* index into the vocabulary */

/* ---- library ---- */

ESP_API const char *esp_version(void);

typedef enum esp_log_level { ESP_LOG_ERROR, ESP_LOG_WARNING, ESP_LOG_INFO, ESP_LOG_DEBUG } esp_log_level;
typedef void (*esp_log_fn)(void *user, esp_log_level level, const char *message);
/* Receive the library's messages; fn NULL switches them off (the default). Call before anything else. */
ESP_API void esp_set_log(esp_log_fn fn, void *user);

/* ---- models ---- */

typedef struct esp_model_opts {
    const char *cpu_level; /* "ref", "avx2", "avx512", "amx", "neon"; NULL: $ESPALIER_CPU, else the best */
    uint32_t threads;      /* worker threads of this model's engines; 0: one per physical core */
    const char *chat_template_file; /* instead of the model's own template; NULL: the model's */
    /* Called while loading with what is being done and a fraction in 0..1; return false to stop
     * (ESP_ECANCELLED). */
    bool (*progress)(void *user, const char *what, double fraction);
    void *progress_user;
    bool shape_only; /* esp_model_synthetic: take no memory for weights; the model can be described and
                        planned for, but not run. esp_model_open: the same of expanded weights */
    /*
     * "affine8": trellis-coded weights are decoded while loading and kept as affine codes of 8 bits, for
     * CPUs that read those faster than they decode. Answers change as by quantizing to 8 bits; memory grows
     * to 8.5 bits a weight. NULL or "off": as stored. ESP_EINVAL where no weight is coded.
     */
    const char *expand;
    /*
     * Threads of steps in which 16 or more tokens of one sequence run together; 0: as many as threads. Texts
     * do not depend on it.
     */
    uint32_t threads_batch;
    /* Folder whose tokenizer.json is used, and whose chat template where it has one; NULL: the model's.
     * ESP_EINVAL when it has more ids than the model has rows. */
    const char *tokenizer_dir;
    bool no_mmap; /* read the weights into memory of this process instead of mapping their files */
    /*
     * Positions: "none", or "yarn:FACTOR" and "yarn:FACTOR:LENGTH" for FACTOR times the LENGTH that the model
     * was trained with. NULL or "model": as config.json says. ESP_EINVAL for other words.
     */
    const char *rope_scaling;
    /*
     * Pages of the memory that weights in the processor's order, expanded ones, keys, values and states lie
     * in (files are mapped in what the page cache has): "auto", transparent huge pages where the system
     * grants them; "on", the same, and ESP_EDEVICE says what denies them; "off"; "hugetlb", of the pool
     * that the system reserves, with ESP_ENOFIT where it is too small. NULL: auto.
     */
    const char *huge_pages;
    /*
     * On a machine with several memory nodes: "spread" holds each thread to a node and lays the outputs
     * that its threads compute into its memory; "node:N" keeps threads and memory on one; "off" leaves both
     * to the system; "auto" is spread where hwloc can tell the nodes. Nothing happens on a machine with
     * one. The text is the same. NULL: auto.
     */
    const char *numa;
} esp_model_opts;

typedef struct esp_model_info {
    char name[128];        /* architecture, such as "qwen3_5" */
    char shape[32];        /* known size ("qwen3.5-0.8b") or "custom" */
    char weights[64];      /* formats in use, most bytes first, such as "bf16" or "affine4 g64, bf16" */
    uint64_t n_params;     /* of the text model */
    uint64_t weight_bytes; /* as stored or expanded, embeddings once */
    uint32_t n_layer;
    uint32_t n_full_layer; /* of them full attention */
    uint32_t hidden;
    uint32_t n_vocab; /* rows of the head */
    uint32_t n_token; /* ids that the tokenizer defines; others are never sampled */
    uint32_t context; /* largest position count the model was made for */
    bool has_template;
    bool has_mtp;
    bool has_vision;
    float temperature, top_p, min_p; /* generation defaults of the model; negative: none given; temperature 0
                                        also when the model asks not to sample */
    int32_t top_k;                   /* -1: none given */
} esp_model_info;

/* Open a model folder (config.json, safetensors, tokenizer.json). Weights are mapped, not copied. */
ESP_API esp_status esp_model_open(esp_model **out, const char *path, const esp_model_opts *opts,
                                  esp_error *err);
/*
 * A model of a published shape ("qwen3.5-0.8b", "-2b", "-4b", "-9b", "-27b") with random weights in memory,
 * for benchmarks: format "bf16", "f32" or "affine4" etc. It has no tokenizer.
 */
ESP_API esp_status esp_model_synthetic(esp_model **out, const char *shape, const char *format, uint64_t seed,
                                       const esp_model_opts *opts, esp_error *err);
/* Engines of the model must be closed first. */
ESP_API void esp_model_close(esp_model *m);
ESP_API void esp_model_describe(const esp_model *m, esp_model_info *out);

/*
 * A LoRA adapter folder (PEFT or MLX form) for m, which must outlive it. All or nothing: the message lists
 * every module that does not fit. May be opened while engines run; several engines may use it.
 */
ESP_API esp_status esp_adapter_open(esp_adapter **out, esp_model *m, const char *path, esp_error *err);
/* Sequences that use it must be closed first. NULL is a no-op. */
ESP_API void esp_adapter_close(esp_adapter *a);
typedef struct esp_adapter_info {
    uint32_t n_modules; /* weights it stands beside */
    uint32_t max_rank;
    uint64_t bytes;    /* resident */
    uint64_t revision; /* changes with anything that changes what it computes */
} esp_adapter_info;
ESP_API void esp_adapter_describe(const esp_adapter *a, esp_adapter_info *out);

/* ---- text ---- */

/*
 * Text to ids. control: whether strings such as "<|im_end|>" in text become control tokens; false keeps them
 * text, as is right for anything a user wrote. Invalid UTF-8 is replaced by U+FFFD.
 */
ESP_API esp_status esp_tokenize(const esp_model *m, const char *text, size_t len, bool control,
                                esp_token *out, size_t cap, size_t *n, esp_error *err);
/* Exact bytes of one token; may be part of a character. Ids without an entry have none (n = 0). */
ESP_API esp_status esp_token_bytes(const esp_model *m, esp_token t, char *out, size_t cap, size_t *n,
                                   esp_error *err);
/* Whether t ends a turn (end of message or end of text). */
ESP_API bool esp_token_is_end(const esp_model *m, esp_token t);

/*
 * Set the bits of the tokens that contain one of n texts (of a text that is longer than every token: the last
 * one that it is encoded as), for esp_sampling.dry_breakers. bits: (n_vocab + 63) / 64 words; other bits
 * stay.
 */
ESP_API esp_status esp_model_breakers(const esp_model *m, const char *const *texts, size_t n, uint64_t *bits,
                                      esp_error *err);

typedef struct esp_chat_opts {
    const char *tools_json;         /* array of tools in the OpenAI form, or NULL */
    const char *template_args_json; /* object of extra template variables such as {"enable_thinking": true},
                                       or NULL */
    bool no_generation_prompt;      /* do not open the assistant's turn at the end */
} esp_chat_opts;
/*
 * Chat messages (JSON array in the OpenAI form) through the model's template. Text: what a person may read.
 * Ids: what the model reads; control tokens come from the template alone, never from message contents.
 */
ESP_API esp_status esp_render_chat(const esp_model *m, const char *messages_json, const esp_chat_opts *opts,
                                   char *out, size_t cap, size_t *n, esp_error *err);
ESP_API esp_status esp_tokenize_chat(const esp_model *m, const char *messages_json, const esp_chat_opts *opts,
                                     esp_token *out, size_t cap, size_t *n, esp_error *err);

/* ---- engines ---- */

/*
 * When a generation may start. Whatever is chosen, the tokens of a sequence are the same.
 *   OPEN      at once, as long as a row is free; a sequence that finds no page for its next tokens fails.
 *   WORST     when pages for its tokens and all it may generate are left: a running one never lacks any.
 *   EXPECTED  when pages for its tokens and a usual answer are left. When they run out after all, the
 * sequence of lowest rank gives its memory back, waits, and goes on later where it was. With WORST and
 * EXPECTED sequences that do not generate, and the prefix cache, lend their memory to those that do; what
 * they lose is computed again when it is needed.
 */
/*
 * Speculation: a drafter guesses the next tokens of a sequence, one pass runs them all, and those that the
 * model would have sampled anyway are kept. Text and log-probabilities are the same with every setting; a
 * step then emits several tokens of a sequence. How many are guessed follows from what was right before and
 * from measured times, so that it costs nothing where it does not pay.
 *   OFF    never.
 *   AUTO   MTP for models that have the layer, else NGRAM.
 *   MTP    the model's own draft layer.
 *   NGRAM  what followed when the last tokens occurred before.
 *   DRAFT  a smaller model with the same tokenizer.
 */
typedef enum esp_spec { ESP_SPEC_OFF, ESP_SPEC_AUTO, ESP_SPEC_MTP, ESP_SPEC_NGRAM, ESP_SPEC_DRAFT } esp_spec;

typedef enum esp_admission { ESP_ADMISSION_OPEN, ESP_ADMISSION_WORST, ESP_ADMISSION_EXPECTED } esp_admission;

typedef struct esp_engine_opts {
    uint32_t context;   /* largest positions of one sequence; 0: the model's, at most 32768 */
    uint32_t max_seqs;  /* sequences open at once, at most 1024; 0: 4 */
    uint64_t kv_tokens; /* positions in the page pool, over all sequences, in pages of 256; 0: context */
    uint32_t chunk;     /* most prompt tokens in one step; 0: 512 */
    const char *act;    /* "auto", "f32", "bf16", "int8x2", "int8": activations in products; NULL: auto */
    /*
     * Cached keys and values: "bf16", "f32"; "q8", "q6", "q4" (with ":g32" or ":g128" in other groups than
     * 64); "turbo", "turbo:kKvV" with K 8, 5, 4 or 2 and V 8, 5, 4, 3 or 2 bits; the path of a
     * kv_config.json. NULL: bf16. ESP_EUNSUPPORTED when the model's heads do not fit, or the device has only
     * bf16 and f32.
     */
    const char *kv;
    /* First positions of every sequence that a coded kv keeps as bf16, at most context; 0: none. f32 and bf16
     * are exact anywhere, so there it changes nothing. */
    uint32_t kv_start;
    /* Recurrent states between steps: "f32"; "bf16"; "q8", codes of 8 bits with their rounding errors kept
     * beside them. NULL: f32, which is all that a CUDA device has (ESP_EUNSUPPORTED). */
    const char *state;
    uint32_t snapshots; /* recurrent-state snapshots kept for rewind, over all sequences; 0: 2 * max_seqs */
    uint64_t
        memory_budget; /* bytes; refuse (ESP_ENOFIT, both numbers) when the plan needs more, of the machine's
                          memory or of a device's; 0: what a device has free, no limit for the machine's */
    /* Scheduling. */
    uint32_t rows;  /* sequences generating at once, at most max_seqs; 0: max_seqs. Others wait */
    uint32_t queue; /* sequences that may wait; more are refused (ESP_ENOFIT); 0: max_seqs - rows */
    esp_admission admission;
    uint32_t expected_new; /* ESP_ADMISSION_EXPECTED: tokens of a usual answer; 0: 256 */
    uint32_t max_stall_ms; /* longest step while other sequences wait for their next token: prompt chunks
                              shrink to it by measured speed; 0: no bound */
    /* Prefix cache: texts that ran before are found again, wherever a checkpoint of their state stands. */
    uint32_t checkpoints;          /* kept over all texts, at most 16384; 0: no prefix cache */
    uint32_t checkpoint_every;     /* and one at every multiple of so many tokens of a text; 0: 4096 */
    uint32_t checkpoints_per_path; /* most on one text, 2 or more; 0: 16 */
    const char *cache_dir; /* keep texts in files here, over restarts; made when missing; NULL: none */
    uint64_t cache_disk;   /* most bytes of those files; 0: 32 GiB */
    /* Speculation. */
    esp_spec spec;
    uint32_t spec_tokens;   /* most drafts of a row and step, at most 32; 0: mtp 2, draft 3, ngram 10 */
    float spec_min_rate;    /* a row stops drafting when a smaller share of its drafts was right; 0: never */
    bool spec_always;       /* draft spec_tokens in every step, whether it pays or not; for measurements */
    esp_model *draft_model; /* ESP_SPEC_DRAFT: must outlive the engine */
    uint32_t max_rank;  /* largest rank of adapters that sequences may use, at most 1024; 0: no adapters */
    const char *device; /* "cpu", "cuda" or "cuda:N"; NULL: cpu. ESP_EDEVICE says what a CUDA device lacks */
    uint64_t adapter_bytes; /* of the adapters that will be used (esp_adapter_info): they count in the plan */
    /*
     * Copies of quantized weights in the order that the processor reads fastest, as large as the weights (in
     * the plan they are part of scratch): "on", "off", "auto": where both fit into three quarters of the
     * machine's memory. The text is the same. NULL: auto. ESP_EUNSUPPORTED: on or off on another device than
     * the CPU.
     */
    const char *pack;
    /* Who has waited so long goes before all but those of priority -100; 0: by numbers, see
     * esp_seq_opts.priority. */
    uint32_t aging_ms;
    /* Bytes of the program around the engine, which the plan counts as fixed. 0: a small one, 8 MiB. */
    uint64_t program_bytes;
} esp_engine_opts;

/* A processor that engines run on. */
typedef struct esp_device {
    char name[64];        /* "cpu", "cuda:0 (NVIDIA H200)" */
    uint64_t memory;      /* bytes; 0: it works in the machine's memory */
    uint64_t memory_free; /* that engines can still take */
    double copy_rate;     /* bytes per second, read plus written, of copies in its memory; 0: not measured */
} esp_device;
/*
 * Look at a device by the name that esp_engine_opts has for it. With measure, copies of up to a gigabyte are
 * timed, which takes about a tenth of a second. ESP_EINVAL for other words, ESP_EDEVICE as for an engine.
 */
ESP_API esp_status esp_device_look(esp_device *out, const char *device, bool measure, esp_error *err);

/*
 * Bytes an engine will take in the memory of its device, computed without allocating anything;
 * esp_engine_open() uses the same plan. On the CPU that is the machine's memory and everything is in it;
 * beside another device the machine's memory holds what `host` says, most of it the mapped weights.
 */
typedef struct esp_memory_plan {
    uint64_t weights;            /* mapped or copied */
    uint64_t kv_per_token;       /* behind kv_start */
    uint64_t kv_start;           /* pages that hold the first kv_start positions of one sequence */
    uint64_t state_per_seq;      /* recurrent state and convolution rows of one sequence */
    uint64_t chunk_rows_per_seq; /* open-chunk rows of one sequence, so that rollback is truncation */
    uint64_t kv_pool;
    uint64_t state_pool;  /* live, spare and snapshot slots */
    uint64_t scratch;     /* activations, logits and attention partials of the largest step */
    uint64_t speculation; /* the drafter's weights, states and scratch, journals, rows of logits for drafts */
    uint64_t fixed;       /* tokenizer, tables, program */
    uint64_t adapters;    /* as adapter_bytes says */
    uint64_t total;       /* weights, pools, scratch, speculation, fixed, adapters */
    uint64_t host;        /* beside it in the machine's memory, with a device that has its own */
} esp_memory_plan;
ESP_API esp_status esp_engine_plan(const esp_model *m, const esp_engine_opts *opts, esp_memory_plan *out,
                                   esp_error *err);

/*
 * What a step must compute, by the model's shapes: multiplications and additions, whatever the kernels
 * choose. Products with weights are listed by the precision of their activations on the CPU.
 */
typedef struct esp_work {
    double token[4];  /* of a token in the layers' products with weights: f32, bf16, int8x2, int8 */
    double output[4]; /* the same in the output head, for each row of logits */
    double other;     /* of a token in recurrence and convolutions, f32 */
    double position;  /* of a token in attention for each position that it sees, f32 */
} esp_work;
/* ESP_EINVAL as esp_engine_plan(). */
ESP_API esp_status esp_engine_work(const esp_model *m, const esp_engine_opts *opts, esp_work *out,
                                   esp_error *err);

ESP_API esp_status esp_engine_open(esp_engine **out, esp_model *m, const esp_engine_opts *opts,
                                   esp_error *err);
/* Sequences of the engine must be closed first. */
ESP_API void esp_engine_close(esp_engine *g);

typedef enum esp_finish {
    ESP_FINISH_NONE,   /* goes on */
    ESP_FINISH_END,    /* the model ended its turn; the end token is not emitted */
    ESP_FINISH_LENGTH, /* max_new tokens, or the context is full */
    ESP_FINISH_FAILED  /* see message; other sequences go on */
} esp_finish;

typedef struct esp_logprob {
    esp_token token;
    float logprob; /* natural log of its probability under the model's own distribution, before temperature
                      and filters */
} esp_logprob;

typedef struct esp_event {
    esp_seq *seq;
    esp_token token; /* emitted token, -1 when finish alone is reported */
    esp_finish finish;
    float logprob;          /* of token; 0 unless the sequence asked for log-probabilities */
    uint32_t n_top;         /* the most likely tokens, descending, lowest id first on ties */
    const esp_logprob *top; /* valid until the next call on the engine */
    const char *message;    /* with ESP_FINISH_FAILED: the reason; valid until the next call on the engine */
} esp_event;

enum {
    ESP_SPEC_POSITIONS = 16,
    ESP_STEP_BUCKETS = 20
}; /* positions that statistics tell apart; the last one counts all behind it */

/*
 * Advance the armed sequences: one token each, more with speculation, and prompt tokens up to the chunk.
 * Writes up to cap events; when cap is too small the rest comes with the next call, before any new work. *n =
 * 0 with nothing armed means idle. A failure of one sequence is an event; the status reports failures of the
 * engine itself.
 */
ESP_API esp_status esp_engine_step(esp_engine *g, esp_event *out, size_t cap, size_t *n, esp_error *err);

typedef struct esp_stats {
    uint64_t prompt_tokens; /* run through the model as known tokens */
    uint64_t generated_tokens;
    uint64_t steps;
    double prompt_seconds; /* time of steps by their kind of row; mixed steps are split by rows */
    double generate_seconds;
    uint32_t pages_used, pages_total;
    uint32_t slots_used, slots_total;
    uint32_t rows_active, rows_waiting;
    uint64_t preemptions, refused, expired; /* generations: put back, refused by the queue, past a deadline */
    uint32_t chunk_limit;                   /* prompt tokens of the last step that max_stall_ms allowed */
    uint64_t cache_hits, cache_hit_tokens;
    uint64_t cache_miss_new;        /* lookups that found no cached text in common */
    uint64_t cache_miss_checkpoint; /* ... that found one, but no checkpoint before the texts part */
    uint32_t cache_checkpoints, cache_texts;
    uint64_t cache_evictions;
    uint64_t disk_saved, disk_restored, disk_failed; /* files written, read back; given up or damaged */
    uint64_t disk_bytes;
    const char *spec_name;                      /* drafter in use: "mtp", "ngram", "draft"; "off" */
    uint32_t spec_rows;                         /* active rows that may draft: not switched off */
    uint64_t spec_rounds;                       /* passes of a row with at least one draft */
    uint64_t spec_drafted, spec_accepted;       /* tokens, over all rounds */
    uint64_t spec_asked_at[ESP_SPEC_POSITIONS]; /* by position behind the pending token: tried ... */
    uint64_t spec_right_at[ESP_SPEC_POSITIONS]; /* ... and right */
    double draft_seconds;
    /* Steps by time and by tokens, not cumulative: [i] those of more than 2^(i-1) and at most 2^i times 0.1
     * ms, or tokens; [0] those of less, the last one all that are longer. */
    uint64_t step_times[ESP_STEP_BUCKETS], step_sizes[ESP_STEP_BUCKETS];
    double step_seconds;
    uint64_t step_tokens;
} esp_stats;
ESP_API void esp_engine_stats(const esp_engine *g, esp_stats *out);
/* Write every cached text that has no file yet; returns when they are durable. ESP_EIO: some could not be
 * written (disk_failed counts them). Without cache_dir there is nothing to do. */
ESP_API esp_status esp_engine_flush(esp_engine *g, esp_error *err);

/* ---- sequences ---- */

typedef struct esp_logit_bias {
    esp_token token;
    float bias; /* added to the logit, at most 100; -100 or less bans the token. Each token at most once */
} esp_logit_bias;

typedef struct esp_sampling {
    float temperature;        /* 0: greedy, lowest id on ties */
    int32_t top_k;            /* 0 or -1: off */
    float top_p;              /* 0 (zeroed) or 1: off */
    float min_p;              /* 0: off */
    float typical_p;          /* 0 (zeroed) or 1: off */
    float repetition_penalty; /* 0 (zeroed) or 1: off; over prompt and generated tokens */
    float presence_penalty;   /* over generated tokens only */
    float frequency_penalty;
    uint32_t repetition_context, presence_context, frequency_context; /* last tokens that count; 0: all */
    float xtc_probability; /* 0: off; else the share of positions where ... */
    float xtc_threshold;  /* ... of the tokens with at least this probability only the least likely one stays.
                              Tokens that end a turn and line ends are left alone */
    float dry_multiplier; /* 0: off; else a token that would go on with a repetition of n tokens loses ... */
    float dry_base;       /* ... dry_multiplier * dry_base^(n - dry_allowed_length); 0 (zeroed): 1.75 */
    uint32_t dry_allowed_length;  /* shorter repetitions are free; 0 (zeroed): 2 */
    uint32_t dry_context;         /* last tokens in which repetitions are looked for; 0: all */
    const uint64_t *dry_breakers; /* bit per token: repetitions do not reach over it; copied, NULL: none */
    size_t n_dry_word;            /* 64 ids each */
    uint64_t seed;
    uint32_t choice; /* number of the answer when one request asks for several: each draws on its own */
    const esp_logit_bias *bias; /* copied */
    size_t n_bias;
    bool ignore_end; /* end tokens are emitted as any other and do not finish */
} esp_sampling;

enum { ESP_ADAPTERS_MAX = 4 }; /* adapters that one sequence may stack */
typedef struct esp_adapter_use {
    esp_adapter *adapter; /* must outlive the sequence */
    float scale;          /* multiplies the adapter's own; 0 (zeroed): 1 */
} esp_adapter_use;

typedef struct esp_seq_opts {
    esp_sampling sampling;
    /* LoRA adapters, added in an order of their own: a stack is a set. Forks have their origin's. */
    esp_adapter_use adapters[ESP_ADAPTERS_MAX];
    uint32_t n_adapters;
    bool logprobs;         /* report the log-probability of each emitted token ... */
    uint32_t top_logprobs; /* ... and of the most likely ones, at most 20 */
    int32_t priority; /* -100 to 100, lower goes first; without aging_ms one that waits gains a rank whenever
                         a later one is let past it */
    uint64_t deadline_us; /* a generation that takes longer, waiting included, fails; 0: none */
    bool no_cache;        /* neither read nor fill the prefix cache */
    uint64_t cache_salt;  /* only sequences of equal salt share cached texts */
    bool no_spec;         /* no drafts for this sequence */
    /* Log-probabilities after constraint, bias, penalties and temperature (none at 0) instead of the model's
     * own; filters such as top_k and top_p leave them alone. */
    bool processed_logprobs;
} esp_seq_opts;

ESP_API esp_status esp_seq_open(esp_seq **out, esp_engine *g, const esp_seq_opts *opts, esp_error *err);
/* Also cancels. NULL is a no-op. */
ESP_API void esp_seq_close(esp_seq *s);
/* Add known tokens behind the sequence; they run through the model in later steps. ESP_ENOFIT beyond the
 * context. */
ESP_API esp_status esp_seq_append(esp_seq *s, const esp_token *t, size_t n, esp_error *err);
/*
 * Arm: after the known tokens, sample up to max_new tokens. Events come from esp_engine_step(). With max_new
 * 0 the known tokens run, all but the last, and one event with ESP_FINISH_LENGTH says so; a fork or a
 * generation then starts at once. A max_new that does not fit into the context or the pages is lowered to
 * what does (see esp_seq_usage). ESP_ENOFIT, with the numbers: the queue is full, or the known tokens alone
 * need more pages than there are.
 */
ESP_API esp_status esp_seq_generate(esp_seq *s, size_t max_new, esp_error *err);
/*
 * Disarm a generation. The sequence keeps the tokens that esp_engine_step() has handed out; those that it
 * still holds back for want of room are taken back.
 */
ESP_API void esp_seq_stop(esp_seq *s);
/*
 * Known tokens behind a sequence that generates, as if they had just been sampled: a template's or grammar's
 * fixed part. They run in the next step without a look at their logits, leave the bits that sampling them
 * would have left, and count as generated, though no events report them; the next event is the token sampled
 * after them. The span is cut at the budget and the context, before an end token unless the sequence
 * ignores those, and where a constraint ends; *n_taken says where (may be NULL). ESP_ESTATE when s does not
 * generate.
 */
ESP_API esp_status esp_seq_extend(esp_seq *s, const esp_token *t, size_t n, size_t *n_taken, esp_error *err);
/* Tokens of the sequence: appended and emitted. */
ESP_API size_t esp_seq_length(const esp_seq *s);
ESP_API esp_status esp_seq_tokens(const esp_seq *s, esp_token *out, size_t cap, size_t *n, esp_error *err);
/*
 * Cut back to length tokens. State returns to the deepest snapshot at or before it; the gap is run again in
 * later steps, with the same bits as before.
 */
ESP_API esp_status esp_seq_rewind(esp_seq *s, size_t length, esp_error *err);
/* Keep a snapshot of what has run so far, so that a later rewind to or behind this point runs only what
 * follows. */
ESP_API esp_status esp_seq_snapshot(esp_seq *s, esp_error *err);
/* A second sequence with the same tokens and state; memory is shared until one of them writes. */
ESP_API esp_status esp_seq_fork(esp_seq **out, const esp_seq *s, const esp_seq_opts *opts, esp_error *err);
/*
 * Logits at every one of n known tokens behind the sequence, which are appended: out [n][n_vocab], row i
 * after token i. Runs at once, in steps of its own; the sequence must not be armed.
 */
ESP_API esp_status esp_seq_logits(esp_seq *s, const esp_token *t, size_t n, float *out, esp_error *err);

/*
 * Positions (token counts, ascending) where the prefix cache should keep a checkpoint: ends of messages, of
 * the system's part, whatever the next request is likely to repeat. They replace earlier ones; at most 4096.
 */
ESP_API esp_status esp_seq_set_marks(esp_seq *s, const size_t *positions, size_t n, esp_error *err);

typedef struct esp_usage {     /* of the present or last generation */
    uint64_t prompt_tokens;    /* known when it was armed */
    uint64_t cached_tokens;    /* of them not run because the prefix cache had them */
    uint64_t generated_tokens; /* emitted */
    uint64_t max_new;          /* as clamped to context and pages */
    uint32_t preemptions;
    uint64_t drafted, accepted;              /* tokens guessed, and of them right */
    double queue_ms, prompt_ms, generate_ms; /* waiting; until the first token; from there to the end */
} esp_usage;
ESP_API void esp_seq_usage(const esp_seq *s, esp_usage *out);

/*
 * Tokens and state to a file, and back, bit for bit. Loading makes a new sequence whose tokens all count as
 * known, as a fork does. Refused: ESP_EINVAL for a file of another model, KV type, activation or salt, saying
 * both; ESP_EFORMAT for a damaged one; ESP_ENOFIT when it does not fit the context or the pools.
 */
ESP_API esp_status esp_seq_save(const esp_seq *s, const char *path, esp_error *err);
ESP_API esp_status esp_seq_load(esp_seq **out, esp_engine *g, const char *path, const esp_seq_opts *opts,
                                esp_error *err);

#ifdef __cplusplus
}
#endif
#endif
