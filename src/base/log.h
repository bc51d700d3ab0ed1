/*
 * The library's only voice: messages to the hook that the program installed. Silent without one.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_LOG_H
#define ESP_BASE_LOG_H

#include "espalier/espalier.h"

void esp_log(esp_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
