/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-guest: PID 1 of a run's microVM. Started by the kernel from the initrd, it makes the root file
 * system, moves there, and serves the guest channel until it is told to power off. It stays PID 1: there
 * is no service manager in the guest, since every process of a run is started by anchor-run.
 *
 * Nothing here is a boundary. The agent is root beside this process and may replace, trace or kill it;
 * the host assumes that it did.
 */

#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/guest.h"

/* PID 1 may not return: the kernel would panic, and the host would have to guess. */
__attribute__((__noreturn__)) static void power_off(void) {
        (void) reboot(RB_POWER_OFF);
        (void) reboot(RB_AUTOBOOT);
        for (;;)
                pause();
}

int main(int argc, char *argv[]) {
        int r;

        if (getpid() != 1) {
                fprintf(stderr, "anchor-guest is the first process of an Anchorhold microVM and runs only as that.\n");
                return 1;
        }

        umask(022);
        (void) setpriority(PRIO_PROCESS, 0, -10);

        r = guest_boot();
        if (r >= 0)
                r = guest_serve();
        if (r < 0)
                guest_log("cannot go on: %s", strerror(-r));

        power_off();
}
