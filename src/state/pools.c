/*
 * Pools as free stacks with reference counts. Indices are handed out lowest first, so a lightly used pool
 * touches few memory pages.
 *
 * SPDX-License-Identifier: MIT
 */
#include "state/pools.h"

#include "base/mem.h"

static esp_status make_buffers(struct esp_state_pools *p, const struct esp_pool_sizes *z, esp_error *err)
{
    const struct esp_layout *l = &p->mem.layout;
    const struct esp_backend_ops *ops = p->dev->ops;
    size_t bytes;

    if (!esp_mul_size(&bytes, z->n_page, l->page_bytes))
        return esp_fail(err, ESP_ENOFIT, "%u pages of %zu bytes are more than memory can hold", z->n_page,
                        l->page_bytes);
    ESP_TRY(ops->alloc(p->dev, bytes, &p->mem.pages, err));
    if (!esp_mul_size(&bytes, z->n_slot, l->slot_bytes))
        return esp_fail(err, ESP_ENOFIT, "%u slots of %zu bytes are more than memory can hold", z->n_slot,
                        l->slot_bytes);
    ESP_TRY(ops->alloc(p->dev, bytes, &p->mem.slots, err));
    if (!z->n_journal || !l->n_delta)
        return ESP_OK;
    if (!esp_mul_size(&bytes, (size_t)z->n_journal * l->n_delta * z->journal_rows, l->conv_row))
        return esp_fail(err, ESP_ENOFIT, "%u journals are more than memory can hold", z->n_journal);
    return ops->alloc(p->dev, bytes, &p->mem.journals, err);
}

static void fill_stack(uint32_t *stack, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        stack[i] = n - 1 - i;
}

esp_status esp_state_pools_create(struct esp_state_pools **out, struct esp_dev *dev,
                                  const struct esp_layout *layout, const struct esp_pool_sizes *sizes,
                                  esp_error *err)
{
    struct esp_state_pools *p;
    esp_status s;

    if (sizes->journal_rows > ESP_CHUNK)
        return esp_fail(err, ESP_EINVAL, "journals of %u rows, at most %d are possible", sizes->journal_rows,
                        ESP_CHUNK);
    p = esp_alloc(sizeof *p);
    if (!p)
        return esp_fail(err, ESP_ENOMEM, "state pools: out of memory");
    p->dev = dev;
    p->mem.layout = *layout;
    p->mem.n_page = sizes->n_page;
    p->mem.n_slot = sizes->n_slot;
    p->mem.n_journal = sizes->n_journal;
    p->mem.journal_rows = sizes->journal_rows;
    p->page_refs = esp_alloc_array(sizes->n_page, sizeof *p->page_refs);
    p->slot_refs = esp_alloc_array(sizes->n_slot, sizeof *p->slot_refs);
    p->free_pages = esp_alloc_array(sizes->n_page, sizeof *p->free_pages);
    p->free_slots = esp_alloc_array(sizes->n_slot, sizeof *p->free_slots);
    p->journal_used = esp_alloc(sizes->n_journal);
    s = p->page_refs && p->slot_refs && p->free_pages && p->free_slots && p->journal_used
            ? make_buffers(p, sizes, err)
            : esp_fail(err, ESP_ENOMEM, "state pools: out of memory");
    if (s != ESP_OK) {
        esp_state_pools_destroy(p);
        return s;
    }
    p->n_free_page = sizes->n_page;
    p->n_free_slot = sizes->n_slot;
    fill_stack(p->free_pages, sizes->n_page);
    fill_stack(p->free_slots, sizes->n_slot);
    *out = p;
    return ESP_OK;
}

void esp_state_pools_destroy(struct esp_state_pools *p)
{
    if (!p)
        return;
    p->dev->ops->free(p->mem.pages);
    p->dev->ops->free(p->mem.slots);
    p->dev->ops->free(p->mem.journals);
    esp_free(p->page_refs);
    esp_free(p->slot_refs);
    esp_free(p->free_pages);
    esp_free(p->free_slots);
    esp_free(p->journal_used);
    esp_free(p);
}

esp_status esp_page_take(struct esp_state_pools *p, uint32_t *out, esp_error *err)
{
    if (p->n_free_page == 0)
        return esp_fail(err, ESP_ENOFIT, "all %u KV pages (%llu positions) are in use", p->mem.n_page,
                        (unsigned long long)esp_layout_page_first(&p->mem.layout, p->mem.n_page));
    *out = p->free_pages[--p->n_free_page];
    p->page_refs[*out] = 1;
    return ESP_OK;
}

esp_status esp_slot_take(struct esp_state_pools *p, uint32_t *out, bool zeroed, esp_error *err)
{
    size_t bytes = p->mem.layout.slot_bytes;
    uint32_t slot;

    if (p->n_free_slot == 0)
        return esp_fail(err, ESP_ENOFIT, "all %u recurrent-state slots are in use", p->mem.n_slot);
    slot = p->free_slots[p->n_free_slot - 1];
    if (zeroed && bytes)
        ESP_TRY(p->dev->ops->fill((struct esp_span){p->mem.slots, slot * bytes, bytes}, 0, err));
    p->n_free_slot--;
    p->slot_refs[slot] = 1;
    *out = slot;
    return ESP_OK;
}

esp_status esp_journal_take(struct esp_state_pools *p, uint32_t *out, esp_error *err)
{
    for (uint32_t i = 0; i < p->mem.n_journal; i++)
        if (!p->journal_used[i]) {
            p->journal_used[i] = 1;
            *out = i;
            return ESP_OK;
        }
    return esp_fail(err, ESP_ENOFIT, "all %u journals are in use", p->mem.n_journal);
}

void esp_page_share(struct esp_state_pools *p, uint32_t page)
{
    ESP_ASSERT(p->page_refs[page] > 0 && p->page_refs[page] < UINT16_MAX);
    p->page_refs[page]++;
}

void esp_slot_share(struct esp_state_pools *p, uint32_t slot)
{
    ESP_ASSERT(p->slot_refs[slot] > 0 && p->slot_refs[slot] < UINT16_MAX);
    p->slot_refs[slot]++;
}

void esp_page_release(struct esp_state_pools *p, uint32_t page)
{
    ESP_ASSERT(p->page_refs[page] > 0);
    if (--p->page_refs[page] == 0)
        p->free_pages[p->n_free_page++] = page;
}

void esp_slot_release(struct esp_state_pools *p, uint32_t slot)
{
    ESP_ASSERT(p->slot_refs[slot] > 0);
    if (--p->slot_refs[slot] == 0)
        p->free_slots[p->n_free_slot++] = slot;
}

void esp_journal_release(struct esp_state_pools *p, uint32_t journal)
{
    ESP_ASSERT(p->journal_used[journal]);
    p->journal_used[journal] = 0;
}

static esp_status copy_item(struct esp_state_pools *p, struct esp_buf *b, size_t size, uint32_t dst,
                            uint32_t src, esp_error *err)
{
    struct esp_span d = {b, dst * size, size}, s = {b, src * size, size};

    return p->dev->ops->copy(d, s, err);
}

esp_status esp_page_copy(struct esp_state_pools *p, uint32_t dst, uint32_t src, esp_error *err)
{
    return copy_item(p, p->mem.pages, p->mem.layout.page_bytes, dst, src, err);
}

esp_status esp_slot_copy(struct esp_state_pools *p, uint32_t dst, uint32_t src, esp_error *err)
{
    return copy_item(p, p->mem.slots, p->mem.layout.slot_bytes, dst, src, err);
}
