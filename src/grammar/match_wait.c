/*
 * A matcher before its grammar holds: everything is free, but it must not miss the trigger. A trigger text
 * may be cut into tokens in any way; it is followed byte by byte, and tokens that would carry text beyond its
 * end, which no grammar has looked at, are kept out.
 *
 * Source: Knuth, Morris, Pratt, "Fast pattern matching in strings", 1977, for the borders.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/matcher.h"

#include "base/mem.h"

void esp_match_prepare(struct esp_matcher *m)
{
    uint32_t k = 0;

    for (uint32_t i = 1; i < m->n_trigger; i++) {
        while (k && m->trigger[i] != m->trigger[k])
            k = m->border[k];
        k += m->trigger[i] == m->trigger[k];
        m->border[i + 1] = (uint8_t)k;
    }
}

static uint32_t feed(const struct esp_matcher *m, uint32_t k, char c)
{
    while (k && m->trigger[k] != c)
        k = m->border[k];
    return k + (m->trigger[k] == c);
}

/* Bytes of the trigger read after s[0..len), or n_trigger when it ended; *past: before the end of s. */
static uint32_t feed_all(const struct esp_matcher *m, uint32_t k, const char *s, size_t len, bool *past)
{
    *past = false;
    for (size_t i = 0; i < len; i++) {
        k = feed(m, k, s[i]);
        if (k == m->n_trigger) {
            *past = i + 1 < len;
            return k;
        }
    }
    return k;
}

uint8_t esp_match_wait(const struct esp_matcher *m, uint8_t mode, uint32_t id, bool *past)
{
    uint32_t k;

    *past = false;
    for (uint32_t i = 0; i < m->o.n_trigger; i++)
        if (m->o.trigger[i] == id)
            return ESP_MATCH_ACTIVE;
    if (m->n_trigger == 0 || id >= m->v->n_ids)
        return mode;
    k = feed_all(m, mode, m->v->bytes + m->v->off[id], m->v->off[id + 1] - m->v->off[id], past);
    return k == m->n_trigger ? ESP_MATCH_ACTIVE : (uint8_t)k;
}

static bool find_past(struct esp_matcher *m, uint8_t mode, struct esp_match_past *p)
{
    uint32_t cap = 0;

    for (uint32_t id = 0; id < m->v->n_ids; id++) {
        bool past;

        esp_match_wait(m, mode, id, &past);
        if (!past)
            continue;
        if (!esp_auto_grow(&p->id, &cap, p->n, 1, sizeof *p->id)) {
            esp_free(p->id);
            *p = (struct esp_match_past){0};
            return false;
        }
        p->id[p->n++] = id;
    }
    p->known = true;
    return true;
}

bool esp_match_wait_mask(struct esp_matcher *m, uint8_t mode, uint64_t *bits, size_t n_word)
{
    for (uint32_t i = 0; i < m->o.n_ban; i++)
        if (m->o.ban[i] / 64 < n_word)
            bits[m->o.ban[i] / 64] &= ~(UINT64_C(1) << m->o.ban[i] % 64);
    if (m->n_trigger == 0)
        return true;
    if (!m->past[mode].known && !find_past(m, mode, &m->past[mode]))
        return false;
    for (uint32_t i = 0; i < m->past[mode].n; i++)
        if (m->past[mode].id[i] / 64 < n_word)
            bits[m->past[mode].id[i] / 64] &= ~(UINT64_C(1) << m->past[mode].id[i] % 64);
    return true;
}
