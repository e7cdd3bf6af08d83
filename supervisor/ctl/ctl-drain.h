/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Draining this host, for the verbs that need it. */

#include "ctl/ctl.h"

/* What --within= says, or the default. */
CtlExit ctl_drain_within(Ctl *ctl, uint64_t *ret_s);
/* A drain that is for `then` alone, which follows once nothing runs: if that does not come about, whatever is in its way, SIGINT and SIGTERM as
 * well, the drain ends again, and what went wrong is said. Not one that was there before, or that somebody has made his own meanwhile. */
CtlExit ctl_drain_for(Ctl *ctl, uint64_t within_s, const char *reason, CtlExit (*then)(Ctl *ctl));
