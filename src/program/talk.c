/*
 * Conversations. That a prompt is a continuation of the last one is never assumed: token ids are compared,
 * because templates may rewrite history (they drop old thinking, for one).
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/talk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

#include "program/output.h"

enum { MAX_ANSWER_BYTES = 64 << 20, MAX_CHAT_FILE = 256 << 20, MAX_EVENTS = 8 };

json_t *esp_json_text(const char *s, size_t len)
{
    struct esp_strbuf b;
    json_t *j;

    if (esp_utf8_valid(s, len, NULL) && !memchr(s, 0, len))
        return json_stringn(s, len);
    esp_strbuf_init(&b, len < (SIZE_MAX - 1) / 3 ? 3 * len + 1 : SIZE_MAX);
    for (size_t i = 0; i < len;) {
        uint32_t cp = 0;
        const size_t n = esp_utf8_decode(s + i, len - i, &cp);

        if (n && cp)
            esp_strbuf_add(&b, s + i, n);
        else
            esp_strbuf_puts(&b, "\xef\xbf\xbd");
        i += n ? n : esp_utf8_bad_span(s + i, len - i);
    }
    j = b.failed ? NULL : json_stringn(esp_strbuf_str(&b), b.len);
    esp_strbuf_free(&b);
    return j;
}

/* ---- messages ---- */

static esp_status append(struct esp_talk *t, json_t *message, esp_error *err)
{
    char *line;

    if (!message || json_array_append_new(t->messages, message) != 0)
        return esp_fail(err, ESP_ENOMEM, "no memory for a message");
    if (!t->transcript)
        return ESP_OK;
    line = json_dumps(message, JSON_COMPACT);
    if (line && fprintf(t->transcript, "%s\n", line) > 0 && fflush(t->transcript) == 0) {
        free(line);
        return ESP_OK;
    }
    free(line);
    json_array_remove(t->messages, json_array_size(t->messages) - 1);
    return esp_fail(err, ESP_EIO, "the transcript could not be written: %s", strerror(errno));
}

esp_status esp_talk_say(struct esp_talk *t, const char *role, const char *text, size_t len, esp_error *err)
{
    return append(t, json_pack("{s:s,s:o*}", "role", role, "content", esp_json_text(text, len)), err);
}

static bool has_system(const struct esp_talk *t)
{
    const char *role = json_string_value(json_object_get(json_array_get(t->messages, 0), "role"));

    return role && strcmp(role, "system") == 0;
}

void esp_talk_clear(struct esp_talk *t)
{
    for (size_t n = json_array_size(t->messages), keep = has_system(t); n > keep; n--)
        json_array_remove(t->messages, n - 1);
}

esp_status esp_talk_system(struct esp_talk *t, const char *text, esp_error *err)
{
    json_t *message;

    if (has_system(t))
        json_array_remove(t->messages, 0);
    if (!text)
        return ESP_OK;
    message = json_pack("{s:s,s:o*}", "role", "system", "content", esp_json_text(text, strlen(text)));
    if (!message || json_array_insert_new(t->messages, 0, message) != 0)
        return esp_fail(err, ESP_ENOMEM, "no memory for the system message");
    return ESP_OK;
}

esp_status esp_talk_save(const struct esp_talk *t, const char *path, esp_error *err)
{
    json_t *doc = json_pack("{s:s,s:O}", "schema", "espalier.chat.v1", "messages", t->messages);
    char *text = doc ? json_dumps(doc, JSON_INDENT(1)) : NULL;
    const int fd = text ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = f && fprintf(f, "%s\n", text) > 0;
    const int why = errno;

    if (f)
        ok = fclose(f) == 0 && ok;
    free(text);
    json_decref(doc);
    return ok ? ESP_OK : esp_fail(err, ESP_EIO, "%s: could not be written: %s", path, strerror(why));
}

esp_status esp_talk_load(struct esp_talk *t, const char *path, esp_error *err)
{
    json_t *doc = NULL, *messages;
    size_t i;
    json_t *m;

    ESP_TRY(esp_json_load(&doc, path, MAX_CHAT_FILE, 0, err));
    messages = json_is_array(doc) ? doc : json_object_get(doc, "messages");
    json_array_foreach(messages, i, m)
    {
        if (!json_is_string(json_object_get(m, "role"))) {
            json_decref(doc);
            return esp_fail(err, ESP_EFORMAT, "%s: message %zu has no role", path, i);
        }
    }
    if (!json_is_array(messages)) {
        json_decref(doc);
        return esp_fail(err, ESP_EFORMAT,
                        "%s: an array of messages, or an object with \"messages\", is expected", path);
    }
    json_incref(messages);
    json_decref(t->messages);
    t->messages = messages;
    json_decref(doc);
    return ESP_OK;
}

/* ---- opening ---- */

static esp_status read_tools(struct esp_talk *t, const char *path, esp_error *err)
{
    json_t *tools = NULL;

    ESP_TRY(esp_json_load(&tools, path, ESP_LIMIT_CONFIG_BYTES, 0, err));
    if (!json_is_array(tools)) {
        json_decref(tools);
        return esp_fail(err, ESP_EFORMAT, "%s: an array of tools is expected", path);
    }
    t->tools = json_dumps(tools, JSON_COMPACT);
    json_decref(tools);
    return t->tools ? ESP_OK : esp_fail(err, ESP_ENOMEM, "no memory for the tools");
}

static esp_status open_transcript(struct esp_talk *t, const char *path, esp_error *err)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    t->transcript = fd >= 0 ? fdopen(fd, "a") : NULL;
    return t->transcript ? ESP_OK
                         : esp_fail(err, ESP_EIO, "%s: could not be opened: %s", path, strerror(errno));
}

esp_status esp_talk_open(struct esp_talk *t, struct esp_session *s, esp_error *err)
{
    const struct esp_opt_value *v = s->opt->v;
    esp_seq_opts so;

    *t = (struct esp_talk){.session = s,
                           .max_tokens = esp_session_max_tokens(s->opt),
                           .stops = v[OPT_STOP].list,
                           .n_stops = v[OPT_STOP].n};
    t->messages = json_array();
    if (!t->messages)
        return esp_fail(err, ESP_ENOMEM, "no memory for a conversation");
    ESP_TRY(esp_session_sampling(s, &t->sampling, err));
    ESP_TRY(esp_session_template_args(s->opt, &t->template_args, err));
    if (v[OPT_TOOLS].given)
        ESP_TRY(read_tools(t, v[OPT_TOOLS].s, err));
    if (v[OPT_TRANSCRIPT].given)
        ESP_TRY(open_transcript(t, v[OPT_TRANSCRIPT].s, err));
    if (v[OPT_SYSTEM].given)
        ESP_TRY(esp_talk_say(t, "system", v[OPT_SYSTEM].s, strlen(v[OPT_SYSTEM].s), err));
    ESP_TRY(esp_structure_open(&t->structure, s->opt, s->model, true, err));
    so = (esp_seq_opts){.sampling = t->sampling};
    esp_adapters_use(&s->adapters, &so);
    return esp_seq_open(&t->seq, s->engine, &so, err);
}

void esp_talk_close(struct esp_talk *t)
{
    esp_seq_close(t->seq);
    esp_structure_close(&t->structure);
    json_decref(t->messages);
    json_decref(t->template_args);
    free(t->tools);
    if (t->transcript)
        fclose(t->transcript); /* every line was flushed and checked */
    memset(t, 0, sizeof *t);
}

esp_status esp_talk_resample(struct esp_talk *t, esp_error *err)
{
    const esp_seq_opts so = {.sampling = t->sampling};
    esp_seq *s;

    ESP_TRY(esp_seq_fork(&s, t->seq, &so, err));
    esp_seq_close(t->seq);
    t->seq = s;
    return ESP_OK;
}

esp_status esp_talk_readapt(struct esp_talk *t, esp_error *err)
{
    esp_seq_opts so = {.sampling = t->sampling};
    esp_seq *s;

    esp_adapters_use(&t->session->adapters, &so);
    ESP_TRY(esp_seq_open(&s, t->session->engine, &so, err));
    esp_seq_close(t->seq);
    t->seq = s;
    return ESP_OK;
}

/* ---- answering ---- */

struct turn {
    struct esp_talk *talk;
    struct esp_answer *answer;
    struct esp_text_stream *stream;
    esp_text_fn fn;
    void *user;
    double start;
};

static void on_text(void *user, enum esp_channel channel, const char *s, size_t len)
{
    struct turn *u = user;

    esp_strbuf_add(channel == ESP_CHANNEL_ANSWER ? &u->answer->text : &u->answer->thinking, s, len);
    u->fn(u->user, channel, s, len);
}

/* Whether the rendered prompt ends in an opened <think>. Only its end counts: users may write the tag, too.
 */
static bool opens_thinking(const char *text, size_t len)
{
    static const char tag[] = "<think>";

    while (len && strchr(" \t\r\n", text[len - 1]))
        len--;
    return len >= sizeof tag - 1 && memcmp(text + len - (sizeof tag - 1), tag, sizeof tag - 1) == 0;
}

/* Run what is known of the sequence but for its last token, without an answer. */
static esp_status run_known(struct esp_talk *t, esp_error *err)
{
    esp_event events[MAX_EVENTS];
    bool done = false;

    ESP_TRY(esp_seq_generate(t->seq, 0, err));
    while (!done && !esp_interrupted()) {
        size_t n = 0;

        ESP_TRY(esp_engine_step(t->session->engine, events, MAX_EVENTS, &n, err));
        for (size_t i = 0; i < n; i++) {
            if (events[i].seq == t->seq && events[i].finish == ESP_FINISH_FAILED)
                return esp_fail(err, ESP_ENUMERIC, "%s",
                                events[i].message ? events[i].message : "the prompt failed");
            done = done || (events[i].seq == t->seq && events[i].finish != ESP_FINISH_NONE);
        }
    }
    esp_seq_stop(t->seq);
    return ESP_OK;
}

/* How many of the n tokens of the prompt the sequence begins with; all but one at most, whose logits are
 * needed. */
static esp_status shared(const struct esp_talk *t, const esp_token *ids, size_t n, size_t *common,
                         esp_error *err)
{
    const size_t have = esp_seq_length(t->seq), most = have < n - 1 ? have : n - 1;
    esp_token *old = calloc(have + 1, sizeof *old);
    size_t got = 0;
    esp_status s;

    if (!old)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu token ids", have);
    s = esp_seq_tokens(t->seq, old, have, &got, err);
    for (*common = 0; s == ESP_OK && *common < most && old[*common] == ids[*common];)
        (*common)++;
    free(old);
    return s;
}

/*
 * Bring the sequence to exactly the n tokens of the prompt, keeping what both share. Templates write an
 * answer of the past without the thinking that opened it, so the next prompt parts from this one at `turn`,
 * where the messages end: a snapshot there is what the next turn goes on from. turn 0: none is needed.
 */
static esp_status align(struct esp_talk *t, const esp_token *ids, size_t n, size_t turn, esp_error *err)
{
    const size_t context = t->session->engine_opts.context;
    size_t common = 0;

    if (n == 0)
        return esp_fail(err, ESP_EFORMAT, "the chat template made no tokens of the messages");
    if (n >= context)
        return esp_fail(err, ESP_ENOFIT,
                        "the prompt has %zu tokens; the context of %zu has no room for an answer", n,
                        context);
    ESP_TRY(shared(t, ids, n, &common, err));
    if (common < esp_seq_length(t->seq))
        ESP_TRY(esp_seq_rewind(t->seq, common, err));
    if (turn >= common && turn > 0 && turn + 1 < n) {
        ESP_TRY(esp_seq_append(t->seq, ids + common, turn + 1 - common, err));
        common = turn + 1;
        ESP_TRY(run_known(t, err));
        if (esp_seq_snapshot(t->seq, NULL) != ESP_OK)
            esp_say_detail("no snapshot was free; the next turn may run more of the prompt again");
    }
    return esp_seq_append(t->seq, ids + common, n - common, err);
}

/* How many of the n tokens of the prompt stand before the answer is opened; 0 when that cannot be said. */
static size_t turn_start(const struct esp_talk *t, const char *messages, esp_chat_opts opts,
                         const esp_token *ids, size_t n)
{
    esp_token *closed = NULL;
    size_t len = 0, same = 0;

    opts.no_generation_prompt = true;
    if (!t->goes_on || esp_chat_ids(t->session->model, messages, &opts, &closed, &len, NULL) != ESP_OK)
        return 0;
    while (same < len && same < n && closed[same] == ids[same])
        same++;
    free(closed);
    return same;
}

static esp_status prompt(struct turn *u, enum esp_text_mode *mode, esp_error *err)
{
    struct esp_talk *t = u->talk;
    char *messages = json_dumps(t->messages, JSON_COMPACT),
         *args = json_dumps(t->template_args, JSON_COMPACT);
    const esp_chat_opts opts = {.tools_json = t->tools, .template_args_json = args};
    const esp_model *m = t->session->model;
    esp_token *ids = NULL;
    char *text = NULL;
    size_t n = 0, len = 0;
    esp_status s;

    if (messages && args)
        s = esp_chat_ids(m, messages, &opts, &ids, &n, err);
    else
        s = esp_fail(err, ESP_ENOMEM, "no memory for the messages");
    if (s == ESP_OK)
        s = esp_chat_text(m, messages, &opts, &text, &len, err);
    if (s == ESP_OK) {
        *mode = opens_thinking(text, len) ? ESP_TEXT_THINKING : ESP_TEXT_ANSWER;
        u->answer->prompt_tokens = n;
        s = align(t, ids, n, turn_start(t, messages, opts, ids, n), err);
    }
    free(text);
    free(ids);
    free(messages);
    free(args);
    return s;
}

/* One event; *done when the answer is over. */
static esp_status take(struct turn *u, const esp_event *e, bool *done, esp_error *err)
{
    char bytes[MAX_TOKEN_BYTES];
    bool stopped = false;

    if (e->finish == ESP_FINISH_FAILED)
        return esp_fail(err, ESP_ENUMERIC, "%s", e->message ? e->message : "the generation failed");
    if (e->token >= 0) {
        if (u->answer->generated_tokens++ == 0)
            u->answer->first_s = esp_now() - u->start;
        ESP_TRY(esp_text_stream_feed(
            u->stream, bytes, esp_token_text(u->talk->session->model, e->token, bytes), &stopped, err));
    }
    if (stopped)
        esp_seq_stop(u->talk->seq);
    else if (e->finish != ESP_FINISH_NONE)
        u->answer->end = e->finish == ESP_FINISH_LENGTH ? ESP_ANSWER_LENGTH : ESP_ANSWER_END;
    *done = stopped || e->finish != ESP_FINISH_NONE;
    return ESP_OK;
}

static esp_status generate(struct turn *u, esp_error *err)
{
    struct esp_talk *t = u->talk;
    const size_t context = t->session->engine_opts.context, used = esp_seq_length(t->seq);
    const size_t room = context - used; /* align() has left some */
    const size_t most = t->max_tokens < room ? t->max_tokens : room;
    esp_event events[MAX_EVENTS];
    bool done = false;

    ESP_TRY(esp_seq_generate(t->seq, most, err));
    while (!done) {
        size_t n = 0;

        if (esp_interrupted() || esp_out_failed()) {
            esp_seq_stop(t->seq);
            u->answer->end = ESP_ANSWER_INTERRUPTED;
            break;
        }
        ESP_TRY(esp_engine_step(t->session->engine, events, MAX_EVENTS, &n, err));
        for (size_t i = 0; i < n && !done; i++) {
            if (events[i].seq == t->seq)
                ESP_TRY(take(u, &events[i], &done, err));
        }
    }
    ESP_TRY(esp_text_stream_end(u->stream, err));
    u->answer->stop = esp_text_stream_stop(u->stream);
    if (u->answer->stop)
        u->answer->end = ESP_ANSWER_STOP;
    return ESP_OK;
}

static esp_status keep_answer(struct turn *u, esp_error *err)
{
    const struct esp_answer *a = u->answer;
    json_t *m = json_pack("{s:s,s:o*}", "role", "assistant", "content",
                          esp_json_text(esp_strbuf_str(&a->text), a->text.len));

    if (m && a->thinking.len)
        json_object_set_new(m, "reasoning_content",
                            esp_json_text(esp_strbuf_str(&a->thinking), a->thinking.len));
    return append(u->talk, m, err);
}

esp_status esp_talk_answer(struct esp_talk *t, esp_text_fn fn, void *user, struct esp_answer *out,
                           esp_error *err)
{
    struct turn u = {.talk = t, .answer = out, .fn = fn, .user = user, .start = esp_now()};
    enum esp_text_mode mode = ESP_TEXT_ANSWER;
    esp_stats before, after;
    size_t known;
    esp_status s;

    memset(out, 0, sizeof *out);
    esp_engine_stats(t->session->engine, &before);
    esp_strbuf_init(&out->text, MAX_ANSWER_BYTES);
    esp_strbuf_init(&out->thinking, MAX_ANSWER_BYTES);
    s = prompt(&u, &mode, err);
    if (s == ESP_OK)
        s = esp_text_stream_create(&u.stream, mode, t->stops, t->n_stops, on_text, &u, err);
    if (s == ESP_OK)
        s = esp_structure_apply(&t->structure, t->seq, mode == ESP_TEXT_THINKING, err);
    if (s == ESP_OK)
        s = generate(&u, err);
    if (s != ESP_OK)
        esp_seq_stop(t->seq);
    esp_structure_lift(&t->structure, t->seq);
    if (s == ESP_OK)
        s = keep_answer(&u, err);
    esp_engine_stats(t->session->engine, &after);
    known =
        out->prompt_tokens - (out->prompt_tokens && !t->max_tokens); /* the last one waits for an answer */
    if (after.prompt_tokens - before.prompt_tokens < known)          /* rewinding may run some again */
        out->cached_tokens = known - (after.prompt_tokens - before.prompt_tokens);
    esp_text_stream_destroy(u.stream);
    out->total_s = esp_now() - u.start;
    return s;
}

void esp_answer_free(struct esp_answer *a)
{
    esp_strbuf_free(&a->text);
    esp_strbuf_free(&a->thinking);
}

const char *esp_answer_end_name(enum esp_answer_end e)
{
    static const char *const names[] = {"end", "length", "stop", "interrupted"};

    return names[e];
}
