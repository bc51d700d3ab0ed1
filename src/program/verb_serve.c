/*
 * serve: flags to the server's options, the memory that its rows and cache take, and the block that says it
 * is ready. The server itself is the room serve.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "program/cpu_mask.h"
#include "program/device.h"
#include "program/fit.h"
#include "program/isolate.h"
#include "program/manager.h"
#include "program/output.h"
#include "program/running.h"
#include "program/sandbox.h"
#include "program/serve_flags.h"
#include "program/session.h"
#include "serve/guard.h"

/* What a server takes beside the engine: 11.6 MiB with one row, 12 with four, 13 with sixteen were measured
 * (demo model, full rows, x86-64 Debian 12). */
enum { SERVER_BYTES = 12 << 20, ROW_BYTES = 128 << 10 };
enum { MIN_SEQS = 16, PAGE = 256, MAX_CHECKPOINTS = 256 };

struct serving {
    const struct esp_options *opt;
    struct esp_session session;
    struct esp_serve_opts o;
    esp_memory_plan plan;
    uint64_t budget;
    json_t *report; /* of memory, for GET /fit; NULL: none */
    char *config;   /* text of the configuration file */
    char id[256];
    char fingerprint[64];
    char url[300];
    esp_error sandbox; /* why the second step failed, and the server ends */
    bool stop;
    bool again; /* one before us died: whoever started the server knows already that it is ready */
};

static volatile sig_atomic_t hangup_seen;

static void on_hangup(int sig)
{
    (void)sig;
    hangup_seen = 1;
    esp_isolate_hangup();
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

/* What may be used: as said, or what is free but for a margin: of the machine's memory for the system, of a
 * device's for what else draws or computes there. */
static uint64_t budget_of(const struct serving *s)
{
    const struct esp_opt_value *v = s->opt->v;
    const uint64_t room = esp_device_room(&s->session),
                   margin = s->session.about.memory ? v[OPT_FIT_MARGIN].size / 2 : v[OPT_FIT_MARGIN].size;

    if (esp_placement_budget(&s->session))
        return esp_placement_budget(&s->session);
    return room / 2 > margin ? room - margin : room;
}

static uint64_t in_pages(uint64_t tokens)
{
    return (tokens + PAGE - 1) / PAGE * PAGE;
}

/* What a model beside a device with memory of its own takes of the machine's, where that has a budget. */
static esp_status host_fits(const struct serving *s, esp_error *err)
{
    const uint64_t budget = esp_placement_host_budget(&s->session);

    if (s->session.about.memory == 0 || budget == 0 || s->plan.host <= budget)
        return ESP_OK;
    return esp_fail(err, ESP_ENOFIT,
                    "%llu bytes of the machine's memory are needed, --memory-budget gives it %llu",
                    (unsigned long long)s->plan.host, (unsigned long long)budget);
}

/* Fewer pages than every row could fill, and then a context shorter than *context. */
static esp_status shrink(struct serving *s, uint32_t *context, uint64_t kv, esp_error *err)
{
    const struct esp_opt_value *v = s->opt->v;
    const uint32_t least = (uint32_t)v[OPT_MIN_CTX].i;

    while (s->plan.total > s->budget && kv > in_pages(*context)) {
        kv = in_pages(kv - kv / 16 - 1);
        if (kv < in_pages(*context) || kv / PAGE < 16)
            kv = in_pages(*context);
        ESP_TRY(plan(s, *context, kv, err));
    }
    while (s->plan.total > s->budget && !v[OPT_CTX].given && *context > least) {
        *context = *context / 2 > least ? *context / 2 : least;
        ESP_TRY(plan(s, *context, in_pages(*context), err));
    }
    return ESP_OK;
}

/*
 * Rows, context and pages that fit: every row with a full context if memory allows, else fewer pages, shared
 * by need; and when not even one context fits, a shorter one, down to --min-ctx.
 */
static esp_status fit(struct serving *s, esp_error *err)
{
    const struct esp_opt_value *v = s->opt->v;
    esp_engine_opts *e = &s->session.engine_opts;
    const uint32_t rows = (uint32_t)v[OPT_PARALLEL].i, most = s->session.info.context;
    uint32_t context = e->context ? e->context : most < 32768 ? most : 32768;
    const uint64_t budget = s->budget = budget_of(s);
    const bool adapts = v[OPT_FIT].i == 0;
    const uint64_t kv = in_pages(context) * rows;
    char need[32], have[32];

    e->memory_budget = 0;
    ESP_TRY(plan(s, context, kv, err));
    if (budget == 0)
        return ESP_OK;
    if (adapts)
        ESP_TRY(shrink(s, &context, kv, err));
    if (s->plan.total <= budget)
        return host_fits(s, err);
    return esp_fail(
        err, ESP_ENOFIT, "%s are needed for %u tokens and %u rows, %s are there; lower --ctx or --parallel%s",
        esp_format_bytes(need, sizeof need, (double)s->plan.total), context, rows,
        esp_format_bytes(have, sizeof have, (double)budget), adapts ? "" : ", or leave --fit off out");
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
    e->aging_ms = (uint32_t)(v[OPT_PRIORITY_AGING].f * 1000);
    e->admission = v[OPT_ADMISSION].i ? ESP_ADMISSION_EXPECTED : ESP_ADMISSION_WORST;
    e->snapshots = e->rows;
    e->program_bytes = SERVER_BYTES + (uint64_t)e->rows * ROW_BYTES;
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
    if (s->opt->v[OPT_ROPE_SCALING].given)
        h = esp_hash(s->opt->v[OPT_ROPE_SCALING].s, strlen(s->opt->v[OPT_ROPE_SCALING].s), h);
    if (s->opt->v[OPT_TOKENIZER].given)
        h = esp_hash(s->opt->v[OPT_TOKENIZER].s, strlen(s->opt->v[OPT_TOKENIZER].s), h);
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%s_%012llx_%s%s", esp_version(),
             (unsigned long long)(h & 0xffffffffffffU), s->session.engine_opts.act,
             s->session.about.memory ? "_cuda" : "");
}

/* ---- called by the server ---- */

/* The report of what was just planned; without it GET /fit says that there is none. */
static void make_report(struct serving *s)
{
    struct esp_fit f = {.session = &s->session,
                        .plan = s->plan,
                        .ctx = s->session.engine_opts.context,
                        .rows = s->session.engine_opts.rows,
                        .budget = s->budget};

    esp_machine_read(&f.machine);
    if (s->report) /* of before a sleep, and may be being read */
        return;
    if (esp_fit_search(&f, NULL) == ESP_OK)
        s->report = esp_fit_document(&f);
}

static esp_status load(void *user, struct esp_serve_engine *out, esp_error *err)
{
    struct serving *s = user;

    ESP_TRY(esp_session_open(&s->session, s->opt, err));
    ESP_TRY(engine_opts(s, err));
    ESP_TRY(esp_session_engine(&s->session, err));
    if (!s->fingerprint[0])
        make_fingerprint(s);
    make_report(s);
    *out = (struct esp_serve_engine){.model = s->session.model,
                                     .engine = s->session.engine,
                                     .context = s->session.engine_opts.context,
                                     .rows = s->session.engine_opts.rows,
                                     .queue = s->session.engine_opts.queue,
                                     .kv_tokens = s->session.engine_opts.kv_tokens,
                                     .plan = s->plan,
                                     .budget = s->budget,
                                     .device = esp_device_id(&s->session)};
    return ESP_OK;
}

static void unload(void *user)
{
    struct serving *s = user;

    esp_session_close(&s->session);
    malloc_trim(0); /* the system gets back what the heap holds for later */
}

static json_t *fit_report(void *user)
{
    struct serving *s = user;

    return json_incref(s->report);
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
        esp_out_json(json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:o}", "url", s->url, "model", s->o.model_id,
                               "device", esp_device_id(&s->session), "context", (json_int_t)e->context,
                               "rows", (json_int_t)e->rows, "queue", (json_int_t)e->queue, "checkpoints",
                               (json_int_t)e->checkpoints, "memory", memory_json(&s->plan)));
        esp_out_flush();
        return;
    }
    esp_out_printf("url      %s\nmodel    %s (%s, %s)\ndevice   %s\ncontext  %u tokens, %llu in all "
                   "rows\nrows     %u, %u may wait\n"
                   "memory   %s: weights %s, keys and values %s, states %s\ncache    %u checkpoints%s%s\n",
                   s->url, s->o.model_id, s->session.info.name, s->session.info.weights,
                   s->session.about.name, e->context, (unsigned long long)e->kv_tokens, e->rows, e->queue,
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
    const int manager = s->again ? -1 : esp_manager_open();

    /* All threads are there and all addresses are listened on. */
    if (s->opt->v[OPT_SECCOMP].on && esp_sandbox_enter(ESP_SANDBOX_SERVE, &s->sandbox) != ESP_OK) {
        s->stop = true;
        return;
    }
    print_ready(s);
    if (s->opt->v[OPT_READY_FD].given && !s->again) {
        const int fd = (int)s->opt->v[OPT_READY_FD].i;

        if (write(fd, "ready\n", 6) != 6)
            esp_say_warn("--ready-fd %d: nothing can be written there", fd);
        close(fd);
    }
    esp_manager_tell(manager, "READY=1");
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
    case OPT_TYPE_SIZES:
        return v->n == 0 && v->size ? json_integer((json_int_t)v->size)
               : v->s               ? json_string(v->s)
                                    : json_null();
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

/* Limits and log level as the configuration file has them now. */
static esp_status reload(void *user, struct esp_serve_opts *out, esp_error *err)
{
    return esp_serve_config_limits(out, ((const struct serving *)user)->opt, err);
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

/* A port that one of our own has: say so. */
static void name_holder(const struct esp_options *o, esp_error *err)
{
    json_t *list, *v;
    size_t i;

    if (err->status != ESP_EIO || strncmp(err->message, "cannot listen", 13) != 0)
        return;
    list = esp_running_list();
    json_array_foreach(list, i, v)
    {
        const char *url = json_string_value(json_object_get(v, "url")),
                   *port = url ? strrchr(url, ':') : NULL;
        const size_t used = strlen(err->message);

        if (port && strtol(port + 1, NULL, 10) == o->v[OPT_PORT].i) {
            snprintf(err->message + used, sizeof err->message - used,
                     " (process %lld, an espalier server, has it; 'espalier stop %s' ends that)",
                     (long long)json_integer_value(json_object_get(v, "pid")), port + 1);
            break;
        }
    }
    json_decref(list);
}

static void take_callbacks(struct serving *s, const struct esp_options *o)
{
    s->o.user = s;
    s->o.load = load;
    s->o.unload = unload;
    s->o.poll = poll_signals;
    s->o.reload = reload;
    s->o.commit = esp_program_commit();
    s->o.listening = listening;
    s->o.ready = ready;
    s->o.fit = fit_report;
    s->o.log = log_line;
    s->o.kv = o->v[OPT_KV].s;
    s->o.state = o->v[OPT_STATE].s;
    s->o.fingerprint = s->fingerprint;
}

/* In the process that computes, which may be the only one: until the server has ended. */
static esp_status serve(struct serving *s, const struct esp_options *o, esp_error *err)
{
    esp_status status = restrict_process(s, err);

    if (status == ESP_OK)
        status = esp_serve(&s->o, err);
    esp_guard_close(s->o.guard);
    name_holder(o, err);
    if (status == ESP_OK && s->stop) {
        *err = s->sandbox;
        status = err->status;
    }
    esp_running_remove();
    if (status == ESP_ECANCELLED && esp_interrupted())
        status = ESP_OK; /* stopped while loading */
    return status;
}

/* The exit code; *parent: of the process that watches another one. */
static int serve_or_watch(struct serving *s, const struct esp_options *o, bool *parent)
{
    enum esp_isolated who = ESP_ISOLATE_CHILD;
    int code = ESP_EXIT_OK;
    esp_error err = {0};
    esp_status status = ESP_OK;

    if (o->v[OPT_ISOLATE].on)
        status = esp_isolate(&s->o, &who, &s->again, &code, &err);
    *parent = status != ESP_OK || who == ESP_ISOLATE_PARENT;
    if (status != ESP_OK)
        name_holder(o, &err);
    else if (who == ESP_ISOLATE_PARENT)
        return code;
    else
        status = serve(s, o, &err);
    return status == ESP_OK ? ESP_EXIT_OK : esp_report(status, &err);
}

static int run(struct serving *s, struct esp_options *o)
{
    bool parent = false;
    esp_error err = {0};
    esp_status status = esp_serve_config(o, &s->config, &err);
    int code;

    if (status != ESP_OK)
        return esp_report(status, &err);
    esp_serve_defaults(&s->o);
    name_model(s);
    status = esp_serve_flags(&s->o, o, &err);
    if (status == ESP_OK && o->v[OPT_CPU_MASK].given) /* before the loop: all threads are its children */
        status = esp_cpu_mask_set(o->v[OPT_CPU_MASK].s, &err);
    if (status == ESP_OK && o->v[OPT_DRY_RUN].on)
        return dry_run(s);
    take_callbacks(s, o);
    if (status == ESP_OK)
        status = esp_manager_sockets(&s->o, &err);
    if (status == ESP_OK)
        status = write_pid(o->v[OPT_PIDFILE].s, &err);
    if (status != ESP_OK)
        return esp_report(status, &err);
    code = serve_or_watch(s, o, &parent);
    if (o->v[OPT_PIDFILE].s && (parent || !o->v[OPT_ISOLATE].on))
        unlink(o->v[OPT_PIDFILE].s);
    return code;
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
        json_decref(s->report);
    }
    free(with_file);
    free(s);
    return code;
}
