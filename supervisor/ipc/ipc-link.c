/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "ipc/ipc-link.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int ipc_link_connect(const char *path, sd_varlink **ret) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_(sd_varlink_unrefp) sd_varlink *link = NULL;
        _cleanup_fd_ int fd = -1;
        struct ucred credentials;
        socklen_t size = sizeof(credentials);
        int r;

        if (strlen(path) >= sizeof(address.sun_path))
                return -ENAMETOOLONG;
        strcpy(address.sun_path, path);

        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        /* EAGAIN is a full backlog: a server that does not accept is not there */
        if (connect(fd, (struct sockaddr *) &address, sizeof(address)) < 0)
                return -errno;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
                return -errno;
        if (credentials.uid != 0 && credentials.uid != geteuid())
                return -EPERM;

        r = sd_varlink_connect_fd(&link, fd);
        if (r < 0)
                return r;
        (void) TAKE_FD(fd);

        (void) sd_varlink_set_description(link, path);
        r = sd_varlink_set_allow_fd_passing_input(link, true);
        if (r >= 0)
                r = sd_varlink_set_allow_fd_passing_output(link, true);
        if (r >= 0)
                r = sd_varlink_set_relative_timeout(link, UINT64_MAX);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(link);
        return 0;
}

bool ipc_link_is_stale(sd_varlink *link) {
        struct pollfd p = { .fd = sd_varlink_get_fd(link), .events = POLLIN | POLLRDHUP };

        return p.fd < 0 || poll(&p, 1, 0) != 0;
}

int ipc_link_push_fds(sd_varlink *link, const int *fds, size_t n_fds) {
        int r;

        for (size_t i = 0; i < n_fds; i++) {
                r = sd_varlink_push_dup_fd(link, fds[i]);
                if (r < 0)
                        return r;
        }

        return 0;
}
