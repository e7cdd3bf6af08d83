/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * A queue, of which a few are under way at a time. What egressd did not take, since it is away, hangs, or has too much to do, stays in it and is
 * told again a second later, until it is taken. (To tell of an end twice does no harm: egressd does not know that grant any more.)
 *
 * The queue is bounded by what egressd gives out: what is in it counts against the run there.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "egress/egress-api.h"
#include "egress/grant-ends-api.h"
#include "ipc/ipc.h"
#include "util/log.h"
#include "util/text.h"

enum {
        PARALLEL = 4,
        ANSWER_USEC = 15 * 1000 * 1000,
        AGAIN_USEC = 1000 * 1000,
};

typedef struct GrantEnd {
        GrantEnds *ends;        /* borrowed */
        struct GrantEnd *next;
        int64_t grant;
        uint64_t bytes_in, bytes_out, duration_usec;
} GrantEnd;

struct GrantEnds {
        IpcClient *client;        /* owned */
        char *path;               /* owned; egressd's socket */
        sd_event_source *again;   /* owned; on while egressd is given time */
        GrantEnd *first, **last;  /* owned: what is to be told */
        GrantEnd *under_way[PARALLEL]; /* owned */
        bool missed;              /* egressd did not take one: said once */
};

static void go_on(GrantEnds *e);

static void append(GrantEnds *e, GrantEnd *end) {
        end->next = NULL;
        *e->last = end;
        e->last = &end->next;
}

static GrantEnd *take_first(GrantEnds *e) {
        GrantEnd *end = e->first;

        e->first = end->next;
        if (!e->first)
                e->last = &e->first;
        return end;
}

static void wait_a_moment(GrantEnds *e) {
        (void) sd_event_source_set_time_relative(e->again, AGAIN_USEC);
        (void) sd_event_source_set_enabled(e->again, SD_EVENT_ONESHOT);
}

static int ends_on_again(sd_event_source *s, uint64_t usec, void *userdata) {
        go_on(userdata);
        return 0;
}

static void ends_on_told(IpcClient *c, const char *error, json_t *params, bool more, void *userdata) {
        GrantEnd *end = userdata;
        GrantEnds *e = end->ends;

        for (size_t i = 0; i < PARALLEL; i++)
                if (e->under_way[i] == end)
                        e->under_way[i] = NULL;

        if (error && ipc_error_is_passing(error)) {
                if (!e->missed)
                        log_notice("egressd does not hear of connections that are over (%s): it is told again", error);
                e->missed = true;
                append(e, end);
                wait_a_moment(e);
                return;
        }
        if (error)
                log_warning("grant %lld cannot be given back: %s", (long long) end->grant, error);
        e->missed = false;
        free(end);
        go_on(e);
}

static json_t *end_params(const GrantEnd *end) {
        return json_pack("{s:I, s:I, s:I, s:I}", "grant", (json_int_t) end->grant, "bytes_in", (json_int_t) end->bytes_in, "bytes_out",
                         (json_int_t) end->bytes_out, "duration_us", (json_int_t) end->duration_usec);
}

static int tell(GrantEnds *e, GrantEnd *end) {
        return ipc_client_call_async(e->client, EGRESS_INTERFACE ".Done", end_params(end), NULL, 0, false, ANSWER_USEC, ends_on_told, end);
}

static void go_on(GrantEnds *e) {
        if (sd_event_source_get_enabled(e->again, NULL) > 0)
                return;

        for (size_t i = 0; i < PARALLEL && e->first; i++) {
                GrantEnd *end;

                if (e->under_way[i])
                        continue;
                end = take_first(e);
                if (tell(e, end) < 0) { /* no memory */
                        append(e, end);
                        wait_a_moment(e);
                        return;
                }
                e->under_way[i] = end;
        }
}

int grant_ends_new(GrantEnds **ret, sd_event *event, const char *socket_path) {
        _cleanup_(grant_ends_freep) GrantEnds *e = NULL;
        int r;

        e = calloc(1, sizeof(*e));
        if (!e)
                return -ENOMEM;
        e->last = &e->first;
        e->path = strdup(socket_path);
        if (!e->path)
                return -ENOMEM;

        r = ipc_client_new(&e->client, event, socket_path);
        if (r < 0)
                return r;
        ipc_client_set_parallel(e->client, PARALLEL);
        r = sd_event_add_time_relative(event, &e->again, CLOCK_MONOTONIC, AGAIN_USEC, 0, ends_on_again, e);
        if (r < 0)
                return r;
        r = sd_event_source_set_enabled(e->again, SD_EVENT_OFF);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(e);
        return 0;
}

/* One by one, on a connection of its own; what was under way is among them, since nobody knows whether it was heard. */
void grant_ends_tell_last(GrantEnds *e, uint64_t until_usec) {
        _cleanup_(ipc_client_freep) IpcClient *client = NULL;
        uint64_t now = time_monotonic();
        size_t n_left = 0;
        int r;

        if (!e)
                return;
        e->client = ipc_client_free(e->client);
        for (size_t i = 0; i < PARALLEL; i++)
                if (e->under_way[i])
                        append(e, TAKE_PTR(e->under_way[i]));

        r = ipc_client_new(&client, NULL, e->path);
        for (; r >= 0 && e->first && now < until_usec; now = time_monotonic()) {
                _cleanup_free_ char *error = NULL;

                r = ipc_client_call(client, EGRESS_INTERFACE ".Done", end_params(e->first), NULL, 0, until_usec - now, NULL, &error, NULL, 0);
                if (r == -EREMOTEIO && error && !ipc_error_is_passing(error)) {
                        log_warning("grant %lld cannot be given back: %s", (long long) e->first->grant, error);
                        r = 0; /* nor could it another time */
                }
                if (r >= 0)
                        free(take_first(e));
        }
        for (const GrantEnd *i = e->first; i; i = i->next)
                n_left++;
        if (n_left > 0)
                log_warning("egressd does not hear of %zu connections that are over", n_left);
}

GrantEnds *grant_ends_free(GrantEnds *e) {
        if (!e)
                return NULL;

        e->client = ipc_client_free(e->client);
        e->again = sd_event_source_disable_unref(e->again);
        for (size_t i = 0; i < PARALLEL; i++)
                free(e->under_way[i]);
        while (e->first)
                free(take_first(e));
        free(e->path);
        free(e);
        return NULL;
}

void grant_ends_add(GrantEnds *e, int64_t grant, uint64_t bytes_in, uint64_t bytes_out, uint64_t duration_usec) {
        GrantEnd *end = malloc(sizeof(*end));

        if (!end) {
                log_oom();
                return;
        }
        *end = (GrantEnd) { .ends = e, .grant = grant, .bytes_in = bytes_in, .bytes_out = bytes_out, .duration_usec = duration_usec };
        append(e, end);
        if (e->client) /* after the last words nobody is told */
                go_on(e);
}
