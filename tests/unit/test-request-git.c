/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Git through inject, on streams of HTTP/2 (over HTTP/1.1: tests/integration/test_credential_git.py): what reaches the origin, and what a client is told. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <zlib.h>

#include <cmocka.h>

#include "git-golden.h"
#include "h2-world.h"

#define RULE(push) "{\"repositories\":[\"v1/app\"],\"fetch\":true,\"lfs\":true,\"push\":{\"refs\":[\"refs/heads/main\"],\"max_pack\":\"1M\"" push "}}"
/* x-access-token:SECRET */
#define AUTHORIZATION "authorization: Basic eC1hY2Nlc3MtdG9rZW46c2stYW50LXRoZS1yZWFsLW9uZS0wMTIz\n"

static void take_push(H2World *w, Slot *slot, bool ended) {
        if (!ended)
                return;
        origin_answer(w, slot, ":status: 200\n", true);
        side_send(&w->origin, slot, "taken", true);
}

static Slot *post(H2World *w, const char *path) {
        w->serve = take_push;
        return guest_ask(w, "POST", path, "", true);
}

static void push_bytes(H2World *w, Slot *slot, const void *data, size_t size, bool over) {
        assert_int_equal(buffer_append(&slot->out, data, size), 0);
        side_send(&w->guest, slot, "", over);
        h2_run(w);
}

static bool arrived(const H2World *w, const void *data, size_t size) {
        const Slot *o = &w->origin.slots[w->origin.n_slots - 1];

        return buffer_size(&o->body) == size && memcmp(buffer_data(&o->body), data, size) == 0;
}

#define ALL(golden) golden, sizeof(golden)

static void test_push(void **state) {
        H2World *w = *state;
        Slot *g;

        w->base.git = RULE("");
        g = post(w, "/v1/app.git/git-receive-pack");
        for (size_t i = 0; i < sizeof(golden_push_create); i += 100) {
                size_t n = sizeof(golden_push_create) - i < 100 ? sizeof(golden_push_create) - i : 100;

                push_bytes(w, g, golden_push_create + i, n, i + n == sizeof(golden_push_create));
        }
        assert_true(has(g, ":status: 200\n"));
        assert_true(body_has(g, "taken"));
        assert_int_equal(w->origin.n_slots, 1);
        assert_true(arrived(w, ALL(golden_push_create)));
        assert_true(has(&w->origin.slots[0], AUTHORIZATION));
        assert_true(logged(&w->base, "\"event\":\"git.push\""));
        assert_true(logged(&w->base, "\"change\":\"create\""));
        assert_true(logged(&w->base, "\"event\":\"credential.used\""));
}

/* Nothing is put in place, and nothing is judged, where no rule is about git. */
static void test_no_rule(void **state) {
        H2World *w = *state;
        Slot *g;

        g = post(w, "/v1/app.git/git-receive-pack");
        push_bytes(w, g, ALL(golden_push_force), true);
        assert_true(body_has(g, "taken"));
        assert_true(arrived(w, ALL(golden_push_force)));
        assert_false(has(&w->origin.slots[0], "authorization"));
        g = post(w, "/v1/app.git/git-upload-pack");
        push_bytes(w, g, "hello", 5, true);
        assert_true(arrived(w, "hello", 5));
        assert_false(logged(&w->base, "git."));
}

/* The same for a request that egressd is not asked about; test_push() is the control. */
static void test_covered(void **state) {
        H2World *w = *state;
        Slot *g;

        w->pair->covered = true;
        g = post(w, "/v1/app.git/git-receive-pack");
        push_bytes(w, g, ALL(golden_push_force), true);
        assert_int_equal(w->base.n_questions, 0);
        assert_true(arrived(w, ALL(golden_push_force)));
        assert_false(has(&w->origin.slots[0], "authorization"));
}

/* The answer waits until the client has sent all it has to send: only then it reads. */
static void test_refused_ref(void **state) {
        static const char why[] = "ng refs/heads/a no ref that policy allows to be pushed to\n", other[] = "ng refs/tags/t no ref";
        H2World *w = *state;
        Slot *g;

        w->base.git = RULE("");
        g = post(w, "/v1/app/git-receive-pack");
        push_bytes(w, g, golden_push_many, 200, false);
        assert_false(has(g, ":status"));
        push_bytes(w, g, golden_push_many + 200, sizeof(golden_push_many) - 200 - 5, false);
        assert_false(has(g, ":status"));
        push_bytes(w, g, golden_push_many + sizeof(golden_push_many) - 5, 5, true);
        assert_true(has(g, ":status: 200\n"));
        assert_true(has(g, "content-type: application/x-git-receive-pack-result\n"));
        assert_true(has(g, "anchorhold-reason: git-ref\n"));
        assert_true(body_has(g, "unpack ok\n"));
        assert_true(body_has(g, why));
        assert_true(body_has(g, other));
        assert_int_equal(w->origin.n_slots, 0);
        assert_true(logged(&w->base, "\"verdict\":\"refused\""));
        assert_true(g->closed);
        assert_int_equal(g->code, NGHTTP2_NO_ERROR);
}

static void check_update(H2World *w, const char *rule, const void *data, size_t size, bool passes) {
        size_t before = w->origin.n_slots;
        Slot *g;

        w->base.git = rule;
        g = post(w, "/v1/app/git-receive-pack");
        push_bytes(w, g, data, size, true);
        assert_int_equal(w->origin.n_slots - before, passes);
        assert_int_equal(body_has(g, "taken"), passes);
        assert_int_equal(body_has(g, "not shown to be a fast-forward"), !passes);
}

static void test_force(void **state) {
        H2World *w = *state;

        check_update(w, RULE(""), ALL(golden_push_forward), true);
        check_update(w, RULE(""), ALL(golden_push_deltas), true);
        check_update(w, RULE(""), ALL(golden_push_sha256), true);
        check_update(w, RULE(""), ALL(golden_push_force), false);
        check_update(w, RULE(",\"force\":true"), ALL(golden_push_force), true);
        /* what shows it is missing */
        check_update(w, RULE(""), golden_push_forward, sizeof(golden_push_forward) - 500, false);
}

/* Too large: the origin has a part of it, which is nothing to it. */
static void test_pack_size(void **state) {
        H2World *w = *state;
        Slot *g;

        w->base.git = RULE("");
        g = post(w, "/v1/app/git-receive-pack");
        g->out_more = 3000000;
        push_bytes(w, g, ALL(golden_push_create), true);
        assert_int_equal(w->origin.n_slots, 1);
        assert_true(w->origin.slots[0].closed);
        assert_int_equal(w->origin.slots[0].code, NGHTTP2_CANCEL);
        assert_true(w->origin.slots[0].n_bytes <= 1 << 20);
        assert_true(has(g, "anchorhold-reason: git-pack-size\n"));
        assert_true(body_has(g, "unpack The pack is larger than the 1048576 bytes that policy allows.\n"));
        assert_true(logged(&w->base, "git-pack-size"));
        assert_true(w->most < 512 * 1024);
}

/* A pack that is allowed goes by, and does not stay. */
static void test_large_pack(void **state) {
        H2World *w = *state;
        Slot *g;

        w->base.git = "{\"push\":{\"refs\":[\"refs/heads/*\"],\"max_pack\":\"1G\"}}";
        g = post(w, "/v1/app/git-receive-pack");
        g->out_more = 40000000;
        push_bytes(w, g, ALL(golden_push_create), true);
        assert_true(body_has(g, "taken"));
        assert_int_equal(w->origin.slots[0].n_bytes, sizeof(golden_push_create) + 40000000);
        assert_true(w->most < 512 * 1024);
        assert_int_equal(w->base.context.gathered, 0);
}

static void test_unreadable_push(void **state) {
        H2World *w = *state;
        Slot *g;

        w->base.git = RULE("");
        g = post(w, "/v1/app/git-receive-pack");
        push_bytes(w, g, "hello, this is no push", 22, true);
        assert_true(has(g, ":status: 403\n")); /* whoever says that reads no report */
        assert_true(has(g, "anchorhold-reason: git-unreadable\n"));
        assert_int_equal(w->origin.n_slots, 0);
}

static void test_fetch(void **state) {
        H2World *w = *state;
        Slot *g;

        w->base.git = RULE("");
        g = post(w, "/v1/app.git/git-upload-pack");
        push_bytes(w, g, ALL(golden_fetch_v2), true);
        assert_true(body_has(g, "taken"));
        assert_true(arrived(w, ALL(golden_fetch_v2)));
        assert_true(has(&w->origin.slots[0], AUTHORIZATION));
        assert_true(logged(&w->base, "\"event\":\"git.fetch\""));

        g = post(w, "/v1/app.git/git-upload-pack");
        push_bytes(w, g, "0016command=something\n0000", 26, true);
        assert_true(has(g, ":status: 200\n"));
        assert_true(body_has(g, "ERR anchorhold: The request cannot be read: its command is not known here."));
        assert_int_equal(w->origin.n_slots, 1);
}

static void batch(H2World *w, const char *body, bool passes) {
        size_t before = w->origin.n_slots;
        Slot *g = post(w, "/v1/app.git/info/lfs/objects/batch");

        push_bytes(w, g, body, strlen(body), true);
        assert_int_equal(w->origin.n_slots - before, passes);
        assert_int_equal(has(g, "anchorhold-reason: git-"), !passes);
}

/* What a server might read otherwise than it is judged is refused. */
static void test_lfs(void **state) {
        H2World *w = *state;

        w->base.git = RULE("");
        batch(w, "{\"operation\":\"download\",\"objects\":[]}", true);
        batch(w, "{\"operation\":\"upload\",\"ref\":{\"name\":\"refs/heads/main\"},\"objects\":[{\"size\":7}]}", true);
        batch(w, "{\"operation\":\"upload\",\"ref\":{\"name\":\"refs/heads/other\"},\"objects\":[{\"size\":7}]}", false);
        batch(w, "{\"operation\":\"upload\",\"ref\":{\"name\":\"refs/heads/main\"},\"objects\":[{\"size\":7000000}]}", false);
        batch(w, "{\"operation\":\"download\",\"Operation\":\"upload\",\"objects\":[]}", false);
        batch(w, "{\"operation\":\"download\",\"objects\":[],\"object\xc5\xbf\":[]}", false);
        batch(w, "{\"operation\":\"upload\",\"ref\":{\"name\":\"refs/heads/main\",\"NAME\":\"refs/heads/other\"},\"objects\":[]}", false);
        batch(w, "{\"operation\":\"upload\",\"ref\":{\"name\":\"refs/heads/main\"},\"objects\":[{\"size\":7,\"sIze\":7000000}]}", false);
        batch(w, "{\"operation\":\"download\",\"operation\":\"upload\",\"objects\":[]}", false);
}

/* A stream that is as large as what is in it: so it comes in more pieces than one. name: of the file that it pretends to be; NULL: none. */
static size_t make_gzip_called(const char *name, const void *text, size_t size, uint8_t *ret, size_t room) {
        z_stream z = { .next_in = (Bytef *) text, .avail_in = (uInt) size, .next_out = ret, .avail_out = (uInt) room };
        gz_header head = { .name = (Bytef *) name, .os = 255 };

        assert_int_equal(deflateInit2(&z, Z_NO_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
        if (name)
                assert_int_equal(deflateSetHeader(&z, &head), Z_OK);
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        (void) deflateEnd(&z);
        return room - z.avail_out;
}

static size_t make_gzip(const void *text, size_t size, uint8_t *ret, size_t room) {
        return make_gzip_called(NULL, text, size, ret, room);
}

static Slot *post_gzip(H2World *w, const void *data, size_t size) {
        Slot *g;

        w->serve = take_push;
        g = guest_ask(w, "POST", "/v1/app.git/git-upload-pack", "content-encoding: gzip\n", true);
        push_bytes(w, g, data, size, true);
        return g;
}

/* Also where no rule is about git, and the body is nothing of git's, its sentinels are found. */
static void test_encoded(void **state) {
        H2World *w = *state;
        uint8_t text[60000], encoded[70000];
        size_t n;
        Slot *g;

        memset(text, 'x', sizeof(text));
        n = make_gzip(text, sizeof(text), encoded, sizeof(encoded));
        g = post_gzip(w, encoded, n);
        assert_true(body_has(g, "taken"));
        assert_true(arrived(w, encoded, n));

        memcpy(text + 50000, OTHER, strlen(OTHER));
        n = make_gzip(text, sizeof(text), encoded, sizeof(encoded));
        g = post_gzip(w, encoded, n);
        assert_true(has(g, "anchorhold-reason: credential-misuse\n"));

        /* beside the text, where only who looks at the stream itself finds it */
        n = make_gzip_called(OTHER, text, 100, encoded, sizeof(encoded));
        g = post_gzip(w, encoded, n);
        assert_true(has(g, "anchorhold-reason: credential-misuse\n"));
        n = make_gzip_called("a-name-that-is-none", text, 100, encoded, sizeof(encoded));
        g = post_gzip(w, encoded, n);
        assert_true(body_has(g, "taken"));
        assert_true(arrived(w, encoded, n));

        g = post_gzip(w, "no gzip, but " OTHER, strlen("no gzip, but " OTHER));
        assert_true(has(g, "anchorhold-reason: git-unreadable\n"));
        n = make_gzip(text, 100, encoded, sizeof(encoded));
        g = post_gzip(w, encoded, n - 1); /* cut off */
        assert_true(has(g, "anchorhold-reason: git-unreadable\n"));
        assert_int_equal(w->origin.n_slots, 2);
}

/* No record, no push. */
static void test_audit_refuses(void **state) {
        H2World *w = *state;
        Slot *g;

        w->base.git = RULE("");
        w->base.audit_refuses = true;
        g = post(w, "/v1/app.git/git-receive-pack");
        push_bytes(w, g, ALL(golden_push_create), true);
        assert_true(has(g, ":status: 503\n"));
        assert_int_equal(w->origin.n_slots, 0);
}

/* A denial of egressd's, as git shows it to its user. */
static void test_denied(void **state) {
        H2World *w = *state;
        Slot *g;

        w->base.deny = "path";
        g = guest_ask(w, "GET", "/v1/other/info/refs?service=git-upload-pack", "", false);
        h2_run(w);
        assert_true(has(g, ":status: 200\n"));
        assert_true(has(g, "content-type: application/x-git-upload-pack-advertisement\n"));
        assert_true(body_has(g, "001e# service=git-upload-pack\n0000"));
        assert_true(body_has(g, "ERR anchorhold: Not allowed by policy (path, test)."));
        g = guest_ask(w, "GET", "/v1/other/info/refs", "", false);
        h2_run(w);
        assert_true(has(g, ":status: 403\n"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up_pair, tear_down_pair)
                TEST(test_push),
                TEST(test_no_rule),
                TEST(test_covered),
                TEST(test_refused_ref),
                TEST(test_force),
                TEST(test_pack_size),
                TEST(test_large_pack),
                TEST(test_unreadable_push),
                TEST(test_fetch),
                TEST(test_lfs),
                TEST(test_encoded),
                TEST(test_audit_refuses),
                TEST(test_denied),
        };

        return cmocka_run_group_tests(tests, enter_own_world, NULL);
}
