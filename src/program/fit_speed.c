/*
 * How fast a model will be, from records of bench --save: those of the same model as they are, else what the
 * machine's measured limits allow (which no program reaches).
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/fit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"

#include "program/bench.h"

enum { MAX_RECORDS = 64 << 20 };

/* What a file's records say. */
struct records {
    char id[32]; /* of the model that is asked about */
    double ctx;
    double prefill, prompt; /* tokens a second, and the length of the prompt that gave them */
    double decode, depth;
    double bandwidth, rate[ESP_ACT_COUNT]; /* of the last record */
    size_t n;
};

static double number(const json_t *j, const char *key)
{
    return json_number_value(json_object_get(j, key));
}

/* The longest prompt, and the depth nearest to the context that is asked about; of equals the last. */
static void take(struct records *r, const json_t *j)
{
    const char *id = json_string_value(json_object_get(j, "model_id"));
    const double tps = number(j, "median_tps"), prompt = number(j, "prompt"), depth = number(j, "depth");

    if (!json_object_get(j, "bandwidth_bytes_per_s"))
        return;
    r->n++;
    r->bandwidth = number(j, "bandwidth_bytes_per_s");
    for (int a = 0; a < ESP_ACT_COUNT; a++) {
        const double rate = number(json_object_get(j, "arithmetic_ops_per_s"), esp_act_name((enum esp_act)a));

        r->rate[a] = rate > 0 ? rate : r->rate[a];
    }
    if (!id || strcmp(id, r->id) != 0 || !(tps > 0))
        return;
    if (prompt > 0 && prompt >= r->prompt) {
        r->prompt = prompt;
        r->prefill = tps;
    }
    if (number(j, "gen") > 0 && number(j, "batch") == 1 &&
        (r->decode == 0 || fabs(depth - r->ctx) <= fabs(r->depth - r->ctx))) {
        r->depth = depth;
        r->decode = tps;
    }
}

static esp_status read_records(struct records *r, const char *path, esp_error *err)
{
    char *text = NULL;
    size_t len = 0;
    esp_status s;

    ESP_TRY(esp_read_file(&text, &len, path, MAX_RECORDS, err));
    s = ESP_OK;
    for (const char *p = text; s == ESP_OK && *p;) {
        const size_t line = strcspn(p, "\n");
        json_t *j = NULL;

        s = line ? esp_json_parse(&j, p, line, path, 0, err) : ESP_OK;
        if (j)
            take(r, j);
        json_decref(j);
        p += line + (p[line] == '\n');
    }
    esp_free(text);
    if (s == ESP_OK && r->n == 0)
        return esp_fail(err, ESP_EFORMAT, "%s: no record of bench --save is in it", path);
    return s;
}

/* Seconds of a token's arithmetic, of `outputs` rows of logits and `seen` positions; parts without a known
 * rate take none. */
static double arithmetic(const struct records *r, const esp_work *w, double outputs, double seen)
{
    double seconds = r->rate[ESP_ACT_F32] > 0 ? (w->other + w->position * seen) / r->rate[ESP_ACT_F32] : 0;

    for (int a = 0; a < ESP_ACT_COUNT; a++)
        if (r->rate[a] > 0)
            seconds += (w->token[a] + outputs * w->output[a]) / r->rate[a];
    return seconds;
}

static esp_status limits(struct esp_fit *f, struct records *r, esp_error *err)
{
    const double weights = (double)f->session->info.weight_bytes, chunk = 512, ctx = f->ctx;
    const double own = (double)f->plan.kv_per_token * ctx + 2 * (double)f->plan.state_per_seq;
    esp_work w;

    ESP_TRY(esp_engine_work(f->session->model, &f->session->engine_opts, &w, err));
    if (r->decode == 0)
        r->decode = 1 / fmax((weights + own) / r->bandwidth, arithmetic(r, &w, 1, ctx));
    if (r->prefill == 0)
        r->prefill = 1 / fmax((weights + own) / r->bandwidth / chunk, arithmetic(r, &w, 1 / chunk, ctx / 2));
    return ESP_OK;
}

esp_status esp_fit_predict(struct esp_fit *f, const char *path, esp_error *err)
{
    struct esp_bench_context c = {.session = f->session, .machine = &f->machine};
    struct records r = {.ctx = f->ctx};

    esp_bench_identify(&c);
    snprintf(r.id, sizeof r.id, "%016" PRIx64, c.model_id);
    ESP_TRY(read_records(&r, path, err));
    f->speed.measured = r.decode > 0 && r.prefill > 0;
    if (!f->speed.measured)
        ESP_TRY(limits(f, &r, err));
    f->speed.decode_tps = r.decode;
    f->speed.prefill_tps = r.prefill;
    f->speed.source = path;
    return ESP_OK;
}

json_t *esp_fit_predicted(const struct esp_fit *f)
{
    const struct esp_fit_speed *v = &f->speed;

    if (!v->source)
        return NULL;
    return json_pack("{s:f,s:f,s:f,s:s,s:s}", "prefill_tps", v->prefill_tps, "decode_tps", v->decode_tps,
                     "ttft_s_at_ctx", f->ctx / v->prefill_tps, "basis", v->measured ? "measured" : "roofline",
                     "source", v->source);
}
