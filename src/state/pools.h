/*
 * The memory of all sequences of an engine: KV pages and recurrent slots, each a fixed number with reference
 * counts. Nothing is allocated after creation. A page or slot with more than one reference is never written.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_STATE_POOLS_H
#define ESP_STATE_POOLS_H

#include "backend/backend.h"

struct esp_state_pools {
    struct esp_pools mem; /* what plans see */
    struct esp_dev *dev;
    uint16_t *page_refs, *slot_refs;
    uint32_t *free_pages, *free_slots; /* stacks */
    uint32_t n_free_page, n_free_slot;
    uint8_t *journal_used;
    uint32_t lookback; /* positions before a pass whose keys and values it may write as well: 1 where a draft
                          layer's row waits for the token behind it, else 0 */
};

struct esp_pool_sizes {
    uint32_t n_page, n_slot;
    uint32_t n_journal, journal_rows; /* journal_rows <= ESP_CHUNK */
};

esp_status esp_state_pools_create(struct esp_state_pools **out, struct esp_dev *dev,
                                  const struct esp_layout *layout, const struct esp_pool_sizes *sizes,
                                  esp_error *err);
/* All sequences must be closed. NULL is a no-op. */
void esp_state_pools_destroy(struct esp_state_pools *p);

/* Take a free page, slot or journal with one reference; ESP_ENOFIT names the pool and its size. Slots come
 * zeroed on request. */
esp_status esp_page_take(struct esp_state_pools *p, uint32_t *out, esp_error *err);
esp_status esp_slot_take(struct esp_state_pools *p, uint32_t *out, bool zeroed, esp_error *err);
esp_status esp_journal_take(struct esp_state_pools *p, uint32_t *out, esp_error *err);
void esp_page_share(struct esp_state_pools *p, uint32_t page);
void esp_slot_share(struct esp_state_pools *p, uint32_t slot);
void esp_page_release(struct esp_state_pools *p, uint32_t page);
void esp_slot_release(struct esp_state_pools *p, uint32_t slot);
void esp_journal_release(struct esp_state_pools *p, uint32_t journal);
/* Copy contents; both must be taken. */
esp_status esp_page_copy(struct esp_state_pools *p, uint32_t dst, uint32_t src, esp_error *err);
esp_status esp_slot_copy(struct esp_state_pools *p, uint32_t dst, uint32_t src, esp_error *err);

#endif
