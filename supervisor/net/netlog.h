/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What a run's nftables rejected, or dropped for its source, packet by packet (nflog), made into records of the audit log. See netlog.c. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "net/run-net.h"
#include "util/cleanup.h"

/* ---- pure: what the kernel sends ---- */

typedef struct NetlogPacket {
        RunNetDenial denial; /* packets: 1 */
        uint32_t seq;
        uint16_t group; /* RUN_NET_LOG_GROUP or RUN_NET_SOURCE_LOG_GROUP, or whatever the message says */
} NetlogPacket;

/* Reads one netlink message of an nflog group (nlmsghdr and all). 1: a packet in ret. 0: another message, or a packet of which
 * nothing can be told but its number, with protocol 0. -EBADMSG: not a message of nflog. */
int netlog_parse(const void *data, size_t size, NetlogPacket *ret);

/* ---- pure: counting ---- */

enum {
        NETLOG_KEYS_MAX = 32,  /* destinations told apart in one window; the rest is one more */
        NETLOG_WINDOW_SEC = 10,
};

/* One record that is due. `others`: of destinations beyond the bound; `lost`: what the kernel could not deliver. */
typedef struct NetlogRecord {
        RunNetDenial denial;
        bool others, lost;
} NetlogRecord;

typedef struct NetlogTally NetlogTally;

int netlog_tally_new(NetlogTally **ret);
NetlogTally *netlog_tally_free(NetlogTally *t);
DEFINE_CLEANUP(NetlogTally *, netlog_tally_free)

/* Counts a packet, and by its number those before it that were lost. True if it is the first of its destination in this window: then it is
 * due at once, in ret. */
bool netlog_tally_add(NetlogTally *t, const NetlogPacket *p, NetlogRecord *ret);

/* The end of a window: what was counted and was not due yet, at most NETLOG_KEYS_MAX + 2 records; then nothing is counted any more. */
size_t netlog_tally_flush(NetlogTally *t, NetlogRecord ret[static NETLOG_KEYS_MAX + 2]);

/* ---- the process ---- */

typedef struct Netlog Netlog;

/* Opens the group in this process's namespace (CAP_NET_ADMIN), and gives up every capability before anything is read. Negative errno, logged.
 * SIGTERM ends the loop when what the kernel still holds is read and auditd has taken it, or five seconds later. */
int netlog_new(Netlog **ret, sd_event *event, const char *run);
Netlog *netlog_free(Netlog *n);
DEFINE_CLEANUP(Netlog *, netlog_free)
