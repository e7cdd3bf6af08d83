/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* host drain, host undrain: this host ends what it has begun and begins nothing more. */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl-drain.h"
#include "ctl/ctl-progress.h"
#include "ctl/ctl-waiting.h"
#include "policy/policy.h"
#include "util/json.h"
#include "util/text.h"

#define DRAIN_WITHIN "10min"

enum { CLEANUP_S = 180 }; /* until units that were told to end are gone, at the worst */

/* An anchord that was just started anew lists no run before it has settled, whatever runs. */
static bool knows_runs(const json_t *status) {
        return json_is_true(json_object_get(status, "ready"));
}

static size_t n_running(const json_t *status) {
        return json_array_size(json_object_get(status, "runs"));
}

static const json_t *drain_of(const json_t *status) {
        const json_t *drain = json_object_get(status, "drain");

        return json_is_object(drain) ? drain : NULL;
}

static CtlExit ask_status(Ctl *ctl, json_t **ret) {
        return ctl_call(ctl, "ask for the status", "Status", json_object(), NULL, 0, ret, NULL, 0);
}

/* One of those signals, if there are any, came within a moment. They are blocked. */
static bool is_told_to_end(const sigset_t *signals) {
        if (!signals) {
                (void) usleep(PROGRESS_TICK_USEC);
                return false;
        }
        return sigtimedwait(signals, NULL, &(struct timespec) { .tv_sec = PROGRESS_TICK_USEC / 1000000, .tv_nsec = PROGRESS_TICK_USEC % 1000000 * 1000L }) > 0;
}

/* Until nothing runs. Somebody who ends the drain meanwhile ends this too. */
static CtlExit await_drained(Ctl *ctl, uint64_t within_s, const sigset_t *signals) {
        uint64_t until = time_monotonic() + (within_s + CLEANUP_S) * 1000000ULL;
        bool begun = ctl_activity_begin(ctl, "waiting for the runs of this host to end");
        CtlExit r;

        for (;;) {
                _cleanup_json_ json_t *status = NULL;

                r = ask_status(ctl, &status);
                if (r != CTL_OK)
                        break;
                if (knows_runs(status) && n_running(status) == 0)
                        break;
                if (!drain_of(status)) {
                        ctl_error(ctl, "Somebody ended the drain meanwhile; what runs goes on.");
                        r = CTL_CONFLICT;
                        break;
                }
                if (time_monotonic() > until) {
                        if (knows_runs(status))
                                ctl_error(ctl, "%zu runs have not ended; \"anchorctl status\" says which.", n_running(status));
                        else
                                ctl_error(ctl, "It is not known what runs: anchord has not settled what an earlier life left.");
                        r = CTL_FAILED;
                        break;
                }
                ctl_activity_goes_on(ctl);
                if (is_told_to_end(signals)) {
                        ctl_error(ctl, "Told to end before the runs of this host did.");
                        r = CTL_FAILED;
                        break;
                }
        }

        ctl_activity_end(ctl, begun);
        return r;
}

static CtlExit drain(Ctl *ctl, uint64_t within_s, const char *reason, const sigset_t *signals) {
        CtlExit r;

        r = ctl_call(ctl, "drain", "Drain", json_pack("{s:I, s:s*}", "within_s", (json_int_t) within_s, "reason", reason), NULL, 0, NULL, NULL, 0);
        if (r != CTL_OK)
                return r;
        return await_drained(ctl, within_s, signals);
}

static void end_own_drain(Ctl *ctl, const char *reason) {
        _cleanup_json_ json_t *status = NULL;

        if (ask_status(ctl, &status) == CTL_OK) {
                const json_t *drain = drain_of(status);

                if (!drain || strcmp(ctl_string(drain, "reason") ?: "", reason) != 0)
                        return;
                if (ctl_call(ctl, "end the drain", "Undrain", json_object(), NULL, 0, NULL, NULL, 0) == CTL_OK) {
                        ctl_error(ctl, "The drain was for this alone, and is ended.");
                        waiting_ended(ctl, NULL, "Items are leased again.");
                        return;
                }
        }
        ctl_error(ctl, "This host may still be drained: nothing is leased until \"anchorctl host undrain\".");
}

CtlExit ctl_drain_for(Ctl *ctl, uint64_t within_s, const char *reason, CtlExit (*then)(Ctl *ctl)) {
        _cleanup_json_ json_t *before = NULL;
        sigset_t signals, mask;
        CtlExit r;

        r = ask_status(ctl, &before);
        if (r != CTL_OK)
                return r;
        (void) sigemptyset(&signals);
        (void) sigaddset(&signals, SIGINT);
        (void) sigaddset(&signals, SIGTERM);
        (void) sigprocmask(SIG_BLOCK, &signals, &mask);
        r = drain(ctl, within_s, reason, &signals);
        (void) sigprocmask(SIG_SETMASK, &mask, NULL);
        if (r == CTL_OK)
                r = then(ctl);
        if (r != CTL_OK && !drain_of(before))
                end_own_drain(ctl, reason);
        return r;
}

CtlExit ctl_drain_within(Ctl *ctl, uint64_t *ret_s) {
        const char *given = ctl->o.within ?: DRAIN_WITHIN;

        if (policy_parse_duration(given, ret_s) < 0)
                return ctl_usage(ctl, "--within= takes a time as \"90s\" or \"1h 30min\", not \"%s\".", given);
        return CTL_OK;
}

CtlExit ctl_verb_host_drain(Ctl *ctl) {
        uint64_t within_s;
        CtlExit r;

        r = ctl_drain_within(ctl, &within_s);
        if (r == CTL_OK)
                r = drain(ctl, within_s, ctl->o.reason, NULL);
        if (r == CTL_OK)
                ctl_note(ctl, "Nothing runs, and nothing is leased until \"anchorctl host undrain\" or the next boot.");
        return r;
}

CtlExit ctl_verb_host_undrain(Ctl *ctl) {
        CtlExit r;

        r = ctl_call(ctl, "end the drain", "Undrain", json_object(), NULL, 0, NULL, NULL, 0);
        if (r == CTL_OK)
                waiting_ended(ctl, "The drain is ended.", "Items are leased again.");
        return r;
}
