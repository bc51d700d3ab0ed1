/*
 * serve: flags to the server's options, the memory that its rows and cache take, and the block that says it
 * is ready. The server itself is the room serve.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "serve/serve.h"

#include "program/machine.h"
#include "program/output.h"
#include "program/running.h"
#include "program/sandbox.h"
#include "program/session.h"

enum { MIN_CONTEXT = 4096, MAX_CONFIG = 1 << 20, MIN_SEQS = 16, PAGE = 256, MAX_CHECKPOINTS = 256 };
#define HOST_MARGIN (UINT64_C(2) << 30) /* left to the system and the tokenizer's caches */

struct serving {
    const struct esp_options *opt;
    struct esp_session session;
    struct esp_serve_opts o;
    esp_memory_plan plan;
    char *config; /* text of the configuration file */
    char id[256];
    char fingerprint[64];
    char url[300];
    esp_error sandbox; /* why the second step failed, and the server ends */
    bool stop;
};

static volatile sig_atomic_t hangup_seen;

static void on_hangup(int sig)
{
    (void)sig;
    hangup_seen = 1;
}

/* ---- options ---- */

/* Values of a repeatable flag, each of which may be a comma list. */
static esp_status take_list(struct serving *v, enum esp_opt_id id, const char **out, size_t cap, size_t *n,
                            esp_error *err)
{
    const struct esp_opt_value *value = &v->opt->v[id];

    for (size_t i = 0; i < value->n; i++) {
        const char *at = value->list[i];

        while (*at) {
            const size_t len = strcspn(at, ",");
            char *copy;

            if (*n == cap)
                return esp_fail(err, ESP_EINVAL, "--%s: more than %zu values", esp_opt_get(id)->name, cap);
            if (len) {
                copy = esp_strndup(at, len); /* lives as long as the process: the server keeps it */
                if (!copy)
                    return esp_fail(err, ESP_ENOMEM, "no memory for --%s", esp_opt_get(id)->name);
                out[(*n)++] = copy;
            }
            at += len + (at[len] == ',');
        }
    }
    return ESP_OK;
}

static float given_or_nan(const struct esp_opt_value *v)
{
    return v->given ? (float)v->f : NAN;
}

static void take_answers(struct esp_serve_opts *o, const struct esp_opt_value *v)
{
    static const enum esp_serve_thinking thinking[] = {ESP_THINKING_ON, ESP_THINKING_OFF, ESP_THINKING_MODEL};

    o->sampling = (struct esp_serve_sampling){
        .temperature = given_or_nan(&v[OPT_TEMPERATURE]),
        .top_p = given_or_nan(&v[OPT_TOP_P]),
        .min_p = given_or_nan(&v[OPT_MIN_P]),
        .repetition_penalty = given_or_nan(&v[OPT_REPEAT_PENALTY]),
        .presence_penalty = given_or_nan(&v[OPT_PRESENCE_PENALTY]),
        .frequency_penalty = given_or_nan(&v[OPT_FREQUENCY_PENALTY]),
        .top_k = v[OPT_TOP_K].given ? (int32_t)v[OPT_TOP_K].i : -2,
    };
    o->max_tokens = (uint64_t)v[OPT_MAX_TOKENS].i;
    o->thinking = thinking[v[OPT_THINKING].i];
    o->messages_thinking_model = v[OPT_MESSAGES_THINKING].i == 1;
    o->thinking_budget = v[OPT_THINKING_BUDGET].i;
    o->stable_history = v[OPT_HISTORY].i == 1;
    o->text_in_thinking = v[OPT_TOOL_IN_THINKING].i == 1;
    o->late_system_error = v[OPT_LATE_SYSTEM].i == 1;
    o->keep_attribution = !v[OPT_STRIP_ATTRIBUTION].on;
    o->response_bytes = v[OPT_RESPONSE_STORE].size;
    o->response_ttl = v[OPT_RESPONSE_TTL].f;
    o->response_dir = v[OPT_RESPONSE_DIR].s;
    o->replay_entries = (uint32_t)v[OPT_REPLAY_ENTRIES].i;
    o->replay_bytes = v[OPT_REPLAY_BYTES].size;
    o->strict_max_tokens = v[OPT_STRICT_MAX_TOKENS].on;
}

static esp_status take_network(struct serving *s, esp_error *err)
{
    struct esp_serve_opts *o = &s->o;
    const struct esp_opt_value *v = s->opt->v;

    ESP_TRY(take_list(s, OPT_HOST, o->hosts, ESP_SERVE_MAX_HOSTS, &o->n_host, err));
    ESP_TRY(take_list(s, OPT_ALLOWED_HOSTS, o->allowed_hosts, ESP_SERVE_MAX_NAMES, &o->n_allowed_host, err));
    ESP_TRY(take_list(s, OPT_CORS_ORIGINS, o->cors_origins, ESP_SERVE_MAX_NAMES, &o->n_cors, err));
    for (size_t i = 0; i < v[OPT_ADAPTER].n && i < ESP_SERVE_MAX_NAMES; i++)
        o->adapters[o->n_adapter++] = v[OPT_ADAPTER].list[i];
    o->adapter_dir = v[OPT_ADAPTER_DIR].s;
    ESP_TRY(take_list(s, OPT_ALIAS, o->aliases, ESP_SERVE_MAX_NAMES, &o->n_alias, err));
    o->port = (uint16_t)v[OPT_PORT].i;
    o->api_prefix = v[OPT_API_PREFIX].s;
    if (o->api_prefix && (o->api_prefix[0] != '/' || o->api_prefix[strlen(o->api_prefix) - 1] == '/'))
        return esp_fail(err, ESP_EINVAL, "--api-prefix: '%s' must begin with / and not end with it",
                        o->api_prefix);
    o->backlog = (uint32_t)v[OPT_BACKLOG].i;
    o->max_connections = (uint32_t)v[OPT_MAX_CONNECTIONS].i;
    o->insecure = v[OPT_INSECURE].on;
    o->api_key = v[OPT_API_KEY].s;
    o->api_key_file = v[OPT_API_KEY_FILE].s;
    o->strict_model = v[OPT_MODEL_CHECK].i == 1;
    o->no_metrics = !v[OPT_METRICS].on;
    o->no_page = !v[OPT_UI].on;
    o->metrics_public = v[OPT_METRICS_PUBLIC].on;
    o->log_json = v[OPT_LOG_FORMAT].i == 1;
    return ESP_OK;
}

static void take_limits(struct esp_serve_opts *o, const struct esp_opt_value *v)
{
    o->max_body = v[OPT_MAX_BODY].size;
    o->max_messages = (uint32_t)v[OPT_MAX_MESSAGES].i;
    o->max_prompt_bytes = v[OPT_MAX_PROMPT_BYTES].size;
    o->stream_buffer = v[OPT_STREAM_BUFFER].size;
    o->header_timeout = v[OPT_HEADER_TIMEOUT].f;
    o->body_timeout = v[OPT_BODY_TIMEOUT].f;
    o->write_timeout = v[OPT_WRITE_TIMEOUT].f;
    o->keepalive_timeout = v[OPT_KEEPALIVE_TIMEOUT].f;
    o->request_timeout = v[OPT_REQUEST_TIMEOUT].f;
    o->shutdown_timeout = v[OPT_SHUTDOWN_TIMEOUT].f;
    o->queue_timeout = v[OPT_QUEUE_TIMEOUT].f;
    o->sse_ping = v[OPT_SSE_PING].f;
}

/* The last part of the path, without slashes at its end. */
static void name_model(struct serving *s)
{
    const char *path = s->opt->v[OPT_MODEL].given && s->opt->v[OPT_MODEL].s ? s->opt->v[OPT_MODEL].s
                       : s->opt->n_args                                     ? s->opt->args[0]
                                                                            : "model";
    size_t len = strlen(path), from;

    if (s->opt->n_args && s->opt->v[OPT_MODEL].from_env)
        path = s->opt->args[0];
    while (len > 1 && path[len - 1] == '/')
        len--;
    for (from = len; from > 0 && path[from - 1] != '/'; from--)
        ;
    snprintf(s->id, sizeof s->id, "%.*s", (int)(len - from), path + from);
    s->o.model_id = s->opt->v[OPT_MODEL_ID].given ? s->opt->v[OPT_MODEL_ID].s : s->id;
}

/* ---- memory ---- */

static esp_status plan(struct serving *s, uint32_t context, uint64_t kv_tokens, esp_error *err)
{
    s->session.engine_opts.context = context;
    s->session.engine_opts.kv_tokens = kv_tokens;
    return esp_engine_plan(s->session.model, &s->session.engine_opts, &s->plan, err);
}

static uint64_t budget_of(const struct esp_opt_value *flag)
{
    struct esp_machine machine;

    if (flag->given)
        return flag->size;
    esp_machine_read(&machine);
    return machine.ram_available > 2 * HOST_MARGIN ? machine.ram_available - HOST_MARGIN
                                                   : machine.ram_available;
}

static uint64_t in_pages(uint64_t tokens)
{
    return (tokens + PAGE - 1) / PAGE * PAGE;
}

/*
 * Rows, context and pages that fit: every row with a full context if memory allows, else fewer pages, shared
 * by need; and when not even one context fits, a shorter one, down to MIN_CONTEXT.
 */
static esp_status fit(struct serving *s, esp_error *err)
{
    const struct esp_opt_value *v = s->opt->v;
    esp_engine_opts *e = &s->session.engine_opts;
    const uint32_t rows = (uint32_t)v[OPT_PARALLEL].i, most = s->session.info.context;
    uint32_t context = e->context ? e->context : most < 32768 ? most : 32768;
    const uint64_t budget = budget_of(&v[OPT_MEMORY_BUDGET]);
    uint64_t kv = in_pages(context) * rows;
    char need[32], have[32];

    e->memory_budget = 0;
    ESP_TRY(plan(s, context, kv, err));
    if (budget == 0)
        return ESP_OK;
    while (s->plan.total > budget && kv > in_pages(context)) {
        kv = in_pages(kv - kv / 16 - 1);
        if (kv < in_pages(context) || kv / PAGE < 16)
            kv = in_pages(context);
        ESP_TRY(plan(s, context, kv, err));
    }
    while (s->plan.total > budget && !v[OPT_CTX].given && context > MIN_CONTEXT) {
        context = context / 2 > MIN_CONTEXT ? context / 2 : MIN_CONTEXT;
        ESP_TRY(plan(s, context, in_pages(context), err));
    }
    if (s->plan.total <= budget)
        return ESP_OK;
    return esp_fail(err, ESP_ENOFIT,
                    "%s are needed for %u tokens and %u rows, %s are there; lower --ctx or --parallel",
                    esp_format_bytes(need, sizeof need, (double)s->plan.total), context, rows,
                    esp_format_bytes(have, sizeof have, (double)budget));
}

static esp_status engine_opts(struct serving *s, esp_error *err)
{
    const struct esp_opt_value *v = s->opt->v;
    esp_engine_opts *e = &s->session.engine_opts;
    esp_memory_plan one;
    uint64_t n;

    esp_session_engine_opts(&s->session);
    e->memory_budget = 0;
    e->rows = (uint32_t)v[OPT_PARALLEL].i;
    e->max_seqs = e->rows > MIN_SEQS ? e->rows : MIN_SEQS; /* answers of one request */
    e->queue = (uint32_t)v[OPT_QUEUE].i;
    e->max_stall_ms = (uint32_t)v[OPT_MAX_STALL].i;
    e->admission = v[OPT_ADMISSION].i ? ESP_ADMISSION_EXPECTED : ESP_ADMISSION_WORST;
    e->snapshots = e->rows;
    if (v[OPT_ADAPTER].given || v[OPT_ADAPTER_DIR].given)
        e->max_rank = (uint32_t)v[OPT_MAX_RANK].i;
    ESP_TRY(esp_engine_plan(s->session.model, e, &one, err));
    n = one.state_per_seq ? v[OPT_CACHE_RAM].size / one.state_per_seq : 0;
    e->checkpoints = (uint32_t)(n < MAX_CHECKPOINTS ? n : MAX_CHECKPOINTS);
    e->checkpoint_every = (uint32_t)v[OPT_CHECKPOINT_EVERY].i;
    e->checkpoints_per_path = (uint32_t)v[OPT_CHECKPOINTS_PER_PATH].i;
    if (e->checkpoints) {
        e->cache_dir = v[OPT_CACHE_DIR].s;
        e->cache_disk = v[OPT_CACHE_DISK].size;
    }
    return fit(s, err);
}

static void make_fingerprint(struct serving *s)
{
    const esp_model_info *m = &s->session.info;
    uint64_t h = esp_hash(m->weights, strlen(m->weights), m->n_params);

    h = esp_hash(s->session.path, strlen(s->session.path), h ^ m->weight_bytes);
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%s_%012llx_%s", esp_version(),
             (unsigned long long)(h & 0xffffffffffffU), s->session.engine_opts.act);
}

/* ---- called by the server ---- */

static esp_status load(void *user, struct esp_serve_engine *out, esp_error *err)
{
    struct serving *s = user;

    ESP_TRY(esp_session_open(&s->session, s->opt, err));
    ESP_TRY(engine_opts(s, err));
    ESP_TRY(esp_session_engine(&s->session, err));
    make_fingerprint(s);
    *out = (struct esp_serve_engine){.model = s->session.model,
                                     .engine = s->session.engine,
                                     .context = s->session.engine_opts.context,
                                     .rows = s->session.engine_opts.rows,
                                     .queue = s->session.engine_opts.queue,
                                     .kv_tokens = s->session.engine_opts.kv_tokens};
    return ESP_OK;
}

static unsigned poll_signals(void *user)
{
    const struct serving *s = user;
    unsigned what = esp_interrupted() || s->stop ? ESP_SERVE_STOP : 0;

    if (hangup_seen) {
        hangup_seen = 0;
        what |= ESP_SERVE_RELOAD;
    }
    return what;
}

static void listening(void *user, const char *url)
{
    struct serving *s = user;

    if (!s->url[0])
        snprintf(s->url, sizeof s->url, "%s", url);
    esp_say_info("listening on %s", url);
}

static json_t *memory_json(const esp_memory_plan *p)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "weights", (json_int_t)p->weights, "kv",
                     (json_int_t)p->kv_pool, "states", (json_int_t)p->state_pool, "scratch",
                     (json_int_t)p->scratch, "fixed", (json_int_t)p->fixed, "total", (json_int_t)p->total);
}

static void print_ready(const struct serving *s)
{
    const esp_engine_opts *e = &s->session.engine_opts;
    char weights[32], kv[32], states[32], all[32];

    if (esp_out_is_json()) {
        esp_out_json(json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:o}", "url", s->url, "model", s->o.model_id,
                               "context", (json_int_t)e->context, "rows", (json_int_t)e->rows, "queue",
                               (json_int_t)e->queue, "checkpoints", (json_int_t)e->checkpoints, "memory",
                               memory_json(&s->plan)));
        esp_out_flush();
        return;
    }
    esp_out_printf(
        "url      %s\nmodel    %s (%s, %s)\ncontext  %u tokens, %llu in all rows\nrows     %u, %u may wait\n"
        "memory   %s: weights %s, keys and values %s, states %s\ncache    %u checkpoints%s%s\n",
        s->url, s->o.model_id, s->session.info.name, s->session.info.weights, e->context,
        (unsigned long long)e->kv_tokens, e->rows, e->queue,
        esp_format_bytes(all, sizeof all, (double)s->plan.total),
        esp_format_bytes(weights, sizeof weights, (double)s->plan.weights),
        esp_format_bytes(kv, sizeof kv, (double)s->plan.kv_pool),
        esp_format_bytes(states, sizeof states, (double)s->plan.state_pool), e->checkpoints,
        e->cache_dir ? ", files in " : "", e->cache_dir ? e->cache_dir : "");
    esp_out_flush();
}

static void ready(void *user)
{
    struct serving *s = user;

    /* All threads are there and all addresses are listened on. */
    if (s->opt->v[OPT_SECCOMP].on && esp_sandbox_enter(ESP_SANDBOX_SERVE, &s->sandbox) != ESP_OK) {
        s->stop = true;
        return;
    }
    print_ready(s);
    esp_running_add(json_pack("{s:s,s:s,s:I,s:I}", "url", s->url, "model", s->o.model_id, "context",
                              (json_int_t)s->session.engine_opts.context, "rows",
                              (json_int_t)s->session.engine_opts.rows));
}

static void log_line(void *user, const char *line)
{
    (void)user;
    if (esp_out_verbosity() >= 0)
        fprintf(stderr, "%s\n", line);
}

/* ---- dry run ---- */

static json_t *setting(const struct esp_opt *o, const struct esp_opt_value *v)
{
    json_t *list;

    switch (o->type) {
    case OPT_TYPE_BOOL:
        return json_boolean(v->on);
    case OPT_TYPE_COUNT:
    case OPT_TYPE_INT:
        return json_integer(v->i);
    case OPT_TYPE_FLOAT:
    case OPT_TYPE_DURATION:
        return v->given || o->def ? json_real(v->f) : json_null();
    case OPT_TYPE_SIZE:
        return v->given || o->def ? json_integer((json_int_t)v->size) : json_null();
    case OPT_TYPE_STRINGS:
        list = json_array();
        for (size_t i = 0; i < v->n; i++)
            json_array_append_new(list, json_string(v->list[i]));
        return list;
    default:
        return v->s ? json_string(v->s) : json_null();
    }
}

static const char *source_of(const struct esp_opt_value *v)
{
    return !v->given ? "default" : v->from_env ? "environment" : v->from_file ? "file" : "flag";
}

static int dry_run(struct serving *s)
{
    json_t *settings = json_object(), *v;
    esp_error err = {0};
    esp_status status = esp_session_open(&s->session, s->opt, &err);
    const char *key;

    if (status == ESP_OK)
        status = engine_opts(s, &err);
    for (size_t i = 0; i < N_OPTS; i++) {
        const struct esp_opt *o = esp_opt_get((enum esp_opt_id)i);
        const bool secret = o->id == OPT_API_KEY && s->opt->v[i].given;

        if (esp_opt_for(o, s->opt->verb) && o->id != OPT_HELP)
            json_object_set_new(settings, o->name,
                                json_pack("{s:o,s:s}", "value",
                                          secret ? json_string("...") : setting(o, &s->opt->v[i]), "source",
                                          source_of(&s->opt->v[i])));
    }
    if (status != ESP_OK) {
        json_decref(settings);
        return esp_report(status, &err);
    }
    if (esp_out_is_json()) {
        esp_out_json(json_pack("{s:o,s:s,s:I,s:I,s:o}", "settings", settings, "model", s->o.model_id,
                               "context", (json_int_t)s->session.engine_opts.context, "rows",
                               (json_int_t)s->session.engine_opts.rows, "memory", memory_json(&s->plan)));
        return 0;
    }
    json_object_foreach(settings, key, v)
    {
        char *text = json_dumps(json_object_get(v, "value"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));

        esp_out_printf("%-26s %-24s %s\n", key, text ? text : "?",
                       json_string_value(json_object_get(v, "source")));
        free(text);
    }
    json_decref(settings);
    print_ready(s);
    return 0;
}

/* ---- the verb ---- */

static char *default_config(void)
{
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char path[4096];

    if (base && *base)
        snprintf(path, sizeof path, "%s/espalier/espalier.conf", base);
    else if (home && *home)
        snprintf(path, sizeof path, "%s/.config/espalier/espalier.conf", home);
    else
        return NULL;
    return access(path, R_OK) == 0 ? esp_strndup(path, strlen(path)) : NULL;
}

static esp_status read_config(struct serving *s, struct esp_options *o, esp_error *err)
{
    char *fallback = o->v[OPT_CONFIG].given ? NULL : default_config();
    const char *path = fallback ? fallback : o->v[OPT_CONFIG].s;
    esp_status status = ESP_OK;
    size_t len;

    if (path) {
        status = esp_read_file(&s->config, &len, path, MAX_CONFIG, err);
        if (status == ESP_OK)
            status = esp_options_file(o, s->config, path, o->v[OPT_PROFILE].s, err);
    } else if (o->v[OPT_PROFILE].given) {
        status = esp_fail(err, ESP_EINVAL, "--profile without a configuration file; give --config FILE");
    }
    esp_free(fallback);
    return status;
}

static esp_status write_pid(const char *path, esp_error *err)
{
    FILE *f = path ? fopen(path, "w") : NULL;

    if (!path)
        return ESP_OK;
    if (!f || fprintf(f, "%ld\n", (long)getpid()) < 0 || fclose(f) != 0)
        return esp_fail(err, ESP_EIO, "%s: the process id cannot be written", path);
    return ESP_OK;
}

/* What others can make this process do is bounded by what it may do. */
static esp_status restrict_process(const struct serving *s, esp_error *err)
{
    if (geteuid() == 0)
        esp_say_warn(
            "running as root: a server needs no privileges; give it a user of its own (doc/deploy.md)");
    return s->opt->v[OPT_SECCOMP].on ? esp_sandbox_enter(ESP_SANDBOX_START, err) : ESP_OK;
}

static int run(struct serving *s, struct esp_options *o)
{
    const char *pidfile;
    esp_error err = {0};
    esp_status status = read_config(s, o, &err);

    if (status != ESP_OK)
        return esp_report(status, &err);
    esp_serve_defaults(&s->o);
    take_limits(&s->o, o->v);
    take_answers(&s->o, o->v);
    name_model(s);
    status = take_network(s, &err);
    if (status != ESP_OK)
        return esp_report(status, &err);
    if (o->v[OPT_DRY_RUN].on)
        return dry_run(s);
    s->o.user = s;
    s->o.load = load;
    s->o.poll = poll_signals;
    s->o.listening = listening;
    s->o.ready = ready;
    s->o.log = log_line;
    s->o.kv = o->v[OPT_KV].s;
    s->o.fingerprint = s->fingerprint;
    pidfile = o->v[OPT_PIDFILE].s;
    status = write_pid(pidfile, &err);
    if (status == ESP_OK)
        status = restrict_process(s, &err);
    if (status == ESP_OK)
        status = esp_serve(&s->o, &err);
    if (status == ESP_OK && s->stop) {
        err = s->sandbox;
        status = err.status;
    }
    esp_running_remove();
    if (pidfile)
        unlink(pidfile);
    if (status == ESP_ECANCELLED && esp_interrupted())
        status = ESP_OK; /* stopped while loading */
    return status == ESP_OK ? ESP_EXIT_OK : esp_report(status, &err);
}

int esp_verb_serve(const struct esp_options *o)
{
    struct serving *s = calloc(1, sizeof *s);
    struct esp_options *with_file = calloc(1, sizeof *with_file);
    struct sigaction a = {.sa_handler = on_hangup};
    int code = ESP_EXIT_FAILURE;

    if (s && with_file) {
        *with_file = *o;
        s->opt = with_file;
        sigaction(SIGHUP, &a, NULL);
        code = run(s, with_file);
        esp_session_close(&s->session);
        esp_free(s->config);
    }
    free(with_file);
    free(s);
    return code;
}
