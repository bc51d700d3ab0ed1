/*
 * Pages in mdoc(7). Sentences start on lines of their own, as the formatter and its linter want it.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/page.h"

#include <ctype.h>
#include <string.h>

#include "program/output.h"

static const char page_date[] =
    "November 29, 2026"; /* of the text, not of the build: pages are reproducible */

enum { LINE = 72 }; /* escapes come on top */

/* One word with what roff would read as a request or an escape made plain. */
static void put_word(const char *s, size_t len, bool at_start)
{
    if (at_start && len && (s[0] == '.' || s[0] == '\''))
        esp_out_printf("\\&");
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '\\')
            esp_out_printf("\\e");
        else if (s[i] == '-' && (i == 0 || s[i - 1] == '-'))
            esp_out_printf("\\-"); /* a flag, not a hyphen */
        else
            esp_out_write(&s[i], 1);
    }
}

/* Running text in lines of at most width bytes, which roff fills again; width 0: as it stands. */
static void put_text(const char *s, size_t len, size_t width)
{
    size_t column = 0;

    for (size_t i = 0; i < len;) {
        size_t n = 0;

        while (i + n < len && s[i + n] != ' ')
            n++;
        if (width && column && column + 1 + n > width) {
            esp_out_printf("\n");
            column = 0;
        } else if (i) {
            esp_out_printf(" ");
            column++;
        }
        put_word(s + i, n, column == 0);
        column += n;
        i += n + 1;
    }
}

/* Whether a sentence ends before the space at s[i]. */
static bool sentence_ends(const char *s, size_t i)
{
    const char next = s[i + 1];

    return i && strchr(".?!", s[i - 1]) && (isupper((unsigned char)next) || next == '"');
}

static void sentences(const char *s)
{
    size_t start = 0;

    for (size_t i = 0; s[i]; i++) {
        if (s[i] != ' ' || !sentence_ends(s, i))
            continue;
        put_text(s + start, i - start, LINE);
        esp_out_printf("\n");
        start = i + 1;
    }
    put_text(s + start, strlen(s + start), LINE);
    esp_out_printf("\n");
}

static void head(const char *page, const char *summary)
{
    esp_out_printf(".Dd %s\n.Dt ", page_date);
    for (const char *p = page; *p; p++)
        esp_out_printf("%c", toupper((unsigned char)*p));
    esp_out_printf(" 1\n.Os\n.Sh NAME\n.Nm %s\n.Nd %s\n", page, summary);
}

/* "MODEL [PROMPT]" as macros. */
static void synopsis(const char *verb, const char *args)
{
    esp_out_printf(".Sh SYNOPSIS\n.Nm espalier\n%s %s\n", strcmp(verb, "VERB") == 0 ? ".Ar" : ".Cm", verb);
    for (const char *p = args; *p;) {
        const int n = (int)(*p == '[' ? strcspn(p, "]") + 1 : strcspn(p, " "));

        if (*p == '[')
            esp_out_printf(".Op Ar %.*s\n", n - 2, p + 1);
        else
            esp_out_printf(".Ar %.*s\n", n, p);
        p += n;
        p += strspn(p, " ");
    }
    if (!strstr(args, "FLAGS"))
        esp_out_printf(".Op Ar FLAGS\n");
}

static bool first_para;

static void section(const char *title)
{
    esp_out_printf(".Sh %s\n", title);
    first_para = true;
}

static void group(const char *title)
{
    esp_out_printf(".Ss %s\n", title);
}

static void para(const char *text)
{
    if (!first_para)
        esp_out_printf(".Pp\n");
    first_para = false;
    sentences(text);
}

static void list(bool begin)
{
    esp_out_printf("%s\n", begin ? ".Bl -tag -width Ds" : ".El");
    first_para = false;
}

static void flag(const struct esp_opt *o, const char *text)
{
    esp_out_printf(".It ");
    if (o->letter)
        esp_out_printf("Fl %c , ", o->letter);
    esp_out_printf("Fl \\-%s", o->name);
    if (o->alias)
        esp_out_printf(" , Fl \\-%s", o->alias);
    if (o->type == OPT_TYPE_MAYBE)
        esp_out_printf(" Ns Op = Ns Ar %s", o->arg);
    else if (o->arg)
        esp_out_printf(" Ar %s", o->type == OPT_TYPE_ENUM ? "WORD" : o->arg);
    esp_out_printf("\n");
    sentences(text);
}

static void item(const char *term, const char *text)
{
    esp_out_printf(".It %s %s\n",
                   isupper((unsigned char)term[0])   ? "Ev"
                   : isdigit((unsigned char)term[0]) ? ""
                                                     : "Cm",
                   term);
    sentences(text);
}

static void code(const char *lines)
{
    esp_out_printf(".Bd -literal -offset indent\n");
    while (*lines) {
        const size_t n = strcspn(lines, "\n");

        put_text(lines, n, 0);
        esp_out_printf("\n");
        lines += n + (lines[n] == '\n');
    }
    esp_out_printf(".Ed\n");
}

static void see(const char *const *pages, size_t n)
{
    bool done[64] = {false};

    section("SEE ALSO");
    for (size_t i = 0; i < n; i++) { /* in the order of the alphabet */
        size_t best = n;

        for (size_t k = 0; k < n; k++) {
            if (!done[k] && (best == n || strcmp(pages[k], pages[best]) < 0))
                best = k;
        }
        done[best] = true;
        esp_out_printf(".Xr %s 1%s\n", pages[best], i + 1 < n ? " ," : "");
    }
}

void esp_man_page(const struct esp_verb *verb)
{
    static const struct esp_page_writer writer = {head, synopsis, section, group, para,
                                                  list, flag,     item,    code,  see};

    esp_page_walk(&writer, verb);
}
