/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Who is next, and what earlier lives left behind.
 *
 * An item is leased only if anchord is settled, every enforcer answers, auditd has acknowledged
 * everything, the accelerator is known, and there is room: for a run, and on the disk (space.c). The queue is looked at when something changed, never polled, except that an
 * item that waits for its time arms the timer.
 *
 * At the start the unit list and the ledger are compared: a lease of this boot is taken up again
 * (flow_resume()), a unit of a run that no flow knows is stopped, a run without units is released, a
 * folder without an item removed. A sweep does the same every ten seconds for what could not be done at once.
 */

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "api/manager-internal.h"
#include "ledger/ledger-budget.h"
#include "util/json.h"
#include "util/log.h"

enum {
        TICK_USEC = 2 * 1000 * 1000,
        SWEEP_TICKS = 5,
        ACCEL_WAIT_USEC = 90 * 1000 * 1000,
        ACCEL_LOOK_USEC = 250 * 1000,
};

/* ---- the queue ---- */

static int on_schedule(sd_event_source *source, uint64_t usec, void *userdata);

static void arm(Manager *m, uint64_t delay_usec) {
        int r;

        if (m->schedule) {
                r = sd_event_source_set_time_relative(m->schedule, delay_usec);
                if (r >= 0)
                        r = sd_event_source_set_enabled(m->schedule, SD_EVENT_ONESHOT);
        } else
                r = sd_event_add_time_relative(m->event, &m->schedule, CLOCK_MONOTONIC, delay_usec, 1, on_schedule, m);
        if (r < 0)
                (void) manager_fatal(m, r, "arm the scheduler");
}

void scheduler_kick(Manager *m) {
        if (m->settled)
                arm(m, 0);
}

/* Is the accelerator known, or was it waited for long enough? */
static bool accel_settled(Manager *m) {
        const char *configured = policy_host(m->policy)->accel;
        Accel accel;

        (void) accel_read(configured, &accel);
        if (accel.known)
                return true;
        if (m->accel_since == 0)
                m->accel_since = time_monotonic();
        return time_monotonic() - m->accel_since > ACCEL_WAIT_USEC;
}

/* `now` is the time at which nothing could be leased. With a later one, an item that came due in between would be taken for one that
 * was leased, and nobody would come back to it. */
static void arm_for_next(Manager *m, uint64_t now) {
        uint64_t next;

        if (ledger_next_time(m->ledger, &next) == 0)
                arm(m, next > now ? next - now : 0);
}

/* Leases one item: true if there may be another. */
static bool lease_one(Manager *m) {
        _cleanup_item_ LedgerItem item = {};
        uint64_t now = time_realtime();
        char run[ID_LENGTH + 1];
        int r;

        r = text_make_id('r', run);
        if (r >= 0)
                r = ledger_claim_next(m->ledger, run, m->boot_id, time_boottime() + LEASE_USEC, now, &item);
        if (r < 0) {
                (void) manager_fatal(m, r, "lease an item");
                return false;
        }
        if (r == LEDGER_E_NO_WORK)
                arm_for_next(m, now);
        if (r != 0)
                return false;

        log_info("%s: leased, attempt %" PRIi64 ", run %s", item.id, item.attempt, run);
        manager_tell(m, item.id);
        flow_begin(m, &item);
        return true;
}

static int on_schedule(sd_event_source *source, uint64_t usec, void *userdata) {
        Manager *m = userdata;

        if (!m->settled || !enforcers_ok(m, NULL))
                return 0; /* kicked again when they are back */
        if (policy_host_reason(m->policy))
                return 0; /* nobody knows what this host allows; kicked again when it was read anew */
        if (!accel_settled(m)) {
                arm(m, ACCEL_LOOK_USEC);
                return 0;
        }

        while (m->n_flows < policy_host(m->policy)->max_runs)
                if (!space_admits(m) || !lease_one(m))
                        break;
        return 0;
}

/* ---- sweeping ---- */

typedef struct Release {
        Manager *manager; /* borrowed */
        char run[ID_LENGTH + 1];
        unsigned pending;
        bool failed;
} Release;

static void on_released(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Release *release = userdata;
        int r;

        release->failed |= error != NULL;
        if (!error)
                flow_note_policies(release->manager, release->run, json_object_get(params, "digests")); /* secretd has none */
        if (--release->pending > 0)
                return;

        if (!release->failed) {
                r = ledger_run_release(release->manager->ledger, release->run);
                if (r < 0)
                        (void) manager_fatal(release->manager, r, "record a released run");
        }
        free(release);
}

static int release_run(const LedgerRun *run, void *userdata) {
        Manager *m = userdata;
        Release *release;

        if (flow_find_run(m, run->id))
                return 0;

        release = calloc(1, sizeof(*release));
        if (!release)
                return -ENOMEM;
        *release = (Release) { .manager = m, .pending = 1 };
        memcpy(release->run, run->id, sizeof(release->run));

        if (ipc_client_call_async(m->egress, "io.anchorhold.Egress.Release", json_pack("{s:s}", "run", run->id), NULL, 0, false,
                                  5 * USEC_PER_SEC, on_released, release) < 0) {
                free(release);
                return 0; /* the next sweep */
        }
        release->pending++;
        if (ipc_client_call_async(m->secret, "io.anchorhold.Secret.Release", json_pack("{s:s}", "run", run->id), NULL, 0, false,
                                  5 * USEC_PER_SEC, on_released, release) < 0) {
                release->pending--;
                release->failed = true;
        }
        return 0;
}

static const char *const run_patterns[] = { "anchor-*@*.*", "anchorhold-runs-*.slice", NULL };

static bool run_of_unit(const char *unit, char ret[static ID_LENGTH + 1]) {
        static const char prefix[] = "anchorhold-runs-", suffix[] = ".slice";
        size_t length = strlen(unit);

        if (unit_name_run(unit, NULL, ret))
                return true;
        if (length != sizeof(prefix) - 1 + ID_LENGTH + sizeof(suffix) - 1 || strncmp(unit, prefix, sizeof(prefix) - 1) != 0)
                return false;

        memcpy(ret, unit + sizeof(prefix) - 1, ID_LENGTH);
        ret[ID_LENGTH] = 0;
        return text_is_id('r', ret);
}

static void stop_strays(Manager *m, const UnitState *units, size_t n) {
        char run[ID_LENGTH + 1];

        for (size_t i = 0; i < n; i++) {
                if (!run_of_unit(units[i].name, run) || flow_find_run(m, run) || revocation_has(m, run))
                        continue;
                if (strcmp(units[i].active, "failed") == 0)
                        (void) units_reset_failed(m->units, units[i].name);
                else if (strcmp(units[i].active, "active") == 0 || strcmp(units[i].active, "activating") == 0) {
                        log_notice("%s belongs to no run that is known, stopping it", units[i].name);
                        (void) units_stop(m->units, units[i].name);
                }
        }
}

static void on_sweep_listed(int r, const UnitState *units, size_t n, void *userdata) {
        if (r >= 0)
                stop_strays(userdata, units, n);
}

/* A lease that nobody extended: a flow ended without settling its item, which is a bug, but the item must not hang. */
static int settle_expired(const LedgerItem *item, void *userdata) {
        Manager *m = userdata;
        LedgerChange c = { .item = item->id, .revision = item->revision, .token = item->token, .actor = "anchord", .reason = "lease expired" };

        if (flow_find_item(m, item->id))
                return 0;
        c.to = item->state == ITEM_LEASED ? ITEM_QUEUED : ITEM_FAILED;
        if (manager_transition(m, &c) == 0 && c.to == ITEM_FAILED)
                manager_after_failure(m, item->id);
        return 0;
}

static void sweep(Manager *m) {
        int r = 0;

        for (Flow *f = m->flows; r >= 0 && f; f = flow_next_of(f))
                r = ledger_lease_extend(m->ledger, flow_item(f), flow_token(f), time_boottime() + LEASE_USEC);
        if (r >= 0)
                r = ledger_lease_expired(m->ledger, m->boot_id, time_boottime(), settle_expired, m);
        if (r >= 0)
                r = ledger_run_list_unreleased(m->ledger, release_run, m);
        if (r < 0) {
                (void) manager_fatal(m, r, "sweep");
                return;
        }

        (void) units_list(m->units, run_patterns, on_sweep_listed, m);
        revocations_kick(m);
}

static int on_tick(sd_event_source *source, uint64_t usec, void *userdata) {
        Manager *m = userdata;
        int r;

        enforcers_tick(m);
        if (m->settled) {
                drain_tick(m);
                space_tick(m);
                prune_tick(m);
        }
        if (m->settled && ++m->n_ticks % SWEEP_TICKS == 0)
                sweep(m);

        r = sd_event_source_set_time_relative(source, TICK_USEC);
        if (r >= 0)
                r = sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
        if (r < 0)
                (void) manager_fatal(m, r, "arm the tick");
        return 0;
}

/* ---- settling at the start ---- */

typedef struct Settling {
        Manager *manager;
        const UnitState *units;
        size_t n;
} Settling;

static bool is_alive(const Settling *s, const char *kind, const char *run) {
        char unit[64];

        (void) snprintf(unit, sizeof(unit), "anchor-%s@%s.service", kind, run);
        for (size_t i = 0; i < s->n; i++)
                if (strcmp(s->units[i].name, unit) == 0)
                        return strcmp(s->units[i].active, "active") == 0 || strcmp(s->units[i].active, "activating") == 0;
        return false;
}

static int resume(const LedgerItem *item, void *userdata) {
        const Settling *s = userdata;

        flow_resume(s->manager, item, is_alive(s, "run", item->run), is_alive(s, "import", item->run));
        return 0;
}

static int remove_orphan(const char *item, void *userdata) {
        Manager *m = userdata;
        _cleanup_item_ LedgerItem found = {};

        if (ledger_get(m->ledger, item, &found) == LEDGER_E_NOT_FOUND) {
                log_notice("%s was never submitted to the end, removing its files", item);
                (void) store_remove(m->store, item, NULL);
        } else
                (void) store_remove_partial(m->store, item);
        return 0;
}

static void on_units_listed(int r, const UnitState *units, size_t n, void *userdata) {
        Manager *m = userdata;
        Settling s = { m, units, n };

        if (r < 0) {
                (void) manager_fatal(m, r, "list the units");
                return;
        }

        r = ledger_recover(m->ledger, m->boot_id, resume, &s);
        if (r >= 0)
                r = ledger_budget_close_stray(m->ledger);
        if (r >= 0)
                r = store_list(m->store, remove_orphan, m);
        if (r < 0) {
                (void) manager_fatal(m, r, "settle what was left");
                return;
        }
        stop_strays(m, units, n);
        r = revocations_start(m);
        if (r < 0) {
                (void) manager_fatal(m, r, "look for tokens that are left");
                return;
        }
        r = manager_serve_runs(m);
        if (r < 0) {
                (void) manager_fatal(m, r, "serve runs");
                return;
        }

        m->settled = true;
        (void) sd_notifyf(false, "READY=1\nSTATUS=%zu runs taken up again.", m->n_flows);
        log_info("ready, %zu runs taken up again", m->n_flows);
        operator_waits_go(m);
        outbox_kick(m);
        sweep(m);
        scheduler_kick(m);
}

int scheduler_start(Manager *m) {
        int r;

        r = sd_event_add_time_relative(m->event, &m->tick, CLOCK_MONOTONIC, 0, 1, on_tick, m);
        if (r < 0)
                return r;

        return units_list(m->units, run_patterns, on_units_listed, m);
}
