/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The fence in the running kernel: what it counts, and the program at the devices. */

#include "fence-world.h"

#include <bpf/libbpf.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "net/fence-counts.h"

/* ---- counts ---- */

static void test_counts_by_run(void **state) {
        Target t = { "203.0.113.1", 7, SOCK_STREAM }, never = { "169.254.169.254", 80, SOCK_STREAM };
        uint64_t before[FENCE_N_VERDICTS], after[FENCE_N_VERDICTS], other[FENCE_N_VERDICTS];
        _cleanup_json_ json_t *j = NULL;

        assert_int_equal(fence_counts_drop(cgroup_id(child_b)), 0);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), before), 0);
        for (int i = 0; i < 3; i++)
                assert_int_equal(in_cgroup(child_a, deed_connect, &t), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_connect, &never), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_self_test, NULL), 0);
        assert_int_equal(in_cgroup(child_b, deed_bind, &t), EPERM);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), after), 0);
        assert_int_equal(fence_counts_read(cgroup_id(child_b), other), 0);

        assert_int_equal(after[FENCE_CONNECT_NO_GRANT] - before[FENCE_CONNECT_NO_GRANT], 3);
        assert_int_equal(after[FENCE_CONNECT_NEVER] - before[FENCE_CONNECT_NEVER], 1);
        assert_int_equal(after[FENCE_UNIX_ABSTRACT] - before[FENCE_UNIX_ABSTRACT], 0);
        assert_int_equal(after[FENCE_TESTED] - before[FENCE_TESTED], 6);
        assert_int_equal(after[FENCE_BIND_REFUSED] - before[FENCE_BIND_REFUSED], 0);
        j = fence_counts_to_json(other);
        assert_int_equal(json_object_size(j), 1);
        assert_int_equal(json_integer_value(json_object_get(j, "bind_refused")), 1);

        assert_int_equal(fence_counts_drop(cgroup_id(child_a)), 0);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), after), 0);
        assert_int_equal(after[FENCE_CONNECT_NO_GRANT], 0);
}

static int deed_create_elsewhere(void *userdata) {
        const uid_t *uid = userdata;

        if (unshare(CLONE_NEWNET) < 0 || setuid(*uid) < 0)
                return 255;
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) < 0 ? errno : 0;
}

/* Whoever tries the ports of our tests is counted as what it tried; the tests themselves are the control. */
static void test_attempts_at_the_ports_of_tests(void **state) {
        static const Target attempts[] = {
                { "169.254.169.254", FENCE_TEST_PORT, SOCK_DGRAM }, { "169.254.169.254", FENCE_OTHER_TEST_PORT, SOCK_STREAM }, { "127.0.0.1", FENCE_TEST_PORT, SOCK_STREAM },
                { "203.0.113.1", FENCE_TEST_PORT, SOCK_STREAM }, { "203.0.113.1", FENCE_OTHER_TEST_PORT, SOCK_DGRAM }, { "192.0.2.2", FENCE_TEST_PORT, SOCK_DGRAM },
        };
        struct fence_key tester = { .cgroup_id = cgroup_id(child_a), .port = fence_test_port() };
        _cleanup_fd_ int map = bpf_obj_get(FENCE_MAPS_DIR "/grants");
        uint64_t counts[FENCE_N_VERDICTS];
        uid_t root = 0, nobody = 65534;

        for (int marked = 0; marked < 2; marked++) {
                assert_int_equal(fence_counts_drop(cgroup_id(child_a)), 0);
                if (marked)
                        assert_int_equal(bpf_map_update_elem(map, &tester, &(struct fence_grant) {}, BPF_ANY), 0);
                for (size_t i = 0; i < ELEMENTSOF(attempts); i++) {
                        Target t = attempts[i];

                        assert_int_equal(in_cgroup(child_a, t.type == SOCK_STREAM ? deed_connect : deed_sendto, &t), EPERM);
                }
                assert_int_equal(fence_counts_read(cgroup_id(child_a), counts), 0);
                assert_int_equal(counts[FENCE_CONNECT_NEVER], marked ? 0 : 3);
                assert_int_equal(counts[FENCE_CONNECT_NO_GRANT], marked ? 0 : 3);
                assert_int_equal(counts[FENCE_TESTED], marked ? 6 : 0);
        }
        assert_int_equal(bpf_map_delete_elem(map, &tester), 0);

        assert_int_equal(fence_counts_drop(cgroup_id(child_a)), 0);
        assert_int_equal(in_cgroup(child_a, deed_create_elsewhere, &root), EPERM);
        assert_int_equal(in_cgroup(child_a, deed_create_elsewhere, &nobody), EPERM);
        assert_int_equal(fence_counts_read(cgroup_id(child_a), counts), 0);
        assert_int_equal(counts[FENCE_TESTED], 1);
        assert_int_equal(counts[FENCE_CREATE_ELSEWHERE], 1);
}

enum { ROUNDS = 4000, ROUNDS_USEC = 2 * 1000 * 1000, PATIENCE_USEC = 20 * 1000 * 1000 }; /* as many rounds as there is time for: a busy machine has fewer */

typedef struct Race {
        atomic_uint round, done, n_begun;
        atomic_bool over;
} Race;

/* One refused datagram a round, all at the same moment. */
static int deed_race(void *userdata) {
        Target never = { "169.254.169.254", 80, SOCK_DGRAM };
        Race *race = userdata;
        struct sockaddr_storage ss;
        socklen_t len = target_address(&never, &ss);
        uint64_t end = time_monotonic() + PATIENCE_USEC;
        cpu_set_t cpus;
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        CPU_ZERO(&cpus);
        CPU_SET(atomic_fetch_add(&race->n_begun, 1), &cpus);
        if (fd < 0 || sched_setaffinity(0, sizeof(cpus), &cpus) < 0)
                return 255;
        for (unsigned i = 1; i <= ROUNDS; i++) {
                while (atomic_load(&race->round) < i) {
                        if (atomic_load(&race->over))
                                return 0;
                        if (time_monotonic() > end) /* whoever gives the start has failed */
                                return 253;
                        (void) sched_yield();
                }
                if (connect(fd, (struct sockaddr *) &ss, len) == 0)
                        return 254;
                atomic_fetch_add(&race->done, 1);
        }
        return 0;
}

/* Two that are the first of their kind at the same moment are two. (Of rounds without such a moment nothing is learnt; there are many.) */
static void test_first_counts_together(void **state) {
        Race *race = mmap(NULL, sizeof(*race), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        uint64_t counts[FENCE_N_VERDICTS], begin = time_monotonic();
        pid_t pids[2];
        int status;

        assert_true(race != MAP_FAILED);
        for (int i = 0; i < 2; i++) {
                must(pids[i] = fork());
                if (pids[i] == 0)
                        _exit(in_cgroup(child_a, deed_race, race));
        }
        for (unsigned i = 1; i <= ROUNDS && (i == 1 || time_monotonic() - begin < ROUNDS_USEC); i++) {
                assert_int_equal(fence_counts_drop(cgroup_id(child_a)), 0);
                atomic_store(&race->round, i);
                while (atomic_load(&race->done) < 2 * i) {
                        assert_true(time_monotonic() - begin < PATIENCE_USEC);
                        (void) sched_yield();
                }
                assert_int_equal(fence_counts_read(cgroup_id(child_a), counts), 0);
                assert_int_equal(counts[FENCE_CONNECT_NEVER], 2);
        }
        atomic_store(&race->over, true);
        for (int i = 0; i < 2; i++) {
                must(waitpid(pids[i], &status, 0));
                assert_int_equal(status, 0);
        }
        (void) munmap(race, sizeof(*race));
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
        return is_full(hook) && (hook->type == BPF_CGROUP_INET4_CONNECT || hook->type == BPF_CGROUP_INET_EGRESS);
}

static bool is_packet(const FenceHook *hook) {
        return is_full(hook) && hook->type == BPF_CGROUP_INET_EGRESS;
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
        attach(is_connect_or_packet);
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
        attach(is_packet);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                T(test_counts_by_run),
                T(test_attempts_at_the_ports_of_tests),
                T(test_first_counts_together),
                T(test_counts_of_many_runs),
                T(test_uplink_alone),
                T(test_uplink_asks_for_grants),
        };

        return RUN(tests);
}
