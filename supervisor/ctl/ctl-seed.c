/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The seed bundle: what a run gets of the operator's repository.
 *
 * Everything here runs with the caller's own rights and in the caller's own process; no daemon ever opens
 * the repository. The repository itself may not deserve trust (a clone of somebody's): git runs in it only to
 * say where its objects are and which commit a name means, with every configuration file but the
 * repository's own switched off, hooks and fsmonitor disabled, no protocol allowed and no lazy fetch, so
 * that nothing of it is executed. The bundle is then made in a bare repository of our own with an empty
 * configuration, which only borrows the objects.
 *
 * The bundle has one reference, refs/anchorhold/base, and is a file without a name.
 */

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/ctl-format.h"
#include "util/io.h"
#include "util/text.h"

enum {
        GIT_OUTPUT_MAX = 64 * 1024,
        GIT_ERROR_MAX = 4 * 1024,
        ARGS_MAX = 24,
        TICK_MSEC = 500,
};

#define SEED_REF "refs/anchorhold/base"

static volatile sig_atomic_t seed_interrupted;

static void seed_on_signal(int signal_number) {
        seed_interrupted = 1;
}

/* ---- git ---- */

static const char *const git_environment[] = {
        "HOME=/nonexistent",
        "LANG=C.UTF-8",
        "GIT_CONFIG_NOSYSTEM=1",
        "GIT_CONFIG_SYSTEM=/dev/null",
        "GIT_CONFIG_GLOBAL=/dev/null",
        "GIT_ATTR_NOSYSTEM=1",
        "GIT_TERMINAL_PROMPT=0",
        "GIT_OPTIONAL_LOCKS=0",
        "GIT_NO_LAZY_FETCH=1",
        "GIT_NO_REPLACE_OBJECTS=1",
        "GIT_ALLOW_PROTOCOL=none",
        "GIT_PAGER=cat",
        NULL,
};

static const char *scratch_folder(const char *usual) {
        const char *folder = getenv("TMPDIR");

        return folder && *folder == '/' ? folder : usual;
}

/* An open file without a name, on disk. */
static int unnamed_file(void) {
        const char *folder = scratch_folder("/var/tmp");
        int fd;

        fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0)
                fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        return fd < 0 ? -errno : fd;
}

static int spawn_git(const char *const *args, int out_fd, int err_fd, pid_t *ret) {
        const char *environment[ELEMENTSOF(git_environment) + 1], *path;
        _cleanup_free_ char *path_entry = NULL;
        posix_spawn_file_actions_t actions;
        const char *argv[ARGS_MAX + 8] = {
                "git", "--no-pager", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null",
        };
        size_t n = 8;
        int r;

        for (size_t i = 0; args[i] && n < ELEMENTSOF(argv) - 1; i++)
                argv[n++] = args[i];
        argv[n] = NULL;

        path = getenv("PATH") ?: "/usr/local/bin:/usr/bin:/bin";
        path_entry = text_format("PATH=%s", path);
        if (!path_entry)
                return -ENOMEM;
        memcpy(environment, git_environment, sizeof(git_environment));
        environment[ELEMENTSOF(git_environment) - 1] = path_entry;
        environment[ELEMENTSOF(git_environment)] = NULL;

        r = posix_spawn_file_actions_init(&actions);
        if (r != 0)
                return -r;
        /* whatever folder the caller is in has no say: the repositories are named by absolute paths */
        r = posix_spawn_file_actions_addchdir_np(&actions, "/");
        if (r == 0)
                r = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, err_fd, STDERR_FILENO);
        if (r == 0)
                r = posix_spawnp(ret, "git", &actions, NULL, (char **) argv, (char **) environment);
        (void) posix_spawn_file_actions_destroy(&actions);
        /* other things that are not there are no reason to look for git */
        return r == ENOENT ? -ENOPKG : -r;
}

/* Waits, showing how far it is. The exit status, or negative errno. */
static int wait_git(Ctl *ctl, pid_t pid, const char *what, int out_fd) {
        _cleanup_fd_ int pidfd = pidfd_open(pid, 0);
        bool begun = ctl_activity_begin(ctl, what);
        int status;

        while (pidfd >= 0) {
                struct pollfd p = { .fd = pidfd, .events = POLLIN };
                char size[CTL_TEXT_SIZE];
                struct stat st = {};
                int n;

                n = poll(&p, 1, TICK_MSEC);
                if (seed_interrupted) {
                        (void) kill(pid, SIGTERM);
                        break;
                }
                if (n > 0)
                        break;
                (void) fstat(out_fd, &st);
                if (st.st_size > 0)
                        ctl_progress(ctl, "%s, %s", what, format_size((uint64_t) st.st_size, size));
                else
                        ctl_activity_goes_on(ctl);
        }

        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR) {
                        status = -errno;
                        break;
                }
        ctl_activity_end(ctl, begun);
        if (status < 0)
                return status;
        if (seed_interrupted)
                return -EINTR;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -ECHILD;
}

/* What git complained about, in one line without its own prefix; the caller's. */
static char *complaint(int err_fd) {
        _cleanup_free_ char *text = NULL;
        const char *start;
        size_t size;

        if (lseek(err_fd, 0, SEEK_SET) < 0 || io_read_fd(err_fd, GIT_ERROR_MAX, &text, &size) < 0)
                return strdup("git failed");

        start = strstr(text, "fatal: ");
        start = start ? start + strlen("fatal: ") : text;
        return strndup(*start ? start : "git failed", strcspn(*start ? start : "git failed", "\n"));
}

/* Runs git with output to a file. 0; 1 when it failed, with its complaint; negative errno. */
static int run_git(Ctl *ctl, const char *what, int out_fd, char **ret_complaint, const char *const *args) {
        _cleanup_fd_ int err_fd = unnamed_file();
        pid_t pid;
        int r;

        if (err_fd < 0)
                return err_fd;
        r = spawn_git(args, out_fd, err_fd, &pid);
        if (r < 0)
                return r;
        r = wait_git(ctl, pid, what, out_fd);
        if (r <= 0)
                return r;

        if (ret_complaint) {
                *ret_complaint = complaint(err_fd);
                if (!*ret_complaint)
                        return -ENOMEM;
        }
        return 1;
}

#define GIT(...) ((const char *const[]) { __VA_ARGS__, NULL })

/* The first line of what git prints. */
static int ask_git(Ctl *ctl, char **ret, char **ret_complaint, const char *const *args) {
        _cleanup_free_ char *text = NULL;
        _cleanup_fd_ int out_fd = unnamed_file();
        size_t size;
        int r;

        if (out_fd < 0)
                return out_fd;
        r = run_git(ctl, "Reading the repository", out_fd, ret_complaint, args);
        if (r != 0)
                return r;

        if (lseek(out_fd, 0, SEEK_SET) < 0)
                return -errno;
        r = io_read_fd(out_fd, GIT_OUTPUT_MAX, &text, &size);
        if (r < 0)
                return r;
        text[strcspn(text, "\n")] = '\0';
        *ret = TAKE_PTR(text);
        return 0;
}

/* ---- the temporary repository ---- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        (void) remove(path);
        return 0;
}

static void scratch_removep(char **path) {
        if (*path) {
                (void) nftw(*path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
                free(*path);
        }
        *path = NULL;
}

static int make_scratch(char **ret) {
        _cleanup_free_ char *path = NULL;

        path = text_format("%s/anchorctl-XXXXXX", scratch_folder("/tmp"));
        if (!path)
                return -ENOMEM;
        if (!mkdtemp(path))
                return -errno;

        *ret = TAKE_PTR(path);
        return 0;
}

static int borrow_objects(const char *scratch, const char *objects) {
        _cleanup_free_ char *path = NULL, *line = NULL;

        if (strchr(objects, '\n') || objects[0] != '/')
                return -EINVAL;
        path = text_format("%s/objects/info/alternates", scratch);
        line = text_format("%s\n", objects);
        if (!path || !line)
                return -ENOMEM;

        return io_write_file_atomic(AT_FDCWD, path, line, strlen(line), 0600);
}

static int make_bundle(Ctl *ctl, const char *scratch, const char *objects, const char *format, const char *commit, int *ret_fd, char **ret_complaint) {
        _cleanup_free_ char *git_dir = NULL, *object_format = NULL;
        _cleanup_fd_ int fd = -1, null_fd = -1;
        int r;

        null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (null_fd < 0)
                return -errno;
        git_dir = text_format("--git-dir=%s", scratch);
        object_format = text_format("--object-format=%s", format);
        if (!git_dir || !object_format)
                return -ENOMEM;

        r = run_git(ctl, "Preparing", null_fd, ret_complaint,
                    GIT("init", "--quiet", "--bare", "--template=", "--initial-branch=none", object_format, "--", scratch));
        if (r != 0)
                return r;
        r = borrow_objects(scratch, objects);
        if (r < 0)
                return r;
        r = run_git(ctl, "Preparing", null_fd, ret_complaint, GIT(git_dir, "update-ref", SEED_REF, commit));
        if (r != 0)
                return r;

        fd = unnamed_file();
        if (fd < 0)
                return fd;
        r = run_git(ctl, "Packing the repository", fd, ret_complaint,
                    GIT(git_dir, "-c", "pack.threads=0", "bundle", "create", "--quiet", "-", SEED_REF));
        if (r != 0)
                return r;
        if (lseek(fd, 0, SEEK_SET) < 0)
                return -errno;

        *ret_fd = TAKE_FD(fd);
        return 0;
}

/* ---- the repository ---- */

/* Git takes a repository that it may not read for none. 0 or negative errno. */
static int may_read(const char *repo) {
        static const char *const parts[] = { "", "/.git", "/objects", "/.git/objects" };

        for (size_t i = 0; i < ELEMENTSOF(parts); i++) {
                _cleanup_free_ char *path = text_format("%s%s", repo, parts[i]);

                if (!path)
                        return -ENOMEM;
                if (faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) < 0 && (errno == EACCES || errno == EPERM || i == 0))
                        return -errno;
        }
        return 0;
}

/* Says what is wrong for r of run_git(): 1 with git's complaint, or negative errno. */
static CtlExit seed_failed(Ctl *ctl, const char *repo, int r, const char *reason, CtlExit status) {
        if (r == -EINTR) {
                ctl_error(ctl, "Interrupted.");
                return CTL_INTERRUPTED;
        }
        if (r == -ENOPKG) {
                ctl_error(ctl, "Cannot run git: it is not installed, or not in $PATH.");
                return CTL_FAILED;
        }
        ctl_error(ctl, "Cannot read the repository %s: %s", repo, reason ?: strerror(-r));
        if (r < 0)
                return ctl_exit_of_errno(r);
        return reason && strstr(reason, strerror(EACCES)) ? CTL_REFUSED : status;
}

static CtlExit find_commit(Ctl *ctl, const char *repo, const char *base, char **ret) {
        _cleanup_free_ char *spec = NULL, *reason = NULL, *commit = NULL;
        int r;

        if (base && (*base == '\0' || *base == '-'))
                return ctl_usage(ctl, "--base= takes a commit, not \"%s\".", base);

        spec = text_format("%s^{commit}", base ?: "HEAD");
        if (!spec)
                return seed_failed(ctl, repo, -ENOMEM, NULL, CTL_FAILED);

        r = ask_git(ctl, &commit, &reason, GIT("-C", repo, "rev-parse", "--verify", "--quiet", "--end-of-options", spec));
        if (r == 1) {
                if (base)
                        ctl_error(ctl, "There is no commit \"%s\" in %s.", base, repo);
                else
                        ctl_error(ctl, "There is no commit in %s yet.", repo);
                return CTL_NOT_FOUND;
        }
        if (r < 0 || !text_is_commit(commit))
                return seed_failed(ctl, repo, r < 0 ? r : -EBADMSG, NULL, CTL_FAILED);

        *ret = TAKE_PTR(commit);
        return CTL_OK;
}

static CtlExit seed_make(Ctl *ctl, const char *path, const char *base, int *ret_fd, char **ret_commit) {
        _cleanup_free_ char *repo = NULL, *objects = NULL, *shallow = NULL, *format = NULL, *commit = NULL, *reason = NULL;
        _cleanup_(scratch_removep) char *scratch = NULL;
        _cleanup_fd_ int fd = -1;
        CtlExit status;
        int r;

        repo = realpath(path, NULL);
        r = repo ? may_read(repo) : -errno;
        if (r < 0) {
                ctl_error(ctl, "Cannot read the repository %s: %s", path, strerror(-r));
                return ctl_exit_of_errno(r);
        }

        r = ask_git(ctl, &objects, &reason, GIT("-C", repo, "rev-parse", "--path-format=absolute", "--git-path", "objects"));
        if (r != 0)
                return seed_failed(ctl, repo, r, reason, CTL_NOT_FOUND);
        r = ask_git(ctl, &format, &reason, GIT("-C", repo, "rev-parse", "--show-object-format"));
        if (r == 0)
                r = ask_git(ctl, &shallow, &reason, GIT("-C", repo, "rev-parse", "--is-shallow-repository"));
        if (r != 0)
                return seed_failed(ctl, repo, r, reason, CTL_FAILED);
        if (strcmp(shallow, "true") == 0) {
                ctl_error(ctl, "The repository %s is shallow, and a bundle needs its whole history: \"git fetch --unshallow\" gets it.", repo);
                return CTL_FAILED;
        }

        status = find_commit(ctl, repo, base, &commit);
        if (status != CTL_OK)
                return status;

        r = make_scratch(&scratch);
        if (r < 0) {
                ctl_error(ctl, "Cannot make a folder in %s, for the bundle of the repository: %s", scratch_folder("/tmp"), strerror(-r));
                return r == -EACCES ? CTL_REFUSED : CTL_FAILED;
        }
        r = make_bundle(ctl, scratch, objects, format, commit, &fd, &reason);
        if (r != 0)
                return seed_failed(ctl, repo, r, reason, CTL_FAILED);

        *ret_fd = TAKE_FD(fd);
        *ret_commit = TAKE_PTR(commit);
        return CTL_OK;
}

CtlExit ctl_seed_make(Ctl *ctl, const char *repo, const char *base, int *ret_fd, char **ret_commit) {
        struct sigaction action = { .sa_handler = seed_on_signal }, old_int, old_term;
        CtlExit status;

        /* so that the temporary repository goes with us */
        seed_interrupted = 0;
        (void) sigaction(SIGINT, &action, &old_int);
        (void) sigaction(SIGTERM, &action, &old_term);
        status = seed_make(ctl, repo, base, ret_fd, ret_commit);
        (void) sigaction(SIGINT, &old_int, NULL);
        (void) sigaction(SIGTERM, &old_term, NULL);

        return status;
}
