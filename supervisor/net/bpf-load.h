/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Loads and pins the fence's programs, and tells one program from another. */

#include <linux/bpf.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum FencePlace {
        FENCE_FLOOR,     /* BPFProgram= of anchorhold-runs.slice: systemd attaches it, and takes it off at each daemon-reload */
        FENCE_FULL,      /* anchor-fence attaches it to that slice, and nobody takes it off */
        FENCE_AT_UPLINK, /* at every device of the host: anchor-warden */
} FencePlace;

typedef struct FenceHook {
        const char *name; /* of the program and its pin */
        enum bpf_attach_type type;
        FencePlace place;
} FenceHook;

#define FENCE_N_HOOKS 21
extern const FenceHook fence_hooks[FENCE_N_HOOKS];

/* The instructions and the maps that they work on. */
#define FENCE_MAX_MAPS 16
typedef struct FenceIdentity {
        char name[BPF_OBJ_NAME_LEN]; /* as the kernel cuts it; of no account when two are compared */
        uint8_t tag[BPF_TAG_SIZE];
        uint32_t n_maps;
        uint32_t maps[FENCE_MAX_MAPS];
} FenceIdentity;

int fence_identify(int prog_fd, FenceIdentity *ret);

/* The pinned program, the caller's; negative errno. */
int fence_open_pinned(const FenceHook *hook);
int fence_identify_pinned(const FenceHook *hook, FenceIdentity *ret);

/* The same instructions on the same maps: a program loaded once more is still the same program. */
bool fence_identity_equal(const FenceIdentity *a, const FenceIdentity *b);
/* Does one of these programs work on that map? 1, 0, or negative errno. */
int fence_map_is_used(int map_fd, const FenceIdentity *programs, size_t n);

/*
 * Loads the programs, pins what is not pinned yet or differs, and opens the maps of egressd for its
 * group. What is pinned and right is left alone, the maps always: so a second run changes nothing. With check,
 * nothing is changed at all, and whatever would be is an error. ret_pinned: how many programs were pinned
 * anew. On failure *ret_reason is the caller's, for the log.
 */
int fence_load(bool check, unsigned *ret_pinned, char **ret_reason);

/* Lets the floor deny everything until somebody has looked after the slice anew (fence_prepare_slice()): after loading, so that what was taken off
 * comes back, and other programs take the place of older ones. */
int fence_forget_slice(char **ret_reason);
