/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The reserve: so much of the disk is kept free (policy/policy-space.c) that what is under way can be brought to its end, and recorded.
 * Below it nothing is leased and no seed is taken in, and whoever asks gets the numbers; what runs goes on. It counts for each file system that
 * has a part of the state.
 *
 * It is looked at before each lease and every two seconds. Only a change of state is recorded, also over restarts, and "enough again" is a
 * little more than the reserve, so that a host on the edge does not fill its audit log with it. When the disk is too full even for that
 * record, it comes later: nothing depends on it.
 */

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "api/manager-internal.h"
#include "util/json.h"
#include "util/log.h"

enum { MIB = 1024 * 1024, BACK_PART = 16 }; /* enough again: the reserve and a sixteenth of it */

static const char *const folders[] = { STATE_PATH "/ledger", ITEMS_PATH, STATE_PATH "/scratch", STATE_PATH "/audit" };

/* Of the folder with the least to spare; false: nothing can be said. */
static bool measure(Manager *m, const char **ret_folder) {
        const PolicySpace *space = &policy_host(m->policy)->space;
        bool found = false;

        for (size_t i = 0; i < ELEMENTSOF(folders); i++) {
                uint64_t total, available, reserve;
                struct statvfs fs;

                if (statvfs(folders[i], &fs) < 0)
                        continue;
                total = (uint64_t) fs.f_blocks * fs.f_frsize;
                available = (uint64_t) fs.f_bavail * fs.f_frsize;
                reserve = policy_amount_largest(&space->reserve, total);
                if (found && (int64_t) (available - reserve) >= (int64_t) (m->space.free - m->space.reserve))
                        continue;
                m->space.free = available;
                m->space.total = total;
                m->space.reserve = reserve;
                *ret_folder = folders[i];
                found = true;
        }
        return found;
}

static void record(Manager *m) {
        _cleanup_json_ json_t *data = json_pack("{s:I, s:I, s:I}", "free", (json_int_t) m->space.free, "reserve", (json_int_t) m->space.reserve,
                                                "total", (json_int_t) m->space.total);
        int r;

        r = data ? ledger_space_see(m->ledger, m->space.low, data) : -ENOMEM;
        if (r == -ENOSPC || r == -EIO) {
                log_debug("cannot record yet that space is %s: %s", m->space.low ? "low" : "there again", strerror(-r));
                return;
        }
        if (r < 0) {
                (void) manager_fatal(m, r, "record how much space there is");
                return;
        }
        m->space.recorded = true;
        outbox_kick(m);
}

static void on_change(Manager *m) {
        m->space.recorded = false;
        if (m->space.low) {
                log_warning("space is low: %s; nothing is leased until there is more", m->space.reason);
                prune_soon(m);
        } else {
                m->space.reason[0] = 0;
                log_notice("there is space again: %llu of %llu MiB are free", (unsigned long long) m->space.free / MIB,
                           (unsigned long long) m->space.total / MIB);
                scheduler_kick(m);
        }
}

void space_look(Manager *m) {
        const char *folder = STATE_PATH;
        bool low, before = m->space.low;

        if (!measure(m, &folder))
                return;

        low = m->space.free < m->space.reserve + (before ? m->space.reserve / BACK_PART : 0);
        if (low)
                (void) snprintf(m->space.reason, sizeof(m->space.reason), "%llu of %llu MiB are free in %s, and %llu are kept in reserve",
                                (unsigned long long) m->space.free / MIB, (unsigned long long) m->space.total / MIB, folder,
                                (unsigned long long) m->space.reserve / MIB);
        m->space.low = low;
        if (low != before)
                on_change(m);
        if (!m->space.recorded)
                record(m);
}

void space_tick(Manager *m) {
        if (m->space.reason[0] || policy_host_reason(m->policy))
                manager_refresh_policy(m); /* somebody may have changed it; that kicks the scheduler */
        space_look(m);
}

static uint64_t disk_of(Manager *m, const char *workflow) {
        const PolicyWorkflow *w = policy_find_workflow(m->policy, workflow, NULL);

        return w ? w->disk_mib * MIB : 0;
}

/* What runs has the disk that it was made with, whatever its workflow says by now. */
static uint64_t disk_of_flow(Manager *m, const Flow *f) {
        const json_t *vm = flow_vm_spec(f);

        return vm ? (uint64_t) json_integer_value(json_object_get(vm, "disk_mib")) * MIB : disk_of(m, flow_workflow(f));
}

/* The disks of all microVMs, as large as they may become. */
static bool scratch_admits(Manager *m) {
        uint64_t max = policy_amount_smallest(&policy_host(m->policy)->space.scratch, m->space.total), used = 0, more;
        _cleanup_item_ LedgerItem next = {};

        if (max == UINT64_MAX || ledger_peek_next(m->ledger, time_realtime(), &next) != 0)
                return true;
        for (Flow *f = m->flows; f; f = flow_next_of(f))
                used += disk_of_flow(m, f);
        more = disk_of(m, next.workflow);
        if (used + more <= max)
                return true;

        (void) snprintf(m->space.reason, sizeof(m->space.reason), "the disks of microVMs may take %llu MiB, those that run have %llu, and %s wants %llu",
                        (unsigned long long) max / MIB, (unsigned long long) used / MIB, next.id, (unsigned long long) more / MIB);
        return false;
}

bool space_admits(Manager *m) {
        space_look(m);
        if (m->space.low)
                return false;
        m->space.reason[0] = 0;
        return scratch_admits(m);
}

bool space_holds(Manager *m, uint64_t bytes) {
        space_look(m);
        return !m->space.low && (bytes <= m->space.free && m->space.free - bytes >= m->space.reserve);
}

json_t *space_status(Manager *m) {
        space_look(m);
        return json_pack("{s:I, s:I, s:I, s:b, s:s?}", "free", (json_int_t) m->space.free, "total", (json_int_t) m->space.total,
                         "reserve", (json_int_t) m->space.reserve, "low", m->space.low, "reason", m->space.reason[0] ? m->space.reason : NULL);
}
