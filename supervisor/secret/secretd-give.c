/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What leaves secretd, and to whom: to units that start, through PID 1; to injects and proxies that ask; and names alone to operators. */

#include "secret/secretd-private.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "secret/app-key.h"
#include "secret/bundle-api.h"
#include "secret/upstream-ca.h"
#include "util/io.h"
#include "util/json.h"
#include "util/log.h"

/* ---- what is there, and who has it ---- */

/* The key of an app stays here: what leaves is the token that it has minted for this run. */
static int put_value(const Secretd *d, const RunSecrets *s, RunCredential *c) {
        const Secret *value = credential_store_find(d->credentials, c->name);
        const Token *token;
        SecretView v;

        if (!value)
                return 0;
        if (app_key_is_pem(value)) {
                token = token_list_newest(d->tokens, s->run, c->name, time_realtime());
                c->minted = true;
                c->expires_usec = token ? token->expires_usec : 0;
                value = token ? token->secret : NULL;
        }
        if (!value)
                return 0;
        v = secret_view(value);
        return secret_new(&c->secret, v.bytes, v.size);
}

/* The values are put in for as long as it takes to write the bundle. */
static int secretd_give_inject(const Secretd *d, RunSecrets *s, char **ret, size_t *ret_size) {
        int r = 0;

        for (size_t i = 0; i < s->n_credentials && r >= 0; i++)
                r = put_value(d, s, &s->credentials[i]);
        if (r >= 0)
                r = bundle_format(s, BUNDLE_WITH_SECRETS, ret, ret_size);
        for (size_t i = 0; i < s->n_credentials; i++) {
                s->credentials[i].secret = secret_free(s->credentials[i].secret);
                s->credentials[i].minted = false;
        }
        return r;
}

static int fill_memfd(int fd, const char *data, size_t size) {
        int r;

        r = io_write_full(fd, data, size);
        if (r < 0)
                return r;
        return lseek(fd, 0, SEEK_SET) < 0 ? -errno : 0;
}

/* What LoadCredential= would give this run's inject if it started now. Values travel as bytes in a descriptor, never as JSON. */
int secretd_on_values(IpcCall *call, json_t *params, void *userdata) {
        _cleanup_fd_ int fd = -1;
        Secretd *d = userdata;
        size_t size = 0;
        char *data = NULL;
        RunSecrets *s;
        int r;

        s = secretd_find_run(d, ipc_call_peer(call)->run);
        if (!s)
                return ipc_call_refuse(call, "NoSuchRun", "this run is not registered");

        r = secretd_give_inject(d, s, &data, &size);
        if (r < 0)
                return r;
        fd = memfd_create("values", MFD_CLOEXEC);
        r = fd < 0 ? -errno : fill_memfd(fd, data, size);
        secret_erase(data, size);
        if (r >= 0)
                r = ipc_call_push_fd(call, fd);
        if (r < 0)
                return r;
        TAKE_FD(fd);
        return ipc_call_reply(call, NULL);
}

/* What a run's proxy looks for in what it can read. A registration that is not on record yet hides nothing: the guest has them, or will. */
int secretd_on_sentinels(IpcCall *call, json_t *params, void *userdata) {
        Secretd *d = userdata;
        const RunSecrets *s = run_store_find(d->runs, ipc_call_peer(call)->run);
        json_t *sentinels;

        if (!s)
                return ipc_call_refuse(call, "NoSuchRun", "this run is not registered");
        sentinels = run_secrets_sentinels(s);
        return sentinels ? ipc_call_reply(call, json_pack("{s:o}", "sentinels", sentinels)) : -ENOMEM;
}

static bool is_watched(const Secretd *d, const char *run) {
        for (size_t i = 0; i < d->n_watchers; i++)
                if (strcmp(ipc_call_peer(d->watchers[i])->run, run) == 0)
                        return true;
        return false;
}

int secretd_on_list(IpcCall *call, json_t *params, void *userdata) {
        json_t *names = json_array(), *runs = json_array();
        Secretd *d = userdata;

        secretd_prune_watchers(d);
        for (size_t i = 0; i < credential_store_size(d->credentials); i++)
                json_array_append_new(names, json_string(credential_store_name(d->credentials, i)));
        for (size_t i = 0; i < run_store_size(d->runs); i++) {
                const RunSecrets *s = run_store_get(d->runs, i);
                json_t *has = json_array();

                for (size_t k = 0; k < s->n_credentials; k++)
                        json_array_append_new(has, json_string(s->credentials[k].name));
                json_array_append_new(runs, json_pack("{s:s, s:s, s:o, s:b}", "run", s->run, "item", s->item, "credentials", has,
                                                      "watched", (int) is_watched(d, s->run)));
        }
        return ipc_call_reply(call, json_pack("{s:o, s:o}", "credentials", names, "runs", runs));
}

int secretd_on_ping(IpcCall *call, json_t *params, void *userdata) {
        Secretd *d = userdata;

        return ipc_call_reply(call, json_pack("{s:I, s:I}", "credentials", (json_int_t) credential_store_size(d->credentials),
                                              "runs", (json_int_t) run_store_size(d->runs)));
}

/* ---- PID 1 ---- */

static int secretd_give_guest(const Secretd *d, const RunSecrets *s, char **ret, size_t *ret_size) {
        _cleanup_free_ char *pem = NULL;
        int r;

        if (d->upstream_ca) {
                r = upstream_ca_read(d->upstream_ca, &pem);
                if (r < 0)
                        return log_error_errno(r, "run %s does not start: cannot read %s", s->run, d->upstream_ca);
        }

        *ret = run_secrets_format_guest(s, pem);
        if (!*ret)
                return -ENOMEM;
        *ret_size = strlen(*ret);
        return 0;
}

void secretd_on_denied(const Peer *peer, const char *claimed, const char *reason, void *userdata) {
        Secretd *d = userdata;
        _cleanup_free_ char *safe = text_escape(claimed ? claimed : "", claimed ? strlen(claimed) : 0, false);
        char buffer[64];

        log_warning("refused a credential to %s, which claimed to be %s: %s",
                    peer_name((Peer *) peer, buffer), safe ? safe : "?", reason);
        (void) audit_append(d->audit, "secret.denied", *peer->run ? peer->run : NULL, NULL, NULL,
                            json_pack("{s:s, s:s?, s:i, s:s?, s:s}", "peer", peer_name((Peer *) peer, buffer),
                                      "unit", peer->unit, "uid", (int) peer->uid, "claimed", safe, "reason", reason),
                            NULL, NULL);
}

int secretd_on_credential(const Peer *peer, const char *id, char **ret, size_t *ret_size, void *userdata) {
        Secretd *d = userdata;
        const char *reason;
        RunSecrets *s;

        s = *peer->run ? run_store_find(d->runs, peer->run) : NULL;
        if (!s && strcmp(id, "inject") == 0 && peer->roles & PEER_INJECT && secretd_give_revoker(d, peer->run, ret, ret_size) >= 0)
                return 0;
        if (!s)
                reason = "no such run is registered";
        else if (!secretd_find_run(d, s->run))
                reason = "the run's registration is not recorded yet";
        else if (strcmp(id, "guest") == 0 && peer->roles & PEER_RUN)
                return secretd_give_guest(d, s, ret, ret_size);
        else if (strcmp(id, "inject") == 0 && peer->roles & PEER_INJECT)
                return secretd_give_inject(d, s, ret, ret_size);
        else
                reason = "this unit may not have that credential";

        secretd_on_denied(peer, id, reason, d);
        return -EACCES;
}
