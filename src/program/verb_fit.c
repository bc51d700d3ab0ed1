/*
 * fit: the memory contract, printed.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "program/device.h"
#include "program/fit.h"
#include "program/output.h"
#include "program/session.h"

static void row(const char *name, uint64_t bytes, const char *note)
{
    char text[32];

    esp_out_printf("  %-22s %12s  %s\n", name, esp_format_bytes(text, sizeof text, (double)bytes), note);
}

static void table(const struct esp_fit *f, bool fits)
{
    const esp_memory_plan *p = &f->plan;
    const bool device = f->session->about.memory != 0;
    const double headroom = (double)f->budget - (double)p->total;
    char note[96], text[32];
    json_t *list;
    json_t *s;
    size_t i;

    esp_out_printf("%s: %s, %u layers (%u full attention), %.2f G parameters, %s\n", f->session->shown,
                   f->session->info.name, f->session->info.n_layer, f->session->info.n_full_layer,
                   (double)f->session->info.n_params / 1e9, f->session->info.weights);
    esp_out_printf("at %u tokens, %u row%s:\n", f->ctx, f->rows, f->rows == 1 ? "" : "s");
    row("weights", p->weights, "");
    snprintf(note, sizeof note, "%llu bytes a token", (unsigned long long)p->kv_per_token);
    row("keys and values", p->kv_pool, note);
    snprintf(note, sizeof note, "%s a state, %llu bytes of open-chunk rows",
             esp_format_bytes(text, sizeof text, (double)p->state_per_seq),
             (unsigned long long)p->chunk_rows_per_seq);
    row("recurrent states", p->state_pool, note);
    row("scratch", p->scratch, "");
    if (p->speculation)
        row("speculation", p->speculation, f->session->opt->v[OPT_SPEC].s);
    if (p->fixed)
        row("fixed", p->fixed, "");
    if (f->session->adapters.n)
        row("adapters", p->adapters, "");
    row("total", p->total, "");
    row(esp_placement_budget(f->session) ? "budget"
        : device                         ? "free on the device"
                                         : "available memory",
        f->budget, device ? f->session->about.name : "");
    if (device)
        row("and in memory", p->host, "of the machine, most of it mapped weights");
    esp_out_printf("  %-22s %12s\n", "headroom", esp_format_bytes(text, sizeof text, headroom));
    esp_out_printf("longest context: %u tokens with 1 row", f->max_ctx_1);
    if (f->rows > 1)
        esp_out_printf(", %u with %u rows", f->max_ctx_rows, f->rows);
    esp_out_printf("\nmost rows: %u of 4096 tokens, %u of %u\n", f->max_rows_4096, f->max_rows, f->ctx);
    if (f->speed.source)
        esp_out_printf("%s: %.1f tokens/s, prompts %.0f tokens/s: %s\n",
                       f->speed.measured ? "measured" : "at most", f->speed.decode_tps, f->speed.prefill_tps,
                       f->speed.measured ? f->speed.source : "the limits of the machine in the records");
    list = esp_fit_suggestions(f);
    json_array_foreach(list, i, s)
    {
        const double gain = (double)json_integer_value(json_object_get(s, "gain_bytes"));

        if (!fits)
            esp_out_printf("try %s: %s less, %s\n", json_string_value(json_object_get(s, "change")),
                           esp_format_bytes(text, sizeof text, gain),
                           json_string_value(json_object_get(s, "cost")));
    }
    json_decref(list);
    esp_out_printf("%s\n", fits ? "fits" : "does not fit");
}

static uint64_t bytes_of(const json_t *v, const char *key)
{
    const json_int_t n = json_integer_value(json_object_get(v, key));

    return n > 0 ? (uint64_t)n : 0;
}

enum { MOST_MACHINE = 64 << 20 };

/* Whether a file's first line is a record of bench --save. */
static esp_status has_records(bool *records, const char *path, esp_error *err)
{
    char *text = NULL;
    size_t len = 0;
    const char *schema;
    json_t *first;

    ESP_TRY(esp_read_file(&text, &len, path, MOST_MACHINE, err));
    first = json_loadb(text, strcspn(text, "\n"), 0, NULL);
    schema = json_string_value(json_object_get(first, "schema"));
    *records = schema && strcmp(schema, "espalier.bench.v1") == 0;
    json_decref(first);
    esp_free(text);
    return ESP_OK;
}

/* The machine of an earlier report, or this one, which records of bench leave as it is. */
static esp_status read_machine(struct esp_fit *f, const char *path, esp_error *err)
{
    struct esp_machine *m = &f->machine;
    json_t *doc = NULL;
    const json_t *v;
    const char *cpu;

    esp_machine_read(m);
    if (!path)
        return ESP_OK;
    ESP_TRY(has_records(&f->has_records, path, err));
    if (f->has_records)
        return ESP_OK;
    ESP_TRY(esp_json_load(&doc, path, MOST_MACHINE, 0, err));
    v = json_object_get(doc, "machine") ? json_object_get(doc, "machine") : doc;
    cpu = json_string_value(json_object_get(v, "cpu"));
    snprintf(m->cpu, sizeof m->cpu, "%s", cpu ? cpu : "unknown");
    m->cores = (uint32_t)bytes_of(v, "cores");
    m->ram = bytes_of(v, "ram");
    m->ram_available = bytes_of(v, "ram_available");
    json_decref(doc);
    if (m->ram_available == 0)
        m->ram_available = m->ram;
    if (m->ram_available == 0)
        return esp_fail(
            err, ESP_EFORMAT,
            "%s: no ram in bytes, as 'espalier fit MODEL --json' prints, and no record of bench --save",
            path);
    f->other_machine = true;
    return ESP_OK;
}

static esp_status compute(struct esp_fit *f, struct esp_session *session, esp_error *err)
{
    const struct esp_options *o = session->opt;
    const uint32_t limit = session->info.context;
    esp_engine_opts *e = &session->engine_opts;

    esp_session_engine_opts(session);
    f->ctx = e->context;
    if (!f->ctx)
        f->ctx = limit < 32768 ? limit : 32768;
    f->rows = (uint32_t)o->v[OPT_ROWS].i;
    f->budget = esp_placement_budget(session) ? esp_placement_budget(session)
                : f->other_machine            ? f->machine.ram_available
                                              : esp_device_room(session);
    if (!f->budget)
        return esp_fail(err, ESP_EIO,
                        "the system does not say how much memory is available; give --memory-budget");
    e->context = f->ctx;
    e->max_seqs = f->rows;
    e->kv_tokens = esp_fit_tokens(f->ctx, f->rows);
    e->memory_budget = 0;
    ESP_TRY(esp_engine_plan(session->model, e, &f->plan, err));
    ESP_TRY(esp_fit_search(f, err));
    return f->has_records ? esp_fit_predict(f, o->v[OPT_MACHINE].s, err) : ESP_OK;
}

int esp_verb_fit(const struct esp_options *o)
{
    struct esp_session session = {.opt = o};
    struct esp_fit f = {.session = &session};
    esp_error err = {0};
    esp_status s = esp_session_open(&session, o, &err);
    bool fits = false;

    if (s == ESP_OK)
        s = read_machine(&f, o->v[OPT_MACHINE].s, &err);
    if (s == ESP_OK)
        s = compute(&f, &session, &err);
    if (s == ESP_OK) {
        fits = esp_fit_fits(&f);
        if (esp_out_is_json())
            esp_out_json(esp_fit_document(&f));
        else
            table(&f, fits);
    }
    esp_session_close(&session);
    if (s != ESP_OK)
        return esp_report(s, &err);
    return fits ? 0 : ESP_EXIT_NO_FIT;
}
