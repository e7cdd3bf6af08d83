/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * exec: a process, its pipes, and the cgroup that holds everything it starts. Like a service of systemd
 * an exec is over when its first process is; what it left behind is killed then, so that one step never
 * runs on into the next.
 */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/guest.h"

enum { ARGS_MAX = 4096, ENV_MAX = 1024 };

static const char *const default_env[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/root",
        "USER=root",
        "LOGNAME=root",
        "SHELL=/bin/bash",
        "LANG=C.UTF-8",
        "TERM=dumb",
};

typedef struct Command {
        char **argv, **envp; /* owned; NULL-terminated */
        const char *cwd;     /* borrowed */
} Command;

static char **strings_free(char **v) {
        for (char **p = v; p && *p; p++)
                free(*p);
        free(v);
        return NULL;
}

static void command_done(Command *c) {
        c->argv = strings_free(c->argv);
        c->envp = strings_free(c->envp);
}

static int command_parse_argv(Command *c, const json_t *argv) {
        size_t n = json_array_size(argv);

        if (n < 1 || n > ARGS_MAX)
                return -EINVAL;

        c->argv = calloc(n + 1, sizeof(*c->argv));
        if (!c->argv)
                return -ENOMEM;

        for (size_t i = 0; i < n; i++) {
                const char *arg = json_string_value(json_array_get(argv, i));

                if (!arg)
                        return -EINVAL;
                c->argv[i] = strdup(arg);
                if (!c->argv[i])
                        return -ENOMEM;
        }

        return 0;
}

static bool env_is_set(char *const *envp, const char *assignment) {
        size_t n = strcspn(assignment, "=") + 1;

        for (; *envp; envp++)
                if (strncmp(*envp, assignment, n) == 0)
                        return true;
        return false;
}

static int command_parse_env(Command *c, json_t *env) {
        size_t n = 0;
        const char *key;
        json_t *value;

        if (json_object_size(env) > ENV_MAX)
                return -EINVAL;

        c->envp = calloc(json_object_size(env) + ELEMENTSOF(default_env) + 1, sizeof(*c->envp));
        if (!c->envp)
                return -ENOMEM;

        json_object_foreach(env, key, value) {
                if (!json_is_string(value) || strchr(key, '='))
                        return -EINVAL;
                if (asprintf(&c->envp[n], "%s=%s", key, json_string_value(value)) < 0) {
                        c->envp[n] = NULL;
                        return -ENOMEM;
                }
                n++;
        }

        for (size_t i = 0; i < ELEMENTSOF(default_env); i++)
                if (!env_is_set(c->envp, default_env[i])) {
                        c->envp[n] = strdup(default_env[i]);
                        if (!c->envp[n])
                                return -ENOMEM;
                        n++;
                }

        return 0;
}

static int command_parse(Command *c, const json_t *request) {
        int r;

        *c = (Command) { .cwd = json_string_value(json_object_get(request, "cwd")) ?: "/" };

        r = command_parse_argv(c, json_object_get(request, "argv"));
        if (r < 0)
                return r;

        return command_parse_env(c, json_object_get(request, "env"));
}

static void cgroup_path(const Stream *s, const char *file, char *ret, size_t size) {
        (void) snprintf(ret, size, "/sys/fs/cgroup/exec-%u%s%s", s->id, *file ? "/" : "", file);
}

static int cgroup_write(const Stream *s, const char *file, const char *text) {
        _cleanup_fd_ int fd = -1;
        char path[80];

        cgroup_path(s, file, path, sizeof(path));
        fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0)
                return -errno;

        return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

/* In the child; reports an errno through `report`, which exec closes. */
__attribute__((__noreturn__)) static void child_exec(const Stream *s, const Command *c, const int fds[3], int report) {
        sigset_t none;
        int error;

        (void) cgroup_write(s, "cgroup.procs", "0");
        (void) setsid();
        (void) setpriority(PRIO_PROCESS, 0, 0);
        (void) signal(SIGPIPE, SIG_DFL); /* what is ignored stays so in what exec starts */
        (void) sigemptyset(&none);
        (void) sigprocmask(SIG_SETMASK, &none, NULL);

        for (int i = 0; i < 3; i++)
                if (dup2(fds[i], i) < 0)
                        goto fail;
        if (chdir(c->cwd) < 0)
                goto fail;

        environ = c->envp;
        (void) execvp(c->argv[0], c->argv);

fail:
        error = errno;
        (void) !write(report, &error, sizeof(error));
        _exit(127);
}

static int pipe_pair(int ret[2], int own) {
        if (pipe2(ret, O_CLOEXEC) < 0)
                return -errno;

        return fcntl(ret[own], F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static void pair_close(int p[2]) {
        p[0] = fd_close(p[0]);
        p[1] = fd_close(p[1]);
}

/* Forks and waits until the child's exec has succeeded or failed; the latter is negative errno. */
static int spawn(Stream *s, const Command *c, int in, int out, int err) {
        int report[2] = { -1, -1 }, error = 0;
        ssize_t n;
        pid_t pid;

        if (pipe2(report, O_CLOEXEC) < 0)
                return -errno;

        pid = fork();
        if (pid < 0) {
                error = errno;
                pair_close(report);
                return -error;
        }
        if (pid == 0)
                child_exec(s, c, (const int[]) { in, out, err }, report[1]);

        report[1] = fd_close(report[1]);
        do
                n = read(report[0], &error, sizeof(error));
        while (n < 0 && errno == EINTR);
        pair_close(report);

        if (n == sizeof(error)) {
                (void) waitpid(pid, NULL, 0);
                return -error;
        }

        s->pid = pid;
        return 0;
}

static int process_open(Stream *s, const Command *c, bool with_stdin) {
        int in[2] = { -1, -1 }, out[2] = { -1, -1 }, err[2] = { -1, -1 };
        char path[80];
        int r;

        cgroup_path(s, "", path, sizeof(path));
        (void) mkdir(path, 0755);

        if (with_stdin)
                r = pipe_pair(in, 1);
        else {
                in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
                r = in[0] < 0 ? -errno : 0;
        }
        if (r >= 0)
                r = pipe_pair(out, 0);
        if (r >= 0)
                r = pipe_pair(err, 0);
        if (r >= 0)
                r = spawn(s, c, in[0], out[1], err[1]);
        if (r >= 0) {
                s->in = TAKE_FD(in[1]);
                s->out = TAKE_FD(out[0]);
                s->err = TAKE_FD(err[0]);
        } else
                (void) rmdir(path);

        pair_close(in);
        pair_close(out);
        pair_close(err);
        return r;
}

int process_start(Guest *g, Stream *s, const json_t *request) {
        Command c;
        int r;

        r = command_parse(&c, request);
        if (r >= 0)
                r = process_open(s, &c, json_is_true(json_object_get(request, "stdin")));
        if (r < 0) {
                guest_send_exit_errno(g, s->id, -r, c.argv && c.argv[0] ? c.argv[0] : "exec");
                stream_done(s);
        } else
                s->kind = STREAM_PROCESS;

        command_done(&c);
        return r;
}

void process_signal(Stream *s, int number) {
        _cleanup_file_ FILE *f = NULL;
        char path[80];
        int pid;

        if (number == SIGKILL && cgroup_write(s, "cgroup.kill", "1") >= 0)
                return;

        cgroup_path(s, "cgroup.procs", path, sizeof(path));
        f = fopen(path, "re");
        if (!f)
                return;
        while (fscanf(f, "%d", &pid) == 1)
                if (pid > 1)
                        (void) kill(pid, number);
}

/* stdin: what the pipe does not take waits in a buffer as large as the window, so it always fits. */
void process_take_stdin(Guest *g, Stream *s, const uint8_t *data, size_t size) {
        if (size == 0)
                s->stdin_ended = true;
        else if (s->in < 0)
                return guest_send_credit(g, s, (uint32_t) size); /* nobody reads it any more */
        else {
                if (!s->pending) {
                        s->pending = malloc(CHANNEL_WINDOW);
                        if (!s->pending) {
                                s->in = fd_close(s->in);
                                return;
                        }
                }
                if (s->pending_end + size > CHANNEL_WINDOW) {
                        memmove(s->pending, s->pending + s->pending_start, s->pending_end - s->pending_start);
                        s->pending_end -= s->pending_start;
                        s->pending_start = 0;
                }
                memcpy(s->pending + s->pending_end, data, size);
                s->pending_end += size;
        }

        process_write_stdin(g, s);
}

void process_write_stdin(Guest *g, Stream *s) {
        while (s->in >= 0 && s->pending_start < s->pending_end) {
                ssize_t n = write(s->in, s->pending + s->pending_start, s->pending_end - s->pending_start);

                if (n < 0) {
                        if (errno == EAGAIN || errno == EINTR)
                                return;
                        n = (ssize_t) (s->pending_end - s->pending_start); /* EPIPE: consumed all the same */
                        s->in = fd_close(s->in);
                }
                s->pending_start += (size_t) n;
                guest_send_credit(g, s, (uint32_t) n);
        }

        if (s->pending_start == s->pending_end) {
                s->pending_start = s->pending_end = 0;
                if (s->stdin_ended)
                        s->in = fd_close(s->in);
        }
}

void process_read_output(Guest *g, Stream *s, int *fd, ChannelType type) {
        ssize_t n;

        if (*fd < 0)
                return;

        if (s->sender.credit == 0 || !guest_has_room(g))
                return; /* what is in the pipe stays there */

        n = guest_send_from(g, type, s, *fd, CHANNEL_PAYLOAD_MAX);
        if (n > 0)
                return;

        /* A process that left the exec's cgroup may hold the pipe open for ever. */
        if (n == -EAGAIN && !(s->reaped && guest_now() > s->reaped_usec + GUEST_DRAIN_USEC))
                return;

        *fd = fd_close(*fd);
        guest_send(g, type, s->id, NULL, 0);
}

static Stream *find_process(Guest *g, pid_t pid) {
        for (size_t i = 0; i < GUEST_STREAMS_MAX; i++)
                if (g->streams[i].kind == STREAM_PROCESS && !g->streams[i].reaped && g->streams[i].pid == pid)
                        return g->streams + i;
        return NULL;
}

void process_reap(Guest *g) {
        int status;
        pid_t pid;

        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
                Stream *s = find_process(g, pid);

                if (!s)
                        continue; /* an orphan */

                s->reaped = true;
                s->reaped_usec = guest_now();
                s->status = status;
                (void) cgroup_write(s, "cgroup.kill", "1");
        }
}

void process_settle(Guest *g, Stream *s) {
        json_t *exit;

        if (!s->reaped || s->out >= 0 || s->err >= 0)
                return;

        if (WIFSIGNALED(s->status))
                exit = json_pack("{s:i}", "signal", WTERMSIG(s->status));
        else
                exit = json_pack("{s:i}", "status", WEXITSTATUS(s->status));
        guest_send_json(g, CHANNEL_EXIT, s->id, exit);
        stream_done(s);
}
