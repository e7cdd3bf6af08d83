/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * host-health.service makes the checks; boot-complete.target requires it. When it fails, or does not end in its time,
 * systemd starts host-rollback.service, which decides: an image that never worked here is left for the other deployment, its
 * digest remembered and never staged again; the system that survives writes the story into the audit log, since the one that
 * failed may have no audit log that works. Otherwise the host stays up and leases nothing, and says so.
 *
 * A boot that hangs, or that a watchdog or a panic ends, gets to neither. So host-begin.service counts the starts of an image that never passed; at the
 * third without a verdict it goes back before anything else of the boot is tried. Where systemd-boot is the loader it counts them as well, also those that never got
 * to userspace (host-esp.c). And a boot whose check has not even begun after a while counts as
 * failed (host-deadline.timer, which starts nothing once HEALTH_BEGUN is there, whoever starts the timer anew, and when).
 *
 * So a bad image costs two boots. What the two write is durable before the reboot that rests on it: a power cut in
 * between makes the check once more.
 */

#include "host/health.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit-api.h"
#include "host/host-esp.h"
#include "host/host-state-api.h"
#include "host/provision.h"
#include "ipc/ipc.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"

#define API "/run/anchorhold/api.sock"
#define LEDGER "/var/lib/anchorhold/ledger/ledger.db"

enum {
        SUPERVISOR_WAIT_USEC = 180 * 1000 * 1000,
        CALL_USEC = 10 * 1000 * 1000,
        LOOK_USEC = 500 * 1000,
        STARTS_ALLOWED = 2, /* of an image that never passed */
};

static int call(const char *path, const char *method, json_t *params, json_t **ret) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_free_ char *error = NULL;
        json_t *reply = NULL;
        int r;

        r = ipc_client_new(&c, NULL, path);
        if (r < 0) {
                (void) json_unref(params);
                return r;
        }
        r = ipc_client_call(c, method, params, NULL, 0, CALL_USEC, &reply, &error, NULL, 0);
        if (r >= 0 && ret)
                *ret = reply;
        else
                (void) json_unref(reply);
        return r;
}

/* ---- the checks ---- */

/* Nothing else is looked at: what does not hold yet is not to be judged by, and what it is provisioned with is the same for each image. */
static int check_provision(char *reason, size_t size) {
        _cleanup_free_ char *why = NULL;

        if (io_read_file(AT_FDCWD, PROVISION_FAILED, size, &why, NULL) < 0)
                return 0;
        (void) snprintf(reason, size, "provisioning: %s", why);
        return -EPROTO;
}

/* Begins the reason of a check that no image is to blame for. */
#define HOST_FILE_REASON "host.json cannot be used: "

static const char no_accelerator[] = "it is not known yet whether microVMs run under KVM";

/* What keeps the host from being ready, or NULL; no_accelerator only if nothing else does. */
static const char *not_ready(const json_t *status, char *buffer, size_t size) {
        const char *name;
        json_t *state;

        if (!json_is_true(json_object_get(status, "ready")))
                return "anchord has not settled what an earlier life left";
        json_object_foreach(json_object_get(status, "enforcers"), name, state)
                if (strcmp(json_string_value(state) ?: "", "ok") != 0) {
                        (void) snprintf(buffer, size, "%s: %s", name, json_string_value(state) ?: "?");
                        return buffer;
                }
        if (!json_is_string(json_object_get(json_object_get(status, "accelerator"), "accel")))
                return no_accelerator;
        return NULL;
}

static int check_supervisor(char *reason, size_t size) {
        uint64_t begin = time_monotonic();
        char buffer[128];
        const char *why;

        do {
                _cleanup_json_ json_t *status = NULL;
                int r;

                r = call(API, "io.anchorhold.Manager.Status", json_object(), &status);
                why = r < 0 ? strerror(-r) : not_ready(status, buffer, sizeof(buffer));
                if (!why)
                        return 0;
                (void) usleep(LOOK_USEC);
        } while (time_monotonic() - begin < (why == no_accelerator ? (uint64_t) HEALTH_ACCELERATOR_SEC * 1000000 : SUPERVISOR_WAIT_USEC));

        (void) snprintf(reason, size, "the supervisor is not ready: %s", why);
        return -EPROTO;
}

/* By SQLite's own program and as the ledger's owner: nothing that root opens or makes is in anchord's way. */
static int check_ledger(char *reason, size_t size) {
        _cleanup_free_ char *out = NULL;
        int r;

        r = command_run((const char *const[]) { "setpriv", "--reuid=anchorhold", "--regid=anchorhold", "--clear-groups", "--",
                                                "sqlite3", "-readonly", LEDGER, "PRAGMA integrity_check", NULL }, NULL, &out, NULL);
        if (r == 0 && out && strcmp(out, "ok\n") == 0)
                return 0;
        (void) snprintf(reason, size, "the ledger is damaged: %.120s", r < 0 ? strerror(-r) : out ?: "");
        return -EPROTO;
}

static int check_audit(char *reason, size_t size) {
        int r;

        r = command_run((const char *const[]) { "anchorctl", "audit", "verify", "--quiet", NULL }, NULL, NULL, NULL);
        if (r == 0)
                return 0;
        (void) snprintf(reason, size, "the audit log does not verify (anchorctl audit verify: status %d)", r);
        return -EPROTO;
}

/* Why nothing is leased, although nothing is wrong with the image; NULL: there is no reason. */
static const char *why_no_lease(const json_t *status) {
        if (json_is_true(json_object_get(status, "hold")))
                return "by an operator's hold";
        if (json_is_true(json_object_get(json_object_get(status, "site_policy"), "waits")))
                return "for a policy that waits to be accepted";
        return json_is_true(json_object_get(json_object_get(status, "space"), "low")) ? "for want of space" : NULL;
}

/* A real run, with everything that one has: each of its units proves the fence to itself, and anchor-check asks all layers. */
static int check_run(char *reason, size_t size) {
        _cleanup_json_ json_t *status = NULL;
        const char *why;
        int r;

        r = call(API, "io.anchorhold.Manager.Status", json_object(), &status);
        why = r >= 0 ? json_string_value(json_object_get(status, "host_problem")) : NULL;
        if (why) {
                (void) snprintf(reason, size, HOST_FILE_REASON "%.200s", why);
                return -EPROTO;
        }
        why = r >= 0 ? why_no_lease(status) : NULL;
        if (why) {
                log_notice("nothing is leased, %s: no microVM is tried", why);
                return 0;
        }
        r = command_run((const char *const[]) { "anchorctl", "run", "--workflow=exec", "--", "/bin/true", NULL }, NULL, NULL, NULL);
        if (r == 0)
                return 0;
        (void) snprintf(reason, size, "a run of /bin/true ends with status %d", r);
        return -EPROTO;
}

int health_check(char *reason, size_t size) {
        static const struct {
                const char *what;
                int (*check)(char *reason, size_t size);
        } checks[] = {
                { "what it is provisioned with is well-formed", check_provision },
                { "the supervisor answers", check_supervisor },
                { "the ledger is whole", check_ledger },
                { "the audit log verifies", check_audit },
                { "a microVM runs, fenced", check_run },
        };

        for (size_t i = 0; i < ELEMENTSOF(checks); i++) {
                int r = checks[i].check(reason, size);

                if (r < 0)
                        return r;
                log_info("%s", checks[i].what);
        }
        return 0;
}

/* ---- what follows ---- */

static int record(const char *event, json_t *data) {
        return call(AUDIT_SOCKET, AUDIT_INTERFACE ".Append", json_pack("{s:s, s:o}", "event", event, "data", data), NULL);
}

/* Marks in a state what is now in the audit log. That may take a while, so it is one that nobody else changes: keep_told(). */
static void tell_rejections(json_t *state) {
        const char *digest;
        json_t *entry;

        json_object_foreach(json_object_get(state, "rejected"), digest, entry) {
                if (json_is_true(json_object_get(entry, "told")))
                        continue;
                if (record("host.rolled_back", json_pack("{s:s, s:O, s:O}", "digest", digest, "reason", json_object_get(entry, "reason"),
                                                         "time", json_object_get(entry, "time"))) >= 0)
                        (void) json_object_set_new(entry, "told", json_true());
        }
}

/* The same rejections only: not one that somebody has accepted since, or that was made anew. */
static void keep_told(json_t *state, const json_t *told) {
        const json_t *entry;
        const char *digest;

        json_object_foreach(json_object_get(told, "rejected"), digest, entry) {
                json_t *mine = json_object_get(json_object_get(state, "rejected"), digest);

                if (json_is_true(json_object_get(entry, "told")) && json_equal(json_object_get(mine, "time"), json_object_get(entry, "time")))
                        (void) json_object_set_new(mine, "told", json_true());
        }
}

static int booted_image(HostDeployments *d, const HostDeployment **ret) {
        char why[HOST_REASON_SIZE] = "this host was not booted from a deployment";
        const HostOs *os = host_os();

        *ret = NULL;
        if (!os || os->list(d, why) < 0) {
                log_error("%s", why);
                return -ENOENT;
        }
        *ret = host_find(d, HOST_BOOTED);
        return *ret && *(*ret)->digest ? 0 : -ENOENT;
}

int health_passed(void) {
        _cleanup_json_ json_t *known = NULL, *state = NULL;
        _cleanup_fd_ int lock = -1;
        const HostDeployment *booted;
        HostDeployments d = {};
        int r;

        r = booted_image(&d, &booted);
        if (r < 0)
                return r;
        known = host_state_load(HOST_STATE);
        if (!host_state_is_healthy(known, booted->digest))
                (void) record("host.healthy", json_pack("{s:s}", "digest", booted->digest));
        tell_rejections(known);

        lock = host_state_lock(HOST_STATE);
        state = host_state_load(HOST_STATE);
        keep_told(state, known);
        host_state_judged(HOST_STATE, state, booted->digest);
        r = host_state_set_healthy(state, booted->digest);
        return r < 0 ? r : host_state_save(HOST_STATE, state);
}

/* What is wrong with both deployments, or with this one alone, needs a person; until then nothing runs here. */
static int stay(const char *reason, const char *why) {
        _cleanup_free_ char *text = text_format("this boot failed its health check: %s", reason);

        log_error("%s; no way back: %s. The host stays up and leases nothing.", text ?: reason, why);
        (void) host_esp_bless();
        (void) record("host.unhealthy", json_pack("{s:s, s:s}", "reason", reason, "stays", why));
        return call(API, "io.anchorhold.Manager.Hold", json_pack("{s:b, s:s}", "on", 1, "reason", text ?: reason), NULL);
}

/* What both deployments share, if the fault is in that; NULL otherwise. */
static const char *shared_fault(const char *reason) {
        if (access(PROVISION_FAILED, F_OK) == 0)
                return "what this host is provisioned with is the same for every image";
        return strncmp(reason, HOST_FILE_REASON, strlen(HOST_FILE_REASON)) == 0 ? "the other image has the same file" : NULL;
}

/* The verdict, in what is known: 0: goes back. Otherwise *ret_why says why it stays. */
static int reject(const HostDeployments *d, const HostDeployment *booted, const char *reason, const char **ret_why) {
        _cleanup_fd_ int lock = host_state_lock(HOST_STATE);
        _cleanup_json_ json_t *state = host_state_load(HOST_STATE);
        bool back = host_state_goes_back(state, d, ret_why);
        const char *shared = shared_fault(reason);
        int r = 0;

        host_state_judged(HOST_STATE, state, booted->digest);
        if (shared)
                *ret_why = shared;
        else if (back)
                r = host_state_reject(state, booted->digest, reason);
        if (r >= 0)
                r = host_state_save(HOST_STATE, state);
        if (r < 0 && !*ret_why)
                *ret_why = "the rejection cannot be recorded";
        return *ret_why ? -EPERM : 0;
}

int health_failed(const char *reason) {
        char why_not[HOST_REASON_SIZE] = "";
        const HostDeployment *booted;
        const char *why = NULL;
        HostDeployments d = {};
        int r;

        r = booted_image(&d, &booted);
        if (r < 0)
                return stay(reason, shared_fault(reason) ?: "it is not known which deployments there are");
        r = reject(&d, booted, reason, &why);
        if (r < 0)
                return stay(reason, why);
        r = host_os()->rollback(&d, why_not);
        if (r < 0)
                return stay(reason, why_not);

        log_error("image sha256:%s failed its health check: %s. Going back.", booted->digest, reason);
        /* Of PID 1 and not of logind, which lets nobody past a lock: whoever is at work here works on what does not work. */
        r = command_run((const char *const[]) { "systemctl", "start", "--no-block", "--job-mode=replace-irreversibly", "reboot.target", NULL }, NULL, NULL, NULL);
        return r == 0 ? 0 : -EIO;
}

/* One start more. 1: it was one too many, and there is a way back. */
static int count_start(const HostDeployments *d, const char *digest, int *ret_n) {
        _cleanup_fd_ int lock = host_state_lock(HOST_STATE);
        _cleanup_json_ json_t *state = host_state_load(HOST_STATE);
        const char *why_not = NULL;
        int r;

        if (host_state_is_healthy(state, digest))
                return 0;
        *ret_n = host_state_count_start(HOST_STATE, state, digest);
        r = *ret_n < 0 ? *ret_n : host_state_save(HOST_STATE, state);
        return r < 0 ? r : *ret_n > STARTS_ALLOWED && host_state_goes_back(state, d, &why_not);
}

int health_begin(void) {
        _cleanup_free_ char *reason = NULL;
        const HostDeployment *booted;
        HostDeployments d = {};
        int r, n = 0;

        (void) host_esp_begin();
        r = booted_image(&d, &booted);
        if (r >= 0)
                r = count_start(&d, booted->digest, &n);
        if (r <= 0)
                return r;

        reason = text_format("it was started %d times, and its health check never came to an end", n - 1);
        return health_failed(reason ?: "its health check never came to an end");
}
