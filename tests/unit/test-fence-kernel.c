/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The fence's programs in the running kernel: loaded by fence_load(), attached to a cgroup of this
 * test's own, asked by children that live below it. Needs root. Everything is in private mount and network
 * namespaces: no packet leaves, and nothing but the cgroup has to be removed.
 *
 * The peers are 203.0.113.1 and 2001:db8::1, as addresses of this namespace's loopback device.
 */

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
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
#include <sys/un.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "egress/grant-map.h"
#include "fence-api.bpf.h"
#include "net/bpf-load.h"
#include "net/fence-counts.h"
#include "net/fence-inspect.h"
#include "net/fence.h"
#include "util/text.h"

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

#define CGROUPS "/tmp/cgroup"
static char parent[64], child_a[80], child_b[80];
static GrantMap *grants;

/* ---- the place ---- */

static void must(int r) {
        if (r < 0)
                fail_msg("%s", strerror(errno));
}

static void add_address(void) {
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
static void add_group(void) {
        FILE *f;

        must(mkdir("/tmp/etc", 0755));
        must(mount("tmpfs", "/tmp/etc", "tmpfs", 0, NULL));
        f = fopen("/tmp/etc/group", "we");
        assert_non_null(f);
        fprintf(f, "root:x:0:\nanchor-egress:x:993:\n");
        fclose(f);
        must(mount("/tmp/etc/group", "/etc/group", NULL, MS_BIND, NULL));
}

static void mount_all(void) {
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

static void attach(void) {
        _cleanup_fd_ int cgroup = -1;

        must(cgroup = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                _cleanup_free_ char *path = text_format(FENCE_PROGS_DIR "/%s", fence_hooks[i].name);
                _cleanup_fd_ int prog = bpf_obj_get(path);

                assert_true(prog >= 0);
                if (fence_hooks[i].place == FENCE_BY_SYSTEMD)
                        assert_int_equal(bpf_prog_attach(prog, cgroup, fence_hooks[i].type, BPF_F_ALLOW_MULTI), 0);
        }
}

/* The other two, as anchor-fence does it. */
static void prepare(void) {
        _cleanup_free_ char *reason = NULL;
        _cleanup_fd_ int cgroup = -1;

        must(cgroup = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        assert_int_equal(fence_check_cgroup(cgroup, &reason), -ENOTRECOVERABLE);
        free(TAKE_PTR(reason));
        if (fence_prepare_slice(cgroup, &reason) < 0 || fence_check_cgroup(cgroup, &reason) < 0)
                fail_msg("%s", reason);
}

static void detach(bool (*which)(const FenceHook *hook)) {
        _cleanup_fd_ int cgroup = -1;

        must(cgroup = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                _cleanup_free_ char *path = text_format(FENCE_PROGS_DIR "/%s", fence_hooks[i].name);
                _cleanup_fd_ int prog = bpf_obj_get(path);

                if (fence_hooks[i].place == FENCE_BY_SYSTEMD && which(&fence_hooks[i]))
                        assert_int_equal(bpf_prog_detach2(prog, cgroup, fence_hooks[i].type), 0);
        }
}

static int group_setup(void **state) {
        _cleanup_free_ char *reason = NULL;
        unsigned n;

        mount_all();
        add_address();

        snprintf(parent, sizeof(parent), CGROUPS "/test-fence-%i", getpid());
        snprintf(child_a, sizeof(child_a), "%s/a", parent);
        snprintf(child_b, sizeof(child_b), "%s/b", parent);
        must(mkdir(parent, 0755));
        must(mkdir(child_a, 0755));
        must(mkdir(child_b, 0755));

        if (fence_load(false, &n, &reason) < 0)
                fail_msg("%s", reason);
        assert_int_equal(n, FENCE_N_HOOKS);
        attach();
        prepare();
        return 0;
}

static int group_teardown(void **state) {
        (void) rmdir(child_a);
        (void) rmdir(child_b);
        return rmdir(parent);
}

static void set_checked(uint64_t usec) {
        _cleanup_fd_ int fd = bpf_obj_get(FENCE_PRIVATE_DIR "/checked");
        uint64_t ns = usec * 1000;
        uint32_t zero = 0;

        assert_int_equal(bpf_map_update_elem(fd, &zero, &ns, BPF_ANY), 0);
}

static int setup(void **state) {
        set_checked(time_boottime());
        assert_int_equal(grant_map_open(&grants, NULL), 0);
        assert_true(grant_map_settle(grants) >= 0);
        assert_int_equal(grant_map_heartbeat(grants), 0);
        return 0;
}

static int teardown(void **state) {
        grants = grant_map_free(grants);
        return 0;
}

/* ---- what a child does, in its cgroup ---- */

typedef int (*Deed)(void *userdata); /* 0 or an errno */

static int in_cgroup(const char *cgroup, Deed deed, void *userdata) {
        int status;
        pid_t pid;

        must(pid = fork());
        if (pid == 0) {
                char path[128];
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

static uint64_t cgroup_id(const char *cgroup) {
        struct stat st;

        must(stat(cgroup, &st));
        return st.st_ino;
}

typedef struct Target {
        const char *address;
        uint16_t port;
        int type;
} Target;

static socklen_t target_address(const Target *t, struct sockaddr_storage *ret) {
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

static int dial(const Target *t) {
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

static int deed_connect(void *userdata) {
        int fd = dial(userdata);

        return fd < 0 ? -fd : 0;
}

static int deed_sendto(void *userdata) {
        Target *t = userdata;
        struct sockaddr_storage ss;
        socklen_t len = target_address(t, &ss);
        _cleanup_fd_ int fd = socket(ss.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return errno;
        return sendto(fd, "x", 1, 0, (struct sockaddr *) &ss, len) < 0 ? errno : 0;
}

static int serve(const char *address, uint16_t *ret_port, int type) {
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

static uint64_t grant(const char *cgroup, const Target *t, uint64_t for_usec) {
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

/* ---- tests ---- */

static int deed_self_test(void *userdata) {
        return -fence_self_test(NULL);
}

static int deed_check(void *userdata) {
        _cleanup_free_ char *reason = NULL;

        return -fence_check_attached(&reason);
}

static void test_self_test(void **state) {
        const char *what = NULL;

        assert_int_equal(fence_self_test(&what), -ENOTRECOVERABLE); /* outside: a control */
        assert_non_null(what);
        assert_int_equal(in_cgroup(child_a, deed_self_test, NULL), 0);
        assert_int_equal(in_cgroup(child_a, deed_check, NULL), 0);
}

static void test_load_again(void **state) {
        _cleanup_free_ char *reason = NULL, *reason2 = NULL;
        unsigned n;

        assert_int_equal(fence_load(false, &n, &reason), 0);
        assert_int_equal(n, 0);
        assert_int_equal(fence_load(true, &n, &reason), 0);

        must(unlink(FENCE_PROGS_DIR "/connect6"));
        assert_int_equal(in_cgroup(child_a, deed_check, NULL), ENOENT);
        assert_int_equal(fence_load(true, &n, &reason2), -ESTALE);
        assert_int_equal(fence_load(false, &n, &reason), 0);
        assert_int_equal(n, 1);
        assert_int_equal(in_cgroup(child_a, deed_check, NULL), 0); /* the same program on the same maps */
}

static void test_grant_opens_one_destination(void **state) {
        static const char *const addresses[] = { "203.0.113.1", "2001:db8::1" };

        for (size_t i = 0; i < ELEMENTSOF(addresses); i++) {
                Target t = { addresses[i], 0, SOCK_STREAM }, other, udp;
                _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_STREAM), server2 = -1;

                other = udp = t;
                udp.type = SOCK_DGRAM;
                server2 = serve(t.address, &other.port, SOCK_STREAM);

                assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
                (void) grant(child_a, &t, LONG);
                assert_int_equal(in_cgroup(child_a, deed_connect, &t), 0);
                assert_int_equal(in_cgroup(child_a, deed_connect, &other), EPERM); /* another port */
                assert_int_equal(in_cgroup(child_b, deed_connect, &t), EPERM);     /* a sibling */
                assert_int_equal(in_cgroup(child_a, deed_connect, &udp), EPERM);   /* another protocol */
                assert_int_equal(in_cgroup(child_a, deed_sendto, &udp), EPERM);
                (void) grant(child_a, &udp, LONG);
                assert_int_equal(in_cgroup(child_a, deed_sendto, &udp), 0);
                assert_int_equal(deed_connect(&other), 0); /* outside: a control */
        }
}

static void test_mapped_is_the_same(void **state) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM }, mapped = { "::ffff:203.0.113.1", 0, SOCK_STREAM };
        _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_STREAM);

        mapped.port = t.port;
        assert_int_equal(in_cgroup(child_a, deed_connect, &mapped), EPERM);
        (void) grant(child_a, &t, LONG);
        assert_int_equal(in_cgroup(child_a, deed_connect, &mapped), 0);
}

static void set_heartbeat(uint64_t usec) {
        _cleanup_fd_ int fd = bpf_obj_get(FENCE_MAPS_DIR "/heartbeat");
        uint64_t ns = usec * 1000;
        uint32_t zero = 0;

        assert_int_equal(bpf_map_update_elem(fd, &zero, &ns, BPF_ANY), 0);
}

static void test_heartbeat(void **state) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM };
        _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_STREAM);

        (void) grant(child_a, &t, LONG);
        set_heartbeat(time_boottime() - 11 * 1000 * 1000);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
        set_heartbeat(time_boottime() + LONG); /* from the future */
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
        set_heartbeat(time_boottime() - 9 * 1000 * 1000);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), 0);
}

/* The warden's sign of life counts as much. */
static void test_checked(void **state) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM };
        _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_STREAM);

        (void) grant(child_a, &t, LONG);
        set_checked(time_boottime() - 11 * 1000 * 1000);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
        set_checked(time_boottime() + LONG);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
        set_checked(time_boottime() - 9 * 1000 * 1000);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), 0);
}

/* A connection under way: the child sends a byte whenever it is told to over a socket pair. */
typedef struct Line {
        Target target;
        int tell[2];
} Line;

static int deed_line(void *userdata) {
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

static pid_t line_open(Line *l, int server, int *ret_accepted) {
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

static bool line_passes(Line *l, int accepted) {
        struct pollfd p = { .fd = accepted, .events = POLLIN };
        char c;

        must((int) write(l->tell[0], "x", 1));
        if (poll(&p, 1, 400) <= 0)
                return false;
        return read(accepted, &c, 1) == 1;
}

static void line_close(Line *l, pid_t pid) {
        close(l->tell[0]);
        must(waitpid(pid, NULL, 0));
}

static void test_expiry_bounds_only_connects(void **state) {
        Line l = { .target = { "203.0.113.1", 0, SOCK_STREAM } };
        _cleanup_fd_ int server = serve(l.target.address, &l.target.port, SOCK_STREAM), accepted = -1;
        pid_t pid;

        (void) grant(child_a, &l.target, 300 * 1000);
        pid = line_open(&l, server, &accepted);
        usleep(350 * 1000);
        assert_int_equal(in_cgroup(child_a, deed_connect, &l.target), EPERM);
        assert_true(line_passes(&l, accepted));
        line_close(&l, pid);
}

static void test_revoke_cuts(void **state) {
        Line l = { .target = { "203.0.113.1", 0, SOCK_STREAM } };
        _cleanup_fd_ int server = serve(l.target.address, &l.target.port, SOCK_STREAM), accepted = -1;
        uint64_t id;
        pid_t pid;

        id = grant(child_a, &l.target, LONG);
        pid = line_open(&l, server, &accepted);
        assert_true(line_passes(&l, accepted));
        assert_int_equal(grant_map_release(grants, id), 0);
        assert_false(line_passes(&l, accepted));

        /* a later grant for the same place does not bring it back */
        (void) grant(child_a, &l.target, LONG);
        assert_int_equal(in_cgroup(child_a, deed_connect, &l.target), 0);
        assert_false(line_passes(&l, accepted));
        line_close(&l, pid);
}

static void test_silence_cuts(void **state) {
        Line l = { .target = { "203.0.113.1", 0, SOCK_STREAM } };
        _cleanup_fd_ int server = serve(l.target.address, &l.target.port, SOCK_STREAM), accepted = -1;
        pid_t pid;

        (void) grant(child_a, &l.target, LONG);
        pid = line_open(&l, server, &accepted);
        assert_true(line_passes(&l, accepted));
        set_checked(time_boottime() - 11 * 1000 * 1000);
        assert_false(line_passes(&l, accepted));
        set_checked(time_boottime());
        set_heartbeat(time_boottime() - 11 * 1000 * 1000);
        assert_false(line_passes(&l, accepted));
        line_close(&l, pid);
}

static void test_adopted_goes_on(void **state) {
        Line l = { .target = { "203.0.113.1", 0, SOCK_STREAM } };
        _cleanup_fd_ int server = serve(l.target.address, &l.target.port, SOCK_STREAM), accepted = -1;
        pid_t pid;

        (void) grant(child_a, &l.target, LONG);
        pid = line_open(&l, server, &accepted);
        grants = grant_map_free(grants);
        assert_int_equal(grant_map_open(&grants, NULL), 0);
        assert_true(line_passes(&l, accepted));
        assert_int_equal(in_cgroup(child_a, deed_connect, &l.target), EPERM);
        assert_int_equal(grant_map_revoke_cgroup(grants, cgroup_id(child_a)), 1);
        assert_false(line_passes(&l, accepted));
        line_close(&l, pid);
}

static void test_never_even_with_entry(void **state) {
        _cleanup_fd_ int fd = bpf_obj_get(FENCE_MAPS_DIR "/grants"), live = bpf_obj_get(FENCE_MAPS_DIR "/live");
        static const char *const never[] = { "169.254.169.254", "127.0.0.1", "::1", "::ffff:169.254.169.254", "0.0.0.0" };

        for (size_t i = 0; i < ELEMENTSOF(never); i++) {
                Target t = { never[i], 80, SOCK_STREAM };
                struct fence_key key = {
                        .cgroup_id = cgroup_id(child_a),
                        .address = { [10] = 0xff, [11] = 0xff },
                        .port = htons(80),
                        .protocol = IPPROTO_TCP,
                };
                struct fence_grant g = { .id = 1, .expires_ns = UINT64_MAX };

                if (inet_pton(AF_INET, never[i], key.address + 12) != 1)
                        inet_pton(AF_INET6, never[i], key.address);
                assert_int_equal(bpf_map_update_elem(live, &g.id, &key, BPF_ANY), 0);
                assert_int_equal(bpf_map_update_elem(fd, &key, &g, BPF_ANY), 0);
                assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
                assert_int_equal(bpf_map_delete_elem(fd, &key), 0);
        }
}

typedef struct Kind {
        int family, type, protocol;
} Kind;

static int deed_socket(void *userdata) {
        Kind *k = userdata;
        _cleanup_fd_ int fd = socket(k->family, k->type | SOCK_CLOEXEC, k->protocol);

        return fd < 0 ? errno : 0;
}

static int deed_socket_elsewhere(void *userdata) {
        if (unshare(CLONE_NEWNET) < 0)
                return 255;
        return deed_socket(userdata);
}

static void test_kinds_of_sockets(void **state) {
        Kind refused[] = {
                { AF_INET, SOCK_RAW, IPPROTO_RAW },    { AF_INET, SOCK_RAW, IPPROTO_ICMP },
                { AF_INET6, SOCK_RAW, IPPROTO_ICMPV6 }, { AF_INET, SOCK_DGRAM, IPPROTO_ICMP },
                { AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE }, { AF_INET, SOCK_STREAM, IPPROTO_MPTCP },
        }, tcp = { AF_INET, SOCK_STREAM, 0 }, local = { AF_UNIX, SOCK_STREAM, 0 };

        for (size_t i = 0; i < ELEMENTSOF(refused); i++) {
                int r = in_cgroup(child_a, deed_socket, &refused[i]);

                if (deed_socket(&refused[i]) == 0)
                        assert_int_equal(r, EPERM);
                else
                        assert_int_not_equal(r, 0); /* this kernel has no such socket, or not for us */
        }
        assert_int_equal(in_cgroup(child_a, deed_socket, &tcp), 0);
        assert_int_equal(in_cgroup(child_a, deed_socket, &local), 0);
        assert_int_equal(in_cgroup(child_a, deed_socket_elsewhere, &tcp), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_socket_elsewhere, &local), 0);
}

/* A loose source route over the granted address. */
static int deed_source_route(void *userdata) {
        Target *t = userdata;
        uint8_t options[] = { 131, 7, 4, 203, 0, 113, 1, 1 };
        struct sockaddr_storage ss;
        socklen_t len = target_address(t, &ss);
        struct timeval tv = { .tv_usec = 500000 };
        _cleanup_fd_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (setsockopt(fd, IPPROTO_IP, IP_OPTIONS, options, sizeof(options)) < 0)
                return 255;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
        return connect(fd, (struct sockaddr *) &ss, len) < 0 ? errno : 0;
}

static void test_source_route(void **state) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM };
        _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_STREAM);

        (void) grant(child_a, &t, LONG);
        assert_int_not_equal(in_cgroup(child_a, deed_source_route, &t), 0);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), 0);
}

typedef struct UnixTarget {
        struct sockaddr_un address;
        socklen_t len;
        int type;
} UnixTarget;

static int deed_unix(void *userdata) {
        UnixTarget *t = userdata;
        _cleanup_fd_ int fd = socket(AF_UNIX, t->type | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return errno;
        return connect(fd, (struct sockaddr *) &t->address, t->len) < 0 ? errno : 0;
}

static int deed_unix_send(void *userdata) {
        UnixTarget *t = userdata;
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return errno;
        return sendto(fd, "x", 1, 0, (struct sockaddr *) &t->address, t->len) < 0 ? errno : 0;
}

static void test_abstract_sockets(void **state) {
        static const int types[] = { SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM };

        for (size_t i = 0; i < ELEMENTSOF(types); i++) {
                UnixTarget named = { .address.sun_family = AF_UNIX, .type = types[i] }, abstract = named;
                _cleanup_fd_ int at_path = -1, nowhere = -1;

                named.len = (socklen_t) sizeof(named.address);
                snprintf(named.address.sun_path, sizeof(named.address.sun_path), "/run/test-%zu", i);
                abstract.len = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 6);
                memcpy(abstract.address.sun_path, "\0fence", 6);

                must(at_path = socket(AF_UNIX, types[i] | SOCK_CLOEXEC, 0));
                must(nowhere = socket(AF_UNIX, types[i] | SOCK_CLOEXEC, 0));
                must(bind(at_path, (struct sockaddr *) &named.address, named.len));
                must(bind(nowhere, (struct sockaddr *) &abstract.address, abstract.len));
                if (types[i] != SOCK_DGRAM) {
                        must(listen(at_path, 4));
                        must(listen(nowhere, 4));
                }

                assert_int_equal(in_cgroup(child_a, deed_unix, &abstract), EPERM);
                assert_int_equal(in_cgroup(child_a, deed_unix, &named), 0);
                assert_int_equal(deed_unix(&abstract), 0); /* outside: a control */
                if (types[i] != SOCK_DGRAM)
                        continue;
                assert_int_equal(in_cgroup(child_a, deed_unix_send, &abstract), EPERM);
                assert_int_equal(in_cgroup(child_a, deed_unix_send, &named), 0);
                assert_int_equal(deed_unix_send(&abstract), 0);
        }
}

/* ---- bind, options ---- */

static int deed_bind(void *userdata) {
        Target *t = userdata;
        struct sockaddr_storage ss;
        socklen_t len = target_address(t, &ss);
        _cleanup_fd_ int fd = socket(ss.ss_family, t->type | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return errno;
        return bind(fd, (struct sockaddr *) &ss, len) < 0 ? errno : 0;
}

static void test_bind(void **state) {
        static const char *const addresses[] = { "203.0.113.1", "0.0.0.0", "127.0.0.1", "2001:db8::1", "::" };

        for (size_t i = 0; i < ELEMENTSOF(addresses); i++) {
                for (int type = SOCK_STREAM; type <= SOCK_DGRAM; type++) {
                        Target t = { addresses[i], 0, type }, privileged = { addresses[i], 53, type };

                        assert_int_equal(in_cgroup(child_a, deed_bind, &t), EPERM);
                        assert_int_equal(in_cgroup(child_a, deed_bind, &privileged), EPERM);
                        assert_int_equal(deed_bind(&t), 0); /* outside: a control */
                        assert_int_equal(deed_bind(&privileged), 0);
                }
        }
}

/* listen() without bind() takes a port of the kernel's choice and asks no bind hook. */
typedef struct Ear {
        int tell[2];
} Ear;

static int deed_listen(void *userdata) {
        struct sockaddr_in sin = {};
        socklen_t len = sizeof(sin);
        Ear *e = userdata;
        int fd;
        char c;

        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || listen(fd, 4) < 0 || getsockname(fd, (struct sockaddr *) &sin, &len) < 0)
                return 1;
        if (write(e->tell[1], &sin.sin_port, sizeof(sin.sin_port)) != sizeof(sin.sin_port))
                return 1;
        return (int) read(e->tell[1], &c, 1);
}

static int dial_ear(bool fenced) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM };
        uint16_t port = 0;
        pid_t pid;
        int r;
        Ear e;

        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e.tell));
        must(pid = fork());
        if (pid == 0) {
                close(e.tell[0]); /* as in line_open() */
                _exit(fenced ? in_cgroup(child_a, deed_listen, &e) : deed_listen(&e));
        }
        close(e.tell[1]);
        assert_int_equal(read(e.tell[0], &port, sizeof(port)), sizeof(port));
        t.port = ntohs(port);
        r = deed_connect(&t);
        close(e.tell[0]);
        must(waitpid(pid, NULL, 0));
        return r;
}

static void test_listen_unbound(void **state) {
        assert_int_not_equal(dial_ear(true), 0);
        assert_int_equal(dial_ear(false), 0); /* a control */
}

typedef struct Option {
        int family, level, name;
} Option;

static int deed_option(void *userdata) {
        uint8_t value[24] = { 1 };
        Option *o = userdata;
        _cleanup_fd_ int fd = socket(o->family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return 255;
        if (o->level == IPPROTO_IP && o->name == IP_OPTIONS)
                memcpy(value, (const uint8_t[]) { 131, 7, 4, 203, 0, 113, 1, 1 }, 8);
        if (o->name == SO_BINDTODEVICE && o->level == SOL_SOCKET)
                strcpy((char *) value, "lo");
        return setsockopt(fd, o->level, o->name, value, o->level == IPPROTO_IP && o->name == IP_OPTIONS ? 8 : 16) < 0 ? errno : 0;
}

static void test_options(void **state) {
        Option refused[] = {
                { AF_INET, IPPROTO_IP, IP_OPTIONS },       { AF_INET, IPPROTO_IP, IP_TRANSPARENT },
                { AF_INET, IPPROTO_IP, IP_FREEBIND },      { AF_INET, IPPROTO_IP, IP_TTL },
                { AF_INET, SOL_SOCKET, SO_MARK },          { AF_INET, SOL_SOCKET, SO_BINDTODEVICE },
                { AF_INET, SOL_SOCKET, SO_BINDTOIFINDEX }, { AF_INET, SOL_SOCKET, SO_PRIORITY },
                { AF_INET, SOL_SOCKET, SO_REUSEPORT },     { AF_INET6, IPPROTO_IPV6, IPV6_TRANSPARENT },
                { AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY },   { AF_INET6, SOL_SOCKET, SO_MARK },
        }, allowed[] = {
                { AF_INET, IPPROTO_TCP, 1 /* TCP_NODELAY */ }, { AF_INET6, IPPROTO_TCP, 1 },
                { AF_INET, SOL_SOCKET, SO_KEEPALIVE },         { AF_INET, SOL_SOCKET, SO_RCVTIMEO },
                { AF_UNIX, SOL_SOCKET, SO_PASSCRED },
        };

        for (size_t i = 0; i < ELEMENTSOF(refused); i++) {
                assert_int_equal(in_cgroup(child_a, deed_option, &refused[i]), EPERM);
                assert_int_equal(deed_option(&refused[i]), 0); /* outside: a control */
        }
        for (size_t i = 0; i < ELEMENTSOF(allowed); i++)
                assert_int_equal(in_cgroup(child_a, deed_option, &allowed[i]), 0);

        /* not even a routing header: the kernel knows none of this type, the fence is asked first */
        Option header = { AF_INET6, IPPROTO_IPV6, IPV6_RTHDR };
        assert_int_equal(in_cgroup(child_a, deed_option, &header), EPERM);
        assert_int_not_equal(deed_option(&header), EPERM);
}

/* ---- counts ---- */

static void test_counts_by_run(void **state) {
        Target t = { "203.0.113.1", 7, SOCK_STREAM }, tested = { "203.0.113.1", FENCE_TEST_PORT, SOCK_DGRAM }, never = { "169.254.169.254", 80, SOCK_STREAM };
        uint64_t before[FENCE_N_VERDICTS], after[FENCE_N_VERDICTS], other[FENCE_N_VERDICTS];
        _cleanup_json_ json_t *j = NULL;

        assert_int_equal(fence_counts_drop(cgroup_id(child_b)), 0);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), before), 0);
        for (int i = 0; i < 3; i++)
                assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_connect, &never), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_connect, &tested), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_self_test, NULL), 0);
        assert_int_equal(in_cgroup(child_b, deed_bind, &t), EPERM);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), after), 0);
        assert_int_equal(fence_counts_read(cgroup_id(child_b), other), 0);

        assert_int_equal(after[FENCE_CONNECT_NO_GRANT] - before[FENCE_CONNECT_NO_GRANT], 3);
        assert_int_equal(after[FENCE_CONNECT_NEVER] - before[FENCE_CONNECT_NEVER], 1);
        assert_int_equal(after[FENCE_UNIX_ABSTRACT] - before[FENCE_UNIX_ABSTRACT], 0);
        assert_int_equal(after[FENCE_TESTED] - before[FENCE_TESTED], 7);
        assert_int_equal(after[FENCE_BIND_REFUSED] - before[FENCE_BIND_REFUSED], 0);
        j = fence_counts_to_json(other);
        assert_int_equal(json_object_size(j), 1);
        assert_int_equal(json_integer_value(json_object_get(j, "bind_refused")), 1);

        assert_int_equal(fence_counts_drop(cgroup_id(child_a)), 0);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), after), 0);
        assert_int_equal(after[FENCE_CONNECT_NO_GRANT], 0);
}

/* More runs than there is room for, whose counts nobody dropped: those of the next one are kept all the same. */
static void test_counts_of_many_runs(void **state) {
        Target never = { "169.254.169.254", 80, SOCK_STREAM };
        _cleanup_fd_ int map = bpf_obj_get(FENCE_PRIVATE_DIR "/run_verdicts");
        _cleanup_free_ uint64_t *values = NULL;
        uint64_t counts[FENCE_N_VERDICTS];

        assert_true(map >= 0);
        values = calloc((size_t) libbpf_num_possible_cpus(), sizeof(*values));
        assert_non_null(values);
        for (uint64_t i = 0; i < 2 * FENCE_MAX_RUN_VERDICTS; i++) {
                struct fence_count_key key = { .cgroup_id = UINT64_C(1) << 40 | i, .verdict = FENCE_TESTED };

                assert_int_equal(bpf_map_update_elem(map, &key, values, BPF_NOEXIST), 0);
        }

        assert_int_equal(fence_counts_drop(cgroup_id(child_a)), 0);
        assert_int_equal(in_cgroup(child_a, deed_connect, &never), EPERM);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), counts), 0);
        assert_int_equal(counts[FENCE_CONNECT_NEVER], 1);
}

/* ---- at the device ---- */

static bool is_connect_or_packet(const FenceHook *hook) {
        return hook->type == BPF_CGROUP_INET4_CONNECT || hook->type == BPF_CGROUP_INET_EGRESS;
}

static bool is_packet(const FenceHook *hook) {
        return hook->type == BPF_CGROUP_INET_EGRESS;
}

static void attach_again(bool (*which)(const FenceHook *hook)) {
        _cleanup_fd_ int cgroup = -1;

        must(cgroup = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                _cleanup_free_ char *path = text_format(FENCE_PROGS_DIR "/%s", fence_hooks[i].name);
                _cleanup_fd_ int prog = bpf_obj_get(path);

                if (which(&fence_hooks[i]))
                        assert_int_equal(bpf_prog_attach(prog, cgroup, fence_hooks[i].type, BPF_F_ALLOW_MULTI), 0);
        }
}

static int attach_uplink(void) {
        LIBBPF_OPTS(bpf_link_create_opts, opts, .flags = BPF_F_BEFORE);
        _cleanup_fd_ int prog = bpf_obj_get(FENCE_PROGS_DIR "/uplink");
        int link;

        must(link = bpf_link_create(prog, (int) if_nametoindex("lo"), BPF_TCX_EGRESS, &opts));
        return link;
}

/* The slice has lost its programs, and still nothing leaves through the device. */
static void test_uplink_alone(void **state) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM };
        _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_STREAM), link = -1;
        uint64_t counts[FENCE_N_VERDICTS];
        bool first = false;

        detach(is_connect_or_packet);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), 0); /* a control */
        assert_int_equal(fence_count_in_force((int) if_nametoindex("lo"), &first), 0);
        link = attach_uplink();
        assert_int_equal(fence_count_in_force((int) if_nametoindex("lo"), &first), 1);
        assert_true(first);
        assert_int_not_equal(in_cgroup(child_a, deed_connect, &t), 0);
        assert_int_equal(deed_connect(&t), 0); /* outside: a control */
        assert_int_equal(fence_counts_read(cgroup_id(child_a), counts), 0);
        assert_true(counts[FENCE_UPLINK_DROPPED] > 0);
        attach_again(is_connect_or_packet);
}

/* With a grant it lets pass, and cuts like the program of the slice. */
static void test_uplink_asks_for_grants(void **state) {
        Line l = { .target = { "203.0.113.1", 0, SOCK_STREAM } };
        _cleanup_fd_ int server = serve(l.target.address, &l.target.port, SOCK_STREAM), accepted = -1, link = -1;
        uint64_t id;
        pid_t pid;

        detach(is_packet);
        link = attach_uplink();
        id = grant(child_a, &l.target, LONG);
        pid = line_open(&l, server, &accepted);
        assert_true(line_passes(&l, accepted));
        set_checked(time_boottime() - 11 * 1000 * 1000);
        assert_false(line_passes(&l, accepted));
        line_close(&l, pid);
        set_checked(time_boottime());

        close(TAKE_FD(accepted));
        pid = line_open(&l, server, &accepted);
        assert_true(line_passes(&l, accepted));
        assert_int_equal(grant_map_release(grants, id), 0);
        assert_false(line_passes(&l, accepted));
        line_close(&l, pid);
        attach_again(is_packet);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                T(test_self_test),
                T(test_load_again),
                T(test_grant_opens_one_destination),
                T(test_mapped_is_the_same),
                T(test_heartbeat),
                T(test_expiry_bounds_only_connects),
                T(test_revoke_cuts),
                T(test_silence_cuts),
                T(test_adopted_goes_on),
                T(test_never_even_with_entry),
                T(test_kinds_of_sockets),
                T(test_source_route),
                T(test_abstract_sockets),
                T(test_checked),
                T(test_bind),
                T(test_listen_unbound),
                T(test_options),
                T(test_counts_by_run),
                T(test_counts_of_many_runs),
                T(test_uplink_alone),
                T(test_uplink_asks_for_grants),
        };

        return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
