/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Client of QMP. One connection, calls matched by number, every call with a timer. What QEMU sends without
 * having been asked (events) is read and dropped. When the connection ends or speaks nonsense, all calls
 * under way are answered with that, and later ones at once.
 */

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "util/io.h"
#include "util/json.h"
#include "vmm/qmp.h"

enum { CALLS_MAX = 8, OUT_MAX = 64 * 1024 };

typedef struct Call {
        json_int_t id; /* 0: free */
        QmpReply handler;
        void *userdata;
        sd_event_source *timer; /* ref */
        QmpClient *client;      /* borrowed */
} Call;

struct QmpClient {
        sd_event *event;         /* ref */
        sd_event_source *source; /* ref */
        int fd;                  /* owned */
        QmpReader *reader;       /* owned */
        json_int_t last_id;
        Call calls[CALLS_MAX];
        char out[OUT_MAX];
        size_t out_size;
        bool *freed;             /* borrowed; set when a handler frees the client */
};

QmpClient *qmp_client_free(QmpClient *c) {
        if (!c)
                return NULL;

        if (c->freed)
                *c->freed = true;
        for (size_t i = 0; i < CALLS_MAX; i++)
                c->calls[i].timer = sd_event_source_disable_unref(c->calls[i].timer);
        c->source = sd_event_source_disable_unref(c->source);
        c->fd = fd_close(c->fd);
        (void) qmp_reader_free(c->reader);
        c->event = sd_event_unref(c->event);
        free(c);
        return NULL;
}

/* Answers one call. False if its handler freed the client. */
static bool call_done(Call *call, int r, json_t *result) {
        QmpClient *c = call->client;
        QmpReply handler = call->handler;
        void *userdata = call->userdata;
        bool freed = false, *outer = c->freed;

        call->timer = sd_event_source_disable_unref(call->timer);
        *call = (Call) { .client = c };
        if (!handler)
                return true;

        c->freed = &freed;
        handler(c, r, result, userdata);
        if (freed) {
                if (outer)
                        *outer = true;
                return false;
        }
        c->freed = outer;
        return true;
}

static bool client_fail(QmpClient *c, int error) {
        c->source = sd_event_source_disable_unref(c->source);
        c->fd = fd_close(c->fd);

        for (size_t i = 0; i < CALLS_MAX; i++)
                if (c->calls[i].id > 0 && !call_done(c->calls + i, error, NULL))
                        return false;
        return true;
}

static int client_flush(QmpClient *c) {
        while (c->out_size > 0) {
                ssize_t n = send(c->fd, c->out, c->out_size, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (n < 0) {
                        if (errno == EAGAIN)
                                break;
                        return -EPIPE;
                }
                c->out_size -= (size_t) n;
                memmove(c->out, c->out + n, c->out_size);
        }

        return sd_event_source_set_io_events(c->source, EPOLLIN | (c->out_size > 0 ? EPOLLOUT : 0));
}

static bool client_on_message(QmpClient *c, const QmpMessage *m) {
        if (m->kind != QMP_RETURN && m->kind != QMP_ERROR)
                return true;

        for (size_t i = 0; i < CALLS_MAX; i++)
                if (c->calls[i].id > 0 && c->calls[i].id == m->id)
                        return call_done(c->calls + i, m->kind == QMP_RETURN ? 0 : -EREMOTEIO, m->body);
        return true;
}

static int client_on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        QmpClient *c = userdata;
        char data[16 * 1024];
        QmpMessage m;
        ssize_t n;
        int r;

        if (revents & EPOLLOUT && client_flush(c) < 0) {
                (void) client_fail(c, -EPIPE);
                return 0;
        }
        if (!(revents & (EPOLLIN | EPOLLHUP | EPOLLERR)))
                return 0;

        n = recv(fd, data, sizeof(data), MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
                return 0;
        if (n <= 0) {
                (void) client_fail(c, -EPIPE);
                return 0;
        }

        r = qmp_reader_feed(c->reader, data, (size_t) n);
        while (r >= 0 && (r = qmp_reader_next(c->reader, &m)) > 0) {
                bool alive = client_on_message(c, &m);

                qmp_message_done(&m);
                if (!alive)
                        return 0;
        }
        if (r < 0)
                (void) client_fail(c, -EBADMSG);

        return 0;
}

static int call_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void) call_done(userdata, -ETIMEDOUT, NULL);
        return 0;
}

int qmp_client_new(QmpClient **ret, sd_event *event, const char *path) {
        _cleanup_(qmp_client_freep) QmpClient *c = NULL;
        int r;

        c = calloc(1, sizeof(*c));
        if (!c)
                return -ENOMEM;

        c->fd = -1;
        c->event = sd_event_ref(event);
        for (size_t i = 0; i < CALLS_MAX; i++)
                c->calls[i].client = c;

        r = qmp_reader_new(&c->reader);
        if (r < 0)
                return r;

        c->fd = io_connect_unix(path);
        if (c->fd < 0)
                return c->fd;

        r = sd_event_add_io(event, &c->source, c->fd, EPOLLIN, client_on_io, c);
        if (r < 0)
                return r;

        /* QEMU reads it once it has greeted; there is no need to wait for that. */
        r = qmp_client_call(c, "qmp_capabilities", NULL, 0, NULL, NULL);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(c);
        return 0;
}

static Call *find_free(QmpClient *c) {
        for (size_t i = 0; i < CALLS_MAX; i++)
                if (c->calls[i].id == 0)
                        return c->calls + i;
        return NULL;
}

int qmp_client_call(QmpClient *c, const char *command, json_t *arguments, uint64_t timeout_usec,
                    QmpReply handler, void *userdata) {
        _cleanup_json_ json_t *message = NULL;
        Call *call = find_free(c);
        size_t n;
        int r;

        message = json_pack("{s:s, s:o*, s:I}", "execute", command, "arguments", arguments, "id", c->last_id + 1);
        if (!message)
                return -ENOMEM;
        if (c->fd < 0)
                return -EPIPE;
        if (!call)
                return -EAGAIN;

        n = json_dumpb(message, c->out + c->out_size, OUT_MAX - c->out_size, JSON_COMPACT);
        if (n == 0 || n + 1 > OUT_MAX - c->out_size)
                return -EMSGSIZE;

        if (timeout_usec > 0) {
                r = sd_event_add_time_relative(c->event, &call->timer, CLOCK_MONOTONIC, timeout_usec, 0, call_on_timer, call);
                if (r < 0)
                        return r;
        }

        c->out[c->out_size + n] = '\n';
        c->out_size += n + 1;
        call->id = ++c->last_id;
        call->handler = handler;
        call->userdata = userdata;

        r = client_flush(c);
        if (r < 0) {
                call->timer = sd_event_source_disable_unref(call->timer);
                *call = (Call) { .client = c };
        }
        return r;
}
