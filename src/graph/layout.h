/*
 * Where a sequence's memory lies: the byte layout of a KV page and of a recurrent slot. Plain data, shared by
 * the state room (which hands pages and slots out) and by backends (which read and write them).
 *
 * A page holds ESP_SPAN positions of every attention layer:  [layer][kv head][K, V][ESP_SPAN] rows, each of a
 * layer's own scheme (formats/kv.h). With kv_start, the first positions of a sequence lie in exact pages: as
 * many bytes, but plain rows, so of fewer positions; then come coded ones. Which page a position is in
 * follows from the position alone.
 *
 * A slot holds every delta layer:
 *     S     [vh][dv][dk]        state with all positions before `base` folded in, as formats/recurrent.h says
 *     k     [kh][ESP_CHUNK][dk] unit keys of the open rows base, base + 1, ...
 *     u     [vh][ESP_CHUNK][dv] deltas of the open rows
 *     g     [vh][ESP_CHUNK]     log decays of the open rows
 *     conv  [3][conv_dim]       last pre-convolution rows, oldest first
 * and behind the last layer tail_bytes that no kernel looks at; they travel with the slot.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_GRAPH_LAYOUT_H
#define ESP_GRAPH_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "formats/recurrent.h"
#include "kernels/kernels.h"

enum { ESP_LAYOUT_ATTN = 256 }; /* attention layers: one in four of ESP_LIMIT_LAYERS */

struct esp_layout_kv { /* keys and values of one attention layer */
    struct esp_kv_scheme scheme;
    uint32_t k_row, v_row; /* bytes of one row of one head */
    uint32_t rows;         /* positions of a page */
    size_t off;            /* of the layer in a page */
};

struct esp_layout {
    uint32_t n_attn, n_delta; /* layers of each kind */
    uint32_t n_kv_head, head_dim;
    enum esp_kv kv;    /* ESP_KV_CODED: layers[i].scheme is set for each layer; else all are of this type */
    uint32_t kv_start; /* first positions of every sequence that coded layers keep as bf16; 0 unless coded */
    uint32_t kh, vh, dk, dv, conv_dim;
    enum esp_recurrent state; /* how S is kept */
    struct esp_layout_kv layers[ESP_LAYOUT_ATTN];
    size_t tail_bytes; /* behind a slot's layers, for whoever owns the sequence: a draft layer's hidden row */

    /* Derived by esp_layout_finish(), as all of layers but coded schemes; bytes. */
    struct esp_layout_kv exact[ESP_LAYOUT_ATTN]; /* layers of exact pages */
    uint32_t exact_rows, exact_pages;            /* positions of an exact page; such pages of a sequence */
    size_t kv_row;     /* one position of K or V of one head; 0 when coded, and so the next two */
    size_t kv_plane;   /* K or V of one head: ESP_SPAN rows */
    size_t page_layer; /* one attention layer of a page */
    size_t page_bytes;
    size_t s_head;                               /* S of one value head, stored */
    size_t s_off, k_off, u_off, g_off, conv_off; /* inside one layer of a slot */
    size_t slot_layer;
    size_t tail_off;
    size_t slot_bytes;
    size_t conv_row; /* one pre-convolution row */
};

/* Fill the derived fields; ESP_EUNSUPPORTED for sizes that no kernel takes, naming the size and the range. */
esp_status esp_layout_finish(struct esp_layout *l, esp_error *err);
/* Pages of a sequence are numbered from its first position on. The page that holds a position ... */
static inline uint32_t esp_layout_page_of(const struct esp_layout *l, uint64_t pos)
{
    return (uint32_t)(pos < l->kv_start ? pos / l->exact_rows
                                        : l->exact_pages + (pos - l->kv_start) / ESP_SPAN);
}
/* ... the first position of a page, which is where the one before it ends ... */
static inline uint64_t esp_layout_page_first(const struct esp_layout *l, uint32_t page)
{
    return page < l->exact_pages ? (uint64_t)page * l->exact_rows
                                 : l->kv_start + (uint64_t)(page - l->exact_pages) * ESP_SPAN;
}
/* ... and the pages of the first n positions. */
static inline uint32_t esp_layout_pages(const struct esp_layout *l, uint64_t n)
{
    return n && l->n_attn ? esp_layout_page_of(l, n - 1) + 1 : 0;
}
/* How an attention layer lies in a page. */
static inline const struct esp_layout_kv *esp_layout_kv_of(const struct esp_layout *l, uint32_t layer,
                                                           uint32_t page)
{
    return page < l->exact_pages ? &l->exact[layer] : &l->layers[layer];
}
/* Where keys (which = 0) or values (1) of a head start in a page whose layer lies as a says. */
static inline size_t esp_layout_plane(const struct esp_layout_kv *a, uint32_t head, uint32_t which)
{
    return a->off + ((size_t)head * (a->k_row + a->v_row) + (which ? a->k_row : 0)) * a->rows;
}
/* Bytes of keys and values of one position over all attention layers, behind kv_start. */
size_t esp_layout_kv_per_token(const struct esp_layout *l);
/* ... of the first n positions, without what pages leave unused. */
uint64_t esp_layout_kv_bytes(const struct esp_layout *l, uint64_t n);
/* Bytes of S and conv of all layers (a "state" in memory plans), and of the open rows k, u, g. */
size_t esp_layout_state_bytes(const struct esp_layout *l);
size_t esp_layout_open_bytes(const struct esp_layout *l);

#endif
