/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Getting rid of a run's units. Stopping the run's slice stops every service in it, and with anchor-net@ the
 * sockets, which lie elsewhere. Then systemd is asked what is left, after every
 * change and five times a second, until nothing of the run is active, and what failed is reset, so that nothing of the run stays
 * loaded. What resists is killed: after ten seconds, or at once when an operator wants the run dead. Those that have something to do at the
 * end, the proxy and inject (what went over the last connections, what model calls used), the log of denials and the namespace's removal, get three and four seconds longer, which is more
 * than they take (audit/notes.h).
 */

#include <signal.h>
#include <string.h>

#include "api/flow-internal.h"
#include "util/log.h"

enum {
        LOOK_USEC = 200 * 1000,
        KILL_AFTER_USEC = 10 * 1000 * 1000,
};

static const struct {
        const char *kind;
        uint64_t later_usec; /* than the others */
} services[] = {
        { "run" },    { "vm" },    { "proxy", 3 * 1000 * 1000 }, { "inject", 3 * 1000 * 1000 }, { "import" },
        { "check" },  { "probe" }, { "netlog", 3 * 1000 * 1000 }, { "net", 4 * 1000 * 1000 },
};

static void look(Flow *f);

/* Each once. */
static void kill_due(Flow *f) {
        uint64_t now = time_monotonic();
        char unit[64];

        for (size_t i = 0; f->kill_since > 0 && i < ELEMENTSOF(services); i++) {
                if ((f->killed & 1U << i) || now - f->kill_since < services[i].later_usec)
                        continue;
                f->killed |= 1U << i;
                (void) snprintf(unit, sizeof(unit), "anchor-%s@%s.service", services[i].kind, f->run);
                (void) units_kill(f->manager->units, unit, SIGKILL);
        }
}

void flow_cleanup_kill(Flow *f) {
        if (f->kill_since == 0)
                f->kill_since = time_monotonic();
        kill_due(f);
}

/* One call, one transaction of systemd's: what is in the slice goes with it, and the sockets with anchor-net@, which they require. It cannot be
 * reversed, so that nothing of these starts anew meanwhile. */
static void stop_all(Flow *f) {
        char unit[64];

        (void) snprintf(unit, sizeof(unit), "anchorhold-runs-%s.slice", f->run);
        (void) units_stop(f->manager->units, unit);
}

static void on_listed(int r, const UnitState *units, size_t n, void *userdata) {
        Flow *f = userdata;
        size_t left = 0;

        f->listing = false;
        if (f->state != FLOW_CLEANING)
                return;

        for (size_t i = 0; r >= 0 && i < n; i++) {
                if (strcmp(units[i].active, "failed") == 0)
                        (void) units_reset_failed(f->manager->units, units[i].name);
                else if (strcmp(units[i].active, "inactive") != 0) {
                        left++;
                        log_debug("run %s: %s is still %s (%s)", f->run, units[i].name, units[i].active, units[i].sub);
                        /* started behind our back while the stops were queued (a socket that was just connected to) */
                        if (strcmp(units[i].active, "active") == 0 && !units[i].job)
                                (void) units_stop(f->manager->units, units[i].name);
                } else if (units[i].job)
                        left++; /* a stop that came too late is still queued, and what starts next in that slice would be refused */
        }

        if (r >= 0 && left == 0) {
                flow_on_clean(f);
                return;
        }
        if (time_monotonic() - f->cleanup_since > KILL_AFTER_USEC)
                flow_cleanup_kill(f);
        kill_due(f);
        if (f->look_again) {
                f->look_again = false;
                look(f);
        }
}

static void look(Flow *f) {
        char units[48], slice[48];
        const char *const patterns[] = { units, slice, NULL };

        if (f->listing) {
                f->look_again = true;
                return;
        }

        (void) snprintf(units, sizeof(units), "anchor-*@%s.*", f->run);
        (void) snprintf(slice, sizeof(slice), "anchorhold-runs-%s.slice", f->run);
        if (units_list(f->manager->units, patterns, on_listed, f) >= 0)
                f->listing = true;
}

void flow_cleanup_look(Flow *f) {
        look(f);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Flow *f = userdata;

        look(f);
        if (sd_event_source_set_time_relative(source, LOOK_USEC) < 0 || sd_event_source_set_enabled(source, SD_EVENT_ONESHOT) < 0)
                flow_on_clean(f);
        return 0;
}

void flow_cleanup_start(Flow *f) {
        f->cleanup_since = time_monotonic();
        f->listing = f->look_again = false;
        f->kill_since = 0;
        f->killed = 0;
        units_forget(f->manager->units, f);

        if (f->stop)
                flow_cleanup_kill(f);
        stop_all(f);

        f->cleanup_timer = sd_event_source_disable_unref(f->cleanup_timer);
        if (sd_event_add_time_relative(f->manager->event, &f->cleanup_timer, CLOCK_MONOTONIC, LOOK_USEC / 4, 0, on_timer, f) < 0)
                flow_on_clean(f);
}
