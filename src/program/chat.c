/*
 * The conversation on a terminal: lines that begin with / are commands from one table, all else is said to
 * the model. Ctrl-C stops an answer or clears the line, Ctrl-D leaves.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "program/line.h"
#include "program/output.h"
#include "program/talk.h"

struct chat {
    struct esp_talk *talk;
    const struct esp_options *opt;
    size_t turns;
    struct esp_answer last; /* counters only */
};

/* ---- commands ---- */

typedef esp_status (*command_fn)(struct chat *c, const char *arg, esp_error *err);

static esp_status do_help(struct chat *c, const char *arg, esp_error *err);

static esp_status do_clear(struct chat *c, const char *arg, esp_error *err)
{
    (void)arg;
    (void)err;
    esp_talk_clear(c->talk);
    esp_say_info("forgotten; the system message stays");
    return ESP_OK;
}

static esp_status do_system(struct chat *c, const char *arg, esp_error *err)
{
    ESP_TRY(esp_talk_system(c->talk, arg[0] ? arg : NULL, err));
    esp_say_info(arg[0] ? "system message set" : "system message removed");
    return ESP_OK;
}

static esp_status do_think(struct chat *c, const char *arg, esp_error *err)
{
    if (strcmp(arg, "on") == 0 || strcmp(arg, "off") == 0)
        json_object_set_new(c->talk->template_args, "enable_thinking", json_boolean(arg[1] == 'n'));
    else if (strcmp(arg, "model") == 0)
        json_object_del(c->talk->template_args, "enable_thinking");
    else
        return esp_fail(err, ESP_EINVAL, "/think takes on, off or model");
    esp_say_info("thinking: %s", arg);
    return ESP_OK;
}

/* What /set may change of the sampling, and where it lies. */
static const struct {
    enum esp_opt_id id;
    size_t at; /* of a float */
} numbers[] = {
    {OPT_TEMPERATURE, offsetof(esp_sampling, temperature)},
    {OPT_TOP_P, offsetof(esp_sampling, top_p)},
    {OPT_MIN_P, offsetof(esp_sampling, min_p)},
    {OPT_TYPICAL_P, offsetof(esp_sampling, typical_p)},
    {OPT_REPEAT_PENALTY, offsetof(esp_sampling, repetition_penalty)},
    {OPT_PRESENCE_PENALTY, offsetof(esp_sampling, presence_penalty)},
    {OPT_FREQUENCY_PENALTY, offsetof(esp_sampling, frequency_penalty)},
    {OPT_XTC_PROBABILITY, offsetof(esp_sampling, xtc_probability)},
    {OPT_XTC_THRESHOLD, offsetof(esp_sampling, xtc_threshold)},
    {OPT_DRY_MULTIPLIER, offsetof(esp_sampling, dry_multiplier)},
    {OPT_DRY_BASE, offsetof(esp_sampling, dry_base)},
};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

/* Copy a parsed flag value into the sampling. */
static void apply(struct esp_talk *t, enum esp_opt_id id, const struct esp_opt_value *v)
{
    const float f = (float)v->f;

    for (size_t i = 0; i < N_NUMBERS; i++)
        if (numbers[i].id == id) {
            memcpy((char *)&t->sampling + numbers[i].at, &f, sizeof f);
            return;
        }
    switch (id) {
    case OPT_TOP_K:
        t->sampling.top_k = (int32_t)v->i;
        break;
    case OPT_DRY_ALLOWED_LENGTH:
        t->sampling.dry_allowed_length = (uint32_t)v->i;
        break;
    case OPT_SEED:
        t->session->seed = t->sampling.seed = (uint64_t)v->i;
        break;
    default:
        t->max_tokens = (size_t)v->i;
        break;
    }
}

static esp_status do_adapter(struct chat *c, const char *arg, esp_error *err)
{
    struct esp_adapters *a = &c->talk->session->adapters;

    if (arg[0]) {
        ESP_TRY(esp_adapters_select(a, arg, err));
        ESP_TRY(esp_talk_readapt(c->talk, err));
    } else if (!a->n) {
        esp_say_info("no adapters; --adapter DIR loads them at the start");
    }
    for (size_t i = 0; i < a->n; i++)
        esp_say_info("%s %s (scale %g, rank %u)", a->of[i].on ? "[on]" : "[  ]", a->of[i].id,
                     (double)a->of[i].scale, a->of[i].info.max_rank);
    return ESP_OK;
}

static esp_status do_set(struct chat *c, const char *arg, esp_error *err)
{
    static const enum esp_opt_id others[] = {OPT_TOP_K, OPT_DRY_ALLOWED_LENGTH, OPT_SEED, OPT_MAX_TOKENS};
    const size_t n = strcspn(arg, " \t");
    const char *value = arg + n + strspn(arg + n, " \t");

    for (size_t i = 0; i < N_NUMBERS + sizeof others / sizeof *others; i++) {
        const struct esp_opt *o = esp_opt_get(i < N_NUMBERS ? numbers[i].id : others[i - N_NUMBERS]);
        struct esp_opt_value v = {0};

        if (!(strlen(o->name) == n && strncmp(arg, o->name, n) == 0) &&
            !(o->alias && strlen(o->alias) == n && strncmp(arg, o->alias, n) == 0))
            continue;
        if (o->id == OPT_MAX_TOKENS && strcmp(value, "default") == 0) {
            c->talk->max_tokens = SIZE_MAX;
        } else {
            ESP_TRY(esp_opt_set(&v, o, false, value, err));
            apply(c->talk, o->id, &v);
        }
        esp_say_info("%s: %s", o->name, value);
        return esp_talk_resample(c->talk, err);
    }
    return esp_fail(err, ESP_EINVAL,
                    "/set takes one of temperature, top-k, top-p, min-p, typical-p, repeat-penalty, "
                    "presence-penalty, frequency-penalty, xtc-probability, xtc-threshold, dry-multiplier, "
                    "dry-base, dry-allowed-length, seed, max-tokens, and a value");
}

static esp_status do_save(struct chat *c, const char *arg, esp_error *err)
{
    if (!arg[0])
        return esp_fail(err, ESP_EINVAL, "/save needs a file name");
    ESP_TRY(esp_talk_save(c->talk, arg, err));
    esp_say_info("saved %zu messages", json_array_size(c->talk->messages));
    return ESP_OK;
}

static esp_status do_load(struct chat *c, const char *arg, esp_error *err)
{
    if (!arg[0])
        return esp_fail(err, ESP_EINVAL, "/load needs a file name");
    ESP_TRY(esp_talk_load(c->talk, arg, err));
    esp_say_info("loaded %zu messages", json_array_size(c->talk->messages));
    return ESP_OK;
}

static esp_status do_stats(struct chat *c, const char *arg, esp_error *err)
{
    esp_stats st;

    (void)arg;
    (void)err;
    esp_engine_stats(c->talk->session->engine, &st);
    esp_say_info("turns %zu, messages %zu, seed %llu", c->turns, json_array_size(c->talk->messages),
                 (unsigned long long)c->talk->session->seed);
    esp_say_info(
        "last answer: prompt %zu tokens (%zu kept), %zu generated, first after %.3f s, %.3f s in all",
        c->last.prompt_tokens, c->last.cached_tokens, c->last.generated_tokens, c->last.first_s,
        c->last.total_s);
    esp_say_info(
        "all answers: %llu prompt tokens in %.3f s, %llu generated in %.3f s; context %zu of %u tokens",
        (unsigned long long)st.prompt_tokens, st.prompt_seconds, (unsigned long long)st.generated_tokens,
        st.generate_seconds, esp_seq_length(c->talk->seq), c->talk->session->engine_opts.context);
    return ESP_OK;
}

static esp_status do_later(struct chat *c, const char *arg, esp_error *err)
{
    (void)c;
    (void)arg;
    return esp_fail(err, ESP_EUNSUPPORTED, "this command is not in this version");
}

static const struct command {
    const char *name, *arg, *help;
    command_fn fn; /* NULL: leave */
} commands[] = {
    {"help", "", "list the commands", do_help},
    {"clear", "", "forget the conversation", do_clear},
    {"system", "TEXT", "set the system message; without TEXT remove it", do_system},
    {"think", "on|off|model", "whether the model may think first", do_think},
    {"set", "NAME VALUE", "change a sampling flag, such as /set temperature 0", do_set},
    {"adapter", "none|ID[+ID]", "list the adapters, or answer with those named", do_adapter},
    {"save", "FILE", "write the conversation to FILE", do_save},
    {"load", "FILE", "go on with the conversation in FILE", do_load},
    {"stats", "", "what the conversation has cost", do_stats},
    {"image", NULL, NULL, do_later},
    {"quit", "", "leave, as Ctrl-D does", NULL},
    {"exit", NULL, NULL, NULL},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static esp_status do_help(struct chat *c, const char *arg, esp_error *err)
{
    (void)c;
    (void)arg;
    (void)err;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].help)
            esp_say_info("  /%-7s %-13s %s", commands[i].name, commands[i].arg, commands[i].help);
    }
    esp_say_info(
        "A line \"\"\" starts and ends text of several lines. Ctrl-C stops the answer, Ctrl-D leaves.");
    return ESP_OK;
}

/* Run "/name arg"; *leave for those that end the conversation. */
static esp_status command(struct chat *c, const char *line, bool *leave, esp_error *err)
{
    const size_t n = strcspn(line + 1, " \t");
    const char *names[N_COMMANDS], *arg = line + 1 + n + strspn(line + 1 + n, " \t");
    char word[32];
    int near;

    for (size_t i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strlen(names[i]) != n || strncmp(names[i], line + 1, n) != 0)
            continue;
        *leave = !commands[i].fn;
        return *leave ? ESP_OK : commands[i].fn(c, arg, err);
    }
    snprintf(word, sizeof word, "%.*s", (int)(n < 31 ? n : 31), line + 1);
    near = esp_nearest(word, names, N_COMMANDS);
    if (near >= 0)
        return esp_fail(err, ESP_EINVAL, "unknown command /%s; did you mean /%s?", word, names[near]);
    return esp_fail(err, ESP_EINVAL, "unknown command /%s; /help lists them", word);
}

/* ---- the loop ---- */

static void complain(const esp_error *err)
{
    const bool c = esp_out_color(true);

    fprintf(stderr, "%s%s%s\n", c ? "\033[31m" : "", err->message, c ? "\033[0m" : "");
}

static void turn(struct chat *c, const char *text, size_t len)
{
    struct esp_talk *t = c->talk;
    const size_t before = json_array_size(t->messages);
    esp_error err = {0};
    struct esp_answer a;
    esp_status s = esp_talk_say(t, "user", text, len, &err);

    if (s == ESP_OK) {
        s = esp_run_answer(t, &a, &err);
        if (s == ESP_OK && a.end == ESP_ANSWER_INTERRUPTED)
            esp_say_info("(stopped)");
        if (s == ESP_OK && a.end == ESP_ANSWER_LENGTH)
            esp_say_info("(cut: the limit of tokens was reached)");
        c->turns++;
        c->last = a;
        esp_answer_free(&a);
    }
    esp_interrupt_clear();
    if (s == ESP_OK)
        return;
    while (json_array_size(t->messages) > before)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
    complain(&err);
    if (s == ESP_ENOFIT)
        esp_say_info("/clear starts anew");
}

/* Lines up to one that ends in """ , behind an opening one. */
static enum esp_line_result several(struct esp_line_reader *r, const char *first, struct esp_strbuf *text)
{
    struct esp_strbuf line;
    enum esp_line_result got = ESP_LINE_TEXT;
    const char *part = first + 3, *end = strstr(part, "\"\"\"");

    esp_strbuf_init(&line, text->max);
    esp_strbuf_clear(text);
    esp_strbuf_add(text, part, end ? (size_t)(end - part) : strlen(part));
    while (!end && got == ESP_LINE_TEXT) {
        got = esp_line_read(r, "... ", &line);
        if (got != ESP_LINE_TEXT)
            break;
        part = esp_strbuf_str(&line);
        end = strstr(part, "\"\"\"");
        if (text->len)
            esp_strbuf_putc(text, '\n');
        esp_strbuf_add(text, part, end ? (size_t)(end - part) : line.len);
    }
    esp_strbuf_free(&line);
    return got;
}

/* One input; false to leave. */
static bool step(struct chat *c, struct esp_line_reader *r, struct esp_strbuf *line, struct esp_strbuf *text)
{
    enum esp_line_result got = esp_line_read(r, ">>> ", line);
    const char *s = esp_strbuf_str(line);
    bool leave = false;
    esp_error err = {0};

    if (got == ESP_LINE_TEXT && strncmp(s, "\"\"\"", 3) == 0) {
        got = several(r, s, text);
        s = esp_strbuf_str(text);
    }
    if (got == ESP_LINE_INTERRUPTED) {
        esp_interrupt_clear();
        return !esp_interrupted();
    }
    if (got == ESP_LINE_END) {
        fputc('\n', stderr);
        return false;
    }
    if (!s[strspn(s, " \t\n")])
        return true;
    esp_line_remember(r, s);
    if (s[0] != '/' || strchr(s, '\n')) { /* no command has several lines */
        turn(c, s, strlen(s));
        return !esp_interrupted() && !esp_out_failed();
    }
    if (command(c, s, &leave, &err) != ESP_OK)
        complain(&err);
    return !leave;
}

int esp_chat_loop(struct esp_talk *t, const struct esp_options *o)
{
    enum { MAX_LINE = 16 << 20 };
    struct chat c = {.talk = t, .opt = o};
    struct esp_line_reader *r = esp_line_open();
    struct esp_strbuf line, text;

    if (!r)
        return esp_report_as(ESP_EXIT_FAILURE, "memory", "no memory for line editing");
    t->goes_on = true;
    esp_strbuf_init(&line, MAX_LINE);
    esp_strbuf_init(&text, MAX_LINE);
    esp_say_info("%s, context %u tokens. /help lists the commands, Ctrl-D leaves.", t->session->shown,
                 t->session->engine_opts.context);
    while (step(&c, r, &line, &text))
        ;
    esp_strbuf_free(&line);
    esp_strbuf_free(&text);
    esp_line_close(r);
    return esp_interrupted();
}
