/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "import/git.h"
#include "util/cleanup.h"
#include "util/text.h"

#define GIT "/usr/bin/git"
#define ARGS_MAX 24
#define ERROR_KEPT 4096
#define FATAL 128 /* the status with which git gives up */
#define NOT_BEGUN 127 /* status of a child that could not become git; git itself ends with less, or with 128 and 129 */

/*
 * Nothing from outside configures git here, neither files nor environment, and the repository's own
 * config is what git init wrote. What remains is set: which warnings of fsck are errors (all, with
 * --strict), memory that grows with a file (bigFileThreshold), and ways out (protocols, hooks, monitors).
 */
static const char *const options[] = {
        "-c", "protocol.allow=never",
        "-c", "core.hooksPath=/dev/null",
        "-c", "core.fsmonitor=false",
        "-c", "core.protectHFS=true",
        "-c", "core.protectNTFS=true",
        "-c", "core.bigFileThreshold=8m",
        "-c", "core.packedGitLimit=256m",
        "-c", "core.packedGitWindowSize=32m",
        "-c", "pack.threads=1",
        "-c", "pack.windowMemory=64m",
        "-c", "pack.deltaCacheSize=32m",
        "-c", "diff.renameLimit=400",
        "-c", "gc.auto=0",
        "-c", "maintenance.auto=false",
        "-c", "advice.detachedHead=false",
};

static char *const environment[] = {
        (char *) "PATH=/usr/bin:/bin",
        (char *) "HOME=/nonexistent",
        (char *) "LC_ALL=C",
        (char *) "GIT_CONFIG_NOSYSTEM=1",
        (char *) "GIT_CONFIG_GLOBAL=/dev/null",
        (char *) "GIT_ATTR_NOSYSTEM=1",
        (char *) "GIT_ALLOW_PROTOCOL=",
        (char *) "GIT_TERMINAL_PROMPT=0",
        (char *) "GIT_ASKPASS=/bin/false",
        (char *) "GIT_NO_REPLACE_OBJECTS=1",
        (char *) "GIT_NO_LAZY_FETCH=1",
        (char *) "GIT_OPTIONAL_LOCKS=0",
        (char *) "GIT_PAGER=cat",
        NULL,
};

static void limit(int resource, uint64_t value) {
        const struct rlimit l = { .rlim_cur = value, .rlim_max = value };

        if (setrlimit((__rlimit_resource_t) resource, &l) < 0)
                _exit(NOT_BEGUN);
}

static void move_fd(int from, int to) {
        if (from < 0) {
                from = open("/dev/null", O_RDWR | O_CLOEXEC);
                if (from < 0)
                        _exit(NOT_BEGUN);
        }
        if (dup2(from, to) < 0)
                _exit(NOT_BEGUN);
}

/* After fork: async-signal-safe calls only. */
static void become_git(const Git *g, char *const *argv, int in, int out, int err) __attribute__((__noreturn__));
static void become_git(const Git *g, char *const *argv, int in, int out, int err) {
        sigset_t none;

        (void) setpgid(0, 0); /* so that its children die with it */
        sigemptyset(&none);
        (void) sigprocmask(SIG_SETMASK, &none, NULL);

        move_fd(in, STDIN_FILENO);
        move_fd(out, STDOUT_FILENO);
        move_fd(err, STDERR_FILENO);

        limit(RLIMIT_CORE, 0);
        limit(RLIMIT_AS, g->memory_bytes);
        limit(RLIMIT_FSIZE, g->file_bytes);
        limit(RLIMIT_CPU, g->cpu_seconds);

        (void) execve(GIT, argv, environment);
        _exit(NOT_BEGUN);
}

typedef struct Child {
        pid_t pid;
        int pidfd, out, err; /* owned */
        char error[ERROR_KEPT];
        size_t error_size;
} Child;

static void child_done(Child *c) {
        if (c->pid > 0) {
                (void) kill(-c->pid, SIGKILL);
                (void) kill(c->pid, SIGKILL);
                (void) waitpid(c->pid, NULL, 0);
        }
        c->pidfd = fd_close(c->pidfd);
        c->out = fd_close(c->out);
        c->err = fd_close(c->err);
}

static int start(Child *c, const Git *g, char *const *argv, int stdin_fd, int stdout_fd) {
        _cleanup_fd_ int out_write = -1, err_write = -1;
        int pipe_out[2], pipe_err[2];

        if (pipe2(pipe_err, O_CLOEXEC) < 0)
                return -errno;
        c->err = pipe_err[0];
        err_write = pipe_err[1];

        if (stdout_fd < 0) {
                if (pipe2(pipe_out, O_CLOEXEC) < 0)
                        return -errno;
                c->out = pipe_out[0];
                out_write = stdout_fd = pipe_out[1];
        }

        c->pid = fork();
        if (c->pid < 0)
                return -errno;
        if (c->pid == 0)
                become_git(g, argv, stdin_fd, stdout_fd, err_write);

        (void) setpgid(c->pid, c->pid);
        c->pidfd = pidfd_open(c->pid, 0);
        return c->pidfd < 0 ? -errno : 0;
}

/* One read of a pipe. 0 at its end. */
static ssize_t take(int fd, char *buffer, size_t size) {
        ssize_t n;

        do
                n = read(fd, buffer, size);
        while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : n;
}

static int take_output(Child *c, GitOutput output, void *userdata) {
        char buffer[32 * 1024];
        ssize_t n = take(c->out, buffer, sizeof(buffer));

        if (n < 0)
                return (int) n;
        if (n == 0) {
                c->out = fd_close(c->out);
                return 0;
        }
        return output ? output(buffer, (size_t) n, userdata) : 0;
}

/* Keeps the end. */
static int take_error(Child *c) {
        char buffer[ERROR_KEPT];
        ssize_t n = take(c->err, buffer, sizeof(buffer));

        if (n < 0)
                return (int) n;
        if (n == 0) {
                c->err = fd_close(c->err);
                return 0;
        }
        if ((size_t) n > sizeof(c->error) - c->error_size) {
                size_t drop = (size_t) n - (sizeof(c->error) - c->error_size);

                memmove(c->error, c->error + drop, c->error_size - drop);
                c->error_size -= drop;
        }
        memcpy(c->error + c->error_size, buffer, (size_t) n);
        c->error_size += (size_t) n;
        return 0;
}

/* Until both pipes are closed; git itself ends at about the same time. */
static int pump(Child *c, uint64_t deadline, GitOutput output, void *userdata) {
        while (c->out >= 0 || c->err >= 0) {
                struct pollfd p[] = { { .fd = c->out, .events = POLLIN }, { .fd = c->err, .events = POLLIN } };
                uint64_t now = time_monotonic();
                int r;

                if (now >= deadline)
                        return -ETIMEDOUT;
                r = poll(p, ELEMENTSOF(p), (int) ((deadline - now) / 1000 + 1 < 1000 ? (deadline - now) / 1000 + 1 : 1000));
                if (r < 0 && errno != EINTR)
                        return -errno;
                if (r <= 0)
                        continue;

                if (p[0].revents) {
                        r = take_output(c, output, userdata);
                        if (r < 0)
                                return r;
                }
                if (p[1].revents) {
                        r = take_error(c);
                        if (r < 0)
                                return r;
                }
        }
        return 0;
}

static int reap(Child *c, uint64_t deadline) {
        struct pollfd p = { .fd = c->pidfd, .events = POLLIN };
        uint64_t now;
        int status, r;

        do {
                now = time_monotonic();
                if (now >= deadline)
                        return -ETIMEDOUT;
                r = poll(&p, 1, (int) ((deadline - now) / 1000 + 1 < 1000 ? (deadline - now) / 1000 + 1 : 1000));
        } while (r == 0 || (r < 0 && errno == EINTR));
        if (r < 0)
                return -errno;

        if (waitpid(c->pid, &status, 0) < 0)
                return -errno;
        (void) kill(-c->pid, SIGKILL); /* grandchildren that it left */
        c->pid = 0;
        if (!WIFEXITED(status))
                return -ENOBUFS;
        return WEXITSTATUS(status) == NOT_BEGUN ? -EIO : WEXITSTATUS(status);
}

/* What git complained about: its first line "error: …", for "fatal: …" after it says less; else the last line. */
static void keep_last_words(Git *g, const Child *c) {
        static const char error[] = "error: ";
        _cleanup_free_ char *words = NULL;
        const char *line = "", *p = c->error, *end = c->error + c->error_size;
        size_t size = 0;

        while (p < end) {
                size_t n = (size_t) ((const char *) (memchr(p, '\n', (size_t) (end - p)) ?: end) - p);

                if (n > 0) {
                        line = p;
                        size = n;
                }
                if (n > strlen(error) && memcmp(p, error, strlen(error)) == 0)
                        break;
                p += n + 1;
        }

        words = strndup(line, size);
        text_fit(words ?: "", g->error, sizeof(g->error));
}

int git_run(Git *g, const char *const *args, int stdin_fd, int stdout_fd, GitOutput output, void *userdata) {
        _cleanup_(child_done) Child c = { .pidfd = -1, .out = -1, .err = -1 };
        char *argv[1 + ELEMENTSOF(options) + 2 + ARGS_MAX + 1];
        size_t n = 0;
        int r;

        g->error[0] = 0;

        argv[n++] = (char *) "git";
        for (size_t i = 0; i < ELEMENTSOF(options); i++)
                argv[n++] = (char *) options[i];
        argv[n++] = (char *) "--git-dir";
        argv[n++] = (char *) g->repository;
        for (size_t i = 0; args[i]; i++) {
                if (i >= ARGS_MAX)
                        return -E2BIG;
                argv[n++] = (char *) args[i];
        }
        argv[n] = NULL;

        r = start(&c, g, argv, stdin_fd, stdout_fd);
        if (r < 0)
                return r;

        r = pump(&c, g->deadline_usec, output, userdata);
        keep_last_words(g, &c);
        if (r < 0)
                return r;

        r = reap(&c, g->deadline_usec);
        /* its memory is limited by us: that malloc() fails is no word about the repository */
        return r == FATAL && strncmp(g->error, "fatal: Out of memory", strlen("fatal: Out of memory")) == 0 ? -ENOBUFS : r;
}
