/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One item being worked on: a chain of runs (work, import of its result, verification), each of which
 * goes through the same states. A flow exists exactly while the item has a lease of this boot.
 *
 *   AUDITING     until everything that the ledger did for this run is durable with auditd, and policy was read for it; a verification that could
 *                not be registered, for a reason that may pass or be mended, is here as well until that is tried again
 *   REGISTERING  egressd and secretd know the run
 *   STARTING     systemd starts anchor-run@ (or anchor-import@)
 *   ACTIVE       until the run says how it ended, its unit ends, time is up, or somebody stops it
 *   CLEANING     every unit of the run is stopped, killed if need be, and reset
 *   RELEASING    egressd and secretd forget the run
 *
 * then flow_next() decides from stage and outcome what is next. A repository's item goes work → import →
 * verify → in_review; what the guest of the first run said about tests is not looked at. An item
 * without a repository has nothing to import or verify: its evidence is the exit status, reported by the guest,
 * and since there is nothing to approve it goes on to `closed` at once.
 *
 * At a crash: everything that a decision rests on is in the ledger before the decision's effect. Outcome of a run, result
 * commit and stage are there, and, as notes of kinds of their own (ledger.h, flow-internal.h), what else was decided of the run; so flow_resume() finds the place again, and every step may be done
 * twice (registering is idempotent, starting a started unit is nothing, stopping a stopped one too).
 *
 * The state changes in flow_set_state() only, and each state but AUDITING's wait for auditd has a timer.
 */

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "api/flow-internal.h"
#include "ledger/ledger-budget.h"
#include "util/json.h"
#include "util/log.h"

/* How long a state may last; 0: computed, or for ever. */
static const struct {
        const char *name;
        uint64_t timeout_s;
} states[] = {
        [FLOW_AUDITING] = { "auditing", 0 },
        [FLOW_REGISTERING] = { "registering", 20 },
        [FLOW_STARTING] = { "starting", 90 },
        [FLOW_ACTIVE] = { "active", 0 },
        [FLOW_CLEANING] = { "cleaning", 60 },
        [FLOW_RELEASING] = { "releasing", 10 },
};

static const char *const stage_names[] = {
        [STAGE_WORK] = "work",
        [STAGE_IMPORT] = "import",
        [STAGE_VERIFY] = "verify",
};

/* Beyond the workflow's own bound: boots, retries, and what anchor-run needs to say that time is up. */
enum { ACTIVE_GRACE_S = 2 * POLICY_BOOT_TIMEOUT_MAX_S + 120, IMPORT_TIMEOUT_S = 600, STORING_TIMEOUT_S = 3600 };

/* ---- small things ---- */

Flow *flow_next_of(Flow *f) {
        return f->next;
}

const char *flow_item(const Flow *f) {
        return f->item.id;
}

const char *flow_workflow(const Flow *f) {
        return f->item.workflow;
}

const char *flow_run(const Flow *f) {
        return f->run;
}

int64_t flow_token(const Flow *f) {
        return f->item.token;
}

const char *flow_stage(const Flow *f) {
        return stage_names[f->stage];
}

const char *flow_state_name(const Flow *f) {
        return states[f->state].name;
}

bool flow_is_waiting(const Flow *f) {
        return f->register_waits && (f->state == FLOW_AUDITING || f->state == FLOW_REGISTERING);
}

bool flow_is_stopping(const Flow *f) {
        return f->stop;
}

json_t *flow_spec(const Flow *f) {
        return f->spec;
}

json_t *flow_vm_spec(const Flow *f) {
        return f->vm_spec;
}

const char *flow_base(const Flow *f) {
        return f->item.base;
}

uint64_t flow_limit_output(const Flow *f) {
        return f->output_bytes;
}

uint64_t flow_limit_bundle(const Flow *f) {
        return f->bundle_bytes;
}

uint64_t flow_count_events(Flow *f, uint64_t bytes) {
        f->event_bytes += bytes;
        return f->event_bytes;
}

bool flow_is_live(const Flow *f) {
        return f->state == FLOW_STARTING || f->state == FLOW_ACTIVE;
}

bool flow_accepts_run(const Flow *f) {
        return f->stage != STAGE_IMPORT && flow_is_live(f);
}

bool flow_take_flag(Flow *f) {
        return f->n_flags++ < 32; /* who floods has been noticed */
}

bool flow_accepts_import(const Flow *f) {
        return f->stage == STAGE_IMPORT && flow_is_live(f);
}

Flow *flow_find_run(Manager *m, const char *run) {
        for (Flow *f = m->flows; f; f = f->next)
                if (strcmp(f->run, run) == 0)
                        return f;
        return NULL;
}

Flow *flow_find_item(Manager *m, const char *item) {
        for (Flow *f = m->flows; f; f = f->next)
                if (strcmp(f->item.id, item) == 0)
                        return f;
        return NULL;
}

Flow *flow_free(Flow *f) {
        Manager *m;

        if (!f)
                return NULL;

        m = f->manager;
        for (Flow **p = &m->flows; *p; p = &(*p)->next)
                if (*p == f) {
                        *p = f->next;
                        m->n_flows--;
                        break;
                }

        if (m->units)
                units_forget(m->units, f);
        manager_forget_policy_reader(m, f);
        f->timer = sd_event_source_disable_unref(f->timer);
        f->start_timer = sd_event_source_disable_unref(f->start_timer);
        f->cleanup_timer = sd_event_source_disable_unref(f->cleanup_timer);
        ledger_item_done(&f->item);
        (void) json_unref(f->plan);
        (void) json_unref(f->spec);
        (void) json_unref(f->vm_spec);
        (void) json_unref(f->facts);
        free(f->reason);
        free(f->outcome);
        free(f->stop_reason);
        free(f->commit);
        free(f->over_budget);
        free(f->gone);
        free(f->mismatch);
        free(f->handed_back);
        free(f->refused);
        free(f);
        return NULL;
}

/* ---- states ---- */

static int flow_on_timeout(sd_event_source *source, uint64_t usec, void *userdata);

void flow_set_state(Flow *f, FlowState state) {
        uint64_t timeout_s = states[state].timeout_s;
        int r;

        if (state == FLOW_ACTIVE)
                timeout_s = f->storing ? STORING_TIMEOUT_S : f->stage == STAGE_IMPORT ? IMPORT_TIMEOUT_S : f->run_s + ACTIVE_GRACE_S;

        log_debug("%s: run %s: %s → %s", f->item.id, f->run, states[f->state].name, states[state].name);
        f->state = state;
        f->timer = sd_event_source_disable_unref(f->timer);
        if (timeout_s == 0)
                return;

        r = sd_event_add_time_relative(f->manager->event, &f->timer, CLOCK_BOOTTIME, timeout_s * USEC_PER_SEC, 0, flow_on_timeout, f);
        if (r < 0)
                (void) manager_fatal(f->manager, r, "arm a run's timer");
}

/* The end of the item's work: the flow goes. */
static void flow_end(Flow *f) {
        Manager *m = f->manager;
        char item[ID_LENGTH + 1];

        (void) snprintf(item, sizeof(item), "%s", f->item.id);
        (void) flow_free(f);
        manager_close_log(m, item);
        followers_wake(m);
        stop_alls_check(m);
        outbox_kick(m);
        scheduler_kick(m);
        revocations_kick(m);
}

/* Reads the item again and changes it under our lease. */
int flow_transition(Flow *f, LedgerChange c) {
        Manager *m = f->manager;
        LedgerItem fresh = {};
        int r;

        r = ledger_get(m->ledger, f->item.id, &fresh);
        if (r != 0)
                return manager_fatal(m, r < 0 ? r : -EUCLEAN, "read an item under lease");

        c.item = f->item.id;
        c.revision = fresh.revision;
        c.token = f->item.token;
        c.actor = c.actor ?: "anchord";
        ledger_item_done(&fresh);

        return manager_transition(m, &c);
}

void flow_fail(Flow *f, const char *reason) {
        Manager *m = f->manager;
        char item[ID_LENGTH + 1];
        int r;

        (void) snprintf(item, sizeof(item), "%s", f->item.id);
        r = flow_transition(f, (LedgerChange) { .to = ITEM_FAILED, .reason = reason });
        flow_end(f);
        if (r == 0)
                manager_after_failure(m, item);
}

/* ---- the end of a run ---- */

/* A proven disagreement is what a run ends with, whatever else is said. An operator's stop stays one: it leads to no review either. */
static const char *outcome_of(const Flow *f, const char *outcome) {
        return !f->mismatch || f->stop ? outcome : "error";
}

static char *reason_of(const Flow *f, const char *reason) {
        if (!f->mismatch || strstr(reason, f->mismatch))
                return strdup(reason); /* which may name the cause of that as well */
        return f->stop ? text_format("%s; %s", reason, f->mismatch) : strdup(f->mismatch);
}

/* A run that ends without success keeps its item's attempt if that is not the item's fault. Is that so, it is in the ledger before the outcome, which by
 * itself is an operator's stop, or costs an attempt. */
static int keep_hand_back(Flow *f, const char *outcome) {
        if (!f->requeue || f->handed_back || f->mismatch || f->stop || strcmp(outcome, "ok") == 0)
                return 0;
        f->handed_back = strdup(f->reason);
        return f->handed_back ? manager_keep(f->manager, f->item.id, f->run, NOTE_HANDED_BACK, f->handed_back) : -ENOMEM;
}

/* Records how the run ended, once, and begins to clean up. */
void flow_end_run(Flow *f, const char *outcome, const char *reason, const json_t *facts) {
        Manager *m = f->manager;
        _cleanup_free_ char *text = NULL;
        int r;

        if (f->state == FLOW_CLEANING || f->state == FLOW_RELEASING)
                return;

        manager_forget_policy_reader(m, f);
        f->preparing = f->storing = false;
        free(f->gone);
        f->gone = NULL;
        free(f->outcome);
        free(f->reason);
        outcome = outcome_of(f, outcome);
        f->outcome = strdup(outcome);
        f->reason = reason_of(f, reason ?: "");
        (void) json_unref(f->facts);
        f->facts = json_incref((json_t *) facts);
        if (!f->outcome || !f->reason) {
                (void) manager_fatal(m, -ENOMEM, "record an outcome");
                return;
        }

        r = keep_hand_back(f, outcome);
        if (r < 0) {
                (void) manager_fatal(m, r, "record that a run is handed back");
                return;
        }
        if (f->stage != STAGE_IMPORT) {
                text = facts ? json_canonical(facts) : NULL;
                r = ledger_run_finish(m->ledger, f->run, outcome, f->reason, text);
                if (r < 0) {
                        (void) manager_fatal(m, r, "record an outcome");
                        return;
                }
                outbox_kick(m);
        }
        if (!f->handed_back && strcmp(outcome, "ok") != 0)
                manager_note(m, f->item.id, f->run, strcmp(outcome, "stopped") == 0 ? "run.stopped" : "run.failed", "%s", f->reason);

        flow_set_state(f, FLOW_CLEANING);
        flow_cleanup_start(f);
}

static int flow_on_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        Flow *f = userdata;

        switch (f->state) {
        case FLOW_CLEANING:
                manager_note(f->manager, f->item.id, f->run, "cleanup", "units of the run are left after a minute; they are tried again later");
                f->unclean = true;
                flow_on_clean(f);
                break;
        case FLOW_RELEASING:
                f->unclean = true;
                flow_on_released(f);
                break;
        case FLOW_REGISTERING:
                flow_on_unregistered(f);
                break;
        case FLOW_STARTING:
                flow_end_run(f, "error", f->stage == STAGE_IMPORT ? "anchor-import did not start in time" : "anchor-run did not start in time", NULL);
                break;
        case FLOW_ACTIVE:
        case FLOW_AUDITING:
        default:
                flow_end_run(f, "error", f->storing ? "the result could not be stored within an hour" : f->stage == STAGE_IMPORT ? "the import took too long" : "time is up: the run did not end by itself", NULL);
                break;
        }
        return 0;
}

int flow_stop(Flow *f, const char *reason) {
        bool ended = f->state == FLOW_CLEANING || f->state == FLOW_RELEASING;
        _cleanup_free_ char *text = NULL;
        int r;

        if (!f->stop) {
                text = strdup(reason ?: "stopped by an operator");
                if (!text)
                        return -ENOMEM;
                /* of a run that goes on, the outcome will say it: now */
                r = ended || f->stage == STAGE_IMPORT ? manager_keep(f->manager, f->item.id, f->run, NOTE_STOP, text) : 0;
                if (r < 0)
                        return r;
                f->stop = true;
                f->stop_reason = TAKE_PTR(text);
        }
        if (f->state == FLOW_CLEANING)
                flow_cleanup_kill(f);
        else
                flow_end_run(f, "stopped", f->stop_reason, NULL);
        return 0;
}

void flow_hand_back(Flow *f, const char *reason) {
        if (f->stop || f->storing || f->mismatch || f->state == FLOW_CLEANING || f->state == FLOW_RELEASING)
                return; /* its outcome counts */
        f->requeue = true;
        flow_end_run(f, "stopped", reason, NULL);
}

/* ---- what is next ---- */

static char *evidence_text(const Flow *f, bool second_vm) {
        _cleanup_json_ json_t *j = NULL, *policies = NULL;

        /* what each run could reach, also after an operator changed it */
        if (ledger_policies(f->manager->ledger, f->item.id, f->item.attempt, &policies) < 0)
                return NULL;
        j = json_pack("{s:s, s:s?, s:O, s:[{s:s, s:s, s:s, s:O?}]}",
                      "run", f->run, "commit", f->commit, "egress", policies,
                      "facts", "name", second_vm ? "checks" : "exit",
                      "source", second_vm ? "guest of a second, fresh microVM that got only the checked bundle" : "guest",
                      "outcome", f->outcome, "reported", f->facts);
        return j ? json_canonical(j) : NULL;
}

static void into_review(Flow *f, bool second_vm) {
        Manager *m = f->manager;
        _cleanup_free_ char *evidence = evidence_text(f, second_vm);
        char item[ID_LENGTH + 1];
        bool close = !f->item.repository;
        int r;

        /* the run's outcome is in the ledger: the next life makes it from that */
        if (!evidence) {
                (void) manager_fatal(m, -ENODATA, "put together what a review rests on");
                return;
        }
        (void) snprintf(item, sizeof(item), "%s", f->item.id);
        r = flow_transition(f, (LedgerChange) { .to = ITEM_IN_REVIEW, .stage = "done", .evidence = evidence, .reason = f->reason[0] ? f->reason : NULL });
        if (r == 0 && close) {
                _cleanup_item_ LedgerItem now = {};

                if (ledger_get(m->ledger, item, &now) == 0)
                        (void) manager_transition(m, &(LedgerChange) {
                                        .item = item, .revision = now.revision, .to = ITEM_CLOSED,
                                        .actor = "anchord", .reason = "nothing to review",
                                });
        }
        flow_end(f);
}

static void after_work(Flow *f) {
        if (flow_transition(f, (LedgerChange) { .to = ITEM_VERIFYING, .stage = f->item.repository ? "import" : NULL }) != 0) {
                flow_end(f);
                return;
        }
        if (!f->item.repository) {
                into_review(f, false);
                return;
        }
        f->stage = STAGE_IMPORT;
        flow_start_unit(f);
}

void flow_set_kept(Flow *f) {
        f->kept = true;
}

bool flow_is_over_budget(const Flow *f, const char *reason) {
        return f->stage == STAGE_WORK && (f->over_budget || ledger_reason_is_over_budget(reason));
}

/* The work run came to its end for want of a budget. What there is goes through import, so that it can be looked at; then the item fails. */
static void next_over_budget(Flow *f) {
        if (!f->over_budget)
                f->over_budget = strdup(f->reason);
        if (f->stage == STAGE_WORK && f->kept)
                after_work(f);
        else
                flow_fail(f, f->over_budget ?: LEDGER_OVER_BUDGET);
}

static void flow_next(Flow *f) {
        if (f->stop) {
                (void) flow_transition(f, (LedgerChange) { .to = ITEM_CANCELLED, .actor = "operator", .reason = f->stop_reason });
                flow_end(f);
                return;
        }

        /* of a run whose enforcers disagreed, nothing is looked at */
        if (!f->mismatch && ((f->stage != STAGE_VERIFY && f->over_budget) || (strcmp(f->outcome, "ok") != 0 && flow_is_over_budget(f, f->reason)))) {
                next_over_budget(f);
                return;
        }
        if (strcmp(f->outcome, "ok") != 0) {
                _cleanup_free_ char *reason = NULL;

                if (f->verify_again && !f->mismatch) {
                        flow_begin_verify(f); /* what it verifies is there already */
                        return;
                }
                if (f->requeue && !f->mismatch) {
                        (void) flow_transition(f, (LedgerChange) { .to = ITEM_QUEUED, .stage = "work", .reason = f->reason });
                        flow_end(f);
                        return;
                }
                reason = f->stage == STAGE_WORK ? strdup(f->reason) : text_format("%s: %s", flow_stage(f), f->reason);
                flow_fail(f, reason ?: f->outcome);
                return;
        }

        switch (f->stage) {
        case STAGE_WORK:
                after_work(f);
                break;
        case STAGE_IMPORT:
                if (f->has_verify)
                        flow_begin_verify(f);
                else
                        into_review(f, false);
                break;
        case STAGE_VERIFY:
        default:
                into_review(f, true);
                break;
        }
}

/* All units of the run are gone (or could not be got rid of). */
void flow_on_clean(Flow *f) {
        if (f->state != FLOW_CLEANING)
                return;
        f->cleanup_timer = sd_event_source_disable_unref(f->cleanup_timer);

        flow_set_state(f, FLOW_RELEASING);
        if (f->stage == STAGE_IMPORT) {
                flow_on_released(f); /* the work run was released before the import */
                return;
        }
        if (flow_release(f) < 0) {
                f->unclean = true;
                flow_on_released(f);
        }
}

void flow_on_released(Flow *f) {
        int r;

        if (f->state != FLOW_RELEASING)
                return;
        f->timer = sd_event_source_disable_unref(f->timer);

        if (f->stage != STAGE_IMPORT && ledger_budget_close(f->manager->ledger, f->run) < 0) {
                (void) manager_fatal(f->manager, -EIO, "close a run's budget");
                return;
        }
        if (!f->unclean && f->stage != STAGE_IMPORT) {
                r = ledger_run_release(f->manager->ledger, f->run);
                if (r < 0) {
                        (void) manager_fatal(f->manager, r, "record a released run");
                        return;
                }
        }
        flow_next(f);
}

/* ---- what the run says ---- */

int flow_on_finish(Flow *f, const char *outcome, const char *reason, const json_t *facts) {
        flow_confirm_started(f);
        /* it knows that it was told to end, not by which cap */
        if (f->over_budget && strcmp(outcome, "failed") == 0 && ledger_reason_is_over_budget(reason))
                reason = f->over_budget;
        flow_end_run(f, outcome, reason, facts);
        return 0;
}

int flow_on_imported(Flow *f, bool ok, const char *reason, const char *commit, const json_t *facts) {
        flow_confirm_started(f);
        if (ok) {
                if (flow_transition(f, (LedgerChange) { .to = ITEM_VERIFYING, .stage = "verify", .result_commit = commit }) != 0)
                        return -EIO;
                free(f->commit);
                f->commit = strdup(commit);
        }
        flow_end_run(f, ok ? "ok" : "failed", reason, facts);
        return 0;
}

void flow_set_storing(Flow *f, bool storing) {
        if (f->storing == storing)
                return;

        if (storing)
                flow_confirm_started(f);
        f->storing = storing;
        if (!storing && f->gone)
                flow_end_lost(f, f->gone);
        else
                flow_set_state(f, FLOW_ACTIVE);
}

int flow_keep_mismatch(Flow *f, const char *text) {
        if (!f->mismatch)
                f->mismatch = text_format(NOTE_MISMATCH ": %s", text);
        return f->mismatch ? 0 : -ENOMEM;
}

int flow_on_mismatch(Flow *f, const char *text) {
        int r;

        if (f->mismatch)
                return 0;
        r = flow_keep_mismatch(f, text);
        return r < 0 ? r : manager_keep(f->manager, f->item.id, f->run, NOTE_MISMATCH, text);
}

const char *flow_mismatch(const Flow *f) {
        return f->mismatch;
}
