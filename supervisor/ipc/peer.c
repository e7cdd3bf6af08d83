/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who a peer is.
 *
 * The kernel remembers the process that called connect(): its credentials (SO_PEERCRED), a pidfd
 * (SO_PEERPIDFD) and its groups (SO_PEERGROUPS). From the pid we read the cgroup; the pidfd proves, after
 * that, that the pid had not been recycled meanwhile. Nothing that the peer wrote is looked at.
 *
 * A cgroup means a unit only together with its whole path: cgroups below a user's manager or a delegated
 * unit are named by whoever owns them, so that "…/user@1000.service/anchord.service" must not count. The
 * path of each of our units is known, therefore it is compared from the root on.
 *
 * A process in one of our units has that unit's role and no other, whatever its uid: code that took over
 * a root-owned oneshot of ours is not an operator. A process whose unit has one of our names in the
 * wrong place has no role at all. What cannot be found out (no cgroup2, no /proc entry) fails.
 *
 * A descriptor that the peer hands to somebody else keeps the peer's name: it answers for what it shares.
 */
#include "ipc/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "ipc/peer-role.h"
#include "util/cgroup.h"
#include "util/cleanup.h"
#include "util/io.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define OPERATORS_GROUP "anchorhold-operators"

enum {
        UNIT_NAME_MAX = 255,
        CGROUP_FILE_MAX = 64 * 1024,
        PEER_GROUPS_MAX = 65536,
};

static const struct {
        const char *unit;
        PeerRole role;
} daemons[] = {
        { "anchord.service",         PEER_ANCHORD },
        { "anchor-auditd.service",   PEER_AUDITD  },
        { "anchor-egressd.service",  PEER_EGRESSD },
        { "anchor-secretd.service",  PEER_SECRETD },
};

/* prefix@INSTANCE.service, all of them in the slice of their run (or, publishing, of their item). */
static const struct {
        const char *prefix;
        char kind;
        PeerRole role;
} templates[] = {
        { "anchor-net",     'r', PEER_NET     },
        { "anchor-vm",      'r', PEER_VM      },
        { "anchor-proxy",   'r', PEER_PROXY   },
        { "anchor-inject",  'r', PEER_INJECT  },
        { "anchor-run",     'r', PEER_RUN     },
        { "anchor-import",  'r', PEER_IMPORT  },
        { "anchor-publish", 'i', PEER_PUBLISH },
        { "anchor-check",   'r', PEER_CHECK   },
        { "anchor-netlog",  'r', PEER_NETLOG  },
};

static bool ends_with(const char *s, size_t length, const char *suffix) {
        size_t n = strlen(suffix);

        return length > n && memcmp(s + length - n, suffix, n) == 0;
}

bool peer_unit_of_cgroup(const char *cgroup, char ret[static UNIT_NAME_MAX + 1]) {
        const char *p = cgroup;

        while (*p == '/') {
                size_t length = strcspn(++p, "/");

                if (length == 0 || length > UNIT_NAME_MAX)
                        return false;
                if (!ends_with(p, length, ".slice")) {
                        if (!ends_with(p, length, ".service") && !ends_with(p, length, ".scope") &&
                            !ends_with(p, length, ".socket") && !ends_with(p, length, ".mount") &&
                            !ends_with(p, length, ".swap"))
                                return false;
                        memcpy(ret, p, length);
                        ret[length] = '\0';
                        return true;
                }
                p += length;
        }

        return false;
}

/* Is `cgroup` this folder and unit, or below it? */
static bool is_at(const char *cgroup, const char *folder, const char *unit) {
        size_t n = strlen(folder), m = strlen(unit);

        return strncmp(cgroup, folder, n) == 0 && strncmp(cgroup + n, unit, m) == 0 &&
               (cgroup[n + m] == '\0' || cgroup[n + m] == '/');
}

static PeerUnit classify_template(size_t i, const char *unit, const char *instance, const char *cgroup,
                                  PeerRole *ret_role, char ret_run[static ID_LENGTH + 1]) {
        char id[ID_LENGTH + 1], folder[128];

        if (strlen(instance) != ID_LENGTH + strlen(".service") || strcmp(instance + ID_LENGTH, ".service") != 0)
                return PEER_UNIT_MISPLACED;
        memcpy(id, instance, ID_LENGTH);
        id[ID_LENGTH] = '\0';
        if (!text_is_id(templates[i].kind, id))
                return PEER_UNIT_MISPLACED;

        (void) snprintf(folder, sizeof(folder), "/anchorhold.slice/anchorhold-runs.slice/anchorhold-runs-%s.slice/", id);
        if (!is_at(cgroup, folder, unit))
                return PEER_UNIT_MISPLACED;

        *ret_role = templates[i].role;
        memcpy(ret_run, id, sizeof(id));
        return PEER_UNIT_OURS;
}

PeerUnit peer_classify(const char *unit, const char *cgroup, PeerRole *ret_role, char ret_run[static ID_LENGTH + 1]) {
        for (size_t i = 0; i < ELEMENTSOF(daemons); i++) {
                if (strcmp(unit, daemons[i].unit) != 0)
                        continue;
                if (!is_at(cgroup, "/anchorhold.slice/", unit))
                        return PEER_UNIT_MISPLACED;
                *ret_role = daemons[i].role;
                return PEER_UNIT_OURS;
        }

        for (size_t i = 0; i < ELEMENTSOF(templates); i++) {
                size_t n = strlen(templates[i].prefix);

                if (strncmp(unit, templates[i].prefix, n) == 0 && unit[n] == '@')
                        return classify_template(i, unit, unit + n + 1, cgroup, ret_role, ret_run);
        }

        /* Units of ours that no table lists (anchor-bpf) have no business with any socket. */
        if (strncmp(unit, "anchor-", strlen("anchor-")) == 0 || strncmp(unit, "anchorhold", strlen("anchorhold")) == 0)
                return PEER_UNIT_MISPLACED;

        return PEER_UNIT_FOREIGN;
}

/* The unified hierarchy's path of a process, as seen from our cgroup namespace. */
static int read_cgroup(pid_t pid, char **ret) {
        _cleanup_free_ char *text = NULL;
        char path[64];
        int r;

        (void) snprintf(path, sizeof(path), "/proc/%d/cgroup", (int) pid);
        r = io_read_file(AT_FDCWD, path, CGROUP_FILE_MAX, &text, NULL);
        if (r < 0)
                return r;

        *ret = cgroup_find_path(text);
        return *ret ? 0 : -ENODATA;
}

/* bpf_get_current_cgroup_id() is the inode number of the cgroup's folder. Who has none is about to be gone: what would be granted to
 * cgroup 0 is nobody's. */
static int cgroup_inode(int root_fd, const char *cgroup, uint64_t *ret) {
        struct stat st;

        if (root_fd < 0) {
                *ret = 0;
                return 0;
        }
        if (fstatat(root_fd, cgroup[1] ? cgroup + 1 : ".", &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        *ret = st.st_ino;
        return 0;
}

/* The supplementary groups that the peer had when it connected. */
static int read_groups(int fd, Peer *p) {
        socklen_t size = 64 * sizeof(gid_t);

        for (;;) {
                free(p->groups);
                p->groups = malloc(size);
                if (!p->groups)
                        return -ENOMEM;
                if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, p->groups, &size) >= 0)
                        break;
                if (errno != ERANGE || size > PEER_GROUPS_MAX * sizeof(gid_t))
                        return -errno;
        }

        p->n_groups = size / sizeof(gid_t);
        return 0;
}

bool peer_is_in_group(const Peer *p, const char *group) {
        char buffer[16 * 1024];
        struct group entry, *found = NULL;

        if (getgrnam_r(group, &entry, buffer, sizeof(buffer), &found) != 0 || !found)
                return false;

        if (p->gid == found->gr_gid)
                return true;
        for (size_t i = 0; i < p->n_groups; i++)
                if (p->groups[i] == found->gr_gid)
                        return true;
        return false;
}

static int peer_find_unit(Peer *p, int cgroup_root) {
        char unit[UNIT_NAME_MAX + 1];
        int r;

        r = read_cgroup(p->pid, &p->cgroup);
        if (r < 0)
                return r;

        /* Still the same process? Then so it was while its cgroup was read. */
        if (pidfd_send_signal(p->pidfd, 0, NULL, 0) < 0 && errno != EPERM)
                return -errno;

        r = cgroup_inode(cgroup_root, p->cgroup, &p->cgroup_id);
        if (r < 0)
                return r;
        p->unit = strdup(peer_unit_of_cgroup(p->cgroup, unit) ? unit : "");
        return p->unit ? 0 : -ENOMEM;
}

int peer_from_socket(int fd, int cgroup_root, Peer *ret) {
        _cleanup_(peer_done) Peer p = PEER_NULL;
        struct ucred credentials;
        socklen_t size = sizeof(credentials);
        PeerRole role;
        int r;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
                return -errno;
        if (credentials.pid <= 0)
                return -ESRCH; /* not in our pid namespace */
        p.pid = credentials.pid;
        p.uid = credentials.uid;
        p.gid = credentials.gid;

        size = sizeof(p.pidfd);
        if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &p.pidfd, &size) < 0) {
                p.pidfd = -1;
                return -errno;
        }

        r = peer_find_unit(&p, cgroup_root);
        if (r >= 0)
                r = read_groups(fd, &p);
        if (r < 0)
                return r;

        p.roles = PEER_OTHER;
        switch (peer_classify(p.unit, p.cgroup, &role, p.run)) {
        case PEER_UNIT_OURS:
                if (p.cgroup_id == 0)
                        return -ENOMEDIUM;
                p.roles |= role;
                break;
        case PEER_UNIT_FOREIGN:
                if (p.uid == 0)
                        p.roles |= PEER_ROOT;
                if (p.uid == 0 || peer_is_in_group(&p, OPERATORS_GROUP))
                        p.roles |= PEER_OPERATOR;
                break;
        case PEER_UNIT_MISPLACED:
                break;
        }

        *ret = p;
        p = PEER_NULL;
        return 0;
}

void peer_done(Peer *p) {
        p->pidfd = fd_close(p->pidfd);
        free(p->unit);
        free(p->cgroup);
        free(p->groups);
        *p = PEER_NULL;
}

const char *peer_name(Peer *p, char buffer[static 64]) {
        if (p->roles & ~(unsigned) (PEER_OTHER | PEER_ROOT | PEER_OPERATOR))
                return p->unit;

        (void) snprintf(buffer, 64, "uid %u", (unsigned) p->uid);
        return buffer;
}
