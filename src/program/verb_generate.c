/*
 * generate: continue a text, several times from one pass over the prompt. The prompt but for its last token
 * runs once; the continuations fork from there, and each runs the last token itself.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"

#include "program/output.h"
#include "program/talk.h"

enum { MAX_N = 16, MAX_TEXT = 64 << 20 };

struct row {
    struct job *job;
    size_t index;
    esp_seq *seq;
    struct esp_text_stream *stream; /* NULL with --ids */
    struct esp_strbuf text;         /* all of it, when it is printed at the end */
    uint64_t seed;
    size_t generated;
    const char *end; /* NULL while it goes on */
    const char *stop;
};

struct job {
    struct esp_session session;
    const struct esp_options *opt;
    struct esp_structure structure;
    esp_token *prompt;
    size_t n_prompt, max_tokens, n_open;
    struct row rows[MAX_N];
    size_t n;
    bool live; /* one row: print as it comes */
    bool ids, logprobs;
};

/* Seeds of the continuations: the first is the given one, the others follow by splitmix64, cut to 53 bits for
 * JSON. */
static uint64_t row_seed(uint64_t seed, size_t i)
{
    uint64_t x = seed + i * 0x9e3779b97f4a7c15U;

    if (i == 0)
        return seed;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return (x ^ (x >> 31)) >> 11;
}

/* ---- prompt ---- */

static esp_status chat_prompt(struct job *j, const char *text, size_t len, esp_error *err)
{
    json_t *args = NULL,
           *messages = json_pack("[{s:s,s:o*}]", "role", "user", "content", esp_json_text(text, len));
    char *messages_text = messages ? json_dumps(messages, JSON_COMPACT) : NULL, *args_text;
    esp_status s = esp_session_template_args(j->opt, &args, err);

    args_text = s == ESP_OK ? json_dumps(args, JSON_COMPACT) : NULL;
    if (s == ESP_OK && messages_text && args_text) {
        const esp_chat_opts opts = {.template_args_json = args_text};

        s = esp_chat_ids(j->session.model, messages_text, &opts, &j->prompt, &j->n_prompt, err);
    } else if (s == ESP_OK) {
        s = esp_fail(err, ESP_ENOMEM, "no memory for the prompt");
    }
    free(messages_text);
    free(args_text);
    json_decref(args);
    json_decref(messages);
    return s;
}

static esp_status check_flags(const struct esp_opt_value *v, esp_error *err)
{
    if (v[OPT_CHAT].on && (v[OPT_IDS].on || (v[OPT_RAW].given && v[OPT_RAW].on)))
        return esp_fail(err, ESP_EINVAL,
                        "--chat puts text through the template; it excludes --raw and --ids");
    if (v[OPT_IDS].on && v[OPT_STOP].n)
        return esp_fail(err, ESP_EINVAL, "--stop looks at text; with --ids there is none");
    if (v[OPT_PROMPT].given && v[OPT_INPUT].given)
        return esp_fail(err, ESP_EINVAL, "--prompt and --file: one prompt is enough");
    if (!v[OPT_PROMPT].given && !v[OPT_INPUT].given && isatty(STDIN_FILENO))
        return esp_fail(err, ESP_EINVAL, "no prompt; give --prompt TEXT, --file FILE or piped input");
    return ESP_OK;
}

static esp_status prompt_ids(struct job *j, const char *text, size_t len, esp_error *err)
{
    const struct esp_opt_value *v = j->opt->v;

    if (v[OPT_IDS].on)
        return esp_parse_ids(text, j->session.info.n_vocab, &j->prompt, &j->n_prompt, err);
    if (v[OPT_CHAT].on)
        return chat_prompt(j, text, len, err);
    return esp_text_ids(j->session.model, text, len, v[OPT_CONTROL].i == 0, &j->prompt, &j->n_prompt, err);
}

static esp_status read_prompt(struct job *j, esp_error *err)
{
    const struct esp_opt_value *v = j->opt->v;
    char *text = NULL;
    size_t len = 0;
    esp_status s;

    ESP_TRY(check_flags(v, err));
    if (v[OPT_PROMPT].given) {
        len = strlen(v[OPT_PROMPT].s);
        text = esp_strndup(v[OPT_PROMPT].s, len);
        s = text ? ESP_OK : esp_fail(err, ESP_ENOMEM, "no memory for the prompt");
    } else {
        s = esp_read_input(v[OPT_INPUT].given ? v[OPT_INPUT].s : "-", &text, &len, err);
    }
    if (s == ESP_OK)
        s = prompt_ids(j, text, len, err);
    if (s == ESP_OK && j->n_prompt == 0)
        s = esp_fail(err, ESP_EINVAL, "the prompt has no tokens; at least one is needed");
    if (s == ESP_OK && v[OPT_ECHO].on && !v[OPT_IDS].on && !esp_out_is_json())
        esp_out_write(text, len);
    esp_free(text);
    return s;
}

/* ---- rows ---- */

static void on_text(void *user, enum esp_channel channel, const char *s, size_t len)
{
    struct row *r = user;

    (void)channel;
    esp_strbuf_add(&r->text, s, len);
    if (!r->job->live)
        return;
    if (esp_out_is_json()) {
        esp_out_json(json_pack("{s:s,s:I,s:o*}", "type", "delta", "index", (json_int_t)r->index, "text",
                               esp_json_text(s, len)));
    } else {
        esp_out_write(s, len);
        esp_out_flush();
    }
}

static esp_status prefill(struct job *j, esp_seq *seq, esp_error *err)
{
    esp_event events[4 * MAX_N];
    bool done = false;

    ESP_TRY(esp_seq_append(seq, j->prompt, j->n_prompt, err));
    if (j->n == 1)
        return ESP_OK;
    ESP_TRY(esp_seq_generate(seq, 0, err));
    while (!done) {
        size_t n = 0;

        if (esp_interrupted())
            return esp_fail(err, ESP_ECANCELLED, "interrupted");
        ESP_TRY(esp_engine_step(j->session.engine, events, 4 * MAX_N, &n, err));
        for (size_t i = 0; i < n; i++) {
            if (events[i].finish == ESP_FINISH_FAILED)
                return esp_fail(err, ESP_ENUMERIC, "%s",
                                events[i].message ? events[i].message : "the prompt failed");
            done = done || events[i].finish != ESP_FINISH_NONE;
        }
    }
    return ESP_OK;
}

static esp_status open_rows(struct job *j, const esp_sampling *sampling, esp_error *err)
{
    esp_seq_opts so = {.sampling = *sampling,
                       .logprobs = j->logprobs,
                       .top_logprobs = j->logprobs ? (uint32_t)j->opt->v[OPT_LOGPROBS].i : 0};
    const bool thinks = esp_prompt_thinks(j->session.model, j->prompt, j->n_prompt);

    esp_adapters_use(&j->session.adapters, &so);
    ESP_TRY(esp_seq_open(&j->rows[0].seq, j->session.engine, &so, err));
    ESP_TRY(prefill(j, j->rows[0].seq, err));
    for (size_t i = 0; i < j->n; i++) {
        struct row *r = &j->rows[i];

        r->job = j;
        r->index = i;
        r->seed = so.sampling.seed = row_seed(sampling->seed, i);
        esp_strbuf_init(&r->text, MAX_TEXT);
        if (i)
            ESP_TRY(esp_seq_fork(&r->seq, j->rows[0].seq, &so, err));
        if (!j->ids)
            ESP_TRY(esp_text_stream_create(&r->stream, ESP_TEXT_RAW, j->opt->v[OPT_STOP].list,
                                           j->opt->v[OPT_STOP].n, on_text, r, err));
    }
    for (size_t i = 0; i < j->n; i++) { /* forks are taken before the first of them goes on */
        ESP_TRY(esp_structure_apply(&j->structure, j->rows[i].seq, thinks, err));
        ESP_TRY(esp_seq_generate(j->rows[i].seq, j->max_tokens, err));
        j->n_open++;
    }
    return ESP_OK;
}

/* A log-probability for JSON, which has no infinity. */
static json_t *logprob_json(float x)
{
    return json_real(x > -9999.0F ? (double)x : -9999.0);
}

static void add_logprobs(json_t *record, const esp_model *m, const esp_event *e)
{
    json_t *top = json_array();

    for (uint32_t i = 0; i < e->n_top; i++) {
        char bytes[MAX_TOKEN_BYTES];
        const size_t n = esp_token_text(m, e->top[i].token, bytes);

        json_array_append_new(top,
                              json_pack("{s:i,s:o*,s:o}", "id", (int)e->top[i].token, "piece",
                                        esp_json_text(bytes, n), "logprob", logprob_json(e->top[i].logprob)));
    }
    json_object_set_new(record, "logprob", logprob_json(e->logprob));
    json_object_set_new(record, "top_logprobs", top);
}

/* A line of the table: continuation, id (in brackets when it was not chosen), log-probability, text as JSON
 * string. */
static void print_logprob(const struct row *r, esp_token id, float logprob, bool chosen)
{
    char bytes[MAX_TOKEN_BYTES];
    const size_t n = esp_token_text(r->job->session.model, id, bytes);
    json_t *piece = esp_json_text(bytes, n);
    char *quoted = piece ? json_dumps(piece, JSON_ENCODE_ANY) : NULL;

    esp_out_printf("%zu\t%s%d%s\t%.6f\t%s\n", r->index, chosen ? "" : "(", (int)id, chosen ? "" : ")",
                   (double)logprob, quoted ? quoted : "");
    free(quoted);
    json_decref(piece);
}

/* A token for programs: one JSON object, or with --ids its number, or a line of the --logprobs table. */
static void report_token(struct row *r, const esp_event *e)
{
    struct job *j = r->job;
    char bytes[MAX_TOKEN_BYTES];

    if (esp_out_is_json()) {
        const size_t n = esp_token_text(j->session.model, e->token, bytes);
        json_t *record = json_pack("{s:s,s:I,s:i,s:o*}", "type", "token", "index", (json_int_t)r->index, "id",
                                   (int)e->token, "piece", esp_json_text(bytes, n));

        if (j->logprobs)
            add_logprobs(record, j->session.model, e);
        esp_out_json(record);
    } else if (j->logprobs) {
        print_logprob(r, e->token, e->logprob, true);
        for (uint32_t i = 0; i < e->n_top; i++)
            print_logprob(r, e->top[i].token, e->top[i].logprob, false);
    } else if (j->live) {
        esp_out_printf("%s%d", r->generated > 1 || j->opt->v[OPT_ECHO].on ? " " : "", (int)e->token);
        esp_out_flush();
    } else {
        esp_strbuf_printf(&r->text, "%s%d", r->generated > 1 ? " " : "", (int)e->token);
    }
}

/* The row of an event; NULL when it is over or none of ours. */
static struct row *row_of(struct job *j, const esp_event *e)
{
    for (size_t i = 0; i < j->n; i++) {
        if (j->rows[i].seq == e->seq)
            return j->rows[i].end ? NULL : &j->rows[i];
    }
    return NULL;
}

static esp_status take_token(struct row *r, const esp_event *e, bool *stopped, esp_error *err)
{
    const struct job *j = r->job;
    char bytes[MAX_TOKEN_BYTES];

    r->generated++;
    if (j->ids || j->logprobs)
        report_token(r, e);
    if (!r->stream || (j->logprobs && !esp_out_is_json()))
        return ESP_OK;
    return esp_text_stream_feed(r->stream, bytes, esp_token_text(j->session.model, e->token, bytes), stopped,
                                err);
}

static esp_status take(struct job *j, const esp_event *e, esp_error *err)
{
    struct row *r = row_of(j, e);
    bool stopped = false;

    if (!r)
        return ESP_OK;
    if (e->finish == ESP_FINISH_FAILED)
        return esp_fail(err, ESP_ENUMERIC, "continuation %zu: %s", r->index,
                        e->message ? e->message : "failed");
    if (e->token >= 0)
        ESP_TRY(take_token(r, e, &stopped, err));
    if (!stopped && e->finish == ESP_FINISH_NONE)
        return ESP_OK;
    if (stopped)
        esp_seq_stop(r->seq);
    r->end = stopped ? "stop" : e->finish == ESP_FINISH_END ? "end" : "length";
    j->n_open--;
    return ESP_OK;
}

static esp_status loop(struct job *j, esp_error *err)
{
    esp_event events[4 * MAX_N];

    while (j->n_open && !esp_interrupted() && !esp_out_failed()) {
        size_t n = 0;

        ESP_TRY(esp_engine_step(j->session.engine, events, 4 * MAX_N, &n, err));
        for (size_t i = 0; i < n; i++)
            ESP_TRY(take(j, &events[i], err));
    }
    return ESP_OK;
}

static esp_status finish(struct job *j, esp_error *err)
{
    for (size_t i = 0; i < j->n; i++) {
        struct row *r = &j->rows[i];

        if (r->stream) {
            ESP_TRY(esp_text_stream_end(r->stream, err));
            r->stop = esp_text_stream_stop(r->stream);
        }
        if (r->stop)
            r->end = "stop";
        if (!r->end)
            r->end = "interrupted";
        if (esp_out_is_json()) {
            esp_out_json(json_pack(
                "{s:s,s:I,s:o*,s:s,s:s?,s:I,s:{s:I,s:I}}", "type", "end", "index", (json_int_t)i, "text",
                j->ids ? NULL : esp_json_text(esp_strbuf_str(&r->text), r->text.len), "finish_reason", r->end,
                "stop", r->stop, "seed", (json_int_t)r->seed, "usage", "prompt_tokens",
                (json_int_t)j->n_prompt, "completion_tokens", (json_int_t)r->generated));
        } else if (j->logprobs) {
            continue;
        } else if (j->live) {
            esp_out_write("\n", 1);
        } else {
            esp_out_printf("%s--- %zu (%s, %zu tokens, seed %llu)\n", i ? "\n" : "", i, r->end, r->generated,
                           (unsigned long long)r->seed);
            esp_out_write(esp_strbuf_str(&r->text), r->text.len);
            esp_out_write("\n", 1);
        }
    }
    esp_say_detail("seed %llu, %zu prompt tokens", (unsigned long long)j->session.seed, j->n_prompt);
    return ESP_OK;
}

/* Positions for all continuations: they share the full pages of the prompt, and each has the rest of its own.
 */
static uint64_t positions(const struct job *j)
{
    enum { PAGE = 256 };
    const uint64_t shared = j->n_prompt / PAGE * PAGE, own = j->n_prompt - shared + j->max_tokens;

    return shared + j->n * ((own + PAGE - 1) / PAGE * PAGE);
}

static esp_status generate(struct job *j, esp_error *err)
{
    struct esp_session *s = &j->session;
    esp_sampling sampling;
    size_t room;

    ESP_TRY(esp_session_open(s, j->opt, err));
    ESP_TRY(esp_session_sampling(s, &sampling, err));
    ESP_TRY(read_prompt(j, err));
    ESP_TRY(esp_structure_open(&j->structure, j->opt, s->model, j->opt->v[OPT_CHAT].on, err));
    esp_session_engine_opts(s);
    s->engine_opts.max_seqs = (uint32_t)j->n;
    if (s->engine_opts.context == 0)
        s->engine_opts.context = s->info.context < 32768 ? s->info.context : 32768;
    if (j->n_prompt >= s->engine_opts.context)
        return esp_fail(err, ESP_ENOFIT,
                        "the prompt has %zu tokens; the context of %u has no room for an answer", j->n_prompt,
                        s->engine_opts.context);
    room = s->engine_opts.context - j->n_prompt;
    j->max_tokens = esp_session_max_tokens(j->opt);
    if (j->max_tokens > room)
        j->max_tokens = room;
    s->engine_opts.kv_tokens = positions(j);
    ESP_TRY(esp_session_engine(s, err));
    if (j->opt->v[OPT_ECHO].on && j->ids && !esp_out_is_json()) {
        for (size_t i = 0; i < j->n_prompt; i++)
            esp_out_printf("%s%d", i ? " " : "", (int)j->prompt[i]);
    }
    ESP_TRY(open_rows(j, &sampling, err));
    ESP_TRY(loop(j, err));
    return finish(j, err);
}

int esp_verb_generate(const struct esp_options *o)
{
    struct job *j = calloc(1, sizeof *j);
    esp_error err = {0};
    esp_status s;

    if (!j)
        return esp_report_as(ESP_EXIT_FAILURE, "memory", "no memory");
    j->opt = o;
    j->n = (size_t)o->v[OPT_N].i;
    j->ids = o->v[OPT_IDS].on;
    j->logprobs = o->v[OPT_LOGPROBS].given;
    j->live = j->n == 1;
    s = generate(j, &err);
    for (size_t i = 0; i < j->n; i++) {
        esp_seq_close(j->rows[i].seq);
        esp_text_stream_destroy(j->rows[i].stream);
        esp_strbuf_free(&j->rows[i].text);
    }
    free(j->prompt);
    esp_structure_close(&j->structure);
    esp_session_close(&j->session);
    free(j);
    return s == ESP_OK ? esp_interrupted() : esp_report(s, &err);
}
