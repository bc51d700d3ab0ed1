/*
 * Pages for the terminal: plain text, wrapped at 80 columns.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/page.h"

#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"

#include "program/output.h"

enum { WIDTH = 80, INDENT = 4, DEEP = 12 };

/* Print words of text between columns indent and WIDTH; the cursor stands at column at. */
static void wrap(const char *text, int at, int indent)
{
    int column = at;

    while (*text) {
        const int n = (int)strcspn(text, " ");

        if (column > indent && column + 1 + n > WIDTH) {
            esp_out_printf("\n");
            column = 0;
        }
        if (column < indent) {
            esp_out_printf("%*s", indent - column, "");
            column = indent;
        } else if (column > indent) {
            esp_out_printf(" ");
            column++;
        }
        esp_out_printf("%.*s", n, text);
        column += n;
        text += n + (text[n] == ' ');
    }
    esp_out_printf("\n");
}

static void title(const char *text)
{
    const bool c = esp_out_color(false);

    esp_out_printf("\n%s%s%s\n", c ? "\033[1m" : "", text, c ? "\033[0m" : "");
}

static void head(const char *page, const char *summary)
{
    esp_out_printf("%s - %s\n", page, summary);
}

static void synopsis(const char *verb, const char *args)
{
    title("SYNOPSIS");
    esp_out_printf("%*sespalier %s%s%s%s\n", INDENT, "", verb, *args ? " " : "", args,
                   strstr(args, "FLAGS") ? "" : " [FLAGS]");
}

static void group(const char *text)
{
    esp_out_printf("  %s\n", text);
}

static void para(const char *text)
{
    wrap(text, 0, INDENT);
}

static void list(bool begin)
{
    (void)begin;
}

static void item(const char *term, const char *text)
{
    esp_out_printf("%*s%s", INDENT, "", term);
    if ((int)strlen(term) + INDENT >= DEEP) {
        esp_out_printf("\n");
        wrap(text, 0, DEEP);
    } else {
        wrap(text, (int)strlen(term) + INDENT, DEEP);
    }
}

static void flag(const struct esp_opt *o, const char *text)
{
    char term[256];
    int n = 0;

    if (o->letter)
        n += snprintf(term, sizeof term, "-%c, ", o->letter);
    n += snprintf(term + n, sizeof term - (size_t)n, "--%s", o->name);
    if (o->alias)
        n += snprintf(term + n, sizeof term - (size_t)n, ", --%s", o->alias);
    if (o->type == OPT_TYPE_MAYBE)
        snprintf(term + n, sizeof term - (size_t)n, "[=%s]", o->arg);
    else if (o->arg)
        snprintf(term + n, sizeof term - (size_t)n, " %s", o->type == OPT_TYPE_ENUM ? "WORD" : o->arg);
    item(term, text);
}

static void code(const char *lines)
{
    while (*lines) {
        const int n = (int)strcspn(lines, "\n");

        esp_out_printf("%*s%.*s\n", INDENT, "", n, lines);
        lines += n + (lines[n] == '\n');
    }
}

static void see(const char *const *pages, size_t n)
{
    char text[1024] = "";
    int len = 0;

    title("SEE ALSO");
    for (size_t i = 0; i < n; i++)
        len += snprintf(text + len, sizeof text - (size_t)len, "%s%s(1)", i ? ", " : "", pages[i]);
    wrap(text, 0, INDENT);
}

void esp_help_page(const struct esp_verb *verb)
{
    static const struct esp_page_writer writer = {head, synopsis, title, group, para,
                                                  list, flag,     item,  code,  see};

    esp_page_walk(&writer, verb);
}

void esp_help_overview(bool on_stderr)
{
    struct esp_strbuf b;

    esp_strbuf_init(&b, 1 << 16);
    esp_strbuf_puts(&b, "espalier runs language models of the Qwen3.5 class.\n\n"
                        "usage: espalier VERB [ARGUMENTS] [FLAGS]\n\n");
    for (size_t i = 0; i < N_VERBS; i++) {
        const struct esp_verb *v = esp_verb_get((enum esp_verb_id)i);

        esp_strbuf_printf(&b, "  %-11s %-15s %s\n", v->name, v->args, v->summary);
    }
    esp_strbuf_puts(&b,
                    "\nMODEL is a folder, a Hub name, or a unique part of a downloaded model's name.\n"
                    "'espalier help VERB' explains a verb, 'espalier --version' says what is built in.\n");
    if (on_stderr)
        fputs(esp_strbuf_str(&b), stderr);
    else
        esp_out_write(esp_strbuf_str(&b), b.len);
    esp_strbuf_free(&b);
}
