/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What secretd serves, behind its two sockets: the methods of secret-api.sock, and PID 1's questions at secret.sock. secretd.c has the runs, secretd-give.c what they
 * get, secretd-token.c the tokens that are minted for them. */

#include "audit/audit.h"
#include "ipc/credential-server.h"
#include "ipc/ipc.h"
#include "secret/credential-store.h"
#include "secret/run-store.h"
#include "secret/secretd.h"
#include "secret/token-list.h"

typedef struct Pending Pending;

enum { WATCHERS_MAX = 512 };

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
