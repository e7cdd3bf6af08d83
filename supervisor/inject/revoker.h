/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Of a run that is over: brings its tokens back, one after the other, and ends. */

#include "audit/audit.h"
#include "inject/egress-link.h"
#include "inject/tls.h"
#include "ipc/ipc.h"

typedef struct Revoker Revoker;

/* Everything is borrowed. At the end, whatever it is, it leaves the loop with 0: what is left is tried by the next one. */
int revoker_new(Revoker **ret, sd_event *event, const char *run, EgressLink *egress, TlsSetup *tls, AuditClient *audit, IpcClient *secretd);
Revoker *revoker_free(Revoker *r);
DEFINE_CLEANUP(Revoker *, revoker_free)
