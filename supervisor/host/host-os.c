/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "host/host-os.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "util/json.h"

const char *host_role_name(HostRole role) {
        static const char *const names[_HOST_ROLE_MAX] = {
                [HOST_BOOTED] = "booted", [HOST_STAGED] = "staged", [HOST_PENDING] = "pending", [HOST_ROLLBACK] = "rollback", [HOST_OTHER] = "other",
        };

        return names[role];
}

const HostDeployment *host_find(const HostDeployments *d, HostRole role) {
        for (size_t i = 0; i < d->n; i++)
                if (d->list[i].role == role)
                        return &d->list[i];
        return NULL;
}

const HostDeployment *host_find_digest(const HostDeployments *d, const char *digest) {
        for (size_t i = 0; i < d->n; i++)
                if (strcmp(d->list[i].digest, digest) == 0)
                        return &d->list[i];
        return NULL;
}

const HostOs *host_os(void) {
        if (access("/run/ostree-booted", F_OK) < 0)
                return NULL;
        return access("/usr/bin/bootc", X_OK) == 0 ? &host_os_bootc : &host_os_ostree;
}

/* ---- what the tools print ---- */

static bool is_digest(const char *s) {
        uint8_t bytes[32];

        return s && text_unhex(s, bytes, sizeof(bytes)) == 0;
}

/* "sha256:HEX" → HEX */
static const char *without_algorithm(const char *s) {
        return s && strncmp(s, "sha256:", strlen("sha256:")) == 0 ? s + strlen("sha256:") : NULL;
}

static void add(HostDeployments *d, HostRole role, int index, const char *digest, const char *version, const char *commit) {
        HostDeployment *new;

        if (d->n == HOST_DEPLOYMENTS_MAX)
                return;
        new = &d->list[d->n++];
        *new = (HostDeployment) { .role = role, .index = index };
        if (is_digest(digest))
                memcpy(new->digest, digest, HEX_SHA256_SIZE);
        if (is_digest(commit))
                memcpy(new->commit, commit, HEX_SHA256_SIZE);
        text_fit(version ?: "", new->version, sizeof(new->version));
}

/* `ostree admin status --json`. The version of a commit is the digest of the image that it was made from. */
int host_ostree_parse(const char *data, size_t size, HostDeployments *ret) {
        _cleanup_json_ json_t *all = NULL;
        const json_t *deployments, *one;
        HostDeployments d = {};
        size_t i;
        int r;

        r = json_parse(data, size, &all, NULL);
        if (r < 0)
                return -EINVAL;
        deployments = json_object_get(all, "deployments");
        if (!json_is_array(deployments))
                return -EINVAL;

        json_array_foreach(deployments, i, one) {
                HostRole role = HOST_OTHER;

                if (json_is_true(json_object_get(one, "booted")))
                        role = HOST_BOOTED;
                else if (json_is_true(json_object_get(one, "staged")))
                        role = HOST_STAGED;
                else if (json_is_true(json_object_get(one, "pending")))
                        role = HOST_PENDING;
                else if (json_is_true(json_object_get(one, "rollback")))
                        role = HOST_ROLLBACK;
                add(&d, role, (int) json_integer_value(json_object_get(one, "index")),
                    json_string_value(json_object_get(one, "version")), NULL, json_string_value(json_object_get(one, "checksum")));
        }

        *ret = d;
        return 0;
}

/* `bootc status --format=json` (org.containers.bootc/v1): an entry each for staged, booted and rollback, or null. */
int host_bootc_parse(const char *data, size_t size, HostDeployments *ret) {
        static const struct {
                const char *key;
                HostRole role;
        } entries[] = { { "booted", HOST_BOOTED }, { "staged", HOST_STAGED }, { "rollback", HOST_ROLLBACK } };
        _cleanup_json_ json_t *all = NULL;
        HostDeployments d = {};
        const json_t *status;
        int r;

        r = json_parse(data, size, &all, NULL);
        if (r < 0)
                return -EINVAL;
        status = json_object_get(all, "status");
        if (!json_is_object(status))
                return -EINVAL;

        for (size_t i = 0; i < ELEMENTSOF(entries); i++) {
                const json_t *entry = json_object_get(status, entries[i].key), *image = json_object_get(entry, "image");

                if (json_is_object(entry))
                        add(&d, entries[i].role, (int) i, without_algorithm(json_string_value(json_object_get(image, "imageDigest"))),
                            json_string_value(json_object_get(image, "version")), NULL);
        }

        *ret = d;
        return 0;
}

int host_manifest_parse(const char *data, size_t size, HostLayer ret[static HOST_LAYERS_MAX], size_t *ret_n) {
        _cleanup_json_ json_t *manifest = NULL;
        const json_t *layers, *layer;
        size_t i;
        int r;

        r = json_parse(data, size, &manifest, NULL);
        if (r < 0)
                return -EINVAL;
        layers = json_object_get(manifest, "layers");
        if (!json_is_array(layers) || json_array_size(layers) == 0 || json_array_size(layers) > HOST_LAYERS_MAX)
                return -EINVAL;

        json_array_foreach(layers, i, layer) {
                const char *digest = without_algorithm(json_string_value(json_object_get(layer, "digest")));
                const json_t *bytes = json_object_get(layer, "size");

                if (!is_digest(digest) || !json_is_integer(bytes) || json_integer_value(bytes) < 0)
                        return -EINVAL;
                memcpy(ret[i].digest, digest, HEX_SHA256_SIZE);
                ret[i].size = json_integer_value(bytes);
        }

        *ret_n = json_array_size(layers);
        return 0;
}
