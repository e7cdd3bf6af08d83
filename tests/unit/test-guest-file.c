/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* put and get in the guest. */

#include "guest-world.h"

/* put with this object, and then the data in pieces of a frame as its credit allows. */
static Said *host_put(Host *h, uint32_t stream, const char *request, const char *data, size_t size) {
        Said *s = h->said + stream;

        host_say_text(h, CHANNEL_PUT, stream, request);
        for (size_t done = 0; done < size && !s->exit;) {
                size_t n = size - done < CHANNEL_PAYLOAD_MAX ? size - done : CHANNEL_PAYLOAD_MAX;

                TURN_UNTIL(h, s->exit || done + n <= CHANNEL_WINDOW + s->credit);
                host_say(h, CHANNEL_DATA, stream, data + done, n);
                done += n;
        }
        host_say(h, CHANNEL_DATA, stream, NULL, 0);
        return host_wait(h, stream);
}

static char *pattern(size_t size) {
        char *data = malloc(size);

        assert_non_null(data);
        for (size_t i = 0; i < size; i++)
                data[i] = (char) (i * 31 + i / 251);
        return data;
}

static void test_there_and_back(void **state) {
        enum { SIZE = 700001 };
        _cleanup_free_ char *data = pattern(SIZE);
        Host *h = host_new(true);
        struct stat st;
        Said *s;

        assert_int_equal(exit_number(host_put(h, 1, "{\"path\": \"/tmp/some/where/file\", \"mode\": 33152}", data, SIZE), "status"), 0);
        assert_int_equal(stat("/tmp/some/where/file", &st), 0);
        assert_int_equal(st.st_size, SIZE);
        assert_int_equal(st.st_mode, S_IFREG | 0600);

        s = host_ask(h, CHANNEL_GET, 2, "{\"path\": \"/tmp/some/where/file\", \"max\": 700001}");
        assert_int_equal(exit_number(s, "status"), 0);
        assert_int_equal(s->n_out, SIZE);
        assert_memory_equal(s->out, data, SIZE);
        assert_int_equal(s->n_out_ends, 1);

        s = host_ask(h, CHANNEL_GET, 3, "{\"path\": \"/tmp/some/where/file\", \"max\": 700000}");
        assert_int_equal(exit_number(s, "errno"), EFBIG);
        assert_int_equal(s->n_out_ends, 0);
        assert_null(h->error);
        host_free(h);
}

static void test_again(void **state) {
        Host *h = host_new(true);
        struct stat st;

        assert_int_equal(exit_number(host_put(h, 1, "{\"path\": \"/tmp/twice\"}", "first", 5), "status"), 0);
        assert_int_equal(exit_number(host_put(h, 2, "{\"path\": \"/tmp/twice\"}", "new", 3), "status"), 0);
        assert_int_equal(exit_number(host_put(h, 3, "{\"path\": \"/tmp/twice\", \"append\": true}", " and more", 9), "status"), 0);
        assert_string_equal(host_ask(h, CHANNEL_GET, 4, "{\"path\": \"/tmp/twice\", \"max\": 100}")->out, "new and more");
        assert_int_equal(stat("/tmp/twice", &st), 0);
        assert_int_equal(st.st_mode & 0777, 0644);

        assert_int_equal(exit_number(host_put(h, 5, "{\"path\": \"/tmp/empty\"}", NULL, 0), "status"), 0);
        assert_int_equal(exit_number(host_ask(h, CHANNEL_GET, 6, "{\"path\": \"/tmp/empty\", \"max\": 0}"), "status"), 0);
        assert_int_equal(h->said[6].n_out, 0);
        assert_int_equal(h->said[6].n_out_ends, 1);
        host_free(h);
}

/* What went wrong is told at the end: until then frames of the stream come, and are used up. */
static void test_put_fails(void **state) {
        static const struct {
                const char *request;
                int error;
        } cases[] = {
                { "{}", EINVAL },
                { "{\"path\": \"relative\"}", EINVAL },
                { "{\"path\": \"/tmp\"}", EISDIR },
                { "{\"path\": \"/dev/full\"}", ENOSPC },
                { "{\"path\": \"/dev/null/below\"}", ENOTDIR },
        };
        enum { SIZE = 3 * CHANNEL_WINDOW };
        _cleanup_free_ char *data = pattern(SIZE);
        Host *h = host_new(true);

        for (uint32_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_int_equal(exit_number(host_put(h, i + 1, cases[i].request, data, SIZE), "errno"), cases[i].error);
        assert_null(h->error);
        host_free(h);
}

static void test_get_fails(void **state) {
        Host *h = host_new(true);

        assert_int_equal(mkfifo("/tmp/fifo", 0600), 0);
        assert_int_equal(exit_number(host_ask(h, CHANNEL_GET, 1, "{\"max\": 10}"), "errno"), EINVAL);
        assert_int_equal(exit_number(host_ask(h, CHANNEL_GET, 2, "{\"path\": \"/nowhere\", \"max\": 10}"), "errno"), ENOENT);
        assert_int_equal(exit_number(host_ask(h, CHANNEL_GET, 3, "{\"path\": \"/tmp\", \"max\": 1000000}"), "errno"), EINVAL);
        assert_int_equal(exit_number(host_ask(h, CHANNEL_GET, 4, "{\"path\": \"/tmp/fifo\", \"max\": 10}"), "errno"), EINVAL);
        assert_int_equal(exit_number(host_ask(h, CHANNEL_GET, 5, "{\"path\": \"/dev/zero\", \"max\": 10}"), "errno"), EINVAL);
        host_free(h);
}

/* A file that changes while it goes: never more than was said at first, and one that shrinks just ends. */
static void test_file_changes(void **state) {
        Host *h = host_new(true);
        Said *s = h->said + 2;

        assert_int_equal(exit_number(host_put(h, 1, "{\"path\": \"/tmp/grows\"}", "1234", 4), "status"), 0);
        assert_int_equal(truncate("/tmp/grows", CHANNEL_WINDOW + 1000), 0);
        h->keep = true;
        host_say_text(h, CHANNEL_GET, 2, "{\"path\": \"/tmp/grows\", \"max\": 1000000}");
        TURN_UNTIL(h, s->n_out == CHANNEL_WINDOW);
        assert_int_equal(truncate("/tmp/grows", 900000), 0);
        h->keep = false;
        assert_int_equal(exit_number(host_wait(h, 2), "status"), 0);
        assert_int_equal(s->n_out, CHANNEL_WINDOW + 1000);

        s = h->said + 3;
        h->keep = true;
        host_say_text(h, CHANNEL_GET, 3, "{\"path\": \"/tmp/grows\", \"max\": 1000000}");
        TURN_UNTIL(h, s->n_out == CHANNEL_WINDOW);
        assert_int_equal(truncate("/tmp/grows", 10), 0);
        h->keep = false;
        assert_int_equal(exit_number(host_wait(h, 3), "status"), 0);
        assert_int_equal(s->n_out, CHANNEL_WINDOW);
        assert_int_equal(s->n_out_ends, 1);
        host_free(h);
}

#define BUNDLE "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"

/* What is in the store, test-java-store says; here that it is whole, and of the file as it is then. */
static void test_java_store(void **state) {
        Host *h = host_new(true);
        char request[160];
        Said *s;

        (void) snprintf(request, sizeof(request), "{\"path\": \"/tmp/bundle\", \"java_store\": \"/tmp/java/cacerts\"}");
        assert_int_equal(exit_number(host_put(h, 1, request, BUNDLE, strlen(BUNDLE)), "status"), 0);
        s = host_ask(h, CHANNEL_GET, 2, "{\"path\": \"/tmp/java/cacerts\", \"max\": 1000}");
        assert_true(s->n_out > 12);
        assert_memory_equal(s->out, "\xfe\xed\xfe\xed\0\0\0\2\0\0\0\1", 12);

        (void) snprintf(request, sizeof(request), "{\"path\": \"/tmp/bundle\", \"append\": true, \"java_store\": \"/tmp/java/cacerts\"}");
        assert_int_equal(exit_number(host_put(h, 3, request, BUNDLE, strlen(BUNDLE)), "status"), 0);
        s = host_ask(h, CHANNEL_GET, 4, "{\"path\": \"/tmp/java/cacerts\", \"max\": 1000}");
        assert_true(s->n_out > 12);
        assert_memory_equal(s->out, "\xfe\xed\xfe\xed\0\0\0\2\0\0\0\2", 12);
        assert_int_not_equal(access("/tmp/java/cacerts.part", F_OK), 0);

        (void) snprintf(request, sizeof(request), "{\"path\": \"/tmp/bundle\", \"java_store\": \"/dev/null/cacerts\"}");
        assert_int_equal(exit_number(host_put(h, 5, request, BUNDLE, strlen(BUNDLE)), "errno"), ENOTDIR);
        host_free(h);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_there_and_back),
                cmocka_unit_test(test_again),
                cmocka_unit_test(test_put_fails),
                cmocka_unit_test(test_get_fails),
                cmocka_unit_test(test_file_changes),
                cmocka_unit_test(test_java_store),
        };

        return cmocka_run_group_tests(tests, guest_world_enter, guest_world_leave);
}
