/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>

#include "net/fence-counts.h"
#include "util/cleanup.h"

static const char *const names[FENCE_N_VERDICTS] = {
        [FENCE_CONNECT_ALLOWED] = "connect_allowed",
        [FENCE_CONNECT_NO_GRANT] = "connect_no_grant",
        [FENCE_CONNECT_EXPIRED] = "connect_expired",
        [FENCE_CONNECT_NEVER] = "connect_never",
        [FENCE_CONNECT_HEARTBEAT] = "connect_heartbeat",
        [FENCE_CONNECT_OTHER] = "connect_other",
        [FENCE_CREATE_REFUSED] = "create_refused",
        [FENCE_CREATE_ELSEWHERE] = "create_elsewhere",
        [FENCE_PACKET_NO_GRANT] = "packet_no_grant",
        [FENCE_PACKET_REVOKED] = "packet_revoked",
        [FENCE_PACKET_HEARTBEAT] = "packet_heartbeat",
        [FENCE_PACKET_OTHER] = "packet_other",
        [FENCE_UNIX_ABSTRACT] = "unix_abstract",
        [FENCE_BIND_REFUSED] = "bind_refused",
        [FENCE_OPTION_REFUSED] = "option_refused",
        [FENCE_UPLINK_DROPPED] = "uplink_dropped",
        [FENCE_HOST_DROPPED] = "host_dropped",
        [FENCE_TESTED] = "tested",
};

static int open_map(void) {
        return bpf_obj_get(FENCE_PRIVATE_DIR "/run_verdicts");
}

int fence_counts_read(uint64_t cgroup_id, uint64_t ret[static FENCE_N_VERDICTS]) {
        _cleanup_free_ uint64_t *values = NULL;
        _cleanup_fd_ int fd = -1;
        int n_cpus, r;

        n_cpus = libbpf_num_possible_cpus();
        if (n_cpus < 0)
                return n_cpus;
        values = calloc((size_t) n_cpus, sizeof(*values));
        if (!values)
                return -ENOMEM;
        fd = open_map();
        if (fd < 0)
                return fd;

        for (uint32_t v = 0; v < FENCE_N_VERDICTS; v++) {
                struct fence_count_key key = { .cgroup_id = cgroup_id, .verdict = v };

                ret[v] = 0;
                r = bpf_map_lookup_elem(fd, &key, values);
                if (r == -ENOENT)
                        continue;
                if (r < 0)
                        return r;
                for (int i = 0; i < n_cpus; i++)
                        ret[v] += values[i];
        }
        return 0;
}

int fence_counts_drop(uint64_t cgroup_id) {
        _cleanup_fd_ int fd = open_map();
        int r;

        if (fd < 0)
                return fd;

        for (uint32_t v = 0; v < FENCE_N_VERDICTS; v++) {
                struct fence_count_key key = { .cgroup_id = cgroup_id, .verdict = v };

                r = bpf_map_delete_elem(fd, &key);
                if (r < 0 && r != -ENOENT)
                        return r;
        }
        return 0;
}

json_t *fence_counts_to_json(const uint64_t counts[static FENCE_N_VERDICTS]) {
        _cleanup_json_ json_t *object = json_object();

        for (uint32_t v = 0; v < FENCE_N_VERDICTS; v++)
                if (counts[v] > 0 && json_object_set_new(object, names[v], json_integer((json_int_t) counts[v])) < 0)
                        return NULL;
        return TAKE_PTR(object);
}
