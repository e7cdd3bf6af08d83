/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Changes of a run's policy by operators: what they do is in test-egress-state.c and the integration tests; here, that they hold up nobody. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "egressd-world.h"
#include "gate.h"

typedef struct Reply {
        bool answered, changed;
        char error[64]; /* without its interface; "": none */
} Reply;

static void on_reply(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Reply *reply = userdata;

        reply->answered = true;
        reply->changed = json_is_true(json_object_get(params, "changed"));
        (void) snprintf(reply->error, sizeof(reply->error), "%s", error ? strrchr(error, '.') + 1 : "");
}

static void ask(IpcClient *c, Reply *reply, const char *method, json_t *params) {
        _cleanup_free_ char *name = text_format("io.anchorhold.Egress.%s", method);

        *reply = (Reply) {};
        assert_int_equal(ipc_client_call_async(c, name, params, NULL, 0, false, 0, on_reply, reply), 0);
}

/* What the file says from now on: one rule more. */
static void write_policy(const char *name) {
        _cleanup_free_ char *text = text_format("{\"allow\": [{\"name\": \"*.example.org\", \"ports\": [443], \"tls\": \"pass\"},"
                                                " {\"name\": \"%s\", \"ports\": [443], \"tls\": \"pass\"}], \"deny\": []}", name);
        Tree image = {};

        tree_put(&image, "usr/lib/anchorhold/policy/egress/net.json", text);
}

static int set_up_policy(void **state) {
        write_policy("a.example.net");
        return set_up(state);
}

static bool is_allowed(World *w, const char *name, int port) {
        call(w, "Look", json_pack("{s:s, s:i}", "name", name, "port", port));
        assert_null(w->error);
        return strcmp(get(w, "verdict"), "pass") == 0;
}

/* Others are answered, the one under way is not. */
static void assert_others_go_on(World *w, const Reply *under_way) {
        Reply ping, again;

        for (unsigned i = 0; i < 3; i++) {
                ask(w->watcher, &ping, "Ping", NULL);
                UNTIL(w->event, ping.answered);
                assert_string_equal(ping.error, "");
        }
        ask(w->watcher, &again, "Reload", json_pack("{s:s}", "run", RUN));
        UNTIL(w->event, again.answered);
        assert_string_equal(again.error, "Conflict");
        assert_false(under_way->answered);
}

static void test_reload(void **state) {
        World *w = *state;
        Reply reply;
        Gate gate;

        register_run(w, RUN);
        write_policy("b.example.net");
        gate_close(&gate, w->e->background, EGRESSD_POLICIES_AT_ONCE);
        ask(w->client, &reply, "Reload", json_pack("{s:s}", "run", RUN));
        UNTIL(w->event, w->e->changes);
        assert_others_go_on(w, &reply);
        gate_open(&gate);
        UNTIL(w->event, reply.answered);
        assert_string_equal(reply.error, "");
        assert_true(reply.changed);
        assert_true(is_allowed(w, "b.example.net", 443));
        assert_false(is_allowed(w, "a.example.net", 443));

        /* the control: nothing changed, and nobody's conflict is left */
        ask(w->client, &reply, "Reload", json_pack("{s:s}", "run", RUN));
        UNTIL(w->event, reply.answered);
        assert_string_equal(reply.error, "");
        assert_false(reply.changed);
}

/* One rule more is worked out at once, and written down beside the loop: until then the old policy holds. */
static void test_amend(void **state) {
        World *w = *state;
        Reply reply;
        Gate gate;

        register_run(w, RUN);
        gate_close(&gate, w->e->background, EGRESSD_POLICIES_AT_ONCE);
        ask(w->client, &reply, "Amend", json_pack("{s:s, s:b, s:s}", "run", RUN, "allow", true, "rule", "db.example.net:5432/raw"));
        UNTIL(w->event, w->auditd.records && strstr(w->auditd.records, "policy.changed"));
        assert_others_go_on(w, &reply);
        gate_open(&gate);
        UNTIL(w->event, reply.answered);
        assert_string_equal(reply.error, "");
        assert_true(reply.changed);
        assert_true(is_allowed(w, "db.example.net", 5432));

        /* it is on disk, and so is what was there before */
        w->e = egressd_free(w->e);
        begin_life(w);
        assert_true(is_allowed(w, "db.example.net", 5432));
        assert_true(is_allowed(w, "a.example.net", 443));
}

static unsigned count_frozen(void) {
        return (unsigned) WEXITSTATUS(system("exit $(ls /var/lib/anchorhold/egress/frozen | wc -l)"));
}

/* Released while its policy is read, or written: the change comes to nothing, and leaves nothing. */
static void test_released(void **state) {
        World *w = *state;

        for (unsigned written = 0; written < 2; written++) {
                Reply reply, release;
                Gate gate;

                register_run(w, RUN);
                assert_int_equal(count_frozen(), 1);
                gate_close(&gate, w->e->background, EGRESSD_POLICIES_AT_ONCE);
                if (written)
                        ask(w->client, &reply, "Amend", json_pack("{s:s, s:b, s:s}", "run", RUN, "allow", true, "rule", "db.example.net:5432/raw"));
                else
                        ask(w->client, &reply, "Reload", json_pack("{s:s}", "run", RUN));
                UNTIL(w->event, w->e->changes && (!written || strstr(w->auditd.records, "policy.changed")));
                ask(w->watcher, &release, "Release", json_pack("{s:s}", "run", RUN));
                UNTIL(w->event, release.answered);
                assert_string_equal(release.error, "");
                gate_open(&gate);
                UNTIL(w->event, reply.answered && !w->e->changes);
                assert_string_equal(reply.error, "NoSuchRun");
                assert_int_equal(count_frozen(), 0);
        }
}

/* egressd ends while a policy is being read: it does not wait for ever, and what held holds. */
static void test_ended(void **state) {
        World *w = *state;
        Reply reply;
        Gate gate;

        register_run(w, RUN);
        write_policy("b.example.net");
        gate_close(&gate, w->e->background, 1); /* the other thread reads */
        ask(w->client, &reply, "Reload", json_pack("{s:s}", "run", RUN));
        UNTIL(w->event, w->e->changes);
        gate_open(&gate);
        w->e = egressd_free(w->e);
        begin_life(w);
        assert_true(is_allowed(w, "a.example.net", 443));
        assert_false(is_allowed(w, "b.example.net", 443));
}

/* ---- what a run's credentials ask of its policy ---- */

static void put_keyed(const char *allow, const char *place) {
        _cleanup_free_ char *egress = text_format("{\"allow\": [{\"name\": \"login.example.org\", \"ports\": [443], \"methods\": [\"POST\"], \"paths\": [\"/login\"]}%s]}", allow);
        _cleanup_free_ char *credential = text_format("{\"sentinel\": {\"alphabet\": \"hex\", \"length\": 40}, \"hosts\": [\"login.example.org\"], \"ports\": [443, 8443],"
                                                      " \"places\": [%s]}", place);
        Tree image = {};

        tree_put(&image, "usr/lib/anchorhold/policy/egress/keyed.json", egress);
        tree_put(&image, "usr/lib/anchorhold/policy/credentials/keyed.json", credential);
        tree_put(&image, "usr/lib/anchorhold/policy/workflows/keyed.json",
                 "{\"template\": \"base\", \"repository\": false, \"egress\": \"keyed\", \"credentials\": [\"keyed\"],"
                 " \"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"1h\"}]}");
}

#define BODY "{\"json\": \"/key\", \"method\": \"POST\", \"path\": \"/login\"}"
#define NOTES "{\"name\": \"login.example.org\", \"ports\": [443], \"methods\": [\"PUT\"], \"paths\": [\"/notes\"]}"
#define READ "{\"name\": \"login.example.org\", \"ports\": [443], \"methods\": [\"GET\"]}"

static void amend(World *w, bool allow, const char *rule) {
        call(w, "Amend", json_pack("{s:s, s:b, s:s}", "run", RUN, "allow", allow, "rule", rule));
}

static void assert_refused(const World *w, const char *reason) {
        assert_error(w, "Denied");
        if (!strstr(get(w, "reason"), reason))
                fail_msg("%s", get(w, "reason"));
}

static int set_up_keyed(void **state) {
        put_keyed("", BODY);
        return set_up(state);
}

/* Where a value may be content, no operator's word lets the run store content; nor after egressd began anew. */
static void test_bounds_of_a_live_rule(void **state) {
        World *w = *state;

        register_run_of(w, RUN, "keyed");
        for (unsigned life = 0; life < 2; life++) {
                amend(w, true, NOTES);
                assert_refused(w, "rule live/1 lets the run write elsewhere on login.example.org:443");
                assert_null(strstr(w->auditd.records ?: "", "policy.changed"));
                w->e = egressd_free(w->e);
                begin_life(w);
        }

        /* the controls: what stores nothing, what is elsewhere, a denial of anything, and a run without credentials */
        amend(w, true, READ);
        assert_null(w->error);
        amend(w, true, "notes.example.org:443");
        assert_null(w->error);
        amend(w, false, NOTES);
        assert_null(w->error);
        amend(w, false, "login.example.org");
        assert_null(w->error);
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        register_run(w, RUN);
        amend(w, true, "login.example.org:80");
        assert_null(w->error);
}

/* A permission that is taken back lets the next one decide, which may be one that could not have been given. */
static void test_bounds_of_taking_back(void **state) {
        World *w = *state;

        put_keyed("", "{\"header\": \"x-key\"}");
        register_run_of(w, RUN, "keyed");
        amend(w, true, "*.example.org:8443/tls");
        assert_refused(w, "login.example.org:8443");
        amend(w, true, "{\"name\": \"login.example.org\", \"ports\": [{\"port\": 8443, \"protocol\": \"tls\"}], \"tls\": \"inspect\"}");
        assert_null(w->error);
        amend(w, true, "*.example.org:8443/tls");
        assert_null(w->error);
        amend(w, false, "live/1");
        assert_refused(w, "login.example.org:8443");

        /* the control: the other way round */
        amend(w, false, "live/2");
        assert_null(w->error);
        amend(w, false, "live/1");
        assert_null(w->error);
}

/* The answer to a permission that a denial beats says so, changed or not; to one that holds, it does not. */
static void test_overruled(void **state) {
        World *w = *state;

        register_run(w, RUN);
        amend(w, true, "other.example.net:80");
        assert_null(w->error);
        assert_null(json_object_get(w->answer, "overruled"));
        amend(w, false, "other.example.net");
        assert_null(json_object_get(w->answer, "overruled"));
        for (unsigned i = 0; i < 2; i++) {
                const json_t *beaten;

                amend(w, true, i == 0 ? "other.example.net:80" : "{\"name\":\"other.example.net\",\"ports\":[443,80]}");
                assert_null(w->error);
                assert_int_equal(json_is_true(json_object_get(w->answer, "changed")), i == 1);
                assert_int_equal(json_array_size(json_object_get(w->answer, "overruled")), i + 1);
                beaten = json_array_get(json_object_get(w->answer, "overruled"), 0);
                assert_string_equal(json_string_value(json_object_get(beaten, "rule")), "live/2");
        }
        amend(w, true, "live/2");
        assert_true(json_is_true(json_object_get(w->answer, "changed")));
        call(w, "Explain", json_pack("{s:s, s:s, s:i}", "run", RUN, "name", "other.example.net", "port", 80));
        assert_string_equal(get(w, "verdict"), "pass");

        /* and what would end the run is not taken at all */
        amend(w, true, "{\"name\":\"metadata.google.internal\",\"ports\":[80]}");
        assert_refused(w, "metadata service");
        amend(w, true, "metadata.google.example:80");
        assert_null(w->error);
}

/* A run keeps the credentials that it began with, though the files have others by now. */
static void test_bounds_of_a_reload(void **state) {
        World *w = *state;

        register_run_of(w, RUN, "keyed");
        put_keyed(", " NOTES, "{\"header\": \"x-key\"}");
        call(w, "Reload", json_pack("{s:s}", "run", RUN));
        assert_refused(w, "rule egress/keyed.json#/allow/1 lets the run write elsewhere");
        assert_refused(w, "the run began with other credentials");
        call(w, "Explain", json_pack("{s:s, s:s, s:i, s:s, s:s}", "run", RUN, "name", "login.example.org", "port", 443, "method", "PUT", "path", "/notes"));
        assert_string_equal(get(w, "verdict"), "deny");

        /* the controls: the same without that rule, and a run that begins now */
        put_keyed(", " READ, "{\"header\": \"x-key\"}");
        call(w, "Reload", json_pack("{s:s}", "run", RUN));
        assert_null(w->error);
        assert_true(json_is_true(json_object_get(w->answer, "changed")));
        put_keyed(", " NOTES, "{\"header\": \"x-key\"}");
        register_run_of(w, OTHER, "keyed");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_reload, set_up_policy, tear_down),
                cmocka_unit_test_setup_teardown(test_amend, set_up_policy, tear_down),
                cmocka_unit_test_setup_teardown(test_released, set_up_policy, tear_down),
                cmocka_unit_test_setup_teardown(test_ended, set_up_policy, tear_down),
                cmocka_unit_test_setup_teardown(test_overruled, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_bounds_of_a_live_rule, set_up_keyed, tear_down),
                cmocka_unit_test_setup_teardown(test_bounds_of_taking_back, set_up_keyed, tear_down),
                cmocka_unit_test_setup_teardown(test_bounds_of_a_reload, set_up_keyed, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
