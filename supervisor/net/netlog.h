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
        uint16_t group; /* RUN_NET_LOG_GROUP, RUN_NET_SOURCE_LOG_GROUP, RUN_NET_FRAME_LOG_GROUP, or whatever the message says */
} NetlogPacket;

/* Reads one netlink message of an nflog group (nlmsghdr and all). 1: a packet in ret. 0: another message, or a packet of which
 * nothing can be told but its number, with protocol 0. -EBADMSG: not a message of nflog. */
int netlog_parse(const void *data, size_t size, NetlogPacket *ret);

/* ---- pure: counting ---- */

enum {
        NETLOG_KEYS_MAX = 32,  /* destinations told apart in one window; the rest is one more */
        NETLOG_WINDOW_SEC = 10,
        NETLOG_RECORDS_MAX = 4000, /* of a group, in the life of this process; beyond it … */
        NETLOG_SPENT_WINDOWS = 60, /* … all is counted together, and due once in so many windows */
};

/* One record that is due. `others`: of destinations beyond the bound; `spent`: and of those beyond the number of records; `lost`: what the kernel could not
 * deliver. */
typedef struct NetlogRecord {
        RunNetDenial denial;
        bool others, spent, lost;
} NetlogRecord;

typedef struct NetlogTally NetlogTally;

int netlog_tally_new(NetlogTally **ret);
NetlogTally *netlog_tally_free(NetlogTally *t);
DEFINE_CLEANUP(NetlogTally *, netlog_tally_free)

/* Counts a packet, and by its number those before it that were lost. True if it is the first of its destination in this window: then it is
 * due at once, in ret. */
bool netlog_tally_add(NetlogTally *t, const NetlogPacket *p, NetlogRecord *ret);

/* A record that could not be begun: it goes on being counted, and is due at the end of the window. */
void netlog_tally_give_back(NetlogTally *t, const NetlogRecord *r);
/* One for so many that never will be recorded as it is: they are due with those of other destinations. */
void netlog_tally_refused(NetlogTally *t, uint64_t packets);

/* The end of a window: what was counted and is due now, at most NETLOG_KEYS_MAX + 2 records. With `last` it is all that was counted. */
size_t netlog_tally_flush(NetlogTally *t, bool last, NetlogRecord ret[static NETLOG_KEYS_MAX + 2]);

/* ---- how much is in the log, in memory that outlives this process ---- */

enum { NETLOG_N_GROUPS = 3 };

typedef struct NetlogRecorded NetlogRecorded;

/* What systemd kept for us of an earlier life, else zeros, of which it is asked to keep them. */
int netlog_recorded_open(NetlogRecorded **ret);
NetlogRecorded *netlog_recorded_free(NetlogRecorded *m);
DEFINE_CLEANUP(NetlogRecorded *, netlog_recorded_free)

void netlog_recorded_add(NetlogRecorded *m, size_t group, uint64_t packets);
/* Of so many that the kernel has logged, those that are not in the audit log: never more than that. */
uint64_t netlog_recorded_lacks(const NetlogRecorded *m, size_t group, uint64_t logged);

/* ---- the process ---- */

typedef struct Netlog Netlog;

/* Opens the groups in this process's namespace (CAP_NET_ADMIN), and gives up every capability before anything is read. Negative errno, logged.
 * SIGTERM ends the loop when what the kernel still holds is read and auditd has taken it, or seven seconds later. */
int netlog_new(Netlog **ret, sd_event *event, const char *run);
Netlog *netlog_free(Netlog *n);
DEFINE_CLEANUP(Netlog *, netlog_free)
