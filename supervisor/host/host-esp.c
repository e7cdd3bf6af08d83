/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * ostree writes boot entries into /boot/loader, on ext4, and swaps them in one step. UEFI reads a FAT partition of its own, where nothing is swapped in one
 * step, so what is there is a copy:
 *
 *   /loader/entries/anchorhold-COMMIT.SERIAL[+LEFT[-DONE]].conf   one for each deployment, with ostree's order as its version
 *   /ostree/CSUM/…                                                 kernel and initramfs, as below /boot/ostree
 *
 * It follows while the host goes down, after ostree has made what was staged a deployment (host-esp.service), after a rollback, and early in each boot. In
 * this order: kernels (complete before they have their name), entries, then what nobody wants any more. So whenever the power goes, each
 * entry has its kernel, and one of them belongs to a deployment that is there. The one thing that may be old then is the number in ostree=/ostree/boot.N,
 * of which ostree keeps one; the initramfs finds the other (image/initrd/ostree-bootlink).
 *
 * The entry of an image that never passed has +2 in its name. systemd-boot counts it down with each start, and tries it last once it is at 0: so
 * a kernel or an initramfs that never gets to userspace costs two boots. The system that comes up then finds the 0, and rejects the image as
 * if its health check had failed. A verdict (of any kind but to go back) takes the counter away.
 *
 * The partition is never mounted where others see it: fsmount() gives a descriptor, and the mount is gone with it.
 */

#include "host/host-esp.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "host/host-bls.h"
#include "host/host-state-api.h"
#include "util/cleanup.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"

#define ENTRIES "loader/entries"
#define KERNELS "ostree"
#define UNFINISHED KERNELS "/unfinished"
#define LOADER_PARTITION "/sys/firmware/efi/efivars/LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

enum { ENTRY_MAX = 16 * 1024,
       VARIABLE_MAX = 256,
       KERNEL_FILE_MAX = 512 * 1024 * 1024,
       NAMES_MAX = 64,
       FILE_MODE = 0700 };

typedef struct Wanted {
        BlsEntry entry;
        char id[BLS_ID_SIZE];
} Wanted;

typedef struct WantedList {
        Wanted list[HOST_DEPLOYMENTS_MAX];
        size_t n;
} WantedList;

typedef struct NameList {
        BlsName list[NAMES_MAX];
        size_t n;
} NameList;

static void wanted_done(WantedList *w) {
        for (size_t i = 0; i < w->n; i++)
                bls_entry_done(&w->list[i].entry);
}

static DIR *open_folder(int at_fd, const char *path) {
        int fd = openat(at_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;

        if (!d && fd >= 0)
                (void) fd_close(fd);
        return d;
}

/* ---- what there is ---- */

/* The last part of what ostree's link leads to: the deployment's folder, COMMIT.SERIAL. */
static int deployment_of(const BlsEntry *e, int root_fd, char ret[static BLS_ID_SIZE]) {
        _cleanup_free_ char *link = bls_entry_link(e);
        char target[PATH_MAX], name[BLS_NAME_SIZE];
        BlsName parsed = { .left = -1 };
        const char *last;
        ssize_t n;

        n = link ? readlinkat(root_fd, link, target, sizeof(target) - 1) : -1;
        if (n < 0)
                return link ? -errno : -EINVAL;
        target[n] = '\0';
        last = strrchr(target, '/');
        last = last ? last + 1 : target;
        if (strlen(last) >= BLS_ID_SIZE)
                return -EINVAL;
        (void) strcpy(parsed.id, last);
        bls_name_format(&parsed, name);
        if (!bls_name_parse(name, &parsed)) /* it is no deployment's */
                return -EINVAL;
        (void) strcpy(ret, parsed.id);
        return 0;
}

static int read_wanted_one(const HostEsp *esp, int entries_fd, const char *file, Wanted *ret) {
        _cleanup_free_ char *text = NULL;
        Wanted w = {};
        size_t size;
        int r;

        r = io_read_file(entries_fd, file, ENTRY_MAX, &text, &size);
        if (r >= 0)
                r = bls_entry_parse(text, size, &w.entry);
        if (r < 0)
                return r;
        r = deployment_of(&w.entry, esp->root_fd, w.id);
        if (r < 0) {
                bls_entry_done(&w.entry);
                return r;
        }
        *ret = w;
        return 0;
}

/* ostree's entries, all or none: a partition that follows half of them would lose the other half. */
static int read_wanted(const HostEsp *esp, WantedList *ret) {
        _cleanup_dir_ DIR *folder = open_folder(esp->boot_fd, ENTRIES);
        const struct dirent *entry;

        if (!folder)
                return -errno;
        while ((entry = readdir(folder))) {
                const char *dot = strrchr(entry->d_name, '.');
                int r;

                if (entry->d_name[0] == '.' || !dot || strcmp(dot, ".conf") != 0)
                        continue;
                r = ret->n < HOST_DEPLOYMENTS_MAX ? read_wanted_one(esp, dirfd(folder), entry->d_name, &ret->list[ret->n]) : -E2BIG;
                if (r < 0)
                        return log_warning_errno(r, "boot entry %s of ostree's is not one that is known here", entry->d_name);
                ret->n++;
        }
        return ret->n > 0 ? 0 : -ENOENT;
}

/* Entries of ours that are there; others are somebody else's. */
static int read_names(int esp_fd, NameList *ret) {
        _cleanup_dir_ DIR *folder = open_folder(esp_fd, ENTRIES);
        const struct dirent *entry;

        if (!folder)
                return -errno;
        while ((entry = readdir(folder)))
                if (ret->n < NAMES_MAX && bls_name_parse(entry->d_name, &ret->list[ret->n]))
                        ret->n++;
        return 0;
}

static const BlsName *find_name(const NameList *names, const char *id) {
        for (size_t i = 0; i < names->n; i++)
                if (strcmp(names->list[i].id, id) == 0)
                        return &names->list[i];
        return NULL;
}

/* The deployment with that commit. Two of one commit, as after an upgrade to what is here already, are of one image. */
static const HostDeployment *deployment_with(const HostDeployments *d, const char *id) {
        for (size_t i = 0; i < d->n; i++)
                if (*d->list[i].commit && strncmp(d->list[i].commit, id, strlen(d->list[i].commit)) == 0)
                        return &d->list[i];
        return NULL;
}

static bool is_booted(const HostDeployments *d, const char *id) {
        const HostDeployment *booted = host_find(d, HOST_BOOTED);

        return booted && *booted->commit && strncmp(booted->commit, id, strlen(booted->commit)) == 0;
}

/* ---- kernels ---- */

static int remove_tree(int at_fd, const char *path) {
        _cleanup_dir_ DIR *folder = open_folder(at_fd, path);
        const struct dirent *entry;

        if (!folder)
                return errno == ENOENT ? 0 : -errno;
        while ((entry = readdir(folder))) /* ostree's have no folders in them */
                if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && unlinkat(dirfd(folder), entry->d_name, 0) < 0)
                        return -errno;
        return unlinkat(at_fd, path, AT_REMOVEDIR) < 0 ? -errno : 0;
}

static int copy_file(const HostEsp *esp, const char *kernels, const char *name) {
        _cleanup_free_ char *from = text_format(KERNELS "/%s/%s", kernels, name), *to = text_format(UNFINISHED "/%s", name);
        _cleanup_fd_ int from_fd = -1, to_fd = -1;
        int r;

        if (!from || !to)
                return -ENOMEM;
        from_fd = openat(esp->boot_fd, from, O_RDONLY | O_CLOEXEC);
        to_fd = from_fd >= 0 ? openat(esp->esp_fd, to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE) : -1;
        if (to_fd < 0)
                return -errno;
        r = io_copy(from_fd, to_fd, KERNEL_FILE_MAX, NULL);
        return r < 0 ? r : fsync(to_fd) < 0 ? -errno
                                            : 0;
}

static int sync_folder(int at_fd, const char *path) {
        _cleanup_fd_ int fd = openat(at_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        return fd < 0 || syncfs(fd) < 0 ? -errno : 0;
}

/* What has its name is complete. */
static int copy_kernels(const HostEsp *esp, const BlsEntry *e) {
        _cleanup_free_ char *there = text_format(KERNELS "/%s", e->kernels);
        int r;

        if (!there)
                return -ENOMEM;
        if (faccessat(esp->esp_fd, there, F_OK, 0) == 0)
                return 0;
        if (mkdirat(esp->esp_fd, KERNELS, FILE_MODE) < 0 && errno != EEXIST)
                return -errno;
        r = remove_tree(esp->esp_fd, UNFINISHED);
        if (r >= 0 && mkdirat(esp->esp_fd, UNFINISHED, FILE_MODE) < 0)
                r = -errno;
        if (r >= 0)
                r = copy_file(esp, e->kernels, e->kernel);
        if (r >= 0)
                r = copy_file(esp, e->kernels, e->initrd);
        if (r >= 0)
                r = sync_folder(esp->esp_fd, UNFINISHED);
        if (r >= 0 && renameat(esp->esp_fd, UNFINISHED, esp->esp_fd, there) < 0)
                r = -errno;
        if (r >= 0)
                return sync_folder(esp->esp_fd, KERNELS);
        (void) remove_tree(esp->esp_fd, UNFINISHED);
        return r;
}

/* Those that no entry names. */
static void remove_kernels(int esp_fd, const WantedList *wanted) {
        _cleanup_dir_ DIR *folder = open_folder(esp_fd, KERNELS);
        const struct dirent *entry;

        while (folder && (entry = readdir(folder))) {
                bool keep = entry->d_name[0] == '.';

                for (size_t i = 0; !keep && i < wanted->n; i++)
                        keep = strcmp(wanted->list[i].entry.kernels, entry->d_name) == 0;
                if (!keep)
                        (void) remove_tree(dirfd(folder), entry->d_name);
        }
}

/* ---- entries ---- */

/* Of an image that has worked here, or works now, nothing is counted; of one that was given up and is wanted again, from the beginning. */
static void count_from(BlsName *name, bool is_new, const HostDeployments *d, const json_t *state) {
        const HostDeployment *deployment = deployment_with(d, name->id);
        bool known = deployment && *deployment->digest;

        if (is_booted(d, name->id) && !is_new)
                return;
        if (is_booted(d, name->id) || (known && host_state_is_healthy(state, deployment->digest)))
                name->left = -1;
        else if (is_new || (name->left == 0 && !(known && host_state_rejected(state, deployment->digest)))) {
                name->left = HOST_ESP_TRIES;
                name->done = 0;
        }
}

static int write_entry(int entries_fd, const Wanted *w, const NameList *there, const HostDeployments *d, const json_t *state) {
        const BlsName *before = find_name(there, w->id);
        char file[BLS_NAME_SIZE], old[BLS_NAME_SIZE];
        _cleanup_free_ char *text = bls_entry_format(&w->entry), *now = NULL;
        BlsName name = { .left = -1 };
        int r;

        if (!text)
                return -ENOMEM;
        if (before)
                name = *before;
        (void) strcpy(name.id, w->id);
        count_from(&name, !before, d, state);
        bls_name_format(&name, file);
        if (before) {
                bls_name_format(before, old);
                if (strcmp(old, file) != 0 && renameat(entries_fd, old, entries_fd, file) < 0)
                        return -errno;
        }

        r = io_read_file(entries_fd, file, ENTRY_MAX, &now, NULL);
        if (r >= 0 && strcmp(now, text) == 0)
                return 0;
        return io_write_file_atomic(entries_fd, file, text, strlen(text), FILE_MODE);
}

static void remove_entries(int entries_fd, const NameList *there, const WantedList *wanted) {
        for (size_t i = 0; i < there->n; i++) {
                char file[BLS_NAME_SIZE];
                bool keep = false;

                for (size_t k = 0; !keep && k < wanted->n; k++)
                        keep = strcmp(wanted->list[k].id, there->list[i].id) == 0;
                if (keep)
                        continue;
                bls_name_format(&there->list[i], file);
                (void) unlinkat(entries_fd, file, 0);
        }
}

static int write_all(const HostEsp *esp, const WantedList *wanted, const HostDeployments *d, const json_t *state) {
        _cleanup_fd_ int entries_fd = openat(esp->esp_fd, ENTRIES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        NameList there = {};
        int r;

        if (entries_fd < 0)
                return -errno;
        r = read_names(esp->esp_fd, &there);
        for (size_t i = 0; r >= 0 && i < wanted->n; i++)
                r = copy_kernels(esp, &wanted->list[i].entry);
        for (size_t i = 0; r >= 0 && i < wanted->n; i++)
                r = write_entry(entries_fd, &wanted->list[i], &there, d, state);
        if (r < 0)
                return r;
        if (syncfs(entries_fd) < 0)
                return -errno;
        remove_entries(entries_fd, &there, wanted);
        remove_kernels(esp->esp_fd, wanted);
        return syncfs(entries_fd) < 0 ? -errno : 0;
}

int host_esp_follow_at(const HostEsp *esp, const HostDeployments *d, const json_t *state) {
        _cleanup_(wanted_done) WantedList wanted = {};
        int r;

        r = read_wanted(esp, &wanted);
        return r < 0 ? r : write_all(esp, &wanted, d, state);
}

int host_esp_bless_at(int esp_fd, const HostDeployments *d) {
        _cleanup_fd_ int entries_fd = openat(esp_fd, ENTRIES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        NameList there = {};
        int r;

        r = entries_fd < 0 ? -errno : read_names(esp_fd, &there);
        for (size_t i = 0; r >= 0 && i < there.n; i++) {
                BlsName *name = &there.list[i];
                char counted[BLS_NAME_SIZE], good[BLS_NAME_SIZE];

                if (name->left < 0 || !is_booted(d, name->id))
                        continue;
                bls_name_format(name, counted);
                name->left = -1;
                bls_name_format(name, good);
                if (renameat(entries_fd, counted, entries_fd, good) < 0 || syncfs(entries_fd) < 0)
                        r = -errno;
        }
        return r;
}

int host_esp_reject_given_up(int esp_fd, const HostDeployments *d, json_t *state) {
        NameList there = {};
        int r, n = 0;

        r = read_names(esp_fd, &there);
        for (size_t i = 0; r >= 0 && i < there.n; i++) {
                const HostDeployment *deployment = deployment_with(d, there.list[i].id);
                _cleanup_free_ char *reason = NULL;

                if (there.list[i].left != 0 || is_booted(d, there.list[i].id) || !deployment || !*deployment->digest ||
                    host_state_is_healthy(state, deployment->digest) || host_state_rejected(state, deployment->digest))
                        continue;
                reason = text_format("the boot loader started it %d times, and it never came to a verdict of its health check", there.list[i].done);
                r = reason ? host_state_reject(state, deployment->digest, reason) : -ENOMEM;
                n++;
        }
        return r < 0 ? r : n;
}

/* ---- on this host ---- */

/* The partition that this boot's loader came from, as a mount of its own; -ENOENT: there is none. */
static int open_esp(void) {
        _cleanup_free_ char *variable = NULL, *device = NULL;
        char partition[BLS_PARTITION_SIZE];
        _cleanup_fd_ int fs = -1;
        size_t size;
        int fd, r;

        r = io_read_file(AT_FDCWD, LOADER_PARTITION, VARIABLE_MAX, &variable, &size);
        if (r >= 0)
                r = bls_partition_parse(variable, size, partition);
        if (r < 0)
                return r;
        device = text_format("/dev/disk/by-partuuid/%s", partition);
        fs = fsopen("vfat", FSOPEN_CLOEXEC);
        if (fs < 0 || !device)
                return fs < 0 ? -errno : -ENOMEM;
        if (fsconfig(fs, FSCONFIG_SET_STRING, "source", device, 0) < 0 || fsconfig(fs, FSCONFIG_SET_STRING, "umask", "0077", 0) < 0 ||
            fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
                return -errno;
        fd = fsmount(fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
        return fd < 0 ? -errno : fd;
}

/* 0: this host has no such partition, or bootc, which has a way of its own. 1: *ret_fd is it, and the deployments are known. */
static int open_all(int *ret_fd, HostDeployments *d) {
        char why[HOST_REASON_SIZE] = "";
        const HostOs *os = host_os();
        _cleanup_fd_ int fd = -1;
        int r;

        if (os != &host_os_ostree)
                return 0;
        fd = open_esp();
        if (fd == -ENOENT)
                return 0;
        if (fd < 0)
                return log_warning_errno(fd, "the partition that this host's boot loader came from cannot be mounted");
        r = os->list(d, why);
        if (r < 0) {
                log_warning("%s", why);
                return r;
        }
        *ret_fd = TAKE_FD(fd);
        return 1;
}

static int follow(int esp_fd, const HostDeployments *d, const json_t *state) {
        _cleanup_fd_ int boot_fd = open("/boot", O_RDONLY | O_DIRECTORY | O_CLOEXEC), root_fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r;

        r = boot_fd < 0 || root_fd < 0 ? -errno : host_esp_follow_at(&(HostEsp) { .boot_fd = boot_fd, .root_fd = root_fd, .esp_fd = esp_fd }, d, state);
        return r < 0 ? log_warning_errno(r, "the boot loader's entries do not follow; it boots what it booted before") : 0;
}

int host_esp_follow(void) {
        _cleanup_json_ json_t *state = NULL;
        _cleanup_fd_ int fd = -1;
        HostDeployments d = {};
        int r;

        r = open_all(&fd, &d);
        if (r <= 0)
                return r;
        state = host_state_load(HOST_STATE);
        return follow(fd, &d, state);
}

int host_esp_bless(void) {
        _cleanup_fd_ int fd = -1;
        HostDeployments d = {};
        int r;

        r = open_all(&fd, &d);
        if (r > 0)
                r = host_esp_bless_at(fd, &d);
        return r < 0 ? log_warning_errno(r, "the boot loader still counts the boots of this image") : 0;
}

/* ostree still has what was given up as the next one. */
static void take_over(const HostDeployments *d) {
        const HostDeployment *booted = host_find(d, HOST_BOOTED);
        char index[16];

        if (!host_find(d, HOST_PENDING) || !booted)
                return;
        (void) snprintf(index, sizeof(index), "%d", booted->index);
        if (command_run((const char *const[]) { "ostree", "admin", "set-default", index, NULL }, NULL, NULL, NULL) != 0)
                log_warning("the image that the boot loader gave up is still the default of the next boot");
}

static int reject_given_up(int esp_fd, const HostDeployments *d) {
        _cleanup_fd_ int lock = host_state_lock(HOST_STATE);
        _cleanup_json_ json_t *state = host_state_load(HOST_STATE);
        int n, r;

        n = host_esp_reject_given_up(esp_fd, d, state);
        r = n > 0 ? host_state_save(HOST_STATE, state) : n;
        return r < 0 ? log_warning_errno(r, "what the boot loader gave up cannot be recorded") : n;
}

int host_esp_begin(void) {
        _cleanup_json_ json_t *state = NULL;
        char why[HOST_REASON_SIZE] = "";
        _cleanup_fd_ int fd = -1;
        HostDeployments d = {};
        int r;

        r = open_all(&fd, &d);
        if (r <= 0)
                return r;
        if (reject_given_up(fd, &d) > 0) {
                take_over(&d);
                d = (HostDeployments) {};
                r = host_os()->list(&d, why);
                if (r < 0)
                        return r;
        }
        state = host_state_load(HOST_STATE);
        return follow(fd, &d, state);
}
