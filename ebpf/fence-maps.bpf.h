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

/* Counts the verdict. What the hooks return for "allowed" is 1, for anything else 0. */
static __always_inline int verdict(__u32 v) {
        __u64 *n;

        n = bpf_map_lookup_elem(&verdicts, &v);
        if (n)
                *n += 1;

        return v == FENCE_CONNECT_ALLOWED;
}

/* A heartbeat from the future is a forged one. */
static __always_inline int heartbeat_is_fresh(__u64 now) {
        __u32 zero = 0;
        __u64 *last;

        last = bpf_map_lookup_elem(&heartbeat, &zero);
        return last && *last <= now && now - *last <= FENCE_HEARTBEAT_NS;
}

/* Is ctx, a socket or something with a socket, in the host's own network namespace? */
static __always_inline int netns_is_host(void *ctx) {
        struct fence_config *c;
        __u32 zero = 0;

        c = bpf_map_lookup_elem(&config, &zero);
        return c && c->netns_cookie != 0 && c->netns_cookie == bpf_get_netns_cookie(ctx);
}
