/*
 * See the header. A device that was named must be there and able; one that was found by "auto" is taken when
 * it is, and what speaks against it is said.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/device.h"

#include <string.h>

#include "program/machine.h"
#include "program/output.h"
#include "program/placement.h"

static const char CPU[] = "cpu";

bool esp_device_expands(const struct esp_options *o)
{
    return esp_opt_for(esp_opt_get(OPT_EXPAND), o->verb) && o->v[OPT_EXPAND].i > 0;
}

/* The device by name: as --device says, or as the flags of placement do where it says auto. */
static esp_status name_device(struct esp_session *s, const char **word, esp_error *err)
{
    const struct esp_options *o = s->opt;
    const struct esp_placement *p = &s->placement;

    *word = esp_opt_for(esp_opt_get(OPT_DEVICE), o->verb) ? o->v[OPT_DEVICE].s : CPU;
    if (o->v[OPT_MACHINE].given && strcmp(*word, "auto") == 0)
        *word = CPU; /* devices of another machine cannot be looked at */
    ESP_TRY(esp_placement_wish(&s->placement, o, err));
    if (!p->device[0])
        return ESP_OK;
    if (strcmp(*word, "auto") != 0 && !esp_placement_same(*word, p->device))
        return esp_fail(
            err, ESP_EINVAL,
            "--device %.100s and %s: a model lies on one device as a whole; let both name the same one",
            *word, p->flag);
    if (strcmp(*word, "auto") == 0)
        *word = strcmp(p->device, CPU) == 0 ? CPU : p->device;
    return ESP_OK;
}

esp_status esp_device_choose(struct esp_session *s, esp_error *err)
{
    const struct esp_options *o = s->opt;
    const bool filtered = esp_opt_for(esp_opt_get(OPT_SECCOMP), o->verb) && o->v[OPT_SECCOMP].on;
    const char *word;
    esp_error why = {0};

    ESP_TRY(name_device(s, &word, err));
    s->auto_device = strcmp(word, "auto") == 0;
    s->device = s->auto_device ? "cuda:0" : word;
    if (s->auto_device && (filtered || esp_device_expands(o)))
        s->device = CPU;
    if (esp_device_expands(o) && strcmp(s->device, CPU) != 0)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "--device %s and --expand: expanding is for the CPU's kernels; "
                        "give --device cpu, or leave --expand out",
                        word);
    if (filtered && strcmp(s->device, CPU) != 0)
        return esp_fail(
            err, ESP_EUNSUPPORTED,
            "--device %s and --seccomp: the driver makes system calls that the filter refuses; give "
            "--device cpu",
            word);
    if (esp_device_look(&s->about, s->device, false, &why) == ESP_OK)
        return ESP_OK;
    if (!s->auto_device)
        return why.status == ESP_EINVAL
                   ? esp_fail(err, ESP_EINVAL, "--device: '%.200s' is not one of auto, cpu, cuda, cuda:N",
                              word)
                   : esp_fail(err, why.status, "%s: %s",
                              s->placement.device[0] ? s->placement.flag : "--device", why.message);
    esp_say_detail("computing on the CPU: %s", why.message);
    s->device = CPU;
    return esp_device_look(&s->about, s->device, false, err);
}

void esp_device_settle(struct esp_session *s)
{
    enum { SHORT = 4096 }; /* what does not fit with so little can only run elsewhere */
    esp_engine_opts o = s->engine_opts;
    esp_memory_plan p;
    esp_error why = {0};

    s->engine_opts.device = s->device;
    if (!s->auto_device || s->about.memory == 0 || s->opt->v[OPT_FIT].i > 0) /* --fit off */
        return;
    o.device = s->device;
    o.memory_budget = 0;
    if (o.context == 0)
        o.context = s->info.context < SHORT ? s->info.context : SHORT;
    o.kv_start = o.kv_start < o.context ? o.kv_start : o.context;
    if (esp_engine_plan(s->model, &o, &p, &why) == ESP_OK && p.total > s->about.memory_free)
        esp_fail(&why, ESP_ENOFIT, "%llu bytes are needed there, %llu are free", (unsigned long long)p.total,
                 (unsigned long long)s->about.memory_free);
    if (why.status == ESP_OK) {
        esp_say_detail("computing on %s", s->about.name);
        return;
    }
    esp_say_warn("computing on the CPU instead of %s: %s", s->about.name, why.message);
    s->engine_opts.device = s->device = CPU;
    esp_device_look(&s->about, CPU, false, NULL);
}

uint64_t esp_device_room(const struct esp_session *s)
{
    struct esp_machine m;

    if (s->about.memory)
        return s->about.memory_free;
    esp_machine_read(&m);
    return m.ram_available;
}

const char *esp_device_id(const struct esp_session *s)
{
    return s->about.memory == 0 ? "host" : strcmp(s->device, "cuda") == 0 ? "cuda:0" : s->device;
}
