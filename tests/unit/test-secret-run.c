/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a run gets, from policy files and a folder of credentials, and how it survives a restart. */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "secret/bundle-api.h"
#include "secret/register.h"
#include "secret/run-store.h"
#include "util/io.h"

#define MINUTE (60ULL * 1000 * 1000)
#define RUN "r0123456789ab"
#define ITEM "i0123456789ab"

static char top[] = "/tmp/test-secret-run-XXXXXX";

static void put(const char *path, const char *text) {
        _cleanup_free_ char *full = text_format("%s/%s", top, path);

        for (char *p = full + strlen(top) + 1; (p = strchr(p, '/')); p++) {
                *p = 0;
                (void) mkdir(full, 0700);
                *p = '/';
        }
        assert_int_equal(io_write_file_atomic(AT_FDCWD, full, text, strlen(text), 0600), 0);
}

static void copy(const char *from, const char *to) {
        _cleanup_free_ char *text = NULL;
        size_t size;

        assert_int_equal(io_read_file(AT_FDCWD, from, 1 << 20, &text, &size), 0);
        put(to, text);
}

/* The vendor's own policy, and one credential. */
static int set_up(void **state) {
        static const char *const files[] = {
                "credentials/anthropic.json", "egress/anthropic.json", "providers/anthropic.json", "harness/pi.json",
                "workflows/code-fix.json", "workflows/exec.json",
        };

        assert_non_null(mkdtemp(top));
        for (size_t i = 0; i < ELEMENTSOF(files); i++) {
                _cleanup_free_ char *from = text_format("policy/%s", files[i]);
                _cleanup_free_ char *to = text_format("usr/lib/anchorhold/policy/%s", files[i]);

                copy(from, to);
        }
        put("credentials/cred_anthropic", "sk-ant-real-0123456789\n");
        put("none/x", "");
        put("state/x", "");
        put("key/x", "");
        return 0;
}

static int tear_down(void **state) {
        _cleanup_free_ char *command = text_format("rm -rf %s", top);

        return system(command);
}

static int try_register(const char *run, const char *workflow, const char *stage, uint64_t expires, const char *folder,
                        RunSecrets **ret, char **ret_reason) {
        const RegisterRequest q = { .run = run, .item = ITEM, .workflow = workflow, .stage = stage, .expires_usec = expires };
        _cleanup_free_ char *path = text_format("%s/%s", top, folder);
        _cleanup_(credential_store_freep) CredentialStore *store = NULL;
        _cleanup_(policy_freep) Policy *policy = NULL;

        assert_int_equal(credential_store_load(&store, path), 0);
        assert_int_equal(policy_load(&policy, top, NULL, NULL), 0);
        return register_run(ret, policy, store, &q, time_realtime(), ret_reason);
}

static void test_register(void **state) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;
        _cleanup_free_ char *reason = NULL;

        assert_int_equal(try_register(RUN, "code-fix", "work", time_realtime() + MINUTE, "credentials", &s, &reason), 0);
        assert_null(reason);
        assert_int_equal(s->n_credentials, 1);
        assert_string_equal(s->credentials[0].name, "anthropic");
        assert_int_equal(strncmp(s->credentials[0].sentinel, "sk-ant-api03-", 13), 0);
        assert_null(s->credentials[0].secret);
        assert_non_null(s->credentials[0].provider);
        assert_non_null(s->ca_pem);
        assert_non_null(s->ca_key);
}

static void test_register_verify_and_exec(void **state) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL, *t = NULL;
        _cleanup_free_ char *reason = NULL;

        assert_int_equal(try_register(RUN, "code-fix", "verify", time_realtime() + MINUTE, "none", &s, &reason), 0);
        assert_int_equal(s->n_credentials, 0);
        assert_null(s->ca_pem);
        assert_int_equal(try_register(RUN, "exec", "work", time_realtime() + MINUTE, "none", &t, &reason), 0);
        assert_int_equal(t->n_credentials, 0);
}

static void expect_refusal(int error, const char *run, const char *workflow, const char *stage, uint64_t expires,
                           const char *folder, const char *words) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL;
        _cleanup_free_ char *reason = NULL;

        assert_int_equal(try_register(run, workflow, stage, expires, folder, &s, &reason), error);
        assert_null(s);
        assert_non_null(reason);
        assert_non_null(strstr(reason, words));
}

static void test_register_refusals(void **state) {
        uint64_t soon = time_realtime() + MINUTE;

        expect_refusal(-EINVAL, "r1", "code-fix", "work", soon, "credentials", "run:");
        expect_refusal(-EINVAL, RUN, "code-fix", "other", soon, "credentials", "stage:");
        expect_refusal(-EINVAL, RUN, "code-fix", "work", time_realtime() - MINUTE, "credentials", "expires_usec:");
        expect_refusal(-EINVAL, RUN, "code-fix", "work", soon + 60 * 24 * 60 * MINUTE, "credentials", "expires_usec:");
        expect_refusal(-ENOENT, RUN, "no-such", "work", soon, "credentials", "workflow no-such");
        expect_refusal(-ENOKEY, RUN, "code-fix", "work", soon, "none", "anchorctl credential add anthropic");
}

/* A policy by which a run would have more than a unit can be given is refused where somebody reads why. */
static void test_register_too_large(void **state) {
        static const char workflow[] = "{\"template\": \"base\", \"egress\": \"anthropic\", \"credentials\": [\"anthropic\", \"large\"], \"repository\": false,"
                                       " \"limits\": {}, \"steps\": [{\"name\": \"exec\", \"kind\": \"exec\", \"timeout\": \"1h\"}]}";
        static const char credential[] = "{\"description\": \"%s\", \"provider\": \"anthropic\", \"sentinel\": {\"alphabet\": \"alnum\", \"length\": 40}, \"hosts\": [\"api.anthropic.com\"],"
                                         " \"ports\": [443], \"methods\": [\"GET\"], \"paths\": [\"/\"], \"places\": [{\"header\": \"x-large\"}]}";
        const size_t most = BUNDLE_MAX - 2 * CREDENTIAL_MAX_SIZE;
        _cleanup_free_ char *reason = NULL;

        put("etc/anchorhold/policy/workflows/large.json", workflow);
        put("credentials/cred_large", "0123456789\n");
        for (size_t i = 0; i < 2; i++) {
                _cleanup_(run_secrets_freep) RunSecrets *s = NULL;
                _cleanup_free_ char *words = calloc(1, most + 1), *text = NULL;

                memset(words, 'x', i == 0 ? most - 16384 : most);
                text = text_format(credential, words);
                put("etc/anchorhold/policy/credentials/large.json", text);
                if (i == 0)
                        assert_int_equal(try_register(RUN, "large", "work", time_realtime() + MINUTE, "credentials", &s, &reason), 0);
                else
                        expect_refusal(-EFBIG, RUN, "large", "work", time_realtime() + MINUTE, "credentials", "workflow large: its credentials");
        }
        assert_null(reason);
}

static void test_store(void **state) {
        _cleanup_free_ char *state_dir = text_format("%s/state", top), *key_dir = text_format("%s/key", top);
        _cleanup_free_ char *other_key = text_format("%s/none", top), *sealed = NULL, *reason = NULL, *sentinel = NULL;
        _cleanup_free_ char *file = text_format("%s/state/" RUN, top);
        RunSecrets *s = NULL;
        RunStore *store;
        size_t size;

        assert_int_equal(run_store_new(&store, state_dir, key_dir), 0);
        assert_int_equal(try_register(RUN, "code-fix", "work", time_realtime() + MINUTE, "credentials", &s, &reason), 0);
        assert_int_equal(run_store_add(store, s), 0);
        sentinel = strdup(s->credentials[0].sentinel);
        assert_int_equal(run_store_add(store, s), -EEXIST);
        assert_ptr_equal(run_store_find(store, RUN), s);
        assert_null(run_store_find(store, "r0123456789ac"));
        assert_null(run_store_find_expired(store, time_realtime()));
        assert_ptr_equal(run_store_find_expired(store, time_realtime() + 2 * MINUTE), s);
        store = run_store_free(store);

        /* nothing can be read from the file */
        assert_int_equal(io_read_file(AT_FDCWD, file, 1 << 20, &sealed, &size), 0);
        assert_null(memmem(sealed, size, sentinel, strlen(sentinel)));
        assert_null(memmem(sealed, size, "anthropic", 9));
        assert_null(memmem(sealed, size, "sk-ant-real", 11));

        /* a restart knows the run, another boot does not */
        assert_int_equal(run_store_new(&store, state_dir, key_dir), 0);
        s = run_store_find(store, RUN);
        assert_non_null(s);
        assert_string_equal(s->credentials[0].sentinel, sentinel);
        assert_non_null(s->ca_key);
        store = run_store_free(store);

        assert_int_equal(run_store_new(&store, state_dir, other_key), 0);
        assert_int_equal(run_store_size(store), 0);
        assert_int_equal(access(file, F_OK), -1);
        assert_int_equal(run_store_remove(store, RUN), 0);
        store = run_store_free(store);
}

/* A file that cannot be read for another reason than what is in it belongs to a run that may live: it is there again with the next start. */
static void test_store_unread(void **state) {
        _cleanup_free_ char *state_dir = text_format("%s/state", top), *key_dir = text_format("%s/key", top), *reason = NULL;
        _cleanup_free_ char *file = text_format("%s/state/" RUN, top), *kept = text_format("%s/kept", top);
        RunSecrets *s = NULL;
        RunStore *store;

        assert_int_equal(run_store_new(&store, state_dir, key_dir), 0);
        assert_int_equal(try_register(RUN, "code-fix", "work", time_realtime() + MINUTE, "credentials", &s, &reason), 0);
        assert_int_equal(run_store_add(store, s), 0);
        store = run_store_free(store);

        assert_int_equal(rename(file, kept), 0);
        assert_int_equal(symlink(RUN, file), 0);
        assert_int_equal(run_store_new(&store, state_dir, key_dir), -ELOOP);
        assert_int_equal(unlink(file), 0); /* it was left alone */
        assert_int_equal(rename(kept, file), 0);
        assert_int_equal(run_store_new(&store, state_dir, key_dir), 0);
        assert_non_null(run_store_find(store, RUN));
        assert_int_equal(run_store_remove(store, RUN), 0);
        store = run_store_free(store);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_register),
                cmocka_unit_test(test_register_verify_and_exec),
                cmocka_unit_test(test_register_refusals),
                cmocka_unit_test(test_register_too_large),
                cmocka_unit_test(test_store),
                cmocka_unit_test(test_store_unread),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
