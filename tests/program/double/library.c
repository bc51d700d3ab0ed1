/*
 * A stand-in for the library behind the program, so that tests can make it slow, endless, or broken. Bytes
 * are tokens; the model answers a chat with what the user said in capitals, and goes on with a text by saying
 * it again. A user text that contains one of these words has an effect of its own:
 *     SLOW     a pause of 20 ms before every token
 *     FOREVER  the answer never ends
 *     FAIL     the sequence fails after three tokens
 *     THINK    the answer opens with <think>hm</think>
 *
 * SPDX-License-Identifier: MIT
 */
#include "espalier/espalier.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"

enum { IM_START = 256, IM_END, THINK, THINK_END, N_TOKEN, N_VOCAB = 264, MAX_SEQS = 32, MAX_CONTEXT = 8192 };

static const char *const control[] = {"<|im_start|>", "<|im_end|>", "<think>", "</think>"};

struct esp_model {
    char path[1024];
    bool synthetic;
};

struct esp_seq {
    esp_engine *engine;
    esp_token t[MAX_CONTEXT];
    size_t n, answer_at;        /* where the generation began */
    char plan[MAX_CONTEXT * 2]; /* what it will say */
    size_t n_plan;
    bool armed, logprobs, slow, forever, fails, ignore_end;
    size_t left;
};

struct esp_engine {
    esp_model *model;
    esp_engine_opts opts;
    esp_seq *seqs[MAX_SEQS];
    esp_logprob top;
    esp_stats stats;
};

/* ---- models ---- */

esp_status esp_model_open(esp_model **out, const char *path, const esp_model_opts *opts, esp_error *err)
{
    esp_model *m = calloc(1, sizeof *m);

    if (!m)
        return esp_fail(err, ESP_ENOMEM, "no memory");
    esp_log(ESP_LOG_INFO, "this is the test double");
    snprintf(m->path, sizeof m->path, "%s", path);
    if (strstr(path, "broken")) {
        free(m);
        return esp_fail(err, ESP_EFORMAT, "%s/config.json: broken on purpose", path);
    }
    if (opts && opts->progress && !opts->progress(opts->progress_user, "weights", 1)) {
        free(m);
        return esp_fail(err, ESP_ECANCELLED, "cancelled");
    }
    *out = m;
    return ESP_OK;
}

esp_status esp_model_synthetic(esp_model **out, const char *shape, const char *format, uint64_t seed,
                               const esp_model_opts *opts, esp_error *err)
{
    (void)format;
    (void)seed;
    ESP_TRY(esp_model_open(out, shape, opts, err));
    (*out)->synthetic = true;
    return ESP_OK;
}

void esp_model_close(esp_model *m)
{
    free(m);
}

void esp_model_describe(const esp_model *m, esp_model_info *out)
{
    *out = (esp_model_info){.n_params = 1000000,
                            .weight_bytes = 2000000,
                            .n_layer = 8,
                            .n_full_layer = 2,
                            .hidden = 64,
                            .n_vocab = N_VOCAB,
                            .n_token = N_TOKEN,
                            .context = MAX_CONTEXT,
                            .has_template = !m->synthetic,
                            .temperature = -1,
                            .top_p = -1,
                            .min_p = -1,
                            .top_k = -1};
    snprintf(out->name, sizeof out->name, "double");
    snprintf(out->shape, sizeof out->shape, "custom");
    snprintf(out->weights, sizeof out->weights, "bf16");
}

esp_status esp_adapter_open(esp_adapter **out, esp_model *m, const char *path, esp_error *err)
{
    (void)out;
    (void)m;
    return esp_fail(err, ESP_ENOTFOUND, "%s: the test double has no adapters", path);
}

void esp_adapter_close(esp_adapter *a)
{
    (void)a;
}

void esp_adapter_describe(const esp_adapter *a, esp_adapter_info *out)
{
    (void)a;
    *out = (esp_adapter_info){.n_modules = 0};
}

/* ---- text ---- */

esp_status esp_tokenize(const esp_model *m, const char *text, size_t len, bool trusted, esp_token *out,
                        size_t cap, size_t *n, esp_error *err)
{
    size_t count = 0;

    (void)m;
    (void)err;
    for (size_t i = 0; i < len; count++) {
        esp_token id = (unsigned char)text[i];
        size_t step = 1;

        for (size_t k = 0; trusted && k < 4; k++) {
            const size_t size = strlen(control[k]);

            if (len - i >= size && memcmp(text + i, control[k], size) == 0) {
                id = (esp_token)(IM_START + k);
                step = size;
            }
        }
        if (count < cap)
            out[count] = id;
        i += step;
    }
    *n = count;
    return ESP_OK;
}

esp_status esp_token_bytes(const esp_model *m, esp_token t, char *out, size_t cap, size_t *n, esp_error *err)
{
    (void)m;
    if (t < 0 || t >= N_VOCAB)
        return esp_fail(err, ESP_EINVAL, "token %d", (int)t);
    *n = 0;
    if (t < 256) {
        *n = 1;
        if (cap)
            out[0] = (char)t;
    } else if (t < N_TOKEN) {
        *n = strlen(control[t - IM_START]);
        memcpy(out, control[t - IM_START], *n < cap ? *n : cap);
    }
    return ESP_OK;
}

bool esp_token_is_end(const esp_model *m, esp_token t)
{
    (void)m;
    return t == IM_END;
}

/* A set that nothing here looks into. */
esp_status esp_model_breakers(const esp_model *m, const char *const *texts, size_t n, uint64_t *bits,
                              esp_error *err)
{
    (void)m;
    (void)texts;
    (void)n;
    (void)bits;
    (void)err;
    return ESP_OK;
}

struct out {
    esp_token *ids;
    size_t cap, n;
};

static void put(struct out *o, const char *text, size_t len, bool trusted)
{
    size_t n = 0;

    esp_tokenize(NULL, text, len, trusted, o->n < o->cap ? o->ids + o->n : NULL,
                 o->n < o->cap ? o->cap - o->n : 0, &n, NULL);
    o->n += n;
}

esp_status esp_tokenize_chat(const esp_model *m, const char *messages_json, const esp_chat_opts *opts,
                             esp_token *out, size_t cap, size_t *n, esp_error *err)
{
    json_t *messages = json_loads(messages_json, 0, NULL), *message;
    json_t *args = opts && opts->template_args_json ? json_loads(opts->template_args_json, 0, NULL) : NULL;
    struct out o = {out, cap, 0};
    size_t i;

    (void)m;
    json_array_foreach(messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        const char *content = json_string_value(json_object_get(message, "content"));

        if (!role || !content || strcmp(role, "nobody") == 0) {
            json_decref(messages);
            json_decref(args);
            return esp_fail(err, ESP_EINVAL, "messages[%zu]: unknown role", i);
        }
        put(&o, control[0], strlen(control[0]), true);
        put(&o, role, strlen(role), true);
        put(&o, "\n", 1, true);
        put(&o, content, strlen(content), false);
        put(&o, "<|im_end|>\n", 11, true);
    }
    if (opts && opts->tools_json)
        put(&o, opts->tools_json, strlen(opts->tools_json), false);
    if (!opts || !opts->no_generation_prompt) {
        put(&o, "<|im_start|>assistant\n", 22, true);
        if (json_is_true(json_object_get(args, "enable_thinking")))
            put(&o, "<think>\n", 8, true);
    }
    json_decref(messages);
    json_decref(args);
    *n = o.n;
    return ESP_OK;
}

esp_status esp_render_chat(const esp_model *m, const char *messages_json, const esp_chat_opts *opts,
                           char *out, size_t cap, size_t *n, esp_error *err)
{
    static esp_token ids[MAX_CONTEXT];
    size_t count = 0;

    ESP_TRY(esp_tokenize_chat(m, messages_json, opts, ids, MAX_CONTEXT, &count, err));
    *n = 0;
    for (size_t i = 0; i < count && i < MAX_CONTEXT; i++) {
        char bytes[16];
        size_t len = 0;

        esp_token_bytes(m, ids[i], bytes, sizeof bytes, &len, NULL);
        for (size_t k = 0; k < len; k++, (*n)++) {
            if (*n < cap)
                out[*n] = bytes[k];
        }
    }
    return ESP_OK;
}

/* ---- engines ---- */

esp_status esp_device_look(esp_device *out, const char *device, bool measure, esp_error *err)
{
    (void)measure;
    *out = (esp_device){.name = "cpu"};
    return strcmp(device, "cpu") == 0 ? ESP_OK : esp_fail(err, ESP_EDEVICE, "the double has no %s", device);
}

esp_status esp_engine_plan(const esp_model *m, const esp_engine_opts *o, esp_memory_plan *out, esp_error *err)
{
    (void)m;
    (void)err;
    *out = (esp_memory_plan){.weights = 2000000,
                             .kv_per_token = 1024,
                             .state_per_seq = 100000,
                             .chunk_rows_per_seq = 1000,
                             .kv_pool = (o->kv_tokens ? o->kv_tokens : o->context) * 1024,
                             .state_pool = (uint64_t)o->max_seqs * 303000,
                             .scratch = 500000,
                             .fixed = 1000000};
    out->total = out->weights + out->kv_pool + out->state_pool + out->scratch + out->fixed;
    return ESP_OK;
}

esp_status esp_engine_work(const esp_model *m, const esp_engine_opts *o, esp_work *out, esp_error *err)
{
    (void)m;
    (void)o;
    (void)err;
    *out = (esp_work){.token = {1e6, 0, 3e6}, .output = {0, 0, 2e6}, .other = 5e5, .position = 1e3};
    return ESP_OK;
}

esp_status esp_engine_open(esp_engine **out, esp_model *m, const esp_engine_opts *opts, esp_error *err)
{
    esp_memory_plan p;
    esp_engine *g;

    ESP_TRY(esp_engine_plan(m, opts, &p, err));
    if (opts->memory_budget && p.total > opts->memory_budget)
        return esp_fail(err, ESP_ENOFIT, "%llu bytes are needed, the budget is %llu",
                        (unsigned long long)p.total, (unsigned long long)opts->memory_budget);
    g = calloc(1, sizeof *g);
    if (!g)
        return esp_fail(err, ESP_ENOMEM, "no memory");
    g->model = m;
    g->opts = *opts;
    *out = g;
    return ESP_OK;
}

void esp_engine_close(esp_engine *g)
{
    free(g);
}

static bool contains(const char *s, size_t n, const char *word)
{
    return memmem(s, n, word, strlen(word)) != NULL;
}

/* Decide what the sequence will say. */
static void plan_answer(esp_seq *s)
{
    char text[MAX_CONTEXT] = "";
    size_t n = 0;
    bool chat = false;

    for (size_t i = 0; i < s->n; i++) {
        if (s->t[i] == IM_START) { /* the last user's text: behind the role's line */
            size_t k = i + 1;
            const bool user = i + 5 < s->n && s->t[i + 1] == 'u';

            chat = true;
            while (user && k < s->n && s->t[k] != '\n')
                k++;
            for (n = user ? 0 : n, k++; user && k < s->n && s->t[k] != IM_END; k++)
                text[n++] = (char)s->t[k];
        } else if (!chat && s->t[i] < 256) {
            text[n++] = (char)s->t[i];
        }
    }
    s->slow = contains(text, n, "SLOW");
    s->forever = contains(text, n, "FOREVER");
    s->fails = contains(text, n, "FAIL");
    s->n_plan = 0;
    if (contains(text, n, "THINK")) {
        memcpy(s->plan, "<think>hm</think>\n\n", 19);
        s->n_plan = 19;
    }
    for (size_t i = 0; i < n; i++)
        s->plan[s->n_plan++] = chat && text[i] >= 'a' && text[i] <= 'z' ? (char)(text[i] - 32) : text[i];
}

static void one(esp_seq *s, esp_event *e)
{
    const size_t at = s->n - s->answer_at;

    *e = (esp_event){.seq = s, .token = -1};
    if (s->slow) {
        const struct timespec pause = {.tv_nsec = 20000000};

        nanosleep(&pause, NULL);
    }
    if (s->fails && at == 3) {
        e->finish = ESP_FINISH_FAILED;
        e->message = "failed on purpose";
    } else if (s->left == 0 || s->n == s->engine->opts.context) {
        e->finish = ESP_FINISH_LENGTH;
    } else if (!s->forever && !s->ignore_end && at >= s->n_plan) {
        e->finish = ESP_FINISH_END;
    } else {
        e->token = at < s->n_plan ? (unsigned char)s->plan[at] : "la "[at % 3];
        s->t[s->n++] = e->token;
        s->left--;
        s->engine->stats.generated_tokens++;
        e->finish = s->left ? ESP_FINISH_NONE : ESP_FINISH_LENGTH;
        if (s->logprobs) {
            s->engine->top = (esp_logprob){e->token, -0.5F};
            e->logprob = -0.5F;
            e->top = &s->engine->top;
            e->n_top = 1;
        }
    }
    s->armed = e->finish == ESP_FINISH_NONE;
}

esp_status esp_engine_step(esp_engine *g, esp_event *out, size_t cap, size_t *n, esp_error *err)
{
    (void)err;
    *n = 0;
    g->stats.steps++;
    for (size_t i = 0; i < MAX_SEQS && *n < cap; i++) {
        if (g->seqs[i] && g->seqs[i]->armed)
            one(g->seqs[i], &out[(*n)++]);
    }
    return ESP_OK;
}

void esp_engine_stats(const esp_engine *g, esp_stats *out)
{
    *out = g->stats;
}

/* ---- sequences ---- */

esp_status esp_seq_open(esp_seq **out, esp_engine *g, const esp_seq_opts *opts, esp_error *err)
{
    size_t i = 0;

    while (i < g->opts.max_seqs && g->seqs[i])
        i++;
    if (i == g->opts.max_seqs || i == MAX_SEQS)
        return esp_fail(err, ESP_ENOFIT, "%zu sequences are open", i);
    *out = g->seqs[i] = calloc(1, sizeof **out);
    if (!*out)
        return esp_fail(err, ESP_ENOMEM, "no memory");
    (*out)->engine = g;
    (*out)->logprobs = opts && opts->logprobs;
    (*out)->ignore_end = opts && opts->sampling.ignore_end;
    return ESP_OK;
}

void esp_seq_close(esp_seq *s)
{
    for (size_t i = 0; s && i < MAX_SEQS; i++) {
        if (s->engine->seqs[i] == s)
            s->engine->seqs[i] = NULL;
    }
    free(s);
}

esp_status esp_seq_append(esp_seq *s, const esp_token *t, size_t n, esp_error *err)
{
    if (s->armed)
        return esp_fail(err, ESP_ESTATE, "generating");
    if (n > s->engine->opts.context - s->n || n > MAX_CONTEXT - s->n)
        return esp_fail(err, ESP_ENOFIT, "%zu tokens after %zu do not fit into the context of %u", n, s->n,
                        s->engine->opts.context);
    memcpy(s->t + s->n, t, n * sizeof *t);
    s->n += n;
    s->engine->stats.prompt_tokens += n;
    return ESP_OK;
}

esp_status esp_seq_generate(esp_seq *s, size_t max_new, esp_error *err)
{
    if (s->n == 0)
        return esp_fail(err, ESP_ESTATE, "the sequence is empty");
    s->answer_at = s->n;
    plan_answer(s);
    s->armed = true;
    s->left = max_new;
    return ESP_OK;
}

void esp_seq_stop(esp_seq *s)
{
    s->armed = false;
}

size_t esp_seq_length(const esp_seq *s)
{
    return s->n;
}

esp_status esp_seq_tokens(const esp_seq *s, esp_token *out, size_t cap, size_t *n, esp_error *err)
{
    (void)err;
    memcpy(out, s->t, (cap < s->n ? cap : s->n) * sizeof *out);
    *n = s->n;
    return ESP_OK;
}

esp_status esp_seq_rewind(esp_seq *s, size_t length, esp_error *err)
{
    if (length > s->n)
        return esp_fail(err, ESP_EINVAL, "rewind to %zu of %zu", length, s->n);
    s->n = length;
    return ESP_OK;
}

esp_status esp_seq_snapshot(esp_seq *s, esp_error *err)
{
    (void)s;
    (void)err;
    return ESP_OK;
}

esp_status esp_seq_fork(esp_seq **out, const esp_seq *s, const esp_seq_opts *opts, esp_error *err)
{
    ESP_TRY(esp_seq_open(out, s->engine, opts, err));
    memcpy((*out)->t, s->t, s->n * sizeof *s->t);
    (*out)->n = s->n;
    return ESP_OK;
}

/* All tokens equally likely, but for the byte 0xff, behind which nothing is finite. */
esp_status esp_seq_logits(esp_seq *s, const esp_token *t, size_t n, float *out, esp_error *err)
{
    ESP_TRY(esp_seq_append(s, t, n, err));
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < N_VOCAB; k++)
            out[i * N_VOCAB + k] = t[i] == 0xff ? NAN : 2.0F;
    }
    return ESP_OK;
}
