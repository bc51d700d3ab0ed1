/*
 * Chats to prompts. The model's template writes the text and says which of it is its own; the tokenizer sees
 * control tokens only there.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "engine/chat.h"

#include "serve/constrain.h"
#include "serve/marks.h"
#include "serve/params.h"
#include "serve/replay.h"

void esp_prompt_free(struct esp_prompt *p)
{
    esp_ids_free(&p->ids);
    esp_strbuf_free(&p->text);
}

/* The last of the template's own text leaves a <think> open. */
static bool opens_thinking(const struct esp_strbuf *text, const struct esp_text_spans *spans)
{
    const char *s = esp_strbuf_str(text), *open = NULL, *at;

    if (spans->n == 0 || spans->v[spans->n - 1].end != text->len)
        return false;
    at = s + spans->v[spans->n - 1].start;
    while ((at = strstr(at, "<think>")) != NULL)
        open = at++;
    return open && !strstr(open, "</think>");
}

/* Take the end of the last turn off, so that its text goes on. */
static void reopen_turn(const struct esp_server *s, struct esp_ids *ids)
{
    size_t n = ids->n;

    while (n > 0 && !esp_token_is_end(s->model, (esp_token)ids->data[n - 1]))
        n--;
    if (n > 0)
        ids->n = n - 1;
}

static bool encode(struct esp_prompt *out, const struct esp_chat_params *p, const struct esp_server *s,
                   const struct esp_text_spans *spans, struct esp_api_error *e)
{
    const struct esp_replay_input in = {
        .messages = p->messages,
        .text = &out->text,
        .spans = spans,
        .stable = json_is_true(json_object_get(p->kwargs, "preserve_thinking")),
    };
    esp_error err;

    return esp_replay_encode(s->replay, s->model, &in, &out->ids, &out->history, &err) ||
           esp_api_fail_status(e, "messages", &err);
}

/* What the template wrote behind the last turn's header, if it is of the family's form and short. */
static void note_opening(struct esp_prompt *out)
{
    static const char mark[] = "<|im_start|>assistant\n";
    const char *text = esp_strbuf_str(&out->text), *last = NULL;

    for (const char *at = text; (at = strstr(at, mark)) != NULL; at++)
        last = at;
    if (!last || strlen(last + sizeof mark - 1) + strlen(out->forced) >= sizeof out->opening)
        return;
    snprintf(out->opening, sizeof out->opening, "%s", last + sizeof mark - 1);
}

/* Tool choice as text to begin with. */
static void force_call(struct esp_prompt *out, const struct esp_chat_params *p)
{
    const char *name = p->tool_choice == ESP_TOOLS_NAMED ? p->tool_name : NULL;

    if (p->tool_choice == ESP_TOOLS_REQUIRED && json_array_size(p->tools) == 1)
        name = json_string_value(
            json_object_get(json_object_get(json_array_get(p->tools, 0), "function"), "name"));
    if (p->tool_choice == ESP_TOOLS_NAMED || p->tool_choice == ESP_TOOLS_REQUIRED)
        snprintf(out->forced, sizeof out->forced, "<tool_call>\n<function=%s%s", name ? name : "",
                 name ? ">\n" : "");
}

static bool append_forced(struct esp_prompt *out, const struct esp_server *s, struct esp_api_error *e)
{
    const struct esp_tok_input in = {
        .text = out->forced, .len = strlen(out->forced), .flags = ESP_TOK_TRUST_ALL};
    esp_error err;

    if (!out->forced[0] || out->thinking)
        return true;
    esp_strbuf_puts(&out->text, out->forced);
    return esp_model_encode(s->model, &in, &out->ids, &err) == ESP_OK ||
           esp_api_fail_status(e, "tools", &err);
}

static bool thinks_not(const struct esp_chat_params *p)
{
    return p->thinking == 0 || p->budget == 0 || p->continue_final;
}

static bool ban_openers(const struct esp_chat_params *p, struct esp_gen *g, const struct esp_server *s,
                        bool off, struct esp_api_error *e)
{
    if ((!off || esp_gen_ban(g, s->think)) &&
        (p->tool_choice != ESP_TOOLS_NONE || !p->tools || esp_gen_ban(g, s->tool_call)))
        return true;
    return esp_api_fail(e, "device_lost", NULL, "no memory for the request");
}

static bool render(struct esp_prompt *out, const struct esp_chat_params *p, const struct esp_server *s,
                   struct esp_text_spans *spans, struct esp_api_error *e)
{
    const struct esp_chat chat = {.messages = p->messages,
                                  .tools = p->tools,
                                  .kwargs = p->kwargs,
                                  .add_generation_prompt = !p->no_generation_prompt && !p->continue_final};
    esp_error err;

    if (esp_model_render(s->model, &chat, &out->text, spans, &err) != ESP_OK)
        return esp_api_fail_status(e, "messages", &err);
    if (!encode(out, p, s, spans, e))
        return false;
    out->n_pin = esp_marks_find(s,
                                &(struct esp_marks_input){.messages = p->messages,
                                                          .tools = p->keep_tools,
                                                          .text = esp_strbuf_str(&out->text),
                                                          .len = out->text.len,
                                                          .spans = spans,
                                                          .ids = &out->ids},
                                out->pins);
    if (p->continue_final)
        reopen_turn(s, &out->ids);
    out->continued = p->continue_final;
    out->thinking = !p->no_generation_prompt && opens_thinking(&out->text, spans);
    return true;
}

bool esp_prompt_chat(struct esp_prompt *out, const struct esp_chat_params *p, const struct esp_server *s,
                     struct esp_api_error *e)
{
    const bool off = thinks_not(p);
    struct esp_text_spans spans = {0};
    bool ok;

    if (off || p->thinking > 0)
        json_object_set_new(p->kwargs, "enable_thinking", json_boolean(!off));
    memset(out, 0, sizeof *out);
    esp_strbuf_init(&out->text, (size_t)s->o.max_prompt_bytes);
    esp_ids_init(&out->ids, ESP_LIMIT_TURN_BYTES);
    ok = render(out, p, s, &spans, e);
    esp_text_spans_free(&spans);
    if (!ok)
        esp_prompt_free(out);
    return ok;
}

bool esp_prompt_finish(struct esp_prompt *out, const struct esp_chat_params *p, struct esp_gen *g,
                       const struct esp_server *s, struct esp_api_error *e)
{
    if (!g->grammar)
        force_call(out, p); /* without a grammar that does it */
    if (!append_forced(out, s, e))
        return false;
    if (!p->continue_final && !p->no_generation_prompt)
        note_opening(out);
    return ban_openers(p, g, s, thinks_not(p), e);
}

struct esp_job_opts esp_prompt_job(struct esp_call *c, struct esp_prompt *prompt, struct esp_chat_params *p,
                                   struct esp_gen *g)
{
    const struct esp_job_opts o = {.call = c,
                                   .gen = g,
                                   .prompt = prompt->ids,
                                   .opening = prompt->opening,
                                   .history = prompt->history,
                                   .thinking = prompt->thinking && !p->raw_reasoning,
                                   .continued = prompt->continued || p->raw_reasoning,
                                   .calls = p->tools && p->tool_choice != ESP_TOOLS_NONE,
                                   .text_in_thinking = c->s->o.text_in_thinking,
                                   .tools = p->tools,
                                   .think_budget = p->budget,
                                   .forced = prompt->forced[0] ? prompt->forced : NULL,
                                   .pins = prompt->pins,
                                   .n_pin = prompt->n_pin};

    memset(&prompt->ids, 0, sizeof prompt->ids);
    return o;
}

bool esp_prompt_text(struct esp_ids *out, const struct esp_server *s, const char *text, size_t len,
                     bool control, struct esp_api_error *e)
{
    const struct esp_tok_input in = {.text = text, .len = len, .flags = control ? ESP_TOK_TRUST_ALL : 0};
    esp_error err;

    if (len > s->o.max_prompt_bytes)
        return esp_api_fail(e, "request_too_large", "prompt", "prompt: %zu bytes; at most %llu are accepted",
                            len, (unsigned long long)s->o.max_prompt_bytes);
    return esp_model_encode(s->model, &in, out, &err) == ESP_OK || esp_api_fail_status(e, "prompt", &err);
}

bool esp_prompt_ids(struct esp_ids *out, const struct esp_server *s, const json_t *ids, const char *param,
                    struct esp_api_error *e)
{
    size_t i;
    json_t *v;

    json_array_foreach(ids, i, v)
    {
        const json_int_t id = json_integer_value(v);

        if (!json_is_integer(v))
            return esp_api_fail(e, "invalid_type", param, "%s[%zu]: %s is not a token id", param, i,
                                esp_show_value(v));
        if (id < 0 || id >= (json_int_t)s->info.n_vocab)
            return esp_api_fail(e, "invalid_value", param, "%s[%zu]: %lld is not a token id; 0 to %u are",
                                param, i, (long long)id, s->info.n_vocab - 1);
        if (esp_ids_push(out, (uint32_t)id, NULL) != ESP_OK)
            return esp_api_fail(e, "device_lost", param, "no memory for %zu token ids", json_array_size(ids));
    }
    return true;
}
