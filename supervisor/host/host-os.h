/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Everything that knows how this host's operating system is replaced: which deployments there are, how the next one gets
 * here, and how to go back. bootc does it where the host has it, else ostree's and skopeo's own tools (host-ostree.c).
 * Each function waits for them. Only root may.
 */

#include <jansson.h>
#include <stdbool.h>

#include "host/command.h"
#include "util/text.h"

enum { HOST_REASON_SIZE = 256 };

typedef enum HostRole {
        HOST_BOOTED,
        HOST_STAGED,   /* becomes the default when this boot ends */
        HOST_PENDING,  /* the default of the next boot, already in place */
        HOST_ROLLBACK, /* the one to go back to */
        HOST_OTHER,
        _HOST_ROLE_MAX,
} HostRole;

const char *host_role_name(HostRole role);

typedef struct HostDeployment {
        HostRole role;
        int index;                      /* the tools' own number */
        char digest[HEX_SHA256_SIZE];   /* of the image's manifest, "" if the tools do not know one */
        char version[64];               /* of the image, "" likewise */
        char commit[HEX_SHA256_SIZE];   /* ostree's, "" where another tool answers */
} HostDeployment;

enum { HOST_DEPLOYMENTS_MAX = 16 };

typedef struct HostDeployments {
        HostDeployment list[HOST_DEPLOYMENTS_MAX];
        size_t n;
} HostDeployments;

/* The first in that role, or NULL. Borrowed. */
const HostDeployment *host_find(const HostDeployments *d, HostRole role);
const HostDeployment *host_find_digest(const HostDeployments *d, const char *digest);

/* One way to do it. On failure each writes why into `reason` (HOST_REASON_SIZE) unless a tool said it on standard error, and
 * returns negative errno; -EREMOTEIO: a tool failed. */
typedef struct HostOs {
        const char *name;
        int (*list)(HostDeployments *ret, char *reason);
        /* The digest of the image that a name (`docker://…`, `dir:…`, as skopeo has them) stands for now. */
        int (*resolve)(const char *image, char ret_digest[static HEX_SHA256_SIZE], char *reason);
        /* Fetches that very image, checks its signature by this host's policy, and stages it. */
        int (*stage)(const char *image, const char *digest, const HostWaiting *waiting, char *reason);
        /* Drops what is staged, and makes the rollback deployment the default. */
        int (*rollback)(const HostDeployments *d, char *reason);
} HostOs;

extern const HostOs host_os_ostree, host_os_bootc;

/* The one for this host, or NULL: it was not booted from a deployment. */
const HostOs *host_os(void);

/* ---- pure: what the tools print ---- */

int host_ostree_parse(const char *data, size_t size, HostDeployments *ret);
int host_bootc_parse(const char *data, size_t size, HostDeployments *ret);

typedef struct HostLayer {
        char digest[HEX_SHA256_SIZE];
        int64_t size;
} HostLayer;

enum { HOST_LAYERS_MAX = 128 };

/* The layers of an image's manifest (OCI image-spec 1.1), in their order. -EINVAL: it is none, or of many platforms. */
int host_manifest_parse(const char *data, size_t size, HostLayer ret[static HOST_LAYERS_MAX], size_t *ret_n);
