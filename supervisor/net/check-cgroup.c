/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What do the programs say to a process in the run's cgroup? This process is one: anchor-probe, which may write grants and
 * reads nothing but the kernel's answers.
 *
 * Most probes are connect() of UDP sockets: the programs are asked as for TCP, but no packet exists, so a broken fence lets none out. TCP
 * is tried where the packet would stay: on loopback and to the host's own address. The ports are those of tests, and while they are tried this process's cgroup is
 * marked as one that tests (ebpf/fence-api.bpf.h): so they are not counted among a run's attempts.
 *
 * The control is a grant that this process writes for its own cgroup, to an address of documentation (RFC 5737), and takes back. An
 * egressd that begins just then closes what it does not know, so that one control that failed proves nothing: a second one does.
 */

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "fence-api.bpf.h"
#include "net/check.h"
#include "util/cgroup.h"
#include "util/text.h"

#define CONTROL "198.51.100.1"
#define GRANT_NSEC (5ULL * 1000 * 1000 * 1000)

/* CHECK_DENIED, CHECK_ALLOWED, or negative errno. */
static int try(int type, int family, const void *address, uint16_t port) {
        struct sockaddr_in6 sin6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
        struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port) };
        _cleanup_fd_ int fd = -1;
        int r;

        fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return errno == EPERM || errno == EAFNOSUPPORT ? CHECK_DENIED : -errno;

        if (family == AF_INET) {
                memcpy(&sin.sin_addr, address, sizeof(sin.sin_addr));
                r = connect(fd, (struct sockaddr *) &sin, sizeof(sin));
        } else {
                memcpy(&sin6.sin6_addr, address, sizeof(sin6.sin6_addr));
                r = connect(fd, (struct sockaddr *) &sin6, sizeof(sin6));
        }
        /* any other error comes from later on: the programs had let it pass */
        return r < 0 && errno == EPERM ? CHECK_DENIED : CHECK_ALLOWED;
}

static int try_text(int type, const char *address, uint16_t port) {
        struct in6_addr six;
        struct in_addr four;

        if (inet_pton(AF_INET, address, &four) == 1)
                return try(type, AF_INET, &four, port);
        if (inet_pton(AF_INET6, address, &six) == 1)
                return try(type, AF_INET6, &six, port);
        return -EINVAL;
}

typedef struct Attempt {
        CheckProbe probe;
        int type;
        const char *address;
} Attempt;

static const Attempt attempts[] = {
        { CHECK_METADATA,      SOCK_DGRAM,  "169.254.169.254"        },
        { CHECK_METADATA,      SOCK_DGRAM,  "::ffff:169.254.169.254" },
        { CHECK_METADATA,      SOCK_DGRAM,  "fd00:ec2::254"          },
        { CHECK_METADATA,      SOCK_DGRAM,  "168.63.129.16"          },
        { CHECK_LOOPBACK,      SOCK_DGRAM,  "127.0.0.1"              },
        { CHECK_LOOPBACK,      SOCK_STREAM, "127.0.0.1"              },
        { CHECK_LOOPBACK,      SOCK_STREAM, "::1"                    },
        { CHECK_UNLISTED_NAME, SOCK_DGRAM,  "192.0.2.1"              },
        { CHECK_UNLISTED_NAME, SOCK_DGRAM,  "2001:db8::1"            },
};

/* One that went wrong is not made good by another. */
static int note(CheckTable *t, CheckProbe probe, int r) {
        CheckResult *result = &t->results[CHECK_CGROUP][probe], wanted = probe == CHECK_CONTROL ? CHECK_ALLOWED : CHECK_DENIED;

        if (r < 0)
                return check_fail(t, r, "cannot try %s from the run's cgroup", check_probe_name(probe));
        if (*result == CHECK_NOT_TRIED || *result == wanted)
                *result = (CheckResult) r;
        return 0;
}

/* Every address of this host but loopback and link-local. */
static int try_host(CheckTable *t) {
        struct ifaddrs *list = NULL;
        int r = 0;

        if (getifaddrs(&list) < 0)
                return check_fail(t, -errno, "cannot list this host's addresses");

        for (struct ifaddrs *a = list; a && r >= 0; a = a->ifa_next) {
                if (!a->ifa_addr || (a->ifa_flags & IFF_LOOPBACK))
                        continue;
                if (a->ifa_addr->sa_family == AF_INET)
                        r = note(t, CHECK_HOST, try(SOCK_STREAM, AF_INET, &((struct sockaddr_in *) a->ifa_addr)->sin_addr, FENCE_TEST_PORT));
                else if (a->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *) a->ifa_addr)->sin6_addr))
                        r = note(t, CHECK_HOST, try(SOCK_STREAM, AF_INET6, &((struct sockaddr_in6 *) a->ifa_addr)->sin6_addr, FENCE_TEST_PORT));
        }

        freeifaddrs(list);
        return r;
}

/* ---- the control ---- */

static int own_cgroup(uint64_t *ret) {
        _cleanup_fd_ int fd = -1;
        struct stat st;

        fd = cgroup_open_own(NULL);
        if (fd < 0)
                return fd;
        if (fstat(fd, &st) < 0)
                return -errno;
        *ret = st.st_ino;
        return 0;
}

/* Without egressd or the warden nothing passes, as it shall be: then there is no control. */
static bool is_fresh(const char *path) {
        struct bpf_obj_get_opts opts = { .sz = sizeof(opts), .file_flags = BPF_F_RDONLY };
        _cleanup_fd_ int fd = bpf_obj_get_opts(path, &opts);
        uint64_t last = 0, now = time_boottime() * 1000;
        uint32_t zero = 0;

        return fd >= 0 && bpf_map_lookup_elem(fd, &zero, &last) >= 0 && last <= now && now - last <= FENCE_HEARTBEAT_NS / 2;
}

static bool is_alive(void) {
        return is_fresh(FENCE_MAPS_DIR "/heartbeat") && is_fresh(FENCE_MAPS_DIR "/checked");
}

/* Connects under a grant of its own; in *ret_other what came of a port that the grant does not name. */
static int try_granted(int grants_fd, int live_fd, const struct fence_key *key, int *ret_other) {
        struct fence_grant grant = { .expires_ns = time_boottime() * 1000 + GRANT_NSEC };
        int r, control;

        if (getrandom(&grant.id, sizeof(grant.id), 0) != sizeof(grant.id))
                return -EIO;
        grant.id |= FENCE_CHECK_ID;

        r = bpf_map_update_elem(live_fd, &grant.id, key, BPF_ANY);
        if (r < 0)
                return r;
        r = bpf_map_update_elem(grants_fd, key, &grant, BPF_ANY);
        if (r < 0) {
                (void) bpf_map_delete_elem(live_fd, &grant.id);
                return r;
        }

        control = try_text(SOCK_DGRAM, CONTROL, FENCE_TEST_PORT);
        *ret_other = try_text(SOCK_DGRAM, CONTROL, FENCE_OTHER_TEST_PORT);
        (void) bpf_map_delete_elem(grants_fd, key);
        (void) bpf_map_delete_elem(live_fd, &grant.id);
        return control;
}

static int try_control(CheckTable *t) {
        struct fence_key key = { .address = { [10] = 0xff, [11] = 0xff }, .port = htons(FENCE_TEST_PORT), .protocol = IPPROTO_UDP };
        _cleanup_fd_ int grants_fd = -1, live_fd = -1;
        int r, control = CHECK_DENIED, other = CHECK_DENIED;
        bool alive = false;

        (void) inet_pton(AF_INET, CONTROL, key.address + 12);
        r = own_cgroup((uint64_t *) &key.cgroup_id);
        if (r < 0)
                return check_fail(t, r, "cannot find this process's cgroup");

        grants_fd = bpf_obj_get(FENCE_MAPS_DIR "/grants");
        live_fd = bpf_obj_get(FENCE_MAPS_DIR "/live");
        if (grants_fd < 0 || live_fd < 0)
                return check_fail(t, grants_fd < 0 ? grants_fd : live_fd, "cannot open the fence's maps");

        for (unsigned i = 0; i < 2 && control == CHECK_DENIED && other == CHECK_DENIED; i++) {
                /* before as well as after: they may come back in between */
                alive = is_alive();
                control = try_granted(grants_fd, live_fd, &key, &other);
                alive = alive && is_alive();
        }
        if (control < 0)
                return check_fail(t, control, "cannot try a grant in the fence's maps");

        if (alive) {
                r = note(t, CHECK_CONTROL, control);
                if (r < 0)
                        return r;
        }
        return note(t, CHECK_UNLISTED_PORT, other);
}

static int try_all(CheckTable *t) {
        int r;

        for (size_t i = 0; i < ELEMENTSOF(attempts); i++) {
                r = note(t, attempts[i].probe, try_text(attempts[i].type, attempts[i].address, FENCE_TEST_PORT));
                if (r < 0)
                        return r;
        }

        r = try_host(t);
        if (r < 0)
                return r;
        r = try_control(t);
        if (r < 0)
                return r;

        /* with the grant gone it is like any other */
        return note(t, CHECK_UNLISTED_PORT, try_text(SOCK_DGRAM, CONTROL, FENCE_TEST_PORT));
}

int check_cgroup(CheckTable *t) {
        struct fence_key tester = { .port = fence_test_port() };
        const struct fence_grant nothing = {};
        _cleanup_fd_ int grants_fd = bpf_obj_get(FENCE_MAPS_DIR "/grants");
        int r;

        if (grants_fd < 0)
                return check_fail(t, grants_fd, "cannot open the fence's maps");
        r = own_cgroup((uint64_t *) &tester.cgroup_id);
        if (r < 0)
                return check_fail(t, r, "cannot find this process's cgroup");
        r = bpf_map_update_elem(grants_fd, &tester, &nothing, BPF_ANY);
        if (r < 0)
                return check_fail(t, r, "cannot mark this process's cgroup in the fence's maps");

        r = try_all(t);
        (void) bpf_map_delete_elem(grants_fd, &tester);
        return r;
}
