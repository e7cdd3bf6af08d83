/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A guest template as it is installed: its manifest, whoever signed that, and the files that it names.
 *
 * anchord reads the manifest to bind a run to the template's digest, and the launcher reads it again before a
 * microVM starts, so that neither has to believe the other. The files' contents are looked at by the launcher, through the descriptors
 * that QEMU then gets, unless they are as they were when anchor-templates.service read them (vm-measured.h).
 */

#include <jansson.h>

#define VM_TEMPLATE_MANIFEST "manifest.json"
#define VM_TEMPLATE_SIGNATURE "manifest.json.sig"

/* The manifest of the template `name` in the folder dir_fd, once its signature has been checked with the keys of `keys`
 * (signature.h). -ENOENT: there is none; -EKEYREJECTED: not signed by anybody trusted; -EBADMSG: signed, and not the manifest of
 * this template, or its digest is not that of its contents. ret_reason (may be NULL) is the caller's, with what is wrong. */
int vm_template_read(int dir_fd, const char *name, const char *keys, json_t **ret, char **ret_reason);

/* Are the contents of fd those of this SHA-256 (hex)? 0; -ESTALE: no; other negative errno. The descriptor's offset does not change. */
int vm_template_check_contents(int fd, const char *digest);

/* Are the contents of fd what the manifest says about `file`? As above; -ESTALE also if it says nothing. What `measured` (vm-measured.h; may be
 * NULL) knows of the file as it is now is not read again. */
int vm_template_check_file(int fd, const json_t *manifest, const char *file, const json_t *measured);
