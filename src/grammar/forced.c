/*
 * Text that is decided before a model is asked, cut into tokens. The cut is the longest token at each place,
 * made only where more text could not make it longer, so it is a function of the place in the grammar alone.
 *
 * SPDX-License-Identifier: MIT
 */
#include "grammar/matcher.h"

enum { RUN = 256, OPEN = -1, CLOSED = -2 };

/*
 * What must follow in a set: a byte, 256 + a token symbol, OPEN when that is not decided, CLOSED at the end
 * of the text.
 */
static int only_next(const struct esp_matcher *m, uint32_t set)
{
    const struct esp_auto *a = &m->g->a;
    const struct esp_space_set *s = &m->space.set[set];
    int only = CLOSED;

    if (s->ends)
        return s->n ? OPEN : CLOSED;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct esp_auto_state *q = &a->state[m->space.config[s->off + i].state];

        for (uint32_t k = 0; k < q->n_edge; k++) {
            const struct esp_auto_edge *e = &a->edge[q->edge + k];

            if (e->lo != e->hi || (only != CLOSED && only != e->lo))
                return OPEN;
            only = e->lo;
        }
        for (uint32_t k = 0; k < q->n_token; k++) {
            const int t = 256 + (int)a->token[q->token + k].symbol;

            if (only != CLOSED && only != t)
                return OPEN;
            only = t;
        }
    }
    return only;
}

/* Follow the decided bytes from *set on into run; what comes behind them. */
static int read_run(struct esp_matcher *m, uint32_t *set, char run[RUN], uint32_t *n)
{
    for (*n = 0;;) {
        const int c = only_next(m, *set);

        if (c < 0 || c >= 256)
            return c;
        if (*n == RUN)
            return OPEN;
        *set = esp_space_byte(&m->space, *set, (unsigned char)c);
        if (*set == ESP_SPACE_NONE || *set == ESP_SPACE_DEAD)
            return OPEN;
        run[(*n)++] = (char)c;
    }
}

/* The longest token at the start of s[0..n), *len bytes; false when there is none or more text could lengthen
 * it. */
static bool longest(const struct esp_vocab *v, const char *s, uint32_t n, bool more, uint32_t *token,
                    uint32_t *len)
{
    uint32_t i = v->first[(unsigned char)s[0]], depth = 0;

    *token = ESP_VOCAB_NONE;
    while (i != ESP_VOCAB_NONE) {
        const uint32_t end = v->node[i].end;

        depth++;
        if (v->node[i].token != ESP_VOCAB_NONE) {
            *token = v->node[i].token;
            *len = depth;
        }
        if (depth == n) {
            if (more && end > i + 1)
                return false;
            break;
        }
        for (i++; i < end && v->node[i].byte != (unsigned char)s[depth];)
            i = v->node[i].end;
        if (i >= end)
            break;
    }
    return *token != ESP_VOCAB_NONE;
}

static uint32_t forced(struct esp_matcher *m, uint32_t *out, uint32_t cap)
{
    uint32_t set = m->set[m->n % ESP_MATCH_RING], n_out = 0;
    char run[RUN];

    m->space.fault = ESP_SPACE_FINE;
    while (n_out < cap) {
        uint32_t n, at = 0, token, len = 0;
        int behind = read_run(m, &set, run, &n);

        while (at < n && n_out < cap && longest(m->v, run + at, n - at, behind == OPEN, &token, &len)) {
            out[n_out++] = token;
            at += len;
        }
        if (at < n || behind < 256 || n_out == cap)
            break;
        out[n_out++] = m->g->a.symbol[behind - 256];
        set = esp_space_step(&m->space, set, m->g->a.n_class + (uint32_t)(behind - 256));
        if (set == ESP_SPACE_NONE || set == ESP_SPACE_DEAD)
            return n_out - 1;
    }
    return n_out;
}

uint32_t esp_matcher_forced(struct esp_matcher *m, uint32_t *out, uint32_t cap)
{
    uint32_t n;

    if (m->broken || m->mode[m->n % ESP_MATCH_RING] != ESP_MATCH_ACTIVE)
        return 0;
    n = forced(m, out, cap);
    if (m->space.fault == ESP_SPACE_FULL && esp_match_compact(m))
        n = forced(m, out, cap);
    return n;
}
