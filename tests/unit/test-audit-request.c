/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "audit/audit-request.h"
#include "util/json.h"

#define RUN "r3k9x0a1b2c3d"
#define OTHER "r000000000000"
#define ITEM "i3k9x0a1b2c3d"

static const struct {
        unsigned roles;
        const char *params;
        AuditRequestVerdict verdict;
        const char *pointer, *reason;
} cases[] = {
        { PEER_RUN, "{'event':'run.step','data':{}}", AUDIT_REQUEST_GOOD },
        { PEER_RUN, "{'event':'run.step','run':'" RUN "','data':{}}", AUDIT_REQUEST_GOOD },
        { PEER_SECRETD, "{'event':'secret.registered','run':'" RUN "','item':'" ITEM "','data':{}}", AUDIT_REQUEST_GOOD },
        { PEER_RUN, "{'event':'run.step','actor':'me','data':{}}", AUDIT_REQUEST_GOOD },
        { PEER_ANCHORD, "{'event':'run.leased','run':'" OTHER "','item':'" ITEM "','actor':'uid 5','data':{}}", AUDIT_REQUEST_GOOD },
        { PEER_OPERATOR, "{'event':'approval.recorded','item':'" ITEM "','data':{}}", AUDIT_REQUEST_GOOD },

        { PEER_ANCHORD, "{'event':'hold.set','key':'anchord-7','data':{}}", AUDIT_REQUEST_GOOD },

        { PEER_RUN, "{'event':'run.step','key':'1','data':{}}", AUDIT_REQUEST_GOOD, NULL, NULL },
        { PEER_NETLOG, "{'event':'conn.deny','key':'1','data':{}}", AUDIT_REQUEST_GOOD, NULL, NULL },
        { PEER_NET, "{'event':'egress.totals','key':'1','data':{}}", AUDIT_REQUEST_GOOD, NULL, NULL },
        { PEER_PROXY, "{'event':'conn.deny','key':'1','data':{}}", AUDIT_REQUEST_DENIED, NULL, "This unit of a run gives no key." },
        { PEER_INJECT, "{'event':'model.call','key':'1','data':{}}", AUDIT_REQUEST_GOOD, NULL, NULL },
        { PEER_RUN, "{'event':'run.step','item':'" ITEM "','data':{}}", AUDIT_REQUEST_DENIED, NULL, "A unit of a run names no item." },
        { PEER_PROXY, "{'event':'conn.deny','run':'" RUN "','item':'" ITEM "','data':{}}", AUDIT_REQUEST_DENIED, NULL, "A unit of a run names no item." },
        { PEER_RUN, "{'event':'run.step','run':'" OTHER "','data':{}}", AUDIT_REQUEST_DENIED, NULL, "A unit of a run writes for its own run only." },
        { PEER_RUN, "{'event':'run.step','actor':'you','data':{}}", AUDIT_REQUEST_DENIED, NULL, "This peer writes in its own name only." },
        { PEER_RUN, "{'event':'egress.allow','data':{}}", AUDIT_REQUEST_DENIED, NULL, "This event is not written by this peer." },
        { PEER_PROXY, "{'event':'run.verdict','data':{}}", AUDIT_REQUEST_DENIED, NULL, "This event is not written by this peer." },
        { PEER_ANCHORD, "{'event':'approval.recorded','item':'" ITEM "','data':{}}", AUDIT_REQUEST_DENIED, NULL, "This event is not written by this peer." },
        { PEER_ANCHORD, "{'event':'audit.checkpoint','data':{}}", AUDIT_REQUEST_DENIED, NULL, "This event is not written by this peer." },
        { PEER_OPERATOR | PEER_ROOT, "{'event':'run.leased','run':'" RUN "','item':'" ITEM "','data':{}}", AUDIT_REQUEST_DENIED, NULL, "This event is not written by this peer." },

        { PEER_RUN, "{'event':'none','data':{}}", AUDIT_REQUEST_BAD_INPUT, "/event", "is no event's name" },
        { PEER_RUN, "{'data':{}}", AUDIT_REQUEST_BAD_INPUT, "/event", "is missing" },
        { PEER_RUN, "{'event':'run.step'}", AUDIT_REQUEST_BAD_INPUT, "/data", "is missing" },
        { PEER_RUN, "{'event':'run.step','data':[]}", AUDIT_REQUEST_BAD_INPUT, "/data", "must be an object, is an array" },
        { PEER_RUN, "{'event':'run.step','run':'x','data':{}}", AUDIT_REQUEST_BAD_INPUT, "/run", "is no run id" },
        { PEER_RUN, "{'event':'run.step','item':'" RUN "','data':{}}", AUDIT_REQUEST_BAD_INPUT, "/item", "is no item id" },
        { PEER_RUN, "{'event':'run.step','actor':'a\\nb','data':{}}", AUDIT_REQUEST_BAD_INPUT, "/actor", "must be 1 to 128 printable ASCII characters" },
        { PEER_ANCHORD, "{'event':'hold.set','key':'','data':{}}", AUDIT_REQUEST_BAD_INPUT, "/key", "must be 1 to 64 printable ASCII characters" },
        { PEER_RUN, "{'event':'run.step','data':{},'seq':1}", AUDIT_REQUEST_BAD_INPUT, "/seq", "is not a known key" },
        { PEER_ANCHORD, "{'event':'run.leased','item':'" ITEM "','data':{}}", AUDIT_REQUEST_BAD_INPUT, NULL, "This event needs a run." },
        { PEER_ANCHORD, "{'event':'item.submitted','data':{}}", AUDIT_REQUEST_BAD_INPUT, NULL, "This event needs an item." },
};

static json_t *parse(const char *quoted) {
        _cleanup_free_ char *text = strdup(quoted);
        json_t *j = NULL;

        for (char *p = text; *p; p++)
                if (*p == '\'')
                        *p = '"';
        assert_int_equal(json_parse(text, strlen(text), &j, NULL), 0);
        return j;
}

static void test_cases(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_json_ json_t *params = parse(cases[i].params);
                _cleanup_(audit_request_done) AuditRequest q = {};
                Peer peer = { .roles = PEER_OTHER | cases[i].roles, .pidfd = -1 };

                if (cases[i].roles & AUDIT_RUN_ROLES)
                        strcpy(peer.run, RUN);
                assert_int_equal(audit_request_read(&q, params, &peer, "me"), 0);
                if (q.verdict != cases[i].verdict)
                        fail_msg("%s: verdict %d, %s", cases[i].params, (int) q.verdict, q.reason);
                if (cases[i].pointer)
                        assert_string_equal(q.pointer, cases[i].pointer);
                if (cases[i].reason)
                        assert_string_equal(q.reason, cases[i].reason);
        }
}

static void test_record(void **state) {
        _cleanup_json_ json_t *params = parse("{'event':'run.step','data':{'step':'a\\nb','z':1,'a':'\\u00e9'}}");
        _cleanup_(audit_request_done) AuditRequest q = {};
        _cleanup_(audit_record_done) AuditRecord record = {};
        Peer peer = { .roles = PEER_RUN, .run = RUN, .pidfd = -1 };
        static const uint8_t prev[AUDIT_HASH_SIZE];
        const char *reason;

        assert_int_equal(audit_request_read(&q, params, &peer, "anchor-run@" RUN ".service"), 0);
        assert_int_equal(audit_request_fill(&q, "00112233445566778899aabbccddeeff", "anchor-run@" RUN ".service", &record), 0);
        assert_int_equal(audit_record_seal(&record, 1, prev), 0);
        assert_int_equal(audit_record_check(&record, &reason), AUDIT_CHECK_GOOD);
        assert_string_equal(record.value[AUDIT_DATA], "{\"a\":\"\\u00E9\",\"step\":\"a\\nb\",\"z\":1}");
        assert_string_equal(record.value[AUDIT_RUN], RUN);
        assert_string_equal(record.value[AUDIT_ACTOR], "anchor-run@" RUN ".service");
        assert_string_equal(record.value[AUDIT_MESSAGE], "Run " RUN ": step a\\x0ab");
}

static void test_too_large(void **state) {
        _cleanup_free_ char *text = calloc(1, AUDIT_DATA_MAX + 1);
        _cleanup_json_ json_t *params = NULL;
        _cleanup_(audit_request_done) AuditRequest q = {};
        Peer peer = { .roles = PEER_RUN, .run = RUN, .pidfd = -1 };

        memset(text, 'x', AUDIT_DATA_MAX);
        params = json_pack("{s:s, s:{s:s}}", "event", "run.step", "data", "text", text);
        assert_int_equal(audit_request_read(&q, params, &peer, "me"), 0);
        assert_int_equal(q.verdict, AUDIT_REQUEST_BAD_INPUT);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_cases),
                cmocka_unit_test(test_record),
                cmocka_unit_test(test_too_large),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
