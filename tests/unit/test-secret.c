/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#include "secret/bundle-api.h"
#include "secret/credential-store.h"
#include "secret/run-ca.h"
#include "secret/seal.h"
#include "secret/sentinel.h"
#include "secret/upstream-ca.h"
#include "util/io.h"
#include "util/secret.h"
#include "util/text.h"

#define RUN "r0123456789ab"
#define USEC 1000000ULL

static void test_secret(void **state) {
        _cleanup_(secret_freep) Secret *s = NULL, *t = NULL;

        assert_int_equal(secret_new(&s, "opensesame", 10), 0);
        assert_int_equal(secret_view(s).size, 10);
        assert_true(secret_equals(s, "opensesame", 10));
        assert_false(secret_equals(s, "opensesamE", 10));
        assert_false(secret_equals(s, "opensesame", 9));
        assert_int_equal(secret_new(&t, "", 0), -EINVAL);
        assert_int_equal(secret_new_random(&t, SECRET_MAX + 1), -EINVAL);
        assert_int_equal(secret_new_random(&t, 32), 0);
}

/* A page of a freed secret is gone, and its guard pages cannot be touched while it lives. */
static void test_secret_guard(void **state) {
        _cleanup_(secret_freep) Secret *s = NULL;
        const volatile char *p;
        int status;
        pid_t pid;

        assert_int_equal(secret_new(&s, "opensesame", 10), 0);
        p = (const volatile char *) secret_view(s).bytes;
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                const struct rlimit none = {};

                (void) setrlimit(RLIMIT_CORE, &none);
                (void) signal(SIGSEGV, SIG_DFL);
                (void) p[-1];
                _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
}

static void test_sentinel(void **state) {
        _cleanup_free_ char *a = NULL, *b = NULL, *c = NULL;

        assert_int_equal(sentinel_make("sk-ant-api03-", "base64url", 108, NULL, &a), 0);
        assert_int_equal(sentinel_make("sk-ant-api03-", "base64url", 108, NULL, &b), 0);
        assert_int_equal(strlen(a), 108);
        assert_int_equal(strncmp(a, "sk-ant-api03-", 13), 0);
        assert_string_not_equal(a, b);
        assert_int_equal(strspn(a, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"), 108);

        assert_int_equal(sentinel_make("p", "no-such", 100, NULL, &c), -EINVAL);
        assert_int_equal(sentinel_make("p", "hex", 32, NULL, &c), -EINVAL); /* 124 bits */
        assert_int_equal(sentinel_make("p", "hex", 33, NULL, &c), 0);
}

/* As a tool checks it: the last six are the CRC-32 of the thirty before, in base 62. */
static void test_sentinel_checksum(void **state) {
        static const char base62[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        _cleanup_free_ char *a = NULL, *b = NULL;
        unsigned long long given = 0, right;

        assert_int_equal(sentinel_make("ghp_", "alnum", 40, "crc32-base62", &a), 0);
        assert_int_equal(strlen(a), 40);
        assert_int_equal(strncmp(a, "ghp_", 4), 0);
        right = crc32(0, (const Bytef *) a + 4, 30);
        for (size_t i = 34; i < 40; i++)
                given = given * 62 + (unsigned long long) (strchr(base62, a[i]) - base62);
        assert_true(given == right);

        assert_int_equal(sentinel_make("ghp_", "alnum", 31, "crc32-base62", &b), -EINVAL); /* 21 random ones: 125 bits */
        assert_int_equal(sentinel_make("ghp_", "alnum", 40, "luhn", &b), -EINVAL);
        assert_int_equal(sentinel_make("ghp_", "alnum", 32, "crc32-base62", &b), 0);
}

static X509 *parse_cert(const char *pem) {
        BIO *bio = BIO_new_mem_buf(pem, -1);
        X509 *cert = PEM_read_bio_X509(bio, NULL, NULL, NULL);

        BIO_free(bio);
        return cert;
}

static void test_run_ca(void **state) {
        static const char *const names[] = { "api.example.org", "*.example.net" };
        _cleanup_(secret_freep) Secret *key = NULL;
        _cleanup_free_ char *pem = NULL;
        uint64_t now = time_realtime();
        NAME_CONSTRAINTS *nc;
        int critical;
        X509 *cert;

        assert_int_equal(run_ca_make(RUN, names, 0, now, now + USEC, &pem, &key), -EINVAL);
        assert_int_equal(run_ca_make(RUN, names, 2, now, now, &pem, &key), -EINVAL);
        assert_int_equal(run_ca_make(RUN, names, 2, now - 3600 * USEC, now + 60 * USEC, &pem, &key), 0);
        cert = parse_cert(pem);
        assert_non_null(cert);
        assert_int_equal(X509_check_ca(cert), 1);
        assert_int_equal(X509_get_pathlen(cert), 0);
        assert_int_equal(X509_get_key_usage(cert), KU_KEY_CERT_SIGN);
        assert_int_equal(X509_self_signed(cert, 1), 1);
        nc = X509_get_ext_d2i(cert, NID_name_constraints, &critical, NULL);
        assert_non_null(nc);
        assert_int_equal(critical, 1);
        assert_int_equal(sk_GENERAL_SUBTREE_num(nc->permittedSubtrees), 2);
        assert_int_equal(sk_GENERAL_SUBTREE_num(nc->excludedSubtrees), 2);
        NAME_CONSTRAINTS_free(nc);
        X509_free(cert);
}

static RunSecrets *make_secrets(void) {
        json_t *rule = json_pack("{s:[s]}", "hosts", "api.example.org");
        RunSecrets *s = NULL;

        assert_int_equal(run_secrets_new(&s, RUN, "i0123456789ab", "code-fix", "work", 12345, 2), 0);
        assert_int_equal(run_secrets_set_credential(s, 0, "anthropic", "sk-sentinel-1", rule, rule), 0);
        assert_int_equal(run_secrets_set_credential(s, 1, "other", "sk-sentinel-2", rule, NULL), 0);
        assert_int_equal(secret_new(&s->credentials[0].secret, "real-secret", 11), 0);
        s->ca_pem = strdup("PEM\n");
        assert_int_equal(secret_new(&s->ca_key, "\0key\n", 5), 0);
        json_decref(rule);
        return s;
}

static void test_bundle(void **state) {
        _cleanup_(run_secrets_freep) RunSecrets *s = make_secrets(), *t = NULL, *u = NULL;
        _cleanup_free_ char *guest = NULL;
        char *data, *sealed;
        size_t size, sealed_size;

        assert_int_equal(bundle_format(s, BUNDLE_WITH_SECRETS, &data, &size), 0);
        assert_int_equal(bundle_parse(&t, data, size), 0);
        assert_string_equal(t->run, RUN);
        assert_string_equal(t->stage, "work");
        assert_int_equal(t->expires_usec, 12345);
        assert_int_equal(t->n_credentials, 2);
        assert_true(secret_equals(t->credentials[0].secret, "real-secret", 11));
        assert_null(t->credentials[1].secret);
        assert_null(t->credentials[1].provider);
        assert_true(secret_equals(t->ca_key, "\0key\n", 5));
        /* every shorter one is refused */
        for (size_t i = 0; i < size; i++) {
                RunSecrets *v = NULL;

                assert_int_equal(bundle_parse(&v, data, i), -EBADMSG);
        }
        /* the value is in it once, and not in the part that a JSON library reads */
        assert_null(memmem(data, (size_t) ((char *) memchr(data, '\n', size) - data), "real-secret", 11));
        secret_erase(data, size);

        assert_int_equal(bundle_format(s, 0, &sealed, &sealed_size), 0);
        assert_null(memmem(sealed, sealed_size, "real-secret", 11));
        assert_int_equal(bundle_parse(&u, sealed, sealed_size), 0);
        assert_null(u->credentials[0].secret);
        secret_erase(sealed, sealed_size);

        guest = run_secrets_format_guest(s, NULL);
        assert_string_equal(guest, "{\"ca_pem\":\"PEM\\n\",\"sentinels\":{\"anthropic\":\"sk-sentinel-1\",\"other\":\"sk-sentinel-2\"}}");
}

/* As many credentials as a run can have, with the longest values: what secretd writes is what inject reads, from PID 1's file and from a descriptor. */
static void test_bundle_large(void **state) {
        enum { N = RUN_CREDENTIALS_MAX };
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL, *t = NULL;
        _cleanup_(secret_freep) Secret *file = NULL, *read = NULL;
        json_t *rule = json_pack("{s:[s]}", "hosts", "api.example.org");
        char path[] = "/tmp/test-bundle-XXXXXX", value[CREDENTIAL_MAX_SIZE], name[16], *data;
        _cleanup_fd_ int fd = mkstemp(path);
        size_t size;

        assert_int_equal(run_secrets_new(&s, RUN, "i0123456789ab", "code-fix", "work", 12345, N), 0);
        for (size_t i = 0; i < N; i++) {
                memset(value, 'a' + (int) i, sizeof(value));
                (void) snprintf(name, sizeof(name), "c%zu", i);
                assert_int_equal(run_secrets_set_credential(s, i, name, "sk-sentinel", rule, NULL), 0);
                assert_int_equal(secret_new(&s->credentials[i].secret, value, sizeof(value)), 0);
        }
        assert_int_equal(bundle_format(s, BUNDLE_WITH_SECRETS, &data, &size), 0);
        assert_true(size > N * sizeof(value));
        assert_int_equal(io_write_full(fd, data, size), 0);

        assert_int_equal(secret_read_file(&file, AT_FDCWD, path), 0);
        assert_true(secret_equals(file, data, size));
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        assert_int_equal(secret_read_fd(&read, fd), 0);
        assert_true(secret_equals(read, data, size));
        assert_int_equal(bundle_parse(&t, secret_view(read).bytes, secret_view(read).size), 0);
        assert_true(secret_equals(t->credentials[N - 1].secret, value, sizeof(value)));
        secret_erase(data, size);
        json_decref(rule);
        (void) unlink(path);
}

/* To the byte: the most that is read, and one more. */
static void test_secret_read_most(void **state) {
        char path[] = "/tmp/test-secret-XXXXXX";
        _cleanup_fd_ int fd = mkstemp(path);

        for (size_t more = 0; more < 2; more++) {
                _cleanup_(secret_freep) Secret *file = NULL, *read = NULL;
                int expected = more ? -EFBIG : 0;

                assert_int_equal(ftruncate(fd, SECRET_MAX + (off_t) more), 0);
                assert_int_equal(secret_read_file(&file, AT_FDCWD, path), expected);
                assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
                assert_int_equal(secret_read_fd(&read, fd), expected);
                if (!more)
                        assert_int_equal(secret_view(read).size, SECRET_MAX);
        }
        (void) unlink(path);
}

static void test_bundle_empty(void **state) {
        _cleanup_(run_secrets_freep) RunSecrets *s = NULL, *t = NULL;
        _cleanup_free_ char *guest = NULL, *with = NULL, *data = NULL;
        size_t size;

        assert_int_equal(run_secrets_new(&s, RUN, "i0123456789ab", "exec", "work", 1, 0), 0);
        with = run_secrets_format_guest(s, "UP\n");
        assert_string_equal(with, "{\"ca_pem\":\"UP\\n\",\"sentinels\":{}}");
        guest = run_secrets_format_guest(s, NULL);
        assert_string_equal(guest, "{\"ca_pem\":null,\"sentinels\":{}}");
        assert_int_equal(bundle_format(s, BUNDLE_WITH_SECRETS, &data, &size), 0);
        assert_int_equal(bundle_parse(&t, data, size), 0);
        assert_int_equal(t->n_credentials, 0);
}

static void test_seal(void **state) {
        _cleanup_(secret_freep) Secret *key = NULL, *other = NULL;
        _cleanup_free_ void *sealed = NULL;
        void *open = NULL;
        size_t size, open_size;

        assert_int_equal(secret_new_random(&key, SEAL_KEY_SIZE), 0);
        assert_int_equal(secret_new_random(&other, SEAL_KEY_SIZE), 0);
        assert_int_equal(seal_close(key, RUN, "plain text", 10, &sealed, &size), 0);
        assert_null(memmem(sealed, size, "plain", 5));
        assert_int_equal(seal_open(key, RUN, sealed, size, &open, &open_size), 0);
        assert_int_equal(open_size, 10);
        assert_memory_equal(open, "plain text", 10);
        secret_erase(open, open_size);

        assert_int_equal(seal_open(other, RUN, sealed, size, &open, &open_size), -EBADMSG);
        assert_int_equal(seal_open(key, "r0123456789ac", sealed, size, &open, &open_size), -EBADMSG);
        for (size_t i = 0; i < size; i++) {
                ((uint8_t *) sealed)[i] ^= 1;
                assert_int_equal(seal_open(key, RUN, sealed, size, &open, &open_size), -EBADMSG);
                ((uint8_t *) sealed)[i] ^= 1;
                assert_int_equal(seal_open(key, RUN, sealed, i, &open, &open_size), -EBADMSG);
        }
}

static void write_file(const char *dir, const char *name, const char *data, size_t size) {
        _cleanup_free_ char *path = text_format("%s/%s", dir, name);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        assert_true(fd >= 0);
        assert_int_equal(io_write_full(fd, data, size), 0);
        (void) close(fd);
}

static void test_upstream_ca(void **state) {
        char dir[] = "/tmp/test-upstream-ca.XXXXXX";
        _cleanup_free_ char *none = NULL, *empty = NULL, *two = NULL, *rm = NULL;

        assert_int_equal(upstream_ca_read("/nonexistent", &none), 0);
        assert_string_equal(none, "");

        assert_non_null(mkdtemp(dir));
        assert_int_equal(upstream_ca_read(dir, &empty), 0);
        assert_string_equal(empty, "");

        write_file(dir, "b.pem", "B", strlen("B"));
        write_file(dir, "a.pem", "A\n", strlen("A\n"));
        write_file(dir, "c.txt", "C", strlen("C"));
        write_file(dir, ".pem", "D", strlen("D"));
        assert_int_equal(upstream_ca_read(dir, &two), 0);
        assert_string_equal(two, "A\n\nB\n");

        rm = text_format("rm -r %s", dir);
        assert_int_equal(system(rm), 0);
}

static void test_store(void **state) {
        static const char *const files[] = { "cred_anthropic", "cred_bin", "cred_short", "cred_Upper", "other", "cred_empty" };
        _cleanup_(credential_store_freep) CredentialStore *s = NULL, *none = NULL, *missing = NULL;
        char dir[] = "/tmp/test-secret-XXXXXX";

        assert_non_null(mkdtemp(dir));
        write_file(dir, "cred_anthropic", "sk-real-value\n", 14);
        write_file(dir, "cred_bin", "nul\0in the middle", 17);
        write_file(dir, "cred_short", "short", 5);
        write_file(dir, "cred_Upper", "sk-real-value", 13);
        write_file(dir, "other", "sk-real-value", 13);
        write_file(dir, "cred_empty", "", 0);

        assert_int_equal(credential_store_load(&s, dir), 0);
        assert_int_equal(credential_store_size(s), 1);
        assert_true(secret_equals(credential_store_find(s, "anthropic"), "sk-real-value", 13));
        assert_null(credential_store_find(s, "bin"));
        assert_int_equal(credential_store_load(&none, NULL), 0);
        assert_int_equal(credential_store_size(none), 0);

        for (size_t i = 0; i < ELEMENTSOF(files); i++) {
                _cleanup_free_ char *path = text_format("%s/%s", dir, files[i]);

                (void) unlink(path);
        }
        assert_int_equal(rmdir(dir), 0);
        assert_int_equal(credential_store_load(&missing, dir), -ENOENT);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_secret),
                cmocka_unit_test(test_secret_guard),
                cmocka_unit_test(test_sentinel),
                cmocka_unit_test(test_sentinel_checksum),
                cmocka_unit_test(test_run_ca),
                cmocka_unit_test(test_bundle),
                cmocka_unit_test(test_bundle_empty),
                cmocka_unit_test(test_bundle_large),
                cmocka_unit_test(test_secret_read_most),
                cmocka_unit_test(test_upstream_ca),
                cmocka_unit_test(test_seal),
                cmocka_unit_test(test_store),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
