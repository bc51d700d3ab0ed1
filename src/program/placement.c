/*
 * See the header.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/placement.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "program/output.h"
#include "program/session.h"

static const char CPU[] = "cpu", CUDA[] = "cuda:0";
enum { MAX_LAYERS = 1 << 20 };

bool esp_placement_same(const char *a, const char *b)
{
    return strcmp(strcmp(a, "cuda") == 0 ? CUDA : a, strcmp(b, "cuda") == 0 ? CUDA : b) == 0;
}

static bool is_device(const char *s)
{
    return strcmp(s, CPU) == 0 || strcmp(s, "cuda") == 0 ||
           (strncmp(s, "cuda:", 5) == 0 && s[5] && strlen(s) < 9 &&
            strspn(s + 5, "0123456789") == strlen(s + 5));
}

/* device is asked for by flag, which a message shows. */
static esp_status want(struct esp_placement *p, const char *device, const char *flag, esp_error *err)
{
    if (p->device[0] && !esp_placement_same(p->device, device))
        return esp_fail(err, ESP_EINVAL,
                        "%s and %s: a model lies on one device as a whole; let all of them name the same one",
                        p->flag, flag);
    if (!p->device[0]) {
        snprintf(p->device, sizeof p->device, "%s", device);
        snprintf(p->flag, sizeof p->flag, "%s", flag);
    }
    return ESP_OK;
}

/* "all" as -1; false: neither that nor a number. */
static bool layers(const char *text, int64_t *out)
{
    *out = -1;
    return strcmp(text, "all") == 0 || (esp_parse_int(text, out) && *out >= 0 && *out <= MAX_LAYERS);
}

static esp_status want_layers(struct esp_placement *p, const char *text, esp_error *err)
{
    char flag[64];
    int64_t n;

    if (strcmp(text, "auto") == 0)
        return ESP_OK;
    if (!layers(text, &n))
        return esp_fail(err, ESP_EINVAL, "--gpu-layers: '%.100s' is not auto, all, or a number of layers",
                        text);
    snprintf(flag, sizeof flag, "--gpu-layers %s", text);
    return want(p, n == 0 ? CPU : CUDA, flag, err);
}

static esp_status want_rule(struct esp_placement *p, const char *rule, esp_error *err)
{
    const char *equals = strrchr(rule, '=');
    char pattern[4096], why[100], flag[64];
    regex_t r;
    int e;

    if (!equals || equals == rule || !is_device(equals + 1))
        return esp_fail(err, ESP_EINVAL,
                        "--place: '%.200s' is not of the form REGEX=DEVICE with cpu, cuda or cuda:N", rule);
    snprintf(pattern, sizeof pattern, "%.*s", (int)(equals - rule), rule);
    e = regcomp(&r, pattern, REG_EXTENDED | REG_NOSUB);
    if (e != 0) {
        regerror(e, &r, why, sizeof why);
        return esp_fail(err, ESP_EINVAL, "--place: '%.200s' is no regular expression: %s", pattern, why);
    }
    regfree(&r);
    snprintf(flag, sizeof flag, "--place %.50s", rule);
    return want(p, equals + 1, flag, err);
}

esp_status esp_placement_wish(struct esp_placement *out, const struct esp_options *o, esp_error *err)
{
    const struct esp_opt_value *rules = &o->v[OPT_PLACE];
    int64_t n;

    memset(out, 0, sizeof *out);
    if (!esp_opt_for(esp_opt_get(OPT_GPU_LAYERS), o->verb))
        return ESP_OK;
    if (!layers(o->v[OPT_CPU_MOE].s, &n))
        return esp_fail(err, ESP_EINVAL, "--cpu-moe: '%.100s' is not all or a number of layers",
                        o->v[OPT_CPU_MOE].s);
    ESP_TRY(want_layers(out, o->v[OPT_GPU_LAYERS].s, err));
    for (size_t i = 0; i < rules->n; i++)
        ESP_TRY(want_rule(out, rules->list[i], err));
    return ESP_OK;
}

esp_status esp_placement_check(const struct esp_session *s, esp_error *err)
{
    const struct esp_options *o = s->opt;
    const bool device = strcmp(s->device, CPU) != 0;
    int64_t on_gpu, experts;

    if (!esp_opt_for(esp_opt_get(OPT_GPU_LAYERS), o->verb))
        return ESP_OK;
    if (layers(o->v[OPT_GPU_LAYERS].s, &on_gpu) && on_gpu > 0 && on_gpu < s->info.n_layer)
        return esp_fail(err, ESP_EINVAL,
                        "--gpu-layers %lld: the model's %u layers lie on one device as a whole; 0, %u and "
                        "more, and all are accepted",
                        (long long)on_gpu, s->info.n_layer, s->info.n_layer);
    if (!layers(o->v[OPT_CPU_MOE].s, &experts) || experts == 0)
        return ESP_OK;
    if (!strstr(s->info.name, "moe"))
        esp_say_warn("--cpu-moe %s: the model has no experts", o->v[OPT_CPU_MOE].s);
    else if (device)
        return esp_fail(err, ESP_EINVAL,
                        "--cpu-moe %s: on %s the experts lie with the rest of the model; 0, or --device cpu, "
                        "is accepted",
                        o->v[OPT_CPU_MOE].s, s->device);
    return ESP_OK;
}

/* The entry of --memory-budget whose name is one of two; 0: none. */
static uint64_t entry(const struct esp_opt_value *v, const char *name, const char *other)
{
    for (size_t i = 0; i < v->n; i++) {
        const size_t len = strcspn(v->list[i], "=");

        if ((strlen(name) == len && strncmp(v->list[i], name, len) == 0) ||
            (strlen(other) == len && strncmp(v->list[i], other, len) == 0))
            return (uint64_t)v->ints[i];
    }
    return 0;
}

uint64_t esp_placement_host_budget(const struct esp_session *s)
{
    return entry(&s->opt->v[OPT_MEMORY_BUDGET], "host", CPU);
}

uint64_t esp_placement_budget(const struct esp_session *s)
{
    const struct esp_opt_value *v = &s->opt->v[OPT_MEMORY_BUDGET];
    const char *other = esp_placement_same(s->device, CUDA) ? "cuda" : s->device;
    const uint64_t named = s->about.memory
                               ? entry(v, strcmp(s->device, "cuda") == 0 ? CUDA : s->device, other)
                               : esp_placement_host_budget(s);

    return named ? named : v->size;
}
