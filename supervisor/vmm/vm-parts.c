/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "vmm/vm-parts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <x86intrin.h>

#include "util/confine.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "vmm/vm-measured.h"
#include "vmm/vm-template.h"

#define TSC_NSEC (20ULL * 1000 * 1000)

static int open_part(int dir_fd, const json_t *manifest, const json_t *measured, const char *template_name, const char *path, int *ret) {
        _cleanup_fd_ int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        int r;

        if (fd < 0)
                return log_error_errno(-errno, "template %s: cannot open %s", template_name, path);

        r = vm_template_check_file(fd, manifest, path, measured);
        if (r == -ESTALE)
                log_error("template %s: %s is not what its signed manifest names", template_name, path);
        else if (r < 0)
                (void) log_error_errno(r, "template %s: cannot read %s", template_name, path);
        if (r < 0)
                return r;

        *ret = TAKE_FD(fd);
        return 0;
}

static int read_manifest(int dir_fd, const VmSpec *spec, const char *keys, json_t **ret) {
        _cleanup_free_ char *reason = NULL;
        _cleanup_json_ json_t *j = NULL;
        const char *file;
        json_t *digest;
        int r;

        r = vm_template_read(dir_fd, spec->template_name, keys, &j, &reason);
        if (r < 0)
                return log_error_errno(r, "template %s: %s", spec->template_name, reason ?: "unreadable");

        json_object_foreach(spec->digests, file, digest) {
                const json_t *here = strcmp(file, "template") == 0 ? json_object_get(j, "digest")
                                                                   : json_object_get(json_object_get(j, "files"), file);

                if (json_equal(digest, here))
                        continue;
                log_error("template %s has another %s than the run was made for", spec->template_name, file);
                return -ESTALE;
        }

        *ret = TAKE_PTR(j);
        return 0;
}

int vm_parts_open_template(VmParts *parts, const VmSpec *spec, const char *templates, const char *keys, char **ret_cmdline) {
        _cleanup_json_ json_t *manifest = NULL, *measured = vm_measured_load(VM_MEASURED_PATH);
        _cleanup_fd_ int dir_fd = -1;
        const char *cmdline;
        char path[512];
        int r;

        (void) snprintf(path, sizeof(path), "%s/%s", templates, spec->template_name);
        dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir_fd < 0)
                return log_error_errno(-errno, "no template %s (%s)", spec->template_name, path);

        r = read_manifest(dir_fd, spec, keys, &manifest);
        if (r >= 0)
                r = open_part(dir_fd, manifest, measured, spec->template_name, "vmlinuz", &parts->kernel);
        if (r >= 0)
                r = open_part(dir_fd, manifest, measured, spec->template_name, "initrd", &parts->initrd);
        if (r >= 0)
                r = open_part(dir_fd, manifest, measured, spec->template_name, "root.erofs", &parts->root);
        if (r >= 0 && spec->agent) {
                (void) snprintf(path, sizeof(path), "agents/%s.erofs", spec->agent);
                r = open_part(dir_fd, manifest, measured, spec->template_name, path, &parts->agent);
        }
        if (r < 0)
                return r;

        cmdline = json_string_value(json_object_get(manifest, "cmdline"));
        *ret_cmdline = strdup(cmdline ?: "console=ttyS0 quiet reboot=t panic=-1");
        return *ret_cmdline ? 0 : -ENOMEM;
}

int vm_parts_open_tap(VmParts *parts, const char *name) {
        struct ifreq req = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
        int fd;

        fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return log_error_errno(-errno, "cannot open /dev/net/tun");

        (void) snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", name);
        if (ioctl(fd, TUNSETIFF, &req) < 0) {
                int r = -errno;

                (void) fd_close(fd);
                return log_error_errno(r, "cannot attach to %s in the run's network namespace (made by anchor-net@)", name);
        }

        parts->tap = fd;
        return 0;
}

/* In the child: only the disk stays open, as descriptor 3. */
__attribute__((__noreturn__)) static void exec_mke2fs(int fd) {
        static const char *const argv[] = {
                "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal,^resize_inode",
                "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "/proc/self/fd/3", NULL,
        };

        if (fd == 3 ? fcntl(fd, F_SETFD, 0) < 0 : dup2(fd, 3) < 0)
                _exit(127);
        (void) execv("/usr/sbin/mke2fs", (char *const *) argv);
        _exit(127);
}

int vm_parts_start_scratch(VmParts *parts, const char *dir, uint64_t size_mib, pid_t *ret_pid) {
        pid_t pid;
        int fd;

        fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0)
                return log_error_errno(-errno, "cannot make a scratch disk in %s", dir);

        parts->scratch = fd;
        if (ftruncate(fd, (off_t) (size_mib << 20)) < 0)
                return log_error_errno(-errno, "cannot size the scratch disk");

        pid = fork();
        if (pid < 0)
                return log_error_errno(-errno, "cannot fork");
        if (pid == 0)
                exec_mke2fs(fd);

        *ret_pid = pid;
        return 0;
}

int vm_parts_confine(uint64_t size_mib) {
        static const char *const writable[] = { "/dev/kvm", "/dev/null", NULL };
        int r;

        r = confine_files(size_mib << 20, writable);
        if (r < 0)
                return log_error_errno(r, "QEMU cannot be kept from making files");
        if (r == CONFINE_E_SIZE_ONLY)
                log_warning("this kernel has no Landlock: a QEMU that was taken over could make files beside its scratch disk");
        return 0;
}

int vm_parts_finish_scratch(pid_t pid) {
        int status = 0;

        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -errno;

        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                log_error("mke2fs failed on the scratch disk (wait status %#x)", status);
                return -EIO;
        }

        return 0;
}

static uint64_t raw_nsec(void) {
        struct timespec ts;

        (void) clock_gettime(CLOCK_MONOTONIC_RAW, &ts);
        return (uint64_t) ts.tv_sec * 1000000000 + (uint64_t) ts.tv_nsec;
}

/* Both clocks at one moment. Whoever is preempted between the two for a second makes of 20 ms a guest whose time runs fifty times as fast: so the
 * counter is read on both sides, and of several tries the tightest counts. */
void vm_tsc_begin(VmTsc *ret) {
        enum { TRIES = 64, TIGHT = 20000 }; /* some microseconds */
        uint64_t best = UINT64_MAX;

        for (int i = 0; i < TRIES && best > TIGHT; i++) {
                uint64_t before = __rdtsc(), nsec = raw_nsec(), after = __rdtsc();

                if (after - before < best) {
                        best = after - before;
                        *ret = (VmTsc) { .nsec = nsec, .tsc = before + best / 2 };
                }
        }
}

uint64_t vm_tsc_end(const VmTsc *begun) {
        uint64_t waited = raw_nsec() - begun->nsec;
        VmTsc now = {};

        if (waited < TSC_NSEC)
                (void) nanosleep(&(struct timespec) { .tv_nsec = (long) (TSC_NSEC - waited) }, NULL);
        vm_tsc_begin(&now);
        if (now.nsec <= begun->nsec || now.tsc <= begun->tsc)
                return 0;

        return (uint64_t) ((double) (now.tsc - begun->tsc) * 1000000.0 / (double) (now.nsec - begun->nsec) + 0.5);
}

void vm_parts_done(VmParts *parts) {
        parts->kernel = fd_close(parts->kernel);
        parts->initrd = fd_close(parts->initrd);
        parts->root = fd_close(parts->root);
        parts->scratch = fd_close(parts->scratch);
        parts->agent = fd_close(parts->agent);
        parts->tap = fd_close(parts->tap);
}

int vm_parts_exec(const VmParts *parts, char *const argv[]) {
        const int fds[] = {
                parts->channel, parts->qmp, parts->kernel, parts->initrd,
                parts->root, parts->scratch, parts->agent, parts->tap,
        };

        for (size_t i = 0; i < ELEMENTSOF(fds); i++)
                if (fds[i] >= 0 && fcntl(fds[i], F_SETFD, 0) < 0)
                        return -errno;

        (void) execv(VM_QEMU, argv);
        return log_error_errno(-errno, "cannot execute " VM_QEMU);
}
