/* SPDX-License-Identifier: LGPL-2.1-or-later OR GPL-2.0-only */
#pragma once

/* The maps, and the few questions that more than one program asks of them. */

#include <linux/bpf.h>
#include <linux/in.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "fence-api.bpf.h"

static const char fence_license[] __attribute__((section("license"), used)) = "GPL";

struct {
        __uint(type, BPF_MAP_TYPE_HASH);
        __uint(max_entries, FENCE_MAX_GRANTS);
        __uint(map_flags, BPF_F_NO_PREALLOC);
        __type(key, struct fence_key);
        __type(value, struct fence_grant);
} grants SEC(".maps") __weak;

struct {
        __uint(type, BPF_MAP_TYPE_HASH);
        __uint(max_entries, FENCE_MAX_GRANTS);
        __uint(map_flags, BPF_F_NO_PREALLOC);
        __type(key, __u64);
        __type(value, struct fence_key);
} live SEC(".maps") __weak;

/* CLOCK_BOOTTIME of egressd's last sign of life, in nanoseconds. */
struct {
        __uint(type, BPF_MAP_TYPE_ARRAY);
        __uint(max_entries, 1);
        __type(key, __u32);
        __type(value, __u64);
} heartbeat SEC(".maps") __weak;

struct {
        __uint(type, BPF_MAP_TYPE_ARRAY);
        __uint(max_entries, 1);
        __type(key, __u32);
        __type(value, struct fence_config);
} config SEC(".maps") __weak;

struct {
        __uint(type, BPF_MAP_TYPE_SK_STORAGE);
        __uint(map_flags, BPF_F_NO_PREALLOC);
        __type(key, int);
        __type(value, struct fence_socket);
} sockets SEC(".maps") __weak;

struct {
        __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
        __uint(max_entries, FENCE_N_VERDICTS);
        __type(key, __u32);
        __type(value, __u64);
} verdicts SEC(".maps") __weak;

/* Whose counts nobody reads and drops (an import's, the doctor's) make room for new ones: in a full map without that, every later run
 * would have counted nothing. A run has FENCE_N_VERDICTS entries at most, so none drives out another's. */
struct {
        __uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
        __uint(max_entries, FENCE_MAX_RUN_VERDICTS);
        __type(key, struct fence_count_key);
        __type(value, __u64);
} run_verdicts SEC(".maps") __weak;

struct {
        __uint(type, BPF_MAP_TYPE_ARRAY);
        __uint(max_entries, 1);
        __type(key, __u32);
        __type(value, struct fence_place);
} place SEC(".maps") __weak;

/* CLOCK_BOOTTIME of the last time that the warden found the whole fence in force, in nanoseconds. */
struct {
        __uint(type, BPF_MAP_TYPE_ARRAY);
        __uint(max_entries, 1);
        __type(key, __u32);
        __type(value, __u64);
} checked SEC(".maps") __weak;

#define MAX_LEVEL 16

/* Which ancestor of whom: of a packet's socket, or of the current task. */
static __always_inline __u64 ancestor(struct __sk_buff *skb, int level) {
        return skb ? bpf_skb_ancestor_cgroup_id(skb, level) : bpf_get_current_ancestor_cgroup_id(level);
}

/* How deep anchorhold-runs.slice lies above the packet's socket or the current task, if anchor-fence named it; else -1. It is looked for once. */
static __always_inline int slice_level(struct __sk_buff *skb) {
        struct fence_place *p;
        __u32 zero = 0;
        int level;

        p = bpf_map_lookup_elem(&place, &zero);
        if (!p || p->cgroup_id == 0)
                return -1;

        level = p->level & (MAX_LEVEL - 1);
        if (ancestor(skb, level) == p->cgroup_id)
                return level;

        for (level = 0; level < MAX_LEVEL; level++)
                if (ancestor(skb, level) == p->cgroup_id) {
                        p->level = level;
                        return level;
                }
        return -1;
}

/* The id of the run's slice, the child of anchorhold-runs.slice; 0 if that is not known. */
static __always_inline __u64 run_cgroup(struct __sk_buff *skb) {
        int level = slice_level(skb);

        return level < 0 ? 0 : ancestor(skb, level + 1);
}

static __always_inline void count_for_run(__u64 run, __u32 v) {
        struct fence_count_key key = { .cgroup_id = run, .verdict = v };
        __u64 *n, one = 1;

        n = bpf_map_lookup_elem(&run_verdicts, &key);
        if (!n) {
                if (bpf_map_update_elem(&run_verdicts, &key, &one, BPF_NOEXIST) == 0)
                        return;
                n = bpf_map_lookup_elem(&run_verdicts, &key); /* another CPU was first */
        }
        if (n)
                *n += 1;
}

static __always_inline int count(__u32 v, __u64 run) {
        __u64 *n;

        n = bpf_map_lookup_elem(&verdicts, &v);
        if (n)
                *n += 1;
        count_for_run(run, v);

        return v == FENCE_CONNECT_ALLOWED;
}

/* Counts the verdict on what the current task does. What the hooks return for "allowed" is 1, for anything else 0. */
static __always_inline int verdict(__u32 v) {
        return count(v, run_cgroup(NULL));
}

/* The same, where a packet is judged and the current task may be anybody. */
static __always_inline int verdict_on(__u32 v, struct __sk_buff *skb) {
        return count(v, run_cgroup(skb));
}

static __always_inline int is_fresh(void *map, __u64 now) {
        __u32 zero = 0;
        __u64 *last;

        last = bpf_map_lookup_elem(map, &zero);
        return last && *last <= now && now - *last <= FENCE_HEARTBEAT_NS;
}

/* Do egressd, and with it auditd, and the warden live? A heartbeat from the future is a forged one. */
static __always_inline int heartbeat_is_fresh(__u64 now) {
        return is_fresh(&heartbeat, now) && is_fresh(&checked, now);
}

/* Is ctx, a socket or something with a socket, in the host's own network namespace? */
static __always_inline int netns_is_host(void *ctx) {
        struct fence_config *c;
        __u32 zero = 0;

        c = bpf_map_lookup_elem(&config, &zero);
        return c && c->netns_cookie != 0 && c->netns_cookie == bpf_get_netns_cookie(ctx);
}
