/*
 * A service manager's side: sockets are given, readiness is told, alone and with --isolate; wrong sockets are
 * refused.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* Listening, or with backlog < 0 bound alone. */
static int make_socket(int backlog, uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    if (backlog >= 0)
        assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static int make_notify(char path[200])
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    snprintf(path, 200, "%s/notify", test_tmpdir());
    unlink(path);
    assert_true(strlen(path) < sizeof a.sun_path);
    memcpy(a.sun_path, path, strlen(path) + 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* As a manager starts it; standard error goes to log. */
static pid_t start(int fd, const char *notify, const char *log, const char *flag)
{
    const pid_t pid = fork();
    char text[32];

    if (pid)
        return pid;
    if (fd >= 0 && fd != 3)
        dup2(fd, 3);
    snprintf(text, sizeof text, "%ld", (long)getpid());
    setenv("LISTEN_PID", text, 1);
    setenv("LISTEN_FDS", "1", 1);
    if (notify)
        setenv("NOTIFY_SOCKET", notify, 1);
    if (!freopen(log, "w", stderr) || !freopen("/dev/null", "w", stdout))
        _exit(99);
    execl(ESP_PROGRAM, ESP_PROGRAM, "serve", test_path("models/demo"), "-t", "1", flag, (char *)NULL);
    _exit(98);
}

static void test_start(void **state)
{
    static const char *const flags[] = {"--ctx=512", "--isolate"};

    (void)state;
    setenv("XDG_RUNTIME_DIR", test_tmpdir(), 1);
    for (int i = 0; i < 2; i++) {
        char notify[200], log[300], got[64] = "";
        struct server at = {0};
        const int fd = make_socket(16, &at.port), told = make_notify(notify);
        struct pollfd p = {.fd = told, .events = POLLIN};
        struct reply r;
        int status;
        pid_t pid;

        snprintf(log, sizeof log, "%s/log", test_tmpdir());
        pid = start(fd, notify, log, flags[i]);
        close(fd);
        assert_int_equal(poll(&p, 1, 120000), 1);
        assert_int_equal(recv(told, got, sizeof got - 1, 0), 7);
        assert_string_equal(got, "READY=1");
        r = client_do(&at, "GET", "/health", NULL, NULL);
        assert_int_equal(r.status, 200); /* it is true */
        reply_free(&r);
        kill(pid, SIGTERM);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        close(told);
    }
}

static void expect_refusal(int fd, const char *flag, const char *says)
{
    char log[300], text[2000] = "";
    int status;
    pid_t pid;
    FILE *f;

    snprintf(log, sizeof log, "%s/log", test_tmpdir());
    pid = start(fd, NULL, log, flag);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    f = fopen(log, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    if (!strstr(text, says))
        fail_msg("no '%s' in: %s", says, text);
}

static void test_refusals(void **state)
{
    uint16_t port;
    const int bound = make_socket(-1, &port), good = make_socket(1, &port);

    (void)state;
    expect_refusal(bound, "--ctx=512", "no stream socket that listens");
    expect_refusal(good, "--host=127.0.0.1", "has given sockets already");
    close(bound);
    close(good);
}

/* A port that another server has: who it is and how to end it. */
static void test_taken(void **state)
{
    char command[700], text[2000] = "", who[100];
    struct process p;
    FILE *f;

    (void)state;
    PROCESS(&p, "--ctx", "512");
    snprintf(command, sizeof command, "%s serve %s --port %u 2>&1", ESP_PROGRAM, test_path("models/demo"),
             p.at.port);
    f = popen(command, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    assert_int_equal(WEXITSTATUS(pclose(f)), 1);
    snprintf(who, sizeof who, "(process %ld, an espalier server, has it; 'espalier stop %u' ends that)",
             (long)p.pid, p.at.port);
    if (!strstr(text, who))
        fail_msg("no '%s' in: %s", who, text);
    process_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_start), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_taken)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
