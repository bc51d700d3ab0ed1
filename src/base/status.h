/*
 * Failing with a message. Every fallible function in the library reports through esp_fail(), so that the
 * status and the sentence for people are written together, once, where the cause is known.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_BASE_STATUS_H
#define ESP_BASE_STATUS_H

#include "espalier/status.h"

/*
 * Fill err (may be NULL) with s and the formatted message, and return s. Control characters and invalid UTF-8
 * from file contents are replaced by '?', so a hostile name cannot break a terminal or a log line.
 */
esp_status esp_fail(esp_error *err, esp_status s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Put "prefix: " in front of the message in err; for callers that know where, when the cause knew what. */
esp_status esp_fail_in(esp_error *err, esp_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The static analyzer sees one file at a time: tell it that the status given is the status returned. */
#if defined(__clang_analyzer__) && !defined(ESP_STATUS_BODIES)
#define esp_fail(err, s, ...)    (esp_fail(err, s, __VA_ARGS__), (s))
#define esp_fail_in(err, s, ...) (esp_fail_in(err, s, __VA_ARGS__), (s))
#endif

/* The only macro that hides a return: pass a failure up unchanged. */
#define ESP_TRY(expr)                                                                                        \
    do {                                                                                                     \
        esp_status try_status_ = (expr);                                                                     \
        if (try_status_ != ESP_OK)                                                                           \
            return try_status_;                                                                              \
    } while (0)

/* A broken invariant of ours, never a reaction to input. On in debug and test builds (ESP_CHECKS), else
 * nothing. */
#if defined(ESP_CHECKS) || defined(__clang_analyzer__)
#define ESP_ASSERT(cond) ((cond) ? (void)0 : esp_assert_failed(#cond, __FILE__, __LINE__))
#else
#define ESP_ASSERT(cond) ((void)sizeof(cond))
#endif
/* A place that no path of ours leads to: fails in builds with checks, does nothing in others, where the code
 * behind it must go on sensibly. what: a literal that names the place. */
#if defined(ESP_CHECKS) || defined(__clang_analyzer__)
#define ESP_UNREACHABLE(what) esp_assert_failed(what, __FILE__, __LINE__)
#else
#define ESP_UNREACHABLE(what) ((void)sizeof(what))
#endif
_Noreturn void esp_assert_failed(const char *cond, const char *file, int line);

#endif
