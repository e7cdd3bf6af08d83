/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * How many packets of each group are in the audit log. A process that is killed takes along what it had counted and not told, and between it and the next
 * nobody reads what the kernel logs; but the kernel goes on counting. So this number lies in memory that systemd holds (the unit's descriptor store), and
 * whoever comes next records the difference. It goes with the run's last process.
 */

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "net/netlog.h"
#include "util/cleanup.h"

#define FD_NAME "recorded"

struct NetlogRecorded {
        uint64_t packets[NETLOG_N_GROUPS];
};

/* -ENOENT if there is none. Whatever else was passed is closed. */
static int take_stored(void) {
        char **names = NULL;
        int n, found = -ENOENT;

        n = sd_listen_fds_with_names(true, &names);
        for (int i = 0; i < n; i++) {
                int fd = SD_LISTEN_FDS_START + i;
                struct stat st;

                if (found < 0 && strcmp(names[i], FD_NAME) == 0 && fstat(fd, &st) >= 0 && S_ISREG(st.st_mode) && st.st_size == sizeof(NetlogRecorded))
                        found = fd;
                else
                        (void) fd_close(fd);
                free(names[i]);
        }
        free(names);
        return n < 0 ? n : found;
}

static int make_stored(void) {
        _cleanup_fd_ int fd = memfd_create(FD_NAME, MFD_CLOEXEC);
        int r;

        if (fd < 0)
                return -errno;
        if (ftruncate(fd, sizeof(NetlogRecorded)) < 0)
                return -errno;
        r = sd_pid_notify_with_fds(0, false, "FDSTORE=1\nFDNAME=" FD_NAME, &fd, 1);
        return r < 0 ? r : TAKE_FD(fd);
}

int netlog_recorded_open(NetlogRecorded **ret) {
        _cleanup_fd_ int fd = -1;
        void *p;

        fd = take_stored();
        if (fd == -ENOENT)
                fd = make_stored();
        if (fd < 0)
                return fd;

        p = mmap(NULL, sizeof(NetlogRecorded), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
                return -errno;
        *ret = p;
        return 0;
}

NetlogRecorded *netlog_recorded_free(NetlogRecorded *m) {
        if (m)
                (void) munmap(m, sizeof(*m));
        return NULL;
}

void netlog_recorded_add(NetlogRecorded *m, size_t group, uint64_t packets) {
        m->packets[group] += packets;
}

uint64_t netlog_recorded_lacks(const NetlogRecorded *m, size_t group, uint64_t logged) {
        return logged > m->packets[group] ? logged - m->packets[group] : 0;
}
