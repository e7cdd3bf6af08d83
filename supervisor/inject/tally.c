/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "inject/tally.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

#define WINDOW_USEC (10ULL * 1000 * 1000)
#define SPENT_USEC (600ULL * 1000 * 1000)

enum { METHOD_SIZE = 24, PATH_SIZE = 129, RULE_SIZE = 256, RECORD_SIZE = 1024 };

typedef struct TallyRequest {
        char method[METHOD_SIZE], path[PATH_SIZE];
        uint64_t count;
} TallyRequest;

typedef struct TallyHost {
        char name[254], rule[RULE_SIZE];
        uint16_t port;
        uint64_t count;
        size_t n_requests;
        TallyRequest requests[TALLY_REQUESTS_MAX];
} TallyHost;

struct Tally {
        AuditClient *audit; /* borrowed */
        const char *run;    /* borrowed */
        sd_event_source *timer; /* owned; on while anything is counted */
        TallyHost *hosts[TALLY_HOSTS_MAX + 1]; /* owned; the last one is everybody else's */
        size_t n_hosts;
        uint64_t n_records; /* so far, long ones for several */
};

static bool is_spent(const Tally *t) {
        return t->n_records >= TALLY_RECORDS_MAX;
}

static json_t *describe(const TallyHost *host) {
        _cleanup_json_ json_t *requests = json_array();

        for (size_t i = 0; i < host->n_requests; i++) {
                const TallyRequest *q = &host->requests[i];
                _cleanup_free_ char *method = text_escape(q->method, strlen(q->method), false), *path = text_escape(q->path, strlen(q->path), false);

                if (!method || !path || json_array_append_new(requests, json_pack("[s, s, I]", method, path, (json_int_t) q->count)) < 0)
                        return NULL;
        }
        return json_pack("{s:s, s:i, s:s, s:I, s:O}", "name", host->name, "port", (int) host->port, "rule", host->rule, "count", (json_int_t) host->count,
                         "requests", requests);
}

static int append(Tally *t, uint64_t until_usec, json_t *data) {
        if (!data)
                return -ENOMEM;
        t->n_records += 1 + json_dumpb(data, NULL, 0, JSON_COMPACT) / RECORD_SIZE;
        return until_usec ? audit_append_sync_until(NULL, "egress.requests", t->run, data, until_usec) : audit_append(t->audit, "egress.requests", t->run, NULL, NULL, data, NULL, NULL);
}

/* until_usec: 0: nobody waits. Once the audit log did not answer, the others are not waited for either. */
static void tell(Tally *t, uint64_t until_usec) {
        int r = 0;

        for (size_t i = 0; i <= TALLY_HOSTS_MAX; i++) {
                TallyHost *host = t->hosts[i];

                if (!host)
                        continue;
                if (r >= 0 || !until_usec)
                        r = append(t, until_usec, describe(host));
                if (r < 0)
                        log_error_errno(r, "%llu requests for %s could not be recorded", (unsigned long long) host->count, host->name);
                free(host);
                t->hosts[i] = NULL;
        }
        t->n_hosts = 0;
}

void tally_tell(Tally *t) {
        if (t)
                tell(t, 0);
}

void tally_tell_last(Tally *t, uint64_t until_usec) {
        if (t)
                tell(t, until_usec);
}

static int tally_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        tally_tell(userdata);
        return 0;
}

int tally_new(Tally **ret, sd_event *event, AuditClient *audit, const char *run) {
        _cleanup_(tally_freep) Tally *t = calloc(1, sizeof(*t));
        int r;

        if (!t)
                return -ENOMEM;
        t->audit = audit;
        t->run = run;
        r = sd_event_add_time_relative(event, &t->timer, CLOCK_BOOTTIME, 0, 0, tally_on_timer, t);
        if (r >= 0)
                r = sd_event_source_set_enabled(t->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(t);
        return 0;
}

Tally *tally_free(Tally *t) {
        if (!t)
                return NULL;
        for (size_t i = 0; i <= TALLY_HOSTS_MAX; i++)
                free(t->hosts[i]);
        t->timer = sd_event_source_disable_unref(t->timer);
        free(t);
        return NULL;
}

static TallyHost *new_host(Tally *t, size_t place, const char *name, uint16_t port, const char *rule) {
        TallyHost *host = calloc(1, sizeof(*host));

        if (!host)
                return NULL;
        (void) snprintf(host->name, sizeof(host->name), "%s", name);
        (void) snprintf(host->rule, sizeof(host->rule), "%s", rule);
        host->port = port;
        t->hosts[place] = host;

        /* these fail only for arguments that are wrong */
        if (t->n_hosts++ == 0) {
                (void) sd_event_source_set_time_relative(t->timer, is_spent(t) ? SPENT_USEC : WINDOW_USEC);
                (void) sd_event_source_set_enabled(t->timer, SD_EVENT_ONESHOT);
        }
        return host;
}

static TallyHost *find_host(Tally *t, const char *name, uint16_t port, const char *rule) {
        size_t i = is_spent(t) ? TALLY_HOSTS_MAX : 0;

        for (; i < TALLY_HOSTS_MAX && t->hosts[i]; i++)
                if (t->hosts[i]->port == port && strcmp(t->hosts[i]->name, name) == 0 && strncmp(t->hosts[i]->rule, rule, RULE_SIZE - 1) == 0)
                        return t->hosts[i];
        if (i < TALLY_HOSTS_MAX)
                return new_host(t, i, name, port, rule);
        return t->hosts[TALLY_HOSTS_MAX] ?: new_host(t, TALLY_HOSTS_MAX, "-", 0, "overflow");
}

static bool is_of(const TallyRequest *q, const char *method, const char *path, size_t path_size) {
        return strncmp(q->method, method, METHOD_SIZE - 1) == 0 && strncmp(q->path, path, path_size) == 0 && q->path[path_size] == '\0';
}

void tally_count(Tally *t, const char *name, uint16_t port, const char *rule, const char *method, const char *path) {
        TallyHost *host = t ? find_host(t, name, port, rule) : NULL;
        size_t size = strcspn(path, "?");
        TallyRequest *q;

        if (!host)
                return;
        host->count++;
        if (is_spent(t))
                return;
        if (size >= PATH_SIZE)
                size = PATH_SIZE - 1;
        for (size_t i = 0; i < host->n_requests; i++)
                if (is_of(&host->requests[i], method, path, size)) {
                        host->requests[i].count++;
                        return;
                }
        if (host->n_requests == TALLY_REQUESTS_MAX)
                return;
        q = &host->requests[host->n_requests++];
        (void) snprintf(q->method, sizeof(q->method), "%s", method);
        memcpy(q->path, path, size);
        q->count = 1;
}
