/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Names that both sides of egressd's socket share. */

#define EGRESS_SOCKET "/run/anchorhold/egress.sock"
#define EGRESS_OPERATOR_SOCKET "/run/anchorhold/egress-api.sock"
#define EGRESS_INTERFACE "io.anchorhold.Egress"

enum {
        EGRESS_HEARTBEAT_LOST_USEC = 10 * 1000 * 1000, /* without a beat for so long, every connection is closed */
};
