/*
 * Binding adapters: orientation is decided by shape against the base weight, once, here; all later code sees
 * A [r][in] and B [out][r].
 *
 * SPDX-License-Identifier: MIT
 */
#include "model/lora.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "io/adapter.h"

enum { FAULT_BYTES = 480 };

static const struct esp_weight *find_weight(const struct esp_net *net, const char *module)
{
    for (uint32_t i = 0; i < net->n_trunk_weight; i++)
        if (strcmp(net->weight_names[i], module) == 0)
            return net->weights[i];
    return NULL;
}

/* Rank of the pair in PEFT orientation (peft) or MLX orientation; 0 when it does not fit base that way. */
static uint64_t rank_if(const struct esp_adapter_pair *p, const struct esp_weight *w, bool peft)
{
    const uint64_t *a = p->a->shape, *b = p->b->shape;

    if (peft)
        return a[1] == w->n_in && b[0] == w->n_out && a[0] == b[1] ? a[0] : 0;
    return a[0] == w->n_in && b[1] == w->n_out && a[1] == b[0] ? a[1] : 0;
}

/* t as f32 [rows][cols], transposed when asked for. */
static esp_status convert(struct esp_arena *arena, const struct esp_st_tensor *t, bool transpose,
                          struct esp_weight *out, esp_error *err)
{
    uint32_t rows = (uint32_t)t->shape[0], cols = (uint32_t)t->shape[1];
    struct esp_weight src = {.n_out = rows, .n_in = cols, .codes = t->data};
    float *v = esp_arena_alloc_array(arena, (size_t)rows * cols + 16, sizeof *v);
    float *row = esp_arena_alloc_array(arena, cols, sizeof *row);

    if (!v || !row)
        return esp_fail(err, ESP_ENOMEM, "adapter: out of memory");
    src.format = t->dtype == ESP_DTYPE_F32   ? ESP_FORMAT_F32
                 : t->dtype == ESP_DTYPE_F16 ? ESP_FORMAT_F16
                                             : ESP_FORMAT_BF16;
    ESP_TRY(esp_weight_layout(&src, t->name, err));
    for (uint32_t r = 0; r < rows; r++) {
        esp_format_get(src.format)->decode(&src, r, 0, cols, row);
        for (uint32_t c = 0; c < cols; c++) {
            if (!isfinite(row[c]))
                return esp_fail(err, ESP_ENUMERIC, "%s: tensor %s: element [%u][%u] is not finite",
                                esp_st_name(t->file), t->name, r, c);
            v[transpose ? (size_t)c * rows + r : (size_t)r * cols + c] = row[c];
        }
    }
    *out = (struct esp_weight){.format = ESP_FORMAT_F32,
                               .n_out = transpose ? cols : rows,
                               .n_in = transpose ? rows : cols,
                               .codes = (const uint8_t *)v};
    return esp_weight_layout(out, t->name, err);
}

static esp_status bind_pair(struct esp_lora *l, const struct esp_adapter_file *f,
                            const struct esp_adapter_pair *p, const struct esp_weight *base, float scale,
                            esp_error *err)
{
    uint64_t peft = rank_if(p, base, true), mlx = rank_if(p, base, false);
    bool use_peft = peft && (!mlx || p->peft_names);
    uint64_t r = use_peft ? peft : mlx;
    struct esp_lora_pair *pair = (struct esp_lora_pair *)&l->set.pairs[l->set.n];

    pair->scale = (float)(esp_adapter_scale_of(f, p->module, r) * scale);
    if (!isfinite(pair->scale))
        return esp_fail(err, ESP_ENUMERIC, "%s: the scale of %s is not finite", f->path, p->module);
    if (pair->scale == 0)
        return ESP_OK;
    pair->base = base;
    ESP_TRY(convert(l->arena, p->a, !use_peft, &pair->a, err));
    ESP_TRY(convert(l->arena, p->b, !use_peft, &pair->b, err));
    if (r > l->set.max_rank)
        l->set.max_rank = (uint32_t)r;
    l->set.n++;
    return ESP_OK;
}

static void list_fault(struct esp_strbuf *b, const struct esp_adapter_pair *p, const struct esp_weight *w)
{
    char sa[64], sb[64];
    const char *sep = b->len ? "; " : "";

    if (b->len + strlen(p->module) + 120 > b->max)
        return;
    if (!w)
        esp_strbuf_printf(b, "%s%s: the model has no such module", sep, p->module);
    else
        esp_strbuf_printf(b, "%s%s: A %s, B %s do not fit %u inputs, %u outputs", sep, p->module,
                          esp_st_shape_text(p->a, sa, sizeof sa), esp_st_shape_text(p->b, sb, sizeof sb),
                          w->n_in, w->n_out);
}

/* Every fault of every pair before anything is bound. */
static esp_status check_pairs(const struct esp_net *net, const struct esp_adapter_file *f, esp_error *err)
{
    struct esp_strbuf faults;
    uint32_t n_fault = 0;
    esp_status s = ESP_OK;

    esp_strbuf_init(&faults, FAULT_BYTES);
    for (uint32_t i = 0; i < f->n; i++) {
        const struct esp_weight *w = find_weight(net, f->pairs[i].module);

        if (w && (rank_if(&f->pairs[i], w, true) || rank_if(&f->pairs[i], w, false)))
            continue;
        n_fault++;
        list_fault(&faults, &f->pairs[i], w);
    }
    if (n_fault)
        s = esp_fail(err, ESP_EFORMAT, "%s: %u of %u modules matched: %s", f->path, f->n - n_fault, f->n,
                     esp_strbuf_str(&faults));
    esp_strbuf_free(&faults);
    return s;
}

static int by_base(const void *x, const void *y)
{
    uintptr_t a = (uintptr_t)((const struct esp_lora_pair *)x)->base,
              b = (uintptr_t)((const struct esp_lora_pair *)y)->base;

    return a < b ? -1 : a > b;
}

static esp_status bind_all(struct esp_lora *l, const struct esp_net *net, const struct esp_adapter_file *f,
                           float scale, esp_error *err)
{
    ESP_TRY(check_pairs(net, f, err));
    l->set.pairs = esp_arena_alloc_array(l->arena, f->n, sizeof *l->set.pairs);
    if (!l->set.pairs)
        return esp_fail(err, ESP_ENOMEM, "adapter: out of memory");
    for (uint32_t i = 0; i < f->n; i++)
        ESP_TRY(bind_pair(l, f, &f->pairs[i], find_weight(net, f->pairs[i].module), scale, err));
    qsort((void *)(uintptr_t)l->set.pairs, l->set.n, sizeof *l->set.pairs, by_base);
    l->n_module = l->set.n;
    l->bytes = esp_arena_reserved(l->arena);
    l->revision = esp_hash(&scale, sizeof scale, f->revision); /* another scale is another adapter */
    l->set.revision = l->revision;
    return ESP_OK;
}

esp_status esp_lora_load(struct esp_lora **out, const struct esp_net *net, const char *dir, float scale,
                         esp_error *err)
{
    struct esp_adapter_file *f;
    struct esp_lora *l;
    esp_status s;

    if (!isfinite(scale))
        return esp_fail(err, ESP_EINVAL, "adapter scale %g: a finite number is needed", scale);
    ESP_TRY(esp_adapter_file_open(&f, dir, err));
    l = esp_alloc(sizeof *l);
    if (l)
        l->arena = esp_arena_create((size_t)16 << 30);
    s = l && l->arena ? bind_all(l, net, f, scale, err) : esp_fail(err, ESP_ENOMEM, "adapter: out of memory");
    esp_adapter_file_close(f);
    if (s != ESP_OK) {
        esp_lora_close(l);
        return s;
    }
    *out = l;
    return ESP_OK;
}

void esp_lora_close(struct esp_lora *l)
{
    if (!l)
        return;
    esp_arena_destroy(l->arena);
    esp_warnings_free(&l->warnings);
    esp_free(l);
}
