/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-net up RUN | down RUN: the network of one run's guest. Takes the id and nothing else. */

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "audit/audit.h"
#include "net/fence-counts.h"
#include "net/run-net.h"
#include "net/run-ruleset.h"
#include "util/cgroup.h"
#include "util/cleanup.h"
#include "util/log.h"
#include "util/text.h"

#define TELL_USEC (4 * 1000 * 1000ULL) /* anchord and the unit wait for longer */

static int up(const char *run) {
        const char *step;
        int r;

        r = run_net_up(run, &step);
        if (r < 0)
                return log_error_errno(r, "run %s: no network, %s", run, step);
        return 0;
}

/* ---- what the kernel counted, at the end ---- */

static json_t *denied_to_json(const RunNetDenial *denials, size_t n) {
        _cleanup_json_ json_t *list = json_array();
        char address[INET_ADDRSTRLEN];

        for (size_t i = 0; i < n; i++) {
                (void) inet_ntop(AF_INET, denials[i].address, address, sizeof(address));
                if (json_array_append_new(list, json_pack("{s:i, s:s, s:i, s:I}", "protocol", (int) denials[i].protocol, "name", address, "port",
                                                          (int) denials[i].port, "packets", (json_int_t) denials[i].packets)) < 0)
                        return NULL;
        }
        return TAKE_PTR(list);
}

typedef struct Totals {
        json_t *data;                           /* owned; NULL if there is nothing to tell */
        uint64_t cgroup_id;                     /* of the run's slice, by which the programs count; 0: nothing was read of them */
        char key[sizeof("network-") + 16];      /* of the record: the network's own */
} Totals;

static void totals_done(Totals *t) {
        json_decref(t->data);
}

/* The programs count by the cgroup of the run's slice, in which this process is. */
static json_t *read_fence_counts(const char *run, uint64_t *ret_cgroup_id) {
        char slice[sizeof("anchorhold-runs-.slice") + ID_LENGTH];
        uint64_t counts[FENCE_N_VERDICTS];
        _cleanup_fd_ int fd = -1;
        struct stat st;
        int r;

        (void) snprintf(slice, sizeof(slice), "anchorhold-runs-%s.slice", run);
        fd = r = cgroup_open_own(slice);
        if (r >= 0)
                r = fstat(fd, &st) < 0 ? -errno : fence_counts_read(st.st_ino, counts);
        if (r < 0) {
                log_warning_errno(r, "run %s: cannot read what the eBPF programs counted", run);
                return json_null();
        }
        *ret_cgroup_id = st.st_ino;
        return fence_counts_to_json(counts);
}

/* What the namespace's rules and the programs counted. */
static void read_totals(const char *run, Totals *ret) {
        uint64_t c[RUN_RULESET_N_RULES], rejected, frames, forged, cookie;
        RunNetDenial denials[RUN_NET_MAX_DENIED];
        size_t n;
        int r;

        r = run_net_read_denials(run, denials, &n);
        if (r >= 0)
                r = run_ruleset_read_counters(c);
        if (r >= 0)
                r = run_net_read_cookie(&cookie);
        if (r < 0) {
                if (r != -ENOENT)
                        log_warning_errno(r, "run %s: cannot read what was rejected", run);
                return;
        }

        (void) snprintf(ret->key, sizeof(ret->key), "network-%" PRIx64, cookie);
        rejected = c[RUN_RULE_REJECT_TCP] + c[RUN_RULE_REJECT];
        frames = c[RUN_RULE_IPV6_TCP] + c[RUN_RULE_IPV6_NOT_TCP] + c[RUN_RULE_OTHER_FRAME];
        forged = c[RUN_RULE_SOURCE_TCP] + c[RUN_RULE_SOURCE_NOT_TCP];
        ret->data = json_pack("{s:I, s:I, s:I, s:{s:I, s:I, s:I}, s:{s:I, s:I}, s:{s:I, s:I}, s:{s:I, s:I, s:I}, s:o, s:o}", "rejected", (json_int_t) rejected, "logged",
                                        (json_int_t) c[RUN_RULE_LOGGED], "unlogged", (json_int_t) (rejected - c[RUN_RULE_LOGGED]), "dropped", "other_device",
                                        (json_int_t) c[RUN_RULE_OTHER_DEVICE], "not_ipv4", (json_int_t) (frames + c[RUN_RULE_NOT_IPV4]), "other_source",
                                        (json_int_t) (forged + c[RUN_RULE_OTHER_SOURCE]), "forged", "logged", (json_int_t) c[RUN_RULE_SOURCE_LOGGED], "unlogged",
                                        (json_int_t) (forged - c[RUN_RULE_SOURCE_LOGGED]), "frames", "logged", (json_int_t) c[RUN_RULE_FRAME_LOGGED], "unlogged",
                                        (json_int_t) (frames - c[RUN_RULE_FRAME_LOGGED]), "passed", "intercept", (json_int_t) c[RUN_RULE_TO_INTERCEPT], "dns",
                                        (json_int_t) (c[RUN_RULE_TO_DNS_UDP] + c[RUN_RULE_TO_DNS_TCP]), "proxy", (json_int_t) c[RUN_RULE_TO_PROXY],
                                        "denied", denied_to_json(denials, n), "fence", read_fence_counts(run, &ret->cgroup_id));
}

/*
 * The network is gone before anybody waits for the audit log: who waits for too long is killed, so that this ends before that. It
 * was rejected all the same.
 *
 * If the network cannot be removed, whoever tries again finds it as it was, and its totals are sent again: under the same key, and with what the
 * programs counted, which is forgotten only when it is gone. So that is no second record. Another network of the same run may have counted the very
 * same, and is one.
 */
static int down(const char *run) {
        _cleanup_(totals_done) Totals totals = {};
        const char *step;
        int r, k;

        read_totals(run, &totals);
        r = run_net_down(run, &step);
        if (r < 0)
                log_error_errno(r, "run %s: cannot remove its network, %s", run, step);
        else if (totals.cgroup_id > 0)
                (void) fence_counts_drop(totals.cgroup_id);
        if (!totals.data)
                return r;

        k = audit_append_sync_until(totals.key, "egress.totals", run, json_incref(totals.data), time_monotonic() + TELL_USEC);
        if (k < 0)
                log_warning_errno(k, "run %s: the totals of its network are not in the audit log", run);
        return r;
}

int main(int argc, char *argv[]) {
        int r;

        log_init("anchor-net");

        if (argc == 3 && strcmp(argv[1], "up") == 0)
                r = up(argv[2]);
        else if (argc == 3 && strcmp(argv[1], "down") == 0)
                r = down(argv[2]);
        else {
                fprintf(stderr, "usage: anchor-net {up|down} RUN\n");
                return 2;
        }

        return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
