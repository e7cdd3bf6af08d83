/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The fence in the running kernel: the floor, which systemd puts on the slice and takes off when it likes, and the full layer, which stays. */

#include "fence-world.h"
#include "net/fence-counts.h"

static void forget(void) {
        _cleanup_free_ char *reason = NULL;

        if (fence_forget_slice(&reason) < 0)
                fail_msg("%s", reason);
}

/* How many programs are on the cgroup itself. */
static unsigned count_attached(enum bpf_attach_type type) {
        _cleanup_fd_ int cgroup = open_parent();
        uint32_t ids[64], n = ELEMENTSOF(ids), flags;

        assert_int_equal(bpf_prog_query(cgroup, type, 0, &flags, ids, &n), 0);
        return n;
}

/* ---- the floor alone ---- */

static int deed_socket(void *userdata) {
        _cleanup_fd_ int fd = socket(*(int *) userdata, SOCK_STREAM | SOCK_CLOEXEC, 0);

        return fd < 0 ? errno : 0;
}

static int deed_nodelay_of(void *userdata) {
        int one = 1;

        return setsockopt(*(int *) userdata, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof(one)) < 0 ? errno : 0;
}

static int deed_connect_of(void *userdata) {
        Target t = { "203.0.113.1", 7, SOCK_DGRAM }, t6 = { "2001:db8::1", 7, SOCK_DGRAM };
        struct sockaddr_storage ss;
        int *fds = userdata;
        socklen_t len;

        len = target_address(&t, &ss);
        if (connect(fds[0], (struct sockaddr *) &ss, len) == 0 || errno != EPERM || sendto(fds[0], "x", 1, 0, (struct sockaddr *) &ss, len) >= 0 || errno != EPERM)
                return 1;
        t.port = 0;
        len = target_address(&t, &ss);
        if (bind(fds[0], (struct sockaddr *) &ss, len) == 0 || errno != EPERM)
                return 2;
        len = target_address(&t6, &ss);
        if (connect(fds[1], (struct sockaddr *) &ss, len) == 0 || errno != EPERM || sendto(fds[1], "x", 1, 0, (struct sockaddr *) &ss, len) >= 0 || errno != EPERM)
                return 3;
        t6.port = 0;
        len = target_address(&t6, &ss);
        if (bind(fds[1], (struct sockaddr *) &ss, len) == 0 || errno != EPERM)
                return 4;
        return 0;
}

/* Sockets that belong to the cgroup without the floor's having seen them made. */
static int deed_everything(void *userdata) {
        int *tell = userdata, fds[2], r;
        char c;

        fds[0] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        fds[1] = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fds[0] < 0 || fds[1] < 0 || write(tell[1], "x", 1) != 1 || read(tell[1], &c, 1) != 1)
                return 255;
        r = deed_nodelay_of(&fds[0]);
        return r == EPERM ? deed_connect_of(fds) : 100;
}

/* What the floor says with no other program beside it, whatever is granted. */
static void test_floor_alone_denies(void **state) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM };
        _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_STREAM);
        int tell[2], status, inet = AF_INET, inet6 = AF_INET6, local = AF_UNIX;
        pid_t pid;
        char c;

        (void) grant(child_a, &t, LONG);
        detach(is_full);
        forget();
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_socket, &inet), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_socket, &inet6), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_socket, &local), 0);

        /* each of its programs for itself: on sockets that are there already */
        detach(is_floor);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), 0); /* without either: a control */
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, tell));
        must(pid = fork());
        if (pid == 0) {
                close(tell[0]);
                _exit(in_cgroup(child_a, deed_everything, tell));
        }
        assert_int_equal(read(tell[0], &c, 1), 1);
        attach(is_floor);
        assert_int_equal(write(tell[0], "x", 1), 1);
        must(waitpid(pid, &status, 0));
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        close(tell[0]);
        close(tell[1]);

        prepare();
        assert_int_equal(check_parent(), 0);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), 0);
}

/* Packets of a connection that stands. */
static void test_floor_denies_packets(void **state) {
        Line l = { .target = { "203.0.113.1", 0, SOCK_STREAM } };
        _cleanup_fd_ int server = serve(l.target.address, &l.target.port, SOCK_STREAM), accepted = -1;
        pid_t pid;

        (void) grant(child_a, &l.target, LONG);
        pid = line_open(&l, server, &accepted);
        assert_true(line_passes(&l, accepted));
        detach(is_full);
        assert_true(line_passes(&l, accepted)); /* named, so that the floor says nothing: a control */
        forget();
        assert_false(line_passes(&l, accepted));
        prepare();
        line_close(&l, pid);
}

/* ---- systemd reads its units anew ---- */

static void test_full_layer_alone_judges(void **state) {
        Line l = { .target = { "203.0.113.1", 0, SOCK_STREAM } };
        Target other = { "203.0.113.1", 7, SOCK_STREAM }, udp = { "2001:db8::1", 7, SOCK_DGRAM }, any = { "203.0.113.1", 0, SOCK_STREAM };
        _cleanup_fd_ int server = serve(l.target.address, &l.target.port, SOCK_STREAM), accepted = -1;
        pid_t pid;

        (void) grant(child_a, &l.target, LONG);
        pid = line_open(&l, server, &accepted);
        detach(is_floor);
        assert_true(line_passes(&l, accepted));
        assert_int_equal(in_cgroup(child_a, deed_connect, &l.target), 0);
        assert_int_equal(in_cgroup(child_a, deed_connect, &other), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_sendto, &udp), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_bind, &any), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_self_test, NULL), 0);
        assert_int_equal(in_cgroup(child_a, deed_check, NULL), 0);
        prepare(); /* known already */
        attach(is_floor);
        line_close(&l, pid);
}

typedef struct Hammer {
        Target granted, other, datagram, any;
        int stop; /* read end: until something comes */
} Hammer;

/* 0 if nothing but what is granted ever worked, and that always did. */
static int deed_hammer(void *userdata) {
        Hammer *h = userdata;
        struct pollfd p = { .fd = h->stop, .events = POLLIN };

        while (poll(&p, 1, 0) == 0) {
                if (deed_connect(&h->other) != EPERM)
                        return 1;
                if (deed_sendto(&h->datagram) != EPERM)
                        return 2;
                if (deed_bind(&h->any) != EPERM)
                        return 3;
                if (deed_connect(&h->granted) != 0)
                        return 4;
        }
        return 0;
}

/* What the hammer says when those programs come and go. */
static int hammer(Which which, unsigned times) {
        Hammer h = { .granted = { "203.0.113.1", 0, SOCK_DGRAM }, .other = { "203.0.113.1", 7, SOCK_DGRAM }, .datagram = { "2001:db8::1", 7, SOCK_DGRAM }, .any = { "203.0.113.1", 0, SOCK_STREAM } };
        _cleanup_fd_ int server = serve(h.granted.address, &h.granted.port, SOCK_DGRAM);
        int fds[2], status;
        pid_t pid;

        must(pipe2(fds, O_CLOEXEC));
        h.stop = fds[0];
        (void) grant(child_a, &h.granted, LONG);
        must(pid = fork());
        if (pid == 0)
                _exit(in_cgroup(child_a, deed_hammer, &h));
        for (unsigned i = 0; i < times && waitpid(pid, &status, WNOHANG) == 0; i++) {
                detach(which);
                (void) usleep(2000);
                attach(which);
                (void) usleep(1000);
        }
        assert_int_equal(write(fds[1], "x", 1), 1);
        if (waitpid(pid, &status, 0) < 0)
                assert_int_equal(errno, ECHILD); /* it had ended by itself */
        close(fds[0]);
        close(fds[1]);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static bool is_full_connect4(const FenceHook *hook) {
        return is_full(hook) && hook->type == BPF_CGROUP_INET4_CONNECT;
}

static void test_hammer_while_the_floor_comes_and_goes(void **state) {
        assert_int_equal(hammer(is_floor, 200), 0);
        assert_int_equal(hammer(is_full_connect4, 200), 1); /* a control: it would notice */
}

/* A connected socket's packet. */
static int deed_send(void *userdata) {
        _cleanup_fd_ int fd = dial(userdata);

        if (fd < 0)
                return 255;
        return send(fd, "x", 1, 0) < 0 ? errno : 0;
}

/* A socket has its storage from socket() on, where no grant is named until a connect was allowed: without the program that would have said no to it, its packets
 * are those of a socket without a grant. */
static void test_packets_before_any_grant(void **state) {
        Target t = { "203.0.113.1", 0, SOCK_DGRAM };
        _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_DGRAM);
        uint64_t before[FENCE_N_VERDICTS] = {}, after[FENCE_N_VERDICTS] = {};

        detach(is_full_connect4);
        detach(is_floor);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), before), 0);
        assert_int_equal(in_cgroup(child_a, deed_send, &t), EPERM);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), after), 0);
        assert_int_equal(after[FENCE_PACKET_NO_GRANT] - before[FENCE_PACKET_NO_GRANT], 1);
        assert_int_equal(after[FENCE_PACKET_REVOKED] - before[FENCE_PACKET_REVOKED], 0);

        /* a grant alone changes nothing; having connected under it does */
        (void) grant(child_a, &t, LONG);
        assert_int_equal(in_cgroup(child_a, deed_send, &t), EPERM);
        attach(is_full_connect4);
        assert_int_equal(in_cgroup(child_a, deed_send, &t), 0);
        attach(is_floor);
}

/* ---- the slice, prepared ---- */

static int try_prepare(void) {
        _cleanup_free_ char *reason = NULL;
        _cleanup_fd_ int cgroup = open_parent();

        return fence_prepare_slice(cgroup, &reason);
}

static int deed_attach_full(void *userdata) {
        _cleanup_free_ char *reason = NULL;

        return -fence_attach_full(&reason);
}

/* A slice that systemd made without the floor gets nothing else either. */
static void test_no_slice_without_a_floor(void **state) {
        int status;
        pid_t pid;

        assert_int_equal(remove_slice(), 0);
        make_slice();
        assert_int_equal(try_prepare(), FENCE_E_NO_FLOOR);
        assert_int_equal(count_attached(BPF_CGROUP_INET4_CONNECT), 0);
        assert_int_equal(in_cgroup(child_a, deed_attach_full, NULL), ENOTRECOVERABLE); /* after two seconds */
        assert_int_equal(count_attached(BPF_CGROUP_INET4_CONNECT), 0);

        /* it waits: another unit's start may bring it */
        must(pid = fork());
        if (pid == 0) {
                (void) usleep(400 * 1000);
                attach(is_floor);
                _exit(0);
        }
        assert_int_equal(in_cgroup(child_a, deed_attach_full, NULL), 0);
        must(waitpid(pid, &status, 0));
        assert_int_equal(status, 0);
        assert_int_equal(check_parent(), 0);

        /* forgotten while systemd has taken the floor off: the full layer is there */
        detach(is_floor);
        forget();
        assert_int_equal(try_prepare(), 0);
        attach(is_floor);
}

static void test_made_anew_is_denied_until_prepared(void **state) {
        Target t = { "203.0.113.1", 0, SOCK_STREAM };
        _cleanup_fd_ int server = serve(t.address, &t.port, SOCK_STREAM);

        assert_int_equal(remove_slice(), 0); /* map `place` still names it */
        make_slice();
        attach(is_floor);
        (void) grant(child_a, &t, LONG);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
        prepare();
        assert_int_equal(check_parent(), 0);
        assert_int_equal(in_cgroup(child_a, deed_connect, &t), 0);
        assert_int_equal(in_cgroup(child_b, deed_connect, &t), EPERM);
}

static void test_prepared_by_many_at_once(void **state) {
        pid_t pids[8];

        assert_int_equal(remove_slice(), 0);
        make_slice();
        attach(is_floor);
        for (size_t i = 0; i < ELEMENTSOF(pids); i++) {
                must(pids[i] = fork());
                if (pids[i] == 0)
                        _exit(try_prepare() != 0 || check_parent() != 0);
        }
        for (size_t i = 0; i < ELEMENTSOF(pids); i++) {
                int status;

                must(waitpid(pids[i], &status, 0));
                assert_int_equal(status, 0);
        }
        for (size_t i = 0; i < FENCE_N_HOOKS; i++)
                if (is_full(&fence_hooks[i]))
                        assert_int_equal(count_attached(fence_hooks[i].type), strstr(fence_hooks[i].name, "_unix") ? 1 : 2);
}

static bool is_egress(const FenceHook *hook) {
        return is_full(hook) && hook->type == BPF_CGROUP_INET_EGRESS;
}

static void test_what_is_taken_off_stays_off(void **state) {
        detach(is_egress);
        assert_int_equal(check_parent(), -ENOTRECOVERABLE);
        prepare();
        assert_int_equal(check_parent(), -ENOTRECOVERABLE); /* somebody should ask why */
        forget();                                           /* anchor-bpf.service started again */
        prepare();
        assert_int_equal(check_parent(), 0);
}

/* A program that lets everything pass and asks `map`, if that is one. */
static int load_allowing(const char *name, int map) {
        struct bpf_insn insns[] = {
                { .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = map >= 0 ? BPF_PSEUDO_MAP_FD : 0, .imm = map >= 0 ? map : 0 },
                {},
                { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 1 },
                { .code = BPF_JMP | BPF_EXIT },
        };
        LIBBPF_OPTS(bpf_prog_load_opts, opts, .expected_attach_type = BPF_CGROUP_INET4_CONNECT);
        int fd;

        must(fd = bpf_prog_load(BPF_PROG_TYPE_CGROUP_SOCK_ADDR, name, "GPL", insns, ELEMENTSOF(insns), &opts));
        return fd;
}

static void test_older_programs_are_taken_off(void **state) {
        _cleanup_fd_ int map = bpf_obj_get(FENCE_PRIVATE_DIR "/verdicts"), cgroup = open_parent(), older = -1, strange = -1;

        older = load_allowing("connect4", map);
        strange = load_allowing("connect4", -1);
        assert_int_equal(bpf_prog_attach(older, cgroup, BPF_CGROUP_INET4_CONNECT, BPF_F_ALLOW_MULTI), 0);
        assert_int_equal(bpf_prog_attach(strange, cgroup, BPF_CGROUP_INET4_CONNECT, BPF_F_ALLOW_MULTI), 0);
        assert_int_equal(count_attached(BPF_CGROUP_INET4_CONNECT), 4);
        forget();
        prepare();
        assert_int_equal(check_parent(), 0);
        assert_int_equal(count_attached(BPF_CGROUP_INET4_CONNECT), 3);
        assert_int_equal(bpf_prog_detach2(strange, cgroup, BPF_CGROUP_INET4_CONNECT), 0); /* somebody else's: not ours to take off */
}

int main(void) {
        const struct CMUnitTest tests[] = {
                T(test_floor_alone_denies),
                T(test_floor_denies_packets),
                T(test_full_layer_alone_judges),
                T(test_hammer_while_the_floor_comes_and_goes),
                T(test_packets_before_any_grant),
                T(test_no_slice_without_a_floor),
                T(test_made_anew_is_denied_until_prepared),
                T(test_prepared_by_many_at_once),
                T(test_what_is_taken_off_stays_off),
                T(test_older_programs_are_taken_off),
        };

        return RUN(tests);
}
