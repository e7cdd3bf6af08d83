/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * How a run ends by its own word: Finish, Imported, and Mismatch of the agreement check.
 *
 * An end with a result waits until that is stored, which takes as long as the disk does; so an end is under way, and at most one
 * of a kind for a run. Who says the same again, because the answer did not come in time, waits with the others for that one:
 * nothing is copied twice. Every STORING_USEC whoever waits is told that it goes on (`Storing`), and asks again as long as that is so.
 *
 * The last word counts from when it has come, with its descriptors, not from when it is answered: if the unit ends meanwhile, the run is not lost
 * (flow_set_storing()). What fails for a moment (memory, descriptors, a queue that is full) ends nothing either: the caller asks again, with
 * what it has. If it is gone by then, the run is.
 *
 * A mismatch counts from when it is said, before anybody is asked what led to it: whichever end comes first then, it is that of the mismatch
 * (flow_on_mismatch()). And if the check, or its probe, goes before a result is taken up, the result is not: it may have had something to say.
 *
 * At a crash: the connection breaks, and the caller, who still has the file, says it all again to the next life. What the copy had come to is removed
 * before that is ready (store_remove_partial()).
 */

#include <errno.h>
#include <string.h>

#include "api/run-api-internal.h"
#include "util/json.h"

enum { STORING_USEC = 2 * 1000 * 1000 }; /* less than any caller waits for an answer */

typedef enum EndingKind { ENDING_FINISH, ENDING_IMPORT, ENDING_MISMATCH } EndingKind;

typedef struct Waiting {
        struct Waiting *next;
        IpcCall *call; /* ref */
} Waiting;

/* Looked up by run: the flow may be gone when its files are there. */
struct Ending {
        Manager *manager; /* borrowed */
        Ending *next;     /* in the manager's list, once it is in it */
        EndingKind kind;
        char run[ID_LENGTH + 1], item[ID_LENGTH + 1];
        Waiting *waiting;                /* owned; who is owed an answer */
        sd_event_source *timer;          /* owned */
        bool ok, stored;                 /* the latter: its result is there */
        bool asked;                      /* what became of the agreement check is known */
        char *outcome, *reason, *commit; /* owned */
        json_t *facts;                   /* owned */
        int diff_fd;                     /* owned; to be copied after the bundle */
};

static Ending *ending_free(Ending *e) {
        if (!e)
                return NULL;

        for (Ending **p = &e->manager->endings; *p; p = &(*p)->next)
                if (*p == e) {
                        *p = e->next;
                        break;
                }
        while (e->waiting) {
                Waiting *w = e->waiting;

                e->waiting = w->next;
                (void) ipc_call_unref(w->call);
                free(w);
        }
        e->timer = sd_event_source_disable_unref(e->timer);
        free(e->outcome);
        free(e->reason);
        free(e->commit);
        (void) json_unref(e->facts);
        (void) fd_close(e->diff_fd);
        free(e);
        return NULL;
}
DEFINE_CLEANUP(Ending *, ending_free)

void endings_free(Manager *m) {
        while (m->endings)
                (void) ending_free(m->endings);
}

/* ---- who waits ---- */

static int ending_attach(Ending *e, IpcCall *call) {
        Waiting *w;

        /* who does not wait any more has no place here */
        for (Waiting **p = &e->waiting; (w = *p);)
                if (ipc_call_is_live(w->call))
                        p = &w->next;
                else {
                        *p = w->next;
                        (void) ipc_call_unref(w->call);
                        free(w);
                }

        w = malloc(sizeof(*w));
        if (!w)
                return -ENOMEM;
        *w = (Waiting) { .next = e->waiting, .call = ipc_call_ref(call) };
        e->waiting = w;
        return 0;
}

/* Answers everybody who waits: with an error, or NULL. */
static void ending_answer(Ending *e, const char *error, const char *reason) {
        while (e->waiting) {
                Waiting *w = e->waiting;

                e->waiting = w->next;
                if (error)
                        (void) ipc_call_refuse(w->call, error, "%s", reason);
                else
                        (void) ipc_call_reply(w->call, NULL);
                (void) ipc_call_unref(w->call);
                free(w);
        }
}

/* Is this end of the run that calls under way already? */
static Ending *ending_find(Manager *m, const Flow *f, EndingKind kind) {
        for (Ending *e = m->endings; e; e = e->next)
                if (e->kind == kind && strcmp(e->run, flow_run(f)) == 0)
                        return e;
        return NULL;
}

static int ending_new(Manager *m, Flow *f, EndingKind kind, IpcCall *call, json_t *params, Ending **ret) {
        _cleanup_(ending_freep) Ending *e = NULL;
        json_t *facts = json_object_get(params, "facts");
        size_t size;
        int r;

        e = calloc(1, sizeof(*e));
        if (!e)
                return -ENOMEM;
        *e = (Ending) { .manager = m, .kind = kind, .diff_fd = -1 };
        (void) snprintf(e->run, sizeof(e->run), "%s", flow_run(f));
        (void) snprintf(e->item, sizeof(e->item), "%s", flow_item(f));
        e->reason = run_api_bounded(run_api_get(params, "reason"), RUN_API_REASON_MAX);
        if (!e->reason)
                return -ENOMEM;

        if (json_is_object(facts)) {
                r = run_api_measure(facts, &size);
                if (r == -ENOMEM)
                        return r;
                if (r >= 0)
                        e->facts = json_incref(facts);
        }

        r = ending_attach(e, call);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(e);
        return 0;
}

/* From here on it is found. */
static Ending *ending_begin(Ending *e) {
        e->next = e->manager->endings;
        e->manager->endings = e;
        return e;
}

/* ---- what came of it ---- */

/* Nothing is the matter with what was sent, and the next attempt may do better. */
static bool error_is_passing(int r) {
        return r == -EBUSY || r == -ENOMEM || r == -EMFILE || r == -ENFILE || r == -EAGAIN;
}

/* What it sent was no file, too large, or the disk is full: that is how this run ended. */
static const char *error_text(int r) {
        return r == -EFBIG ? "the result is larger than the workflow allows" : r == -EMEDIUMTYPE ? "the result was not a regular file" : strerror(-r);
}

static int ending_tell(Ending *e, Flow *f, int r) {
        if (e->kind == ENDING_IMPORT)
                return r < 0 ? flow_on_imported(f, false, error_text(r), NULL, NULL) : flow_on_imported(f, e->ok, e->reason, e->commit, e->facts);
        if (r < 0)
                return flow_on_finish(f, "failed", error_text(r), e->facts);
        if (e->stored)
                flow_set_kept(f);
        return flow_on_finish(f, e->outcome, e->reason, e->facts);
}

static void ending_complete(Ending *e, int r);

static void on_check_lost(const char *what, void *userdata) {
        Ending *e = userdata;
        const Flow *f = flow_find_run(e->manager, e->run);
        char *reason = NULL;

        e->asked = true;
        /* All units go with a slice, and any of them may be named first. */
        if (what && strncmp(what, "anchorhold-runs", strlen("anchorhold-runs")) == 0 && f && flow_check_loss(f) != CHECK_DIED) {
                ending_complete(e, 0);
                return;
        }

        e->stored = false;
        free(e->outcome);
        e->outcome = strdup("error");
        reason = what ? text_format("%s, before the result was taken up", what) : NULL;
        if (reason) {
                free(e->reason);
                e->reason = reason;
        }
        ending_complete(e, reason && e->outcome ? 0 : -ENOMEM);
}

/* Does it bring something that only a run under its agreement check may bring, and was that there? */
static bool ending_lacks_check(const Ending *e, const Flow *f) {
        return !e->asked && e->kind == ENDING_FINISH && (e->stored || strcmp(e->outcome, "ok") == 0) && !flow_mismatch(f) &&
               flow_check_loss(f) != CHECK_THERE;
}

/* It is in the manager's list. */
static void ending_complete(Ending *e, int r) {
        _cleanup_(ending_freep) Ending *ending = e;
        Flow *f = flow_find_run(e->manager, e->run);

        if (!f || !(e->kind == ENDING_IMPORT ? flow_accepts_import(f) : flow_accepts_run(f))) {
                /* a mismatch that was taken in is what the run has ended with */
                if (e->kind == ENDING_MISMATCH)
                        ending_answer(e, NULL, NULL);
                else
                        ending_answer(e, "NoSuchRun", "the run has ended otherwise meanwhile");
                return;
        }

        if (error_is_passing(r)) {
                /* a full queue is one that moves: that takes as long as it takes */
                ending_answer(e, r == -EBUSY ? "Storing" : "Unavailable", strerror(-r));
                flow_set_storing(f, false);
                return;
        }
        if (r >= 0 && ending_lacks_check(e, f)) {
                flow_ask_slice(f, e->reason, on_check_lost, TAKE_PTR(ending));
                return;
        }

        if (ending_tell(e, f, r) < 0) {
                ending_answer(e, "Unavailable", "the end of the run cannot be recorded");
                flow_set_storing(f, false);
        } else
                ending_answer(e, NULL, NULL);
}

static void on_diff_stored(int r, void *userdata) {
        ending_complete(userdata, r);
}

static void on_bundle_stored(int r, void *userdata) {
        Ending *e = userdata;

        e->stored = r >= 0;
        if (r >= 0 && e->diff_fd >= 0) {
                r = store_copy(e->manager->store, e->item, STORE_DIFF, TAKE_FD(e->diff_fd), STORE_DIFF_MAX, on_diff_stored, e);
                if (r >= 0)
                        return;
        }
        ending_complete(e, r);
}

static int on_storing(sd_event_source *source, uint64_t usec, void *userdata) {
        Ending *e = userdata;

        ending_answer(e, "Storing", "the result is being stored");
        if (sd_event_source_set_time_relative(source, STORING_USEC) >= 0)
                (void) sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
        return 0; /* without the timer they are not told, and ask again when their own is over */
}

/* Takes the bundle, and the ending, over. */
static int ending_store(Ending *ending, Flow *f, const char *name, int bundle, uint64_t max) {
        Ending *e = ending_begin(ending);
        int r;

        flow_set_storing(f, true);
        r = store_copy(e->manager->store, e->item, name, bundle, max, on_bundle_stored, e);
        if (r < 0)
                ending_complete(e, r);
        else
                (void) sd_event_add_time_relative(e->manager->event, &e->timer, CLOCK_MONOTONIC, STORING_USEC, 0, on_storing, e);
        return 0;
}

/* What ends a run in an error may be that its slice was stopped, or another of its units. */
static void on_slice(const char *what, void *userdata) {
        Ending *e = userdata;
        char *reason = what ? flow_lost_reason(what, e->reason) : NULL;

        if (reason) {
                free(e->reason);
                e->reason = reason;
        }
        ending_complete(e, 0);
}

static void ending_ask_slice(Ending *ending, Flow *f) {
        Ending *e = ending_begin(ending);

        flow_ask_slice(f, e->reason, on_slice, e);
}

/* ---- the calls ---- */

static bool is_outcome(const char *s) {
        return s && (strcmp(s, "ok") == 0 || strcmp(s, "failed") == 0 || strcmp(s, "error") == 0);
}

int run_api_on_finish(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = run_api_flow(m, call);
        const char *outcome = run_api_get(params, "outcome");
        _cleanup_(ending_freep) Ending *e = NULL;
        _cleanup_fd_ int bundle = -1;
        bool wants_bundle, over;
        Ending *same;
        int r;

        if (!f)
                return run_api_no_run(call);
        if (!flow_accepts_run(f))
                return ipc_call_reply(call, NULL); /* said before: the answer got lost */
        same = ending_find(m, f, ENDING_FINISH);
        if (same)
                return ending_attach(same, call);
        if (!is_outcome(outcome))
                return run_api_bad_input(call, "/outcome", "not one of ok, failed, error");

        r = ending_new(m, f, ENDING_FINISH, call, params, &e);
        if (r < 0)
                return r;

        over = strcmp(outcome, "failed") == 0 && flow_is_over_budget(f, e->reason);
        wants_bundle = (strcmp(outcome, "ok") == 0 || over) && strcmp(flow_stage(f), "work") == 0 && flow_base(f);
        bundle = ipc_call_take_fd(call, 0);
        if (wants_bundle && bundle < 0 && !over) {
                outcome = "failed";
                free(e->reason);
                e->reason = strdup("the run ended without a result: no commit was made");
        }
        e->outcome = strdup(outcome);
        if (!e->outcome || !e->reason)
                return -ENOMEM;

        if (wants_bundle && bundle >= 0)
                return ending_store(TAKE_PTR(e), f, STORE_RESULT, TAKE_FD(bundle), flow_limit_bundle(f));
        if (strcmp(outcome, "error") == 0)
                ending_ask_slice(TAKE_PTR(e), f);
        else
                ending_complete(ending_begin(TAKE_PTR(e)), 0);
        return 0;
}

int run_api_on_imported(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        Flow *f = run_api_flow(m, call);
        const char *commit = run_api_get(params, "commit");
        _cleanup_(ending_freep) Ending *e = NULL;
        _cleanup_fd_ int bundle = -1;
        Ending *same;
        int r;

        if (!f)
                return run_api_no_run(call);
        if (!flow_accepts_import(f))
                return ipc_call_reply(call, NULL);
        same = ending_find(m, f, ENDING_IMPORT);
        if (same)
                return ending_attach(same, call);

        r = ending_new(m, f, ENDING_IMPORT, call, params, &e);
        if (r < 0)
                return r;
        e->ok = json_is_true(json_object_get(params, "ok"));
        if (!e->ok) {
                ending_complete(ending_begin(TAKE_PTR(e)), 0);
                return 0;
        }
        if (!commit || !text_is_commit(commit))
                return run_api_bad_input(call, "/commit", "not a full commit id");
        e->commit = strdup(commit);
        if (!e->commit)
                return -ENOMEM;

        bundle = ipc_call_take_fd(call, 0);
        e->diff_fd = ipc_call_take_fd(call, 1);
        if (bundle < 0)
                return run_api_bad_input(call, "/", "the checked bundle is missing");

        /* twice the bound: base history and result together */
        return ending_store(TAKE_PTR(e), f, STORE_CHECKED, TAKE_FD(bundle), 2 * flow_limit_bundle(f));
}

/* From anchor-check@: what makes the run end is its unit; this is the reason, from now on, whatever else the run says meanwhile. */
int run_api_on_mismatch(IpcCall *call, json_t *params, void *userdata) {
        _cleanup_(ending_freep) Ending *e = NULL;
        _cleanup_free_ char *text = NULL;
        Manager *m = userdata;
        Flow *f = run_api_flow(m, call);
        Ending *same;
        int r;

        if (!f || !flow_accepts_run(f))
                return run_api_no_run(call);
        text = run_api_bounded(run_api_get(params, "reason"), RUN_API_REASON_MAX);
        r = text ? flow_on_mismatch(f, text) : -ENOMEM;
        if (r < 0)
                return r;
        same = ending_find(m, f, ENDING_MISMATCH);
        if (same)
                return ending_attach(same, call);

        r = ending_new(m, f, ENDING_MISMATCH, call, params, &e);
        if (r < 0)
                return r;
        free(e->reason);
        e->reason = strdup(flow_mismatch(f));
        e->outcome = strdup("error");
        if (!e->reason || !e->outcome)
                return -ENOMEM;
        ending_ask_slice(TAKE_PTR(e), f);
        return 0;
}
