/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */
#pragma once

/*
 * What the fence's programs and user space share: layouts of the maps, and the addresses that no grant
 * can open.
 *
 * A grant admits one (cgroup, address, port, protocol) for new connections until it expires. A socket
 * that connected under it remembers the grant's id; its packets pass for as long as that id is in the
 * map `live`, whatever has expired since, and for as long as egressd's heartbeat is fresh. Taking the id out of `live`
 * cuts the connections made under it at their next packet.
 */

#include <linux/types.h>

#define FENCE_MAPS_DIR "/run/anchorhold/maps"       /* grants, live, heartbeat: egressd's group writes them; checked: it reads it */
#define FENCE_PROGS_DIR "/sys/fs/bpf/anchorhold/prog"   /* programs: root */
#define FENCE_PRIVATE_DIR "/sys/fs/bpf/anchorhold/maps" /* what only the programs and root's tools use */
#define FENCE_LINKS_DIR "/sys/fs/bpf/anchorhold/uplink" /* one link a device, named by its index */

#define FENCE_MAX_GRANTS 1048576 /* egressd gives each run its share of it */
#define FENCE_MAX_RUN_VERDICTS 16384
#define FENCE_MAX_HOST_UNITS 4096
#define FENCE_MAX_HOST_DROPS 256
#define FENCE_HEARTBEAT_NS (10ULL * 1000 * 1000 * 1000)

/* Key of `grants`, value of `live`. An IPv4 address is written in its IPv4-mapped IPv6 form. */
struct fence_key {
        __u64 cgroup_id;
        __u8 address[16];
        __be16 port;
        __u8 protocol; /* IPPROTO_TCP or IPPROTO_UDP */
        __u8 zero[5];
};

/* Set in the ids of the grants that the agreement check makes for itself (net/check-cgroup.c); egressd counts from the bottom. */
#define FENCE_CHECK_ID (1ULL << 63)

/* Value of `grants`. */
struct fence_grant {
        __u64 id;         /* never 0, never used twice during one boot */
        __u64 expires_ns; /* CLOCK_BOOTTIME; bounds new connections only */
};

/* Value of `config`, one entry. */
struct fence_config {
        __u64 netns_cookie; /* of the host's network namespace, the only one where a run's sockets may be */
};

/* Value of `place`, one entry: where anchorhold-runs.slice is in the cgroup tree. Whoever writes it has put the programs of the full layer there first. */
struct fence_place {
        __u64 cgroup_id; /* 0: nowhere; the floor lets nothing pass */
        __u32 level;     /* how deep; the programs find out */
        __u32 zero;
};

/* Value of `strict`, one entry: may only listed units of the host send? Whoever writes it fills `host_units` first. */
enum fence_strictness {
        FENCE_STRICT_UNKNOWN, /* nobody has said yet: as off, and the warden lets no run begin */
        FENCE_STRICT_OFF,
        FENCE_STRICT_ON,
};

struct fence_strict {
        __u64 root_id; /* the cgroup that is the root of the tree as this host sees it */
        __u32 is;
        __u32 zero;
};

/* Value of `sockets`, the storage of a socket. */
struct fence_socket {
        __u64 grant; /* 0: none yet */
};

/* Index of `verdicts`, a count each for every CPU. */
enum fence_verdict {
        FENCE_CONNECT_ALLOWED,
        FENCE_CONNECT_NO_GRANT,
        FENCE_CONNECT_EXPIRED,
        FENCE_CONNECT_NEVER,     /* metadata, loopback, link-local, multicast */
        FENCE_CONNECT_HEARTBEAT, /* egressd's, or the warden's */
        FENCE_CONNECT_OTHER,     /* unknown family, protocol or namespace */
        FENCE_CREATE_REFUSED,
        FENCE_CREATE_ELSEWHERE,  /* plain TCP or UDP, but in a namespace of its own, where nothing can be reached */
        FENCE_PACKET_NO_GRANT,
        FENCE_PACKET_REVOKED,
        FENCE_PACKET_HEARTBEAT,
        FENCE_PACKET_OTHER,      /* not what its socket's grant names, or not understood */
        FENCE_UNIX_ABSTRACT,     /* a Unix socket without a path */
        FENCE_BIND_REFUSED,
        FENCE_OPTION_REFUSED,
        FENCE_UPLINK_DROPPED,    /* at a device of the host, made below the slice and without a grant */
        FENCE_HOST_DROPPED,      /* strict mode, made outside of the slice and below no listed unit */
        FENCE_TESTED,            /* one of our own tests, whatever the verdict was */
        FENCE_N_VERDICTS,
};

/* Key of `run_verdicts`: the same counts for each child of anchorhold-runs.slice, which is one run's slice. */
struct fence_count_key {
        __u64 cgroup_id;
        __u32 verdict;
        __u32 zero;
};

/* Our own tests of the fence go to these ports and to this abstract name, which nobody has. They are judged like anything else, and counted apart: what is
 * under the other verdicts was somebody else's attempt. A port alone makes no test, or whoever has taken over a unit would try its luck there: what does is
 * an address of documentation (fence_is_nowhere()), or a key in `grants` with the cgroup, FENCE_TEST_PORT and nothing else, which admits nothing. The agreement check puts that
 * there for as long as it asks (net/check-cgroup.c). */
#define FENCE_TEST_PORT 9 /* discard */
#define FENCE_OTHER_TEST_PORT 10
#define FENCE_TEST_NAME "anchor-fence-nobody"

static inline int fence_is_test(__be16 port) {
        return port == (__be16) __builtin_bswap16(FENCE_TEST_PORT) || port == (__be16) __builtin_bswap16(FENCE_OTHER_TEST_PORT);
}

static inline __be16 fence_test_port(void) {
        return (__be16) __builtin_bswap16(FENCE_TEST_PORT);
}

/* 192.0.2.1 and 2001:db8::1 (RFC 5737, RFC 3849), in the instructions: constants would be a map, and another one each time that this is loaded. */
static inline int fence_is_nowhere(const __u8 a[16]) {
        int i, zeros = 0;

        for (i = 4; i < 10; i++)
                zeros += a[i] == 0;
        if (zeros < 6)
                return 0;
        if (a[0] == 0 && a[1] == 0 && a[2] == 0 && a[3] == 0)
                return a[10] == 0xff && a[11] == 0xff && a[12] == 192 && a[13] == 0 && a[14] == 2 && a[15] == 1;
        return a[0] == 0x20 && a[1] == 0x01 && a[2] == 0x0d && a[3] == 0xb8 && a[10] == 0 && a[11] == 0 && a[12] == 0 && a[13] == 0 && a[14] == 0 && a[15] == 1;
}

static inline int fence_metadata_v4(const __u8 a[4]) {
        switch (a[0]) {
        case 169: /* link-local, with the metadata services of nearly everybody: .169.254, .170.2, .170.23 */
                return a[1] == 254;
        case 100: /* Alibaba Cloud metadata; BytePlus's and Volcano Engine's */
                return (a[1] == 100 && a[2] == 100 && a[3] == 200) || (a[1] == 96 && a[2] == 0 && a[3] == 96);
        case 168: /* Azure's wire server */
                return a[1] == 63 && a[2] == 129 && a[3] == 16;
        case 192: /* Oracle Cloud's older metadata address; Equinix Metal's */
                return (a[1] == 0 && a[2] == 0 && a[3] == 192) || (a[1] == 80 && a[2] == 8 && a[3] == 124);
        default:
                return 0;
        }
}

static inline int fence_never_v4(const __u8 a[4]) {
        return a[0] == 0 || a[0] == 127 || a[0] >= 224 || fence_metadata_v4(a);
}

/* Behind a local-use NAT64 prefix (64:ff9b:1::/48) the address may lie in four places, for the operator chooses how long the prefix is
 * (RFC 6052, 2.2; byte 8 is always zero). Those that are none hold anything: only what is nobody's by chance counts there. */
static inline int fence_metadata_nat64(const __u8 a[16]) {
        __u8 behind_48[4] = { a[6], a[7], a[9], a[10] }, behind_56[4] = { a[7], a[9], a[10], a[11] };

        return a[4] == 0 && a[5] == 1 && (fence_metadata_v4(behind_48) || fence_metadata_v4(behind_56) || fence_metadata_v4(a + 9));
}

/* The unique local addresses at which clouds answer: the whole prefix that each has taken. */
static inline int fence_never_ula(const __u8 a[16]) {
        if (a[0] == 0xfd && a[1] == 0x20)
                return a[2] == 0x00 && a[3] == 0xce; /* fd20:ce::/32, Google */
        if (a[0] != 0xfd || a[1] != 0x00)
                return 0;

        switch (a[2] << 8 | a[3]) {
        case 0x0ec2: /* fd00:ec2::/32, Amazon */
        case 0x00c1: /* fd00:c1::/32, Oracle */
        case 0x0100: /* fd00:100::/32, Alibaba */
        case 0xa9fe: /* fd00:a9fe::/32, Akamai */
        case 0x0042: /* fd00:42::/32, Scaleway */
                return 1;
        default:
                return 0;
        }
}

/* Is this an address that no policy opens? Also where the IPv4 address hides in NAT64 (RFC 6052, RFC 8215), 6to4,
 * Teredo or ISATAP. egressd refuses many more; these are what must stay shut even if egressd is an attacker's. */
static inline int fence_never(const __u8 a[16]) {
        __u8 hidden[4];
        int i, zeros = 0;

        for (i = 0; i < 10; i++)
                zeros += a[i] == 0;

        /* IPv4-translated (RFC 2765): eight zeros, ffff, and two more */
        if (zeros == 8 && a[8] == 0xff && a[9] == 0xff && a[10] == 0 && a[11] == 0)
                return fence_never_v4(a + 12);
        if (zeros == 10 && a[10] == 0xff && a[11] == 0xff)
                return fence_never_v4(a + 12);
        if (zeros == 10 && a[10] == 0 && a[11] == 0)
                return 1; /* ::, ::1, IPv4-compatible */

        /* ISATAP's interface identifier, behind whatever prefix */
        if ((a[8] & 0xfd) == 0 && a[9] == 0 && a[10] == 0x5e && a[11] == 0xfe && fence_never_v4(a + 12))
                return 1;

        if (a[0] == 0x00 && a[1] == 0x64 && a[2] == 0xff && a[3] == 0x9b)
                return fence_never_v4(a + 12) || fence_metadata_nat64(a);
        if (a[0] == 0x20 && a[1] == 0x02)
                return fence_never_v4(a + 2);
        if (a[0] == 0x20 && a[1] == 0x01 && a[2] == 0x00 && a[3] == 0x00) {
                for (i = 0; i < 4; i++)
                        hidden[i] = a[12 + i] ^ 0xff;
                return fence_never_v4(hidden);
        }

        if (a[0] == 0xfe && (a[1] & 0xc0) == 0x80)
                return 1; /* link-local */
        if (a[0] == 0xff)
                return 1; /* multicast */

        return fence_never_ula(a);
}
