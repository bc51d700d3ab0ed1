/*
 * Reading LoRA adapters from disk: PEFT and MLX folders. Names are brought to the model's own module paths,
 * scales are worked out per module, and everything that is not plain LoRA is refused by name. Shapes are
 * checked against a model by model/lora.h.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_IO_ADAPTER_H
#define ESP_IO_ADAPTER_H

#include <jansson.h>
#include <stdbool.h>

#include "base/arena.h"
#include "io/safetensors.h"
#include "io/warnings.h"

struct esp_adapter_pair {
    const char *module;            /* "layers.3.mlp.up_proj" */
    const struct esp_st_tensor *a; /* both always present, rank 2, F32, F16 or BF16 */
    const struct esp_st_tensor *b;
    bool peft_names; /* spelled lora_A, or with .weight: A is [r][in], B [out][r] when both would fit */
};

/* How the scale of a module follows from its rank. */
struct esp_adapter_scale {
    bool mlx;       /* value is the scale itself, not alpha */
    bool sqrt_rank; /* divide by sqrt(r), not r; MLX: divide at all */
    double value;
};

struct esp_adapter_file {
    char *path;
    struct esp_arena *arena;
    struct esp_st_file *st;
    struct esp_adapter_pair *pairs; /* ascending by module */
    uint32_t n;
    json_t *config;
    struct esp_adapter_scale scale;
    uint64_t revision; /* hash of config and weights */
    struct esp_warnings warnings;
};

/*
 * Open dir: adapters.safetensors or adapter_model.safetensors with optiq_lora_config.json or
 * adapter_config.json. ESP_ENOTFOUND names what is missing; ESP_EFORMAT lists every tensor that is unknown or
 * without its partner; ESP_EUNSUPPORTED names the first option that is not plain LoRA (DoRA, bias,
 * modules_to_save, ...); a missing or non-finite lora_alpha is ESP_EFORMAT.
 */
esp_status esp_adapter_file_open(struct esp_adapter_file **out, const char *dir, esp_error *err);
void esp_adapter_file_close(struct esp_adapter_file *a); /* NULL is fine */

/* Scale of module for rank r, alpha_pattern respected. */
double esp_adapter_scale_of(const struct esp_adapter_file *a, const char *module, uint64_t r);

#endif
