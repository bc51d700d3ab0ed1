/*
 * The penalty on going on with a repetition ("don't repeat yourself"): when the last tokens of a sequence
 * have occurred before, the token that followed them then is made less likely, the more so the longer the
 * repetition is. Computed from the history at each draw, so that it is exact under speculation.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SAMPLE_DRY_H
#define ESP_SAMPLE_DRY_H

#include "sample/history.h"
#include "sample/select.h"

struct esp_sample_dry {
    double multiplier, base;  /* multiplier 0: off */
    size_t allowed;           /* a repetition of this many tokens is penalised, shorter ones are not */
    size_t window;            /* last N tokens that are looked at, SIZE_MAX = all */
    const uint64_t *breakers; /* [n_words] bit per id: a repetition does not reach over such a token */
    size_t n_words;
    uint32_t *match; /* [tokens of the history] scratch */
};

/*
 * Subtract multiplier * base^(n - allowed) from the logit of each token that would go on with a repetition of
 * n >= allowed tokens, the longest when there are several. Time is linear in the window.
 */
void esp_sample_dry_apply(const struct esp_sample_dry *d, const struct esp_sample_history *h,
                          struct esp_sample_work *w);

#endif
