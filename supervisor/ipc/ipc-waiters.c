/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "ipc/ipc-waiters.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "util/json.h"

int ipc_waiters_add(IpcWaiters *w, IpcCall *call) {
        if (w->n >= IPC_WAITERS_MAX)
                return -EBUSY;

        w->calls[w->n++] = ipc_call_ref(call);
        return 0;
}

void ipc_waiters_reply(IpcWaiters *w, json_t *params) {
        _cleanup_json_ json_t *owned = params;

        for (size_t i = 0; i < w->n; i++)
                (void) ipc_call_reply(w->calls[i], json_incref(owned));
        ipc_waiters_done(w);
}

void ipc_waiters_refuse(IpcWaiters *w, const char *error, const char *format, ...) {
        char reason[256];
        va_list ap;

        va_start(ap, format);
        (void) vsnprintf(reason, sizeof(reason), format, ap);
        va_end(ap);

        for (size_t i = 0; i < w->n; i++)
                (void) ipc_call_refuse(w->calls[i], error, "%s", reason);
        ipc_waiters_done(w);
}

void ipc_waiters_done(IpcWaiters *w) {
        for (; w->n > 0; w->n--)
                (void) ipc_call_unref(w->calls[w->n - 1]);
}
