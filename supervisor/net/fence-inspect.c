/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What only root can see and do: which programs are in force on a cgroup or a device, and putting the full layer on the runs' slice.
 * Used by anchor-fence (first step of each unit of a run), anchor-warden and anchor-bpf --check.
 *
 * The slice's cgroup has two layers. systemd puts the floor on when it makes the cgroup. The floor denies everything until map `place` has that cgroup's
 * id; that is written here, last, when the full layer is on. So the cgroup is not without one of them, from before its first process on.
 *
 * From then on the floor may be missing, and is not looked for: when systemd 257 reads its units anew (daemon-reload, daemon-reexec) it takes its programs
 * off, and puts them on again only when the next unit below the slice starts, be that a moment or an hour later. The full layer stays. Only a cgroup that has no
 * full layer yet must have its floor, else nothing starts there.
 */

#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fence-api.bpf.h"
#include "net/fence-inspect.h"
#include "net/fence.h"
#include "net/warden.h"
#include "util/cgroup.h"
#include "util/io.h"
#include "util/text.h"

#define FENCE_SLICE "anchorhold-runs.slice"
#define FENCE_SLICE_PATH "anchorhold.slice/" FENCE_SLICE

#define MAX_PROGRAMS 64 /* the kernel's BPF_CGROUP_MAX_PROGS and BPF_MPROG_MAX */

/* 1 if a program like the pinned one is in force on the cgroup, 0 if none is. */
static int is_in_force(int cgroup_fd, const FenceHook *hook, const FenceIdentity *pinned) {
        uint32_t ids[MAX_PROGRAMS], n = MAX_PROGRAMS, flags;
        int r;

        r = bpf_prog_query(cgroup_fd, hook->type, BPF_F_QUERY_EFFECTIVE, &flags, ids, &n);
        if (r < 0)
                return r;

        for (uint32_t i = 0; i < n; i++) {
                _cleanup_fd_ int fd = -1;
                FenceIdentity found;

                fd = bpf_prog_get_fd_by_id(ids[i]);
                if (fd == -ENOENT)
                        continue;
                if (fd < 0)
                        return fd;

                r = fence_identify(fd, &found);
                if (r < 0)
                        return r;
                if (fence_identity_equal(&found, pinned))
                        return 1;
        }

        return 0;
}

static int explain(char **ret_reason, int error, const char *what, const char *name) {
        *ret_reason = text_format("%s%s", what, name);
        return *ret_reason ? error : -ENOMEM;
}

static int attach(int cgroup_fd, const FenceHook *hook) {
        _cleanup_fd_ int fd = fence_open_pinned(hook);
        int r;

        if (fd < 0)
                return fd;

        r = bpf_prog_attach(fd, cgroup_fd, hook->type, BPF_F_ALLOW_MULTI);
        return r == -EINVAL ? 0 : r; /* this very program: another unit's first step was faster. The check that follows would tell. */
}

static bool share_a_map(const FenceIdentity *a, const FenceIdentity *b) {
        for (uint32_t i = 0; i < a->n_maps; i++)
                for (uint32_t j = 0; j < b->n_maps; j++)
                        if (a->maps[i] == b->maps[j])
                                return true;
        return false;
}

/* Takes one program off that an older build attached: it is called as the pinned one, asks one of our maps, and is another. */
static int take_off_if_old(int cgroup_fd, const FenceHook *hook, const FenceIdentity *pinned, uint32_t id) {
        _cleanup_fd_ int fd = bpf_prog_get_fd_by_id(id);
        FenceIdentity found;
        int r;

        if (fd == -ENOENT)
                return 0;
        r = fd < 0 ? fd : fence_identify(fd, &found);
        if (r < 0)
                return r;
        if (fence_identity_equal(&found, pinned) || strcmp(found.name, pinned->name) != 0 || !share_a_map(&found, pinned))
                return 0;

        r = bpf_prog_detach2(fd, cgroup_fd, hook->type);
        return r == -ENOENT ? 0 : r;
}

static int take_off_old(int cgroup_fd, const FenceHook *hook, const FenceIdentity *pinned) {
        uint32_t ids[MAX_PROGRAMS], n = MAX_PROGRAMS, flags;
        int r;

        r = bpf_prog_query(cgroup_fd, hook->type, 0, &flags, ids, &n);
        for (uint32_t i = 0; i < n && r >= 0; i++)
                r = take_off_if_old(cgroup_fd, hook, pinned, ids[i]);
        return r;
}

/* The cgroup's id, and the cgroup itself, for the programs that ask whether something is below it. 1 if that is noted already. */
static int mark_slice(int cgroup_fd, bool look_only) {
        _cleanup_fd_ int place_fd = -1, slice_fd = -1;
        struct fence_place place = {};
        uint32_t zero = 0;
        struct stat st;
        int r;

        if (fstat(cgroup_fd, &st) < 0)
                return -errno;
        place_fd = bpf_obj_get(FENCE_PRIVATE_DIR "/place");
        if (place_fd < 0)
                return place_fd;
        r = bpf_map_lookup_elem(place_fd, &zero, &place);
        if (r < 0)
                return r;
        if (place.cgroup_id == st.st_ino || look_only)
                return place.cgroup_id == st.st_ino;

        slice_fd = bpf_obj_get(FENCE_PRIVATE_DIR "/runs_slice");
        if (slice_fd < 0)
                return slice_fd;
        r = bpf_map_update_elem(slice_fd, &zero, &cgroup_fd, BPF_ANY);
        if (r < 0)
                return r;

        place = (struct fence_place) { .cgroup_id = st.st_ino };
        return bpf_map_update_elem(place_fd, &zero, &place, BPF_ANY);
}

static int put_on(int cgroup_fd, const FenceHook *hook, char **ret_reason) {
        FenceIdentity pinned;
        int r;

        r = fence_identify_pinned(hook, &pinned);
        if (r < 0)
                return explain(ret_reason, r, "no pinned program " FENCE_PROGS_DIR "/", hook->name);

        r = is_in_force(cgroup_fd, hook, &pinned);
        if (r == 0)
                r = attach(cgroup_fd, hook);
        if (r >= 0)
                r = take_off_old(cgroup_fd, hook, &pinned); /* after it, so that there is always one */
        if (r < 0)
                return explain(ret_reason, r, "cannot attach to " FENCE_SLICE ": ", hook->name);
        return 0;
}

/* Those of one layer. FENCE_E_NO_FLOOR or -ENOTRECOVERABLE if one is not in force. */
static int check_layer(int cgroup_fd, FencePlace place, char **ret_reason) {
        FenceIdentity pinned;
        int r;

        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                const FenceHook *hook = &fence_hooks[i];

                if (hook->place != place)
                        continue;
                r = fence_identify_pinned(hook, &pinned);
                if (r < 0)
                        return explain(ret_reason, r, "no pinned program " FENCE_PROGS_DIR "/", hook->name);

                r = is_in_force(cgroup_fd, hook, &pinned);
                if (r < 0)
                        return explain(ret_reason, r, "cannot ask which programs are in force: ", hook->name);
                if (r == 0)
                        return explain(ret_reason, place == FENCE_FLOOR ? FENCE_E_NO_FLOOR : -ENOTRECOVERABLE,
                                       "the pinned program is not in force on the runs' cgroup: ", hook->name);
        }

        return 0;
}

static bool has_full_layer(int cgroup_fd) {
        _cleanup_free_ char *reason = NULL;

        return check_layer(cgroup_fd, FENCE_FULL, &reason) == 0;
}

static int attach_full(int cgroup_fd, char **ret_reason) {
        int r = 0;

        for (size_t i = 0; i < FENCE_N_HOOKS && r >= 0; i++)
                if (fence_hooks[i].place == FENCE_FULL)
                        r = put_on(cgroup_fd, &fence_hooks[i], ret_reason);
        return r;
}

/* Once for each time that the slice's cgroup is made, and not again: what somebody takes off later must not come back unnoticed.
 * It is noted last, so that of two who prepare at once none finds it noted and not yet prepared. */
int fence_prepare_slice(int cgroup_fd, char **ret_reason) {
        int r;

        r = mark_slice(cgroup_fd, true);
        if (r > 0)
                return 0;
        if (r < 0)
                return explain(ret_reason, r, "cannot read map ", FENCE_PRIVATE_DIR "/place");

        /* forgotten, not new: then the floor may be off */
        if (!has_full_layer(cgroup_fd)) {
                r = check_layer(cgroup_fd, FENCE_FLOOR, ret_reason);
                if (r != 0)
                        return r;
        }

        r = attach_full(cgroup_fd, ret_reason);
        if (r < 0)
                return r;
        r = mark_slice(cgroup_fd, false);
        if (r < 0)
                return explain(ret_reason, r, "cannot note where this is: ", FENCE_SLICE);
        return 0;
}

int fence_attach_full(char **ret_reason) {
        uint64_t until = time_boottime() + FENCE_FLOOR_GRACE_USEC;
        _cleanup_fd_ int cgroup_fd = -1;
        int r;

        cgroup_fd = r = cgroup_open_own(FENCE_SLICE);
        if (r == -ENOENT)
                return 0;
        if (r < 0)
                return explain(ret_reason, r, "cannot open the cgroup of ", FENCE_SLICE);

        while ((r = fence_prepare_slice(cgroup_fd, ret_reason)) == FENCE_E_NO_FLOOR && time_boottime() < until) {
                free(TAKE_PTR(*ret_reason));
                (void) usleep(20 * 1000);
        }
        return r == FENCE_E_NO_FLOOR ? -ENOTRECOVERABLE : r;
}

int fence_check_cgroup(int cgroup_fd, char **ret_reason) {
        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                _cleanup_fd_ int fd = fence_open_pinned(&fence_hooks[i]);

                if (fd < 0)
                        return explain(ret_reason, fd, "no pinned program " FENCE_PROGS_DIR "/", fence_hooks[i].name);
        }
        return check_layer(cgroup_fd, FENCE_FULL, ret_reason);
}

int fence_check_attached(char **ret_reason) {
        _cleanup_fd_ int cgroup_fd = -1;
        int r;

        cgroup_fd = r = cgroup_open_own(NULL);
        if (r < 0)
                return explain(ret_reason, r, "cannot open this process's cgroup", "");

        return fence_check_cgroup(cgroup_fd, ret_reason);
}

/* 0 if it is not there, with *ret_fd negative. */
static int open_slice(int *ret_fd, char **ret_reason) {
        int r;

        *ret_fd = r = cgroup_open(FENCE_SLICE_PATH);
        return r < 0 && r != -ENOENT ? explain(ret_reason, r, "cannot open the cgroup of ", FENCE_SLICE) : 0;
}

/* Is there any process in it or below it? If in doubt, yes. */
static bool is_populated(int cgroup_fd) {
        _cleanup_free_ char *events = NULL;

        return io_read_file(cgroup_fd, "cgroup.events", 4096, &events, NULL) < 0 || !strstr(events, "populated 0");
}

int fence_watch_slice(char **ret_reason) {
        _cleanup_fd_ int cgroup_fd = -1;
        int r;

        r = open_slice(&cgroup_fd, ret_reason);
        if (r < 0 || cgroup_fd < 0)
                return r;

        r = fence_prepare_slice(cgroup_fd, ret_reason);
        if (r == FENCE_E_NO_FLOOR && !is_populated(cgroup_fd)) {
                free(TAKE_PTR(*ret_reason));
                return 0;
        }
        return r != 0 ? r : fence_check_cgroup(cgroup_fd, ret_reason);
}

int fence_check_slice(char **ret_reason) {
        _cleanup_fd_ int cgroup_fd = -1;
        int r;

        r = open_slice(&cgroup_fd, ret_reason);
        if (r < 0 || cgroup_fd < 0)
                return r;

        r = mark_slice(cgroup_fd, true);
        if (r < 0)
                return explain(ret_reason, r, "cannot read map ", FENCE_PRIVATE_DIR "/place");
        if (r > 0)
                return fence_check_cgroup(cgroup_fd, ret_reason);
        if (!is_populated(cgroup_fd))
                return 0;
        r = check_layer(cgroup_fd, FENCE_FLOOR, ret_reason);
        return r == FENCE_E_NO_FLOOR ? -ENOTRECOVERABLE : r;
}

int fence_check_warden(char **ret_reason) {
        _cleanup_fd_ int fd = bpf_obj_get(FENCE_PRIVATE_DIR "/checked");
        uint64_t last = 0, now = time_boottime() * 1000;
        uint32_t zero = 0;
        int r;

        r = fd < 0 ? fd : bpf_map_lookup_elem(fd, &zero, &last);
        if (r < 0)
                return explain(ret_reason, r, "cannot read map ", FENCE_PRIVATE_DIR "/checked");
        if (last > now || now - last > FENCE_HEARTBEAT_NS)
                return explain(ret_reason, -ENOTRECOVERABLE, "anchor-warden has not found the fence in force for ten seconds: ", "see " WARDEN_STATE);
        return 0;
}

int fence_count_in_force(int ifindex, bool *ret_first) {
        struct bpf_prog_query_opts opts = { .sz = sizeof(opts) };
        uint32_t ids[MAX_PROGRAMS];
        FenceIdentity pinned, found;
        int r, n = 0;

        r = fence_identify_pinned(&fence_hooks[FENCE_N_HOOKS - 1], &pinned);
        if (r < 0)
                return r;

        opts.prog_ids = ids;
        opts.prog_cnt = MAX_PROGRAMS;
        r = bpf_prog_query_opts(ifindex, BPF_TCX_EGRESS, &opts);
        if (r < 0)
                return r;

        *ret_first = false;
        for (uint32_t i = 0; i < opts.prog_cnt; i++) {
                _cleanup_fd_ int fd = bpf_prog_get_fd_by_id(ids[i]);

                if (fd == -ENOENT)
                        continue;
                r = fd < 0 ? fd : fence_identify(fd, &found);
                if (r < 0)
                        return r;
                if (!fence_identity_equal(&found, &pinned))
                        continue;
                if (i == 0)
                        *ret_first = true;
                n++;
        }
        return n;
}
