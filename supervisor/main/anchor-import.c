/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-import: asks anchord for one run's bundles, checks the result, and gives back what may go on.
 * Holds no secret, has no network, and is the only process that lets git read what a guest made.
 *
 * anchor-import --files BASE REF SEED RESULT CHECKED DIFF [BYTES] does the same with files, for tests and for an
 * operator who wants to know; BYTES is the most that a bundle may have.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit.h"
#include "import/import-call.h"
#include "import/import.h"
#include "policy/policy.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define WORK_DIR "/var/tmp"
#define PATIENCE_USEC (60ULL * 1000 * 1000) /* how long auditd may be restarting */

static const char *arg_files[6]; /* BASE REF SEED RESULT CHECKED DIFF */
static uint64_t arg_bundle_bytes = 256ULL * 1024 * 1024;
static bool arg_offline;

/* ---- with anchord ---- */

typedef struct Job {
        ImportRequest request;
        char *base, *ref; /* owned */
        int fds[2];       /* owned; seed, result */
} Job;

static void job_done(Job *j) {
        free(j->base);
        free(j->ref);
        j->fds[0] = fd_close(j->fds[0]);
        j->fds[1] = fd_close(j->fds[1]);
}

static int get_job(Job *ret) {
        _cleanup_json_ json_t *params = json_object(), *answer = NULL;
        json_t *limits = NULL;
        const char *base = NULL, *ref = NULL;
        JsonReader reader = { .file = "GetImport" };
        int r;

        r = import_call(&import_patience, "io.anchorhold.Run.GetImport", params, NULL, 0, &answer, ret->fds, ELEMENTSOF(ret->fds));
        if (r < 0)
                return r;

        (void) json_read_string(&reader, answer, "", "base", JSON_F_REQUIRED, &base);
        (void) json_read_string(&reader, answer, "", "ref", JSON_F_REQUIRED, &ref);
        (void) json_read_object(&reader, answer, "", "limits", JSON_F_REQUIRED, &limits);
        if (!reader.failed) {
                (void) json_read_uint(&reader, limits, "/limits", "bundle_bytes", JSON_F_REQUIRED, 1, POLICY_BUNDLE_BYTES_MAX,
                                      &ret->request.bundle_bytes);
                (void) json_read_uint(&reader, limits, "/limits", "diff_bytes", JSON_F_REQUIRED, 1, POLICY_BUNDLE_BYTES_MAX,
                                      &ret->request.diff_bytes);
        }
        if (reader.failed || ret->fds[0] < 0 || ret->fds[1] < 0 || !text_is_commit(base)) {
                log_error("GetImport answered something else than agreed: %s %s", reader.pointer ?: "", reader.reason ?: "");
                json_reader_done(&reader);
                return -EPROTO;
        }

        ret->base = strdup(base);
        ret->ref = strdup(ref);
        if (!ret->base || !ret->ref)
                return log_oom();
        return 0;
}

/* No verdict is given that is not in the audit log. */
static int record(const ImportResult *result) {
        uint64_t until = time_monotonic() + PATIENCE_USEC;

        for (;;) {
                json_t *data;
                int r;

                if (result->ok)
                        data = json_pack("{s:s, s:O}", "commit", result->commit, "facts", result->facts);
                else
                        data = json_pack("{s:s}", "reason", result->reason);
                r = audit_append_sync(result->ok ? "import.accepted" : "import.rejected", NULL, NULL, NULL, data);
                if (r >= 0 || time_monotonic() > until)
                        return r;
                (void) usleep(500 * 1000);
        }
}

static int report(const ImportResult *result) {
        _cleanup_json_ json_t *params = NULL;
        const int fds[] = { result->bundle_fd, result->diff_fd };

        params = json_pack("{s:b, s:s, s:s?, s:O}", "ok", result->ok, "reason", result->reason ?: "",
                           "commit", result->ok ? result->commit : NULL, "facts", result->facts);
        if (!params)
                return log_oom();
        return import_call(&import_patience, "io.anchorhold.Run.Imported", params, fds, result->ok ? ELEMENTSOF(fds) : 0, NULL, NULL, 0);
}

static int import_for_anchord(void) {
        _cleanup_(job_done) Job job = { .fds = { -1, -1 } };
        _cleanup_(import_result_done) ImportResult result = IMPORT_RESULT_NULL;
        int r;

        r = get_job(&job);
        if (r < 0)
                return r;

        import_default_limits(&job.request);
        job.request.seed_fd = job.fds[0];
        job.request.result_fd = job.fds[1];
        job.request.base = job.base;
        job.request.ref = job.ref;
        job.request.work_dir = WORK_DIR;

        r = import_check(&job.request, &result);
        if (r < 0)
                return log_error_errno(r, "the result could not be checked");

        if (result.ok)
                log_info("accepted %s", result.commit);
        else
                log_notice("rejected: %s", result.reason);

        r = record(&result);
        if (r < 0)
                return log_error_errno(r, "the verdict is not in the audit log, so it is not given");

        return report(&result);
}

/* ---- with files ---- */

static int copy_out(int from, const char *path) {
        _cleanup_fd_ int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        int r;

        if (to < 0)
                return log_error_errno(-errno, "cannot make %s", path);
        r = io_copy(from, to, UINT64_MAX, NULL);
        return r < 0 ? log_error_errno(r, "cannot write %s", path) : 0;
}

/* 3 (refused by policy, as anchorctl has it) for a rejection. */
static int import_files(void) {
        _cleanup_(import_result_done) ImportResult result = IMPORT_RESULT_NULL;
        _cleanup_free_ char *facts = NULL;
        _cleanup_fd_ int seed = -1, bundle = -1;
        ImportRequest rq = { .bundle_bytes = arg_bundle_bytes, .diff_bytes = 1024 * 1024, .work_dir = WORK_DIR };
        int r;

        seed = open(arg_files[2], O_RDONLY | O_CLOEXEC);
        if (seed < 0)
                return log_error_errno(-errno, "cannot open %s", arg_files[2]);
        bundle = open(arg_files[3], O_RDONLY | O_CLOEXEC);
        if (bundle < 0)
                return log_error_errno(-errno, "cannot open %s", arg_files[3]);

        import_default_limits(&rq);
        rq.base = arg_files[0];
        rq.ref = arg_files[1];
        rq.seed_fd = seed;
        rq.result_fd = bundle;

        r = import_check(&rq, &result);
        if (r < 0)
                return log_error_errno(r, "the result could not be checked");

        facts = json_canonical(result.facts);
        if (!result.ok) {
                printf("rejected: %s\n", result.reason);
                return 3;
        }
        printf("accepted: %s %s\n", result.commit, facts ?: "");

        r = copy_out(result.bundle_fd, arg_files[4]);
        if (r < 0)
                return r;
        return copy_out(result.diff_fd, arg_files[5]);
}

/* A plain number of bytes. */
static int parse_bytes(const char *text, uint64_t *ret) {
        unsigned long long n;
        char *end;

        errno = 0;
        n = strtoull(text, &end, 10);
        if (errno || end == text || *end || n == 0 || n > POLICY_BUNDLE_BYTES_MAX)
                return -EINVAL;
        *ret = n;
        return 0;
}

static int parse_argv(int argc, char *argv[]) {
        const int n = 2 + (int) ELEMENTSOF(arg_files);

        if (argc == 1)
                return 0;
        if ((argc != n && argc != n + 1) || strcmp(argv[1], "--files") != 0 ||
            (argc > n && parse_bytes(argv[n], &arg_bundle_bytes) < 0)) {
                fprintf(stderr, "usage: anchor-import [--files BASE REF SEED RESULT CHECKED DIFF [BYTES]]\n");
                return -EINVAL;
        }

        arg_offline = true;
        memcpy(arg_files, argv + 2, sizeof(arg_files));
        return 0;
}

int main(int argc, char *argv[]) {
        int r;

        log_init("anchor-import");

        if (parse_argv(argc, argv) < 0)
                return 2;

        r = arg_offline ? import_files() : import_for_anchord();
        return r < 0 ? EXIT_FAILURE : r;
}
