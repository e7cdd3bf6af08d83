/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "vmm/qmp.h"

static void test_parse(void **state) {
        static const struct {
                const char *line;
                int kind; /* -1: refused */
        } cases[] = {
                { "{\"QMP\": {\"version\": {}, \"capabilities\": []}}", QMP_GREETING },
                { "{\"return\": {}, \"id\": 7}", QMP_RETURN },
                { "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}, \"id\": 1}", QMP_ERROR },
                { "{\"event\": \"STOP\", \"timestamp\": {}}", QMP_EVENT },
                { "{}", -1 },
                { "[]", -1 },
                { "", -1 },
                { "{\"return\": {}, \"id\": \"x\"}", -1 },
                { "{\"return\": {}, \"id\": -1}", -1 },
                { "{\"error\": {}}", -1 },
                { "{\"event\": 3}", -1 },
                { "{\"return\": {}} {}", -1 },
                { "{\"return\": {}, \"return\": 1}", -1 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                QmpMessage m = {};
                int r = qmp_message_parse(cases[i].line, strlen(cases[i].line), &m);

                if (cases[i].kind < 0)
                        assert_int_equal(r, -EBADMSG);
                else {
                        assert_int_equal(r, 0);
                        assert_int_equal(m.kind, cases[i].kind);
                        qmp_message_done(&m);
                }
        }
}

static void test_lines(void **state) {
        static const char text[] = "{\"QMP\":{}}\r\n\r\n{\"return\":{\"a\":1},\"id\":3}\n{\"event\":\"X\"}\n{\"ret";

        for (size_t step = 1; step < sizeof(text); step++) {
                _cleanup_(qmp_reader_freep) QmpReader *r = NULL;
                QmpMessage m = {};
                int n = 0;

                assert_int_equal(qmp_reader_new(&r), 0);
                for (size_t i = 0; i < sizeof(text) - 1; i += step) {
                        size_t k = sizeof(text) - 1 - i;

                        assert_int_equal(qmp_reader_feed(r, text + i, k < step ? k : step), 0);
                        while (qmp_reader_next(r, &m) > 0) {
                                if (n == 1)
                                        assert_int_equal(m.id, 3);
                                qmp_message_done(&m);
                                n++;
                        }
                }
                assert_int_equal(n, 3);
        }
}

static void test_endless_line(void **state) {
        _cleanup_(qmp_reader_freep) QmpReader *r = NULL;
        static char data[64 * 1024];
        QmpMessage m = {};
        int k = 0;

        memset(data, 'x', sizeof(data));
        assert_int_equal(qmp_reader_new(&r), 0);
        for (size_t i = 0; i < QMP_LINE_MAX / sizeof(data) && k >= 0; i++) {
                k = qmp_reader_feed(r, data, sizeof(data));
                assert_int_equal(qmp_reader_next(r, &m), 0);
        }
        assert_int_equal(k, 0);
        assert_int_equal(qmp_reader_feed(r, data, 1), -EMSGSIZE);
}

/* ---- the client, against a few lines that were written beforehand ---- */

typedef struct Seen {
        sd_event *event;
        int n, r;
        char text[64];
} Seen;

static void on_reply(QmpClient *c, int r, json_t *result, void *userdata) {
        Seen *seen = userdata;
        const char *text = json_string_value(json_object_get(result, "status"));

        seen->n++;
        seen->r = r;
        (void) snprintf(seen->text, sizeof(seen->text), "%s", text ?: "");
        (void) sd_event_exit(seen->event, 0);
}

static void run_client(const char *answers, int expected, const char *text) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(qmp_client_freep) QmpClient *c = NULL;
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        _cleanup_fd_ int listener = -1, peer = -1;
        Seen seen = {};

        (void) snprintf(sa.sun_path, sizeof(sa.sun_path), "/tmp/test-qmp.%d", getpid());
        (void) unlink(sa.sun_path);
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(listener, (struct sockaddr *) &sa, sizeof(sa)), 0);
        assert_int_equal(listen(listener, 1), 0);

        assert_int_equal(sd_event_new(&event), 0);
        seen.event = event;
        assert_int_equal(qmp_client_new(&c, event, sa.sun_path), 0);
        peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        assert_true(peer >= 0);
        assert_int_equal(qmp_client_call(c, "query-status", NULL, 200 * 1000, on_reply, &seen), 0);
        if (answers) {
                assert_int_equal(write(peer, answers, strlen(answers)), strlen(answers));
                (void) shutdown(peer, SHUT_WR);
        }

        assert_int_equal(sd_event_loop(event), 0);
        assert_int_equal(seen.n, 1);
        assert_int_equal(seen.r, expected);
        assert_string_equal(seen.text, text);
        (void) unlink(sa.sun_path);
}

static void test_client(void **state) {
        run_client("{\"QMP\":{}}\n{\"return\":{},\"id\":1}\n{\"event\":\"X\"}\n{\"return\":{\"status\":\"running\"},\"id\":2}\n", 0, "running");
        run_client("{\"QMP\":{}}\n{\"return\":{},\"id\":1}\n{\"error\":{\"class\":\"GenericError\"},\"id\":2}\n", -EREMOTEIO, "");
        run_client("{\"QMP\":{}}\n", -EPIPE, "");
        run_client("{\"QMP\":{}}\nnonsense\n", -EBADMSG, "");
        run_client(NULL, -ETIMEDOUT, "");
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_parse),
                cmocka_unit_test(test_lines),
                cmocka_unit_test(test_endless_line),
                cmocka_unit_test(test_client),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
