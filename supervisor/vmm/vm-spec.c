/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "vmm/vm-spec.h"

#include <errno.h>
#include <string.h>

#include "util/json.h"
#include "util/text.h"

enum {
        MEMORY_MIB_MIN = 128,
        MEMORY_MIB_MAX = 1024 * 1024,
        VCPUS_MAX = 64,
        DISK_MIB_MIN = 16,
        DISK_MIB_MAX = 1024 * 1024,
};

void vm_spec_done(VmSpec *s) {
        free(s->template_name);
        free(s->agent);
        json_decref(s->digests);
        *s = (VmSpec) {};
}

static void read_name(JsonReader *r, const json_t *spec, const char *key, JsonFlags flags, const char **ret) {
        if (json_read_string(r, spec, "", key, flags, ret) && !text_is_name(*ret))
                json_reader_fail(r, "", key, "not a name: [a-z][a-z0-9-]{0,62}");
}

static int copy(const char *from, char **ret) {
        *ret = from ? strdup(from) : NULL;
        return from && !*ret ? -ENOMEM : 0;
}

static int spec_copy(VmSpec *s, const char *template_name, const char *agent, json_t *digests) {
        int r;

        s->digests = json_incref(digests);
        r = copy(template_name, &s->template_name);
        return r < 0 ? r : copy(agent, &s->agent);
}

int vm_spec_parse(const char *data, size_t size, VmSpec *ret, char **ret_reason) {
        const char *template_name = NULL, *agent = NULL, *accel = NULL;
        _cleanup_(json_reader_done) JsonReader reader = { .file = "vm" };
        _cleanup_json_ json_t *j = NULL;
        json_t *digests = NULL;
        VmSpec s = {};
        int r;

        r = json_parse(data, size, &j, ret_reason);
        if (r < 0)
                return r;
        if (!json_is_object(j))
                json_reader_fail(&reader, "", NULL, "not an object");

        read_name(&reader, j, "template", JSON_F_REQUIRED, &template_name);
        read_name(&reader, j, "agent", JSON_F_NULLABLE, &agent);
        (void) json_read_uint(&reader, j, "", "memory_mib", JSON_F_REQUIRED, MEMORY_MIB_MIN, MEMORY_MIB_MAX, &s.memory_mib);
        (void) json_read_uint(&reader, j, "", "vcpus", JSON_F_REQUIRED, 1, VCPUS_MAX, &s.vcpus);
        (void) json_read_uint(&reader, j, "", "disk_mib", JSON_F_REQUIRED, DISK_MIB_MIN, DISK_MIB_MAX, &s.disk_mib);
        (void) json_read_object(&reader, j, "", "digests", JSON_F_NULLABLE, &digests);
        if (json_read_string(&reader, j, "", "accel", JSON_F_REQUIRED, &accel)) {
                s.kvm = strcmp(accel, "kvm") == 0;
                if (!s.kvm && strcmp(accel, "tcg") != 0)
                        json_reader_fail(&reader, "", "accel", "neither \"kvm\" nor \"tcg\"");
        }

        if (reader.failed) {
                if (ret_reason)
                        *ret_reason = text_format("%s: %s", reader.pointer && *reader.pointer ? reader.pointer : "/",
                                                  reader.reason ?: "invalid");
                return -EINVAL;
        }

        r = spec_copy(&s, template_name, agent, digests);
        if (r < 0) {
                vm_spec_done(&s);
                return r;
        }

        *ret = s;
        return 0;
}
