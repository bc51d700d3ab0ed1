/*
 * Reading lines from a person: editing and history where libedit is built in, plain lines otherwise.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_LINE_H
#define ESP_PROGRAM_LINE_H

#include "base/strbuf.h"

enum esp_line_result { ESP_LINE_TEXT, ESP_LINE_END, ESP_LINE_INTERRUPTED };

struct esp_line_reader;

/* NULL when there is no memory. History is kept in $XDG_STATE_HOME/espalier/history, readable by its owner
 * alone. */
struct esp_line_reader *esp_line_open(void);
void esp_line_close(struct esp_line_reader *r);
/* One line without its end; the prompt goes to standard error. A signal ends the wait: esp_interrupted()
 * tells which. */
enum esp_line_result esp_line_read(struct esp_line_reader *r, const char *prompt, struct esp_strbuf *out);
/* Add to the history; text of several lines becomes one entry. */
void esp_line_remember(struct esp_line_reader *r, const char *text);

#endif
