/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Records that stand for things that were counted, each kept until auditd has acknowledged it. See tellings.c. */

#include <jansson.h>

#include "audit/audit.h"
#include "util/cleanup.h"
#include "util/text.h"

typedef struct Tellings Tellings;

/* An answer to one of them, which stands for `count`. r ≥ 0: it is recorded, and forgotten. -EINVAL, -EACCES: it never will be as it is, and is forgotten. Anything
 * else: it is kept, to be sent again. `kind` is what tellings_tell() was given. */
typedef void (*TellingsAnswered)(const char *run, unsigned kind, uint64_t count, int r, void *userdata);

/* `audit` is borrowed. */
int tellings_new(Tellings **ret, AuditClient *audit, TellingsAnswered answered, void *userdata);
/* After the audit client, whose answers it may wait for. */
Tellings *tellings_free(Tellings *t);
DEFINE_CLEANUP(Tellings *, tellings_free)

/* Takes data over, also on failure; then it is not kept. `event` is static, `actor` may be NULL. */
int tellings_tell(Tellings *t, const char *event, const char *run, const char *actor, json_t *data, uint64_t count, unsigned kind);

/* Sends again what was not taken, as long as fewer than `pending_max` of its run are under way. */
void tellings_again(Tellings *t, size_t pending_max);

/* Was one of this run not taken, and not sent again yet? Then nothing more should be begun: what is counted goes on being counted. */
bool tellings_is_refused(const Tellings *t, const char *run);
/* Is auditd still to answer for any? */
bool tellings_is_under_way(const Tellings *t);
/* Is there none at all, neither under way nor to be sent again? */
bool tellings_is_empty(const Tellings *t);
