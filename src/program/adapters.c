/*
 * Adapters are loaded once, at the start: the engine takes memory for the largest rank among them, and a
 * conversation may then switch between them freely.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/adapters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/strbuf.h"

/* Cut "DIR:SCALE" in place; a name without a scale has 1. */
static esp_status split(char *text, float *scale, esp_error *err)
{
    char *colon = strrchr(text, ':');
    struct stat st;
    double x;

    *scale = 1;
    if (!colon || stat(text, &st) == 0 || !esp_parse_float(colon + 1, &x))
        return ESP_OK;
    if (!(fabs(x) <= 1000))
        return esp_fail(err, ESP_EINVAL, "--adapter: scale %.20s is out of range; -1000 to 1000 is accepted",
                        colon + 1);
    *colon = 0;
    *scale = (float)x;
    return ESP_OK;
}

static void name(struct esp_named_adapter *a, char *path)
{
    size_t n = strlen(path);
    const char *slash;

    while (n > 1 && path[n - 1] == '/')
        path[--n] = 0;
    slash = strrchr(path, '/');
    snprintf(a->id, sizeof a->id, "%s", slash && slash[1] ? slash + 1 : path);
}

static esp_status open_one(struct esp_adapters *a, esp_model *m, const char *text, esp_error *err)
{
    struct esp_named_adapter *one = &a->of[a->n];
    char *path = esp_strndup(text, strlen(text));
    esp_status s;

    if (!path)
        return esp_fail(err, ESP_ENOMEM, "no memory for the name of an adapter");
    s = split(path, &one->scale, err);
    if (s == ESP_OK)
        s = esp_adapter_open(&one->handle, m, path, err);
    if (s == ESP_OK) {
        one->on = true;
        name(one, path);
        esp_adapter_describe(one->handle, &one->info);
        a->n++;
    }
    esp_free(path);
    if (s == ESP_EIO) /* the folder or a file of it is not there: nothing failed while running */
        s = ESP_ENOTFOUND;
    return s == ESP_ENUMERIC ? ESP_EFORMAT : s;
}

esp_status esp_adapters_open(struct esp_adapters *a, esp_model *m, const struct esp_opt_value *flag,
                             esp_error *err)
{
    if (flag->n > ESP_ADAPTERS_MAX)
        return esp_fail(err, ESP_EINVAL, "--adapter: %zu are named; at most %d stack", flag->n,
                        ESP_ADAPTERS_MAX);
    for (size_t i = 0; i < flag->n; i++) {
        ESP_TRY(open_one(a, m, flag->list[i], err));
        for (size_t k = 0; k < i; k++) {
            if (a->of[k].info.revision == a->of[i].info.revision)
                return esp_fail(err, ESP_EINVAL,
                                "--adapter: %s is the same adapter as %s; name it once, with a scale",
                                flag->list[i], flag->list[k]);
        }
    }
    return ESP_OK;
}

void esp_adapters_close(struct esp_adapters *a)
{
    for (size_t i = 0; i < a->n; i++)
        esp_adapter_close(a->of[i].handle);
    a->n = 0;
}

void esp_adapters_use(const struct esp_adapters *a, esp_seq_opts *o)
{
    o->n_adapters = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (a->of[i].on && a->of[i].scale != 0)
            o->adapters[o->n_adapters++] =
                (esp_adapter_use){.adapter = a->of[i].handle, .scale = a->of[i].scale};
    }
}

uint32_t esp_adapters_max_rank(const struct esp_adapters *a)
{
    uint32_t most = 0;

    for (size_t i = 0; i < a->n; i++)
        most = a->of[i].info.max_rank > most ? a->of[i].info.max_rank : most;
    return most;
}

uint64_t esp_adapters_bytes(const struct esp_adapters *a)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < a->n; i++)
        sum += a->of[i].info.bytes;
    return sum;
}

esp_status esp_adapters_select(struct esp_adapters *a, const char *ids, esp_error *err)
{
    bool on[ESP_ADAPTERS_MAX] = {false};
    const bool none = strcmp(ids, "none") == 0;

    for (const char *p = ids; !none && *p;) {
        const size_t len = strcspn(p, "+, ");
        size_t i = 0;

        while (i < a->n && !(strlen(a->of[i].id) == len && strncmp(a->of[i].id, p, len) == 0 && !on[i]))
            i++;
        if (len && i == a->n) {
            struct esp_strbuf known;
            esp_status s;

            esp_strbuf_init(&known, ESP_ADAPTERS_MAX * (sizeof a->of[0].id + 2));
            for (i = 0; i < a->n; i++)
                esp_strbuf_printf(&known, "%s%s", i ? ", " : "", a->of[i].id);
            s = esp_fail(err, ESP_EINVAL, "no adapter '%.*s' is left to switch on; loaded: %s", (int)len, p,
                         a->n ? esp_strbuf_str(&known) : "none");
            esp_strbuf_free(&known);
            return s;
        }
        if (len)
            on[i] = true;
        p += len + (p[len] != 0);
    }
    for (size_t i = 0; i < a->n; i++)
        a->of[i].on = on[i];
    return ESP_OK;
}
