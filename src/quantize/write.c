/*
 * The finished folder: shards in the order of the source's names, config, recipe, and every other file of the
 * source. All is written under the work folder's name, config.json last, so that nothing ever looks like a
 * model before it is one.
 *
 * SPDX-License-Identifier: MIT
 */
#include "quantize/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "io/safetensors_write.h"
#include "quantize/files.h"
#include "quantize/folder.h"

static const uint64_t SHARD_BYTES = (uint64_t)4 << 30;

struct shards {
    uint32_t *first; /* [n + 1] rows */
    uint32_t n;
    uint64_t total;
};

static esp_status cut_shards(struct shards *out, const struct esp_plan_list *p, esp_error *err)
{
    uint64_t used = 0;

    out->first = esp_alloc_array((size_t)p->n + 2, sizeof *out->first);
    if (!out->first)
        return esp_fail(err, ESP_ENOMEM, "shards: out of memory");
    out->n = 1;
    for (uint32_t i = 0; i < p->n; i++) {
        const uint64_t bytes = esp_plan_row_bytes(&p->rows[i]);

        if (used && used + bytes > SHARD_BYTES) {
            out->first[out->n++] = i;
            used = 0;
        }
        used += bytes;
        out->total += bytes;
    }
    out->first[out->n] = p->n;
    return ESP_OK;
}

static void shard_name(char out[64], uint32_t i, uint32_t n)
{
    if (n == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05u-of-%05u.safetensors", i + 1, n);
}

static esp_status declare(struct esp_st_writer *w, const struct esp_quant_job *j, uint32_t a, uint32_t b,
                          esp_error *err)
{
    ESP_TRY(esp_st_writer_metadata(w, "format", "mlx", err));
    ESP_TRY(esp_st_writer_metadata(w, "espalier.norm_weights", j->names.norms_shifted ? "gamma" : "gamma-1",
                                   err));
    if (j->names.set[ESP_PART_MTP])
        ESP_TRY(esp_st_writer_metadata(w, "espalier.mtp_norm_weights",
                                       j->names.mtp_norms_shifted ? "gamma" : "gamma-1", err));
    for (uint32_t i = a; i < b; i++) {
        struct esp_plane p[3];
        const uint32_t n = esp_plan_planes(&j->plan.rows[i], p);

        for (uint32_t k = 0; k < n; k++)
            ESP_TRY(esp_st_writer_declare(w, p[k].name, p[k].dtype, p[k].n_dim, p[k].shape, err));
    }
    return ESP_OK;
}

static esp_status give_row(struct esp_st_writer *w, const struct esp_quant_job *j, uint32_t row,
                           esp_error *err)
{
    const struct esp_plan_row *r = &j->plan.rows[row];
    struct esp_map m = {0};
    char *path;
    esp_status s;

    if (!r->computed)
        return esp_st_writer_data(w, r->t->data, r->t->bytes, err);
    path = esp_job_part(j, row, "bin");
    if (!path)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", j->state);
    s = esp_map_open(&m, path, err);
    if (s == ESP_OK)
        s = esp_st_writer_data(w, m.data, m.size, err);
    esp_map_close(&m);
    esp_free(path);
    return s;
}

static esp_status write_shard(struct esp_quant_job *j, const struct shards *sh, uint32_t i, esp_error *err)
{
    struct esp_st_writer *w = NULL;
    char name[64], *path;
    esp_status s;

    shard_name(name, i, sh->n);
    path = esp_path_join(j->work, name);
    if (!path)
        return esp_fail(err, ESP_ENOMEM, "%s: out of memory", j->work);
    if (esp_file_exists(path)) { /* its parts may be gone already */
        esp_free(path);
        return ESP_OK;
    }
    s = esp_st_writer_create(&w, path, err);
    if (s == ESP_OK)
        s = declare(w, j, sh->first[i], sh->first[i + 1], err);
    for (uint32_t r = sh->first[i]; s == ESP_OK && r < sh->first[i + 1]; r++) {
        s = esp_progress_tell(&j->progress, "writing", name, (double)r, (double)j->plan.n, err);
        if (s == ESP_OK)
            s = give_row(w, j, r, err);
    }
    if (s == ESP_OK)
        s = esp_st_writer_finish(w, err);
    esp_st_writer_destroy(w);
    esp_free(path);
    return s;
}

static esp_status write_json(const struct esp_quant_job *j, const char *name, json_t *top, esp_error *err)
{
    char *path = esp_path_join(j->work, name),
         *text = top ? json_dumps(top, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    esp_status s;

    if (!path || !text)
        s = esp_fail(err, ESP_ENOMEM, "%s/%s: out of memory", j->work, name);
    else
        s = esp_file_write(path, (struct esp_part_bytes[]){{text, strlen(text)}, {"\n", 1}}, 2, err);
    (free)(text); /* jansson's own memory */
    esp_free(path);
    json_decref(top);
    return s;
}

static esp_status write_index(const struct esp_quant_job *j, const struct shards *sh, esp_error *err)
{
    json_t *top, *map;

    if (sh->n == 1)
        return ESP_OK;
    top = json_pack("{s:{s:I},s:{}}", "metadata", "total_size", (json_int_t)sh->total, "weight_map");
    map = json_object_get(top, "weight_map");
    for (uint32_t i = 0; top && i < sh->n; i++)
        for (uint32_t r = sh->first[i]; r < sh->first[i + 1]; r++) {
            struct esp_plane p[3];
            char name[64];

            shard_name(name, i, sh->n);
            for (uint32_t k = 0, n = esp_plan_planes(&j->plan.rows[r], p); k < n; k++)
                json_object_set_new(map, p[k].name, json_string(name));
        }
    return write_json(j, "model.safetensors.index.json", top, err);
}

/* ---- config.json ---- */

static json_t *quant_entry(const struct esp_choice *c)
{
    switch (c->method) {
    case ESP_METHOD_TRELLIS:
        return json_pack("{s:i,s:i,s:s,s:{s:i,s:s,s:i}}", "bits", (int)c->bits, "group_size", 256, "mode",
                         "trellis", "trellis", "L", 12, "code", "1mad", "axis", (int)c->axis);
    case ESP_METHOD_RTN:
    case ESP_METHOD_GPTQ:
        return json_pack("{s:i,s:i,s:s}", "group_size", (int)c->group, "bits", (int)c->bits, "mode",
                         "affine");
    default:
        return json_false();
    }
}

/* Under the tensor's own name and under the name that graphs of the other layout have. */
static void add_entry(json_t *q, const struct esp_quant_job *j, const struct esp_plan_row *r)
{
    char module[256], name[160], other[288];
    const size_t tail = strlen(".weight");

    snprintf(module, sizeof module, "%.*s", (int)(strlen(r->stored) - tail), r->stored);
    snprintf(name, sizeof name, "%.*s", strlen(r->name) > tail ? (int)(strlen(r->name) - tail) : 0, r->name);
    json_object_set_new(q, module, quant_entry(&r->choice));
    other[0] = 0;
    if (r->part == ESP_PART_TEXT)
        snprintf(other, sizeof other, "%s%s",
                 strcmp(j->names.prefix[ESP_PART_TEXT], "language_model.model.") == 0
                     ? "model.language_model."
                     : "language_model.model.",
                 name);
    if (r->part == ESP_PART_HEAD)
        snprintf(other, sizeof other, "%s",
                 strcmp(module, "lm_head") == 0 ? "language_model.lm_head" : "lm_head");
    if (other[0])
        json_object_set_new(q, other, quant_entry(&r->choice));
}

static void untie(json_t *config)
{
    json_t *text = json_object_get(config, "text_config");

    json_object_set_new(config, "tie_word_embeddings", json_false());
    if (json_is_object(text))
        json_object_set_new(text, "tie_word_embeddings", json_false());
}

static esp_status write_config(const struct esp_quant_job *j, esp_error *err)
{
    char *path = esp_path_join(j->source, "config.json");
    json_t *config = NULL,
           *q = json_pack("{s:i,s:i,s:s}", "group_size", (int)j->group, "bits",
                          (int)(j->method == ESP_METHOD_TRELLIS ? 4 : j->bits), "mode", "affine");
    esp_status s = path && q ? esp_json_load(&config, path, ESP_LIMIT_CONFIG_BYTES, 0, err)
                             : esp_fail(err, ESP_ENOMEM, "config: out of memory");

    esp_free(path);
    if (s != ESP_OK) {
        json_decref(q);
        return s;
    }
    for (uint32_t i = 0; i < j->plan.n; i++)
        if (j->plan.rows[i].matrix)
            add_entry(q, j, &j->plan.rows[i]);
    json_object_set(config, "quantization", q);
    json_object_set_new(config, "quantization_config", q);
    if (j->plan.makes_head)
        untie(config);
    return write_json(j, "config.json", config, err);
}

esp_status esp_job_write(struct esp_quant_job *j, esp_error *err)
{
    struct shards sh = {0};
    esp_status s = cut_shards(&sh, &j->plan, err);

    for (uint32_t i = 0; s == ESP_OK && i < sh.n; i++)
        s = write_shard(j, &sh, i, err);
    if (s == ESP_OK)
        s = write_index(j, &sh, err);
    if (s == ESP_OK)
        s = esp_folder_copy_text(j->work, j->source, false, err);
    if (s == ESP_OK)
        s = write_json(j, "espalier_recipe.json", esp_plan_recipe(&j->plan, j->fold.on, j->seed), err);
    esp_free(sh.first);
    if (s == ESP_OK)
        s = write_config(j, err);
    if (s == ESP_OK)
        s = esp_folder_remove(j->state, err);
    return s == ESP_OK ? esp_folder_publish(j->work, j->output, err) : s;
}
