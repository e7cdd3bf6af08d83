/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * From a bundle that hostile code made to one that may be handed on.
 *
 * A fresh bare repository gets the seed's objects, then the result's. The parser of the bundle's head is ours;
 * only the pack behind it reaches git, as the input of index-pack, so that no reference, capability or
 * URL of the bundle is ever acted upon. Each step may reject; none is left out; the order is cheap before dear:
 *
 *   1 heads     sizes, format, exactly one reference of the expected name, the pack's claimed number of objects
 *   2 seed      index-pack of the operator's own history (not --strict: old histories have old mistakes)
 *   3 result    index-pack --strict: every new object is well-formed, trees are sane, links are there
 *   4 descends  the commit is one, and its history contains the base
 *   5 amount    number of commits and objects, and their size unpacked
 *   6 changes   every path that any new commit touches (import-walk.c)
 *   7 fsck      the whole of what the two references reach is connected
 *   8 give      a new bundle of base history and result, written by our git; the diff as text
 *
 * Bombs: the input's size is bounded by the caller's limit, memory, CPU time and file size by rlimits of each
 * git, everything by one deadline, the unpacked amount by a sum. Nothing is ever checked out: a path
 * of the result never becomes a path here.
 */

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "import/import-private.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

#define MIB (1024ULL * 1024)

void import_default_limits(ImportRequest *rq) {
        rq->unpacked_bytes = rq->bundle_bytes * 4 < 256 * MIB ? 256 * MIB : rq->bundle_bytes * 4;
        rq->max_objects = 1000 * 1000;
        rq->max_commits = 10 * 1000;
        rq->timeout_usec = 300ULL * 1000 * 1000;
}

void import_result_done(ImportResult *r) {
        free(r->reason);
        (void) json_unref(r->facts);
        (void) fd_close(r->bundle_fd);
        (void) fd_close(r->diff_fd);
        *r = IMPORT_RESULT_NULL;
}

int import_reject(Import *im, const char *format, ...) {
        va_list ap;
        int n;

        if (im->result->reason)
                return IMPORT_REJECTED;

        va_start(ap, format);
        n = vasprintf(&im->result->reason, format, ap);
        va_end(ap);
        if (n < 0) {
                im->result->reason = NULL;
                return -ENOMEM;
        }
        return IMPORT_REJECTED;
}

int import_git_failed(Import *im, int r, const char *what) {
        switch (r) {
        case 0:
                return 0;
        case -ETIMEDOUT:
                return import_reject(im, "%s: not done in time", what);
        case -ENOBUFS:
                return import_reject(im, "%s: git hit the import's limit of memory, time or file size", what);
        default:
                if (r < 0)
                        return r;
                return import_reject(im, "%s: %s", what, im->git.error[0] ? im->git.error : "git failed");
        }
}

int import_temporary(Import *im) {
        int fd = open(im->rq->work_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

        return fd < 0 ? -errno : fd;
}

static int git(Import *im, const char *what, int stdin_fd, const char *const *args) {
        return import_git_failed(im, git_run(&im->git, args, stdin_fd, -1, NULL, NULL), what);
}
#define ARGS(...) ((const char *const[]) { __VA_ARGS__, NULL })

static int fact(Import *im, const char *key, json_t *value) {
        return json_object_set_new(im->result->facts, key, value) < 0 ? -ENOMEM : 0;
}

/* ---- 1 heads ---- */

static int read_head(Import *im, int fd, const char *whose, uint64_t max_bytes, BundleHeader *ret) {
        _cleanup_free_ char *data = NULL;
        char limit[TEXT_SIZE_SIZE];
        const char *reason;
        struct stat st;
        ssize_t n;

        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EINVAL;
        if ((uint64_t) st.st_size > max_bytes)
                return import_reject(im, "the %s bundle is larger than %s", whose, text_size(max_bytes, limit));

        data = malloc(BUNDLE_HEADER_MAX + 12);
        if (!data)
                return -ENOMEM;
        if (lseek(fd, 0, SEEK_SET) < 0)
                return -errno;
        n = io_read_full(fd, data, BUNDLE_HEADER_MAX + 12);
        if (n < 0)
                return (int) n;

        if (bundle_header_parse(data, (size_t) n, ret, &reason) < 0)
                return import_reject(im, "%s bundle: %s", whose, reason);
        if (ret->oid_length != strlen(im->rq->base))
                return import_reject(im, "the %s bundle has another object format than the base commit", whose);
        return 0;
}

static int step_heads(Import *im) {
        const BundleHeader *h = &im->header;
        BundleHeader seed;
        int r;

        r = read_head(im, im->rq->seed_fd, "seed", im->rq->bundle_bytes, &seed);
        if (r != 0)
                return r;
        r = read_head(im, im->rq->result_fd, "result", im->rq->bundle_bytes, &im->header);
        if (r != 0)
                return r;

        for (size_t i = 0; i < h->n_refs && i < BUNDLE_REFS_MAX; i++) {
                _cleanup_free_ char *name = NULL;

                if (strcmp(h->refs[i].name, im->rq->ref) == 0)
                        continue;
                name = text_escape(h->refs[i].name, strlen(h->refs[i].name), false);
                return import_reject(im, "the bundle has a reference that nobody asked for: %s", name ?: "?");
        }
        if (h->n_refs != 1)
                return import_reject(im, "the bundle has %zu references, and must have one, %s", h->n_refs, im->rq->ref);
        if (h->n_objects > im->rq->max_objects)
                return import_reject(im, "the bundle's pack claims %u objects, more than %llu", h->n_objects,
                                     (unsigned long long) im->rq->max_objects);

        if (lseek(im->rq->seed_fd, (off_t) seed.pack_offset, SEEK_SET) < 0 ||
            lseek(im->rq->result_fd, (off_t) h->pack_offset, SEEK_SET) < 0)
                return -errno;

        (void) stpcpy(im->result->commit, h->refs[0].oid);
        return fact(im, "objects", json_integer(h->n_objects));
}

/* ---- 2 to 4 ---- */

static int step_seed(Import *im) {
        char limit[64], commit[BUNDLE_OID_SIZE + 16];
        int r;

        r = git(im, "cannot make a repository", -1,
                ARGS("init", "--quiet", "--bare", "--template=",
                     strlen(im->rq->base) == 64 ? "--object-format=sha256" : "--object-format=sha1", im->repository));
        if (r != 0)
                return r;

        (void) snprintf(limit, sizeof(limit), "--max-input-size=%llu", (unsigned long long) im->rq->bundle_bytes);
        r = git(im, "the seed bundle's pack", im->rq->seed_fd, ARGS("index-pack", "--stdin", "--threads=1", limit));
        if (r != 0)
                return r;

        (void) snprintf(commit, sizeof(commit), "%s^{commit}", im->rq->base);
        r = git(im, "the base commit is not in the seed", -1, ARGS("cat-file", "-e", commit));
        if (r != 0)
                return r;
        return git(im, "the base commit", -1, ARGS("update-ref", IMPORT_BASE_REF, im->rq->base));
}

static int step_result(Import *im) {
        char limit[64];

        (void) snprintf(limit, sizeof(limit), "--max-input-size=%llu", (unsigned long long) im->rq->bundle_bytes);
        return git(im, "the bundle's pack", im->rq->result_fd,
                   ARGS("index-pack", "--stdin", "--fix-thin", "--strict", "--threads=1", limit));
}

static int on_type(const char *data, size_t size, void *userdata) {
        bool *is_commit = userdata;

        *is_commit = size == strlen("commit\n") && memcmp(data, "commit\n", size) == 0;
        return 0;
}

static int step_descends(Import *im) {
        bool is_commit = false;
        int r;

        if (strcmp(im->result->commit, im->rq->base) == 0)
                return import_reject(im, "the result is the base commit itself: nothing was committed");

        /* an annotated tag would peel to a commit wherever one is wanted, and is none */
        r = git_run(&im->git, ARGS("cat-file", "-t", im->result->commit), -1, -1, on_type, &is_commit);
        r = import_git_failed(im, r, "the reference names an object that is not in the bundle");
        if (r != 0)
                return r;
        if (!is_commit)
                return import_reject(im, "the reference does not name a commit");

        r = git_run(&im->git, ARGS("merge-base", "--is-ancestor", im->rq->base, im->result->commit), -1, -1, NULL, NULL);
        if (r == 1)
                return import_reject(im, "the result does not descend from the base commit %s", im->rq->base);
        r = import_git_failed(im, r, "the result's history");
        if (r != 0)
                return r;

        return git(im, "the result's reference", -1, ARGS("update-ref", im->rq->ref, im->result->commit));
}

/* ---- 5 amount ---- */

int import_amount_read(const char *data, size_t size, void *userdata) {
        ImportAmount *a = userdata;

        for (size_t i = 0; i < size; i++) {
                char *end;

                if (data[i] != '\n') {
                        if (a->used >= sizeof(a->line) - 1)
                                return -EBADMSG;
                        a->line[a->used++] = data[i];
                        continue;
                }
                a->line[a->used] = 0;
                a->used = 0;
                errno = 0;
                a->bytes += strtoull(a->line, &end, 10);
                if (end == a->line || *end || errno)
                        return -ENOENT;
                if (++a->n > a->max_n)
                        return -EOVERFLOW;
                if (a->bytes > a->max_bytes)
                        return -E2BIG;
        }
        return 0;
}

static int step_amount(Import *im) {
        ImportAmount commits = { .max_n = 1, .max_bytes = UINT64_MAX };
        ImportAmount objects = { .max_n = im->rq->max_objects, .max_bytes = im->rq->unpacked_bytes };
        _cleanup_fd_ int list = -1;
        char limit[TEXT_SIZE_SIZE];
        int r;

        r = git_run(&im->git, ARGS("rev-list", "--count", im->result->commit, "--not", im->rq->base), -1, -1, import_amount_read, &commits);
        r = import_git_failed(im, r, "the result's history");
        if (r != 0)
                return r;
        /* one line, whose value is the number of commits */
        if (commits.bytes > im->rq->max_commits)
                return import_reject(im, "the result has %llu commits, more than %llu", (unsigned long long) commits.bytes,
                                     (unsigned long long) im->rq->max_commits);

        list = import_temporary(im);
        if (list < 0)
                return list;
        r = git_run(&im->git, ARGS("rev-list", "--objects", "--no-object-names", im->result->commit, "--not", im->rq->base), -1, list, NULL, NULL);
        r = import_git_failed(im, r, "the result's objects");
        if (r != 0)
                return r;
        if (lseek(list, 0, SEEK_SET) < 0)
                return -errno;

        r = git_run(&im->git, ARGS("cat-file", "--buffer", "--batch-check=%(objectsize)"), list, -1, import_amount_read, &objects);
        if (r == -E2BIG)
                return import_reject(im, "the result's objects have more than %s unpacked", text_size(im->rq->unpacked_bytes, limit));
        if (r == -EOVERFLOW)
                return import_reject(im, "the result has more than %llu objects", (unsigned long long) im->rq->max_objects);
        if (r == -ENOENT)
                return import_reject(im, "the result's history names an object that is not in the bundle");
        r = import_git_failed(im, r, "the result's objects");
        if (r != 0)
                return r;

        r = fact(im, "commits", json_integer((json_int_t) commits.bytes));
        if (r < 0)
                return r;
        return fact(im, "unpacked_bytes", json_integer((json_int_t) objects.bytes));
}

/* ---- 7, 8 ---- */

static int step_fsck(Import *im) {
        return git(im, "fsck", -1, ARGS("fsck", "--strict", "--connectivity-only", "--no-dangling", "--no-reflogs", "--no-progress",
                                        IMPORT_BASE_REF, im->rq->ref));
}

static int step_bundle(Import *im) {
        _cleanup_fd_ int fd = import_temporary(im);
        int r;

        if (fd < 0)
                return fd;
        r = git_run(&im->git, ARGS("bundle", "create", "--quiet", "-", IMPORT_BASE_REF, im->rq->ref), -1, fd, NULL, NULL);
        r = import_git_failed(im, r, "the checked bundle");
        if (r != 0)
                return r;
        if (lseek(fd, 0, SEEK_SET) < 0)
                return -errno;

        im->result->bundle_fd = TAKE_FD(fd);
        return 0;
}

typedef struct DiffText {
        int fd;
        uint64_t left;
} DiffText;

/* -EFBIG ends it: what is there by then is kept. */
static int on_diff(const char *data, size_t size, void *userdata) {
        DiffText *d = userdata;
        size_t n = size < d->left ? size : d->left;
        int r;

        r = io_write_full(d->fd, data, n);
        if (r < 0)
                return r == -EFBIG ? -EIO : r;
        d->left -= n;
        return n < size ? -EFBIG : 0;
}

static int step_diff(Import *im) {
        static const char cut[] = "\n[anchorhold: the diff goes on and was cut off here]\n";
        _cleanup_fd_ int fd = import_temporary(im);
        DiffText text = { .fd = fd, .left = im->rq->diff_bytes };
        bool truncated;
        int r;

        if (fd < 0)
                return fd;
        r = git_run(&im->git, ARGS("diff-tree", "-p", "-r", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index",
                                   "--find-renames", im->rq->base, im->result->commit, "--"),
                    -1, -1, on_diff, &text);
        truncated = r == -EFBIG;
        if (truncated)
                r = io_write_full(fd, cut, strlen(cut));
        r = import_git_failed(im, r, "the diff");
        if (r != 0)
                return r;
        if (lseek(fd, 0, SEEK_SET) < 0)
                return -errno;

        im->result->diff_fd = TAKE_FD(fd);
        return fact(im, "diff_truncated", json_boolean(truncated));
}

/* ---- all of it ---- */

static int (*const steps[])(Import *im) = {
        step_heads, step_seed, step_result, step_descends, step_amount, import_walk_changes, step_fsck, step_bundle, step_diff,
};

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        (void) remove(path);
        return 0;
}

int import_check(const ImportRequest *rq, ImportResult *ret) {
        ImportResult result = IMPORT_RESULT_NULL;
        Import im = { .rq = rq, .result = &result };
        _cleanup_free_ char *dir = NULL;
        int r;

        if (!text_is_commit(rq->base))
                return -EINVAL;

        dir = text_format("%s/import-XXXXXX", rq->work_dir);
        result.facts = json_object();
        if (!dir || !result.facts) {
                import_result_done(&result);
                return -ENOMEM;
        }
        if (!mkdtemp(dir)) {
                r = -errno;
                import_result_done(&result);
                return r;
        }

        im.repository = text_format("%s/result.git", dir);
        im.git = (Git) {
                .repository = im.repository,
                .deadline_usec = time_monotonic() + rq->timeout_usec,
                .memory_bytes = 1536 * MIB,
                .file_bytes = 4 * rq->bundle_bytes + 64 * MIB,
                .cpu_seconds = rq->timeout_usec / 1000000 + 1,
        };

        r = im.repository ? 0 : -ENOMEM;
        for (size_t i = 0; r == 0 && i < ELEMENTSOF(steps); i++)
                r = steps[i](&im);

        (void) nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
        free(im.repository);

        if (r < 0) {
                import_result_done(&result);
                return r;
        }

        result.ok = r == 0;
        if (!result.ok) {
                result.bundle_fd = fd_close(result.bundle_fd);
                result.diff_fd = fd_close(result.diff_fd);
        }
        *ret = result;
        return 0;
}
