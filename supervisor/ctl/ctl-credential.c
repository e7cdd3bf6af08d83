/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * credential add, rotate, remove, list: the values of this host.
 *
 * Order of a change: the new file is encrypted and read back; the change is on record; the file is replaced (fsync, rename); secretd
 * starts anew; every run that has the credential has taken it. After a failure the one before holds, or the message
 * says what is half done. Who changes one at a time: the folder is locked meanwhile.
 *
 * A value comes from standard input, from a terminal without echo, or from a file. No option takes one, since anybody may read
 * command lines.
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "audit/audit.h"
#include "ctl/ctl-credential.h"
#include "ctl/ctl-egress.h"
#include "ctl/ctl-table.h"
#include "secret/credential-store.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

enum { LOGIN_UNSET = 4294967295 };

/* ---- a value ---- */

static volatile sig_atomic_t ended_by;

static void on_key(int sig) {
        ended_by = sig;
}

/*
 * One line of a terminal that does not show it. A signal that ends us ends us once the terminal is as it was; SIGTSTP waits so long.
 * Bytes, or negative errno: -EINTR if `ended_by` says why.
 */
static ssize_t read_hidden(const struct termios *shown, char *line, size_t size) {
        static const int ends[] = { SIGINT, SIGQUIT, SIGTERM, SIGHUP };
        const struct sigaction act = { .sa_handler = on_key };
        struct sigaction acts[ELEMENTSOF(ends)];
        struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
        struct termios hidden = *shown;
        sigset_t blocked, before, waiting;
        ssize_t n;

        sigemptyset(&blocked);
        sigaddset(&blocked, SIGTSTP);
        for (size_t i = 0; i < ELEMENTSOF(ends); i++)
                sigaddset(&blocked, ends[i]);
        (void) sigprocmask(SIG_BLOCK, &blocked, &before);
        for (size_t i = 0; i < ELEMENTSOF(ends); i++)
                (void) sigaction(ends[i], &act, &acts[i]);
        waiting = before;
        sigaddset(&waiting, SIGTSTP);

        hidden.c_lflag &= ~(tcflag_t) (ECHO | ECHOE | ECHOK);
        hidden.c_lflag |= ECHONL;
        (void) tcsetattr(STDIN_FILENO, TCSAFLUSH, &hidden);
        n = ppoll(&p, 1, NULL, &waiting) < 0 ? -1 : read(STDIN_FILENO, line, size);
        if (n < 0)
                n = -errno;
        (void) tcsetattr(STDIN_FILENO, TCSAFLUSH, shown);

        for (size_t i = 0; i < ELEMENTSOF(ends); i++)
                (void) sigaction(ends[i], &acts[i], NULL);
        (void) sigprocmask(SIG_SETMASK, &before, NULL);
        return n;
}

static CtlExit read_from_terminal(Ctl *ctl, const char *name, Secret **ret) {
        char line[4096]; /* a terminal gives no longer one */
        struct termios shown;
        ssize_t n;
        int r;

        if (tcgetattr(STDIN_FILENO, &shown) < 0) {
                ctl_error(ctl, "Cannot ask for the value: %s", strerror(errno));
                return CTL_FAILED;
        }

        (void) fprintf(ctl->err, "Value of %s : ", name);
        (void) fflush(ctl->err);
        n = read_hidden(&shown, line, sizeof(line));
        if (n == -EINTR && ended_by) {
                (void) raise(ended_by);
                return CTL_FAILED; /* it was ignored by whoever started us */
        }
        r = n < 0 ? (int) n : n == 0 ? -ENODATA : secret_new(ret, line, (size_t) n);
        explicit_bzero(line, sizeof(line));
        if (r < 0) {
                ctl_error(ctl, "Cannot read the value: %s", r == -ENODATA ? "nothing was given" : strerror(-r));
                return CTL_FAILED;
        }
        return CTL_OK;
}

static CtlExit read_value(Ctl *ctl, const char *name, Secret **ret) {
        const char *from = ctl->o.from && strcmp(ctl->o.from, "-") != 0 ? ctl->o.from : NULL, *wrong = NULL;
        _cleanup_(secret_freep) Secret *value = NULL;
        _cleanup_fd_ int fd = -1;
        int r;

        if (!from && isatty(STDIN_FILENO)) {
                CtlExit e = read_from_terminal(ctl, name, &value);

                if (e != CTL_OK)
                        return e;
                r = 0;
        } else {
                fd = from ? open(from, O_RDONLY | O_CLOEXEC | O_NOCTTY) : STDIN_FILENO;
                r = fd < 0 ? -errno : secret_read_fd(&value, fd);
                if (!from)
                        TAKE_FD(fd);
        }
        if (r >= 0)
                r = credential_value_take(&value, &wrong);
        if (r < 0 || wrong) {
                ctl_error(ctl, "Cannot take the value from %s: %s", from ?: "standard input",
                          wrong ?: r == -ENODATA ? "it is empty" : strerror(-r));
                return r < 0 && ctl_exit_of_errno(r) != CTL_FAILED ? ctl_exit_of_errno(r) : CTL_USAGE;
        }
        *ret = TAKE_PTR(value);
        return CTL_OK;
}

/* ---- a change ---- */

/* Who it is, beyond the uid that auditd sees: the user who logged in, as the kernel keeps it through sudo and su. */
static json_t *describe_change(const char *name) {
        json_t *data = json_pack("{s:s}", "credential", name);
        _cleanup_free_ char *text = NULL;
        unsigned long login = LOGIN_UNSET;
        const char *sudo = getenv("SUDO_USER");
        size_t size;

        if (io_read_file(AT_FDCWD, "/proc/self/loginuid", 32, &text, &size) >= 0)
                login = strtoul(text, NULL, 10);
        if (data && login != LOGIN_UNSET)
                (void) json_object_set_new(data, "login_uid", json_integer((json_int_t) login));
        if (data && sudo && *sudo)
                (void) json_object_set_new(data, "sudo_user", json_string(sudo));
        return data;
}

static CtlExit record(Ctl *ctl, const char *event, const char *name) {
        int r;

        r = audit_append_sync(event, NULL, NULL, NULL, describe_change(name));
        if (r >= 0)
                return CTL_OK;
        ctl_error(ctl, "Nothing is changed, because the audit log does not take the record: %s", strerror(-r));
        return CTL_FAILED;
}

/* The folder, locked as long as it is open. */
static CtlExit open_folder(Ctl *ctl, int *ret) {
        _cleanup_fd_ int fd = -1;

        if (geteuid() != 0) {
                ctl_error(ctl, "Only root may change credentials.");
                return CTL_REFUSED;
        }
        if (secret_protect_process() < 0) {
                ctl_error(ctl, "Cannot keep the value out of core dumps and swap: %s", strerror(errno));
                return CTL_FAILED;
        }
        fd = open(CREDENTIAL_FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || flock(fd, LOCK_EX) < 0) {
                ctl_error(ctl, "Cannot open " CREDENTIAL_FOLDER ": %s", strerror(errno));
                return CTL_FAILED;
        }
        *ret = TAKE_FD(fd);
        return CTL_OK;
}

static CtlExit check_name(Ctl *ctl, const char *name) {
        if (text_is_name(name))
                return CTL_OK;
        return ctl_usage(ctl, "\"%s\" is no credential's name: those are a small letter, then at most 62 of a-z, 0-9 and \"-\".", name);
}

static void note_policy(Ctl *ctl, const char *name) {
        _cleanup_(ctl_policy_done) CtlPolicy l = {};
        const char *why = NULL;

        if (policy_load(&l.policy, "", NULL, NULL) >= 0 && !policy_find_credential(l.policy, name, &why))
                ctl_note(ctl, "No run can use it before /etc/anchorhold/policy/credentials/%s.json says where it belongs (%s).", name, why ?: "it does not load");
}

static CtlExit tell(Ctl *ctl, const char *name, const char *done, const char *one, const char *more) {
        size_t n_runs = 0;
        CtlExit e;

        e = ctl_credential_tell(ctl, name, &n_runs);
        if (e != CTL_OK)
                return e;
        if (n_runs > 0)
                ctl_note(ctl, "%s is %s. %zu run%s %s.", name, done, n_runs, n_runs == 1 ? "" : "s", n_runs == 1 ? one : more);
        else
                ctl_note(ctl, "%s is %s.", name, done);
        return CTL_OK;
}

static CtlExit put(Ctl *ctl, bool anew) {
        const char *name = ctl->o.args[1];
        _cleanup_(secret_freep) Secret *value = NULL;
        _cleanup_free_ char *data = NULL;
        _cleanup_fd_ int folder = -1;
        struct stat st;
        size_t size;
        bool exists;
        CtlExit e;
        int r;

        if ((e = check_name(ctl, name)) != CTL_OK || (e = open_folder(ctl, &folder)) != CTL_OK)
                return e;
        exists = fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
        if (exists && !anew) {
                ctl_error(ctl, "There is a value for %s already. \"anchorctl credential rotate %s\" replaces it.", name, name);
                return CTL_CONFLICT;
        }
        if (!exists && anew) {
                ctl_error(ctl, "There is no value for %s. \"anchorctl credential add %s\" adds one.", name, name);
                return CTL_NOT_FOUND;
        }

        if ((e = read_value(ctl, name, &value)) != CTL_OK || (e = ctl_credential_encrypt(ctl, name, value, &data, &size)) != CTL_OK ||
            (e = record(ctl, anew ? "credential.rotated" : "credential.added", name)) != CTL_OK)
                return e;
        r = io_write_file_atomic(folder, name, data, size, 0600);
        if (r < 0) {
                ctl_error(ctl, "Cannot write " CREDENTIAL_FOLDER "/%s: %s", name, strerror(-r));
                return CTL_FAILED;
        }

        e = tell(ctl, name, anew ? "rotated" : "added", "uses the new value from now on", "use the new value from now on");
        if (e == CTL_OK && !anew)
                note_policy(ctl, name);
        return e;
}

CtlExit ctl_verb_credential_add(Ctl *ctl) {
        return put(ctl, false);
}

CtlExit ctl_verb_credential_rotate(Ctl *ctl) {
        return put(ctl, true);
}

CtlExit ctl_verb_credential_remove(Ctl *ctl) {
        const char *name = ctl->o.args[1];
        _cleanup_fd_ int folder = -1;
        struct stat st;
        CtlExit e;

        if ((e = check_name(ctl, name)) != CTL_OK || (e = open_folder(ctl, &folder)) != CTL_OK)
                return e;
        if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
                ctl_error(ctl, "There is no value for %s.", name);
                return CTL_NOT_FOUND;
        }
        e = record(ctl, "credential.removed", name);
        if (e != CTL_OK)
                return e;
        if (unlinkat(folder, name, 0) < 0 || fsync(folder) < 0) {
                ctl_error(ctl, "Cannot remove " CREDENTIAL_FOLDER "/%s: %s", name, strerror(errno));
                return CTL_FAILED;
        }
        return tell(ctl, name, "removed", "lost it", "lost it");
}

/* ---- list ---- */

/* What the policy files say of it; in a workflow's name who may use it. */
static json_t *describe_policy(const Policy *policy, const char *name) {
        const PolicyCredential *c = policy_find_credential(policy, name, NULL);
        json_t *entry = json_pack("{s:s, s:s?, s:O?, s:O?}", "name", name, "kind", c ? c->kind : NULL, "hosts", c ? c->hosts : NULL,
                                  "ports", c ? c->ports : NULL),
               *workflows = json_array();
        const char *const *names;
        size_t n = policy_list(policy, "workflows", &names);

        for (size_t i = 0; i < n; i++) {
                const PolicyWorkflow *w = policy_find_workflow(policy, names[i], NULL);

                for (size_t k = 0; w && k < json_array_size(w->credentials); k++)
                        if (strcmp(json_string_value(json_array_get(w->credentials, k)), name) == 0)
                                (void) json_array_append_new(workflows, json_string(names[i]));
        }
        (void) json_object_set_new(entry, "workflows", workflows);
        return entry;
}

/* Is there a value, and since when? Names and times are no secret: anybody may look into the folder. */
static void describe_value(json_t *entry, int folder, const char *name) {
        char time[TIME_TEXT_SIZE];
        struct stat st;
        bool exists = folder >= 0 && fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0;

        if (exists)
                text_time((uint64_t) st.st_mtim.tv_sec * 1000000 + (uint64_t) st.st_mtim.tv_nsec / 1000, time);
        (void) json_object_set_new(entry, "value", json_boolean(exists));
        (void) json_object_set_new(entry, "set", exists ? json_string(time) : json_null());
}

static bool has_entry(const json_t *list, const char *name) {
        for (size_t i = 0; i < json_array_size(list); i++)
                if (strcmp(ctl_string(json_array_get(list, i), "name"), name) == 0)
                        return true;
        return false;
}

/* Those that policy names, then values that it does not. */
static CtlExit collect(Ctl *ctl, const Policy *policy, json_t *list) {
        _cleanup_dir_ DIR *dir = opendir(CREDENTIAL_FOLDER);
        int folder = dir ? dirfd(dir) : -1;
        const char *const *names;
        size_t n = policy_list(policy, "credentials", &names);
        struct dirent *d;

        if (!dir && errno != ENOENT) {
                ctl_error(ctl, "Cannot look into " CREDENTIAL_FOLDER ": %s", strerror(errno));
                return ctl_exit_of_errno(-errno);
        }
        for (size_t i = 0; i < n; i++)
                (void) json_array_append_new(list, describe_policy(policy, names[i]));
        while (dir && (d = readdir(dir)))
                if (text_is_name(d->d_name) && !has_entry(list, d->d_name))
                        (void) json_array_append_new(list, describe_policy(policy, d->d_name));
        for (size_t i = 0; i < json_array_size(list); i++)
                describe_value(json_array_get(list, i), folder, ctl_string(json_array_get(list, i), "name"));
        return CTL_OK;
}

/* One item that runs: it is a user of every credential of its workflow. */
static CtlExit list_on_item(Ctl *ctl, json_t *params, void *userdata) {
        const json_t *item = json_object_get(params, "item");
        const char *workflow = ctl_string(item, "workflow"), *id = ctl_string(item, "id");
        json_t *list = userdata;

        for (size_t i = 0; workflow && id && i < json_array_size(list); i++) {
                json_t *entry = json_array_get(list, i);
                const json_t *workflows = json_object_get(entry, "workflows");

                for (size_t k = 0; k < json_array_size(workflows); k++)
                        if (strcmp(json_string_value(json_array_get(workflows, k)), workflow) == 0)
                                (void) json_array_append_new(json_object_get(entry, "items"), json_string(id));
        }
        return CTL_OK;
}

static char *used_by(const json_t *entry) {
        _cleanup_free_ char *workflows = ctl_join(json_object_get(entry, "workflows"));
        size_t n = json_array_size(json_object_get(entry, "items"));

        if (!workflows)
                return NULL;
        if (!*workflows)
                return strdup("-");
        return n > 0 ? text_format("%s (%zu running)", workflows, n) : strdup(workflows);
}

static int list_row(Table *t, const json_t *entry) {
        _cleanup_free_ char *hosts = ctl_join(json_object_get(entry, "hosts")), *users = used_by(entry);
        const char *set = ctl_string(entry, "set");
        int r;

        if ((r = table_add(t, ctl_string(entry, "name"))) < 0 || (r = table_add(t, ctl_string(entry, "kind"))) < 0 ||
            (r = table_add(t, json_is_true(json_object_get(entry, "value")) ? "yes" : "no")) < 0 || (r = table_add(t, set)) < 0 ||
            (r = table_add(t, hosts && *hosts ? hosts : NULL)) < 0)
                return r;
        return table_add(t, users);
}

static CtlExit print_list(Ctl *ctl, const json_t *list) {
        static const char *const titles[] = { "NAME", "KIND", "VALUE", "SET", "HOSTS", "USED BY", NULL };
        _cleanup_(table_freep) Table *t = NULL;
        int r;

        r = table_new(&t, titles);
        for (size_t i = 0; r >= 0 && i < json_array_size(list); i++)
                r = list_row(t, json_array_get(list, i));
        if (r < 0)
                return ctl_report(ctl, "list credentials", r, NULL, NULL);
        ctl_pager_open(ctl);
        table_print(t, ctl->out, ctl->columns, !ctl->o.no_legend);
        return CTL_OK;
}

CtlExit ctl_verb_credential_list(Ctl *ctl) {
        _cleanup_(ctl_policy_done) CtlPolicy l = {};
        _cleanup_json_ json_t *list = json_array();
        CtlExit e;

        e = list ? ctl_policy_load(ctl, &l) : CTL_FAILED;
        if (e == CTL_OK)
                e = collect(ctl, l.policy, list);
        for (size_t i = 0; i < json_array_size(list); i++)
                (void) json_object_set_new(json_array_get(list, i), "items", json_array());
        if (e == CTL_OK)
                e = ctl_call_more(ctl, "ask which items run", "List",
                                  json_pack("{s:[s,s,s]}", "states", "leased", "running", "waiting"), list_on_item, list);
        if (e != CTL_OK)
                return e;
        return ctl->o.json != CTL_JSON_OFF ? ctl_print_json(ctl, list) : print_list(ctl, list);
}
