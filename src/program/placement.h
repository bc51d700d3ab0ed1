/*
 * Where a model lies, as flags ask for it. This version puts a model on one device as a whole; the flags are
 * constraints on which one that is, and those that no single device can keep are refused by name.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_PLACEMENT_H
#define ESP_PROGRAM_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct esp_options;
struct esp_session;

struct esp_placement {
    char device[16]; /* that --gpu-layers and --place ask for; "": any */
    char flag[64];   /* the one that does, for messages */
};

/* Before the model is open. ESP_EINVAL for values that are none, and for flags that contradict each other. */
esp_status esp_placement_wish(struct esp_placement *out, const struct esp_options *o, esp_error *err);
/* Whether two words name the same device: "cuda" is "cuda:0". */
bool esp_placement_same(const char *a, const char *b);
/* With the model open and its device chosen: numbers of layers. ESP_EINVAL. */
esp_status esp_placement_check(const struct esp_session *s, esp_error *err);

/* Bytes that --memory-budget gives to the device that computes, and to the machine's memory beside it; 0: not
 * given. */
uint64_t esp_placement_budget(const struct esp_session *s);
uint64_t esp_placement_host_budget(const struct esp_session *s);

#endif
