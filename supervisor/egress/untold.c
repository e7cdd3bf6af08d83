/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Denials are told in sum every ten seconds (denials.c), so whoever kills egressd in between would have them vanish. What each
 * costs here is an addition in a mapped page: no system call, and yet it is there after SIGKILL. (After a power failure it may not be; nor are the
 * runs.) Of what they were about nothing is kept: the next life writes one record for each run with the reason `log-lost`.
 *
 * A count is taken off when auditd has acknowledged the record. One that was under way when this process died is in the log and is
 * told once more, so that the counts of a run are never fewer than its denials.
 *
 * The file: UNTOLD_RUNS_MAX slots in the machine's byte order. It is this host's and this boot's; nobody else reads it.
 */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "egress/untold.h"

typedef struct Slot {
        char run[16]; /* "": free */
        uint64_t counts[UNTOLD_N_EVENTS];
} Slot;

struct Untold {
        Slot *slots; /* mapped */
};

#define SIZE (UNTOLD_RUNS_MAX * sizeof(Slot))

int untold_open(Untold **ret, const char *path) {
        _cleanup_(untold_freep) Untold *u = NULL;
        _cleanup_free_ char *file = text_format("%s/untold", path);
        _cleanup_fd_ int fd = -1;
        struct stat st;
        void *slots;

        u = calloc(1, sizeof(*u));
        if (!u || !file)
                return -ENOMEM;

        fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (st.st_size != (off_t) SIZE && (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t) SIZE) < 0))
                return -errno;
        slots = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (slots == MAP_FAILED)
                return -errno;

        u->slots = slots;
        for (size_t i = 0; i < UNTOLD_RUNS_MAX; i++)
                if (memchr(u->slots[i].run, 0, sizeof(u->slots[i].run)) == NULL || !text_is_id('r', u->slots[i].run))
                        u->slots[i] = (Slot) {};
        *ret = TAKE_PTR(u);
        return 0;
}

Untold *untold_free(Untold *u) {
        if (u && u->slots)
                (void) munmap(u->slots, SIZE);
        free(u);
        return NULL;
}

static Slot *find(Untold *u, const char *run) {
        for (size_t i = 0; i < UNTOLD_RUNS_MAX; i++)
                if (strcmp(u->slots[i].run, run) == 0)
                        return &u->slots[i];
        return NULL;
}

void untold_take(Untold *u, UntoldLeft left, void *userdata) {
        for (size_t i = 0; i < UNTOLD_RUNS_MAX; i++) {
                Slot slot = u->slots[i];

                u->slots[i] = (Slot) {};
                for (UntoldEvent event = 0; event < UNTOLD_N_EVENTS; event++)
                        if (*slot.run && slot.counts[event] > 0)
                                left(slot.run, event, slot.counts[event], userdata);
        }
}

int untold_add(Untold *u, const char *run, UntoldEvent event, uint64_t n) {
        Slot *slot = find(u, run);

        if (!slot) {
                slot = find(u, "");
                if (!slot)
                        return -ENOSPC;
                strncpy(slot->run, run, sizeof(slot->run) - 1);
        }
        slot->counts[event] += n;
        return 0;
}

void untold_told(Untold *u, const char *run, UntoldEvent event, uint64_t n) {
        Slot *slot = find(u, run);

        if (!slot)
                return;
        slot->counts[event] -= n < slot->counts[event] ? n : slot->counts[event];
        for (UntoldEvent i = 0; i < UNTOLD_N_EVENTS; i++)
                if (slot->counts[i] > 0)
                        return;
        *slot = (Slot) {};
}
