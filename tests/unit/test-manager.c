/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* anchord towards operators: what is refused, what is bounded, and when nothing is leased. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gate.h"
#include "manager-world.h"

/* ---- Submit ---- */

static void submit_refused(World *w, json_t *params, int fd, const char *error, const char *text) {
        call_with(w, w->operator, "io.anchorhold.Manager.Submit", params, &fd, fd >= 0 ? 1 : 0, false);
        assert_refused(w, error);
        assert_true(answer_has(w, text));
}

static unsigned n_items_on_disk(void) {
        DIR *d = opendir("/var/lib/anchorhold/items");
        unsigned n = 0;

        assert_non_null(d);
        while (readdir(d))
                n++;
        (void) closedir(d);
        return n - 2;
}

static void test_submit(void **state) {
        _cleanup_fd_ int good = file_of(SEED), partial = file_of("# v2 git bundle\n-" BASE "\n" BASE " refs/anchorhold/base\n\n"),
                         text = file_of("hello");
        int pair[2];
        World *w = *state;

        assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
        submit_refused(w, json_pack("{s:s}", "workflow", "nothing"), -1, "NoSuchWorkflow", "nothing");
        submit_refused(w, json_pack("{s:s}", "workflow", "../exec"), -1, "BadInput", "/workflow");
        submit_refused(w, NULL, -1, "BadInput", "/workflow");
        submit_refused(w, json_pack("{s:s}", "workflow", "exec"), -1, "BadInput", "command");
        submit_refused(w, json_pack("{s:s, s:[s]}", "workflow", "exec", "command", "/bin/true"), good, "BadInput", "");
        submit_refused(w, json_pack("{s:s, s:s, s:s}", "workflow", "code-fix", "task", "t", "base", BASE), -1, "BadInput", "");
        submit_refused(w, json_pack("{s:s, s:s, s:s}", "workflow", "code-fix", "task", "t", "base", RESULT), good, "BadInput", "");
        submit_refused(w, json_pack("{s:s, s:s, s:s}", "workflow", "code-fix", "task", "t", "base", BASE), text, "BadInput", "not a git bundle");
        submit_refused(w, json_pack("{s:s, s:s, s:s}", "workflow", "code-fix", "task", "t", "base", BASE), partial, "BadInput", "prerequisites");
        submit_refused(w, json_pack("{s:s, s:s, s:s}", "workflow", "code-fix", "task", "t", "base", BASE), pair[0], "BadInput", "regular file");
        assert_int_equal(n_items_on_disk(), 0);
        (void) close(pair[0]);
        (void) close(pair[1]);
}

/* Policy is read for a submission and for a run, each in its own time; others are answered meanwhile. */
static void test_policy_takes_its_time(void **state) {
        _cleanup_(ipc_client_freep) IpcClient *beside = NULL;
        World *w = *state, other = { .fds = { -1, -1 } };
        json_t *submission = json_pack("{s:s, s:[s]}", "workflow", "exec", "command", "/bin/true");
        char item[ID_LENGTH + 1];
        static Gate gate = GATE_OPEN;

        assert_int_equal(ipc_client_new(&beside, w->event, "/run/anchorhold/api.sock"), 0);
        forget_answer(w);
        gate_close(&gate, w->m->background, 1);
        assert_int_equal(ipc_client_call_async(w->operator, "io.anchorhold.Manager.Submit", json_incref(submission), NULL, 0, false, 0, on_answer, w), 0);
        UNTIL(w->event, w->m->policy_reading);
        other.event = w->event;
        call_with(&other, beside, "io.anchorhold.Manager.Hold", json_pack("{s:b}", "on", false), NULL, 0, false);
        forget_answer(&other);
        assert_false(w->answered);
        gate_open(&gate);
        UNTIL(w->event, w->answered);
        assert_ok(w);
        (void) snprintf(item, sizeof(item), "%s", json_string_value(json_object_get(w->answer, "item")));

        /* leased, on record, and nobody is told before policy was read for it */
        UNTIL(w->event, w->m->flows);
        (void) await_active(w, item, "work");
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED && outbox_is_empty(w->m));
        OPERATOR(w, "Hold", json_pack("{s:b}", "on", true));
        submit_exec(w, item);
        UNTIL(w->event, !w->m->policy_reading);
        w->n_registered = 0;
        gate_close(&gate, w->m->background, 1);
        OPERATOR(w, "Hold", json_pack("{s:b}", "on", false));
        UNTIL(w->event, w->m->flows && w->m->policy_reading);
        UNTIL(w->event, outbox_is_empty(w->m));
        run_for(w->event, 20000);
        assert_int_equal(w->n_registered, 0);
        assert_string_equal(flow_state_name(w->m->flows), "auditing");
        gate_open(&gate);
        (void) await_active(w, item, "work");
        OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
        UNTIL(w->event, state_of(w, item) == ITEM_CANCELLED);

        /* two at once, of which the second gets what is read after it asked; and anchord ends while that is so */
        UNTIL(w->event, !w->m->policy_reading);
        gate_close(&gate, w->m->background, 1);
        forget_answer(w);
        for (unsigned i = 0; i < 2; i++)
                assert_int_equal(ipc_client_call_async(i == 0 ? w->operator : beside, "io.anchorhold.Manager.Submit", json_incref(submission), NULL, 0, false, 0,
                                                       on_answer, i == 0 ? w : &other), 0);
        UNTIL(w->event, w->m->policy_reading && w->m->policy_waiting);
        gate_open(&gate);
        end_life(w);
        begin_life(w);
        beside = ipc_client_free(beside);
        forget_answer(&other);
        json_decref(submission);
}

/* The same source twice: the second is there, as a duplicate, and nothing is done for it. */
static void test_duplicate(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1], first[ID_LENGTH + 1] = "";

        for (unsigned i = 0; i < 2; i++) {
                OPERATOR(w, "Submit", json_pack("{s:s, s:[s], s:s}", "workflow", "exec", "command", "/bin/true", "source", "ticket 7"));
                assert_ok(w);
                if (i > 0)
                        break;
                assert_null(json_object_get(w->answer, "state"));
                (void) snprintf(first, sizeof(first), "%s", json_string_value(json_object_get(w->answer, "item")));
        }
        assert_string_equal(json_string_value(json_object_get(w->answer, "state")), "duplicate");
        assert_non_null(strstr(json_string_value(json_object_get(w->answer, "reason")), first));
        (void) snprintf(item, sizeof(item), "%s", json_string_value(json_object_get(w->answer, "item")));
        assert_int_equal(state_of(w, item), ITEM_DUPLICATE);
        follow(w, w->operator, "io.anchorhold.Manager.Logs", json_pack("{s:s}", "item", item));
        UNTIL(w->event, w->followed);
        assert_string_equal(event_text(w, json_array_size(w->events) - 1, "state"), "duplicate");
        UNTIL(w->event, w->n_registered == 2);
        run_for(w->event, 20000);
        assert_int_equal(w->m->n_flows, 1);
}

/* ---- what operators may ask ---- */

static void test_no_such_item(void **state) {
        static const char *const methods[] = { "Show", "Stop", "Result" };
        World *w = *state;

        for (size_t i = 0; i < ELEMENTSOF(methods); i++) {
                _cleanup_free_ char *method = text_format("io.anchorhold.Manager.%s", methods[i]);

                call_with(w, w->operator, method, json_pack("{s:s, s:s}", "item", "i00000000none", "what", "diff"), NULL, 0, false);
                assert_refused(w, "NoSuchItem");
                call_with(w, w->operator, method, json_pack("{s:s, s:s}", "item", "../../etc", "what", "diff"), NULL, 0, false);
                assert_refused(w, "NoSuchItem");
        }
        call_with(w, w->operator, "io.anchorhold.Manager.Follow", json_pack("{s:s}", "item", "i00000000none"), NULL, 0, true);
        assert_refused(w, "NoSuchItem");
        OPERATOR(w, "Follow", json_pack("{s:s}", "item", "i00000000none")); /* without `more` */
        assert_refused(w, "BadInput");
}

static void test_list(void **state) {
        World *w = *state;
        char items[3][ID_LENGTH + 1];

        OPERATOR(w, "Hold", json_pack("{s:b}", "on", true));
        for (unsigned i = 0; i < 3; i++)
                submit_exec(w, items[i]);

        call_with(w, w->operator, "io.anchorhold.Manager.List", json_pack("{s:[s]}", "states", "queued"), NULL, 0, true);
        assert_ok(w);
        assert_true(answer_has(w, items[2])); /* oldest first, the last reply holds the last */
        call_with(w, w->operator, "io.anchorhold.Manager.List", json_pack("{s:i}", "limit", 1), NULL, 0, true);
        assert_true(answer_has(w, items[0]));
        call_with(w, w->operator, "io.anchorhold.Manager.List", json_pack("{s:i, s:s}", "limit", 1, "after", items[0]), NULL, 0, true);
        assert_true(answer_has(w, items[1]));
        call_with(w, w->operator, "io.anchorhold.Manager.List", json_pack("{s:[s]}", "states", "merged"), NULL, 0, true);
        assert_ok(w);
        assert_int_equal(json_object_size(w->answer), 0);

        call_with(w, w->operator, "io.anchorhold.Manager.List", json_pack("{s:[s]}", "states", "gone"), NULL, 0, true);
        assert_refused(w, "BadInput");
        call_with(w, w->operator, "io.anchorhold.Manager.List", json_pack("{s:i}", "limit", 0), NULL, 0, true);
        assert_refused(w, "BadInput");
        call_with(w, w->operator, "io.anchorhold.Manager.List", json_pack("{s:s}", "after", "x"), NULL, 0, true);
        assert_refused(w, "BadInput");
        OPERATOR(w, "List", NULL);
        assert_refused(w, "BadInput");
}

typedef struct Listed {
        unsigned n;
        size_t bytes;
        char last[ID_LENGTH + 1];
        bool truncated, done;
} Listed;

static void on_listed_item(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        json_t *item = json_object_get(params, "item");
        Listed *l = userdata;

        assert_null(error);
        if (item) {
                l->n++;
                l->bytes += json_dumpb(item, NULL, 0, JSON_COMPACT);
                (void) snprintf(l->last, sizeof(l->last), "%s", json_string_value(json_object_get(item, "id")));
        }
        l->truncated = json_is_true(json_object_get(params, "truncated"));
        l->done = !more;
}

/* A list is bounded in bytes, says so, and goes on behind its last item. */
static void test_large_list(void **state) {
        _cleanup_free_ char *command = malloc(100 * 1024);
        World *w = *state;
        Listed l = {};
        char id[ID_LENGTH + 1];
        unsigned n;

        memset(command, 'x', 100 * 1024 - 1);
        memcpy(command, "[\"", 2);
        memcpy(command + 100 * 1024 - 3, "\"]", 3);
        for (unsigned i = 0; i < 60; i++) {
                (void) snprintf(id, sizeof(id), "i%012u", i);
                assert_int_equal(ledger_submit(w->m->ledger, &(LedgerSubmission) { .id = id, .requester = "uid 0", .workflow = "exec", .workflow_digest = "w",
                                                 .command = command, .template_name = "base", .template_digest = "t", .max_attempts = 1 }), 0);
        }
        assert_int_equal(ipc_client_call_async(w->operator, "io.anchorhold.Manager.List", json_pack("{s:i}", "limit", 10000), NULL, 0, true, 0, on_listed_item, &l), 0);
        UNTIL(w->event, l.done);
        n = l.n;
        assert_true(n > 10 && n < 50 && l.truncated);
        assert_true(l.bytes > 4 * 1024 * 1024 && l.bytes < 4 * 1024 * 1024 + 110 * 1024);
        assert_int_equal(ipc_client_call_async(w->operator, "io.anchorhold.Manager.List", json_pack("{s:i, s:s}", "limit", 10000, "after", l.last), NULL, 0, true,
                                               0, on_listed_item, &l),
                         0);
        l.done = false;
        UNTIL(w->event, l.done);
        assert_int_equal(l.n, 60);
        assert_false(l.truncated);
}

/* StopAll with a hold: every run dies, nothing else is leased until the hold is released. */
static void test_stop_all(void **state) {
        World *w = *state;
        char items[4][ID_LENGTH + 1];

        for (unsigned i = 0; i < 4; i++)
                submit_exec(w, items[i]);
        UNTIL(w->event, fake_told(&w->systemd, "StartUnit anchor-run@") == 3); /* max_runs */
        run_for(w->event, 20000);
        assert_int_equal(w->m->n_flows, 3);
        assert_int_equal(state_of(w, items[3]), ITEM_QUEUED);

        OPERATOR(w, "StopAll", json_pack("{s:b}", "hold", true));
        assert_ok(w);
        assert_int_equal(json_array_size(json_object_get(w->answer, "stopped")), 3);
        assert_null(w->m->flows); /* answered when all are gone */
        for (unsigned i = 0; i < 3; i++)
                assert_int_equal(state_of(w, items[i]), ITEM_CANCELLED);
        run_for(w->event, 20000);
        assert_int_equal(state_of(w, items[3]), ITEM_QUEUED);

        OPERATOR(w, "Status", NULL);
        assert_ok(w);
        assert_true(json_is_true(json_object_get(w->answer, "hold")));
        OPERATOR(w, "Hold", json_pack("{s:b}", "on", false));
        assert_ok(w);
        (void) await_active(w, items[3], "work");
        OPERATOR(w, "Hold", json_pack("{s:s}", "on", "yes"));
        assert_refused(w, "BadInput");
        OPERATOR(w, "StopAll", NULL);
        assert_int_equal(json_array_size(json_object_get(w->answer, "stopped")), 1);
        OPERATOR(w, "StopAll", NULL);
        assert_int_equal(json_array_size(json_object_get(w->answer, "stopped")), 0);
}

/* A drain: what runs may end, nothing else begins; when its time is up, what is left goes back and keeps its attempt. */
static void test_drain(void **state) {
        World *w = *state;
        char ends[ID_LENGTH + 1], stays[ID_LENGTH + 1], waits[ID_LENGTH + 1];
        _cleanup_item_ LedgerItem i = {};

        submit_exec(w, ends);
        submit_exec(w, stays);
        (void) await_active(w, stays, "work");
        (void) await_active(w, ends, "work");
        OPERATOR(w, "Drain", json_pack("{s:i, s:s}", "within_s", 3600, "reason", "upgrade"));
        assert_ok(w);
        submit_exec(w, waits);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, ends) == ITEM_CLOSED);
        run_for(w->event, 20000);
        assert_int_equal(w->m->n_flows, 1);
        assert_int_equal(state_of(w, stays), ITEM_RUNNING);
        assert_int_equal(state_of(w, waits), ITEM_QUEUED);
        OPERATOR(w, "Status", NULL);
        assert_string_equal(json_string_value(json_object_get(json_object_get(w->answer, "drain"), "reason")), "upgrade");

        OPERATOR(w, "Drain", json_pack("{s:i}", "within_s", 1)); /* the tick finds it */
        assert_ok(w);
        UNTIL(w->event, !w->m->flows);
        assert_int_equal(ledger_get(w->m->ledger, stays, &i), 0);
        assert_int_equal(i.state, ITEM_QUEUED);
        assert_int_equal(i.attempt, 1);
        assert_true(reason_is(w, stays, "handed back"));
        assert_int_equal(w->systemd.n_units, HOST_UNITS);
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "drain.begun"), 2);

        /* a new life of anchord on this boot leases nothing either */
        end_life(w);
        begin_life(w);
        run_for(w->event, 20000);
        assert_null(w->m->flows);

        OPERATOR(w, "Undrain", NULL);
        assert_ok(w);
        (void) await_active(w, stays, "work");
        (void) await_active(w, waits, "work");
        OPERATOR(w, "Status", NULL);
        assert_true(json_is_null(json_object_get(w->answer, "drain")));

        OPERATOR(w, "Drain", json_pack("{s:i}", "within_s", -1));
        assert_refused(w, "BadInput");
        OPERATOR(w, "Drain", NULL);
        assert_refused(w, "BadInput");
        assert_int_equal(w->m->n_flows, 2);
        OPERATOR(w, "StopAll", NULL);
}

static void test_stop_queued(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];

        OPERATOR(w, "Hold", json_pack("{s:b}", "on", true));
        submit_exec(w, item);
        OPERATOR(w, "Stop", json_pack("{s:s}", "item", item));
        assert_ok(w);
        assert_int_equal(state_of(w, item), ITEM_CANCELLED);
        OPERATOR(w, "Hold", json_pack("{s:b}", "on", false));
        run_for(w->event, 20000);
        assert_null(w->m->flows);
}

/* Follow from the middle, of one run, and by more than there is room for. */
static void test_followers(void **state) {
        World *w = *state;
        IpcClient *many[FOLLOWERS_MAX + 1] = {};
        char item[ID_LENGTH + 1];
        uint64_t start;

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        for (unsigned i = 0; i < 200; i++)
                RUN(w, "Output", json_pack("{s:s, s:s, s:s}", "stream", "stdout", "step", "exec", "data", "line\n"));
        start = time_monotonic();
        follow(w, w->operator, "io.anchorhold.Manager.Follow", json_pack("{s:s, s:i}", "item", item, "from", 100));
        UNTIL(w->event, json_array_size(w->events) > 100);
        assert_true(time_monotonic() - start < 1000000); /* a piece a turn, not an event a turn */
        assert_int_equal(json_integer_value(json_object_get(json_array_get(w->events, 0), "seq")), 100);

        follow(w, w->operator, "io.anchorhold.Manager.Logs", json_pack("{s:s, s:s}", "item", item, "run", "r00000000none"));
        UNTIL(w->event, w->followed);
        run_for(w->event, 10000);
        for (size_t i = 0; i < json_array_size(w->events); i++)
                assert_string_not_equal(event_text(w, i, "data"), "other run's");

        for (unsigned i = 0; i <= FOLLOWERS_MAX; i++) {
                assert_int_equal(ipc_client_new(&many[i], w->event, "/run/anchorhold/api.sock"), 0);
                if (w->m->n_followers < FOLLOWERS_MAX)
                        follow(w, many[i], "io.anchorhold.Manager.Follow", json_pack("{s:s, s:i}", "item", item, "from", 100000));
                UNTIL(w->event, w->m->n_followers == (i + 2 < FOLLOWERS_MAX ? i + 2 : FOLLOWERS_MAX));
        }
        call_with(w, many[FOLLOWERS_MAX], "io.anchorhold.Manager.Follow", json_pack("{s:s}", "item", item), NULL, 0, true);
        assert_refused(w, "Unavailable");
        for (unsigned i = 0; i <= FOLLOWERS_MAX; i++)
                many[i] = ipc_client_free(many[i]);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED && w->m->n_followers == 0);
}

/* Who does not read holds up nobody, costs one piece of memory, and misses nothing when he reads again. */
static void test_slow_follower(void **state) {
        _cleanup_free_ char *much = malloc(100 * 1024 + 1), *call = NULL, *buffer = malloc(65536);
        struct sockaddr_un un = { .sun_family = AF_UNIX, .sun_path = "/run/anchorhold/api.sock" };
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        World *w = *state;
        char item[ID_LENGTH + 1];
        size_t total = 0, n_answers = 0;

        memset(much, 'x', 100 * 1024);
        much[100 * 1024] = 0;
        submit_exec(w, item);
        (void) await_active(w, item, "work");
        call = text_format("{\"method\":\"io.anchorhold.Manager.Follow\",\"parameters\":{\"item\":\"%s\"},\"more\":true}", item);
        assert_int_equal(connect(fd, (struct sockaddr *) &un, sizeof(un)), 0);
        assert_int_equal(write(fd, call, strlen(call) + 1), strlen(call) + 1);
        UNTIL(w->event, w->m->n_followers == 1);
        for (unsigned i = 0; i < 15; i++) {
                RUN(w, "Output", json_pack("{s:s, s:s, s:s}", "stream", "stdout", "step", "exec", "data", much));
                assert_ok(w);
        }
        follow(w, w->operator, "io.anchorhold.Manager.Follow", json_pack("{s:s}", "item", item));
        finish(w, "ok", "", NULL);
        UNTIL(w->event, w->followed);
        assert_int_equal(w->m->n_followers, 1); /* the slow one is still there */

        for (uint64_t end = time_monotonic() + 5000000; w->m->n_followers > 0 || n_answers < json_array_size(w->events);) {
                ssize_t n = read(fd, buffer, 65536);

                for (ssize_t i = 0; i < n; i++)
                        n_answers += buffer[i] == 0;
                total += n > 0 ? (size_t) n : 0;
                assert_true(time_monotonic() < end && sd_event_run(w->event, 1000) >= 0);
        }
        assert_int_equal(n_answers, json_array_size(w->events));
        assert_true(total > 15 * 100 * 1024);
}

/* ---- what a run may tell ---- */

/* A misuse flags the run, in what Show gives; a run that floods is flagged so often and no more. */
static void test_misuse(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];
        const json_t *flags;

        submit_exec(w, item);
        (void) await_active(w, item, "work");
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_int_equal(json_array_size(json_object_get(json_object_get(w->answer, "item"), "flags")), 0);
        for (unsigned i = 0; i < 40; i++) {
                RUN(w, "Misuse", json_pack("{s:s, s:s, s:s}", "credential", "git", "name", "elsewhere.example", "where", "body"));
                assert_ok(w);
        }
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        flags = json_object_get(json_object_get(w->answer, "item"), "flags");
        assert_int_equal(json_array_size(flags), 1);
        assert_string_equal(json_string_value(json_object_get(json_array_get(flags, 0), "kind")), "credential.misuse");
        assert_int_equal(json_integer_value(json_object_get(json_array_get(flags, 0), "count")), 32);
        RUN(w, "Misuse", json_pack("{s:s, s:s, s:s}", "credential", "../x", "name", "elsewhere.example", "where", "body"));
        assert_refused(w, "BadInput");
        RUN(w, "Misuse", json_pack("{s:s}", "credential", "git"));
        assert_refused(w, "BadInput");
}

/* ---- when nothing is leased ---- */

static void test_enforcer_lost(void **state) {
        World *w = *state;
        char running[ID_LENGTH + 1], item[ID_LENGTH + 1];
        const char *reason = NULL;

        submit_exec(w, running);
        (void) await_active(w, running, "work");
        fake_unit_changed(&w->systemd, "anchor-bpf.service", "failed", NULL, 0, 0);
        UNTIL(w->event, !enforcers_ok(w->m, &reason));
        assert_non_null(strstr(reason, "eBPF"));
        submit_exec(w, item);
        run_for(w->event, 30000);
        assert_int_equal(state_of(w, item), ITEM_QUEUED);
        assert_int_equal(state_of(w, running), ITEM_RUNNING); /* it is told, not stopped */
        OPERATOR(w, "Show", json_pack("{s:s}", "item", running));
        assert_true(answer_has(w, "enforcer.lost"));

        fake_unit_changed(&w->systemd, "anchor-bpf.service", "active", NULL, 0, 0);
        (void) await_active(w, item, "work");
        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "enforcer.lost"), 1);
        assert_int_equal(audited(w, "enforcer.back"), 1);
}

#define WARDEN "anchor-warden.service"

/* Does this take the fence away, or bring it back? Nobody asks in between: what changed is told. */
#define AFTER(w, change, expected)                                              \
        do {                                                                    \
                change;                                                         \
                UNTIL((w)->event, enforcers_ok((w)->m, NULL) == (expected));    \
                run_for((w)->event, 10000);                                     \
                assert_true(enforcers_ok((w)->m, NULL) == (expected));          \
        } while (0)

static void unit_becomes(World *w, const char *unit, const char *active) {
        fake_unit_changed(&w->systemd, unit, active, NULL, 0, 0);
}

static void assert_lost(World *w, const char *part) {
        const char *reason = "";

        assert_false(enforcers_ok(w->m, &reason));
        if (!strstr(reason, part))
                fail_msg("\"%s\" is not in \"%s\"", part, reason);
}

static void test_fence_is_not_whole(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];
        unsigned n_lists;

        AFTER(w, warden_says("{\"ok\": false, \"reason\": \"program egress is gone\\u001b\"}"), false);
        assert_lost(w, "not whole: program egress is gone\\x1b; see");
        submit_exec(w, item);
        run_for(w->event, 20000);
        assert_int_equal(state_of(w, item), ITEM_QUEUED);
        OPERATOR(w, "Status", NULL);
        assert_true(answer_has(w, "program egress is gone"));
        AFTER(w, warden_says("{\"ok\": true, \"reason\": \"\"}"), true);
        (void) await_active(w, item, "work");

        AFTER(w, unit_becomes(w, WARDEN, "failed"), false);
        assert_lost(w, "nobody watches");
        AFTER(w, unit_becomes(w, WARDEN, "active"), true);

        /* what is not understood is no good word */
        AFTER(w, warden_says("{\"ok\": 1}"), false);
        AFTER(w, warden_says("{\"ok\": true}"), true);
        AFTER(w, (void) unlink(WARDEN_STATE), false);
        assert_lost(w, "has not said so");
        AFTER(w, warden_says("{\"ok\": true}"), true);

        /* no polling: without a change nobody is asked about these */
        n_lists = w->systemd.n_lists;
        for (int i = 0; i < 4; i++)
                enforcers_tick(w->m);
        run_for(w->event, 20000);
        assert_int_equal(w->systemd.n_lists, n_lists);

        UNTIL(w->event, outbox_is_empty(w->m));
        assert_int_equal(audited(w, "enforcer.lost"), 4);
        assert_int_equal(audited(w, "enforcer.back"), 4);
}

/* A run is the first to notice: its item keeps its only attempt, and nothing is leased before the warden had its time. */
static void test_run_is_not_fenced(void **state) {
        World *w = *state;
        char item[ID_LENGTH + 1];
        _cleanup_item_ LedgerItem i = {};

        w->systemd.start_result = "dependency";
        w->systemd.start_needs = "anchor-net";
        submit_exec(w, item);
        UNTIL(w->event, !enforcers_ok(w->m, NULL));
        assert_lost(w, "a run found");
        UNTIL(w->event, state_of(w, item) == ITEM_QUEUED && !w->m->flows);
        run_for(w->event, 30000);
        assert_int_equal(fake_told(&w->systemd, "StartUnit"), 1);
        assert_int_equal(state_of(w, item), ITEM_QUEUED);
        assert_true(reason_is(w, item, "did not start: dependency, anchor-net@"));

        /* a good word of the warden's may be older than what the run found */
        AFTER(w, warden_says("{\"ok\": true}"), false);
        w->systemd.start_result = w->systemd.start_needs = NULL;
        assert_int_equal(sd_event_source_set_time_relative(w->m->suspect, 1000), 0);
        (void) await_active(w, item, "work");
        assert_int_equal(ledger_get(w->m->ledger, item, &i), 0);
        assert_int_equal(i.attempt, 1);
        finish(w, "ok", "", NULL);
        UNTIL(w->event, state_of(w, item) == ITEM_CLOSED);
}

static void test_ping_refused(void **state) {
        World *w;
        char item[ID_LENGTH + 1];

        (void) set_up_world(state);
        w = *state;
        w->ping_refused = true;
        begin_life(w);
        submit_exec(w, item);
        run_for(w->event, 50000);
        assert_int_equal(state_of(w, item), ITEM_QUEUED);
        OPERATOR(w, "Status", NULL);
        assert_true(answer_has(w, "egressd does not answer (Unavailable)"));
        w->ping_refused = false;
        enforcers_tick(w->m);
        (void) await_active(w, item, "work");
}

/* Whoever insists on KVM gets it or nothing, also when the probe has nothing to say; else the fallback is a note. */
static void test_accel(void **state) {
        static const char no[] = "{\"accel\": \"tcg\", \"reason\": \"it hung\"}", slow[] = "{\"accel\": \"kvm\", \"reason\": \"\", \"probe_ms\": 12345}";
        World *w = *state;
        char item[ID_LENGTH + 1];
        Accel accel;

        assert_int_equal(accel_read("tcg", &accel), 0);
        assert_true(accel.known && accel.tcg && !accel.fallback);
        assert_int_equal(accel_read("kvm", &accel), 0);
        assert_true(accel.known && !accel.tcg && accel.probe_ms == 0);

        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/anchorhold/accel", slow, strlen(slow), 0644), 0);
        assert_int_equal(accel_read("auto", &accel), 0);
        assert_true(accel.known && !accel.tcg && accel.probe_ms == 12345);
        OPERATOR(w, "Status", NULL);
        assert_true(answer_has(w, "\"boot_timeout_s\":15") && answer_has(w, "\"probe_ms\":12345"));

        assert_int_equal(io_write_file_atomic(AT_FDCWD, "/run/anchorhold/accel", no, strlen(no), 0644), 0);
        assert_int_equal(accel_read("kvm", &accel), -EOPNOTSUPP);
        assert_string_equal(accel.reason, "it hung");
        assert_true(accel.known);
        assert_int_equal(accel_read("auto", &accel), 0);
        assert_true(accel.known && accel.tcg && accel.fallback);
        submit_exec(w, item);
        (void) await_active(w, item, "work");
        OPERATOR(w, "Show", json_pack("{s:s}", "item", item));
        assert_true(answer_has(w, "no KVM, the microVM is emulated and slow: it hung"));

        assert_int_equal(unlink("/run/anchorhold/accel"), 0);
        assert_int_equal(accel_read("auto", &accel), 0);
        assert_true(!accel.known && accel.tcg && accel.fallback);
        assert_int_equal(accel_read("kvm", &accel), -EOPNOTSUPP);
        assert_false(accel.known); /* it may still answer */
}

static void test_template(void **state) {
        char *reason = NULL;
        Tree root = {};
        json_t *manifest = NULL;

        assert_int_equal(template_load("base", &manifest, NULL), 0);
        json_decref(manifest);
        assert_int_equal(template_load("none", &manifest, &reason), -ENOENT);
        assert_string_equal(reason, "template none is not installed");
        reason = (free(reason), NULL);
        assert_int_equal(template_load("../base", &manifest, NULL), -EINVAL);
        assert_true(template_has_agent("base", "pi"));
        assert_false(template_has_agent("base", "nobody"));
        assert_false(template_has_agent("base", "../../base/agents/pi"));
        tree_put(&root, "usr/lib/anchorhold/templates/odd/manifest.json", "{\"digest\": 5}");
        assert_int_equal(template_load("odd", &manifest, &reason), -EKEYREJECTED);
        assert_string_equal(reason, "template odd cannot be used: it is not signed");
        reason = (free(reason), NULL);
        signed_template_put(template_key, "/usr/lib/anchorhold/templates/odd", "{\"digest\": 5}");
        assert_int_equal(template_load("odd", &manifest, NULL), -EBADMSG);
        signed_template_put(template_key, "/usr/lib/anchorhold/templates/odd", "{");
        assert_true(template_load("odd", &manifest, NULL) < 0);
}

/* Folders of items that never came to be go at the next start. */
static void test_orphan(void **state) {
        World *w;

        (void) set_up_world(state);
        w = *state;
        assert_int_equal(mkdir("/var/lib/anchorhold/items/i00000orphan0", 0700), 0);
        begin_life(w);
        assert_int_equal(n_items_on_disk(), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_submit, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_policy_takes_its_time, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_duplicate, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_no_such_item, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_list, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_large_list, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop_all, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_drain, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stop_queued, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_followers, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_slow_follower, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_misuse, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_enforcer_lost, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_fence_is_not_whole, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_run_is_not_fenced, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_ping_refused, NULL, tear_down),
                cmocka_unit_test_setup_teardown(test_accel, set_up, tear_down),
                cmocka_unit_test(test_template),
                cmocka_unit_test_setup_teardown(test_orphan, NULL, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
