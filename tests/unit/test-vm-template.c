/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "util/io.h"
#include "util/json.h"
#include "util/text.h"
#include "vmm/signature.h"
#include "vmm/vm-measured.h"
#include "vmm/vm-template.h"

/* A folder with etc/ and usr/ for keys and base/ for a template, and two keys of which each test trusts what it likes. */
typedef struct World {
        char path[64], etc[80], usr[80], keys[200];
        int dir;
        EVP_PKEY *vendor, *other;
} World;

static void write_key(const World *w, const char *folder, const char *name, EVP_PKEY *key) {
        char path[256];
        FILE *f;

        (void) snprintf(path, sizeof(path), "%s/%s/%s", w->path, folder, name);
        f = fopen(path, "we");
        assert_non_null(f);
        if (key)
                assert_int_equal(PEM_write_PUBKEY(f, key), 1);
        assert_int_equal(fclose(f), 0);
}

static void write_file(int dir, const char *name, const void *data, size_t size) {
        assert_int_equal(io_write_file_atomic(dir, name, data, size, 0644), 0);
}

static void sign(EVP_PKEY *key, const char *text, uint8_t ret[static SIGNATURE_SIZE]) {
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        size_t size = SIGNATURE_SIZE;

        assert_int_equal(EVP_DigestSignInit(ctx, NULL, NULL, NULL, key), 1);
        assert_int_equal(EVP_DigestSign(ctx, ret, &size, (const uint8_t *) text, strlen(text)), 1);
        EVP_MD_CTX_free(ctx);
}

static int setup(void **state) {
        static const char *const folders[] = { "etc", "usr", "base" };
        World *w = calloc(1, sizeof(*w));
        char path[128];

        assert_non_null(w);
        (void) strcpy(w->path, "/tmp/test-vm-template.XXXXXX");
        assert_non_null(mkdtemp(w->path));
        for (size_t i = 0; i < ELEMENTSOF(folders); i++) {
                (void) snprintf(path, sizeof(path), "%s/%s", w->path, folders[i]);
                assert_int_equal(mkdir(path, 0755), 0);
        }
        w->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        (void) snprintf(w->keys, sizeof(w->keys), "%s/etc:%s/usr", w->path, w->path);
        w->vendor = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
        w->other = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
        write_key(w, "usr", "vendor.pem", w->vendor);
        *state = w;
        return 0;
}

static int teardown(void **state) {
        World *w = *state;
        char command[128];

        (void) fd_close(w->dir);
        EVP_PKEY_free(w->vendor);
        EVP_PKEY_free(w->other);
        (void) snprintf(command, sizeof(command), "rm -rf %s", w->path);
        assert_int_equal(system(command), 0);
        free(w);
        return 0;
}

/* Installs a manifest with these contents, signed by key. */
static void install(const World *w, const char *text, EVP_PKEY *key) {
        uint8_t signature[SIGNATURE_SIZE];

        write_file(w->dir, VM_TEMPLATE_MANIFEST, text, strlen(text));
        sign(key, text, signature);
        write_file(w->dir, VM_TEMPLATE_SIGNATURE, signature, sizeof(signature));
}

/* A right manifest, named as said, that names one file. The text is the caller's. */
static char *make_manifest(const char *name) {
        _cleanup_json_ json_t *j = json_pack("{s:s, s:{s:s}}", "name", name, "files", "initrd",
                                             "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"); /* hello */
        char digest[HEX_SHA256_SIZE];

        assert_int_equal(json_digest(j, digest), 0);
        assert_int_equal(json_object_set_new(j, "digest", json_string(digest)), 0);
        return json_dumps(j, JSON_INDENT(2));
}

static int read_it(const World *w, char **ret_reason) {
        _cleanup_json_ json_t *manifest = NULL;
        int r = vm_template_read(w->dir, "base", w->keys, &manifest, ret_reason);

        assert_int_equal(r == 0, manifest != NULL);
        return r;
}

static void assert_refused(const World *w, int error, const char *word) {
        _cleanup_free_ char *reason = NULL;

        assert_int_equal(read_it(w, &reason), error);
        assert_non_null(reason);
        if (!strstr(reason, word))
                fail_msg("\"%s\" lacks \"%s\"", reason, word);
}

static void test_signed_by_a_trusted_key(void **state) {
        const World *w = *state;
        _cleanup_free_ char *text = make_manifest("base");

        install(w, text, w->vendor);
        assert_int_equal(read_it(w, NULL), 0);
}

static void test_signed_by_another_key(void **state) {
        const World *w = *state;
        _cleanup_free_ char *text = make_manifest("base");

        install(w, text, w->other);
        assert_refused(w, -EKEYREJECTED, "no key that this host trusts");
        write_key(w, "etc", "site.pem", w->other); /* the control: the operator trusts it */
        assert_int_equal(read_it(w, NULL), 0);
}

static void test_no_signature(void **state) {
        const World *w = *state;
        _cleanup_free_ char *text = make_manifest("base");

        install(w, text, w->vendor);
        assert_int_equal(unlinkat(w->dir, VM_TEMPLATE_SIGNATURE, 0), 0);
        assert_refused(w, -EKEYREJECTED, "not signed");
        for (size_t size = 0; size <= 2 * SIGNATURE_SIZE; size += SIGNATURE_SIZE - 1) {
                static const uint8_t zeros[2 * SIGNATURE_SIZE];

                write_file(w->dir, VM_TEMPLATE_SIGNATURE, zeros, size);
                assert_refused(w, -EKEYREJECTED, "no key that this host trusts");
        }
}

static void test_changed_after_signing(void **state) {
        const World *w = *state;
        _cleanup_free_ char *text = make_manifest("base");

        install(w, text, w->vendor);
        text[0] = ' ';
        write_file(w->dir, VM_TEMPLATE_MANIFEST, text, strlen(text));
        assert_refused(w, -EKEYREJECTED, "no key that this host trusts");
}

static void test_no_manifest(void **state) {
        const World *w = *state;

        assert_refused(w, -ENOENT, "cannot be read");
}

/* A file of the operator's hides the vendor's of the same name, be it another key, empty, a link to nowhere or rubbish. */
static void test_vendor_key_taken_out_of_use(void **state) {
        const World *w = *state;
        _cleanup_free_ char *text = make_manifest("base");
        char path[256];

        install(w, text, w->vendor);
        assert_int_equal(read_it(w, NULL), 0);
        write_key(w, "etc", "vendor.pem", w->other);
        assert_refused(w, -EKEYREJECTED, "no key that this host trusts");
        write_key(w, "etc", "vendor.pem", NULL);
        assert_refused(w, -EKEYREJECTED, "no key that this host trusts");
        (void) snprintf(path, sizeof(path), "%s/etc/vendor.pem", w->path);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(read_it(w, NULL), 0);
        assert_int_equal(symlink("/dev/null", path), 0);
        assert_refused(w, -EKEYREJECTED, "no key that this host trusts");
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink("/nowhere", path), 0);
        assert_refused(w, -EKEYREJECTED, "no key that this host trusts");
}

static void test_keys_of_another_kind(void **state) {
        const World *w = *state;
        _cleanup_free_ char *text = make_manifest("base");
        EVP_PKEY *ec = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");

        install(w, text, w->vendor);
        write_key(w, "etc", "a-ec.pem", ec);
        EVP_PKEY_free(ec);
        assert_int_equal(read_it(w, NULL), 0); /* passed over, and the right one found */
        write_key(w, "usr", "vendor.txt", w->other);
        install(w, text, w->other);
        assert_refused(w, -EKEYREJECTED, "no key that this host trusts");
}

static void test_missing_folders(void **state) {
        World *w = *state;
        _cleanup_free_ char *text = make_manifest("base");

        install(w, text, w->vendor);
        (void) snprintf(w->keys, sizeof(w->keys), "/nowhere/etc:%s/usr", w->path);
        assert_int_equal(read_it(w, NULL), 0);
        (void) snprintf(w->keys, sizeof(w->keys), "/nowhere/etc:/nowhere/usr");
        assert_refused(w, -EKEYREJECTED, "no key that this host trusts");
        (void) snprintf(w->keys, sizeof(w->keys), "/dev/null:%s/usr", w->path);
        assert_refused(w, -ENOTDIR, "cannot be checked");
}

static void test_signed_but_wrong(void **state) {
        const World *w = *state;
        _cleanup_free_ char *other = make_manifest("other");
        static const struct {
                const char *text, *word;
        } cases[] = {
                { "{", "" },
                { "[]", "another template" },
                { "{\"files\":{}}", "another template" },
                { "{\"name\":\"base\"}", "names no files" },
                { "{\"name\":\"base\",\"files\":{}}", "digest is not" },
                { "{\"name\":\"base\",\"files\":{},\"digest\":\"00\"}", "digest is not" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                install(w, cases[i].text, w->vendor);
                assert_refused(w, -EBADMSG, cases[i].word);
        }
        install(w, other, w->vendor);
        assert_refused(w, -EBADMSG, "another template");
}

static void test_files(void **state) {
        const World *w = *state;
        _cleanup_free_ char *text = make_manifest("base");
        _cleanup_json_ json_t *manifest = NULL;
        _cleanup_fd_ int fd = -1;
        char c;

        install(w, text, w->vendor);
        assert_int_equal(vm_template_read(w->dir, "base", w->keys, &manifest, NULL), 0);

        write_file(w->dir, "initrd", "hello", 5);
        fd = openat(w->dir, "initrd", O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(vm_template_check_file(fd, manifest, "initrd", NULL), 0);
        assert_int_equal(read(fd, &c, 1), 1); /* from the start */
        assert_int_equal(c, 'h');
        assert_int_equal(vm_template_check_file(fd, manifest, "initrd", NULL), 0);
        assert_int_equal(vm_template_check_file(fd, manifest, "vmlinuz", NULL), -ESTALE);

        assert_int_equal(pwrite(fd, "H", 1, 0), 1);
        assert_int_equal(vm_template_check_file(fd, manifest, "initrd", NULL), -ESTALE);
        assert_int_equal(vm_template_check_file(-1, manifest, "initrd", NULL), -EBADF);
}

/* ---- what was measured before ---- */

/* The file "initrd" with these contents, as of now, and whether it passes for what the manifest names. */
static int check_initrd(const World *w, const json_t *measured) {
        _cleanup_fd_ int fd = openat(w->dir, "initrd", O_RDONLY | O_CLOEXEC);
        _cleanup_free_ char *text = make_manifest("base");
        _cleanup_json_ json_t *manifest = NULL;

        assert_true(fd >= 0);
        assert_int_equal(json_parse(text, strlen(text), &manifest, NULL), 0);
        return vm_template_check_file(fd, manifest, "initrd", measured);
}

static void overwrite(const World *w, const char *text) {
        _cleanup_fd_ int fd = openat(w->dir, "initrd", O_WRONLY | O_CLOEXEC);

        assert_int_equal(pwrite(fd, text, strlen(text), 0), strlen(text));
}

static json_int_t nsec(const struct timespec *ts) {
        return (json_int_t) ts->tv_sec * 1000000000 + ts->tv_nsec;
}

static json_t *measure(const World *w, uint64_t settle_usec, size_t n) {
        json_t *measured = vm_measured_make(w->path, w->keys, settle_usec);

        assert_int_equal(json_array_size(json_object_get(measured, "files")), n);
        return measured;
}

static void test_measured(void **state) {
        const World *w = *state;
        _cleanup_free_ char *text = make_manifest("base"), *path = NULL;
        _cleanup_json_ json_t *measured = NULL, *loaded = NULL;
        struct timespec times[2];
        struct stat st;
        uint64_t begun;

        write_file(w->dir, "initrd", "hello", 5);
        json_decref(measure(w, 0, 0)); /* no manifest */
        install(w, text, w->other);
        json_decref(measure(w, 0, 0)); /* nobody's */
        install(w, text, w->vendor);

        begun = time_monotonic();
        write_file(w->dir, "initrd", "hello", 5);
        measured = measure(w, 300 * 1000, 1);
        assert_true(time_monotonic() - begun >= 290 * 1000); /* it had just changed */
        assert_int_equal(check_initrd(w, measured), 0);

        /* another inode, the same contents: read, and fine */
        write_file(w->dir, "initrd", "hello", 5);
        assert_int_equal(fstatat(w->dir, "initrd", &st, 0), 0);
        assert_false(vm_measured_has(measured, &st, json_string_value(json_object_get(json_array_get(json_object_get(measured, "files"), 0), "sha256"))));
        assert_int_equal(check_initrd(w, measured), 0);

        /* what is written is what is read */
        path = text_format("%s/measured.json", w->path);
        assert_int_equal(json_dump_file(measured, path, JSON_COMPACT), 0);
        loaded = vm_measured_load(path);
        assert_true(json_equal(loaded, measured));
        assert_null(vm_measured_load("/nonexistent"));

        /* not what the manifest names */
        write_file(w->dir, "initrd", "jello", 5);
        json_decref(measure(w, 0, 0));

        /* changed in place, and its times put back: ctime tells */
        write_file(w->dir, "initrd", "hello", 5);
        (void) json_decref(measured);
        measured = measure(w, 50 * 1000, 1);
        assert_int_equal(check_initrd(w, measured), 0);
        assert_int_equal(fstatat(w->dir, "initrd", &st, 0), 0);
        overwrite(w, "jello");
        times[0] = st.st_atim;
        times[1] = st.st_mtim;
        assert_int_equal(utimensat(w->dir, "initrd", times, 0), 0);
        assert_int_equal(check_initrd(w, measured), -ESTALE);
}

/* The control for all of these: a file that is as it was measured is not read again. */
static void test_measured_is_believed(void **state) {
        const World *w = *state;
        _cleanup_free_ char *text = make_manifest("base");
        _cleanup_json_ json_t *measured = NULL;
        struct stat st;

        install(w, text, w->vendor);
        write_file(w->dir, "initrd", "hello", 5);
        measured = measure(w, 0, 1);
        write_file(w->dir, "initrd", "jello", 5);
        assert_int_equal(check_initrd(w, measured), -ESTALE);

        assert_int_equal(fstatat(w->dir, "initrd", &st, 0), 0);
        for (size_t i = 0; i < 5; i++) {
                static const char *const keys[] = { "dev", "ino", "size", "mtime_ns", "ctime_ns" };
                const json_int_t now[] = { (json_int_t) st.st_dev, (json_int_t) st.st_ino, st.st_size, nsec(&st.st_mtim), nsec(&st.st_ctim) };
                json_t *entry = json_array_get(json_object_get(measured, "files"), 0);

                for (size_t k = 0; k < 5; k++)
                        assert_int_equal(json_object_set_new(entry, keys[k], json_integer(now[k])), 0);
                assert_int_equal(check_initrd(w, measured), 0);
                assert_int_equal(json_object_set_new(entry, keys[i], json_integer(now[i] + 1)), 0);
                assert_int_equal(check_initrd(w, measured), -ESTALE);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_signed_by_a_trusted_key, setup, teardown),
                cmocka_unit_test_setup_teardown(test_signed_by_another_key, setup, teardown),
                cmocka_unit_test_setup_teardown(test_no_signature, setup, teardown),
                cmocka_unit_test_setup_teardown(test_changed_after_signing, setup, teardown),
                cmocka_unit_test_setup_teardown(test_no_manifest, setup, teardown),
                cmocka_unit_test_setup_teardown(test_vendor_key_taken_out_of_use, setup, teardown),
                cmocka_unit_test_setup_teardown(test_keys_of_another_kind, setup, teardown),
                cmocka_unit_test_setup_teardown(test_missing_folders, setup, teardown),
                cmocka_unit_test_setup_teardown(test_signed_but_wrong, setup, teardown),
                cmocka_unit_test_setup_teardown(test_files, setup, teardown),
                cmocka_unit_test_setup_teardown(test_measured, setup, teardown),
                cmocka_unit_test_setup_teardown(test_measured_is_believed, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
