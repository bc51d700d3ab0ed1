/*
 * Positions of a text that a client wants kept in the cache.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_ENGINE_PINS_H
#define ESP_ENGINE_PINS_H

#include <stddef.h>

/* The checkpoint at this position stays for so many seconds after each use, if memory allows. The position
 * must be a mark as well (esp_seq_set_marks). */
struct esp_seq_pin {
    size_t at;
    double seconds;
};
enum { ESP_MAX_PINS = 16 };

#endif
