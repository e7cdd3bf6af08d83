/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The queue of calls to anchord. One call is under way at a time, so anchord sees events, output and the
 * end of the run in the order in which they happened, and a slow anchord slows the guest down instead of filling memory.
 *
 * Every call carries "seq", counting up from 1. anchord may have died after it did what a call asked for
 * and before it answered; the repeated call has the same number, so that it can tell.
 */

#include "run/run-calls.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "util/log.h"
#include "util/text.h"

enum {
        QUEUE_MAX = 128,
        CALL_TIMEOUT_USEC = 10 * 1000 * 1000,
        RETRY_USEC = 250 * 1000,
};

typedef struct ApiCall {
        char *method;        /* owned */
        json_t *params;      /* owned */
        int fd;              /* owned */
        RunReply handler;
        void *userdata;
} ApiCall;

struct RunCalls {
        sd_event *event;        /* ref */
        sd_event_source *retry; /* ref */
        IpcClient *client;      /* owned */
        RunCallsLost lost;
        void *userdata;
        ApiCall queue[QUEUE_MAX];
        size_t first, n;
        json_int_t seq;
        uint64_t patience_usec;
        bool busy, given_up;
        bool storing;           /* anchord has the first call, and says that it takes its time */
        uint64_t failing_since; /* 0: the last attempt reached anchord */
};

static void api_next(RunCalls *a);

static void api_call_done(ApiCall *c) {
        free(c->method);
        json_decref(c->params);
        c->fd = fd_close(c->fd);
        *c = (ApiCall) { .fd = -1 };
}

RunCalls *run_calls_free(RunCalls *a) {
        if (!a)
                return NULL;

        a->client = ipc_client_free(a->client);
        for (; a->n > 0; a->n--, a->first = (a->first + 1) % QUEUE_MAX)
                api_call_done(a->queue + a->first);
        a->retry = sd_event_source_disable_unref(a->retry);
        a->event = sd_event_unref(a->event);
        free(a);
        return NULL;
}

static int api_on_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        RunCalls *a = userdata;

        a->busy = false;
        api_next(a);
        return 0;
}

/* Tries the first call again later, or gives up: not while anchord itself says that it works on it. */
static void api_retry_later(RunCalls *a, const char *error) {
        uint64_t now = time_monotonic();
        bool storing = ipc_error_is(error, "Storing");
        int r;

        if (storing) {
                if (!a->storing)
                        log_info("anchord is storing what came with %s", a->queue[a->first].method);
                a->failing_since = 0;
        } else if (a->failing_since == 0) {
                a->failing_since = now;
                log_warning("anchord did not answer %s (%s); trying again for %" PRIu64 " s", a->queue[a->first].method, error,
                            a->patience_usec / 1000000);
        }
        a->storing = storing;

        a->busy = true;
        a->retry = sd_event_source_disable_unref(a->retry);
        if (storing || now - a->failing_since <= a->patience_usec) {
                r = sd_event_add_time_relative(a->event, &a->retry, CLOCK_MONOTONIC, RETRY_USEC, 0, api_on_retry, a);
                if (r >= 0)
                        return;
        }

        a->given_up = true;
        a->lost(a, error, a->userdata);
}

static void api_on_reply(IpcClient *client, const char *error, json_t *params, bool more, void *userdata) {
        RunCalls *a = userdata;
        ApiCall call;

        if (a->n == 0)
                return;
        if (error && (ipc_error_is_passing(error) || ipc_error_is(error, "Storing")))
                return api_retry_later(a, error);

        if (a->failing_since > 0)
                log_info("anchord answers again");
        a->failing_since = 0;
        a->busy = a->storing = false;

        call = a->queue[a->first];
        a->queue[a->first] = (ApiCall) { .fd = -1 };
        a->first = (a->first + 1) % QUEUE_MAX;
        a->n--;

        if (call.handler)
                call.handler(a, client, error, params, call.userdata);
        else if (error)
                log_warning("anchord refused %s: %s", call.method, error);
        api_call_done(&call);
        api_next(a);
}

static void api_next(RunCalls *a) {
        ApiCall *c = a->queue + a->first;
        _cleanup_free_ char *name = NULL;
        int r;

        if (a->busy || a->given_up || a->n == 0)
                return;

        name = text_format("io.anchorhold.Run.%s", c->method);
        if (!name)
                return api_retry_later(a, "out of memory");

        a->busy = true;
        r = ipc_client_call_async(a->client, name, json_incref(c->params), &c->fd, c->fd >= 0 ? 1 : 0, false,
                                  CALL_TIMEOUT_USEC, api_on_reply, a);
        if (r < 0)
                api_retry_later(a, strerror(-r));
}

int run_calls_new(RunCalls **ret, sd_event *event, const char *path, uint64_t patience_usec, RunCallsLost lost, void *userdata) {
        _cleanup_(run_calls_freep) RunCalls *a = NULL;
        int r;

        a = malloc(sizeof(*a));
        if (!a)
                return -ENOMEM;

        *a = (RunCalls) { .event = sd_event_ref(event), .patience_usec = patience_usec, .lost = lost, .userdata = userdata };
        r = ipc_client_new(&a->client, event, path);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(a);
        return 0;
}

int run_calls_call(RunCalls *a, const char *method, json_t *params, int fd, RunReply handler, void *userdata) {
        ApiCall c = { .params = params ?: json_object(), .fd = -1, .handler = handler, .userdata = userdata };

        c.method = strdup(method);
        if (fd >= 0)
                c.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (!c.method || !c.params || (fd >= 0 && c.fd < 0) || a->n >= QUEUE_MAX ||
            json_object_set_new(c.params, "seq", json_integer(a->seq + 1)) < 0) {
                int r = a->n >= QUEUE_MAX ? -ENOBUFS : -ENOMEM;

                api_call_done(&c);
                return r;
        }

        a->seq++;
        a->queue[(a->first + a->n) % QUEUE_MAX] = c;
        a->n++;
        api_next(a);
        return 0;
}
