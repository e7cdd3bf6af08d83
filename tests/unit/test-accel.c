/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What a microVM is made of, and the probe of KVM: with a QEMU that is this very program, which says hello, dies, or stays
 * silent as the test wants.
 */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "own-world.h"
#include "signed-template.h"
#include "util/io.h"
#include "util/json.h"
#include "vmm/accel.h"
#include "vmm/channel.h"
#include "vmm/vm-parts.h"

#define TEMPLATES "/run/templates"
#define KEYS "/run/keys"
#define SHA256_OF_X "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
#define SCRATCH "/run/scratch"

static EVP_PKEY *key;                     /* signs templates while the world is made */
static char base_digest[HEX_SHA256_SIZE];

/* ---- the other QEMU ---- */

static int fd_of(char *const argv[], const char *id) {
        char prefix[64];

        (void) snprintf(prefix, sizeof(prefix), "socket,id=%s,fd=", id);
        for (; *argv; argv++)
                if (strncmp(*argv, prefix, strlen(prefix)) == 0)
                        return (int) strtol(*argv + strlen(prefix), NULL, 10);
        return -1;
}

static void say(int fd, ChannelType type, const char *payload) {
        uint8_t header[CHANNEL_HEADER_SIZE];

        channel_encode_header(header, type, 0, (uint32_t) strlen(payload));
        (void) io_write_full(fd, header, sizeof(header));
        (void) io_write_full(fd, payload, strlen(payload));
}

static void be_monitor(int fd) {
        static const char greeting[] = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";
        char text[4096] = {};

        (void) io_write_full(fd, greeting, strlen(greeting));
        while (read(fd, text, sizeof(text) - 1) > 0) {
                for (char *line, *rest = text; (line = strsep(&rest, "\n")) && *line;) {
                        _cleanup_json_ json_t *request = NULL;
                        char answer[256];

                        if (json_parse(line, strlen(line), &request, NULL) < 0)
                                continue;
                        (void) snprintf(answer, sizeof(answer), "{\"return\": {\"status\": \"internal-error\"}, \"id\": %lld}\r\n",
                                        json_integer_value(json_object_get(request, "id")));
                        (void) io_write_full(fd, answer, strlen(answer));
                }
                memset(text, 0, sizeof(text));
        }
}

static int be_qemu(char *const argv[]) {
        const char *how = getenv("TEST_QEMU") ?: "";
        int channel;

        if (strcmp(how, "dies") == 0) {
                fprintf(stderr, "Could not access KVM kernel module\nmore\n");
                return 1;
        }
        if (strcmp(how, "internal-error") == 0) {
                fprintf(stderr, "KVM internal error. Suberror: 1\n");
                be_monitor(accept(fd_of(argv, "qmp"), NULL, NULL));
                return 0;
        }
        channel = accept(fd_of(argv, "channel"), NULL, NULL);
        if (strcmp(how, "hello") == 0) {
                say(channel, CHANNEL_HELLO, "{\"protocol\":1,\"boot_id\":\"b\"}");
                say(channel, CHANNEL_SEED, "");
                say(channel, CHANNEL_CLOCK, "");
        } else if (strcmp(how, "garbage") == 0)
                (void) io_write_full(channel, "SeaBIOS (version 1.16)", 22);
        (void) sleep(30);
        return 0;
}

/* ---- the probe ---- */

enum { PATIENT_USEC = 20 * 1000 * 1000, IMPATIENT_USEC = 700 * 1000 };

static AccelResult probe(const char *how, uint64_t timeout_usec) {
        const AccelProbe p = { .templates = TEMPLATES, .template_name = "base", .keys = KEYS, .scratch = SCRATCH, .timeout_usec = timeout_usec };
        AccelResult result;

        assert_int_equal(setenv("TEST_QEMU", how, 1), 0);
        assert_int_equal(accel_probe(&p, &result), 0);
        assert_int_equal(rmdir(SCRATCH) | mkdir(SCRATCH, 0700), 0); /* nothing is left */
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        return result;
}

static void test_probe(void **state) {
        AccelResult r = probe("hello", PATIENT_USEC);

        if (!r.kvm)
                print_error("%s\n", r.reason);
        assert_true(r.kvm);
        r = probe("dies", PATIENT_USEC);
        assert_false(r.kvm);
        assert_string_equal(r.reason, "QEMU ended: Could not access KVM kernel module");
        r = probe("internal-error", PATIENT_USEC);
        assert_false(r.kvm);
        assert_string_equal(r.reason, "KVM internal error. Suberror: 1");
        assert_true(r.usec < PATIENT_USEC / 2); /* at once, not only when the time is over */
        r = probe("garbage", PATIENT_USEC);
        assert_false(r.kvm);
        assert_non_null(strstr(r.reason, "the guest's channel"));
        r = probe("silent", IMPATIENT_USEC);
        assert_false(r.kvm);
        assert_string_equal(r.reason, "no hello from the guest in time");
}

static void test_probe_fails(void **state) {
        const AccelProbe p = { .templates = TEMPLATES, .template_name = "nothing", .keys = KEYS, .scratch = SCRATCH, .timeout_usec = 700000 };
        const AccelProbe q = { .templates = TEMPLATES, .template_name = "base", .keys = KEYS, .scratch = "/nonexistent", .timeout_usec = 700000 };
        AccelResult result;

        assert_int_equal(accel_probe(&p, &result), -ENOENT);
        assert_false(result.kvm);
        assert_true(accel_probe(&q, &result) < 0);
        assert_int_equal(rename("/dev/kvm", "/dev/no-kvm"), 0);
        result = probe("hello", PATIENT_USEC);
        assert_int_equal(rename("/dev/no-kvm", "/dev/kvm"), 0);
        assert_false(result.kvm);
        assert_string_equal(result.reason, "/dev/kvm: No such file or directory");
}

/* ---- parts ---- */

static int open_template(const char *name, const char *agent, const char *digests, char **ret_cmdline) {
        _cleanup_(vm_parts_done) VmParts parts = VM_PARTS_NULL;
        _cleanup_json_ json_t *j = NULL;
        VmSpec spec = { .template_name = (char *) name, .agent = (char *) agent };
        int r;

        if (digests)
                assert_int_equal(json_parse(digests, strlen(digests), &j, NULL), 0);
        spec.digests = j;
        r = vm_parts_open_template(&parts, &spec, TEMPLATES, KEYS, ret_cmdline);
        if (r < 0)
                return r;

        assert_true(parts.kernel >= 0 && parts.initrd >= 0 && parts.root >= 0);
        assert_true((parts.agent >= 0) == !!agent);
        assert_true(fcntl(parts.root, F_GETFD) & FD_CLOEXEC);
        assert_int_equal(fcntl(parts.root, F_GETFL) & O_ACCMODE, O_RDONLY);
        return r;
}

static void test_template(void **state) {
        _cleanup_free_ char *cmdline = NULL, *other = NULL, *digests = NULL;
        char *none = NULL;

        assert_int_equal(open_template("base", NULL, NULL, &cmdline), 0);
        assert_string_equal(cmdline, "quiet");
        digests = text_format("{\"root.erofs\": \"" SHA256_OF_X "\", \"template\": \"%s\"}", base_digest);
        assert_int_equal(open_template("base", "pi", digests, &other), 0);

        /* a template that was replaced since the run was made is another one */
        assert_int_equal(open_template("base", NULL, "{\"root.erofs\": \"ab\"}", &none), -ESTALE);
        assert_int_equal(open_template("base", NULL, "{\"template\": \"d1\"}", &none), -ESTALE);
        assert_int_equal(open_template("base", NULL, "{\"vmlinuz\": \"aa\"}", &none), -ESTALE);
        assert_int_equal(open_template("base", "nobody", NULL, &none), -ENOENT);
        assert_int_equal(open_template("nothing", NULL, NULL, &none), -ENOENT);
        assert_true(open_template("broken", NULL, NULL, &none) < 0);
        assert_int_equal(open_template("linked", NULL, NULL, &none), -ELOOP);
        assert_int_equal(open_template("unsigned", NULL, NULL, &none), -EKEYREJECTED);

        /* whatever file was changed since it was signed; the agent's only if it is used */
        assert_int_equal(open_template("changed-kernel", NULL, NULL, &none), -ESTALE);
        assert_int_equal(open_template("changed-initrd", NULL, NULL, &none), -ESTALE);
        assert_int_equal(open_template("changed-root", NULL, NULL, &none), -ESTALE);
        assert_int_equal(open_template("changed-agent", "pi", NULL, &none), -ESTALE);
        assert_null(none);
        assert_int_equal(open_template("changed-agent", NULL, NULL, &none), 0);
        none = (free(none), NULL);
        assert_null(none);
}

static void test_scratch(void **state) {
        VmParts parts = VM_PARTS_NULL;
        uint8_t magic[2];
        struct stat st;
        pid_t pid;

        assert_int_equal(vm_parts_start_scratch(&parts, SCRATCH, 16, &pid), 0);
        assert_int_equal(vm_parts_finish_scratch(pid), 0);
        assert_int_equal(fstat(parts.scratch, &st), 0);
        assert_int_equal(st.st_size, 16 << 20);
        assert_int_equal(st.st_nlink, 0);
        assert_int_equal(pread(parts.scratch, magic, 2, 1024 + 56), 2);
        assert_memory_equal(magic, "\x53\xef", 2); /* ext4's */
        vm_parts_done(&parts);
        assert_int_equal(parts.scratch, -1);
        vm_parts_done(&parts);

        assert_int_equal(vm_parts_start_scratch(&parts, SCRATCH, 0, &pid), 0); /* no room for a file system */
        assert_int_equal(vm_parts_finish_scratch(pid), -EIO);
        vm_parts_done(&parts);
        assert_int_equal(vm_parts_start_scratch(&parts, "/nonexistent", 16, &pid), -ENOENT);
        assert_int_equal(vm_parts_finish_scratch(999999999), -ECHILD);
}

static void test_tsc(void **state) {
        uint64_t a, b;
        VmTsc begun;

        vm_tsc_begin(&begun);
        a = vm_tsc_end(&begun);
        vm_tsc_begin(&begun);
        b = vm_tsc_end(&begun);

        /* two measurements agree within 2 %, on a busy machine as well */
        assert_true(a > 100000 && a < 20000000);
        assert_true((a > b ? a - b : b - a) < a / 50);
}

/* ---- the world ---- */

static void put(const char *path, const char *text) {
        assert_int_equal(io_write_file_atomic(AT_FDCWD, path, text, strlen(text), 0644), 0);
}

/* Files of one letter each, and a signed manifest that says so. */
static void make_template(const char *name) {
        static const char *const files[] = { "vmlinuz", "initrd", "root.erofs", "agents/pi.erofs" };
        json_t *manifest = json_pack("{s:s, s:s, s:{}}", "name", name, "cmdline", "quiet", "files");
        char folder[128], path[160];

        (void) snprintf(folder, sizeof(folder), TEMPLATES "/%s", name);
        assert_int_equal(mkdir(folder, 0755), 0);
        (void) snprintf(path, sizeof(path), "%s/agents", folder);
        assert_int_equal(mkdir(path, 0755), 0);
        for (size_t i = 0; i < ELEMENTSOF(files); i++) {
                (void) snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
                put(path, "x");
                assert_int_equal(json_object_set_new(json_object_get(manifest, "files"), files[i], json_string(SHA256_OF_X)), 0);
        }
        signed_template_write(key, folder, manifest, base_digest);
}

static void make_templates(void) {
        assert_int_equal(mkdir(KEYS, 0755), 0);
        key = signed_template_make_key(KEYS);
        make_template("changed-kernel");
        put(TEMPLATES "/changed-kernel/vmlinuz", "y");
        make_template("changed-initrd");
        put(TEMPLATES "/changed-initrd/initrd", "");
        make_template("changed-root");
        put(TEMPLATES "/changed-root/root.erofs", "xx");
        make_template("changed-agent");
        put(TEMPLATES "/changed-agent/agents/pi.erofs", "y");
        make_template("unsigned");
        assert_int_equal(unlink(TEMPLATES "/unsigned/manifest.json.sig"), 0);
        make_template("broken");
        signed_template_put(key, TEMPLATES "/broken", "{");
        make_template("linked");
        assert_int_equal(unlink(TEMPLATES "/linked/root.erofs") | symlink("/etc/passwd", TEMPLATES "/linked/root.erofs"), 0);
        make_template("base"); /* the last, for base_digest */
        EVP_PKEY_free(key);
}

static int enter_world(void **state) {
        _cleanup_free_ char *self = NULL;
        size_t size;
        int null;

        own_world_enter(0);
        own_world_cover("/usr/bin");
        assert_int_equal(mkdir(TEMPLATES, 0755) | mkdir(SCRATCH, 0700), 0);
        make_templates();

        assert_int_equal(io_read_file(AT_FDCWD, "/proc/self/exe", 512 << 20, &self, &size), 0);
        assert_int_equal(io_write_file_atomic(AT_FDCWD, VM_QEMU, self, size, 0755), 0);
        /* A /dev with a KVM that nobody here would use */
        null = open("/dev/null", O_RDWR | O_CLOEXEC);
        assert_int_equal(mount("tmpfs", "/dev", "tmpfs", 0, NULL), 0);
        assert_int_equal(mknod("/dev/null", S_IFCHR | 0666, makedev(1, 3)), 0);
        put("/dev/kvm", "");
        return close(null);
}

int main(int argc, char *argv[]) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_probe),
                cmocka_unit_test(test_probe_fails),
                cmocka_unit_test(test_template),
                cmocka_unit_test(test_scratch),
                cmocka_unit_test(test_tsc),
        };

        if (strcmp(argv[0], "qemu-system-x86_64") == 0)
                return be_qemu(argv);
        return cmocka_run_group_tests(tests, enter_world, NULL);
}
