/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What `credential add` and its like have systemd do: systemd-creds seals a value to this host, and a restart of secretd's unit has PID 1
 * decrypt the folder anew (systemd 257 reads LoadCredentialEncrypted= at a start only). Values go through pipes, never
 * through arguments, environments or files; all of one fits into a pipe's buffer.
 */

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/ctl-credential.h"
#include "secret/credential-store.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

#define SYSTEMD_CREDS "/usr/bin/systemd-creds"
#define SYSTEMCTL "/usr/bin/systemctl"
#define SECRETD_UNIT "anchor-secretd.service"
#define SECRETD_SOCKET "/run/anchorhold/secret-api.sock"

enum {
        OUTPUT_MAX = 256 * 1024,
        TROUBLE_MAX = 4 * 1024,
        LIST_TIMEOUT_USEC = 20 * 1000 * 1000,
        WAIT_USEC = 15 * 1000 * 1000,
        WAIT_STEP_USEC = 50 * 1000,
};

/* ---- programs ---- */

static int spawn(const char *const *argv, int in_fd, int out_fd, int err_fd, pid_t *ret) {
        static const char *const environment[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "SYSTEMD_PAGER=", NULL };
        posix_spawn_file_actions_t actions;
        int r;

        r = posix_spawn_file_actions_init(&actions);
        if (r != 0)
                return -r;
        r = in_fd >= 0 ? posix_spawn_file_actions_adddup2(&actions, in_fd, STDIN_FILENO)
                       : posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, err_fd, STDERR_FILENO);
        if (r == 0)
                r = posix_spawn(ret, argv[0], &actions, NULL, (char **) argv, (char **) environment);
        (void) posix_spawn_file_actions_destroy(&actions);
        return -r;
}

/* Runs a program to its end; *ret_trouble (the caller's) is what it said on its error stream. Its exit status, or negative errno. */
static int run(const char *const *argv, int in_fd, int out_fd, char **ret_trouble) {
        _cleanup_fd_ int err_fd = memfd_create("trouble", MFD_CLOEXEC);
        size_t size = 0;
        int status, r;
        pid_t pid = -1;

        if (err_fd < 0)
                return -errno;
        r = spawn(argv, in_fd, out_fd, err_fd, &pid);
        if (r < 0)
                return r;
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -errno;

        if (lseek(err_fd, 0, SEEK_SET) < 0)
                return -errno;
        r = io_read_fd(err_fd, TROUBLE_MAX, ret_trouble, &size);
        if (r < 0 && r != -EFBIG)
                return r;
        while (*ret_trouble && size > 0 && (*ret_trouble)[size - 1] == '\n')
                (*ret_trouble)[--size] = '\0';
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A pipe that holds all of data already. */
static int filled_pipe(const void *data, size_t size) {
        _cleanup_fd_ int from = -1, to = -1;
        int fds[2], r;

        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        from = fds[0];
        to = fds[1];
        if (fcntl(to, F_SETPIPE_SZ, OUTPUT_MAX) < (int) size)
                return -EFBIG;
        r = io_write_full(to, data, size);
        return r < 0 ? r : TAKE_FD(from);
}

static CtlExit program_failed(Ctl *ctl, const char *what, const char *program, int r, const char *trouble) {
        if (r < 0)
                ctl_error(ctl, "Cannot %s: %s: %s", what, program, strerror(-r));
        else
                ctl_error(ctl, "Cannot %s: %s exited with status %d: %s", what, program, r, trouble && *trouble ? trouble : "it said nothing");
        return CTL_FAILED;
}

/* ---- systemd-creds ---- */

static CtlExit decrypts_to(Ctl *ctl, const char *name_option, const char *data, size_t size, const Secret *value) {
        static const char what[] = "read back what was encrypted";
        const char *argv[] = { SYSTEMD_CREDS, "decrypt", name_option, "--newline=no", "-", "-", NULL };
        _cleanup_(secret_freep) Secret *again = NULL;
        _cleanup_fd_ int in = -1, from = -1, to = -1;
        _cleanup_free_ char *trouble = NULL;
        SecretView v;
        int fds[2], r;

        in = filled_pipe(data, size);
        if (in < 0)
                return program_failed(ctl, what, SYSTEMD_CREDS, in, NULL);
        if (pipe2(fds, O_CLOEXEC) < 0)
                return program_failed(ctl, what, SYSTEMD_CREDS, -errno, NULL);
        from = fds[0];
        to = fds[1];

        r = run(argv, in, to, &trouble);
        to = fd_close(to);
        if (r == 0)
                r = secret_read_fd(&again, from);
        if (r != 0)
                return program_failed(ctl, what, SYSTEMD_CREDS, r, trouble);

        v = secret_view(value);
        if (secret_equals(again, v.bytes, v.size))
                return CTL_OK;
        ctl_error(ctl, "Cannot %s: it is not what was given.", what);
        return CTL_FAILED;
}

CtlExit ctl_credential_encrypt(Ctl *ctl, const char *name, const Secret *value, char **ret_data, size_t *ret_size) {
        static const char what[] = "encrypt the value";
        _cleanup_free_ char *option = text_format("--name=" CREDENTIAL_PREFIX "%s", name), *trouble = NULL, *data = NULL;
        const char *argv[] = { SYSTEMD_CREDS, "encrypt", option, "-", "-", NULL };
        _cleanup_fd_ int in = -1, out = memfd_create("encrypted", MFD_CLOEXEC);
        SecretView v = secret_view(value);
        size_t size;
        CtlExit e;
        int r;

        if (!option || out < 0)
                return program_failed(ctl, what, SYSTEMD_CREDS, option ? -errno : -ENOMEM, NULL);
        in = filled_pipe(v.bytes, v.size);
        r = in < 0 ? in : run(argv, in, out, &trouble);
        if (r == 0)
                r = lseek(out, 0, SEEK_SET) < 0 ? -errno : io_read_fd(out, OUTPUT_MAX, &data, &size);
        if (r != 0)
                return program_failed(ctl, what, SYSTEMD_CREDS, r, trouble);

        e = decrypts_to(ctl, option, data, size, value);
        if (e != CTL_OK)
                return e;
        *ret_data = TAKE_PTR(data);
        *ret_size = size;
        return CTL_OK;
}

/* ---- secretd ---- */

static CtlExit restart_secretd(Ctl *ctl) {
        /* somebody who rotates many must not meet the limit of starts in a minute */
        static const char *const forget[] = { SYSTEMCTL, "reset-failed", SECRETD_UNIT, NULL };
        static const char *const restart[] = { SYSTEMCTL, "restart", SECRETD_UNIT, NULL };
        _cleanup_free_ char *ignored = NULL, *trouble = NULL;
        _cleanup_fd_ int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        int r;

        (void) run(forget, -1, null, &ignored);
        r = run(restart, -1, null, &trouble);
        if (r == 0)
                return CTL_OK;
        (void) program_failed(ctl, "start " SECRETD_UNIT " anew", SYSTEMCTL, r, trouble);
        ctl_error(ctl, "The file in " CREDENTIAL_FOLDER " is changed, but no run sees it and none starts before that unit does.\n"
                       "\"journalctl -u " SECRETD_UNIT "\" says which file it stumbles over, if that is why.");
        return CTL_FAILED;
}

/* The runs whose inject is up, or about to be: that one may have been given the value of before. As text with a line for each unit. */
static int list_injects(char **ret) {
        static const char *const argv[] = { SYSTEMCTL, "list-units", "--plain", "--no-legend", "--full", "--no-pager",
                                            "--type=service", "--state=active,activating", "anchor-inject@*", NULL };
        _cleanup_fd_ int out = memfd_create("units", MFD_CLOEXEC);
        _cleanup_free_ char *trouble = NULL;
        size_t size;
        int r;

        if (out < 0)
                return -errno;
        r = run(argv, -1, out, &trouble);
        if (r != 0)
                return r < 0 ? r : -EIO;
        if (lseek(out, 0, SEEK_SET) < 0)
                return -errno;
        return io_read_fd(out, OUTPUT_MAX, ret, &size);
}

static bool has_name(const json_t *array, const char *name) {
        for (size_t i = 0; i < json_array_size(array); i++) {
                const char *s = json_string_value(json_array_get(array, i));

                if (s && strcmp(s, name) == 0)
                        return true;
        }
        return false;
}

/* How many runs have that credential, and how many of them are still without what secretd has. */
static void count_runs(const json_t *runs, const char *injects, const char *name, size_t *ret_all, size_t *ret_behind) {
        *ret_all = *ret_behind = 0;
        for (size_t i = 0; i < json_array_size(runs); i++) {
                const json_t *run_object = json_array_get(runs, i);
                const char *id = ctl_string(run_object, "run");

                if (!id || !has_name(json_object_get(run_object, "credentials"), name))
                        continue;
                ++*ret_all;
                /* an inject that is not up gets what there is when it starts */
                if (!json_is_true(json_object_get(run_object, "watched")) && strstr(injects, id))
                        ++*ret_behind;
        }
}

static CtlExit ask_secretd(Ctl *ctl, json_t **ret) {
        _cleanup_(ipc_client_freep) IpcClient *client = NULL;
        _cleanup_json_ json_t *reply = NULL;
        _cleanup_free_ char *error = NULL;
        int r;

        r = ipc_client_new(&client, NULL, SECRETD_SOCKET);
        if (r >= 0)
                r = ipc_client_call(client, "io.anchorhold.Secret.List", json_object(), NULL, 0, LIST_TIMEOUT_USEC, &reply, &error, NULL, 0);
        if (r < 0) {
                ctl_error(ctl, "Cannot ask anchor-secretd which runs use the credential: %s", error ?: strerror(-r));
                return CTL_FAILED;
        }
        *ret = TAKE_PTR(reply);
        return CTL_OK;
}

CtlExit ctl_credential_tell(Ctl *ctl, const char *name, size_t *ret_runs) {
        uint64_t end;
        CtlExit e;

        e = restart_secretd(ctl);
        if (e != CTL_OK)
                return e;

        end = time_monotonic() + WAIT_USEC;
        for (;;) {
                _cleanup_json_ json_t *reply = NULL;
                _cleanup_free_ char *injects = NULL;
                size_t n_behind;
                int r;

                e = ask_secretd(ctl, &reply);
                if (e != CTL_OK)
                        return e;
                r = list_injects(&injects);
                if (r < 0)
                        return program_failed(ctl, "list the runs", SYSTEMCTL, r, NULL);
                count_runs(json_object_get(reply, "runs"), injects, name, ret_runs, &n_behind);
                if (n_behind == 0)
                        return CTL_OK;
                if (time_monotonic() > end) {
                        ctl_error(ctl, "%zu run%s did not take the change within %d s. \"systemctl status 'anchor-inject@*'\" says more; "
                                       "to be sure, stop what runs.", n_behind, n_behind == 1 ? "" : "s", (int) (WAIT_USEC / 1000000));
                        return CTL_FAILED;
                }
                (void) usleep(WAIT_STEP_USEC);
        }
}
