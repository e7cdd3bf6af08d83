/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What a connection takes that waits for its next request. A run may have EXCHANGES_MAX of them, and each is two of OpenSSL's: what one keeps
 * without need is there hundreds of times. Guests and origins are another process, so that all that is allocated here is the exchanges'.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <malloc.h>
#include <sys/wait.h>

#include "exchange-world.h"
#include "inject/exchange-private.h"

/* Of those that are measured; one more goes before them, for what is made once. Some of that (a buffer that grows when two answers come at once) comes
 * later all the same: so they are measured in parts, of which the smallest counts. */
enum { PART = 8, N_MEASURED = 4 * PART, N_ALL = 1 + N_MEASURED };

/* Half of it is what OpenSSL 3.5 needs for two connections with their ciphers. Kept heads, key shares, or buffers of one record on one side are more
 * than what is left to the bound. */
#define CONNECTION_MAX (56 * 1024)
#define ALONE_MAX (30 * 1024)

/* With the sanitizers malloc is theirs. */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static size_t allocated(void) {
        return __sanitizer_get_current_allocated_bytes ? __sanitizer_get_current_allocated_bytes() : mallinfo2().uordblks;
}


static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        char body[1024], head[64];

        memset(body, 'x', sizeof(body));
        (void) snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", sizeof(body));
        return origin_send(ssl, head) && SSL_write(ssl, body, sizeof(body)) == sizeof(body);
}

static void *serve_one(void *userdata) {
        World *w = userdata, own = *w;
        int fd = accept(w->origin_fd, NULL, NULL);
        SSL *ssl = SSL_new(w->origin_ctx);

        (void) SSL_set_fd(ssl, fd);
        if (SSL_accept(ssl) == 1)
                while (origin_read(&own, ssl) >= 0 && own.answer(&own, ssl, 0))
                        ;
        SSL_free(ssl);
        (void) close(fd);
        return NULL;
}

static SSL *enter(World *w, int fd) {
        World own = *w;

        own.guest_fd = fd;
        return client_connect(&own, NAME);
}

/* One request on a connection that then stays: was it answered? */
static bool ask(SSL *guest) {
        char text[4096] = "";

        return guest && client_send(guest, GET("/v1/x") KEY "\r\n") && client_await(guest, "xxx\r\n0\r\n\r\n", text, sizeof(text)) && strstr(text, " 200 ");
}

/* Guests and origins: each byte that comes names a guest that is to ask, of an origin of its own. The end is that of the line. */
static void be_the_others(World *w, const int *fds, int line) {
        pthread_t origins[N_ALL + 2];
        SSL *guests[N_ALL] = {};
        size_t n = 0;
        char byte;

        while (n < ELEMENTSOF(origins) && read(line, &byte, 1) == 1) {
                size_t i = (size_t) byte;

                if (pthread_create(&origins[n++], NULL, serve_one, w) != 0)
                        _exit(1);
                if (!guests[i])
                        guests[i] = enter(w, fds[i]);
                byte = ask(guests[i]) ? 'y' : 'n';
                if (write(line, &byte, 1) != 1)
                        _exit(1);
        }
        while (read(line, &byte, 1) == 1)
                ;
        for (size_t i = 0; i < N_ALL; i++) {
                SSL_free(guests[i]);
                (void) close(fds[i]);
        }
        for (size_t i = 0; i < n; i++)
                (void) pthread_join(origins[i], NULL);
        _exit(0);
}

static int on_said(sd_event_source *s, int fd, uint32_t events, void *userdata) {
        char *said = userdata;

        assert_int_equal(read(fd, said, 1), 1);
        return 0;
}

/* The stand-ins are in this very loop: nothing is waited for that is not there. */
static void settle(World *w) {
        while (sd_event_run(w->event, 0) > 0)
                ;
}

/* However long this machine takes for the others, none of them has waited too long meanwhile. */
static void hold_still(World *w) {
        for (Exchange *x = w->context.exchanges; x; x = x->next)
                assert_true(sd_event_source_set_time_relative(x->deadline, HOUR) >= 0);
}

static void let_ask(World *w, int line, char guest, char *said) {
        *said = 0;
        assert_int_equal(write(line, &guest, 1), 1);
        while (!*said)
                assert_true(sd_event_run(w->event, UINT64_MAX) >= 0);
        assert_int_equal(*said, 'y');
        settle(w);
        hold_still(w);
}

/* They have waited as long as they may, one after another: what egressd is told at once takes memory of its own. */
static void let_wait(World *w) {
        for (Exchange *x = w->context.exchanges, *next; x; x = next) {
                next = x->next;
                assert_true(sd_event_source_set_time_relative(x->deadline, 0) >= 0);
                settle(w);
        }
}

static void check_each(size_t each, size_t max, const char *what) {
        if (each > max)
                fail_msg("a connection that waits%s takes %zu bytes, more than %zu", what, each, max);
}

static pid_t start_others(World *w, int *ours, int *ret_line) {
        int guests[N_ALL], line[2], fds[2];
        pid_t pid;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
        for (size_t i = 0; i < N_ALL; i++) {
                assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
                guests[i] = fds[0];
                ours[i] = fds[1];
        }
        pid = fork();
        assert_true(pid >= 0);
        for (size_t i = 0; i < N_ALL; i++)
                (void) close(pid == 0 ? ours[i] : guests[i]);
        (void) close(line[pid == 0 ? 0 : 1]);
        if (pid == 0)
                be_the_others(w, guests, line[1]);
        *ret_line = line[0];
        return pid;
}

/* groups: what the origin takes, NULL for what OpenSSL does. */
static void check_connection_that_waits(World *w, const char *groups) {
        int ours[N_ALL], line, status;
        sd_event_source *source;
        size_t before = 0, last = 0, least = SIZE_MAX;
        char said;
        pid_t pid;

        w->answer = origin_answer;
        assert_true(!groups || SSL_CTX_set1_groups_list(w->origin_ctx, groups) == 1);
        pid = start_others(w, ours, &line);
        assert_true(sd_event_add_io(w->event, &source, line, EPOLLIN, on_said, &said) >= 0);

        for (char i = 0; i < N_ALL; i++) {
                assert_int_equal(exchange_start(&w->context, ours[(size_t) i], NAME, w->port, "10.255.255.2", INSPECT_RULE), 0);
                let_ask(w, line, i, &said);
                if (i == 0) {
                        let_wait(w);
                        let_ask(w, line, i, &said);
                        before = last = allocated();
                } else if (i % PART == 0) {
                        size_t now = allocated();

                        least = now - last < least ? now - last : least;
                        last = now;
                }
        }
        assert_int_equal(w->n_done, 1);
        assert_int_equal(w->context.n_exchanges, N_ALL);
        check_each(least / PART, CONNECTION_MAX, "");

        /* some time later the origin's half is closed, and only that: the next request opens another */
        let_wait(w);
        assert_int_equal(w->n_done, 1 + N_ALL);
        assert_int_equal(w->context.n_exchanges, N_ALL);
        check_each((allocated() - before) / N_MEASURED, ALONE_MAX, " without its origin");
        let_ask(w, line, 0, &said);
        assert_int_equal(w->n_done, 1 + N_ALL);

        /* then the guest's, but for the one that has an origin again */
        let_wait(w);
        assert_int_equal(w->n_done, 2 + N_ALL);
        assert_int_equal(w->context.n_exchanges, 1);

        sd_event_source_disable_unref(source);
        exchange_close_all(&w->context);
        (void) close(line);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
}

static void test_connection_that_waits(void **state) {
        check_connection_that_waits(*state, NULL);
}

/* The origin takes the second of the keys that it is offered, or asks for another: what was offered first is not kept for that. */
static void test_of_second_key(void **state) {
        check_connection_that_waits(*state, "X25519");
}

static void test_of_other_key(void **state) {
        check_connection_that_waits(*state, "P-384");
}

/* As in set_up(), but the origin is not served here. */
static int set_up_apart(void **state) {
        World *w = calloc(1, sizeof(*w));

        listen_as_origin(w);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/anchorhold/ca/world.pem", w->ca_pem, strlen(w->ca_pem), 0644), 0);
        set_up_host(w, "/run/anchorhold/ca");
        *state = w;
        return 0;
}

static int tear_down_apart(void **state) {
        World *w = *state;

        exchange_close_all(&w->context);
        (void) close(w->origin_fd);
        tear_down_host(w);
        secret_free(w->ca_key);
        free(w->ca_pem);
        SSL_CTX_free(w->origin_ctx);
        for (size_t i = 0; i < ELEMENTSOF(w->credentials); i++)
                inject_credential_done(&w->credentials[i]);
        free(w);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_connection_that_waits, set_up_apart, tear_down_apart),
                cmocka_unit_test_setup_teardown(test_of_second_key, set_up_apart, tear_down_apart),
                cmocka_unit_test_setup_teardown(test_of_other_key, set_up_apart, tear_down_apart),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
