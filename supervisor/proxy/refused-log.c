/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A table of what was refused and is not told yet, by event, reason and destination, with how often. One call is under way at a time. What egressd did not take (it
 * starts anew, or has too much to do) is counted on and told a second later. A guest chooses names, so that there is a bound to how many are told apart, and
 * beyond it a place for each event and reason. If egressd took one and its answer was lost, it is counted twice: never fewer are told than were refused.
 */

#include "proxy/refused-log.h"

#include <errno.h>
#include <string.h>

#include "egress/egress-api.h"
#include "ipc/ipc.h"
#include "util/json.h"
#include "util/log.h"
#include "util/text.h"

enum {
        TELL_USEC = 1000 * 1000,
        ANSWER_USEC = 5 * 1000 * 1000,
        REASONS = 16,            /* more than there are of both events */
};

typedef struct Entry {
        const char *event, *reason; /* static; NULL: this place is free */
        char *address, *name;       /* owned; may be NULL */
        uint16_t port;
        uint64_t count;             /* not told yet */
        bool due;
} Entry;

struct RefusedLog {
        IpcClient *client;      /* owned */
        char *socket;           /* owned */
        sd_event_source *timer; /* owned; on as long as there is an entry */
        Entry entries[REFUSED_LOG_KINDS + REASONS];
        Entry *told;            /* borrowed; of the call that is under way … */
        uint64_t n_told;        /* … and how many of it that tells of */
        size_t next;            /* where the search for the next one begins: what comes without an end keeps no other from its turn */
};

static void entry_done(Entry *e) {
        free(e->address);
        free(e->name);
        *e = (Entry) {};
}

static void tell_next(RefusedLog *l);

static json_t *describe(const Entry *e, uint64_t count) {
        json_t *params = json_pack("{s:s, s:s, s:s*, s:s*, s:I}", "event", e->event, "reason", e->reason, "address", e->address, "name", e->name, "count", (json_int_t) count);

        if (params && e->port > 0 && json_object_set_new(params, "port", json_integer(e->port)) < 0) {
                json_decref(params);
                return NULL;
        }
        return params;
}

static uint64_t next_count(const Entry *e) {
        return e->count < EGRESS_REFUSED_MAX ? e->count : EGRESS_REFUSED_MAX;
}

/* It will never take these words. */
static bool is_final(const char *error) {
        return strcmp(error, EGRESS_INTERFACE ".BadInput") == 0 || strcmp(error, "org.varlink.service.InvalidParameter") == 0;
}

static void on_told(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        RefusedLog *l = userdata;
        Entry *e = l->told;

        l->told = NULL;
        if (error && is_final(error))
                log_warning("%llu refusals (%s, %s) are not in the log: egressd does not take them", (unsigned long long) l->n_told, e->event, e->reason);
        else if (error)
                e->count += l->n_told; /* until the timer */
        l->n_told = 0;
        if (!error && e->count > 0)
                e->due = true;
        tell_next(l);
}

static int call(RefusedLog *l, const Entry *e, uint64_t n) {
        json_t *params = describe(e, n);

        return params ? ipc_client_call_async(l->client, EGRESS_INTERFACE ".Refused", params, NULL, 0, false, ANSWER_USEC, on_told, l) : -ENOMEM;
}

static void tell_next(RefusedLog *l) {
        const size_t first = l->next;

        for (size_t i = 0; !l->told && i < ELEMENTSOF(l->entries); i++) {
                size_t at = (first + i) % ELEMENTSOF(l->entries);
                Entry *e = &l->entries[at];
                uint64_t n = next_count(e);

                if (!e->due)
                        continue;
                e->due = false;
                if (n == 0 || call(l, e, n) < 0)
                        continue;
                l->told = e;
                l->n_told = n;
                l->next = at + 1;
                e->count -= n;
        }
}

/* All that was counted is due, and what was told makes room. */
static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        RefusedLog *l = userdata;
        bool any = false;

        for (size_t i = 0; i < ELEMENTSOF(l->entries); i++) {
                Entry *e = &l->entries[i];

                if (e->count > 0)
                        e->due = true;
                else if (e != l->told)
                        entry_done(e);
                any = any || e->event;
        }
        tell_next(l);
        if (any) {
                (void) sd_event_source_set_time_relative(s, TELL_USEC);
                (void) sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        }
        return 0;
}

int refused_log_new(RefusedLog **ret, sd_event *event, const char *socket) {
        _cleanup_(refused_log_freep) RefusedLog *l = calloc(1, sizeof(*l));
        int r;

        if (!l)
                return -ENOMEM;
        l->socket = strdup(socket);
        if (!l->socket)
                return -ENOMEM;
        r = ipc_client_new(&l->client, event, socket);
        if (r >= 0)
                r = sd_event_add_time_relative(event, &l->timer, CLOCK_MONOTONIC, TELL_USEC, 10000, on_timer, l);
        if (r >= 0)
                r = sd_event_source_set_enabled(l->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(l);
        return 0;
}

RefusedLog *refused_log_free(RefusedLog *l) {
        if (!l)
                return NULL;

        ipc_client_free(l->client);
        sd_event_source_disable_unref(l->timer);
        for (size_t i = 0; i < ELEMENTSOF(l->entries); i++)
                entry_done(&l->entries[i]);
        free(l->socket);
        free(l);
        return NULL;
}

static bool same_text(const char *a, const char *b) {
        return strcmp(a ?: "", b ?: "") == 0;
}

static Entry *find(RefusedLog *l, const RefusedKind *k, size_t from, size_t to) {
        Entry *free_place = NULL;

        for (size_t i = from; i < to; i++) {
                Entry *e = &l->entries[i];

                if (!e->event)
                        free_place = free_place ?: e;
                else if (strcmp(e->event, k->event) == 0 && strcmp(e->reason, k->reason) == 0 && same_text(e->address, k->address) && same_text(e->name, k->name) &&
                         e->port == k->port)
                        return e;
        }
        return free_place;
}

static bool entry_init(Entry *e, const RefusedKind *k) {
        *e = (Entry) { .event = k->event, .reason = k->reason, .port = k->port };
        if (k->address && k->address[0])
                e->address = strdup(k->address);
        if (k->name && k->name[0])
                e->name = strdup(k->name);
        if ((k->address && k->address[0] && !e->address) || (k->name && k->name[0] && !e->name)) {
                entry_done(e);
                return false;
        }
        return true;
}

void refused_log_add(RefusedLog *l, const RefusedKind *kind, bool at_once) {
        const RefusedKind any = { .event = kind->event, .reason = kind->reason };
        Entry *e = find(l, kind, 0, REFUSED_LOG_KINDS);

        if (!e || (!e->event && !entry_init(e, kind))) {
                e = find(l, &any, REFUSED_LOG_KINDS, ELEMENTSOF(l->entries));
                if (!e || (!e->event && !entry_init(e, &any))) {
                        log_warning("one refusal (%s, %s) is not in the log", kind->event, kind->reason);
                        return;
                }
        }
        e->count++;
        e->due = e->due || at_once;
        if (sd_event_source_get_enabled(l->timer, NULL) <= 0) {
                (void) sd_event_source_set_time_relative(l->timer, TELL_USEC);
                (void) sd_event_source_set_enabled(l->timer, SD_EVENT_ONESHOT);
        }
        tell_next(l);
}

/* ---- the end ---- */

/* 1: it will never take this one. */
static int tell_sync(IpcClient *client, const Entry *e, uint64_t count, uint64_t usec) {
        _cleanup_json_ json_t *answer = NULL;
        _cleanup_free_ char *error = NULL;
        json_t *params = describe(e, count);
        int r;

        if (!params)
                return -ENOMEM;
        r = ipc_client_call(client, EGRESS_INTERFACE ".Refused", params, NULL, 0, usec, &answer, &error, NULL, 0);
        return r == -EREMOTEIO && error && is_final(error) ? 1 : r;
}

void refused_log_tell_last(RefusedLog *l, uint64_t until_usec) {
        _cleanup_(ipc_client_freep) IpcClient *client = NULL;
        uint64_t lost = 0, refused = 0;
        int r;

        if (!l)
                return;
        l->client = ipc_client_free(l->client);
        if (l->told) /* nobody hears the answer any more */
                l->told->count += l->n_told;
        l->told = NULL;

        r = ipc_client_new(&client, NULL, l->socket);
        for (size_t i = 0; i < ELEMENTSOF(l->entries); i++) {
                Entry *e = &l->entries[i];

                while (r >= 0 && e->count > 0) {
                        uint64_t n = next_count(e), now = time_monotonic();

                        r = now < until_usec ? tell_sync(client, e, n, until_usec - now) : -ETIMEDOUT;
                        if (r >= 0)
                                e->count -= n;
                        if (r > 0)
                                refused += n;
                }
                lost += e->count;
        }
        if (refused > 0)
                log_warning("%llu refusals are not in the log: egressd does not take them", (unsigned long long) refused);
        if (lost > 0)
                log_warning_errno(r, "%llu refusals are not in the log: egressd does not answer", (unsigned long long) lost);
}
