/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Opening what a microVM is made of. All descriptors are O_CLOEXEC until vm_parts_exec(). */

#include <sys/types.h>

#include "vmm/signature.h"
#include "vmm/vm-spec.h"

#define VM_TEMPLATE_DIR "/usr/lib/anchorhold/templates"
#define VM_SCRATCH_DIR "/var/lib/anchorhold/scratch"
#define VM_QEMU "/usr/bin/qemu-system-x86_64"

/* Opens kernel, initrd, root and the agent's image of spec's template below `templates`. Its manifest must be signed by a
 * key in `keys` (signature.h), have the digests of the spec, and the contents of each file those of the manifest. The
 * template's kernel command line is the caller's. Logs. */
int vm_parts_open_template(VmParts *parts, const VmSpec *spec, const char *templates, const char *keys, char **ret_cmdline);

/* The persistent tap device of the network namespace that we are in. */
int vm_parts_open_tap(VmParts *parts, const char *name);

/* An unnamed file that goes away with its last descriptor, and mke2fs at work on it; _finish_scratch()
 * waits for that. */
int vm_parts_start_scratch(VmParts *parts, const char *dir, uint64_t size_mib, pid_t *ret_pid);
int vm_parts_finish_scratch(pid_t pid);
/* After that: this process, and QEMU in its place, makes no file any more, and no disk grows beyond that. */
int vm_parts_confine(uint64_t size_mib);

/* Where the time stamp counter stood. */
typedef struct VmTsc {
        uint64_t nsec, tsc;
} VmTsc;

/* kHz of this machine's time stamp counter, measured from begin to end, which waits until that is 20 ms; 0 if it is of no use as a clock. */
void vm_tsc_begin(VmTsc *ret);
uint64_t vm_tsc_end(const VmTsc *begun);

/* Closes everything that vm_parts_open_…() opened; the sockets are the caller's. */
void vm_parts_done(VmParts *parts);

/* Lets QEMU inherit the descriptors and becomes QEMU. Returns only on failure. */
int vm_parts_exec(const VmParts *parts, char *const argv[]);
