/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What is installed to run in: guest templates, and the accelerator that the probe found. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "api/manager-internal.h"
#include "util/io.h"
#include "util/json.h"
#include "util/text.h"
#include "vmm/signature.h"
#include "vmm/vm-template.h"

#define TEMPLATES "/usr/lib/anchorhold/templates"
#define ACCEL_PATH "/run/anchorhold/accel"

enum { ACCEL_SIZE_MAX = 64 * 1024 };

static int load_json(const char *path, size_t max, json_t **ret) {
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        r = io_read_file(AT_FDCWD, path, max, &data, &size);
        if (r < 0)
                return r;

        return json_parse(data, size, ret, NULL);
}

int template_load(const char *name, json_t **ret, char **ret_reason) {
        _cleanup_free_ char *path = NULL, *why = NULL;
        _cleanup_fd_ int dir_fd = -1;
        int r;

        if (!text_is_name(name))
                return -EINVAL;
        path = text_format(TEMPLATES "/%s", name);
        if (!path)
                return -ENOMEM;

        dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = dir_fd < 0 ? -errno : vm_template_read(dir_fd, name, SIGNATURE_KEYS, ret, &why);
        if (r < 0 && ret_reason)
                *ret_reason = why ? text_format("template %s cannot be used: %s", name, why) : text_format("template %s is not installed", name);
        return r;
}

bool template_has_agent(const char *name, const char *agent) {
        _cleanup_free_ char *path = NULL;

        if (!text_is_name(name) || !text_is_name(agent))
                return false;
        path = text_format(TEMPLATES "/%s/agents/%s.erofs", name, agent);
        return path && access(path, R_OK) == 0;
}

int accel_read(const char *configured, Accel *ret) {
        _cleanup_json_ json_t *probe = NULL;
        const char *accel, *reason;

        if (strcmp(configured, "tcg") == 0) {
                *ret = (Accel) { .known = true, .tcg = true };
                return 0;
        }

        if (load_json(ACCEL_PATH, ACCEL_SIZE_MAX, &probe) < 0) {
                *ret = (Accel) { .tcg = true, .fallback = true, .reason = "the accelerator's probe has not answered" };
                return strcmp(configured, "kvm") == 0 ? -EOPNOTSUPP : 0;
        }

        accel = json_string_value(json_object_get(probe, "accel"));
        reason = json_string_value(json_object_get(probe, "reason"));
        *ret = (Accel) { .known = true };
        if (accel && strcmp(accel, "kvm") == 0) {
                ret->probe_ms = (uint64_t) json_integer_value(json_object_get(probe, "probe_ms"));
                return 0;
        }

        ret->tcg = ret->fallback = true;
        (void) snprintf(ret->reason, sizeof(ret->reason), "%s", reason ?: "the probe gave no reason");
        return strcmp(configured, "kvm") == 0 ? -EOPNOTSUPP : 0;
}
