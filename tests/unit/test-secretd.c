/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The whole of secretd: what it gives to whom, what it records before it gives, and what a restart keeps. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gate.h"
#include "secretd-world.h"

#define REAL "sk-ant-real-0123456789"

typedef struct Other {
        bool answered;
        char error[64]; /* without its interface; "": none */
} Other;

static void on_other(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Other *o = userdata;

        o->answered = true;
        (void) snprintf(o->error, sizeof(o->error), "%s", error ? strrchr(error, '.') + 1 : "");
}

/* On another connection than ask(). */
static void ask_beside(IpcClient *client, Other *o, const char *method, json_t *params) {
        assert_int_equal(ipc_client_call_async(client, method, params, NULL, 0, false, 0, on_other, o), 0);
}

static json_t *request(const char *workflow, const char *item, const char *stage) {
        return json_pack("{s:s, s:s, s:s, s:I, s:s*}", "run", RUN, "workflow", workflow, "item", item, "expires_usec",
                         (json_int_t) (time_realtime() + 10 * MINUTE), "stage", stage);
}

static void register_run_ok(World *w) {
        call(w, "io.anchorhold.Secret.Register", request("code-fix", ITEM, NULL));
        assert_null(w->error);
}

static int credential(World *w, unsigned roles, const char *id, char **ret, size_t *ret_size) {
        Peer peer = { .roles = roles, .run = RUN, .unit = (char *) "anchor-run@" RUN ".service" };

        return secretd_on_credential(&peer, id, ret, ret_size, w->d);
}

static void test_register(void **state) {
        World *w = *state;
        _cleanup_free_ char *first = NULL;

        register_run_ok(w);
        first = json_canonical(w->answer);
        assert_string_equal(first, "{\"ca\":true,\"credentials\":[\"anthropic\"]}");
        assert_non_null(strstr(w->audited, "secret.registered"));
        assert_non_null(strstr(w->audited, "\"run\":\"" RUN "\""));
        assert_null(strstr(w->audited, "sk-ant")); /* neither the secret nor its sentinel is evidence */

        register_run_ok(w); /* anchord asks again after a crash */
        refused(w, "io.anchorhold.Secret.Register", request("exec", ITEM, NULL), "Conflict", "workflow code-fix");
        refused(w, "io.anchorhold.Secret.Register", request("code-fix", "i0000000other", NULL), "Conflict", ITEM);
        refused(w, "io.anchorhold.Secret.Register", request("code-fix", ITEM, "verify"), "Conflict", "stage work");
        call(w, "io.anchorhold.Secret.Ping", NULL);
        assert_int_equal(json_integer_value(json_object_get(w->answer, "runs")), 1);
        assert_int_equal(json_integer_value(json_object_get(w->answer, "credentials")), 1);
}

static void test_bad_requests(void **state) {
        World *w = *state;
        json_t *more = request("code-fix", ITEM, NULL);

        json_object_set_new(more, "credentials", json_pack("[s]", "anthropic"));
        refused(w, "io.anchorhold.Secret.Register", more, "BadInput", "/credentials"); /* what a run gets is no caller's to say */
        refused(w, "io.anchorhold.Secret.Register", json_pack("{s:s}", "run", RUN), "BadInput", "");
        refused(w, "io.anchorhold.Secret.Register", request("code-fix", "x", NULL), "BadInput", "item");
        refused(w, "io.anchorhold.Secret.Register", request("nothing", ITEM, NULL), "Unavailable", "nothing");
        refused(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", "../x"), "BadInput", "/run");
        refused(w, "io.anchorhold.Secret.Release", NULL, "BadInput", "/run");
        refused(w, "io.anchorhold.Secret.Watch", NULL, "BadInput", "more");
        assert_null(w->audited);
}

/* While policy is read for a run, others are answered; whoever asks for the same waits, for something else is refused; a release is heard. */
static void test_register_takes_its_time(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *third = NULL;
        _cleanup_json_ json_t *again = request("code-fix", ITEM, NULL);
        Other same = {}, ping = {}, otherwise = {}, release = {};
        World *w = *state;
        static Gate gate = GATE_OPEN;

        assert_int_equal(ipc_client_new(&third, w->event, API), 0);
        gate_close(&gate, w->d->background, MAKING_AT_ONCE);
        ask(w, "io.anchorhold.Secret.Register", json_incref(again));
        UNTIL(w->event, w->d->makings);
        ask_beside(w->watcher, &ping, "io.anchorhold.Secret.Ping", NULL);
        UNTIL(w->event, ping.answered);
        assert_string_equal(ping.error, "");
        ask_beside(w->watcher, &otherwise, "io.anchorhold.Secret.Register", request("exec", ITEM, NULL));
        UNTIL(w->event, otherwise.answered);
        assert_string_equal(otherwise.error, "Conflict");
        ask_beside(third, &same, "io.anchorhold.Secret.Register", json_incref(again));
        run_for(w->event, 20000);
        assert_false(w->answered || same.answered);
        gate_open(&gate);
        UNTIL(w->event, w->answered && same.answered);
        assert_null(w->error);
        assert_string_equal(same.error, "");
        assert_non_null(strstr(w->audited, "secret.registered"));
        assert_null(strstr(strstr(w->audited, "secret.registered") + 1, "secret.registered"));
        call(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN));

        gate_close(&gate, w->d->background, MAKING_AT_ONCE);
        ask(w, "io.anchorhold.Secret.Register", json_incref(again));
        UNTIL(w->event, w->d->makings);
        ask_beside(w->watcher, &release, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN));
        UNTIL(w->event, release.answered);
        assert_false(w->answered);
        gate_open(&gate);
        UNTIL(w->event, w->answered);
        assert_string_equal(strrchr(w->error, '.') + 1, "Conflict");
        assert_int_equal(run_store_size(w->d->runs), 0);

        /* and the daemon ends meanwhile */
        gate_close(&gate, w->d->background, MAKING_AT_ONCE - 1);
        ask(w, "io.anchorhold.Secret.Register", json_incref(again));
        UNTIL(w->event, w->d->makings);
        gate_open(&gate);
        w->d = secretd_free(w->d);
        begin_life(w);
        assert_int_equal(run_store_size(w->d->runs), 0);
}

/* No record, no secret. */
static void test_audit_refuses(void **state) {
        World *w = *state;
        char *blob;
        size_t size;

        w->audit_refuses = true;
        refused(w, "io.anchorhold.Secret.Register", request("code-fix", ITEM, NULL), "Unavailable", "audit");
        assert_int_equal(credential(w, PEER_RUN, "guest", &blob, &size), -EACCES);
        w->audit_refuses = false;
        register_run_ok(w);
        assert_int_equal(credential(w, PEER_RUN, "guest", &blob, &size), 0);
        free(blob);
}

/* Asked again while auditd takes its time: both wait for the same record, and nothing is given before. */
static void register_twice(World *w, IpcClient *other, World *second) {
        char *blob;
        size_t size;

        w->audit_waits = true;
        ask(w, "io.anchorhold.Secret.Register", request("code-fix", ITEM, NULL));
        UNTIL(w->event, w->waiting);
        assert_int_equal(ipc_client_call_async(other, "io.anchorhold.Secret.Register", request("code-fix", ITEM, NULL), NULL, 0, false, 0,
                                               on_answer, second),
                         0);
        for (int i = 0; i < 20; i++)
                assert_true(sd_event_run(w->event, 2000) >= 0);
        assert_false(w->answered);
        assert_false(second->answered);
        assert_int_equal(credential(w, PEER_INJECT, "inject", &blob, &size), -EACCES);
        w->audit_waits = false;
}

static void test_registering(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *other = NULL;
        World *w = *state, second = { .event = w->event };
        _cleanup_free_ char *audited = NULL;
        char *blob;
        size_t size;

        assert_int_equal(ipc_client_new(&other, w->event, API), 0);
        register_twice(w, other, &second);
        assert_int_equal(ipc_call_reply(w->waiting, json_pack("{s:i, s:s}", "seq", 1, "hash", "00")), 0);
        w->waiting = ipc_call_unref(w->waiting);
        UNTIL(w->event, w->answered && second.answered);
        assert_null(w->error);
        assert_null(second.error);
        assert_true(json_equal(w->answer, second.answer));
        json_decref(second.answer);
        assert_int_equal(credential(w, PEER_INJECT, "inject", &blob, &size), 0);
        secret_erase(blob, size);

        /* on record: no second one */
        audited = strdup(w->audited);
        ask(w, "io.anchorhold.Secret.Register", request("code-fix", ITEM, NULL));
        UNTIL(w->event, w->answered);
        assert_null(w->error);
        assert_string_equal(w->audited, audited);
}

/* The record fails: nobody was told that it is there. */
static void test_registering_fails(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *other = NULL;
        World *w = *state, second = { .event = w->event };

        assert_int_equal(ipc_client_new(&other, w->event, API), 0);
        register_twice(w, other, &second);
        assert_int_equal(ipc_call_refuse(w->waiting, "Unavailable", "full"), 0);
        w->waiting = ipc_call_unref(w->waiting);
        UNTIL(w->event, w->answered && second.answered);
        assert_non_null(strstr(w->error, "Unavailable"));
        assert_non_null(strstr(second.error, "Unavailable"));
        free(second.error);
        json_decref(second.answer);

        /* control: the next one is recorded */
        ask(w, "io.anchorhold.Secret.Register", request("code-fix", ITEM, NULL));
        UNTIL(w->event, w->answered);
        assert_null(w->error);
}

/* Released before its record is there: both hear that, and the late record brings nothing back. */
static void test_released_registering(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *other = NULL, *third = NULL;
        World *w = *state, second = { .event = w->event }, release = { .event = w->event };
        char *blob;
        size_t size;

        assert_int_equal(ipc_client_new(&other, w->event, API), 0);
        assert_int_equal(ipc_client_new(&third, w->event, API), 0);
        register_twice(w, other, &second);
        assert_int_equal(ipc_client_call_async(third, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN), NULL, 0, false, 0,
                                               on_answer, &release),
                         0);
        for (int i = 0; i < 20; i++)
                assert_true(sd_event_run(w->event, 2000) >= 0);
        /* auditd gets the two in their order */
        assert_int_equal(ipc_call_reply(w->waiting, json_pack("{s:i, s:s}", "seq", 1, "hash", "00")), 0);
        w->waiting = ipc_call_unref(w->waiting);
        UNTIL(w->event, w->answered && second.answered && release.answered);
        assert_null(release.error);
        assert_non_null(strstr(w->error, "Conflict"));
        assert_non_null(strstr(second.error, "Conflict"));
        assert_int_equal(credential(w, PEER_INJECT, "inject", &blob, &size), -EACCES);
        free(second.error);
        json_decref(second.answer);
        json_decref(release.answer);
}

/* It ends in the middle of it: nobody was told yes, nobody gets the credential, and nothing is left of it in memory (the sanitizers look). */
static void test_ends_registering(void **state) {
        World *w = *state;
        char *blob = NULL;
        size_t size;

        w->audit_waits = true;
        ask(w, "io.anchorhold.Secret.Register", request("code-fix", ITEM, NULL));
        UNTIL(w->event, w->waiting);
        assert_false(w->answered);
        assert_int_equal(credential(w, PEER_INJECT, "inject", &blob, &size), -EACCES);
}

static void test_released_meanwhile(void **state) {
        World *w = *state;

        w->audit_waits = true;
        ask(w, "io.anchorhold.Secret.Register", request("code-fix", ITEM, NULL));
        UNTIL(w->event, w->waiting);
        w->audit_waits = false;
        {
                _cleanup_(ipc_client_freep) IpcClient *other = NULL;
                World second = { .event = w->event };

                assert_int_equal(ipc_client_new(&other, w->event, API), 0);
                assert_int_equal(ipc_client_call_async(other, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN), NULL, 0, false, 0,
                                                       on_answer, &second),
                                 0);
                run_for(w->event, 30000);
                /* the two records are of one run, and go in order */
                assert_int_equal(ipc_call_reply(w->waiting, json_pack("{s:i, s:s}", "seq", 1, "hash", "00")), 0);
                w->waiting = ipc_call_unref(w->waiting);
                UNTIL(w->event, w->answered && second.answered);
                assert_null(second.error);
                json_decref(second.answer);
        }
        assert_non_null(w->error);
        assert_non_null(strstr(w->error, "Conflict"));
        assert_non_null(strstr(strstr(w->audited, "secret.registered"), "secret.released"));
}

static void test_credentials(void **state) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;
        _cleanup_json_ json_t *guest = NULL;
        World *w = *state;
        const char *sentinel;
        char *blob = NULL;
        size_t size;

        assert_int_equal(credential(w, PEER_RUN, "guest", &blob, &size), -EACCES); /* of a run that nobody registered */
        register_run_ok(w);

        assert_int_equal(credential(w, PEER_RUN, "guest", &blob, &size), 0);
        assert_null(memmem(blob, size, REAL, strlen(REAL)));
        assert_int_equal(json_parse(blob, size, &guest, NULL), 0);
        free(blob);
        sentinel = json_string_value(json_object_get(json_object_get(guest, "sentinels"), "anthropic"));
        assert_non_null(sentinel);
        assert_non_null(strstr(json_string_value(json_object_get(guest, "ca_pem")), "BEGIN CERTIFICATE"));
        assert_null(strstr(json_string_value(json_object_get(guest, "ca_pem")), "PRIVATE"));

        assert_int_equal(credential(w, PEER_INJECT, "inject", &blob, &size), 0);
        assert_int_equal(bundle_parse(&s, blob, size), 0);
        secret_erase(blob, size);
        assert_string_equal(s->run, RUN);
        assert_string_equal(s->credentials[0].sentinel, sentinel);
        assert_int_equal(secret_view(s->credentials[0].secret).size, strlen(REAL));
        assert_memory_equal(secret_view(s->credentials[0].secret).bytes, REAL, strlen(REAL));

        /* each unit its own, and nobody the other's */
        assert_int_equal(credential(w, PEER_RUN, "inject", &blob, &size), -EACCES);
        assert_int_equal(credential(w, PEER_INJECT, "guest", &blob, &size), -EACCES);
        assert_int_equal(credential(w, PEER_PROXY | PEER_ROOT | PEER_OPERATOR | PEER_ANCHORD, "inject", &blob, &size), -EACCES);
        assert_int_equal(credential(w, PEER_INJECT, "cred_anthropic", &blob, &size), -EACCES);
        UNTIL(w->event, w->audited && strstr(w->audited, "\"claimed\":\"cred_anthropic\""));
        assert_non_null(strstr(w->audited, "no such run is registered"));
        assert_null(strstr(w->audited, REAL));
}

static void on_watched(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        World *w = userdata;
        _cleanup_free_ char *text = json_canonical(params);

        append(&w->watched, text);
        w->n_watched++;
}

static void watch(World *w) {
        unsigned n = w->n_watched;

        assert_int_equal(ipc_client_call_async(w->watcher, "io.anchorhold.Secret.Watch", NULL, NULL, 0, true, 0, on_watched, w), 0);
        UNTIL(w->event, w->n_watched > n);
}

static void test_release(void **state) {
        World *w = *state;
        char *blob;
        size_t size;

        register_run_ok(w);
        watch(w);
        assert_string_equal(w->watched, "{\"revoked\":[]}\n");
        call(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN));
        assert_null(w->error);
        UNTIL(w->event, w->n_watched == 2);
        assert_non_null(strstr(w->watched, "{\"revoked\":[\"anthropic\"]}"));
        assert_non_null(strstr(w->audited, "secret.released"));
        assert_int_equal(credential(w, PEER_INJECT, "inject", &blob, &size), -EACCES);
        call(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN)); /* twice is nothing */
        assert_null(w->error);

        /* a record that fails keeps no secret alive, but is told */
        register_run_ok(w);
        w->audit_refuses = true;
        refused(w, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", RUN), "Unavailable", "released, but");
        assert_int_equal(credential(w, PEER_INJECT, "inject", &blob, &size), -EACCES);
}

static void test_restart(void **state) {
        _cleanup_free_ char *before = NULL, *after = NULL;
        World *w = *state;
        char *blob;
        size_t size;

        register_run_ok(w);
        assert_int_equal(credential(w, PEER_RUN, "guest", &before, &size), 0);
        end_life(w);
        begin_life(w);
        assert_int_equal(credential(w, PEER_RUN, "guest", &after, &size), 0);
        assert_string_equal(before, after);

        /* the credential was taken away meanwhile: revoked for the run, which goes on without it */
        end_life(w);
        w->no_credentials = true;
        begin_life(w);
        watch(w);
        assert_string_equal(w->watched, "{\"revoked\":[\"anthropic\"]}\n");
        assert_int_equal(credential(w, PEER_INJECT, "inject", &blob, &size), 0);
        assert_null(memmem(blob, size, REAL, strlen(REAL)));
        secret_erase(blob, size);
}

typedef struct Taken {
        World *w;
        bool done;
        char *error;      /* owned */
        RunSecrets *values; /* owned */
} Taken;

static void on_values(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        _cleanup_(secret_freep) Secret *bundle = NULL;
        _cleanup_fd_ int fd = -1;
        Taken *t = userdata;

        t->done = true;
        t->error = error ? strdup(error) : NULL;
        if (error)
                return;
        assert_int_equal(json_object_size(params), 0); /* no value passes a JSON library */
        fd = ipc_client_take_fd(c, 0);
        assert_int_equal(secret_read_fd(&bundle, fd), 0);
        assert_int_equal(bundle_parse(&t->values, secret_view(bundle).bytes, secret_view(bundle).size), 0);
}

static void take_values(World *w, Taken *ret) {
        *ret = (Taken) { .w = w };
        assert_int_equal(ipc_client_call_async(w->client, "io.anchorhold.Secret.Values", NULL, NULL, 0, false, 0, on_values, ret), 0);
        UNTIL(w->event, ret->done);
}

/* What a run's inject is given over its connection, and what that says to who rotated. */
static void test_values(void **state) {
        World *w = *state;
        const json_t *run;
        Taken t;

        take_values(w, &t);
        assert_string_equal(t.error, "io.anchorhold.Secret.NoSuchRun");
        free(t.error);

        register_run_ok(w);
        take_values(w, &t);
        assert_null(t.error);
        assert_true(secret_equals(t.values->credentials[0].secret, REAL, strlen(REAL)));
        run_secrets_free(t.values);

        call(w, "io.anchorhold.Secret.List", NULL);
        run = json_array_get(json_object_get(w->answer, "runs"), 0);
        assert_string_equal(json_string_value(json_object_get(run, "run")), RUN);
        assert_string_equal(json_string_value(json_array_get(json_object_get(run, "credentials"), 0)), "anthropic");
        assert_true(json_is_false(json_object_get(run, "watched")));
        watch(w);
        call(w, "io.anchorhold.Secret.List", NULL);
        assert_true(json_is_true(json_object_get(json_array_get(json_object_get(w->answer, "runs"), 0), "watched")));
        assert_string_equal(json_string_value(json_array_get(json_object_get(w->answer, "credentials"), 0)), "anthropic");

        end_life(w);
        w->no_credentials = true;
        begin_life(w);
        take_values(w, &t);
        assert_null(t.error);
        assert_null(t.values->credentials[0].secret);
        run_secrets_free(t.values);
}

/* The proxy's: what the guest has, and no value; also while a registration is being recorded once more. */
static void test_sentinels(void **state) {
        _cleanup_json_ json_t *guest = NULL;
        _cleanup_free_ char *blob = NULL;
        World *w = *state;
        size_t size;

        refused(w, "io.anchorhold.Secret.Sentinels", NULL, "NoSuchRun", "");
        register_run_ok(w);
        assert_int_equal(credential(w, PEER_RUN, "guest", &blob, &size), 0);
        guest = json_loadb(blob, size, 0, NULL);
        call(w, "io.anchorhold.Secret.Sentinels", NULL);
        assert_null(w->error);
        assert_int_equal(json_object_size(w->answer), 1);
        assert_true(json_equal(json_object_get(w->answer, "sentinels"), json_object_get(guest, "sentinels")));
        assert_int_equal(json_object_size(json_object_get(w->answer, "sentinels")), 1);

        end_life(w);
        w->audit_waits = true;
        begin_life(w);
        ask(w, "io.anchorhold.Secret.Register", request("code-fix", ITEM, NULL));
        UNTIL(w->event, w->waiting);
        ipc_client_free(w->client); /* which waits for that answer */
        assert_int_equal(ipc_client_new(&w->client, w->event, API), 0);
        call(w, "io.anchorhold.Secret.Sentinels", NULL);
        assert_null(w->error);
        assert_int_equal(json_object_size(json_object_get(w->answer, "sentinels")), 1);

        for (const IpcMethod *m = secretd_methods; m->name; m++)
                if (strcmp(m->name, "io.anchorhold.Secret.Sentinels") == 0)
                        assert_int_equal(m->roles, PEER_PROXY);
}

static void test_upstream_ca(void **state) {
        static const char pem[] = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        World *w = *state;
        char *blob = NULL;
        size_t size;

        register_run_ok(w);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/upstream-ca/x.pem", pem, strlen(pem), 0644), 0);
        assert_int_equal(credential(w, PEER_RUN, "guest", &blob, &size), 0);
        assert_non_null(strstr(blob, "AAAA"));
        free(blob);
        /* a folder that cannot be read starts no run, rather than one with less than was asked for */
        assert_int_equal(unlink("/run/upstream-ca/x.pem") | mkdir("/run/upstream-ca/x.pem", 0700), 0);
        assert_true(credential(w, PEER_RUN, "guest", &blob, &size) < 0);
        assert_int_equal(system("rm -rf /run/upstream-ca"), 0);
        assert_int_equal(credential(w, PEER_RUN, "guest", &blob, &size), 0); /* a host without any */
        free(blob);
}

static int enter_world(void **state) {
        Tree image = {};

        own_world_enter(0);
        own_world_cover("/usr/lib");
        tree_add_vendor(&image);
        assert_int_equal(mkdir("/run/credentials", 0700), 0);
        return io_write_file_atomic(AT_FDCWD, "/run/credentials/cred_anthropic", REAL "\n", strlen(REAL) + 1, 0600);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_register, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_bad_requests, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_register_takes_its_time, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_audit_refuses, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_registering, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_registering_fails, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_released_registering, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_ends_registering, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_released_meanwhile, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_credentials, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_release, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_restart, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_values, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_sentinels, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_upstream_ca, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
