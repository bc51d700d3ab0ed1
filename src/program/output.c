/*
 * Printing. All state is here: settings, whether standard output broke, and the signal flag.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/output.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct esp_out_settings settings;
static int write_errno; /* first failure on standard output */
static volatile sig_atomic_t signal_seen;

/* ---- standard output ---- */

void esp_out_set(const struct esp_out_settings *s)
{
    settings = *s;
}

bool esp_out_is_json(void)
{
    return settings.json;
}

int esp_out_verbosity(void)
{
    return settings.verbosity;
}

bool esp_out_color(bool on_stderr)
{
    const char *no_color = getenv("NO_COLOR");

    if (settings.color != ESP_COLOR_AUTO)
        return settings.color == ESP_COLOR_ALWAYS;
    return !(no_color && no_color[0]) && isatty(on_stderr ? STDERR_FILENO : STDOUT_FILENO);
}

static void note_failure(bool ok)
{
    if (!ok && !write_errno)
        write_errno = errno ? errno : EIO;
}

void esp_out_write(const char *s, size_t len)
{
    errno = 0;
    note_failure(write_errno || fwrite(s, 1, len, stdout) == len);
}

void esp_out_printf(const char *fmt, ...)
{
    va_list ap;

    errno = 0;
    va_start(ap, fmt);
    note_failure(write_errno || vfprintf(stdout, fmt, ap) >= 0);
    va_end(ap);
}

void esp_out_flush(void)
{
    errno = 0;
    note_failure(write_errno || fflush(stdout) == 0);
}

void esp_out_json(json_t *object)
{
    char schema[64];
    json_t *line = json_object();
    char *text = NULL;

    snprintf(schema, sizeof schema, "espalier.%s.v1", settings.verb ? settings.verb : "error");
    if (object && line && json_object_set_new(line, "schema", json_string(schema)) == 0 &&
        json_object_update(line, object) == 0)
        text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(line);
    json_decref(object);
    if (!text) {
        errno = ENOMEM;
        note_failure(false);
        return;
    }
    esp_out_write(text, strlen(text));
    esp_out_write("\n", 1);
    esp_out_flush();
    free(text);
}

bool esp_out_failed(void)
{
    return write_errno != 0;
}

int esp_out_finish(int code)
{
    esp_out_flush();
    if (!write_errno) {
        errno = 0;
        note_failure(close(STDOUT_FILENO) == 0 || errno == EBADF); /* network file systems report here */
    }
    if (!write_errno)
        return code;
    if (write_errno == EPIPE)
        return ESP_EXIT_SIGPIPE; /* the reader has what it wanted: quiet */
    fprintf(stderr, "espalier: standard output: %s\n", strerror(write_errno));
    return ESP_EXIT_FAILURE;
}

/* ---- standard error ---- */

static void say(int from, const char *tag, const char *color, const char *fmt, va_list ap)
{
    if (settings.verbosity < from)
        return;
    if (tag) {
        const bool c = esp_out_color(true);

        fprintf(stderr, "%s%s%s", c ? color : "", tag, c ? "\033[0m" : "");
    }
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

void esp_say_info(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(0, NULL, "", fmt, ap);
    va_end(ap);
}

void esp_say_detail(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(1, NULL, "", fmt, ap);
    va_end(ap);
}

void esp_say_warn(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    say(0, "warning: ", "\033[33m", fmt, ap);
    va_end(ap);
}

int esp_exit_code(esp_status s)
{
    switch (s) {
    case ESP_OK:
        return ESP_EXIT_OK;
    case ESP_EINVAL:
        return ESP_EXIT_USAGE;
    case ESP_EFORMAT:
    case ESP_ENOTFOUND:
    case ESP_EUNSUPPORTED:
        return ESP_EXIT_NOT_FOUND;
    case ESP_ENOFIT:
        return ESP_EXIT_NO_FIT;
    case ESP_EDEVICE:
        return ESP_EXIT_DEVICE;
    case ESP_ECANCELLED:
        return esp_interrupted() ? esp_interrupted() : ESP_EXIT_SIGINT;
    case ESP_ENOMEM:
    case ESP_EIO:
    case ESP_ESTATE:
    case ESP_ENUMERIC:
        break;
    }
    return ESP_EXIT_FAILURE;
}

static int report(int exit_code, const char *code, const char *message)
{
    const bool c = esp_out_color(true);

    esp_out_flush();
    fprintf(stderr, "%sespalier%s%s:%s %s\n", c ? "\033[31m" : "", settings.verb ? " " : "",
            settings.verb ? settings.verb : "", c ? "\033[0m" : "", message);
    if (settings.json)
        esp_out_json(json_pack("{s:{s:s,s:s}}", "error", "code", code, "message", message));
    return exit_code;
}

int esp_report(esp_status s, const esp_error *err)
{
    const char *message = err && err->message[0] ? err->message : esp_status_name(s);

    if (s == ESP_ECANCELLED && esp_interrupted())
        message = "interrupted";
    return report(esp_exit_code(s), s == ESP_EINVAL ? "usage" : esp_status_name(s), message);
}

int esp_report_as(int exit_code, const char *code, const char *fmt, ...)
{
    char message[ESP_ERROR_MESSAGE_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return report(exit_code, code, message);
}

/* ---- progress ---- */

double esp_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *esp_format_bytes(char *buf, size_t cap, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;

    while ((bytes >= 1024 || bytes <= -1024) && u < 4) {
        bytes /= 1024;
        u++;
    }
    snprintf(buf, cap, u ? "%.2f %s" : "%.0f %s", bytes, units[u]);
    return buf;
}

void esp_progress_begin(struct esp_progress *p, const char *what, double total, const char *unit)
{
    *p = (struct esp_progress){.what = what, .total = total, .unit = unit, .start = esp_now()};
    p->last = p->start;
}

static void draw_bar(struct esp_progress *p, double done, double rate, double left)
{
    enum { WIDTH = 24 };
    const double share = p->total > 0 ? done / p->total : 0;
    const int full = (int)(share * WIDTH);
    char bar[WIDTH + 1];

    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r%s [%s] %3.0f%%  %.0f/%.0f %s  %.1f/s  ETA %.0f s\033[K", p->what, bar, 100 * share,
            done, p->total, p->unit, rate, left);
    fflush(stderr);
}

void esp_progress_update(struct esp_progress *p, double done)
{
    const double now = esp_now(), spent = now - p->start, rate = spent > 0 ? done / spent : 0;
    const double left = rate > 0 && p->total > done ? (p->total - done) / rate : 0;
    const bool tty = isatty(STDERR_FILENO);
    double every = 10;

    if (settings.verbosity < 0 || settings.progress == ESP_PROGRESS_NONE || spent < 1)
        return;
    if (settings.progress == ESP_PROGRESS_JSON)
        every = 0.5;
    else if (settings.progress == ESP_PROGRESS_AUTO && tty)
        every = 0.1;
    if (now - p->last < every)
        return;
    p->last = now;
    if (settings.progress == ESP_PROGRESS_JSON) {
        fprintf(stderr, "{\"progress\":{\"what\":\"%s\",\"done\":%.0f,\"total\":%.0f,\"eta_s\":%.1f}}\n",
                p->what, done, p->total, left);
    } else if (settings.progress == ESP_PROGRESS_AUTO && tty) {
        p->shown = true;
        draw_bar(p, done, rate, left);
    } else {
        fprintf(stderr, "%s: %.0f of %.0f %s, %.1f/s, %.0f s left\n", p->what, done, p->total, p->unit, rate,
                left);
    }
}

void esp_progress_end(struct esp_progress *p)
{
    if (p->shown)
        fputs("\r\033[K", stderr);
    p->shown = false;
}

/* ---- signals ---- */

static void on_signal(int sig)
{
    const int code = sig == SIGTERM ? ESP_EXIT_SIGTERM : ESP_EXIT_SIGINT;

    if (signal_seen)
        _exit(code);
    signal_seen = code;
}

void esp_signals_install(void)
{
    struct sigaction a;

    memset(&a, 0, sizeof a);
    sigemptyset(&a.sa_mask);
    a.sa_handler = on_signal; /* no SA_RESTART: a blocked read must notice */
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    a.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &a, NULL);
}

int esp_interrupted(void)
{
    return signal_seen;
}

void esp_interrupt_clear(void)
{
    if (signal_seen == ESP_EXIT_SIGINT)
        signal_seen = 0;
}
