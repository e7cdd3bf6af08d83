/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A request that needs a minted credential waits until there is one: asked for the first time, or again if it has expired. Last but for the budget: a token that nobody
 * may use here is not made. */

#include <errno.h>
#include <string.h>

#include "inject/minter.h"
#include "inject/request.h"

static void request_on_minted(const char *reason, void *userdata) {
        Request *q = userdata;
        Refusal refusal;

        q->mint = NULL;
        if (reason)
                request_deny(q, q->head, 502, "token-unavailable", NULL, reason, &refusal);
        request_go_on(q, reason ? REQUEST_E_REFUSED : 0, &refusal);
}

int request_wait_for_token(Request *q, Refusal *ret) {
        for (size_t i = 0; i < q->plan.n_items; i++) {
                const InjectCredential *c = q->plan.items[i].credential;

                if (minter_lacks(c)) {
                        int r = minter_wait(q->context->minter, c, request_on_minted, q, &q->mint);

                        return r < 0 ? r : REQUEST_E_WAITS;
                }
                if (c->revoked || !c->source->secret) {
                        request_deny(q, q->head, 403, "credential-revoked", NULL, "The credential was revoked.", ret);
                        return REQUEST_E_REFUSED;
                }
        }
        return 0;
}
