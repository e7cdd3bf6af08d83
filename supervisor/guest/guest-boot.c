/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * From the initrd to the root file system. Disks are found by their serial number (root, scratch,
 * agent), never by the order in which the kernel met them:
 *
 *      root     erofs, read-only: the template
 *      scratch  ext4, made for this run: everything that is written
 *      agent    erofs, read-only, optional: one agent, at /opt/agent/NAME
 *
 * Root is an overlay of scratch over root. The initrd holds this program as /init and the modules that
 * Debian's cloud kernel lacks, in /modules, named so that their order by name is the order of loading.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/guest.h"

enum { DISK_WAIT_USEC = 10 * 1000 * 1000 };

static const struct {
        const char *type, *target, *options;
        unsigned long flags;
        mode_t mode;
} early_mounts[] = {
        { "devtmpfs", "/dev", "mode=0755", MS_NOSUID, 0755 },
        { "proc", "/proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555 },
        { "sysfs", "/sys", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0555 },
}, late_mounts[] = {
        { "devpts", "/dev/pts", "mode=0620,gid=5,ptmxmode=0666", MS_NOSUID | MS_NOEXEC, 0755 },
        { "tmpfs", "/dev/shm", "mode=1777", MS_NOSUID | MS_NODEV, 01777 },
        { "tmpfs", "/run", "mode=0755,size=20%", MS_NOSUID | MS_NODEV, 0755 },
        { "cgroup2", "/sys/fs/cgroup", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, 0 },
};

static const struct {
        const char *target, *path;
} links[] = {
        { "/proc/self/fd", "/dev/fd" },
        { "/proc/self/fd/0", "/dev/stdin" },
        { "/proc/self/fd/1", "/dev/stdout" },
        { "/proc/self/fd/2", "/dev/stderr" },
        { "pts/ptmx", "/dev/ptmx" },
};

int guest_write_file(const char *path, const char *text) {
        _cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        size_t size = strlen(text);

        if (fd < 0)
                return -errno;

        return write(fd, text, size) == (ssize_t) size ? 0 : -EIO;
}

static int mount_one(const char *what, const char *target, const char *type, unsigned long flags, const char *options) {
        if (mount(what, target, type, flags, options) < 0) {
                int r = -errno;

                guest_log("cannot mount %s (%s) on %s: %s", what, type ?: "bind", target, strerror(-r));
                return r;
        }

        return 0;
}

static int load_module(int dir_fd, const char *name) {
        _cleanup_fd_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);

        if (fd < 0)
                return -errno;
        if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST)
                return -errno;

        (void) unlinkat(dir_fd, name, 0); /* the initrd's memory is the guest's */
        return 0;
}

static int is_module(const struct dirent *e) {
        size_t n = strlen(e->d_name);

        return n > 3 && strcmp(e->d_name + n - 3, ".ko") == 0;
}

/* One module that does not load is a line on the console: what needs it says so later. */
static int load_modules(void) {
        struct dirent **names = NULL;
        _cleanup_fd_ int dir_fd = -1;
        int n, r;

        dir_fd = open("/modules", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir_fd < 0)
                return errno == ENOENT ? 0 : -errno;

        n = scandirat(dir_fd, ".", &names, is_module, alphasort);
        if (n < 0)
                return -errno;

        for (int i = 0; i < n; i++) {
                r = load_module(dir_fd, names[i]->d_name);
                if (r < 0)
                        guest_log("module %s: %s", names[i]->d_name, strerror(-r));
                free(names[i]);
        }
        free(names);
        return 0;
}

static bool disk_has_serial(const char *disk, const char *serial) {
        char path[300], text[32] = "";
        _cleanup_fd_ int fd = -1;
        ssize_t n;

        (void) snprintf(path, sizeof(path), "/sys/block/%s/serial", disk);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return false;

        n = read(fd, text, sizeof(text) - 1);
        if (n <= 0)
                return false;

        text[strcspn(text, "\n")] = 0;
        return strcmp(text, serial) == 0;
}

/* -ENODEV if there is none now. */
static int find_disk(const char *serial, char *ret, size_t size) {
        _cleanup_dir_ DIR *d = opendir("/sys/block");
        struct dirent *e;

        if (!d)
                return -errno;

        while ((e = readdir(d)))
                if (e->d_name[0] != '.' && disk_has_serial(e->d_name, serial)) {
                        (void) snprintf(ret, size, "/dev/%s", e->d_name);
                        return 0;
                }

        return -ENODEV;
}

static int wait_for_disk(const char *serial, char *ret, size_t size) {
        uint64_t end = guest_now() + DISK_WAIT_USEC;
        int r;

        for (;;) {
                r = find_disk(serial, ret, size);
                if (r != -ENODEV || guest_now() > end)
                        break;
                (void) usleep(1000);
        }
        if (r < 0)
                guest_log("no disk with serial \"%s\"", serial);

        return r;
}

static int make_root(void) {
        char root[280], scratch[280];
        int r;

        r = wait_for_disk("root", root, sizeof(root));
        if (r < 0)
                return r;

        r = wait_for_disk("scratch", scratch, sizeof(scratch));
        if (r < 0)
                return r;

        (void) mkdir("/lower", 0755);
        (void) mkdir("/scratch", 0755);
        (void) mkdir("/root-fs", 0755);

        r = mount_one(root, "/lower", "erofs", MS_RDONLY, NULL);
        if (r < 0)
                return r;

        r = mount_one(scratch, "/scratch", "ext4", MS_NOATIME, NULL);
        if (r < 0)
                return r;

        if ((mkdir("/scratch/upper", 0755) < 0 || mkdir("/scratch/work", 0755) < 0) && errno != EEXIST)
                return -errno;

        r = mount_one("root", "/root-fs", "overlay", MS_NOATIME, "lowerdir=/lower,upperdir=/scratch/upper,workdir=/scratch/work");
        if (r < 0)
                return r;

        /* The overlay keeps its own references. */
        (void) umount2("/lower", MNT_DETACH);
        (void) umount2("/scratch", MNT_DETACH);
        return 0;
}

static int switch_root(void) {
        static const char *const moved[] = { "/dev", "/proc", "/sys" };
        char target[32];

        for (size_t i = 0; i < ELEMENTSOF(moved); i++) {
                (void) snprintf(target, sizeof(target), "/root-fs%s", moved[i]);
                (void) mkdir(target, 0755);
                if (mount(moved[i], target, NULL, MS_MOVE, NULL) < 0)
                        return -errno;
        }

        if (chdir("/root-fs") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
                return -errno;

        return 0;
}

static int mount_late(void) {
        int r;

        for (size_t i = 0; i < ELEMENTSOF(late_mounts); i++) {
                if (late_mounts[i].mode)
                        (void) mkdir(late_mounts[i].target, late_mounts[i].mode);
                r = mount_one(late_mounts[i].type, late_mounts[i].target, late_mounts[i].type, late_mounts[i].flags,
                              late_mounts[i].options);
                if (r < 0)
                        return r;
        }

        for (size_t i = 0; i < ELEMENTSOF(links); i++)
                if (symlink(links[i].target, links[i].path) < 0 && errno != EEXIST)
                        guest_log("cannot link %s: %s", links[i].path, strerror(errno));

        (void) mkdir("/workspace", 0755);
        (void) mkdir("/run/anchorhold", 0755);
        return 0;
}

int guest_mount_agent(const char *name) {
        char disk[280], target[128];
        int r;

        if (strchr(name, '/') || strlen(name) > 63 || name[0] == '.')
                return -EINVAL;

        r = find_disk("agent", disk, sizeof(disk));
        if (r < 0)
                return r;

        (void) snprintf(target, sizeof(target), "/opt/agent/%s", name);
        (void) mkdir("/opt", 0755);
        (void) mkdir("/opt/agent", 0755);
        (void) mkdir(target, 0755);
        return mount_one(disk, target, "erofs", MS_RDONLY, NULL);
}

int guest_boot(void) {
        int r;

        for (size_t i = 0; i < ELEMENTSOF(early_mounts); i++) {
                (void) mkdir(early_mounts[i].target, early_mounts[i].mode);
                r = mount_one(early_mounts[i].type, early_mounts[i].target, early_mounts[i].type, early_mounts[i].flags,
                              early_mounts[i].options);
                if (r < 0 && r != -EBUSY)
                        return r;
        }

        r = load_modules();
        if (r < 0)
                return r;

        r = make_root();
        if (r < 0)
                return r;

        r = switch_root();
        if (r < 0)
                return r;

        r = mount_late();
        if (r < 0)
                return r;

        return guest_setup_lo();
}
