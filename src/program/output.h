/*
 * What the program prints. Results go to standard output, everything else to standard error. Writes to
 * standard output are counted as done only after esp_out_finish() said so: a full disk must not look like
 * success.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_OUTPUT_H
#define ESP_PROGRAM_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum esp_exit {
    ESP_EXIT_OK = 0,
    ESP_EXIT_FAILURE = 1,
    ESP_EXIT_USAGE = 2,
    ESP_EXIT_NOT_FOUND = 3,
    ESP_EXIT_NO_FIT = 4,
    ESP_EXIT_DEVICE = 5,
    ESP_EXIT_CHECK = 7,
    ESP_EXIT_RESUMABLE = 8,
    ESP_EXIT_SIGINT = 130,
    ESP_EXIT_SIGPIPE = 141,
    ESP_EXIT_SIGTERM = 143
};

enum esp_progress_mode { ESP_PROGRESS_AUTO, ESP_PROGRESS_PLAIN, ESP_PROGRESS_JSON, ESP_PROGRESS_NONE };
enum esp_color_mode { ESP_COLOR_AUTO, ESP_COLOR_ALWAYS, ESP_COLOR_NEVER };

struct esp_out_settings {
    const char *verb; /* for the schema name and messages; NULL before one is known */
    bool json;
    int verbosity; /* -1 quiet, 0, 1, 2 */
    enum esp_progress_mode progress;
    enum esp_color_mode color;
};

void esp_out_set(const struct esp_out_settings *s);
bool esp_out_is_json(void);
int esp_out_verbosity(void);
/* Whether colours may be used on standard output or standard error. */
bool esp_out_color(bool on_stderr);

/* Standard output. Failures are remembered. */
void esp_out_write(const char *s, size_t len);
void esp_out_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void esp_out_flush(void);
/* Print one JSON object on one line with "schema" in front and release it. */
void esp_out_json(json_t *object);
/* Whether a write has failed; the caller may stop early. */
bool esp_out_failed(void);
/* The exit code with failed writes taken into account; prints the reason. */
int esp_out_finish(int code);

/* Standard error: info from verbosity 0 on, detail from 1 on; warnings unless quiet; errors always. */
void esp_say_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void esp_say_detail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void esp_say_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Report a failure on standard error, and with --json on standard output, and return the exit code that
 * belongs to it. */
int esp_report(esp_status s, const esp_error *err);
/* The same with an exit code and a code word of its own. */
int esp_report_as(int exit_code, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int esp_exit_code(esp_status s);

/* Seconds of a clock that only goes forward. */
double esp_now(void);
/* "1.50 GiB"; returns buf. */
const char *esp_format_bytes(char *buf, size_t cap, double bytes);

/* A long piece of work: shown from the first second on, at most ten times a second on a terminal. */
struct esp_progress {
    const char *what;
    double total; /* 0: unknown */
    const char *unit;
    double start, last;
    bool shown;
};
void esp_progress_begin(struct esp_progress *p, const char *what, double total, const char *unit);
void esp_progress_update(struct esp_progress *p, double done);
void esp_progress_end(struct esp_progress *p);

/* ---- signals ---- */

/* First SIGINT or SIGTERM sets a flag, the second ends the process at once; SIGPIPE becomes a failed write.
 */
void esp_signals_install(void);
/* 0, or the exit code of the signal that has come. */
int esp_interrupted(void);
/* Forget a SIGINT, for a conversation that goes on. */
void esp_interrupt_clear(void);

#endif
