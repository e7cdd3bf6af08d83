/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a host is told by credentials: what is well-formed is written to where it belongs, and of what is not, nothing. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/provision.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/text.h"

static char folder[64], etc[80], given[80], reason[512];

static int setup(void **state) {
        strcpy(folder, "/tmp/test-provision.XXXXXX");
        assert_non_null(mkdtemp(folder));
        (void) snprintf(etc, sizeof(etc), "%s/etc", folder);
        (void) snprintf(given, sizeof(given), "%s/given", folder);
        assert_return_code(mkdir(etc, 0755), 0);
        assert_return_code(mkdir(given, 0700), 0);
        return 0;
}

static int drop(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
        return remove(path);
}

static int teardown(void **state) {
        return nftw(folder, drop, 8, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *where, const char *name, const char *text) {
        _cleanup_free_ char *path = text_format("%s/%s", where, name);

        assert_return_code(io_write_file_atomic(AT_FDCWD, path, text, strlen(text), 0644), 0);
}

/* What is in a file below etc; the caller's, NULL if there is none. */
static char *get(const char *name) {
        _cleanup_free_ char *path = text_format("%s/%s", etc, name);
        char *text = NULL;

        return io_read_file(AT_FDCWD, path, 1 << 20, &text, NULL) < 0 ? NULL : text;
}

static void assert_holds(const char *name, const char *text) {
        _cleanup_free_ char *there = get(name);

        if (!text)
                assert_null(there);
        else {
                assert_non_null(there);
                assert_string_equal(there, text);
        }
}

static int apply(void) {
        *reason = 0;
        return provision_apply(given, etc, reason, sizeof(reason));
}

static char *text_of(BIO *bio) {
        char *data = NULL;
        long n = BIO_get_mem_data(bio, &data);
        char *text = strndup(data, (size_t) n);

        assert_non_null(text);
        (void) BIO_free(bio);
        return text;
}

static char *public_key(int kind) {
        EVP_PKEY *key = kind == EVP_PKEY_EC ? EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256") : EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
        BIO *bio = BIO_new(BIO_s_mem());

        assert_int_equal(PEM_write_bio_PUBKEY(bio, key), 1);
        EVP_PKEY_free(key);
        return text_of(bio);
}

static char *certificate(bool ca) {
        EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
        BIO *bio = BIO_new(BIO_s_mem());
        X509 *x = X509_new();
        X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints, ca ? "critical,CA:TRUE" : "critical,CA:FALSE");

        assert_int_equal(X509_set_version(x, 2), 1);
        assert_int_equal(X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, (const unsigned char *) "x", -1, -1, 0), 1);
        assert_int_equal(X509_set_issuer_name(x, X509_get_subject_name(x)), 1);
        (void) X509_gmtime_adj(X509_getm_notBefore(x), 0);
        (void) X509_gmtime_adj(X509_getm_notAfter(x), 3600);
        assert_int_equal(X509_set_pubkey(x, key), 1);
        assert_int_equal(X509_add_ext(x, e, -1), 1);
        assert_true(X509_sign(x, key, NULL) > 0);
        assert_int_equal(PEM_write_bio_X509(bio, x), 1);
        X509_EXTENSION_free(e);
        X509_free(x);
        EVP_PKEY_free(key);
        return text_of(bio);
}

static void test_nothing_is_given(void **state) {
        assert_int_equal(apply(), 0);
        assert_holds("host.json", NULL);
        put(given, "another.credential", "x");
        assert_int_equal(apply(), 0);
}

static void test_all_of_it(void **state) {
        _cleanup_free_ char *one = public_key(EVP_PKEY_ED25519), *two = public_key(EVP_PKEY_ED25519), *ca = certificate(true),
                            *keys = text_format("%s%s", one, two), *path = text_format("%s/host.json", etc);
        struct stat before, after;

        put(given, "anchorhold.host", "{\"max_runs\": 2}");
        put(given, "anchorhold.authority", "{\"submit\": {\"groups\": [\"operators\"]}}");
        put(given, "anchorhold.upstream-ca", ca);
        put(given, "anchorhold.trusted-keys", keys);
        if (apply() != 0)
                fail_msg("%s", reason);
        assert_holds("host.json", "{\"max_runs\": 2}");
        assert_holds("authority.json", "{\"submit\": {\"groups\": [\"operators\"]}}");
        assert_holds("upstream-ca.d/provisioned.pem", ca);
        assert_holds("keys/provisioned-1.pem", one);
        assert_holds("keys/provisioned-2.pem", two);

        /* the same again touches nothing */
        assert_return_code(stat(path, &before), errno);
        assert_int_equal(apply(), 0);
        assert_return_code(stat(path, &after), errno);
        assert_true(before.st_ino == after.st_ino);

        /* over what somebody wrote; a shorter list of keys */
        put(etc, "host.json", "{\"max_runs\": 9}");
        put(given, "anchorhold.trusted-keys", two);
        assert_int_equal(apply(), 0);
        assert_holds("host.json", "{\"max_runs\": 2}");
        assert_holds("keys/provisioned-1.pem", two);
        assert_holds("keys/provisioned-2.pem", NULL);
}

static void refused(const char *name, const char *text, const char *why) {
        _cleanup_free_ char *path = text_format("%s/%s", given, name);

        put(given, name, text);
        assert_int_equal(apply(), -EINVAL);
        if (!strstr(reason, name) || !strstr(reason, why))
                fail_msg("\"%s\" does not say %s and \"%s\"", reason, name, why);
        /* nothing of what is good beside it either */
        assert_holds("host.json", NULL);
        assert_return_code(unlink(path), errno);
}

static void test_malformed(void **state) {
        _cleanup_free_ char *leaf = certificate(false), *key = public_key(EVP_PKEY_ED25519), *other = public_key(EVP_PKEY_EC), *ca = certificate(true),
                            *cut = text_format("%s-----BEGIN CERTIFICATE-----\nMIIB", ca), *mixed = text_format("%s%s", key, other);

        put(given, "anchorhold.host", "{\"max_runs\": 2}");
        refused("anchorhold.authority", "{\"submit\": 1}", "/submit");
        refused("anchorhold.authority", "{\"submit\": {", "line");
        refused("anchorhold.upstream-ca", "", "no PEM object");
        refused("anchorhold.upstream-ca", key, "object 1");
        refused("anchorhold.upstream-ca", leaf, "object 1");
        refused("anchorhold.upstream-ca", cut, "object 2");
        refused("anchorhold.trusted-keys", other, "object 1");
        refused("anchorhold.trusted-keys", mixed, "object 2");
        refused("anchorhold.trusted-keys", ca, "object 1");

        /* the control */
        assert_int_equal(apply(), 0);
        assert_holds("host.json", "{\"max_runs\": 2}");
        put(given, "anchorhold.host", "{\"max_runs\": 2, \"max_run\": 3}");
        assert_int_equal(apply(), -EINVAL);
        assert_non_null(strstr(reason, "anchorhold.host"));
        assert_holds("host.json", "{\"max_runs\": 2}");
}

int main(void) {
#define T(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
        const struct CMUnitTest tests[] = {
                T(test_nothing_is_given),
                T(test_all_of_it),
                T(test_malformed),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
