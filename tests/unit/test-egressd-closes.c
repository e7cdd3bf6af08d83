/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The whole of egressd: each grant that is in the audit log has its end there, with what went over it, also if auditd was away. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "egressd-world.h"
#include "util/sqlite.h"

/* Calls for each record of this event. */
static void each_record(const World *w, const char *event, void (*see)(const json_t *record, const json_t *data, void *userdata), void *userdata) {
        _cleanup_free_ char *records = strdup(w->auditd.records ?: "");

        for (char *save = NULL, *line = strtok_r(records, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                _cleanup_json_ json_t *record = json_loads(line, 0, NULL);

                if (strcmp(json_string_value(json_object_get(record, "event")), event) == 0)
                        see(record, json_object_get(record, "data"), userdata);
        }
}

static json_int_t number(const json_t *data, const char *key) {
        return json_integer_value(json_object_get(data, key));
}

static void add_count(const json_t *record, const json_t *data, void *userdata) {
        json_int_t *n = userdata;

        *n += number(data, "count") > 0 ? number(data, "count") : 1;
}

static json_int_t sum(const World *w, const char *event) {
        json_int_t n = 0;

        each_record(w, event, add_count, &n);
        return n;
}

typedef struct Found {
        json_int_t grant;
        unsigned n;
        json_t *data; /* ref; of the last */
} Found;

static void find(const json_t *record, const json_t *data, void *userdata) {
        Found *f = userdata;

        if (number(data, "grant") != f->grant)
                return;
        f->n++;
        json_decref(f->data);
        f->data = json_deep_copy(data);
}

/* The record of that grant's end, of which there is one at most; the caller's. */
static json_t *end_of(const World *w, json_int_t grant) {
        Found f = { .grant = grant };

        each_record(w, "conn.close", find, &f);
        assert_true(f.n <= 1);
        return f.data;
}

static json_int_t connect_to(World *w, const char *name) {
        call(w, "Connect", json_pack("{s:s, s:i, s:s, s:s}", "name", name, "port", 443, "protocol", "tls", "sni", name));
        assert_null(w->error);
        assert_string_equal(get(w, "verdict"), "pass");
        return number(w->answer, "grant");
}

static void done(World *w, json_int_t grant) {
        call(w, "Done", json_pack("{s:I, s:I, s:i, s:i}", "grant", grant, "bytes_in", 1000 + grant, "bytes_out", 20, "duration_us", 30));
        assert_null(w->error);
}

static void assert_bytes(const World *w, json_int_t grant, const char *reason, json_int_t bytes_in) {
        _cleanup_json_ json_t *data = end_of(w, grant);

        assert_non_null(data);
        assert_string_equal(json_string_value(json_object_get(data, "reason")) ?: "", reason);
        assert_int_equal(number(data, "bytes_in"), bytes_in);
        assert_int_equal(number(data, "bytes_out"), bytes_in > 0 ? 20 : 0);
}

static void deny(World *w, const char *rule) {
        call(w, "Amend", json_pack("{s:s, s:b, s:s}", "run", RUN, "allow", 0, "rule", rule));
        assert_null(w->error);
}

/* What auditd refuses is sent again when it takes something, once, also if its run is released by then. */
static void test_refused(void **state) {
        json_int_t grants[5];
        World *w = *state;

        register_run(w, RUN);
        for (size_t i = 0; i < ELEMENTSOF(grants); i++)
                grants[i] = connect_to(w, "good.example.org");
        w->auditd.refuses = "conn.close";
        for (size_t i = 0; i < ELEMENTSOF(grants); i++)
                done(w, grants[i]);
        assert_int_equal(n_live(), 0);
        run_for(w->event, 2500000); /* a beat; they are refused again */
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        assert_int_equal(sum(w, "conn.close"), 0);

        w->auditd.refuses = NULL;
        UNTIL(w->event, sum(w, "conn.close") >= 5);
        UNTIL(w->event, !w->e->closes);
        for (size_t i = 0; i < ELEMENTSOF(grants); i++)
                assert_bytes(w, grants[i], "", 1000 + grants[i]);
}

static void take_keys(const json_t *record, const json_t *data, void *userdata) {
        char(*keys)[64] = userdata;

        (void) snprintf(keys[*keys[0] ? 1 : 0], sizeof(keys[0]), "%s", json_string_value(json_object_get(record, "key")) ?: "none");
}

/* It is written and the answer lost: what is sent again is the same, so that auditd knows it. */
static void test_lost_answer(void **state) {
        char keys[2][64] = {};
        World *w = *state;
        json_int_t grant;

        register_run(w, RUN);
        grant = connect_to(w, "good.example.org");
        w->auditd.waits = true;
        done(w, grant);
        UNTIL(w->event, w->auditd.waiting);
        w->auditd.waits = false;
        w->auditd.waiting = ipc_call_unref(w->auditd.waiting);
        UNTIL(w->event, sum(w, "conn.close") == 2 && !w->e->closes);
        each_record(w, "conn.close", take_keys, keys);
        assert_string_equal(keys[0], keys[1]);
        assert_string_not_equal(keys[0], "none");
}

/* More than is kept are counted, and the record of their number is kept as well. */
static void test_too_many(void **state) {
        enum { KEPT = 1024,
               MORE = 50 };
        World *w = *state;
        EgressRun *run;

        register_run(w, RUN);
        run = egress_state_find(w->e->state, RUN);
        w->auditd.refuses = "conn.close";
        for (int i = 1; i <= KEPT + MORE; i++)
                egressd_close(w->e, run, "anchor-proxy@" RUN ".service", json_pack("{s:i, s:s}", "grant", i, "name", "good.example.org"));
        run_for(w->event, 100000);
        assert_int_equal(sum(w, "conn.close"), 0);
        w->auditd.refuses = NULL;
        UNTIL(w->event, !w->e->closes);
        assert_int_equal(sum(w, "conn.close"), KEPT + MORE);
        assert_non_null(strstr(w->auditd.records, "{\"count\":50,\"name\":\"-\",\"port\":0,\"reason\":\"log-lost\",\"rule\":\"overflow\"}"));
        assert_null(end_of(w, KEPT + 1));

        /* and so is what it will never take */
        {
                _cleanup_free_ char *long_name = calloc(1, AUDIT_DATA_MAX + 1);

                memset(long_name, 'x', AUDIT_DATA_MAX);
                egressd_close(w->e, run, NULL, json_pack("{s:i, s:s}", "grant", 9999, "name", long_name));
        }
        UNTIL(w->event, !w->e->closes);
        assert_int_equal(sum(w, "conn.close"), KEPT + MORE + 1);
}

static void until_refused(World *w) {
        UNTIL(w->event, audit_pending(w->e->audit, RUN) == 0);
}

static int count_kept(const EgressClose *c, void *userdata) {
        unsigned *n = userdata;

        ++*n;
        assert_string_equal(c->run, RUN);
        return 0;
}

static void live_again(World *w) {
        w->e = egressd_free(w->e);
        begin_life(w);
}

/* What auditd did not take outlives egressd, and its run; told once, it is told no more. */
static void test_restart(void **state) {
        json_int_t grants[3];
        World *w = *state;

        register_run(w, RUN);
        for (size_t i = 0; i < ELEMENTSOF(grants); i++)
                grants[i] = connect_to(w, "good.example.org");
        w->auditd.refuses = "conn.close";
        for (size_t i = 0; i < ELEMENTSOF(grants); i++)
                done(w, grants[i]);
        until_refused(w);
        live_again(w);
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        until_refused(w);
        live_again(w);
        w->auditd.refuses = NULL;
        UNTIL(w->event, sum(w, "conn.close") == 3 && !w->e->closes);
        for (size_t i = 0; i < ELEMENTSOF(grants); i++)
                assert_bytes(w, grants[i], "", 1000 + grants[i]);
        live_again(w);
        assert_null(w->e->closes);
}

/* So does the number of those for which there was no room, with what is counted on by the next life. */
static void test_restart_with_too_many(void **state) {
        World *w = *state;

        register_run(w, RUN);
        w->auditd.refuses = "conn.close";
        for (int life = 0; life < 2; life++) {
                for (int i = 1; i <= (life ? 7 : 1024 + 50); i++)
                        egressd_close(w->e, egress_state_find(w->e->state, RUN), NULL, json_pack("{s:i, s:i}", "grant", i, "port", life));
                until_refused(w);
                live_again(w);
        }
        w->auditd.refuses = NULL;
        UNTIL(w->event, !w->e->closes);
        assert_int_equal(sum(w, "conn.close"), 1024 + 57);
        assert_non_null(strstr(w->auditd.records, "\"count\":57,"));
}

/* What egressd cut, and of which it awaits its owner's word, outlives it if it is killed meanwhile. */
static void test_killed_after_a_cut(void **state) {
        json_int_t grants[5];
        World *w = *state;

        register_run(w, RUN);
        for (size_t i = 0; i < ELEMENTSOF(grants); i++)
                grants[i] = connect_to(w, i < 2 ? "good.example.org" : "fine.example.org");
        deny(w, "good.example.org");
        egressd_revoke(w->e, egress_state_find(w->e->state, RUN), 0, "over-budget"); /* the others have one record */
        assert_int_equal(sum(w, "conn.close"), 0);
        live_again(w);
        assert_null(egress_state_find(w->e->state, RUN)->grants);
        UNTIL(w->event, !w->e->closes);
        assert_int_equal(sum(w, "conn.close"), 5);
        assert_bytes(w, grants[0], "policy-changed", 0);
        assert_bytes(w, grants[1], "policy-changed", 0);
        assert_null(strstr(w->auditd.records, "never-made"));
        live_again(w);
        assert_null(w->e->closes);
}

/* So does what waits behind what is under way. */
static void test_killed_while_some_wait(void **state) {
        enum { UNDER_WAY = 32,
               ALL = 100 };
        World *w = *state;

        register_run(w, RUN);
        for (int i = 1; i <= ALL; i++)
                egressd_close(w->e, egress_state_find(w->e->state, RUN), NULL, json_pack("{s:i}", "grant", i));
        live_again(w);
        UNTIL(w->event, !w->e->closes);
        for (int i = UNDER_WAY + 1; i <= ALL; i++) {
                _cleanup_json_ json_t *data = end_of(w, i);

                assert_non_null(data);
        }
}

/* A grant is on disk, or its end: killed in between, the next life has not both. */
static void test_killed_between(void **state) {
        _cleanup_json_ json_t *data = NULL;
        World *w = *state;
        json_int_t grant, other;

        register_run(w, RUN);
        grant = connect_to(w, "good.example.org");
        other = connect_to(w, "fine.example.org");
        data = json_pack("{s:I}", "grant", grant);
        assert_int_equal(egress_state_keep_closes(w->e->state, (EgressClose[]) { { "a/1", RUN, NULL, data }, { "a/2", OTHER, NULL, data } }, 2), 0);
        live_again(w);
        assert_int_equal(egress_state_find(w->e->state, RUN)->grants->id, other);
        assert_null(egress_state_find(w->e->state, RUN)->grants->next);
        UNTIL(w->event, !w->e->closes);
        assert_int_equal(sum(w, "conn.close"), 2);
}

/* What its owner said goes with it. */
static void test_restart_after_a_word(void **state) {
        World *w = *state;
        json_int_t grant;

        register_run(w, RUN);
        grant = connect_to(w, "good.example.org");
        w->auditd.refuses = "conn.close";
        deny(w, "good.example.org");
        done(w, grant);
        until_refused(w);
        live_again(w);
        w->auditd.refuses = NULL;
        UNTIL(w->event, !w->e->closes);
        assert_bytes(w, grant, "policy-changed", 1000 + grant);
}

/* ---- what egressd says ---- */

typedef struct Ears {
        int was, fd;
        char said[65536];
} Ears;

static void listen_to_log(Ears *ears) {
        int fds[2];

        assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
        ears->was = dup(2);
        ears->fd = fds[0];
        assert_int_equal(dup2(fds[1], 2), 2);
        (void) close(fds[1]);
}

static void stop_listening(Ears *ears) {
        ssize_t n = read(ears->fd, ears->said, sizeof(ears->said) - 1);

        assert_int_equal(dup2(ears->was, 2), 2);
        ears->said[n > 0 ? n : 0] = '\0';
        (void) close(ears->was);
        (void) close(ears->fd);
}

static unsigned times_said(const Ears *ears, const char *words) {
        unsigned n = 0;

        for (const char *p = strstr(ears->said, words); p; p = strstr(p + 1, words))
                n++;
        return n;
}

/* From now on, for the life that uses it as well. */
static void change_database(const char *sql) {
        _cleanup_(db_closep) Db *db = NULL;

        assert_return_code(db_open(&db, EGRESSD_STATE_DIR "/egress.db"), 0);
        assert_return_code(db_exec(db, sql), 0);
}

/* While nothing can be written egressd says so once, does not try each again, and when it can all is. */
static void test_full_disk(void **state) {
        enum { ALL = 100 };
        World *w = *state;
        Ears full = {}, better = {}, undeletable = {};

        register_run(w, RUN);
        w->auditd.refuses = "conn.close";
        change_database("CREATE TRIGGER full BEFORE INSERT ON close_ BEGIN SELECT RAISE(ABORT, 'full'); END");
        listen_to_log(&full);
        for (int i = 1; i <= ALL; i++)
                egressd_close(w->e, egress_state_find(w->e->state, RUN), NULL, json_pack("{s:i}", "grant", i));
        until_refused(w);
        for (unsigned i = 0; i < 5; i++)
                egressd_closes_tick(w->e);
        stop_listening(&full);
        assert_int_equal(times_said(&full, "cannot be written down"), 1);
        assert_int_equal(times_said(&full, "written down again"), 0);

        change_database("DROP TRIGGER full");
        listen_to_log(&better);
        for (unsigned i = 0; i < 5; i++)
                egressd_closes_tick(w->e);
        stop_listening(&better);
        assert_int_equal(times_said(&better, "cannot be written down"), 0);
        assert_int_equal(times_said(&better, "written down again"), 1);
        live_again(w);

        change_database("CREATE TRIGGER full BEFORE DELETE ON close_ BEGIN SELECT RAISE(ABORT, 'full'); END");
        listen_to_log(&undeletable);
        w->auditd.refuses = NULL;
        UNTIL(w->event, !w->e->closes);
        stop_listening(&undeletable);
        assert_int_equal(times_said(&undeletable, "cannot be deleted"), 1);
        assert_int_equal(sum(w, "conn.close"), ALL);
}

static void close_three(World *w) {
        for (int i = 1; i <= 3; i++)
                egressd_close(w->e, egress_state_find(w->e->state, RUN), NULL, json_pack("{s:i}", "grant", i));
}

/* That auditd takes nothing is said once, with the reason, however often it is asked, and so is that it has all. */
static void test_outage(void **state) {
        World *w = *state;
        Ears outage = {}, better = {}, well = {};

        register_run(w, RUN);
        register_run(w, OTHER);
        listen_to_log(&well);
        close_three(w);
        UNTIL(w->event, !w->e->closes);
        stop_listening(&well);
        assert_int_equal(times_said(&well, "connection"), 0);

        w->auditd.refuses = "conn.close";
        listen_to_log(&outage);
        close_three(w);
        egressd_close(w->e, egress_state_find(w->e->state, OTHER), NULL, json_pack("{s:i}", "grant", 4));
        for (unsigned i = 0; i < 3; i++) {
                UNTIL(w->event, !egressd_closes_under_way(w->e));
                egressd_closes_tell_again(w->e);
        }
        close_three(w);
        UNTIL(w->event, !egressd_closes_under_way(w->e));
        stop_listening(&outage);
        assert_int_equal(times_said(&outage, "cannot be recorded"), 1);
        assert_int_equal(times_said(&outage, strerror(EHOSTDOWN)), 1);
        assert_int_equal(times_said(&outage, "connection"), 1);

        w->auditd.refuses = NULL;
        listen_to_log(&better);
        UNTIL(w->event, !w->e->closes);
        stop_listening(&better);
        assert_int_equal(times_said(&better, "answers again"), 1);
        assert_int_equal(times_said(&better, "connection"), 1);
}

/* What it will never take is no outage, and does not wait. */
static void test_refused_for_good(void **state) {
        _cleanup_free_ char *long_name = calloc(1, AUDIT_DATA_MAX + 1);
        World *w = *state;
        Ears ears = {};

        register_run(w, RUN);
        memset(long_name, 'x', AUDIT_DATA_MAX);
        listen_to_log(&ears);
        egressd_close(w->e, egress_state_find(w->e->state, RUN), NULL, json_pack("{s:i, s:s}", "grant", 1, "name", long_name));
        UNTIL(w->event, !w->e->closes);
        stop_listening(&ears);
        assert_int_equal(times_said(&ears, "will never take the end"), 1);
        assert_int_equal(times_said(&ears, strerror(EINVAL)), 1);
        assert_int_equal(times_said(&ears, "until the audit log"), 0);
        assert_int_equal(times_said(&ears, "\n"), 2); /* auditd's reason, and what it means */
        assert_int_equal(sum(w, "conn.close"), 1);
}

/* What is under way when egressd is stopped is sent again by the next life, as what it was. */
static void test_stopped_amid_it(void **state) {
        char keys[2][64] = {};
        World *w = *state;
        json_int_t grant;

        register_run(w, RUN);
        grant = connect_to(w, "good.example.org");
        w->auditd.waits = true;
        done(w, grant);
        UNTIL(w->event, sum(w, "conn.close") == 1);
        assert_true(egressd_stop(w->e) >= 0);
        w->auditd.waits = false;
        live_again(w);
        UNTIL(w->event, sum(w, "conn.close") == 2 && !w->e->closes);
        each_record(w, "conn.close", take_keys, keys);
        assert_string_equal(keys[0], keys[1]);
        live_again(w);
        assert_null(w->e->closes);
}

/* An auditd that takes nothing holds up nothing: what waits behind what it refused is there for the next life as well. */
static void test_stopped_without_auditd(void **state) {
        World *w = *state;
        uint64_t begin;

        register_run(w, RUN);
        w->auditd.refuses = "conn.close";
        for (int i = 1; i <= 100; i++)
                egressd_close(w->e, egress_state_find(w->e->state, RUN), NULL, json_pack("{s:i}", "grant", i));
        begin = time_monotonic();
        assert_true(egressd_stop(w->e) >= 0);
        while (sd_event_get_state(w->event) != SD_EVENT_FINISHED)
                assert_true(sd_event_run(w->event, 20000) >= 0);
        assert_true(time_monotonic() - begin < 2000000);
        w->e = egressd_free(w->e);
        {
                _cleanup_(egress_state_freep) EgressState *s = NULL;
                unsigned n = 0;

                assert_int_equal(egress_state_open(&s, EGRESSD_STATE_DIR, ""), 0);
                assert_int_equal(egress_state_load_closes(s, count_kept, &n), 0);
                assert_int_equal(n, 100);
        }
}

static uint64_t cpu_usec(void) {
        struct timespec t;

        assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
        return (uint64_t) t.tv_sec * 1000000 + (uint64_t) t.tv_nsec / 1000;
}

/* After an outage many runs have many: egressd must not miss its heartbeat over them, neither when it begins nor when it is told that auditd answers. */
static void test_many_of_many_runs(void **state) {
        enum { RUNS = 50,
               CLOSES = 700 };
        _cleanup_json_ json_t *data = json_pack("{s:i, s:s}", "grant", 1, "name", "good.example.org");
        World *w = *state;
        uint64_t begin;

        w->auditd.refuses = "conn.close";
        for (int i = 0; i < RUNS * CLOSES; i++) {
                char run[ID_LENGTH + 1], key[48];

                (void) snprintf(run, sizeof(run), "r%012d", i % RUNS);
                (void) snprintf(key, sizeof(key), "earlier/%d", i);
                assert_int_equal(egress_state_keep_closes(w->e->state, &(EgressClose) { .key = key, .run = run, .data = data }, 1), 0);
        }
        begin = cpu_usec();
        live_again(w);
        assert_true(cpu_usec() - begin < 4000000);
        UNTIL(w->event, !egressd_closes_under_way(w->e)); /* all that it sent was refused */
        begin = cpu_usec();
        egressd_closes_tell_again(w->e);
        assert_true(cpu_usec() - begin < 1000000);
        assert_true(egressd_closes_under_way(w->e));
}

/* Of one run a few are under way at a time: what else it has to say does not wait behind all of them. */
static void test_few_at_a_time(void **state) {
        World *w = *state;
        EgressRun *run;

        register_run(w, RUN);
        run = egress_state_find(w->e->state, RUN);
        for (int i = 1; i <= 200; i++)
                egressd_close(w->e, run, NULL, json_pack("{s:i}", "grant", i));
        assert_int_equal(audit_pending(w->e->audit, RUN), 32);
        UNTIL(w->event, !w->e->closes);
        assert_int_equal(sum(w, "conn.close"), 200);
}

/* Of what egressd cuts itself its owner says what went over it: for a moment that is waited for. */
static void test_cut(void **state) {
        json_int_t told, silent;
        World *w = *state;

        register_run(w, RUN);
        told = connect_to(w, "good.example.org");
        silent = connect_to(w, "fine.example.org");
        deny(w, "good.example.org");
        deny(w, "fine.example.org");
        assert_int_equal(n_live(), 0); /* meanwhile nothing goes over it */
        assert_null(end_of(w, told));
        w->as_run = OTHER;             /* nobody else's word */
        done(w, told);
        w->as_run = RUN;
        done(w, told);
        done(w, told);                 /* as it does until it has heard the answer */
        UNTIL(w->event, sum(w, "conn.close") == 1);
        assert_bytes(w, told, "policy-changed", 1000 + told);

        UNTIL(w->event, sum(w, "conn.close") == 2);
        assert_bytes(w, silent, "policy-changed", 0);
        done(w, silent);
        call(w, "Ping", NULL);
        assert_null(w->e->closes);
}

/* The end of the run, or of egressd, waits for nobody. */
static void test_cut_and_released(void **state) {
        json_int_t grant;
        World *w = *state;

        register_run(w, RUN);
        grant = connect_to(w, "good.example.org");
        deny(w, "good.example.org");
        call(w, "Release", json_pack("{s:s}", "run", RUN));
        UNTIL(w->event, strstr(w->auditd.records, "egress.released"));
        assert_true(strstr(w->auditd.records, "conn.close") < strstr(w->auditd.records, "egress.released"));
        assert_bytes(w, grant, "policy-changed", 0);

        register_run(w, RUN);
        grant = connect_to(w, "good.example.org");
        deny(w, "good.example.org");
        assert_true(egressd_stop(w->e) >= 0);
        while (sd_event_get_state(w->event) != SD_EVENT_FINISHED)
                assert_true(sd_event_run(w->event, 20000) >= 0);
        assert_bytes(w, grant, "policy-changed", 0);
}

/* Whoever asked is gone when the record of its grant is written: that has an end as well. */
static void test_nobody_gets_it(void **state) {
        World *w = *state;

        register_run(w, RUN);
        (void) connect_to(w, "good.example.org");
        w->auditd.waits = true;
        assert_int_equal(ipc_client_call_async(w->client, "io.anchorhold.Egress.Connect",
                                               json_pack("{s:s, s:i, s:s, s:s}", "name", "fine.example.org", "port", 443, "protocol", "tls", "sni", "fine.example.org"),
                                               NULL, 0, false, 0, on_answer, w),
                         0);
        UNTIL(w->event, w->auditd.waiting);
        w->client = ipc_client_free(w->client);
        assert_int_equal(ipc_client_new(&w->client, w->event, API), 0);
        w->auditd.waits = false;
        call(w, "Ping", NULL);
        assert_int_equal(ipc_call_reply(w->auditd.waiting, json_pack("{s:i, s:s}", "seq", 1, "hash", "00")), 0);
        w->auditd.waiting = ipc_call_unref(w->auditd.waiting);
        UNTIL(w->event, sum(w, "conn.close") == 1);
        assert_non_null(strstr(w->auditd.records, "\"reason\":\"never-made\""));
        assert_int_equal(n_live(), 1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_lost_answer, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_too_many, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_restart, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_restart_with_too_many, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_killed_after_a_cut, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_killed_while_some_wait, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_killed_between, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_restart_after_a_word, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_full_disk, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_outage, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_refused_for_good, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stopped_amid_it, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stopped_without_auditd, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_many_of_many_runs, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_few_at_a_time, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_cut, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_cut_and_released, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_nobody_gets_it, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
