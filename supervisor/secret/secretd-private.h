/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What secretd serves, behind its two sockets: the methods of secret-api.sock, and PID 1's questions at secret.sock. secretd-register.c makes the runs,
 * secretd.c has them, secretd-give.c what they get, secretd-token.c the tokens that are minted for them. */

#include "audit/audit.h"
#include "ipc/credential-server.h"
#include "ipc/ipc-waiters.h"
#include "ipc/ipc.h"
#include "policy/policy.h"
#include "secret/credential-store.h"
#include "secret/register.h"
#include "secret/run-store.h"
#include "secret/secretd.h"
#include "secret/token-list.h"
#include "util/background.h"

typedef struct Pending Pending;
typedef struct Making Making;

enum {
        WATCHERS_MAX = 512,
        MAKING_AT_ONCE = 2, /* runs' secrets, each in a thread that reads the policy */
};

struct Secretd {
        sd_event *event; /* ref */
        char *policy_root; /* owned */
        char *upstream_ca; /* owned */
        CredentialStore *credentials; /* owned */
        RunStore *runs; /* owned */
        TokenList *tokens; /* owned */
        AuditClient *audit; /* owned */
        IpcServer *api; /* owned */
        CredentialServer *server; /* owned */
        sd_event_source *sweep; /* owned */
        IpcCall *watchers[WATCHERS_MAX]; /* refs */
        size_t n_watchers;
        Pending *pending; /* owned list */
        Background *background; /* owned */
        Making *makings; /* owned list */
};

extern const IpcMethod secretd_methods[]; /* userdata: the Secretd */

/* The run of whoever calls, if it is registered and on record, else NULL. */
RunSecrets *secretd_find_run(const Secretd *d, const char *run);

/* Forgets watchers that are gone. */
void secretd_prune_watchers(Secretd *d);

/* ---- secretd-give.c ---- */

int secretd_on_credential(const Peer *peer, const char *id, char **ret, size_t *ret_size, void *userdata);
void secretd_on_denied(const Peer *peer, const char *claimed, const char *reason, void *userdata);
int secretd_on_values(IpcCall *call, json_t *params, void *userdata);
int secretd_on_sentinels(IpcCall *call, json_t *params, void *userdata);
int secretd_on_list(IpcCall *call, json_t *params, void *userdata);
int secretd_on_ping(IpcCall *call, json_t *params, void *userdata);

/* ---- secretd-register.c ---- */

/* A registration or release whose audit record is under way. Who asks to register the same run meanwhile waits for it as well. */
struct Pending {
        Pending *next;
        Secretd *secretd; /* borrowed */
        IpcWaiters calls; /* none if nobody waits */
        bool registration;
        char run[ID_LENGTH + 1]; /* "": a registration whose run was released meanwhile */
};

Pending *secretd_pending_new(Secretd *d, IpcCall *call, const char *run, bool registration);
Pending *secretd_pending_free(Pending *p);
DEFINE_CLEANUP(Pending *, secretd_pending_free)
/* The registration of a run that is kept, but not on record yet, if it is so: until it is recorded, it is nobody's. */
Pending *secretd_find_registration(const Secretd *d, const char *run);

int secretd_on_register(IpcCall *call, json_t *params, void *userdata);
/* A run is released while its secrets are being made: they come to nothing. */
void secretd_cancel_making(Secretd *d, const char *run);
/* Waits for what is being made. */
void secretd_makings_done(Secretd *d);

/* ---- secretd-token.c ---- */

int secretd_tokens_load(Secretd *d, const char *state_dir, const char *key_dir);
/* Forgets what has expired. */
void secretd_tokens_sweep(Secretd *d);
/* A token of a run that is over: it is to be revoked. */
bool secretd_token_is_due(const Secretd *d, const Token *t);
/* What an inject gets that is started for a run that is over: nothing but its name. NULL: none of its tokens is due. */
int secretd_give_revoker(const Secretd *d, const char *run, char **ret, size_t *ret_size);

int secretd_on_mint(IpcCall *call, json_t *params, void *userdata);
int secretd_on_minted(IpcCall *call, json_t *params, void *userdata);
int secretd_on_outstanding(IpcCall *call, json_t *params, void *userdata);
int secretd_on_revoke(IpcCall *call, json_t *params, void *userdata);
int secretd_on_revoked(IpcCall *call, json_t *params, void *userdata);
