/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* One request of inject's own (not of its guest) and its answer, to a host that egressd grants as it does for the guest's. */

#include "inject/buffer.h"
#include "inject/egress-link.h"
#include "inject/tls.h"
#include "util/secret.h"

enum { ORIGIN_CALL_BODY_MAX = 64 * 1024 };

typedef struct OriginCall OriginCall;

typedef struct OriginRequest {
        const char *host, *method, *target;
        uint16_t port;
        const char *body;     /* JSON; NULL: none */
        const Secret *bearer; /* what proves who asks */
} OriginRequest;

/* Called once, from the loop, and may free the call. 0 with the answer, whose body is the callee's to erase; or a negative errno, and a sentence that
 * says what went wrong. */
typedef void (*OriginCallDone)(int r, const char *reason, unsigned status, Buffer *body, void *userdata);

/* The request is copied. Everything together may take eight seconds. */
int origin_call_new(OriginCall **ret, sd_event *event, EgressLink *egress, TlsSetup *tls, const OriginRequest *request, OriginCallDone done, void *userdata);
/* Forgets it, with its connection; `done` is not called any more. */
OriginCall *origin_call_free(OriginCall *c);
DEFINE_CLEANUP(OriginCall *, origin_call_free)
