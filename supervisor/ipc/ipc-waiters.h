/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Calls that ask for the same thing while it is under way, and get the same answer. Embedded; zero is empty. */

#include "ipc/ipc.h"

enum { IPC_WAITERS_MAX = 8 };

typedef struct IpcWaiters {
        IpcCall *calls[IPC_WAITERS_MAX]; /* refs */
        size_t n;
} IpcWaiters;

/* Takes a reference; -EBUSY if too many wait. */
int ipc_waiters_add(IpcWaiters *w, IpcCall *call);

/* Answers all of them and forgets them. `params` is taken over, NULL an empty object. */
void ipc_waiters_reply(IpcWaiters *w, json_t *params);
void ipc_waiters_refuse(IpcWaiters *w, const char *error, const char *format, ...) __attribute__((__format__(__printf__, 3, 4)));

/* Forgets them without an answer. */
void ipc_waiters_done(IpcWaiters *w);
