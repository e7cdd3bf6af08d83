/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What inject is made of, below the exchange: leaves, where a credential counts, notes, and the link to egressd. */

#include <errno.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "audit/audit-api.h"
#include "audit/notes.h"
#include "inject/credential.h"
#include "inject/egress-link.h"
#include "inject/leaf.h"
#include "ipc/ipc.h"
#include "own-world.h"
#include "secret/run-ca.h"
#include "util/json.h"

#define RUN "r0123456789ab"
#define NAME "api.example.org"
#define EGRESS "/run/egress.sock"
#define HOUR 3600000000ULL

/* ---- leaves ---- */

static int verify(const char *ca_pem, X509 *leaf, const char *name) {
        BIO *bio = BIO_new_mem_buf(ca_pem, -1);
        X509 *ca = PEM_read_bio_X509(bio, NULL, NULL, NULL);
        X509_STORE *store = X509_STORE_new();
        X509_STORE_CTX *ctx = X509_STORE_CTX_new();
        int r;

        (void) X509_STORE_add_cert(store, ca);
        (void) X509_STORE_CTX_init(ctx, store, leaf, NULL);
        (void) X509_VERIFY_PARAM_set1_host(X509_STORE_CTX_get0_param(ctx), name, 0);
        (void) X509_STORE_CTX_set_purpose(ctx, X509_PURPOSE_SSL_SERVER);
        r = X509_verify_cert(ctx);
        X509_STORE_CTX_free(ctx);
        X509_STORE_free(store);
        X509_free(ca);
        BIO_free(bio);
        return r;
}

static void test_leaf(void **state) {
        static const char *const names[] = { NAME, "*.wild.example.org" };
        _cleanup_(secret_freep) Secret *key = NULL, *other_key = NULL;
        _cleanup_(leaf_maker_freep) LeafMaker *m = NULL, *wrong = NULL;
        _cleanup_free_ char *pem = NULL, *other_pem = NULL;
        X509 *cert, *again, *wild;
        EVP_PKEY *leaf_key;

        assert_int_equal(run_ca_make(RUN, names, 2, time_realtime() - HOUR, time_realtime() + HOUR, &pem, &key), 0);
        assert_int_equal(run_ca_make(RUN, names, 2, time_realtime() - HOUR, time_realtime() + HOUR, &other_pem, &other_key), 0);
        assert_int_equal(leaf_maker_new(&m, pem, key), 0);
        assert_int_equal(leaf_maker_get(m, NAME, &cert, &leaf_key), 0);
        assert_int_equal(verify(pem, cert, NAME), 1);
        assert_int_equal(verify(pem, cert, "other.example.org"), 0);
        assert_int_equal(verify(other_pem, cert, NAME), 0);
        assert_int_equal(X509_check_private_key(cert, leaf_key), 1);
        assert_true(X509_check_ca(cert) == 0); /* it can sign for nobody */
        assert_int_equal(leaf_maker_get(m, NAME, &again, &leaf_key), 0);
        assert_ptr_equal(cert, again); /* made once */
        assert_int_equal(leaf_maker_get(m, "a.wild.example.org", &wild, &leaf_key), 0);
        assert_int_equal(verify(pem, wild, "a.wild.example.org"), 1);

        /* more than are kept: still right */
        for (unsigned i = 0; i < 200; i++) {
                char name[64];

                (void) snprintf(name, sizeof(name), "n%u.wild.example.org", i);
                assert_int_equal(leaf_maker_get(m, name, &wild, &leaf_key), 0);
        }
        assert_int_equal(verify(pem, wild, "n199.wild.example.org"), 1);

        assert_int_equal(leaf_maker_new(&wrong, pem, other_key), -EBADMSG);
        assert_int_equal(leaf_maker_new(&wrong, "no certificate", key), -EBADMSG);
        assert_null(wrong);
}

/* A name that the CA does not admit gets nothing that any client would take. */
static void test_leaf_constraints(void **state) {
        static const char *const names[] = { NAME };
        _cleanup_(leaf_maker_freep) LeafMaker *m = NULL;
        _cleanup_(secret_freep) Secret *key = NULL;
        _cleanup_free_ char *pem = NULL;
        EVP_PKEY *leaf_key;
        X509 *cert = NULL;

        assert_int_equal(run_ca_make(RUN, names, 1, time_realtime() - HOUR, time_realtime() + HOUR, &pem, &key), 0);
        assert_int_equal(leaf_maker_new(&m, pem, key), 0);
        assert_int_equal(leaf_maker_get(m, "evil.example.com", &cert, &leaf_key), -EACCES);
        assert_null(cert);
        assert_int_equal(leaf_maker_get(m, NAME, &cert, &leaf_key), 0);
}

/* ---- credentials ---- */

static json_t *parse(const char *text) {
        json_t *j = NULL;

        assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
        return j;
}

static void test_credential(void **state) {
        static const char *const broken[] = {
                "{}", "{\"hosts\": \"x\", \"ports\": [443], \"places\": []}", "{\"hosts\": [\"x\"], \"ports\": [443]}",
                "{\"hosts\": [\"x\"], \"ports\": [443], \"places\": [{\"cookie\": \"a\"}]}", "{\"hosts\": [\"x\"], \"ports\": [443], \"places\": [7]}",
        };
        _cleanup_json_ json_t *rule = parse("{\"hosts\": [\"" NAME "\"], \"ports\": [443, 8443], \"methods\": [\"GET\", \"POST\"], \"paths\": [\"/v1/\"],"
                                            " \"places\": [{\"header\": \"x-api-key\"}, {\"bearer\": true}]}");
        RunCredential source = { .rule = rule };
        InjectCredential c;

        assert_int_equal(inject_credential_init(&c, &source), 0);
        assert_int_equal(c.n_places, 2);
        assert_true(inject_credential_covers_host(&c, NAME, 443));
        assert_true(inject_credential_covers_host(&c, "API.Example.org", 8443));
        assert_false(inject_credential_covers_host(&c, NAME, 80));
        assert_false(inject_credential_covers_host(&c, "x." NAME, 443));
        assert_false(inject_credential_covers_host(&c, NAME ".evil.com", 443));
        assert_false(inject_credential_covers_host(&c, "", 443));
        assert_true(inject_credential_covers_request(&c, "GET", "/v1/messages?x=/v2"));
        assert_false(inject_credential_covers_request(&c, "get", "/v1/messages"));
        assert_false(inject_credential_covers_request(&c, "DELETE", "/v1/messages"));
        assert_false(inject_credential_covers_request(&c, "GET", "/v2/"));
        assert_false(inject_credential_covers_request(&c, "GET", "/v1/../admin"));
        assert_false(inject_credential_covers_request(&c, "GET", "/v1/%2e%2e/admin"));
        assert_false(inject_credential_covers_request(&c, "GET", "http://" NAME "/v1/"));

        for (size_t i = 0; i < ELEMENTSOF(broken); i++) {
                _cleanup_json_ json_t *j = parse(broken[i]);

                source.rule = j;
                assert_int_equal(inject_credential_init(&c, &source), -EBADMSG);
        }
}

/* ---- notes and the link ---- */

typedef struct World {
        sd_event *event;
        IpcServer *audit, *egress;
        AuditClient *client;
        EgressLink *link;
        IpcCall *watch, *held[16];
        size_t n_held;
        char *audited;       /* owned */
        json_int_t n_counted; /* in what was audited */
        bool audit_refuses;
        unsigned n_audit_refused;
        unsigned n_audited, n_answers, n_lost, n_done;
        bool hold;
        const char *verdict;
        json_int_t revoked, done, streams; /* the last: their sum */
        char within[128];    /* of the last question: connection, stream, open ones */
        bool pass;
        char reason[32], first[64];
        json_int_t grant;
} World;

static int on_append(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;
        _cleanup_free_ char *text = json_canonical(params);
        char *more;

        if (w->audit_refuses) {
                w->n_audit_refused++;
                return ipc_call_refuse(call, "Unavailable", "not now");
        }
        more = text_format("%s%.300s\n", w->audited ?: "", text);
        w->n_counted += json_integer_value(json_object_get(json_object_get(params, "data"), "count"));
        free(w->audited);
        w->audited = more;
        w->n_audited++;
        return ipc_call_reply(call, json_pack("{s:i, s:s}", "seq", 1, "hash", "00"));
}

static int answer(World *w, IpcCall *call) {
        if (strcmp(w->verdict, "pass") != 0)
                return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:n, s:n}", "verdict", w->verdict, "reason", "method", "rule", "r", "grant", "addresses"));
        return ipc_call_reply(call, json_pack("{s:s, s:s, s:s, s:i, s:[ssi]}", "verdict", "pass", "reason", "allowed", "rule", "r", "grant", 7,
                                              "addresses", "203.0.113.7", "203.0.113.8", 9));
}

static void keep_within(World *w, json_t *params) {
        _cleanup_json_ json_t *within = json_pack("{s:O*, s:O*, s:O*}", "within", json_object_get(params, "within"), "stream",
                                                  json_object_get(params, "stream"), "open", json_object_get(params, "open"));
        _cleanup_free_ char *text = json_canonical(within);

        (void) snprintf(w->within, sizeof(w->within), "%s", text);
}

static int on_connect(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        keep_within(w, params);
        if (w->hold) {
                assert_true(w->n_held < ELEMENTSOF(w->held));
                w->held[w->n_held++] = ipc_call_ref(call);
                return 0;
        }
        return answer(w, call);
}

static int on_done(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        w->n_done++;
        w->done = json_integer_value(json_object_get(params, "grant"));
        return ipc_call_reply(call, NULL);
}

static int on_watch(IpcCall *call, json_t *params, void *userdata) {
        World *w = userdata;

        ipc_call_unref(w->watch);
        w->watch = ipc_call_ref(call);
        return ipc_call_notify(call, json_pack("{s:i}", "heartbeat", 1));
}

static const IpcMethod audit_methods[] = { { AUDIT_INTERFACE ".Append", PEER_ROOT, on_append }, {} };
static const IpcMethod egress_methods[] = {
        { "io.anchorhold.Egress.Connect", PEER_ROOT, on_connect },
        { "io.anchorhold.Egress.Done", PEER_ROOT, on_done },
        { "io.anchorhold.Egress.Watch", PEER_ROOT, on_watch },
        {},
};

static void on_lost(void *userdata) {
        World *w = userdata;

        w->n_lost++;
}

static void on_revoked(int64_t grant, int64_t stream, void *userdata) {
        World *w = userdata;

        w->revoked = grant;
        w->streams += stream;
}

static void on_answer(const EgressAnswer *a, void *userdata) {
        World *w = userdata;

        w->n_answers++;
        w->pass = a->pass;
        w->grant = a->grant;
        (void) snprintf(w->reason, sizeof(w->reason), "%s", a->reason);
        (void) snprintf(w->first, sizeof(w->first), "%s", a->n_addresses > 0 ? a->addresses[0] : "");
        assert_true(a->n_addresses <= 2); /* what is no text is no address */
}

static IpcServer *serve(World *w, const IpcMethod *methods, const char *path) {
        IpcServer *s = NULL;

        assert_int_equal(ipc_server_new(&s, w->event, methods, w), 0);
        assert_true(ipc_server_listen_fd(s, own_world_listen(path)) >= 0);
        return s;
}

static int set_up(void **state) {
        World *w = calloc(1, sizeof(*w));

        w->verdict = "pass";
        assert_int_equal(sd_event_new(&w->event), 0);
        w->audit = serve(w, audit_methods, AUDIT_SOCKET);
        w->egress = serve(w, egress_methods, EGRESS);
        assert_int_equal(audit_client_new(&w->client, w->event), 0);
        assert_int_equal(egress_link_new(&w->link, w->event, EGRESS, on_lost, on_revoked, w), 0);
        UNTIL(w->event, w->watch);
        *state = w;
        return 0;
}

static int tear_down(void **state) {
        World *w = *state;

        egress_link_free(w->link);
        audit_client_free(w->client);
        ipc_call_unref(w->watch);
        while (w->n_held > 0)
                ipc_call_unref(w->held[--w->n_held]);
        ipc_server_free(w->audit);
        ipc_server_free(w->egress);
        sd_event_unref(w->event);
        free(w->audited);
        free(w);
        return 0;
}

static void end_notes(World *w, Notes *n) {
        w->client = audit_client_free(w->client);
        notes_free(n);
}

/* The first of a kind at once, the others as a number when the time is over, or the notes end. */
static void test_notes(void **state) {
        World *w = *state;
        Notes *n = NULL;

        assert_int_equal(notes_new(&n, w->event, w->client, RUN, "/run/no-anchord.sock"), 0);
        for (unsigned i = 0; i < 5; i++)
                notes_add(n, "conn.deny", "a", json_pack("{s:s}", "name", "a"));
        notes_add(n, "conn.deny", "b", json_pack("{s:s}", "name", "b"));
        notes_add(n, "credential.misuse", "a", json_pack("{s:s}", "name", "c"));
        UNTIL(w->event, w->n_audited == 3);
        run_for(w->event, 10000);
        assert_int_equal(w->n_audited, 3);
        assert_non_null(strstr(w->audited, "\"count\":1"));

        notes_tell(n);
        UNTIL(w->event, w->n_audited == 4); /* the four that were only counted */
        assert_non_null(strstr(w->audited, "\"count\":4"));
        assert_int_equal(w->n_counted, 7);
        notes_add(n, "conn.deny", "a", json_pack("{s:s}", "name", "a")); /* and that is a first one again */
        UNTIL(w->event, w->n_audited == 5);
        end_notes(w, n);
}

static void add_kind(Notes *n, const char *event, unsigned number, const char *padding) {
        char key[16];

        (void) snprintf(key, sizeof(key), "k%u", number);
        notes_add(n, event, key, json_pack("{s:s, s:s}", "name", key, "padding", padding));
}

/* A guest that makes ever new kinds of what is refused: a few records, whose counts are the number of it. Another event has its own places. */
static void test_many_notes(void **state) {
        World *w = *state;
        Notes *n = NULL;

        assert_int_equal(notes_new(&n, w->event, w->client, RUN, "/run/no-anchord.sock"), 0);
        for (unsigned i = 0; i < 2000; i++)
                add_kind(n, "conn.deny", i % 500, "");
        add_kind(n, "credential.misuse", 1, "");
        UNTIL(w->event, w->n_audited == NOTES_MAX + 1 + 1); /* each at once, the first of the rest, and that */
        assert_non_null(strstr(w->audited, "\"reason\":\"overflow\""));
        assert_non_null(strstr(w->audited, "\"event\":\"credential.misuse\""));
        run_for(w->event, 10000);
        assert_int_equal(w->n_audited, NOTES_MAX + 2);
        notes_tell(n);
        UNTIL(w->event, w->n_counted == 2001);
        assert_int_equal(w->n_audited, 2 * (NOTES_MAX + 1) + 1);
        end_notes(w, n);
}

/* One that does so for hours: from some number of records on two in ten minutes, and still all is counted. */
static void test_spent_notes(void **state) {
        static char padding[40000];
        unsigned i = 0, n_before;
        World *w = *state;
        Notes *n = NULL;

        memset(padding, 'x', sizeof(padding) - 1);
        assert_int_equal(notes_new(&n, w->event, w->client, RUN, "/run/no-anchord.sock"), 0);
        notes_set_times(n, 10000, 60000000);
        while (!w->audited || !strstr(w->audited, "record-budget")) {
                add_kind(n, "conn.deny", i++, padding);
                assert_true(i < NOTES_RECORDS_MAX);
                run_for(w->event, 1000);
        }
        n_before = w->n_audited;
        for (unsigned k = 0; k < 300; k++) {
                add_kind(n, "conn.deny", i++, "");
                run_for(w->event, 1000);
        }
        assert_int_equal(w->n_audited, n_before);
        notes_tell(n);
        UNTIL(w->event, w->n_audited == n_before + 1);
        assert_int_equal(w->n_counted, i);
        end_notes(w, n);
}

/* What auditd did not take is counted on. */
static void test_notes_not_taken(void **state) {
        World *w = *state;
        Notes *n = NULL;

        assert_int_equal(notes_new(&n, w->event, w->client, RUN, "/run/no-anchord.sock"), 0);
        notes_set_times(n, 10000, 60000000);
        w->audit_refuses = true;
        for (unsigned i = 0; i < 5; i++)
                add_kind(n, "conn.deny", i % 2, "");
        UNTIL(w->event, w->n_audit_refused >= 4); /* the first of each, the rest of them … */
        assert_int_equal(w->n_counted, 0);
        w->audit_refuses = false;
        UNTIL(w->event, w->n_counted == 5); /* … and all that in one place, until it is taken */
        end_notes(w, n);
}

/* The end of a process: what it had only counted is in the log before it is gone. The loop does not turn any more, so auditd is another process. */
static void test_last_notes(void **state) {
        World *w = *state;
        Notes *n = NULL;
        int fd, status;
        pid_t pid;

        w->audit = ipc_server_free(w->audit);
        fd = own_world_listen(AUDIT_SOCKET);
        pid = fork();
        assert_return_code(pid, errno);
        if (pid == 0) {
                World far = {};

                (void) alarm(20);
                if (sd_event_new(&far.event) < 0 || ipc_server_new(&far.audit, far.event, audit_methods, &far) < 0 || ipc_server_listen_fd(far.audit, fd) < 0)
                        _exit(1);
                while (far.n_counted < 1000 + 3)
                        (void) sd_event_run(far.event, UINT64_MAX);
                (void) sd_event_run(far.event, 0); /* the last answer leaves */
                _exit(far.n_counted == 1003 && far.n_audited == 2 * (NOTES_MAX + 1) + 2 ? 0 : 2);
        }
        (void) close(fd);

        assert_int_equal(notes_new(&n, w->event, w->client, RUN, "/run/no-anchord.sock"), 0);
        for (unsigned i = 0; i < 1000; i++)
                add_kind(n, "conn.deny", i % 200, "");
        notes_add(n, "git.push", "r", json_pack("{s:s}", "verdict", "refused"));
        notes_add(n, "git.push", "r", json_pack("{s:s}", "verdict", "refused"));
        notes_add(n, "git.push", "r", json_pack("{s:s}", "verdict", "refused"));
        UNTIL(w->event, audit_pending(w->client, RUN) == 0);
        notes_tell_last(n, time_monotonic() + 3000000);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        end_notes(w, n);
}

static void ask(World *w) {
        EgressQuestion *q = NULL;

        assert_int_equal(egress_link_ask(w->link, NAME, 443, "GET", "/", false, NULL, on_answer, w, &q), 0);
        assert_non_null(q);
}

static void test_link(void **state) {
        World *w = *state;

        ask(w);
        UNTIL(w->event, w->n_answers == 1);
        assert_true(w->pass);
        assert_int_equal(w->grant, 7);
        assert_string_equal(w->first, "203.0.113.7");
        w->verdict = "deny";
        ask(w);
        UNTIL(w->event, w->n_answers == 2);
        assert_false(w->pass);
        assert_string_equal(w->reason, "method");
        w->verdict = "perhaps"; /* whatever is not a pass is none */
        ask(w);
        UNTIL(w->event, w->n_answers == 3);
        assert_false(w->pass);

        assert_int_equal(ipc_call_notify(w->watch, json_pack("{s:i, s:[i]}", "heartbeat", 2, "revoked", 7)), 0);
        UNTIL(w->event, w->revoked == 7);
        assert_int_equal(w->streams, 0); /* all of it */
        assert_int_equal(ipc_call_notify(w->watch, json_pack("{s:i, s:[{s:i, s:[iisi]}, i]}", "heartbeat", 3, "streams", "grant", 9, "streams", 3, 5, "x", -1, 4)), 0);
        UNTIL(w->event, w->revoked == 9);
        assert_int_equal(w->streams, 8);
        egress_link_done(w->link, 7, 1, 2, 3);
        egress_link_done(w->link, 0, 1, 2, 3); /* none was given */
        UNTIL(w->event, w->done == 7);
        run_for(w->event, 10000);
        assert_int_equal(w->n_done, 1);

        w->watch = ipc_call_unref(w->watch);
        w->egress = ipc_server_free(w->egress);
        ask(w);
        UNTIL(w->event, w->n_answers == 4);
        assert_false(w->pass);
        assert_string_equal(w->reason, "unavailable");

        /* that one is over, egressd hears when it is back */
        egress_link_done(w->link, 9, 1, 2, 3);
        run_for(w->event, 10000);
        w->egress = serve(w, egress_methods, EGRESS);
        UNTIL(w->event, w->done == 9);
        assert_int_equal(w->n_done, 2);
}

/* egressd hangs, and a guest asks until no more questions are taken: when it goes on, it is watched again. */
static void test_watch_again(void **state) {
        EgressQuestion *q;
        World *w = *state;
        unsigned n = 0;
        int r;

        w->hold = true;
        do {
                r = egress_link_ask(w->link, NAME, 443, "GET", "/", false, NULL, on_answer, w, &q);
                n += r >= 0;
        } while (r >= 0);
        assert_int_equal(r, -EBUSY);
        UNTIL(w->event, w->n_held == ELEMENTSOF(w->held));
        w->watch = ipc_call_unref(w->watch);
        UNTIL(w->event, egress_link_ask(w->link, NAME, 443, "GET", "/", false, NULL, on_answer, w, &q) >= 0); /* in its place */
        n++;
        run_for(w->event, 1200000); /* in which it tries in vain */
        assert_null(w->watch);
        w->hold = false;
        while (w->n_held > 0) {
                assert_int_equal(answer(w, w->held[--w->n_held]), 0);
                ipc_call_unref(w->held[w->n_held]);
        }
        UNTIL(w->event, w->watch);
        UNTIL(w->event, w->n_answers == n);
        assert_int_equal(w->n_lost, 0);
}

/* Which connection is to carry a request, and what it carries besides. */
static void test_within(void **state) {
        const int32_t open[] = { 1, 3 };
        World *w = *state;
        EgressQuestion *q;

        ask(w);
        UNTIL(w->event, w->n_answers == 1);
        assert_string_equal(w->within, "{}");
        assert_int_equal(egress_link_ask(w->link, NAME, 443, "GET", "/", false, &(EgressWithin) { .grant = 7 }, on_answer, w, &q), 0);
        UNTIL(w->event, w->n_answers == 2);
        assert_string_equal(w->within, "{\"within\":7}");
        assert_int_equal(egress_link_ask(w->link, NAME, 443, "GET", "/", false, &(EgressWithin) { 7, 3, open, 2 }, on_answer, w, &q), 0);
        UNTIL(w->event, w->n_answers == 3);
        assert_string_equal(w->within, "{\"open\":[1,3],\"stream\":3,\"within\":7}");
}

/* Whoever asked is gone: the grant that comes all the same is given back. */
static void test_forgotten_question(void **state) {
        EgressQuestion *q = NULL;
        World *w = *state;

        w->hold = true;
        assert_int_equal(egress_link_ask(w->link, NAME, 443, "GET", "/", false, NULL, on_answer, w, &q), 0);
        UNTIL(w->event, w->n_held > 0);
        q = egress_question_free(q);
        assert_int_equal(answer(w, w->held[0]), 0);
        UNTIL(w->event, w->done == 7);
        assert_int_equal(w->n_answers, 0);
}

/* It ends while questions are under way. */
static void test_ends_asking(void **state) {
        World *w = *state;

        w->hold = true;
        ask(w);
        UNTIL(w->event, w->n_held > 0);
        w->link = egress_link_free(w->link);
        assert_int_equal(w->n_answers, 0);
}

static int enter_world(void **state) {
        own_world_enter(0);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_leaf),
                cmocka_unit_test(test_leaf_constraints),
                cmocka_unit_test(test_credential),
                cmocka_unit_test_setup_teardown(test_notes, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_many_notes, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_spent_notes, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_notes_not_taken, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_last_notes, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_link, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_watch_again, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_within, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_forgotten_question, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_ends_asking, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, enter_world, NULL);
}
