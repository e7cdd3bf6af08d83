/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Git's smart protocol as git itself speaks it (git-golden.h), and as others might. */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <zlib.h>

#include "git-golden.h"
#include "inject/git-fetch.h"
#include "inject/git-pack.h"
#include "inject/git-push.h"
#include "util/text.h"

#define NAME_A "1111111111111111111111111111111111111111"
#define NAME_B "2222222222222222222222222222222222222222"
#define NO_NAME "0000000000000000000000000000000000000000"

static void test_pkt_line(void **state) {
        Buffer out = {};
        PktLine p;

        assert_int_equal(pkt_line_read("0009hello", 9, &p), 9);
        assert_int_equal(p.size, 5);
        assert_memory_equal(p.data, "hello", 5);
        assert_int_equal(pkt_line_read("0009hell", 8, &p), 0);
        assert_int_equal(pkt_line_read("00", 2, &p), 0);
        assert_int_equal(pkt_line_read("0x", 2, &p), -EBADMSG);
        assert_int_equal(pkt_line_read("0000", 4, &p), 4);
        assert_int_equal(p.kind, PKT_FLUSH);
        assert_int_equal(pkt_line_read("0001", 4, &p), 4);
        assert_int_equal(p.kind, PKT_DELIM);
        assert_int_equal(pkt_line_read("0002", 4, &p), 4);
        assert_int_equal(p.kind, PKT_RESPONSE_END);
        assert_int_equal(pkt_line_read("0003", 4, &p), -EBADMSG);
        assert_int_equal(pkt_line_read("0004", 4, &p), 4);
        assert_int_equal(p.size, 0);
        assert_int_equal(pkt_line_read("fff0", 4, &p), 0);
        assert_int_equal(pkt_line_read("fff1", 4, &p), -EBADMSG);
        assert_int_equal(pkt_line_read("000Aab\ncd\n", 10, &p), 10);
        assert_int_equal(pkt_line_text_size(&p), 5);

        assert_int_equal(pkt_line_append(&out, "hello", 5), 0);
        assert_int_equal(pkt_line_append_flush(&out), 0);
        assert_int_equal(buffer_size(&out), 13);
        assert_memory_equal(buffer_data(&out), "0009hello0000", 13);
        assert_int_equal(pkt_line_append(&out, out.data, PKT_DATA_MAX + 1), -E2BIG);
        buffer_done(&out);
}

/* In pieces of that size; the result of the end. */
static int feed(GitPush *p, const void *data, size_t size, size_t piece) {
        const uint8_t *at = data;

        for (size_t i = 0; i < size; i += piece) {
                int r = git_push_feed(p, at + i, piece < size - i ? piece : size - i, false);

                if (r == GIT_PUSH_E_MALFORMED)
                        return r;
                assert_true(r >= 0);
        }
        return git_push_feed(p, NULL, 0, true);
}

/* One command, becoming that. */
static void check_push(const void *data, size_t size, const char *ref, GitChange change) {
        static const size_t pieces[] = { 1, 3, 100, 1 << 20 };

        for (size_t i = 0; i < ELEMENTSOF(pieces); i++) {
                _cleanup_(git_push_freep) GitPush *p = NULL;

                assert_int_equal(git_push_new(&p), 0);
                assert_int_equal(feed(p, data, size, pieces[i]), GIT_PUSH_E_READY);
                assert_int_equal(p->n_commands, 1);
                assert_string_equal(p->commands[0].ref, ref);
                assert_int_equal(p->commands[0].change, change);
                assert_true(p->reports && p->sideband);
                assert_true(change == GIT_DELETE ? p->pack_size == 0 : p->pack_size >= 32);
        }
}

static void test_golden_pushes(void **state) {
        check_push(golden_push_create, sizeof(golden_push_create), "refs/heads/main", GIT_CREATE);
        check_push(golden_push_forward, sizeof(golden_push_forward), "refs/heads/main", GIT_FAST_FORWARD);
        check_push(golden_push_force, sizeof(golden_push_force), "refs/heads/main", GIT_FORCE);
        check_push(golden_push_options, sizeof(golden_push_options), "refs/heads/b", GIT_CREATE);
        check_push(golden_push_delete, sizeof(golden_push_delete), "refs/heads/a", GIT_DELETE);
        check_push(golden_push_sha256, sizeof(golden_push_sha256), "refs/heads/main", GIT_FAST_FORWARD);
        check_push(golden_push_long, sizeof(golden_push_long), "refs/heads/main", GIT_FAST_FORWARD);
        check_push(golden_push_deltas, sizeof(golden_push_deltas), "refs/heads/main", GIT_FAST_FORWARD);
}

static void test_several_refs(void **state) {
        _cleanup_(git_push_freep) GitPush *p = NULL;

        assert_int_equal(git_push_new(&p), 0);
        assert_int_equal(feed(p, golden_push_many, sizeof(golden_push_many), 7), GIT_PUSH_E_READY);
        assert_int_equal(p->n_commands, 2);
        assert_string_equal(p->commands[0].ref, "refs/heads/a");
        assert_string_equal(p->commands[1].ref, "refs/tags/t");
        assert_int_equal(strlen(p->commands[0].after), 40);
}

/* Nothing of a pack is needed where nothing is to be shown: what goes on is not held. */
static void test_ready_at_once(void **state) {
        _cleanup_(git_push_freep) GitPush *p = NULL;
        const char *pack;

        pack = memmem(golden_push_create, sizeof(golden_push_create), "PACK", 4);
        assert_non_null(pack);
        assert_int_equal(git_push_new(&p), 0);
        assert_int_equal(git_push_feed(p, golden_push_create, (size_t) (pack - (const char *) golden_push_create), false), GIT_PUSH_E_READY);
        assert_int_equal(p->pack_size, 0);
}

/* A fast-forward must be shown: not by half of the pack, nor by one whose commits are others. */
static void test_unproved(void **state) {
        _cleanup_(git_push_freep) GitPush *half = NULL, *other = NULL;
        uint8_t forged[sizeof(golden_push_forward)];

        assert_int_equal(git_push_new(&half), 0);
        assert_int_equal(feed(half, golden_push_forward, 300, 300), GIT_PUSH_E_READY);
        assert_int_equal(half->commands[0].change, GIT_FORCE);

        /* the name that the ref is said to have now: no parent of any commit in the pack */
        memcpy(forged, golden_push_forward, sizeof(forged));
        forged[4] = forged[4] == 'a' ? 'b' : 'a';
        assert_int_equal(git_push_new(&other), 0);
        assert_int_equal(feed(other, forged, sizeof(forged), 50), GIT_PUSH_E_READY);
        assert_int_equal(other->commands[0].change, GIT_FORCE);
}

static void append(Buffer *out, const char *text, size_t size) {
        assert_int_equal(pkt_line_append(out, text, size), 0);
}

static const char *error_of(const char *first, size_t size, const char *second) {
        _cleanup_(git_push_freep) GitPush *p = NULL;
        const char *error;
        Buffer body = {};

        append(&body, first, size);
        if (second)
                append(&body, second, strlen(second));
        assert_int_equal(pkt_line_append_flush(&body), 0);
        assert_int_equal(git_push_new(&p), 0);
        error = feed(p, buffer_data(&body), buffer_size(&body), 1000) == GIT_PUSH_E_MALFORMED ? p->error : NULL;
        buffer_done(&body);
        return error;
}

#define FIRST(text) text "\0 report-status", sizeof(text "\0 report-status") - 1

static void test_malformed_pushes(void **state) {
        _cleanup_(git_push_freep) GitPush *p = NULL;

        assert_null(error_of(FIRST(NO_NAME " " NAME_A " refs/heads/x"), NULL));
        assert_null(error_of(FIRST(NO_NAME " " NAME_A " refs/heads/x"), NO_NAME " " NAME_A " refs/heads/y"));
        assert_non_null(error_of(FIRST(NO_NAME " " NAME_A " refs/heads/x"), NO_NAME " " NAME_B " refs/heads/x"));
        assert_non_null(error_of(FIRST(NO_NAME " " NO_NAME " refs/heads/x"), NULL));
        assert_non_null(error_of(FIRST(NO_NAME " " NAME_A " refs/heads/../x"), NULL));
        assert_non_null(error_of(FIRST(NO_NAME " " NAME_A " HEAD"), NULL));
        assert_non_null(error_of(FIRST(NO_NAME " " NAME_A " refs/heads/a b"), NULL));
        assert_non_null(error_of(FIRST(NO_NAME " 11 refs/heads/x"), NULL));
        assert_non_null(error_of(FIRST("hello"), NULL));
        assert_non_null(error_of("push-cert\0report-status", 23, NULL));
        assert_non_null(error_of(FIRST(NO_NAME " " NAME_A " refs/heads/x"), NO_NAME NO_NAME));

        assert_int_equal(git_push_new(&p), 0);
        assert_int_equal(feed(p, "0032", 4, 4), GIT_PUSH_E_MALFORMED); /* cut off */
        p = git_push_free(p);
        assert_int_equal(git_push_new(&p), 0);
        assert_int_equal(feed(p, "GET / HTTP/1.1", 14, 14), GIT_PUSH_E_MALFORMED);
        p = git_push_free(p);
        /* what git sends before a large push, to see whether it may */
        assert_int_equal(git_push_new(&p), 0);
        assert_int_equal(feed(p, "0000", 4, 4), GIT_PUSH_E_READY);
        assert_int_equal(p->n_commands, 0);
}

static const char *refuse(const GitCommand *command, void *userdata) {
        return userdata;
}

static void test_report(void **state) {
        static const char plain[] = "000eunpack ok\n002ang refs/heads/x not allowed by policy\n0000";
        _cleanup_(git_push_freep) GitPush *p = NULL, *none = NULL;
        Buffer body = {}, out = {};

        append(&body, FIRST(NO_NAME " " NAME_A " refs/heads/x"));
        assert_int_equal(pkt_line_append_flush(&body), 0);
        assert_int_equal(git_push_new(&p), 0);
        assert_int_equal(feed(p, buffer_data(&body), buffer_size(&body), 1000), GIT_PUSH_E_READY);
        assert_int_equal(git_push_write_report(p, "ok", refuse, (void *) "not allowed by policy", &out), 0);
        assert_int_equal(buffer_size(&out), strlen(plain));
        assert_memory_equal(buffer_data(&out), plain, strlen(plain));
        buffer_clear(&out);

        p->sideband = true;
        assert_int_equal(git_push_write_report(p, "ok", refuse, (void *) "not allowed by policy", &out), 0);
        assert_memory_equal(buffer_data(&out), "0041\001000eunpack ok\n", 19);
        assert_memory_equal(buffer_data(&out) + buffer_size(&out) - 8, "00000000", 8);

        assert_int_equal(git_push_new(&none), 0);
        assert_int_equal(git_push_write_report(none, "ok", refuse, (void *) "no", &out), -ENOTSUP);
        buffer_done(&body);
        buffer_done(&out);
}

static void check_fetch(const void *data, size_t size, const char *command, unsigned version, bool shallow, bool partial) {
        for (size_t piece = 1; piece < 4096; piece *= 5) {
                const uint8_t *at = data;
                GitFetch f = {};

                for (size_t i = 0; i < size; i += piece)
                        assert_int_equal(git_fetch_feed(&f, at + i, piece < size - i ? piece : size - i, false), 0);
                assert_int_equal(git_fetch_feed(&f, NULL, 0, true), 0);
                assert_string_equal(f.command, command);
                assert_int_equal(f.version, version);
                assert_int_equal(f.shallow, shallow);
                assert_int_equal(f.partial, partial);
                assert_true(strcmp(command, "fetch") != 0 || f.n_wants > 0);
                git_fetch_done(&f);
        }
}

static void test_golden_fetches(void **state) {
        check_fetch(golden_fetch_v0, sizeof(golden_fetch_v0), "fetch", 0, false, false);
        check_fetch(golden_list_v2, sizeof(golden_list_v2), "ls-refs", 2, false, false);
        check_fetch(golden_fetch_v2, sizeof(golden_fetch_v2), "fetch", 2, false, false);
        check_fetch(golden_fetch_shallow, sizeof(golden_fetch_shallow), "fetch", 2, true, false);
        check_fetch(golden_fetch_partial, sizeof(golden_fetch_partial), "fetch", 2, false, true);
        check_fetch(golden_fetch_haves_v0, sizeof(golden_fetch_haves_v0), "fetch", 0, false, false);
        check_fetch(golden_fetch_haves_v2, sizeof(golden_fetch_haves_v2), "fetch", 2, false, false);
}

static int fetch(const char *text) {
        GitFetch f = {};
        int r = git_fetch_feed(&f, text, strlen(text), true);

        assert_true(r == 0 || f.error);
        git_fetch_done(&f);
        return r;
}

static void test_malformed_fetches(void **state) {
        assert_int_equal(fetch("0032want " NAME_A "\n00000009done\n"), 0);
        assert_int_equal(fetch("0000"), 0);
        assert_int_equal(fetch("0014command=ls-refs\n0001000aunborn0000"), 0);
        assert_int_equal(fetch("0016command=something\n0000"), -EBADMSG);
        assert_int_equal(fetch("0014command=ls-refs\n0012command=fetch\n0000"), -EBADMSG);
        assert_int_equal(fetch("0010command=fetch0001000ahave x0000"), -EBADMSG);
        assert_int_equal(fetch("0032want " NAME_A "\n0001"), -EBADMSG);
        assert_int_equal(fetch("000ewant hello0000"), -EBADMSG);
        assert_int_equal(fetch("000dsome text0000"), -EBADMSG);
        assert_int_equal(fetch("0010have " NAME_A), -EBADMSG);
        assert_int_equal(fetch("0002"), -EBADMSG);
        assert_int_equal(fetch("0032want " NAME_A), -EBADMSG); /* cut off */
        assert_int_equal(fetch("{\"hello\":1}"), -EBADMSG);
}

static void test_services(void **state) {
        static const struct {
                const char *method, *target;
                GitService service;
                const char *repository;
        } cases[] = {
                { "GET", "/team/app.git/info/refs?service=git-upload-pack", GIT_ASK_FETCH, "team/app" },
                { "GET", "/team/app/info/refs?service=git-receive-pack", GIT_ASK_PUSH, "team/app" },
                { "POST", "/team/app.git/git-upload-pack", GIT_FETCH, "team/app" },
                { "POST", "/app/git-receive-pack", GIT_PUSH, "app" },
                { "POST", "/team/app.git/info/lfs/objects/batch", GIT_LFS_BATCH, "team/app" },
                { "GET", "/team/app.git/info/refs", GIT_DUMB, "team/app" },
                { "GET", "/team/app.git/info/refs?service=git-upload-pack&x=1", GIT_DUMB, "team/app" },
                { "POST", "/team/app.git/info/refs?service=git-upload-pack", GIT_DUMB, "team/app" },
                { "GET", "/team/app.git/git-upload-pack", GIT_NONE, NULL },
                { "POST", "/team/app.git/git-upload-pack?x", GIT_NONE, NULL },
                { "GET", "/team/app.git/HEAD", GIT_NONE, NULL },
                { "POST", "/git-upload-pack", GIT_NONE, NULL },
                { "GET", "/team/app.git/objects/info/packs", GIT_NONE, NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                const char *repository = NULL;
                size_t size = 0;

                assert_int_equal(git_service_of(cases[i].method, cases[i].target, &repository, &size), cases[i].service);
                if (cases[i].repository) {
                        assert_int_equal(size, strlen(cases[i].repository));
                        assert_memory_equal(repository, cases[i].repository, size);
                }
        }
}

static void test_refs(void **state) {
        static const char *const good[] = { "refs/heads/x", "refs/heads/a/b", "refs/tags/v1.0", "refs/for/main%r=x", "refs/heads/\303\244" };
        static const char *const bad[] = { "HEAD", "refs", "refs/", "heads/x", "refs/heads/", "refs//x", "refs/heads/.x", "refs/heads/x.lock", "refs/heads/a..b",
                                           "refs/heads/a@{b", "refs/heads/a b", "refs/heads/a\nb", "refs/heads/a^", "refs/heads/x.", "refs/heads/*" };

        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                assert_true(git_ref_is_valid(good[i]));
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_false(git_ref_is_valid(bad[i]));

        assert_true(git_ref_matches("refs/heads/agent/*", "refs/heads/agent/a/b"));
        assert_false(git_ref_matches("refs/heads/agent/*", "refs/heads/agent/"));
        assert_false(git_ref_matches("refs/heads/agent/*", "refs/heads/agents"));
        assert_true(git_ref_matches("refs/heads/*-wip", "refs/heads/x-wip"));
        assert_false(git_ref_matches("refs/heads/*-wip", "refs/heads/-wip"));
        assert_true(git_ref_matches("refs/heads/main", "refs/heads/main"));
        assert_false(git_ref_matches("refs/heads/main", "refs/heads/main2"));
}

static void test_rule(void **state) {
        json_t *rule = json_pack("{s:b, s:b, s:{s:[s], s:b, s:b, s:s}}", "fetch", 1, "lfs", 0, "push", "refs", "refs/heads/agent/*", "delete", 0, "force",
                                 0, "max_pack", "2M");
        json_t *reader = json_pack("{s:b, s:b}", "fetch", 1, "lfs", 1), *push = json_object_get(rule, "push");

        assert_null(git_rule_check_service(rule, GIT_ASK_FETCH));
        assert_null(git_rule_check_service(rule, GIT_PUSH));
        assert_string_equal(git_rule_check_service(rule, GIT_LFS_BATCH), "git-lfs");
        assert_string_equal(git_rule_check_service(rule, GIT_DUMB), "git-protocol");
        assert_string_equal(git_rule_check_service(rule, GIT_NONE), "git-protocol");
        assert_string_equal(git_rule_check_service(reader, GIT_ASK_PUSH), "git-push");
        assert_null(git_rule_check_service(reader, GIT_LFS_BATCH));
        assert_null(git_rule_check_ref(rule, "refs/heads/agent/x", GIT_CREATE));
        assert_null(git_rule_check_ref(rule, "refs/heads/agent/x", GIT_FAST_FORWARD));
        assert_string_equal(git_rule_check_ref(rule, "refs/heads/agent/x", GIT_FORCE), "git-force");
        assert_string_equal(git_rule_check_ref(rule, "refs/heads/agent/x", GIT_DELETE), "git-delete");
        assert_string_equal(git_rule_check_ref(rule, "refs/heads/main", GIT_CREATE), "git-ref");
        assert_string_equal(git_rule_check_ref(reader, "refs/heads/main", GIT_CREATE), "git-push");
        assert_int_equal(git_rule_max_pack(rule), 2 << 20);

        assert_int_equal(json_object_set_new(push, "force", json_true()), 0);
        assert_int_equal(json_object_set_new(push, "delete", json_true()), 0);
        assert_null(git_rule_check_ref(rule, "refs/heads/agent/x", GIT_FORCE));
        assert_null(git_rule_check_ref(rule, "refs/heads/agent/x", GIT_DELETE));
        json_decref(rule);
        json_decref(reader);
}

/* The fast-forward of the golden push, by its pack alone. */
static void test_pack(void **state) {
        _cleanup_(git_pack_freep) GitPack *p = NULL;
        uint8_t before[20], after[20], other[20] = {};
        char hex[41] = "";
        const uint8_t *pack;

        pack = memmem(golden_push_long, sizeof(golden_push_long), "PACK", 4);
        memcpy(hex, golden_push_long + 4, 40);
        assert_int_equal(text_unhex(hex, before, 20), 0);
        memcpy(hex, golden_push_long + 45, 40);
        assert_int_equal(text_unhex(hex, after, 20), 0);

        assert_int_equal(git_pack_new(&p, 20), 0);
        assert_true(git_pack_feed(p, pack, (size_t) (golden_push_long + sizeof(golden_push_long) - pack)));
        assert_int_equal(git_pack_commits(p), 40);
        assert_true(git_pack_descends(p, after, before));
        assert_false(git_pack_descends(p, before, after));
        assert_false(git_pack_descends(p, after, other));
        assert_false(git_pack_descends(p, after, after));
}

/* ---- deltas ---- */

#define COMMIT "tree " NAME_A "\n\nfirst\n"

static size_t put_object(uint8_t *to, unsigned type, const void *base, size_t base_size, const void *text, size_t size) {
        unsigned long n = 512;
        size_t at = 0;

        assert_true(size < 2048);
        to[at++] = (uint8_t) (type << 4 | (size & 0xf) | (size > 15 ? 0x80 : 0));
        if (size > 15)
                to[at++] = (uint8_t) (size >> 4);
        if (base_size > 0)
                memcpy(to + at, base, base_size);
        at += base_size;
        assert_int_equal(compress(to + at, &n, text, size), Z_OK);
        return at + n;
}

/* How many commits are read of one, a delta of it, and another. */
static size_t commits_with_delta(const void *delta, size_t delta_size) {
        static const uint8_t head[] = { 'P', 'A', 'C', 'K', 0, 0, 0, 2, 0, 0, 0, 3 };
        _cleanup_(git_pack_freep) GitPack *p = NULL;
        uint8_t pack[2048], back;
        size_t n = sizeof(head), first = n;

        memcpy(pack, head, sizeof(head));
        n += put_object(pack + n, 1, NULL, 0, COMMIT, strlen(COMMIT));
        back = (uint8_t) (n - first);
        assert_true(back < 0x80);
        n += put_object(pack + n, 6, &back, 1, delta, delta_size);
        n += put_object(pack + n, 1, NULL, 0, COMMIT "other\n", strlen(COMMIT "other\n"));
        assert_int_equal(git_pack_new(&p, 20), 0);
        assert_true(git_pack_feed(p, pack, n));
        return git_pack_commits(p);
}

/* A delta that makes nothing of its base is no part of a pack: what comes behind it is not read, as behind anything else that is none. */
static void test_deltas(void **state) {
        const uint8_t size = strlen(COMMIT);
        const struct {
                uint8_t delta[8];
                size_t size, commits;
        } cases[] = {
                { { size, size, 0x90, size }, 4, 3 },                /* all of it once more */
                { { size, 3, 3, 'a', 'b', 'c' }, 6, 3 },             /* other text, which has no parents */
                { { size, 0x80, 0x80, 0x80, 0x01, 1, 'a' }, 7, 2 },  /* too large for a commit: passed over */
                { { (uint8_t) (size + 1), 3, 3, 'a', 'b', 'c' }, 6, 1 }, /* of another base */
                { { size, size, 0x90, (uint8_t) (size + 1) }, 4, 1 },    /* beyond its end */
                { { size, size, 0x91, 1, size }, 5, 1 },
                { { size, 3, 4, 'a', 'b', 'c' }, 6, 1 },             /* more than there is */
                { { size, 2, 3, 'a', 'b', 'c' }, 6, 1 },             /* more than it says */
                { { size, 4, 3, 'a', 'b', 'c' }, 6, 1 },             /* less */
                { { size, 3, 0, 'a', 'b', 'c' }, 6, 1 },             /* reserved */
                { { size, 3, 0x90 }, 3, 1 },                         /* cut off */
                { { size }, 1, 1 },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                if (commits_with_delta(cases[i].delta, cases[i].size) != cases[i].commits)
                        fail_msg("case %zu: %zu commits", i, commits_with_delta(cases[i].delta, cases[i].size));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_pkt_line),
                cmocka_unit_test(test_golden_pushes),
                cmocka_unit_test(test_several_refs),
                cmocka_unit_test(test_ready_at_once),
                cmocka_unit_test(test_unproved),
                cmocka_unit_test(test_malformed_pushes),
                cmocka_unit_test(test_report),
                cmocka_unit_test(test_golden_fetches),
                cmocka_unit_test(test_malformed_fetches),
                cmocka_unit_test(test_services),
                cmocka_unit_test(test_refs),
                cmocka_unit_test(test_rule),
                cmocka_unit_test(test_pack),
                cmocka_unit_test(test_deltas),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
