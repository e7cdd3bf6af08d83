/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Each call has two readers, anchord's ledger and the audit log. Either may be restarting just now, and both must have it once: each call has an id of
 * its own (random for this life of inject, then a number), under which it is sent to each again until it was taken. Neither waits for the other.
 *
 * Reports wait in a bounded list. It does not grow beyond that, since no call is admitted for which there is no place (request_admit_call()).
 * Should it all the same, the oldest is given up, loudly.
 *
 * The process may end with reports that were not taken: of calls that were under way, above all. Then the loop does not turn any more, and the last
 * word is said by usage_report_tell_last(), which waits. What may have been taken already counts once all the same.
 */

#include "inject/usage-report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "audit/audit-api.h"
#include "ipc/ipc.h"
#include "ledger/usage-limits.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define METHOD "io.anchorhold.Run.AddUsage"
#define AGAIN_USEC (1000ULL * 1000)
#define LATENCY_MAX (1ULL << 40) /* microseconds; what anchord takes */
#define ANSWER_USEC (10ULL * 1000 * 1000)

enum { TRIES_MAX = 60 };

typedef struct Report Report;

/* To one of the two readers. */
typedef struct Telling {
        bool under_way, over; /* the latter: taken, or given up */
        unsigned tries;       /* that were refused, by somebody who was there */
} Telling;

/* One of them. While it is away only the oldest report is sent again and again, so that it is not drowned in them, nor the journal. */
typedef struct Reader {
        const char *name; /* static */
        bool away;
} Reader;

struct Report {
        UsageReport *owner; /* borrowed */
        Report *next;
        json_t *params, *data; /* ref; for anchord and for the audit log */
        char id[48];
        Telling ledger, audit;
};

struct UsageReport {
        AuditClient *audit; /* borrowed */
        const char *run;    /* borrowed */
        IpcClient *client;  /* owned */
        sd_event_source *timer; /* owned */
        Report *reports;    /* owned, oldest first */
        size_t n_reports;
        Reader anchord, auditd;
        uint64_t life, number, again_usec;
};

static void report_drop(Report *report) {
        UsageReport *u = report->owner;

        for (Report **p = &u->reports; *p; p = &(*p)->next)
                if (*p == report) {
                        *p = report->next;
                        u->n_reports--;
                        break;
                }
        json_unref(report->params);
        json_unref(report->data);
        free(report);
}

static void again(UsageReport *u, uint64_t usec) {
        (void) sd_event_source_set_time_relative(u->timer, usec);
        (void) sd_event_source_set_enabled(u->timer, SD_EVENT_ONESHOT);
}

/* Taken, or given up. Once that is so of both, it is gone. */
static void telling_end(Report *report, Telling *t) {
        t->over = true;
        if (report->ledger.over && report->audit.over)
                report_drop(report);
}

static void telling_taken(Report *report, Telling *t, Reader *by) {
        if (by->away)
                again(report->owner, 0);
        by->away = false;
        telling_end(report, t);
}

/* Whoever is not there will be. Who is there and says no may say so for a minute. */
static void telling_failed(Report *report, Telling *t, Reader *by, bool passing, const char *error) {
        by->away = passing;
        if (!passing && ++t->tries >= TRIES_MAX) {
                log_error("a model call could not be reported to %s: %s", by->name, error);
                telling_end(report, t);
        } else
                again(report->owner, report->owner->again_usec);
}

static void report_on_reply(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Report *report = userdata;

        report->ledger.under_way = false;
        if (error)
                telling_failed(report, &report->ledger, &report->owner->anchord, ipc_error_is_passing(error), error);
        else
                telling_taken(report, &report->ledger, &report->owner->anchord);
}

static void report_on_recorded(int r, void *userdata) {
        Report *report = userdata;

        report->audit.under_way = false;
        if (r < 0)
                telling_failed(report, &report->audit, &report->owner->auditd, r == -ENOTCONN || r == -ETIMEDOUT || r == -EHOSTDOWN, strerror(-r));
        else
                telling_taken(report, &report->audit, &report->owner->auditd);
}

static bool is_due(const Telling *t) {
        return !t->over && !t->under_way;
}

/* Answers come from the loop: nothing is gone when these return. */
static void tell_anchord(Report *report) {
        UsageReport *u = report->owner;
        int r;

        r = ipc_client_call_async(u->client, METHOD, json_incref(report->params), NULL, 0, false, ANSWER_USEC, report_on_reply, report);
        report->ledger.under_way = r >= 0;
        if (r < 0)
                again(u, u->again_usec);
}

static void tell_auditd(Report *report) {
        UsageReport *u = report->owner;
        int r;

        r = audit_append_once(u->audit, report->id, "model.call", u->run, NULL, NULL, json_incref(report->data), report_on_recorded, report);
        report->audit.under_way = r >= 0;
        if (r < 0)
                again(u, u->again_usec);
}

static int usage_report_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        UsageReport *u = userdata;
        bool to_anchord = true, to_auditd = true;

        for (Report *report = u->reports; report; report = report->next) {
                if (to_anchord && is_due(&report->ledger))
                        tell_anchord(report);
                if (to_auditd && is_due(&report->audit))
                        tell_auditd(report);
                to_anchord = to_anchord && !(u->anchord.away && !report->ledger.over);
                to_auditd = to_auditd && !(u->auditd.away && !report->audit.over);
        }
        return 0;
}

int usage_report_new(UsageReport **ret, sd_event *event, AuditClient *audit, const char *run, const char *socket_path) {
        _cleanup_(usage_report_freep) UsageReport *u = calloc(1, sizeof(*u));
        int r;

        if (!u)
                return -ENOMEM;
        u->audit = audit;
        u->run = run;
        u->anchord.name = "anchord";
        u->auditd.name = "the audit log";
        u->again_usec = AGAIN_USEC;
        if (getrandom(&u->life, sizeof(u->life), 0) != sizeof(u->life))
                return -EIO;
        r = ipc_client_new(&u->client, event, socket_path);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(event, &u->timer, CLOCK_BOOTTIME, AGAIN_USEC, 0, usage_report_on_timer, u);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(u);
        return 0;
}

UsageReport *usage_report_free(UsageReport *u) {
        if (!u)
                return NULL;
        u->client = ipc_client_free(u->client);
        u->timer = sd_event_source_disable_unref(u->timer);
        if (u->n_reports > 0)
                log_warning("%zu model calls were not reported to anchord or the audit log", u->n_reports);
        while (u->reports)
                report_drop(u->reports);
        free(u);
        return NULL;
}

void usage_report_set_again(UsageReport *u, uint64_t usec) {
        u->again_usec = usec;
}

/* ---- the last word ---- */

static int last_to_anchord(UsageReport *u, const Report *report, uint64_t until_usec) {
        uint64_t now = time_monotonic();

        return now < until_usec ? ipc_client_call(u->client, METHOD, json_incref(report->params), NULL, 0, until_usec - now, NULL, NULL, NULL, 0) : -ETIMEDOUT;
}

static int last_to_auditd(UsageReport *u, const Report *report, uint64_t until_usec) {
        return audit_append_sync_until(report->id, "model.call", u->run, json_incref(report->data), until_usec);
}

/* Somebody who is there and does not take this one may take the next; whoever does not answer is not asked about the others. */
static bool is_refusal(int r) {
        return r == -EREMOTEIO || r == -EINVAL || r == -EACCES;
}

static void tell_all(UsageReport *u, bool audit, uint64_t until_usec) {
        int r = 0;

        for (Report *report = u->reports; report && (r >= 0 || is_refusal(r)); report = report->next) {
                Telling *t = audit ? &report->audit : &report->ledger;

                if (t->over)
                        continue;
                r = audit ? last_to_auditd(u, report, until_usec) : last_to_anchord(u, report, until_usec);
                t->over = r >= 0 || is_refusal(r);
                if (r < 0)
                        log_error_errno(r, "model call %s%s could not be %s", report->id, is_refusal(r) ? "" : " and those after it", audit ? "recorded" : "reported to anchord");
        }
}

void usage_report_tell_last(UsageReport *u, uint64_t until_usec) {
        uint64_t now = time_monotonic();

        if (!u)
                return;
        tell_all(u, false, now < until_usec ? now + (until_usec - now) / 2 : now);
        tell_all(u, true, until_usec);
        for (Report *report = u->reports, *next; report; report = next) {
                next = report->next;
                if (report->ledger.over && report->audit.over)
                        report_drop(report);
        }
}

/* ---- what is said ---- */

/* An origin's numbers are not to be believed beyond reason, and anchord refuses such ones: what is more than that is no count but an estimate. */
static void bound(uint64_t *n, uint64_t max, bool *cut) {
        if (*n > max) {
                *n = max;
                *cut = true;
        }
}

void usage_call_conclude(UsageCall *call, const json_t *provider, UsageReader *reader, uint64_t prompt_bytes) {
        UsageFacts facts = { .prompt_bytes = prompt_bytes, .status = call->status, .complete = call->complete };

        usage_conclude(provider, reader, &facts, &call->usage);
        call->cost_microusd = usage_cost(provider, &call->usage, &call->price);
        call->prices_version = json_string_value(json_object_get(provider, "prices_version"));
}

static bool raise_to(uint64_t *n, uint64_t least) {
        bool raised = *n < least;

        if (raised)
                *n = least;
        return raised;
}

void usage_call_settle(UsageCall *call, const json_t *provider, uint64_t input_tokens, uint64_t output_tokens, uint64_t cost_microusd) {
        Usage *u = &call->usage;
        bool raised = false;

        if (u->output_unsaid)
                raised = raise_to(&u->output_tokens, output_tokens);
        if (u->input_unsaid)
                raised = raise_to(&u->input_tokens, input_tokens) || raised;
        u->estimated = u->estimated || raised;
        call->cost_microusd = usage_cost(provider, u, &call->price);
        if (u->output_unsaid && u->input_unsaid)
                u->estimated = raise_to(&call->cost_microusd, cost_microusd) || u->estimated;
}

static json_t *describe(const UsageCall *call, const char *id) {
        uint64_t cost = call->cost_microusd, latency = call->latency_usec;
        bool cut = call->usage.estimated, slow = false;
        Usage u = call->usage;

        bound(&u.input_tokens, USAGE_TOKENS_MAX, &cut);
        bound(&u.output_tokens, USAGE_TOKENS_MAX, &cut);
        bound(&u.cache_read_tokens, USAGE_TOKENS_MAX, &cut);
        bound(&u.cache_write_tokens, USAGE_TOKENS_MAX, &cut);
        bound(&cost, USAGE_COST_MAX, &cut);
        bound(&latency, LATENCY_MAX, &slow);
        return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:s, s:s, s:s, s:b}", "provider", call->provider, "model", u.model,
                         "input_tokens", (json_int_t) u.input_tokens, "output_tokens", (json_int_t) u.output_tokens,
                         "cache_read_tokens", (json_int_t) u.cache_read_tokens, "cache_write_tokens", (json_int_t) u.cache_write_tokens,
                         "cost_microusd", (json_int_t) cost, "status", (int) call->status,
                         "latency_us", (json_int_t) latency, "call", id, "price", usage_price_name(call->price),
                         "prices_version", call->prices_version ? call->prices_version : "", "estimated", (int) cut);
}

/* The same, and what the ledger has no use for. */
static json_t *describe_for_audit(const UsageCall *c, const json_t *params) {
        _cleanup_json_ json_t *data = params ? json_copy((json_t *) params) : NULL;

        if (!data || json_object_set_new(data, "host", json_string(c->host)) < 0 ||
            json_object_set_new(data, "credential", c->credential ? json_string(c->credential) : json_null()) < 0 ||
            json_object_set_new(data, "complete", json_boolean(c->complete)) < 0 ||
            json_object_set_new(data, "metered", json_boolean(c->usage.found)) < 0)
                return NULL;
        return TAKE_PTR(data);
}

void usage_report_new_id(UsageReport *u, char ret[static 48]) {
        (void) snprintf(ret, 48, "%016llx-%llu", (unsigned long long) u->life, (unsigned long long) ++u->number);
}

size_t usage_report_waiting(const UsageReport *u) {
        return u->n_reports;
}

static void drop_oldest(UsageReport *u) {
        for (Report *old = u->reports; old; old = old->next)
                if (!old->ledger.under_way && !old->audit.under_way) {
                        log_error("too many model calls wait to be reported: the oldest is given up");
                        report_drop(old);
                        return;
                }
}

void usage_report_add(UsageReport *u, const UsageCall *call) {
        Report *report = calloc(1, sizeof(*report)), **end = &u->reports;

        if (report) {
                if (call->id)
                        (void) snprintf(report->id, sizeof(report->id), "%s", call->id);
                else
                        usage_report_new_id(u, report->id);
                report->params = describe(call, report->id);
                report->data = describe_for_audit(call, report->params);
        }
        if (!report || !report->params || !report->data) {
                if (report) {
                        json_unref(report->params);
                        json_unref(report->data);
                }
                free(report);
                log_oom();
                return;
        }

        if (u->n_reports >= USAGE_REPORTS_MAX)
                drop_oldest(u);
        report->owner = u;
        while (*end)
                end = &(*end)->next;
        *end = report;
        u->n_reports++;
        tell_anchord(report);
        tell_auditd(report);
}
