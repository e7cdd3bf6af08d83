/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the microVM of a run shall be (docs/interfaces.md, credential `vm`), and QEMU's command line for
 * it. Both are pure: nothing is opened here. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/cleanup.h"

typedef struct VmSpec {
        char *template_name;   /* owned */
        char *agent;           /* owned; NULL: none */
        json_t *digests;       /* owned; {"FILE": "<sha256>"} of the template that the run was made for, "template" for
                                * its manifest; NULL: any */
        uint64_t memory_mib, vcpus, disk_mib;
        bool kvm;
} VmSpec;

/* -EINVAL: *ret_reason (the caller's, may be NULL) says what is wrong. */
int vm_spec_parse(const char *data, size_t size, VmSpec *ret, char **ret_reason);
void vm_spec_done(VmSpec *s);

/* Open descriptors that QEMU shall inherit, and what else is known only at start. */
typedef struct VmParts {
        int channel, qmp;       /* listening sockets */
        int kernel, initrd, root, scratch;
        int agent;              /* -1: none */
        int tap;                /* -1: no network */
        const char *name;       /* the run */
        const char *cmdline;    /* the template's part of the kernel's command line */
        uint64_t tsc_khz;       /* 0: unknown */
} VmParts;

#define VM_PARTS_NULL ((VmParts) { .channel = -1, .qmp = -1, .kernel = -1, .initrd = -1, .root = -1, .scratch = -1, .agent = -1, .tap = -1 })

/* A NULL-terminated vector, freed with vm_argv_free(). */
int vm_command_build(const VmSpec *spec, const VmParts *parts, char ***ret);
char **vm_argv_free(char **argv);
DEFINE_CLEANUP(char **, vm_argv_free)
