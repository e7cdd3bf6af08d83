/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Draining this host, for the verbs that need it. */

#include "ctl/ctl.h"

/* What --within= says, or the default. */
CtlExit ctl_drain_within(Ctl *ctl, uint64_t *ret_s);
/* Begins to drain and waits until nothing runs; says itself what went wrong. */
CtlExit ctl_drain(Ctl *ctl, uint64_t within_s, const char *reason);
