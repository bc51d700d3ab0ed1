/*
 * perplexity: how many bits the model needs for a text. Windows are independent sequences; of a window all
 * predictions count, or, when windows overlap, those behind the overlap. The reported mean is over
 * predictions, so windows of unequal length weigh by their length; the spread is over windows.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#include "program/npy.h"
#include "program/output.h"
#include "program/session.h"

enum { LOGIT_BYTES = 64 << 20, DEFAULT_CTX = 2048 };

struct measure {
    struct esp_session session;
    const struct esp_options *opt;
    struct esp_npy npy;
    esp_token *ids; /* of a text file or a one-dimensional array */
    size_t n_ids;
    size_t window, stride, n_window;
    float *logits;
    size_t piece; /* rows of logits at once */
    /* sums */
    double nll; /* over predictions */
    size_t n_pred;
    double window_sum, window_sq; /* of the windows' means */
    size_t done;
    double seconds;
};

/* ---- data ---- */

static esp_status copy_ids(struct measure *m, esp_error *err)
{
    const size_t n = m->npy.rows * m->npy.cols;

    m->ids = calloc(n + 1, sizeof *m->ids);
    if (!m->ids)
        return esp_fail(err, ESP_ENOMEM, "no memory for %zu token ids", n);
    for (size_t i = 0; i < n; i++) {
        const int64_t id = esp_npy_get(&m->npy, i);

        if (id < 0 || id >= (int64_t)m->session.info.n_vocab)
            return esp_fail(err, ESP_EFORMAT, "%s: element %zu is %lld; token ids of this model are 0 to %u",
                            m->npy.map.name, i, (long long)id, m->session.info.n_vocab - 1);
        m->ids[i] = (esp_token)id;
    }
    m->n_ids = n;
    return ESP_OK;
}

static esp_status read_data(struct measure *m, esp_error *err)
{
    const char *path = m->opt->v[OPT_DATA].s;
    char *text = NULL;
    size_t len = 0;
    esp_status s;

    if (esp_npy_is(path)) {
        ESP_TRY(esp_npy_open(&m->npy, path, err));
        return copy_ids(m, err);
    }
    ESP_TRY(esp_read_input(path, &text, &len, err));
    s = esp_text_ids(m->session.model, text, len, false, &m->ids, &m->n_ids, err);
    esp_free(text);
    return s;
}

/* The rows of a two-dimensional array are the windows. */
static esp_status plan_rows(struct measure *m, esp_error *err)
{
    const size_t ctx = (size_t)m->opt->v[OPT_CTX].i;

    if (m->opt->v[OPT_STRIDE].i)
        return esp_fail(err, ESP_EINVAL, "--stride: the rows of a two-dimensional array are the windows");
    if (ctx && ctx < m->npy.cols)
        return esp_fail(err, ESP_EINVAL, "--ctx %zu: the rows of the array have %zu tokens", ctx,
                        m->npy.cols);
    m->window = m->stride = m->npy.cols;
    m->n_window = m->npy.rows;
    return ESP_OK;
}

static esp_status plan_text(struct measure *m, esp_error *err)
{
    const size_t limit = m->session.info.context, ctx = (size_t)m->opt->v[OPT_CTX].i;

    m->window = ctx ? ctx : limit < DEFAULT_CTX ? limit : DEFAULT_CTX;
    m->stride = (size_t)m->opt->v[OPT_STRIDE].i;
    if (m->stride > m->window)
        return esp_fail(err, ESP_EINVAL,
                        "--stride %zu is longer than the window of %zu; tokens between would be skipped",
                        m->stride, m->window);
    if (m->window > m->n_ids)
        m->window = m->n_ids;
    if (!m->stride || m->stride > m->window)
        m->stride = m->window;
    m->n_window = m->n_ids < 2 ? 0 : 1 + (m->n_ids - m->window + m->stride - 1) / m->stride;
    return ESP_OK;
}

/* Cut the data into windows. */
static esp_status plan(struct measure *m, esp_error *err)
{
    const struct esp_opt_value *v = m->opt->v;
    const size_t limit = m->session.info.context, chunks = (size_t)v[OPT_CHUNKS].i;

    ESP_TRY(m->npy.n_dim == 2 ? plan_rows(m, err) : plan_text(m, err));
    if (m->window < 2 || m->n_window == 0)
        return esp_fail(err, ESP_EFORMAT, "%s: %zu tokens in windows of %zu; a window needs at least 2",
                        v[OPT_DATA].s, m->n_ids, m->window);
    if (m->window > limit)
        return esp_fail(err, ESP_ENOFIT, "windows of %zu tokens; the model was made for %zu", m->window,
                        limit);
    if (chunks && chunks < m->n_window)
        m->n_window = chunks;
    return ESP_OK;
}

/* ---- measuring ---- */

/* -log softmax(row)[id], in double: log sum exp(x - max) - (x[id] - max). NaN when the row is not finite. */
static double row_nll(const float *row, size_t n, esp_token id)
{
    float max = row[0];
    double sum;

    for (size_t i = 1; i < n; i++)
        max = row[i] > max ? row[i] : max;
    sum = exp((double)row[0] - (double)max);
    for (size_t i = 1; i < n; i++)
        sum += exp((double)row[i] - (double)max);
    return log(sum) - ((double)row[id] - (double)max);
}

/* Predictions of tokens first..n-1 of t; the last token is never an input, for nothing follows it. */
static esp_status window(struct measure *m, const esp_token *t, size_t n, size_t first, double *nll,
                         esp_error *err)
{
    const size_t vocab = m->session.info.n_vocab;
    esp_seq_opts so = {.sampling = {.temperature = 0}};
    esp_seq *seq = NULL;
    esp_status s;

    esp_adapters_use(&m->session.adapters, &so);
    s = esp_seq_open(&seq, m->session.engine, &so, err);

    *nll = 0;
    for (size_t i = 0; s == ESP_OK && i + 1 < n; i += m->piece) {
        const size_t rows = n - 1 - i < m->piece ? n - 1 - i : m->piece;

        if (esp_interrupted())
            s = esp_fail(err, ESP_ECANCELLED, "interrupted after %zu of %zu windows", m->done, m->n_window);
        else
            s = esp_seq_logits(seq, t + i, rows, m->logits, err);
        for (size_t k = 0; s == ESP_OK && k < rows; k++) {
            const double x = i + k + 1 >= first ? row_nll(m->logits + k * vocab, vocab, t[i + k + 1]) : 0;

            if (!isfinite(x))
                s = esp_fail(err, ESP_ENUMERIC, "window %zu: the logits behind token %zu are not finite",
                             m->done, i + k);
            *nll += x;
        }
    }
    esp_seq_close(seq);
    return s;
}

static esp_status measure(struct measure *m, esp_error *err)
{
    const double start = esp_now();
    struct esp_progress p;
    esp_status s = ESP_OK;

    esp_progress_begin(&p, "perplexity", (double)m->n_window, "windows");
    for (size_t w = 0; s == ESP_OK && w < m->n_window; w++) {
        const size_t at = w * m->stride;
        const size_t n = m->n_ids - at < m->window ? m->n_ids - at : m->window;
        const size_t first = w && m->npy.n_dim != 2 && m->stride < m->window ? m->window - m->stride : 1;
        const size_t count = n > first ? n - first : 0;
        double nll;

        if (count) {
            s = window(m, m->ids + at, n, first, &nll, err);
            if (s != ESP_OK)
                break;
            m->nll += nll;
            m->n_pred += count;
            m->window_sum += nll / (double)count;
            m->window_sq += nll / (double)count * (nll / (double)count);
            m->done++;
            esp_say_detail("window %zu: nll %.6f over %zu tokens; so far %.6f, ppl %.4f", w,
                           nll / (double)count, count, m->nll / (double)m->n_pred,
                           exp(m->nll / (double)m->n_pred));
        }
        esp_progress_update(&p, (double)(w + 1));
    }
    esp_progress_end(&p);
    m->seconds = esp_now() - start;
    return s;
}

static esp_status prepare(struct measure *m, esp_error *err)
{
    size_t row_bytes, bytes;

    if (!m->opt->v[OPT_DATA].given)
        return esp_fail(err, ESP_EINVAL, "--data FILE says what to measure; it is required");
    if (m->opt->v[OPT_KL].n && m->opt->v[OPT_ADAPTER].n)
        return esp_fail(err, ESP_EINVAL, "--kl compares model folders as they are; it excludes --adapter");
    ESP_TRY(esp_session_open(&m->session, m->opt, err));
    ESP_TRY(read_data(m, err));
    ESP_TRY(plan(m, err));
    esp_session_engine_opts(&m->session);
    m->session.engine_opts.context = (uint32_t)m->window;
    ESP_TRY(esp_session_engine(&m->session, err));
    row_bytes = (size_t)m->session.info.n_vocab * sizeof *m->logits;
    m->piece = LOGIT_BYTES / row_bytes ? LOGIT_BYTES / row_bytes : 1;
    if (m->piece > m->window)
        m->piece = m->window;
    if (!esp_mul_size(&bytes, m->piece, row_bytes))
        return esp_fail(err, ESP_ENOMEM, "%zu rows of logits are too many", m->piece);
    m->logits = malloc(bytes);
    return m->logits
               ? ESP_OK
               : esp_fail(err, ESP_ENOMEM, "no memory for %zu rows of logits (%zu bytes)", m->piece, bytes);
}

static int result(const struct measure *m)
{
    const struct esp_opt_value *v = m->opt->v;
    const double nll = m->nll / (double)m->n_pred, ppl = exp(nll), n = (double)m->done;
    const double mean = m->window_sum / n;
    const double var = n > 1 ? (m->window_sq - n * mean * mean) / (n - 1) : 0;
    const double error = var > 0 ? sqrt(var / n) : 0; /* standard error of the mean over windows */
    const bool failed = v[OPT_MAX].given && !(ppl <= v[OPT_MAX].f);

    if (esp_out_is_json())
        esp_out_json(json_pack("{s:s,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:s,s:s,s:f,s:b}", "model", m->session.shown,
                               "nll", nll, "nll_stderr", error, "ppl", ppl, "tokens", (json_int_t)m->n_pred,
                               "windows", (json_int_t)m->done, "ctx", (json_int_t)m->window, "stride",
                               (json_int_t)m->stride, "kv", v[OPT_KV].s, "act", v[OPT_ACT].s, "seconds",
                               m->seconds, "passed", !failed));
    else
        esp_out_printf("nll %.6f +- %.6f per token\nppl %.4f\ntokens %zu in %zu windows of %zu, stride %zu\n"
                       "seconds %.2f (%.1f tokens/s)\n",
                       nll, error, ppl, m->n_pred, m->done, m->window, m->stride, m->seconds,
                       (double)m->n_pred / m->seconds);
    if (!failed)
        return 0;
    esp_say_warn("the perplexity %.4f is above the limit of %.4f", ppl, v[OPT_MAX].f);
    return ESP_EXIT_CHECK;
}

int esp_verb_perplexity(const struct esp_options *o)
{
    struct measure m = {.opt = o};
    esp_error err = {0};
    esp_status s = prepare(&m, &err);
    int code;

    if (s == ESP_OK && o->v[OPT_KL].n) {
        code = esp_verb_perplexity_kl(o, m.session.path, m.ids,
                                      m.n_window * m.window < m.n_ids ? m.n_window * m.window : m.n_ids,
                                      m.window);
        goto done;
    }
    if (s == ESP_OK)
        s = measure(&m, &err);
    code = s == ESP_OK ? result(&m) : esp_report(s, &err);
done:
    free(m.logits);
    free(m.ids);
    esp_npy_close(&m.npy);
    esp_session_close(&m.session);
    return code;
}
