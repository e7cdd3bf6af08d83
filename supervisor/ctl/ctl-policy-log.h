/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Records of the audit log about a run's network, and the policy that would have allowed what they say was blocked. */

#include "ctl/ctl.h"

typedef struct CtlLogRecord {
        uint64_t seq;
        char *time, *event, *run, *actor; /* owned */
        json_t *data;                     /* ref */
} CtlLogRecord;

/* Prints the policy, and on the error stream what it leaves out on purpose. */
CtlExit ctl_policy_suggest(Ctl *ctl, const char *subject, const CtlLogRecord *records, size_t n);
