/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The fence in the running kernel: what a grant opens, for how long, and what cuts it. */

#include "fence-world.h"

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

int main(void) {
        const struct CMUnitTest tests[] = {
                T(test_self_test),
                T(test_load_again),
                T(test_grant_opens_one_destination),
                T(test_mapped_is_the_same),
                T(test_heartbeat),
                T(test_checked),
                T(test_expiry_bounds_only_connects),
                T(test_revoke_cuts),
                T(test_silence_cuts),
                T(test_adopted_goes_on),
                T(test_never_even_with_entry),
        };

        return RUN(tests);
}
