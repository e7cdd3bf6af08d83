/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Strict mode: which units of the host may send anything?
 *
 * `strict` of host.json lists them; without it all may, which is the default. The program at the devices (fence-uplink.bpf.c) looks for
 * the cgroup of a packet's socket, or one above, in the map `host_units`. Names become cgroup ids here, at each look of the warden and
 * whenever something is made in a slice (inotify), so that a unit that is started anew is known before it sends. Ids are never used twice.
 * What Anchorhold itself needs is listed always: egressd asks the resolvers.
 *
 * host.json is an administrator's and may be half-written: what cannot be read as a whole is never taken for "off". Then the last
 * that was understood stays in force; after a restart of the warden that is what the maps say, without the names, so that
 * a unit which is started anew stays shut. If there is nothing yet that was understood, the fence is not in force (and no run begins, which
 * is whom strict mode is about; the host itself stays reachable for whoever mends the file).
 *
 * When the warden dies the maps stay as they are. The map `strict` is switched on after `host_units` is filled.
 */

#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include "fence-api.bpf.h"
#include "net/host-units.h"
#include "net/strict.h"
#include "policy/policy.h"
#include "util/cgroup.h"
#include "util/log.h"
#include "util/text.h"

#define MAX_DROPPED 16

static const char *const own_units[] = { "anchor-egressd.service" };

struct Strict {
        int strict_fd, units_fd, drops_fd; /* owned */
        int inotify_fd;                    /* owned */
        sd_event_source *inotify;          /* ref */
        json_t *patterns;                  /* ref; what is listed, our own included; NULL: not known, or off */
        json_t *dropped;                   /* ref; names of units whose packets were dropped */
        char *problem;                     /* owned; why host.json cannot be used, NULL if it can */
        uint32_t is;                       /* as the map `strict` */
        size_t n_present;
};

/* ---- the maps ---- */

static int read_state(Strict *s) {
        struct fence_strict state = {};
        uint32_t zero = 0;
        int r;

        r = bpf_map_lookup_elem(s->strict_fd, &zero, &state);
        if (r >= 0)
                s->is = state.is;
        return r;
}

static int write_state(Strict *s, uint64_t root_id, uint32_t is) {
        struct fence_strict state = { .root_id = root_id, .is = is };
        uint32_t zero = 0;
        int r;

        r = bpf_map_update_elem(s->strict_fd, &zero, &state, BPF_ANY);
        if (r < 0)
                return r;

        if (s->is != is)
                log_notice("strict mode is %s", is == FENCE_STRICT_ON ? "on: of the host's units only those listed in host.json may send" : "off");
        s->is = is;
        return 0;
}

/* Empties a map whose key is a cgroup id of all that `keep` does not have as listed (NULL: of everything). */
static int drop_others(int map_fd, const HostUnits *keep) {
        uint64_t key, next;
        bool more;
        int r;

        more = bpf_map_get_next_key(map_fd, NULL, &next) >= 0;
        for (size_t i = 0; more && i < FENCE_MAX_HOST_UNITS; i++) {
                const HostUnit *unit;

                key = next;
                more = bpf_map_get_next_key(map_fd, &key, &next) >= 0;
                unit = keep ? host_units_by_id(keep, key) : NULL;
                if (unit && unit->listed)
                        continue;
                r = bpf_map_delete_elem(map_fd, &key);
                if (r < 0 && r != -ENOENT)
                        return r;
        }
        return 0;
}

static int fill(Strict *s, const HostUnits *units) {
        uint32_t one = 1;
        int r;

        s->n_present = 0;
        for (size_t i = 0; i < units->n; i++) {
                if (!units->list[i].listed)
                        continue;
                r = bpf_map_update_elem(s->units_fd, &units->list[i].cgroup_id, &one, BPF_ANY);
                if (r < 0)
                        return r;
                s->n_present++;
        }
        return drop_others(s->units_fd, units);
}

/* ---- whose packets were dropped ---- */

static bool is_known(const json_t *names, const char *name) {
        const json_t *value;
        size_t i;

        json_array_foreach(names, i, value)
                if (strcmp(json_string_value(value), name) == 0)
                        return true;
        return false;
}

/* Each is said once, for whoever forgot to list it. */
static void note_dropped(Strict *s, const HostUnits *units) {
        uint64_t id, key = 0;

        for (bool more = bpf_map_get_next_key(s->drops_fd, NULL, &id) >= 0; more && json_array_size(s->dropped) < MAX_DROPPED;
             key = id, more = bpf_map_get_next_key(s->drops_fd, &key, &id) >= 0) {
                const HostUnit *unit = host_units_by_id(units, id);
                char name[256];

                if (unit)
                        (void) snprintf(name, sizeof(name), "%s", unit->name);
                else
                        (void) snprintf(name, sizeof(name), "cgroup %llu", (unsigned long long) id);
                if (is_known(s->dropped, name) || json_array_append_new(s->dropped, json_string(name)) < 0)
                        continue;
                log_warning("strict mode: packets of %s are dropped, since host.json does not list it", name);
        }
}

/* ---- settling ---- */

static void on_slice(int slice_fd, void *userdata) {
        _cleanup_free_ char *path = text_format("/proc/self/fd/%i", slice_fd);
        Strict *s = userdata;

        /* without it the next look of the warden finds the same, two seconds later */
        if (path && inotify_add_watch(s->inotify_fd, path, IN_CREATE | IN_ONLYDIR) < 0)
                log_debug("cannot watch a slice: %s", strerror(errno));
}

static int find_units(Strict *s, HostUnits *ret, uint64_t *ret_root_id) {
        _cleanup_fd_ int root_fd = -1;
        struct stat st;
        int r;

        root_fd = r = cgroup_open("");
        if (r < 0)
                return r;
        if (fstat(root_fd, &st) < 0)
                return -errno;

        *ret_root_id = st.st_ino;
        return host_units_find(ret, root_fd, s->patterns, on_slice, s);
}

static int switch_off(Strict *s) {
        if (s->is == FENCE_STRICT_OFF)
                return 0;
        s->n_present = 0;
        return write_state(s, 0, FENCE_STRICT_OFF);
}

static int apply(Strict *s) {
        _cleanup_(host_units_done) HostUnits units = {};
        uint64_t root_id = 0;
        int r;

        r = find_units(s, &units, &root_id);
        if (r >= 0)
                r = fill(s, &units);
        if (r >= 0 && s->is != FENCE_STRICT_ON) {
                (void) json_array_clear(s->dropped);
                r = drop_others(s->drops_fd, NULL);
        }
        if (r >= 0)
                r = write_state(s, root_id, FENCE_STRICT_ON);
        if (r >= 0)
                note_dropped(s, &units);
        return r;
}

/* What host.json lists, and our own. */
static int take_patterns(Strict *s, const json_t *listed) {
        _cleanup_json_ json_t *patterns = json_array();

        for (size_t i = 0; i < ELEMENTSOF(own_units); i++)
                if (json_array_append_new(patterns, json_string(own_units[i])) < 0)
                        return -ENOMEM;
        if (json_array_extend(patterns, (json_t *) listed) < 0)
                return -ENOMEM;

        json_decref(s->patterns);
        s->patterns = TAKE_PTR(patterns);
        return 0;
}

static void say_problem(Strict *s, char *problem /* taken over */) {
        if (problem && (!s->problem || strcmp(s->problem, problem) != 0))
                log_error("strict mode stays %s, whatever host.json says now: %s",
                          s->is == FENCE_STRICT_ON ? "on" : s->is == FENCE_STRICT_OFF ? "off" : "unknown", problem);
        else if (!problem && s->problem)
                log_notice("host.json can be used again");
        free(s->problem);
        s->problem = problem;
}

int strict_settle(Strict *s, char **ret_reason) {
        _cleanup_(policy_freep) Policy *p = NULL;
        char *problem = NULL;
        int r;

        r = policy_load_host(&p, "", &problem);
        if (r < 0 && !problem)
                problem = text_format("cannot read it: %s", strerror(-r));
        say_problem(s, problem);

        if (r < 0 && s->is == FENCE_STRICT_UNKNOWN) {
                *ret_reason = text_format("it is not known whether this host is in strict mode: %s", s->problem ?: "no memory");
                return r;
        }
        if (r >= 0 && !policy_host(p)->strict_units) {
                json_decref(s->patterns);
                s->patterns = NULL;
                r = switch_off(s);
        } else {
                r = r < 0 ? 0 : take_patterns(s, policy_host(p)->strict_units);
                if (r >= 0 && s->patterns)
                        r = apply(s);
        }
        if (r < 0)
                *ret_reason = text_format("cannot put strict mode into the fence's maps: %s", strerror(-r));
        return r;
}

static int on_made(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        char buffer[4096] __attribute__((aligned(8)));
        Strict *s = userdata;
        int r;

        /* what it was does not matter: the tree is looked at anew */
        while (read(fd, buffer, sizeof(buffer)) > 0)
                ;
        r = s->patterns ? apply(s) : 0;
        if (r < 0)
                log_warning_errno(r, "cannot look for new units, until the next time");
        return 0;
}

/* ---- life ---- */

static int open_map(int *ret, const char *name) {
        _cleanup_free_ char *path = text_format(FENCE_PRIVATE_DIR "/%s", name);

        *ret = path ? bpf_obj_get(path) : -ENOMEM;
        return *ret < 0 ? log_error_errno(*ret, "cannot open map %s", name) : 0;
}

int strict_new(Strict **ret, sd_event *event) {
        _cleanup_(strict_freep) Strict *s = NULL;
        int r;

        s = malloc(sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (Strict) { .strict_fd = -1, .units_fd = -1, .drops_fd = -1, .inotify_fd = -1 };

        s->dropped = json_array();
        if (!s->dropped)
                return -ENOMEM;
        r = open_map(&s->strict_fd, "strict");
        if (r >= 0)
                r = open_map(&s->units_fd, "host_units");
        if (r >= 0)
                r = open_map(&s->drops_fd, "host_drops");
        if (r >= 0)
                r = read_state(s);
        if (r < 0)
                return r;

        s->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        if (s->inotify_fd < 0)
                return -errno;
        r = sd_event_add_io(event, &s->inotify, s->inotify_fd, EPOLLIN, on_made, s);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

Strict *strict_free(Strict *s) {
        if (!s)
                return NULL;

        sd_event_source_disable_unref(s->inotify);
        (void) fd_close(s->inotify_fd);
        (void) fd_close(s->drops_fd);
        (void) fd_close(s->units_fd);
        (void) fd_close(s->strict_fd);
        json_decref(s->patterns);
        json_decref(s->dropped);
        free(s->problem);
        free(s);
        return NULL;
}

json_t *strict_to_json(const Strict *s) {
        return json_pack("{s:b, s:s, s:o, s:i, s:O}", "on", s->is == FENCE_STRICT_ON, "problem", s->problem ?: "", "units",
                         s->patterns ? json_incref(s->patterns) : json_array(), "present", (int) s->n_present, "dropped", s->dropped);
}
