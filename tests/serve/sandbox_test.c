/*
 * --seccomp: a server under its filters does all that a server does, and cannot do what an intruder would.
 * Ends with 77 where the program is built without libseccomp or the system forbids filters.
 *
 * SPDX-License-Identifier: MIT
 */
#include "serve/client/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program/sandbox.h"

/* Exit code of a child that enters the steps and runs fn, or minus its signal; 99: the filter was refused. */
static int inside(int steps, int (*fn)(void))
{
    const pid_t pid = fork();
    int status;

    if (pid == 0) {
        for (int i = 0; i < steps; i++)
            if (esp_sandbox_enter((enum esp_sandbox)i, NULL) != ESP_OK)
                _exit(99);
        _exit(fn());
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int nothing(void)
{
    return 0;
}

static int run_program(void)
{
    execl("/bin/true", "true", (char *)NULL);
    return 1;
}

static int trace_parent(void)
{
    return ptrace(PTRACE_ATTACH, getppid(), NULL, NULL) == 0;
}

static int make_process(void)
{
    const pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    return pid > 0;
}

static int open_socket(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    return fd >= 0 ? 1 : errno == EPERM ? 2 : 3;
}

static int become_root(void)
{
    return setuid(0) == 0 ? 1 : errno == EPERM ? 2 : 3;
}

static void test_filters(void **state)
{
    (void)state;
    assert_int_equal(inside(2, nothing), 0);
    assert_int_equal(inside(1, run_program), -SIGSYS);
    assert_int_equal(inside(1, trace_parent), -SIGSYS);
    assert_int_equal(inside(1, make_process), 0); /* refused, the process lives */
    assert_int_equal(inside(1, become_root), 2);
    assert_int_equal(inside(1, open_socket), 1); /* to listen on */
    assert_int_equal(inside(2, open_socket), 2); /* and later no more */
}

/* The number of a line of /proc/PID/status. */
static long status_of(const struct process *p, const char *key)
{
    char path[64], line[256];
    long v = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%ld/status", (long)p->pid);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':')
            v = strtol(line + strlen(key) + 1, NULL, 10);
    fclose(f);
    return v;
}

static void ask(const struct process *p, const char *path, const char *body, const char *part)
{
    struct reply r = client_post(&p->at, path, body, 200);

    if (!strstr(r.body, part))
        fail_msg("%s: no %s in %s", path, part, r.body);
    reply_free(&r);
}

static void test_server(void **state)
{
    char store[256], cache[256], socket_path[300];
    struct process p;

    (void)state;
    snprintf(store, sizeof store, "%s", test_tmpdir());
    snprintf(cache, sizeof cache, "%s", test_tmpdir());
    snprintf(socket_path, sizeof socket_path, "unix:%s/s", test_tmpdir());
    for (int i = 0; i < 2; i++) { /* the second time over what the first has written */
        PROCESS(&p, "--seccomp", "--ctx", "512", "--response-dir", store, "--cache-dir", cache, "--cache-ram",
                "8MiB", "--adapter-dir", test_path("models"), "--host", "127.0.0.1", "--host", socket_path);
        assert_int_equal(status_of(&p, "Seccomp"), 2);
        assert_int_equal(status_of(&p, "NoNewPrivs"), 1);
        ask(&p, "/v1/chat/completions",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: "
            "dog\"}],\"stream\":true,\"max_tokens\":8}",
            "[DONE]");
        ask(&p, "/v1/chat/completions",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":\"json_"
            "object\"},"
            "\"max_tokens\":8}",
            "choices");
        ask(&p, "/v1/responses", "{\"input\":\"Spell: dog\",\"max_output_tokens\":4}", "resp_");
        ask(&p, "/v1/messages",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Spell: dog\"}],\"max_tokens\":4}", "msg_");
        {
            struct reply r = client_do(&p.at, "POST", "/v1/adapters", NULL,
                                       "{\"id\":\"caps\",\"path\":\"demo-lora-caps\"}");

            assert_int_equal(r.status / 100, 2);
            reply_free(&r);
        }
        ask(&p, "/v1/chat/completions",
            "{\"adapter\":\"caps\",\"messages\":[{\"role\":\"user\",\"content\":\"Spell: "
            "dog\"}],\"max_tokens\":8}",
            "caps");
        process_stop(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_filters), cmocka_unit_test(test_server)};

    if (TEST_SANITIZED) {
        printf("sanitizers make calls of their own: skipped\n");
        return 77;
    }
    if (inside(2, nothing) == 99) {
        printf("no libseccomp, or no filters on this system: skipped\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
