/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The events of an item: numbered, whole or absent, and read by anybody at any pace. */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <signal.h>

#include "api/event-log.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

#define RUN "r0123456789ab"

static char folder[] = "/tmp/test-event-log-XXXXXX";
static int dir_fd;

static int set_up(void **state) {
        strcpy(folder + strlen(folder) - 6, "XXXXXX");
        assert_non_null(mkdtemp(folder));
        dir_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return dir_fd < 0;
}

static int tear_down(void **state) {
        (void) unlinkat(dir_fd, "log", 0);
        (void) close(dir_fd);
        return rmdir(folder);
}

static EventLog *open_log(void) {
        EventLog *l = NULL;

        assert_int_equal(event_log_open(&l, dir_fd, "log"), 0);
        return l;
}

static void output(EventLog *l, const char *run, const char *text) {
        assert_int_equal(event_log_append(l, "output", json_pack("{s:s, s:s}", "run", run, "data", text)), 0);
}

static off_t size_of_log(void) {
        struct stat st;

        assert_int_equal(fstatat(dir_fd, "log", &st, 0), 0);
        return st.st_size;
}

static void add_raw(const char *text, size_t size) {
        _cleanup_fd_ int fd = openat(dir_fd, "log", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);

        assert_int_equal(write(fd, text, size), size);
}

/* The seq of the next event, 0 at the end, or negative. */
static int next(EventReader *r) {
        _cleanup_json_ json_t *event = NULL;
        int k = event_reader_next(r, &event);

        return k > 0 ? (int) json_integer_value(json_object_get(event, "seq")) : k;
}

static void test_append_and_reopen(void **state) {
        _cleanup_(event_log_closep) EventLog *l = open_log();
        uint64_t size;

        assert_string_equal(event_log_last_state(l), "");
        assert_int_equal(event_log_append(l, "state", json_pack("{s:s, s:s}", "state", "queued", "to", "queued")), 0);
        output(l, RUN, "hello\n");
        output(l, "r0000000other", "x");
        output(l, RUN, "more");
        size = event_log_output_size(l, RUN);
        assert_true(size > 10);
        assert_int_equal(event_log_output_size(l, "r0000000never"), 0);
        assert_int_equal(event_log_append(l, "state", json_pack("{s:s}", "state", "leased")), 0);
        assert_int_equal(event_log_append(l, "note", json_pack("{s:s}", "state", "closed")), 0); /* says nothing of the state */
        assert_int_equal(event_log_sync(l), 0);

        l = event_log_close(l);
        l = open_log();
        assert_string_equal(event_log_last_state(l), "leased");
        assert_int_equal(event_log_output_size(l, RUN), size);
        output(l, RUN, "again");
        {
                _cleanup_(event_reader_done) EventReader r = {};

                event_reader_init(&r, openat(dir_fd, "log", O_RDONLY | O_CLOEXEC));
                for (int i = 1; i <= 7; i++)
                        assert_int_equal(next(&r), i);
                assert_int_equal(next(&r), 0);
                output(l, RUN, "and again");
                assert_int_equal(next(&r), 8);
        }
}

/* The host died in the middle of a line. */
static void test_torn(void **state) {
        _cleanup_(event_log_closep) EventLog *l = open_log();
        off_t size;

        output(l, RUN, "one");
        size = size_of_log();
        l = event_log_close(l);
        add_raw("{\"seq\":2,\"type\":\"sta", 20);
        l = open_log();
        assert_int_equal(size_of_log(), size);
        output(l, RUN, "two");
        l = event_log_close(l);
        l = open_log();
        {
                _cleanup_(event_reader_done) EventReader r = {};

                event_reader_init(&r, openat(dir_fd, "log", O_RDONLY | O_CLOEXEC));
                assert_int_equal(next(&r), 1);
                assert_int_equal(next(&r), 2);
                assert_int_equal(next(&r), 0);
        }
}

/* What no end of a process leaves, but a loss of power: the log can be used again, and what was before it is there. */
static void test_no_event(void **state) {
        static const char *const lines[] = { "\1\1\1\n{\"seq\":7}\n", "[1]\n{\"seq\":7}\n", "{\"seq\":2}\n{\n" };

        for (size_t i = 0; i < ELEMENTSOF(lines); i++) {
                _cleanup_(event_log_closep) EventLog *l = NULL;
                char zeros[8] = {};
                off_t size;

                assert_true(unlinkat(dir_fd, "log", 0) == 0 || errno == ENOENT);
                l = open_log();
                output(l, RUN, "one");
                size = size_of_log();
                l = event_log_close(l);
                if (i == 0)
                        add_raw(zeros, sizeof(zeros));
                add_raw(lines[i], strlen(lines[i]));
                assert_int_equal(event_log_open(&l, dir_fd, "log"), EVENT_LOG_E_CUT);
                assert_int_equal(size_of_log(), size + (i == 2 ? 10 : 0));
                output(l, RUN, "two");
                l = event_log_close(l);
                l = open_log(); /* in order */
        }
}

static void test_reader_waits_for_the_end_of_a_line(void **state) {
        _cleanup_(event_reader_done) EventReader r = {};
        static char big[100 * 1024];

        add_raw("{\"seq\":", 7);
        event_reader_init(&r, openat(dir_fd, "log", O_RDONLY | O_CLOEXEC));
        assert_int_equal(next(&r), 0);
        add_raw("1}\n{\"seq\":2}\n", 13);
        assert_int_equal(next(&r), 1);
        assert_int_equal(next(&r), 2);

        /* one that is longer than a first look */
        memset(big, 'x', sizeof(big));
        add_raw("{\"seq\":3,\"data\":\"", 17);
        add_raw(big, sizeof(big));
        assert_int_equal(next(&r), 0);
        add_raw("\"}\n", 3);
        assert_int_equal(next(&r), 3);
        add_raw("no JSON\n", 8);
        assert_true(next(&r) < 0);
}

static void test_limits(void **state) {
        _cleanup_(event_log_closep) EventLog *l = open_log();
        _cleanup_free_ char *big = malloc(EVENT_LINE_MAX + 1);
        off_t size;

        output(l, RUN, "one");
        size = size_of_log();
        memset(big, 'x', EVENT_LINE_MAX);
        big[EVENT_LINE_MAX] = 0;
        assert_int_equal(event_log_append(l, "output", json_pack("{s:s}", "data", big)), -EMSGSIZE);
        assert_int_equal(event_log_append(l, "output", NULL), -ENOMEM);
        assert_int_equal(size_of_log(), size);
        output(l, RUN, "two"); /* its number was not used up */
        big[EVENT_LINE_MAX - 200] = 0;
        output(l, RUN, big);
        {
                _cleanup_(event_reader_done) EventReader r = {};

                event_reader_init(&r, openat(dir_fd, "log", O_RDONLY | O_CLOEXEC));
                for (int i = 1; i <= 3; i++)
                        assert_int_equal(next(&r), i);
                assert_int_equal(next(&r), 0);
        }

        /* a line without an end, as no writer of ours makes it */
        {
                _cleanup_(event_reader_done) EventReader r = {};

                l = event_log_close(l);
                for (unsigned i = 0; i < 5; i++)
                        add_raw(big, EVENT_LINE_MAX - 200);
                event_reader_init(&r, openat(dir_fd, "log", O_RDONLY | O_CLOEXEC));
                for (int i = 1; i <= 3; i++)
                        assert_int_equal(next(&r), i);
                assert_int_equal(next(&r), -EUCLEAN);
        }
}

/* The disk is full in the middle of a line: nothing of it stays, and the next one is whole. */
static void test_full_disk(void **state) {
        _cleanup_(event_log_closep) EventLog *l = open_log();
        struct rlimit before, limit;
        char text[2000];
        off_t size;
        int r;

        memset(text, 'x', sizeof(text) - 1);
        text[sizeof(text) - 1] = 0;
        output(l, RUN, "one");
        size = size_of_log();
        (void) signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        limit = (struct rlimit) { .rlim_cur = (rlim_t) size + 500, .rlim_max = before.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        r = event_log_append(l, "output", json_pack("{s:s, s:s}", "run", RUN, "data", text));
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(r, -EFBIG);
        assert_int_equal(size_of_log(), size);
        output(l, RUN, "two");
        l = event_log_close(l);
        l = open_log();
        {
                _cleanup_(event_reader_done) EventReader reader = {};

                event_reader_init(&reader, openat(dir_fd, "log", O_RDONLY | O_CLOEXEC));
                assert_int_equal(next(&reader), 1);
                assert_int_equal(next(&reader), 2);
                assert_int_equal(next(&reader), 0);
        }
}

static void test_symlink(void **state) {
        EventLog *l = NULL;

        assert_int_equal(symlinkat("/etc/passwd", dir_fd, "log"), 0);
        assert_int_equal(event_log_open(&l, dir_fd, "log"), -ELOOP);
        assert_null(l);
}

/* What is known of calls and of the ledger is in the file. */
static void test_what_was_told(void **state) {
        int64_t revision, note;

        for (unsigned life = 0; life < 2; life++) {
                _cleanup_(event_log_closep) EventLog *l = open_log();

                if (life == 0) {
                        assert_int_equal(event_log_append(l, "state", json_pack("{s:s, s:i, s:i}", "state", "running", "revision", 3, "notes", 7)), 0);
                        assert_int_equal(event_log_append(l, "output", json_pack("{s:s, s:s, s:i}", "run", RUN, "data", "x", "call", 4)), 0);
                        assert_int_equal(event_log_append(l, "step", json_pack("{s:s, s:i}", "run", RUN, "call", 5)), 0);
                        assert_int_equal(event_log_append(l, "note", json_pack("{s:s, s:i}", "run", RUN, "id", 9)), 0);
                }
                assert_int_equal(event_log_last_call(l, RUN), 5);
                assert_int_equal(event_log_last_call(l, "r0000000other"), 0);
                assert_true(event_log_told(l, &revision, &note));
                assert_int_equal(revision, 3);
                assert_int_equal(note, 9);
        }
        {
                _cleanup_(event_log_closep) EventLog *l = open_log();

                assert_int_equal(event_log_append(l, "state", json_pack("{s:s}", "state", "failed")), 0); /* as it was written once */
                assert_false(event_log_told(l, &revision, &note));
                assert_int_equal(event_log_append(l, "state", json_pack("{s:s, s:i, s:i}", "state", "queued", "revision", 6, "notes", 11)), 0);
                assert_true(event_log_told(l, &revision, &note));
                assert_int_equal(revision, 6);
                assert_int_equal(note, 11);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_what_was_told, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_append_and_reopen, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_event, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_torn, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_reader_waits_for_the_end_of_a_line, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_limits, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_full_disk, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_symlink, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
