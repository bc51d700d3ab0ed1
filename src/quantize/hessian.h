/*
 * Second moments H = E[x xT] of the inputs of every matrix of a layer, measured by running a text through the
 * unquantized model. Inputs behind a norm are taken before its gain: gains and bases are applied to H
 * afterwards, so one measurement serves every basis. Sites are measured in as many passes over the text as
 * the memory budget asks for; each pass ends with files in the work folder, which is where an interrupted
 * calibration goes on.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_QUANTIZE_HESSIAN_H
#define ESP_QUANTIZE_HESSIAN_H

#include "quantize/basis.h"
#include "quantize/progress.h"
#include "quantize/runner.h"

/* The four places of a layer where matrices read. */
enum esp_site {
    ESP_SITE_MIXER, /* normalized residual into q k v or in_proj_* */
    ESP_SITE_OUT,   /* input of o_proj or out_proj */
    ESP_SITE_MLP,   /* normalized residual into gate and up */
    ESP_SITE_DOWN,  /* input of down_proj */
    ESP_SITE_COUNT
};

/* Lists of tokens, concatenated. */
struct esp_token_lists {
    int32_t *ids;
    uint32_t *start; /* [n + 1] */
    uint32_t n;
};
void esp_token_lists_free(struct esp_token_lists *t);

struct esp_hessian_job {
    const struct esp_runner *runner; /* over the source */
    const struct esp_token_lists *text;
    const char *folder; /* site files go here: hessian-LAYER-SITE.f32 */
    size_t budget;      /* bytes of accumulators at once; one site is always taken */
    uint32_t threads;
    enum esp_cpu_level level;
    const struct esp_progress_to *progress;
};

/* Width of a site's input. */
uint32_t esp_site_width(const struct esp_config *c, uint32_t layer, enum esp_site site);
/* Measure every site that has no file yet. ESP_ECANCELLED when the progress callback says so. */
esp_status esp_hessian_measure(const struct esp_hessian_job *job, esp_error *err);
/* Read one site's H [n][n] f32 into new memory (esp_free). */
esp_status esp_hessian_load(float **out, const char *folder, uint32_t layer, enum esp_site site, uint32_t n,
                            esp_error *err);
/* H of normalized inputs to H of what the matrix reads: gain on both sides, or (basis open) the basis. */
void esp_hessian_gain(float *h, uint32_t n, const float *gain);
void esp_hessian_basis(float *h, uint32_t n, const struct esp_basis *b);

#endif
