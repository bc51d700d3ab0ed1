/*
 * Line editing. libedit gets a reader of ours instead of its own, because a Ctrl-C must end the wait for
 * input, and libedit alone would restart the read. Terminals are asked to bracket what is pasted (xterm's
 * mode 2004), so that its newlines are text and only a typed one ends the input.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/line.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program/output.h"

#ifdef ESP_HAVE_LIBEDIT

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include "base/utf8.h"

enum { HISTORY_LINES = 1000, MAX_PASTE = 16 << 20 };

struct esp_line_reader {
    EditLine *edit;
    History *history;
    char *file; /* or NULL: not kept */
    const char *prompt;
};

static char *prompt_of(EditLine *e)
{
    struct esp_line_reader *r = NULL;

    el_get(e, EL_CLIENTDATA, &r);
    return (char *)(uintptr_t)r->prompt; /* libedit reads it only */
}

/*
 * Wait until standard input has something, or a signal has come: false. Signals are held off while the flag
 * is looked at, and let in by ppoll() alone, so that none can slip in between and leave us waiting.
 */
static bool wait_input(void)
{
    struct pollfd p = {STDIN_FILENO, POLLIN, 0};
    sigset_t held, before;
    int n = -1;

    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigprocmask(SIG_BLOCK, &held, &before);
    while (n < 0 && !esp_interrupted()) /* a window change ends the wait, too, and is no reason to stop */
        n = ppoll(&p, 1, NULL, &before);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return n > 0;
}

/* One character from standard input; -1 when a signal has come, 0 at the end. */
static int read_char(EditLine *e, wchar_t *out)
{
    char bytes[4];
    size_t n = 0;

    (void)e;
    for (;;) {
        const ssize_t got = wait_input() ? read(STDIN_FILENO, bytes + n, 1) : -1;
        uint32_t cp;

        if (got <= 0)
            return (int)got;
        n++;
        if (esp_utf8_decode(bytes, n, &cp)) {
            *out = (wchar_t)cp;
            return 1;
        }
        if (esp_utf8_incomplete_tail(bytes, n) != n) {
            *out = 0xfffd;
            return 1;
        }
    }
}

/* ---- pasted text ---- */

static const char paste_on[] = "\033[?2004h", paste_off[] = "\033[?2004l", paste_end[] = "\033[201~";

/* Whether the terminal is one that understands escape sequences. */
static bool brackets_paste(void)
{
    const char *term = getenv("TERM");

    return term && term[0] && strcmp(term, "dumb") != 0 && isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
}

/* What of b may stand in a line: valid UTF-8, either form of a newline as one, no other control characters,
 * which would move the cursor. */
static void clean(struct esp_strbuf *out, const struct esp_strbuf *b)
{
    for (size_t i = 0; i < b->len;) {
        uint32_t cp = 0;
        const size_t n = esp_utf8_decode(b->data + i, b->len - i, &cp);

        if (!n)
            esp_strbuf_puts(out, "\xef\xbf\xbd");
        else if (cp == '\r' || cp == '\n')
            esp_strbuf_putc(out, '\n');
        else if (cp >= ' ' ? cp != 0x7f : cp == '\t')
            esp_strbuf_add(out, b->data + i, n);
        i += n ? n : esp_utf8_bad_span(b->data + i, b->len - i);
    }
}

/* The beginning of a paste has come as a key: insert all up to its end. */
static unsigned char on_paste(EditLine *e, int key)
{
    const size_t tail = sizeof paste_end - 1;
    struct esp_strbuf b, text;
    bool whole = false;

    (void)key;
    esp_strbuf_init(&b, MAX_PASTE);
    esp_strbuf_init(&text, 3 * MAX_PASTE);
    while (!whole && wait_input()) {
        char c;

        if (read(STDIN_FILENO, &c, 1) != 1 || !esp_strbuf_putc(&b, c))
            break;
        whole = b.len >= tail && memcmp(b.data + b.len - tail, paste_end, tail) == 0;
    }
    if (whole) {
        b.len -= tail;
        clean(&text, &b);
        whole = !text.failed && (text.len == 0 || el_insertstr(e, text.data) == 0);
    }
    if (b.failed || text.failed) {
        esp_say_warn("more than %d bytes were pasted, or there is no memory for them", MAX_PASTE);
    }
    esp_strbuf_free(&b);
    esp_strbuf_free(&text);
    return whole ? CC_REFRESH : CC_ERROR;
}

/* ---- opening ---- */

/* mkdir -p for the folders of path, private to the user. */
static void make_folders(char *path)
{
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        mkdir(path, 0700); /* failing shows when the file is opened */
        *p = '/';
    }
}

static char *history_file(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int fd;

    if (state && state[0] == '/') {
        if (asprintf(&path, "%s/espalier/history", state) < 0)
            return NULL;
    } else if (!home || asprintf(&path, "%s/.local/state/espalier/history", home) < 0) {
        return NULL;
    }
    make_folders(path);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        esp_say_warn("%s: no history: %s", path, strerror(errno));
        free(path);
        return NULL;
    }
    close(fd);
    return path;
}

struct esp_line_reader *esp_line_open(void)
{
    struct esp_line_reader *r = calloc(1, sizeof *r);
    HistEvent ev;

    if (!r)
        return NULL;
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8"); /* libedit converts by the locale; the conversation is UTF-8 */
    r->edit = el_init("espalier", stdin, stderr, stderr);
    r->history = history_init();
    if (!r->edit || !r->history) {
        esp_line_close(r);
        return NULL;
    }
    el_set(r->edit, EL_CLIENTDATA, r);
    el_set(r->edit, EL_PROMPT, prompt_of);
    el_set(r->edit, EL_EDITOR, "emacs");
    el_set(r->edit, EL_GETCFN, read_char);
    /* the wide form keeps the strings themselves; el_set() keeps copies that nobody frees */
    el_wset(r->edit, EL_ADDFN, L"espalier-paste", L"insert what is pasted", on_paste);
    el_set(r->edit, EL_BIND, "\\e[200~", "espalier-paste", NULL);
    el_set(r->edit, EL_HIST, history, r->history);
    history(r->history, &ev, H_SETSIZE, HISTORY_LINES);
    history(r->history, &ev, H_SETUNIQUE, 1);
    r->file = history_file();
    if (r->file)
        history(r->history, &ev, H_LOAD, r->file);
    return r;
}

void esp_line_close(struct esp_line_reader *r)
{
    HistEvent ev;

    if (!r)
        return;
    if (r->file)
        history(r->history, &ev, H_SAVE, r->file);
    if (r->history)
        history_end(r->history);
    if (r->edit)
        el_end(r->edit);
    free(r->file);
    free(r);
}

enum esp_line_result esp_line_read(struct esp_line_reader *r, const char *prompt, struct esp_strbuf *out)
{
    int n = 0;
    const char *line;

    r->prompt = prompt;
    el_set(r->edit, EL_PREP_TERM,
           1); /* before the prompt is shown: a Ctrl-D right behind it must be a key already */
    if (brackets_paste())
        fputs(paste_on, stderr);
    line = el_gets(r->edit, &n);
    if (brackets_paste())
        fputs(paste_off, stderr);
    esp_strbuf_clear(out);
    if (esp_interrupted()) {
        el_reset(r->edit);
        fputc('\n', stderr);
        return ESP_LINE_INTERRUPTED;
    }
    if (!line || n <= 0)
        return ESP_LINE_END;
    n = (int)strlen(line);
    esp_strbuf_add(out, line, (size_t)(line[n - 1] == '\n' ? n - 1 : n)); /* others were pasted */
    return ESP_LINE_TEXT;
}

void esp_line_remember(struct esp_line_reader *r, const char *text)
{
    HistEvent ev;

    history(r->history, &ev, H_ENTER, text);
}

#else

struct esp_line_reader {
    char *line;
    size_t cap;
};

struct esp_line_reader *esp_line_open(void)
{
    return calloc(1, sizeof(struct esp_line_reader));
}

void esp_line_close(struct esp_line_reader *r)
{
    if (r)
        free(r->line);
    free(r);
}

enum esp_line_result esp_line_read(struct esp_line_reader *r, const char *prompt, struct esp_strbuf *out)
{
    fputs(prompt, stderr);
    fflush(stderr);
    errno = 0;
    if (getline(&r->line, &r->cap, stdin) < 0) {
        clearerr(stdin);
        return esp_interrupted() ? ESP_LINE_INTERRUPTED : ESP_LINE_END;
    }
    esp_strbuf_clear(out);
    esp_strbuf_add(out, r->line, strcspn(r->line, "\n"));
    return ESP_LINE_TEXT;
}

void esp_line_remember(struct esp_line_reader *r, const char *text)
{
    (void)r;
    (void)text;
}

#endif
