/*
 * Page and slot layout arithmetic. Every plane starts at a multiple of 64 bytes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "graph/layout.h"

static size_t pad64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static esp_status check(const struct esp_layout *l, esp_error *err)
{
    if (l->n_attn && (l->head_dim % 16 || l->head_dim == 0 || l->head_dim > ESP_HEAD_MAX))
        return esp_fail(err, ESP_EUNSUPPORTED, "attention head of %u: multiples of 16 up to %d are supported",
                        l->head_dim, ESP_HEAD_MAX);
    if (l->n_delta && (l->dk % 16 || l->dv % 16 || l->dk == 0 || l->dv == 0 || l->dk > 256 || l->dv > 256))
        return esp_fail(err, ESP_EUNSUPPORTED,
                        "linear-attention heads of %u and %u: multiples of 16 up to 256 are supported", l->dk,
                        l->dv);
    return ESP_OK;
}

static struct esp_kv_scheme plain(bool f32)
{
    return (struct esp_kv_scheme){.kind = f32 ? ESP_KV_KIND_F32 : ESP_KV_KIND_BF16};
}

/* Rows and place of a layer at *off in a page of `rows` positions; *off moves behind it. Planes of an even
 * number of rows are multiples of 64 bytes by themselves, as heads are multiples of 16. */
static void place_layer(const struct esp_layout *l, struct esp_layout_kv *a, uint32_t rows, size_t *off)
{
    a->k_row = (uint32_t)esp_kv_key_bytes(&a->scheme, l->head_dim);
    a->v_row = (uint32_t)esp_kv_value_bytes(&a->scheme, l->head_dim);
    a->rows = rows;
    a->off = *off;
    *off += (size_t)(a->k_row + a->v_row) * rows * l->n_kv_head;
}

/* Exact pages have the bytes of coded ones and as many positions as these hold. */
static void place_exact(struct esp_layout *l)
{
    size_t row = 0, off = 0;

    l->exact_rows = l->exact_pages = 0;
    if (l->kv != ESP_KV_CODED || l->n_attn == 0)
        l->kv_start = 0;
    if (l->kv_start == 0)
        return;
    for (uint32_t i = 0; i < l->n_attn; i++) {
        l->exact[i].scheme = plain(l->layers[i].scheme.kind == ESP_KV_KIND_F32);
        place_layer(l, &l->exact[i], 1, &row);
    }
    l->exact_rows = l->page_bytes / row < ESP_SPAN ? (uint32_t)(l->page_bytes / row) & ~1u : ESP_SPAN;
    l->exact_pages = (l->kv_start + l->exact_rows - 1) / l->exact_rows;
    for (uint32_t i = 0; i < l->n_attn; i++)
        place_layer(l, &l->exact[i], l->exact_rows, &off);
}

static esp_status place_layers(struct esp_layout *l, esp_error *err)
{
    size_t off = 0;

    if (l->n_attn > ESP_LAYOUT_ATTN)
        return esp_fail(err, ESP_EUNSUPPORTED, "%u attention layers; at most %d are supported", l->n_attn,
                        ESP_LAYOUT_ATTN);
    for (uint32_t i = 0; i < l->n_attn; i++) {
        struct esp_layout_kv *a = &l->layers[i];

        if (l->kv != ESP_KV_CODED)
            a->scheme = plain(l->kv == ESP_KV_F32);
        ESP_TRY(esp_kv_check(&a->scheme, l->head_dim, err));
        place_layer(l, a, ESP_SPAN, &off);
    }
    l->page_bytes = off;
    place_exact(l);
    l->kv_row = l->kv_plane = l->page_layer = 0;
    if (l->kv == ESP_KV_CODED || l->n_attn == 0)
        return ESP_OK;
    l->kv_row = l->layers[0].k_row;
    l->kv_plane = l->kv_row * ESP_SPAN;
    l->page_layer = l->kv_plane * 2 * l->n_kv_head;
    return ESP_OK;
}

esp_status esp_layout_finish(struct esp_layout *l, esp_error *err)
{
    ESP_TRY(check(l, err));
    ESP_TRY(place_layers(l, err));
    l->s_off = 0;
    l->s_head = esp_recurrent_bytes(l->state, l->dv, l->dk);
    l->k_off = pad64(l->s_head * l->vh);
    l->u_off = l->k_off + pad64(sizeof(float) * l->kh * ESP_CHUNK * l->dk);
    l->g_off = l->u_off + pad64(sizeof(float) * l->vh * ESP_CHUNK * l->dv);
    l->conv_off = l->g_off + pad64(sizeof(float) * l->vh * ESP_CHUNK);
    l->conv_row = sizeof(float) * l->conv_dim;
    l->slot_layer = l->conv_off + pad64(l->conv_row * (ESP_CONV_TAPS - 1));
    l->tail_off = l->slot_layer * l->n_delta;
    l->slot_bytes = l->tail_off + (l->n_delta ? pad64(l->tail_bytes) : 0);
    return ESP_OK;
}

size_t esp_layout_kv_per_token(const struct esp_layout *l)
{
    return l->page_bytes / ESP_SPAN;
}

uint64_t esp_layout_kv_bytes(const struct esp_layout *l, uint64_t n)
{
    const uint64_t exact = n < l->kv_start ? n : l->kv_start;
    uint64_t row = 0;

    for (uint32_t i = 0; exact && i < l->n_attn; i++)
        row += (uint64_t)(l->exact[i].k_row + l->exact[i].v_row) * l->n_kv_head;
    return exact * row + (n - exact) * esp_layout_kv_per_token(l);
}

size_t esp_layout_state_bytes(const struct esp_layout *l)
{
    return l->n_delta * (l->s_head * l->vh + l->conv_row * (ESP_CONV_TAPS - 1));
}

size_t esp_layout_open_bytes(const struct esp_layout *l)
{
    size_t row = l->kh * l->dk + l->vh * (l->dv + 1);

    return l->n_delta * sizeof(float) * ESP_CHUNK * row;
}
