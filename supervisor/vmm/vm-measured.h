/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What the contents of the installed templates' files were when anchor-templates.service read them, so that not each boot of a microVM
 * reads hundreds of megabytes again. A file counts as measured only while it is the same inode with the same size, mtime and ctime;
 * whoever finds anything else reads the file.
 */

#include <jansson.h>
#include <stdint.h>
#include <sys/stat.h>

#define VM_MEASURED_FILE "measured.json"
#define VM_MEASURED_PATH "/run/anchorhold-templates/" VM_MEASURED_FILE

/* How long a file must have been left alone before it is measured: longer than two changes can share a time stamp. */
#define VM_MEASURED_SETTLE_USEC (2ULL * 1000 * 1000)

/* What that service wrote, or NULL: nothing is known. The caller's. */
json_t *vm_measured_load(const char *path);

/* Was a file that is now as *st says found to have this digest? `measured` may be NULL: no. */
bool vm_measured_has(const json_t *measured, const struct stat *st, const char *digest);

/* Reads every file that a manifest below the folder `templates` names, if it is signed with one of `keys`, after waiting until it has been left alone
 * for settle_usec. What cannot be read, or changes meanwhile, is left out. The caller's; NULL without memory. */
json_t *vm_measured_make(const char *templates, const char *keys, uint64_t settle_usec);
