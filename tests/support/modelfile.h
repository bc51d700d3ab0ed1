/*
 * Small random models as folders on disk, in every form in which checkpoints of the family come, together
 * with the same weights in memory for the naive forward pass. Values are few-bit integers times powers of
 * two, and norms multiples of 1/128, so that BF16, F16 and F32 files, with gamma or gamma - 1, hold exactly
 * the same model.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_MODELFILE_H
#define ESP_TESTS_MODELFILE_H

#include <jansson.h>

#include "base/dtype.h"
#include "formats/format.h"
#include "support/naive.h"

enum mf_layout {
    MF_HF,   /* model.language_model., nested config */
    MF_TEXT, /* model., flat config */
    MF_BARE, /* no prefix, flat config */
    MF_MLX,  /* language_model.model., conv [C,4,1], norms as gamma */
    MF_LAYOUT_COUNT
};

enum mf_head { MF_HEAD_AS_MODEL, MF_HEAD_MISSING, MF_HEAD_LEFT_OVER };

struct mf_quant {
    const char *part; /* modules whose path contains this; the first that fits counts */
    uint32_t bits;    /* 0: not quantized */
    uint32_t group;
};

struct mf_form {
    enum mf_layout layout;
    enum esp_dtype dtype; /* ESP_DTYPE_NONE: BF16 */
    uint32_t n_shard;     /* 0: one file without index */
    enum mf_head head;
    bool mtp;                     /* an MTP block in raw form, with prefix "mtp." */
    const struct mf_quant *quant; /* ends with part NULL */
    enum esp_scale_type scale_type;
    uint32_t wrong_bits, wrong_group; /* not 0: what the config claims instead, for every module */
    void (*patch)(json_t *config,
                  json_t *text); /* change the config before it is written; text may be config */
};

enum mf_kind { MF_MATRIX, MF_NORM, MF_GAMMA, MF_CONV, MF_F32 };

struct mf_tensor {
    char name[80]; /* inside the part, such as "layers.3.mlp.up_proj.weight" */
    enum mf_kind kind;
    bool head, mtp;
    uint32_t n_out, n_in;
    double *data;
};

struct mf_model {
    struct naive_model net;
    bool tied;
    struct mf_tensor *tensor;
    uint32_t n_tensor;
};

/* A shape with sensible values everywhere: 3 linear layers and a full one, every 128. Change fields, then
 * make. */
struct naive_shape mf_shape(void);
void mf_make(struct mf_model *m, const struct naive_shape *shape, bool tied, uint64_t seed);
/* The tensor of that name, or a failed test. */
struct mf_tensor *mf_find(struct mf_model *m, const char *name);
/*
 * Write m in the wanted form into a fresh folder and return it. Matrices that are stored quantized are
 * replaced in m by what the file says.
 */
const char *mf_write(struct mf_model *m, const struct mf_form *form);
void mf_free(struct mf_model *m);

/* Pseudo-random numbers of the tests: uniform in [0, n). */
uint32_t mf_random(uint64_t *state, uint32_t n);
void mf_tokens(int32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed);

#endif
