/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The guest's session: what comes first, what ends it, and how streams share the one port. */

#include "guest-world.h"

#define SEED "0123456789abcdef0123456789abcdef"

static void expect_error(Host *h, const char *reason) {
        unsigned before = h->count[CHANNEL_ERROR];

        TURN_UNTIL(h, h->count[CHANNEL_ERROR] > before);
        assert_string_equal(json_string_value(json_object_get(h->error, "reason")), reason);
}

static void read_file(const char *path, char *ret, size_t size) {
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);

        assert_true(n >= 0);
        ret[n] = 0;
}

static void say_seed(Host *h, char machine_id[static 64]) {
        unsigned before = h->count[CHANNEL_SEED];

        host_say_text(h, CHANNEL_SEED, 0, SEED);
        TURN_UNTIL(h, h->count[CHANNEL_SEED] > before);
        read_file("/etc/machine-id", machine_id, 64);
        assert_int_equal(strlen(machine_id), 33);
        assert_int_equal(strspn(machine_id, "0123456789abcdef"), 32);
}

/* Nothing runs before the guest has a name, randomness that no other clone has, and the time. */
static void test_order(void **state) {
        static const char early[] = "hello, seed and clock come first";
        char name[64], hosts[256], id[64], other_id[64];
        Host *h = host_new(false);

        host_say_text(h, CHANNEL_EXEC, 1, "{\"argv\": [\"true\"]}");
        expect_error(h, early);
        host_say_text(h, CHANNEL_HELLO, 0, "{\"protocol\": 2}");
        expect_error(h, "protocol versions differ");

        host_say_text(h, CHANNEL_HELLO, 0, "{\"protocol\": 1, \"hostname\": \"r000000000001\"}");
        TURN_UNTIL(h, h->hello);
        assert_int_equal(json_integer_value(json_object_get(h->hello, "protocol")), CHANNEL_VERSION);
        assert_int_equal(json_string_length(json_object_get(h->hello, "boot_id")), 36);
        assert_true(json_string_length(json_object_get(h->hello, "kernel")) > 0);
        assert_true(json_integer_value(json_object_get(h->hello, "uptime_us")) > 0);
        assert_int_equal(gethostname(name, sizeof(name)), 0);
        assert_string_equal(name, "r000000000001");
        read_file("/etc/hosts", hosts, sizeof(hosts));
        assert_string_equal(hosts, "127.0.0.1 localhost r000000000001\n::1 localhost\n");

        host_say_text(h, CHANNEL_GET, 1, "{\"path\": \"/etc/hosts\", \"max\": 1000}");
        expect_error(h, early);
        say_seed(h, id);
        say_seed(h, other_id);
        assert_string_not_equal(id, other_id);
        host_say_text(h, CHANNEL_PUT, 1, "{\"path\": \"/tmp/early\"}");
        expect_error(h, early);
        assert_int_not_equal(access("/tmp/early", F_OK), 0);

        host_say_text(h, CHANNEL_CLOCK, 0, "{\"realtime_us\": 1790000000000123}");
        TURN_UNTIL(h, h->count[CHANNEL_CLOCK] == 1);
        assert_int_equal(clock_set.tv_sec, 1790000000);
        assert_int_equal(clock_set.tv_nsec, 123000);
        assert_int_equal(exit_number(host_ask(h, CHANNEL_EXEC, 1, "{\"argv\": [\"true\"]}"), "status"), 0);
        host_free(h);
}

static void test_no_time(void **state) {
        static const char *const clocks[] = { "{}", "{\"realtime_us\": 0}", "{\"realtime_us\": -1}", "{\"realtime_us\": \"1790000000000123\"}" };
        unsigned before = n_clocks_set;
        Host *h = host_new(false);

        for (size_t i = 0; i < ELEMENTSOF(clocks); i++) {
                host_say_text(h, CHANNEL_CLOCK, 0, clocks[i]);
                expect_error(h, "the clock cannot be set");
        }
        assert_int_equal(n_clocks_set, before);
        host_free(h);
}

static void test_not_an_object(void **state) {
        Host *h = host_new(true);

        host_say_text(h, CHANNEL_HELLO, 0, "[]");
        expect_error(h, "not a JSON object");
        host_say_text(h, CHANNEL_EXEC, 1, "{\"argv\": [\"true\"]");
        expect_error(h, "not a JSON object");
        host_say_text(h, CHANNEL_EXEC, 1, "{\"argv\": [\"true\\u0000\"]}");
        expect_error(h, "not a JSON object");
        host_free(h);
}

static void say_ping(Host *h, const char *text) {
        unsigned before = h->count[CHANNEL_PING];

        host_say_text(h, CHANNEL_PING, 0, text);
        TURN_UNTIL(h, h->count[CHANNEL_PING] > before);
        assert_int_equal(h->n_ping, strlen(text));
        assert_memory_equal(h->ping, text, h->n_ping);
}

static void test_ping_and_power_off(void **state) {
        Host *h = host_new(false);

        say_ping(h, "");
        say_ping(h, "who is there");
        host_say_text(h, CHANNEL_MESSAGE, 0, "{\"message\": \"power\"}");
        say_ping(h, "still");
        assert_int_equal(n_power_offs, 0);
        host_say_text(h, CHANNEL_MESSAGE, 0, "{\"message\": \"poweroff\"}");
        TURN_UNTIL(h, n_power_offs == 1);
        host_free(h);
}

static size_t n_streams(const Host *h) {
        size_t n = 0;

        for (size_t i = 0; i < GUEST_STREAMS_MAX; i++)
                n += h->g.streams[i].kind != STREAM_FREE;
        return n;
}

static void test_as_many_streams_as_there_are(void **state) {
        Host *h = host_new(true);

        for (uint32_t id = 1; id <= GUEST_STREAMS_MAX; id++)
                host_start_shell(h, id, "exec cat", true);
        assert_int_equal(exit_number(host_ask(h, CHANNEL_EXEC, GUEST_STREAMS_MAX + 1, "{\"argv\": [\"true\"]}"), "errno"), EMFILE);
        assert_int_equal(n_streams(h), GUEST_STREAMS_MAX);

        host_say(h, CHANNEL_STDIN, 7, NULL, 0);
        assert_int_equal(exit_number(host_wait(h, 7), "status"), 0);
        assert_int_equal(exit_number(host_ask(h, CHANNEL_EXEC, GUEST_STREAMS_MAX + 2, "{\"argv\": [\"true\"]}"), "status"), 0);
        host_free(h);
}

/* What ends a session: every exec is killed, and nothing of it is in the next one. */

static Host *host_with_a_run(void) {
        Host *h = host_new(true);

        host_start_shell(h, 1, "echo up; sleep 1000", false);
        host_say_text(h, CHANNEL_PUT, 2, "{\"path\": \"/tmp/half\"}");
        host_say_text(h, CHANNEL_DATA, 2, "half");
        TURN_UNTIL(h, h->said[1].n_out == 3 && n_streams(h) == 2);
        return h;
}

static void expect_over(Host *h) {
        pid_t pid = h->g.streams[0].pid;
        siginfo_t si;

        assert_true(pid > 0);
        TURN_UNTIL(h, n_streams(h) == 0);
        assert_false(h->g.greeted || h->g.seeded || h->g.clocked);
        /* if the loop was first, it has taken the orphan's status */
        if (waitid(P_PID, (id_t) pid, &si, WEXITED) == 0)
                assert_int_equal(si.si_status, SIGKILL);
        else
                assert_int_equal(errno, ECHILD);
}

static void test_garbage(void **state) {
        uint8_t garbage[64];
        Host *h = host_with_a_run();

        memset(garbage, 0xff, sizeof(garbage));
        host_write(h, garbage, sizeof(garbage));
        expect_over(h);
        say_ping(h, "again"); /* in a session of its own */
        host_free(h);
}

static void test_host_ends_it(void **state) {
        Host *h = host_with_a_run();

        host_say_text(h, CHANNEL_ERROR, 0, "{\"reason\": \"enough\"}");
        expect_over(h);
        say_ping(h, "again");
        host_free(h);
}

static void test_host_goes(void **state) {
        Host *h = host_with_a_run();

        h->fd = fd_close(h->fd);
        expect_over(h);
        host_free(h);
}

/* A write to a host that hears no more is an error of that write, and ends the session only. */
static void test_host_hears_no_more(void **state) {
        Host *h = host_with_a_run();

        assert_int_equal(shutdown(h->fd, SHUT_RD), 0);
        host_say_text(h, CHANNEL_PING, 0, "anybody");
        expect_over(h);
        host_free(h);
}

/* ---- credit ---- */

static void test_no_more_than_its_credit(void **state) {
        enum { SIZE = 600000 };
        Host *h = host_new(true);

        h->keep = true;
        host_start_shell(h, 1, "exec head -c 600000 /dev/zero", false);
        TURN_UNTIL(h, h->said[1].n_out == CHANNEL_WINDOW);
        say_ping(h, "more?");
        assert_int_equal(h->said[1].n_out, CHANNEL_WINDOW);
        host_give_credit(h, 1, 1000);
        TURN_UNTIL(h, h->said[1].n_out == CHANNEL_WINDOW + 1000);
        say_ping(h, "more?");
        assert_int_equal(h->said[1].n_out, CHANNEL_WINDOW + 1000);

        h->keep = false;
        h->owed[1] -= 1000;
        assert_int_equal(exit_number(host_wait(h, 1), "status"), 0);
        assert_int_equal(h->said[1].n_out, SIZE);
        host_free(h);
}

static void test_more_than_the_guest_gave(void **state) {
        static const uint8_t piece[CHANNEL_PAYLOAD_MAX];
        Host *h = host_new(true);

        /* the pipe takes 64 KiB of it and the buffer the rest of a window, and nobody reads */
        host_start_shell(h, 1, "exec sleep 1000", true);
        for (size_t i = 0; i < CHANNEL_WINDOW / sizeof(piece) + 2; i++)
                host_say(h, CHANNEL_STDIN, 1, piece, sizeof(piece));
        expect_error(h, "more than the stream's credit");
        host_free(h);
}

static void test_credit_beyond_the_window(void **state) {
        Host *h = host_new(true);

        host_start_shell(h, 1, "exec sleep 1000", false);
        host_give_credit(h, 1, 1);
        expect_error(h, "credit beyond the window");
        host_free(h);
}

/* They were on their way when it ended. */
static void test_late_frames(void **state) {
        Host *h = host_new(true);

        assert_int_equal(exit_number(host_shell(h, 1, "exit 0"), "status"), 0);
        host_say_text(h, CHANNEL_STDIN, 1, "late");
        host_say_text(h, CHANNEL_DATA, 1, "late");
        host_say_text(h, CHANNEL_SIGNAL, 1, "{\"signal\": 15}");
        host_give_credit(h, 1, CHANNEL_WINDOW);
        say_ping(h, "done");
        assert_null(h->error);
        host_free(h);
}

/* ---- a flood ---- */

static void test_flood(void **state) {
        Host *h = host_new(true);

        for (uint32_t id = 1; id <= 4; id++)
                host_start_shell(h, id, "exec yes", false);
        TURN_UNTIL(h, h->said[1].n_out && h->said[2].n_out && h->said[3].n_out && h->said[4].n_out);

        /* a host that does not read: what answers may need stays free, and the guest reads nothing that would want an answer */
        while (guest_out_room(&h->g) > GUEST_OUT_RESERVE + CHANNEL_FRAME_MAX)
                assert_int_equal(guest_serve_once(&h->g), 0);
        assert_true(guest_out_room(&h->g) >= GUEST_OUT_RESERVE);

        say_ping(h, "in between");
        for (uint32_t id = 1; id <= 4; id++)
                host_say_text(h, CHANNEL_SIGNAL, id, "{\"signal\": 15}");
        for (uint32_t id = 1; id <= 4; id++)
                assert_int_equal(exit_number(host_wait(h, id), "signal"), SIGTERM);
        host_free(h);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_order),
                cmocka_unit_test(test_no_time),
                cmocka_unit_test(test_not_an_object),
                cmocka_unit_test(test_ping_and_power_off),
                cmocka_unit_test(test_as_many_streams_as_there_are),
                cmocka_unit_test(test_garbage),
                cmocka_unit_test(test_host_ends_it),
                cmocka_unit_test(test_host_goes),
                cmocka_unit_test(test_host_hears_no_more),
                cmocka_unit_test(test_no_more_than_its_credit),
                cmocka_unit_test(test_more_than_the_guest_gave),
                cmocka_unit_test(test_credit_beyond_the_window),
                cmocka_unit_test(test_late_frames),
                cmocka_unit_test(test_flood),
        };

        return cmocka_run_group_tests(tests, guest_world_enter, guest_world_leave);
}
