/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Calls that wait for their answer, for programs without an event loop.
 *
 * One link, used for one call at a time. It is given up whenever what comes next on it would not be the answer
 * to what is asked next: after a time-out of a call, a disconnection, an answer that could not be read. A
 * time-out between the several answers of one call leaves it open: the next may still come.
 *
 * A person may be waiting as well: who says so with ipc_client_set_waiting() is called in between.
 */

#include <errno.h>
#include <string.h>

#include "ipc/ipc-link.h"
#include "ipc/json-convert.h"
#include "util/json.h"
#include "util/text.h"

struct IpcSync {
        char *path;            /* owned */
        sd_varlink *link;      /* ref; NULL: none */
        uint64_t every_usec;   /* 0: nobody wants to hear of the waiting */
        IpcWaiting waiting;
        void *userdata;
};

/* The answer that is waited for, as the reply callback left it. */
typedef struct Answer {
        int r;                 /* 1 while nothing has come */
        bool more;
        json_t *params;        /* owned */
        char *error;           /* owned */
        int *fds;              /* the caller's, filled with what is then its own */
        size_t max_fds;
} Answer;

int ipc_sync_new(IpcSync **ret, const char *path) {
        IpcSync *s;

        s = malloc(sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (IpcSync) { .path = strdup(path) };
        if (!s->path) {
                free(s);
                return -ENOMEM;
        }

        *ret = s;
        return 0;
}

IpcSync *ipc_sync_free(IpcSync *s) {
        if (!s)
                return NULL;

        (void) sd_varlink_close_unref(s->link);
        free(s->path);
        free(s);
        return NULL;
}

void ipc_sync_set_waiting(IpcSync *s, uint64_t every_usec, IpcWaiting handler, void *userdata) {
        s->every_usec = handler ? every_usec : 0;
        s->waiting = handler;
        s->userdata = userdata;
}

static int answer_on_reply(sd_varlink *link, sd_json_variant *parameters, const char *error, sd_varlink_reply_flags_t flags, void *userdata) {
        Answer *a = sd_varlink_get_userdata(link);

        if (!a || a->r <= 0)
                return 0;

        a->more = flags & SD_VARLINK_REPLY_CONTINUES;
        if (flags & SD_VARLINK_REPLY_LOCAL)
                a->r = -ECONNRESET;
        else if (error && !(a->error = strdup(error)))
                a->r = -ENOMEM;
        else
                a->r = parameters ? json_from_variant(parameters, &a->params) : 0;

        for (size_t i = 0; a->r == 0 && !error && i < a->max_fds; i++) {
                int fd = sd_varlink_take_fd(link, i);

                a->fds[i] = fd < 0 ? -1 : fd;
        }
        return 0;
}

/* Drives the link until the answer is there. sd_varlink_process() handles at most one message a call. */
static int drive(IpcSync *s, uint64_t timeout_usec, Answer *a) {
        uint64_t now = time_monotonic(), end = timeout_usec > 0 ? now + timeout_usec : UINT64_MAX,
                 tick = s->every_usec > 0 ? now + s->every_usec : UINT64_MAX;
        int r;

        while (a->r > 0) {
                r = sd_varlink_process(s->link);
                if (r < 0)
                        return r;
                if (r > 0)
                        continue;

                now = time_monotonic();
                if (now >= end)
                        return -ETIMEDOUT;
                if (now >= tick) {
                        s->waiting(s->userdata);
                        tick = now + s->every_usec;
                }

                r = sd_varlink_wait(s->link, (end < tick ? end : tick) == UINT64_MAX ? UINT64_MAX : (end < tick ? end : tick) - now);
                if (r < 0 && r != -EINTR)
                        return r;
        }

        return a->r;
}

/* Hands the answer over: 1 if more follow, 0, -EREMOTEIO. */
static int answer_give(Answer *a, json_t **ret_params, char **ret_error) {
        _cleanup_json_ json_t *params = a->params ?: json_object();
        _cleanup_free_ char *error = a->error;
        int r = a->error ? -EREMOTEIO : a->more ? 1 : 0;

        if (!params)
                return -ENOMEM;
        if (ret_params)
                *ret_params = TAKE_PTR(params);
        if (error && ret_error)
                *ret_error = TAKE_PTR(error);
        return r;
}

static int await(IpcSync *s, uint64_t timeout_usec, Answer *a) {
        int r;

        (void) sd_varlink_set_userdata(s->link, a);
        r = drive(s, timeout_usec, a);
        (void) sd_varlink_set_userdata(s->link, NULL);
        if (r < 0) {
                json_decref(a->params);
                free(a->error);
        }
        return r;
}

/* A link to call on: the last one, if that is idle. */
static int prepare(IpcSync *s) {
        int r;

        if (s->link && (sd_varlink_is_idle(s->link) <= 0 || ipc_link_is_stale(s->link)))
                s->link = sd_varlink_close_unref(s->link);
        if (s->link)
                return 0;

        r = ipc_link_connect(s->path, &s->link);
        if (r < 0)
                return r;
        r = sd_varlink_bind_reply(s->link, answer_on_reply);
        if (r < 0)
                s->link = sd_varlink_close_unref(s->link);
        return r < 0 ? r : 0;
}

static int sync_send(IpcSync *s, const char *method, const json_t *params, const int *fds, size_t n_fds, bool more) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        int r;

        r = json_to_variant(params, &v);
        if (r < 0)
                return r;
        r = prepare(s);
        if (r >= 0)
                r = ipc_link_push_fds(s->link, fds, n_fds);
        if (r >= 0)
                r = more ? sd_varlink_observe(s->link, method, v) : sd_varlink_invoke(s->link, method, v);
        if (r < 0)
                s->link = sd_varlink_close_unref(s->link);
        return r < 0 ? r : 0;
}

int ipc_sync_call(IpcSync *s, const char *method, const json_t *params, const int *fds, size_t n_fds, uint64_t timeout_usec,
                  json_t **ret_params, char **ret_error, int *ret_fds, size_t max_fds) {
        Answer a = { .r = 1, .fds = ret_fds, .max_fds = max_fds };
        int r;

        r = sync_send(s, method, params, fds, n_fds, false);
        if (r < 0)
                return r;
        r = await(s, timeout_usec, &a);
        if (r < 0) {
                s->link = sd_varlink_close_unref(s->link);
                return r;
        }

        return answer_give(&a, ret_params, ret_error);
}

int ipc_sync_observe(IpcSync *s, const char *method, const json_t *params, const int *fds, size_t n_fds) {
        s->link = sd_varlink_close_unref(s->link);
        return sync_send(s, method, params, fds, n_fds, true);
}

int ipc_sync_next(IpcSync *s, uint64_t timeout_usec, json_t **ret_params, char **ret_error) {
        Answer a = { .r = 1 };
        int r;

        if (!s->link)
                return -ENOTCONN;

        r = await(s, timeout_usec, &a);
        if (r < 0) {
                /* a time-out leaves the call as it is: the answer may come with the next one */
                if (r != -ETIMEDOUT)
                        s->link = sd_varlink_close_unref(s->link);
                return r;
        }

        return answer_give(&a, ret_params, ret_error);
}
