/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* exec in the guest: how a process begins, what it reads and writes, and how it and all it started end. */

#include "guest-world.h"

static void test_exits(void **state) {
        Host *h = host_new(true);
        Said *s;

        assert_int_equal(exit_number(host_shell(h, 1, "exit 7"), "status"), 7);
        assert_int_equal(exit_number(host_shell(h, 2, "kill -9 $$"), "signal"), SIGKILL);

        s = host_ask(h, CHANNEL_EXEC, 3, "{\"argv\": [\"/nonexistent\"]}");
        assert_int_equal(exit_number(s, "errno"), ENOENT);
        assert_string_equal(json_string_value(json_object_get(s->exit, "error")), "/nonexistent: No such file or directory");
        assert_int_equal(s->n_out_ends + s->n_err_ends, 0);

        assert_int_equal(exit_number(host_ask(h, CHANNEL_EXEC, 4, "{\"argv\": [\"true\"], \"cwd\": \"/nonexistent\"}"), "errno"), ENOENT);
        assert_string_equal(host_ask(h, CHANNEL_EXEC, 5, "{\"argv\": [\"pwd\"], \"cwd\": \"/usr\"}")->out, "/usr\n");
        assert_string_equal(host_ask(h, CHANNEL_EXEC, 6, "{\"argv\": [\"pwd\"]}")->out, "/\n");
        host_free(h);
}

static void test_no_command(void **state) {
        static const char *const requests[] = {
                "{}", "{\"argv\": []}", "{\"argv\": \"true\"}", "{\"argv\": [\"true\", 1]}", "{\"argv\": [\"true\"], \"env\": {\"A\": 1}}",
                "{\"argv\": [\"true\"], \"env\": {\"A=B\": \"c\"}}",
        };
        Host *h = host_new(true);

        for (uint32_t i = 0; i < ELEMENTSOF(requests); i++)
                assert_int_equal(exit_number(host_ask(h, CHANNEL_EXEC, i + 1, requests[i]), "errno"), EINVAL);
        host_free(h);
}

static unsigned n_lines(const char *text, const char *line) {
        size_t size = strlen(line);
        unsigned n = 0;

        for (const char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
                n += strncmp(p, line, size) == 0 && (p[size] == '\n' || p[size] == 0);
        return n;
}

/* What is asked for, what every process has, and nothing of the guest's own. */
static void test_environment(void **state) {
        Host *h = host_new(true);
        Said *s;

        assert_int_equal(setenv("OWN", "guest", 1), 0);
        s = host_ask(h, CHANNEL_EXEC, 1, "{\"argv\": [\"/usr/bin/env\"], \"env\": {\"A\": \"b=c\", \"HOME\": \"/workspace\"}}");
        assert_int_equal(n_lines(s->out, "A=b=c"), 1);
        assert_int_equal(n_lines(s->out, "HOME=/workspace"), 1);
        assert_int_equal(n_lines(s->out, "HOME=/root"), 0);
        assert_int_equal(n_lines(s->out, "LANG=C.UTF-8"), 1);
        assert_int_equal(n_lines(s->out, "OWN=guest"), 0);
        host_free(h);
}

static void test_output(void **state) {
        Host *h = host_new(true);
        Said *s = host_shell(h, 1, "echo out; echo err >&2");

        assert_string_equal(s->out, "out\n");
        assert_string_equal(s->err, "err\n");
        assert_int_equal(s->n_out_ends, 1);
        assert_int_equal(s->n_err_ends, 1);

        s = host_shell(h, 2, "exec head -c 900000 /dev/zero");
        assert_int_equal(s->n_out, 900000);
        host_free(h);
}

/* ---- what a process reads ---- */

static void test_input(void **state) {
        enum { PIECES = 10 };
        static char piece[60000];
        Host *h = host_new(true);
        Said *s = h->said + 1;

        host_start_shell(h, 1, "exec cat", true);
        for (int i = 0; i < PIECES; i++) {
                memset(piece, 'a' + i, sizeof(piece));
                TURN_UNTIL(h, (uint64_t) i * sizeof(piece) + sizeof(piece) <= CHANNEL_WINDOW + s->credit);
                host_say(h, CHANNEL_STDIN, 1, piece, sizeof(piece));
        }
        host_say(h, CHANNEL_STDIN, 1, NULL, 0);
        assert_int_equal(exit_number(host_wait(h, 1), "status"), 0);
        assert_int_equal(s->n_out, PIECES * sizeof(piece));
        for (int i = 0; i < PIECES; i++) {
                memset(piece, 'a' + i, sizeof(piece));
                assert_memory_equal(s->out + (size_t) i * sizeof(piece), piece, sizeof(piece));
        }
        assert_null(h->error);
        host_free(h);
}

static void test_no_input(void **state) {
        Host *h = host_new(true);

        assert_int_equal(exit_number(host_shell(h, 1, "exec cat"), "status"), 0);
        assert_int_equal(h->said[1].n_out, 0);
        host_free(h);
}

/* A pipe that nobody reads any more: what comes for it is used up all the same, and the guest goes on. */
static void test_nobody_reads(void **state) {
        static const char piece[CHANNEL_WINDOW / 4];
        Host *h = host_new(true);
        Said *s = h->said + 1;

        host_start_shell(h, 1, "exec <&-; echo closed; exec sleep 1000", true);
        TURN_UNTIL(h, s->n_out > 0);
        for (int i = 0; i < 8; i++) {
                host_say(h, CHANNEL_STDIN, 1, piece, sizeof(piece));
                TURN_UNTIL(h, s->credit == (uint64_t) (i + 1) * sizeof(piece));
        }

        host_say_text(h, CHANNEL_SIGNAL, 1, "{\"signal\": 9}");
        assert_int_equal(exit_number(host_wait(h, 1), "signal"), SIGKILL);
        host_free(h);
}

/* ---- signals, and the end ---- */

/* The guest ignores SIGPIPE and blocks SIGCHLD, for itself: `yes | head` has to end without a word, as everywhere. */
static void test_signals_do_what_they_do(void **state) {
        Host *h = host_new(true);
        Said *s;

        assert_int_equal(exit_number(host_shell(h, 1, "kill -PIPE $$; exit 3"), "signal"), SIGPIPE);
        s = host_shell(h, 2, "(yes; echo $? >&2) | head -n 1");
        assert_string_equal(s->out, "y\n");
        assert_string_equal(s->err, "141\n");
        s = host_shell(h, 3, "grep ^SigBlk /proc/self/status");
        assert_string_equal(s->out, "SigBlk:\t0000000000000000\n");
        host_free(h);
}

static void test_signal_goes_to_all_of_it(void **state) {
        Host *h = host_new(true);

        host_start_shell(h, 1, "trap 'echo parent; exit 3' USR1;"
                               " (trap 'echo child; exit 0' USR1; echo up; while :; do sleep 0.01; done) & wait $!; wait $!", false);
        TURN_UNTIL(h, h->said[1].n_out == 3);
        host_say_text(h, CHANNEL_SIGNAL, 1, "{\"signal\": 10}");
        assert_int_equal(exit_number(host_wait(h, 1), "status"), 3);
        assert_non_null(strstr(h->said[1].out, "parent"));

        host_start_shell(h, 2, "echo up; sleep 1000", false);
        TURN_UNTIL(h, h->said[2].n_out == 3);
        host_say_text(h, CHANNEL_SIGNAL, 2, "{\"signal\": 0}");
        host_say_text(h, CHANNEL_SIGNAL, 2, "{\"signal\": 4711}");
        host_say_text(h, CHANNEL_SIGNAL, 2, "{\"signal\": 9}");
        assert_int_equal(exit_number(host_wait(h, 2), "signal"), SIGKILL);
        host_free(h);
}

/* An exec is over when its first process is: else its pipe would stay open for as long as what it left behind. */
static void test_what_is_left_is_killed(void **state) {
        Host *h = host_new(true);
        Said *s = host_shell(h, 1, "sleep 1000 & setsid sleep 1000 & echo started");

        assert_string_equal(s->out, "started\n");
        assert_int_equal(exit_number(s, "status"), 0);
        host_free(h); /* which waits for the end of it */
}

/* One that has left the exec's cgroup keeps the pipe, and is not waited for; what it wrote in time is read. */
static void test_what_has_left_is_not_waited_for(void **state) {
        Host *h = host_new(true);
        Stream *s = h->g.streams;
        pid_t pid;

        host_start_shell(h, 1, "echo 0 >/sys/fs/cgroup/cgroup.procs; sleep 1000 & echo $!", false);
        TURN_UNTIL(h, s->reaped && h->said[1].n_out > 0);
        pid = (pid_t) strtol(h->said[1].out, NULL, 10);
        assert_true(pid > 1);
        host_say_text(h, CHANNEL_PING, 0, "");
        host_turn(h);
        assert_null(h->said[1].exit);

        s->reaped_usec -= GUEST_DRAIN_USEC;
        assert_int_equal(exit_number(host_wait(h, 1), "status"), 0);
        assert_int_equal(h->said[1].n_out_ends, 1);
        assert_int_equal(kill(pid, SIGKILL), 0);
        host_free(h);
}

/* That time is for a pipe in which nothing is: output that only the port has no room for is not cut. */
static void test_nothing_is_cut_for_want_of_room(void **state) {
        Host *h = host_new(true);
        Stream *s = h->g.streams;

        h->keep = true;
        host_start_shell(h, 1, "exec head -c 300000 /dev/zero", false);
        TURN_UNTIL(h, h->said[1].n_out == CHANNEL_WINDOW);
        TURN_UNTIL(h, s->reaped);
        s->sender.credit = CHANNEL_WINDOW;
        s->reaped_usec -= 2 * GUEST_DRAIN_USEC;

        h->g.out_end = GUEST_OUT_SIZE - GUEST_OUT_RESERVE;
        process_read_output(&h->g, s, &s->out, CHANNEL_STDOUT);
        assert_true(s->out >= 0);

        h->g.out_end = 0;
        assert_int_equal(exit_number(host_wait(h, 1), "status"), 0);
        assert_int_equal(h->said[1].n_out, 300000);
        host_free(h);
}

/* What an error is about may be cut, but not within a character: it would be no text any more, and the whole answer be lost. */
static void test_error_of_a_long_name(void **state) {
        for (size_t shift = 0; shift < 3; shift++) {
                _cleanup_free_ char *request = NULL;
                Host *h = host_new(true);
                const char *error;
                char name[400] = "/";
                Said *s;

                for (size_t i = 0; i < shift; i++)
                        strcat(name, "a");
                for (size_t i = 0; i < 80; i++)
                        strcat(name, "\xe2\x82\xac");
                assert_true(asprintf(&request, "{\"argv\": [\"%s\"]}", name) > 0);
                s = host_ask(h, CHANNEL_EXEC, 1, request);
                assert_int_equal(exit_number(s, "errno"), ENOENT);
                error = json_string_value(json_object_get(s->exit, "error"));
                assert_non_null(error);
                assert_memory_equal(error, name, 160);
                assert_non_null(strstr(error, ": No such file or directory"));
                host_free(h);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_exits),
                cmocka_unit_test(test_no_command),
                cmocka_unit_test(test_environment),
                cmocka_unit_test(test_output),
                cmocka_unit_test(test_input),
                cmocka_unit_test(test_no_input),
                cmocka_unit_test(test_nobody_reads),
                cmocka_unit_test(test_signals_do_what_they_do),
                cmocka_unit_test(test_signal_goes_to_all_of_it),
                cmocka_unit_test(test_what_is_left_is_killed),
                cmocka_unit_test(test_what_has_left_is_not_waited_for),
                cmocka_unit_test(test_nothing_is_cut_for_want_of_room),
                cmocka_unit_test(test_error_of_a_long_name),
        };

        return cmocka_run_group_tests(tests, guest_world_enter, guest_world_leave);
}
