/*
 * One row of a benchmark as a JSON object, complete by itself: what was measured, on which machine, by which
 * build, of which model. Records of other days can be told apart, or compared, by it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/bench.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#include "program/output.h"
#include "program/verbs.h"

static uint64_t mix_text(uint64_t h, const char *s)
{
    return esp_hash(s, strlen(s) + 1, h);
}

static uint64_t mix(uint64_t h, uint64_t value)
{
    return esp_hash(&value, sizeof value, h);
}

void esp_bench_identify(struct esp_bench_context *c)
{
    const struct esp_machine *m = c->machine;
    const esp_model_info *i = &c->session->info;
    uint64_t h = mix_text(mix_text(mix_text(0, m->cpu), m->arch), m->features);

    h = mix(mix(mix(mix(mix(h, m->cores), m->threads), m->l1d), m->l2), m->l3);
    c->machine_id = mix(h, m->ram >> 30); /* what the system keeps for itself varies */
    h = mix_text(mix_text(mix_text(0, i->name), i->shape), i->weights);
    h = mix(mix(mix(h, i->n_params), i->weight_bytes), i->n_layer);
    c->model_id = mix(mix(mix(h, i->n_full_layer), i->hidden), i->n_vocab);
}

const char *esp_bench_bound(const struct esp_bench_row *r)
{
    if (!(r->arithmetic_share > 0)) /* not measured: a device's, the reference's */
        return "unknown";
    return r->arithmetic_share > r->share ? "arithmetic" : "memory";
}

static json_t *json_id(uint64_t id)
{
    char text[32];

    snprintf(text, sizeof text, "%016" PRIx64, id);
    return json_string(text);
}

static json_t *json_machine(const struct esp_bench_context *c)
{
    const struct esp_machine *m = c->machine;
    json_t *j = json_pack("{s:s,s:s,s:s,s:i,s:i,s:I,s:I,s:I,s:I}", "cpu", m->cpu, "arch", m->arch, "features",
                          m->features, "cores", m->cores, "threads", m->threads, "l1d", (json_int_t)m->l1d,
                          "l2", (json_int_t)m->l2, "l3", (json_int_t)m->l3, "ram", (json_int_t)m->ram);

    json_object_set_new(j, "id", json_id(c->machine_id));
    return j;
}

static json_t *json_build(void)
{
    return json_pack("{s:s,s:s,s:s}", "version", esp_version(), "commit", esp_program_commit(), "compiler",
                     esp_program_compiler());
}

static json_t *json_rates(const struct esp_bench_context *c)
{
    json_t *rates = json_object();

    for (int a = 0; a < ESP_ACT_COUNT; a++)
        if (c->rate[a] > 0)
            json_object_set_new(rates, esp_act_name((enum esp_act)a), json_real(c->rate[a]));
    return rates;
}

json_t *esp_bench_record(const struct esp_bench_context *c, const struct esp_bench_row *r)
{
    const struct esp_options *o = c->session->opt;
    const esp_model_info *m = &c->session->info;
    char name[64];
    json_t *j =
        json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:s}", "schema", "espalier.bench.v1", "version", esp_version(),
                  "model", c->session->shown, "shape", m->shape, "weights", m->weights, "weight_bytes",
                  (json_int_t)m->weight_bytes, "test", esp_bench_name(r, name, sizeof name));
    json_t *samples = json_array();

    for (size_t i = 0; i < r->n_sample; i++)
        json_array_append_new(samples, json_real(r->samples[i]));
    json_object_update_new(j,
                           json_pack("{s:I,s:I,s:I,s:I,s:i,s:s,s:s,s:s,s:s}", "prompt", (json_int_t)r->prompt,
                                     "gen", (json_int_t)r->gen, "batch", (json_int_t)r->batch, "depth",
                                     (json_int_t)r->depth, "threads", c->threads, "level", esp_bench_level(c),
                                     "kv", o->v[OPT_KV].s, "act", o->v[OPT_ACT].s, "cpu", c->machine->cpu));
    json_object_update_new(j,
                           json_pack("{s:s,s:s,s:I,s:I,s:I}", "device", c->session->about.name, "spec",
                                     o->v[OPT_SPEC].s, "spec_rounds", (json_int_t)r->rounds, "spec_drafted",
                                     (json_int_t)r->drafted, "spec_accepted", (json_int_t)r->accepted));
    json_object_update_new(j, json_pack("{s:f,s:f,s:f,s:s}", "p99_s", r->p99_s, "ops_per_token",
                                        r->ops_per_token, "arithmetic_share", r->arithmetic_share, "bound",
                                        esp_bench_bound(r)));
    json_object_set_new(j, "arithmetic_ops_per_s", json_rates(c));
    json_object_update_new(
        j, json_pack("{s:f,s:f,s:f,s:o,s:f,s:f,s:f,s:f,s:f,s:f,s:I}", "mean_tps", r->mean, "sd_tps", r->sd,
                     "median_tps", r->median, "samples_tps", samples, "ttft_s", r->ttft_s, "p50_s", r->p50_s,
                     "p95_s", r->p95_s, "bytes_per_token", r->bytes_per_token, "bandwidth_bytes_per_s",
                     c->bandwidth, "bandwidth_share", r->share, "peak_rss", (json_int_t)r->peak_rss));
    if (r->joules_per_token > 0)
        json_object_set_new(j, "joules_per_token", json_real(r->joules_per_token));
    json_object_set_new(j, "machine", json_machine(c));
    json_object_set_new(j, "build", json_build());
    json_object_set_new(j, "model_id", json_id(c->model_id));
    return j;
}

esp_status esp_bench_save(const char *path, const struct esp_bench_context *c,
                          const struct esp_bench_row *rows, size_t n, esp_error *err)
{
    FILE *f = fopen(path, "ae");
    bool bad = false;

    if (!f)
        return esp_fail(err, ESP_EIO, "%s: could not be written: %s", path, strerror(errno));
    for (size_t i = 0; !bad && i < n; i++) {
        json_t *j = esp_bench_record(c, &rows[i]);

        bad = !j || json_dumpf(j, f, JSON_COMPACT) != 0 || fputc('\n', f) == EOF;
        json_decref(j);
    }
    bad = fclose(f) != 0 || bad;
    return bad ? esp_fail(err, ESP_EIO, "%s: could not be written: %s", path, strerror(errno)) : ESP_OK;
}
