/*
 * Aho-Corasick with leftmost-longest semantics. The trie is small (16 strings of 256 bytes: 4,097 nodes) and
 * a node has at most 16 children, so children are sibling lists and the tables take 50 KiB instead of 2 MiB.
 * A candidate match at start s stays open while the automaton's present prefix starts at or before s: only
 * then can an earlier or longer one still come.
 *
 * SPDX-License-Identifier: MIT
 */
#include "text/stop.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

enum { HOLD_CAP = 4 * ESP_STOP_MAX_BYTES, NO_STRING = 255 };

struct node {
    uint16_t child;   /* first child, 0 = none (node 0 is the root and nobody's child) */
    uint16_t sibling; /* next child of the same parent */
    uint16_t fail;    /* longest proper suffix that is in the trie */
    uint16_t match;   /* this node or its nearest suffix that is a whole string, 0 = none */
    uint16_t depth;
    uint8_t byte;
    uint8_t string; /* index of the string that ends here, or NO_STRING */
};

struct esp_stop {
    struct node *nodes;
    uint32_t n_nodes;

    uint32_t at;         /* node: the longest suffix of the stream that is a prefix of a string */
    uint64_t pos;        /* bytes fed */
    uint64_t cand_start; /* valid if cand >= 0 */
    int cand;            /* string of the open candidate, -1 = none */
    int matched;
    size_t hold_at, hold_len; /* bytes [pos - hold_len, pos) are hold[hold_at ...] */
    char hold[HOLD_CAP];
};

static uint32_t find_child(const struct esp_stop *m, uint32_t parent, uint8_t byte)
{
    uint32_t c = m->nodes[parent].child;

    while (c && m->nodes[c].byte != byte)
        c = m->nodes[c].sibling;
    return c;
}

static uint32_t step(const struct esp_stop *m, uint32_t at, uint8_t byte)
{
    for (;;) {
        uint32_t c = find_child(m, at, byte);

        if (c || at == 0)
            return c;
        at = m->nodes[at].fail;
    }
}

static void add_string(struct esp_stop *m, const struct esp_stop_string *s, uint8_t index)
{
    uint32_t at = 0;

    for (size_t i = 0; i < s->len; i++) {
        uint8_t byte = (uint8_t)s->text[i];
        uint32_t c = find_child(m, at, byte);

        if (!c) {
            struct node *n;

            c = m->n_nodes++;
            n = &m->nodes[c];
            n->byte = byte;
            n->string = NO_STRING;
            n->depth = (uint16_t)(i + 1);
            n->sibling = m->nodes[at].child;
            m->nodes[at].child = (uint16_t)c;
        }
        at = c;
    }
    if (m->nodes[at].string == NO_STRING)
        m->nodes[at].string = index;
}

/* Fail and match links, breadth first; queue holds n_nodes entries. */
static void link_nodes(struct esp_stop *m, uint16_t *queue)
{
    uint32_t head = 0, tail = 0;

    queue[tail++] = 0;
    while (head < tail) {
        uint16_t parent = queue[head++];

        for (uint16_t c = m->nodes[parent].child; c; c = m->nodes[c].sibling) {
            struct node *n = &m->nodes[c];

            n->fail = parent ? (uint16_t)step(m, m->nodes[parent].fail, n->byte) : 0;
            n->match = n->string != NO_STRING ? c : m->nodes[n->fail].match;
            queue[tail++] = c;
        }
    }
}

static esp_status check_strings(const struct esp_stop_string *strings, size_t n, size_t *total,
                                esp_error *err)
{
    if (n > ESP_STOP_MAX_STRINGS)
        return esp_fail(err, ESP_EINVAL, "stop: %zu strings, at most %d are accepted", n,
                        ESP_STOP_MAX_STRINGS);
    for (size_t i = 0; i < n; i++) {
        size_t at;

        if (strings[i].len == 0)
            return esp_fail(err, ESP_EINVAL, "stop[%zu]: empty; 1 to %d bytes are accepted", i,
                            ESP_STOP_MAX_BYTES);
        if (strings[i].len > ESP_STOP_MAX_BYTES)
            return esp_fail(err, ESP_EINVAL, "stop[%zu]: %zu bytes; 1 to %d are accepted", i, strings[i].len,
                            ESP_STOP_MAX_BYTES);
        if (!esp_utf8_valid(strings[i].text, strings[i].len, &at))
            return esp_fail(err, ESP_EINVAL, "stop[%zu]: invalid UTF-8 at byte %zu; it could never match", i,
                            at);
        *total += strings[i].len;
    }
    return ESP_OK;
}

esp_status esp_stop_create(struct esp_stop **out, const struct esp_stop_string *strings, size_t n,
                           esp_error *err)
{
    struct esp_stop *m = NULL;
    uint16_t *queue = NULL;
    size_t total = 0;

    ESP_TRY(check_strings(strings, n, &total, err));
    m = esp_alloc(sizeof *m);
    queue = esp_alloc_array(total + 1, sizeof *queue);
    if (m)
        m->nodes = esp_alloc_array(total + 1, sizeof *m->nodes);
    if (!m || !queue || !m->nodes) {
        esp_free(queue);
        esp_stop_destroy(m);
        return esp_fail(err, ESP_ENOMEM, "stop: no memory for %zu strings of %zu bytes", n, total);
    }
    m->nodes[0].string = NO_STRING;
    m->n_nodes = 1;
    for (size_t i = 0; i < n; i++)
        add_string(m, &strings[i], (uint8_t)i);
    link_nodes(m, queue);
    esp_free(queue);
    esp_stop_reset(m);
    *out = m;
    return ESP_OK;
}

void esp_stop_destroy(struct esp_stop *m)
{
    if (!m)
        return;
    esp_free(m->nodes);
    esp_free(m);
}

void esp_stop_reset(struct esp_stop *m)
{
    m->at = 0;
    m->pos = 0;
    m->cand = -1;
    m->cand_start = 0;
    m->matched = -1;
    m->hold_at = 0;
    m->hold_len = 0;
}

/* Advance over one byte; true when the candidate has won. */
static bool take_byte(struct esp_stop *m, uint8_t byte)
{
    const struct node *n, *w;

    m->at = step(m, m->at, byte);
    m->pos++;
    n = &m->nodes[m->at];
    if (m->cand >= 0 && m->pos - n->depth > m->cand_start)
        return true;
    if (n->match) {
        uint64_t start;

        w = &m->nodes[n->match];
        start = m->pos - w->depth;
        if (m->cand < 0 || start <= m->cand_start) { /* equal start: this one is longer */
            m->cand = w->string;
            m->cand_start = start;
        }
        /* a leaf that is itself the match cannot grow, and nothing that starts earlier is open */
        return n->match == m->at && n->child == 0;
    }
    return false;
}

/* Append stream bytes [from, to) to out: first those held, then those of the piece, which begins at stream
 * offset base. */
static bool emit(struct esp_stop *m, uint64_t to, const char *piece, uint64_t base, struct esp_strbuf *out)
{
    uint64_t from = base - m->hold_len;
    size_t held = (size_t)((to < base ? to : base) - from);
    bool ok = esp_strbuf_add(out, m->hold + m->hold_at, held);

    m->hold_at += held;
    m->hold_len -= held;
    if (ok && to > base)
        ok = esp_strbuf_add(out, piece, (size_t)(to - base));
    return ok;
}

/* Keep a piece's bytes for later. The buffer is four strings long, so that moving its rest down is rare. */
static void hold(struct esp_stop *m, const char *bytes, size_t len)
{
    if (m->hold_at + m->hold_len + len > HOLD_CAP) {
        memmove(m->hold, m->hold + m->hold_at, m->hold_len);
        m->hold_at = 0;
    }
    ESP_ASSERT(m->hold_len + len <= ESP_STOP_MAX_BYTES);
    if (len)
        memcpy(m->hold + m->hold_at + m->hold_len, bytes, len);
    m->hold_len += len;
}

esp_status esp_stop_feed(struct esp_stop *m, const char *bytes, size_t len, struct esp_strbuf *out,
                         esp_error *err)
{
    uint64_t base = m->pos, keep;
    bool ok, won = false;

    if (m->matched >= 0)
        return ESP_OK;
    for (size_t i = 0; i < len && !won; i++)
        won = take_byte(m, (uint8_t)bytes[i]);
    if (won) {
        m->matched = m->cand;
        ok = emit(m, m->cand_start, bytes, base, out);
        m->hold_len = 0;
    } else {
        keep = m->pos - m->nodes[m->at].depth; /* an open candidate starts there or later */
        ok = emit(m, keep, bytes, base, out);
        if (ok && keep < m->pos) {
            size_t skip = keep > base ? (size_t)(keep - base) : 0;

            hold(m, bytes + skip, len - skip);
        }
    }
    if (!ok)
        return esp_fail(err, ESP_ENOMEM, "stop: cannot append to a text of %zu bytes (at most %zu)", out->len,
                        out->max);
    return ESP_OK;
}

esp_status esp_stop_flush(struct esp_stop *m, struct esp_strbuf *out, esp_error *err)
{
    bool ok;

    if (m->matched >= 0)
        return ESP_OK;
    if (m->cand >= 0)
        m->matched = m->cand;
    ok = emit(m, m->cand >= 0 ? m->cand_start : m->pos, NULL, m->pos, out);
    m->hold_len = 0;
    m->at = 0;
    if (!ok)
        return esp_fail(err, ESP_ENOMEM, "stop: cannot append to a text of %zu bytes (at most %zu)", out->len,
                        out->max);
    return ESP_OK;
}

int esp_stop_matched(const struct esp_stop *m)
{
    return m->matched;
}

bool esp_stop_pending(const struct esp_stop *m)
{
    return m->matched < 0 && m->cand >= 0;
}

size_t esp_stop_held(const struct esp_stop *m)
{
    return m->hold_len;
}
