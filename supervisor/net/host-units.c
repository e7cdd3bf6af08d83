/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "net/host-units.h"
#include "util/cleanup.h"
#include "util/text.h"

#define RUNS_SLICE "anchorhold-runs.slice"
#define MAX_UNITS 8192
#define MAX_DEPTH 16

typedef struct Walk {
        HostUnits *units;
        size_t room;
        const json_t *patterns;
        HostSliceSeen seen;
        void *userdata;
} Walk;

void host_units_done(HostUnits *u) {
        free(u->list);
        *u = (HostUnits) {};
}

bool host_unit_matches(const char *unit, const char *pattern) {
        const char *star = strchr(pattern, '*');
        size_t head, tail, n = strlen(unit);

        if (!star)
                return strcmp(unit, pattern) == 0;

        head = (size_t) (star - pattern);
        tail = strlen(star + 1);
        return n > head + tail && memcmp(unit, pattern, head) == 0 && strcmp(unit + n - tail, star + 1) == 0;
}

static bool is_listed(const char *unit, const json_t *patterns) {
        const json_t *pattern;
        size_t i;

        json_array_foreach(patterns, i, pattern)
                if (host_unit_matches(unit, json_string_value(pattern) ?: ""))
                        return true;
        return false;
}

static bool is_slice(const char *name) {
        size_t n = strlen(name), len = strlen(".slice");

        return n > len && strcmp(name + n - len, ".slice") == 0;
}

static int add_unit(Walk *w, const char *name, uint64_t id) {
        HostUnits *u = w->units;
        HostUnit *list;

        if (u->n == MAX_UNITS)
                return -E2BIG;
        if (u->n == w->room) {
                w->room = w->room ? 2 * w->room : 64;
                list = reallocarray(u->list, w->room, sizeof(*list));
                if (!list)
                        return -ENOMEM;
                u->list = list;
        }

        u->list[u->n] = (HostUnit) { .cgroup_id = id, .listed = is_listed(name, w->patterns) };
        text_fit(name, u->list[u->n].name, sizeof(u->list[u->n].name));
        u->n++;
        return 0;
}

static int look_into(Walk *w, int fd, unsigned depth);

/* A cgroup that went meanwhile is none. */
static int on_entry(Walk *w, int dir_fd, const char *entry, unsigned depth) {
        const char *name = *entry == '_' ? entry + 1 : entry; /* systemd's escape of a name that the kernel could have taken for its own */
        _cleanup_fd_ int fd = -1;
        struct stat st;
        int r;

        if (!strchr(name, '.') || fstatat(dir_fd, entry, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
                return 0;
        r = add_unit(w, name, st.st_ino);
        if (r < 0 || !is_slice(name) || strcmp(name, RUNS_SLICE) == 0)
                return r;

        fd = openat(dir_fd, entry, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return errno == ENOENT ? 0 : -errno;
        r = look_into(w, fd, depth + 1);
        return r == -ENODEV ? 0 : r;
}

static int look_into(Walk *w, int slice_fd, unsigned depth) {
        _cleanup_dir_ DIR *dir = NULL;
        struct dirent *de;
        int fd, r;

        if (depth > MAX_DEPTH)
                return -E2BIG;
        if (w->seen) /* before it is read, so that nothing comes in between */
                w->seen(slice_fd, w->userdata);

        fd = openat(slice_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        dir = fdopendir(fd);
        if (!dir) {
                (void) fd_close(fd);
                return -errno;
        }

        while ((errno = 0, de = readdir(dir))) {
                if (de->d_type != DT_DIR || de->d_name[0] == '.')
                        continue;
                r = on_entry(w, dirfd(dir), de->d_name, depth);
                if (r < 0)
                        return r;
        }
        return -errno;
}

int host_units_find(HostUnits *ret, int root_fd, const json_t *patterns, HostSliceSeen seen, void *userdata) {
        _cleanup_(host_units_done) HostUnits units = {};
        Walk w = { .units = &units, .patterns = patterns, .seen = seen, .userdata = userdata };
        int r;

        r = look_into(&w, root_fd, 0);
        if (r < 0)
                return r;

        *ret = units;
        units = (HostUnits) {};
        return 0;
}

const HostUnit *host_units_by_id(const HostUnits *u, uint64_t cgroup_id) {
        for (size_t i = 0; i < u->n; i++)
                if (u->list[i].cgroup_id == cgroup_id)
                        return &u->list[i];
        return NULL;
}
