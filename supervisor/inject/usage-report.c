/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * anchord may be restarting just now, and a call must be counted once: each has an id of its own (random for this
 * life of inject, then a number), under which it is sent again until anchord took it. Reports wait in a
 * bounded list; the oldest is given up, loudly, when it is full. The audit record does not wait for that.
 */

#include "inject/usage-report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "ipc/ipc.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define METHOD "io.anchorhold.Run.AddUsage"
#define AGAIN_USEC (1000ULL * 1000)
#define NUMBER_MAX (1ULL << 40) /* what anchord takes */
#define ANSWER_USEC (10ULL * 1000 * 1000)

enum { TRIES_MAX = 60 };

typedef struct Report Report;

struct Report {
        UsageReport *owner; /* borrowed */
        Report *next;
        json_t *params; /* ref */
        unsigned tries;
        bool under_way;
};

struct UsageReport {
        AuditClient *audit; /* borrowed */
        const char *run;    /* borrowed */
        IpcClient *client;  /* owned */
        sd_event_source *timer; /* owned */
        Report *reports;    /* owned, oldest first */
        size_t n_reports;
        uint64_t life, number;
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
        free(report);
}

static void report_on_reply(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        Report *report = userdata;

        report->under_way = false;
        if (!error) {
                report_drop(report);
                return;
        }
        if (++report->tries == TRIES_MAX) {
                log_error("a model call could not be reported to anchord: %s", error);
                report_drop(report);
                return;
        }
        (void) sd_event_source_set_time_relative(report->owner->timer, AGAIN_USEC);
        (void) sd_event_source_set_enabled(report->owner->timer, SD_EVENT_ONESHOT);
}

static void report_send(Report *report) {
        UsageReport *u = report->owner;
        int r;

        report->under_way = true;
        r = ipc_client_call_async(u->client, METHOD, json_incref(report->params), NULL, 0, false, ANSWER_USEC, report_on_reply, report);
        if (r < 0) {
                log_error_errno(r, "a model call could not be reported to anchord");
                report_drop(report);
        }
}

static int usage_report_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        UsageReport *u = userdata;

        for (Report *report = u->reports, *next; report; report = next) {
                next = report->next;
                if (!report->under_way)
                        report_send(report);
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
                log_warning("%zu model calls were not reported to anchord", u->n_reports);
        while (u->reports)
                report_drop(u->reports);
        free(u);
        return NULL;
}

/* An origin's numbers are not to be believed beyond reason, and anchord refuses such ones. */
static json_int_t bounded(uint64_t n) {
        return (json_int_t) (n < NUMBER_MAX ? n : NUMBER_MAX);
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

static json_t *describe(const UsageCall *c, const char *id) {
        return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:s, s:s, s:s, s:b}", "provider", c->provider, "model", c->usage.model,
                         "input_tokens", bounded(c->usage.input_tokens), "output_tokens", bounded(c->usage.output_tokens),
                         "cache_read_tokens", bounded(c->usage.cache_read_tokens),
                         "cache_write_tokens", bounded(c->usage.cache_write_tokens),
                         "cost_microusd", bounded(c->cost_microusd), "status", (int) c->status,
                         "latency_us", bounded(c->latency_usec), "call", id, "price", usage_price_name(c->price),
                         "prices_version", c->prices_version ? c->prices_version : "", "estimated", (int) c->usage.estimated);
}

static void record(UsageReport *u, const UsageCall *c, const json_t *params) {
        json_t *data = json_copy((json_t *) params);
        int r;

        if (data) {
                (void) json_object_set_new(data, "host", json_string(c->host));
                (void) json_object_set_new(data, "credential", c->credential ? json_string(c->credential) : json_null());
                (void) json_object_set_new(data, "complete", json_boolean(c->complete));
                (void) json_object_set_new(data, "metered", json_boolean(c->usage.found));
        }
        r = data ? audit_append(u->audit, "model.call", u->run, NULL, NULL, data, NULL, NULL) : -ENOMEM;
        if (r < 0)
                log_error_errno(r, "a model call cannot be recorded");
}

void usage_report_new_id(UsageReport *u, char ret[static 48]) {
        (void) snprintf(ret, 48, "%016llx-%llu", (unsigned long long) u->life, (unsigned long long) ++u->number);
}

size_t usage_report_waiting(const UsageReport *u) {
        return u->n_reports;
}

void usage_report_add(UsageReport *u, const UsageCall *call) {
        Report *report = calloc(1, sizeof(*report)), **end = &u->reports;
        char id[48];

        if (!call->id)
                usage_report_new_id(u, id);
        if (report)
                report->params = describe(call, call->id ? call->id : id);
        if (!report || !report->params) {
                free(report);
                log_oom();
                return;
        }

        report->owner = u;
        while (*end)
                end = &(*end)->next;
        *end = report;
        if (++u->n_reports > USAGE_REPORTS_MAX)
                for (Report *old = u->reports; old; old = old->next)
                        if (!old->under_way && old != report) {
                                log_error("too many model calls wait to be reported to anchord: the oldest is given up");
                                report_drop(old);
                                break;
                        }

        record(u, call, report->params);
        report_send(report);
}
