/*
 * A manual page as a walk over the tables. The walk is written once; the terminal (help.c) and mdoc (man.c)
 * are two writers for its events, so help text and man page say the same.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ESP_PROGRAM_PAGE_H
#define ESP_PROGRAM_PAGE_H

#include "program/options.h"

struct esp_page_writer {
    void (*head)(const char *page, const char *summary);  /* "espalier-run" */
    void (*synopsis)(const char *verb, const char *args); /* verb may be "" */
    void (*section)(const char *title);
    void (*group)(const char *title); /* inside a section */
    void (*para)(const char *text);
    void (*list)(bool begin);
    void (*flag)(const struct esp_opt *o, const char *text);
    void (*item)(const char *term, const char *text);
    void (*code)(const char *lines);
    void (*see)(const char *const *pages, size_t n);
};

/* The page of a verb, or with NULL that of the program. */
void esp_page_walk(const struct esp_page_writer *w, const struct esp_verb *verb);

/* Help on standard output: a page, or the overview that a bare call prints (on standard error). */
void esp_help_page(const struct esp_verb *verb);
void esp_help_overview(bool on_stderr);
/* The page in mdoc on standard output. */
void esp_man_page(const struct esp_verb *verb);
/* A completion script; false when the shell is not known. */
bool esp_complete_script(const char *shell);

#endif
