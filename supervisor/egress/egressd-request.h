/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A question that the policy allows, on its way through resolving, granting and recording. See egressd-connect.c. */

#include "egress/egressd-question.h"

/* Answers for good, now or later: with the addresses granted to the asker, or a denial. */
int request_begin(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v);

/* Resolves and judges, as for a grant, but grants and records nothing: a denial if no address is left, else the answer of Look. */
int request_begin_look(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v, const char *verdict);

/* Records and answers "inspect": the connection is for inject, which asks again for itself. Or, with a grant that is
 * there already, "pass" for one more request on its connection. */
int request_begin_recorded(Egressd *e, EgressRun *run, IpcCall *call, const Question *question, const Verdict *v, const char *verdict);

/* The answer of Look and Connect. git: as in EgressDecision, may be NULL. run: what it was registered as is in the answer; NULL: is not. */
int egressd_answer(IpcCall *call, const EgressRun *run, const char *verdict, const char *reason, const char *rule, const char *name, const char *protocol,
                   uint64_t grant, bool covers, json_t *addresses, const char *git);
