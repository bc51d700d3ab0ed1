/*
 * config.json and generation_config.json as plain, checked numbers. Every number is finite and in a stated
 * range before it is stored, and no field is a library default that real models contradict: a missing key is
 * either refused by name or takes the value all published models of the family share, with a warning.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_CONFIG_H
#define ESP_IO_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/limits.h"
#include "base/status.h"
#include "io/warnings.h"

enum esp_arch { ESP_ARCH_NONE, ESP_ARCH_QWEN35, ESP_ARCH_QWEN35_MOE };
enum esp_rope_type { ESP_ROPE_DEFAULT, ESP_ROPE_YARN };
enum esp_tied { ESP_TIED_UNSAID, ESP_TIED_NO, ESP_TIED_YES };
enum { ESP_CONFIG_MAX_EOS = 16 };

struct esp_config_rope {
    enum esp_rope_type type;
    double theta;         /* > 1 */
    double partial;       /* partial_rotary_factor, in (0,1] */
    uint32_t rotary_dims; /* head_dim * partial: even, 2..head_dim */
    uint32_t section[3];  /* mrope_section (t, h, w): sums to rotary_dims / 2 */
    /* YaRN only, else 0 */
    double factor;               /* >= 1 */
    uint32_t original_max;       /* original_max_position_embeddings */
    double beta_fast, beta_slow; /* 32 and 1 unless said */
    double attention_factor;     /* multiplier of cos and sin: as said, else 0.1 ln(factor) + 1 */
};

struct esp_config_vision {
    bool present; /* false: all others are 0 */
    uint32_t depth, hidden, n_head, head_dim, intermediate, out_hidden;
    uint32_t patch_size, temporal_patch_size, spatial_merge_size, in_channels;
    uint32_t n_position, position_side; /* n_position = side squared */
    uint32_t image_token, video_token, vision_start_token, vision_end_token;
};

struct esp_config_generation {
    bool has_do_sample, has_temperature, has_top_p, has_top_k, has_min_p, has_repetition, has_presence,
        has_frequency;
    bool do_sample;
    double temperature;                         /* 0..100 */
    double top_p;                               /* (0,1] */
    double min_p;                               /* [0,1] */
    double repetition_penalty;                  /* (0,100] */
    double presence_penalty, frequency_penalty; /* -100..100 */
    uint32_t top_k;                             /* 0 is off; -1 in the file reads as 0 */
};

/* Private to config_quant.c: the object read, and a reference to its JSON for the overrides. */
enum esp_quant_mode {
    ESP_QUANT_AFFINE,
    ESP_QUANT_MXFP4,
    ESP_QUANT_NVFP4,
    ESP_QUANT_MXFP8,
    ESP_QUANT_TRELLIS
};
struct esp_quant {
    enum esp_quant_mode mode;
    uint32_t bits;       /* affine: 2 3 4 5 6 8; trellis: 1..8 */
    uint32_t group;      /* affine: 32 64 128; trellis: T */
    uint32_t state_bits; /* trellis: L; 0 when the config has no trellis object for the module */
    uint8_t axis;        /* trellis: 1 when rows of codes are outputs, 0 when they are inputs */
};
struct esp_config_quant_table {
    bool present;
    struct esp_quant global;
    json_t *object; /* per-module overrides */
};

struct esp_config {
    enum esp_arch arch;
    char architecture[64]; /* as found: architectures[0], else model_type */
    char model_type[64];
    enum esp_dtype dtype; /* dtype or torch_dtype: BF16, F16 or F32; BF16 when absent */

    uint32_t vocab_size, n_layer, hidden;
    uint32_t ffn; /* intermediate_size; 0 in MoE models */
    uint32_t n_head, n_kv_head, head_dim;
    uint32_t lin_k_head, lin_v_head; /* lin_v_head is a multiple of lin_k_head */
    uint32_t lin_k_dim, lin_v_dim;   /* per head */
    uint32_t conv_kernel;            /* taps */
    double rms_eps;
    uint32_t max_position;
    uint8_t is_full[ESP_LIMIT_LAYERS]; /* 1: full attention, 0: linear attention; [0, n_layer) */
    uint32_t n_full;                   /* how many ones */

    /* MoE only, else 0 */
    uint32_t n_expert, n_expert_used, expert_ffn, shared_ffn;
    bool norm_topk_prob; /* true when absent */

    uint32_t n_mtp_layer; /* mtp_num_hidden_layers; 0 when absent */
    bool mtp_dedicated_embeddings;

    struct esp_config_rope rope;
    struct esp_config_vision vision;
    struct esp_config_generation generation;

    uint32_t
        eos[ESP_CONFIG_MAX_EOS]; /* without repeats: generation_config, then top level, then text_config */
    uint32_t n_eos;
    int64_t bos, pad; /* -1: none */

    enum esp_tied tied_top, tied_text;           /* what the file says; esp_names_resolve() decides */
    char norm_weights[16], mtp_norm_weights[16]; /* optional keys "gamma" or "gamma-1"; "" when absent */

    struct esp_config_quant_table quant;
};

/*
 * Read dir/config.json and, when it exists, dir/generation_config.json. out is zeroed or filled; free with
 * esp_config_free. w collects what was assumed (may be NULL).
 *
 * Refused, with file, key, value and the accepted range: numbers that are negative, not finite, out of range,
 * not integral where a count is meant (1e6 is), of another JSON type; inconsistent sizes (n_head % n_kv_head,
 * lin_v_head % lin_k_head, odd head_dim, rotary dims, mrope sections, layer_types length ...); missing
 * vocab_size, hidden_size, num_hidden_layers, head counts, intermediate sizes, rope_theta. ESP_EUNSUPPORTED:
 * other architectures (the supported ones are listed), rope types, activations, deepstack, foreign
 * quantization methods.
 */
esp_status esp_config_load(struct esp_config *out, const char *dir, struct esp_warnings *w, esp_error *err);
/* The same over parsed JSON; generation may be NULL. name stands in messages. */
esp_status esp_config_read(struct esp_config *out, const json_t *config, const json_t *generation,
                           const char *name, struct esp_warnings *w, esp_error *err);
void esp_config_free(struct esp_config *c); /* a zeroed one is fine */
/*
 * Positions scaled otherwise than the file says: "none", "yarn:FACTOR" or "yarn:FACTOR:LENGTH"; max_position
 * becomes what that is good for. NULL and "model" change nothing; ESP_EINVAL for other words.
 */
esp_status esp_config_scale_rope(struct esp_config *c, const char *how, esp_error *err);

/* "qwen3_5", "qwen3_5_moe" */
const char *esp_arch_name(enum esp_arch a);

#endif
