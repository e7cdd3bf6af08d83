/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* From an item's lease to a run that is on its way, and back to that after anchord was away. flow.c has the rest of the states. */

#include <errno.h>
#include <string.h>

#include "api/flow-internal.h"
#include "ledger/ledger-budget.h"
#include "util/json.h"
#include "util/log.h"

enum { START_AGAIN_USEC = 100 * 1000 };

/* ---- beginning a run ---- */

static int ask_for_start(Flow *f);

static int on_start_again(sd_event_source *source, uint64_t usec, void *userdata) {
        Flow *f = userdata;

        if (f->state == FLOW_STARTING && ask_for_start(f) < 0)
                flow_end_run(f, "error", "cannot ask systemd to start the run", NULL);
        return 0;
}

/* What was stopped just before in the same slice may still be queued; the timer of the state bounds the waiting. */
static bool start_later(Flow *f) {
        f->start_timer = sd_event_source_disable_unref(f->start_timer);
        return sd_event_add_time_relative(f->manager->event, &f->start_timer, CLOCK_MONOTONIC, START_AGAIN_USEC, 0,
                                          on_start_again, f) >= 0;
}

void flow_end_unstarted(Flow *f, const char *result) {
        _cleanup_free_ char *reason = NULL;

        reason = text_format("anchor-%s@%s.service did not start: %s%s%s", f->stage == STAGE_IMPORT ? "import" : "run", f->run, result,
                             f->why[0] ? ", " : "", f->why);
        f->requeue = strstr(f->why, UNITS_NOT_FENCED);
        flow_end_lost(f, reason ?: "did not start");
}

static void on_started(int r, const char *result, void *userdata) {
        Flow *f = userdata;

        if (f->state != FLOW_STARTING)
                return; /* it has said more than that by itself */
        if (r == -EBUSY && start_later(f))
                return;
        if (r >= 0) {
                flow_confirm_started(f);
                return;
        }

        flow_end_unstarted(f, result);
}

static int ask_for_start(Flow *f) {
        char unit[64];

        (void) snprintf(unit, sizeof(unit), "anchor-%s@%s.service", f->stage == STAGE_IMPORT ? "import" : "run", f->run);
        return units_start(f->manager->units, unit, on_started, f);
}

void flow_start_unit(Flow *f) {
        f->why[0] = 0;
        f->trail = (UnitTrail) {};
        f->listeners_begun = 0;
        f->started_monotonic = f->started_realtime = 0;
        flow_set_state(f, FLOW_STARTING);
        if (ask_for_start(f) < 0)
                flow_end_run(f, "error", "cannot ask systemd to start the run", NULL);
}

/* The unit runs: item and ledger say so from now on. */
void flow_confirm_started(Flow *f) {
        Manager *m = f->manager;
        int r;

        if (f->state != FLOW_STARTING)
                return;
        flow_set_state(f, FLOW_ACTIVE);
        f->started_monotonic = time_monotonic();
        if (f->stage == STAGE_IMPORT)
                return;

        /* an earlier life may have said all of it, and the item has gone on since */
        r = ledger_run_start(m->ledger, f->run, f->tcg ? "tcg" : "kvm", f->egress_digest[0] ? f->egress_digest : NULL);
        if (r < 0) {
                (void) manager_fatal(m, r, "record a started run");
                return;
        }
        if (r == 0 && f->tcg_fallback)
                manager_note(m, f->item.id, f->run, "warning", "no KVM, the microVM is emulated and slow: %s", f->accel_reason);

        if (f->stage == STAGE_WORK)
                (void) flow_transition(f, (LedgerChange) { .to = ITEM_RUNNING });
        outbox_kick(m);
}

/* What a verification is for is finished work, and would be lost with it; so it waits for what may pass (a daemon that starts anew), or be mended (a file of
 * policy that somebody is just editing). */
static bool may_wait(const Flow *f) {
        return f->stage == STAGE_VERIFY && time_monotonic() < f->register_until;
}

static bool may_be_registered_later(const Flow *f, const char *error) {
        return (ipc_error_is(error, "BadInput") || ipc_error_is_passing(error)) && may_wait(f);
}

static int on_register_again(sd_event_source *source, uint64_t usec, void *userdata) {
        Flow *f = userdata;

        if (f->state == FLOW_AUDITING && f->preparing) {
                f->preparing = false;
                outbox_kick(f->manager);
        }
        return 0;
}

static void register_later(Flow *f) {
        Manager *m = f->manager;
        _cleanup_free_ char *refused = TAKE_PTR(f->refused);

        if (!f->register_waits)
                manager_note(m, f->item.id, f->run, "verify.waits", "the verification cannot begin yet, and is tried again: %s", refused);
        f->register_waits = true;
        f->preparing = true;
        flow_set_state(f, FLOW_AUDITING);
        f->start_timer = sd_event_source_disable_unref(f->start_timer);
        if (sd_event_add_time_relative(m->event, &f->start_timer, CLOCK_MONOTONIC, m->register_again_usec, 0, on_register_again, f) < 0)
                flow_end_run(f, "error", refused, NULL);
}

void flow_on_unregistered(Flow *f) {
        static const char reason[] = "egressd or secretd did not answer the registration";

        if (!f->refused)
                f->refused = strdup(reason);
        if (f->refused && may_wait(f))
                register_later(f);
        else
                flow_end_run(f, "error", f->refused ?: reason, NULL);
}

void flow_on_registered(Flow *f, const char *error, const char *reason) {
        _cleanup_free_ char *text = NULL;

        if (f->state != FLOW_REGISTERING)
                return;
        if (error) {
                text = text_format("registration refused: %s", reason ?: error);
                if (!text || !may_be_registered_later(f, error)) {
                        flow_end_run(f, "error", text ?: error, NULL);
                        return;
                }
                free(f->refused);
                f->refused = TAKE_PTR(text);
        }
        if (--f->pending > 0)
                return;
        if (f->refused)
                register_later(f);
        else
                flow_start_unit(f);
}

void flows_on_audited(Manager *m) {
        for (Flow *f = m->flows, *next; f; f = next) {
                next = f->next;
                if (f->state != FLOW_AUDITING || f->preparing)
                        continue;
                flow_set_state(f, FLOW_REGISTERING);
                if (flow_register(f) < 0)
                        flow_end_run(f, "error", "cannot ask egressd and secretd to register the run", NULL);
        }
}

static void on_policy(int r, void *userdata) {
        Flow *f = userdata;
        const char *reason;

        f->preparing = false;
        reason = r < 0 ? "policy cannot be loaded" : flow_prepare(f);
        if (reason)
                flow_end_run(f, "error", reason, NULL);
        else
                outbox_kick(f->manager);
}

/* Policy as it is now is what is frozen. Nothing of the run begins before. */
static void prepare_afresh(Flow *f) {
        int r;

        f->preparing = true;
        r = manager_read_policy(f->manager, on_policy, f);
        if (r < 0)
                on_policy(r, f);
}

/* A run of its own for the checks: a new id under the same lease. */
void flow_begin_verify(Flow *f) {
        Manager *m = f->manager;
        char run[ID_LENGTH + 1];
        const char *reason;
        int r;

        r = text_make_id('r', run);
        if (r >= 0)
                r = ledger_run_add(m->ledger, f->item.id, f->item.token, run);
        if (r != 0) {
                flow_fail(f, "cannot record the verifying run");
                return;
        }

        memcpy(f->run, run, sizeof(f->run));
        f->stage = STAGE_VERIFY;
        f->unclean = f->requeue = f->verify_again = f->register_waits = false;
        free(f->handed_back);
        free(f->refused);
        f->handed_back = f->refused = NULL;
        f->register_until = time_monotonic() + m->register_wait_usec;
        f->egress_digest[0] = 0;
        f->event_bytes = f->expires = 0;
        flow_set_state(f, FLOW_AUDITING);
        reason = flow_prepare_again(f);
        if (reason)
                flow_end_run(f, "error", reason, NULL);
        else
                outbox_kick(m);
}

/* ---- beginning and resuming ---- */

static Flow *flow_new(Manager *m, LedgerItem *item) {
        Flow *f = calloc(1, sizeof(*f));

        if (!f)
                return NULL;

        *f = (Flow) { .manager = m, .next = m->flows, .item = *item };
        *item = (LedgerItem) {};
        memcpy(f->run, f->item.run, sizeof(f->run));
        m->flows = f;
        m->n_flows++;
        return f;
}

void flow_begin(Manager *m, LedgerItem *item) {
        Flow *f = flow_new(m, item);

        if (!f) {
                (void) manager_fatal(m, -ENOMEM, "begin a run");
                return;
        }
        prepare_afresh(f);
        outbox_kick(m);
}

/* It has told how it went, and only that was not taken up any more. */
static void end_as_told(Flow *f, const LedgerRun *run) {
        _cleanup_json_ json_t *facts = NULL;
        _cleanup_fd_ int result = -1;

        if (run->facts)
                (void) json_parse(run->facts, strlen(run->facts), &facts, NULL);
        if (!f->stop && !f->requeue && strcmp(run->outcome, "stopped") == 0) {
                f->stop = true;
                f->stop_reason = strdup(run->reason ?: "stopped");
        }
        f->verify_again = f->handed_back && f->stage == STAGE_VERIFY && !run->started;
        result = store_open_file(f->manager->store, f->item.id, STORE_RESULT);
        f->kept = json_object_get(facts, "bundle_bytes") && result >= 0;
        flow_end_run(f, run->outcome, run->reason, facts);
}

/* An earlier life was told that the run's enforcers disagree, and may have ended before the run did. */
static int resume_mismatch(Flow *f) {
        _cleanup_free_ char *text = NULL;
        int r;

        r = ledger_run_note(f->manager->ledger, f->item.id, f->run, NOTE_MISMATCH, &text);
        if (r != 0)
                return r < 0 ? r : 0;
        return flow_keep_mismatch(f, text);
}

/* An earlier life decided that the run ends and its item keeps its attempt; or was told to stop it, which counts for more. */
static int resume_decisions(Flow *f) {
        Ledger *l = f->manager->ledger;
        int r;

        r = ledger_run_note(l, f->item.id, f->run, NOTE_HANDED_BACK, &f->handed_back);
        f->requeue = r == 0;
        if (r >= 0)
                r = ledger_run_note(l, f->item.id, f->run, NOTE_STOP, &f->stop_reason);
        f->stop = r == 0;
        return r < 0 ? r : 0;
}

/* What an earlier life has in the ledger of the run, and of what was decided of it. */
static int resume_known(Flow *f, const LedgerRun *run) {
        Ledger *l = f->manager->ledger;

        f->started_realtime = run->started_usec;
        f->stage = run->verify ? STAGE_VERIFY : strcmp(f->item.stage, "work") == 0 ? STAGE_WORK : STAGE_IMPORT;
        f->commit = f->item.result_commit ? strdup(f->item.result_commit) : NULL;
        if (f->stage != STAGE_WORK && !run->verify && run->outcome && ledger_reason_is_over_budget(run->reason))
                f->over_budget = strdup(run->reason);
        if (f->stage != STAGE_IMPORT && (ledger_budget_doubt(l, f->run) < 0 || resume_mismatch(f) < 0))
                return -EIO;
        return resume_decisions(f);
}

/* Was it decided before, or cannot it be otherwise now, how the run ends? reason: why it cannot be made from what it was, NULL: it can. */
static bool resume_ends(Flow *f, const LedgerRun *run, const char *reason, bool alive) {
        bool import = f->stage == STAGE_IMPORT;

        if (import && strcmp(f->item.stage, "verify") == 0)
                flow_end_run(f, "ok", "", NULL); /* the import is done, its verification not begun: the same decision again */
        else if (!import && run->outcome)
                end_as_told(f, run);
        else if (f->stop || (f->handed_back && !f->mismatch))
                flow_end_run(f, "stopped", f->stop ? f->stop_reason : f->handed_back, NULL);
        else if (f->mismatch || (reason && (alive || import)))
                flow_end_run(f, "error", f->mismatch ?: reason, NULL);
        else
                return false;
        return true;
}

void flow_resume(Manager *m, const LedgerItem *item, bool run_alive, bool import_alive) {
        _cleanup_item_ LedgerItem copy = {};
        _cleanup_(ledger_run_done) LedgerRun run = {};
        const char *reason;
        bool alive;
        Flow *f;
        int r;

        r = ledger_get(m->ledger, item->id, &copy);
        if (r == 0)
                r = ledger_run_get(m->ledger, copy.run, &run);
        if (r != 0 || !(f = flow_new(m, &copy))) {
                (void) manager_fatal(m, r < 0 ? r : -EUCLEAN, "take a run up again");
                return;
        }

        if (resume_known(f, &run) < 0) {
                (void) manager_fatal(m, -EIO, "take a run's budget, or what was found or decided of it, up again");
                return;
        }
        reason = flow_prepare_again(f);
        alive = f->stage == STAGE_IMPORT ? import_alive : run_alive;

        if (resume_ends(f, &run, reason, alive))
                return;
        if (alive) {
                flow_set_state(f, FLOW_STARTING);
                flow_confirm_started(f);
                log_info("%s: run %s goes on", f->item.id, f->run);
                return;
        }
        if (f->stage == STAGE_IMPORT) {
                flow_start_unit(f);
                return;
        }

        f->requeue = !run.started;
        f->verify_again = f->requeue && f->stage == STAGE_VERIFY;
        if (run.started)
                flow_end_lost(f, "anchor-run ended while the supervisor was away");
        else
                flow_end_run(f, "error", "the supervisor went away before the run had started", NULL);
}
