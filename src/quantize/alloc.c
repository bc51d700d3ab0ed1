/*
 * Bits for every matrix under a budget. A candidate costs bits and brings a loss: its relative proxy loss
 * (coded on a sample of outputs, with the method that will be used) times how much the model's own KL grows
 * per unit of that loss (measured by replacing the matrix alone by a coarse one). Both are measured once a
 * matrix and kept in the work folder. A Lagrange multiplier then picks the candidates on the lower hull; what
 * is left of the budget goes to the best single steps.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "quantize/compare.h"
#include "quantize/files.h"
#include "quantize/overlay.h"

enum { MAX_CANDIDATES = 6, SAMPLE_ROWS = 256, PROBE_BITS = 3, MEASURE_LISTS = 2 };

struct item {
    struct esp_plan_row *row;
    uint32_t index, n; /* of the row; candidates */
    struct esp_choice choice[MAX_CANDIDATES];
    double bits[MAX_CANDIDATES]; /* a weight */
    double loss[MAX_CANDIDATES]; /* relative proxy loss, then times gain */
    double gain;                 /* KL per relative loss */
    double weights;
    uint32_t at;
};

static void list_candidates(struct item *it)
{
    static const uint32_t trellis[] = {2, 3, 4, 5}, affine[] = {2, 3, 4, 5, 6, 8};
    const struct esp_plan_row *r = it->row;
    const bool is_trellis = r->choice.method == ESP_METHOD_TRELLIS;
    const uint32_t *bits = is_trellis ? trellis : affine;

    it->n = is_trellis ? 4 : 6;
    it->weights = (double)r->n_out * r->n_in;
    for (uint32_t i = 0; i < it->n; i++) {
        it->choice[i] = r->choice;
        it->choice[i].bits = bits[i];
        it->bits[i] = esp_choice_bits(&it->choice[i], r->n_out, r->n_in);
    }
}

/* Up to 256 outputs, evenly spread. */
static float *sample(const float *w, uint32_t n_out, uint32_t n_in, uint32_t *rows)
{
    const uint32_t n = n_out < SAMPLE_ROWS ? n_out : SAMPLE_ROWS;
    float *s = esp_alloc_array((size_t)n * n_in, sizeof *s);

    for (uint32_t i = 0; s && i < n; i++)
        memcpy(s + (size_t)i * n_in, w + (size_t)((uint64_t)i * n_out / n) * n_in, n_in * sizeof *s);
    *rows = n;
    return s;
}

static esp_status candidate_losses(struct esp_quant_job *j, struct item *it, esp_error *err)
{
    const struct esp_plan_row *r = it->row;
    float *w, *s;
    uint32_t rows = 0;
    esp_status st;

    ESP_TRY(esp_job_values(j, r, &w, err));
    s = sample(w, r->n_out, r->n_in, &rows);
    esp_free(w);
    if (!s)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", r->stored);
    st = esp_job_statistics(j, r, err);
    for (uint32_t i = 0; st == ESP_OK && i < it->n; i++) {
        struct esp_coded c;

        st = esp_job_code(j, &it->choice[i], s, rows, r->n_in, r->stored, &c, err);
        if (st != ESP_OK)
            break;
        it->loss[i] = c.loss.power > 0 ? c.loss.loss / c.loss.power : 0;
        esp_free(c.data);
    }
    esp_free(s);
    return st;
}

/* KL of the model with this matrix alone at 3 bits, to nearest. */
static esp_status probe(struct esp_quant_job *j, const struct item *it, const float *values, double *kl,
                        esp_error *err)
{
    const struct esp_runner_opts ro = {
        .level = j->model->level, .threads = j->model->n_thread, .context = ESP_CALIB_LIST, .max_tok = 128};
    struct esp_token_lists few = j->held_out;
    struct esp_overlay overlay;
    struct esp_runner base = {0}, other = {0};
    esp_comparison c;
    char module[160];
    esp_status s;

    few.n = few.n < MEASURE_LISTS ? few.n : MEASURE_LISTS;
    snprintf(module, sizeof module, "%.*s", (int)(strlen(it->row->name) - strlen(".weight")), it->row->name);
    esp_overlay_init(&overlay, j->model->src, NULL);
    overlay.module = module;
    overlay.values = values;
    s = esp_runner_open(&base, j->model->net, &ro, err);
    if (s == ESP_OK)
        s = esp_runner_open_source(&other, &j->model->net->config, &overlay.source, &ro, err);
    if (s == ESP_OK)
        s = esp_compare_run(&(struct esp_compare_job){&base, &other, 1, &few, NULL, NULL}, &c, err);
    esp_runner_close(&base);
    esp_runner_close(&other);
    esp_overlay_close(&overlay);
    if (s == ESP_OK)
        *kl = c.kl_mean;
    return s;
}

/* KL per unit of relative loss, measured in the source's own basis. */
static esp_status measure_gain(struct esp_quant_job *j, struct item *it, esp_error *err)
{
    const struct esp_plan_row *r = it->row;
    const struct esp_choice c = {
        .method = ESP_METHOD_RTN, .bits = PROBE_BITS, .group = r->n_in % 64 == 0 ? 64 : 32};
    const bool fold = j->fold.on;
    struct esp_weight q = esp_choice_weight(&c, r->n_out, r->n_in);
    struct esp_coded coded = {0};
    float *w = NULL, *values = NULL;
    double kl = 0;
    esp_status s;

    it->gain = 1;
    if (r->n_in % c.group != 0)
        return ESP_OK;
    j->fold.on = false;
    esp_job_drop_statistics(j);
    s = esp_job_values(j, r, &w, err);
    if (s == ESP_OK)
        s = esp_job_statistics(j, r, err);
    if (s == ESP_OK)
        s = esp_job_code(j, &c, w, r->n_out, r->n_in, r->stored, &coded, err);
    if (s == ESP_OK) {
        q.codes = coded.data;
        q.scales = q.codes + r->n_out * q.row_bytes;
        q.biases = q.scales + r->n_out * q.scale_row_bytes;
        s = esp_weight_decode(&values, &q, r->stored, err);
    }
    if (s == ESP_OK)
        s = probe(j, it, values, &kl, err);
    if (s == ESP_OK && coded.loss.loss > 0)
        it->gain = kl / (coded.loss.loss / coded.loss.power);
    j->fold.on = fold;
    esp_job_drop_statistics(j);
    esp_free(coded.data);
    esp_free(values);
    esp_free(w);
    return s;
}

/* ---- the journal of measurements ---- */

static bool recall(const struct esp_quant_job *j, struct item *it)
{
    char *path = esp_job_part(j, it->index, "measure.json");
    json_t *e = NULL;
    bool ok = path && esp_file_exists(path) && esp_json_load(&e, path, 65536, 0, NULL) == ESP_OK;

    if (ok) {
        const json_t *loss = json_object_get(e, "loss");

        it->gain = json_number_value(json_object_get(e, "gain"));
        for (uint32_t i = 0; i < it->n; i++)
            it->loss[i] = json_number_value(json_array_get(loss, i));
        ok = json_array_size(loss) == it->n;
        json_decref(e);
    }
    esp_free(path);
    return ok;
}

static esp_status remember(const struct esp_quant_job *j, const struct item *it, esp_error *err)
{
    char *path = esp_job_part(j, it->index, "measure.json"), text[400];
    size_t len = (size_t)snprintf(text, sizeof text, "{\"gain\": %.17g, \"loss\": [", it->gain);
    esp_status s;

    for (uint32_t i = 0; i < it->n; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%.17g", i ? ", " : "", it->loss[i]);
    len += (size_t)snprintf(text + len, sizeof text - len, "]}\n");
    s = path ? esp_file_write(path, &(struct esp_part_bytes){text, len}, 1, err)
             : esp_fail(err, ESP_ENOMEM, "%s: out of memory", j->state);
    esp_free(path);
    return s;
}

static esp_status measure_all(struct esp_quant_job *j, struct item *items, uint32_t n, esp_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        ESP_TRY(esp_progress_tell(&j->progress, "measuring", items[i].row->stored, i, n, err));
        if (recall(j, &items[i]))
            continue;
        ESP_TRY(measure_gain(j, &items[i], err));
        ESP_TRY(candidate_losses(j, &items[i], err));
        ESP_TRY(remember(j, &items[i], err));
    }
    return ESP_OK;
}

/* ---- the choice ---- */

/* Pick for a price of one bit of one weight; returns bits in all. */
static double pick(struct item *items, uint32_t n, double price)
{
    double total = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct item *it = &items[i];
        double best = INFINITY;

        for (uint32_t c = 0; c < it->n; c++) {
            const double cost = it->gain * it->loss[c] + price * it->bits[c] * it->weights;

            if (cost < best) {
                best = cost;
                it->at = c;
            }
        }
        total += it->bits[it->at] * it->weights;
    }
    return total;
}

/* Steps up by one candidate, best loss per bit first, while the budget holds. */
static void spend_rest(struct item *items, uint32_t n, double budget, double used)
{
    for (;;) {
        struct item *best = NULL;
        double best_rate = 0;

        for (uint32_t i = 0; i < n; i++) {
            struct item *it = &items[i];
            double cost, rate;

            if (it->at + 1 >= it->n)
                continue;
            cost = (it->bits[it->at + 1] - it->bits[it->at]) * it->weights;
            rate = it->gain * (it->loss[it->at] - it->loss[it->at + 1]) / cost;
            if (used + cost <= budget && rate > best_rate) {
                best = it;
                best_rate = rate;
            }
        }
        if (!best)
            return;
        used += (best->bits[best->at + 1] - best->bits[best->at]) * best->weights;
        best->at++;
    }
}

static esp_status choose(struct item *items, uint32_t n, double target, esp_error *err)
{
    double weights = 0, low = 1e-30, high = 1e6, used;

    for (uint32_t i = 0; i < n; i++)
        weights += items[i].weights;
    if (pick(items, n, high) > target * weights)
        return esp_fail(err, ESP_EINVAL, "target of %g bits per weight: the smallest choice takes %.3f",
                        target, pick(items, n, high) / weights);
    for (int i = 0; i < 200; i++) {
        const double mid = sqrt(low * high);

        if (pick(items, n, mid) > target * weights)
            low = mid;
        else
            high = mid;
    }
    used = pick(items, n, high);
    spend_rest(items, n, target * weights, used);
    return ESP_OK;
}

esp_status esp_job_allocate(struct esp_quant_job *j, esp_error *err)
{
    struct item *items = esp_alloc_array((size_t)j->plan.n + 1, sizeof *items);
    uint32_t n = 0;
    esp_status s;

    if (!items)
        return esp_fail(err, ESP_ENOMEM, "allocation of bits: out of memory");
    for (uint32_t i = 0; i < j->plan.n; i++) {
        struct esp_plan_row *r = &j->plan.rows[i];

        if (!r->layer_matrix || r->fixed || r->choice.method == ESP_METHOD_KEEP)
            continue;
        items[n] = (struct item){.row = r, .index = i};
        list_candidates(&items[n++]);
    }
    s = n ? measure_all(j, items, n, err)
          : esp_fail(err, ESP_EINVAL, "target bits: no matrix is left to choose bits for");
    if (s == ESP_OK)
        s = choose(items, n, j->opts->target_bpw, err);
    for (uint32_t i = 0; s == ESP_OK && i < n; i++)
        items[i].row->choice = items[i].choice[items[i].at];
    esp_free(items);
    return s;
}
