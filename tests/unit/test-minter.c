/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A request that needs a minted token, and tokens that are brought back: with a TLS origin that is both the API and the place where they are used, and a secretd that is played. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exchange-world.h"
#include "inject/revoker.h"

#define SECRET_SOCKET "/run/anchorhold/secret-api.sock"
#define TOKEN "ghs_0123456789abcdefghij"

static struct {
        IpcServer *server;
        IpcClient *client;
        const char *mint, *body;   /* what the API answers: status line and body */
        const char *gone;          /* and the status line if a token is to be revoked */
        unsigned more_calls;       /* beside the one question */
        unsigned life_s;
        unsigned n_asked, n_posted, n_kept, n_deleted, n_revoked, left; /* left: tokens to be revoked */
        int posted_fd;             /* owned; an eventfd: a token is asked for, and the API thinks until w->may_go_on */
        bool loses_answers, keeps_nothing, looks_up, removed, wider, unusable; /* the last: what was kept */
        enum { STAYS, GOES_WHILE_CALLING, GOES_WHILE_KEEPING, GONE_FOR_SECRETD } key;
        char kept[128], posted[8192], deleted[8192];
} api;

/* ---- secretd ---- */

/* As inject takes it from secretd: there is no key any more. */
static void remove_key(World *w) {
        w->secrets->credentials[0].minted = false;
        (void) inject_credential_update(&w->credentials[0], &w->secrets->credentials[0], &(Secret *) { NULL });
}

static int push(IpcCall *call, const char *text) {
        return ipc_call_push_fd(call, io_memfd("secret", text, strlen(text)));
}

static int on_mint(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        api.n_asked++;
        assert_string_equal(json_string_value(json_object_get(params, "credential")), "model");
        if (api.removed)
                return ipc_call_refuse(call, "Revoked", "the key was removed");
        assert_true(push(call, "the.signed.proof") >= 0);
        if (api.key == GOES_WHILE_CALLING)
                remove_key(w);
        if (api.looks_up && !json_object_get(params, "installation"))
                return ipc_call_reply(call, json_pack("{s:s, s:s, s:i, s:s, s:s}", "step", "lookup", "host", NAME, "port", (int) w->port, "method", "GET",
                                                      "target", "/repos/acme/widgets/installation"));
        if (api.looks_up)
                assert_int_equal(json_integer_value(json_object_get(params, "installation")), 77);
        return ipc_call_reply(call, json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s}", "step", "token", "host", NAME, "port", (int) w->port, "method", "POST",
                                              "target", "/app/installations/7/access_tokens", "body", "{\"repositories\":[\"widgets\"]}", "revoke",
                                              "/installation/token"));
}

static int on_minted(IpcCall *call, json_t *params, void *userdata) {
        int fd = ipc_call_take_fd(call, 0);
        ssize_t n;

        assert_true(fd >= 0);
        n = read(fd, api.kept, sizeof(api.kept) - 1);
        (void) close(fd);
        assert_true(n > 0);
        api.kept[n] = 0;
        api.n_kept++;
        api.unusable = json_is_true(json_object_get(params, "unusable"));
        if (api.keeps_nothing)
                return ipc_call_refuse(call, "Unavailable", "the disk is full");
        if (api.loses_answers && api.n_kept == 1)
                return ipc_call_error(call, "io.anchorhold.Disconnected", NULL); /* as the client says it of a secretd that died */
        if (api.key == GOES_WHILE_KEEPING)
                remove_key(userdata);
        return ipc_call_reply(call, json_pack("{s:s, s:b}", "token", "t000000000001", "usable", api.key != GONE_FOR_SECRETD));
}

static int on_revoke(IpcCall *call, json_t *params, void *userdata) {
        const char *after = json_string_value(json_object_get(params, "after"));
        char id[ID_LENGTH + 1];
        unsigned n = *after ? (unsigned) (after[ID_LENGTH - 1] - '0') : 0;
        World *w = userdata;

        if (n == api.left)
                return ipc_call_reply(call, NULL);
        assert_true(push(call, TOKEN) >= 0);
        (void) snprintf(id, sizeof(id), "t00000000000%u", n + 1);
        return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:i, s:s}", "token", id, "credential", "model", "host", NAME, "port", (int) w->port, "target",
                                              "/installation/token"));
}

static int on_revoked_token(IpcCall *call, json_t *params, void *userdata) {
        api.n_revoked++;
        if (api.loses_answers && api.n_revoked == 1)
                return ipc_call_error(call, "io.anchorhold.Disconnected", NULL);
        return ipc_call_reply(call, NULL);
}

static const IpcMethod secret_methods[] = {
        { "io.anchorhold.Secret.Mint", PEER_ROOT, on_mint },
        { "io.anchorhold.Secret.Minted", PEER_ROOT, on_minted },
        { "io.anchorhold.Secret.Revoke", PEER_ROOT, on_revoke },
        { "io.anchorhold.Secret.Revoked", PEER_ROOT, on_revoked_token },
        {},
};

/* ---- the origin ---- */

static bool answer_with(SSL *ssl, const char *status, const char *body) {
        _cleanup_free_ char *text = text_format("HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n%s", status, strlen(body), body);

        return origin_send(ssl, text);
}

static bool origin_answer(World *w, SSL *ssl, ssize_t length) {
        char body[512], until[32];
        struct tm tm;
        time_t t;

        if (strncmp(w->seen, "GET /repos/", 11) == 0)
                return answer_with(ssl, "200 OK", "{\"id\": 77}");
        if (strncmp(w->seen, "POST /app/", 10) == 0) {
                api.n_posted++;
                strcpy(api.posted, w->seen);
                if (api.posted_fd > 0) {
                        (void) eventfd_write(api.posted_fd, 1);
                        (void) sem_wait(&w->may_go_on);
                }
                t = (time_t) (time_realtime() / 1000000) + api.life_s;
                (void) strftime(until, sizeof(until), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
                (void) snprintf(body, sizeof(body), "{\"token\": \"" TOKEN "%u\", \"expires_at\": \"%s\"%s}", api.n_posted, until,
                                api.wider ? ", \"repository_selection\": \"all\"" : "");
                return answer_with(ssl, api.mint, api.body ?: body);
        }
        if (strncmp(w->seen, "DELETE ", 7) == 0) {
                api.n_deleted++;
                strcpy(api.deleted, w->seen);
                return answer_with(ssl, api.gone ?: api.mint, api.body ?: "");
        }
        (void) snprintf(body, sizeof(body), "%.300s", strstr(w->seen, "x-api-key: ") ?: "no-key");
        return answer_with(ssl, "200 OK", body);
}

/* ---- tests ---- */

static int set_up_minter(void **state) {
        World *w;

        (void) set_up(state);
        w = *state;
        w->answer = origin_answer;
        memset(&api, 0, sizeof(api));
        api.mint = "201 Created";
        api.life_s = 3600;
        w->secrets->credentials[0].secret = secret_free(w->secrets->credentials[0].secret);
        w->secrets->credentials[0].minted = true;
        assert_int_equal(ipc_server_new(&api.server, w->event, secret_methods, w), 0);
        assert_true(ipc_server_listen_fd(api.server, listen_unix(SECRET_SOCKET)) >= 0);
        assert_int_equal(ipc_client_new(&api.client, w->event, SECRET_SOCKET), 0);
        return minter_new(&w->context.minter, &(MinterSetup) { w->event, w->secrets, w->credentials, w->context.egress, w->context.tls, w->audit, api.client,
                                                               &w->context.generation });
}

static int tear_down_minter(void **state) {
        World *w = *state;

        exchange_close_all(&w->context);
        ipc_client_free(api.client);
        w->context.minter = minter_free(w->context.minter);
        ipc_server_free(api.server);
        return tear_down(state);
}

static void client_of_two(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[8192] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        for (int i = 0; i < 2; i++) {
                *text = 0;
                EXPECT(client_send(ssl, GET("/v1/x") KEY "\r\n"));
                EXPECT(client_await(ssl, "\r\n0\r\n\r\n", text, sizeof(text)));
                EXPECT(strstr(text, "HTTP/1.1 200 "));
                EXPECT(strstr(text, "x-api-key: " SENTINEL)); /* masked, although it was minted after the connection began */
                EXPECT(!strstr(text, TOKEN));
        }
        (void) SSL_shutdown(ssl);
        SSL_free(ssl);
}

static void test_minted(void **state) {
        World *w = *state;

        play(w, client_of_two);
        assert_int_equal(api.n_posted, 1);
        assert_string_equal(api.kept, TOKEN "1");
        assert_false(api.unusable);
        assert_non_null(strstr(api.posted, "POST /app/installations/7/access_tokens HTTP/1.1\r\n"));
        assert_non_null(strstr(api.posted, "\r\nAuthorization: Bearer the.signed.proof\r\n"));
        assert_non_null(strstr(api.posted, "\r\nUser-Agent: anchorhold\r\n"));
        assert_non_null(strstr(w->seen, "x-api-key: " TOKEN "1\r\n"));
        assert_false(logged(w, TOKEN));
        assert_false(logged(w, "signed.proof"));
        assert_int_equal(api.n_deleted, 0);
        assert_int_equal(w->n_accepted, 2); /* the API, and what is kept for both requests */
        assert_true(w->n_done >= 1);        /* the grant of the API's is given back */
}

static void client_of_revoked(World *w) {
        SSL *ssl = client_connect(w, NAME);
        char text[8192] = "";

        EXPECT(ssl);
        if (!ssl)
                return;
        EXPECT(client_send(ssl, GET("/v1/x") KEY "\r\n"));
        EXPECT(client_await(ssl, "\r\n\r\n", text, sizeof(text)));
        EXPECT(strstr(text, "HTTP/1.1 403 "));
        EXPECT(strcasestr(text, "anchorhold-reason: credential-revoked\r\n"));
        SSL_free(ssl);
}

/* Between its plan and the time when it may leave: there is no value, and none will come. test_minted() is the control. */
static void test_revoked_meanwhile(void **state) {
        World *w = *state;

        w->revokes = true;
        play(w, client_of_revoked);
        assert_int_equal(api.n_posted, 0);
        assert_int_equal(w->n_accepted, 0);
}

static void test_looked_up(void **state) {
        World *w = *state;

        api.looks_up = true;
        play(w, client_of_two);
        assert_int_equal(api.n_asked, 2);
        assert_int_equal(api.n_posted, 1);
}

static void test_kept_again(void **state) {
        World *w = *state;

        api.loses_answers = true;
        play(w, client_of_two);
        assert_int_equal(api.n_posted, 1); /* secretd is told again, the API is not asked again */
        assert_int_equal(api.n_kept, 2);
}

static const char *expected;

CLIENT(client_of_refusal, GET("/v1/x") KEY "\r\n",
       EXPECT(strstr(text, "HTTP/1.1 502 "));
       EXPECT(strstr(text, "Anchorhold-Reason: token-unavailable\r\n"));
       EXPECT(strstr(text, expected));
       if (!strstr(text, expected)) fprintf(stderr, "%s\n", text);
       EXPECT(proper);)
CLIENT(client_without, GET("/v1/x") "Connection: close\r\n\r\n",
       EXPECT(strstr(text, "HTTP/1.1 200 "));
       EXPECT(strstr(text, "no-key"));)

static void is_refused(World *w, const char *reason, const char *text) {
        unsigned accepted = w->n_accepted;

        expected = text;
        play(w, client_of_refusal);
        assert_true(logged(w, "\"event\":\"token.failed\""));
        assert_true(logged(w, reason));
        assert_true(w->n_accepted <= accepted + 1 + api.more_calls); /* nothing but the question has left */
        assert_null(w->secrets->credentials[0].secret);
        assert_false(logged(w, TOKEN));
}

static void test_api_refuses(void **state) {
        World *w = *state;

        api.mint = "403 Forbidden";
        api.body = "{\"message\": \"Resource not accessible\"}";
        play(w, client_without); /* control: who needs no token is not held up */
        is_refused(w, "\"status\":403", "the API answered 403: Resource not accessible");
        is_refused(w, "\"reason\":\"refused\"", "the API answered 403"); /* two seconds later */
        assert_int_equal(api.n_posted, 2);
}

/* An API that says back who asked: neither the guest nor a record gets that. */
static void test_api_echoes(void **state) {
        World *w = *state;

        api.mint = "401 Unauthorized";
        api.body = "{\"message\": \"the.signed.proof is not for us\"}";
        is_refused(w, "\"status\":401", "the API answered 401: (secret) is not for us");
        assert_false(logged(w, "signed.proof"));
}

static void test_api_garbage(void **state) {
        api.body = "not JSON";
        is_refused(*state, "\"reason\":\"malformed\"", "there is no token in the answer");
}

/* Neither is used, and each is on the list, to be revoked: one that is for more than was asked, and one of which nobody knows how long it is good. test_minted() is the control. */
static void test_wider(void **state) {
        api.wider = true;
        is_refused(*state, "\"reason\":\"wider\"", "the token is for more than was asked: repository_selection");
        assert_int_equal(api.n_kept, 1);
        assert_string_equal(api.kept, TOKEN "1");
        assert_true(api.unusable);
}

static void test_unclear(void **state) {
        api.body = "{\"token\": \"" TOKEN "\", \"expires_at\": \"2026-13-01T00:00:00Z\"}";
        is_refused(*state, "\"reason\":\"malformed\"", "does not say when the token expires");
        assert_int_equal(api.n_kept, 1);
        assert_string_equal(api.kept, TOKEN);
        assert_true(api.unusable);
}

/* Nobody else knows of it: so inject itself brings it back. test_minted() is the control, in which it stays. */
static void test_not_kept(void **state) {
        api.keeps_nothing = true;
        api.gone = "204 No Content";
        api.more_calls = 1;
        is_refused(*state, "\"reason\":\"not-kept\"", "and was revoked at once: the disk is full");
        assert_int_equal(api.n_posted, 1);
        assert_int_equal(api.n_deleted, 1);
        assert_non_null(strstr(api.deleted, "DELETE /installation/token HTTP/1.1\r\n"));
        assert_non_null(strstr(api.deleted, "\r\nAuthorization: Bearer " TOKEN "1\r\n"));
}

static void test_not_given_back(void **state) {
        World *w = *state;

        api.keeps_nothing = true;
        api.gone = "503 Service Unavailable";
        api.more_calls = 1;
        is_refused(w, "\"status\":503", "and is good until it expires (the API answered 503 when it was to be revoked): the disk is full");
        assert_int_equal(api.n_deleted, 1);

        w->nowhere = "/installation/token";
        is_refused(w, "\"reason\":\"not-kept\"", "and is good until it expires (");
        assert_int_equal(api.n_deleted, 1);
}

static void test_key_removed(void **state) {
        api.removed = true;
        is_refused(*state, "\"reason\":\"unavailable\"", "the key was removed");
        assert_int_equal(api.n_posted, 0);
}

/* It is removed while a token is on its way: that is on the list, and not used, whoever hears of it first. test_minted() is the control. */
static void is_not_used(World *w) {
        is_refused(w, "\"reason\":\"removed\"", "the credential was removed from this host meanwhile");
        assert_int_equal(api.n_posted, 1);
        assert_int_equal(api.n_kept, 1);
        assert_string_equal(api.kept, TOKEN "1");
        assert_int_equal(w->credentials[0].revoked, api.key != GONE_FOR_SECRETD);
}

static void test_removed_while_calling(void **state) {
        api.key = GOES_WHILE_CALLING;
        is_not_used(*state);
        assert_true(api.unusable);
}

static void test_removed_while_keeping(void **state) {
        api.key = GOES_WHILE_KEEPING;
        is_not_used(*state);
}

static void test_removed_for_secretd(void **state) {
        api.key = GONE_FOR_SECRETD;
        is_not_used(*state);
}

static void test_egress_denies(void **state) {
        World *w = *state;

        w->deny = "no-rule";
        w->deny_path = "/app/installations/7/access_tokens";
        is_refused(w, "\"reason\":\"not-allowed\"", "the egress policy allows no such request");
        assert_int_equal(api.n_posted, 0);
}

static int on_posted(sd_event_source *s, int fd, uint32_t events, void *userdata) {
        World *w = userdata;
        eventfd_t value;

        assert_int_equal(eventfd_read(fd, &value), 0);
        return ipc_call_notify(w->watch, json_pack("{s:i, s:[i]}", "heartbeat", 3, "revoked", 7));
}

/* While the API thinks, what is asked of it is not allowed any more. */
static void test_egress_denies_meanwhile(void **state) {
        sd_event_source *posted = NULL;
        World *w = *state;

        api.posted_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        assert_true(sd_event_add_io(w->event, &posted, api.posted_fd, EPOLLIN, on_posted, w) >= 0);
        is_refused(w, "\"reason\":\"not-allowed\"", "policy-changed");
        assert_int_equal(api.n_posted, 1);
        assert_int_equal(api.n_kept, 0);
        assert_true(w->n_done >= 1); /* its grant is given back */
        (void) sem_post(&w->may_go_on);
        sd_event_source_disable_unref(posted);
        (void) close(api.posted_fd);
}

/* The call is over before the step that began it is. */
static void test_nowhere_to_go(void **state) {
        World *w = *state;

        w->nowhere = "/app/installations/7/access_tokens";
        is_refused(w, "\"reason\":\"unreachable\"", "cannot be reached");
        assert_int_equal(api.n_posted, 0);
        assert_true(w->n_done >= 1); /* its grant is given back */
}

/* ---- the end of a run ---- */

static void bring_back(World *w) {
        Revoker *r = NULL;

        assert_int_equal(revoker_new(&r, w->event, RUN, w->context.egress, w->context.tls, w->audit, api.client), 0);
        assert_int_equal(sd_event_loop(w->event), 0);
        revoker_free(r);
}

static void test_revoked(void **state) {
        World *w = *state;

        api.left = 2;
        api.loses_answers = true;
        api.mint = "204 No Content";
        bring_back(w);
        assert_int_equal(api.n_deleted, 2);
        assert_int_equal(api.n_revoked, 3); /* the first one is told again */
        assert_non_null(strstr(api.deleted, "DELETE /installation/token HTTP/1.1\r\n"));
        assert_non_null(strstr(api.deleted, "Authorization: Bearer " TOKEN "\r\n"));
        assert_false(logged(w, "token.failed"));
}

static void test_revoked_before(void **state) {
        api.left = 1;
        api.mint = "401 Unauthorized";
        bring_back(*state);
        assert_int_equal(api.n_revoked, 1);
}

static void test_not_revoked(void **state) {
        World *w = *state;

        api.left = 2;
        api.mint = "503 Service Unavailable";
        api.body = "{\"message\": \"no, " TOKEN "\"}";
        bring_back(w);
        assert_int_equal(api.n_deleted, 2); /* the second one has its turn */
        assert_int_equal(api.n_revoked, 0);
        assert_true(logged(w, "\"what\":\"revoking a token\""));
        assert_true(logged(w, "\"status\":503"));
        assert_true(logged(w, "the API answered 503: no, (secret)"));
        assert_false(logged(w, TOKEN));
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_minted, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_revoked_meanwhile, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_looked_up, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_kept_again, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_api_refuses, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_api_echoes, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_api_garbage, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_wider, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_unclear, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_not_kept, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_not_given_back, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_key_removed, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_removed_while_calling, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_removed_while_keeping, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_removed_for_secretd, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_egress_denies, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_egress_denies_meanwhile, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_nowhere_to_go, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_revoked, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_revoked_before, set_up_minter, tear_down_minter),
                cmocka_unit_test_setup_teardown(test_not_revoked, set_up_minter, tear_down_minter),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
