/*
 * The built-in web page: one document without a further request, made by cmake/page.cmake from serve/page/.
 * The policy goes with it as the header Content-Security-Policy and allows its own style and script, nothing
 * else.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_SERVE_PAGE_H
#define ESP_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char esp_page[]; /* UTF-8, text/html */
extern const size_t esp_page_len;
extern const char esp_page_policy[];

#endif
