/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What secretd does with the key of a GitHub App: who gets a proof, what becomes of tokens, and what a restart or a reboot leaves of them. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include "secretd-world.h"

#define OTHER "r0123456789cd"
#define TOKEN "ghs_0123456789abcdefghijklmnopqrstuvwxyz"

static int set_up_app(void **state) {
        assert_int_equal(system("cp /run/app.pem /run/credentials/cred_app"), 0);
        return set_up(state);
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

        refused(w, "io.anchorhold.Secret.Register", request(RUN, NULL), "Unavailable", "names none");
        refused(w, "io.anchorhold.Secret.Register", request(RUN, "elsewhere/widgets"), "Unavailable", "no token for the repository elsewhere/widgets");
        refused(w, "io.anchorhold.Secret.Register", request(RUN, "widgets"), "BadInput", "OWNER/NAME");
        register_run_ok(w, RUN);
        register_run_ok(w, RUN);
        refused(w, "io.anchorhold.Secret.Register", request(RUN, "acme/other"), "Conflict", "registered");

        end_life(w);
        assert_int_equal(system("printf ghs_statictoken >/run/credentials/cred_app"), 0);
        begin_life(w);
        refused(w, "io.anchorhold.Secret.Register", request(OTHER, "acme/widgets"), "Unavailable", "not the private key of an app");
}

static void test_mint(void **state) {
        _cleanup_free_ char *target = NULL, *body = NULL;
        World *w = *state;

        refused(w, "io.anchorhold.Secret.Mint", json_pack("{s:s}", "credential", "app"), "NoSuchRun", "not registered");
        register_run_ok(w, RUN);
        refused(w, "io.anchorhold.Secret.Mint", json_pack("{s:s}", "credential", "other"), "BadInput", "credential");
        refused(w, "io.anchorhold.Secret.Mint", json_pack("{s:s, s:s}", "credential", "app", "repository", "acme/other"), "BadInput", "repository"); /* for what it is, is no caller's to say */

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
        assert_string_equal(json_string_value(json_object_get(w->answer, "revoke")), "/v3/installation/token");

        end_life(w);
        assert_int_equal(unlink("/run/credentials/cred_app"), 0);
        begin_life(w);
        refused(w, "io.anchorhold.Secret.Mint", json_pack("{s:s}", "credential", "app"), "Revoked", "removed");
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

static bool is_usable(World *w) {
        assert_null(w->error);
        return json_is_true(json_object_get(w->answer, "usable"));
}

/* The key goes while the API is asked: what it gives then, or is told again, is there to be revoked. */
static void test_key_removed_meanwhile(void **state) {
        World *w = *state;

        register_run_ok(w, RUN);
        keep(w, TOKEN, 10 * MINUTE);
        assert_true(is_usable(w)); /* control */
        end_life(w);
        assert_int_equal(unlink("/run/credentials/cred_app"), 0);
        begin_life(w);
        keep(w, TOKEN, 10 * MINUTE);
        assert_false(is_usable(w));
        keep(w, TOKEN "2", 20 * MINUTE);
        assert_false(is_usable(w));
        assert_int_equal(token_list_size(w->d->tokens), 2);

        end_life(w);
        assert_int_equal(system("printf ghs_statictoken >/run/credentials/cred_app"), 0);
        begin_life(w);
        keep(w, TOKEN "3", 20 * MINUTE);
        assert_false(is_usable(w));

        /* the key is there again: what came while it was not is not used all the same */
        end_life(w);
        assert_int_equal(system("cp /run/app.pem /run/credentials/cred_app"), 0);
        begin_life(w);
        keep(w, TOKEN "2", 20 * MINUTE);
        assert_false(is_usable(w));
        assert_true(inject_has_token(w)); /* the first */
        call(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN));
        assert_int_equal(outstanding(w), 1);
        assert_int_equal(token_list_size(w->d->tokens), 3);
}

static void keep_number(World *w, unsigned n, uint64_t life_usec) {
        char token[64];

        (void) snprintf(token, sizeof(token), TOKEN "%u", n);
        keep(w, token, life_usec);
}

static json_t *mint(void) {
        return json_pack("{s:s}", "credential", "app");
}

/* Of the list each run has a share, and neither asks for more nor brings more. */
static void test_share(void **state) {
        World *w = *state;
        unsigned n = 0;

        register_run_ok(w, RUN);
        register_run_ok(w, OTHER);
        for (; n < TOKENS_SHARE_MAX; n++) {
                call(w, "io.anchorhold.Secret.Mint", mint());
                assert_null(w->error);
                keep_number(w, n, 10 * MINUTE);
                assert_null(w->error);
        }
        refused(w, "io.anchorhold.Secret.Mint", mint(), "Denied", "no more");
        for (; n < TOKENS_SHARE_MAX + TOKENS_SHARE_ASKED; n++) {
                keep_number(w, n, 10 * MINUTE); /* of questions that were under way */
                assert_null(w->error);
        }
        keep_number(w, n, 10 * MINUTE);
        assert_string_equal(w->error, "io.anchorhold.Secret.Denied");
        assert_int_equal(token_list_size(w->d->tokens), TOKENS_SHARE_MAX + TOKENS_SHARE_ASKED);
        keep_number(w, 0, 10 * MINUTE); /* told again */
        assert_null(w->error);

        /* the control: another run, meanwhile */
        w->caller = OTHER;
        call(w, "io.anchorhold.Secret.Mint", mint());
        assert_null(w->error);
        keep_number(w, n, 10 * MINUTE);
        assert_null(w->error);

        /* it is kept over a restart */
        w->caller = RUN;
        end_life(w);
        begin_life(w);
        refused(w, "io.anchorhold.Secret.Mint", mint(), "Denied", "no more");
}

/* Renewed all day long, a run never comes near it: what has expired does not count, also before the list is swept. */
static void test_share_and_renewal(void **state) {
        World *w = *state;

        register_run_ok(w, RUN);
        for (unsigned n = 0; n < 3 * TOKENS_SHARE_MAX; n++) {
                keep_number(w, n, 300 * 1000);
                assert_null(w->error);
                if (n % TOKENS_SHARE_MAX == TOKENS_SHARE_MAX - 1)
                        UNTIL(w->event, token_list_count(w->d->tokens, RUN, "app", time_realtime()) == 0);
        }
        call(w, "io.anchorhold.Secret.Mint", mint());
        assert_null(w->error);
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
        refused(w, "io.anchorhold.Secret.Revoked", json_pack("{s:s, s:i}", "token", id, "status", 204), "Unavailable", "audit log");
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
        refused(w, "io.anchorhold.Secret.Revoked", json_pack("{s:s, s:i}", "token", first, "status", 204), "Denied", "another run");
        w->caller = RUN;
        refused(w, "io.anchorhold.Secret.Revoked", json_pack("{s:s}", "token", first), "BadInput", "status");
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
                cmocka_unit_test_setup_teardown(test_register, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_mint, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_minted, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_minted_without_record, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_unusable, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_key_removed_meanwhile, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_revoked_without_record, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_share, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_share_and_renewal, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_revoke, set_up_app, tear_down),
                cmocka_unit_test_setup_teardown(test_expired, set_up_app, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
