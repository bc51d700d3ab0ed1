/*
 * Requests are copied whole when they are submitted, so that a caller may drop its arrays at once.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/service_job.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

void esp_service_job_free(struct esp_service_job *j)
{
    if (!j)
        return;
    esp_free(j->tokens);
    esp_free(j->marks);
    esp_free(j->bias);
    esp_free(j);
}

static void *copy_of(const void *data, size_t n, size_t size)
{
    void *p = esp_alloc_array(n, size);

    if (p && n)
        memcpy(p, data, n * size);
    return p;
}

esp_status esp_service_job_make(struct esp_service_job **out, const struct esp_service_request *r,
                                esp_error *err)
{
    struct esp_service_job *j = esp_alloc(sizeof *j);

    if (!j)
        return esp_fail(err, ESP_ENOMEM, "request: out of memory");
    j->r = *r;
    j->r.n_choice = r->n_choice ? r->n_choice : 1;
    j->tokens = copy_of(r->tokens, r->n, sizeof *r->tokens);
    j->marks = copy_of(r->marks, r->n_mark, sizeof *r->marks);
    j->bias = copy_of(r->opts.sampling.bias, r->opts.sampling.n_bias, sizeof *j->bias);
    if (!j->tokens || !j->marks || !j->bias) {
        esp_service_job_free(j);
        return esp_fail(err, ESP_ENOMEM, "request of %zu tokens: out of memory", r->n);
    }
    j->r.opts.sampling.bias = j->bias;
    *out = j;
    return ESP_OK;
}
