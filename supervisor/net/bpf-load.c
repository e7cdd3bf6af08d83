/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Runs once at boot as root, before anchorhold-runs.slice may start: systemd (the floor) and anchor-fence (the full layer) attach what is
 * pinned here to that slice's cgroup. Two trees, so that egressd, which may write grants, cannot even see a program:
 *
 *   /run/anchorhold/maps             a bpffs of its own; grants, live, heartbeat; root:anchor-egress 0660; checked 0640
 *   /sys/fs/bpf/anchorhold/{prog,maps}   root only; programs, and the maps that only they use
 *
 * Maps are the state of connections that may be under way, so they are never replaced: if a new build
 * has another layout, loading fails until the host is booted anew (an update of the image is a reboot anyway).
 * Programs have no state; a pin that is missing or older is renamed into place. systemd keeps an old floor
 * attached until the slice is started anew, anchor-fence sees that difference, and no unit of a run starts until then.
 */

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "fence-api.bpf.h"
#include "net/bpf-load.h"
#include "util/cleanup.h"
#include "util/text.h"

#include "fence.skel.h"

#define EGRESS_GROUP "anchor-egress"

static inline struct fence *skeleton_free(struct fence *f) {
        if (f)
                fence__destroy(f);
        return NULL;
}
DEFINE_CLEANUP(struct fence *, skeleton_free)

const FenceHook fence_hooks[FENCE_N_HOOKS] = {
        { "floor_connect4",    BPF_CGROUP_INET4_CONNECT,    FENCE_FLOOR     },
        { "floor_connect6",    BPF_CGROUP_INET6_CONNECT,    FENCE_FLOOR     },
        { "floor_sendmsg4",    BPF_CGROUP_UDP4_SENDMSG,     FENCE_FLOOR     },
        { "floor_sendmsg6",    BPF_CGROUP_UDP6_SENDMSG,     FENCE_FLOOR     },
        { "floor_bind4",       BPF_CGROUP_INET4_BIND,       FENCE_FLOOR     },
        { "floor_bind6",       BPF_CGROUP_INET6_BIND,       FENCE_FLOOR     },
        { "floor_sock_create", BPF_CGROUP_INET_SOCK_CREATE, FENCE_FLOOR     },
        { "floor_setsockopt",  BPF_CGROUP_SETSOCKOPT,       FENCE_FLOOR     },
        { "floor_egress",      BPF_CGROUP_INET_EGRESS,      FENCE_FLOOR     },
        { "connect4",          BPF_CGROUP_INET4_CONNECT,    FENCE_FULL      },
        { "connect6",          BPF_CGROUP_INET6_CONNECT,    FENCE_FULL      },
        { "sendmsg4",          BPF_CGROUP_UDP4_SENDMSG,     FENCE_FULL      },
        { "sendmsg6",          BPF_CGROUP_UDP6_SENDMSG,     FENCE_FULL      },
        { "bind4",             BPF_CGROUP_INET4_BIND,       FENCE_FULL      },
        { "bind6",             BPF_CGROUP_INET6_BIND,       FENCE_FULL      },
        { "sock_create",       BPF_CGROUP_INET_SOCK_CREATE, FENCE_FULL      },
        { "setsockopt",        BPF_CGROUP_SETSOCKOPT,       FENCE_FULL      },
        { "egress",            BPF_CGROUP_INET_EGRESS,      FENCE_FULL      },
        { "connect_unix",      BPF_CGROUP_UNIX_CONNECT,     FENCE_FULL      },
        { "sendmsg_unix",      BPF_CGROUP_UNIX_SENDMSG,     FENCE_FULL      },
        { "uplink",            BPF_TCX_EGRESS,              FENCE_AT_UPLINK },
};

int fence_identify(int prog_fd, FenceIdentity *ret) {
        struct bpf_prog_info info = {};
        uint32_t len = sizeof(info);
        FenceIdentity id = {};
        int r;

        info.nr_map_ids = FENCE_MAX_MAPS;
        info.map_ids = (uint64_t) (uintptr_t) id.maps;
        r = bpf_prog_get_info_by_fd(prog_fd, &info, &len);
        if (r < 0)
                return r;
        if (info.nr_map_ids > FENCE_MAX_MAPS)
                return -E2BIG;

        memcpy(id.tag, info.tag, sizeof(id.tag));
        memcpy(id.name, info.name, sizeof(id.name));
        id.n_maps = info.nr_map_ids;
        *ret = id;
        return 0;
}

bool fence_identity_equal(const FenceIdentity *a, const FenceIdentity *b) {
        if (memcmp(a->tag, b->tag, sizeof(a->tag)) != 0 || a->n_maps != b->n_maps)
                return false;

        for (uint32_t i = 0; i < a->n_maps; i++) {
                uint32_t j = 0;

                while (j < b->n_maps && b->maps[j] != a->maps[i])
                        j++;
                if (j == b->n_maps)
                        return false;
        }
        return true;
}

int fence_map_is_used(int map_fd, const FenceIdentity *programs, size_t n) {
        struct bpf_map_info info = {};
        uint32_t len = sizeof(info);
        int r;

        r = bpf_map_get_info_by_fd(map_fd, &info, &len);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n; i++)
                for (uint32_t k = 0; k < programs[i].n_maps; k++)
                        if (programs[i].maps[k] == info.id)
                                return 1;
        return 0;
}

int fence_open_pinned(const FenceHook *hook) {
        _cleanup_free_ char *path = text_format(FENCE_PROGS_DIR "/%s", hook->name);

        return path ? bpf_obj_get(path) : -ENOMEM;
}

int fence_identify_pinned(const FenceHook *hook, FenceIdentity *ret) {
        _cleanup_fd_ int fd = fence_open_pinned(hook);

        return fd < 0 ? fd : fence_identify(fd, ret);
}

/* Says what failed and passes the error on. */
_printf_(3, 4) static int fail(char **ret_reason, int error, const char *format, ...) {
        va_list ap;
        int n;

        va_start(ap, format);
        n = vasprintf(ret_reason, format, ap);
        va_end(ap);
        if (n < 0) {
                *ret_reason = NULL;
                return -ENOMEM;
        }
        return error;
}

/* libbpf's own lines matter only when something fails, and then the verifier's log is long. */
__attribute__((__format__(__printf__, 2, 0))) static int print_quietly(enum libbpf_print_level level, const char *format, va_list ap) {
        return level == LIBBPF_WARN ? vfprintf(stderr, format, ap) : 0;
}

static int make_private_dirs(char **ret_reason) {
        static const char *const dirs[] = { "/sys/fs/bpf/anchorhold", FENCE_PROGS_DIR, FENCE_PRIVATE_DIR, FENCE_LINKS_DIR };

        for (size_t i = 0; i < ELEMENTSOF(dirs); i++)
                if (mkdir(dirs[i], 0700) < 0 && errno != EEXIST)
                        return fail(ret_reason, -errno, "cannot make %s", dirs[i]);

        return 0;
}

typedef struct MapPlace {
        struct bpf_map *map; /* borrowed */
        const char *dir;
        bool egressd; /* opened for egressd's group */
} MapPlace;

#define N_MAPS 13

static void map_places(struct fence *f, MapPlace ret[static N_MAPS]) {
        const MapPlace places[N_MAPS] = {
                { f->maps.grants,    FENCE_MAPS_DIR,    true },
                { f->maps.live,      FENCE_MAPS_DIR,    true },
                { f->maps.heartbeat, FENCE_MAPS_DIR,    true },
                { f->maps.config,    FENCE_PRIVATE_DIR, false },
                { f->maps.sockets,   FENCE_PRIVATE_DIR, false },
                { f->maps.verdicts,  FENCE_PRIVATE_DIR, false },
                { f->maps.run_verdicts, FENCE_PRIVATE_DIR, false },
                { f->maps.place,     FENCE_PRIVATE_DIR, false },
                { f->maps.checked,   FENCE_PRIVATE_DIR, false },
                { f->maps.runs_slice, FENCE_PRIVATE_DIR, false },
                { f->maps.host_units, FENCE_PRIVATE_DIR, false },
                { f->maps.strict,    FENCE_PRIVATE_DIR, false },
                { f->maps.host_drops, FENCE_PRIVATE_DIR, false },
        };

        memcpy(ret, places, sizeof(places));
}

static int place_maps(const MapPlace places[static N_MAPS], bool check, char **ret_reason) {
        for (size_t i = 0; i < N_MAPS; i++) {
                _cleanup_free_ char *path = NULL;
                int r;

                path = text_format("%s/%s", places[i].dir, bpf_map__name(places[i].map));
                if (!path)
                        return -ENOMEM;
                if (check && access(path, F_OK) < 0)
                        return fail(ret_reason, -errno, "map %s is not there", path);

                r = bpf_map__set_pin_path(places[i].map, path);
                if (r < 0)
                        return fail(ret_reason, r, "cannot place map %s", path);
        }
        return 0;
}

/* The host's namespace is the one that this program runs in. */
static int write_config(struct fence *f, char **ret_reason) {
        struct fence_config config = {};
        socklen_t len = sizeof(config.netns_cookie);
        _cleanup_fd_ int fd = -1;
        uint32_t zero = 0;
        int r;

        fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return fail(ret_reason, -errno, "cannot make a socket");
        if (getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &config.netns_cookie, &len) < 0)
                return fail(ret_reason, -errno, "cannot read the network namespace's cookie");

        r = bpf_map_update_elem(bpf_map__fd(f->maps.config), &zero, &config, BPF_ANY);
        if (r < 0)
                return fail(ret_reason, r, "cannot write map config");
        return 0;
}

static int open_maps_for_egressd(const MapPlace places[static N_MAPS], char **ret_reason) {
        const struct group *group;

        errno = 0;
        group = getgrnam(EGRESS_GROUP);
        if (!group)
                return fail(ret_reason, errno ? -errno : -ENOENT, "no group " EGRESS_GROUP);

        if (chown(FENCE_MAPS_DIR, 0, group->gr_gid) < 0 || chmod(FENCE_MAPS_DIR, 0750) < 0)
                return fail(ret_reason, -errno, "cannot open " FENCE_MAPS_DIR " for group " EGRESS_GROUP);

        for (size_t i = 0; i < N_MAPS; i++) {
                const char *path = bpf_map__pin_path(places[i].map);

                if (!places[i].egressd)
                        continue;
                if (chown(path, 0, group->gr_gid) < 0 || chmod(path, 0660) < 0)
                        return fail(ret_reason, -errno, "cannot open %s for group " EGRESS_GROUP, path);
        }
        return 0;
}

/* The warden's sign of life once more, where egressd's group (anchor-probe) may read it and nothing else. */
static int show_checked(struct fence *f, const char *path, char **ret_reason) {
        struct stat st;
        int r;

        (void) unlink(path);
        r = bpf_obj_pin(bpf_map__fd(f->maps.checked), path);
        if (r < 0)
                return fail(ret_reason, r, "cannot pin %s", path);
        if (stat(FENCE_MAPS_DIR, &st) < 0 || chown(path, 0, st.st_gid) < 0 || chmod(path, 0640) < 0)
                return fail(ret_reason, -errno, "cannot open %s to be read", path);
        return 0;
}

/* 1 if it had to be pinned. */
static int pin_program(struct fence *f, const FenceHook *hook, bool check, char **ret_reason) {
        _cleanup_free_ char *path = NULL, *fresh = NULL;
        FenceIdentity loaded, pinned;
        struct bpf_program *program;
        int r;

        program = bpf_object__find_program_by_name(f->obj, hook->name);
        if (!program)
                return fail(ret_reason, -ENOENT, "no program %s in the object", hook->name);

        r = fence_identify(bpf_program__fd(program), &loaded);
        if (r < 0)
                return fail(ret_reason, r, "cannot look at program %s", hook->name);

        r = fence_identify_pinned(hook, &pinned);
        if (r >= 0 && fence_identity_equal(&loaded, &pinned))
                return 0;
        if (r < 0 && r != -ENOENT)
                return fail(ret_reason, r, "cannot look at " FENCE_PROGS_DIR "/%s", hook->name);
        if (check)
                return fail(ret_reason, -ESTALE, "program %s is %s", hook->name, r < 0 ? "not pinned" : "pinned in another version");

        path = text_format(FENCE_PROGS_DIR "/%s", hook->name);
        fresh = text_format(FENCE_PROGS_DIR "/%s_new", hook->name); /* bpffs has no dots in names */
        if (!path || !fresh)
                return -ENOMEM;

        (void) unlink(fresh);
        r = bpf_obj_pin(bpf_program__fd(program), fresh);
        if (r < 0)
                return fail(ret_reason, r, "cannot pin %s", fresh);
        if (rename(fresh, path) < 0)
                return fail(ret_reason, -errno, "cannot pin %s", path);
        return 1;
}

int fence_load(bool check, unsigned *ret_pinned, char **ret_reason) {
        _cleanup_(skeleton_freep) struct fence *f = NULL;
        MapPlace places[N_MAPS];
        unsigned n_pinned = 0;
        int r;

        libbpf_set_print(print_quietly);

        if (!check) {
                r = make_private_dirs(ret_reason);
                if (r < 0)
                        return r;
        }

        f = fence__open();
        if (!f)
                return fail(ret_reason, -errno, "cannot read the programs");

        map_places(f, places);
        r = place_maps(places, check, ret_reason);
        if (r < 0)
                return r;

        r = fence__load(f);
        if (r < 0)
                return fail(ret_reason, r, "the kernel refused the programs, or a pinned map has another layout (then boot anew)");

        if (!check) {
                r = write_config(f, ret_reason);
                if (r < 0)
                        return r;
                r = open_maps_for_egressd(places, ret_reason);
                if (r < 0)
                        return r;
                r = show_checked(f, FENCE_MAPS_DIR "/checked", ret_reason);
                if (r < 0)
                        return r;
        }

        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                r = pin_program(f, &fence_hooks[i], check, ret_reason);
                if (r < 0)
                        return r;
                n_pinned += (unsigned) r;
        }

        *ret_pinned = n_pinned;
        return 0;
}

int fence_forget_slice(char **ret_reason) {
        _cleanup_fd_ int fd = bpf_obj_get(FENCE_PRIVATE_DIR "/place");
        struct fence_place nowhere = {};
        uint32_t zero = 0;
        int r;

        r = fd < 0 ? fd : bpf_map_update_elem(fd, &zero, &nowhere, BPF_ANY);
        return r < 0 ? fail(ret_reason, r, "cannot write map place") : 0;
}
