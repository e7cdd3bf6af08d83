/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Files of items: bounded copies that are complete or absent, and an event log that survives a torn line. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/event-log.h"
#include "api/store.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"

#define ITEM "i000000000001"

static char directory[] = "/tmp/anchorhold-store-XXXXXX";

typedef struct Copy {
        sd_event *event;
        int result;
        bool done;
} Copy;

static void on_done(int r, void *userdata) {
        Copy *c = userdata;

        assert_false(c->done);
        c->done = true;
        c->result = r;
        (void) sd_event_exit(c->event, 0);
}

/* Copies size bytes of a memory file; what came of it. */
static int copy(const char *name, size_t size, uint64_t max) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(store_freep) Store *store = NULL;
        _cleanup_free_ char *data = calloc(1, size + 1);
        Copy c = {};
        int fd;

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_new(&store, event, directory), 0);
        memset(data, 'x', size);
        fd = io_memfd("bundle", data, size);
        assert_true(fd >= 0);
        c.event = event;
        assert_int_equal(store_copy(store, ITEM, name, fd, max, on_done, &c), 0);
        assert_false(c.done); /* never from within */
        assert_int_equal(sd_event_loop(event), 0);
        assert_true(c.done);
        return c.result;
}

static off_t size_of(const char *name) {
        char path[128];
        struct stat st;

        (void) snprintf(path, sizeof(path), "%s/%s/%s", directory, ITEM, name);
        return stat(path, &st) < 0 ? -1 : st.st_size;
}

static void test_copies(void **state) {
        assert_int_equal(copy("small", 10, 10), 0);
        assert_int_equal(size_of("small"), 10);
        assert_int_equal(copy("large", 5 * 1024 * 1024, 8 * 1024 * 1024), 0); /* several turns */
        assert_int_equal(size_of("large"), 5 * 1024 * 1024);
        assert_int_equal(copy("beyond", 11, 10), -EFBIG);
        assert_int_equal(size_of("beyond"), -1);
        assert_int_equal(size_of(".beyond.1.new"), -1);
        assert_int_equal(copy("small", 3, 10), 0); /* replaced as a whole */
        assert_int_equal(size_of("small"), 3);
}

static void on_done_of_two(int r, void *userdata) {
        Copy *c = userdata;

        c->done = true;
        c->result = r;
}

/* The same file twice at once, as when a call is repeated before it was answered: what is there is whole at any time. */
static void test_two_copies(void **state) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(store_freep) Store *store = NULL;
        _cleanup_free_ char *data = calloc(1, 5 * 1024 * 1024);
        Copy first = {}, second = {};

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_new(&store, event, directory), 0);
        assert_int_equal(store_copy(store, ITEM, "twice", io_memfd("a", data, 2 * 1024 * 1024), UINT64_MAX, on_done_of_two, &first), 0);
        assert_int_equal(store_copy(store, ITEM, "twice", io_memfd("b", data, 5 * 1024 * 1024), UINT64_MAX, on_done_of_two, &second), 0);
        while (!first.done || !second.done) {
                off_t size;

                assert_true(sd_event_run(event, 1000000) >= 0);
                size = size_of("twice");
                assert_true(size == 2 * 1024 * 1024 || size == 5 * 1024 * 1024 || (size == -1 && !first.done && !second.done));
        }
        assert_int_equal(first.result, 0);
        assert_int_equal(second.result, 0);
        assert_int_equal(size_of("twice"), 5 * 1024 * 1024);
}

/* The one that came first takes longer, and must not put what is old in the place of what is new. */
static void test_last_copy_stays(void **state) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(store_freep) Store *store = NULL;
        Copy first = {}, second = {}, other = {};
        int fd = memfd_create("large", MFD_CLOEXEC);

        assert_int_equal(ftruncate(fd, 64 * 1024 * 1024), 0);
        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_new(&store, event, directory), 0);
        assert_int_equal(store_copy(store, ITEM, "last", fd, UINT64_MAX, on_done_of_two, &first), 0);
        assert_int_equal(store_copy(store, ITEM, "last", io_memfd("b", "small", 5), UINT64_MAX, on_done_of_two, &second), 0);
        assert_int_equal(store_copy(store, ITEM, "other", io_memfd("c", "small", 5), UINT64_MAX, on_done_of_two, &other), 0);
        while (!first.done || !second.done || !other.done) {
                assert_true(sd_event_run(event, 1000000) >= 0);
                assert_true(first.done || !second.done);
        }
        assert_int_equal(size_of("last"), 5);
        assert_int_equal(store_remove(store, ITEM, "last"), 0);
        assert_int_equal(store_remove(store, ITEM, "other"), 0);
}

/* What a crash left goes, what is whole stays. */
static void test_remove_partial(void **state) {
        static const char *const names[] = { ".result.bundle.3.new", ".diff.12.new", "result.bundle", "new", ".new" };
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(store_freep) Store *store = NULL;
        _cleanup_fd_ int dir = -1;

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_new(&store, event, directory), 0);
        dir = store_open_item(store, ITEM, true);
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                assert_int_equal(io_write_file_atomic(dir, names[i], "x", 1, 0600), 0);
        assert_int_equal(store_remove_partial(store, ITEM), 0);
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                assert_int_equal(unlinkat(dir, names[i], 0), i < 2 ? -1 : 0);
        assert_int_equal(store_remove_partial(store, "i000000000009"), 0);
        assert_int_equal(store_remove_partial(store, ".."), -EINVAL);
}

typedef struct Ticker {
        uint64_t last, worst;
        size_t n;
} Ticker;

static int on_tick(sd_event_source *source, uint64_t usec, void *userdata) {
        Ticker *t = userdata;
        uint64_t now = time_monotonic();

        if (now - t->last > t->worst)
                t->worst = now - t->last;
        t->last = now;
        t->n++;
        (void) sd_event_source_set_time_relative(source, 5 * 1000);
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

/* While something large is written and synced, everybody else is served. */
static void test_loop_goes_on(void **state) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(store_freep) Store *store = NULL;
        _cleanup_fd_ int fd = memfd_create("bundle", MFD_CLOEXEC);
        Ticker t = { .last = time_monotonic() };
        Copy c = {};

        assert_int_equal(ftruncate(fd, 128 * 1024 * 1024), 0);
        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_new(&store, event, directory), 0);
        assert_int_equal(sd_event_add_time_relative(event, NULL, CLOCK_MONOTONIC, 0, 1, on_tick, &t), 0);
        c.event = event;
        assert_int_equal(store_copy(store, ITEM, "big", TAKE_FD(fd), UINT64_MAX, on_done, &c), 0);
        assert_int_equal(sd_event_loop(event), 0);
        assert_int_equal(c.result, 0);
        assert_int_equal(size_of("big"), 128 * 1024 * 1024);
        assert_true(t.n > 2);
        assert_in_range(t.worst, 0, 200 * 1000);
        assert_int_equal(store_remove(store, ITEM, "big"), 0);
}

static size_t count_temporary(void) {
        char path[64];
        struct dirent *e;
        size_t n = 0;
        DIR *d;

        (void) snprintf(path, sizeof(path), "%s/" ITEM, directory);
        d = opendir(path);
        assert_non_null(d);
        while ((e = readdir(d)))
                n += strstr(e->d_name, ".new") != NULL;
        (void) closedir(d);
        return n;
}

/* More at once than have a thread: all are made, and no more than are allowed may wait. */
static void test_many_copies(void **state) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(store_freep) Store *store = NULL;
        Copy copies[64] = {}, beyond = {};
        char name[16];
        size_t n;

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_new(&store, event, directory), 0);
        for (size_t i = 0; i < ELEMENTSOF(copies); i++) {
                (void) snprintf(name, sizeof(name), "many%zu", i);
                assert_int_equal(store_copy(store, ITEM, name, io_memfd("x", "12345", 5), i % 2 ? 5 : 4, on_done_of_two, &copies[i]), 0);
        }
        assert_int_equal(store_copy(store, ITEM, "beyond", io_memfd("x", "12345", 5), 5, on_done_of_two, &beyond), -EBUSY);
        do {
                assert_true(sd_event_run(event, 1000000) >= 0);
                n = 0;
                for (size_t i = 0; i < ELEMENTSOF(copies); i++)
                        n += copies[i].done;
        } while (n < ELEMENTSOF(copies));
        for (size_t i = 0; i < ELEMENTSOF(copies); i++) {
                (void) snprintf(name, sizeof(name), "many%zu", i);
                assert_int_equal(copies[i].result, i % 2 ? 0 : -EFBIG);
                assert_int_equal(size_of(name), i % 2 ? 5 : -1);
        }
        assert_false(beyond.done);
        assert_int_equal(count_temporary(), 0);
}

/* anchord ends meanwhile: nobody is told, and nothing half-made is left. */
static void test_end_under_way(void **state) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        Copy copies[8] = {};
        Store *store = NULL;
        char name[16];

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_new(&store, event, directory), 0);
        for (size_t i = 0; i < ELEMENTSOF(copies); i++) {
                int fd = memfd_create("bundle", MFD_CLOEXEC);

                assert_int_equal(ftruncate(fd, 64 * 1024 * 1024), 0);
                (void) snprintf(name, sizeof(name), "ended%zu", i / 2); /* of each file one goes on, one waits */
                assert_int_equal(store_copy(store, ITEM, name, fd, UINT64_MAX, on_done_of_two, &copies[i]), 0);
        }
        store = store_free(store);
        assert_int_equal(count_temporary(), 0);
        for (size_t i = 0; i < ELEMENTSOF(copies); i++)
                assert_false(copies[i].done);
        for (size_t i = 0; i < ELEMENTSOF(copies) / 2; i++) {
                (void) snprintf(name, sizeof(name), "ended%zu", i);
                assert_true(size_of(name) == -1 || size_of(name) == 64 * 1024 * 1024);
        }
}

static void test_what_is_no_file(void **state) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(store_freep) Store *store = NULL;
        int fds[2];

        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_new(&store, event, directory), 0);
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        assert_int_equal(store_copy(store, ITEM, "pipe", fds[0], 10, on_done, NULL), -EMEDIUMTYPE);
        assert_int_equal(fcntl(fds[0], F_GETFD), -1); /* taken over all the same */
        (void) close(fds[1]);
        assert_int_equal(store_copy(store, ITEM, "zero", open("/dev/zero", O_RDONLY | O_CLOEXEC), 10, on_done, NULL), -EMEDIUMTYPE);
        assert_int_equal(store_copy(store, "../x", "x", io_memfd("x", "x", 1), 10, on_done, NULL), -EINVAL);
        assert_int_equal(store_open_file(store, "i000000000009", "x"), -ENOENT);
        fds[0] = store_open_file(store, ITEM, "small");
        assert_true(fds[0] >= 0);
        (void) close(fds[0]);
        assert_int_equal(store_remove(store, ITEM, "small"), 0);
        assert_int_equal(store_open_file(store, ITEM, "small"), -ENOENT);
}

static EventLog *open_log(int dir) {
        EventLog *l = NULL;

        assert_int_equal(event_log_open(&l, dir, "events"), 0);
        return l;
}

static void test_events(void **state) {
        _cleanup_fd_ int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;
        _cleanup_(event_reader_done) EventReader reader = { .fd = -1 };
        _cleanup_(event_log_closep) EventLog *l = open_log(dir);
        uint64_t size;

        assert_int_equal(event_log_append(l, "state", json_pack("{s:s}", "state", "queued")), 0);
        assert_int_equal(event_log_append(l, "output", json_pack("{s:s, s:s}", "run", "r000000000001", "data", "x\ny\x1b")), 0);
        size = event_log_output_size(l, "r000000000001");
        assert_true(size > 20);
        l = event_log_close(l);

        /* the host died in the middle of a line */
        fd = openat(dir, "events", O_WRONLY | O_APPEND | O_CLOEXEC);
        assert_int_equal(io_write_full(fd, "{\"seq\":3,\"ty", 12), 0);
        l = open_log(dir);
        assert_string_equal(event_log_last_state(l), "queued");
        assert_int_equal(event_log_output_size(l, "r000000000001"), size);
        assert_int_equal(event_log_append(l, "note", json_pack("{s:s}", "text", "after")), 0);

        event_reader_init(&reader, openat(dir, "events", O_RDONLY | O_CLOEXEC));
        for (int seq = 1; seq <= 3; seq++) {
                _cleanup_json_ json_t *event = NULL;

                assert_int_equal(event_reader_next(&reader, &event), 1);
                assert_int_equal(json_integer_value(json_object_get(event, "seq")), seq);
        }
        {
                _cleanup_json_ json_t *event = NULL;

                assert_int_equal(event_reader_next(&reader, &event), 0);
                assert_int_equal(event_log_append(l, "note", json_object()), 0);
                assert_int_equal(event_reader_next(&reader, &event), 1); /* goes on where it was */
        }
}

/* The disk is full in the middle of a line, and has room again later. */
static void test_full_disk(void **state) {
        _cleanup_fd_ int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(event_log_closep) EventLog *l = open_log(dir);
        _cleanup_(event_reader_done) EventReader reader = { .fd = -1 };
        _cleanup_json_ json_t *event = NULL;
        struct rlimit before, tight;
        char path[128];
        struct stat st;
        int r;

        (void) snprintf(path, sizeof(path), "%s/events", directory);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        tight = (struct rlimit) { .rlim_cur = (rlim_t) st.st_size + 10, .rlim_max = before.rlim_max };
        (void) signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
        r = event_log_append(l, "note", json_pack("{s:s}", "text", "cut off"));
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(r, -EFBIG);

        assert_int_equal(event_log_append(l, "note", json_pack("{s:s}", "text", "whole")), 0);
        event_reader_init(&reader, openat(dir, "events", O_RDONLY | O_CLOEXEC));
        reader.offset = (uint64_t) st.st_size;
        assert_int_equal(event_reader_next(&reader, &event), 1);
        assert_string_equal(json_string_value(json_object_get(event, "text")), "whole");
}

static void test_long_lines(void **state) {
        _cleanup_fd_ int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(event_log_closep) EventLog *l = open_log(dir);
        _cleanup_free_ char *text = malloc(EVENT_LINE_MAX + 1);
        _cleanup_json_ json_t *event = NULL;
        _cleanup_(event_reader_done) EventReader reader = { .fd = -1 };
        size_t length = 200 * 1024;
        int r;

        memset(text, 'x', EVENT_LINE_MAX);
        text[EVENT_LINE_MAX] = 0;
        assert_int_equal(event_log_append(l, "note", json_pack("{s:s}", "text", text)), -EMSGSIZE);
        text[length] = 0;
        assert_int_equal(event_log_append(l, "note", json_pack("{s:s}", "text", text)), 0);

        event_reader_init(&reader, openat(dir, "events", O_RDONLY | O_CLOEXEC));
        do {
                event = json_unref(event);
                r = event_reader_next(&reader, &event);
                assert_int_equal(r, 1);
        } while (json_string_length(json_object_get(event, "text")) != length);
}

static int set_up(void **state) {
        return mkdtemp(directory) ? 0 : -1;
}

static int tear_down(void **state) {
        _cleanup_(store_freep) Store *store = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_fd_ int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (sd_event_new(&event) < 0 || store_new(&store, event, directory) < 0)
                return -1;
        (void) unlinkat(dir, "events", 0);
        (void) store_remove(store, ITEM, NULL);
        return rmdir(directory);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_copies),
                cmocka_unit_test(test_two_copies),
                cmocka_unit_test(test_last_copy_stays),
                cmocka_unit_test(test_remove_partial),
                cmocka_unit_test(test_loop_goes_on),
                cmocka_unit_test(test_many_copies),
                cmocka_unit_test(test_end_under_way),
                cmocka_unit_test(test_what_is_no_file),
                cmocka_unit_test(test_events),
                cmocka_unit_test(test_full_disk),
                cmocka_unit_test(test_long_lines),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
