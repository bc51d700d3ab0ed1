/*
 * See the header. Calls that are not on the list fail with EPERM instead of ending the process: libraries try
 * newer calls first and fall back. clone3 fails with ENOSYS for the same reason, since its flags lie in
 * memory that a filter cannot read; clone itself may make threads only.
 *
 * SPDX-License-Identifier: MIT
 */
#include "program/sandbox.h"

#ifdef ESP_HAVE_SECCOMP

#include <errno.h>
#include <linux/prctl.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>

/* What the server, libevent, SQLite, the tokenizer's JIT and the C library use; names that an architecture
 * does not have are passed over. */
static const char *const allowed[] = {
    /* files */
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "lseek", "open", "openat",
    "close", "close_range", "fstat", "stat", "lstat", "newfstatat", "statx", "statfs", "fstatfs", "access",
    "faccessat", "faccessat2", "readlink", "readlinkat", "getdents64", "getcwd", "mkdir", "mkdirat", "rmdir",
    "unlink", "unlinkat", "unlinkat", "rename", "renameat", "renameat2", "ftruncate", "fallocate", "fsync",
    "fdatasync", "flock", "fcntl", "dup", "dup2", "dup3", "fadvise64", "readahead", "umask", "fchmod",
    "fchown", "utimensat", "copy_file_range", "memfd_create",
    /* waiting, and connections that came in */
    "pipe", "pipe2", "eventfd2", "epoll_create1", "epoll_create", "epoll_ctl", "epoll_wait", "epoll_pwait",
    "epoll_pwait2", "timerfd_create", "timerfd_settime", "poll", "ppoll", "select", "pselect6", "accept",
    "accept4", "getsockname", "getpeername", "getsockopt", "setsockopt", "shutdown", "recvfrom", "sendto",
    "recvmsg", "sendmsg",
    /* memory and threads */
    "mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "msync", "mlock", "mlockall", "munlock",
    "mincore", "mbind", "set_mempolicy", "get_mempolicy", "futex", "futex_waitv", "set_robust_list",
    "get_robust_list", "rseq", "membarrier", "set_tid_address", "arch_prctl", "sched_yield",
    "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_getscheduler", "exit", "exit_group",
    /* time, numbers, signals to oneself */
    "nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "time", "getpid",
    "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "getrandom", "uname", "sysinfo",
    "getrlimit", "prlimit64", "getrusage", "times", "getcpu", "tgkill", "rt_sigaction", "rt_sigprocmask",
    "rt_sigreturn", "rt_sigtimedwait", "sigaltstack", "restart_syscall",
    /* the second step */
    "seccomp"};
/* Until everybody who should be listened to is: the second step takes these away. */
static const char *const to_listen[] = {"socket", "socketpair", "bind", "listen", "connect"};
/* No mistake and no library makes these in a server. */
static const char *const hostile[] = {
    "execve",      "execveat", "ptrace", "process_vm_readv", "process_vm_writev",
    "init_module", "bpf",      "mount",  "kexec_load",       "perf_event_open"};
static const unsigned ioctls[] = {FIONREAD, FIONBIO, 0x5401 /* TCGETS: is this a terminal */, TIOCGWINSZ};
static const int prctls[] = {PR_SET_NAME, PR_GET_NAME, PR_SET_NO_NEW_PRIVS,
                             0x53564d41 /* PR_SET_VMA: names of memory */};

#define LENGTH(a) (sizeof(a) / sizeof(a)[0])

/* One rule for each name; 0 or a negative errno. */
static int add_names(scmp_filter_ctx f, uint32_t action, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int call = seccomp_syscall_resolve_name(names[i]);
        const int rc = call == __NR_SCMP_ERROR ? 0 : seccomp_rule_add(f, action, call, 0);

        if (rc < 0 && rc != -EDOM) /* EDOM: not a call of this architecture */
            return rc;
    }
    return 0;
}

/* The call when argument number arg is value. */
static int add_equal(scmp_filter_ctx f, int call, unsigned arg, scmp_datum_t value)
{
    const struct scmp_arg_cmp is = {.arg = arg, .op = SCMP_CMP_EQ, .datum_a = value};

    return seccomp_rule_add_array(f, SCMP_ACT_ALLOW, call, 1, &is);
}

/* Calls by what their arguments say. */
static int add_arguments(scmp_filter_ctx f)
{
    int rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                              SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));

    if (rc == 0)
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    for (size_t i = 0; rc == 0 && i < LENGTH(ioctls); i++)
        rc = add_equal(f, SCMP_SYS(ioctl), 1, ioctls[i]);
    for (size_t i = 0; rc == 0 && i < LENGTH(prctls); i++)
        rc = add_equal(f, SCMP_SYS(prctl), 0, (scmp_datum_t)prctls[i]);
    return rc;
}

static int build(scmp_filter_ctx f, enum esp_sandbox step)
{
    int rc = seccomp_attr_set(f, SCMP_FLTATR_CTL_TSYNC, 1);

    if (rc == 0 && step == ESP_SANDBOX_SERVE) /* the first filter still holds: only take away */
        return add_names(f, SCMP_ACT_ERRNO(EPERM), to_listen, LENGTH(to_listen));
    if (rc == 0)
        rc = add_names(f, SCMP_ACT_ALLOW, allowed, LENGTH(allowed));
    if (rc == 0)
        rc = add_names(f, SCMP_ACT_ALLOW, to_listen, LENGTH(to_listen));
    if (rc == 0)
        rc = add_names(f, SCMP_ACT_KILL_PROCESS, hostile, LENGTH(hostile));
    return rc == 0 ? add_arguments(f) : rc;
}

esp_status esp_sandbox_enter(enum esp_sandbox step, esp_error *err)
{
    scmp_filter_ctx f = seccomp_init(step == ESP_SANDBOX_START ? SCMP_ACT_ERRNO(EPERM) : SCMP_ACT_ALLOW);
    int rc = f ? build(f, step) : -ENOMEM;

    if (rc == 0)
        rc = seccomp_load(f);
    if (f)
        seccomp_release(f);
    if (rc != 0)
        return esp_fail(
            err, ESP_EUNSUPPORTED,
            "--seccomp: the system refuses a filter of system calls (%s); leave the option out, or allow "
            "seccomp where the process runs",
            strerror(-rc));
    return ESP_OK;
}

#else

esp_status esp_sandbox_enter(enum esp_sandbox step, esp_error *err)
{
    (void)step;
    return esp_fail(err, ESP_EUNSUPPORTED,
                    "--seccomp: this program was built without libseccomp (Debian: libseccomp-dev)");
}

#endif
