/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What secretd does with the key of a GitHub App: who gets a proof, what becomes of tokens, and what a restart or a reboot leaves of them. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include "audit/audit-api.h"
#include "own-world.h"
#include "policy-tree.h"
#include "secret/bundle.h"
#include "secret/secretd-private.h"
#include "util/json.h"

#define RUN "r0123456789ab"
#define OTHER "r0123456789cd"
#define ITEM "i0123456789ab"
#define TOKEN "ghs_0123456789abcdefghijklmnopqrstuvwxyz"
#define API "/run/test-secret.sock"
#define MINUTE (60ULL * 1000 * 1000)

typedef struct World {
        sd_event *event;
        Secretd *d;
        IpcServer *audit, *server;
        IpcClient *client;
        const char *caller;
        bool audit_refuses;
        char *audited;  /* owned: one record a line */
        bool answered;
        char *error;    /* owned */
        json_t *answer; /* owned */
        Secret *given;  /* owned: what came with the answer */
} World;

static int on_append(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        _cleanup_free_ char *text = json_canonical(params), *more = text_format("%s%s\n", w->audited ?: "", text);

        if (w->audit_refuses)
                return ipc_call_refuse(call, "Unavailable", "full");
        free(w->audited);
        w->audited = TAKE_PTR(more);
        return ipc_call_reply(call, json_pack("{s:i, s:s}", "seq", 1, "hash", "00"));
}

static const IpcMethod audit_methods[] = { { AUDIT_INTERFACE ".Append", PEER_ROOT, on_append }, {} };

/* The real handlers; the kernel's word on who calls is the test's. */
static int on_call(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        strcpy(ipc_call_peer(call)->run, w->caller);
        for (const IpcMethod *m = secretd_methods; m->name; m++)
                if (strcmp(m->name, ipc_call_method(call)) == 0)
                        return m->handler(call, params, w->d);
        return -ENOSYS;
}

static IpcMethod played[16];

static IpcServer *serve(World *w, const IpcMethod *methods, const char *path) {
        IpcServer *s = NULL;

        assert_int_equal(ipc_server_new(&s, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(s, own_world_listen(path)) >= 0);
        return s;
}

static void begin_life(World *w) {
        static const char *const paths[] = { "/run/anchorhold/secret-api.sock", "/run/anchorhold/secret.sock" };
        const SecretdPaths where = { .credentials = "/run/credentials", .state = "/run/state", .key = "/run/key", .policy_root = "" };

        own_world_pass(paths, 2, "secret-api:secret");
        assert_int_equal(secretd_new(&w->d, w->event, &where), 0);
}

static void end_life(World *w) {
        w->d = secretd_free(w->d);
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        own_world_reserve(2);
        assert_int_equal(system("rm -rf /run/state /run/key; mkdir -m 700 /run/state /run/key; cp /run/app.pem /run/credentials/cred_app"), 0);
        w->caller = RUN;
        assert_int_equal(sd_event_new(&w->event), 0);
        w->audit = serve(w, audit_methods, AUDIT_SOCKET);
        for (size_t i = 0; secretd_methods[i].name; i++) {
                assert_true(i + 1 < ELEMENTSOF(played));
                played[i] = (IpcMethod) { secretd_methods[i].name, PEER_ROOT, on_call };
        }
        w->server = serve(w, played, API);
        assert_int_equal(ipc_client_new(&w->client, w->event, API), 0);
        begin_life(w);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        ipc_client_free(w->client);
        secretd_free(w->d);
        ipc_server_free(w->server);
        ipc_server_free(w->audit);
        sd_event_unref(w->event);
        json_decref(w->answer);
        secret_free(w->given);
        free(w->error);
        free(w->audited);
        free(w);
        return 0;
}

static void on_answer(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        World *w = userdata;
        int fd;

        w->answered = true;
        w->error = error ? strdup(error) : NULL;
        w->answer = json_incref(params);
        fd = error ? -1 : ipc_client_take_fd(c, 0);
        if (fd >= 0) {
                assert_int_equal(secret_read_fd(&w->given, fd), 0);
                close(fd);
        }
}

static void call_with(World *w, const char *method, json_t *params, int fd) {
        json_decref(w->answer);
        free(w->error);
        w->given = secret_free(w->given);
        w->answer = NULL;
        w->error = NULL;
        w->answered = false;
        assert_int_equal(ipc_client_call_async(w->client, method, params, &fd, fd >= 0, false, 0, on_answer, w), 0);
        UNTIL(w->event, w->answered);
}

static void call(World *w, const char *method, json_t *params) {
        call_with(w, method, params, -1);
}

static void is_refused(World *w, const char *error, const char *reason) {
        const char *given = json_string_value(json_object_get(w->answer, "reason")) ?: "";

        assert_non_null(w->error);
        assert_string_equal(strrchr(w->error, '.') + 1, error);
        if (!strstr(given, reason))
                fail_msg("expected \"%s\", got \"%s\"", reason, given);
}

static json_t *request(const char *run, const char *repository) {
        return json_pack("{s:s, s:s, s:s, s:I, s:s*}", "run", run, "workflow", "app", "item", ITEM, "expires_usec",
                         (json_int_t) (time_realtime() + 10 * MINUTE), "repository", repository);
}

static void register_run_ok(World *w, const char *run) {
        call(w, "io.anchorhold.Secret.Register", request(run, "acme/widgets"));
        assert_null(w->error);
}

/* The other end of a pipe with that in it. */
static int piped(const char *text) {
        int fds[2];

        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        assert_int_equal(io_write_full(fds[1], text, strlen(text)), 0);
        close(fds[1]);
        return fds[0];
}

static void keep(World *w, const char *token, uint64_t life_usec) {
        int fd = piped(token);

        call_with(w, "io.anchorhold.Secret.Minted", json_pack("{s:s, s:I}", "credential", "app", "expires_usec", (json_int_t) (time_realtime() + life_usec)), fd);
        close(fd);
}

static char *text_of(World *w, const char *key) {
        return strdup(json_string_value(json_object_get(w->answer, key)) ?: "");
}

static size_t outstanding(World *w) {
        call(w, "io.anchorhold.Secret.Outstanding", NULL);
        assert_null(w->error);
        return json_array_size(json_object_get(w->answer, "runs"));
}

static int credential(World *w, const char *id, RunSecrets **ret) {
        Peer peer = { .roles = PEER_INJECT, .unit = (char *) "anchor-inject@x.service" };
        char *blob;
        size_t size;
        int r;

        strcpy(peer.run, w->caller);
        r = secretd_on_credential(&peer, id, &blob, &size, w->d);
        if (r < 0)
                return r;
        assert_null(memmem(blob, size, "PRIVATE", 7)); /* the key never leaves */
        r = bundle_parse(ret, blob, size);
        secret_erase(blob, size);
        return r;
}

static void test_register(void **state) {
        World *w = *state;

        call(w, "io.anchorhold.Secret.Register", request(RUN, NULL));
        is_refused(w, "Unavailable", "names none");
        call(w, "io.anchorhold.Secret.Register", request(RUN, "elsewhere/widgets"));
        is_refused(w, "Unavailable", "no token for the repository elsewhere/widgets");
        call(w, "io.anchorhold.Secret.Register", request(RUN, "widgets"));
        is_refused(w, "BadInput", "OWNER/NAME");
        register_run_ok(w, RUN);
        register_run_ok(w, RUN);
        call(w, "io.anchorhold.Secret.Register", request(RUN, "acme/other"));
        is_refused(w, "Conflict", "registered");

        end_life(w);
        assert_int_equal(system("printf ghs_statictoken >/run/credentials/cred_app"), 0);
        begin_life(w);
        call(w, "io.anchorhold.Secret.Register", request(OTHER, "acme/widgets"));
        is_refused(w, "Unavailable", "not the private key of an app");
}

static void test_mint(void **state) {
        _cleanup_free_ char *target = NULL, *body = NULL;
        World *w = *state;

        call(w, "io.anchorhold.Secret.Mint", json_pack("{s:s}", "credential", "app"));
        is_refused(w, "NoSuchRun", "not registered");
        register_run_ok(w, RUN);
        call(w, "io.anchorhold.Secret.Mint", json_pack("{s:s}", "credential", "other"));
        is_refused(w, "BadInput", "credential");
        call(w, "io.anchorhold.Secret.Mint", json_pack("{s:s, s:s}", "credential", "app", "repository", "acme/other"));
        is_refused(w, "BadInput", "repository"); /* for what it is, is no caller's to say */

        call(w, "io.anchorhold.Secret.Mint", json_pack("{s:s}", "credential", "app"));
        assert_null(w->error);
        target = text_of(w, "target");
        assert_string_equal(target, "/v3/repos/acme/widgets/installation");
        assert_string_equal(json_string_value(json_object_get(w->answer, "step")), "lookup");
        assert_non_null(w->given);
        assert_memory_equal(secret_view(w->given).bytes, "eyJ", 3); /* {" */

        call(w, "io.anchorhold.Secret.Mint", json_pack("{s:s, s:i}", "credential", "app", "installation", 9));
        assert_null(w->error);
        free(target);
        target = text_of(w, "target");
        body = text_of(w, "body");
        assert_string_equal(target, "/v3/app/installations/9/access_tokens");
        assert_string_equal(body, "{\"permissions\":{\"contents\":\"write\"},\"repositories\":[\"widgets\"]}");
        assert_string_equal(json_string_value(json_object_get(w->answer, "host")), "api.example.org");
        assert_int_equal(json_integer_value(json_object_get(w->answer, "port")), 8443);

        end_life(w);
        assert_int_equal(unlink("/run/credentials/cred_app"), 0);
        begin_life(w);
        call(w, "io.anchorhold.Secret.Mint", json_pack("{s:s}", "credential", "app"));
        is_refused(w, "Revoked", "removed");
}

static void test_minted(void **state) {
        _cleanup_(run_secrets_freep) RunSecrets *before = NULL, *s = NULL;
        _cleanup_free_ char *id = NULL, *again = NULL;
        World *w = *state;
        int fds[2];

        register_run_ok(w, RUN);
        assert_int_equal(credential(w, "inject", &before), 0);
        assert_true(before->credentials[0].minted);
        assert_null(before->credentials[0].secret);
        assert_string_equal(before->repository, "acme/widgets");

        keep(w, "with a blank", 10 * MINUTE);
        is_refused(w, "BadInput", "visible ASCII");
        keep(w, TOKEN, 48 * 60 * MINUTE);
        is_refused(w, "BadInput", "expires_usec");
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0); /* nobody is waited for */
        call_with(w, "io.anchorhold.Secret.Minted", json_pack("{s:s, s:I}", "credential", "app", "expires_usec", (json_int_t) (time_realtime() + MINUTE)), fds[0]);
        is_refused(w, "BadInput", "descriptor 0");
        close(fds[0]);
        close(fds[1]);
        assert_null(strstr(w->audited, "token.minted"));

        keep(w, TOKEN, 10 * MINUTE);
        assert_null(w->error);
        id = text_of(w, "token");
        assert_true(text_is_id('t', id));
        assert_non_null(strstr(w->audited, "token.minted"));
        assert_null(strstr(w->audited, TOKEN));
        keep(w, TOKEN, 10 * MINUTE); /* the answer was lost */
        again = text_of(w, "token");
        assert_string_equal(again, id);
        assert_int_equal(token_list_size(w->d->tokens), 1);

        assert_int_equal(credential(w, "inject", &s), 0); /* a fresh inject needs no other */
        assert_true(secret_equals(s->credentials[0].secret, TOKEN, strlen(TOKEN)));
        assert_true(s->credentials[0].expires_usec > time_realtime() + 9 * MINUTE);
        assert_int_equal(outstanding(w), 0); /* its run goes on */
}

static bool inject_has_token(World *w) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;

        assert_int_equal(credential(w, "inject", &s), 0);
        return s->credentials[0].secret;
}

/* It is on the list, and so it is revoked; but nobody gets it, in no life, before it is on record. */
static void test_minted_without_record(void **state) {
        World *w = *state;

        register_run_ok(w, RUN);
        w->audit_refuses = true;
        keep(w, TOKEN, 10 * MINUTE);
        is_refused(w, "Unavailable", "audit log");
        for (int life = 0; life < 2; life++) {
                assert_int_equal(token_list_size(w->d->tokens), 1);
                assert_false(inject_has_token(w));
                end_life(w);
                begin_life(w);
        }
        w->audit_refuses = false;
        keep(w, TOKEN, 10 * MINUTE); /* told again */
        assert_null(w->error);
        for (int life = 0; life < 2; life++) {
                assert_int_equal(token_list_size(w->d->tokens), 1);
                assert_true(inject_has_token(w));
                end_life(w);
                begin_life(w);
        }
}

/* One that is not to be used is on the list to be revoked, and nobody gets it. */
static void test_unusable(void **state) {
        int fd = piped(TOKEN);
        World *w = *state;

        register_run_ok(w, RUN);
        call_with(w, "io.anchorhold.Secret.Minted", json_pack("{s:s, s:I, s:b}", "credential", "app", "expires_usec", (json_int_t) (time_realtime() + 10 * MINUTE),
                                                              "unusable", 1), fd);
        close(fd);
        assert_null(w->error);
        assert_non_null(strstr(w->audited, "token.minted"));
        for (int life = 0; life < 2; life++) {
                assert_false(inject_has_token(w));
                end_life(w);
                begin_life(w);
        }
        keep(w, TOKEN "2", 5 * MINUTE); /* a good one beside it, although it lasts less long */
        assert_true(inject_has_token(w));
        call(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN));
        assert_int_equal(outstanding(w), 1);
        assert_int_equal(token_list_size(w->d->tokens), 2);
}

/* What was revoked leaves the list when that is on record, and not before. */
static void test_revoked_without_record(void **state) {
        _cleanup_free_ char *id = NULL;
        World *w = *state;

        register_run_ok(w, RUN);
        keep(w, TOKEN, 10 * MINUTE);
        id = text_of(w, "token");
        call(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN));
        w->audit_refuses = true;
        call(w, "io.anchorhold.Secret.Revoked", json_pack("{s:s, s:i}", "token", id, "status", 204));
        is_refused(w, "Unavailable", "audit log");
        assert_int_equal(outstanding(w), 1);
        end_life(w);
        begin_life(w);
        assert_int_equal(outstanding(w), 1);
        w->audit_refuses = false;
        call(w, "io.anchorhold.Secret.Revoked", json_pack("{s:s, s:i}", "token", id, "status", 401));
        assert_null(w->error);
        assert_int_equal(outstanding(w), 0);
        assert_non_null(strstr(w->audited, "token.revoked"));
}

static void test_revoke(void **state) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL, *none = NULL;
        _cleanup_free_ char *first = NULL, *second = NULL;
        World *w = *state;

        register_run_ok(w, RUN);
        keep(w, TOKEN, 10 * MINUTE);
        keep(w, TOKEN "2", 20 * MINUTE);
        call(w, "io.anchorhold.Secret.Revoke", NULL);
        assert_int_equal(json_object_size(w->answer), 0); /* while it goes on, nothing is due */
        call(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN));

        for (int life = 0; life < 2; life++) { /* the second one is after a reboot */
                assert_int_equal(outstanding(w), 1);
                assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(w->answer, "runs"), 0), "workflow")), "app");
                end_life(w);
                if (life == 0)
                        assert_int_equal(system("rm /run/key/*"), 0);
                begin_life(w);
        }
        assert_int_equal(credential(w, "inject", &s), 0);
        assert_string_equal(s->stage, "revoke");
        assert_int_equal(s->n_credentials, 0);
        assert_null(s->ca_key);
        w->caller = OTHER;
        assert_int_equal(credential(w, "inject", &none), -EACCES);
        call(w, "io.anchorhold.Secret.Revoke", NULL);
        assert_int_equal(json_object_size(w->answer), 0); /* another run's are none of its business */
        w->caller = RUN;

        call(w, "io.anchorhold.Secret.Revoke", NULL);
        first = text_of(w, "token");
        assert_true(text_is_id('t', first));
        assert_non_null(w->given);
        assert_memory_equal(secret_view(w->given).bytes, TOKEN, strlen(TOKEN));
        assert_string_equal(json_string_value(json_object_get(w->answer, "target")), "/v3/installation/token");
        assert_string_equal(json_string_value(json_object_get(w->answer, "host")), "api.example.org");
        call(w, "io.anchorhold.Secret.Revoke", json_pack("{s:s}", "after", first));
        second = text_of(w, "token");
        assert_true(strcmp(second, first) > 0);
        call(w, "io.anchorhold.Secret.Revoke", json_pack("{s:s}", "after", second));
        assert_int_equal(json_object_size(w->answer), 0);

        w->caller = OTHER;
        call(w, "io.anchorhold.Secret.Revoked", json_pack("{s:s, s:i}", "token", first, "status", 204));
        is_refused(w, "Denied", "another run");
        w->caller = RUN;
        call(w, "io.anchorhold.Secret.Revoked", json_pack("{s:s}", "token", first));
        is_refused(w, "BadInput", "status");
        for (int i = 0; i < 2; i++) { /* may be said again */
                call(w, "io.anchorhold.Secret.Revoked", json_pack("{s:s, s:i}", "token", first, "status", 204));
                assert_null(w->error);
        }
        assert_non_null(strstr(w->audited, "token.revoked"));
        assert_int_equal(outstanding(w), 1);
        call(w, "io.anchorhold.Secret.Revoked", json_pack("{s:s, s:i}", "token", second, "status", 401));
        assert_int_equal(outstanding(w), 0);
        assert_int_equal(credential(w, "inject", &none), -EACCES);
        end_life(w);
        begin_life(w);
        assert_int_equal(token_list_size(w->d->tokens), 0);
}

static void test_expired(void **state) {
        World *w = *state;

        register_run_ok(w, RUN);
        register_run_ok(w, OTHER);
        keep(w, TOKEN, 200 * 1000);
        w->caller = OTHER;
        keep(w, TOKEN "2", 200 * 1000);
        w->caller = RUN;
        call(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN));
        assert_int_equal(outstanding(w), 1);
        secretd_tokens_sweep(w->d);
        assert_int_equal(token_list_size(w->d->tokens), 2);
        usleep(250 * 1000);
        assert_int_equal(outstanding(w), 0);
        secretd_tokens_sweep(w->d);
        assert_int_equal(token_list_size(w->d->tokens), 0);
        UNTIL(w->event, strstr(w->audited, "token.unrevoked")); /* of the run that is over; the other's expired as they do */
        assert_non_null(strstr(strstr(w->audited, "token.unrevoked"), RUN));
        assert_null(strstr(strstr(w->audited, "token.unrevoked") + 1, "token.unrevoked"));
}

static int enter_world(void **state) {
        static const char file[] = "{\"kind\": \"github-app\", \"app\": {\"id\": \"42\", \"api\": \"https://api.example.org:8443/v3\", \"repositories\": [\"acme/*\"],"
                                   "\"permissions\": {\"contents\": \"write\"}}, \"sentinel\": {\"prefix\": \"ghs_\", \"alphabet\": \"alnum\", \"length\": 40},"
                                   "\"hosts\": [\"git.example.org\"], \"ports\": [443], \"places\": [{\"bearer\": true}]}",
                          egress[] = "{\"allow\": [{\"name\": \"git.example.org\", \"ports\": [443], \"tls\": \"inspect\"},"
                                     "{\"name\": \"api.example.org\", \"ports\": [{\"port\": 8443, \"protocol\": \"tls\"}], \"tls\": \"inspect\"}]}",
                          workflow[] = "{\"template\": \"base\", \"egress\": \"app\", \"credentials\": [\"app\"], \"repository\": false,"
                                       "\"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"1min\"}]}";
        EVP_PKEY *key = EVP_RSA_gen(2048);
        Tree image = {};
        FILE *f;

        own_world_enter(0);
        own_world_cover("/usr/lib");
        tree_add_vendor(&image);
        tree_put(&image, "usr/lib/anchorhold/policy/credentials/app.json", file);
        tree_put(&image, "usr/lib/anchorhold/policy/egress/app.json", egress);
        tree_put(&image, "usr/lib/anchorhold/policy/workflows/app.json", workflow);
        assert_int_equal(mkdir("/run/credentials", 0700), 0);
        f = fopen("/run/app.pem", "w");
        assert_non_null(key);
        assert_int_equal(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL), 1);
        EVP_PKEY_free(key);
        return fclose(f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_register, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_mint, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_minted, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_minted_without_record, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_unusable, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_revoked_without_record, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_revoke, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_expired, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
