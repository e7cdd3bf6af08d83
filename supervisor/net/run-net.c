/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A run's namespace is a bind mount of its nsfs inode on /run/netns/anchor-RUN, as ip-netns(8) has them,
 * so that PID 1 can open it for NetworkNamespacePath= and an operator can enter it. The mount is made
 * last: whoever sees it sees a namespace that is complete.
 */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "net/run-link.h"
#include "net/run-net.h"
#include "net/run-ruleset.h"
#include "util/cleanup.h"
#include "util/text.h"

#define NETNS_DIR "/run/netns"
#define RUN_DIR "/run/anchorhold/run"

typedef struct Paths {
        char netns[sizeof(NETNS_DIR "/anchor-") + ID_LENGTH];
        char sockets[sizeof(RUN_DIR "/") + ID_LENGTH]; /* where the run's own sockets lie */
} Paths;

static int make_paths(const char *run, Paths *ret) {
        if (!text_is_id('r', run))
                return -EINVAL;

        (void) snprintf(ret->netns, sizeof(ret->netns), NETNS_DIR "/anchor-%s", run);
        (void) snprintf(ret->sockets, sizeof(ret->sockets), RUN_DIR "/%s", run);
        return 0;
}

static int make_dir(const char *path) {
        return mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

static int show_netns(const char *path) {
        _cleanup_fd_ int fd = -1;

        fd = open(path, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0444);
        if (fd < 0)
                return -errno;

        return mount("/proc/thread-self/ns/net", path, NULL, MS_BIND, NULL) < 0 ? -errno : 0;
}

int run_net_fill(const char **ret_step) {
        int r;

        r = run_link_up(ret_step);
        if (r < 0)
                return r;

        *ret_step = "nftables rules";
        return run_ruleset_load();
}

static int build(const Paths *p, const char **ret_step) {
        int r;

        *ret_step = "folder of the run's sockets";
        r = make_dir(p->sockets);
        if (r < 0)
                return r;

        *ret_step = "network namespace";
        if (unshare(CLONE_NEWNET) < 0)
                return -errno;

        r = run_net_fill(ret_step);
        if (r < 0)
                return r;

        *ret_step = "mount in " NETNS_DIR;
        r = make_dir(NETNS_DIR);
        if (r < 0)
                return r;
        return show_netns(p->netns);
}

static int enter(const char *path) {
        _cleanup_fd_ int fd = -1;

        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return -errno;

        /* a file on which nothing is mounted (or no more) is no namespace */
        if (setns(fd, CLONE_NEWNET) < 0)
                return errno == EINVAL ? -ENOENT : -errno;
        return 0;
}

int run_net_enter(const char *run) {
        Paths p;
        int r;

        r = make_paths(run, &p);
        return r < 0 ? r : enter(p.netns);
}

int run_net_read_denials(const char *run, RunNetDenial ret[static RUN_NET_MAX_DENIED], size_t *ret_n) {
        int r;

        r = run_net_enter(run);
        if (r < 0)
                return r;

        return run_ruleset_read_denials(ret, ret_n);
}

int run_net_read_cookie(uint64_t *ret) {
        socklen_t size = sizeof(*ret);
        _cleanup_fd_ int fd = -1;

        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        return getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, ret, &size) < 0 ? -errno : 0;
}

/* The run's sockets are their units' to remove (RemoveOnStop=); what a killed one left goes here. */
static void remove_sockets(const char *path) {
        _cleanup_dir_ DIR *d = opendir(path);
        struct dirent *de;

        if (!d)
                return;
        while ((de = readdir(d))) {
                struct stat st;

                if (fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode))
                        (void) unlinkat(dirfd(d), de->d_name, 0);
        }
        (void) rmdir(path);
}

/* Removes the namespace, but for the sockets: run_net_up() starts with this, when the run's sockets may
 * already be there. */
static int tear_down(const Paths *p, const char **ret_step) {
        int r;

        /* The namespace lives on for as long as anybody is in it; the guest's way out does not. */
        *ret_step = "tap device";
        r = enter(p->netns);
        if (r >= 0)
                r = run_link_remove_tap();
        if (r < 0 && r != -ENOENT && r != -ENODEV)
                return r;

        *ret_step = "mount in " NETNS_DIR;
        while (umount2(p->netns, MNT_DETACH | UMOUNT_NOFOLLOW) >= 0)
                ;
        if (errno != EINVAL && errno != ENOENT)
                return -errno;
        if (unlink(p->netns) < 0 && errno != ENOENT)
                return -errno;
        return 0;
}

int run_net_down(const char *run, const char **ret_step) {
        Paths p;
        int r;

        *ret_step = "run id";
        r = make_paths(run, &p);
        if (r < 0)
                return r;

        remove_sockets(p.sockets);
        return tear_down(&p, ret_step);
}

int run_net_up(const char *run, const char **ret_step) {
        const char *ignored;
        Paths p;
        int r;

        *ret_step = "run id";
        r = make_paths(run, &p);
        if (r < 0)
                return r;

        r = tear_down(&p, ret_step);
        if (r < 0)
                return r;

        r = build(&p, ret_step);
        if (r < 0)
                (void) tear_down(&p, &ignored);
        return r;
}
