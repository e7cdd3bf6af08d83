/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Does KVM work here? The only honest answer is a template's own kernel and initrd saying hello under it. */

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

typedef struct AccelProbe {
        const char *templates;     /* folder of templates */
        const char *template_name;
        const char *keys;          /* whose signatures a template may have (signature.h) */
        const char *scratch;       /* folder for two sockets and an unnamed file */
        uint64_t timeout_usec;
} AccelProbe;

typedef struct AccelResult {
        bool kvm;
        char reason[256];          /* when it is not: why */
        uint64_t usec;             /* how long it took to find out */
} AccelResult;

/* Runs the probe on a loop of its own. Negative errno only if it could not be carried out at all; that KVM
 * does not work is a result. Leaves no process and no file. */
int accel_probe(const AccelProbe *probe, AccelResult *ret);
