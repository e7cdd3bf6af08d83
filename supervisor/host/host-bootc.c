/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Deployments by bootc (bootc(8), 1.1 and later). It fetches by itself, asks the same /etc/containers/policy.json, and
 * shares layers. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/host-os.h"
#include "util/cleanup.h"

static int failed(char *reason, const char *verb, int r) {
        if (r < 0)
                (void) snprintf(reason, HOST_REASON_SIZE, "cannot run bootc: %s", strerror(-r));
        else
                (void) snprintf(reason, HOST_REASON_SIZE, "bootc %s failed with status %d", verb, r);
        return -EREMOTEIO;
}

static int bootc_list(HostDeployments *ret, char *reason) {
        _cleanup_free_ char *out = NULL;
        size_t size = 0;
        int r;

        r = command_run((const char *const[]) { "bootc", "status", "--format=json", NULL }, NULL, &out, &size);
        if (r != 0)
                return failed(reason, "status", r);
        if (host_bootc_parse(out, size, ret) < 0) {
                (void) snprintf(reason, HOST_REASON_SIZE, "bootc status prints nothing that is known here");
                return -EREMOTEIO;
        }
        return 0;
}

/* bootc has names as skopeo has them, without the transport of a registry. */
static const char *transport_of(const char *image, char ret_transport[static 32]) {
        const char *colon = strchr(image, ':');

        if (strncmp(image, "docker://", strlen("docker://")) == 0) {
                (void) strcpy(ret_transport, "registry");
                return image + strlen("docker://");
        }
        (void) snprintf(ret_transport, 32, "%.*s", colon ? (int) (colon - image) : 0, image);
        return colon ? colon + 1 : image;
}

static int bootc_stage(const char *image, const char *digest, const HostWaiting *waiting, char *reason) {
        char transport[32];
        const char *name = transport_of(image, transport);
        HostDeployments d = {};
        const HostDeployment *staged;
        int r;

        r = command_run((const char *const[]) { "bootc", "switch", "--transport", transport, "--enforce-container-sigpolicy", name, NULL }, waiting, NULL, NULL);
        if (r != 0)
                return failed(reason, "switch", r);
        r = bootc_list(&d, reason);
        if (r < 0)
                return r;
        staged = host_find(&d, HOST_STAGED);
        if (!staged || strcmp(staged->digest, digest) != 0) {
                (void) snprintf(reason, HOST_REASON_SIZE, "the image changed while it was fetched");
                return -EREMOTEIO;
        }
        return 0;
}

static int bootc_rollback(const HostDeployments *d, char *reason) {
        int r;

        r = command_run((const char *const[]) { "bootc", "rollback", NULL }, NULL, NULL, NULL);
        return r == 0 ? 0 : failed(reason, "rollback", r);
}

static int bootc_resolve(const char *image, char ret_digest[static HEX_SHA256_SIZE], char *reason) {
        return host_os_ostree.resolve(image, ret_digest, reason); /* skopeo comes with bootc */
}

const HostOs host_os_bootc = {
        .name = "bootc",
        .list = bootc_list,
        .resolve = bootc_resolve,
        .stage = bootc_stage,
        .rollback = bootc_rollback,
};
