/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The network that one run's guest sees: a namespace with a tap device, a gateway address, and no
 * uplink. docs/interfaces.md, "Inside the run's namespace".
 */

#include <stddef.h>
#include <stdint.h>

#define RUN_NET_TAP "tap0"
#define RUN_NET_TAP_GROUP "anchorhold-tap"
#define RUN_NET_GUEST "10.255.255.2"
#define RUN_NET_GATEWAY "10.255.255.1"
#define RUN_NET_PREFIX 30
#define RUN_NET_SYNTHETIC "198.18.0.0" /* /15, RFC 2544 */
#define RUN_NET_SYNTHETIC_PREFIX 15
#define RUN_NET_PORT_INTERCEPT 15001
#define RUN_NET_PORT_DNS 53
#define RUN_NET_PORT_PROXY 3128
#define RUN_NET_LOG_GROUP 1        /* what is rejected */
#define RUN_NET_SOURCE_LOG_GROUP 2 /* what is dropped for a source address that is not the guest's, */
#define RUN_NET_FRAME_LOG_GROUP 3  /* what is neither IPv4 nor ARP; */
#define RUN_NET_LOG_RATE 100  /* of each, packets a second, */
#define RUN_NET_LOG_BURST 200 /* after so many at once */
#define RUN_NET_MAX_DENIED 256

/* Makes the namespace of that run anew (what was there under its name is removed first) and leaves this
 * thread in it. On failure nothing is left; *ret_step names what failed, a static string. */
int run_net_up(const char *run, const char **ret_step);

/* Puts into this thread's namespace, which must be new, what a run's has: devices, addresses, routes and rules. The agreement check makes
 * its twin of a run's namespace by it as well. On failure *ret_step names what failed, a static string. */
int run_net_fill(const char **ret_step);

/* What nftables rejected or dropped: one destination, and how many packets went there. */
typedef struct RunNetDenial {
        uint8_t protocol;   /* IPPROTO_… */
        uint8_t address[4];
        uint16_t port;      /* host order; 0 for protocols without ports */
        uint8_t source[4];  /* of packets that are dropped for it; else zeros */
        uint16_t ether;     /* EtherType of frames that are not IPv4; else 0. address is zeros then, and protocol 0 but for IPv6 */
        uint8_t address6[16]; /* IPv6: where to */
        uint64_t packets;
} RunNetDenial;

/* Enters the run's namespace; this thread stays in it. -ENOENT if there is no such namespace. */
int run_net_enter(const char *run);

/* Enters the run's namespace (this thread stays in it) and reads what was rejected there so far, at
 * most RUN_NET_MAX_DENIED. -ENOENT if there is no such namespace. */
int run_net_read_denials(const char *run, RunNetDenial ret[static RUN_NET_MAX_DENIED], size_t *ret_n);

/* What tells the network namespace in which the calling thread is from all others of this boot, also from those that are gone: the kernel's
 * cookie of it. The number of its inode is given to the next one. */
int run_net_read_cookie(uint64_t *ret);

/* Removes the namespace with everything in it. Nothing there is fine. */
int run_net_down(const char *run, const char **ret_step);
