/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Refusals, with real sockets; that the right unit gets its credential is shown on the booted image. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmocka.h>

#include "ipc/credential-server.h"

static unsigned n_handled, n_denied;
static const char *last_reason;

static int on_request(const Peer *peer, const char *id, char **ret_blob, size_t *ret_size, void *userdata) {
        n_handled++;
        return -ENOENT;
}

static void on_denied(const Peer *peer, const char *claimed, const char *reason, void *userdata) {
        n_denied++;
        last_reason = reason;
}

static void request_from(const char *name, size_t size, const char *expected_reason) {
        char path[] = "/tmp/test-credential-XXXXXX";
        struct sockaddr_un address = { .sun_family = AF_UNIX }, own = { .sun_family = AF_UNIX };
        _cleanup_(credential_server_freep) CredentialServer *s = NULL;
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_fd_ int client = -1;
        int listener;
        char c;

        n_handled = n_denied = 0;
        assert_non_null(mkdtemp(path));
        (void) snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", path);
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(listener, (struct sockaddr *) &address, sizeof(address)), 0);
        assert_int_equal(listen(listener, 5), 0);
        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(credential_server_new(&s, event, listener, on_request, on_denied, NULL), 0);

        client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (name) {
                memcpy(own.sun_path, name, size);
                assert_int_equal(bind(client, (struct sockaddr *) &own, (socklen_t) (offsetof(struct sockaddr_un, sun_path) + size)), 0);
        }
        assert_int_equal(connect(client, (struct sockaddr *) &address, sizeof(address)), 0);
        while (n_denied == 0)
                assert_true(sd_event_run(event, 1000000) > 0);

        assert_int_equal(n_handled, 0);
        assert_string_equal(last_reason, expected_reason);
        assert_int_equal(read(client, &c, 1), 0);
        assert_int_equal(unlink(address.sun_path), 0);
        assert_int_equal(rmdir(path), 0);
}

#define ADDRESS "the peer's address does not name a unit and a credential"

static void test_refused(void **state) {
        static const char good[] = "\0abc/unit/anchor-inject@r3k9x0a1b2c3d.service/inject";
        static const char no_id[] = "\0abc/unit/anchor-inject@r3k9x0a1b2c3d.service";
        static const char slashes[] = "\0abc/unit/a/b/c";
        static const char zero[] = "\0abc/unit/a.service/b\0c";

        request_from(NULL, 0, ADDRESS);
        request_from(no_id, sizeof(no_id) - 1, ADDRESS);
        request_from(slashes, sizeof(slashes) - 1, ADDRESS);
        request_from(zero, sizeof(zero) - 1, ADDRESS);
        request_from(good, sizeof(good) - 1, getuid() == 0 ? "the peer is in no unit of a run" : "the peer is not uid 0");
}

int main(void) {
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_refused) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
