/*
 * eval: how often a model finds what was said far back (recall.h). An item's prompt runs once; the greedy
 * answer and the likelihood of every code in the text go on from forks of it. Prompts depend on the model's
 * tokenizer and template alone: keys, values and states may be kept in any way without a change of a task's
 * text.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "engine/engine.h"

#include "program/eval_state.h"
#include "program/output.h"
#include "program/recall.h"
#include "program/session.h"
#include "program/talk.h"

enum {
    MAX_TEXT = 64 << 20,
    ANSWER_TOKENS = 16,
    ANSWER_BYTES = 1024,
    MAX_CODE_IDS = 16,
    MAX_SENTENCES = 1 << 20
};

struct result { /* of one task at one length */
    uint32_t n, right, chosen;
    double tokens;
};

struct eval {
    struct esp_session session;
    const struct esp_options *opt;
    bool chat;
    bool want[ESP_RECALL_TASKS];
    double min[ESP_RECALL_TASKS]; /* NAN: none */
    struct result results[ESP_RECALL_TASKS][MAX_OPT_LIST];
    struct esp_eval_state state; /* samples NULL: none wanted */
    float *logits;               /* [MAX_CODE_IDS][n_vocab] */
    size_t done, total;          /* items; done counts those of the run before as well */
};

struct item {
    struct esp_recall recall;
    struct esp_recall_answer answer;
    esp_token *ids;
    size_t n_ids;
    uint64_t hash; /* of the text */
    char got[ANSWER_BYTES];
    size_t n_got;
    double logprob[ESP_RECALL_KEYS];
    bool right, chosen;
};

/* ---- options ---- */

static int task_of(const char *name, size_t len)
{
    for (int t = 0; t < ESP_RECALL_TASKS; t++) {
        const char *known = esp_recall_name((enum esp_recall_task)t);

        if (strlen(known) == len && memcmp(known, name, len) == 0)
            return t;
    }
    return -1;
}

static esp_status read_tasks(struct eval *e, esp_error *err)
{
    const char *p = e->opt->v[OPT_TASKS].s;

    while (*p) {
        const size_t len = strcspn(p, ",");
        const int t = task_of(p, len);

        if (t >= 0)
            e->want[t] = true;
        else if (len == strlen("recall") && memcmp(p, "recall", len) == 0)
            e->want[ESP_RECALL_NEEDLE] = e->want[ESP_RECALL_HOPS] = true;
        else
            return esp_fail(err, ESP_EINVAL, "--tasks: '%.*s' is not one of needle, hops, recall (both)",
                            (int)len, p);
        p += len + (p[len] == ',');
    }
    return e->want[0] || e->want[1]
               ? ESP_OK
               : esp_fail(err, ESP_EINVAL, "--tasks names no task; needle, hops, recall (both) are there");
}

static esp_status read_limits(struct eval *e, esp_error *err)
{
    const struct esp_opt_value *v = &e->opt->v[OPT_MIN];

    for (int t = 0; t < ESP_RECALL_TASKS; t++)
        e->min[t] = NAN;
    for (size_t i = 0; i < v->n; i++) {
        const char *eq = strchr(v->list[i], '=');
        const int t = eq ? task_of(v->list[i], (size_t)(eq - v->list[i])) : -1;
        double f;

        if (t < 0 || !e->want[t] || !esp_parse_float(eq + 1, &f) || !(f >= 0 && f <= 1))
            return esp_fail(err, ESP_EINVAL,
                            "--min: '%.200s' is not TASK=F with a task of --tasks and F from 0 to 1",
                            v->list[i]);
        e->min[t] = f;
    }
    return ESP_OK;
}

/* ---- prompts ---- */

/* The prompt of r with so many sentences, as ids. */
static esp_status prompt(const struct eval *e, struct item *it, esp_error *err)
{
    struct esp_strbuf text;
    json_t *messages = NULL;
    char *dump = NULL;
    esp_status s;

    free(it->ids);
    it->ids = NULL;
    esp_strbuf_init(&text, MAX_TEXT);
    s = esp_recall_text(&it->recall, e->chat, &text, &it->answer, err);
    it->hash = esp_hash(text.data, text.len, 0);
    if (s == ESP_OK && e->chat) {
        const esp_chat_opts opts = {.template_args_json = "{\"enable_thinking\":false}"};

        messages = json_pack("[{s:s,s:s}]", "role", "user", "content", esp_strbuf_str(&text));
        dump = messages ? json_dumps(messages, JSON_COMPACT) : NULL;
        s = dump ? esp_chat_ids(e->session.model, dump, &opts, &it->ids, &it->n_ids, err)
                 : esp_fail(err, ESP_ENOMEM, "no memory for a prompt");
    } else if (s == ESP_OK) {
        s = esp_text_ids(e->session.model, text.data, text.len, false, &it->ids, &it->n_ids, err);
    }
    free(dump);
    json_decref(messages);
    esp_strbuf_free(&text);
    return s;
}

/* As many sentences as fit `length` ids. */
static esp_status fit_prompt(const struct eval *e, struct item *it, size_t length, esp_error *err)
{
    uint32_t low = 0, high = 1;

    it->recall.n_sentence = 0;
    ESP_TRY(prompt(e, it, err));
    if (it->n_ids > length)
        return esp_fail(err, ESP_EINVAL, "--lengths %zu: the facts of task %s alone take %zu tokens", length,
                        esp_recall_name(it->recall.task), it->n_ids);
    for (; high < MAX_SENTENCES && it->n_ids <= length; high *= 2) {
        it->recall.n_sentence = high;
        ESP_TRY(prompt(e, it, err));
        if (it->n_ids <= length)
            low = high;
    }
    high = high / 2 < MAX_SENTENCES ? high / 2 : MAX_SENTENCES;
    while (low + 1 < high) {
        it->recall.n_sentence = low + (high - low) / 2;
        ESP_TRY(prompt(e, it, err));
        if (it->n_ids <= length)
            low = it->recall.n_sentence;
        else
            high = it->recall.n_sentence;
    }
    it->recall.n_sentence = low;
    return prompt(e, it, err);
}

/* ---- running ---- */

/* Step until s is done; its text goes to it, when there is one. */
static esp_status drive(const struct eval *e, esp_seq *s, struct item *it, esp_error *err)
{
    for (;;) {
        esp_event events[4];
        size_t n = 0;

        if (esp_interrupted())
            return esp_fail(err, ESP_ECANCELLED, "interrupted after %zu of %zu items", e->done, e->total);
        ESP_TRY(esp_engine_step(e->session.engine, events, 4, &n, err));
        for (size_t i = 0; i < n; i++) {
            char bytes[MAX_TOKEN_BYTES];
            size_t len;

            if (events[i].seq != s)
                continue;
            if (events[i].finish == ESP_FINISH_FAILED)
                return esp_fail(err, ESP_ENUMERIC, "item %u of task %s: %s", it->recall.index,
                                esp_recall_name(it->recall.task), events[i].message);
            len = events[i].token >= 0 ? esp_token_text(e->session.model, events[i].token, bytes) : 0;
            if (len <= sizeof it->got - it->n_got) {
                memcpy(it->got + it->n_got, bytes, len);
                it->n_got += len;
            }
            if (events[i].finish != ESP_FINISH_NONE)
                return ESP_OK;
        }
    }
}

/* Log-probability of id in a row of logits. */
static double logprob(const float *row, size_t n, esp_token id)
{
    float max = row[0];
    double sum = 0;

    for (size_t i = 1; i < n; i++)
        max = row[i] > max ? row[i] : max;
    for (size_t i = 0; i < n; i++)
        sum += exp((double)row[i] - (double)max);
    /* cppcheck-suppress invalidFunctionArg */
    return (double)row[id] - (double)max - log(sum); /* the term of the maximum is 1 */
}

/* How likely the model finds a code behind the prompt, whose last id has not run. */
static esp_status weigh(const struct eval *e, const esp_seq *base, const esp_seq_opts *so, struct item *it,
                        uint32_t k, esp_error *err)
{
    const size_t vocab = e->session.info.n_vocab;
    esp_token *ids = NULL, fed[MAX_CODE_IDS];
    char text[ESP_RECALL_DIGITS + 2];
    esp_seq *s = NULL;
    size_t n;
    esp_status st;

    snprintf(text, sizeof text, "%s%s", e->chat ? "" : " ", it->answer.code[k]);
    ESP_TRY(esp_text_ids(e->session.model, text, strlen(text), false, &ids, &n, err));
    st = n && n <= MAX_CODE_IDS ? esp_seq_fork(&s, base, so, err)
                                : esp_fail(err, ESP_EUNSUPPORTED,
                                           "a code of %zu tokens; at most %d are possible", n, MAX_CODE_IDS);
    if (st == ESP_OK) {
        fed[0] = it->ids[it->n_ids - 1];
        memcpy(fed + 1, ids, (n - 1) * sizeof *fed);
        st = esp_seq_logits(s, fed, n, e->logits, err);
    }
    it->logprob[k] = 0;
    for (size_t i = 0; st == ESP_OK && i < n; i++)
        it->logprob[k] += logprob(e->logits + i * vocab, vocab, ids[i]);
    esp_seq_close(s);
    free(ids);
    return st;
}

static esp_status answer(const struct eval *e, const esp_seq *base, const esp_seq_opts *so, struct item *it,
                         esp_error *err)
{
    esp_seq *s;
    esp_status st;

    ESP_TRY(esp_seq_fork(&s, base, so, err));
    st = esp_seq_append(s, it->ids + it->n_ids - 1, 1, err);
    if (st == ESP_OK)
        st = esp_seq_generate(s, ANSWER_TOKENS, err);
    if (st == ESP_OK)
        st = drive(e, s, it, err);
    esp_seq_close(s);
    it->right = esp_recall_right(it->answer.code[0], it->got, it->n_got);
    return st;
}

static esp_status run_item(const struct eval *e, struct item *it, esp_error *err)
{
    esp_seq_opts so = {.sampling = {.temperature = 0}};
    uint32_t best = 0;
    esp_seq *base;
    esp_status s;

    esp_adapters_use(&e->session.adapters, &so);
    ESP_TRY(esp_seq_open(&base, e->session.engine, &so, err));
    s = esp_seq_append(base, it->ids, it->n_ids - 1, err);
    if (s == ESP_OK)
        s = esp_seq_generate(base, 0, err);
    if (s == ESP_OK)
        s = drive(e, base, it, err);
    for (uint32_t k = 0; s == ESP_OK && k < ESP_RECALL_KEYS; k++) {
        s = weigh(e, base, &so, it, k, err);
        best = it->logprob[k] > it->logprob[best] ? k : best;
    }
    it->chosen = best == 0;
    if (s == ESP_OK)
        s = answer(e, base, &so, it, err);
    esp_seq_close(base);
    return s;
}

/* ---- output ---- */

/* An item as a line of the samples; a new object. */
static json_t *sample(const struct item *it, size_t length)
{
    json_t *codes = json_array(), *scores = json_array();
    char hash[20];

    snprintf(hash, sizeof hash, "%016" PRIx64, it->hash);
    for (int k = 0; k < ESP_RECALL_KEYS; k++) {
        json_array_append_new(codes, json_string(it->answer.code[k]));
        json_array_append_new(scores, json_real(it->logprob[k]));
    }
    return json_pack("{s:s,s:i,s:I,s:I,s:s,s:f,s:s,s:o*,s:b,s:b,s:o,s:o}", "task",
                     esp_recall_name(it->recall.task), "item", (int)it->recall.index, "length",
                     (json_int_t)length, "tokens", (json_int_t)it->n_ids, "text_hash", hash, "depth",
                     it->answer.depth, "code", it->answer.code[0], "answer",
                     esp_json_text(it->got, it->n_got), "right", it->right, "chosen", it->chosen, "codes",
                     codes, "logprobs", scores);
}

static esp_status write_sample(struct eval *e, const struct item *it, size_t length, esp_error *err)
{
    json_t *o;
    esp_status s;

    if (!e->state.samples)
        return ESP_OK;
    o = sample(it, length);
    s = esp_eval_state_add(&e->state, o, err);
    json_decref(o);
    return s;
}

static json_t *result_json(const struct result *r, const char *task, int64_t length)
{
    double low, high;

    esp_recall_interval(r->right, r->n, &low, &high);
    return json_pack("{s:s,s:I,s:f,s:i,s:f,s:[f,f],s:f,s:f}", "task", task, "length", (json_int_t)length,
                     "mean_tokens", r->tokens / r->n, "items", (int)r->n, "accuracy", (double)r->right / r->n,
                     "interval_95", low, high, "choice_accuracy", (double)r->chosen / r->n, "choice_chance",
                     1.0 / ESP_RECALL_KEYS);
}

/* Of all lengths. */
static double accuracy(const struct eval *e, int t)
{
    uint32_t n = 0, right = 0;

    for (size_t i = 0; i < e->opt->v[OPT_LENGTHS].n; i++) {
        n += e->results[t][i].n;
        right += e->results[t][i].right;
    }
    return n ? (double)right / n : 0;
}

static int report(const struct eval *e)
{
    const struct esp_opt_value *v = e->opt->v;
    json_t *list = esp_out_is_json() ? json_array() : NULL;
    bool passed = true;

    if (!list)
        esp_out_printf("%-8s %8s %6s %9s  %-15s %s\n", "task", "tokens", "items", "accuracy", "95 %",
                       "choice of 8");
    for (int t = 0; t < ESP_RECALL_TASKS; t++) {
        for (size_t i = 0; e->want[t] && i < v[OPT_LENGTHS].n; i++) {
            const struct result *r = &e->results[t][i];
            double low, high;

            if (list) {
                json_array_append_new(
                    list, result_json(r, esp_recall_name((enum esp_recall_task)t), v[OPT_LENGTHS].ints[i]));
                continue;
            }
            esp_recall_interval(r->right, r->n, &low, &high);
            esp_out_printf("%-8s %8.0f %6u %9.3f  %.3f to %.3f  %.3f\n",
                           esp_recall_name((enum esp_recall_task)t), r->tokens / r->n, r->n,
                           (double)r->right / r->n, low, high, (double)r->chosen / r->n);
        }
        if (e->want[t] && accuracy(e, t) < e->min[t]) {
            passed = false;
            esp_say_warn("task %s: accuracy %.4f is below the limit of %.4f",
                         esp_recall_name((enum esp_recall_task)t), accuracy(e, t), e->min[t]);
        }
    }
    if (list)
        esp_out_json(json_pack("{s:s,s:s,s:i,s:s,s:s,s:b,s:I,s:i,s:o,s:b}", "model", e->session.shown, "kv",
                               v[OPT_KV].s, "kv_start", (int)v[OPT_KV_START].i, "state", v[OPT_STATE].s,
                               "act", v[OPT_ACT].s, "chat", (int)e->chat, "seed",
                               (json_int_t)v[OPT_EVAL_SEED].i, "hops", (int)v[OPT_HOPS].i, "results", list,
                               "passed", (int)passed));
    return passed ? 0 : ESP_EXIT_CHECK;
}

/* ---- beginning ---- */

/* All that a sample depends on. The engine says what its numbers depend on: weights, keys and values, states,
 * activations, device, version. */
static json_t *settings(const struct eval *e)
{
    const struct esp_opt_value *v = e->opt->v;
    json_t *lengths = json_array(), *adapters = json_array();

    for (size_t i = 0; i < v[OPT_LENGTHS].n; i++)
        json_array_append_new(lengths, json_integer((json_int_t)v[OPT_LENGTHS].ints[i]));
    for (size_t i = 0; i < v[OPT_ADAPTER].n; i++)
        json_array_append_new(adapters, json_string(v[OPT_ADAPTER].list[i]));
    return json_pack("{s:s,s:b,s:b,s:o,s:I,s:i,s:I,s:b,s:s?,s:o}", "model", e->session.engine->identity.about,
                     "needle", (int)e->want[ESP_RECALL_NEEDLE], "hops", (int)e->want[ESP_RECALL_HOPS],
                     "lengths", lengths, "limit", (json_int_t)v[OPT_LIMIT].i, "n_hop", (int)v[OPT_HOPS].i,
                     "seed", (json_int_t)v[OPT_EVAL_SEED].i, "chat", (int)e->chat, "chat_template",
                     v[OPT_CHAT_TEMPLATE].s, "adapters", adapters);
}

static esp_status open_state(struct eval *e, esp_error *err)
{
    const struct esp_opt_value *v = e->opt->v;
    json_t *j;
    esp_status s;

    if (!v[OPT_SAMPLES].given)
        return v[OPT_EVAL_RESUME].on
                   ? esp_fail(err, ESP_EINVAL,
                              "--resume goes on with the samples in --samples FILE; none is given")
                   : ESP_OK;
    j = settings(e);
    s = j ? esp_eval_state_open(&e->state, v[OPT_SAMPLES].s, j, v[OPT_EVAL_RESUME].on, err)
          : esp_fail(err, ESP_ENOMEM, "no memory for samples");
    json_decref(j);
    return s;
}

static esp_status prepare(struct eval *e, esp_error *err)
{
    const struct esp_opt_value *v = e->opt->v;
    int64_t most = 0;

    ESP_TRY(read_tasks(e, err));
    ESP_TRY(read_limits(e, err));
    for (size_t i = 0; i < v[OPT_LENGTHS].n; i++)
        most = v[OPT_LENGTHS].ints[i] > most ? v[OPT_LENGTHS].ints[i] : most;
    ESP_TRY(esp_session_open(&e->session, e->opt, err));
    if (most + ANSWER_TOKENS > e->session.info.context)
        return esp_fail(err, ESP_EINVAL,
                        "--lengths %lld: the model was made for %u tokens, of which the answer takes %d",
                        (long long)most, e->session.info.context, ANSWER_TOKENS);
    e->chat = v[OPT_FORM].i == 1 || (v[OPT_FORM].i == 0 && e->session.info.has_template);
    if (e->chat && !e->session.info.has_template)
        return esp_fail(err, ESP_EINVAL, "--form chat: the model has no chat template");
    esp_session_engine_opts(&e->session);
    e->session.engine_opts.context = (uint32_t)most + ANSWER_TOKENS;
    e->session.engine_opts.max_seqs = 2;                      /* the prompt and one fork */
    e->session.engine_opts.kv_tokens = (uint64_t)most + 1024; /* and its own last pages */
    ESP_TRY(esp_session_engine(&e->session, err));
    e->logits = calloc((size_t)MAX_CODE_IDS * e->session.info.n_vocab, sizeof *e->logits);
    if (!e->logits)
        return esp_fail(err, ESP_ENOMEM, "no memory for logits");
    return open_state(e, err);
}

/* ---- the whole ---- */

static void count(struct result *r, bool right, bool chosen, size_t tokens)
{
    r->n++;
    r->right += right;
    r->chosen += chosen;
    r->tokens += (double)tokens;
}

/* Item i of a task, run or, when a run before had it, taken from its samples. */
static esp_status one_item(struct eval *e, struct item *it, size_t at, esp_error *err)
{
    const int64_t length = e->opt->v[OPT_LENGTHS].ints[at];
    struct result *r = &e->results[it->recall.task][at];
    const json_t *kept = json_array_get(e->state.kept, e->done);
    const char *task = json_string_value(json_object_get(kept, "task"));

    if (!kept) {
        ESP_TRY(fit_prompt(e, it, (size_t)length, err));
        ESP_TRY(run_item(e, it, err));
        ESP_TRY(write_sample(e, it, (size_t)length, err));
        count(r, it->right, it->chosen, it->n_ids);
        return ESP_OK;
    }
    if (!task || strcmp(task, esp_recall_name(it->recall.task)) != 0 ||
        json_integer_value(json_object_get(kept, "item")) != (json_int_t)it->recall.index ||
        json_integer_value(json_object_get(kept, "length")) != (json_int_t)length)
        return esp_fail(err, ESP_EFORMAT,
                        "%s line %zu is not item %u of task %s at %lld; remove %s to begin anew",
                        e->state.path, e->done + 1, it->recall.index, esp_recall_name(it->recall.task),
                        (long long)length, e->state.state);
    count(r, json_is_true(json_object_get(kept, "right")), json_is_true(json_object_get(kept, "chosen")),
          (size_t)json_integer_value(json_object_get(kept, "tokens")));
    return ESP_OK;
}

static esp_status run_task(struct eval *e, enum esp_recall_task t, size_t at, struct esp_progress *p,
                           esp_error *err)
{
    const struct esp_opt_value *v = e->opt->v;
    const size_t n_kept = json_array_size(e->state.kept);
    esp_status s = ESP_OK;

    for (int64_t i = 0; s == ESP_OK && i < v[OPT_LIMIT].i; i++) {
        struct item it = {.recall = {.task = t,
                                     .seed = (uint64_t)v[OPT_EVAL_SEED].i,
                                     .index = (uint32_t)i,
                                     .n_hop = t == ESP_RECALL_HOPS ? (uint32_t)v[OPT_HOPS].i : 0}};

        s = one_item(e, &it, at, err);
        free(it.ids);
        e->done += s == ESP_OK;
        if (e->done > n_kept)
            esp_progress_update(p, (double)(e->done - n_kept));
    }
    return s;
}

static esp_status run_all(struct eval *e, esp_error *err)
{
    const struct esp_opt_value *v = e->opt->v;
    const size_t n_kept = json_array_size(e->state.kept);
    struct esp_progress p;
    esp_status s = ESP_OK;

    e->total = ((size_t)e->want[0] + e->want[1]) * v[OPT_LENGTHS].n * (size_t)v[OPT_LIMIT].i;
    if (n_kept)
        esp_say_info("%zu of %zu items are there", n_kept, e->total);
    esp_progress_begin(&p, "eval", (double)(e->total - (n_kept < e->total ? n_kept : e->total)), "items");
    for (int t = 0; t < ESP_RECALL_TASKS; t++)
        for (size_t i = 0; s == ESP_OK && e->want[t] && i < v[OPT_LENGTHS].n; i++)
            s = run_task(e, (enum esp_recall_task)t, i, &p, err);
    esp_progress_end(&p);
    return s == ESP_OK && e->state.samples ? esp_eval_state_finish(&e->state, err) : s;
}

int esp_verb_eval(const struct esp_options *o)
{
    struct eval e = {.opt = o};
    esp_error err = {0};
    esp_status s = prepare(&e, &err);
    int code;

    if (s == ESP_OK)
        s = run_all(&e, &err);
    if (s == ESP_OK)
        code = report(&e);
    else if (s == ESP_ECANCELLED && esp_interrupted() && e.state.samples)
        code = esp_report_as(ESP_EXIT_RESUMABLE, "interrupted",
                             "interrupted after %zu of %zu items; %s is kept: the same command with --resume "
                             "goes on",
                             e.done, e.total, e.state.path);
    else
        code = esp_report(s, &err);
    esp_eval_state_close(&e.state);
    free(e.logits);
    esp_session_close(&e.session);
    return code;
}
