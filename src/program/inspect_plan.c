/*
 * inspect --plan: what each layer keeps of a text (inspect_memory.h), and the recipe of a quantized model as
 * a table and as an SVG with one row a layer: bits as the length of a bar, loss as its darkness on a
 * logarithmic scale. Reads espalier_recipe.json, which the quantizer leaves with the model.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/verbs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "io/checkpoint.h"

#include "program/inspect_memory.h"
#include "program/model_find.h"
#include "program/output.h"

enum { MAX_SVG = 16 << 20, BAR = 12, LEFT = 170, UNIT = 46 };

struct bar {
    const char *name; /* of the module */
    const char *method;
    long layer;  /* -1: outside */
    int bits;    /* 16 when kept */
    double loss; /* < 0: not measured */
};

static int by_layer(const void *a, const void *b)
{
    const struct bar *x = a, *y = b;

    return x->layer != y->layer ? (x->layer < y->layer ? -1 : 1) : strcmp(x->name, y->name);
}

static long layer_of(const char *name)
{
    const char *p = strstr(name, "layers.");

    return p ? strtol(p + strlen("layers."), NULL, 10) : -1;
}

/* Behind the layer's number. */
static const char *short_name(const char *name)
{
    const char *p = strstr(name, "layers.");

    if (!p)
        return name;
    p = strchr(p + strlen("layers."), '.');
    return p ? p + 1 : name;
}

static esp_status read_bars(const json_t *recipe, struct bar **out, size_t *n, esp_error *err)
{
    const json_t *tensors = json_object_get(recipe, "tensors");
    const char *name;
    json_t *e;
    struct bar *b = calloc(json_object_size(tensors) + 1, sizeof *b);

    *n = 0;
    if (!b)
        return esp_fail(err, ESP_ENOMEM, "plan: out of memory");
    json_object_foreach((json_t *)(uintptr_t)tensors, name, e)
    {
        const char *method = json_string_value(json_object_get(e, "method"));
        const json_t *bits = json_object_get(e, "bits"), *loss = json_object_get(e, "loss");

        b[(*n)++] =
            (struct bar){name, method ? method : "?", layer_of(name),
                         bits ? (int)json_integer_value(bits) : 16, loss ? json_number_value(loss) : -1};
    }
    qsort(b, *n, sizeof *b, by_layer);
    *out = b;
    return ESP_OK;
}

static void text(const struct bar *b, size_t n)
{
    esp_out_printf("%5s  %-28s %-8s %4s  %-16s %s\n", "layer", "matrix", "method", "bits", "", "loss");
    for (size_t i = 0; i < n; i++) {
        char bar[17] = "                ", layer[24] = "-";

        for (int k = 0; k < 16 && k < b[i].bits; k++)
            bar[k] = '#';
        if (b[i].layer >= 0)
            snprintf(layer, sizeof layer, "%ld", b[i].layer);
        if (b[i].loss >= 0)
            esp_out_printf("%5s  %-28s %-8s %4d  %s %.3e\n", layer, short_name(b[i].name), b[i].method,
                           b[i].bits, bar, b[i].loss);
        else
            esp_out_printf("%5s  %-28s %-8s %4d  %s -\n", layer, short_name(b[i].name), b[i].method,
                           b[i].bits, bar);
    }
}

/* 1e-4 and below is light, 1e-1 and above dark. */
static int darkness(double loss)
{
    const double x = loss > 0 ? (log10(loss) + 4) / 3 : 0;

    return (int)(255 - 200 * (x < 0 ? 0 : x > 1 ? 1 : x));
}

static void escape(struct esp_strbuf *s, const char *t)
{
    for (; *t; t++)
        if (*t == '<' || *t == '&' || *t == '>')
            esp_strbuf_printf(s, "&#%d;", *t);
        else
            esp_strbuf_putc(s, *t);
}

static esp_status svg(const struct bar *b, size_t n, const char *path, esp_error *err)
{
    const size_t height = 40 + n * (BAR + 3);
    struct esp_strbuf s;
    FILE *f;
    bool ok;

    esp_strbuf_init(&s, MAX_SVG);
    esp_strbuf_printf(
        &s,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" font-family=\"sans-serif\" "
        "font-size=\"10\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"10\" y=\"18\" "
        "font-size=\"12\">bits (length) and relative loss (darkness: 1e-4 to 1e-1)</text>\n",
        LEFT + 16 * UNIT + 90, height);
    for (size_t i = 0; i < n; i++) {
        const size_t y = 30 + i * (BAR + 3);
        const int g = darkness(b[i].loss);

        esp_strbuf_printf(&s, "<text x=\"10\" y=\"%zu\">%ld ", y + BAR - 2, b[i].layer);
        escape(&s, short_name(b[i].name));
        esp_strbuf_printf(
            &s,
            "</text><rect x=\"%d\" y=\"%zu\" width=\"%d\" height=\"%d\" fill=\"rgb(%d,%d,255)\" "
            "stroke=\"#557\" stroke-width=\"0.5\"/>",
            LEFT, y, b[i].bits * UNIT, BAR, g, g);
        esp_strbuf_printf(&s, "<text x=\"%d\" y=\"%zu\">%s %d", LEFT + b[i].bits * UNIT + 5, y + BAR - 2,
                          b[i].method, b[i].bits);
        if (b[i].loss >= 0)
            esp_strbuf_printf(&s, ", %.1e", b[i].loss);
        esp_strbuf_puts(&s, "</text>\n");
    }
    esp_strbuf_puts(&s, "</svg>\n");
    f = s.failed ? NULL : fopen(path, "w");
    ok = f && fwrite(s.data, 1, s.len, f) == s.len;
    if (f && fclose(f) != 0)
        ok = false;
    esp_strbuf_free(&s);
    return ok ? ESP_OK : esp_fail(err, ESP_EIO, "%s: cannot be written", path);
}

/* The recipe in dir; NULL where there is none, which only a picture needs. */
static esp_status read_recipe(json_t **out, const char *dir, bool needed, esp_error *err)
{
    char *path = esp_path_join(dir, "espalier_recipe.json");
    esp_error why = {0};
    esp_status s = path ? esp_json_load(out, path, ESP_LIMIT_CONFIG_BYTES, 0, &why)
                        : esp_fail(&why, ESP_ENOMEM, "plan: out of memory");

    esp_free(path);
    if (s == ESP_ENOTFOUND && !needed)
        return ESP_OK;
    return s == ESP_OK ? s : esp_fail(err, s, "%s", why.message);
}

/* What layers keep, and the recipe where there is one. */
static esp_status show(const struct esp_options *o, const struct esp_config *c, json_t *recipe,
                       const struct bar *bars, size_t n, esp_error *err)
{
    static struct esp_layout l; /* large */

    ESP_TRY(esp_inspect_layout(&l, c, o, err));
    if (esp_out_is_json()) {
        esp_out_json(json_pack("{s:O?,s:o}", "plan", recipe, "memory", esp_inspect_memory_json(&l, c)));
        return ESP_OK;
    }
    esp_inspect_memory_print(&l, c);
    if (recipe) {
        esp_out_printf("\n");
        text(bars, n);
    }
    return ESP_OK;
}

int esp_inspect_plan(const struct esp_options *o)
{
    const char *name = o->v[OPT_MODEL].given ? o->v[OPT_MODEL].s : o->n_args ? o->args[0] : "";
    const char *file = o->v[OPT_PLAN].s;
    struct esp_checkpoint *ck = NULL;
    char *path = NULL;
    json_t *recipe = NULL;
    struct bar *bars = NULL;
    size_t n = 0;
    esp_error err = {0};
    esp_status s = esp_model_find(&path, name, &err);

    if (s == ESP_OK)
        s = read_recipe(&recipe, path, file != NULL, &err);
    if (s == ESP_OK && recipe)
        s = read_bars(recipe, &bars, &n, &err);
    if (s == ESP_OK && file)
        s = svg(bars, n, file, &err);
    if (s == ESP_OK)
        s = esp_checkpoint_open(&ck, path, &err);
    if (s == ESP_OK)
        s = show(o, &ck->config, recipe, bars, n, &err);
    esp_checkpoint_close(ck);
    free(bars);
    json_decref(recipe);
    esp_free(path);
    return s == ESP_OK ? 0 : esp_report(s, &err);
}
