/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Answers the guest's DNS questions, whichever resolver it thinks it asks, with what egressd says. */

#include <systemd/sd-event.h>

#include "ipc/ipc.h"
#include "proxy/refused-log.h"
#include "util/cleanup.h"

typedef struct DnsServer DnsServer;

enum {
        DNS_PENDING_MAX = 256,    /* questions that wait for egressd */
        DNS_STREAMS_MAX = 32,     /* TCP connections */
        DNS_STREAM_SEC = 10,      /* from one question to the next */
        DNS_RATE = 500,           /* questions a second; twice as many in a burst. The others are refused and counted */
};

/* `client` speaks to egressd, `refused` is told what is refused here; borrowed. */
int dns_server_new(DnsServer **ret, sd_event *event, IpcClient *client, RefusedLog *refused);
DnsServer *dns_server_free(DnsServer *s);
DEFINE_CLEANUP(DnsServer *, dns_server_free)

/* To be called about once a second: connections are accepted again after it was out of descriptors. */
void dns_server_tick(DnsServer *s);

/* Each takes the descriptor over on success. */
int dns_server_add_udp(DnsServer *s, int fd);
int dns_server_add_tcp(DnsServer *s, int fd);
