/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * QMP, QEMU's control protocol, in two layers: a pure reader (bytes in, messages or an error out), since
 * a QEMU that its guest has taken over writes what it likes; and a client on an event loop.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

enum { QMP_LINE_MAX = 1024 * 1024 };

/* ---- reader ---- */

typedef enum QmpKind { QMP_GREETING, QMP_RETURN, QMP_ERROR, QMP_EVENT } QmpKind;

typedef struct QmpMessage {
        QmpKind kind;
        json_int_t id;     /* of a return or error; -1 if it has none */
        const char *name;  /* event's name, error's class; borrowed from document */
        json_t *body;      /* what is in "return", "data", "error" or "QMP"; borrowed, may be NULL */
        json_t *document;  /* owned */
} QmpMessage;

void qmp_message_done(QmpMessage *m);

/* One line. -EBADMSG if it is no message of QMP. */
int qmp_message_parse(const char *line, size_t size, QmpMessage *ret);

typedef struct QmpReader QmpReader;

int qmp_reader_new(QmpReader **ret);
QmpReader *qmp_reader_free(QmpReader *r);
DEFINE_CLEANUP(QmpReader *, qmp_reader_free)

/* -EMSGSIZE once a line is longer than QMP_LINE_MAX; then the reader is of no more use. */
int qmp_reader_feed(QmpReader *r, const void *data, size_t size);

/* 1 and a message (the caller's), 0: nothing complete, -EBADMSG. */
int qmp_reader_next(QmpReader *r, QmpMessage *ret);

/* ---- client ---- */

typedef struct QmpClient QmpClient;

/* Called once: r is 0 and `result` (borrowed) is what came back; -EREMOTEIO: QEMU refused, `result` is its
 * error object; -EPIPE: the connection ended first; -ETIMEDOUT; -EBADMSG. The client may be freed in it. */
typedef void (*QmpReply)(QmpClient *c, int r, json_t *result, void *userdata);

/* Connects to path and leaves QMP's capability mode by itself. */
int qmp_client_new(QmpClient **ret, sd_event *event, const char *path);
QmpClient *qmp_client_free(QmpClient *c); /* calls no handler any more */
DEFINE_CLEANUP(QmpClient *, qmp_client_free)

/* "quit", "stop", "cont", "query-status", "ringbuf-read", "dump-guest-memory", … `arguments` is taken
 * over, may be NULL; handler may be NULL. At most eight calls may be under way (-EAGAIN). */
int qmp_client_call(QmpClient *c, const char *command, json_t *arguments, uint64_t timeout_usec,
                    QmpReply handler, void *userdata);
