/*
 * The processors that this process may run on, as --cpu-mask says them.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_CPU_MASK_H
#define ESP_PROGRAM_CPU_MASK_H

#include "base/status.h"

/*
 * "0-3,8", or bits as "0xff", at most the processors that are allowed now: those alone from here on, for this
 * thread and all that it starts. ESP_EINVAL names a processor that is not allowed.
 */
esp_status esp_cpu_mask_set(const char *text, esp_error *err);

#endif
