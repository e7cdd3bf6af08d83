/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What proxy.c and connection.c share. */

#include <netinet/in.h>

#include "audit/notes.h"
#include "egress/grant-ends-api.h"
#include "egress/held-grants-api.h"
#include "ipc/ipc.h"
#include "proxy/dns-server.h"
#include "proxy/proxy.h"
#include "proxy/refused-log.h"
#include "util/text.h"

enum {
        PROXY_CONNECTIONS_MAX = 512,
        PROXY_TRANSPARENT_PORT = 15001,
        PROXY_EXPLICIT_PORT = 3128,
        PROXY_DNS_PORT = 53,
};

typedef struct Connection Connection;

typedef struct Listener {
        Proxy *proxy;             /* borrowed */
        int fd;                   /* owned */
        sd_event_source *io;      /* owned */
        bool explicit_proxy;
} Listener;

/* What nothing may carry in cleartext. The same for all of a run, so that they are asked for once, when something is to be read for the first time. */
typedef struct Sentinels {
        bool known;
        size_t n;
        char **credentials, **texts; /* owned, with the n texts of each: names, and what to look for */
} Sentinels;

void sentinels_done(Sentinels *s);

struct Proxy {
        sd_event *event;          /* ref */
        char run[ID_LENGTH + 1];
        IpcClient *egress;        /* owned: questions about connections, several at once */
        RefusedLog *refused;      /* owned: what egressd is told of refusals that it was not asked about */
        HeldGrants *held;         /* owned: what connections are made with */
        GrantEnds *ends;          /* owned: what egressd is told of connections that are over */
        IpcClient *names;         /* owned: questions about names */
        IpcClient *watch;         /* owned */
        IpcClient *inject;        /* owned */
        IpcClient *secretd;       /* owned */
        AuditClient *audit;       /* owned */
        Notes *notes;             /* owned */
        Sentinels sentinels;
        DnsServer *dns;           /* owned */
        Listener transparent, explicit_proxy;
        Connection *connections;  /* owned */
        Connection *dead;         /* owned: ended, but an answer to a call of theirs may still come */
        size_t n_connections;
        uint64_t beat_usec;       /* when the last heartbeat came; CLOCK_BOOTTIME */
        bool watching;
        sd_event_source *tick;    /* owned */
};

/* Takes fd over, also on failure. `local` is where the guest connected to. */
void connection_begin(Proxy *p, int fd, bool explicit_proxy, const struct sockaddr_in *local, const struct sockaddr_in *peer);

/* Ends every connection, or the one that was made under that grant. Resets them. */
void connections_cut_all(Proxy *p, const char *reason);
void connections_cut_grant(Proxy *p, uint64_t grant);

/* After the clients, whose answers they may wait for, are gone. */
void connections_done(Proxy *p);

/* A place is free again. */
void proxy_on_connection_gone(Proxy *p);
