/*
 * A quantization at work: what the files of the room share while one model becomes another. Private to the
 * room.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_JOB_H
#define ESP_QUANTIZE_JOB_H

#include "engine/model.h"
#include "quantize/affine_gptq.h"
#include "quantize/calibration.h"
#include "quantize/encode_matrix.h"
#include "quantize/plan.h"

struct esp_quant_job {
    const esp_quantize_opts *opts;
    const char *source, *output;
    char *work, *state; /* OUTPUT.work, and its folder for what is thrown away at the end */
    const char *stats;  /* folder of the input statistics */
    struct esp_model *model;
    struct esp_names names;
    struct esp_fold fold;
    struct esp_plan_list plan;
    struct esp_pool *pool;
    struct esp_kernels kernels;
    struct esp_dev *dev;         /* that searches for trellis codes; NULL: the CPU does */
    struct esp_encoder *encoder; /* NULL until a trellis tensor needs it */
    struct esp_token_lists measure, held_out;
    struct esp_progress_to progress;
    enum esp_quantize_method method;
    uint32_t bits, group;
    uint64_t seed;
    enum esp_trellis_scale scale;
    /* Statistics of the site at work, in the basis of the output. */
    float *h; /* [h_n][h_n] */
    uint32_t h_n, h_layer;
    enum esp_site h_site;
    uint32_t *order;                    /* with act_order */
    struct esp_ldlq *ldlq, *ldlq_group; /* in natural order: feedback by input, and in larger groups */
    struct esp_ldlq *ldlq_order;        /* in `order` */
};

/* A row's tensor as f32, folded; new memory (esp_free). ESP_ENUMERIC names the tensor and the place. */
esp_status esp_job_values(struct esp_quant_job *j, const struct esp_plan_row *r, float **out, esp_error *err);
/* Make h the statistics that the row's matrix reads. */
esp_status esp_job_statistics(struct esp_quant_job *j, const struct esp_plan_row *r, esp_error *err);
void esp_job_drop_statistics(struct esp_quant_job *j);

/* Bytes of the planes of a row, back to back in the order of esp_plan_planes(). */
struct esp_coded {
    uint8_t *data;
    size_t bytes;
    struct esp_loss loss; /* power 0: not measured */
};
/* Code w [n_out][n_in] as choice says. Needs esp_job_statistics() for gptq and trellis. data: esp_free. */
esp_status esp_job_code(struct esp_quant_job *j, const struct esp_choice *choice, const float *w,
                        uint32_t n_out, uint32_t n_in, const char *name, struct esp_coded *out,
                        esp_error *err);

/* Bits per matrix for opts->target_bpw, by measured sensitivity; kept in the work folder. */
esp_status esp_job_allocate(struct esp_quant_job *j, esp_error *err);

/* Compute every row that has no file in the work folder yet. */
esp_status esp_job_compute(struct esp_quant_job *j, esp_error *err);
/* Put the finished folder together and give it its name. */
esp_status esp_job_write(struct esp_quant_job *j, esp_error *err);
/* Path of a row's finished bytes: state/t-INDEX.bin; its JSON beside it says that it is complete. New memory.
 */
char *esp_job_part(const struct esp_quant_job *j, uint32_t row, const char *suffix);

#endif
