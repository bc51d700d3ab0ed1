/*
 * Texts that ask for something said far back: the tasks of verb eval. A text is a seeded shuffle of plain
 * sentences with facts between them, then a question that opens the answer. It is made from its parameters
 * alone: no model, no setting and no earlier item has a part in it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_RECALL_H
#define ESP_PROGRAM_RECALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/strbuf.h"

enum esp_recall_task {
    ESP_RECALL_NEEDLE, /* "The code of Mira is 48213.", asked for by name among others of the kind */
    ESP_RECALL_HOPS,   /* "The code of Mira is the code of Toben." and so on, to a name with a code */
    ESP_RECALL_TASKS
};
const char *esp_recall_name(enum esp_recall_task t);

enum { ESP_RECALL_KEYS = 8, ESP_RECALL_MAX_HOPS = 6, ESP_RECALL_DIGITS = 5 };

struct esp_recall {
    enum esp_recall_task task;
    uint64_t seed;
    uint32_t index;      /* of the item */
    uint32_t n_hop;      /* HOPS: references to follow, 1 to ESP_RECALL_MAX_HOPS */
    uint32_t n_sentence; /* of plain sentences */
};

struct esp_recall_answer {
    char code[ESP_RECALL_KEYS]
             [ESP_RECALL_DIGITS + 1]; /* all codes of the text, each once; [0] is the right one */
    double depth; /* where the first fact that is needed stands: 0 at the start of the text, 1 at its end */
};

/*
 * The text, and what is right. closed: end with a question of its own, for chats; else with the beginning of
 * the sentence that answers it, for models that continue texts. Facts stand at places of even distribution,
 * in any order. Growing n_sentence makes the text longer and keeps the facts. ESP_ENOMEM.
 */
esp_status esp_recall_text(const struct esp_recall *r, bool closed, struct esp_strbuf *text,
                           struct esp_recall_answer *answer, esp_error *err);
/* Whether the first number of ESP_RECALL_DIGITS digits in the answer is the code; longer numbers are others.
 */
bool esp_recall_right(const char *code, const char *answer, size_t len);
/* Bounds of the share that k of n stand for, with 95 % confidence (Wilson's interval); n > 0. */
void esp_recall_interval(uint32_t k, uint32_t n, double *low, double *high);

#endif
