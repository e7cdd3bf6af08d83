/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The whole of egressd: what it grants, and that nothing is granted without a record. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "egressd-world.h"

/* ---- registration and names ---- */

static void test_register(void **state) {
        World *w = *state;
        _cleanup_free_ char *digest = NULL;

        register_run(w, RUN);
        digest = strdup(get(w, "digest"));
        assert_int_equal(strlen(digest), 64);
        assert_non_null(strstr(w->auditd.records, "egress.registered"));
        register_run(w, RUN);
        assert_string_equal(get(w, "digest"), digest);

        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", RUN, "workflow", "net", "stage", "verify"));
        assert_error(w, "Conflict");
        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", OTHER, "workflow", "nothing", "stage", "work"));
        assert_error(w, "BadInput");
        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", "r1", "workflow", "net", "stage", "work"));
        assert_error(w, "BadInput");
        call(w, "Register", json_pack("{s:s, s:s, s:s, s:s}", "run", OTHER, "workflow", "net", "stage", "work", "allow", "*"));
        assert_error(w, "BadInput");

        w->auditd.refuses = "egress.registered";
        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", OTHER, "workflow", "net", "stage", "work"));
        assert_error(w, "Unavailable");
        assert_int_equal(egress_state_count(w->e->state), 1); /* what is not on record did not happen */
}

/* The same if the record cannot even be sent: so many of that run wait already. */
static void test_register_without_room_for_the_record(void **state) {
        World *w = *state;
        int r;

        w->auditd.waits = true;
        do
                r = audit_append(w->e->audit, "conn.close", OTHER, NULL, NULL, json_object(), NULL, NULL);
        while (r >= 0);
        assert_int_equal(r, -EBUSY);
        call(w, "Register", json_pack("{s:s, s:s, s:s}", "run", OTHER, "workflow", "net", "stage", "work"));
        assert_error(w, "Unavailable");
        assert_null(egress_state_find(w->e->state, OTHER));
        w->auditd.waits = false;
        register_run(w, RUN); /* and the control: another lane */
}

/* Runs whose requests all wait for silent servers, and one that asks now and then. */
static void test_each_run_has_its_share(void **state) {
        enum { FLOODERS = 10 };
        const size_t share = EGRESSD_REQUESTS_MAX / (FLOODERS + 1);
        _cleanup_free_ char *address = NULL;
        EgressRun *runs[FLOODERS];
        char id[ID_LENGTH + 1];
        World *w = *state;

        /* to begin with a few have all that there is, each as much as it may */
        register_run(w, RUN);
        for (unsigned i = 0; i < FLOODERS; i++) {
                (void) snprintf(id, sizeof(id), "r00000000000%u", i);
                register_run(w, id);
                assert_non_null(runs[i] = egress_state_find(w->e->state, id));
        }
        for (size_t i = 0; i < FLOODERS && w->e->n_requests < EGRESSD_REQUESTS_MAX; i++) {
                runs[i]->n_requests = EGRESSD_REQUESTS_MAX - w->e->n_requests < EGRESSD_REQUESTS_OF_RUN_MAX ? EGRESSD_REQUESTS_MAX - w->e->n_requests : EGRESSD_REQUESTS_OF_RUN_MAX;
                w->e->n_requests += runs[i]->n_requests;
        }
        address = resolve(w, "good.example.org");
        connect_tls(w, address, "good.example.org");
        assert_null(w->error);
        assert_string_equal(get(w, "verdict"), "pass");

        /* who has its share gets no more of what others are entitled to, and who has less does */
        for (size_t i = 0; i < 2; i++) {
                _cleanup_free_ char *own = NULL;

                w->as_run = runs[0]->id;
                own = resolve(w, "good.example.org");
                w->e->n_requests -= runs[0]->n_requests;
                runs[0]->n_requests = i == 0 ? share : share - 1;
                w->e->n_requests += runs[0]->n_requests;
                connect_tls(w, own, "good.example.org");
                assert_int_equal(w->error != NULL, i == 0);
        }

        /* with one that is quiet, as many as a run may have */
        for (size_t i = 0; i < FLOODERS; i++) {
                w->e->n_requests -= runs[i]->n_requests;
                runs[i]->n_requests = 0;
                if (i > 0) {
                        call(w, "Release", json_pack("{s:s}", "run", runs[i]->id));
                        assert_null(w->error);
                }
        }
        w->e->n_requests = runs[0]->n_requests = EGRESSD_REQUESTS_OF_RUN_MAX - 1;
        for (size_t i = 0; i < 2; i++) {
                _cleanup_free_ char *own = resolve(w, "good.example.org");

                connect_tls(w, own, "good.example.org");
                assert_int_equal(w->error != NULL, i == 1);
                w->e->n_requests = runs[0]->n_requests = EGRESSD_REQUESTS_OF_RUN_MAX;
        }
        w->e->n_requests = runs[0]->n_requests = 0;
}

typedef struct Reply {
        bool answered;
        char error[64]; /* without its interface; "": none */
} Reply;

static void on_reply(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Reply *reply = userdata;

        reply->answered = true;
        (void) snprintf(reply->error, sizeof(reply->error), "%s", error ? strrchr(error, '.') + 1 : "");
}

static void ask_for(IpcClient *c, Reply *reply, const char *method, const char *run, const char *workflow) {
        _cleanup_free_ char *name = text_format("io.anchorhold.Egress.%s", method);

        *reply = (Reply) {};
        assert_int_equal(ipc_client_call_async(c, name, json_pack("{s:s, s:s*, s:s*}", "run", run, "workflow", workflow, "stage", workflow ? "work" : NULL),
                                               NULL, 0, false, 0, on_reply, reply),
                         0);
}

static int count_frozen(void) {
        return WEXITSTATUS(system("exit $(ls /var/lib/anchorhold/egress/frozen | wc -l)"));
}

/* While a policy is being frozen others are answered, whoever asks for the same run waits, and a release is heard. */
static void test_register_takes_its_time(void **state) {
        World *w = *state;
        Reply first, second;

        ask_for(w->client, &first, "Register", RUN, "net");
        UNTIL(w->event, w->e->registrations);
        ask_for(w->watcher, &second, "Register", RUN, "net");
        UNTIL(w->event, first.answered && second.answered);
        assert_string_equal(first.error, "");
        assert_string_equal(second.error, "");
        assert_non_null(strstr(w->auditd.records, "egress.registered"));
        assert_null(strstr(strstr(w->auditd.records, "egress.registered") + 1, "egress.registered"));
        assert_int_equal(count_frozen(), 1);

        ask_for(w->client, &first, "Register", OTHER, "net");
        UNTIL(w->event, w->e->registrations);
        ask_for(w->watcher, &second, "Register", OTHER, "nothing");
        UNTIL(w->event, first.answered && second.answered);
        assert_string_equal(first.error, "");
        assert_string_equal(second.error, "Conflict");
        call(w, "Release", json_pack("{s:s}", "run", OTHER));
        assert_int_equal(count_frozen(), 1);

        /* released before it was there */
        ask_for(w->client, &first, "Register", OTHER, "net");
        UNTIL(w->event, w->e->registrations);
        ask_for(w->watcher, &second, "Release", OTHER, NULL);
        UNTIL(w->event, first.answered && second.answered);
        assert_string_equal(first.error, "Conflict");
        assert_string_equal(second.error, "");
        assert_int_equal(egress_state_count(w->e->state), 1);
        assert_int_equal(count_frozen(), 1);

        /* and the control */
        register_run(w, OTHER);
        assert_int_equal(count_frozen(), 2);
}

static void test_names(void **state) {
        _cleanup_free_ char *good = NULL, *again = NULL, *meta = NULL, *after = NULL;
        World *w = *state;

        call(w, "Resolve", json_pack("{s:s, s:s}", "name", "good.example.org", "qtype", "A"));
        assert_string_equal(get(w, "verdict"), "refused"); /* nobody registered this run */
        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        again = resolve(w, "Good.Example.ORG");
        meta = resolve(w, "meta.example.org");
        assert_true(strncmp(good, "198.18.", 7) == 0 || strncmp(good, "198.19.", 7) == 0);
        assert_string_equal(good, again);
        assert_string_not_equal(good, meta);
        assert_int_equal(w->n_lookups, 0); /* a question of the guest's leaves the host only when it connects */

        call(w, "Resolve", json_pack("{s:s, s:s}", "name", "evil.example.com", "qtype", "A"));
        assert_string_equal(get(w, "verdict"), "refused");
        UNTIL(w->event, strstr(w->auditd.records, "evil.example.com"));
        call(w, "Resolve", json_pack("{s:s, s:s}", "name", "good.example.org", "qtype", "TXT"));
        assert_string_equal(get(w, "verdict"), "refused");

        /* names keep their addresses over a restart */
        w->e = egressd_free(w->e);
        begin_life(w);
        after = resolve(w, "good.example.org");
        assert_string_equal(good, after);
}

static void ask_name(World *w, const char *name, const char *qtype) {
        call(w, "Resolve", json_pack("{s:s, s:s}", "name", name, "qtype", qtype));
        assert_null(w->error);
}

/* A name below a wildcard counts by whichever type it is asked for first, and is known by all of them from then on. */
static void test_name_budget(void **state) {
        static const char *const types[] = { "AAAA", "HTTPS", "SVCB", "A" };
        World *w = *state;
        char name[64];

        register_run(w, RUN);
        for (unsigned i = 0; i < 64; i++) {
                (void) snprintf(name, sizeof(name), "n%u.example.org", i);
                ask_name(w, name, types[i % ELEMENTSOF(types)]);
                assert_string_equal(get(w, "verdict"), "allow");
                assert_int_equal(json_object_get(w->answer, "address") != NULL, i % ELEMENTSOF(types) == 3);
        }
        UNTIL(w->event, strstr(w->auditd.records, "\"n0.example.org\""));
        assert_non_null(strstr(w->auditd.records, "dns.allow"));

        for (size_t i = 0; i < ELEMENTSOF(types); i++) {
                (void) snprintf(name, sizeof(name), "m%zu.example.org", i);
                ask_name(w, name, types[i]);
                assert_string_equal(get(w, "verdict"), "refused");
                assert_string_equal(get(w, "reason"), "name-budget");
                UNTIL(w->event, strstr(w->auditd.records, name));
        }

        for (size_t i = 0; i < 2 * ELEMENTSOF(types); i++) {
                (void) snprintf(name, sizeof(name), "n%zu.example.org", i % 2);
                ask_name(w, name, types[i / 2]);
                assert_string_equal(get(w, "verdict"), "allow");
        }
        assert_non_null(json_object_get(w->answer, "address"));
}

/* ---- connections ---- */

static void test_connect(void **state) {
        _cleanup_free_ char *good = NULL;
        World *w = *state;
        json_int_t grant;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        call(w, "Look", json_pack("{s:s, s:i}", "address", good, "port", 443));
        assert_string_equal(get(w, "verdict"), "pass");
        assert_string_equal(get(w, "name"), "good.example.org");
        assert_int_equal(n_granted() + (int) w->n_lookups, 0);

        connect_tls(w, good, "good.example.org");
        assert_null(w->error);
        assert_string_equal(get(w, "verdict"), "pass");
        assert_string_equal(json_string_value(json_array_get(json_object_get(w->answer, "addresses"), 0)), "203.0.113.7");
        assert_int_equal(n_granted(), 1);
        assert_int_equal(w->n_granted_before, 0); /* the kernel opened nothing that was not on record */
        assert_int_equal(n_live(), 1);
        assert_string_equal(get(w, "workflow"), "net");
        assert_string_equal(get(w, "stage"), "work");
        assert_non_null(strstr(w->auditd.records, "egress.allow"));
        grant = json_integer_value(json_object_get(w->answer, "grant"));
        assert_true(grant > 0);

        /* another run cannot end it */
        w->as_run = OTHER;
        register_run(w, OTHER);
        call(w, "Done", json_pack("{s:I, s:i, s:i, s:i}", "grant", grant, "bytes_in", 1, "bytes_out", 2, "duration_us", 3));
        assert_int_equal(n_granted(), 1);
        w->as_run = RUN;
        call(w, "Done", json_pack("{s:I, s:i, s:i, s:i}", "grant", grant, "bytes_in", 1, "bytes_out", 2, "duration_us", 3));
        assert_null(w->error);
        assert_int_equal(n_granted(), 0);
        UNTIL(w->event, strstr(w->auditd.records, "conn.close"));
}


/* Of a connection that says nothing: where its name leads is known without a grant. */
static void test_look_further(void **state) {
        _cleanup_free_ char *good = NULL, *meta = NULL;
        World *w = *state;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        meta = resolve(w, "meta.example.org");
        call(w, "Look", json_pack("{s:s, s:i, s:b}", "address", meta, "port", 443, "resolve", true));
        assert_denied(w, "metadata");
        UNTIL(w->event, strstr(w->auditd.records, "egress.deny"));
        call(w, "Look", json_pack("{s:s, s:i, s:b}", "address", meta, "port", 443, "resolve", false));
        assert_string_equal(get(w, "verdict"), "pass");

        call(w, "Look", json_pack("{s:s, s:i, s:b}", "address", good, "port", 443, "resolve", true));
        assert_string_equal(get(w, "verdict"), "pass");
        assert_string_equal(get(w, "protocol"), "tls");
        assert_null(json_object_get(w->answer, "addresses"));
        assert_int_equal(n_granted() + n_live(), 0);
        assert_null(strstr(w->auditd.records, "egress.allow"));
        assert_int_equal(w->e->n_requests, 0);
}

static void test_unrecorded(void **state) {
        _cleanup_free_ char *good = NULL;
        World *w = *state;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        w->auditd.refuses = "egress.allow";
        connect_tls(w, good, "good.example.org");
        assert_denied(w, "unavailable");
        assert_int_equal(n_granted(), 0);
        w->auditd.refuses = NULL;
        fakes[0].limit = 0; /* on record, and then there is no room */
        connect_tls(w, good, "good.example.org");
        assert_denied(w, "unavailable");
        assert_int_equal(n_granted() + n_live(), 0);
        fakes[0].limit = ENTRIES_MAX;
        connect_tls(w, good, "good.example.org");
        assert_string_equal(get(w, "verdict"), "pass");
}

/* ---- the end of grants ---- */

static void on_watched(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        json_t *revoked = json_object_get(params, "revoked"), *streams = json_array_get(json_object_get(params, "streams"), 0),
               *numbers = json_object_get(streams, "streams");
        World *w = userdata;

        w->n_beats++;
        for (size_t i = 0; i < json_array_size(numbers) && w->n_streams < ELEMENTSOF(w->streams); i++)
                w->streams[w->n_streams++] = json_integer_value(json_array_get(numbers, i));
        if (streams)
                w->stream_grant = json_integer_value(json_object_get(streams, "grant"));
        if (json_array_size(revoked) > 0)
                w->revoked = json_integer_value(json_array_get(revoked, 0));
}

static void test_release(void **state) {
        _cleanup_free_ char *good = NULL, *new = NULL;
        World *w = *state;
        const char *closed;
        json_int_t grant;

        register_run(w, RUN);
        assert_int_equal(ipc_client_call_async(w->watcher, "io.anchorhold.Egress.Watch", NULL, NULL, 0, true, 0, on_watched, w), 0);
        UNTIL(w->event, w->n_beats > 0);
        assert_int_equal(fakes[2].n, 1); /* the kernel was told, too */
        good = resolve(w, "good.example.org");
        connect_tls(w, good, "good.example.org");
        grant = json_integer_value(json_object_get(w->answer, "grant"));
        connect_tls(w, good, "good.example.org"); /* once more to the same */
        assert_int_equal(n_granted(), 1);
        assert_null(strstr(w->auditd.records, "conn.close"));

        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_null(w->error);
        assert_int_equal(n_granted(), 0);
        UNTIL(w->event, w->revoked == grant && strstr(w->auditd.records, "egress.released"));
        closed = strstr(w->auditd.records, "conn.close");
        assert_non_null(closed);
        assert_null(strstr(closed + 1, "conn.close")); /* one record for the two */
        assert_non_null(strstr(w->auditd.records, "\"reason\":\"released\""));
        assert_non_null(strstr(w->auditd.records, "\"count\":2"));
        connect_tls(w, good, "good.example.org");
        assert_string_equal(get(w, "verdict"), "deny");
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_null(w->error);
}

#define INSPECTED "good.inspected.org"

/* ---- a request that names another path as well ---- */

static void ask_with_second_path(World *w, const char *name, const char *path, bool second_path) {
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:b}", "name", name, "port", 443, "protocol", "tls", "sni", name, "host", name, "method", "MOVE",
                                     "path", path, "second_path", second_path));
        assert_null(w->error);
}

/* Where rules have paths it is refused, whatever it names; elsewhere it is like any other. */
static void test_second_path(void **state) {
        World *w = *state;

        register_run(w, RUN);
        ask_with_second_path(w, INSPECTED, "/v1/a", true);
        assert_denied(w, "second-path");
        assert_string_equal(get(w, "rule"), "egress/net.json#/allow/1");
        UNTIL(w->event, strstr(w->auditd.records, "\"reason\":\"second-path\""));
        ask_with_second_path(w, INSPECTED, "/v2/a", true);
        assert_denied(w, "path");

        /* the controls: without it, and where no rule has a path */
        ask_with_second_path(w, INSPECTED, "/v1/a", false);
        assert_string_equal(get(w, "reason"), "allowed");
        ask_with_second_path(w, "good.example.org", "/v1/a", true);
        assert_string_equal(get(w, "reason"), "allowed");
}

/* ---- several requests on one connection ---- */

/* As inject asks: about the connection (path NULL), or about a request on it. */
static void ask_of_inject(World *w, const char *path, json_int_t within, int stream, json_t *open) {
        json_t *params = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s*, s:s*}", "name", INSPECTED, "port", 443, "protocol", "tls", "sni", INSPECTED, "host",
                                   INSPECTED, "method", path ? "GET" : NULL, "path", path);

        if (within > 0)
                assert_int_equal(json_object_set_new(params, "within", json_integer(within)), 0);
        if (stream > 0)
                assert_int_equal(json_object_set_new(params, "stream", json_integer(stream)), 0);
        if (open)
                assert_int_equal(json_object_set_new(params, "open", open), 0);
        call(w, "Connect", params);
        assert_null(w->error);
}

static unsigned deny_path(World *w, const char *path) {
        _cleanup_free_ char *rule = text_format("{\"name\": \"" INSPECTED "\", \"paths\": [\"%s\"]}", path);

        call(w, "Amend", json_pack("{s:s, s:b, s:s}", "run", RUN, "allow", 0, "rule", rule));
        if (w->error)
                fail_msg("%s %s", w->error, get(w, "reason"));
        return (unsigned) json_integer_value(json_object_get(w->answer, "cut"));
}

/* Of a live change's streams those are cut that it does not allow; the others go on with their connection, until that is not allowed either. */
static void test_streams(void **state) {
        World *w = *state;
        json_int_t grant;

        register_run(w, RUN);
        w->as_role = PEER_INJECT;
        w->as_unit = "anchor-inject@" RUN ".service";
        assert_int_equal(ipc_client_call_async(w->watcher, "io.anchorhold.Egress.Watch", NULL, NULL, 0, true, 0, on_watched, w), 0);
        UNTIL(w->event, w->n_beats > 0);
        ask_of_inject(w, NULL, 0, 0, NULL);
        assert_string_equal(get(w, "verdict"), "pass");
        assert_null(json_object_get(w->answer, "covers"));
        grant = json_integer_value(json_object_get(w->answer, "grant"));

        ask_of_inject(w, "/v1/over", grant, 1, json_pack("[i]", 1));
        ask_of_inject(w, "/v1/stays", grant, 3, json_pack("[ii]", 1, 3));
        ask_of_inject(w, "/v1/goes", grant, 7, json_pack("[iii]", 3, 5, 7)); /* overtook the one before; the first is over */
        ask_of_inject(w, "/v1/goes/too", grant, 5, json_pack("[ii]", 3, 5));
        ask_of_inject(w, "/v1/last", grant, 9, json_pack("[iiii]", 3, 5, 7, 9));
        assert_string_equal(get(w, "verdict"), "pass");
        ask_of_inject(w, "/elsewhere", grant, 11, json_pack("[i]", 11));
        assert_denied(w, "path");

        assert_int_equal(deny_path(w, "/v1/nobody"), 0);
        assert_int_equal(deny_path(w, "/v1/over"), 0);
        assert_int_equal(deny_path(w, "/v1/goes"), 2);
        UNTIL(w->event, w->n_streams == 2);
        assert_int_equal(w->streams[0] + w->streams[1], 5 + 7);
        assert_int_equal(w->stream_grant, grant);
        assert_int_equal(w->revoked, 0);
        assert_int_equal(n_live(), 1);
        ask_of_inject(w, "/v1/goes", grant, 13, json_pack("[ii]", 3, 13));
        assert_denied(w, "denied-by-rule");
        ask_of_inject(w, "/v1/more", grant, 15, json_pack("[ii]", 3, 15));
        assert_string_equal(get(w, "verdict"), "pass"); /* the connection goes on */

        /* one that carries one request at a time, of which inject asks about the next when the one before is over, is judged by the latest: cut, or not */
        ask_of_inject(w, "/v1/a", 0, 0, NULL);
        grant = json_integer_value(json_object_get(w->answer, "grant"));
        ask_of_inject(w, "/v1/b", grant, 0, NULL);
        assert_int_equal(deny_path(w, "/v1/a"), 0);
        assert_int_equal(deny_path(w, "/v1/b"), 1);
        UNTIL(w->event, w->revoked == grant);

        call(w, "Amend", json_pack("{s:s, s:b, s:s}", "run", RUN, "allow", 0, "rule", INSPECTED));
        assert_int_equal(json_integer_value(json_object_get(w->answer, "cut")), 1); /* with all that is on it */
        assert_int_equal(n_live(), 0);
        assert_int_equal(w->n_streams, 2);
}

static void test_too_many_streams(void **state) {
        json_t *open = json_array();
        World *w = *state;
        json_int_t grant;

        register_run(w, RUN);
        w->as_role = PEER_INJECT;
        w->as_unit = "anchor-inject@" RUN ".service";
        ask_of_inject(w, NULL, 0, 0, NULL);
        grant = json_integer_value(json_object_get(w->answer, "grant"));
        for (int i = 1; i <= EGRESS_STREAMS_MAX; i++) {
                assert_int_equal(json_array_append_new(open, json_integer(i)), 0);
                ask_of_inject(w, "/v1/x", grant, i, json_deep_copy(open));
                assert_string_equal(get(w, "verdict"), "pass");
        }
        ask_of_inject(w, "/v1/x", grant, EGRESS_STREAMS_MAX + 1, json_deep_copy(open));
        assert_denied(w, "unavailable");
        assert_int_equal(json_array_append_new(open, json_integer(1000)), 0);
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:O}", "name", INSPECTED, "port", 443, "protocol", "tls", "open", open));
        assert_error(w, "BadInput");
        ask_of_inject(w, "/v1/x", grant, 2000, json_pack("[i]", 2000)); /* all others are over */
        assert_string_equal(get(w, "verdict"), "pass");
        json_decref(open);
}

/* An owner that does not listen cannot end one of them alone. */
static void test_streams_without_a_watcher(void **state) {
        World *w = *state;
        json_int_t grant;

        register_run(w, RUN);
        w->as_role = PEER_INJECT;
        w->as_unit = "anchor-inject@" RUN ".service";
        ask_of_inject(w, NULL, 0, 0, NULL);
        grant = json_integer_value(json_object_get(w->answer, "grant"));
        ask_of_inject(w, "/v1/goes", grant, 1, json_pack("[i]", 1));
        ask_of_inject(w, "/v1/stays", grant, 3, json_pack("[ii]", 1, 3));
        assert_int_equal(deny_path(w, "/v1/nobody"), 0);
        assert_int_equal(n_live(), 1);
        assert_int_equal(deny_path(w, "/v1/goes"), 1);
        assert_int_equal(n_live(), 0);
}

/* However often its policy was changed, the end of a run is on record; who asked gets all of them. */
static void test_release_of_many_policies(void **state) {
        World *w = *state;
        EgressRun *run;
        char digest[HEX_SHA256_SIZE];

        register_run(w, RUN);
        run = egress_state_find(w->e->state, RUN);
        for (int i = 1; i < 2000; i++) {
                (void) snprintf(digest, sizeof(digest), "%064d", i);
                assert_int_equal(json_array_append_new(run->digests, json_string(digest)), 0);
        }
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_null(w->error);
        assert_int_equal(json_array_size(json_object_get(w->answer, "digests")), 2000);
        UNTIL(w->event, strstr(w->auditd.records, "egress.released"));
        assert_non_null(strstr(w->auditd.records, "\"n_digests\":2000"));
        assert_non_null(strstr(w->auditd.records, "001999\"]"));
        assert_non_null(strstr(w->auditd.records, "001873\""));
        assert_null(strstr(w->auditd.records, "001872\""));
}

/* A new life goes on with the runs that it knows; without any it closes what the kernel still has. */
static void test_restart(void **state) {
        _cleanup_free_ char *good = NULL;
        World *w = *state;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        connect_tls(w, good, "good.example.org");
        assert_int_equal(n_granted(), 1);
        w->e = egressd_free(w->e);
        assert_int_equal(n_granted(), 1); /* open connections go on meanwhile */
        begin_life(w);
        assert_int_equal(n_granted(), 0);
        assert_int_equal(n_live(), 1); /* … and on; only new ones need a new grant */
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_int_equal(n_live(), 0);

        w->e = egressd_free(w->e);
        assert_int_equal(bpf_map_update_elem(fakes[1].fd, &(uint64_t) { 5 }, &(struct fence_key) { .port = 5 }, 0), 0);
        begin_life(w);
        assert_int_equal(n_live(), 0);
}

/* One that ended between a grant's being written down and its being opened: it is nobody's, and does not count against the run for ever. */
static void test_restart_amid_a_grant(void **state) {
        _cleanup_free_ char *good = NULL;
        World *w = *state;

        register_run(w, RUN);
        good = resolve(w, "good.example.org");
        connect_tls(w, good, "good.example.org");
        w->auditd.waits = true;
        w->answered = false;
        w->answer = json_unref(w->answer);
        assert_int_equal(ipc_client_call_async(w->client, "io.anchorhold.Egress.Connect",
                                               json_pack("{s:s, s:i, s:s, s:s}", "name", "fine.example.org", "port", 443, "protocol", "tls", "sni", "fine.example.org"),
                                               NULL, 0, false, 0, on_answer, w),
                         0);
        UNTIL(w->event, w->auditd.waiting);
        assert_int_equal(egress_state_find(w->e->state, RUN)->n_addresses, 2);
        w->auditd.waits = false;
        w->e = egressd_free(w->e);
        UNTIL(w->event, w->answered);
        assert_non_null(w->error);
        begin_life(w);
        assert_int_equal(egress_state_find(w->e->state, RUN)->n_addresses, 1);
        UNTIL(w->event, strstr(w->auditd.records, "\"reason\":\"never-made\""));
        assert_int_equal(n_live(), 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_register, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_register_without_room_for_the_record, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_each_run_has_its_share, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_register_takes_its_time, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_names, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_name_budget, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_connect, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_look_further, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_unrecorded, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_release, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_second_path, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_streams, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_too_many_streams, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_streams_without_a_watcher, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_release_of_many_policies, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_restart, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_restart_amid_a_grant, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
