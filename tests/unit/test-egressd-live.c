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
                                                " {\"name\": \"%s\", \"ports\": [443], \"tls\": \"pass\"}], \"deny\": []}",
                                                name);
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
        static Gate gate = GATE_OPEN;

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
        static Gate gate = GATE_OPEN;

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
                static Gate gate = GATE_OPEN;

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
        static Gate gate = GATE_OPEN;

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
                                                      " \"places\": [%s]}",
                                                      place);
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

/* ---- several requests on one connection in the clear ---- */

#define CLEAR "good.example.org"

static json_t *clear_params(const char *name, const char *path, bool second_path) {
        return json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:b}", "name", name, "port", 80, "protocol", "http", "host", name, "method", "GET", "path", path, "second_path",
                         second_path);
}

/* As a proxy asks: about the first request on a connection, or about a further one, which may come before the answer to those before it. Its grant. */
static json_int_t ask_in_the_clear_of(World *w, const char *path, bool second_path, json_int_t within) {
        json_t *params = clear_params(CLEAR, path, second_path);

        if (within > 0)
                assert_int_equal(json_object_set_new(params, "within", json_integer(within)), 0);
        call(w, "Connect", params);
        assert_null(w->error);
        assert_string_equal(get(w, "verdict"), "pass");
        return within > 0 ? within : json_integer_value(json_object_get(w->answer, "grant"));
}

static json_int_t ask_in_the_clear(World *w, const char *path, json_int_t within) {
        return ask_in_the_clear_of(w, path, false, within);
}

static void begin_in_the_clear(World *w) {
        register_run(w, RUN);
        amend(w, true, CLEAR ":80");
        assert_null(w->error);
}

/* How many connections that cuts. */
static json_int_t deny_path(World *w, const char *path) {
        _cleanup_free_ char *rule = text_format("{\"name\": \"" CLEAR "\", \"ports\": [80], \"paths\": [\"%s\"]}", path);

        amend(w, false, rule);
        assert_null(w->error);
        return json_integer_value(json_object_get(w->answer, "cut"));
}

/* Whatever was asked for on it may still be under way: whichever of it is denied. */
static void test_pipelined(void **state) {
        World *w = *state;
        json_int_t first, second;

        begin_in_the_clear(w);
        first = ask_in_the_clear(w, "/slow?1", 0);
        (void) ask_in_the_clear(w, "/quick", first);
        (void) ask_in_the_clear(w, "/quick", first);
        second = ask_in_the_clear(w, "/quick", 0);
        (void) ask_in_the_clear(w, "/last", second);
        assert_int_equal(n_live(), 1); /* the same place */

        assert_int_equal(deny_path(w, "/nobody"), 0);
        assert_int_equal(deny_path(w, "/slow"), 1);
        assert_null(egress_run_find_grant(egress_state_find(w->e->state, RUN), (uint64_t) first, 77));
        assert_non_null(egress_run_find_grant(egress_state_find(w->e->state, RUN), (uint64_t) second, 77));
        assert_int_equal(n_live(), 1);
        assert_int_equal(deny_path(w, "/last"), 1);
        assert_int_equal(n_live(), 0);
}

/* Which other path a request was about nobody knows: as soon as a rule has one, its connection is cut; one about methods alone is no reason. */
static void test_second_path(void **state) {
        json_int_t first, later, control;
        World *w = *state;

        begin_in_the_clear(w);
        first = ask_in_the_clear_of(w, "/first", true, 0);
        later = ask_in_the_clear(w, "/first", 0);
        (void) ask_in_the_clear_of(w, "/later", true, later);
        control = ask_in_the_clear(w, "/first", 0);
        amend(w, false, "{\"name\": \"" CLEAR "\", \"ports\": [80], \"methods\": [\"PUT\"]}");
        assert_null(w->error);
        assert_int_equal(json_integer_value(json_object_get(w->answer, "cut")), 0);
        assert_int_equal(deny_path(w, "/nobody"), 2);
        assert_null(egress_run_find_grant(egress_state_find(w->e->state, RUN), (uint64_t) first, 77));
        assert_null(egress_run_find_grant(egress_state_find(w->e->state, RUN), (uint64_t) later, 77));
        assert_non_null(egress_run_find_grant(egress_state_find(w->e->state, RUN), (uint64_t) control, 77));
}

/* And one that is being decided meanwhile is refused. */
static void test_second_path_under_way(void **state) {
        static const char *const names[] = { CLEAR, "fine.example.org" }; /* the first without, as a control */
        World *w = *state;

        begin_in_the_clear(w);
        amend(w, true, "fine.example.org:80");
        for (unsigned second_path = 0; second_path < 2; second_path++) {
                _cleanup_free_ char *rule = text_format("{\"name\": \"%s\", \"ports\": [80], \"paths\": [\"/nobody\"]}", names[second_path]);
                Reply asked, denied;

                assert_true(sd_event_source_set_enabled(w->dns, SD_EVENT_OFF) >= 0);
                ask(w->watcher, &asked, "Connect", clear_params(names[second_path], "/waits", second_path));
                UNTIL(w->event, w->e->n_requests == 1);
                ask(w->client, &denied, "Amend", json_pack("{s:s, s:b, s:s}", "run", RUN, "allow", 0, "rule", rule));
                UNTIL(w->event, denied.answered);
                assert_string_equal(denied.error, "");
                assert_int_equal(w->e->n_requests, 1);
                assert_true(sd_event_source_set_enabled(w->dns, SD_EVENT_ON) >= 0);
                UNTIL(w->event, asked.answered);
                if (second_path)
                        UNTIL(w->event, strstr(w->auditd.records, "\"reason\":\"second-path\""));
                assert_int_equal(n_live(), 1);
        }
}

/* More than are remembered, in number or in length: then nobody knows what is under way, and it is cut as soon as the policy has something to weigh. */
static void test_too_many_to_remember(void **state) {
        char path[EGRESS_LISTED_SIZE_MAX + 2] = "/";
        World *w = *state;

        begin_in_the_clear(w);
        for (unsigned longest = 0; longest < 2; longest++) {
                json_int_t many = ask_in_the_clear(w, "/first", 0), few = ask_in_the_clear(w, "/first", 0);

                for (unsigned i = 0; i < (longest ? 1 : EGRESS_LISTED_MAX); i++) {
                        (void) snprintf(path, sizeof(path), "/%0*u", longest ? EGRESS_LISTED_SIZE_MAX : 1, i);
                        (void) ask_in_the_clear(w, path, many);
                        if (i + 1 < EGRESS_LISTED_MAX)
                                (void) ask_in_the_clear(w, longest ? "/second" : path, few);
                }
                amend(w, true, longest ? "b.example.net:80" : "a.example.net:80"); /* nothing to weigh */
                assert_int_equal(json_integer_value(json_object_get(w->answer, "cut")), 0);
                assert_int_equal(deny_path(w, longest ? "/nobody" : "/no"), 1);
                assert_null(egress_run_find_grant(egress_state_find(w->e->state, RUN), (uint64_t) many, 77));
                assert_non_null(egress_run_find_grant(egress_state_find(w->e->state, RUN), (uint64_t) few, 77));
                amend(w, true, longest ? "live/5" : "live/3"); /* the denial is taken back */
                if (w->error)
                        fail_msg("%s", get(w, "reason"));
                assert_true(json_is_true(json_object_get(w->answer, "changed")));
        }
}

/* What was asked about in an earlier life nobody knows any more. In TLS that is passed on there is nothing to know. */
static void test_asked_in_an_earlier_life(void **state) {
        World *w = *state;

        begin_in_the_clear(w);
        (void) ask_in_the_clear(w, "/slow", 0);
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s}", "name", CLEAR, "port", 443, "protocol", "tls", "sni", CLEAR));
        assert_string_equal(get(w, "verdict"), "pass");
        w->e = egressd_free(w->e);
        begin_life(w);
        assert_int_equal(n_live(), 2);
        assert_int_equal(deny_path(w, "/slow"), 1);
        assert_int_equal(n_live(), 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_reload, set_up_policy, tear_down),
                cmocka_unit_test_setup_teardown(test_amend, set_up_policy, tear_down),
                cmocka_unit_test_setup_teardown(test_released, set_up_policy, tear_down),
                cmocka_unit_test_setup_teardown(test_ended, set_up_policy, tear_down),
                cmocka_unit_test_setup_teardown(test_overruled, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_pipelined, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_second_path, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_second_path_under_way, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_too_many_to_remember, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_asked_in_an_earlier_life, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_bounds_of_a_live_rule, set_up_keyed, tear_down),
                cmocka_unit_test_setup_teardown(test_bounds_of_taking_back, set_up_keyed, tear_down),
                cmocka_unit_test_setup_teardown(test_bounds_of_a_reload, set_up_keyed, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
