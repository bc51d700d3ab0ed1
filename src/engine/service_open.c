/*
 * Which of the requests that wait comes into the engine next: by rank, and no more of one owner's than it may
 * have rows.
 *
 * SPDX-License-Identifier: MIT
 */
#include "engine/service_parts.h"

/* Whether the owner of j has rows left for it. What goes on has its rows already. */
static bool owner_has_room(const struct esp_service *v, const struct esp_service_job *j)
{
    uint32_t n = j->r.n_choice;

    if (!v->rows_per_owner || !j->r.owner || j->r.goes_on)
        return true;
    for (const struct esp_service_job *x = v->jobs; x; x = x->next)
        if (x->opened && x->r.owner == j->r.owner)
            n += x->r.n_choice - x->n_ended;
    return n <= v->rows_per_owner;
}

/* Of those that wait and may come in: the first by rank. What goes on stands in front of the list. */
static struct esp_service_job *next_to_open(const struct esp_service *v)
{
    const double now = esp_engine_now();
    struct esp_service_job *best = NULL;
    int64_t least = INT64_MAX;

    for (struct esp_service_job *j = v->jobs; j; j = j->next) {
        const int64_t rank = esp_engine_rank(v->g, j->r.opts.priority, j->at, now);

        if (!j->opened && !j->n_ended && rank < least && owner_has_room(v, j)) {
            best = j;
            least = rank;
        }
    }
    return best;
}

void esp_service_open_jobs(struct esp_service *v)
{
    const esp_engine_opts *o = &v->g->opts;
    const uint32_t room = o->rows + o->queue < o->max_seqs ? o->rows + o->queue : o->max_seqs;
    struct esp_service_job *j;

    while (v->n_open < room && (j = next_to_open(v)) != NULL && v->n_open + j->r.n_choice <= room) {
        esp_error err;

        v->n_open += j->r.n_choice;
        if (esp_service_job_open(j, v->g, &err) != ESP_OK)
            esp_service_end_job(v, j, &err);
    }
}
