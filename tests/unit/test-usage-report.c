/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What model calls used is in the ledger and in the audit log, whoever of them was away, and although the process ends. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "audit/audit-api.h"
#include "inject/usage-report.h"
#include "ipc/ipc.h"
#include "ledger/usage-limits.h"
#include "own-world.h"
#include "util/json.h"

#define RUN "r0123456789ab"
#define RUN_API "/run/run-api.sock"

enum { CALLS = 40 };

/* One of the two who hear of calls. */
typedef struct Reader {
        IpcServer *server;     /* owned */
        const char *refuses;   /* with this error; NULL: takes them */
        unsigned n_refusals;   /* so far */
        unsigned only;         /* so many, then it takes them; 0: all */
        json_t *last;          /* ref; parameters of the last one */
        json_t *taken;         /* ref; id to how often it came */
} Reader;

typedef struct World {
        sd_event *event;
        AuditClient *client;
        UsageReport *reports;
        Reader anchord, auditd;
} World;

/* ---- those who hear of it ---- */

static int hear(Reader *reader, IpcCall *call, const char *id) {
        if (reader->refuses && (reader->only == 0 || reader->n_refusals < reader->only)) {
                reader->n_refusals++;
                return ipc_call_refuse(call, reader->refuses, "not now");
        }
        if (id)
                (void) json_object_set_new(reader->taken, id, json_integer(json_integer_value(json_object_get(reader->taken, id)) + 1));
        return ipc_call_reply(call, NULL);
}

static int on_add_usage(IpcCall *call, json_t *params, void *userdata) {
        Reader *reader = userdata;

        json_unref(reader->last);
        reader->last = json_incref(params);
        return hear(userdata, call, json_string_value(json_object_get(params, "call")));
}

/* By its key, which is the call's. */
static int on_append(IpcCall *call, json_t *params, void *userdata) {
        const char *key = json_string_value(json_object_get(params, "key")), *event = json_string_value(json_object_get(params, "event"));
        const json_t *data = json_object_get(params, "data");

        if (!key || strcmp(event, "model.call") != 0 || strcmp(key, json_string_value(json_object_get(data, "call"))) != 0)
                return ipc_call_refuse(call, "BadInput", "not what was expected");
        return hear(userdata, call, key);
}

static const IpcMethod run_methods[] = { { "io.anchorhold.Run.AddUsage", PEER_ROOT, on_add_usage }, {} };
static const IpcMethod audit_methods[] = { { AUDIT_INTERFACE ".Append", PEER_ROOT, on_append }, {} };

static int serve(sd_event *event, Reader *reader, const IpcMethod *methods, int fd) {
        int r;

        reader->taken = json_object();
        r = ipc_server_new(&reader->server, event, methods, reader);
        return r < 0 ? r : ipc_server_listen_fd(reader->server, fd);
}

static void reader_stop(Reader *reader) {
        reader->server = ipc_server_free(reader->server);
        json_unref(reader->taken);
        json_unref(reader->last);
        reader->taken = reader->last = NULL;
}

static size_t n_taken(const Reader *reader) {
        return json_object_size(reader->taken);
}

/* ---- the world ---- */

static int begin(void **state) {
        World *w = calloc(1, sizeof(*w));

        assert_int_equal(sd_event_new(&w->event), 0);
        assert_int_equal(audit_client_new(&w->client, w->event), 0);
        assert_int_equal(usage_report_new(&w->reports, w->event, w->client, RUN, RUN_API), 0);
        *state = w;
        return 0;
}

static int end(void **state) {
        World *w = *state;

        usage_report_free(w->reports);
        audit_client_free(w->client);
        reader_stop(&w->anchord);
        reader_stop(&w->auditd);
        sd_event_unref(w->event);
        free(w);
        return 0;
}

static void serve_both(World *w) {
        assert_true(serve(w->event, &w->anchord, run_methods, own_world_listen(RUN_API)) >= 0);
        assert_true(serve(w->event, &w->auditd, audit_methods, own_world_listen(AUDIT_SOCKET)) >= 0);
}

static void add(World *w, unsigned n) {
        for (unsigned i = 0; i < n; i++)
                usage_report_add(w->reports, &(UsageCall) { .provider = "p", .host = "h.example", .usage = { .model = "m", .output_tokens = i }, .status = 200 });
}

/* ---- tests ---- */

static void test_taken(void **state) {
        World *w = *state;

        serve_both(w);
        add(w, CALLS);
        assert_int_equal(usage_report_waiting(w->reports), CALLS);
        UNTIL(w->event, usage_report_waiting(w->reports) == 0);
        assert_int_equal(n_taken(&w->anchord), CALLS);
        assert_int_equal(n_taken(&w->auditd), CALLS);
}

enum { PATIENCE = 200 }; /* more tries than a refusal has */

/* Away for however long: nothing is given up, neither waits for the other, and they are not flooded meanwhile. */
static void test_away(void **state) {
        World *w = *state;

        usage_report_set_again(w->reports, 1000);
        serve_both(w);
        for (int i = 0; i < 2; i++) {
                Reader *away = i == 0 ? &w->anchord : &w->auditd, *there = i == 0 ? &w->auditd : &w->anchord;
                unsigned before = (unsigned) n_taken(there);

                away->refuses = "Unavailable";
                away->n_refusals = 0;
                add(w, CALLS);
                UNTIL(w->event, n_taken(there) == before + CALLS && away->n_refusals > PATIENCE + CALLS);
                assert_int_equal(usage_report_waiting(w->reports), CALLS);
                assert_int_equal(n_taken(away), before);
                away->refuses = NULL;
                UNTIL(w->event, usage_report_waiting(w->reports) == 0);
                assert_int_equal(n_taken(away), before + CALLS);
        }
}

/* Nobody listens, and then somebody does: a restart, seen from here. */
static void test_restart(void **state) {
        World *w = *state;

        usage_report_set_again(w->reports, 1000);
        serve_both(w);
        add(w, 1);
        UNTIL(w->event, usage_report_waiting(w->reports) == 0);
        reader_stop(&w->anchord);
        reader_stop(&w->auditd);
        add(w, CALLS);
        run_for(w->event, 100000);
        assert_int_equal(usage_report_waiting(w->reports), CALLS);
        serve_both(w);
        UNTIL(w->event, usage_report_waiting(w->reports) == 0);
        assert_int_equal(n_taken(&w->anchord), CALLS);
        assert_int_equal(n_taken(&w->auditd), CALLS);
}

/* What is refused for good holds up nothing but itself, and not for ever. */
static void test_refused(void **state) {
        World *w = *state;

        usage_report_set_again(w->reports, 1000);
        serve_both(w);
        w->anchord.refuses = "BadInput";
        add(w, 2);
        UNTIL(w->event, usage_report_waiting(w->reports) == 0);
        assert_int_equal(w->anchord.n_refusals, 2 * 60);
        assert_int_equal(n_taken(&w->auditd), 2);
}

/* Both as another process, since the loop does not turn any more. */
static void be_others(int run_fd, int audit_fd, const char *refuse_first) {
        World far = { .anchord = { .refuses = refuse_first, .only = 1 }, .auditd = { .refuses = refuse_first, .only = 1 } };
        size_t n = refuse_first ? CALLS - 1 : CALLS;

        (void) alarm(20);
        if (sd_event_new(&far.event) < 0 || serve(far.event, &far.anchord, run_methods, run_fd) < 0 || serve(far.event, &far.auditd, audit_methods, audit_fd) < 0)
                _exit(1);
        while (n_taken(&far.anchord) < n || n_taken(&far.auditd) < n)
                (void) sd_event_run(far.event, UINT64_MAX);
        (void) sd_event_run(far.event, 0); /* the last answer leaves */
        _exit(0);
}

static void last_words(World *w, const char *refuse_first) {
        int run_fd = own_world_listen(RUN_API), audit_fd = own_world_listen(AUDIT_SOCKET), status;
        pid_t pid = fork();

        assert_return_code(pid, errno);
        if (pid == 0)
                be_others(run_fd, audit_fd, refuse_first);
        (void) close(run_fd);
        (void) close(audit_fd);

        add(w, CALLS);
        assert_int_equal(usage_report_waiting(w->reports), CALLS);
        usage_report_tell_last(w->reports, time_monotonic() + 2000000);
        assert_int_equal(usage_report_waiting(w->reports), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
}

/* The end of a process, with calls that it could not tell anybody of yet. */
static void test_last(void **state) {
        last_words(*state, NULL);
}

/* One that is refused costs those behind it nothing. */
static void test_last_refused(void **state) {
        last_words(*state, "BadInput");
}

/* What an origin claims beyond reason is cut to what anchord takes, and is an estimate then. */
static void test_beyond_reason(void **state) {
        UsageCall call = { .provider = "p", .host = "api.example.org", .status = 200, .complete = true, .cost_microusd = UINT64_MAX,
                           .usage = { .found = true, .model = "m", .input_tokens = USAGE_TOKENS_MAX, .output_tokens = UINT64_MAX } };
        World *w = *state;

        serve_both(w);
        usage_report_add(w->reports, &call);
        UNTIL(w->event, n_taken(&w->anchord) == 1 && n_taken(&w->auditd) == 1);
        assert_int_equal(json_integer_value(json_object_get(w->anchord.last, "input_tokens")), USAGE_TOKENS_MAX);
        assert_int_equal(json_integer_value(json_object_get(w->anchord.last, "output_tokens")), USAGE_TOKENS_MAX);
        assert_int_equal(json_integer_value(json_object_get(w->anchord.last, "cost_microusd")), USAGE_COST_MAX);
        assert_true(json_is_true(json_object_get(w->anchord.last, "estimated")));
}

/* Nobody answers: the end comes all the same, and before whoever waits for it has lost patience. */
static void test_last_in_vain(void **state) {
        int run_fd = own_world_listen(RUN_API), audit_fd = own_world_listen(AUDIT_SOCKET);
        uint64_t before = time_monotonic();
        World *w = *state;

        add(w, CALLS);
        usage_report_tell_last(w->reports, time_monotonic() + 2000000);
        assert_true(time_monotonic() - before < 2500000);
        assert_int_equal(usage_report_waiting(w->reports), CALLS);
        (void) close(run_fd);
        (void) close(audit_fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

static int enter(void **state) {
        own_world_enter(0);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_taken),
                TEST(test_away),
                TEST(test_restart),
                TEST(test_refused),
                TEST(test_last),
                TEST(test_last_refused),
                TEST(test_beyond_reason),
                TEST(test_last_in_vain),
        };

        return cmocka_run_group_tests(tests, enter, NULL);
}
