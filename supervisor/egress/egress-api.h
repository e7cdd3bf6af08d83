/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Names that both sides of egressd's socket share. */

#define EGRESS_SOCKET "/run/anchorhold/egress.sock"
#define EGRESS_OPERATOR_SOCKET "/run/anchorhold/egress-api.sock"
#define EGRESS_INTERFACE "io.anchorhold.Egress"

enum {
        EGRESS_REFUSED_MAX = 100000,    /* told in one Refused: more than a proxy refuses in the second after which it says so */
        EGRESS_REFUSED_NAME_MAX = 1024, /* 255 bytes, each of them escaped */
        EGRESS_HEARTBEAT_LOST_USEC = 10 * 1000 * 1000, /* without a beat for so long, every connection is closed */
};
