/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Making room: seeds, results and logs of items that have ended are removed when they are older or more than host.json allows
 * (policy/policy-space.c), what ended first goes first. Once an hour, when space gets low, and when an operator asks. Rows of the ledger
 * and the audit log are never touched.
 *
 *     plan ─▶ ledger: rows and `space.pruned` in one transaction ─▶ auditd has it ─▶ files ─▶ rows are done
 *
 * What an item that has not ended has counts against the limits, and stays. What was recorded and not yet removed when anchord died
 * is removed by its next life. Files go a few at a time, so that others are answered in between.
 */

#include <errno.h>
#include <string.h>

#include "api/operator-internal.h"
#include "util/json.h"
#include "util/log.h"

enum {
        STEP_PARTS = 16,         /* removed in one turn of the loop */
        LISTED_MAX = 1000,       /* in an answer */
        AGE_MAX_S = 100 * 365 * 86400U,
};

#define PRUNE_FIRST_USEC (10 * USEC_PER_SEC)
#define PRUNE_EVERY_USEC (3600 * USEC_PER_SEC)

struct PruneCall {
        PruneCall *next;
        IpcCall *call; /* ref */
        json_t *reply; /* owned */
};

typedef struct Candidate {
        LedgerKept kept;
        StoreUsage usage;
} Candidate;

typedef struct Plan {
        Manager *manager; /* borrowed */
        Candidate *all;   /* owned; oldest first */
        size_t n, room;
        uint64_t used[_LEDGER_PART_MAX], max[_LEDGER_PART_MAX], age_s[_LEDGER_PART_MAX];
        LedgerPrune *list; /* owned; what is to go */
        size_t n_list;
} Plan;

static void plan_done(Plan *p) {
        free(p->all);
        free(p->list);
        *p = (Plan) {};
}

static uint64_t bytes_of(const Candidate *c, LedgerPart part) {
        return part == LEDGER_PART_LOGS ? c->usage.log : c->usage.rest;
}

static bool has(const Candidate *c, LedgerPart part) {
        return !c->kept.pruned[part] && (part == LEDGER_PART_LOGS ? c->usage.has_log : c->usage.has_rest);
}

static int add_candidate(const LedgerKept *item, void *userdata) {
        Candidate c = { .kept = *item };
        Plan *p = userdata;

        if (store_usage(p->manager->store, item->item, &c.usage) < 0)
                return 0; /* it has no folder, or none that could be pruned */
        if (flow_find_item(p->manager, item->item))
                c.kept.ended = false; /* closed, and still at it */

        if (p->n == p->room) {
                size_t room = p->room > 0 ? p->room * 2 : 64;
                Candidate *more = reallocarray(p->all, room, sizeof(*more));

                if (!more)
                        return -ENOMEM;
                p->all = more;
                p->room = room;
        }
        p->all[p->n++] = c;
        for (LedgerPart part = 0; part < _LEDGER_PART_MAX; part++)
                p->used[part] += bytes_of(&c, part);
        return 0;
}

/* NULL: it stays. */
static const char *reason_to_prune(const Plan *p, const Candidate *c, LedgerPart part, uint64_t left, uint64_t now, uint64_t asked_s) {
        uint64_t age_s = now > c->kept.changed_usec ? (now - c->kept.changed_usec) / USEC_PER_SEC : 0;

        if (!c->kept.ended || !has(c, part))
                return NULL;
        if (p->age_s[part] > 0 && age_s >= p->age_s[part])
                return "age";
        if (left > p->max[part])
                return "quota";
        return age_s >= asked_s ? "asked" : NULL;
}

/* asked_s: what ended so long ago goes as well; UINT64_MAX: nobody asks for that. */
static int plan_make(Manager *m, uint64_t asked_s, Plan *ret) {
        const PolicySpace *space = &policy_host(m->policy)->space;
        const struct PolicySpaceLimit *limits[_LEDGER_PART_MAX] = { [LEDGER_PART_BUNDLES] = &space->bundles, [LEDGER_PART_LOGS] = &space->logs };
        _cleanup_(plan_done) Plan p = { .manager = m };
        uint64_t now = time_realtime();
        int r;

        space_look(m); /* how large is the whole? */
        r = ledger_kept(m->ledger, add_candidate, &p);
        if (r < 0)
                return r;
        p.list = calloc(p.n > 0 ? 2 * p.n : 1, sizeof(*p.list));
        if (!p.list)
                return -ENOMEM;

        for (LedgerPart part = 0; part < _LEDGER_PART_MAX; part++) {
                uint64_t left = p.used[part];

                p.max[part] = policy_amount_smallest(&limits[part]->max, m->space.total);
                p.age_s[part] = limits[part]->age_s;
                for (size_t i = 0; i < p.n; i++) {
                        const Candidate *c = p.all + i;
                        const char *why = reason_to_prune(&p, c, part, left, now, asked_s);
                        LedgerPrune *entry = p.list + p.n_list;

                        if (!why)
                                continue;
                        *entry = (LedgerPrune) { .part = part, .bytes = bytes_of(c, part), .why = why };
                        memcpy(entry->item, c->kept.item, sizeof(entry->item));
                        left -= entry->bytes;
                        p.n_list++;
                }
        }

        *ret = p;
        p = (Plan) {};
        return 0;
}

/* Records all that is to go; files follow when auditd has it. */
static int plan_record(Manager *m, const Plan *p, const char *actor) {
        int r = 0;

        for (size_t i = 0; i < p->n_list && r == 0; i += LEDGER_PRUNE_MAX)
                r = ledger_prune(m->ledger, p->list + i, p->n_list - i < LEDGER_PRUNE_MAX ? p->n_list - i : LEDGER_PRUNE_MAX, actor);
        if (p->n_list > 0) {
                log_info("pruning of %zu parts of items begins, for %s", p->n_list, actor);
                m->pruning = true;
                outbox_kick(m);
        }
        return r;
}

/* ---- removing ---- */

static void answer_all(Manager *m) {
        while (m->prune_calls) {
                PruneCall *c = m->prune_calls;

                m->prune_calls = c->next;
                (void) json_object_set_new(c->reply, "space", space_status(m)); /* as it is now */
                (void) ipc_call_reply(c->call, c->reply);
                (void) ipc_call_unref(c->call);
                free(c);
        }
}

static int on_step(sd_event_source *source, uint64_t usec, void *userdata) {
        Manager *m = userdata;
        char item[ID_LENGTH + 1];
        LedgerPart part;
        int r = 0;

        /* else an event came in between; when that is with auditd as well, this goes on */
        for (unsigned i = 0; r == 0 && i < STEP_PARTS && outbox_is_empty(m); i++) {
                r = ledger_prune_next(m->ledger, item, &part);
                if (r != 0)
                        break;
                if (part == LEDGER_PART_LOGS)
                        manager_close_log(m, item);
                r = store_prune(m->store, item, part == LEDGER_PART_LOGS);
                if (r < 0)
                        log_warning_errno(r, "%s: cannot remove all of its %s", item, ledger_part_name(part));
                r = ledger_prune_done(m->ledger, item, part);
        }
        if (r < 0)
                (void) manager_fatal(m, r, "record what was pruned");
        else if (r == LEDGER_E_NO_WORK) {
                m->pruning = false;
                answer_all(m);
        } else
                prune_on_audited(m);
        return 0;
}

void prune_on_audited(Manager *m) {
        int r;

        if (!m->pruning || !outbox_is_empty(m))
                return;
        if (m->prune_step) {
                r = sd_event_source_set_time(m->prune_step, 0);
                if (r >= 0)
                        r = sd_event_source_set_enabled(m->prune_step, SD_EVENT_ONESHOT);
        } else {
                r = sd_event_add_time(m->event, &m->prune_step, CLOCK_MONOTONIC, 0, 1, on_step, m);
                if (r >= 0)
                        r = sd_event_source_set_priority(m->prune_step, SD_EVENT_PRIORITY_IDLE);
        }
        if (r < 0)
                (void) manager_fatal(m, r, "go on pruning");
}

void prune_free(Manager *m) {
        while (m->prune_calls) {
                PruneCall *c = m->prune_calls;

                m->prune_calls = c->next;
                (void) ipc_call_unref(c->call);
                json_decref(c->reply);
                free(c);
        }
        m->prune_step = sd_event_source_disable_unref(m->prune_step);
}

/* ---- by time ---- */

void prune_soon(Manager *m) {
        m->prune_next = 1;
}

static void on_policy(int r, void *userdata) {
        _cleanup_(plan_done) Plan p = {};
        Manager *m = userdata;

        if (r < 0) {
                if (r != -ECANCELED)
                        log_warning_errno(r, "nothing is pruned: the policy cannot be read");
                return;
        }
        if (policy_host_reason(m->policy)) {
                log_warning("nothing is pruned: host.json cannot be used: %s", policy_host_reason(m->policy));
                return;
        }
        r = plan_make(m, UINT64_MAX, &p);
        if (r >= 0)
                r = plan_record(m, &p, "anchord");
        if (r == -ENOSPC)
                log_warning("cannot prune: the disk is too full to record it; make some room by hand");
        else if (r < 0)
                (void) manager_fatal(m, r, "prune");
}

void prune_tick(Manager *m) {
        uint64_t now = time_monotonic();
        int r;

        if (m->prune_next == 0) {
                m->prune_next = now + PRUNE_FIRST_USEC;
                m->pruning = true; /* what an earlier life recorded and did not get to */
                prune_on_audited(m);
                return;
        }
        if (now < m->prune_next)
                return;
        m->prune_next = now + PRUNE_EVERY_USEC;
        r = manager_read_policy(m, on_policy, m);
        if (r < 0)
                on_policy(r, m);
}

/* ---- for operators ---- */

bool prune_refuse(Manager *m, IpcCall *call, const char *item, LedgerPart part) {
        char when[TIME_TEXT_SIZE];
        uint64_t usec;

        if (ledger_pruned(m->ledger, item, part, &usec) != 0)
                return false;
        text_time(usec, when);
        (void) ipc_call_refuse(call, "Conflict", "the %s of %s were pruned on %s", ledger_part_name(part), item, when);
        return true;
}

static json_t *describe_part(const Plan *p, LedgerPart part) {
        json_int_t n = 0, bytes = 0;

        for (size_t i = 0; i < p->n_list; i++)
                if (p->list[i].part == part) {
                        n++;
                        bytes += (json_int_t) p->list[i].bytes;
                }
        return json_pack("{s:s, s:I, s:o, s:o, s:I, s:I}", "part", ledger_part_name(part), "used", (json_int_t) p->used[part],
                         "max", p->max[part] == UINT64_MAX ? json_null() : json_integer((json_int_t) p->max[part]),
                         "age_s", p->age_s[part] == 0 ? json_null() : json_integer((json_int_t) p->age_s[part]), "items", n, "bytes", bytes);
}

static json_t *describe(Manager *m, const Plan *p, bool dry_run) {
        json_t *parts = json_array(), *items = json_array();

        for (LedgerPart part = 0; part < _LEDGER_PART_MAX; part++)
                (void) json_array_append_new(parts, describe_part(p, part));
        for (size_t i = 0; i < p->n_list && i < LISTED_MAX; i++)
                (void) json_array_append_new(items, json_pack("{s:s, s:s, s:I, s:s}", "item", p->list[i].item, "part", ledger_part_name(p->list[i].part),
                                                              "bytes", (json_int_t) p->list[i].bytes, "why", p->list[i].why));
        return json_pack("{s:b, s:o, s:o, s:b, s:o}", "dry_run", dry_run, "parts", parts, "items", items, "truncated", p->n_list > LISTED_MAX,
                         "space", space_status(m));
}

static int answer_when_done(Manager *m, IpcCall *call, json_t *reply) {
        PruneCall *c = calloc(1, sizeof(*c));

        if (!c) {
                json_decref(reply);
                return -ENOMEM;
        }
        *c = (PruneCall) { .next = m->prune_calls, .call = ipc_call_ref(call), .reply = reply };
        m->prune_calls = c;
        return 0;
}

/* What an operator asked for, while policy is read. */
typedef struct PruneAsk {
        Manager *manager; /* borrowed */
        IpcCall *call;    /* ref */
        uint64_t age_s;   /* UINT64_MAX: by the limits alone */
        bool dry_run;
} PruneAsk;

static int prune_for(const PruneAsk *a) {
        Manager *m = a->manager;
        _cleanup_(plan_done) Plan p = {};
        char actor[64];
        json_t *reply;
        int r;

        if (policy_host_reason(m->policy))
                return ipc_call_refuse(a->call, "Conflict", "nobody knows what this host is to keep, since host.json cannot be used: %s", policy_host_reason(m->policy));
        r = plan_make(m, a->age_s, &p);
        if (r < 0)
                return r;
        reply = describe(m, &p, a->dry_run);
        if (!reply)
                return -ENOMEM;
        if (a->dry_run || p.n_list == 0)
                return ipc_call_reply(a->call, reply);

        r = plan_record(m, &p, peer_name(ipc_call_peer(a->call), actor));
        if (r != 0) {
                json_decref(reply);
                return r == -ENOSPC ? ipc_call_refuse(a->call, "Unavailable", "the disk is too full to record it; make some room by hand")
                                    : manager_fatal(m, r < 0 ? r : -EUCLEAN, "record what is to be pruned");
        }
        return answer_when_done(m, a->call, reply);
}

static void on_policy_for(int r, void *userdata) {
        PruneAsk *a = userdata;

        r = r < 0 ? r : prune_for(a);
        if (r < 0 && r != -ECANCELED)
                (void) ipc_call_refuse(a->call, "Unavailable", "cannot tell what could go: %s", strerror(-r));
        (void) ipc_call_unref(a->call);
        free(a);
}

int prune_on_prune(IpcCall *call, json_t *params, void *userdata) {
        Manager *m = userdata;
        json_t *age = json_object_get(params, "age_s");
        PruneAsk *a;
        int r;

        if (age && !json_is_null(age) && (!json_is_integer(age) || json_integer_value(age) < 0 || json_integer_value(age) > AGE_MAX_S))
                return operator_bad_input(call, "/age_s", "must be between 0 and a hundred years, in seconds");
        if (!m->settled)
                return operator_wait(m, call, params, prune_on_prune);

        a = malloc(sizeof(*a));
        if (!a)
                return -ENOMEM;
        *a = (PruneAsk) { .manager = m, .call = ipc_call_ref(call), .age_s = json_is_integer(age) ? (uint64_t) json_integer_value(age) : UINT64_MAX,
                          .dry_run = json_is_true(json_object_get(params, "dry_run")) };
        r = manager_read_policy(m, on_policy_for, a);
        if (r < 0)
                on_policy_for(r, a);
        return 0;
}
