/*
 * The device that an engine computes on: what one cannot do, what it is like.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/kv.h"

esp_status esp_engine_device(struct esp_dev **out, const struct esp_model *m, const esp_engine_opts *o,
                             esp_error *err)
{
    uint32_t index;
    bool cuda;

    ESP_TRY(esp_engine_device_name(o->device, &cuda, &index, err));
    return cuda ? esp_cuda_open(out, index, err)
                : esp_cpu_open_on(out, m->level, m->n_thread, m->n_batch, m->huge, m->nodes, err);
}

static esp_status check_cuda(const struct esp_model *m, const esp_engine_opts *o, esp_error *err)
{
    struct esp_layout l = m->net->layout;
    enum esp_recurrent state = ESP_RECURRENT_F32;

    if (o->state)
        ESP_TRY(esp_recurrent_parse(&state, o->state, err));
    if (state != ESP_RECURRENT_F32)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "device %s keeps recurrent states as f32; state %s is for device cpu", o->device,
                        o->state);
    if (o->pack && strcmp(o->pack, "auto") != 0)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "device %s has weights in its own order; pack %s is for device cpu", o->device,
                        o->pack);
    ESP_TRY(esp_kv_choose(&l, &m->net->config, o->kv, err));
    if (l.kv == ESP_KV_CODED && o->kv_start)
        return esp_fail(
            err, ESP_EUNSUPPORTED,
            "device %s codes keys and values from the first position on; kv_start %u is for device "
            "cpu",
            o->device, o->kv_start);
    return ESP_OK;
}

esp_status esp_engine_check_device(const struct esp_model *m, const esp_engine_opts *o, esp_error *err)
{
    uint32_t index;
    bool cuda;

    ESP_TRY(esp_engine_device_name(o->device, &cuda, &index, err));
    return cuda ? check_cuda(m, o, err) : ESP_OK;
}

/* ---- looking at one ---- */

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static esp_status copies(struct esp_dev *d, struct esp_span to, struct esp_span from, double *rate,
                         esp_error *err)
{
    enum { WARM = 2, TIMED = 16 };
    double start = 0;

    for (int i = 0; i < WARM + TIMED; i++) {
        if (i == WARM) {
            ESP_TRY(d->ops->wait(d, err));
            start = seconds();
        }
        ESP_TRY(d->ops->copy(to, from, err));
    }
    ESP_TRY(d->ops->wait(d, err));
    *rate = 2.0 * TIMED * (double)to.bytes / (seconds() - start);
    return ESP_OK;
}

/* A device without room for both buffers stays unmeasured. */
static esp_status measure_copies(struct esp_dev *d, uint64_t left, double *rate, esp_error *err)
{
    const size_t bytes = left / 8 < (1U << 30) ? (size_t)(left / 8) / 4096 * 4096 : 1U << 30;
    struct esp_buf *from = NULL, *to = NULL;
    esp_status s;

    if (bytes == 0)
        return ESP_OK;
    s = d->ops->alloc(d, bytes, &from, err);
    if (s == ESP_OK)
        s = d->ops->alloc(d, bytes, &to, err);
    if (s == ESP_OK)
        s = copies(d, (struct esp_span){to, 0, bytes}, (struct esp_span){from, 0, bytes}, rate, err);
    d->ops->free(to);
    d->ops->free(from);
    return s;
}

esp_status esp_device_look(esp_device *out, const char *device, bool measure, esp_error *err)
{
    struct esp_dev *d;
    uint32_t index;
    bool cuda;
    esp_status s;

    if (!out)
        return esp_fail(err, ESP_EINVAL, "esp_device_look needs a place for what it sees");
    *out = (esp_device){.name = "cpu"};
    ESP_TRY(esp_engine_device_name(device, &cuda, &index, err));
    if (!cuda)
        return ESP_OK;
    ESP_TRY(esp_cuda_open(&d, index, err));
    snprintf(out->name, sizeof out->name, "%s", d->name);
    s = d->ops->memory(d, &out->memory_free, &out->memory, err);
    if (s == ESP_OK && measure)
        s = measure_copies(d, out->memory_free, &out->copy_rate, err);
    d->ops->close(d);
    return s;
}
