/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Keys of GitHub Apps, what is signed with them (judged by the public half), and the list of tokens over lives and reboots. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "secret/app-key.h"
#include "secret/seal.h"
#include "secret/token-list.h"
#include "util/io.h"
#include "util/json.h"

#define RUN "r0123456789ab"
#define ITEM "i0123456789ab"
#define NOW (1790000000ULL * 1000 * 1000)
#define TOKEN "ghs_0123456789abcdefghij0123456789abcdef"

static char folder[] = "/tmp/test-app-key-XXXXXX";

__attribute__((__format__(__printf__, 1, 2))) static void sh(const char *format, ...) {
        char command[1024];
        va_list ap;

        va_start(ap, format);
        (void) vsnprintf(command, sizeof(command), format, ap);
        va_end(ap);
        if (system(command) != 0)
                fail_msg("%s", command);
}

typedef enum Form { FORM_PLAIN, FORM_TRADITIONAL, FORM_LOCKED, FORM_PUBLIC } Form;

static EVP_PKEY *app_key; /* of app.pem */

static void write_key(const char *path, EVP_PKEY *key, Form form) {
        FILE *f = fopen(path, "w");
        BIO *bio;
        int r = 0;

        assert_non_null(key);
        assert_non_null(f);
        switch (form) {
        case FORM_PLAIN:
                r = PEM_write_PKCS8PrivateKey(f, key, NULL, NULL, 0, NULL, NULL);
                break;
        case FORM_TRADITIONAL: /* as GitHub gives them */
                bio = BIO_new_fp(f, BIO_NOCLOSE);
                r = PEM_write_bio_PrivateKey_traditional(bio, key, NULL, NULL, 0, NULL, NULL);
                BIO_free(bio);
                break;
        case FORM_LOCKED:
                r = PEM_write_PKCS8PrivateKey(f, key, EVP_aes_256_cbc(), "pass", 4, NULL, NULL);
                break;
        case FORM_PUBLIC:
                r = PEM_write_PUBKEY(f, key);
                break;
        }
        assert_int_equal(r, 1);
        assert_int_equal(fclose(f), 0);
        if (!app_key)
                app_key = key;
        else
                EVP_PKEY_free(key);
}

static int set_up(void **state) {
        assert_non_null(mkdtemp(folder));
        assert_int_equal(chdir(folder), 0);
        write_key("app.pem", EVP_RSA_gen(2048), FORM_PLAIN);
        write_key("second.pem", EVP_RSA_gen(2048), FORM_TRADITIONAL);
        write_key("small.pem", EVP_RSA_gen(1024), FORM_PLAIN);
        write_key("ec.pem", EVP_EC_gen("P-256"), FORM_PLAIN);
        write_key("locked.pem", EVP_RSA_gen(2048), FORM_LOCKED);
        write_key("only.pub", EVP_RSA_gen(2048), FORM_PUBLIC);
        return 0;
}

static int tear_down(void **state) {
        EVP_PKEY_free(app_key);
        assert_int_equal(chdir("/"), 0);
        sh("rm -r %s", folder);
        return 0;
}

static Secret *read_secret(const char *file) {
        const char *wrong = NULL;
        Secret *s = NULL;

        assert_int_equal(secret_read_file(&s, AT_FDCWD, file), 0);
        assert_int_equal(credential_value_take(&s, &wrong), 0); /* without its last line end */
        return s;
}

static void test_check(void **state) {
        static const struct {
                const char *file, *wrong;
        } files[] = {
                { "app.pem", NULL }, { "second.pem", NULL }, { "small.pem", "2048" }, { "ec.pem", "RSA" }, { "locked.pem", "passphrase" }, { "only.pub", "cannot be read" },
        };
        Secret *token = NULL;

        for (size_t i = 0; i < ELEMENTSOF(files); i++) {
                _cleanup_(secret_freep) Secret *s = read_secret(files[i].file);
                const char *wrong = app_key_check(s), *again = NULL;

                assert_true(app_key_is_pem(s));
                if (!wrong != !files[i].wrong || (wrong && !strstr(wrong, files[i].wrong)))
                        fail_msg("%s: %s", files[i].file, wrong);
                assert_int_equal(credential_value_take(&s, &again), 0);
                assert_ptr_equal(wrong, again);
        }
        assert_int_equal(secret_new(&token, TOKEN, strlen(TOKEN)), 0);
        assert_false(app_key_is_pem(token));
        assert_non_null(app_key_check(token));
        secret_free(token);
}

/* From the URL's alphabet to bytes. */
static size_t decode(const char *text, size_t size, uint8_t *ret) {
        char padded[2048];
        int n;

        memcpy(padded, text, size);
        for (size_t i = 0; i < size; i++)
                padded[i] = padded[i] == '-' ? '+' : padded[i] == '_' ? '/' : padded[i];
        n = (int) size;
        while (n % 4 != 0)
                padded[n++] = '=';
        n = EVP_DecodeBlock(ret, (const unsigned char *) padded, n);
        assert_true(n > 0);
        return (size_t) n - (4 - size % 4) % 4;
}

static int verify(const void *data, size_t size, const uint8_t *signature, size_t signature_size) {
        EVP_MD_CTX *c = EVP_MD_CTX_new();
        int r;

        assert_int_equal(EVP_DigestVerifyInit(c, NULL, EVP_sha256(), NULL, app_key), 1);
        r = EVP_DigestVerify(c, signature, signature_size, data, size);
        EVP_MD_CTX_free(c);
        return r;
}

static void test_sign(void **state) {
        _cleanup_(secret_freep) Secret *key = read_secret("app.pem"), *other = read_secret("ec.pem");
        _cleanup_json_ json_t *claims = NULL;
        const char *token, *dot, *last;
        Secret *proof = NULL;
        uint8_t bytes[2048];
        json_int_t iat;
        SecretView v;
        size_t n;

        assert_int_equal(app_key_sign(key, "42", NOW, &proof), 0);
        v = secret_view(proof);
        token = (const char *) v.bytes;
        for (size_t i = 0; i < v.size; i++)
                assert_true(token[i] == '.' || token[i] == '-' || token[i] == '_' || (token[i] >= '0' && token[i] <= 'z'));
        dot = memchr(token, '.', v.size);
        assert_non_null(dot);
        last = memchr(dot + 1, '.', v.size - (size_t) (dot + 1 - token));
        assert_non_null(last);

        n = decode(token, (size_t) (dot - token), bytes);
        assert_int_equal(n, strlen("{\"alg\":\"RS256\",\"typ\":\"JWT\"}"));
        assert_memory_equal(bytes, "{\"alg\":\"RS256\",\"typ\":\"JWT\"}", n);
        n = decode(dot + 1, (size_t) (last - dot - 1), bytes);
        assert_int_equal(json_parse((const char *) bytes, n, &claims, NULL), 0);
        assert_int_equal(json_object_size(claims), 3);
        assert_string_equal(json_string_value(json_object_get(claims, "iss")), "42");
        iat = json_integer_value(json_object_get(claims, "iat"));
        assert_int_equal(iat, 1790000000 - 60);
        assert_int_equal(json_integer_value(json_object_get(claims, "exp")) - iat, 180); /* and not more than ten minutes */

        n = decode(last + 1, v.size - (size_t) (last + 1 - token), bytes);
        assert_int_equal(n, 256);
        assert_int_equal(verify(token, (size_t) (last - token), bytes, n), 1);
        assert_int_equal(verify(token, (size_t) (last - token) - 1, bytes, n), 0); /* the control */

        secret_free(proof);
        assert_int_equal(app_key_sign(key, "4\"2", NOW, &proof), -EINVAL);
        assert_int_equal(app_key_sign(other, "42", NOW, &proof), -EINVAL);
}

static void test_derive(void **state) {
        _cleanup_(secret_freep) Secret *key = read_secret("app.pem"), *other = read_secret("second.pem");
        _cleanup_(secret_freep) Secret *a = NULL, *b = NULL, *c = NULL, *d = NULL;
        SecretView v;

        assert_int_equal(app_key_derive(key, "x", &a), 0);
        assert_int_equal(app_key_derive(key, "x", &b), 0);
        assert_int_equal(app_key_derive(key, "y", &c), 0);
        assert_int_equal(app_key_derive(other, "x", &d), 0);
        v = secret_view(a);
        assert_int_equal(v.size, SEAL_KEY_SIZE);
        assert_true(secret_equals(b, v.bytes, v.size));
        assert_false(secret_equals(c, v.bytes, v.size));
        assert_false(secret_equals(d, v.bytes, v.size));
}

/* ---- the list ---- */

/* A host with these files as credentials "app-one" and "app-two"; NULL: none. */
static TokenList *open_list(const char *one, const char *two, size_t *ret_lost) {
        _cleanup_(credential_store_freep) CredentialStore *store = NULL;
        TokenList *l = NULL;

        sh("rm -rf credentials; mkdir -p credentials state run");
        if (one)
                sh("cp %s credentials/cred_app-one", one);
        if (two)
                sh("cp %s credentials/cred_app-two", two);
        sh("printf plain-token >credentials/cred_plain");
        assert_int_equal(credential_store_load(&store, "credentials"), 0);
        assert_int_equal(token_list_new(&l, "state", "run", store, ret_lost), 0);
        return l;
}

static void add(TokenList *l, const char *run, const char *text, uint64_t expires_usec, char *ret_id) {
        Token *t = NULL;

        assert_int_equal(token_new(&t, run, ITEM, "fix", "app-one", "api.example.org", 8443, "/v3/installation/token", expires_usec), 0);
        assert_int_equal(secret_new(&t->secret, text, strlen(text)), 0);
        strcpy(ret_id, t->id);
        t->recorded = true;
        assert_int_equal(token_list_add(l, t), 0);
}

static void check(const TokenList *l, const char *id, const char *text) {
        const Token *t = token_list_find(l, id);

        assert_non_null(t);
        assert_string_equal(t->run, RUN);
        assert_string_equal(t->item, ITEM);
        assert_string_equal(t->workflow, "fix");
        assert_string_equal(t->credential, "app-one");
        assert_string_equal(t->host, "api.example.org");
        assert_string_equal(t->target, "/v3/installation/token");
        assert_int_equal(t->port, 8443);
        assert_true(secret_equals(t->secret, text, strlen(text)));
}

static void test_list(void **state) {
        char id[ID_LENGTH + 1], second[ID_LENGTH + 1], other[ID_LENGTH + 1];
        const Token *t;
        TokenList *l;
        size_t lost;

        sh("rm -rf state run");
        l = open_list("app.pem", "second.pem", &lost);
        assert_int_equal(token_list_size(l), 0);
        add(l, RUN, TOKEN, NOW + 10, id);
        add(l, RUN, TOKEN "2", NOW + 20, second);
        add(l, "r00000000zzzz", TOKEN "3", NOW + 30, other);
        t = token_list_newest(l, RUN, "app-one", NOW);
        assert_string_equal(t->id, second);
        assert_null(token_list_newest(l, RUN, "app-one", NOW + 20));
        assert_null(token_list_newest(l, RUN, "app-two", NOW));
        token_list_free(l);

        /* nothing of it is readable, on disk or in /run */
        sh("! grep -rqa -e ghs_ -e installation -e '" RUN "' state run");
        sh("test \"$(stat -c %%a state/tokens)\" = 700 && ! find state/tokens run -type f ! -perm 600 | grep -q .");

        l = open_list("app.pem", "second.pem", &lost); /* the next life */
        assert_int_equal(lost, 0);
        assert_int_equal(token_list_size(l), 3);
        check(l, id, TOKEN);
        check(l, second, TOKEN "2");
        assert_int_equal(token_list_remove(l, second), 0);
        assert_int_equal(token_list_remove(l, second), 0);
        token_list_free(l);
        l = open_list("app.pem", "second.pem", &lost);
        assert_int_equal(token_list_size(l), 2);
        assert_null(token_list_find(l, second));
        token_list_free(l);
}

static void test_list_key(void **state) {
        char id[ID_LENGTH + 1];
        TokenList *l;
        size_t lost;

        sh("rm -rf state run");
        l = open_list("app.pem", "second.pem", &lost);
        add(l, RUN, TOKEN, NOW, id);
        token_list_free(l);

        sh("rm -r run"); /* a reboot */
        l = open_list("app.pem", "second.pem", &lost);
        check(l, id, TOKEN);
        token_list_free(l);

        sh("rm -r run"); /* one of both keys is left */
        l = open_list(NULL, "second.pem", &lost);
        check(l, id, TOKEN);
        token_list_free(l);

        l = open_list("app.pem", NULL, &lost); /* keys are exchanged while the host is up */
        token_list_free(l);
        l = open_list("second.pem", NULL, &lost);
        check(l, id, TOKEN);
        token_list_free(l);
        sh("rm -r run"); /* and so a reboot is no loss */
        l = open_list("second.pem", NULL, &lost);
        check(l, id, TOKEN);
        token_list_free(l);

        sh("rm -r run"); /* all of them while it is off */
        l = open_list(NULL, NULL, &lost);
        assert_int_equal(lost, 1);
        assert_int_equal(token_list_size(l), 0);
        token_list_free(l);
}

static void test_list_damaged(void **state) {
        char id[ID_LENGTH + 1], second[ID_LENGTH + 1];
        TokenList *l;
        size_t lost;

        sh("rm -rf state run");
        l = open_list("app.pem", NULL, &lost);
        add(l, RUN, TOKEN, NOW, id);
        add(l, RUN, TOKEN "2", NOW, second);
        token_list_free(l);
        sh("cp state/tokens/%s state/tokens/t00000000copy && echo >state/tokens/notes && printf x >>state/tokens/%s", id, second);
        l = open_list("app.pem", NULL, &lost);
        assert_int_equal(lost, 2); /* one under another's name, one that is not what was written */
        assert_int_equal(token_list_size(l), 1);
        check(l, id, TOKEN);
        token_list_free(l);

        /* both are kept aside, are told of once, and go when a week is over */
        sh("test -s state/tokens/%s.unreadable && test -s state/tokens/t00000000copy.unreadable && test ! -e state/tokens/%s", second, second);
        sh("touch -d '8 days ago' state/tokens/%s.unreadable", second);
        l = open_list("app.pem", NULL, &lost);
        assert_int_equal(lost, 0);
        token_list_free(l);
        sh("test ! -e state/tokens/%s.unreadable && test -s state/tokens/t00000000copy.unreadable", second);
}

/* What cannot be read for another reason than what is in it is neither lost nor touched: it is there again with the next life. */
static void test_list_unread(void **state) {
        char id[ID_LENGTH + 1], second[ID_LENGTH + 1];
        TokenList *l;
        size_t lost;

        sh("rm -rf state run");
        l = open_list("app.pem", NULL, &lost);
        add(l, RUN, TOKEN, NOW, id);
        add(l, RUN, TOKEN "2", NOW, second);
        token_list_free(l);
        sh("mv state/tokens/%s kept && mkdir state/tokens/%s", second, second); /* reading it fails with EISDIR */
        l = open_list("app.pem", NULL, &lost);
        assert_int_equal(lost, 0);
        assert_int_equal(token_list_size(l), 1);
        check(l, id, TOKEN);
        token_list_free(l);
        sh("rmdir state/tokens/%s && mv kept state/tokens/%s", second, second);
        l = open_list("app.pem", NULL, &lost);
        assert_int_equal(token_list_size(l), 2);
        check(l, second, TOKEN "2");
        token_list_free(l);
}

static int try_list(const char *one) {
        _cleanup_(credential_store_freep) CredentialStore *store = NULL;
        TokenList *l = NULL;
        size_t lost;
        int r;

        sh("cp %s credentials/cred_app-one", one);
        assert_int_equal(credential_store_load(&store, "credentials"), 0);
        r = token_list_new(&l, "state", "run", store, &lost);
        token_list_free(l);
        return r;
}

/* A place of the list's key that cannot be read just now is no reason for another key: that would make worthless what the list has. The control is the end of test_list_key(). */
static void test_list_key_unread(void **state) {
        static const char *const places[] = { "run/tokens.key", "state/tokens/key-app-one" };
        char id[ID_LENGTH + 1];
        TokenList *l;
        size_t lost;

        sh("rm -rf state run kept");
        l = open_list("app.pem", NULL, &lost);
        add(l, RUN, TOKEN, NOW, id);
        token_list_free(l);

        for (size_t i = 0; i < ELEMENTSOF(places); i++) {
                sh("mv %s kept && mkdir %s", places[i], places[i]); /* reading it fails */
                assert_true(try_list("app.pem") < 0);
                sh("rmdir %s && mv kept %s", places[i], places[i]);
                if (i == 0) {
                        l = open_list("app.pem", NULL, &lost);
                        check(l, id, TOKEN);
                        token_list_free(l);
                        sh("rm run/tokens.key"); /* a reboot: the sealed copy is all there is */
                }
        }
        l = open_list("app.pem", NULL, &lost);
        assert_int_equal(lost, 0);
        check(l, id, TOKEN);
        token_list_free(l);
}

int main(void) {
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_check),
                cmocka_unit_test(test_sign),
                cmocka_unit_test(test_derive),
                cmocka_unit_test(test_list),
                cmocka_unit_test(test_list_key),
                cmocka_unit_test(test_list_key_unread),
                cmocka_unit_test(test_list_damaged),
                cmocka_unit_test(test_list_unread),
        };

        return cmocka_run_group_tests(tests, set_up, tear_down);
}
