/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Loads and pins the fence's programs, and tells one program from another. */

#include <linux/bpf.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum FencePlace {
        FENCE_BY_SYSTEMD, /* BPFProgram= of anchorhold-runs.slice */
        FENCE_BY_FENCE,   /* systemd has no word for it: anchor-fence attaches it to that slice */
        FENCE_AT_UPLINK,  /* at every device of the host: anchor-warden */
} FencePlace;

typedef struct FenceHook {
        const char *name; /* of the program, its pin, and the word in BPFProgram= */
        enum bpf_attach_type type;
        FencePlace place;
} FenceHook;

#define FENCE_N_HOOKS 12
extern const FenceHook fence_hooks[FENCE_N_HOOKS];

/* The instructions and the maps that they work on. */
#define FENCE_MAX_MAPS 16
typedef struct FenceIdentity {
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

/*
 * Loads the programs, pins what is not pinned yet or differs, and opens the maps of egressd for its
 * group. What is pinned and right is left alone, the maps always: so a second run changes nothing. With check,
 * nothing is changed at all, and whatever would be is an error. ret_pinned: how many programs were pinned
 * anew. On failure *ret_reason is the caller's, for the log.
 */
int fence_load(bool check, unsigned *ret_pinned, char **ret_reason);
