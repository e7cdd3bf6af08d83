/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What happened to an item, in order, as one JSON object a line: states, steps, output, notes. One file an
 * item, append-only; `seq` counts its lines from 1. Followers read the file, each at its own offset and pace, so
 * that none needs a queue and none can hold up another.
 */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "util/cleanup.h"

enum { EVENT_LINE_MAX = 512 * 1024 };

typedef struct EventLog EventLog;

enum { EVENT_LOG_E_CUT = 1 };

/* Takes dir_fd's file `name`; a torn last line (the host died while writing) is cut off. EVENT_LOG_E_CUT: so was something that is no
 * event, with what was behind it. */
int event_log_open(EventLog **ret, int dir_fd, const char *name);
EventLog *event_log_close(EventLog *l);
DEFINE_CLEANUP(EventLog *, event_log_close)

/* Appends one event of that type with the members of `data` (taken over, also on failure). */
int event_log_append(EventLog *l, const char *type, json_t *data);
/* Makes everything so far durable. */
int event_log_sync(EventLog *l);
/* The state that the last `state` event names, or "". */
const char *event_log_last_state(const EventLog *l);
/* Bytes of `output` events of this run so far. */
uint64_t event_log_output_size(const EventLog *l, const char *run);
/* The number of this run's last call that left an event with a `call`; 0: none. */
int64_t event_log_last_call(const EventLog *l, const char *run);
/* How much of the ledger is told: states up to that revision, notes up to that id. False: that is not known, an older anchord wrote the last state. */
bool event_log_told(const EventLog *l, int64_t *ret_revision, int64_t *ret_note);
/* What was told up to here, whatever the file says. */
void event_log_set_told(EventLog *l, int64_t revision, int64_t note);

typedef struct EventReader {
        int fd;          /* owned */
        uint64_t offset;
} EventReader;

void event_reader_done(EventReader *r);
/* fd is taken over. */
void event_reader_init(EventReader *r, int fd);
/* 1 with the next event, 0 at the end of what is there, negative errno. */
int event_reader_next(EventReader *r, json_t **ret);
