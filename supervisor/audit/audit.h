/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* How every process but auditd itself writes audit events: asynchronously over auditd's socket. An
 * action whose event was not acknowledged must not happen. */

#include <jansson.h>
#include <systemd/sd-event.h>

#include "util/cleanup.h"

typedef struct AuditClient AuditClient;

#define AUDIT_TIMEOUT_USEC (3ULL * 1000 * 1000)

int audit_client_new(AuditClient **ret, sd_event *event);
AuditClient *audit_client_free(AuditClient *c);
DEFINE_CLEANUP(AuditClient *, audit_client_free)

/* Called once: r is 0 when the record is durable, negative errno otherwise (-ETIMEDOUT, -EACCES, …). */
typedef void (*AuditDone)(int r, void *userdata);

/* Sends one event. run, item, actor may be NULL (actor: the caller's own unit). `data` is taken over,
 * also on failure; NULL, as a json_pack() that failed gives it, is -ENOMEM. `done` may be NULL: then a failure is only logged. A negative return: nothing
 * was sent, and `done` is not called. Events of one run (else of one item) are recorded in the order of these calls. Whoever gets the result
 * logs it, once for a failure that lasts; that the action does not happen is its part as well. */
int audit_append(AuditClient *c, const char *event, const char *run, const char *item, const char *actor,
                 json_t *data, AuditDone done, void *userdata);

/* The same for an event that is sent again until it is recorded: with the same key (at most 64 printable ASCII characters, and never that of another
 * event) and the same words it is recorded once, also if auditd wrote it and its answer was lost. For the daemons, anchor-run, inject, anchor-net and anchor-netlog; other units of runs are refused. */
int audit_append_once(AuditClient *c, const char *key, const char *event, const char *run, const char *item, const char *actor,
                      json_t *data, AuditDone done, void *userdata);

/* How many events of this run (of this item, if they named no run) are under way: sent, or waiting for those before them. Whoever
 * makes many asks first: what waits for longer than AUDIT_TIMEOUT_USEC fails. */
size_t audit_pending(const AuditClient *c, const char *name);

/* Like audit_append() and waits, without an event loop (own connection): for command-line tools. */
int audit_append_sync(const char *event, const char *run, const char *item, const char *actor, json_t *data);

/* The same, for a process that ends: again and again until it is recorded, refused for good (-EINVAL, -EACCES), or until_usec (CLOCK_MONOTONIC). The key is as above; with NULL there is one try. */
int audit_append_sync_until(const char *key, const char *event, const char *run, json_t *data, uint64_t until_usec);

/* Is auditd alive and able to write? done as above. */
int audit_ping(AuditClient *c, AuditDone done, void *userdata);
