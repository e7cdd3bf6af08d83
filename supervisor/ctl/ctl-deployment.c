/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* host status, host upgrade, host rollback, host accept: which image this host runs, and the next one. */

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit-api.h"
#include "ctl/ctl-drain.h"
#include "ctl/ctl-table.h"
#include "host/host-state-api.h"
#include "util/cleanup.h"
#include "util/json.h"

enum { RECORD_USEC = 10 * 1000 * 1000 };

static CtlExit only_root(Ctl *ctl) {
        if (geteuid() == 0)
                return CTL_OK;
        ctl_error(ctl, "Only root knows and changes the deployments of this host.");
        return CTL_REFUSED;
}

static CtlExit find_os(Ctl *ctl, const HostOs **ret) {
        *ret = host_os();
        if (!*ret) {
                ctl_error(ctl, "This host was not booted from a deployment: nothing here can be upgraded or rolled back.");
                return CTL_FAILED;
        }
        return only_root(ctl);
}

static CtlExit list(Ctl *ctl, const HostOs *os, HostDeployments *ret) {
        char reason[HOST_REASON_SIZE] = "";

        if (os->list(ret, reason) < 0) {
                ctl_error(ctl, "Cannot list the deployments: %s", reason);
                return CTL_FAILED;
        }
        return CTL_OK;
}

/* ---- status ---- */

static const char *health_of(const json_t *state, const HostDeployment *d) {
        if (!*d->digest)
                return "-";
        if (host_state_rejected(state, d->digest))
                return "rejected";
        return host_state_is_healthy(state, d->digest) ? "healthy" : "untried";
}

static CtlExit status_json(Ctl *ctl, const HostOs *os, const HostDeployments *d, const json_t *state) {
        _cleanup_json_ json_t *all = json_array(), *object = NULL;

        for (size_t i = 0; i < d->n; i++)
                (void) json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s}", "role", host_role_name(d->list[i].role), "digest", d->list[i].digest,
                                                            "version", d->list[i].version, "health", health_of(state, &d->list[i])));
        object = json_pack("{s:s, s:O, s:O?, s:O?, s:O?}", "tool", os->name, "deployments", all, "image", json_object_get(state, "image"),
                           "rejected", json_object_get(state, "rejected"), "left", json_object_get(state, "left"));
        return ctl_print_json(ctl, object);
}

static CtlExit status_table(Ctl *ctl, const HostDeployments *d, const json_t *state) {
        static const char *const titles[] = { "ROLE", "IMAGE", "HEALTH", NULL };
        _cleanup_(table_freep) Table *t = NULL;
        int r;

        r = table_new(&t, titles);
        for (size_t i = 0; r >= 0 && i < d->n; i++) {
                _cleanup_free_ char *image = text_format("sha256:%s", *d->list[i].digest ? d->list[i].digest : "?");

                r = image ? table_add(t, host_role_name(d->list[i].role)) ?: table_add(t, image) ?: table_add(t, health_of(state, &d->list[i])) : -ENOMEM;
        }
        if (r < 0)
                return ctl_report(ctl, "print", r, NULL, NULL);
        table_print(t, ctl->out, ctl->columns, !ctl->o.no_legend);
        return CTL_OK;
}

CtlExit ctl_verb_host_status(Ctl *ctl) {
        _cleanup_json_ json_t *state = NULL;
        HostDeployments d = {};
        const HostOs *os;
        CtlExit r;

        r = find_os(ctl, &os);
        if (r == CTL_OK)
                r = list(ctl, os, &d);
        if (r != CTL_OK)
                return r;

        state = host_state_load(HOST_STATE);
        return ctl->o.json != CTL_JSON_OFF ? status_json(ctl, os, &d, state) : status_table(ctl, &d, state);
}

/* ---- upgrade, rollback ---- */

/* What is not on record does not happen. */
static CtlExit record(Ctl *ctl, const char *event, json_t *data) {
        _cleanup_(ipc_client_freep) IpcClient *c = NULL;
        _cleanup_json_ json_t *reply = NULL;
        _cleanup_free_ char *error = NULL;
        int r;

        r = ipc_client_new(&c, NULL, AUDIT_API_SOCKET);
        if (r < 0) {
                (void) json_unref(data);
                return ctl_report(ctl, "record this", r, NULL, NULL);
        }
        r = ipc_client_call(c, AUDIT_INTERFACE ".Append", json_pack("{s:s, s:o}", "event", event, "data", data), NULL, 0, RECORD_USEC, &reply, &error, NULL, 0);
        if (r < 0) {
                ctl_error(ctl, "The audit log does not take it (%s), so nothing was changed.", error ?: strerror(-r));
                return CTL_FAILED;
        }
        return CTL_OK;
}

static CtlExit reboot_now(Ctl *ctl) {
        /* nothing runs any more, so the lock of what ran goes: now, and not in a moment; anybody else's is respected */
        (void) command_run((const char *const[]) { "systemctl", "stop", "host-inhibit.service", NULL }, NULL, NULL, NULL);
        if (command_run((const char *const[]) { "systemctl", "reboot", NULL }, NULL, NULL, NULL) != 0) {
                ctl_error(ctl, "The host does not reboot (\"systemd-inhibit --list\" says who may keep it from that).");
                return CTL_FAILED;
        }
        return CTL_OK;
}

static CtlExit refuse_rejected(Ctl *ctl, const json_t *state, const char *digest) {
        const json_t *entry = host_state_rejected(state, digest);

        if (!entry)
                return CTL_OK;
        ctl_error(ctl, "Image sha256:%s was rejected by this host on %s: %s", digest, ctl_string(entry, "time") ?: "?", ctl_string(entry, "reason") ?: "?");
        ctl_error(ctl, "If it is to be tried once more: anchorctl host accept %s", digest);
        return CTL_CONFLICT;
}

static CtlExit stage(Ctl *ctl, const HostOs *os, const char *image, const char *digest) {
        char reason[HOST_REASON_SIZE] = "";
        bool begun = ctl_activity_begin(ctl, "fetching the image");
        int r;

        r = os->stage(image, digest, &(HostWaiting) { ctl_activity_goes_on, ctl }, reason);
        ctl_activity_end(ctl, begun);
        if (r < 0) {
                ctl_error(ctl, "Cannot stage %s: %s", image, *reason ? reason : strerror(-r));
                return CTL_FAILED;
        }
        return CTL_OK;
}

static const char *image_operand(Ctl *ctl, const json_t *state) {
        const char *given = ctl->o.n_args > 1 ? ctl->o.args[1] : ctl_string(state, "image");

        if (!given)
                (void) ctl_usage(ctl, "Name the image (docker://REGISTRY/NAME, or dir:FOLDER); the next time this host knows it.");
        else if (!strchr(given, ':') || given[0] == '-') {
                (void) ctl_usage(ctl, "\"%s\" is no image: docker://REGISTRY/NAME, or dir:FOLDER.", given);
                given = NULL;
        }
        return given;
}

/* In what is known by now: fetching took its time, and others learned something meanwhile. */
static void remember(Ctl *ctl, const char *image, const char *digest, bool named) {
        _cleanup_fd_ int lock = host_state_lock(HOST_STATE);
        _cleanup_json_ json_t *state = host_state_load(HOST_STATE);

        if (named)
                host_state_wanted(state, digest);
        if (json_object_set_new(state, "image", json_string(image)) < 0 || host_state_save(HOST_STATE, state) < 0)
                ctl_error(ctl, "The image is staged, but its name cannot be kept in " HOST_STATE ".");
}

typedef enum Upgrade { UPGRADE_STAGED, UPGRADE_RUNS_ALREADY, UPGRADE_LEFT } Upgrade;

/* An operator went back from it; that its name still stands for it is no reason to have it again. */
static bool is_left(Ctl *ctl, const json_t *state, const char *digest) {
        const char *since = host_state_left(state, digest);

        if (since)
                ctl_error(ctl, "An operator went back from image sha256:%s on %s, so it is not staged again: not before it is named (anchorctl host upgrade IMAGE) "
                               "or accepted (anchorctl host accept %s).", digest, since, digest);
        return since;
}

/* Fetches and stages it, unless it is here, or was left and nobody names it now. ret_digest is the image's. */
static CtlExit upgrade_to(Ctl *ctl, const HostOs *os, const json_t *state, const char *image, char ret_digest[static HEX_SHA256_SIZE], Upgrade *ret) {
        bool named = ctl->o.n_args > 1;
        char reason[HOST_REASON_SIZE] = "";
        HostDeployments d = {};
        const HostDeployment *booted, *next;
        CtlExit r;

        r = list(ctl, os, &d);
        if (r != CTL_OK)
                return r;
        if (os->resolve(image, ret_digest, reason) < 0) {
                ctl_error(ctl, "Cannot look at %s: %s", image, reason);
                return CTL_FAILED;
        }
        booted = host_find(&d, HOST_BOOTED);
        next = host_find(&d, HOST_STAGED);
        *ret = !next && booted && strcmp(booted->digest, ret_digest) == 0 ? UPGRADE_RUNS_ALREADY : UPGRADE_STAGED;
        if (*ret == UPGRADE_RUNS_ALREADY || (next && strcmp(next->digest, ret_digest) == 0)) {
                if (named && host_state_left(state, ret_digest))
                        remember(ctl, image, ret_digest, named);
                return CTL_OK;
        }

        r = refuse_rejected(ctl, state, ret_digest);
        if (r == CTL_OK && !named && is_left(ctl, state, ret_digest)) {
                *ret = UPGRADE_LEFT;
                return CTL_OK;
        }
        if (r == CTL_OK)
                r = record(ctl, "host.upgrade", json_pack("{s:s, s:s, s:s}", "digest", ret_digest, "image", image, "from", booted ? booted->digest : ""));
        if (r == CTL_OK)
                r = stage(ctl, os, image, ret_digest);
        if (r == CTL_OK)
                remember(ctl, image, ret_digest, named);
        return r;
}

CtlExit ctl_verb_host_upgrade(Ctl *ctl) {
        _cleanup_json_ json_t *state = NULL;
        char digest[HEX_SHA256_SIZE];
        uint64_t within_s = 0;
        Upgrade outcome;
        const char *image;
        const HostOs *os;
        CtlExit r;

        r = ctl_drain_within(ctl, &within_s);
        if (r == CTL_OK)
                r = find_os(ctl, &os);
        if (r != CTL_OK)
                return r;
        state = host_state_load(HOST_STATE);
        image = image_operand(ctl, state);
        if (!image)
                return CTL_USAGE;

        r = upgrade_to(ctl, os, state, image, digest, &outcome);
        if (r != CTL_OK || outcome == UPGRADE_LEFT)
                return r;
        if (outcome == UPGRADE_RUNS_ALREADY) {
                ctl_note(ctl, "This host runs it already.");
                return CTL_OK;
        }
        ctl_note(ctl, "sha256:%s is staged%s.", digest, ctl->o.apply ? "" : " and becomes the system of the next boot");
        return ctl->o.apply ? ctl_drain_for(ctl, within_s, "upgrade", reboot_now) : CTL_OK;
}

/* So that what was left does not come back by itself: by the name that it has, the next night. */
static void remember_left(Ctl *ctl, const HostDeployments *d) {
        _cleanup_fd_ int lock = host_state_lock(HOST_STATE);
        _cleanup_json_ json_t *state = host_state_load(HOST_STATE);

        if (host_state_go_back(state, d) < 0 || host_state_save(HOST_STATE, state) < 0)
                ctl_error(ctl, "That somebody went back cannot be kept in " HOST_STATE ": host-upgrade.timer may stage the same image again.");
}

CtlExit ctl_verb_host_rollback(Ctl *ctl) {
        char reason[HOST_REASON_SIZE] = "";
        _cleanup_json_ json_t *state = NULL;
        const HostDeployment *booted, *back;
        HostDeployments d = {};
        uint64_t within_s = 0;
        const HostOs *os;
        CtlExit r;

        r = ctl_drain_within(ctl, &within_s);
        if (r == CTL_OK)
                r = find_os(ctl, &os);
        if (r == CTL_OK)
                r = list(ctl, os, &d);
        if (r != CTL_OK)
                return r;
        booted = host_find(&d, HOST_BOOTED);
        back = host_find(&d, HOST_ROLLBACK);
        if (!back) {
                ctl_error(ctl, "There is no deployment to go back to.");
                return CTL_CONFLICT;
        }

        state = host_state_load(HOST_STATE);
        r = refuse_rejected(ctl, state, back->digest);
        if (r == CTL_OK)
                r = record(ctl, "host.rollback", json_pack("{s:s, s:s}", "digest", back->digest, "from", booted ? booted->digest : ""));
        if (r != CTL_OK)
                return r;
        if (os->rollback(&d, reason) < 0) {
                ctl_error(ctl, "Cannot go back: %s", reason);
                return CTL_FAILED;
        }
        remember_left(ctl, &d);
        ctl_note(ctl, "sha256:%s is the system of the next boot.", back->digest);
        return ctl->o.apply ? ctl_drain_for(ctl, within_s, "rollback", reboot_now) : CTL_OK;
}

static int accept_digest(const char *digest) {
        _cleanup_fd_ int lock = host_state_lock(HOST_STATE);
        _cleanup_json_ json_t *state = host_state_load(HOST_STATE);

        host_state_accept(HOST_STATE, state, digest);
        return host_state_save(HOST_STATE, state);
}

/* What upgrade and rollback refuse, or leave alone, until then. What is known of the host decides, so the deployments are not asked for. */
CtlExit ctl_verb_host_accept(Ctl *ctl) {
        const char *given = ctl->o.args[1], *digest = strncmp(given, "sha256:", strlen("sha256:")) == 0 ? given + strlen("sha256:") : given;
        _cleanup_json_ json_t *state = NULL;
        const char *left, *reason;
        const json_t *entry;
        CtlExit r;
        int saved;

        r = only_root(ctl);
        if (r != CTL_OK)
                return r;
        state = host_state_load(HOST_STATE);
        entry = host_state_rejected(state, digest);
        left = host_state_left(state, digest);
        if (!entry && !left) {
                ctl_error(ctl, "This host has not rejected an image sha256:%s, and nobody went back from one; \"anchorctl host status --json\" has those that it has "
                               "(\"rejected\", \"left\").", digest);
                return CTL_NOT_FOUND;
        }

        reason = entry ? ctl_string(entry, "reason") : "an operator went back from it";
        r = record(ctl, "host.accepted", json_pack("{s:s, s:s, s:s}", "digest", digest, "reason", reason ?: "?",
                                                   "time", (entry ? ctl_string(entry, "time") : left) ?: "?"));
        if (r != CTL_OK)
                return r;
        saved = accept_digest(digest);
        if (saved < 0) {
                ctl_error(ctl, "Cannot write " HOST_STATE " (%s): nothing has changed for the image.", strerror(-saved));
                return CTL_FAILED;
        }
        ctl_note(ctl, entry ? "sha256:%s may be staged again, and is tried as one that this host does not know." : "sha256:%s may be staged again, also by its name.", digest);
        return CTL_OK;
}
