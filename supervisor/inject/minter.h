/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Keeps a run's minted credentials (kind "github-app") fresh: asks secretd and the API when a request first needs one, and again before it expires. */

#include "audit/audit.h"
#include "inject/credential.h"
#include "inject/egress-link.h"
#include "inject/tls.h"
#include "ipc/ipc.h"

typedef struct Minter Minter;
typedef struct MintWait MintWait;

/* `reason` NULL: there is a token. Else why there is none. Called once, from the loop, unless the wait is freed. */
typedef void (*MintDone)(const char *reason, void *userdata);

typedef struct MinterSetup {
        sd_event *event;
        RunSecrets *secrets;           /* all borrowed, and there for longer */
        InjectCredential *credentials; /* as many as secrets has */
        EgressLink *egress;
        TlsSetup *tls;
        AuditClient *audit;
        IpcClient *secretd;
        uint64_t *generation;          /* counted up with every new value */
} MinterSetup;

int minter_new(Minter **ret, const MinterSetup *setup);
/* Nobody may wait any more. */
Minter *minter_free(Minter *m);
DEFINE_CLEANUP(Minter *, minter_free)

/* Has this one no value that will do for the next moments? Never of a credential that is not minted, or is revoked. */
bool minter_lacks(const InjectCredential *c);
int minter_wait(Minter *m, const InjectCredential *c, MintDone done, void *userdata, MintWait **ret);
MintWait *mint_wait_free(MintWait *w);

/* The values were taken from secretd: what is there is renewed in time. */
void minter_look(Minter *m);
