/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What one model call can have used, as far as the ledger believes it: more than any call does. inject reports no more, and anchord takes no more. */

enum {
        USAGE_TOKENS_MAX = 100 * 1000 * 1000,  /* of each kind */
        USAGE_COST_MAX = 1000 * 1000 * 1000,   /* micro-dollars */
};
