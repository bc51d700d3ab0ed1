/*
 * What the server says of itself: health, models, defaults, what runs, statistics.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/limits.h"
#include "engine/chat.h"

#include "serve/adapters.h"
#include "serve/content.h"
#include "serve/diag.h"
#include "serve/job.h"
#include "serve/life.h"
#include "serve/page.h"
#include "serve/replay.h"
#include "serve/route.h"
#include "serve/slots.h"
#include "serve/store.h"

/* Whether the engine's thread has gone round in the last ten seconds, or has nothing to do. */
static bool moves(const struct esp_server *s)
{
    return !s->service || esp_service_idle_seconds(s->service) < 10 || esp_service_pending(s->service) == 0;
}

void esp_get_health(struct esp_call *c)
{
    static const char *const names[] = {[ESP_PHASE_LOADING] = "loading",
                                        [ESP_PHASE_READY] = "ok",
                                        [ESP_PHASE_DRAINING] = "draining",
                                        [ESP_PHASE_FAILED] = "error"};
    struct esp_server *s = c->s;
    json_t *v = json_pack("{s:s}", "status", names[s->phase]);
    bool ok = s->phase == ESP_PHASE_READY;
    char deep[8];

    if (s->phase == ESP_PHASE_LOADING)
        json_object_set_new(v, "progress",
                            json_real(s->o.load_progress ? s->o.load_progress(s->o.user) : 0.0));
    if (s->phase == ESP_PHASE_READY && esp_http_query(c->r->head.query, "deep", deep, sizeof deep) &&
        strcmp(deep, "1") == 0 && !moves(s)) {
        json_object_set_new(v, "status", json_string("error"));
        json_object_set_new(v, "reason", json_string("the engine has not advanced for 10 s"));
        ok = false;
    }
    if (ok && esp_life_asleep(s)) /* well all the same: a request wakes it, and this is none */
        json_object_set_new(v, "sleeping", json_true());
    if (!ok)
        esp_http_header(c->r, "Retry-After", "1");
    esp_reply_json(c, ok ? 200 : 503, v);
}

void esp_get_root(struct esp_call *c)
{
    static const char text[] = "espalier: GET /v1 lists the routes\n";

    if (!c->s->o.no_page) {
        esp_http_header(c->r, "Content-Security-Policy", esp_page_policy);
        esp_http_header(c->r, "X-Content-Type-Options", "nosniff");
        esp_http_header(c->r, "Referrer-Policy", "no-referrer");
        esp_reply_text(c, 200, "text/html; charset=utf-8", (const char *)esp_page, esp_page_len);
        return;
    }
    esp_reply_text(c, 200, "text/plain; charset=utf-8", text, sizeof text - 1);
}

void esp_get_version(struct esp_call *c)
{
    esp_reply_json(c, 200,
                   json_pack("{s:s,s:s,s:s,s:[s]}", "version", esp_version(), "commit",
                             c->s->o.commit ? c->s->o.commit : "unknown", "build",
#if defined(__clang__)
                             "clang " __clang_version__,
#else
                             "gcc " __VERSION__,
#endif
                             "devices",
                             c->s->device && strcmp(c->s->device, "host") != 0 ? c->s->device : "cpu"));
}

void esp_get_index(struct esp_call *c)
{
    json_t *list = json_array();
    const struct esp_route *r;

    for (size_t i = 0; (r = esp_route_at(i)) != NULL; i++)
        if (r->about)
            json_array_append_new(
                list, json_pack("{s:s,s:s,s:s}", "method", r->method, "path", r->path, "about", r->about));
    esp_reply_json(c, 200, json_pack("{s:s,s:o}", "object", "list", "routes", list));
}

static json_t *model_json(const struct esp_server *s)
{
    const esp_model_info *m = &s->info;
    json_t *aliases = json_array(), *v;
    char stamp[40];
    time_t at = (time_t)s->started_unix;
    struct tm tm;

    gmtime_r(&at, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &tm);
    for (size_t i = 0; i < s->o.n_alias; i++)
        json_array_append_new(aliases, json_string(s->o.aliases[i]));
    v = json_pack("{s:s,s:s,s:I,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:o,s:n}", "id", s->o.model_id, "object",
                  "model", "created", (json_int_t)s->started_unix, "owned_by", "espalier", "type", "model",
                  "display_name", s->o.model_id, "created_at", stamp, "max_input_tokens",
                  (json_int_t)s->context, "max_tokens", (json_int_t)s->context, "max_model_len",
                  (json_int_t)s->context, "context_window", (json_int_t)s->context, "aliases", aliases,
                  "parent");
    json_object_set_new(v, "capabilities",
                        json_pack("{s:b,s:b,s:b,s:s,s:b,s:b,s:b}", "vision", 0, "video", 0, "tools",
                                  m->has_template && s->tool_call >= 0, "thinking",
                                  s->think >= 0 ? "switchable" : "none", "embeddings", 0, "fim", s->fim.known,
                                  "mtp", m->has_mtp));
    json_object_set_new(v, "architecture",
                        json_pack("{s:[s],s:[s]}", "input_modalities", "text", "output_modalities", "text"));
    json_object_set_new(v, "meta",
                        json_pack("{s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:s}", "n_params", (json_int_t)m->n_params,
                                  "size", (json_int_t)m->weight_bytes, "n_ctx", (json_int_t)s->context,
                                  "n_ctx_train", (json_int_t)m->context, "n_vocab", (json_int_t)m->n_vocab,
                                  "quantization", m->weights, "kv", s->o.kv ? s->o.kv : "bf16", "state",
                                  s->o.state ? s->o.state : "f32"));
    return v;
}

/* An adapter as a model of its own. */
static json_t *adapter_model_json(const struct esp_server *s, const char *id)
{
    json_t *m = model_json(s);

    json_object_set_new(m, "id", json_string(id));
    json_object_set_new(m, "display_name", json_string(id));
    json_object_set_new(m, "aliases", json_array());
    json_object_set_new(m, "parent", json_string(s->o.model_id));
    return m;
}

/* The same models as the catalogue that Codex reads, which compacts a conversation before it is full. */
static json_t *catalog_json(const struct esp_server *s, const json_t *list)
{
    const json_int_t context = (json_int_t)s->context;
    const bool thinks = s->think >= 0;
    json_t *models = json_array(), *m;
    size_t i;

    json_array_foreach(list, i, m)
    {
        const char *id = json_string_value(json_object_get(m, "id"));
        json_t *levels = thinks ? json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "effort", "low", "description",
                                            "short thinking", "effort", "medium", "description",
                                            "thinking within a budget", "effort", "high", "description",
                                            "thinking without a bound")
                                : json_array();
        json_t *v = json_pack("{s:s,s:s,s:I,s:I,s:I,s:[s],s:b,s:b,s:o,s:{s:s,s:I},s:s,s:s,s:b,s:i}", "slug",
                              id, "display_name", id, "context_window", context, "max_context_window",
                              context, "auto_compact_token_limit", context / 10 * 9, "input_modalities",
                              "text", "supports_parallel_tool_calls", 1, "supports_reasoning_summaries",
                              thinks, "supported_reasoning_levels", levels, "truncation_policy", "mode",
                              "tokens", "limit", context / 8, "shell_type", "shell_command", "visibility",
                              "list", "supported_in_api", 1, "priority", (int)i);

        if (thinks)
            json_object_set_new(v, "default_reasoning_level", json_string("medium"));
        json_array_append_new(models, v);
    }
    return models;
}

void esp_get_models(struct esp_call *c)
{
    json_t *list = json_pack("[o]", model_json(c->s)), *ids = esp_mounts_ids(c->s), *id, *v;
    const char *last = c->s->o.model_id;
    size_t i;

    json_array_foreach(ids, i, id)
    {
        last = json_string_value(id);
        json_array_append_new(list, adapter_model_json(c->s, last));
    }
    v = json_pack("{s:s,s:o,s:b,s:s,s:s}", "object", "list", "data", list, "has_more", 0, "first_id",
                  c->s->o.model_id, "last_id", last);
    if (c->s->o.codex_catalog)
        json_object_set_new(v, "models", catalog_json(c->s, list));
    esp_reply_json(c, 200, v);
    json_decref(ids);
}

void esp_get_model(struct esp_call *c)
{
    const char *id = c->params[0];
    bool base = strcmp(id, c->s->o.model_id) == 0;

    for (size_t i = 0; i < c->s->o.n_alias; i++)
        base = base || strcmp(id, c->s->o.aliases[i]) == 0;
    if (base)
        esp_reply_json(c, 200, model_json(c->s));
    else if (esp_mounts_known(c->s, id))
        esp_reply_json(c, 200, adapter_model_json(c->s, id));
    else
        esp_api_fail(&c->e, "model_not_found", "model", "model: '%.200s' is not served here; '%.200s' is", id,
                     c->s->o.model_id);
}

/* What every answer draws by, under the names that requests have. */
static json_t *sampling_json(const esp_sampling *o)
{
    return json_pack("{s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I}", "temperature",
                     esp_as_written(o->temperature), "top_k", o->top_k, "top_p", esp_as_written(o->top_p),
                     "min_p", esp_as_written(o->min_p), "typical_p", esp_as_written(o->typical_p),
                     "repetition_penalty", esp_as_written(o->repetition_penalty), "presence_penalty",
                     esp_as_written(o->presence_penalty), "frequency_penalty",
                     esp_as_written(o->frequency_penalty), "xtc_probability",
                     esp_as_written(o->xtc_probability), "xtc_threshold", esp_as_written(o->xtc_threshold),
                     "dry_multiplier", esp_as_written(o->dry_multiplier), "dry_base",
                     esp_as_written(o->dry_base), "dry_allowed_length", (json_int_t)o->dry_allowed_length,
                     "dry_penalty_last_n", o->dry_context ? (json_int_t)o->dry_context : -1);
}

static json_t *defaults_json(const struct esp_server *s)
{
    struct esp_gen g;
    json_t *v;

    esp_gen_init(&g, s);
    v = sampling_json(&g.sampling);
    json_object_set_new(v, "max_tokens", json_integer((json_int_t)s->o.max_tokens));
    esp_gen_free(&g);
    return v;
}

void esp_get_props(struct esp_call *c)
{
    const struct esp_server *s = c->s;

    esp_reply_json(c, 200,
                   json_pack("{s:o,s:i,s:{s:b,s:b},s:s,s:s,s:I,s:s?}", "default_generation_settings",
                             defaults_json(s), "total_slots", (int)s->rows, "modalities", "vision", 0,
                             "video", 0, "model_path", s->o.model_id, "build_info", esp_version(), "n_ctx",
                             (json_int_t)s->context, "chat_template", esp_model_template(s->model)));
}

/* Settings of a generation, for people. */
static json_t *params_json(const struct esp_gen *g)
{
    json_t *v = sampling_json(&g->sampling);

    json_object_set_new(v, "seed", json_integer((json_int_t)g->sampling.seed));
    json_object_set_new(v, "max_tokens", json_integer((json_int_t)g->max_tokens));
    json_object_set_new(v, "stream", json_boolean(g->stream));
    return v;
}

static json_t *text_of(const struct esp_server *s, const struct esp_ids *ids)
{
    struct esp_strbuf text;
    json_t *v;

    esp_strbuf_init(&text, ESP_LIMIT_TEXT_BYTES);
    esp_detok_decode(esp_model_tokenizer(s->model), ids->data, ids->n, 0, &text, NULL);
    v = esp_text_json(esp_strbuf_str(&text), text.len);
    esp_strbuf_free(&text);
    return v;
}

static json_t *slot_json(const struct esp_server *s, uint32_t i)
{
    const struct esp_slot *slot = &s->slots[i];
    const struct esp_choice *c = slot->choice;
    const struct esp_job *j = c ? c->job : NULL;

    json_t *v;

    if (!c)
        return json_pack("{s:i,s:s,s:I,s:I}", "id", (int)i, "state", "idle", "n_ctx", (json_int_t)s->context,
                         "n_cached_text", (json_int_t)(slot->ns ? slot->text.n : 0));
    v = json_pack("{s:i,s:s,s:I,s:I,s:I,s:I,s:I,s:s,s:o,s:o}", "id", (int)i, "state",
                  c->first_at > 0 ? "decode" : "prefill", "n_ctx", (json_int_t)s->context, "n_prompt_tokens",
                  (json_int_t)j->prompt.n, "n_prompt_processed",
                  (json_int_t)(c->first_at > 0 ? j->prompt.n : j->processed), "n_cached",
                  (json_int_t)j->n_cached, "n_decoded", (json_int_t)c->tokens.n, "request_id", j->call->id,
                  "adapter", j->gen->adapter[0] ? json_string(j->gen->adapter) : json_null(), "params",
                  params_json(j->gen));
    if (s->o.slots_text)
        json_object_set_new(v, "prompt", text_of(s, &j->prompt));
    return v;
}

void esp_get_slots(struct esp_call *c)
{
    const struct esp_server *s = c->s;
    json_t *list = json_array();
    char value[8];
    bool idle = false;

    for (uint32_t i = 0; i < s->rows; i++) {
        idle = idle || !s->slots[i].choice;
        json_array_append_new(list, slot_json(s, i));
    }
    if (!idle && esp_http_query(c->r->head.query, "fail_on_no_slot", value, sizeof value) &&
        strcmp(value, "1") == 0) {
        json_decref(list);
        esp_api_fail(&c->e, "no_slot", NULL, "no slot is free: all %u are in use", s->rows);
        return;
    }
    esp_reply_json(c, 200, list);
}

void esp_get_metrics(struct esp_call *c)
{
    struct esp_strbuf b;

    if (c->s->o.no_metrics) {
        esp_api_fail(&c->e, "route_not_found", NULL, "metrics are switched off");
        return;
    }
    esp_strbuf_init(&b, 4 << 20);
    esp_metrics_write(c->s, &b);
    esp_reply_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", esp_strbuf_str(&b), b.len);
    esp_strbuf_free(&b);
}

static json_t *reasons_json(const struct esp_metrics *m)
{
    json_t *v = json_object();

    for (int i = 0; i < ESP_CACHE_REASONS; i++)
        json_object_set_new(v, esp_cache_reasons[i], json_integer((json_int_t)m->cache_reasons[i]));
    return v;
}

static json_t *cache_json(const struct esp_server *s, const esp_stats *t)
{
    const struct esp_metrics *m = &s->metrics;

    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:I,s:I,s:I,s:I}", "entries", (json_int_t)t->cache_texts,
                     "checkpoints", (json_int_t)t->cache_checkpoints, "hits", (json_int_t)t->cache_hits,
                     "queries_tokens", (json_int_t)m->query_tokens, "hit_tokens", (json_int_t)m->hit_tokens,
                     "evictions", (json_int_t)t->cache_evictions, "by_reason", reasons_json(m), "disk_writes",
                     (json_int_t)t->disk_saved, "disk_reads", (json_int_t)t->disk_restored, "disk_failed",
                     (json_int_t)t->disk_failed, "disk_bytes", (json_int_t)t->disk_bytes);
}

static json_t *memory_json(const struct esp_server *s, const esp_stats *t)
{
    const esp_memory_plan *p = &s->plan;
    const uint64_t kv = t->pages_used * s->units.page, states = t->slots_used * s->units.slot,
                   checkpoints = t->cache_checkpoints * s->units.slot,
                   used = p->weights + p->fixed + p->scratch + kv + states,
                   headroom = s->budget > p->total ? s->budget - p->total : 0;

    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:i,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:[{s:s,s:I,s:I,s:I}]}",
                     "budget_bytes", (json_int_t)s->budget, "weights_bytes", (json_int_t)p->weights,
                     "kv_bytes", (json_int_t)kv, "state_bytes", (json_int_t)states, "checkpoint_bytes",
                     (json_int_t)checkpoints, "cache_ram_bytes",
                     (json_int_t)(strcmp(esp_cache_tier(s), "ram") == 0 ? checkpoints : 0), "media_bytes", 0,
                     "cache_disk_bytes", (json_int_t)t->disk_bytes, "adapters_bytes", (json_int_t)p->adapters,
                     "transient_peak_bytes", (json_int_t)p->scratch, "headroom_bytes", (json_int_t)headroom,
                     "pages_used", (json_int_t)t->pages_used, "pages_total", (json_int_t)t->pages_total,
                     "slots_used", (json_int_t)t->slots_used, "slots_total", (json_int_t)t->slots_total,
                     "by_device", "device", s->device, "total", (json_int_t)s->budget, "used",
                     (json_int_t)used, "reserved", (json_int_t)p->total);
}

static json_t *spec_json(const esp_stats *t)
{
    return json_pack("{s:s,s:I,s:I,s:I,s:I,s:f}", "mode", t->spec_name ? t->spec_name : "off", "enabled_rows",
                     (json_int_t)t->spec_rows, "rounds", (json_int_t)t->spec_rounds, "drafted",
                     (json_int_t)t->spec_drafted, "accepted", (json_int_t)t->spec_accepted, "accept_rate",
                     t->spec_drafted ? (double)t->spec_accepted / (double)t->spec_drafted : 0.0);
}

static json_t *server_json(const struct esp_server *s)
{
    return json_pack("{s:s,s:b,s:I,s:f,s:s,s:s}", "model", s->o.model_id, "sleeping", esp_life_asleep(s),
                     "started_at", (json_int_t)s->started_unix, "uptime_s", esp_serve_now() - s->started,
                     "version", esp_version(), "determinism", "cache");
}

static json_t *admission_json(const struct esp_server *s, const esp_stats *t)
{
    const struct esp_metrics *m = &s->metrics;

    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f}", "max_context", (json_int_t)s->context,
                     "max_rows", (json_int_t)s->rows, "running", (json_int_t)t->rows_active, "waiting",
                     (json_int_t)t->rows_waiting, "queue_limit", (json_int_t)s->queue, "per_key_rows",
                     (json_int_t)s->o.per_key_rows, "rejected_total",
                     (json_int_t)m->rejected_queue + (json_int_t)m->rejected_context, "clamped_total",
                     (json_int_t)m->clamped, "est_wait_s", esp_wait_estimate(s));
}

static json_t *scheduler_json(const struct esp_server *s, const esp_stats *t)
{
    uint32_t prefill = 0, decode = 0;

    for (uint32_t i = 0; i < s->rows; i++)
        if (s->slots[i].choice)
            *(s->slots[i].choice->first_at > 0 ? &decode : &prefill) += 1;
    return json_pack("{s:I,s:I,s:f,s:I,s:I,s:I,s:f,s:f,s:I,s:f,s:f}", "rows_prefill", (json_int_t)prefill,
                     "rows_decode", (json_int_t)decode, "tokens_per_step",
                     t->steps ? (double)(t->prompt_tokens + t->generated_tokens) / (double)t->steps : 0.0,
                     "steps_total", (json_int_t)t->steps, "prompt_tokens", (json_int_t)t->prompt_tokens,
                     "generated_tokens", (json_int_t)t->generated_tokens, "prompt_seconds", t->prompt_seconds,
                     "generate_seconds", t->generate_seconds, "preemptions", (json_int_t)t->preemptions,
                     "prefill_tps_1m", esp_minute_rate(&s->minute, t->prompt_tokens, 0), "decode_tps_1m",
                     esp_minute_rate(&s->minute, t->generated_tokens, 1));
}

void esp_get_stats(struct esp_call *c)
{
    struct esp_server *s = c->s;
    struct esp_replay_counts replay;
    uint64_t entries, bytes, written, lost, diag_entries, diag_bytes;
    esp_stats t;
    json_t *v;

    esp_life_stats(s, &t);
    esp_content_count(s->content, &written, &lost);
    esp_store_count(s->store, &entries, &bytes);
    esp_diag_count(s->diag, &diag_entries, &diag_bytes);
    esp_replay_count(s->replay, &replay);
    v = json_pack(
        "{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:{s:I,s:I},s:{s:I,s:I},s:{s:I,s:I,s:I},s:{s:I,s:I},s:{s:O},s:O}",
        "server", server_json(s), "memory", memory_json(s, &t), "admission", admission_json(s, &t),
        "scheduler", scheduler_json(s, &t), "cache", cache_json(s, &t), "spec", spec_json(&t), "adapters",
        esp_mounts_list(s), "responses", "entries", (json_int_t)entries, "bytes", (json_int_t)bytes, "diag",
        "entries", (json_int_t)diag_entries, "bytes", (json_int_t)diag_bytes, "replay", "entries",
        (json_int_t)replay.entries, "bytes", (json_int_t)replay.bytes, "hits", (json_int_t)replay.hits,
        "content_log", "written", (json_int_t)written, "lost", (json_int_t)lost, "errors", "by_code",
        s->errors, "recent", s->recent);
    esp_reply_json(c, 200, v);
}

void esp_post_cancel(struct esp_call *c)
{
    struct esp_fields f;
    const char *id = NULL;

    esp_fields_init(&f, c->body, "", &c->e);
    if (!esp_field_string(&f, "id", &id) && !c->e.http)
        esp_api_fail(&c->e, "missing_field", "id", "id: missing; the x-request-id of a request is needed");
    if (c->e.http)
        return;
    esp_reply_json(c, 200, json_pack("{s:s,s:b}", "id", id, "cancelled", esp_jobs_cancel_id(c->s, id)));
}

void esp_post_embeddings(struct esp_call *c)
{
    esp_api_fail(&c->e, "not_an_embedding_model", "model", "%s declares no pooling; it gives no embeddings",
                 c->s->o.model_id);
}

void esp_post_later(struct esp_call *c)
{
    esp_api_fail(&c->e, "not_implemented", NULL, "%s is not in this version", c->r->head.path);
}
