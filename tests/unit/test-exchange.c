/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a request must pass, and what comes back for it. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exchange-world.h"

/* ---- the origin ---- */

static bool origin_stream(World *w, SSL *ssl) {
        static const char first[] = "data: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":11}}}\n\n";
        static const char second[] = "data: {\"usage\":{\"output_tokens\":22},\"echo\":\"" SECRET "\"}\n\n";
        _cleanup_free_ char *head = NULL, *one = NULL, *two = NULL, *three = NULL;
        size_t cut = strstr(second, SECRET) - second + 9;

        head = text_format("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nX-Echo: %s\r\n\r\n", SECRET);
        one = text_format("%zx\r\n%s\r\n", strlen(first), first);
        two = text_format("%zx\r\n%.*s\r\n", cut, (int) cut, second);
        three = text_format("%zx\r\n%s\r\n0\r\n\r\n", strlen(second) - cut, second + cut);
        if (!origin_send(ssl, head) || !origin_send(ssl, one))
                return false;
        /* until the client says that it has the first event */
        while (sem_wait(&w->may_go_on) < 0)
                ;
        return origin_send(ssl, two) && origin_send(ssl, three);
}

/* Halfway through the new value of another host's credential, that becomes its value. */
static bool origin_rotated(World *w, SSL *ssl) {
        const char *cut = ROTATED + 10;
        _cleanup_free_ char *head = NULL;

        head = text_format("HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\nbegun %.*s", strlen("begun  end") + strlen(ROTATED), 10, ROTATED);
        if (!origin_send(ssl, head))
                return false;
        while (sem_wait(&w->may_go_on) < 0)
                ;
        return origin_send(ssl, cut) && origin_send(ssl, " end");
}

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        _cleanup_free_ char *text = NULL;

        if (strstr(w->seen, " /v1/rotated"))
                return origin_rotated(w, ssl);
        if (strstr(w->seen, " /v1/echo-rotated")) {
                text = text_format("HTTP/1.1 200 OK\r\nX-Echo: " ROTATED "\r\nContent-Length: %zu\r\n\r\n" ROTATED, strlen(ROTATED));
                return origin_send(ssl, text);
        }

        if (strstr(w->seen, " /v1/messages"))
                return origin_stream(w, ssl);
        if (strstr(w->seen, " /v1/close")) {
                (void) origin_send(ssl, "HTTP/1.1 200 OK\r\n\r\nuntil the end");
                return false;
        }
        if (strstr(w->seen, " /v1/formers"))
                return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 95\r\n\r\n" SECRET " value-number-1; value-number-2; value-number-3; value-number-4 value-n");
        if (strstr(w->seen, " /v1/truncated")) {
                (void) origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort");
                return false;
        }
        if (strstr(w->seen, " /v1/garbage"))
                return origin_send(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nzz");
        text = text_format("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n%08zd", length);
        return origin_send(ssl, text);
}

/* ---- tests ---- */

#define CALL "POST /v1/messages?beta=true HTTP/1.1\r\nHost: " NAME "\r\n"

static void client_of_model_call(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[8192] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, CALL KEY "Content-Length: 2\r\n\r\n{}"));
        EXPECT(client_await(ssl, "\"input_tokens\":11", text, sizeof(text)));
        (void) sem_post(&w->may_go_on);
        EXPECT(client_await(ssl, "0\r\n\r\n", text, sizeof(text)));
        EXPECT(!strstr(text, SECRET));
        EXPECT(strstr(text, "X-Echo: " SENTINEL "\r\n"));
        EXPECT(strstr(text, "\"echo\":\"" SENTINEL "\""));

        /* the next one on the same connection, and on the same one to the origin */
        *text = 0;
        EXPECT(client_send(ssl, "GET /v1/models HTTP/1.1\r\nHost: " NAME "\r\nAuthorization: Bearer " SENTINEL "\r\n\r\n"));
        EXPECT(client_await(ssl, "00000000\r\n0\r\n\r\n", text, sizeof(text)));
        (void) SSL_shutdown(ssl);
        SSL_free(ssl);
}

static void client_of_second_path(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[1024] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/x") "destination: /v1/y\r\n\r\n"));
        EXPECT(client_await(ssl, "00000000", text, sizeof(text)));
        *text = 0;
        EXPECT(client_send(ssl, GET("/v1/x") "\r\n"));
        EXPECT(client_await(ssl, "00000000", text, sizeof(text)));
        (void) SSL_shutdown(ssl);
        SSL_free(ssl);
}

/* egressd hears that a field names another path. */
static void test_second_path(void **state) {
        World *w = *state;

        play(w, client_of_second_path);
        assert_int_equal(w->n_questions, 2);
        assert_int_equal(w->n_second_paths, 1);
}

static void test_model_call(void **state) {
        World *w = *state;

        play(w, client_of_model_call);
        assert_int_equal(w->n_accepted, 1);
        assert_int_equal(w->n_questions, 2);
        assert_int_equal(w->n_within, 1);
        assert_non_null(strstr(w->seen, "Authorization: Bearer " SECRET "\r\n"));
        assert_non_null(strstr(w->seen, "Accept-Encoding: identity\r\n"));
        assert_null(strstr(w->seen, SENTINEL));
        assert_true(logged(w, "\"event\":\"credential.used\""));
        assert_true(logged(w, "\"event\":\"model.call\""));
        assert_false(logged(w, SECRET));
        assert_non_null(w->usage);
        assert_int_equal(json_integer_value(json_object_get(w->usage, "input_tokens")), 11);
        assert_int_equal(json_integer_value(json_object_get(w->usage, "output_tokens")), 22);
        assert_int_equal(json_integer_value(json_object_get(w->usage, "cost_microusd")), 55);
        assert_int_equal(json_integer_value(json_object_get(w->usage, "status")), 200);
        assert_string_equal(json_string_value(json_object_get(w->usage, "model")), "m");
}

static void client_of_formers(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, "GET /v1/formers HTTP/1.1\r\nHost: " NAME "\r\n" KEY "\r\n"));
        EXPECT(client_await(ssl, "0\r\n\r\n", text, sizeof(text)));
        EXPECT(strstr(text, SENTINEL) && strstr(text, "value-number-4"));
        EXPECT(!strstr(text, SECRET) && !strstr(text, "value-number-1") && !strstr(text, "value-number-2") && !strstr(text, "value-number-3"));
        SSL_free(ssl);
}

/* What the value was before it was rotated, more than once, is masked as well. */
static void test_formers(void **state) {
        World *w = *state;

        for (unsigned i = 1; i <= 3; i++) { /* the origin sends a fourth, which never was one */
                _cleanup_free_ char *value = text_format("value-number-%u", i);
                _cleanup_(secret_freep) Secret *secret = NULL;

                assert_int_equal(secret_new(&secret, value, strlen(value)), 0);
                assert_int_equal(inject_credential_update(&w->credentials[0], &w->secrets->credentials[0], &secret), CREDENTIAL_CHANGED);
        }
        play(w, client_of_formers);
        assert_non_null(strstr(w->seen, "value-number-3"));
        inject_credential_done(&w->credentials[0]);
}

static void client_of_rotated(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/rotated") "\r\n"));
        EXPECT(client_await(ssl, "begun ", text, sizeof(text)));
        (void) eventfd_write(w->rotate, 1);
        EXPECT(client_await(ssl, "\r\n0\r\n\r\n", text, sizeof(text)));
        EXPECT(strstr(text, OTHER));
        EXPECT(!strstr(text, "ghp_the-"));

        *text = 0;
        EXPECT(client_send(ssl, GET("/v1/echo-rotated") "\r\n"));
        EXPECT(client_await(ssl, "\r\n0\r\n\r\n", text, sizeof(text)));
        EXPECT(strstr(text, "X-Echo: " OTHER "\r\n"));
        EXPECT(!strstr(text, "ghp_the-"));
        SSL_free(ssl);
}

/* Another host's credential is rotated: this connection goes on, and masks the new value in the answer that it is in, and in the next one. */
static void test_rotated_elsewhere(void **state) {
        World *w = *state;

        play(w, client_of_rotated);
        assert_int_equal(w->n_accepted, 1);
}

/* The same, where the policy weighs no requests: nobody is asked about the second, and everything else is as before. */
static void test_covered(void **state) {
        World *w = *state;

        w->covers = true;
        play(w, client_of_model_call);
        assert_int_equal(w->n_accepted, 1);
        assert_int_equal(w->n_questions, 1);
        assert_non_null(strstr(w->seen, "Authorization: Bearer " SECRET "\r\n"));
        assert_false(logged(w, "egress.requests")); /* in ten seconds */
        tally_tell(w->context.tally);
        while (!logged(w, "egress.requests"))
                assert_true(sd_event_run(w->event, 5000000) > 0);
        assert_true(logged(w, "{\"count\":1,\"name\":\"" NAME "\""));
        assert_true(logged(w, "\"requests\":[[\"GET\",\"/v1/models\",1]],\"rule\":\"" INSPECT_RULE "\""));
}

CLIENT(client_of_misuse, GET("/v1/x") "Cookie: a=" SENTINEL "\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 403 "));
       EXPECT(strstr(text, "credential-misuse")); EXPECT(proper);)
CLIENT(client_of_body_misuse, "POST /v1/x HTTP/1.1\r\nHost: " NAME "\r\nContent-Length: 60\r\n\r\nx " OTHER "                              \n",
       EXPECT(strstr(text, "HTTP/1.1 403 "));
       EXPECT(strstr(text, "credential-misuse"));)
CLIENT(client_of_foreign, GET("/v1/x") "x-api-key: sk-ant-my-own\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 403 "));
       EXPECT(strstr(text, "foreign-credential"));)
CLIENT(client_of_fronting, "GET /v1/x HTTP/1.1\r\nHost: other.example.org\r\n" KEY "\r\n",
       EXPECT(strstr(text, "HTTP/1.1 421 "));
       EXPECT(strstr(text, "\r\nAnchorhold-Rule: " INSPECT_RULE "\r\n"));
       EXPECT(strstr(text, "fronting"));)
CLIENT(client_of_fronting_again, "GET /v1/x HTTP/1.1\r\nHost: third.example.org:443\r\n" KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 421 "));)
CLIENT(client_of_no_host, "GET /v1/x HTTP/1.1\r\n" KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 421 "));)
CLIENT(client_of_two_hosts, GET("/v1/x") "Host: " NAME "\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 421 "));)
CLIENT(client_of_dots, GET("/v1/../x") "\r\n", EXPECT(strstr(text, "HTTP/1.1 400 "));)
CLIENT(client_of_bad_request, GET("/v1/x") "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 400 "));
       EXPECT(proper);)
CLIENT(client_of_foreign_variable, GET("/v1/x") "X_API_Key: sk-ant-my-own\r\n\r\n", EXPECT(strstr(text, "foreign-credential"));)
CLIENT(client_of_override, "POST /v1/x HTTP/1.1\r\nHost: " NAME "\r\n" KEY "X-HTTP-Method-Override: DELETE\r\nContent-Length: 0\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 400 "));
       EXPECT(strstr(text, "another method"));)
CLIENT(client_of_another_host, GET("/v1/x") "X-Forwarded-Host: other.example.org\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 400 "));
       EXPECT(strstr(text, "another method, path or host"));)
CLIENT(client_of_scope, "DELETE /v1/x HTTP/1.1\r\nHost: " NAME "\r\n" KEY "\r\n", EXPECT(strstr(text, "credential-scope"));)

static void test_refusals(void **state) {
        static void (*const clients[])(World *) = { client_of_misuse, client_of_foreign, client_of_fronting, client_of_fronting_again, client_of_no_host, client_of_override, client_of_another_host, client_of_foreign_variable,
                                                    client_of_two_hosts, client_of_dots, client_of_bad_request, client_of_scope };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(clients); i++)
                play(w, clients[i]);
        assert_int_equal(w->n_accepted, 0);
        assert_int_equal(w->n_questions, 0);
        assert_true(logged(w, "\"event\":\"credential.misuse\""));
        assert_true(logged(w, "\"event\":\"conn.deny\""));
        assert_false(logged(w, SECRET));

        /* which rule had it inspected, and the Host that was claimed; of those that follow at once, with the count. What is about a credential has neither. */
        assert_true(logged(w, "\"detail\":\"other.example.org\""));
        assert_true(logged(w, "\"rule\":\"" INSPECT_RULE "\""));
        assert_true(logged(w, "\"rule\":\"default\""));
        while (!logged(w, "\"details\":[[\"third.example.org:443\",1]]"))
                assert_true(sd_event_run(w->event, 15000000) > 0);
}

static void test_misuse_in_body(void **state) {
        World *w = *state;

        play(w, client_of_body_misuse);
        assert_true(logged(w, "\"event\":\"credential.misuse\""));
        assert_true(logged(w, "\"credential\":\"git\""));
        assert_null(strstr(w->seen, OTHER));
}

CLIENT(client_of_deny, GET("/v1/x") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 403 ")); EXPECT(strstr(text, "no-rule"));)
CLIENT(client_of_unavailable, GET("/v1/x") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 503 "));)

static void on_disagreement(const char *name, uint16_t port, const char *workflow, const char *stage, void *userdata) {
        assert_string_equal(name, NAME);
}

static void test_denied_by_egressd(void **state) {
        World *w = *state;

        w->deny = "no-rule";
        play(w, client_of_deny);
        assert_int_equal(w->n_accepted, 0);
}

CLIENT(client_of_disagreement, GET("/v1/x") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 503 ")); EXPECT(strstr(text, "disagreement"));)

/* What egressd allows to another run than secretd knows this as; test-egress-link.c. The stand-in names none. */
static void test_told_otherwise(void **state) {
        World *w = *state;

        egress_link_expect(w->context.egress, "code-fix", "work", on_disagreement);
        play(w, client_of_disagreement);
        assert_int_equal(w->n_accepted, 0);
        assert_false(logged(w, "credential.used"));
}

/* No audit, no credential. */
static void test_audit_refuses(void **state) {
        World *w = *state;

        w->audit_refuses = true;
        play(w, client_of_unavailable);
        assert_int_equal(w->n_accepted, 0);
}

CLIENT(client_of_two, GET("/v1/x") KEY "Private-Token: " OTHER "\r\nConnection: close\r\n\r\n", EXPECT(strstr(text, "HTTP/1.1 200 "));)

/* Two credentials in one request: neither leaves before its own record is there. */
static void test_two_credentials(void **state) {
        _cleanup_json_ json_t *hosts = json_pack("[s]", NAME), *ports = NULL;
        World *w = *state;

        ports = json_pack("[i]", (int) w->port);
        w->credentials[1].hosts = hosts;
        w->credentials[1].ports = ports;
        play(w, client_of_two);
        assert_non_null(strstr(w->seen, SECRET));
        assert_non_null(strstr(w->seen, "ghp_the-real-git-token"));
        assert_true(logged(w, "\"credential\":\"model\""));
        assert_true(logged(w, "\"credential\":\"git\""));
}

CLIENT(client_of_close, GET("/v1/close") KEY "Connection: close\r\n\r\n", EXPECT(strstr(text, "until the ")); EXPECT(strstr(text, "end\r\n")); EXPECT(strstr(text, "0\r\n\r\n"));
       EXPECT(strstr(text, "Connection: close\r\n")); EXPECT(proper);)
CLIENT(client_of_truncated, GET("/v1/truncated") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 200 ")); EXPECT(!strstr(text, "0\r\n\r\n"));
       EXPECT(!proper);)
CLIENT(client_of_garbage, GET("/v1/garbage") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "origin-malformed"));)
CLIENT(client_of_pipeline, GET("/v1/a") "\r\n" GET("/v1/b") "\r\n", EXPECT(strstr(text, "HTTP/1.1 200 ")); EXPECT(!strstr(strstr(text, "200 ") + 1, "200 "));
       EXPECT(proper);)

static void test_close_delimited(void **state) {
        play(*state, client_of_close);
}

static void test_truncated(void **state) {
        play(*state, client_of_truncated);
}

static void test_malformed_answer(void **state) {
        World *w = *state;

        play(w, client_of_garbage);
        assert_true(logged(w, "\"event\":\"conn.deny\""));
        assert_true(logged(w, "\"reason\":\"origin-malformed\""));
}

static void test_pipelined(void **state) {
        World *w = *state;

        play(w, client_of_pipeline);
        assert_null(strstr(w->seen, "/v1/b"));
}

static void client_of_upload(World *w) {
        enum { PIECE = 10000,
               PIECES = 400 };
        SSL *ssl = client_connect(w, NAME);
        char text[4096] = "", piece[PIECE];

        EXPECT(ssl);
        if (!ssl)
                return;
        memset(piece, 'x', sizeof(piece));
        EXPECT(client_send(ssl, "POST /v1/upload HTTP/1.1\r\nHost: " NAME "\r\nExpect: 100-continue\r\n" KEY "Content-Length: 4000000\r\n\r\n"));
        EXPECT(client_await(ssl, "100 Continue\r\n\r\n", text, sizeof(text)));
        *text = 0;
        for (int i = 0; i < PIECES; i++)
                EXPECT(SSL_write(ssl, piece, sizeof(piece)) == PIECE);
        EXPECT(client_await(ssl, "04000000", text, sizeof(text)));
        SSL_free(ssl);
}

static void test_upload(void **state) {
        play(*state, client_of_upload);
}

static void client_of_wrong_sni(World *w) {
        EXPECT(!client_connect(w, "other.example.org"));
        ERR_clear_error();
}

static void client_of_no_sni(World *w) {
        EXPECT(!client_connect(w, NULL));
        ERR_clear_error();
}

static void test_sni(void **state) {
        play(*state, client_of_wrong_sni);
        play(*state, client_of_no_sni);
}

CLIENT(client_of_strange_origin, GET("/v1/x") KEY "\r\n", EXPECT(strstr(text, "HTTP/1.1 502 ")); EXPECT(strstr(text, "origin-certificate"));)

/* An origin that nobody vouches for gets no credential. */
static void test_untrusted_origin(void **state) {
        World *w = *state;

        w->context.tls = tls_setup_free(w->context.tls);
        assert_int_equal(tls_setup_new(&w->context.tls, NULL), 0);
        play(w, client_of_strange_origin);
        assert_string_equal(w->seen, "");
}

static void test_not_inspected(void **state) {
        World *w = *state;
        int fds[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        assert_int_equal(exchange_start(&w->context, fds[1], "elsewhere.example", 443, "x", INSPECT_RULE), -EACCES);
        (void) close(fds[0]);
        (void) close(fds[1]);
}

static int set_up_origin(void **state) {
        int r = set_up(state);

        ((World *) *state)->answer = origin_answer;
        return r;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_formers, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_rotated_elsewhere, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_covered, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_model_call, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_second_path, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_refusals, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_misuse_in_body, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_denied_by_egressd, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_told_otherwise, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_audit_refuses, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_two_credentials, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_close_delimited, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_truncated, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_malformed_answer, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_pipelined, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_upload, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_sni, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_untrusted_origin, set_up_origin, tear_down),
                cmocka_unit_test_setup_teardown(test_not_inspected, set_up_origin, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
