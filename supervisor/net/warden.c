/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchor-warden: is the whole fence in force, now and two seconds from now?
 *
 * The programs are pinned by anchor-bpf and attached by systemd and anchor-fence, and root can take any of it away. So every two seconds this
 * asks the kernel: are the pins those of the start, are they in force on anchorhold-runs.slice if that is there, and at each of
 * the host's devices? Only if all of it is so, it writes the time into the map `checked`. The programs let nothing pass when that is
 * ten seconds old, each of them: whichever is taken away, the others shut. Nothing is put back here: that somebody
 * took it away is worth a look, and restarting anchor-bpf.service puts it back.
 *
 * What is new is no loss: a device that appears gets its program, a slice that was made anew the full layer. If such a slice has processes and no floor,
 * that is a loss after two seconds; below a full layer nobody needs the floor (fence-inspect.c says why).
 *
 * It also keeps the list of strict mode (strict.c).
 *
 * WARDEN_STATE says how it is, for anchord and anchorctl doctor; `ok` changes after the second failure in a row, since a slice may be
 * found half-made. When this process dies or hangs, `checked` gets old: no egress until it is back.
 *
 * It takes nothing from anybody: what it reads is the kernel's, and host.json, which is the administrator's.
 */

#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include "fence-api.bpf.h"
#include "net/bpf-load.h"
#include "net/fence-inspect.h"
#include "net/strict.h"
#include "net/uplink.h"
#include "net/warden.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define TICK_USEC (2 * 1000 * 1000ULL)
#define FLOOR_TICK_USEC (100 * 1000ULL) /* while the floor is missed */
#define FAILURES_TO_SAY_SO 2

struct Warden {
        sd_event_source *timer, *link; /* ref */
        int link_fd;                   /* owned */
        int checked_fd;                /* owned */
        Uplinks *uplinks;              /* owned */
        Strict *strict;                /* owned */
        FenceIdentity expected[FENCE_N_HOOKS];
        unsigned n_failures;
        uint64_t floor_missing_usec; /* since when, CLOCK_BOOTTIME; 0: it is not missed */
        bool lost;
        char *said; /* owned; what is in WARDEN_STATE */
};

static int check_pins(Warden *w, char **ret_reason) {
        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                FenceIdentity pinned;
                int r;

                r = fence_identify_pinned(&fence_hooks[i], &pinned);
                if (r < 0 || !fence_identity_equal(&pinned, &w->expected[i])) {
                        *ret_reason = text_format("%s " FENCE_PROGS_DIR "/%s", r < 0 ? "no pinned program" : "another program is pinned at",
                                                  fence_hooks[i].name);
                        return r < 0 ? r : -ENOTRECOVERABLE;
                }
        }
        return 0;
}

/* The maps that egressd and the probes open: gone, or others than the programs ask, whatever egressd grants is for nobody. */
static int check_maps(const Warden *w, char **ret_reason) {
        static const char *const names[] = { "grants", "live", "heartbeat", "checked" };

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                _cleanup_free_ char *path = text_format(FENCE_MAPS_DIR "/%s", names[i]);
                _cleanup_fd_ int fd = path ? bpf_obj_get(path) : -ENOMEM;
                int r = fd < 0 ? fd : fence_map_is_used(fd, w->expected, FENCE_N_HOOKS);

                if (r <= 0) {
                        *ret_reason = text_format("%s %s", r < 0 ? "no pinned map" : "another map is pinned at", path ?: names[i]);
                        return r < 0 ? r : -ENOTRECOVERABLE;
                }
        }
        return 0;
}

/* A missing floor is an error only when that has lasted. */
static int check_slice(Warden *w, char **ret_reason) {
        uint64_t now = time_boottime();
        int r;

        r = fence_watch_slice(ret_reason);
        if (r != FENCE_E_NO_FLOOR) {
                w->floor_missing_usec = 0;
                return r;
        }

        if (w->floor_missing_usec == 0)
                w->floor_missing_usec = now;
        if (now - w->floor_missing_usec >= FENCE_FLOOR_GRACE_USEC)
                return -ENOTRECOVERABLE;
        free(TAKE_PTR(*ret_reason));
        return 0;
}

static int check_all(Warden *w, char **ret_reason) {
        size_t n_attached;
        int r;

        r = uplinks_attach(w->uplinks, &n_attached, ret_reason);
        if (r < 0)
                return r;
        if (n_attached > 0)
                log_info("program uplink attached to %zu devices", n_attached);

        r = check_pins(w, ret_reason);
        if (r < 0)
                return r;
        r = check_maps(w, ret_reason);
        if (r < 0)
                return r;
        r = check_slice(w, ret_reason);
        if (r < 0)
                return r;
        r = strict_settle(w->strict, ret_reason);
        if (r < 0)
                return r;
        return uplink_check(ret_reason);
}

static int write_checked(Warden *w) {
        uint64_t now = time_boottime() * 1000;
        uint32_t zero = 0;

        return bpf_map_update_elem(w->checked_fd, &zero, &now, BPF_ANY);
}

/* `reason` NULL: all is well. */
static void write_state(Warden *w, const char *reason) {
        _cleanup_json_ json_t *state = json_pack("{s:b, s:s, s:o*}", "ok", reason == NULL, "reason", reason ?: "", "strict", strict_to_json(w->strict));
        _cleanup_free_ char *text = state ? json_dumps(state, JSON_COMPACT) : NULL;
        int r;

        if (text && w->said && strcmp(text, w->said) == 0)
                return;
        r = text ? io_write_file_atomic(AT_FDCWD, WARDEN_STATE, text, strlen(text), 0644) : -ENOMEM;
        if (r < 0) {
                log_error_errno(r, "cannot write %s", WARDEN_STATE);
                return;
        }
        free(w->said);
        w->said = TAKE_PTR(text);
        (void) sd_notifyf(0, "STATUS=%s", reason ?: "the fence is in force");
}

static void say_lost(Warden *w, const char *reason, int error) {
        if (++w->n_failures < FAILURES_TO_SAY_SO)
                return;
        if (!w->lost)
                log_error_errno(error, "the fence is not in force: %s. No run has egress until anchor-bpf.service is restarted", reason);
        w->lost = true;
        write_state(w, reason);
}

static void say_in_force(Warden *w) {
        w->n_failures = 0;
        if (w->lost)
                log_notice("the fence is in force again");
        w->lost = false;
        write_state(w, NULL);
}

static int look(Warden *w, bool first) {
        _cleanup_free_ char *reason = NULL;
        int r;

        r = check_all(w, &reason);
        if (r >= 0)
                r = write_checked(w);
        if (r < 0)
                say_lost(w, reason ?: "cannot write map checked", r);
        else
                say_in_force(w);

        if (r < 0 && first) {
                write_state(w, reason ?: "cannot write map checked"); /* or what an earlier life said would stand there */
                return log_error_errno(r, "the fence is not in force: %s", reason ?: "cannot write map checked");
        }
        return 0;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Warden *w = userdata;
        int r;

        (void) look(w, false);

        r = sd_event_source_set_time_relative(s, w->floor_missing_usec > 0 && !w->lost ? FLOOR_TICK_USEC : TICK_USEC);
        if (r >= 0)
                r = sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        return r < 0 ? sd_event_exit(sd_event_source_get_event(s), r) : 0;
}

/* What changed does not matter, nor if the kernel dropped some of it: the devices are listed anew. */
static int on_link(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        char buffer[16384];
        Warden *w = userdata;
        _cleanup_free_ char *reason = NULL;
        size_t n_attached;
        int r;

        while (recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) >= 0 || errno == ENOBUFS)
                ;
        r = uplinks_attach(w->uplinks, &n_attached, &reason);
        if (r < 0)
                log_error_errno(r, "%s", reason ?: "cannot attach program uplink");
        else if (n_attached > 0)
                log_info("program uplink attached to %zu devices", n_attached);
        return 0;
}

static int watch_links(Warden *w, sd_event *event) {
        struct sockaddr_nl groups = { .nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK };

        w->link_fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
        if (w->link_fd < 0)
                return -errno;
        if (bind(w->link_fd, (struct sockaddr *) &groups, sizeof(groups)) < 0)
                return -errno;
        return sd_event_add_io(event, &w->link, w->link_fd, EPOLLIN, on_link, w);
}

/* What is pinned must be what this build brings. */
static int learn_pins(Warden *w) {
        _cleanup_free_ char *reason = NULL;
        unsigned n;
        int r;

        r = fence_load(true, &n, &reason);
        if (r < 0)
                return log_error_errno(r, "fence: %s", reason ?: "cannot check");

        for (size_t i = 0; i < FENCE_N_HOOKS; i++) {
                r = fence_identify_pinned(&fence_hooks[i], &w->expected[i]);
                if (r < 0)
                        return log_error_errno(r, "no pinned program %s", fence_hooks[i].name);
        }
        return 0;
}

int warden_new(Warden **ret, sd_event *event) {
        _cleanup_(warden_freep) Warden *w = NULL;
        int r;

        w = malloc(sizeof(*w));
        if (!w)
                return log_error_errno(-ENOMEM, "cannot start");
        *w = (Warden) { .link_fd = -1, .checked_fd = -1 };

        r = learn_pins(w);
        if (r < 0)
                return r;

        w->checked_fd = bpf_obj_get(FENCE_PRIVATE_DIR "/checked");
        if (w->checked_fd < 0)
                return log_error_errno(w->checked_fd, "cannot open map checked");

        r = uplinks_new(&w->uplinks);
        if (r >= 0)
                r = strict_new(&w->strict, event);
        if (r >= 0)
                r = watch_links(w, event); /* before the first look, so that no device is missed */
        if (r >= 0)
                r = sd_event_add_time_relative(event, &w->timer, CLOCK_BOOTTIME, TICK_USEC, TICK_USEC / 10, on_timer, w);
        if (r < 0)
                return log_error_errno(r, "cannot start");

        r = look(w, true);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(w);
        return 0;
}

Warden *warden_free(Warden *w) {
        if (!w)
                return NULL;

        sd_event_source_disable_unref(w->timer);
        sd_event_source_disable_unref(w->link);
        uplinks_free(w->uplinks);
        strict_free(w->strict);
        free(w->said);
        (void) fd_close(w->link_fd);
        (void) fd_close(w->checked_fd);
        free(w);
        return NULL;
}
