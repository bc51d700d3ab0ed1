/*
 * Where a session computes: --device, and how much memory there is.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_DEVICE_H
#define ESP_PROGRAM_DEVICE_H

#include "program/session.h"

/* Look at what --device names; "auto" takes the first CUDA device when there is one that works. */
esp_status esp_device_choose(struct esp_session *s, esp_error *err);
/* Whether --expand asks for something. */
bool esp_device_expands(const struct esp_options *o);
/* With "auto": back to the CPU when the device cannot do what engine_opts ask for, or has no room for the
 * model. */
void esp_device_settle(struct esp_session *s);
/* Bytes that an engine of the session may take: free memory of the device, or of the machine. 0: not
 * known. */
uint64_t esp_device_room(const struct esp_session *s);
/* "host", or "cuda:0". */
const char *esp_device_id(const struct esp_session *s);

#endif
