/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "host/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>

#include "util/cleanup.h"
#include "util/io.h"

enum { OUTPUT_MAX = 4 * 1024 * 1024, TICK_MS = 1000 };

static int start(const char *const argv[], int out, pid_t *ret) {
        posix_spawn_file_actions_t actions;
        int r;

        r = posix_spawn_file_actions_init(&actions);
        if (r != 0)
                return -r;
        r = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
        if (r == 0)
                r = posix_spawnp(ret, argv[0], &actions, NULL, (char *const *) argv, environ);
        (void) posix_spawn_file_actions_destroy(&actions);
        return r == 0 ? 0 : -r;
}

/* Until the pipe says something or was closed. */
static int await_input(int fd, const HostWaiting *waiting) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        int n;

        while ((n = poll(&p, 1, TICK_MS)) == 0 || (n < 0 && errno == EINTR))
                if (n == 0 && waiting && waiting->handler)
                        waiting->handler(waiting->userdata);
        return n < 0 ? -errno : 0;
}

static int read_output(int fd, const HostWaiting *waiting, char **ret, size_t *ret_size) {
        _cleanup_free_ char *data = NULL;
        size_t size = 0;

        for (;;) {
                char *more = realloc(data, size + BUFSIZ + 1);
                ssize_t n;
                int r;

                if (!more)
                        return -ENOMEM;
                data = more;
                r = await_input(fd, waiting);
                if (r < 0)
                        return r;
                n = read(fd, data + size, BUFSIZ);
                if (n < 0)
                        return -errno;
                if (n == 0)
                        break;
                size += (size_t) n;
                if (size > OUTPUT_MAX)
                        return -EFBIG;
        }

        data[size] = 0;
        *ret = TAKE_PTR(data);
        if (ret_size)
                *ret_size = size;
        return 0;
}

static int await_end(pid_t pid, const HostWaiting *waiting) {
        _cleanup_fd_ int pidfd = pidfd_open(pid, 0);
        int status;

        if (pidfd >= 0)
                (void) await_input(pidfd, waiting);
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -errno;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int command_run(const char *const argv[], const HostWaiting *waiting, char **ret_out, size_t *ret_size) {
        _cleanup_fd_ int from = -1, to = -1;
        _cleanup_free_ char *out = NULL;
        size_t size = 0;
        int fds[2], status, r = 0;
        pid_t pid = -1;

        if (ret_out) {
                if (pipe2(fds, O_CLOEXEC) < 0)
                        return -errno;
                from = fds[0];
                to = fds[1];
        }
        r = start(argv, ret_out ? to : STDERR_FILENO, &pid);
        if (r < 0)
                return r;
        to = fd_close(to);

        if (ret_out)
                r = read_output(from, waiting, &out, &size);
        from = fd_close(from); /* so that whoever writes too much ends */
        status = await_end(pid, waiting);
        if (r < 0)
                return r;
        if (status >= 0 && ret_out) {
                *ret_out = TAKE_PTR(out);
                if (ret_size)
                        *ret_size = size;
        }
        return status;
}
