/*
 * Which servers of this user run on this machine: one small file each in a runtime folder, written when a
 * server is ready and removed when it ends. A file whose process is gone is removed by whoever finds it.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_RUNNING_H
#define ESP_PROGRAM_RUNNING_H

#include <jansson.h>

/* This process serves: info (an object) is written with the pid; released. A failure is only told. */
void esp_running_add(json_t *info);
void esp_running_remove(void);
/* Objects of those that run: a new array. */
json_t *esp_running_list(void);

#endif
