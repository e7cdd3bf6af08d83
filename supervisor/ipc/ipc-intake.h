/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* How much of what peers send a server takes in before it is a whole message. Drives the server's connections in the event loop. */

#include <systemd/sd-event.h>
#include <systemd/sd-varlink.h>

#include "ipc/peer.h"
#include "util/cleanup.h"

typedef struct IntakeShare IntakeShare; /* of a server */
typedef struct Intake Intake;           /* of a connection */

int intake_share_new(IntakeShare **ret, sd_event *event);
/* After all of its connections. */
IntakeShare *intake_share_free(IntakeShare *share);
DEFINE_CLEANUP(IntakeShare *, intake_share_free)

/* A message may have about this many bytes; a connection with a larger one is closed. */
void intake_set_message_max(IntakeShare *share, size_t bytes);

/* How long a message may be unfinished, and how long one that does not fit into its socket: half a minute and ten seconds, unless a test is in a hurry. */
void intake_set_times(IntakeShare *share, uint64_t unfinished_usec, uint64_t place_usec);

/* From now on the connection, which must not be attached to an event loop, is processed: calls come, answers leave. Link and peer are borrowed, and
 * the link is closed when it is to end; whoever closes it frees this. */
int intake_new(Intake **ret, IntakeShare *share, sd_varlink *link, Peer *peer);
Intake *intake_free(Intake *i);

/* A whole message was taken in: what follows is another one. */
void intake_call_begins(Intake *i);
