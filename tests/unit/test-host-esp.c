/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Boot entries, their names and their counters; and how those of the loader follow ostree's, on folders that stand for /boot and for the partition. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/host-bls.h"
#include "host/host-esp.h"
#include "host/host-state-api.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/json.h"

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define C "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"

#define ENTRY(version, kernels, options)                                                                                   \
        "title Debian GNU/Linux 13 (trixie) " A " (ostree:0)\nversion " version "\noptions root=LABEL=anchorhold " options \
        "\nlinux /boot/ostree/" kernels "/vmlinuz-6.12\ninitrd /boot/ostree/" kernels "/initramfs-6.12.img\n"

/* ---- the forms ---- */

static void test_names(void **state) {
        static const struct {
                const char *file;
                int left, done;
        } good[] = {
                { "anchorhold-" A ".0.conf", -1, 0 },
                { "anchorhold-" A ".12+2.conf", 2, 0 },
                { "anchorhold-" A ".0+1-1.conf", 1, 1 },
                { "anchorhold-" A ".0+0-2.conf", 0, 2 },
        };
        static const char *const bad[] = {
                "",
                ".conf",
                "anchorhold-.conf",
                "anchorhold-" A ".conf",
                "anchorhold-" A ".0",
                "anchorhold-" A ".0.con",
                "other-" A ".0.conf",
                "anchorhold-" A "a.0.conf",
                "anchorhold-" A ".0+.conf",
                "anchorhold-" A ".0+2-.conf",
                "anchorhold-" A ".0+-1.conf",
                "anchorhold-" A ".0+100.conf",
                "anchorhold-" A ".0+2-1-1.conf",
                "anchorhold-" A ".0+2+1.conf",
                "anchorhold-" A ".0+2x.conf",
                "anchorhold-../" A ".0.conf",
                "anchorhold-" A ".x.conf",
        };
        char again[BLS_NAME_SIZE];
        BlsName name;

        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                assert_true(bls_name_parse(good[i].file, &name));
                assert_int_equal(name.left, good[i].left);
                assert_int_equal(name.done, good[i].done);
                assert_int_equal(strncmp(name.id, A ".", 65), 0);
                bls_name_format(&name, again);
                assert_string_equal(again, good[i].file);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (bls_name_parse(bad[i], &name))
                        fail_msg("%s", bad[i]);
}

static void test_entry(void **state) {
        static const char good[] = ENTRY("2", "anchorhold-1", "rw ostree=/ostree/boot.1/anchorhold/1/0 panic=30");
        static const char *const bad[] = {
                "",
                "title x\n",
                ENTRY("1", "..", "ostree=/x"),
                ENTRY("1", "a/b", "ostree=/x"),
                ENTRY("1", "", "ostree=/x"),
                "title x\nversion 1\noptions a\nlinux /ostree/a/k\n",
                "title x\nversion 1\noptions a\nlinux /ostree/a/k\ninitrd /ostree/b/i\n",
                "title x\nversion 1\noptions a\nlinux /etc/passwd\ninitrd /etc/shadow\n",
                "title x\nversion 1\noptions a\nlinux /ostree/a/.k\ninitrd /ostree/a/i\n",
        };
        _cleanup_free_ char *link = NULL, *text = NULL;
        BlsEntry e = {};

        assert_int_equal(bls_entry_parse(good, strlen(good), &e), 0);
        assert_string_equal(e.version, "2");
        assert_string_equal(e.kernels, "anchorhold-1");
        assert_string_equal(e.kernel, "vmlinuz-6.12");
        link = bls_entry_link(&e);
        assert_string_equal(link, "ostree/boot.1/anchorhold/1/0");
        text = bls_entry_format(&e);
        assert_string_equal(text, "title Debian GNU/Linux 13 (trixie) " A " (ostree:0)\nsort-key anchorhold\nversion 2\nlinux /ostree/anchorhold-1/vmlinuz-6.12\n"
                                  "initrd /ostree/anchorhold-1/initramfs-6.12.img\noptions root=LABEL=anchorhold rw ostree=/ostree/boot.1/anchorhold/1/0 panic=30\n");
        bls_entry_done(&e);

        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                if (bls_entry_parse(bad[i], strlen(bad[i]), &e) != -EINVAL)
                        fail_msg("%s", bad[i]);
        assert_int_equal(bls_entry_parse(good, sizeof(good), &e), -EINVAL); /* with its zero byte */
}

static void test_partition(void **state) {
        static const char text[] = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";
        char variable[4 + 2 * sizeof(text)] = "\x06", partition[BLS_PARTITION_SIZE];

        for (size_t i = 0; i < sizeof(text); i++)
                variable[4 + 2 * i] = text[i];
        assert_int_equal(bls_partition_parse(variable, sizeof(variable), partition), 0);
        assert_string_equal(partition, "c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
        assert_int_equal(bls_partition_parse(variable, sizeof(variable) - 2, partition), 0); /* not all firmware ends it */
        assert_int_equal(bls_partition_parse(variable, sizeof(variable) - 3, partition), -EINVAL);
        assert_int_equal(bls_partition_parse(variable, 0, partition), -EINVAL);
        variable[4] = '/';
        assert_int_equal(bls_partition_parse(variable, sizeof(variable), partition), -EINVAL);
        variable[4] = 'C';
        variable[5] = 1;
        assert_int_equal(bls_partition_parse(variable, sizeof(variable), partition), -EINVAL);
}

/* ---- following ---- */

static char folder[] = "/tmp/anchorhold-esp-XXXXXX";
static HostEsp esp;

static int run(const char *script) {
        return command_run((const char *const[]) { "sh", "-euc", script, "sh", folder, NULL }, NULL, NULL, NULL);
}

static int open_below(const char *name) {
        _cleanup_free_ char *path = text_format("%s%s", folder, name);

        return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Two deployments with a kernel each: A is older, B is what ostree boots next. Link N of each is another one. */
static int set_up(void **state) {
        strcpy(folder + sizeof(folder) - 7, "XXXXXX");
        if (!mkdtemp(folder) ||
            run("cd $1; mkdir -p boot/loader/entries boot/ostree/os-1 boot/ostree/os-2 esp/loader/entries ostree/boot.1/os/1 ostree/boot.1/os/2\n"
                "for n in 1 2; do echo kernel $n >boot/ostree/os-$n/vmlinuz-6.12; echo initramfs $n >boot/ostree/os-$n/initramfs-6.12.img; done\n"
                "ln -s ../../../deploy/os/deploy/" A ".0 ostree/boot.1/os/1/0; ln -s ../../../deploy/os/deploy/" B ".0 ostree/boot.1/os/2/0\n") != 0)
                return -1;
        esp = (HostEsp) { .boot_fd = open_below("/boot"), .root_fd = open_below(""), .esp_fd = open_below("/esp") };
        return esp.boot_fd < 0 || esp.root_fd < 0 || esp.esp_fd < 0 ? -1 : 0;
}

static int tear_down(void **state) {
        (void) close(esp.boot_fd);
        (void) close(esp.root_fd);
        (void) close(esp.esp_fd);
        return command_run((const char *const[]) { "rm", "-r", folder, NULL }, NULL, NULL, NULL);
}

static void has_entry(const char *file, const char *text) {
        _cleanup_free_ char *path = text_format("loader/entries/%s", file);

        assert_return_code(io_write_file_atomic(esp.boot_fd, path, text, strlen(text), 0600), errno);
}

static void ostree_has_both(void) {
        has_entry("ostree-1.conf", ENTRY("1", "os-1", "ostree=/ostree/boot.1/os/1/0"));
        has_entry("ostree-2.conf", ENTRY("2", "os-2", "ostree=/ostree/boot.1/os/2/0"));
}

static void deployment(HostDeployments *d, HostRole role, const char *digest) {
        HostDeployment *new = &d->list[d->n];

        *new = (HostDeployment) { .role = role, .index = (int) d->n++ };
        strcpy(new->digest, digest);
        strcpy(new->commit, digest); /* the same letters, so that it is seen which is which */
}

/* B, then A, of which that one is booted. */
static HostDeployments both(const char *booted) {
        HostDeployments d = {};
        bool second = strcmp(booted, A) == 0;

        deployment(&d, second ? HOST_PENDING : HOST_BOOTED, B);
        deployment(&d, second ? HOST_BOOTED : HOST_ROLLBACK, A);
        return d;
}

/* The names of the loader's entries, sorted, a blank behind each; and whether kernels have what ostree's have. */
static void assert_there(const char *names) {
        _cleanup_free_ char *out = NULL;

        assert_int_equal(command_run((const char *const[]) { "sh", "-euc", "cd $1/esp; ls -A loader/entries | tr '\\n' ' '; "
                                                                           "for k in ostree/*; do cmp -s $k/vmlinuz-6.12 ../boot/$k/vmlinuz-6.12; cmp -s $k/initramfs-6.12.img ../boot/$k/initramfs-6.12.img; done",
                                                             "sh", folder, NULL },
                                     NULL, &out, NULL),
                         0);
        assert_string_equal(out, names);
}

static void assert_kernels(const char *names) {
        _cleanup_free_ char *out = NULL;

        assert_int_equal(command_run((const char *const[]) { "sh", "-euc", "ls -A $1/esp/ostree | tr '\\n' ' '", "sh", folder, NULL }, NULL, &out, NULL), 0);
        assert_string_equal(out, names);
}

/* What is new and never passed is counted; what runs, or has worked here, is not. */
static void test_new_image_is_counted(void **state) {
        _cleanup_json_ json_t *known = json_object();
        HostDeployments d = both(A);

        ostree_has_both();
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_there("anchorhold-" A ".0.conf anchorhold-" B ".0+2.conf ");
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0); /* again: the same */
        assert_there("anchorhold-" A ".0.conf anchorhold-" B ".0+2.conf ");

        assert_int_equal(host_state_set_healthy(known, B), 0);
        assert_return_code(unlinkat(esp.esp_fd, "loader/entries/anchorhold-" B ".0+2.conf", 0), errno);
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_there("anchorhold-" A ".0.conf anchorhold-" B ".0.conf ");
}

/* The loader has counted one start: that stays so whatever else changes, until there is a verdict. */
static void test_counter_stays_until_a_verdict(void **state) {
        _cleanup_json_ json_t *known = json_object();
        HostDeployments d = both(A), next = both(B);
        _cleanup_free_ char *text = NULL;

        ostree_has_both();
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_return_code(renameat(esp.esp_fd, "loader/entries/anchorhold-" B ".0+2.conf", esp.esp_fd, "loader/entries/anchorhold-" B ".0+1-1.conf"), errno);
        has_entry("ostree-2.conf", ENTRY("1", "os-2", "ostree=/ostree/boot.1/os/2/0 quiet"));
        assert_int_equal(host_esp_follow_at(&esp, &next, known), 0);
        assert_there("anchorhold-" A ".0.conf anchorhold-" B ".0+1-1.conf ");
        assert_return_code(io_read_file(esp.esp_fd, "loader/entries/anchorhold-" B ".0+1-1.conf", 4096, &text, NULL), errno);
        assert_non_null(strstr(text, "\nversion 1\n"));
        assert_non_null(strstr(text, " quiet\n"));

        assert_int_equal(host_esp_bless_at(esp.esp_fd, &d), 0); /* the other one runs: no verdict of this */
        assert_there("anchorhold-" A ".0.conf anchorhold-" B ".0+1-1.conf ");
        assert_int_equal(host_esp_bless_at(esp.esp_fd, &next), 0);
        assert_there("anchorhold-" A ".0.conf anchorhold-" B ".0.conf ");
}

static void test_what_ostree_forgot_goes(void **state) {
        _cleanup_json_ json_t *known = json_object();
        HostDeployments d = both(B);

        ostree_has_both();
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_int_equal(run("cd $1; rm -r boot/loader/entries/ostree-1.conf boot/ostree/os-1; touch esp/loader/entries/other.conf"), 0);
        assert_kernels("os-1 os-2 ");
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_there("anchorhold-" B ".0.conf other.conf "); /* somebody else's is left alone */
        assert_kernels("os-2 ");
}

/* Whatever a power cut left half done is made anew, and nothing half done has a name that an entry uses. */
static void test_after_a_power_cut(void **state) {
        _cleanup_json_ json_t *known = json_object();
        HostDeployments d = both(A);

        ostree_has_both();
        assert_int_equal(run("cd $1/esp; mkdir -p ostree/unfinished; echo ker >ostree/unfinished/vmlinuz-6.12; touch loader/entries/.#anchorhold-" B ".0.conf.00"), 0);
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_there(".#anchorhold-" B ".0.conf.00 anchorhold-" A ".0.conf anchorhold-" B ".0+2.conf ");
        assert_kernels("os-1 os-2 ");
}

/* What is not understood changes nothing, whatever else there is. */
static void test_entries_that_are_not_known(void **state) {
        static const char *const bad[] = { "title\n", ENTRY("2", "os-2", "ostree=/ostree/boot.0/os/2/0"), ENTRY("2", "os-2", ""), ENTRY("2", "os-3", "ostree=/ostree/boot.1/os/2/0") };
        _cleanup_json_ json_t *known = json_object();
        HostDeployments d = both(A);

        assert_int_equal(host_esp_follow_at(&esp, &d, known), -ENOENT); /* no entry at all */
        has_entry("ostree-1.conf", ENTRY("1", "os-1", "ostree=/ostree/boot.1/os/1/0"));
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0); /* the control */
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                has_entry("ostree-2.conf", bad[i]);
                assert_true(host_esp_follow_at(&esp, &d, known) < 0);
                assert_there("anchorhold-" A ".0.conf ");
        }
}

static void test_given_up(void **state) {
        _cleanup_json_ json_t *known = json_object();
        HostDeployments d = both(A), next = both(B);
        const char *reason;

        ostree_has_both();
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_int_equal(host_esp_reject_given_up(esp.esp_fd, &d, known), 0); /* not tried yet */
        assert_return_code(renameat(esp.esp_fd, "loader/entries/anchorhold-" B ".0+2.conf", esp.esp_fd, "loader/entries/anchorhold-" B ".0+0-2.conf"), errno);
        assert_int_equal(host_esp_reject_given_up(esp.esp_fd, &next, known), 0); /* this is its last try, and it may pass */
        assert_null(host_state_rejected(known, B));

        assert_int_equal(host_esp_reject_given_up(esp.esp_fd, &d, known), 1);
        reason = json_string_value(json_object_get(host_state_rejected(known, B), "reason"));
        assert_non_null(strstr(reason, "boot loader started it 2 times"));
        assert_true(json_is_false(json_object_get(host_state_rejected(known, B), "told")));
        assert_int_equal(host_esp_reject_given_up(esp.esp_fd, &d, known), 0); /* once */
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_there("anchorhold-" A ".0.conf anchorhold-" B ".0+0-2.conf ");

        /* somebody wants it after all: it is tried as often as one that nobody knows */
        host_state_accept(folder, known, B);
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_there("anchorhold-" A ".0.conf anchorhold-" B ".0+2.conf ");
}

/* An image that has passed here once is not the loader's to reject. */
static void test_healthy_is_not_given_up(void **state) {
        _cleanup_json_ json_t *known = json_object();
        HostDeployments d = both(A);

        ostree_has_both();
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_return_code(renameat(esp.esp_fd, "loader/entries/anchorhold-" B ".0+2.conf", esp.esp_fd, "loader/entries/anchorhold-" B ".0+0-2.conf"), errno);
        assert_int_equal(host_state_set_healthy(known, B), 0);
        assert_int_equal(host_esp_reject_given_up(esp.esp_fd, &d, known), 0);
        assert_int_equal(host_esp_follow_at(&esp, &d, known), 0);
        assert_there("anchorhold-" A ".0.conf anchorhold-" B ".0.conf ");
}

/* ---- in the initramfs ---- */

static int bootlink(const char *options) {
        _cleanup_free_ char *line = text_format("BOOT_IMAGE=x %s quiet\n", options), *path = text_format("%s/cmdline", folder);

        assert_return_code(io_write_file_atomic(AT_FDCWD, path, line, strlen(line), 0600), errno);
        return command_run((const char *const[]) { "sh", "image/initrd/ostree-bootlink", folder, path, NULL }, NULL, NULL, NULL);
}

static bool leads(const char *path) {
        return faccessat(esp.root_fd, path, F_OK, 0) == 0;
}

/* ostree has gone on to boot.1, and the loader still says boot.0. */
static void test_link_of_before(void **state) {
        assert_int_equal(run("cd $1/ostree; mkdir -p deploy/os/deploy/" A ".0; ln -s nowhere boot.1/os/2/1"), 0);
        assert_true(leads("ostree/boot.1/os/1/0"));

        assert_int_equal(bootlink("ostree=/ostree/boot.1/os/1/0"), 0);
        assert_int_equal(bootlink("ostree=/ostree/boot.0/os/3/0"), 0); /* of no deployment that there is */
        assert_int_equal(bootlink("ostree=/ostree/boot.0/os/2/1"), 0);
        assert_int_equal(bootlink("ostree=/ostree/boot.2/os/1/0"), 0);
        assert_int_equal(bootlink("ro"), 0);
        assert_false(leads("ostree/boot.0"));

        assert_int_equal(bootlink("ostree=/ostree/boot.0/os/1/0"), 0);
        assert_true(leads("ostree/boot.0/os/1/0"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_entry),
                cmocka_unit_test(test_partition),
                cmocka_unit_test_setup_teardown(test_new_image_is_counted, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_counter_stays_until_a_verdict, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_what_ostree_forgot_goes, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_after_a_power_cut, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_entries_that_are_not_known, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_given_up, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_healthy_is_not_given_up, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_link_of_before, set_up, tear_down),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
