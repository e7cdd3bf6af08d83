/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * For tests of the fence's programs in the running kernel: loaded by fence_load(), attached to a cgroup of the
 * test's own, asked by children that live below it. Needs root. Everything is in private mount and network
 * namespaces: no packet leaves, and nothing but the cgroup has to be removed.
 *
 * The peers are 203.0.113.1 and 2001:db8::1, as addresses of this namespace's loopback device.
 */

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <fcntl.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "egress/grant-map.h"
#include "fence-api.bpf.h"
#include "net/bpf-load.h"
#include "net/fence-inspect.h"
#include "net/fence.h"
#include "util/text.h"

#define CGROUPS "/tmp/cgroup"
static char upper[64], parent[96], child_a[112], child_b[112]; /* parent is the slice */
static GrantMap *grants;

/* ---- the place ---- */

static inline void must(int r) {
        if (r < 0)
                fail_msg("%s", strerror(errno));
}

static inline void add_address(void) {
        struct ifreq ifr = { .ifr_name = "lo" };
        struct sockaddr_in *sin = (struct sockaddr_in *) &ifr.ifr_addr;
        struct in6_ifreq ifr6 = { .ifr6_prefixlen = 128, .ifr6_ifindex = 1 };
        _cleanup_fd_ int fd = -1, fd6 = -1;

        must(fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        must(fd6 = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        ifr.ifr_flags = IFF_UP;
        must(ioctl(fd, SIOCSIFFLAGS, &ifr));
        strcpy(ifr.ifr_name, "lo:1");
        sin->sin_family = AF_INET;
        inet_pton(AF_INET, "203.0.113.1", &sin->sin_addr);
        must(ioctl(fd, SIOCSIFADDR, &ifr));
        inet_pton(AF_INET6, "2001:db8::1", &ifr6.ifr6_addr);
        must(ioctl(fd6, SIOCSIFADDR, &ifr6));
}

/* A group for the maps: the build root's own /etc/group stays as it is. */
static inline void add_group(void) {
        FILE *f;

        must(mkdir("/tmp/etc", 0755));
        must(mount("tmpfs", "/tmp/etc", "tmpfs", 0, NULL));
        f = fopen("/tmp/etc/group", "we");
        assert_non_null(f);
        fprintf(f, "root:x:0:\nanchor-egress:x:993:\n");
        fclose(f);
        must(mount("/tmp/etc/group", "/etc/group", NULL, MS_BIND, NULL));
}

static inline void mount_all(void) {
        must(unshare(CLONE_NEWNS | CLONE_NEWNET));
        /* in a chroot / is no mount; image/in-buildroot has made all of them private by then */
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                assert_int_equal(errno, EINVAL);
        must(mount("tmpfs", "/tmp", "tmpfs", 0, NULL));
        must(mount("tmpfs", "/sys", "tmpfs", 0, NULL));
        /* the kernel's types, which libbpf looks up there */
        must(mkdir("/tmp/sysfs", 0755));
        must(mount("sysfs", "/tmp/sysfs", "sysfs", 0, NULL));
        must(mkdir("/sys/kernel", 0755));
        must(mount("/tmp/sysfs/kernel", "/sys/kernel", NULL, MS_BIND, NULL));
        /* how many processors there may be: as many values has a map that counts for each */
        must(mkdir("/sys/devices", 0755));
        must(mount("/tmp/sysfs/devices", "/sys/devices", NULL, MS_BIND, NULL));
        must(mkdir("/sys/fs", 0755));
        must(mkdir("/sys/fs/bpf", 0755));
        must(mount("bpf", "/sys/fs/bpf", "bpf", 0, NULL));
        must(mount("tmpfs", "/run", "tmpfs", 0, NULL));
        must(mkdir("/run/anchorhold", 0755));
        must(mkdir("/run/anchorhold/maps", 0755));
        must(mount("bpf", "/run/anchorhold/maps", "bpf", 0, NULL));
        must(mkdir(CGROUPS, 0755));
        must(mount("cgroup2", CGROUPS, "cgroup2", 0, NULL));
        add_group();
}

typedef bool (*Which)(const FenceHook *hook);

static inline bool is_floor(const FenceHook *hook) {
        return hook->place == FENCE_FLOOR;
}

static inline bool is_full(const FenceHook *hook) {
        return hook->place == FENCE_FULL;
}

static inline int open_parent(void) {
        int fd;

        must(fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        return fd;
}

static inline void attach(Which which) {
        _cleanup_fd_ int cgroup = open_parent();

        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                _cleanup_fd_ int prog = fence_open_pinned(&fence_hooks[i]);

                assert_true(prog >= 0);
                if (which(&fence_hooks[i]))
                        assert_int_equal(bpf_prog_attach(prog, cgroup, fence_hooks[i].type, BPF_F_ALLOW_MULTI), 0);
        }
}

static inline void detach(Which which) {
        _cleanup_fd_ int cgroup = open_parent();

        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                _cleanup_fd_ int prog = fence_open_pinned(&fence_hooks[i]);

                if (which(&fence_hooks[i]))
                        assert_int_equal(bpf_prog_detach2(prog, cgroup, fence_hooks[i].type), 0);
        }
}

/* The full layer, as anchor-fence puts it there. */
static inline void prepare(void) {
        _cleanup_free_ char *reason = NULL;
        _cleanup_fd_ int cgroup = open_parent();

        if (fence_prepare_slice(cgroup, &reason) < 0)
                fail_msg("%s", reason);
}

static inline int check_parent(void) {
        _cleanup_free_ char *reason = NULL;
        _cleanup_fd_ int cgroup = open_parent();

        return fence_check_cgroup(cgroup, &reason);
}

/* A slice as systemd has just made it, but for the floor. */
static inline void make_slice(void) {
        static unsigned n;

        snprintf(upper, sizeof(upper), CGROUPS "/test-fence-%i-%u", getpid(), ++n);
        snprintf(parent, sizeof(parent), "%s/anchorhold-runs.slice", upper);
        snprintf(child_a, sizeof(child_a), "%s/a", parent);
        snprintf(child_b, sizeof(child_b), "%s/b", parent);
        must(mkdir(upper, 0755));
        must(mkdir(parent, 0755));
        must(mkdir(child_a, 0755));
        must(mkdir(child_b, 0755));
}

static inline int remove_slice(void) {
        (void) rmdir(child_a);
        (void) rmdir(child_b);
        (void) rmdir(parent);
        return rmdir(upper);
}

static inline int group_setup(void **state) {
        _cleanup_free_ char *reason = NULL;
        unsigned n;

        mount_all();
        add_address();

        make_slice();
        if (fence_load(false, &n, &reason) < 0)
                fail_msg("%s", reason);
        assert_int_equal(n, FENCE_N_HOOKS);
        attach(is_floor); /* as systemd does */
        prepare();
        assert_int_equal(check_parent(), 0);
        return 0;
}

static inline int group_teardown(void **state) {
        return remove_slice();
}

static inline void set_checked(uint64_t usec) {
        _cleanup_fd_ int fd = bpf_obj_get(FENCE_PRIVATE_DIR "/checked");
        uint64_t ns = usec * 1000;
        uint32_t zero = 0;

        assert_int_equal(bpf_map_update_elem(fd, &zero, &ns, BPF_ANY), 0);
}

static inline int setup(void **state) {
        set_checked(time_boottime());
        assert_int_equal(grant_map_open(&grants, NULL), 0);
        assert_true(grant_map_settle(grants) >= 0);
        assert_int_equal(grant_map_heartbeat(grants), 0);
        return 0;
}

static inline int teardown(void **state) {
        grants = grant_map_free(grants);
        return 0;
}

/* ---- what a child does, in its cgroup ---- */

typedef int (*Deed)(void *userdata); /* 0 or an errno */

static inline int in_cgroup(const char *cgroup, Deed deed, void *userdata) {
        int status;
        pid_t pid;

        must(pid = fork());
        if (pid == 0) {
                char path[160];
                int fd;

                snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
                fd = open(path, O_WRONLY | O_CLOEXEC);
                if (fd < 0 || write(fd, "0", 1) != 1)
                        _exit(255);
                close(fd);
                _exit(deed(userdata));
        }
        must(waitpid(pid, &status, 0));
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static inline uint64_t cgroup_id(const char *cgroup) {
        struct stat st;

        must(stat(cgroup, &st));
        return st.st_ino;
}

typedef struct Target {
        const char *address;
        uint16_t port;
        int type;
} Target;

static inline socklen_t target_address(const Target *t, struct sockaddr_storage *ret) {
        struct sockaddr_in *sin = (struct sockaddr_in *) ret;
        struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *) ret;

        *ret = (struct sockaddr_storage) {};
        if (inet_pton(AF_INET, t->address, &sin->sin_addr) == 1) {
                sin->sin_family = AF_INET;
                sin->sin_port = htons(t->port);
                return sizeof(*sin);
        }
        assert_int_equal(inet_pton(AF_INET6, t->address, &sin6->sin6_addr), 1);
        sin6->sin6_family = AF_INET6;
        sin6->sin6_port = htons(t->port);
        return sizeof(*sin6);
}

static inline int dial(const Target *t) {
        struct sockaddr_storage ss;
        socklen_t len = target_address(t, &ss);
        struct timeval tv = { .tv_usec = 500000 };
        int fd;

        fd = socket(ss.ss_family, t->type | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
        if (connect(fd, (struct sockaddr *) &ss, len) < 0) {
                int r = -errno;

                close(fd);
                return r;
        }
        return fd;
}

static inline int deed_connect(void *userdata) {
        int fd = dial(userdata);

        if (fd < 0)
                return -fd;
        close(fd);
        return 0;
}

static inline int deed_sendto(void *userdata) {
        Target *t = userdata;
        struct sockaddr_storage ss;
        socklen_t len = target_address(t, &ss);
        _cleanup_fd_ int fd = socket(ss.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return errno;
        return sendto(fd, "x", 1, 0, (struct sockaddr *) &ss, len) < 0 ? errno : 0;
}

static inline int serve(const char *address, uint16_t *ret_port, int type) {
        struct sockaddr_storage ss;
        Target any = { address, 0, type };
        socklen_t len = target_address(&any, &ss);
        int fd;

        must(fd = socket(ss.ss_family, type | SOCK_CLOEXEC, 0));
        must(bind(fd, (struct sockaddr *) &ss, len));
        if (type == SOCK_STREAM)
                must(listen(fd, 16));
        must(getsockname(fd, (struct sockaddr *) &ss, &len));
        *ret_port = ntohs(ss.ss_family == AF_INET ? ((struct sockaddr_in *) &ss)->sin_port : ((struct sockaddr_in6 *) &ss)->sin6_port);
        return fd;
}

static inline uint64_t grant(const char *cgroup, const Target *t, uint64_t for_usec) {
        struct sockaddr_storage ss;
        uint64_t id;

        target_address(t, &ss);
        assert_int_equal(grant_map_add(grants, cgroup_id(cgroup), ss.ss_family,
                                       ss.ss_family == AF_INET ? (void *) &((struct sockaddr_in *) &ss)->sin_addr
                                                               : (void *) &((struct sockaddr_in6 *) &ss)->sin6_addr,
                                       t->port, t->type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP,
                                       time_boottime() + for_usec, &id),
                         0);
        return id;
}

#define LONG (60ULL * 1000 * 1000)

static inline int deed_self_test(void *userdata) {
        return -fence_self_test(NULL);
}

static inline int deed_check(void *userdata) {
        _cleanup_free_ char *reason = NULL;

        return -fence_check_attached(&reason);
}

/* ---- a connection under way ---- */

/* The child sends a byte whenever it is told to over a socket pair. */
typedef struct Line {
        Target target;
        int tell[2];
} Line;

static inline int deed_line(void *userdata) {
        Line *l = userdata;
        int fd = dial(&l->target);
        char c;

        c = (char) (fd < 0 ? -fd : 0);
        if (write(l->tell[1], &c, 1) != 1)
                return 1;
        while (read(l->tell[1], &c, 1) == 1)
                (void) send(fd, &c, 1, MSG_NOSIGNAL);
        return 0;
}

static inline pid_t line_open(Line *l, int server, int *ret_accepted) {
        pid_t pid;
        char c = 1;

        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, l->tell));
        must(pid = fork());
        if (pid == 0) {
                close(l->tell[0]); /* or the line would hold itself open */
                _exit(in_cgroup(child_a, deed_line, l));
        }
        close(l->tell[1]);
        must((int) read(l->tell[0], &c, 1));
        assert_int_equal(c, 0);
        must(*ret_accepted = accept4(server, NULL, NULL, SOCK_CLOEXEC));
        return pid;
}

static inline bool line_passes(Line *l, int accepted) {
        struct pollfd p = { .fd = accepted, .events = POLLIN };
        char c;

        must((int) write(l->tell[0], "x", 1));
        if (poll(&p, 1, 400) <= 0)
                return false;
        return read(accepted, &c, 1) == 1;
}

static inline void line_close(Line *l, pid_t pid) {
        close(l->tell[0]);
        must(waitpid(pid, NULL, 0));
}

static inline int deed_bind(void *userdata) {
        Target *t = userdata;
        struct sockaddr_storage ss;
        socklen_t len = target_address(t, &ss);
        _cleanup_fd_ int fd = socket(ss.ss_family, t->type | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return errno;
        return bind(fd, (struct sockaddr *) &ss, len) < 0 ? errno : 0;
}


#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define RUN(tests) cmocka_run_group_tests(tests, group_setup, group_teardown)
