/*
 * Opening what a verb needs. The library reports to the log hook set here; its messages go to standard error
 * by verbosity.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include "program/cpu_mask.h"
#include "program/device.h"
#include "program/machine.h"
#include "program/model_find.h"
#include "program/output.h"

static void on_log(void *user, esp_log_level level, const char *message)
{
    (void)user;
    if (level <= ESP_LOG_WARNING)
        esp_say_warn("%s", message);
    else if (level == ESP_LOG_INFO || esp_out_verbosity() > 1)
        esp_say_detail("%s", message);
}

static bool on_progress(void *user, const char *what, double fraction)
{
    struct esp_session *s = user;

    if (!s->progress.what)
        esp_progress_begin(&s->progress, "loading", 100, "%");
    (void)what;
    esp_progress_update(&s->progress, 100 * fraction);
    return !esp_interrupted();
}

/*
 * Whether the first argument is MODEL. Beside --model it is not. Beside ESPALIER_MODEL it is when no other
 * argument is possible, or when it names a model exactly: else it is what the verb works on.
 */
static bool first_is_model(const struct esp_options *opt)
{
    const struct esp_opt_value *m = &opt->v[OPT_MODEL];

    if (opt->n_args == 0 || !m->given)
        return opt->n_args != 0;
    return m->from_env && (opt->verb->most == 1 || esp_model_is(opt->args[0]));
}

const char *const *esp_session_args(const struct esp_options *opt, size_t *n)
{
    const size_t skip = first_is_model(opt);

    *n = opt->n_args - skip;
    return (const char *const *)opt->args + skip;
}

static const char *model_name(const struct esp_options *opt)
{
    const struct esp_opt_value *m = &opt->v[OPT_MODEL];

    if (first_is_model(opt))
        return opt->args[0];
    return m->given ? m->s : NULL;
}

/* Random weights are made in memory: refuse those that have no place before any is taken. */
static esp_status synthetic_fits(const struct esp_options *opt, const esp_model_opts *mo, esp_error *err)
{
    const struct esp_opt_value *budget = &opt->v[OPT_MEMORY_BUDGET];
    esp_model_opts shape = *mo;
    struct esp_machine machine;
    esp_model_info info;
    esp_model *m;
    uint64_t most;

    shape.shape_only = true;
    shape.progress = NULL;
    ESP_TRY(esp_model_synthetic(&m, opt->v[OPT_SYNTHETIC].s, opt->v[OPT_WEIGHTS].s, 1, &shape, err));
    esp_model_describe(m, &info);
    esp_model_close(m);
    esp_machine_read(&machine);
    most = budget->size ? budget->size : machine.ram_available;
    if (most == 0 || info.weight_bytes <= most)
        return ESP_OK;
    return esp_fail(err, ESP_ENOFIT, "the weights take %llu bytes, %s is %llu",
                    (unsigned long long)info.weight_bytes,
                    budget->size ? "the budget" : "the memory available", (unsigned long long)most);
}

static const char draft_prefix[] = "draft:";

/* The value of --spec, and behind draft: the model's name. */
static esp_status parse_spec(const struct esp_options *opt, esp_spec *kind, const char **draft,
                             esp_error *err)
{
    static const char *const names[] = {"off", "auto", "mtp", "ngram"}; /* in the order of esp_spec */
    const char *text = opt->v[OPT_SPEC].s;

    *draft = NULL;
    *kind = ESP_SPEC_OFF;
    if (!text || !esp_opt_for(esp_opt_get(OPT_SPEC), opt->verb))
        return ESP_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            *kind = (esp_spec)i;
            return ESP_OK;
        }
    }
    *kind = ESP_SPEC_DRAFT;
    *draft = text + sizeof draft_prefix - 1;
    if (strncmp(text, draft_prefix, sizeof draft_prefix - 1) == 0 && **draft)
        return ESP_OK;
    return esp_fail(err, ESP_EINVAL, "--spec: '%.200s' is not one of auto, off, mtp, ngram, draft:MODEL",
                    text);
}

/* name NULL: there is none. */
static esp_status open_draft(struct esp_session *s, const char *name, esp_model_opts mo, esp_error *err)
{
    char *path;
    esp_status status;

    if (!name)
        return ESP_OK;
    ESP_TRY(esp_model_find(&path, name, err));
    mo.chat_template_file = NULL; /* only its logits are of interest */
    mo.tokenizer_dir = mo.rope_scaling = NULL;
    mo.expand = NULL;
    mo.shape_only = false;
    status = esp_model_open(&s->draft, path, &mo, err);
    esp_free(path);
    return status;
}

/* The model that the flags name, from a file or made. */
static esp_status open_model(struct esp_session *s, esp_model_opts *mo, esp_error *err)
{
    const struct esp_options *opt = s->opt;
    const struct esp_opt_value *synthetic = &opt->v[OPT_SYNTHETIC];
    const char *name = model_name(opt);

    if (synthetic->given && name && opt->n_args)
        return esp_fail(err, ESP_EINVAL, "'%s' and --synthetic: one model is enough", name);
    if (synthetic->given) {
        s->shown = synthetic->s;
        mo->shape_only = opt->verb->id == VERB_FIT;
        if (!mo->shape_only)
            ESP_TRY(synthetic_fits(opt, mo, err));
        return esp_model_synthetic(&s->model, synthetic->s, opt->v[OPT_WEIGHTS].s, 1, mo, err);
    }
    if (!name)
        return esp_fail(err, ESP_EINVAL, "which model? Give MODEL%s",
                        esp_opt_for(esp_opt_get(OPT_SYNTHETIC), opt->verb) ? " or --synthetic SHAPE" : "");
    s->shown = name;
    ESP_TRY(esp_model_find(&s->path, name, err));
    if (strcmp(s->path, name) != 0)
        esp_say_detail("model: %s", s->path);
    mo->shape_only = mo->expand && opt->verb->id == VERB_FIT;
    return esp_model_open(&s->model, s->path, mo, err);
}

esp_status esp_session_open(struct esp_session *s, const struct esp_options *opt, esp_error *err)
{
    const bool computes = esp_opt_for(esp_opt_get(OPT_MMAP), opt->verb);
    esp_model_opts mo = {.threads = (uint32_t)opt->v[OPT_THREADS].i,
                         .threads_batch = (uint32_t)opt->v[OPT_THREADS_BATCH].i,
                         .tokenizer_dir = opt->v[OPT_TOKENIZER].s,
                         .rope_scaling = opt->v[OPT_ROPE_SCALING].s,
                         .no_mmap = computes && !opt->v[OPT_MMAP].on,
                         .progress = on_progress,
                         .progress_user = s};
    const char *draft;
    esp_spec spec;
    esp_status status;

    memset(s, 0, sizeof *s);
    s->opt = opt;
    esp_set_log(on_log, NULL);
    if (opt->v[OPT_CPU_MASK].given && opt->v[OPT_CPU_MASK].s)
        ESP_TRY(esp_cpu_mask_set(opt->v[OPT_CPU_MASK].s, err));
    ESP_TRY(parse_spec(opt, &spec, &draft, err));
    ESP_TRY(esp_device_choose(s, err));
    if (opt->v[OPT_CPU].i > 0)
        mo.cpu_level = opt->v[OPT_CPU].s;
    mo.chat_template_file = opt->v[OPT_CHAT_TEMPLATE].s;
    if (esp_device_expands(opt))
        mo.expand = opt->v[OPT_EXPAND].s;
    mo.numa = "off"; /* of verbs that compute nothing */
    if (esp_opt_for(esp_opt_get(OPT_NUMA), opt->verb)) {
        mo.huge_pages = opt->v[OPT_HUGE_PAGES].s;
        mo.numa = opt->v[OPT_NUMA].s;
    }
    status = open_model(s, &mo, err);
    if (status == ESP_OK)
        status = open_draft(s, draft, mo, err);
    esp_progress_end(&s->progress);
    if (status == ESP_ENUMERIC ||
        status == ESP_EIO) /* of a file: the model is bad, nothing failed while running */
        status = status == ESP_EIO ? ESP_ENOTFOUND : ESP_EFORMAT;
    if (status != ESP_OK)
        return status;
    esp_model_describe(s->model, &s->info);
    ESP_TRY(esp_placement_check(s, err));
    return esp_opt_for(esp_opt_get(OPT_ADAPTER), opt->verb) &&
                   opt->verb->id != VERB_SERVE /* mounts its own */
               ? esp_adapters_open(&s->adapters, s->model, &opt->v[OPT_ADAPTER], err)
               : ESP_OK;
}

void esp_session_engine_opts(struct esp_session *s)
{
    const struct esp_options *o = s->opt;
    const char *draft;
    esp_spec spec;

    parse_spec(o, &spec, &draft, NULL); /* esp_session_open() has refused others */
    s->engine_opts = (esp_engine_opts){
        .context = (uint32_t)o->v[OPT_CTX].i,
        .max_seqs = 1,
        .chunk = (uint32_t)o->v[OPT_CHUNK].i,
        .act = o->v[OPT_ACT].s,
        .kv = o->v[OPT_KV].s,
        .kv_start = (uint32_t)o->v[OPT_KV_START].i,
        .state = o->v[OPT_STATE].s,
        .pack = o->v[OPT_PACK].s,
        .max_rank = esp_adapters_max_rank(&s->adapters),
        .adapter_bytes = esp_adapters_bytes(&s->adapters),
        .spec = spec,
        .spec_tokens = (uint32_t)o->v[OPT_SPEC_TOKENS].i,
        .spec_min_rate = (float)o->v[OPT_SPEC_MIN_RATE].f,
        .draft_model = s->draft,
    };
    esp_device_settle(s);
    s->engine_opts.memory_budget = esp_placement_budget(s);
    if (s->engine_opts.memory_budget) {
        char text[32];

        esp_say_detail("memory budget: %llu bytes (%s)", (unsigned long long)s->engine_opts.memory_budget,
                       esp_format_bytes(text, sizeof text, (double)s->engine_opts.memory_budget));
    }
}

/* With --mlock; once everything that lasts has been taken. */
static esp_status lock_memory(const struct esp_session *s, esp_error *err)
{
    char text[32];
    uint64_t bytes;

    if (!esp_opt_for(esp_opt_get(OPT_MLOCK), s->opt->verb) || !s->opt->v[OPT_MLOCK].on)
        return ESP_OK;
    ESP_TRY(esp_lock_memory(&bytes, err));
    esp_say_detail("locked in memory: %s", esp_format_bytes(text, sizeof text, (double)bytes));
    return ESP_OK;
}

/* How much of the memory is in huge pages. */
static void say_huge(const struct esp_session *s)
{
    char huge[32], all[32];
    uint64_t in_huge, resident;

    if (!esp_opt_for(esp_opt_get(OPT_HUGE_PAGES), s->opt->verb) || !esp_huge_memory(&in_huge, &resident))
        return;
    esp_say_detail("in huge pages: %s of %s", esp_format_bytes(huge, sizeof huge, (double)in_huge),
                   esp_format_bytes(all, sizeof all, (double)resident));
}

esp_status esp_session_engine(struct esp_session *s, esp_error *err)
{
    if (s->engine_opts.context == 0)
        s->engine_opts.context = s->info.context < 32768 ? s->info.context : 32768;
    ESP_TRY(esp_engine_open(&s->engine, s->model, &s->engine_opts, err));
    ESP_TRY(lock_memory(s, err));
    if (esp_out_verbosity() > 0)
        say_huge(s);
    return ESP_OK;
}

void esp_session_close(struct esp_session *s)
{
    if (s->engine)
        esp_engine_close(s->engine);
    esp_adapters_close(&s->adapters);
    esp_model_close(s->draft);
    if (s->model)
        esp_model_close(s->model);
    esp_free(s->breakers);
    esp_free(s->path);
    memset(s, 0, sizeof *s);
}

/* ---- sampling ---- */

static float pick(const struct esp_opt_value *flag, float models, float built_in)
{
    if (flag->given)
        return (float)flag->f;
    return models >= 0 ? models : built_in;
}

size_t esp_session_max_tokens(const struct esp_options *opt)
{
    return opt->v[OPT_MAX_TOKENS].given ? (size_t)opt->v[OPT_MAX_TOKENS].i : SIZE_MAX;
}

size_t esp_session_breakers(const struct esp_options *opt, const char *out[MAX_OPT_LIST])
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    const struct esp_opt_value *v = &opt->v[OPT_DRY_BREAKER];
    const char *const *from = v->given ? v->list : usual;
    const size_t n = v->given ? v->n : sizeof usual / sizeof usual[0];

    if (v->given && n == 1 && strcmp(from[0], "none") == 0)
        return 0;
    memcpy(out, from, n * sizeof *out);
    return n;
}

/* XTC and DRY, all of whose values have defaults of their own. */
static esp_status more_sampling(struct esp_session *s, esp_sampling *out, esp_error *err)
{
    const struct esp_opt_value *v = s->opt->v;
    const char *texts[MAX_OPT_LIST];
    const size_t n = esp_session_breakers(s->opt, texts);

    out->typical_p = (float)v[OPT_TYPICAL_P].f;
    out->xtc_probability = (float)v[OPT_XTC_PROBABILITY].f;
    out->xtc_threshold = (float)v[OPT_XTC_THRESHOLD].f;
    out->dry_multiplier = v[OPT_DRY_LAST_N].i == 0 ? 0 : (float)v[OPT_DRY_MULTIPLIER].f;
    out->dry_base = (float)v[OPT_DRY_BASE].f;
    out->dry_allowed_length = (uint32_t)v[OPT_DRY_ALLOWED_LENGTH].i;
    out->dry_context = v[OPT_DRY_LAST_N].i > 0 ? (uint32_t)v[OPT_DRY_LAST_N].i : 0;
    if (!(out->dry_multiplier > 0) && s->opt->verb->id != VERB_RUN) /* a chat may still switch it on */
        return ESP_OK;
    out->n_dry_word = ((size_t)s->info.n_vocab + 63) / 64;
    esp_free(s->breakers);
    s->breakers = esp_alloc_array(out->n_dry_word, sizeof *s->breakers);
    if (!s->breakers)
        return esp_fail(err, ESP_ENOMEM, "no memory for a set of tokens");
    out->dry_breakers = s->breakers;
    return esp_model_breakers(s->model, texts, n, s->breakers, err);
}

esp_status esp_session_sampling(struct esp_session *s, esp_sampling *out, esp_error *err)
{
    const struct esp_opt_value *v = s->opt->v;
    const esp_model_info *m = &s->info;

    *out = (esp_sampling){
        .temperature = pick(&v[OPT_TEMPERATURE], m->temperature, 0.7F),
        .top_k = v[OPT_TOP_K].given ? (int32_t)v[OPT_TOP_K].i
                 : m->top_k > 0     ? m->top_k
                                    : 0,
        .top_p = pick(&v[OPT_TOP_P], m->top_p, 1),
        .min_p = pick(&v[OPT_MIN_P], m->min_p, 0),
        .repetition_penalty = (float)v[OPT_REPEAT_PENALTY].f,
        .presence_penalty = (float)v[OPT_PRESENCE_PENALTY].f,
        .frequency_penalty = (float)v[OPT_FREQUENCY_PENALTY].f,
        .ignore_end = v[OPT_IGNORE_EOS].on,
    };
    if (v[OPT_TOP_P].given && out->top_p <= 0)
        return esp_fail(err, ESP_EINVAL, "--top-p: 0 leaves no token; above 0 to 1 is accepted");
    s->seed = (uint64_t)v[OPT_SEED].i;
    if (!v[OPT_SEED].given) {
        if (getrandom(&s->seed, sizeof s->seed, 0) != (ssize_t)sizeof s->seed)
            return esp_fail(err, ESP_EIO, "the system gave no random seed: %s", strerror(errno));
        s->seed >>= 11; /* 53 bits: exact in every JSON reader */
    }
    out->seed = s->seed;
    return more_sampling(s, out, err);
}

esp_status esp_session_template_args(const struct esp_options *opt, json_t **out, esp_error *err)
{
    const struct esp_opt_value *given = &opt->v[OPT_TEMPLATE_ARG];
    json_t *args = json_object();
    const int64_t thinking = opt->v[OPT_THINKING].i;

    if (args && thinking < 2)
        json_object_set_new(args, "enable_thinking", json_boolean(thinking == 0));
    for (size_t i = 0; args && i < given->n; i++) {
        const char *text = given->list[i], *equals = strchr(text, '=');
        json_t *value = NULL;

        if (!equals || equals == text) {
            json_decref(args);
            return esp_fail(err, ESP_EINVAL, "--template-arg: '%.200s' is not of the form NAME=VALUE", text);
        }
        if (esp_json_parse(&value, equals + 1, strlen(equals + 1), "--template-arg", 0, NULL) != ESP_OK)
            value = json_string(equals + 1);
        if (!value || json_object_setn_new(args, text, (size_t)(equals - text), value) != 0) {
            json_decref(args);
            return esp_fail(err, ESP_EINVAL, "--template-arg: '%.200s' is not valid UTF-8", text);
        }
    }
    *out = args;
    return args ? ESP_OK : esp_fail(err, ESP_ENOMEM, "no memory for template arguments");
}

/* ---- text ---- */

/* Hand p over when it was filled, else free it. */
static esp_status keep_or_free(void **out, void *p, esp_status s)
{
    if (s == ESP_OK)
        *out = p;
    else
        free(p);
    return s;
}

esp_status esp_text_ids(const esp_model *m, const char *text, size_t len, bool control, esp_token **out,
                        size_t *n, esp_error *err)
{
    esp_token *ids;

    ESP_TRY(esp_tokenize(m, text, len, control, NULL, 0, n, err));
    ids = calloc(*n + 1, sizeof *ids);
    if (!ids)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu token ids", *n);
    return keep_or_free((void **)out, ids, esp_tokenize(m, text, len, control, ids, *n, n, err));
}

esp_status esp_chat_ids(const esp_model *m, const char *messages, const esp_chat_opts *opts, esp_token **out,
                        size_t *n, esp_error *err)
{
    esp_token *ids;

    ESP_TRY(esp_tokenize_chat(m, messages, opts, NULL, 0, n, err));
    ids = calloc(*n + 1, sizeof *ids);
    if (!ids)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu token ids", *n);
    return keep_or_free((void **)out, ids, esp_tokenize_chat(m, messages, opts, ids, *n, n, err));
}

esp_status esp_chat_text(const esp_model *m, const char *messages, const esp_chat_opts *opts, char **out,
                         size_t *n, esp_error *err)
{
    char *text;

    ESP_TRY(esp_render_chat(m, messages, opts, NULL, 0, n, err));
    text = calloc(*n + 1, 1);
    if (!text)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu bytes of text", *n);
    return keep_or_free((void **)out, text, esp_render_chat(m, messages, opts, text, *n, n, err));
}

size_t esp_token_text(const esp_model *m, esp_token t, char buf[MAX_TOKEN_BYTES])
{
    size_t n = 0;

    if (esp_token_bytes(m, t, buf, MAX_TOKEN_BYTES, &n, NULL) != ESP_OK)
        return 0;
    return n < MAX_TOKEN_BYTES ? n : MAX_TOKEN_BYTES;
}

/* All of fd, which is read as it comes: a pipe or a terminal. */
static esp_status read_stream(int fd, const char *name, char **out, size_t *len, esp_error *err)
{
    struct esp_strbuf b;
    char block[65536];
    ssize_t got;

    esp_strbuf_init(&b, ESP_LIMIT_TEXT_BYTES);
    for (got = read(fd, block, sizeof block); got > 0; got = read(fd, block, sizeof block)) {
        if (!esp_strbuf_add(&b, block, (size_t)got))
            break;
    }
    if (got < 0 || b.failed) {
        const int why = errno;

        esp_strbuf_free(&b);
        if (esp_interrupted())
            return esp_fail(err, ESP_ECANCELLED, "interrupted");
        return got < 0 ? esp_fail(err, ESP_EIO, "%s: %s", name, strerror(why))
                       : esp_fail(err, ESP_ENOMEM, "%s: no memory, or more than %u bytes", name,
                                  ESP_LIMIT_TEXT_BYTES);
    }
    *len = b.len;
    *out = esp_strbuf_take(&b);
    return *out ? ESP_OK : esp_fail(err, ESP_ENOMEM, "%s: no memory for its text", name);
}

esp_status esp_read_input(const char *path, char **out, size_t *len, esp_error *err)
{
    struct stat st;
    esp_status s;
    int fd;

    if (strcmp(path, "-") == 0)
        return read_stream(STDIN_FILENO, "standard input", out, len, err);
    if (stat(path, &st) != 0 || !S_ISFIFO(st.st_mode))
        return esp_read_file(out, len, path, ESP_LIMIT_TEXT_BYTES, err);
    fd = open(path, O_RDONLY | O_CLOEXEC); /* a pipe by name, as shells give for <(command) */
    if (fd < 0)
        return esp_fail(err, ESP_EIO, "%s: %s", path, strerror(errno));
    s = read_stream(fd, path, out, len, err);
    close(fd);
    return s;
}

esp_status esp_parse_ids(const char *text, uint32_t n_vocab, esp_token **out, size_t *n, esp_error *err)
{
    static const char gaps[] = " ,\t\r\n[]";
    const size_t most = strlen(text) / 2 + 1;
    esp_token *ids = calloc(most, sizeof *ids);
    size_t count = 0;

    if (!ids)
        return esp_fail(err, ESP_ENOMEM, "no memory for up to %zu token ids", most);
    for (text += strspn(text, gaps); *text; text += strspn(text, gaps)) {
        const size_t len = strcspn(text, gaps);
        char number[24];
        int64_t id;

        snprintf(number, sizeof number, "%.*s", (int)(len < 23 ? len : 23), text);
        if (!esp_parse_int(number, &id) || id < 0 || id >= (int64_t)n_vocab) {
            free(ids);
            return esp_fail(err, ESP_EINVAL, "'%.20s' is not a token id of this model; 0 to %u are", number,
                            n_vocab - 1);
        }
        ids[count++] = (esp_token)id;
        text += len;
    }
    *out = ids;
    *n = count;
    return ESP_OK;
}
