/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* For tests of whole daemons: a mount namespace in which the fixed places of an image are empty and ours, and the
 * helpers that every such test needs. Root only, as the build is. */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "util/text.h"

/* What is below `folder` stays visible, what is written to it is nobody else's. */
static inline void own_world_cover(const char *folder) {
        static unsigned n;
        char upper[64], work[64], options[256];

        (void) snprintf(upper, sizeof(upper), "/run/upper-%u", n);
        (void) snprintf(work, sizeof(work), "/run/work-%u", n++);
        assert_int_equal(mkdir(upper, 0755), 0);
        assert_int_equal(mkdir(work, 0755), 0);
        (void) snprintf(options, sizeof(options), "lowerdir=%s,upperdir=%s,workdir=%s", folder, upper, work);
        assert_int_equal(mount("overlay", folder, "overlay", 0, options), 0);
}

static inline void own_world_enter(int more_namespaces) {
        (void) signal(SIGPIPE, SIG_IGN);
        assert_int_equal(unshare(CLONE_NEWNS | more_namespaces), 0);
        /* in a chroot that is no mount point, whoever made it has seen to that */
        (void) mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
        assert_int_equal(mount("tmpfs", "/run", "tmpfs", 0, NULL), 0);
        assert_int_equal(mkdir("/run/anchorhold", 0755), 0);
}

static inline int own_world_listen(const char *path) {
        struct sockaddr_un un = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        assert_true(fd >= 0 && strlen(path) < sizeof(un.sun_path));
        strcpy(un.sun_path, path);
        (void) unlink(path);
        assert_int_equal(bind(fd, (struct sockaddr *) &un, sizeof(un)), 0);
        assert_int_equal(listen(fd, 64), 0);
        return fd;
}

/* Passes sockets as systemd does: from descriptor 3 on, under these names. At most 8; nothing of the test's may lie there, so
 * own_world_reserve() comes before anything that opens one. */
static inline void own_world_pass(const char *const *paths, int n, const char *names) {
        char pid[32], number[8];

        for (int i = 0; i < n; i++) {
                int fd = own_world_listen(paths[i]), high = fcntl(fd, F_DUPFD_CLOEXEC, 100);

                (void) close(fd);
                assert_int_equal(dup3(high, 3 + i, O_CLOEXEC), 3 + i);
                (void) close(high);
        }
        (void) snprintf(pid, sizeof(pid), "%d", (int) getpid());
        (void) snprintf(number, sizeof(number), "%d", n);
        assert_int_equal(setenv("LISTEN_PID", pid, 1) | setenv("LISTEN_FDS", number, 1) | setenv("LISTEN_FDNAMES", names, 1), 0);
}

static inline void own_world_reserve(int n) {
        for (int i = 3; i < 3 + n; i++)
                if (fcntl(i, F_GETFD) < 0)
                        assert_int_equal(dup2(2, i), i);
}

/* Turns the loop until the condition holds; a test that waits for five seconds has failed. */
#define UNTIL(event, condition)                                                 \
        do {                                                                    \
                uint64_t until_end = time_monotonic() + 5000000;                \
                                                                                \
                while (!(condition)) {                                          \
                        assert_true(sd_event_run(event, 20000) >= 0);           \
                        if (time_monotonic() > until_end)                       \
                                fail_msg("waited in vain for %s", #condition);  \
                }                                                               \
        } while (0)

static inline void run_for(sd_event *event, uint64_t usec) {
        uint64_t end = time_monotonic() + usec;

        while (time_monotonic() < end)
                assert_true(sd_event_run(event, 2000) >= 0);
}
