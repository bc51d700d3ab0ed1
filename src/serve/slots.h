/*
 * Slots: the places in which answers run, as GET /slots shows them. A slot remembers the text that ran in it
 * last, so that it can be saved to a file, brought back and forgotten by number.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_SLOTS_H
#define ESP_SERVE_SLOTS_H

#include "serve/job.h"

struct esp_slot {
    struct esp_choice *choice; /* that runs in it; NULL: none */
    struct esp_ids text;       /* of the last one that ran, prompt and answer */
    uint64_t ns;               /* 0: nothing ran yet */
    char adapter[64];
    uint64_t used; /* clock of the slots */
};

esp_status esp_slots_open(struct esp_server *s, esp_error *err);
void esp_slots_close(struct esp_server *s);
/* The prompt of j begins to run: its first choice takes a slot; what x says of the cache is noted. */
void esp_slots_prompt(struct esp_job *j, const struct esp_service_event *x);
/* A choice runs; has ended. */
void esp_slots_take(struct esp_choice *c);
void esp_slots_leave(struct esp_choice *c);

#endif
