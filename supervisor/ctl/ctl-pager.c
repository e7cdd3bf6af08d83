/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Long output through a pager, as systemd's tools do it: $SYSTEMD_PAGER, $PAGER, else less. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/ctl.h"

static const char *pager_choice(void) {
        const char *p;

        p = getenv("SYSTEMD_PAGER") ?: getenv("PAGER");
        if (!p)
                return "less";
        return *p == '\0' || strcmp(p, "cat") == 0 ? NULL : p;
}

void ctl_pager_open(Ctl *ctl) {
        const char *pager = pager_choice();
        int pipe_fds[2];
        FILE *f;
        pid_t pid;

        if (!ctl->out_tty || ctl->o.no_pager || ctl->pager > 0 || !pager || pipe2(pipe_fds, O_CLOEXEC) < 0)
                return;

        f = fdopen(pipe_fds[1], "w");
        if (!f) {
                (void) close(pipe_fds[0]);
                (void) close(pipe_fds[1]);
                return;
        }

        ctl_flush(ctl, ctl->out);
        pid = fork();
        if (pid == 0) {
                (void) dup2(pipe_fds[0], STDIN_FILENO);
                (void) setenv("LESS", "FRSXMK", 0);
                /* what is shown came from strangers in part: no shell out of the pager */
                (void) setenv("LESSSECURE", "1", 1);
                (void) execlp("/bin/sh", "sh", "-c", pager, (char *) NULL);
                _exit(EXIT_FAILURE);
        }
        (void) close(pipe_fds[0]);
        if (pid < 0) {
                (void) fclose(f);
                return;
        }

        (void) signal(SIGPIPE, SIG_IGN);
        ctl->pager = pid;
        ctl->terminal = ctl->out;
        ctl->out = f;
}

void ctl_pager_close(Ctl *ctl) {
        if (ctl->pager <= 0)
                return;

        (void) fclose(ctl->out);
        ctl->out = ctl->terminal;
        while (waitpid(ctl->pager, NULL, 0) < 0 && errno == EINTR)
                ;
        ctl->pager = 0;
}
