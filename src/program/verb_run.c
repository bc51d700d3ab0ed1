/*
 * run: one question, one answer; without a question on a terminal, the conversation of chat.c. The answer
 * goes to standard output, what the model thinks to standard error, so that a redirected answer is an answer.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

#include "program/output.h"
#include "program/talk.h"
#include "program/tool_text.h"

struct printer {
    bool json, show_thinking, color;
    bool thinking_open;          /* something of it is on the screen */
    struct esp_tool_text *tools; /* NULL with json */
    char last;                   /* character of the answer */
};

static void print_answer(void *user, const char *s, size_t len)
{
    struct printer *p = user;

    esp_out_write(s, len);
    esp_out_flush();
    p->last = s[len - 1];
}

static void print_piece(void *user, enum esp_channel channel, const char *s, size_t len)
{
    struct printer *p = user;

    if (p->json) {
        if (channel == ESP_CHANNEL_THINKING && !p->show_thinking)
            return;
        esp_out_json(json_pack("{s:s,s:s,s:o*}", "type", "delta", "channel",
                               channel == ESP_CHANNEL_THINKING ? "thinking" : "answer", "text",
                               esp_json_text(s, len)));
        return;
    }
    if (channel == ESP_CHANNEL_THINKING) {
        if (!p->show_thinking)
            return;
        if (!p->thinking_open && p->color)
            fputs("\033[2m", stderr);
        p->thinking_open = true;
        fwrite(s, 1, len, stderr);
        return;
    }
    if (p->thinking_open)
        fputs(p->color ? "\033[0m\n" : "\n", stderr);
    p->thinking_open = false;
    esp_tool_text_feed(p->tools, s, len);
}

/* Close the line of an answer on the terminal. */
static void close_line(struct printer *p)
{
    if (p->json)
        return;
    if (p->thinking_open)
        fputs(p->color ? "\033[0m\n" : "\n", stderr);
    esp_tool_text_end(p->tools);
    if (p->last && p->last != '\n')
        esp_out_write("\n", 1);
    esp_out_flush();
}

static void print_end(const struct esp_session *s, const struct esp_answer *a, const struct printer *p)
{
    const double decode = a->total_s - a->first_s;
    const double rate =
        a->generated_tokens > 1 && decode > 0 ? (double)(a->generated_tokens - 1) / decode : 0;

    if (p->json) {
        esp_out_json(json_pack(
            "{s:s,s:o*,s:o*,s:s,s:s?,s:I,s:{s:I,s:I,s:I},s:{s:f,s:f,s:f}}", "type", "end", "text",
            esp_json_text(esp_strbuf_str(&a->text), a->text.len), "thinking",
            p->show_thinking ? esp_json_text(esp_strbuf_str(&a->thinking), a->thinking.len) : NULL,
            "finish_reason", esp_answer_end_name(a->end), "stop", a->stop, "seed", (json_int_t)s->seed,
            "usage", "prompt_tokens", (json_int_t)a->prompt_tokens, "cached_tokens",
            (json_int_t)a->cached_tokens, "completion_tokens", (json_int_t)a->generated_tokens, "timings",
            "first_token_s", a->first_s, "total_s", a->total_s, "generated_per_s", rate));
        return;
    }
    if (a->end == ESP_ANSWER_LENGTH)
        esp_say_detail("cut: the limit of tokens was reached");
    esp_say_detail(
        "seed %llu, prompt %zu tokens (%zu kept), first token after %.3f s, %zu tokens generated, %.2f/s",
        (unsigned long long)s->seed, a->prompt_tokens, a->cached_tokens, a->first_s, a->generated_tokens,
        rate);
}

esp_status esp_run_answer(struct esp_talk *t, struct esp_answer *a, esp_error *err)
{
    const bool hide = t->session->opt->v[OPT_HIDE_THINKING].on;
    struct printer p = {.json = esp_out_is_json(),
                        .show_thinking = !hide && (esp_out_is_json() || esp_out_verbosity() >= 0),
                        .color = esp_out_color(true)};
    esp_status s = ESP_OK;

    if (!p.json)
        s = esp_tool_text_create(&p.tools, print_answer, &p, err);
    if (s != ESP_OK) {
        memset(a, 0, sizeof *a);
        return s;
    }
    s = esp_talk_answer(t, print_piece, &p, a, err);
    close_line(&p);
    esp_tool_text_destroy(p.tools);
    if (s == ESP_OK)
        print_end(t->session, a, &p);
    return s;
}

static int answer_once(struct esp_talk *t, const char *prompt, size_t len)
{
    struct esp_answer a;
    esp_error err = {0};
    esp_status s = esp_talk_say(t, "user", prompt, len, &err);

    if (s != ESP_OK)
        return esp_report(s, &err);
    s = esp_run_answer(t, &a, &err);
    esp_answer_free(&a);
    return s == ESP_OK ? esp_interrupted() : esp_report(s, &err);
}

/* Append a file, or standard input, behind what is there; *any tells that there was one. */
static esp_status collect_file(struct esp_strbuf *b, const struct esp_options *o, bool alone, bool *any,
                               esp_error *err)
{
    const char *path = o->v[OPT_INPUT].given ? o->v[OPT_INPUT].s : "-";
    char *text = NULL;
    size_t len = 0;

    *any = o->v[OPT_INPUT].given || (alone && !isatty(STDIN_FILENO));
    if (!*any)
        return ESP_OK;
    ESP_TRY(esp_read_input(path, &text, &len, err));
    while (len && text[len - 1] == '\n')
        len--; /* files end in one, questions do not */
    if (b->len && len)
        esp_strbuf_puts(b, "\n\n");
    esp_strbuf_add(b, text, len);
    esp_free(text);
    return ESP_OK;
}

/* --prompt, PROMPT arguments and --file joined by blank lines; NULL text when there is none of them. */
static esp_status collect(const struct esp_options *o, char **out, size_t *len, esp_error *err)
{
    size_t n;
    const char *const *args = esp_session_args(o, &n);
    const bool given = n || o->v[OPT_PROMPT].given;
    struct esp_strbuf b;
    bool any = false;
    esp_status s;

    esp_strbuf_init(&b, 1u << 30);
    if (o->v[OPT_PROMPT].given)
        esp_strbuf_puts(&b, o->v[OPT_PROMPT].s);
    for (size_t i = 0; i < n; i++)
        esp_strbuf_printf(&b, "%s%s", i ? " " : b.len ? "\n\n" : "", args[i]);
    s = collect_file(&b, o, !given, &any, err);
    if (s == ESP_OK && b.failed)
        s = esp_fail(err, ESP_ENOMEM, "no memory for the prompt");
    if (s == ESP_OK && b.len == 0 && (any || given))
        s = esp_fail(err, ESP_EINVAL, "the prompt is empty");
    *len = b.len;
    *out = s == ESP_OK && b.len ? esp_strbuf_take(&b) : NULL;
    esp_strbuf_free(&b);
    return s;
}

static esp_status open_all(struct esp_session *s, struct esp_talk *t, bool interactive,
                           const struct esp_options *o, esp_error *err)
{
    ESP_TRY(esp_session_open(s, o, err));
    if (!s->info.has_template)
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "%s has no chat template; use 'espalier generate', or give one with --chat-template",
                        s->shown);
    esp_session_engine_opts(s);
    if (interactive) { /* changing the sampling forks the sequence; both share their pages */
        const uint32_t model = s->info.context < 32768 ? s->info.context : 32768;

        s->engine_opts.max_seqs = 2;
        s->engine_opts.context = s->engine_opts.context ? s->engine_opts.context : model;
        s->engine_opts.kv_tokens = (uint64_t)s->engine_opts.context + 512;
    }
    ESP_TRY(esp_session_engine(s, err));
    return esp_talk_open(t, s, err);
}

int esp_verb_run(const struct esp_options *o)
{
    struct esp_session session = {0};
    struct esp_talk talk = {0};
    esp_error err = {0};
    char *prompt = NULL;
    size_t len = 0;
    int code = 0;
    esp_status s = collect(o, &prompt, &len, &err);

    if (s == ESP_OK && !prompt && esp_out_is_json())
        s = esp_fail(&err, ESP_EINVAL, "--json answers one prompt; give PROMPT, --file or piped input");
    if (s == ESP_OK)
        s = open_all(&session, &talk, !prompt, o, &err);
    if (s != ESP_OK)
        code = esp_report(s, &err);
    else if (prompt)
        code = answer_once(&talk, prompt, len);
    else
        code = esp_chat_loop(&talk, o);
    esp_free(prompt);
    esp_talk_close(&talk);
    esp_session_close(&session);
    return code;
}
