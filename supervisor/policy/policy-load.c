/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Finding and reading the files of a policy set.
 *
 *   ROOT/usr/lib/anchorhold/policy/KIND/NAME.json   the vendor's
 *   ROOT/etc/anchorhold/policy/KIND/NAME.json       the operator's, wins by file name as a whole
 *   ROOT/{usr/lib,etc}/anchorhold/host.json, authority.json   likewise
 *
 * As elsewhere in systemd's world, an empty file, or a link to /dev/null, in /etc masks the vendor's
 * file of that name. Files whose names do not end in ".json", or begin with a dot, are ignored, so that
 * an editor's leavings do no harm.
 *
 * Objects are checked in the order of PolicyKind, so that whatever one refers to is known when it is
 * checked. An object with a finding cannot be used, nor can one that names it; the finding is reported
 * once, at its own file. The whole set is immutable after loading: a daemon that wants the files' new
 * state loads a new set and keeps the old one for the runs that were frozen under it.
 */

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "policy/policy-internal.h"
#include "util/io.h"
#include "util/json.h"

static const struct {
        const char *folder;
        void (*check)(Policy *p, PolicyObject *o);
} kinds[_POLICY_KINDS] = {
        [POLICY_PROVIDERS] = { "providers", policy_check_provider },
        [POLICY_CREDENTIALS] = { "credentials", policy_check_credential },
        [POLICY_EGRESS] = { "egress", policy_check_egress },
        [POLICY_HARNESS] = { "harness", policy_check_harness },
        [POLICY_WORKFLOWS] = { "workflows", policy_check_workflow },
};

const char *policy_kind_folder(PolicyKind kind) {
        return kinds[kind].folder;
}

/* The operator's first. */
static const char *const trees[] = { POLICY_OPERATOR_DIR, POLICY_VENDOR_DIR };

/* ---- folders ---- */

/* Takes the text over. */
static void parse_object(Policy *p, PolicyObject *o, char *data, size_t size) {
        _cleanup_free_ char *reason = NULL;
        int r;

        assert(o);

        o->text = data;
        o->text_size = size;
        r = json_parse(data, size, &o->document, &reason);
        if (r == -ENOMEM)
                p->out_of_memory = true;
        else if (r < 0)
                policy_add_finding(p, o, "", reason ?: "is not JSON");
}

/* Reads and parses o->file. A masked file is left without document and without finding. */
static void read_object(Policy *p, PolicyObject *o, size_t max) {
        _cleanup_free_ char *data = NULL, *reason = NULL;
        struct stat st;
        size_t size;
        int r;

        r = stat(o->file, &st) < 0 ? -errno : 0;
        if (r == 0) {
                if (st.st_size == 0 && (S_ISREG(st.st_mode) || S_ISCHR(st.st_mode)))
                        return;
                r = S_ISREG(st.st_mode) ? io_read_file(AT_FDCWD, o->file, max, &data, &size) : -EINVAL;
        }
        switch (r) {
        case 0:
                break;
        case -ENOMEM:
                p->out_of_memory = true;
                return;
        case -EFBIG:
                policy_add_finding(p, o, "", max > POLICY_FILE_MAX ? "is larger than 64M" : "is larger than 1M");
                return;
        case -EINVAL:
                policy_add_finding(p, o, "", "is not a regular file");
                return;
        default:
                reason = text_format("cannot be read: %s", strerror(-r));
                policy_add_finding(p, o, "", reason ?: "cannot be read");
                return;
        }

        parse_object(p, o, TAKE_PTR(data), size);
}

/* "NAME.json" → NAME; NULL for files that are none of ours. */
static char *name_of_file(const char *file) {
        size_t n = strlen(file);

        if (file[0] == '.' || n <= strlen(".json") || strcmp(file + n - strlen(".json"), ".json") != 0)
                return NULL;
        return strndup(file, n - strlen(".json"));
}

static int add_object(Policy *p, PolicyKind kind, const char *name, const char *file, PolicyObject **ret) {
        _cleanup_(policy_object_freep) PolicyObject *o = NULL;
        PolicyObject **grown;
        int r;

        r = policy_object_new(&o, kinds[kind].folder, name, file);
        if (r < 0)
                return r;

        grown = reallocarray(p->objects[kind], p->n_objects[kind] + 1, sizeof(*grown));
        if (!grown)
                return -ENOMEM;
        p->objects[kind] = grown;

        *ret = o;
        p->objects[kind][p->n_objects[kind]++] = TAKE_PTR(o);
        return 0;
}

static int add_file(Policy *p, PolicyKind kind, const char *path, const char *file) {
        _cleanup_free_ char *name = NULL, *full = NULL;
        PolicyObject *o;
        int r;

        name = name_of_file(file);
        if (!name)
                return 0;

        full = text_format("%s/%s", path, file);
        if (!full)
                return -ENOMEM;

        if (!text_is_name(name)) {
                policy_add_file_finding(p, full, "", "the file's name must be a lower-case letter, then at most 62 letters, digits and dashes, then \".json\"", 0);
                return 0;
        }
        if (policy_find_unsorted(p, kind, name))
                return 0; /* the operator's wins */
        if (p->n_objects[kind] >= POLICY_FILES_MAX) {
                policy_add_file_finding(p, full, "", "there are too many files of this kind", 0);
                return 0;
        }

        r = add_object(p, kind, name, full, &o);
        if (r < 0)
                return r;

        read_object(p, o, kind == POLICY_EGRESS ? POLICY_EGRESS_FILE_MAX : POLICY_FILE_MAX);
        return p->out_of_memory ? -ENOMEM : 0;
}

static int open_folder(const char *path, DIR **ret) {
        *ret = opendir(path);
        if (!*ret)
                return errno == ENOENT ? 0 : -errno;
        return 0;
}

static int scan_kind(Policy *p, PolicyKind kind, const char *root, const char *tree) {
        _cleanup_free_ char *path = NULL;
        _cleanup_dir_ DIR *d = NULL;
        int r;

        path = text_format("%s%s/policy/%s", root, tree, kinds[kind].folder);
        if (!path)
                return -ENOMEM;

        r = open_folder(path, &d);
        if (r < 0 || !d)
                return r;

        for (;;) {
                struct dirent *de;

                errno = 0;
                de = readdir(d);
                if (!de)
                        return -errno;

                r = add_file(p, kind, path, de->d_name);
                if (r < 0)
                        return r;
        }
}

/* A folder that is no kind would be ignored silently: say so. */
static int scan_stray(Policy *p, const char *root, const char *tree) {
        _cleanup_free_ char *path = NULL;
        _cleanup_dir_ DIR *d = NULL;
        struct dirent *de;
        int r;

        path = text_format("%s%s/policy", root, tree);
        if (!path)
                return -ENOMEM;

        r = open_folder(path, &d);
        if (r < 0 || !d)
                return r;

        while ((de = readdir(d))) {
                _cleanup_free_ char *full = NULL;
                size_t k;

                if (de->d_name[0] == '.' || strcmp(de->d_name, "schema") == 0)
                        continue;
                for (k = 0; k < _POLICY_KINDS; k++)
                        if (strcmp(kinds[k].folder, de->d_name) == 0)
                                break;
                if (k < _POLICY_KINDS)
                        continue;

                full = text_format("%s/%s", path, de->d_name);
                if (!full)
                        return -ENOMEM;
                policy_add_file_finding(p, full, "", "is no kind of policy: egress, credentials, harness, workflows or providers", 0);
        }

        return 0;
}

/* Drops what is masked, sorts, and lists the names. */
static int settle_kind(Policy *p, PolicyKind kind) {
        size_t n = 0;

        for (size_t i = 0; i < p->n_objects[kind]; i++) {
                PolicyObject *o = p->objects[kind][i];

                if (o->document || o->reason)
                        p->objects[kind][n++] = o;
                else
                        policy_object_free(o);
        }
        p->n_objects[kind] = n;
        if (n == 0)
                return 0;

        qsort(p->objects[kind], n, sizeof(*p->objects[kind]), policy_compare_objects);

        p->names[kind] = calloc(n, sizeof(*p->names[kind]));
        if (!p->names[kind])
                return -ENOMEM;
        for (size_t i = 0; i < n; i++)
                p->names[kind][i] = p->objects[kind][i]->name;
        return 0;
}

static int check_kind(Policy *p, PolicyKind kind) {
        int r;

        r = settle_kind(p, kind);
        if (r < 0)
                return r;

        for (size_t i = 0; i < p->n_objects[kind]; i++)
                if (p->objects[kind][i]->document)
                        kinds[kind].check(p, p->objects[kind][i]);

        return p->out_of_memory ? -ENOMEM : 0;
}

/* host.json and authority.json. */
static int load_single(Policy *p, const char *root, const char *name, PolicyObject **ret) {
        for (size_t t = 0; t < ELEMENTSOF(trees); t++) {
                _cleanup_(policy_object_freep) PolicyObject *o = NULL;
                _cleanup_free_ char *path = NULL;
                int r;

                path = text_format("%s%s/%s.json", root, trees[t], name);
                if (!path)
                        return -ENOMEM;
                if (access(path, F_OK) < 0 && errno == ENOENT)
                        continue;

                r = policy_object_new(&o, NULL, name, path);
                if (r < 0)
                        return r;

                read_object(p, o, POLICY_FILE_MAX);
                if (p->out_of_memory)
                        return -ENOMEM;
                if (o->document || o->reason)
                        *ret = TAKE_PTR(o);
                return 0;
        }

        return 0;
}

/* ---- the set ---- */

static int compare_findings(const void *a, const void *b) {
        const PolicyFinding *x = a, *y = b;
        int c;

        c = strcmp(x->file, y->file);
        return c != 0 ? c : strcmp(x->pointer, y->pointer);
}

static void forget_texts(Policy *p) {
        PolicyObject *singles[] = { p->host_file, p->authority };

        for (size_t k = 0; k < _POLICY_KINDS; k++)
                for (size_t i = 0; i < p->n_objects[k]; i++) {
                        free(p->objects[k][i]->text);
                        p->objects[k][i]->text = NULL;
                }
        for (size_t i = 0; i < ELEMENTSOF(singles); i++)
                if (singles[i]) {
                        free(singles[i]->text);
                        singles[i]->text = NULL;
                }
}

/* Everything is read: checks it, in the order in which objects refer to each other; egress refers to the host's networks. */
static int policy_check(Policy *p, PolicyFinding **ret_findings, size_t *ret_n_findings) {
        int r;

        if (p->host_file && p->host_file->document)
                policy_check_host(p, p->host_file);
        if (p->host_file && p->host_file->reason && (!p->host_file->document || json_object_get(p->host_file->document, "budget")))
                p->host.budget.month = (PolicyCaps) {}; /* there may be a cap, and nobody knows which */
        if (p->authority && p->authority->document)
                policy_check_authority(p, p->authority);
        for (PolicyKind k = 0; k < _POLICY_KINDS; k++) {
                r = check_kind(p, k);
                if (r < 0)
                        return r;
        }

        forget_texts(p);
        r = p->out_of_memory ? -ENOMEM : policy_digest_set(p);
        if (r < 0)
                return r;

        if (p->n_findings > 0)
                qsort(p->findings, p->n_findings, sizeof(*p->findings), compare_findings);
        if (p->n_warnings > 0)
                qsort(p->warnings, p->n_warnings, sizeof(*p->warnings), compare_findings);
        if (ret_findings) {
                *ret_findings = TAKE_PTR(p->findings);
                *ret_n_findings = p->n_findings;
                p->n_findings = 0;
        }
        return 0;
}

int policy_load(Policy **ret, const char *root, PolicyFinding **ret_findings, size_t *ret_n_findings) {
        _cleanup_(policy_freep) Policy *p = NULL;
        int r;

        r = policy_new(&p);
        if (r < 0)
                return r;

        for (size_t t = 0; t < ELEMENTSOF(trees); t++) {
                r = scan_stray(p, root, trees[t]);
                if (r < 0)
                        return r;
                for (PolicyKind k = 0; k < _POLICY_KINDS; k++) {
                        r = scan_kind(p, k, root, trees[t]);
                        if (r < 0)
                                return r;
                }
        }
        r = load_single(p, root, "host", &p->host_file);
        if (r >= 0)
                r = load_single(p, root, "authority", &p->authority);
        if (r >= 0)
                r = policy_check(p, ret_findings, ret_n_findings);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(p);
        return 0;
}

int policy_load_egress_file(Policy **ret, const char *root, const char *file, PolicyFinding **ret_findings, size_t *ret_n_findings) {
        _cleanup_(policy_freep) Policy *p = NULL;
        _cleanup_free_ char *name = NULL;
        const char *base = strrchr(file, '/');
        PolicyObject *o = NULL;
        int r;

        name = name_of_file(base ? base + 1 : file);
        if (!name || !text_is_name(name)) {
                free(name);
                name = strdup("policy");
        }
        r = name ? policy_new(&p) : -ENOMEM;
        if (r >= 0)
                r = load_single(p, root, "host", &p->host_file);
        if (r >= 0)
                r = add_object(p, POLICY_EGRESS, name, file, &o);
        if (r < 0)
                return r;

        read_object(p, o, POLICY_EGRESS_FILE_MAX);
        if (!p->out_of_memory && !o->document && !o->reason)
                policy_add_finding(p, o, "", "is empty");
        r = p->out_of_memory ? -ENOMEM : policy_check(p, ret_findings, ret_n_findings);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(p);
        return 0;
}

int policy_load_host(Policy **ret, const char *root, char **ret_reason) {
        _cleanup_(policy_freep) Policy *p = NULL;
        PolicyFinding *findings = NULL;
        size_t n_findings = 0;
        int r;

        r = policy_new(&p);
        if (r >= 0)
                r = load_single(p, root, "host", &p->host_file);
        if (r >= 0)
                r = policy_check(p, &findings, &n_findings);
        if (r >= 0 && n_findings == 0 && !p->host_file) {
                *ret_reason = strdup("host.json is empty, or there is none");
                r = *ret_reason ? -EINVAL : -ENOMEM;
        } else if (r >= 0 && n_findings > 0) {
                *ret_reason = text_format("%s: %s%s%s", findings[0].file, findings[0].pointer, *findings[0].pointer ? ": " : "", findings[0].reason);
                r = *ret_reason ? -EINVAL : -ENOMEM;
        }
        policy_findings_free(findings, n_findings);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(p);
        return 0;
}

/* The object for a text without a file. */
static int add_text(Policy *p, const PolicyText *t, PolicyObject **ret) {
        PolicyObject **single = t->kind == _POLICY_KINDS ? &p->host_file : &p->authority;

        if (t->kind < _POLICY_KINDS)
                return policy_find_unsorted(p, t->kind, t->name) ? -EEXIST : add_object(p, t->kind, t->name, t->name, ret);
        if (*single)
                return -EEXIST;
        return policy_object_new(single, NULL, t->name, t->name) ?: (*ret = *single, 0);
}

int policy_load_texts(Policy **ret, const PolicyText *texts, size_t n_texts, PolicyFinding **ret_findings, size_t *ret_n_findings) {
        _cleanup_(policy_freep) Policy *p = NULL;
        int r;

        r = policy_new(&p);
        if (r < 0)
                return r;

        for (size_t i = 0; i < n_texts; i++) {
                PolicyObject *o = NULL;
                char *data;

                r = add_text(p, &texts[i], &o);
                if (r < 0)
                        return r;
                data = malloc(texts[i].size + 1);
                if (!data)
                        return -ENOMEM;
                memcpy(data, texts[i].data, texts[i].size);
                data[texts[i].size] = '\0';
                parse_object(p, o, data, texts[i].size);
        }
        if (p->out_of_memory)
                return -ENOMEM;

        r = policy_check(p, ret_findings, ret_n_findings);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(p);
        return 0;
}

int policy_check_text(PolicyTextKind kind, const char *data, size_t size, char **ret_reason) {
        static const struct {
                unsigned kind;
                const char *name;
        } files[] = {
                [POLICY_TEXT_HOST] = { _POLICY_KINDS, "host.json" },
                [POLICY_TEXT_AUTHORITY] = { _POLICY_KINDS + 1, "authority.json" },
                [POLICY_TEXT_EGRESS] = { POLICY_EGRESS, "egress" },
        };
        const PolicyText text = { .kind = files[kind].kind, .name = files[kind].name, .data = data, .size = size };
        _cleanup_(policy_freep) Policy *p = NULL;
        PolicyFinding *findings = NULL;
        size_t n = 0;
        int r;

        r = policy_load_texts(&p, &text, 1, &findings, &n);
        if (r >= 0 && n > 0)
                *ret_reason = text_format("%s%s%s", findings[0].pointer, *findings[0].pointer ? ": " : "", findings[0].reason);
        else if (r >= 0 && kind != POLICY_TEXT_EGRESS && !(kind == POLICY_TEXT_HOST ? p->host_file : p->authority)->document)
                *ret_reason = strdup("it is empty");
        if (r >= 0 && *ret_reason)
                r = -EINVAL;
        else if (r >= 0 && n > 0)
                r = -ENOMEM;
        policy_findings_free(findings, n);
        return r;
}
