/*
 * The conversation over a pseudo-terminal, with the stand-in library: commands, several lines, Ctrl-C,
 * Ctrl-D.
 *
 * SPDX-License-Identifier: MIT
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/support.h"

struct terminal {
    int fd;
    pid_t pid;
    char seen[1 << 16];
    size_t n, at; /* at: what has been waited for */
    char state_dir[256];
};

static void open_terminal(struct terminal *t, const char *program, const char *kind, const char *adapter)
{
    t->fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    t->n = t->at = 0;
    t->seen[0] = 0;
    assert_true(t->fd >= 0);
    assert_int_equal(grantpt(t->fd), 0);
    assert_int_equal(unlockpt(t->fd), 0);
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        int tty;

        setsid();
        tty = open(ptsname(t->fd), O_RDWR);
        ioctl(tty, TIOCSCTTY, 0);
        dup2(tty, 0);
        dup2(tty, 1);
        dup2(tty, 2);
        setenv("TERM", kind, 1);
        setenv("NO_COLOR", "1", 1);
        setenv("XDG_STATE_HOME", t->state_dir, 1);
        execl(program, "espalier", "chat", "models/demo", "--temperature", "0", adapter, (char *)NULL);
        _exit(99);
    }
}

static void open_program(struct terminal *t, const char *program)
{
    open_terminal(t, program, "dumb", NULL);
}

static void open_chat(struct terminal *t)
{
    open_program(t, ESP_PROGRAM_DOUBLE);
}

/* Wait for text behind what was waited for before. */
static void expect(struct terminal *t, const char *text)
{
    for (;;) {
        const char *found = strstr(t->seen + t->at, text);
        struct pollfd p = {t->fd, POLLIN, 0};
        ssize_t got;

        if (found) {
            t->at = (size_t)(found - t->seen) + strlen(text);
            return;
        }
        if (poll(&p, 1, 10000) <= 0)
            fail_msg("\"%s\" did not come; seen: %s", text, t->seen + t->at);
        got = read(t->fd, t->seen + t->n, sizeof t->seen - t->n - 1);
        if (got <= 0)
            fail_msg("\"%s\" did not come before the end; seen: %s", text, t->seen + t->at);
        t->n += (size_t)got;
        t->seen[t->n] = 0;
    }
}

static void type(struct terminal *t, const char *text)
{
    assert_int_equal(write(t->fd, text, strlen(text)), strlen(text));
}

static int close_chat(struct terminal *t)
{
    struct pollfd p = {t->fd, POLLIN, 0};
    int status;
    char rest[4096];

    do { /* until the other side is gone */
        if (poll(&p, 1, 20000) <= 0) {
            kill(t->pid, SIGKILL);
            fail_msg("the conversation does not end");
        }
    } while (read(t->fd, rest, sizeof rest) > 0);
    assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
    close(t->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static struct terminal term;

static int setup(void **state)
{
    (void)state;
    snprintf(term.state_dir, sizeof term.state_dir, "%s", test_tmpdir());
    return 0;
}

static void test_conversation(void **state)
{
    char line[512], path[300];
    struct stat st;

    (void)state;
    open_chat(&term);
    expect(&term, "/help lists the commands");
    expect(&term, ">>> ");
    type(&term, "hello\r");
    expect(&term, "HELLO");
    expect(&term, ">>> ");
    type(&term, "more of it\r");
    expect(&term, "MORE OF IT");
    expect(&term, ">>> ");
    type(&term, "/stats\r");
    expect(&term, "turns 2, messages 4");
    expect(&term, "(29 kept)"); /* the first turn: 24 tokens of prompt, 5 of answer */
    expect(&term, ">>> ");
    type(&term, "\"\"\"\r");
    expect(&term, "... ");
    type(&term, "one\r");
    expect(&term, "... ");
    type(&term, "two\"\"\"\r");
    expect(&term, "ONE\r\nTWO");
    expect(&term, ">>> ");
    snprintf(path, sizeof path, "%s/saved.json", term.state_dir);
    snprintf(line, sizeof line, "/save %s\r", path);
    type(&term, line);
    expect(&term, "saved 6 messages");
    type(&term, "/clear\r");
    expect(&term, "forgotten");
    snprintf(line, sizeof line, "/load %s\r", path);
    type(&term, line);
    expect(&term, "loaded 6 messages");
    expect(&term, ">>> ");
    type(&term, "\x04");
    assert_int_equal(close_chat(&term), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

/*
 * With the real library: the template drops the empty thinking that opened an answer once it is past, so each
 * prompt parts from the sequence before the answer. Only what follows the messages shared may run again.
 */
static void test_turns_go_on(void **state)
{
    (void)state;
    open_program(&term, ESP_PROGRAM);
    expect(&term, ">>> ");
    type(&term, "Spell: garden\r");
    expect(&term, "garden");
    expect(&term, ">>> ");
    type(&term, "Now repeat: stone river\r");
    expect(&term, "river");
    expect(&term, ">>> ");
    type(&term, "/stats\r");
    expect(&term, "prompt 35 tokens (8 kept)");     /* of 15 before, 7 opened the answer */
    expect(&term, "all answers: 42 prompt tokens"); /* 15, and 35 - 8 */
    expect(&term, ">>> ");
    type(&term, "\x04");
    assert_int_equal(close_chat(&term), 0);
}

/* Loaded at the start, switched on and off between answers; the conversation stays. */
static void test_adapters(void **state)
{
    (void)state;
    open_terminal(&term, ESP_PROGRAM, "dumb", "--adapter=models/demo-lora-caps");
    expect(&term, ">>> ");
    type(&term, "/adapter none\r");
    expect(&term, "[  ] demo-lora-caps (scale 1, rank 8)");
    expect(&term, ">>> ");
    type(&term, "Repeat: river stone\r");
    expect(&term, "\r\nriver stone\r\n");
    expect(&term, ">>> ");
    type(&term, "/adapter caps\r");
    expect(&term, "no adapter 'caps'");
    expect(&term, "loaded: demo-lora-caps");
    expect(&term, ">>> ");
    type(&term, "/clear\r");
    expect(&term, ">>> ");
    type(&term, "/adapter demo-lora-caps\r");
    expect(&term, "[on] demo-lora-caps");
    expect(&term, ">>> ");
    type(&term, "Repeat: river stone\r");
    expect(&term, "\r\nRIVER STONE\r\n");
    expect(&term, ">>> ");
    type(&term, "\x04");
    assert_int_equal(close_chat(&term), 0);
}

#ifdef ESP_HAVE_LIBEDIT
/* What a terminal brackets is one input, whatever it holds; only a typed newline sends it. */
static void test_paste(void **state)
{
    (void)state;
    open_terminal(&term, ESP_PROGRAM_DOUBLE, "xterm", NULL);
    expect(&term, "\033[?2004h");
    type(&term, "say \033[200~one\rtwo\r\rh\xc3\xa9\xff\x01\x1b[A\033[201~ end");
    type(&term, "\r");
    expect(&term, "\033[?2004l");
    expect(&term, "SAY ONE\r\nTWO\r\n\r\nH\xc3\xa9\xef\xbf\xbd[A END\r\n");
    expect(&term, "\033[?2004h");
    type(&term, "\033[200~/quit\rnot a command\033[201~\r");
    expect(&term, "/QUIT\r\nNOT A COMMAND\r\n");
    expect(&term, "\033[?2004h");
    type(&term, "\x04");
    assert_int_equal(close_chat(&term), 0);
}
#endif

static void test_commands(void **state)
{
    static const char *const talk[][2] = {
        {"/hlep", "did you mean /help?"},
        {"/xyz", "unknown command /xyz"},
        {"/image a.png", "not in this version"},
        {"/set temperature 9", "out of range"},
        {"/set speed 9", "/set takes one of"},
        {"/set xtc-probability 2", "out of range"},
        {"/set dry-multiplier 0.8", "dry-multiplier: 0.8"},
        {"/set dry-allowed-length 3", "dry-allowed-length: 3"},
        {"/set temperature 0", "temperature: 0"},
        {"/set max-tokens 2", "max-tokens: 2"},
        {"abcdef", "AB\r\n"},
        {"/set max-tokens 0", "max-tokens: 0"},
        {"abcdef", "(cut: the limit of tokens was reached)"},
        {"/set max-tokens default", "max-tokens: default"},
        {"/adapter", "no adapters"},
        {"/adapter x", "no adapter 'x'"},
        {"/think maybe", "takes on, off or model"},
        {"/think on", "thinking: on"},
        {"/think model", "thinking: model"},
        {"/system be brief", "system message set"},
        {"/load /no/such/file", "/no/such/file"},
        {"/save", "needs a file name"},
        {"FAIL now", "failed on purpose"},
        {"still here", "STILL HERE"},
        {"h\xc3\xa9llo", "H\xc3\xa9LLO"},
    };

    (void)state;
    open_chat(&term);
    for (size_t i = 0; i < sizeof talk / sizeof *talk; i++) {
        expect(&term, ">>> ");
        type(&term, talk[i][0]);
        type(&term, "\r");
        expect(&term, talk[i][1]);
    }
    expect(&term, ">>> ");
    type(&term, "/quit\r");
    assert_int_equal(close_chat(&term), 0);
}

static void test_interrupts(void **state)
{
    (void)state;
    open_chat(&term);
    expect(&term, ">>> ");
    type(&term, "FOREVER SLOW\r");
    expect(&term, "FOREVER SLOWla");
    type(&term, "\x03");
    expect(&term, "(stopped)");
    expect(&term, ">>> ");
    type(&term, "half a li");
    expect(&term, "half a li");
    type(&term, "\x03");
    expect(&term, ">>> ");
    type(&term, "whole\r"); /* nothing of the cleared line is left */
    expect(&term, "\nWHOLE\r\n");
    expect(&term, ">>> ");
    kill(term.pid, SIGTERM);
    assert_int_equal(close_chat(&term), 143);
}

static void test_history(void **state)
{
    char path[300];
    struct stat st;

    (void)state;
    snprintf(path, sizeof path, "%s/espalier/history", term.state_dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    open_chat(&term);
    expect(&term, ">>> ");
    type(&term, "\x10\r"); /* Ctrl-P: the line before */
    expect(&term, "\nWHOLE\r\n");
    expect(&term, ">>> ");
    type(&term, "\x04");
    assert_int_equal(close_chat(&term), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation), cmocka_unit_test(test_turns_go_on),
        cmocka_unit_test(test_adapters),     cmocka_unit_test(test_commands),
        cmocka_unit_test(test_interrupts),
#ifdef ESP_HAVE_LIBEDIT
        cmocka_unit_test(test_history),      cmocka_unit_test(test_paste),
#endif
    };

    (void)test_history;
    return cmocka_run_group_tests(tests, setup, NULL);
}
