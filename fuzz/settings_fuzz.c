/*
 * Files of settings that name parts of a model: "k" and a kv_config.json, or "r" and a quantization recipe,
 * against the bundled model. What is accepted must fit the model: schemes for its heads, choices for its
 * shapes.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/kv.h"
#include "io/checkpoint.h"
#include "io/names.h"
#include "quantize/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct esp_checkpoint *ck; /* opened once a process */
static struct esp_names names;

static void check(int holds)
{
    if (!holds)
        __builtin_trap();
}

static void fuzz_kv(const char *path)
{
    const struct esp_config *c = &ck->config;
    struct esp_layout l = {.n_attn = c->n_full,
                           .n_delta = c->n_layer - c->n_full,
                           .n_kv_head = c->n_kv_head,
                           .head_dim = c->head_dim,
                           .kh = c->lin_k_head,
                           .vh = c->lin_v_head,
                           .dk = c->lin_k_dim,
                           .dv = c->lin_v_dim};
    char name[ESP_KV_NAME];
    esp_error err;

    l.conv_dim = 2 * l.kh * l.dk + l.vh * l.dv;
    if (esp_kv_choose(&l, c, path, &err) != ESP_OK) {
        check(err.message[0]);
        return;
    }
    check(esp_layout_finish(&l, &err) == ESP_OK && l.page_bytes > 0);
    esp_kv_describe(&l, name);
    check(name[0] && strlen(name) < sizeof name);
}

static void fuzz_recipe(const char *path)
{
    static const struct esp_fold no_fold;
    const esp_quantize_opts opts = {.recipe = path};
    const struct esp_plan_input in = {.ck = ck,
                                      .names = &names,
                                      .fold = &no_fold,
                                      .opts = &opts,
                                      .method = ESP_METHOD_GPTQ,
                                      .bits = 4,
                                      .group = 64};
    struct esp_plan_list p;
    esp_error err;

    if (esp_plan_make(&p, &in, &err) != ESP_OK) {
        check(err.message[0]);
        return;
    }
    for (uint32_t i = 0; i < p.n; i++) {
        const struct esp_choice *c = &p.rows[i].choice;
        struct esp_plane planes[3];

        check(c->method < ESP_METHOD_COUNT &&
              (c->method == ESP_METHOD_KEEP || (c->bits >= 1 && c->bits <= 8)));
        check(esp_plan_planes(&p.rows[i], planes) >= 1);
    }
    json_decref(esp_plan_recipe(&p, false, 1));
    esp_plan_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd;

    if (!ck)
        check(esp_checkpoint_open(&ck, ESP_SOURCE_DIR "/models/demo", NULL) == ESP_OK &&
              esp_names_resolve(&names, ck, NULL) == ESP_OK);
    if (size < 2)
        return 0;
    fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data + 1, size - 1) != (ssize_t)(size - 1))
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (data[0] == 'k')
        fuzz_kv(path);
    else
        fuzz_recipe(path);
    close(fd);
    return 0;
}
