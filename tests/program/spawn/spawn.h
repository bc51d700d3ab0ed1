/*
 * Running a program under test: arguments, input, environment in; output, errors and exit code out.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_TESTS_SPAWN_H
#define ESP_TESTS_SPAWN_H

#include <jansson.h>
#include <stddef.h>

struct run {
    char *out, *err; /* zero-terminated */
    size_t n_out;
    int code; /* exit code, or -signal */
};

struct run_how {
    const char *input;     /* NULL: /dev/null */
    const char *env[4];    /* NAME=VALUE on top of the test's own, NULL ends */
    const char *output;    /* write standard output to this file instead */
    int close_after;       /* > 0: close the reading end of standard output after so many bytes */
    int signal;            /* > 0: send it once something has been printed; -1 and below: twice */
    const char *signal_on; /* not before this is among the errors, whatever has been printed */
    size_t file_limit;     /* > 0: SIGXFSZ in the write that takes a file beyond so many bytes */
};

/* Run argv[0] with its arguments (NULL ends). Fails the test when it cannot be started or is silent for a
 * minute (five when instrumented). */
struct run run_with(const struct run_how *how, const char *const argv[]);
void run_free(struct run *r);
#define RUN(how, ...) run_with(how, (const char *const[]){__VA_ARGS__, NULL})

/* Assertions that print what the program said. */
void run_code(const struct run *r, int code);
void run_says(const struct run *r, const char *part);   /* on standard error */
void run_prints(const struct run *r, const char *part); /* on standard output */
void run_silent(const struct run *r);                   /* nothing on standard output */
/* Line i of standard output as JSON with a "schema"; a new reference. */
json_t *run_json(const struct run *r, size_t i);
size_t run_lines(const struct run *r);

#endif
