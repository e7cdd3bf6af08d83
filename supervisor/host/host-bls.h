/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Everything that knows what a boot entry looks like: the Boot Loader Specification's type 1, as ostree writes it and as systemd-boot reads it, with the
 * counters that systemd-boot keeps in a file's name. Pure. */

#include <stdbool.h>
#include <stddef.h>

enum {
        BLS_ID_SIZE = 80,       /* COMMIT.SERIAL */
        BLS_NAME_SIZE = 128,
        BLS_TRIES_MAX = 99,
        BLS_PARTITION_SIZE = 37,
};

/* The name of a file of ours: anchorhold-COMMIT.SERIAL[+LEFT[-DONE]].conf; left is -1 if the boots of it are not counted. */
typedef struct BlsName {
        char id[BLS_ID_SIZE];
        int left, done;
} BlsName;

bool bls_name_parse(const char *file, BlsName *ret);
void bls_name_format(const BlsName *name, char ret[static BLS_NAME_SIZE]);

/* One of ostree's entries. `kernels` is the folder below /boot/ostree that has both files. All point into text. */
typedef struct BlsEntry {
        char *text; /* owned */
        const char *title, *version, *options, *kernels, *kernel, *initrd;
} BlsEntry;

/* data is taken apart: a copy of it is the entry's. -EINVAL: it is none, or names files that are not where ostree has them. */
int bls_entry_parse(const char *data, size_t size, BlsEntry *ret);
void bls_entry_done(BlsEntry *e);
/* ostree's name of the deployment, a link below /: "ostree/boot.1/…". The caller's; NULL: there is none, or no memory. */
char *bls_entry_link(const BlsEntry *e);
/* The same entry for systemd-boot, whose files are below /ostree of its partition. The caller's; NULL when out of memory. */
char *bls_entry_format(const BlsEntry *e);

/* The partition that systemd-boot was started from, of its variable LoaderDevicePartUUID as efivarfs has it. */
int bls_partition_parse(const char *data, size_t size, char ret[static BLS_PARTITION_SIZE]);
