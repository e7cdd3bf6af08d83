/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What a process does to itself before it has anything to do with a guest, so that whoever takes it over cannot fill the host's disks. */

#include <stdint.h>

enum {
        CONFINE_E_SIZE_ONLY = 1, /* this kernel has no Landlock, or has it switched off: files can still be made */
};

/*
 * From now on, also after exec: no file is made, by a name or without one, none is opened to be written to, and none of those that are open grows
 * beyond so many bytes (the kernel's own, memfd, included). What is open stays as it is. Needs no capability, but NoNewPrivileges=; of threads, the calling one
 * alone is confined, so there should be no other yet. `writable`: files, ended by NULL, that may be opened all the same; those that are not there are left out.
 */
int confine_files(uint64_t largest, const char *const *writable);
