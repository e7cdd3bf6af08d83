/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchor-net up RUN | down RUN: the network of one run's guest. Takes the id and nothing else. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "audit/audit.h"
#include "net/run-net.h"
#include "util/cleanup.h"
#include "util/log.h"

#define DENIED_RULE "guest-network" /* the nftables ruleset itself, see net/run-ruleset.c */

static int up(const char *run) {
        const char *step;
        int r;

        r = run_net_up(run, &step);
        if (r < 0)
                return log_error_errno(r, "run %s: no network, %s", run, step);
        return 0;
}

static const char *reason_of(const RunNetDenial *d) {
        switch (d->protocol) {
        case IPPROTO_TCP:
                return "literal-address";
        case IPPROTO_UDP:
                return "udp";
        case IPPROTO_ICMP:
                return "icmp";
        default:
                return "protocol";
        }
}

/* What the guest tried and the ruleset rejected becomes evidence. Best effort: it was rejected all the
 * same, and a run's end waits for nobody. */
static void report_denials(const char *run) {
        RunNetDenial denials[RUN_NET_MAX_DENIED];
        char address[INET_ADDRSTRLEN];
        size_t n;
        int r;

        r = run_net_read_denials(run, denials, &n);
        if (r < 0) {
                if (r != -ENOENT)
                        log_warning_errno(r, "run %s: cannot read what was rejected", run);
                return;
        }

        for (size_t i = 0; i < n; i++) {
                const RunNetDenial *d = &denials[i];

                (void) inet_ntop(AF_INET, d->address, address, sizeof(address));
                r = audit_append_sync("conn.deny", run, NULL, NULL,
                                      json_pack("{s:s, s:i, s:i, s:s, s:s, s:I}", "name", address, "port", (int) d->port,
                                                "protocol", (int) d->protocol, "rule", DENIED_RULE, "reason", reason_of(d),
                                                "count", (json_int_t) d->packets));
                if (r < 0) {
                        log_warning_errno(r, "run %s: %zu rejected destinations are not in the audit log, %s:%u first",
                                          run, n - i, address, d->port);
                        return;
                }
        }
}

static int down(const char *run) {
        const char *step;
        int r;

        report_denials(run);

        r = run_net_down(run, &step);
        if (r < 0)
                return log_error_errno(r, "run %s: cannot remove its network, %s", run, step);
        return 0;
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
